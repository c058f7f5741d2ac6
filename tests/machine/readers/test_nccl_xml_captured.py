"""NCCL's topology XML of captured machines: every expected fact, and every trap."""

from collections import Counter

import pytest

from collbench.machine.model import PcieLink
from collbench.machine.readers.nccl_xml import read
from collbench.machine.readers.text import Unreadable
from tests.machine.readers.nccl_files import by_address
from tests.machines import captures


def captured(name):
    return read(captures.text(name, "nccl-topo.xml"), "nccl-topo.xml"), captures.expected(name)


def real(machine):
    return [nic for nic in machine.nics if nic.virtual is None]


def links(machine):
    return {machine.links_of(gpu.key) or 0 for gpu in machine.gpus}


def link_text(machine, keys):
    devices = by_address(machine)
    found = {(devices[key].link.max_speed_gt_per_s, devices[key].link.max_width) for key in keys}
    return {f"{speed:g} GT/s x{width}" if speed else None for speed, width in found}


def children(machine, kind):
    """How many devices of a kind hang directly under each switch."""
    switches = {device.address for device in machine.pci if device.kind == "switch"}
    return set(Counter(device.parent for device in machine.pci if device.kind == kind and device.parent in switches).values())


def rates(machine):
    return [port.rate_bits_per_s for nic in real(machine) for port in nic.ports]


def gpu_addresses(machine):
    return [gpu.address for gpu in machine.gpus]


def nic_addresses(machine):
    return [nic.address for nic in real(machine) if nic.address]


# What each key of EXPECTED.json names, out of a Machine; the value is compared with `shown` of the expected one.
FACTS = {
    "numa_nodes": lambda m: len(m.numa_nodes),
    "gpus": lambda m: len(m.gpus) or None,
    "gpus_in_file": lambda m: len(m.gpus),
    "nics": lambda m: len(real(m)),
    "nics_in_file": lambda m: len(real(m)),
    "net_elements": lambda m: len(m.nics),
    "nic_pci_functions": lambda m: len({nic.address for nic in m.nics}),
    "ports_per_nic": lambda m: max(Counter(nic.address for nic in m.nics).values()),
    "nvswitches": lambda m: sum(device.kind == "nvswitch" for device in m.pci),
    "pcie_switches": lambda m: sum(device.kind == "switch" for device in m.pci),
    "gpus_per_switch": lambda m: children(m, "gpu"),
    "nics_per_switch": lambda m: children(m, "nic"),
    "nvlinks_per_gpu": links,
    "xgmi_links_per_gpu": links,
    "nic_rate_Gbps_each": lambda m: {rate / 1e9 for rate in rates(m)},
    "nic_rate_Gbps_each_as_written": lambda m: {rate / 1e9 for rate in rates(m)},
    "nic_total_GBps_dir": lambda m: sum(rates(m)) / 8e9,
    "nic_total_GBps_dir_as_written": lambda m: sum(rates(m)) / 8e9,
    "nic_rate_known": lambda m: bool(rates(m)),
    "nic_gdr": lambda m: {int(nic.gdr) for nic in real(m)},
    "nic_name": lambda m: {nic.name for nic in real(m)},
    "nic_link": lambda m: link_text(m, nic_addresses(m)),
    "gpu_link": lambda m: link_text(m, gpu_addresses(m)),
    "pcie_link": lambda m: link_text(m, gpu_addresses(m) + nic_addresses(m)),
    "pcie_link_known": lambda m: link_text(m, gpu_addresses(m)) != {None},
    "link_speed_string": lambda m: link_text(m, nic_addresses(m)),
    "gpu_device": lambda m: {by_address(m)[key].device_id for key in gpu_addresses(m)},
    "gpu_pci_class": lambda m: {by_address(m)[key].class_id for key in gpu_addresses(m)},
    "nic_pci_class": lambda m: {by_address(m)[key].class_id for key in nic_addresses(m)},
    "gpu_model": lambda m: {gpu.model for gpu in m.gpus},
    "sm": lambda m: {int((gpu.architecture or "sm_0").removeprefix("sm_")) for gpu in m.gpus},
    "gcn": lambda m: {gpu.architecture for gpu in m.gpus},
    "cpu_vendor": lambda m: m.system.cpu_vendor,
    "gpus_on_numa": lambda m: {str(node.id): sum(gpu.numa == node.id for gpu in m.gpus) for node in m.numa_nodes},
    "nics_on_numa": lambda m: {str(node.id): sum(nic.numa == node.id for nic in real(m)) for node in m.numa_nodes},
    "full_mesh": lambda m: len(m.gpu_links) == len(m.gpus) * (len(m.gpus) - 1),
    "nvlink_target_is_self": lambda m: {link.b for link in m.gpu_links} == {None},
    "gpu_nic_path": lambda m: (
        "PIX (same bridge)" if len({by_address(m)[key].parent for key in gpu_addresses(m) + nic_addresses(m)}) == 1 else None
    ),
    "vendor": lambda m: {(gpu.vendor or "").upper() for gpu in m.gpus},
}
# Rates of link types belong to `peak`; names that no id in the file has; facts about the file's form.
OTHERS_FACTS = {
    *("kind", "traps", "complete", "measured"),
    *("pcie_GBps_dir_raw", "nvlink_GBps_dir_per_link", "nvlink_GBps_dir_per_gpu", "xgmi_GBps_dir_per_link", "xgmi_GBps_dir_per_gpu"),
    "nvlinks_per_switch_per_gpu",
}
UNTOLD = {("azure-nd40rs-v2-v100", "gpu_model"): {None}}  # "from platform name"


