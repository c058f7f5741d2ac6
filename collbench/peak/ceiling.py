"""The ceiling: what a measured busbw is set against, and what limits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

TOLERANCE = 1.02  # a token bucket's burst and a clock's error; what is above a ceiling by more is really above it

Model = Literal["ring", "bound", "doubtful"]


@dataclass(frozen=True)
class Ceiling:
    """A rate that the busbw of a row is set against.

    kind          "measured" (a reference, no bound), "network", "given" (--ceiling) or "simulated"
    bytes_per_s   the rate; None when there is none, and then `limited_by` says why
    limited_by    the link or the copy that limits, for people: "NIC eth0 1 Gb/s", "memory copy and sum"
    model         "ring" or "bound"
    source        where the figure comes from: "measured before the first cell", "tc qdisc on eth0", "--ceiling"
    """

    kind: str
    bytes_per_s: float | None
    limited_by: str
    model: str = "ring"
    source: str = ""


def given(gigabytes_per_s: float) -> Ceiling:
    """The ceiling that the user gave, in GB/s."""
    return Ceiling("given", gigabytes_per_s * 1e9, "the ceiling given", source="--ceiling")


def nothing(why: str) -> Ceiling:
    """No ceiling, and why."""
    return Ceiling("none", None, why)


def model_of(points: Sequence[tuple[float, float | None, float | None]]) -> Model:
    """Which ceiling a whole curve is set against, by its best point; points are (measured, ring, bound) in one unit.

    Up to the ring reference: "ring". Above it: "bound". Above that, too: "doubtful", some input of the model is wrong.
    """
    measured, ring, bound = max(points, key=lambda point: point[0])
    if ring is not None and (measured <= ring or bound is None):
        return "ring"
    return "doubtful" if bound is not None and measured > bound else "bound"
