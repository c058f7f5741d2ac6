"""The facts of every operation: bus factors as nccl-tests documents them, sizes, senders and receivers."""

from unittest.mock import MagicMock

import pytest

from collbench.errors import UsageError
from collbench.operations.dtypes import DTYPES, dtype_named, redop_named, undefined_redop
from collbench.operations.operation import has_mark, in_place_only, result_first
from collbench.operations.registry import operations
from collbench.operations.unsupported import NotPowerOfTwo, RedopUndefined, TooFewRanks
from tests.helpers import make_case, make_place

ALL = operations()
# FIELD.md: how many parts of count·width a size has, and busbw / algbw, both by the number of ranks n.
FACTS = {
    "allreduce": (lambda n: 1, lambda n: 2 * (n - 1) / n),
    "broadcast": (lambda n: 1, lambda n: 1),
    "reduce": (lambda n: 1, lambda n: 1),
    "sendrecv": (lambda n: 1, lambda n: 1),
    "allgather": (lambda n: n, lambda n: (n - 1) / n),
    "reducescatter": (lambda n: n, lambda n: (n - 1) / n),
    "alltoall": (lambda n: n, lambda n: (n - 1) / n),
    "gather": (lambda n: n, lambda n: (n - 1) / n),
    "scatter": (lambda n: n, lambda n: (n - 1) / n),
    "hypercube": (lambda n: n - 1, lambda n: 1),
    "p2p_latency": (lambda n: 1, lambda n: 1),
    "p2p_bandwidth": (lambda n: 1, lambda n: 1),
    "p2p_bidirectional": (lambda n: 1, lambda n: 1),
    **dict.fromkeys(("put_latency", "put_bandwidth", "get_latency", "get_bandwidth", "accumulate"), (lambda n: 1, lambda n: 1)),
    **dict.fromkeys(("neighbor_allgather", "neighbor_alltoall"), (lambda n: 2, lambda n: 1)),  # half a size to each neighbour
}


@pytest.mark.parametrize("name", FACTS)
@pytest.mark.parametrize("n", [2, 4, 8, 1024])
def test_parts_and_bus_factors_are_those_of_nccl_tests(name, n):
    parts, factor = FACTS[name]
    assert (ALL[name].parts(n), ALL[name].bus_factor(n)) == (parts(n), factor(n))


@pytest.mark.parametrize("name", [*FACTS, "alltoallv", "barrier"])
def test_one_rank_has_no_bus_and_a_size_all_the_same(name):
    assert ALL[name].bus_factor(1) == 0
    assert ALL[name].count(make_case("float64", 100), 1) == 100


def test_size_is_parts_times_count_times_width():
    counts = {name: ALL[name].count(make_case("float64", 100), 4) for name in ("allreduce", "allgather", "hypercube")}
    assert counts == {"allreduce": 100, "allgather": 25, "hypercube": 33}
    assert ALL["allgather"].count(make_case("float64", 3), 4) == 0


# (elements sent, elements received) by the ranks 0, 1, 2 of 4, where a part has 10 elements and the root is 1
SHAPES = {
    "allreduce": [(10, 10), (10, 10), (10, 10)],
    "broadcast": [(0, 10), (10, 10), (0, 10)],
    "reduce": [(10, 0), (10, 10), (10, 0)],
    "allgather": [(10, 40), (10, 40), (10, 40)],
    "reducescatter": [(40, 10), (40, 10), (40, 10)],
    "alltoall": [(40, 40), (40, 40), (40, 40)],
    "gather": [(10, 0), (10, 40), (10, 0)],
    "scatter": [(0, 10), (40, 10), (0, 10)],
    "sendrecv": [(10, 10), (10, 10), (10, 10)],
    "hypercube": [(10, 40), (10, 40), (10, 40)],
    "p2p_bandwidth": [(10, 0), (0, 10), (0, 0)],
    "p2p_bidirectional": [(10, 10), (10, 10), (10, 10)],
    "put_latency": [(10, 0), (0, 10), (0, 0)],
    "get_bandwidth": [(0, 10), (10, 0), (0, 0)],
    "accumulate": [(10, 0), (10, 10), (10, 0)],
    "neighbor_allgather": [(10, 20), (10, 20), (10, 20)],
    "neighbor_alltoall": [(20, 20), (20, 20), (20, 20)],
}


