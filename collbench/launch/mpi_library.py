"""MPI_Init and MPI_Finalize without Python's lock, which mpi4py holds meanwhile.

Both wait for the other ranks. As long as the lock is held no other thread of this process runs: none that tells the others what they wait
for, and none that keeps the deadline.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from collbench.errors import RunFailed

# Open MPI aborts the whole job as soon as another rank's connection closes, before anybody can say whose it was: it is to wait so many
# seconds, in which the ranks find out and end by themselves. Source: ompi_info --all, opal_abort_delay.
_OPEN_MPIS_PATIENCE = ("OMPI_MCA_opal_abort_delay", "5")


def initialise(mpi: Any) -> None:
    """MPI_Init_thread with thread level single, unless it was called already; `mpi` is mpi4py's module. Raises RunFailed.

    Errors of calls become codes, as mpi4py has it.
    """
    if mpi.Is_initialized():
        return
    os.environ.setdefault(*_OPEN_MPIS_PATIENCE)
    provided = ctypes.c_int()
    code = ctypes.CDLL(mpi.__file__).MPI_Init_thread(None, None, int(mpi.THREAD_SINGLE), ctypes.byref(provided))
    if code:
        raise RunFailed(f"MPI_Init_thread failed: {mpi.Get_error_string(code)}")
    for communicator in (mpi.COMM_SELF, mpi.COMM_WORLD):
        communicator.Set_errhandler(mpi.ERRORS_RETURN)


def finalise(mpi: Any) -> None:
    """MPI_Finalize, unless it was called already or MPI never began."""
    if mpi.Is_initialized() and not mpi.Is_finalized():
        ctypes.CDLL(mpi.__file__).MPI_Finalize()
