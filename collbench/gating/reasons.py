"""Facts of a verdict: why it is not a pass (`GateReason`), and other notes for the reader (`GateNote`).

Each fact has typed fields, and only `render` makes its text. verdict.json stores both the fields and the text.
"""

# ruff: noqa: D102 – `Fact.render` documents all of them.

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any, ClassVar, Literal

import msgspec

from collbench.analysis.differences import Difference
from collbench.reason import Fact
from collbench.units import listed, plural

_FRESH = "measure a fresh allocation when the machine is idle"
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

    baseline: str
    allocations: int
    needed: int
    left_out: int = 0

    def render(self) -> str:
        return (
            f"{self.baseline} has {plural(self.allocations, 'allocation')}{_besides(self.left_out)}, but the gate needs {self.needed}: "
            "add good ones"
        )


class NoHistory(BlockingReason, frozen=True):
    """None of the baseline's cases was measured in enough of its allocations."""

    baseline: str
    needed: int
    left_out: int = 0

    def render(self) -> str:
        return f"{self.baseline} has no case in {self.needed} allocations{_besides(self.left_out)}: add good allocations of the same suite"


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

    text = (
        "allocation {allocation} and {other} of the baseline were both measured in {job}: results of one job repeat each other, so they "
        "count once; measure in another job"
    )
    allocation: str
    other: str
    job: str


class SameJob(BlockingReason, frozen=True):
    """Two candidates were measured in one job of the scheduler."""

    text = (
        "allocations {allocation} and {other} were both measured in {job}: results of one job repeat each other, so they count once; "
        "measure in another job"
    )
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
        return (
            f"allocation {self.allocation} ran on {listed(self.hosts, 3)}, but {self.baseline} was measured on other machines "
            f"({listed(self.baseline_hosts, 3)}): make a baseline of this cluster"
        )


class UnexpectedChange(GateReason, frozen=True):
    """Something changed since the last good allocation without an announcement."""

    text = "unexpected change: {change} (announce expected changes with --expect FILE)"
    change: Difference


class SidesDiffer(BlockingReason, frozen=True):
    """The old and the new stack differ in something other than the stack."""

    text = "unexpected change: {change} (announce expected changes with --expect FILE)"
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
        return (
            f"allocation {self.allocation}: launches of {self.cases} scatter more than in the baseline{flags}; measure a fresh allocation"
        )


class StillSuspected(GateReason, frozen=True):
    """Suspects that need `more` fresh allocations; 0: the later allocations lack them."""

    suspects: int
    more: int

    def render(self) -> str:
        how = (
            f"in {plural(self.more, 'fresh allocation')}, and judge all together" if self.more > 0 else "in the allocations that lack them"
        )
        return f"{plural(self.suspects, 'suspect')}: measure {'it' if self.suspects == 1 else 'them'} again {how}"


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


_BASELINE, _OTHERS = "the baseline's", "the others'"


def _state_changed(allocation: str, count: int, of: int, noun: str, than: str) -> str:
    it = "its state probe differs" if count == 1 else "their state probes differ"
    return f"allocation {allocation}: {count} of {plural(of, noun)} ran in another machine state ({it} from {than} by more than 20 %)"


def _besides(left_out: int) -> str:
    return f" (without {plural(left_out, 'allocation')} in another machine state)" if left_out else ""


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
        old, new = self.old_hosts or "unknown hosts", self.new_hosts or "unknown hosts"
        return f"allocation {self.allocation}: the old stack ran on {old}, the new one on {new}; {_INTERLEAVE}"


class UnequalLaunches(BlockingReason, frozen=True):
    """The stacks have different numbers of launches."""

    text = "allocation {allocation}: {old:launch} of the old stack, {new:launch} of the new one; measure as many of each"
    allocation: str
    old: int
    new: int


class StartUnknown(BlockingReason, frozen=True):
    """The start time of a launch is unknown, so its partner is unknown too."""

    text = (
        "allocation {allocation}: the start time of a launch is missing, so pairs are unknown; start one launch of the old stack and one "
        "of the new, then the next two, in the same job"
    )
    allocation: str


class NotInterleaved(BlockingReason, frozen=True):
    """The launches of the two stacks do not alternate."""

    text = (
        "allocation {allocation}: the launches of the two stacks are not interleaved; start one launch of the old stack and one of the "
        "new, then the next two, in the same job"
    )
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

    allocation: str
    others: int
    needed: int

    def render(self) -> str:
        more = f" and {plural(self.others, 'other')}" if self.others else ""
        return f"{self.allocation}{more}: fewer than {self.needed} launches, so unstable cases are not detected; use five"


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
        return (
            f"{plural(self.count, 'case')} of allocation {self.allocation} not judged, since the baseline has too few allocations with "
            f"{'it' if self.count == 1 else 'them'}: {self.cases}"
        )


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


REASONS: Any = reduce(
    or_, [*BlockingReason.__subclasses__(), *(kind for kind in GateReason.__subclasses__() if kind is not BlockingReason)]
)
NOTES: Any = reduce(or_, GateNote.__subclasses__())
WAITING = (StillSuspected, SuspectedBelowFloor)  # reasons that another measurement of the suspects answers


def rendered(facts: Sequence[Fact]) -> list[str]:
    """Return the text of each fact."""
    return [each.render() for each in facts]
