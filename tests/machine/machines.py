"""Hand-made machines: a switched 8 GPU server, a PCIe box, a mesh of 4 GPUs, a laptop. Their layouts follow public facts, not files."""

from collections.abc import Callable
from typing import Any

from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, Nic, NumaNode, PciDevice, PcieLink, Port, System

GEN3_X16 = PcieLink(8.0, 16, 8.0, 16)
GEN4_X16 = PcieLink(16.0, 16, 16.0, 16)
GEN5_X16 = PcieLink(32.0, 16, 32.0, 16)
NVIDIA, AMD, MELLANOX, BROADCOM = 0x10DE, 0x1022, 0x15B3, 0x1000
GIB = 1 << 30


def infiniband(rate_gbit: int, speed: str, **changes: Any) -> Port:
    facts: dict[str, Any] = {"rate_bits_per_s": rate_gbit * 1e9, "rate_text": f"{rate_gbit} Gb/sec (4X {speed})", "state": "active"}
    rest = {"phys_state": "linkup", "link_layer": "infiniband", "mtu_bytes": 4096, "lid": 17, "sm_lid": 1}
    return Port(**{**facts, **rest, **changes})


def ethernet(rate_gbit: float, mtu: int = 9000, **changes: Any) -> Port:
    return Port(**{"rate_bits_per_s": rate_gbit * 1e9, "state": "active", "link_layer": "ethernet", "mtu_bytes": mtu, **changes})


def bridge(address: str, parent: str | None, numa: int, kind: Any = "switch", link: PcieLink = GEN5_X16, **changes: Any) -> PciDevice:
    """A root port (kind "bridge", no parent) or a port of a PCIe switch, without ACS."""
    facts: dict[str, Any] = {"vendor_id": BROADCOM if kind == "switch" else AMD, "class_id": 0x060400, "acs": (), "driver": "pcieport"}
    return PciDevice(address, kind, parent, numa=numa, link=link, **{**facts, **changes})


def gpu_device(address: str, parent: str | None, numa: int | None, link: PcieLink = GEN5_X16, **changes: Any) -> PciDevice:
    facts: dict[str, Any] = {"vendor_id": NVIDIA, "class_id": 0x030200, "numa": numa, "link": link, "driver": "nvidia"}
    return PciDevice(address, "gpu", parent, **{**facts, **changes})


def nic_device(address: str, parent: str | None, numa: int | None, link: PcieLink = GEN5_X16, **changes: Any) -> PciDevice:
    facts: dict[str, Any] = {"vendor_id": MELLANOX, "class_id": 0x020700, "numa": numa, "link": link, "driver": "mlx5_core"}
    return PciDevice(address, "nic", parent, **{**facts, **changes})


def dgx() -> Machine:
    """Like a DGX H100: 8 GPUs on NVSwitch, 8 NDR NICs, four PCIe switches with 2 GPUs and 2 NICs each, two sockets. All is well on it."""
    pci: list[PciDevice] = []
    gpus: list[Gpu] = []
    nics: list[Nic] = []
    for number, bus in enumerate((0x15, 0x38, 0x97, 0xC0)):
        numa = number // 2
        pci += [bridge(f"0000:{bus:02x}:01.0", None, numa, "bridge"), bridge(f"0000:{bus + 1:02x}:00.0", f"0000:{bus:02x}:01.0", numa)]
        for slot in range(4):
            port, address = f"0000:{bus + 2:02x}:{slot:02x}.0", f"0000:{bus + 3 + slot:02x}:00.0"
            pci.append(bridge(port, f"0000:{bus + 1:02x}:00.0", numa))
            if slot < 2:
                pci.append(gpu_device(address, port, numa, name="H100 SXM5 80GB", device_id=0x2330))
                gpus.append(Gpu(address, len(gpus), address, "nvidia", "H100 80GB HBM3", "sm_90", numa, 80 * GIB, 0))
            else:
                pci.append(nic_device(address, port, numa, name="ConnectX-7", device_id=0x1021))
                place = len(nics)
                names, ports = (f"ib{place}",), (infiniband(400, "NDR", lid=20 + place),)
                nics.append(Nic(f"mlx5_{place}", address, "ConnectX-7", True, numa, ports, names, firmware="28.39.1002"))
    system = System(
        "x86_64", "Intel(R) Xeon(R) Platinum 8480C", "Intel", 2, 112, 224, 2048 * GIB, "5.15.0-91-generic", "iommu=pt", "535.129.03",
        ("nvidia_peermem",), True, "passthrough", "", "", 1024 * GIB,
    )  # fmt: skip
    return Machine(
        "dgx01", ("hand-made",), system, _numa(("0-55,112-167", "56-111,168-223"), 1024), tuple(pci), tuple(gpus),
        tuple(GpuLink(gpu.key, SWITCH, 18, "nvlink", 26.562e9) for gpu in gpus), tuple(nics),
    )  # fmt: skip


