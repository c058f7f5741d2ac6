"""Facts of a hunt: the evidence for and against a suspect, the part that is slow, and notes on what was not decided.

An endpoint is what a hunt compares: a rank, or a host with all of its ranks. "Control pairs" are pairs of healthy endpoints that were
measured at the same time.
"""

# ruff: noqa: D102 – `Fact.render` documents all of them.

from __future__ import annotations

from typing import Literal

from collbench.reason import Fact, filled
from collbench.results.flags import flag_name
from collbench.units import format_percent, format_rate, format_time, listed, plural

Ways = Literal["sends and receives", "sends", "receives", "small messages"]
Stage = Literal["growing", "isolation"]


# Why it is a suspect.


class SlowInSweep(Fact, frozen=True):
    """An endpoint was slow in the sweep; `ratio` is its speed relative to the others, `where` the paths ("to other hosts")."""

    ways: Ways
    ratio: float
    slow: int
    partners: int
    where: str = ""

    def render(self) -> str:
        speed = f"{self.ways} at {format_percent(100 * self.ratio)} of the median"
        if self.ways == "small messages":
            speed = f"small messages take {1 / self.ratio:.2f} times as long as the median"
        return f"sweep: {speed}{filled('{where:? {where}} ({slow} of {partners:partner})', self)}"


class PairSlowInSweep(Fact, frozen=True):
    """A pair was slow in the sweep. ratio: to the speed that its two places have with others, a slow one of them included."""

    ways: Ways
    ratio: float

    def render(self) -> str:
        if self.ways == "small messages":
            return f"sweep: the pair took {1 / self.ratio:.2f} times as long as its places with others"
        return f"sweep: the pair reached {format_percent(100 * self.ratio)} of what its places reach with others"


class SlowWithOnePartner(Fact, frozen=True):
    """An endpoint was slow with one partner and not with others, so the path between the two may be slow."""

    text = "{endpoint} was slow with {partner}, but not with {others:list}"
    endpoint: str
    partner: str
    others: tuple[str, ...]


class SlowGroups(Fact, frozen=True):
    """The groups of an endpoint were slow."""

    text = "{slow} of {groups:group} with it reached {ratio:share} (median) of the others' bus bandwidth"
    slow: int
    groups: int
    ratio: float


class GroupsNotMeasured(Fact, frozen=True):
    """No group of an endpoint could be measured; `why` is the reason of the last one."""

    text = "none of the {groups:group} with it could be measured: {why}"
    groups: int
    why: str


# The repeated measurements.


class Retest(Fact, frozen=True):
    """A suspect was measured again with a partner; rates in bytes/s, latencies in s.

    endpoint  the end of a path that was measured; "" for a suspect that is one endpoint
    healthy   whether the partner is known to be healthy; controls: how many control pairs there were, 0: figures of the sweep
    na        why figures are missing; "" if they are not
    """

    partner: str
    healthy: bool
    controls: int = 0
    sent: float | None = None
    received: float | None = None
    latency_s: float | None = None
    usual_sent: float | None = None
    usual_received: float | None = None
    usual_latency_s: float | None = None
    na: str = ""
    endpoint: str = ""

    def render(self) -> str:
        subject = f"{self.endpoint} " if self.endpoint else ""
        doubt = "" if self.healthy else " (a suspect too, or fast with it before)"
        head = f"{subject}again with {self.partner}{doubt}"
        if self.na:
            return f"{head}: not measured ({self.na})"
        ways = ((self.sent, "sent"), (self.received, "received"))
        measured = [f"{format_rate(rate)} GB/s {way}" for rate, way in ways if rate is not None]
        if self.latency_s is not None:
            measured.append(f"{format_time(self.latency_s)} µs")
        usual = [f"{format_rate(rate)} GB/s" for rate in (self.usual_sent, self.usual_received) if rate is not None]
        if self.usual_latency_s is not None:
            usual.append(f"{format_time(self.usual_latency_s)} µs")
        controls = plural(self.controls, "control pair") if self.controls else "median of the sweep"
        compared = f"{controls}: {', '.join(usual)}" if usual else "no control pair"
        return f"{head}: {', '.join(measured)}; {compared}"


class RetestCounts(Fact, frozen=True):
    """In how many rounds a suspect was slow, and how many control pairs were as slow."""

    text = (
        "slow in {slow} of {rounds:round}; {slow_controls} of {controls} control pairs as slow"
        "{waited:?; its ranks waited for a CPU in {waited} of them}"
        "{flipped:?; {flipped:more round} not used (the state probe changed)}"
    )
    slow: int
    rounds: int
    slow_controls: int
    controls: int
    waited: int = 0
    flipped: int = 0


