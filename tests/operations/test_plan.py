"""The sweep: which cases, in which order, in whole elements, each once."""

import pytest

from collbench.errors import UsageError
from collbench.operations.builtin.allgather import ALLGATHER
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.broadcast import BROADCAST
from collbench.operations.builtin.p2p import P2P_BANDWIDTH
from collbench.operations.dtypes import DTYPES
from collbench.operations.sweep import CPU, CUDA, BackendDefaults, Sweep, rounding_note, tuning_note

F32, F64, I8 = (DTYPES[name] for name in ("float32", "float64", "int8"))


def sweep(*operations, sizes=(8,), dtypes=(F32,), **more):
    return Sweep(tuple(operations), tuple(sizes), tuple(dtypes), **more)


def sizes_of(cases):
    return [(case.size_bytes, case.flags) for case in cases]


def test_by_operation_dtype_redop_and_root_with_sizes_ascending():
    both = sweep(ALLREDUCE, BROADCAST, sizes=(8, 16), dtypes=(F32, F64), redops=("sum", "max"), roots=(0, 1))
    found = [(c.operation, c.dtype.name, c.redop, c.root, c.size_bytes) for c in both.cases("mpi", 2)]
    assert found[:5] == [
        ("allreduce", "float32", "sum", None, 8), ("allreduce", "float32", "sum", None, 16),
        ("allreduce", "float32", "max", None, 8), ("allreduce", "float32", "max", None, 16),
        ("allreduce", "float64", "sum", None, 8),
    ]  # fmt: skip
    assert found[8:11] == [
        ("broadcast", "float32", None, 0, 8), ("broadcast", "float32", None, 0, 16), ("broadcast", "float32", None, 1, 8),
    ]  # fmt: skip
    assert len(found) == len(set(found)) == 16


def test_cases_carry_what_was_asked_for():
    (case,) = sweep(P2P_BANDWIDTH, mode="pipelined", in_place=True, buffers="rotating", window=5, seed=9).cases("gloo", 2)
    assert (case.backend, case.mode, case.in_place, case.buffers, case.window, case.seed) == ("gloo", "pipelined", True, "rotating", 5, 9)
    assert (case.redop, case.root, case.flags) == (None, None, ())


def test_only_windowed_operations_have_a_window():
    assert next(sweep(ALLREDUCE).cases("mpi", 2)).window is None


def test_sizes_are_rounded_down_to_whole_elements_and_flagged():
    assert sizes_of(sweep(ALLREDUCE, sizes=(10, 16, 21)).cases("mpi", 2)) == [(8, ("size_rounded",)), (16, ()), (20, ("size_rounded",))]


def test_the_smallest_size_is_one_element():
    assert sizes_of(sweep(ALLREDUCE, sizes=(1,), dtypes=(F64,)).cases("mpi", 2)) == [(8, ("size_rounded",))]


def test_sizes_that_round_to_the_same_are_measured_once():
    assert sizes_of(sweep(ALLREDUCE, sizes=(1, 2, 3, 4, 5, 7, 8)).cases("mpi", 2)) == [(4, ("size_rounded",)), (8, ())]


def test_operations_of_several_parts_round_to_whole_parts():
    assert [c.size_bytes for c in sweep(ALLGATHER, sizes=(8, 100), dtypes=(I8,)).cases("mpi", 3)] == [6, 99]


@pytest.mark.parametrize("root", [2, 99])
def test_a_root_that_is_no_rank(root):
    with pytest.raises(UsageError, match=f"root {root} .* 0 to 1"):
        sweep(BROADCAST, roots=(0, root)).check_ranks(2)
    sweep(BROADCAST, roots=(0, root)).check_ranks(100)
    sweep(ALLREDUCE, roots=(root,)).check_ranks(2)


def test_rounding_is_reported_in_one_sentence():
    note = rounding_note(sweep(ALLREDUCE, sizes=(16, 21), dtypes=(F32,)))
    assert note == "sizes are rounded to whole float32 elements of 4 bytes (e.g. to 20 bytes)"
    assert rounding_note(sweep(ALLREDUCE, sizes=(8, 16), dtypes=(F32, F64, I8))) is None
    assert rounding_note(Sweep((ALLREDUCE,), None, (F64,))) is None
    note = rounding_note(Sweep((ALLREDUCE,), None, (F64,), step="x1.5"))
    assert note == "sizes are rounded to whole float64 elements of 8 bytes (e.g. to 16 bytes)"


