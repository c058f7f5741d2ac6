"""Facts about the likely cause of a slowdown, and about how plausible a change is as its cause. They rank what to check first; they
prove nothing.
"""

# ruff: noqa: D102 – `Fact.render` documents all of them.

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from math import exp
from operator import or_
from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta

from collbench.reason import Fact
from collbench.units import format_size, listed

Excess = Annotated[float, Meta(ge=-100, le=100)]  # ln of time over the baseline's, with limits so that its factor is a number


class Plausible(Fact, frozen=True):
    """How plausible a change is as the cause of a slowdown."""


class CarriesAll(Plausible, frozen=True):
    """The changed library carries everything that is slower."""

    text = "all slower cases use it"


class CarriesSome(Plausible, frozen=True):
    """The changed library carries a part of what is slower; `others` are the other slower backends."""

    others: tuple[str, ...]

    def render(self) -> str:
        return f"some slower cases use it, but {listed(self.others)} {'is' if len(self.others) == 1 else 'are'} slower too"


class CarriesNone(Plausible, frozen=True):
    """Nothing that is slower uses the changed library."""

    text = "unlikely: nothing on {backends:or} is slower"
    backends: tuple[str, ...]


class FasterLink(Plausible, frozen=True):
    """The change makes a link faster."""

    text = "unlikely: this makes the link faster"


class MatchingRate(Plausible, frozen=True):
    """The rate of a link fell by about the measured factor; both as ln of time."""

    link: Excess
    measured: Excess

    def render(self) -> str:
        return f"the link became {times([self.link])} times slower, and the measured slowdown is {times([self.measured])} times"


class LinkOfAll(Plausible, frozen=True):
    """Everything that is slower crosses the changed link."""

    text = "all slower cases cross this link"


class LinkOfSome(Plausible, frozen=True):
    """The messages cross the changed link, but whether all that is slower does is unknown."""

    text = "the messages cross this link"


class SameLink(Plausible, frozen=True):
    """Other cases cross the changed link and are not slower."""

    text = "unlikely: other cases cross this link and are not slower"


class OwnVersion(Plausible, frozen=True):
    """collbench itself changed."""

    text = "collbench itself changed; that should not change results, but it may"


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


# The likely cause, from the pattern of slower cases.

PathCause = Literal["link", "memory", "latency", "host"]
LINK: Final = "link"
MEMORY: Final = "memory"
LATENCY: Final = "latency"
HOST: Final = "host"
BACKEND, OPERATION, CASES, UNCLEAR = "backend", "operation", "cells", "unclear"
_WAYS: dict[PathCause, str] = {
    LINK: "the link",
    MEMORY: "the memory of the node",
    LATENCY: "the latency of the path (not its rate)",
    HOST: "the hosts (clock, power, kernel, a neighbour)",
}
Names = Annotated[tuple[str, ...], Meta(min_length=1)]  # a file from another source may have any number
Slowdown = tuple[Excess, Excess]


class LikelyCause(Fact, frozen=True):
    """The likely cause of a slowdown, from the pattern of slower cases."""

    named: ClassVar[str] = UNCLEAR

    @property
    def cause(self) -> str:
        """Return "link", "memory", "latency", "host", "backend", "operation", "cells", or "unclear" where several are possible."""
        return self.named


class SlowSizes(LikelyCause, frozen=True):
    """Only single sizes are slower; the library may switch its algorithm there.

    sizes     in bytes
    series    (backend, operation) of each
    slowdown  in ln of time
    """

    named = CASES
    sizes: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1)]
    series: Annotated[tuple[tuple[str, str], ...], Meta(min_length=1)]
    slowdown: Excess

    def render(self) -> str:
        is_ = "is" if len(self.sizes) == 1 else "are"
        return (
            f"single sizes: {_all_of(map(format_size, self.sizes))} of {_series(self.series)} {is_} {times([self.slowdown])} times slower, "
            "other sizes are not: the library may switch its algorithm"
        )


