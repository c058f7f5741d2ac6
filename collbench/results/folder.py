"""The folder of one run, append-only: if the run is killed, every finished case is already on the disk.

run.json        the operation, the place and the circumstances; always replaced as a whole
topology.json   the cluster
cells.jsonl     one row per finished case, fsynced
samples.bin     the rows' arrays one after the other, fsynced before the row that refers to them
*.jsonl         one line per finished round or row of a command of a plug-in (`Plugin.records`), fsynced
events.jsonl    findings, warnings, hang, abort
check.json      the verdict (`collbench check` only), replaced as a whole
lock            names the process that writes here, while it does
"""

from __future__ import annotations

import errno
import os
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from collbench.errors import FINE, CollbenchError, RunFailed, UsageError
from collbench.plugin import RecordFile, record_files
from collbench.results.row import SCHEMA, Row
from collbench.results.store import (
    GONE,
    AppendFile,
    Lock,
    draft_of,
    make_folders,
    parse_object,
    read_object,
    replace,
    sync_folder,
    to_line,
    to_page,
)
from collbench.units import format_bytes, plural
from collbench.untrusted import read_file

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Whether a run's folder can be written, and the errors if not: before the first case, and later.

# The free space that the smallest run needs. With less a run would start, but not finish.
_LEAST_FREE_BYTES = 1 << 20


def check_free_space(path: Path, instead: str = "choose another folder with --out DIR") -> None:
    """Raise UsageError if the disk has less free space than the smallest run needs. Raises OSError."""
    disk = os.statvfs(path)
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and free < _LEAST_FREE_BYTES:
        raise UsageError(
            f"run folder {path} cannot be written: its disk has {format_bytes(free)} left, a run needs at least "
            f"{format_bytes(_LEAST_FREE_BYTES)}; make room there, or {instead}"
        )


def cannot_create(path: Path, error: OSError) -> str:
    """Return the error for a run folder that cannot be created."""
    return f"run folder {path} cannot be written ({error.strerror or error}): choose another folder with --out DIR"


def quoted(path: Path) -> str:
    """Return the path for a command line in a message."""
    return shlex.quote(str(path))


def cannot_resume(path: Path, error: OSError) -> str:
    """Return the error for a run that cannot be resumed."""
    return f"{path} cannot be resumed: it cannot be written ({error.strerror or error}); start a new run"


RUN = "run.json"
TOPOLOGY = "topology.json"
CASES = "cells.jsonl"
SAMPLES = "samples.bin"
EVENTS = "events.jsonl"
_OF_THE_END = ("finished_utc", "exit_code", "rows", "models")  # keys of run.json that are written when the run ends
Watch = Callable[[str], AbstractContextManager[None]]


_LARGEST_TOPOLOGY = 16 << 20


def topology_of(run: Path) -> dict[str, Any]:
    """Return the content of the topology.json of a run folder; empty if it is missing or cannot be read."""
    try:
        return parse_object(read_file(run / TOPOLOGY, _LARGEST_TOPOLOGY))
    except (OSError, ValueError):
        return {}


def files_of_plugins() -> list[str]:
    """Return the files of records that plug-ins bring, and then the other files of such runs."""
    files = record_files().values()
    return list(dict.fromkeys([*(file.name for file in files), *_files_beside()]))


def _files_beside() -> list[str]:
    return [name for file in record_files().values() for name in file.more_files]


def _line_files() -> tuple[str, ...]:
    return (CASES, *files_of_plugins(), EVENTS)


