"""Read logs of NCCL and RCCL with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,COLL: what each rank called, without times.

A file may have one rank (`NCCL_DEBUG_FILE=%h.%p`) or the lines of many, with what a launcher puts before them. The lines of INIT have the
communicators: without them, the ranks are unknown, except in RCCL's logs, where each call has its rank in the job (`globalrank`).

NCCL counts launches (`opCount`), not calls: it is not a sequence number. Sends and receives of one launch were one group. Inside of a
captured CUDA graph, each call is logged once, at the capture.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError
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

_MOST_OPERATIONS = 1 << 24  # of all files
_MOST_COMMUNICATORS = 1 << 20
_MISSING = frozenset(
    {Part.START_TIMES, Part.DURATIONS, Part.SEQUENCES, Part.COMPUTE, Part.STEPS, Part.DEPENDENCIES, Part.SPLITS}
)  # fmt: skip

# host:pid:tid [device], RCCL's time stamp. The host follows what a launcher printed: "0: ", "[1,0]<stdout>:".
_WRITER = rb"(?<![\w.-])([\w.-]{1,255}):(\d{1,10}):\d{1,10} \[(\d{1,4})\] (?:\d{1,20} )?NCCL INFO "
_POINTER = rb"(?:0x([0-9a-f]{1,16})|\(nil\))"
_CALL = re.compile(
    _WRITER + rb"(\w{1,40}): opCount ([0-9a-f]{1,16}) sendbuff " + _POINTER + rb" recvbuff " + _POINTER
    + rb"(?: acc (?:0x[0-9a-f]{1,16}|\(nil\)))? count (\d{1,13}) datatype (\d{1,3}) op (\d{1,10}) root (\d{1,7}) comm " + _POINTER
    + rb" \[nranks=(\d{1,7})\] stream " + _POINTER + rb"(?: task \d{1,10} globalrank (\d{1,7}))?"
)  # fmt: skip
_CALL_MARK = re.compile(rb"NCCL INFO \w{1,40}: opCount ")
_INIT = re.compile(
    _WRITER + rb"(?:\[Rank \d{1,7}\] )?\w{0,40} ?comm " + _POINTER + rb" rank (\d{1,7}) nranks (\d{1,7}) cudaDev (\d{1,4}) [^\n]{0,200}?"
    rb"(?:commId 0x([0-9a-f]{1,16}) |parent 0x([0-9a-f]{1,16}) (?:split|child)Count (\d{1,10}) color (-?\d{1,10}) key -?\d{1,10} ?)?"
    rb"- (Init START|Init COMPLETE|Destroy COMPLETE|Abort COMPLETE)"
)
_INIT_MARK = re.compile(rb"- (?:Init|Destroy|Abort) (?:START|COMPLETE)")


def recognizes(path: Path, head: bytes) -> bool:
    """Return whether the text has lines of NCCL's calls or communicators; not a log that only mentions them."""
    return b" NCCL INFO " in head and (bool(_CALL.search(head)) or bool(_INIT.search(head)))


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


@dataclass(eq=False)
class _LoggedCommunicator:
    """A communicator of a rank. key: NCCL's id, or that of its parent and the number and color of the split; "" if not logged."""

    pointer: bytes
    size: int
    rank: int = UNKNOWN
    key: str = ""
    destroyed: bool = False


_COLUMNS = ("communicator", "kind", "dtype", "redop", "count", "root", "launch", "stream")


@dataclass
class _LoggedRank:
    """What was read of a rank: a process, and the device of its communicators. rows: of _COLUMNS."""

    host: str
    pid: int
    device: int
    source: Path
    communicators: list[_LoggedCommunicator] = field(default_factory=list)
    rows: array[int] = field(default_factory=lambda: array("q"))
    rank: int = UNKNOWN

    @property
    def name(self) -> str:
        return f"process {self.pid} on {self.host}, device {self.device}"


