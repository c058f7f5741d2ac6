"""The data of a hunt: requests and their results, the log of all rounds, and the verdict.

This is the protocol between the strategy and the measurement (a task, or a model). A hunt is a generator: it yields a `RoundRequest`,
receives the `RoundResult`, and returns a `HuntVerdict`. Places are numbered from 0, as in `pairs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from math import isfinite
from random import Random
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec.structs import replace

from collbench.plugins.hunt import facts
from collbench.plugins.hunt.pair_statistics import without_round_effects
from collbench.plugins.hunt.records import NO_VERDICT, NONE_SLOW, HuntRound, PairMatrix, PairRound
from collbench.reason import Fact, as_json

PAIRS, GROUPS, INSIDE, NIC = "pairs", "groups", "inside", "nic"
BY_MESSAGES = ("node", "sender", "receiver")  # kinds of suspects with slow messages: the fault is in the node or in its link


class RoundRequest(msgspec.Struct, frozen=True):
    """One round. All of it is measured at the same time, so its groups are disjoint.

    kind    PAIRS: messages both ways between two places; GROUPS: an all-reduce in each group of places; INSIDE: an all-reduce among the
            ranks of each place (a group is one place); NIC: messages of a pair over one interface only (`nic`)
    groups  of places; two each for PAIRS and NIC, the lower first
    why     for the log: "round 3 of 8", "3 suspects with two healthy partners"
    stage   "sweep", "cross-check", "growing", "isolation": rounds are counted by it
    pause_s seconds to wait before the round, so that a short disturbance affects only one of several repetitions
    number  from 0; the task counts the rounds
    port    of NIC, the TCP source port of each stream; 0: any
    """

    kind: str
    groups: tuple[tuple[int, ...], ...]
    why: str
    stage: str = "sweep"
    nic: str | None = None
    pause_s: float = 0.0
    number: int = 0
    port: int = 0


class GroupFigure(msgspec.Struct, frozen=True):
    """The result of one group; None if it could not be measured (`na` has the reason).

    speed      bytes per second. GROUPS and INSIDE: the bus bandwidth; PAIRS and NIC: messages from the first place to the second
    backward   PAIRS, NIC: from the second to the first
    latency_s  PAIRS: half the round trip
    low, high  the speed's 95 % interval; for PAIRS that of the slower direction
    wrong      elements that differ from the data sent; detail: the first rank's description of them
    cpu_wait   PAIRS: the largest share of the round's time that one of its ranks waited for a CPU; 0 if unknown
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
    detail: str | None = None


class RoundResult(msgspec.Struct, frozen=True):
    """A figure for each group of the request, in its order; flags apply to the whole round."""

    figures: tuple[GroupFigure, ...]
    flags: tuple[str, ...] = ()


# By column of a stored round the figure of a group.
_FIGURES = {
    "speed_bytes_per_s": "speed", "backward_bytes_per_s": "backward", "latency_s": "latency_s", "low_bytes_per_s": "low",
    "high_bytes_per_s": "high", "wrong": "wrong", "na": "na", "wrong_detail": "detail", "cpu_wait": "cpu_wait", "flipped": "flipped",
}  # fmt: skip


def hunt_round(number: int, request: RoundRequest, figures: Sequence[GroupFigure], flags: Iterable[str] = ()) -> HuntRound:
    """Return the round of a hunt with the figures of its groups, as it is stored."""
    columns: dict[str, Any] = {column: tuple(getattr(figure, name) for figure in figures) for column, name in _FIGURES.items()}
    if request.kind != PAIRS:
        columns["cpu_wait"] = columns["flipped"] = ()
    about = {name: getattr(request, name) for name in ("kind", "stage", "why", "groups", "nic")}
    return HuntRound(round=number, **about, flags=tuple(dict.fromkeys(flags)), **columns)


def result_of(stored: HuntRound) -> RoundResult:
    """Return the result of a stored round, as the strategy takes it; columns that were not recorded are empty."""
    columns = {name: getattr(stored, column) for column, name in _FIGURES.items() if getattr(stored, column)}
    figures = [GroupFigure(**{name: values[group] for name, values in columns.items()}) for group in range(len(stored.groups))]
    return RoundResult(tuple(figures), stored.flags)


