"""The stage of a hunt that judges the paths between groups.

The pairs of the sweep select paths (`contrast`). Each is then measured in further rounds: pairs between the two groups, and at the same
time control pairs that do not use the path: between other groups, or inside groups if there are two. `significance` confirms it as it
confirms a node. A confirmation also needs two endpoints in each group that are fast on other paths, so that slow nodes explain nothing.
"""

from __future__ import annotations

import random as draws
from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence
from itertools import combinations
from math import exp
from math import log as ln
from statistics import fmean, median

import msgspec
import numpy as np
from msgspec.structs import replace

from collbench.plugins.groups import facts
from collbench.plugins.groups.contrast import LEVEL, BlockFit, Contrast, fit_blocks, groups_by_latency, numbered
from collbench.plugins.groups.sources import LATENCY, groups_of
from collbench.plugins.hunt.facts import ManyPaths
from collbench.plugins.hunt.pair_statistics import LEAST_PLACES
from collbench.plugins.hunt.protocol import (
    AT_BOTH_ENDS,
    CLEARED,
    CONFIRMED,
    INCONCLUSIVE,
    NIC,
    PAIRS,
    TRUNK,
    GroupFigure,
    HuntLog,
    Options,
    RoundRequest,
    RoundResult,
    Suspect,
    pair_of,
)
from collbench.plugins.hunt.significance import FALSE_ALARM_RATE, MOST_ROUNDS, RepeatOutcome, Repeats, repeats
from collbench.plugins.hunt.trials import BANDWIDTH_WAYS, SENDS, Trial
from collbench.reason import Fact
from collbench.units import plural

_STAGE = "groups"
_PAUSE_S = 0.25  # between rounds, so that a burst of other work affects only one of them
_MOST_TRUNKS = 4  # that are measured again, the slowest first
_LEAST_ROUNDS = 3
_LEAST_CLEARED = 2  # endpoints of each group
_FULL_ROUNDS = 2
_MOST_EVIDENCE = 6  # rounds that are listed
_PORTS = tuple(range(61101, 61109))
_TIMES = 2  # each port
_MOST_PATHS = 3  # whose ports are measured


class _Trunk(msgspec.Struct):
    """A suspected path between two groups, and its rounds.

    suspected  the groups of all suspected paths; rate: the false-alarm rate of this one
    pairs      by round how many pairs between the groups were measured at once
    full       by round with as many pairs as possible their number and mean slowdown
    """

    contrast: Contrast
    suspected: frozenset[tuple[int, int]]
    rate: float
    trials: list[Trial] = msgspec.field(default_factory=list)
    pairs: list[int] = msgspec.field(default_factory=list)
    full: list[tuple[int, float]] = msgspec.field(default_factory=list)

    @property
    def slowdown(self) -> float:
        """The mean over the rounds, in the ways that were slow in the sweep; that of the sweep without rounds."""
        values = [fmean(trial.log_slowdowns[way] for way in self.contrast.ways) for trial in self.trials]
        return fmean(values) if values else self.contrast.log_slowdown

    @property
    def repeats(self) -> Repeats:
        """The counts of its rounds. Fewer pairs at once than in the sweep may be less slow, so the smaller slowdown counts."""
        limit = max(LEVEL.least, min(self.contrast.log_slowdown, self.slowdown)) / 2
        return repeats(self.trials, self.contrast.ways, limit)

    @property
    def seems_fast(self) -> bool:
        """Whether it was measured often enough, and is not slow with these pairs at once."""
        return len(self.trials) >= _LEAST_ROUNDS and self.slowdown < LEVEL.least

    @property
    def needs_round(self) -> bool:
        """Whether another round may decide."""
        if len(self.trials) >= _LEAST_ROUNDS and self.slowdown < LEVEL.least / 2:
            return False
        return self.repeats.outcome(self.rate, LEVEL.least) is RepeatOutcome.OPEN and len(self.trials) < MOST_ROUNDS


