"""Facts of a verdict: why it is not a pass (`GateReason`), other notes for the reader (`GateNote`), the likely cause of a slowdown
(`LikelyCause`), and how plausible a change is as its cause (`Plausible`). These rank what to check first; they prove nothing.

Each fact has typed fields, and only `render` makes its text. verdict.json stores both the fields and the text.
"""

# ruff: noqa: D102 – `Fact.render` documents all of them.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from math import exp
from operator import or_
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from collbench.analysis.differences import Difference
from collbench.reason import Fact
from collbench.units import format_size, listed, plural

_FRESH = "measure a fresh allocation when the machine is idle"
_BESIDES = "{left_out:? (without {left_out:allocation} in another machine state)}"
_UNEXPECTED = "unexpected change: {change} (announce expected changes with --expect FILE)"
_ANOTHER_JOB = "results of one job repeat each other, so they count once; measure in another job"
_INTERLEAVE = "start one launch of the old stack and one of the new, then the next two, in the same job"


class CaseNames(msgspec.Struct, frozen=True):
    """Test cases by name: the first ones, and how many `more` there are."""

    names: tuple[str, ...]
    more: int = 0

    def __str__(self) -> str:
        """Return "allreduce 8 B mpi, allreduce 16 B mpi and 12 more"."""
        return f"{', '.join(self.names)}{f' and {self.more} more' if self.more else ''}"


class GateReason(Fact, frozen=True):
    """A reason why a verdict is not a pass. `blocks`: it is not a regression either."""

    blocks: ClassVar[bool] = False


class BlockingReason(GateReason, frozen=True):
    """A reason why the two sides cannot be compared."""

    blocks: ClassVar[bool] = True


class GateNote(Fact, frozen=True):
    """A note of a verdict, without effect on the result."""


# The baseline and the identity of the candidate's allocations.


class ShortBaseline(BlockingReason, frozen=True):
    """The baseline has fewer allocations than the rule needs; `left_out` more were measured in another machine state."""

    text = f"{{baseline}} has {{allocations:allocation}}{_BESIDES}, but the gate needs {{needed}}: add good ones"
    baseline: str
    allocations: int
    needed: int
    left_out: int = 0


class NoHistory(BlockingReason, frozen=True):
    """None of the baseline's cases was measured in enough of its allocations."""

    text = f"{{baseline}} has no case in {{needed}} allocations{_BESIDES}: add good allocations of the same suite"
    baseline: str
    needed: int
    left_out: int = 0


class TooCoarse(GateReason, frozen=True):
    """No group detects a slowdown of less than this factor, which is too coarse to pass; None: no group detects any."""

    detected: float | None
    paired: bool = False

    def render(self) -> str:
        only = "no slowdown at all" if self.detected is None else f"slowdowns above {min(self.detected, 10):.3g}×"
        again = "the stacks again" if self.paired else "the baseline's allocations again"
        return f"every group detects {only}, too coarse for a pass: measure {again}, on an idle machine or with a longer --max-time"


class BeganBeforeBaseline(BlockingReason, frozen=True):
    """A candidate began before the last allocation of the baseline (ISO 8601)."""

    text = (
        "allocation {allocation} began {began_utc}, before {last}, the baseline's last one ({last_began_utc}): a clock is wrong, or the "
        "allocation is older than its baseline"
    )
    allocation: str
    began_utc: str
    last: str
    last_began_utc: str


class BeganInFuture(BlockingReason, frozen=True):
    """A candidate began after today, by more than time zones explain."""

    text = "allocation {allocation} began {began_utc}, but today is {today}: a clock is wrong"
    allocation: str
    began_utc: str
    today: str


class SameJobAsBaseline(BlockingReason, frozen=True):
    """A candidate and an allocation of the baseline were measured in one job of the scheduler."""

    text = f"allocation {{allocation}} and {{other}} of the baseline were both measured in {{job}}: {_ANOTHER_JOB}"
    allocation: str
    other: str
    job: str


