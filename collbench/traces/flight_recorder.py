"""Read dumps of PyTorch's Flight Recorder: what each rank called last, as JSON or pickle, one file per rank.

Of NCCL, `TORCH_NCCL_DUMP_ON_TIMEOUT=1` writes them to the file prefix of `TORCH_FR_DUMP_TEMP_FILE`, with the rank at its end. On every
library, `torch._C._distributed_c10d._dump_fr_trace()` and `_dump_fr_trace_json()` return them. The rank is only in the file's name.

A pickle can call any function when it is loaded. Its codes are checked first, and only those of plain values are loaded.

With Gloo, a dump has no ranks of groups, no start and end, and no messages; an operation that failed is retired like one that completed.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping
from io import BufferedReader, BytesIO
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from collbench.errors import UsageError
from collbench.traces.model import DTYPE, KIND, NONE, OPERATION, STATE, UNKNOWN, Part, ProcessGroup, RankTrace, empty
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

_KINDS = {
    "allreduce": "allreduce", "allgather": "allgather", "reducescatter": "reducescatter", "alltoall": "alltoall", "alltoallv": "alltoallv",
    "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter", "barrier": "barrier",
    "allreducebarrier": "barrier", "send": "send", "recv": "recv", "recvanysource": "recv",
}  # fmt: skip
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
    """Return the rank of one dump. Raises UsageError for a damaged one, and for a file name that does not end with the rank."""
    named = _RANK.search(path.name)
    if not named or int(named[1]) >= _MOST_RANKS:
        raise UsageError(f"{path}: the name does not end with the rank: rename it, such as to dump_rank_0 for rank 0")
    rank = int(named[1])
    with uncollected():
        try:
            data = _unpacked(path)
            rows = _Rows(path)
            rest = (_read_pickle if data[:1] == b"\x80" else _read_json)(path, data, rows.add)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror or error}: give another file, or copy it again") from error
        del data
        return [rows.trace(rank, rest)]


def _unpacked(path: Path) -> bytes:
    data = read_file(path, _MOST_BYTES)
    if data[:2] != b"\x1f\x8b":
        return data
    import zlib

    unpacker = zlib.decompressobj(wbits=31)
    try:
        content = unpacker.decompress(data, _MOST_BYTES)
    except zlib.error as error:
        raise UsageError(f"{path}: its gzip compression is damaged: copy it again") from error
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise UsageError(f"{path}: its gzip compression is incomplete, or holds more than {_MOST_BYTES >> 30} GiB: copy it again")
    return content


class _Document(msgspec.Struct):
    """A dump as JSON. The entries are decoded one by one, since a million of them would take gigabytes."""

    entries: list[msgspec.Raw] = []
    pg_config: Any = None


def _read_json(path: Path, data: bytes, add: Callable[[Mapping[str, Any]], None]) -> Mapping[str, Any]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    try:
        document = msgspec.json.decode(data, type=_Document)
        for entry in document.entries:
            add(decode(entry))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a valid Flight Recorder dump ({error}): write it again") from error
    return {"pg_config": document.pg_config}


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
    """Return the dump without its entries, which go to `add`. Raises UsageError."""
    if (data.count(b"]") + data.count(b"}")) * _BYTES_PER_CONTAINER > len(data) + (1 << 20):
        raise _invalid_pickle(path, "it holds little else than empty lists")
    codes = _checked(path, data)
    try:
        found = _Unpickler(codes, add).load()
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, MemoryError) as error:
        raise _invalid_pickle(path, "it is damaged") from error
    if not isinstance(found, dict) or any(each is not None for each in list_of(found.get("entries"), object)):
        raise _invalid_pickle(path, "it holds something else")
    return found


def _invalid_pickle(path: Path, why: str) -> UsageError:
    return UsageError(f"{path}: not a valid Flight Recorder dump ({why}): write it again, or give the dump as JSON")


def _checked(path: Path, data: bytes) -> BytesIO:
    """Return the pickle with a call of `persistent_load` after each dictionary. Raises UsageError for codes that are not plain values."""
    codes, at, pairs = BytesIO(), 2, 0
    add = codes.write
    add(data[:2])
    if data[:2] != _PROTOCOL:
        raise _invalid_pickle(path, "it is not of protocol 2, which PyTorch writes")
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
        if code != _TEXT:
            what = f"code 0x{code.hex()} at byte {end:,} is not a plain value" if code else "it is incomplete"
            raise _invalid_pickle(path, what)
        at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        after = _AFTER_TEXT.match(data, at)
        pairs += bool(after and after[1])
        if pairs > _MOST_PAIRS:
            raise _invalid_pickle(path, f"it holds more than {_MOST_PAIRS} pairs of texts")
        at = after.end() if after else at
        add(data[end:at])


class _Rows:
    """The entries of a dump as rows of OPERATION."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.chunks: list[np.ndarray[Any, Any]] = []
        self.pending: list[tuple[int, ...]] = []
        self.groups: dict[tuple[str, str], int] = {}
        self.names: dict[str, tuple[int, int, bool]] = {}  # kind, peer, whether it only ends a batch
        self.first_record = 0
        self.seen = 0
        self.places: dict[int, str] = {}
        self.has_messages = True

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add one entry. Raises UsageError for values of other types than the Flight Recorder's."""
        try:
            get = entry.get
            if not self.seen:
                self.first_record = get("record_id", 0)
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
            message = get("is_p2p") and kind in _MESSAGES
            sequence = get("p2p_seq_id") if message else get("collective_seq_id", get("seq_id"))
            into, out = get("input_sizes") or (), get("output_sizes") or ()
            types = get("input_dtypes") or get("output_dtypes")
            state = STATE.get(get("state"), NONE)  # type: ignore[arg-type]
            if state != _COMPLETED and get("retired"):
                state = _RETIRED
            self.seen += 1
            self.has_messages &= not name.startswith("gloo:")
            if marker:  # of a batch: its operations are entries of their own
                return
            dtype = DTYPE.get(_DTYPES.get(types[0], ""), NONE) if types else NONE
            times = get("time_created_ns"), get("time_discovered_started_ns"), get("time_discovered_completed_ns")
            created, start, end = (time or UNKNOWN for time in times)
            took = get("duration_ms")
            self.pending.append((
                kind, dtype, state, number, UNKNOWN if sequence is None else sequence, _elements(into), _elements(out), peer,
                created, start, end, UNKNOWN if took is None else int(took * 1e6),
            ))  # fmt: skip
            if frames := get("frames"):
                self.places[len(self.chunks) * _CHUNK + len(self.pending) - 1] = _place(frames)
                if len(self.places) > 2 * _LAST_PLACES:
                    self.places = dict(list(self.places.items())[-_LAST_PLACES:])
            if len(self.pending) == _CHUNK:
                self._pack()
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise self._invalid(error) from error

    def _invalid(self, error: Exception) -> UsageError:
        what = f"entry {self.seen}: '{error.args[0]}' is missing" if isinstance(error, KeyError) else f"entry {self.seen} is damaged"
        return UsageError(f"{self.path}: not a valid Flight Recorder dump ({what}): write it again")

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
        except (TypeError, ValueError, OverflowError) as error:
            raise self._invalid(error) from error
        members = _members(self.path, rest.get("pg_config"))
        self.chunks = []
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
        return RankTrace(rank, world, self.path, groups, operations, missing=frozenset(missing), notes=self.places)


