"""Elements of uneven operations, by pair of ranks (alltoallv) or by rank (allgatherv): even, skewed to rank 0, or from a file of bytes."""

from __future__ import annotations

import codecs
import errno
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.errors import UsageError
from collbench.units import plural

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ROUGH = 0.01  # relative error of a part from which the traffic no longer is the requested one
_FINEST = 1000  # the largest denominator of a skew
_INT64 = 2**63


@dataclass(frozen=True)
class Traffic:
    """Traffic between ranks of a group, as shares. Only their proportions count; a case's size scales them.

    name    as in rows: "even", "skew 4", "experts.csv:1f2e3d4c" (a file's name and the start of its SHA-256)
    skew    what rank 0 receives as a multiple of the average; of operations with a part per rank: rank 0's part; 1: even
    matrix  from a file: bytes, integers, from rank (row) to rank (column); one row: the part of each rank; None: by skew
    """

    name: str = "even"
    skew: float = 1.0
    matrix: tuple[tuple[float, ...], ...] | None = field(default=None, hash=False)  # up to a million numbers, which the name identifies

    def weights(self, n: int) -> NDArray[np.float64]:
        """Return [n × n] integers of at least 0, by sending and receiving rank. Raises UsageError if the traffic does not fit n ranks."""
        import numpy as np

        self.check_ranks(n)
        if self.matrix is not None:
            return np.array(self.matrix, dtype=np.float64)
        return np.tile(np.array(self._skewed(n), dtype=np.float64), (n, 1))

    def weights_by_rank(self, n: int) -> tuple[int, ...]:
        """Return n integers of at least 0, by rank. Raises UsageError if the traffic does not fit n ranks, or is by pair of ranks."""
        self.check_ranks(n, by_rank=True)
        return self._skewed(n) if self.matrix is None else tuple(map(int, self.matrix[0]))

    def _skewed(self, n: int) -> tuple[int, ...]:
        """Return the weights of a skew: the average times the skew for rank 0, and as much for all others."""
        from fractions import Fraction

        skew = Fraction(self.skew).limit_denominator(_FINEST)
        return (skew.numerator * (n - 1) or 1, *[skew.denominator * n - skew.numerator] * (n - 1))

    def check_ranks(self, n: int, by_rank: bool = False) -> None:
        """Raise UsageError if this traffic does not fit groups of n ranks. `by_rank`: a part per rank is needed, not per pair of ranks."""
        if self.matrix is not None:
            self._check_matrix(self.matrix, n, by_rank)
        if self.matrix is None and self.skew > n:
            raise UsageError(
                f"--skew {self.skew:g} over {n} ranks: where all that is sent goes to one rank, it gets {n} times the average; "
                f"choose 1 to {n}, or start more ranks"
            )

    def _check_matrix(self, rows: Sequence[Sequence[float]], n: int, by_rank: bool) -> None:
        if by_rank != self.by_rank and len(rows[0]) > 1:
            needed, wanted = ("one number per rank", "one row") if by_rank else ("a number per pair of ranks", f"{n} rows")
            raise UsageError(
                f"traffic {self.name} has {plural(len(rows), 'row')}, and the operation needs {needed}: write {wanted} of {n} numbers"
            )
        ranks = len(rows[0])
        if ranks != n:
            wanted = f"{n} numbers" if by_rank else f"{n} rows of {n} numbers"
            raise UsageError(f"traffic {self.name} is of {ranks} ranks, and it is to run over {n}: start {ranks}, or write {wanted}")

    @property
    def by_rank(self) -> bool:
        """Whether it is from a file with one number per rank."""
        return self.matrix is not None and len(self.matrix) < len(self.matrix[0])

    def own_bytes(self) -> int | None:
        """The size in bytes of a file's traffic: the most that any rank sends or receives, or all parts. None without a file."""
        if self.matrix is None:
            return None
        return int(sum(self.matrix[0])) if self.by_rank else int(_busiest(self.weights(len(self.matrix))))


EVEN = Traffic()


def skewed(skew: float) -> Traffic:
    """Return traffic with one receiver that gets `skew` times the average; even for 1."""
    return EVEN if skew == 1 else Traffic(f"skew {skew:g}", skew)


