"""CB21xx: links below the rate that both ends support, and the devices that must not be reported for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.machine.model import Gpu, Machine, PciDevice, PcieLink, System
from tests.doctor.machines import changed, codes, found, with_link
from tests.machine.machines import GEN4_X16, GEN5_X16, bridge, dgx, gpu_device, laptop, nic_device

GPU, GPU_PORT = "0000:18:00.0", "0000:17:00.0"
NIC, NIC_PORT = "0000:1a:00.0", "0000:17:02.0"
UPSTREAM, ROOT = "0000:16:00.0", "0000:15:01.0"


def test_a_gpu_on_half_its_lanes_is_severe() -> None:
    finding = found(with_link(dgx(), GPU, PcieLink(32.0, 8, 32.0, 16)), "CB2101")
    assert (finding.severity, finding.hostname, finding.what) == ("severe", "dgx01", f"GPU 0 ({GPU}) runs on 8 of 16 lanes")
    assert finding.evidence.startswith("LnkSta 32 GT/s x8 = 31.5 GB/s of 63 GB/s")


def test_a_nic_at_a_lower_speed_is_severe_when_its_wire_is_faster() -> None:
    finding = found(with_link(dgx(), NIC, PcieLink(16.0, 16, 32.0, 16)), "CB2102")
    assert (finding.severity, finding.what) == ("severe", f"mlx5_0 ({NIC}) runs at 16 of 32 GT/s")


def test_a_nic_that_still_carries_its_wire_is_a_warning() -> None:
    slower = changed(dgx(), "nics", "mlx5_0", ports=(replace(dgx().nics[0].ports[0], rate_bits_per_s=100e9),))
    assert found(with_link(slower, NIC, PcieLink(16.0, 16, 32.0, 16)), "CB2102").severity == "warning"


def test_the_wire_above_a_switch_carries_all_below_it() -> None:
    assert (
        found(with_link(dgx(), UPSTREAM, PcieLink(32.0, 8, 32.0, 16)), "CB2101").what
        == f"PCIe switch port {UPSTREAM} runs on 8 of 16 lanes"
    )


def test_the_inside_of_a_switch_is_no_wire() -> None:
    assert not codes(with_link(dgx(), GPU_PORT, PcieLink(16.0, 4, 32.0, 16)))


def test_without_the_ports_limits_it_is_a_warning() -> None:
    """A Quadro RTX 8000 at 5 GT/s x1: its host's slot may have no more."""
    device = PciDevice("0000:01:00.0", "gpu", None, link=PcieLink(5.0, 1, 8.0, 16))
    findings = [found(Machine(pci=(device,)), code) for code in ("CB2101", "CB2102")]
    assert [finding.severity for finding in findings] == ["warning", "warning"]
    assert "LnkSta 5 GT/s x1 = 0.5 GB/s of 15.8 GB/s" in findings[0].evidence
    assert findings[0].evidence.endswith("not known")


def test_a_slot_with_less_is_a_limit_and_no_downtrain() -> None:
    limited = with_link(with_link(dgx(), GPU, PcieLink(16.0, 16, 32.0, 16)), GPU_PORT, GEN4_X16)
    assert codes(limited) == ["CB2103"]
    assert found(limited, "CB2103").severity == "note"


def test_a_new_nic_in_an_old_slot_that_suffices_is_no_finding() -> None:
    """A ConnectX-6 Dx (Gen4, 100 Gb/s) below a Gen5 port, and a Gen5 card below a Gen4 one."""
    slower = changed(dgx(), "nics", "mlx5_0", model="ConnectX-6 Dx", ports=(replace(dgx().nics[0].ports[0], rate_bits_per_s=100e9),))
    assert not codes(with_link(with_link(slower, NIC, GEN4_X16), NIC_PORT, PcieLink(16.0, 16, 32.0, 16)))
    assert not codes(with_link(with_link(slower, NIC, PcieLink(16.0, 16, 32.0, 16)), NIC_PORT, GEN4_X16))