def result_of_pairs(groups: Sequence[tuple[int, ...]], rounds: Sequence[PairRound], size_bytes: int) -> RoundResult:
    """Return the figures of these pairs. Each pair is in one of the rounds, or was not measured."""
    figures: dict[tuple[int, ...], GroupFigure] = {}
    for pair_round in rounds:
        for turn, pair in enumerate(pair_round.pairs):
            forward_s = pair_round.forward_s[turn]
            backward_s = pair_round.backward_s[turn]
            is_backward_slower = (backward_s or 0.0) > (forward_s or 0.0)
            slower_ci_s = pair_round.backward_ci_s[turn] if is_backward_slower else pair_round.forward_ci_s[turn]
            speed, backward, high, low = (size_bytes / seconds if seconds else None for seconds in (forward_s, backward_s, *slower_ci_s))
            columns = ("latency_s", "na", "wrong_detail", "cpu_wait", "flipped")  # empty if they were not recorded
            stored = {_FIGURES[column]: getattr(pair_round, column)[turn] for column in columns if getattr(pair_round, column)}
            wrong = pair_round.wrong[turn] or 0
            figures[pair] = GroupFigure(speed=speed, backward=backward, low=low, high=high, wrong=wrong, **stored)
    missing = GroupFigure(None, na="not measured")
    flags = dict.fromkeys(flag for pair_round in rounds for flag in pair_round.flags)
    return RoundResult(tuple(figures.get(group[:2], missing) for group in groups), tuple(flags))


class Options(msgspec.Struct, frozen=True):
    """The options of a hunt.

    method      "pairs": rounds of pairs; "groups": collectives over overlapping groups, in O(log N) rounds; "auto": pairs if their rounds
                fit into the time, else groups
    rounds      of the sweep at most (None: chosen by the number of places)
    most_rounds of all stages; the estimate is printed before the hunt
    seed        of all random choices
    growing     whether growing groups are measured if no pair is slow, for faults that only appear at scale
    isolate     whether a confirmed place is measured alone: inside, and over each interface
    can_inside  whether places have several ranks; nics: interface names that all places have (for NIC)
    leaf_of     by place its switch, if known: some partners are chosen from other switches
    cover       pairs that the schedule must contain, so that every link of the fabric is crossed (`--cover-links`); None: not requested
    group_stage judges the paths between groups (`--groups`); None: not requested
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
    group_stage: GroupStage | None = None


Hunt = Generator[RoundRequest, RoundResult, "HuntVerdict"]


CONFIRMED, CLEARED, INCONCLUSIVE = "confirmed", "cleared", "inconclusive"
TRUNK = "trunk"
AT_BOTH_ENDS = ("path", TRUNK)  # kinds of suspects whose places are healthy: the fault is between them


class GroupStage(Protocol):
    """The stage that judges the paths between groups of places: what the hook `hunt_groups` returns.

    leaf_of    by place the name of its group, "" if unknown; (): they are found from the pairs of the sweep
    sentences  where the groups come from, and which hosts are in none
    """

    leaf_of: tuple[str, ...]
    sentences: tuple[str, ...]

    def most_rounds(self, options: Options) -> int:
        """Return the largest number of rounds of `judge` and `measure_ports` together."""
        ...

    def judge(self, log: HuntLog, room: int, random: Random) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
        """Return a suspect for each path between groups that was slow in the sweep; `log.avoided` gets the pairs over those not cleared."""
        ...

    def measure_ports(
        self, log: HuntLog, suspects: Sequence[Suspect], options: Options, room: int
    ) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
        """Return the suspects, the slow paths with the evidence of several TCP source ports."""
        ...


class Suspect(msgspec.Struct, frozen=True):
    """A place, or a path between two, that was slow in the sweep.

    kind      "node" (both ways), "sender", "receiver", "latency" (small messages only), "path" (two places), "inside" (its own ranks
              only), "scale" (slow in larger groups only), "trunk" (the paths between two groups): each has a code, see
              `recommendation.CODES`
    places    one, or two of a path; those of both groups of a trunk, which are not accused
    state     CONFIRMED: slow with each of at least two healthy partners; CLEARED: as fast as these with each other; INCONCLUSIVE: neither
    ratio     its speed relative to the others, below 1 if it is slow (for a latency the inverse of the ratio of times)
    low, high its 95 % interval
    partners  the partners of the repeated measurement
    evidence  the measurements, with their partners and controls
    part      the slow part that the isolation found, or the sentence about a trunk; None if unknown
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
        """Return the suspect as it is stored. `evidence` and `part` are stored as text, and as facts."""
        return {
            "kind": self.kind,
            "places": self.places,
            "state": self.state,
            "ratio": self.ratio if isfinite(self.ratio) else None,
            "low": self.low,
            "high": self.high,
            "partners": self.partners,
            "evidence": [fact.render() for fact in self.evidence],
            "evidence_facts": as_json(self.evidence),
            "part": "" if self.part is None else self.part.render(),
            "part_fact": None if self.part is None else as_json(self.part),
        }


