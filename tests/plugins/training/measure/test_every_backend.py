"""Every regime of training on real libraries, also with many exchanges in flight: all data is right, and no update is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from collbench.control.diagnosis import HangCause, HangDiagnosis
from collbench.reason import decode
from collbench.results.reader import read_run
from tests.cli.command import until
from tests.fake_gpu import environment
from tests.plugins.training.reading import BACKENDS, read_workload

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[4]
SMALL = {"model": "30K", "layers": "2", "hidden": "32", "sequence": "16"}
REGIMES = [
    {"regime": "data-parallel", "typed": {"model": "30K", "bucket": "50000"}},
    {"regime": "parameter-server", "typed": {"model": "30K", "bucket": "50000"}},
    {"regime": "parameter-server", "typed": {"model": "30K", "bucket": "50000", "update": "sharded"}},
    {"regime": "parameter-server", "typed": {"model": "30K", "bucket": "50000", "update": "asynchronous"}},
    {"regime": "pipeline", "typed": SMALL},
    {"regime": "tensor-parallel", "typed": SMALL},
    {"regime": "expert-parallel", "typed": {**SMALL, "experts": "6", "imbalance": "1.5"}},
    {"regime": "fsdp", "typed": {"model": "30K", "layers": "2"}},
]
BY_HAND = [
    {"operation": "allreduce", "groups": [[2, 0]], "size_bytes": 4096, "times": 3},
    {"operation": "broadcast", "groups": [[0, 1, 2]], "size_bytes": 4096, "root": 1},
    {"operation": "p2p_bandwidth", "groups": [[1, 2]], "size_bytes": 100_000},
    {"operation": "reduce", "groups": [[1, 0, 2]], "size_bytes": 4096, "root": 2},
    {"operation": "alltoall", "groups": [[0, 1, 2]], "size_bytes": 4800},
]
LONG = [pytest.param(*each.values, marks=[*each.marks, pytest.mark.long]) for each in BACKENDS]


RANK = str(ROOT / "tests/plugins/training/measure/workload_rank.py")
PLUGIN = "[collbench.operations]\nmade_up = tests.contract.made_up\n"
NCCL = pytest.param("nccl", marks=pytest.mark.long)  # the double of tests/fake_gpu: results are right, times mean nothing
BOTH, SIZE, ALIKE = [[0, 1]], 9600, 3


def started(folder, backend, ranks, trainings, path=(), **more):
    """Start the ranks and wait for them; NCCL's on the double of it. path: further folders of Python."""
    asked = {"backends": [backend], "ranks": ranks, "out": str(folder / "run"), "trainings": trainings, "max_time_s": 0.2, **more}
    base = environment(ranks, lacks=()) if backend == "nccl" else os.environ
    env = {**base, "PYTHONPATH": os.pathsep.join([*path, str(ROOT), *filter(None, [base.get("PYTHONPATH")])])}
    line = ["timeout", "-k", "5", "100", sys.executable, RANK, json.dumps(asked)]
    return subprocess.run(line, env=env, capture_output=True, text=True, check=False, cwd=folder)


def measured(folder, backend, ranks, trainings, **more):
    done = started(folder, backend, ranks, trainings, **more)
    assert done.returncode == 0, done.stderr
    _, rows, warnings = read_workload(folder / "run")
    assert not warnings
    return rows


@pytest.mark.parametrize("backend", LONG)
def test_every_regime_moves_its_bytes_to_the_last_element(backend, tmp_path):
    rows = measured(tmp_path, backend, 3, [{**regime, "optional": True} for regime in REGIMES])
    assert [row.regime for row in rows] == [regime["regime"] for regime in REGIMES]
    done = [row for row in rows if row.na is None]
    assert len(done) >= 7 and all((row.checked, row.wrong) == (1, 0) and row.n > 0 and row.busbw_bytes_per_s for row in done)
    assert rows[0].moved_bytes == pytest.approx(2 * 2 / 3 * 120_000, rel=1e-3)  # 30,000 numbers of 4 bytes, over 3 ranks
    (stale,) = [row.staleness for row in done if row.staleness]
    assert [one.rank for one in stale.workers] == [1, 2] and all(one.steps > 0 for one in stale.workers)
    assert [one.updates for one in stale.servers] == [sum(one.steps for one in stale.workers)]