class SameJob(BlockingReason, frozen=True):
    """Two candidates were measured in one job of the scheduler."""

    text = f"allocations {{allocation}} and {{other}} were both measured in {{job}}: {_ANOTHER_JOB}"
    allocation: str
    other: str
    job: str


class AnotherCluster(BlockingReason, frozen=True):
    """A candidate shares no host with the baseline, and its machines differ as well."""

    allocation: str
    hosts: tuple[str, ...]
    baseline: str
    baseline_hosts: tuple[str, ...]

    def render(self) -> str:
        good = f"{self.baseline} was measured on other machines ({listed(self.baseline_hosts, 3)}): make a baseline of this cluster"
        return f"allocation {self.allocation} ran on {listed(self.hosts, 3)}, but {good}"


class UnexpectedChange(GateReason, frozen=True):
    """Something changed since the last good allocation without an announcement."""

    text = _UNEXPECTED
    change: Difference


class SidesDiffer(BlockingReason, frozen=True):
    """The old and the new stack differ in something other than the stack."""

    text = _UNEXPECTED
    change: Difference


class MoreUnexpectedChanges(GateReason, frozen=True):
    """Unexpected changes beyond those that are named."""

    text = "{count} more unexpected changes"
    count: int


# What the candidate's allocations lack.


class UnfinishedLaunches(GateReason, frozen=True):
    """Launches of an allocation stopped early."""

    text = "allocation {allocation}: {unfinished} of {launches:launch} stopped early; repeat them"
    allocation: str
    unfinished: int
    launches: int


class ColumnDiffers(msgspec.Struct, frozen=True):
    """Cases of both sides differ in this column alone."""

    column: str
    here: str | None
    baseline: str | None

    def render(self) -> str:
        """Return "mode is pipelined here, isolated in the baseline"."""
        return f"{self.column} is {self.here or 'not set'} here, {self.baseline or 'not set'} in the baseline"


class MissingCases(GateReason, frozen=True):
    """An allocation lacks cases that the baseline has; `na` is the reason of their rows, where they have one."""

    allocation: str
    cases: CaseNames
    na: str | None = None
    differs: ColumnDiffers | None = None

    def render(self) -> str:
        why = self.na or (self.differs.render() if self.differs else "")
        return f"allocation {self.allocation} lacks {self.cases}{f' ({why})' if why else ''}: a missing case never passes"


class IncompleteCases(GateReason, frozen=True):
    """Some launches of an allocation lack cases that others have."""

    text = "allocation {allocation}: not every launch measured {cases}; repeat those launches"
    allocation: str
    cases: CaseNames


class UnstableCases(GateReason, frozen=True):
    """Launches of an allocation scatter more than those of the baseline; `flags` are the rows' flags that may explain it."""

    allocation: str
    cases: CaseNames
    flags: tuple[str, ...] = ()

    def render(self) -> str:
        flags = f" ({', '.join(self.flags)})" if self.flags else ""
        scatter = f"launches of {self.cases} scatter more than in the baseline{flags}"
        return f"allocation {self.allocation}: {scatter}; measure a fresh allocation"


class StillSuspected(GateReason, frozen=True):
    """Suspects that need `more` fresh allocations; 0: the later allocations lack them."""

    suspects: int
    more: int

    def render(self) -> str:
        them = "it" if self.suspects == 1 else "them"
        how = f"{plural(self.more, 'fresh allocation')}, and judge all together" if self.more > 0 else "the allocations that lack them"
        return f"{plural(self.suspects, 'suspect')}: measure {them} again in {how}"


class SuspectedBelowFloor(GateReason, frozen=True):
    """Cases below --min-percent that need another measurement."""

    text = "below --min-percent: {cases}; measure again in fresh allocations, and judge all together"
    cases: CaseNames


