"""Records: what a run stores, one line each, and their kinds, of which all outputs are made (`report.forms`, `api.frames`).

The fields of a record declare their columns (`collbench.columns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec

from collbench.columns import ColumnSpec, ValueColumn, column_value, declared, figures_of, parts_of, value_columns
from collbench.plugin import record_files
from collbench.reason import Fact, as_json
from collbench.results.reader import decode_record, read_lines

if TYPE_CHECKING:
    from collbench.report.frame import Column, Display, Line


def stored(value: Any) -> Any:
    """Return a value of a record as it is stored: nested records as objects, facts as `reason.as_json` has them."""
    if isinstance(value, Fact):
        return as_json(value)
    if hasattr(value, "as_json"):
        return value.as_json()
    if isinstance(value, msgspec.Struct) or is_dataclass(value):
        names = value.__struct_fields__ if isinstance(value, msgspec.Struct) else [field.name for field in fields(value)]
        return {name: stored(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {key: stored(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [stored(inner) for inner in value]
    return value


def stored_field(name: str) -> Callable[[Any], Any]:
    """Return the function of a field's value as it is stored, for a column of nested records; {} without a value."""

    def value(record: Any) -> Any:
        nested = getattr(record, name)
        return {} if nested is None else stored(nested)

    return value


def printed(record: Any) -> dict[str, Any]:
    """Return a record as an object of `--format json`: as it is stored, and its figures, by the names that they declare."""
    kind: Any = type(record)
    values: dict[str, Any] = record.as_json()
    for name, spec, _ in figures_of(kind):
        value = column_value(record, name, spec, record)
        if spec.in_json and not (spec.optional and value is None):
            values[spec.key or name] = stored(value)
    return values


def document(record: Any) -> dict[str, Any]:
    """Return the columns that the class of a record declares as an object for JSON.

    A nested record is an object; with the key "" its keys are among those of the record, even if it is missing.
    """
    kind: Any = type(record)
    return _object(declared(kind), record, record)


def flat_document(record: Any) -> dict[str, Any]:
    """Return a document without nested objects: their keys follow the name of their field, "time_ratio_low"."""
    values: dict[str, Any] = {}
    for name, value in document(record).items():
        values |= {f"{name}_{part}": inner for part, inner in value.items()} if isinstance(value, dict) else {name: value}
    return values


def _object(columns: Iterable[tuple[str, ColumnSpec, Any]], outer: Any, record: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, spec, hint in columns:
        value = column_value(outer, name, spec, record)
        if spec.optional and value is None:
            continue
        is_object = spec.parts and (value is not None or spec.key == "")
        value = _object(parts_of(spec, hint), value, record) if is_object else _documented(value)
        values |= value if spec.key == "" else {spec.key or name: value}
    return values


def _documented(value: Any) -> Any:
    """Return a value of a document: records with declared columns as their documents, all others as they are stored."""
    kind: Any = type(value)
    if declared(kind):
        return document(value)
    if isinstance(value, list | tuple):
        values = [_documented(inner) for inner in value]
        return tuple(values) if isinstance(value, tuple) else values
    return stored(value)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of stored records. A stored line is its `as_json`."""

    def as_json(self) -> dict[str, Any]:
        """Return the record as values for JSON, by stored name, with nested records as objects."""
        names = zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True)
        return {key: stored(getattr(self, name)) for name, key in names}

    @classmethod
    def decoded(cls, values: Mapping[str, Any]) -> Self:
        """Return the record of a stored line; unknown keys are left out. Raises ValueError naming the first field that does not fit."""
        return decode_record(values, cls)

    def replace(self, **figures: Any) -> Self:
        """Return a copy with other values of these fields."""
        return msgspec.structs.replace(self, **figures)


R = TypeVar("R", bound=Record)


class RecordKind(msgspec.Struct, Generic[R], frozen=True):
    """A kind of records, and what is printed of them.

    name     for the error about an unknown format: "kv", "a hunt"; of a `DeclaredKind` that of its command, and of its key in run.json
    record   the class
    title    the headline above a table of records
    remarks  the sentences below it
    records  the records of CSV and JSON, in their order, of a result that may have more: the other functions get the result
    order    the records as tables and DataFrames have them
    style    of a record's line: "", "na", "doubtful" or "wrong"
    columns  those for people, where they are not all declared ones with a heading in their order
    lines    all lines for people, where they are more than a headline, a table and sentences
    json     the lines of JSON, where they are not an object per record
    kept     by sentence of `remarks` that is a result, which --quiet keeps, its style
    """

    name: str
    record: type[R]
    title: Callable[[Sequence[R]], str] = lambda records: ""
    remarks: Callable[[Sequence[R]], Iterable[str]] = lambda records: ()
    order: Callable[[Sequence[R]], Sequence[R]] = list
    style: Callable[[R], str] = lambda record: ""
    columns: tuple[Column[R], ...] = ()
    records: Callable[[Any], Iterable[R]] = lambda records: records
    lines: Callable[[Any, Display], Iterable[Line]] | None = None
    json: Callable[[Any], Iterable[str]] | None = None
    kept: Callable[[Sequence[R]], Mapping[str, str]] = lambda records: {}

    @property
    def values(self) -> tuple[ValueColumn, ...]:
        """Return the columns for programs, in their order."""
        return value_columns(self.record)

    def fields_of(self, record: R) -> dict[str, Any]:
        """Return a record without nested records, by field of CSV."""
        return {value.name: value.unit.field(value.value(record)) if value.unit.field else value.value(record) for value in self.values}

    def read(self, folder: Path) -> tuple[list[R], list[str]]:
        """Return (the records in a run's folder up to the last complete one, what could not be read)."""
        warnings: list[str] = []
        return list(read_lines(folder / record_files()[self.name].name, self.record.decoded, warnings)), warnings

    def decoded(self, values: Mapping[str, Any]) -> R:
        """Return the record of a stored line; see `Record.decoded`."""
        return self.record.decoded(values)
