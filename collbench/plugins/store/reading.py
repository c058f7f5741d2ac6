"""Runs as a store keeps them: selected by name, label, host and time, and rebuilt without their folders.

A rebuilt run has everything that comparisons and the gate use: run.json, the rows' figures, and the facts that are compared. What only
the folder has (samples, slowest ranks, events) raises an error that names the folder.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Table, bindparam, or_, select

from collbench.errors import UsageError
from collbench.machine.peak.ceiling import Ceiling
from collbench.machine.peak.limits import limit_parts
from collbench.machine.readers.text import printable
from collbench.plugins.store.database import Database, Record, among
from collbench.plugins.store.folders import fingerprint_of, stored_path
from collbench.plugins.store.schema import CASES, CEILINGS, DOCUMENTS, LABELS, NODES, REMARKS, RESULTS, RUN_NODES, RUNS
from collbench.results.reader import Run
from collbench.results.row import CaseKey, Row, Times
from collbench.untrusted import parse_json


class RunSelection(msgspec.Struct, frozen=True):
    """Which runs: all that fit every given part.

    names    names or paths of runs, names of allocations, or labels; (): any
    nodes    hosts, of which a run has at least one; (): any
    labels   labels, of which a run has at least one; (): any
    since_s, until_s  when they began, seconds since 1970; until_s is not part of it; None: any time
    """

    names: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    since_s: float | None = None
    until_s: float | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the conditions on the table runs; [] for all runs."""
        conditions: list[ColumnElement[bool]] = []
        if self.names:
            paths = [_path_of(name) for name in self.names]
            is_named = (RUNS.c.name.in_(self.names), RUNS.c.allocation.in_(self.names), RUNS.c.path.in_(paths), _has_label(self.names))
            conditions.append(or_(*is_named))
        if self.nodes:
            on_nodes = select(RUN_NODES.c.run_id).join(NODES, NODES.c.node_id == RUN_NODES.c.node_id).where(NODES.c.name.in_(self.nodes))
            conditions.append(RUNS.c.run_id.in_(on_nodes))
        if self.labels:
            conditions.append(_has_label(self.labels))
        return conditions + self.times(RUNS.c.started_s)

    def times(self, moment: ColumnElement[Any]) -> list[ColumnElement[bool]]:
        """Return the conditions on a moment."""
        conditions: list[ColumnElement[bool]] = []
        if self.since_s is not None:
            conditions.append(moment >= self.since_s)
        if self.until_s is not None:
            conditions.append(moment < self.until_s)
        return conditions

    def of_results(self, run_id: ColumnElement[Any]) -> list[ColumnElement[bool]]:
        """Return the condition on a run's number in another table or view; [] for all runs."""
        conditions = self.conditions()
        return [run_id.in_(select(RUNS.c.run_id).where(*conditions))] if conditions else []


def _has_label(labels: Sequence[str]) -> ColumnElement[bool]:
    return RUNS.c.run_id.in_(select(LABELS.c.run_id).where(LABELS.c.label.in_(labels)))


def _path_of(name: str) -> str:
    try:
        return stored_path(Path(name))
    except (UsageError, OSError, ValueError):
        return name


class StoredRun(Run, frozen=True):
    """A run rebuilt from a store."""

    @property
    def is_there(self) -> bool:
        """Return whether the folder still exists."""
        return fingerprint_of(self.path) is not None

    def array(self, row: Row, name: str) -> NDArray[Any]:
        """Raise UsageError: a store has no samples."""
        raise UsageError(f"{self.path} is gone, and its store has no samples: bring the folder back to show them")


def select_runs(database: Database, selection: RunSelection) -> list[int]:
    """Return the numbers of the selected runs, in the order in which they began. Raises UsageError for a name that no run has."""
    for name in selection.names:
        if not database.rows(select(RUNS.c.run_id).where(*RunSelection((name,)).conditions()).limit(1)):
            problem = f"store {database.name} has no run, allocation or label '{printable(name)}'"
            raise UsageError(f"{problem}: list them with `collbench store query {database.name} --of runs`")
    query = select(RUNS.c.run_id).where(*selection.conditions()).order_by(RUNS.c.started_s, RUNS.c.run_id)
    numbers = [number for (number,) in database.rows(query)]
    if not numbers:
        raise UsageError(f"store {database.name} has no such run: use a longer time, or fewer filters")
    return numbers


def newest_launches(database: Database) -> list[int]:
    """Return the number of the newest run, after those of the other launches of its allocation. Raises UsageError for an empty store."""
    newest_first = (RUNS.c.started_s.desc().nulls_last(), RUNS.c.run_id.desc())
    newest = database.rows(select(RUNS.c.run_id, RUNS.c.allocation).order_by(*newest_first).limit(1))
    if not newest:
        raise UsageError(f"store {database.name} is empty: add runs with `collbench store add {database.name} RUN…`")
    [(number, allocation)] = newest
    return [number] if allocation is None else select_runs(database, RunSelection((allocation,)))


