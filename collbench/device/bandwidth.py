"""How fast a GPU's memory is: each kernel of verify.cu, bandwidth.cu and sync.cu timed, then checked element by element."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.device.arrays import GRAIN, Arrays
from collbench.device.chase import chain_over, chased
from collbench.device.checker import prove
from collbench.device.figure import Figure
from collbench.device.gpu import Memory
from collbench.errors import RunFailed
from collbench.operations.data import PERIOD
from collbench.units import format_size

_BEYOND_CACHE = 4  # arrays this many times the level-2 cache come from memory, but for a small part
_SCALE, _WORD = 3.0, 0x0123456789ABCDEF
_DELAY_NS = 10**6
Values = NDArray[Any]


@dataclass(frozen=True)
class _Kernel:
    """How one kernel is run: how often it moves N bytes, what array `a` holds afterwards, told by the tables of b and c, and their type."""

    name: str
    moves: int
    run: Callable[[Arrays], None]
    wanted: Callable[[Values, Values], Values]
    dtype: str = "u8"


_KERNELS = (
    _Kernel("write_memory", 1, lambda t: t.kernels.write(t.stream, t.a, t.size, _WORD),
            lambda b, c: np.array([_WORD, _WORD ^ (2**64 - 1)], np.uint64)),
    _Kernel("copy", 2, lambda t: t.kernels.copy(t.stream, t.a, t.b, t.size), lambda b, c: b),
    _Kernel("triad", 3, lambda t: t.kernels.triad(t.stream, t.a, t.b, t.c, t.size, scale=_SCALE), lambda b, c: b + _SCALE * c, "f8"),
    _Kernel("reduce_copy", 3, lambda t: t.kernels.reduce_copy(t.stream, t.a, t.b, t.c, t.size), lambda b, c: b + c, "f4"),
)  # fmt: skip


def memory_figures(arrays: Arrays) -> Iterator[Figure]:
    """One per kernel, as they are measured. Raises RunFailed if the checker does not see a flipped bit."""
    prove(arrays.gpu, arrays.stream)
    yield from _fill_and_verify(arrays)
    yield _read(arrays)
    for kernel in _KERNELS:
        yield _measured(arrays, kernel)
    yield from (_flush(arrays), _chase(arrays), _delay(arrays))


def _figure(arrays: Arrays, kernel: str, moves: int, seconds: tuple[float, ...], wrong: int | None) -> Figure:
    rate, words = _floor(arrays, arrays.size)
    return Figure(kernel, (arrays.gpu.index,), arrays.size, moves * arrays.size, seconds, rate, words, wrong)


def _floor(arrays: Arrays, n_bytes: int) -> tuple[float | None, str]:
    """The rate of the memory, where that is what limits, or why there is none."""
    cache = arrays.gpu.l2_bytes
    if n_bytes < _BEYOND_CACHE * cache:
        return None, f"arrays smaller than {_BEYOND_CACHE} times the level-2 cache ({format_size(cache)}): partly the cache's rate"
    if arrays.gpu.memory_rate is None:
        return None, "the driver does not tell the memory's clock and width"
    return arrays.gpu.memory_rate, "memory clock × width × 2"


def _measured(arrays: Arrays, kernel: _Kernel) -> Figure:
    b, c = digits(kernel.dtype, 1), digits(kernel.dtype, 2)
    arrays.checker.fill(arrays.b, arrays.size, b)
    arrays.checker.fill(arrays.c, arrays.size, c)
    seconds = arrays.watch.samples(lambda: kernel.run(arrays))
    arrays.checker.poison(arrays.a, arrays.size)
    kernel.run(arrays)
    wrong, _ = arrays.checker.verify(arrays.a, arrays.size, kernel.wanted(b, c), 0)
    return _figure(arrays, kernel.name, kernel.moves, seconds, wrong)


def _fill_and_verify(arrays: Arrays) -> Iterator[Figure]:
    values = digits("u8", 1)
    table = arrays.gpu.allocate(values.nbytes)
    arrays.gpu.upload(table.address, values, arrays.stream)
    seconds = arrays.watch.samples(lambda: arrays.kernels.fill(arrays.stream, arrays.a, arrays.size, table.address, table.n_bytes))
    wrong, _ = arrays.checker.verify(arrays.a, arrays.size, values, 0)
    yield _figure(arrays, "fill", 1, seconds, wrong)
    seconds = _verify_times(arrays, table)
    arrays.checker.corrupt(arrays.a, arrays.size - 1, 0x80)
    if (found := arrays.checker.verify(arrays.a, arrays.size, values, 0)) != (wrong + 1, arrays.size // 8 - 1):
        raise RunFailed(
            f"the checker of GPU {arrays.gpu.index} ({arrays.gpu.name}) does not see a flipped bit in the last element: {found}"
        )
    yield _figure(arrays, "verify", 1, seconds, wrong)


def _verify_times(arrays: Arrays, table: Memory) -> tuple[float, ...]:
    result = arrays.gpu.allocate(16)
    where = (arrays.stream, arrays.a, arrays.size, table.address, table.n_bytes)
    return arrays.watch.samples(lambda: arrays.kernels.verify(*where, width=8, tolerance=0, result_address=result.address))


def _read(arrays: Arrays) -> Figure:
    values, sums = digits("u8", 1), arrays.gpu.allocate(arrays.kernels.sums_bytes)
    arrays.checker.fill(arrays.b, arrays.size, values)
    seconds = arrays.watch.samples(lambda: arrays.kernels.read(arrays.stream, arrays.b, arrays.size, sums.address))
    found = int(arrays.checker.read(sums.address, sums.n_bytes).view(np.uint64).sum())
    return _figure(arrays, "read_memory", 1, seconds, int(found != _sum(values, arrays.size // 8)))


def _flush(arrays: Arrays) -> Figure:
    size = max(GRAIN, min(arrays.size, arrays.gpu.l2_bytes) // GRAIN * GRAIN)
    seconds = arrays.watch.samples(lambda: arrays.kernels.flush(arrays.stream, arrays.a, size))
    return Figure("flush", (arrays.gpu.index,), size, 2 * size, seconds, *_floor(arrays, size))


def _chase(arrays: Arrays) -> Figure:
    """The latency of the memory, or of the cache where the chain fits into it."""
    chain = chain_over(min(arrays.size, _BEYOND_CACHE * arrays.gpu.l2_bytes or arrays.size))
    arrays.gpu.upload(arrays.a, chain, arrays.stream)
    return chased(arrays, arrays.a, chain, (arrays.gpu.index,))


def _delay(arrays: Arrays) -> Figure:
    seconds = arrays.watch.samples(lambda: arrays.kernels.delay(arrays.stream, _DELAY_NS))
    return Figure(
        "delay", (arrays.gpu.index,), seconds=seconds, floor=f"{_DELAY_NS // 1000} µs were asked for: so true is the clock of events"
    )


def digits(dtype: str, seed: int) -> Values:
    """One period of small whole numbers, whose sums are exact in every type."""
    return np.random.default_rng(seed).integers(1, 1000, PERIOD).astype(dtype)


def _sum(values: Values, count: int) -> int:
    """The sum of the first `count` of the repeated values, modulo 2^64."""
    whole, rest = divmod(count, len(values))
    return (whole * int(values.sum()) + int(values[:rest].sum())) % 2**64
