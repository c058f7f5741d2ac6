"""One line per place: what it sends and receives by the median, its latency, and with whom it is slowest."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from collbench.analysis.pairs import PairFinding
from collbench.report.columns import NOTHING
from collbench.report.flags import printable
from collbench.report.probe_wrap import wrapped
from collbench.report.table import Line
from collbench.results.rounds import PairMatrix
from collbench.units import format_rate, format_time

MOST_PLACES = 40
_WORST = 20  # of more places than MOST_PLACES, and all that are named
TITLES = ("place", "sends GB/s", "receives GB/s", "latency µs", "slowest with")
Figures = NDArray[np.float64]


def place_lines(matrix: PairMatrix, found: Sequence[PairFinding], width: int | None) -> Iterator[Line]:
    """The table; of many places the slowest and those of findings. On a terminal that is too narrow the last columns are left out."""
    chosen, figures = place_rows(matrix, found)
    named = {place for each in found for place in each.places if each.kind != "pair"}
    lines = _aligned([list(TITLES), *figures], width)
    yield Line(lines[0], "head")
    yield from (Line(text, "doubtful" if place in named else "") for place, text in zip(chosen, lines[1:], strict=True))
    if len(chosen) < matrix.n:
        yield from wrapped([Line(left_out(matrix, chosen), "foot")], width)


def place_rows(matrix: PairMatrix, found: Sequence[PairFinding]) -> tuple[list[int], list[list[str]]]:
    """The places that are shown (of many the slowest and those of findings), and the cells below TITLES of each."""
    sends, receives, latency = (_medians(each) for each in (matrix.bandwidth, matrix.bandwidth.T, matrix.latency_s))
    chosen = _chosen(matrix, found, np.fmin(sends, receives))
    return chosen, [
        [printable(matrix.places[i]), _rate(sends[i]), _rate(receives[i]), _time(latency[i]), _slowest(matrix, i)] for i in chosen
    ]


def left_out(matrix: PairMatrix, chosen: Sequence[int]) -> str:
    """What is said of the places that are not shown."""
    return f"medians over partners; {matrix.n - len(chosen)} of {matrix.n} places, which are faster, are not shown"


def _chosen(matrix: PairMatrix, found: Sequence[PairFinding], speed: Figures) -> list[int]:
    if matrix.n <= MOST_PLACES:
        return list(range(matrix.n))
    named = list(dict.fromkeys(place for each in found for place in each.places))[:MOST_PLACES]
    return sorted({*named, *np.argsort(speed)[:_WORST].tolist()})


def _medians(figures: Figures) -> Figures:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a place of which nothing is known
        found: Figures = np.nanmedian(figures, axis=1)
    return found


def _slowest(matrix: PairMatrix, place: int) -> str:
    """The partner and the direction of the lowest bandwidth."""
    ways = [("to", matrix.bandwidth[place]), ("from", matrix.bandwidth[:, place])]
    known = [(float(np.nanmin(rates)), word, int(np.nanargmin(rates))) for word, rates in ways if np.isfinite(rates).any()]
    if not known:
        return NOTHING
    rate, word, partner = min(known)
    return f"{format_rate(rate)} {word} {printable(matrix.places[partner])}"


def _rate(value: float) -> str:
    return format_rate(float(value)) if np.isfinite(value) else NOTHING


def _time(value: float) -> str:
    return format_time(float(value)) if np.isfinite(float(value) * 1e6) else NOTHING


def _aligned(table: Sequence[Sequence[str]], width: int | None) -> list[str]:
    wide = [max(map(len, column)) for column in zip(*table, strict=True)]
    shown = len(wide)
    while width is not None and shown > 2 and sum(wide[:shown]) + 2 * (shown - 1) > width:
        shown -= 1
    return ["  ".join(_padded(cell, at, wide[at]) for at, cell in enumerate(cells[:shown])).rstrip()[:width] for cells in table]


def _padded(cell: str, at: int, wide: int) -> str:
    return cell.rjust(wide) if 0 < at < len(TITLES) - 1 else cell.ljust(wide)
