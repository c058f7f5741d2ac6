"""Figures of other tools as rows: digits, the number of ranks that they prove, and the user's additions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.operations.registry import operations
from collbench.plugins.importers.importer import Contradiction, UserInput
from collbench.plugins.importers.notes import RateMismatch
from collbench.plugins.importers.rows import (
    JobExtent,
    PrintedRates,
    RankRange,
    is_size,
    is_time,
    operation_named,
    rank_range,
    ranks_and_nodes,
    rate_mismatch,
    with_digits,
)


def printed(algbw: str, busbw: str) -> PrintedRates:
    pairs = with_digits(algbw), with_digits(busbw)
    assert pairs[0] and pairs[1]
    return PrintedRates(pairs[0], pairs[1])


@pytest.mark.parametrize(
    ("text", "value", "half"), [("235.26", 235.26, 0.005), ("2097.2", 2097.2, 0.05), ("17016", 17016, 0.5), ("1e+06", 1e6, 5e5)]
)
def test_a_printed_number_means_half_a_unit_around_it(text: str, value: float, half: float) -> None:
    assert with_digits(text) == pytest.approx((value, half))


@pytest.mark.parametrize("text", ["N/A", "", "nan", "inf", "-1.5", "1e+999", "x"])
def test_what_is_no_number_has_no_digits(text: str) -> None:
    assert with_digits(text) is None


@pytest.mark.parametrize(
    ("operation", "algbw", "busbw", "ranks"),
    [
        ("allreduce", "134.44", "235.26", 8), ("allreduce", "259.78", "487.09", 16),
        ("allgather", "255.31", "223.39", 8), ("alltoall", "20.00", "10.00", 2),
    ],
)  # fmt: skip
def test_the_factor_shows_the_ranks(operation: str, algbw: str, busbw: str, ranks: int) -> None:
    found = rank_range(operations()[operation], [printed(algbw, busbw)])
    assert found is not None and found.only == ranks


def test_few_digits_leave_several_numbers_and_many_lines_narrow_them() -> None:
    allreduce = operations()["allreduce"]
    assert str(rank_range(allreduce, [printed("0.43", "0.80")])) == "12 to 18"
    assert str(rank_range(allreduce, [printed("0.43", "0.80"), printed("259.78", "487.09")])) == "16"
    assert str(rank_range(allreduce, [printed("1.00", "2.00")])) == "134 or more"


def test_a_bus_bandwidth_of_nothing_is_one_rank() -> None:
    assert rank_range(operations()["allreduce"], [printed("190.65", "0.00")]) == RankRange(1, 1)


def test_lines_that_contradict_each_other_are_explained_by_no_number() -> None:
    found = rank_range(operations()["allreduce"], [printed("100.00", "175.00"), printed("100.00", "150.00")])
    assert found is not None and not any(found.holds(ranks) for ranks in range(1, 100))


def test_a_factor_that_is_the_same_for_all_shows_nothing_or_that_the_operation_is_another() -> None:
    broadcast = operations()["broadcast"]
    assert rank_range(broadcast, [printed("100.00", "100.00")]) is None
    assert rank_range(broadcast, [printed("100.00", "175.00")]) == RankRange(1, 0)
    assert rank_range(operations()["allreduce"], [printed("0.00", "0.00")]) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4096), st.floats(0.01, 900), st.sampled_from(["allreduce", "allgather", "alltoall"]))
def test_the_true_number_is_always_within(ranks: int, algbw: float, name: str) -> None:
    operation = operations()[name]
    found = rank_range(operation, [printed(f"{algbw:.2f}", f"{algbw * operation.bus_factor(ranks):.2f}")])
    assert found is None or found.holds(ranks)


def test_algbw_is_size_over_time_within_its_digits() -> None:
    assert rate_mismatch(8589934592, "134.44", "63896") is None
    assert rate_mismatch(8589934592, "135.00", "63896") == RateMismatch("135.00", 8589934592, pytest.approx(134.44, abs=0.01))
    assert rate_mismatch(8, "0.00", "0.00") is None


@pytest.mark.parametrize(
    ("user", "printed", "extent"),
    [
        ((4, None), None, JobExtent(4, None)),
        ((None, None), 4, JobExtent(4, None)),
        ((4, None), 4, JobExtent(4, None)),
        ((4, None), 8, JobExtent(8, None, (Contradiction("a.log", "--ranks", "4", "8 ranks"),))),
        ((8, None), 4, JobExtent(4, None, (Contradiction("a.log", "--ranks", "8", "4 ranks"),))),
        ((None, 2), 4, JobExtent(4, 2)),
        ((None, None), None, "number of ranks"),
        ((None, 5), 4, "4 ranks .*5 nodes"),
    ],
)
def test_the_output_is_kept_and_the_user_fills_what_it_lacks(
    user: tuple[int | None, int | None], printed: int | None, extent: JobExtent | str
) -> None:
    user_input = UserInput(ranks=user[0], nodes=user[1])
    if isinstance(extent, str):
        with pytest.raises(UsageError, match=extent):
            ranks_and_nodes(user_input, printed, None, "a.log")
    else:
        assert ranks_and_nodes(user_input, printed, None, "a.log") == extent


def test_times_and_sizes_that_can_be() -> None:
    assert is_time(1e-6) and not is_time(0.0) and not is_time(float("nan")) and not is_time(float("inf"))
    assert is_size(1) and not is_size(0) and not is_size(-1)


@pytest.mark.parametrize("name", ["neighbor_alltoall", "neighbor-alltoall"])
def test_an_operation_has_two_names(name: str) -> None:
    assert operation_named(name).name == "neighbor_alltoall"
