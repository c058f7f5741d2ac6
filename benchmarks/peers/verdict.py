"""What a ratio must be, and whether it is: by the whole of its interval, or by its median alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collbench.stats.launches import ratio_of_pairs, spread

_RANKED = 6  # fewer pairs have no pair of order statistics that covers the median with 95 %
VERDICTS = ("met", "met by the median", "missed by the median", "MISSED")


@dataclass(frozen=True)
class Span:
    """A median and its 95 % interval; the interval is None where the pairs are worth too few."""

    value: float
    low: float | None
    high: float | None

    def within(self, least: float, most: float) -> str:
        """One of VERDICTS: all of the interval within [least, most], the median only, not even that, none of the interval."""
        if self.low is not None and self.high is not None:
            if least <= self.low and self.high <= most:
                return VERDICTS[0]
            if self.high < least or self.low > most:
                return VERDICTS[3]
        return VERDICTS[1] if least <= self.value <= most else VERDICTS[2]

    def show(self, scale: float = 1.0, digits: int = 3) -> str:
        """1.013 (1.002 to 1.020)."""
        if self.low is None or self.high is None:
            return f"{self.value * scale:.{digits}f} (no interval)"
        return f"{self.value * scale:.{digits}f} ({self.low * scale:.{digits}f} to {self.high * scale:.{digits}f})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Span:
    """The median over pairs of collbench's time over the peer's."""
    known = ratio_of_pairs(theirs, ours)
    return Span(known.value, known.low, known.high)


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Span:
    """The median over pairs of collbench's time less the peer's; its interval by ranks, from six pairs on."""
    values = np.subtract(ours, theirs)
    if len(values) < _RANKED:
        return Span(float(np.median(values)), None, None)
    known = spread(values)
    return Span(known.value, known.low, known.high)


@dataclass(frozen=True)
class Target:
    """Bounds of collbench's time over the peer's; or, if that is easier, of the difference in seconds.

    most  upper bound of the ratio · least  its lower bound: a benchmark that reads too fast is wrong as well
    """

    most: float
    least: float = 0.0
    or_seconds: float | None = None

    def judge(self, of_times: Span, apart: Span) -> str:
        """The better of the two verdicts, on the ratio and on the difference."""
        found = [of_times.within(self.least, self.most)]
        if self.or_seconds is not None:
            lowest = -self.or_seconds if self.least else float("-inf")
            found.append(apart.within(lowest, self.or_seconds))
        return min(found, key=VERDICTS.index)

    def show(self) -> str:
        """≤ 1.10 or ≤ +0.1 µs."""
        times = f"{self.least:.2f} to {self.most:.2f}" if self.least else f"≤ {self.most:.2f}"
        if self.or_seconds is None:
            return times
        return f"{times} or {'±' if self.least else '≤ +'}{self.or_seconds * 1e6:g} µs"
