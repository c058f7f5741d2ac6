"""Pictures of a page as SVG: axes, lines, bars and texts, in the classes of page.css.

A picture is a list of elements in pixels. Its colors are classes (`s0` … `s3`, `limit`, `bound`, `bad`, `soft`), so that it follows light,
dark and print. It needs no script, and equal input gives equal text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, log2, log10
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.units import format_size

COLORS, DASHES = 4, 4  # classes s0 … s3 and d0 … d3
# Shapes of markers around their place: circle, square, triangle, diamond, triangle that points down. 4 × 4 × 5 series look different.
_MARKERS = (
    "m-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z", "m-3.2-3.2h6.4v6.4h-6.4z", "m0-4.2 4 7h-8z", "m0-4.4 4 4.4-4 4.4-4-4.4z",
    "m0 4.2-4-7h8z",
)  # fmt: skip
CROSS = "m-4-4 8 8m0-8-8 8"  # wrong data: no series has it
_LETTER = 6.1  # pixels of a letter at 11 px
_STEPS = (1, 2, 5)
# In the order of priority of their labels.
_RATIOS = (1, 2, 0.5, 1.5, 0.7, 4, 0.25, 1.2, 0.8, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 8, 0.125, 16, 0.0625, 32, 0.03125)


@dataclass(frozen=True)
class Tooltip:
    """A point of a drawing, in units of its viewBox, and the exact values there: shown under the pointer, and by the arrow keys."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class AxisScale:
    """One direction of a chart: values from `low` to `high` are drawn at pixels from `start` to `end`.

    level   a value's position before scaling: log2 for sizes, log10 for times, the value itself on linear axes
    ticks   (value, text)
    """

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[tuple[float, str]]
    level: Callable[[float], float] = float
    title: str = ""

    def at(self, value: float) -> float:
        """Return the pixel of a value; values outside (0 too on a logarithmic axis) are drawn at the edge."""
        if not self.low <= value <= self.high:
            return self.end if value > self.high else self.start
        low, high = self.level(self.low), self.level(self.high)
        return self.start + (self.level(value) - low) / ((high - low) or 1.0) * (self.end - self.start)


def size_scale(sizes: Iterable[int], start: float, end: float) -> AxisScale:
    """Return the scale of message sizes in bytes, with about nine labels at powers of two."""
    known = sorted({max(1, size) for size in sizes}) or [1]
    low, high = log2(known[0]), log2(known[-1])
    step = max(1, ceil((high - low) / 8))
    ticks = [(2.0**each, format_size(2**each)) for each in range(ceil(low), floor(high) + 1, step)]
    spare = max(0.4, 0.02 * (high - low))
    return AxisScale(
        2 ** (low - spare), 2 ** (high + spare), start, end, ticks or [(known[0], format_size(known[0]))], log2, "message size"
    )


def linear_scale(low: float, high: float, start: float, end: float, title: str = "") -> AxisScale:
    """Return a linear scale that includes both values, with about six round labels."""
    step = _round_step((high - low) / 6 or 1.0)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    ticks = [(each * step, f"{each * step:.10g}") for each in range(first, last + 1)]
    return AxisScale(first * step, max(last * step, first * step + step), start, end, ticks, float, title)


def log_scale(low: float, high: float, start: float, end: float, title: str = "") -> AxisScale:
    """Return a logarithmic scale that includes both values (above 0), with labels at powers of ten; with 2 and 5 if there is room.

    A scale with fewer than three of them has labels at even steps.
    """
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    steps = _STEPS if len(decades) <= 4 else (1,)
    every = 1 + len(decades) // 9
    values = [step * 10.0**decade for decade in decades if decade % every == 0 for step in steps]
    values = [value for value in values if low <= value <= high]
    if len(values) < 3:
        step = _round_step((high - low) / 6 or 1.0)
        values = [each * step for each in range(ceil(low / step), floor(high / step) + 1)] or [low]
    ticks = [(value, f"{value:.10g}" if 1e-4 < value < 1e7 else f"{value:.6g}") for value in values]
    return AxisScale(low, high, start, end, ticks, log10, title)


