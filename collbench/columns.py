"""Columns: what a field of a record means is declared once, in its annotation, and all forms of output derive from it.

    class KvRow(Record, frozen=True, kw_only=True):
        method: Annotated[str, column("How the blocks were moved.", title="method")]
        block_bytes: Annotated[int, column("The size of a block.", title="block")]
        time_s: Annotated[Estimate, column("The median time.", title="time µs", interval="95 % CI µs")] = Estimate()

        @property
        @figure("The bytes of all blocks divided by the median time.", title="GB/s", after="time_s")
        def bytes_per_s(self) -> float | None: ...

`report.forms` makes tables, CSV and JSON lines of the records of any kind (`collbench.records`), `api.frames` makes DataFrames. A field
without `column` in its annotation is stored, and is in JSON lines only. Without a `unit`, it follows from the end of the name.
`records.document` makes an object for JSON of the declared columns of a value that is not stored line by line: a verdict, a comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import replace

from collbench.results.flags import flag_names
from collbench.units import format_float, format_percent, format_rate, format_size, format_time

F = TypeVar("F", bound=Callable[..., Any])
NOTHING = "–"


class Unit(msgspec.Struct, frozen=True):
    """A unit of values.

    name    for descriptions: "bytes per second"; "" for texts and plain numbers
    text    a value for people; tables have the unit in their headings
    type    of its values, where no annotation says it
    right   whether tables align it to the right
    field   a value for a field of CSV, where that differs
    heading  in headings of tables, the unit of `text`, where that lacks it
    metric  at the end of a metric's name, the unit of its values in OpenMetrics; per: of these units, how many are one there
    """

    name: str
    text: Callable[[Any], str]
    type: type
    right: bool = True
    field: Callable[[Any], Any] | None = None
    heading: str = ""
    metric: str = ""
    per: float = 1


TEXT = Unit("", str, str, right=False)
NUMBER = Unit("", str, int)
COUNT = Unit("", "{:,}".format, int)
BYTES = Unit("bytes", format_size, int)
SECONDS = Unit("seconds", format_time, float, heading="µs", metric="seconds")
RATE = Unit("bytes per second", format_rate, float, heading="GB/s", metric="bytes_per_second")
PERCENT = Unit("percent", format_percent, float, metric="ratio", per=100)
RATIO = Unit("", "{:.3g}".format, float, metric="ratio")
FLOAT = Unit("", format_float, float)
UTC = Unit("UTC", str, str)
FLAGS = Unit("", lambda flags: ", ".join(flag_names(flags)) or NOTHING, object, right=False, field=lambda flags: tuple(flag_names(flags)))
# By the end of a name: these stay at the end when the name of a part is added.
_BY_SUFFIX = {"_bytes_per_s": RATE, "_bytes": BYTES, "_s": SECONDS}


class ColumnSpec(msgspec.Struct, frozen=True):
    """The annotation of a field that CSV, DataFrames and tables have as a column.

    about     what it is, without its unit
    unit      of its values, where it does not follow from the end of the name
    title     its heading in tables, with the unit for people; "": only programs have the column
    key       its name for programs, where it is not the field's; of a field with parts "": the names of the parts alone
    value     a record's value for programs, where it is not the field's; of an entry of `parts` that of the record with the field
    parts     of a field with a nested record or a mapping: its columns, by attribute or key; else those that its class declares
    optional  whether an object for JSON lacks it where it is None
    in_json   False: of a figure that lines of JSON lack, since it repeats a part of a nested record that they have
    type      of its values, where the annotation does not say it: str, int, float, bool or object
    text      a record's text in tables, where it is not its value in the unit
    interval  of an estimate: the heading of its interval in tables; "": they have none
    drop, drop_interval, cut, wrap   as in `report.frame.Column`
    after     the field, figure or key that the column follows; "": a field follows the one before it, and a figure precedes all fields
    """

    about: str
    unit: Unit | None = None
    title: str = ""
    key: str | None = None
    value: Callable[[Any], Any] | None = None
    parts: Mapping[str, ColumnSpec] | None = None
    optional: bool = False
    in_json: bool = True
    type: type | None = None
    text: Callable[[Any], str] | None = None
    interval: str = ""
    drop: int = 0
    drop_interval: int = 0
    cut: bool = False
    wrap: bool = False
    after: str = ""


column = ColumnSpec


def figure(about: str, *, after: str = "", **declared_values: Any) -> Callable[[F], F]:
    """Return the decorator of a property's function, below `@property`, that makes it a column with the arguments of `column`."""

    def mark(function: F) -> F:
        function.column = ColumnSpec(about, after=after, **declared_values)  # type: ignore[attr-defined]
        return function

    return mark


