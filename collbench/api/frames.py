"""Runs as DataFrames, and as tables of Arrow: one definition of each column's kind, unit and description.

pandas and pyarrow are the extra `pandas`; they are imported when a table is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from collbench.analysis.launches import Launches
from collbench.errors import UnreadableRun, UsageError
from collbench.plugin import loaded_parts, plugins
from collbench.records import R, RecordKind
from collbench.report.explain import word_table
from collbench.report.kinds import RunKind
from collbench.report.plan import in_print_order
from collbench.report.writers import csv_columns, row_values
from collbench.results.reader import Damage, Run
from collbench.results.store import to_line

if TYPE_CHECKING:
    import pandas
    import pyarrow


# Columns: the kind of the values, and their descriptions in `attrs["columns"]`.


@dataclass(frozen=True)
class ValueKind:
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
_OF_TYPES = {str: TEXT, int: COUNT, bool: FLAG, float: FLOAT, object: OBJECT}
# Seconds, and bytes per second, are FLOAT by the ends of their names; all others are TEXT.
_KINDS = {
    COUNT: (
        "root", "size_bytes", "count", "ranks", "nodes", "window", "streams", "n", "launches", "checked", "wrong", "groups_count",
        "overlap_blocks", "groups_ranks", "row", "sample", "slowest_rank",
    ),
    FLAG: ("in_place", "reached", "ceiling_disturbed"),
    FLOAT: (
        "overlap_percent", "overlap_percent_low", "overlap_percent_high", "overlap_slowdown", "overlap_slowdown_low",
        "overlap_slowdown_high", "overlap_assisted_percent",
        "target", "n_eff", "message_rate", "percent_of_ceiling", "percent_of_hard_bound", "percent_of_expected_time",
        "percent_of_expected_time_low", "percent_of_expected_time_high",
    ),
    OBJECT: ("modes", "flags", "evidence", "slowest_ranks", "groups_p50_s", "groups_busbw_bytes_per_s"),
}  # fmt: skip
_OF_RUN = {
    "path": "The run folder.",
    "started_utc": "When the run began.",
    "allocation": "The name of the allocation: launches with the same name repeat one another.",
    "collbench": "The version that measured.",
}
# Descriptions of columns for which `collbench explain` has a page together with other columns, or none.
_TEXTS = {
    "target": "The half-width of the confidence interval that was aimed at, as a share of the median.",
    "reached": "Whether the interval became as narrow as that.",
    "stopped": "Why the sampling stopped: precision, out_of_reach, max_time, most_samples or iterations.",
    "n": "The number of samples.",
    "n_eff": "How many independent samples they are worth.",
    "time_p50_s": "The median time per message of the slowest rank; of an imported row the statistic of its tool.",
    "time_ci_low_s": "The lower end of the 95 % confidence interval of the median.",
    "time_ci_high_s": "The upper end of the 95 % confidence interval of the median.",
    "time_min_s": "The shortest sample.",
    "time_p95_s": "The 95th percentile of the samples.",
    "time_p99_s": "The 99th percentile of the samples.",
    "time_max_s": "The longest sample.",
    "time_rank_mean_s": "The mean over all ranks and samples.",
    "message_rate": "Of multipair: messages per second of all pairs together.",
    "groups_count": "The number of groups that ran at the same time.",
    "groups_ranks": "The number of ranks of each of these groups.",
    "groups_p50_s": "The median time of each group.",
    "groups_busbw_bytes_per_s": "The bus bandwidth of each group.",
    "groups_total_busbw_bytes_per_s": "The bus bandwidth of all groups together, until the last one is done.",
    "overlap_communication_s": "The time of the communication alone (`--overlap`).",
    "overlap_computation_s": "The time of the computation alone.",
    "overlap_percent": "100 · (1 − (both − computation) / communication), not limited to 0–100.",
    "overlap_percent_low": "The lower end of the 95 % confidence interval of `overlap_percent`.",
    "overlap_percent_high": "The upper end of the 95 % confidence interval of `overlap_percent`.",
    "overlap_exposed_s": "The time that the communication adds to the computation.",
    "overlap_exposed_low_s": "The lower end of the 95 % confidence interval of `overlap_exposed_s`.",
    "overlap_exposed_high_s": "The upper end of the 95 % confidence interval of `overlap_exposed_s`.",
    "overlap_slowdown": "The time of the computation during the communication, divided by its time alone.",
    "overlap_slowdown_low": "The lower end of the 95 % confidence interval of `overlap_slowdown`.",
    "overlap_slowdown_high": "The upper end of the 95 % confidence interval of `overlap_slowdown`.",
    "overlap_assisted_percent": "The overlap with test calls between slices of the computation.",
    "overlap_payer": "What takes the exposed time: computation, waiting or none.",
    "overlap_progress": "What moves data while a rank computes: threads or calls of the library.",
    "overlap_blocks": "The number of blocks of one sample of each state.",
    "overlap_outcome": "hidden, partial, exposed or inconclusive.",
    "ceiling_kind": "The kind of expected bandwidth: measured, network, topology, given, simulated or none.",
    "ceiling_bytes_per_s": "The expected bus bandwidth: what a healthy system approaches.",
    "ceiling_limited_by": "The link or resource that sets the expected bandwidth; without a rate, the reason.",
    "ceiling_model": "The algorithm of the expected bandwidth: ring, tree, nvls, nvls_tree or direct; or bound.",
    "ceiling_source": "The origin of its rate.",
    "ceiling_low_bytes_per_s": "The lower end of the interval of a measured reference.",
    "ceiling_high_bytes_per_s": "The upper end of the interval of a measured reference.",
    "ceiling_disturbed": "Whether the repetitions of a measured reference did not agree; the row then lacks a percentage.",
    "ceiling_efficiency": "The share of the links' rate that the algorithm reaches by the library's constants.",
    "ceiling_constants": "The origin of this share.",
    "hard_bound_kind": "The kind of hard limit.",
    "hard_bound_bytes_per_s": "The hard limit: the bus bandwidth that no algorithm can exceed on these links.",
    "hard_bound_limited_by": "The link or resource that sets the hard limit.",
    "hard_bound_model": "How the hard limit was computed.",
    "hard_bound_source": "The origin of the rate of the hard limit.",
    "percent_of_ceiling": "The measured bus bandwidth as a share of the expected one.",
    "percent_of_hard_bound": "The measured bus bandwidth as a share of the hard limit.",
    "expected_time_s": "The time that a model expects of the row's size.",
    "percent_of_expected_time": "The expected time as a share of the measured one: below 100 the row is slower.",
    "percent_of_expected_time_low": "The lower end of its interval, from the interval of the measured time.",
    "percent_of_expected_time_high": "The upper end of its interval.",
    "expected_time_origin": "The model of the expected time; or why there is none.",
    "checked": "The number of iterations of which the data was verified.",
    "wrong": "The number of wrong elements in these iterations; missing if none was verified.",
    "wrong_detail": "The first wrong element, with the expected and the received value.",
    "canary_before_s": "The time of the state probe, which is fixed work, before the case.",
    "canary_after_s": "The time of the state probe after the case.",
    "row": "The index of the case in the rows of its run.",
    "sample": "The number of the sample, from 0, in the order in which they were taken.",
    "time_s": "The time per message of the slowest rank.",
    "mean_s": "The mean over the ranks of the time per message.",
    "slowest_rank": "The rank that took longest.",
}
_UNITS = (("_bytes_per_s", "bytes per second"), ("_bytes", "bytes"), ("_s", "seconds"), ("_utc", "UTC"))


@dataclass(frozen=True)
class TableColumn:
    """A column of a table: the kind of its values, and what it means, with the unit."""

    kind: ValueKind
    description: str


@dataclass(frozen=True)
class RecordTable:
    """A table of runs of one kind, which a plug-in brings.

    name     of the method of `Runs` that returns it
    columns  returns the names of its columns
    records  yields the values of each record of a run in the order of the columns, nothing for runs of other kinds; its second argument:
             whether damaged records raise UnreadableRun
    kinds    by column the kind of its values, where it differs from that of the core's column and does not follow from the end of its name
    texts    by column its description, where it differs from that of the core's column
    """

    name: str
    columns: Callable[[], Iterable[str]]
    records: Callable[[Run, bool], Iterable[Sequence[Any]]]
    kinds: Mapping[str, ValueKind] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    def described(self) -> dict[str, TableColumn]:
        """Return its columns."""
        return {name: TableColumn(self.kinds.get(name) or _kind(name), _description(name, self.texts.get(name))) for name in self.columns()}


@dataclass(frozen=True)
class DeclaredTable(Generic[R]):
    """A table of the declared records of a kind of runs, as `RecordTable`."""

    name: str
    kind: RecordKind[R]
    runs: RunKind

    def described(self) -> dict[str, TableColumn]:
        """Return its columns."""
        columns = {"run": TableColumn(TEXT, _description("run"))}
        for column in self.kind.values:
            unit = f" Unit: {column.unit.name}." if column.unit.name else ""
            columns[column.name] = TableColumn(_OF_TYPES[column.type], f"{column.about}{unit}")
        return columns

    def records_of(self, run: Run, strict: bool) -> Sequence[R]:
        """Return the records of a run in their order. Raises UnreadableRun for damaged ones, unless not `strict`."""
        if not self.runs.holds(run):
            return []
        records, warnings = self.kind.read(run.path)
        check_records(warnings, strict)
        return self.kind.order(records)

    def records(self, run: Run, strict: bool) -> Iterator[Sequence[Any]]:
        """Yield the values of each record of a run in the order of the columns."""
        name = run.path.resolve().name
        for record in self.records_of(run, strict):
            yield [name, *(column.value(record) for column in self.kind.values)]

    def all_records(self) -> property:
        """Return a property of `Runs` with the records of all runs."""

        def records(runs: Any) -> list[R]:
            return [record for run in runs for record in self.records_of(run, runs.strict)]

        records.__doc__ = (
            f"The rows of all runs of `collbench {self.kind.name}`, as typed values. Raises UnreadableRun for damaged records."
        )
        return property(records)


@cache
def columns_of() -> Mapping[str, Mapping[str, TableColumn]]:
    """Return the columns of each table, by the name of the method of `Runs` that makes it."""
    names = {
        "frame": ("run", *_OF_RUN, *csv_columns()[1:]),
        "samples": ("run", "row", "operation", "backend", "size_bytes", "ranks", "sample", "time_s", "mean_s", "slowest_rank"),
    }
    columns = {table: {name: TableColumn(_kind(name), _description(name)) for name in each} for table, each in names.items()}
    tables: list[RecordTable | DeclaredTable[Any]] = list(loaded_parts(place for plugin in plugins().values() for place in plugin.tables))
    for table in tables:
        columns[table.name] = table.described()
    return columns


def _kind(name: str) -> ValueKind:
    found = next((kind for kind, names in _KINDS.items() if name in names), None)
    return found or (TIME if name.endswith("_utc") else FLOAT if name.endswith("_s") else TEXT)


def _description(name: str, text: str | None = None) -> str:
    """Return the text, or that of the core's column, with the unit."""
    text = text or (_OF_RUN | _TEXTS).get(name) or _words().get(name, "")
    unit = "percent" if name.startswith("percent") else next((unit for end, unit in _UNITS if name.endswith(end)), "")
    return f"{text} Unit: {unit}." if unit else text


