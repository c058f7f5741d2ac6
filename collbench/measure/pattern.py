"""The bytes that channels carry and that are compared afterwards: lost, doubled or shifted ones show."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PERIOD = 65521  # prime: no shift by a round number repeats the pattern
PATTERN = (np.arange(PERIOD, dtype=np.uint32) * 40503 >> 7).astype(np.uint8) | 1  # never 0, which memory begins with


def write_pattern(target: NDArray[np.uint8]) -> None:
    """Fills with PATTERN, over and over."""
    whole = len(target) // PERIOD * PERIOD
    target[:whole].reshape(-1, PERIOD)[:] = PATTERN
    target[whole:] = PATTERN[: len(target) - whole]


def first_wrong(target: NDArray[np.uint8]) -> str | None:
    """How many bytes are not those of the pattern, and where the first is; None when all are."""
    whole = len(target) // PERIOD * PERIOD
    rows = target[:whole].reshape(-1, PERIOD)
    if all(np.array_equal(row, PATTERN) for row in rows) and np.array_equal(target[whole:], PATTERN[: len(target) - whole]):
        return None
    places = np.flatnonzero(target != np.resize(PATTERN, len(target)))
    return f"{len(places)} of {len(target)} bytes differ from those that were copied, the first at {places[0]}"
