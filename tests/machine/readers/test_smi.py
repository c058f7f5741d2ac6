"""nvidia-smi, rocm-smi and amd-smi: matrices of paths, counted NVLinks, NICs by name; glued columns come apart or are refused."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.distance import Distances, capability
from collbench.machine.doctor.examine import examine
from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine
from collbench.machine.peak.links import uncounted
from collbench.machine.readers import smi
from collbench.machine.readers.text import Unreadable
from collbench.report.machine import tree_lines
from tests.machine.machines import has_doubt

BRIDGED = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\tNODE\tSYS\tPXB\tSYS\t0-31\t0\t\tN/A
GPU1\tNV12\t X \tNODE\tSYS\tPXB\tSYS\t0-31\t0\t\tN/A
GPU2\tNODE\tNODE\t X \tSYS\tNODE\tSYS\t0-31\t0\t\tN/A
GPU3\tSYS\tSYS\tSYS\t X \tSYS\tPIX\t32-63\t1\t\tN/A
NIC0\tPXB\tPXB\tNODE\tSYS\t X \tSYS
NIC1\tSYS\tSYS\tSYS\tPIX\tSYS\t X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_bond_0
"""
ACCESS = " \tGPU0\tGPU1\tGPU2\tGPU3\t\n GPU0\tX\tOK\tNS\tGNS\n GPU1\tOK\tX\tNS\tCNS\n GPU2\tNS\tNS\tX\tTNS\n GPU3\tGNS\tCNS\tTNS\tX\n"
ROCM = """\
============================ ROCm System Management Interface ============================
================================ Weight between two GPUs =================================
       GPU0         GPU1         GPU2
GPU0   0            15           40
GPU1   15           0            40
GPU2   40           40           0
=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         PCIE
GPU1   XGMI         0            PCIE
GPU2   PCIE         PCIE         0
======================================= Numa Nodes =======================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[0]\t\t: (Topology) Numa Affinity: 0
GPU[1]\t\t: (Topology) Numa Node: 0
GPU[1]\t\t: (Topology) Numa Affinity: -1
GPU[2]\t\t: (Topology) Numa Node: 1
GPU[2]\t\t: (Topology) Numa Affinity: 1
================================== End of ROCm SMI Log ===================================
"""


def matrix(gpus: int, case) -> str:
    """A matrix of GPUs only; `case(a, b)` gives the entry of two."""
    lines = ["\t" + "\t".join(f"GPU{b}" for b in range(gpus)) + "\tCPU Affinity\tNUMA Affinity"]
    lines += [f"GPU{a}\t" + "\t".join(" X " if a == b else case(a, b) for b in range(gpus)) + "\t0-31\t0" for a in range(gpus)]
    return "\n".join(lines) + "\n"


def links(machine: Machine) -> dict:
    return {(link.a, link.b): link.count for link in machine.gpu_links}


COHERENT = """\
        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    NV18    NV18    SYS     SYS     0-63    0,3-5,7-9               2
GPU1    NV18     X      NV18    NV18    SYS     SYS     0-63    0,3-5,7-9               6
GPU2    NV18    NV18     X      NV18    SYS     SYS     64-127  1,11-13,15-17           10
GPU3    NV18    NV18    NV18     X      SYS     SYS     64-127  1,11-13,15-17           14
NIC0    SYS     SYS     SYS     SYS      X      SYS
NIC1    SYS     SYS     SYS     SYS     SYS      X
"""
OLD_WORDS = "\tGPU0\tGPU1\tGPU2\tCPU Affinity\nGPU0\t X \tPSB\tSOC\t0-7\nGPU1\tPSB\t X \tSOC\t0-7\nGPU2\tSOC\tSOC\t X \t8-15\n"
LOST = matrix(8, lambda a, b: "SYS" if 3 in (a, b) else "NV18")
HALF = "\n".join(line for line in BRIDGED.splitlines() if not line.startswith(("GPU3", "NIC")))
HEADING, ROWS = BRIDGED.split("\n", 1)
STRAIGHT = smi.read(BRIDGED, "m")


def numas(machine: Machine) -> list[tuple[str, str | None, int | None]]:
    return [(gpu.key, gpu.vendor, gpu.numa) for gpu in machine.gpus]


def upper(machine: Machine) -> dict[tuple[str, str], str]:
    """The paths of one half of the matrix."""
    return {pair: word for pair, word in machine.paths.items() if pair[0] < pair[1]}


