"""lspci's text in its forms: functions, the tree from bridges' buses, links, access control, and what is unknown and why."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from collbench.machine.doctor.examine import unexamined_parts
from collbench.machine.model import Gpu, Machine, PciDevice, PcieLink
from collbench.machine.readers import lspci
from collbench.machine.readers.text import Unreadable
from tests.doctor.machines import codes, found, with_system
from tests.machine.machines import has_doubt
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


H100 = "02:00.0 3D controller: NVIDIA Corporation Device 2330"
PHYSICAL = "19:00.0 Ethernet controller: Mellanox Technologies MT2892 Family [ConnectX-6 Dx]\n"
VIRTUAL = "19:00.2 Ethernet controller: Mellanox Technologies ConnectX Family mlx5Gen Virtual Function\n"
CIRCLE = function(f"01:00.0 {BRIDGE}", bus("01", "02", "02")) + function(f"02:00.0 {BRIDGE}", bus("02", "01", "01"))


def ids(machine: Machine, address: str) -> tuple[int | None, int | None, int | None]:
    return at(machine, address).vendor_id, at(machine, address).device_id, at(machine, address).class_id


CASES: dict[str, tuple[str, Callable[[Machine], Any], Any]] = {
    "kinds": (SERVER, lambda m: (m.sources, m.doubts, [device.kind for device in m.pci]),
        (("lspci m",), (), ["other", "bridge", "switch", "switch", "switch", "gpu", "nic", "other"])),
    "ids of a GPU": (SERVER, lambda m: (ids(m, "0000:18:00.0"), at(m, "0000:18:00.0").numa, at(m, "0000:18:00.0").driver),
        ((0x10DE, 0x2330, 0x030200), 0, "nvidia")),
    "GPUs": (SERVER, lambda m: [(gpu.key, gpu.vendor, gpu.model, gpu.numa) for gpu in m.gpus],
        [("0000:18:00.0", "nvidia", "H100 SXM5 80GB", 0)]),
    "NICs": (SERVER, lambda m: [(nic.name, nic.address, nic.model, nic.rdma) for nic in m.nics],
        [("0000:19:00.0", "0000:19:00.0", "ConnectX-7", True)]),
    "the tree comes from the secondary buses of bridges": (SERVER, lambda m: [bridge.address for bridge in above(m, "0000:18:00.0")],
        ["0000:17:00.0", "0000:16:00.0", "0000:15:01.0"]),
    "a root port": (SERVER, lambda m: (at(m, "0000:15:01.0").parent, "pci/0000:15:01.0/parent" in m.unknown), (None, False)),
    "links are read now and at most": (SERVER, lambda m: [at(m, f"0000:{address}.0").link for address in ("18:00", "19:00", "00:00")],
        [PcieLink(16.0, 8, 32.0, 16), PcieLink(32.0, 16, 32.0, 16), PcieLink()]),
    "access control by the bits that are on": (SERVER,
        lambda m: [at(m, address).acs for address in ("0000:15:01.0", "0000:17:00.0", "0000:18:00.0")],
        [("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"), (), None]),
    "GPUs by ids in brackets, in domains": (NUMBERED, lambda m: [(gpu.address, gpu.vendor, gpu.model) for gpu in m.gpus],
        [("0001:00:00.0", "nvidia", "A100-SXM4-80GB"), ("0000:c1:00.0", "amd", "MI300X")]),
    "other functions by ids in brackets": (NUMBERED,
        lambda m: (at(m, "0005:00:00.0").kind, at(m, "0000:00:02.0").kind, ids(m, "0101:00:00.0")[:2]),
        ("nvswitch", "other", (0x15B3, 0x101C))),
    "numbers alone": ("19:00.0 0302: 10de:2330 (rev a1)\n", lambda m: [(each.kind, each.class_id, each.device_id) for each in m.pci],
        [("gpu", 0x030200, 0x2330)]),
    "without buses parents and links are unknown": (NUMBERED,
        lambda m: ("`lspci -vvv`" in m.unknown["pci/0001:00:00.0/parent"], m.unknown["pci/0001:00:00.0/link"]),
        (True, "lspci does not print it")),
    "an endpoint whose bridge is not in the text is not at a root": (SERVER.replace("17:01.0", "27:01.0").replace("secondary=19",
        "secondary=29"), lambda m: (at(m, "0000:19:00.0").parent, "the bridge above it" in m.unknown["pci/0000:19:00.0/parent"]),
        (None, True)),
    "without root capabilities are unknown": (function(H100, "Capabilities: <access denied>"),
        lambda m: ["without root" in m.unknown[f"pci/0000:02:00.0/{fact}"] for fact in ("acs", "link")], [True, True]),
    "a link of unknown speed and no width": (function(H100, *express("Endpoint", now="unknown, Width x0")), lambda m: m.pci[0].link,
        PcieLink(None, None, 32.0, 16)),
    "virtual functions beside their physical one are no ports": (PHYSICAL + VIRTUAL, lambda m: [nic.virtual for nic in m.nics],
        [None, "a virtual function"]),
    "a guest's only NIC": (VIRTUAL, lambda m: [nic.virtual for nic in m.nics], [None]),
    **{f"links of virtual parts mean nothing: {head}": (function(head, *express("Endpoint", "2.5GT/s, Width x1", "2.5GT/s, Width x1")),
        lambda m: [(each.kind, each.virtual, each.link, "means nothing" in m.unknown[f"pci/{each.address}/link"]) for each in m.pci],
        [(kind, True, PcieLink(), True)])
        for head, kind in (("02:00.0 PCI bridge: Red Hat, Inc. QEMU PCIe Root port", "bridge"),
        ("02:00.0 PCI bridge [0604]: Texas Instruments XIO3130 [104c:8232]", "bridge"),
        ("02:00.1 Ethernet controller: Intel Corporation Ethernet Virtual Function 700 Series", "nic"))},
    "circles of bridges are not believed": (CIRCLE,
        lambda m: ([device.parent for device in m.pci], has_doubt(m, "0000:02:00.0: its secondary bus 01 ")),
        ([None, "0000:01:00.0"], True)),
    "a bus below two bridges is below neither": (SERVER.replace("secondary=19", "secondary=18"),
        lambda m: (at(m, "0000:18:00.0").parent, has_doubt(m, "0000:17:00.0 and 0000:17:01.0 both claim bus 18")), (None, True)),
    "a link that runs at more than it can": (function(H100, *express("Endpoint", "8GT/s, Width x4", "8GT/s, Width x16")),
        lambda m: has_doubt(m, "0000:02:00.0: its link runs on 16 lanes"), True),
}  # fmt: skip


@pytest.mark.parametrize(("text", "facts", "expected"), CASES.values(), ids=CASES)
def test_a_fact(text: str, facts: Callable[[Machine], Any], expected: Any) -> None:
    assert facts(lspci.read(text, "m")) == expected


def test_captured_excerpts_are_read_below_their_devices_and_refused_without() -> None:
    text = captures.text("lspci-downtrained", "lspci.txt")
    with pytest.raises(Unreadable, match="link lines"):
        lspci.read(text, "captured")
    quadro, rtx = text.split("\n\n", 1)
    gpus = f"01:00.0 3D controller: NVIDIA Corporation TU102GL\n{quadro}\n02:00.0 3D controller: NVIDIA Corporation AD102\n{rtx}"
    assert [device.link for device in lspci.read(gpus, "m").pci] == [PcieLink(5.0, 1), PcieLink(2.5, 16, 16.0, 16)]


ON = "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-\n"
OFF = "\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-\n"


def test_access_control_that_is_on_is_counted_and_a_note_and_what_was_read_is_known() -> None:
    assert lspci.looks_like_acs_lines(ON * 3 + OFF)
    machine = lspci.read_acs_lines(ON * 3 + OFF, "acs.txt")
    assert (machine.system.acs_ports, machine.system.acs_on) == (4, 3)
    assert found(machine, "CB2108").severity == "note" and "3 of 4 ports" in found(machine, "CB2108").what
    assert codes(lspci.read_acs_lines(OFF * 4, "acs.txt")) == codes(with_system(machine, virtualization="kvm")) == []
    whole = f"00:01.0 PCI bridge: Intel Corporation Device 1234\n{ON}"
    assert lspci.looks_like(whole) and not lspci.looks_like_acs_lines(whole)
    without = Machine(gpus=(Gpu("gpu0"), Gpu("gpu1")))
    read = with_system(without, acs_ports=4, acs_on=0)
    assert [any(text.startswith("ACS") for text in unexamined_parts([machine])) for machine in (read, without)] == [False, True]
