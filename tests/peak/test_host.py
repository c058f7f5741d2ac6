"""Ceilings inside a host: references measured before, set against each operation by its model."""

import pytest

from collbench.machine.peak.ceiling import (
    DIRECT_COPY,
    LOOPBACK_TCP,
    SHARED_MEMORY,
    HostPart,
    HostWork,
    Rate,
    agreed,
    ceiling_from_rate,
    host_ceiling,
    no_ceiling,
    recipes,
    settled,
)


def exact(value):
    return Rate(value, value, value)


# A machine with 2 cores, 64 MiB, float32: what mpi4py over MPICH 5.0.2 reached there, with the shares of both.
MEASURED = {
    HostPart.COPY: 14.08e9, HostPart.SUM: 9.96e9, HostPart.SHARED_ONE_WAY: 2.15e9, HostPart.SHARED: 1.81e9, HostPart.SHARED_SUM: 1.73e9,
    HostPart.DIRECT_ONE_WAY: 11.58e9, HostPart.DIRECT: 10.73e9,
}  # fmt: skip
RATES = {(part, 64 << 20): exact(rate) for part, rate in MEASURED.items()}


@pytest.mark.parametrize(("path", "work", "reached", "percent", "by"), [
    (SHARED_MEMORY, HostWork("allreduce", 2, 1.0), 1.23e9, 70, "shared memory and sum"),
    (SHARED_MEMORY, HostWork("copy", 2, 1.0, one_way=True), 2.02e9, 94, "shared memory"),  # broadcast
    (SHARED_MEMORY, HostWork("reduce", 2, 1.0, one_way=True), 1.50e9, 78, "shared memory and sum"),
    (DIRECT_COPY, HostWork("copy", 2, 0.5, own=0.5), 6.11e9, 100, "direct copy"),  # allgather
    (DIRECT_COPY, HostWork("copy", 2, 1.0, one_way=True), 13.04e9, 113, "direct copy"),  # one way between two ranks
])  # fmt: skip
def test_a_healthy_machine_is_near_the_reference(path, work, reached, percent, by):
    ceiling = host_ceiling(path, work, 64 << 20, RATES)
    assert 100 * reached / ceiling.bytes_per_s == pytest.approx(percent, abs=0.6)
    assert (ceiling.kind, ceiling.limited_by) == ("measured", by)
    assert "before the first case" in ceiling.source


@pytest.mark.parametrize(("n", "chain"), [(2, False), (3, False), (64, True)])
def test_a_reduces_reference_is_that_of_the_faster_algorithm(n, chain):
    """A chain sums S at every rank; else each sums its part, and the root receives the others."""
    rates = {(HostPart.SHARED_SUM, 8): exact(3e9), (HostPart.SHARED_ONE_WAY, 8): exact(6e9), (HostPart.SHARED, 8): exact(9e9)}
    parts = n / (n - 1) / (1 / 3e9 + 1 / 6e9)
    found = host_ceiling(SHARED_MEMORY, HostWork("reduce", n, 1.0, one_way=True), 8, rates)
    assert found.bytes_per_s == pytest.approx(3e9 if chain else max(parts, 3e9))


@pytest.mark.parametrize(("size", "lacking"), [(8, None), (64 << 20, HostPart.SHARED_SUM)])
def test_what_was_not_measured_has_no_ceiling(size, lacking):
    rates = {key: rate for key, rate in RATES.items() if key[0] is not lacking}
    found = host_ceiling(SHARED_MEMORY, HostWork("allreduce", 2, 1.0), size, rates)
    assert (found.kind, found.bytes_per_s) == ("none", None)
    assert "not measured at this size" in found.limited_by
    assert host_ceiling(SHARED_MEMORY, HostWork("copy", 1, 0.0), 64 << 20, RATES).bytes_per_s is None  # nothing moved


