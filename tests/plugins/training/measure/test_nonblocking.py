"""Steps with a timeline on real libraries: many exchanges in flight while ranks compute, with data that is right to the last element."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fake_gpu import environment
from tests.plugins.training.reading import read_workload

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[4]
PLUGIN = "[collbench.operations]\nmade_up = tests.contract.made_up\n"
BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(not find_spec(module), reason=f"no {name}"))
    for name, module in (("mpi", "mpi4py"), ("gloo", "torch"))
]
NCCL = pytest.param("nccl", marks=pytest.mark.long)  # the double of tests/fake_gpu: results are right, times mean nothing
BOTH, SIZE, ALIKE = [[0, 1]], 9600, 3
OPERATIONS = (
    {"operation": "allreduce", "redop": "sum"}, {"operation": "allreduce", "redop": "max"}, {"operation": "allgather"},
    {"operation": "reducescatter", "redop": "sum"}, {"operation": "alltoall"}, {"operation": "alltoallv", "matrix": [[100, 200], [300, 0]]},
    {"operation": "broadcast", "root": 1}, {"operation": "reduce", "redop": "sum", "root": 1}, {"operation": "gather", "root": 0},
    {"operation": "scatter", "root": 1}, {"operation": "sendrecv"},
    {"operation": "p2p_message"}, {"operation": "p2p_message", "groups": [[1, 0]]},
)  # fmt: skip


def measured(folder, backend, exchanges, timeline, ranks=2, **more):
    """Measure one step by hand. Returns its row, and the exit code."""
    plugin = folder / "plugin" / "made_up-1.dist-info"
    plugin.mkdir(parents=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text(PLUGIN)
    asked = {
        "backends": [backend], "ranks": ranks, "out": str(folder / "run"), "max_time_s": 0.2, "parts": False, "ceiling": 1.0,
        "trainings": [{"exchanges": exchanges, "timeline": timeline}], **more,
    }  # fmt: skip
    line = ["timeout", "-k", "5", "60", sys.executable, str(ROOT / "tests/plugins/training/measure/workload_rank.py"), json.dumps(asked)]
    base = environment(ranks, lacks=()) if backend == "nccl" else os.environ
    env = {**base, "PYTHONPATH": os.pathsep.join([str(plugin.parent), str(ROOT), *filter(None, [base.get("PYTHONPATH")])])}
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False, cwd=folder)
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
    found = measured(tmp_path, backend, exchanges, [overlapped(len(exchanges))] * 2)
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
    found = measured(tmp_path, backend, exchanges, [overlapped(2)] * 2)
    assert (found.code, found.row.flags.count("no_overlap")) == (4, 0)
    assert found.row.wrong and "other_root" in found.row.wrong_detail


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_with_an_operation_that_cannot_be_started_runs_without_overlap(backend, tmp_path):
    exchanges = [exchange(operation="allreduce", redop="sum"), exchange(operation="p2p_latency"), exchange(operation="p2p_message")]
    found = measured(tmp_path, backend, exchanges, [overlapped(3)] * 2)
    assert found.code == 0, found.stderr
    assert (found.row.wrong, "no_overlap" in found.row.flags) == (0, True)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["socket", pytest.param("zmq", marks=pytest.mark.skipif(not find_spec("zmq"), reason="no zmq"))])
def test_messages_without_a_library_that_starts_them_run_one_after_the_other(backend, tmp_path):
    pairs = ([[0, 1]], [[1, 0]])
    exchanges = [exchange(size, operation="p2p_message", groups=pair) for size in (SIZE, 64) for pair in pairs]
    found = measured(tmp_path, backend, exchanges, [overlapped(len(exchanges))] * 2)
    assert found.code == 0, found.stderr
    assert (found.row.checked, found.row.wrong, "no_overlap" in found.row.flags) == (1, 0, True)