class RunFolder:
    """A run's folder, open for appending by one process (rank 0). Its methods may be called from any thread.

    Once it is created, every method raises RunFailed if the disk rejects a write; UsageError before the first result.
    `watch` is entered around every write with a description, since a disk that does not answer blocks forever.
    """

    def __init__(self, path: Path, run: dict[str, Any], files: dict[str, AppendFile], lock: Lock) -> None:
        self.path = path
        self.run = run
        self.rows = 0
        self.unfinished_cases = 0  # that `go_on` removed
        self._cases = 0  # lines of CASES
        self.watch: Watch = lambda _: nullcontext()
        self._measured = False
        self._ending = threading.Lock()
        self._files = files
        self._held = lock
        self._lock = threading.RLock()  # a signal handler may note an event while the same thread appends

    @classmethod
    def create(cls, out: Path | None, operation: str, run: Mapping[str, Any]) -> RunFolder:
        """Create a new folder: exactly `out` (from --out), or runs/<UTC time>-<operation>-<id> in the working directory.

        `run` has the content of run.json besides schema, id, operation and start. An existing `out` without a run is used as it is. Raises
        UsageError if it has a run, or if the folder cannot be written; nothing is left behind then.
        """
        path = out if out is not None else Path("runs") / run_name(operation)
        made: list[Path] = []
        files: dict[str, AppendFile] = {}
        lock: Lock | None = None
        head = {"schema": SCHEMA, "id": path.resolve().name, "operation": operation, "started_utc": utc(), **run}
        try:
            _enter(path, made, resumes=True)
            lock = Lock(path)
            for name in (CASES, SAMPLES, EVENTS):
                files[name] = AppendFile(path / name)
                made.append(path / name)
            made.append(draft_of(path / RUN))
            replace(path / RUN, to_page(head))
        except (OSError, UsageError) as error:
            if lock:
                lock.release()
            for file in files.values():
                file.close()
            _undo(made)
            raise error if isinstance(error, UsageError) else UsageError(cannot_create(path, error)) from error
        return cls(path, head, files, lock)

    @classmethod
    def reopen(cls, path: Path) -> RunFolder:
        """Return the folder of a run that has ended, locked for this process; `run` is its run.json. Nothing is written before `go_on`.

        Raises UsageError if the run is missing, cannot be read or written, or is used by another process.
        """
        if not (path / RUN).is_file():
            raise UsageError(f"{path} cannot be resumed: {RUN} is missing; start a new run")
        try:
            check_free_space(path, "start a new run on another disk with --out DIR")
            lock = Lock(path)
        except OSError as error:
            raise UsageError(cannot_resume(path, error)) from error
        try:
            return cls(path, read_object(path / RUN), {}, lock)
        except (OSError, ValueError) as error:
            lock.release()
            raise UsageError(f"{path} cannot be resumed: its {RUN} cannot be read ({error}); start a new run") from error

    @cached_property
    def _records(self) -> RecordFile | None:
        """The file with the records of the run's command; None if its results are rows of cases. Operations start no plug-in for it."""
        from collbench.operations.registry import commands

        command = str(self.run.get("operation"))
        return None if command in commands() else record_files().get(command)

    @property
    def taken_over(self) -> str | None:
        """Return the process that ended without removing its lock, or None."""
        return self._held.taken_over

    def go_on(self) -> dict[str, int]:
        """Open the files of a reopened folder for appending, and cut off incomplete last lines: the first change to the folder.

        Cases of a row that was not finished are removed, too (`unfinished_cases`): it is measured again. Returns the number of bytes of
        incomplete lines, by file; complete files are left out. Raises UsageError.
        """
        try:
            for name in (SAMPLES, *_line_files()):
                if name not in files_of_plugins() or (self.path / name).exists():
                    self._files[name] = AppendFile(self.path / name, again=True)
            cut = {name: self._files[name].cut_last_line() for name in _line_files() if name in self._files}
            kept = self._finished_cases()
            if kept is not None:
                self.unfinished_cases = self._files[CASES].cut_after(kept)
            self._cases = self._files[CASES].lines()
        except OSError as error:
            raise UsageError(cannot_resume(self.path, error)) from error
        return {name: count for name, count in cut.items() if count}

    def _finished_cases(self) -> int | None:
        """Return how many lines of CASES belong to finished rows; None if rows have no cases, or do not record it. Raises OSError."""
        records = self._records
        if records is None or not records.has_cases:
            return None
        last = b""
        if records.name in self._files:
            with (self.path / records.name).open("rb") as file:
                for line in file:
                    last = line
        try:
            count = parse_object(last).get("cases") if last else 0
        except ValueError:  # a damaged line
            return None
        return count if type(count) is int and count >= 0 else None

    def resumed(self, **facts: Any) -> None:
        """Record in run.json, and as an event, that a reopened run continues; the keys that its end wrote become part of the record."""
        end = {name: self.run.pop(name) for name in _OF_THE_END if name in self.run}
        earlier = self.run.get("resumed")
        note = {"utc": utc(), "rows": self.rows, **facts}
        if end:
            note["ended"] = end
        self.update(resumed=[*earlier, note] if isinstance(earlier, list) else [note])
        self.event("resumed", **facts, rows=self.rows)

    def give_up(self) -> None:
        """Unlock the folder and write nothing more. Without `go_on`, a reopened folder stays as it was found."""
        done = self._held.release if self._files else self._held.put_back
        for file in self._files.values():
            file.close()
        self._files.clear()
        done()

    def append(self, row: Row, arrays: Mapping[str, NDArray[Any]]) -> Row:
        """Store a finished case, the arrays before the row that refers to them, and return the row with its `samples`."""
        self._measured = True
        with self._safely():
            samples = {name: self._store(array) for name, array in arrays.items()}
            if arrays:
                self._files[SAMPLES].sync()
            stored = row.with_figures(samples=samples)
            self._append_line(CASES, stored.as_json())
            self._cases += 1
            self.rows += self._records is None
        return stored

    def append_record(self, values: Mapping[str, Any], name: str) -> None:
        """Store a line in a file of a plug-in; the first line creates the file."""
        self._measured = True
        with self._safely():
            if name not in self._files:
                self._files[name] = AppendFile(self.path / name)
                sync_folder(self.path)
            has_cases = any(file.has_cases for file in record_files().values() if file.name == name)
            self._append_line(name, {**values, "cases": self._cases} if has_cases else values)
            self.rows += name not in _files_beside()

    def event(self, kind: str, **facts: Any) -> None:
        """Record an event, with the UTC time and CLOCK_MONOTONIC."""
        with self._safely():
            self._append_line(EVENTS, {"utc": utc(), "monotonic_s": time.monotonic(), "kind": kind, **facts})

    def write_topology(self, topology: Mapping[str, Any]) -> None:
        """Store the probed cluster."""
        with self._safely():
            replace(self.path / TOPOLOGY, to_page(topology))

    def update(self, **facts: Any) -> None:
        """Add facts to run.json that were unknown at its creation."""
        with self._safely():
            self.run.update(facts)
            replace(self.path / RUN, to_page(self.run))

    def expect_end(self, code: int) -> None:
        """Store the exit code of a signal before its cause is known: a launcher may kill all ranks meanwhile. `end_early` completes it."""
        with suppress(CollbenchError), self._safely():
            if "exit_code" not in self.run:
                self.run["exit_code"] = code
                replace(self.path / RUN, to_page(self.run))

    def finish(self, **facts: Any) -> None:
        """Complete run.json with the end time, the number of rows and `facts` (the runner gives exit_code)."""
        try:
            self.update(finished_utc=utc(), rows=self.rows, **facts)
        finally:
            self._held.release()

    def so_far(self, planned: int) -> str:
        """Return how many of the planned cases (or rounds, or rows) are stored, and how to continue, for an interrupted run's message."""
        unit = self._records.unit if self._records else "case"
        place = ""
        if self.rows:
            place = f": {'it is' if self.rows == 1 else 'they are'} in {self.path}"
        return f"{self.rows} of {planned} {unit}s{place}; go on with `collbench --resume {quoted(self.path)}`"

    def end_early(self, kind: str, text: str, code: int, **facts: Any) -> None:
        """Record why the run stops early and complete run.json, as far as the disk allows. Only the first call has an effect."""
        if not self._ending.acquire(blocking=False):
            return
        with suppress(CollbenchError):
            self.event(kind, text=text, **facts)
        with suppress(CollbenchError):
            self.finish(exit_code=code)

    def _store(self, array: NDArray[Any]) -> dict[str, Any]:
        if array.dtype.kind not in "biuf":
            raise TypeError(f"samples are numbers, not {array.dtype}")
        offset = self._files[SAMPLES].append(array.tobytes())
        return {"offset": offset, "dtype": array.dtype.str, "shape": list(array.shape)}

    def _append_line(self, name: str, values: Mapping[str, Any]) -> None:
        self._files[name].append(to_line(values).encode() + b"\n")
        self._files[name].sync()

    @contextmanager
    def _safely(self) -> Iterator[None]:
        """Watch the block, run by one thread at a time; an OSError becomes the error for the user."""
        try:
            with self.watch(f"writing to {self.path}"), self._lock:
                if CASES in self._files and not self._files[CASES].is_in_place:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                yield
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> CollbenchError:
        """Return the error for the user. Before the first result the folder is bad input (exit code 2); later, the run has failed (4)."""
        if not self._measured:
            how = cannot_resume(self.path, error) if self.rows else f"{cannot_create(self.path, error)}; nothing was measured"
            return UsageError(how)
        count = plural(self.rows, f"finished {'round' if self._records else 'case'}")
        stored = f"{count} {'is' if self.rows == 1 else 'are'}"
        go_on = f" and go on with `collbench --resume {quoted(self.path)}`"
        if error.errno not in GONE:
            return RunFailed(
                f"results can no longer be written to {self.path} ({error.strerror or error}): {stored} safe in it; "
                f"make room there{go_on}, or run again with --out DIR on another disk"
            )
        moved = self._files[CASES].moved_to if CASES in self._files else None
        if moved:
            return RunFailed(
                f"{self.path} was moved to {moved.parent} while the run wrote into it: {stored} there; "
                f"leave it and go on with `collbench --resume {quoted(moved.parent)}`"
            )
        return RunFailed(
            f"results can no longer be written: {self.path} is gone, and with it what was stored ({count}): it was deleted, or "
            f"its disk is no longer mounted; bring it back{go_on}, or run again with --out DIR"
        )


