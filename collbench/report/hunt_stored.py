"""Hunts from disk, shown as they were when they were measured."""

from __future__ import annotations

from typing import TextIO

from collbench.deploy.drain import lines, lines_of, read
from collbench.errors import UsageError
from collbench.report.flags import printable
from collbench.report.hunt import write_hunt
from collbench.report.screen import PlainScreen, write_line
from collbench.report.table import Line
from collbench.results.reader import Run
from collbench.results.rounds import check_hunt, read_hunt


def check_stored(run: Run) -> None:
    """Raises UsageError for a run whose run.json is no hunt's."""
    check_hunt(run)


def write_stored(run: Run, format: str, *, out: TextIO, err: TextIO, color: bool, headed: bool = False) -> bool:
    """Prints what the hunt came to; what could not be read, its recommendation.json among it, is said on `err`.

    headed: whether a CSV has its header already; returns whether it has one now. Raises UsageError for a format that a hunt does not have.
    """
    stored = read_hunt(run)
    advice, unread = _advice(run)
    for warning in (*stored.warnings, *unread):
        write_line(err, printable(warning))
    done = len(stored.rounds)
    if format == "table":
        state = "" if run.finished and stored.about.get("verdict") else ", not finished"
        rounds = f"{done} {'round' if done == 1 else 'rounds'}"
        PlainScreen(out, err, color).data(Line(printable(f"{run.path.resolve().name} ({rounds}{state})"), "head"))
    about, name = {**stored.about, "rounds": done}, run.path.resolve().name
    write_hunt(about, format, out, color=color, advice=advice, run=name, headed=headed)
    return True


def _advice(run: Run) -> tuple[list[str], list[str]]:
    """What to do about it, and what was done; and a sentence where that cannot be read."""
    try:
        told = read(run.path)
    except UsageError as error:
        return [], [str(error)]
    return [*lines(told), *lines_of(told["applied"]), *filter(None, [told["refused"]])] if told else [], []
