"""Several runs: the first one as the baseline, the others against it, with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log2, log10
from typing import TYPE_CHECKING, Any

from collbench.analysis.compare import CaseRatio, Comparison, largest_first, why_nothing_in_common, worst_first
from collbench.analysis.launches import known, sort_time, time_of
from collbench.analysis.outcome import Outcome
from collbench.report.cases import NOTHING, CaseColumn, shown_columns, times
from collbench.report.compare import foot, marked_outcome, ratio_doubtful, remarks, side_title
from collbench.report.headlines import short
from collbench.report.html.chart import (
    BAD,
    INK,
    PAPER,
    SOFT,
    Chart,
    LineLabel,
    Section,
    Table,
    Tooltip,
    cut,
    log_axis,
    panel,
    series_color,
    size_axis,
    spots,
    svg_of,
    ticks_within,
    write_labels,
)
from collbench.report.html.material import Material
from collbench.report.html.sweep import (
    Curve,
    Point,
    SizeSeries,
    SweepChartInput,
    chart_panel,
    curve_spots,
    curves_of,
    describe_times,
    draw_curves,
    remark,
    sheets,
    size_table,
    span,
    state_of,
)
from collbench.report.outcome_text import describe, describe_comparison
from collbench.report.plan import PlanSummary
from collbench.results.row import Row
from collbench.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# A forest plot: a line per case with its ratio and its interval, 1 marked, the worst at the top.

MOST_LINES = 40
_WIDTH, _LINE = 900, 19  # pixels
_MARGINS = (290, 276, 14, 44)
_LONGEST_NAME, _LONGEST_WORDS = 46, 50
_MOST = 5.0  # powers of two to either side; larger values are drawn at the edge
_LEAST = 0.06  # powers of two, 4 %, so that equal runs look equal
_TICKS = (1, 2, 0.5, 1.5, 0.7, 4, 0.25, 1.2, 0.8, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 8, 0.125, 16, 0.0625, 32, 0.03125)


@dataclass(frozen=True)
class Interval:
    """A line of the plot.

    value, low, high  the ratio with its interval; None: it has none
    words             the text at its right; `tooltip` is the text of its tooltip
    outcome           which marker and color
    doubtful          drawn hollow
    """

    name: str
    value: float
    low: float | None
    high: float | None
    words: str
    tooltip: str
    outcome: Outcome
    doubtful: bool


def forest(lines: Sequence[Interval], key: str, title: str) -> tuple[str, list[Tooltip]]:
    """Return the drawing of one line or more, and its spots."""
    figure, axes = panel(_WIDTH, sum(_MARGINS[2:]) + _LINE * len(lines), _MARGINS)
    _axis(axes, lines)
    for place, each in enumerate(lines):
        _draw(axes, place, each)
    return svg_of(figure, key, title), spots(
        axes, [_level(each.value) for each in lines], list(map(float, range(len(lines)))), [each.tooltip for each in lines]
    )


def _level(ratio: float) -> float:
    """Return the position of a ratio: half and double are equally far from 1."""
    return max(-_MOST, min(_MOST, log2(ratio)))


def _axis(axes: Axes, lines: Sequence[Interval]) -> None:
    levels = [_level(end) for each in lines for end in (each.value, each.low, each.high) if end]
    low, high = min(-_LEAST, *levels), max(_LEAST, *levels)
    spare = 0.06 * (high - low)
    axes.set_xlim(low - spare, high + spare)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    ticks = ticks_within(_TICKS, low - spare, high + spare, (high - low + 2 * spare) / 8)
    axes.set_xticks([log2(tick) for tick in ticks], [f"×{tick:g}" for tick in ticks])
    axes.set_yticks([])
    axes.set_xlabel("← faster · time of the candidate / time of the baseline · slower →")
    axes.axvline(0, color=INK, linewidth=1)


def _draw(axes: Axes, place: int, each: Interval) -> None:
    """Draw an interval as a bar, and its value as a marker that points to its side, hollow if the value is doubtful."""
    color = {Outcome.SLOWER: BAD, Outcome.FASTER: series_color(0)}.get(each.outcome, SOFT)
    marker = {Outcome.SLOWER: ">", Outcome.FASTER: "<", Outcome.NO_CHANGE: "o"}.get(each.outcome, "D")
    if each.low is not None and each.high is not None:
        axes.plot([_level(each.low), _level(each.high)], [place, place], color=color, linewidth=2, solid_capstyle="butt")
    hollow = each.doubtful or each.low is None
    axes.plot([_level(each.value)], [place], marker=marker, markersize=6, color=color, markerfacecolor=PAPER if hollow else color)
    for text, at, align, room in ((each.name, -8, "right", _LONGEST_NAME), (each.words, 8, "left", _LONGEST_WORDS)):
        corner = (0 if at < 0 else 1, place)
        axes.annotate(
            text if len(text) <= room else f"{text[: room - 1]}…", corner, xycoords=axes.get_yaxis_transform(), xytext=(at, 0),
            textcoords="offset pixels", ha=align, va="center", fontsize=10.5, color=INK, annotation_clip=False, parse_math=False,
        )  # fmt: skip


# Backend against backend: the ratio of their times by size.

# Columns that must be equal for a comparison of two rows. Differences in others are different methods.
_SAME = ("device", "dtype", "redop", "root", "mode", "in_place", "buffers", "window", "group", "ranks", "nodes", "traffic")
_WORDS = {"in_place": "placing", "redop": "reduction"}
_TEXT = (
    "How many times as long one backend takes as another, for the same case: above 1 it is slower. Rows of another mode, buffers or "
    "placing are not compared."
)
_FURTHEST = 1e6  # a larger ratio means that a file is damaged


@dataclass(frozen=True)
class ComparedRows:
    """A row and the one that it is compared with."""

    row: Row
    base: Row
    ratio: CaseRatio


def section_ratios(material: Material) -> Section | None:
    """Return the section, or None if no case was measured on two backends."""
    all_sheets = list(sheets(material))
    if all(len(sheet.series) < 2 for sheet in all_sheets):
        return None
    base = _base(all_sheets)
    charts = [chart for sheet in all_sheets if (chart := _chart_ratios(sheet, base)) is not None]
    texts = [text for sheet in all_sheets if (text := _not_compared(sheet))]
    return Section("ratios", "Backend against backend", [_TEXT, *dict.fromkeys(texts)], (), charts) if charts or texts else None


def _base(found: Sequence[SweepChartInput]) -> list[str]:
    """Return the backends. The first one, with which all others are compared, is the fastest in most cases. Ties are ordered by name."""
    wins: Counter[str] = Counter()
    for sheet in found:
        for rows in _cases(sheet).values():
            if len({row.backend for row in rows}) > 1:
                wins[min(rows, key=sort_time).backend] += 1
    names = {row.backend for sheet in found for row in sheet.rows}
    return sorted(names, key=lambda name: (-wins[name], name))


def _cases(sheet: SweepChartInput) -> dict[tuple[Any, ...], list[Row]]:
    """Return the rows with a time that may be compared with each other."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in sheet.rows:
        if time_of(row) is not None:
            found.setdefault((*(getattr(row, name) for name in _SAME), row.size_bytes), []).append(row)
    return found


