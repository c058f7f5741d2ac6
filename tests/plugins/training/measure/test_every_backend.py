"""Every regime of training on real libraries: its steps run joined, every element arrives, asynchronous workers lose no update."""

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

from tests.cli.command import until
from tests.fake_gpu import environment
from tests.plugins.training.reading import read_workload

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
BACKENDS = [
    pytest.param(name, marks=[pytest.mark.long, pytest.mark.skipif(not find_spec(module), reason=f"no {name}")])
    for name, module in (("mpi", "mpi4py"), ("gloo", "torch"))
]


def measured(folder, backend, ranks, trainings, **more):
    """Starts the ranks, waits for them, reads what they have stored; NCCL's on the double of it."""
    asked = {"backends": [backend], "ranks": ranks, "out": str(folder / "run"), "trainings": trainings, "max_time_s": 0.2, **more}
    line = ["timeout", "-k", "5", "100", sys.executable, str(ROOT / "tests/plugins/training/measure/workload_rank.py"), json.dumps(asked)]
    base = environment(ranks, lacks=()) if backend == "nccl" else os.environ
    env = {**base, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [base.get("PYTHONPATH")])])}
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    about, rows, warnings = read_workload(folder / "run")
    assert not warnings
    return SimpleNamespace(about=about, rows=rows)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_regime_moves_its_bytes_to_the_last_element(backend, tmp_path):
    rows = measured(tmp_path, backend, 3, [{**regime, "optional": True} for regime in REGIMES]).rows
    assert [row.regime for row in rows] == [regime["regime"] for regime in REGIMES]
    done = [row for row in rows if row.na is None]
    assert len(done) >= 7 and all((row.checked, row.wrong) == (1, 0) and row.n > 0 and row.busbw_bytes_per_s for row in done)
    assert rows[0].moved_bytes == pytest.approx(2 * 2 / 3 * 120_000, rel=1e-3)  # 30,000 numbers of 4 bytes, over 3 ranks
    (stale,) = [row.staleness for row in done if row.staleness]
    assert [one.rank for one in stale.workers] == [1, 2] and all(one.steps > 0 for one in stale.workers)
    assert [one.updates for one in stale.servers] == [sum(one.steps for one in stale.workers)]


@pytest.mark.often("gloo")
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_routing_of_tokens_is_moved_to_the_last_element(backend, tmp_path):
    tokens = np.random.default_rng(3).multinomial(4 * 64, [1 / 8] * 8, size=(3, 2))
    np.savez(tmp_path / "tokens.npz", tokens=np.minimum(tokens, 4 * 64))
    typed = {**SMALL, "sequence": "64", "experts": "8"}
    types = {"dispatch_dtype": "float8_e4m3fn", "combine_dtype": "bfloat16"}
    trainings = [
        {"regime": "expert-parallel", "typed": {**typed, **types, "routing": "zipf:1.5", "routings": "3"}},
        {"regime": "expert-parallel", "typed": {**typed, "experts": "", "routing": str(tmp_path / "tokens.npz"), "microbatches": "2"}},
    ]
    rows = measured(tmp_path, backend, 4, trainings, iterations=7, warmup=1, max_time_s=20).rows
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
    found = measured(tmp_path, "nccl", 2, [{**regime, "optional": True} for regime in REGIMES], iterations=3, warmup=1)
    reasons = {(row.regime, row.options.get("update", "")): row.na for row in found.rows}
    assert "gradients to the servers" in reasons["parameter-server", "synchronous"]
    assert "--device cpu" in reasons["parameter-server", "synchronous"]
    assert "mpi or gloo" in reasons["parameter-server", "asynchronous"]
    done = [row for row in found.rows if row.na is None]
    assert {"data-parallel", "pipeline", "fsdp", "expert-parallel"} <= {row.regime for row in done}
    assert all((row.device, row.checked, row.wrong, row.n) == ("cuda", 1, 0, 3) for row in done)


@pytest.mark.often("gloo")
@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_of_any_order_that_rest_and_messages_among_collectives(backend, tmp_path):
    (row,) = measured(tmp_path, backend, 3, [{"exchanges": BY_HAND}]).rows
    assert (row.na, row.checked, row.wrong) == (None, 1, 0)
    assert row.moved_bytes == 3 * 4096 + 4096 + 100_000 + 4096 + 2 / 3 * 4800  # rank 2, which takes part in everything


@pytest.mark.parametrize("backend", BACKENDS)
def test_so_many_rounds_of_each_asynchronous_worker_and_several_servers(backend, tmp_path):
    asked = {"regime": "parameter-server", "typed": {"model": "30K", "bucket": "20000", "update": "asynchronous", "servers": "2"}}
    (row,) = measured(tmp_path, backend, 4, [asked], iterations=9).rows
    assert (row.checked, row.wrong, row.n, row.stopped) == (1, 0, 9, "iterations")
    assert {one.steps for one in row.staleness.workers} == {9}
    assert {one.updates for one in row.staleness.servers} == {18}
    assert 0 <= row.staleness.p50 <= row.staleness.max <= 9 and row.moved_bytes == 2 * 120_000


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_worker_that_dies_is_named(backend, tmp_path):
    asked = {"regime": "parameter-server", "typed": {"model": "30K", "update": "asynchronous"}}
    line = json.dumps({"backends": [backend], "ranks": 3, "out": str(tmp_path / "run"), "trainings": [asked], "max_time_s": 60})
    program = ["timeout", "-k", "5", "100", sys.executable, str(ROOT / "tests/plugins/training/measure/workload_rank.py"), line]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(program, env=env, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as started:
        until((tmp_path / "run" / "topology.json").exists, "the run's folder", 60)
        time.sleep(2)  # for the workers to begin; before, the sentence is the same but for the phase
        places = json.loads((tmp_path / "run" / "run.json").read_text())["rank_map"]
        os.kill(places[2]["pid"], signal.SIGKILL)
        _, said = started.communicate(timeout=60)
    assert started.returncode == 4
    assert "killed" in said and "terminate" not in said
    if backend == "mpi":  # MPICH's mpiexec kills the others of the host within a millisecond: they may not come to a word
        return
    assert f"pid {places[2]['pid']}) ended unexpectedly" in said
    events = [json.loads(each) for each in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert any("ended unexpectedly" in event.get("text", "") for event in events), events
