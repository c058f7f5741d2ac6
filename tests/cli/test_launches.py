"""--launches N and --gdr-check: N starts, each with its own run, and one table; several starts under a launcher, combined by report."""

import json
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.cli import launches as gdr_check
from collbench.cli.request import pairs_of_launches
from collbench.errors import UsageError
from collbench.measuring.request import Request
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.sweep import Sweep
from collbench.report.progress import Output
from collbench.results.reader import read_run
from collbench.stats.launches import over_launches
from tests.cli.command import one_sentence, run, run_here, start, until
from tests.results.rows import make_row, make_times, store

SIMULATED = ("allreduce", "--sizes", "8,1K", "--backend", "simulated")


@pytest.mark.contract
def test_each_launch_is_a_run_and_the_table_is_of_all(tmp_path: Path) -> None:
    done = run(tmp_path, *SIMULATED, "--launches", "2", "--out", "both")
    runs = [read_run(tmp_path / "both" / f"launch-{number}") for number in (1, 2)]
    assert done.returncode == 0, done.stderr
    assert [(each.info["launch_index"], each.info["launches"], each.finished, len(each.rows)) for each in runs] == [
        (0, 2, True, 2), (1, 2, True, 2),
    ]  # fmt: skip
    assert runs[0].info["allocation_id"] == runs[1].info["allocation_id"]
    assert re.fullmatch(r"\d{8}T\d{6}Z-allreduce-[0-9a-f]{6}", runs[0].info["allocation_id"])
    assert done.stdout.splitlines()[0] == "both (2 launches, 2 rows)" and done.stdout.count("quality\n") == 1
    talk = [line for line in done.stderr.splitlines() if "launch" in line]
    assert talk == ["launch 1 of 2", "launch 2 of 2", "folder of the launches: both"]
    again = run_here(tmp_path, "report", "both/launch-2", "both/launch-1").stdout.splitlines()  # begins with the answer
    at = again.index("")
    assert again[at + 1 :] == done.stdout.splitlines()[1 : len(again) - at]
    assert again[1:at] == done.stdout.splitlines()[-at:-1] and done.stdout.splitlines()[-1].startswith("next: ")


@pytest.mark.contract
def test_json_has_the_combined_rows_and_nothing_else(tmp_path: Path) -> None:
    done = run(tmp_path, *SIMULATED, "--format", "json", "--quiet", "--allocation", "mine", env={"COLLBENCH_LAUNCHES": "2"})
    assert (done.returncode, done.stderr) == (0, "")
    (folder,) = (tmp_path / "runs").iterdir()
    runs = [read_run(folder / f"launch-{number}") for number in (1, 2)]
    assert [each.info["allocation_id"] for each in runs] == ["mine", "mine"]
    for line in done.stdout.splitlines():
        row = json.loads(line)
        medians = [r.time_s.p50 for each in runs for r in each.rows if r.size_bytes == row["size_bytes"] and r.time_s]
        assert (row["launches"], row["evidence"]["launch_medians_s"]) == (2, medians)
        assert row["time_s"]["p50"] == over_launches(medians).value


@pytest.mark.contract
def test_the_first_launch_that_fails_ends_the_series_and_the_finished_ones_are_printed(tmp_path: Path) -> None:
    """The second launch cannot write its folder: a file is in the way."""
    both = tmp_path / "both"
    both.mkdir()
    (both / "launch-2").write_text("mine")
    done = run(tmp_path, *SIMULATED, "--launches", "3", "--out", "both")
    assert done.returncode == 2
    assert "launch 2 of 3 failed with exit code 2" in done.stderr
    assert done.stdout.startswith("launch-1 (2 rows)\n")
    assert not (both / "launch-3").exists()


@pytest.mark.contract
def test_an_interrupted_series_prints_the_finished_launches(tmp_path: Path) -> None:
    done = start(tmp_path, "allreduce", "--sizes", "8", "--backend", "simulated", "--launches", "400", "--out", "all")
    until((tmp_path / "all" / "launch-2" / "run.json").exists, "the second launch")
    done.send_signal(signal.SIGINT)
    assert done.wait(30) == 130
    said = (tmp_path / "stderr").read_text()
    assert re.search(r"launch \d+ of 400 was interrupted", said)
    assert re.search(r"^allreduce over simulated ", (tmp_path / "stdout").read_text(), re.MULTILINE)


@pytest.mark.contract
def test_under_a_launcher_rank_0_alone_reports_the_remedy(tmp_path: Path) -> None:
    under = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "COLLBENCH_LAUNCHES": "3"}
    said = one_sentence(run(tmp_path, *SIMULATED, env=under))
    assert said.startswith("--launches 3 ") and "torchrun" in said and "--allocation" in said
    other = run(tmp_path, *SIMULATED, env={**under, "RANK": "1"})
    assert (other.returncode, other.stdout, other.stderr) == (2, "", "")


def test_starts_of_one_allocation_are_reported_together(tmp_path: Path) -> None:
    for name, allocation in (("a", "x"), ("b", "y"), ("c", "x")):
        store(tmp_path / name, [make_row(8), make_row(16)], allocation_id=allocation)
    out = run_here(tmp_path, "report", "a", "b", "c").stdout
    assert [line for line in out.splitlines() if line.endswith("rows)")] == ["x (2 launches, 2 rows)", "b (2 rows)"]
    twice = one_sentence(run_here(tmp_path, "report", "a", "a"))
    assert twice.startswith("a ") and "twice" in twice


# --gdr-check: interleaved pairs of launches, their comparison, the verdict; a test double writes the launches' runs.

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
    return gdr_check.check(request, Output(format, "never", quiet), ["allreduce", "--gdr-check"], {"HOME": "/"}, start)


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
    a, b = ([both / side / f"launch-{number}" for number in (1, 2)] for side in ("with-gdr", "without-gdr"))
    assert verdicts == [(a, b)]


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


@pytest.mark.parametrize("level", ["LOC", "loc", "0"])
def test_equal_sides_are_rejected(level: str) -> None:
    with pytest.raises(UsageError, match=f"{LEVEL}={level} "):
        pairs_of_launches(1, {LEVEL: level})
    assert pairs_of_launches(1, {LEVEL: level, "COLLBENCH_LOCAL": "/tmp/x"}) == 2
    assert [pairs_of_launches(launches, {LEVEL: "SYS"}) for launches in (1, 2, 7)] == [2, 2, 7]
