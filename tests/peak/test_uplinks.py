"""Links above PCIe switches: which traffic passes them, and which limit follows."""

import pytest
from msgspec.structs import replace

from collbench.machine.doctor.examine import examine
from collbench.machine.model import Gpu, Machine, Nic, PciDevice, PcieLink, Port
from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.job import job_on
from collbench.machine.peak.limits import BridgeLimit, GpuLinkLimit, NicLimit, PcieLimit
from collbench.machine.peak.node import Job, node_of
from collbench.machine.peak.published import published
from collbench.machine.ports import shared_ports
from collbench.report.machine import tree_lines
from tests.machine.readers.nccl_files import gpu, net, nic, pci, topology

GEN4 = 'link_speed="16.0 GT/s PCIe" link_width="16"'
NVSWITCH = '<nvlink target="0000:f0:00.0" count="18" tclass="0x068000"/>'


def hgx(links: str = NVSWITCH, ids: str = 'vendor="0x10de" device="0x2330"') -> Machine:
    """Four Gen4 switches as NCCL writes them, each above a GPU and a NIC of 400 Gb/s at Gen5."""
    switches = [
        pci(
            f"0000:{n}0:00.0",
            gpu(f"0000:{n}1:00.0", n - 1, links, ids=ids) + nic(f"0000:{n}2:00.0", net(f"mlx5_{n - 1}", more='gdr="1"')),
            more=GEN4,
        )
        for n in range(1, 5)
    ]
    return topology(*switches)


def test_a_gpu_and_a_nic_of_one_switch_do_not_use_the_link_above_it():
    machine = hgx()
    node = node_of(machine)
    found = ceilings("allreduce", Job((node, node)))
    assert (node.egress.bytes_per_s, node.egress.part, node.pcie.part) == (
        200e9, NicLimit(ports=((4, 400e9),)), PcieLimit(generation=5, lanes=16)
    )  # fmt: skip
    assert (found.ring.bytes_per_s, found.bound.bytes_per_s) == (pytest.approx(192e9), pytest.approx(350e9))
    assert examine([machine]) == []
    assert sum("at most Gen5 x16" in line.text for line in tree_lines(machine)) == 8


def test_data_in_host_memory_and_gpus_of_different_switches_without_nvlink_use_the_links_above_the_switches():
    egress = job_on([hgx()], 8, 2, "cpu").nodes[0].egress
    assert (egress.bytes_per_s, egress.part) == (pytest.approx(4 * 31.5e9, rel=1e-3), BridgeLimit(address="0000:10:00.0", others=3))
    node = node_of(hgx(links="", ids='vendor="0x10de" device="0x26b9"'))
    assert node.injection.part == node.pair.part == node.neighbours.part == BridgeLimit(address="0000:10:00.0")
    assert (node.pair.bytes_per_s, node.egress.bytes_per_s) == (pytest.approx(31.5e9, rel=1e-3), 200e9)
    assert ceilings("allreduce", Job((node,))).ring.bytes_per_s == pytest.approx(24e9)


def test_a_switch_that_only_one_card_uses_is_its_slot():
    """An AMD card has a switch of its own: Gen4 behind a Gen3 slot is Gen3."""
    card = gpu("0000:1d:00.0", more='gcn="908" sm="120"', ids='vendor="0x1002" device="0x738c"').replace("32.0 GT/s", "16.0 GT/s")
    machine = topology(pci("0000:1b:00.0", card, more='link_speed="8.0 GT/s PCIe" link_width="16"'))
    assert node_of(machine).pcie.part == PcieLimit(generation=3, lanes=16)


def port(address: str, parent: str | None, kind: str = "switch", speed: float = 32.0) -> PciDevice:
    return PciDevice(address, kind, parent, link=PcieLink(speed, 16, speed, 16))


def ported(gpus_below: int, nics_below: int, apart: bool, up: float = 16.0) -> Machine:
    """Switches with all their ports, as sysfs and lspci show them: GPUs below the first, NICs below it too, or below a second one."""
    devices = []
    for number in (1, 2) if apart else (1,):
        devices += [port(f"0000:{number}0:00.0", None, "root"), port(f"0000:{number}1:00.0", f"0000:{number}0:00.0", speed=up)]
    ends = [("gpu", 1, place) for place in range(gpus_below)] + [("nic", 2 if apart else 1, place) for place in range(nics_below)]
    keys: dict[str, list[str]] = {"gpu": [], "nic": []}
    for row, (kind, number, _) in enumerate(ends):
        down, end = f"0000:{number}2:{row:02x}.0", f"0000:{number}{row + 3:x}:00.0"
        devices += [port(down, f"0000:{number}1:00.0"), PciDevice(end, kind, down, link=PcieLink(32.0, 16, 32.0, 16))]
        keys[kind].append(end)
    gpus = tuple(Gpu(key, place, key, "nvidia", architecture="sm_90") for place, key in enumerate(keys["gpu"]))
    rate = Port(1, 400e9, state="active", link_layer="infiniband")
    nics = tuple(Nic(f"mlx5_{place}", key, rdma=True, ports=(rate,)) for place, key in enumerate(keys["nic"]))
    return Machine(sources=("test",), pci=tuple(devices), gpus=gpus, nics=nics)