@cache
def _words() -> Mapping[str, str]:
    """Return the first sentence of `collbench explain`, by column and by field of CSV."""
    found: dict[str, str] = {}
    for page in word_table():
        if page.group == "column":
            first, dot, _ = " ".join(page.means.split()).partition(". ")
            found |= dict.fromkeys((page.word, *page.names), first + dot.strip())
    return found


# DataFrames.


def _frame(table: str, records: Iterable[Sequence[Any]]) -> pandas.DataFrame:
    """Return the DataFrame of records with a value for each column of the table. Raises UsageError without pandas."""
    try:
        import pandas
    except ImportError as error:
        raise UsageError("a DataFrame needs pandas: pip install 'collbench[pandas]'") from error
    columns = columns_of()[table]
    values = list(zip(*records, strict=True)) or [()] * len(columns)
    frame = pandas.DataFrame({name: _series(pandas, each.kind, own) for (name, each), own in zip(columns.items(), values, strict=True)})
    frame.attrs["columns"] = {name: each.description for name, each in columns.items()}
    return frame


def _series(pandas: Any, kind: ValueKind, values: Sequence[Any]) -> Any:
    """Return a column of a DataFrame; a value of another type, which an altered run may have, is unknown."""
    known = [value if _fits(value, kind) else None for value in values]
    if kind is TIME:
        return pandas.Series(pandas.to_datetime(known, utc=True, errors="coerce", format="ISO8601")).astype(kind.pandas)
    return pandas.Series([_encodable(value) for value in known] if kind is TEXT else known, dtype=kind.pandas)


