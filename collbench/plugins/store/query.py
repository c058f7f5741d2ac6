"""Queries of a store: its kinds of records, filters as typed values, and the SQL that answers them.

A filter on cases is resolved to numbers of cases first, and one on runs becomes a list of runs: then the database finds the results of
one case by its primary key, however many results there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import isfinite
from typing import Any

from collbench.errors import UsageError
from collbench.machine.readers.text import printable
from collbench.plugins.store.database import Database, Record, marks
from collbench.plugins.store.reading import RunSelection
from collbench.plugins.store.schema import CASES, PERCENT, RUNS, TABLES, VERDICTS, VIEWS, StoreColumn
from collbench.units import parse_size

_ALL = {(table.name, column.name): column for table in TABLES for column in table.columns}
_OF_VIEWS = {view.name: view for view in VIEWS}
_MOMENTS = ("started",)  # columns with a type of the database


@dataclass(frozen=True)
class Subject:
    """A kind of records.

    name     of `--of`
    about    what a record is
    source   the table or view
    columns  all of its columns, by name
    shown    the columns of a table without `--columns`
    order    the column that sorts, newest first
    """

    name: str
    about: str
    source: str
    columns: Mapping[str, StoreColumn]
    shown: tuple[str, ...]
    order: str


def _columns_of(source: str) -> dict[str, StoreColumn]:
    """Return the columns of a table or a view, by name, with their types and meanings."""
    if source not in _OF_VIEWS:
        table = next(table for table in TABLES if table.name == source)
        return {column.name: column for column in table.columns}
    found = {}
    for name, sql in _OF_VIEWS[source].columns:
        owner, _, column = sql.partition(".")
        known = _ALL.get((owner, column))
        found[name] = known or StoreColumn(name, "when the run began (UTC)")
    return found


def _subject(name: str, about: str, source: str, shown: str, order: str) -> Subject:
    columns = _columns_of(source)
    return Subject(name, about, source, {key: each for key, each in columns.items() if key not in _INNER}, tuple(shown.split()), order)


_INNER = {"content", "digest", "info", "facts", "fingerprint", "document_id", "detail"}
RESULTS = _subject(
    "results", "figures of cases", "history",
    f"started run operation backend size_bytes ranks dtype time_p50_s busbw_bytes_per_s {PERCENT} quality na", "started_s",
)  # fmt: skip
SUBJECTS = {
    each.name: each
    for each in (
        RESULTS,
        _subject(
            "runs", "run folders", RUNS.name, "started_s name operation allocation ranks nodes results exit_code missing path", "started_s"
        ),
        _subject("suspects", "suspects of hunts and pairs runs", "suspect_history", "started run node kind part state ratio", "started_s"),
        _subject(
            "pairs", "hosts of pairs runs", "pair_history",
            "started run node partners sent_bytes_per_s received_bytes_per_s latency_s wrong", "started_s",
        ),
        _subject(
            "verdicts", "verdicts of the gate", VERDICTS.name,
            "judged_s result mode cases confirmed suspected slower faster unchanged inconclusive cause path", "judged_s",
        ),
    )
}  # fmt: skip
_BY_NODE = _columns_of("node_history")


# Filters.

OPERATORS = ("!=", "<=", ">=", "=", "<", ">")
_CONDITION = re.compile(r"\s*(\w+)\s*(!=|<=|>=|=|<|>)(.*)", re.DOTALL)


@dataclass(frozen=True)
class Condition:
    """A column compared with a value: one of OPERATORS. None: unknown (NULL), for "=" and "!=" alone."""

    column: str
    operator: str
    value: str | float | int | None

    def sql(self) -> tuple[str, list[Any]]:
        """Return (condition, values)."""
        if self.value is None:
            return f"{self.column} IS {'NOT ' if self.operator == '!=' else ''}NULL", []
        if self.operator == "!=":
            return f"({self.column} <> ? OR {self.column} IS NULL)", [self.value]
        return f"{self.column} {self.operator} ?", [self.value]


def parse_condition(text: str, subject: Subject) -> Condition:
    """Return the condition of "dtype=float16", "size_bytes>=64K", "wrong>0" or "redop=" (unknown).

    Raises UsageError for an unknown column or operator, and for a value that does not fit the column.
    """
    match = _CONDITION.fullmatch(text)
    if not match:
        raise UsageError(f"'{printable(text)}' is not a valid condition: use COLUMN=VALUE, or one of {', '.join(OPERATORS)}")
    name, operator, value = match[1], match[2], match[3].strip()
    kind = check_column(name, subject).kind
    if name in _MOMENTS:
        raise UsageError(f"'{name}' cannot be compared: use --since and --until")
    if not value:
        if operator not in ("=", "!="):
            raise UsageError(f"'{printable(text)}' lacks a value: use {name}{operator}VALUE")
        return Condition(name, operator, None)
    return Condition(name, operator, value if kind == "text" else _number(name, value))


def _number(name: str, text: str) -> float | int:
    if name.endswith("size_bytes"):
        return parse_size(text)
    try:
        value = float(text) if text.isascii() else float("nan")
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise UsageError(f"{name}: '{printable(text)}' is not a valid number")
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def check_column(name: str, subject: Subject) -> StoreColumn:
    """Return a column. Raises UsageError for an unknown one, with similar names."""
    columns = columns_of(subject)
    if name not in columns:
        alike = get_close_matches(name, columns, n=1)
        hint = f": did you mean {alike[0]}?" if alike else f": choose from {', '.join(columns)}"
        raise UsageError(f"unknown column '{printable(name)}' of {subject.name}{hint}")
    return columns[name]


def columns_of(subject: Subject) -> Mapping[str, StoreColumn]:
    """Return the columns that a query may name, by name."""
    return {"node": _BY_NODE["node"], **subject.columns} if subject is RESULTS else subject.columns


def size_conditions(text: str) -> tuple[str, list[Any]]:
    """Return (condition on size_bytes, values) of "64K", "8,1M" or "1K-1M" (both ends are part of it). Raises UsageError."""
    parts: list[str] = []
    values: list[Any] = []
    for part in text.split(","):
        low, between, high = part.partition("-")
        if between:
            first, last = parse_size(low), parse_size(high)
            if first > last:
                raise UsageError(f"size range '{part}' is reversed: write the smaller size first, {high}-{low}")
            parts.append("size_bytes BETWEEN ? AND ?")
            values += [first, last]
        else:
            parts.append("size_bytes = ?")
            values.append(parse_size(part))
    return f"({' OR '.join(parts)})", values


@dataclass(frozen=True)
class Query:
    """A query.

    subject     the kind of records
    columns     of the records, in order; () for those that a table shows
    runs        which runs; of verdicts only the time counts
    operations, backends   (): any
    sizes       text as `size_conditions` takes it; "": any
    conditions  further conditions on columns
    limit       the most records, newest first; None: all
    """

    subject: Subject = RESULTS
    columns: tuple[str, ...] = ()
    runs: RunSelection = field(default_factory=RunSelection)
    operations: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    sizes: str = ""
    conditions: tuple[Condition, ...] = ()
    limit: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns of each record."""
        return self.columns or self.subject.shown


