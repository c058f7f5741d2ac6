"""The section "Training": the steps of each training on its backends and their parts, as a chart and tables, and asynchronous workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collbench.plugins.traces.step_drawing import timeline_chart
from collbench.plugins.training.records import comparison
from collbench.plugins.training.routing_page import routing_chart
from collbench.plugins.training.text import frames, milliseconds, remarks, scaling_frame, span, title, trainings
from collbench.report.frame import Frame, printable
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.drawing import Picture, linear_scale, series_classes
from collbench.units import format_percent

if TYPE_CHECKING:
    from collbench.plugins.training.records import StepRow
    from collbench.report.material import Material

_CAPTIONS = (
    "the whole step",
    "its exchanges alone",
    "its workers",
    "its costliest operations",
    "over all routings",
    "each routing",
    "with computing",
)


def section(material: Material) -> Section | None:
    """Return the section, or None if no run measured training."""
    texts: list[str] = []
    tables: list[tuple[str, Table]] = []
    charts: list[Chart | None] = []
    runs = material.of_kind("workload")
    found = [(run, those) for run, rows in runs for those in trainings(rows)]
    for number, (run, those) in enumerate(found):
        name = f"{printable(run.path.resolve().name)}: " if len(runs) > 1 else ""
        head = short(f"{name}{title(those)}: ", 200) if len(found) > 1 else ""  # the first screen names a single one
        texts += [f"{head}{text}" for text in remarks(those)]
        shown: Iterable[Frame[Any]] = frames(those)
        tables += [(f"{head}{caption}", Table.of(frame)) for caption, frame in zip(_CAPTIONS, shown, strict=True) if frame.records]
        if (scaling := scaling_frame(those)) is not None:
            tables.append((" ".join([head, *scaling.head, *scaling.foot]).strip(), Table.of(scaling)))
        key = f"training-{number}"
        charts += [routing_chart(key, head, those) or _parts_chart(key, head, those), timeline_chart(key, head, those)]
    if not runs:
        return None
    drawn = [chart for chart in charts if chart is not None]
    return Section("training", "Training: exchanges of a step", list(dict.fromkeys(texts)), tables, drawn)


# The chart of the parts of a step: a bar for the whole step and for each part of it, with a mark at the expected time.

_WIDTH, _LEFT, _STEP, _MOST_BARS = 540, 8, 42, 24  # pixels
_LONGEST = 1e9  # seconds: a longer time is not valid
_PARTS_METHOD = (
    "The whole step is timed from the ranks' meeting to the end of the slowest rank. Each part is also measured alone: its bar is the "
    "median time of one, times how often a step has it. Parts that share no rank run at the same time in a step, so the parts can take "
    "longer together than the step. The vertical mark is the time at the expected rate; the horizontal line is the 95 % interval of the "
    "median."
)


@dataclass(frozen=True)
class _Bar:
    """A bar. Times in seconds: `time_s` with its interval if that is known, `expected_s`: at the expected rate; number: of its style."""

    name: str
    time_s: float
    interval_s: tuple[float, float] | None
    expected_s: float | None
    number: int
    is_part: bool

    @property
    def text(self) -> str:
        """Return "660.0 ms, 100 % of expected"."""
        share = f", {format_percent(100 * self.expected_s / self.time_s)} of expected" if self.expected_s is not None else ""
        return f"{milliseconds(self.time_s)} ms{share}"


def _parts_chart(key: str, prefix: str, rows: Sequence[StepRow]) -> Chart | None:
    """Return the chart of one training on its backends; None if no step was measured."""
    bars = [bar for number, row in enumerate(rows) for bar in _bars(row, number, len(rows) > 1)]
    if not bars:
        return None
    shown = bars[:_MOST_BARS]
    picture = Picture(_WIDTH, len(shown) * _STEP + 46)
    end = max(1e3 * time for bar in shown for time in (bar.time_s, bar.expected_s or 0.0, *(bar.interval_s or ())))
    x, bottom = linear_scale(0.0, end, _LEFT, _WIDTH - 20, "ms"), len(shown) * _STEP + 6
    for value, text in x.ticks:
        picture.line([(x.at(value), 4), (x.at(value), bottom)], "grid")
        picture.text(x.at(value), bottom + 16, text, "middle")
    picture.text((x.start + x.end) / 2, bottom + 34, x.title, "middle")
    for place, bar in enumerate(shown):
        y, right = place * _STEP + 20, x.at(1e3 * bar.time_s)
        picture.text(_LEFT, y - 3, short(bar.name, 52), classes="ink")
        picture.text(_WIDTH - 20, y - 3, bar.text, "end", "ink")
        classes = f"{series_classes(bar.number)}{' open' if bar.is_part else ''}"
        picture.add("rect", classes, x=x.start, y=y + 2, width=max(1.0, right - x.start), height=13)
        if bar.interval_s is not None:
            picture.line([(x.at(1e3 * each), y + 8.5) for each in bar.interval_s], "axis wide")
        if bar.expected_s is not None:
            picture.line([(x.at(1e3 * bar.expected_s), y - 1), (x.at(1e3 * bar.expected_s), y + 18)], "limit wide")
        picture.tip(right, y + 8.5, short(f"{bar.name}: {bar.text}", 300))
    name = f"{prefix}The step, and each of its parts alone"
    table = Table(["", "time"], [[bar.name, bar.text] for bar in bars])
    return Chart(key, name, _parts_caption(bars, len(shown)), _PARTS_METHOD, picture.markup(name), table, picture.tooltips)


def _bars(row: StepRow, number: int, several: bool) -> Iterator[_Bar]:
    """Yield the bar of the whole step, and one for each part that was measured; valid times only."""
    if row.time_s is None or not _is_time(row.time_s.p50):
        return
    backend = f"{row.backend}: " if several else ""
    expected = row.ceiling_time_s if comparison(row) and _is_time(row.ceiling_time_s) else None
    whole = "a round of a worker" if row.staleness else "the whole step"
    yield _Bar(f"{backend}{whole}", row.time_s.p50, _interval(row.time_s.ci_low, row.time_s.ci_high), expected, number, is_part=False)
    for part in row.parts:
        if part.time_s is None or not _is_time(part.times * part.time_s.p50):
            continue
        time_s = part.times * part.time_s.p50
        low, high = (None if end is None else part.times * end for end in (part.time_s.ci_low, part.time_s.ci_high))
        compared = comparison(part)
        expected = time_s * compared.percent / 100 if compared and _is_time(compared.percent) else None
        count = f" ({part.times} × {milliseconds(part.time_s.p50)} ms)" if part.times > 1 else ""
        yield _Bar(f"{backend}{span(*part.names)}{count}", time_s, _interval(low, high), expected, number, is_part=True)


def _is_time(value: float | None) -> bool:
    return value is not None and 0 < value < _LONGEST


def _interval(low: float | None, high: float | None) -> tuple[float, float] | None:
    return (low, high) if low is not None and high is not None and _is_time(low) and _is_time(high) else None


def _parts_caption(bars: Sequence[_Bar], shown: int) -> str:
    """Return the times of the steps, the longest part, and how many bars are not drawn."""
    steps, parts = [bar for bar in bars if not bar.is_part], [bar for bar in bars if bar.is_part]
    texts = ["; ".join(f"{bar.name} takes {bar.text}" for bar in steps[:4])]
    if parts:
        longest = max(parts, key=lambda bar: bar.time_s)
        texts.append(f"longest part: {longest.name}: {longest.text}")
    if shown < len(bars):
        texts.append(f"{shown} of {len(bars)} are drawn")
    return short(". ".join(f"{text[:1].upper()}{text[1:]}" for text in texts) + ".", 600)
