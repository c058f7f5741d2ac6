"""Read dumps of PyTorch's Flight Recorder: what each rank called last, as JSON or pickle, one file per rank.

Of NCCL, `TORCH_NCCL_DUMP_ON_TIMEOUT=1` writes them to the file prefix of `TORCH_FR_DUMP_TEMP_FILE`, with the rank at its end. On every
library, `torch._C._distributed_c10d._dump_fr_trace()` and `_dump_fr_trace_json()` return them. The rank is only in the file's name.

With NCCL, the operations of a batch are recorded without a state, then an entry "coalesced" has the state of the batch.
With NCCL, an entry of a scatter has the output of the rank as its input, and as its output the inputs of the root (elsewhere an empty one).
With Gloo, a dump has no ranks of groups, no start and end, and no messages; an operation that failed is retired like one that completed.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Mapping
from math import prod
from operator import index
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.plugins.traces.files import unreadable
from collbench.plugins.traces.json_records import INVALID
from collbench.plugins.traces.model import (
    DTYPE,
    KIND,
    NONE,
    STATE,
    UNKNOWN,
    DamagedTrace,
    Part,
    ProcessGroup,
    RankTrace,
    operations_of,
    pack_operation,
)
from collbench.plugins.traces.pickled_dump import damaged, read_pickle
from collbench.untrusted import dict_of, encodable, read_file, uncollected

FORM = "flight-recorder"

_MOST_BYTES = 1 << 30
_MOST_RANKS = 1 << 20
_KEYS = (b"pg_config", b"pg_status", b"profiling_name", b"collective_seq_id", b"process_group")
_RANK = re.compile(r"(\d{1,9})(?:\.(?:json|pickle|pkl|bin|dump|fr|gz))*$")
_LAST_PLACES = 256  # of the program: the last calls are those that hang

_DTYPES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Float8_e4m3fn": "float8_e4m3fn",
    "Float8_e5m2": "float8_e5m2", "Float8_e4m3fnuz": "float8_e4m3fn", "Float8_e5m2fnuz": "float8_e5m2", "Char": "int8", "Int": "int32",
    "Long": "int64", "Byte": "uint8", "UInt32": "uint32", "UInt64": "uint64", "Bool": "uint8", "Short": "float16", "UInt16": "float16",
    "ComplexFloat": "float64", "ComplexHalf": "float32",
}  # fmt: skip
_VARIANT = re.compile(r"_(?:coalesced|base|into_tensor|tensor|single|oop)(?=_|$)")


def recognizes(path: Path, head: bytes) -> bool:
    """Return whether a file is a dump of the Flight Recorder, from its first 64 KiB."""
    if head[:1] == b"\x80":
        return any(key in head for key in _KEYS) or b"entries" in head
    return head.lstrip()[:1] == b"{" and sum(key in head for key in (*_KEYS, b'"entries"')) > 1


def read(path: Path) -> list[RankTrace]:
    """Return the rank of one dump. Raises DamagedTrace, and UsageError for a file name that does not end with the rank."""
    rank = rank_of(path)
    if rank == UNKNOWN:
        raise UsageError(f"{path}: the name does not end with the rank: rename it, such as to dump_rank_0 for rank 0")
    with uncollected():
        try:
            data = _unpacked(path)
            rows = _Rows(path)
            rest = (read_pickle if data[:1] == b"\x80" else _read_json)(path, data, rows.add)
        except OSError as error:
            raise unreadable(path, error) from error
        del data
        return [rows.trace(rank, rest)]


def rank_of(path: Path) -> int:
    """Return the rank at the end of a file's name, UNKNOWN without one."""
    named = _RANK.search(path.name)
    return int(named[1]) if named and int(named[1]) < _MOST_RANKS else UNKNOWN


def _unpacked(path: Path) -> bytes:
    data = read_file(path, _MOST_BYTES)
    if data[:2] != b"\x1f\x8b":
        return data
    unpacker = zlib.decompressobj(wbits=31)
    try:
        content = unpacker.decompress(data, _MOST_BYTES)
    except zlib.error as error:
        raise damaged(path, "its gzip compression is damaged", "copy it again") from error
    if unpacker.unconsumed_tail or not unpacker.eof:
        what = f"its gzip compression is incomplete, or holds more than {_MOST_BYTES >> 30} GiB"
        raise damaged(path, what, "copy it again")
    return content


class _Document(msgspec.Struct):
    """A dump as JSON. The entries are decoded one by one, since a million of them would take gigabytes."""

    entries: list[msgspec.Raw] = []
    pg_config: Any = None
    pg_status: Any = None


