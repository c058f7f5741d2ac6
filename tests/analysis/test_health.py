"""The rules of `collbench check`: what proves that a row is fast enough or slow, and which cause decides."""

from __future__ import annotations

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
        assert (verdict.outcome, kinds(verdict)) == (CheckOutcome.INCONCLUSIVE, ["hidden_by_noise"])


@pytest.mark.parametrize("flag", ["target_missed", "warmup_unsettled", "few_samples", "slowed"])
def test_a_wide_interval_is_compared_as_it_is(flag: str) -> None:
    assert verdict_of([at(10, flags=(flag,))], []).outcome is CheckOutcome.SLOW


def test_a_disturbed_or_varied_reference_gives_no_percentage_or_is_compared_with_its_fastest_round() -> None:
    verdict = verdict_of([at(378, ceiling=COPY)], [])
    (series,) = (each for each in verdict.evidence if isinstance(each, SeriesCheck))
    assert (series.reach, series.percent, series.expected) == (Reach.NOISY, None, None)
    row = replace(at(50, ceiling=VARIED), percent_of_ceiling=None, busbw_bytes_per_s=30e9)
    faster = replace(VARIED, bytes_per_s=80e9, high_bytes_per_s=90e9)
    other = replace(at(50, 16 * MIB, ceiling=faster), percent_of_ceiling=None, busbw_bytes_per_s=30e9)
    assert verdict_of([row], []).outcome is CheckOutcome.OK
    assert verdict_of([row, other], []).outcome is CheckOutcome.INCONCLUSIVE


VARIED = Ceiling("measured", 50e9, "direct copy", low_bytes_per_s=30e9, high_bytes_per_s=60e9, disturbed=True)


@pytest.mark.parametrize(("busbw", "outcome"), [
    (40e9, CheckOutcome.OK), (23e9, CheckOutcome.INCONCLUSIVE),  # 38 % of the fastest round
    (2e9, CheckOutcome.INCONCLUSIVE),  # a disturbed reference never proves that something is slow
    (80e9, CheckOutcome.INCONCLUSIVE),  # 133 % of the fastest round
])  # fmt: skip
def test_a_reference_whose_rounds_disagree_can_only_prove_that_the_share_is_reached(busbw: float, outcome: CheckOutcome) -> None:
    row = replace(at(50, ceiling=VARIED), percent_of_ceiling=None, busbw_bytes_per_s=busbw)
    verdict = verdict_of([row], [])
    assert verdict.outcome is outcome
    if outcome is CheckOutcome.OK:
        assert "allreduce reaches 67 % or more of the expected bandwidth" in verdict.render()
        assert "40.0 of at most 60.0 GB/s (67 % or more) at 64 MiB" in verdict.evidence[0].render()


def test_the_largest_size_that_decides_counts_from_six_samples_on() -> None:
    assert verdict_of([at(95, n=6)], []).outcome is CheckOutcome.OK
    assert verdict_of([at(84, 16 * MIB), at(10)], []).outcome is CheckOutcome.SLOW
    assert verdict_of([at(84, 16 * MIB), at(10, flags=("cpu_shared",))], []).outcome is CheckOutcome.OK
    assert verdict_of([at(1, 8), at(84)], []).outcome is CheckOutcome.OK
    assert verdict_of([at(1, 8)], []).outcome is CheckOutcome.INCONCLUSIVE


def test_a_slow_row_proves_nothing_next_to_a_noisy_one_or_in_a_cache() -> None:
    noisy = at(30, flags=("cpu_shared",))
    assert verdict_of([at(10, 16 * MIB), noisy], []).outcome is CheckOutcome.INCONCLUSIVE
    assert verdict_of([at(10, 16 * MIB), at(10)], []).outcome is CheckOutcome.SLOW
    measured = Ceiling("measured", 50e9, "memory copy")
    assert verdict_of([at(10, 4 * MIB, ceiling=measured)], []).outcome is CheckOutcome.INCONCLUSIVE
    assert verdict_of([at(10, 4 * MIB)], []).outcome is CheckOutcome.SLOW


