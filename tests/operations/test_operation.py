"""The facts of every operation: bus factors as nccl-tests documents them, sizes, who sends and who receives."""

import pytest

from collbench.errors import UsageError
from collbench.operations.allreduce import ALLREDUCE
from collbench.operations.broadcast import BROADCAST
from collbench.operations.dtypes import DTYPES, dtype_named, redop_misfit, redop_named
from collbench.operations.operation import in_place_only
from collbench.operations.p2p_bandwidth import P2P_BANDWIDTH
from collbench.operations.p2p_bidirectional import P2P_BIDIRECTIONAL
from collbench.operations.p2p_latency import P2P_LATENCY
from tests.helpers import ALLGATHER, make_cell, make_place


@pytest.mark.parametrize(("n", "factor"), [(1, 0.0), (2, 1.0), (4, 1.5), (8, 1.75), (16, 1.875)])
def test_bus_factor_of_allreduce(n, factor):
    assert ALLREDUCE.bus_factor(n) == factor


@pytest.mark.parametrize("operation", [BROADCAST, P2P_LATENCY, P2P_BANDWIDTH, P2P_BIDIRECTIONAL], ids=lambda o: o.name)
def test_bus_factor_of_what_only_moves(operation):
    assert [operation.bus_factor(n) for n in (1, 2, 16)] == [0.0, 1.0, 1.0]


def test_size_is_parts_times_count_times_width():
    assert ALLREDUCE.count(make_cell("float64", 100), 4) == 100
    assert ALLGATHER.count(make_cell("float64", 100), 4) == 25
    assert ALLGATHER.count(make_cell("float64", 3), 4) == 0


def test_who_sends_and_who_receives():
    def shape(operation, rank):
        place = make_place(rank, 2, 10, redop=None, root=1)
        return operation.sends(place), operation.receives(place)

    assert [shape(ALLREDUCE, rank) for rank in (0, 1)] == [(10, 10), (10, 10)]
    assert [shape(BROADCAST, rank) for rank in (0, 1)] == [(0, 10), (10, 10)]
    assert [shape(P2P_BANDWIDTH, rank) for rank in (0, 1)] == [(10, 0), (0, 10)]
    assert [shape(P2P_BIDIRECTIONAL, rank) for rank in (0, 1)] == [(10, 10), (10, 10)]


def test_messages_per_iteration():
    cell = make_cell(window=64)
    assert [o.moves(cell) for o in (ALLREDUCE, P2P_LATENCY, P2P_BANDWIDTH, P2P_BIDIRECTIONAL)] == [1, 2, 64, 64]


def test_which_apis_know_it_in_place_only():
    assert [ALLREDUCE.knows_in_place_only(api) for api in ("mpi", "torch", "simulated")] == [False, True, False]
    assert [BROADCAST.knows_in_place_only(api) for api in ("mpi", "torch")] == [True, True]
    assert in_place_only(lambda x: iter(())).in_place_only


def test_what_each_type_holds_exactly_it_does_hold():
    for dtype in DTYPES.values():
        assert int(dtype.numpy.type(dtype.exact)) == dtype.exact
        assert float(dtype.numpy.type(2.0**dtype.exponent)) == 2.0**dtype.exponent
        assert dtype.numpy.itemsize == dtype.size


@pytest.mark.parametrize(("name", "dtype"), [("half", "float16"), ("BF16", "bfloat16"), ("double", "float64"), ("u8", "uint8")])
def test_types_answer_to_their_other_names(name, dtype):
    assert dtype_named(name).name == dtype


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UsageError, match=r"dtype 'f99' is unknown: choose from float64, float32, .*uint8"):
        dtype_named("f99")
    with pytest.raises(UsageError, match=r"redop 'xor' is unknown: choose from sum, .*bxor"):
        redop_named("xor")
    assert redop_named("SUM") == "sum"


def test_reductions_without_a_meaning_on_a_type():
    assert redop_misfit("band", DTYPES["float32"]) == "band is defined on integers only"
    assert "average of integers" in redop_misfit("avg", DTYPES["int32"])
    assert redop_misfit("avg", DTYPES["bfloat16"]) is None
    assert redop_misfit("bxor", DTYPES["uint8"]) is None


def test_a_cells_title():
    assert make_cell("float32", 2**20, redop="max").title() == "allreduce 4 MiB on simulated (float32, max)"
    assert make_cell("int8", 8, redop=None, root=3).title() == "allreduce 8 B on simulated (int8, root 3)"
