"""hwloc's GB/s of a PCIe link: turned back into speed and width where one answer fits the figure and the part."""

from xml.etree.ElementTree import Element, SubElement

import pytest

from collbench.machine.model import GpuLink, PcieLink
from collbench.machine.readers.hwloc import nvlinks, pcie


@pytest.mark.parametrize(
    ("expected", "part", "link"),
    [
        ("63.015385", None, PcieLink(32.0, 16)),  # nothing else has as much
        ("0.250000", None, PcieLink(2.5, 1)),
        ("0.984615", None, PcieLink(8.0, 1)),
        ("15.753846", "Tesla V100-SXM3-32GB-H", PcieLink(8.0, 16)),
        ("15.753846", "ConnectX-5", PcieLink(8.0, 16)),
        ("31.507692", "NVIDIA A100-SXM4-80GB", PcieLink(16.0, 16)),
        ("121.000000", "ConnectX-8", PcieLink(64.0, 16)),
    ],
)
def test_a_links_speed_and_width_where_one_answer_fits(expected: str, part: str | None, link: PcieLink) -> None:
    assert pcie(expected, part) == (link, None)


@pytest.mark.parametrize(
    ("expected", "part", "why"),
    [
        ("15.753846", None, "hwloc has 15.7538 GB/s, which is 8 GT/s x16 or 16 GT/s x8 or 32 GT/s x4"),
        ("15.753846", "NVIDIA A100-SXM4-80GB", "hwloc has 15.7538 GB/s, which is 8 GT/s x16 or 16 GT/s x8"),
        ("12.345000", None, "hwloc has 12.345 GB/s, which is not the rate of a PCIe link"),
        ("0.000000", None, "hwloc has no speed"),
        (None, None, "hwloc has no speed"),
        ("-4", None, "hwloc has no speed"),
        ("1e18", None, "hwloc has no speed"),
        ("nan", None, "hwloc has no speed"),
        ("fast", None, "hwloc's figure is not a number"),
    ],
)
def test_a_link_is_unknown_with_its_reason_where_several_fit_or_none(expected: str | None, part: str | None, why: str) -> None:
    assert pcie(expected, part) == (PcieLink(), why)


def power(*values: int) -> Element:
    """hwloc's matrix of two GPUs and the processor that NVLink joins them to."""
    topology = Element("topology")
    matrix = SubElement(topology, "distances2hetero", {"name": "NVLinkBandwidth"})
    SubElement(matrix, "indexes").text = "OSDev:11 OSDev:12 NUMANode:3"
    SubElement(matrix, "u64values").text = " ".join(map(str, values))
    return topology


def test_links_to_a_processor_are_counted_apart_from_those_between_gpus() -> None:
    ends, models = {"OSDev:11": "gpu0", "OSDev:12": "gpu1"}, {"gpu0": "Tesla V100-SXM2-16GB", "gpu1": "Tesla V100-SXM2-16GB"}
    found = nvlinks(power(1000000, 75000, 50000, 75000, 1000000, 75000, 50000, 75000, 0), ends, models)
    assert [(link.a, link.b, link.count) for link in found.links] == [("gpu0", "gpu1", 3), ("gpu1", "gpu0", 3)]
    assert found.processors == {"gpu0": (2, 25e9), "gpu1": (3, 25e9)}


def test_a_figure_that_is_no_whole_number_of_links_is_not_counted() -> None:
    found = nvlinks(
        power(0, 75000, 40000, 75000, 0, 0, 40000, 0, 0), {"OSDev:11": "gpu0", "OSDev:12": "gpu1"}, {"gpu0": "V100", "gpu1": "V100"}
    )
    assert (found.processors, found.links[0]) == ({}, GpuLink("gpu0", "gpu1", 3, bytes_per_s=25e9))
