"""collbench probe across hosts: each is probed once, its shaped veth has no rate, and differences are listed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.command import PROGRAM, Finished, environment
from tests.conftest import needs_plugin
from tests.testbeds import SlurmBed

pytestmark = [pytest.mark.slurm, pytest.mark.hosts, pytest.mark.timeout(200)]


def probe(bed: SlurmBed, *tasks: str, words: tuple[str, ...] = ("--format", "json")) -> Finished:
    done = bed.srun(["-N2", *tasks], [*PROGRAM, "probe", *words], env=environment())
    assert done.returncode == 0, done.stderr
    return done


def document(done: Finished) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def interface(machine: dict[str, Any]) -> dict[str, Any]:
    (found,) = (nic for nic in machine["nics"] if nic["name"] == "eth0")
    return dict(found)


@pytest.mark.parametrize("tasks", [(), ("--ntasks-per-node=2",)], ids=["a task per node", "two tasks per node"])
def test_srun_gives_every_node_once(tasks: tuple[str, ...], slurm_hosts: SlurmBed) -> None:
    found = document(probe(slurm_hosts, *tasks))
    assert [machine["hostname"] for machine in found["machines"]] == slurm_hosts.nodes
    assert found["differences"] == []


def test_a_veth_is_virtual_and_its_shape_is_read(slurm_hosts: SlurmBed) -> None:
    for machine in document(probe(slurm_hosts))["machines"]:
        nic = interface(machine)
        assert nic["virtual"] and "veth" in nic["virtual"]
        (port,) = nic["ports"]
        assert port["rate_bits_per_s"] is None  # the kernel reports 10000 Mb/s
        assert port["shaped_bits_per_s"] == 1e9
        assert "nics/eth0/ports/1/rate_bits_per_s" in machine["unknown"]


def test_a_difference_between_nodes_is_listed(slurm_hosts: SlurmBed) -> None:
    assert slurm_hosts.hosts
    first, second = slurm_hosts.nodes
    slurm_hosts.must("ip", "-n", second, "link", "set", "eth0", "mtu", "1400")
    try:
        done = probe(slurm_hosts, words=())
    finally:
        slurm_hosts.must("ip", "-n", second, "link", "set", "eth0", "mtu", "1500")
    (difference,) = (line for line in done.stdout.splitlines() if "MTU" in line)
    assert all(value in difference for value in (first, second, "eth0", "1500", "1400"))


@pytest.mark.system
@needs_plugin("drawings")
def test_bad_input_is_reported_once(slurm_hosts: SlurmBed) -> None:
    done = slurm_hosts.srun(["-N2"], [*PROGRAM, "probe", "--svg", "/nowhere/x.svg"], env=environment())
    assert done.returncode == 2 and done.stderr.count("collbench: ") == 1, done.stderr
    assert "--svg /nowhere/x" in done.stderr and "cannot be written" in done.stderr
