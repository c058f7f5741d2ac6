"""The page of a prediction: the table, and for each case a chart of the measured times and the predicted band over the node count."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

from collbench.plugins.predict.prediction import MeasuredPoint, PredictedCase, PredictedTime, Prediction, check_sentence
from collbench.plugins.predict.text import case_name, named_checks, prediction_frame
from collbench.report.cases import NOTHING
from collbench.report.figures import draw_intervals, set_time_axis
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.first_screen import DOUBT, FirstScreen, LargeFigure
from collbench.report.html.page import write_page
from collbench.report.html.picture import NARROW, PAGE, WIDE, Picture, drawn
from collbench.units import format_span, format_time, listed, noun_of, plural

_MOST_CHARTS = 48
_MADE = (
    "Points are medians over launches, with the range of their intervals. The line is the prediction, the dashed lines are the ends of its "
    "interval: error of the fit, noise of a launch, error of the model at the largest measured node count, and the other models that fit "
    "as well. The model was chosen by leave-one-out errors."
)


def write_prediction_page(prediction: Prediction, where: Path) -> None:
    """Write the page in one step. Raises UsageError if the file cannot be written."""
    write_page(where, _first_screen(prediction), lambda: [_section(prediction)])


def _first_screen(prediction: Prediction) -> FirstScreen:
    total = len(prediction.cases) * len(prediction.nodes)
    nodes = listed([str(count) for count in prediction.nodes])
    figures = [
        LargeFigure(str(prediction.predicted), noun_of(prediction.predicted, "prediction")),
        LargeFigure(str(total - prediction.predicted), "refused: the reasons are in the table"),
    ]
    badge = None if prediction.predicted else (DOUBT, "INCONCLUSIVE")
    title = f"{plural(prediction.predicted, 'prediction')} of {total} at {nodes} nodes"
    predicted_cases = _by_size(prediction)
    if predicted_cases:
        largest = predicted_cases[0]
        farthest = max(_predicted_times(largest), key=lambda time: time.nodes)
        span = format_span(farthest.time_s or 0.0, farthest.low_s, farthest.high_s)
        title = f"{case_name(largest)} at {plural(farthest.nodes, 'node')}: {span}; {title}"
    maximum = f"largest error of a check: ±{100 * prediction.max_error:g} %"
    return FirstScreen(title, badge, figures, maximum, named_checks(prediction.cases)[:4], "prediction")


def _predicted_times(case: PredictedCase) -> list[PredictedTime]:
    """Return those of its predictions that were not refused."""
    return [time for time in case.predictions if time.time_s is not None]


def _by_size(prediction: Prediction) -> list[PredictedCase]:
    """Return the cases that have a prediction, the largest size first."""
    return sorted(filter(_predicted_times, prediction.cases), key=lambda case: -case.size_bytes)


def _section(prediction: Prediction) -> Section:
    cases = _by_size(prediction)
    charts = [_chart(case, number) for number, case in enumerate(cases[:_MOST_CHARTS])]
    notes = [f"Drawn are {_MOST_CHARTS} of {len(cases)} cases."] if len(cases) > _MOST_CHARTS else []
    return Section("prediction", "Prediction", notes, [("all cases", Table.of(prediction_frame(prediction)))], charts)


def _chart(case: PredictedCase, number: int) -> Chart:
    """Return the chart of one case: nodes along x, time along y, both logarithmic."""
    name = case_name(case)
    predicted = _predicted_times(case)
    points: list[MeasuredPoint | PredictedTime] = [*case.points, *predicted]
    rows = [
        [str(point.nodes), "measured" if isinstance(point, MeasuredPoint) else "predicted",
         *(format_time(seconds) if seconds else NOTHING for seconds in (point.time_s, point.low_s, point.high_s))]
        for point in points
    ]  # fmt: skip
    caption = f"{name}: {case.model.render() if case.model else ''}; {check_sentence(case)}."
    table = Table(("nodes", "", "time µs", "low µs", "high µs"), rows, frozenset({0, 2, 3, 4}))
    chart = Chart(f"predict-{number}", name, caption, _MADE, table)
    return drawn(chart, lambda picture: _draw(picture, case, predicted), NARROW if number else WIDE)  # the first one is the answer


def _draw(picture: Picture, case: PredictedCase, predicted: Sequence[PredictedTime]) -> None:
    """Draw measured and predicted times with their intervals, and the predicted band from the largest measured node count on."""
    axes = picture.axes()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    last = case.points[-1]
    beyond = [time for time in predicted if time.nodes > last.nodes]
    nodes = [last.nodes, *(time.nodes for time in beyond)]
    band = {
        "low": [time.low_s for time in beyond],
        "prediction": [time.time_s for time in beyond],
        "high": [time.high_s for time in beyond],
    }
    for name, values in band.items():
        times = [last.time_s, *(nan if value is None else value for value in values)]
        dashes: Any = "-" if name == "prediction" else (0, (7, 3))
        axes.plot(nodes, times, color=PAGE.expected, linestyle=dashes, gid=name)
    both: list[tuple[str, str, Sequence[MeasuredPoint | PredictedTime]]] = [
        ("measured", PAGE.series[0], case.points),
        ("predicted", PAGE.series[1], predicted),
    ]
    for word, color, points in both:
        times_s = [point.time_s or nan for point in points]
        draw_intervals(axes, [(point.nodes, point.low_s, point.high_s) for point in points], color, PAGE, f"interval {word}")
        axes.plot([point.nodes for point in points], times_s, marker="o", linestyle="none", color=color, label=word, gid=word)
        for point in points:
            time = format_span(point.time_s or 0.0, point.low_s, point.high_s)
            picture.tip(axes, point.nodes, point.time_s or 0.0, f"{plural(point.nodes, 'node')}, {word}: {time}")
    counts = sorted({*(point.nodes for point in case.points), *(time.nodes for time in predicted)})
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("nodes")
    set_time_axis(axes)
    picture.legend(2)
