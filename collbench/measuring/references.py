"""Measure the rates at which ranks of a host exchange data, all at once and without a library. They are the measured references."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.backends.backend import Group
from collbench.backends.clock import MonotonicClock
from collbench.backends.host import Buffers, Elements, MappedBlock
from collbench.control.world import World
from collbench.errors import WaitExpired
from collbench.machine.peak.ceiling import HostPart, Rate, agreed, settled
from collbench.measuring.loop import Loop, Timed
from collbench.measuring.sync import at_once, shared_page
from collbench.native.library import SHARED_BYTES, BarrierStruct, SegmentStruct, address, library
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
_FEWEST = 6
_MOST = 300


class CopyResult(msgspec.Struct, frozen=True):
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
    blocks = _everywhere(cpus, lambda place: (_filled(share), MappedBlock(share, 1)), patience_s)
    meeting = Meeting(len(cpus))
    loops = [
        Loop(Timed(_copying(source, target), meeting.program(place), MonotonicClock(), ctypes.c_int64()))
        for place, (source, target) in enumerate(blocks)
    ]
    tried = np.max(_everywhere(cpus, lambda place: loops[place].run(2)[0], patience_s), axis=0)
    n = repetitions(float(tried.min()), seconds)
    taken = _everywhere(cpus, lambda place: loops[place].run(n)[0], patience_s + seconds)
    wrong = _everywhere(cpus, lambda place: first_wrong(blocks[place][1].slot(0)), patience_s)
    return CopyResult(np.max(taken, axis=0), share * len(cpus), next(filter(None, wrong), None))


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
    from_ = source.slot(0)
    to = target.slot(0)
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


# The references of the cases inside a host. Ranks 0 and 1 of a host are partners, 2 and 3, and so on; an odd last rank has none.

_MOST_S = 0.01  # for one reference at one size in one round
_MOST_ROUNDS = 5
MOST_TOTAL_S = 3.0
_FAR_TOO_LONG_S = 0.1  # for one portion: 40 MB/s
_PORTION = 4 << 20  # bytes of one transfer: larger messages are passed on in portions, which takes as long per byte
_LARGEST = 128 << 20  # bytes; larger messages are not in a cache either, and have the same rates
_CHUNK_BYTES = 16 << 10
_CHUNKS = 8  # of a channel in shared memory, as MPI libraries have them
_HEADER_BYTES = 256
_DEADLINE_S = 20.0
# A reference moves one buffer into another of the same size, as a send into a receive buffer.
# reference.c has few loops. A type without its own is summed as one that needs the same time per byte.
_SUMMED_AS = {
    "float16": ("float32", 4), "bfloat16": ("float32", 4), "float8_e4m3fn": ("uint8", 1), "float8_e5m2": ("uint8", 1),
    "uint32": ("int32", 4), "uint64": ("int64", 8),
}  # fmt: skip
_REFERENCE = Operation("reference", lambda n: 1.0, lambda x: [operation_Block([x.rank], 0, x.count)], {})
_LOCAL = frozenset({HostPart.COPY, HostPart.SUM})
_IN_SHARED_MEMORY = frozenset({HostPart.SHARED, HostPart.SHARED_ONE_WAY, HostPart.SHARED_SUM})
_DIRECT = frozenset({HostPart.DIRECT, HostPart.DIRECT_ONE_WAY})
_ON_LOOPBACK = frozenset({HostPart.LOOPBACK, HostPart.LOOPBACK_ONE_WAY})
_ONE_WAY = frozenset({HostPart.SHARED_ONE_WAY, HostPart.DIRECT_ONE_WAY, HostPart.LOOPBACK_ONE_WAY})
_NATIVE = _IN_SHARED_MEMORY | _DIRECT
_DOING = "measuring the references"


class Partner:
    """This rank's transfers to and from its partner. All ranks of the world make it together; `close` frees it.

    rank      the partner; None without one
    process   the partner's process number, by which the kernel copies from its memory
    possible  the parts that all ranks can do: without the native code, and if the kernel does not permit copies, some cannot
    """

    def __init__(self, world: World, parts: frozenset[HostPart]) -> None:
        mates = [member.rank for member in world.on_host()]
        place = mates.index(world.rank)
        self.world = world
        self.rank = mates[place ^ 1] if place ^ 1 < len(mates) else None
        self.sends_first = place % 2 == 0
        token = ctypes.create_string_buffer(os.urandom(16), 16)
        processes = world.allgather((os.getpid(), ctypes.addressof(token), token.raw.hex()), _DOING)
        self.process = 0 if self.rank is None else processes[self.rank][0]
        can_read = self.rank is None or _can_read(*processes[self.rank])
        self.possible = parts - _NATIVE if world.first_error(None if library() else "no native code", _DOING) else parts
        if world.first_error(None if can_read else "not permitted", _DOING):
            self.possible -= _DIRECT
        self._segment = self._shared(mates) if _IN_SHARED_MEMORY & self.possible else None
        self._connection = self._connected() if _ON_LOOPBACK & self.possible else None

    def _shared(self, mates: Sequence[int]) -> SegmentStruct:
        channel = _HEADER_BYTES + _CHUNK_BYTES * _CHUNKS
        self._page = shared_page(self.world, channel * len(mates))
        first = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        out = first + channel * mates.index(self.world.rank)
        in_ = out if self.rank is None else first + channel * mates.index(self.rank)
        return SegmentStruct(out=out, in_=in_, chunk_bytes=_CHUNK_BYTES, chunks=_CHUNKS, deadline_ns=int(_DEADLINE_S * 1e9))

    def _connected(self) -> socket.socket | None:
        """Return a connection to the partner over 127.0.0.1; None without a partner."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(self.world.timeout_s)
            ports = self.world.allgather(listener.getsockname()[1], "connecting loopback streams")
            if self.rank is None:
                return None
            if self.sends_first:
                connection = socket.create_connection(("127.0.0.1", ports[self.rank]), timeout=self.world.timeout_s)
            else:
                connection, _ = listener.accept()
        connection.setblocking(False)
        return connection

    def close(self) -> None:
        """Close the connection. The shared memory is freed when the process ends."""
        if self._connection:
            self._connection.close()

    def call(self, part: HostPart, buffers: Buffers, portion: Portion, partner_sends: Sequence[int]) -> Call:
        """Return the call that does a possible part with one portion of the buffers.

        partner_sends: by slot the address of the partner's send buffer
        """
        to = buffers.recv(0, portion.slot)[portion.first : portion.end]
        from_ = buffers.send(0, portion.slot)[portion.first : portion.end]
        if part in _LOCAL:
            return _local(part, to, from_)
        if self.rank is None:
            return PythonCall(part, lambda: None)
        if part in _DIRECT:
            if part in _ONE_WAY and self.sends_first:
                return NativeCall(part, address("collbench_nothing"), ())
            source = partner_sends[portion.slot] + portion.first * to.itemsize
            return NativeCall(part, address("collbench_copy_from"), (self.process, to.ctypes.data, source, to.nbytes))
        if part in _ONE_WAY:
            to, from_ = (to[:0], from_) if self.sends_first else (to, from_[:0])
        if part in _ON_LOOPBACK:
            return PythonCall(part, partial(self._exchange, from_, to))
        return self._pass(part, to, from_)

    def _pass(self, part: HostPart, to: Elements, from_: Elements) -> Call:
        name, width = _summed_as(to)
        added = address(f"collbench_sum_{name}") if part is HostPart.SHARED_SUM else 0
        ends = (to.ctypes.data if to.size else 0, from_.ctypes.data if from_.size else 0)
        words = (ctypes.addressof(self._segment or SegmentStruct()), *ends, max(to.nbytes, from_.nbytes), added, width)
        return NativeCall(part, address("collbench_pass"), words)

    def _exchange(self, outgoing: Elements, incoming: Elements) -> None:
        """Send and receive over the connection at the same time, by one thread, until both have ended."""
        assert self._connection
        to_send = outgoing.view(np.uint8).data
        to_fill = incoming.view(np.uint8).data
        while to_send or to_fill:
            events = (select.POLLOUT if to_send else 0) | (select.POLLIN if to_fill else 0)
            poll = select.poll()
            poll.register(self._connection, events)
            ready = poll.poll(_DEADLINE_S * 1e3)
            if not ready:
                raise WaitExpired(f"measuring loopback TCP: nothing arrived within {_DEADLINE_S:g} s")
            with suppress(BlockingIOError):
                if to_send and ready[0][1] & ~select.POLLIN:
                    to_send = to_send[self._connection.send(to_send) :]
            with suppress(BlockingIOError):
                if to_fill and ready[0][1] & ~select.POLLOUT:
                    to_fill = to_fill[self._connection.recv_into(to_fill) or len(to_fill) :]


