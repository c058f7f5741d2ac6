"""What torch.distributed calls its operations, data types and process groups, and the trace of one rank made of them.

Chakra and Kineto traces have the same names. Process groups number their ranks from 0; traces give roots and peers by these numbers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.operations.dtypes import dtype_named
from collbench.plugins.traces.model import DTYPE, DTYPES, KIND, NONE, OPERATION, REDOP, UNKNOWN, Part, ProcessGroup, RankTrace

# By name without "nccl:", "c10d::", underscores and "_coalesced".
_COLLECTIVES = {
    "allreduce": "allreduce", "allreducesparse": "allreduce",
    "allgather": "allgather", "allgatherbase": "allgather", "allgatherintotensor": "allgather",
    "reducescatter": "reducescatter", "reducescatterbase": "reducescatter", "reducescattertensor": "reducescatter",
    "alltoall": "alltoall", "alltoallbase": "alltoall", "alltoallsingle": "alltoall", "alltoallv": "alltoallv",
    "broadcast": "broadcast", "broadcastoop": "broadcast", "reduce": "reduce", "reduceoop": "reduce",
    "gather": "gather", "scatter": "scatter", "barrier": "barrier", "monitoredbarrier": "barrier",
    "send": "send", "isend": "send", "recv": "recv", "irecv": "recv", "recvanysource": "recv",
}  # fmt: skip
# Names of at::ScalarType and of C++: collbench's type, and its elements for one of torch. A type that collbench does not have
# is one of its width.
_DTYPES = {
    "float": ("float32", 1), "double": ("float64", 1), "half": ("float16", 1), "bfloat16": ("bfloat16", 1),
    "float8_e4m3fn": ("float8_e4m3fn", 1), "float8_e5m2": ("float8_e5m2", 1),
    "float8_e4m3fnuz": ("float8_e4m3fn", 1), "float8_e5m2fnuz": ("float8_e5m2", 1),
    "char": ("int8", 1), "signed char": ("int8", 1), "byte": ("uint8", 1), "unsigned char": ("uint8", 1), "bool": ("uint8", 1),
    "short": ("float16", 1), "short int": ("float16", 1), "uint16": ("float16", 1), "unsigned short": ("float16", 1),
    "int": ("int32", 1), "uint32": ("uint32", 1), "unsigned int": ("uint32", 1),
    "long": ("int64", 1), "long int": ("int64", 1), "uint64": ("uint64", 1), "unsigned long": ("uint64", 1),
    "complexhalf": ("float16", 2), "complexfloat": ("float32", 2), "complexdouble": ("float64", 2),
    "complex<half>": ("float16", 2), "complex<float>": ("float32", 2), "complex<double>": ("float64", 2),
}  # fmt: skip
ROOTED = frozenset(KIND[name] for name in ("broadcast", "reduce", "gather", "scatter"))
MESSAGES = frozenset(KIND[name] for name in ("send", "recv"))
_REDUCING = tuple(KIND[name] for name in ("allreduce", "reducescatter", "reduce"))
_BARRIER, _SEND, _RECV = (KIND[name] for name in ("barrier", "send", "recv"))
_TENSOR = re.compile(r"Tensor\(([^()]{1,40})\)")
GROUPS_NODE = "## process_group:init ##"  # the node of an execution trace that has the process groups
MOST_WAITS = 64  # of one operation: the latest ones
_ROW = struct.Struct("<4Bi3q4i4q")  # OPERATION
_MOST = 1 << 53  # elements of an operation
_MOST_RECORDS = 10_000_000  # operations, or nodes: of a file that a few megabytes of gzip expand to
_MOST_RANKS = 1 << 24
_RANK_IN_NAME = (re.compile(r"rank[-_ ]?(\d{1,8})(?!\d)", re.IGNORECASE), re.compile(r"(?:^|[._-])(\d{1,8})$"))


@lru_cache(maxsize=4096)
def kind_of(name: str) -> int | None:
    """Return the index in KINDS of "_allgather_base", "nccl:all_gather" or "c10d::allgather_"; None for "wait" and other names."""
    plain = name.rpartition(":")[2].lower().replace("_", "").removesuffix("coalesced")
    return KIND[_COLLECTIVES[plain]] if plain in _COLLECTIVES else None


@lru_cache(maxsize=4096)
def dtype_of(name: str) -> tuple[int, int]:
    """Return the index in DTYPES of "Float" or "c10::BFloat16", and the number of its elements in one of torch; (NONE, 1) if unknown."""
    found = _DTYPES.get(name.lower().replace("c10::", ""))
    return (DTYPE[found[0]], found[1]) if found else (NONE, 1)


def dtype_in(types: Iterable[str]) -> str:
    """Return torch's data type in the first of ["Int", "GenericList[Tensor(float)]"] that has one: "float"; "" if there is none."""
    return next(filter(None, map(_dtype_in, types)), "")


