"""The facts of every operation: bus factors as nccl-tests documents them, senders and receivers; programs of calls, and plug-ins."""

import subprocess
import sys
from unittest.mock import MagicMock
from zipfile import ZipFile

import pytest

from collbench.errors import UsageError
from collbench.operations.dtypes import DTYPES, dtype_named, redop_named, undefined_redop
from collbench.operations.operation import has_mark, in_place_only, result_first
from collbench.operations.program import NativeCall, Program, PythonCall, joined
from collbench.operations.registry import commands, operations
from collbench.operations.unsupported import NotPowerOfTwo, RedopUndefined, TooFewRanks
from collbench.plugin import entries
from tests.helpers import make_case, make_place

ALL = operations()
# FIELD.md: how many parts of count·width a size has, and busbw / algbw, both by the number of ranks n.
ONE_WAY = ("put_latency", "put_bandwidth", "get_latency", "get_bandwidth", "accumulate")
FACTS = {
    **dict.fromkeys(("broadcast", "reduce", "sendrecv", *ONE_WAY), (lambda n: 1, lambda n: 1)),
    **dict.fromkeys(("p2p_latency", "p2p_bandwidth", "p2p_bidirectional"), (lambda n: 1, lambda n: 1)),
    **dict.fromkeys(("allgather", "reducescatter", "alltoall", "gather", "scatter"), (lambda n: n, lambda n: (n - 1) / n)),
    **dict.fromkeys(("neighbor_allgather", "neighbor_alltoall"), (lambda n: 2, lambda n: 1)),  # half a size to each neighbour
    "allreduce": (lambda n: 1, lambda n: 2 * (n - 1) / n), "hypercube": (lambda n: n - 1, lambda n: 1),
}  # fmt: skip


@pytest.mark.parametrize("name", FACTS)
@pytest.mark.parametrize("n", [2, 4, 8, 1024])
def test_parts_and_bus_factors_are_those_of_nccl_tests(name, n):
    parts, factor = FACTS[name]
    assert (ALL[name].parts(n), ALL[name].bus_factor(n)) == (parts(n), factor(n))


def test_size_is_parts_times_width_one_rank_has_no_bus_and_types_hold_what_they_promise():
    for name in (*FACTS, "alltoallv", "barrier"):
        assert (ALL[name].bus_factor(1), ALL[name].count(make_case("float64", 100), 1)) == (0, 100), name
    counts = {name: ALL[name].count(make_case("float64", 100), 4) for name in ("allreduce", "allgather", "hypercube")}
    assert counts == {"allreduce": 100, "allgather": 25, "hypercube": 33}
    assert ALL["allgather"].count(make_case("float64", 3), 4) == 0
    for dtype in DTYPES.values():
        assert int(dtype.numpy.type(dtype.exact)) == dtype.exact
        assert float(dtype.numpy.type(2.0**dtype.exponent)) == 2.0**dtype.exponent
        assert dtype.numpy.itemsize == dtype.size


