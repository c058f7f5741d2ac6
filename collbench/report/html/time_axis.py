"""Drawings one below the other over the same time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import TYPE_CHECKING, Any

from collbench.report.html.draw import fixed_ticks, panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT, _TOP, _BOTTOM, _LEFT, _RIGHT = 940, 104, 30, 40, 54, 12  # in pixels; height and top are those of each
_UNITS = ((180.0, 1.0, "s"), (3 * 3600.0, 60.0, "min"), (float("inf"), 3600.0, "h"))
_ORDER = "cells in the order in which they were measured"


@dataclass(frozen=True)
class TimeAxis:
    """The x axis of a run.

    end   its length: in seconds, or in cells where no row says when it was measured
    told  whether the rows say it
    """

    end: float
    told: bool

    @property
    def unit(self) -> tuple[float, str]:
        """How many seconds one of its units has, and its name; (1, "") for cells."""
        return next((factor, name) for most, factor, name in _UNITS if self.end <= most) if self.told else (1.0, "")

    @property
    def title(self) -> str:
        """What it shows."""
        return f"{self.unit[1]} since the run's start" if self.told else _ORDER

    def at(self, place: float) -> float:
        """Where a time in seconds (or the number of a cell) stands."""
        return place / self.unit[0]

    def ticks(self) -> list[float]:
        """Round places for labels."""
        from matplotlib.ticker import MaxNLocator

        end = self.at(self.end) or 1
        return [float(tick) for tick in MaxNLocator(10, integer=not self.told).tick_values(0, end) if 0 <= tick <= end]

    def text(self, place: float) -> str:
        """When something began, in words: "12.3 s", "cell 5"."""
        return f"{self.at(place):.4g} {self.unit[1]}" if self.told else f"cell {round(place + 0.5)}"


def stacked(count: int, axis: TimeAxis) -> tuple[Figure, list[Axes]]:
    """A figure with so many drawings over the same axis, which is labelled below the last."""
    height = count * (_TOP + _HEIGHT) + _BOTTOM
    figure, first = panel(_WIDTH, height, (_LEFT, _RIGHT, _TOP, height - _TOP - _HEIGHT))
    box = first.get_position()
    step = (_TOP + _HEIGHT) / height
    more = [figure.add_axes((box.x0, box.y0 - step * number, box.width, box.height)) for number in range(1, count)]
    ticks = axis.ticks()
    for axes in (every := [first, *more]):
        fixed_ticks(axes.xaxis, ticks, [f"{tick:g}" if axes is every[-1] else "" for tick in ticks])
        axes.set_xlim(0, axis.at(axis.end) or 1)
    every[-1].set_xlabel(axis.title)
    return figure, every


def number(value: Any, most: float = 1e12) -> float | None:
    """A stored figure that can be drawn: a finite number of at most this size; else None."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and abs(value) <= most
    return float(value) if known else None


def numbers(values: Any) -> list[float] | None:
    """A stored list of figures, or None where one of them is none."""
    if not isinstance(values, list):
        return None
    known = [each for value in values if (each := number(value)) is not None]
    return known if len(known) == len(values) else None


def seconds_between(begin: Any, end: Any) -> float | None:
    """From one calendar time, as runs store them, to another; None where one is none."""
    try:
        return (datetime.fromisoformat(str(end)) - datetime.fromisoformat(str(begin))).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None
