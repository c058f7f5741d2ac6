"""Read the traces of a job: recognize the format of each file, read it, and join the ranks.

`READERS` lists the modules of the formats. `read_traces` takes files and folders; the files of one call are of one job and one format.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np

from collbench.errors import UsageError
from collbench.plugins.traces.flight_recorder import rank_of
from collbench.plugins.traces.model import UNKNOWN, DamagedFile, DamagedTrace, JobReader, ProcessGroup, RankTrace, Trace, TraceReader
from collbench.units import listed, plural
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
_MOST_RANKS = 1 << 20
_MOST_ELEMENTS = 1 << 62
_MOST_BYTES = 8 << 30  # of one file, unpacked
_LONGEST_LINE = 16 << 20
_BLOCK = 8 << 20


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
    other = next((path for path, each in files.items() if each is not reader), None)
    if other is not None:
        first = next(iter(files))
        raise UsageError(
            f"{first} is a {reader.FORM} trace, and {other} is a {files[other].FORM} trace: give the files of one format at a time"
        )
    ranks = reader.read_job(list(files)) if isinstance(reader, JobReader) else []
    for path in () if isinstance(reader, JobReader) else files:
        with _collected(damaged, without_damaged):
            ranks += reader.read(path)
    if not ranks and damaged:
        raise damaged[0]
    if not ranks:
        raise UsageError(f"{listed([str(path) for path in files], 3)}: no communication was recorded: give the traces of a running job")
    left_out = tuple(DamagedFile(str(each.file), each.what, rank_of(each.file)) for each in damaged)
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
    found: dict[Path, TraceReader] = {}
    ignored: list[Path] = []
    for path in paths:
        is_folder = False
        with suppress(OSError, ValueError):  # opening reports it
            is_folder = path.is_dir()
        if not is_folder:
            with _collected(damaged, without_damaged):
                found[path] = _reader_of_given(path)
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
                found[file] = reader
            else:
                ignored.append(file)
    if not found and damaged:
        raise damaged[0]
    if not found:
        raise UsageError(f"no trace is given: give files or folders of {FORMS}")
    return found, tuple(ignored)


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
    found: list[Path] = []
    run = None
    for root, folders, names in os.walk(folder):
        if set(names) >= _OF_A_RUN:
            run = run or Path(root)
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(root) / name for name in sorted(names) if not name.startswith(".")]
        if len(found) > _MOST_FILES:
            raise UsageError(f"{folder}: the folder has more than {_MOST_FILES:,} files: give the folder with the traces only")
    return found, run


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


def unreadable(path: Path, error: OSError) -> UsageError:
    """Return the error for a file that the operating system cannot read, or that has damaged compression."""
    return UsageError(f"{path}: cannot be read: {error.strerror or error}: give another file, or copy it again")


def line_blocks(path: Path, most: int = _MOST_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield a text file in blocks of whole lines of about 8 MiB, each with the number of its first line, from 1.

    Raises UsageError for a file that cannot be read, of more than `most` bytes, or with a line of more than 16 MiB.
    """
    line, total, rest = 1, 0, b""
    try:
        with unpacked(path) as file:
            while data := file.read(_BLOCK):
                total += len(data)
                if total > most:
                    raise UsageError(f"{path}: the file has more than {most >> 30} GiB: give a part of it")
                end = data.rfind(b"\n") + 1
                if not end:
                    rest += data
                    if len(rest) > _LONGEST_LINE:
                        raise UsageError(f"{path}: line {line} has more than {_LONGEST_LINE >> 20} MiB: record the trace again")
                    continue
                block = rest + data[:end]
                rest = data[end:]
                yield line, block
                line += block.count(b"\n")
            if rest:
                yield line, rest
    except OSError as error:
        raise unreadable(path, error) from error


# Joining the ranks. A group is the same at two ranks if its name and its ranks are; where one rank's trace does not contain the ranks of a
# group, its name decides, if only one group has it.


