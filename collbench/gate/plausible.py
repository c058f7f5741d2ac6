"""Facts about how plausible a change is as the cause of a slowdown. They rank what to check first; they prove nothing."""

# ruff: noqa: D102 – `Fact.render` documents all of them.

from __future__ import annotations

from functools import reduce
from math import exp
from operator import or_
from typing import Any, Literal

from collbench.reason import Fact
from collbench.units import listed


class Plausible(Fact, frozen=True):
    """How plausible a change is as the cause of a slowdown."""


class CarriesAll(Plausible, frozen=True):
    """The changed library carries everything that is slower."""

    def render(self) -> str:
        return "all slower cases use it"


class CarriesSome(Plausible, frozen=True):
    """The changed library carries a part of what is slower; `others` are the other slower backends."""

    others: tuple[str, ...]

    def render(self) -> str:
        return f"some slower cases use it, but {listed(self.others)} {'is' if len(self.others) == 1 else 'are'} slower too"


class CarriesNone(Plausible, frozen=True):
    """Nothing that is slower uses the changed library."""

    backends: tuple[str, ...]

    def render(self) -> str:
        return f"unlikely: nothing on {listed(self.backends, word='or')} is slower"


class FasterLink(Plausible, frozen=True):
    """The change makes a link faster."""

    def render(self) -> str:
        return "unlikely: this makes the link faster"


class MatchingRate(Plausible, frozen=True):
    """The rate of a link fell by about the measured factor; both as ln of time."""

    link: float
    measured: float

    def render(self) -> str:
        return f"the link became {times([self.link])} times slower, and the measured slowdown is {times([self.measured])} times"


class LinkOfAll(Plausible, frozen=True):
    """Everything that is slower crosses the changed link."""

    def render(self) -> str:
        return "all slower cases cross this link"


class LinkOfSome(Plausible, frozen=True):
    """The messages cross the changed link, but whether all that is slower does is unknown."""

    def render(self) -> str:
        return "the messages cross this link"


class SameLink(Plausible, frozen=True):
    """Other cases cross the changed link and are not slower."""

    def render(self) -> str:
        return "unlikely: other cases cross this link and are not slower"


class OwnVersion(Plausible, frozen=True):
    """collbench itself changed."""

    def render(self) -> str:
        return "collbench itself changed; that should not change results, but it may"


class OnTheHost(Plausible, frozen=True):
    """Something on the host changed, and everything runs on it.

    extent  "memory": memory became slower, and it changed; "all": everything is slower; "slower": all that is slower runs on it;
            "both": what is not slower runs on it too, and no other cause is known; "others": as "both", and another cause is known
    """

    extent: Literal["memory", "all", "slower", "both", "others"]

    def render(self) -> str:
        return _EXTENTS[self.extent]


_EXTENTS = {
    "memory": "it is part of the memory, which became slower",
    "all": "everything runs on it, and everything is slower",
    "slower": "all slower cases run on it",
    "both": "all slower cases run on it, and so do the others",
    "others": "unlikely: cases that are not slower run on it too",
}
PLAUSIBLE: Any = reduce(or_, Plausible.__subclasses__())


def times(excesses: list[float]) -> str:
    """Return "1.11" or "1.05 to 1.11", the factors of these values in ln of time; with three digits from 100 on: "6250"."""
    low, high = (_three_digits(exp(each)) for each in (min(excesses), max(excesses)))
    return low if low == high else f"{low} to {high}"


def _three_digits(factor: float) -> str:
    rounded = float(f"{factor:.3g}")
    return f"{rounded:.{2 if rounded < 10 else 1 if rounded < 100 else 0}f}"
