"""The whole hunt: a sweep, every candidate again with healthy partners, growing groups, suspects alone; then the verdict.

A place is named only if it is slow again with two healthy partners, next to pairs that are not slow. The assumption is that of
`analysis.pairs`: fewer than half of the places are slow. If more than a third would be named, none is, since the others may be unusually
fast instead.
"""

from __future__ import annotations

import random as draws
from collections import Counter
from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, isnan, log, nan
from typing import TypeVar

import numpy as np

from collbench.analysis.hunt import judging, scale, sweep
from collbench.analysis.hunt import sweep as groups
from collbench.analysis.hunt.crosscheck import CrossCheck
from collbench.analysis.hunt.facts import (
    AllAlike,
    AloneOnSwitch,
    Deferred,
    DividedPairs,
    Evidence,
    GroupSweep,
    HuntNote,
    ManyPaths,
    MorePairsNotMeasured,
    OneEndpoint,
    OthersAsSlow,
    PairFigures,
    PairNotMeasured,
    PairsInstead,
    PairsNotCovered,
    PathsNotRetested,
    RoundFlag,
    RoundsUsedUp,
    SpeedUnknown,
    StageSkipped,
    TooFewEndpoints,
    TooFewMeasured,
    TooManySuspects,
    WrongElements,
)
from collbench.analysis.hunt.judging import Alike, Candidate, SweepResult
from collbench.analysis.hunt.protocol import (
    CLEARED,
    CONFIRMED,
    GROUPS,
    INCONCLUSIVE,
    PAIRS,
    GroupFigure,
    Hint,
    Hunt,
    HuntLog,
    HuntVerdict,
    Options,
    RoundRequest,
    RoundResult,
    Suspect,
    hardly_met,
    lost,
    wrong_data,
)
from collbench.analysis.hunt.significance import LATENCY
from collbench.analysis.pair_statistics import CELLS, PAIR_ROUNDS_LEAST_CELLS, Figures
from collbench.errors import UsageError
from collbench.operations.groups import circle_round
from collbench.reason import Fact
from collbench.results.rounds import PairMatrix, PairRound

# One, two or three places: none can be named, but their figures are reported.

LEAST_PLACES = 4


def rounds(n: int) -> int:
    """Return the rounds that measure every pair once."""
    return n - 1 + n % 2 if n > 1 else 0


def hunt_few(names: tuple[str, ...]) -> Hunt:
    """Return the figures of every pair, as notes, and why no place is named."""
    log = HuntLog(names)
    for number in range(rounds(len(names))):
        yield from log.request(RoundRequest(PAIRS, circle_round(len(names), number), f"round {number + 1} of {rounds(len(names))}"))
    matrix = log.matrix()
    speeds = matrix.bandwidth[np.isfinite(matrix.bandwidth)]
    why = OneEndpoint() if len(names) < 2 else TooFewEndpoints(2 if len(names) == 2 else 3)
    wrong = [WrongElements(names[place], bad, met) for place, (bad, met) in wrong_data(log).items()]
    middle = float(np.median(speeds)) if len(speeds) else None
    return HuntVerdict(names, (), log.rounds(), rounds(len(names)), (*_figures(log), *wrong), why, middle)


def _figures(log: HuntLog) -> list[HuntNote]:
    return [_pair_note(log.names[a], log.names[b], figure) for _, (a, b), figure in log.figures()]


def _pair_note(a: str, b: str, figure: GroupFigure) -> HuntNote:
    if figure.speed is None:
        return PairNotMeasured(a, b, figure.na or "")
    latency_s = figure.latency_s if figure.latency_s is not None and isfinite(figure.latency_s) else None
    return PairFigures(a, b, figure.speed, figure.backward, latency_s)


# Whether some pairs are slow because of the network's structure. Then a place in one of them is not slow.

_MOST_SLOW = 0.3  # of the pairs without any suspect; a sixth of all places may be slow and undetected
_FAST = 0.75  # the quantile of pairs that is the usual speed
_LEAST_PAIRS = 6


def demote_common(suspects: Sequence[Suspect], log: HuntLog, alike: Alike) -> list[Suspect]:
    """Return the suspects. Those as slow as many pairs of other places, on the same kind of path, become inconclusive."""
    confirmed_places = {place for each in suspects if each.state == CONFIRMED for place in each.places}
    if not confirmed_places:
        return list(suspects)
    matrices = {level: log.matrix(level) for level in (False, True)}
    return [_demoted_if_common(each, matrices, confirmed_places, alike) if each.state == CONFIRMED else each for each in suspects]