class ValueColumn(msgspec.Struct, frozen=True):
    """A column for programs, of a field, a part of a field, or a figure.

    name    with the unit: "time_low_s"
    about   what it is, without the unit
    unit    of its values
    type    of its values: str, int, float, bool, or object for all others
    value   of a record; None if it is unknown
    title   its heading in tables, with the unit for people; "": only programs have the column
    drop    as in `report.frame.Column`
    """

    name: str
    about: str
    unit: Unit
    type: type
    value: Callable[[Any], Any]
    title: str = ""
    drop: int = 0

    @property
    def right(self) -> bool:
        """Return whether tables align it to the right."""
        return self.unit.right or self.type in (int, float)

    @property
    def heading(self) -> str:
        """Return its heading in a table of chosen columns: the title, else the name with the unit for people, "time_rank_mean µs"."""
        unit = self.unit.heading
        stem = self.name.removesuffix("_bytes_per_s").removesuffix("_s")
        return self.title or (f"{stem} {unit}" if unit else self.name)

    def text(self, record: Any) -> str:
        """Return a record's value for people, in its unit; a dash if it is unknown."""
        value = self.value(record)
        return self.unit.text(value) if self.unit is FLAGS and value is not None else _text(value, self.unit)


def _text(value: Any, unit: Unit) -> str:
    """Return a value, or each value of a list, in a unit; what cannot have one as it is."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_text(inner, unit) for inner in value)
    return unit.text(value) if isinstance(value, int | float) else str(value)


def described(about: str, unit: Unit) -> str:
    """Return what a column is, with its unit."""
    return f"{about} Unit: {unit.name}." if unit.name else about


@cache
def value_columns(record: Any) -> tuple[ValueColumn, ...]:
    """Return the columns for programs that a class declares, in their order."""
    columns: list[ValueColumn] = []
    for name, spec, hint in declared(record):
        columns.extend(_values_of([], name, spec, hint, _itself))
    return tuple(columns)


@cache
def declared(record: Any) -> tuple[tuple[str, ColumnSpec, Any], ...]:
    """Return (name, declaration, type without None) of each column of a class of records, in order."""
    fields: list[tuple[str, ColumnSpec, Any]] = []
    keys = dict(zip(getattr(record, "__struct_fields__", ()), getattr(record, "__struct_encode_fields__", ()), strict=True))
    for name, hint in get_type_hints(record, localns={}, include_extras=True).items():
        for part in getattr(hint, "__metadata__", ()):
            if isinstance(part, ColumnSpec):
                key = keys.get(name) if part.key is None else part.key
                fields.append((name, replace(part, key=key), _plain_type(hint)))
    figures = figures_of(record)
    columns = [entry for entry in (*figures, *fields) if not entry[1].after]
    for entry in (*fields, *figures):
        if entry[1].after:
            place = next(number for number, (name, spec, _) in enumerate(columns) if entry[1].after in (name, spec.key))
            columns.insert(place + 1, entry)
    return tuple(columns)


@cache
def figures_of(record: Any) -> tuple[tuple[str, ColumnSpec, Any], ...]:
    """Return (name, declaration, type without None) of each figure of a class of records, in the order of their definition."""
    figures: list[tuple[str, ColumnSpec, Any]] = []
    members = {name: value for base in reversed(record.__mro__) for name, value in vars(base).items()}
    for name, value in members.items():
        getter: Any = getattr(value, "fget", None)
        if getter is not None and hasattr(getter, "column"):
            figures.append((name, getter.column, _plain_type(get_type_hints(getter)["return"])))
    return tuple(figures)


def _plain_type(hint: Any) -> Any:
    """Return the type without None and without annotations: `float` for `Annotated[float | None, …]`, `str` for a choice of words."""
    if get_origin(hint) is Annotated:
        return _plain_type(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return str
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return _plain_type(kinds[0]) if len(kinds) == 1 else object
    return hint


def _itself(record: Any) -> Any:
    return record


def _values_of(before: Sequence[str], name: str, spec: ColumnSpec, hint: Any, outer: Callable[[Any], Any]) -> Iterator[ValueColumn]:
    """Yield the columns for programs of a field: one, or those of its parts. before: the names of what it is a part of."""

    def value_of(record: Any) -> Any:
        return column_value(outer(record), name, spec, record)

    names = [*before, name if spec.key is None else spec.key]
    parts = parts_of(spec, hint)
    if not parts:
        joined_name = joined(names)
        kind = spec.type or (hint if hint in (str, int, float, bool) else object)
        unit = spec.unit or unit_of(joined_name, kind)
        yield ValueColumn(joined_name, spec.about, unit, kind, value_of, spec.title, spec.drop)
    for part_name, part, part_hint in parts:
        title = part.title.format(spec.title)
        if part.key == "":  # the value of an estimate
            title = title or spec.title
        inner = replace(part, about=part.about.format(spec.about), title=title, drop=part.drop or spec.drop)
        yield from _values_of(names, part_name, inner, part_hint, value_of)


def parts_of(spec: ColumnSpec, hint: Any) -> Sequence[tuple[str, ColumnSpec, Any]]:
    """Return the columns of a nested record: those of the declaration, else those of its class."""
    if spec.parts is None:
        return declared(hint) if isinstance(hint, type) and hasattr(hint, "__annotations__") else ()
    if get_origin(hint) is dict:
        inner = _plain_type(get_args(hint)[1])
        return [(name, part, inner) for name, part in spec.parts.items()]
    hints = get_type_hints(hint) if isinstance(hint, type) and hint is not object else {}
    return [(name, part, _plain_type(hints.get(name, object))) for name, part in spec.parts.items()]


def column_value(outer: Any, name: str, spec: ColumnSpec, record: Any) -> Any:
    """Return a column's value for programs: as declared of the record, else that of the field in `outer`; None where there is none."""
    if spec.value is not None:
        return spec.value(record)
    return outer.get(name) if isinstance(outer, dict) else getattr(outer, name, None)