def test_an_idle_gpu_is_a_note() -> None:
    finding = found(with_link(dgx(), GPU, PcieLink(2.5, 16, 32.0, 16)), "CB2104")
    assert finding.severity == "note" and "1 link of GPUs at 2.5 GT/s" in finding.what
    assert codes(with_link(dgx(), GPU, PcieLink(2.5, 16, 32.0, 16))) == ["CB2104"]


def test_a_nic_is_never_idle() -> None:
    assert codes(with_link(dgx(), NIC, PcieLink(2.5, 16, 32.0, 16))) == ["CB2102"]


def test_harmless_links_are_not_accused() -> None:
    """NVSwitch on two lanes, a switch's management port, a root port without a GPU, a gigabit NIC of the board on one of two lanes."""
    more = (
        PciDevice("0000:05:00.0", "nvswitch", None, link=PcieLink(16.0, 2, 16.0, 16)),
        bridge("0000:00:0c.0", None, 0, "root", PcieLink(5.0, 1, 8.0, 1)),
        nic_device("0000:01:00.0", "0000:00:0c.0", 0, PcieLink(5.0, 1, 5.0, 2), name="BCM5720"),
        bridge("0000:17:1f.0", UPSTREAM, 0, link=PcieLink(16.0, 4, 32.0, 16)),
    )
    assert not codes(replace(dgx(), pci=(*dgx().pci, *more)))
    assert not codes(laptop())


@pytest.mark.parametrize("virtual", ["kvm", None])
def test_links_in_a_virtual_machine_mean_nothing(virtual: str | None) -> None:
    """QEMU's bridges read 2.5 GT/s x1; one of them has a fact that no other source has."""
    pci = (
        bridge("0000:00:02.0", None, 0, "root", PcieLink(2.5, 1, 2.5, 1), virtual=True, acs=("SrcValid", "ReqRedir")),
        gpu_device("0000:01:00.0", "0000:00:02.0", 0, PcieLink(2.5, 1, 32.0, 16)),
        nic_device("0000:02:00.0", "0000:00:02.0", 0, PcieLink(16.0, None, 32.0, 16), virtual=True),
    )
    system = replace(dgx().system, virtualization=virtual, iommu="translating")
    assert not codes(replace(dgx(), pci=pci, system=system, gpus=(), gpu_links=(), nics=()))


def test_acs_above_gpus_on_bare_metal_is_severe() -> None:
    finding = found(changed(dgx(), "pci", GPU_PORT, acs=("SrcValid", "ReqRedir")), "CB2105")
    assert (finding.severity, finding.evidence) == ("severe", f"ACSCtl of {GPU_PORT} (SrcValid+ ReqRedir+)")
    assert finding.remedy.startswith(f"switch it off in the firmware, or with `setpci -s {GPU_PORT} ECAP_ACS+0x6.w=0000`")


def test_acs_of_a_root_port_alone_is_a_note() -> None:
    """What meets at root ports goes through the CPU anyway; Linux switches their ACS on with the IOMMU."""
    finding = found(changed(dgx(), "pci", ROOT, acs=("SrcValid",)), "CB2105")
    assert (finding.severity, finding.what.partition(":")[0]) == ("note", "ACS is on at 1 root port above GPUs or NICs")


def test_acs_inside_an_amd_card_is_harmless() -> None:
    """Such a card is a switch with the GPU alone below; the kernel switches its ACS on with the IOMMU."""
    card = (
        bridge("0000:01:00.0", "0000:00:01.0", 0, link=GEN4_X16),
        bridge("0000:02:00.0", "0000:01:00.0", 0, link=GEN4_X16, acs=("SrcValid", "ReqRedir")),
        gpu_device("0000:03:00.0", "0000:02:00.0", 0, GEN4_X16, vendor_id=0x1002, driver="amdgpu"),
    )
    gpu = Gpu("0000:03:00.0", 0, "0000:03:00.0", "amd")
    nic = nic_device("0000:04:00.0", "0000:00:02.0", 0, GEN4_X16)
    roots = bridge("0000:00:01.0", None, 0, "root", GEN4_X16), bridge("0000:00:02.0", None, 0, "root", GEN4_X16)
    assert not codes(Machine("amd", system=System(virtualization=""), pci=(*roots, *card, nic), gpus=(gpu,)))


