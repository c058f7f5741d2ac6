"""What a node can do, from machines made by hand: counted links, slots, ports, and what is not believed."""

import pytest
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, Nic, PciDevice, PcieLink, Port
from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.links import gen
from collbench.machine.peak.node import Job, neighbours_of, node_of
from tests.peak.made import GEN4, GEN5, endpoints, gpus, infiniband, switched, wired


def test_a_switch():
    node = node_of(switched(8, 18, "sm_90", GEN5, infiniband(8, 400)))
    assert (node.gpus, node.injection.bytes_per_s, node.injection.name) == (8, 450e9, "NVLink 18×25 GB/s")
    assert node.injection.nccl_bytes_per_s == pytest.approx(370.8e9)
    assert (node.egress.bytes_per_s, node.egress.name) == (400e9, "NIC 8×400 Gb/s")
    assert node.pcie.name == "PCIe Gen5 x16"
    assert (node.nvls, node.apart, node.doubts) == ("counted", True, ())
    assert (node.own_nic.bytes_per_s, node.own_nic.name) == (50e9, "NIC 8×400 Gb/s shared by 8 GPUs")
    assert node_of(switched(8, 18, "sm_90", GEN5, infiniband(8, 400)), 1).own_nic.bytes_per_s == 50e9  # one GPU of the job


SXM = gpus(8, None, "A100-SXM4-40GB")
EIGHT, FOUR = gpus(8), gpus(4)
THREE = wired(gpus(3), {(0, 1): 6, (0, 2): 6, (1, 2): 6})
UNPLACED = Machine(gpus=tuple(Gpu(f"gpu{i}", i) for i in range(4)), gpu_links=tuple(GpuLink(f"gpu{i}", SWITCH, 12) for i in range(4)))
MESH = wired(gpus(4), {(i, j): 4 for i in range(4) for j in range(i)})  # JUWELS Booster: four links to each of three peers
RAW = replace(switched(2, 18, None), gpu_links=tuple(replace(link, bytes_per_s=26.562e9) for link in switched(2, 18, None).gpu_links))
SEEN = {(a.key, b.key): "SYS" for a in SXM for b in SXM if a != b}
# What is known of the links, the GPUs that take part (None: all), and the rate and name of what a GPU sends.
INJECTION: dict[str, tuple[Machine, int | None, float | None, str]] = {
    "a printed raw rate is made net": (RAW, None, 450e9, "NVLink 18×25 GB/s"),
    "a mesh": (MESH, None, 300e9, "NVLink 12×25 GB/s"),
    "three GPUs of a mesh": (MESH, 3, 200e9, "NVLink 8×25 GB/s"),
    "two GPUs of a mesh": (MESH, 2, 100e9, "NVLink 4×25 GB/s"),
    "a matrix of a switch shows its links once per peer": (Machine(gpus=EIGHT,
        gpu_links=tuple(GpuLink(a.key, b.key, 12) for a in EIGHT for b in EIGHT if a != b)), None, 300e9, "NVLink 12×25 GB/s"),
    "a row that is missing is seen from the other end": (replace(THREE,
        gpu_links=tuple(link for link in THREE.gpu_links if link.a != "0000:12:00.0")), None, 300e9, "NVLink 12×25 GB/s"),
    "18 links of an unknown model": (switched(8, 18, None), None, None, "NVLink ×18: "),
    # A vendor's template lists GPUs without NVLinks: they may have some
    "no source counts links": (Machine(gpus=SXM, pci=endpoints(SXM)), None, None, ""),
    "paths show that there are no links": (Machine(gpus=SXM, pci=endpoints(SXM), paths=SEEN), None, 31.5e9, "PCIe Gen4 x16"),
    "one GPU sends over its PCIe link": (switched(8, 18, "sm_90", GEN5, infiniband(4, 400)), 1, 63.0e9, "PCIe Gen5 x16"),
    "links that a file leads back to the GPU are not counted": (Machine(gpus=FOUR,
        gpu_links=tuple(GpuLink(gpu.key, gpu.key, 12) for gpu in FOUR), pci=endpoints(FOUR)), None, 31.5e9, "PCIe Gen4 x16"),
    "names of GPUs without addresses will do": (UNPLACED, None, 300e9, "NVLink 12×25 GB/s"),
}  # fmt: skip


