"""Figures with their intervals and targets, and the table that shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from collbench.stats.median import Median, median


@dataclass(frozen=True)
class Unit:
    """How values in SI units (or plain numbers) are shown."""

    name: str
    scale: float = 1.0
    digits: int = 3

    def show(self, value: float) -> str:
        return f"{value * self.scale:.{self.digits}f}"


SECONDS, MICROSECONDS, NANOSECONDS = Unit("s"), Unit("µs", 1e6), Unit("ns", 1e9, 1)
MEBIBYTES, RATIO = Unit("MiB", 2**-20, 1), Unit("×")


@dataclass(frozen=True)
class Figure:
    """One line of the table. `met` None: no target, or the interval holds the target."""

    what: str
    value: str
    interval: str = ""
    target: str = ""
    met: bool | None = None

    def cases(self) -> list[str]:
        verdict = {True: "met", False: "MISSED", None: "open" if self.target else ""}[self.met]
        return [self.what, self.value, self.interval, self.target, verdict]


class Line(Protocol):
    """A line of a table: one case for each word of its head."""

    def cases(self) -> list[str]: ...


@dataclass(frozen=True)
class Outcome:
    """What one benchmark found: how it was measured, its lines, and a dictionary of raw values per launch or pair."""

    name: str
    how: str
    figures: Sequence[Line]
    raw: Sequence[dict[str, Any]]
    head: Sequence[str] = ("figure", "median", "95 % interval", "target", "verdict")

    def names(self) -> list[str]:
        """Return what each line is about."""
        return [line.cases()[0] for line in self.figures]

    def markdown(self) -> str:
        return f"## {self.name}\n\n{self.how}\n\n{table([list(self.head), *(figure.cases() for figure in self.figures)])}\n"


def timed(what: str, values: Iterable[float], unit: Unit, below: float | None = None) -> Figure:
    """The median of the values with its interval; met when all of the interval is below the target, missed when none of it is.

    If launches drift and count as too few for an interval, the range of all of them replaces it.
    """
    series = np.array(list(values), np.float64)
    known = median(series)
    target = "" if below is None else f"< {unit.show(below)} {unit.name}"
    low, high = known.ci_low, known.ci_high
    if low is None or high is None:
        low, high = float(series.min()), float(series.max())
    met = None if below is None or low < below <= high else high < below
    return Figure(what, f"{unit.show(known.value)} {unit.name}", _interval(known, unit, low, high), target, met)


def counted(what: str, found: Iterable[str]) -> Figure:
    """Return a figure that counts names that must be absent."""
    names = ", ".join(sorted(found))
    return Figure(what, names or "none", "", "none", not names)


def _interval(known: Median, unit: Unit, low: float, high: float) -> str:
    span = f"{unit.show(low)} to {unit.show(high)}"
    if known.ci_low is not None:
        return f"{span} (n = {known.n})"
    worth = f", worth {known.n_eff:.0f}" if known.n_eff is not None else ""
    return f"none; all: {span} (n = {known.n}{worth})"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table that is readable as plain text."""
    widths = [max(len(case) for case in column) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(case.ljust(width) for case, width in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
