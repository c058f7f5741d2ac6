"""The gate's rule on figures that can be computed by hand."""

import numpy as np
import pytest

from collbench.gating.baseline import CaseGroup, Scheme
from collbench.gating.rule import exceed, learn, slower

LARGE, SMALL = CaseGroup("mpi", "allreduce", "large"), CaseGroup("mpi", "allreduce", "small")
ONE_GROUP = Scheme.of_cases([LARGE, LARGE, LARGE])


def times(*allocations: list[float]) -> np.ndarray:
    """[allocations × cases] ln of seconds, from microseconds."""
    return np.log(np.array(allocations) * 1e-6)


def still(factor: float = 1.0) -> list[float]:
    return [100 * factor, 200 * factor, 400 * factor]


class TestLimits:
    def test_a_case_without_noise_has_the_minimum_limit_of_its_class_and_two_cases_are_no_group(self) -> None:
        scheme = Scheme.of_cases([SMALL] * 3 + [CaseGroup("mpi", "allreduce", "mid")] * 3 + [LARGE] * 3)
        limits = learn(times(*[still() * 3] * 6), scheme)
        assert limits.visible() == pytest.approx([1.05] * 3 + [1.04] * 3 + [1.02] * 3)
        assert np.exp(limits.groups) == pytest.approx([1.03, 1.02, 1.01])
        assert np.exp(limits.whole) == pytest.approx(1.015)
        limits = learn(times(*[[100, 200]] * 6), Scheme.of_cases([LARGE, LARGE]))
        assert (limits.groups.tolist(), limits.whole) == ([np.inf], np.inf)
        assert limits.visible() == pytest.approx([1.02, 1.02])

    def test_groups_are_steady_by_their_cases_with_a_history(self) -> None:
        common = np.array([0.02, -0.02, 0.02, -0.02, 0.02, -0.02])[:, None]
        old = np.log(1e-4) + np.repeat(common, 3, axis=1)
        new = np.full((6, 6), np.nan)
        new[np.arange(6), np.arange(6)] = np.log(1e-4)
        both = np.concatenate([old, np.tile(new, 5)], axis=1)
        alone, beside = learn(old, ONE_GROUP), learn(both, Scheme.of_cases([LARGE] * both.shape[1]))
        assert beside.groups == pytest.approx(alone.groups)
        assert beside.whole == pytest.approx(alone.whole)
        # Eight degrees from the group, five of its own: (8·mean + 5·own) / 13; the limit is three of it × √(1 + 1/6).
        own = np.array([0.1, -0.1, 0.1, -0.1, 0.1, -0.1])
        data = np.log(1e-4) + np.stack([own, np.zeros(6), np.zeros(6)], axis=1)
        variance = own.var(ddof=1)
        limits = learn(data, ONE_GROUP)
        loud, quiet = (8 * variance / 3 + 5 * variance) / 13, (8 * variance / 3) / 13
        assert limits.cases == pytest.approx(3 * np.sqrt([loud, quiet, quiet]) * np.sqrt(7 / 6))

    def test_the_centre_is_the_median_and_a_short_history_is_not_judged(self) -> None:
        limits = learn(times(still(), still(), still(), still(), still(3.0)), ONE_GROUP)
        assert np.exp(limits.centre) == pytest.approx([100e-6, 200e-6, 400e-6])
        data = times(*[still()] * 6)
        data[3:, 0] = np.nan
        limits = learn(data, ONE_GROUP)
        assert (limits.allocations.tolist(), limits.judged.tolist()) == ([3, 6, 6], [False, True, True])
        assert np.isnan(limits.visible()[0])
        assert not exceed(limits, times([1e6, 200, 400])).cases_over[0, 0]
        limits = learn(times(still()), ONE_GROUP)
        assert not exceed(limits, times(still(50.0))).groups_over.any()
        assert limits.whole == np.inf


LIMITS = learn(times(*[still()] * 6), ONE_GROUP)


def test_slower_is_what_exceeds_its_limit_in_all_allocations() -> None:
    found = slower(exceed(LIMITS, times([103, 200, 400], [104, 200, 400], [103, 200, 400])))
    assert (found.cases.tolist(), found.groups.tolist(), found.whole, found.anything) == ([True, False, False], [False], False, True)
    assert not slower(exceed(LIMITS, times([110, 200, 400], [101, 200, 400], [110, 200, 400]))).anything
    found = slower(exceed(LIMITS, times(*[still(1.018)] * 3)))
    assert (found.cases.tolist(), found.groups.tolist(), found.whole) == ([False, False, False], [True], True)
    assert not slower(exceed(LIMITS, times(*[still(0.5)] * 3))).anything
    candidate = times(*[[110, 200, 400]] * 3)
    candidate[1, 0] = np.nan
    assert not slower(exceed(LIMITS, candidate)).cases[0]
    excess = exceed(LIMITS, times([150, 200, 400]))
    assert excess.cases[0] == pytest.approx([1.5, 1, 1])
    assert excess.groups[0] == pytest.approx([1])
    assert excess.whole == pytest.approx([1])


class TestCoverage:
    """A group is judged by the cases that an allocation measured, where these are at least half."""

    SCHEME = Scheme.of_cases([LARGE] * 4 + [SMALL] * 4)
    LIMITS = learn(np.log(np.full((6, 8), 1e-4)), SCHEME)

    @pytest.mark.parametrize(("missing", "large", "whole"), [
        ([], True, True), ([0], True, True), ([0, 1], True, True), ([0, 1, 2], False, True), ([0, 1, 2, 4, 5], False, False),
    ])  # fmt: skip
    def test_half_of_the_cases_are_enough(self, missing: list[int], large: bool, whole: bool) -> None:
        candidate = np.log(np.full((1, 8), 1.1e-4))
        candidate[0, missing] = np.nan
        excess = exceed(self.LIMITS, candidate)
        assert np.isfinite(excess.groups[0, 0]) == large and np.isfinite(excess.whole[0]) == whole
        assert excess.groups_over[0, 0] == large and excess.whole_over[0] == whole

    def test_short_histories_small_groups_and_usual_excess(self) -> None:
        limits = learn(np.log(np.full((4, 3), 1e-4)), ONE_GROUP)
        assert limits.judged.all() and np.isfinite(limits.groups).all() and np.isfinite(limits.whole)
        assert not learn(np.log(np.full((3, 3), 1e-4)), ONE_GROUP).judged.any()
        # In four of seven allocations three of five cases are 6 % slower, no case in most of them: usual for the group, not for a case.
        slow = np.zeros((7, 5))
        for allocation, cases in enumerate(([0, 1, 2], [0, 3, 4], [1, 2, 3], [0, 1, 4])):
            slow[allocation, cases] = np.log(1.06)
        limits = learn(np.log(1e-4) + slow, Scheme.of_cases([LARGE] * 5))
        excess = exceed(limits, np.log(1e-4) + slow[:1])
        assert np.exp(limits.centre) == pytest.approx([1e-4] * 5) and np.exp(limits.group_centre) == pytest.approx([1.06])
        assert excess.groups[0] == pytest.approx([1.0]) and excess.whole == pytest.approx([1.0])
