"""Panels drawn with matplotlib, in the colors of a file or of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import ceil, inf, log2, nan, sqrt
from typing import TYPE_CHECKING, Any

import msgspec

from collbench.analysis.outcome import Outcome
from collbench.report.charts import (
    BANDWIDTH,
    DATES,
    FAR,
    SIZES,
    TIME,
    BarPanel,
    FigureMark,
    LinePanel,
    MarkedLine,
    MatrixPanel,
    Panel,
    RatioPanel,
)
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Look(msgspec.Struct, frozen=True):
    """The colors of a figure by role. interval: the width of an interval's bar and its opacity; turned: by how much sizes are turned."""

    series: Sequence[str]
    quiet: str
    expected: str
    bound: str
    wrong: str
    paper: str
    grid: str
    ink: str
    slower: str
    faster: str
    interval: tuple[float, float] = (3.5, 0.4)
    turned: float = 0.0

    def of_series(self, color: int) -> str:
        """Return the color of a backend by its place; -1: of a baseline."""
        return self.quiet if color < 0 else self.series[color % len(self.series)]


# Colors that people with any color vision can tell apart (Okabe and Ito), in print, too.
PAPER = Look(
    series=("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#444444"), quiet="#777777", expected="#444444",
    bound="#444444", wrong="#C00000", paper="#ffffff", grid="#dddddd", ink="#000000", slower="#D55E00", faster="#0072B2",
    interval=(0.8, 0.7), turned=30.0,
)  # fmt: skip
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.5)), (0, (5, 2, 1, 2)), (0, (8, 2, 2, 2, 2, 2)))
_EXPECTED_DASHES: Any = (0, (9, 5))
_BOUND_DASHES: Any = (0, (9, 3, 1, 3))
_MODEL_DASHES: Any = (0, (1, 3))
_MARKERS = {Outcome.SLOWER: ">", Outcome.FASTER: "<", Outcome.NO_CHANGE: "o", Outcome.INCONCLUSIVE: "D"}
_MOST_TICKS = 7
_MOST_DATES = 5  # their labels are long
_FURTHEST = 5.0  # powers of two to either side; larger ratios are drawn at the edge
_LONGEST_NAME = 46
_LONGEST_WORDS = 44
# In the order of priority of their labels.
_RATIOS = (1, 2, 0.5, 1.5, 0.7, 4, 0.25, 1.2, 0.8, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 8, 0.125, 16, 0.0625, 32, 0.03125)


def settings() -> dict[str, Any]:
    """Return matplotlib's settings of all figures: text stays text, and equal input gives equal files."""
    return {
        "font.family": "sans-serif", "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
        "svg.fonttype": "none", "svg.hashsalt": "collbench", "text.parse_math": False,
    }  # fmt: skip


def draw(panel: Panel, axes: Axes, look: Look = PAPER, *, has_legend: bool = True) -> dict[str, Any]:
    """Draw a panel on matplotlib's axes; return the artists of its lines and limits by name.

    The `gid` of an artist says what it is: "line 0", "doubtful 0", "interval 0", "limit 0".
    """
    if panel.title:
        axes.set_title(printable(panel.title))
    if isinstance(panel, LinePanel):
        return _draw_lines(panel, axes, look, has_legend)
    if isinstance(panel, RatioPanel):
        _draw_ratios(panel, axes, look)
    elif isinstance(panel, BarPanel):
        _draw_bars(panel, axes, look)
    else:
        _draw_matrix(panel, axes, look)
    return {}