def pcie_box() -> Machine:
    """Four A100 PCIe without bridges: two behind one switch on socket 0, two at root ports of socket 1; a 100 Gb/s NIC on socket 0.

    The last GPU runs on 8 of its 16 lanes; the Ethernet NIC on socket 1 has two functions, the second one's port is down.
    """
    pci = (
        bridge("0000:00:01.0", None, 0, "bridge", GEN4_X16), bridge("0000:01:00.0", "0000:00:01.0", 0, link=GEN4_X16),
        bridge("0000:02:08.0", "0000:01:00.0", 0, link=GEN4_X16), gpu_device("0000:03:00.0", "0000:02:08.0", 0, GEN4_X16),
        bridge("0000:02:10.0", "0000:01:00.0", 0, link=GEN4_X16), gpu_device("0000:04:00.0", "0000:02:10.0", 0, GEN4_X16),
        bridge("0000:20:01.1", None, 0, "bridge", PcieLink(8.0, 16, 16.0, 16)),
        nic_device("0000:21:00.0", "0000:20:01.1", 0, GEN3_X16, name="ConnectX-5", device_id=0x1017),
        bridge("0000:80:01.1", None, 1, "bridge", GEN4_X16), gpu_device("0000:81:00.0", "0000:80:01.1", 1, GEN4_X16),
        bridge("0000:80:03.1", None, 1, "bridge", PcieLink(16.0, 8, 16.0, 16)),
        gpu_device("0000:82:00.0", "0000:80:03.1", 1, PcieLink(16.0, 8, 16.0, 16)),
        bridge("0000:a0:03.1", None, 1, "bridge", GEN3_X16),
        nic_device("0000:a1:00.0", "0000:a0:03.1", 1, PcieLink(8.0, 8, 8.0, 8), name="ConnectX-4 Lx", class_id=0x020000),
        nic_device("0000:a1:00.1", "0000:a0:03.1", 1, PcieLink(8.0, 8, 8.0, 8), name="ConnectX-4 Lx", class_id=0x020000),
    )  # fmt: skip
    places = (("0000:03:00.0", 0), ("0000:04:00.0", 0), ("0000:81:00.0", 1), ("0000:82:00.0", 1))
    gpus = tuple(
        Gpu(address, index, address, "nvidia", "A100-PCIE-40GB", "sm_80", numa, 40 * GIB) for index, (address, numa) in enumerate(places)
    )
    nics = (
        Nic("mlx5_0", "0000:21:00.0", "ConnectX-5", True, 0, (infiniband(100, "EDR"),), ("ib0",)),
        Nic("eno1", "0000:a1:00.0", "ConnectX-4 Lx", False, 1, (ethernet(25, 1500),), ("eno1",)),
        Nic("eno2", "0000:a1:00.1", "ConnectX-4 Lx", False, 1, (Port(state="down", link_layer="ethernet", mtu_bytes=1500),), ("eno2",)),
    )
    system = System(
        "x86_64", "AMD EPYC 7402 24-Core Processor", "AMD", 2, 48, 96, 512 * GIB, "5.4.0-150-generic", "iommu=pt", "535.104.05", (), False,
        "passthrough", "", "", 64 * GIB,
    )  # fmt: skip
    return Machine("box", ("hand-made",), system, _numa(("0-23,48-71", "24-47,72-95"), 256), pci, gpus, (), nics)


