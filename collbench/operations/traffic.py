"""Who sends how much to whom: the traffic of alltoallv, even, skewed towards one rank, or from a file of bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, Any

from collbench.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ROUGH = 0.01  # a part so far from its share is no longer the traffic that was asked for
_FINEST = 1000  # the largest denominator of a skew
_INT64 = 2**63


@dataclass(frozen=True)
class Traffic:
    """Traffic between ranks of a group, as shares: only their proportions count, a cell's size scales them.

    name    what rows print: "even", "skew 4", "experts.csv:1f2e3d4c" (a file's name and the start of its SHA-256)
    skew    the busiest receiver, rank 0, gets so many times the average; 1: even
    matrix  from a file: bytes, whole numbers, from rank (row) to rank (column); None: by skew
    """

    name: str = "even"
    skew: float = 1.0
    matrix: tuple[tuple[float, ...], ...] | None = field(default=None, hash=False)  # a million numbers; the name tells them apart

    def weights(self, n: int) -> NDArray[np.float64]:
        """[n × n] whole numbers from 0 on, by sending and receiving rank. Raises UsageError for n ranks that it does not fit."""
        from fractions import Fraction

        import numpy as np

        self.check_ranks(n)
        if self.matrix is not None:
            return np.array(self.matrix, dtype=np.float64)
        skew = Fraction(self.skew).limit_denominator(_FINEST)
        row = np.full(n, skew.denominator * n - skew.numerator, dtype=np.float64)
        row[0] = skew.numerator * (n - 1) or 1
        return np.tile(row, (n, 1))

    def check_ranks(self, n: int) -> None:
        """Raises UsageError when this is no traffic of groups of n ranks."""
        if self.matrix is not None and len(self.matrix) != n:
            rows = len(self.matrix)
            raise UsageError(
                f"traffic {self.name} is of {rows} ranks, and it is to run over {n}: start {rows}, or write {n} rows of {n} numbers"
            )
        if self.matrix is None and self.skew > n:
            raise UsageError(
                f"--skew {self.skew:g} over {n} ranks: where all that is sent goes to one rank, it gets {n} times the average; "
                f"choose 1 to {n}, or start more ranks"
            )

    def own_bytes(self) -> int | None:
        """The size that a file's bytes have: the most that any rank sends or receives. None where they come from no file."""
        return None if self.matrix is None else int(_busiest(self.weights(len(self.matrix))))


EVEN = Traffic()


def skewed(skew: float) -> Traffic:
    """Traffic whose busiest receiver gets so many times the average; even for 1."""
    return EVEN if skew == 1 else Traffic(f"skew {skew:g}", skew)


def elements(traffic: Traffic | None, n: int, count: int) -> NDArray[np.int64]:
    """[n × n] elements by sending and receiving rank: the busiest rank sends or receives exactly `count`, no rank more.

    Read-only; even traffic for None. Raises UsageError as `weights` does.
    """
    return _elements(traffic or EVEN, n, count)


def is_rough(traffic: Traffic | None, n: int, count: int) -> bool:
    """Whether some part is more than 1 % off its share, since elements are whole."""
    import numpy as np

    weights, parts = (traffic or EVEN).weights(n), elements(traffic, n, count)
    share = weights * (count / _busiest(weights))
    return bool(np.any(np.abs(parts - share) > _ROUGH * share))


def _busiest(weights: NDArray[Any]) -> Any:
    return max(weights.sum(axis=0).max(), weights.sum(axis=1).max())


@lru_cache(maxsize=64)
def _elements(traffic: Traffic, n: int, count: int) -> NDArray[np.int64]:
    import numpy as np

    weights = traffic.weights(n).astype(np.int64)
    weights //= np.gcd.reduce(weights, axis=None) or 1
    across = weights.sum(axis=1).max() > weights.sum(axis=0).max()  # the busiest rank is busy sending
    parts = _rounded(weights.T if across else weights, count)
    parts = np.ascontiguousarray(parts.T if across else parts)
    parts.setflags(write=False)
    return parts


def _rounded(weights: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Whole parts of weights whose busiest line is a column; its parts add up to `count`.

    Sums down each column are rounded, not parts, so that no column gains or loses an element. Each column begins at its own rank, so
    that those which were rounded up do not meet in one row; where they do nevertheless, they give way.
    """
    import numpy as np

    n, busiest = len(weights), int(weights.sum(axis=0).max())
    common = gcd(count, busiest) or 1
    numbers, most, scale = weights, busiest // common or 1, count // common
    if busiest * scale >= _INT64:
        numbers = numbers.astype(object)
    order = (np.arange(n)[:, None] + np.arange(n)[None, :]) % n  # row k of column j is rank (j + k) % n
    turned = np.take_along_axis(numbers, order, axis=0)
    sums = np.vstack([np.zeros((1, n), dtype=numbers.dtype), np.cumsum(turned, axis=0)]) * scale // most
    parts = np.empty((n, n), dtype=np.int64)
    np.put_along_axis(parts, order, np.diff(sums, axis=0).astype(np.int64), axis=0)
    floors = (numbers * scale // most).astype(np.int64)
    for row in np.flatnonzero(parts.sum(axis=1) > count):
        up = np.flatnonzero(parts[row] > floors[row])
        parts[row, up[: parts[row].sum() - count]] -= 1
    return parts
