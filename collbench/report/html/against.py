"""Several runs: the first one as the baseline, the others against it, with intervals."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.analysis.compare import CaseRatio, Comparison, largest_first, why_nothing_in_common, worst_first
from collbench.analysis.outcome import Outcome
from collbench.report.cases import NOTHING, CaseColumn, shown_columns, times
from collbench.report.compare import foot, ratio_doubtful, remarks, side_title
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.forest import FASTER, SAME, SLOWER, UNKNOWN, ForestLine, ForestMark, forest
from collbench.report.html.material import Material
from collbench.report.outcome_text import describe, describe_comparison
from collbench.report.plan import PlanSummary

MOST_LINES = 40
_LEAST = 1.04  # so that equal runs look equal
_AXIS = "← faster · time of the candidate / time of the baseline · slower →"
_STYLES = {
    Outcome.SLOWER: (SLOWER, "bad"),
    Outcome.FASTER: (FASTER, "s0"),
    Outcome.NO_CHANGE: (SAME, "quiet"),
    Outcome.INCONCLUSIVE: (UNKNOWN, "quiet"),
}
_MOST_ROWS = 400
_MADE = (
    "For each case that both runs have, the time of the candidate divided by that of the baseline. Where both have two launches or more: "
    "the medians of their launches, and the 95 % interval of the ratio over launches (Welch on logarithms below six launches, rank "
    "intervals from six on). Else the medians and intervals of one launch each, in quadrature on the logarithm; another launch may differ "
    "by more. Cases of another mode, buffers or placing are not compared, and nothing is averaged over sizes."
)


def section(material: Material) -> Section | None:
    """Return a forest plot and a table for every candidate; None if nothing is compared."""
    found = material.comparisons
    if not found:
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
    tables = [(_title(each), _table(ordered(each), _columns(each))) for each in found if each.cases and each not in drawn]
    return Section("against", "Against the baseline", texts, tables, [_chart(number, each) for number, each in enumerate(drawn)])


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


def _chart(number: int, found: Comparison) -> Chart:
    cases, columns = ordered(found), _columns(found)
    drawn = [case for case in cases if case.time is not None][:MOST_LINES]
    key, title = f"against-{number}", _title(found)
    drawing, tooltips = forest([_line(case, columns) for case in drawn], title, _AXIS, _LEAST)
    method = " ".join([_MADE, *_notes(found)])
    return Chart(key, title, _caption(found, cases, drawn), method, drawing, _table(cases, columns), tooltips, wide=True)


def _title(found: Comparison) -> str:
    return f"{short(found.b.name, 80)} against {short(found.a.name, 80)}: time, case by case"


def _columns(found: Comparison) -> list[CaseColumn]:
    """Return what distinguishes the cases."""
    plan = PlanSummary.of([row for case in found.cases for row in (case.a, case.b)])
    return [column for column in shown_columns(plan) if not column.figure]


def _line(case: CaseRatio, columns: Sequence[CaseColumn]) -> ForestLine:
    ratio, outcome = case.time, case.outcome
    assert ratio is not None and outcome is not None
    name = " ".join(text for column in columns if (text := short(column.text(case.a), 40)) != NOTHING)
    both = f"baseline {times(case.a)} µs, candidate {times(case.b)} µs"
    tooltip = "\n".join(text for text in (name, _words(case), both, short(remarks(case), 200)) if text)
    interval = None if ratio.low is None or ratio.high is None else (ratio.low, ratio.high)
    shape, style = _STYLES[outcome]
    hollow = " open" if ratio_doubtful(case) or case.wrong or interval is None else ""
    return ForestLine(name, [ForestMark(ratio.value, shape, f"{style}{hollow}")], _words(case), tooltip, interval)


def _caption(found: Comparison, cases: Sequence[CaseRatio], drawn: Sequence[CaseRatio]) -> str:
    """Return the summary, how to read the plot, and what is not drawn."""
    texts = [f"{describe_comparison(found)}. To the right of 1: the candidate takes longer."]
    if len(drawn) < len(cases):
        first = "the largest change" if found.without_intervals else "the worst"
        texts.append(f"Drawn are {len(drawn)} of {len(cases)} cases, {first} first.")
    if len(cases) > _MOST_ROWS:
        texts.append(f"The table has the worst {_MOST_ROWS}; `collbench compare … --format csv` has all.")
    return " ".join(texts)


def _notes(found: Comparison) -> list[str]:
    """Return the sentences below the comparison's table."""
    return [f"{short(text, 400)}." for text in foot(found)]


def _table(cases: Sequence[CaseRatio], columns: Sequence[CaseColumn]) -> Table:
    shown = cases[:_MOST_ROWS]
    head = [*(column.title for column in columns), "baseline µs", "candidate µs", "outcome", "busbw ratio", "flags"]
    rows = [_record(case, columns) for case in shown]
    right = {place for place, column in enumerate(columns) if column.right} | {len(columns), len(columns) + 1, len(columns) + 3}
    return Table(head, rows, frozenset(right), {place: mark for place, case in enumerate(shown) if (mark := _mark(case))})


def _record(case: CaseRatio, columns: Sequence[CaseColumn]) -> list[str]:
    what = [short(column.text(case.a), 80) for column in columns]
    return [*what, times(case.a), times(case.b), short(_words(case)), _bandwidth(case), short(remarks(case))]


def _words(case: CaseRatio) -> str:
    return f"{'? ' if ratio_doubtful(case) else ''}{describe(case)}"


def _bandwidth(case: CaseRatio) -> str:
    return NOTHING if case.bandwidth is None else f"{case.bandwidth.value:.3g}"


def _mark(case: CaseRatio) -> str:
    if case.wrong:
        return "wrong"
    return "na" if case.outcome is None else "doubtful" if ratio_doubtful(case) or case.outcome is Outcome.INCONCLUSIVE else ""
