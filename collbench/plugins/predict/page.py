"""The page of a prediction: the table, and for each case a chart of the measured times and the predicted band over the node count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path
from typing import Any

from collbench.plugins.predict.prediction import MeasuredPoint, PredictedCase, PredictedTime, Prediction, check_sentence
from collbench.plugins.predict.text import case_name, prediction_frame
from collbench.report.cases import NOTHING
from collbench.report.figures import draw_intervals, set_time_axis
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.first_screen import DOUBT, FirstScreen, LargeFigure
from collbench.report.html.page import write_page
from collbench.report.html.picture import NARROW, PAGE, WIDE, Picture, drawn
from collbench.units import format_time, listed, noun_of, plural

_MOST_CHARTS = 48
_MADE = (
    "Points are medians over launches, with the range of their intervals. The line is the prediction, the dashed lines are the ends of its "
    "interval: error of the fit, noise of a launch, error of the model at the largest measured node count, and the other models that fit "
    "as well. The model was chosen by leave-one-out errors."
)


def write_prediction_page(found: Prediction, where: Path) -> None:
    """Write the page in one step. Raises UsageError if the file cannot be written."""
    write_page(where, _first_screen(found), lambda: list(_sections(found)))


def _first_screen(found: Prediction) -> FirstScreen:
    every = len(found.cases) * len(found.nodes)
    nodes = listed([str(each) for each in found.nodes])
    refused = every - found.predicted
    checks = [f"{case_name(case)}: {sentence}" for case in found.cases if (sentence := check_sentence(case))]
    figures = [
        LargeFigure(str(found.predicted), noun_of(found.predicted, "prediction")),
        LargeFigure(str(refused), "refused: the reasons are in the table"),
    ]
    badge = None if found.predicted else (DOUBT, "INCONCLUSIVE")
    title = f"{plural(found.predicted, 'prediction')} of {every} at {nodes} nodes"
    drawn_cases = _by_size(found)
    if drawn_cases:
        case, furthest = drawn_cases[0]
        interval = ""
        if furthest.low_s is not None and furthest.high_s is not None:
            interval = f" ({format_time(furthest.low_s)}–{format_time(furthest.high_s)})"
        title = f"{case_name(case)} at {plural(furthest.nodes, 'node')}: {format_time(furthest.time_s or 0.0)} µs{interval}; {title}"
    return FirstScreen(title, badge, figures, f"largest error of a check: ±{100 * found.max_error:g} %", checks[:4], "prediction")


def _by_size(found: Prediction) -> list[tuple[PredictedCase, PredictedTime]]:
    """Return the cases that have a prediction, the largest size first, with the one at the most nodes."""
    predicted = [(case, [one for one in case.predictions if one.time_s is not None]) for case in found.cases]
    furthest = [(case, max(times, key=lambda one: one.nodes)) for case, times in predicted if times]
    return sorted(furthest, key=lambda pair: -pair[0].size_bytes)


def _sections(found: Prediction) -> Iterator[Section]:
    cases = [case for case, _ in _by_size(found)]
    charts = [_chart(case, number) for number, case in enumerate(cases[:_MOST_CHARTS])]
    less = [f"Drawn are {_MOST_CHARTS} of {len(cases)} cases."] if len(cases) > _MOST_CHARTS else []
    yield Section("prediction", "Prediction", less, [("all cases", Table.of(prediction_frame(found)))], charts)


def _chart(case: PredictedCase, number: int) -> Chart:
    """Return the chart of one case: nodes along x, time along y, both logarithmic."""
    name, known = case_name(case), [each for each in case.predictions if each.time_s is not None]
    every: list[MeasuredPoint | PredictedTime] = [*case.points, *known]
    rows = [
        [str(each.nodes), "measured" if isinstance(each, MeasuredPoint) else "predicted",
         *(format_time(value) if value else NOTHING for value in (each.time_s, each.low_s, each.high_s))]
        for each in every
    ]  # fmt: skip
    caption = f"{name}: {case.model.render() if case.model else ''}; {check_sentence(case)}."
    table = Table(("nodes", "", "time µs", "low µs", "high µs"), rows, frozenset({0, 2, 3, 4}))
    chart = Chart(f"predict-{number}", name, caption, _MADE, table)
    return drawn(chart, lambda picture: _draw(picture, case, known), NARROW if number else WIDE)  # the first one is the answer


def _draw(picture: Picture, case: PredictedCase, predicted: Sequence[PredictedTime]) -> None:
    """Draw measured and predicted times with their intervals, and the predicted band from the largest measured node count on."""
    axes = picture.axes()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    last = case.points[-1]
    beyond = [one for one in predicted if one.nodes > last.nodes]
    nodes = [last.nodes, *(one.nodes for one in beyond)]
    band = {
        "low": [one.low_s for one in beyond],
        "prediction": [one.time_s for one in beyond],
        "high": [one.high_s for one in beyond],
    }
    for name, values in band.items():
        times = [last.time_s, *(nan if value is None else value for value in values)]
        dashes: Any = "-" if name == "prediction" else (0, (7, 3))
        axes.plot(nodes, times, color=PAGE.expected, linestyle=dashes, gid=name)
    measured: Sequence[MeasuredPoint | PredictedTime] = case.points
    of_model: Sequence[MeasuredPoint | PredictedTime] = predicted
    for word, color, points in (("measured", PAGE.series[0], measured), ("predicted", PAGE.series[1], of_model)):
        times_s = [point.time_s or nan for point in points]
        draw_intervals(axes, [(point.nodes, point.low_s, point.high_s) for point in points], color, PAGE, f"interval {word}")
        axes.plot([point.nodes for point in points], times_s, marker="o", linestyle="none", color=color, label=word, gid=word)
        for point in points:
            text = f"{plural(point.nodes, 'node')}, {word}: {format_time(point.time_s or 0.0)} µs"
            if point.low_s is not None and point.high_s is not None:
                text += f" ({format_time(point.low_s)}–{format_time(point.high_s)})"
            picture.tip(axes, point.nodes, point.time_s or 0.0, text)
    counts = sorted({*(point.nodes for point in case.points), *(one.nodes for one in predicted)})
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("nodes")
    set_time_axis(axes)
    picture.legend(2)
