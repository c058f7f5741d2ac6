"""Real steps of TensorFlow's strategies and of Horovod with Keras.

They exchange the bytes of `data-parallel` and `parameter-server`, and train right.
"""

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from collbench.plugins.training.workloads.registry import regimes
from collbench.plugins.training.workloads.shape import shape_of
from tests.cli.command import environment
from tests.plugins.libraries.stack import environment_of

WORKER = Path(__file__).with_name("multi_worker.py")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.mark.long
def test_multi_worker_mirrored_sums_the_gradients_of_data_parallel(tmp_path: Path) -> None:
    python, ports = environment_of("tensorflow"), [str(free_port()) for _ in range(2)]
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
    python, ports = environment_of("tensorflow"), [str(free_port()) for _ in range(4)]
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
