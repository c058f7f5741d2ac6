"""A step's exchanges as cells of a backend: those that are alike are one part, with one set of buffers in turn.

The buffers of a part take turns as `--buffers rotating` does: as many as are larger than the caches, so that what an exchange sends has
left them since it was last sent, as a model's gradients have; all of a model's memory need not be there twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from collbench.backends.backend import Backend, steps_of
from collbench.control.world import World
from collbench.errors import UsageError
from collbench.measure.request import Request
from collbench.measure.tasks.checks import free_memory
from collbench.measure.tasks.turn import placed
from collbench.operations.cell import Cell, Split
from collbench.operations.data import bytes_needed, bytes_on_host, slots_for
from collbench.operations.dtypes import dtype_named
from collbench.operations.groups import Groups
from collbench.operations.operation import Operation, has_mark
from collbench.operations.sweep import Sweep
from collbench.units import format_bytes
from collbench.workloads.step import Exchange, Step, disjoint, operation_of

MOST_EXCHANGES = 100_000  # of a step: each is a call that the loop holds ready, and none of the models at hand has 1,000
_BETWEEN_PARTS = 104_729  # a prime above what slots and groups add to a seed: one part's data in another one's buffers shows


@dataclass(frozen=True)
class Given(Split):
    """Groups that a step names, in place of a split of all ranks."""

    given: Groups = ()

    def __str__(self) -> str:
        """For titles: "2 groups"."""
        return "1 group" if len(self.given) == 1 else f"{len(self.given)} groups"

    def groups(self, n: int) -> Groups:
        """As named."""
        return self.given


@dataclass(frozen=True)
class Part:
    """Exchanges of a step that are alike.

    what    for the table: of several the first and the last
    times   how many there are in a step
    """

    what: str
    exchange: Exchange
    operation: Operation
    cell: Cell
    times: int

    @property
    def groups(self) -> Groups:
        """They run at the same time."""
        return self.exchange.groups

    @property
    def width(self) -> int:
        """Ranks of each group."""
        return len(self.groups[0])

    @property
    def slots(self) -> int:
        """Buffers that a step really uses in turn."""
        return min(slots_for(self.cell), self.times)

    @property
    def laid(self) -> tuple[Operation, Cell]:
        """The operation and cell for whoever derives the groups from these: pairs, too, as they are named."""
        return replace(self.operation, pair=False), replace(self.cell, split=_given(self.groups))


@dataclass(frozen=True)
class Plan:
    """A step on a backend: its parts, and which of them comes when."""

    step: Step
    parts: tuple[Part, ...]
    order: tuple[int, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those that take part at all, ascending."""
        return tuple(sorted(set(chain.from_iterable(group for part in self.parts for group in part.groups))))


def plan_of(step: Step, request: Request, backend: Backend) -> Plan:
    """The step's parts as cells.

    Raises UsageError for groups that no operation can run over, sizes below one element, and more exchanges than can be held ready.
    """
    check_number(step)
    alike: dict[Exchange, int] = {}
    turns = [alike.setdefault(_key(exchange), len(alike)) for exchange in step.exchanges]
    of_part: list[list[Exchange]] = [[] for _ in alike]
    for exchange, turn in zip(step.exchanges, turns, strict=True):
        _check(exchange, backend.ranks)
        of_part[turn].append(exchange)
    parts = tuple(_part(each, turn, request, backend) for turn, each in enumerate(of_part))
    if not parts:
        raise UsageError("this step exchanges nothing: nothing can be measured; start more ranks, or choose another way of training")
    order = [turn for exchange, turn in zip(step.exchanges, turns, strict=True) for _ in range(exchange.times)]
    return Plan(step, parts, tuple(order))


def check_number(step: Step) -> None:
    """Raises UsageError for more exchanges than can be held ready."""
    number = sum(exchange.times for exchange in step.exchanges)
    if number > MOST_EXCHANGES:
        raise UsageError(
            f"this step makes {number:,} exchanges, and {MOST_EXCHANGES:,} are the most that can be held ready: choose a larger --bucket, "
            "fewer --layers or --microbatches, or a smaller model"
        )


def _key(exchange: Exchange) -> Exchange:
    return replace(exchange, what="", times=1)