def mesh() -> Machine:
    """Like a JUWELS Booster node: 4 A100, each pair with 4 NVLinks, an HDR NIC beside each GPU, two sockets of four NUMA nodes each."""
    pci: list[PciDevice] = []
    gpus: list[Gpu] = []
    nics: list[Nic] = []
    for index, (bus, numa) in enumerate(((0x00, 3), (0x40, 1), (0x80, 7), (0xC0, 5))):
        root, top = f"0000:{bus:02x}:03.1", f"0000:{bus + 1:02x}:00.0"
        gpu, nic = f"0000:{bus + 3:02x}:00.0", f"0000:{bus + 4:02x}:00.0"
        ports = f"0000:{bus + 2:02x}:00.0", f"0000:{bus + 2:02x}:10.0"
        pci += [bridge(root, None, numa, "bridge", GEN4_X16), bridge(top, root, numa, link=GEN4_X16)]
        pci += [bridge(port, top, numa, link=GEN4_X16) for port in ports]
        pci += [
            gpu_device(gpu, ports[0], numa, GEN4_X16, name="A100-SXM4-40GB"),
            nic_device(nic, ports[1], numa, GEN4_X16, name="ConnectX-6"),
        ]
        gpus.append(Gpu(gpu, index, gpu, "nvidia", "A100-SXM4-40GB", "sm_80", numa, 40 * GIB))
        nics.append(Nic(f"mlx5_{index}", nic, "ConnectX-6", True, numa, (infiniband(200, "HDR"),), (f"ib{index}",)))
    links = tuple(GpuLink(a.key, b.key, 4, "nvlink", 25e9) for a in gpus for b in gpus if a is not b)
    system = System(
        "x86_64", "AMD EPYC 7402 24-Core Processor", "AMD", 2, 48, 96, 512 * GIB, "5.14.0-427.el9.x86_64", "iommu=pt", "550.54.15",
        ("nvidia_peermem",), False, "passthrough", "", "", 256 * GIB,
    )  # fmt: skip
    return Machine(
        "jwb0001", ("hand-made",), system, _numa([f"{6 * node}-{6 * node + 5},{48 + 6 * node}-{53 + 6 * node}" for node in range(8)], 64),
        tuple(pci), tuple(gpus), links, tuple(nics),
    )  # fmt: skip


def laptop() -> Machine:
    """One socket, no GPU of use, a gigabit port and a container's bridge."""
    pci = (
        bridge("0000:00:1c.0", None, 0, "bridge", PcieLink(2.5, 1, 8.0, 1)),
        PciDevice(
            "0000:02:00.0", "nic", "0000:00:1c.0", 0x10EC, 0x8168, 0x020000, "RTL8111", None, PcieLink(2.5, 1, 2.5, 1), driver="r8169"
        ),
    )
    nics = (
        Nic("enp2s0", "0000:02:00.0", "RTL8111", False, None, (ethernet(1, 1500),), ("enp2s0",)),
        Nic("docker0", None, None, False, None, (Port(state="down", link_layer="ethernet", mtu_bytes=1500),), ("docker0",), "bridge"),
    )
    system = System(
        "x86_64", "Intel(R) Core(TM) i5-8250U CPU @ 1.60GHz", "Intel", 1, 4, 8, 16 * GIB, "6.8.0-45-generic", "quiet splash",
        virtualization="", container="", peer_memory=(), shm_bytes=8 * GIB,
    )  # fmt: skip
    return Machine("laptop", ("hand-made",), system, (NumaNode(0, "0-7", 16 * GIB),), pci, nics=nics)


MACHINES: dict[str, Callable[[], Machine]] = {"dgx": dgx, "pcie_box": pcie_box, "mesh": mesh, "laptop": laptop}


def _numa(cpus: Any, gib_each: int) -> tuple[NumaNode, ...]:
    return tuple(NumaNode(number, each, gib_each * GIB) for number, each in enumerate(cpus))


def has_doubt(machine: Machine, text: str) -> bool:
    """Whether the machine has one doubt, with this text."""
    return len(machine.doubts) == 1 and text in machine.doubts[0]
