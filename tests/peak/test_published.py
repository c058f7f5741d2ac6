"""The published rows: ceilings and percentages to the digits printed (busbw in GB/s; the sources are named in each row's comment)."""

import pytest

from collbench.peak.collective import ceilings
from collbench.peak.given import Given, given_node, parse_nic, parse_pcie
from collbench.peak.job import Job
from collbench.peak.node import node_of
from tests.peak.made import gpus, switched, wired


def job(nodes, gpus_each, *, nvlink=None, nic=None, pcie=None, nvls=False):
    given = Given(parse_nic(nic) if nic else None, nvlink * 1e9 if nvlink else None, parse_pcie(pcie) if pcie else None, nvls)
    return Job((given_node(gpus_each, given),) * nodes)


def both(operation, found):
    result = ceilings(operation, found)
    return result.ring.bytes_per_s / 1e9, result.bound.bytes_per_s / 1e9


@pytest.mark.parametrize(
    "row",
    [
        (2, 8, 300, "4x100Gb", False, 78.3, 50, 157, 93.8, 84),  # AWS p4de
        (2, 8, 450, "8x200Gb", False, 338.8, 200, 169, 375, 90),  # GCP a3-mega
        (2, 8, 450, "32x100Gb", True, 487.3, 400, 122, 750, 65),  # AWS p5
        (3, 8, 300, "4x200Gb", False, 96, 100, 96, 143.8, 67),  # A100 with 4 HDR, nccl-tests#119
        (4, 8, 450, "16x200Gb", False, 364.9, 400, 91, 500, 73),  # p5en H200, ring; not 450: two levels reach 498
        (4, 8, 900, "8x400Gb", False, 381.8, 400, 95, 516.7, 74),  # p6-B200
        (12, 8, 450, "8x400Gb", False, 386.6, 400, 97, 431.8, 90),  # CoreWeave H100
        (1, 8, 450, None, True, 482.3, 450, 107, 700, 69),  # H200, NVLS
        (1, 8, 450, None, False, 367.6, 450, 82, 450, 82),  # H200, ring
        (1, 8, 448, None, False, 312.9, 448, 70, 448, 70),  # MI300X
        (1, 2, 64, None, False, 47.671, 64, 74, 64, 74),  # MI300X, two GPUs
        (1, 2, 300, None, False, 208, 300, 69, 300, 69),  # A100 PCIe, a bridged pair
    ],
)
def test_allreduce(row):
    """Nodes, GPUs each, NVLink per GPU, NICs, NVLS, measured; ring reference and %, hard bound and %."""
    nodes, each, nvlink, nic, nvls, measured, ring, ring_percent, cut, cut_percent = row
    found_ring, found_cut = both("allreduce", job(nodes, each, nvlink=nvlink, nic=nic, nvls=nvls))
    assert (round(found_ring, 1), round(found_cut, 1)) == (ring, cut)
    assert (round(100 * measured / found_ring), round(100 * measured / found_cut)) == (ring_percent, cut_percent)


def test_node_to_node_on_four_100_gigabit_ports():
    """Lambda Hyperplane V100: 42 of 50 GB/s."""
    found = ceilings("allreduce", job(4, 8, nvlink=150, nic="4x100Gb"))
    assert (found.ring.bytes_per_s, found.ring.limited_by) == (50e9, "NIC 4×100 Gb/s")
    assert round(100 * 42e9 / found.ring.bytes_per_s) == 84
    assert round(found.bound.bytes_per_s / 1e9, 1) == 64.6


_A100 = [("allreduce", 235, 78), ("allgather", 230, 77), ("reducescatter", 232, 77), ("broadcast", 235, 78), ("alltoall", 226, 75)]


@pytest.mark.parametrize(("operation", "measured", "percent"), _A100)
def test_eight_a100(operation, measured, percent):
    found = ceilings(operation, Job((node_of(switched(8, 12)),)))
    assert found.bound.bytes_per_s == 300e9
    assert found.bound.limited_by == "NVLink 12×25 GB/s"
    assert round(100 * measured / 300) == percent
    assert found.ring is None if operation == "alltoall" else found.ring.bytes_per_s == 300e9


def test_mi300x_counts_only_links_among_the_gpus_that_take_part():
    machine = wired(gpus(8, "gfx942"), {(i, j): 1 for i in range(8) for j in range(i)}, "xgmi")
    assert both("allreduce", Job((node_of(machine),))) == (448, 448)
    assert both("allreduce", Job((node_of(machine, 2),))) == (64, 64)


def test_three_a100_on_pcie():
    """20 of 31.5 GB/s (63 %): without NVLinks ring and bound are the PCIe link."""
    ring, bound = both("allreduce", Job((node_of(wired(gpus(3), {})),)))
    assert (round(ring, 1), round(bound, 1), round(100 * 20 / ring)) == (31.5, 31.5, 63)


def test_a_pair_on_nvlink_and_a_third_on_pcie():
    """The third GPU alone must send and receive S: the bound is 4/3 of its link, the ring its link."""
    ring, bound = both("allreduce", Job((node_of(wired(gpus(3), {(0, 1): 12})),)))
    assert (round(ring, 1), round(bound, 1)) == (31.5, 42.0)


def test_one_h100_with_more_nics_than_its_pcie_link_carries():
    found = ceilings("allreduce", job(2, 1, nic="4x400Gb", pcie="gen5x16"))
    assert (round(found.ring.bytes_per_s / 1e9), round(100 * 50 / (found.ring.bytes_per_s / 1e9))) == (63, 79)
    assert found.bound.bytes_per_s == found.ring.bytes_per_s
    assert found.ring.limited_by == "PCIe Gen5 x16"