class NotProven(Fact, frozen=True):
    """Why the rounds do not confirm a suspect.

    cause  "cpu": other work used its CPU; "state": the machine changed its state; "rounds": it was not slow in all rounds; "controls":
           control pairs were as slow; "scatter": too few rounds, or too much scatter
    count  rounds (of controls: pairs), out of `total`
    """

    cause: Literal["cpu", "state", "rounds", "controls", "scatter"]
    count: int
    total: int

    def render(self) -> str:
        return f"inconclusive: {filled(_CAUSES[self.cause], self)}"


_CAUSES = {
    "cpu": "other work used its CPU in {count} of {total:round}",
    "state": "the machine changed its state in {count:round}",
    "rounds": "slow in only {count} of {total:round}",
    "controls": "{count} of {total} control pairs were as slow",
    "scatter": "{count:round} are too few, or scatter too much, for a confirmation",
}


class BelowThreshold(Fact, frozen=True):
    """It was slower again, but by less than the smallest slowdown that is reported."""

    text = "slower again, but by less than the smallest slowdown that is reported"


class FastWithPeers(Fact, frozen=True):
    """A suspect is as fast with these as others are with each other, as in a smaller part of a divided network."""

    text = "as fast with {peers:list} as others with each other: it may be in a smaller part of the network"
    peers: tuple[str, ...]


class DividedNetwork(Fact, frozen=True):
    """Other suspects are fast with each other, so the network may have parts."""

    text = "inconclusive: other suspects are fast with each other, so the network may have several parts"


class ControlsAsSlow(Fact, frozen=True):
    """Control pairs were as slow, or there were none on this kind of path."""

    text = "inconclusive: control pairs were as slow at the same time, or none used the same kind of path"


class TooFewPartners(Fact, frozen=True):
    """It was not measured again with two healthy partners."""

    text = "inconclusive: not measured again with two healthy partners"


class MixedPartners(Fact, frozen=True):
    """It is slow with some healthy partners only."""

    text = "inconclusive: slow with some healthy partners, but not clearly with others"


class SlowOnce(Fact, frozen=True):
    """A pair was slow once, but not clearly again."""

    text = "inconclusive: slow once, but not clearly when measured again"


class NotRetested(Fact, frozen=True):
    """A pair could not be measured again."""

    text = "inconclusive: it could not be measured again"


class EndNotCleared(Fact, frozen=True):
    """An end of a slow path was not fast with any partner, so the end may be slow instead."""

    text = "inconclusive: {endpoint} was not fast with any partner"
    endpoint: str


class OthersAsSlow(Fact, frozen=True):
    """Many pairs of other endpoints are as slow; `share` of them."""

    text = "inconclusive: {share:share} of the pairs of other endpoints are as slow: the network may have segments of different speed"
    share: float


class ManyPaths(Fact, frozen=True):
    """So many paths without a common endpoint are slow that the network is built so."""

    text = "inconclusive: {paths} paths without a common endpoint are slow, so the topology explains them"
    paths: int


class Deferred(Fact, frozen=True):
    """Not measured again: too few healthy endpoints would be left to compare with."""

    text = "inconclusive: not measured again, since too few healthy endpoints would remain to compare with"


class NoFigures(Fact, frozen=True):
    """An endpoint gave no figures in its last rounds."""

    text = "none of its last {missing} of {pairs:pair} could be measured: {why}"
    missing: int
    pairs: int
    why: str


class FewPartnersMeasured(Fact, frozen=True):
    """An endpoint was measured with too few partners."""

    text = "measured with {partners:partner} only; {needed} are needed"
    partners: int
    needed: int


class SpeedUnknown(Fact, frozen=True):
    """Whether an endpoint is slow is unknown."""

    text = "inconclusive: whether it is slow is unknown"


class WrongElements(Fact, frozen=True):
    """Measurements of an endpoint with wrong data."""

    text = "{endpoint}: wrong data in {wrong} of {measured:measurement}"
    endpoint: str
    wrong: int
    measured: int


class AloneOnSwitch(Fact, frozen=True):
    """The only endpoint on its switch: faults of the switch look the same."""

    text = "no other endpoint is on its switch ({switch}): that switch and its cables may be the cause"
    switch: str


# Growing groups, and suspects measured alone.


