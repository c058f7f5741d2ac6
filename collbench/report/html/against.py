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
    found = material.comparisons
    if not found or material.alternatives is not None:
        return None
    if material.verdict is None:
        first = f"Baseline (A): {short(side_title(found[0].a))}, the run that was named first; each of the others is a candidate (B)."
    else:
        first = "Baseline (A): the old stack; candidate (B): the new one."
    texts = [first, *map(sentence, found)]
    more = len(material.tables) - 1 - len(found)
    if more > 0 and material.verdict is None:
        texts.append(f"{more} more runs are not compared here: `collbench compare` compares any two.")
    drawn = [each for each in found if any(case.time for case in each.cases)]
    names = {id(table): name for table, name in zip(material.tables, distinct_names(material.tables, 80), strict=True)}
    titles = {id(each): f"{names[id(each.b)]} against {names[id(each.a)]}: time, case by case" for each in found}
    tables = [(titles[id(each)], Table.of(case_frame(ordered(each)[:_MOST_ROWS]))) for each in found if each.cases and each not in drawn]
    charts = [_chart(number, titles[id(each)], each) for number, each in enumerate(drawn)]
    return Section("against", "Against the baseline", texts, tables, charts)


def sentence(found: Comparison) -> str:
    """Return "after (3 launches): 12 cases: 3 slower (+4.0 to +12.0 %), 0 faster, 9 no change (±5 %), 0 inconclusive."."""
    name = short(side_title(found.b))
    if not found.cases:
        return short(f"{name} has no case in common with it: {why_nothing_in_common(found)}.", 600)
    only = [f"{len(rows)} only in the {where}" for rows, where in ((found.only_a, "baseline"), (found.only_b, "candidate")) if rows]
    return f"{name}: {', '.join([describe_comparison(found), *only])}."


def ordered(found: Comparison) -> list[CaseRatio]:
    """Return the cases, the worst first; of single runs without intervals the largest change first."""
    return largest_first(found.cases) if found.without_intervals else worst_first(found.cases)


def _chart(number: int, title: str, found: Comparison) -> Chart:
    frame = case_frame(ordered(found)[:_MOST_ROWS])
    shown = [case for case in frame.records if case.time is not None][:MOST_LINES]
    panel = RatioPanel("", [case_line(case, case_name(case, frame)) for case in shown], _AXIS, _LEAST)
    method = " ".join([_MADE, *(f"{short(text, 400)}." for text in foot(found))])
    return ratio_chart(Chart(f"against-{number}", title, _caption(found, len(shown)), method, Table.of(frame)), panel)


def _caption(found: Comparison, drawn: int) -> str:
    """Return the summary, how to read the plot, and what is not drawn."""
    texts = [f"{describe_comparison(found)}. To the right of 1: the candidate takes longer."]
    if drawn < len(found.cases):
        first = "the largest change" if found.without_intervals else "the worst"
        texts.append(f"Drawn are {drawn} of {len(found.cases)} cases, {first} first.")
    if len(found.cases) > _MOST_ROWS:
        texts.append(f"The table has the worst {_MOST_ROWS}; `collbench compare … --format csv` has all.")
    return " ".join(texts)
