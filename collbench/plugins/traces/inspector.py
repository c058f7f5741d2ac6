"""Read NCCL Inspector's JSONL: the completed operations of a process with their bytes and durations, one object per line.

The profiler plug-in of NCCL and RCCL writes `HOST-pidPID.log` in `NCCL_INSPECTOR_DUMP_DIR`, in several versions:

- each line has its `header` (the communicator) and `metadata` (the process); version 4.0 only writes the last operation of each interval
- from version 4.3, a line with `dump_stats` has both, and they hold for the lines after it

Sizes are in bytes: they are stored as uint8. NCCL numbers each kind of collective of a communicator separately. With
`NCCL_INSPECTOR_DUMP_VERBOSE=1`, operations have times, and their order in the program follows from them; else the lines of a
communicator are in order, and the order between communicators is that of the dumps.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.plugins.traces.communicators import Membership, ProcessTrace, kind_of_nccl, rank_traces, set_sizes
from collbench.plugins.traces.files import line_blocks
from collbench.plugins.traces.model import DTYPE, KIND, STATE, UNKNOWN, Part, RankTrace, empty
from collbench.untrusted import uncollected

FORM = "inspector"

_MOST_OPERATIONS = 1 << 24  # of all files
_MISSING = frozenset({Part.DTYPES, Part.REDOPS, Part.ROOTS, Part.QUEUES, Part.COMPUTE, Part.STEPS, Part.DEPENDENCIES, Part.SPLITS})

_Whole = Annotated[int, Meta(ge=0, le=1 << 42)]
_Time = Annotated[int, Meta(ge=0, le=1 << 53)]  # microseconds; in nanoseconds it fits into 64 bits
_Duration = Annotated[float, Meta(ge=0, le=float(1 << 53))]
_Name = Annotated[str, Meta(max_length=256)]


class _CommunicatorHeader(Struct, gc=False):
    id: _Name
    rank: _Whole
    n_ranks: _Whole
    comm_name: _Name = ""


class _Metadata(Struct, gc=False):
    hostname: _Name = ""
    pid: _Whole = 0
    dump_timestamp_us: _Time = 0


class _KernelTimes(Struct, gc=False):
    kernel_start_ts: _Time = 0
    kernel_stop_ts: _Time = 0


class _Times(Struct, gc=False):
    coll_start_ts: _Time = 0
    p2p_start_ts: _Time = 0
    kernel_events: list[_KernelTimes] = []


class _CollectiveRecord(Struct, gc=False):
    coll: _Name
    coll_sn: _Whole
    coll_msg_size_bytes: _Whole
    coll_exec_time_us: _Duration = -1.0
    event_trace_ts: _Times | None = None


class _MessageRecord(Struct, gc=False):
    p2p: _Name
    p2p_sn: _Whole
    p2p_peer: _Whole
    p2p_msg_size_bytes: _Whole
    p2p_exec_time_us: _Duration = -1.0
    event_trace_ts: _Times | None = None


class _DumpStats(Struct, gc=False):
    coll_dropped_total: _Whole = 0
    p2p_dropped_total: _Whole = 0


class _Line(Struct, gc=False):
    header: _CommunicatorHeader | None = None
    metadata: _Metadata | None = None
    coll_perf: _CollectiveRecord | None = None
    p2p_perf: _MessageRecord | None = None
    dump_stats: _DumpStats | None = None


_LINE = msgspec.json.Decoder(_Line)


def recognizes(path: Path, head: bytes) -> bool:
    """Return whether the first line is an object of NCCL Inspector."""
    first = head.lstrip()[:4096].split(b"\n", 1)[0]
    return first[:1] == b"{" and b'"n_ranks"' in first and any(key in first for key in (b'"coll_perf"', b'"p2p_perf"', b'"dump_stats"'))


def read(path: Path) -> list[RankTrace]:
    """Return the ranks of one file; see `read_job`."""
    return read_job([path])


def read_job(paths: Sequence[Path]) -> list[RankTrace]:
    """Return the ranks of all files of a job: several files of a process are one rank, in the order of their times.

    Raises UsageError for invalid lines, operations that are there twice, and if the ranks in the job are unknown.
    """
    records: dict[tuple[str, int], _InspectorProcess] = {}
    with uncollected():
        for path in paths:
            _read_file(path, records)
    units = [unit for process in records.values() for unit in process.units()]
    _number(units)
    return rank_traces([unit.trace for unit in units])


# Reading the lines. A row of a process's table has these columns; times in microseconds, UNKNOWN where they are not recorded.

_COLUMNS = ("member", "kind", "number", "bytes", "duration", "peer", "created", "start", "end")


class _InspectorProcess(msgspec.Struct):
    """What was read of a process: its (communicator, rank) pairs, and by file the time of its first line, and rows of _COLUMNS."""

    host: str
    pid: int
    source: Path
    members: dict[tuple[str, int], int] = msgspec.field(default_factory=dict)
    memberships: list[Membership] = msgspec.field(default_factory=list)
    parts: list[tuple[int, array[int]]] = msgspec.field(default_factory=list)
    lost: bool = False

    def member(self, header: _CommunicatorHeader) -> int:
        key = header.id, header.rank
        if key not in self.members:
            self.members[key] = len(self.memberships)
            self.memberships.append(Membership(header.id, header.rank, header.n_ranks, header.comm_name))
        return self.members[key]

    def units(self) -> list[_InspectorRank]:
        """Return the ranks of the process: one, or one per GPU. Raises UsageError if it cannot be decided which GPU has a communicator."""
        rows = np.concatenate(
            [np.frombuffer(part, np.int64).reshape(-1, len(_COLUMNS)) for _, part in sorted(self.parts, key=itemgetter(0))]
        )
        name = f"process {self.pid}{f' on {self.host}' if self.host else ''}"
        keys = {key for key, _ in self.members}
        if len(keys) == len(self.members):
            return [_InspectorRank(self, name, self.memberships, rows)]
        if len(keys) > 1:
            raise UsageError(
                f"{self.source}: {name} drives several GPUs with several communicators, and which GPU has which is not recorded: "
                "record a job with one process per GPU"
            )
        return [
            _InspectorRank(
                self, f"{name}, rank {member.rank}", [member], np.where(np.arange(len(_COLUMNS)) == 0, 0, rows[rows[:, 0] == number])
            )
            for number, member in enumerate(self.memberships)
        ]


def _read_file(path: Path, records: dict[tuple[str, int], _InspectorProcess]) -> None:
    header, metadata = None, _Metadata()
    total = 0
    parts: dict[tuple[str, int], array[int]] = {}
    for first, block in line_blocks(path):
        for number, line in enumerate(_decoded(path, first, block), first):
            if line.header is not None:
                header, metadata = line.header, line.metadata or _Metadata()
            if line.coll_perf is None and line.p2p_perf is None and line.dump_stats is None:
                continue
            if header is None:
                raise UsageError(f"{path}: line {number}: 'header' is missing, in this line and before it: give the complete file")
            key = metadata.hostname, metadata.pid
            if key not in parts:
                process = records.setdefault(key, _InspectorProcess(*key, path))
                parts[key] = array("q")
                process.parts.append((metadata.dump_timestamp_us, parts[key]))
            process = records[key]
            member = process.member(header)
            if line.dump_stats is not None:
                process.lost |= line.dump_stats.coll_dropped_total > 0 or line.dump_stats.p2p_dropped_total > 0
            total += 1
            collective = line.coll_perf
            message = line.p2p_perf
            if collective is not None:
                sizes = collective.coll_sn, collective.coll_msg_size_bytes, round(collective.coll_exec_time_us * 1000)
                times = _times(collective.event_trace_ts, "coll_start_ts")
                parts[key].extend((member, kind_of_nccl(collective.coll), *sizes, UNKNOWN, *times))
            elif message is not None:
                sizes = message.p2p_sn, message.p2p_msg_size_bytes, round(message.p2p_exec_time_us * 1000)
                times = _times(message.event_trace_ts, "p2p_start_ts")
                parts[key].extend((member, kind_of_nccl(message.p2p), *sizes, message.p2p_peer, *times))
        if total > _MOST_OPERATIONS:
            raise UsageError(f"{path}: the file has more than {_MOST_OPERATIONS:,} operations: give a part of it")


def _decoded(path: Path, first: int, block: bytes) -> list[_Line]:
    """Return the lines of a block. Raises UsageError with the number of the first invalid line."""
    try:
        return _LINE.decode_lines(block)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        for number, line in enumerate(block.split(b"\n"), first):
            try:
                _LINE.decode(line or b"{}")
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                cut = ": the last line is cut off: delete it, or give the complete file" if not line.rstrip().endswith(b"}") else ""
                raise UsageError(f"{path}: line {number}: not a valid record of NCCL Inspector ({str(error)[:200]}){cut}") from error
        raise


def _times(times: _Times | None, called: str) -> tuple[int, int, int]:
    """Return in ns when the program called the operation, and when its first kernel started and its last one ended; UNKNOWN for 0."""
    if times is None:
        return UNKNOWN, UNKNOWN, UNKNOWN
    starts = [kernel.kernel_start_ts for kernel in times.kernel_events if kernel.kernel_start_ts]
    ends = [kernel.kernel_stop_ts for kernel in times.kernel_events if kernel.kernel_stop_ts]
    created = getattr(times, called)
    return created * 1000 or UNKNOWN, min(starts) * 1000 if starts else UNKNOWN, max(ends) * 1000 if ends else UNKNOWN


class _InspectorRank:
    """The rank of a process. `numbers`: by operation NCCL's number of it among those of its kind in its communicator."""

    def __init__(self, process: _InspectorProcess, name: str, members: Sequence[Membership], rows: NDArray[np.int64]) -> None:
        columns = dict(zip(_COLUMNS, rows.T, strict=True))
        missing = set(_MISSING)
        if len(rows) and (columns["created"] != UNKNOWN).all():
            order = np.argsort(columns["created"], kind="stable")
            columns = {key: column[order] for key, column in columns.items()}
        else:
            missing |= {Part.START_TIMES} | ({Part.ORDER} if len(members) > 1 else set())
        self.numbers = columns["number"]
        operations = empty(len(rows))
        for column in ("kind", "created", "start", "end"):
            operations[column] = columns[column]
        operations["duration"] = np.maximum(columns["duration"], UNKNOWN)
        operations["group"], operations["root"] = columns["member"], columns["peer"]
        operations["dtype"], operations["state"] = DTYPE["uint8"], STATE["completed"]
        sizes = np.array([member.size for member in members], np.int64)
        set_sizes(operations, columns["bytes"], sizes[columns["member"]])
        if (operations["duration"] == UNKNOWN).any():
            missing.add(Part.DURATIONS)
        if process.lost:
            missing.add(Part.OPERATIONS)
        self.trace = ProcessTrace(name, process.source, process.host, tuple(members), operations, frozenset(missing))


