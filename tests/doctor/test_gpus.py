"""CB23xx: GPUs against their siblings in the job."""

from __future__ import annotations

from dataclasses import replace

from collbench.topology.model import SWITCH, Gpu, GpuLink, Machine, NumaNode
from tests.doctor.machines import changed, codes, found
from tests.topology.machines import dgx, mesh


def links(machine: Machine, *counts: int | None) -> Machine:
    """The machine with other numbers of links to its switch; None: not counted."""
    pairs = zip(machine.gpus, counts, strict=True)
    return replace(machine, gpu_links=tuple(GpuLink(gpu.key, SWITCH, count) for gpu, count in pairs if count is not None))


def test_a_gpu_that_lost_links_on_its_machine() -> None:
    machine = changed(links(dgx(), 18, 18, 2, 18, 18, 18, 18, 18), "gpus", dgx().gpus[2].key, links_off=16)
    finding = found(machine, "CB2301")
    assert (finding.severity, finding.what) == ("severe", "GPU 2 (0000:3b:00.0) has 2 of 18 links to other GPUs")
    assert finding.evidence == "2 up, 16 off; 7 GPUs of the 8 in the job have 18"


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
    assert (finding.severity, finding.evidence) == ("severe", "18 off; 7 GPUs of the same model have 0")
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
    assert (finding.severity, finding.what) == ("warning", "no links to other GPUs were counted of GPU 7 (0000:c4:00.0)")


def test_gpus_without_peer_access() -> None:
    gpus = (Gpu("gpu0", 0), Gpu("gpu1", 1))
    finding = found(Machine(gpus=gpus, peer_access={("gpu0", "gpu1"): "CNS", ("gpu1", "gpu0"): "CNS"}), "CB2303")
    assert (finding.severity, finding.what.partition(":")[0]) == ("warning", "1 pair of 2 GPUs without peer-to-peer")
    matrix = "peer matrix of the driver (`nvidia-smi topo -p2p r`)"
    assert finding.evidence == f"{matrix}: GPU 0 and GPU 1: CNS (the chipset does not support it)"
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
    assert found(replace(dgx(), numa_nodes=nodes), "CB2304").what.startswith("NUMA node 252 without processors")
    assert not codes(replace(dgx(), numa_nodes=nodes[:2]))
    assert not codes(replace(dgx(), numa_nodes=(*nodes[:2], NumaNode(252, None))))


def test_in_a_mesh_the_most_common_number_of_links_is_the_measure() -> None:
    """One board with more links than the others accuses none of them; a GPU with fewer is named."""
    gpus = tuple(Gpu(f"gpu{index}", index, model="A100") for index in range(5))

    def board(*counts: int) -> Machine:
        return Machine(gpus=gpus, gpu_links=tuple(GpuLink(gpu.key, "far", count) for gpu, count in zip(gpus, counts, strict=True)))

    assert not codes(board(4, 4, 4, 4, 6))
    finding = found(board(4, 4, 4, 2, 6), "CB2301")
    assert finding.what == "GPU 3 has 2 of 4 links to other GPUs"
    assert codes(board(4, 4, 6, 6, 6)) == ["CB2301", "CB2301"]


def test_gpus_with_more_links_off_than_most_are_named() -> None:
    bare = replace(dgx(), gpu_links=())
    some = replace(bare, gpus=tuple(replace(gpu, links_off=off) for gpu, off in zip(bare.gpus, (6, 6, 6, 6, 6, 6, 0, 12), strict=True)))
    finding = found(some, "CB2301")
    assert finding.what.startswith("GPU 7") and finding.evidence == "12 off; 6 GPUs of the same model have 6"


def test_of_two_equal_halves_the_gpus_with_fewer_links_are_named() -> None:
    gpus = tuple(Gpu(f"gpu{index}", index, model="A100") for index in range(4))
    links_of = GpuLink("gpu0", "far", 4), GpuLink("gpu1", "far", 4), GpuLink("gpu2", "far", 6), GpuLink("gpu3", "far", 6)
    assert codes(Machine(gpus=gpus, gpu_links=links_of)) == ["CB2301", "CB2301"]
