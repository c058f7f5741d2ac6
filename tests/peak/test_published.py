"""What others published against what is expected; the rows are those of the package (published.toml)."""

import pytest

from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.node import Job, node_of
from collbench.machine.peak.published import published, rows
from tests.peak.made import gpus, switched, typed, wired

MI300X = wired(gpus(8, "gfx942"), {(i, j): 1 for i in range(8) for j in range(i)}, "xgmi")


def job(nodes, gpus_each, *, nvlink=None, nic=None, nvls=None):
    return Job((typed(nic, nvlink, each=gpus_each, nvls=nvls),) * nodes)


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.operation}-{row.machine}-{row.nodes}")
def test_a_healthy_machine_meets_its_expectation_and_the_floors_in_the_help_of_gate(row):
    found = ceilings(row.operation, row.job())
    expected, bound = found.expected.bytes_per_s / 1e9, found.bound.bytes_per_s / 1e9
    low, high = row.busbw_gb_per_s
    assert 100 * low / expected >= 78 and 100 * high / expected <= 105
    assert high <= bound
    assert row.operation != "allreduce" or low >= 0.40 * bound


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


@pytest.mark.parametrize("other", [
    job(1, 4, nvlink=450), job(1, 8, nvlink=440), job(2, 8, nvlink=450, nic="4x100Gb"), job(1, 8), job(2, 8, nvlink=450),
], ids=["fewer GPUs", "other links", "other NICs", "unknown links", "unknown NICs"])  # fmt: skip
def test_other_machines_have_no_published_figure(other):
    assert published("allreduce", other) == []
