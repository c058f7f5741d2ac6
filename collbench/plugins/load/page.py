"""The section "Interference": the victims' times with aggressors off and on, by pattern and level."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from collbench.analysis.outcome import Outcome
from collbench.plugins.load.text import INTERFERENCE, factor_text, remarks, row_name, sorted_rows, times_frame, title
from collbench.report.charts import ROLES, RatioLine, RatioMark, RatioPanel
from collbench.report.forms import frame_of
from collbench.report.frame import printable
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.picture import ratio_chart

if TYPE_CHECKING:
    from collbench.plugins.load.records import LoadRow
    from collbench.report.material import Material

MOST_LINES = 40
_LEAST = 1.04  # so that equal times look equal
_AXIS = "median time with aggressors / median time without, logarithmic"
_METHOD = (
    "A mark is the factor of the median: the victims' time while aggressors send, divided by that without, as the geometric mean over "
    "pairs of blocks. The line is its 95 % interval. At a target of 0 % no aggressor sends: the factor must be 1 within its interval."
)
_OUTCOMES = {"interference": Outcome.SLOWER, "no interference": Outcome.NO_CHANGE, "inconclusive": Outcome.INCONCLUSIVE}


def section(material: Material) -> Section | None:
    """Return the section, or None if no run measured interference."""
    runs = material.of_kind("load")
    if not runs:
        return None
    texts: list[str] = []
    tables: list[tuple[str, Table]] = []
    charts: list[Chart] = []
    for run, rows in runs:
        name = f"{printable(run.path.resolve().name)}: " if len(runs) > 1 else ""
        for head, group in groupby(rows, key=lambda row: title([row])):
            shown = list(group)
            tables.append((f"{name}{head}", Table.of(frame_of(INTERFERENCE, shown))))
            chart = _chart(f"load-{len(charts)}", f"{name}{head}", shown)
            if chart:
                charts.append(chart)
            times = times_frame(shown)
            if times.records:
                tables.append((f"{name}times of the victims, with the intervals of the quantiles", Table.of(times)))
            texts += [f"{name}{text}" for text in remarks(shown)]
    return Section("load", "Interference of other ranks", list(dict.fromkeys(texts)), tables, charts)


def _chart(key: str, name: str, rows: Sequence[LoadRow]) -> Chart | None:
    """Return the factors of the rows; None if nothing was measured."""
    drawn = [row for row in sorted_rows(rows) if row.factor.value][:MOST_LINES]
    if not drawn:
        return None
    panel = RatioPanel("", [_line(row) for row in drawn], _AXIS, _LEAST)
    title = f"Time with aggressors / time without: {name}"
    worst = max(drawn, key=lambda row: row.factor.value or 0.0)
    not_drawn = f" Not drawn: {len(rows) - len(drawn)}." if len(rows) > len(drawn) else ""
    caption = f"The largest factor is {factor_text(worst.factor)}, against {row_name(worst)}.{not_drawn}"
    return ratio_chart(Chart(key, title, caption, _METHOD, Table.of(frame_of(INTERFERENCE, drawn))), panel)


def _line(row: LoadRow) -> RatioLine:
    factor = row.factor
    assert factor.value is not None
    outcome = _OUTCOMES[row.verdict]
    interval = None if factor.low is None or factor.high is None else (factor.low, factor.high)
    tooltip = f"{row_name(row)}\n{row.verdict}, {factor_text(factor)}"
    marks = [RatioMark(factor.value, outcome, ROLES[outcome])]
    return RatioLine(row_name(row), marks, interval, words=f"{factor_text(factor)} {row.verdict}", tooltip=tooltip)
