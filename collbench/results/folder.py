"""The folder that one run writes, append-only: whatever kills the run, every finished cell is already on the disk.

run.json        what was run, where and with what; replaced as a whole, never written over
topology.json   the cluster
cells.jsonl     one row per finished cell, fsynced
samples.bin     the rows' arrays one after the other, fsynced before the row that points into it
events.jsonl    findings, warnings, hang, abort
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.errors import RunFailed, UsageError
from collbench.results.jsonl import to_line, to_page
from collbench.results.record import SCHEMA, Row
from collbench.units import format_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

RUN, TOPOLOGY, CELLS, SAMPLES, EVENTS = "run.json", "topology.json", "cells.jsonl", "samples.bin", "events.jsonl"
# What the smallest run needs. With less a run would start, and break off in the middle.
_LEAST_FREE_BYTES = 1 << 20


class RunFolder:
    """A run's folder, open for appending by one process (rank 0). Its methods may be called from any thread.

    Once it is created, every method raises RunFailed when the disk no longer takes what it writes.
    """

    def __init__(self, path: Path, run: dict[str, Any], files: dict[str, _Appended]) -> None:
        self.path = path
        self.run = run
        self.rows = 0
        self._files = files
        self._lock = threading.RLock()  # a signal handler may note an event while the same thread appends

    @classmethod
    def create(cls, out: Path | None, operation: str, run: Mapping[str, Any]) -> RunFolder:
        """A new folder: exactly `out` (from --out), or runs/<UTC time>-<operation>-<id> in the working directory.

        `run` is what run.json holds besides schema, id, operation and start. An `out` that exists is used as it is unless it
        holds a run. Raises UsageError when it does, or when the folder cannot be written; nothing is left behind then.
        """
        path = out if out is not None else Path("runs") / run_name(operation)
        new: list[Path] = []
        files: dict[str, _Appended] = {}
        try:
            new = [folder for folder in (path, *path.parents) if not folder.exists()]
            path.mkdir(parents=True, exist_ok=True)
            _refuse_a_second_run(path)
            _refuse_a_full_disk(path)
            for name in (CELLS, SAMPLES, EVENTS):
                files[name] = _Appended(path / name)
            head = {"schema": SCHEMA, "id": path.resolve().name, "operation": operation, "started_utc": _utc(), **run}
            _replace(path / RUN, to_page(head))
        except (OSError, UsageError) as error:
            _undo(path, files, new)
            raise error if isinstance(error, UsageError) else UsageError(_cannot_create(path, error)) from error
        return cls(path, head, files)

    def append(self, row: Row, arrays: Mapping[str, NDArray[Any]]) -> Row:
        """Stores a finished cell: the arrays first, then the row that points to them. Returns the row with its `samples`."""
        with self._lock, self._safely():
            samples = {name: self._store(array) for name, array in arrays.items()}
            if arrays:
                self._files[SAMPLES].sync()
            stored = replace(row, samples=samples)
            self._append_line(CELLS, stored.as_json())
            self.rows += 1
        return stored

    def event(self, kind: str, **facts: Any) -> None:
        """Notes that something happened, with the time by the calendar and by CLOCK_MONOTONIC."""
        with self._lock, self._safely():
            self._append_line(EVENTS, {"utc": _utc(), "monotonic_s": time.monotonic(), "kind": kind, **facts})

    def write_topology(self, topology: Mapping[str, Any]) -> None:
        """Stores the cluster as probed."""
        with self._safely():
            _replace(self.path / TOPOLOGY, to_page(topology))

    def update(self, **facts: Any) -> None:
        """Adds facts to run.json that were not known at its creation."""
        with self._lock, self._safely():
            self.run.update(facts)
            _replace(self.path / RUN, to_page(self.run))

    def finish(self, **facts: Any) -> None:
        """Completes run.json with the time of the end, the number of rows and `facts` (the runner gives exit_code)."""
        self.update(finished_utc=_utc(), rows=self.rows, **facts)

    def _store(self, array: NDArray[Any]) -> dict[str, Any]:
        if array.dtype.kind not in "biuf":
            raise TypeError(f"samples are numbers, not {array.dtype}")
        offset = self._files[SAMPLES].append(array.tobytes())
        return {"offset": offset, "dtype": array.dtype.str, "shape": list(array.shape)}

    def _append_line(self, name: str, values: Mapping[str, Any]) -> None:
        self._files[name].append(to_line(values).encode() + b"\n")
        self._files[name].sync()

    def _safely(self) -> _Safely:
        return _Safely(self)


class _Safely:
    """Turns what the operating system says during the run into the sentence for the user."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            path, rows = self._folder.path, self._folder.rows
            raise RunFailed(
                f"results can no longer be written to {path} ({error.strerror or error}): {rows} finished cells are safe in it; "
                f"make room there, or run again with --out DIR on another disk"
            ) from error


class _Appended:
    """A file that only grows; an append that fails half-way is taken back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._size = 0

    def append(self, data: bytes) -> int:
        """Writes `data` at the end and returns the offset where it begins."""
        offset, rest = self._size, memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            os.ftruncate(self._descriptor, offset)
            raise
        self._size += len(data)
        return offset

    def sync(self) -> None:
        """Returns when the disk has it."""
        os.fsync(self._descriptor)

    def remove(self) -> None:
        """Closes and deletes the file."""
        os.close(self._descriptor)
        self._path.unlink(missing_ok=True)


def run_name(operation: str) -> str:
    """A new run's name: <UTC time>-<operation>-<id>."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{operation}-{secrets.token_hex(3)}"


def _utc() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _refuse_a_second_run(path: Path) -> None:
    for name in (RUN, CELLS, SAMPLES, EVENTS):
        if (path / name).exists():
            raise UsageError(f"--out {path} already holds a run ({name}): choose a new folder, so that nothing is lost")


def _refuse_a_full_disk(path: Path) -> None:
    disk = os.statvfs(path)
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and free < _LEAST_FREE_BYTES:
        raise UsageError(
            f"run folder {path} cannot be written: its disk has {format_bytes(free)} left, a run needs at least "
            f"{format_bytes(_LEAST_FREE_BYTES)}; make room there, or choose another folder with --out DIR"
        )


def _cannot_create(path: Path, error: OSError) -> str:
    return f"run folder {path} cannot be written ({error.strerror or error}): choose another folder with --out DIR"


def _undo(path: Path, files: Mapping[str, _Appended], new: list[Path]) -> None:
    for file in files.values():
        file.remove()
    with suppress(OSError):
        if files:
            _draft(path / RUN).unlink(missing_ok=True)
    for folder in new:
        with suppress(OSError):  # never made, or somebody put something there meanwhile
            folder.rmdir()


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _replace(path: Path, text: str) -> None:
    """Puts `text` in place of the file in one step, so that no reader and no crash ever sees half of it."""
    draft = _draft(path)
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
