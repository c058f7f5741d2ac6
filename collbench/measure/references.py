"""Measure the rates of a host's memory and loopback, with all its ranks active at once. They are the measured
references.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from collbench.backends.backend import Group
from collbench.backends.clock import MonotonicClock
from collbench.backends.host import Buffers, MappedBlock
from collbench.control.world import World
from collbench.errors import WaitExpired
from collbench.machine.peak.ceiling import HostRates, Rate, agreed, settled
from collbench.measure.loop import Loop, Timed
from collbench.measure.sync import at_once
from collbench.native.library import SHARED_BYTES, BarrierStruct, address, library
from collbench.operations.case import Case
from collbench.operations.data import slots_for
from collbench.operations.operation import Block as operation_Block
from collbench.operations.operation import Operation
from collbench.operations.program import Call, NativeCall, Program, PythonCall
from collbench.stats.median import median

# The data that channels transfer and verify, so that lost, repeated or shifted bytes are detected.

PERIOD = 65521  # a prime, so that a shift by a round number does not repeat the pattern
PATTERN = (np.arange(PERIOD, dtype=np.uint32) * 40503 >> 7).astype(np.uint8) | 1  # never 0, the initial value of memory


def write_pattern(target: NDArray[np.uint8]) -> None:
    """Fill the target with repetitions of PATTERN."""
    whole = len(target) // PERIOD * PERIOD
    target[:whole].reshape(-1, PERIOD)[:] = PATTERN
    target[whole:] = PATTERN[: len(target) - whole]


def first_wrong(target: NDArray[np.uint8]) -> str | None:
    """Return how many bytes differ from the pattern and where the first one is; None when all are right."""
    whole = len(target) // PERIOD * PERIOD
    rows = target[:whole].reshape(-1, PERIOD)
    if all(np.array_equal(row, PATTERN) for row in rows) and np.array_equal(target[whole:], PATTERN[: len(target) - whole]):
        return None
    places = np.flatnonzero(target != np.resize(PATTERN, len(target)))
    return f"{len(places)} of {len(target)} bytes differ from those that were copied, the first at {places[0]}"


# The rate at which the CPUs of a host copy memory, with one bound thread on each, all at the same time; every byte is verified.

T = TypeVar("T")
_FEWEST, _MOST = 6, 300


@dataclass(frozen=True)
class CopyResult:
    """The result of a memory copy: seconds per copy of all threads together (of the slowest each time), and the bytes that one copy moves.

    wrong   how many bytes of the target differ from the source, and the first of them; None when none does
    """

    seconds: NDArray[np.float64]
    n_bytes: int
    wrong: str | None


def copy_memory(cpus: Sequence[int], n_bytes: int, seconds: float, patience_s: float) -> CopyResult:
    """Copy `n_bytes` repeatedly for about `seconds`, a share on each of these CPUs, and return the times.

    Each thread touches its memory first, so that it is on the CPU's NUMA node. Raises MemoryError, OSError for a CPU
    that this process may not use, and WaitExpired after `patience_s`.
    """
    share = max(n_bytes // len(cpus), 1)
    pairs = _everywhere(cpus, lambda place: (_filled(share), MappedBlock(share, 1)), patience_s)
    meeting = Meeting(len(cpus))
    loops = [Loop(Timed(_copying(*pair), meeting.program(place), MonotonicClock(), ctypes.c_int64())) for place, pair in enumerate(pairs)]
    tried = np.max(_everywhere(cpus, lambda place: loops[place].run(2)[0], patience_s), axis=0)
    n = repetitions(float(tried.min()), seconds)
    taken = _everywhere(cpus, lambda place: loops[place].run(n)[0], patience_s + seconds)
    wrong = _everywhere(cpus, lambda place: first_wrong(pairs[place][1].slot(0)), patience_s)
    return CopyResult(np.max(taken, axis=0), share * len(cpus), next((each for each in wrong if each), None))


def repetitions(once_s: float, seconds: float) -> int:
    """Return how often to repeat work that takes `once_s`, to fill `seconds`.

    It is at least 6 times, unless these take more than twice `seconds`.
    """
    fits = int(seconds / max(once_s, 1e-9))
    return min(max(fits, _FEWEST if 2 * fits >= _FEWEST else 1), _MOST)


@contextmanager
def bound(cpus: Sequence[int]) -> Iterator[None]:
    """Bind the calling thread to these CPUs, so that memory it touches first is near them. Raises OSError."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)


