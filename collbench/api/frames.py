"""Runs as DataFrames, and as tables of Arrow: one definition of each column's kind, unit and description.

pandas and pyarrow are the extra `pandas`; they are imported when a table is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from collbench.analysis.launches import Launches
from collbench.columns import RUN_COLUMN, UTC, ColumnSpec, ValueColumn, column, described, unit_of, value_columns
from collbench.errors import UnreadableRun, UsageError
from collbench.plugin import loaded_parts, plugins
from collbench.records import RecordKind
from collbench.report.kinds import ResultKind
from collbench.report.plan import in_print_order
from collbench.report.writers import row_values
from collbench.results.reader import Damage, Run
from collbench.results.row import Row
from collbench.results.store import to_line

if TYPE_CHECKING:
    import pandas
    import pyarrow


# Columns: the kind of the values, and their descriptions in `attrs["columns"]`.


class ValueKind(msgspec.Struct, frozen=True):
    """A kind of values.

    pandas  the type of a column of a DataFrame
    arrow   the name of the function of pyarrow that makes its type
    types   the types of its values; a stored value of another one is unknown
    """

    pandas: str
    arrow: str
    types: tuple[type, ...]


TEXT = ValueKind("string", "string", (str,))
COUNT = ValueKind("Int64", "int64", (int,))
FLAG = ValueKind("boolean", "bool_", (bool,))
FLOAT = ValueKind("float64", "float64", (int, float))
TIME = ValueKind("datetime64[us, UTC]", "timestamp", (str,))
OBJECT = ValueKind("object", "string", (object,))
_KINDS = {str: TEXT, int: COUNT, bool: FLAG, float: FLOAT, object: OBJECT}
_RUN_COLUMNS = {
    **RUN_COLUMN,
    "path": column("The run folder."),
    "started_utc": column("When the run began."),
    "allocation": column("The name of the allocation: launches with the same name repeat one another."),
    "collbench": column("The version that measured."),
}
_QUALITY = {"quality": column("How far the figures of a row can be trusted, in one word.")}
_ROW_INDEX = {"row": column("The index of the case in the rows of its run.", type=int)}
_SAMPLE_COLUMNS = {
    "sample": column("The number of the sample, from 0, in the order in which they were taken.", type=int),
    "time_s": column("The time per message of the slowest rank."),
    "mean_s": column("The mean over the ranks of the time per message."),
    "slowest_rank": column("The rank that took longest.", type=int),
}


class TableColumn(msgspec.Struct, frozen=True):
    """A column of a table: the kind of its values, and what it means, with the unit."""

    kind: ValueKind
    description: str

    @classmethod
    def of(cls, name: str, spec: ColumnSpec) -> TableColumn:
        """Return the column of a declaration; without a type it is that of the unit, which follows from the end of its name."""
        unit = spec.unit or unit_of(name)
        kind = TIME if unit is UTC else _KINDS[spec.type or unit.type]
        return cls(kind, described(spec.about, unit))

    @classmethod
    def of_value(cls, value: ValueColumn) -> TableColumn:
        """Return the column of a field of a record."""
        return cls(_KINDS[value.type], described(value.about, value.unit))


def _described(columns: Mapping[str, ColumnSpec]) -> dict[str, TableColumn]:
    return {name: TableColumn.of(name, spec) for name, spec in columns.items()}


class DeclaredTable(msgspec.Struct, frozen=True):
    """A table of the declared records of a kind of runs, which a plug-in brings.

    name  of the method of `Runs` that returns it
    kind  of the runs
    rows  the kind of its rows, where they are not the records of CSV
    """

    name: str
    kind: ResultKind
    rows: RecordKind[Any] | None = None

    @property
    def declared(self) -> RecordKind[Any]:
        """Return the kind of its rows."""
        return self.rows or self.kind.declared

    def described(self) -> dict[str, TableColumn]:
        """Return its columns."""
        return _described(RUN_COLUMN) | {value.name: TableColumn.of_value(value) for value in self.declared.values}

    def records_of(self, run: Run, strict: bool) -> Sequence[Any]:
        """Return the records of a run in their order. Raises UnreadableRun for damaged ones, unless not `strict`."""
        if not self.kind.holds(run):
            return []
        result, warnings = self.kind.read(run)
        check_records(warnings, strict)
        return self.declared.order(list(self.declared.records(result)))

    def records(self, run: Run, strict: bool) -> Iterator[Sequence[Any]]:
        """Yield the values of each record of a run in the order of the columns."""
        name = run.path.resolve().name
        for record in self.records_of(run, strict):
            yield [name, *(value.value(record) for value in self.declared.values)]

    def frames(self, content: str) -> Callable[[Any], pandas.DataFrame]:
        """Return the method of `Runs` that returns the DataFrame of all runs. content: what has a row in it."""

        def frame(self: Any) -> pandas.DataFrame:
            return _frame(table.name, (record for run in self for record in table.records(run, self.strict)))

        table = self
        frame.__name__ = self.name
        frame.__annotations__["self"] = "Runs"
        frame.__doc__ = f"""Return a DataFrame with a row per {content}.

        Raises UsageError without pandas, and UnreadableRun for damaged records.
        """
        return frame

    def all_records(self) -> property:
        """Return a property of `Runs` with the records of all runs."""

        def records(runs: Any) -> list[Any]:
            return [record for run in runs for record in self.records_of(run, runs.strict)]

        summary = f"The rows of all runs of `collbench {self.kind.name}`, as typed values."
        records.__doc__ = f"{summary} Raises UnreadableRun for damaged records."
        return property(records)


@cache
def columns_of() -> Mapping[str, Mapping[str, TableColumn]]:
    """Return the columns of each table, by the name of the method of `Runs` that makes it."""
    row_columns = {value.name: TableColumn.of_value(value) for value in value_columns(Row)}
    case_columns = {name: row_columns[name] for name in ("operation", "backend", "size_bytes", "ranks")}
    columns: dict[str, Mapping[str, TableColumn]] = {
        "frame": _described(_RUN_COLUMNS) | row_columns | _described(_QUALITY),
        "samples": _described(RUN_COLUMN | _ROW_INDEX) | case_columns | _described(_SAMPLE_COLUMNS),
    }
    tables: list[DeclaredTable] = list(loaded_parts(place for plugin in plugins().values() for place in plugin.tables))
    for table in tables:
        columns[table.name] = table.described()
    return columns


# DataFrames.


def _frame(table: str, records: Iterable[Sequence[Any]]) -> pandas.DataFrame:
    """Return the DataFrame of records with a value for each column of the table. Raises UsageError without pandas."""
    try:
        import pandas
    except ImportError as error:
        raise UsageError("a DataFrame needs pandas: pip install 'collbench[pandas]'") from error
    columns = columns_of()[table]
    values_by_column = list(zip(*records, strict=True)) or [()] * len(columns)
    series = {name: _series(pandas, columns[name].kind, values) for name, values in zip(columns, values_by_column, strict=True)}
    frame = pandas.DataFrame(series)
    frame.attrs["columns"] = {name: column.description for name, column in columns.items()}
    return frame


def _series(pandas: Any, kind: ValueKind, values: Sequence[Any]) -> Any:
    """Return a column of a DataFrame; a value of another type, which an altered run may have, is unknown."""
    valid = [value if _fits(value, kind) else None for value in values]
    if kind is TIME:
        return pandas.Series(pandas.to_datetime(valid, utc=True, errors="coerce", format="ISO8601")).astype(kind.pandas)
    if kind is TEXT:
        valid = [_encodable(text) for text in valid]
    return pandas.Series(valid, dtype=kind.pandas)


def _fits(value: Any, kind: ValueKind) -> bool:
    return isinstance(value, kind.types) and (kind in (FLAG, OBJECT) or not isinstance(value, bool))


def _encodable(text: str | None) -> str | None:
    """Return the text with "?" for each half of a surrogate pair, which UTF-8 does not have."""
    return text if text is None or text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def of_rows(tables: Sequence[Launches], columns: Sequence[str] | None = None) -> pandas.DataFrame:
    """Return a row per row of the tables, ordered as the report prints them; `columns`: names to select, None: all.

    Raises UsageError for an unknown name.
    """
    names = [_column_name(name) for name in ([columns] if isinstance(columns, str) else columns or ())]
    frame = _frame("frame", (record for table in tables for record in _rows_of(table)))
    if columns is None:
        return frame
    selected = frame[names]
    selected.attrs["columns"] = {name: frame.attrs["columns"][name] for name in names}
    return selected


def _rows_of(table: Launches) -> Iterator[Sequence[Any]]:
    first_run = table.runs[0]
    head = [table.name, str(first_run.path), *(first_run.info.get(key) for key in ("started_utc", "allocation_id", "collbench"))]
    for row in in_print_order(table.rows):
        yield [*head, *row_values(row)]


def _column_name(name: str) -> str:
    """Return the name. Raises UsageError unless it is that of a column of `frame`."""
    names = list(columns_of()["frame"])
    if name in names:
        return name
    near = get_close_matches(str(name), names, 3) or [column for column in names if str(name) in column][:3]
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(names)}"
    raise UsageError(f"unknown column {name!r:.60}: {hint}")


def of_samples(runs: Iterable[Run]) -> pandas.DataFrame:
    """Return a row per stored sample."""
    return _frame("samples", (record for run in runs for record in _samples_of(run)))


def _samples_of(run: Run) -> Iterator[Sequence[Any]]:
    run_name = run.path.resolve().name
    index_of = {id(row): index for index, row in enumerate(run.rows)}
    for row in in_print_order(run.rows):
        if "max_s" not in row.samples:
            continue
        times = run.array(row, "max_s").ravel().tolist()
        unknown = [None] * len(times)
        means = run.array(row, "mean_s").ravel().tolist() if "mean_s" in row.samples else unknown
        ranks = run.array(row, "slowest_rank").ravel().tolist() if "slowest_rank" in row.samples else unknown
        if not len(times) == len(means) == len(ranks):
            raise UsageError(f"{run.path}: the samples of {row.operation} have different lengths: the run was altered")
        case = (run_name, index_of[id(row)], row.operation, row.backend, row.size_bytes, row.ranks)
        for number, figures in enumerate(zip(times, means, ranks, strict=True)):
            yield (*case, number, *figures)


def check_records(warnings: Sequence[str], strict: bool = True) -> None:
    """Raise UnreadableRun, if `strict`, where records of a run cannot be read."""
    if strict and any(isinstance(warning, Damage) for warning in warnings):
        raise UnreadableRun(f"{'; '.join(warnings)}; use `collbench.read(…, strict=False)` for what can be read")


# Tables of Arrow, and Parquet files.


def to_arrow(frame: pandas.DataFrame) -> pyarrow.Table:
    """Return the DataFrame as a table of Arrow, with types that do not depend on its values. Raises UsageError without pyarrow."""
    try:
        import pyarrow
    except ImportError as error:
        raise UsageError("an Arrow table or a Parquet file needs pyarrow: pip install 'collbench[pandas]'") from error
    fields = []
    arrays = []
    for name in frame.columns:
        column = columns_of()["frame"][name]
        kind = column.kind
        arrow_type = pyarrow.timestamp("us", "UTC") if kind is TIME else getattr(pyarrow, kind.arrow)()
        values = frame[name].map(_json, na_action=None) if kind is OBJECT else frame[name]
        fields.append(pyarrow.field(name, arrow_type, metadata={"description": column.description}))
        arrays.append(pyarrow.array(values, type=arrow_type, from_pandas=True))
    return pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields))


def _json(value: Any) -> str | None:
    """Return a nested value as JSON; None for an empty one, as in CSV."""
    return to_line({"": value}).removeprefix('{"":').removesuffix("}") if value else None


def write_parquet(table: pyarrow.Table, path: Path) -> Path:
    """Write the table in one step; return the path. Raises UsageError if that fails."""
    from pyarrow import parquet

    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        parquet.write_table(table, draft, compression="zstd")
        draft.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror or error}): choose another file") from error
    finally:
        draft.unlink(missing_ok=True)
    return path