class FloorUnknown(GateReason, frozen=True):
    """Cases with an unknown share of the expected bandwidth, though `asked` needs it."""

    text = (
        "--min-percent {asked}: the percentage is unknown for {cases} (n/a, no expected bandwidth of that kind, or an unproven path); see "
        "the rows, or restrict it: MODEL:PERCENT@SIZES/OPERATION+BACKEND"
    )
    asked: str
    cases: CaseNames


class WrongCases(GateReason, frozen=True):
    """Received data differ from the data sent."""

    text = "allocation {allocation}: wrong data received in {cases}"
    allocation: str
    cases: CaseNames


# The state of the machine.


class LaunchesNeeded(BlockingReason, frozen=True):
    """`flipped` launches ran in another machine state, and `more` launches of the same allocation can replace them."""

    allocation: str
    flipped: int
    launches: int
    more: int

    def render(self) -> str:
        state = _state_changed(self.allocation, self.flipped, self.launches, "launch", _BASELINE)
        return f"{state}; measure {plural(self.more, 'more launch')} in it, and pass them as well"


class AllocationStateChanged(BlockingReason, frozen=True):
    """So many launches ran in another machine state that a fresh allocation is needed."""

    allocation: str
    flipped: int
    launches: int

    def render(self) -> str:
        return f"{_state_changed(self.allocation, self.flipped, self.launches, 'launch', _BASELINE)}; {_FRESH}"


class LaunchesLeftOut(GateNote, frozen=True):
    """Launches that ran in another machine state were left out."""

    allocation: str
    flipped: int
    launches: int
    side: Literal["candidate", "baseline"] = "candidate"

    def render(self) -> str:
        where = "" if self.side == "candidate" else "baseline, "
        than = _BASELINE if self.side == "candidate" else _OTHERS
        return f"{where}{_state_changed(self.allocation, self.flipped, self.launches, 'launch', than)}; left out"


_BASELINE = "the baseline's"
_OTHERS = "the others'"


def _state_changed(allocation: str, count: int, total: int, noun: str, than: str) -> str:
    it = "its state probe differs" if count == 1 else "their state probes differ"
    return f"allocation {allocation}: {count} of {plural(total, noun)} ran in another machine state ({it} from {than} by more than 20 %)"


# Two stacks side by side (`--paired`).


class OtherAllocation(BlockingReason, frozen=True):
    """The launches of the two stacks are of different allocations."""

    text = "allocation {allocation}: the old stack's launches are of {old}; measure both in one allocation (--allocation NAME)"
    allocation: str
    old: str


class OtherHosts(BlockingReason, frozen=True):
    """The two stacks ran on different hosts; "" where they are unknown."""

    allocation: str
    old_hosts: str
    new_hosts: str

    def render(self) -> str:
        old = self.old_hosts or "unknown hosts"
        new = self.new_hosts or "unknown hosts"
        return f"allocation {self.allocation}: the old stack ran on {old}, the new one on {new}; {_INTERLEAVE}"


class UnequalLaunches(BlockingReason, frozen=True):
    """The stacks have different numbers of launches."""

    text = "allocation {allocation}: {old:launch} of the old stack, {new:launch} of the new one; measure as many of each"
    allocation: str
    old: int
    new: int


class StartUnknown(BlockingReason, frozen=True):
    """The start time of a launch is unknown, so its partner is unknown too."""

    text = f"allocation {{allocation}}: the start time of a launch is missing, so pairs are unknown; {_INTERLEAVE}"
    allocation: str


class NotInterleaved(BlockingReason, frozen=True):
    """The launches of the two stacks do not alternate."""

    text = f"allocation {{allocation}}: the launches of the two stacks are not interleaved; {_INTERLEAVE}"
    allocation: str


class PairsStateChanged(BlockingReason, frozen=True):
    """So many pairs of launches ran in another machine state that a fresh allocation is needed."""

    allocation: str
    flipped: int
    pairs: int

    def render(self) -> str:
        return f"{_state_changed(self.allocation, self.flipped, self.pairs, 'launch pair', _OTHERS)}; {_FRESH}"