class Stage:
    """The stage; see `protocol.GroupStage`. fit: of the sweep, known after `judge` has begun."""

    def __init__(self, leaf_of: tuple[str, ...], sentences: tuple[str, ...]) -> None:
        self.leaf_of = leaf_of
        self.sentences = sentences
        self._names: tuple[str, ...] = ()
        self._fit: BlockFit | None = None

    def most_rounds(self, options: Options) -> int:
        """Return the largest number of rounds."""
        return 2 * MOST_ROUNDS + (len(_PORTS) * _TIMES if options.nics and options.isolate else 0)

    def judge(self, log: HuntLog, room: int, random: draws.Random) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
        """Return a suspect for each path between groups that was slow in the sweep, after its further rounds."""
        matrix = log.matrix(level=False)
        hosts = log.hosts if len(set(log.hosts)) > 1 else log.names
        if not self.leaf_of:
            self.leaf_of = groups_by_latency(matrix.latency_s)
            members: dict[str, tuple[str, ...]] = {}
            for name, group in zip(log.names, self.leaf_of, strict=False):
                members[group] = (*members.get(group, ()), name)
            log.notes.append(facts.GroupsFound(tuple(members.values())) if members else facts.NoGroupsFound())
        group_of, self._names = numbered(self.leaf_of or ("",) * len(log.names))
        if len(self._names) < 2 or len(log.names) < LEAST_PLACES:
            return []
        fit = self._fit = fit_blocks(np.log(matrix.bandwidth), group_of, hosts)
        self._note_structure(log, fit)
        contrasts = fit.contrasts()
        suspected = frozenset(contrast.groups for contrast in contrasts)
        trunks = [_Trunk(contrast, suspected, FALSE_ALARM_RATE / len(contrasts)) for contrast in contrasts]
        for trunk in trunks[:_MOST_TRUNKS]:
            yield from self._measure(log, fit, trunk, min(room - log.rounds().get(_STAGE, 0), MOST_ROUNDS), random)
            if trunk.seems_fast and room - log.rounds().get(_STAGE, 0) >= _FULL_ROUNDS:
                yield from self._measure_full(log, fit, trunk, random)
        suspects = []
        for trunk in trunks:
            suspect = self._suspect(log, fit, trunk)
            suspects.append(suspect)
            if suspect.state != CLEARED:
                first, second = (np.flatnonzero(group_of == group) for group in trunk.contrast.groups)
                log.avoided |= {pair_of(int(a), int(b)) for a in first for b in second}
        return suspects

    def _note_structure(self, log: HuntLog, fit: BlockFit) -> None:
        """Note that the network is slower between all groups, which accuses none of its paths."""
        between = fit.levels[~np.eye(len(fit.levels), dtype=bool)]
        between = between[np.isfinite(between)]
        if len(self._names) > 2 and len(between) and between.max() < fit.inside() - LEVEL.least:
            log.notes.append(facts.BetweenAllSlower(len(self._names), exp(float(np.median(between)) - fit.inside())))

    def _measure(
        self, log: HuntLog, fit: BlockFit, trunk: _Trunk, room: int, random: draws.Random
    ) -> Generator[RoundRequest, RoundResult, None]:
        """Measure the rounds of a path: as many pairs as leave a control pair, since a path may be slow only with many."""
        used: Counter[int] = Counter()
        while room > 0 and trunk.needs_round:
            room -= 1
            pairs = _between(fit, trunk.contrast, used, random)
            controls = _controls(fit, pairs, trunk.suspected, random)
            while pairs and not controls:
                pairs = pairs[:-1]
                controls = _controls(fit, pairs, trunk.suspected, random)
            if not pairs:
                return
            used.update(place for pair in pairs for place in pair)
            figures = yield from _round(log, pairs, controls)
            measured = _with_speeds(pairs, figures)
            measured_controls = _with_speeds(controls, figures)
            if measured and measured_controls:
                trunk.trials.append(_trial(fit, trunk.contrast, measured, measured_controls, figures))
                trunk.pairs.append(len(measured))

    def _measure_full(self, log: HuntLog, fit: BlockFit, trunk: _Trunk, random: draws.Random) -> Generator[RoundRequest, RoundResult, None]:
        """Measure a path that was not slow again with as many pairs as there are, without control pairs."""
        for _ in range(_FULL_ROUNDS):
            pairs = _between(fit, trunk.contrast, Counter(), random)
            if len(pairs) <= max(trunk.pairs):
                return
            figures = yield from _round(log, pairs, ())
            by_pair = [_log_speeds(fit, trunk.contrast, pair, figures[pair]) for pair in _with_speeds(pairs, figures)]
            if by_pair:
                usual = fit.reference(*trunk.contrast.groups)
                trunk.full.append((len(pairs), usual - fmean(speed for speeds in by_pair for speed in speeds.values())))

    def _suspect(self, log: HuntLog, fit: BlockFit, trunk: _Trunk) -> Suspect:
        """Return the suspect with its state and evidence."""
        contrast = trunk.contrast
        first, second = (self._names[group] for group in contrast.groups)
        counts = trunk.repeats
        cleared_of = _cleared(log, fit, contrast.groups)
        places = [int(place) for group in contrast.groups for place in np.flatnonzero(fit.group_of == group)]
        cleared = cleared_of[0] | cleared_of[1]
        evidence: list[Fact] = []
        for trial, pairs in list(zip(trunk.trials, trunk.pairs, strict=True))[:_MOST_EVIDENCE]:
            speed = exp(fmean(ln(trial.speeds[way]) for way in contrast.ways))
            usual = exp(fmean(ln(trial.usual[way]) for way in contrast.ways))
            evidence.append(facts.TrunkRetest(pairs, speed, trial.controls, usual))
        evidence.append(facts.NodesCleared(len(cleared), len(places), tuple(log.names[place] for place in places if place not in cleared)))
        if len(self._names) == 2:
            evidence.append(facts.OnlyTwoGroups())
        if trunk.trials:
            evidence.append(counts.counts)
        state = INCONCLUSIVE
        full = fmean(slowdown for _, slowdown in trunk.full) if trunk.full else 0.0
        if len(trunk.trials) < _LEAST_ROUNDS:
            evidence.append(facts.TrunkNotRetested(len(trunk.trials)))
        elif counts.outcome(trunk.rate, LEVEL.least) is RepeatOutcome.SLOW:
            state = CONFIRMED if min(map(len, cleared_of)) >= _LEAST_CLEARED else INCONCLUSIVE
        elif full >= LEVEL.least:
            evidence.append(facts.SlowWhenFull(trunk.full[0][0], exp(-full), round(median(trunk.pairs)), exp(-trunk.slowdown)))
        elif trunk.slowdown < LEVEL.least:
            state = CLEARED
        else:
            evidence.append(counts.reason)
        ratio = exp(-trunk.slowdown)
        one_way = ""
        if len(contrast.ways) == 1:
            one_way = f"from {first} to {second}" if contrast.ways[0] == SENDS else f"from {second} to {first}"
        part = facts.BetweenGroups(
            first,
            second,
            state,  # type: ignore[arg-type]
            ratio,
            contrast.slow,
            contrast.pairs,
            one_way,
            len(cleared),
            len(places) - len(cleared),
        )
        return Suspect(TRUNK, tuple(places), state, ratio, *counts.interval, evidence=tuple(evidence), part=part)

    # Several TCP source ports: of equal paths (ECMP) a switch chooses by addresses and ports.

    def measure_ports(
        self, log: HuntLog, suspects: Sequence[Suspect], options: Options, room: int
    ) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
        """Return the suspects, the slow paths with the rates over several source ports: one pair each, next to control pairs."""
        fit = self._fit if options.isolate else None
        tested: dict[int, tuple[int, int]] = {}  # by index of the suspect
        busy: set[int] = set()
        for number, suspect in enumerate(suspects):
            pair = None if fit is None else self._pair_of(log, fit, suspect)
            if pair is not None and not busy & set(pair) and len(tested) < _MOST_PATHS:
                tested[number] = pair
                busy |= set(pair)
        if fit is None or not tested:
            return list(suspects)
        busy |= {suspect.places[0] for suspect in suspects if len(suspect.places) == 1}
        suspected = {contrast.groups for contrast in fit.contrasts()}
        controls = _controls(fit, [(place, place) for place in busy], suspected, draws.Random(options.seed))
        why_not = ""
        if not options.nics:
            why_not = "the nodes have no interface in common"
        elif not controls:
            why_not = "no pair is left for comparison"
        elif room < len(_PORTS) * _TIMES:
            why_not = f"that takes {len(_PORTS) * _TIMES} rounds, and {room} are left"
        judged = list(suspects)
        slowdowns: dict[int, dict[int, list[dict[str, float]]]] = {number: {port: [] for port in _PORTS} for number in tested}
        if not why_not:
            pairs = [*tested.values(), *controls]
            for port in _PORTS * _TIMES:
                request = RoundRequest(NIC, tuple(pairs), f"TCP source port {port}", _STAGE, nic=options.nics[0], port=port)
                answer = yield from log.request(request)
                figures = dict(zip(pairs, answer.figures, strict=True))
                for number, pair in tested.items():
                    slowdowns[number][port].append(_slowdowns(figures, pair, controls))
        for number, pair in tested.items():
            suspect = suspects[number]
            fact = facts.PortsNotMeasured(why_not) if why_not else self._ports_fact(log, suspect, pair, slowdowns[number])
            judged[number] = replace(suspect, evidence=(*suspect.evidence, fact))
        return judged

    def _pair_of(self, log: HuntLog, fit: BlockFit, suspect: Suspect) -> tuple[int, int] | None:
        """Return the pair of a slow path that shows its ports: the slowest one between two groups; None for other suspects."""
        many_paths = any(isinstance(fact, ManyPaths) for fact in suspect.evidence)
        if suspect.kind not in AT_BOTH_ENDS or not (suspect.state == CONFIRMED or many_paths):
            return None
        ends = set(suspect.places)
        speeds = [
            (min(figure.speed, figure.backward), (pair[0], pair[1]))
            for _, pair, figure in log.figures()
            if set(pair) <= ends and figure.speed and figure.backward and fit.group_of[pair[0]] != fit.group_of[pair[1]]
        ]
        return min(speeds)[1] if speeds else None

    def _ports_fact(self, log: HuntLog, suspect: Suspect, pair: tuple[int, int], slowdowns: Mapping[int, list[dict[str, float]]]) -> Fact:
        """Return the result of the direction that is slower. A port is slow if it is behind by half of the path's slowdown, each time."""
        limit = max(LEVEL.least, -ln(suspect.ratio)) / 2 if suspect.ratio > 0 else LEVEL.least
        results = []
        for way, (sender, receiver) in zip(BANDWIDTH_WAYS, (pair, pair[::-1]), strict=True):
            by_port = {port: [by_way[way] > limit for by_way in times if way in by_way] for port, times in slowdowns.items()}
            measured = {port: slow for port, slow in by_port.items() if len(slow) == _TIMES}
            slow = tuple(port for port, times in measured.items() if all(times))
            unclear = sum(any(times) and not all(times) for times in measured.values())
            results.append(facts.SourcePorts(log.names[sender], log.names[receiver], len(measured), slow, unclear))
        fact = max(results, key=lambda result: (len(result.slow), result.unclear))
        return fact if fact.ports else facts.PortsNotMeasured("no stream gave a rate")


