"""The tables and views of a store: one definition for SQLite and PostgreSQL, with the columns that the declared records have.

PostgreSQL has them in the schema `collbench`, so that a database may also have other tables. Names have units; times are seconds since
1970-01-01 UTC (`…_s`), rates bytes per second, as in the rows of a run folder. NULL is an unknown value. Flags are 0 or 1.
A column's `doc` is its meaning; `info["about"]` of a table is what a record of it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from sqlalchemy import (
    INTEGER,
    REAL,
    BigInteger,
    Column,
    ColumnElement,
    Dialect,
    Double,
    FromClause,
    Identity,
    Index,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    insert,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, CreateTable, SchemaItem

from collbench.columns import value_columns
from collbench.gating.verdict import GroupState
from collbench.plugins.hunt.records import SuspectRow
from collbench.results.row import CaseKey, Row

VERSION = 3
NAMESPACE = "collbench"  # the schema in PostgreSQL
APPLICATION_ID = 0x636F6C6C  # "coll": marks an SQLite file as a store

_TABLES = MetaData(naming_convention={"ix": "%(table_name)s_by_%(column_0_N_name)s"})
_VIEWS = MetaData()
_INTEGER: Any = BigInteger().with_variant(INTEGER(), "sqlite")
_REAL: Any = Double().with_variant(REAL(), "sqlite")
_TYPES: Mapping[type, Any] = {str: Text(), int: _INTEGER, bool: _INTEGER, float: _REAL}
_RENAMED = {"group": "ranks_group", "window": "window_size", "call": "call_form", "cells": "cases", "limit": "limit_factor"}
# `group`, `window` and `call` are words of SQL.


def _column(name: str, about: str, kind: Any = _TYPES[str], **options: Any) -> Column[Any]:
    return Column(name, kind, doc=about, **options)


_integer = partial(_column, kind=_INTEGER)
_real = partial(_column, kind=_REAL)
_required = partial(_column, nullable=False)
_key = partial(_column, primary_key=True, autoincrement=False)
_number = partial(_required, kind=_INTEGER)
_number_key = partial(_key, kind=_INTEGER)


def _assigned(name: str) -> Column[int]:
    """Return the key of a table: a number that the database assigns."""
    return Column(name, _INTEGER, Identity(), primary_key=True, doc="number in this store")


def column_of(name: str) -> str:
    """Return the column of a field of a record."""
    return _RENAMED.get(name, name)


def _declared(record: type, *names: str) -> list[Column[Any]]:
    """Return columns that a record declares, with the same meaning."""
    values = {column_of(value.name): value for value in value_columns(record)}
    return [_column(name, values[name].about, _TYPES[values[name].type]) for name in map(column_of, names)]


def _table(name: str, about: str, first: Column[Any], *columns: SchemaItem, indexes: tuple[tuple[str, ...], ...] = ()) -> Table:
    """Return a table. In SQLite one without a number that the database assigns is clustered by its key."""
    parts = [Index(None, *index) for index in indexes]
    return Table(name, _TABLES, first, *columns, *parts, info={"about": about}, sqlite_with_rowid=first.identity is not None)


STORE = _table("store", "A property of the store: its schema version.", _key("key", "name"), _required("value", "value"))
RUNS = _table(
    "runs",
    "A run folder: one launch.",
    _assigned("run_id"),
    _required("path", "absolute path of the folder", unique=True),
    _column("name", "name of the folder"),
    _column("operation", "of the command: allreduce, pairs, hunt, run-quick"),
    _real("started_s", "start, seconds since 1970 (UTC)"),
    _real("finished_s", "end; NULL: killed, or still running"),
    _integer("exit_code", "exit code; NULL: as finished_s"),
    _integer("ranks", "ranks"),
    _integer("nodes", "hosts"),
    _integer("results", "rows of the folder"),
    _required("fingerprint", "sizes and times of its files when it was read; empty: read it again"),
    _column("command", "command line as typed"),
    _column("allocation", "name of the allocation"),
    _integer("launch_index", "number of the launch in its allocation, from 0"),
    _integer("launches", "launches planned in its allocation"),
    _column("version", "version of collbench that measured"),
    _integer("imported", "1: another tool measured"),
    _integer("slowed", "1: slowed on purpose"),
    _integer("missing", "1: the folder was gone at the last sync"),
    _real("added_s", "when it was last read"),
    _column("info", "run.json as JSON; large values are numbers of documents"),
    _column("facts", "what is compared between runs, by kind, as JSON of numbers of documents"),
    indexes=(("started_s",), ("name",), ("allocation",)),
)
CASES = _table(
    "cases",
    "A test case: what was measured.",
    _assigned("case_id"),
    _required("content", "its columns as a JSON list", unique=True),
    *_declared(Row, *CaseKey._fields),
    indexes=(("operation", "backend", "size_bytes"),),
)
PERCENT = "percent_of_ceiling"
_OF_RATES = ("time_p50_s", "time_ci_low_s", "time_ci_high_s", "algbw_bytes_per_s", "busbw_bytes_per_s", PERCENT)
_OF_SAMPLES = ("checked", "n_eff", "time_min_s", "time_p95_s", "time_p99_s", "time_max_s", "time_rank_mean_s")
RESULTS = _table(
    "results",
    "The figures of one case in one run: a row of its folder.",
    _number_key("case_id", "case"),
    _number_key("run_id", "run"),
    _number_key("number", "place among the run's rows, from 0"),
    *_declared(Row, "n", *_OF_RATES, "wrong"),
    _integer("remark_id", "remarks of the row"),
    *_declared(Row, *_OF_SAMPLES),
    _integer("ceiling_id", "what the expected bandwidth comes from"),
    *_declared(Row, "ceiling_bytes_per_s"),
    _integer("hard_bound_id", "what the hard limit comes from"),
    *_declared(Row, "hard_bound_bytes_per_s"),
    _real("probe_before_s", "state probe before the case"),
    _real("probe_after_s", "state probe after the case"),
    _real("ended_s", "when the case ended, seconds since 1970 (UTC)"),
    _real("stolen", "share of the CPU time that a hypervisor took"),
    _integer("preempted", "how often a rank was preempted"),
    _column("detail", "rare values as JSON: modes, groups, message rate, factor under load, wrong elements in detail"),
    indexes=(("run_id", "case_id"),),
)
FIGURES = tuple(value for value in value_columns(Row) if value.name in RESULTS.c)
REMARKS = _table(
    "remarks",
    "What rows have in common besides figures.",
    _assigned("remark_id"),
    _required("content", "all of it as JSON", unique=True),
    _column("quality", "ok, noisy or unreliable; NULL: not measured"),
    _column("flags", "flags, separated by blanks"),
    _column("na", "why the case was not measured; NULL: it was"),
    _column("stopped", "why no more samples were taken"),
)
CEILINGS = _table(
    "ceilings",
    "Where an expected bandwidth or a hard limit comes from.",
    _assigned("ceiling_id"),
    _required("content", "all of it as JSON", unique=True),
    _column("kind", "measured, network, topology, given, simulated or none"),
    _column("model", "algorithm, or bound"),
    _column("limited_by", "limiting link or copy"),
    _column("source", "origin of the rate"),
)
DOCUMENTS = _table(
    "documents",
    "A part of run.json, facts of a run or a verdict, once for all that have it.",
    _assigned("document_id"),
    _required("digest", "SHA-256 of the JSON", unique=True),
    _required("content", "JSON, compressed with zlib", kind=LargeBinary()),
)
NODES = _table("nodes", "A host.", _assigned("node_id"), _required("name", "host name", unique=True))
RUN_NODES = _table(
    "run_nodes", "A host of a run.", _number_key("run_id", "run"), _number_key("node_id", "node"), indexes=(("node_id", "run_id"),)
)
LABELS = _table(
    "labels", "A label of a run (`store add --label`).", _number_key("run_id", "run"), _key("label", "label"), indexes=(("label",),)
)
HUNTS = _table(
    "hunts",
    "The verdict of a hunt, or the summary of a pairs run.",
    _number_key("run_id", "run"),
    _column("command", "hunt or pairs"),
    _column("result", "confirmed, no suspect or no verdict; NULL: not judged"),
    _column("backend", "backend"),
    _column("compared", "what a place is: node or rank"),
    _integer("places", "number of places"),
    _integer("rounds", "rounds measured"),
    _integer("size_bytes", "size of the messages"),
    _integer("confirmed", "confirmed suspects"),
    _integer("inconclusive", "inconclusive suspects"),
)
SUSPECTS = _table(
    "suspects",
    "A host in a suspect of a hunt or a pairs run.",
    _number_key("run_id", "run"),
    _number_key("number", "place among the run's suspects, from 0"),
    _number_key("node_id", "node"),
    *_declared(SuspectRow, "kind", "part", "state", "ratio", "ratio_low", "ratio_high"),
    indexes=(("node_id",),),
)
NODE_PAIRS = _table(
    "node_pairs",
    "The pairs of one place in a pairs run: medians over its partners.",
    _number_key("run_id", "run"),
    _number_key("place", "number of the place, from 0"),
    _number("node_id", "node"),
    _column("name", "name of the place"),
    _integer("partners", "partners measured"),
    _real("sent_bytes_per_s", "median rate to its partners"),
    _real("received_bytes_per_s", "median rate from its partners"),
    _real("latency_s", "median latency"),
    _integer("wrong", "wrong elements"),
    indexes=(("node_id",),),
)
TELEMETRY = _table(
    "telemetry",
    "A GPU during one case of a run (`--telemetry`): its samples summarized.",
    _number_key("run_id", "run"),
    _number_key("number", "place among the run's events with telemetry, from 0"),
    _number_key("node_id", "node"),
    _key("gpu", "PCI address"),
    _real("ended_s", "end of the case, seconds since 1970 (UTC)"),
    _integer("samples", "samples"),
    _real("sm_mhz", "median SM clock in MHz"),
    _real("power_w", "highest power in W"),
    _real("temperature_c", "highest temperature in °C"),
    _real("throttled", "share of the samples at which it was throttled"),
    PrimaryKeyConstraint("run_id", "node_id", "gpu", "number"),
)
VERDICTS = _table(
    "verdicts",
    "A verdict of `collbench gate` (verdict.json).",
    _assigned("verdict_id"),
    _required("path", "absolute path of the file", unique=True),
    _required("fingerprint", "size and time of the file when it was read"),
    _column("result", "passed, regression, no verdict or wrong data"),
    _column("mode", "baseline or paired"),
    _column("baseline", "folder of the baseline"),
    _column("candidates", "names of the judged allocations, as a JSON list"),
    _real("judged_s", "when it was judged: start of the last candidate that the store knows, else the day"),
    _integer("cases", "cases with a history"),
    _integer("confirmed", "confirmed slowdowns"),
    _integer("suspected", "suspected slowdowns"),
    _integer("slower", "cases that are slower"),
    _integer("faster", "cases that are faster"),
    _integer("unchanged", "cases without a change"),
    _integer("inconclusive", "inconclusive cases"),
    _column("cause", "kind of the likely cause"),
    _integer("document_id", "the whole verdict"),
    _integer("missing", "1: the file was gone at the last sync"),
    _real("added_s", "when it was last read"),
    indexes=(("judged_s",),),
)
VERDICT_GROUPS = _table(
    "verdict_groups",
    "A group of cases in a verdict.",
    _number_key("verdict_id", "verdict"),
    _number_key("number", "place in the verdict, from 0"),
    *_declared(GroupState, "operation", "backend", "size_class", "state", "outcome"),
    _real("factor", "time over the baseline's, in the first allocation"),
    *_declared(GroupState, "limit", "worst", "worst_factor", "cases", "missing"),
)
TABLES = tuple(_TABLES.tables.values())


class _Started(ColumnElement[Any]):
    """When a run began, as a moment of the database."""

    inherit_cache = True
    type = _TYPES[str]
    doc = "when the run began (UTC)"


@compiles(_Started, "sqlite")
def _started_in_sqlite(*_: Any, **__: Any) -> str:
    return "strftime('%Y-%m-%dT%H:%M:%SZ', runs.started_s, 'unixepoch')"


@compiles(_Started, "postgresql")
def _started_in_postgresql(*_: Any, **__: Any) -> str:
    return "to_timestamp(runs.started_s)"


def _columns(table: Table, *names: str) -> dict[str, Any]:
    """Return columns of a view with the names that they have in a table."""
    return {name: table.c[name] for name in names}


def _view(name: str, about: str, columns: Mapping[str, Any], source: FromClause) -> Table:
    """Return a view, with the statement of its records as `info["records"]`."""
    records = select(*(column.label(name) for name, column in columns.items())).select_from(source)
    view_columns = [Column(name, column.type, doc=column.doc) for name, column in columns.items()]
    return Table(name, _VIEWS, *view_columns, info={"about": about, "records": records})


def _joined(source: FromClause, *tables: Table, outer: bool = False) -> FromClause:
    """Return tables joined by their first columns, which have the same names in the source or in one of the tables before."""
    for table in tables:
        key = table.c[0]
        reference = next(column for column in source.c if column.name == key.name)
        source = source.join(table, key == reference, isouter=outer)
    return source


_RUN = {"run": RUNS.c.name, "started": _Started(), "started_s": RUNS.c.started_s}
_NODE = {"node": NODES.c.name}
_INNER = ("case_id", "run_id", "number", "remark_id", "ceiling_id", "hard_bound_id", "detail")
_HISTORY = (
    _columns(RESULTS, "run_id", "case_id")
    | {"run": RUNS.c.name}
    | _columns(RUNS, "path")
    | _RUN
    | _columns(RUNS, "allocation", "version")
    | _columns(CASES, *map(column_of, CaseKey._fields))
    | _columns(RESULTS, *(column.name for column in RESULTS.c if column.name not in _INNER))
    | _columns(CEILINGS, "limited_by")
    | _columns(REMARKS, "quality", "flags", "na")
)
_OF_RESULTS = _joined(_joined(RESULTS, RUNS, CASES), REMARKS, CEILINGS, outer=True)
HISTORY = _view("history", "Every result with its run and its case.", _HISTORY, _OF_RESULTS)
NODE_HISTORY = _view(
    "node_history",
    "As `history`, once for each host of the run (`node`).",
    _NODE | _HISTORY,
    _OF_RESULTS.join(RUN_NODES, RUN_NODES.c.run_id == RESULTS.c.run_id).join(NODES, NODES.c.node_id == RUN_NODES.c.node_id),
)
SUSPECT_HISTORY = _view(
    "suspect_history",
    "Every suspect of hunts and pairs runs, with its host and run.",
    _columns(SUSPECTS, "run_id") | _RUN | _NODE | _columns(SUSPECTS, "kind", "part", "state", "ratio"),
    _joined(SUSPECTS, RUNS, NODES),
)
PAIR_HISTORY = _view(
    "pair_history",
    "The median rates of every host in pairs runs.",
    _columns(NODE_PAIRS, "run_id")
    | _RUN
    | _NODE
    | {"place": NODE_PAIRS.c.name}
    | _columns(NODE_PAIRS, "partners", "sent_bytes_per_s", "received_bytes_per_s", "latency_s", "wrong"),
    _joined(NODE_PAIRS, RUNS, NODES),
)
TELEMETRY_HISTORY = _view(
    "telemetry_history",
    "The GPUs of every host during each case.",
    _columns(TELEMETRY, "run_id", "number")
    | _RUN
    | _NODE
    | _columns(TELEMETRY, "gpu", "ended_s", "samples", "sm_mhz", "power_w", "temperature_c", "throttled"),
    _joined(TELEMETRY, RUNS, NODES),
)
VIEWS = tuple(_VIEWS.tables.values())


def create(dialect: Dialect) -> Iterator[str]:
    """Yield the statements that create an empty store."""
    for table in TABLES:
        yield str(CreateTable(table).compile(dialect=dialect))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            yield str(CreateIndex(index).compile(dialect=dialect))
    for view in VIEWS:
        yield f"CREATE VIEW {view.name} AS {view.info['records'].compile(dialect=dialect)}"
    version = insert(STORE).values(key="schema", value=str(VERSION))
    yield str(version.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