@pytest.mark.parametrize(("machine", "count", "bytes_per_s", "name"), INJECTION.values(), ids=INJECTION)
def test_what_a_gpu_sends(machine, count, bytes_per_s, name):
    sent = node_of(machine, count).injection
    assert sent.bytes_per_s == (bytes_per_s and pytest.approx(bytes_per_s, rel=1e-3)) and name in sent.name


def test_what_else_follows_from_links():
    assert [node_of(machine).nvls for machine in (switched(8, 12, "sm_80"), wired(gpus(4, "sm_90"), {(1, 0): 6}))] == ["no", "no"]
    assert node_of(MESH).pair.bytes_per_s == 100e9
    one = node_of(switched(8, 18, "sm_90", GEN5, infiniband(4, 400)), 1).egress  # no more than its PCIe link
    assert (round(one.bytes_per_s / 1e9, 1), one.name) == (63.0, "PCIe Gen5 x16")
    assert "lead back" in node_of(INJECTION["links that a file leads back to the GPU are not counted"][0]).doubts[-1]


def test_the_fastest_pair_of_a_mesh_is_the_one_with_most_links():
    """Neither of the two is the last GPU, nor next to the other."""
    node = node_of(wired(gpus(4), {(0, 1): 1, (0, 2): 4, (0, 3): 1, (2, 3): 1}))
    assert (node.pair.bytes_per_s, node.neighbours.bytes_per_s) == (100e9, 25e9)


def test_bridged_pairs_fall_back_to_pcie_beyond_the_pair():
    machine = wired(gpus(8), {(i, i + 1): 12 for i in range(0, 8, 2)})
    pair, box = node_of(machine, 2), node_of(machine)
    assert (pair.injection.name, pair.apart) == ("NVLink 12×25 GB/s", True)
    assert (box.injection.name, box.apart) == ("PCIe Gen4 x16", False)
    assert box.cuts[0][0].bytes_per_s == pytest.approx(331.5e9, rel=1e-3)
    assert [side.ranks for side in box.cuts[1]] == [2, 2, 2, 2]
    assert box.cuts[1][0].bytes_per_s == pytest.approx(63e9, rel=1e-3)


def test_links_without_a_far_end():
    """`nvidia-smi nvlink -s` counts: an SXM board's reach every GPU; a PCIe card's one other."""
    some = gpus(4, "sm_80", "NVIDIA A100-SXM4-80GB")
    counted = Machine(gpus=some, gpu_links=tuple(GpuLink(gpu.key, None, 12) for gpu in some), pci=endpoints(some))
    assert node_of(counted).injection.bytes_per_s == 300e9
    assert len(node_of(counted).doubts) == 1 and "where the NVLinks lead" in node_of(counted).doubts[0]
    for model in ("NVIDIA A100 80GB PCIe", "NVIDIA H100 NVL", "NVIDIA A40", "NVIDIA A30", "NVIDIA RTX A6000", "NVIDIA H800 PCIe"):
        cards = tuple(replace(gpu, model=model) for gpu in some)
        bridged = node_of(replace(counted, gpus=cards))
        assert bridged.injection.name == "PCIe Gen4 x16", model
        assert "12 of each GPU" in bridged.doubts[-1]


SLOT = PciDevice("0000:00:01.0", "bridge", link=PcieLink(8.0, 16, 8.0, 16))


