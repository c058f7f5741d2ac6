"""What the network leaves of a training step: scaling efficiency from the time of computing and the time of exchanging.

A step computes for t seconds and exchanges for c. Where nothing overlaps it takes t + c, where all that can does max(t, c); real training
lies between. The efficiency is t, what the step would take without a network, over what it takes (of weak scaling: each rank computes
as much as alone).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from collbench.errors import UsageError

_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "\N{MICRO SIGN}s": 1e-6, "\N{GREEK SMALL LETTER MU}s": 1e-6}
_DURATION = re.compile(rf"\s*(\d+(?:\.\d*)?|\.\d+)\s*({'|'.join(filter(None, _UNITS))})?\s*", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class Share:
    """An efficiency from 0 to 1, with the ends that the interval of the exchange's time gives; None where it has none."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Efficiency:
    """What part of a step is computing.

    apart    computing and exchanging one after the other: t / (t + c), the least that this network allows
    overlap  perfectly at the same time: t / max(t, c), the most
    """

    compute_s: float
    apart: Share
    overlap: Share


def efficiency(compute_s: float, exchange_s: float, low_s: float | None = None, high_s: float | None = None) -> Efficiency:
    """The efficiency of a step that computes for `compute_s` and exchanges for `exchange_s`, of which an interval may be known.

    Raises ValueError for a time of computing that is not above 0, and for a negative one of exchanging.
    """
    if not compute_s > 0 or not exchange_s >= 0:
        raise ValueError(f"a step computes for more than 0 s and exchanges for 0 s or more, not {compute_s:g} and {exchange_s:g}")
    # The longer the exchange, the lower the efficiency: the interval's ends change places.
    times = (exchange_s, high_s, low_s)
    apart = Share(*(None if c is None else compute_s / (compute_s + c) for c in times))  # type: ignore[arg-type]  # the first is a number
    overlap = Share(*(None if c is None else compute_s / max(compute_s, c) for c in times))  # type: ignore[arg-type]
    return Efficiency(compute_s, apart, overlap)


def parse_step_time(text: str) -> float:
    """Seconds of "180ms", "0.18", "0.18s" or "900us". Raises UsageError for anything else, and for no time at all."""
    match = _DURATION.fullmatch(text)
    value = float(match[1]) * _UNITS[(match[2] or "").lower()] if match else 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"step time '{text}' is not a time above 0: write seconds, like 0.18, or with a unit, like 180ms")
    return value