def _read_json(path: Path, data: bytes, add: Callable[[Mapping[str, Any]], None]) -> Mapping[str, Any]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    try:
        document = msgspec.json.decode(data, type=_Document)
        for entry in document.entries:
            add(decode(entry))
    except INVALID as error:
        raise damaged(path, str(error)) from error
    return {"pg_config": document.pg_config, "pg_status": document.pg_status}


class _Rows:
    """The entries of a dump as rows of OPERATION."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = bytearray()
        self.count = 0  # of rows
        self.groups: dict[tuple[str, str], int] = {}
        self.names: dict[str, tuple[int, int, bool]] = {}  # kind, peer, whether it only ends a batch
        self.first_record = self.last_record = 0
        self.seen = self.ended = 0
        self.parts: list[int] = []  # rows of the operations of the same number just before that may be a batch
        self.of_parts: tuple[int, Any, bool] | None = None  # their group and number, and whether they are messages
        self.without_end: list[list[int]] = []  # parts of which the entry of the batch was left out
        self.places: dict[int, str] = {}
        self.has_messages = True
        self.by_id: dict[str, int] = {}  # group of a pg_id, which pg_status has
        # Rows before, group, numbers of both kinds, values of _OF_BATCH
        self.batches: list[tuple[int, int, Any, Any, tuple[int, ...]]] = []

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add one entry. Raises UsageError for values of other types than the Flight Recorder's."""
        try:
            get = entry.get
            if not self.seen:
                self.first_record = self.last_record = get("record_id", 0)
            name = entry["profiling_name"]
            meaning = self.names.get(name)
            if meaning is None:
                meaning = self.names[name] = _operation(name)
            kind, peer, marker = meaning
            group = get("process_group")
            pair = (group[0], group[1]) if group else (str(entry["pg_id"]), "")
            number = self.groups.get(pair)
            if number is None:
                if not (isinstance(pair[0], str) and isinstance(pair[1], str)):
                    raise TypeError
                number = self.groups[pair] = len(self.groups)
                self.by_id[str(get("pg_id"))] = number
            message = bool(get("is_p2p")) and kind in _MESSAGES
            sequence = get("p2p_seq_id") if message else get("collective_seq_id", get("seq_id"))
            types = get("input_dtypes") or get("output_dtypes")
            state = STATE.get(get("state"), NONE)  # type: ignore[arg-type]
            if state != _COMPLETED and get("retired"):
                state = _RETIRED
            self.seen += 1
            self.has_messages &= not name.startswith("gloo:")
            self.ended += state in (_COMPLETED, _RETIRED)
            record = get("record_id", 0)
            may_be_part = message or (state == _SCHEDULED and not marker and sequence is not None)
            if may_be_part or self.parts:
                self._follow_batch((number, sequence, message) if may_be_part else None, marker, record > self.last_record + 1)
            self.last_record = record
            times = get("time_created_ns"), get("time_discovered_started_ns"), get("time_discovered_completed_ns")
            created, start, end = (time or UNKNOWN for time in times)
            took = get("duration_ms")
            duration = UNKNOWN if took is None else int(took * 1e6)
            if marker:
                numbers = get("collective_seq_id", get("seq_id")), get("p2p_seq_id")
                self.batches.append((self.count, number, *numbers, (state, start, end, duration)))
                return
            dtype = DTYPE.get(_DTYPES.get(types[0], ""), NONE) if types else NONE
            sent, received = _sizes(kind, entry)
            self.rows += pack_operation(
                kind, dtype, NONE, state, number, UNKNOWN if sequence is None else sequence, sent, received,
                peer, UNKNOWN, UNKNOWN, UNKNOWN, created, start, end, duration,
            )  # fmt: skip
            frames = get("frames")
            if frames:
                self.places[self.count] = _place(frames)
                if len(self.places) > 2 * _LAST_PLACES:
                    self.places = dict(list(self.places.items())[-_LAST_PLACES:])
            self.count += 1
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
            raise self._invalid(error) from error

    def _follow_batch(self, of: tuple[int, Any, bool] | None, is_end: bool, is_gap: bool) -> None:
        """Note batches before a gap. of: as `of_parts`, None for an entry outside a batch; is_end: of a batch.

        A dump of active operations has the parts of all batches, since they have no state, but not the entries of completed batches.
        """
        if of is not None and of == self.of_parts and not is_gap:
            self.parts.append(self.count)
            return
        if is_gap and self.parts:
            self.without_end.append(self.parts)
        self.of_parts = of
        self.parts = [self.count] if of is not None and not is_end else []

    def _invalid(self, error: Exception) -> DamagedTrace:
        what = f"entry {self.seen}: '{error.args[0]}' is missing" if isinstance(error, KeyError) else f"entry {self.seen} is damaged"
        return damaged(self.path, what)

    def trace(self, rank: int, rest: Mapping[str, Any]) -> RankTrace:
        """Return the trace of the rank, with the groups of `rest`. Raises UsageError."""
        operations = operations_of(self.rows)
        try:
            self._complete_batches(operations)
        except (TypeError, ValueError, OverflowError) as error:
            raise self._invalid(error) from error
        members = _members(self.path, rest.get("pg_config"))
        self.rows = bytearray()
        progress = self._progress(dict_of(rest.get("pg_config")), dict_of(rest.get("pg_status")))
        groups = tuple(ProcessGroup(encodable(name), members.get(name, ()), encodable(what)) for name, what in self.groups)
        _number_batches(operations)
        _name_peers(operations, groups)
        world = _world(operations, groups, members)
        missing = {Part.REDOPS, Part.ROOTS, Part.SPLITS, Part.QUEUES, Part.COMPUTE, Part.STEPS, Part.DEPENDENCIES}
        lacks = {
            Part.DURATIONS: not ((operations["end"] >= 0) | (operations["duration"] >= 0)).any(),
            Part.START_TIMES: not ((operations["created"] >= 0) | (operations["start"] >= 0)).all(),
            Part.GROUPS: not all(group.ranks for group in groups),
            Part.BEGINNING: self.first_record,
            Part.SEQUENCES: (operations["sequence"] < 0).any(),
            Part.MESSAGES: not self.has_messages,
        }
        missing |= {part for part, is_missing in lacks.items() if is_missing}
        return RankTrace(
            rank, world, self.path, groups, operations, missing=frozenset(missing), notes=self.places, progress=progress,
            only_pending=not self.ended,
        )  # fmt: skip

    def _complete_batches(self, operations: NDArray[Any]) -> None:
        """Give the operations of a batch the state and times of the batch, which the entry after them has.

        Without that entry the batch has completed. A batch of one operation then looks like a single one, which may be pending: a message
        has no state, and a collective is taken for a single one.
        """
        if self.without_end and not self.ended and self.parts:
            self.without_end.append(self.parts)
        for rows in self.without_end:
            scheduled = [row for row in rows if operations["state"][row] == _SCHEDULED]
            if len(rows) > 1:
                operations["state"][scheduled] = _COMPLETED
            elif operations["kind"][rows[0]] in _MESSAGES:
                operations["state"][scheduled] = NONE
        for before, group, collective, message, values in self.batches:
            row = before - 1
            is_message = row >= 0 and operations["kind"][row] in _MESSAGES
            part = group, message if is_message else collective, is_message
            while row >= 0 and part == (operations["group"][row], operations["sequence"][row], operations["kind"][row] in _MESSAGES):
                for name, value in zip(_OF_BATCH, values, strict=True):
                    operations[name][row] = value
                row -= 1

    def _progress(self, config: Mapping[str, Any], status: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
        """Return by group the last collective that was called and the last one that completed; {} where the dump does not have them.

        A status has the number that the process gave the group. It is that of an entry; without entries the groups of a process are
        numbered in the order of their names, and the first one is the default group.
        """
        by_order = {"0": "0"} if "0" in config else {}
        if len(config) == len(status) and all(key.isdecimal() for key in (*config, *status)):
            by_order = dict(zip(sorted(status, key=int), sorted(config, key=int), strict=True))
        by_id = dict(self.by_id)
        progress = {}
        for key, value in status.items():
            last = dict_of(value)
            called = _number(last.get("last_enqueued_collective"))
            completed = _number(last.get("last_completed_collective"))
            if called is None or completed is None or not UNKNOWN <= completed <= called:
                continue
            name = by_order.get(key)
            if key not in by_id and name is not None and all(name != group for group, _ in self.groups):
                what = str(dict_of(config[name]).get("desc") or "")
                by_id[key] = self.groups[name, what] = len(self.groups)
            if key in by_id:
                progress[by_id[key]] = max(called, 0), max(completed, 0)
        return progress


_SCHEDULED = STATE["scheduled"]
_COMPLETED = STATE["completed"]
_RETIRED = STATE["retired"]
_OF_BATCH = ("state", "start", "end", "duration")
_MESSAGES = (KIND["send"], KIND["recv"])
_SCATTER = KIND["scatter"]


def _number(value: Any) -> int | None:
    """Return a number of a status, which is a text in JSON; None for another value."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value, re.ASCII):
        return int(value)
    return value if type(value) is int else None


def _operation(name: str) -> tuple[int, int, bool]:
    """Return (kind, peer in the group or UNKNOWN, whether it only marks the end of a batch) of "nccl:send 0->1"."""
    words = name.partition(":")[2].lower().split() or [name.lower()]
    if words[0] == "coalesced":
        return KIND["other"], UNKNOWN, True
    plain = _VARIANT.sub("", words[0]).replace("_", "")
    kind = KIND.get({"allreducebarrier": "barrier", "recvanysource": "recv"}.get(plain, plain), KIND["other"])
    peer = re.search(r"(?:->|<-)(\d{1,9})$", words[-1])
    return kind, int(peer[1]) if peer else UNKNOWN, False


def _sizes(kind: int, entry: Mapping[str, Any]) -> tuple[int, int]:
    """Return the elements that a rank sends and receives."""
    sent = _elements(entry.get("input_sizes") or ())
    received = _elements(entry.get("output_sizes") or ())
    if kind == _SCATTER and sent and not 0 < received <= sent:
        return received, sent
    return sent, received


def _elements(sizes: Any) -> int:
    """Return the number of elements of tensors, from their sizes: [[3, 4], [5]] has 17."""
    return sum(prod(map(index, size)) for size in sizes) if len(sizes) != 1 else prod(map(index, sizes[0]))


def _place(frames: Any) -> str:
    """Return the innermost call of the program itself: "train.py:41 (step)"; "" if it is not recorded."""
    for frame in frames:
        file = str(frame.get("filename", ""))
        name = str(frame.get("name", ""))
        if "/torch/" not in file and not file.startswith("<") and file:
            return encodable(f"{Path(file).name[:80]}:{frame.get('line', '?')} ({name[:80]})")
    return ""


def _members(path: Path, config: Any) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each process group that the dump has. Raises UsageError for anything other than a list of ranks."""
    members_of = {}
    for key, value in dict_of(config).items():
        group = dict_of(value)
        ranks = group.get("ranks")
        name = str(group.get("name") or key)
        try:
            if isinstance(ranks, str):
                ranks = msgspec.json.decode(ranks or "[]", type=list[int])
            members = tuple(int(rank) for rank in ranks or ())
            if any(not 0 <= rank < _MOST_RANKS for rank in members):
                raise ValueError
        except (TypeError, ValueError, OverflowError) as error:
            raise damaged(path, f"the ranks of process group '{name[:80]}' are damaged") from error
        if members:
            members_of[name] = members
    return members_of


def _number_batches(operations: NDArray[Any]) -> None:
    """Give the operations of one call, which have the same number in their group, the same batch."""
    if len(operations) < 2:
        return
    message = np.isin(operations["kind"], _MESSAGES)
    same = (operations["sequence"][1:] == operations["sequence"][:-1]) & (operations["sequence"][1:] >= 0)
    same &= (operations["group"][1:] == operations["group"][:-1]) & (message[1:] == message[:-1])
    together = np.r_[same, False] | np.r_[False, same]
    operations["batch"][together] = np.cumsum(~np.r_[False, same])[together]


def _name_peers(operations: NDArray[Any], groups: tuple[ProcessGroup, ...]) -> None:
    """Replace peers in the group by ranks of the job; without the group's ranks they stay, since they are those of the job in "0"."""
    for number, group in enumerate(groups):
        if group.ranks:
            has_peer = (operations["group"] == number) & (operations["root"] >= 0)
            ranks = np.array(group.ranks, np.int64)
            peers = operations["root"][has_peer]
            operations["root"][has_peer] = np.where(peers < len(ranks), ranks[np.minimum(peers, len(ranks) - 1)], UNKNOWN)


def _world(operations: NDArray[Any], groups: tuple[ProcessGroup, ...], members: Mapping[str, tuple[int, ...]]) -> int:
    """Return the number of ranks of the job: the size of the first group, from its ranks or from an all-gather; or UNKNOWN."""
    for number, group in enumerate(groups):
        if group.what == "default_pg" or (group.name == "0" and not group.what):
            if group.ranks:
                return len(group.ranks)
            rows = operations[(operations["group"] == number) & (operations["kind"] == KIND["allgather"]) & (operations["sent"] > 0)]
            if len(rows) and rows["received"][0] % rows["sent"][0] == 0:
                return int(rows["received"][0] // rows["sent"][0])
    return len(members["0"]) if "0" in members else UNKNOWN
