"""The machine's state around each cell of a run, in the order of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

from collbench.report.columns import name_of
from collbench.report.flags import printable
from collbench.report.html.names import cut
from collbench.report.html.time_axis import TimeAxis, number, numbers

if TYPE_CHECKING:
    from collbench.results.reader import Run
    from collbench.results.row import Row

FLAGS = ("state_flip", "remeasured", "cpu_shared")  # what the state of the machine did to a cell


@dataclass(frozen=True)
class Moment:
    """A cell, or some that followed one another (`cells` of them, their worst figures).

    begin, end     on the run's `TimeAxis`
    before, after  the canary in seconds, None: not measured; of several cells the least and the largest
    stolen         share of the CPUs' time that a hypervisor took (0 … 1); None: not told
    lost           how often a rank lost its core; None: not told
    flags          those of FLAGS
    """

    name: str
    begin: float
    end: float
    before: float | None
    after: float | None
    stolen: float | None
    lost: float | None
    flags: tuple[str, ...] = ()
    cells: int = 1

    @property
    def weight(self) -> tuple[int, float, float, float]:
        """How unlike the others' the machine's state was: the larger the worse."""
        swing = abs(log(self.after / self.before)) if self.before and self.after else 0.0
        return len(self.flags), self.stolen or 0.0, swing, self.lost or 0.0


def moments(run: Run) -> tuple[list[Moment], TimeAxis]:
    """The cells of a run that were measured, by time; in measuring order where a row does not say when that was."""
    rows = [row for row in run.rows if row.na is None]
    times = [_at(row) for row in rows]
    told = bool(times) and None not in times
    spans = [at for at in times if at is not None] if told else [(place + 0.5, place + 1.5) for place in range(len(rows))]
    found = sorted((_moment(row, span) for row, span in zip(rows, spans, strict=True)), key=lambda each: each.begin)
    return found, TimeAxis(max((each.end for each in found), default=0.0), told)


def grouped(found: Sequence[Moment], most: int) -> list[Moment]:
    """At most so many: neighbours together, where there are more."""
    each = -(-len(found) // most)
    return [_together(found[first : first + each]) for first in range(0, len(found), each)] if each > 1 else list(found)


def _at(row: Row) -> tuple[float, float] | None:
    known = numbers(row.evidence.get("at_s"))
    return (known[0], known[1]) if known and len(known) == 2 and 0 <= known[0] <= known[1] else None


def _moment(row: Row, span: tuple[float, float]) -> Moment:
    before, after = (_positive(row.canary_s.get(when)) for when in ("before", "after"))
    stolen, lost = (number(row.evidence.get(name)) for name in ("stolen", "preempted"))
    flags = tuple(flag for flag in FLAGS if flag in row.flags)
    return Moment(cut(printable(f"{name_of(row)} {row.backend}"), 60), *span, before, after, stolen, lost, flags)


def _positive(value: object) -> float | None:
    known = number(value)
    return known if known and 1e-12 <= known <= 1e3 else None


def _together(some: Sequence[Moment]) -> Moment:
    canaries = [value for each in some for value in (each.before, each.after) if value is not None]
    return Moment(
        f"{len(some)} cells from {some[0].name} on" if len(some) > 1 else some[0].name, some[0].begin, max(each.end for each in some),
        min(canaries, default=None), max(canaries, default=None),
        max((each.stolen for each in some if each.stolen is not None), default=None),
        max((each.lost for each in some if each.lost is not None), default=None),
        tuple(flag for flag in FLAGS if any(flag in each.flags for each in some)), len(some),
    )  # fmt: skip
