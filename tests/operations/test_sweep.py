"""Sweeps: which cases, in which order, in whole elements, each once; several are measured in one launch."""

import pytest
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.operations.builtin.allgather import ALLGATHER
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.broadcast import BROADCAST
from collbench.operations.builtin.p2p import P2P_BANDWIDTH, P2P_LATENCY
from collbench.operations.case import Split
from collbench.operations.dtypes import DTYPES
from collbench.operations.sweep import CPU, CUDA, BackendDefaults, Sweep, Sweeps, rounding_note, tuning_note

F32, F64, I8 = (DTYPES[name] for name in ("float32", "float64", "int8"))


def sweep(*operations, sizes=(8,), dtypes=(F32,), **more):
    return Sweep(tuple(operations), tuple(sizes), tuple(dtypes), **more)


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


def test_cases_carry_what_was_asked_for_and_only_windowed_operations_have_a_window():
    (case,) = sweep(P2P_BANDWIDTH, mode="pipelined", in_place=True, buffers="rotating", window=5, seed=9).cases("gloo", 2)
    assert (case.backend, case.mode, case.in_place, case.buffers, case.window, case.seed) == ("gloo", "pipelined", True, "rotating", 5, 9)
    assert (case.redop, case.root, case.flags) == (None, None, ())
    assert next(sweep(ALLREDUCE).cases("mpi", 2)).window is None


ROUNDED = ("size_rounded",)


@pytest.mark.parametrize(("asked", "n", "sizes"), [
    pytest.param(sweep(ALLREDUCE, sizes=(10, 16, 21)), 2, [(8, ROUNDED), (16, ()), (20, ROUNDED)], id="whole elements"),
    pytest.param(sweep(ALLREDUCE, sizes=(1,), dtypes=(F64,)), 2, [(8, ROUNDED)], id="one element at least"),
    pytest.param(sweep(ALLREDUCE, sizes=(1, 2, 3, 4, 5, 7, 8)), 2, [(4, ROUNDED), (8, ())], id="each once"),
    pytest.param(sweep(ALLGATHER, sizes=(8, 100), dtypes=(I8,)), 3, [(6, ROUNDED), (99, ROUNDED)], id="whole parts"),
])  # fmt: skip
def test_sizes_are_rounded_down_and_flagged(asked, n, sizes):
    assert [(case.size_bytes, case.flags) for case in asked.cases("mpi", n)] == sizes


@pytest.mark.parametrize("root", [2, 99])
def test_a_root_that_is_no_rank(root):
    with pytest.raises(UsageError, match=f"root {root} .* 0 to 1"):
        sweep(BROADCAST, roots=(0, root)).check_ranks(2)
    sweep(BROADCAST, roots=(0, root)).check_ranks(100)
    sweep(ALLREDUCE, roots=(root,)).check_ranks(2)


def test_rounding_is_reported_in_one_sentence_and_a_window_is_at_most_256_mib():
    note = rounding_note(sweep(ALLREDUCE, sizes=(16, 21), dtypes=(F32,)))
    assert note == "sizes are rounded to whole float32 elements of 4 bytes (e.g. to 20 bytes)"
    assert rounding_note(sweep(ALLREDUCE, sizes=(8, 16), dtypes=(F32, F64, I8))) is None
    assert rounding_note(Sweep((ALLREDUCE,), None, (F64,))) is None
    note = rounding_note(Sweep((ALLREDUCE,), None, (F64,), step="x1.5"))
    assert note == "sizes are rounded to whole float64 elements of 8 bytes (e.g. to 16 bytes)"
    sizes = (8, 4 << 20, 8 << 20, 64 << 20, 1 << 30)
    plan = Sweep((P2P_BANDWIDTH,), sizes, (DTYPES["uint8"],))
    assert [case.window for case in plan.cases("mpi", 2)] == [64, 64, 32, 4, 1]


NCCL = BackendDefaults("cuda", "pipelined", "rotating", 1024, tuned=True)


def habits(backend):
    return {"nccl": NCCL, "torch-nccl": CUDA}.get(backend, CPU)


def tunings_of(cases):
    return [(case.registration, case.algorithm, case.protocol) for case in cases]


@pytest.mark.parametrize(("backend", "device", "mode", "buffers", "largest"), [
    ("mpi", "cpu", "isolated", "fixed", 64 * 2**20), ("torch-nccl", "cuda", "pipelined", "rotating", 2**30),
    ("nccl", "cuda", "pipelined", "rotating", 1024),
])  # fmt: skip
def test_what_was_not_asked_for_is_the_backends_habit(backend, device, mode, buffers, largest):
    cases = list(sweep(ALLREDUCE, defaults=habits).cases(backend, 2))
    assert {(case.device, case.mode, case.buffers) for case in cases} == {(device, mode, buffers)}
    usual = list(Sweep((ALLREDUCE,), None, (F32,), defaults=habits).cases(backend, 2))
    assert (usual[0].size_bytes, usual[1].size_bytes, usual[-1].size_bytes) == (8, 16, largest)


def test_what_was_asked_for_holds_for_every_backend_also_the_step_between_sizes():
    asked = sweep(ALLREDUCE, device="cuda", mode="batched", buffers="fixed", defaults=habits)
    for backend in ("mpi", "nccl"):
        (case,) = asked.cases(backend, 2)
        assert (case.size_bytes, case.device, case.mode, case.buffers) == (8, "cuda", "batched", "fixed")
    assert [c.size_bytes for c in Sweep((ALLREDUCE,), None, (F32,), step="x4", defaults=habits).cases("nccl", 2)] == [8, 32, 128, 512]


