"""The whole hunt: a sweep, every candidate again with healthy partners, growing groups, suspects alone; then the verdict.

A place is named only if it is slow again with two healthy partners, next to pairs that are not slow. The assumption is that of
`analysis.pairs`: fewer than half of the places are slow. If more than a third would be named, none is, since the others may be unusually
fast instead.
"""

from __future__ import annotations

import random as draws
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace
from math import inf, isnan, nan
from math import log as log_of

import numpy as np

from collbench.errors import UsageError
from collbench.operations.groups import circle_round
from collbench.plugins.hunt import facts, judging, scale, sweep
from collbench.plugins.hunt.crosscheck import CrossCheck
from collbench.plugins.hunt.judging import Alike, Candidate, SweepResult
from collbench.plugins.hunt.pair_statistics import CELLS, LEAST_PLACES, PAIR_ROUNDS_LEAST_CELLS
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
from collbench.units import plural

# One, two or three places: none can be named, but their figures are reported.


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
    log.notes += [facts.WrongElements(names[place], *counts) for place, counts in wrong_data(log).items()]
    why = facts.OneEndpoint() if n < 2 else facts.TooFewEndpoints(2 if n == 2 else 3)
    return HuntVerdict(names, (), log.rounds(), rounds(n), tuple(log.notes), why, typical_speed(log))


# Whether some pairs are slow because of the network's structure. Then a place in one of them is not slow.

_MOST_SLOW = 0.3  # of the pairs without any suspect; a sixth of all places may be slow and undetected
_FAST = 0.75  # the quantile of pairs that is the usual speed
_LEAST_PAIRS = 6


def demote_common(suspects: Sequence[Suspect], log: HuntLog, alike: Alike) -> list[Suspect]:
    """Return the suspects. Those as slow as many pairs of other places, on the same kind of path, become inconclusive.

    A suspect is judged with the round effects removed if it is only a little slow, and with them otherwise. Their removal hides a part
    that met another part as a whole. Without it, rounds may differ by their modes.
    """
    confirmed = {place for suspect in suspects if suspect.state == CONFIRMED for place in suspect.places}
    matrices = {level: log.matrix(level) for level in (False, True)} if confirmed else {}
    judged = []
    for suspect in suspects:
        judged.append(suspect)
        if suspect.state != CONFIRMED:
            continue
        weak = -log_of(suspect.ratio) < CELLS["bandwidth"].least
        matrix = matrices[weak]
        if weak and matrix.n < 2 * PAIR_ROUNDS_LEAST_CELLS:
            continue  # the effect of rounds with so few pairs is not removed
        figures = -np.log(matrix.latency_s) if suspect.kind == "latency" else np.log(matrix.bandwidth)
        ends = suspect.places if len(suspect.places) == 2 else (*suspect.places, *suspect.partners[:1])
        pairs = [(int(a), int(b)) for a, b in np.argwhere(np.isfinite(figures)) if not confirmed & {int(a), int(b)}]
        if suspect.partners:
            pairs = [pair for pair in pairs if alike(*pair) == alike(*ends)]
        speeds = np.array([figures[pair] for pair in pairs])
        if len(speeds) >= _LEAST_PAIRS:
            share = float(np.mean(speeds < np.quantile(speeds, _FAST) + log_of(suspect.ratio) / 2))
            if share > _MOST_SLOW:
                judged[-1] = _inconclusive(suspect, facts.OthersAsSlow(share))
    return judged


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


def notes(log: HuntLog, those: Sequence[Suspect], found: SweepResult) -> list[Fact]:
    """Return the undecided questions, and the properties that all places share."""
    names, n = log.names, len(log.names)
    named = {place for suspect in those for place in suspect.places}
    # wrong data in at least half of a place's measurements; or in any if there is no such place
    wrong = wrong_data(log)
    most = [place for place, (bad, measured) in wrong.items() if 2 * bad >= measured] or list(wrong)
    known: list[Fact] = [facts.WrongElements(names[place], *wrong[place]) for place in most if place not in named]
    # pairs without a figure, of places that have other figures
    lost = {pair: figure.na for _, pair, figure in log.figures() if figure.speed is None and not named & set(pair)}
    known += [facts.PairNotMeasured(names[a], names[b], why or "") for (a, b), why in list(lost.items())[:_MOST_PAIRS]]
    if len(lost) > _MOST_PAIRS:
        known.append(facts.MorePairsNotMeasured(len(lost) - _MOST_PAIRS))
    flags = Counter(flag for _, answer in log.exchanges for flag in dict.fromkeys(answer.flags))
    known += [facts.RoundFlag(flag, number, len(log.exchanges)) for flag, number in flags.items()]
    met, possible = len({pair for _, pair, _ in log.figures()}), n * (n - 1) // 2
    if 0 < met < possible:  # a slow path is detected only if it was measured
        known.append(facts.PairsNotCovered(met, possible))
    speed = found.middle or typical_speed(log)
    if speed is not None and all(suspect.state == CLEARED for suspect in those):
        # the share of pairs that are noticeably slower than the fastest tenth
        speeds = np.array([log_of(pair_speed) for pair_speed in _speeds(log, PAIRS)])
        uneven = float(np.mean(speeds < np.quantile(speeds, _FASTEST) - CELLS["bandwidth"].least)) if len(speeds) else 0.0
        known.append(facts.DividedPairs(uneven) if uneven > _MOST_UNEVEN else facts.AllAlike(speed))
    return known


