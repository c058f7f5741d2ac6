"""The rules of `collbench check`: what proves that a row is fast enough or slow, and which cause decides."""

from typing import Any

import pytest
from msgspec.structs import replace

from collbench.analysis.health import NOISE, OF_LINKS, CheckOutcome, CheckVerdict, Reach, RunFailedEarly, SeriesCheck, share_of, verdict_of
from collbench.machine.doctor.finding import Finding
from collbench.machine.peak.ceiling import Ceiling, no_ceiling
from collbench.reason import as_json, decode
from collbench.results.row import Row, Times
from tests.results.rows import COPY, make_row, make_times, not_measured

MIB = 1 << 20
OK, SLOW, INCONCLUSIVE, BROKEN = CheckOutcome.OK, CheckOutcome.SLOW, CheckOutcome.INCONCLUSIVE, CheckOutcome.BROKEN
SLOW_LINK = Ceiling("network", 1.25e9, "NIC 1×10 Gb/s", "ring")


def at(percent: float, size_bytes: int = 64 * MIB, spread: float = 0.01, **changes: Any) -> Row:
    """A row at this percentage of the expected bandwidth, with an interval of ± `spread`."""
    row = make_row(size_bytes)
    rate = row.ceiling.bytes_per_s * percent / 100
    time = size_bytes * 1.5 / rate
    times = Times(time, time * (1 - spread), time * (1 + spread), time, time, time, time)
    return replace(row, time_s=times, busbw_bytes_per_s=rate, percent_of_ceiling=percent, **changes)


def reaches(verdict: CheckVerdict) -> dict[tuple[str, str], Reach]:
    return {(each.operation, each.backend): each.reach for each in verdict.evidence if isinstance(each, SeriesCheck)}


def kinds(verdict: CheckVerdict) -> list[str]:
    return [cause.code for cause in verdict.causes]


@pytest.mark.parametrize(("percent", "spread", "reach"), [
    (84, 0.01, Reach.REACHED), (51, 0.01, Reach.REACHED), (50, 0.01, Reach.NOISY), (49, 0.01, Reach.MISSED),
    (10, 0.5, Reach.MISSED), (40, 0.5, Reach.NOISY), (140, 0.5, Reach.REACHED),
])  # fmt: skip
def test_the_whole_interval_decides(percent: float, spread: float, reach: Reach) -> None:
    assert list(reaches(verdict_of([at(percent, spread=spread)], [])).values()) == [reach]


@pytest.mark.parametrize("changes", [
    pytest.param({"n": 5}, id="five samples"),
    pytest.param({"n": 1, "time_s": replace(make_times(1e-3), ci_low=None, ci_high=None)}, id="one sample"),
    pytest.param({"percent_of_ceiling": 378.0, "ceiling": COPY}, id="far above a measured reference"),
    pytest.param({"flags": ("oversubscribed",)}, id="unreliable"), pytest.param({"flags": ("above_bound",)}, id="another path"),
])  # fmt: skip
def test_what_proves_nothing_is_neither_ok_nor_slow_and_a_noisy_row_is_never_slow(changes: dict[str, Any]) -> None:
    rows = [replace(at(percent), **changes) for percent in (10, 95)]
    for row in [*rows, *(at(10, flags=(flag,)) for flag in sorted(NOISE))]:
        verdict = verdict_of([row], [])
        assert (verdict.outcome, kinds(verdict)) == (INCONCLUSIVE, ["hidden_by_noise"])


@pytest.mark.parametrize("flag", ["target_missed", "warmup_unsettled", "few_samples", "slowed"])
def test_a_wide_interval_is_compared_as_it_is(flag: str) -> None:
    assert verdict_of([at(10, flags=(flag,))], []).outcome is SLOW


def test_a_disturbed_or_varied_reference_gives_no_percentage_or_is_compared_with_its_fastest_round() -> None:
    verdict = verdict_of([at(378, ceiling=COPY)], [])
    (series,) = (each for each in verdict.evidence if isinstance(each, SeriesCheck))
    assert (series.reach, series.percent, series.expected) == (Reach.NOISY, None, None)
    row = replace(at(50, ceiling=VARIED), percent_of_ceiling=None, busbw_bytes_per_s=30e9)
    faster = replace(VARIED, bytes_per_s=80e9, high_bytes_per_s=90e9)
    other = replace(at(50, 16 * MIB, ceiling=faster), percent_of_ceiling=None, busbw_bytes_per_s=30e9)
    assert verdict_of([row], []).outcome is OK
    assert verdict_of([row, other], []).outcome is INCONCLUSIVE


VARIED = Ceiling("measured", 50e9, "direct copy", low_bytes_per_s=30e9, high_bytes_per_s=60e9, disturbed=True)