MATRICES: dict[str, tuple[str, Callable[[Machine], Any], Any]] = {
    "source and GPUs": (BRIDGED, lambda m: (m.sources, [gpu.index for gpu in m.gpus], numas(m)),
        (("nvidia-smi topo -m m",), [0, 1, 2, 3],
        [("gpu0", "nvidia", 0), ("gpu1", "nvidia", 0), ("gpu2", "nvidia", 0), ("gpu3", "nvidia", 1)])),
    "NICs": (BRIDGED, lambda m: [(nic.name, nic.rdma, nic.address) for nic in m.nics],
        [("mlx5_0", True, None), ("mlx5_bond_0", True, None)]),
    "paths in both directions": (BRIDGED,
        lambda m: ([m.paths[pair] for pair in (("gpu3", "mlx5_bond_0"), ("mlx5_bond_0", "gpu3"), ("gpu0", "gpu1"), ("gpu2", "mlx5_0"))],
        len(m.paths), m.doubts), (["PIX", "PIX", "NV12", "NODE"], 6 * 5, ())),
    "links of a bridged pair are counted, and GPUs without have none": (BRIDGED,
        lambda m: (links(m), [m.links_of(gpu.key) for gpu in m.gpus], m.switched),
        ({("gpu0", "gpu1"): 12, ("gpu1", "gpu0"): 12, ("gpu2", None): 0, ("gpu3", None): 0}, [12, 12, 0, 0], False)),
    "a GPU that lost its links has none while the others keep the switch": (LOST,
        lambda m: [m.links_of(f"gpu{place}") for place in range(8)], [18, 18, 18, 0, 18, 18, 18, 18]),
    "more links than a GPU has": (matrix(2, lambda a, b: "NV99"), lambda m: has_doubt(m, "NV99"), True),
    "peer access below the matrix": (BRIDGED + "\n" + ACCESS,
        lambda m: (m.peer_access["gpu0", "gpu1"], m.peer_access["gpu1", "gpu3"], len(m.peer_access)), ("OK", "CNS", 12)),
    "peer access alone": (ACCESS,
        lambda m: (m.peer_access == smi.read(BRIDGED + "\n" + ACCESS, "m").peer_access, [gpu.key for gpu in m.gpus], m.paths,
        m.links_of("gpu0")), (True, ["gpu0", "gpu1", "gpu2", "gpu3"], {}, None)),
    "of peer matrices that differ the first is taken": (ACCESS + "\n" + ACCESS.replace("OK", "DR"),
        lambda m: (m.peer_access["gpu0", "gpu1"], "from gpu0 to gpu1: OK, then DR" in m.doubts[0]), ("OK", True)),
    "an underlined heading": (f"\x1b[4m{HEADING}\x1b[0m\n{ROWS}", lambda m: m.paths, STRAIGHT.paths),
    "an underlined heading whose escapes are damaged": (f"[4m{HEADING}[0m\n{ROWS}", lambda m: m.paths, STRAIGHT.paths),
    "halves that contradict each other": (BRIDGED.replace("GPU3\tSYS", "GPU3\tNODE"),
        lambda m: has_doubt(m, "SYS from gpu0 to gpu3, but NODE from gpu3 to gpu0"), True),
    "missing rows come from the other half": (HALF,
        lambda m: (m.paths["gpu3", "gpu0"], m.paths["mlx5_0", "gpu1"], ("gpu3", "mlx5_0") in m.paths, has_doubt(m, "GPU3, NIC0, NIC1")),
        ("SYS", "PXB", False, True)),
    "the NUMA node of a missing row": (HALF, lambda m: (m.gpus[3].numa, m.unknown["gpus/gpu3/numa"]), (None, "its row is missing")),
    "words of old tools have their present names": (OLD_WORDS, upper,
        {("gpu0", "gpu1"): "PIX", ("gpu0", "gpu2"): "SYS", ("gpu1", "gpu2"): "SYS"}),
    "AMD's GPUs": (ROCM, numas, [("gpu0", "amd", 0), ("gpu1", "amd", 0), ("gpu2", "amd", 1)]),
    "xGMI is named but not counted": (ROCM, lambda m: (upper(m), m.gpu_links, "not the number of links" in m.unknown["gpu_links"]),
        ({("gpu0", "gpu1"): "XGMI", ("gpu0", "gpu2"): "PCIE", ("gpu1", "gpu2"): "PCIE"}, (), True)),
    "GPUs whose memory is a NUMA node are near the first node of their list": (COHERENT,
        lambda m: ([gpu.numa for gpu in m.gpus], [gpu.memory_numa for gpu in m.gpus],
        [path for path in m.unknown if path.startswith("gpus/")], m.switched), ([0, 0, 1, 1], [2, 6, 10, 14], [], True)),
    "GPUDirect of coherent GPUs is unknown, and they are no finding": (COHERENT,
        lambda m: ({capability(m, gpu, nic).state for gpu in m.gpus for nic in m.nics}, list(examine([m]))), ({"unknown"}, [])),
    "a list of nodes without memory of GPUs": (matrix(2, lambda a, b: "SYS").replace("0-31\t0\n", "0-31\t0-1\n"),
        lambda m: ([gpu.numa for gpu in m.gpus], m.unknown["gpus/gpu0/numa"]), ([None, None], "its NUMA Affinity is 0-1")),
    # equal counts to every peer are a switch when no GPU has as many links
    **{f"{gpus} GPUs with {count} links to each": (matrix(gpus, lambda a, b, count=count: f"NV{count}"),
        lambda m: (m.switched, m.links_of("gpu0"), ("gpu0", SWITCH) in links(m)), (switched, per_gpu, switched))
        for gpus, count, switched, per_gpu in ((8, 18, True, 18), (4, 12, True, 12), (4, 4, False, 12), (2, 18, False, 18))},
    **{f"an affinity that names no node: {row!r}": (f"\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X {row}\n",
        lambda m: (m.gpus[0].numa, m.unknown["gpus/gpu0/numa"]), (None, f"its NUMA Affinity is {why}"))
        for row, why in (("\t\t\t\tN/A", "empty, as in a container"), ("                             N/A", "empty, as in a container"),
        ("\t0-63\t0-1\t\tN/A", "0-1"), ("\t0-63\tN/A\t\tN/A", "N/A"))},
    "NICs that were found and not shown": ("40 NICs found in the topology, only displaying 2 in the matrix\n" + BRIDGED,
        lambda m: has_doubt(m, "40 NICs and shows 2"), True),
}  # fmt: skip