@pytest.mark.parametrize(("machine", "gigabytes", "of_nccl", "part"), [
    (ported(2, 2, apart=False), 100.0, 96.0, NicLimit(ports=((2, 400e9),))),
    (ported(2, 2, apart=True), 31.5, 24.0, BridgeLimit(address="0000:21:00.0")),
    (ported(1, 3, apart=False), 63.0, 48.0, PcieLimit(generation=5, lanes=16)),
    (ported(2, 2, apart=True, up=32.0), 63.0, 48.0, BridgeLimit(address="0000:21:00.0")),
])  # fmt: skip
def test_switches_with_all_their_ports(machine, gigabytes, of_nccl, part):
    egress = node_of(machine, [gpu.key for gpu in machine.gpus], pcie=None).egress
    assert (round(egress.bytes_per_s / 1e9, 1), egress.as_nccl_takes_it().bytes_per_s) == (gigabytes, pytest.approx(of_nccl * 1e9))
    assert egress.part.alone() == part


def test_nvlinks_to_the_cpu_carry_what_leaves_a_power_gpu():
    """POWER8: two NVLinks of 20 GB/s to the CPU and two to the other GPU of the socket."""

    def linked(address: str, other: str, number: int) -> str:
        links = f'<nvlink target="{other}" count="2" tclass="0x030200"/><nvlink target="0004:00:00.0" count="2" tclass="0x068001"/>'
        return gpu(address, number, links, more='sm="60"', ids='vendor="0x10de" device="0x15f9"')

    pairs = [("0002:01:00.0", "0003:01:00.0"), ("0006:01:00.0", "0007:01:00.0")]
    inside = [linked(a, b, number) for number, (a, b) in enumerate([*pairs, *(pair[::-1] for pair in pairs)])]
    node = node_of(topology(*inside))
    assert node.pcie.part == GpuLinkLimit(link="NVLink", count=2, bytes_per_s=20e9, way="cpu")
    assert (node.injection.bytes_per_s, node.pair.bytes_per_s) == (40e9, 40e9)


def test_two_mi300a_have_two_links():
    places = [f"000{number}:01:00.0" for number in range(4)]
    inside = [
        gpu(place, number, "".join(f'<xgmi target="{other}" count="1"/>' for other in places if other != place),
            more='gcn="gfx942" sm="228"', ids='vendor="0x1002" device="0x74a0"')
        for number, place in enumerate(places)
    ]  # fmt: skip
    node = node_of(topology(*inside))
    assert (node.pair.bytes_per_s, node.injection.bytes_per_s) == (128e9, 384e9)


def test_published_results_are_those_of_the_same_gpus():
    """Six links of 50 GB/s of an MI250X are as fast as twelve of 25 GB/s of an A100."""
    a100 = node_of(replace(hgx(), gpu_links=()), pcie=None)
    base = replace(node_of(hgx()), gpus=8, cuts=(), egress=a100.egress)
    link = replace(base.injection, bytes_per_s=300e9)
    by_model = {model: Job((replace(base, injection=link, model=model),)) for model in ("A100-SXM4-80GB", "MI250X", None)}
    assert {figure.machine.split(" ")[0] for figure in published("allreduce", by_model["A100-SXM4-80GB"])} == {"A100"}
    assert published("allreduce", by_model["MI250X"]) == []
    assert published("allreduce", by_model[None])
    rccl = Job((replace(base, injection=replace(link, library="RCCL")),))
    assert published("allreduce", replace(rccl, nodes=(replace(rccl.nodes[0], model=None),))) == []


def test_the_functions_of_one_port_have_its_rate_once():
    """A port of 200 Gb/s behind two Gen5 x4 interfaces: neither interface alone carries it."""
    link = PcieLink(32.0, 4, 32.0, 4)
    addresses = ("0000:01:00.0", "0002:01:00.0")
    rate = Port(1, 200e9, state="active", link_layer="ethernet")
    nics = tuple(Nic(f"mlx5_{place}", key, "ConnectX-7", rdma=True, ports=(rate,), card_guid="a") for place, key in enumerate(addresses))
    machine = Machine(pci=tuple(PciDevice(key, "nic", link=link) for key in addresses), nics=nics)
    assert [port.certain for port in shared_ports(machine)] == [True]
    assert node_of(machine, 1).egress.bytes_per_s == 25e9
    assert node_of(replace(machine, nics=nics[:1]), 1).egress.bytes_per_s == pytest.approx(15.75e9, rel=1e-3)


@pytest.mark.parametrize(("card", "gigabytes", "words"), [
    ("5c25:7303:00a1:b210", 25.0, "counted as one port"), (None, 50.0, "counted as two ports"),
], ids=["one card", "the card is unknown"])  # fmt: skip
def test_devices_that_are_or_may_be_one_port_are_named(card: str | None, gigabytes: float, words: str) -> None:
    """Two devices with the same place in different PCI domains, by their names, with 200 Gb/s each."""
    rate = Port(1, 200e9, state="active", link_layer="ethernet")
    names = ("rocep1s0f0", "roceP2p1s0f0")
    nics = tuple(Nic(name, model="ConnectX-6", rdma=True, ports=(rate,), card_guid=card) for name in names)
    node = node_of(Machine(nics=nics), 1)
    assert node.egress.bytes_per_s == gigabytes * 1e9
    assert [doubt.startswith(words) for doubt in node.doubts if "rocep1s0f0 and roceP2p1s0f0" in doubt] == [True]
