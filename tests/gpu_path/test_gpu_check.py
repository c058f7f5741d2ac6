"""The GPU check (tools/gpu_check), whole, on the test double of driver, NCCL and cupy; and that its summary reports what was injected."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from collbench.results.reader import read_run
from gpu_path import bundle, steps
from gpu_path.check import FAKE_GPU, Check, NotPossible, Outcome
from gpu_path.packages import joined
from tests.fake_gpu import ROOT, environment
from tests.fake_gpu.build import HERE, libraries

TOOLS = HERE / "tools"  # a fake nvidia-smi and a fake NVML
PROGRAM = [sys.executable, str(ROOT / "tools/gpu_check")]
NO_CUDA_TORCH = {"torch-nccl"}  # the installed torch is a build for CPUs


def checked(folder: Path, *options: str, more: dict[str, str] | None = None, **told: object) -> tuple[int, dict[str, Any], str]:
    """Run the check; its exit code, summary.json and SUMMARY.md."""
    env = environment(1, memory=4 << 30, **told) | (more or {})
    env["PATH"] = f"{TOOLS}:{env['PATH']}"
    env["PYTHONPATH"] = f"{TOOLS}:{env['PYTHONPATH']}"
    env["LD_LIBRARY_PATH"] = f"{libraries() / 'nvml'}:{env['LD_LIBRARY_PATH']}"
    command = [*PROGRAM, "--out", str(folder), "--sizes", "8-64K:x8", "--max-time", "0.05", *options]
    done = subprocess.run(["timeout", "-k", "5", "200", *command], env=env, capture_output=True, text=True, check=False)
    assert (folder / "summary.json").exists(), done.stderr
    return done.returncode, json.loads((folder / "summary.json").read_text()), (folder / "SUMMARY.md").read_text()


@pytest.mark.system
@pytest.mark.timeout(240)
def test_every_step_runs_on_the_double_and_the_summary_is_true(tmp_path):
    code, found, text = checked(tmp_path / "check")
    outcomes = {step["step"]: step["outcome"] for step in found["steps"]}
    expected = {step.name: Outcome.NOT_POSSIBLE if step.name in NO_CUDA_TORCH else Outcome.PASSED for step in steps.STEPS}
    assert outcomes == expected, text
    assert (code, found["gpu"], found["fake"]) == (0, FAKE_GPU, True)
    assert "The device is a test double" in text
    table = {line.split(" | ")[0].strip("| "): line.split(" | ")[1] for line in text.splitlines() if line.startswith("| ")}
    assert {name: table[name] for name in outcomes} == outcomes
    rows = read_run(tmp_path / "check/runs/two-ranks").rows
    assert {row.ranks for row in rows} == {2}
    assert {row.dtype for row in rows} >= set(steps.DTYPES)
    assert all(row.wrong == 0 and row.checked for row in rows)
    assert (tmp_path / "check/report.html").stat().st_size > 10_000
    assert (tmp_path / "check/nvidia-smi-q.txt").read_text().startswith("FAKE nvidia-smi")


@pytest.mark.long
def test_injected_failures_are_reported_and_the_check_goes_on(tmp_path):
    """NVML and nvidia-smi disagree about the PCIe lanes; NCCL drops rank 1's data."""
    only = "backends,probe,two ranks,registration"
    code, found, text = checked(tmp_path / "check", "--only", only, drop_rank=1, more={"FAKE_NVML_LANES": "8"})
    steps_of = {step["step"]: step for step in found["steps"]}
    assert {name: step["outcome"] for name, step in steps_of.items()} == {
        "backends": "passed", "probe": "failed", "two ranks": "failed", "registration": "failed",
    }, text  # fmt: skip
    assert code == 1
    assert steps_of["probe"]["reason"] == "PCIe lanes of 0000:10:00.0: probe 8, nvidia-smi 16"
    assert "wrong elements" in steps_of["two ranks"]["reason"]
    assert steps_of["two ranks"]["reason"] in text


def test_without_a_gpu_the_check_does_not_start(tmp_path):
    done = subprocess.run([*PROGRAM, "--out", str(tmp_path / "check")], env=environment(0), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gpu_check: CUDA reports no GPU: run this on a machine with an NVIDIA GPU\n"
    assert not (tmp_path / "check").exists()


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "note").write_text("mine")
    done = subprocess.run([*PROGRAM, "--out", str(tmp_path)], env=environment(1), capture_output=True, text=True, check=False)
    assert (done.returncode, [file.name for file in tmp_path.iterdir()]) == (2, ["note"])


