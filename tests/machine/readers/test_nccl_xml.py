"""NCCL's topology XML: GPUs, links, ports, the PCI tree and CPUs, from hand-written files that show one fact each."""

from collections.abc import Callable
from typing import Any

import pytest

from collbench.machine.model import SWITCH, GpuLink, Machine, NumaNode, PcieLink
from collbench.machine.peak.node import node_of
from collbench.machine.readers.nccl_xml import read
from tests.machine.machines import has_doubt
from tests.machine.readers.nccl_files import ADDRESS, GEN5, NVSWITCHES, WHOLE, by_address, gpu, net, nic, pci, system, topology

Facts = Callable[[Machine], Any]
ROOT, SECOND, THIRD = "0000:18:00.0", "0000:1a:00.0", "0000:1b:00.0"
GUID = "58a2:e103:00b1:7ca8"
ETHERNET = "0x020000"


def link(kind: str, target: str, count: object, class_id: str) -> str:
    return f'<{kind} target="{target}" count="{count}" tclass="{class_id}"/>'


XGMI = link("xgmi", SECOND, 4, "0x038000") + link("xgmi", THIRD, 1, "0x038000")
HIDDEN = link("nvlink", "fffffff:ffff:ff", 18, "0x068000")  # a switch that a virtual machine hides


def rate(machine: Machine) -> float | None:
    return machine.nics[0].ports[0].rate_bits_per_s


def pcie(machine: Machine, address: str = ADDRESS) -> PcieLink:
    return by_address(machine)[address].link


WHOLE_FACTS: dict[str, tuple[Facts, Any]] = {
    "source, host and doubts": (lambda m: (m.sources, m.system.architecture, m.system.cpu_vendor, m.numa_nodes, m.doubts),
        (("NCCL topology XML topo.xml",), "x86_64", "GenuineIntel", (NumaNode(0, cpus="0-23"),), ())),
    "GPU": (lambda m: [(each.key, each.index, each.vendor, each.model, each.architecture, each.numa) for each in m.gpus],
        [(ROOT, 0, "nvidia", "H200", "sm_90", 0)]),
    "links to NVSwitches are summed": (lambda m: m.gpu_links, (GpuLink(ROOT, SWITCH, 18),)),
    "NVSwitches": (lambda m: [each.address for each in m.pci if each.kind == "nvswitch"], ["0000:05:00.0", "0000:06:00.0"]),
    "NIC": (lambda m: [(each.name, each.address, each.rdma, each.gdr, each.card_guid) for each in m.nics],
        [("mlx5_0", ADDRESS, True, True, GUID)]),
    "port": (lambda m: [(each.number, each.rate_bits_per_s, each.rate_text, each.link_layer) for each in m.nics[0].ports],
        [(1, 400e9, "400000 Mb/s", "infiniband")]),
    "both hang from the switch": (lambda m: {by_address(m)[key].parent for key in (ADDRESS, ROOT)}, {"0000:16:00.0"}),
    "the tree ends below the root port": (lambda m: [(each.kind, each.parent) for each in m.pci if each.address == "0000:16:00.0"],
        [("switch", None)]),
    "why it ends": (lambda m: "root ports" in m.unknown["pci/0000:16:00.0/parent"], True),
    # NCCL reads max_link_speed of a device and of the port above it, and writes the lower
    "a link's speed is what it could do": (pcie, PcieLink(None, None, 32.0, 16)),
}  # fmt: skip