@pytest.mark.parametrize("name", SHAPES)
def test_senders_and_receivers(name):
    places = [make_place(rank, 4, 10, redop=None, root=1) for rank in range(3)]
    assert [(ALL[name].sends(place), ALL[name].receives(place)) for place in places] == SHAPES[name]


def test_whose_elements_arrive():
    def blocks(name, rank):
        return [(list(block.sources), block.at) for block in ALL[name].expected_blocks(make_place(rank, 3, 10, redop=None, root=1))]

    assert blocks("sendrecv", 0) == [([2], 0)]
    assert blocks("alltoall", 2) == [([0], 20), ([1], 20), ([2], 20)]
    assert blocks("scatter", 2) == [([1], 20)]
    assert blocks("gather", 1) == blocks("allgather", 0) == [([0], 0), ([1], 0), ([2], 0)]
    assert blocks("reducescatter", 2) == [([0, 1, 2], 20)]
    assert blocks("neighbor_allgather", 0) == [([2], 0), ([1], 0)]
    assert blocks("neighbor_alltoall", 0) == [([2], 10), ([1], 0)]


def test_of_two_ranks_each_is_both_neighbours_of_the_other():
    def blocks(name):
        return [(list(block.sources), block.at) for block in ALL[name].expected_blocks(make_place(0, 2, 10, redop=None))]

    assert blocks("neighbor_allgather") == [([1], 0), ([1], 0)]
    assert blocks("neighbor_alltoall") == [([1], 10), ([1], 0)]  # what rank 1 sends forwards comes from behind


def test_one_sided_data_goes_one_way_and_is_reduced_into_what_rank_1_has():
    def arriving(name, rank):
        return [list(block.sources) for block in ALL[name].expected_blocks(make_place(rank, 2, 10))]

    names = ("put_latency", "put_bandwidth", "get_latency", "get_bandwidth", "accumulate")
    assert [arriving(name, 0) for name in names] == [[], [], [[1]], [[1]], []]
    assert [arriving(name, 1) for name in names] == [[[0]], [[0]], [], [], [[0, 1]]]
    assert all(ALL[name].one_sided and ALL[name].pair for name in names)


# In place, where the send elements lie in the receive buffer: by rank 0, 1, 2 of 3, a part of 10 elements, root 1.
SHIFTS = {
    "reduce": [0, 0, 0],
    "allgather": [0, 10, 20],
    "reducescatter": [0, -10, -20],  # nccl-tests: recvbuff = sendbuff + rank·count
    "alltoall": [0, 0, 0],
    "gather": [0, 10, 0],  # nccl.h: sendbuff == recvbuff + root * count
    "scatter": [0, -10, 0],  # nccl.h: recvbuff == sendbuff + root * count
    "sendrecv": [0, 0, 0],
    "hypercube": [0, 10, 20],
}


@pytest.mark.parametrize("name", SHIFTS)
def test_where_in_place_is(name):
    places = [make_place(rank, 3, 10, redop=None, root=1, in_place=True) for rank in range(3)]
    assert [ALL[name].in_place_shift(place) for place in places] == SHIFTS[name]


def test_mpi_puts_what_is_reduced_and_scattered_in_place_at_the_start():
    place = make_place(2, 3, 10, in_place=True)
    assert [ALL["reducescatter"].on(api).in_place_shift(place) for api in ("mpi", "nccl", "torch")] == [0, -20, -20]
    assert ALL["allgather"].on("mpi") is ALL["allgather"]


# By api the operations with one placing only; "messages" means messages of a library.
ONLY = {
    ("mpi", "in_place_only"): {"broadcast", "hypercube"},
    ("nccl", "in_place_only"): {"hypercube"},
    ("torch", "in_place_only"): {"allreduce", "broadcast", "reduce", "hypercube"},
    ("nccl", "out_of_place_only"): {"alltoall", "sendrecv"},
    ("torch", "out_of_place_only"): {"alltoall", "sendrecv"},
    ("mpi", "out_of_place_only"): {"neighbor_allgather", "neighbor_alltoall"},
}


