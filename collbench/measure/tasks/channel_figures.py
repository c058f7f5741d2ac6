"""From samples to a channel's row: the median, its interval, the percentage of the limiting link, and what is doubtful."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collbench.errors import CollbenchError
from collbench.machine.peak.ceiling import TOLERANCE
from collbench.machine.peak.link import Link
from collbench.measure.row import doubts
from collbench.results.steps import WRONG, Channel
from collbench.stats.median import median

Values = NDArray[np.float64]
_ENOUGH = 6  # below, no interval of 95 % exists


@dataclass(frozen=True)
class Job:
    """A channel of this host and how to measure it; without a way `channel` says why it is n/a."""

    channel: Channel
    measure: Callable[[], Channel] | None = None

    def run(self) -> Channel:
        """The channel with its figures, or with the reason why there are none. Never raises an Exception."""
        if self.measure is None:
            return self.channel
        try:
            return self.measure()
        except (CollbenchError, MemoryError) as error:
            return replace(self.channel, na=str(error) or "not enough memory")
        except Exception as error:
            return replace(self.channel, na=f"{type(error).__name__}: {error}")


def against(channel: Channel, link: Link) -> Channel:
    """The channel with the link that limits it; one that nobody knows says why instead."""
    told = link.name if link.bytes_per_s is None else f"{link.name} ({link.source})"
    return replace(channel, of_bytes_per_s=link.bytes_per_s, limited_by=told)


def from_times(channel: Channel, seconds: Values, n_bytes: float, wrong: str | None = None) -> Channel:
    """With the rate of `n_bytes` in the median of these times."""
    known = median(seconds)
    if not known.value:
        return _without(channel, wrong)
    low, high = known.ci_low, known.ci_high
    rates = (n_bytes / known.value, n_bytes / high if high else None, n_bytes / low if low else None)
    return _settled(channel, rates, seconds, wrong)


def from_rates(channel: Channel, rates: Values, wrong: str | None = None) -> Channel:
    """With the median of these rates."""
    known = median(rates)
    if not known.value:
        return _without(channel, wrong)
    return _settled(channel, (known.value, known.ci_low, known.ci_high), rates, wrong)


def _without(channel: Channel, wrong: str | None) -> Channel:
    if wrong:
        return _wrong(channel, wrong)
    return replace(channel, na="too little arrived within the time given to tell a rate: raise --max-time")


def _wrong(channel: Channel, wrong: str) -> Channel:
    return replace(channel, na=f"WRONG: {wrong}", flags=(*channel.flags, WRONG))


def _settled(channel: Channel, rates: tuple[float, float | None, float | None], series: Values, wrong: str | None) -> Channel:
    if wrong:
        return _wrong(channel, wrong)
    value, low, high = rates
    above = channel.of_bytes_per_s is not None and value > TOLERANCE * channel.of_bytes_per_s
    flags = [
        *doubts(series, len(series), None, 1),
        *(["no_interval"] if len(series) < _ENOUGH else []),
        *(["above_bound"] if above else []),
    ]
    return replace(channel, bytes_per_s=value, ci_low=low, ci_high=high, flags=(*channel.flags, *flags))