def _demoted_if_common(suspect: Suspect, matrices: Mapping[bool, PairMatrix], confirmed_places: set[int], alike: Alike) -> Suspect:
    """Return one suspect, judged with the round effects removed and with them.

    Their removal hides a part that met another part as a whole. Without it, rounds may differ by their modes.
    """
    weak = -log(suspect.ratio) < CELLS["bandwidth"].least
    if weak and matrices[weak].n < 2 * PAIR_ROUNDS_LEAST_CELLS:
        return suspect  # the effect of rounds with so few pairs is not removed
    speeds = _speeds(suspect, matrices[weak], confirmed_places, alike)
    if len(speeds) < _LEAST_PAIRS:
        return suspect
    share = float(np.mean(speeds < np.quantile(speeds, _FAST) + log(suspect.ratio) / 2))
    if share <= _MOST_SLOW:
        return suspect
    return replace(suspect, state=INCONCLUSIVE, evidence=(*suspect.evidence, OthersAsSlow(share)))


def _speeds(suspect: Suspect, matrix: PairMatrix, confirmed: set[int], alike: Alike) -> Figures:
    """Return the logarithms of the sweep's pairs without suspects, on the kind of path on which the suspect was measured."""
    figures = -np.log(matrix.latency_s) if suspect.kind == "latency" else np.log(matrix.bandwidth)
    kinds: set[Hashable] = {_kind(suspect, partner, alike) for partner in suspect.partners[:1]}
    pairs = [(int(a), int(b)) for a, b in np.argwhere(np.isfinite(figures)) if not confirmed & {int(a), int(b)}]
    return np.array([figures[pair] for pair in pairs if not kinds or alike(*pair) in kinds])


def _kind(suspect: Suspect, partner: int, alike: Alike) -> Hashable:
    return alike(*suspect.places) if len(suspect.places) == 2 else alike(suspect.places[0], partner)


# From measurements to suspects and notes: the known and the unknown.

_ORDER = {CONFIRMED: 0, INCONCLUSIVE: 1, CLEARED: 2}
_MOST_PAIRS = 8  # pairs that a note lists
_FASTEST, _MOST_UNEVEN = 0.9, 0.3
_MANY_PATHS, _OF_PLACES = 3, 4  # so many paths are not exceptions: three, or a quarter of the number of places


def suspects(check: CrossCheck, names: Sequence[str]) -> list[Suspect]:
    """Return the suspects of all cases. Paths of a confirmed place are left out."""
    places = _worst([case.suspect(names) for case in check.places])
    confirmed = {each.places[0] for each in places if each.state == CONFIRMED}
    paths = _worst([case.suspect(names) for case in check.paths if not confirmed & set(case.places)])
    return [*places, *(_open(each, Deferred()) for each in check.found.deferred), *_exceptions(paths, len(names))]


def _worst(found: Sequence[Suspect]) -> list[Suspect]:
    """Return one suspect for each place or path that was judged by its bandwidth and by its latency: confirmed before inconclusive."""
    kept: dict[tuple[int, ...], Suspect] = {}
    for each in sorted(found, key=lambda each: (_ORDER[each.state], each.kind == "latency")):
        first = kept.setdefault(each.places, each)
        if first is not each and each.state == CONFIRMED:
            kept[each.places] = replace(first, evidence=(*first.evidence, *each.evidence))
    return [kept[places] for places in dict.fromkeys(each.places for each in found)]


