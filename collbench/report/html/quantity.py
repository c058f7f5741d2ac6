"""Bandwidth and latency of a pair matrix, told alike: figures as text, how they stand to the median, classes and their names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import exp

import numpy as np
from numpy.typing import NDArray

from collbench.report.pairs_map import Classes, above_median, classes_of, kinds
from collbench.results.rounds import PairMatrix
from collbench.units import format_percent, format_rate, format_size, format_time

Figures = NDArray[np.float64]
_FARTHEST = 25.0  # logarithm: what is further from the median is told as if it were so far


@dataclass(frozen=True)
class Quantity:
    """word   "bandwidth" or "latency"
    matrix    its `bandwidth` holds speeds, high is fast: of the latency the inverse
    values    what is printed: bytes per second, or seconds
    bounds    the interval's ends, where they are known
    size      of the messages, as text
    """

    word: str
    unit: str
    matrix: PairMatrix
    values: Figures
    bounds: tuple[Figures, Figures] | None
    size: str

    @property
    def symmetric(self) -> bool:
        """Whether i to j is j to i."""
        return self.word == "latency"

    @cached_property
    def classes(self) -> tuple[Classes, float]:
        """The class of each directed pair, and the first class's depth: see `classes_of`."""
        return classes_of(self.matrix)

    @cached_property
    def median(self) -> str:
        """What a pair is compared with."""
        return "the median of such paths" if len(kinds(self.matrix)) > 1 else "the median"

    @cached_property
    def above(self) -> Figures:
        """How much faster than the median each pair is, as a logarithm; NaN: unknown."""
        speeds = above_median(self.matrix)
        return np.where(np.isfinite(speeds), np.clip(speeds, -_FARTHEST, _FARTHEST), np.nan)

    def figure(self, value: float) -> str:
        """A value as text, without its unit; "" for what is no number, or too large to be one."""
        if not np.isfinite(value * 1e6):
            return ""
        return format_time(value) if self.symmetric else format_rate(value)

    def shares(self) -> NDArray[np.int64]:
        """What `against_median` makes a text of: tenths of a percent of the median; of a latency hundredths of it. -1: unknown."""
        ratio = np.exp(-self.above if self.symmetric else self.above)
        tenths = np.where(ratio >= 0.1, 10 * np.rint(100 * ratio), np.rint(1000 * ratio))
        found: Figures = np.nan_to_num(np.rint(100 * ratio) if self.symmetric else tenths, nan=-1)
        return found.astype(np.int64)

    def against_median(self, share: int) -> str:
        """How a pair stands to the others: "50 % of the median", "1.80 times the median"."""
        return f"{share / 100:.2f} times {self.median}" if self.symmetric else f"{format_percent(share / 10)} of {self.median}"

    def class_words(self) -> list[str]:
        """What each of the five classes means."""
        depths = [self.classes[1] * factor for factor in (1, 2, 4, 8)]
        if self.symmetric:
            edges = [f"{exp(depth):.2f}" for depth in depths]
            return [f"up to {edges[0]} times {self.median}", *(f"{a}–{b}" for a, b in pairwise(edges)), f"above {edges[-1]}"]
        edges = [f"{100 * exp(-depth):.0f}" for depth in depths]
        return [f"from {edges[0]} % of {self.median} on", *(f"{b}–{a} %" for a, b in pairwise(edges)), f"below {edges[-1]} %"]


def quantities(matrix: PairMatrix) -> tuple[Quantity, Quantity]:
    """Its bandwidth and its latency."""
    with np.errstate(all="ignore"):
        speeds = replace(matrix, bandwidth=1 / matrix.latency_s)
    sizes = [format_size(size) for size in (matrix.size_bytes, matrix.latency_size_bytes)]
    return (
        Quantity("bandwidth", "GB/s", matrix, matrix.bandwidth, (matrix.low, matrix.high), sizes[0]),
        Quantity("latency", "µs", speeds, matrix.latency_s, None, sizes[1]),
    )
