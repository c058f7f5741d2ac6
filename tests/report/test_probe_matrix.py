"""The table of distances."""

from __future__ import annotations

from dataclasses import replace

from collbench.machine.model import Gpu, GpuLink, Machine, Nic, NumaNode
from collbench.report.machine import MOST_PARTS, matrix_lines
from tests.machine.machines import laptop, mesh, pcie_box


def matrix(machine: Machine) -> list[str]:
    return [line.text for line in matrix_lines(machine)]


def test_a_box_whole() -> None:
    assert matrix(pcie_box()) == [
        "      GPU0  GPU1  GPU2  GPU3  NIC0  NIC1  NIC2  CPU affinity  NUMA",
        "GPU0  X     PIX   SYS   SYS   NODE  SYS   SYS   0-23,48-71    0",
        "GPU1  PIX   X     SYS   SYS   NODE  SYS   SYS   0-23,48-71    0",
        "GPU2  SYS   SYS   X     PHB   SYS   NODE  NODE  24-47,72-95   1",
        "GPU3  SYS   SYS   PHB   X     SYS   NODE  NODE  24-47,72-95   1",
        "NIC0  NODE  NODE  SYS   SYS   X     SYS   SYS   0-23,48-71    0",
        "NIC1  SYS   SYS   NODE  NODE  SYS   X     PIX   24-47,72-95   1",
        "NIC2  SYS   SYS   NODE  NODE  SYS   PIX   X     24-47,72-95   1",
        "X: itself; PIX: at most one PCIe switch; PHB: a PCIe host bridge, within a NUMA node; "
        "NODE: between host bridges of a NUMA node; SYS: between NUMA nodes",
        "NIC0 mlx5_0, NIC1 eno1, NIC2 eno2",
    ]


def test_links_between_gpus() -> None:
    assert matrix(mesh())[1] == "GPU0  X     NV4   NV4   NV4   PIX   SYS   SYS   SYS   18-23,66-71   3"


def test_unknown_is_a_question_mark_with_its_reason() -> None:
    machine = Machine(
        gpus=(Gpu("gpu0", 0), Gpu("gpu1", 1)), nics=(Nic("mlx5_0"),), gpu_links=(GpuLink("gpu0", "gpu1", 1, "xgmi"),),
        paths={("gpu0", "mlx5_0"): "PXB"}, numa_nodes=(NumaNode(0, ""), NumaNode(1)),
    )  # fmt: skip
    assert matrix(machine) == [
        "      GPU0  GPU1  NIC0  CPU affinity  NUMA",
        "GPU0  X     XG1   PXB   ?             ?",
        "GPU1  XG1   X     ?     ?             ?",
        "NIC0  PXB   ?     X     ?             ?",
        "X: itself; XGk: k xGMI links; PXB: several PCIe switches, no host bridge",
        "NIC0 mlx5_0",
        "?: unknown (gpu1 has no known PCI address; mlx5_0 has no known PCI address)",
    ]


def test_memory_alone_has_no_cpus() -> None:
    assert matrix(Machine(numa_nodes=(NumaNode(4, ""),), gpus=(Gpu("gpu0"),)))[1] == "GPU0  X     –             4"


def test_virtual_interfaces_are_no_parts() -> None:
    assert matrix(laptop())[0].split() == ["NIC0", "CPU", "affinity", "NUMA"]
    assert matrix(Machine()) == ["GPUs unknown, NICs unknown: no distances, since fewer than two parts are known"]


def test_a_table_that_is_too_long_is_cut_and_reports_it() -> None:
    found = matrix(Machine(nics=tuple(Nic(f"eth{number}") for number in range(MOST_PARTS + 72))))
    assert len(found) == 1 + MOST_PARTS + 4
    assert found[-1] == "72 more parts are not shown: see --format json"


def test_hostile_names() -> None:
    machine = replace(pcie_box(), nics=(Nic("a\x1b[31m\nb"),), numa_nodes=(NumaNode(0, "0-\x07"), NumaNode(1)))
    found = matrix(machine)
    assert all(text.isprintable() for text in found)
    assert "NIC0 a?[31m?b" in found
