"""What a trace of a job contains: its process groups, and per rank the communication operations in the order of the program.

Readers (`flight_recorder`, `chakra`, `kineto`, `inspector`, `nccl_log`) return a `RankTrace` per rank. `reading.read_traces` joins them.
A field that the trace does not contain is UNKNOWN, never a guess, and its name is in `RankTrace.missing`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.reason import Fact

# The kinds of operations, by collbench's names. "send" and "recv" are messages; they have a peer instead of a root.
KINDS = (
    "allreduce", "allgather", "reducescatter", "alltoall", "alltoallv", "broadcast", "reduce", "gather", "scatter", "barrier",
    "send", "recv", "other",
)  # fmt: skip
KIND = {name: number for number, name in enumerate(KINDS)}
# The data types, by collbench's names (operations/dtypes.py). A type that collbench does not have is stored as one of its width.
DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "int32", "int64", "uint8", "uint32", "uint64",
)  # fmt: skip
DTYPE = {name: number for number, name in enumerate(DTYPES)}
REDOPS = ("sum", "prod", "min", "max", "avg")
REDOP = {name: number for number, name in enumerate(REDOPS)}
STATES = ("scheduled", "started", "completed", "retired")  # retired: completed or failed, the trace does not contain which
STATE = {name: number for number, name in enumerate(STATES)}

NONE = 255  # of kind's small columns: unknown, or the operation has none
UNKNOWN = -1  # of counts, sequence numbers, ranks, indices, and times

# One operation at one rank; times in ns of the trace's own clock, which may differ between hosts.
#
# kind        index in KINDS
# dtype       index in DTYPES, or NONE; uint8 where a trace has bytes only (then Part.DTYPES is missing)
# redop       index in REDOPS, or NONE
# state       index in STATES, or NONE: how far the operation was when the trace was written
# group       index in RankTrace.groups
# sequence    the number of the operation in its group, as the library counts; UNKNOWN: use the order
# sent        elements of the rank's input; received: of its output. As torch and NCCL count: an all-gather of n ranks receives n × sent
# root        of broadcast, reduce, gather, scatter: the root; of send and recv: the peer. A rank of the job
# created     when the program called the operation; start, end: when it ran
# duration    how long it ran, in ns by the library's own timer; UNKNOWN: end - start
# queue       operations of one queue (a stream, a thread) of a rank run one after the other; UNKNOWN: not recorded
# batch       operations with the same number were one call (ncclGroupStart … ncclGroupEnd, batch_isend_irecv); UNKNOWN: alone
# splits      index in RankTrace.splits, of all-to-all with uneven parts; UNKNOWN: even
OPERATION = np.dtype(
    [
        ("kind", "u1"), ("dtype", "u1"), ("redop", "u1"), ("state", "u1"), ("group", "i4"), ("sequence", "i8"),
        ("sent", "i8"), ("received", "i8"), ("root", "i4"), ("queue", "i4"), ("batch", "i4"), ("splits", "i4"),
        ("created", "i8"), ("start", "i8"), ("end", "i8"), ("duration", "i8"),
    ]
)  # fmt: skip


pack_operation = struct.Struct("<4Bi3q4i4q").pack  # the values of one operation, in this order, as the bytes of its row


def operations_of(rows: bytes | bytearray) -> NDArray[Any]:
    """Return [n] of OPERATION, from rows of `pack_operation`."""
    return np.frombuffer(rows, OPERATION).copy()


def empty(n: int) -> NDArray[Any]:
    """Return n operations of which nothing is known, as [n] of OPERATION."""
    rows = np.zeros(n, OPERATION)
    for name in OPERATION.names or ():
        rows[name] = NONE if OPERATION[name] == np.uint8 else UNKNOWN
    rows["kind"] = KIND["other"]
    return rows


class Part(StrEnum):
    """A part of a trace that some formats do not contain."""

    OPERATIONS = "some of the operations"
    ORDER = "order of operations of different groups"
    START_TIMES = "start times"
    DURATIONS = "durations"
    REDOPS = "reduction ops"
    ROOTS = "roots"
    DTYPES = "data types"
    MESSAGES = "messages (send, recv)"
    SIZES = "sizes"
    SPLITS = "sizes of uneven all-to-all"
    GROUPS = "ranks of process groups"
    SEQUENCES = "sequence numbers"
    QUEUES = "streams"
    COMPUTE = "compute intervals"
    STEPS = "step boundaries"
    DEPENDENCIES = "dependencies"
    BEGINNING = "the job's first operations"


class ProcessGroup(msgspec.Struct, frozen=True):
    """A process group, or communicator.

    name    as the trace has it, the same at all ranks of the group: "0", "0x5581c0ffee"
    ranks   ranks of the job, by rank in the group; () if the trace does not contain them
    what    the program's description: "default_pg", "mesh_tp", or ""
    """

    name: str
    ranks: tuple[int, ...] = ()
    what: str = ""


class RankTrace(msgspec.Struct, frozen=True):
    """The trace of one rank.

    rank         the rank in the job
    world        the number of ranks of the job; UNKNOWN if the trace does not contain it
    source       the file that was read
    groups       the process groups that its operations use
    operations   [n] of OPERATION, in the order in which the program called them
    splits       elements per rank of the group of uneven all-to-alls: (to each rank, from each rank)
    compute      [m × 2] start and end in ns of the rank's computing, ascending and disjoint; [0 × 2] if not recorded
    steps        [k] index of the first operation of each training step; [0] if not recorded
    after        (offsets [n + 1], indices): by operation the operations that it waits for, where the trace contains dependencies
    missing      what the trace does not contain
    job          what identifies the job or the run, to detect files of different jobs; "" if unknown
    notes        the program's own name of each group of operations, for tables: by index in `operations`; may be empty
    host         the name of the rank's host, or ""
    progress     by index in `groups`, where the library recorded it: (sequence number of the last collective that the program called, that
                 of the last one that completed). It covers collectives of which the trace has no operation
    only_pending whether the trace has no operation that had completed when it was written
    """

    rank: int
    world: int
    source: Path
    groups: tuple[ProcessGroup, ...]
    operations: NDArray[Any]
    splits: Sequence[tuple[tuple[int, ...], tuple[int, ...]]] = ()
    compute: NDArray[np.int64] = msgspec.field(default_factory=lambda: np.zeros((0, 2), np.int64))
    steps: NDArray[np.int64] = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    after: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    missing: frozenset[Part] = frozenset()
    job: str = ""
    notes: Mapping[int, str] = msgspec.field(default_factory=dict)
    host: str = ""
    progress: Mapping[int, tuple[int, int]] = msgspec.field(default_factory=dict)
    only_pending: bool = False


class DamagedTrace(UsageError):
    """The file of a rank is cut or damaged. file; what: what is wrong with it, "it is incomplete"."""

    def __init__(self, file: Path, what: str, sentence: str) -> None:
        super().__init__(sentence)
        self.file, self.what = file, what


class DamagedFile(Fact, frozen=True):
    """A file of a job's trace that is cut or damaged, and was left out.

    file  its path; what: what is wrong with it
    rank  the rank in its name, UNKNOWN without one
    """

    text = "{file} is damaged ({what})"
    file: str
    what: str
    rank: int = UNKNOWN


class Trace(msgspec.Struct, frozen=True):
    """The trace of a job: all ranks that were read, ascending, with one table of groups (`RankTrace.groups` is the same at each).

    form     the format that was read: "flight-recorder", "chakra", "kineto", "inspector", "nccl-log"
    world    the number of ranks of the job, read or not
    ignored  files of the given folders that are traces of other formats
    damaged  files that were left out
    """

    form: str
    world: int
    groups: tuple[ProcessGroup, ...]
    ranks: tuple[RankTrace, ...]
    ignored: tuple[Path, ...] = ()
    damaged: tuple[DamagedFile, ...] = ()

    @property
    def missing(self) -> frozenset[Part]:
        """What at least one rank's trace does not contain."""
        return frozenset().union(*(rank.missing for rank in self.ranks))

    @property
    def absent(self) -> tuple[int, ...]:
        """The ranks of the job without a trace, ascending."""
        traced = {rank.rank for rank in self.ranks}
        return tuple(rank for rank in range(self.world) if rank not in traced)

    @property
    def mixes_groups(self) -> bool:
        """Whether operations have neither the name nor the ranks of their process group, so that those of several groups may be mixed."""
        unnamed = [number for number, group in enumerate(self.groups) if not group.name and not group.ranks]
        return any(np.isin(rank.operations["group"], unnamed).any() for rank in self.ranks)


