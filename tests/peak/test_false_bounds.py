"""Where a bound would be lower than what an honest machine reaches: each case was such a bound once, or nearly."""

import pytest
from msgspec.structs import replace

from collbench.machine.model import SWITCH, GpuLink, Machine, PcieLink
from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.comparison import assumed, doubtful_input
from collbench.machine.peak.links import Link
from collbench.machine.peak.node import Job, node_of
from tests.peak.made import GEN3, GEN5, endpoints, gpus, infiniband, switched, typed, wired
from tests.peak.test_collective import FOUR, rates
from tests.peak.test_node import switch_box


def test_pairs_alone_are_not_slowed_by_a_thin_fabric():
    """2:1 is what all nodes get together; a single pair finds it idle. All-to-all does not, nor a ring with only crossing edges."""
    thin = replace(FOUR, oversubscription=2.0)
    assert [rates(name, thin)[1] for name in ("p2p", "sendrecv", "alltoall")] == [50, 25, round(25 / 8 * 31 / 24, 2)]
    assert doubtful_input("allreduce", thin) == "a fabric of 2:1 was given with --oversubscription"
    assumption = "every node gets 1/2 of its rate from the fabric, wherever it is (--oversubscription)"
    assert [assumption in assumed(name, thin) for name in ("allreduce", "p2p")] == [True, False]


def test_the_roots_node_sends_none_of_its_own_parts_away():
    """Eight GPUs with the root and one elsewhere: 1/9 of the bytes crosses, not 8/9."""
    several = Job((typed(), typed(each=1)))
    for operation in ("gather", "scatter"):
        assert rates(operation, several)[1] == 350  # 300 of NVLink and 50 of NICs into the root's GPU; 8/9·9·50 = 400 into its node
    assert rates("gather", Job((typed(each=1), typed())))[1] == 50


def test_the_roots_half_of_a_mesh_comes_first():
    """Three quarters of the GPUs are with the root behind the thin link: a quarter of the bytes crosses it."""
    trio = {(i, j): 6 for i in range(3) for j in range(i)}
    pair = {(3, 4): 6, (2, 3): 1}
    node = node_of(wired(gpus(5, "sm_80"), {**trio, **pair}))
    assert all(sum(side.ranks for side in cut) == 5 and cut[0].ranks == 3 for cut in node.cuts[1:] if cut[0].bytes_per_s == 25e9)
    assert rates("gather", Job((node,))) == (40, round(25 * 4 / 5 / (2 / 5), 2))


def test_a_message_to_another_node_does_not_take_nvlink():
    """NVLink of one link, 25 GB/s, is no limit of what goes from the GPU to its NIC."""
    machine = wired(gpus(2), {(0, 1): 1}, pcie=GEN5)
    node = node_of(replace(machine, nics=infiniband(1, 400)))
    assert rates("p2p", Job((node,) * 2)) == (50, 50)
    assert rates("sendrecv", Job((node,) * 2)) == (20, 25)  # its ring also goes from GPU to GPU


def test_neighbours_without_links_of_their_own_go_over_a_third_gpu():
    """DGX-1V: GPUs 3 and 4 have no link; over GPU 0 or 7 messages are faster than over PCIe, and NCCL sends them so."""
    near = node_of(wired(gpus(4, "sm_70"), {(0, 2): 2, (2, 1): 1, (1, 3): 2, (0, 3): 2}, pcie=GEN3))
    found = ceilings("sendrecv", Job((near,))).bound
    assert (found.bytes_per_s, found.limited_by) == (25e9, "NVLink 1×25 GB/s of a pair")  # 1 to 2; PCIe has 15.75
    assert any("order of the GPUs" in text for text in assumed("sendrecv", Job((near,))))
    far = node_of(wired(gpus(3, "sm_70"), {(0, 2): 2, (1, 2): 2}, pcie=GEN3))
    assert (far.neighbours.bytes_per_s, far.pair.bytes_per_s) == (50e9, 50e9)


def _only(ranks, *flows):
    rows = [[0.0] * ranks for _ in range(ranks)]
    for a, b in flows:
        rows[a][b] = 1e9
    return rows