GPUS: dict[str, tuple[str, Facts, Any]] = {
    "a class makes a GPU where the file has no element of it": (system(*(pci(f"000{n}:00:00.0", "", kind)
        for n, kind in enumerate(("0x030200", "0x030000", "0x120000", "0x038000")))), lambda m: [(each.key, each.index) for each in m.gpus],
        [(f"000{n}:00:00.0", None) for n in range(4)]),
    "the screen of a server board is none": (system(pci(ADDRESS, "", "0x030000", 'vendor="0x1a03"'), nic("0000:01:00.0", net("mlx5_0"))),
        lambda m: m.gpus, ()),
    "AMD's sm counts compute units": (system(gpu(ADDRESS, more='sm="304" gcn="gfx942"', ids='vendor="0x1002" device="0x74a1"')),
        lambda m: [(each.vendor, each.model, each.architecture) for each in m.gpus], [("amd", "MI300X", "gfx942")]),
    "an unknown id": (system(gpu(ADDRESS, ids='vendor="0x10de" device="0x0001"')), lambda m: m.gpus[0].model, None),
    **{f"older releases number AMD's architectures: {gcn}": (system(gpu(ADDRESS, more=f'sm="104" gcn="{gcn}"', ids="")),
        lambda m: m.gpus[0].architecture, architecture)
        for gcn, architecture in (("906", "gfx906"), ("910", "gfx90a"), ("gfx90a", "gfx90a"), ("?", None))},
}  # fmt: skip
LINKS: dict[str, tuple[str, Facts, Any]] = {
    "a mesh counts each peer and knows no switch": (system(gpu(ADDRESS, links=XGMI), gpu(SECOND, 1), gpu(THIRD, 2)),
        lambda m: (m.gpu_links[:2], m.links_of(ADDRESS), m.switched),
        ((GpuLink(ADDRESS, SECOND, 4, "xgmi"), GpuLink(ADDRESS, THIRD, 1, "xgmi")), 5, False)),
    "a GPU that lost its links has none among GPUs that have": (system(gpu(ADDRESS, links=NVSWITCHES), gpu(SECOND, 1)),
        lambda m: m.links_of(SECOND), 0),
    "GPUs without any link were not counted": (system(gpu(ADDRESS), gpu(SECOND, 1)), lambda m: m.gpu_links, ()),
    "to itself": (system(gpu(ADDRESS, links=link("nvlink", ADDRESS, 12, "0x030200"))),
        lambda m: (m.gpu_links, has_doubt(m, f"GPU {ADDRESS}: its nvlink leads to itself")), ((GpuLink(ADDRESS, None, 12),), True)),
    "to a GPU that is not in the file": (system(gpu(ADDRESS, links=link("nvlink", "0000:99:00.0", 12, "0x030200"))),
        lambda m: (m.gpu_links, "0000:99:00.0, " in m.doubts[0]), ((GpuLink(ADDRESS, None, 12),), True)),
    "a switch that a virtual machine hides is no PCI device": (system(gpu(ADDRESS, links=HIDDEN)),
        lambda m: (m.gpu_links, [each.kind for each in m.pci]), ((GpuLink(ADDRESS, SWITCH, 18),), ["gpu"])),
    "links to a CPU are no links between GPUs": (system(gpu(ADDRESS, links=link("nvlink", "0004:00:00.0", 3, "0x068001") + NVSWITCHES)),
        lambda m: (m.links_of(ADDRESS), m.gpus[0].cpu_links), (18, 3)),
    "no links to a CPU": (system(gpu(ADDRESS, links=NVSWITCHES)), lambda m: m.gpus[0].cpu_links, None),
    **{f"a count that cannot be: {count!r}": (system(gpu(ADDRESS, links=link("nvlink", "0000:05:00.0", count, "0x068000") + NVSWITCHES)),
        lambda m, count=count: (m.links_of(ADDRESS), has_doubt(m, f"GPU {ADDRESS}: the count of one of its links is '{count}'")),
        (18, True)) for count in ("", "-1", "0", "x", "1e9", "1000000000000000000")},
}  # fmt: skip
RATE = "nics/{}/ports/1/rate_bits_per_s"
PORTS: dict[str, tuple[str, Facts, Any]] = {
    "a speed that was lowered by hand": (system(nic(ADDRESS, net("mlx5_0", 180000))),
        lambda m: (rate(m), has_doubt(m, "mlx5_0 port 1: 180000 Mb/s ")), (180e9, True)),
    **{f"a speed that no port has: {speed!r}": (system(nic(ADDRESS, net("cxi0", speed))),
        lambda m, speed=speed: (rate(m), f"'{speed}' Mb/s" in m.unknown[RATE.format("cxi0")]), (None, True))
        for speed in ("200000000", "-1", "0", "", "fast", "1000000000000000000")},  # Slingshot's cxi gives 200000000
    "of a bond NCCL writes the speed of one port": (system(nic(ADDRESS, net("mlx5_bond_0", 200000), class_id=ETHERNET)),
        lambda m: (rate(m), "one port of this bond" in m.unknown[RATE.format("mlx5_bond_0")]), (None, True)),
    **{f"InfiniBand's rate is what line coding leaves: {speed}": (system(nic(ADDRESS, net("mlx5_0", speed))), rate, data)
        for speed, data in ((20000, 16e9), (40000, 32e9), (56000, 54.5e9), (100000, 100e9), (800000, 800e9))},
    "Ethernet at 40 carries 40": (system(nic(ADDRESS, net("eth2", 40000, port=0), class_id=ETHERNET)), rate, 40e9),
    "NCCL also writes 10 Gb/s when it does not know": (system(nic(ADDRESS, net("mlx5_0", 10000))), rate, None),
    "10 Gb/s of Ethernet": (system(nic(ADDRESS, net("enp96s0f0", 10000, port=0), class_id=ETHERNET)),
        lambda m: (rate(m), "also what NCCL writes" in m.doubts[0]), (10e9, True)),
    "a veth is virtual and has no rate": (system(f"<nic>{net('veth608058c', 10000, port=0)}{net('eth0', 100000, port=0)}</nic>"),
        lambda m: ([(each.virtual, each.ports[0].rate_bits_per_s, each.rdma, each.interfaces) for each in m.nics], m.nics[0].address,
        "speed of a veth" in m.unknown[RATE.format("veth608058c")]),
        ([("veth", None, False, ("veth608058c",)), (None, 100e9, False, ("eth0",))], None, True)),
    "two nets on one function": (system(nic(ADDRESS, net("mlx5_0"), net("mlx5_1", port=2))),
        lambda m: ([(each.name, each.ports[0].number, each.address, each.card_guid) for each in m.nics], len(m.pci)),
        ([("mlx5_0", 1, ADDRESS, GUID), ("mlx5_1", 2, ADDRESS, GUID)], 1)),
    "two ports of one name are one NIC": (system(nic(ADDRESS, net("mlx4_0", 56000), net("mlx4_0", 56000, port=2))),
        lambda m: [[port.number for port in each.ports] for each in m.nics], [[1, 2]]),
    "one port named twice counts once": (system(nic(ADDRESS, net("mlx5_0"), net("mlx5_0", 100000))),
        lambda m: ([port.rate_bits_per_s for port in m.nics[0].ports], has_doubt(m, "mlx5_0 port 1: the file names it twice")),
        ([400e9], True)),
    "a union is no port beside its parts": (system(nic(ADDRESS, net("mlx5_0"), net("mlx5_1", port=2), net("mlx5_0+mlx5_1", 800000))),
        lambda m: [each.virtual for each in m.nics], [None, None, "NCCL's union of mlx5_0+mlx5_1"]),
    **{f"a GUID reads the same in both byte orders: {guid}": (system(nic(ADDRESS, net("mlx5_0", more=f'guid="{guid}"'))),
        lambda m: m.nics[0].card_guid, "b859:9f03:0007:053a") for guid in ("0xb8599f030007053a", "0x3a050700039f59b8")},
    "a card without a port is a NIC whose rate is unknown": (system(pci(ADDRESS, "", ETHERNET, 'vendor="0x1d0f" device="0xefa0"')),
        lambda m: ([(each.name, each.ports, each.rdma, each.model) for each in m.nics], "no port" in m.unknown[f"nics/{ADDRESS}/ports"]),
        ([(ADDRESS, (), True, "Elastic Fabric Adapter")], True)),
    "names without control characters": (system(nic(ADDRESS, net("mlx5&#10;_0&#x202e;"))), lambda m: m.nics[0].name, "mlx5?_0?"),
}  # fmt: skip


