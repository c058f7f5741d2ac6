"""A run in the middle, and what becomes of it."""

import json
import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from collbench.results.reader import Run, read_run
from tests.cli.command import PROGRAM, running, start, until

TIMEOUT_S = 4
_LATE = ("hang: opening ", ": making its groups: ", "hang: looking for ", "did not join within ", "cannot connect to rank 0 ")


class Launch:
    """A run in the middle: some cases are stored, more are to come.

    On a busy machine a library may open more slowly than so short a --timeout allows; then it is started again.
    """

    def __init__(self, folder: Path, *argv: str, program: tuple[str, ...] = PROGRAM, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        cases = folder / "run" / "cells.jsonl"
        for _ in range(3):
            shutil.rmtree(folder / "run", ignore_errors=True)
            self.process = start(folder, *argv, program=program, env=env)
            until(lambda: self.process.poll() is not None or (cases.exists() and cases.stat().st_size), "the first row", 60)
            if self.process.poll() is None:
                break
            assert any(words in self.said for words in _LATE), self.said
        assert self.process.poll() is None, self.said
        self.parent = self.process.pid
        self.pids = [member["pid"] for member in json.loads((folder / "run" / "run.json").read_text())["rank_map"]]

    @property
    def said(self) -> str:
        return (self.folder / "stderr").read_text()

    def end(self, within_s: float) -> int:
        """The exit code, which must come in time."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {within_s:g} s: {self.said}")

    def ends_after_a_kill_of(self, victim: int) -> Run:
        """Kill a rank of a local start: it is named, the exit code is 4, and every process leaves. Return what is stored."""
        os.kill(self.pids[victim], signal.SIGKILL)
        assert self.end(within_s=TIMEOUT_S + 12) == 4
        assert f"collbench: rank {victim} (pid {self.pids[victim]}) was killed by signal 9 (SIGKILL)" in self.said
        return self._left_whole()

    def ends_after_a_stop_of(self, victim: int) -> Run:
        """Stop a rank, which no library notices: it is named, the exit code is 4, and every process leaves. Return what is stored."""
        os.kill(self.pids[victim], signal.SIGSTOP)
        # 1.5 times the deadline and --max-time, then the parent's patience of 10 s with the one that is stopped
        assert self.end(within_s=2 * TIMEOUT_S + 15) == 4
        assert re.search(rf"rank {victim}\b.*(did not answer|is stopped)", self.said), self.said
        return self._left_whole()

    def code_after(self, number: int, victim: int | None = None, within_s: float = TIMEOUT_S + 12) -> int:
        """Return the exit code after a signal to a rank or the parent of a local start: all processes leave, what is stored is whole."""
        os.kill(self.started_by() if victim is None else self.pids[victim], number)
        code = self.end(within_s)
        self.stored()
        self.everybody_left()
        return code

    def ends_after_sigterm(self) -> Run:
        """End the parent of a local start by SIGTERM: the exit code reports it, and every process leaves. Return what is stored."""
        assert self.code_after(signal.SIGTERM, within_s=15) == 143
        return self._left_whole()

    def ends_with_its_parent(self) -> Run:
        """Kill the parent of a local start: every process leaves. Return what is stored."""
        assert self.code_after(signal.SIGKILL, within_s=5) in (137, -signal.SIGKILL)  # `timeout` repeats the signal on itself
        return self._left_whole()

    def survives_a_pause_of(self, victim: int) -> Run:
        """Stop a rank for a second, shorter than the deadline: the run ends as if nothing had been. Return what is stored."""
        os.kill(self.pids[victim], signal.SIGSTOP)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        os.kill(self.pids[victim], signal.SIGCONT)
        assert self.end(within_s=60) == 0
        found = self._left_whole()
        assert found.finished
        return found

    def started_by(self) -> int:
        """Return the pid of the parent of a local start, a child of the `timeout` in front of it."""
        (parent,) = Path(f"/proc/{self.parent}/task/{self.parent}/children").read_text().split()
        return int(parent)

    def _left_whole(self) -> Run:
        for bad in ("Traceback", "Bad address", "defect"):
            assert bad not in self.said, self.said
        found = self.stored()
        self.everybody_left()
        return found

    def everybody_left(self) -> None:
        until(lambda: not running(self.folder), f"the end of {running(self.folder)}", 10)

    def stored(self) -> Run:
        """What is on the disk, which must be whole rows from the first on."""
        found = read_run(self.folder / "run")
        assert found.rows and {row.size_bytes for row in found.rows} <= {8, *(1024 << k for k in range(17))}
        assert not any(row.wrong for row in found.rows)
        assert not found.warnings
        return found
