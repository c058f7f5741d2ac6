"""Adding run folders and verdicts to a store, bringing it up to date with a folder, and removing runs from it.

A run or a verdict is added in one transaction: a writer that is killed leaves nothing of it. Values that many runs have in common are
inserted in sorted order, so that writers wait for each other instead of blocking each other.
"""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collbench.errors import UnreadableRun, UsageError
from collbench.plugins.store.database import Database, marks
from collbench.plugins.store.folders import (
    RunRecord,
    VerdictRecord,
    find,
    fingerprint_of,
    is_small,
    is_verdict,
    read_folder,
    read_verdict_file,
    stored_path,
)
from collbench.plugins.store.schema import (
    CASES,
    CEILINGS,
    DOCUMENTS,
    HUNTS,
    LABELS,
    NODE_PAIRS,
    NODES,
    REMARKS,
    RESULTS,
    RUN_NODES,
    RUNS,
    SUSPECTS,
    TELEMETRY,
    VERDICT_GROUPS,
    VERDICTS,
    StoreTable,
)
from collbench.results.row import CaseKey
from collbench.untrusted import parse_json

ADDED, UPDATED, UNCHANGED, MISSING = "added", "updated", "unchanged", "missing"
_OF_RUN = (RESULTS, RUN_NODES, HUNTS, SUSPECTS, NODE_PAIRS, TELEMETRY)


