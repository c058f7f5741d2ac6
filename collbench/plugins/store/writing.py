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
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Table, bindparam, false, func, or_, select

from collbench.errors import UnreadableRun, UsageError
from collbench.plugins.store.database import Database, among
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
    column_of,
)
from collbench.results.row import CaseKey
from collbench.untrusted import parse_json

ADDED = "added"
UPDATED = "updated"
UNCHANGED = "unchanged"
MISSING = "missing"
_TABLES_OF_RUN = (RESULTS, RUN_NODES, HUNTS, SUSPECTS, NODE_PAIRS, TELEMETRY)
_NUMBERS = {table: select(table.c[1], table.c[0]).where(among(table.c[1])) for table in (CASES, REMARKS, CEILINGS, DOCUMENTS, NODES)}


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
        query = select(table.c.fingerprint, table.c.missing, table.c[0]).where(table.c.path == stored_path(path))
        stored = self.database.rows(query)
        if stored and stored[0].fingerprint == fingerprint_of(path) and not stored[0].missing:
            if table is RUNS and labels:
                with self._undone_together():
                    self._label(stored[0].run_id, labels)
            return UNCHANGED, ()
        record = read_verdict_file(path) if is_verdict(path) else read_folder(path)
        change = UPDATED if stored else ADDED
        with self._undone_together():
            if isinstance(record, RunRecord):
                self._put_run(record, labels)
                return change, record.warnings
            self._put_verdict(record)
            return change, ()

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
        for table in _TABLES_OF_RUN:
            self.database.rows(table.delete().where(table.c.run_id == run_id))
        documents = self._documents([text for text in record.info.values() if not is_small(text)] + list(record.facts.values()))
        small = {name: parse_json(text) for name, text in record.info.items() if is_small(text)}
        large = {name: documents[text] for name, text in record.info.items() if not is_small(text)}
        facts = {kind: documents[text] for kind, text in record.facts.items()}
        self.database.rows(RUNS.update().where(RUNS.c.run_id == run_id).values(info=_json([small, large]), facts=_json(facts)))
        self._put_results(record, run_id)
        names = set(record.nodes).union(host for _, _, host in record.parts)
        nodes = self._numbers_of(NODES, names, _node)
        self._insert(RUN_NODES, [{"run_id": run_id, "node_id": nodes[name]} for name in record.nodes])
        if record.hunt:
            self._insert(HUNTS, [{"run_id": run_id, **record.hunt}])
        for table in (SUSPECTS, NODE_PAIRS, TELEMETRY):
            parts = [(columns, host) for part_table, columns, host in record.parts if part_table is table]
            self._insert(table, [{"run_id": run_id, "node_id": nodes[host], **columns} for columns, host in parts])
        self._label(run_id, labels)

    def _put_results(self, record: RunRecord, run_id: int) -> None:
        cases = self._numbers_of(CASES, {result.case for result in record.results}, _case)
        remarks = self._numbers_of(REMARKS, {result.remark for result in record.results}, _remark)
        origins = {text for result in record.results for text in (result.ceiling, result.hard_bound) if text is not None}
        ceilings = self._numbers_of(CEILINGS, origins, _ceiling)
        results = [
            {
                "case_id": cases[result.case],
                "run_id": run_id,
                "number": number,
                "remark_id": remarks[result.remark],
                "ceiling_id": None if result.ceiling is None else ceilings[result.ceiling],
                "hard_bound_id": None if result.hard_bound is None else ceilings[result.hard_bound],
                **result.figures,
            }
            for number, result in enumerate(record.results)
        ]
        self._insert(RESULTS, sorted(results, key=lambda result: (result["case_id"], result["number"])))

    def _put_verdict(self, record: VerdictRecord) -> None:
        verdict_id = self._put_head(VERDICTS, record.columns)
        self.database.rows(VERDICT_GROUPS.delete().where(VERDICT_GROUPS.c.verdict_id == verdict_id))
        document = self._documents([record.document])[record.document]
        self.database.rows(VERDICTS.update().where(VERDICTS.c.verdict_id == verdict_id).values(document_id=document))
        self._insert(VERDICT_GROUPS, [{"verdict_id": verdict_id, **group} for group in record.groups])

    def _put_head(self, table: Table, columns: Mapping[str, Any]) -> int:
        """Insert or replace the record of a path; return its number. Until the transaction ends, others wait for this path."""
        values = {**columns, "added_s": time.time()}
        insertion = self.database.insert(table).values(values)
        replaced = {name: insertion.excluded[name] for name in values if name != "path"}
        self.database.rows(insertion.on_conflict_do_update(index_elements=[table.c.path], set_=replaced).inline())
        return int(self.database.rows(select(table.c[0]).where(table.c.path == values["path"]))[0][0])

    def _label(self, run_id: int, labels: Sequence[str]) -> None:
        records = [{"run_id": run_id, "label": label} for label in sorted(set(labels))]
        self.database.run_for_each(self.database.insert(LABELS).on_conflict_do_nothing(), records)

    def _insert(self, table: Table, records: Sequence[Mapping[str, Any]]) -> None:
        self.database.run_for_each(table.insert().inline(), records)

    def _documents(self, texts: Sequence[str]) -> dict[str, int]:
        """Return the numbers of documents. They are looked up again in each transaction, since `prune` removes unused ones."""
        digests = {hashlib.sha256(text.encode()).hexdigest(): text for text in texts}

        def document(digest: str) -> dict[str, Any]:
            return {"digest": digest, "content": zlib.compress(digests[digest].encode())}

        return {digests[digest]: number for digest, number in self._looked_up(DOCUMENTS, digests, document).items()}

    def _numbers_of(self, table: Table, contents: Iterable[str], record: Callable[[str], Mapping[str, Any]]) -> dict[str, int]:
        """Return the numbers of values by the content that identifies them; records of values that the store lacks are inserted."""
        numbers = self._numbers.setdefault(table.name, {})
        numbers |= self._looked_up(table, [content for content in contents if content not in numbers], record)
        return numbers

    def _looked_up(self, table: Table, contents: Iterable[str], record: Callable[[str], Mapping[str, Any]]) -> dict[str, int]:
        ordered = sorted(contents)
        numbers: dict[str, int] = dict(self.database.rows_among(_NUMBERS[table], ordered))
        lacking = [key for key in ordered if key not in numbers]
        if lacking:
            insertion = self.database.insert(table).on_conflict_do_nothing().inline()
            self.database.run_for_each(insertion, [record(key) for key in lacking])
            numbers |= dict(self.database.rows_among(_NUMBERS[table], lacking))
        return numbers


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _node(name: str) -> dict[str, Any]:
    return {"name": name}


