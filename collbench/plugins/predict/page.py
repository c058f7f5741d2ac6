"""The page of a prediction: the table, and for each case a chart of the measured times and the predicted band over the node count."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2
from pathlib import Path

from collbench.plugins.predict.prediction import MeasuredPoint, PredictedCase, PredictedTime, Prediction, check_sentence
from collbench.plugins.predict.text import case_name, prediction_frame
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.drawing import AxisScale, Picture, log_scale
from collbench.report.html.first_screen import DOUBT, FirstScreen, LargeFigure
from collbench.report.html.page import write_page
from collbench.units import format_span, format_time, listed, noun_of, plural

_WIDTH, _HEIGHT, _LEFT, _RIGHT = 460, 260, 64, 20  # pixels
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
    return FirstScreen(title, badge, figures, f"largest error of a check: ±{100 * found.max_error:g} %", checks[:4], "prediction")


def _sections(found: Prediction) -> Iterator[Section]:
    drawn = [each for each in found.cases if any(one.time_s is not None for one in each.predictions)]
    charts = [_chart(case, number) for number, case in enumerate(drawn[:_MOST_CHARTS])]
    less = [f"Drawn are {_MOST_CHARTS} of {len(drawn)} cases."] if len(drawn) > _MOST_CHARTS else []
    yield Section("prediction", "Prediction", less, [("all cases", Table.of(prediction_frame(found)))], charts)


def _chart(case: PredictedCase, number: int) -> Chart:
    """Return the chart of one case: nodes along x, time along y, both logarithmic."""
    name, known = case_name(case), [each for each in case.predictions if each.time_s is not None]
    counts = sorted({*(each.nodes for each in case.points), *(each.nodes for each in known)})
    every: list[MeasuredPoint | PredictedTime] = [*case.points, *known]
    ends = [each for one in every for each in (one.time_s, one.low_s, one.high_s) if each]
    x = AxisScale(counts[0] / 1.2, counts[-1] * 1.2, _LEFT, _WIDTH - _RIGHT, [(float(each), str(each)) for each in counts], log2, "nodes")
    y = log_scale(min(ends) * 1e6 / 1.2, max(ends) * 1e6 * 1.2, _HEIGHT - 46, 30, "time, µs")
    picture = Picture(_WIDTH, _HEIGHT)
    picture.axes(x, y)
    last = case.points[-1]
    for pick, style in (("low_s", "limit dashed"), ("time_s", "limit wide"), ("high_s", "limit dashed")):
        points = [(last.nodes, last.time_s), *((each.nodes, getattr(each, pick)) for each in known if each.nodes > last.nodes)]
        picture.line([(x.at(nodes), y.at(value * 1e6)) for nodes, value in points], style)
    for each in every:
        low, high = each.low_s, each.high_s
        if low is not None and high is not None:
            picture.line([(x.at(each.nodes), y.at(end * 1e6)) for end in (low, high)], "s0")
        is_measured = isinstance(each, MeasuredPoint)
        text = f"{plural(each.nodes, 'node')}, {'measured' if is_measured else 'predicted'}: {format_span(each.time_s or 0.0, low, high)}"
        picture.point(x.at(each.nodes), y.at((each.time_s or 0.0) * 1e6), 0 if is_measured else 1, "s0" if is_measured else "s1", text)
    rows = [
        [str(each.nodes), "measured" if isinstance(each, MeasuredPoint) else "predicted",
         *(format_time(value) if value else "–" for value in (each.time_s, each.low_s, each.high_s))]
        for each in every
    ]  # fmt: skip
    caption = f"{name}: {case.model.render() if case.model else ''}; {check_sentence(case)}."
    table = Table(("nodes", "", "time µs", "low µs", "high µs"), rows, frozenset({0, 2, 3, 4}))
    return Chart(f"predict-{number}", name, caption, _MADE, picture.markup(name), table, picture.tooltips)