def joined(form: str, ranks: Sequence[RankTrace]) -> Trace:
    """Return the trace of a job from those of its ranks. Without a recorded number of ranks, it is the least that the ranks allow.

    Raises UsageError as `read_traces` does.
    """
    ordered = sorted(ranks, key=lambda each: each.rank)
    for rank in ordered:
        for name in ("sent", "received"):
            sizes = rank.operations[name]
            wrong = np.flatnonzero((sizes < UNKNOWN) | (sizes > _MOST_ELEMENTS))
            if len(wrong):
                what = f"operation {wrong[0]} of rank {rank.rank}: {int(sizes[wrong[0]]):,} is not a valid size"
                raise UsageError(f"{rank.source}: {what}: record the trace again")
    known = [rank for rank in ordered if rank.job]
    other = next((rank for rank in known if rank.job != known[0].job), None)
    if other is not None:
        raise UsageError(
            f"{known[0].source} and {other.source} are of different jobs ('{known[0].job}' and '{other.job}'): give the files of one job"
        )
    for rank, following in pairwise(ordered):
        if rank.rank == following.rank:
            raise UsageError(f"{following.source}: rank {rank.rank} is there twice, also in {rank.source}: give one trace of each rank")
    world = _world(ordered)
    groups, numbers = _unified(ordered, world)
    with_groups = []
    for rank, of_groups in zip(ordered, numbers, strict=True):
        operations = rank.operations
        if of_groups != list(range(len(of_groups))) and len(operations):
            operations = operations.copy()
            operations["group"] = np.array(of_groups, np.int32)[operations["group"]]
        progress = {of_groups[number]: last for number, last in rank.progress.items()}
        with_groups.append(replace(rank, groups=groups, operations=operations, progress=progress))
    return Trace(form, world, groups, tuple(with_groups))


def _world(ranks: Sequence[RankTrace]) -> int:
    """Return the number of ranks of the job. Raises UsageError where the traces disagree, and for ranks outside the job."""
    known = [rank for rank in ranks if rank.world != UNKNOWN]
    other = next((rank for rank in known if rank.world != known[0].world), None)
    if other is not None:
        raise UsageError(
            f"{other.source} is of a job of {plural(other.world, 'rank')}, and {known[0].source} of {known[0].world}: "
            "give the files of one job"
        )
    peers = [int(rank.operations["root"].max(initial=UNKNOWN)) for rank in ranks]
    members = [max((of for group in rank.groups for of in group.ranks), default=0) for rank in ranks]
    world = known[0].world if known else 1 + max(*(rank.rank for rank in ranks), *peers, *members)
    if not 0 < world <= _MOST_RANKS:
        raise UsageError(f"{(known or ranks)[0].source}: {world:,} is not a valid number of ranks: record the trace again")
    for rank in ranks:
        if not 0 <= rank.rank < world:
            raise UsageError(f"{rank.source}: rank {rank.rank} is not in a job of {plural(world, 'rank')}: give the files of one job")
    for rank, peer in zip(ranks, peers, strict=True):
        if peer >= world:
            raise UsageError(
                f"{rank.source}: an operation has the root or peer {peer}, and the job has {plural(world, 'rank')}: "
                "give the files of one job"
            )
    return world


def _unified(ranks: Sequence[RankTrace], world: int) -> tuple[tuple[ProcessGroup, ...], list[list[int]]]:
    """Return the job's groups, and by rank and group of its own table the index of the job's group.

    Raises UsageError for groups with ranks outside the job, with a rank twice, or without the rank that uses them.
    """
    by_name: dict[str, list[ProcessGroup]] = {}
    for rank in ranks:
        for group in rank.groups:
            known = by_name.setdefault(group.name, [])
            if group.ranks and all(group.ranks != other.ranks for other in known):
                _check_group(rank, group, world)
                known.append(group)
    groups: dict[tuple[str, tuple[int, ...]], int] = {}
    table: list[ProcessGroup] = []
    numbers: list[list[int]] = []
    for rank in ranks:
        numbers.append([])
        used = set(np.unique(rank.operations["group"]).tolist())
        for number, group in enumerate(rank.groups):
            own = group
            if not group.ranks and len(by_name[group.name]) == 1:
                own = by_name[group.name][0]
            if own.ranks and number in used and rank.rank not in own.ranks:
                raise UsageError(
                    f"{rank.source}: rank {rank.rank} calls operations of process group '{own.name[:80]}', which does not contain it: "
                    "give the files of one job"
                )
            key = own.name, own.ranks
            if key not in groups:
                groups[key] = len(table)
                table.append(own)
            elif own.what and not table[groups[key]].what:
                table[groups[key]] = replace(table[groups[key]], what=own.what)
            numbers[-1].append(groups[key])
    return tuple(table), numbers


def _check_group(rank: RankTrace, group: ProcessGroup, world: int) -> None:
    wrong = next((each for each in group.ranks if not 0 <= each < world), None)
    if wrong is not None:
        raise UsageError(
            f"{rank.source}: process group '{group.name[:80]}' contains rank {wrong}, and the job has {plural(world, 'rank')}: "
            "give the files of one job"
        )
    if len(set(group.ranks)) != len(group.ranks):
        raise UsageError(f"{rank.source}: process group '{group.name[:80]}' contains a rank twice: record the trace again")