class TraceReader(Protocol):
    """A module that reads one format. `reading.READERS` lists the modules.

    FORM   its name: "chakra"
    """

    FORM: str

    def recognizes(self, path: Path, head: bytes) -> bool:
        """Return whether a file has this format, from its name and its first 64 KiB, decompressed. Must not raise."""
        ...

    def read(self, path: Path) -> list[RankTrace]:
        """Return the ranks of one file; most formats have one. Raises UsageError with the file and the place of what is invalid."""
        ...


@runtime_checkable
class JobReader(TraceReader, Protocol):
    """A reader of a format in which a file is not a rank: one file may have many, a rank several, or its number is in other files."""

    def read_job(self, paths: Sequence[Path]) -> list[RankTrace]:
        """Return the ranks of all files of a job. Raises UsageError as `read` does."""
        ...


def union(intervals: NDArray[np.int64], gap: int = 0) -> NDArray[np.int64]:
    """Return the union of intervals, ascending and disjoint; gaps of up to `gap` are closed, and empty intervals left out."""
    kept = intervals[intervals[:, 1] > intervals[:, 0]]
    if not len(kept):
        return np.zeros((0, 2), np.int64)
    kept = kept[np.argsort(kept[:, 0], kind="stable")]
    ends = np.maximum.accumulate(kept[:, 1])
    first = np.concatenate([[True], kept[1:, 0] > ends[:-1] + gap])
    last = np.concatenate([first[1:], [True]])
    return np.stack([kept[first, 0], ends[last]], axis=1)
