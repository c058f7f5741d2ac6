"""`collbench compare`: a comparison of two runs as a table, Markdown, CSV or JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from collbench.analysis.compare import CaseRatio, Comparison, compare, largest_first
from collbench.analysis.differences import Difference
from collbench.analysis.launches import Launches, case_of, figure_of, forced, sentence
from collbench.analysis.outcome import MARGIN
from collbench.errors import FINE
from collbench.plugin import hooks_of, measurement_mode
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
from collbench.units import format_size, plural

STATE = "machine_state_differs"
_RATIO = ("value", "low", "high", "n")


def csv_lines(found: Comparison) -> Iterator[Line]:
    """Yield a record per case, including those of one side only; units are in the names."""
    records = []
    for record in _records(found):
        flat: dict[str, Any] = {}
        for name, value in record.items():
            flat |= {f"{name}_{part}": inner for part, inner in value.items()} if isinstance(value, dict) else {name: value}
        records.append(flat)
    return csv_of(records)


def json_lines(found: Comparison) -> Iterator[Line]:
    """Yield one object: {"schema", "a", "b": {name, launches}, "margin", "summary", "fallen", "cells": […], "differences": […]}.

    "margin" is the largest difference that counts as no change (0.05 is ±5 %). "summary" counts the cases: "slower", "faster",
    "no_change", "inconclusive", and "one_run_each" (of the inconclusive ones), "not_available", "wrong_data", "only_a", "only_b".
    "fallen" has the "links" {host, name, before_bits_per_s, after_bits_per_s} and "ceilings" {operation, backend, model,
    before_bytes_per_s, after_bytes_per_s, limited_before, limited_after} that are lower in b. A difference: {kind, what, a, b}.
    A case: its identity, "size_bytes", "outcome" ("slower", "faster", "no change", "inconclusive", "n/a", "only in A", "only in B"),
    "doubt" (why it is inconclusive, else null), "within" (0.017: the interval allows a difference of 1.7 %),
    "interval_over_launches", "machine_state_differs", "time_ratio" and "busbw_ratio" {value, low, high, n}, and per side "a" and "b"
    {p50_s, ci_low_s, ci_high_s, busbw_bytes_per_s, launches, canary_s, wrong, na, flags}. With rows under load each side also has
    {factor, factor_low, factor_high}, and "time_ratio" of such a row is the ratio of the factors.
    """
    sides = {name: {"name": side.name, "launches": len(side.runs)} for name, side in (("a", found.a), ("b", found.b))}
    differences = [{"kind": each.kind, "what": each.what, "a": each.a, "b": each.b} for each in found.differences]
    summary = {outcome.value.replace(" ", "_"): number for outcome, number in found.summary.outcomes.items()}
    summary |= {name: getattr(found.summary, name) for name in ("one_run_each", "not_available", "wrong_data", "only_a", "only_b")}
    links = [
        {"host": link.host, "name": link.name, "before_bits_per_s": link.before, "after_bits_per_s": link.after}
        for link in found.fallen.links
    ]
    names = {"before": "before_bytes_per_s", "after": "after_bytes_per_s"}
    ceilings = [{names.get(name, name): value for name, value in vars(each).items()} for each in found.fallen.ceilings]
    fallen = {"links": links, "ceilings": ceilings}
    head = {"schema": 2, **sides, "margin": found.margin, "summary": summary, "fallen": fallen}
    page = to_page({**head, "cells": list(_records(found)), "differences": differences})
    yield from (Line(text) for text in page.splitlines())


def in_order(found: Comparison) -> list[CaseRatio]:
    """Return the cases series by series, ascending in size; if no ratio has an interval, the largest change first."""
    if found.without_intervals:
        return largest_first(found.cases)
    by_row = {id(case.a): case for case in found.cases}
    return [by_row[id(row)] for row in in_print_order(case.a for case in found.cases)]


def _records(found: Comparison) -> Iterator[dict[str, Any]]:
    """Yield an object for each case, and for each row of one side only."""
    factors = any(row.interference for side in (found.a, found.b) for row in side.rows)
    for case in in_order(found):
        yield _record(case.a, case.b, "n/a" if case.outcome is None else case.outcome.value, factors, case)
    for row in in_print_order(found.only_a):
        yield _record(row, None, "only in A", factors)
    for row in in_print_order(found.only_b):
        yield _record(None, row, "only in B", factors)


def _record(a: Row | None, b: Row | None, outcome: str, factors: bool, case: CaseRatio | None = None) -> dict[str, Any]:
    probe_a, probe_b = case.probe_s if case else (None, None)
    return {
        **{name: getattr(a or b, name) for name in (*SERIES, "size_bytes")},
        "outcome": outcome,
        "doubt": case.doubt.value if case and case.doubt else None,
        "within": case and case.within,
        "interval_over_launches": bool(case and case.across_launches),
        STATE: bool(case and case.state_differs),
        "time_ratio": {name: getattr(case and case.time, name, None) for name in _RATIO},
        "busbw_ratio": {name: getattr(case and case.bandwidth, name, None) for name in _RATIO},
        "a": _figures(a, probe_a, factors),
        "b": _figures(b, probe_b, factors),
    }


def _figures(row: Row | None, probe_s: float | None, factors: bool) -> dict[str, Any]:
    """Return the figures of a side. factors: whether the comparison has rows under load, of which the factors are figures, too."""
    times = row.time_s if row else None
    quantiles = {f"{name}_s": getattr(times, name, None) for name in ("p50", "ci_low", "ci_high")}
    others = {name: getattr(row, name, None) for name in ("busbw_bytes_per_s", "launches", "wrong", "na")}
    under_load = row.interference if row else {}
    known = {f"factor{end and '_'}{end}": under_load.get(end or "factor") for end in ("", "low", "high")}
    return {**quantiles, **others, "canary_s": probe_s, "flags": row.flags if row else (), **(known if factors else {})}


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
    found = compare(a, b, margin)
    for warning in found.warnings:
        write_line(err or sys.stderr, printable(warning))
    forms = {"csv": csv_lines, "json": json_lines, "markdown": markdown_lines}
    lines = table_lines(found, width_of(stream)) if format == "table" else forms[format](found)
    print_lines(lines, stream, wants_color(stream, color))
    return FINE


def table_lines(found: Comparison, width: int | None = None) -> Iterator[Line]:
    """Yield the table within `width` columns: the summary, a line per case, cases of one side only, other differences."""
    head = [Line(f"A: {side_title(found.a)}   B: {side_title(found.b)}", "head"), Line(describe_comparison(found), "head")]
    head += [Line(text, "wrong") for text in found.fallen.sentences()]
    yield from wrapped([Line(printable(line.text), line.style) for line in head], width)
    yield from _case_lines(case_frame(in_order(found)), width)
    yield from wrapped([Line(printable(text), "foot") for text in foot(found)], width)
    yield Line("")
    yield from text_of(_differences(found), width)


def markdown_lines(found: Comparison) -> Iterator[Line]:
    """Yield the comparison as Markdown: a title, a table, the foot and the differences as lists."""
    frame = case_frame(in_order(found))
    title = f"A: {side_title(found.a)} · B: {side_title(found.b)}"
    head = [line for text in (title, describe_comparison(found), *found.fallen.sentences(), frame.title) for line in (text, "")]
    rows = [line.text for line in markdown_of(replace(frame, title=""))]
    feet = [foot(found), [f"A → B: {each.sentence()}" for each in found.differences] or [NO_DIFFERENCE]]
    lists = [line for texts in feet for line in ("", *items(texts))]
    yield from (Line(text) for text in (*map(escaped_line, head), *rows, *lists))


def html_of_comparison(found: Comparison) -> str:
    """Return the comparison as HTML for a notebook: the summary, a line per case, the foot and the other differences."""
    head = [f"A: {side_title(found.a)} · B: {side_title(found.b)}", describe_comparison(found), *found.fallen.sentences()]
    frame = case_frame(in_order(found))
    table = Frame(frame.columns, frame.records, title=frame.title, head=head, foot=foot(found))
    return "\n".join((html_of(table), html_of(_differences(found))))


def side_title(side: Launches) -> str:
    """Return "after (5 launches)", "after (1 launch, resumed)"."""
    resumed = ", resumed" if any(map(sentence, side.runs)) else ""
    return f"{side.name} ({plural(len(side.runs), 'launch')}{resumed})"


def case_frame(cases: Sequence[CaseRatio]) -> Frame[CaseRatio]:
    """Return the table of cases: what distinguishes them, both times, and the outcome; its title is what is the same for all."""
    plan = PlanSummary.of([row for case in cases for row in (case.a, case.b)])

    def of_a(text: Callable[[Row], str]) -> Callable[[CaseRatio], str]:
        return lambda case: text(case.a)

    identity = [Column("", column.title, of_a(column.text), right=column.right) for column in shown_columns(plan) if not column.figure]
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
        title = " · ".join(text for each in identity if each.title != "size" and (text := each.text(case)) != NOTHING)
        blocks.setdefault(title, []).append(case)
    columns = [*(each for each in identity if each.title == "size"), *_OUTCOME]
    for number, (title, those) in enumerate(blocks.items(), start=1):
        yield from text_of(Frame(columns, those, title=title, style=_style, names_hidden=number == len(blocks)), width)


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
    return "na" if case.outcome is None else "doubtful" if ratio_doubtful(case) else ""


def ratio_doubtful(case: CaseRatio) -> bool:
    """Return whether a flag of either side, or the state of the machine, makes the ratio doubtful; it is marked with a "?" then."""
    return case.time is not None and (case.state_differs or bool(doubtful(case.a)) or bool(doubtful(case.b)))


def foot(found: Comparison) -> list[str]:
    """Return how intervals were made, how to read them, what the flags mean, and the cases of one side only."""
    compared = [case for case in found.cases if case.time]
    texts = []
    if any(case.launches for case in compared):
        texts.append(f"intervals: over the medians of {len(found.a.runs)} launches of A and {len(found.b.runs)} of B")
    scattered = sorted({case.scatter for case in compared if case.scatter})
    if scattered:
        where = "each" if len(found.a.runs) == len(found.b.runs) else "on a side"
        number = f"{scattered[0]} to {scattered[-1]} launches" if len(scattered) > 1 else plural(scattered[0], "launch")
        texts.append(_BY_SCATTER.format(where=where, launches=number))
    if any(not case.across_launches for case in compared):
        loaded = any(case.a.mode == UNDER_LOAD for case in compared)
        several = "several times, with one --allocation NAME each" if loaded else "with --launches 5"
        texts.append(_ONE_EACH.format(first=", the largest first" if found.without_intervals else "", several=several))
    if any(case.across_launches for case in compared):
        texts += [_READING, _BY_CHANCE]
    if any(ratio_doubtful(case) for case in compared):
        texts.append("?: unreliable; the flags on the line give the reason")
    if any(case.state_differs for case in found.cases):
        texts.append(f"{_STATE_NAME}: {_STATE_MEANS}")
    texts += named(flag for case in found.cases for flag in (*case.a.flags, *case.b.flags))
    overlap = measurement_mode("overlap") if any(case.a.overlap and case.b.overlap for case in found.cases) else None
    if overlap:
        texts += overlap.compared(*([row for run in side.runs for row in run.rows] for side in (found.a, found.b)))
    if any(UNDER_LOAD in (case.a.mode, case.b.mode) for case in found.cases):
        texts += [text for compared in hooks_of("compared_load") for text in compared(found.cases)]
    texts += compared_consistency(found.a.rows, found.b.rows)
    for side, rows in (("A", found.only_a), ("B", found.only_b)):
        texts += [f"only in {side}: {', '.join(_name(row) for row in in_print_order(rows))}"] if rows else []
    return texts


def _name(row: Row) -> str:
    size, ranks = format_size(row.size_bytes), plural(row.ranks, "rank")
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


def _differences(found: Comparison) -> Frame[Difference]:
    columns: list[Column[Difference]] = [
        Column("", "kind", lambda each: each.kind, drop=1),
        Column("", "what", lambda each: each.what),
        Column("", "A → B", lambda each: each.change(), wrap=True),
    ]
    return Frame(columns, found.differences, title="other differences" if found.differences else NO_DIFFERENCE)
