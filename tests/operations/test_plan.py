"""The sweep: which cells, in which order, in whole elements, each once."""

import pytest

from collbench.errors import UsageError
from collbench.operations.allreduce import ALLREDUCE
from collbench.operations.broadcast import BROADCAST
from collbench.operations.dtypes import DTYPES
from collbench.operations.p2p_bandwidth import P2P_BANDWIDTH
from collbench.operations.plan import Sweep, rounding_note
from tests.helpers import ALLGATHER

F32, F64, I8 = (DTYPES[name] for name in ("float32", "float64", "int8"))


def sweep(*operations, sizes=(8,), dtypes=(F32,), **more):
    return Sweep(tuple(operations), tuple(sizes), tuple(dtypes), **more)


def sizes_of(cells):
    return [(cell.size_bytes, cell.flags) for cell in cells]


def test_by_operation_dtype_redop_and_root_with_sizes_ascending():
    both = sweep(ALLREDUCE, BROADCAST, sizes=(8, 16), dtypes=(F32, F64), redops=("sum", "max"), roots=(0, 1))
    found = [(c.operation, c.dtype.name, c.redop, c.root, c.size_bytes) for c in both.cells("mpi", 2)]
    assert found[:5] == [
        ("allreduce", "float32", "sum", None, 8), ("allreduce", "float32", "sum", None, 16),
        ("allreduce", "float32", "max", None, 8), ("allreduce", "float32", "max", None, 16),
        ("allreduce", "float64", "sum", None, 8),
    ]  # fmt: skip
    assert found[8:11] == [
        ("broadcast", "float32", None, 0, 8), ("broadcast", "float32", None, 0, 16), ("broadcast", "float32", None, 1, 8),
    ]  # fmt: skip
    assert len(found) == len(set(found)) == 16


def test_cells_carry_what_was_asked_for():
    (cell,) = sweep(P2P_BANDWIDTH, mode="pipelined", in_place=True, buffers="rotating", window=5, seed=9).cells("gloo", 2)
    assert (cell.backend, cell.mode, cell.in_place, cell.buffers, cell.window, cell.seed) == ("gloo", "pipelined", True, "rotating", 5, 9)
    assert (cell.redop, cell.root, cell.flags) == (None, None, ())


def test_only_windowed_operations_have_a_window():
    assert next(sweep(ALLREDUCE).cells("mpi", 2)).window is None


def test_sizes_are_rounded_down_to_whole_elements_and_flagged():
    assert sizes_of(sweep(ALLREDUCE, sizes=(10, 16, 21)).cells("mpi", 2)) == [(8, ("size_rounded",)), (16, ()), (20, ("size_rounded",))]


def test_the_smallest_size_is_one_element():
    assert sizes_of(sweep(ALLREDUCE, sizes=(1,), dtypes=(F64,)).cells("mpi", 2)) == [(8, ("size_rounded",))]


def test_sizes_that_round_to_the_same_are_measured_once():
    assert sizes_of(sweep(ALLREDUCE, sizes=(1, 2, 3, 4, 5, 7, 8)).cells("mpi", 2)) == [(4, ("size_rounded",)), (8, ())]


def test_operations_of_several_parts_round_to_whole_parts():
    assert [c.size_bytes for c in sweep(ALLGATHER, sizes=(8, 100), dtypes=(I8,)).cells("mpi", 3)] == [6, 99]


@pytest.mark.parametrize("root", [2, 99])
def test_a_root_that_is_no_rank(root):
    with pytest.raises(UsageError, match=f"root {root} is not among the 2 ranks: choose one from 0 to 1"):
        sweep(BROADCAST, roots=(0, root)).check_ranks(2)
    sweep(BROADCAST, roots=(0, root)).check_ranks(100)
    sweep(ALLREDUCE, roots=(root,)).check_ranks(2)


def test_rounding_is_said_in_one_sentence():
    note = rounding_note(sweep(ALLREDUCE, sizes=(16, 21), dtypes=(F32,)))
    assert note == "sizes are rounded to whole float32 elements of 4 bytes (for example to 20 bytes)"
    assert rounding_note(sweep(ALLREDUCE, sizes=(8, 16), dtypes=(F32, F64, I8))) is None