def run_name(operation: str) -> str:
    """Return a new run's name: <UTC time>-<operation>-<id>."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{operation}-{secrets.token_hex(3)}"


def utc() -> str:
    """Return the current time in the format of run.json and events."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def holds_a_run(path: Path) -> bool:
    """Return whether a folder has a run that can be resumed: its run.json exists."""
    return (path / RUN).is_file()


def check_no_run(path: Path, *, resumes: bool = False) -> None:
    """Raise UsageError if a folder has a run, or a part of one. `resumes`: whether such a run can be resumed."""
    if not path.is_dir() or not any(path.iterdir()):
        return
    for name in (RUN, *_line_files(), SAMPLES):
        if (path / name).exists():
            requeued = f"in a job that may be requeued: --out {path} --resume-if-exists"
            go_on = f"go on with it by `collbench --resume {quoted(path)}` ({requeued}), or "
            how = go_on if resumes and holds_a_run(path) else ""
            raise UsageError(f"--out {path} already holds a run ({name}): {how}choose a new folder, so that nothing is lost")


def check_new(path: Path) -> None:
    """Raise UsageError if a new run cannot be written into this folder. What is created to find out is deleted again."""
    made: list[Path] = []
    try:
        _enter(path, made, resumes=True)
        Lock(path).release()
    except OSError as error:
        raise UsageError(cannot_create(path, error)) from error
    finally:
        _undo(made)


