"""Gloo through torch.distributed, on host memory: what training on CPUs sees."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from collbench.backends.backend import Available, Settings, Unavailable
from collbench.backends.group import Group
from collbench.backends.host import HostBackend
from collbench.backends.memory import Buffers
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import Program, PythonCall
from collbench.topology.interfaces import interface_with

if TYPE_CHECKING:
    from collbench.world.world import World

_INTERFACE = "GLOO_SOCKET_IFNAME"
_LATER = 2  # Gloo gives up later than the watchdog, which can say who is missing; Gloo cannot
_REDOPS = {"prod": "PRODUCT"}  # the others have the names they have here


class TorchBinding:
    """x as the operations' "torch" steps see it: tensors instead of addresses, functions of torch.distributed by name."""

    def __init__(self, torch: Any, buffers: Buffers, group: Group, slot: int) -> None:
        place, self.cell = buffers.places[0], buffers.cell
        self._torch, self._group, self._works = torch, group, list[Any]()
        self.rank, self.n, self.count, self.root = place.rank, group.n, place.count, place.root
        self.send, self.recv = self._tensor(buffers.send(0, slot)), self._tensor(buffers.recv(0, slot))
        self.scratch = torch.zeros(1, dtype=torch.uint8)
        self.type = self.byte = None
        self.redop = getattr(torch.distributed.ReduceOp, _REDOPS.get(self.cell.redop, self.cell.redop.upper())) if self.cell.redop else None
        self.comm = group.handle

    def _tensor(self, elements: Any) -> Any:
        import numpy as np

        as_bytes = self._torch.from_numpy(elements.view(np.uint8))
        return as_bytes.view(getattr(self._torch, self.cell.dtype.name))

    def call(self, name: str, *words: Any, **named: Any) -> PythonCall:
        """A function of torch.distributed; it blocks until the operation is done."""
        return PythonCall(name, partial(getattr(self._torch.distributed, name), *words, **named))

    def post(self, name: str, *words: Any, **named: Any) -> PythonCall:
        """A function that returns a Work; `waitall` waits for it."""
        function, works = partial(getattr(self._torch.distributed, name), *words, **named), self._works
        return PythonCall(name, lambda: works.append(function()))

    def waitall(self) -> PythonCall:
        """Waits for every Work posted."""
        works = self._works

        def wait() -> None:
            for work in works:
                work.wait()
            works.clear()

        return PythonCall("wait", wait)

    def peer(self, rank: int) -> int:
        """torch names ranks by their rank in the job."""
        return self._group.ranks[rank]

    def unless_in_place(self, address: Any) -> Any:
        """torch has no in-place token."""
        return address

    def has(self, name: str) -> bool:
        """Whether torch.distributed has a function `name`."""
        return hasattr(self._torch.distributed, name)


class GlooBackend(HostBackend):
    """torch.distributed with Gloo."""

    name, api = "gloo", "torch"
    local_path = "loopback"

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
        import torch
        import torch.distributed

        dist: Any = torch.distributed
        self._torch: Any = torch
        self.rank, self.ranks = world.rank, world.size
        torch.set_num_threads(1)
        timeout = timedelta(seconds=_LATER * settings.timeout_s)
        host, port = world.members[0].address, 0
        if world.rank == 0:
            self._store = dist.TCPStore(host, 0, None, is_master=True, timeout=timeout, wait_for_workers=False)
            port = self._store.port
        port = world.decide(port, "opening gloo: the store's port")
        if world.rank:
            self._store = dist.TCPStore(host, port, None, is_master=False, timeout=timeout)
        dist.init_process_group("gloo", store=self._store, rank=world.rank, world_size=world.size, timeout=timeout)

    def communicator(self, ranks: Sequence[int]) -> Any:
        """The default group for all ranks, else a new one, which torch wants all ranks to make."""
        dist = self._torch.distributed
        return dist.group.WORLD if len(ranks) == self.ranks else dist.new_group(list(ranks))

    def binding(self, group: Group, buffers: Buffers, slot: int) -> TorchBinding:
        """Tensors over the buffers."""
        return TorchBinding(self._torch, buffers, group, slot)

    def supports(self, operation: Operation, cell: Cell) -> Reason | None:
        """Everything the steps can say."""
        return None

    def sync(self, group: Group) -> Program | None:
        """None: Gloo's barrier leaves ranks far apart, the shared-memory one of the room timing does not."""
        return None

    def versions(self) -> Mapping[str, str]:
        """torch, and the interface that Gloo was told to use."""
        return {"torch": self._torch.__version__, "gloo_interface": self._chosen}

    def close(self) -> None:
        """Leaves the process group."""
        if self._torch.distributed.is_initialized():
            self._torch.distributed.destroy_process_group()