def _draw_lines(panel: LinePanel, axes: Axes, look: Look, has_legend: bool) -> dict[str, Any]:
    if panel.over != DATES:
        axes.set_xscale("log", base=2)
    if panel.values == TIME:
        axes.set_yscale("log")
    artists: dict[str, Any] = {}
    for number, limit in enumerate(panel.limits):
        color = look.bound if limit.is_bound else look.expected
        if limit.color is not None:
            color = look.of_series(limit.color)
        dashes = _BOUND_DASHES if limit.is_bound else _EXPECTED_DASHES
        is_level = len(set(limit.values.values())) == 1
        far = FAR if panel.over == SIZES and not is_level else inf
        places, rates = _interrupted(list(limit.values.items()), far)
        if len(places) == 1:  # a level of one place is a short line
            places = [places[0] / sqrt(2), places[0] * sqrt(2)]
            rates *= 2
        (drawn,) = axes.plot(places, rates, color=color, linestyle=dashes, linewidth=1.0, zorder=1, gid=f"limit {number}")
        artists[limit.name] = drawn
    for number, line in enumerate(panel.lines):
        artists[line.name] = _draw_line(axes, line, number, panel.over, look)
    _set_places(panel, axes, look)
    if panel.values == TIME:
        set_time_axis(axes)
    else:
        axes.set_ylim(bottom=0)
        axes.set_ylabel(panel.values)
    if has_legend and len(artists) > 1:
        with_rates = {limit.name: f"{limit.name} {limit.rates}" for limit in panel.limits if panel.values == BANDWIDTH}
        axes.legend(artists.values(), [printable(with_rates.get(name, name)) for name in artists], loc="best")
    return artists


def _draw_line(axes: Axes, line: MarkedLine, number: int, over: str, look: Look) -> Any:
    """Draw a line, its intervals, its expected values and its marks; return the line for the legend."""
    color = look.of_series(line.color)
    far = FAR if over == SIZES else inf
    if line.is_joined:
        points = sorted([*((mark.at, mark.value.value) for mark in line.marks), *((place, nan) for place in line.missing)])
        dashes = DASHES[line.dash % len(DASHES)]
        (drawn,) = axes.plot(*_interrupted(points, far), color=color, linestyle=dashes, zorder=2, gid=f"line {number}")
    else:  # the legend shows a point
        (drawn,) = axes.plot([], [], color=color, linestyle="none", marker="o", gid=f"points {number}")
    if line.expected:
        places, values = _interrupted(list(line.expected.items()), far)
        axes.plot(places, values, color=color, linestyle=_MODEL_DASHES, linewidth=1.2, zorder=1, gid=f"expected {number}")
    draw_intervals(axes, [(mark.at, mark.value.low, mark.value.high) for mark in line.marks], color, look, f"interval {number}")
    draw_marks(axes, line.marks, color, look, str(number))
    return drawn


def _interrupted(points: Sequence[tuple[float, float]], far: float) -> tuple[list[float], list[float]]:
    """Return places and values, with NaN between places that are further apart than a factor of `far`: nothing was measured there."""
    places: list[float] = []
    values: list[float] = []
    before = 0.0
    for place, value in points:
        if before and place > far * before:
            places.append(place / 2)
            values.append(nan)
        places.append(place)
        values.append(value)
        before = place
    return places, values


def draw_intervals(axes: Axes, intervals: Iterable[tuple[float, float | None, float | None]], color: str, look: Look, gid: str) -> None:
    """Draw a bar from low to high at each place where both are known."""
    places: list[float] = []
    ends: list[float] = []
    for place, low, high in intervals:
        if low is not None and high is not None:
            places += [place, place, nan]
            ends += [low, high, nan]
    width, alpha = look.interval
    if places:
        axes.plot(places, ends, color=color, linewidth=width, alpha=alpha, solid_capstyle="butt", zorder=2, gid=gid)


def draw_marks(axes: Axes, marks: Sequence[FigureMark], color: str, look: Look, name: str) -> None:
    """Draw marks by their states: filled, open, or a red cross for wrong data. Their gid is the state and `name`."""
    looks: dict[str, dict[str, Any]] = {
        "": {"marker": "o", "color": color},
        "doubtful": {"marker": "o", "color": color, "markerfacecolor": look.paper},
        "wrong": {"marker": "x", "color": look.wrong, "markeredgewidth": 1.6},
    }
    for state, style in looks.items():
        places = [mark.at for mark in marks if mark.state == state]
        values = [mark.value.value for mark in marks if mark.state == state]
        if places:
            axes.plot(places, values, linestyle="none", zorder=3, gid=f"{state or 'sound'} {name}", **style)