@pytest.fixture
def check(tmp_path):
    (tmp_path / "logs").mkdir()
    return Check(tmp_path, sys.executable, "8", 0.05, FAKE_GPU)


def test_a_step_is_ended_at_its_limit_with_all_its_processes(check, tmp_path):
    def sleeps(check: Check) -> str:
        check.run("sh", "-c", f"sleep 60 & echo $! >{tmp_path}/pid; sleep 60").expect(0)
        return "never"

    began = time.monotonic()
    result = steps.carried_out(check, steps.Step("sleeps", sleeps, 2.5))
    assert (result.outcome, time.monotonic() - began < 10) == (Outcome.FAILED, True)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while steps.is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not steps.is_alive(pid)


def test_steps_after_the_total_time_are_not_run(check):
    check.began -= 470
    result = steps.carried_out(check, steps.Step("late", lambda check: pytest.fail("must not run"), 60))
    assert result.outcome is Outcome.NOT_POSSIBLE


def test_an_unexpected_error_fails_the_step_only(check):
    result = steps.carried_out(check, steps.Step("broken", lambda check: {}["missing"], 60))
    assert result.outcome is Outcome.FAILED


SMI = {"pci.bus_id": "00000000:3B:00.0", "name": "NVIDIA H100", "memory.total": "81559", "pcie.link.width.max": "16"}
MACHINE = {
    "gpus": [{"address": "0000:3b:00.0", "model": "NVIDIA H100", "uuid": "GPU-1", "memory_bytes": 81559 << 20}],
    "pci": [{"address": "0000:3b:00.0", "link": {"max_speed_gt_per_s": 32.0, "max_width": 16}}],
    "system": {"driver": "580.1"},
}


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({}, []),
        ({"uuid": "GPU-1", "pcie.link.gen.gpumax": "5", "driver_version": "580.1"}, []),
        ({"name": "NVIDIA H200"}, ["model of 0000:3b:00.0: probe NVIDIA H100, nvidia-smi NVIDIA H200"]),
        ({"memory.total": "40960"}, ["memory in MiB of 0000:3b:00.0: probe 81559, nvidia-smi 40960"]),
        ({"pcie.link.gen.gpumax": "4"}, ["PCIe rate in GT/s of 0000:3b:00.0: probe 32.0, nvidia-smi 16.0"]),
        ({"pci.bus_id": "00000000:3C:00.0"}, ["probe has no GPU 0000:3c:00.0"]),
        ({"driver_version": "570.2"}, ["driver of 0000:3b:00.0: probe 580.1, nvidia-smi 570.2"]),
    ],
)
def test_what_nvidia_smi_contradicts_is_found(change, differs):
    assert steps.differences([SMI | change], MACHINE) == differs


ROW = {"operation": "allreduce", "dtype": "float32", "size_bytes": 8, "wrong": 0, "checked": 1, "na": None}


def test_rows_count_as_verified_only_if_they_were():
    assert steps.verified([ROW]) == "1 cases verified, 0 wrong"
    for wrong in ({"wrong": 1}, {"checked": 0}):
        with pytest.raises(steps.Failed):
            steps.verified([ROW, ROW | wrong])
    with pytest.raises(NotPossible) as raised:
        steps.verified([ROW, ROW | {"na": "NCCL is too old", "checked": 0}])
    assert raised.value.figure == "1 cases verified, 0 wrong"


def test_large_wheels_are_split_and_joined_again(tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    data = {"big.whl": os.urandom(2500), "small.whl": b"small", "middle.whl": os.urandom(900)}
    for name, content in data.items():
        (whole / name).write_bytes(content)
    folders = bundle.split(whole, tmp_path, limit=1000)
    assert max(bundle.size_of(folder) for folder in folders) <= 1000
    bundles = tmp_path / "carried"
    bundles.mkdir()
    for folder in folders:
        folder.rename(bundles / folder.name)
    out = tmp_path / "out"
    out.mkdir()
    assert {file.name: file.read_bytes() for file in joined(bundles, out).iterdir()} == data


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_bundle_is_small_enough_and_complete(tmp_path):
    done = subprocess.run([*PROGRAM, "--bundle", str(tmp_path / "bundle")], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert bundle.size_of(tmp_path / "bundle/base") <= bundle.BUNDLE_BYTES
    assert (tmp_path / "bundle/base/collbench/tools/gpu_check").exists()
    names = {file.name.partition("-")[0].lower() for file in (tmp_path / "bundle/base/wheels").iterdir()}
    assert names >= {"numpy", "pyzmq", "psutil", "rich", "nvidia_ml_py", "jsonschema", "pytest"}