def _enter(path: Path, made: list[Path], *, resumes: bool = False) -> None:
    """Create a folder for a new run, and add what was created to `made`. Raises UsageError if it has a run or too little space, OSError."""
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    made += reversed(new)
    make_folders(path, new)
    check_no_run(path, resumes=resumes)
    check_free_space(path)


def _undo(made: Sequence[Path]) -> None:
    """Delete what was created."""
    for path in reversed(made):
        with suppress(OSError):  # never created, or no longer empty
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)


# Writing the folder of a finished run at once. Only for rows with a source that still exists: a crash may lose the folder.


class FinishedRun(msgspec.Struct, frozen=True):
    """A finished run, to be written as a folder.

    It has the keys of run.json besides schema, id, operation, times and number of rows; the rows; and their arrays by index. The exit
    code is 0 if `info` has none.
    """

    path: Path
    operation: str
    info: Mapping[str, Any]
    rows: Sequence[Row]
    topology: Mapping[str, Any] | None = None
    arrays: Mapping[int, Mapping[str, NDArray[Any]]] = msgspec.field(default_factory=dict)


def write_all(runs: Iterable[FinishedRun]) -> None:
    """Write all runs, or none. Raises UsageError if a folder has a run already, or cannot be written."""
    made: list[Path] = []
    for run in runs:
        try:
            _write(run, made)
        except (OSError, UsageError) as error:
            _undo(made)
            raise error if isinstance(error, UsageError) else UsageError(cannot_create(run.path, error)) from error


def _write(run: FinishedRun, made: list[Path]) -> None:
    """Write the files of a run, run.json last."""
    if not run.path.parent.is_dir() or run.path.exists():
        _enter(run.path, made)
    else:  # another launch of many, with a new name
        run.path.mkdir()
        made.append(run.path)

    def write(name: str, pieces: Iterable[bytes]) -> None:
        with (run.path / name).open("xb") as file:
            made.append(run.path / name)
            file.writelines(pieces)

    if run.arrays:
        write(SAMPLES, (array.tobytes() for _, arrays in sorted(run.arrays.items()) for array in arrays.values()))
    if run.topology is not None:
        write(TOPOLOGY, [to_page(run.topology).encode()])
    write(CASES, (f"{to_line(row.as_json())}\n".encode() for row in _with_places(run)))
    head = {"schema": SCHEMA, "id": run.path.name or run.path.resolve().name, "operation": run.operation, "started_utc": utc()}
    write(RUN, [to_page({**head, "exit_code": FINE, **run.info, "finished_utc": utc(), "rows": len(run.rows)}).encode()])


def _with_places(run: FinishedRun) -> Iterator[Row]:
    """Yield the rows with the offsets of their arrays in samples.bin."""
    offset = 0
    for index, row in enumerate(run.rows):
        places: dict[str, Any] = {}
        for name, array in run.arrays.get(index, {}).items():
            places[name] = {"offset": offset, "dtype": array.dtype.str, "shape": list(array.shape)}
            offset += array.nbytes
        yield row.with_figures(samples=places) if places else row