def _round(
    log: HuntLog, pairs: Sequence[tuple[int, int]], controls: Sequence[tuple[int, int]]
) -> Generator[RoundRequest, RoundResult, Mapping[tuple[int, int], GroupFigure]]:
    """Return the figures of pairs between groups and of control pairs, measured at the same time."""
    why = f"{plural(len(pairs), 'pair')} between groups again, {len(controls)} as controls"
    answer = yield from log.request(RoundRequest(PAIRS, (*pairs, *controls), why, _STAGE, pause_s=_PAUSE_S))
    return dict(zip((*pairs, *controls), answer.figures, strict=True))


def _with_speeds(pairs: Sequence[tuple[int, int]], figures: Mapping[tuple[int, int], GroupFigure]) -> list[tuple[int, int]]:
    return [pair for pair in pairs if figures[pair].speed and figures[pair].backward]


def _between(fit: BlockFit, contrast: Contrast, used: Mapping[int, int], random: draws.Random) -> list[tuple[int, int]]:
    """Return disjoint pairs between two groups, of places that are not slow by themselves, those that were used least first.

    A host has one place in a round at most, so that no pair shares its links with another.
    """
    slow = fit.slow_places()
    sides = []
    for group in contrast.groups:
        places = [int(place) for place in np.flatnonzero(fit.group_of == group) if place not in slow]
        by_use = sorted(random.sample(places, len(places)), key=lambda place: used.get(place, 0))
        sides.append(list({fit.hosts[place]: place for place in reversed(by_use)}.values())[::-1])
    return [pair_of(a, b) for a, b in zip(*sides, strict=False)]