_COMPLETED, _RETIRED = STATE["completed"], STATE["retired"]
_MESSAGES = (KIND["send"], KIND["recv"])


def _operation(name: str) -> tuple[int, int, bool]:
    """Return (kind, peer in the group or UNKNOWN, whether it only marks the end of a batch) of "nccl:send 0->1"."""
    words = name.partition(":")[2].lower().split() or [name.lower()]
    if words[0] == "coalesced":
        return KIND["other"], UNKNOWN, True
    kind = _KINDS.get(_VARIANT.sub("", words[0]).replace("_", ""), "other")
    peer = re.search(r"(?:->|<-)(\d{1,9})$", words[-1])
    return KIND[kind], int(peer[1]) if peer else UNKNOWN, False


def _elements(sizes: Any) -> int:
    """Return the number of elements of tensors, from their sizes: [[3, 4], [5]] has 17."""
    return sum(map(prod, sizes)) if len(sizes) != 1 else prod(sizes[0])


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
        except (TypeError, ValueError, OverflowError) as error:
            raise _invalid_ranks(path, name) from error
        if members:
            if not 0 <= min(members) <= max(members) < _MOST_RANKS:
                raise _invalid_ranks(path, name)
            found[name] = members
    return found


def _invalid_ranks(path: Path, group: str) -> UsageError:
    what = f"the ranks of process group '{group[:80]}' are damaged"
    return UsageError(f"{path}: not a valid Flight Recorder dump ({what}): write it again")


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
