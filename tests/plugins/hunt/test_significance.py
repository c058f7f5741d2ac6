"""Repeated measurements of a suspect: what confirms it, what leaves it open, and what can never confirm it."""

from math import exp, log

import numpy as np
import pytest

from collbench.plugins.hunt.facts import NotProven
from collbench.plugins.hunt.significance import FALSE_ALARM_RATE, MOST_ROUNDS, RepeatOutcome, fisher, repeats
from collbench.plugins.hunt.trials import LATENCY, RECEIVES, SENDS, Trial

LEAST, BOUND = -log(0.95), log(2) / 2
HALF = [log(2) + step for step in (0.0, 0.01, -0.01, 0.02, 0.0, -0.02, 0.01, 0.0)]


def trial(depth, controls=(0.0,), *, waits=0.0, flipped=False, alike=True):
    """A round in which the suspect was so far behind 1 GB/s (as a logarithm), both ways, and each control so far."""
    ways = (SENDS, RECEIVES)
    reference = min(controls, default=0.0)
    usual = dict.fromkeys(ways, 1e9 * exp(-reference))
    beside = dict.fromkeys(ways, tuple(each - reference for each in controls))
    depths, values = dict.fromkeys(ways, depth - reference), dict.fromkeys(ways, 1e9 * exp(-depth))
    noise = dict.fromkeys(ways, 0.01)
    return Trial(0, 1, True, len(controls), alike, depths, noise, values, usual, beside, None, waits, flipped)


def counted(trials, bound=BOUND):
    return repeats(trials, (SENDS, RECEIVES), bound)


def outcome(trials):
    return counted(trials).outcome(FALSE_ALARM_RATE, LEAST)


@pytest.mark.parametrize(("slow", "rounds", "slow_controls", "controls", "chance"), [
    (7, 7, 0, 7, 1 / 3432), (6, 6, 0, 6, 1 / 924), (3, 3, 0, 21, 1 / 2024), (7, 7, 1, 7, 8 / 3432), (0, 7, 0, 7, 1.0), (3, 3, 3, 3, 1.0),
    (0, 0, 0, 0, 1.0), (3, 3, 0, 0, 1.0),
])  # fmt: skip
def test_the_chance_of_such_counts(slow, rounds, slow_controls, controls, chance):
    assert fisher(slow, rounds, slow_controls, controls) == pytest.approx(chance, rel=0.01)


@pytest.mark.parametrize(("controls", "rounds"), [(1, 7), (2, 5), (3, 5), (7, 3), (16, 3)])
def test_so_many_rounds_confirm_half_the_rate_and_one_round_less_does_not(controls, rounds):
    those = [trial(depth, (0.0, *(0.01 * number for number in range(1, controls)))) for depth in HALF]
    assert [outcome(those[:number]) for number in (rounds - 1, rounds)] == [RepeatOutcome.OPEN, RepeatOutcome.SLOW]


def test_the_share_of_chance_of_more_suspects_takes_more_rounds_up_to_the_most():
    those = [trial(depth) for depth in HALF]
    assert counted(those[:7]).outcome(FALSE_ALARM_RATE, LEAST) is RepeatOutcome.SLOW
    assert counted(those[:7]).outcome(FALSE_ALARM_RATE / 4, LEAST) is RepeatOutcome.OPEN
    assert counted(those[:8]).outcome(FALSE_ALARM_RATE / 4, LEAST) is RepeatOutcome.SLOW
    noisy = [trial(depth, (0.0 if turn % 3 else 0.7,)) for turn, depth in enumerate((HALF * 2)[:MOST_ROUNDS])]
    assert counted(noisy[:3]).outcome(FALSE_ALARM_RATE / 10, LEAST) is RepeatOutcome.OPEN
    assert counted(noisy).outcome(FALSE_ALARM_RATE / 1000, LEAST) is RepeatOutcome.UNDECIDED


