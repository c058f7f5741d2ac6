"""The time of ranks that are made up: it passes as their operations say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SPREAD = 0.02  # made up: relative noise of a rank's time


class VirtualClock:
    """One time per virtual rank, moved forward by the programs themselves."""

    native = queued = False

    def __init__(self, ranks: int, seed: int) -> None:
        self._now = np.zeros(ranks)
        self._random = np.random.default_rng(seed)

    def advance(self, ranks: Sequence[int], seconds: float) -> None:
        """Lets an operation of `seconds` pass at these ranks: it starts when the last has come, and ends a little apart."""
        noise = self._random.lognormal(0, _SPREAD, len(ranks))
        self._now[list(ranks)] = self._now[list(ranks)].max() + seconds * noise

    def hold(self, seconds: NDArray[np.float64]) -> None:
        """Lets each rank lose so much time on its own."""
        self._now += seconds

    def align(self) -> None:
        """All ranks meet."""
        self._now[:] = self._now.max(initial=0.0)

    def stamp(self) -> NDArray[np.float64]:
        """Every rank's time in seconds."""
        return self._now.copy()

    def elapsed(self, starts: Sequence[Any], ends: Sequence[Any]) -> NDArray[np.float64]:
        """Seconds, [virtual ranks × samples]."""
        difference: NDArray[np.float64] = (np.asarray(ends) - np.asarray(starts)).T
        return difference