def _fits(value: Any, kind: ValueKind) -> bool:
    return isinstance(value, kind.types) and (kind in (FLAG, OBJECT) or not isinstance(value, bool))


def _encodable(text: str | None) -> str | None:
    """Return the text with "?" for each half of a surrogate pair, which UTF-8 does not have."""
    return text if text is None or text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def of_rows(tables: Sequence[Launches], columns: Sequence[str] | None = None) -> pandas.DataFrame:
    """Return a row per row of the tables, ordered as the report prints them; `columns`: names to select, None: all.

    Raises UsageError for an unknown name.
    """
    names = [_known(name) for name in ([columns] if isinstance(columns, str) else columns or ())]
    records = (
        [*of_run, *(value for _, value in row_values(row))] for table, of_run in _heads(tables) for row in in_print_order(table.rows)
    )
    frame = _frame("frame", records)
    if columns is None:
        return frame
    selected = frame[names]
    selected.attrs["columns"] = {name: frame.attrs["columns"][name] for name in names}
    return selected


def _heads(tables: Sequence[Launches]) -> Iterator[tuple[Launches, list[Any]]]:
    for table in tables:
        first = table.runs[0]
        facts = [_text(first.info.get(name)) for name in ("started_utc", "allocation_id", "collbench")]
        yield table, [table.name, str(first.path), *facts]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _known(name: str) -> str:
    names = list(columns_of()["frame"])
    if name in names:
        return name
    near = get_close_matches(str(name), names, 3) or [each for each in names if str(name) in each][:3]
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(names)}"
    raise UsageError(f"unknown column {name!r:.60}: {hint}")


