"""Figures of other tools as rows: digits, the number of ranks that they prove, and the user's additions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.operations.registry import operations
from collbench.plugins.importers import rows
from collbench.plugins.importers.importer import Contradiction, UserInput
from collbench.plugins.importers.notes import RateMismatch
from collbench.plugins.importers.rows import JobExtent, RankRange, rank_range, with_digits


def printed(algbw, busbw):
    pairs = with_digits(algbw), with_digits(busbw)
    assert pairs[0] and pairs[1]
    return rows.PrintedRates(pairs[0], pairs[1])


@pytest.mark.parametrize(
    ("text", "value", "half"), [("235.26", 235.26, 0.005), ("2097.2", 2097.2, 0.05), ("17016", 17016, 0.5), ("1e+06", 1e6, 5e5)]
)
def test_a_printed_number_means_half_a_unit_around_it(text, value, half):
    assert with_digits(text) == pytest.approx((value, half))


@pytest.mark.parametrize("text", ["N/A", "", "nan", "inf", "-1.5", "1e+999", "x"])
def test_what_is_no_number_has_no_digits(text):
    assert with_digits(text) is None


@pytest.mark.parametrize(("operation", "algbw", "busbw", "ranks"), [
    ("allreduce", "134.44", "235.26", 8), ("allreduce", "259.78", "487.09", 16), ("allgather", "255.31", "223.39", 8),
    ("alltoall", "20.00", "10.00", 2),
])  # fmt: skip
def test_the_factor_shows_the_ranks(operation, algbw, busbw, ranks):
    found = rank_range(operations()[operation], [printed(algbw, busbw)])
    assert found.only == ranks


def test_the_factor_shows_as_many_ranks_as_its_digits_allow():
    allreduce = operations()["allreduce"]
    assert str(rank_range(allreduce, [printed("0.43", "0.80")])) == "12 to 18"
    assert str(rank_range(allreduce, [printed("0.43", "0.80"), printed("259.78", "487.09")])) == "16"
    assert str(rank_range(allreduce, [printed("1.00", "2.00")])) == "134 or more"
    assert rank_range(operations()["allreduce"], [printed("190.65", "0.00")]) == RankRange(1, 1)
    found = rank_range(operations()["allreduce"], [printed("100.00", "175.00"), printed("100.00", "150.00")])
    assert not any(found.holds(ranks) for ranks in range(1, 100))
    broadcast = operations()["broadcast"]
    assert rank_range(broadcast, [printed("100.00", "100.00")]) is None
    assert rank_range(broadcast, [printed("100.00", "175.00")]) == RankRange(1, 0)
    assert rank_range(operations()["allreduce"], [printed("0.00", "0.00")]) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4096), st.floats(0.01, 900), st.sampled_from(["allreduce", "allgather", "alltoall"]))
def test_the_true_number_is_always_within(ranks, algbw, name):
    operation = operations()[name]
    found = rank_range(operation, [printed(f"{algbw:.2f}", f"{algbw * operation.bus_factor(ranks):.2f}")])
    assert found is None or found.holds(ranks)


def test_algbw_is_size_over_time_and_both_must_be_possible():
    assert rows.rate_mismatch(8589934592, "134.44", "63896") is None
    assert rows.rate_mismatch(8589934592, "135.00", "63896") == RateMismatch("135.00", 8589934592, pytest.approx(134.44, abs=0.01))
    assert rows.rate_mismatch(8, "0.00", "0.00") is None
    assert rows.is_time(1e-6) and not rows.is_time(0.0) and not rows.is_time(float("nan")) and not rows.is_time(float("inf"))
    assert rows.is_size(1) and not rows.is_size(0) and not rows.is_size(-1)


@pytest.mark.parametrize(("user", "printed", "extent"), [
    ((4, None), None, JobExtent(4, None)), ((None, None), 4, JobExtent(4, None)), ((4, None), 4, JobExtent(4, None)),
    ((4, None), 8, JobExtent(8, None, (Contradiction("a.log", "--ranks", "4", "8 ranks"),))),
    ((8, None), 4, JobExtent(4, None, (Contradiction("a.log", "--ranks", "8", "4 ranks"),))), ((None, 2), 4, JobExtent(4, 2)),
    ((None, None), None, "number of ranks"), ((None, 5), 4, "4 ranks .*5 nodes"),
])  # fmt: skip
def test_the_output_is_kept_and_the_user_fills_what_it_lacks(user, printed, extent):
    user_input = UserInput(ranks=user[0], nodes=user[1])
    if isinstance(extent, str):
        with pytest.raises(UsageError, match=extent):
            rows.ranks_and_nodes(user_input, printed, None, "a.log")
    else:
        assert rows.ranks_and_nodes(user_input, printed, None, "a.log") == extent


@pytest.mark.parametrize("name", ["neighbor_alltoall", "neighbor-alltoall"])
def test_an_operation_has_two_names(name):
    assert rows.operation_named(name).name == "neighbor_alltoall"
