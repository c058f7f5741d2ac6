"""What others published against what is expected; the rows are those of the package (published.toml)."""

import pytest

from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.node import Job, UserOverride, node_from_user, node_of, parse_nic, parse_pcie
from collbench.machine.peak.published import published, rows
from tests.peak.made import gpus, switched, wired


def job(nodes, gpus_each, *, nvlink=None, nic=None, pcie=None, nvls=None):
    given = UserOverride(parse_nic(nic) if nic else None, nvlink * 1e9 if nvlink else None, parse_pcie(pcie) if pcie else None, nvls)
    return Job((node_from_user(gpus_each, given),) * nodes)


def both(operation, found):
    result = ceilings(operation, found)
    return result.expected.bytes_per_s / 1e9, result.bound.bytes_per_s / 1e9


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.operation}-{row.machine}-{row.nodes}")
def test_a_healthy_machine_meets_its_expectation(row):
    expected, bound = both(row.operation, row.job())
    low, high = row.busbw_gb_per_s
    assert 100 * low / expected >= 78 and 100 * high / expected <= 105
    assert high <= bound


# By machine and nodes: the algorithm, the expected rate and the hard limit in GB/s.
_EXPECTED = {
    ("A100 (AWS p4de)", 2): ("tree", 82.8, 93.8),
    ("H100 (AWS p5)", 2): ("nvls_tree", 554, 750),
    ("H100 (GCP A3 Mega)", 2): ("nvls_tree", 360, 375),
    ("A100", 3): ("ring", 96, 143.8),
    ("B200 (AWS p6-b200)", 4): ("ring", 384, 516.7),
    ("H100", 12): ("ring", 384, 431.8),
    ("H100", 2): ("ring", 48, 63),
    ("B200", 1): ("nvls", 876.3, 1400),
    ("GB200 NVL72", 18): ("nvls", 987.6, 1750.7),
    ("GB200 NVL72, two racks", 36): ("nvls_tree", 994.5, 1862.3),
    ("GB300 (AWS)", 8): ("nvls", 970.2, 1690.9),
    ("GB300 (AWS, without NVLink between nodes)", 8): ("ring", 384, 442.9),
    ("A100", 1): ("ring", 240, 300),
    ("A100 PCIe with an NVLink bridge", 1): ("ring", 240, 300),
    ("A100 PCIe", 1): ("ring", 24, 31.5),
    ("MI300X (AMD expects this of a cluster)", 2): ("ring", 384, 498),
}


@pytest.mark.parametrize(("machine", "nodes"), _EXPECTED)
def test_allreduce(machine, nodes):
    found = [ceilings("allreduce", row.job()) for row in rows() if (row.operation, row.machine, row.nodes) == ("allreduce", machine, nodes)]
    wanted = _EXPECTED[machine, nodes]
    assert found
    for each in found:
        rates = each.expected.bytes_per_s / 1e9, each.bound.bytes_per_s / 1e9
        assert (each.expected.model, *rates) == (wanted[0], pytest.approx(wanted[1], abs=0.06), pytest.approx(wanted[2], abs=0.06))


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.operation}-{row.machine}-{row.nodes}")
def test_a_published_figure_is_shown_for_its_own_machine(row):
    figures = published(row.operation, row.job())
    (own,) = [figure for figure in figures if row.source in figure.sources and (figure.machine, figure.nvls) == (row.machine, row.nvls)]
    low, high = own.busbw_bytes_per_s
    assert low <= row.busbw_gb_per_s[0] * 1e9 <= row.busbw_gb_per_s[1] * 1e9 <= high
    assert row.source.startswith("https://")


def test_figures_of_one_machine_are_one_line_with_all_sources():
    figures = {(figure.machine, figure.algorithm): figure for figure in published("allreduce", job(1, 8, nvlink=450, nvls=True))}
    assert set(figures) == {("H200", None), ("H200", "ring"), ("H100", None)}
    assert figures["H200", None].render().startswith("475–482 GB/s on 8×H200 with NVLS (https://")
    assert len(figures["H200", None].sources) == 3
    assert figures["H200", "ring"].render().startswith("367–368 GB/s on 8×H200 with the ring algorithm (https://")