class _NcclLog:
    """The ranks of the files read so far, by host, process and device."""

    def __init__(self) -> None:
        self.units: dict[tuple[bytes, bytes, bytes], _LoggedRank] = {}
        self.current: dict[tuple[bytes, bytes, bytes], tuple[_LoggedRank, int]] = {}  # by host, process and pointer
        self.total = 0

    def read(self, path: Path) -> None:
        """Read a file. Raises UsageError for a line with a part of a call."""
        for first, block in line_blocks(path):
            calls, begin = 0, 0
            for mark in _INIT_MARK.finditer(block):  # it ends the line of a communicator
                init = _INIT.search(block, max(block.rfind(b"\n", 0, mark.start()), mark.start() - 1024, 0), mark.end())
                if init is None:
                    continue
                calls += self._calls(path, _CALL.findall(block, begin, init.start()))
                self._init(path, init)
                begin = init.end()
            calls += self._calls(path, _CALL.findall(block, begin))
            if calls != len(_CALL_MARK.findall(block)):
                _reject(path, first, block)
            self.total += calls
            if self.total > _MOST_OPERATIONS or len(self.current) > _MOST_COMMUNICATORS:
                raise UsageError(f"{path}: the log has more than {_MOST_OPERATIONS:,} operations or too many communicators: give a part")

    def _unit(self, path: Path, host: bytes, pid: bytes, device: bytes) -> _LoggedRank:
        unit = self.units.get((host, pid, device))
        if unit is None:
            unit = self.units[host, pid, device] = _LoggedRank(host.decode(), int(pid), int(device), path)
        return unit

    def _init(self, path: Path, found: re.Match[bytes]) -> None:
        host, pid, _, pointer, rank, size, device, key, parent, split, color, event = found.groups()
        known = self.current.get((host, pid, pointer))
        if not event.startswith(b"Init"):
            if known:
                known[0].communicators[known[1]].destroyed = True
            return
        name = f"0x{key.decode()}" if key else ""
        if parent and (of := self.current.get((host, pid, parent))) and (above := of[0].communicators[of[1]].key):
            name = f"{above}/{int(split)}.{int(color)}"
        if known:
            one = known[0].communicators[known[1]]
            same = (one.rank, one.size) in ((int(rank), int(size)), (UNKNOWN, int(size))) and one.key in ("", name)
            if same and not one.destroyed:
                one.rank, one.key = int(rank), name or one.key
                return
        unit = self._unit(path, host, pid, device)
        self.current[host, pid, pointer] = (unit, len(unit.communicators))
        unit.communicators.append(_LoggedCommunicator(pointer or b"", int(size), int(rank), name))

    def _calls(self, path: Path, calls: Sequence[tuple[bytes, ...]]) -> int:
        current = self.current
        for host, pid, device, name, launch, _, _, count, dtype, redop, root, pointer, size, stream, rank in calls:
            where = current.get((host, pid, pointer))
            if where is None:
                unit = self._unit(path, host, pid, device)
                where = current[host, pid, pointer] = (unit, len(unit.communicators))
                unit.communicators.append(_LoggedCommunicator(pointer, int(size)))
            unit, number = where
            if rank:
                unit.rank = int(rank)
            kind, stream_number = kind_of_nccl(name.decode()), int(stream or b"0", 16) & _MASK
            unit.rows.extend((number, kind, int(dtype), int(redop), int(count), int(root), int(launch, 16) & _MASK, stream_number))
        return len(calls)


_MASK = (1 << 63) - 1


def _reject(path: Path, first: int, block: bytes) -> None:
    """Raise UsageError for the first line with a part of a call."""
    for number, line in enumerate(block.split(b"\n"), first):
        if len(_CALL_MARK.findall(line)) != len(_CALL.findall(line)):
            raise UsageError(
                f"{path}: line {number}: a call is incomplete, or lines of several processes are mixed: set NCCL_DEBUG_FILE to a file for "
                "each process ('nccl.%h.%p'); delete a last line that is cut off"
            )


def _processes(units: Sequence[_LoggedRank]) -> list[ProcessTrace]:
    """Return the ranks with keys of their communicators. A communicator of all ranks without a key is known by its number.

    Raises UsageError for another communicator without a key, or without a rank.
    """
    largest = max(one.size for unit in units for one in unit.communicators)
    found = []
    for unit in units:
        members, of_all = [], 0
        for one in unit.communicators:
            rank, key = one.rank, one.key
            if one.size == largest:
                of_all += 1
                key = key or f"{of_all} of {one.size} ranks"
                rank = unit.rank if rank == UNKNOWN else rank
            if not key or rank == UNKNOWN:
                raise UsageError(
                    f"{unit.source}: the log has no line with the id and the rank of communicator 0x{one.pointer.decode() or '0'} "
                    f"({unit.name}): record again with NCCL_DEBUG_SUBSYS=INIT,COLL and NCCL 2.18 or newer"
                )
            members.append(Membership(key, rank, one.size))
        found.append(_process(unit, tuple(members)))
    return found


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