@lru_cache(maxsize=4096)
def _dtype_in(text: str) -> str:
    found = _TENSOR.search(text)
    return found[1] if found else ""


def width_of(name: str) -> int:
    """Return the bytes of an element of torch's type, 0 for an unknown one."""
    number, scale = dtype_of(name)
    return 0 if number == NONE else scale * dtype_named(DTYPES[number]).size


def redop_of(name: str) -> int:
    """Return the index in REDOPS of "sum", or NONE."""
    return REDOP.get({"product": "prod", "mean": "avg"}.get(name.lower(), name.lower()), NONE)


def rank_in_name(path: Path) -> int:
    """Return the rank that a file name contains ("rank-3.json.gz", "trace_3.json", "trace.3.et"), UNKNOWN if there is none."""
    name = path.name
    for suffix in (".gz", ".json", ".et", ".chakra", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    found = next(filter(None, (pattern.search(name) for pattern in _RANK_IN_NAME)), None)
    return int(found[1]) if found else UNKNOWN


class _GroupOfTorch(msgspec.Struct):
    """A group in the list of `## process_group:init ##`."""

    pg_name: str
    pg_desc: str = ""
    ranks: list[int] = []
    group_size: int = UNKNOWN
    backend_id: int = UNKNOWN


_decode_groups = msgspec.json.Decoder(list[_GroupOfTorch]).decode


class RankBuilder:
    """The trace of one rank, from its groups and operations.

    rank, world   UNKNOWN until known
    what, count   of the record that is read, for errors: "node", 17; what is "" if there is none
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rank = self.world = UNKNOWN
        self.what, self.count = "", 0
        self.groups: dict[str, ProcessGroup] = {}
        self.splits: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._index: dict[str, int] = {}
        self._several: set[str] = set()
        self._rows = bytearray()
        self._added = 0
        self._split_index: dict[Any, int] = {}

    def fail(self, what: str) -> UsageError:
        """Return the error for an invalid value in the record."""
        return UsageError(f"{self.path}: {f'{self.what} {self.count}: ' if self.what else ''}{what}: record or copy the trace again")

    def check_records(self, number: int) -> None:
        """Raise UsageError for more records than a trace may have."""
        if number > _MOST_RECORDS:
            raise UsageError(f"{self.path}: it has more than {_MOST_RECORDS:,} operations: record fewer steps")

    def define(self, name: str, ranks: Sequence[Any], size: Any, what: str) -> None:
        """Add a process group. ranks may be empty: torch leaves them out if there are as many as in the job."""
        if not all(type(rank) is int and 0 <= rank < _MOST_RANKS for rank in ranks) or len(set(ranks)) < len(ranks):
            raise self.fail(f"the ranks of process group '{name[:100]}' are not valid")
        members = tuple(ranks)
        if not members and type(size) is int and 0 < size < _MOST_RANKS:
            if self.world not in (UNKNOWN, size):
                raise self.fail(f"process group '{name[:100]}' of all ranks has {size} ranks, another one has {self.world}")
            self.world, members = size, tuple(range(size))
        known = self.groups.get(name)
        if known is None or not known.ranks:
            self.groups[name] = ProcessGroup(name, members, "" if what == "undefined" else what)
        elif members and known.ranks != members:
            raise self.fail(f"process group '{name[:100]}' has ranks {_short(members)} and ranks {_short(known.ranks)}")

    def define_all(self, text: Any) -> dict[int, str]:
        """Add the process groups of a `## process_group:init ##`, JSON within a string. Return their names by address."""
        try:
            groups = _decode_groups(text)
        except (msgspec.MsgspecError, RecursionError, TypeError) as error:
            raise self.fail(f"the list of process groups is not valid ({error})") from error
        for group in groups:
            self.define(group.pg_name, group.ranks, group.group_size, group.pg_desc)
        return {group.backend_id: group.pg_name for group in reversed(groups)}

    def checked_rank(self, number: int) -> int:
        """Return the number of a root or peer, or UNKNOWN. Raises UsageError if it cannot be one."""
        if not UNKNOWN <= number < _MOST_RANKS:
            raise self.fail(f"rank {number} is not valid")
        return number

    def group(self, name: str) -> int:
        """Return the index of a group in the trace; "" is a group that the trace does not name."""
        index = self._index.get(name)
        if index is None:
            index = self._index[name] = len(self._index)
            self.groups.setdefault(name, ProcessGroup(name))
        return index

    def name_of_size(self, size: int) -> str:
        """Return the name of the only group, or of the only one of this many ranks (UNKNOWN: any); "" if there are several.

        Several of the same ranks are one group, "0 or 1": the trace contains the ranks of its operations.
        """
        named = (name for name in self.groups if name and name not in self._several)
        fitting = [name for name in named if size == UNKNOWN or len(self.groups[name].ranks) in (0, size)]
        ranks = {self.groups[name].ranks for name in fitting}
        if len(fitting) < 2 or len(ranks) > 1 or () in ranks:
            return fitting[0] if len(fitting) == 1 else ""
        name = " or ".join(fitting)
        self.groups[name] = ProcessGroup(name, ranks.pop())
        self._several.add(name)
        return name

    def rank_of(self, name: str, number: int) -> int:
        """Return the rank of the job that has this number in a group, UNKNOWN if the group's ranks are not known."""
        group = self.groups.get(name)
        if group is None or not group.ranks or number < 0:
            return UNKNOWN
        if number >= len(group.ranks):
            raise self.fail(f"rank {number} is not in process group '{name[:100]}' of {len(group.ranks)} ranks")
        return group.ranks[number]

    def resolve(self, operations: NDArray[Any], fits: NDArray[Any], numbers: NDArray[Any], local: NDArray[Any]) -> None:
        """Set the group of operations without a name where one fits their number of ranks, then the roots and peers.

        fits     by operation the number of ranks of its group, as far as its sizes show it
        numbers  of the root or peer, within the group where it is `local`
        """
        unnamed = self.group("")
        for size in np.unique(fits[operations["group"] == unnamed]).tolist():
            operations["group"][(operations["group"] == unnamed) & (fits == size)] = self.group(self.name_of_size(size))
        operations["root"] = np.where(local, UNKNOWN, numbers)
        for name in list(self.groups):
            own = (operations["group"] == self.group(name)) & local & (numbers != UNKNOWN)
            for number in np.unique(numbers[own]).tolist():
                operations["root"][own & (numbers == number)] = self.rank_of(name, number)

    def split(self, to: Sequence[Any], back: Sequence[Any], sent: int, received: int, size: int) -> int:
        """Return the index of the sizes of an all-to-all, from torch's rows to and from each rank; UNKNOWN if they are incomplete."""
        both = tuple(_elements(rows, total) for rows, total in ((to, sent), (back, received)))
        if None in both or not both[0] or len(to) != len(back) or (size > 0 and len(to) != size):
            return UNKNOWN
        index = self._split_index.get(both)
        if index is None:
            index = self._split_index[both] = len(self.splits)
            self.splits.append(both)  # type: ignore[arg-type]
        return index

    def add(
        self, kind: int, group: int, dtype: str, sent: int, received: int, *, redop: int = NONE, state: int = NONE, sequence: int = UNKNOWN,
        root: int = UNKNOWN, queue: int = UNKNOWN, splits: int = UNKNOWN, created: int = UNKNOWN, start: int = UNKNOWN, end: int = UNKNOWN,
        duration: int = UNKNOWN,
    ) -> int:  # fmt: skip
        """Add an operation, with sizes in elements of torch's type, and return its index."""
        number, scale = dtype_of(dtype)
        if kind == _BARRIER:
            number, sent, received = NONE, 0, 0
        elif kind == _SEND:
            received = 0
        elif kind == _RECV:
            sent = 0
        if not (UNKNOWN <= sent < _MOST and UNKNOWN <= received < _MOST):
            raise self.fail(f"the size of an operation is not valid ({max(sent, received)} elements)")
        if scale > 1:
            sent, received = (each if each < 0 else each * scale for each in (sent, received))
        try:
            self._rows += _ROW.pack(
                kind, number, redop, state, group, sequence, sent, received, root, queue, UNKNOWN, splits, created, start, end, duration
            )
        except struct.error as error:
            raise self.fail("a number is too large") from error
        self._added += 1
        if self._added > _MOST_RECORDS:
            self.check_records(self._added)
        return self._added - 1

    def operations(self) -> NDArray[Any]:
        """Return [n] of OPERATION, in the order of `add`; later additions need a new call."""
        return np.frombuffer(bytes(self._rows), OPERATION).copy()

    def trace(self, operations: NDArray[Any], lacks: Iterable[Part] = (), **other: Any) -> RankTrace:
        """Return the trace. lacks: parts that it contains incompletely; other: further fields of RankTrace."""
        if self.rank == UNKNOWN:
            self.rank = rank_in_name(self.path)
        if self.rank == UNKNOWN and not len(operations):
            raise UsageError(f"{self.path}: it has no communication of torch.distributed: record a job of several ranks")
        if self.rank == UNKNOWN:
            raise UsageError(f"{self.path}: the trace does not contain its rank: put it into the file name (trace_0.json, trace.0.et)")
        if self.world != UNKNOWN and self.rank >= self.world:
            raise UsageError(f"{self.path}: rank {self.rank} is not a rank of a job of {self.world}: rename or record the trace again")
        used, operations["group"] = np.unique(operations["group"], return_inverse=True)
        names = list(self._index)
        groups = tuple(self.groups[names[each]] for each in used.tolist())
        missing = _missing(operations, groups) | set(lacks)
        for part, key in ((Part.COMPUTE, "compute"), (Part.STEPS, "steps")):
            if not len(other.get(key, ())):
                missing.add(part)
        if other.get("after") is None:
            missing.add(Part.DEPENDENCIES)
        return RankTrace(self.rank, self.world, self.path, groups, operations, tuple(self.splits), missing=frozenset(missing), **other)


def dependencies(waits: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return `RankTrace.after`, from the operations that each operation waits for."""
    offsets = np.zeros(len(waits) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, waits), np.int64, len(waits)), out=offsets[1:])
    return offsets, np.fromiter((each for some in waits for each in some), np.int64, int(offsets[-1]))


def sizes_of(kind: int, sent: int, received: int, ranks: int) -> tuple[int, int]:
    """Return the elements that a rank sends and receives, the unknown one of which follows from the kind and the number of ranks."""
    if ranks > 0:
        if kind == KIND["allgather"] and received < 0 <= sent:
            received = sent * ranks
        if kind == KIND["reducescatter"] and sent < 0 <= received:
            sent = received * ranks
        if kind == KIND["reducescatter"] and received < 0 <= sent and sent % ranks == 0:
            received = sent // ranks
    return sent, received


def _elements(rows: Sequence[Any], total: int) -> tuple[int, ...] | None:
    """Return elements, from rows of unknown length and their sum in elements; None if they do not fit."""
    if not all(type(row) is int and 0 <= row < _MOST for row in rows) or total < 0:
        return None
    all_rows = sum(rows)
    if all_rows == total:
        return tuple(rows)
    return tuple(row * (total // all_rows) for row in rows) if all_rows and total % all_rows == 0 else None


def _missing(operations: NDArray[Any], groups: Sequence[ProcessGroup]) -> set[Part]:
    """Return the parts that at least one operation lacks."""
    kind, moves = operations["kind"], operations["kind"] != _BARRIER
    reduces, rooted = np.isin(kind, _REDUCING), np.isin(kind, tuple(ROOTED | MESSAGES))
    lacking: Mapping[Part, Any] = {
        Part.START_TIMES: operations["start"] == UNKNOWN,
        Part.DURATIONS: (operations["end"] == UNKNOWN) & (operations["duration"] == UNKNOWN),
        Part.REDOPS: reduces & (operations["redop"] == NONE),
        Part.ROOTS: rooted & (operations["root"] == UNKNOWN),
        Part.DTYPES: moves & (operations["dtype"] == NONE),
        Part.SIZES: moves & ((operations["sent"] == UNKNOWN) | (operations["received"] == UNKNOWN)),
        Part.SPLITS: (kind == KIND["alltoallv"]) & (operations["splits"] == UNKNOWN),
        Part.SEQUENCES: operations["sequence"] == UNKNOWN,
        Part.QUEUES: operations["queue"] == UNKNOWN,
        Part.GROUPS: [not group.ranks for group in groups],
    }
    return {part for part, where in lacking.items() if np.any(where)}


def _short(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