def of_samples(runs: Iterable[Run]) -> pandas.DataFrame:
    """Return a row per stored sample."""
    return _frame("samples", (record for run in runs for record in _samples_of(run)))


def _samples_of(run: Run) -> Iterator[Sequence[Any]]:
    name = run.path.resolve().name
    index_of = {id(row): index for index, row in enumerate(run.rows)}
    for row in in_print_order(run.rows):
        if "max_s" not in row.samples:
            continue
        times = run.array(row, "max_s").ravel().tolist()
        means, ranks = (
            run.array(row, each).ravel().tolist() if each in row.samples else [None] * len(times) for each in ("mean_s", "slowest_rank")
        )
        if not len(times) == len(means) == len(ranks):
            raise UsageError(f"{run.path}: the samples of {row.operation} have different lengths: the run was altered")
        about = (name, index_of[id(row)], row.operation, row.backend, row.size_bytes, row.ranks)
        yield from ((*about, number, *each) for number, each in enumerate(zip(times, means, ranks, strict=True)))


def frame_of(table: RecordTable | DeclaredTable[Any], runs: Iterable[Run], strict: bool) -> pandas.DataFrame:
    """Return the records of all runs in a table. Raises UnreadableRun for damaged records, unless not `strict`."""
    return _frame(table.name, (record for run in runs for record in table.records(run, strict)))


def check_records(warnings: Sequence[str], strict: bool = True) -> None:
    """Raise UnreadableRun, if `strict`, where records of a run cannot be read."""
    if strict and any(isinstance(each, Damage) for each in warnings):
        raise UnreadableRun(f"{'; '.join(warnings)}; use `collbench.read(…, strict=False)` for what can be read")


# Tables of Arrow, and Parquet files.


def to_arrow(frame: pandas.DataFrame) -> pyarrow.Table:
    """Return the DataFrame as a table of Arrow, with types that do not depend on its values. Raises UsageError without pyarrow."""
    try:
        import pyarrow
    except ImportError as error:
        raise UsageError("an Arrow table or a Parquet file needs pyarrow: pip install 'collbench[pandas]'") from error
    fields, arrays = [], []
    for name in frame.columns:
        column = columns_of()["frame"][name]
        kind = column.kind
        made = pyarrow.timestamp("us", "UTC") if kind is TIME else getattr(pyarrow, kind.arrow)()
        values = frame[name].map(_json, na_action=None) if kind is OBJECT else frame[name]
        fields.append(pyarrow.field(name, made, metadata={"description": column.description}))
        arrays.append(pyarrow.array(values, type=made, from_pandas=True))
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
