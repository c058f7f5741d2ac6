"""What a hunt has heard so far: every round with its answer, and the matrix of pairs that the sweep makes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.analysis.hunt.facts import Evidence, FewPartnersMeasured, NoFigures
from collbench.analysis.pair_statistics import levelled
from collbench.reason import Fact, as_json
from collbench.results.rounds import PairMatrix

# The requests of a hunt and their answers: the protocol between the strategy (this package) and the measurement (a task, or a model).
#
# A hunt is a generator: it yields a `RoundRequest`, is sent the `RoundResult`, and returns a `HuntVerdict`. Places are numbered from 0, as
# in `pairs`.

PAIRS, GROUPS, INSIDE, NIC = "pairs", "groups", "inside", "nic"


@dataclass(frozen=True)
class RoundRequest:
    """One round: everything in it is measured at the same time, so its groups are disjoint.

    kind    PAIRS: messages both ways between two places; GROUPS: an all-reduce in each group of places; INSIDE: an all-reduce among the
            ranks of each place (a group is one place); NIC: messages of a pair over one interface alone (`nic`)
    groups  of places; of PAIRS and NIC two each, the lower first
    why     for the log: "round 3 of 8", "3 suspects with two partners that are well"
    stage   "sweep", "cross-check", "growing", "isolation": rounds are counted by it
    pause_s seconds to wait before the round: rounds that repeat a measurement are apart in time, so a short disturbance reaches one of them
    """

    kind: str
    groups: tuple[tuple[int, ...], ...]
    why: str
    stage: str = "sweep"
    nic: str | None = None
    pause_s: float = 0.0


@dataclass(frozen=True)
class GroupFigure:
    """The result of one group; None if it could not be measured (`na` has the reason).

    speed      bytes per second: of GROUPS and INSIDE the bus bandwidth; of PAIRS and NIC the messages from the first place to the second
    backward   PAIRS, NIC: from the second to the first
    latency_s  PAIRS: half the round trip
    low, high  the speed's 95 % interval; of PAIRS that of the slower direction
    wrong      elements that were not what was sent
    cpu_wait   PAIRS: share of the round's time that its ranks waited for a CPU, of the rank that waited most; 0 where unknown
    flipped    PAIRS: whether the state probe of one of its ranks changed during the round
    """

    speed: float | None
    backward: float | None = None
    latency_s: float | None = None
    low: float | None = None
    high: float | None = None
    wrong: int = 0
    na: str | None = None
    cpu_wait: float = 0.0
    flipped: bool = False


@dataclass(frozen=True)
class RoundResult:
    """A figure for each group of the ask, in its order; flags hold for the whole round."""

    figures: tuple[GroupFigure, ...]
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hint:
    """A place or path that may be slow, before it is confirmed.

    places  one, or two of a path, or all of a group with a slow member
    kind    as in `Suspect.kind`
    ratio   the speed reached of what the others do
    state   CONFIRMED, CLEARED or INCONCLUSIVE where it was measured again already, as growing groups are; "": measure it again with pairs
    partners, evidence  as of a `Suspect`
    """

    places: tuple[int, ...]
    kind: str
    ratio: float
    evidence: tuple[Fact, ...]
    state: str = ""
    partners: tuple[int, ...] = ()


@dataclass(frozen=True)
class Options:
    """How a hunt goes about it.

    method      "pairs": rounds of pairs; "groups": collectives over groups that overlap, O(log N) of them; "auto": pairs where so many
                rounds fit into the time, else groups
    rounds      of the sweep at most (None: chosen by the number of places); most_rounds: of everything, the promise printed beforehand
    seed        of every draw
    growing     whether groups that grow are measured where no pair is slow: faults that show at scale alone
    isolate     whether a confirmed place is measured alone: inside, and over each interface
    can_inside  whether places have several ranks; nics: interface names that all places have (for NIC)
    leaf_of     by place the switch it hangs on, where that is known: partners are chosen from elsewhere, too
    cover       pairs that a schedule has to hold, so that every link of the fabric is crossed (`--cover-links`); None: not asked for
    """

    method: str = "auto"
    rounds: int | None = None
    most_rounds: int | None = None
    seed: int = 0
    growing: bool = True
    isolate: bool = True
    can_inside: bool = False
    nics: tuple[str, ...] = ()
    leaf_of: tuple[str, ...] | None = None
    cover: tuple[tuple[int, int], ...] | None = None


Hunt = Generator[RoundRequest, RoundResult, "HuntVerdict"]


# The result of a hunt: of each suspect its state, and the evidence.

CONFIRMED, CLEARED, INCONCLUSIVE = "confirmed", "cleared", "inconclusive"


@dataclass(frozen=True)
class Suspect:
    """A place, or a path between two, that was slow in the sweep.

    kind      "node" (both ways), "sender", "receiver", "latency" (small messages alone), "path" (two places), "inside" (its own ranks
              alone), "scale" (slow in larger groups alone): each has a code, see `recommendation.CODES`
    places    one, or two of a path
    state     CONFIRMED: slow with each of at least two partners that are known to be well; CLEARED: as fast as they are with one another;
              INCONCLUSIVE: neither
    ratio     the speed it reaches of what the others do, below 1 where it is slow (of a latency the inverse of how much longer it takes)
    low, high its 95 % interval
    partners  it was measured again with
    evidence  what was measured, with which partners, against which controls
    part      the slow part that the isolation found; None where it is unknown
    """

    kind: str
    places: tuple[int, ...]
    state: str
    ratio: float
    low: float | None = None
    high: float | None = None
    partners: tuple[int, ...] = ()
    evidence: tuple[Fact, ...] = ()
    part: Fact | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it as stored: `evidence` and `part` as text, and as facts."""
        return {
            **{name: getattr(self, name) for name in ("kind", "places", "state", "ratio", "low", "high", "partners")},
            "evidence": [each.render() for each in self.evidence],
            "evidence_facts": as_json(self.evidence),
            "part": "" if self.part is None else self.part.render(),
            "part_fact": None if self.part is None else as_json(self.part),
        }


