"""How fast one GPU reaches another's memory: by its multiprocessors and by the copy engine, and how long a flag takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from collbench.device.arrays import Arrays
from collbench.device.bandwidth import Values, digits
from collbench.device.chase import chain_over, chased
from collbench.device.cuda import cupy_runtime
from collbench.device.figure import Figure
from collbench.device.gpu import Stream
from collbench.device.peer_access import open_peer

_ROUNDS, _LAUNCHES = 1000, 15
_TIMEOUT_NS = 2 * 10**9
_CHAIN = 64 << 20  # bytes of a peer's memory that a chase visits


@dataclass(frozen=True)
class _Kernel:
    """How GPU `x` moves N bytes to or from GPU `y`; `results` are the arrays that then hold what is wanted, told by the tables of b and c.

    (Both GPUs' arrays b and c hold the same tables; a is the target.)
    """

    name: str
    run: Callable[[Arrays, Arrays], None]
    results: Callable[[Arrays, Arrays], tuple[Arrays, ...]]
    wanted: Callable[[Values, Values], Values] = lambda b, c: b


def _copy_engine(x: Arrays, y: Arrays) -> None:
    with x.gpu.use():
        cupy_runtime().memcpyPeerAsync(x.a, x.gpu.index, y.b, y.gpu.index, x.size, x.stream.address)


_KERNELS = (
    _Kernel("peer_read", lambda x, y: x.kernels.peer_read(x.stream, x.a, y.b, x.size), lambda x, y: (x,)),
    _Kernel("peer_write", lambda x, y: x.kernels.peer_write(x.stream, y.a, x.b, x.size), lambda x, y: (y,)),
    _Kernel("peer_both", lambda x, y: x.kernels.peer_both(x.stream, x.a, y.b, y.a, x.b, n_bytes=x.size), lambda x, y: (x, y)),
    _Kernel("reduce_copy", lambda x, y: x.kernels.reduce_copy(x.stream, x.a, x.b, y.c, x.size), lambda x, y: (x,), lambda b, c: b + c),
    _Kernel("copy_engine", _copy_engine, lambda x, y: (x,)),
)
_LATENCIES = ("pingpong", "pointer_chase")


def peer_figures(x: Arrays, y: Arrays) -> Iterator[Figure]:
    """One per kernel of GPU x with the memory of GPU y, as they are measured; n/a with the reason where they cannot reach each other."""
    gpus = (x.gpu.index, y.gpu.index)
    if not (open_peer(x.gpu, y.gpu) and open_peer(y.gpu, x.gpu)):
        why = f"GPUs {gpus[0]} and {gpus[1]} cannot reach each other's memory (cudaDeviceCanAccessPeer)"
        yield from without_peer(why, gpus)
        return
    for kernel in _KERNELS:
        yield _measured(kernel, x, y)
    yield pingpong(x, y)
    yield _chase(x, y)


def without_peer(why: str, gpus: tuple[int, ...]) -> Iterator[Figure]:
    """The same figures, not measured, and why."""
    yield from (Figure(name, gpus, why=why) for name in (*(kernel.name for kernel in _KERNELS), *_LATENCIES))


def _measured(kernel: _Kernel, x: Arrays, y: Arrays) -> Figure:
    b, c = digits("f4", 1), digits("f4", 2)
    for arrays in (x, y):
        arrays.checker.fill(arrays.b, arrays.size, b)
        arrays.checker.fill(arrays.c, arrays.size, c)
    _settle(x, y)
    seconds = x.watch.samples(lambda: kernel.run(x, y))
    for arrays in (x, y):
        arrays.checker.poison(arrays.a, arrays.size)
    _settle(x, y)
    kernel.run(x, y)
    _settle(x, y)
    wrong = sum(arrays.checker.verify(arrays.a, arrays.size, kernel.wanted(b, c), 0)[0] for arrays in kernel.results(x, y))
    return Figure(kernel.name, (x.gpu.index, y.gpu.index), x.size, x.size, seconds, wrong=wrong)


def _settle(*all_arrays: Arrays) -> None:
    for arrays in all_arrays:
        with arrays.gpu.use():
            arrays.stream.synchronize()


def pingpong(x: Arrays, y: Arrays) -> Figure:
    """The round trip of a word between two GPUs, or between two streams of one; n/a where the two sides do not meet in time."""
    gpus = tuple(dict.fromkeys((x.gpu.index, y.gpu.index)))
    streams = (x.stream, y.stream if y is not x else x.gpu.stream())
    seconds: list[float] = []
    for _ in range(_LAUNCHES):
        rounds, elapsed_ns = _played(x, y, streams)
        if rounds < _ROUNDS:
            why = f"the two sides made {rounds} of {_ROUNDS} round trips in {_TIMEOUT_NS / 1e9:g} s"
            return Figure("pingpong", gpus, why=why)
        seconds.append(elapsed_ns / 1e9 / rounds)
    return Figure("pingpong", gpus, seconds=tuple(seconds), floor="round trip of a flag", wrong=0)


def _played(x: Arrays, y: Arrays, streams: tuple[Stream, Stream]) -> tuple[int, int]:
    """(round trips, their nanoseconds) as the side that starts saw them."""
    flags = (x.a, y.a + 256)  # apart, also where x is y
    results = (x.b, y.b + 256)
    for arrays, flag in zip((x, y), flags, strict=True):
        arrays.gpu.upload(flag, np.zeros(1, np.uint64), arrays.stream)
    for side, arrays in enumerate((x, y)):
        arrays.kernels.pingpong(
            streams[side], flags[side], flags[1 - side], rounds=_ROUNDS, starts=side == 0, timeout_ns=_TIMEOUT_NS, result=results[side]
        )
    for arrays, stream in zip((x, y), streams, strict=True):
        with arrays.gpu.use():
            stream.synchronize()
    rounds, elapsed_ns = x.gpu.download(results[0], 16).view(np.uint64).tolist()
    return rounds, elapsed_ns


def _chase(x: Arrays, y: Arrays) -> Figure:
    chain = chain_over(min(y.size, _CHAIN))
    y.gpu.upload(y.a, chain, y.stream)
    return chased(x, y.a, chain, (x.gpu.index, y.gpu.index))