@pytest.mark.parametrize(("busbw", "outcome"), [
    (40e9, OK), (23e9, INCONCLUSIVE),  # 38 % of the fastest round
    (80e9, INCONCLUSIVE), (2e9, INCONCLUSIVE),  # 133 % of it; a disturbed reference never proves that something is slow
])  # fmt: skip
def test_a_reference_whose_rounds_disagree_can_only_prove_that_the_share_is_reached(busbw: float, outcome: CheckOutcome) -> None:
    row = replace(at(50, ceiling=VARIED), percent_of_ceiling=None, busbw_bytes_per_s=busbw)
    verdict = verdict_of([row], [])
    assert verdict.outcome is outcome
    if outcome is OK:
        assert "allreduce reaches 67 % or more of the expected bandwidth" in verdict.render()
        assert "40.0 of at most 60.0 GB/s (67 % or more) at 64 MiB" in verdict.evidence[0].render()


def outcome_of(*rows: Row, **changes: Any) -> CheckOutcome:
    return verdict_of(list(rows), [], **changes).outcome


def test_the_largest_size_that_decides_counts_from_six_samples_on() -> None:
    assert outcome_of(at(95, n=6)) is OK
    assert outcome_of(at(84, 16 * MIB), at(10)) is SLOW
    assert outcome_of(at(84, 16 * MIB), at(10, flags=("cpu_shared",))) is OK
    assert outcome_of(at(1, 8), at(84)) is OK
    assert outcome_of(at(1, 8)) is INCONCLUSIVE


def test_a_slow_row_proves_nothing_next_to_a_noisy_one_or_in_a_cache() -> None:
    assert outcome_of(at(10, 16 * MIB), at(30, flags=("cpu_shared",))) is INCONCLUSIVE
    assert outcome_of(at(10, 16 * MIB), at(10)) is SLOW
    assert outcome_of(at(10, 4 * MIB, ceiling=Ceiling("measured", 50e9, "memory copy"))) is INCONCLUSIVE
    assert outcome_of(at(10, 4 * MIB)) is SLOW


@pytest.mark.parametrize(("gloo", "outcome"), [
    (at(84, backend="gloo"), OK), (at(10, backend="gloo"), SLOW), (at(10, backend="gloo", flags=("cpu_shared",)), INCONCLUSIVE),
    (at(84, backend="gloo", wrong=3), BROKEN),
])  # fmt: skip
def test_the_worst_requested_backend_decides(gloo: Row, outcome: CheckOutcome) -> None:
    verdict = verdict_of([at(84), replace(gloo, ceiling=SLOW_LINK)], [], requested=frozenset({"nccl", "gloo"}))
    assert verdict.outcome is outcome
    assert verdict.backends == {"nccl": OK, "gloo": outcome}
    assert len(verdict.backend_lines()) == 2


def test_noise_of_a_backend_that_nobody_named_is_shown_and_does_not_decide() -> None:
    noisy = replace(at(10, backend="gloo", flags=("cpu_shared",)), ceiling=SLOW_LINK)
    verdict = verdict_of([at(84), noisy], [])
    assert (verdict.outcome, verdict.backends) == (OK, {"nccl": OK, "gloo": INCONCLUSIVE})
    assert verdict.render().startswith("OK: ") and verdict.render().endswith("; gloo INCONCLUSIVE")
    assert outcome_of(noisy) is INCONCLUSIVE  # nothing is proven
    assert outcome_of(at(10), noisy) is SLOW


def inside_host(percent: float, mib: int, rate: float) -> Row:
    """A row of all-reduce over MPI inside a host, with this reference in bytes/s."""
    reference = Ceiling("measured", rate, "shared memory and sum", low_bytes_per_s=rate, high_bytes_per_s=rate)
    return at(percent, mib * MIB, backend="mpi", ceiling=reference)


@pytest.mark.parametrize(("rows", "outcome"), [
    ([(24, 16, 5e9), (24, 64, 5e9)], SLOW), ([(24, 16, 5e9), (24, 64, 8e9)], INCONCLUSIVE),  # the references are of two machine states
    ([(90, 16, 5e9), (24, 64, 5e9)], INCONCLUSIVE), ([(24, 16, 5e9), (90, 64, 5e9)], OK),  # the largest size counts
])  # fmt: skip
def test_a_host_is_slow_at_all_large_sizes_or_not_at_all(rows: list[tuple[float, int, float]], outcome: CheckOutcome) -> None:
    assert outcome_of(*(inside_host(*row) for row in rows)) is outcome


