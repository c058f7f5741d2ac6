"""CB21xx: links below the rate that both ends support, ACS, the IOMMU, and the devices that must not be reported for them."""

import pytest
from msgspec.structs import replace

from collbench.machine.model import Gpu, Machine, PciDevice, PcieLink, System
from tests.doctor.machines import Fault, changed, codes, found, with_link, with_system
from tests.machine.machines import GEN4_X16, GEN5_X16, bridge, dgx, gpu_device, laptop, nic_device

GPU, GPU_PORT = "0000:18:00.0", "0000:17:00.0"
NIC, NIC_PORT = "0000:1a:00.0", "0000:17:02.0"
UPSTREAM, ROOT = "0000:16:00.0", "0000:15:01.0"
HALF, GEN4, IDLE = PcieLink(32.0, 8, 32.0, 16), PcieLink(16.0, 16, 32.0, 16), PcieLink(2.5, 16, 32.0, 16)
RTX8000 = Machine(pci=(PciDevice("0000:01:00.0", "gpu", None, link=PcieLink(5.0, 1, 8.0, 16)),))
SLOW_WIRE = changed(dgx(), "nics", "mlx5_0", model="ConnectX-6 Dx", ports=(replace(dgx().nics[0].ports[0], rate_bits_per_s=100e9),))
NARROW = PcieLink(16.0, 8, 16.0, 16)
# A laptop wires eight lanes between two ends that claim sixteen; it cannot be reseated.
LAPTOP = Machine(
    "laptop", system=System(virtualization=""),
    pci=(bridge("0000:00:01.0", None, 0, "root", NARROW), gpu_device("0000:01:00.0", "0000:00:01.0", 0, NARROW)),
    gpus=(Gpu("0000:01:00.0", 0, "0000:01:00.0", "nvidia", "RTX 4070 Laptop"),),
)  # fmt: skip
ACS = ("SrcValid", "ReqRedir")
WITH_ACS = changed(dgx(), "pci", GPU_PORT, acs=ACS)
BOOTED = replace(dgx().system, iommu="translating", command_line="quiet")

