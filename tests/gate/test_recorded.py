"""Clusters drawn from recorded allocations: they have the same noise and correlations, and similar results in the self-test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collbench.analysis.launches import case_of
from collbench.errors import UsageError
from collbench.gate.allocation import Allocation, Case, CaseTimes
from collbench.gate.baseline import Baseline, Figures, scheme_of
from collbench.gate.self_test import Cluster, Noise, recorded, self_test, setting_of, simulated
from tests.results.rows import make_row

SILENT = Noise((0.0,) * 3, 1, (0.0,) * 3, (0.0,) * 3, 0, 0, 0, 0, 0, 0, 0, 0)
FEW = [case_of(make_row(64 << 20 << power)) for power in range(4)]
MANY = [
    case_of(make_row(8 << power, operation=operation, backend=backend))
    for operation in ("allreduce", "allgather", "reducescatter", "alltoall") for backend in ("nccl", "gloo", "mpi") for power in range(28)
]  # fmt: skip


def baseline(times: Figures, cases: list[Case]) -> Baseline:
    """[allocations × launches × cases] ln of seconds; NaN is not measured."""
    found = [
        Allocation(
            f"good-{number}", "2026-11-12", len(each), 0, (None,) * len(each), {},
            {case: CaseTimes(tuple(None if np.isnan(value) else float(np.exp(value)) for value in column))
             for case, column in zip(cases, each.T, strict=True)},
        )
        for number, each in enumerate(times)
    ]  # fmt: skip
    return Baseline(Path("base"), found)


def of_noise(noise: Noise, allocations: int, seed: int, cases: list[Case] = MANY) -> Baseline:
    random = np.random.default_rng(seed)
    cluster = Cluster.draw(noise, scheme_of(cases), random)
    between = random.normal(0, 1, (allocations, len(cases))) * cluster.allocation + random.normal(
        0, noise.allocation_common, (allocations, 1)
    )
    return baseline(cluster.launches(allocations, 3, random) + between[:, None, :], cases)


def test_allocations_without_noise_stay_without_noise() -> None:
    found = recorded(baseline(np.full((4, 3, 4), -9.0), FEW))
    assert not found.allocations(3, 5, np.random.default_rng(0)).any()
    assert not found.pairs(2, 5, np.random.default_rng(0)).any()
    assert (found.launches, found.left_out) == (3, 0)


def test_it_scatters_as_the_recorded_ones_did_in_cases_groups_and_all_together() -> None:
    """The spread of cases of each class, of groups and of all, within the accuracy of 40 recorded allocations."""
    noise, scheme = Noise(bimodal=0.0, spikes=0.0), scheme_of(MANY)
    drawn = recorded(of_noise(noise, 40, seed=1)).allocations(400, 3, np.random.default_rng(2))
    true = Cluster.draw(noise, scheme, np.random.default_rng(3)).allocations(400, 3, np.random.default_rng(4))
    classes = scheme.classes[scheme.of]
    for each in range(3):
        spreads = [float(np.median(times[:, classes == each].std(axis=0))) for times in (drawn, true)]
        assert spreads[0] == pytest.approx(spreads[1], rel=0.15)
        groups = [float(scheme.medians(times)[:, scheme.classes == each].std(axis=0).mean()) for times in (drawn, true)]
        assert groups[0] == pytest.approx(groups[1], rel=0.25)
    whole = [float(np.median(times, axis=1).std()) for times in (drawn, true)]
    assert whole[0] == pytest.approx(whole[1], rel=0.35)


def test_common_noise_of_launches_stays_common_in_pairs() -> None:
    """Every launch of an allocation is slower or faster by 1 % in all cases: pairs differ in all cases alike."""
    found = recorded(baseline(np.tile(np.array([-0.01, 0.0, 0.01])[None, :, None], (4, 1, 4)), FEW))
    pairs = found.pairs(2, 5, np.random.default_rng(0))
    assert pairs.std() > 0.005
    assert pairs == pytest.approx(np.repeat(pairs[..., :1], 4, axis=-1))


def test_pairs_have_no_differences_between_allocations() -> None:
    times = np.tile(np.array([0.0, 0.1, 0.2, 0.3])[:, None, None], (1, 3, 4))
    found = recorded(baseline(times, FEW))
    assert found.pairs(2, 5, np.random.default_rng(0)) == pytest.approx(np.zeros((2, 5, 4)), abs=1e-12)
    drawn = found.allocations(2000, 3, np.random.default_rng(0))
    assert drawn.std(axis=0) == pytest.approx([0.129] * 4, rel=0.1)  # the standard deviation of 0, 0.1, 0.2, 0.3 is 0.129
    assert drawn == pytest.approx(np.repeat(drawn[:, :1], 4, axis=1))


def test_cases_are_missing_as_often_as_they_were_and_those_in_too_few_are_left_out() -> None:
    times = np.zeros((8, 3, 4))
    times[:4, :, 1] = np.nan
    times[:5, :, 2] = np.nan
    found = recorded(baseline(times, FEW))
    assert (found.left_out, len(found.scheme.of)) == (1, 3)
    lacking = np.isnan(found.allocations(400, 3, np.random.default_rng(0))).mean(axis=0)
    assert lacking == pytest.approx([0, 0.5, 0], abs=0.08)


def test_a_launch_that_lacks_a_case_leaves_it_to_the_others() -> None:
    times = np.zeros((4, 3, 4))
    times[:, 0, 0] = np.nan
    drawn = recorded(baseline(times, FEW)).allocations(200, 5, np.random.default_rng(0))
    assert np.isfinite(drawn[:, 0]).mean() > 0.95


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((3, 3), "base has 3 "),
        ((6, 1), "base has 0 "),
    ],
)
def test_too_few_allocations_are_rejected(shape: tuple[int, int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        recorded(baseline(np.zeros((*shape, 4)), FEW))


def test_a_baseline_without_a_case_in_enough_allocations_is_rejected() -> None:
    times = np.full((4, 3, 4), np.nan)
    for number in range(4):
        times[number, :, number] = 0.0
    with pytest.raises(UsageError, match=r"base .* 4 allocations"):
        recorded(baseline(times, FEW))


def test_the_self_test_of_what_never_scatters_finds_everything_and_nothing_else() -> None:
    found = recorded(of_noise(SILENT, 4, 0))
    for paired in (False, True):
        setting = setting_of(found, paired=paired)
        assert (setting.allocations, setting.launches) == (4, 3)
        assert [each.share for each in self_test(setting, 2)] == [0, 1, 1, 1, 1, 1, 1, 0]


@pytest.mark.long
@pytest.mark.parametrize("paired", [False, True])
def test_the_table_of_recorded_allocations_is_near_that_of_the_cluster_they_were_recorded_on(paired: bool) -> None:
    """Six allocations of three launches show little of the noise of groups, and overstate false alarms."""
    found = recorded(of_noise(Noise(), 6, seed=1))
    tables = [
        list(self_test(setting, 500)) for setting in (setting_of(found, paired=paired), simulated(Noise(), found.scheme, paired=paired))
    ]
    nothing, *others = ((here.done, here.share, there.share) for here, there in zip(*tables, strict=True))
    assert nothing[1] <= nothing[2] + 0.035
    for done, here, there in others:
        assert here == pytest.approx(there, abs=0.45 if done == "one group of large messages slower by 2 %" else 0.15), done
