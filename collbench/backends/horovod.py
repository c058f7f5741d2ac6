"""Horovod on host memory, over the Gloo inside it: hvd.allreduce_ and its like on torch's tensors, as training calls them.

A timed call blocks until Horovod's own thread, which looks for work once per HOROVOD_CYCLE_TIME (ms, default 1), has found it at every
rank and moved it: that time decides the latency of small messages, and stands on every row. So does whether groups can be made while it
runs: its ranks then agree on more in every cycle, so it is started again that way for the first group, and not before. All-gather,
all-to-all and reduce-scatter return a new tensor, whose allocation is part of the call; only when a result is verified it is copied to
where the harness looks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from collbench.backends.backend import Available, Settings, Unavailable
from collbench.backends.group import Group
from collbench.backends.horovod_binding import NEW, STEPS, HorovodBinding, why_not
from collbench.backends.horovod_start import load_horovod, of_user, rendezvous, told, trouble
from collbench.backends.host import HostBackend
from collbench.backends.memory import AnyBuffers
from collbench.backends.on_torch import load_torch
from collbench.backends.stacks import installed
from collbench.machine.interfaces import interface_with
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import Program

if TYPE_CHECKING:
    from collbench.control.world import World

_INTERFACE = "HOROVOD_GLOO_IFACE"


class HorovodBackend(HostBackend):
    """horovod.torch with its Gloo controller and its Gloo operations."""

    name = api = "horovod"
    local_path = "loopback"
    steps = STEPS

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Whether a Horovod that is known is installed, built for this torch, under a launcher of ours; imports neither."""
        wrong = trouble(os.environ)
        return Unavailable(*wrong) if wrong else Available(f"Horovod {installed('horovod')} over Gloo, on torch {installed('torch')}")

    def open(self, world: World, settings: Settings) -> None:
        """Imports horovod.torch and joins all ranks at a rendezvous server of Horovod's that rank 0 runs meanwhile.

        Raises UsageError for a Horovod that does not load, or was built without Gloo.
        """
        self._asked = of_user(os.environ)
        self._torch, self._hvd = load_torch(), load_horovod()
        self._world, self.rank, self.ranks = world, world.rank, world.size
        self._torch.set_num_threads(1)
        self._interface = os.environ.setdefault(_INTERFACE, interface_with(world.me.address))
        self._timeout_s, self._sets = settings.timeout_s, {tuple(range(self.ranks)): self._hvd.global_process_set}
        self._start(grouped=self._asked.get("horovod_dynamic_process_sets") == "1")

    def _start(self, grouped: bool) -> None:
        """All ranks together. `grouped`: so that process sets can be made meanwhile."""
        self._grouped = grouped
        os.environ.update(told(self._world, self._timeout_s, grouped))
        with rendezvous(self._world):
            self._hvd.init()

    def communicator(self, ranks: Sequence[int]) -> Any:
        """A process set; Horovod knows each once, and has all ranks call."""
        key = tuple(sorted(ranks))
        if key not in self._sets:
            if not self._grouped:
                self._hvd.shutdown()
                self._start(grouped=True)
            with rendezvous(self._world):
                self._sets[key] = self._hvd.add_process_set(list(key))
        return self._sets[key]

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> HorovodBinding:
        """Tensors over the buffers."""
        return HorovodBinding(self._torch, self._hvd, buffers, group, slot)

    def bind(self, operation: Operation, cell: Cell, group: Group, buffers: AnyBuffers) -> Program:
        """Where Horovod returns a new tensor, what verifies is a program of its own, with a copy."""
        program = super().bind(operation, cell, group, buffers)
        if operation.name not in NEW:
            return program
        bindings = [self.binding(group, buffers, slot) for slot in range(buffers.slots)]
        copied = tuple(tuple(binding.copied(call) for call in slot) for binding, slot in zip(bindings, program.slots, strict=True))
        return replace(program, once=Program(copied, keep=bindings))

    def supports(self, operation: Operation, cell: Cell) -> Reason | None:
        """The types that this build has a function for, and the reductions that its Gloo really does."""
        return why_not(self._torch, self._hvd, operation, cell, self.ranks)

    def sync(self, group: Group) -> Program | None:
        """None: Horovod's barrier lasts a cycle, the shared-memory one of the room timing does not."""
        return None

    def versions(self) -> Mapping[str, str]:
        """Horovod, torch, the cycle that decides small messages, whatever else of HOROVOD_* the user has set, and how groups run."""
        about = {"horovod": str(installed("horovod")), "torch": self._torch.__version__, "horovod_operations": "gloo"}
        grouped = {"horovod_dynamic_process_sets": str(int(self._grouped))}
        return about | {"horovod_gloo_iface": self._interface, "horovod_cycle_time": "1"} | self._asked | grouped

    def close(self) -> None:
        """Ends Horovod's thread, on all ranks together."""
        self._hvd.shutdown()
