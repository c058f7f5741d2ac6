"""Several runs: the first one as the baseline, the others against it, with intervals."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.analysis.compare import CellRatio, Comparison, largest_first, why_nothing_in_common, worst_first
from collbench.analysis.outcome import Outcome
from collbench.report.columns import NOTHING, Column, shown_columns, times
from collbench.report.compare import foot, ratio_doubtful, remarks, side_title
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.forest import MOST_LINES, Interval, forest
from collbench.report.html.material import Material
from collbench.report.outcome_text import describe, describe_comparison
from collbench.report.plan import PlanSummary

_MOST_ROWS = 400
_MADE = (
    "For each cell that both runs have, the time of the candidate divided by that of the baseline. Where both have two launches or more: "
    "the medians of their launches, and the 95 % interval of the ratio over launches (Welch on logarithms below six launches, rank "
    "intervals from six on). Else the medians and intervals of one launch each, in quadrature on the logarithm; another launch may differ "
    "by more. Cells of another mode, buffers or placing are not compared, and nothing is averaged over sizes."
)


def section(material: Material) -> Section | None:
    """Return a forest plot and a table for every candidate; None where nothing is compared."""
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
    drawn = [each for each in found if any(cell.time for cell in each.cells)]
    tables = [(_title(each), _table(ordered(each), _columns(each))) for each in found if each.cells and each not in drawn]
    return Section("against", "Against the baseline", texts, tables, [_chart(number, each) for number, each in enumerate(drawn)])


def sentence(found: Comparison) -> str:
    """Return "after (3 launches): 12 cells: 3 slower (+4.0 to +12.0 %), 0 faster, 9 no change (±5 %), 0 inconclusive."."""
    name = short(side_title(found.b))
    if not found.cells:
        return short(f"{name} has no cell in common with it: {why_nothing_in_common(found)}.", 600)
    only = [f"{len(rows)} only in the {where}" for rows, where in ((found.only_a, "baseline"), (found.only_b, "candidate")) if rows]
    return f"{name}: {', '.join([describe_comparison(found), *only])}."


def ordered(found: Comparison) -> list[CellRatio]:
    """Return the cells, the worst first; of single runs without intervals the largest change first."""
    return largest_first(found.cells) if found.without_intervals else worst_first(found.cells)


def _chart(number: int, found: Comparison) -> Chart:
    cells, columns = ordered(found), _columns(found)
    drawn = [cell for cell in cells if cell.time is not None][:MOST_LINES]
    key, title = f"against-{number}", _title(found)
    drawing, spots = forest([_interval(cell, columns) for cell in drawn], key, title)
    return Chart(
        key, title, _says(found, cells, drawn), " ".join([_MADE, *_notes(found)]), drawing, _table(cells, columns), spots, wide=True
    )


def _title(found: Comparison) -> str:
    return f"{short(found.b.name, 80)} against {short(found.a.name, 80)}: time, cell by cell"


def _columns(found: Comparison) -> list[Column]:
    """What tells the cells apart."""
    plan = PlanSummary.of([row for cell in found.cells for row in (cell.a, cell.b)])
    return [column for column in shown_columns(plan) if not column.figure]


def _interval(cell: CellRatio, columns: Sequence[Column]) -> Interval:
    ratio, outcome = cell.time, cell.outcome
    assert ratio is not None and outcome is not None
    name = " ".join(text for column in columns if (text := short(column.text(cell.a), 40)) != NOTHING)
    both = f"baseline {times(cell.a)} µs, candidate {times(cell.b)} µs"
    told = "\n".join(text for text in (name, _words(cell), both, short(remarks(cell), 200)) if text)
    return Interval(name, ratio.value, ratio.low, ratio.high, _words(cell), told, outcome, ratio_doubtful(cell) or cell.wrong)


def _says(found: Comparison, cells: Sequence[CellRatio], drawn: Sequence[CellRatio]) -> str:
    """Return the summary, how to read the plot, and what is not drawn."""
    texts = [f"{describe_comparison(found)}. To the right of 1: the candidate takes longer."]
    if len(drawn) < len(cells):
        first = "the largest change" if found.without_intervals else "the worst"
        texts.append(f"Drawn are {len(drawn)} of {len(cells)} cells, {first} first.")
    if len(cells) > _MOST_ROWS:
        texts.append(f"The table has the worst {_MOST_ROWS}; `collbench compare … --format csv` has all.")
    return " ".join(texts)


def _notes(found: Comparison) -> list[str]:
    """What the comparison says below its table, as sentences."""
    return [f"{short(text, 400)}." for text in foot(found)]


def _table(cells: Sequence[CellRatio], columns: Sequence[Column]) -> Table:
    shown = cells[:_MOST_ROWS]
    head = [*(column.title for column in columns), "baseline µs", "candidate µs", "outcome", "busbw ratio", "flags"]
    rows = [_record(cell, columns) for cell in shown]
    right = {place for place, column in enumerate(columns) if column.right} | {len(columns), len(columns) + 1, len(columns) + 3}
    return Table(head, rows, frozenset(right), {place: mark for place, cell in enumerate(shown) if (mark := _mark(cell))})


def _record(cell: CellRatio, columns: Sequence[Column]) -> list[str]:
    what = [short(column.text(cell.a), 80) for column in columns]
    return [*what, times(cell.a), times(cell.b), short(_words(cell)), _bandwidth(cell), short(remarks(cell))]


def _words(cell: CellRatio) -> str:
    return f"{'? ' if ratio_doubtful(cell) else ''}{describe(cell)}"


def _bandwidth(cell: CellRatio) -> str:
    return NOTHING if cell.bandwidth is None else f"{cell.bandwidth.value:.3g}"


def _mark(cell: CellRatio) -> str:
    if cell.wrong:
        return "wrong"
    return "na" if cell.outcome is None else "doubtful" if ratio_doubtful(cell) or cell.outcome is Outcome.INCONCLUSIVE else ""
