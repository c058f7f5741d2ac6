"""Where to meet when only MPI knows: rank 0's address and a fresh token, broadcast over the communicator itself."""

from __future__ import annotations

import os
import secrets

import mpi4py

from collbench.errors import RunFailed
from collbench.launch.info import LaunchInfo
from collbench.launch.mpi_library import initialise
from collbench.launch.pairing import mpi_mismatch, size_disagrees
from collbench.world.addresses import own_address


def meeting_of_rank_0(info: LaunchInfo) -> tuple[str, str]:
    """(meeting, token). Starts MPI with thread level single. Raises RunFailed when MPI and launcher disagree, before MPI_Init."""
    mpi4py.rc(initialize=False, finalize=False, thread_level="single")
    from mpi4py import MPI

    mismatch = mpi_mismatch(MPI.Get_library_version(), info, os.environ)
    if mismatch:
        raise RunFailed(f"{mismatch}; or set MASTER_ADDR to rank 0's host, so that the ranks can meet without MPI")
    initialise(MPI)
    disagrees = size_disagrees(MPI.COMM_WORLD.Get_size(), info)
    if disagrees:
        raise RunFailed(disagrees)
    meeting, token = MPI.COMM_WORLD.bcast((f"tcp://{own_address()}", secrets.token_hex(16)), root=0)
    return str(meeting), str(token)