def speed(text: str, width: object = 16) -> str:
    return f'link_speed="{text}" link_width="{width}"'


SLOW_PORT = "the file gives it 5 GT/s above devices at 32 GT/s, which the ports of one switch do not do"
BRIDGES = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"
PCI: dict[str, tuple[str, Facts, Any]] = {
    **{f"speeds as people write them: {text}": (system(pci(ADDRESS, "", "0x030200", speed(text))), pcie,
        PcieLink(max_speed_gt_per_s=32.0, max_width=16)) for text in ("32 GT/s PCIe/s", "32.0 GT/s PCIe", "32 GT/s", "32GT/s")},
    **{f"no speed and no width: {more}": (system(pci(ADDRESS, "", "0x030200", more)), pcie, PcieLink())
        for more in (speed("", 0), speed("Unknown", 255), "", speed("-8 PT", 63))},
    "an upstream port slower than its children is not believed": (system(pci("0000:08:00.0",
        pci("0000:0d:00.0", gpu("0000:0f:00.0")) + pci("0000:0a:00.0", nic(ADDRESS, net("mlx5_0"))), more=speed("5.0 GT/s PCIe"))),
        lambda m: (pcie(m, "0000:08:00.0"), m.unknown["pci/0000:08:00.0/link"], m.doubts),
        (PcieLink(max_width=16), SLOW_PORT, (f"0000:08:00.0: {SLOW_PORT}",))),
    "an older switch above newer GPUs is believed": (system(pci(ROOT, gpu(ADDRESS), more=speed("8 GT/s"))),
        lambda m: (pcie(m, ROOT).max_speed_gt_per_s, m.doubts), (8.0, ())),
    "the placeholder of an integrated NIC is not its link": (system(nic(ADDRESS, net("enp96s0f0", 10000, port=0), class_id=ETHERNET,
        more=speed("2.5 GT/s", 1))), pcie, PcieLink()),
    "bridges with several children are switches and others ports": (system(pci(BRIDGES[0],
        pci(BRIDGES[1], gpu(ADDRESS)) + pci(BRIDGES[2], gpu("0000:04:00.0", 1)))),
        lambda m: [by_address(m)[address].kind for address in BRIDGES], ["switch", "bridge", "bridge"]),
    **{f"bridges that were made up are virtual: {address} {ids}": (system(pci(address, gpu(ADDRESS), more=f"{ids} {GEN5}")),
        lambda m, address=address: (by_address(m)[address].virtual, pcie(m, address),
        "link of a virtual function" in m.unknown[f"pci/{address}/link"]), (True, PcieLink(), True))
        for address, ids in (("ffff:ff:01.0", ""), (BRIDGES[0], 'vendor="0x1b36" device="0x000c"'),
        (BRIDGES[0], 'vendor="0x104c" device="0x8232"'))},
    "a virtual function is virtual and its NIC real": (system(nic("0101:00:02.0", net("mlx5_0"), more='vendor="0x15b3" device="0x101e"')),
        lambda m: (by_address(m)["0101:00:02.0"].virtual, m.nics[0].virtual), (True, None)),
    "functions without a class may be either": (system(pci("0000:45:00.0", '<pci busid="0000:4f:00.0"/><pci busid="0000:50:00.0"/>',
        more="")), lambda m: (m.gpus, m.nics, m.unknown["nics"] == m.unknown["gpus"], m.unknown["nics"].startswith("2 PCI functions ")),
        ((), (), True, True)),
    "a comment may report that they are NICs": (
        "<!-- GPUs are not reported in this file. -->" + system('<pci busid="0000:45:00.0"><pci busid="0000:4f:00.0"/></pci>'),
        lambda m: ([each.address for each in m.nics], m.unknown["gpus"]), (["0000:4f:00.0"], "the file names no GPU")),
}  # fmt: skip
HOST = '<cpu numaid="0" host_hash="{}">' + gpu(ADDRESS, links=NVSWITCHES) + "</cpu>"
CPUS: dict[str, tuple[str, Facts, Any]] = {
    **{f"a mask is a list: {mask!r}": (system(gpu(ADDRESS), more=f'affinity="{mask}"'), lambda m: m.numa_nodes[0].cpus, cpus)
        for mask, cpus in (("00ff00ff", "0-7,16-23"), ("00000001,00000000", "32"), ("0", None), ("zz", None), ("-5", None), ("", None),
        (",ffffffff", "0-31"))},
    **{f"a NUMA node that is unknown: {numa!r}": (system(gpu(ADDRESS), numa=numa), lambda m: (m.numa_nodes, m.gpus[0].numa), ((), None))
        for numa in ("-1", "", "x", "99999")},
    # NCCL joins the topologies of hosts that share NVLink: their addresses are the same
    "of several hosts the first is read": (f"<system>{HOST.format('0x1')}{HOST.format('0x2')}</system>",
        lambda m: (len(m.gpus), has_doubt(m, "topo.xml: it holds 2 hosts")), (1, True)),
}  # fmt: skip
CASES = {**{name: (WHOLE, *facts) for name, facts in WHOLE_FACTS.items()}, **GPUS, **LINKS, **PORTS, **PCI, **CPUS}


