"""Queries of a store: its kinds of records, filters as typed values, and the statements that answer them.

A filter on cases is resolved to numbers of cases first, and one on runs becomes a list of runs: then the database finds the results of
one case by its primary key, however many results there are.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from math import isfinite
from typing import Any

import msgspec
from sqlalchemy import Column, ColumnElement, Table, or_, select

from collbench.errors import UsageError
from collbench.machine.readers.text import printable
from collbench.plugins.store.database import Database, Record
from collbench.plugins.store.reading import RunSelection
from collbench.plugins.store.schema import CASES, HISTORY, NODE_HISTORY, PAIR_HISTORY, PERCENT, RUNS, SUSPECT_HISTORY, VERDICTS
from collbench.units import parse_size

_MOMENTS = ("started",)  # columns with a type of the database


class Subject(msgspec.Struct, frozen=True):
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
    source: Table
    columns: Mapping[str, Column[Any]]
    shown: tuple[str, ...]
    order: str


_INNER = {"content", "digest", "info", "facts", "fingerprint", "document_id", "detail"}


def _subject(name: str, about: str, source: Table, shown: str, order: str) -> Subject:
    columns = {column.name: column for column in source.c if column.name not in _INNER}
    return Subject(name, about, source, columns, tuple(shown.split()), order)


_OF_RESULTS = f"started run operation backend size_bytes ranks dtype time_p50_s busbw_bytes_per_s {PERCENT} quality na"
_OF_RUNS = "started_s name operation allocation ranks nodes results exit_code missing path"
_OF_SUSPECTS = "started run node kind part state ratio"
_OF_PAIRS = "started run node partners sent_bytes_per_s received_bytes_per_s latency_s wrong"
_OF_VERDICTS = "judged_s result mode cases confirmed suspected slower faster unchanged inconclusive cause path"
RESULTS = _subject("results", "figures of cases", HISTORY, _OF_RESULTS, "started_s")
SUBJECTS = {
    subject.name: subject
    for subject in (
        RESULTS,
        _subject("runs", "run folders", RUNS, _OF_RUNS, "started_s"),
        _subject("suspects", "suspects of hunts and pairs runs", SUSPECT_HISTORY, _OF_SUSPECTS, "started_s"),
        _subject("pairs", "hosts of pairs runs", PAIR_HISTORY, _OF_PAIRS, "started_s"),
        _subject("verdicts", "verdicts of the gate", VERDICTS, _OF_VERDICTS, "judged_s"),
    )
}


_COMPARISONS: Mapping[str, Callable[[Any, Any], ColumnElement[bool]]] = {
    "!=": ColumnElement.is_distinct_from,
    "<=": operator.le,
    ">=": operator.ge,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
OPERATORS = tuple(_COMPARISONS)
_CONDITION = re.compile(r"\s*(\w+)\s*(!=|<=|>=|=|<|>)(.*)", re.DOTALL)


class Condition(msgspec.Struct, frozen=True):
    """A column compared with a value: one of OPERATORS. None: unknown (NULL), for "=" and "!=" alone."""

    column: str
    operator: str
    value: str | float | int | None

    def of(self, source: Table) -> ColumnElement[bool]:
        """Return the condition on a table."""
        return _COMPARISONS[self.operator](source.c[self.column], self.value)


def parse_condition(text: str, subject: Subject) -> Condition:
    """Return the condition of "dtype=float16", "size_bytes>=64K", "wrong>0" or "redop=" (unknown).

    Raises UsageError for an unknown column or operator, and for a value that does not fit the column.
    """
    match = _CONDITION.fullmatch(text)
    if not match:
        raise UsageError(f"'{printable(text)}' is not a valid condition: use COLUMN=VALUE, or one of {', '.join(OPERATORS)}")
    name, comparison, value = match.groups()
    value = value.strip()
    kind = check_column(name, subject).type.python_type
    if name in _MOMENTS:
        raise UsageError(f"'{name}' cannot be compared: use --since and --until")
    if not value:
        if comparison not in ("=", "!="):
            raise UsageError(f"'{printable(text)}' lacks a value: use {name}{comparison}VALUE")
        return Condition(name, comparison, None)
    return Condition(name, comparison, value if kind is str else _number(name, value))


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


def check_column(name: str, subject: Subject) -> Column[Any]:
    """Return a column. Raises UsageError for an unknown one, with similar names."""
    columns = columns_of(subject)
    if name not in columns:
        alike = get_close_matches(name, columns, n=1)
        hint = f": did you mean {alike[0]}?" if alike else f": choose from {', '.join(columns)}"
        raise UsageError(f"unknown column '{printable(name)}' of {subject.name}{hint}")
    return columns[name]


def columns_of(subject: Subject) -> Mapping[str, Column[Any]]:
    """Return the columns that a query may name, by name."""
    return {"node": NODE_HISTORY.c.node, **subject.columns} if subject is RESULTS else subject.columns


def size_condition(text: str) -> ColumnElement[bool]:
    """Return the condition of "64K", "8,1M" or "1K-1M" (both ends are part of it) on the table cases. Raises UsageError."""
    conditions: list[ColumnElement[bool]] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not dash:
            conditions.append(CASES.c.size_bytes == parse_size(part))
            continue
        first = parse_size(low)
        last = parse_size(high)
        if first > last:
            raise UsageError(f"size range '{part}' is reversed: write the smaller size first, {high}-{low}")
        conditions.append(CASES.c.size_bytes.between(first, last))
    return or_(*conditions)


class Query(msgspec.Struct, frozen=True):
    """A query.

    subject     the kind of records
    columns     of the records, in order; () for those that a table shows
    runs        which runs; of verdicts only the time counts
    operations, backends   (): any
    sizes       text as `size_condition` takes it; "": any
    conditions  further conditions on columns
    limit       the most records, newest first; None: all
    """

    subject: Subject = RESULTS
    columns: tuple[str, ...] = ()
    runs: RunSelection = msgspec.field(default_factory=RunSelection)
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
    used_columns = (*query.names, *(condition.column for condition in query.conditions))
    has_nodes = query.subject is RESULTS and "node" in used_columns
    source = NODE_HISTORY if has_nodes else query.subject.source
    conditions = list(_conditions(database, query, source))
    if has_nodes and query.runs.nodes:
        conditions.append(source.c.node.in_(query.runs.nodes))
    number = source.c.verdict_id if source is VERDICTS else source.c.run_id
    order: list[ColumnElement[Any]] = [source.c[query.subject.order].desc().nulls_last(), number.desc()]
    if query.subject is RESULTS:
        order += [source.c.operation, source.c.backend, source.c.size_bytes]
    statement = select(*(source.c[name] for name in query.names)).where(*conditions).order_by(*order).limit(query.limit)
    yield from database.stream(statement)


_MOST_CASES = 300  # cases or runs in a list; of more a join finds the results


def _conditions(database: Database, query: Query, source: Table) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions on a table or view: on cases and on runs as numbers, and all others."""
    case_conditions: list[ColumnElement[bool]] = []
    for condition in query.conditions:
        if query.subject is RESULTS and condition.column in CASES.c:
            case_conditions.append(condition.of(CASES))
        else:
            yield condition.of(source)
    if query.subject is RESULTS:
        for column, names in ((CASES.c.operation, query.operations), (CASES.c.backend, query.backends)):
            if names:
                case_conditions.append(column.in_(names))
        if query.sizes:
            case_conditions.append(size_condition(query.sizes))
    if case_conditions:
        selected = select(CASES.c.case_id).where(*case_conditions)
        cases = [number for (number,) in database.rows(selected.limit(_MOST_CASES + 1))]
        yield source.c.case_id.in_(cases if len(cases) <= _MOST_CASES else selected)
    if source is VERDICTS:
        yield from query.runs.times(source.c[query.subject.order])
        return
    newest = _newest(database, query, source)
    if newest:
        yield source.c.run_id.in_(newest)
    else:
        yield from query.runs.of_results(source.c.run_id)


def _newest(database: Database, query: Query, source: Table) -> list[int]:
    """Return the runs that have the first results up to the limit, so that the database need not sort all; [] if it has to."""
    filtered = query.operations or query.backends or query.sizes or query.conditions
    if query.subject is not RESULTS or query.limit is None or filtered:
        return []
    runs = select(RUNS.c.run_id, RUNS.c.results).where(*query.runs.conditions())
    if source is NODE_HISTORY:  # which lacks runs without hosts
        runs = runs.where(RUNS.c.nodes.is_not(None))
    newest: list[int] = []
    results = 0
    newest_first = (RUNS.c.started_s.desc().nulls_last(), RUNS.c.run_id.desc())
    for run_id, results_of_run in database.rows(runs.order_by(*newest_first).limit(_MOST_CASES)):
        newest.append(run_id)
        results += results_of_run or 0
        if results >= query.limit:
            return newest
    return []