@dataclass(frozen=True)
class HuntVerdict:
    """names     of the places
    suspects  all of them, confirmed ones first, the worst first
    rounds    how many were measured, by stage; promised: the largest number, as estimated beforehand
    notes     what was not decided, and why; what all places have in common
    no_verdict  why no place can be judged; None: some can
    middle    the usual speed of a pair (groups: of a group), bytes per second; None: unknown
    """

    names: tuple[str, ...]
    suspects: tuple[Suspect, ...]
    rounds: dict[str, int]
    promised: int
    notes: tuple[Fact, ...] = ()
    no_verdict: Fact | None = None
    middle: float | None = None

    def of(self, state: str) -> list[Suspect]:
        """The suspects in that state."""
        return [suspect for suspect in self.suspects if suspect.state == state]

    @property
    def result(self) -> str:
        """Return `confirmed`, `nobody` or `no verdict`, which also is the result with inconclusive suspects only."""
        if self.no_verdict:
            return "no verdict"
        if self.of(CONFIRMED):
            return "confirmed"
        return "no verdict" if self.of(INCONCLUSIVE) else "nobody"

    def name(self, places: Sequence[int]) -> str:
        """ "node07", or "node03 and node09"."""
        return " and ".join(self.names[place] for place in places)


Figures = NDArray[np.float64]
_HARDLY = 1e-12  # an interval from a rate below it has no meaning


