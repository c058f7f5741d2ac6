"""A comparison for people: as text and as Markdown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from collbench.analysis.cells import forced
from collbench.analysis.combine import Launches
from collbench.analysis.compare import FASTER, NOT_AVAILABLE, SAME, UNKNOWN, CellRatio, Comparison, compare, inverse
from collbench.analysis.resumed import sentence
from collbench.errors import FINE, UsageError
from collbench.report.columns import NOTHING, doubtful, not_available, same_for_all, shown_columns, times
from collbench.report.compare_records import STATE, csv_lines, in_order, json_lines
from collbench.report.flags import explain, printable
from collbench.report.markdown_text import escaped_line, items, table
from collbench.report.plan import PlanSummary, in_print_order
from collbench.report.screen import PlainScreen, wants_color, write_line
from collbench.report.table import Line
from collbench.results.record import Row
from collbench.units import format_percent, format_size

FORMATS = ("table", "csv", "json", "markdown")
_STATE_MEANS = "the canaries of A and B differ by more than 20 %: the ratio may be the machine's state alone; repeat both, interleaved"
_READING = "1.120× slower [1.080, 1.170]: B takes 1.120 times as long as A, with the 95 % interval; busbw B/A is the inverse"
_BY_CHANCE = "a comparison, not a gate: of 100 cells that are equal about 5 read slower or faster by chance"
_WITHIN_ONE = "intervals: within one launch each: another launch may differ by more; measure both with --launches 5"
NO_DIFFERENCE = "what else differs: nothing that the runs recorded"


def compare_runs(a: Path, b: Path, format: str, stream: TextIO, *, err: TextIO | None = None, color: str = "auto") -> int:
    """Prints how B compares with A on `stream`; what could not be read is said on `err`. Returns the exit code, 0.

    Raises UsageError for an unknown format, and for what `analysis.compare.compare` refuses.
    """
    if format not in FORMATS:
        raise UsageError(f"--format '{format}' is unknown: choose from {', '.join(FORMATS)}")
    found = compare(a, b)
    for warning in found.warnings:
        write_line(err or sys.stderr, printable(warning))
    screen = PlainScreen(stream, err or sys.stderr, wants_color(stream, color))
    for line in _WRITERS[format](found):
        screen.data(line)
    return FINE


def table_lines(found: Comparison) -> Iterator[Line]:
    """The table for people: a line per cell, what only one side has, what else differs."""
    cells = in_order(found.cells)
    plan = PlanSummary.of([row for cell in cells for row in (cell.a, cell.b)])
    yield Line(printable(f"A: {side_title(found.a)}   B: {side_title(found.b)}"), "head")
    yield Line(same_for_all(plan), "head")
    lines = _aligned([_titles(plan), *(_cells(cell, plan) for cell in cells)], right=_right(plan))
    yield Line(lines[0], "head")
    for cell, text in zip(cells, lines[1:], strict=True):
        yield Line(text, _style(cell))
    yield from (Line(printable(text), "foot") for text in foot(found))
    yield from (Line(printable(text)) for text in ["", *_differing(found)])


def markdown_lines(found: Comparison) -> Iterator[Line]:
    """The same as Markdown: a title, a table, the foot and the differences as lists."""
    cells = in_order(found.cells)
    plan = PlanSummary.of([row for cell in cells for row in (cell.a, cell.b)])
    head = [f"A: {side_title(found.a)} · B: {side_title(found.b)}", "", same_for_all(plan), ""]
    rows = table(_titles(plan), [_cells(cell, plan) for cell in cells], _right(plan))
    feet = [foot(found), [f"A → B: {each.sentence()}" for each in found.differences] or [NO_DIFFERENCE]]
    lists = [line for texts in feet for line in ("", *items(texts))]
    yield from (Line(text) for text in (*map(escaped_line, head), *rows, *lists))


def b_is(cell: CellRatio) -> str:
    """The cell's ratio in words: "1.120× slower [1.080, 1.170]", "same within 1.7 % [0.990, 1.017]", "n/a in B (reason)"."""
    if cell.b_is == NOT_AVAILABLE or cell.time is None:
        missing = [f"{not_available(row)} in {name}" for name, row in (("A", cell.a), ("B", cell.b)) if row.na is not None]
        return "; ".join(missing) or "no time"
    if cell.b_is == UNKNOWN:
        return "unknown (no interval)"
    shown = inverse(cell.time) if cell.b_is == FASTER else cell.time
    bounds = f"[{_figure(shown.low)}, {_figure(shown.high)}]"
    if cell.b_is == SAME:
        return f"same within {_within(cell)} {bounds}"
    return f"{_figure(shown.value)}× {cell.b_is} {bounds}"