class HuntVerdict(msgspec.Struct, frozen=True):
    """The result of a hunt.

    names     of the places
    hosts     the host of each place; (): each place is its own host
    suspects  all of them, confirmed ones first, the worst first
    rounds    how many were measured, by stage; promised: the largest number, as estimated before the hunt
    notes     undecided questions with the reasons, and properties that all places share
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
    hosts: tuple[str, ...] = ()

    def of(self, state: str) -> list[Suspect]:
        """Return the suspects in that state."""
        return [suspect for suspect in self.suspects if suspect.state == state]

    @property
    def result(self) -> str:
        """Return `confirmed`, `nobody` or `no verdict`. It is `no verdict`, too, if suspects are inconclusive and none is confirmed."""
        if self.no_verdict:
            return NO_VERDICT
        if self.of(CONFIRMED):
            return CONFIRMED
        return NO_VERDICT if self.of(INCONCLUSIVE) else NONE_SLOW


_HARDLY = 1e-12  # an interval of a lower rate is not valid


class HuntLog(msgspec.Struct):
    """The log of a hunt.

    names      of the places
    exchanges  every request with its result, in order
    hosts      the host of each place; (): each place is its own host
    notes      what the stages left undecided
    avoided    pairs, the lower place first, that judge no place: the path between their groups is slow
    """

    names: tuple[str, ...]
    exchanges: list[tuple[RoundRequest, RoundResult]] = msgspec.field(default_factory=list)
    hosts: tuple[str, ...] = ()
    notes: list[Fact] = msgspec.field(default_factory=list)
    avoided: set[tuple[int, int]] = msgspec.field(default_factory=set)

    def request(self, request: RoundRequest) -> Generator[RoundRequest, RoundResult, RoundResult]:
        """Yield the request, store and return its result. Impossible figures (0, negative, infinite) count as not measured.

        Raises ValueError for a result without a figure for each group.
        """
        answer = yield request
        if len(answer.figures) != len(request.groups):
            raise ValueError(f"{len(answer.figures)} figures for {len(request.groups)} groups: {request.why}")
        clean = replace(answer, figures=tuple(map(_clean, answer.figures)))
        self.exchanges.append((request, clean))
        return clean

    def rounds(self) -> dict[str, int]:
        """Return the number of rounds by stage."""
        return dict(Counter(request.stage for request, _ in self.exchanges))

    def figures(self, kind: str = PAIRS) -> Iterator[tuple[int, tuple[int, ...], GroupFigure]]:
        """Yield (number of the round, group, figure), in the order of measurement."""
        for number, (request, answer) in enumerate(self.exchanges):
            if request.kind == kind:
                for group, figure in zip(request.groups, answer.figures, strict=True):
                    yield number, group, figure

    def matrix(self, level: bool = True) -> PairMatrix:
        """Return the first figures of all pairs so far that are not avoided. level: without the effect of each round."""
        n = len(self.names)
        latency, raw, low, high, wrong = (np.full((n, n), np.nan) for _ in range(5))
        turns = np.full((n, n), -1, np.int64)  # by directed pair: the two directions are measured one after the other
        for number, (a, b), figure in self.figures():
            if figure.speed is None or turns[a, b] >= 0 or (a, b) in self.avoided:
                continue
            slower = min(filter(None, (figure.speed, figure.backward)))  # the interval is that of the slower direction
            for turn, (pair, speed) in enumerate((((a, b), figure.speed), ((b, a), figure.backward or np.nan))):
                turns[pair] = 2 * number + turn
                raw[pair] = speed
                wrong[pair] = figure.wrong
                low[pair], high[pair] = (speed * ((bound or np.nan) / slower) for bound in (figure.low, figure.high))
                latency[pair] = figure.latency_s or np.nan
        if not level:
            turns.fill(-1)
        bandwidth = np.exp(without_round_effects(np.log(raw), turns))
        latency = np.exp(without_round_effects(np.log(latency), np.where(turns >= 0, turns // 2, -1), symmetric=True))
        return PairMatrix(self.names, latency, bandwidth, low * bandwidth / raw, high * bandwidth / raw, wrong, 0, 0, hosts=self.hosts)


def pair_of(a: int, b: int) -> tuple[int, int]:
    """Return two places as a pair, the lower first."""
    return min(a, b), max(a, b)


def _clean(figure: GroupFigure) -> GroupFigure:
    """Return the figure with None for invalid speeds and times; without a speed it counts as not measured."""
    speed, backward, latency, low, high = (
        value if value is not None and isfinite(value) and value > _HARDLY else None
        for value in (figure.speed, figure.backward, figure.latency_s, figure.low, figure.high)
    )
    why = figure.na or ("no speed came out" if speed is None else None)
    if why is not None:
        return GroupFigure(None, wrong=figure.wrong, na=why)
    return replace(figure, speed=speed, backward=backward, latency_s=latency, low=low, high=high)


def lost(log: HuntLog) -> dict[int, Fact]:
    """Return the places that no longer give figures, with the reason: all figures of at least the last two rounds (or ever) are missing.

    Figures that are missing because of such a partner do not count.
    """
    no_figures: dict[int, Fact] = {}
    while True:
        missed: dict[int, list[str]] = {}
        met: dict[int, set[int]] = {}
        requested: Counter[int] = Counter()
        for _, (a, b), figure in log.figures():
            if no_figures.keys() & {a, b}:
                continue
            for place, partner in ((a, b), (b, a)):
                requested[place] += 1
                missed[place] = [] if figure.speed is not None else [*missed.get(place, []), figure.na or ""]
                met[place] = set() if figure.speed is not None else met.get(place, set()) | {partner}
        gone = [place for place, whys in missed.items() if whys and (len(met[place]) >= 2 or len(whys) == requested[place] >= 2)]
        if not gone:
            return no_figures
        worst = max(gone, key=lambda place: (len(missed[place]), -place))
        no_figures[worst] = facts.NoFigures(len(missed[worst]), requested[worst], missed[worst][-1])


def hardly_met(log: HuntLog, least: int) -> dict[int, Fact]:
    """Return the places with figures of fewer than `least` partners, with the reason."""
    met: list[set[int]] = [set() for _ in log.names]
    for _, (a, b), figure in log.figures():
        if figure.speed is not None:
            met[a].add(b)
            met[b].add(a)
    return {place: facts.FewPartnersMeasured(len(partners), least) for place, partners in enumerate(met) if len(partners) < least}


def wrong_data(log: HuntLog) -> dict[int, tuple[int, int]]:
    """Return the places with wrong elements: in how many of their pairs or groups, and the number of all of them."""
    bad: Counter[int] = Counter()
    measured: Counter[int] = Counter()
    for request, answer in log.exchanges:
        for group, figure in zip(request.groups, answer.figures, strict=True):
            measured.update(group)
            if figure.wrong > 0:
                bad.update(group)
    return {place: (bad[place], measured[place]) for place in measured if bad[place]}
