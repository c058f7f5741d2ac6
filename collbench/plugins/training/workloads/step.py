"""The exchanges of a training step: collectives and messages in order, each over groups of ranks that run at the same time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from collbench.errors import UsageError
from collbench.operations.groups import Groups
from collbench.operations.registry import every_operation, operations
from collbench.operations.traffic import Traffic, elements

if TYPE_CHECKING:
    from collbench.operations.operation import Operation
    from collbench.plugins.training.workloads.routing import Routing


# How many bytes a step moves, by the conventions of busbw: the minimum that each rank must send or receive with any library.
#
# An even collective moves nccl-tests' factor times the size, the same at every rank of a group. For a message, and for uneven parts,
# it is the larger of what the rank sends to others and what it receives from them.


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
    found = every_operation().get(exchange.operation)
    if found is None:
        raise UsageError(f"{exchange.what}: unknown operation '{exchange.operation}': choose from {', '.join(operations())}")
    return found


def bytes_of(exchange: Exchange, n: int) -> tuple[float, ...]:
    """Return the bytes of one exchange, all its `times`, by rank of a group of n."""
    operation = operation_of(exchange)
    if operation.uneven and not operation.by_rank:
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


class Exchange(msgspec.Struct, frozen=True):
    """One operation of a step.

    operation   its name in the registry: "allreduce", "allgather", "reducescatter", "alltoallv", "broadcast", "sendrecv", "p2p_message" …
    groups      ranks of the job; the groups are disjoint and of equal size. Ranks in no group do nothing
    size_bytes  as collbench counts the operation's size (nccl-tests' size)
    what        for the table: "gradients, bucket 3 of 14", "activations to the next stage"
    times       how often it runs, one after the other
    dtype, redop, root   None if the operation has none; root is a rank within the group
    traffic     of alltoallv: elements from each rank to each rank
    adds        receivers sum what ranks send to them (a parameter server), within the step; the sum is verified
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


class Shape(msgspec.Struct, frozen=True):
    """The input of a regime.

    parameters     number of parameters; element_bytes: of one of them when sent (of type dtype)
    layers, hidden, sequence, microbatch, microbatches, experts, top_k, vocabulary   of a transformer, see models.toml
    bucket_bytes   of gradients
    hosts          by rank the number of its host; the layout of hierarchical, pipeline and tensor-parallel groups depends on it
    options        options of one regime only: {"update": "sharded"}, {"tensor": 4}
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
    options: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.hosts)

    @property
    def gradient_bytes(self) -> int:
        """The bytes of all gradients."""
        return self.parameters * self.element_bytes


class Start(msgspec.Struct, frozen=True):
    """Begin an exchange without waiting for it. exchange: its index in `Step.exchanges`."""

    exchange: int


class Wait(msgspec.Struct, frozen=True):
    """Wait until an exchange that was started is complete. exchange: its index in `Step.exchanges`."""

    exchange: int


class Compute(msgspec.Struct, frozen=True):
    """Compute for so many seconds, while exchanges that were started go on."""

    seconds: float


Action = Start | Wait | Compute


class Step(msgspec.Struct, frozen=True):
    """The traffic of one training step, in order. payload_bytes: the training's own bytes per rank (gradients, activations).

    timeline   by rank what it does, in order: it starts and waits for each of its exchanges once (`times` of these is 1), and computes.
               (): every rank runs its exchanges one after the other, and does not compute
    routing    several routings of tokens to experts, which are measured instead of `exchanges`; these are even ones of as many tokens
    """

    exchanges: tuple[Exchange, ...]
    payload_bytes: int
    note: str = ""
    timeline: tuple[tuple[Action, ...], ...] = ()
    routing: Routing | None = None


class Regime(msgspec.Struct, frozen=True):
    """A method of training; a module of this package defines it, and the registry lists that module.

    name      as users type it; summary: one line for `--help`
    step      returns the exchanges of one step. Raises UsageError with a remedy for a shape that it does not support
    options   its own options, with their defaults: {"update": "synchronous"}; "": computed
    asynchronous  whether ranks do not wait for one another (then `step` returns what one worker exchanges in one round)
    takes     the common options that it uses, with their defaults; "": from the model, or computed. See `shape.HELP`
    help      for each of its own options a line for `--help`
    check     raises UsageError for options that are invalid with any ranks and hosts; `shape_of` calls it
    models    of a real framework: the regime that models it, with which it is compared; else ""
    with_computing  returns what a rank does in a step that computes, in order, from the step's exchanges (`times` of each is 1) and the
              seconds of computing, which its `Compute`s divide equally; None: its computation waits for each exchange
    """

    name: str
    summary: str
    step: Callable[[Shape], Step]
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    asynchronous: Callable[[Shape], bool] = lambda shape: False
    takes: Mapping[str, str] = msgspec.field(default_factory=dict)
    help: Mapping[str, str] = msgspec.field(default_factory=dict)
    check: Callable[[Shape], object] = lambda shape: None
    models: str = ""
    with_computing: Callable[[Sequence[Exchange], float], tuple[Action, ...]] | None = None


def disjoint(groups: Sequence[Sequence[int]]) -> bool:
    """Return whether no rank is in two groups."""
    ranks = [rank for group in groups for rank in group]
    return len(ranks) == len(set(ranks))
