"""`collbench workload` as users start it: plans, rejected options, steps measured on every backend and in real frameworks, their report."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from collbench.cli import request as requests
from collbench.launch.info import LaunchInfo
from collbench.measuring.request import Request
from collbench.operations.sweep import Sweep
from collbench.plugins.training.workloads.registry import every_regime, regimes
from tests.cli.command import BIN, run, run_here
from tests.conftest import sample
from tests.plugins.training.reading import BACKENDS, MISSING, read_workload
from tests.test_trust import DOCS, _rows

LAYERS = ("--layers", "2", "--hidden", "64")
OF_ITS_OWN = {
    "data-parallel": ("--bucket", "1M"), "parameter-server": ("--bucket", "1M", "--update", "sharded"), "fsdp": LAYERS,
    "pipeline": ("--layers", "3", "--hidden", "64", "--sequence", "32"), "expert-parallel": (*LAYERS, "--sequence", "32"),
    "tensor-parallel": (*LAYERS, "--sequence", "32", "--tensor", "3"),
}  # fmt: skip
SMALL = ("--model", "1M", "--bucket", "1M", "--max-time", "0.5")  # numbers, of 4 bytes each
ALONE = LaunchInfo("srun", 0, 2, 0, 1, "tcp://h", "t")
needs_gloo = pytest.mark.skipif(MISSING["gloo"], reason="no torch beside this Python")


def planned(folder, *typed):
    done = run_here(folder, "workload", *typed, "--dry-run", "--format", "json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_plan_has_the_exchanges_of_model_and_layout(tmp_path):
    exchanges = planned(tmp_path, "data-parallel", "--model", "resnet50", "--ranks", "4")
    assert {one["operation"] for one in exchanges} == {"allreduce"} and {one["group_ranks"] for one in exchanges} == {4}
    assert sum(one["size_bytes"] * one["times"] for one in exchanges) == 25_557_032 * 4
    assert sum(one["moves_bytes"] for one in exchanges) == pytest.approx(25_557_032 * 4 * 2 * 3 / 4)
    assert list(tmp_path.iterdir()) == [], "nothing was started"
    exchanges = planned(tmp_path, "ddp,fsdp2", "--ranks", "2")
    assert {one["operation"] for one in exchanges} == {"allreduce", "allgather", "reducescatter"}
    exchanges = planned(tmp_path, "hierarchical", "--ranks", "8", "--ranks-per-node", "4")
    assert {(one["operation"], one["groups"], one["group_ranks"]) for one in exchanges} == {
        ("reducescatter", 2, 4), ("allreduce", 4, 2), ("allgather", 2, 4),
    }  # fmt: skip


@pytest.mark.parametrize(("info", "ranks_per_node", "gpus_each", "hosts"), [
    (None, None, 1, (0,) * 6), (None, 4, 1, (0, 0, 0, 0, 1, 1)), (None, 3, 2, (0,) * 6 + (1,) * 6),
    (ALONE, None, 1, (0, 0, 0, 1, 1, 1)),  # a task that becomes three on each node
    (ALONE, 2, 2, (0, 0, 0, 0, 1, 1, 1, 1)), (replace(ALONE, ranks=4, local_ranks=2), 1, 1, (0, 0, 1, 1)),
])  # fmt: skip
def test_hosts_of_a_launch_that_is_only_planned(info, ranks_per_node, gpus_each, hosts, monkeypatch):
    monkeypatch.setattr(requests, "local_ranks", lambda request, env: 6)
    monkeypatch.setattr(requests, "node_ranks", lambda request, info, env: 3)
    request = Request("workload", Sweep((), None, ()), ("mpi",), gpus_per_process=gpus_each, ranks_per_node=ranks_per_node)
    assert requests.placement_of(request, info, {}).host_of == hosts


def test_all_skips_what_the_hosts_cannot_run_with_the_reason(tmp_path):
    done = run_here(tmp_path, "workload", "all", "--ranks", "4", "--dry-run", "--format", "csv")
    assert done.returncode == 0
    assert {row["regime"] for row in csv.DictReader(io.StringIO(done.stdout))} == set(regimes()) - {"hierarchical"}
    assert done.stderr.startswith("hierarchical is skipped: ") and done.stderr.count("\n") == 2 and " of samples" in done.stderr


def test_a_training_without_overlap_is_refused_and_options_come_from_the_environment_too(tmp_path):
    typed = {"COLLBENCH_TENSOR": "4", "COLLBENCH_RANKS": "8"}
    done = run_here(tmp_path, "workload", "tensor-parallel", "--dry-run", "--format", "json", env=typed)
    assert [json.loads(line)["group_ranks"] for line in done.stdout.splitlines()] == [4, 4]
    done = run_here(tmp_path, "workload", "tensor-parallel", "--compute", "real", "--ranks", "2")
    assert done.returncode == 2 and "data-parallel" in done.stderr and list(tmp_path.iterdir()) == []


def stored(folder):
    about, rows, warnings = read_workload(folder / "run")
    assert about and rows and not warnings
    return rows


@pytest.mark.system
@pytest.mark.often("data-parallel-mpi")
@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", sample(sorted(OF_ITS_OWN), 2))
def test_a_step_is_measured_and_right(backend, name, tmp_path):
    typed = ["workload", name, "--backend", backend, "--ranks", "3", "--model", "1M", "--max-time", "0.5", *OF_ITS_OWN[name]]
    done = run(tmp_path, *typed, "--out", "run", "--format", "json", "--step-time", "10ms")
    assert done.returncode == 0, done.stderr
    actual, (row,) = [json.loads(line) for line in done.stdout.splitlines()], stored(tmp_path)
    assert (row.regime, row.backend, row.ranks, row.na, row.wrong) == (name, backend, 3, None, 0) and row.checked
    assert row.time_s and row.moved_bytes > 0 and row.busbw_bytes_per_s == pytest.approx(row.moved_bytes / row.time_s.p50)
    assert [one["scaling"]["apart"]["value"] for one in actual] == [pytest.approx(0.01 / (0.01 + row.time_s.p50))]


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["data-parallel", "fsdp"])
def test_a_step_with_real_computing_is_measured_and_right(backend, name, tmp_path):
    typed = ["workload", name, "--backend", backend, "--ranks", "2", "--model", "1M", "--steps", "6", *OF_ITS_OWN[name], "--no-parts"]
    done = run(tmp_path, *typed, "--out", "run", "--compute", "real", "--step-time", "2ms")
    assert done.returncode == 0, done.stderr
    (row,) = stored(tmp_path)
    known = row.computing
    assert row.wrong == 0 and row.checked and known.refusal is None and known.stated and known.goal_s == 0.002
    assert known.overlap.blocks == 6 and known.efficiency.value > 0
    assert known.overlap.progress == ("calls" if backend == "mpi" else "threads")
    again = run_here(tmp_path, "report", "run")
    assert again.returncode == 0 and again.stdout == f"run (1 row)\n{done.stdout}"


@pytest.mark.long
def test_all_on_virtual_ranks(tmp_path):
    typed = ("--backend", "simulated", "--ranks", "4", "--max-time", "0.2", "--model", "1M", *LAYERS, "--sequence", "32", "--stages", "2")
    done = run(tmp_path, "workload", "all", *typed, "--out", "run", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    by_name = {row.regime: row for row in stored(tmp_path)}
    assert list(by_name) == list(regimes())
    unable = {name: row.na for name, row in by_name.items() if row.na}
    assert list(unable) == ["hierarchical"] and f"n/a ({unable['hierarchical']}" in " ".join(done.stdout.split())
    assert all((row.wrong, "simulated" in row.flags) == (0, True) for row in by_name.values() if not row.na)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", done.stdout)


@pytest.mark.long
@pytest.mark.skipif(MISSING["mpi"] or not (BIN / "mpiexec").exists(), reason="no MPI")
def test_under_a_launcher(tmp_path):
    program = (str(BIN / "mpiexec"), "-n", "3", str(BIN / "python"), "-m", "collbench")
    done = run(tmp_path, "workload", "parameter-server", "--update", "asynchronous", *SMALL, "--out", "run", program=program)
    assert done.returncode == 0, done.stderr
    rows = [row for row in stored(tmp_path) if row.na is None]
    assert rows and all(len(row.staleness.workers) == 2 for row in rows)
    assert "2 workers" in done.stdout


@pytest.mark.system
@pytest.mark.often("fsdp2 --ranks 2")
@needs_gloo
@pytest.mark.long
@pytest.mark.parametrize("words", [
    ["ddp", "--ranks", "2", "--bucket", "300K"], ["ddp", "--ranks", "3"],
    ["ddp", "--ranks", "2", "--dtype", "float64", "--model", "700001", "--layers", "2", "--hidden", "96"],
    ["fsdp2", "--ranks", "2"],
    ["fsdp2", "--ranks", "3", "--model", "700001", "--layers", "1", "--hidden", "97"],
    ["fsdp2", "--ranks", "2", "--dtype", "bfloat16"],
], ids=" ".join)  # fmt: skip
def test_a_real_step_exchanges_what_is_expected_and_trains_right(words, tmp_path):
    done = run(tmp_path, "workload", *words, "-n", "4", "--out", "run", "--format", "json")
    assert done.returncode == 0, done.stderr
    _, (row,), warnings = read_workload(tmp_path / "run")
    assert not warnings and json.loads(done.stdout)["regime"] == words[0]
    assert (row.backend, row.na, row.n, row.wrong, row.checked) == ("gloo", None, 4, 0, 1)
    assert row.evidence["traffic"]["kind"] == "traffic_equal"
    assert sum(part.times for part in row.parts) == row.evidence["traffic"]["operations"] == sum(row.evidence["recorded"].values())
    assert row.time_s and row.busbw_bytes_per_s is None and row.percent_of_ceiling is None
    shown = run_here(tmp_path, "report", "run")
    assert shown.returncode == 0 and "byte for byte" in shown.stdout


@needs_gloo
@pytest.mark.long
def test_ranks_that_train_alone_are_wrong_and_differ_from_what_is_expected(tmp_path):
    program = (str(BIN / "torchrun"), "--nproc-per-node", "2", str(Path(__file__).with_name("no_exchange.py")))
    done = run(tmp_path, "workload", "ddp", "-n", "2", "--out", "run", program=program)
    assert done.returncode == 1, "of torchrun, after exit code 4 of the ranks"
    _, (row,), _ = read_workload(tmp_path / "run")
    assert row.wrong and "model_differs" in row.flags
    assert row.evidence["traffic"] | {"framework": ""} == {
        "kind": "traffic_differs", "framework": "", "rank": 0, "at": 0, "recorded": None,
        "expected": {"kind": "exchanged", "operation": "allreduce", "size_bytes": 264192 * 4, "dtype": "float32"},
    }  # fmt: skip


def test_every_regime_has_its_command():
    pages = (DOCS / "regimes.md").read_text(encoding="utf-8")
    assert set(re.findall(r"collbench workload ([a-z0-9-]+)", pages)) - {"all"} == set(every_regime())
    named = [row[0] for row in _rows("guides/replay-my-training.md") if row[0].startswith("`") and "`--" not in row[0]]
    assert {name.strip("`") for name in named} == set(every_regime())
