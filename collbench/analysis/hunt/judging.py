"""Confirmed, cleared or inconclusive: the outcome of one candidate's trials, and the partners it still needs.

A place is slow with a partner when the mean of what was slow before is behind the controls by more than half of its depth and by more
than chance explains; as fast as the others when it is behind by less than half. Its depth is what the sweep saw, or what its partners
say (their median, of two the larger) where that is more. Two partners that are well have to say the same; where they do not, a third
one is met, and whoever differs, or is not clear, again. Who is slow with partners that are well is also measured with other
suspects, or with a partner it was fast with: as fast with those as others are with one another means that the network has parts, and
that the place is in the smaller one.

All of this can only make a place a suspect. It is confirmed by `significance`: enough rounds that chance does not explain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, sqrt
from statistics import fmean

import numpy as np

from collbench.analysis.hunt.candidates import BANDWIDTH_WAYS, LATENCY, RECEIVES, SENDS, Candidate
from collbench.analysis.hunt.significance import CHANCE, MOST_ROUNDS, Outcome, Repeats, repeats
from collbench.analysis.hunt.trials import WAYS, Trial
from collbench.analysis.hunt.verdict import CLEARED, CONFIRMED, INCONCLUSIVE, Suspect
from collbench.analysis.pair_view import CELLS, PLACES
from collbench.stats.median import t_quantile

SLOW, FAST, UNCLEAR = "slow", "fast", "unclear"
_ENOUGH = 2  # partners that are well
_MOST_PARTNERS = 3
_TIMES, _TIMES_UNCLEAR = 2, 3  # that a partner is met
_MOST_TRIALS = 8  # that find out whether it is slow; the rounds that confirm it come on top
_LEAST_SCATTER = 4  # trials, below which their scatter says little
_STAYS, _JOINS = 0.25, 0.75  # of the slower way's depth: what makes the other one slow, too
_MOST_SLOW_CONTROLS = 0.3
_PARTS = "slow with those who are well, but so are other suspects that are as fast as usual with one another: the network may have parts"
LIKE_OTHERS = "pairs of places that are well are as slow at the same time, or none of that kind of path were there to compare with"


@dataclass
class PlaceCase:
    """A candidate place and its trials.

    in_a_part  other suspects show that the network has parts, and the place may be in one of them
    chance     its share of `CHANCE`
    """

    candidate: Candidate
    trials: list[Trial] = field(default_factory=list)
    in_a_part: bool = False
    chance: float = CHANCE
    _met: dict[bool, dict[int, str]] = field(default_factory=dict)

    @property
    def place(self) -> int:
        """Which."""
        return self.candidate.places[0]

    def add(self, trial: Trial) -> None:
        """What came of a meeting; what groups left open (which way it is slow) is taken from it."""
        self.trials.append(trial)
        self._met.clear()
        if self.candidate.any_way and trial.well and trial.depths:
            self.candidate = _narrowed(self.candidate, self._of_well())

    def partners(self, well: bool = True) -> dict[int, str]:
        """Whom it has met with a figure, and how it was with them."""
        if well not in self._met:
            met = dict.fromkeys(trial.partner for trial in self.trials if trial.well == well and self._told(trial))
            self._met[well] = {partner: self._with(partner, well) for partner in met}
        return self._met[well]

    @property
    def tried(self) -> set[int]:
        """Everybody it was to be measured with, figures or not."""
        return {trial.partner for trial in self.trials}

    @property
    def slow_with_all(self) -> bool:
        """Whether it is to be confirmed, but for what those say whom it may be fast with."""
        found = list(self.partners().values())
        if len(found) < _ENOUGH or FAST in found:
            return False
        return UNCLEAR not in found or self._slow_in_the_mean()

    @property
    def needs_well(self) -> bool:
        """Whether another partner that is well has to be met."""
        found = list(self.partners().values())
        agreed = self.slow_with_all or set(found) == {FAST}
        return not self._exhausted and len(found) < (_ENOUGH if agreed else _MOST_PARTNERS)

    @property
    def once_more(self) -> int | None:
        """A partner that differs from the others, or is not clear, and was not met often enough."""
        found = self.partners()
        if self._exhausted or len(found) < _ENOUGH or self.slow_with_all or set(found.values()) == {FAST}:
            return None
        usual = max((SLOW, FAST), key=list(found.values()).count)
        times = {partner: len(self._trials_with(partner)) for partner, how in found.items() if how != usual}
        odd = [partner for partner, met in times.items() if met < (_TIMES_UNCLEAR if found[partner] == UNCLEAR else _TIMES)]
        return min(odd, key=lambda partner: times[partner]) if odd else None

    @property
    def repeats(self) -> Repeats:
        """The trials with healthy partners, counted."""
        return repeats(self._of_well(), self.candidate.ways, self._as_deep.fast)

    @property
    def outcome(self) -> Outcome:
        """Whether the trials show more than chance."""
        return self.repeats.outcome(self.chance, self.candidate.least)

    @property
    def needs_rounds(self) -> bool:
        """Whether it is slow with all partners, but not in enough rounds for a confirmation."""
        if not self.slow_with_all or self.like_others or len(self.trials) >= _MOST_TRIALS + MOST_ROUNDS:
            return False
        return self.depth() >= self.candidate.least and self.outcome is Outcome.OPEN

    @property
    def fast_again(self) -> int | None:
        """Somebody who is not known to be well, with whom it was as fast as the others, once: to be met again."""
        fast = [partner for partner, how in self.partners(well=False).items() if how != SLOW and len(self._trials_with(partner)) < 2]
        return fast[0] if fast and self.slow_with_all and not self._exhausted else None

    @property
    def peers(self) -> int:
        """With how many that are not known to be well it was measured."""
        return len({trial.partner for trial in self.trials if not trial.well})

    @property
    def fast_with_peer(self) -> bool:
        """Whether it is slow with those who are well, and not with another."""
        return self.slow_with_all and FAST in self.partners(well=False).values()

    def state(self) -> str:
        """As things stand."""
        found = list(self.partners().values())
        if self.slow_with_all:
            if self.fast_with_peer or self.like_others or self.in_a_part:
                return INCONCLUSIVE
            if self.depth() < self.candidate.least:
                return CLEARED
            return CONFIRMED if self.outcome is Outcome.SLOW else INCONCLUSIVE
        cleared = found.count(FAST) >= _ENOUGH and (SLOW not in found or self.path_partner is not None)
        return CLEARED if cleared else INCONCLUSIVE

    @property
    def like_others(self) -> bool:
        """Whether many pairs of places that are well are as slow at the same time, or none of its kind were there to tell."""
        return many_as_slow(self._as_deep, self._of_well())

    @property
    def path_partner(self) -> int | None:
        """The only one it is slow with, more than once, and noticeably for a path, while it is as fast as the others with two more."""
        found = self.partners()
        slow = [partner for partner, how in found.items() if how == SLOW]
        twice = len(slow) == 1 and len(self._trials_with(slow[0])) >= 2 and list(found.values()).count(FAST) >= _ENOUGH
        least = CELLS["latency" if LATENCY in self.candidate.ways else "bandwidth"].least
        return slow[0] if twice and self._mean(self._trials_with(slow[0]))[0] >= least else None

    def depth(self) -> float:
        """How far behind the controls, over all trials with partners that are well."""
        return self._mean(self._of_well())[0]

    def suspect(self, names: Sequence[str]) -> Suspect:
        """The place as it stands."""
        state, counted = self.state(), self.repeats
        sentences = [self.candidate.why, *(trial.sentence(names) for trial in self.trials), *self._reason(state, names)]
        if not self._of_well():
            return Suspect(self._kind(), (self.place,), state, self.candidate.ratio, evidence=tuple(sentences))
        low, high = counted.interval
        return Suspect(self._kind(), (self.place,), state, exp(-self.depth()), low, high, tuple(self.partners()), tuple(sentences))

    def path(self, names: Sequence[str]) -> Candidate | None:
        """The path that may be slow instead of the place: a candidate that has to be measured in rounds of its own."""
        other = self.path_partner
        if other is None or self.slow_with_all or many_as_slow(self._as_deep, self._trials_with(other)):
            return None
        others = [partner for partner in self.partners() if partner != other]
        why = f"{names[self.place]} was slow with {names[other]} and as fast as the others with {_listed(others, names)}"
        ways = self.candidate.ways
        if self.place > other:
            ways = tuple({SENDS: RECEIVES, RECEIVES: SENDS}.get(way, way) for way in ways)
        depth, least = self._mean(self._trials_with(other))[0], CELLS["latency" if LATENCY in ways else "bandwidth"].least
        places = (min(self.place, other), max(self.place, other))
        return replace(self.candidate, places=places, ways=ways, depth=depth, least=least, why=why, fast_with=(), any_way=False)

    def _reason(self, state: str, names: Sequence[str]) -> list[str]:
        """What the trials add up to."""
        if state != INCONCLUSIVE:
            slower = "slower again, but by less than is reported"
            return [self.repeats.sentence()] if state == CONFIRMED else [slower] if self.slow_with_all else []
        fast = [partner for partner, how in self.partners(well=False).items() if how == FAST]
        if self.slow_with_all and fast:
            return [f"as fast with {_listed(fast, names)} as others are with one another: so are the places of a smaller part of a network"]
        if self.slow_with_all:
            counted = [self.repeats.sentence(), self.repeats.reason()]
            return [_PARTS] if self.in_a_part else [LIKE_OTHERS] if self.like_others else counted
        if len(self.partners()) < _ENOUGH:
            return ["it could not be measured again with two partners that are known to be well"]
        return ["slow with some partners that are well, and not, or not clearly, with others"]

    def _kind(self) -> str:
        """Which of its ways are slow, by all trials with partners that are well."""
        means = {
            way: float(np.mean(told)) for way in WAYS if (told := [each.depths[way] for each in self._of_well() if way in each.depths])
        }
        worst = max((means.get(way, 0.0) for way in BANDWIDTH_WAYS), default=0.0)
        if LATENCY in self.candidate.ways:
            return "latency"
        bounds = {way: _STAYS if way in self.candidate.ways else _JOINS for way in BANDWIDTH_WAYS}  # the sweep had more partners
        slow = {way for way in BANDWIDTH_WAYS if means.get(way, 0.0) > max(worst * bounds[way], 0.0)}
        return {frozenset({SENDS}): "sender", frozenset({RECEIVES}): "receiver"}.get(frozenset(slow), "node")

    def _slow_in_the_mean(self) -> bool:
        """Whether all trials together leave no doubt, by the noise that is known, or by how little they differ among themselves."""
        depth, noise = self._mean(trials := self._of_well())
        if depth > self.candidate.pooled * noise:
            return True
        single = [self._mean([trial])[0] for trial in trials]
        if len(single) < _LEAST_SCATTER:
            return False
        bound = t_quantile(1 - self.candidate.share, len(single) - 1) * float(np.std(single, ddof=1)) / sqrt(len(single))
        return depth > bound

    def _of_well(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.well and self._told(trial)]

    def _trials_with(self, partner: int) -> list[Trial]:
        return [trial for trial in self.trials if trial.partner == partner and self._told(trial)]

    def _told(self, trial: Trial) -> bool:
        return any(way in trial.depths for way in self.candidate.ways)

    def _with(self, partner: int, well: bool) -> str:
        """Those who may be sick themselves are judged by what the sweep saw alone: as fast as usual is what is asked of them."""
        return judged(self._as_deep if well else self.candidate, [each for each in self._trials_with(partner) if each.well == well])

    @property
    def _as_deep(self) -> Candidate:
        """The candidate with the depth that its partners tell, where that is more: of two that differ one has to be wrong."""
        met = dict.fromkeys(trial.partner for trial in self._of_well())
        depths = sorted(self._mean([trial for trial in self._of_well() if trial.partner == partner])[0] for partner in met)
        told = depths[len(depths) // 2] if depths else 0.0
        return replace(self.candidate, depth=max(self.candidate.depth, self.candidate.least, told))

    def _mean(self, trials: Sequence[Trial]) -> tuple[float, float]:
        return mean_depth(self.candidate, trials)

    @property
    def _exhausted(self) -> bool:
        return len(self.trials) >= _MOST_TRIALS and not self.needs_rounds


def judged(candidate: Candidate, trials: Sequence[Trial]) -> str:
    """How trials with one partner are: against half of what the sweep saw, and against chance.

    Without controls at the same time a round may run slower as a whole: then what a single pair needs is asked of it.
    """
    depth, noise = mean_depth(candidate, trials)
    bound = max(candidate.fast, candidate.tail * noise)
    if not all(trial.controls for trial in trials):
        bound = max(bound, min(CELLS["latency" if LATENCY in candidate.ways else "bandwidth"].least, candidate.depth))
    return SLOW if depth > bound else FAST if depth < candidate.fast else UNCLEAR


def many_as_slow(candidate: Candidate, trials: Sequence[Trial]) -> bool:
    """Whether more of the controls than sick places among them explain are behind by half of the candidate's depth, too; or whether none
    of them was of its kind of path, so that it cannot be told.
    """
    if any(trial.controls for trial in trials) and not any(trial.alike for trial in trials):
        return True
    beside = [depth > candidate.fast for trial in trials for way in candidate.ways for depth in trial.beside.get(way, ())]
    return sum(beside) > _MOST_SLOW_CONTROLS * len(beside)


def mean_depth(candidate: Candidate, trials: Sequence[Trial]) -> tuple[float, float]:
    """(depth, its noise) over the candidate's ways in all of these trials; (0, 0) of none."""
    told = [(trial.depths[way], trial.noise[way]) for trial in trials for way in candidate.ways if way in trial.depths]
    if not told:
        return 0.0, 0.0
    depths, noise = zip(*told, strict=True)
    return fmean(depths), sqrt(fmean(each**2 for each in noise) / len(told))


def _narrowed(candidate: Candidate, trials: Sequence[Trial]) -> Candidate:
    """Which ways were slow in these trials: both where they differ by less than half; the latency where only that is slow."""
    means = {way: float(np.mean([trial.depths[way] for trial in trials if way in trial.depths] or [0.0])) for way in WAYS}
    worst = max(means[way] for way in BANDWIDTH_WAYS)
    if worst < candidate.least and means[LATENCY] >= PLACES["latency"].least:
        return replace(candidate, ways=(LATENCY,), depth=means[LATENCY])
    ways = tuple(way for way in BANDWIDTH_WAYS if means[way] >= worst / 2) if worst >= candidate.least else BANDWIDTH_WAYS
    return replace(candidate, ways=ways, depth=max(candidate.least, float(np.mean([means[way] for way in ways]))))


def _listed(places: Sequence[int], names: Sequence[str]) -> str:
    return " and ".join(names[place] for place in places)
