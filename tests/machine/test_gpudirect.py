"""Whether a NIC could reach a GPU's memory: the state, and the fact that decides."""

from typing import Any

import pytest
from msgspec.structs import replace

from collbench.machine.distance import Capability, capability
from collbench.machine.model import Gpu, Machine, Nic, PciDevice
from tests.machine.machines import dgx, mesh, pcie_box

NO_MODULE = "no peer-memory module for this GPU is loaded"


def found(machine: Machine, nic: int = 0, gpu: int = 0, **system: Any) -> Capability:
    return capability(replace(machine, system=replace(machine.system, **system)), machine.gpus[gpu], machine.nics[nic])


CAPABLE = "capable; use not checked"
UNUSED, NOT = "capable, not used", "not capable"


def with_gpus(machine: Machine, **facts: Any) -> Machine:
    return replace(machine, gpus=tuple(replace(gpu, **facts) for gpu in machine.gpus))


def with_nic(machine: Machine, **facts: Any) -> Machine:
    return replace(machine, nics=(replace(machine.nics[0], **facts), *machine.nics[1:]))


AMD = with_gpus(dgx(), vendor="amd")
LONE = Machine(
    gpus=(Gpu("0011:00:00.0", address="0011:00:00.0", vendor="amd"),),
    nics=(Nic("mlx5_0", "0010:00:00.0", model="ConnectX", rdma=True, gdr=True),),
    pci=(PciDevice("0010:00:00.0"), PciDevice("0011:00:00.0")), paths={("0011:00:00.0", "mlx5_0"): "PHB"},
)  # fmt: skip
BELOW = replace(LONE, pci=(replace(LONE.pci[0], parent="0010:00:01.0"), PciDevice("0010:00:01.0"), LONE.pci[1]))
STATED = replace(dgx(), paths={(dgx().gpus[0].key, "mlx5_4"): "PHB"})
# NCCL's topology file has gdr=0 or 1 for each NIC; the modules of this machine do not matter then.
OF_NCCL = replace(pcie_box(), sources=("NCCL topology XML topo.xml",), paths={("0000:03:00.0", "mlx5_0"): "PXB"})
REFUSED = replace(with_nic(OF_NCCL, gdr=False), origins={"nics/mlx5_0/gdr": "NCCL topology XML b.xml"})
WAYS: dict[str, tuple[Machine, int, dict[str, Any], str, str]] = {
    "a module and a switch": (dgx(), 0, {}, CAPABLE, "nvidia_peermem is loaded, PIX apart"),
    **{f"module {module}": (dgx(), 0, {"peer_memory": ("x", module), "dma_buf": False}, CAPABLE, f"{module} is loaded, PIX apart")
        for module in ("nvidia_peermem", "nv_mem", "nv_mem_nc", "nv_peer_mem", "efa_nv_peermem")},
    "dma-buf is the second way": (mesh(), 0, {"peer_memory": (), "dma_buf": True}, CAPABLE, "the driver exports dma-buf, PIX apart"),
    "dma-buf of an early kernel": (mesh(), 0, {"peer_memory": None, "dma_buf": True, "kernel": "5.12.0-rc1"}, CAPABLE, "dma-buf"),
    "a far NIC": (dgx(), 2, {}, UNUSED, "NODE apart"),
    "a NIC at the other socket": (dgx(), 4, {}, UNUSED, "SYS apart"),
    "a far NIC and the setting": (dgx(), 2, {}, UNUSED, "NCCL_NET_GDR_LEVEL"),
    "a far NIC without a way": (dgx(), 2, {"peer_memory": (), "dma_buf": False}, NOT, ""),
    "a NIC at the other socket without a way": (dgx(), 4, {"peer_memory": (), "dma_buf": False}, NOT, ""),
    "AMD's own module": (AMD, 0, {"peer_memory": ("amdkfd",)}, CAPABLE, "amdkfd "),
    "NVIDIA's module for AMD": (AMD, 0, {"peer_memory": ("nvidia_peermem",), "dma_buf": False}, NOT, ""),
    "RCCL uses a host bridge on some processors": (AMD, 2, {"peer_memory": ("amdkfd",)}, CAPABLE, ""),
    "RCCL and the other socket": (AMD, 4, {"peer_memory": ("amdkfd",)}, UNUSED, ""),
    "functions alone in their PCI domains are those of a virtual machine": (LONE, 0, {}, "unknown", ""),
    "functions below a bridge": (BELOW, 0, {}, CAPABLE, ""),
    "a Grace CPU may carry it": (dgx(), 4, {"architecture": "aarch64"}, "unknown",
        "SYS apart on PCIe; C2C to the CPU may carry it, if the NIC is on the same CPU"),
    **{f"a GPU that C2C joins to its CPU: {facts}": (with_gpus(dgx(), **facts), 4, {}, "unknown", "")
        for facts in ({"memory_numa": 2}, {"c2c_links": 5}, {"model": "NVIDIA GB200"}, {"model": "NVIDIA GH200 480GB"}, {"model": "GB10"})},
    "a source's path": (STATED, 4, {}, UNUSED, ""),
    "a virtual machine hides how far apart they are": (STATED, 4, {"virtualization": "kvm"}, "unknown", "(kvm)"),
    "a card without an RDMA device": (with_nic(dgx(), rdma=False, rdma_missing=True), 0, {}, NOT, "no RDMA device"),
    "NCCL's file allows it": (with_nic(OF_NCCL, gdr=True), 0, {}, CAPABLE, "topo.xml has gdr=1"),
    "NCCL's file refuses it": (REFUSED, 0, {}, NOT, "b.xml has gdr=0"),
    "a NIC without RDMA": (pcie_box(), 1, {}, NOT, ""),
    "a NIC that may have RDMA": (replace(dgx(), nics=(Nic("0000:1a:00.0", "0000:1a:00.0"),)), 0, {}, "unknown", "RDMA device"),
    "a bond": (replace(dgx(), nics=(Nic("mlx5_bond_0", rdma=True, virtual="bond"),)), 0, {}, NOT, "(bond)"),
    "an unknown path": (replace(dgx(), pci=()), 0, {}, "unknown", "no PCI tree"),
}  # fmt: skip