def test_acs_above_the_only_card_is_harmless() -> None:
    pci = (bridge("0000:00:01.0", None, 0, "root", acs=("SrcValid", "ReqRedir")), gpu_device("0000:01:00.0", "0000:00:01.0", 0))
    gpu = Gpu("0000:01:00.0", 0, "0000:01:00.0", "nvidia")
    assert not codes(Machine("desk", system=System(virtualization="", iommu="translating"), pci=pci, gpus=(gpu,)))


def test_the_only_gpu_on_half_its_lanes_is_a_warning() -> None:
    """A laptop wires eight lanes between two ends that claim sixteen; it cannot be reseated."""
    half = PcieLink(16.0, 8, 16.0, 16)
    pci = (bridge("0000:00:01.0", None, 0, "root", half), gpu_device("0000:01:00.0", "0000:00:01.0", 0, half))
    gpu = Gpu("0000:01:00.0", 0, "0000:01:00.0", "nvidia", "RTX 4070 Laptop")
    finding = found(Machine("laptop", system=System(virtualization=""), pci=pci, gpus=(gpu,)), "CB2101")
    assert finding.severity == "warning" and "8 of 16 lanes" in finding.what


def test_where_no_source_has_whether_it_is_virtual_acs_is_a_warning() -> None:
    unknown = replace(dgx(), system=replace(dgx().system, virtualization=None))
    finding = found(changed(unknown, "pci", GPU_PORT, acs=("SrcValid",)), "CB2105")
    assert finding.severity == "warning"
    assert "virtual machine" in finding.evidence


def test_acs_where_it_is_harmless() -> None:
    """Above NVSwitches alone, in a virtual machine, on a machine without GPUs, and other bits."""
    switches = (
        bridge("0000:82:00.0", None, 0, acs=("SrcValid",)),
        PciDevice("0000:83:00.0", "nvswitch", "0000:82:00.0", link=PcieLink(16.0, 2, 16.0, 2)),
    )
    assert not codes(replace(dgx(), pci=(*dgx().pci, *switches)))
    virtual = replace(dgx(), system=replace(dgx().system, virtualization="kvm"))
    assert not codes(changed(virtual, "pci", GPU_PORT, acs=("SrcValid", "ReqRedir")))
    assert not codes(changed(laptop(), "pci", "0000:00:1c.0", acs=("SrcValid",)))
    assert not codes(changed(dgx(), "pci", GPU_PORT, acs=("UpstreamFwd",)))


def test_an_iommu_that_translates() -> None:
    finding = found(replace(dgx(), system=replace(dgx().system, iommu="translating", command_line="quiet")), "CB2106")
    assert finding.severity == "warning" and "/proc/cmdline: quiet" in finding.evidence


@pytest.mark.parametrize("facts", [{"virtualization": "kvm"}, {"virtualization": None}, {"architecture": "ppc64le"}])
def test_an_iommu_that_is_right_or_unknown(facts: dict[str, str | None]) -> None:
    system = replace(dgx().system, iommu="translating", **facts)  # type: ignore[arg-type]
    assert not codes(replace(dgx(), system=system))
    assert not codes(replace(laptop(), system=replace(laptop().system, iommu="translating")))


def test_a_bridge_without_limits_that_reads_slower_than_its_devices() -> None:
    slow = with_link(dgx(), UPSTREAM, PcieLink(5.0, 16))
    finding = found(slow, "CB2107")
    assert (finding.severity, finding.evidence) == ("note", f"{UPSTREAM} reads 5 GT/s, GPU 0 ({GPU}) 32 GT/s")
    assert codes(slow) == ["CB2107"]
    assert not codes(with_link(dgx(), UPSTREAM, GEN5_X16))


def test_a_link_that_can_do_no_more_is_not_idle() -> None:
    assert not codes(with_link(dgx(), GPU, PcieLink(2.5, 16, 2.5, 16)))
