"""Several runs: the first one as the baseline and the others against it, with intervals."""

from __future__ import annotations

from collbench.analysis.compare import CaseRatio, Comparison, largest_first, why_nothing_in_common, worst_first
from collbench.report.charts import RatioPanel, case_line, distinct_names
from collbench.report.compare import case_frame, case_name, foot, side_title
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.picture import ratio_chart
from collbench.report.material import Material
from collbench.report.outcome_text import describe_comparison

MOST_LINES = 40
_LEAST = 1.04  # so that equal runs look equal
_AXIS = "← faster · time of the candidate / time of the baseline · slower →"
_MOST_ROWS = 400
_MADE = (
    "For each case that both runs have, the time of the candidate divided by that of the baseline. Where both have two launches or more: "
    "the medians of their launches, and the 95 % interval of the ratio over launches (Welch on logarithms below six launches, rank "
    "intervals from six on). With one launch on a side: the interval is by how far at least three launches of the same case differ, of the "
    "other side or in the same folder; without such launches nothing is decided. Cases of another mode, buffers or placing are not "
    "compared, and nothing is averaged over sizes."
)


def section(material: Material) -> Section | None:
    """Return a forest plot and a table for every candidate; None if nothing is compared case by case."""
    comparisons = material.comparisons
    if not comparisons or material.alternatives is not None:
        return None
    if material.verdict is None:
        baseline = short(side_title(comparisons[0].a))
        first = f"Baseline (A): {baseline}, the run that was named first; each of the others is a candidate (B)."
    else:
        first = "Baseline (A): the old stack; candidate (B): the new one."
    texts = [first, *map(sentence, comparisons)]
    more = len(material.tables) - 1 - len(comparisons)
    if more > 0 and material.verdict is None:
        texts.append(f"{more} more runs are not compared here: `collbench compare` compares any two.")
    names = {id(table): name for table, name in zip(material.tables, distinct_names(material.tables, 80), strict=True)}
    tables = []
    charts: list[Chart] = []
    for comparison in comparisons:
        title = f"{names[id(comparison.b)]} against {names[id(comparison.a)]}: time, case by case"
        if any(case.time for case in comparison.cases):
            charts.append(_chart(len(charts), title, comparison))
        elif comparison.cases:
            tables.append((title, Table.of(case_frame(ordered(comparison)[:_MOST_ROWS]))))
    return Section("against", "Against the baseline", texts, tables, charts)


def sentence(comparison: Comparison) -> str:
    """Return "after (3 launches): 12 cases: 3 slower (+4.0 to +12.0 %), 0 faster, 9 no change (±5 %), 0 inconclusive."."""
    name = short(side_title(comparison.b))
    if not comparison.cases:
        return short(f"{name} has no case in common with it: {why_nothing_in_common(comparison)}.", 600)
    sides = ((comparison.only_a, "baseline"), (comparison.only_b, "candidate"))
    only = [f"{len(rows)} only in the {side}" for rows, side in sides if rows]
    return f"{name}: {', '.join([describe_comparison(comparison), *only])}."


def ordered(comparison: Comparison) -> list[CaseRatio]:
    """Return the cases, the worst first; of single runs without intervals the largest change first."""
    return largest_first(comparison.cases) if comparison.without_intervals else worst_first(comparison.cases)


def _chart(number: int, title: str, comparison: Comparison) -> Chart:
    frame = case_frame(ordered(comparison)[:_MOST_ROWS])
    shown = [case for case in frame.records if case.time is not None][:MOST_LINES]
    panel = RatioPanel("", [case_line(case, case_name(case, frame)) for case in shown], _AXIS, _LEAST)
    method = " ".join([_MADE, *(f"{short(text, 400)}." for text in foot(comparison))])
    return ratio_chart(Chart(f"against-{number}", title, _caption(comparison, len(shown)), method, Table.of(frame)), panel)


def _caption(comparison: Comparison, drawn: int) -> str:
    """Return the summary, how to read the plot, and what is not drawn."""
    texts = [f"{describe_comparison(comparison)}. To the right of 1: the candidate takes longer."]
    if drawn < len(comparison.cases):
        first = "the largest change" if comparison.without_intervals else "the worst"
        texts.append(f"Drawn are {drawn} of {len(comparison.cases)} cases, {first} first.")
    if len(comparison.cases) > _MOST_ROWS:
        texts.append(f"The table has the worst {_MOST_ROWS}; `collbench compare … --format csv` has all.")
    return " ".join(texts)