NCCL = BackendDefaults("cuda", "pipelined", "rotating", 1024, tuned=True)


def habits(backend):
    return {"nccl": NCCL, "torch-nccl": CUDA}.get(backend, CPU)


def tunings_of(cases):
    return [(case.registration, case.algorithm, case.protocol) for case in cases]


@pytest.mark.parametrize(
    ("backend", "device", "mode", "buffers", "largest"),
    [
        ("mpi", "cpu", "isolated", "fixed", 64 * 2**20),
        ("torch-nccl", "cuda", "pipelined", "rotating", 2**30),
        ("nccl", "cuda", "pipelined", "rotating", 1024),
    ],
)
def test_what_was_not_asked_for_is_the_backends_habit(backend, device, mode, buffers, largest):
    cases = list(sweep(ALLREDUCE, defaults=habits).cases(backend, 2))
    assert {(case.device, case.mode, case.buffers) for case in cases} == {(device, mode, buffers)}
    usual = list(Sweep((ALLREDUCE,), None, (F32,), defaults=habits).cases(backend, 2))
    assert (usual[0].size_bytes, usual[1].size_bytes, usual[-1].size_bytes) == (8, 16, largest)


def test_what_was_asked_for_holds_for_every_backend():
    asked = sweep(ALLREDUCE, device="cuda", mode="batched", buffers="fixed", defaults=habits)
    for backend in ("mpi", "nccl"):
        (case,) = asked.cases(backend, 2)
        assert (case.size_bytes, case.device, case.mode, case.buffers) == (8, "cuda", "batched", "fixed")


def test_the_step_between_the_usual_sizes():
    assert [c.size_bytes for c in Sweep((ALLREDUCE,), None, (F32,), step="x4", defaults=habits).cases("nccl", 2)] == [8, 32, 128, 512]


def test_all_combinations_are_beside_the_automatic_choice_sizes_ascending_in_each():
    asked = sweep(ALLREDUCE, sizes=(8, 16), algorithms=("ring", "tree"), protocols=("ll", "ll128"), defaults=habits)
    cases = list(asked.cases("nccl", 2))
    assert tunings_of(cases)[::2] == tunings_of(cases)[1::2] == [
        ("none", None, None), ("none", "ring", "ll"), ("none", "ring", "ll128"), ("none", "tree", "ll"), ("none", "tree", "ll128"),
    ]  # fmt: skip
    assert [case.size_bytes for case in cases] == [8, 16] * 5


@pytest.mark.parametrize(
    ("asked", "tunings"),
    [
        ({}, [("none", None, None)]),
        ({"algorithms": ("nvls",)}, [("none", None, None), ("none", "nvls", None)]),
        ({"protocols": ("simple",)}, [("none", None, None), ("none", None, "simple")]),
        ({"registrations": ("registered", "symmetric")}, [("registered", None, None), ("symmetric", None, None)]),
    ],
)
def test_what_is_not_named_is_left_to_the_library(asked, tunings):
    assert tunings_of(sweep(ALLREDUCE, defaults=habits, **asked).cases("nccl", 2)) == tunings


def test_other_backends_have_one_plain_case_and_a_note_reports_it():
    asked = sweep(ALLREDUCE, algorithms=("ring", "tree"), registrations=("none", "symmetric"), defaults=habits)
    assert tunings_of(asked.cases("mpi", 2)) == tunings_of(asked.cases("torch-nccl", 2)) == [(None, None, None)]
    ignored = "--algorithms, --protocols and --registration apply to nccl only, not to"
    assert tuning_note(asked, ["nccl", "mpi"]) == f"{ignored} mpi"
    assert tuning_note(asked, ["nccl", "mpi", "gloo"]) == f"{ignored} mpi and gloo"
    assert tuning_note(asked, ["nccl"]) is None
    assert tuning_note(sweep(ALLREDUCE, defaults=habits), ["nccl", "mpi"]) is None


def test_a_window_is_64_messages_and_at_most_256_mib():
    sizes = (8, 4 << 20, 8 << 20, 64 << 20, 1 << 30)
    plan = Sweep((P2P_BANDWIDTH,), sizes, (DTYPES["uint8"],))
    assert [case.window for case in plan.cases("mpi", 2)] == [64, 64, 32, 4, 1]