class Writer:
    """Adds runs and verdicts to a store that is open for writing. Used by one thread."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._numbers: dict[str, dict[str, int]] = {}  # of values that are never removed, by table

    def add(self, path: Path, labels: Sequence[str] = ()) -> tuple[str, Sequence[str]]:
        """Add a run folder or a verdict, or replace what the store has of it; return ADDED, UPDATED or UNCHANGED, and warnings.

        Raises UsageError if it cannot be read, or the store cannot be written; the store is then unchanged.
        """
        table = VERDICTS if is_verdict(path) else RUNS
        held = self.database.rows(f"SELECT fingerprint, missing, {table.columns[0].name} FROM {table.name} WHERE path = ?",
                                  [stored_path(path)])  # fmt: skip
        if held and held[0][0] == fingerprint_of(path) and not held[0][1]:
            if table is RUNS and labels:
                with self._undone_together():
                    self._label(held[0][2], labels)
            return UNCHANGED, ()
        record = read_verdict_file(path) if is_verdict(path) else read_folder(path)
        with self._undone_together():
            if isinstance(record, RunRecord):
                self._put_run(record, labels)
            else:
                self._put_verdict(record)
        return UPDATED if held else ADDED, record.warnings if isinstance(record, RunRecord) else ()

    @contextmanager
    def _undone_together(self) -> Iterator[None]:
        """Make all statements of an addition take effect, or none; numbers that it assigned are forgotten if it fails."""
        try:
            with self.database.transaction():
                yield
        except BaseException:
            self._numbers.clear()
            raise

    def _put_run(self, record: RunRecord, labels: Sequence[str]) -> None:
        run_id = self._put_head(RUNS, record.columns)
        for table in _OF_RUN:
            self.database.rows(f"DELETE FROM {table.name} WHERE run_id = ?", [run_id])
        documents = self._documents([text for text in record.info.values() if not is_small(text)] + list(record.facts.values()))
        small = {name: parse_json(text) for name, text in record.info.items() if is_small(text)}
        large = {name: documents[text] for name, text in record.info.items() if not is_small(text)}
        facts = {kind: documents[text] for kind, text in record.facts.items()}
        self.database.rows("UPDATE runs SET info = ?, facts = ? WHERE run_id = ?", [_json([small, large]), _json(facts), run_id])
        self._put_results(record, run_id)
        names = sorted({*record.nodes, *(host for _, _, host in record.parts)})
        nodes = self._known(NODES, {name: (name,) for name in names})
        self._insert(RUN_NODES, ({"run_id": run_id, "node_id": nodes[name]} for name in record.nodes))
        self._insert(HUNTS, [{"run_id": run_id, **record.hunt}] if record.hunt else [])
        for table in (SUSPECTS, NODE_PAIRS, TELEMETRY):
            of_table = ((columns, host) for each, columns, host in record.parts if each is table)
            self._insert(table, ({"run_id": run_id, "node_id": nodes[host], **columns} for columns, host in of_table))
        self._label(run_id, labels)

    def _put_results(self, record: RunRecord, run_id: int) -> None:
        cases = self._known(CASES, {each.case: _case(each.case) for each in record.results})
        remarks = self._known(REMARKS, {each.remark: _remark(each.remark) for each in record.results})
        origins = {text for each in record.results for text in (each.ceiling, each.hard_bound) if text is not None}
        ceilings = self._known(CEILINGS, {text: _ceiling(text) for text in origins})
        found = [
            {
                "case_id": cases[each.case], "run_id": run_id, "number": number, "remark_id": remarks[each.remark],
                "ceiling_id": None if each.ceiling is None else ceilings[each.ceiling],
                "hard_bound_id": None if each.hard_bound is None else ceilings[each.hard_bound], **each.figures,
            }
            for number, each in enumerate(record.results)
        ]  # fmt: skip
        self._insert(RESULTS, sorted(found, key=lambda each: (each["case_id"], each["number"])))

    def _put_verdict(self, record: VerdictRecord) -> None:
        verdict_id = self._put_head(VERDICTS, record.columns)
        self.database.rows("DELETE FROM verdict_groups WHERE verdict_id = ?", [verdict_id])
        document = self._documents([record.document])[record.document]
        self.database.rows("UPDATE verdicts SET document_id = ? WHERE verdict_id = ?", [document, verdict_id])
        self._insert(VERDICT_GROUPS, ({"verdict_id": verdict_id, **each} for each in record.groups))

    def _put_head(self, table: StoreTable, columns: Mapping[str, Any]) -> int:
        """Insert or replace the record of a path; return its number. Until the transaction ends, others wait for this path."""
        values = {**columns, "added_s": time.time()}
        names = ", ".join(values)
        replaced = ", ".join(f"{name} = excluded.{name}" for name in values if name != "path")
        sql = f"INSERT INTO {table.name} ({names}) VALUES ({marks(values)}) ON CONFLICT (path) DO UPDATE SET {replaced}"
        self.database.rows(sql, list(values.values()))
        return int(self.database.rows(f"SELECT {table.columns[0].name} FROM {table.name} WHERE path = ?", [values["path"]])[0][0])

    def _label(self, run_id: int, labels: Sequence[str]) -> None:
        self.database.insert(f"{LABELS.insertion()} ON CONFLICT DO NOTHING", [(run_id, label) for label in sorted(set(labels))])

    def _insert(self, table: StoreTable, records: Iterable[Mapping[str, Any]]) -> None:
        rows = [tuple(each.get(name) for name in table.names()) for each in records]
        if rows:
            self.database.insert(table.insertion(), rows)

    def _documents(self, texts: Sequence[str]) -> dict[str, int]:
        """Return the numbers of documents. They are looked up again in each transaction, since `prune` removes unused ones."""
        digests = {hashlib.sha256(text.encode()).hexdigest(): text for text in texts}
        found = self._looked_up(DOCUMENTS, digests, lambda digest: (digest, zlib.compress(digests[digest].encode())))
        return {digests[digest]: number for digest, number in found.items()}

    def _known(self, table: StoreTable, records: Mapping[str, tuple[Any, ...]]) -> dict[str, int]:
        """Return the number of each value, by the content that identifies it; values that the store lacks are inserted."""
        known = self._numbers.setdefault(table.name, {})
        known |= self._looked_up(table, [key for key in records if key not in known], records.__getitem__)
        return known

    def _looked_up(self, table: StoreTable, keys: Iterable[str], record: Callable[[str], tuple[Any, ...]]) -> dict[str, int]:
        ordered = sorted(keys)
        number, key = table.columns[0].name, table.unique[0]
        sql = f"SELECT {key}, {number} FROM {table.name} WHERE {key} IN ({{}})"
        found: dict[str, int] = dict(self.database.rows_among(sql, ordered))
        lacking = [key for key in ordered if key not in found]
        if lacking:
            self.database.insert(f"{table.insertion()} ON CONFLICT ({key}) DO NOTHING", [record(each) for each in lacking])
            found |= self.database.rows_among(sql, lacking)
        return found


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _case(text: str) -> tuple[Any, ...]:
    return text, *(int(value) if isinstance(value, bool) else value for value in CaseKey(*parse_json(text)))


def _remark(text: str) -> tuple[Any, ...]:
    remark = parse_json(text)
    return text, remark["quality"], " ".join(remark["flags"]), remark["na"], remark["stopped"]


def _ceiling(text: str) -> tuple[Any, ...]:
    ceiling = parse_json(text)
    return text, *(ceiling.get(name) for name in ("kind", "model", "limited_by", "source"))


# Several runs, and a folder of runs.


@dataclass
class Changes:
    """What was done: the paths by ADDED, UPDATED, UNCHANGED and MISSING; sentences on what could not be read, and warnings."""

    paths: dict[str, list[str]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def count(self, what: str) -> int:
        """Return the number of paths."""
        return len(self.paths.get(what, ()))


def find_all(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders and verdicts in `paths`: run folders, folders that hold them, files verdict.json; each once.

    Raises UsageError for a path without any.
    """
    found: list[Path] = []
    for path in paths:
        there = [path] if is_verdict(path) and path.is_file() else list(find(path))
        if not there:
            why = "does not exist" if not path.exists() else "has neither runs nor a verdict.json"
            raise UsageError(f"{path} {why}: name run folders, folders that hold them, or what `collbench gate --out` wrote")
        found += there
    return list(dict.fromkeys(found))


