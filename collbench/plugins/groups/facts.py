"""Facts about the paths between groups of hosts: what is slow, its evidence, and notes."""

# ruff: noqa: D102 – `Fact.render` documents all of them.

from __future__ import annotations

from typing import Literal

from collbench.plugins.hunt.protocol import CLEARED, CONFIRMED
from collbench.reason import Fact
from collbench.units import format_percent, listed, plural


class BetweenGroups(Fact, frozen=True):
    """The paths between two groups; `ratio` is their rate relative to the others, `slow` of `pairs` pairs were slow in the sweep.

    one_way  the direction if only one is slow: "from leaf1 to leaf2"; "": both
    cleared  how many of the endpoints are fast inside their group; others: how many are not, or were not measured inside
    """

    first: str
    second: str
    state: Literal["confirmed", "cleared", "inconclusive"]
    ratio: float
    slow: int
    pairs: int
    one_way: str = ""
    cleared: int = 0
    others: int = 0

    def render(self) -> str:
        where = self.one_way or f"between {self.first} and {self.second}"
        if self.state == CLEARED:
            return f"{where}: as fast as the others"
        text = f"{where}: {format_percent(100 * self.ratio)} of the others ({self.slow} of {self.pairs} pairs)"
        if self.state != CONFIRMED:
            return text
        nodes = f"{self.cleared} of {self.cleared + self.others} nodes" if self.others else "the nodes"
        return f"{text}, {nodes} are cleared"


class TrunkRetest(Fact, frozen=True):
    """Pairs between two groups, measured again at the same time as control pairs; rates in bytes/s, the geometric mean of the pairs."""

    text = "again with {pairs:pair} at once: {speed:rate} GB/s; {controls:control pair}: {usual:rate} GB/s"
    pairs: int
    speed: float
    controls: int
    usual: float


class NodesCleared(Fact, frozen=True):
    """How many endpoints of two groups reach the usual rate with a partner on another path; `others` do not, or were not measured."""

    text = "{fast} of {endpoints} endpoints reach the usual rate on other paths{others:?; not shown for {others:list}}"
    fast: int
    endpoints: int
    others: tuple[str, ...] = ()


class OnlyTwoGroups(Fact, frozen=True):
    """Paths between other groups, to compare with, are missing."""

    text = "the pairs inside the two groups are the only comparison: a path that is narrower by design looks the same"


class TrunkNotRetested(Fact, frozen=True):
    """A path between groups that was slow in the sweep, and could not be measured again often enough."""

    text = "measured again in {rounds:round}: too few for a verdict (too few endpoints or rounds)"
    rounds: int


class SlowWhenFull(Fact, frozen=True):
    """Pairs between two groups are slow only if many of them are measured at once."""

    text = "{pairs} pairs at once reach {ratio:share}, but {fewer:pair} at once {fewer_ratio:share}: too little capacity, or chance"
    pairs: int
    ratio: float
    fewer: int
    fewer_ratio: float


class SourcePorts(Fact, frozen=True):
    """The rates of a slow pair over TCP, a stream at a time, by source port; `slow` ports were slow both times, `unclear` ones once."""

    sender: str
    receiver: str
    ports: int
    slow: tuple[int, ...]
    unclear: int = 0

    def render(self) -> str:
        head = f"TCP from {self.sender} to {self.receiver}: {len(self.slow)} of {self.ports} source ports are slow"
        if self.unclear:
            return f"{head}, {self.unclear} unclear"
        if len(self.slow) == self.ports:
            return f"{head}: all paths are, or a part that they share"
        if self.slow:
            return f"{head} ({listed(list(map(str, self.slow)))}): some paths of several equal ones are slow (ECMP)"
        return f"{head}: one stream at a time is not slow"


class PortsNotMeasured(Fact, frozen=True):
    """The source ports of a slow pair were not measured."""

    text = "source ports not measured: {why}"
    why: str


class BetweenAllSlower(Fact, frozen=True):
    """All paths between groups are slower than those inside; `groups` is the number of groups."""

    text = (
        "pairs between all {groups} groups reach {ratio:share} of those inside: the network is narrower above the groups, by design or "
        "by a fault that all share"
    )
    groups: int
    ratio: float


class GroupsFound(Fact, frozen=True):
    """The groups that the latencies of the pairs show, with their endpoints."""

    groups: tuple[tuple[str, ...], ...]

    def render(self) -> str:
        return f"{plural(len(self.groups), 'group')} by latency: {'; '.join(listed(list(group)) for group in self.groups)}"


class NoGroupsFound(Fact, frozen=True):
    """The latencies of the pairs show no groups."""

    text = "no groups found: the latencies of the pairs are not clearly in two classes; paths between groups are not judged"
