"""GPU memory of NCCL's own allocator, made known to a communicator: registered, or a symmetric window."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from collbench.backends.nccl.communicators import Communicators, grouped
from collbench.backends.nccl.library import NcclFailed, NcclLibrary
from collbench.backends.nccl.table import REGISTRATIONS, SYMMETRIC_FLAG
from collbench.errors import RunFailed
from collbench.units import format_size

if TYPE_CHECKING:
    from collbench.device.gpu import Gpu

_FORGET = {"registered": "ncclCommDeregister", "symmetric": "ncclCommWindowDeregister"}
# Both ways return success and no handle where they do nothing (register.cc, dev_runtime.cc).
_NOTHING_DONE = {
    "registered": "NCCL registers nothing here: GPUs that reach one another by copies only, or NCCL_LOCAL_REGISTER=0",
    "symmetric": "NCCL has no symmetric memory between these GPUs: it needs P2P between all of them, and NCCL_CUMEM_ENABLE not 0",
}


class NcclMemory:
    """Memory of ncclMemAlloc. Freed with its last reference, after every living communicator was made to forget it.

    address, n_bytes   as asked for; NCCL rounds up
    known              by communicator its handle of the memory, and the function that makes it forget
    """

    def __init__(self, library: NcclLibrary, communicators: Communicators, gpu: Gpu, n_bytes: int) -> None:
        place = ctypes.c_void_p()
        try:
            with gpu.use():
                library.call("ncclMemAlloc", ctypes.byref(place), ctypes.c_size_t(n_bytes))
        except NcclFailed as error:
            raise MemoryError(f"NCCL allocates no {format_size(n_bytes)} on GPU {gpu.index} ({gpu.name}): {error}") from error
        self.address, self.n_bytes = place.value or 0, n_bytes
        self.known: dict[int, tuple[int, str]] = {}
        end = weakref.finalize(self, _free, library, communicators, gpu, self.address, self.known)
        end.atexit = False  # the end of the process frees it, and CUDA may have gone before


def register(library: NcclLibrary, memories: Sequence[NcclMemory], comms: Sequence[int], kind: str) -> None:
    """Makes each memory known to the communicator of its rank, as "registered" or "symmetric" (then all ranks call).

    Raises NcclFailed where NCCL refuses, or does nothing.
    """
    function, handles = REGISTRATIONS[kind][0], [ctypes.c_void_p() for _ in memories]
    flags = (ctypes.c_int(SYMMETRIC_FLAG),) if kind == "symmetric" else ()
    with grouped(library):
        for memory, comm, handle in zip(memories, comms, handles, strict=True):
            size = ctypes.c_size_t(memory.n_bytes)
            library.call(function, ctypes.c_void_p(comm), ctypes.c_void_p(memory.address), size, ctypes.byref(handle), *flags)
    for memory, comm, handle in zip(memories, comms, handles, strict=True):
        if not handle.value:
            raise NcclFailed(_NOTHING_DONE[kind])
        memory.known[comm] = (handle.value, _FORGET[kind])


def forget(library: NcclLibrary, known: dict[int, tuple[int, str]], comms: Sequence[int]) -> None:
    """Makes these communicators forget a memory, as far as they know it."""
    for comm in [comm for comm in known if comm in comms]:
        handle, function = known.pop(comm)
        getattr(library.handle, function)(ctypes.c_void_p(comm), ctypes.c_void_p(handle))


def _free(library: NcclLibrary, communicators: Communicators, gpu: Gpu, address: int, known: dict[int, tuple[int, str]]) -> None:
    forget(library, known, communicators.alive)
    with suppress(RunFailed), gpu.use():  # of a GPU that has failed nothing can be freed
        library.handle.ncclMemFree(ctypes.c_void_p(address))
