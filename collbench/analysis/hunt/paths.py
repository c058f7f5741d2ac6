"""A single pair that was slow: measured again, and each of its ends with a partner that is well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp

from collbench.analysis.hunt.candidates import BANDWIDTH_WAYS, LATENCY, Candidate
from collbench.analysis.hunt.judging import FAST, LIKE_OTHERS, SLOW, judged, many_as_slow, mean_depth
from collbench.analysis.hunt.significance import CHANCE, Outcome, Repeats, repeats
from collbench.analysis.hunt.trials import Trial
from collbench.analysis.hunt.verdict import CLEARED, CONFIRMED, INCONCLUSIVE, Suspect

_MOST_UNCLEAR = 4  # times that the pair is tried, as long as it is not clear
_MOST = 2  # partners that each end is tried with


@dataclass
class PathCase:
    """A slow pair, measured again.

    candidate  of two places; again: the pair itself; ends: by place its trials with healthy partners; chance: its share of `CHANCE`
    """

    candidate: Candidate
    chance: float = CHANCE
    again: list[Trial] = field(default_factory=list)
    ends: dict[int, list[Trial]] = field(default_factory=dict)

    @property
    def places(self) -> tuple[int, int]:
        """The lower first."""
        a, b = self.candidate.places
        return a, b

    @property
    def needs_pair(self) -> bool:
        """Whether the pair itself has to be measured (again)."""
        if self._pair == FAST or self._like_others:
            return False
        if self._pair != SLOW:
            return len(self.again) < _MOST_UNCLEAR
        return all(self._well(place) for place in self.places) and self.outcome is Outcome.OPEN

    @property
    def repeats(self) -> Repeats:
        """The trials of the pair, counted."""
        return repeats(self.again, self.candidate.ways, max(self.candidate.fast, self.candidate.least / 2))

    @property
    def outcome(self) -> Outcome:
        """Whether the trials show more than chance."""
        return self.repeats.outcome(self.chance, self.candidate.least)

    @property
    def needs_ends(self) -> list[int]:
        """Ends that have not been as fast as others with a partner that is well, as long as there is somebody to try."""
        if self._pair != SLOW:
            return []
        return [place for place in self.places if not self._well(place) and len(self.ends.get(place, ())) < _MOST]

    def add(self, trial: Trial) -> None:
        """What came of it."""
        if {trial.place, trial.partner} == set(self.places):
            self.again.append(trial)
        else:
            self.ends.setdefault(trial.place, []).append(trial)

    def tried(self, place: int) -> set[int]:
        """Whom this end was measured with."""
        return {trial.partner for trial in self.ends.get(place, ())}

    def state(self) -> str:
        """As things stand."""
        if self._pair == FAST:
            return CLEARED
        if self._like_others:
            return INCONCLUSIVE
        slow = self._pair == SLOW and self.outcome is Outcome.SLOW
        return CONFIRMED if slow and all(self._well(place) for place in self.places) else INCONCLUSIVE

    def suspect(self, names: Sequence[str]) -> Suspect:
        """The path as it stands."""
        told = [trial for trial in self.again if trial.depths]
        evidence = [self.candidate.why, *(trial.sentence(names) for trial in self.again)]
        for place in self.places:
            evidence += [f"{names[place]} {trial.sentence(names)}" for trial in self.ends.get(place, ())]
        partners = tuple(trial.partner for place in self.places for trial in self.ends.get(place, ()) if trial.depths)
        evidence += self._reason(names)
        if not told:
            return Suspect("path", self.places, self.state(), self.candidate.ratio, partners=partners, evidence=tuple(evidence))
        ratio, (low, high) = exp(-mean_depth(self.candidate, told)[0]), self.repeats.interval
        return Suspect("path", self.places, self.state(), ratio, low, high, partners, tuple(evidence))

    @property
    def _pair(self) -> str:
        told = [trial for trial in self.again if trial.depths]
        return judged(self.candidate, told) if told else ""

    @property
    def _like_others(self) -> bool:
        return many_as_slow(self.candidate, self.again)

    def _well(self, place: int) -> bool:
        """With any partner that is well as fast as the others: both ways of a bandwidth, since which one is slow differs by end."""
        ways = BANDWIDTH_WAYS if LATENCY not in self.candidate.ways else (LATENCY,)
        told = [[trial.depths[way] for way in ways if way in trial.depths] for trial in self.ends.get(place, ())]
        return any(depths and max(depths) < self.candidate.fast for depths in told)

    def _reason(self, names: Sequence[str]) -> list[str]:
        if self.state() == CONFIRMED:
            return [self.repeats.sentence()]
        if self.state() != INCONCLUSIVE:
            return []
        if self._pair != SLOW:
            return ["slow once, and not clearly so when it was measured again" if self._pair else "it could not be measured again"]
        if self._like_others:
            return [LIKE_OTHERS]
        ends = [f"{names[place]} has not been as fast as the others with any partner" for place in self.places if not self._well(place)]
        return ends or [self.repeats.sentence(), self.repeats.reason()]