def _chart_ratios(sheet: SweepChartInput, order: Sequence[str]) -> Chart | None:
    """Return the chart; None if no two rows may be compared."""
    base = next((name for name in order if any(row.backend == name and time_of(row) is not None for row in sheet.rows)), None)
    pairs = {id(pair.row): pair for pair in _pairs(sheet, base)}
    series = [replace(each, rows=[row for row in each.rows if id(row) in pairs]) for each in sheet.series]
    shown = SweepChartInput(sheet.key, sheet.title, [each for each in series if each.rows], sheet.launches)
    curves = curves_of(shown.series, lambda each, row: _point(each, pairs[id(row)]))
    reach = span(curves)
    if base is None or reach is None:
        return None
    name = cut(base)
    key, title = f"ratios-{sheet.key}", f"{sheet.title}: time against {name}"
    figure, axes = chart_panel(curves)
    _scale(axes, shown.sizes, reach, name)
    draw_curves(axes, curves)
    write_labels(axes, [LineLabel(f"as fast as {name}", INK, [(x, 1.0) for x in axes.get_xlim()])], [each.known for each in curves])
    table = size_table(shown, shown.series, lambda _, row: _words_ratios(pairs[id(row)]))
    made = _made(sheet, name)
    return Chart(key, title, _caption_ratios(curves, pairs, name), made, svg_of(figure, key, title), table, curve_spots(axes, curves))


