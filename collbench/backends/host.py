"""What backends on host memory have in common: one rank a process, blocking calls, buffers of our own, CLOCK_MONOTONIC."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from collbench.backends.backend import Tuning, Usual
from collbench.backends.clock import Clock, DeviceClock, MonotonicClock
from collbench.backends.group import Group
from collbench.backends.memory import AnyBuffers, Buffers
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation
from collbench.operations.program import Program


class HostBackend(Usual, ABC):
    """A backend of this kind says how it opens, what its communicator of some ranks is, and how steps bind to a slot's buffers."""

    name = api = ""
    devices = frozenset({"cpu"})
    rank = 0
    explain: Callable[[int], str] = staticmethod("error code {}".format)

    @abstractmethod
    def communicator(self, ranks: Sequence[int]) -> Any:
        """The library's handle of a group. All ranks call; outside the group the answer is ignored."""

    @abstractmethod
    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> Any:
        """x, as the operation's steps see it, for one slot."""

    def group(self, ranks: Sequence[int], tuning: Tuning | None = None) -> Group | None:
        """A group of the job's ranks; None at ranks outside. No library of this kind takes a tuning, see `can_do`."""
        handle = self.communicator(ranks)
        return Group(tuple(ranks), (list(ranks).index(self.rank),), handle) if self.rank in ranks else None

    def allocate(self, operation: Operation, cell: Cell, group: Group, slots: int) -> AnyBuffers:
        """Host memory, the same for every such backend."""
        return Buffers(operation, cell, group, slots)

    def bind(self, operation: Operation, cell: Cell, group: Group, buffers: AnyBuffers) -> Program:
        """The backend's own steps, or the operation's for this api, per slot."""
        steps = self.steps.get(operation.name) or operation.steps_of(self.api, self.passes_messages)
        assert steps is not None, "asked of can_do before"
        bindings = [self.binding(group, buffers, slot) for slot in range(buffers.slots)]
        slots = tuple(tuple(steps(binding)) for binding in bindings)
        return Program(slots, keep=(buffers, bindings), explain=self.explain)

    def sync(self, group: Group) -> Program | None:
        """None: the room timing has a barrier."""
        return None

    def clock(self) -> Clock | DeviceClock:
        """CLOCK_MONOTONIC."""
        return MonotonicClock()

    def fence(self, deadline_s: float) -> None:
        """Nothing is left pending by blocking calls."""

    def abort(self, why: str) -> None:
        """The library's own timeout ends what is pending."""