class SlowAtScale(Fact, frozen=True):
    """All groups of a size were slow with this endpoint; `ratio` of the others' bus bandwidth."""

    text = "{groups} groups of {size} were slow with it; the last reached {ratio:share} of the others' bus bandwidth"
    groups: int
    size: int
    ratio: float


class FastWithout(Fact, frozen=True):
    """Its partners were fast without it; it was itself fast in groups of `size`, 0: in none."""

    text = "its partners were fast without it{size:?, and it was fast in groups of {size}}"
    size: int = 0


class InsideRatio(Fact, frozen=True):
    """An all-reduce among the endpoint's own ranks, relative to that of healthy endpoints at the same time."""

    text = "inside: an all-reduce of its own ranks reaches {ratio:share} of that of {controls:healthy endpoint}"
    ratio: float
    controls: int


class InterfaceRatio(Fact, frozen=True):
    """Messages over one interface alone, relative to those of healthy pairs at the same time."""

    text = "{interface}: {ways} over it alone at {ratio:share} of {controls:healthy pair}"
    interface: str
    ways: Ways
    ratio: float
    controls: int


class PartNotMeasured(Fact, frozen=True):
    """A part was not measured alone; `part` is "inside" or an interface."""

    text = "{part}: not measured ({why})"
    part: str
    why: str


class InsideNotMeasured(Fact, frozen=True):
    """The endpoint has one rank, so its inside was not measured."""

    text = "not measured inside (needs several ranks per host): over TCP, busy CPU cores look the same"


class InsideHost(Fact, frozen=True):
    """The inside of the host."""

    text = "inside the host (CPU, memory or GPU links)"


class SlowInterfaces(Fact, frozen=True):
    """Some of its network interfaces."""

    names: tuple[str, ...]

    def render(self) -> str:
        return f"{'interface' if len(self.names) == 1 else 'interfaces'} {listed(self.names)}"


class WayToNetwork(Fact, frozen=True):
    """Its connection to the network: `interfaces` are those that were measured alone, all of them slow."""

    text = "its connection to the network{interfaces:? ({interfaces:list})}"
    interfaces: tuple[str, ...] = ()


# Notes.


class PairFigures(Fact, frozen=True):
    """The figures of a pair, where there are too few endpoints to find a slow one; rates in bytes/s, the latency in s."""

    a: str
    b: str
    there: float
    back: float | None = None
    latency_s: float | None = None

    def render(self) -> str:
        back = "" if self.back is None else f", {format_rate(self.back)} GB/s back"
        latency = "" if self.latency_s is None else f", {format_time(self.latency_s)} µs"
        return f"{self.a} and {self.b}: {format_rate(self.there)} GB/s there{back}{latency}"


class PairNotMeasured(Fact, frozen=True):
    """A pair could not be measured."""

    text = "{a} and {b}: not measured ({why})"
    a: str
    b: str
    why: str


class MorePairsNotMeasured(Fact, frozen=True):
    """Pairs that could not be measured, beyond those that are named."""

    text = "{count:more pair} not measured"
    count: int


class RoundFlag(Fact, frozen=True):
    """A flag of rounds."""

    flag: str
    count: int
    rounds: int

    def render(self) -> str:
        return f"{self.count} of {plural(self.rounds, 'round')}: {flag_name(self.flag)}"


class PairsNotCovered(Fact, frozen=True):
    """Not every pair was measured, so a slow path may be undetected."""

    text = "{measured} of {possible} pairs measured: a slow path of the others is not detected"
    measured: int
    possible: int


class DividedPairs(Fact, frozen=True):
    """No endpoint is slow, but many pairs are slower than the fastest ones."""

    text = (
        "no slow endpoint found, but {share:share} of the pairs are slower than the fastest ones: the network may have segments of "
        "different speed, or half of the endpoints are slow"
    )
    share: float


class AllAlike(Fact, frozen=True):
    """No endpoint is slower than the others; `middle` is their median, bytes/s."""

    text = "all reach {middle:rate} GB/s; if that is far below the hard limit, all are slow"
    middle: float


class GroupSweep(Fact, frozen=True):
    """The sweep was by groups, which detects less."""

    text = "the sweep measured groups: slow paths between two endpoints and slow small messages are not detected"


class PairsInstead(Fact, frozen=True):
    """Pairs were measured although groups were requested."""

    text = "pairs measured instead of groups, which need {needed} endpoints and cannot cover links"
    needed: int


class RoundsUsedUp(Fact, frozen=True):
    """The rounds did not suffice to measure every suspect again."""

    text = "{rounds:round} did not suffice to measure every suspect again; the others are inconclusive"
    rounds: int