def _pairs(sheet: SweepChartInput, base: str | None) -> Iterator[ComparedRows]:
    """Return each row of another backend or method with the base's row of its case, the one with the library's own choice."""
    for rows in _cases(sheet).values():
        own = sorted((row for row in rows if row.backend == base), key=_choices)
        for row in rows:
            if own and row is not own[0]:
                yield ComparedRows(row, own[0], _ratio(own[0], row))


def _choices(row: Row) -> int:
    """Return how much the library was set to do."""
    return sum(value is not None for value in (row.algorithm, row.protocol, row.registration, row.streams))


def _ratio(base: Row, row: Row) -> CaseRatio:
    """Return the ratio over the medians of launches if both have several, else from within a launch."""
    from collbench.analysis.compare import CaseRatio
    from collbench.analysis.launches import median_of
    from collbench.stats.launches import ratio_of_launches, ratio_of_medians

    a, b = _launches(base), _launches(row)
    if min(len(a), len(b)) > 1:
        return CaseRatio(base, row, ratio_of_launches(a, b), True, (None, None), (len(a), len(b)))
    return CaseRatio(base, row, ratio_of_medians(median_of(base), median_of(row)), False, (None, None))


def _launches(row: Row) -> list[float]:
    """Return the medians of the launches of a combined row."""
    medians = row.evidence.get("launch_medians_s") if row.launches > 1 else None
    return [float(each) for each in medians if known(each)] if isinstance(medians, list) else []


def _point(series: SizeSeries, pair: ComparedRows) -> Point:
    ratio = pair.ratio.time
    name = f"{series.label} {format_size(pair.row.size_bytes)}"
    if ratio is None or not 1 / _FURTHEST < ratio.value < _FURTHEST:
        return Point(pair.row.size_bytes, _state(pair), None, None, None, f"{name}: no ratio")
    low, high = (None, None) if ratio.low is None or ratio.high is None else (ratio.low, ratio.high)
    return Point(pair.row.size_bytes, _state(pair), ratio.value, low, high, f"{name}: {_words_ratios(pair)}{remark(pair.row)}")


def _state(pair: ComparedRows) -> str:
    """Return the row's state, else the base's: the ratio is as doubtful as the worse of the two."""
    return state_of(pair.row) or state_of(pair.base)


def _words_ratios(pair: ComparedRows) -> str:
    """Return "slower +12.0 % (+8.0 to +17.0 %)", with a mark where either of the two is doubtful."""

    return f"{'? ' if _state(pair) else ''}{describe(pair.ratio)}"


def _scale(axes: Axes, sizes: Sequence[int], reach: tuple[float, float], base: str) -> None:
    """Set a logarithmic scale that contains 1, wide enough that noise does not look like a difference."""
    size_axis(axes, sizes)
    low, high = min(reach[0], 0.8), max(reach[1], 1.25)
    spare = 10 ** (0.06 * log10(high / low))
    log_axis(axes, max(low / spare, 1e-7), min(high * spare, 1e7))
    axes.axhline(1, color=INK, linewidth=1)
    axes.set_ylabel(f"times as long as {base}")


def _caption_ratios(curves: Sequence[Curve], pairs: dict[int, ComparedRows], base: str) -> str:
    """Return how often each curve has each of the four outcomes; never an average of the ratios."""
    from collbench.analysis.outcome import MARGIN
    from collbench.report.outcome_text import format_margin

    counts = (_count(each, [pairs[id(row)] for row in each.series.rows]) for each in curves)
    return f"Against {base}: {'; '.join(counts)}. No change: the whole interval is inside {format_margin(MARGIN)}."


