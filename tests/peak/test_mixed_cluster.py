"""A cluster of nodes that differ: the right values for unequal sets, and for the benchmark's nodes, without a time limit."""

import pytest

from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.node import Job, node_of
from tests.peak.made import GEN5, infiniband, switched
from tools.benchmarks.ceilings_1024 import job, machine

SIZES, NICS = (8, 4, 2), (8, 4, 4)  # GPUs, and NICs of 50 GB/s
RATES = [nics * 50e9 for nics in NICS]
N = sum(SIZES)


def unequal() -> Job:
    return Job(tuple(node_of(switched(gpus, 18, "sm_100", GEN5, infiniband(nics, 400))) for gpus, nics in zip(SIZES, NICS, strict=True)))


# Two GPUs send no more than their two PCIe links: 126 GB/s of 200.
RATES[2] = 2 * 63.015384615e9
NEEDS = {
    "allreduce": 2 * (N - 1) / N / max(1 / min(RATES), 2 * 2 / sum(RATES)),
    "allgather": (N - 1) / N / max((1 - g / N) / rate for g, rate in zip(SIZES, RATES, strict=True)),
    "broadcast": min(RATES),
    "alltoall": (N - 1) / N / max(g * (N - g) / N / rate for g, rate in zip(SIZES, RATES, strict=True)),
    "gather": (N - 1) / N / max((1 - 8 / N) / RATES[0], 4 / N / RATES[1], 2 / N / RATES[2]),
}


@pytest.mark.parametrize("operation", sorted(NEEDS))
def test_unequal_nodes(operation):
    """Written out from what each set has to send or receive; NVLink of 900 GB/s does not limit."""
    assert ceilings(operation, unequal()).bound.bytes_per_s == pytest.approx(NEEDS[operation], rel=1e-6)


def test_the_ring_of_unequal_nodes_is_the_slowest_link():
    found = ceilings("allreduce", unequal()).ring
    assert (found.bytes_per_s, found.limited_by) == (pytest.approx(2 * 48e9), "PCIe Gen5 x16 of 2 GPUs")


def test_the_slowest_node_is_found_and_named():
    """Node 7 of the benchmark has a NIC at half the rate: 7·50 + 25 = 375 GB/s of 400; the meshes differ, too."""
    whole = job([machine(number) for number in range(1, 14)])
    assert {node.egress.bytes_per_s for node in whole.nodes} == {375e9, 400e9}
    assert whole.nodes[6].egress.name == "NIC 7×400 + 1×200 Gb/s"
    of_ring = {
        node: min(node.injection.nccl_bytes_per_s * node.gpus / (node.gpus - 1), node.egress.nccl_bytes_per_s) for node in whole.nodes
    }
    slowest = min(of_ring, key=of_ring.__getitem__)
    found = ceilings("allreduce", whole).expected
    assert found.bytes_per_s == pytest.approx(of_ring[slowest])
    assert found.limited_by.endswith(f" of {slowest.host}")


def test_eight_gpus_and_one():
    """The one must receive 8/9 of everything, over its PCIe link."""
    whole = Job((node_of(machine(5)), node_of(machine(5), 1)))
    found = ceilings("allgather", whole).bound
    assert found.bytes_per_s == pytest.approx(63.015e9, rel=1e-3)
    assert found.limited_by == "PCIe Gen5 x16 of node5"
