"""Where to meet when only MPI knows: rank 0's address and a fresh token, broadcast over the communicator itself."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import replace

import mpi4py

from collbench.addresses import LOOPBACK, is_loopback, own_addresses, resolve, route_to
from collbench.errors import RunFailed, UsageError
from collbench.launch import mpi
from collbench.launch.info import LaunchInfo, meeting_at
from collbench.launch.mpi import mpi_mismatch, size_disagrees


def with_meeting(info: LaunchInfo) -> LaunchInfo:
    """Return the launch with rank 0's address and the token of its secret. A call of all ranks; starts MPI with thread level single.

    Raises RunFailed where MPI and launcher disagree, before MPI_Init; UsageError where rank 0's host has no address that all hosts reach.
    """
    mpi4py.rc(initialize=False, finalize=False, thread_level="single")
    from mpi4py import MPI

    mismatch = mpi_mismatch(MPI.Get_library_version(), info, os.environ)
    if mismatch:
        raise RunFailed(f"{mismatch}; or set MASTER_ADDR to rank 0's host, so that the ranks can meet without MPI")
    mpi.initialise(MPI)
    disagrees = size_disagrees(MPI.COMM_WORLD.Get_size(), info)
    if disagrees:
        raise RunFailed(disagrees)
    world, here = MPI.COMM_WORLD, socket.gethostname()
    host, addresses, token = world.bcast((here, _candidates(here), secrets.token_hex(16)), root=0)
    reached = world.allgather(None if here == host else [address for address in addresses if _reaches(address)])
    away = [each for each in reached if each is not None]
    common = [address for address in addresses if all(address in each for each in away)]
    if away and not common:
        raise UsageError(
            f"rank 0's host {host} has no address that all other hosts can reach (it has {', '.join(addresses) or 'only loopback'}): "
            "set MASTER_ADDR to its address in the network between the hosts, and pass it to all ranks"
        )
    return replace(info, meeting=meeting_at(common[0] if common else LOOPBACK), token=str(token), secret="token")


def finalise() -> None:
    """Finalize MPI, for a command that ends without a communicator of its own."""
    from mpi4py import MPI

    mpi.finalise(MPI)


def _candidates(name: str) -> list[str]:
    """Return this host's addresses, that of its name first, then those on the way to other networks; no loopback ones."""
    own = own_addresses()
    outwards = (route_to("192.0.2.1"), route_to("2001:db8::1"))  # documentation networks (RFC 5737, RFC 3849): nothing is sent
    likely = [address for address in (*resolve(name), *outwards) if address in own]
    return list(dict.fromkeys([*likely, *own]))


def _reaches(address: str) -> bool:
    """Whether this host has a route to an address of another host; its own bridges may have the same address."""
    own = route_to(address)
    return own is not None and own != address and not is_loopback(own)