def _check(exchange: Exchange, ranks: int) -> None:
    sizes = {len(group) for group in exchange.groups}
    if not disjoint(exchange.groups) or len(sizes) != 1 or 0 in sizes:
        raise UsageError(f"{exchange.what}: its groups {exchange.groups} must be disjoint and of one size")
    strange = [rank for group in exchange.groups for rank in group if not 0 <= rank < ranks]
    if strange:
        raise UsageError(f"{exchange.what}: rank {strange[0]} is not among the {ranks} ranks: start more")
    if operation_of(exchange).pair and sizes != {2}:
        raise UsageError(f"{exchange.what}: {exchange.operation} is between two ranks, not {max(sizes)}")


def _part(alike: list[Exchange], turn: int, request: Request, backend: Backend) -> Part:
    first, last = alike[0], alike[-1]
    operation, times = operation_of(first), sum(exchange.times for exchange in alike)
    what = first.what if first.what == last.what else f"{first.what} … {last.what}"
    cell = _cell(first, operation, times, request, backend)
    return Part(what, first, operation, replace(cell, seed=cell.seed + turn * _BETWEEN_PARTS), times)


def _cell(exchange: Exchange, operation: Operation, times: int, request: Request, backend: Backend) -> Cell:
    sweep, n, dtype = request.sweep.each[0], len(exchange.groups[0]), dtype_named(exchange.dtype)
    if exchange.size_bytes < dtype.size * operation.parts(n):
        least = dtype.size * operation.parts(n)
        raise UsageError(
            f"{exchange.what}: {exchange.size_bytes} bytes are less than an element for each of {n} ranks ({least} bytes): "
            "choose a larger model, or start fewer ranks"
        )
    asked = replace(
        sweep, operations=(operation,), sizes=(exchange.size_bytes,), dtypes=(dtype,), redops=(exchange.redop or "sum",),
        roots=(exchange.root or 0,), mode=sweep.mode or "isolated", buffers="rotating" if times > 1 else "fixed", window=1,
        algorithms=sweep.algorithms[:1], protocols=sweep.protocols[:1], registrations=sweep.registrations[:1], backends=(), split=None,
        traffic=exchange.traffic, streams=None,
    )  # fmt: skip
    cell = _last(asked, backend.name, n)
    whole = exchange.groups == (tuple(range(backend.ranks)),)
    cell = cell if operation.pair or whole else replace(cell, split=_given(exchange.groups))
    return _in_place(cell, operation, backend)


def _last(sweep: Sweep, backend: str, n: int) -> Cell:
    """The one cell; where an algorithm or protocol is forced, the sweep has the library's own choice before it."""
    return list(sweep.cells(backend, n))[-1]


def _given(groups: Groups) -> Given:
    return Given("GROUPS", len(groups), groups)


def _in_place(cell: Cell, operation: Operation, backend: Backend) -> Cell:
    """Gradients are all-reduced in place, as training does; all else as the house has it."""
    if cell.in_place is None and operation.name == "allreduce" and not has_mark(steps_of(backend, operation), "out_of_place_only"):
        return cell.placed(True)
    return placed(cell, operation, backend)


def too_large(title: str, plan: Plan, backend: Backend, world: World) -> str | None:
    """Why a step's buffers do not fit this host or its GPUs, before anything is measured; None where they do."""
    device = backend.free_bytes(plan.parts[0].cell)
    here = backend.ranks if backend.virtual else len(world.on_host())
    need = sum(_on_device(plan)) if device is not None else sum(_on_host(plan, here))
    free = device if device is not None else free_memory()
    if need <= free:
        return None
    whose = f"for its {here} ranks there" if device is None else "on each GPU"
    return (
        f"the buffers of {title} need {format_bytes(need)} on {world.me.host} {whose}, and {format_bytes(free)} is free: choose a smaller "
        "model, or smaller exchanges of it (--bucket, --microbatch; of fsdp more --layers)"
    )


def _on_device(plan: Plan) -> Iterator[int]:
    return (_used(part, bytes_needed(part.operation, part.cell, part.width)) for part in plan.parts)


def _used(part: Part, of_all_slots: int) -> int:
    """As far as the step has use for them."""
    return of_all_slots * part.slots // slots_for(part.cell)


def _on_host(plan: Plan, here: int) -> Iterator[int]:
    """Of every part; the sums of a server as much again as it receives."""
    for part in plan.parts:
        taking = min(here, part.width * len(part.groups))
        yield _used(part, bytes_on_host(part.operation, part.cell, part.width, taking, len(part.groups)))
        yield taking * part.slots * part.cell.size_bytes if part.exchange.adds else 0
