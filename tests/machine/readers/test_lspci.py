"""lspci's text in its forms: functions, the tree from bridges' buses, links, access control, and what is unknown and why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collbench.machine.doctor.examine import unexamined_parts
from collbench.machine.model import Gpu, Machine, PciDevice, PcieLink
from collbench.machine.readers import lspci
from collbench.machine.readers.text import Unreadable
from tests.doctor.machines import codes, found, with_system
from tests.machines import captures


def function(head: str, *lines: str) -> str:
    return "\n".join([head, *(f"\t{line}" for line in lines)]) + "\n\n"


def express(kind: str, most: str = "32GT/s, Width x16", now: str = "32GT/s (ok), Width x16 (ok)") -> tuple[str, ...]:
    return (
        f"Capabilities: [40] Express (v2) {kind}, MSI 00",
        f"\tLnkCap:\tPort #0, Speed {most}, ASPM not supported",
        f"\tLnkSta:\tSpeed {now}",
    )


def bus(primary: str, secondary: str, subordinate: str) -> str:
    return f"Bus: primary={primary}, secondary={secondary}, subordinate={subordinate}, sec-latency=0"


ACS_OFF = "\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-"
ACS_ON = "\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-"
BRIDGE = "PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0) (prog-if 00 [Normal decode])"
SERVER = (
    function("00:00.0 Host bridge: Intel Corporation Device 09a2 (rev 20)", "NUMA node: 0")
    + function(
        "15:01.0 PCI bridge: Intel Corporation Device 352a (rev 04) (prog-if 00 [Normal decode])",
        "NUMA node: 0", bus("15", "16", "1a"), *express("Root Port (Slot-)"), ACS_ON, "Kernel driver in use: pcieport",
    )
    + function(f"16:00.0 {BRIDGE}", "NUMA node: 0", bus("16", "17", "1a"), *express("Upstream Port"))
    + function(f"17:00.0 {BRIDGE}", "NUMA node: 0", bus("17", "18", "18"), *express("Downstream Port (Slot+)"), ACS_OFF)
    + function(f"17:01.0 {BRIDGE}", "NUMA node: 0", bus("17", "19", "19"), *express("Downstream Port (Slot+)"), ACS_OFF)
    + function(
        "18:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)",
        "NUMA node: 0", *express("Endpoint", now="16GT/s (downgraded), Width x8 (downgraded)"), "Kernel driver in use: nvidia",
    )
    + function(
        "19:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]",
        "NUMA node: 0", *express("Endpoint"), "Kernel driver in use: mlx5_core",
    )
    + function("03:00.0 VGA compatible controller: Matrox Electronics Systems Ltd. Integrated Matrox G200eW3 (rev 04)", "NUMA node: 0")
)  # fmt: skip
NUMBERED = """\
0001:00:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 80GB] [10de:20b2] (rev a1)
0005:00:00.0 Bridge [0680]: NVIDIA Corporation Device [10de:1af1] (rev a1)
0101:00:00.0 Infiniband controller [0207]: Mellanox Technologies MT28908 Family [ConnectX-6 Virtual Function] [15b3:101c]
c1:00.0 Processing accelerators [1200]: Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram [Instinct MI300X] [1002:74a1]
00:02.0 VGA compatible controller [0300]: Intel Corporation UHD Graphics [8086:9bc8]
"""


def at(machine: Machine, address: str) -> PciDevice:
    return next(device for device in machine.pci if device.address == address)


def above(machine: Machine, address: str) -> Iterator[PciDevice]:
    """The bridges above a function, nearest first."""
    parent = at(machine, address).parent
    while parent:
        yield at(machine, parent)
        parent = at(machine, parent).parent


def test_kinds_ids_and_names() -> None:
    machine = lspci.read(SERVER, "lspci.txt")
    assert machine.sources == ("lspci lspci.txt",) and machine.doubts == ()
    assert [device.kind for device in machine.pci] == ["other", "bridge", "switch", "switch", "switch", "gpu", "nic", "other"]
    gpu = at(machine, "0000:18:00.0")
    assert (gpu.vendor_id, gpu.device_id, gpu.class_id, gpu.numa, gpu.driver) == (0x10DE, 0x2330, 0x030200, 0, "nvidia")
    assert [(gpu.key, gpu.vendor, gpu.model, gpu.numa) for gpu in machine.gpus] == [("0000:18:00.0", "nvidia", "H100 SXM5 80GB", 0)]
    assert [(nic.name, nic.address, nic.model, nic.rdma) for nic in machine.nics] == [("0000:19:00.0", "0000:19:00.0", "ConnectX-7", True)]


def test_the_tree_comes_from_the_secondary_buses_of_bridges() -> None:
    machine = lspci.read(SERVER, "m")
    assert [bridge.address for bridge in above(machine, "0000:18:00.0")] == ["0000:17:00.0", "0000:16:00.0", "0000:15:01.0"]
    assert at(machine, "0000:15:01.0").parent is None and "pci/0000:15:01.0/parent" not in machine.unknown


def test_links_are_read_now_and_at_most() -> None:
    machine = lspci.read(SERVER, "m")
    assert at(machine, "0000:18:00.0").link == PcieLink(16.0, 8, 32.0, 16)
    assert at(machine, "0000:19:00.0").link == PcieLink(32.0, 16, 32.0, 16)
    assert at(machine, "0000:00:00.0").link == PcieLink()


def test_access_control_names_the_bits_that_are_on() -> None:
    machine = lspci.read(SERVER, "m")
    assert at(machine, "0000:15:01.0").acs == ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")
    assert at(machine, "0000:17:00.0").acs == () and at(machine, "0000:18:00.0").acs is None


def test_ids_in_brackets_and_domains() -> None:
    machine = lspci.read(NUMBERED, "m")
    assert [(gpu.address, gpu.vendor, gpu.model) for gpu in machine.gpus] == [
        ("0001:00:00.0", "nvidia", "A100-SXM4-80GB"), ("0000:c1:00.0", "amd", "MI300X"),
    ]  # fmt: skip
    assert at(machine, "0005:00:00.0").kind == "nvswitch" and at(machine, "0000:00:02.0").kind == "other"
    assert (at(machine, "0101:00:00.0").vendor_id, at(machine, "0101:00:00.0").device_id) == (0x15B3, 0x101C)
    bare = lspci.read("19:00.0 0302: 10de:2330 (rev a1)\n", "m")
    assert (bare.pci[0].kind, bare.pci[0].class_id, bare.pci[0].device_id) == ("gpu", 0x030200, 0x2330)


def test_without_buses_parents_are_unknown_with_the_reason() -> None:
    machine = lspci.read(NUMBERED, "m")
    assert "`lspci -vvv`" in machine.unknown["pci/0001:00:00.0/parent"]
    assert machine.unknown["pci/0001:00:00.0/link"] == "lspci does not print it"


def test_an_endpoint_whose_bridge_is_not_in_the_text_is_not_at_a_root() -> None:
    machine = lspci.read(SERVER.replace("17:01.0", "27:01.0").replace("secondary=19", "secondary=29"), "m")
    assert at(machine, "0000:19:00.0").parent is None
    assert "the bridge above it" in machine.unknown["pci/0000:19:00.0/parent"]


def test_without_root_capabilities_are_unknown() -> None:
    machine = lspci.read(function("18:00.0 3D controller: NVIDIA Corporation Device 2330", "Capabilities: <access denied>"), "m")
    assert "without root" in machine.unknown["pci/0000:18:00.0/acs"] and "without root" in machine.unknown["pci/0000:18:00.0/link"]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("02:00.0 PCI bridge: Red Hat, Inc. QEMU PCIe Root port", "bridge"),
        ("02:00.0 PCI bridge [0604]: Texas Instruments XIO3130 [104c:8232]", "bridge"),
        ("02:00.1 Ethernet controller: Intel Corporation Ethernet Virtual Function 700 Series", "nic"),
    ],
)
def test_links_of_virtual_parts_mean_nothing(head: str, kind: str) -> None:
    machine = lspci.read(function(head, *express("Endpoint", "2.5GT/s, Width x1", "2.5GT/s, Width x1")), "m")
    assert machine.pci[0].kind == kind and machine.pci[0].virtual and machine.pci[0].link == PcieLink()
    assert "means nothing" in machine.unknown[f"pci/{machine.pci[0].address}/link"]


def test_a_link_of_unknown_speed_and_no_width_is_unknown() -> None:
    text = function("02:00.0 3D controller: NVIDIA Corporation Device 2330", *express("Endpoint", now="unknown, Width x0"))
    assert lspci.read(text, "m").pci[0].link == PcieLink(None, None, 32.0, 16)


def test_virtual_functions_beside_their_physical_one_are_no_ports() -> None:
    physical = "19:00.0 Ethernet controller: Mellanox Technologies MT2892 Family [ConnectX-6 Dx]\n"
    virtual = "19:00.2 Ethernet controller: Mellanox Technologies ConnectX Family mlx5Gen Virtual Function\n"
    assert [nic.virtual for nic in lspci.read(physical + virtual, "m").nics] == [None, "a virtual function"]
    assert [nic.virtual for nic in lspci.read(virtual, "m").nics] == [None]  # a guest's only NIC


def test_circles_of_bridges_are_not_believed() -> None:
    text = function(f"01:00.0 {BRIDGE}", bus("01", "02", "02")) + function(f"02:00.0 {BRIDGE}", bus("02", "01", "01"))
    machine = lspci.read(text, "m")
    assert at(machine, "0000:02:00.0").parent == "0000:01:00.0" and at(machine, "0000:01:00.0").parent is None
    assert len(machine.doubts) == 1 and "0000:02:00.0: its secondary bus 01 " in machine.doubts[0]


def test_a_bus_below_two_bridges_is_below_neither() -> None:
    machine = lspci.read(SERVER.replace("secondary=19", "secondary=18"), "m")
    assert at(machine, "0000:18:00.0").parent is None
    assert len(machine.doubts) == 1 and "0000:17:00.0 and 0000:17:01.0 both claim bus 18" in machine.doubts[0]


def test_a_link_that_runs_at_more_than_it_can_is_doubted() -> None:
    text = function("02:00.0 3D controller: NVIDIA Corporation Device 2330", *express("Endpoint", "8GT/s, Width x4", "8GT/s, Width x16"))
    assert len(lspci.read(text, "m").doubts) == 1 and "0000:02:00.0: its link runs on 16 lanes" in lspci.read(text, "m").doubts[0]


def test_captured_excerpts_are_read_below_their_devices_and_refused_without() -> None:
    text = captures.text("lspci-downtrained", "lspci.txt")
    with pytest.raises(Unreadable, match="link lines"):
        lspci.read(text, "captured")
    quadro, rtx = text.split("\n\n", 1)
    gpus = f"01:00.0 3D controller: NVIDIA Corporation TU102GL\n{quadro}\n02:00.0 3D controller: NVIDIA Corporation AD102\n{rtx}"
    assert [device.link for device in lspci.read(gpus, "m").pci] == [PcieLink(5.0, 1), PcieLink(2.5, 16, 16.0, 16)]


ON = "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-\n"
OFF = "\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-\n"


def test_ports_are_counted() -> None:
    assert lspci.looks_like_acs_lines(ON * 3 + OFF, "x")
    system = lspci.read_acs_lines(ON * 3 + OFF, "acs.txt").system
    assert (system.acs_ports, system.acs_on) == (4, 3)


def test_access_control_that_is_on_is_a_note_and_off_none() -> None:
    machine = lspci.read_acs_lines(ON * 3 + OFF, "acs.txt")
    assert found(machine, "CB2108").severity == "note"
    assert "3 of 4 ports" in found(machine, "CB2108").what
    assert codes(lspci.read_acs_lines(OFF * 4, "acs.txt")) == []
    assert codes(with_system(machine, virtualization="kvm")) == []


def test_that_access_control_was_read_is_known() -> None:
    gpus = (Gpu("gpu0"), Gpu("gpu1"))
    read = with_system(Machine(gpus=gpus), acs_ports=4, acs_on=0)
    assert not any(text.startswith("ACS") for text in unexamined_parts([read]))
    assert any(text.startswith("ACS") for text in unexamined_parts([Machine(gpus=gpus)]))


def test_a_whole_lspci_is_read_as_lspci() -> None:
    whole = f"00:01.0 PCI bridge: Intel Corporation Device 1234\n{ON}"
    assert not lspci.looks_like_acs_lines(whole, "x")
    assert lspci.looks_like(whole, "x")