def typical_speed(log: HuntLog) -> float | None:
    """Return the usual speed of a pair, else of a group, in bytes per second."""
    speeds = _speeds(log, PAIRS) or _speeds(log, GROUPS)
    return float(np.median(speeds)) if speeds else None


def _speeds(log: HuntLog, kind: str) -> list[float]:
    return [speed for _, _, figure in log.figures(kind) for speed in (figure.speed, figure.backward) if speed]


_CROSS_CHECK_ROUNDS = ((8, 26), (16, 18), (64, 14), (256, 10), (inf, 9))  # by the number of places
_LEAST_CROSS_CHECK = 3
_MOST_CONFIRMED_SHARE = 3  # one of so many places


def promise(n: int, options: Options) -> int:
    """Return the largest number of rounds of a hunt among n places. Most hunts take far fewer.

    Raises UsageError if `options.rounds` or `options.most_rounds` is less than the fewest rounds that give a result.
    """
    return sum(stages(n, options).values())


def cross_check_rounds(n: int) -> int:
    """Return how many rounds may measure suspects of n places again: more for few places, since a round then has few controls."""
    return next(rounds for most, rounds in _CROSS_CHECK_ROUNDS if n < most)


def hunt(names: Sequence[str], options: Options, hosts: Sequence[str] = ()) -> Hunt:
    """Request rounds until the verdict is clear, and return it. Raises UsageError as `promise` does.

    names, hosts: of the places; without hosts each place is a host of its own.
    """
    n = len(names)
    if n < LEAST_PLACES:
        return (yield from _hunt_few(tuple(names)))
    log, most_rounds = HuntLog(tuple(names), hosts=tuple(hosts or names)), stages(n, options)
    random = draws.Random(f"hunt, {options.seed}")
    found = yield from _sweep(log, options, most_rounds["sweep"], random)
    # no place can be judged if healthy places are not a majority
    too_many: facts.TooFewMeasured | facts.TooManySuspects | None = None
    measured, slow = n - len(_unknown_speeds(log, options)), len({candidate.places for candidate in found.places})
    if measured < LEAST_PLACES:
        too_many = facts.TooFewMeasured(measured, n)
    elif slow and (len(found.healthy) < 2 or 2 * slow >= measured):
        too_many = facts.TooManySuspects(slow, measured)
    if too_many:
        known = [_open(candidate, too_many) for candidate in found.places]
    else:
        known = yield from _cross_check(log, found, options, most_rounds["cross-check"], random)
        if options.growing and not any(suspect.state == CONFIRMED for suspect in known):
            healthy = _not_suspects(known, n)
            needed = scale.most_rounds(len(healthy), options)
            if needed > most_rounds["growing"]:
                log.notes.append(facts.StageSkipped("growing", needed, most_rounds["growing"]))
            else:
                known += yield from scale.measure_growing(log, healthy, options, random)
        if options.isolate and any(suspect.state == CONFIRMED for suspect in known):
            needed = scale.most_rounds_isolation(options)
            if needed > most_rounds["isolation"]:
                log.notes.append(facts.StageSkipped("isolation", needed, most_rounds["isolation"]))
            else:
                known = yield from scale.measure_isolation(log, known, _not_suspects(known, n), options)
    all_notes = (*log.notes, *notes(log, known, found))
    middle, promised = found.middle or typical_speed(log), sum(most_rounds.values())
    ordered = _remarked(log, known, options.leaf_of or ())
    return HuntVerdict(log.names, ordered, log.rounds(), promised, all_notes, too_many, middle, log.hosts)


