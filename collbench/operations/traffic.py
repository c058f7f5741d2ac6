"""Who sends how much to whom: the traffic of alltoallv, even, skewed towards one rank, or from a file of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Traffic:
    """Traffic between ranks of a group, as shares: only their proportions count, a cell's size scales them.

    name    what rows print: "even", "skew 4", "experts.csv:1f2e3d4c" (a file's name and the start of its SHA-256)
    skew    the busiest receiver, rank 0, gets so many times the average; 1: even
    matrix  from a file: bytes from rank (row) to rank (column); None: by skew
    """

    name: str = "even"
    skew: float = 1.0
    matrix: tuple[tuple[float, ...], ...] | None = None

    def weights(self, n: int) -> NDArray[np.float64]:
        """[n × n] numbers from 0 on, by sending and receiving rank. Raises UsageError for a matrix of another number of ranks."""
        if self.matrix is not None:
            return np.array(self.matrix, dtype=np.float64)
        hot = min(self.skew, n) / n
        column = np.full(n, (1 - hot) / (n - 1) if n > 1 else 0.0)
        column[0] = hot
        return np.tile(column, (n, 1))


EVEN = Traffic()


def elements(traffic: Traffic, n: int, count: int) -> NDArray[np.int64]:
    """[n × n] elements by sending and receiving rank, so that no rank sends or receives more than `count`."""
    return _elements(traffic, n, count)


@lru_cache(maxsize=256)
def _elements(traffic: Traffic, n: int, count: int) -> NDArray[Any]:
    weights = traffic.weights(n)
    busiest = max(weights.sum(axis=0).max(), weights.sum(axis=1).max())
    scaled: NDArray[Any] = np.floor(weights * (count / busiest) if busiest else weights).astype(np.int64)
    scaled.setflags(write=False)
    return scaled
