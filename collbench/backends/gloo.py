"""Gloo through torch.distributed, on host memory and where torch has CUDA on GPU memory, too: what training sees with Gloo."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from collbench.backends.backend import Available, Settings, Unavailable
from collbench.backends.group import Group
from collbench.backends.memory import AnyBuffers
from collbench.backends.on_torch import TorchBackend, join, load_torch, no_cuda_build, require_one_family
from collbench.backends.torch_binding import TorchBinding
from collbench.machine.interfaces import interface_with
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import Program, PythonCall

if TYPE_CHECKING:
    from collbench.control.world import World

_INTERFACE = "GLOO_SOCKET_IFNAME"
_UNREDUCED = frozenset({"uint32", "uint64", "float8_e4m3fn", "float8_e5m2"})  # "Invalid scalar type", torch 2.13


class GlooBackend(TorchBackend):
    """torch.distributed with Gloo."""

    name, local_path = "gloo", "loopback"

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Whether torch is installed; does not import it (that takes seconds)."""
        if find_spec("torch") is None:
            return Unavailable("torch is not installed", "pip install -c constraints.txt 'collbench[torch]'")
        return Available(f"Gloo of torch {version('torch')}")

    def open(self, world: World, settings: Settings) -> None:
        """Imports torch and forms its default group over a store that rank 0 opens on a free port."""
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns of every address without a name
        self._chosen = os.environ.setdefault(_INTERFACE, interface_with(world.me.address))
        torch = self._torch = load_torch()
        self.rank, self.ranks = world.rank, world.size
        torch.set_num_threads(1)
        self.look_for_gpus(world, lambda: no_cuda_build(torch))
        require_one_family("gloo", world, self._chosen)
        self._store = join("gloo", world, settings)

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> TorchBinding:
        """Tensors over the buffers."""
        return TorchBinding(self._torch, buffers, group, slot)

    def bind(self, operation: Operation, cell: Cell, group: Group, buffers: AnyBuffers) -> Program:
        """On a GPU a call returns before the data is there: an iteration ends when the GPU has it."""
        program = super().bind(operation, cell, group, buffers)
        if self._gpu is None or cell.device == "cpu":
            return program
        settle = PythonCall("synchronize", partial(self._torch.cuda.synchronize, self._gpu.index))
        return replace(program, slots=tuple((*slot, settle) for slot in program.slots))

    def supports(self, operation: Operation, cell: Cell) -> Reason | None:
        """Everything the steps can say, but for the types that Gloo does not reduce."""
        return f"gloo reduces no {cell.dtype.name} tensors" if operation.reduces and cell.dtype.name in _UNREDUCED else None

    def sync(self, group: Group) -> Program | None:
        """None: Gloo's barrier leaves ranks far apart, the shared-memory one of the room timing does not."""
        return None

    def versions(self) -> Mapping[str, str]:
        """torch, and the interface that Gloo was told to use."""
        return {"torch": self._torch.__version__, "gloo_interface": self._chosen}