@pytest.mark.often("gloo")
@pytest.mark.parametrize("backend", LONG)
def test_every_routing_of_tokens_is_moved_to_the_last_element(backend, tmp_path):
    tokens = np.random.default_rng(3).multinomial(4 * 64, [1 / 8] * 8, size=(3, 2))
    np.savez(tmp_path / "tokens.npz", tokens=np.minimum(tokens, 4 * 64))
    typed = {**SMALL, "sequence": "64", "experts": "8"}
    types = {"dispatch_dtype": "float8_e4m3fn", "combine_dtype": "bfloat16"}
    trainings = [
        {"regime": "expert-parallel", "typed": {**typed, **types, "routing": "zipf:1.5", "routings": "3"}},
        {"regime": "expert-parallel", "typed": {**typed, "experts": "", "routing": str(tmp_path / "tokens.npz"), "microbatches": "2"}},
    ]
    rows = measured(tmp_path, backend, 4, trainings, iterations=7, warmup=1, max_time_s=20)
    assert [(row.na, row.checked, row.wrong, row.n) for row in rows] == [(None, 1, 0, 3 * 7)] * 2
    generated, read = (row.routing for row in rows)
    assert (generated.dispatch.dtype, generated.combine.dtype) == ("float8_e4m3fn", "bfloat16")
    assert 2 * generated.dispatch.bytes == generated.combine.bytes == 2 * 2 * 4 * 64 * 2 * 32 * 2
    assert read.combine.bytes == 2 * 2 * 2 * 4 * 64 * 32 * 4 and [step.step for step in read.steps] == [0, 1, 2]
    for result in (generated, read):
        assert result.rounds == 7 and result.tax.low < result.tax.value < result.tax.high
        assert all(step.time_s.low < step.time_s.value < step.time_s.high and step.moved_bytes for step in result.steps)


@pytest.mark.long
def test_on_gpus_all_but_servers_that_add_up_or_wait(tmp_path):
    rows = measured(tmp_path, "nccl", 2, [{**regime, "optional": True} for regime in REGIMES], iterations=3, warmup=1)
    reasons = {(row.regime, row.options.get("update", "")): row.na for row in rows}
    assert "gradients to the servers" in reasons["parameter-server", "synchronous"]
    assert "--device cpu" in reasons["parameter-server", "synchronous"]
    assert "mpi or gloo" in reasons["parameter-server", "asynchronous"]
    done = [row for row in rows if row.na is None]
    assert {"data-parallel", "pipeline", "fsdp", "expert-parallel"} <= {row.regime for row in done}
    assert all((row.device, row.checked, row.wrong, row.n) == ("cuda", 1, 0, 3) for row in done)


@pytest.mark.often("gloo")
@pytest.mark.parametrize("backend", LONG)
def test_groups_of_any_order_that_rest_and_messages_among_collectives(backend, tmp_path):
    (row,) = measured(tmp_path, backend, 3, [{"exchanges": BY_HAND}])
    assert (row.na, row.checked, row.wrong) == (None, 1, 0)
    assert row.moved_bytes == 3 * 4096 + 4096 + 100_000 + 4096 + 2 / 3 * 4800  # rank 2, which takes part in everything


@pytest.mark.parametrize("backend", LONG)
def test_so_many_rounds_of_each_asynchronous_worker_and_several_servers(backend, tmp_path):
    asked = {"regime": "parameter-server", "typed": {"model": "30K", "bucket": "20000", "update": "asynchronous", "servers": "2"}}
    (row,) = measured(tmp_path, backend, 4, [asked], iterations=9)
    assert (row.checked, row.wrong, row.n, row.stopped) == (1, 0, 9, "iterations")
    assert {one.steps for one in row.staleness.workers} == {9}
    assert {one.updates for one in row.staleness.servers} == {18}
    assert 0 <= row.staleness.p50 <= row.staleness.max <= 9 and row.moved_bytes == 2 * 120_000


