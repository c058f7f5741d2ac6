"""`collbench compare`: a comparison of two runs as a table, Markdown, CSV or JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TextIO

import msgspec
from msgspec.structs import replace

from collbench.analysis.ceilings import CeilingDrops
from collbench.analysis.compare import CaseRatio, Comparison, Summary, compare, largest_first
from collbench.analysis.differences import Difference
from collbench.analysis.launches import Launches, case_of, figure_of, forced, sentence
from collbench.analysis.outcome import MARGIN
from collbench.columns import column, columns_of, figure
from collbench.errors import FINE
from collbench.plugin import hooks_of, measurement_mode
from collbench.records import document, flat_document
from collbench.report.cases import NOTHING, doubtful, figure_text, same_for_all, shown_columns, times
from collbench.report.frame import Column, Frame, Line, TextLayout, csv_of, escaped_line, items, printable
from collbench.report.frame import html_text as html_of
from collbench.report.frame import markdown_lines as markdown_of
from collbench.report.frame import table_lines as text_of
from collbench.report.guidelines import compared_consistency
from collbench.report.headlines import short
from collbench.report.outcome_text import describe, describe_comparison, format_change
from collbench.report.plan import PlanSummary, in_print_order, operation_name
from collbench.report.screen import check_format, print_lines, wants_color, width_of, wrapped, write_line
from collbench.results.flags import flag_name, named
from collbench.results.row import SERIES, UNDER_LOAD, Row
from collbench.results.store import to_page
from collbench.stats.launches import Ratio
from collbench.units import format_size, plural

_CASE_COLUMNS = {
    "doubt": column("Why it is inconclusive; unknown for any other outcome."),
    "within": column("The largest difference that the interval allows: 0.017 is 1.7 %."),
    "across_launches": column("Whether the interval is over launches.", key="interval_over_launches",
                              value=lambda compared: bool(compared.case and compared.case.across_launches)),
    "state_differs": column("Whether the state probes differ by more than 20 %.", key="machine_state_differs",
                            value=lambda compared: bool(compared.case and compared.case.state_differs)),
    "time": column("The time of B over that of A; of rows under load the factors.", key="time_ratio", parts=columns_of(Ratio),
                   value=lambda compared: getattr(compared.case, "time", None) or {}),
    "bandwidth": column("The bus bandwidth of B over that of A.", key="busbw_ratio", parts=columns_of(Ratio),
                        value=lambda compared: getattr(compared.case, "bandwidth", None) or {}),
}  # fmt: skip
_ROW_COLUMNS = {
    "time_s": column("", key="", parts={
        "p50": column("The median time.", key="p50_s"),
        "ci_low": column("The lower end of its 95 % confidence interval.", key="ci_low_s"),
        "ci_high": column("The upper end of its 95 % confidence interval.", key="ci_high_s"),
    }),
    **columns_of(Row, "busbw_bytes_per_s", "launches", "wrong", "na"),
}  # fmt: skip
_LOAD_COLUMNS = {
    "factor": column("Of a row under load, its time over that without load."),
    "low": column("The lower end of its interval.", key="factor_low"),
    "high": column("The upper end of its interval.", key="factor_high"),
}


class SideFigures(msgspec.Struct, frozen=True):
    """The figures of a case on one side, which may lack it."""

    row: Annotated[Row | None, column("", key="", parts=_ROW_COLUMNS)]
    canary_s: Annotated[float | None, column("The median of the state probe.")]
    flags: Annotated[tuple[str, ...], column("Codes of what makes the row less reliable.")]
    interference: Annotated[dict[str, Any] | None, column("", key="", parts=_LOAD_COLUMNS, optional=True)]


class ComparedCase(msgspec.Struct, frozen=True):
    """A case of both sides, or of one: a record of CSV, and an object of JSON."""

    outcome: Annotated[str, column('"slower", "faster", "no change", "inconclusive", "n/a", "only in A" or "only in B".')]
    case: Annotated[CaseRatio | None, column("", key="", parts=_CASE_COLUMNS)]
    a: Annotated[SideFigures, column("The figures of A.")]
    b: Annotated[SideFigures, column("The figures of B.")]

    @property
    @figure("", key="", parts=columns_of(Row, *SERIES, "size_bytes"))
    def row(self) -> Row | None:
        """Return a row of the case."""
        return self.a.row or self.b.row


@dataclass(frozen=True)
class ComparisonObject:
    """A comparison as one object of JSON."""

    schema: Annotated[int, column("The version of this object.")] = field(default=2, init=False)
    a: Annotated[Launches, column("The side A.")]
    b: Annotated[Launches, column("The side B.")]
    margin: Annotated[float, column("The largest difference that counts as no change: 0.05 is ±5 %.")]
    summary: Annotated[Summary, column("The number of cases by outcome.")]
    fallen: Annotated[CeilingDrops, column("The links and ceilings that are lower in B.")]
    cells: Annotated[list[ComparedCase], column("The cases.")]
    differences: Annotated[list[Difference], column("What else differs.")]


def csv_lines(comparison: Comparison) -> Iterator[Line]:
    """Yield a record per case, including those of one side only; units are in the names."""
    return csv_of([flat_document(case) for case in _compared_cases(comparison)])


def json_lines(comparison: Comparison) -> Iterator[Line]:
    """Yield one object."""
    cases = list(_compared_cases(comparison))
    page = ComparisonObject(
        comparison.a, comparison.b, comparison.margin, comparison.summary, comparison.fallen, cases, comparison.differences
    )
    yield from (Line(text) for text in to_page(document(page)).splitlines())


def in_order(comparison: Comparison) -> list[CaseRatio]:
    """Return the cases series by series, ascending in size; if no ratio has an interval, the largest change first."""
    if comparison.without_intervals:
        return largest_first(comparison.cases)
    by_row = {id(case.a): case for case in comparison.cases}
    return [by_row[id(row)] for row in in_print_order(case.a for case in comparison.cases)]


def _compared_cases(comparison: Comparison) -> Iterator[ComparedCase]:
    """Yield each case, and each row of one side only."""
    under_load = any(row.interference for side in (comparison.a, comparison.b) for row in side.rows)

    def side(row: Row | None, probe_s: float | None = None) -> SideFigures:
        interference = row.interference if row else {}
        return SideFigures(row, probe_s, row.flags if row else (), interference if under_load else None)

    for case in in_order(comparison):
        probe_a, probe_b = case.probe_s
        yield ComparedCase(case.outcome or "n/a", case, side(case.a, probe_a), side(case.b, probe_b))
    yield from (ComparedCase("only in A", None, side(row), side(None)) for row in in_print_order(comparison.only_a))
    yield from (ComparedCase("only in B", None, side(None), side(row)) for row in in_print_order(comparison.only_b))


FORMATS = ("table", "csv", "json", "markdown")
_STATE_NAME = "machine state differs"
_STATE_MEANS = "the state probes of A and B differ by more than 20 %, which alone may explain the ratio; repeat both, interleaved"
_READING = "outcome: how much longer B takes than A, with the 95 % confidence interval; busbw is the change of the bandwidth"
_BY_CHANCE = "a comparison, not a gate: of 100 unchanged cases, about 5 are slower or faster by chance"
_ONE_EACH = (
    "one launch each: changes as measured{first}; another launch may differ by as much, so nothing is decided. Measure both {several}"
)
_BY_SCATTER = "intervals: of one launch {where}, by how far {launches} of the same case differ"
NO_DIFFERENCE = "other differences: none in what the runs recorded"


def compare_runs(
    a: Path, b: Path, format: str, stream: TextIO, *, margin: float = MARGIN, err: TextIO | None = None, color: str = "auto"
) -> int:
    """Print the comparison of B with A on `stream`, and warnings of what could not be read on `err`. Returns the exit code, 0.

    Raises UsageError for an unknown format, and for what `analysis.compare.compare` rejects.
    """
    check_format(format, FORMATS)
    comparison = compare(a, b, margin)
    for warning in comparison.warnings:
        write_line(err or sys.stderr, printable(warning))
    forms = {"csv": csv_lines, "json": json_lines, "markdown": markdown_lines}
    lines = table_lines(comparison, width_of(stream)) if format == "table" else forms[format](comparison)
    print_lines(lines, stream, wants_color(stream, color))
    return FINE


def table_lines(comparison: Comparison, width: int | None = None) -> Iterator[Line]:
    """Yield the table within `width` columns: the summary, a line per case, cases of one side only, other differences."""
    head = [Line(f"A: {side_title(comparison.a)}   B: {side_title(comparison.b)}", "head"), Line(describe_comparison(comparison), "head")]
    head += [Line(text, "wrong") for text in comparison.fallen.sentences()]
    yield from wrapped([Line(printable(line.text), line.style) for line in head], width)
    yield from _case_lines(case_frame(in_order(comparison)), width)
    yield from wrapped([Line(printable(text), "foot") for text in foot(comparison)], width)
    yield Line("")
    yield from text_of(_differences(comparison), width)


def markdown_lines(comparison: Comparison) -> Iterator[Line]:
    """Yield the comparison as Markdown: a title, a table, the foot and the differences as lists."""
    frame = case_frame(in_order(comparison))
    title = f"A: {side_title(comparison.a)} · B: {side_title(comparison.b)}"
    head = [line for text in (title, describe_comparison(comparison), *comparison.fallen.sentences(), frame.title) for line in (text, "")]
    rows = [line.text for line in markdown_of(replace(frame, title=""))]
    differences = [f"A → B: {difference.sentence()}" for difference in comparison.differences] or [NO_DIFFERENCE]
    lists = [line for texts in (foot(comparison), differences) for line in ("", *items(texts))]
    yield from map(Line, (*map(escaped_line, head), *rows, *lists))


def html_of_comparison(comparison: Comparison) -> str:
    """Return the comparison as HTML for a notebook: the summary, a line per case, the foot and the other differences."""
    head = [
        f"A: {side_title(comparison.a)} · B: {side_title(comparison.b)}",
        describe_comparison(comparison),
        *comparison.fallen.sentences(),
    ]
    table = replace(case_frame(in_order(comparison)), head=head, foot=foot(comparison))
    return "\n".join((html_of(table), html_of(_differences(comparison))))


def side_title(side: Launches) -> str:
    """Return "after (5 launches)", "after (1 launch, resumed)"."""
    resumed = ", resumed" if any(map(sentence, side.runs)) else ""
    return f"{side.name} ({plural(len(side.runs), 'launch')}{resumed})"


def case_frame(cases: Sequence[CaseRatio]) -> Frame[CaseRatio]:
    """Return the table of cases: what distinguishes them, both times, and the outcome; its title is what is the same for all."""
    plan = PlanSummary.of([row for case in cases for row in (case.a, case.b)])

    def text_of_a(text: Callable[[Row], str]) -> Callable[[CaseRatio], str]:
        return lambda case: text(case.a)

    identity = [Column("", column.title, text_of_a(column.text), right=column.right) for column in shown_columns(plan) if not column.figure]
    return Frame([*identity, *_OUTCOME], cases, title=same_for_all(plan), style=_style, names_hidden=True)


def case_name(case: CaseRatio, frame: Frame[CaseRatio]) -> str:
    """Return what distinguishes a case of the table: "allreduce 1 KiB nccl"."""
    texts = (short(column.text(case), 40) for column in frame.columns[: -len(_OUTCOME)])
    return " ".join(text for text in texts if text != NOTHING)


def _case_lines(frame: Frame[CaseRatio], width: int | None) -> Iterator[Line]:
    """Yield one table, or, where the terminal is too narrow for what identifies a case, a block for each series of sizes."""
    if width is None or TextLayout(replace(frame, columns=frame.columns[:-1]), None).line_width <= width:
        yield from text_of(frame, width)
        return
    yield from wrapped([Line(frame.title, "head")], width)
    identity = frame.columns[: -len(_OUTCOME)]
    blocks: dict[str, list[CaseRatio]] = {}
    for case in frame.records:
        texts = [column.text(case) for column in identity if column.title != "size"]
        blocks.setdefault(" · ".join(text for text in texts if text != NOTHING), []).append(case)
    columns = [*(column for column in identity if column.title == "size"), *_OUTCOME]
    for number, (title, cases) in enumerate(blocks.items(), start=1):
        yield from text_of(Frame(columns, cases, title=title, style=_style, names_hidden=number == len(blocks)), width)


def marked_outcome(case: CaseRatio) -> str:
    """Return the outcome and the change as text, after "? " if it is doubtful."""
    return f"{'? ' if ratio_doubtful(case) else ''}{describe(case)}"


def remarks(case: CaseRatio) -> str:
    """Return wrong data first, then the state of the machine, then the flags of both sides."""
    texts = [f"WRONG {row.wrong} in {name}" for name, row in (("A", case.a), ("B", case.b)) if row.wrong]
    if case.state_differs:
        a, b = (f"{1e9 * (value or 0):.0f}" for value in case.probe_s)
        texts.append(f"{_STATE_NAME} (state probe {a} → {b} ns)")
    for flag in dict.fromkeys((*case.a.flags, *case.b.flags)):
        sides = [name for name, row in (("A", case.a), ("B", case.b)) if flag in row.flags]
        texts.append(flag_name(flag) if len(sides) == 2 else f"{flag_name(flag)} in {sides[0]}")
    return ", ".join(texts)


def _style(case: CaseRatio) -> str:
    if case.a.wrong or case.b.wrong:
        return "wrong"
    if case.outcome is None:
        return "na"
    return "doubtful" if ratio_doubtful(case) else ""


def ratio_doubtful(case: CaseRatio) -> bool:
    """Return whether a flag of either side, or the state of the machine, makes the ratio doubtful; it is marked with a "?" then."""
    return case.time is not None and (case.state_differs or bool(doubtful(case.a)) or bool(doubtful(case.b)))


def foot(comparison: Comparison) -> list[str]:
    """Return how intervals were made, how to read them, what the flags mean, and the cases of one side only."""
    compared = [case for case in comparison.cases if case.time]
    texts = []
    if any(case.launches for case in compared):
        texts.append(f"intervals: over the medians of {len(comparison.a.runs)} launches of A and {len(comparison.b.runs)} of B")
    scattered = sorted({case.scatter for case in compared if case.scatter})
    if scattered:
        where = "each" if len(comparison.a.runs) == len(comparison.b.runs) else "on a side"
        number = f"{scattered[0]} to {scattered[-1]} launches" if len(scattered) > 1 else plural(scattered[0], "launch")
        texts.append(_BY_SCATTER.format(where=where, launches=number))
    if any(not case.across_launches for case in compared):
        loaded = any(case.a.mode == UNDER_LOAD for case in compared)
        several = "several times, with one --allocation NAME each" if loaded else "with --launches 5"
        texts.append(_ONE_EACH.format(first=", the largest first" if comparison.without_intervals else "", several=several))
    if any(case.across_launches for case in compared):
        texts += [_READING, _BY_CHANCE]
    if any(ratio_doubtful(case) for case in compared):
        texts.append("?: unreliable; the flags on the line give the reason")
    if any(case.state_differs for case in comparison.cases):
        texts.append(f"{_STATE_NAME}: {_STATE_MEANS}")
    texts += named(flag for case in comparison.cases for flag in (*case.a.flags, *case.b.flags))
    overlap = measurement_mode("overlap") if any(case.a.overlap and case.b.overlap for case in comparison.cases) else None
    if overlap:
        texts += overlap.compared(*([row for run in side.runs for row in run.rows] for side in (comparison.a, comparison.b)))
    if any(UNDER_LOAD in (case.a.mode, case.b.mode) for case in comparison.cases):
        texts += [text for compared in hooks_of("compared_load") for text in compared(comparison.cases)]
    texts += compared_consistency(comparison.a.rows, comparison.b.rows)
    for side, rows in (("A", comparison.only_a), ("B", comparison.only_b)):
        if rows:
            texts.append(f"only in {side}: {', '.join(_name(row) for row in in_print_order(rows))}")
    return texts


def _name(row: Row) -> str:
    size = format_size(row.size_bytes)
    ranks = plural(row.ranks, "rank")
    parts = (operation_name(row.operation), size, row.backend, row.dtype, row.redop, row.mode, row.buffers, row.traffic, forced(row), ranks)
    return " ".join(filter(None, parts))


def _figure(row: Row) -> str:
    """Return the time, or the factor of a row under load: "1.82×"."""
    figure = figure_of(row)
    return figure_text(case_of(row), figure) if row.mode == UNDER_LOAD and figure is not None else times(row)


_OUTCOME: tuple[Column[CaseRatio], ...] = (
    Column("", "A µs", lambda case: _figure(case.a), right=True, drop=1),
    Column("", "B µs", lambda case: _figure(case.b), right=True, drop=1),
    Column("", "busbw", lambda case: format_change(case.bandwidth), right=True, drop=2),
    Column("", "outcome", marked_outcome, cut=True),
    Column("", "flags", remarks, drop=3),
)


def _differences(comparison: Comparison) -> Frame[Difference]:
    columns: list[Column[Difference]] = [
        Column("", "kind", lambda difference: difference.kind, drop=1),
        Column("", "what", lambda difference: difference.what),
        Column("", "A → B", lambda difference: difference.change(), wrap=True),
    ]
    return Frame(columns, comparison.differences, title="other differences" if comparison.differences else NO_DIFFERENCE)
