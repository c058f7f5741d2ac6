"""The overlap of operations: the computation's amounts and slices, whole blocks of the plan, and real libraries."""

import ctypes
import gc
import json
import weakref
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.backends.nonblocking import busy
from collbench.measuring.request import Budget
from collbench.measuring.sampling import schedule
from collbench.operations.program import NativeCall, NonBlocking, Program, PythonCall
from collbench.plugins.overlap.computation import Computation
from collbench.plugins.overlap.measurement import OverlapStates, _states
from collbench.plugins.overlap.records import AssistanceMissing, overlap_of
from collbench.results.reader import read_run
from tests.cli.command import run
from tests.fake_gpu import environment
from tests.plugins.training.reading import BACKENDS, read_workload


def test_the_states_keep_the_memory_of_the_test_calls() -> None:
    """MPI_Test writes its flag at each call: freed memory would be overwritten, and the process would end later by a segmentation fault."""
    flag = np.zeros(1, np.int32)
    is_alive = weakref.ref(flag)
    nothing = Program(((busy(0),),))
    tests = Program(((busy(0),),), keep=flag)
    states = _states(NonBlocking(nothing, nothing), Computation(10), tests, 2)
    in_turn = replace(states[2], slots=tuple(slot for state in states for slot in state.slots))  # as the loop of a case runs them
    del flag, tests, states
    gc.collect()
    assert in_turn.slots and is_alive() is not None


@pytest.mark.parametrize("native", [True, False])
def test_slices_are_one_computation_of_all_blocks_and_at_least_of_one(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr("collbench.plugins.overlap.computation.library", lambda: None)
    computation = Computation(10)
    calls = [*computation.calls(), *computation.calls(3, [busy(0)])]
    for call in calls:
        if isinstance(call, NativeCall):
            first, second = (*call.args, 0)[:2]  # `busy` has one argument
            assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_int64)(call.pointer)(first, second) == 0
        else:
            call.function()
    assert len(calls) == 1 + 3 + 2
    assert computation._state.next == 20 and computation.seconds(2).shape == (2,) and (computation.seconds(2) > 0).all()
    assert np.isclose(computation._memory, 1).all()
    with pytest.raises(ValueError, match="2 are known"):
        computation.seconds(3)
    computation.amount = 0
    assert computation.amount == 1 and all(isinstance(call, NativeCall | PythonCall) for call in computation.calls())


@pytest.mark.parametrize(("budget", "blocks", "stopped"), [
    (Budget(100, iterations=7), 7, "iterations"), (Budget(1e9), 60, "precision"), (Budget(5.0), 4, "max_time"),
])  # fmt: skip
def test_the_plan_takes_whole_blocks(budget: Budget, blocks: int, stopped: str) -> None:
    clock = [0.0]
    in_turn = OverlapStates(4, [0, 1], Computation(10), "calls", None, None)
    plan, states = schedule(in_turn.rule(budget, 1 << 30), lambda: clock[0]), np.array([0.2, 0.2, 0.3, 0.25])
    batch = next(plan)
    while True:
        assert batch[0] % 4 == 0 and batch[1] == 1
        taken = np.tile(states, (2, batch[0] // 4))
        clock[0] += float(taken[0].sum())
        try:
            batch = plan.send(taken)
        except StopIteration as stop:
            measured = stop.value
            break
    assert measured.stopped == stopped and measured.samples.shape[1] % 4 == 0
    assert measured.samples.shape[1] // 4 >= blocks and ("few_samples" in measured.flags) == (measured.samples.shape[1] // 4 < 60)


@pytest.mark.system
@pytest.mark.often("mpi")
@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_real_states_are_measured_stored_and_right(backend: str, tmp_path: Path) -> None:
    done = run(tmp_path, "allreduce", "--overlap", "--backend", backend, "--sizes", "64K", "-n", "5", "--ranks", "2", "--out", "run")
    assert done.returncode == 0, done.stderr
    stored = read_run(tmp_path / "run")
    (row,) = stored.rows
    known = overlap_of(row.overlap)
    assert known is not None and row.mode == "overlap" and row.n == known.blocks == 5 and row.wrong == 0
    assert row.busbw_bytes_per_s is None and row.percent_of_ceiling is None and row.time_s is not None and row.time_s.p50 == known.both_s
    assert row.samples["states_s"]["shape"] == [4 if backend == "mpi" else 3, 5]
    assert (known.assisted is None) == (backend == "gloo") == (known.unassisted is not None)
    assert known.progress == ("calls" if backend == "mpi" else "threads")
    report = run(tmp_path, "report", "run", "--csv", "-")
    head, line = report.stdout.splitlines()[:2]
    assert "overlap_percent" in head.split(",") and report.returncode == 0 and line.startswith("run,allreduce")


@pytest.mark.long
def test_on_a_fake_gpu_the_kernel_computes_beside_the_library_and_data_is_right(tmp_path: Path) -> None:
    words = ("allreduce", "--overlap", "--backend", "nccl", "--sizes", "64K", "-n", "5", "--ranks", "2", "--out", "run")
    done = run(tmp_path, *words, env=environment(2))
    assert done.returncode == 0, done.stderr
    (row,) = read_run(tmp_path / "run").rows
    known = overlap_of(row.overlap)
    assert known is not None and (row.device, row.n, row.wrong, known.blocks) == ("cuda", 5, 0, 5)
    assert (known.progress, known.unassisted) == ("kernels", AssistanceMissing("nccl", "kernels"))
    assert row.samples["states_s"]["shape"] == [3, 5] and known.computation_s > 0 and known.slowdown.value > 0
    assert row.time_s is not None and row.time_s.p50 == known.both_s and row.busbw_bytes_per_s is None


@pytest.mark.long
def test_a_step_computes_on_a_fake_gpu(tmp_path: Path) -> None:
    words = ("--model", "2M", "--bucket", "4M", "--backend", "nccl", "--ranks", "2", "--compute", "real", "--max-time", "1", "--out", "run")
    done = run(tmp_path, "workload", "data-parallel", *words, env=environment(2))
    assert done.returncode == 0, done.stderr
    known = read_workload(tmp_path / "run")[1][0].computing
    assert known is not None and known.overlap is not None and known.refusal is None
    assert (known.overlap.progress, known.overlap.blocks > 0, known.overlap.computation_s > 0) == ("kernels", True, True)


@pytest.mark.long
def test_a_backend_that_cannot_start_an_operation_is_not_available(tmp_path: Path) -> None:
    done = run(tmp_path, "p2p", "--overlap", "--backend", "socket", "--sizes", "8", "--ranks", "2", "--format", "jsonl")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 2 and {row["na_fact"]["kind"] for row in rows} == {"start_unsupported"}
