"""Read logs of NCCL and RCCL with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,COLL: what each rank called, without times.

A file may have one rank (`NCCL_DEBUG_FILE=%h.%p`) or the lines of many, with what a launcher puts before them. The lines of INIT have the
communicators: without them, the ranks are unknown, except in RCCL's logs, where each call has its rank in the job (`globalrank`).

NCCL counts launches (`opCount`), not calls: it is not a sequence number. Sends and receives of one launch were one group. Inside of a
captured CUDA graph, each call is logged once, at the capture.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.machine.readers.nccl_facts import CollectiveCall, CommunicatorEvent
from collbench.machine.readers.nccl_lines import INFO, LogWriter, split_line, writer_of
from collbench.plugins.traces.communicators import Membership, ProcessTrace, kind_of_nccl, rank_traces, set_sizes
from collbench.plugins.traces.files import line_blocks
from collbench.plugins.traces.model import DTYPE, KIND, NONE, REDOP, UNKNOWN, Part, RankTrace, empty
from collbench.units import listed
from collbench.untrusted import uncollected

FORM = "nccl-log"

# ncclDataType_t and ncclRedOp_t of nccl.h, by number.
_DTYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
_REDOPS = ("sum", "prod", "max", "min", "avg")
_DTYPE_NUMBERS = np.array([DTYPE[name] for name in _DTYPES] + [NONE], np.uint8)  # the last one is that of other numbers
_REDOP_NUMBERS = np.array([REDOP[name] for name in _REDOPS] + [NONE], np.uint8)

_CALL = b": opCount "
_MOST_OPERATIONS = 1 << 24  # of all files
_MOST_COMMUNICATORS = 1 << 20
_MISSING = frozenset(
    {Part.START_TIMES, Part.DURATIONS, Part.SEQUENCES, Part.COMPUTE, Part.STEPS, Part.DEPENDENCIES, Part.SPLITS}
)  # fmt: skip


def recognizes(path: Path, head: bytes) -> bool:
    """Return whether the text has lines of NCCL's calls or communicators; not a log that only mentions them."""
    logged_lines = (split_line(line) for line in head.split(b"\n"))
    return any(logged and (CollectiveCall.facts_in(logged.text) or CommunicatorEvent.facts_in(logged.text)) for logged in logged_lines)


def read(path: Path) -> list[RankTrace]:
    """Return the ranks of one file; see `read_job`."""
    return read_job([path])


def read_job(paths: Sequence[Path]) -> list[RankTrace]:
    """Return the ranks of all files of a job. Raises UsageError for damaged lines, and if the ranks in the job are unknown."""
    log = _NcclLog()
    with uncollected():
        for path in paths:
            log.read(path)
    if not log.total:
        raise UsageError(f"{listed([str(path) for path in paths], 3)}: no call of a collective: set NCCL_DEBUG_SUBSYS=INIT,COLL")
    return rank_traces(_processes(list(log.units.values())))


class _LoggedCommunicator(msgspec.Struct, eq=False):
    """A communicator of a rank. key: NCCL's id, or that of its parent and the number and color of the split; "" if not logged."""

    address: int
    size: int
    rank: int = UNKNOWN
    key: str = ""
    destroyed: bool = False


_COLUMNS = ("communicator", "kind", "dtype", "redop", "count", "root", "launch", "stream")


class _LoggedRank(msgspec.Struct):
    """What was read of a rank: a process, and the device of its communicators. rows: of _COLUMNS."""

    host: str
    pid: int
    device: int
    source: Path
    communicators: list[_LoggedCommunicator] = msgspec.field(default_factory=list)
    rows: array[int] = msgspec.field(default_factory=lambda: array("q"))
    rank: int = UNKNOWN

    @property
    def name(self) -> str:
        return f"process {self.pid} on {self.host}, device {self.device}"


