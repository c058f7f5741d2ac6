"""Inputs are exactly predictable, and buffers lie apart out of place; in place, a rank's own elements where they must arrive."""

from functools import reduce

import numpy as np
import pytest

from collbench.backends.backend import Group
from collbench.backends.host import Buffers
from collbench.operations.builtin.allgather import ALLGATHER
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.alltoall import ALLTOALL
from collbench.operations.builtin.barrier import BARRIER
from collbench.operations.builtin.broadcast import BROADCAST
from collbench.operations.builtin.gather_scatter import GATHER, SCATTER
from collbench.operations.builtin.p2p import P2P_BANDWIDTH
from collbench.operations.builtin.reducescatter import REDUCESCATTER
from collbench.operations.case import Case
from collbench.operations.data import (
    PERIOD,
    BufferExtent,
    arriving,
    bytes_needed,
    bytes_on_host,
    grows,
    holders_of_average,
    poison,
    seeded,
    slots_checked,
    slots_for,
    spread,
    stride_of,
    write_digits,
)
from collbench.operations.dtypes import DTYPES
from collbench.operations.operation import Place
from collbench.operations.sweep import Sweep
from collbench.operations.unsupported import NoInPlaceForm
from tests.conftest import sample
from tests.helpers import FITTING, make_case, make_place, sent

RANKS = (1, 2, 3, 4, 7, 100, 300)
A_THIRD = 150  # of the long lists
UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
          "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}  # fmt: skip


@pytest.mark.parametrize(("dtype", "redop", "n"), sample([(*kind, n) for kind in FITTING for n in RANKS if kind[1] != "avg"], A_THIRD))
def test_reducing_in_the_type_itself_is_exact_in_any_order(dtype, redop, n):
    places = [make_place(rank, n, 64, dtype, redop=redop) for rank in range(n)]
    sends = [sent(ALLREDUCE, place) for place in places]
    wanted = spread(arriving(range(n), 64, places[0]), 0, 64)
    shuffled = [sends[rank] for rank in np.random.default_rng(n).permutation(n)]
    pairs = list(sends)
    while len(pairs) > 1:  # a tree
        pairs = [UFUNCS[redop](*pairs[i : i + 2]) if i + 1 < len(pairs) else pairs[i] for i in range(0, len(pairs), 2)]
    for got in (reduce(UFUNCS[redop], shuffled), reduce(UFUNCS[redop], shuffled[::-1]), pairs[0]):
        assert (got.dtype, got.tobytes()) == (wanted.dtype, wanted.tobytes())


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_stay_within_the_exact_range_and_start_at_one_while_there_is_room(dtype, n):
    sends = [sent(ALLREDUCE, make_place(rank, n, 500, dtype)).astype(np.float64) for rank in range(n)]
    assert np.sum(sends, axis=0).max() <= DTYPES[dtype].exact
    if n <= DTYPES[dtype].exact and n != 127:
        assert min(elements.min() for elements in sends) >= 1


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


