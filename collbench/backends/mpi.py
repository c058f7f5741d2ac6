"""MPI on host memory, and on CUDA memory where the library says it takes it: its functions called by pointer. Never imports torch."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from collbench.backends.backend import Available, Settings, Unavailable
from collbench.backends.group import Group
from collbench.backends.memory import AnyBuffers
from collbench.backends.mpi_binding import MpiBinding, library_name, misfit
from collbench.backends.mpi_cuda import why_not_cuda
from collbench.backends.mpi_window import Window, WindowBinding, WindowBuffers, no_window, windowed
from collbench.backends.on_gpu import HostOrGpuBackend
from collbench.errors import RunFailed
from collbench.launch.mpi import finalise, initialise, mpi_mismatch, size_disagrees
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import NativeCall, Program
from collbench.operations.registry import operations

if TYPE_CHECKING:
    from collbench.control.world import World


def load_mpi() -> Any:
    """mpi4py's MPI module, not initialised, thread level single as in C benchmarks (multiple costs up to 6.4× at 8 B).

    Raises RunFailed naming the extra that brings it.
    """
    import mpi4py

    mpi4py.rc(initialize=False, finalize=False, thread_level="single")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RunFailed(f"mpi4py finds no MPI library ({error}): pip install 'collbench[mpich]', or load your site's MPI module") from error
    return MPI


class MpiBackend(HostOrGpuBackend):
    """The MPI library of this process."""

    name, api = "mpi", "mpi"
    local_path = "memory"
    passes_messages = True
    _rings: dict[tuple[int, ...], Any]
    _hosts: Sequence[str] = ()

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Whether mpi4py and a library are there; loads the library, does not initialise it."""
        if find_spec("mpi4py") is None:
            return Unavailable(
                "mpi4py is not installed", "pip install 'collbench[mpich]' (brings its own MPI) or 'collbench[mpi]' (your site's)"
            )
        try:
            return Available(library_name(load_mpi()))
        except RunFailed as error:
            return Unavailable(str(error), "pip install 'collbench[mpich]'")

    def open(self, world: World, settings: Settings) -> None:
        """MPI_Init, but only where the launcher started a communicator of all ranks. Raises RunFailed with the remedy."""
        self._mpi = mpi = load_mpi()
        mismatch = mpi_mismatch(mpi.Get_library_version(), world.info, os.environ)
        if mismatch:
            raise RunFailed(mismatch)
        initialise(mpi)
        disagrees = size_disagrees(mpi.COMM_WORLD.Get_size(), world.info)
        if disagrees:
            raise RunFailed(disagrees)
        self._library = ctypes.CDLL(mpi.__file__)
        self.explain = mpi.Get_error_string
        self.rank, self.ranks, self._rings = world.rank, world.size, {}
        self._hosts = [member.host for member in world.members]
        self.look_for_gpus(world, lambda: why_not_cuda(self._library, library_name(mpi)))

    def communicator(self, ranks: Sequence[int]) -> Any:
        """COMM_WORLD for all ranks, else a communicator that only its members make."""
        world = self._mpi.COMM_WORLD
        if len(ranks) == self.ranks or self.rank not in ranks:
            return world
        return world.Create_group(world.Get_group().Incl(list(ranks)))

    def pair(self, whole: Group | None, ranks: Sequence[int], cell: Cell) -> Group | None:
        """The two within the communicator of all; for one-sided operations with one of their own, and a window that `allocate` makes."""
        both = super().pair(whole, ranks, cell)
        return windowed(self._mpi, both) if both and operations()[cell.operation].one_sided else both

    def release(self, group: Group) -> None:
        """Frees a pair's window and communicator."""
        if isinstance(group.handle, Window):
            group.handle.free()

    def allocate(self, operation: Operation, cell: Cell, group: Group, slots: int) -> AnyBuffers:
        """Memory of the host or of the GPU, one-sided the window's. All ranks of the group call: windows and rings are made here."""
        if operation.one_sided:
            return WindowBuffers(operation, cell, group, slots)
        if operation.neighbours:
            self._ring(group)
        return super().allocate(operation, cell, group, slots)

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> MpiBinding:
        """Addresses and handles."""
        if isinstance(buffers, WindowBuffers):
            return WindowBinding(self._mpi, self._library, buffers, group, slot)
        group = replace(group, handle=self._ring(group)) if buffers.operation.neighbours else group
        return MpiBinding(self._mpi, self._library, buffers, group, slot)

    def _ring(self, group: Group) -> Any:
        """The group's periodic Cartesian communicator of one dimension, its ranks in their order; made once, by all of them together."""
        if group.ranks not in self._rings:
            self._rings[group.ranks] = group.handle.Create_cart([group.n], periods=[True], reorder=False)
        return self._rings[group.ranks]

    def supports(self, operation: Operation, cell: Cell) -> Reason | None:
        """What the library has no handle or function for; one-sided also what its windows cannot be."""
        refused = misfit(self._mpi, self._library, operation, cell, max(self.ranks, 1))
        return refused or (no_window(operation, cell, self._hosts, self.rank) if operation.one_sided else None)

    def sync(self, group: Group) -> Program | None:
        """MPI_Barrier on the group."""
        pointer = ctypes.cast(self._library.MPI_Barrier, ctypes.c_void_p).value or 0
        call = NativeCall("MPI_Barrier", pointer, (self._mpi._handleof(group.handle),))
        return Program(((call,),), explain=self._mpi.Get_error_string)

    def abort(self, why: str) -> None:
        """MPI_Abort, so that the launcher ends every rank."""
        if self._mpi.Is_initialized() and not self._mpi.Is_finalized():
            self._mpi.COMM_WORLD.Abort(4)

    def versions(self) -> Mapping[str, str]:
        """The library, the thread level it gave, mpi4py."""
        import mpi4py

        names = ("single", "funneled", "serialized", "multiple")
        levels = {getattr(self._mpi, f"THREAD_{name.upper()}"): name for name in names}
        about = {"mpi": library_name(self._mpi), "mpi4py": mpi4py.__version__}
        return about | {"mpi_thread_level": levels.get(self._mpi.Query_thread(), "unknown")}

    def close(self) -> None:
        """MPI_Finalize."""
        finalise(self._mpi)