def _case(text: str) -> dict[str, Any]:
    case = CaseKey(*parse_json(text))._asdict()
    return {"content": text, **{column_of(name): int(value) if isinstance(value, bool) else value for name, value in case.items()}}


def _remark(text: str) -> dict[str, Any]:
    remark = parse_json(text)
    return {"content": text, "flags": " ".join(remark["flags"]), **{name: remark[name] for name in ("quality", "na", "stopped")}}


def _ceiling(text: str) -> dict[str, Any]:
    ceiling = parse_json(text)
    return {"content": text, **{name: ceiling.get(name) for name in ("kind", "model", "limited_by", "source")}}


class Changes(msgspec.Struct):
    """What was done: the paths by ADDED, UPDATED, UNCHANGED and MISSING; sentences on what could not be read, and warnings."""

    paths: dict[str, list[str]] = msgspec.field(default_factory=dict)
    refused: list[str] = msgspec.field(default_factory=list)
    warnings: list[str] = msgspec.field(default_factory=list)

    def count(self, change: str) -> int:
        """Return the number of paths."""
        return len(self.paths.get(change, ()))


def find_all(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders and verdicts in `paths`: run folders, folders that hold them, files verdict.json; each once.

    Raises UsageError for a path without any.
    """
    all_paths: list[Path] = []
    for path in paths:
        paths_below = [path] if is_verdict(path) and path.is_file() else list(find(path))
        if not paths_below:
            problem = "does not exist" if not path.exists() else "has neither runs nor a verdict.json"
            raise UsageError(f"{path} {problem}: name run folders, folders that hold them, or what `collbench gate --out` wrote")
        all_paths += paths_below
    return list(dict.fromkeys(all_paths))


def add_all(writer: Writer, paths: Iterable[Path], labels: Sequence[str] = (), is_known: Callable[[Path], bool] | None = None) -> Changes:
    """Add the run folders and verdicts that `find_all` found, each alone; those that cannot be read are left out.

    `is_known` may return whether a path is unchanged. Raises UsageError if the store fails; what was added before stays.
    """
    changes = Changes()
    for path in paths:
        try:
            change, warnings = (UNCHANGED, ()) if is_known and is_known(path) else writer.add(path, labels)
        except UnreadableRun as error:
            changes.refused.append(str(error))
            continue
        changes.paths.setdefault(change, []).append(str(path))
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
    prefixes = tuple(f"{stored_path(folder).rstrip('/')}/" for folder in folders)
    stored: dict[str, tuple[str, bool, Table]] = {}
    for table in (RUNS, VERDICTS):
        for path, fingerprint, missing in database.rows(select(table.c.path, table.c.fingerprint, table.c.missing)):
            if f"{path}/".startswith(prefixes):
                stored[path] = fingerprint, bool(missing), table

    def is_known(path: Path) -> bool:
        fingerprint, missing, _ = stored.get(stored_path(path), ("", True, RUNS))
        return not missing and not labels and fingerprint == fingerprint_of(path)

    changes = add_all(writer, dict.fromkeys(path for folder in folders for path in find(folder)), labels, is_known)
    for path, (_, missing, table) in sorted(stored.items()):
        if not missing and fingerprint_of(Path(path)) is None:
            database.rows(table.update().where(table.c.path == path).values(missing=1))
            changes.paths.setdefault(MISSING, []).append(path)
    return changes


def removable(database: Database, before_s: float | None, missing: bool) -> list[tuple[str, int, str]]:
    """Return (table, number, path) of the runs and verdicts that are older than a moment, or gone with `missing`; the oldest first."""
    removables: list[tuple[float, str, int, str]] = []
    for table, moment in ((RUNS, RUNS.c.started_s), (VERDICTS, VERDICTS.c.judged_s)):
        moment_s = func.coalesce(moment, table.c.added_s)
        conditions: list[ColumnElement[bool]] = []
        if before_s is not None:
            conditions.append(moment_s < before_s)
        if missing:
            conditions.append(table.c.missing == 1)
        records = database.rows(select(moment_s, table.c[0], table.c.path).where(or_(false(), *conditions)))
        removables += [(began_s or 0.0, table.name, number, path) for began_s, number, path in records]
    return [(name, number, path) for _, name, number, path in sorted(removables)]


def remove(database: Database, records: Sequence[tuple[str, int, str]]) -> None:
    """Remove these runs and verdicts, all or none, and the documents that no other has. Their folders are not touched.

    records: as `removable` returns them.
    """
    with database.transaction():
        database.exclude("writers")
        for head, tables in ((RUNS, (*_TABLES_OF_RUN, LABELS, RUNS)), (VERDICTS, (VERDICT_GROUPS, VERDICTS))):
            numbers = [{"removed": number} for name, number, _ in records if name == head.name]
            for table in tables:
                database.run_for_each(table.delete().where(table.c[head.c[0].name] == bindparam("removed")), numbers)
        used = {number for (number,) in database.rows(select(VERDICTS.c.document_id))}
        for info, facts in database.stream(select(RUNS.c.info, RUNS.c.facts).where(RUNS.c.info.is_not(None))):
            used |= {*parse_json(info)[1].values(), *parse_json(facts).values()}
        unused = [{"removed": row[0]} for row in database.rows(select(DOCUMENTS.c.document_id)) if row[0] not in used]
        database.run_for_each(DOCUMENTS.delete().where(DOCUMENTS.c.document_id == bindparam("removed")), unused)