@pytest.mark.parametrize(("text", "facts", "expected"), MATRICES.values(), ids=MATRICES)
def test_a_matrix(text: str, facts: Callable[[Machine], Any], expected: Any) -> None:
    assert facts(smi.read(text, "m")) == expected


@pytest.mark.parametrize(("whole", "glued"), [
    ("\tSYS\tPXB\tSYS\t", "\tSYSPXB\tSYS\t"), (" X \tNV12\t", " X NV12\t"), ("NV12\t X ", "NV12X "), ("GPU3\tNIC0", "GPU3NIC0"),
    ("NIC1\tCPU", "NIC1CPU"), ("\tPIX\tSYS\t X", "\tPIXSYSX"), ("\t", "    "),
])  # fmt: skip
def test_glued_columns_come_apart(whole: str, glued: str) -> None:
    assert whole in BRIDGED
    bent, straight = smi.read(BRIDGED.replace(whole, glued), "m"), smi.read(BRIDGED, "m")
    assert (bent.paths, bent.gpus, bent.gpu_links, bent.nics) == (straight.paths, straight.gpus, straight.gpu_links, straight.nics)


@pytest.mark.parametrize(("whole", "bent"), [
    ("NODE\tSYS\tPXB\tSYS\t0-31", "NODE\tPXB\tSYS\t0-31"),  # a case is missing
    ("NODE\tSYS\tPXB\tSYS\t0-31", "NODE\tSYS\tPXB\tSYS\tSYS\t0-31"),  # one too many
    ("GPU1\tNV12\t X \t", "GPU1\t X \tNV12\t"),  # shifted against its own column
    ("\tNIC0\tNIC1\tCPU", "\tNIC0\tCPU"),  # the heading lacks a column
    ("GPU2\tNODE\tNODE", "GPU2\tNODE\tN0DE"),  # no word of the tool's
])  # fmt: skip
def test_a_row_that_does_not_fit_is_refused_never_shifted(whole: str, bent: str) -> None:
    assert whole in BRIDGED
    with pytest.raises(Unreadable, match=r"^m: row (GPU|NIC)\d .*\d columns"):
        smi.read(BRIDGED.replace(whole, bent), "m")


@settings(max_examples=150)
@given(st.sampled_from([BRIDGED, BRIDGED + ACCESS, ROCM]), st.randoms(use_true_random=False))
def test_any_damage_is_a_machine_or_a_sentence_and_a_wrong_path_is_never_without_a_doubt(text: str, chance: random.Random) -> None:
    at = chance.randrange(len(text))
    damaged = text[:at] + chance.choice(["", "\t", " ", "X", "SYS", "\x00", "\n", "NV4"]) + text[at + chance.randrange(4) :]
    smi.looks_like(damaged)
    try:
        machine = smi.read(damaged, "m")
    except Unreadable as sentence:
        assert "\n" not in str(sentence) and str(sentence)
        return
    whole = smi.read(text, "m")
    assert machine.doubts or {pair: whole.paths.get(pair, word) for pair, word in machine.paths.items()} == machine.paths


