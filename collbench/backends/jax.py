"""jax on CPUs: collectives of jax.lax under jit and shard_map, carried by XLA over Gloo.

A timed call is one call of the compiled function and the wait for its result, a new array that XLA allocates. Compiling is not in it, nor
are copies between the harness's buffers and jax's arrays. XLA (of jax 0.10.2) sends bfloat16 as float32, 8-bit floats as float16.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from collbench.backends.arrays import JaxBuffers
from collbench.backends.backend import Available, Settings, Unavailable
from collbench.backends.group import Group
from collbench.backends.host import HostBackend
from collbench.backends.installed import installed, load_jax, trouble
from collbench.backends.joining import connect, free_port, join, mesh_of
from collbench.backends.memory import AnyBuffers
from collbench.backends.steps import STEPS, JaxBinding, why_not
from collbench.machine.interfaces import interface_with
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import Program

if TYPE_CHECKING:
    from collbench.control.world import World

_LATER = 2  # jax gives up later than the watchdog, which can say who is missing


class JaxBackend(HostBackend):
    """The ranks' CPUs as one mesh of jax's."""

    name = api = "jax"
    local_path = "loopback"
    steps = STEPS
    no_cuda = "jax is measured on CPUs here: --backend nccl measures the library that it uses on GPUs"
    _wire = ""

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Whether jax and jaxlib are installed, of a version that is known; imports neither."""
        wrong = trouble(os.environ)
        return Unavailable(*wrong) if wrong else Available(f"jax {installed('jax')} over Gloo")

    def open(self, world: World, settings: Settings) -> None:
        """Imports jax and joins all ranks at a coordinator that rank 0 opens. Raises UsageError for a broken jax, else RunFailed."""
        self._jax = load_jax()
        self.rank, self.ranks = world.rank, world.size
        self._interface, host = interface_with(world.me.address), world.members[0].address
        port = world.decide(free_port(host) if world.rank == 0 else 0, "opening jax: the coordinator's port")
        place = (self.rank, self.ranks)
        self._devices = join(self._jax, (host, port), place, self._interface, int(_LATER * settings.timeout_s))

    def communicator(self, ranks: Sequence[int]) -> Any:
        """A mesh of these ranks' devices; its ranks connect at once."""
        mesh = mesh_of(self._jax, [self._devices[rank] for rank in ranks])
        if self.rank in ranks:
            connect(self._jax, mesh)
        return mesh

    def allocate(self, operation: Operation, cell: Cell, group: Group, slots: int) -> AnyBuffers:
        """Host memory for what is written and checked, and jax's arrays beside it."""
        return JaxBuffers(self._jax, operation, cell, group, slots)

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> JaxBinding:
        """The compiled function over the arrays of a slot."""
        assert isinstance(buffers, JaxBuffers)
        return JaxBinding(self._jax, group, buffers, slot)

    def bind(self, operation: Operation, cell: Cell, group: Group, buffers: AnyBuffers) -> Program:
        """Compiles, and notes in which type XLA carries the cell's elements."""
        program = super().bind(operation, cell, group, buffers)
        assert isinstance(buffers, JaxBuffers)
        self._wire = buffers.wire
        return program

    def supports(self, operation: Operation, cell: Cell) -> Reason | None:
        """No broadcast on CPUs, and the reductions of jax.lax alone."""
        return why_not(operation.name, cell.redop)

    def versions(self) -> Mapping[str, str]:
        """jax, what carries its collectives, and in which type the elements of the last cell that was bound travel."""
        about = {"jax": self._jax.__version__, "jaxlib": str(installed("jaxlib")), "cpu_collectives": "gloo"}
        about |= {"gloo_interface": self._interface, "xla_flags": os.environ.get("XLA_FLAGS", ""), "compile": "not timed"}
        return about | ({"wire_type": self._wire} if self._wire else {})

    def close(self) -> None:
        """Leaves the coordinator."""
        self._jax.distributed.shutdown()
