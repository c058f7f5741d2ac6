"""What others published against the ceilings, to the digits printed; the rows are those of the package (published.toml)."""

import pytest

from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.node import Job, UserOverride, node_from_user, node_of, parse_nic, parse_pcie
from collbench.machine.peak.published import Published, published, rows
from tests.peak.made import gpus, switched, wired


def job(nodes, gpus_each, *, nvlink=None, nic=None, pcie=None, nvls=False):
    given = UserOverride(parse_nic(nic) if nic else None, nvlink * 1e9 if nvlink else None, parse_pcie(pcie) if pcie else None, nvls)
    return Job((node_from_user(gpus_each, given),) * nodes)


def both(operation, found):
    result = ceilings(operation, found)
    return result.ring.bytes_per_s / 1e9, result.bound.bytes_per_s / 1e9


# By machine, nodes and NVLink SHARP: the ring reference and the hard limit in GB/s, and the highest published percentage of each.
_EXPECTED = {
    ("A100 (AWS p4de)", 2, False): (50, 157, 93.8, 84),
    ("H100 (AWS p5)", 2, True): (400, 122, 750, 65),
    ("A100", 3, False): (100, 96, 143.8, 67),
    ("B200 (AWS p6-b200)", 4, False): (400, 95, 516.7, 74),
    ("H100", 12, False): (400, 97, 431.8, 90),
    ("H100", 2, False): (63, 79, 63, 79),
    ("H200", 1, True): (450, 107, 700, 69),
    ("H200", 1, False): (450, 82, 450, 82),
    ("B200", 1, True): (900, 94, 1400, 60),
    ("GB200 NVL72", 18, False): (900, 94, 900, 94),
    ("A100", 1, False): (300, 78, 300, 78),
    ("A100 PCIe with an NVLink bridge", 1, False): (300, 69, 300, 69),
    ("A100 PCIe", 1, False): (31.5, 63, 31.5, 63),
}


def expected(row: Published):
    if row.machine == "MI300X":
        return {8: (448, 70, 448, 70), 2: (64, 74, 64, 74)}[row.gpus_per_node]
    return _EXPECTED[row.machine, row.nodes, row.nvls]


@pytest.mark.parametrize("row", [row for row in rows() if row.operation == "allreduce"], ids=lambda row: f"{row.machine}-{row.nodes}")
def test_allreduce(row):
    ring, bound = both("allreduce", row.job())
    found = (round(ring, 1), round(100 * row.busbw_gb_per_s[1] / ring), round(bound, 1), round(100 * row.busbw_gb_per_s[1] / bound))
    wanted = expected(row)
    assert (found[0], found[2]) == pytest.approx((wanted[0], wanted[2]), abs=0.06)
    assert abs(found[1] - wanted[1]) <= 2 and abs(found[3] - wanted[3]) <= 1  # sources of one machine differ by as much


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.operation}-{row.machine}-{row.nodes}")
def test_a_published_figure_is_shown_for_its_own_machine_and_below_its_hard_limit(row):
    figures = published(row.operation, row.job())
    (own,) = [figure for figure in figures if row.source in figure.sources and (figure.machine, figure.nvls) == (row.machine, row.nvls)]
    low, high = own.busbw_bytes_per_s
    assert low <= row.busbw_gb_per_s[0] * 1e9 <= row.busbw_gb_per_s[1] * 1e9 <= high
    assert row.source.startswith("https://")
    bound = ceilings(row.operation, row.job()).bound.bytes_per_s
    assert high <= bound


def test_figures_of_one_machine_are_one_line_with_all_sources():
    nvls, ring = published("allreduce", job(1, 8, nvlink=450, nvls=True))
    assert nvls.render().startswith("475–482 GB/s on 8×H200 with NVLS (https://")
    assert len(nvls.sources) == 2
    assert ring.render().startswith("367–368 GB/s on 8×H200 with the ring algorithm (https://")


def test_probed_machines_are_matched_by_their_counted_links():
    assert [figure.machine for figure in published("allgather", Job((node_of(switched(8, 12)),)))] == ["A100"]
    fully_wired = wired(gpus(8, "gfx942"), {(i, j): 1 for i in range(8) for j in range(i)}, "xgmi")
    assert [figure.machine for figure in published("allreduce", Job((node_of(fully_wired),)))] == ["MI300X"]


def test_the_nearest_number_of_nodes_comes_first():
    assert [figure.nodes for figure in published("allreduce", job(3, 8, nvlink=450, nic="8x400Gb"))] == [2, 12]
    assert [figure.nodes for figure in published("allreduce", job(10, 8, nvlink=450, nic="8x400Gb"))] == [12, 2]


@pytest.mark.parametrize(
    "other",
    [job(1, 4, nvlink=450), job(1, 8, nvlink=440), job(2, 8, nvlink=450, nic="8x200Gb"), job(1, 8), job(2, 8, nvlink=450)],
    ids=["fewer GPUs", "other links", "other NICs", "unknown links", "unknown NICs"],
)
def test_other_machines_have_no_published_figure(other):
    assert published("allreduce", other) == []


@pytest.mark.parametrize(
    "row",
    [
        (2, 8, 450, "8x200Gb", False, 338.8, 200, 169, 375, 90),  # GCP a3-mega
        (4, 8, 450, "16x200Gb", False, 364.9, 400, 91, 500, 73),  # p5en H200, ring; not 450: two levels reach 498
    ],
)
def test_figures_without_a_public_source(row):
    """Nodes, GPUs each, NVLink per GPU, NICs, NVLS, measured; ring reference and %, hard limit and %."""
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


_A100 = {"allreduce": 78, "allgather": 77, "reducescatter": 77, "broadcast": 78, "reduce": 77, "alltoall": 75}


@pytest.mark.parametrize(("operation", "percent"), _A100.items())
def test_eight_a100(operation, percent):
    found = ceilings(operation, Job((node_of(switched(8, 12)),)))
    (figure,) = published(operation, Job((node_of(switched(8, 12)),)))
    assert found.bound.bytes_per_s == 300e9
    assert found.bound.limited_by == "NVLink 12×25 GB/s"
    assert round(100 * figure.busbw_bytes_per_s[1] / 300e9) == percent
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