@pytest.mark.parametrize(("text", "facts", "expected"), CASES.values(), ids=CASES)
def test_a_fact_of_a_file(text: str, facts: Facts, expected: Any) -> None:
    assert facts(read(text, "topo.xml")) == expected


def modules(count: int, ids: str, more: str = 'sm="90"', links: str = "", cpu: str = "") -> Machine:
    gpus = [gpu(f"0000:{number + 32:02x}:00.0", number, links, more, f'vendor="0x10de" device="{ids}"') for number in range(count)]
    return topology(*gpus, more=cpu) if cpu else topology(*gpus)


def test_modules_that_are_built_with_links_have_unknown_ones_where_the_file_lists_none() -> None:
    amd = (gpu(f"0000:{n:02x}:00.0", n, "", 'sm="1" gcn="gfx950"', 'vendor="0x1002" device="0x75a3"') for n in range(1, 9))
    for machine in (modules(2, "0x2330"), modules(4, "0xbeef"), topology(*amd)):  # 0xbeef: by the architecture of a server alone
        assert machine.gpu_links == () and "are built with them" in machine.unknown["gpu_links"]
        assert any(doubt.startswith("links between GPUs: ") for doubt in machine.doubts)
        assert node_of(machine).injection.bytes_per_s is None


@pytest.mark.parametrize(("ids", "more"), [("0x20b5", 'sm="80"'), ("0x26b9", 'sm="89"')])
def test_cards_without_a_bridge_have_no_links(ids: str, more: str) -> None:
    machine = modules(4, ids, more)
    assert {link.count for link in machine.gpu_links} == {0} and "gpu_links" not in machine.unknown
    assert node_of(machine).injection.bytes_per_s


def test_links_to_the_cpu() -> None:
    machine = modules(2, "0x31c2", 'sm="103"', HIDDEN + '<c2c bw="40000" count="5"/>', 'arch="arm64" vendor="ARM"')
    assert [(each.model, each.c2c_links, each.c2c_bytes_per_s) for each in machine.gpus] == [("GB300", 5, 40e9)] * 2
    assert {(link.b, link.count) for link in machine.gpu_links} == {(SWITCH, 18)}
