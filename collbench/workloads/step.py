"""The exchanges of a training step: collectives and messages in order, each over groups of ranks that run at the same time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from collbench.errors import UsageError
from collbench.operations.groups import Groups
from collbench.operations.registry import operations
from collbench.operations.traffic import Traffic, elements

if TYPE_CHECKING:
    from collbench.operations.operation import Operation


# How many bytes a step moves, by the conventions of busbw: the minimum that each rank must send or receive, with any library.
#
# Of an even collective that is nccl-tests' factor times the size, the same at every rank of a group. Of a message, and of uneven parts,
# it is what the rank really sends to others or receives from them, whichever is more.


def moved_bytes(step: Step, ranks: int) -> tuple[float, ...]:
    """Return the bytes of one step, by rank. Raises UsageError for an unknown operation."""
    moved = [0.0] * ranks
    for exchange in step.exchanges:
        for group in exchange.groups:
            for rank, each in zip(group, bytes_of(exchange, len(group)), strict=True):
                moved[rank] += each
    return tuple(moved)


def operation_of(exchange: Exchange) -> Operation:
    """Return the operation of an exchange. Raises UsageError for an unknown name."""
    found = operations().get(exchange.operation)
    if found is None:
        raise UsageError(f"{exchange.what}: unknown operation '{exchange.operation}': choose from {', '.join(operations())}")
    return found


def bytes_of(exchange: Exchange, n: int) -> tuple[float, ...]:
    """Return the bytes of one exchange, all its `times`, by rank of a group of n."""
    operation = operation_of(exchange)
    if operation.uneven:
        return _uneven(exchange, operation, n)
    return (exchange.times * exchange.size_bytes * operation.bus_factor(n),) * n


def _uneven(exchange: Exchange, operation: Operation, n: int) -> tuple[float, ...]:
    """Return the larger of what a rank sends to other ranks and what it receives from them."""
    from collbench.operations.dtypes import dtype_named

    width = dtype_named(exchange.dtype).size
    parts = elements(exchange.traffic, n, exchange.size_bytes // (operation.parts(n) * width)).copy()
    for rank in range(n):
        parts[rank, rank] = 0
    busier = zip(parts.sum(axis=1).tolist(), parts.sum(axis=0).tolist(), strict=True)
    return tuple(float(exchange.times * width * max(each)) for each in busier)


@dataclass(frozen=True)
class Exchange:
    """One operation of a step.

    operation   its name in the registry: "allreduce", "allgather", "reducescatter", "alltoallv", "broadcast", "sendrecv", "p2p_bandwidth" …
    groups      ranks of the job; the groups are disjoint, and of one size. Ranks in none of them rest
    size_bytes  as collbench counts the operation's size (nccl-tests' size)
    what        for the table: "gradients, bucket 3 of 14", "activations to the next stage"
    times       so many times one after the other
    dtype, redop, root   None: the operation has none; root is a rank within the group
    traffic     of alltoallv: elements from each rank to each rank
    adds        receivers add up what the ranks send to them (a parameter server), within the step; the sum is checked
    """

    operation: str
    groups: Groups
    size_bytes: int
    what: str
    times: int = 1
    dtype: str = "float32"
    redop: str | None = None
    root: int | None = None
    traffic: Traffic | None = None
    adds: bool = False


@dataclass(frozen=True)
class Shape:
    """The input of a regime.

    parameters     of the model, in numbers; element_bytes: of one of them on the wire (of type dtype)
    layers, hidden, sequence, microbatch, microbatches, experts, top_k, vocabulary   of a transformer, see models.toml
    bucket_bytes   of gradients
    hosts          by rank the number of its host: hierarchical exchanges, pipelines and tensor-parallel groups are laid out by it
    options        what only one regime has: {"update": "sharded"}, {"tensor": 4}
    """

    name: str
    parameters: int
    dtype: str
    element_bytes: int
    bucket_bytes: int
    hosts: tuple[int, ...]
    layers: int = 0
    hidden: int = 0
    sequence: int = 0
    microbatch: int = 1
    microbatches: int = 1
    experts: int = 0
    top_k: int = 2
    vocabulary: int = 0
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.hosts)

    @property
    def gradient_bytes(self) -> int:
        """All gradients."""
        return self.parameters * self.element_bytes


@dataclass(frozen=True)
class Step:
    """One training step's traffic, in order. payload_bytes: what the training itself wants moved, per rank (gradients, activations)."""

    exchanges: tuple[Exchange, ...]
    payload_bytes: int
    note: str = ""


@dataclass(frozen=True)
class Regime:
    """A way of training; a module of this package defines it, and the registry lists that module.

    name      what users type; summary: one line for `--help`
    step      the exchanges of one step. Raises UsageError for a shape it cannot lay out (a remedy in the sentence)
    options   words it takes beside the common ones, with their default: {"update": "synchronous"}; "": worked out from the rest
    asynchronous  whether ranks go on without one another (then `step` gives what one worker exchanges in one round)
    takes     the common words that it looks at, with their default; "": the model's own, or worked out. See shaping.HELP
    help      of each of its options a line for `--help`
    check     raises UsageError for invalid options, for any ranks and hosts: `shape_of` calls it
    """

    name: str
    summary: str
    step: Callable[[Shape], Step]
    options: Mapping[str, str] = field(default_factory=dict)
    asynchronous: Callable[[Shape], bool] = lambda shape: False
    takes: Mapping[str, str] = field(default_factory=dict)
    help: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Shape], None] = lambda shape: None


def disjoint(groups: Sequence[Sequence[int]]) -> bool:
    """Whether no rank is in two groups."""
    ranks = [rank for group in groups for rank in group]
    return len(ranks) == len(set(ranks))
