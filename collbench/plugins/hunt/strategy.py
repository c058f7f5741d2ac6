"""The whole hunt: a sweep, every candidate again with healthy partners, growing groups, suspects alone; then the verdict.

A place is named only if it is slow again with two healthy partners, next to pairs that are not slow. The assumption is that of
`analysis.pairs`: fewer than half of the places are slow. If more than a third would be named, none is, since the others may be unusually
fast instead.
"""

from __future__ import annotations

import random as draws
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isnan, log, nan

import numpy as np

from collbench.errors import UsageError
from collbench.operations.groups import circle_round
from collbench.plugins.hunt import facts, judging, scale, sweep
from collbench.plugins.hunt.crosscheck import CrossCheck
from collbench.plugins.hunt.judging import Alike, Candidate, SweepResult
from collbench.plugins.hunt.pair_statistics import CELLS, PAIR_ROUNDS_LEAST_CELLS
from collbench.plugins.hunt.protocol import (
    CLEARED,
    CONFIRMED,
    GROUPS,
    INCONCLUSIVE,
    PAIRS,
    Hunt,
    HuntLog,
    HuntVerdict,
    Options,
    RoundRequest,
    RoundResult,
    Suspect,
    hardly_met,
    lost,
    result_of_pairs,
    wrong_data,
)
from collbench.plugins.hunt.records import PairMatrix, PairRound
from collbench.reason import Fact

# One, two or three places: none can be named, but their figures are reported.

LEAST_PLACES = 4


def rounds(n: int) -> int:
    """Return the rounds that measure every pair once."""
    return n - 1 + n % 2 if n > 1 else 0


def _hunt_few(names: tuple[str, ...]) -> Hunt:
    """Return the figures of every pair, as notes, and why no place is named."""
    log, n = HuntLog(names), len(names)
    for number in range(rounds(n)):
        yield from log.request(RoundRequest(PAIRS, circle_round(n, number), f"round {number + 1} of {rounds(n)}"))
    for _, (a, b), figure in log.figures():
        if figure.speed is None:
            log.notes.append(facts.PairNotMeasured(names[a], names[b], figure.na or ""))
        else:
            log.notes.append(facts.PairFigures(names[a], names[b], figure.speed, figure.backward, figure.latency_s))
    wrong = wrong_data(log)
    log.notes += _wrong(wrong, wrong, names)
    why = facts.OneEndpoint() if n < 2 else facts.TooFewEndpoints(2 if n == 2 else 3)
    return HuntVerdict(names, (), log.rounds(), rounds(n), tuple(log.notes), why, typical_speed(log))


# Whether some pairs are slow because of the network's structure. Then a place in one of them is not slow.

_MOST_SLOW = 0.3  # of the pairs without any suspect; a sixth of all places may be slow and undetected
_FAST = 0.75  # the quantile of pairs that is the usual speed
_LEAST_PAIRS = 6


def demote_common(suspects: Sequence[Suspect], log: HuntLog, alike: Alike) -> list[Suspect]:
    """Return the suspects. Those as slow as many pairs of other places, on the same kind of path, become inconclusive."""
    confirmed = {place for each in suspects if each.state == CONFIRMED for place in each.places}
    matrices = {level: log.matrix(level) for level in (False, True)} if confirmed else {}
    return [_demoted(each, matrices, confirmed, alike) if each.state == CONFIRMED else each for each in suspects]


