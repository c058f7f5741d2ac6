"""The barrier before an isolated sample, for backends with a large start skew of their own (Gloo).

Inside a host the ranks spin in shared memory. Between hosts the first rank of each host runs a dissemination barrier
over TCP_NODELAY sockets, which it polls. Measured exit skew: 0.04 µs in a host, against 50–100 µs of Gloo's barrier.
"""

from __future__ import annotations

import ctypes
import hmac
import mmap
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from collbench.addresses import listen_at
from collbench.control.world import World
from collbench.errors import RunFailed, WaitExpired
from collbench.launch.shared_memory import shortage
from collbench.native.library import SHARED_BYTES, BarrierStruct, address, library
from collbench.operations.program import NativeCall, Program

T = TypeVar("T")

# Memory that the ranks of a host share, for the barrier before a sample and for the state probe.

_FOLDER = Path("/dev/shm")


def shared_page(world: World, size_bytes: int) -> mmap.mmap:
    """Return zeroed memory that the ranks of a host share. All ranks must call it. Its file in /dev/shm is removed before use.

    Raises RunFailed at all ranks if some host cannot share memory.
    """
    leader = world.on_host()[0].rank == world.rank
    name = _FOLDER / f"collbench-{secrets.token_hex(8)}"
    names = dict(world.allgather((world.me.host, str(name)) if leader else ("", ""), "sharing memory"))
    name = Path(names[world.me.host])
    try:
        _at_all_ranks(world, partial(name.write_bytes, bytes(size_bytes)) if leader else lambda: None)
        return _at_all_ranks(world, partial(_mapped, name, size_bytes))
    finally:
        if leader:
            with suppress(OSError):  # of a folder that is missing or not writable
                name.unlink()


def _mapped(name: Path, size_bytes: int) -> mmap.mmap:
    handle = os.open(name, os.O_RDWR)
    try:
        return mmap.mmap(handle, size_bytes)
    finally:
        os.close(handle)


def _at_all_ranks(world: World, step: Callable[[], T]) -> T:
    """Return the result of the step, which all ranks call, once all have it. Raises RunFailed at all ranks if it fails at one."""
    error_here = None
    try:
        result = step()
    except OSError as error:
        remedy = shortage() or f"check that they share {_FOLDER}"
        error_here = f"the ranks of {world.me.host} cannot share memory in {_FOLDER} ({error.strerror}): {remedy}"
    first_error = world.first_error(error_here, "sharing memory")
    if first_error:
        raise RunFailed(first_error)
    return result


# Tasks that run at the same time, each in its own thread.


def at_once(tasks: Sequence[Callable[[], T]], doing: str, patience_s: float | None = None) -> list[T]:
    """Run the tasks at the same time, each in a thread, and return their results in order.

    Raises the first error of any, WaitExpired if one has not ended within `patience_s`. `doing` names the work in
    errors.
    """
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(place: int) -> None:
        try:
            results[place] = tasks[place]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience_s)
    if errors:
        raise errors[0]
    if len(results) < len(tasks):
        raise WaitExpired(f"{doing}: {len(tasks) - len(results)} of {len(tasks)} threads did not end within {patience_s:g} s")
    return [results[place] for place in range(len(tasks))]


_KEY_BYTES = 16
_GREETING = struct.Struct(f"!{_KEY_BYTES}sI")  # key, round
_GREETING_S = 2.0  # for a connection that sends no data
# Backends that need this barrier move data in a separate thread. With too few cores for both threads, a spinning rank blocks another
# rank's thread for a whole time slice of 4 ms. Then the ranks sleep instead.
_THREADS = 2