def _remarked(log: HuntLog, suspects: Sequence[Suspect], leaf_of: Sequence[str]) -> tuple[Suspect, ...]:
    """Return the suspects in order, with evidence about wrong data, and about a switch without other hosts.

    leaf_of  by place its switch, "": unknown; (): all are unknown
    """
    wrong, remarked = wrong_data(log), []
    for suspect in suspects:
        evidence = [*suspect.evidence]
        evidence += [facts.WrongElements(log.names[place], *wrong[place]) for place in suspect.places if place in wrong]
        leaf = leaf_of[suspect.places[0]] if leaf_of and len(suspect.places) == 1 else ""
        hosts = {host for host, leaf_of_host in zip(_path_ends(log), leaf_of, strict=False) if leaf_of_host == leaf}
        if leaf and suspect.state == CONFIRMED and len(hosts) == 1:  # a fault of the switch's cables looks the same
            evidence.append(facts.AloneOnSwitch(leaf))
        remarked.append(replace(suspect, evidence=tuple(evidence)))
    remarked.sort(key=lambda suspect: (_ORDER[suspect.state], 0.0 if isnan(suspect.ratio) else suspect.ratio, suspect.places))
    return tuple(remarked)


def _sweep(log: HuntLog, options: Options, room: int, random: draws.Random) -> Generator[RoundRequest, RoundResult, SweepResult]:
    """Return the candidates, and the healthy places to compare them with."""
    if _is_by_groups(len(log.names), options):
        log.notes.append(facts.GroupSweep())
        members = yield from sweep.sweep_groups(log, options, random)
        return judging.candidates_of_groups(members, len(log.names), _unknown_speeds(log, options))
    if options.method == "groups":
        log.notes.append(facts.PairsInstead(sweep.LEAST_PLACES))
    yield from sweep.sweep_pairs(log, options, room, random)
    return judging.find_candidates(log.matrix(), _unknown_speeds(log, options))


def _cross_check(
    log: HuntLog, found: SweepResult, options: Options, room: int, random: draws.Random
) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
    """Return the suspects after their repeated measurement, and the places of unknown speed. At most a third is confirmed."""
    check = CrossCheck(log, found, _path_ends(log), options.leaf_of, random)
    done = yield from check.run(room)
    if not done:
        log.notes.append(facts.RoundsUsedUp(room))
    if check.left_out:
        log.notes.append(facts.PathsNotRetested(check.left_out))
    gone = _unknown_speeds(log, options)
    judged = demote_common(suspects(check, log.names), log, check.alike)
    known = [suspect for suspect in judged if not set(suspect.places) & gone.keys()]
    confirmed = [suspect for suspect in known if suspect.state == CONFIRMED and len(suspect.places) == 1]
    if _MOST_CONFIRMED_SHARE * len(confirmed) > len(log.names):
        too_many = facts.TooManySuspects(len(confirmed), len(log.names))
        log.notes.append(too_many)
        known = [_inconclusive(suspect, too_many) if suspect in confirmed else suspect for suspect in known]
    return known + [Suspect("node", (place,), INCONCLUSIVE, nan, evidence=(why, facts.SpeedUnknown())) for place, why in gone.items()]


def _unknown_speeds(log: HuntLog, options: Options) -> dict[int, Fact]:
    """Return the places of unknown speed, with the reason."""
    return lost(log) if _is_by_groups(len(log.names), options) else {**hardly_met(log, sweep.LEAST_PARTNERS), **lost(log)}


def _not_suspects(known: Sequence[Suspect], n: int) -> list[int]:
    suspected = [suspect for suspect in known if suspect.state in (CONFIRMED, INCONCLUSIVE) and suspect.kind != "path"]
    out = {place for suspect in suspected for place in suspect.places}
    return [place for place in range(n) if place not in out]


def _path_ends(log: HuntLog) -> Sequence[str]:
    """Return the host of each place; on a single host every place counts as a host: all paths are of one kind."""
    return log.names if len(set(log.hosts)) == 1 else log.hosts


def _is_by_groups(n: int, options: Options) -> bool:
    """Return whether the sweep measures groups, which cannot decide among few places, nor cross all links."""
    able = n >= sweep.LEAST_PLACES and not options.cover and options.method != "pairs"
    fits = options.most_rounds is None or sweep.rounds(n, options) + cross_check_rounds(n) <= options.most_rounds
    return able and (options.method == "groups" or not fits)


def stages(n: int, options: Options) -> dict[str, int]:
    """Return the largest number of rounds of each stage of a hunt among n places. Raises UsageError as `promise` does.

    If the rounds are limited, the sweep and the cross-check come first, then the isolation.
    """
    if n < LEAST_PLACES:
        return {"sweep": rounds(n)}
    by_groups = _is_by_groups(n, options)
    sweep_rounds = sweep.rounds_groups(n, options) if by_groups else sweep.rounds(n, options)
    least = sweep_rounds if by_groups else sweep.least_rounds(n, options)
    if sweep_rounds < least:
        raise UsageError(
            f"a sweep of {plural(sweep_rounds, 'round')} cannot distinguish a faulty one of {n} from a faulty partner: "
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
    return {"sweep": swept, "cross-check": checked, "growing": min(grown, left - checked - isolated), "isolation": isolated}


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
