"""Ceilings inside a host: references measured before, set against each operation by its model."""

import pytest

from collbench.peak.ceiling import given, nothing
from collbench.peak.host import HostRates, memory_ceiling, stream_ceiling

RATES = HostRates(copy={2**20: 59e9, 8: 1e9}, sum={2**20: 24e9}, stream_one=3.8e9, stream_both=3.1e9)


@pytest.mark.parametrize(
    ("model", "wanted", "by"), [("copy", 59e9, "memory copy"), ("sum", 24e9, "memory sum"), ("allreduce", 34.12e9, "memory copy and sum")]
)
def test_by_model(model, wanted, by):
    """PEAK.md: at 1 MiB an all-reduce's reference is 34 GB/s, 2/(1/copy + 1/sum), not min(copy, sum)."""
    found = memory_ceiling(model, 2**20, RATES)
    assert found.bytes_per_s == pytest.approx(wanted, rel=1e-3)
    assert (found.kind, found.limited_by) == ("measured", by)
    assert "before the first cell" in found.source


@pytest.mark.parametrize(
    ("n", "sum_rate", "wanted", "by"),
    [
        (2, 24e9, 34.12e9, "memory copy and sum"),  # each sums a half, the root copies the other one: more than 24 GB/s, which it passed
        (3, 24e9, 25.59e9, "memory copy and sum"),
        (64, 24e9, 24e9, "memory sum"),  # a chain, all of whose ranks sum at once
        (3, 50e9, 50e9, "memory sum"),
    ],
)
def test_a_reduces_reference_is_that_of_the_faster_algorithm(n, sum_rate, wanted, by):
    found = memory_ceiling("reduce", 2**20, HostRates({2**20: 59e9}, {2**20: sum_rate}), n)
    assert (found.bytes_per_s, found.limited_by) == (pytest.approx(wanted, rel=1e-3), by)


@pytest.mark.parametrize(("model", "size"), [("copy", 16), ("sum", 8), ("allreduce", 8), ("unknown", 2**20)])
def test_what_was_not_measured_has_no_ceiling(model, size):
    found = memory_ceiling(model, size, RATES)
    assert (found.kind, found.bytes_per_s) == ("none", None)
    assert "not measured at this size" in found.limited_by


def test_equal_rates_are_their_own_mean():
    assert memory_ceiling("allreduce", 4, HostRates({4: 7e9}, {4: 7e9})).bytes_per_s == pytest.approx(7e9)


def test_loopback_streams_one_way_and_both():
    one, both = stream_ceiling(False, RATES), stream_ceiling(True, RATES)
    assert (one.bytes_per_s, one.limited_by) == (3.8e9, "one loopback TCP stream")
    assert (both.bytes_per_s, both.limited_by) == (3.1e9, "one loopback TCP stream each way")
    assert stream_ceiling(True, HostRates({}, {}, 1e9)).bytes_per_s is None


def test_given_and_none():
    assert (given(50).kind, given(50).bytes_per_s, given(50).source) == ("given", 50e9, "--ceiling")
    assert (nothing("no NIC").bytes_per_s, nothing("no NIC").limited_by) == (None, "no NIC")
