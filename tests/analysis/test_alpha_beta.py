"""Latency and bandwidth of a series: recovered from times with a known truth, from cases that have one honest time."""

from typing import Any

import pytest
from msgspec.structs import replace

from collbench.analysis.latency import line_fits, series_of
from collbench.results.row import Row
from tests.results.rows import make_row, make_times, not_measured

ALPHA, RATE = 8e-6, 48e9
SIZES = [1 << power for power in range(3, 31)]


def case(size: int, alpha: float = ALPHA, rate: float = RATE, **changes: Any) -> Row:
    """A case that takes exactly α + size / rate, on four ranks (bus factor 1.5) below a ceiling of 50 GB/s."""
    time_s = alpha + size / rate
    known = {"time_s": make_times(time_s), "algbw_bytes_per_s": size / time_s, "busbw_bytes_per_s": 1.5 * size / time_s}
    return make_row(size, **{**known, **changes})


def test_one_protocol_gives_its_latency_its_bandwidth_and_half_size() -> None:
    (found,) = line_fits([case(size) for size in SIZES])
    assert (found.alpha_s.value, found.busbw.value) == (pytest.approx(ALPHA, rel=1e-3), pytest.approx(1.5 * RATE, rel=1e-3))
    assert found.busbw.low <= found.busbw.value <= found.busbw.high
    assert (found.percent, found.half_size) == (pytest.approx(100 * 72 / 50, rel=1e-3), pytest.approx(ALPHA * RATE, rel=1e-3))
    assert (found.first, found.row.size_bytes, found.switches, found.fit.off, found.left_out) == (8, 1 << 30, (), (), ())


def test_a_switch_of_protocol_is_located_and_the_last_one_gives_the_bandwidth() -> None:
    rows = [case(size, 2e-6, 1e9) if size < 65536 else case(size, 40e-6, 20e9) for size in SIZES]
    (found,) = line_fits(rows)
    assert (found.switches, found.alpha_s.value) == ((65536,), pytest.approx(2e-6, rel=0.01))
    assert found.busbw.value == pytest.approx(30e9, rel=0.01)
    assert found.half_size == pytest.approx(40e-6 * 20e9, rel=0.02)  # 10 GB/s is beyond the first protocol


def test_a_size_off_the_fit_is_named_and_the_largest_has_then_no_percentage() -> None:
    rows = [case(size) for size in SIZES]
    at = SIZES.index(1 << 20)
    rows[at] = case(1 << 20, ALPHA * 1.4, RATE / 1.4)
    (found,) = line_fits(rows)
    assert found.fit.off == ((1 << 20, pytest.approx(0.4, abs=0.05)),)
    # Out of the cache: large messages approach no such rate, and the ceiling there is another.
    rows = [*(case(size) for size in SIZES[:-1]), case(SIZES[-1], ALPHA * 1.4, RATE / 1.4)]
    (found,) = line_fits(rows)
    assert [size for size, _ in found.fit.off] == [SIZES[-1]]
    assert found.percent is None and found.busbw.value == pytest.approx(1.5 * RATE, rel=1e-2)


@pytest.mark.parametrize("flag", ["oversubscribed", "two_modes", "drift", "state_flip", "budget_exceeded"])
def test_cases_without_one_honest_time_are_left_out_and_reported(flag: str) -> None:
    rows = [case(size) for size in SIZES]
    rows[5] = case(SIZES[5], 3 * ALPHA, flags=("simulated", flag))
    rows[6] = not_measured("no", size_bytes=SIZES[6])
    rows[7] = case(SIZES[7], ALPHA / 3, wrong=1)
    (found,) = line_fits(rows)
    assert found.left_out == ((SIZES[5], flag), (SIZES[6], "n/a"), (SIZES[7], "wrong_data"))
    assert found.alpha_s.value == pytest.approx(ALPHA, rel=1e-3)


@pytest.mark.parametrize("changes", [
    *({"flags": (flag,)} for flag in ("target_missed", "warmup_unsettled", "few_samples", "skew_limited")),
    {"flags": ("drift",), "launches": 5},
], ids=str)  # fmt: skip
def test_less_certain_medians_are_fitted_all_the_same(changes: dict[str, Any]) -> None:
    (found,) = line_fits([case(size, **changes) for size in SIZES])
    assert found.left_out == ()


def test_each_series_has_its_own_fit_in_the_order_of_the_rows() -> None:
    rows = [case(size, alpha, backend=backend) for size in SIZES for backend, alpha in (("mpi", 1e-6), ("gloo", 1e-4))]
    found = line_fits(rows)
    assert [fit.row.backend for fit in found] == ["mpi", "gloo"]
    assert [fit.alpha_s.value for fit in found] == pytest.approx([1e-6, 1e-4], rel=0.01)
    assert series_of(case(8)) == series_of(case(16)) != series_of(case(8, redop="max"))


@pytest.mark.parametrize("changes", [
    {"ranks": 1, "busbw_bytes_per_s": 0.0}, {"busbw_bytes_per_s": None}, {"time_s": None}, {"time_s": make_times(-1.0)},
    {"time_s": replace(make_times(1.0), p50=None)}, {"size_bytes": 0}, {"size_bytes": 8}, {"flags": ("oversubscribed",)},
    {"flags": ("drift",)},
])  # fmt: skip
def test_what_has_no_line_has_no_fit(changes: dict[str, Any]) -> None:
    assert line_fits([replace(case(size), **changes) for size in SIZES]) == []


def test_three_sizes_are_too_few_a_withheld_percentage_stays_so_and_times_that_do_not_grow_have_no_bandwidth() -> None:
    assert line_fits([case(size) for size in SIZES[:3]]) == line_fits([]) == []
    (found,) = line_fits([case(size, percent_of_ceiling=None) for size in SIZES])
    assert found.percent is None
    assert all(fit.busbw.value > 0 for fit in line_fits([case(size, time_s=make_times(1e-6 * 64 / size)) for size in SIZES]))


def test_the_slow_end_of_a_time_is_the_low_end_of_a_bandwidth() -> None:
    (found,) = line_fits(case(size, rate=RATE * (1 + 0.02 * (-1) ** number)) for number, size in enumerate(SIZES))
    slope = found.fit.regimes[-1].s_per_byte
    assert slope.low < slope.value < slope.high
    assert (found.busbw.value, found.busbw.low, found.busbw.high) == pytest.approx((1.5 / slope.value, 1.5 / slope.high, 1.5 / slope.low))
