"""Workload runs from disk, shown as they were when they were measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

from collbench.errors import UsageError
from collbench.report.flags import printable
from collbench.report.screen import PlainScreen, write_line
from collbench.report.table import Line
from collbench.report.workload import check_format, write_steps
from collbench.report.workload_words import counted
from collbench.results.reader import Run
from collbench.results.steps import read_workload


def check_stored(run: Run) -> None:
    """Raises UsageError where run.json does not say what was trained."""
    if not isinstance(run.info.get("workload"), dict):
        raise UsageError(f"{run.path} holds training traffic, but its run.json does not say of what: it was altered")


def write_stored(run: Run, format: str, *, out: TextIO, err: TextIO, color: bool, headed: bool = False) -> bool:
    """Prints the steps of a workload run; what could not be read is said on `err`.

    headed: whether a CSV has its header already; returns whether it has one now. Raises UsageError for a format that steps do not have.
    """
    check_format(format)
    about, rows, warnings = read_workload(run)
    for warning in warnings:
        write_line(err, printable(warning))
    if format == "table":
        end = "" if run.finished else ", not finished"
        PlainScreen(out, err, color).data(Line(printable(f"{run.path.resolve().name} ({counted(len(rows), 'row')}{end})"), "head"))
    name = run.path.resolve().name
    write_steps(rows, format, out, color=color, step_time_s=step_time_of(about), run=name, first=not headed)
    return headed or bool(rows)


def step_time_of(about: Mapping[str, Any]) -> float | None:
    """What run.json's "workload" says of the time of computing; None where that is nothing, or no time."""
    value = about.get("step_time_s")
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    return float(value) if known else None  # type: ignore[arg-type]  # checked above
