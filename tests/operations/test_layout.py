"""Where send and receive elements lie: apart out of place; in place, a rank's own elements where they must arrive."""

import pytest

from collbench.operations.allgather import ALLGATHER
from collbench.operations.allreduce import ALLREDUCE
from collbench.operations.alltoall import ALLTOALL
from collbench.operations.broadcast import BROADCAST
from collbench.operations.layout import Extent, slots_checked
from collbench.operations.p2p_bandwidth import P2P_BANDWIDTH
from collbench.operations.reducescatter import REDUCESCATTER
from collbench.operations.scatter import SCATTER
from tests.helpers import make_cell, make_place


def extent(operation, rank, n=4, count=10, in_place=True, **changes):
    return Extent.of(operation, make_place(rank, n, count, in_place=in_place, **changes))


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
    assert slots_checked(make_cell("int8", 2**22, buffers="rotating")) == list(range(16))
    assert slots_checked(make_cell("int8", 2**22, buffers="fixed")) == [0]
    sample = slots_checked(make_cell("int8", 8, buffers="rotating", seed=7))
    assert len({*sample}) == 16 and sample == sorted(sample) and max(sample) < 1024
    assert sample == slots_checked(make_cell("int8", 8, buffers="rotating", seed=7, root=1))
    assert sample != slots_checked(make_cell("int8", 8, buffers="rotating", seed=8))