class SlowBackend(LikelyCause, frozen=True):
    """One backend is slower, and the others are not.

    alone       whether a link that this backend alone uses may be the cause, too
    classes     the slower size classes: "small", "mid", "large"
    operations  the slower ones; empty: all that were measured
    slowdown    lowest and highest, in ln of time
    others      the backends that are not slower
    """

    named = BACKEND
    backend: str
    alone: bool
    classes: Names
    operations: tuple[str, ...]
    slowdown: Slowdown
    others: Names

    def render(self) -> str:
        beside = f", or a link that {self.backend} alone uses" if self.alone else ""
        of = f" of {_all_of(self.operations)}" if self.operations else ""
        what = f"{_all_of(self.classes)} messages{of} {_slower(self.slowdown)}"
        return f"{self.backend}{beside}: {what} on it, but not on {_all_of(self.others)}"


class SlowOperation(LikelyCause, frozen=True):
    """One operation is slower, and the others are not.

    classes   the slower size classes: "small", "mid", "large"
    backends  on which it is slower
    slowdown  lowest and highest, in ln of time
    others    the operations that are not slower
    """

    named = OPERATION
    operation: str
    classes: Names
    backends: Names
    slowdown: Slowdown
    others: Names

    def render(self) -> str:
        what = f"{_all_of(self.classes)} messages of it {_slower(self.slowdown)}"
        return f"{self.operation}: {what} on {_all_of(self.backends)}, but not those of {_all_of(self.others)}"


class SlowMessages(LikelyCause, frozen=True):
    """Large messages, small ones or all are slower on every backend: a link, memory, latency, or the hosts.

    causes    the possible ones: "link", "memory", "latency", "host"
    messages  those that are slower
    contrast  the messages of the other size class: not slower ("clear"), "unsure", or "unknown"; None where all are slower
    slowdown  lowest and highest, in ln of time
    backends  on which they are slower
    only      the single backend that was measured, which may itself be the cause; "": there are several
    """

    causes: Annotated[tuple[PathCause, ...], Meta(min_length=1)]
    messages: Literal["all", "large", "small"]
    contrast: Literal["clear", "unsure", "unknown"] | None
    slowdown: Slowdown
    backends: Names
    only: str = ""

    @property
    def cause(self) -> str:
        return UNCLEAR if len(self.causes) > 1 or self.only else self.causes[0]

    def render(self) -> str:
        named = [_WAYS[cause] for cause in self.causes] + ([f"{self.only} itself"] if self.only else [])
        which = "all messages, small ones too," if self.messages == "all" else f"{self.messages} messages"
        other = "small" if self.messages == "large" else "large"
        contrast = _CONTRASTS[self.contrast].format(other)
        if self.contrast == "unknown" and other == "small":
            contrast = "; small messages, which would distinguish it from slower hosts, were not measured"
        seen = f"{which} {_slower(self.slowdown)} on {_all_of(self.backends)}{contrast}"
        alone = "; no other backend was measured" if self.only else ""
        return f"{' or '.join(named)}{', not distinguishable here' if self.cause == UNCLEAR else ''}: {seen}{alone}"


_CONTRASTS = {
    None: "",
    "clear": ", {} ones are not",
    "unsure": "; of {} ones the evidence is insufficient",
    "unknown": "; of {} ones nothing is known",
}


CAUSES: Any = reduce(or_, LikelyCause.__subclasses__())


class StoredCause(LikelyCause, frozen=True):
    """The likely cause in a verdict of an earlier version, which has no fields: its name and its sentence."""

    text = "{sentence}"
    name: str
    sentence: str

    @property
    def cause(self) -> str:
        return self.name


def _slower(slowdown: Slowdown) -> str:
    return f"are {times([*slowdown])} times slower"


def _series(known: tuple[tuple[str, str], ...]) -> str:
    """Return "allreduce and broadcast on gloo and mpi" if each pair is in the list, else the pairs one by one."""
    backends, operations = (list(dict.fromkeys(names)) for names in zip(*known, strict=True))
    if len(backends) * len(operations) == len(known):
        return f"{_all_of(operations)} on {_all_of(backends)}"
    return _all_of(f"{operation} on {backend}" for backend, operation in known)


def _all_of(words: Iterable[str]) -> str:
    """Return "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def times(excesses: list[float]) -> str:
    """Return "1.11" or "1.05 to 1.11", the factors of these values in ln of time; with three digits from 100 on: "6250"."""
    low, high = (_three_digits(exp(each)) for each in (min(excesses), max(excesses)))
    return low if low == high else f"{low} to {high}"


def _three_digits(factor: float) -> str:
    rounded = float(f"{factor:.3g}")
    return f"{rounded:.{2 if rounded < 10 else 1 if rounded < 100 else 0}f}"
