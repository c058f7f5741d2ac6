"""Ceilings inside a host: references measured before, set against each operation by its model."""

import pytest

from collbench.machine.peak.ceiling import HostRates, Rate, agreed, ceiling_from_rate, memory_ceiling, no_ceiling, settled, stream_ceiling


def exact(value):
    """A rate with equal rounds."""
    return Rate(value, value, value)


RATES = HostRates({2**20: exact(59e9), 8: exact(1e9)}, {2**20: exact(24e9)}, stream_one=exact(3.8e9), stream_both=exact(3.1e9))


@pytest.mark.parametrize(
    ("model", "wanted", "by"), [("copy", 59e9, "memory copy"), ("sum", 24e9, "memory sum"), ("allreduce", 34.12e9, "memory copy and sum")]
)
def test_by_model(model, wanted, by):
    """PEAK.md: at 1 MiB an all-reduce's reference is 34 GB/s, 2/(1/copy + 1/sum), not min(copy, sum)."""
    found = memory_ceiling(model, 2**20, RATES)
    assert found.bytes_per_s == pytest.approx(wanted, rel=1e-3)
    assert (found.kind, found.limited_by) == ("measured", by)
    assert "before the first case" in found.source


@pytest.mark.parametrize(
    ("n", "sum_rate", "wanted", "by"),
    [
        (2, 24e9, 34.12e9, "memory copy and sum"),  # each sums a half, the root copies the other one: more than 24 GB/s, which it passed
        (3, 24e9, 25.59e9, "memory copy and sum"),
        (64, 24e9, 24e9, "memory sum"),  # a chain with sums of all ranks at once
        (3, 50e9, 50e9, "memory sum"),
    ],
)
def test_a_reduces_reference_is_that_of_the_faster_algorithm(n, sum_rate, wanted, by):
    found = memory_ceiling("reduce", 2**20, HostRates({2**20: exact(59e9)}, {2**20: exact(sum_rate)}), n)
    assert (found.bytes_per_s, found.limited_by) == (pytest.approx(wanted, rel=1e-3), by)


@pytest.mark.parametrize(("model", "size"), [("copy", 16), ("sum", 8), ("allreduce", 8), ("unknown", 2**20)])
def test_what_was_not_measured_has_no_ceiling(model, size):
    found = memory_ceiling(model, size, RATES)
    assert (found.kind, found.bytes_per_s) == ("none", None)
    assert "not measured at this size" in found.limited_by


def test_equal_rates_are_their_own_mean():
    assert memory_ceiling("allreduce", 4, HostRates({4: exact(7e9)}, {4: exact(7e9)})).bytes_per_s == pytest.approx(7e9)


def test_loopback_streams_one_way_and_both():
    one, both = stream_ceiling(False, RATES), stream_ceiling(True, RATES)
    assert (one.bytes_per_s, one.limited_by) == (3.8e9, "one loopback TCP stream")
    assert (both.bytes_per_s, both.limited_by) == (3.1e9, "one loopback TCP stream each way")
    assert stream_ceiling(True, HostRates({}, {}, exact(1e9))).bytes_per_s is None


def around(value, share=0.02):
    """A round of a reference with an interval of ± `share`."""
    return Rate(value, value * (1 - share), value * (1 + share))


def test_two_rounds_that_agree_are_a_reference_with_the_interval_of_both():
    found = settled([around(10e9), around(11e9)])
    assert (found.value, found.disturbed) == (10.5e9, False)
    assert (found.low, found.high) == (pytest.approx(9.8e9), pytest.approx(11.22e9))


@pytest.mark.parametrize(
    "rounds",
    [[], [around(10e9)], [around(10e9), around(12e9)], [around(10e9), around(10.2e9), around(5e9)], [around(10e9, 0.3)] * 2],
    ids=["none", "one", "20 % apart", "the last differs", "a wide interval"],
)
def test_a_reference_whose_rounds_do_not_agree_is_measured_again(rounds):
    assert agreed(rounds) is None


def test_a_disturbance_that_passes_leaves_no_trace():
    assert settled([around(10e9), around(4e9), around(9.9e9), around(10.1e9)]) == agreed([around(9.9e9), around(10.1e9)])


def test_a_reference_that_stays_disturbed_has_the_whole_range_and_reports_it():
    found = settled([around(10e9), around(4e9), around(9e9), around(3e9), around(6e9)])
    assert (found.value, found.disturbed) == (6e9, True)
    assert (found.low, found.high) == (pytest.approx(2.94e9), pytest.approx(10.2e9))
    rates = HostRates({8: around(9e9)}, {8: found}, stream_one=found)
    assert memory_ceiling("copy", 8, rates).disturbed is False
    assert [memory_ceiling(model, 8, rates).disturbed for model in ("sum", "allreduce")] == [True, True]
    assert stream_ceiling(False, rates).disturbed


def test_the_interval_of_a_model_follows_from_those_of_its_parts():
    found = memory_ceiling("allreduce", 8, HostRates({8: Rate(10e9, 8e9, 12e9)}, {8: Rate(10e9, 8e9, 12e9)}))
    assert (found.bytes_per_s, found.low_bytes_per_s, found.high_bytes_per_s) == pytest.approx((10e9, 8e9, 12e9))


def test_given_and_none():
    assert (ceiling_from_rate(50).kind, ceiling_from_rate(50).bytes_per_s, ceiling_from_rate(50).source) == ("given", 50e9, "--ceiling")
    assert (no_ceiling("no NIC").bytes_per_s, no_ceiling("no NIC").limited_by) == (None, "no NIC")
