"""Verification finds a dropped rank, a flipped bit, a swapped rank, a shifted block, and what never arrived; and nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.operations.builtin.allgather import ALLGATHER
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.alltoall import ALLTOALL
from collbench.operations.builtin.broadcast import BROADCAST
from collbench.operations.builtin.gather_scatter import SCATTER
from collbench.operations.builtin.p2p import P2P_BANDWIDTH
from collbench.operations.builtin.reducescatter import REDUCESCATTER
from collbench.operations.data import PERIOD, compare, poison, tolerance_of
from collbench.operations.dtypes import DTYPES, unrepresentable_average
from collbench.operations.operation import Place
from collbench.operations.unsupported import AverageNotRepresentable
from tests.conftest import sample
from tests.helpers import FITTING, carried_out, make_case, make_place, sent

RANKS = (1, 2, 3, 4, 7, 100, 300)
A_THIRD = 150  # of the long lists


def received(operation, rank, n, count=100, dtype="float32", **changes):
    """(place, what this rank receives when all goes well, what every rank sends)."""
    places = [make_place(r, n, count, dtype, **changes) for r in range(n)]
    sends = [sent(operation, place) for place in places]
    return places[rank], carried_out(operation, places[rank], sends), sends


@pytest.mark.parametrize(("dtype", "redop", "n"), sample([(*kind, n) for kind in FITTING for n in RANKS], A_THIRD))
def test_right_data_is_found_right(dtype, redop, n):
    place, got, _ = received(ALLREDUCE, n - 1, n, dtype=dtype, redop=redop)
    assert compare(ALLREDUCE, place, got) is None


@pytest.mark.parametrize("operation", [BROADCAST, ALLGATHER, ALLTOALL, SCATTER, REDUCESCATTER], ids=lambda o: o.name)
@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_right_data_of_every_shape_is_found_right(operation, n, dtype):
    for rank in range(n):
        place, got, _ = received(operation, rank, n, dtype=dtype, redop="sum" if operation.reduces else None, root=n - 1)
        assert compare(operation, place, got) is None


@pytest.mark.parametrize(
    ("dtype", "redop", "n"), sample([(*kind, n) for kind in FITTING for n in RANKS[1:] if n < 300 or DTYPES[kind[0]].size < 4], A_THIRD)
)
def test_a_dropped_rank_is_found(dtype, redop, n):
    count = 4 * n + 100  # min, max and the bitwise ones: each rank decides at some elements, in turn
    place, wanted, sends = received(ALLREDUCE, 0, n, count, dtype, redop=redop)
    for dropped in {0, 1, n // 2, n - 1}:
        # a library that skips a rank reduces the rest; its average is still over all
        rest = carried_out(ALLREDUCE, place, [*sends[:dropped], neutral(sends[0], redop), *sends[dropped + 1 :]])
        found = compare(ALLREDUCE, place, rest)
        assert found, f"rank {dropped} dropped"
        if redop != "avg":
            wrong = np.flatnonzero(wanted != rest)
            assert (found.wrong, found.index) == (wrong.size, wrong[0])
            assert (found.wanted, found.got) == (str(wanted[wrong[0]]), str(rest[wrong[0]]))


def neutral(like, redop):
    integer = like.dtype.kind in "iu"
    largest = np.iinfo(like.dtype).max if integer else 250
    value = {"prod": 1, "min": largest, "band": -1 if like.dtype.kind == "i" else largest}.get(redop, 0)
    return np.full_like(like, value)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int32"])
def test_the_rank_whose_share_is_missing_is_named(dtype):
    place, wanted, sends = received(ALLREDUCE, 0, 4, dtype=dtype)
    found = compare(ALLREDUCE, place, wanted - sends[2])
    assert (found.rank, found.wrong, found.index, found.hint) == (0, 100, 0, "rank 2's share is missing")


@pytest.mark.parametrize("n", [2, 3, 4, 7, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_swapped_rank_is_found_and_named(dtype, n):
    place, got, sends = received(ALLGATHER, 0, n, 50, dtype, redop=None)
    got[:50], got[50:100] = sends[1], sends[0]
    found = compare(ALLGATHER, place, got)
    assert (found.index, found.wrong) == (0, 100)
    assert (found.wanted, found.got) == (str(sends[0][0]), str(sends[1][0]))
    assert found.hint == "that is what rank 1 sends"


def test_what_did_not_arrive_came_from_the_wrong_rank_or_is_nan_is_named_by_its_place():
    # the wrong root is named
    place, _, _ = received(BROADCAST, 0, 3, redop=None, root=2)
    others = sent(BROADCAST, make_place(1, 3, redop=None, root=1))
    assert compare(BROADCAST, place, others).hint == "that is what rank 1 sends"
    # where the rest of a message did not arrive its first element is named
    place, got, _ = received(BROADCAST, 1, 2, 3000, redop=None, root=0)
    poison(got[1234:])
    found = compare(BROADCAST, place, got)
    assert (found.wrong, found.index, found.hint) == (1766, 1234, "nothing arrived there")
    # later blocks are reported by their place in the whole buffer
    place, got, _ = received(ALLTOALL, 1, 4, 100, redop=None)
    got[317] += 1
    assert compare(ALLTOALL, place, got).index == 317
    # nan and minus zero are wrong
    place, got, _ = received(ALLREDUCE, 0, 3, redop="avg")
    got[7] = np.nan
    assert compare(ALLREDUCE, place, got).index == 7
    # a rank that receives nothing has nothing wrong
    assert compare(P2P_BANDWIDTH, make_place(0, 2, redop=None), np.zeros(0, np.float32)) is None


@pytest.mark.parametrize("n", [2, 3, 4, 7, 16, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_shifted_by_one_element_is_found(dtype, n):
    place, _, sends = received(REDUCESCATTER, 0, n, 200, dtype)
    whole = carried_out(ALLREDUCE, Place(0, n, 200 * n, make_case(dtype, 200 * n)), sends)
    assert compare(REDUCESCATTER, place, whole[:200]) is None
    assert compare(REDUCESCATTER, place, whole[1:201]).wrong > 20


@pytest.mark.parametrize("dtype", DTYPES)
def test_moved_data_that_did_not_arrive_or_lies_one_element_further_is_found(dtype):
    # a moved block shifted by one element is found
    place, got, _ = received(BROADCAST, 1, 2, 1000, dtype, redop=None, root=0)
    assert compare(BROADCAST, place, np.roll(got, 1)).wrong > 900
    # nothing arrived is found and reported
    place, got, _ = received(BROADCAST, 1, 2, dtype=dtype, redop=None, root=0)
    poison(got)
    found = compare(BROADCAST, place, got)
    assert (found.wrong, found.index, found.hint) == (100, 0, "nothing arrived there")


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([*FITTING, *((dtype, None) for dtype in DTYPES)]), st.integers(1, 9), st.data())
def test_any_single_bit_of_any_element_that_is_flipped_is_found(kind, n, data):
    dtype, redop = kind
    operation = ALLREDUCE if redop else ALLGATHER
    rank, count = data.draw(st.integers(0, n - 1)), data.draw(st.integers(1, 300))
    place, got, _ = received(operation, rank, n, count, dtype, redop=redop, seed=data.draw(st.integers(0, 2**31)))
    index, bit = data.draw(st.integers(0, got.size - 1)), data.draw(st.integers(0, 8 * got.itemsize - 1))
    if redop == "avg" and n & (n - 1):
        return  # a unit in the last place is the library's to round
    wanted = str(got[index])
    got.view(f"u{got.itemsize}")[index] ^= got.view(f"u{got.itemsize}").dtype.type(1 << bit)
    found = compare(operation, place, got)
    assert (found.rank, found.wrong, found.index, found.wanted, found.got) == (rank, 1, index, wanted, str(got[index]))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_long_buffers_are_checked_to_their_last_element(dtype):
    count = 65 * PERIOD + 3  # more than one chunk of the comparison
    place = Place(1, 2, count, make_case(dtype, count, redop=None, root=0))
    got = sent(BROADCAST, Place(0, 2, count, place.case))
    assert compare(BROADCAST, place, got) is None
    for index in (count - 1, 64 * PERIOD, PERIOD):
        got[index] += 1
        assert compare(BROADCAST, place, got).index == index
    assert compare(BROADCAST, place, got).wrong == 3


FLOATS = [dtype for dtype in DTYPES if DTYPES[dtype].kind == "float"]


@pytest.mark.parametrize("n", [2, 3, 5, 6, 7, 8, 12, 100, 300])
@pytest.mark.parametrize("dtype", FLOATS)
def test_an_average_that_multiplies_by_one_nth_first_is_right_in_any_order(dtype, n):
    """As NCCL averages: 1/n, every product and every sum are rounded to the type."""
    place, _, sends = received(ALLREDUCE, 0, n, 300, dtype, redop="avg")
    share = np.array(1 / n).astype(sends[0].dtype)
    for order in (sends, sends[::-1], [sends[i] for i in np.random.default_rng(n).permutation(n)]):
        whole = order[0] * share
        for one in order[1:]:
            whole = whole + one * share
        assert whole.dtype == place.case.dtype.numpy
        assert compare(ALLREDUCE, place, whole) is None


@pytest.mark.parametrize("n", [2, 3, 7, 8, 100, 300])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_rank_that_keeps_its_own_or_has_the_sum_has_no_average(dtype, n):
    place, _, sends = received(ALLREDUCE, n - 1, n, 1000, dtype, redop="avg")
    for got in (sends[-1], carried_out(ALLREDUCE, make_place(0, n, 1000, dtype), sends)):
        assert compare(ALLREDUCE, place, got).wrong > 900


def test_averages_over_a_power_of_two_are_exact_and_others_a_few_units_off_unless_the_type_has_no_share():
    assert [tolerance_of(make_place(0, n, redop="avg")) for n in (1, 2, 3, 8, 9, 100)] == [0, 0, 3, 0, 6, 52]
    assert [tolerance_of(make_place(0, 300, dtype=dtype, redop="avg")) for dtype in FLOATS] == [152, 152, 17, 7, 5, 3]
    assert tolerance_of(make_place(0, 3, redop="sum")) == 0
    place, got, _ = received(ALLREDUCE, 0, 3, dtype="float16", redop="avg")
    got.view(np.uint16)[5] += 3
    assert compare(ALLREDUCE, place, got) is None
    got.view(np.uint16)[5] += 1
    assert compare(ALLREDUCE, place, got).index == 5
    wanted = AverageNotRepresentable("float8_e4m3fn", 513, 512)
    assert unrepresentable_average(DTYPES["float8_e4m3fn"], 513) == wanted
    for dtype, n in (("float8_e4m3fn", 512), ("float8_e5m2", 2**16), ("float16", 5000)):
        assert unrepresentable_average(DTYPES[dtype], n) is None
