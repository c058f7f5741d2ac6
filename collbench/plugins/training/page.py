"""The section "Training": the steps of each training on its backends and their parts, as a chart and tables, and asynchronous workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from collbench.plugins.traces.step_drawing import timeline_chart
from collbench.plugins.training.records import RoutedStep, RoutingResult
from collbench.plugins.training.text import format_tax, frames, milliseconds, remarks, scaling_frame, span, title, trainings
from collbench.report.charts import Bar, BarPanel
from collbench.report.figures import DASHES, draw_intervals
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.picture import PAGE, Picture, bar_chart, drawn
from collbench.results.row import Times
from collbench.units import format_percent, format_time

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
    rows_by_training = [(run, training) for run, rows in runs for training in trainings(rows)]
    for number, (run, rows) in enumerate(rows_by_training):
        name = f"{printable(run.path.resolve().name)}: " if len(runs) > 1 else ""
        head = short(f"{name}{title(rows)}: ", 200) if len(rows_by_training) > 1 else ""  # the first screen names a single one
        texts += [f"{head}{text}" for text in remarks(rows)]
        tables += [(f"{head}{caption}", Table.of(frame)) for caption, frame in zip(_CAPTIONS, frames(rows), strict=True) if frame.records]
        scaling = scaling_frame(rows)
        if scaling is not None:
            tables.append((" ".join([head, *scaling.head, *scaling.foot]).strip(), Table.of(scaling)))
        key = f"training-{number}"
        charts += [timeline_chart(key, head, rows), routing_chart(key, head, rows) or _parts_chart(key, head, rows)]
    if not runs:
        return None
    shown_charts = [chart for chart in charts if chart is not None]
    return Section("training", "Training: exchanges of a step", list(dict.fromkeys(texts)), tables, shown_charts)


_MOST_BARS = 24
_LONGEST = 1e9  # seconds: a longer time is not valid
_PARTS_METHOD = (
    "The whole step is timed from the ranks' meeting to the end of the slowest rank. Each part is also measured alone: its bar is the "
    "median time of one, times how often a step has it. Parts that share no rank run at the same time in a step, so the parts can take "
    "longer together than the step. The vertical mark is the time at the expected rate; the horizontal line is the 95 % interval of the "
    "median."
)


def _parts_chart(key: str, prefix: str, rows: Sequence[StepRow]) -> Chart | None:
    """Return the chart of one training on its backends; None if no step was measured."""
    bars = [bar for number, row in enumerate(rows) for bar in _bars(row, number, len(rows) > 1)]
    if not bars:
        return None
    shown = bars[:_MOST_BARS]
    name = f"{prefix}The step, and each of its parts alone"
    table = Table(["", "time"], [[bar.name, bar.text] for bar in bars])
    return bar_chart(Chart(key, name, _parts_caption(bars, len(shown)), _PARTS_METHOD, table), BarPanel("", shown, "ms"))


def _bars(row: StepRow, number: int, several: bool) -> Iterator[Bar]:
    """Yield the bar of the whole step, and one for each part that was measured; valid times only."""
    if row.time_s is None or not _is_time(row.time_s.p50):
        return
    backend = f"{row.backend}: " if several else ""
    expected_s = row.ceiling_time_s if row.comparison and _is_time(row.ceiling_time_s) else None
    whole = "a round of a worker" if row.staleness else "the whole step"
    yield replace(_bar(f"{backend}{whole}", row.time_s, 1, expected_s), color=number)
    for part in row.parts:
        if part.time_s is None or not _is_time(part.times * part.time_s.p50):
            continue
        compared = part.comparison
        expected_s = part.times * part.time_s.p50 * compared.percent / 100 if compared and _is_time(compared.percent) else None
        count = f" ({part.times} × {milliseconds(part.time_s.p50)} ms)" if part.times > 1 else ""
        bar = _bar(f"{backend}{span(*part.names)}{count}", part.time_s, part.times, expected_s)
        yield replace(bar, color=number, is_part=True)


def _bar(name: str, times: Times, number: int, expected_s: float | None) -> Bar:
    """Return the bar of so many exchanges with these times, in ms: "660.0 ms, 100 % of expected"."""
    time_s = number * times.p50
    share = f", {format_percent(100 * expected_s / time_s)} of expected" if expected_s is not None else ""
    low, high = (None if end is None else number * end for end in (times.ci_low, times.ci_high))
    interval = (1e3 * low, 1e3 * high) if low is not None and high is not None and _is_time(low) and _is_time(high) else None
    mark = None if expected_s is None else 1e3 * expected_s
    return Bar(name, f"{milliseconds(time_s)} ms{share}", 1e3 * time_s, interval, mark)


def _is_time(value: float | None) -> bool:
    return value is not None and 0 < value < _LONGEST


def _parts_caption(bars: Sequence[Bar], shown: int) -> str:
    """Return the times of the steps, the longest part, and how many bars are not drawn."""
    parts = [bar for bar in bars if bar.is_part]
    steps = [bar for bar in bars if bar not in parts]
    texts = ["; ".join(f"{bar.name} takes {bar.text}" for bar in steps[:4])]
    if parts:
        longest = max(parts, key=lambda bar: bar.value)
        texts.append(f"longest part: {longest.name}: {longest.text}")
    if shown < len(bars):
        texts.append(f"{shown} of {len(bars)} are drawn")
    return short(". ".join(f"{text[:1].upper()}{text[1:]}" for text in texts) + ".", 600)


_MOST_DRAWN = 300  # routings of a backend
_METHOD = (
    "Each point is the median time of a step with this routing, with its 95 % interval. The line is the time of a step with as many tokens "
    "that are routed evenly. All are measured in turn in the same launch, from the ranks' meeting to the end of the slowest rank. The "
    "imbalance tax is the ratio of the two times, minus 1."
)


def routing_chart(key: str, prefix: str, rows: Sequence[StepRow]) -> Chart | None:
    """Return the chart of one training on its backends; None without routings."""
    series: list[tuple[str, RoutingResult, Sequence[RoutedStep]]] = []
    for row in rows:
        steps = [step for step in row.routing.steps if _is_time(step.time_s.value)] if row.routing else []
        if row.routing and steps:
            series.append((row.backend, row.routing, steps[:_MOST_DRAWN]))
    if not series:
        return None
    name = f"{prefix}The step with each routing"
    table = Table(
        ["backend", "routing", "step ms", "imbalance tax"], [_cells(backend, step) for backend, _, steps in series for step in steps]
    )
    chart = Chart(key, name, short(_caption(series), 600), _METHOD, table)
    return drawn(chart, lambda picture: _draw_routings(picture, series), height=300)


def _draw_routings(picture: Picture, series: Sequence[tuple[str, RoutingResult, Sequence[RoutedStep]]]) -> None:
    """Draw the time of each routing with its interval, and for each backend the time of an evenly routed step."""
    axes = picture.axes()
    for number, (backend, result, steps) in enumerate(series):
        color = PAGE.of_series(number)
        if _is_time(result.even_time_s.value):
            level = 1e3 * (result.even_time_s.value or 0.0)
            axes.axhline(level, color=color, linewidth=2.0, linestyle=DASHES[number % len(DASHES)], gid=f"even {number}")
            axes.annotate("evenly routed", (1, level), (0, 4), ("axes fraction", "data"), "offset points", ha="right", color=PAGE.quiet)
        ends = [(step.step, *_milliseconds_of(step.time_s.low, step.time_s.high)) for step in steps]
        draw_intervals(axes, ends, color, PAGE, f"interval {number}")
        times = [1e3 * (step.time_s.value or 0.0) for step in steps]
        name = printable(short(backend, 30))
        axes.plot([step.step for step in steps], times, marker="o", linestyle="none", color=color, label=name, gid=f"steps {number}")
        for step, time in zip(steps, times, strict=True):
            picture.tip(axes, step.step, time, short(_text(backend, step), 300))
    axes.set_ylim(0, 1.1e3 * max(value for _, result, steps in series for value in _values(result, steps)))
    axes.set_xlabel("routing")
    axes.set_ylabel("step, ms")
    axes.locator_params(axis="x", integer=True)
    picture.legend(3)


def _milliseconds_of(low: float | None, high: float | None) -> tuple[float | None, float | None]:
    return (1e3 * low, 1e3 * high) if low is not None and high is not None and high < _LONGEST else (None, None)


def _values(result: RoutingResult, drawn: Sequence[RoutedStep]) -> list[float]:
    """Return the times of a series in seconds, with the ends of the intervals."""
    values = [result.even_time_s.value, *(end for step in drawn for end in (step.time_s.value, step.time_s.high))]
    return [value for value in values if value is not None and value < _LONGEST]


def _cells(backend: str, step: RoutedStep) -> list[str]:
    return [short(backend, 100), str(step.step), format_time((step.time_s.value or 0.0) / 1000), format_tax(step.tax)]


def _text(backend: str, step: RoutedStep) -> str:
    """Return "gloo, routing 3: 12.30 ms, imbalance tax +70 %, busiest rank 1"."""
    _, number, milliseconds, tax = _cells(backend, step)
    return f"{backend}, routing {number}: {milliseconds} ms, imbalance tax {tax}, busiest rank {step.busiest_rank}"


def _caption(series: Sequence[tuple[str, RoutingResult, Sequence[RoutedStep]]]) -> str:
    """Return the range of each backend's times, and its tax."""
    texts = []
    for backend, result, steps in series:
        values = [step.time_s.value or 0.0 for step in steps]
        more = f" ({len(steps)} of {len(result.steps)} are drawn)" if len(steps) < len(result.steps) else ""
        low, high = (format_time(value / 1000) for value in (min(values), max(values)))
        texts.append(f"{backend}: a step takes {low} to {high} ms, imbalance tax {format_tax(result.tax)}{more}.")
    return " ".join(texts)
