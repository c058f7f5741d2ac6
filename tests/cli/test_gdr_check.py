"""--gdr-check: pairs of launches in turns, their comparison, the verdict; the launches themselves are stood in for."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.cli import launches as gdr_check
from collbench.errors import UsageError
from collbench.measure.request import Request
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.sweep import Sweep
from tests.cli.command import one_sentence, run
from tests.results.rows import make_row, make_times, store

LEVEL = "NCCL_NET_GDR_LEVEL"


class Starts:
    """Stands in for the start of all ranks: writes what a launch would, 1.5 times slower without GPUDirect RDMA."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.seen: list[tuple[str, str, str | None]] = []

    def __call__(self, argv: Sequence[str], env: Mapping[str, str]) -> int:
        out = Path(argv[argv.index("--out") + 1])
        self.seen.append((f"{out.parent.name}/{out.name}", env["COLLBENCH_LAUNCH_INDEX"], env.get(LEVEL)))
        if len(self.seen) == self.fails_at:
            return 4
        p50 = (1e-4 if env.get(LEVEL) is None else 1.5e-4) * (1 + 0.01 * len(self.seen))
        store(out, [make_row(8, time_s=make_times(p50))], allocation_id=argv[argv.index("--allocation") + 1], id=str(out))
        return 0


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the analysis is asked."""
    asked: list[Any] = []
    stand_in = SimpleNamespace(verdict=lambda a, b: asked.append((list(a), list(b))) or ["GPUDirect RDMA carries the bytes"])
    monkeypatch.setitem(sys.modules, "collbench.analysis.gdr_check", stand_in)
    return asked


def check(folder: Path, start: Starts, format: str = "table", quiet: bool = False) -> int:
    request = Request("allreduce", Sweep((ALLREDUCE,), None, ()), ("nccl",), launches=2, out=folder / "both")
    arguments = argparse.Namespace(format=format, color="never", quiet=quiet)
    return gdr_check.check(request, arguments, ["allreduce", "--gdr-check"], {"HOME": "/"}, start)


def test_the_sides_take_turns_and_only_one_is_without(tmp_path: Path, verdicts: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    start, both = Starts(), tmp_path / "both"
    assert check(tmp_path, start) == 0
    assert start.seen == [
        ("with-gdr/launch-1", "0", None), ("without-gdr/launch-1", "0", "LOC"),
        ("with-gdr/launch-2", "1", None), ("without-gdr/launch-2", "1", "LOC"),
    ]  # fmt: skip
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "launch 1 of 2 with GPUDirect RDMA", "launch 1 of 2 without GPUDirect RDMA",
        "launch 2 of 2 with GPUDirect RDMA", "launch 2 of 2 without GPUDirect RDMA",
        f"folder of the launches: {both}",
    ]  # fmt: skip
    assert said.out.splitlines()[0] == "A: with-gdr (2 launches)   B: without-gdr (2 launches)"
    assert said.out.splitlines()[-1] == "GPUDirect RDMA carries the bytes"
    assert verdicts == [
        ([both / "with-gdr/launch-1", both / "with-gdr/launch-2"], [both / "without-gdr/launch-1", both / "without-gdr/launch-2"])
    ]


def test_for_programs_the_verdict_is_talk(tmp_path: Path, verdicts: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, Starts(), "json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["a"] == {"name": "with-gdr", "launches": 2}
    assert "GPUDirect RDMA carries the bytes\n" in said.err


def test_a_launch_that_fails_ends_it_without_a_verdict(tmp_path: Path, verdicts: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    start = Starts(fails_at=2)
    assert check(tmp_path, start, quiet=True) == 4
    assert (len(start.seen), verdicts) == (2, [])
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "collbench: launch 1 of 2 without GPUDirect RDMA failed with exit code 4, 2 more not started\n")


def test_a_folder_that_holds_a_check_is_refused(tmp_path: Path) -> None:
    (tmp_path / "both" / "without-gdr" / "launch-1").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"without-gdr already holds a run \(launch-1\): use a new folder"):
        check(tmp_path, Starts())


def test_a_comparison_has_no_text_of_nccl_tests(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which --format nccl-tests does not support: use table, csv or json"):
        check(tmp_path, Starts(), "nccl-tests")


@pytest.mark.parametrize("level", ["LOC", "loc", "0"])
def test_sides_that_would_be_alike_are_refused(level: str) -> None:
    with pytest.raises(UsageError, match=f"{LEVEL}={level} is exported: unset it, or neither side uses GPUDirect RDMA"):
        gdr_check.pairs(1, {LEVEL: level})
    assert gdr_check.pairs(1, {LEVEL: level, "COLLBENCH_LOCAL": "/tmp/x"}) == 2
    assert [gdr_check.pairs(launches, {LEVEL: "SYS"}) for launches in (1, 2, 7)] == [2, 2, 7]


def test_under_a_launcher_it_says_how_to_do_it_by_hand(tmp_path: Path) -> None:
    under = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    said = one_sentence(run(tmp_path, "allreduce", "--backend", "nccl", "--sizes", "8", "--gdr-check", env=under))
    assert said == (
        "--gdr-check starts the ranks itself, but torchrun has already started them: run the command twice in the allocation without it, "
        f"the second time with {LEVEL}=LOC exported, each with its own --out, then `collbench compare A B`"
    )
