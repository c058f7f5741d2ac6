"""The whole hunt: a sweep, every candidate again with healthy partners, growing groups, suspects alone; then the verdict.

A place is named only if it is slow again with two healthy partners, next to pairs that are not slow. The assumption is that of `pairs`:
fewer than half of the places are slow. If more than a third would be named, none is, since the others may be unusually fast instead.
"""

from __future__ import annotations

import random as draws
from collections import Counter
from collections.abc import Generator, Sequence
from math import inf, isnan, nan
from math import log as ln

import numpy as np
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.operations.groups import circle_round
from collbench.plugins.hunt import candidates, facts, growing, isolation, sweep
from collbench.plugins.hunt.candidates import Candidate, SweepResult
from collbench.plugins.hunt.crosscheck import CrossCheck
from collbench.plugins.hunt.pair_statistics import LEAST_PLACES, PAIR_ROUNDS_LEAST_CELLS, PAIRS_LEVEL
from collbench.plugins.hunt.protocol import (
    CLEARED,
    CONFIRMED,
    GROUPS,
    INCONCLUSIVE,
    PAIRS,
    TRUNK,
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
from collbench.plugins.hunt.trials import PathKind
from collbench.reason import Fact
from collbench.units import plural

_ORDER = {CONFIRMED: 0, INCONCLUSIVE: 1, CLEARED: 2}
_CROSS_CHECK_ROUNDS = ((8, 26), (16, 18), (64, 14), (256, 10), (inf, 9))  # by the number of places
_LEAST_CROSS_CHECK = 3
_MOST_CONFIRMED_SHARE = 3  # one of so many places
_MANY_PATHS, _OF_PLACES = 3, 4  # so many paths are not exceptions: three, or a quarter of the number of places
# pairs of other places: when they are as slow as a suspect
_MOST_SLOW = 0.3  # of the pairs without any suspect; a sixth of all places may be slow and undetected
_FAST = 0.75  # the quantile of pairs that is the usual speed
_LEAST_PAIRS = 6
# notes
_MOST_PAIRS = 8  # pairs that a note lists
_FASTEST, _MOST_UNEVEN = 0.9, 0.3


def promise(n: int, options: Options) -> int:
    """Return the largest number of rounds of a hunt among n places. Raises UsageError if the options allow too few for a result."""
    return sum(stages(n, options).values())


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
    most_growing = growing.most_rounds(n, options)
    most_isolation = isolation.most_rounds(options)
    most_groups = options.group_stage.most_rounds(options) if options.group_stage else 0
    most = options.most_rounds
    if most is None:
        most = sweep_rounds + cross_check_rounds(n) + most_groups + most_growing + most_isolation
    if most < least + _LEAST_CROSS_CHECK:
        raise UsageError(
            f"{most} rounds are too few for {n} endpoints: the sweep takes {least} and measuring suspects again {_LEAST_CROSS_CHECK}; "
            f"allow {least + _LEAST_CROSS_CHECK} or more (a larger --budget, or a smaller --max-time)"
        )
    swept = max(least, min(sweep_rounds, most - cross_check_rounds(n)))
    checked = min(cross_check_rounds(n), most - swept)
    grouped = min(most_groups, most - swept - checked)
    isolated = min(most_isolation, most - swept - checked - grouped)
    grown = min(most_growing, most - swept - checked - grouped - isolated)
    most_rounds = {"sweep": swept, "cross-check": checked, "growing": grown, "isolation": isolated}
    return {**most_rounds, "groups": grouped} if options.group_stage else most_rounds


def rounds(n: int) -> int:
    """Return the rounds that measure every pair once."""
    return n - 1 + n % 2 if n > 1 else 0


def cross_check_rounds(n: int) -> int:
    """Return how many rounds may measure suspects of n places again: more for few places, since a round then has few controls."""
    return next(most for places, most in _CROSS_CHECK_ROUNDS if n < places)


def _is_by_groups(n: int, options: Options) -> bool:
    """Return whether the sweep measures groups, which cannot decide among few places, nor cross all links."""
    if n < sweep.LEAST_PLACES or options.cover or options.group_stage or options.method == "pairs":
        return False
    fits = options.most_rounds is None or sweep.rounds(n, options) + cross_check_rounds(n) <= options.most_rounds
    return options.method == "groups" or not fits


def hunt(names: Sequence[str], options: Options, hosts: Sequence[str] = ()) -> Hunt:
    """Request rounds until the verdict is clear, and return it. Raises UsageError as `promise` does.

    names, hosts: of the places; without hosts each place is a host of its own.
    """
    n = len(names)
    if n < LEAST_PLACES:
        return (yield from _hunt_few(tuple(names)))
    log = HuntLog(tuple(names), hosts=tuple(hosts or names))
    most_rounds = stages(n, options)
    random = draws.Random(f"hunt, {options.seed}")
    selection = yield from _sweep(log, options, most_rounds["sweep"], random)
    trunks: list[Suspect] = []
    if options.group_stage:
        trunks = yield from options.group_stage.judge(log, most_rounds["groups"], random)
        options = replace(options, leaf_of=options.group_stage.leaf_of or options.leaf_of)
        selection = candidates.find_candidates(log.matrix(), _unknown_speeds(log, options))
    # no place can be judged if healthy places are not a majority
    no_verdict: Fact | None = None
    measured = n - len(_unknown_speeds(log, options))
    slow = len({candidate.places for candidate in selection.places})
    if measured < LEAST_PLACES:
        no_verdict = facts.TooFewMeasured(measured, n)
    elif slow and (len(selection.healthy) < 2 or 2 * slow >= measured):
        no_verdict = facts.TooManySuspects(slow, measured)
    if no_verdict:
        judged = [_not_retested(candidate, no_verdict) for candidate in selection.places]
    else:
        judged = yield from _cross_check(log, selection, options, most_rounds["cross-check"], random)
        if options.growing and not log.avoided and not any(suspect.state == CONFIRMED for suspect in judged):
            healthy = _not_suspects(judged, n)
            if _fits(log, "growing", growing.most_rounds(len(healthy), options), most_rounds):
                judged += yield from growing.measure_growing(log, healthy, options, random)
                if not any(suspect.state == CONFIRMED for suspect in judged):
                    no_verdict = next((note for note in log.notes if isinstance(note, facts.SLOW_PLACE_UNKNOWN)), None)
        isolated = options.isolate and not log.avoided and any(suspect.state == CONFIRMED for suspect in judged)
        if isolated and _fits(log, "isolation", isolation.most_rounds(options), most_rounds):
            judged = yield from isolation.measure_isolation(log, judged, _not_suspects(judged, n), options)
    judged = [*judged, *trunks]
    if options.group_stage:
        room = most_rounds["groups"] - log.rounds().get("groups", 0)
        judged = yield from options.group_stage.measure_ports(log, judged, options, room)
    return HuntVerdict(
        names=log.names,
        suspects=_ordered(log, judged, options.leaf_of or ()),
        rounds=log.rounds(),
        promised=sum(most_rounds.values()),
        notes=(*log.notes, *notes(log, judged, selection)),
        no_verdict=no_verdict,
        middle=selection.middle or typical_speed(log),
        hosts=log.hosts,
    )


def _fits(log: HuntLog, stage: facts.Stage, needed: int, most_rounds: dict[str, int]) -> bool:
    """Return whether a stage has enough rounds; else note that it is skipped."""
    if needed > most_rounds[stage]:
        log.notes.append(facts.StageSkipped(stage, needed, most_rounds[stage]))
    return needed <= most_rounds[stage]


def _hunt_few(names: tuple[str, ...]) -> Hunt:
    """Return the figures of every pair of one, two or three places, as notes, and why no place is named."""
    log = HuntLog(names)
    n = len(names)
    for number in range(rounds(n)):
        yield from log.request(RoundRequest(PAIRS, circle_round(n, number), f"round {number + 1} of {rounds(n)}"))
    for _, (a, b), figure in log.figures():
        if figure.speed is None:
            log.notes.append(facts.PairNotMeasured(names[a], names[b], figure.na or ""))
        else:
            log.notes.append(facts.PairFigures(names[a], names[b], figure.speed, figure.backward, figure.latency_s))
    log.notes += [facts.WrongElements(names[place], *counts) for place, counts in wrong_data(log).items()]
    why: facts.TooFewEndpoints | facts.OneEndpoint = facts.OneEndpoint()
    if n > 1:
        why = facts.TooFewEndpoints(2 if n == 2 else 3)
    return HuntVerdict(names, (), log.rounds(), rounds(n), tuple(log.notes), why, typical_speed(log))


def _sweep(log: HuntLog, options: Options, room: int, random: draws.Random) -> Generator[RoundRequest, RoundResult, SweepResult]:
    """Return the candidates, and the healthy places to compare them with."""
    if _is_by_groups(len(log.names), options):
        log.notes.append(facts.GroupSweep())
        members = yield from sweep.sweep_groups(log, options, random)
        return candidates.candidates_of_groups(members, len(log.names), _unknown_speeds(log, options))
    if options.method == "groups":
        log.notes.append(facts.PairsInstead(sweep.LEAST_PLACES))
    yield from sweep.sweep_pairs(log, options, room, random)
    return candidates.find_candidates(log.matrix(), _unknown_speeds(log, options))


def _cross_check(
    log: HuntLog, selection: SweepResult, options: Options, room: int, random: draws.Random
) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
    """Return the suspects after their repeated measurement, and the places of unknown speed. At most a third is confirmed."""
    check = CrossCheck(log, selection, _path_ends(log), options.leaf_of, random)
    is_done = yield from check.run(room)
    if not is_done:
        log.notes.append(facts.RoundsUsedUp(room))
    if check.left_out:
        log.notes.append(facts.PathsNotRetested(check.left_out))
    unknown = _unknown_speeds(log, options)
    judged = demote_common(suspects(check, log.names), log, check.path_kind)
    judged = [suspect for suspect in judged if not set(suspect.places) & unknown.keys()]
    confirmed = [suspect for suspect in judged if suspect.state == CONFIRMED and len(suspect.places) == 1]
    if _MOST_CONFIRMED_SHARE * len(confirmed) > len(log.names):
        too_many = facts.TooManySuspects(len(confirmed), len(log.names))
        log.notes.append(too_many)
        judged = [_inconclusive(suspect, too_many) if suspect in confirmed else suspect for suspect in judged]
    for place, why in unknown.items():
        judged.append(Suspect("node", (place,), INCONCLUSIVE, nan, evidence=(why, facts.SpeedUnknown())))
    return judged


def judge(matrix: PairMatrix, rounds: Sequence[PairRound], seed: int) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
    """Request rounds until each suspect of the matrix is confirmed, cleared or inconclusive; return the suspects.

    They are measured as in a hunt: next to control pairs, in rounds that chance does not explain. It requests nothing with fewer than four
    places, or if half of all places are suspects, since no majority is healthy then. Suspects that are not returned were not measured
    again.
    """
    selection = candidates.find_candidates(matrix)
    slow = {candidate.places for candidate in selection.places}
    if matrix.n < LEAST_PLACES or len(selection.healthy) < 2 or 2 * len(slow) >= matrix.n:
        return []
    exchanges = []
    for pair_round in rounds:
        result = result_of_pairs(pair_round.pairs, [pair_round], matrix.size_bytes)
        exchanges.append((RoundRequest(PAIRS, pair_round.pairs, ""), result))
    log = HuntLog(matrix.places, exchanges, matrix.hosts)
    check = CrossCheck(log, selection, _path_ends(log), None, draws.Random(f"pairs, {seed}"))
    yield from check.run(cross_check_rounds(matrix.n))
    return demote_common(suspects(check, log.names), log, check.path_kind)


def suspects(check: CrossCheck, names: Sequence[str]) -> list[Suspect]:
    """Return the suspects of all checks. Paths of a confirmed place are left out.

    If many paths without a common place are slow, they are inconclusive: that is the structure of the network.
    """
    places = _worst([place.suspect(names) for place in check.places])
    confirmed = {suspect.places[0] for suspect in places if suspect.state == CONFIRMED}
    paths = _worst([path.suspect(names) for path in check.paths if not confirmed & set(path.places)])
    slow = [suspect for suspect in paths if suspect.state == CONFIRMED]
    ends = {place for suspect in slow for place in suspect.places}
    if len(slow) >= max(_MANY_PATHS, len(names) // _OF_PLACES) and len(ends) == 2 * len(slow):
        paths = [_inconclusive(suspect, facts.ManyPaths(len(slow))) if suspect in slow else suspect for suspect in paths]
    deferred = [_not_retested(candidate, facts.Deferred()) for candidate in check.selection.deferred]
    return [*places, *deferred, *paths]


def _worst(suspects: Sequence[Suspect]) -> list[Suspect]:
    """Return one suspect for each place or path that was judged by its bandwidth and by its latency: confirmed before inconclusive."""
    kept: dict[tuple[int, ...], Suspect] = {}
    for suspect in sorted(suspects, key=lambda suspect: (_ORDER[suspect.state], suspect.kind == "latency")):
        worst = kept.setdefault(suspect.places, suspect)
        if worst is not suspect and suspect.state == CONFIRMED:
            evidence = dict.fromkeys([*worst.evidence, *suspect.evidence])  # both have the trials that they share
            kept[suspect.places] = replace(worst, evidence=tuple(evidence))
    return [kept[places] for places in dict.fromkeys(suspect.places for suspect in suspects)]


def demote_common(suspects: Sequence[Suspect], log: HuntLog, path_kind: PathKind) -> list[Suspect]:
    """Return the suspects. Those as slow as many pairs of other places, on the same kind of path, become inconclusive.

    Then these pairs are slow because of the network's structure, and a place in one of them is not slow. A suspect is judged with the
    round effects removed if it is only a little slow, and with them otherwise. Their removal hides a part that met another part as a
    whole. Without it, rounds may differ by their modes.
    """
    confirmed = {place for suspect in suspects if suspect.state == CONFIRMED for place in suspect.places}
    matrices = {level: log.matrix(level) for level in (False, True)} if confirmed else {}
    judged = []
    for suspect in suspects:
        judged.append(suspect)
        if suspect.state != CONFIRMED:
            continue
        is_weak = -ln(suspect.ratio) < PAIRS_LEVEL["bandwidth"].least
        matrix = matrices[is_weak]
        if is_weak and matrix.n < 2 * PAIR_ROUNDS_LEAST_CELLS:
            continue  # the effect of rounds with so few pairs is not removed
        log_speeds = -np.log(matrix.latency_s) if suspect.kind == "latency" else np.log(matrix.bandwidth)
        ends = suspect.places if len(suspect.places) == 2 else (*suspect.places, *suspect.partners[:1])
        pairs = [(int(a), int(b)) for a, b in np.argwhere(np.isfinite(log_speeds)) if not confirmed & {int(a), int(b)}]
        if suspect.partners:
            pairs = [pair for pair in pairs if path_kind(*pair) == path_kind(*ends)]
        pair_speeds = np.array([log_speeds[pair] for pair in pairs])
        if len(pairs) >= _LEAST_PAIRS:
            share = float(np.mean(pair_speeds < np.quantile(pair_speeds, _FAST) + ln(suspect.ratio) / 2))
            if share > _MOST_SLOW:
                judged[-1] = _inconclusive(suspect, facts.OthersAsSlow(share))
    return judged


def _inconclusive(suspect: Suspect, why: Fact) -> Suspect:
    return replace(suspect, state=INCONCLUSIVE, evidence=(*suspect.evidence, why))


def _not_retested(candidate: Candidate, why: Fact) -> Suspect:
    kind = "latency" if candidate.of_latency else "node"
    return Suspect(kind, candidate.places, INCONCLUSIVE, candidate.ratio, evidence=(*candidate.evidence, why))


def _ordered(log: HuntLog, suspects: Sequence[Suspect], leaf_of: Sequence[str]) -> tuple[Suspect, ...]:
    """Return the suspects in order, with evidence about wrong data, and about a switch without other hosts.

    leaf_of  by place its switch, "": unknown; (): all are unknown
    """
    wrong = wrong_data(log)
    remarked = []
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


def notes(log: HuntLog, suspects: Sequence[Suspect], selection: SweepResult) -> list[Fact]:
    """Return the undecided questions, and the properties that all places share."""
    names = log.names
    n = len(names)
    suspected = {place for suspect in suspects if suspect.kind != TRUNK for place in suspect.places}
    # wrong data in at least half of a place's measurements; or in any if there is no such place
    wrong = wrong_data(log)
    mostly_wrong = [place for place, (bad, measured) in wrong.items() if 2 * bad >= measured] or list(wrong)
    noted: list[Fact] = [facts.WrongElements(names[place], *wrong[place]) for place in mostly_wrong if place not in suspected]
    # pairs without a figure, of places that have other figures
    missing = {pair: figure.na for _, pair, figure in log.figures() if figure.speed is None and not suspected & set(pair)}
    noted += [facts.PairNotMeasured(names[a], names[b], why or "") for (a, b), why in list(missing.items())[:_MOST_PAIRS]]
    if len(missing) > _MOST_PAIRS:
        noted.append(facts.MorePairsNotMeasured(len(missing) - _MOST_PAIRS))
    flags = Counter(flag for _, answer in log.exchanges for flag in dict.fromkeys(answer.flags))
    noted += [facts.RoundFlag(flag, number, len(log.exchanges)) for flag, number in flags.items()]
    met = len({pair for _, pair, _ in log.figures()})
    possible = n * (n - 1) // 2
    if 0 < met < possible:  # a slow path is detected only if it was measured
        noted.append(facts.PairsNotCovered(met, possible))
    speed = selection.middle or typical_speed(log)
    if speed is not None and all(suspect.state == CLEARED for suspect in suspects):
        # the share of pairs that are noticeably slower than the fastest tenth
        log_speeds = np.log(np.array(_speeds(log, PAIRS)))
        uneven = 0.0
        if len(log_speeds):
            uneven = float(np.mean(log_speeds < np.quantile(log_speeds, _FASTEST) - PAIRS_LEVEL["bandwidth"].least))
        noted.append(facts.DividedPairs(uneven) if uneven > _MOST_UNEVEN else facts.AllAlike(speed))
    return noted


def typical_speed(log: HuntLog) -> float | None:
    """Return the usual speed of a pair, else of a group, in bytes per second."""
    speeds = _speeds(log, PAIRS) or _speeds(log, GROUPS)
    return float(np.median(speeds)) if speeds else None


def _speeds(log: HuntLog, kind: str) -> list[float]:
    return [speed for _, _, figure in log.figures(kind) for speed in (figure.speed, figure.backward) if speed]


def _unknown_speeds(log: HuntLog, options: Options) -> dict[int, Fact]:
    """Return the places of unknown speed, with the reason."""
    if _is_by_groups(len(log.names), options):
        return lost(log)
    return hardly_met(log, sweep.LEAST_PARTNERS) | lost(log)


def _not_suspects(suspects: Sequence[Suspect], n: int) -> list[int]:
    suspected = {place for suspect in suspects if suspect.state != CLEARED and suspect.kind != "path" for place in suspect.places}
    return [place for place in range(n) if place not in suspected]


def _path_ends(log: HuntLog) -> Sequence[str]:
    """Return the host of each place; on a single host every place counts as a host: all paths are of one kind."""
    return log.names if len(set(log.hosts)) == 1 else log.hosts