# Numbering the collectives of a communicator. NCCL counts each kind separately; the common order follows from those of the ranks.


def _number(units: Sequence[_InspectorRank]) -> None:
    """Set the sequence numbers, and Part.OPERATIONS where numbers are missing. Raises UsageError for a number that is there twice."""
    by_key: dict[str, list[tuple[_InspectorRank, NDArray[Any], NDArray[Any]]]] = {}
    for unit in units:
        operations = unit.trace.operations
        collective = ~np.isin(operations["kind"], (KIND["send"], KIND["recv"]))
        complete = True
        for number, member in enumerate(unit.trace.members):
            index = np.flatnonzero(collective & (operations["group"] == number))
            keys = operations["kind"][index].astype(np.int64) << 48 | unit.numbers[index]
            ordered = np.sort(keys)
            steps = np.diff(ordered)
            if (steps == 0).any():
                raise UsageError(
                    f"{unit.trace.source}: an operation of communicator '{member.key[:80]}' is there twice: give each file once"
                )
            complete &= bool(((steps == 1) | (ordered[1:] >> 48 != ordered[:-1] >> 48)).all())
            by_key.setdefault(member.key, []).append((unit, index, keys))
        if not complete:
            unit.trace = replace(unit.trace, missing=unit.trace.missing | {Part.OPERATIONS})
    for parts in by_key.values():
        merged: NDArray[Any] | None = parts[0][2]
        for _, _, keys in parts[1:]:
            merged = _merged(merged, keys) if merged is not None else None
        if merged is None:
            continue
        order = np.argsort(merged)
        for unit, index, keys in parts:
            unit.trace.operations["sequence"][index] = order[np.searchsorted(merged[order], keys)]


def _merged(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any] | None:
    """Return the items of two lists in an order that has both; None if there is none. Items that only one has follow the first's."""
    if np.array_equal(first, second):
        return first
    _, in_first, in_second = np.intersect1d(first, second, assume_unique=True, return_indices=True)
    by_place = np.argsort(in_first)
    if (np.diff(in_second[by_place]) < 0).any():
        return None
    is_common = [np.isin(first, second, assume_unique=True), np.isin(second, first, assume_unique=True)]
    items = np.concatenate([first, second[~is_common[1]]])
    section = np.concatenate([np.cumsum(is_common[0]), np.cumsum(is_common[1])[~is_common[1]]])
    return items[np.argsort(section, kind="stable")]
