"""Read the traces of a job: recognize the format of each file, and read it.

`READERS` lists the modules of the formats. `read_traces` takes files and folders; the files of one call are of one job and one format.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import cast

from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.plugins.traces.files import unreadable
from collbench.plugins.traces.flight_recorder import rank_of
from collbench.plugins.traces.joining import joined
from collbench.plugins.traces.model import DamagedFile, DamagedTrace, JobReader, Trace, TraceReader
from collbench.units import listed
from collbench.untrusted import unpacked

# The modules of the formats. The first one that recognizes a file reads it.
READERS = (
    "collbench.plugins.traces.flight_recorder",
    "collbench.plugins.traces.inspector",
    "collbench.plugins.traces.nccl_log",
    "collbench.plugins.traces.chakra",
    "collbench.plugins.traces.kineto",
)
# What a folder is read for, by the formats that serve it best.
FOR_AUTOPSY = ("flight-recorder", "inspector", "nccl-log")
FOR_REPLAY = ("kineto", "chakra", "inspector", "nccl-log", "flight-recorder")
FORMS = "PyTorch Flight Recorder, Chakra, Kineto, NCCL Inspector, and logs with NCCL_DEBUG_SUBSYS=INIT,COLL"

_HEAD = 64 << 10
_OF_A_RUN = {"run.json", "cells.jsonl"}  # as results/folder.py names them, which traces cannot import
_SHORTEST = 512  # bytes of a file with a call; the head of a shorter one need not show its format
_MOST_FILES = 1 << 17


@cache
def readers() -> tuple[TraceReader, ...]:
    """Return the readers of all formats, in the order in which they are asked."""
    return tuple(cast(TraceReader, import_module(name)) for name in READERS)


def read_traces(paths: Iterable[Path], prefer: Sequence[str] = (), *, without_damaged: bool = False) -> Trace:
    """Return the trace of a job from the files of its ranks. In a folder, files that are not traces are skipped.

    prefer           names of formats (`TraceReader.FORM`): of folders with traces of several formats, as `collbench trace` writes them, the
                     first of these formats is read
    without_damaged  leave out damaged files if at least one is not damaged; `Trace.damaged` has them

    Raises UsageError for a file that cannot be read or is not a trace, for a folder without traces, and for files of several formats or
    jobs, ranks that are there twice, and ranks outside the job.
    """
    damaged: list[DamagedTrace] = []
    files, ignored = _recognized(paths, prefer, damaged, without_damaged)
    reader = next(iter(files.values()))
    for path, reader_of_path in files.items():
        if reader_of_path is not reader:
            first = next(iter(files))
            raise UsageError(
                f"{first} is a {reader.FORM} trace, and {path} is a {reader_of_path.FORM} trace: give the files of one format at a time"
            )
    ranks = []
    if isinstance(reader, JobReader):
        ranks = reader.read_job(list(files))
    else:
        for path in files:
            with _collected(damaged, without_damaged):
                ranks += reader.read(path)
    if not ranks and damaged:
        raise damaged[0]
    if not ranks:
        raise UsageError(f"{listed([str(path) for path in files], 3)}: no communication was recorded: give the traces of a running job")
    left_out = tuple(DamagedFile(str(error.file), error.what, rank_of(error.file)) for error in damaged)
    return replace(joined(reader.FORM, ranks), ignored=ignored, damaged=left_out)


@contextmanager
def _collected(damaged: list[DamagedTrace], is_allowed: bool) -> Iterator[None]:
    """Add the error about a damaged file to `damaged` where that is allowed, else raise it."""
    try:
        yield
    except DamagedTrace as error:
        if not is_allowed:
            raise
        damaged.append(error)


def _recognized(
    paths: Iterable[Path], prefer: Sequence[str], damaged: list[DamagedTrace], without_damaged: bool
) -> tuple[dict[Path, TraceReader], tuple[Path, ...]]:
    """Return (the reader of each file, the traces in folders that are ignored because their format is not the preferred one).

    Raises UsageError for a given file without a reader, and for a folder without traces.

    damaged  gets the given files that are empty, or too short to be recognized; without `without_damaged` they are errors
    """
    readers_of: dict[Path, TraceReader] = {}
    ignored: list[Path] = []
    for path in paths:
        is_folder = False
        with suppress(OSError, ValueError):  # opening reports it
            is_folder = path.is_dir()
        if not is_folder:
            with _collected(damaged, without_damaged):
                readers_of[path] = _reader_of_given(path)
            continue
        files, run = _files(path)
        inside = {file: reader for file in files if (reader := reader_of(file, skip_unreadable=True))}
        if not inside and run is not None:
            raise UsageError(f"{run} is a run of collbench, not a trace: name the recorded trace (`collbench report {run}` shows the run)")
        if not inside:
            raise UsageError(f"{path}: the folder has no trace of a known format: give files of {FORMS}")
        forms = {reader.FORM for reader in inside.values()}
        chosen = next((form for form in prefer if form in forms), None)
        for file, reader in inside.items():
            if chosen in (None, reader.FORM):
                readers_of[file] = reader
            else:
                ignored.append(file)
    if not readers_of and damaged:
        raise damaged[0]
    if not readers_of:
        raise UsageError(f"no trace is given: give files or folders of {FORMS}")
    return readers_of, tuple(ignored)


def _reader_of_given(path: Path) -> TraceReader:
    """Return the reader of a file. Raises UsageError for a file of another kind, and DamagedTrace for one that is too short to tell."""
    reader = reader_of(path)
    if reader is not None:
        return reader
    sentence = f"{path}: not a trace of a known format: give files of {FORMS}"
    if path.stat().st_size < _SHORTEST:
        raise DamagedTrace(path, "it is incomplete", sentence)
    raise UsageError(sentence)


def _files(folder: Path) -> tuple[list[Path], Path | None]:
    """Return the files of a folder and its folders, by name, and the first folder with a run of collbench, whose files are left out.

    Hidden and empty files are left out, too, and links to folders.
    """
    files: list[Path] = []
    run = None
    for root, folders, names in os.walk(folder):
        if set(names) >= _OF_A_RUN:
            run = run or Path(root)
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files += [Path(root) / name for name in sorted(names) if not name.startswith(".")]
        if len(files) > _MOST_FILES:
            raise UsageError(f"{folder}: the folder has more than {_MOST_FILES:,} files: give the folder with the traces only")
    return files, run


def reader_of(path: Path, *, skip_unreadable: bool = False) -> TraceReader | None:
    """Return the reader that recognizes a file, or None. Raises UsageError for a file that is empty or cannot be read.

    skip_unreadable   return None for these, too
    """
    try:
        with unpacked(path) as file:
            head = file.read(_HEAD)
    except OSError as error:
        if skip_unreadable:
            return None
        raise unreadable(path, error) from error
    if not head:
        if skip_unreadable:
            return None
        raise DamagedTrace(path, "it is empty", f"{path}: the file is empty: record the trace again")
    return next((reader for reader in readers() if reader.recognizes(path, head)), None)
