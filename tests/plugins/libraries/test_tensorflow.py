"""TensorFlow's collectives, in an environment of their own: right to the last element, or n/a with the reason; and its parameter server."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest

from collbench.addresses import free_port
from collbench.backends.backend import Available, Unavailable
from collbench.backends.registry import backend_class
from collbench.backends.unavailable import NotInstalled, UnknownVersion, WrongBuild
from collbench.operations.dtypes import DTYPES
from collbench.operations.registry import operations
from collbench.operations.unsupported import DtypeUnsupported, LimitExceeded, OperationUnsupported, RedopUnsupported, ServersUnsupported
from collbench.plugins.libraries import tensorflow
from collbench.plugins.libraries.tensorflow import TensorFlowBackend
from collbench.plugins.training.servers import CAPABLE, JobRoles, ServedTraining, served_of, total, unlike_sum
from collbench.plugins.training.workloads.parameter_server import REGIME
from collbench.plugins.training.workloads.registry import regimes
from collbench.plugins.training.workloads.shape import shape_of
from tests.cli.command import environment, of_any_rank, one_sentence, run
from tests.conftest import sample
from tests.contract.launch import launch
from tests.contract.test_every_case import assert_as_promised, cases_of, launched
from tests.helpers import make_case
from tests.plugins.libraries.stack import LINK_BYTES_PER_S, PAYLOAD, across, collbench_of, environment_of, rows_of
from tests.plugins.training.reading import read_workload

GET = "pip install 'collbench[tensorflow]'"
TOO_LARGE = LimitExceeded("gRPC of tensorflow", "per message", 2**31 - 1, bytes=True)
SUMS = ["float64", "float32", "float16", "bfloat16", "int32", "int64"]
WIDE = [*SUMS, "uint32", "uint64"]
MOVES = ["broadcast", "allgather", "alltoall"]
long = pytest.mark.long


def test_it_is_found_under_its_name_and_in_a_build_of_another_name(monkeypatch):
    assert backend_class("tensorflow") is TensorFlowBackend
    there(monkeypatch, True, {"tensorflow-cpu": "2.20.0"})
    assert TensorFlowBackend.probe() == Available("TensorFlow 2.20.0, ring over gRPC")


@pytest.mark.parametrize(("found", "installed", "answer"), [
    (None, None, NotInstalled("tensorflow", GET)), (True, "1.15.5", UnknownVersion("tensorflow", "1.15.5", "2.x", GET)),
    (True, "3.0.0", UnknownVersion("tensorflow", "3.0.0", "2.x", GET)), (True, None, WrongBuild),
])  # fmt: skip
def test_why_it_is_not_available(monkeypatch, *, found, installed, answer):
    there(monkeypatch, found, {"tensorflow": installed} if installed else {})
    answered = TensorFlowBackend.probe()
    assert isinstance(answered, Unavailable)
    assert answered.fact == answer or (isinstance(answer, type) and isinstance(answered.fact, answer))


def there(monkeypatch, found, versions):
    def version(name):
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(tensorflow, "find_spec", lambda name: found)
    monkeypatch.setattr(tensorflow, "version", version)
    monkeypatch.setattr(tensorflow, "packages_distributions", lambda: {"tensorflow": list(versions)} if versions else {})


@pytest.mark.parametrize(
    ("operation", "case", "reason"),
    [
        ("allreduce", make_case(), None),
        ("allreduce", make_case(redop="band", dtype="int32"), RedopUnsupported("tensorflow", "band")),
        ("allreduce", make_case("int8"), DtypeUnsupported("tensorflow", "int8")),
        ("broadcast", make_case("uint8", redop=None, root=0), DtypeUnsupported("tensorflow", "uint8", "send", "its collectives")),
        ("broadcast", make_case("uint32", 2**29 - 1, redop=None, root=0), None),
        ("broadcast", make_case("uint32", 2**29, redop=None, root=0), TOO_LARGE),
        ("allreduce", make_case("float32", 2**29), None),  # in two parts
        ("reducescatter", make_case(), OperationUnsupported),
    ],
)  # fmt: skip
def test_what_it_cannot_do(operation, case, reason):
    backend = TensorFlowBackend()
    backend.ranks = 2
    answered = backend.supports(operations()[operation], case)
    assert answered == reason or (isinstance(reason, type) and isinstance(answered, reason))


@pytest.mark.system
def test_an_installation_that_does_not_import_is_one_sentence_and_exit_code_2(tmp_path):
    package, record = tmp_path / "broken/tensorflow", tmp_path / "broken/tensorflow-2.21.0.dist-info"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ValueError('libtensorflow_cc.so.2: undefined symbol')\n")
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.21.0\n")
    path = {"PYTHONPATH": f"{tmp_path / 'broken'}:{':'.join(sys.path)}"}
    done = run(tmp_path, "allreduce", "--backend", "tensorflow", "--ranks", "1", "--sizes", "8", env=path)
    assert done.returncode == 2
    assert one_sentence(done).startswith(
        "tensorflow 2.21.0 is installed, but does not load (libtensorflow_cc.so.2: undefined symbol): install it anew, pip install "
    )


@long
def test_a_cluster_of_the_environment_is_refused_and_nothing_else_is_printed(tmp_path):
    words = ("allreduce", "--backend", "tensorflow", "--ranks", "2", "--sizes", "8")
    done = collbench_of("tensorflow", tmp_path, *words, env={"TF_CONFIG": "{}"})
    assert (done.returncode, of_any_rank(one_sentence(done))) == (
        2,
        "TF_CONFIG is set, and tensorflow's cluster is formed of the ranks of this launch: unset it",
    )
    words = ("allreduce", "--backend", "tensorflow", "--ranks", "2", "--sizes", "1K", "--dtype", "float16", "--format", "json", "--quiet")
    done = collbench_of("tensorflow", tmp_path, *words)
    assert (done.returncode, [row["wrong"] for row in rows_of(done)]) == (0, [0])
    assert all(line.startswith(("collbench: ", "run folder: ")) for line in done.stderr.splitlines()), done.stderr


@long
@pytest.mark.parametrize("n", [2, *sample([3], 0)])
def test_every_operation_is_right_or_not_applicable(n):
    asked, outcome = launched("tensorflow", n, environment_of("tensorflow"))
    assert outcome.code == 0, outcome.stderr
    assert outcome.stderr == ""
    for row, case in zip(outcome.rows, cases_of(asked, "tensorflow", n), strict=True):
        assert_as_promised(row, case, "tensorflow", n)


@long
@pytest.mark.parametrize("n", [2, 3])
def test_every_type_and_reduction_that_it_has(tmp_path, n):
    asked = [
        {"operations": ["allreduce"], "sizes": [1003], "dtypes": SUMS, "redops": ["sum", "prod", "min", "max"]},
        {"operations": ["allreduce"], "sizes": [1003], "dtypes": SUMS[:4], "redops": ["avg"]},
        {"operations": MOVES, "sizes": [1003], "dtypes": WIDE, "roots": [0, n - 1]},
        {"operations": ["allreduce"], "sizes": [300_001], "dtypes": ["int32"], "mode": "pipelined", "buffers": "rotating"},
    ]
    found = launch(tmp_path, "tensorflow", n, asked, python=environment_of("tensorflow"))
    assert (found.code, len(found.rows)) == (0, 4 * 6 + 4 + 8 * 4 + 1), found.stderr
    assert {(row.na, row.checked, row.wrong) for row in found.rows} == {(None, 1, 0)}


@long
def test_groups_side_by_side_and_what_the_rows_report_of_the_library(tmp_path):
    asked = [{"operations": ["allreduce", *MOVES], "sizes": [1003], "dtypes": ["float32"], "roots": [1], "split": "MOD 2"}]
    found = launch(tmp_path, "tensorflow", 4, asked, python=environment_of("tensorflow"))
    assert (found.code, {(row.na, row.wrong, row.group) for row in found.rows}) == (0, {(None, 0, "MOD 2")}), found.stderr
    assert {row.evidence["libraries"]["tensorflow_communication"] for row in found.rows} == {"ring over gRPC"}
    assert all(row.evidence["libraries"]["tensorflow"].startswith("2.") for row in found.rows)


# Of the link's payload, seen with 16 MiB: .74, .68, .67, .49. Each part goes as one message, and the next when that has come.
@long
@pytest.mark.hosts
@pytest.mark.parametrize(("operation", "least"), [("allreduce", 0.5), ("allgather", 0.45), ("broadcast", 0.45), ("alltoall", 0.3)])
def test_two_hosts_use_most_of_the_link_between_them_and_never_more(hosts, tmp_path, operation, least):
    words = [operation, "--backend", "tensorflow", "--sizes", "8M", "--iterations", "4", "--warmup", "1"]
    (row,) = across(hosts(2, "1gbit"), "tensorflow", tmp_path / operation, words).rows
    assert (row.na, row.wrong, row.nodes) == (None, 0, 2)
    assert least <= row.busbw_bytes_per_s / (PAYLOAD * LINK_BYTES_PER_S) <= 1.0


@long
@pytest.mark.hosts
def test_its_parameter_server_on_another_host_uses_the_link_one_way_at_a_time(hosts, tmp_path):
    words = ["workload", "parameter-server", "--backend", "tensorflow", "--model", "2M", "--max-time", "1"]
    across(hosts(2, "1gbit"), "tensorflow", tmp_path / "run", words)
    (row,) = read_workload(tmp_path / "run")[1]
    assert (row.na, row.wrong, row.nodes, row.moved_bytes) == (None, 0, 2, 16e6)
    assert 0.3 <= row.busbw_bytes_per_s / (PAYLOAD * LINK_BYTES_PER_S) <= 1.0


def trained(folder, *words):
    words = ("--backend", "tensorflow", "--model", "1M", "--max-time", "0.3", "--out", str(folder / "run"), *words)
    done = collbench_of("tensorflow", folder, "workload", "parameter-server", *words)
    assert done.returncode == 0, done.stderr
    (row,) = read_workload(folder / "run")[1]
    return row


@long
def test_its_parameter_servers_add_up_gradients_exactly_and_hold_shards(tmp_path):
    row = trained(tmp_path, "--ranks", "3", "--bucket", "1M")
    assert (row.na, row.checked, row.wrong, row.evidence["parameter_server"]) == (None, 1, 0, "tf.distribute.Server")
    assert row.n > 0 and row.moved_bytes == 2 * 2 * 4_000_000  # in from two workers, and out to them
    assert row.busbw_bytes_per_s == pytest.approx(row.moved_bytes / row.time_s.p50)
    (tmp_path / "second").mkdir()
    row = trained(tmp_path / "second", "--ranks", "4", "--bucket", "1M", "--update", "sharded", "--dtype", "bfloat16")
    assert (row.na, row.checked, row.wrong, row.dtype) == (None, 1, 0, "bfloat16")
    assert row.moved_bytes == 2 * 2 * 1_000_000  # of each server: half of the model from and to each of two workers


def test_its_parameter_servers_are_those_of_other_backends_and_wrong_sums_are_found():
    served = ServedTraining(JobRoles((0,), (1, 2), (((0, 60), (60, 40)),), (((0, 60), (60, 40)),), DTYPES["float32"]))
    right = np.resize(total(0, [1, 1]), 100).astype(np.float32)
    assert unlike_sum(served, 0, [right[:60], right[60:]], 1, "the sum") == []
    right[61] += 1
    (wrong,) = unlike_sum(served, 0, [right[:60], right[60:]], 1, "the sum")
    assert (wrong.rank, wrong.wrong, wrong.index, float(wrong.got) - float(wrong.wanted)) == (1, 1, 61, 1)
    shape = shape_of(REGIME, {"model": "30K", "bucket": "50000", "update": "sharded"}, (0, 0, 1, 1))
    served = served_of(shape, REGIME, 4)
    layout = served.layout
    assert (layout.servers, layout.workers, layout.dtype) == ((0, 2), (1, 3), "float32")
    assert [sum(counts) for counts in layout.counts] == [15_000, 15_000]
    assert [served.bytes_at(rank) for rank in range(4)] == [60_000, 3 * 120_000] * 2


@pytest.mark.parametrize(
    ("typed", "defect"),
    [({"model": "30K", "update": "asynchronous"}, ("asynchronous", CAPABLE)), ({"model": "600M", "bucket": "3G"}, ("message size",))],
)
def test_what_its_parameter_servers_are_not_asked_for(typed, defect):
    answered = served_of(shape_of(REGIME, typed, (0, 0, 0)), REGIME, 3)
    assert answered == ServersUnsupported("tensorflow", *defect)


WORKER = Path(__file__).with_name("multi_worker.py")


@pytest.mark.long
def test_multi_worker_mirrored_sums_the_gradients_of_data_parallel(tmp_path: Path) -> None:
    python, ports = environment_of("tensorflow"), [str(free_port("127.0.0.1")) for _ in range(2)]
    lines = [["timeout", "--kill-after=5", "110", python, str(WORKER), str(index), *ports] for index in range(2)]
    workers = [subprocess.Popen(line, env=environment(), cwd=tmp_path, stdout=subprocess.PIPE, text=True) for line in lines]
    found = [json.loads(worker.communicate()[0]) for worker in workers]
    regime = regimes()["data-parallel"]
    step = regime.step(shape_of(regime, {"model": str(found[0]["parameters"])}, (0, 0)))
    for one in found:
        assert {(kind.startswith("CollectiveReduce"), dtype) for kind, _, dtype in one["exchanged"]} == {(True, "float32")}
        assert 4 * sum(elements for _, elements, _ in one["exchanged"]) == step.payload_bytes
        assert sum(exchange.size_bytes * exchange.times for exchange in step.exchanges) == step.payload_bytes
        assert one["values"] == found[0]["values"], "equal on both workers"
        assert one["values"] == pytest.approx(one["wanted"], rel=1e-5, abs=1e-6), "as one process with the whole batch"


@pytest.mark.long
def test_parameter_server_strategy_pulls_the_model_and_pushes_gradients_of_parameter_server(tmp_path: Path) -> None:
    python, ports = environment_of("tensorflow"), [str(free_port("127.0.0.1")) for _ in range(4)]
    start = ["timeout", "--kill-after=5", "110", python, str(WORKER.with_name("parameter_server.py"))]
    tasks = [("ps", "0"), ("worker", "0"), ("worker", "1")]
    servers = [subprocess.Popen([*start, *task, *ports], env=environment(), cwd=tmp_path, stderr=subprocess.DEVNULL) for task in tasks]
    try:
        done = subprocess.run([*start, "coordinator", "0", *ports], env=environment(), cwd=tmp_path, stdout=subprocess.PIPE, check=True)
    finally:
        for server in servers:
            server.terminate()
            server.wait()
    found = json.loads(done.stdout)
    regime = regimes()["parameter-server"]
    step = regime.step(shape_of(regime, {"model": str(len(found["values"])), "update": "asynchronous"}, (0, 0, 0)))
    assert all("/job:ps/" in device for device in found["devices"])
    assert 4 * sum(found["pulled"]) == 4 * sum(found["pushed"]) == step.payload_bytes / 2
    assert sum(exchange.size_bytes * exchange.times for exchange in step.exchanges) == step.payload_bytes
    assert found["values"] == pytest.approx(found["wanted"], rel=1e-5, abs=1e-6), "as one process that takes the steps in turn"


@pytest.mark.long
def test_horovod_with_keras_sums_the_gradients_of_data_parallel(tmp_path: Path) -> None:
    python = Path(environment_of("horovod-tensorflow"))
    line = [str(python.with_name("horovodrun")), "--gloo", "-np", "2", "-H", "localhost:2", str(python)]
    line = ["timeout", "--kill-after=5", "110", *line, str(WORKER.with_name("horovod_keras.py")), str(tmp_path)]
    paths = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(line, env=environment() | {"PATH": paths}, cwd=tmp_path, capture_output=True, check=True)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    regime = regimes()["data-parallel"]
    step = regime.step(shape_of(regime, {"model": str(found[0]["parameters"])}, (0, 0)))
    for one in found:
        assert {(kind, dtype) for kind, _, dtype in one["exchanged"]} == {("HorovodAllreduce", "float32")}
        assert 4 * sum(elements for _, elements, _ in one["exchanged"]) == step.payload_bytes
        assert one["values"] == found[0]["values"], "equal on both ranks"
        assert one["values"] == pytest.approx(one["wanted"], rel=1e-5, abs=1e-6), "as one process with the whole batch"
