"""Confirmed, cleared or inconclusive: the outcome of one candidate's trials, and the partners it still needs.

A place is slow with a partner if two conditions hold for its mean over the ways that were slow before. It is behind the controls by more
than half of its slowdown, and by more than chance explains. It is as fast as the others if it is behind by less than half. Its slowdown
is that of the sweep, or that of its partners (their median, of two the larger) if that is more. Two healthy partners must agree.
Otherwise a third one is measured, and partners that differ or are unclear are measured again. A place that is slow with healthy partners
is also measured with other suspects, or with a partner with which it was fast. If these pairs are as fast as pairs of other places, the
network has parts, and the place is in the smaller one.

The result can only make a place a suspect. `significance` confirms it: enough rounds that chance does not explain.

With the mean m of k slowdowns and their noise s, z = m / s, where s = √(Σ noise²) / k. Chance explains z up to `max_partner_z` with one
partner, and up to `max_mean_z` over all partners.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import exp, sqrt
from statistics import fmean

import numpy as np
from msgspec.structs import replace

from collbench.plugins.hunt import facts
from collbench.plugins.hunt.candidates import Candidate
from collbench.plugins.hunt.pair_statistics import PLACES_LEVEL
from collbench.plugins.hunt.protocol import CLEARED, CONFIRMED, INCONCLUSIVE, Suspect, pair_of
from collbench.plugins.hunt.significance import FALSE_ALARM_RATE, MOST_ROUNDS, RepeatOutcome, Repeats, repeats
from collbench.plugins.hunt.trials import BANDWIDTH_WAYS, LATENCY, OPPOSITE, RECEIVES, SENDS, WAYS, Trial
from collbench.reason import Fact
from collbench.stats.median import t_quantile

SLOW, FAST, UNCLEAR = "slow", "fast", "unclear"
_ENOUGH = 2  # healthy partners
_MOST_PARTNERS = 3
_TIMES, _TIMES_UNCLEAR = 2, 3  # measurements with one partner
_MOST_TRIALS = 8  # to find out whether it is slow, before the rounds that confirm it
_LEAST_SCATTER = 4  # trials: fewer have no valid scatter
_STAYS, _JOINS = 0.25, 0.75  # of the slower way's slowdown, from which the other way counts as slow, too
_MOST_SLOW_CONTROLS = 0.3
_MOST_UNCLEAR = 4  # times that an unclear pair is measured
_MOST_OF_END = 2  # partners for each end of a path


@dataclass
class Check(ABC):
    """A candidate and its trials, measured again. false_alarm_rate: its share of `FALSE_ALARM_RATE`."""

    candidate: Candidate
    trials: list[Trial] = field(default_factory=list)
    false_alarm_rate: float = FALSE_ALARM_RATE

    @property
    def places(self) -> tuple[int, ...]:
        """The place, or the two of a path, the lower first."""
        return self.candidate.places

    def add(self, trial: Trial) -> None:
        """Add the result of a measurement."""
        self.trials.append(trial)

    @property
    @abstractmethod
    def repeats(self) -> Repeats:
        """Return the counts of the trials that decide."""

    @abstractmethod
    def state(self) -> str:
        """Return the current state."""

    @abstractmethod
    def suspect(self, names: Sequence[str]) -> Suspect:
        """Return it as a suspect in its current state."""

    @abstractmethod
    def tried(self, place: int) -> set[int]:
        """Return all places that `place` is not to be measured with again, with or without figures."""

    @property
    def outcome(self) -> RepeatOutcome:
        """Return whether the trials show more than chance."""
        return self.repeats.outcome(self.false_alarm_rate, self.candidate.least)

    def suspect_of(self, kind: str, trials: Sequence[Trial], partners: Iterable[int], evidence: Iterable[Fact]) -> Suspect:
        """Return it as a suspect with the ratio of these trials, or of the sweep without any."""
        ratio = exp(-mean_slowdown(self.candidate, trials)[0]) if trials else self.candidate.ratio
        all_evidence = (*self.candidate.evidence, *evidence)
        return Suspect(kind, self.places, self.state(), ratio, *self.repeats.interval, tuple(partners), all_evidence)


@dataclass
class PlaceCheck(Check):
    """A candidate place. in_a_part: other suspects show that the network has parts, and the place may be in one of them."""

    in_a_part: bool = False
    _outcomes: dict[bool, dict[int, str]] = field(default_factory=dict)

    @property
    def place(self) -> int:
        """The place."""
        return self.places[0]

    def add(self, trial: Trial) -> None:
        """Add the result of a measurement. If groups did not show which way is slow, this does."""
        super().add(trial)
        self._outcomes.clear()
        if self.candidate.any_way and trial.healthy and trial.log_slowdowns:
            self.candidate = _narrowed(self.candidate, self._trials())

    def tried(self, place: int) -> set[int]:
        """Return all partners planned for it, with or without figures."""
        return {trial.partner for trial in self.trials}

    def partners(self, healthy: bool = True) -> dict[int, str]:
        """Return the partners with a figure, and the outcome with each; the healthy ones, or the others."""
        if healthy not in self._outcomes:
            # places that may be slow are judged by the sweep only: they must reach the usual speed
            candidate = self._with_partners_slowdown if healthy else self.candidate
            by_partner = self._trials_by_partner(healthy)
            self._outcomes[healthy] = {partner: judge_trials(candidate, trials) for partner, trials in by_partner.items()}
        return self._outcomes[healthy]

    @property
    def slow_with_all(self) -> bool:
        """Return whether it is confirmed, apart from the partners it may be fast with."""
        outcomes = list(self.partners().values())
        if len(outcomes) < _ENOUGH or FAST in outcomes:
            return False
        return UNCLEAR not in outcomes or self._is_slow_in_the_mean()

    @property
    def needs_healthy(self) -> bool:
        """Return whether another healthy partner is needed."""
        outcomes = list(self.partners().values())
        agreed = self.slow_with_all or set(outcomes) == {FAST}
        return not self._exhausted and len(outcomes) < (_ENOUGH if agreed else _MOST_PARTNERS)

    @property
    def partner_to_repeat(self) -> int | None:
        """Return a partner that differs from the others, or is unclear, and was not measured often enough; else None."""
        outcomes = self.partners()
        if self._exhausted or len(outcomes) < _ENOUGH or self.slow_with_all or set(outcomes.values()) == {FAST}:
            return None
        majority = max((SLOW, FAST), key=list(outcomes.values()).count)
        times: dict[int, int] = {}
        for partner, outcome in outcomes.items():
            measured = len(self._trials(partner, None))
            if outcome != majority and measured < (_TIMES_UNCLEAR if outcome == UNCLEAR else _TIMES):
                times[partner] = measured
        return min(times, key=lambda partner: times[partner]) if times else None

    @property
    def repeats(self) -> Repeats:
        """Return the counts of the trials with healthy partners."""
        return repeats(self._trials(), self.candidate.ways, self._with_partners_slowdown.fast_limit)

    @property
    def needs_rounds(self) -> bool:
        """Whether it is slow with all partners, but not in enough rounds for a confirmation."""
        if not self.slow_with_all or self.like_others or len(self.trials) >= _MOST_TRIALS + MOST_ROUNDS:
            return False
        return self.log_slowdown() >= self.candidate.least and self.outcome is RepeatOutcome.OPEN

    @property
    def fast_again(self) -> int | None:
        """Return a partner, not known to be healthy, with which it was as fast as the others once, to measure again; else None."""
        if not self.slow_with_all or self._exhausted:
            return None
        outcomes = self.partners(healthy=False)
        return next((partner for partner, outcome in outcomes.items() if outcome != SLOW and len(self._trials(partner, None)) < 2), None)

    @property
    def fast_with_peer(self) -> bool:
        """Return whether it is slow with healthy places, and not with another."""
        return self.slow_with_all and FAST in self.partners(healthy=False).values()

    def state(self) -> str:
        """Return the current state."""
        if self.slow_with_all:
            if self.fast_with_peer or self.like_others or self.in_a_part:
                return INCONCLUSIVE
            if self.log_slowdown() < self.candidate.least:
                return CLEARED
            return CONFIRMED if self.outcome is RepeatOutcome.SLOW else INCONCLUSIVE
        outcomes = list(self.partners().values())
        is_cleared = outcomes.count(FAST) >= _ENOUGH and (SLOW not in outcomes or self.path_partner is not None)
        return CLEARED if is_cleared else INCONCLUSIVE

    @property
    def like_others(self) -> bool:
        """Return whether many pairs of healthy places are as slow at the same time, or none of that kind of path was measured."""
        return many_as_slow(self._with_partners_slowdown, self._trials())

    @property
    def path_partner(self) -> int | None:
        """Return the partner of a path that may be slow instead, or None.

        It is the only partner with which the place is slow, repeatedly and by a path's limit. With two others it is as fast as
        the others.
        """
        outcomes = self.partners()
        slow = [partner for partner, outcome in outcomes.items() if outcome == SLOW]
        if len(slow) != 1 or list(outcomes.values()).count(FAST) < _ENOUGH:
            return None
        trials = self._trials(slow[0], None)
        return slow[0] if len(trials) >= 2 and mean_slowdown(self.candidate, trials)[0] >= self.candidate.least_of_pair else None

    def log_slowdown(self) -> float:
        """Return how far it is behind the controls, over all trials with healthy partners."""
        return mean_slowdown(self.candidate, self._trials())[0]

    def suspect(self, names: Sequence[str]) -> Suspect:
        """Return the place as a suspect in its current state."""
        evidence = [*(trial.evidence(names) for trial in self.trials), *self._reason(names)]
        return self.suspect_of(self._kind(), self._trials(), self.partners(), evidence)

    def path(self, names: Sequence[str]) -> Candidate | None:
        """Return the path that may be slow instead of the place, as a candidate with its own rounds; else None."""
        slow_partner = self.path_partner
        if slow_partner is None or self.slow_with_all:
            return None
        trials = self._trials(slow_partner, None)
        if many_as_slow(self._with_partners_slowdown, trials):
            return None
        fast = tuple(names[partner] for partner in self.partners() if partner != slow_partner)
        ways = self.candidate.ways
        if self.place > slow_partner:
            ways = tuple(OPPOSITE[way] for way in ways)
        return replace(
            self.candidate,
            places=pair_of(self.place, slow_partner),
            ways=ways,
            log_slowdown=mean_slowdown(self.candidate, trials)[0],
            least=self.candidate.least_of_pair,
            evidence=(facts.SlowWithOnePartner(names[self.place], names[slow_partner], fast),),
            fast_with=(),
            any_way=False,
        )

    def _reason(self, names: Sequence[str]) -> list[Fact]:
        """Return the facts that the trials add up to."""
        state = self.state()
        if state == CONFIRMED:
            return [self.repeats.counts]
        if state == CLEARED:
            return [facts.BelowThreshold()] if self.slow_with_all else []
        if not self.slow_with_all:
            return [facts.TooFewPartners() if len(self.partners()) < _ENOUGH else facts.MixedPartners()]
        fast = [partner for partner, outcome in self.partners(healthy=False).items() if outcome == FAST]
        if fast:
            return [facts.FastWithPeers(tuple(names[partner] for partner in fast))]
        if self.in_a_part:
            return [facts.DividedNetwork()]
        return [facts.ControlsAsSlow()] if self.like_others else [self.repeats.counts, self.repeats.reason]

    def _kind(self) -> str:
        """Return which of its ways are slow, by all trials with healthy partners."""
        if self.candidate.of_latency:
            return "latency"
        means = _mean_by_way(self._trials())
        worst = max(means[way] for way in BANDWIDTH_WAYS)
        limits = {way: _STAYS if way in self.candidate.ways else _JOINS for way in BANDWIDTH_WAYS}  # the sweep had more partners
        slow = tuple(way for way in BANDWIDTH_WAYS if means[way] > max(worst * limits[way], 0.0))
        if slow == (SENDS,):
            return "sender"
        return "receiver" if slow == (RECEIVES,) else "node"

    def _is_slow_in_the_mean(self) -> bool:
        """Return whether all trials together are certain, by the known noise, or by their own scatter."""
        trials = self._trials()
        slowdown, noise = mean_slowdown(self.candidate, trials)
        if slowdown > self.candidate.max_mean_z * noise:
            return True
        if len(trials) < _LEAST_SCATTER:
            return False
        by_trial = [mean_slowdown(self.candidate, [trial])[0] for trial in trials]
        t = t_quantile(1 - self.candidate.false_alarm_rate, len(trials) - 1)
        return slowdown > t * float(np.std(by_trial, ddof=1)) / sqrt(len(trials))

    def _trials(self, partner: int | None = None, healthy: bool | None = True) -> list[Trial]:
        """Return the trials with figures: with this partner (None: with any), with healthy partners, with others, or (None) with all."""
        return [
            trial
            for trial in self.trials
            if (partner is None or trial.partner == partner)
            and (healthy is None or trial.healthy == healthy)
            and any(way in trial.log_slowdowns for way in self.candidate.ways)
        ]

    def _trials_by_partner(self, healthy: bool) -> dict[int, list[Trial]]:
        by_partner: dict[int, list[Trial]] = {}
        for trial in self._trials(healthy=healthy):
            by_partner.setdefault(trial.partner, []).append(trial)
        return by_partner

    @property
    def _with_partners_slowdown(self) -> Candidate:
        """Return the candidate with its partners' slowdown if that is larger. Of two that differ, one must be wrong."""
        by_partner = self._trials_by_partner(healthy=True)
        slowdowns = sorted(mean_slowdown(self.candidate, trials)[0] for trials in by_partner.values())
        middle = slowdowns[len(slowdowns) // 2] if slowdowns else 0.0
        return replace(self.candidate, log_slowdown=max(self.candidate.log_slowdown, self.candidate.least, middle))

    @property
    def _exhausted(self) -> bool:
        return len(self.trials) >= _MOST_TRIALS and not self.needs_rounds


@dataclass
class PathCheck(Check):
    """A slow pair, measured again, and each of its ends with healthy partners."""

    @property
    def needs_pair(self) -> bool:
        """Return whether the pair itself must be measured (again)."""
        outcome = self._pair_outcome()
        if outcome == FAST or self._like_others:
            return False
        if outcome != SLOW:
            return len(self.again) < _MOST_UNCLEAR
        return not self._slow_ends() and self.outcome is RepeatOutcome.OPEN

    @property
    def again(self) -> list[Trial]:
        """The trials of the pair itself."""
        return [trial for trial in self.trials if {trial.place, trial.partner} == set(self.places)]

    def of_end(self, place: int) -> list[Trial]:
        """Return the trials of an end with healthy partners."""
        return [trial for trial in self.trials if trial.place == place and trial.partner not in self.places]

    @property
    def repeats(self) -> Repeats:
        """Return the counts of the pair's trials."""
        return repeats(self.again, self.candidate.ways, max(self.candidate.fast_limit, self.candidate.least / 2))

    @property
    def needs_ends(self) -> list[int]:
        """Return the ends that were not as fast as others with a healthy partner, while they have partners left to try."""
        if self._pair_outcome() != SLOW:
            return []
        return [place for place in self._slow_ends() if len(self.of_end(place)) < _MOST_OF_END]

    def tried(self, place: int) -> set[int]:
        """Return the places that this end was measured with, and both ends."""
        return {trial.partner for trial in self.of_end(place)} | set(self.places)

    def state(self) -> str:
        """Return the current state."""
        outcome = self._pair_outcome()
        if outcome == FAST:
            return CLEARED
        is_slow = outcome == SLOW and not self._like_others and self.outcome is RepeatOutcome.SLOW
        return CONFIRMED if is_slow and not self._slow_ends() else INCONCLUSIVE

    def suspect(self, names: Sequence[str]) -> Suspect:
        """Return the path as a suspect in its current state."""
        end_trials = [trial for place in self.places for trial in self.of_end(place)]
        evidence: list[Fact] = [trial.evidence(names) for trial in self.again]
        evidence += [trial.evidence(names, end=True) for trial in end_trials]
        evidence += self._reason(names)
        partners = [trial.partner for trial in end_trials if trial.log_slowdowns]
        return self.suspect_of("path", self._measured_again, partners, evidence)

    @property
    def _measured_again(self) -> list[Trial]:
        return [trial for trial in self.again if trial.log_slowdowns]

    def _pair_outcome(self) -> str:
        """Return the outcome of the pair's trials; "" without a figure."""
        return judge_trials(self.candidate, self._measured_again) if self._measured_again else ""

    @property
    def _like_others(self) -> bool:
        return many_as_slow(self.candidate, self.again)

    def _slow_ends(self) -> list[int]:
        """Return the ends that were not as fast as the others with any healthy partner, in both directions: either one may be slow."""
        ways = (LATENCY,) if self.candidate.of_latency else BANDWIDTH_WAYS
        slow = []
        for place in self.places:
            by_trial = [[trial.log_slowdowns[way] for way in ways if way in trial.log_slowdowns] for trial in self.of_end(place)]
            if not any(slowdowns and max(slowdowns) < self.candidate.fast_limit for slowdowns in by_trial):
                slow.append(place)
        return slow

    def _reason(self, names: Sequence[str]) -> Sequence[Fact]:
        state = self.state()
        if state == CONFIRMED:
            return [self.repeats.counts]
        if state == CLEARED:
            return []
        outcome = self._pair_outcome()
        if outcome != SLOW:
            return [facts.SlowOnce() if outcome else facts.NotRetested()]
        if self._like_others:
            return [facts.ControlsAsSlow()]
        ends = [facts.EndNotCleared(names[place]) for place in self._slow_ends()]
        return ends or [self.repeats.counts, self.repeats.reason]


def judge_trials(candidate: Candidate, trials: Sequence[Trial]) -> str:
    """Return the outcome of trials with one partner, compared with half of the sweep's slowdown and with chance.

    Without controls at the same time a whole round may be slow, so the limit is that of a single pair.
    """
    slowdown, noise = mean_slowdown(candidate, trials)
    limit = max(candidate.fast_limit, candidate.max_partner_z * noise)
    if not all(trial.controls for trial in trials):
        limit = max(limit, min(candidate.least_of_pair, candidate.log_slowdown))
    if slowdown > limit:
        return SLOW
    return FAST if slowdown < candidate.fast_limit else UNCLEAR


def many_as_slow(candidate: Candidate, trials: Sequence[Trial]) -> bool:
    """Return whether many controls are behind by half of the candidate's slowdown, or none of them was on its kind of path.

    Many: more than slow places among the controls explain.
    """
    if any(trial.controls for trial in trials) and not any(trial.same_kind for trial in trials):
        return True
    controls = [slowdown for trial in trials for way in candidate.ways for slowdown in trial.control_log_slowdowns.get(way, ())]
    return sum(slowdown > candidate.fast_limit for slowdown in controls) > _MOST_SLOW_CONTROLS * len(controls)


def mean_slowdown(candidate: Candidate, trials: Sequence[Trial]) -> tuple[float, float]:
    """Return (slowdown, its noise) over the candidate's ways in all of these trials; (0, 0) without trials."""
    measured = [(trial, way) for trial in trials for way in candidate.ways if way in trial.log_slowdowns]
    if not measured:
        return 0.0, 0.0
    variance = fmean(trial.noise[way] ** 2 for trial, way in measured)
    return fmean(trial.log_slowdowns[way] for trial, way in measured), sqrt(variance / len(measured))


def _mean_by_way(trials: Sequence[Trial]) -> dict[str, float]:
    """Return the mean slowdown of each way; 0 of a way that was not measured."""
    return {way: float(np.mean([trial.log_slowdowns[way] for trial in trials if way in trial.log_slowdowns] or [0.0])) for way in WAYS}


def _narrowed(candidate: Candidate, trials: Sequence[Trial]) -> Candidate:
    """Return the candidate with the ways that were slow: both if they differ by less than half; the latency if only that is slow."""
    means = _mean_by_way(trials)
    worst = max(means[way] for way in BANDWIDTH_WAYS)
    if worst < candidate.least and means[LATENCY] >= PLACES_LEVEL["latency"].least:
        return replace(candidate, ways=(LATENCY,), log_slowdown=means[LATENCY])
    ways: tuple[str, ...] = BANDWIDTH_WAYS
    if worst >= candidate.least:
        ways = tuple(way for way in BANDWIDTH_WAYS if means[way] >= worst / 2)
    return replace(candidate, ways=ways, log_slowdown=max(candidate.least, float(np.mean([means[way] for way in ways]))))