def place_scale(labels: Sequence[str], start: float, end: float, most: int, title: str = "") -> AxisScale:
    """Return the scale of places 0, 1, … beside each other, with their labels, of which at most `most` are shown."""
    every = max(1, -(-len(labels) // most))
    ticks = [(float(place), text) for place, text in enumerate(labels) if place % every == 0]
    return AxisScale(-0.5, len(labels) - 0.5, start, end, ticks, float, title)


def ratio_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return round ratios between `low` and `high` (both above 0) with their labels, at least an eighth of the axis apart."""
    chosen: list[float] = []
    for ratio in _RATIOS:
        if low <= ratio <= high and all(abs(log2(ratio / other)) >= log2(high / low) / 8 for other in chosen):
            chosen.append(ratio)
    return [(ratio, f"×{ratio:g}") for ratio in sorted(chosen)]


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10 … that is not below `least`."""
    power = 10.0 ** floor(log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))


@dataclass
class Picture:
    """An SVG picture. Its elements are drawn in the order in which they were added. `tooltips` has the exact values of its points."""

    width: float
    height: float
    elements: list[str] = field(default_factory=list)
    tooltips: list[Tooltip] = field(default_factory=list)

    def add(self, name: str, classes: str = "", text: str | None = None, **attributes: float | str) -> None:
        """Add an element. Underscores in names of attributes become hyphens; a text is escaped."""
        shown = "".join(f" {key.replace('_', '-')}={quoteattr(_number(value))}" for key, value in attributes.items())
        marked = f" class={quoteattr(classes)}" if classes else ""
        self.elements.append(f"<{name}{marked}{shown}" + (f">{escape(printable(text))}</{name}>" if text is not None else "/>"))

    def text(self, x: float, y: float, text: str, anchor: str = "start", classes: str = "soft") -> None:
        """Add a text; `anchor` is the part of it at `x`: start, middle or end."""
        more = {} if anchor == "start" else {"text_anchor": anchor}
        self.add("text", classes, text, x=x, y=y, **more)

    def line(self, points: Iterable[tuple[float, float] | None], classes: str) -> None:
        """Add a line through the points; None interrupts it."""
        path, pen = [], "M"
        for point in points:
            if point is None:
                pen = "M"
            else:
                path.append(f"{pen}{_number(point[0])} {_number(point[1])}")
                pen = "L"
        if path:
            self.add("path", f"line {classes}", d="".join(path))

    def marker(self, x: float, y: float, shape: int, classes: str) -> None:
        """Add the marker of a series."""
        if shape % len(_MARKERS) == 0:
            self.add("circle", classes, cx=x, cy=y, r=3.2)
        else:
            self.add("path", classes, d=f"M{_number(x)} {_number(y)}{series_marker(shape)}")

    def cross(self, x: float, y: float) -> None:
        """Add the marker of wrong data."""
        self.add("path", "bad wide", d=f"M{_number(x)} {_number(y)}{CROSS}")

    def tip(self, x: float, y: float, text: str) -> None:
        """Add a tooltip."""
        self.tooltips.append(Tooltip(round(x, 1), round(y, 1), text))

    def point(self, x: float, y: float, shape: int, classes: str, text: str) -> None:
        """Add a marker with a tooltip."""
        self.marker(x, y, shape, classes)
        self.tip(x, y, text)

    def axes(self, x: AxisScale, y: AxisScale) -> None:
        """Add grid lines, labels and titles of both directions."""
        grid = "".join(f"M{_number(x.start)} {_number(y.at(value))}H{_number(x.end)}" for value, _ in y.ticks)
        self.add("path", "grid", d=grid + f"M{_number(x.start)} {_number(y.start)}H{_number(x.end)}")
        for value, text in y.ticks:
            self.text(x.start - 7, y.at(value) + 4, text, "end")
        last = -1e9
        for value, text in x.ticks:
            if x.at(value) - len(text) * _LETTER / 2 > last:
                self.text(x.at(value), y.start + 18, text, "middle")
                last = x.at(value) + len(text) * _LETTER / 2 + 6
        if y.title:
            self.text(4, y.end - 12, y.title)
        if x.title:
            self.text((x.start + x.end) / 2, y.start + 36, x.title, "middle")

    def markup(self, title: str) -> str:
        """Return the picture as an SVG element; `title` is its accessible name."""
        head = f'<svg viewBox="0 0 {_number(self.width)} {_number(self.height)}" role="img" aria-label={quoteattr(printable(title))}>'
        return f"{head}{''.join(self.elements)}</svg>"


def apart(wanted: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Return positions near the wanted ones (in any order) that are `least` apart, from `low` to `high`; closer if there are too many."""
    least = min(least, (high - low) / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    found = [0.0] * len(wanted)
    before = low - least
    for index in order:
        before = found[index] = max(wanted[index], before + least)
    after = high + least
    for index in reversed(order):
        after = found[index] = min(found[index], after - least)
    return found


# Panels one below the other, with the same time axis.

_UNITS = ((180.0, 1.0, "s"), (3 * 3600.0, 60.0, "min"), (float("inf"), 3600.0, "h"))
_ORDER = "cases in the order of measurement"


@dataclass(frozen=True)
class TimeAxis:
    """The x axis of a run.

    end    its length: in seconds, or in cases if the rows have no times
    timed  whether the rows have times
    """

    end: float
    timed: bool

    @property
    def unit(self) -> tuple[float, str]:
        """Return the unit of the axis in seconds, and its name; (1, "") for cases."""
        return next((factor, name) for most, factor, name in _UNITS if self.end <= most) if self.timed else (1.0, "")

    @property
    def title(self) -> str:
        """Return the title of the axis."""
        return f"{self.unit[1]} since the start of the run" if self.timed else _ORDER

    def at(self, place: float) -> float:
        """Return the position of a time in seconds (or of the number of a case)."""
        return place / self.unit[0]

    def ticks(self) -> list[tuple[float, str]]:
        """Return round positions in the axis' unit with their labels."""
        end = self.at(self.end) or 1.0
        step = _round_step(end / 9) if self.timed else max(1.0, _round_step(end / 9))
        return [(each * step, f"{each * step:g}") for each in range(int(end / step + 1e-9) + 1)]

    def text(self, place: float) -> str:
        """Return a time as text: "12.3 s", "case 5"."""
        return f"{self.at(place):.4g} {self.unit[1]}" if self.timed else f"case {round(place + 0.5)}"


class Panels:
    """A picture of panels one below the other over the same time axis, with tooltips in the first one."""

    WIDTH, HEIGHT, ABOVE, BELOW, LEFT, RIGHT = 940, 104, 30, 46, 54, 12  # pixels; height and space above are those of each panel

    def __init__(self, titles: Sequence[str], axis: TimeAxis, series: Sequence[tuple[str, int]] = ()) -> None:
        self.titles, self.axis = titles, axis
        self.picture = Picture(self.WIDTH, len(titles) * (self.ABOVE + self.HEIGHT) + self.BELOW)
        self._first = draw_legend(self.picture, series, self.LEFT, 14) if series else 0.0
        self.picture.height += self._first
        end = axis.at(axis.end) or 1.0
        self.x = AxisScale(0, end, self.LEFT, self.WIDTH - self.RIGHT, axis.ticks(), float, axis.title)

    def top(self, panel: int) -> float:
        """Return the upper end of a panel in pixels."""
        return self._first + panel * (self.ABOVE + self.HEIGHT) + self.ABOVE

    def scale(self, panel: int, low: float, high: float) -> AxisScale:
        """Draw the axes of a panel for values from `low` to `high`, and return its scale; logarithmic if they are far apart."""
        top, title = self.top(panel), self.titles[panel]
        far = low > 0 and high > 6 * low
        y = log_scale(0.8 * low, 1.6 * high, top + self.HEIGHT, top) if far else linear_scale(0, 1.1 * high or 1.0, top + self.HEIGHT, top)
        last = panel == len(self.titles) - 1
        self.picture.axes(self.x if last else replace(self.x, ticks=(), title=""), replace(y, title=title))
        return y

    def line(self, y: AxisScale, points: Iterable[tuple[float, float]], number: int) -> None:
        """Draw a line through (time in seconds, value)."""
        self.picture.line([(self.x.at(self.axis.at(at)), y.at(value)) for at, value in points], series_classes(number))

    def marks(self, points: Iterable[tuple[float, float]]) -> None:
        """Draw a red triangle at each (time in seconds, pixel from the top)."""
        for at, height in points:
            self.picture.add("path", "bad", d=f"M{_number(self.x.at(self.axis.at(at)) - 4)} {_number(height - 4)}h8l-4 7z")

    def tip(self, at: float, height: float, text: str) -> None:
        """Add a tooltip at a time in seconds, at a pixel from the top."""
        self.picture.tip(self.x.at(self.axis.at(at)), height, text)


def draw_legend(picture: Picture, series: Sequence[tuple[str, int]], left: float, top: float) -> float:
    """Draw a line of each style with its name, in rows from `top` on, and return where the chart may begin."""
    x, y = left, top
    for name, number in series:
        wide = 28 + 6.3 * len(name) + 18
        if x > left and x + wide > picture.width:
            x, y = left, y + 17
        picture.line([(x, y - 4), (x + 22, y - 4)], series_classes(number))
        picture.marker(x + 11, y - 4, number, series_classes(number))
        picture.text(x + 28, y, name, classes="ink")
        x += wide
    return y + 17


def series_classes(number: int) -> str:
    """Return the classes of a series' line: color and dash."""
    return f"s{number % COLORS} d{(number + number // COLORS) % DASHES}"


def series_marker(number: int) -> str:
    """Return the path of a series' marker, relative to its place."""
    return _MARKERS[number % len(_MARKERS)]


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


_BARS, _BAR_LEFT, _BAR_STEP = 540, 8, 42  # pixels: the width of a picture of bars, their left end, and the height of one


class Bar(NamedTuple):
    """A bar with its name and its value as text. mark: a vertical line, of what is expected; classes: of its style."""

    name: str
    text: str
    value: float
    interval: tuple[float, float] | None
    mark: float | None
    classes: str


def bar_picture(bars: Sequence[Bar], title: str) -> Picture:
    """Return the picture of horizontal bars, one below the other, above an axis with this title."""
    picture = Picture(_BARS, len(bars) * _BAR_STEP + 46)
    end = max(value for bar in bars for value in (bar.value, bar.mark or 0.0, *(bar.interval or ())))
    x, bottom = linear_scale(0.0, end, _BAR_LEFT, _BARS - 20, title), len(bars) * _BAR_STEP + 6
    for value, text in x.ticks:
        picture.line([(x.at(value), 4), (x.at(value), bottom)], "grid")
        picture.text(x.at(value), bottom + 16, text, "middle")
    picture.text((x.start + x.end) / 2, bottom + 34, x.title, "middle")
    for place, bar in enumerate(bars):
        y, right = place * _BAR_STEP + 20, x.at(bar.value)
        picture.text(_BAR_LEFT, y - 3, short(bar.name, 52), classes="ink")
        picture.text(_BARS - 20, y - 3, bar.text, "end", "ink")
        picture.add("rect", bar.classes, x=x.start, y=y + 2, width=max(1.0, right - x.start), height=13)
        if bar.interval is not None:
            picture.line([(x.at(value), y + 8.5) for value in bar.interval], "axis wide")
        if bar.mark is not None:
            picture.line([(x.at(bar.mark), y - 1), (x.at(bar.mark), y + 18)], "limit wide")
        picture.tip(right, y + 8.5, short(f"{bar.name}: {bar.text}", 300))
    return picture