@pytest.mark.parametrize(("api", "mark"), ONLY)
def test_which_placings_each_api_knows(api, mark):
    assert {name for name in SHAPES if has_mark(ALL[name].steps_of(api, messages=True), mark)} == ONLY[api, mark]


@pytest.mark.parametrize(("n", "fits"), [(1, False), (2, True), (3, False), (8, True), (12, False), (1024, True)])
def test_a_hypercube_has_a_power_of_two_corners(n, fits):
    assert ALL["hypercube"].needs(n, make_case()) == (None if fits else NotPowerOfTwo("hypercube", n))


def test_a_ring_has_two_ranks_at_least():
    for name in ("sendrecv", "neighbor_allgather", "neighbor_alltoall"):
        assert [ALL[name].needs(n, make_case()) for n in (1, 2, 3)] == [TooFewRanks(name), None, None]


def test_messages_per_iteration():
    case = make_case(window=64)
    assert [ALL[name].moves(case) for name in ("allreduce", "p2p_latency", "p2p_bandwidth", "p2p_bidirectional")] == [1, 2, 64, 64]
    assert [ALL[name].moves(case) for name in ("put_latency", "put_bandwidth", "get_latency", "get_bandwidth")] == [1, 64, 1, 64]


def test_marks_of_steps_add_up():
    both = in_place_only(result_first(lambda x: iter(())))
    assert [has_mark(both, mark) for mark in ("in_place_only", "result_first", "out_of_place_only")] == [True, True, False]
    assert not has_mark(None, "in_place_only")


def test_what_each_type_holds_exactly_it_does_hold():
    for dtype in DTYPES.values():
        assert int(dtype.numpy.type(dtype.exact)) == dtype.exact
        assert float(dtype.numpy.type(2.0**dtype.exponent)) == 2.0**dtype.exponent
        assert dtype.numpy.itemsize == dtype.size


@pytest.mark.parametrize(("name", "dtype"), [("half", "float16"), ("BF16", "bfloat16"), ("double", "float64"), ("u8", "uint8")])
def test_types_answer_to_their_other_names(name, dtype):
    assert dtype_named(name).name == dtype


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UsageError, match=r"dtype 'f99' .*float64, float32, .*uint8"):
        dtype_named("f99")
    with pytest.raises(UsageError, match=r"redop 'xor' .*sum, .*bxor"):
        redop_named("xor")
    assert redop_named("SUM") == "sum"


@pytest.mark.parametrize(
    ("redop", "dtype", "fits"),
    [
        ("avg", "float32", True), ("avg", "bfloat16", True), ("avg", "int32", False), ("band", "int32", True), ("band", "float32", False),
        ("bxor", "uint8", True), ("sum", "int32", True), ("sum", "float32", True),
    ],
)  # fmt: skip
def test_averages_are_of_floats_and_bitwise_reductions_of_integers(redop, dtype, fits):
    assert undefined_redop(redop, DTYPES[dtype]) == (None if fits else RedopUndefined(redop, dtype))


def test_a_cases_title():
    assert make_case("float32", 2**20, redop="max").title() == "allreduce 4 MiB on simulated (float32, max)"
    assert make_case("int8", 8, redop=None, root=3).title() == "allreduce 8 B on simulated (int8, root 3)"


@pytest.mark.parametrize(
    ("name", "new", "old"),
    [("allgather", "all_gather_single", "all_gather_into_tensor"), ("reducescatter", "reduce_scatter_single", "reduce_scatter_tensor")],
)
@pytest.mark.parametrize("has", [True, False])
def test_torch_2_13_has_new_names_for_what_older_ones_have_too(name, new, old, has):
    x = MagicMock()
    x.has = lambda function: has and function == new
    list(ALL[name].steps["torch"](x))
    assert x.call.call_args.args[0] == (new if has else old)
