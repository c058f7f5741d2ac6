"""Records: what is stored is declared once, in the annotations of a record's fields, and all forms of output derive from it.

    class KvRow(Record, frozen=True, kw_only=True):
        method: Annotated[str, column("How the blocks were moved.", title="method")]
        block_bytes: Annotated[int, column("The size of a block.", unit=BYTES, title="block")]
        time_s: Annotated[Estimate, column("The median time.", unit=SECONDS, title="time µs", interval="95 % CI µs")] = Estimate()

        @figure("The bytes of all blocks divided by the median time.", unit=RATE, title="GB/s", after="time_s")
        def bytes_per_s(self) -> float | None: ...

`report.forms` makes tables, CSV and JSON lines of the records of any kind, `api.frames` makes DataFrames. A field without `column` in its
annotation is stored, and is in JSON only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from collbench.results.flags import flag_names
from collbench.results.store import plain
from collbench.units import format_percent, format_rate, format_size, format_time

NOTHING = "–"
_SUFFIXES = ("_bytes_per_s", "_bytes", "_s")  # of names, which stay at the end when a part's name is added


@dataclass(frozen=True)
class Unit:
    """A unit of values.

    name    for descriptions: "bytes per second"; "" for texts and plain numbers
    text    a value for people; tables have the unit in their headings
    right   whether tables align it to the right
    field   a value for a field of CSV, where that differs
    """

    name: str
    text: Callable[[Any], str]
    right: bool = True
    field: Callable[[Any], Any] | None = None


TEXT = Unit("", str, right=False)
NUMBER = Unit("", str)
COUNT = Unit("", "{:,}".format)
BYTES = Unit("bytes", format_size)
SECONDS = Unit("seconds", format_time)  # in µs for people
RATE = Unit("bytes per second", format_rate)  # in GB/s for people
PERCENT = Unit("percent", format_percent)
FLAGS = Unit("", lambda flags: ", ".join(flag_names(flags)) or NOTHING, right=False, field=lambda flags: tuple(flag_names(flags)))


@dataclass(frozen=True)
class ColumnSpec:
    """What `column` and `figure` declare; see there."""

    about: str
    unit: Unit = TEXT
    title: str = ""
    text: Callable[[Any], str] | None = None
    key: str | None = None
    names: Mapping[str, str] | None = None
    interval: str = ""
    drop: int = 0
    drop_interval: int = 0
    cut: bool = False
    wrap: bool = False
    least: int = 0


def column(about: str, **given: Any) -> Meta:
    """Return the annotation of a field that CSV, DataFrames and tables have as a column.

    about     what it is, in one sentence, without its unit
    unit      of its values
    title     its heading in tables, with the unit for people; "": only programs have the column
    text      a record's text in tables, where it is not the value in its unit
    key       its name for programs, where it is not the field's; of a field with parts "": only the parts' names are used
    names     of a field with a mapping: what its keys are, by key
    interval  of an estimate: the heading of its interval in tables; "": they have none
    drop, drop_interval, cut, wrap, least   as in `report.frame.Column`
    """
    return Meta(description=about, extra={"column": ColumnSpec(about, **given)})


class Figure(property):
    """A property of a record that is a column, too."""

    spec: ColumnSpec
    after: str


def figure(about: str, *, after: str, **given: Any) -> Callable[[Callable[[Any], Any]], Any]:
    """Return the decorator of a property that is a column, with the arguments of `column`; after: the field or figure that it follows."""

    def made(function: Callable[[Any], Any]) -> Figure:
        declared = Figure(function)
        declared.spec = ColumnSpec(about, **given)
        declared.after = after
        return declared

    return made


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all stored records. A stored line is its `as_json`."""

    def as_json(self) -> dict[str, Any]:
        """Return the record as values for JSON, with nested records as objects."""
        values: dict[str, Any] = msgspec.to_builtins(self, enc_hook=plain)
        return values

    def replace(self, **figures: Any) -> Self:
        """Return a copy with other values of these fields."""
        return msgspec.structs.replace(self, **figures)


R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class ValueColumn(Generic[R]):
    """A column for programs, of a field, a part of a field, or a figure.

    name    with the unit: "time_low_s"
    about   what it is, without the unit
    unit    of its values
    type    of its values, None left out: str, int, float, bool, or object for all others
    value   of a record
    """

    name: str
    about: str
    unit: Unit
    type: type
    value: Callable[[R], Any]


@dataclass(frozen=True)
class ShownColumn(Generic[R]):
    """A column for people: its declaration, heading, and a record's text."""

    spec: ColumnSpec
    title: str
    text: Callable[[R], str]
    drop: int


@dataclass(frozen=True)
class RecordKind(Generic[R]):
    """A kind of records.

    name     of its command, and of its key in run.json
    record   the class
    file     with the records, in a run's folder
    title    the headline above a table of records
    remarks  the sentences below it
    order    the records as tables and CSV have them
    style    of a record's line: "", "na", "doubtful" or "wrong"
    """

    name: str
    record: type[R]
    file: str
    title: Callable[[Sequence[R]], str]
    remarks: Callable[[Sequence[R]], Iterable[str]]
    order: Callable[[Sequence[R]], Sequence[R]] = list
    style: Callable[[R], str] = lambda record: ""

    @cached_property
    def values(self) -> tuple[ValueColumn[R], ...]:
        """Return the columns for programs, in their order."""
        return tuple(value for name, spec, hint in declared(self.record) for value in _values_of(name, spec, hint))

    @cached_property
    def shown(self) -> tuple[ShownColumn[R], ...]:
        """Return the columns for people, in their order."""
        return tuple(shown for name, spec, _ in declared(self.record) for shown in _shown_of(name, spec))

    def fields_of(self, record: R) -> dict[str, Any]:
        """Return a record without nested records, by field of CSV."""
        return {value.name: value.unit.field(value.value(record)) if value.unit.field else value.value(record) for value in self.values}

    def read(self, folder: Path) -> tuple[list[R], list[str]]:
        """Return (the records in a run's folder up to the last complete one, what could not be read)."""
        from collbench.results.reader import read_lines

        warnings: list[str] = []
        return list(read_lines(folder / self.file, self.decoded, warnings)), warnings

    def decoded(self, values: Mapping[str, Any]) -> R:
        """Return the record of a stored line; unknown keys are left out. Raises ValueError naming the first field that does not fit."""
        from collbench.results.reader import decode_record

        return decode_record(values, self.record)