@pytest.mark.parametrize(("machine", "nic", "system", "state", "why"), WAYS.values(), ids=WAYS)
def test_a_gpu_and_a_nic(machine: Machine, nic: int, system: dict[str, Any], state: str, why: str) -> None:
    capable = found(machine, nic, **system)
    assert capable.state == state and why in capable.why


def test_a_log_proves_use_or_the_contrary_whatever_module_is_loaded() -> None:
    """nccl#1537: nvidia_peermem is loaded, and NCCL prints "GPU Direct RDMA Disabled"."""
    box, machine = pcie_box(), dgx()
    lines = "NCCL: [send] and [receive] via NET/IB/0/GDRDMA"
    assert capability(box, box.gpus[0], box.nics[0], proof=lines) == Capability("proven used", lines)
    words = "nccl.log: GPU Direct RDMA Disabled for mlx5_0"
    assert capability(machine, machine.gpus[0], machine.nics[0], refusal=words) == Capability("not capable", words)
    assert capability(machine, machine.gpus[0], machine.nics[0], refusal=words, proof="lines").state == "proven used"


@pytest.mark.parametrize(("system", "state", "why"), [
    ({"dma_buf": False}, "not capable", f"{NO_MODULE}, and the driver exports no dma-buf"),
    ({"dma_buf": True, "kernel": "5.4.0-150"}, "not capable", f"{NO_MODULE}, and kernel 5.4.0-150 is older than 5.12, which dma-buf needs"),
    ({"dma_buf": None}, "unknown", f"{NO_MODULE}, and dma-buf support is unknown"),
    ({"dma_buf": True, "kernel": None}, "unknown", f"{NO_MODULE}, and the kernel version is unknown"),
    ({"peer_memory": None, "dma_buf": None}, "unknown", "peer-memory modules were not looked at, and dma-buf support is unknown"),
    ({"peer_memory": None, "dma_buf": False}, "unknown", "peer-memory modules were not looked at, and the driver exports no dma-buf"),
    ({"container": "docker"}, "unknown", "inside a container (docker): its view of the host's modules proves nothing"),
    ({"peer_memory": ("amdkfd",), "dma_buf": False}, "not capable", f"{NO_MODULE}, and the driver exports no dma-buf"),
])  # fmt: skip
def test_without_peer_memory(system: dict[str, Any], state: str, why: str) -> None:
    assert found(dgx(), **{"peer_memory": (), **system}) == Capability(state, why)  # type: ignore[arg-type]
