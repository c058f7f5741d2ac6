"""Every output of a verdict, by file and by style."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from collbench.gate.verdict import Verdict
from collbench.report.outputs import write_whole
from collbench.report.table import Line
from collbench.report.verdict import terminal
from collbench.results.jsonl import to_page


@dataclass(frozen=True)
class Files:
    """The files asked for; None: not asked for."""

    out: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None
    openmetrics: Path | None = None
    html: Path | None = None


def write_files(verdict: Verdict, files: Files, runs: Sequence[Path], confirm_suite: Path | None, suite: str | None) -> None:
    """Writes what was asked for, each in one step; verdict.json first. Raises UsageError."""
    if files.out:
        write_whole(files.out, to_page(verdict.as_json()), "--out")
    if confirm_suite and suite:
        write_whole(confirm_suite, suite, "--confirm-suite")


def lines(verdict: Verdict, format: str, style: str) -> Iterator[Line]:
    """What is printed."""
    yield from terminal.lines(verdict, format)
