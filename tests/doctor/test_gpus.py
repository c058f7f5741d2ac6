"""CB23xx: GPUs against their siblings in the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from collbench.machine.doctor.examine import examine
from collbench.machine.doctor.finding import Finding
from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, NumaNode
from tests.doctor.machines import changed, codes, found
from tests.machine.machines import dgx, mesh


def links(machine: Machine, *counts: int | None) -> Machine:
    """The machine with other numbers of links to its switch; None: not counted."""
    pairs = zip(machine.gpus, counts, strict=True)
    return replace(machine, gpu_links=tuple(GpuLink(gpu.key, SWITCH, count) for gpu, count in pairs if count is not None))


def test_a_gpu_that_lost_links_on_its_machine() -> None:
    machine = changed(links(dgx(), 18, 18, 2, 18, 18, 18, 18, 18), "gpus", dgx().gpus[2].key, links_off=16)
    finding = found(machine, "CB2301")
    assert finding.severity == "severe" and "GPU 2 (0000:3b:00.0) has 2 of 18 links" in finding.what
    assert "2 up, 16 off; 7 of 8 " in finding.evidence


def test_a_machine_that_lost_links_against_the_others_of_the_job() -> None:
    all_alike = links(replace(dgx(), hostname="dgx02"), *[17] * 8)
    assert not codes(all_alike)
    assert codes(dgx(), all_alike) == ["CB2301"] * 8
    assert not codes(dgx(), replace(dgx(), hostname="dgx02"))


def test_links_that_are_off_on_all_are_normal() -> None:
    """H100 PCIe: 12 of 18 links are on."""
    cards = replace(links(dgx(), *[12] * 8), gpus=tuple(replace(gpu, model="H100 PCIe", links_off=6) for gpu in dgx().gpus))
    assert not codes(cards)
    assert not codes(cards, replace(dgx(), hostname="dgx02", nics=cards.nics, gpus=cards.gpus, gpu_links=cards.gpu_links))


def test_links_that_only_are_off() -> None:
    bare = replace(dgx(), gpu_links=())
    finding = found(changed(bare, "gpus", dgx().gpus[0].key, links_off=18), "CB2301")
    assert finding.severity == "severe" and "18 off; 7 GPUs " in finding.evidence
    assert not codes(replace(bare, gpus=tuple(replace(gpu, links_off=6) for gpu in bare.gpus)))


def test_a_card_without_a_bridge_is_a_warning() -> None:
    gpus = tuple(Gpu(f"gpu{index}", index, model="A100-PCIE-40GB") for index in range(3))
    pair = (GpuLink("gpu0", "gpu1", 12), GpuLink("gpu1", "gpu0", 12))
    assert not codes(Machine(gpus=gpus, gpu_links=pair))
    finding = found(Machine(gpus=gpus, gpu_links=(*pair, GpuLink("gpu2", None, 0))), "CB2301")
    assert (finding.severity, finding.remedy.partition(",")[0]) == ("warning", "nothing")


def test_boards_whose_gpus_have_different_numbers_of_neighbours() -> None:
    """GPUs of an unknown model are compared within their machine alone."""
    alone = Machine("a", gpus=(Gpu("gpu0"),), gpu_links=(GpuLink("gpu0", "gpu1", 4),))
    other = Machine("b", gpus=(Gpu("gpu0"),), gpu_links=(GpuLink("gpu0", "gpu1", 6),))
    assert not codes(alone, other)
    assert not codes(mesh())


def test_a_gpu_that_no_source_counted_beside_a_switch() -> None:
    finding = found(links(dgx(), *[18] * 7, None), "CB2302")
    assert finding.severity == "warning" and "GPU 7 (0000:c4:00.0)" in finding.what


def test_gpus_without_peer_access() -> None:
    gpus = (Gpu("gpu0", 0), Gpu("gpu1", 1))
    finding = found(Machine(gpus=gpus, peer_access={("gpu0", "gpu1"): "CNS", ("gpu1", "gpu0"): "CNS"}), "CB2303")
    assert (finding.severity, finding.what.partition(":")[0]) == ("warning", "1 pair of 2 GPUs without peer-to-peer")
    matrix = "peer matrix of the driver (`nvidia-smi topo -p2p r`)"
    assert finding.evidence.startswith(f"{matrix}: GPU 0 and GPU 1: CNS ")
    assert not codes(Machine(gpus=gpus, peer_access={("gpu0", "gpu1"): "OK", ("gpu1", "gpu0"): "U"}))


def test_gpus_that_are_made_without_peer_access_are_a_note() -> None:
    gpus = tuple(Gpu(f"gpu{index}", index, model="GeForce RTX 5090") for index in range(3))
    made = {("gpu0", "gpu1"): "GNS"}
    finding = found(Machine(gpus=gpus, peer_access=made), "CB2303")
    assert (finding.severity, finding.remedy.partition(":")[0]) == ("note", "nothing")
    assert finding.evidence.endswith("GPU 0 and GPU 1: GNS (the GPU does not support it)")
    assert found(Machine(gpus=gpus, peer_access={**made, ("gpu1", "gpu2"): "TNS"}), "CB2303").severity == "warning"


def test_memory_of_gpus_as_numa_nodes() -> None:
    nodes = (NumaNode(0, "0-79", 1 << 38), NumaNode(8, "80-159", 1 << 38), NumaNode(252, "", 1 << 34))
    assert found(replace(dgx(), numa_nodes=nodes), "CB2304").what.startswith("NUMA node 252 ")
    assert not codes(replace(dgx(), numa_nodes=nodes[:2]))
    assert not codes(replace(dgx(), numa_nodes=(*nodes[:2], NumaNode(252, None))))


Pairs = Mapping[tuple[int, int], int]


def xgmi(pairs: Pairs, gpus: int = 8, hostname: str = "n1", vendor: str = "amd", model: str = "MI250X") -> Machine:
    """A mesh with these links between pairs of GPUs, the same number from both ends unless the other end is named as well."""
    both = {**{(b, a): count for (a, b), count in pairs.items()}, **pairs}
    links = tuple(GpuLink(f"gpu{a}", f"gpu{b}", count, "xgmi") for (a, b), count in both.items() if count)
    parts = tuple(Gpu(f"gpu{index}", index, vendor=vendor, model=model) for index in range(gpus))  # type: ignore[arg-type]
    return Machine(hostname, gpus=parts, gpu_links=links)


def lost(*machines: Machine) -> list[Finding]:
    return [each for each in examine(machines) if each.code == "CB2301"]


# Four modules of two dies: four links inside a module; even dies are all joined, odd ones form a ring.
MODULES = {(die, die + 1): 4 for die in range(0, 8, 2)}
EVEN = {(a, b): 1 for a in range(0, 8, 2) for b in range(a + 2, 8, 2)}
RING = {(1, 3): 1, (3, 5): 1, (5, 7): 1, (1, 7): 1}
DIES = {**MODULES, **EVEN, **RING}
ALL_TO_ALL = {(a, b): 1 for a in range(8) for b in range(a + 1, 8)}


def test_a_mesh_whose_design_gives_half_of_the_gpus_fewer_links() -> None:
    assert {xgmi(DIES).links_of(f"gpu{die}") for die in range(8)} == {6, 7}
    assert not lost(xgmi(DIES))
    assert not lost(*(xgmi(DIES, hostname=f"n{number}") for number in range(4)))


@pytest.mark.parametrize("missing", [[(0, 5), (1, 4), (2, 7), (3, 6)], [(0, 4), (1, 5), (2, 6), (3, 7)]])
def test_a_mesh_in_which_each_gpu_lacks_one_pair_is_a_design(missing: list[tuple[int, int]]) -> None:
    assert not lost(xgmi({pair: 1 for pair in ALL_TO_ALL if pair not in missing}))
    assert not lost(xgmi({(0, 1): 1, (1, 2): 1, (2, 3): 1, (0, 3): 1}, gpus=4))


def test_one_pair_that_lost_its_link_in_a_full_mesh() -> None:
    (finding,) = lost(xgmi({**ALL_TO_ALL, (2, 5): 0}, model="MI300X"))
    assert finding.severity == "severe" and "GPU 2 and GPU 5 have 0 of 1 links" in finding.what
    assert finding.evidence == "27 of 28 pairs have 1"
    assert "rocm-smi" in finding.remedy and "nvidia" not in finding.remedy and "Xid" not in finding.remedy


def test_a_pair_with_fewer_links_than_the_others_of_four() -> None:
    four = {(a, b): 4 for a in range(4) for b in range(a + 1, 4)}
    assert not lost(xgmi(four, 4, vendor="nvidia", model="A100-SXM4-40GB"))
    (finding,) = lost(xgmi({**four, (0, 1): 3}, 4, vendor="nvidia", model="A100-SXM4-40GB"))
    assert finding.severity == "severe" and "GPU 0 and GPU 1 have 3 of 4 links" in finding.what
    assert "nvidia-smi nvlink" in finding.remedy


def test_a_link_that_is_down_at_one_end() -> None:
    (finding,) = lost(xgmi({**DIES, (3, 2): 3}))
    assert finding.severity == "severe" and "GPU 2 and GPU 3 " in finding.what
    assert "GPU 2 counts 4 links to GPU 3, which counts 3" in finding.evidence


def test_the_same_position_on_other_machines_distinguishes_design_from_loss() -> None:
    fewer = xgmi({**DIES, (1, 7): 0}, hostname="n9")
    alone = lost(fewer)
    assert not [each for each in alone if each.severity == "severe"]
    found_ = lost(xgmi(DIES), xgmi(DIES, hostname="n2"), fewer)
    assert [(each.hostname, each.severity, each.what) for each in found_] == [
        ("n9", "severe", "GPU 1 has 5 of 6 links to other GPUs"), ("n9", "severe", "GPU 7 has 5 of 6 links to other GPUs"),
    ]  # fmt: skip
    assert "on 2 of 3 machines: 6 links" in found_[0].evidence


def test_two_machines_that_differ_are_a_warning_since_either_may_be_right() -> None:
    found_ = lost(xgmi(DIES), xgmi({**DIES, (1, 7): 0}, hostname="n2"))
    assert [(each.hostname, each.severity) for each in found_] == [("n2", "warning")] * 2
    assert "--since" in found_[0].remedy


def test_a_design_with_few_gpus_that_have_fewer_neighbours_is_a_warning_at_most() -> None:
    line = {(a, a + 1): 2 for a in range(7)}
    assert {each.severity for each in lost(xgmi(line))} == {"warning"}


def test_counts_without_far_ends_need_a_minority() -> None:
    def counted(*counts: int) -> Machine:
        gpus = tuple(Gpu(f"gpu{index}", index, vendor="nvidia", model="V100") for index in range(len(counts)))
        return Machine(gpus=gpus, gpu_links=tuple(GpuLink(f"gpu{index}", None, count) for index, count in enumerate(counts)))

    assert not lost(counted(6, 6, 4, 4)) and not lost(counted(6, 6, 6))
    assert [each.severity for each in lost(counted(6, 6, 6, 4))] == ["severe"]


def test_gpus_with_more_links_off_than_most_are_named() -> None:
    bare = replace(dgx(), gpu_links=())
    some = replace(bare, gpus=tuple(replace(gpu, links_off=off) for gpu, off in zip(bare.gpus, (6, 6, 6, 6, 6, 6, 0, 12), strict=True)))
    finding = found(some, "CB2301")
    assert finding.what.startswith("GPU 7") and finding.evidence == "12 off; 6 GPUs of the same model have 6"
