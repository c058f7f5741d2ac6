"""One-sided MPI: memory that rank 1 of a pair shows in a window, and what rank 0 needs to reach it.

The window is MPI_Win_allocate's, as in OSU's benchmarks: the library chooses memory that it reaches best, inside a host shared memory.
Both ranks hold MPI_Win_lock_all from its making to its end, so that no timed call opens an epoch. Rank 0's own buffers lie in ordinary
memory. What rank 1 itself writes and reads there it puts in order with MPI_Win_sync (MPI 4.1, 12.5.4).
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.backends.group import Group
from collbench.backends.memory import Buffers, Memory
from collbench.backends.mpi_binding import MpiBinding
from collbench.operations.cell import Cell
from collbench.operations.data import Extent, Mismatch, bytes_needed, grows, stride_of
from collbench.operations.groups import groups_of
from collbench.operations.operation import Operation, Place, Reason
from collbench.units import format_bytes

_SHARED = "/dev/shm"  # where MPICH and Open MPI have the windows of a host


class Window:
    """The window of a pair, empty until it is `shown`; its communicator has these two ranks."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi, self.comm = mpi, comm
        self.handle: Any = None
        self.memory = np.empty(0, np.uint8)

    def show(self, n_bytes: int) -> None:
        """Makes the window, with so many bytes of this rank's in it. Both ranks call. Raises MemoryError."""
        try:
            self.handle = self._mpi.Win.Allocate(n_bytes, 1, comm=self.comm)
            self.handle.Lock_all()
            self.comm.Barrier()  # Open MPI's osc/rdma still asks rank 0 while rank 1 is in there: nobody leaves MPI before
        except self._mpi.Exception as error:
            raise MemoryError(f"no window of {format_bytes(n_bytes)}: {error}") from error
        self.memory = np.frombuffer(self.handle.tomemory(), np.uint8) if n_bytes else self.memory

    def sync(self) -> None:
        """Puts this rank's own reads and writes of the window in order with those of the other one."""
        self.handle.Sync()

    def free(self) -> None:
        """Ends the window and the communicator. Both ranks call."""
        self.memory = np.empty(0, np.uint8)  # the memory itself goes with the window
        if self.handle is not None:
            self.handle.Unlock_all()
            self.handle.Free()
        self.comm.Free()


class _Shown:
    """Rank 1's memory."""

    page_bytes = 0  # the library's own affair

    def __init__(self, window: Window, bytes_per_slot: int, slots: int) -> None:
        self._window, self._length, self._stride = window, bytes_per_slot, stride_of(bytes_per_slot, slots, "cpu")

    def slot(self, index: int) -> NDArray[np.uint8]:
        """The bytes of one slot."""
        start = index * self._stride
        return self._window.memory[start : start + self._length]


class WindowBuffers(Buffers):
    """Rank 0's buffers in ordinary memory, rank 1's in the window."""

    def __init__(self, operation: Operation, cell: Cell, group: Group, slots: int) -> None:
        self._window: Window = group.handle
        super().__init__(operation, cell, group, slots)

    def _block(self, bytes_per_slot: int) -> Memory:
        shows = self.places[0].rank == 1
        self._window.show(stride_of(bytes_per_slot, self.slots, "cpu") * self.slots if shows else 0)
        return _Shown(self._window, bytes_per_slot, self.slots) if shows else super()._block(bytes_per_slot)

    def there(self, slot: int) -> int:
        """Where rank 1's elements of a slot lie in the window, in bytes: those that arrive, else those that are fetched."""
        place, width = replace(self.places[0], rank=1), self.cell.dtype.size
        extent = Extent.of(self.operation, place)
        at = extent.recv_at if extent.recv else extent.send_at
        return slot * stride_of(extent.total * width, self.slots, "cpu") + at * width

    def fill(self, slot: int, for_check: bool) -> None:
        """As everywhere; where it reduces, rank 1's own elements lie where rank 0's go. Timed sums run on zeros and products on ones."""
        super().fill(slot, for_check)
        if self.operation.reduces:
            self._begin(self.places[0], slot, for_check)
        self._window.sync()

    def _begin(self, place: Place, slot: int, for_check: bool) -> None:
        send = self.send(0, slot)
        if not for_check and grows(place.cell.placed(in_place=True)):
            send[:] = 1 if place.cell.redop == "prod" else 0
        if place.rank == 1:
            self.recv(0, slot)[:] = send

    def check(self, slot: int) -> list[Mismatch | None]:
        """What is wrong with the received elements in a slot, or None."""
        self._window.sync()
        return super().check(slot)


class WindowBinding(MpiBinding):
    """x as the "mpi" steps of one-sided operations see it."""

    def __init__(self, mpi: Any, library: ctypes.CDLL, buffers: WindowBuffers, group: Group, slot: int) -> None:
        super().__init__(mpi, library, buffers, replace(group, handle=group.handle.comm), slot)
        self.window, self.there = mpi._handleof(group.handle.handle), buffers.there(slot)


def windowed(mpi: Any, both: Group) -> Group:
    """A pair with a communicator and a window of its own. Only these two ranks call."""
    world = mpi.COMM_WORLD
    comm = world.Create_group(world.Get_group().Incl(list(both.ranks)))
    return Group(both.ranks, both.driven, Window(mpi, comm))


def no_window(operation: Operation, cell: Cell, hosts: Sequence[str], rank: int) -> Reason | None:
    """Why there can be no window, or None: asked before one is made, where MPICH would be killed and Open MPI wait for ever.

    hosts: of each rank of the job; rank: this one.
    """
    if cell.device != "cpu":
        return f"one-sided operations are measured on the host's memory, not on {cell.device}"
    inside = sum(hosts[a] == hosts[b] == hosts[rank] for a, b in groups_of(operation, cell, len(hosts)))
    need, free = inside * bytes_needed(operation, cell, 2), _free()
    if free is None or need <= free:
        return None
    what = f"{'a window takes' if inside == 1 else f'{inside} windows take'} {format_bytes(need)} of {_SHARED}"
    return f"{what}, where {format_bytes(free)} is free: enlarge it (docker run --shm-size), or choose smaller sizes"


def _free() -> int | None:
    try:
        return shutil.disk_usage(_SHARED).free
    except OSError:
        return None
