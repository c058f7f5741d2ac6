"""CUDA memory for libraries that know MPI's or torch's ways: one GPU a process, and buffers that such a library can be given."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from collbench.backends.group import Group
from collbench.backends.places import chosen_gpus
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation

if TYPE_CHECKING:
    from collbench.device.buffers import DeviceBuffers, Held
    from collbench.device.gpu import Gpu, Stream
    from collbench.world.world import World


def no_gpu() -> str | None:
    """Why this process can have no GPU, with the remedy, or None."""
    from collbench.device.cuda import why_unavailable

    found = why_unavailable(os.environ)
    return f"{found[0]}: {found[1]}" if found else None


class OneGpu:
    """The GPU of a rank, by its turn among the ranks of the host; claimed when the first cell needs it.

    bus_ids   every rank's GPU, by its PCI address; `sharing`: how many ranks of this host have this one
    """

    def __init__(self, world: World) -> None:
        """All ranks call."""
        from collbench.device.identity import identities

        found = identities()
        (self.index,) = chosen_gpus(world.info.local_rank, world.info.local_ranks, 1, len(found), sharing=True)
        mine = found[self.index].bus_id
        self.bus_ids = tuple(world.agree(mine, "telling which GPU each rank has"))
        self.sharing = sum(self.bus_ids[member.rank] == mine for member in world.on_host())
        self._claimed: tuple[Gpu, Stream] | None = None

    def claimed(self) -> tuple[Gpu, Stream]:
        """The GPU and the stream of our work. Raises UsageError for a GPU that cannot be used, RunFailed for a blind checker."""
        if self._claimed is None:
            from collbench.device.checker import prove
            from collbench.device.gpu import Gpu

            gpu = Gpu(self.index)
            stream = gpu.stream()
            prove(gpu, stream)
            self._claimed = gpu, stream
        return self._claimed

    def free_bytes(self) -> int:
        """What each of the ranks that share the GPU can still allocate."""
        return self.claimed()[0].free_bytes() // self.sharing

    def buffers(
        self, operation: Operation, cell: Cell, group: Group, slots: int, allocate: Callable[[Gpu, int], Held] | None = None
    ) -> DeviceBuffers:
        """Buffers in plain memory, or in what `allocate` gives. Raises MemoryError."""
        from collbench.device.buffers import DeviceBuffers
        from collbench.device.gpu import Gpu

        gpu, stream = self.claimed()
        return DeviceBuffers(operation, cell, group, slots, [gpu], [stream], allocate or Gpu.allocate)
