"""Whether repeated measurements of a suspect show more than chance: the test for every confirmation.

The round is the unit of evidence, not the sample, since a disturbance of a round affects all of its samples. In each round the suspect's
pair is measured at the same time as control pairs of healthy places. Three conditions must hold:
- In nearly all rounds the suspect is slower than usual by more than half of its depth, and the controls are not. Fisher's exact test on
  these counts needs no model of the noise: if the suspect is healthy, its figures and the controls' are exchangeable. Its probability
  must be below `CHANCE`, shared by all suspects that are measured again (Bonferroni). That takes at least 7 rounds with one control per
  round, 5 with three controls, and 3 with seven or more.
- The 95 % interval of the depth over the rounds is above the smallest slowdown that is reported. It is Student's t, from the wider of the
  suspect's and the controls' scatter.
- The ranks' waits for a CPU do not explain the slowness: rounds that they explain count as not slow. Rounds in which the state probe
  changed are not used.
The rounds that selected the suspect do not count, so the selection among many pairs does not bias the test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import comb, exp, log, sqrt

import numpy as np

from collbench.plugins.hunt import facts
from collbench.stats.median import t_quantile

CHANCE = 0.0005  # of a false confirmation per hunt, for all suspects together
LEAST_ROUNDS = 3
MOST_ROUNDS = 14  # of one suspect
_LEAST_SHARE_SLOW = 0.7  # of the rounds; if fewer are slow, more rounds do not help
_FUTILE_FROM = 4
_WAITED_TWICE = 2.0  # a wait in some samples moves the median by up to twice its share of the time
_LEVELLED = 6  # controls in a round from which on their median shows the effect of the round


class RepeatOutcome(Enum):
    """The result of the rounds so far. SLOW: a confirmation; OPEN: more rounds may decide; UNDECIDED: more rounds do not help."""

    SLOW = "slow"
    OPEN = "open"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Repeats:
    """The counts of the repeated measurements of one suspect.

    rounds      used, with at least one control of the same kind of path; slow: in how many of them the suspect was slow
    controls    figures of healthy pairs in these rounds; slow_controls: how many of them were as slow
    waited      rounds that do not count as slow because ranks waited for a CPU
    flipped     rounds that were not used because the state probe changed
    chance      probability of such counts if the suspect is healthy (1 without rounds)
    depth       mean slowness compared with the controls of the same round, as a logarithm
    low, high   its 95 % interval, None with fewer than 2 rounds
    """

    rounds: int
    slow: int
    controls: int
    slow_controls: int
    waited: int
    flipped: int
    chance: float
    depth: float
    low: float | None
    high: float | None

    def outcome(self, allowed: float, least: float) -> RepeatOutcome:
        """Return the result. allowed: the acceptable probability of chance; least: the smallest depth that is reported."""
        if self.rounds >= _FUTILE_FROM and self.slow < _LEAST_SHARE_SLOW * self.rounds:
            return RepeatOutcome.UNDECIDED
        enough = self.rounds >= LEAST_ROUNDS and self.chance <= allowed and self.low is not None and self.low > least
        if enough:
            return RepeatOutcome.SLOW
        return RepeatOutcome.UNDECIDED if self.rounds + self.flipped >= MOST_ROUNDS else RepeatOutcome.OPEN

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The 95 % interval of the ratio, the lower end first."""
        return (None, None) if self.low is None or self.high is None else (exp(-self.high), exp(-self.low))

    @property
    def counts(self) -> facts.RetestCounts:
        """Return the counts as evidence."""
        return facts.RetestCounts(self.slow, self.rounds, self.slow_controls, self.controls, self.waited, self.flipped)

    @property
    def reason(self) -> facts.NotProven:
        """Return why this does not confirm the suspect."""
        if self.waited:
            return facts.NotProven("cpu", self.waited, self.rounds)
        if self.flipped >= max(1, self.rounds):
            return facts.NotProven("state", self.flipped, self.rounds)
        if self.slow < self.rounds:
            return facts.NotProven("rounds", self.slow, self.rounds)
        if self.slow_controls:
            return facts.NotProven("controls", self.slow_controls, self.controls)
        return facts.NotProven("scatter", self.rounds, self.rounds)


