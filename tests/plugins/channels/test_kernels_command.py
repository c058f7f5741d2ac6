"""`collbench kernels` on the fake GPU (a test double: its rates mean nothing), from the command line to the last check."""

import json
import sys
from pathlib import Path

import pytest

from tests.cli.command import Finished, environment, one_sentence, run
from tests.fake_gpu import environment as fake
from tests.plugins.channels.test_kernels import FEW_ROUNDS

pytestmark = pytest.mark.system

OF_ONE = ["fill", "verify", "read_memory", "write_memory", "copy", "triad", "reduce_copy", "flush", "pointer_chase", "delay", "pingpong"]
OF_TWO = ["peer_read", "peer_write", "peer_both", "reduce_copy", "copy_engine", "pingpong", "pointer_chase"]
UNCHECKED = {"flush", "delay"}
COMMAND = f"{FEW_ROUNDS}import sys\nfrom collbench.cli import main\nsys.exit(main.guarded(sys.argv[1:]))"


def kernels(folder: Path, *argv: str, gpus: int = 2, **machine: object) -> Finished:
    return run(folder, "kernels", *argv, program=(sys.executable, "-c", COMMAND), env=fake(gpus, inherit=environment(), **machine))


def test_every_kernel_of_every_gpu_and_between_them_is_measured_and_right(tmp_path: Path) -> None:
    done = kernels(tmp_path, "--size", "4K", "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    expected = [(kernel, [gpu]) for gpu in (0, 1) for kernel in OF_ONE] + [(kernel, [0, 1]) for kernel in OF_TWO]
    assert [(row["kernel"], row["gpus"]) for row in rows] == expected
    for row in rows:
        assert set(row["gpu_names"]) == {"FAKE GPU (test double)"}
        assert row["n"] >= 6, row
        assert row["wrong"] == (None if row["kernel"] in UNCHECKED else 0), row
        assert row["percent_of_floor"] is None, row  # 4 KiB are in the cache, and the link of the fake GPUs is unknown


@pytest.mark.long
def test_gpus_that_cannot_reach_each_other_are_na(tmp_path: Path) -> None:
    done = kernels(tmp_path, "--size", "4K", peer=0)
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines() if "n/a (GPUs 0 and 1 " in line] == [["0→1", kernel] for kernel in OF_TWO]


@pytest.mark.long
def test_one_gpu_has_no_peer(tmp_path: Path) -> None:
    done = kernels(tmp_path, "--size", "4M", gpus=1)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("GPU 0: FAKE GPU (test double) ") and "16.0 GB/s" in lines[0]
    assert [line.split()[1] for line in lines if "n/a (" in line] == OF_TWO
    (copy,) = (line for line in lines if line.split()[1] == "copy")
    assert " of 16.0 GB/s " in copy and copy.endswith("0      memory clock × width × 2")


def test_without_a_gpu_the_error_is_one_sentence(tmp_path: Path) -> None:
    assert one_sentence(kernels(tmp_path, gpus=0)).startswith("no GPU ")


@pytest.mark.long
def test_a_size_that_does_not_fit_is_rejected_before_a_kernel_runs(tmp_path: Path) -> None:
    said = one_sentence(kernels(tmp_path, "--size", "1G", memory=512 << 20))
    assert all(value in said for value in ("1 GiB", "GPU 0", "512 MiB"))