def _count(curve: Curve, pairs: Sequence[ComparedRows]) -> str:
    from collbench.analysis.outcome import count_outcomes
    from collbench.report.outcome_text import count_text

    outcomes = count_outcomes(outcome for pair in pairs if (outcome := pair.ratio.outcome) is not None)
    values = [point.value for point in curve.points if point.value is not None]
    low, high = (f"{pick(values):.3g}" if values else "" for pick in (min, max))
    ends = f" ({low if low == high else f'{low} to {high}'} times as long)" if values else ""
    return f"{curve.series.label} at {len(pairs)} size{'' if len(pairs) == 1 else 's'}: {count_text(outcomes, {})}{ends}"


def _made(sheet: SweepChartInput, base: str) -> str:
    return (
        f"The time divided by that of {base} for the same case; a time is {describe_times(sheet)}. "
        "Slower and faster: the whole interval of "
        "the ratio is on one side of 1. "
        f"{base} is the reference because it is the fastest in most cases of this report. The axis is logarithmic: half and twice are "
        "equally far from 1."
    )


def _not_compared(sheet: SweepChartInput) -> str:
    """Return why backends of one operation have no case in common, with what would make them comparable."""
    backends = {row.backend for row in sheet.rows if time_of(row) is not None}
    if len(backends) < 2 or any(len({row.backend for row in rows}) > 1 for rows in _cases(sheet).values()):
        return ""
    differing = [_WORDS.get(name, name) for name in _SAME if not _common(sheet.rows, name)]
    why = f"they differ in {', '.join(differing)}" if differing else "they have no case in common"
    remedy = ": --in-place measures both in place" if differing == ["placing"] else ""
    return f"{sheet.title}: {cut(', '.join(sorted(backends)), 80)} are not compared, {why}{remedy}."


def _common(rows: Iterable[Row], name: str) -> bool:
    """Return whether any value of the field occurs with all backends."""
    values: dict[str, set[Any]] = {}
    for row in rows:
        if time_of(row) is not None:
            values.setdefault(row.backend, set()).add(getattr(row, name))
    return bool(set.intersection(*values.values())) if values else True


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
    drawing, spots = forest([_interval(case, columns) for case in drawn], key, title)
    return Chart(
        key, title, _caption(found, cases, drawn), " ".join([_MADE, *_notes(found)]), drawing, _table(cases, columns), spots, wide=True
    )


def _title(found: Comparison) -> str:
    return f"{short(found.b.name, 80)} against {short(found.a.name, 80)}: time, case by case"


def _columns(found: Comparison) -> list[CaseColumn]:
    """Return what distinguishes the cases."""
    plan = PlanSummary.of([row for case in found.cases for row in (case.a, case.b)])
    return [column for column in shown_columns(plan) if not column.figure]


def _interval(case: CaseRatio, columns: Sequence[CaseColumn]) -> Interval:
    ratio, outcome = case.time, case.outcome
    assert ratio is not None and outcome is not None
    name = " ".join(text for column in columns if (text := short(column.text(case.a), 40)) != NOTHING)
    both = f"baseline {times(case.a)} µs, candidate {times(case.b)} µs"
    tooltip = "\n".join(text for text in (name, marked_outcome(case), both, short(remarks(case), 200)) if text)
    return Interval(name, ratio.value, ratio.low, ratio.high, marked_outcome(case), tooltip, outcome, ratio_doubtful(case) or case.wrong)


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
    return [*what, times(case.a), times(case.b), short(marked_outcome(case)), _bandwidth(case), short(remarks(case))]


def _bandwidth(case: CaseRatio) -> str:
    return NOTHING if case.bandwidth is None else f"{case.bandwidth.value:.3g}"


def _mark(case: CaseRatio) -> str:
    if case.wrong:
        return "wrong"
    return "na" if case.outcome is None else "doubtful" if ratio_doubtful(case) or case.outcome is Outcome.INCONCLUSIVE else ""
