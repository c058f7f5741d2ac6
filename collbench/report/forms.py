"""Forms of records of any kind: CSV, JSON lines and a table, from what `collbench.records` declares."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

from msgspec.structs import replace

from collbench.columns import NOTHING, ColumnSpec, declared, unit_of
from collbench.records import R, RecordKind, document, printed
from collbench.report.frame import Column, Display, Frame, Line, csv_table, printable, table_lines, without_empty
from collbench.report.screen import check_format, display_of, print_lines, wrapped
from collbench.results.store import plain, to_line

FORMATS = ("table", "csv", "json")


def frame_of(kind: RecordKind[R], records: Sequence[R]) -> Frame[R]:
    """Return the table of records for people; columns that are empty in all records are left out."""
    ordered = kind.order(records)
    columns = kind.columns or table_columns(kind.record)
    return Frame(without_empty(columns, ordered), ordered, style=kind.style, instead=_reason, names_hidden=True)


def with_columns(kind: RecordKind[R], names: Sequence[str], added: bool) -> RecordKind[R]:
    """Return the kind with these columns in its table, by their names for programs; `added`: after the usual ones."""
    if not names:
        return kind
    values = {value.name: value for value in kind.values}
    usual_columns = (kind.columns or table_columns(kind.record)) if added else ()
    chosen: list[Column[R]] = [replace(Column.of(values[name]), title=values[name].heading, drop=0) for name in names]
    return replace(kind, columns=(*usual_columns, *chosen))


def json_line(record: Any) -> Line:
    """Return the document of a record on one line."""
    return Line(json.dumps(plain(document(record)), allow_nan=False))


def table_columns(record: Any) -> list[Column[Any]]:
    """Return the columns of a table that a class of records declares, in their order."""
    return [column for name, spec, hint in declared(record) for column in _shown(name, spec, hint)]


def _shown(name: str, spec: ColumnSpec, hint: Any) -> Iterator[Column[Any]]:
    """Yield the columns for people of a field: its value, and its interval if it is an estimate with a heading for it."""
    unit = spec.unit or unit_of(name, spec.type or hint)

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
        yield Column("", spec.title, spec.text or text, right=unit.right, drop=spec.drop, cut=spec.cut, wrap=spec.wrap)
    if spec.interval:
        yield Column("", spec.interval, interval, right=unit.right, drop=spec.drop_interval)


def _reason(record: object) -> str | None:
    """Return why a record has no figures; None if it has."""
    reason = getattr(record, "na", None)
    return f"n/a ({reason})" if reason else None


def lines(kind: RecordKind[R], records: Any, display: Display) -> Iterator[Line]:
    """Yield the headline, the table, and the sentences below it; nothing without records."""
    if not records:
        return
    if kind.lines:
        yield from kind.lines(records, display)
        return
    yield Line(printable(kind.title(records)), "head")
    yield from table_lines(frame_of(kind, records), display.width)
    styles = kind.kept(records)
    yield from (Line(printable(sentence), styles.get(sentence, "foot")) for sentence in kind.remarks(records))


def write(
    kind: RecordKind[R],
    records: Any,
    format: str,
    out: TextIO,
    *,
    color: bool,
    run: str = "",
    headed: bool = False,
    quiet: bool = False,
) -> None:
    """Print records in one of FORMATS; the table has them in the order of their kind. Raises UsageError for another format.

    records  a sequence of them, or the result that `kind.records` takes
    run     the name of their folder, in a CSV's first column
    headed  whether records were printed before: a CSV has its header, and a table is separated by an empty line
    quiet   whether notes are left out
    """
    check_format(format, FORMATS, f" for {kind.name}")
    if format == "csv":
        output: Iterable[Line] = csv_lines(kind, kind.records(records), run, headed) if records else ()
    elif format == "json":
        objects = kind.json(records) if kind.json else (to_line(printed(record)) for record in kind.records(records))
        output = map(Line, objects)
    else:
        display = display_of(out, color)
        output = wrapped(lines(kind, records, display), display.width)
        if headed:
            output = (Line(""), *output)
    print_lines(output, out, color, quiet=quiet)


def csv_lines(kind: RecordKind[R], records: Iterable[R], run: str, headed: bool) -> Iterator[Line]:
    """Yield records as CSV. run, headed: as in `write`."""
    names = ["run", *(value.name for value in kind.values)]
    yield from csv_table(names, ([run, *kind.fields_of(record).values()] for record in records), headed)