class PairsNeeded(BlockingReason, frozen=True):
    """Too few pairs of launches."""

    allocation: str
    pairs: int
    needed: int

    def render(self) -> str:
        more = plural(self.needed - self.pairs, "more pair")
        return f"allocation {self.allocation} has {self.pairs} of {self.needed} pairs of launches: measure {more} in it"


class NoPairs(BlockingReason, frozen=True):
    """No case has a time in enough pairs of launches."""

    text = "allocation {allocation}: no case has a time in {needed} pairs of launches"
    allocation: str
    needed: int


class StackChanged(BlockingReason, frozen=True):
    """A stack differs between the two allocations."""

    text = "the {stack} stack changed between allocations {first} and {second}: {change}"
    stack: Literal["old", "new"]
    first: str
    second: str
    change: Difference


class PairsLeftOut(GateNote, frozen=True):
    """Pairs of launches that ran in another machine state were left out."""

    allocation: str
    flipped: int
    pairs: int

    def render(self) -> str:
        return f"{_state_changed(self.allocation, self.flipped, self.pairs, 'launch pair', _OTHERS)}; left out"


class EqualStacks(GateNote, frozen=True):
    """The recorded software and settings of both stacks are equal."""

    text = "the two stacks have the same recorded software and settings: this compares a stack with itself"


class NewCases(GateNote, frozen=True):
    """Cases of the new stack that the old one lacks."""

    text = "{count:case} of the new stack not judged, missing in the old stack: {cases}"
    count: int
    cases: CaseNames


class WideLimits(GateNote, frozen=True):
    """Launches of these cases scatter so much that only a slowdown of 25 % or more is detected."""

    text = "launches scatter too much to detect a slowdown of less than 25 % in {cases}"
    cases: CaseNames


# Notes on a candidate and its baseline.


class SlowedOnPurpose(GateNote, frozen=True):
    """A candidate was measured with `--slowed`; `how` is its value as typed."""

    text = "allocation {allocation} was slowed on purpose ({how}): the verdict is not about the {judged}"
    allocation: str
    how: str
    judged: Literal["cluster", "stacks"] = "cluster"


class FewLaunches(GateNote, frozen=True):
    """Allocations with so few launches that unstable cases are not detected."""

    text = "{allocation}{others:? and {others:other}}: fewer than {needed} launches, so unstable cases are not detected; use five"
    allocation: str
    others: int
    needed: int


class BaselineOfOneJob(GateNote, frozen=True):
    """Two allocations of the baseline were measured in one job."""

    text = (
        "baseline: {allocation} and {other} were both measured in {job}, so limits may be too narrow; drop one, and add one of another job"
    )
    allocation: str
    other: str
    job: str


class BaselineWithoutProbe(GateNote, frozen=True):
    """Allocations of the baseline without a state probe."""

    text = "{count} of {allocations:allocation} of the baseline without a state probe: the state of the machine is unknown"
    count: int
    allocations: int


class WithoutProbe(GateNote, frozen=True):
    """Launches of a candidate without a state probe."""

    text = "allocation {allocation}: {count} of {launches:launch} without a state probe: the state of the machine is unknown"
    allocation: str
    count: int
    launches: int


class BaselineWithoutStart(GateNote, frozen=True):
    """Allocations of the baseline without a start time."""

    text = "{count} of {allocations:allocation} of the baseline without a start time ({first}): they count as the oldest"
    count: int
    allocations: int
    first: str


class WithoutStart(GateNote, frozen=True):
    """A candidate without a start time; `several`: there are other candidates, and all keep the order in which they were named."""

    allocation: str
    several: bool

    def render(self) -> str:
        effect = "allocations are judged in the order given" if self.several else "it may be older than the baseline"
        return f"allocation {self.allocation} has no start time: {effect}"


