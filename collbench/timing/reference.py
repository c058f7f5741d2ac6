"""Measures what a host's memory and loopback can do, with all its ranks at it at once: the references of the room peak."""

from __future__ import annotations

import ctypes
import socket
import threading
import time
from collections.abc import Sequence

import numpy as np

from collbench.backends.clock import MonotonicClock
from collbench.backends.group import Group
from collbench.backends.memory import Buffers
from collbench.errors import WaitExpired
from collbench.operations.cell import Cell
from collbench.operations.layout import slots_for
from collbench.operations.operation import Block, Operation
from collbench.operations.program import Call, NativeCall, Program, PythonCall
from collbench.peak.host import HostRates
from collbench.timing.loop import Loop, Timed
from collbench.timing.native import address, library
from collbench.world.world import World

_MOST_S = 0.02  # spent on one reference at one size
_STREAM_S = 0.05
_CHUNK = 1 << 20
# A reference moves one buffer into another of the same size, as a send into a receive buffer.
# The loops of reference.c are few: what has none of its own is summed as a type that takes a core as long per byte.
_SUMMED_AS = {
    "float16": ("float32", 4), "bfloat16": ("float32", 4), "float8_e4m3fn": ("uint8", 1), "float8_e5m2": ("uint8", 1),
    "uint32": ("int32", 4), "uint64": ("int64", 8),
}  # fmt: skip
_REFERENCE = Operation("reference", lambda n: 1.0, lambda x: [Block([x.rank], 0, x.count)], {})


def measure_memory(world: World, cells: Sequence[Cell], with_sum: bool, share: float) -> HostRates:
    """Copy (and sum) rates at every size of `cells`, this rank's own while all ranks of the world are at it.

    `share` bounds the seconds per size. Rank 0's host speaks for all: the slowest rank of it counts.
    """
    copies, sums = {}, {}
    for cell in cells:
        copies[cell.size_bytes] = _rate(world, cell, "copy", share)
        if with_sum:
            sums[cell.size_bytes] = _rate(world, cell, "sum", share)
    return HostRates(_slowest(world, copies), _slowest(world, sums))


def _slowest(world: World, rates: dict[int, float]) -> dict[int, float]:
    everyone = world.agree(list(rates.values()), "measuring the memory")
    return dict(zip(rates, np.min(everyone, axis=0).tolist(), strict=True)) if rates else {}


def _rate(world: World, cell: Cell, kind: str, share: float) -> float:
    alone = Group((world.rank,), (0,))
    buffers = Buffers(_REFERENCE, cell, alone, slots_for(cell))
    program = Program(tuple((_call(kind, buffers, slot),) for slot in range(buffers.slots)), keep=buffers)
    loop = Loop(Timed(program, None, MonotonicClock(), ctypes.c_int64()))
    world.agree(None, "measuring the memory")
    once = max(float(loop.run(2)[0].min()), 1e-9)
    batch = max(1, int(1e-5 / once))
    n = int(min(max(min(_MOST_S, share) / (once * batch), 3), 200))
    return cell.size_bytes / max(float(np.median(loop.run(n, batch))) / batch, 1e-9)


def _call(kind: str, buffers: Buffers, slot: int) -> Call:
    to, from_ = buffers.recv(0, slot), buffers.send(0, slot)
    if library() is None:
        return PythonCall(kind, (lambda: np.copyto(to, from_)) if kind == "copy" else (lambda: np.add(to, from_, out=to)))
    if kind == "copy":
        return NativeCall(kind, address("collbench_copy"), (to.ctypes.data, from_.ctypes.data, from_.nbytes))
    # 16-bit floats are summed as float32 of the same bytes: a C compiler without them must still build the loop.
    dtype = buffers.cell.dtype
    name, width = _SUMMED_AS.get(dtype.name, (dtype.name, dtype.size))
    return NativeCall(kind, address(f"collbench_sum_{name}"), (to.ctypes.data, from_.ctypes.data, from_.nbytes // width))


def measure_streams(world: World) -> tuple[float | None, float | None]:
    """(one way, both ways): bytes per second of a loopback TCP stream to the next rank; None on a host with one rank."""
    if world.size < 2 or len(world.hosts) > 1:
        return None, None
    receiver, sender = _connect_ring(world)
    with receiver, sender:
        gives, takes = world.rank % 2 == 0 and world.rank + 1 < world.size, world.rank % 2 == 1  # of an odd number the last one rests
        one = _stream(world, sender if gives else None, receiver if takes else None)
        both = _stream(world, sender, receiver)
    return one, both


def _connect_ring(world: World) -> tuple[socket.socket, socket.socket]:
    """(from the rank before, to the next rank), on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(world.timeout_s)
        ports = world.agree(listener.getsockname()[1], "connecting loopback streams")
        sender = socket.create_connection(("127.0.0.1", ports[(world.rank + 1) % world.size]), timeout=world.timeout_s)
        receiver, _ = listener.accept()
    receiver.settimeout(world.timeout_s)
    return receiver, sender


def _stream(world: World, sender: socket.socket | None, receiver: socket.socket | None) -> float:
    """Sends for a while and counts what arrives; the slowest receiver's rate."""
    rates: list[float] = []
    thread = threading.Thread(target=lambda: rates.append(_drain(receiver)) if receiver else None)
    world.agree(None, "measuring loopback TCP")
    thread.start()
    if sender:
        _pour(sender)
    thread.join(world.timeout_s)
    if thread.is_alive():
        raise WaitExpired(f"measuring loopback TCP: nothing arrived within {world.timeout_s:g} s")
    found = world.agree(rates[0] if rates else None, "measuring loopback TCP")
    return min(rate for rate in found if rate is not None)


def _pour(sender: socket.socket) -> None:
    """Chunks for the time given; a last one marked, so that the stream can be used again."""
    chunk = bytearray(_CHUNK)
    end = time.monotonic() + _STREAM_S
    while time.monotonic() < end:
        sender.sendall(chunk)
    chunk[-1] = 1
    sender.sendall(chunk)


def _drain(receiver: socket.socket) -> float:
    """Bytes per second from the first to the marked last chunk."""
    chunk, total, start = bytearray(_CHUNK), 0, 0.0
    while True:
        view = memoryview(chunk)
        while view:
            view = view[receiver.recv_into(view) or len(view) :]
        start = start or time.monotonic()
        total += _CHUNK
        if chunk[-1]:
            return (total - _CHUNK) / max(time.monotonic() - start, 1e-9)
