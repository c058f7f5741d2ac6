"""Read dumps of PyTorch's Flight Recorder: what each rank called last, as JSON or pickle, one file per rank.

Of NCCL, `TORCH_NCCL_DUMP_ON_TIMEOUT=1` writes them to the file prefix of `TORCH_FR_DUMP_TEMP_FILE`, with the rank at its end. On every
library, `torch._C._distributed_c10d._dump_fr_trace()` and `_dump_fr_trace_json()` return them. The rank is only in the file's name.

A pickle can call any function when it is loaded. Its codes are checked first, and only those of plain values are loaded.
Dumps that a program has written again with Python's pickle are read by `_PlainUnpickler`, which knows no other codes.

With NCCL, the operations of a batch are recorded without a state, then an entry "coalesced" has the state of the batch.
With Gloo, a dump has no ranks of groups, no start and end, and no messages; an operation that failed is retired like one that completed.
"""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Callable, Mapping
from functools import partial
from io import BufferedReader, BytesIO
from math import prod
from operator import index
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from collbench.errors import UsageError
from collbench.plugins.traces.model import DTYPE, KIND, NONE, OPERATION, STATE, UNKNOWN, DamagedTrace, Part, ProcessGroup, RankTrace, empty
from collbench.untrusted import dict_of, encodable, list_of, read_file, uncollected

FORM = "flight-recorder"

_MOST_BYTES = 1 << 30
_MOST_RANKS = 1 << 20
_KEYS = (b"pg_config", b"pg_status", b"profiling_name", b"collective_seq_id", b"process_group")
_RANK = re.compile(r"(\d{1,9})(?:\.(?:json|pickle|pkl|bin|dump|fr|gz))*$")
_CHUNK = 1 << 16
_FIELDS = ("kind", "dtype", "state", "group", "sequence", "sent", "received", "root", "created", "start", "end", "duration")
_PACKED = np.dtype([(name, OPERATION[name]) for name in _FIELDS])
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
            rest = (_read_pickle if data[:1] == b"\x80" else _read_json)(path, data, rows.add)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror or error}: give another file, or copy it again") from error
        del data
        return [rows.trace(rank, rest)]


def rank_of(path: Path) -> int:
    """Return the rank at the end of a file's name, UNKNOWN without one."""
    named = _RANK.search(path.name)
    return int(named[1]) if named and int(named[1]) < _MOST_RANKS else UNKNOWN


def _damaged(path: Path, what: str, remedy: str = "write it again") -> DamagedTrace:
    return DamagedTrace(path, what, f"{path}: not a valid Flight Recorder dump ({what}): {remedy}")


def _unpacked(path: Path) -> bytes:
    data = read_file(path, _MOST_BYTES)
    if data[:2] != b"\x1f\x8b":
        return data
    import zlib

    unpacker = zlib.decompressobj(wbits=31)
    try:
        content = unpacker.decompress(data, _MOST_BYTES)
    except zlib.error as error:
        raise _damaged(path, "its gzip compression is damaged", "copy it again") from error
    if unpacker.unconsumed_tail or not unpacker.eof:
        what = f"its gzip compression is incomplete, or holds more than {_MOST_BYTES >> 30} GiB"
        raise _damaged(path, what, "copy it again")
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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    return {"pg_config": document.pg_config, "pg_status": document.pg_status}


# Pickle. `_checked` accepts only the codes of plain values, so that nothing is left that could call or allocate something; a string's
# length is outside a regular expression, so the codes between two strings are checked at once. The codes: pickletools in Python's library.
# A tuple must not become part of another one without end: Python would overflow its stack at the hash of a very deep one.

_PUT, _GET = rb"(?:q.|r..[\x00-\x0f]\x00)", rb"(?:h.|j....)"
_LONGS = b"|".join(rb"\x%02x.{%d}" % (n, n) for n in range(9))
_PAIR = rb"\x86(?![qr])"
_PLAIN = (
    rb"(?:" + _GET + rb"(?:" + _GET + _PAIR + rb")?|[\]}]" + _PUT + rb"?\(?|[eas]|K.|M..|[N\x88\x89]|J....|\x8a(?:" + _LONGS + rb")|"
    + _PUT + rb"|G.{8})*+"
)  # fmt: skip
_CODES, _DICT = re.compile(_PLAIN, re.DOTALL), re.compile(_PLAIN + b"u", re.DOTALL)
_AFTER_TEXT = re.compile(_PUT + rb"?(" + _GET + rb"?" + _PAIR + rb")?", re.DOTALL)
_MOST_PAIRS = 1000  # of new texts: the groups of a job
_PROTOCOL, _TEXT, _STOP, _HOOK = b"\x80\x02", b"X", b".", b"Q"
_INCOMPLETE = "it is incomplete"
_BYTES_PER_CONTAINER = 12  # fewest; a dump of NCCL has 30. An empty list of one byte takes 64 bytes of memory