def _exceptions(paths: list[Suspect], n: int) -> list[Suspect]:
    """Return the paths. If there are many without a common place, they are inconclusive: that is the structure of the network."""
    confirmed = [each for each in paths if each.state == CONFIRMED]
    apart = len({place for each in confirmed for place in each.places}) == 2 * len(confirmed)
    if len(confirmed) < max(_MANY_PATHS, n // _OF_PLACES) or not apart:
        return paths
    why = ManyPaths(len(confirmed))
    return [replace(each, state=INCONCLUSIVE, evidence=(*each.evidence, why)) if each in confirmed else each for each in paths]


def inconclusive_suspects(found: SweepResult, why: Fact) -> list[Suspect]:
    """Return the candidates as suspects, for a hunt without partners to clear or confirm them."""
    return [_open(each, why) for each in found.places]


def suspect_without_figures(place: int, why: Evidence) -> Suspect:
    """Return a place without figures as a suspect."""
    return Suspect("node", (place,), INCONCLUSIVE, nan, evidence=(why, SpeedUnknown()))


def of_hint(hint: Hint) -> Suspect:
    """Return the suspect that growing groups found."""
    return Suspect(hint.kind, hint.places, hint.state, hint.ratio, partners=hint.partners, evidence=hint.evidence)


def ordered(those: Iterable[Suspect]) -> list[Suspect]:
    """Return confirmed ones first, then inconclusive ones, the worst first."""
    return sorted(those, key=lambda each: (_ORDER[each.state], 0.0 if isnan(each.ratio) else each.ratio, each.places))


def with_wrong(those: Sequence[Suspect], log: HuntLog) -> list[Suspect]:
    """Return the suspects, with evidence about wrong data in their pairs or groups."""
    wrong = wrong_data(log)
    return [replace(each, evidence=(*each.evidence, *_wrong(each.places, wrong, log.names))) for each in those]


def with_leaf(those: Sequence[Suspect], hosts: Sequence[str], leaf_of: Sequence[str] | None) -> list[Suspect]:
    """Return the suspects. One alone on its switch gets a remark, since a fault of the cables looks the same. leaf_of: "": unknown."""
    hosts_on: dict[str, set[str]] = {}
    for host, leaf in zip(hosts, leaf_of or (), strict=False):
        hosts_on.setdefault(leaf, set()).add(host)
    return [replace(each, evidence=(*each.evidence, *_alone(each, hosts_on, leaf_of))) if leaf_of else each for each in those]


def _alone(suspect: Suspect, hosts_on: Mapping[str, set[str]], leaf_of: Sequence[str] | None) -> list[Evidence]:
    leaf = leaf_of[suspect.places[0]] if leaf_of and len(suspect.places) == 1 else ""
    if not leaf or suspect.state != CONFIRMED or len(hosts_on[leaf]) > 1:
        return []
    return [AloneOnSwitch(leaf)]


def notes(log: HuntLog, those: Sequence[Suspect], found: SweepResult) -> list[Fact]:
    """Return the undecided questions, and the properties that all places share."""
    named = {place for each in those for place in each.places}
    wrong = wrong_data(log)
    own = _wrong([place for place in _most_wrong(wrong) if place not in named], wrong, log.names)
    return [*own, *_missing(log, named), *_flags(log), *_not_met(log), *_alike(those, found, log)]


def typical_speed(log: HuntLog) -> float | None:
    """Return the usual speed of a pair, else of a group, in bytes per second."""
    for kind in (PAIRS, GROUPS):
        speeds = [each for _, _, figure in log.figures(kind) for each in (figure.speed, figure.backward) if each]
        if speeds:
            return float(np.median(speeds))
    return None


def _open(candidate: Candidate, why: Fact) -> Suspect:
    kind = "latency" if LATENCY in candidate.ways else "node"
    return Suspect(kind, candidate.places, INCONCLUSIVE, candidate.ratio, evidence=(*candidate.why, why))


def _wrong(places: Iterable[int], wrong: dict[int, tuple[int, int]], names: Sequence[str]) -> list[WrongElements]:
    return [WrongElements(names[place], *wrong[place]) for place in places if place in wrong]


def _most_wrong(wrong: dict[int, tuple[int, int]]) -> list[int]:
    """Return the places with wrong data in at least half of their measurements, or all with wrong data if there are none."""
    most = [place for place, (bad, met) in wrong.items() if 2 * bad >= met]
    return most or list(wrong)


def _missing(log: HuntLog, named: set[int]) -> list[HuntNote]:
    """Return the missing pairs of places that have other figures."""
    lost = {pair: figure.na for _, pair, figure in log.figures() if figure.speed is None and not named & set(pair)}
    first = [PairNotMeasured(log.names[a], log.names[b], why or "") for (a, b), why in list(lost.items())[:_MOST_PAIRS]]
    return [*first, *([MorePairsNotMeasured(len(lost) - len(first))] if len(lost) > len(first) else [])]


def _flags(log: HuntLog) -> list[RoundFlag]:
    counts = Counter(flag for _, answer in log.exchanges for flag in set(answer.flags))
    return [RoundFlag(flag, number, len(log.exchanges)) for flag, number in counts.items()]


def _not_met(log: HuntLog) -> list[PairsNotCovered]:
    """Return the note that not every pair was measured, since a slow path is detected only if it was measured."""
    n = len(log.names)
    met, possible = len({pair for _, pair, _ in log.figures()}), n * (n - 1) // 2
    return [PairsNotCovered(met, possible)] if 0 < met < possible else []


def _alike(those: Sequence[Suspect], found: SweepResult, log: HuntLog) -> list[HuntNote]:
    """Return the notes on a hunt without slow places."""
    if any(each.state != CLEARED for each in those) or (speed := found.middle or typical_speed(log)) is None:
        return []
    uneven = _uneven(log)
    if uneven > _MOST_UNEVEN:
        return [DividedPairs(uneven)]
    return [AllAlike(speed)]


def _uneven(hunt_log: HuntLog) -> float:
    """Return the share of pairs that are noticeably slower than the fastest tenth."""
    speeds = [log(each) for _, _, figure in hunt_log.figures() for each in (figure.speed, figure.backward) if each]
    return float(np.mean(speeds < np.quantile(speeds, _FASTEST) - CELLS["bandwidth"].least)) if speeds else 0.0


_CROSS_CHECK_ROUNDS = ((8, 26), (16, 18), (64, 14), (256, 10), (inf, 9))  # by the number of places
_LEAST_CROSS_CHECK = 3
_MOST_CONFIRMED_SHARE = 3  # one of so many places

_T = TypeVar("_T")


def promise(n: int, options: Options) -> int:
    """Return the largest number of rounds of a hunt among n places. Most hunts take far fewer.

    Raises UsageError if `options.rounds` or `options.most_rounds` is less than the fewest rounds that give a result.
    """
    if n < LEAST_PLACES:
        return rounds(n)
    return _shares(n, options).all_of_them


def cross_check_rounds(n: int) -> int:
    """Return how many rounds may measure suspects of n places again: more for few places, since a round then has few controls."""
    return next(rounds for most, rounds in _CROSS_CHECK_ROUNDS if n < most)


def hunt(names: Sequence[str], options: Options, hosts: Sequence[str] = ()) -> Hunt:
    """Request rounds until the verdict is clear, and return it. Raises UsageError as `promise` does.

    names, hosts: of the places; without hosts each place is a host of its own.
    """
    if len(names) < LEAST_PLACES:
        return (yield from hunt_few(tuple(names)))
    return (yield from _Hunt(tuple(names), options, tuple(hosts or names)).run())


@dataclass(frozen=True)
class _Shares:
    """The largest number of rounds of each stage."""

    method: str
    sweep: int
    cross_check: int
    growing: int
    isolation: int

    @property
    def all_of_them(self) -> int:
        return self.sweep + self.cross_check + self.growing + self.isolation


def _shares(n: int, options: Options) -> _Shares:
    """Return the rounds of each stage. If they are limited, the sweep and the cross-check come first, then the isolation."""
    method = _method(n, options)
    by_groups = method == "groups"
    sweep_rounds = groups.rounds_groups(n, options) if by_groups else sweep.rounds(n, options)
    least = sweep_rounds if by_groups else sweep.least_rounds(n, options)
    if sweep_rounds < least:
        raise UsageError(
            f"a sweep of {sweep_rounds} {'round' if sweep_rounds == 1 else 'rounds'} cannot distinguish a faulty one of {n} "
            "from a faulty partner: "
            f"allow {least} or more (--rounds {least})"
        )
    grown = scale.most_rounds(n, options) if options.growing else 0
    alone = scale.most_rounds_isolation(options)
    most = options.most_rounds if options.most_rounds is not None else sweep_rounds + cross_check_rounds(n) + grown + alone
    if most < least + _LEAST_CROSS_CHECK:
        raise UsageError(
            f"{most} rounds are too few for {n} endpoints: the sweep takes {least} and measuring suspects again {_LEAST_CROSS_CHECK}; "
            f"allow {least + _LEAST_CROSS_CHECK} or more (a larger --budget, or a smaller --max-time)"
        )
    swept = max(least, min(sweep_rounds, most - cross_check_rounds(n)))
    left = most - swept
    checked = min(cross_check_rounds(n), left)
    isolated = min(alone, left - checked)
    return _Shares(method, swept, checked, min(grown, left - checked - isolated), isolated)


def _method(n: int, options: Options) -> str:
    """Return groups if requested, or if pairs take more rounds than allowed; pairs if groups cannot decide, or to cross links."""
    if n < groups.LEAST_PLACES or options.cover or options.method == "pairs":
        return "pairs"
    fits = options.most_rounds is None or sweep.rounds(n, options) + cross_check_rounds(n) <= options.most_rounds
    return "groups" if options.method == "groups" or not fits else "pairs"


@dataclass
class _Hunt:
    """The state of one hunt."""

    names: tuple[str, ...]
    options: Options
    hosts: tuple[str, ...]
    notes: list[Fact] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = draws.Random(f"hunt, {self.options.seed}")
        self.book = HuntLog(self.names, hosts=self.hosts)
        self.shares = _shares(len(self.names), self.options)
        if self.options.method == "groups" and self.shares.method == "pairs":
            self.notes.append(PairsInstead(groups.LEAST_PLACES))

    def run(self) -> Hunt:
        """Run the stages that are needed."""
        hints = yield from self._sweep()
        found = self._sweep_result(hints)
        too_many = self._too_many(found)
        if too_many:
            return self._verdict(inconclusive_suspects(found, too_many), found, too_many)
        suspects = yield from self._cross_check(found)
        good = self._not_suspects(suspects)
        if self.options.growing and not _confirmed(suspects):
            suspects += yield from self._growing(good)
        if self.options.isolate and _confirmed(suspects):
            suspects = yield from self._isolated(suspects)
        return self._verdict(suspects, found, None)

    def _sweep(self) -> Generator[RoundRequest, RoundResult, tuple[Hint, ...]]:
        if self.shares.method == "groups":
            self.notes.append(GroupSweep())
            return (yield from self._run_stage(groups.sweep(len(self.names), self.options, self.random)))
        yield from sweep.run(self.book, self.options, self.shares.sweep, self.random)
        return ()

    def _sweep_result(self, hints: Sequence[Hint]) -> SweepResult:
        gone = list(self._unknown_speeds())
        if self.shares.method == "groups":
            return judging.candidates_of_hints(hints, len(self.names), gone)
        return judging.find_candidates(self.book.matrix(), gone)

    def _unknown_speeds(self) -> dict[int, Evidence]:
        """Return the places of unknown speed, with the reason."""
        gone = lost(self.book)
        return gone if self.shares.method == "groups" else {**hardly_met(self.book, sweep.LEAST_PARTNERS), **gone}

    def _too_many(self, found: SweepResult) -> TooFewMeasured | TooManySuspects | None:
        """Return why no place can be judged, if healthy places are not a majority."""
        n = len(self.names) - len(self._unknown_speeds())
        slow = len({each.places for each in found.places})
        if n < LEAST_PLACES:
            return TooFewMeasured(n, len(self.names))
        if slow and (len(found.healthy) < 2 or 2 * slow >= n):
            return TooManySuspects(slow, n)
        return None

    def _cross_check(self, found: SweepResult) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
        check = CrossCheck(self.book, found, _path_ends(self.names, self.hosts), self.options.leaf_of, self.random)
        done = yield from check.run(self.shares.cross_check)
        if not done:
            self.notes.append(RoundsUsedUp(self.shares.cross_check))
        if check.left_out:
            self.notes.append(PathsNotRetested(check.left_out))
        gone = self._unknown_speeds()
        judged = demote_common(suspects(check, self.names), self.book, check.alike)
        places = [each for each in judged if not set(each.places) & gone.keys()]
        return self._at_most_a_third(places) + [suspect_without_figures(place, why) for place, why in gone.items()]

    def _at_most_a_third(self, suspects: list[Suspect]) -> list[Suspect]:
        confirmed = [each for each in suspects if each.state == CONFIRMED and len(each.places) == 1]
        if _MOST_CONFIRMED_SHARE * len(confirmed) <= len(self.names):
            return suspects
        why = TooManySuspects(len(confirmed), len(self.names))
        self.notes.append(why)
        return [replace(each, state=INCONCLUSIVE, evidence=(*each.evidence, why)) if each in confirmed else each for each in suspects]

    def _not_suspects(self, suspects: Sequence[Suspect]) -> list[int]:
        """Return the places that are not suspects."""
        out = {place for each in suspects if each.state in (CONFIRMED, INCONCLUSIVE) and each.kind != "path" for place in each.places}
        return [place for place in range(len(self.names)) if place not in out]

    def _growing(self, good: Sequence[int]) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
        needed = scale.most_rounds(len(good), self.options)
        if needed > self.shares.growing:
            self.notes.append(StageSkipped("growing", needed, self.shares.growing))
            return []
        hints, notes = yield from self._run_stage(scale.measure_growing(good, self.options, self.random))
        self.notes += notes
        return [of_hint(hint) for hint in hints]

    def _isolated(self, suspects: list[Suspect]) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
        needed = scale.most_rounds_isolation(self.options)
        if needed > self.shares.isolation:
            self.notes.append(StageSkipped("isolation", needed, self.shares.isolation))
            return suspects
        return list((yield from self._run_stage(scale.measure_isolation(suspects, self._not_suspects(suspects), self.options))))

    def _run_stage(self, others: Generator[RoundRequest, RoundResult, _T]) -> Generator[RoundRequest, RoundResult, _T]:
        """Run another generator of rounds, and store its rounds in the log."""
        try:
            request = next(others)
            while True:
                answer = yield from self.book.request(request)
                request = others.send(answer)
        except StopIteration as stop:
            result: _T = stop.value
            return result

    def _verdict(self, suspects: Sequence[Suspect], found: SweepResult, why: Fact | None) -> HuntVerdict:
        own_notes = [*self.notes, *notes(self.book, suspects, found)]
        suspects = with_leaf(with_wrong(suspects, self.book), _path_ends(self.names, self.hosts), self.options.leaf_of)
        known = tuple(ordered(suspects))
        middle = found.middle or typical_speed(self.book)
        return HuntVerdict(self.names, known, self.book.rounds(), self.shares.all_of_them, tuple(own_notes), why, middle, self.hosts)


def _confirmed(suspects: Sequence[Suspect]) -> bool:
    return any(each.state == CONFIRMED for each in suspects)


def _path_ends(names: Sequence[str], hosts: Sequence[str]) -> Sequence[str]:
    """Return the host of each place; on a single host every place counts as a host: all paths are of one kind."""
    return names if len(set(hosts)) == 1 else hosts


# The suspects of a pair matrix, measured again as in a hunt: next to control pairs, in rounds that chance does not explain.

PairsFigures = Mapping[tuple[int, int], GroupFigure]


def judge(matrix: PairMatrix, rounds: Sequence[PairRound], seed: int) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
    """Request rounds until each suspect of the matrix is confirmed, cleared or inconclusive; return the suspects.

    It requests nothing with fewer than four places, or if half of all places are suspects, since no majority is healthy then.
    Suspects that are not returned were not measured again.
    """
    found = judging.find_candidates(matrix)
    slow = {each.places for each in found.places}
    if matrix.n < LEAST_PLACES or len(found.healthy) < 2 or 2 * len(slow) >= matrix.n:
        return []
    answers = [(RoundRequest(PAIRS, one.pairs, ""), answer_of(one.pairs, [one], matrix.size_bytes)) for one in rounds]
    log = HuntLog(matrix.places, answers, matrix.hosts)
    check = CrossCheck(log, found, _path_ends(matrix.places, matrix.hosts), None, draws.Random(f"pairs, {seed}"))
    yield from check.run(cross_check_rounds(matrix.n))
    return demote_common(suspects(check, matrix.places), log, check.alike)


def answer_of(groups: Sequence[tuple[int, ...]], rounds: Sequence[PairRound], size_bytes: int) -> RoundResult:
    """Return the figures of these pairs. Each pair is in one of the rounds, or was not measured."""
    figures = {pair: _figure(one, turn, size_bytes) for one in rounds for turn, pair in enumerate(one.pairs)}
    missing = GroupFigure(None, na="not measured")
    flags = dict.fromkeys(flag for one in rounds for flag in one.flags)
    return RoundResult(tuple(figures.get((group[0], group[1]), missing) for group in groups), tuple(flags))


def _figure(one: PairRound, turn: int, size_bytes: int) -> GroupFigure:
    there, back = (size_bytes / seconds if seconds else None for seconds in (one.forward_s[turn], one.backward_s[turn]))
    slower = max((one.forward_s, one.forward_ci_s), (one.backward_s, one.backward_ci_s), key=lambda way: way[0][turn] or 0.0)[1][turn]
    high, low = (size_bytes / seconds if seconds else None for seconds in slower)
    cpu_wait = one.cpu_wait[turn] if one.cpu_wait else 0.0
    flipped = bool(one.flipped and one.flipped[turn])
    return GroupFigure(there, back, one.latency_s[turn], low, high, one.wrong[turn] or 0, one.na[turn], cpu_wait, flipped)