# (elements sent, elements received) by the ranks 0, 1, 2 of 4, where a part has 10 elements and the root is 1
SHAPES = {
    **{name: [(10, 10)] * 3 for name in ("allreduce", "sendrecv", "p2p_bidirectional")},
    **{name: [(10, 40)] * 3 for name in ("allgather", "hypercube")},
    **{name: [(10, 0), (10, 10), (10, 0)] for name in ("reduce", "accumulate")},
    **{name: [(10, 0), (0, 10), (0, 0)] for name in ("p2p_bandwidth", "put_latency")},
    "broadcast": [(0, 10), (10, 10), (0, 10)], "reducescatter": [(40, 10)] * 3, "alltoall": [(40, 40)] * 3,
    "gather": [(10, 0), (10, 40), (10, 0)], "scatter": [(0, 10), (40, 10), (0, 10)], "get_bandwidth": [(0, 10), (10, 0), (0, 0)],
    "neighbor_allgather": [(10, 20)] * 3, "neighbor_alltoall": [(20, 20)] * 3,
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_senders_and_receivers(name):
    places = [make_place(rank, 4, 10, redop=None, root=1) for rank in range(3)]
    assert [(ALL[name].sends(place), ALL[name].receives(place)) for place in places] == SHAPES[name]


@pytest.mark.parametrize(("name", "rank", "n", "blocks"), [  # the ranks whose elements arrive, and where
    ("sendrecv", 0, 3, [([2], 0)]), ("alltoall", 2, 3, [([0], 20), ([1], 20), ([2], 20)]), ("scatter", 2, 3, [([1], 20)]),
    ("gather", 1, 3, [([0], 0), ([1], 0), ([2], 0)]), ("allgather", 0, 3, [([0], 0), ([1], 0), ([2], 0)]),
    ("reducescatter", 2, 3, [([0, 1, 2], 20)]), ("neighbor_allgather", 0, 3, [([2], 0), ([1], 0)]),
    ("neighbor_alltoall", 0, 3, [([2], 10), ([1], 0)]), ("neighbor_allgather", 0, 2, [([1], 0), ([1], 0)]),
    ("neighbor_alltoall", 0, 2, [([1], 10), ([1], 0)]),  # what rank 1 sends forwards comes from behind
])  # fmt: skip
def test_whose_elements_arrive(name, rank, n, blocks):
    place = make_place(rank, n, 10, redop=None, root=1)
    assert [(list(block.sources), block.at) for block in ALL[name].expected_blocks(place)] == blocks


def test_one_sided_data_goes_one_way_and_is_reduced_into_what_rank_1_has():
    def arriving(name, rank):
        return [list(block.sources) for block in ALL[name].expected_blocks(make_place(rank, 2, 10))]

    assert [arriving(name, 0) for name in ONE_WAY] == [[], [], [[1]], [[1]], []]
    assert [arriving(name, 1) for name in ONE_WAY] == [[[0]], [[0]], [], [], [[0, 1]]]
    assert all(ALL[name].one_sided and ALL[name].pair for name in ONE_WAY)


# In place, where the send elements lie in the receive buffer: by rank 0, 1, 2 of 3, a part of 10 elements, root 1.
SHIFTS = {
    **{name: [0, 0, 0] for name in ("reduce", "alltoall", "sendrecv")},
    **{name: [0, 10, 20] for name in ("allgather", "hypercube")},
    "reducescatter": [0, -10, -20],  # nccl-tests: recvbuff = sendbuff + rank·count
    "gather": [0, 10, 0],  # nccl.h: sendbuff == recvbuff + root * count
    "scatter": [0, -10, 0],  # nccl.h: recvbuff == sendbuff + root * count
}


@pytest.mark.parametrize("name", SHIFTS)
def test_where_in_place_is(name):
    places = [make_place(rank, 3, 10, redop=None, root=1, in_place=True) for rank in range(3)]
    assert [ALL[name].in_place_shift(place) for place in places] == SHIFTS[name]


def test_marks_of_steps_add_up_and_mpi_reduces_and_scatters_in_place_at_the_start():
    place = make_place(2, 3, 10, in_place=True)
    assert [ALL["reducescatter"].on(api).in_place_shift(place) for api in ("mpi", "nccl", "torch")] == [0, -20, -20]
    assert ALL["allgather"].on("mpi") is ALL["allgather"]
    both = in_place_only(result_first(lambda x: iter(())))
    assert [has_mark(both, mark) for mark in ("in_place_only", "result_first", "out_of_place_only")] == [True, True, False]
    assert not has_mark(None, "in_place_only")


# By api the operations with one placing only; "messages" means messages of a library.
ONLY = {
    ("mpi", "in_place_only"): {"broadcast", "hypercube"}, ("nccl", "in_place_only"): {"hypercube"},
    ("torch", "in_place_only"): {"allreduce", "broadcast", "reduce", "hypercube"},
    ("nccl", "out_of_place_only"): {"alltoall", "sendrecv"}, ("torch", "out_of_place_only"): {"alltoall", "sendrecv"},
    ("mpi", "out_of_place_only"): {"neighbor_allgather", "neighbor_alltoall"},
}  # fmt: skip


@pytest.mark.parametrize(("api", "mark"), ONLY)
def test_which_placings_each_api_knows(api, mark):
    assert {name for name in SHAPES if has_mark(ALL[name].steps_of(api, messages=True), mark)} == ONLY[api, mark]


def test_a_hypercube_has_a_power_of_two_corners_and_a_ring_two_ranks_at_least():
    fits = {n: ALL["hypercube"].needs(n, make_case()) for n in (1, 2, 3, 8, 12, 1024)}
    assert fits == {2: None, 8: None, 1024: None, **{n: NotPowerOfTwo("hypercube", n) for n in (1, 3, 12)}}
    for name in ("sendrecv", "neighbor_allgather", "neighbor_alltoall"):
        assert [ALL[name].needs(n, make_case()) for n in (1, 2, 3)] == [TooFewRanks(name), None, None]


def test_messages_per_iteration_and_the_title_of_a_case():
    case = make_case(window=64)
    assert [ALL[name].moves(case) for name in ("allreduce", "p2p_latency", "p2p_bandwidth", "p2p_bidirectional")] == [1, 2, 64, 64]
    assert [ALL[name].moves(case) for name in ("put_latency", "put_bandwidth", "get_latency", "get_bandwidth")] == [1, 64, 1, 64]
    assert make_case("float32", 2**20, redop="max").title() == "allreduce 4 MiB on simulated (float32, max)"
    assert make_case("int8", 8, redop=None, root=3).title() == "allreduce 8 B on simulated (int8, root 3)"


def test_types_and_reductions_answer_to_their_other_names_and_unknown_ones_list_the_known_ones():
    assert [dtype_named(name).name for name in ("half", "BF16", "double", "u8")] == ["float16", "bfloat16", "float64", "uint8"]
    assert redop_named("SUM") == "sum"
    with pytest.raises(UsageError, match=r"dtype 'f99' .*float64, float32, .*uint8"):
        dtype_named("f99")
    with pytest.raises(UsageError, match=r"redop 'xor' .*sum, .*bxor"):
        redop_named("xor")


@pytest.mark.parametrize(("redop", "dtype", "fits"), [
    ("avg", "float32", True), ("avg", "bfloat16", True), ("avg", "int32", False), ("band", "int32", True), ("band", "float32", False),
    ("bxor", "uint8", True), ("sum", "int32", True), ("sum", "float32", True),
])  # fmt: skip
def test_averages_are_of_floats_and_bitwise_reductions_of_integers(redop, dtype, fits):
    assert undefined_redop(redop, DTYPES[dtype]) == (None if fits else RedopUndefined(redop, dtype))


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


def calls(*names):
    return tuple(PythonCall(name, print) for name in names)


def test_a_program_is_native_when_every_call_is_and_a_native_call_has_at_most_twelve_arguments():
    assert NativeCall("f", 1, tuple(range(12))).args == tuple(range(12))
    with pytest.raises(ValueError, match=r"MPI_Ialltoallw .*13"):
        NativeCall("MPI_Ialltoallw", 1, tuple(range(13)))
    native = NativeCall("f", 1, ())
    assert Program(((native,), (native,))).native
    assert not Program(((native,), (native, *calls("g")))).native
    assert Program(((),)).native


def test_the_names_of_one_iteration_and_joined_programs_run_one_after_another_in_each_iteration():
    assert list(Program((calls("a", "b"), calls("a", "b"))).calls()) == ["a", "b"]
    assert list(Program(()).calls()) == []
    assert Program(((),)).explain(15) == "error code 15"
    one, two = Program((calls("a"), calls("b")), explain=lambda code: "first"), Program((calls("c"), calls("d", "e")), explain=str)
    both = joined([one, two])
    assert [[call.name for call in slot] for slot in both.slots] == [["a", "c"], ["b", "d", "e"]]
    assert both.explain(7) == "first"
    assert both.keep == [one, two]
    one = Program((calls("a"),))
    assert joined([one]) is one


def test_each_operation_is_registered_under_its_name_and_a_command_may_have_several():
    assert operations() and all(name == operation.name for name, operation in operations().items())
    assert [operation.name for operation in commands()["p2p"]] == ["p2p_latency", "p2p_bandwidth", "p2p_bidirectional"]
    assert [operation.name for operation in commands()["allreduce"]] == ["allreduce"]
    assert [operation.name for operation in commands()["put"]] == ["put_latency", "put_bandwidth"]


@pytest.mark.parametrize("about", ["pack-1.0.dist-info", "pack.egg-info", "pack.egg/EGG-INFO", "pack.zip"])
def test_a_plug_in_is_found_in_every_form_of_install(about, tmp_path, monkeypatch):
    files = {"METADATA": "Metadata-Version: 2.1\nName: pack\nVersion: 1.0\n", "entry_points.txt": "[collbench.operations]\nmine = pack\n"}
    files["PKG-INFO"] = files["METADATA"]
    place = tmp_path / about
    if place.suffix != ".zip":
        place.mkdir(parents=True)
    for name, text in files.items():
        if place.suffix == ".zip":
            with ZipFile(place, "a") as archive:
                archive.writestr(f"pack-1.0.dist-info/{name}", text)
        else:
            (place / name).write_text(text)
    monkeypatch.syspath_prepend(place if place.suffix == ".zip" else place.parent)
    assert entries("collbench.operations", ())["mine"].package == "pack"


@pytest.mark.contract
def test_finding_the_operations_imports_no_numpy_and_no_library():
    code = "import sys, collbench.operations.registry as r; r.operations(); print({'numpy', 'torch', 'mpi4py'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"
