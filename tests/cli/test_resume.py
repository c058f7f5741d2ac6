"""--resume on the command line: after a kill, and of what has nothing left."""

import csv
import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from collbench.backends.backend import Unavailable
from collbench.backends.registry import backend_class
from tests.cli.command import one_sentence, run, run_here, running, start, until
from tests.conftest import line_of_command, needs_command, needs_plugin, sample

pytestmark = pytest.mark.system

UNBRIEF = {"COLLBENCH_ITERATIONS": "100000", "COLLBENCH_WARMUP": "1"}
QUICK = ("allreduce", "--backend", "simulated", "--ranks", "4", "--sizes", "8,16", "--max-time", "0.01", "--out", "run")
REQUEUED = (*QUICK, "--dtype", "float64")


@pytest.mark.parametrize(("words", "variables"), [
    (("--resume", "run"), {}), (("--resume=run",), {}), (("allreduce", "--resume", "run", "--quiet"), {}),
    (REQUEUED, {"COLLBENCH_RESUME_IF_EXISTS": "1"}),
])  # fmt: skip
def test_a_run_is_resumed_with_its_own_options_or_by_its_requeued_command(
    words: tuple[str, ...], variables: dict[str, str], tmp_path: Path
) -> None:
    first = run(tmp_path, *REQUEUED, "--resume-if-exists", "--format", "json")
    assert (first.returncode, len(first.stdout.splitlines())) == (0, 2)
    cases = tmp_path / "run" / "cells.jsonl"
    before = cases.read_text().splitlines()
    cases.write_text(before[0] + "\n")
    done = run(tmp_path, *words, "--format", "json", env=variables)
    assert done.returncode == 0, done.stderr
    assert ("run has 1 of 2 cases" in done.stderr) == ("--quiet" not in words)
    rows = [json.loads(line) for line in cases.read_text().splitlines()]
    assert [row["dtype"] for row in rows] == ["float64"] * 2 and {row["size_bytes"] for row in rows} == {8, 16}
    assert len(done.stdout.splitlines()) == 2
    again = run(tmp_path, *words, env=variables)
    assert again.returncode == 0 and cases.read_text().splitlines()[0] == before[0] and len(cases.read_text().splitlines()) == 2


@pytest.mark.parametrize(("changes", "code"), [({}, 0), ({"rows": 3}, 77), ({"exit_code": 130}, 77), ({"asked": 3}, 77)])
def test_a_finished_run_is_shown_without_a_start(
    changes: dict[str, int], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """77: ranks are started, since the run may have something left: rows were removed, it was interrupted, or its time was over."""
    first = run(tmp_path, *QUICK, "--format", "csv")
    path = tmp_path / "run" / "run.json"
    info = json.loads(path.read_text())
    if "asked" in changes:
        changes = {"asked": {**info["asked"], "cells": changes["asked"]}}
    path.write_text(json.dumps(info | changes))
    monkeypatch.setattr("collbench.launch.spawn.start_local", lambda *_arguments, **_settings: 77)
    done = run_here(tmp_path, "--resume", "run", "--format", "csv")
    assert done.returncode == code, done.stderr
    if code == 0:
        assert measured_columns(done.stdout) == measured_columns(first.stdout)
        assert "run has 2 cases: nothing is left to measure" in done.stderr and path.read_text() == json.dumps(info)


@pytest.mark.parametrize("command", [["trace", "--", "touch", "made"], ["kernels"], ["no-command"], [], [7], "allreduce"])
def test_a_command_that_does_not_measure_is_not_run_from_a_folder(command: object, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    words = ["collbench", *command] if isinstance(command, list) else command
    (tmp_path / "run" / "run.json").write_text(json.dumps({"command": words}))
    done = run_here(tmp_path, "--resume", "run")
    assert done.returncode == 2 and one_sentence(done) and not (tmp_path / "made").exists()


CASES = ("allreduce", "--sizes", "8-4K", "--max-time", "0.2", "--precision", "0.001")
ROUNDS = ("--size", "64K", "--max-time", "0.1", "-n", "50")
TRAININGS = ("workload", "data-parallel,fsdp,parameter-server,pipeline", "--model", "1M", "--layers", "8", "--hidden", "64", "--sequence",
             "16", "--max-time", "0.3")  # fmt: skip
KINDS = {"cells.jsonl": CASES, "pairs.jsonl": ("pairs", *ROUNDS), "hunt.jsonl": ("hunt", *ROUNDS), "workload.jsonl": TRAININGS}
EACH = [
    (file, *where)
    for file in KINDS
    for where in (("simulated", "8", "parent"), ("gloo", "4", "parent"), ("gloo", "4", "rank 1"), ("socket", "4", "rank 0"))
    if (where[0], file) not in (("socket", "cells.jsonl"), ("socket", "workload.jsonl"))
]


@pytest.mark.often("cells.jsonl-simulated-8-parent")
@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "backend", "ranks", "victim"), [pytest.param(*each, marks=needs_command(KINDS[each[0]][0])) for each in sample(EACH, 5)]
)
def test_a_killed_run_can_be_resumed(tmp_path: Path, file: str, backend: str, ranks: str, victim: str) -> None:
    """Kill the parent, or one of its ranks: the others end with it. No record is lost, and none is measured a second time."""
    if isinstance(found := backend_class(backend).probe(), Unavailable):
        pytest.skip(str(found))
    line = (*KINDS[file], "--backend", backend, "--ranks", ranks)
    killed = start(tmp_path, *line, "--out", "run", env=UNBRIEF)
    records = tmp_path / "run" / file
    until(lambda: records.exists() and records.read_bytes().count(b"\n") >= 2, "two records")
    started = running(tmp_path)
    if victim != "parent":
        rank_map = json.loads((tmp_path / "run" / "run.json").read_text())["rank_map"]
        started = [rank_map[int(victim.split()[1])]["pid"]]
    for pid in started:
        with suppress(ProcessLookupError):  # ranks end with their parent
            os.kill(pid, signal.SIGKILL)
    killed.wait()
    until(lambda: not running(tmp_path), "the end of all ranks")
    before = records.read_bytes()
    kept = before[: before.rfind(b"\n") + 1]
    done = run(tmp_path, *line, "--resume", "run", "--format", "csv", env=UNBRIEF, timeout=90)
    assert done.returncode in (0, 1, 3), done.stderr
    assert f"run has {kept.count(10)} " in done.stderr and records.read_bytes().startswith(kept)
    stored = [json.loads(text) for text in records.read_text().splitlines()]
    subjects = [tuple(str(one.get(key)) for key in ("round", "pairs", "groups", "regime", "size_bytes")) for one in stored]
    assert len(set(subjects)) == len(subjects)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["exit_code"] == done.returncode
    before = records.read_bytes()
    again = run(tmp_path, *line, "--resume", "run", "--format", "csv", env=UNBRIEF)
    assert (again.returncode, records.read_bytes()) == (done.returncode, before)
    assert measured_columns(again.stdout) == measured_columns(done.stdout)
    assert "nothing is left to measure" in again.stderr


