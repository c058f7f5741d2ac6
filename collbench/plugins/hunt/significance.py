"""Whether repeated measurements of a suspect show more than chance: the test for every confirmation.

The round is the unit of evidence, not the sample, since a disturbance of a round affects all of its samples. In each round the suspect's
pair is measured at the same time as control pairs of healthy places. Three conditions must hold:
- In nearly all rounds the suspect is slower than usual by more than half of its slowdown, and the controls are not. Fisher's exact test on
  these counts needs no model of the noise: if the suspect is healthy, its figures and the controls' are exchangeable. Its p-value
  must be below `FALSE_ALARM_RATE`, shared by all suspects that are measured again (Bonferroni). That takes at least 7 rounds with one
  control per round, 5 with three controls, and 3 with seven or more.
- The 95 % interval of the slowdown over the rounds is above the smallest one that is reported. It is Student's t, from the wider of the
  suspect's and the controls' scatter: mean ± t(0.975, n − 1) · s / √n.
- The ranks' waits for a CPU do not explain the slowness: rounds that they explain count as not slow. Rounds in which the state probe
  changed are not used.
The rounds that selected the suspect do not count, so the selection among many pairs does not bias the test.

A slowdown is a natural logarithm, see `trials.Trial`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import comb, exp, log, sqrt

import msgspec
import numpy as np

from collbench.plugins.hunt import facts
from collbench.plugins.hunt.trials import Trial
from collbench.stats.median import t_quantile

FALSE_ALARM_RATE = 0.0005  # per hunt, for all suspects together
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


class Repeats(msgspec.Struct, frozen=True):
    """The counts of the repeated measurements of one suspect.

    rounds      used, with at least one control of the same kind of path; slow: in how many of them the suspect was slow
    controls    figures of healthy pairs in these rounds; slow_controls: how many of them were as slow
    waited      rounds that do not count as slow because ranks waited for a CPU
    flipped     rounds that were not used because the state probe changed
    p_value     probability of such counts if the suspect is healthy (1 without rounds)
    log_slowdown  the mean, compared with the controls of the same round
    low, high   its 95 % interval, None with fewer than 2 rounds
    """

    rounds: int
    slow: int
    controls: int
    slow_controls: int
    waited: int
    flipped: int
    p_value: float
    log_slowdown: float
    low: float | None
    high: float | None

    def outcome(self, false_alarm_rate: float, least: float) -> RepeatOutcome:
        """Return the result. false_alarm_rate: the largest p-value that confirms; least: the smallest slowdown that is reported."""
        if self.rounds >= _FUTILE_FROM and self.slow < _LEAST_SHARE_SLOW * self.rounds:
            return RepeatOutcome.UNDECIDED
        if self.rounds >= LEAST_ROUNDS and self.p_value <= false_alarm_rate and self.low is not None and self.low > least:
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


def repeats(trials: Sequence[Trial], ways: Sequence[str], limit: float) -> Repeats:
    """Count trials of one suspect. limit: the slowdown above which a figure is slow."""
    usable = [trial for trial in trials if trial.controls and trial.same_kind and any(way in trial.log_slowdowns for way in ways)]
    used = [trial for trial in usable if not trial.flipped]
    usual: dict[str, float] = {}
    for way in ways:
        log_speeds = [log_speed for trial in used for log_speed in _control_log_speeds(trial, way)]
        usual[way] = float(np.median(log_speeds)) if log_speeds else 0.0
    slow = waited = 0
    control_slowdowns: list[float] = []
    for trial in used:
        slowdown, slowdowns_of_controls = _slowdowns(trial, ways, usual)
        control_slowdowns += slowdowns_of_controls
        explained = -_WAITED_TWICE * log(1 - min(max(trial.cpu_wait, 0.0), 0.99))
        if slowdown - explained > limit:
            slow += 1
        elif slowdown > limit:
            waited += 1
    slow_controls = sum(slowdown > limit for slowdown in control_slowdowns)
    by_round = np.array([float(np.mean([trial.log_slowdowns[way] for way in ways if way in trial.log_slowdowns])) for trial in used])
    mean = float(by_round.mean()) if len(by_round) else 0.0
    low = high = None
    if len(by_round) > 1:
        scatter = max(float(by_round.std(ddof=1)), float(np.std(control_slowdowns, ddof=1)) if len(control_slowdowns) > 1 else 0.0)
        half = t_quantile(0.975, len(by_round) - 1) * scatter / sqrt(len(by_round))
        low = mean - half
        high = mean + half
    return Repeats(
        rounds=len(used),
        slow=slow,
        controls=len(control_slowdowns),
        slow_controls=slow_controls,
        waited=waited,
        flipped=len(usable) - len(used),
        p_value=fisher(slow, len(used), slow_controls, len(control_slowdowns)),
        log_slowdown=mean,
        low=low,
        high=high,
    )


def fisher(slow: int, rounds: int, slow_controls: int, controls: int) -> float:
    """Return the p-value of so many slow rounds: that of Fisher's one-sided exact test.

    With N = rounds + controls figures, of which K are slow, it is the sum of C(K, k) · C(N − K, rounds − k) / C(N, rounds) over k ≥ slow.
    """
    if not rounds or not controls:
        return 1.0
    total = rounds + controls
    all_slow = slow + slow_controls
    tables = sum(comb(all_slow, count) * comb(total - all_slow, rounds - count) for count in range(slow, min(rounds, all_slow) + 1))
    return tables / comb(total, rounds)


def _slowdowns(trial: Trial, ways: Sequence[str], usual: dict[str, float]) -> tuple[float, list[float]]:
    """Return how far the suspect, and each control, is behind the usual speed of all rounds, without the effect of a large round."""
    measured = [way for way in ways if way in trial.log_slowdowns]
    suspect = float(np.mean([usual[way] - log(trial.speeds[way]) for way in measured]))
    log_speeds = [_control_log_speeds(trial, way) for way in measured]
    complete = min(map(len, log_speeds))
    controls = np.array([usual[way] - np.array(way_speeds[:complete]) for way, way_speeds in zip(measured, log_speeds, strict=True)])
    round_effect = float(np.median(controls)) if complete >= _LEVELLED else 0.0
    return suspect - round_effect, [float(slowdown) - round_effect for slowdown in controls.mean(axis=0)]


def _control_log_speeds(trial: Trial, way: str) -> list[float]:
    return [log(trial.usual[way]) - slowdown for slowdown in trial.control_log_slowdowns.get(way, ())]
