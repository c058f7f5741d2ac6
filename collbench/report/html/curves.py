"""Series of figures over the message size: lines, intervals as bars, marks for what is doubtful, and a legend above."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from typing import TYPE_CHECKING, Any

from collbench.report.html.chart import Spot
from collbench.report.html.draw import BAD, HEIGHT, PAPER, SOFT, WIDTH, line, panel, place, series_color, spots
from collbench.report.html.overlay import write
from collbench.report.html.series import Series
from collbench.results.row import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LETTER, _ROW, _SAMPLE = 5.9, 15, 24  # pixels of a letter, a row of the legend, a sample of a line
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 12, 26, 40
_MOST_MARKERS = 120
_LEAST = 1.0  # pixels of an interval that is drawn
_DOUBT = {"color": SOFT, "linestyle": "none", "marker": "o", "markerfacecolor": PAPER, "markeredgecolor": SOFT}
_MARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "doubtful": ("doubtful (see its flags)", _DOUBT),
    "na": ("n/a", {**_DOUBT, "marker": "x"}),
    "wrong": ("wrong data", {**_DOUBT, "marker": "X", "markerfacecolor": BAD, "markeredgecolor": BAD}),
}


@dataclass(frozen=True)
class Point:
    """A figure in the units of the axis, with the ends of its interval; None: there is none.

    text   says it exactly
    state  "wrong", "na", "doubtful" or ""
    """

    size_bytes: int
    state: str
    value: float | None
    low: float | None
    high: float | None
    text: str


@dataclass(frozen=True)
class Curve:
    """A series with its figures, ascending in size."""

    series: Series
    points: Sequence[Point]

    @property
    def known(self) -> list[tuple[float, float]]:
        """(place along x, value) where there is one."""
        return [(place(each.size_bytes), each.value) for each in self.points if each.value is not None]


def curves_of(series: Iterable[Series], point: Callable[[Series, Row], Point]) -> list[Curve]:
    """Each series with the figure that `point` makes of its rows."""
    return [Curve(each, [point(each, row) for row in each.rows]) for each in series]


def span(curves: Iterable[Curve]) -> tuple[float, float] | None:
    """The least and the greatest figure, intervals included; None where nothing has one."""
    ends = [end for each in curves for point in each.points if point.value is not None for end in (point.value, point.low, point.high)]
    known = [end for end in ends if end is not None]
    return (min(known), max(known)) if known else None


def chart_panel(curves: Sequence[Curve], also: Sequence[tuple[str, dict[str, Any]]] = ()) -> tuple[Figure, Axes]:
    """A panel with the legend above it: the series, the marks that occur, and `also`."""
    states = {point.state for each in curves for point in each.points}
    marks = [entry for state, entry in _MARKS.items() if state in states]
    entries = _placed([*((each.series.label, line(each.series.number)) for each in curves), *marks, *also])
    rows = 1 + max((row for _, row, _, _ in entries), default=-1)
    figure, axes = panel(WIDTH, HEIGHT + _ROW * rows, (_LEFT, _RIGHT, _TOP + _ROW * rows, _BOTTOM))
    for left, row, label, style in entries:
        _entry(axes, (left, HEIGHT + _ROW * (rows - row) - 9), label, style)
    return figure, axes


def draw_curves(axes: Axes, curves: Iterable[Curve], joined: bool = True) -> None:
    """Lines, intervals and markers; what is doubtful has an open marker, what is n/a a cross at the foot of the axes."""
    for each in curves:
        style = line(each.series.number)
        if joined:
            _add(axes, _xs(each.points), [nan if point.value is None else point.value for point in each.points], **{**style, "marker": ""})
        _bars(axes, each)
        if len(each.points) <= _MOST_MARKERS:
            _markers(axes, each, style)


def curve_spots(axes: Axes, curves: Iterable[Curve]) -> list[Spot]:
    """A spot for each figure, and for each n/a row at the foot of the axes."""
    foot = axes.get_ylim()[0]
    return [
        spot
        for each in curves
        for spot in spots(axes, _xs(each.points), [_height(point, foot) for point in each.points], [point.text for point in each.points])
    ]


def _height(point: Point, foot: float) -> float:
    if point.value is not None:
        return point.value
    return foot if point.state == "na" else inf


def _xs(points: Iterable[Point]) -> list[float]:
    return [place(point.size_bytes) for point in points]


def _bars(axes: Axes, curve: Curve) -> None:
    """All intervals of the series as one path; those that no eye could see are in the table alone."""
    ends = [(place(p.size_bytes), p.low, p.high) for p in curve.points if p.low is not None and p.high is not None]
    if ends:
        heights = axes.transData.transform([(x, end) for x, *both in ends for end in both])[:, 1].reshape(-1, 2)
        seen = [each for each, (low, high) in zip(ends, heights, strict=True) if high - low >= _LEAST]
        xs = [each for x, _, _ in seen for each in (x, x, nan)]
        ys = [each for _, low, high in seen for each in (low, high, nan)]
        _add(axes, xs, ys, color=series_color(curve.series.number), linewidth=3.5, alpha=0.4, solid_capstyle="butt")


def _markers(axes: Axes, curve: Curve, style: dict[str, Any]) -> None:
    for state, own in (("", {}), ("doubtful", {"markerfacecolor": PAPER, "markeredgecolor": style["color"], "markeredgewidth": 1.3})):
        here = [point for point in curve.points if point.value is not None and point.state == state]
        _add(axes, _xs(here), [point.value or 0.0 for point in here], **{**style, "linestyle": "none", **own})
    bad = [point for point in curve.points if point.value is not None and point.state == "wrong"]
    _add(axes, _xs(bad), [point.value or 0.0 for point in bad], **{**_MARKS["wrong"][1], "markersize": 8})
    none = [point for point in curve.points if point.state == "na"]
    crosses = {**_MARKS["na"][1], "markeredgecolor": style["color"], "transform": axes.get_xaxis_transform(), "clip_on": False}
    _add(axes, _xs(none), [0.0] * len(none), **crosses)


def _add(axes: Axes, xs: Sequence[float], ys: Sequence[float], **style: Any) -> None:
    """A line of these points as they are: the limits of the axes are set by who draws."""
    from matplotlib.lines import Line2D

    if any(map(isfinite, ys)):
        axes.add_artist(Line2D(xs, ys, **{"transform": axes.transData, **style}))


def _placed(entries: Iterable[tuple[str, dict[str, Any]]]) -> list[tuple[float, int, str, dict[str, Any]]]:
    """Each entry's left end in pixels and its row: from left to right, in as many rows as it takes."""
    found, left, row = [], 4.0, 0
    for label, style in entries:
        wide = _SAMPLE + 6 + _LETTER * len(label) + 14
        if left > 4 and left + wide > WIDTH:
            left, row = 4.0, row + 1
        found.append((left, row, label, style))
        left += wide
    return found


def _entry(axes: Axes, at: tuple[float, float], label: str, style: dict[str, Any]) -> None:
    left, height = at
    figure = axes.get_figure(root=True)
    assert figure is not None
    xs = [left, left + _SAMPLE / 2, left + _SAMPLE]
    _add(axes, xs, [height] * 3, **{**style, "transform": None, "clip_on": False, "markevery": [1]})
    write(figure, (left + _SAMPLE + 6, height - 3.5), label, size=10)


def joined_points(curves: Iterable[Curve]) -> Iterator[list[tuple[float, float]]]:
    """What the lines of the series cover."""
    return (each.known for each in curves)
