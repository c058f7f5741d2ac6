"""A comparison for people: as text and as Markdown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from collbench.analysis.compare import CellRatio, Comparison, compare
from collbench.analysis.launches import Launches, forced, sentence
from collbench.analysis.outcome import MARGIN
from collbench.errors import FINE, UsageError
from collbench.report.columns import doubtful, same_for_all, shown_columns, times
from collbench.report.compare_records import STATE, csv_lines, in_order, json_lines
from collbench.report.flags import explain, printable
from collbench.report.markdown_text import escaped_line, items, table
from collbench.report.outcome_text import describe, describe_comparison, format_change, format_margin
from collbench.report.plan import PlanSummary, in_print_order
from collbench.report.screen import PlainScreen, wants_color, write_line
from collbench.report.table import Line
from collbench.results.row import Row
from collbench.units import format_size

FORMATS = ("table", "csv", "json", "markdown")
_STATE_MEANS = "the state probes of A and B differ by more than 20 %: the ratio may be the machine's state alone; repeat both, interleaved"
_READING = "outcome: how much longer B takes than A, with the 95 % interval; busbw is the change of the bandwidth"
_BY_CHANCE = "a comparison, not a gate: of 100 unchanged cells about 5 read slower or faster by chance"
_WITHIN_ONE = (
    "intervals: within one launch each, so another launch may differ by more; a difference inside {margin} is no change. "
    "Measure both with --launches 5"
)
_NO_INTERVAL = "one run each, no interval: changes as measured, the largest first; chance may explain them. Compare several runs each"
NO_DIFFERENCE = "what else differs: nothing that the runs recorded"


def compare_runs(
    a: Path, b: Path, format: str, stream: TextIO, *, margin: float = MARGIN, err: TextIO | None = None, color: str = "auto"
) -> int:
    """Print how B compares with A on `stream`, and what could not be read on `err`. Returns the exit code, 0.

    Raises UsageError for an unknown format, and for what `analysis.compare.compare` refuses.
    """
    if format not in FORMATS:
        raise UsageError(f"--format '{format}' is unknown: choose from {', '.join(FORMATS)}")
    found = compare(a, b, margin)
    for warning in found.warnings:
        write_line(err or sys.stderr, printable(warning))
    screen = PlainScreen(stream, err or sys.stderr, wants_color(stream, color))
    for line in _WRITERS[format](found):
        screen.data(line)
    return FINE


def table_lines(found: Comparison) -> Iterator[Line]:
    """Return the table for people: the summary, a line per cell, what only one side has, what else differs."""
    cells = in_order(found)
    plan = PlanSummary.of([row for cell in cells for row in (cell.a, cell.b)])
    yield Line(printable(f"A: {side_title(found.a)}   B: {side_title(found.b)}"), "head")
    yield Line(printable(describe_comparison(found)), "head")
    yield from (Line(printable(text), "wrong") for text in found.fallen.sentences())
    yield Line(same_for_all(plan), "head")
    lines = _aligned([_titles(plan), *(_cells(cell, plan) for cell in cells)], right=_right(plan))
    yield Line(lines[0], "head")
    for cell, text in zip(cells, lines[1:], strict=True):
        yield Line(text, _style(cell))
    yield from (Line(printable(text), "foot") for text in foot(found))
    yield from (Line(printable(text)) for text in ["", *_differing(found)])


def markdown_lines(found: Comparison) -> Iterator[Line]:
    """The same as Markdown: a title, a table, the foot and the differences as lists."""
    cells = in_order(found)
    plan = PlanSummary.of([row for cell in cells for row in (cell.a, cell.b)])
    head = [
        f"A: {side_title(found.a)} · B: {side_title(found.b)}",
        "",
        describe_comparison(found),
        "",
        *(line for text in found.fallen.sentences() for line in (text, "")),
        same_for_all(plan),
        "",
    ]
    rows = table(_titles(plan), [_cells(cell, plan) for cell in cells], _right(plan))
    feet = [foot(found), [f"A → B: {each.sentence()}" for each in found.differences] or [NO_DIFFERENCE]]
    lists = [line for texts in feet for line in ("", *items(texts))]
    yield from (Line(text) for text in (*map(escaped_line, head), *rows, *lists))


def side_title(side: Launches) -> str:
    """ "after (5 launches)", "after (1 launch, resumed)"."""
    resumed = ", resumed" if any(map(sentence, side.runs)) else ""
    return f"{side.name} ({len(side.runs)} launch{'es' if len(side.runs) > 1 else ''}{resumed})"


def _titles(plan: PlanSummary) -> list[str]:
    return [*(column.title for column in _columns(plan)), "A µs", "B µs", "busbw", "outcome", "flags"]


def _right(plan: PlanSummary) -> list[bool]:
    return [*(column.right for column in _columns(plan)), True, True, True, False, False]


def _columns(plan: PlanSummary) -> list[Any]:
    return [column for column in shown_columns(plan) if not column.figure]


def _cells(cell: CellRatio, plan: PlanSummary) -> list[str]:
    what = [column.text(cell.a) for column in _columns(plan)]
    mark = "? " if ratio_doubtful(cell) else ""
    return [*what, times(cell.a), times(cell.b), format_change(cell.bandwidth), f"{mark}{describe(cell)}", printable(remarks(cell))]


def remarks(cell: CellRatio) -> str:
    """Wrong data first; then the machine's state, and the flags of both sides."""
    words = [f"WRONG {row.wrong} in {name}" for name, row in (("A", cell.a), ("B", cell.b)) if row.wrong]
    if cell.state_differs:
        a, b = (f"{1e9 * (value or 0):.0f}" for value in cell.canary_s)
        words.append(f"{STATE} (state probe {a} → {b} ns)")
    for flag in dict.fromkeys((*cell.a.flags, *cell.b.flags)):
        sides = [name for name, row in (("A", cell.a), ("B", cell.b)) if flag in row.flags]
        words.append(flag if len(sides) == 2 else f"{flag} in {sides[0]}")
    return ", ".join(words)


