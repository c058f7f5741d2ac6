"""--gdr-check: interleaved pairs of launches, their comparison, the verdict; a test double writes the launches' runs."""

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
VERDICT = "the verdict of a test double"


class Starts:
    """A double of the start of all ranks: writes a run, with times 1.5 times longer without GPUDirect RDMA."""

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
    """Return the list of the analysis' arguments."""
    asked: list[Any] = []
    stand_in = SimpleNamespace(verdict=lambda a, b: asked.append((list(a), list(b))) or [VERDICT])
    monkeypatch.setitem(sys.modules, "collbench.analysis.gdr_check", stand_in)
    return asked


def check(folder: Path, start: Starts, format: str = "table", quiet: bool = False) -> int:
    request = Request("allreduce", Sweep((ALLREDUCE,), None, ()), ("nccl",), launches=2, out=folder / "both")
    arguments = argparse.Namespace(format=format, color="never", quiet=quiet)
    return gdr_check.check(request, arguments, ["allreduce", "--gdr-check"], {"HOME": "/"}, start)


def test_the_sides_alternate_and_only_one_runs_without_gpudirect(
    tmp_path: Path, verdicts: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert said.out.startswith("A: with-gdr ") and "B: without-gdr " in said.out
    assert said.out.splitlines()[-1] == VERDICT
    assert verdicts == [
        ([both / "with-gdr/launch-1", both / "with-gdr/launch-2"], [both / "without-gdr/launch-1", both / "without-gdr/launch-2"])
    ]


def test_with_json_the_verdict_goes_to_stderr(tmp_path: Path, verdicts: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, Starts(), "json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["a"] == {"name": "with-gdr", "launches": 2}
    assert VERDICT in said.err.splitlines()


def test_a_launch_that_fails_ends_it_without_a_verdict(tmp_path: Path, verdicts: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    start = Starts(fails_at=2)
    assert check(tmp_path, start, quiet=True) == 4
    assert (len(start.seen), verdicts) == (2, [])
    said = capsys.readouterr()
    assert said.out == "" and "launch 1 of 2 without GPUDirect RDMA" in said.err and said.err.count("\n") == 1


def test_a_folder_with_an_earlier_check_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "both" / "without-gdr" / "launch-1").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"without-gdr .*\(launch-1\)"):
        check(tmp_path, Starts())


def test_the_format_of_nccl_tests_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--format nccl-tests"):
        check(tmp_path, Starts(), "nccl-tests")


@pytest.mark.parametrize("level", ["LOC", "loc", "0"])
def test_equal_sides_are_rejected(level: str) -> None:
    with pytest.raises(UsageError, match=f"{LEVEL}={level} "):
        gdr_check.pairs(1, {LEVEL: level})
    assert gdr_check.pairs(1, {LEVEL: level, "COLLBENCH_LOCAL": "/tmp/x"}) == 2
    assert [gdr_check.pairs(launches, {LEVEL: "SYS"}) for launches in (1, 2, 7)] == [2, 2, 7]


def test_under_a_launcher_the_error_has_the_manual_steps(tmp_path: Path) -> None:
    under = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    said = one_sentence(run(tmp_path, "allreduce", "--backend", "nccl", "--sizes", "8", "--gdr-check", env=under))
    assert said.startswith("--gdr-check ") and "torchrun" in said and f"{LEVEL}=LOC" in said