class WithoutHistory(GateNote, frozen=True):
    """Cases of a candidate that too few allocations of the baseline have."""

    allocation: str
    count: int
    cases: CaseNames

    def render(self) -> str:
        why = f"since the baseline has too few allocations with {'it' if self.count == 1 else 'them'}"
        return f"{plural(self.count, 'case')} of allocation {self.allocation} not judged, {why}: {self.cases}"


class UncheckedCases(GateNote, frozen=True):
    """Cases with received data that were not compared with the data sent."""

    text = "allocation {allocation}: received data were not checked in {cases}"
    allocation: str
    cases: CaseNames


class SlowerLater(GateNote, frozen=True):
    """Cases and groups that exceed their limit in several later allocations, but not in the first."""

    first: str
    names: tuple[str, ...]

    def render(self) -> str:
        return f"slower in several allocations, but not in {self.first}, the first one: {'; '.join(self.names)}; judge the later ones alone"


class NotInSuite(GateNote, frozen=True):
    """Suspects that no suite can name, since their traffic comes from a file."""

    text = "not in --confirm-suite, since a suite cannot describe their traffic: {cases}; measure the whole suite again"
    cases: CaseNames


class ExpiredAnnouncement(GateNote, frozen=True):
    """An announcement of --expect that expired on that day."""

    text = "the announcement by {reviewer} ({reason}) expired on {expires}"
    reviewer: str
    reason: str
    expires: str


class UnusedAnnouncement(GateNote, frozen=True):
    """An announcement of --expect with a change that did not happen; `topic` and `what` are its patterns."""

    text = "the announcement by {reviewer} ({reason}) is not used: {topic} {what} did not change"
    reviewer: str
    reason: str
    topic: str
    what: str


# How plausible a change is as the cause of a slowdown.

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
BACKEND = "backend"
OPERATION = "operation"
CASES = "cells"
UNCLEAR = "unclear"
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
        contrasted = "small" if self.messages == "large" else "large"
        contrast = _CONTRASTS[self.contrast].format(contrasted)
        if self.contrast == "unknown" and contrasted == "small":
            contrast = "; small messages, which would distinguish it from slower hosts, were not measured"
        unclear = ", not distinguishable here" if self.cause == UNCLEAR else ""
        alone = "; no other backend was measured" if self.only else ""
        return f"{' or '.join(named)}{unclear}: {which} {_slower(self.slowdown)} on {_all_of(self.backends)}{contrast}{alone}"


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


def _series(pairs: tuple[tuple[str, str], ...]) -> str:
    """Return "allreduce and broadcast on gloo and mpi" if each pair is in the list, else the pairs one by one."""
    backends, operations = (list(dict.fromkeys(names)) for names in zip(*pairs, strict=True))
    if len(backends) * len(operations) == len(pairs):
        return f"{_all_of(operations)} on {_all_of(backends)}"
    return _all_of(f"{operation} on {backend}" for backend, operation in pairs)


def _all_of(words: Iterable[str]) -> str:
    """Return "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def times(excesses: list[float]) -> str:
    """Return "1.11" or "1.05 to 1.11", the factors of these values in ln of time; with three digits from 100 on: "6250"."""
    texts = []
    for excess in (min(excesses), max(excesses)):
        rounded = float(f"{exp(excess):.3g}")
        digits = 1 if rounded < 100 else 0
        texts.append(f"{rounded:.{2 if rounded < 10 else digits}f}")
    return " to ".join(dict.fromkeys(texts))


REASONS: Any = reduce(
    or_, [*BlockingReason.__subclasses__(), *(kind for kind in GateReason.__subclasses__() if kind is not BlockingReason)]
)
NOTES: Any = reduce(or_, GateNote.__subclasses__())
WAITING = (StillSuspected, SuspectedBelowFloor)  # reasons that another measurement of the suspects answers


def rendered(facts: Sequence[Fact]) -> list[str]:
    """Return the text of each fact."""
    return [fact.render() for fact in facts]