def _within(cell: CellRatio) -> str:
    if cell.time and cell.time.low and cell.time.high and (factor := max(cell.time.high, 1 / cell.time.low)) > 2:
        return f"a factor of {factor:.3g}"
    return format_percent(100 * (cell.within or 0.0))


def side_title(side: Launches) -> str:
    """ "after (5 launches)", "after (1 launch, resumed)"."""
    resumed = ", resumed" if any(map(sentence, side.runs)) else ""
    return f"{side.name} ({len(side.runs)} launch{'es' if len(side.runs) > 1 else ''}{resumed})"


def _titles(plan: PlanSummary) -> list[str]:
    return [*(column.title for column in _columns(plan)), "A µs", "B µs", "time B/A", "busbw B/A", "B is", "flags"]


def _right(plan: PlanSummary) -> list[bool]:
    return [*(column.right for column in _columns(plan)), True, True, True, True, False, False]


def _columns(plan: PlanSummary) -> list[Any]:
    return [column for column in shown_columns(plan) if not column.figure]


def _cells(cell: CellRatio, plan: PlanSummary) -> list[str]:
    what = [column.text(cell.a) for column in _columns(plan)]
    ratios = [NOTHING if ratio is None else _figure(ratio.value) for ratio in (cell.time, cell.bandwidth)]
    mark = "? " if ratio_doubtful(cell) else ""
    return [*what, times(cell.a), times(cell.b), *ratios, f"{mark}{b_is(cell)}", printable(remarks(cell))]


def remarks(cell: CellRatio) -> str:
    """Wrong data first; then the machine's state, and the flags of both sides."""
    words = [f"WRONG {row.wrong} in {name}" for name, row in (("A", cell.a), ("B", cell.b)) if row.wrong]
    if cell.state_differs:
        a, b = (f"{1e9 * (value or 0):.0f}" for value in cell.canary_s)
        words.append(f"{STATE} (canary {a} → {b} ns)")
    for flag in dict.fromkeys((*cell.a.flags, *cell.b.flags)):
        sides = [name for name, row in (("A", cell.a), ("B", cell.b)) if flag in row.flags]
        words.append(flag if len(sides) == 2 else f"{flag} in {sides[0]}")
    return ", ".join(words)


def _style(cell: CellRatio) -> str:
    if cell.a.wrong or cell.b.wrong:
        return "wrong"
    return "na" if cell.b_is == NOT_AVAILABLE else "doubtful" if ratio_doubtful(cell) else ""


def ratio_doubtful(cell: CellRatio) -> bool:
    """Whether the ratio cannot be taken at its word; it is marked with a "?" then."""
    return cell.time is not None and (cell.state_differs or bool(doubtful(cell.a)) or bool(doubtful(cell.b)))


def foot(found: Comparison) -> list[str]:
    """How the intervals were made, how to read them, what the flags mean, and what only one side has."""
    compared = [cell for cell in found.cells if cell.time]
    texts = []
    if any(cell.launches for cell in compared):
        texts.append(f"intervals: over the medians of {len(found.a.runs)} launches of A and {len(found.b.runs)} of B")
    if any(not cell.launches for cell in compared):
        texts.append(_WITHIN_ONE)
    if compared:
        texts += [_READING, _BY_CHANCE]
    if any(ratio_doubtful(cell) for cell in compared):
        texts.append("?: a flag on the line says why the ratio or its interval cannot be taken at its word")
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


def _figure(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}" if 0.1 <= value < 100 else f"{value:.3g}"


def _aligned(table: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    wide = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(t.rjust(w) if r else t.ljust(w) for t, w, r in zip(cells, wide, right, strict=True)).rstrip() for cells in table]


_WRITERS: dict[str, Callable[[Comparison], Iterator[Line]]] = {
    "table": table_lines,
    "csv": csv_lines,
    "json": json_lines,
    "markdown": markdown_lines,
}
