"""Forms of records of any kind: CSV, JSON lines and a table, from what `collbench.records` declares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from collbench.columns import NOTHING, ColumnSpec, declared, unit_of
from collbench.records import R, RecordKind
from collbench.report.frame import Column, Frame, Line, csv_table, printable, table_lines, without_empty
from collbench.report.screen import check_format, print_lines, width_of, wrapped
from collbench.results.store import to_line

FORMATS = ("table", "csv", "json")


def frame_of(kind: RecordKind[R], records: Sequence[R]) -> Frame[R]:
    """Return the table of records for people; columns that are empty in all records are left out."""
    ordered = kind.order(records)
    columns = kind.columns or [column for name, spec, _ in declared(kind.record) for column in _shown(name, spec)]
    return Frame(without_empty(columns, ordered), ordered, style=kind.style, instead=_reason, names_hidden=True)


def _shown(name: str, spec: ColumnSpec) -> Iterator[Column[Any]]:
    """Yield the columns for people of a field: its value, and its interval if it is an estimate with a heading for it."""
    unit = spec.unit or unit_of(name)

    def text(record: Any) -> str:
        value = getattr(record, name)
        value = getattr(value, "value", value)
        return NOTHING if value is None else unit.text(value)

    def interval(record: Any) -> str:
        estimate = getattr(record, name)
        if estimate.low is None or estimate.high is None:
            return NOTHING
        return f"{unit.text(estimate.low)}–{unit.text(estimate.high)}"

    if spec.title:
        yield Column("", spec.title, text, right=unit.right, drop=spec.drop, wrap=spec.wrap)
    if spec.interval:
        yield Column("", spec.interval, interval, right=unit.right, drop=spec.drop_interval)


def _reason(record: object) -> str | None:
    """Return why a record has no figures; None if it has."""
    reason = getattr(record, "na", None)
    return f"n/a ({reason})" if reason else None


def lines(kind: RecordKind[R], records: Sequence[R], width: int | None = None) -> Iterator[Line]:
    """Yield the headline, the table, and the sentences below it; nothing without records."""
    if not records:
        return
    if kind.lines:
        yield from kind.lines(records, width)
        return
    yield Line(printable(kind.title(records)), "head")
    yield from table_lines(frame_of(kind, records), width)
    kept = kind.kept(records)
    yield from (Line(printable(sentence), kept.get(sentence, "foot")) for sentence in kind.remarks(records))


def write(
    kind: RecordKind[R],
    records: Sequence[R],
    format: str,
    out: TextIO,
    *,
    color: bool,
    run: str = "",
    headed: bool = False,
    quiet: bool = False,
) -> None:
    """Print records in one of FORMATS; the table has them in the order of their kind. Raises UsageError for another format.

    run     the name of their folder, in a CSV's first column
    headed  whether records were printed before: a CSV has its header, and a table is separated by an empty line
    quiet   whether notes are left out
    """
    check_format(format, FORMATS, f" for {kind.name}")
    if format == "csv":
        found = list(csv_lines(kind, records, run, headed)) if records else []
    elif format == "json":
        found = [Line(to_line(record.as_json())) for record in records]
    else:
        width = width_of(out)
        found = [*([Line("")] if headed else []), *wrapped(lines(kind, records, width), width)]
    print_lines(found, out, color, quiet=quiet)


def csv_lines(kind: RecordKind[R], records: Sequence[R], run: str, headed: bool) -> Iterator[Line]:
    """Yield records as CSV. run, headed: as in `write`."""
    names = ["run", *(value.name for value in kind.values)]
    yield from csv_table(names, ([run, *kind.fields_of(record).values()] for record in records), headed)
