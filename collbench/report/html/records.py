"""Rows as tables of the page: all columns of the text report, or the sizes against the series."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from collbench.report.columns import NOTHING, Column, not_available, remarks, same_for_all, shown_columns, size_of
from collbench.report.html.chart import Table
from collbench.report.html.names import cut
from collbench.report.html.series import Series, Sheet, state_of
from collbench.report.plan import PlanSummary
from collbench.results.row import Row
from collbench.units import format_size

_MOST = 1000  # records of one table: more is for --csv
_LONGEST = 160
_ALWAYS = frozenset({"backend", "time µs", "95 % interval", "busbw GB/s", "of ceiling", "flags"})


def record_table(rows: Sequence[Row]) -> tuple[Table, str]:
    """The rows as the text report shows them, without what is the same in all; and that in words."""
    plan = PlanSummary.of(rows)
    columns = [column for column in shown_columns(plan) if column.title not in ("operation", "size")]
    rows, more = rows[:_MOST], len(rows) - _MOST
    texts = {column.title: [_text(column, row) for row in rows] for column in columns}
    kept = [column for column in columns if column.title in _ALWAYS or len(set(texts[column.title])) > 1]
    same = [f"{column.title} {texts[column.title][0]}" for column in columns if column not in kept and texts[column.title][0] != NOTHING]
    records = list(zip(map(size_of, rows), *(texts[column.title] for column in kept), strict=True))
    right = frozenset({0, *(place for place, column in enumerate(kept, start=1) if column.right)})
    facts = [same_for_all(plan), *same, *([f"{more} more rows: collbench report --csv has all"] if more > 0 else [])]
    states = {number: state for number, row in enumerate(rows) if (state := state_of(row))}
    return Table(["size", *(column.title for column in kept)], records, right, states), " · ".join(filter(None, facts))


def size_table(sheet: Sheet, series: Sequence[Series], text: Callable[[Series, Row], str]) -> Table:
    """One record for each size, one column for each series; a dash where a series lacks the size."""
    sizes = sheet.sizes[:_MOST]
    by_size = [{row.size_bytes: row for row in each.rows} for each in series]
    records = [
        [
            format_size(size),
            *(text(each, rows[size]) if size in rows else NOTHING for each, rows in zip(series, by_size, strict=True)),
        ]
        for size in sizes
    ]
    return Table(["size", *(each.label for each in series)], records, frozenset(range(len(series) + 1)))


def _text(column: Column, row: Row) -> str:
    """A cell; an n/a row has its reason in the place of the flags, and no figures."""
    if row.na is None:
        text = remarks(row) or NOTHING if column.title == "flags" else column.text(row)
    elif column.title == "flags":
        text = not_available(row)
    else:
        text = NOTHING if column.figure else column.text(row)
    return cut(text, _LONGEST)