def _controls(
    fit: BlockFit, pairs: Sequence[tuple[int, int]], suspected: Collection[tuple[int, int]], random: draws.Random
) -> list[tuple[int, int]]:
    """Return disjoint pairs of other hosts that no suspected path is between: between other groups, and then inside groups."""
    slow = fit.slow_places()
    taken = {fit.hosts[place] for pair in pairs for place in pair}
    free = [place for place in range(len(fit.group_of)) if fit.group_of[place] >= 0 and place not in slow]
    free = random.sample(free, len(free))
    controls: list[tuple[int, int]] = []
    for is_inside in (False, True):
        for a, b in combinations(free, 2):
            groups = pair_of(int(fit.group_of[a]), int(fit.group_of[b]))
            is_kind = (groups[0] == groups[1]) == is_inside and groups not in suspected and bool(np.isfinite(fit.levels[groups]))
            hosts = {fit.hosts[a], fit.hosts[b]}
            if is_kind and len(hosts) == 2 and not taken & hosts:
                controls.append(pair_of(a, b))
                taken |= hosts
    return controls


def _log_speeds(fit: BlockFit, contrast: Contrast, pair: tuple[int, int], figure: GroupFigure) -> dict[str, float]:
    """Return by way of the contrast ln(rate) of a pair between its groups, without the effects of its places."""
    a, b = pair
    speeds = {(a, b): figure.speed or 1.0, (b, a): figure.backward or 1.0}
    forward = (a, b) if fit.group_of[a] == contrast.groups[0] else (b, a)
    directed = {way: forward if way == SENDS else forward[::-1] for way in contrast.ways}
    return {way: fit.corrected(*ends, speeds[ends]) for way, ends in directed.items()}