def _demoted(suspect: Suspect, matrices: Mapping[bool, PairMatrix], confirmed: set[int], alike: Alike) -> Suspect:
    """Return one suspect, judged with the round effects removed if it is only a little slow, and with them otherwise.

    Their removal hides a part that met another part as a whole. Without it, rounds may differ by their modes.
    """
    weak = -log(suspect.ratio) < CELLS["bandwidth"].least
    matrix = matrices[weak]
    if weak and matrix.n < 2 * PAIR_ROUNDS_LEAST_CELLS:
        return suspect  # the effect of rounds with so few pairs is not removed
    figures = -np.log(matrix.latency_s) if suspect.kind == "latency" else np.log(matrix.bandwidth)
    ends = suspect.places if len(suspect.places) == 2 else (*suspect.places, *suspect.partners[:1])
    pairs = [(int(a), int(b)) for a, b in np.argwhere(np.isfinite(figures)) if not confirmed & {int(a), int(b)}]
    if suspect.partners:
        pairs = [pair for pair in pairs if alike(*pair) == alike(*ends)]
    speeds = np.array([figures[pair] for pair in pairs])
    if len(speeds) < _LEAST_PAIRS:
        return suspect
    share = float(np.mean(speeds < np.quantile(speeds, _FAST) + log(suspect.ratio) / 2))
    return suspect if share <= _MOST_SLOW else _inconclusive(suspect, facts.OthersAsSlow(share))


def _inconclusive(suspect: Suspect, why: Fact) -> Suspect:
    return replace(suspect, state=INCONCLUSIVE, evidence=(*suspect.evidence, why))


# From measurements to suspects and notes: the known and the unknown.

_ORDER = {CONFIRMED: 0, INCONCLUSIVE: 1, CLEARED: 2}
_MOST_PAIRS = 8  # pairs that a note lists
_FASTEST, _MOST_UNEVEN = 0.9, 0.3
_MANY_PATHS, _OF_PLACES = 3, 4  # so many paths are not exceptions: three, or a quarter of the number of places