def records(database: Database, query: Query) -> Iterator[Record]:
    """Yield the records of a query, newest first, in the order of `query.names`. Raises UsageError for an unknown column."""
    for name in query.names:
        check_column(name, query.subject)
    parts: list[str] = []
    values: list[Any] = []
    of_nodes = query.subject is RESULTS and ("node" in query.names or any(each.column == "node" for each in query.conditions))
    for condition, more in _conditions(database, query):
        parts.append(condition)
        values += more
    if of_nodes and query.runs.nodes:
        parts.append(f"node IN ({marks(query.runs.nodes)})")
        values += query.runs.nodes
    source = "node_history" if of_nodes else query.subject.source
    where = f" WHERE {' AND '.join(parts)}" if parts else ""
    number = {"verdicts": "verdict_id"}.get(query.subject.name, "run_id")
    within = ", operation, backend, size_bytes" if query.subject is RESULTS else ""
    order = f" ORDER BY {query.subject.order} DESC NULLS LAST, {number} DESC{within}"
    limit = f" LIMIT {query.limit}" if query.limit is not None else ""
    yield from database.stream(f"SELECT {', '.join(query.names)} FROM {source}{where}{order}{limit}", values)


_MOST_CASES = 300  # cases or runs in a list; of more a join finds the results


def _conditions(database: Database, query: Query) -> Iterator[tuple[str, list[Any]]]:
    """Yield (condition, values): on cases and on runs as numbers, and all others."""
    own = {column.name for column in CASES.columns}
    of_cases = [each for each in query.conditions if query.subject is RESULTS and each.column in own]
    if query.subject is RESULTS:
        found = [each.sql() for each in of_cases]
        for column, names in (("operation", query.operations), ("backend", query.backends)):
            if names:
                found.append((f"{column} IN ({marks(names)})", list(names)))
        if query.sizes:
            found.append(size_conditions(query.sizes))
        if found:
            condition, values = " AND ".join(sql for sql, _ in found), [value for _, more in found for value in more]
            cases = [number for (number,) in database.rows(f"SELECT case_id FROM cases WHERE {condition} LIMIT {_MOST_CASES + 1}", values)]
            if len(cases) > _MOST_CASES:
                yield f"case_id IN (SELECT case_id FROM cases WHERE {condition})", values
            else:
                yield f"case_id IN ({marks(cases)})" if cases else "1 = 0", cases
    yield from (each.sql() for each in query.conditions if each not in of_cases)
    if query.subject.source == VERDICTS.name:
        times = ((f"{query.subject.order} >= ?", query.runs.since_s), (f"{query.subject.order} < ?", query.runs.until_s))
        yield from ((sql, [value]) for sql, value in times if value is not None)
        return
    condition, values = query.runs.sql()
    newest = _newest(database, query)
    if newest:
        yield f"run_id IN ({marks(newest)})", newest
    elif condition:
        yield f"run_id IN (SELECT runs.run_id FROM runs WHERE {condition})", values


def _newest(database: Database, query: Query) -> list[Any]:
    """Return the runs that have the first results up to the limit, so that the database need not sort all; [] if it has to."""
    filtered = query.operations or query.backends or query.sizes or query.conditions
    if query.subject is not RESULTS or query.limit is None or filtered:
        return []
    condition, values = query.runs.sql()
    where = f" WHERE {condition}" if condition else ""
    order = f"ORDER BY started_s DESC NULLS LAST, run_id DESC LIMIT {_MOST_CASES}"
    found: list[Any] = []
    known = 0
    for number, results in database.rows(f"SELECT run_id, results FROM runs{where} {order}", values):
        found.append(number)
        known += results or 0
        if known >= query.limit:
            return found
    return []