def _trial(
    fit: BlockFit,
    contrast: Contrast,
    pairs: Sequence[tuple[int, int]],
    controls: Sequence[tuple[int, int]],
    figures: Mapping[tuple[int, int], GroupFigure],
) -> Trial:
    """Return a round as a trial: the geometric mean of the pairs between the groups, next to the control pairs."""
    by_pair = [_log_speeds(fit, contrast, pair, figures[pair]) for pair in pairs]
    path_speeds = {way: fmean(speeds[way] for speeds in by_pair) for way in contrast.ways}
    # paths between other groups are of the same kind
    compared = [pair for pair in controls if fit.group_of[pair[0]] != fit.group_of[pair[1]]] or controls
    usual: dict[str, float] = {}
    slowdowns: dict[str, tuple[float, ...]] = {}
    for way in contrast.ways:
        control_speeds = [
            fit.corrected(a, b, figures[a, b].speed or 1.0) if way == SENDS else fit.corrected(b, a, figures[a, b].backward or 1.0)
            for a, b in compared
        ]
        usual[way] = sorted(control_speeds)[len(control_speeds) // 2]
        slowdowns[way] = tuple(usual[way] - speed for speed in control_speeds)
    cpu_wait = fmean(figures[pair].cpu_wait for pair in pairs) - fmean(figures[pair].cpu_wait for pair in compared)
    return Trial(
        place=pairs[0][0],
        partner=pairs[0][1],
        healthy=True,
        controls=len(compared),
        same_kind=True,
        log_slowdowns={way: usual[way] - path_speeds[way] for way in contrast.ways},
        speeds={way: exp(speed) for way, speed in path_speeds.items()},
        usual={way: exp(speed) for way, speed in usual.items()},
        control_log_slowdowns=slowdowns,
        cpu_wait=max(0.0, cpu_wait),
        flipped=any(figures[pair].flipped for pair in pairs),
    )


def _cleared(log: HuntLog, fit: BlockFit, groups: tuple[int, int]) -> list[set[int]]:
    """Return of both groups the places that reached the usual rate of insides, in both directions, with a partner not over this path."""
    least = exp(fit.inside() - LEVEL.least)
    fast: set[int] = set()
    for _, (a, b), figure in log.figures():
        over = {int(fit.group_of[a]), int(fit.group_of[b])}
        if over != set(groups) and fit.hosts[a] != fit.hosts[b] and min(figure.speed or 0.0, figure.backward or 0.0) >= least:
            fast |= {a, b}
    return [{place for place in fast if fit.group_of[place] == group} for group in groups]


def _slowdowns(
    figures: Mapping[tuple[int, int], GroupFigure], pair: tuple[int, int], controls: Sequence[tuple[int, int]]
) -> dict[str, float]:
    """Return by way ln(rate of the controls / rate of the pair); ways without a rate are absent."""
    slowdowns = {}
    for way, name in zip(BANDWIDTH_WAYS, ("speed", "backward"), strict=True):
        speed = getattr(figures[pair], name)
        usual = [getattr(figures[control], name) for control in controls if getattr(figures[control], name)]
        if speed and usual:
            slowdowns[way] = ln(median(usual) / speed)
    return slowdowns


def group_stage(source: str, hosts: Sequence[str], nodes: Mapping[str, str], cliques: Mapping[str, str] | None) -> Stage:
    """Return the stage for the groups of a source: the hook `hunt_groups`. Raises UsageError as `groups_of`."""
    if source == LATENCY:
        return Stage((), ())
    groups = groups_of(source, hosts, nodes, cliques)
    return Stage(tuple(groups.of_host[host] for host in hosts), groups.sentences)