def suspects(check: CrossCheck, names: Sequence[str]) -> list[Suspect]:
    """Return the suspects of all cases. Paths of a confirmed place are left out.

    If many paths without a common place are slow, they are inconclusive: that is the structure of the network.
    """
    places = _worst([case.suspect(names) for case in check.places])
    confirmed = {each.places[0] for each in places if each.state == CONFIRMED}
    paths = _worst([case.suspect(names) for case in check.paths if not confirmed & set(case.places)])
    slow = [each for each in paths if each.state == CONFIRMED]
    ends = {place for each in slow for place in each.places}
    if len(slow) >= max(_MANY_PATHS, len(names) // _OF_PLACES) and len(ends) == 2 * len(slow):
        paths = [_inconclusive(each, facts.ManyPaths(len(slow))) if each in slow else each for each in paths]
    return [*places, *(_open(each, facts.Deferred()) for each in check.found.deferred), *paths]


def _worst(found: Sequence[Suspect]) -> list[Suspect]:
    """Return one suspect for each place or path that was judged by its bandwidth and by its latency: confirmed before inconclusive."""
    kept: dict[tuple[int, ...], Suspect] = {}
    for each in sorted(found, key=lambda each: (_ORDER[each.state], each.kind == "latency")):
        first = kept.setdefault(each.places, each)
        if first is not each and each.state == CONFIRMED:
            evidence = dict.fromkeys([*first.evidence, *each.evidence])  # both have the trials that they share
            kept[each.places] = replace(first, evidence=tuple(evidence))
    return [kept[places] for places in dict.fromkeys(each.places for each in found)]


def _open(candidate: Candidate, why: Fact) -> Suspect:
    """Return a candidate that was not measured again as a suspect."""
    kind = "latency" if candidate.of_latency else "node"
    return Suspect(kind, candidate.places, INCONCLUSIVE, candidate.ratio, evidence=(*candidate.why, why))


def _with_remarks(suspect: Suspect, log: HuntLog, leaf_of: Sequence[str]) -> Suspect:
    """Return the suspect, with evidence about wrong data, and about a switch without other hosts: a fault of its cables looks the same.

    leaf_of  by place its switch, "": unknown; (): all are unknown
    """
    evidence: list[Fact] = [*suspect.evidence, *_wrong(suspect.places, wrong_data(log), log.names)]
    leaf = leaf_of[suspect.places[0]] if leaf_of and len(suspect.places) == 1 else ""
    hosts = {host for host, own in zip(_path_ends(log), leaf_of, strict=False) if own == leaf}
    if leaf and suspect.state == CONFIRMED and len(hosts) == 1:
        evidence.append(facts.AloneOnSwitch(leaf))
    return replace(suspect, evidence=tuple(evidence))


def _wrong(places: Iterable[int], wrong: Mapping[int, tuple[int, int]], names: Sequence[str]) -> list[facts.WrongElements]:
    return [facts.WrongElements(names[place], *wrong[place]) for place in places if place in wrong]


def notes(log: HuntLog, those: Sequence[Suspect], found: SweepResult) -> list[Fact]:
    """Return the undecided questions, and the properties that all places share."""
    names, n = log.names, len(log.names)
    named = {place for each in those for place in each.places}
    # wrong data in at least half of a place's measurements; or in any if there is no such place
    wrong = wrong_data(log)
    most = [place for place, (bad, measured) in wrong.items() if 2 * bad >= measured] or list(wrong)
    known: list[Fact] = [*_wrong([place for place in most if place not in named], wrong, names)]
    # pairs without a figure, of places that have other figures
    lost = {pair: figure.na for _, pair, figure in log.figures() if figure.speed is None and not named & set(pair)}
    known += [facts.PairNotMeasured(names[a], names[b], why or "") for (a, b), why in list(lost.items())[:_MOST_PAIRS]]
    known += [facts.MorePairsNotMeasured(len(lost) - _MOST_PAIRS)] if len(lost) > _MOST_PAIRS else []
    flags = Counter(flag for _, answer in log.exchanges for flag in dict.fromkeys(answer.flags))
    known += [facts.RoundFlag(flag, number, len(log.exchanges)) for flag, number in flags.items()]
    met, possible = len({pair for _, pair, _ in log.figures()}), n * (n - 1) // 2
    known += [facts.PairsNotCovered(met, possible)] if 0 < met < possible else []  # a slow path is detected only if it was measured
    speed = found.middle or typical_speed(log)
    if speed is not None and all(each.state == CLEARED for each in those):
        uneven = _uneven(log)
        known.append(facts.DividedPairs(uneven) if uneven > _MOST_UNEVEN else facts.AllAlike(speed))
    return known


def typical_speed(log: HuntLog) -> float | None:
    """Return the usual speed of a pair, else of a group, in bytes per second."""
    speeds = _speeds(log, PAIRS) or _speeds(log, GROUPS)
    return float(np.median(speeds)) if speeds else None


def _speeds(log: HuntLog, kind: str) -> list[float]:
    return [each for _, _, figure in log.figures(kind) for each in (figure.speed, figure.backward) if each]


def _uneven(hunt_log: HuntLog) -> float:
    """Return the share of pairs that are noticeably slower than the fastest tenth."""
    speeds = [log(each) for each in _speeds(hunt_log, PAIRS)]
    return float(np.mean(speeds < np.quantile(speeds, _FASTEST) - CELLS["bandwidth"].least)) if speeds else 0.0


_CROSS_CHECK_ROUNDS = ((8, 26), (16, 18), (64, 14), (256, 10), (inf, 9))  # by the number of places
_LEAST_CROSS_CHECK = 3
_MOST_CONFIRMED_SHARE = 3  # one of so many places


def promise(n: int, options: Options) -> int:
    """Return the largest number of rounds of a hunt among n places. Most hunts take far fewer.

    Raises UsageError if `options.rounds` or `options.most_rounds` is less than the fewest rounds that give a result.
    """
    return sum(stages(n, options).values())


def stages(n: int, options: Options) -> dict[str, int]:
    """Return the largest number of rounds of each stage of a hunt among n places. Raises UsageError as `promise` does."""
    if n < LEAST_PLACES:
        return {"sweep": rounds(n)}
    shares = _shares(n, options)
    return {"sweep": shares.sweep, "cross-check": shares.cross_check, "growing": shares.growing, "isolation": shares.isolation}


def cross_check_rounds(n: int) -> int:
    """Return how many rounds may measure suspects of n places again: more for few places, since a round then has few controls."""
    return next(rounds for most, rounds in _CROSS_CHECK_ROUNDS if n < most)


def hunt(names: Sequence[str], options: Options, hosts: Sequence[str] = ()) -> Hunt:
    """Request rounds until the verdict is clear, and return it. Raises UsageError as `promise` does.

    names, hosts: of the places; without hosts each place is a host of its own.
    """
    if len(names) < LEAST_PLACES:
        return (yield from _hunt_few(tuple(names)))
    log, shares = HuntLog(tuple(names), hosts=tuple(hosts or names)), _shares(len(names), options)
    random = draws.Random(f"hunt, {options.seed}")
    found = yield from _sweep(log, options, shares, random)
    too_many = _too_many(found, len(names), len(_unknown_speeds(log, shares)))
    if too_many:
        known = [_open(each, too_many) for each in found.places]
    else:
        known = yield from _cross_check(log, found, options, shares, random)
        if options.growing and not any(each.state == CONFIRMED for each in known):
            known += yield from _grow(log, _not_suspects(known, len(names)), options, shares, random)
        if options.isolate and any(each.state == CONFIRMED for each in known):
            known = yield from _isolate(log, known, options, shares)
    all_notes = (*log.notes, *notes(log, known, found))
    remarked = [_with_remarks(each, log, options.leaf_of or ()) for each in known]
    ordered = sorted(remarked, key=lambda each: (_ORDER[each.state], 0.0 if isnan(each.ratio) else each.ratio, each.places))
    middle = found.middle or typical_speed(log)
    return HuntVerdict(log.names, tuple(ordered), log.rounds(), shares.all_of_them, all_notes, too_many, middle, log.hosts)


def _sweep(log: HuntLog, options: Options, shares: _Shares, random: draws.Random) -> Generator[RoundRequest, RoundResult, SweepResult]:
    """Return the candidates, and the healthy places to compare them with."""
    if shares.by_groups:
        log.notes.append(facts.GroupSweep())
        members = yield from sweep.sweep_groups(log, options, random)
        return judging.candidates_of_groups(members, len(log.names), _unknown_speeds(log, shares))
    if options.method == "groups":
        log.notes.append(facts.PairsInstead(sweep.LEAST_PLACES))
    yield from sweep.sweep_pairs(log, options, shares.sweep, random)
    return judging.find_candidates(log.matrix(), _unknown_speeds(log, shares))


def _cross_check(
    log: HuntLog, found: SweepResult, options: Options, shares: _Shares, random: draws.Random
) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
    """Return the suspects after their repeated measurement, and the places of unknown speed. At most a third is confirmed."""
    check = CrossCheck(log, found, _path_ends(log), options.leaf_of, random)
    done = yield from check.run(shares.cross_check)
    if not done:
        log.notes.append(facts.RoundsUsedUp(shares.cross_check))
    if check.left_out:
        log.notes.append(facts.PathsNotRetested(check.left_out))
    gone = _unknown_speeds(log, shares)
    known = [each for each in demote_common(suspects(check, log.names), log, check.alike) if not set(each.places) & gone.keys()]
    confirmed = [each for each in known if each.state == CONFIRMED and len(each.places) == 1]
    if _MOST_CONFIRMED_SHARE * len(confirmed) > len(log.names):
        too_many = facts.TooManySuspects(len(confirmed), len(log.names))
        log.notes.append(too_many)
        known = [_inconclusive(each, too_many) if each in confirmed else each for each in known]
    return known + [Suspect("node", (place,), INCONCLUSIVE, nan, evidence=(why, facts.SpeedUnknown())) for place, why in gone.items()]


def _grow(
    log: HuntLog, healthy: Sequence[int], options: Options, shares: _Shares, random: draws.Random
) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
    """Return the suspects that growing groups find, if there are rounds for them."""
    needed = scale.most_rounds(len(healthy), options)
    if needed > shares.growing:
        log.notes.append(facts.StageSkipped("growing", needed, shares.growing))
        return []
    return (yield from scale.measure_growing(log, healthy, options, random))


def _isolate(log: HuntLog, known: list[Suspect], options: Options, shares: _Shares) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
    """Return the suspects with their slow parts, if there are rounds to measure them alone."""
    needed = scale.most_rounds_isolation(options)
    if needed > shares.isolation:
        log.notes.append(facts.StageSkipped("isolation", needed, shares.isolation))
        return known
    return (yield from scale.measure_isolation(log, known, _not_suspects(known, len(log.names)), options))


def _unknown_speeds(log: HuntLog, shares: _Shares) -> dict[int, Fact]:
    """Return the places of unknown speed, with the reason."""
    return lost(log) if shares.by_groups else {**hardly_met(log, sweep.LEAST_PARTNERS), **lost(log)}


def _too_many(found: SweepResult, n: int, gone: int) -> facts.TooFewMeasured | facts.TooManySuspects | None:
    """Return why no place can be judged, if healthy places are not a majority."""
    measured, slow = n - gone, len({each.places for each in found.places})
    if measured < LEAST_PLACES:
        return facts.TooFewMeasured(measured, n)
    return facts.TooManySuspects(slow, measured) if slow and (len(found.healthy) < 2 or 2 * slow >= measured) else None


def _not_suspects(known: Sequence[Suspect], n: int) -> list[int]:
    """Return the places that are not suspects."""
    out = {place for each in known if each.state in (CONFIRMED, INCONCLUSIVE) and each.kind != "path" for place in each.places}
    return [place for place in range(n) if place not in out]


def _path_ends(log: HuntLog) -> Sequence[str]:
    """Return the host of each place; on a single host every place counts as a host: all paths are of one kind."""
    return log.names if len(set(log.hosts)) == 1 else log.hosts


@dataclass(frozen=True)
class _Shares:
    """The largest number of rounds of each stage."""

    by_groups: bool
    sweep: int
    cross_check: int
    growing: int
    isolation: int

    @property
    def all_of_them(self) -> int:
        return self.sweep + self.cross_check + self.growing + self.isolation


def _shares(n: int, options: Options) -> _Shares:
    """Return the rounds of each stage. If they are limited, the sweep and the cross-check come first, then the isolation."""
    # groups cannot decide among few places, nor cross all links
    able = n >= sweep.LEAST_PLACES and not options.cover and options.method != "pairs"
    fits = options.most_rounds is None or sweep.rounds(n, options) + cross_check_rounds(n) <= options.most_rounds
    by_groups = able and (options.method == "groups" or not fits)
    sweep_rounds = sweep.rounds_groups(n, options) if by_groups else sweep.rounds(n, options)
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
    return _Shares(by_groups, swept, checked, min(grown, left - checked - isolated), isolated)


# The suspects of a pair matrix, measured again as in a hunt: next to control pairs, in rounds that chance does not explain.


def judge(matrix: PairMatrix, rounds: Sequence[PairRound], seed: int) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
    """Request rounds until each suspect of the matrix is confirmed, cleared or inconclusive; return the suspects.

    It requests nothing with fewer than four places, or if half of all places are suspects, since no majority is healthy then.
    Suspects that are not returned were not measured again.
    """
    found = judging.find_candidates(matrix)
    slow = {each.places for each in found.places}
    if matrix.n < LEAST_PLACES or len(found.healthy) < 2 or 2 * len(slow) >= matrix.n:
        return []
    answers = [(RoundRequest(PAIRS, one.pairs, ""), result_of_pairs(one.pairs, [one], matrix.size_bytes)) for one in rounds]
    log = HuntLog(matrix.places, answers, matrix.hosts)
    check = CrossCheck(log, found, _path_ends(log), None, draws.Random(f"pairs, {seed}"))
    yield from check.run(cross_check_rounds(matrix.n))
    return demote_common(suspects(check, matrix.places), log, check.alike)
