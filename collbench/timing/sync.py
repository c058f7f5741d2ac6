"""The synchronisation before an isolated sample, for backends whose own leaves the ranks apart (Gloo).

Inside a host: a spin in shared memory. Between hosts: a dissemination over TCP_NODELAY sockets, busy-polled, by the first
rank of each host. Measured exit skew 0.04 µs in a host, against 50–100 µs of Gloo's barrier.
"""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Sequence

from collbench.errors import RunFailed, WaitExpired
from collbench.operations.program import NativeCall, Program
from collbench.timing.native import SHARED_BYTES, BarrierStruct, address, library
from collbench.timing.shared import shared_page
from collbench.world.world import World

_NUMBER_BYTES = 4
# Backends that need this barrier move data in a thread of their own beside the caller's. Where cores are too few for both, a
# rank that spins keeps another's thread from running for a whole time slice of 4 ms: there the ranks sleep instead.
_THREADS = 2


class HostSync:
    """A barrier of all ranks of the world as a native program. All ranks make it together; `close` frees it."""

    def __init__(self, world: World) -> None:
        mates = world.on_host()
        leader = mates[0].rank == world.rank
        self._map = shared_page(world, SHARED_BYTES)
        self._sockets = _between_hosts(world, leader)
        to, from_ = ([pair[side].fileno() for pair in self._sockets] for side in (0, 1))
        self._struct = BarrierStruct(
            shared=ctypes.addressof(ctypes.c_char.from_buffer(self._map)), ranks=len(mates), leader=leader,
            sleeps=_THREADS * len(mates) > world.cores_on(), rounds=len(self._sockets),
            to=(ctypes.c_int32 * len(to))(*to), from_=(ctypes.c_int32 * len(from_))(*from_),
        )  # fmt: skip

    def program(self) -> Program:
        """One call of collbench_sync."""
        call = NativeCall("collbench_sync", address("collbench_sync"), (ctypes.addressof(self._struct),))
        return Program(((call,),), keep=self, explain=os.strerror)

    def close(self) -> None:
        """Closes the sockets; the shared page goes with the process."""
        for to, from_ in self._sockets:
            to.close()
            from_.close()


def host_sync(world: World) -> HostSync | None:
    """A barrier of all ranks, or None where the native loop was not built at some rank."""
    lacking = world.first(None if library() else "no native loop", "making the barrier")
    return None if lacking else HostSync(world)


def _between_hosts(world: World, leader: bool) -> list[tuple[socket.socket, socket.socket]]:
    """Per round of the dissemination, the sockets (to the host 2^r further, from the host 2^r before); empty off the leaders."""
    hosts = world.hosts
    if len(hosts) == 1:
        return []
    listener = socket.create_server((world.me.address, 0)) if leader else None
    mine = (world.me.address, listener.getsockname()[1]) if listener else None
    places: Sequence[tuple[str, int] | None] = world.agree(mine, "connecting the barrier")
    if listener is None:
        return []
    leaders = [world.on_host(host)[0].rank for host in hosts]
    me = hosts.index(world.me.host)
    rounds = range((len(hosts) - 1).bit_length())
    outgoing = [_connect(places[leaders[(me + 2**r) % len(hosts)]], r, world.timeout_s) for r in rounds]
    incoming = _accept(listener, len(rounds), world.timeout_s)
    return [(outgoing[r], incoming[r]) for r in rounds]


def _connect(place: tuple[str, int] | None, number: int, timeout_s: float) -> socket.socket:
    if place is None:
        raise RunFailed("a host has no leader for the barrier between hosts")
    made = socket.create_connection((place[0], place[1]), timeout=timeout_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.sendall(number.to_bytes(_NUMBER_BYTES, "big"))
    made.setblocking(False)
    return made


def _accept(listener: socket.socket, n: int, timeout_s: float) -> dict[int, socket.socket]:
    """The n connections by the round number that each one says first."""
    found: dict[int, socket.socket] = {}
    end = time.monotonic() + timeout_s
    with listener:
        while len(found) < n:
            listener.settimeout(max(0.01, end - time.monotonic()))
            try:
                made, _ = listener.accept()
                made.settimeout(max(0.01, end - time.monotonic()))
                number = int.from_bytes(made.recv(_NUMBER_BYTES, socket.MSG_WAITALL), "big")
            except TimeoutError as error:
                raise WaitExpired(f"connecting the barrier: {n - len(found)} hosts did not connect within {timeout_s:g} s") from error
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setblocking(False)
            found[number] = made
    return found
