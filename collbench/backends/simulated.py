"""A backend without a network: seeded virtual ranks in one process, for learning, tests and reports of any size.

Data is really moved and reduced, so verification is real. Times come from a model, and every row has the flag `simulated`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from collbench.backends.backend import Available, BackendBase, Group, Settings, Tuning, Unavailable
from collbench.backends.clock import Clock, VirtualClock
from collbench.backends.host import Buffers
from collbench.machine.peak.ceiling import Ceiling
from collbench.operations.case import Case
from collbench.operations.data import reduced
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import Program, PythonCall
from collbench.operations.registry import every_operation

if TYPE_CHECKING:
    from collbench.control.world import World

ALPHA_S = 5e-6  # invented: the latency of one iteration
BETA_BYTES_PER_S = 10e9  # invented: the link that limits every bus bandwidth


class SimulatedBackend(BackendBase):
    """The backend simulated: virtual ranks, all driven by rank 0's process."""

    name = api = "simulated"
    devices = frozenset({"cpu"})
    flags = ("simulated",)
    virtual = True
    own_ceiling = Ceiling("simulated", BETA_BYTES_PER_S, "a simulated link", source="made up")

    def __init__(self) -> None:
        self.steps = dict.fromkeys(every_operation(), lambda x: [])  # this backend needs only the operations' expected data

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Return Available, always."""
        return Available("made-up times, no network")

    def open(self, world: World, settings: Settings) -> None:
        """Create the virtual ranks. Processes other than rank 0's drive none."""
        self.ranks = settings.virtual_ranks or world.size
        self._drives = world.rank == 0
        self._clock = VirtualClock(self.ranks if self._drives else 0, settings.seed)

    def group(self, ranks: Sequence[int], tuning: Tuning | None = None) -> Group | None:
        """Return a group of any ranks."""
        return Group(tuple(ranks), tuple(range(len(ranks)))) if self._drives else None

    def supports(self, operation: Operation, case: Case) -> Reason | None:
        """Return None: every case is supported."""
        return None

    def allocate(self, operation: Operation, case: Case, group: Group, slots: int) -> Buffers:
        """Return host memory for every virtual rank."""
        return Buffers(operation, case, group, slots)

    def bind(self, operation: Operation, case: Case, group: Group, buffers: Buffers) -> Program:
        """Return a program with one call per slot that moves the data and advances the virtual time."""
        moved = case.size_bytes * operation.bus_factor(group.n)
        seconds = operation.moves(case) * (ALPHA_S + moved / BETA_BYTES_PER_S)

        def iterate(slot: int) -> PythonCall:
            def run() -> None:
                move(operation, buffers, slot)
                self._clock.advance(group.ranks, seconds)

            return PythonCall("simulate", run)

        return Program(tuple((iterate(slot),) for slot in range(buffers.slots)), keep=buffers)

    def sync(self, group: Group) -> Program | None:
        """Return a program that aligns all virtual ranks."""
        return Program(((PythonCall("align", self._clock.align),),))

    def clock(self) -> Clock:
        """Return the clock of the virtual ranks."""
        return self._clock

    def fence(self, deadline_s: float) -> None:
        """Do nothing: no work is ever pending."""

    def abort(self, why: str) -> None:
        """Do nothing: no work is ever pending."""

    def versions(self) -> Mapping[str, str]:
        """Return the model's constants."""
        return {"simulated": f"alpha {ALPHA_S * 1e6:g} us, beta {BETA_BYTES_PER_S / 1e9:g} GB/s, all made up"}

    def close(self) -> None:
        """Do nothing."""


def move(operation: Operation, buffers: Buffers, slot: int) -> None:
    """Run one iteration: read every rank's send elements before any receive elements are written."""
    sends = {place.rank: buffers.send(i, slot).copy() for i, place in enumerate(buffers.places)}
    sums: dict[tuple[tuple[int, ...], int, int], NDArray[Any]] = {}  # every rank of an all-reduce gets the same sum
    for i, place in enumerate(buffers.places):
        received = buffers.recv(i, slot)
        offset = 0
        for block in operation.expected_blocks(place):
            key = (tuple(block.sources), block.at, block.count)
            if key not in sums:
                parts = (sends[source][block.at : block.at + block.count] for source in block.sources)
                sums[key] = reduced(parts, len(block.sources), place.case)
            received[offset : offset + block.count] = sums[key]
            offset += block.count