FAULTS = [
    Fault("a GPU on half its lanes", "CB2101", "severe", with_link(dgx(), GPU, HALF),
          (f"\nGPU 0 ({GPU}) runs on 8 of 16 lanes\n", "\nLnkSta 32 GT/s x8 = 31.5 GB/s of 63 GB/s")),
    Fault("a NIC with a faster wire", "CB2102", "severe", with_link(dgx(), NIC, GEN4), (f"\nmlx5_0 ({NIC}) runs at 16 of 32 GT/s\n",)),
    Fault("a NIC that still carries its wire", "CB2102", "warning", with_link(SLOW_WIRE, NIC, GEN4)),
    Fault("the wire above a switch", "CB2101", "severe", with_link(dgx(), UPSTREAM, HALF),
          (f"\nPCIe switch port {UPSTREAM} runs on 8 of 16 lanes\n",)),
    Fault("lanes of a slot with unknown limits", "CB2101", "warning", RTX8000,
          ("LnkSta 5 GT/s x1 = 0.5 GB/s of 15.8 GB/s", "not known\n")),
    Fault("speed of a slot with unknown limits", "CB2102", "warning", RTX8000),
    Fault("a slot with less is no downtrained link", "CB2103", "note", with_link(with_link(dgx(), GPU, GEN4), GPU_PORT, GEN4_X16)),
    Fault("an idle GPU", "CB2104", "note", with_link(dgx(), GPU, IDLE), ("1 link of GPUs at 2.5 GT/s",)),
    Fault("a NIC is never idle", "CB2102", "severe", with_link(dgx(), NIC, IDLE)),
    Fault("the only GPU on half its lanes", "CB2101", "warning", LAPTOP, ("8 of 16 lanes",)),
    Fault("ACS above GPUs on bare metal", "CB2105", "severe", WITH_ACS,
          (f"\nACSCtl of {GPU_PORT} (SrcValid+ ReqRedir+)\n",
           f"\nswitch it off in the firmware, or with `setpci -s {GPU_PORT} ECAP_ACS+0x6.w=0000`")),
    # What meets at root ports goes through the CPU anyway; Linux switches their ACS on with the IOMMU.
    Fault("ACS of a root port", "CB2105", "note", changed(dgx(), "pci", ROOT, acs=("SrcValid",)),
          ("\nACS is on at 1 root port above GPUs or NICs:",)),
    Fault("ACS of perhaps a virtual machine", "CB2105", "warning", with_system(WITH_ACS, virtualization=None), ("virtual machine",)),
    Fault("an IOMMU that translates", "CB2106", "warning", replace(dgx(), system=BOOTED), ("/proc/cmdline: quiet",)),
    Fault("a bridge slower than its devices", "CB2107", "note", with_link(dgx(), UPSTREAM, PcieLink(5.0, 16)),
          (f"\n{UPSTREAM} reads 5 GT/s, GPU 0 ({GPU}) 32 GT/s\n",)),
    Fault("ACS at ports without a name", "CB2108", "note", with_system(Machine(), acs_ports=8, acs_on=3), ("at 3 of 8 ports",)),
]  # fmt: skip
MORE_DEVICES = (
    PciDevice("0000:05:00.0", "nvswitch", None, link=PcieLink(16.0, 2, 16.0, 16)),
    bridge("0000:00:0c.0", None, 0, "root", PcieLink(5.0, 1, 8.0, 1)),
    nic_device("0000:01:00.0", "0000:00:0c.0", 0, PcieLink(5.0, 1, 5.0, 2), name="BCM5720"),
    bridge("0000:17:1f.0", UPSTREAM, 0, link=PcieLink(16.0, 4, 32.0, 16)),
)
NVSWITCH = PciDevice("0000:83:00.0", "nvswitch", "0000:82:00.0", link=PcieLink(16.0, 2, 16.0, 2))
SWITCHES = (bridge("0000:82:00.0", None, 0, acs=("SrcValid",)), NVSWITCH)
# QEMU's bridges read 2.5 GT/s x1; one of them has a fact that no other source has.
GUEST = (
    bridge("0000:00:02.0", None, 0, "root", PcieLink(2.5, 1, 2.5, 1), virtual=True, acs=ACS),
    gpu_device("0000:01:00.0", "0000:00:02.0", 0, PcieLink(2.5, 1, 32.0, 16)),
    nic_device("0000:02:00.0", "0000:00:02.0", 0, PcieLink(16.0, None, 32.0, 16), virtual=True),
)
GUEST_MACHINE = replace(with_system(dgx(), iommu="translating"), pci=GUEST, gpus=(), gpu_links=(), nics=())
# Such a card is a switch with the GPU alone below; the kernel switches its ACS on with the IOMMU.
AMD_CARD = (
    bridge("0000:00:01.0", None, 0, "root", GEN4_X16), bridge("0000:00:02.0", None, 0, "root", GEN4_X16),
    bridge("0000:01:00.0", "0000:00:01.0", 0, link=GEN4_X16), bridge("0000:02:00.0", "0000:01:00.0", 0, link=GEN4_X16, acs=ACS),
    gpu_device("0000:03:00.0", "0000:02:00.0", 0, GEN4_X16, vendor_id=0x1002, driver="amdgpu"),
    nic_device("0000:04:00.0", "0000:00:02.0", 0, GEN4_X16),
)  # fmt: skip
ONLY_CARD = (bridge("0000:00:01.0", None, 0, "root", acs=ACS), gpu_device("0000:01:00.0", "0000:00:01.0", 0))
HEALTHY = {
    "the inside of a switch": with_link(dgx(), GPU_PORT, PcieLink(16.0, 4, 32.0, 16)),
    "an old card below a new port": with_link(with_link(SLOW_WIRE, NIC, GEN4_X16), NIC_PORT, GEN4),
    "a new card in an old slot that suffices": with_link(with_link(SLOW_WIRE, NIC, GEN4), NIC_PORT, GEN4_X16),
    "an NVSwitch, a management port, an empty root port, a gigabit NIC": replace(dgx(), pci=(*dgx().pci, *MORE_DEVICES)),
    "a laptop": laptop(),
    "links in a virtual machine": with_system(GUEST_MACHINE, virtualization="kvm"),
    "links in what may be a virtual machine": with_system(GUEST_MACHINE, virtualization=None),
    "slow links and ACS of GPUs in a virtual machine": with_system(with_link(with_link(WITH_ACS, GPU, PcieLink(2.5, 1, 32.0, 16)), NIC,
        PcieLink(2.5, 1, 32.0, 16)), virtualization="kvm", iommu="translating"),
    "ACS inside an AMD card": Machine("amd", system=System(virtualization=""), pci=AMD_CARD,
        gpus=(Gpu("0000:03:00.0", 0, "0000:03:00.0", "amd"),)),
    "ACS above the only card": Machine("desk", system=System(virtualization="", iommu="translating"), pci=ONLY_CARD,
        gpus=(Gpu("0000:01:00.0", 0, "0000:01:00.0", "nvidia"),)),
    "ACS above NVSwitches": replace(dgx(), pci=(*dgx().pci, *SWITCHES)),
    "ACS in a virtual machine": with_system(WITH_ACS, virtualization="kvm"),
    "ACS without GPUs": changed(laptop(), "pci", "0000:00:1c.0", acs=("SrcValid",)),
    "another bit of ACS": changed(dgx(), "pci", GPU_PORT, acs=("UpstreamFwd",)),
    "ports without ACS": with_system(Machine(), acs_ports=8, acs_on=0),
    "an IOMMU of a virtual machine": with_system(dgx(), iommu="translating", virtualization="kvm"),
    "an IOMMU of perhaps a virtual machine": with_system(dgx(), iommu="translating", virtualization=None),
    "an IOMMU of POWER": with_system(dgx(), iommu="translating", architecture="ppc64le"),
    "an IOMMU of a laptop": with_system(laptop(), iommu="translating"),
    "an IOMMU in passthrough": with_system(dgx(), iommu="passthrough"),
    "a bridge with known limits": with_link(dgx(), UPSTREAM, GEN5_X16),
    "a link that can do no more": with_link(dgx(), GPU, PcieLink(2.5, 16, 2.5, 16)),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=[each.name for each in FAULTS])
def test_a_fault_is_found(fault: Fault) -> None:
    fault.check()
    assert set(codes(fault.machine)) == ({"CB2101", "CB2102"} if fault.machine is RTX8000 else {fault.code})
    assert found(fault.machine, fault.code).hostname == fault.machine.hostname


@pytest.mark.parametrize("machine", HEALTHY.values(), ids=HEALTHY)
def test_what_is_no_fault(machine: Machine) -> None:
    assert not codes(machine)