@pytest.mark.parametrize(("case", "trials"), [
    ("one very slow round", [trial(3.0)]),
    ("two rounds that agree exactly, as in the false confirmation of 74 % to 74 %", [trial(0.3), trial(0.3)]),
    ("no controls", [trial(depth, ()) for depth in HALF]),
    ("controls of another kind of path alone", [trial(depth, alike=False) for depth in HALF]),
    ("controls as slow in the same rounds", [trial(depth, (depth,)) for depth in HALF]),
    ("half of the controls as slow", [trial(depth, (0.0 if turn % 2 else depth,)) for turn, depth in enumerate(HALF)]),
    ("slow in half of the rounds", [trial(depth if turn % 2 else 0.0) for turn, depth in enumerate(HALF)]),
    ("a state probe that flipped in each round", [trial(depth, flipped=True) for depth in HALF]),
    ("ranks that waited for a CPU for half of the time", [trial(depth, waits=0.5) for depth in HALF]),
    ("a wide interval", [trial(depth) for depth in (0.4, 3.0, 0.4, 0.4, 4.0, 0.4, 0.4)]),
])  # fmt: skip
def test_no_confirmation(case, trials):
    assert outcome(trials) is not RepeatOutcome.SLOW, case


def test_disturbed_rounds_are_counted_and_noted_and_a_short_wait_does_not_hide_half_the_rate():
    waited = counted([*(trial(depth) for depth in HALF[:3]), *(trial(depth, waits=0.6) for depth in HALF[:5])])
    assert (waited.rounds, waited.slow, waited.waited) == (8, 3, 5)
    assert waited.outcome(FALSE_ALARM_RATE, LEAST) is RepeatOutcome.UNDECIDED
    assert waited.reason == NotProven("cpu", 5, 8)
    flipped = counted([trial(depth, flipped=True) for depth in HALF[:3]])
    assert (flipped.rounds, flipped.flipped) == (0, 3)
    assert flipped.reason == NotProven("state", 3, 0)
    assert outcome([trial(depth, waits=0.1) for depth in HALF]) is RepeatOutcome.SLOW


def test_the_interval_is_that_of_the_rounds_but_for_what_is_slow_for_all():
    low, high = counted([trial(depth) for depth in HALF]).interval
    assert 0.48 < low < 0.5 < high < 0.52
    assert counted([trial(0.7)]).interval == (None, None)
    # With many controls what a round has in common is taken away; with one control a slow round makes both slow.
    whole = [trial(0.7, (0.7,) * 8), *(trial(0.0, (0.0,) * 8) for _ in range(7))]
    assert counted(whole).slow == 0
    latency = [Trial(0, 1, True, 1, True, {LATENCY: 0.7}, {LATENCY: 0.01}, {LATENCY: 5e4}, {LATENCY: 1e5}, {LATENCY: (0.0,)})] * 7
    assert repeats(latency, (LATENCY,), BOUND).slow == 7
    assert repeats(latency, (SENDS, RECEIVES), BOUND).rounds == 0


@pytest.mark.parametrize("controls", [1, 3])
def test_healthy_pairs_with_two_modes_and_heavy_tails_are_not_confirmed(controls):
    """A fifth of the rounds of any pair is two to four times slower, as small messages are on hosts that share cores."""
    drawn, confirmed = np.random.default_rng(1), 0
    for _ in range(2000):
        series = []
        while len(series) < MOST_ROUNDS and outcome(series) is RepeatOutcome.OPEN:
            modes = np.where(drawn.random(1 + controls) < 0.2, drawn.uniform(0.7, 1.4, 1 + controls), 0)
            own, *others = (modes + 0.05 * drawn.standard_t(4, 1 + controls)).tolist()
            series.append(trial(own, others))
        confirmed += outcome(series) is RepeatOutcome.SLOW
    assert confirmed <= 4  # 0.2 %


@pytest.mark.parametrize(("share", "explains"), [(0.0, False), (-0.1, False), (0.16, False), (0.17, True), (0.5, True), (2.0, True)])
def test_a_wait_explains_twice_its_share_of_the_time(share, explains):
    """A depth of 0.7 is above the bound of 0.35; 17 % of waiting explain 0.37 of it."""
    assert counted([trial(0.7, waits=share)]).waited == explains


def test_the_wider_scatter_of_suspect_and_controls_makes_the_interval():
    """Student's t of three rounds is 4.30, over the root of three."""
    calm, wild, none = (0.01, -0.01, 0.0), (0.4, -0.4, 0.0), (0.0, 0.0, 0.0)
    for suspect, controls, scatter in ((calm, none, 0.01), (calm, wild, 0.4), (wild, calm, 0.4)):
        known = counted([trial(0.7 + own + beside, (beside,)) for own, beside in zip(suspect, controls, strict=True)])
        assert known.log_slowdown - known.low == pytest.approx(4.3027 * scatter / 3**0.5, rel=1e-3)
    assert counted([trial(0.7, (0.4,))]).low is None