def test_all_combinations_are_beside_the_automatic_choice_sizes_ascending_in_each():
    asked = sweep(ALLREDUCE, sizes=(8, 16), algorithms=("ring", "tree"), protocols=("ll", "ll128"), defaults=habits)
    cases = list(asked.cases("nccl", 2))
    assert tunings_of(cases)[::2] == tunings_of(cases)[1::2] == [
        ("none", None, None), ("none", "ring", "ll"), ("none", "ring", "ll128"), ("none", "tree", "ll"), ("none", "tree", "ll128"),
    ]  # fmt: skip
    assert [case.size_bytes for case in cases] == [8, 16] * 5


@pytest.mark.parametrize(("asked", "tunings"), [
    ({}, [("none", None, None)]),
    ({"algorithms": ("nvls",)}, [("none", None, None), ("none", "nvls", None)]),
    ({"protocols": ("simple",)}, [("none", None, None), ("none", None, "simple")]),
    ({"registrations": ("registered", "symmetric")}, [("registered", None, None), ("symmetric", None, None)]),
])  # fmt: skip
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


def placed(*operations, place="sweeps[1]", sizes=(8, 64), dtype="float32", **more):
    return Sweep(operations, sizes, (DTYPES[dtype],), place=place, **more)


def cases(*sweeps, backend="mpi", n=4, **more):
    return [(sweep.place, case.operation, case.size_bytes) for sweep, case in Sweeps(sweeps, **more).placed_cases(backend, n)]


def test_the_cases_come_sweep_by_sweep():
    one, two = placed(BROADCAST, place="a"), placed(ALLREDUCE, place="b", sizes=(4,))
    assert cases(one, two) == [("a", "broadcast", 8), ("a", "broadcast", 64), ("b", "allreduce", 4)]
    both = Sweeps((one, two))
    assert [case.operation for case in both.cases("mpi", 4)] == ["broadcast", "broadcast", "allreduce"]
    assert (both.operations, both.defaults("mpi")) == ((BROADCAST, ALLREDUCE), CPU)


def test_a_sweep_is_for_the_backends_that_it_names_and_else_for_the_usual_ones():
    named, open_ = placed(BROADCAST, place="a", backends=("socket", "mpi")), placed(ALLREDUCE, place="b", sizes=(4,))
    each = {
        name: {place for place, *_ in cases(named, open_, backend=name, default_backends=("mpi", "gloo"))}
        for name in ("socket", "mpi", "gloo")
    }
    assert each == {"socket": {"a"}, "mpi": {"a", "b"}, "gloo": {"b"}}


@pytest.mark.parametrize(("second", "size"), [
    ({}, 8), ({"sizes": (64, 128)}, 64), ({"sizes": (65,)}, 64),  # rounded to whole elements
    ({"in_place": False, "sizes": (8,)}, 8),  # where the library has it, that is the default
])  # fmt: skip
def test_a_case_that_two_sweeps_ask_for_is_refused(second, size):
    with pytest.raises(UsageError) as raised:
        cases(placed(ALLREDUCE, place="sweeps[1] 'a' of x.toml"), placed(ALLREDUCE, place="sweeps[2] of x.toml", **second))
    parts = (f"allreduce {size} B on mpi (float32, sum)", "sweeps[1] 'a' of x.toml", "sweeps[2] of x.toml")
    assert all(part in str(raised.value) for part in parts)


@pytest.mark.parametrize("second", [{"mode": "batched"}, {"dtype": "int8"}, {"buffers": "rotating"}, {"in_place": True}, {"seed": 1}])
def test_what_differs_in_anything_is_another_case(second):
    assert len(cases(placed(ALLREDUCE, place="a"), placed(ALLREDUCE, place="b", **second))) == 4


def test_an_in_place_default_and_a_root_that_is_not_there_are_refused_with_their_place():
    gloo = replace(CPU, in_place_only=lambda operation: operation is ALLREDUCE)
    usual, in_place = placed(ALLREDUCE, place="a", defaults=lambda _: gloo), placed(ALLREDUCE, place="b", in_place=True)
    with pytest.raises(UsageError, match="both define allreduce 8 B"):
        cases(usual, in_place)
    with pytest.raises(UsageError, match=r"^b: root 4 "):
        Sweeps((placed(ALLREDUCE, place="a"), placed(BROADCAST, place="b", roots=(4,)))).check_ranks(4)


def test_what_options_made_alike_or_lists_do_not_distinguish_is_measured_once():
    assert cases(placed(ALLREDUCE, place="a"), placed(ALLREDUCE, place="b"), once=True) == [("a", "allreduce", 8), ("a", "allreduce", 64)]
    halves = [placed(P2P_LATENCY, ALLREDUCE, sizes=(8,), split=split) for split in (None, Split("MOD", 2))]
    assert [operation for _, operation, _ in cases(*halves)] == ["p2p_latency", "allreduce", "allreduce"]


def test_the_notes_cover_all_sweeps():
    tuned = replace(CPU, tuned=True)
    both = Sweeps(
        (placed(ALLREDUCE), placed(ALLREDUCE, sizes=(9,), algorithms=("ring",), defaults=lambda name: tuned if name == "nccl" else CPU))
    )
    rounded = rounding_note(both)
    assert rounded.startswith("sizes are rounded to whole float32 elements of 4 bytes")
    assert tuning_note(replace(both, each=both.each[::-1]), ["nccl", "mpi"]) == (
        "--algorithms, --protocols and --registration apply to nccl only, not to mpi"
    )