class Portion(NamedTuple):
    """The elements of a buffer slot that are transferred at once."""

    slot: int
    first: int
    end: int


def _can_read(process: int, pointer: int, expected: str) -> bool:
    """Return whether the kernel copies from this process, and it is the one that has the expected bytes there."""
    native = library()
    if native is None:
        return False
    read = ctypes.create_string_buffer(len(expected) // 2)
    failed = native.collbench_copy_from(ctypes.c_int64(process), read, ctypes.c_void_p(pointer), ctypes.c_uint64(len(read)))
    return not failed and read.raw.hex() == expected


def _summed_as(elements: Elements) -> tuple[str, int]:
    """Return the type as which the elements are summed, and its bytes.

    16-bit floats are summed as float32 of the same bytes, so that a C compiler without them can build the loop.
    """
    return _SUMMED_AS.get(elements.dtype.name, (elements.dtype.name, elements.dtype.itemsize))


def _local(part: HostPart, to: Elements, from_: Elements) -> Call:
    if library() is None:
        if part is HostPart.COPY:
            return PythonCall(part, lambda: np.copyto(to, from_))
        return PythonCall(part, lambda: np.add(to, from_, out=to))
    if part is HostPart.COPY:
        return NativeCall(part, address("collbench_copy"), (to.ctypes.data, from_.ctypes.data, from_.nbytes))
    name, width = _summed_as(to)
    return NativeCall(part, address(f"collbench_sum_{name}"), (to.ctypes.data, from_.ctypes.data, from_.nbytes // width))


def measure_references(
    world: World,
    wanted: Sequence[tuple[Case, frozenset[HostPart]]],
    share: float,
    limit_s: float = MOST_TOTAL_S,
    show: Callable[[str], None] = lambda text: None,
) -> dict[tuple[HostPart, int], Rate]:
    """Return the rate of each part at the size of each case, measured by all ranks of the world at once.

    All are measured one after the other in two rounds. Those with rounds that differ are repeated, up to three times.
    `share` limits the seconds per part, size and round. The rate is that of the slowest rank. A part that is not possible at
    some rank is left out; one that there was no time for is disturbed, and 0 without any round.

    limit_s  seconds for all of them, of which rank 0's count
    show     receives the progress, between two sizes
    """
    ending = time.monotonic() + limit_s
    partner = Partner(world, frozenset().union(*(parts for _, parts in wanted)))
    by_size: dict[int, tuple[Case, set[HostPart]]] = {}
    for case, parts in wanted:
        limited = replace(case, size_bytes=min(case.size_bytes, _LARGEST))
        by_size.setdefault(limited.size_bytes, (limited, set()))[1].update(parts & partner.possible)
    rounds: dict[tuple[HostPart, int], list[Rate]] = {(part, size): [] for size, (_, parts) in by_size.items() for part in sorted(parts)}
    try:
        for number in range(_MOST_ROUNDS):
            for place, (size, (case, _)) in enumerate(by_size.items(), 1):
                disagreeing = [part for part, part_size in rounds if part_size == size and agreed(rounds[part, size]) is None]
                if not disagreeing:
                    continue
                is_time_left: bool = world.broadcast(time.monotonic() < ending, _DOING)
                if not is_time_left:
                    continue
                show(f"measuring references{' again,' if number else ''} {place} of {len(by_size)}…")
                for part, rate in zip(disagreeing, _rates(partner, case, disagreeing, share), strict=True):
                    rounds[part, size].append(rate)
    finally:
        partner.close()
    rates = {key: settled(measured) if measured else Rate(0.0, 0.0, 0.0, disturbed=True) for key, measured in rounds.items()}
    keys = [(part, case.size_bytes) for case, parts in wanted for part in sorted(parts & partner.possible)]
    return {(part, size): rates[part, min(size, _LARGEST)] for part, size in keys}


def _rates(partner: Partner, case: Case, parts: Sequence[HostPart], share: float) -> list[Rate]:
    """Return one round of these parts with the case's buffers: the lowest rate of any rank, the same at all ranks."""
    world = partner.world
    buffers = Buffers(_REFERENCE, case, Group((world.rank,), (0,)), slots_for(case))
    elements = case.size_bytes // case.dtype.size
    at_once = min(elements, _PORTION // case.dtype.size)
    starts = range(0, elements - at_once + 1, at_once)
    portions = [Portion(slot, first, first + at_once) for slot in range(buffers.slots) for first in starts]
    addresses = world.allgather([buffers.send_at(0, slot) for slot in range(buffers.slots)], _DOING)
    partner_sends = addresses[world.rank if partner.rank is None else partner.rank]
    rates_here = []
    for part in parts:
        slots = [(partner.call(part, buffers, portion, partner_sends),) for portion in portions]
        # a rank without a partner has no rate of its own, nor has one for which its partner does the work
        is_idle = part not in _LOCAL and (partner.rank is None or (part is HostPart.DIRECT_ONE_WAY and partner.sends_first))
        rates_here.append(_rate(world, slots, at_once * case.dtype.size, share, idle=is_idle))
    all_ranks = world.allgather([rate and [rate.value, rate.low, rate.high] for rate in rates_here], _DOING)
    return [Rate(*min(rate for rate in rates if rate)) for rates in zip(*all_ranks, strict=True)]


def _rate(world: World, slots: Sequence[tuple[Call]], n_bytes: int, share: float, *, idle: bool) -> Rate | None:
    """Return the rate at which this rank does the calls, each of so many bytes; None if it is idle. Partners do equally many.

    A first transfer that takes far too long, on a busy machine, is not repeated.
    """
    loop = Loop(Timed(Program(tuple(slots), explain=os.strerror), None, MonotonicClock(), ctypes.c_int64()))
    seconds = loop.run(1).ravel()
    once_s = max(world.allgather(float(seconds[0]), _DOING))
    if once_s < _FAR_TOO_LONG_S:
        loop.run(len(slots))
        n = int(min(max(min(_MOST_S, share) / max(once_s, 1e-9), 3, len(slots)), 200))
        seconds = loop.run(n).ravel()
    if idle:
        return None
    middle = median(seconds)
    times = (middle.value, middle.ci_high or middle.value, middle.ci_low or middle.value)
    value, low, high = (n_bytes / max(time_s, 1e-9) for time_s in times)
    return Rate(value, low, high)
