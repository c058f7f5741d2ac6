"""Inputs are exactly predictable: any order of summation gives the same bits, and nothing that goes wrong can look right."""

import numpy as np
import pytest

from collbench.operations.builtin.allgather import ALLGATHER
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.broadcast import BROADCAST
from collbench.operations.data import PERIOD, arriving, holders_of_average, poison, spread, write_digits
from collbench.operations.dtypes import DTYPES
from tests.conftest import sample
from tests.helpers import FITTING, make_place, sent

RANKS = (1, 2, 3, 4, 7, 100, 300)
A_THIRD = 150  # of the long lists
UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
          "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}  # fmt: skip


def everyones(n, count, dtype, redop):
    places = [make_place(rank, n, count, dtype, redop=redop) for rank in range(n)]
    return [sent(ALLREDUCE, place) for place in places], places[0]


@pytest.mark.parametrize(("dtype", "redop", "n"), sample([(*kind, n) for kind in FITTING for n in RANKS if kind[1] != "avg"], A_THIRD))
def test_reducing_in_the_type_itself_is_exact_in_any_order(dtype, redop, n):
    sends, place = everyones(n, 64, dtype, redop)
    wanted = spread(arriving(range(n), 64, place), 0, 64)
    order = np.random.default_rng(n).permutation(n)
    there, back = sends[order[0]], sends[order[-1]]
    for rank in order[1:]:
        there = UFUNCS[redop](there, sends[rank])
    for rank in order[-2::-1]:
        back = UFUNCS[redop](back, sends[rank])
    pairs = list(sends)
    while len(pairs) > 1:  # a tree
        pairs = [UFUNCS[redop](*pairs[i : i + 2]) if i + 1 < len(pairs) else pairs[i] for i in range(0, len(pairs), 2)]
    for got in (there, back, pairs[0]):
        assert got.dtype == wanted.dtype
        assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_stay_within_the_exact_range_and_start_at_one_while_there_is_room(dtype, n):
    sends, _ = everyones(n, 500, dtype, "sum")
    total = np.sum([one.astype(np.float64) for one in sends], axis=0)
    assert total.max() <= DTYPES[dtype].exact
    if n <= DTYPES[dtype].exact and n != 127:
        assert min(one.astype(np.float64).min() for one in sends) >= 1


@pytest.mark.parametrize(
    ("dtype", "redop", "n"), sample([(*kind, n) for kind in FITTING for n in RANKS[1:] if n < 300 or DTYPES[kind[0]].size < 4], A_THIRD)
)
def test_what_arrives_differs_from_element_to_element(dtype, redop, n):
    """Else a shifted block would look right."""
    place = make_place(0, n, 3000, dtype, redop=redop)
    values = arriving(range(n), 3000, place)
    assert np.mean(values[1:] == values[:-1]) < 0.75


@pytest.mark.parametrize("n", [16, 64, 100, 127, 128, 256])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "bfloat16", "float16"])
def test_sums_differ_between_elements_also_where_ranks_divide_the_range_evenly(dtype, n):
    values = arriving(range(n), 5000, make_place(0, n, 5000, dtype))
    assert len(np.unique(values.astype(np.float64))) > 1


@pytest.mark.parametrize("n", [2, 3, 7, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_ranks_send_different_digits_when_moving(dtype, n):
    rows = np.stack([sent(BROADCAST, make_place(rank, n, 100, dtype, redop=None, root=rank)) for rank in range(n)]).astype(np.float64)
    assert rows.min() > 0
    assert np.isfinite(rows).all()
    assert all(len(set(column)) == n for column in rows.T)


def test_past_the_types_range_ranks_still_differ_at_most_elements():
    first, other = (sent(ALLGATHER, make_place(rank, 300, 2000, "int8", redop=None)) for rank in (0, 127))
    assert np.mean(first == other) < 0.1


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_is_no_digit_of_a_moved_element(dtype):
    data = sent(ALLGATHER, make_place(0, 2, 5000, dtype, redop=None))
    poisoned = data.copy()
    poison(poisoned)
    assert not np.any(poisoned.view(f"u{data.itemsize}") == data.view(f"u{data.itemsize}"))


def test_digits_repeat_with_the_period_and_not_before():
    place = make_place(1, 2, 2 * PERIOD + 17, "int32", redop=None)
    data = sent(ALLGATHER, place)
    assert np.array_equal(data[:PERIOD], data[PERIOD : 2 * PERIOD])
    assert np.array_equal(data[:17], data[2 * PERIOD :])
    assert not np.array_equal(data[: PERIOD // 2], data[PERIOD // 2 : PERIOD // 2 * 2])


def test_the_seed_changes_the_digits_and_nothing_else_does():
    first, again, other = (sent(ALLREDUCE, make_place(0, 2, 1000, seed=seed)) for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(("at", "count"), [(0, 5), (3, 5), (7, 2), (8, 4), (0, 30), (13, 23), (0, 0)])
def test_spread_is_a_piece_of_the_endless_repetition(at, count):
    period = np.arange(10)
    assert spread(period, at, count).tolist() == [i % 10 for i in range(at, at + count)]


def test_write_digits_fills_nothing_beyond_its_target():
    data = np.zeros(10, np.float32)
    write_digits(data[2:5], make_place(0, 2, 3))
    assert np.flatnonzero(data).tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("n", "dtype", "holders"), [(1, "float32", 1), (2, "float32", 1), (3, "float32", 2), (4, "float32", 3), (64, "bfloat16", 9)]
)
def test_at_least_one_rank_holds_nothing_of_an_average(n, dtype, holders):
    assert holders_of_average(n, DTYPES[dtype].exact) == holders


@pytest.mark.parametrize("redop", ["min", "max"])
@pytest.mark.parametrize("n", [2, 100, 300])
def test_digits_of_minimum_and_maximum_begin_at_1_and_fit_the_type(redop, n):
    """0 is what memory holds that nothing was written to."""
    for rank in (0, n - 1):
        data = np.zeros(70_000, np.int8)
        write_digits(data, make_place(rank, n, len(data), "int8", redop=redop))
        assert data.min() >= 1 and data.max() <= 127