class _Unpickler(pickle.Unpickler):
    """An unpickler for codes that were checked. Each entry goes to `add`, and None stays in its place: a million do not fit into memory."""

    def __init__(self, codes: BytesIO, add: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__(BufferedReader(codes, 1 << 20))  # of a BytesIO, it would read each code by a call
        self.add = add

    def persistent_load(self, value: Any) -> Any:
        """Return a complete dictionary, or None for an entry."""
        if type(value) is not dict or "profiling_name" not in value:
            return value
        self.add(value)
        value.clear()
        return None

    def find_class(self, module: str, name: str) -> Any:
        """Raise UnpicklingError."""
        raise pickle.UnpicklingError(module)


def _read_pickle(path: Path, data: bytes, add: Callable[[Mapping[str, Any]], None]) -> Mapping[str, Any]:
    """Return the dump without its entries, which go to `add`. Raises DamagedTrace."""
    codes = None if data[:2] != _PROTOCOL else _checked(path, data)
    if codes is None:
        found = _PlainUnpickler(path, data).value()
        entries = found.get("entries") if isinstance(found, dict) else None
        if not isinstance(entries, list) or any(type(entry) is not dict for entry in entries):
            raise _invalid_pickle(path, "it holds something else")
        for entry in entries:
            add(entry)
        return {key: value for key, value in found.items() if key in ("pg_config", "pg_status")}
    if (data.count(b"]") + data.count(b"}")) * _BYTES_PER_CONTAINER > len(data) + (1 << 20):
        raise _invalid_pickle(path, "it holds little else than empty lists")
    try:
        found = _Unpickler(codes, add).load()
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, MemoryError) as error:
        raise _invalid_pickle(path, "it is damaged") from error
    if not isinstance(found, dict) or any(each is not None for each in list_of(found.get("entries"), object)):
        raise _invalid_pickle(path, "it holds something else")
    return found


def _invalid_pickle(path: Path, why: str) -> DamagedTrace:
    return _damaged(path, why, "write it again, or give the dump as JSON")