class HostSync:
    """A barrier of all ranks of the world as a native program. All ranks make it together; `close` frees it."""

    def __init__(self, world: World) -> None:
        mates = world.on_host()
        leader = mates[0].rank == world.rank
        self._map = shared_page(world, SHARED_BYTES)
        self._sockets = _between_hosts(world, leader)
        to = [outgoing.fileno() for outgoing, _ in self._sockets]
        from_ = [incoming.fileno() for _, incoming in self._sockets]
        self._struct = BarrierStruct(
            shared=ctypes.addressof(ctypes.c_char.from_buffer(self._map)), ranks=len(mates), leader=leader,
            sleeps=_THREADS * len(mates) > world.cores_on(), rounds=len(self._sockets),
            to=(ctypes.c_int32 * len(to))(*to), from_=(ctypes.c_int32 * len(from_))(*from_),
        )  # fmt: skip

    def program(self) -> Program:
        """Return the program: one call of collbench_sync."""
        call = NativeCall("collbench_sync", address("collbench_sync"), (ctypes.addressof(self._struct),))
        return Program(((call,),), keep=self, explain=os.strerror)

    def close(self) -> None:
        """Close the sockets. The shared page is freed when the process ends."""
        for outgoing, incoming in self._sockets:
            outgoing.close()
            incoming.close()


def host_sync(world: World) -> HostSync | None:
    """Return a barrier of all ranks, or None if the native loop was not built at some rank. All ranks must call it."""
    lacking = world.first_error(None if library() else "no native loop", "making the barrier")
    return None if lacking else HostSync(world)


def _between_hosts(world: World, leader: bool) -> list[tuple[socket.socket, socket.socket]]:
    """Return for each dissemination round r the sockets (to the host 2^r further, from the host 2^r before); empty off the leaders."""
    hosts = world.hosts
    if len(hosts) == 1:
        return []
    key = secrets.token_bytes(_KEY_BYTES)
    listener = listen_at(world.me.address) if leader else None
    target = (world.me.address, listener.getsockname()[1], key.hex()) if listener else None
    targets: Sequence[tuple[str, int, str] | None] = world.allgather(target, "connecting the barrier")
    if listener is None:
        return []
    leaders = [world.on_host(host)[0].rank for host in hosts]
    me = hosts.index(world.me.host)
    rounds = range((len(hosts) - 1).bit_length())
    outgoing = [_connect(targets[leaders[(me + 2**r) % len(hosts)]], r, world.timeout_s) for r in rounds]
    incoming = _accept(listener, key, len(rounds), world.timeout_s)
    return [(outgoing[r], incoming[r]) for r in rounds]


def _connect(target: tuple[str, int, str] | None, number: int, timeout_s: float) -> socket.socket:
    if target is None:
        raise RunFailed("a host has no leader for the barrier between hosts")
    host, port, key = target
    try:
        connection = socket.create_connection((host, port), timeout=timeout_s)
        connection.sendall(_GREETING.pack(bytes.fromhex(key), number))
    except OSError as error:
        remedy = "check whether a firewall blocks TCP ports between these hosts"
        raise RunFailed(f"connecting the barrier: cannot connect to {host} port {port} ({error}); {remedy}") from error
    return _settled(connection)


def _accept(listener: socket.socket, key: bytes, n: int, timeout_s: float) -> dict[int, socket.socket]:
    """Return n connections by the round number in their greeting; connections without the key are closed."""
    connections: dict[int, socket.socket] = {}
    end = time.monotonic() + timeout_s
    with listener:
        while len(connections) < n:
            listener.settimeout(max(0.01, end - time.monotonic()))
            try:
                connection, _ = listener.accept()
            except TimeoutError as error:
                raise WaitExpired(f"connecting the barrier: {n - len(connections)} hosts did not connect within {timeout_s:g} s") from error
            number = _greeted(connection, key, min(end, time.monotonic() + _GREETING_S))
            if number is None or number in connections or number >= n:
                connection.close()
            else:
                connections[number] = _settled(connection)
    return connections


def _greeted(connection: socket.socket, key: bytes, end: float) -> int | None:
    """Return the round number that a new connection sends with the right key, else None."""
    connection.settimeout(max(0.01, end - time.monotonic()))
    try:
        greeting = connection.recv(_GREETING.size, socket.MSG_WAITALL)
    except OSError:
        return None
    if len(greeting) < _GREETING.size:
        return None
    sent, number = _GREETING.unpack(greeting)
    return int(number) if hmac.compare_digest(sent, key) else None


def _settled(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection
