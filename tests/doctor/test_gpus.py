"""CB23xx: GPUs against their siblings in the job."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from collbench.machine.doctor.examine import examine
from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, NumaNode
from collbench.machine.readers.smi import read, read_nvlink_status
from tests.doctor.machines import Fault, changed, codes
from tests.machine.machines import dgx, mesh

GPUS = dgx().gpus


def links(machine: Machine, *counts: int | None) -> Machine:
    """The machine with other numbers of links to its switch; None: not counted."""
    pairs = zip(machine.gpus, counts, strict=True)
    return replace(machine, gpu_links=tuple(GpuLink(gpu.key, SWITCH, count) for gpu, count in pairs if count is not None))


def with_off(*off: int) -> Machine:
    """The DGX without counted links, with these numbers of links off."""
    return replace(dgx(), gpu_links=(), gpus=tuple(replace(gpu, links_off=each) for gpu, each in zip(GPUS, off, strict=True)))


def counted(*counts: int) -> Machine:
    """GPUs with these numbers of links, to unknown ends."""
    gpus = tuple(Gpu(f"gpu{index}", index, vendor="nvidia", model="V100") for index in range(len(counts)))
    return Machine(gpus=gpus, gpu_links=tuple(GpuLink(f"gpu{index}", None, count) for index, count in enumerate(counts)))


def access(*gpus: Gpu, **pairs: str) -> Machine:
    """GPUs with these words of the driver's peer matrix: p01 is from gpu0 to gpu1."""
    return Machine(gpus=gpus, peer_access={(f"gpu{pair[1]}", f"gpu{pair[2]}"): word for pair, word in pairs.items()})


Pairs = Mapping[tuple[int, int], int]


def xgmi(pairs: Pairs, gpus: int = 8, hostname: str = "n1", vendor: str = "amd", model: str = "MI250X") -> Machine:
    """A mesh with these links between pairs of GPUs, the same number from both ends unless the other end is named as well."""
    both = {**{(b, a): count for (a, b), count in pairs.items()}, **pairs}
    links = tuple(GpuLink(f"gpu{a}", f"gpu{b}", count, "xgmi") for (a, b), count in both.items() if count)
    parts = tuple(Gpu(f"gpu{index}", index, vendor=vendor, model=model) for index in range(gpus))  # type: ignore[arg-type]
    return Machine(hostname, gpus=parts, gpu_links=links)


# Four modules of two dies: four links inside a module; even dies are all joined, odd ones form a ring.
MODULES = {(die, die + 1): 4 for die in range(0, 8, 2)}
EVEN = {(a, b): 1 for a in range(0, 8, 2) for b in range(a + 2, 8, 2)}
RING = {(1, 3): 1, (3, 5): 1, (5, 7): 1, (1, 7): 1}
DIES = {**MODULES, **EVEN, **RING}
ALL_TO_ALL = {(a, b): 1 for a in range(8) for b in range(a + 1, 8)}
FOUR = {(a, b): 4 for a in range(4) for b in range(a + 1, 4)}
FEWER = xgmi({**DIES, (1, 7): 0}, hostname="n9")
CARDS = tuple(Gpu(f"gpu{index}", index, model="A100-PCIE-40GB") for index in range(3))
BRIDGE = (GpuLink("gpu0", "gpu1", 12), GpuLink("gpu1", "gpu0", 12))
# H100 PCIe: 12 of 18 links are on.
H100_PCIE = replace(links(dgx(), *[12] * 8), gpus=tuple(replace(gpu, model="H100 PCIe", links_off=6) for gpu in GPUS))
RTX = [Gpu(f"gpu{index}", index, model="GeForce RTX 5090") for index in range(3)]
NODES = (NumaNode(0, "0-79", 1 << 38), NumaNode(8, "80-159", 1 << 38), NumaNode(252, "", 1 << 34))

FAULTS = [
    Fault("links lost on a switch", "CB2301", "severe",
        changed(links(dgx(), 18, 18, 2, 18, 18, 18, 18, 18), "gpus", GPUS[2].key, links_off=16),
        ("GPU 2 (0000:3b:00.0) has 2 of 18 links", "2 up, 16 off; 7 of 8 ")),
    Fault("links off where none are counted", "CB2301", "severe", changed(replace(dgx(), gpu_links=()), "gpus", GPUS[0].key, links_off=18),
        ("18 off; 7 GPUs ",)),
    Fault("more links off than most", "CB2301", "severe", with_off(6, 6, 6, 6, 6, 6, 0, 12),
        ("\nGPU 7", "\n12 off; 6 GPUs of the same model have 6\n")),
    Fault("a card without a bridge", "CB2301", "warning", Machine(gpus=CARDS, gpu_links=(*BRIDGE, GpuLink("gpu2", None, 0))),
        ("\nnothing,",)),
    Fault("a pair without its link in a full mesh", "CB2301", "severe", xgmi({**ALL_TO_ALL, (2, 5): 0}, model="MI300X"),
        ("GPU 2 and GPU 5 have 0 of 1 links", "\n27 of 28 pairs have 1\n", "rocm-smi")),
    Fault("a pair of four with fewer links", "CB2301", "severe", xgmi({**FOUR, (0, 1): 3}, 4, vendor="nvidia", model="A100-SXM4-40GB"),
        ("GPU 0 and GPU 1 have 3 of 4 links", "nvidia-smi nvlink")),
    Fault("a link down at one end", "CB2301", "severe", xgmi({**DIES, (3, 2): 3}),
        ("GPU 2 and GPU 3 ", "GPU 2 counts 4 links to GPU 3, which counts 3")),
    Fault("a minority of counts without far ends", "CB2301", "severe", counted(6, 6, 6, 4)),
    Fault("a GPU that no source counted", "CB2302", "warning", links(dgx(), *[18] * 7, None), ("GPU 7 (0000:c4:00.0)",)),
    Fault("no peer access", "CB2303", "warning", access(Gpu("gpu0", 0), Gpu("gpu1", 1), p01="CNS", p10="CNS"),
        ("\n1 pair of 2 GPUs without peer-to-peer:", "\npeer matrix of the driver (`nvidia-smi topo -p2p r`): GPU 0 and GPU 1: CNS ")),
    Fault("cards that are made without peer access", "CB2303", "note", access(*RTX, p01="GNS"),
        ("GPU 0 and GPU 1: GNS (the GPU does not support it)\nnothing:",)),
    Fault("cards without peer access for another reason, too", "CB2303", "warning", access(*RTX, p01="GNS", p12="TNS")),
    Fault("memory of GPUs as NUMA nodes", "CB2304", "note", replace(dgx(), numa_nodes=NODES), ("\nNUMA node 252 ",)),
]  # fmt: skip
HEALTHY: dict[str, list[Machine]] = {
    "all machines alike": [dgx(), replace(dgx(), hostname="dgx02")],
    "a machine with fewer links alone": [links(dgx(), *[17] * 8)],
    "links that are off on all": [H100_PCIE],
    "links that are off on all of a job": [H100_PCIE, replace(H100_PCIE, hostname="dgx02")],
    "links that are off on all, not counted": [with_off(*[6] * 8)],
    "a bridged pair": [Machine(gpus=CARDS, gpu_links=BRIDGE)],
    "GPUs of unknown models, compared within their machine": [Machine("a", gpus=(Gpu("gpu0"),), gpu_links=(GpuLink("gpu0", "gpu1", 4),)),
        Machine("b", gpus=(Gpu("gpu0"),), gpu_links=(GpuLink("gpu0", "gpu1", 6),))],
    "a mesh": [mesh()],
    "peer access, or unknown": [access(Gpu("gpu0", 0), Gpu("gpu1", 1), p01="OK", p10="U")],
    "nodes with processors": [replace(dgx(), numa_nodes=NODES[:2])],
    "a node with unknown processors": [replace(dgx(), numa_nodes=(*NODES[:2], NumaNode(252, None)))],
    "a design with fewer links for half of the GPUs": [xgmi(DIES)],
    "that design on four machines": [xgmi(DIES, hostname=f"n{number}") for number in range(4)],
    "one pair less of each GPU": [xgmi({pair: 1 for pair in ALL_TO_ALL if pair not in [(0, 5), (1, 4), (2, 7), (3, 6)]})],
    "another pair less of each GPU": [xgmi({pair: 1 for pair in ALL_TO_ALL if pair not in [(0, 4), (1, 5), (2, 6), (3, 7)]})],
    "a ring of four": [xgmi({(0, 1): 1, (1, 2): 1, (2, 3): 1, (0, 3): 1}, gpus=4)],
    "a full mesh of four": [xgmi(FOUR, 4, vendor="nvidia", model="A100-SXM4-40GB")],
    "two halves of counts without far ends": [counted(6, 6, 4, 4)],
    "equal counts without far ends": [counted(6, 6, 6)],
}  # fmt: skip


def lost(*machines: Machine) -> list[tuple[str | None, str, str]]:
    """The host, severity and text of each finding about lost links."""
    return [(each.hostname, each.severity, each.what) for each in examine(machines) if each.code == "CB2301"]


@pytest.mark.parametrize("fault", FAULTS, ids=[each.name for each in FAULTS])
def test_a_fault_is_found(fault: Fault) -> None:
    fault.check()


@pytest.mark.parametrize("machines", HEALTHY.values(), ids=HEALTHY)
def test_what_is_no_fault(machines: list[Machine]) -> None:
    assert not codes(*machines)


def test_links_lost_against_other_machines_of_the_job_and_designs_with_fewer() -> None:
    assert codes(dgx(), links(replace(dgx(), hostname="dgx02"), *[17] * 8)) == ["CB2301"] * 8
    # of two machines that differ either may be right
    assert [each[:2] for each in lost(xgmi(DIES), FEWER)] == [("n9", "warning")] * 2
    assert all("--since" in each.remedy for each in examine([xgmi(DIES), FEWER]) if each.code == "CB2301")
    # a design with few GPUs that have fewer neighbours
    assert {severity for _, severity, _ in lost(xgmi({(a, a + 1): 2 for a in range(7)}))} == {"warning"}
    (amd,) = [each for each in examine([xgmi({**ALL_TO_ALL, (2, 5): 0}, model="MI300X")]) if each.code == "CB2301"]
    assert "nvidia" not in amd.remedy and "Xid" not in amd.remedy  # the vendor's tool


def test_of_two_odd_pairs_the_one_with_links_at_one_end_is_reported() -> None:
    """GPU 3 counts no link back to GPU 0, and GPU 1 and GPU 2 have none: two odd pairs are not a minority of six."""
    pairs = {(0, 1): 1, (0, 2): 1, (0, 3): 1, (3, 0): 0, (1, 2): 0, (1, 3): 1, (2, 3): 1}
    assert [what for _, severity, what in lost(xgmi(pairs, gpus=4)) if severity == "severe"] == [
        "1 link between GPU 0 and GPU 3 down at one end"
    ]


def test_the_same_position_on_other_machines_distinguishes_design_from_loss() -> None:
    assert {xgmi(DIES).links_of(f"gpu{die}") for die in range(8)} == {6, 7}
    assert "severe" not in [severity for _, severity, _ in lost(FEWER)]
    job = (xgmi(DIES), xgmi(DIES, hostname="n2"), FEWER)
    assert lost(*job) == [("n9", "severe", f"GPU {gpu} has 5 of 6 links to other GPUs") for gpu in (1, 7)]
    assert all("on 2 of 3 machines: 6 links" in each.evidence for each in examine(job) if each.code == "CB2301")


# `nvidia-smi nvlink -s`: a row per GPU, as (model, active links, inactive links); "dark" has the one line for all links.

A100, H100, CARD, PAIR = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA A100-PCIE-40GB"
V100 = "Tesla V100-SXM2-32GB"
DARK = "NVML: Unable to retrieve NVLink information as all links are inActive"


def nvlinks(*gpus: tuple[str, int, int], first: int = 0) -> Machine:
    """The machine of this status; a GPU without active links has the one line for all."""
    lines: list[str] = []
    for index, (model, active, off) in enumerate(gpus, first):
        speeds = ["25 GB/s"] * active + ["<inactive>"] * off
        lines += [
            f"GPU {index}: {model} (UUID: GPU-0000000{index}-aaaa)",
            *(f"\t Link {link}: {speed}" for link, speed in enumerate(speeds)),
        ]
        lines += [] if speeds else [DARK]
    return read_nvlink_status("\n".join(lines), "nvlink.txt")


@pytest.mark.parametrize(("machine", "found"), [
    (nvlinks((A100, 0, 0), first=6), [("severe", "GPU 6")]),
    (nvlinks((A100, 0, 0)), [("warning", "GPU 0")]),  # a virtual machine with one GPU has such a file
    (nvlinks(*[(A100, 12, 0)] * 6, (A100, 0, 0), (A100, 12, 0)), [("severe", "GPU 6")]),
    (nvlinks(*[(H100, 18, 0)] * 7, (H100, 0, 18)), [("severe", "GPU 7")]), (nvlinks(*[(H100, 0, 0)] * 8), [("severe", "GPU 0, GPU 1")]),
    (nvlinks(*[(V100, 0, 0)] * 4), [("severe", "GPU 0, GPU 1")]),
    (nvlinks(*[(H100, 18, 0)] * 4, *[(H100, 16, 2)] * 4), [("severe", f"GPU {index} has 16 of 18") for index in range(4, 8)]),
    (nvlinks((A100, 11, 1), first=3), [("severe", "GPU 3 has 11 of 12")]),
    (nvlinks(*[(A100, 10, 2)] * 8), [("warning", f"GPU {index} has 10 of 12") for index in range(8)]),
    (nvlinks((CARD, 12, 6), (CARD, 12, 6), (CARD, 0, 18)), [("warning", "GPU 2 has 0 of 12")]),
    (nvlinks((PAIR, 0, 0), (PAIR, 0, 0)), []),  # cards without bridges
    (nvlinks((CARD, 12, 6), (CARD, 12, 6)), []),
    (nvlinks(*[(V100, 4, 2)] * 4), []),  # half of a mesh of eight
    (nvlinks(("NVIDIA GH200 480GB", 0, 0)), []), (nvlinks(*[(H100, 18, 0)] * 8), []),
])  # fmt: skip
def test_inactive_links_by_what_the_file_and_the_model_say(machine: Machine, found: list[tuple[str, str]]) -> None:
    actual = [(severity, what) for _, severity, what in lost(machine)]
    assert [severity for severity, _ in actual] == [severity for severity, _ in found]
    assert all(part in what for (_, what), (_, part) in zip(actual, found, strict=True))


def test_a_pair_of_modules_that_no_link_joins_is_no_fault_in_a_mesh() -> None:
    """A container with two V100 of a mesh: the matrix has no NVLink between them."""
    matrix = read("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSYS\t0-19\nGPU1\tSYS\t X \t20-39\n", "topo.txt")
    assert lost(replace(matrix, gpus=tuple(replace(gpu, model=V100) for gpu in matrix.gpus))) == []