@lru_cache(maxsize=64)
def elements(traffic: Traffic | None, n: int, count: int) -> NDArray[np.int64]:
    """Return [n × n] elements by sending and receiving rank. The busiest rank sends or receives exactly `count`, no rank more.

    The array is read-only; for None the traffic is even. Raises UsageError as `weights` does.
    """
    import numpy as np

    weights = (traffic or EVEN).weights(n).astype(np.int64)
    weights //= np.gcd.reduce(weights, axis=None) or 1
    across = weights.sum(axis=1).max() > weights.sum(axis=0).max()  # the busiest rank is a sender
    parts = _rounded(weights.T if across else weights, count)
    parts = np.ascontiguousarray(parts.T if across else parts)
    parts.setflags(write=False)
    return parts


@lru_cache(maxsize=64)
def elements_by_rank(traffic: Traffic | None, n: int, count: int) -> tuple[int, ...]:
    """Return the elements of each rank's part, which add up to `count`. None: even. Raises UsageError as `weights_by_rank` does.

    The sums up to each rank are rounded instead of the parts, so that no element is lost.
    """
    weights = (traffic or EVEN).weights_by_rank(n)
    sums = [total * count // sum(weights) for total in accumulate(weights, initial=0)]
    return tuple(after - before for before, after in pairwise(sums))


def is_rough(traffic: Traffic | None, n: int, count: int, by_rank: bool = False) -> bool:
    """Return whether some part is more than 1 % off its share, since elements are not divisible."""
    import numpy as np

    if by_rank:
        shares = (traffic or EVEN).weights_by_rank(n)
        total = sum(shares)
        parts = elements_by_rank(traffic, n, count)
        return any(abs(part - share * count / total) * total > _ROUGH * share * count for part, share in zip(parts, shares, strict=True))
    weights = (traffic or EVEN).weights(n)
    shares_of_pairs = weights * (count / _busiest(weights))
    return bool(np.any(np.abs(elements(traffic, n, count) - shares_of_pairs) > _ROUGH * shares_of_pairs))


def _busiest(weights: NDArray[Any]) -> Any:
    return max(weights.sum(axis=0).max(), weights.sum(axis=1).max())


def _rounded(weights: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return integer parts of weights, scaled so that the parts of the busiest column add up to `count`.

    The sums down each column are rounded instead of the parts, so that no column gains or loses an element. Each column
    begins at its own rank, so that the parts that are rounded up are in different rows. If a row is too large nevertheless,
    its parts are reduced.
    """
    import numpy as np

    n = len(weights)
    busiest = int(weights.sum(axis=0).max())
    common = gcd(count, busiest) or 1
    divisor = busiest // common or 1
    scale = count // common
    numbers = weights.astype(object) if busiest * scale >= _INT64 else weights
    order = (np.arange(n)[:, None] + np.arange(n)[None, :]) % n  # row k of column j is rank (j + k) % n
    turned = np.take_along_axis(numbers, order, axis=0)
    sums = np.vstack([np.zeros((1, n), dtype=numbers.dtype), np.cumsum(turned, axis=0)]) * scale // divisor
    parts = np.empty((n, n), dtype=np.int64)
    np.put_along_axis(parts, order, np.diff(sums, axis=0).astype(np.int64), axis=0)
    floors = (numbers * scale // divisor).astype(np.int64)
    for row in np.flatnonzero(parts.sum(axis=1) > count):
        up = np.flatnonzero(parts[row] > floors[row])
        parts[row, up[: parts[row].sum() - count]] -= 1
    return parts


# Traffic in bytes, read from a file: a square of numbers, one row per sending rank; or one number per rank.

_LARGEST_BYTES = 256 * 2**20  # 4,096 ranks with 16 characters per number
_MOST_NUMBERS = 1 << 24  # 4,096 ranks
_LONGEST_LINE = 1 << 20  # bytes: 4,096 numbers have about 100 kB
_MOST = 2**53  # a float64 holds every integer up to this one
_NUMBER = re.compile(r"\+?\d+(\.\d*)?(e\+?\d+)?", re.IGNORECASE | re.ASCII)
_LIKE = "write one row per sending rank and one number of bytes per receiving rank, separated by commas or spaces; or one number per rank"


def read_traffic(path: Path) -> Traffic:
    """Return the traffic of a file: CSV, or numbers between white space. Text after a `#` is a comment.

    Numbers in one row, or one in each row, are by rank. Raises UsageError, one sentence, for a file that cannot be read, or contains
    neither a square nor a row nor a column.
    """
    import hashlib

    raw = _bytes_of(path)
    try:
        rows = list(_rows(raw, path))
    except UnicodeDecodeError as error:
        raise UsageError(f"traffic file '{path}' is not text: {_LIKE}") from error
    if all(len(numbers) == 1 for _, numbers in rows):
        rows = [(rows[0][0], tuple(number for _, (number,) in rows))] if rows else rows
    _check(rows, path)
    return Traffic(f"{path.name}:{hashlib.sha256(raw).hexdigest()[:8]}", matrix=tuple(numbers for _, numbers in rows))


def _bytes_of(path: Path) -> bytes:
    from collbench.untrusted import read_file

    try:
        return read_file(path, _LARGEST_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise UsageError(
                f"traffic file '{path}' has more than {_LARGEST_BYTES >> 20} MiB: too large for a traffic matrix: {_LIKE}"
            ) from error
        why = error.strerror or error
        raise UsageError(f"traffic file '{path}' cannot be read ({why}): name a file of numbers, one row per sending rank") from error


def _rows(raw: bytes, path: Path) -> Iterator[tuple[int, tuple[float, ...]]]:
    """Yield (line, its numbers) of every line that has numbers."""
    has_commas = any("," in line.partition("#")[0] for line in _lines(raw, path))
    count = 0
    for line, text in enumerate(_lines(raw, path), 1):
        numbers = text.partition("#")[0].strip()
        if numbers:
            words = _fields(numbers) if has_commas else numbers.split()
            count += len(words)
            if count > _MOST_NUMBERS:
                raise UsageError(f"traffic file '{path}', line {line}: there are more than {_MOST_NUMBERS:,} numbers: {_LIKE}")
            yield line, tuple(_number(word, line, path) for word in words)


def _lines(raw: bytes, path: Path) -> Iterator[str]:
    """Yield the lines one by one: all at the same time would take many times the memory."""
    for number, piece in enumerate(io.BytesIO(raw.removeprefix(codecs.BOM_UTF8)), 1):
        if len(piece) > _LONGEST_LINE:
            raise UsageError(f"traffic file '{path}', line {number}: it has more than {_LONGEST_LINE >> 20} MiB: {_LIKE}")
        yield from piece.decode("utf-8").splitlines()


def _fields(line: str) -> Sequence[str]:
    """Return the fields of a line of CSV. A comma at the end begins no field."""
    import csv

    try:
        fields = [field.strip() for field in next(csv.reader([line]))]
    except csv.Error:  # a field longer than any number
        return [line]
    return fields[:-1] if len(fields) > 1 and not fields[-1] else fields


def _number(word: str, line: int, path: Path) -> float:
    if not _NUMBER.fullmatch(word):
        raise UsageError(f"traffic file '{path}', line {line}: {word[:40]!r} is not a number of bytes: use whole numbers from 0 on")
    value = float(word)
    if not value.is_integer() or value > _MOST:
        raise UsageError(f"traffic file '{path}', line {line}: {word[:40]!r} is not a number of bytes: use whole numbers from 0 to 2^53")
    return value


def _check(rows: Sequence[tuple[int, tuple[float, ...]]], path: Path) -> None:
    """Raise UsageError unless the rows are a square, or one row, with a number above 0."""
    if not rows:
        raise UsageError(f"traffic file '{path}' holds no numbers: {_LIKE}")
    for line, numbers in rows if len(rows) > 1 else ():
        if len(numbers) != len(rows):
            raise UsageError(f"traffic file '{path}', line {line}: {len(numbers)} numbers in one of {len(rows)} rows: {_LIKE}")
    total = sum(sum(numbers) for _, numbers in rows)
    if total == 0:
        raise UsageError(f"traffic file '{path}' has only zeros: at least one rank must send data")
    if total > _MOST:
        raise UsageError(
            f"traffic file '{path}': the sum is {total:.3g} bytes, which is too high: the values must be the bytes of one call"
        )