@pytest.mark.parametrize(("gloo", "outcome"), [
    (at(84, backend="gloo"), CheckOutcome.OK), (at(10, backend="gloo"), CheckOutcome.SLOW),
    (at(10, backend="gloo", flags=("cpu_shared",)), CheckOutcome.INCONCLUSIVE), (at(84, backend="gloo", wrong=3), CheckOutcome.BROKEN),
])  # fmt: skip
def test_the_worst_requested_backend_decides(gloo: Row, outcome: CheckOutcome) -> None:
    slow_link = Ceiling("network", 1.25e9, "NIC 1×10 Gb/s", "ring")
    verdict = verdict_of([at(84), replace(gloo, ceiling=slow_link)], [], requested=frozenset({"nccl", "gloo"}))
    assert verdict.outcome is outcome
    assert verdict.backends == {"nccl": CheckOutcome.OK, "gloo": outcome}
    assert len(verdict.backend_lines()) == 2


def test_noise_of_a_backend_that_nobody_named_is_shown_and_does_not_decide() -> None:
    noisy = replace(at(10, backend="gloo", flags=("cpu_shared",)), ceiling=Ceiling("network", 1.25e9, "NIC 1×10 Gb/s", "ring"))
    verdict = verdict_of([at(84), noisy], [])
    assert (verdict.outcome, verdict.backends) == (CheckOutcome.OK, {"nccl": CheckOutcome.OK, "gloo": CheckOutcome.INCONCLUSIVE})
    assert verdict.render().startswith("OK: ") and verdict.render().endswith("; gloo INCONCLUSIVE")
    assert verdict_of([noisy], []).outcome is CheckOutcome.INCONCLUSIVE  # nothing is proven
    assert verdict_of([at(10), noisy], []).outcome is CheckOutcome.SLOW


def inside_host(*rows: tuple[float, int, float]) -> list[Row]:
    """Rows of all-reduce over MPI inside a host: (percentage, MiB, reference in bytes/s)."""
    shared = Ceiling("measured", 0, "shared memory and sum")
    references = [replace(shared, bytes_per_s=rate, low_bytes_per_s=rate, high_bytes_per_s=rate) for _, _, rate in rows]
    return [at(row[0], row[1] * MIB, backend="mpi", ceiling=reference) for row, reference in zip(rows, references, strict=True)]


@pytest.mark.parametrize(("rows", "outcome"), [
    ([(24, 16, 5e9), (24, 64, 5e9)], CheckOutcome.SLOW),
    ([(24, 16, 5e9), (24, 64, 8e9)], CheckOutcome.INCONCLUSIVE),  # the references are of two machine states
    ([(90, 16, 5e9), (24, 64, 5e9)], CheckOutcome.INCONCLUSIVE),
    ([(24, 16, 5e9), (90, 64, 5e9)], CheckOutcome.OK),  # the largest size counts
])  # fmt: skip
def test_a_host_is_slow_at_all_large_sizes_or_not_at_all(rows: list[tuple[float, int, float]], outcome: CheckOutcome) -> None:
    assert verdict_of(inside_host(*rows), []).outcome is outcome


def test_each_operation_and_backend_must_reach_it_but_tcp_of_one_process_says_nothing_about_a_fast_link() -> None:
    slow_gloo = at(10, backend="gloo")
    assert verdict_of([at(84), slow_gloo], []).outcome is CheckOutcome.OK
    assert verdict_of([slow_gloo], []).outcome is CheckOutcome.INCONCLUSIVE
    assert verdict_of([at(84), slow_gloo], [], requested=frozenset({"nccl", "gloo"})).outcome is CheckOutcome.INCONCLUSIVE
    assert verdict_of([at(84), at(10, backend="mpi")], []).outcome is CheckOutcome.SLOW
    verdict = verdict_of([at(84), at(10, operation="p2p_bandwidth", redop=None)], [])
    assert (verdict.outcome, kinds(verdict)) == (CheckOutcome.SLOW, ["misses_expected"])


def test_a_rate_measured_inside_the_host_needs_a_smaller_share_and_counts_with_its_interval() -> None:
    measured = Ceiling("measured", 50e9, "memory copy", low_bytes_per_s=40e9, high_bytes_per_s=60e9)
    assert share_of(at(30)) == OF_LINKS
    assert verdict_of([at(30, ceiling=measured)], []).outcome is CheckOutcome.OK
    assert verdict_of([at(22, ceiling=measured)], []).outcome is CheckOutcome.INCONCLUSIVE
    assert verdict_of([at(10, ceiling=measured)], []).outcome is CheckOutcome.SLOW


