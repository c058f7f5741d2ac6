"""The latency of memory: a chain of indices, and the loads that follow it one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.device.arrays import Arrays
from collbench.device.figure import Figure
from collbench.units import format_bytes

_LINE = 256  # bytes between what is read: more than a line of any cache
_WORD = 8
_STEPS = 2000  # loads of one run


def chain_over(n_bytes: int) -> NDArray[np.uint64]:
    """Indices of 64-bit words, a line apart, that visit all of n_bytes in random order and begin again."""
    order = np.random.default_rng(0).permutation(max(1, n_bytes // _LINE))
    chain = np.zeros(len(order) * _LINE // _WORD, np.uint64)
    chain[order * (_LINE // _WORD)] = np.roll(order, -1) * (_LINE // _WORD)
    return chain


def chased(arrays: Arrays, address: int, chain: NDArray[Any], gpus: tuple[int, ...]) -> Figure:
    """Seconds of one load along `chain`, which lies at `address`."""
    result = arrays.gpu.allocate(2 * _WORD)
    seconds = arrays.watch.samples(lambda: arrays.kernels.pointer_chase(arrays.stream, address, 0, _STEPS, result.address))
    found, end = int(arrays.checker.read(result.address, _WORD).view(np.uint64)[0]), 0
    for _ in range(_STEPS):
        end = int(chain[end])
    over = f"one load after the other, over {format_bytes(chain.nbytes)}"
    return Figure("pointer_chase", gpus, seconds=tuple(each / _STEPS for each in seconds), floor=over, wrong=int(found != end))
