"""The rule for pairs of launches on figures that can be computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from collbench.gate.baseline import CaseGroup, Figures, Scheme, known_median
from collbench.gate.paired import learn_pairs
from collbench.gate.rule import exceed, slower

LARGE, MID, SMALL = (CaseGroup("mpi", "allreduce", name) for name in ("large", "mid", "small"))
ONE_GROUP = Scheme.of_cases([LARGE] * 3)
OWN = np.array([-0.3, -0.1, 0.0, 0.1, 0.3])


def pairs(*cases: Figures, allocations: int = 2) -> Figures:
    """[allocations × pairs × cases], the same in each allocation."""
    return np.stack([np.stack(cases, axis=1)] * allocations)


def drawn_in(count: int) -> float:
    """By what drawing in the outermost values of so many normal ones lessens their variance: of five 0.3465, by quadrature."""
    values = np.sort(np.random.default_rng(5).normal(size=(200_000, count)), axis=1)
    return float(np.clip(values, values[:, 1:2], values[:, -2:-1]).var(axis=1, ddof=1).mean())


def test_pairs_without_noise_have_the_minimum_limits_of_a_baseline() -> None:
    limits = learn_pairs(np.zeros((2, 5, 9)), Scheme.of_cases([SMALL] * 3 + [MID] * 3 + [LARGE] * 3))
    assert limits.visible() == pytest.approx([1.05] * 3 + [1.04] * 3 + [1.02] * 3)
    assert np.exp(limits.groups) == pytest.approx([1.03, 1.02, 1.01])
    assert np.exp(limits.whole) == pytest.approx(1.015)
    assert (limits.centre == 0).all()


def test_two_cases_are_no_group() -> None:
    limits = learn_pairs(np.zeros((2, 5, 2)), Scheme.of_cases([LARGE] * 2))
    assert (limits.groups.tolist(), limits.whole) == ([np.inf], np.inf)


def test_the_spread_is_drawn_in_and_towards_the_median_of_the_groups() -> None:
    """−0.3 and 0.3 count as −0.1 and 0.1: a variance of 0.01, of eight degrees; the group adds eight with a median of 0."""
    limits = learn_pairs(pairs(OWN, OWN * 0, OWN * 0), ONE_GROUP)
    variance = 0.01 / drawn_in(5) / 2
    assert limits.cases == pytest.approx([4 * 1.2533 * np.sqrt(variance / 5), np.log(1.02), np.log(1.02)], rel=0.02)


def test_one_pair_that_is_far_off_changes_nothing() -> None:
    usual = np.array([-0.1, -0.05, 0.0, 0.05, 0.1])
    off = np.array([-0.1, -0.05, 0.0, 0.05, 5.0])
    assert learn_pairs(pairs(off, off, off), ONE_GROUP).cases == pytest.approx(learn_pairs(pairs(usual, usual, usual), ONE_GROUP).cases)


def test_common_noise_of_pairs_widens_the_limits_of_groups_and_of_all_cases() -> None:
    limits = learn_pairs(pairs(OWN, OWN, OWN), ONE_GROUP)
    common = 4 * 1.2533 * np.sqrt(0.01 / drawn_in(5) / 5)
    assert limits.groups == pytest.approx([common], rel=0.02)
    assert limits.whole == pytest.approx(common, rel=0.02)


def test_a_case_in_too_few_pairs_is_not_judged() -> None:
    differences = np.zeros((2, 5, 3))
    differences[0, :2, 1] = np.nan
    limits = learn_pairs(differences, ONE_GROUP)
    assert limits.judged.tolist() == [True, False, True]
    assert limits.groups.tolist() == [np.inf]


def test_a_second_allocation_with_suspects_alone_leaves_the_limits_of_the_others() -> None:
    both = pairs(OWN, OWN, OWN)
    alone = both.copy()
    alone[1, :, 1:] = np.nan
    assert learn_pairs(alone, ONE_GROUP).cases == pytest.approx(learn_pairs(both, ONE_GROUP).cases)


def test_slower_is_what_exceeds_in_both_allocations() -> None:
    differences = np.zeros((2, 5, 3))
    differences[:, :, 0] = np.log(1.03)
    differences[0, :, 1] = np.log(1.03)
    found = slower(exceed(learn_pairs(differences, ONE_GROUP), known_median(np.moveaxis(differences, 1, -1))))
    assert found.cases.tolist() == [True, False, False]
    assert not found.whole


def test_nothing_known_is_no_limit() -> None:
    limits = learn_pairs(np.full((1, 5, 3), np.nan), ONE_GROUP)
    assert not limits.judged.any()
    assert not exceed(limits, np.full((1, 3), np.nan)).cases_over.any()