@pytest.mark.parametrize(("percent", "outcome"), [(60, CheckOutcome.OK), (41, CheckOutcome.INCONCLUSIVE), (30, CheckOutcome.SLOW)])
def test_a_path_inside_the_host_needs_more_than_memory_copy_did(percent: float, outcome: CheckOutcome) -> None:
    """Earlier versions compared with memory copy, of which a healthy machine reaches a third."""
    shared = Ceiling("measured", 50e9, "shared memory and sum", low_bytes_per_s=48e9, high_bytes_per_s=52e9)
    assert verdict_of([at(percent, ceiling=shared)], []).outcome is outcome
    assert verdict_of([at(percent, ceiling=replace(shared, limited_by="memory copy and sum"))], []).outcome is CheckOutcome.OK


def test_a_librarys_slow_reduce_scatter_accuses_no_machine() -> None:
    shared = Ceiling("measured", 50e9, "direct copy and sum", low_bytes_per_s=48e9, high_bytes_per_s=52e9)
    verdict = verdict_of([at(25, operation="reducescatter", ceiling=shared)], [])
    assert verdict.outcome is CheckOutcome.INCONCLUSIVE
    assert "reduce-scatter" in verdict.evidence[0].render()
    assert verdict_of([at(25, operation="reducescatter")], []).outcome is CheckOutcome.SLOW  # over a link


def test_without_an_expected_bandwidth_nothing_is_fast_or_slow_and_a_verdict_can_be_sent() -> None:
    unknown = replace(at(50), ceiling=no_ceiling("interfaces that report no speed"), percent_of_ceiling=None)
    assert kinds(verdict_of([unknown], [])) == ["nothing_to_compare_with"]
    disturbed = Ceiling("measured", 50e9, "memory copy", disturbed=True)
    assert kinds(verdict_of([replace(unknown, ceiling=disturbed)], [])) == ["hidden_by_noise"]
    verdict = verdict_of([at(84), at(10, operation="p2p_bandwidth")], [])
    assert decode(as_json(verdict), CheckVerdict) == verdict


def test_wrong_data_and_a_failed_run_come_first_and_severe_findings_are_slow() -> None:
    verdict = verdict_of([at(84), at(84, backend="mpi", wrong=3, wrong_detail="rank 1: 3 wrong elements")], [])
    assert (verdict.outcome, kinds(verdict)[0], verdict.outcome.exit_code) == (CheckOutcome.BROKEN, "wrong_data_received", 4)
    verdict = verdict_of([at(10)], [], RunFailedEarly(4, "rank 1 does not answer"))
    assert (verdict.outcome, kinds(verdict)) == (CheckOutcome.BROKEN, ["run_failed_early", "misses_expected"])
    severe = Finding("CB2101", "severe", "node1", "the link is trained lower", "", "")
    assert verdict_of([at(84)], [severe]).outcome is CheckOutcome.SLOW
    assert verdict_of([at(84)], [replace(severe, severity="warning")]).outcome is CheckOutcome.OK


@pytest.mark.parametrize("rows", [[], [not_measured("no network")]])
def test_nothing_measured_is_inconclusive(rows: list[Row]) -> None:
    verdict = verdict_of(rows, [], reason="no backend")
    assert (verdict.outcome, kinds(verdict), verdict.outcome.exit_code) == (CheckOutcome.INCONCLUSIVE, ["nothing_measured"], 3)


def test_what_was_not_measured_in_time_is_no_ok() -> None:
    verdict = verdict_of([at(84)], [], omitted=[("p2p_bandwidth", "nccl")])
    assert (verdict.outcome, kinds(verdict)) == (CheckOutcome.INCONCLUSIVE, ["not_measured_in_time"])
    assert verdict_of([at(84)], [], omitted=[("allreduce", "nccl")]).outcome is CheckOutcome.OK  # at another size
    assert verdict_of([at(10)], [], omitted=[("p2p_bandwidth", "nccl")]).outcome is CheckOutcome.SLOW
    verdict = verdict_of([at(84)], [], omitted=[("allreduce", "mpi")], requested=frozenset({"nccl", "mpi"}))
    assert verdict.outcome is CheckOutcome.INCONCLUSIVE
    assert verdict_of([at(84)], [], omitted=[("allreduce", "mpi")]).render().endswith("; mpi INCONCLUSIVE")
    assert verdict.backends == {"nccl": CheckOutcome.OK, "mpi": CheckOutcome.INCONCLUSIVE}