@pytest.mark.parametrize(("link", "slot", "name"), [
    (PcieLink(16.0, 16), None, "PCIe Gen4 x16"),
    (PcieLink(2.5, 16, 16.0, 16), None, "PCIe Gen4 x16"),  # idle: the speed falls, the width does not
    (PcieLink(16.0, 8, 16.0, 16), None, "PCIe Gen4 x8"),  # a slot of eight lanes
    (PcieLink(5.0, 1, 8.0, 16), None, "PCIe Gen3 x1"),
    (PcieLink(2.5, 16, 16.0, 16), SLOT, "PCIe Gen3 x16"),  # the port above limits, too
    (PcieLink(2.5, 16), None, None), (PcieLink(None, None), None, None), (PcieLink(16.0, None), None, None),
    (PcieLink(7.0, 16), None, None),
])  # fmt: skip
def test_pcie_of_a_gpu(link, slot, name):
    """None: it means nothing, and is unknown."""
    some = gpus(1)
    pci = (*endpoints(some, link, slot.address), slot) if slot else endpoints(some, link)
    found = node_of(Machine(gpus=some, pci=pci)).pcie
    assert (found.name if found.bytes_per_s else None) == name


def test_a_file_that_claims_more_than_the_model_has_is_not_believed():
    """A V100 is a Gen3 GPU, even if a template has another generation."""
    some = gpus(2, "sm_70", "Tesla V100-SXM2-32GB")
    node = node_of(wired(some, {}, pcie=GEN4))
    assert node.pcie.name == "PCIe Gen3 x16"
    assert "Tesla V100-SXM2-32GB, which supports Gen3" in node.doubts[0]


