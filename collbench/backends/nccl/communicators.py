"""NCCL's communicators: made under a tuning, given up, and left in order."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from collbench.backends.backend import Tuning
from collbench.backends.nccl.library import NcclFailed, NcclLibrary, UniqueId

if TYPE_CHECKING:
    from collbench.device.gpu import Gpu

_OLD_DRIVER = "driver version is insufficient"


@contextmanager
def tuned(tuning: Tuning | None) -> Iterator[None]:
    """Inside, NCCL_ALGO and NCCL_PROTO say what the tuning asks for; NCCL reads them whenever it makes a communicator."""
    asked = {"NCCL_ALGO": tuning.algorithm, "NCCL_PROTO": tuning.protocol} if tuning else {}
    before = {name: os.environ.get(name) for name in asked}
    os.environ.update({name: value for name, value in asked.items() if value})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def grouped(library: NcclLibrary) -> Iterator[None]:
    """Calls of several communicators from one thread, which would wait for one another, go out together at the end."""
    library.call("ncclGroupStart")
    try:
        yield
    except BaseException:
        library.handle.ncclGroupEnd()  # the first error is the one to tell
        raise
    library.call("ncclGroupEnd")


class Communicators:
    """All communicators of this process, by address, in the order in which they were made."""

    def __init__(self, library: NcclLibrary) -> None:
        self._library = library
        self.alive: list[int] = []
        library.handle.ncclCommInitRank.argtypes = (ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int)

    def make(self, gpus: Sequence[Gpu], ranks: Sequence[int], n: int, unique_id: str) -> tuple[int, ...]:
        """One of n ranks for each of `ranks`, on its GPU. All n ranks call. Raises NcclFailed with the remedy."""
        made, identity = [ctypes.c_void_p() for _ in ranks], UniqueId.from_buffer_copy(bytes.fromhex(unique_id))
        try:
            with grouped(self._library):
                for gpu, rank, comm in zip(gpus, ranks, made, strict=True):
                    with gpu.use():
                        self._library.call("ncclCommInitRank", ctypes.addressof(comm), n, identity, rank)
        except NcclFailed as error:
            raise NcclFailed(f"{error}: {_remedy(str(error))}", error.code) from error
        comms = tuple(comm.value or 0 for comm in made)
        self.alive += comms
        return comms

    def abort(self, comms: Sequence[int]) -> None:
        """Ends whatever is pending on these; they are of no use afterwards.

        All are told to give up before any is freed, as a group does: freeing memory may wait for the whole GPU, on which another of
        them hangs (https://github.com/pytorch/pytorch/issues/119797).
        """
        with suppress(NcclFailed), grouped(self._library):
            for comm in self._taken(comms):
                self._library.handle.ncclCommAbort(ctypes.c_void_p(comm))

    def destroy(self, comms: Sequence[int]) -> None:
        """Frees these, as far as they are alive."""
        for comm in self._taken(comms):
            self._library.handle.ncclCommDestroy(ctypes.c_void_p(comm))

    def _taken(self, comms: Sequence[int]) -> list[int]:
        taken = [comm for comm in comms if comm in self.alive]
        self.alive = [comm for comm in self.alive if comm not in taken]
        return taken


def _remedy(why: str) -> str:
    if _OLD_DRIVER in why:
        return "the driver is older than the CUDA this NCCL was built with: update it, or install the NCCL of its CUDA (nvidia-nccl-cu12)"
    return "run again with NCCL_DEBUG=INFO to see what it tried, and `collbench doctor` for what is wrong with the machine"
