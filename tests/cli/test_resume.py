"""--resume on the command line: after a kill, and with options that contradict it."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.command import run, run_here, running, start, until

SWEEP = ("allreduce", "--backend", "simulated", "--ranks", "4", "--sizes", "8-4K", "--max-time", "0.2", "--precision", "0.001")
UNBRIEF = {"COLLBENCH_ITERATIONS": "100000", "COLLBENCH_WARMUP": "1"}


@pytest.mark.parametrize("more", [("--out", "other"), ("--launches", "2"), ("--gdr-check",)])
def test_options_that_need_another_folder_are_rejected(tmp_path: Path, more: tuple[str, ...]) -> None:
    done = run_here(tmp_path, *SWEEP, "--resume", "run", *more)
    assert done.returncode == 2
    assert done.stderr.startswith(f"collbench: --resume and {more[0]} ")


def test_a_missing_folder_is_one_sentence(tmp_path: Path) -> None:
    done = run(tmp_path, *SWEEP, "--resume", "nowhere")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "nowhere" in done.stderr and "run.json" in done.stderr


QUICK = ("allreduce", "--backend", "simulated", "--ranks", "4", "--sizes", "8,16", "--max-time", "0.01", "--out", "run")


def test_the_error_about_a_used_folder_has_the_options_that_resume_it(tmp_path: Path) -> None:
    assert run(tmp_path, *QUICK).returncode == 0
    done = run(tmp_path, *QUICK)
    assert done.returncode == 2 and all(option in done.stderr for option in ("--out run ", "--resume run ", "--resume-if-exists"))


def test_a_requeued_command_starts_its_run_and_then_resumes_it(tmp_path: Path) -> None:
    first = run(tmp_path, *QUICK, "--resume-if-exists", "--format", "json")
    cases = tmp_path / "run" / "cells.jsonl"
    before = cases.read_text().splitlines()
    cases.write_text(before[0] + "\n")
    again = run(tmp_path, *QUICK, "--format", "json", env={"COLLBENCH_RESUME_IF_EXISTS": "1"})
    assert (first.returncode, again.returncode, len(first.stdout.splitlines()), len(again.stdout.splitlines())) == (0, 0, 2, 2)
    assert "run has 1 of 2 cases" in again.stderr
    assert cases.read_text().splitlines()[0] == before[0] and len(cases.read_text().splitlines()) == 2


@pytest.mark.parametrize(("more", "said"), [
    ((), "--resume-if-exists needs a run folder"),
    (("--out", "run", "--resume", "run"), "--resume and --out "),
    (("--out", "run", "--launches", "2"), "--resume-if-exists and --launches "),
])  # fmt: skip
def test_resume_if_exists_needs_one_folder(tmp_path: Path, more: tuple[str, ...], said: str) -> None:
    done = run_here(tmp_path, *SWEEP, "--resume-if-exists", *more)
    assert done.returncode == 2 and done.stderr.startswith(f"collbench: {said}")


@pytest.mark.in_turn
def test_a_killed_run_can_be_resumed(tmp_path: Path) -> None:
    killed = start(tmp_path, *SWEEP, "--out", "run", env=UNBRIEF)
    cases = tmp_path / "run" / "cells.jsonl"
    until(lambda: cases.exists() and cases.read_bytes().count(b"\n") >= 2, "two rows")
    for pid in running(tmp_path):
        with suppress(ProcessLookupError):  # ranks end with their parent
            os.kill(pid, signal.SIGKILL)
    killed.wait()
    kept = cases.read_bytes().count(b"\n")
    done = run(tmp_path, *SWEEP, "--resume", "run", "--format", "json", env=UNBRIEF)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 10)
    assert sorted(json.loads(line)["size_bytes"] for line in cases.read_text().splitlines()) == [8 << step for step in range(10)]
    assert f"run has {kept} of 10 cases: {10 - kept} " in done.stderr
