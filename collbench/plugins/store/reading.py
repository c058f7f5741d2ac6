"""Runs as a store keeps them: selected by name, label, host and time, and rebuilt without their folders.

A rebuilt run has everything that comparisons and the gate use: run.json, the rows' figures, and the facts that are compared. What only
the folder has (samples, slowest ranks, events) raises an error that names the folder.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.machine.peak.ceiling import Ceiling
from collbench.machine.peak.limits import limit_parts
from collbench.machine.readers.text import printable
from collbench.plugins.store.database import Database, Record, marks
from collbench.plugins.store.folders import fingerprint_of, stored_path
from collbench.plugins.store.schema import RESULTS
from collbench.results.reader import Run
from collbench.results.row import CaseKey, Row, Times
from collbench.untrusted import parse_json


@dataclass(frozen=True)
class RunSelection:
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

    def sql(self) -> tuple[str, list[Any]]:
        """Return (condition on the table runs, its values); ("", []) for all runs."""
        parts: list[str] = []
        values: list[Any] = []
        if self.names:
            places, paths = marks(self.names), [_path_of(name) for name in self.names]
            parts.append(
                f"(runs.name IN ({places}) OR runs.allocation IN ({places}) OR runs.path IN ({places}) OR "
                f"runs.run_id IN (SELECT run_id FROM labels WHERE label IN ({places})))"
            )
            values += [*self.names, *self.names, *paths, *self.names]
        if self.nodes:
            of_nodes = (
                f"SELECT run_id FROM run_nodes JOIN nodes ON nodes.node_id = run_nodes.node_id WHERE nodes.name IN ({marks(self.nodes)})"
            )
            parts.append(f"runs.run_id IN ({of_nodes})")
            values += self.nodes
        if self.labels:
            parts.append(f"runs.run_id IN (SELECT run_id FROM labels WHERE label IN ({marks(self.labels)}))")
            values += self.labels
        for condition, value in (("runs.started_s >= ?", self.since_s), ("runs.started_s < ?", self.until_s)):
            if value is not None:
                parts.append(condition)
                values.append(value)
        return " AND ".join(parts), values


def _path_of(name: str) -> str:
    try:
        return stored_path(Path(name))
    except (UsageError, OSError, ValueError):
        return name


class StoredRun(Run):
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
    condition, values = selection.sql()
    where = f" WHERE {condition}" if condition else ""
    found = [number for (number,) in database.rows(f"SELECT run_id FROM runs{where} ORDER BY started_s, run_id", values)]
    if not found:
        for name in selection.names:
            condition, values = RunSelection((name,)).sql()
            if not database.rows(f"SELECT 1 FROM runs WHERE {condition} LIMIT 1", values):
                what = f"run, allocation or label '{printable(name)}'"
                raise UsageError(f"store {database.name} has no {what}: list them with `collbench store query {database.name} --of runs`")
        raise UsageError(f"store {database.name} has no such run: use a longer time, or fewer filters")
    return found


def newest_launches(database: Database) -> list[int]:
    """Return the number of the newest run, after those of the other launches of its allocation. Raises UsageError for an empty store."""
    newest = database.rows("SELECT run_id, allocation FROM runs ORDER BY started_s IS NULL, started_s DESC, run_id DESC LIMIT 1")
    if not newest:
        raise UsageError(f"store {database.name} is empty: add runs with `collbench store add {database.name} RUN…`")
    [(number, allocation)] = newest
    return [number] if allocation is None else select_runs(database, RunSelection((allocation,)))


def load_runs(database: Database, numbers: Sequence[int]) -> list[StoredRun]:
    """Return the runs with these numbers, rebuilt, in this order."""
    with database.transaction():
        heads = {row[0]: row for row in database.rows_among("SELECT run_id, path, info, facts FROM runs WHERE run_id IN ({})", numbers)}
        loaded = _Loader(database)
        loaded.documents_of(heads.values())
        return [loaded.run(heads[number]) for number in numbers if number in heads]


def load_rows(database: Database, numbers: Iterable[int]) -> dict[int, list[Row]]:
    """Return the rows of the runs with these numbers, in the order of their folders, by the number of the run."""
    loaded = _Loader(database)
    return {number: loaded.rows(number) for number in numbers}


_FIGURES = tuple(each.name for each in RESULTS.columns[3:])
_RESULTS = f"SELECT case_id, {', '.join(_FIGURES)} FROM {RESULTS.name} WHERE run_id = ? ORDER BY number"
_TIMES = tuple((name, f"time_{name}_s") for name in Times.__dataclass_fields__)
_PLAIN = tuple(name for name in _FIGURES if name in Row.__dataclass_fields__)


class _Loader:
    """Rebuilds runs; what several runs have in common is read once."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.documents: dict[int, Any] = {}
        self.known: dict[str, dict[int, Any]] = {"cases": {}, "remarks": {}, "ceilings": {}}

    def documents_of(self, heads: Iterable[Record]) -> None:
        """Read the documents of these runs."""
        numbers = {number for _, _, info, facts in heads if info for number in (*parse_json(info)[1].values(), *parse_json(facts).values())}
        for number, content in self.database.rows_among("SELECT document_id, content FROM documents WHERE document_id IN ({})", numbers):
            self.documents[number] = parse_json(zlib.decompress(content))

    def run(self, head: Record) -> StoredRun:
        """Return a run."""
        number, path, info, facts = head
        small, large = parse_json(info) if info else ({}, {})
        kinds = parse_json(facts) if facts else {}
        compared = {(kind, tuple(words)): text for kind, each in kinds.items() for words, text in self.documents.get(each, ())}
        about = small | {name: self.documents.get(each) for name, each in large.items()}
        return StoredRun(Path(path), about, self.rows(number), [], [], compared)

    def rows(self, number: int) -> list[Row]:
        """Return the rows of a run."""
        found = [dict(zip(("case_id", *_FIGURES), row, strict=True)) for row in self.database.rows(_RESULTS, [number])]
        self._learn("cases", {each["case_id"] for each in found})
        self._learn("remarks", {each["remark_id"] for each in found})
        self._learn("ceilings", {each[name] for each in found for name in ("ceiling_id", "hard_bound_id")})
        return [self._row(each) for each in found]

    def _learn(self, table: str, numbers: set[Any]) -> None:
        lacking = {each for each in numbers if each is not None and each not in self.known[table]}
        key = {"cases": "case_id", "remarks": "remark_id", "ceilings": "ceiling_id"}[table]
        for number, content in self.database.rows_among(f"SELECT {key}, content FROM {table} WHERE {key} IN ({{}})", lacking):
            self.known[table][number] = parse_json(content)

    def _row(self, figures: Mapping[str, Any]) -> Row:
        remark = dict(self.known["remarks"].get(figures["remark_id"]) or {})
        remark.pop("quality", None)
        flags = tuple(remark.pop("flags", ()))
        detail = parse_json(figures["detail"]) if figures["detail"] else {}
        times = {name: figures[column] for name, column in _TIMES}
        probes = {when: figures[f"probe_{when}_s"] for when in ("before", "after")}
        case = dict(zip(CaseKey._fields, self.known["cases"][figures["case_id"]], strict=False))
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
        values = dict(self.known["ceilings"][number])
        return Ceiling(**values | {"bytes_per_s": rate, "limited_by_parts": limit_parts(values.get("limited_by_parts", ()))})
