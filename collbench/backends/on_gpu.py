"""CUDA memory for libraries of the host, such as MPI's and torch's: one GPU a process, and buffers that such a library can be given."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from collbench.backends.backend import Unavailable
from collbench.backends.group import Group
from collbench.backends.host import HostBackend
from collbench.backends.memory import AnyBuffers
from collbench.backends.places import chosen_gpus
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.device.buffers import DeviceBuffers, Held
    from collbench.device.gpu import Gpu, Stream


def no_gpu() -> Unavailable | None:
    """Why this process can have no GPU, with the remedy, or None."""
    from collbench.device.present import why_unavailable

    found = why_unavailable(os.environ)
    return Unavailable(*found) if found else None


class OneGpu:
    """The GPU of a rank, by its turn among the ranks of the host; claimed when the first cell needs it.

    bus_ids   every rank's GPU, by its PCI address; `sharing`: how many ranks of this host have this one
    """

    def __init__(self, world: World) -> None:
        """All ranks call."""
        from collbench.device.present import identities

        found = identities()
        (self.index,) = chosen_gpus(world.info.local_rank, world.info.local_ranks, 1, len(found), sharing=True)
        mine = found[self.index].bus_id
        self.bus_ids = tuple(world.agree(mine, "telling which GPU each rank has"))
        self.sharing = sum(self.bus_ids[member.rank] == mine for member in world.on_host())
        self._claimed: tuple[Gpu, Stream] | None = None

    def claimed(self) -> tuple[Gpu, Stream]:
        """The GPU and the stream of our work. Raises UsageError for a GPU that cannot be used, RunFailed for a blind checker."""
        if self._claimed is None:
            from collbench.device.buffers import prove
            from collbench.device.gpu import Gpu

            gpu = Gpu(self.index)
            stream = gpu.stream()
            prove(gpu, stream)
            self._claimed = gpu, stream
        return self._claimed

    def free_bytes(self) -> int:
        """What each of the ranks that share the GPU can still allocate."""
        return self.claimed()[0].free_bytes() // self.sharing

    def buffers(self, operation: Operation, cell: Cell, group: Group, slots: int, allocate: Callable[[Gpu, int], Held]) -> DeviceBuffers:
        """Buffers in the memory that `allocate` gives. Raises MemoryError."""
        from collbench.device.buffers import DeviceBuffers

        gpu, stream = self.claimed()
        return DeviceBuffers(operation, cell, group, slots, [gpu], [stream], allocate)


class HostOrGpuBackend(HostBackend):
    """A backend on host memory, whose library may take the memory of one GPU per process, too: told in `devices` and `gpus`."""

    _gpu: OneGpu | None = None

    def look_for_gpus(self, world: World, refusal: Callable[[], str | None]) -> None:
        """Takes a GPU where every rank has one and a library that takes its memory; `no_cuda` says why not. All ranks call.

        refusal: why the library takes no such memory; asked only where there is a GPU.
        """
        none = no_gpu()
        missing = world.first(str(none) if none else refusal(), f"opening {self.name}: looking for GPUs")
        if missing:
            self.no_cuda = f"{self.name} has no GPU here: {missing}"
            return
        self._gpu = OneGpu(world)
        self.devices, self.gpus = frozenset({"cpu", "cuda"}), self._gpu.bus_ids

    def gpu_memory(self, gpu: Gpu, n_bytes: int) -> Held:
        """Memory of a GPU as the library's users have it: CUDA's own, unless a library has an allocator. Raises MemoryError."""
        return gpu.allocate(n_bytes)

    def allocate(self, operation: Operation, cell: Cell, group: Group, slots: int) -> AnyBuffers:
        """Memory of the host or of the GPU. Raises MemoryError."""
        if self._gpu is None or cell.device == "cpu":
            return super().allocate(operation, cell, group, slots)
        return self._gpu.buffers(operation, cell, group, slots, self.gpu_memory)

    def free_bytes(self, cell: Cell) -> int | None:
        """The GPU's, or the host's memory."""
        return self._gpu.free_bytes() if self._gpu and cell.device == "cuda" else None