UUID = "GPU-0123abcd-0000-1111-2222-333344445555"


def status(links: int = 12, off: tuple[int, ...] = (), index: int = 0, speed: str = "25") -> str:
    lines = [f"\t Link {link}: " + ("<inactive>" if link in off else f"{speed} GB/s") for link in range(links)]
    return "\n".join([f"GPU {index}: NVIDIA A100-SXM4-80GB (UUID: {UUID})", *lines]) + "\n"


ALL_OFF = status(0) + "NVML: Unable to retrieve NVLink information as all links are inActive\n"
C2C = "GPU 0: NVIDIA GB200 (UUID: GPU-00000000-aaaa)\n" + "".join(f"\t C2C Link {link}: 40.5 GB/s\n" for link in range(5))
STATUSES: dict[str, tuple[str, Callable[[Machine], Any], Any]] = {
    "source, doubts and what is unknown": (status(), lambda m: (m.sources, m.doubts, m.unknown), (("nvidia-smi nvlink -s m",), (), {})),
    "GPU": (status(), lambda m: m.gpus, (Gpu("gpu0", index=0, vendor="nvidia", model="NVIDIA A100-SXM4-80GB", links_off=0, uuid=UUID),)),
    "links are counted with their speed": (status() + status(index=1), lambda m: m.gpu_links,
        (GpuLink("gpu0", None, 12, bytes_per_s=25e9), GpuLink("gpu1", None, 12, bytes_per_s=25e9))),
    "a speed as printed": (status(18, speed="26.562"), lambda m: m.gpu_links[0].bytes_per_s, pytest.approx(26.562e9)),
    "inactive links are counted apart": (status(18, off=(12, 13, 14, 15, 16, 17), speed="26.562"),
        lambda m: (m.links_of("gpu0"), m.gpus[0].links_off), (12, 6)),
    "all links are off": (status(12, off=tuple(range(12))), lambda m: m.links_of("gpu0"), 0),
    "all links are off, in the tool's words": (ALL_OFF, lambda m: m.links_of("gpu0"), 0),
    "no link lines": ("GPU 0: NVIDIA A10 (UUID: GPU-00000000-aaaa)\n", lambda m: (m.links_of("gpu0"), m.gpus[0].links_off, set(m.unknown)),
        (None, None, {"gpus/gpu0/links_off", "gpu_links"})),
    "different speeds of one GPU": (status().replace("Link 3: 25 GB/s", "Link 3: 12.5 GB/s"),
        lambda m: (m.gpu_links, has_doubt(m, "gpu0 run at different speeds, 12.5 to 25 GB/s")), ((GpuLink("gpu0", None, 12),), True)),
    "cut off in the second GPU": (status() + status(3, index=1), lambda m: "the file may be cut" in m.doubts[0], True),
    "a line is missing": (status() + status(index=1).replace("\t Link 4: 25 GB/s\n", ""), lambda m: "the file may be cut" in m.doubts[0],
        True),
    "links to the CPU": (C2C, lambda m: (m.gpus[0].c2c_links, m.gpus[0].c2c_bytes_per_s, m.gpu_links, m.unknown["gpu_links"]),
        (5, 40.5e9, (), "the file lists no NVLinks")),
    "links to the CPU and to GPUs": (C2C + C2C.replace("C2C ", ""), lambda m: (m.links_of("gpu0"), m.gpus[0].c2c_links), (5, 5)),
}  # fmt: skip


@pytest.mark.parametrize(("text", "facts", "expected"), STATUSES.values(), ids=STATUSES)
def test_an_nvlink_status(text: str, facts: Callable[[Machine], Any], expected: Any) -> None:
    assert smi.looks_like_nvlink_status(text) or "Link" not in text
    assert facts(smi.read_nvlink_status(text, "m")) == expected


A, B, C = "0000:03:00.0", "0000:23:00.0", "0000:43:00.0"
XGMI, PCIE = {(A, B), (B, A)}, {(A, C), (C, A), (B, C), (C, B)}


def word(a: str, b: str) -> str:
    return "SELF" if a == b else "XGMI" if (a, b) in XGMI else "PCIE"


def table(title: str, cases: dict[tuple[str, str], str]) -> str:
    rows = [f"{a} {' '.join(cases[a, b].ljust(12) for b in (A, B, C))}" for a in (A, B, C)]
    return "\n".join([f"{title} TABLE:", f"             {A} {B} {C}", *rows, ""])


