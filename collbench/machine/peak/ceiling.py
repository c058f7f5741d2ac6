"""The ceiling: what a measured busbw is set against, and what limits it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TOLERANCE = 1.02  # a token bucket's burst and a clock's error; what is above a ceiling by more is really above it


@dataclass(frozen=True)
class Ceiling:
    """A rate that the busbw of a row is set against.

    kind          "measured" (a reference, no bound), "network", "given" (--ceiling) or "simulated"
    bytes_per_s   the rate; None when there is none, and then `limited_by` says why
    limited_by    the link or the copy that limits, for people: "NIC eth0 1 Gb/s", "memory copy and sum"
    model         "ring" or "bound"
    source        where the figure comes from: "measured before the first cell", "tc qdisc on eth0", "--ceiling"
    low_bytes_per_s, high_bytes_per_s   the interval of a measured reference; None for all others
    disturbed     a measured reference whose repetitions did not agree: no percentage of it means anything
    """

    kind: str
    bytes_per_s: float | None
    limited_by: str
    model: str = "ring"
    source: str = ""
    low_bytes_per_s: float | None = None
    high_bytes_per_s: float | None = None
    disturbed: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values; the interval and `disturbed` only where it was measured with them."""
        return {name: value for name, value in vars(self).items() if name not in _MEASURED or value not in (None, False)}


_MEASURED = ("low_bytes_per_s", "high_bytes_per_s", "disturbed")


def given(gigabytes_per_s: float) -> Ceiling:
    """The ceiling that the user gave, in GB/s."""
    return Ceiling("given", gigabytes_per_s * 1e9, "the ceiling given", source="--ceiling")


def nothing(why: str) -> Ceiling:
    """No ceiling, and why."""
    return Ceiling("none", None, why)


def percent_of(rate: float | None, ceiling: Ceiling | None) -> float | None:
    """Return the percentage that a rate is of a ceiling; None where either is unknown."""
    return 100 * rate / ceiling.bytes_per_s if rate and ceiling and ceiling.bytes_per_s else None