def test_digits_follow_from_the_seed_repeat_with_the_period_and_differ_between_most_ranks_past_the_types_range():
    # past the types range ranks still differ at most elements
    first, other = (sent(ALLGATHER, make_place(rank, 300, 2000, "int8", redop=None)) for rank in (0, 127))
    assert np.mean(first == other) < 0.1
    # digits repeat with the period and not before
    place = make_place(1, 2, 2 * PERIOD + 17, "int32", redop=None)
    data = sent(ALLGATHER, place)
    assert np.array_equal(data[:PERIOD], data[PERIOD : 2 * PERIOD])
    assert np.array_equal(data[:17], data[2 * PERIOD :])
    assert not np.array_equal(data[: PERIOD // 2], data[PERIOD // 2 : PERIOD // 2 * 2])
    first, again, other = (sent(ALLREDUCE, make_place(0, 2, 1000, seed=seed)) for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    data = np.zeros(10, np.float32)
    write_digits(data[2:5], make_place(0, 2, 3))
    assert np.flatnonzero(data).tolist() == [2, 3, 4]


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_is_no_digit_of_a_moved_element(dtype):
    data = sent(ALLGATHER, make_place(0, 2, 5000, dtype, redop=None))
    poisoned = data.copy()
    poison(poisoned)
    assert not np.any(poisoned.view(f"u{data.itemsize}") == data.view(f"u{data.itemsize}"))


@pytest.mark.parametrize(("at", "count"), [(0, 5), (3, 5), (7, 2), (8, 4), (0, 30), (13, 23), (0, 0)])
def test_spread_is_a_piece_of_the_endless_repetition(at, count):
    period = np.arange(10)
    assert spread(period, at, count).tolist() == [i % 10 for i in range(at, at + count)]


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


def extent(operation, rank, n=4, count=10, in_place=True, **changes):
    return BufferExtent.of(operation, make_place(rank, n, count, in_place=in_place, **changes))


@pytest.mark.parametrize(("operation", "rank", "wanted"), [
    # (send, recv, send_at, recv_at, total); nccl-tests: sendbuff = recvbuff + rank·count, or recvbuff = sendbuff + rank·count
    (ALLREDUCE, 2, (10, 10, 0, 0, 10)), (ALLGATHER, 0, (10, 40, 0, 0, 40)), (ALLGATHER, 3, (10, 40, 30, 0, 40)),
    (REDUCESCATTER, 0, (40, 10, 0, 0, 40)), (REDUCESCATTER, 3, (40, 10, 0, 30, 40)), (ALLTOALL, 2, (40, 40, 0, 0, 40)),
    (BROADCAST, 1, (10, 10, 0, 0, 10)), (BROADCAST, 0, (0, 10, 0, 0, 10)), (SCATTER, 1, (40, 10, 0, 10, 40)),
    (SCATTER, 2, (0, 10, 0, 0, 10)),
], ids=lambda value: getattr(value, "name", str(value)))  # fmt: skip
def test_in_place(operation, rank, wanted):
    found = extent(operation, rank, root=1)
    assert (found.send, found.recv, found.send_at, found.recv_at, found.total) == wanted


@pytest.mark.parametrize("operation", [ALLREDUCE, ALLGATHER, REDUCESCATTER, ALLTOALL, SCATTER, P2P_BANDWIDTH], ids=lambda o: o.name)
@pytest.mark.parametrize("count", [1, 1000, 1024, 5001])
@pytest.mark.parametrize("dtype", ["int8", "float64"])
def test_out_of_place_they_never_overlap_and_both_begin_on_a_page(operation, count, dtype):
    for rank in range(2):
        found = extent(operation, rank, 2, count, False, dtype=dtype, root=0)
        width = {"int8": 1, "float64": 8}[dtype]
        assert found.recv_at == 0
        assert found.send_at >= found.recv
        assert found.send_at * width % 4096 == 0
        assert found.total == found.send_at + found.send


def test_all_slots_are_verified_where_they_are_few_and_the_same_sample_of_many_on_every_rank_each_with_its_digits():
    assert slots_checked(make_case("int8", 2**22, buffers="rotating")) == list(range(16))
    assert slots_checked(make_case("int8", 2**22, buffers="fixed")) == [0]
    sample = slots_checked(make_case("int8", 8, buffers="rotating", seed=7))
    assert len({*sample}) == 16 and sample == sorted(sample) and max(sample) < 1024
    assert sample == slots_checked(make_case("int8", 8, buffers="rotating", seed=7, root=1))
    assert sample != slots_checked(make_case("int8", 8, buffers="rotating", seed=8))
    assert [seeded(make_place(seed=5), slot).case.seed for slot in (0, 1, 7)] == [5, 6, 12]
    assert ALLREDUCE.in_place_shift(make_place(1)) == 0
    assert P2P_BANDWIDTH.in_place_shift(make_place(1)) == 0


@pytest.mark.parametrize(("ranks", "groups", "roots"), [(4, 1, 1), (2, 8, 2), (4, 2, 2), (4, 4, 4)])
def test_of_a_rooted_operation_the_roots_need_more_memory(ranks, groups, roots):
    case = make_case(count=4 << 20, root=0, redop=None)
    root, other = bytes_needed(GATHER, case, 4), (4 << 20) * 4 // 4
    assert bytes_on_host(GATHER, case, 4, ranks, groups) - roots * root == pytest.approx((ranks - roots) * other, abs=ranks * 8192)
    assert bytes_on_host(ALLREDUCE, make_case(), 4, 3, 1) == 3 * bytes_needed(ALLREDUCE, make_case(), 4)


@pytest.mark.parametrize(("redop", "in_place", "changes"), [
    ("sum", True, True), ("prod", True, True), ("avg", True, True), ("bxor", True, True), ("min", True, False), ("band", True, False),
    ("bor", True, False), ("sum", False, False), (None, True, False),
])  # fmt: skip
def test_which_reductions_change_what_the_next_call_starts_from(redop, in_place, changes):
    assert grows(make_case(redop=redop, in_place=in_place)) is changes


@pytest.mark.parametrize(("size", "device", "stride"), [
    (8, "cpu", 65536 + 4160), (1 << 20, "cpu", (1 << 20) + 4160), (64 << 20, "cpu", (64 << 20) + 4160), (8, "cuda", 262144 + 4160),
])  # fmt: skip
def test_slots_are_not_a_power_of_two_apart(size, device, stride):
    assert stride_of(size, 2, device) == stride
    assert stride_of(size, 1, device) % 4096 == 0


@pytest.fixture(params=["fixed", "rotating"])
def case(request) -> Case:
    """The only one of any sweep."""
    sweep = Sweep((BARRIER,), (8, 1024), (DTYPES["float64"], DTYPES["int8"]), redops=("sum", "max"), roots=(0, 1), buffers=request.param)
    (only,) = sweep.cases("mpi", 3)
    return only


def test_a_barrier_is_one_case_without_bytes_in_buffers_of_nothing(case):
    assert (case.size_bytes, case.dtype.name, case.redop, case.root, case.traffic, case.flags) == (0, "uint8", None, None, None, ())
    assert (BARRIER.count(case, 3), BARRIER.bus_factor(3)) == (0, 0)
    assert BARRIER.needs(3, case) is None
    assert BARRIER.needs(3, case.placed(True)) == NoInPlaceForm("barrier")
    assert (slots_for(case), slots_checked(case)) == (1, [0])
    assert bytes_needed(BARRIER, case, 3) <= 4096
    buffers = Buffers(BARRIER, case, Group((0, 1, 2), (1,)), slots_for(case))
    assert buffers.places == [Place(1, 3, 0, case)]
    assert (buffers.send(0, 0).size, buffers.recv(0, 0).size) == (0, 0)
    for for_check in (False, True):
        buffers.fill(0, for_check)
    assert buffers.check(0) == [None]