PAIRS = [(a, b) for a in (A, B, C) for b in (A, B, C)]
TEXT = "\n".join([
    table("ACCESS", {pair: "DISABLED" if pair in PCIE else "ENABLED" for pair in PAIRS}),
    table("WEIGHT", {(a, b): "0" if a == b else "15" if (a, b) in XGMI else "40" for a, b in PAIRS}),
    table("LINK TYPE", {pair: word(*pair) for pair in PAIRS}), table("NUMA BW", dict.fromkeys(PAIRS, "50000-50000")),
    "Legend:\n  SELF = Current GPU\n",
])  # fmt: skip
ENTRIES = [{"gpu": index, "bdf": a, "links": [
    {"gpu": other, "bdf": b, "link_status": "DISABLED" if (a, b) in PCIE else "ENABLED", "link_type": word(a, b)}
    for other, b in enumerate((A, B, C))
]} for index, a in enumerate((A, B, C))]  # fmt: skip
JSON = json.dumps(ENTRIES, indent=4)


@pytest.mark.parametrize("text", [TEXT, JSON], ids=["text", "JSON"])
def test_gpus_links_and_access(text: str) -> None:
    assert smi.looks_like_amd(text)
    machine = smi.read_amd(text, "topology.txt")
    assert [(gpu.key, gpu.index, gpu.vendor) for gpu in machine.gpus] == [(A, 0, "amd"), (B, 1, "amd"), (C, 2, "amd")]
    assert (machine.paths[A, B], machine.paths[A, C]) == ("XGMI", "PCIE")
    assert (machine.peer_access[A, B], machine.peer_access[C, B]) == ("OK", "NS")
    assert machine.unknown["gpu_links"].startswith("amd-smi ")
    # xGMI is shown with the GPUs that it joins, and PCIe is a path whose distance is unknown
    assert any("xGMI: to GPU 1 (number " in line.text for line in tree_lines(machine))
    assert (Distances(machine).path(A, C), Distances(Machine(gpus=machine.gpus)).path(A, C)) == ("PCIE", None)


PCIE_MATRIX = "".join(f"GPU{row} {' '.join('0' if row == column else 'PCIE' for column in range(3))}\n" for row in range(3))
ROCM_PCIE = f"""\
=================== Link Type between two GPUs ===================
       GPU0 GPU1 GPU2
{PCIE_MATRIX}
========================= Numa Nodes =========================
GPU[0]\t\t: (Topology) Numa Node: 3
"""
AMD_PCIE = """\
LINK TYPE TABLE:
             0000:05:00.0  0000:26:00.0
0000:05:00.0 SELF          PCIE
0000:26:00.0 PCIE          SELF
"""


def test_gpus_that_pcie_alone_joins_have_no_xgmi_which_is_known() -> None:
    rocm, amd = smi.read_rocm(ROCM_PCIE, "m"), smi.read_amd(AMD_PCIE, "m")
    assert rocm.gpu_links == tuple(GpuLink(f"gpu{index}", None, 0, "xgmi") for index in range(3))
    assert amd.gpu_links == (GpuLink("0000:05:00.0", None, 0, "xgmi"), GpuLink("0000:26:00.0", None, 0, "xgmi"))
    assert "gpu_links" not in {*rocm.unknown, *amd.unknown}
    assert rocm.unknown["numa_nodes"] == "rocm-smi names only the nodes nearest to GPUs"
    mixed = smi.read_rocm(ROCM_PCIE.replace("GPU0 0 PCIE", "GPU0 0 XGMI"), "m")
    assert mixed.gpu_links == () and "gpu_links" in mixed.unknown


def test_amd_users_are_not_sent_to_the_tool_of_nvidia() -> None:
    for machine in (smi.read_rocm(ROCM_PCIE, "m"), smi.read_amd(AMD_PCIE.replace("PCIE", "XGMI"), "m")):
        assert "nvidia" not in (uncounted(machine, [gpu.key for gpu in machine.gpus]) or "")


@pytest.mark.parametrize("word", ["MT2", "HCCS", "MX"])
def test_a_matrix_of_another_vendor_is_named(word: str) -> None:
    text = f"\tGPU0\tGPU1\tNIC0\nGPU0\tX\t{word}\tPIX\nGPU1\t{word}\tX\tSYS\nNIC0\tPIX\tSYS\tX\n"
    with pytest.raises(Unreadable, match=f"cell {word}, which is not of nvidia-smi") as refused:
        smi.read(text, "topo.txt")
    assert "again" not in str(refused.value)
