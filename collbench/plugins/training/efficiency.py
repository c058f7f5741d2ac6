"""The efficiency of a training step, from its computing and its exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from collbench.columns import column

# Scaling efficiency of a training step, from the times of computing and exchanging.
#
# A step computes for t seconds and exchanges for c. It takes t + c without overlap and max(t, c) with full overlap; real training is
# between these. The efficiency is t over that time, for weak scaling: t is the step's time without a network.


@dataclass(frozen=True)
class Share:
    """An efficiency from 0 to 1, and its bounds from the interval of the exchange's time; None if it has no interval."""

    value: Annotated[float, column("{}", key="")]
    low: Annotated[float | None, column("{} The lower end of its interval.")] = None
    high: Annotated[float | None, column("{} The upper end of its interval.")] = None


@dataclass(frozen=True)
class Efficiency:
    """The share of a training step that is spent on computing.

    apart    computing and exchanging one after the other: t / (t + c), the lowest with this network
    overlap  computing and exchanging at the same time: t / max(t, c), the highest
    """

    compute_s: float
    apart: Annotated[Share, column("The scaling efficiency without overlap of computing and communication.")]
    overlap: Annotated[Share, column("The scaling efficiency with perfect overlap.")]


def efficiency(compute_s: float, exchange_s: float, low_s: float | None = None, high_s: float | None = None) -> Efficiency:
    """Return the efficiency of a step that computes for `compute_s` and exchanges for `exchange_s`, with its interval if known.

    Raises ValueError for a computing time that is not above 0, and for a negative exchange time.
    """
    if not compute_s > 0 or not exchange_s >= 0:
        raise ValueError(f"a step computes for more than 0 s and exchanges for 0 s or more, not {compute_s:g} and {exchange_s:g}")
    # A longer exchange means a lower efficiency, so the ends of the interval are exchanged.
    times = (exchange_s, high_s, low_s)
    apart = Share(*(None if c is None else compute_s / (compute_s + c) for c in times))  # type: ignore[arg-type]  # the first is a number
    overlap = Share(*(None if c is None else compute_s / max(compute_s, c) for c in times))  # type: ignore[arg-type]
    return Efficiency(compute_s, apart, overlap)