class Meeting:
    """A barrier of threads before every sample, in C if the native loop was built."""

    def __init__(self, threads: int) -> None:
        self._python = threading.Barrier(threads)
        self._page = ctypes.create_string_buffer(SHARED_BYTES)
        none = (ctypes.c_int32 * 0)()
        self._structs = [
            BarrierStruct(shared=ctypes.addressof(self._page), ranks=threads, leader=place == 0, sleeps=1, rounds=0, to=none, from_=none)
            for place in range(threads)
        ]

    def program(self, place: int) -> Program:
        """Return the call by which the thread number `place` enters the barrier."""
        if library() is None:
            return Program(((PythonCall("meet", lambda: self._python.wait(60)),),))
        call = NativeCall("collbench_sync", address("collbench_sync"), (ctypes.addressof(self._structs[place]),))
        return Program(((call,),), keep=self, explain=os.strerror)


def _filled(n_bytes: int) -> MappedBlock:
    block = MappedBlock(n_bytes, 1)
    write_pattern(block.slot(0))
    return block


def _copying(source: MappedBlock, target: MappedBlock) -> Program:
    from_, to = source.slot(0), target.slot(0)
    call: Call = PythonCall("copy", lambda: np.copyto(to, from_))
    if library() is not None:
        call = NativeCall("copy", address("collbench_copy"), (to.ctypes.data, from_.ctypes.data, from_.nbytes))
    return Program(((call,),), keep=(source, target))


def _everywhere(cpus: Sequence[int], task: Callable[[int], T], patience_s: float) -> list[T]:
    """Run task(place) on every CPU at once, and return the results. Raises the first error, WaitExpired after `patience_s`."""

    def run(place: int) -> T:
        os.sched_setaffinity(0, {cpus[place]})
        return task(place)

    return at_once([partial(run, place) for place in range(len(cpus))], "copying memory", patience_s)


_MOST_S = 0.01  # for one reference at one size in one round
_MOST_ROUNDS = 5
_STREAM_S = 0.05
_CHUNK = 1 << 20
# A reference moves one buffer into another of the same size, as a send into a receive buffer.
# reference.c has few loops. A type without its own is summed as one that needs the same time per byte.
_SUMMED_AS = {
    "float16": ("float32", 4), "bfloat16": ("float32", 4), "float8_e4m3fn": ("uint8", 1), "float8_e5m2": ("uint8", 1),
    "uint32": ("int32", 4), "uint64": ("int64", 8),
}  # fmt: skip
_REFERENCE = Operation("reference", lambda n: 1.0, lambda x: [operation_Block([x.rank], 0, x.count)], {})


def measure_memory(world: World, cases: Sequence[Case], with_sum: bool, share: float) -> HostRates:
    """Return copy (and sum) rates at every size of `cases`, measured by all ranks of the world at once.

    All sizes are measured one after the other in two rounds. Sizes with rounds that differ are repeated, up to three
    times. `share` limits the seconds per size and round. The rate is that of the slowest rank on rank 0's host.
    """
    kinds = ("copy", "sum") if with_sum else ("copy",)
    case_by_key = {(kind, case.size_bytes): case for case in cases for kind in kinds}
    rounds: dict[tuple[str, int], list[Rate]] = {key: [] for key in case_by_key}
    for _ in range(_MOST_ROUNDS):
        left = [key for key, known in rounds.items() if agreed(known) is None]
        if not left:
            break
        own = [_rate(world, case_by_key[key], key[0], share) for key in left]
        for key, rate in zip(left, _slowest(world, own, "measuring the memory"), strict=True):
            rounds[key].append(rate)
    rates = {key: settled(known) for key, known in rounds.items()}
    by_kind = {name: {size: rate for (kind, size), rate in rates.items() if kind == name} for name in ("copy", "sum")}
    return HostRates(by_kind["copy"], by_kind["sum"])


def _slowest(world: World, own: Sequence[Rate | None], doing: str) -> list[Rate]:
    """Return the lowest rate of any rank for each entry, the same at all ranks."""
    everyone = world.allgather([rate and [rate.value, rate.low, rate.high] for rate in own], doing)
    return [Rate(*min(rate for rate in rates if rate)) for rates in zip(*everyone, strict=True)]