def measured_columns(text: str) -> list[list[tuple[str, str]]]:
    """Return the rows of a CSV, sorted, without the expected times, which only a finished run has."""
    rows = csv.DictReader(text.splitlines())
    return sorted([(name, value or "") for name, value in row.items() if "expected_time" not in name] for row in rows)


@pytest.mark.parametrize("command", [line_of_command(line) for line in ("pairs", "hunt", "workload fsdp --model 1M")])
def test_a_dry_run_shows_what_is_left_and_its_time(tmp_path: Path, command: str) -> None:
    line = (*command.split(), "--backend", "simulated", "--ranks", "6", "--max-time", "0.05", "--format", "json")
    planned = run_here(tmp_path, *line, "--dry-run")
    assert planned.returncode == 0 and "at most " in planned.stderr and " of samples" in planned.stderr
    assert all(json.loads(text) for text in planned.stdout.splitlines()) and not (tmp_path / "runs").exists()
    assert run(tmp_path, *line, "--out", "run").returncode == 0
    left = run_here(tmp_path, *line, "--dry-run", "--resume", "run")
    assert left.returncode == 0 and "run has " in left.stderr and " more " in left.stderr
    other = run_here(tmp_path, *line, "--max-time", "0.06", "--dry-run", "--resume", "run")
    assert other.returncode == 2 and "--max-time was 0.05 and is 0.06" in other.stderr


@needs_plugin("hunt")
def test_a_dry_run_of_pairs_shows_the_rounds_that_a_run_measures(tmp_path: Path) -> None:
    line = ("pairs", "--backend", "simulated", "--ranks", "6", "--max-time", "0.05", "--seed", "3")
    planned = [json.loads(text) for text in run_here(tmp_path, *line, "--dry-run", "--format", "json").stdout.splitlines()]
    assert run(tmp_path, *line, "--out", "run").returncode == 0
    stored = [json.loads(text) for text in (tmp_path / "run" / "pairs.jsonl").read_text().splitlines()]
    assert [one["ranks"] for one in planned] == [one["pairs"] for one in stored if not one["again"]]
    assert [one["round"] for one in planned] == [1, 2, 3, 4, 5]


@needs_plugin("hunt")
def test_a_dry_run_of_a_hunt_shows_the_most_rounds_that_a_hunt_promises(tmp_path: Path) -> None:
    line = ("hunt", "--backend", "simulated", "--ranks", "6", "--max-time", "0.05")
    planned = [json.loads(text) for text in run_here(tmp_path, *line, "--dry-run", "--format", "json").stdout.splitlines()]
    assert run(tmp_path, *line, "--out", "run").returncode == 0
    about = json.loads((tmp_path / "run" / "run.json").read_text())["hunt"]
    assert sum(one["most_rounds"] for one in planned) == about["promised"] >= about["rounds"]