def _checked(path: Path, data: bytes) -> BytesIO | None:
    """Return the pickle with a call of `persistent_load` after each dictionary; None for codes that PyTorch does not write.

    Raises DamagedTrace for a pickle that is incomplete.
    """
    codes, at, pairs = BytesIO(), 2, 0
    add = codes.write
    add(data[:2])
    while True:
        while found := _DICT.match(data, at):
            add(found[0])
            add(_HOOK)
            at = found.end()
        end = _CODES.match(data, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        add(data[at:end])
        code, at = data[end : end + 1], end
        if code == _STOP:
            add(_STOP)
            codes.seek(0)
            return codes
        if not code:
            raise _invalid_pickle(path, _INCOMPLETE)
        if code != _TEXT:
            return None
        at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        after = _AFTER_TEXT.match(data, at)
        pairs += bool(after and after[1])
        if pairs > _MOST_PAIRS:
            return None
        at = after.end() if after else at
        add(data[end:at])


# Pickles of Python, protocols 2 to 5.

_PLAIN_CODES = b"N\x88\x89KMJG\x8a\x8cX\x8d\x94qrhj(aesu."
_LOADERS: Mapping[int, Any] = pickle._Unpickler.dispatch
_CONTAINER_CODES = b"]})\x85\x86\x87t"
_LARGEST_PLAIN = 64 << 20  # of such a pickle: about 100,000 calls, in 30 s
_LONGEST_TUPLE = 16


class _PlainUnpickler(pickle._Unpickler):
    """Loads dictionaries, lists, tuples of scalars, texts and numbers. Nothing in them is called, and it knows no codes of classes.

    It is that of the library written in Python, which looks up each code in `dispatch`.
    """

    dispatch: ClassVar[Any] = {}

    def __init__(self, path: Path, data: bytes) -> None:
        self.codes = BytesIO(data)
        super().__init__(self.codes)
        self.path, self.size, self.containers = path, len(data), 0

    def value(self) -> Any:
        """Return what the pickle holds. Raises DamagedTrace for another code, and for a pickle that is cut."""
        if not 2 <= self.codes.read(2)[1] <= 5 or self.size > _LARGEST_PLAIN:
            what = f"it was not written by PyTorch, and is not a pickle of protocol 2 to 5 of at most {_LARGEST_PLAIN >> 20} MiB"
            raise _invalid_pickle(self.path, what)
        try:
            value = self.load()
            if self.stack or self.metastack:  # type: ignore[attr-defined]
                raise ValueError
            return value
        except KeyError as error:
            what = f"it was not written by PyTorch: code 0x{error.args[0]:02x} at byte {self.codes.tell() - 1:,} is not a plain value"
            raise _invalid_pickle(self.path, what) from error
        except (EOFError, IndexError, struct.error, pickle.UnpicklingError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _invalid_pickle(self.path, _INCOMPLETE if self.codes.tell() >= self.size else "it is damaged") from error

    def load_container(self, code: int) -> None:
        """Load an empty list or dictionary, or a tuple of scalars: Python overflows its stack at the hash of a very deep one."""
        _LOADERS[code](self)
        made = self.stack[-1]  # type: ignore[attr-defined]
        if isinstance(made, tuple) and (len(made) > _LONGEST_TUPLE or any(isinstance(item, tuple | list | dict) for item in made)):
            raise ValueError
        self.containers += 1
        if self.containers * _BYTES_PER_CONTAINER > self.size + (1 << 20):
            raise _invalid_pickle(self.path, "it holds little else than empty lists")

    def load_frame(self) -> None:
        """Pass over the length of a frame."""
        self.codes.read(8)


_PlainUnpickler.dispatch |= {code: _LOADERS[code] for code in _PLAIN_CODES}
_PlainUnpickler.dispatch |= {code: partial(_PlainUnpickler.load_container, code=code) for code in _CONTAINER_CODES}
_PlainUnpickler.dispatch[0x95] = _PlainUnpickler.load_frame


class _Rows:
    """The entries of a dump as rows of OPERATION."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.chunks: list[np.ndarray[Any, Any]] = []
        self.pending: list[tuple[int, ...]] = []
        self.groups: dict[tuple[str, str], int] = {}
        self.names: dict[str, tuple[int, int, bool]] = {}  # kind, peer, whether it only ends a batch
        self.first_record = self.last_record = 0
        self.seen = self.ended = 0
        self.parts: list[int] = []  # rows of the messages of the same number just before
        self.of_parts: tuple[int, Any] | None = None  # their group and number
        self.without_end: list[list[int]] = []  # parts of which the entry of the batch was left out
        self.places: dict[int, str] = {}
        self.has_messages = True
        self.by_id: dict[str, int] = {}  # group of a pg_id, which pg_status has
        self.batches: list[
            tuple[int, int, Any, Any, tuple[int, ...]]
        ] = []  # rows before, group, numbers of both kinds, values of _OF_BATCH

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add one entry. Raises UsageError for values of other types than the Flight Recorder's."""
        try:
            get = entry.get
            if not self.seen:
                self.first_record = self.last_record = get("record_id", 0)
            name = entry["profiling_name"]
            known = self.names.get(name)
            kind, peer, marker = self.names.setdefault(name, _operation(name)) if known is None else known
            group = get("process_group")
            pair = (group[0], group[1]) if group else (str(entry["pg_id"]), "")
            number = self.groups.get(pair)
            if number is None:
                if not (isinstance(pair[0], str) and isinstance(pair[1], str)):
                    raise TypeError
                number = self.groups[pair] = len(self.groups)
                self.by_id[str(get("pg_id"))] = number
            message = get("is_p2p") and kind in _MESSAGES
            sequence = get("p2p_seq_id") if message else get("collective_seq_id", get("seq_id"))
            into, out = get("input_sizes") or (), get("output_sizes") or ()
            types = get("input_dtypes") or get("output_dtypes")
            state = STATE.get(get("state"), NONE)  # type: ignore[arg-type]
            if state != _COMPLETED and get("retired"):
                state = _RETIRED
            self.seen += 1
            self.has_messages &= not name.startswith("gloo:")
            self.ended += state in (_COMPLETED, _RETIRED)
            record = get("record_id", 0)
            if message or self.parts:
                self._follow_batch((number, sequence) if message else None, marker, record > self.last_record + 1)
            self.last_record = record
            times = get("time_created_ns"), get("time_discovered_started_ns"), get("time_discovered_completed_ns")
            created, start, end = (time or UNKNOWN for time in times)
            took = get("duration_ms")
            duration = UNKNOWN if took is None else int(took * 1e6)
            if marker:
                before = len(self.chunks) * _CHUNK + len(self.pending)
                numbers = get("collective_seq_id", get("seq_id")), get("p2p_seq_id")
                self.batches.append((before, number, *numbers, (state, start, end, duration)))
                return
            dtype = DTYPE.get(_DTYPES.get(types[0], ""), NONE) if types else NONE
            self.pending.append((
                kind, dtype, state, number, UNKNOWN if sequence is None else sequence, _elements(into), _elements(out), peer,
                created, start, end, duration,
            ))  # fmt: skip
            if frames := get("frames"):
                self.places[len(self.chunks) * _CHUNK + len(self.pending) - 1] = _place(frames)
                if len(self.places) > 2 * _LAST_PLACES:
                    self.places = dict(list(self.places.items())[-_LAST_PLACES:])
            if len(self.pending) == _CHUNK:
                self._pack()
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise self._invalid(error) from error

    def _follow_batch(self, of: tuple[int, Any] | None, is_end: bool, is_gap: bool) -> None:
        """Note messages before a gap. of: group and number of a message, None for another entry; is_end: of a batch.

        A dump of active operations has the parts of all batches, since they have no state, but not the entries of completed batches.
        """
        row = len(self.chunks) * _CHUNK + len(self.pending)
        if of is not None and of == self.of_parts and not is_gap:
            self.parts.append(row)
            return
        if is_gap and self.parts:
            self.without_end.append(self.parts)
        self.of_parts = of
        self.parts = [row] if of is not None and not is_end else []

    def _invalid(self, error: Exception) -> DamagedTrace:
        what = f"entry {self.seen}: '{error.args[0]}' is missing" if isinstance(error, KeyError) else f"entry {self.seen} is damaged"
        return _damaged(self.path, what)

    def _pack(self) -> None:
        packed = np.array(self.pending, _PACKED)
        rows = empty(len(packed))
        for name in _FIELDS:
            rows[name] = packed[name]
        self.chunks.append(rows)
        self.pending = []

    def trace(self, rank: int, rest: Mapping[str, Any]) -> RankTrace:
        """Return the trace of the rank, with the groups of `rest`. Raises UsageError."""
        try:
            self._pack()
            operations = np.concatenate(self.chunks)
            self._complete_batches(operations)
        except (TypeError, ValueError, OverflowError) as error:
            raise self._invalid(error) from error
        members = _members(self.path, rest.get("pg_config"))
        self.chunks = []
        progress = self._progress(dict_of(rest.get("pg_config")), dict_of(rest.get("pg_status")))
        groups = tuple(ProcessGroup(encodable(name), members.get(name, ()), encodable(what)) for name, what in self.groups)
        _number_batches(operations)
        _name_peers(operations, groups)
        world = _world(operations, groups, members)
        missing = {Part.REDOPS, Part.ROOTS, Part.SPLITS, Part.QUEUES, Part.COMPUTE, Part.STEPS, Part.DEPENDENCIES}
        if not ((operations["end"] >= 0) | (operations["duration"] >= 0)).any():
            missing.add(Part.DURATIONS)
        if not ((operations["created"] >= 0) | (operations["start"] >= 0)).all():
            missing.add(Part.START_TIMES)
        if not all(group.ranks for group in groups):
            missing.add(Part.GROUPS)
        if self.first_record:
            missing.add(Part.BEGINNING)
        if (operations["sequence"] < 0).any():
            missing.add(Part.SEQUENCES)
        if not self.has_messages:
            missing.add(Part.MESSAGES)
        return RankTrace(
            rank, world, self.path, groups, operations, missing=frozenset(missing), notes=self.places, progress=progress,
            only_pending=not self.ended,
        )  # fmt: skip

    def _complete_batches(self, operations: np.ndarray[Any, Any]) -> None:
        """Give the operations of a batch the state and times of the batch, which the entry after them has.

        Without that entry the batch has completed. A batch of one message then looks like a single message, which may be pending.
        """
        if self.without_end and not self.ended and self.parts:
            self.without_end.append(self.parts)
        for rows in self.without_end:
            scheduled = [row for row in rows if operations["state"][row] == STATE["scheduled"]]
            operations["state"][scheduled] = _COMPLETED if len(rows) > 1 else NONE
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
        found = {}
        for key, value in status.items():
            last = dict_of(value)
            called, completed = last.get("last_enqueued_collective"), last.get("last_completed_collective")
            if not (type(called) is int and type(completed) is int and UNKNOWN <= completed <= called):
                continue
            name = by_order.get(key)
            if key not in by_id and name is not None and all(known != name for known, _ in self.groups):
                what = str(dict_of(config[name]).get("desc") or "")
                by_id[key] = self.groups[name, what] = len(self.groups)
            if key in by_id:
                found[by_id[key]] = max(called, 0), max(completed, 0)
        return found


_COMPLETED, _RETIRED = STATE["completed"], STATE["retired"]
_OF_BATCH = ("state", "start", "end", "duration")
_MESSAGES = (KIND["send"], KIND["recv"])


def _operation(name: str) -> tuple[int, int, bool]:
    """Return (kind, peer in the group or UNKNOWN, whether it only marks the end of a batch) of "nccl:send 0->1"."""
    words = name.partition(":")[2].lower().split() or [name.lower()]
    if words[0] == "coalesced":
        return KIND["other"], UNKNOWN, True
    plain = _VARIANT.sub("", words[0]).replace("_", "")
    kind = KIND.get({"allreducebarrier": "barrier", "recvanysource": "recv"}.get(plain, plain), KIND["other"])
    peer = re.search(r"(?:->|<-)(\d{1,9})$", words[-1])
    return kind, int(peer[1]) if peer else UNKNOWN, False


def _elements(sizes: Any) -> int:
    """Return the number of elements of tensors, from their sizes: [[3, 4], [5]] has 17."""
    return sum(prod(map(index, size)) for size in sizes) if len(sizes) != 1 else prod(map(index, sizes[0]))


def _place(frames: Any) -> str:
    """Return the innermost call of the program itself: "train.py:41 (step)"; "" if it is not recorded."""
    for frame in frames:
        file, name = str(frame.get("filename", "")), str(frame.get("name", ""))
        if "/torch/" not in file and not file.startswith("<") and file:
            return encodable(f"{Path(file).name[:80]}:{frame.get('line', '?')} ({name[:80]})")
    return ""


def _members(path: Path, config: Any) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each process group that the dump has. Raises UsageError for anything other than a list of ranks."""
    found = {}
    for key, value in dict_of(config).items():
        group = dict_of(value)
        ranks, name = group.get("ranks"), str(group.get("name") or key)
        try:
            if isinstance(ranks, str):
                ranks = msgspec.json.decode(ranks or "[]", type=list[int])
            members = tuple(int(rank) for rank in ranks or ())
            if any(not 0 <= rank < _MOST_RANKS for rank in members):
                raise ValueError
        except (TypeError, ValueError, OverflowError) as error:
            raise _damaged(path, f"the ranks of process group '{name[:80]}' are damaged") from error
        if members:
            found[name] = members
    return found


def _number_batches(operations: np.ndarray[Any, Any]) -> None:
    """Give the operations of one call, which have the same number in their group, the same batch."""
    if len(operations) < 2:
        return
    message = np.isin(operations["kind"], _MESSAGES)
    same = (operations["sequence"][1:] == operations["sequence"][:-1]) & (operations["sequence"][1:] >= 0)
    same &= (operations["group"][1:] == operations["group"][:-1]) & (message[1:] == message[:-1])
    together = np.r_[same, False] | np.r_[False, same]
    operations["batch"][together] = np.cumsum(~np.r_[False, same])[together]


def _name_peers(operations: np.ndarray[Any, Any], groups: tuple[ProcessGroup, ...]) -> None:
    """Replace peers in the group by ranks of the job; without the group's ranks they stay, since they are those of the job in "0"."""
    for number, group in enumerate(groups):
        if group.ranks:
            own = (operations["group"] == number) & (operations["root"] >= 0)
            ranks = np.array(group.ranks, np.int64)
            peers = operations["root"][own]
            operations["root"][own] = np.where(peers < len(ranks), ranks[np.minimum(peers, len(ranks) - 1)], UNKNOWN)


def _world(operations: np.ndarray[Any, Any], groups: tuple[ProcessGroup, ...], members: Mapping[str, tuple[int, ...]]) -> int:
    """Return the number of ranks of the job: the size of the first group, from its ranks or from an all-gather; or UNKNOWN."""
    for number, group in enumerate(groups):
        if group.what == "default_pg" or (group.name == "0" and not group.what):
            if group.ranks:
                return len(group.ranks)
            rows = operations[(operations["group"] == number) & (operations["kind"] == KIND["allgather"]) & (operations["sent"] > 0)]
            if len(rows) and rows["received"][0] % rows["sent"][0] == 0:
                return int(rows["received"][0] // rows["sent"][0])
    return len(members["0"]) if "0" in members else UNKNOWN