def _rate(world: World, case: Case, kind: str, share: float) -> Rate:
    alone = Group((world.rank,), (0,))
    buffers = Buffers(_REFERENCE, case, alone, slots_for(case))
    program = Program(tuple((_call(kind, buffers, slot),) for slot in range(buffers.slots)), keep=buffers)
    loop = Loop(Timed(program, None, MonotonicClock(), ctypes.c_int64()))
    world.allgather(None, "measuring the memory")
    once = max(float(loop.run(2)[0].min()), 1e-9)
    batch = max(1, int(1e-5 / once))
    n = int(min(max(min(_MOST_S, share) / (once * batch), 3), 200))
    time = median(loop.run(n, batch).ravel())
    value, low, high = (
        case.size_bytes * batch / max(seconds, 1e-9) for seconds in (time.value, time.ci_high or time.value, time.ci_low or time.value)
    )
    return Rate(value, low, high)


def _call(kind: str, buffers: Buffers, slot: int) -> Call:
    to, from_ = buffers.recv(0, slot), buffers.send(0, slot)
    if library() is None:
        return PythonCall(kind, (lambda: np.copyto(to, from_)) if kind == "copy" else (lambda: np.add(to, from_, out=to)))
    if kind == "copy":
        return NativeCall(kind, address("collbench_copy"), (to.ctypes.data, from_.ctypes.data, from_.nbytes))
    # 16-bit floats are summed as float32 of the same bytes, so that a C compiler without them can build the loop.
    dtype = buffers.case.dtype
    name, width = _SUMMED_AS.get(dtype.name, (dtype.name, dtype.size))
    return NativeCall(kind, address(f"collbench_sum_{name}"), (to.ctypes.data, from_.ctypes.data, from_.nbytes // width))


def measure_streams(world: World) -> tuple[Rate | None, Rate | None]:
    """Return (one way, both ways): the rate of a loopback TCP stream to the next rank; None on a host with one rank.

    Both are measured twice, and again up to three times while the rounds differ. The interval covers the rounds that
    agree.
    """
    if world.size < 2 or len(world.hosts) > 1:
        return None, None
    receiver, sender = _connect_ring(world)
    one: list[Rate] = []
    both: list[Rate] = []
    with receiver, sender:
        # of an odd number of ranks the last one does nothing
        gives, takes = world.rank % 2 == 0 and world.rank + 1 < world.size, world.rank % 2 == 1
        for _ in range(_MOST_ROUNDS):
            if agreed(one) is None:
                one.append(_stream(world, sender if gives else None, receiver if takes else None))
            if agreed(both) is None:
                both.append(_stream(world, sender, receiver))
    return settled(one), settled(both)


def _connect_ring(world: World) -> tuple[socket.socket, socket.socket]:
    """Return sockets (from the rank before, to the next rank) on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(world.timeout_s)
        ports = world.allgather(listener.getsockname()[1], "connecting loopback streams")
        sender = socket.create_connection(("127.0.0.1", ports[(world.rank + 1) % world.size]), timeout=world.timeout_s)
        receiver, _ = listener.accept()
    receiver.settimeout(world.timeout_s)
    return receiver, sender


def _stream(world: World, sender: socket.socket | None, receiver: socket.socket | None) -> Rate:
    """Send for a while and count what arrives; return the rate of the slowest receiver."""
    rates: list[float] = []
    thread = threading.Thread(target=lambda: rates.append(_drain(receiver)) if receiver else None)
    world.allgather(None, "measuring loopback TCP")
    thread.start()
    if sender:
        _pour(sender)
    thread.join(world.timeout_s)
    if thread.is_alive():
        raise WaitExpired(f"measuring loopback TCP: nothing arrived within {world.timeout_s:g} s")
    own = Rate(rates[0], rates[0], rates[0]) if rates else None
    return _slowest(world, [own], "measuring loopback TCP")[0]


def _pour(sender: socket.socket) -> None:
    """Send blocks of data for the fixed time, then a marked last one, so that the stream can be used again."""
    chunk = bytearray(_CHUNK)
    end = time.monotonic() + _STREAM_S
    while time.monotonic() < end:
        sender.sendall(chunk)
    chunk[-1] = 1
    sender.sendall(chunk)


def _drain(receiver: socket.socket) -> float:
    """Return the bytes per second from the first to the marked last block."""
    chunk, total, start = bytearray(_CHUNK), 0, 0.0
    while True:
        view = memoryview(chunk)
        while view:
            view = view[receiver.recv_into(view) or len(view) :]
        start = start or time.monotonic()
        total += _CHUNK
        if chunk[-1]:
            return (total - _CHUNK) / max(time.monotonic() - start, 1e-9)