def test_uneven_traffic_is_set_against_each_gpus_own_links():
    """A GPU with 150 GB/s that talks to one with 150, beside one with 50: not the slowest GPU's links."""
    node = node_of(wired(gpus(3), {(0, 1): 5, (0, 2): 1, (1, 2): 1}))
    found = ceilings("alltoallv", Job((node,), traffic=_only(3, (0, 1)))).bound
    assert (found.bytes_per_s * 3 / 2, found.limited_by) == (pytest.approx(150e9), "NVLink 6×25 GB/s")
    bridged = node_of(wired(gpus(4), {(0, 1): 12, (2, 3): 12}))  # NVLink and PCIe of the GPU
    found = ceilings("alltoallv", Job((bridged,), traffic=_only(4, (0, 1), (1, 0)))).bound
    assert found.bytes_per_s * 4 / 3 == pytest.approx(331.5e9, rel=1e-3)


def test_a_gpu_that_no_source_counted_beside_a_switch_makes_all_unknown():
    """One file has one GPU's links: the others' may exist, too, so PCIe is not a ceiling."""
    machine = switched(2, 18, "sm_90")
    one = replace(machine, gpu_links=machine.gpu_links[:1])
    assert node_of(one).injection.name.startswith("no source counts the links of 0000:11:00.0, ")
    lost = replace(one, gpu_links=(*one.gpu_links, GpuLink("0000:11:00.0", SWITCH, 0)))
    node = node_of(lost)
    assert (node.injection.name, node.pair.name, node.cuts[0][0].links[0].name) == ("PCIe Gen4 x16",) * 3


def test_an_idle_bridge_is_no_limit():
    """2.5 GT/s, and no source has the maximum of it and the devices below."""
    node = node_of(switch_box(PcieLink(2.5, 16)))
    assert node.injection.name == "PCIe Gen4 x16"
    idle = switch_box(PcieLink(2.5, 16))
    slow = replace(idle, pci=tuple(replace(device, link=PcieLink(2.5, 16)) for device in idle.pci))
    assert node_of(slow).injection.bytes_per_s is None
    assert all(side.bytes_per_s > 1e12 for cut in node_of(slow).cuts for side in cut)


def test_a_gpu_on_a_module_with_its_cpu_reaches_nics_without_pcie():
    """What a GH200 shows as its PCIe link carries nothing to NICs."""
    some = gpus(1, "sm_90", "NVIDIA GH200 480GB")
    machine = Machine(gpus=some, pci=endpoints(some, PcieLink(16.0, 1)), nics=infiniband(4, 200))
    node = node_of(machine)
    assert (node.pcie.bytes_per_s, node.egress.bytes_per_s) == (None, 100e9)
    assert "NVLink-C2C" in node.pcie.name


def test_nics_are_no_bound_where_nvlink_may_join_nodes():
    some = gpus(4, "sm_100", "NVIDIA GB200")
    machine = Machine(gpus=some, gpu_links=tuple(GpuLink(gpu.key, SWITCH, 18) for gpu in some), nics=infiniband(4, 400))
    assert "NVLinks of NVIDIA GB200 " in node_of(machine).egress.name
    assert node_of(machine).injection.bytes_per_s == 900e9
    assert node_of(machine, nics=Link(200e9, "NIC 4×400 Gb/s", "--nic")).egress.bytes_per_s == 200e9
    four = {(i, j): 6 for i in range(4) for j in range(i)}
    assert node_of(replace(wired(some, four), nics=infiniband(4, 400))).egress.bytes_per_s == 200e9  # a board of four, no switch


def test_pairs_without_a_known_way_leave_the_others_known():
    """A matrix has NVLinks and no PCIe links: the fastest pair is known all the same."""
    machine = replace(wired(gpus(3, "sm_70"), {(0, 1): 2, (1, 2): 1}), pci=())
    assert rates("p2p", Job((node_of(machine),))) == (40, 50)
    alone = replace(wired(gpus(3, "sm_70"), {}), pci=(), paths={("0000:10:00.0", "0000:11:00.0"): "SYS"})
    limited_by = ceilings("p2p", Job((node_of(alone),))).bound.limited_by
    assert "PCIe link of 0000:10:00.0" in limited_by and "--pcie" in limited_by
    assert node_of(replace(switched(2, 12), doubts=("a vendor's template",))).doubts == ("a vendor's template",)
