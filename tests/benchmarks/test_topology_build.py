"""Reading a machine is linear in its links: shown by the reads, which do not depend on how busy this machine is."""

import pytest

from collbench.machine.readers import linux
from tools.benchmarks import topology_build

MOST_READS = 7  # of a PCI function: uevent, numa_node, four of its link, and one of its driver's
MOST_READS_OF_A_LINK = 2  # of an xGMI link: its own, and its part in what its GPU costs


def test_the_benchmark_prints_time_per_link_and_the_slope():
    outcome = topology_build.measure(1, sizes=(300, 1_500))
    assert [figure.cases()[0] for figure in outcome.figures][:3] == [
        "PCIe, 504 links", "PCIe, 1,512 links", "PCIe, slope of time over links",
    ]  # fmt: skip
    assert [(each["kind"], each["links"]) for each in outcome.raw] == [("PCIe", 504), ("PCIe", 1512), ("xGMI", 304), ("xGMI", 1504)]
    assert "µs per link" in outcome.markdown()


@pytest.mark.long
@pytest.mark.parametrize("size", [1_000, 10_000, 100_000])
@pytest.mark.parametrize("kind", ["PCI function", "xGMI link"])
def test_files_read_per_link_do_not_grow(kind, size):
    files = topology_build.pcie(size) if kind == "PCI function" else topology_build.xgmi(size)
    machine = linux.read(files)
    links = machine.pci if kind == "PCI function" else machine.gpu_links
    assert len(links) >= size
    most = MOST_READS if kind == "PCI function" else MOST_READS_OF_A_LINK
    assert sum(count for path, count in files.reads.items() if kind == "xGMI link" or "/sys/bus/pci/" in path) <= most * len(links)
    assert kind == "xGMI link" or max(files.reads.values()) <= 2
