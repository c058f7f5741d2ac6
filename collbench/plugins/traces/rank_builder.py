"""The trace of one rank, made of the process groups and operations of a Chakra or Kineto trace.

Process groups number their ranks from 0; the traces give roots and peers by these numbers.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.plugins.traces.c10d import MESSAGES, ROOTED, dtype_of, rank_in_name
from collbench.plugins.traces.model import KIND, NONE, UNKNOWN, Part, ProcessGroup, RankTrace, operations_of, pack_operation
from collbench.units import first_of

MOST_WAITS = 64  # of one operation: the latest ones
_REDUCING = tuple(KIND[name] for name in ("allreduce", "reducescatter", "reduce"))
_BARRIER, _SEND, _RECV = (KIND[name] for name in ("barrier", "send", "recv"))
_WHOLE = {"allgather": "received", "reducescatter": "sent", "gather": "received", "scatter": "sent"}  # the buffer with all ranks' parts
_PART = {"received": "sent", "sent": "received"}
_MOST = 1 << 53  # elements of an operation
_MOST_RECORDS = 10_000_000  # operations, or nodes: of a file that a few megabytes of gzip expand to
_MOST_RANKS = 1 << 24


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
        self._members = array("q")  # by operation
        self._local = bytearray()  # by operation
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
        defined = self.groups.get(name)
        if defined is None or not defined.ranks:
            self.groups[name] = ProcessGroup(name, members, "" if what == "undefined" else what)
        elif members and defined.ranks != members:
            both = [first_of(map(str, ranks), 8) for ranks in (members, defined.ranks)]
            raise self.fail(f"process group '{name[:100]}' has ranks {both[0]} and ranks {both[1]}")

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

    def resolve(self, operations: NDArray[Any], rows: NDArray[Any] | slice = slice(None)) -> None:
        """Set the group of operations without a name where one fits their number of ranks, then the roots and peers.

        rows   which of the added operations they are
        """
        members = np.frombuffer(self._members, np.int64)[rows]
        is_local = np.frombuffer(self._local, bool)[rows]
        unnamed = self.group("")
        for size in np.unique(members[operations["group"] == unnamed]).tolist():
            operations["group"][(operations["group"] == unnamed) & (members == size)] = self.group(self.name_of_size(size))
        numbers = operations["root"].copy()
        operations["root"][is_local] = UNKNOWN
        for name in list(self.groups):
            in_group = (operations["group"] == self.group(name)) & is_local & (numbers != UNKNOWN)
            for number in np.unique(numbers[in_group]).tolist():
                operations["root"][in_group & (numbers == number)] = self.rank_of(name, number)

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
        duration: int = UNKNOWN, members: int = UNKNOWN, is_local: bool = False,
    ) -> int:  # fmt: skip
        """Add an operation, with sizes in elements of torch's type, and return its index.

        members   the number of ranks of its group, as far as its sizes show it; is_local: whether the root is a number within the group.
                  `resolve` needs both
        """
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
            sent, received = (size if size < 0 else size * scale for size in (sent, received))
        try:
            self._rows += pack_operation(
                kind, number, redop, state, group, sequence, sent, received, root, queue, UNKNOWN, splits, created, start, end, duration
            )
        except struct.error as error:
            raise self.fail("a number is too large") from error
        self._members.append(members)
        self._local.append(is_local)
        if len(self._members) > _MOST_RECORDS:
            self.check_records(len(self._members))
        return len(self._members) - 1

    def operations(self) -> NDArray[Any]:
        """Return [n] of OPERATION, in the order of `add`; later additions need a new call."""
        return operations_of(self._rows)

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
        groups = tuple(self.groups[names[index]] for index in used.tolist())
        self._complete_sizes(operations, groups)
        missing = _missing(operations, groups) | set(lacks)
        for part, key in ((Part.COMPUTE, "compute"), (Part.STEPS, "steps")):
            if not len(other.get(key, ())):
                missing.add(part)
        if other.get("after") is None:
            missing.add(Part.DEPENDENCIES)
        return RankTrace(self.rank, self.world, self.path, groups, operations, tuple(self.splits), missing=frozenset(missing), **other)

    def _complete_sizes(self, operations: NDArray[Any], groups: Sequence[ProcessGroup]) -> None:
        """Set the sizes that follow from others and the number of ranks."""
        ranks = np.array([len(group.ranks) for group in groups], np.int64)[operations["group"]]
        for name, whole in _WHOLE.items():
            part = _PART[whole]
            factors = ranks
            unknown = (operations["kind"] == KIND[name]) & (ranks > 0) & (operations[whole] == UNKNOWN) & (operations[part] != UNKNOWN)
            if KIND[name] in ROOTED:
                factors = np.where(operations["root"] == self.rank, ranks, 0)
                unknown &= operations["root"] != UNKNOWN
            if (operations[part][unknown] > _MOST // np.maximum(factors[unknown], 1)).any():
                raise self.fail("the size of an operation is not valid")
            operations[whole][unknown] = operations[part][unknown] * factors[unknown]
        unknown = (operations["kind"] == KIND["reducescatter"]) & (operations["received"] == UNKNOWN) & (operations["sent"] != UNKNOWN)
        unknown &= (ranks > 0) & (operations["sent"] % np.maximum(ranks, 1) == 0)
        operations["received"][unknown] = operations["sent"][unknown] // ranks[unknown]


def dependencies(waits: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return `RankTrace.after`, from the operations that each operation waits for."""
    offsets = np.zeros(len(waits) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, waits), np.int64, len(waits)), out=offsets[1:])
    return offsets, np.fromiter(chain.from_iterable(waits), np.int64, int(offsets[-1]))


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
    kind = operations["kind"]
    moves = kind != _BARRIER
    reduces = np.isin(kind, _REDUCING)
    rooted = np.isin(kind, tuple(ROOTED | MESSAGES))
    lacking = {
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