@dataclass
class HuntLog:
    """`names`: of the places; `exchanges`: every request with its answer, in order."""

    names: tuple[str, ...]
    exchanges: list[tuple[RoundRequest, RoundResult]] = field(default_factory=list)

    def request(self, request: RoundRequest) -> Generator[RoundRequest, RoundResult, RoundResult]:
        """Ask, and write down what was answered; figures that no network has (0, below 0, infinite) count as not measured.

        Raises ValueError for an answer that has not a figure for each group.
        """
        answer = yield request
        if len(answer.figures) != len(request.groups):
            raise ValueError(f"{len(answer.figures)} figures for {len(request.groups)} groups: {request.why}")
        clean = replace(answer, figures=tuple(map(_clean, answer.figures)))
        self.exchanges.append((request, clean))
        return clean

    def rounds(self) -> dict[str, int]:
        """How many there were, by stage."""
        found: dict[str, int] = {}
        for request, _ in self.exchanges:
            found[request.stage] = found.get(request.stage, 0) + 1
        return found

    def figures(self, kind: str = PAIRS) -> Iterator[tuple[int, tuple[int, ...], GroupFigure]]:
        """(number of the round, group, figure), in the order in which they were measured."""
        for number, (request, answer) in enumerate(self.exchanges):
            if request.kind == kind:
                for group, figure in zip(request.groups, answer.figures, strict=True):
                    yield number, group, figure

    def matrix(self, level: bool = True) -> PairMatrix:
        """All pairs so far, the first figure of each; `level`: without what rounds have in common."""
        n = len(self.names)
        figures = {name: np.full((n, n), np.nan) for name in ("latency", "bandwidth", "low", "high", "wrong")}
        turns = np.full((n, n), -1, np.int64)
        for number, (a, b), figure in self.figures():
            if figure.speed is None or turns[a, b] >= 0:
                continue
            turns[a, b], turns[b, a] = 2 * number, 2 * number + 1  # there and back are measured one after the other
            _put(figures, (a, b), figure)
        return self._made(figures, turns if level else np.full_like(turns, -1))

    def _made(self, figures: dict[str, Figures], turns: NDArray[np.int64]) -> PairMatrix:
        raw = figures["bandwidth"]
        bandwidth = np.exp(levelled(np.log(raw), turns))
        latency = np.exp(levelled(np.log(figures["latency"]), np.where(turns >= 0, turns // 2, -1), symmetric=True))
        low, high = (figures[name] * bandwidth / raw for name in ("low", "high"))
        return PairMatrix(self.names, latency, bandwidth, low, high, figures["wrong"], 0, 0)


def _put(figures: dict[str, Figures], pair: tuple[int, int], figure: GroupFigure) -> None:
    """The interval is that of the slower direction; relative to the speed it is taken for both."""
    ways = [each for each in (figure.speed, figure.backward) if each]
    low, high = ((bound or np.nan) / min(ways) for bound in (figure.low, figure.high))
    for case, speed in ((pair, figure.speed), (pair[::-1], figure.backward)):
        figures["bandwidth"][case] = speed or np.nan
        figures["low"][case], figures["high"][case] = (speed or np.nan) * low, (speed or np.nan) * high
        figures["latency"][case] = figure.latency_s or np.nan
        figures["wrong"][case] = figure.wrong


def _clean(figure: GroupFigure) -> GroupFigure:
    """Return the figure with None for invalid speeds and times; without a speed it counts as not measured."""
    speed, backward, latency, low, high = (
        each if each is not None and isfinite(each) and each > _HARDLY else None
        for each in (figure.speed, figure.backward, figure.latency_s, figure.low, figure.high)
    )
    why = figure.na or ("no speed came out" if speed is None else None)
    if why is not None:
        return GroupFigure(None, wrong=figure.wrong, na=why)
    return replace(figure, speed=speed, backward=backward, latency_s=latency, low=low, high=high)


def lost(log: HuntLog) -> dict[int, Evidence]:
    """Places that give no figures any longer, with the reason: all that was asked of them since at least two rounds (or ever) is missing.

    Partners of such a place lose figures by it, too; those do not count.
    """
    found: dict[int, Evidence] = {}
    while worst := _most_lost(log, found):
        found[worst[0]] = worst[1]
    return found


def _most_lost(log: HuntLog, known: Mapping[int, Evidence]) -> tuple[int, Evidence] | None:
    missed: dict[int, list[str]] = {}
    met: dict[int, set[int]] = {}
    requested: dict[int, int] = {}
    for _, pair, figure in log.figures():
        for place, other in (pair, pair[::-1]):
            if place in known or other in known:
                continue
            requested[place] = requested.get(place, 0) + 1
            missed[place] = [] if figure.speed is not None else [*missed.get(place, []), figure.na or ""]
            met[place] = set() if figure.speed is not None else met.get(place, set()) | {other}
    gone = [place for place, whys in missed.items() if whys and (len(met[place]) >= 2 or len(whys) == requested[place] >= 2)]
    if not gone:
        return None
    worst = max(gone, key=lambda place: (len(missed[place]), -place))
    return worst, NoFigures(len(missed[worst]), requested[worst], missed[worst][-1])


def hardly_met(log: HuntLog, least: int) -> dict[int, Evidence]:
    """Return the places that have figures with fewer than so many others, with the reason."""
    met: list[set[int]] = [set() for _ in log.names]
    for _, (a, b), figure in log.figures():
        if figure.speed is not None:
            met[a].add(b)
            met[b].add(a)
    return {place: FewPartnersMeasured(len(others), least) for place, others in enumerate(met) if len(others) < least}


def wrong_data(log: HuntLog) -> dict[int, tuple[int, int]]:
    """Return the places with wrong elements in their pairs or groups: in how many, and of how many."""
    found: dict[int, tuple[int, int]] = {}
    for request, answer in log.exchanges:
        for group, figure in zip(request.groups, answer.figures, strict=True):
            for place in group:
                bad, all_of_it = found.get(place, (0, 0))
                found[place] = (bad + (figure.wrong > 0), all_of_it + 1)
    return {place: counts for place, counts in found.items() if counts[0]}