def columns_of(record: Any, *names: str) -> Mapping[str, ColumnSpec]:
    """Return the declarations of a class by field, of all or of these fields, as the `parts` of a field of another class."""
    specs = {name: spec for name, spec, _ in declared(record)}
    return {name: specs[name] for name in names or specs}


def joined(names: Iterable[str]) -> str:
    """Return the name of a part of a field, with the unit at its end: "time_low_s" for "time_s" and "low"; "" leaves no trace."""
    stems: list[str] = []
    suffix = ""
    for name in names:
        ending = next((ending for ending in _BY_SUFFIX if f"_{name}".endswith(ending)), "")
        suffix = ending or suffix
        stems.append(f"_{name}".removesuffix(ending).lstrip("_"))
    return ("_".join(filter(None, stems)) + suffix).lstrip("_")


def unit_of(name: str, kind: Any = object) -> Unit:
    """Return the unit of a column, which follows from the end of its name; without one there, FLOAT for the type float, else TEXT."""
    if name.startswith("percent") or name.endswith("_percent"):
        return PERCENT
    if name.endswith("_utc"):
        return UTC
    if f"_{name}".endswith("_ratio"):
        return RATIO
    without = FLOAT if kind is float else TEXT
    return next((unit for suffix, unit in _BY_SUFFIX.items() if f"_{name}".endswith(suffix)), without)


# The first column of tables of several runs.
RUN_COLUMN = {"run": column("The name of the run's folder, so that rows of several runs can be in one table.")}
