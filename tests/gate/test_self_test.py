"""How far the rule can be trusted: the seeded simulation finds what it should, and seldom alarms; the table of the protocol."""

from __future__ import annotations

import pytest

from collbench.gate.baseline import CaseGroup, Scheme
from collbench.gate.self_test import Noise, SelfTestLine, TrialSetting, default_scheme, noises, read_noise, self_test, simulated

SILENT = Noise((0.0,) * 3, 1, (0.0,) * 3, (0.0,) * 3, 0, 0, 0, 0, 0, 0, 0, 0)
DONE = (
    "nothing", "one case of large messages slower by 5 %", "one case of large messages slower by 10 %",
    "one group of large messages slower by 2 %", "one group of large messages slower by 5 %", "all cases slower by 2 %",
    "a case slower by twice what is visible", "a case slower by half of what is visible",
)  # fmt: skip


def shares(setting: TrialSetting, trials: int, seed: int) -> dict[str, float]:
    return {each.done: each.share for each in self_test(setting, trials, seed)}


def usual(noise: Noise | None = None, *, paired: bool = False) -> TrialSetting:
    return simulated(noise or Noise(), default_scheme(), paired=paired)


def test_the_same_seed_gives_the_same_table_and_another_one_another() -> None:
    one, again, other = (list(self_test(usual(), 3, seed)) for seed in (4, 4, 5))
    assert one == again
    assert one != other


def test_the_rule_seldom_alarms_and_finds_what_it_promises() -> None:
    """Of 60 trials each: bounds that chance passes less than once in a thousand runs, were the rates those of the protocol."""
    found = shares(usual(), 60, seed=1)
    assert tuple(found) == DONE
    assert found["nothing"] <= 0.05
    assert found["one case of large messages slower by 5 %"] >= 0.68
    assert found["one case of large messages slower by 10 %"] >= 0.88
    assert 0.40 <= found["one group of large messages slower by 2 %"] <= 0.90
    assert found["one group of large messages slower by 5 %"] >= 0.93
    assert found["all cases slower by 2 %"] >= 0.78
    assert found["a case slower by twice what is visible"] >= 0.90
    assert found["a case slower by half of what is visible"] <= 0.10


def test_two_stacks_side_by_side_seldom_alarm_and_are_told_apart() -> None:
    """Of 24 trials each, likewise."""
    found = shares(usual(paired=True), 24, seed=1)
    assert tuple(found) == DONE
    assert found["nothing"] <= 0.08
    assert found["one case of large messages slower by 5 %"] >= 0.68
    assert found["one group of large messages slower by 2 %"] >= 0.90
    assert found["all cases slower by 2 %"] >= 0.90
    assert found["a case slower by half of what is visible"] <= 0.13


@pytest.mark.long
def test_the_table_of_the_protocol_comes_out() -> None:
    """A/A at most 0.6 %, a large group's 5 % at least 98 %, all cases' 2 % at least 85 %."""
    found = shares(usual(), 2000, seed=2)
    assert found["nothing"] <= 0.006
    assert found["one group of large messages slower by 5 %"] >= 0.98
    assert found["all cases slower by 2 %"] >= 0.85


@pytest.mark.long
def test_the_table_of_two_stacks_side_by_side_comes_out() -> None:
    """A/A at most 0.5 %, a large case's 5 % found in at least 88 %."""
    found = shares(usual(paired=True), 2000, seed=2)
    assert found["nothing"] <= 0.005
    assert found["one case of large messages slower by 5 %"] >= 0.88


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "most", "most_paired"),
    [
        ("bimodal", 0.125, 0.025),
        ("drift", 0.25, 0.008),
        ("harsh", 0.225, 0.022),
        ("missing", 0.012, 0.008),
        ("wander", 0.05, 0.008),
    ],
)
def test_harsher_noise_raises_alarms_as_often_as_is_stated(name: str, most: float, most_paired: float) -> None:
    """reports/gate-self-test says how often; bounds that chance passes less than once in a hundred runs of 1000 trials."""
    noise = read_noise(noises()[name])
    by_baseline, side_by_side = (next(self_test(usual(noise, paired=paired), 1000, seed=3)).share for paired in (False, True))
    assert by_baseline <= most
    assert side_by_side <= most_paired


def test_what_never_scatters_is_judged_to_its_floors() -> None:
    """Floors of large messages: 2 % a case, 1 % a group, 1.5 % all; of two stacks alike."""
    for paired in (False, True):
        found = shares(usual(SILENT, paired=paired), 2, seed=0)
        assert list(found.values()) == [0, 1, 1, 1, 1, 1, 1, 0]


def test_a_cluster_without_large_messages_or_groups_is_tried_on_what_it_has() -> None:
    scheme = Scheme.of_cases(
        [CaseGroup("mpi", "allreduce", "small"), CaseGroup("mpi", "allreduce", "mid"), CaseGroup("gloo", "allreduce", "mid")]
    )
    assert list(shares(simulated(SILENT, scheme), 1, seed=0)) == [
        "nothing", "one case of mid messages slower by 5 %", "one case of mid messages slower by 10 %", *DONE[5:],
    ]  # fmt: skip


def test_the_interval_holds_at_the_ends() -> None:
    assert SelfTestLine("", True, 0, 100).interval == pytest.approx((0, 0.0370), abs=1e-4)
    assert SelfTestLine("", True, 100, 100).interval == pytest.approx((0.9630, 1), abs=1e-4)
    assert SelfTestLine("", True, 50, 100).interval == pytest.approx((0.4038, 0.5962), abs=1e-4)
