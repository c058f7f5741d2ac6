"""Rows of our own form from the figures of another tool: one `Kind` for what a table's rows share, then size and time of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

from collbench.errors import UsageError
from collbench.operations.cell import Cell
from collbench.operations.dtypes import DTYPES, dtype_named
from collbench.operations.groups import group_name, groups_of
from collbench.operations.operation import Operation
from collbench.operations.registry import operations
from collbench.results.importers.peer import IMPORTED, Contradiction, Given
from collbench.results.row import Row, Times

_SHORTEST_S, _LONGEST_S = 1e-12, 1e9
_LARGEST = 2**63
_LONGEST_NAME = 64
MOST_RANKS = 2_000_000
_SHARED = (
    "operation", "backend", "api", "dtype", "ranks", "nodes", "device", "redop", "root", "mode", "in_place", "buffers", "window",
)  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """What a tool tells of its samples beside the time, in seconds; None where it does not."""

    min: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


_NO_SPREAD = Spread()


@dataclass(frozen=True)
class Kind:
    """What the rows of one table have in common.

    operation   one of ours, or a name that we do not have: then there is no bus bandwidth, unless it moves `like` one of ours
    ranks       all that took part; for pairs twice the number of pairs
    statistic   what a time is; it stands on each row
    evidence    what else belongs to each row, JSON-ready: {"iterations": 20}
    also        further fields of the rows, by their name: {"protocol": "RDMA_Write"}
    """

    operation: str
    backend: str
    api: str
    dtype: str
    ranks: int
    nodes: int | None
    statistic: str
    device: str = "cpu"
    redop: str | None = None
    root: int | None = None
    mode: str = "pipelined"
    in_place: bool = False
    buffers: str = "fixed"
    window: int | None = None
    like: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    also: Mapping[str, Any] = field(default_factory=dict)

    def row(
        self,
        size_bytes: int,
        time_s: float,
        *,
        count: int,
        line: int | None = None,
        spread: Spread = _NO_SPREAD,
        checked: int = 0,
        wrong: int | None = None,
    ) -> Row:
        """The row of one size: `count` elements per call, read in this `line` of the file (the first is 1).

        size_bytes is by our definition (max of what a rank sends and receives); bandwidths follow from it and the time. `wrong`
        counts elements, None where nothing was compared. The time must be one that `is_time` takes.
        """
        algbw = size_bytes / time_s if size_bytes else None
        return self._same.with_figures(
            size_bytes=size_bytes, count=count, checked=checked, wrong=wrong,
            time_s=Times(time_s, None, None, spread.min, spread.p95, spread.p99, spread.max),
            algbw_bytes_per_s=algbw, busbw_bytes_per_s=algbw * self._factor if algbw and self._factor else None,
            evidence=self._evidence if line is None else {**self._evidence, "line": line},
        )  # fmt: skip

    @cached_property
    def _factor(self) -> float | None:
        """busbw / algbw."""
        operation = operations().get(self.like or self.operation)
        return operation.bus_factor(2 if operation.pair else self.ranks) if operation else None

    @cached_property
    def _same(self) -> Row:
        same = {name: getattr(self, name) for name in _SHARED} | {"group": _group(self.operation, self.ranks), "flags": (IMPORTED,)}
        return Row(**{**same, **self.also, "size_bytes": 0, "count": 0})

    @cached_property
    def _evidence(self) -> dict[str, Any]:
        return {**self.evidence, "statistic": self.statistic}


def is_time(seconds: float) -> bool:
    """Whether something can have taken that long; not NaN, not infinite."""
    return _SHORTEST_S <= seconds <= _LONGEST_S


def is_size(size_bytes: int) -> bool:
    """Whether a message that moves something can be that large."""
    return 0 < size_bytes < _LARGEST


def known_operation(name: str) -> Operation:
    """The operation of that name. Raises UsageError for --operation with another one."""
    found = operations().get(name)
    if found is None:
        raise UsageError(f"--operation '{short(name)}' is unknown: choose from {', '.join(operations())}")
    return found


class Extent(NamedTuple):
    """How many ranks and nodes took part (nodes None: unknown), and the options that say otherwise."""

    ranks: int
    nodes: int | None
    contradicted: tuple[Contradiction, ...] = ()


def ranks_and_nodes(given: Given, ranks: int | None, nodes: int | None, where: str) -> Extent:
    """Ranks and nodes from the output (None: it does not say), else from the user. What the output says is never replaced.

    Raises UsageError for unknown ranks, for a number that no machine has, and for more nodes than ranks; `where` names the table.
    """
    known, parts = ranks if ranks is not None else given.ranks, nodes if nodes is not None else given.nodes
    if known is None:
        raise UsageError(f"{where} does not say how many ranks it ran on: use --ranks N")
    if not 1 <= known <= MOST_RANKS:
        raise UsageError(f"{where}: {known} is not a valid number of ranks; check --ranks and the file")
    if parts is not None and parts > known:
        raise UsageError(f"{where}: {known} ranks cannot be on {parts} nodes; check --ranks and --nodes")
    return Extent(known, parts, (*contradiction(where, "ranks", given.ranks, ranks), *contradiction(where, "nodes", given.nodes, nodes)))


def contradiction(where: str, what: str, given: int | None, told: int | None) -> tuple[Contradiction, ...]:
    """The contradiction between the option --`what` and the output, if there is one."""
    return () if given is None or told is None or given == told else (Contradiction(where, f"--{what}", str(given), f"{told} {what}"),)


def type_name(name: str) -> str:
    """Our name of an element type that a tool names; its own, made short, where we have none."""
    try:
        return dtype_named(name).name
    except UsageError:
        return short(name)


def width_of(dtype: str) -> int | None:
    """Bytes per element of a type by our name; None where we do not have it."""
    return DTYPES[dtype].size if dtype in DTYPES else None


def short(text: str) -> str:
    """A name from a file that nobody vouches for: printable, and of sane length."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST_NAME])


@cache
def _group(name: str, ranks: int) -> str:
    operation = operations().get(name)
    if operation is None or not operation.pair:
        return "all"
    cell = Cell(name, "", DTYPES["uint8"], 0)
    return group_name(operation, cell, groups_of(operation, cell, max(ranks, 2)))