_HEADS = select(RUNS.c.run_id, RUNS.c.path, RUNS.c.info, RUNS.c.facts).where(among(RUNS.c.run_id))
_DOCUMENTS = select(DOCUMENTS.c.document_id, DOCUMENTS.c.content).where(among(DOCUMENTS.c.document_id))
_CONTENTS = {table: select(table.c[0], table.c.content).where(among(table.c[0])) for table in (CASES, REMARKS, CEILINGS)}
_RESULTS = select(RESULTS).where(RESULTS.c.run_id == bindparam("run")).order_by(RESULTS.c.number)


def load_runs(database: Database, numbers: Sequence[int]) -> list[StoredRun]:
    """Return the runs with these numbers, rebuilt, in this order."""
    with database.transaction():
        heads = {head.run_id: head for head in database.rows_among(_HEADS, numbers)}
        loader = _Loader(database)
        loader.read_documents(heads.values())
        return [loader.run(heads[number]) for number in numbers if number in heads]


def load_rows(database: Database, numbers: Iterable[int]) -> dict[int, list[Row]]:
    """Return the rows of the runs with these numbers, in the order of their folders, by the number of the run."""
    loader = _Loader(database)
    return {number: loader.rows(number) for number in numbers}


_TIMES = tuple((name, f"time_{name}_s") for name in Times.__struct_fields__)
_PLAIN = tuple(name for name in RESULTS.c.keys()[3:] if name in Row.__struct_fields__)


class _Loader:
    """Rebuilds runs; what several runs have in common is read once."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.documents: dict[int, Any] = {}
        self.contents: dict[Table, dict[int, Any]] = {table: {} for table in _CONTENTS}

    def read_documents(self, heads: Iterable[Record]) -> None:
        numbers: set[int] = set()
        for head in heads:
            if head.info:
                numbers.update(parse_json(head.info)[1].values(), parse_json(head.facts).values())
        for number, content in self.database.rows_among(_DOCUMENTS, numbers):
            self.documents[number] = parse_json(zlib.decompress(content))

    def run(self, head: Record) -> StoredRun:
        small, large = parse_json(head.info) if head.info else ({}, {})
        facts: dict[tuple[str, tuple[str, ...]], str] = {}
        for kind, number in (parse_json(head.facts) if head.facts else {}).items():
            for words, value in self.documents.get(number, ()):
                facts[kind, tuple(words)] = value
        info = small | {name: self.documents.get(number) for name, number in large.items()}
        return StoredRun(Path(head.path), info, self.rows(head.run_id), [], [], facts)

    def rows(self, number: int) -> list[Row]:
        results = [record._asdict() for record in self.database.rows(_RESULTS, {"run": number})]
        self._read_contents(CASES, (result["case_id"] for result in results))
        self._read_contents(REMARKS, (result["remark_id"] for result in results))
        self._read_contents(CEILINGS, (result[name] for result in results for name in ("ceiling_id", "hard_bound_id")))
        return [self._row(result) for result in results]

    def _read_contents(self, table: Table, numbers: Iterable[int | None]) -> None:
        lacking = {number for number in numbers if number is not None and number not in self.contents[table]}
        for key, content in self.database.rows_among(_CONTENTS[table], lacking):
            self.contents[table][key] = parse_json(content)

    def _row(self, figures: Mapping[str, Any]) -> Row:
        remark = dict(self.contents[REMARKS].get(figures["remark_id"]) or {})
        remark.pop("quality", None)
        flags = tuple(remark.pop("flags", ()))
        detail = parse_json(figures["detail"]) if figures["detail"] else {}
        times = {name: figures[column] for name, column in _TIMES}
        probes = {when: figures[f"probe_{when}_s"] for when in ("before", "after")}
        case = dict(zip(CaseKey._fields, self.contents[CASES][figures["case_id"]], strict=False))
        shared = {"api": case["backend"], "count": 0, **remark}
        return Row(
            **case, **shared, **detail, flags=flags,
            time_s=None if times["p50"] is None else Times(**times), canary_s=probes if any(probes.values()) else {},
            ceiling=self._ceiling(figures["ceiling_id"], figures["ceiling_bytes_per_s"]),
            hard_bound=self._ceiling(figures["hard_bound_id"], figures["hard_bound_bytes_per_s"]),
            **{name: figures[name] for name in _PLAIN if figures[name] is not None},
        )  # fmt: skip

    def _ceiling(self, number: int | None, rate: float | None) -> Ceiling | None:
        if number is None:
            return None
        values = dict(self.contents[CEILINGS][number])
        return Ceiling(**values | {"bytes_per_s": rate, "limited_by_parts": limit_parts(values.get("limited_by_parts", ()))})
