"""All peaks in one drawing: a bar each, as a percentage of the expected bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from collbench.report.columns import doubtful, limited_by, of_ceiling
from collbench.report.headlines import has_share, short
from collbench.report.html.chart import Chart, Table
from collbench.report.html.draw import INK, LIMIT, PAPER, SOFT, fixed_ticks, panel, series_color, spots, svg_of
from collbench.results.row import Row
from collbench.units import format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 60
_BAR, _ABOVE, _BELOW = 21, 24, 40  # pixels
_WIDTH, _NAMES, _WORDS = 940, 220, 380
_FURTHEST = 125.0  # per cent; what is above ends there, and its words say the rest
_MADE = (
    "Bus bandwidth is size / time × the bus factor of the operation (nccl-tests' definition), here of the size at which it is highest; of "
    "several launches the time is the median of theirs, of imported rows it is the other tool's own statistic. What is above the hard "
    "limit, or took another path, is left out where there is anything else. 100 % is what the words at each bar name: a ring on the "
    "slowest link (ring), the hard limit of the links (hard limit), a reference measured before the first cell (measured), or the ceiling "
    "given. An open bar is doubtful: flags on its row say why."
)
_WITHOUT = " Peaks without a percentage have no bar, and are in the table above."


def chart(best: Sequence[tuple[str, Row]]) -> Chart | None:
    """The bars of all peaks that have a percentage, each with the name to be shown; None where there is none."""
    known = [(name, row, row.percent_of_ceiling or 0.0) for name, row in best if has_share(row)]
    bars = [(short(name, 38), row, percent) for name, row, percent in known if isfinite(percent) and percent >= 0]
    if not bars:
        return None
    shown = bars[:_MOST]
    says = f"{_extreme(shown)}.{f' The first {_MOST} of {len(bars)} are drawn.' if len(bars) > _MOST else ''}"
    figure, axes = panel(_WIDTH, _ABOVE + _BELOW + _BAR * len(shown), (_NAMES, _WORDS, _ABOVE, _BELOW))
    _draw(axes, shown)
    places = list(range(len(shown)))
    texts = [f"{name}: {_words(row)}" for name, row, _ in shown]
    points = spots(axes, [min(percent, _FURTHEST) for *_, percent in shown], places, texts)
    drawing = svg_of(figure, "peaks", "Peaks, as percentages of the expected bandwidth")
    made = f"{_MADE}{_WITHOUT if len(bars) < len(best) else ''}"
    return Chart("peaks", "Peak bus bandwidth versus expected", says, made, drawing, _table(bars), points, wide=True)


def _draw(axes: Axes, bars: Sequence[tuple[str, Row, float]]) -> None:
    axes.set_xlim(0, max(110.0, *(min(percent, _FURTHEST) for *_, percent in bars)))
    axes.set_ylim(len(bars) - 0.4, -0.6)
    fixed_ticks(axes.xaxis, (0, 25, 50, 75, 100), ("0", "25 %", "50 %", "75 %", "100 %"))
    fixed_ticks(axes.yaxis, range(len(bars)), [name for name, *_ in bars])
    color = series_color(0)
    _add(axes, [bar for bar in enumerate(bars) if not doubtful(bar[1][1])], {"facecolor": color, "edgecolor": color})
    _add(axes, [bar for bar in enumerate(bars) if doubtful(bar[1][1])], {"facecolor": PAPER, "edgecolor": color, "linestyle": (0, (3, 2))})
    for place, (_, row, _) in enumerate(bars):
        _write(axes, _words(row, 68), (1, place), (8, 0), axes.get_yaxis_transform(), color=INK, va="center")
    axes.axvline(100, color=LIMIT, linewidth=1.4)
    _write(axes, "expected", (100, 1), (0, 6), axes.get_xaxis_transform(), color=SOFT, ha="center")


def _add(axes: Axes, bars: Sequence[tuple[int, tuple[str, Row, float]]], style: dict[str, Any]) -> None:
    """Bars of one style as one artist."""
    from matplotlib.collections import PolyCollection

    ends = [(place - 0.28, place + 0.28, min(percent, _FURTHEST)) for place, (*_, percent) in bars]
    axes.add_collection(PolyCollection([[(0, low), (end, low), (end, high), (0, high)] for low, high, end in ends], linewidth=1.2, **style))


def _write(axes: Axes, text: str, place: tuple[float, float], off: tuple[float, float], transform: Any, **style: Any) -> None:
    axes.annotate(text, place, off, xycoords=transform, textcoords="offset pixels", fontsize=10.5, annotation_clip=False, **style)


def _words(row: Row, most: int = 300) -> str:
    return short(f"{'? ' if doubtful(row) else ''}{of_ceiling(row)}  {limited_by(row)}", most)


def _extreme(bars: Sequence[tuple[str, Row, float]]) -> str:
    """Return "Between ? 26 % (allreduce · mpi) and 48 % (allreduce · gloo) of the expected bandwidth; 1 of 2 is doubtful (open)"."""
    ordered = sorted(bars, key=lambda bar: bar[2])
    low, high = (f"{'? ' if doubtful(row) else ''}{format_percent(percent)} ({name})" for name, row, percent in (ordered[0], ordered[-1]))
    text = f"{low if len(ordered) == 1 else f'Between {low} and {high}'} of the expected bandwidth"
    doubts = sum(bool(doubtful(row)) for _, row, _ in bars)
    return f"{text}; {doubts} of {len(bars)} {'is' if doubts == 1 else 'are'} doubtful (open)" if doubts else text


def _table(bars: Sequence[tuple[str, Row, float]]) -> Table:
    rows = [
        [name, f"{'? ' if doubtful(row) else ''}{percent:.4g}", _exact(row.percent_of_hard_bound, 4), *_rates(row), short(limited_by(row))]
        for name, row, percent in bars
    ]
    titles = ["peak", "% of ceiling", "% of hard limit", "busbw GB/s", "ceiling GB/s", "hard limit GB/s", "limited by"]
    return Table(titles, rows, frozenset({1, 2, 3, 4, 5}))


def _rates(row: Row) -> list[str]:
    rates = (row.busbw_bytes_per_s, *(each.bytes_per_s if each else None for each in (row.ceiling, row.hard_bound)))
    return [_exact(None if rate is None else rate / 1e9, 6) for rate in rates]


def _exact(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}g}"
