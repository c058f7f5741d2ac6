"""A run in the middle, and what becomes of it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from collbench.results.reader import Run, read_run
from tests.cli.command import PROGRAM, running, start, until

TIMEOUT_S = 4
_LATE = ("hang: opening ", "hang: looking for ", "did not join within ", "cannot connect to rank 0 ")


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

    def everybody_left(self) -> None:
        until(lambda: not running(self.folder), f"the end of {running(self.folder)}", 10)

    def stored(self) -> Run:
        """What is on the disk, which must be whole rows from the first on."""
        found = read_run(self.folder / "run")
        assert found.rows and {row.size_bytes for row in found.rows} <= {8, *(1024 << k for k in range(17))}
        assert not any(row.wrong for row in found.rows)
        assert not found.warnings
        return found
