"""The captured machines, read by their readers: the rates of each GPU and node, as their captures expect them."""

import pytest
from msgspec.structs import replace

from collbench.machine.model import Machine
from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.links import gen, wires_of
from collbench.machine.peak.node import Job, UserOverride, node_from_user, node_of
from collbench.machine.readers import network
from collbench.machine.readers.nccl_xml import NCCL_XML
from collbench.machine.readers.smi import NVLINK_STATUS, SMI_MATRIX
from tests.machines import captures

READERS = {"nccl-topo.xml": NCCL_XML, "nvidia-smi-topo-m.txt": SMI_MATRIX, "nvidia-smi-nvlink-s.txt": NVLINK_STATUS}
# Facts on the page of a capture that the capture itself does not have.
ARCHITECTURE = {"dgx-h100-12nic-tabs-mangled": "sm_90", "h100-4nic-alternate-partial": "sm_90"}
FOUND = sorted((folder, name) for name in READERS for folder in captures.having(name))
PER_GPU = ("nvlink_GBps_dir_per_gpu", "xgmi_GBps_dir_per_gpu")
TOTAL = ("nic_total_GBps_dir", "nic_total_GBps_dir_as_written")


def read(folder: str, name: str) -> Machine:
    machine = READERS[name].read(captures.text(folder, name), name)
    known = ARCHITECTURE.get(folder)
    return replace(machine, gpus=tuple(replace(gpu, architecture=known) for gpu in machine.gpus)) if known else machine


def expecting(keys):
    """The files of captures that expect one of these facts, with its value."""
    wanted = {folder: captures.expected(folder) for folder, _ in FOUND}
    return [(folder, name, wanted[folder][key]) for folder, name in FOUND for key in keys if key in wanted[folder]]


@pytest.mark.parametrize(("folder", "name", "wanted"), expecting(PER_GPU))
def test_links_of_each_gpu(folder, name, wanted):
    found = read(folder, name)
    one_link = wires_of(found, [gpu.key for gpu in found.gpus]).one_link
    assert {link.bytes_per_s * found.links_of(key) for key, link in one_link.items()} == {wanted * 1e9}


@pytest.mark.parametrize(("folder", "name", "wanted"), expecting(TOTAL))
def test_all_nics_together(folder, name, wanted):
    assert node_of(read(folder, name)).egress.bytes_per_s == pytest.approx(wanted * 1e9)


def test_bridged_pairs():
    found = read("a100-pcie-bridge-pairs", "nvidia-smi-topo-m.txt")
    assert ceilings("allreduce", Job((node_of(found, 2),))).bound.bytes_per_s == 300e9
    for count in range(3, 9):
        ring = ceilings("allreduce", Job((node_of(found, count, pcie=gen(4, 16, "--pcie")),))).ring
        assert (ring.limited_by, round(ring.bytes_per_s / 1e9, 1)) == ("PCIe Gen4 x16", 24)


NODES = {
    "a port above faster devices does not cap the GPUs": ("oci-bm-gpu-h100-8", lambda node: (node.pcie.name, node.injection.bytes_per_s),
        ("PCIe Gen5 x16", 450e9)),
    "two ports of a function are one slot": ("oci-bm-gpu-h100-8", lambda node: (len(node.nics), node.nics[0].port_bits_per_s),
        (8, (180e9, 180e9))),
    "a template's missing rates are unknown": ("aws-p4d-24xl",
        lambda node: (node.egress.bytes_per_s, node.injection.bytes_per_s, "rates are in none of the sources" in node.egress.name),
        (None, None, True)),
    "NVLinks that lead back to the GPU": ("azure-nc96ads-a100-v4",
        lambda node: (node.injection.bytes_per_s, any(doubt.startswith("NVLinks are not counted ") for doubt in node.doubts)),
        (None, True)),
    "the virtual interface is no NIC": ("amd-mi100-4-intel", lambda node: "veth" in node.egress.name, False),
    "no links at all leave the PCIe tree": ("amd-mi50-8-pcie-2nic", lambda node: node.injection.name.startswith("PCIe"), True),
    "a mesh and its pairs": ("juwels-booster-4xa100", lambda node: (node.injection.bytes_per_s, node.pair.bytes_per_s), (300e9, 100e9)),
}  # fmt: skip


@pytest.mark.parametrize(("folder", "facts", "expected"), NODES.values(), ids=NODES)
def test_a_node(folder, facts, expected):
    name = "nccl-topo.xml" if (folder, "nccl-topo.xml") in FOUND else "nvidia-smi-topo-m.txt"
    assert facts(node_of(read(folder, name))) == expected


def test_a_published_h200_is_within_its_bound():
    """488.81 GB/s on two nodes of eight, each with eight such GPUs and NICs: 88 % of NCCL's NVLS tree."""
    one = node_of(read("h200-baremetal-first-gpu", "nccl-topo.xml"))
    node = replace(node_from_user(8, UserOverride(nvlink=450e9)), egress=one.egress.divided(1 / 8))
    found = ceilings("allreduce", Job((node,) * 2))
    assert (found.expected.model, found.expected.bytes_per_s, found.bound.bytes_per_s) == (
        "nvls_tree", pytest.approx(554.03e9, rel=1e-4), pytest.approx(750e9)
    )  # fmt: skip


def test_a_management_bond_is_not_added_to_the_compute_fabric():
    node = node_of(network.read(captures.tree("gpud-h100-8ndr-sysfs")))
    assert node.egress.bytes_per_s == captures.expected("gpud-h100-8ndr-sysfs")["ib_total_GBps_dir"] * 1e9
    assert "not counted: mlx5_bond_0 (Ethernet, while InfiniBand is up)" in node.doubts