class _NcclLog:
    """The ranks of the files read so far, by process and device."""

    def __init__(self) -> None:
        self.units: dict[tuple[str, int], _LoggedRank] = {}
        self.current: dict[tuple[str, int], tuple[_LoggedRank, int]] = {}  # by process and address
        self.total = 0

    def read(self, path: Path) -> None:
        """Read a file. Raises UsageError for a line with a part of a call."""
        head, writer = b"\n", LogWriter()
        for first, block in line_blocks(path):
            for number, line in enumerate(block.split(b"\n"), first):
                if not line.startswith(head):
                    logged = split_line(line)
                    if logged is None or logged.level != INFO:
                        continue
                    head, writer = logged.head, writer_of(logged.head)
                message = line[len(head) :]
                calls = message.count(_CALL)
                if calls:
                    complete = CollectiveCall.facts_in(message)
                    if calls > 1 or not complete or writer.device is None:
                        raise UsageError(
                            f"{path}: line {number}: a call is incomplete, or lines of several processes are mixed: set NCCL_DEBUG_FILE to "
                            "a file for each process ('nccl.%h.%p'); delete a last line that is cut off"
                        )
                    self._add_call(path, writer, complete[0])
                elif writer.device is not None:
                    for event in CommunicatorEvent.facts_in(message):
                        self._add_event(path, writer, event)
            if self.total > _MOST_OPERATIONS or len(self.current) > _MOST_COMMUNICATORS:
                raise UsageError(f"{path}: the log has more than {_MOST_OPERATIONS:,} operations or too many communicators: give a part")

    def _add(self, path: Path, writer: LogWriter, device: int, communicator: _LoggedCommunicator) -> tuple[_LoggedRank, int]:
        """Add a communicator to its rank, and return both as (the rank, the number of the communicator)."""
        key = writer.process, device
        if key not in self.units:
            self.units[key] = _LoggedRank(writer.host, writer.pid or 0, device, path)
        unit = self.units[key]
        unit.communicators.append(communicator)
        self.current[writer.process, communicator.address] = unit, len(unit.communicators) - 1
        return self.current[writer.process, communicator.address]

    def _add_event(self, path: Path, writer: LogWriter, event: CommunicatorEvent) -> None:
        unit, number = self.current.get((writer.process, event.address), (None, 0))
        communicator = unit.communicators[number] if unit else None
        if not event.event.startswith("Init"):
            if communicator:
                communicator.destroyed = True
            return
        key = event.id or ""
        if event.parent is not None and (writer.process, event.parent) in self.current:
            parent_unit, parent = self.current[writer.process, event.parent]
            parent_key = parent_unit.communicators[parent].key
            key = f"{parent_key}/{event.split}.{event.color}" if parent_key else key
        if communicator and not communicator.destroyed:
            is_same_rank = communicator.size == event.ranks and communicator.rank in (event.rank, UNKNOWN)
            if is_same_rank and communicator.key in ("", key):
                communicator.rank, communicator.key = event.rank, key or communicator.key
                return
        self._add(path, writer, event.device, _LoggedCommunicator(event.address, event.ranks, event.rank, key))

    def _add_call(self, path: Path, writer: LogWriter, call: CollectiveCall) -> None:
        place = self.current.get((writer.process, call.communicator))
        if place is None:
            place = self._add(path, writer, writer.device or 0, _LoggedCommunicator(call.communicator, call.ranks))
        unit, number = place
        if call.rank is not None:
            unit.rank = call.rank
        kind = kind_of_nccl(call.name)
        unit.rows.extend((number, kind, call.dtype, call.redop, call.elements, call.root, call.launch & _MASK, call.stream & _MASK))
        self.total += 1


_MASK = (1 << 63) - 1


def _processes(units: Sequence[_LoggedRank]) -> list[ProcessTrace]:
    """Return the ranks with keys of their communicators. A communicator of all ranks without a key is known by its number.

    Raises UsageError for another communicator without a key, or without a rank.
    """
    largest = max(communicator.size for unit in units for communicator in unit.communicators)
    processes = []
    for unit in units:
        members, of_all = [], 0
        for communicator in unit.communicators:
            rank, key = communicator.rank, communicator.key
            if communicator.size == largest:
                of_all += 1
                key = key or f"{of_all} of {communicator.size} ranks"
                rank = unit.rank if rank == UNKNOWN else rank
            if not key or rank == UNKNOWN:
                raise UsageError(
                    f"{unit.source}: the log has no line with the id and the rank of communicator {communicator.address:#x} "
                    f"({unit.name}): record again with NCCL_DEBUG_SUBSYS=INIT,COLL and NCCL 2.18 or newer"
                )
            members.append(Membership(key, rank, communicator.size))
        processes.append(_process(unit, tuple(members)))
    return processes


def _process(unit: _LoggedRank, members: tuple[Membership, ...]) -> ProcessTrace:
    rows = np.frombuffer(unit.rows, np.int64).reshape(-1, len(_COLUMNS))
    columns = dict(zip(_COLUMNS, rows.T, strict=True))
    operations = empty(len(rows))
    operations["kind"], operations["group"], operations["root"] = columns["kind"], columns["communicator"], columns["root"]
    operations["dtype"] = _DTYPE_NUMBERS[np.minimum(columns["dtype"], len(_DTYPES))]
    reduces = np.isin(columns["kind"], [KIND[name] for name in ("allreduce", "reducescatter", "reduce")])
    operations["redop"] = np.where(reduces, _REDOP_NUMBERS[np.minimum(columns["redop"], len(_REDOPS))], NONE)
    sizes = np.array([member.size for member in members], np.int64)
    set_sizes(operations, columns["count"], sizes[columns["communicator"]])
    operations["queue"] = np.unique(columns["stream"], return_inverse=True)[1]
    operations["batch"] = _batches(columns)
    return ProcessTrace(unit.name, unit.source, unit.host, members, operations, _MISSING, unit.rank)


def _batches(columns: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """Return by operation the number of its group of sends and receives; UNKNOWN for other operations."""
    message = np.isin(columns["kind"], (KIND["send"], KIND["recv"]))
    begins = np.ones(len(message), bool)
    begins[1:] = False
    for column in (columns["communicator"], columns["launch"], message):
        begins[1:] |= column[1:] != column[:-1]
    numbers = np.cumsum(begins) - 1
    several = np.bincount(numbers, minlength=1)[numbers] > 1
    batches: NDArray[Any] = np.where(message & several, numbers, UNKNOWN)
    return batches
