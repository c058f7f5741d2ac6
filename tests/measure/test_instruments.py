"""Readings around a case: which processes' bytes count, for how many iterations, and what the row stores."""

from types import SimpleNamespace

import pytest

from collbench.backends.backend import Group
from collbench.measuring import instruments as counters
from collbench.measuring.crossing import LeastBytes, MovedByHost
from collbench.measuring.instruments import Counters, Instruments, moved_evidence
from collbench.measuring.nccl_paths import rdma_bytes
from collbench.operations.registry import operations
from tests.helpers import make_case


def ready(device="cpu", size=8, driven=(0, 1)):
    """An all-reduce of two ranks, both driven by this process."""
    case = make_case(count=size // 4, device=device)
    return SimpleNamespace(
        operation=operations()["allreduce"], case=case, groups=((0, 1),), own_groups=(Group((0, 1), driven),), must=None,
        loop=SimpleNamespace(iterations_run=40),
    )  # fmt: skip


class FAKETelemetry:
    def __init__(self):
        self.listener = []

    def switch(self, on):
        self.listener.append(on)

    def taken(self):
        return [{"monotonic_s": len(self.listener)}]

    def close(self):
        self.listener.append("closed")


@pytest.fixture
def readings(monkeypatch):
    """Readings of a loopback that carries 1000 bytes between two readings; records the GPUs of each reading."""
    asked = []

    def read(gpus=None, inside=False):
        asked.append(gpus)
        return Counters(interfaces={"lo": {"tx_bytes": 1000 * len(asked), "tx_packets": len(asked)}})

    monkeypatch.setattr(counters, "read", read)
    return asked


def test_iterations_are_those_between_the_readings(world, readings):
    instruments, case = Instruments.ready(world, cuda=False, telemetry_hz=0), ready()
    instruments.begin(case, world)
    case.loop.iterations_run += 25
    found = instruments.end(case)
    assert found == {
        "moved": {**counters.moved(Counters(), Counters()), "interfaces": {"lo": {"tx_bytes": 1000, "tx_packets": 1}}},
        "iterations": 25, "driven": [0, 1], "telemetry": [],
    }  # fmt: skip
    moved = moved_evidence(case, world, [found])
    assert (moved.iterations, moved.other_path, list(moved.hosts)) == (25, None, [world.me.host])
    assert moved.inside.at_least_bytes == 2 * 8 * 25 and moved.inside.loopback_bytes == 1000 - 66
    instruments.close()


def test_what_must_cross_in_several_operations_is_asked_of_the_rank_that_joined_them(world, readings):
    instruments, case, asked = Instruments.ready(world, cuda=False, telemetry_hz=0), ready(), []
    case.must = lambda host_of: asked.append(host_of) or LeastBytes({world.me.host: 7.0}, {}, 9.0)
    instruments.begin(case, world)
    case.loop.iterations_run += 25
    moved = moved_evidence(case, world, [instruments.end(case)])
    assert moved.at_least_bytes == 9 * 25 and asked == [{0: world.me.host, 1: world.me.host}]
    assert moved.hosts[world.me.host].out.at_least_bytes == 7 * 25
    instruments.close()


def test_gpus_are_read_for_cases_of_gpus_only_and_nothing_by_a_rank_that_is_not_its_hosts_first(world, readings):
    instruments = Instruments(reads=False)
    instruments.begin(ready(), world)
    assert instruments.end(ready())["moved"] is None and readings == []
    instruments = Instruments(reads=True, gpus="FAKE GPUs")
    for device in ("cpu", "cuda"):
        instruments.begin(ready(device), world)
    assert readings == [None, "FAKE GPUs"]


@pytest.mark.parametrize(("size", "on"), [(1 << 19, False), (1 << 20, True)])
def test_telemetry_is_off_for_small_messages(world, readings, size, on):
    telemetry = FAKETelemetry()
    instruments = Instruments(reads=True, telemetry=telemetry)
    instruments.begin(ready(size=size), world)
    assert instruments.end(ready())["telemetry"] == [{"monotonic_s": 2}]
    instruments.close()
    assert telemetry.listener == [on, False, "closed"]


def test_without_nvml_no_process_is_started(world):
    instruments = Instruments.ready(world, cuda=True, telemetry_hz=5.0)
    assert (instruments.reads, instruments.telemetry is None) == (True, instruments.gpus is None)
    instruments.close()


@pytest.mark.parametrize(("host", "sent"), [
    (MovedByHost(ports={"mlx5_0/1": {"tx_bytes": 4096, "rx_bytes": 8}}), 4096),
    (MovedByHost(ports={"efa_0/1": {"rdma_write_bytes": 4096}}), 4096),
    (MovedByHost(idle_ports=["mlx5_0/1"]), 0),  # ports that counted nothing are not in "ports"
    (MovedByHost(ports={"mlx5_0/1": {"port_xmit_wait": 3}}, idle_ports=["mlx5_0/1"]), 0),
    (MovedByHost(ports={"mlx5_0/1": {"tx_bytes": None}}, idle_ports=["mlx5_1/1"]), None),  # it lost count
    (MovedByHost(ports={"rxe0/1": {"sent_pkts": 7}}), None),  # it counts packets alone
    (MovedByHost(), None),
])  # fmt: skip
def test_bytes_that_rdma_ports_sent(host, sent):
    assert rdma_bytes([host, MovedByHost()]) == sent
