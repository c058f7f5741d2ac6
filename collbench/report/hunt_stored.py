"""Hunts from disk, shown as they were when they were measured."""

from __future__ import annotations

from typing import TextIO

from collbench.hunt.drain import lines_of
from collbench.hunt.recommendation import lines, read
from collbench.report.flags import printable
from collbench.report.hunt import write_hunt
from collbench.report.screen import PlainScreen, write_line
from collbench.report.table import Line
from collbench.results.hunts import check_hunt, read_hunt
from collbench.results.reader import Run


def check_stored(run: Run) -> None:
    """Raises UsageError for a run whose run.json is no hunt's."""
    check_hunt(run)


def write_stored(run: Run, format: str, *, out: TextIO, err: TextIO, color: bool) -> None:
    """Prints what the hunt came to; what could not be read is said on `err`. Raises UsageError for a format that a hunt does not have."""
    stored = read_hunt(run)
    for warning in stored.warnings:
        write_line(err, printable(warning))
    done = len(stored.rounds)
    if format == "table":
        state = "" if run.finished else ", not finished"
        rounds = f"{done} {'round' if done == 1 else 'rounds'}"
        PlainScreen(out, err, color).data(Line(printable(f"{run.path.resolve().name} ({rounds}{state})"), "head"))
    write_hunt({**stored.about, "rounds": done}, format, out, color=color, advice=_advice(run))


def _advice(run: Run) -> list[str]:
    """What to do about it, and what was done."""
    told = read(run.path)
    return [*lines(told), *lines_of(told["applied"]), *filter(None, [told["refused"]])] if told else []
