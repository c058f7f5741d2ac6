"""Launches in another state of the machine, and cases with too different launches: neither is judged."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.analysis.launches import case_of
from collbench.gating import reasons
from collbench.gating.allocation import Allocation, CaseTimes, ShownFigures
from collbench.gating.baseline import Figures, scheme_of, times_of
from collbench.gating.rule import flipped, launch_limits, learn, typical_probe_s, unstable
from collbench.reason import Fact
from collbench.results.row import CaseKey
from tests.conftest import needs_plugin
from tests.gate.judging import BASE, allocation, base, case, judged, slow, with_case
from tests.results.rows import make_row


class TestState:
    def test_launches_in_another_state_are_left_out_and_too_many_give_no_verdict(self) -> None:
        verdict = judged(scattered("new", (1.0, 9.0, 1.0, 1.0, 9.0), canary_s=(6e-8, 26e-8, 6e-8, 6e-8, 26e-8)))
        assert (verdict.result, verdict.notes) == ("passed", (reasons.LaunchesLeftOut("new", 2, 5),))
        verdict = judged(slow("new", 4.0), replace(slow("b", 4.0), canary_s=(26e-8,) * 5))
        assert (verdict.result, verdict.reasons[0]) == ("no verdict", reasons.AllocationStateChanged("b", 5, 5))
        whole = allocation("new", canary_s=(26e-8, 6e-8, 6e-8, 6e-8, 6e-8))
        assert judged(with_case(whole, 8, None, *[1.008e-6] * 4)).result == "passed"
        assert judged(with_case(whole, 8, *[1.008e-6] * 5, wrong=1)).result == "wrong data"

    @pytest.mark.parametrize(("launches", "flips", "reason"), [
        (7, 2, None),  # five, and two that replaced the flipped ones
        (5, 2, None), (3, 1, reasons.LaunchesNeeded("new", 1, 3, 1)), (2, 1, reasons.LaunchesNeeded("new", 1, 2, 2)),
        (4, 2, reasons.LaunchesNeeded("new", 2, 4, 1)), (1, 1, reasons.AllocationStateChanged("new", 1, 1)),
        (9, 3, reasons.AllocationStateChanged("new", 3, 9)),
    ])  # fmt: skip
    def test_at_most_two_may_be_replaced_and_three_are_left(self, launches: int, flips: int, reason: Fact | None) -> None:
        canary_s = (6e-8,) * (launches - flips) + (26e-8,) * flips
        verdict = judged(scattered("new", (1.0,) * (launches - flips) + (4.0,) * flips, canary_s=canary_s))
        assert verdict.result == ("passed" if reason is None else "no verdict")
        assert reason is None or verdict.reasons[0] == reason

    def test_an_allocation_in_another_state_clears_confirms_and_explains_nothing(self) -> None:
        odd = {"canary_s": (26e-8,) * 5}
        for later in (allocation("c", **odd), replace(slow("c"), **odd)):
            verdict = judged(slow("a"), slow("b"), later)
            assert (verdict.result, {each.state for each in verdict.suspicions}) == ("no verdict", {"suspected"})
        assert {each.state for each in judged(slow("a"), slow("b"), allocation("c")).suspicions} == {"cleared"}
        slower = allocation("a", dict.fromkeys((64 << 20, 128 << 20, 256 << 20), 4.0))
        assert judged(slower).cause is not None
        verdict = judged(replace(slower, canary_s=(26e-8,) * 5))
        assert (verdict.cause, verdict.result) == (None, "no verdict")
        assert "passed" not in {each.state for each in verdict.groups}

    def test_what_flipped_in_the_baseline_does_not_count(self) -> None:
        odd = scattered("good-9", (9.0, 1.0, 9.0), canary_s=(26e-8, 6e-8, 26e-8))
        verdict = judged(*(slow(name) for name in "abc"), baseline=base(*BASE.allocations, odd))
        assert verdict.result == "regression"
        assert [(each.kind, each.limit) for each in verdict.suspicions] == [("cell", pytest.approx(1.02))]
        assert verdict.notes == (reasons.LaunchesLeftOut("good-9", 2, 3, "baseline"),)
        odd = [replace(each, canary_s=(26e-8,) * 3) for each in BASE.allocations[:3]]
        verdict = judged(allocation("new"), baseline=base(*odd, *BASE.allocations[3:], allocation("good-7", launches=3)))
        assert (verdict.allocations, verdict.thin, verdict.result) == (4, True, "passed")
        short = judged(allocation("new"), baseline=base(*odd, *BASE.allocations[3:]))
        assert short.reasons[0] == reasons.ShortBaseline("base", 3, 4, 3)


def scattered(name: str, by_launch: Sequence[float], **changes: Any) -> Allocation:
    whole = allocation(name, launches=len(by_launch), **changes)
    times = {case: zip(by_launch, each.medians_s, strict=True) for case, each in whole.cases.items()}
    return replace(whole, cases={case: CaseTimes(tuple(by * (time or 0) for by, time in both)) for case, both in times.items()})


def one_scattered(name: str, *by_launch: float) -> Allocation:
    return with_case(allocation(name), 8, *(1.008e-6 * by for by in by_launch))


SMALL_CASE = reasons.CaseNames(("allreduce 8 B nccl",))
UNSTABLE = one_scattered("new", 1.0, 1.3, 1.0, 1.3, 1.0)
UNSTABLE_AGAIN = [slow("a", 1.2, 8), replace(UNSTABLE, name="b"), allocation("c")]


class TestUnstable:
    @pytest.mark.parametrize(("candidate", "expected"), [
        ([UNSTABLE], (reasons.UnstableCases("new", SMALL_CASE),)),
        ([one_scattered("new", 1.0, 1.3, 1.0, 1.0, 1.0)], ()),  # one outlier of five launches
        ([one_scattered("new", 1.0, 1.3, 1.3, 1.3, 1.0)], (reasons.StillSuspected(1, 2),)),  # slower, so only a suspect
        (UNSTABLE_AGAIN, (reasons.UnstableCases("b", SMALL_CASE),)),  # which does not clear it
    ])  # fmt: skip
    def test_launches_far_apart_give_no_verdict_on_their_case(self, candidate: list[Allocation], expected: tuple[Fact, ...]) -> None:
        verdict = judged(*candidate)
        assert (verdict.result, verdict.reasons) == ("no verdict" if expected else "passed", expected)

    def test_an_unstable_case_is_no_verdict_for_its_group_and_hides_no_regression(self) -> None:
        assert [each.state for each in judged(UNSTABLE).groups] == ["no verdict", "passed"]
        assert [each.state for each in judged(*UNSTABLE_AGAIN).suspicions] == ["cleared"]
        unstable_too = (replace(slow(name), cases={**slow(name).cases, case(8): UNSTABLE.cases[case(8)]}) for name in "abc")
        assert judged(*unstable_too).result == "regression"
        shown = {case(8): ShownFigures(frozenset({"two_modes", "few_samples"}), None, None)}
        assert judged(replace(UNSTABLE, shown=shown)).reasons[0] == reasons.UnstableCases("new", SMALL_CASE, ("two_modes",))


def test_a_state_probe_that_is_off_to_either_side_is_another_state() -> None:
    one = allocation("new", canary_s=(6e-8, 7.1e-8, 7.3e-8, 5.1e-8, 4.9e-8))
    assert flipped(one, 6e-8) == [False, False, True, False, True]
    assert flipped(replace(one, canary_s=(None, 26e-8)), 6e-8) == [False, True]
    assert flipped(one, None) == [False] * 5
    assert typical_probe_s([one, allocation("b", canary_s=(None, 8e-8))]) == 6e-8


# Launches that lie too far apart: what counts as far, and how often chance alone does it.

SIZES = [8 << number for number in range(28)]  # 12 small, 6 mid and 10 large ones
CASES = [
    case_of(make_row(size, operation=operation, backend=backend))
    for operation in ("allreduce", "allgather", "reducescatter", "alltoall") for backend in ("nccl", "gloo", "mpi") for size in SIZES
]  # fmt: skip


def night(times: Figures, cases: Sequence[CaseKey]) -> Allocation:
    measured = {case: CaseTimes(tuple(map(float, each))) for case, each in zip(cases, 1e-3 * np.exp(times.T), strict=True)}
    return Allocation("night", "2026-11-20", len(times), 0, (None,) * len(times), {}, measured)


def found(good: Sequence[Figures], new: Figures, cases: Sequence[CaseKey]) -> list[bool]:
    allocations = [night(each, cases) for each in good]
    limits = learn(times_of(allocations, cases), scheme_of(cases))
    return list(map(bool, unstable(night(new, cases), cases, launch_limits(allocations, cases, limits))))


def column(*by_launch: float) -> Figures:
    return np.log(np.array(by_launch))[:, None]


CALM = [column(1.0, 1.01, 0.99)] * 4


@pytest.mark.parametrize(("launches", "expected"), [
    ((1.0, 1.0, 1.0, 1.0, 2.0), False),  # one of them may lie anywhere
    ((1.0, 1.0, 1.0, 1.3, 1.3), True), ((1.0, 1.0, 1.0, 1.09, 1.09), False),  # less than 10 %
    ((1.0, 1.3), False),  # of two nothing is known
    ((1.0, 1.15, 1.3), True), ((1.0,) * 8 + (1.3,) * 2, False),  # of ten two may
    ((1.0,) * 7 + (1.3,) * 3, True),
])  # fmt: skip
def test_launches_far_apart_are_unstable(launches: tuple[float, ...], expected: bool) -> None:
    assert found(CALM, column(*launches), CASES[:1]) == [expected]


def test_scatter_that_the_baseline_or_similar_cases_have_is_not_unstable() -> None:
    two_of_five = column(1.0, 1.0, 1.0, 1.2, 1.2)
    restless = [column(1.0, 1.0, 1.2), column(1.2, 1.0, 1.0), column(1.0, 1.01, 1.0), column(1.0, 1.2, 1.0)]
    assert found(restless, two_of_five, CASES[:1]) == [False]
    assert found(restless, column(1.0, 1.0, 1.0, 1.5, 1.5), CASES[:1]) == [True]
    # A case without scatter among noisy ones of the same backend and class may have a second mode that was not sampled.
    by_case = [CALM, *[[column(1.0, 1.0, 1.2), column(1.2, 1.0, 1.0)] * 2] * 2]
    good = [np.hstack([each[number] for each in by_case]) for number in range(4)]
    new = np.hstack([two_of_five, *[column(1.0, 1.0, 1.0, 1.0, 1.0)] * 2])
    assert found(good, new, CASES[:3]) == [False, False, False]
    others = [*CASES[:1], *CASES[28:30]]  # of another backend
    assert found(good, new, others) == [True, False, False]
    assert found([column(1.0), column(1.2)] * 2, two_of_five, CASES[:1]) == [False]


def rate(allocations: int, trials: int, seed: int = 7, **noise: float) -> float:
    """The share of gates of 336 cases, where nothing changed, in which any case is unstable."""
    from collbench.plugins.selftest.self_test import Cluster, Noise

    random, alarms = np.random.default_rng(seed), 0
    for _ in range(trials):
        cluster = Cluster.draw(Noise(**noise), scheme_of(CASES), random)
        good, new = cluster.launches(allocations, 3, random), cluster.launches(1, 5, random)[0]
        alarms += any(found(list(good), new, CASES))
    return alarms / trials


@needs_plugin("selftest")
def test_chance_alone_seldom_makes_a_case_unstable() -> None:
    assert rate(6, 12) <= 1 / 12


@pytest.mark.long
@needs_plugin("selftest")
@pytest.mark.parametrize(("allocations", "most"), [(4, 0.07), (6, 0.03), (12, 0.02)])
def test_so_often_does_chance_make_a_case_unstable(allocations: int, most: float) -> None:
    assert rate(allocations, 400) <= most
    assert rate(allocations, 100, bimodal=0.3, slow_share=0.3, slow_by=0.2) <= most
