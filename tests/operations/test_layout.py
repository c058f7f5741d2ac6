"""Where send and receive elements lie: apart out of place; in place, a rank's own elements where they must arrive."""

import pytest

from collbench.operations.builtin.allgather import ALLGATHER
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.alltoall import ALLTOALL
from collbench.operations.builtin.broadcast import BROADCAST
from collbench.operations.builtin.gather_scatter import GATHER, SCATTER
from collbench.operations.builtin.p2p import P2P_BANDWIDTH
from collbench.operations.builtin.reducescatter import REDUCESCATTER
from collbench.operations.data import BufferExtent, bytes_needed, bytes_on_host, grows, seeded, slots_checked, slots_for, stride_of
from tests.helpers import make_case, make_place


def extent(operation, rank, n=4, count=10, in_place=True, **changes):
    return BufferExtent.of(operation, make_place(rank, n, count, in_place=in_place, **changes))


@pytest.mark.parametrize(
    ("operation", "rank", "wanted"),
    [  # (send, recv, send_at, recv_at, total)
        (ALLREDUCE, 2, (10, 10, 0, 0, 10)),
        (ALLGATHER, 0, (10, 40, 0, 0, 40)),
        (ALLGATHER, 3, (10, 40, 30, 0, 40)),  # nccl-tests: sendbuff = recvbuff + rank·count
        (REDUCESCATTER, 0, (40, 10, 0, 0, 40)),
        (REDUCESCATTER, 3, (40, 10, 0, 30, 40)),  # nccl-tests: recvbuff = sendbuff + rank·count
        (ALLTOALL, 2, (40, 40, 0, 0, 40)),
        (BROADCAST, 1, (10, 10, 0, 0, 10)),
        (BROADCAST, 0, (0, 10, 0, 0, 10)),
        (SCATTER, 1, (40, 10, 0, 10, 40)),
        (SCATTER, 2, (0, 10, 0, 0, 10)),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
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


def test_a_rank_that_does_not_send_itself_anything_sends_from_the_start():
    assert ALLREDUCE.in_place_shift(make_place(1)) == 0
    assert P2P_BANDWIDTH.in_place_shift(make_place(1)) == 0


def test_all_slots_are_verified_where_they_are_few_and_the_same_sample_of_many_on_every_rank():
    assert slots_checked(make_case("int8", 2**22, buffers="rotating")) == list(range(16))
    assert slots_checked(make_case("int8", 2**22, buffers="fixed")) == [0]
    sample = slots_checked(make_case("int8", 8, buffers="rotating", seed=7))
    assert len({*sample}) == 16 and sample == sorted(sample) and max(sample) < 1024
    assert sample == slots_checked(make_case("int8", 8, buffers="rotating", seed=7, root=1))
    assert sample != slots_checked(make_case("int8", 8, buffers="rotating", seed=8))


@pytest.mark.parametrize(("ranks", "groups", "roots"), [(4, 1, 1), (2, 8, 2), (4, 2, 2), (4, 4, 4)])
def test_of_a_rooted_operation_the_roots_need_more_memory(ranks, groups, roots):
    case = make_case(count=4 << 20, root=0, redop=None)
    root, other = bytes_needed(GATHER, case, 4), (4 << 20) * 4 // 4
    assert bytes_on_host(GATHER, case, 4, ranks, groups) - roots * root == pytest.approx((ranks - roots) * other, abs=ranks * 8192)
    assert bytes_on_host(ALLREDUCE, make_case(), 4, 3, 1) == 3 * bytes_needed(ALLREDUCE, make_case(), 4)


def test_each_slot_has_digits_of_its_own():
    assert [seeded(make_place(seed=5), slot).case.seed for slot in (0, 1, 7)] == [5, 6, 12]


@pytest.mark.parametrize(
    ("redop", "in_place", "changes"),
    [("sum", True, True), ("prod", True, True), ("avg", True, True), ("bxor", True, True), ("min", True, False), ("band", True, False),
     ("bor", True, False), ("sum", False, False), (None, True, False)],
)  # fmt: skip
def test_which_reductions_change_what_the_next_call_starts_from(redop, in_place, changes):
    assert grows(make_case(redop=redop, in_place=in_place)) is changes


@pytest.mark.parametrize(
    ("size", "device", "stride"), [(1, "cpu", 65536 + 4160), (1 << 20, "cpu", (1 << 20) + 4160), (1, "cuda", 262144 + 4160)]
)
def test_slots_are_not_a_power_of_two_apart(size, device, stride):
    assert stride_of(size, 2, device) == stride
    assert stride_of(size, 1, device) % 4096 == 0


@pytest.mark.parametrize(("size", "slots"), [(8, 1024), (1 << 20, 64), (64 << 20, 1), (1 << 30, 1)])
def test_as_many_slots_as_defeat_the_caches(size, slots):
    assert slots_for(make_case(count=size // 4, buffers="rotating")) == slots
    assert slots_for(make_case(count=size // 4)) == 1
