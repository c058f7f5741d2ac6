"""--split from the command line to the row, on virtual ranks and on real MPI and Gloo."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from collbench.results.reader import read_run
from tests.cli.command import run
from tests.helpers import OF_THE_MACHINE

# collbench's variable counts; those of nccl-tests may be left in an environment.
VARIABLES = {"COLLBENCH_SPLIT": "div2", "NCCL_TESTS_SPLIT": "DIV 1", "NCCL_TESTS_SPLIT_MASK": "0x7"}


def test_groups_run_at_the_same_time_and_the_row_has_each_of_them(tmp_path: Path) -> None:
    line = "broadcast --backend simulated --ranks 4 --root 1 --sizes 1M -n 20 -w 2 --out run"
    done = run(tmp_path, *shlex.split(line), env=VARIABLES)
    assert (done.returncode, "NCCL_TESTS" in done.stderr) == (0, False)
    assert "split DIV 2 · 4 ranks" in done.stdout
    assert "\ngroups: " in done.stdout
    (row,) = read_run(tmp_path / "run").rows
    assert (row.group, row.groups["count"], row.groups["ranks"], row.wrong) == ("DIV 2", 2, 2, 0)
    assert set(row.flags) - OF_THE_MACHINE == {"simulated", "few_samples"}
    assert row.busbw_bytes_per_s == min(row.groups["busbw_bytes_per_s"])
    assert row.groups["total_busbw_bytes_per_s"] == pytest.approx(2 * row.busbw_bytes_per_s, rel=0.05)  # until the last was done


@pytest.mark.long
@pytest.mark.parametrize("split", ["DIV 2", "AND 0x1"])
def test_groups_of_real_ranks(tmp_path: Path, split: str) -> None:
    line = f"allreduce --backend mpi,gloo --ranks 4 --sizes 8,64K -n 10 -w 2 --max-time 2 --out run --split '{split}'"
    done = run(tmp_path, *shlex.split(line), timeout=120)
    assert done.returncode == 0, done.stderr
    rows = read_run(tmp_path / "run").rows
    assert [(row.group, row.wrong, row.groups["count"]) for row in rows] == [(split, 0, 2)] * 4