def test_probed_machines_are_matched_by_their_counted_links():
    assert [figure.machine for figure in published("allgather", Job((node_of(switched(8, 12)),)))] == ["A100"]
    fully_wired = wired(gpus(8, "gfx942"), {(i, j): 1 for i in range(8) for j in range(i)}, "xgmi")
    assert [figure.machine for figure in published("allreduce", Job((node_of(fully_wired),)))] == ["MI300X"]


def test_the_nearest_number_of_nodes_comes_first():
    assert [figure.nodes for figure in published("allreduce", job(3, 8, nvlink=450, nic="8x400Gb"))] == [4, 2, 12]
    assert [figure.nodes for figure in published("allreduce", job(10, 8, nvlink=450, nic="8x400Gb"))] == [12, 4, 2]


@pytest.mark.parametrize(
    "other",
    [job(1, 4, nvlink=450), job(1, 8, nvlink=440), job(2, 8, nvlink=450, nic="4x100Gb"), job(1, 8), job(2, 8, nvlink=450)],
    ids=["fewer GPUs", "other links", "other NICs", "unknown links", "unknown NICs"],
)
def test_other_machines_have_no_published_figure(other):
    assert published("allreduce", other) == []


@pytest.mark.parametrize(
    ("nodes", "nic", "measured", "expected", "percent"),
    [
        (2, "8x200Gb", 338.8, 360, 94),  # GCP a3-mega
        (4, "16x200Gb", 364.9, 384, 95),  # p5en H200, ring; two levels reach 498
    ],
)
def test_figures_without_a_public_source(nodes, nic, measured, expected, percent):
    rate, _ = both("allreduce", job(nodes, 8, nvlink=450, nic=nic))
    assert (round(rate, 1), round(100 * measured / rate)) == (expected, percent)


def test_node_to_node_on_four_100_gigabit_ports():
    """Lambda Hyperplane V100: 42 of 50 GB/s on the wire."""
    found = ceilings("allreduce", job(4, 8, nvlink=150, nic="4x100Gb"))
    assert (found.expected.bytes_per_s, found.expected.limited_by) == (48e9, "NIC 4×100 Gb/s")
    assert round(100 * 42e9 / found.expected.bytes_per_s) == 88
    assert round(found.bound.bytes_per_s / 1e9, 1) == 64.6


def test_mi300x_counts_only_links_among_the_gpus_that_take_part():
    machine = wired(gpus(8, "gfx942"), {(i, j): 1 for i in range(8) for j in range(i)}, "xgmi")
    assert both("allreduce", Job((node_of(machine),))) == (336, 448)
    assert both("allreduce", Job((node_of(machine, 2),))) == (48, pytest.approx(64))


def test_a_pair_on_nvlink_and_a_third_on_pcie():
    """The third GPU alone must send and receive S: the bound is 4/3 of its link, the ring NCCL's rate of it."""
    expected, bound = both("allreduce", Job((node_of(wired(gpus(3), {(0, 1): 12})),)))
    assert (round(expected, 1), round(bound, 1)) == (24, 42.0)


def test_one_h100_with_more_nics_than_its_pcie_link_carries():
    found = ceilings("allreduce", job(2, 1, nic="4x400Gb", pcie="gen5x16"))
    assert (found.expected.bytes_per_s, found.expected.limited_by) == (48e9, "PCIe Gen5 x16")
    assert round(found.bound.bytes_per_s / 1e9) == 63


def test_published_all_reduces_meet_the_floors_in_the_help_of_gate():
    for row in rows():
        if row.operation == "allreduce":
            expected, bound = both(row.operation, row.job())
            assert row.busbw_gb_per_s[0] >= 0.75 * expected and row.busbw_gb_per_s[0] >= 0.40 * bound