def repeats(trials: Sequence[Trial], ways: Sequence[str], bound: float) -> Repeats:
    """Count trials of one suspect. bound: the depth, as a logarithm, above which a figure is slow."""
    usable = [trial for trial in trials if trial.controls and trial.alike and any(way in trial.depths for way in ways)]
    used = [trial for trial in usable if not trial.flipped]
    figures = {way: [value for trial in used for value in _controls(trial, way)] for way in ways}
    typical = {way: float(np.median(values)) if values else 0.0 for way, values in figures.items()}
    behind = [_behind(trial, ways, typical) for trial in used]
    # the depth that the ranks' waits for a CPU explain
    explained = [-_WAITED_TWICE * log(1 - min(max(trial.cpu_wait, 0.0), 0.99)) for trial in used]
    waited = [own > bound >= own - wait for wait, (own, _) in zip(explained, behind, strict=True)]
    slow = sum(own > bound and not wait for (own, _), wait in zip(behind, waited, strict=True))
    others = [depth for _, depths in behind for depth in depths]
    slow_others = sum(depth > bound for depth in others)
    paired = np.array([float(np.mean([trial.depths[way] for way in ways if way in trial.depths])) for trial in used])
    depth = float(paired.mean()) if len(paired) else 0.0
    low = high = None
    if len(paired) > 1:
        scatter = max(float(paired.std(ddof=1)), float(np.std(others, ddof=1)) if len(others) > 1 else 0.0)
        half = t_quantile(0.975, len(paired) - 1) * scatter / sqrt(len(paired))
        low, high = depth - half, depth + half
    chance = fisher(slow, len(used), slow_others, len(others))
    return Repeats(len(used), slow, len(others), slow_others, sum(waited), len(usable) - len(used), chance, depth, low, high)


def fisher(slow: int, rounds: int, slow_controls: int, controls: int) -> float:
    """Return the probability of at least so many slow rounds if suspect and controls are alike (one-sided exact test)."""
    total, marked = rounds + controls, slow + slow_controls
    if not rounds or not controls:
        return 1.0
    ways = sum(comb(marked, each) * comb(total - marked, rounds - each) for each in range(slow, min(rounds, marked) + 1))
    return ways / comb(total, rounds)


def _behind(trial: Trial, ways: Sequence[str], typical: dict[str, float]) -> tuple[float, list[float]]:
    """Return how far the suspect, and each control, is behind the usual speed of all rounds, without the effect of a large round."""
    known = [way for way in ways if way in trial.depths]
    own = [typical[way] - log(trial.values[way]) for way in known]
    controls = [_controls(trial, way) for way in known]
    complete = min(map(len, controls))
    others = np.array([typical[way] - np.array(values[:complete]) for way, values in zip(known, controls, strict=True)])
    level = float(np.median(others)) if others.shape[1] >= _LEVELLED else 0.0
    return float(np.mean(own)) - level, [float(each) - level for each in others.mean(axis=0)]


def _controls(trial: Trial, way: str) -> list[float]:
    """Return the logarithms of the controls' figures in a trial."""
    return [log(trial.typical[way]) - each for each in trial.control_depths[way]] if way in trial.control_depths else []


@dataclass(frozen=True)
class Trial:
    """A measured pair as seen from `place`: what it sends, what it receives, and the latency.

    Speeds are in bytes per second, the latency is 1/s.

    partner   the other place; healthy: whether it is known to be healthy
    depths    by way how far behind the controls, as a logarithm, above 0: slower
    noise     by way the scale of the depth
    values    by way the figure; typical: that of the controls
    controls  their number; 0: the median of the sweep is used instead
    alike     whether they are on the same kind of path (host, leaf)
    control_depths  by way how far each of the controls was behind their middle
    na        why figures are missing
    cpu_wait  share of the round in which a rank of the pair waited for a CPU, above the controls' median, which the same waits slow
    flipped   whether a rank's state probe changed during the round
    """

    place: int
    partner: int
    healthy: bool
    controls: int = 0
    alike: bool = False
    depths: Mapping[str, float] = field(default_factory=dict)
    noise: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    typical: Mapping[str, float] = field(default_factory=dict)
    control_depths: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    na: str | None = None
    cpu_wait: float = 0.0
    flipped: bool = False

    def evidence(self, names: Sequence[str], end: bool = False) -> facts.Retest:
        """Return the trial as evidence. end: the suspect is a path, and `place` is one of its ends."""
        endpoint, partner = names[self.place] if end else "", names[self.partner]
        if self.na is not None:
            return facts.Retest(partner, self.healthy, na=self.na, endpoint=endpoint)
        own, typical = (
            (each.get(SENDS), each.get(RECEIVES), 1 / each[LATENCY] if each.get(LATENCY) else None) for each in (self.values, self.typical)
        )
        return facts.Retest(partner, self.healthy, self.controls, *own, *typical, endpoint=endpoint)


SENDS, RECEIVES, LATENCY = "sends", "receives", "latency"