def same(found, expected, key):
    if isinstance(expected, str) and expected.startswith("0x"):
        expected = int(expected, 16)
    if key in {"gpu_link", "nic_link", "pcie_link", "link_speed_string"}:
        speed, width = expected.split(" GT/s")[0], expected.rpartition("x")[2] if "x1" in expected else "16"
        expected = f"{float(speed):g} GT/s x{width}"
    return found in (expected, {expected} if not isinstance(expected, dict) else None)


@pytest.mark.parametrize("name", captures.having("nccl-topo.xml"))
def test_a_captured_machine_reads_as_expected(name):
    machine, expected = captured(name)
    assert set(expected) <= set(FACTS) | OTHERS_FACTS
    for key in set(expected) & set(FACTS):
        found = FACTS[key](machine)
        assert found == UNTOLD[name, key] if (name, key) in UNTOLD else same(found, expected[key], key), (key, found, expected[key])


class TestTrapsOfCapturedMachines:
    def test_a_veth_without_a_pci_device_is_no_nic(self):
        machine, _ = captured("amd-mi100-4-intel")
        assert [(nic.name, nic.virtual) for nic in machine.nics] == [("enp96s0f0", None), ("veth608058c", "veth")]

    def test_16_dies_in_8_modules_share_8_nics_and_their_links_differ_by_target(self):
        machine, _ = captured("amd-mi250x-8mod-16gcd")
        assert (len(machine.gpus), len(machine.nics)) == (16, 8)
        assert {machine.links_of(gpu.key) for gpu in machine.gpus} == {7}
        assert {link.count for link in machine.gpu_links} == {1, 2, 4}
        assert {sum(link.a == gpu.key for link in machine.gpu_links) for gpu in machine.gpus} == {3, 4}

    def test_304_compute_units_are_no_architecture(self):
        machine, _ = captured("amd-mi300x-8-intel")
        assert {gpu.architecture for gpu in machine.gpus} == {"gfx942"}
        assert {device.class_id for device in machine.pci if device.kind == "gpu"} == {0x120000}

    def test_without_links_the_gpus_are_bound_by_their_tree(self):
        machine, _ = captured("amd-mi50-8-pcie-2nic")
        assert {(link.b, link.count, link.kind) for link in machine.gpu_links} == {(None, 0, "xgmi")}

    @pytest.mark.parametrize("name", ["aws-p4d-24xl", "azure-nd40rs-v2-v100", "azure-nd96asr-v4-a100", "oci-bm-gpu4-8-a100"])
    def test_a_template_is_not_a_measurement(self, name):
        machine, _ = captured(name)
        assert len(machine.doubts) == 1 and "nccl-topo.xml: a vendor's template" in machine.doubts[0]
        assert {device.link.speed_gt_per_s for device in machine.pci} == {None}
        assert {f"nics/{nic.key}/ports" for nic in machine.nics} <= machine.unknown.keys()

    def test_a_mangled_speed_and_a_leading_comment(self):
        machine, _ = captured("aws-p5-48xl-2023")
        assert {by_address(machine)[nic.key].link for nic in machine.nics} == {PcieLink(max_speed_gt_per_s=32.0, max_width=16)}
        assert "gpus" in machine.unknown

    def test_nvlinks_that_name_their_own_gpu(self):
        machine, _ = captured("azure-nc96ads-a100-v4")
        assert {(link.b, link.count) for link in machine.gpu_links} == {(None, 12)}
        assert "leads to itself" in machine.doubts[0]
        assert {device.link for device in machine.pci} == {PcieLink()}

    def test_the_graph_file_beside_it_is_refused(self):
        with pytest.raises(Unreadable, match="rings and trees"):
            read(captures.text("azure-nc96ads-a100-v4", "nccl-graph.xml"), "nccl-graph.xml")

    def test_the_nic_of_an_ndv2_is_far_from_half_of_its_gpus(self):
        machine, _ = captured("azure-nd40rs-v2-v100")
        assert [nic.numa for nic in machine.nics] == [0]

    def test_made_up_bridges_and_domains_of_16_bits(self):
        machine, _ = captured("azure-nd96asr-v4-a100")
        assert {device.address for device in machine.pci if device.virtual} == {f"ffff:ff:0{number}.0" for number in (1, 2, 3, 4)}
        assert sorted(nic.address for nic in machine.nics) == [f"010{number}:00:00.0" for number in range(1, 9)]

    def test_two_ports_a_card_lowered_speeds_and_slow_upstream_ports(self):
        machine, _ = captured("oci-bm-gpu-h100-8")
        assert {len({nic.guid for nic in machine.nics if nic.address == address}) for address in nic_addresses(machine)} == {1}
        assert "and 12 more: 180000 Mb/s " in machine.doubts[0]
        upstream = [device for device in machine.pci if device.parent is None and device.kind == "switch"]
        assert {device.link for device in upstream} == {PcieLink(max_width=16)}
        assert len(upstream) == 8

    def test_the_order_inside_a_switch_does_not_matter(self):
        machine, _ = captured("oci-bm-gpu4-8-a100")
        assert children(machine, "gpu") == children(machine, "nic") == {2}
