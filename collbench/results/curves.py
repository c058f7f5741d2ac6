"""One ceiling per curve: a denominator that changed between two sizes would call 51 of 94 worse than 49 of 50."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from collbench.peak.ceiling import TOLERANCE, Model, model_of
from collbench.results.record import SERIES, Row

Curve = tuple[Any, ...]


def curve_of(row: Row) -> Curve:
    """What the row is a point of: all that names its cell but the size."""
    return tuple(getattr(row, name) for name in SERIES)


def models(rows: Iterable[Row]) -> dict[Curve, Model]:
    """By curve "ring", "bound" or "doubtful", from its best value; curves without two ceilings are left out."""
    points: dict[Curve, list[tuple[float, float, float]]] = {}
    for row in rows:
        if point := _point(row):
            points.setdefault(curve_of(row), []).append(point)
    return {curve: model_of(known) for curve, known in points.items()}


def settled(rows: Sequence[Row]) -> list[Row]:
    """The rows with their curve's one ceiling: where the best value passed the ring reference, all are set against the hard bound."""
    chosen = models(rows)
    return [_settle(row, chosen) for row in rows]


def _settle(row: Row, chosen: Mapping[Curve, Model]) -> Row:
    """Only rows that may have a percentage at all are touched."""
    bound, rate = row.hard_bound, row.busbw_bytes_per_s
    if chosen.get(curve_of(row), "ring") == "ring" or not bound or not bound.bytes_per_s or not rate or row.percent_of_ceiling is None:
        return row
    return replace(row, ceiling=bound, percent_of_ceiling=100 * rate / bound.bytes_per_s)


def _point(row: Row) -> tuple[float, float, float] | None:
    """(busbw less what a clock and a burst may add, ring reference, hard bound) in bytes per second."""
    ring, bound, rate = row.ceiling, row.hard_bound, row.busbw_bytes_per_s
    if (
        row.percent_of_ceiling is None
        or not rate
        or not ring
        or not ring.bytes_per_s
        or ring.model != "ring"
        or not bound
        or not bound.bytes_per_s
    ):
        return None
    return rate / TOLERANCE, ring.bytes_per_s, bound.bytes_per_s