@pytest.mark.parametrize("backend", LONG)
def test_a_worker_that_dies_is_named(backend, tmp_path):
    asked = {"regime": "parameter-server", "typed": {"model": "30K", "update": "asynchronous"}}
    line = json.dumps({"backends": [backend], "ranks": 3, "out": str(tmp_path / "run"), "trainings": [asked], "max_time_s": 60})
    program = ["timeout", "-k", "5", "100", sys.executable, RANK, line]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(program, env=env, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as running:
        until((tmp_path / "run" / "topology.json").exists, "the run's folder", 60)
        time.sleep(2)  # for the workers to begin; before, the sentence is the same but for the phase
        places = json.loads((tmp_path / "run" / "run.json").read_text())["rank_map"]
        os.kill(places[2]["pid"], signal.SIGKILL)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 4
    assert "terminate" not in said
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    hangs = [decode(event["diagnosis"], HangDiagnosis) for event in events if event["kind"] == "hang"]
    accused = [(hang.cause, hang.ranks) for hang in hangs]
    if backend == "mpi" and not hangs:  # MPICH's mpiexec kills the other ranks of the host within a millisecond of the death
        assert not read_run(tmp_path / "run").finished
        return
    assert accused == [(HangCause.ENDED, (2,))]
    assert hangs[0].names == (f"rank 2 ({places[2]['host']}, pid {places[2]['pid']})",)


OPERATIONS = (
    {"operation": "allreduce", "redop": "sum"}, {"operation": "allreduce", "redop": "max"}, {"operation": "allgather"},
    {"operation": "reducescatter", "redop": "sum"}, {"operation": "alltoall"}, {"operation": "alltoallv", "matrix": [[100, 200], [300, 0]]},
    {"operation": "broadcast", "root": 1}, {"operation": "reduce", "redop": "sum", "root": 1}, {"operation": "gather", "root": 0},
    {"operation": "scatter", "root": 1}, {"operation": "sendrecv"},
    {"operation": "p2p_message"}, {"operation": "p2p_message", "groups": [[1, 0]]},
)  # fmt: skip


def by_hand(folder, backend, exchanges, timeline):
    """Measure one step by hand. Returns its row, and the exit code."""
    plugin = folder / "plugin" / "made_up-1.dist-info"
    plugin.mkdir(parents=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text(PLUGIN)
    step = {"exchanges": exchanges, "timeline": timeline}
    done = started(folder, backend, 2, [step], [str(plugin.parent)], parts=False, ceiling=1.0)
    _, rows, _ = read_workload(folder / "run") if (folder / "run").exists() else (None, [], None)
    return SimpleNamespace(code=done.returncode, row=rows[0] if rows else None, stderr=done.stderr)


def exchange(size=SIZE, **fields):
    return {"groups": BOTH, "size_bytes": size, **fields}


def overlapped(number, compute_s=1e-4):
    """A rank starts all exchanges, computes, and waits for them in the opposite order."""
    return [*(["start", each] for each in range(number)), ["compute", compute_s], *(["wait", each] for each in reversed(range(number)))]


@pytest.mark.parametrize("backend", [*BACKENDS, NCCL])
def test_every_operation_can_be_in_flight_with_all_others(backend, tmp_path):
    dtypes = ("float32", "float64", "int8", *([] if backend == "mpi" else ["bfloat16"]))
    each = [exchange(**{"dtype": dtype, **fields}) for dtype in dtypes for fields in OPERATIONS]
    each += [] if backend == "nccl" else [exchange(operation="barrier", dtype="uint8")]
    exchanges = each * ALIKE
    found = by_hand(tmp_path, backend, exchanges, [overlapped(len(exchanges))] * 2)
    assert found.code == 0, found.stderr
    row = found.row
    assert (row.na, row.checked, row.wrong, "no_overlap" in row.flags) == (None, 1, 0, False)
    assert row.evidence["buffers"] == [ALIKE] * len(each)
    assert row.n and row.time_s.min > 1e-4


@pytest.mark.often("mpi")
@pytest.mark.long
@pytest.mark.parametrize("backend", [*BACKENDS, NCCL])
def test_wrong_data_of_a_started_exchange_is_detected(backend, tmp_path):
    exchanges = [exchange(operation="allreduce", redop="sum"), exchange(operation="other_root", root=1)]
    found = by_hand(tmp_path, backend, exchanges, [overlapped(2)] * 2)
    assert (found.code, found.row.flags.count("no_overlap")) == (4, 0)
    assert found.row.wrong and "other_root" in found.row.wrong_detail


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_with_an_operation_that_cannot_be_started_runs_without_overlap(backend, tmp_path):
    exchanges = [exchange(operation="allreduce", redop="sum"), exchange(operation="p2p_latency"), exchange(operation="p2p_message")]
    found = by_hand(tmp_path, backend, exchanges, [overlapped(3)] * 2)
    assert found.code == 0, found.stderr
    assert (found.row.wrong, "no_overlap" in found.row.flags) == (0, True)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["socket", pytest.param("zmq", marks=pytest.mark.skipif(not find_spec("zmq"), reason="no zmq"))])
def test_messages_without_a_library_that_starts_them_run_one_after_the_other(backend, tmp_path):
    pairs = ([[0, 1]], [[1, 0]])
    exchanges = [exchange(size, operation="p2p_message", groups=pair) for size in (SIZE, 64) for pair in pairs]
    found = by_hand(tmp_path, backend, exchanges, [overlapped(len(exchanges))] * 2)
    assert found.code == 0, found.stderr
    assert (found.row.checked, found.row.wrong, "no_overlap" in found.row.flags) == (1, 0, True)
