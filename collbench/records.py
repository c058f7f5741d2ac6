"""Records: what a run stores, one line each, and their kinds, of which all outputs are made (`report.forms`, `api.frames`).

The fields of a record declare their columns (`collbench.columns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec

from collbench.columns import ValueColumn, value_columns
from collbench.plugin import record_files
from collbench.reason import Fact, as_json
from collbench.results.reader import decode_record, read_lines

if TYPE_CHECKING:
    from collbench.report.frame import Column, Line


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


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of stored records. A stored line is its `as_json`."""

    def as_json(self) -> dict[str, Any]:
        """Return the record as values for JSON, with nested records as objects."""
        return {name: stored(getattr(self, name)) for name in self.__struct_fields__}

    @classmethod
    def decoded(cls, values: Mapping[str, Any]) -> Self:
        """Return the record of a stored line; unknown keys are left out. Raises ValueError naming the first field that does not fit."""
        return decode_record(values, cls)

    def replace(self, **figures: Any) -> Self:
        """Return a copy with other values of these fields."""
        return msgspec.structs.replace(self, **figures)


R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class RecordKind(Generic[R]):
    """A kind of records.

    name     of its command, and of its key in run.json; `Plugin.records` has the file of a command's records
    record   the class
    title    the headline above a table of records
    remarks  the sentences below it
    order    the records as tables and DataFrames have them
    style    of a record's line: "", "na", "doubtful" or "wrong"
    columns  those for people, where they are not all declared ones with a heading in their order
    lines    all lines for people, of so many characters, where they are more than a headline, a table and sentences
    kept     by sentence of `remarks` that is a result, which --quiet keeps, its style
    """

    name: str
    record: type[R]
    title: Callable[[Sequence[R]], str]
    remarks: Callable[[Sequence[R]], Iterable[str]]
    order: Callable[[Sequence[R]], Sequence[R]] = list
    style: Callable[[R], str] = lambda record: ""
    columns: tuple[Column[R], ...] = ()
    lines: Callable[[Sequence[R], int | None], Iterable[Line]] | None = None
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