def test_each_operation_and_backend_must_reach_it_but_tcp_of_one_process_says_nothing_about_a_fast_link() -> None:
    slow_gloo = at(10, backend="gloo")
    assert outcome_of(at(84), slow_gloo) is OK
    assert outcome_of(slow_gloo) is INCONCLUSIVE
    assert outcome_of(at(84), slow_gloo, requested=frozenset({"nccl", "gloo"})) is INCONCLUSIVE
    assert outcome_of(at(84), at(10, backend="mpi")) is SLOW
    verdict = verdict_of([at(84), at(10, operation="p2p_bandwidth", redop=None)], [])
    assert (verdict.outcome, kinds(verdict)) == (SLOW, ["misses_expected"])


MEASURED = Ceiling("measured", 50e9, "memory copy", low_bytes_per_s=40e9, high_bytes_per_s=60e9)
SHARED = Ceiling("measured", 50e9, "shared memory and sum", low_bytes_per_s=48e9, high_bytes_per_s=52e9)
COPY_AND_SUM = replace(SHARED, limited_by="memory copy and sum")  # of earlier versions: a healthy machine reaches a third


@pytest.mark.parametrize(("percent", "ceiling", "outcome"), [
    (30, MEASURED, OK), (22, MEASURED, INCONCLUSIVE), (10, MEASURED, SLOW), (60, SHARED, OK), (41, SHARED, INCONCLUSIVE),
    (30, SHARED, SLOW), (60, COPY_AND_SUM, OK), (41, COPY_AND_SUM, OK), (30, COPY_AND_SUM, OK),
])  # fmt: skip
def test_a_rate_measured_inside_the_host_needs_a_share_of_its_own_and_counts_with_its_interval(percent, ceiling, outcome):
    assert share_of(at(30)) == OF_LINKS
    assert outcome_of(at(percent, ceiling=ceiling)) is outcome


def test_a_librarys_slow_reduce_scatter_accuses_no_machine() -> None:
    verdict = verdict_of([at(25, operation="reducescatter", ceiling=replace(SHARED, limited_by="direct copy and sum"))], [])
    assert verdict.outcome is INCONCLUSIVE and "reduce-scatter" in verdict.evidence[0].render()
    assert outcome_of(at(25, operation="reducescatter")) is SLOW  # over a link


def test_without_an_expected_bandwidth_nothing_is_fast_or_slow_and_a_verdict_can_be_sent() -> None:
    unknown = replace(at(50), ceiling=no_ceiling("interfaces that report no speed"), percent_of_ceiling=None)
    assert kinds(verdict_of([unknown], [])) == ["nothing_to_compare_with"]
    disturbed = Ceiling("measured", 50e9, "memory copy", disturbed=True)
    assert kinds(verdict_of([replace(unknown, ceiling=disturbed)], [])) == ["hidden_by_noise"]
    verdict = verdict_of([at(84), at(10, operation="p2p_bandwidth")], [])
    assert decode(as_json(verdict), CheckVerdict) == verdict


def test_wrong_data_and_a_failed_run_come_first_and_severe_findings_are_slow() -> None:
    verdict = verdict_of([at(84), at(84, backend="mpi", wrong=3, wrong_detail="rank 1: 3 wrong elements")], [])
    assert (verdict.outcome, kinds(verdict)[0], verdict.outcome.exit_code) == (BROKEN, "wrong_data_received", 4)
    verdict = verdict_of([at(10)], [], RunFailedEarly(4, "rank 1 does not answer"))
    assert (verdict.outcome, kinds(verdict)) == (BROKEN, ["run_failed_early", "misses_expected"])
    severe = Finding("CB2101", "severe", "node1", "the link is trained lower", "", "")
    assert verdict_of([at(84)], [severe]).outcome is SLOW
    assert verdict_of([at(84)], [replace(severe, severity="warning")]).outcome is OK


def test_what_was_not_measured_or_not_in_time_is_no_ok() -> None:
    for rows in ([], [not_measured("no network")]):
        verdict = verdict_of(rows, [], reason="no backend")
        assert (verdict.outcome, kinds(verdict), verdict.outcome.exit_code) == (INCONCLUSIVE, ["nothing_measured"], 3)
    verdict = verdict_of([at(84)], [], omitted=[("p2p_bandwidth", "nccl")])
    assert (verdict.outcome, kinds(verdict)) == (INCONCLUSIVE, ["not_measured_in_time"])
    assert outcome_of(at(84), omitted=[("allreduce", "nccl")]) is OK  # at another size
    assert outcome_of(at(10), omitted=[("p2p_bandwidth", "nccl")]) is SLOW
    verdict = verdict_of([at(84)], [], omitted=[("allreduce", "mpi")], requested=frozenset({"nccl", "mpi"}))
    assert (verdict.outcome, verdict.backends) == (INCONCLUSIVE, {"nccl": OK, "mpi": INCONCLUSIVE})
    assert verdict_of([at(84)], [], omitted=[("allreduce", "mpi")]).render().endswith("; mpi INCONCLUSIVE")