def _set_places(panel: LinePanel, axes: Axes, look: Look) -> None:
    """Label the x axis: sizes and numbers as they were measured, not powers of ten."""
    if panel.over == DATES:
        import matplotlib.dates as mdates

        locator = mdates.AutoDateLocator(minticks=2, maxticks=_MOST_DATES)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(mdates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
        return
    places = sorted({mark.at for line in panel.lines for mark in line.marks if mark.at > 0})  # a damaged file has 0 ranks
    shown = _ticks(places)
    axes.set_xticks(shown, [format_size(int(place)) if panel.over == SIZES else f"{place:g}" for place in shown])
    axes.set_xticks([], minor=True)
    if panel.over == SIZES:
        axes.tick_params(axis="x", labelrotation=look.turned)
    axes.set_xlabel(panel.over)


def _ticks(places: Sequence[float]) -> list[float]:
    """Return at most 8 of the ascending places of a logarithmic axis, the largest always: regular ones, or if these crowd spread ones."""
    descending = places[::-1]
    regular = list(descending[:: ceil(len(places) / _MOST_TICKS)])
    factor = (places[-1] / places[0]) ** (1 / _MOST_TICKS)
    if all(large >= small * sqrt(factor) for large, small in pairwise(regular)):
        return regular[::-1]
    spread = [places[-1]]
    for place in descending:
        if spread[-1] >= place * factor:
            spread.append(place)
    return spread[::-1]


def set_time_axis(axes: Axes) -> None:
    """Label a logarithmic y axis of seconds: "2 µs", "50 ms"."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    low, high = axes.get_ylim()
    is_short = high < 1000 * low
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if is_short else (1.0,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(lambda value, _: time_text(value))
    axes.set_ylabel("time")


def time_text(seconds: float) -> str:
    """Return a time with a unit of its size: "2 µs", "50 ms"."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= factor * (1 - 1e-9):
            return f"{seconds / factor:.6g} {unit}"
    return f"{seconds * 1e9:.6g} ns"


def set_names(axes: Axes, names: Sequence[str], most: int) -> None:
    """Label the places 0, 1, … of the x axis with names, of which at most `most` are shown."""
    step = max(1, ceil(len(names) / most))
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xticks(range(0, len(names), step), [printable(name) for name in names[::step]])


def ratio_ticks(low: float, high: float) -> list[float]:
    """Return round ratios between `low` and `high` (both above 0), at least an eighth of the axis apart, ascending."""
    chosen: list[float] = []
    for ratio in _RATIOS:
        if low <= ratio <= high and all(abs(log2(ratio / tick)) >= log2(high / low) / 8 for tick in chosen):
            chosen.append(ratio)
    return sorted(chosen)


def set_ratio_axis(axes: Axes, ratios: Iterable[float], least: float) -> None:
    """Give the x axis a logarithmic scale of ratios that includes these, and at least `least` to both sides of 1."""
    levels = [max(-_FURTHEST, min(_FURTHEST, log2(ratio))) for ratio in ratios if 0 < ratio < inf]
    low = min([-log2(least), *levels])
    high = max([log2(least), *levels])
    spare = 0.06 * (high - low)
    ends = (2 ** (low - spare), 2 ** (high + spare))
    axes.set_xscale("log", base=2)
    axes.set_xlim(*ends)
    ticks = ratio_ticks(*ends)
    axes.set_xticks(ticks, [f"×{ratio:g}" for ratio in ticks])
    axes.set_xticks([], minor=True)


def within(axes: Axes, ratio: float) -> float:
    """Return a place on the x axis for a ratio: one that is further away is at the edge, and no number at the left one."""
    low, high = axes.get_xlim()
    return min(max(low, ratio), high)


def _draw_ratios(panel: RatioPanel, axes: Axes, look: Look) -> None:
    """Draw a line per case, from the worst at the top."""
    set_ratio_axis(axes, [ratio for line in panel.lines for ratio in line.ratios], panel.least)
    axes.grid(visible=True, axis="x", color=look.grid)
    axes.grid(visible=False, axis="y")
    if panel.margin:
        axes.axvspan(1 / (1 + panel.margin), 1 + panel.margin, color=look.quiet, alpha=0.15, linewidth=0)
    axes.axvline(1.0, color=look.ink, linewidth=0.8)
    for place, line in enumerate(panel.lines):
        color = getattr(look, line.marks[0].role)
        if line.interval is not None:
            ends = [within(axes, end) for end in line.interval]
            axes.plot(ends, [place, place], color=color, linewidth=2.0, zorder=2, gid=f"interval {place}")
        if line.limit is not None:
            axes.plot(
                [within(axes, line.limit)], [place], marker="|", color=look.expected, linestyle="none", markersize=13, markeredgewidth=2.0
            )
        for mark in reversed(line.marks):
            color = getattr(look, mark.role)
            face = look.paper if mark.is_open else color
            ratio = within(axes, mark.ratio)
            gid = f"{mark.outcome} {place}"
            axes.plot(ratio, place, marker=_MARKERS[mark.outcome], linestyle="none", color=color, markerfacecolor=face, zorder=3, gid=gid)
        if line.words:
            words = printable(short(line.words, _LONGEST_WORDS))
            axes.text(1.01, place, words, transform=axes.get_yaxis_transform(), va="center", color=look.ink)
    axes.set_yticks(range(len(panel.lines)), [printable(short(line.name, _LONGEST_NAME)) for line in panel.lines], color=look.ink)
    axes.set_ylim(len(panel.lines) - 0.4, -0.6)
    axes.set_xlabel(panel.axis)


def _draw_bars(panel: BarPanel, axes: Axes, look: Look) -> None:
    """Draw a bar for each value, its name at the left and its text at the right; a vertical line is what is expected."""
    axes.grid(visible=True, axis="x", color=look.grid)
    axes.grid(visible=False, axis="y")
    for place, bar in enumerate(panel.bars):
        color = look.of_series(bar.color)
        face = look.paper if bar.is_open else color
        opacity = 0.45 if bar.is_part else 1.0
        axes.barh(place, bar.value, height=0.6, color=face, edgecolor=color, alpha=opacity, zorder=2, gid=f"bar {place}")
        if bar.interval is not None:
            axes.plot(bar.interval, [place, place], color=look.ink, linewidth=2.0, zorder=3, gid=f"interval {place}")
        if bar.mark is not None:
            axes.plot(
                [bar.mark, bar.mark], [place - 0.42, place + 0.42], color=look.expected, linewidth=2.0, zorder=3, gid=f"expected {place}"
            )
        axes.text(1.01, place, printable(short(bar.text, 60)), transform=axes.get_yaxis_transform(), va="center", color=look.ink)
    axes.set_yticks(range(len(panel.bars)), [printable(short(bar.name, _LONGEST_NAME)) for bar in panel.bars], color=look.ink)
    axes.set_ylim(len(panel.bars) - 0.4, -0.6)
    axes.set_xlim(left=0.0)
    axes.set_xlabel(panel.unit)


def _draw_matrix(panel: MatrixPanel, axes: Axes, look: Look) -> None:
    image = axes.imshow(panel.values, cmap="viridis_r" if panel.low_is_good else "viridis", gid="values")
    for row, column in panel.marked:
        for color, width in ((look.paper, 3.0), (look.wrong, 1.4)):  # the ring can be seen on dark and on bright cells
            (ring,) = axes.plot(column, row, color=color, marker="o", markerfacecolor="none", gid=f"marked {row} {column}")
            ring.set(markersize=9, markeredgewidth=width)
    shown = range(0, len(panel.names), ceil(sqrt(len(panel.names)) / 4))
    axes.set_xticks(shown, [printable(panel.names[place]) for place in shown], rotation=90)
    axes.set_yticks(shown, [printable(panel.names[place]) for place in shown])
    axes.set_xlabel("receives")
    axes.set_ylabel("sends")
    colorbar = axes.figure.colorbar(image, ax=axes)
    colorbar.set_label(panel.unit)