def _style(cell: CellRatio) -> str:
    if cell.a.wrong or cell.b.wrong:
        return "wrong"
    return "na" if cell.outcome is None else "doubtful" if ratio_doubtful(cell) else ""


def ratio_doubtful(cell: CellRatio) -> bool:
    """Whether the ratio cannot be taken at its word; it is marked with a "?" then."""
    return cell.time is not None and (cell.state_differs or bool(doubtful(cell.a)) or bool(doubtful(cell.b)))


def foot(found: Comparison) -> list[str]:
    """How the intervals were made, how to read them, what the flags mean, and what only one side has."""
    compared = [cell for cell in found.cells if cell.time]
    texts = []
    if any(cell.launches for cell in compared):
        texts.append(f"intervals: over the medians of {len(found.a.runs)} launches of A and {len(found.b.runs)} of B")
    if found.without_intervals:
        texts.append(_NO_INTERVAL)
    elif any(not cell.launches for cell in compared):
        texts.append(_WITHIN_ONE.format(margin=format_margin(found.margin)))
    if compared:
        texts.append(_READING)
    if compared and not found.without_intervals:
        texts.append(_BY_CHANCE)
    if any(ratio_doubtful(cell) for cell in compared):
        texts.append("?: unreliable; the flags on the line give the reason")
    if any(cell.state_differs for cell in found.cells):
        texts.append(f"{STATE}: {_STATE_MEANS}")
    texts += explain(flag for cell in found.cells for flag in (*cell.a.flags, *cell.b.flags))
    return [*texts, *_only("A", found.only_a), *_only("B", found.only_b)]


def _only(side: str, rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    return [f"only in {side}: {', '.join(_name(row) for row in in_print_order(rows))}"]


def _name(row: Row) -> str:
    words = [row.operation, format_size(row.size_bytes), row.backend, row.dtype, row.redop, row.mode, row.buffers, forced(row)]
    return " ".join([*(word for word in words if word), f"{row.ranks} ranks"])


def _differing(found: Comparison) -> list[str]:
    if not found.differences:
        return [NO_DIFFERENCE]
    table = [[each.kind, each.what, f"{each.a} → {each.b}"] for each in found.differences]
    return ["what else differs (A → B):", *(f"  {text}" for text in _aligned(table, [False] * 3))]


def _aligned(table: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    wide = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(t.rjust(w) if r else t.ljust(w) for t, w, r in zip(cells, wide, right, strict=True)).rstrip() for cells in table]


_WRITERS: dict[str, Callable[[Comparison], Iterator[Line]]] = {
    "table": table_lines,
    "csv": csv_lines,
    "json": json_lines,
    "markdown": markdown_lines,
}
