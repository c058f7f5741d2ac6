"""A log may have a line of many megabytes of repeated text: no reader takes quadratic time for it."""

from __future__ import annotations

import pytest

from collbench.errors import UsageError
from collbench.results.importers.importer import UserInput
from collbench.results.importers.store import READERS

_LENGTH = 400_000  # where the time grows with the square of the length, this takes minutes
_AGAIN = {
    "gloo": ("Options: ", "a"),
    "osu": ("# Send Buffer on ", "a"),
    "param": ("", "collective=pt2pt src_ranks=[1, 1], "),
    "imb": ("# Group 1:", " 1"),
    "perftest": ('"test_info" : {\n', " "),
    "nccl-tests": ("", " "),
    "nccl-tests-json": ("{", "["),
    "nccl-inspector": ('{"coll_perf":', "{"),
    "nvbandwidth": ("Running a.\nmemcpy CE GPU(row)\n", " 1"),
    "nvbandwidth-json": ('"nvbandwidth":{', "["),
    "all-reduce-bench": ("| 1KiB | 1GBps |", " "),
    "deepep": ("[tuning] Best dispatch: ", " GB/s"),
    "fi-pingpong": ("fi_a ", " -p"),
    "ucx-perftest": ("| Test: ", " a"),
    "mpigraph": ("START mpiGraph\n", "a:"),
    "gpcnet": ("Network Tests v1.3\n| Isolated Network Tests |\n|", " |"),
    "log": ("----- collbench: rows begin -----\n{", "["),
}
_MORE = (
    ("deepep", "", "[rank 1] Dispatch bandwidth: "),
    ("deepep", " EP:", " - EP:"),
    ("nccl-tests", "", "[1,0]<stdout>:"),
    ("nccl-tests", "mpirun ", "-x A="),
    ("osu", "[0]", " [0]"),
    ("param", "", "backend: a nw-stack: "),
    ("param", "", "Hello from Rank 1: host a, device: b, "),
    ("perftest", "", " a"),
)


@pytest.mark.parametrize(("name", "before", "again"), [*((name, *parts) for name, parts in _AGAIN.items()), *_MORE])
def test_a_line_that_repeats_itself(name: str, before: str, again: str) -> None:
    reader = next(reader for reader in READERS if reader.name == name)
    lines = (before + again * (_LENGTH // len(again)) + "\x00").split("\n")
    reader.knows(lines)
    with pytest.raises(UsageError):
        reader.read(lines, UserInput(ranks=2, operation="allreduce"))


def test_every_reader_has_such_a_line() -> None:
    assert set(_AGAIN) == {reader.name for reader in READERS}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("param", "collective=pt2pt x src_ranks=[1 2, 3], dst_ranks=[" + "9" * 5000 + "]"),
        ("osu", "# [ pairs: 2 ] [ window size: ² ]"),
        ("imb", "# Group 1: " + "9" * 5000),
    ],
)
def test_numbers_that_python_does_not_take_are_none(name: str, line: str) -> None:
    reader = next(reader for reader in READERS if reader.name == name)
    with pytest.raises(UsageError):
        reader.read(["# OSU MPI Multiple Bandwidth / Message Rate Test v7.4", "#  size", line], UserInput(ranks=2, operation="allreduce"))


def test_a_root_with_two_signs_is_none() -> None:
    reader = next(reader for reader in READERS if reader.name == "nccl-tests")
    (run,) = reader.read(["8 2 float sum --5 1.0 0.1 0.1 0"], UserInput(ranks=2, operation="allreduce")).runs
    assert [row.root for row in run.rows] == [None]