def add_all(writer: Writer, found: Iterable[Path], labels: Sequence[str] = (), is_known: Callable[[Path], bool] | None = None) -> Changes:
    """Add the run folders and verdicts that `find_all` found, each alone; those that cannot be read are left out.

    `is_known` may return whether a path is unchanged. Raises UsageError if the store fails; what was added before stays.
    """
    changes = Changes()
    for path in found:
        try:
            what, warnings = (UNCHANGED, ()) if is_known and is_known(path) else writer.add(path, labels)
        except UnreadableRun as error:
            changes.refused.append(str(error))
            continue
        changes.paths.setdefault(what, []).append(str(path))
        changes.warnings += warnings
    return changes


def check_folders(folders: Sequence[Path]) -> None:
    """Raise UsageError for a folder that does not exist: all of its runs would seem to be gone."""
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder that exists, so nothing was compared with it: name a folder of runs")


def sync(writer: Writer, folders: Sequence[Path], labels: Sequence[str] = ()) -> Changes:
    """Bring the store up to date with folders: add new runs and verdicts, replace changed ones, and mark those that are gone.

    What is gone stays in the store until it is pruned. Raises UsageError for a folder that does not exist, and if the store fails.
    """
    check_folders(folders)
    database = writer.database
    tops = [f"{stored_path(folder).rstrip('/')}/" for folder in folders]
    held: dict[str, tuple[str, bool, StoreTable]] = {}
    for table in (RUNS, VERDICTS):
        for path, fingerprint, missing in database.rows(f"SELECT path, fingerprint, missing FROM {table.name}"):
            if f"{path}/".startswith(tuple(tops)):
                held[path] = fingerprint, bool(missing), table

    def is_known(path: Path) -> bool:
        fingerprint, missing, _ = held.get(stored_path(path), ("", True, RUNS))
        return not missing and not labels and fingerprint == fingerprint_of(path)

    changes = add_all(writer, dict.fromkeys(path for folder in folders for path in find(folder)), labels, is_known)
    for path, (_, missing, table) in sorted(held.items()):
        if not missing and fingerprint_of(Path(path)) is None:
            with database.transaction():
                database.rows(f"UPDATE {table.name} SET missing = 1 WHERE path = ?", [path])
            changes.paths.setdefault(MISSING, []).append(path)
    return changes


def removable(database: Database, before_s: float | None, missing: bool) -> list[tuple[str, int, str]]:
    """Return (table, number, path) of the runs and verdicts that are older than a moment, or gone with `missing`; the oldest first."""
    found: list[tuple[float, str, int, str]] = []
    for table, moment in ((RUNS, "started_s"), (VERDICTS, "judged_s")):
        of_time = f"coalesce({moment}, added_s)"
        conditions = [*([f"{of_time} < ?"] if before_s is not None else []), *(["missing = 1"] if missing else [])]
        sql = f"SELECT {of_time}, {table.columns[0].name}, path FROM {table.name} WHERE {' OR '.join(conditions) or '1 = 0'}"
        rows = database.rows(sql, [before_s] if before_s is not None else [])
        found += [(moment_s or 0.0, table.name, number, path) for moment_s, number, path in rows]
    return [(table, number, path) for _, table, number, path in sorted(found)]


def remove(database: Database, found: Sequence[tuple[str, int, str]]) -> None:
    """Remove these runs and verdicts, all or none, and the documents that no other has. Their folders are not touched."""
    with database.transaction():
        database.exclude("writers")
        for table, parts in ((RUNS, (*_OF_RUN, LABELS)), (VERDICTS, (VERDICT_GROUPS,))):
            number = table.columns[0].name
            ids = [(each,) for name, each, _ in found if name == table.name]
            for part in (*parts, table):
                database.insert(f"DELETE FROM {part.name} WHERE {number} = ?", ids)
        used = {number for (number,) in database.rows("SELECT document_id FROM verdicts")}
        for info, facts in database.stream("SELECT info, facts FROM runs WHERE info IS NOT NULL"):
            used |= {*parse_json(info)[1].values(), *parse_json(facts).values()}
        unused = [row for row in database.rows("SELECT document_id FROM documents") if row[0] not in used]
        database.insert("DELETE FROM documents WHERE document_id = ?", unused)