def switch_box(upstream: PcieLink) -> Machine:
    """Two switches with two GPUs each: an upstream port, and a downstream port for each GPU."""
    some = gpus(4)
    up = tuple(PciDevice(f"0000:0{i}:00.0", "switch", link=upstream) for i in (1, 2))
    down = tuple(PciDevice(f"0000:0{3 + i}:00.0", "switch", up[i // 2].address, link=PcieLink(16.0, 16, 16.0, 16)) for i in range(4))
    ends = tuple(PciDevice(gpu.key, "gpu", port.address, link=GEN4) for gpu, port in zip(some, down, strict=True))
    return Machine(gpus=some, pci=(*up, *down, *ends))


def test_gpus_below_a_switch_share_the_link_above_it():
    node = node_of(switch_box(PcieLink(8.0, 16, 8.0, 16)))
    assert (node.injection.name, node.injection.bytes_per_s) == ("the PCIe link above 0000:01:00.0", pytest.approx(15.75e9, rel=1e-3))
    assert [(side.ranks, round(side.bytes_per_s / 1e9, 2)) for side in node.cuts[1]] == [(2, 15.75), (2, 15.75)]
    bound = ceilings("allreduce", Job((node,))).bound
    assert bound.bytes_per_s == pytest.approx(1.5 * 15.75e9, rel=1e-3)  # 2(N-1)/N at four ranks
    assert bound.limited_by == "the PCIe link above 0000:01:00.0"


def test_a_slow_port_above_faster_devices_is_not_taken_literally_and_parents_in_a_circle_end():
    """5 GT/s above 16 GT/s devices, without a known maximum: a misreading, not a limit."""
    node = node_of(switch_box(PcieLink(5.0, 8)))
    assert node.injection.name == "PCIe Gen4 x16"
    assert any(doubt.startswith("0000:01:00.0: 5 GT/s x8 ") for doubt in node.doubts)
    ring = (PciDevice("0000:01:00.0", "switch", "0000:02:00.0"), PciDevice("0000:02:00.0", "switch", "0000:01:00.0"))
    machine = Machine(gpus=gpus(2), pci=(*ring, *endpoints(gpus(2), GEN4, "0000:01:00.0")))
    assert node_of(machine).injection.name == "PCIe Gen4 x16"


@pytest.mark.parametrize(("nics", "slot", "total", "name"), [
    (infiniband(4, 100), GEN4, 50.0, "NIC 4×100 Gb/s"),
    (infiniband(1, 200), PcieLink(32.0, 4), 15.75, "NIC 1×200 Gb/s in slots of PCIe Gen5 x4"),
    (infiniband(2, 100) + infiniband(2, 100, "down", 2), GEN4, 25.0, "NIC 2×100 Gb/s"),
    (infiniband(2, 400) + infiniband(1, 200, start=2), GEN5, 125.0, "NIC 2×400 + 1×200 Gb/s"),
])  # fmt: skip
def test_the_sum_over_slots(nics, slot, total, name):
    egress = node_of(switched(8, 12, "sm_80", GEN5, nics) if slot is GEN5 else _with_slots(nics, slot)).egress
    assert (round(egress.bytes_per_s / 1e9, 2), egress.name) == (total, name)


def _with_slots(nics: tuple[Nic, ...], slot: PcieLink) -> Machine:
    machine = switched(8, 12, "sm_80", GEN4)
    return replace(machine, nics=nics, pci=(*machine.pci, *(PciDevice(str(nic.address), "nic", link=slot) for nic in nics)))


def _roce(name: str, gbit: float) -> Nic:
    return Nic(name, rdma=True, ports=(Port(1, gbit * 1e9, state="active", link_layer="ethernet"),))


def _ethernet(name: str, gbit: float, mtu: int, shaped: float | None = None) -> Nic:
    return Nic(name, ports=(Port(1, gbit * 1e9, state="active", link_layer="ethernet", mtu_bytes=mtu, shaped_bits_per_s=shaped),))


@pytest.mark.parametrize(("nics", "total", "left"), [
    ((*infiniband(8, 400), _roce("mlx5_bond_0", 200)), 400e9, "not counted: mlx5_bond_0 (Ethernet, while InfiniBand is up)"),
    ((_roce("a", 400), _roce("b", 400), _roce("c", 100)), 100e9, "not counted: c (slower, or without RDMA)"),
    ((_roce("a", 200), Nic("scif0", virtual="scif", rdma=True, ports=(Port(1, 400e9),))), 25e9, ""),
    ((*infiniband(1, 100), Nic("0000:99:00.0")), 12.5e9, "not counted: 0000:99:00.0 (no source lists their ports)"),
    ((_ethernet("eth0", 100, 9000), _ethernet("eth1", 100, 9000)), 12.5e9 * 8948 / 9038, "not counted: eth1 (TCP takes one interface)"),
    ((_ethernet("eth0", 10, 1500, shaped=1e9),), 125e6 * 1448 / 1514, ""),
], ids=["another fabric", "a slower NIC", "a virtual NIC", "a NIC without ports", "TCP on one interface", "a shaped port"])  # fmt: skip
def test_which_nics_count(nics, total, left):
    node = node_of(Machine(gpus=gpus(8), nics=nics), 8)
    assert node.egress.bytes_per_s == pytest.approx(total)
    assert left in (*node.doubts, "")


@pytest.mark.parametrize(("vendor", "device", "total"), [
    (0x17DB, 0x0501, 100e9), (0x1590, 0x0371, 100e9), (0x8086, 0x1592, 25e9 * 8948 / 9038),
], ids=["Slingshot", "the next Slingshot", "plain Ethernet"])  # fmt: skip
def test_slingshot_is_no_tcp_over_one_interface(vendor, device, total):
    nics = tuple(replace(_ethernet(f"hsn{index}", 200, 9000), address=f"0000:{index + 1:02x}:00.0") for index in range(4))
    link = PcieLink(32.0, 16, 32.0, 16)
    functions = tuple(PciDevice(nic.address, "nic", vendor_id=vendor, device_id=device, class_id=0x020000, link=link) for nic in nics)
    assert node_of(Machine(gpus=gpus(4), nics=nics, pci=functions), 4).egress.bytes_per_s == pytest.approx(total)


def test_two_ports_of_a_card_share_its_slot():
    port = Port(1, 200e9, state="active", link_layer="infiniband")
    two = (Nic("mlx5_0", "0000:80:00.0", rdma=True, ports=(port,)), Nic("mlx5_1", "0000:80:00.1", rdma=True, ports=(port,)))
    node = node_of(_with_slots(two, GEN4))
    assert round(node.egress.bytes_per_s / 1e9, 1) == 31.5
    assert [nic.name for nic in node.nics] == ["mlx5_0+mlx5_1"]


def test_a_machine_without_gpus_takes_any_number_of_ranks():
    node = node_of(Machine(nics=(_ethernet("eth0", 100, 9000),)), 4)
    assert (node.gpus, node.egress.name) == (4, "NIC eth0 100 Gb/s, TCP")


@pytest.mark.parametrize(("nics", "why"), [
    ((), "no source lists a NIC; add --nic"),
    ((Nic("efa0", rdma=True),), "the NICs' rates are in none of the sources; give them with --nic"),
    ((Nic("mlx5_0", rdma=True, ports=(Port(1, None, state="active"),)),),
        "NIC mlx5_0: its rate is in none of the sources; give one with --nic"),
    (infiniband(2, 100, "down"), "no port is up: mlx5_0, mlx5_1"),
    ((Nic("veth0", virtual="veth", ports=(Port(1, 10e9),)),), "NIC veth0 is veth: no rate of its own"),
])  # fmt: skip
def test_an_unknown_egress_gives_the_reason_and_is_never_nothing(nics, why):
    egress = node_of(Machine(gpus=gpus(2), nics=nics)).egress
    assert (egress.bytes_per_s, egress.name) == (None, why)


def test_an_unknown_rate_is_explained_as_its_source_does():
    nics = (Nic("mlx5_0", rdma=True, ports=(Port(1, None, state="active"),)),)
    machine = Machine(gpus=gpus(2), nics=nics, unknown={"nics/mlx5_0/ports/1/rate_bits_per_s": "MT4131 does not run at SDR"})
    assert node_of(machine).egress.name == "NIC mlx5_0: MT4131 does not run at SDR; give one with --nic"


def test_a_typed_pcie_link_is_every_gpus():
    machine = Machine(gpus=gpus(3), gpu_links=(GpuLink("0000:10:00.0", "0000:11:00.0", 12),))
    node = node_of(machine, pcie=gen(4, 16, "--pcie"))
    assert (node.injection.name, node.injection.source) == ("PCIe Gen4 x16", "--pcie")


def test_gpus_by_number_and_by_key():
    machine = wired(gpus(4), {(0, 1): 12, (2, 3): 12})
    assert node_of(machine, ["0000:12:00.0", "0000:13:00.0"]).injection.name == "NVLink 12×25 GB/s"
    for asked, why in ((0, "4 GPUs, but 0 per node"), (9, "4 GPUs, but 9 per node"), (["0000:99:00.0"], r"no GPU 0000:99:00\.0")):
        with pytest.raises(UsageError, match=why):
            node_of(machine, asked)
    empty = node_of(Machine())
    assert (empty.gpus, empty.injection.bytes_per_s, empty.egress.bytes_per_s, Job((empty,)).ranks) == (1, None, None, 1)


def test_a_ring_uses_the_ways_between_its_neighbours_alone():
    """GPUs 0, 1 and 2, 3 are bridged; PCIe lies between the bridges."""
    machine = wired(gpus(4), {(0, 1): 12, (2, 3): 12})
    a, b, c, d = (gpu.key for gpu in machine.gpus)
    ways = [neighbours_of(machine, [a, b, c, d], edges) for edges in ([(a, b), (c, d)], [(a, b), (b, c)], [])]
    assert [way.bytes_per_s for way in ways] == [300e9, pytest.approx(31.5e9, rel=1e-2), None]
    assert "no edge" in ways[2].name


def test_neighbours_whose_links_no_source_counts_are_unknown():
    machine = switched(2, 12)
    untold = replace(machine, gpu_links=machine.gpu_links[:1])
    a, b = (gpu.key for gpu in machine.gpus)
    assert neighbours_of(untold, [a, b], [(a, b)]).bytes_per_s is None
