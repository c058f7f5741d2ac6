"""The chart of expert-parallel training over several routings: the step time of each, above the time of evenly routed steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collbench.plugins.training.records import RoutedStep, RoutingResult
from collbench.plugins.training.routing_text import format_tax
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Table
from collbench.report.html.drawing import Picture, draw_legend, linear_scale, series_classes
from collbench.results.estimate import Estimate
from collbench.units import format_time

if TYPE_CHECKING:
    from collbench.plugins.training.records import StepRow

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 540, 300, 62, 524, 40, 250  # pixels
_MOST_DRAWN = 300  # routings of a backend
_LONGEST = 1e9  # seconds: a longer time is not valid
_METHOD = (
    "Each point is the median time of a step with this routing, with its 95 % interval. The line is the time of a step with as many tokens "
    "that are routed evenly. All are measured in turn in the same launch, from the ranks' meeting to the end of the slowest rank. The "
    "imbalance tax is the ratio of the two times, minus 1."
)


def routing_chart(key: str, prefix: str, rows: Sequence[StepRow]) -> Chart | None:
    """Return the chart of one training on its backends; None without routings."""
    found = [(row.backend, row.routing) for row in rows if row.routing]
    series = [(backend, result, drawn) for backend, result in found if (drawn := [step for step in result.steps if _is_time(step.time_s)])]
    if not series:
        return None
    series = [(backend, result, drawn[:_MOST_DRAWN]) for backend, result, drawn in series]
    picture = Picture(_WIDTH, _HEIGHT)
    numbers = [step.step for _, _, drawn in series for step in drawn]
    times = [1e3 * each for _, result, drawn in series for each in _values(result, drawn)]
    x = linear_scale(min(numbers), max(numbers), _LEFT, _RIGHT, "routing")
    y = linear_scale(0.0, max(times), _BOTTOM, _TOP, "step ms")
    picture.axes(x, y)
    draw_legend(picture, [(short(backend, 30), number) for number, (backend, _, _) in enumerate(series)], _LEFT + 80, 14)
    for number, (backend, result, drawn) in enumerate(series):
        classes = series_classes(number)
        if _is_time(result.even_time_s):
            level = y.at(1e3 * (result.even_time_s.value or 0.0))
            picture.line([(_LEFT, level), (_RIGHT, level)], f"{classes} wide")
            picture.text(_RIGHT, level - 5, "evenly routed", "end")
        for step in drawn:
            at, time_s = x.at(step.step), step.time_s
            if time_s.low is not None and time_s.high is not None and time_s.high < _LONGEST:
                picture.line([(at, y.at(1e3 * time_s.low)), (at, y.at(1e3 * time_s.high))], "axis")
            picture.point(at, y.at(1e3 * (time_s.value or 0.0)), number, classes, short(_text(backend, step), 300))
    name = f"{prefix}The step with each routing"
    table = Table(
        ["backend", "routing", "step ms", "imbalance tax"], [_cells(backend, step) for backend, _, drawn in series for step in drawn]
    )
    return Chart(key, name, short(_caption(series), 600), _METHOD, picture.markup(name), table, picture.tooltips)


def _is_time(time_s: Estimate) -> bool:
    return time_s.value is not None and 0 < time_s.value < _LONGEST


def _values(result: RoutingResult, drawn: Sequence[RoutedStep]) -> list[float]:
    """Return the times of a series in seconds, with the ends of the intervals."""
    each = [result.even_time_s.value, *(end for step in drawn for end in (step.time_s.value, step.time_s.high))]
    return [value for value in each if value is not None and value < _LONGEST]


def _cells(backend: str, step: RoutedStep) -> list[str]:
    return [short(backend, 100), str(step.step), format_time((step.time_s.value or 0.0) / 1000), format_tax(step.tax)]


def _text(backend: str, step: RoutedStep) -> str:
    """Return "gloo, routing 3: 12.30 ms, imbalance tax +70 %, busiest rank 1"."""
    _, number, milliseconds, tax = _cells(backend, step)
    return f"{backend}, routing {number}: {milliseconds} ms, imbalance tax {tax}, busiest rank {step.busiest_rank}"


def _caption(series: Sequence[tuple[str, RoutingResult, Sequence[RoutedStep]]]) -> str:
    """Return the range of each backend's times, and its tax."""
    texts = []
    for backend, result, drawn in series:
        values = [step.time_s.value or 0.0 for step in drawn]
        more = f" ({len(drawn)} of {len(result.steps)} are drawn)" if len(drawn) < len(result.steps) else ""
        low, high = (format_time(value / 1000) for value in (min(values), max(values)))
        texts.append(f"{backend}: a step takes {low} to {high} ms, imbalance tax {format_tax(result.tax)}{more}.")
    return " ".join(texts)