class PathsNotRetested(Fact, frozen=True):
    """Slow pairs that were not measured again."""

    text = "{count:more pair} slow once and not measured again: too many to be exceptions"
    count: int


class StageSkipped(Fact, frozen=True):
    """A stage was skipped for lack of rounds."""

    stage: Stage
    needed: int
    left: int

    def render(self) -> str:
        skipped = "faults at scale were not searched" if self.stage == "growing" else "suspects were not measured alone"
        return f"{skipped}: that takes up to {plural(self.needed, 'round')}, and {self.left} are left"


class TooManySuspects(Fact, frozen=True):
    """So many endpoints are slower that the others may be the exception."""

    text = (
        "{slow} of {endpoints} endpoints are slower than the others: too many to decide which are healthy; compare their bandwidth with "
        "the hard limit (`collbench peak`)"
    )
    slow: int
    endpoints: int


class TooFewMeasured(Fact, frozen=True):
    """Too few endpoints gave figures."""

    text = "only {measured} of {endpoints} endpoints were measured with enough others"
    measured: int
    endpoints: int


class OneEndpoint(Fact, frozen=True):
    """There is only one endpoint."""

    text = "one endpoint: nothing to compare it with; hunt with four or more"


class TooFewEndpoints(Fact, frozen=True):
    """Two or three endpoints: a slow one cannot be found."""

    endpoints: Literal[2, 3]

    def render(self) -> str:
        if self.endpoints == 2:
            return "two endpoints: one pair does not show which end is slow, or the path between them; measure with four or more"
        return "three endpoints: a slow one looks like a fast path between the other two; measure with four or more"


class GrowingNeedsMore(Fact, frozen=True):
    """Too few endpoints for growing groups."""

    text = "growing groups: {endpoints} endpoints are too few for two groups of {size}"
    endpoints: int
    size: int


class GroupNotMeasured(Fact, frozen=True):
    """A group could not be measured; `part`: a part of a slow group with others; size 0: all endpoints together."""

    size: int
    why: str
    part: bool = False

    def render(self) -> str:
        if not self.size:
            return f"all endpoints together: not measured ({self.why})"
        return f"a {'part of a slow ' if self.part else ''}group of {self.size}: not measured ({self.why})"


class WholeSlow(Fact, frozen=True):
    """All endpoints together are slower than smaller groups, and no part of them is."""

    text = (
        "all {endpoints} endpoints together reach {ratio:share} of the bus bandwidth of smaller groups, and no part of them is slow: the "
        "cause is the core of the network, or the library's algorithm for so many ranks"
    )
    endpoints: int
    ratio: float


class SizeSlow(Fact, frozen=True):
    """All groups of a size are slower than smaller ones."""

    text = (
        "all groups of {size} reach {ratio:share} of the bus bandwidth of smaller ones: the cause is what they share, such as upper "
        "switches or the library's algorithm"
    )
    size: int
    ratio: float


class TooManySlowGroups(Fact, frozen=True):
    """Most groups of a size are slower than the others."""

    text = "{slow} of {groups} groups of {size} are slower than the others: too many to find the cause"
    slow: int
    groups: int
    size: int


class PartsNotDivided(Fact, frozen=True):
    """Slow parts of groups that were not divided further; `why`: no rounds were left, or too few healthy endpoints."""

    parts: int
    size: int
    why: Literal["rounds", "endpoints"]

    def render(self) -> str:
        lack = "rounds" if self.why == "rounds" else "healthy endpoints"
        return f"{plural(self.parts, 'slow part')} of groups of {self.size} not divided further: too few {lack} left"


class NoSlowPiece(Fact, frozen=True):
    """No piece of a slow group was slow with others."""

    text = (
        "a group of {size} was slow, but no piece of its last {endpoints} endpoints was slow with others: the cause is the paths between "
        "them, or chance"
    )
    size: int
    endpoints: int


class NotConfirmedAtScale(Fact, frozen=True):
    """Endpoints that were slow in groups of a size, but could not be measured again."""

    text = "{count:more endpoint} slow in groups of {size}, but not measured again"
    count: int
    size: int


# Notes that some place is slow, and that it is not known which.
SLOW_PLACE_UNKNOWN = (TooManySlowGroups, PartsNotDivided, NotConfirmedAtScale)


class ClearedAtScale(Fact, frozen=True):
    """An endpoint that was slow in groups of a size was not slow again; `why` it was not measured, "": it was."""

    text = "an endpoint that was slow in groups of {size} was not slow when measured again{why:? ({why})}"
    size: int
    why: str = ""
