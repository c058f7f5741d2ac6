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
def test_a_healthy_machine_meets_its_expectation_and_the_floors_in_the_help_of_gate(row):
    expected, bound = both(row.operation, row.job())
    low, high = row.busbw_gb_per_s
    assert 100 * low / expected >= 78 and 100 * high / expected <= 105
    assert high <= bound
    assert row.operation != "allreduce" or low >= 0.40 * bound


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


def test_probed_machines_are_matched_by_their_counted_links_and_the_nearest_number_of_nodes_comes_first():
    assert [figure.machine for figure in published("allgather", Job((node_of(switched(8, 12)),)))] == ["A100"]
    assert [figure.machine for figure in published("allreduce", Job((node_of(MI300X),)))] == ["MI300X"]
    for nodes, nearest in ((3, [4, 2, 12]), (10, [12, 4, 2])):
        assert [figure.nodes for figure in published("allreduce", job(nodes, 8, nvlink=450, nic="8x400Gb"))] == nearest


@pytest.mark.parametrize(
    "other",
    [job(1, 4, nvlink=450), job(1, 8, nvlink=440), job(2, 8, nvlink=450, nic="4x100Gb"), job(1, 8), job(2, 8, nvlink=450)],
    ids=["fewer GPUs", "other links", "other NICs", "unknown links", "unknown NICs"],
)
def test_other_machines_have_no_published_figure(other):
    assert published("allreduce", other) == []


MI300X = wired(gpus(8, "gfx942"), {(i, j): 1 for i in range(8) for j in range(i)}, "xgmi")
# The expected rate and the hard limit of an all-reduce, what limits it, and a figure without a public source with its percentage.
REACHED = {
    "GCP a3-mega: 338.8": (job(2, 8, nvlink=450, nic="8x200Gb"), 360, 375, "NIC 8×200 Gb/s", (338.8, 94)),
    "p5en H200, ring; two levels reach 498: 364.9": (job(4, 8, nvlink=450, nic="16x200Gb"), 384, 516.7, "NIC 16×200 Gb/s", (364.9, 95)),
    "Lambda Hyperplane V100: 42": (job(4, 8, nvlink=150, nic="4x100Gb"), 48, 64.6, "NIC 4×100 Gb/s", (42, 88)),
    "MI300X": (Job((node_of(MI300X),)), 336, 448, "xGMI 7×64 GB/s", None),
    "MI300X counts only links among the GPUs that take part": (Job((node_of(MI300X, 2),)), 48, 64, "xGMI 1×64 GB/s", None),
    # The third GPU alone must send and receive S: the bound is 4/3 of its link, the ring NCCL's rate of it
    "a pair on NVLink and a third on PCIe": (Job((node_of(wired(gpus(3), {(0, 1): 12})),)), 24, 42.0, "PCIe Gen4 x16", None),
    "more NICs than a PCIe link carries": (job(2, 1, nic="4x400Gb", pcie="gen5x16"), 48, 63, "PCIe Gen5 x16", None),
}


@pytest.mark.parametrize(("found", "expected", "bound", "limited_by", "figure"), REACHED.values(), ids=REACHED)
def test_other_machines(found, expected, bound, limited_by, figure):
    result = ceilings("allreduce", found)
    assert both("allreduce", found) == (pytest.approx(expected), pytest.approx(bound, abs=0.06))
    assert result.expected.limited_by == limited_by
    assert figure is None or round(100 * figure[0] / expected) == figure[1]
