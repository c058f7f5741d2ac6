"""collbench probe across hosts: each is probed once, its shaped veth has no rate, and differences are listed."""

import json

import pytest

from tests.cli.command import PROGRAM, environment
from tests.conftest import needs_plugin

pytestmark = [pytest.mark.slurm, pytest.mark.hosts, pytest.mark.timeout(200)]


def probe(bed, *tasks, words=("--format", "json")):
    done = bed.srun(["-N2", *tasks], [*PROGRAM, "probe", *words], env=environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def probed(slurm_hosts):
    """What a task per node and two tasks per node print."""
    return [json.loads(probe(slurm_hosts, *tasks)) for tasks in ((), ("--ntasks-per-node=2",))]


def test_srun_gives_every_node_once(probed, slurm_hosts):
    for found in probed:
        assert [machine["hostname"] for machine in found["machines"]] == slurm_hosts.nodes
        assert found["differences"] == []


def test_a_veth_is_virtual_and_its_shape_is_read(probed):
    for machine in probed[0]["machines"]:
        (nic,) = (nic for nic in machine["nics"] if nic["name"] == "eth0")
        assert nic["virtual"] and "veth" in nic["virtual"]
        (port,) = nic["ports"]
        assert port["rate_bits_per_s"] is None  # the kernel reports 10000 Mb/s
        assert port["shaped_bits_per_s"] == 1e9
        assert "nics/eth0/ports/1/rate_bits_per_s" in machine["unknown"]


def test_a_difference_between_nodes_is_listed(slurm_hosts):
    first, second = slurm_hosts.nodes
    slurm_hosts.must("ip", "-n", second, "link", "set", "eth0", "mtu", "1400")
    try:
        shown = probe(slurm_hosts, words=())
    finally:
        slurm_hosts.must("ip", "-n", second, "link", "set", "eth0", "mtu", "1500")
    (difference,) = (line for line in shown.splitlines() if "MTU" in line)
    assert all(value in difference for value in (first, second, "eth0", "1500", "1400"))


@needs_plugin("drawings")
def test_bad_input_is_reported_once(slurm_hosts):
    done = slurm_hosts.srun(["-N2"], [*PROGRAM, "probe", "--svg", "/nowhere/x.svg"], env=environment())
    assert done.returncode == 2 and done.stderr.count("collbench: ") == 1, done.stderr
    assert "--svg /nowhere/x" in done.stderr and "cannot be written" in done.stderr