@cache
def declared(record: type[Record]) -> tuple[tuple[str, ColumnSpec, Any], ...]:
    """Return (name, declaration, type) of each column of a class of records, in order."""
    columns: list[tuple[str, ColumnSpec, Any]] = []
    for name, hint in get_type_hints(record, include_extras=True).items():
        spec = _spec(hint)
        if spec is not None:
            columns.append((name, spec, get_args(hint)[0]))
    for base in reversed(record.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, Figure):
                place = [column_name for column_name, _, _ in columns].index(value.after)
                columns.insert(place + 1, (name, value.spec, get_type_hints(value.fget)["return"]))
    return tuple(columns)


def _spec(hint: Any) -> ColumnSpec | None:
    for part in getattr(hint, "__metadata__", ()):
        if isinstance(part, Meta) and part.extra and "column" in part.extra:
            spec: ColumnSpec = part.extra["column"]
            return spec
    return None


def _values_of(name: str, spec: ColumnSpec, hint: Any) -> Iterator[ValueColumn[Any]]:
    """Yield the columns for programs of a field: one, or one for each part."""
    key = name if spec.key is None else spec.key

    def value_of(record: Any) -> Any:
        return getattr(record, name)

    for part, about, unit, kind, value in _parts(spec, _without_none(hint), value_of):
        yield ValueColumn(joined([key, *part]), about, unit, kind, value)


def _parts(
    spec: ColumnSpec, kind: Any, value_of: Callable[[Any], Any]
) -> Iterator[tuple[list[str], str, Unit, type, Callable[[Any], Any]]]:
    """Yield (names of the part, what it is, its unit, its type, its value of a record) for each part of a field."""
    if spec.names is not None:
        inner = _without_none(get_args(kind)[1])
        for name, about in spec.names.items():
            for names, inner_about, unit, type_of, value in _fields_of(spec, inner, _item(value_of, name)):
                yield [name, *names], f"{about}{inner_about}", unit, type_of, value
    elif is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        yield from _fields_of(spec, kind, value_of)
    else:
        yield [], spec.about, spec.unit, _type_of(kind), value_of


def _type_of(kind: Any) -> type:
    """Return the type of a column's values: str for several words, object for all that is no text, number or truth value."""
    if get_origin(kind) is Literal:
        return str
    return kind if kind in (str, int, float, bool) else object


def _fields_of(
    outer: ColumnSpec, kind: Any, value_of: Callable[[Any], Any]
) -> Iterator[tuple[list[str], str, Unit, type, Callable[[Any], Any]]]:
    """Yield the parts of a nested record: the fields that are columns."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        spec = _spec(hint)
        if spec is None:
            continue
        key = name if spec.key is None else spec.key
        inner = spec if spec.unit is not TEXT else ColumnSpec(**{**vars(spec), "unit": outer.unit})
        for names, about, unit, type_of, value in _parts(inner, _without_none(get_args(hint)[0]), _attribute(value_of, name)):
            yield [key, *names], about.format(outer.about), unit, type_of, value


def _attribute(value_of: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    return lambda record: getattr(value_of(record), name, None)


def _item(value_of: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    return lambda record: value_of(record).get(name)


def _without_none(hint: Any) -> Any:
    """Return the type without None and without annotations: `float` for `Annotated[float | None, …]`."""
    if hasattr(hint, "__metadata__"):
        return _without_none(get_args(hint)[0])
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return _without_none(kinds[0]) if type(None) in get_args(hint) and len(kinds) == 1 else hint


def joined(names: Iterable[str]) -> str:
    """Return the name of a part of a field, with the unit at its end: "time_low_s" for "time_s" and "low"; "" leaves no trace."""
    stems: list[str] = []
    suffix = ""
    for name in names:
        ending = next((each for each in _SUFFIXES if name.endswith(each)), "")
        stem = name.removesuffix(ending)
        suffix = ending or suffix
        if stem:
            stems.append(stem)
    return "_".join(stems) + suffix


def _shown_of(name: str, spec: ColumnSpec) -> Iterator[ShownColumn[Any]]:
    """Yield the columns for people of a field: its value, and its interval if it is an estimate with a heading for it."""

    def text(record: Any) -> str:
        value = getattr(record, name)
        value = getattr(value, "value", value)
        return NOTHING if value is None else spec.unit.text(value)

    def interval(record: Any) -> str:
        estimate = getattr(record, name)
        if estimate.low is None or estimate.high is None:
            return NOTHING
        return f"{spec.unit.text(estimate.low)}–{spec.unit.text(estimate.high)}"

    if spec.title:
        yield ShownColumn(spec, spec.title, spec.text or text, spec.drop)
    if spec.interval:
        yield ShownColumn(spec, spec.interval, interval, spec.drop_interval)