def test_what_there_was_no_time_for_is_disturbed():
    rates = RATES | {(HostPart.SHARED, 64 << 20): Rate(0.0, 0.0, 0.0, disturbed=True)}
    found = host_ceiling(SHARED_MEMORY, HostWork("copy", 2, 1.0), 64 << 20, rates)
    assert (found.kind, found.bytes_per_s, found.disturbed) == ("measured", None, True)


@pytest.mark.parametrize(("path", "work", "parts"), [
    (LOOPBACK_TCP, HostWork("sum", 4, 0.75), ((HostPart.LOOPBACK, 0.75), (HostPart.SUM, 0.75))),
    (SHARED_MEMORY, HostWork("allreduce", 2, 1.0), ((HostPart.SHARED_SUM, 0.5), (HostPart.SHARED, 0.5))),
    (DIRECT_COPY, HostWork("copy", 4, 0.75, one_way=True, own=0.25), ((HostPart.DIRECT_ONE_WAY, 0.75), (HostPart.COPY, 0.25))),
])  # fmt: skip
def test_parts_of_a_path(path, work, parts):
    assert recipes(path, work) == (parts,)


def test_given_and_none():
    assert (ceiling_from_rate(50).kind, ceiling_from_rate(50).bytes_per_s, ceiling_from_rate(50).source) == ("given", 50e9, "--ceiling")
    assert (no_ceiling("no NIC").bytes_per_s, no_ceiling("no NIC").limited_by) == (None, "no NIC")


def around(value, share=0.02):
    """A round of a reference with an interval of ± `share`."""
    return Rate(value, value * (1 - share), value * (1 + share))


def test_two_rounds_that_agree_are_a_reference_with_the_interval_of_both_and_a_disturbance_that_passes_leaves_no_trace():
    found = settled([around(10e9), around(11e9)])
    assert (found.value, found.disturbed) == (10.5e9, False)
    assert (found.low, found.high) == (pytest.approx(9.8e9), pytest.approx(11.22e9))
    assert settled([around(10e9), around(4e9), around(9.9e9), around(10.1e9)]) == agreed([around(9.9e9), around(10.1e9)])


@pytest.mark.parametrize("rounds", [
    [], [around(10e9)], [around(10e9), around(12e9)], [around(10e9), around(10.2e9), around(5e9)], [around(10e9, 0.3)] * 2,
], ids=["none", "one", "20 % apart", "the last differs", "a wide interval"])  # fmt: skip
def test_a_reference_whose_rounds_do_not_agree_is_measured_again(rounds):
    assert agreed(rounds) is None


def test_a_reference_that_stays_disturbed_has_the_whole_range_and_reports_it():
    found = settled([around(10e9), around(4e9), around(9e9), around(3e9), around(6e9)])
    assert (found.value, found.disturbed) == (6e9, True)
    assert (found.low, found.high) == (pytest.approx(2.94e9), pytest.approx(10.2e9))
    rates = {(HostPart.SHARED, 8): around(9e9), (HostPart.SHARED_SUM, 8): found, (HostPart.LOOPBACK, 8): found}
    assert host_ceiling(SHARED_MEMORY, HostWork("copy", 2, 1.0), 8, rates).disturbed is False
    assert [host_ceiling(SHARED_MEMORY, HostWork(model, 2, 1.0), 8, rates).disturbed for model in ("sum", "allreduce")] == [True, True]
    assert host_ceiling(LOOPBACK_TCP, HostWork("copy", 2, 1.0), 8, rates).disturbed


def test_the_interval_of_a_model_follows_from_those_of_its_parts():
    rates = {(HostPart.SHARED, 8): Rate(10e9, 8e9, 12e9), (HostPart.SHARED_SUM, 8): Rate(10e9, 8e9, 12e9)}
    found = host_ceiling(SHARED_MEMORY, HostWork("allreduce", 2, 1.0), 8, rates)
    assert (found.bytes_per_s, found.low_bytes_per_s, found.high_bytes_per_s) == pytest.approx((10e9, 8e9, 12e9))
