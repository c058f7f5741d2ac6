"""Whether a NIC could reach a GPU's memory: the state, and the fact that decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from collbench.machine.distance import Capability, capability
from collbench.machine.model import Gpu, Machine, Nic, PciDevice
from tests.machine.machines import dgx, mesh, pcie_box

NO_MODULE = "no peer-memory module for this GPU is loaded"


def found(machine: Machine, nic: int = 0, gpu: int = 0, **system: Any) -> Capability:
    return capability(replace(machine, system=replace(machine.system, **system)), machine.gpus[gpu], machine.nics[nic])


def test_a_module_and_a_switch() -> None:
    assert found(dgx()).state == "capable; use not checked" and "nvidia_peermem" in found(dgx()).why


def test_dma_buf_is_the_second_way() -> None:
    assert found(mesh(), peer_memory=(), dma_buf=True) == Capability("capable; use not checked", "the driver exports dma-buf, PIX apart")
    assert found(mesh(), peer_memory=None, dma_buf=True, kernel="5.12.0-rc1").state == "capable; use not checked"


def test_only_a_log_proves_use() -> None:
    machine = pcie_box()
    lines = "NCCL: [send] and [receive] via NET/IB/0/GDRDMA"
    assert capability(machine, machine.gpus[0], machine.nics[0], proof=lines) == Capability("proven used", lines)


@pytest.mark.parametrize(("nic", "word"), [(2, "NODE"), (4, "SYS")])
def test_far_nics_are_not_used_by_default(nic: int, word: str) -> None:
    by_default = found(dgx(), nic)
    assert by_default.state == "capable, not used"
    assert by_default.why.startswith(f"{word} apart") and "NCCL_NET_GDR_LEVEL" in by_default.why
    assert found(dgx(), nic, peer_memory=(), dma_buf=False).state == "not capable"


def test_rccl_uses_a_host_bridge_on_some_processors() -> None:
    amd = replace(dgx(), gpus=tuple(replace(gpu, vendor="amd") for gpu in dgx().gpus))
    assert found(amd, 2, peer_memory=("amdkfd",)).state == "capable; use not checked"
    assert found(amd, 4, peer_memory=("amdkfd",)).state == "capable, not used"


def test_functions_alone_in_their_pci_domains_are_those_of_a_virtual_machine() -> None:
    gpu = Gpu("0011:00:00.0", address="0011:00:00.0", vendor="amd")
    nic = Nic("mlx5_0", "0010:00:00.0", model="ConnectX", rdma=True, gdr=True)
    devices = tuple(PciDevice(address) for address in ("0010:00:00.0", "0011:00:00.0"))
    machine = Machine(gpus=(gpu,), nics=(nic,), pci=devices, paths={(gpu.key, nic.key): "PHB"})
    assert found(machine).state == "unknown"
    below_a_bridge = replace(machine, pci=(replace(devices[0], parent="0010:00:01.0"), PciDevice("0010:00:01.0"), devices[1]))
    assert found(below_a_bridge).state == "capable; use not checked"


def test_a_grace_cpu_may_carry_it() -> None:
    why = "SYS apart on PCIe; C2C to the CPU may carry it, if the NIC is on the same CPU"
    assert found(dgx(), 4, architecture="aarch64") == Capability("unknown", why)


@pytest.mark.parametrize(
    "gpu", [{"memory_numa": 2}, {"c2c_links": 5}, {"model": "NVIDIA GB200"}, {"model": "NVIDIA GH200 480GB"}, {"model": "GB10"}], ids=str
)
def test_a_gpu_that_c2c_joins_to_its_cpu_is_not_called_impossible(gpu: dict[str, Any]) -> None:
    machine = dgx()
    coherent = replace(machine, gpus=(replace(machine.gpus[0], **gpu), *machine.gpus[1:]))
    assert found(coherent, 4).state == "unknown"
    assert found(machine, 4).state == "capable, not used"


def test_a_virtual_machine_hides_how_far_apart_they_are() -> None:
    stated = replace(dgx(), paths={(dgx().gpus[0].key, "mlx5_4"): "PHB"})
    assert found(stated, 4).state == "capable, not used"
    virtual = found(stated, 4, virtualization="kvm")
    assert virtual.state == "unknown" and "(kvm)" in virtual.why


def test_a_card_without_an_rdma_device_is_not_capable() -> None:
    machine = dgx()
    bare = replace(machine, nics=(replace(machine.nics[0], rdma=False, rdma_missing=True),))
    assert found(bare).state == "not capable" and "no RDMA device" in found(bare).why


@pytest.mark.parametrize(
    ("system", "state", "why"),
    [
        ({"dma_buf": False}, "not capable", f"{NO_MODULE}, and the driver exports no dma-buf"),
        ({"dma_buf": True, "kernel": "5.4.0-150"}, "not capable",
            f"{NO_MODULE}, and kernel 5.4.0-150 is older than 5.12, which dma-buf needs"),
        ({"dma_buf": None}, "unknown", f"{NO_MODULE}, and dma-buf support is unknown"),
        ({"dma_buf": True, "kernel": None}, "unknown", f"{NO_MODULE}, and the kernel version is unknown"),
        ({"peer_memory": None, "dma_buf": None}, "unknown", "peer-memory modules were not looked at, and dma-buf support is unknown"),
        ({"peer_memory": None, "dma_buf": False}, "unknown", "peer-memory modules were not looked at, and the driver exports no dma-buf"),
        ({"container": "docker"}, "unknown", "inside a container (docker): its view of the host's modules proves nothing"),
        ({"peer_memory": ("amdkfd",), "dma_buf": False}, "not capable", f"{NO_MODULE}, and the driver exports no dma-buf"),
    ],
)  # fmt: skip
def test_without_peer_memory(system: dict[str, Any], state: str, why: str) -> None:
    assert found(dgx(), **{"peer_memory": (), **system}) == Capability(state, why)  # type: ignore[arg-type]


@pytest.mark.parametrize("module", ["nvidia_peermem", "nv_mem", "nv_mem_nc", "nv_peer_mem", "efa_nv_peermem"])
def test_each_module_for_nvidia_counts(module: str) -> None:
    assert found(dgx(), peer_memory=("x", module), dma_buf=False) == Capability(
        "capable; use not checked", f"{module} is loaded, PIX apart"
    )


def test_a_loaded_module_is_no_proof_against_nccls_word() -> None:
    """nccl#1537: nvidia_peermem is loaded, and NCCL prints "GPU Direct RDMA Disabled"."""
    machine = dgx()
    words = "nccl.log: GPU Direct RDMA Disabled for mlx5_0"
    assert capability(machine, machine.gpus[0], machine.nics[0], refusal=words) == Capability("not capable", words)
    assert capability(machine, machine.gpus[0], machine.nics[0], refusal=words, proof="lines").state == "proven used"


def test_amd_has_its_own_module() -> None:
    machine = dgx()
    machine = replace(machine, gpus=tuple(replace(gpu, vendor="amd") for gpu in machine.gpus))
    assert found(machine, peer_memory=("amdkfd",)).why.startswith("amdkfd ")
    assert found(machine, peer_memory=("nvidia_peermem",), dma_buf=False).state == "not capable"


def test_the_sources_own_word_is_taken_and_named() -> None:
    """NCCL's topology file has gdr=0 or 1 for each NIC; the modules of this machine do not matter then."""
    machine = replace(pcie_box(), sources=("NCCL topology XML topo.xml",), paths={("0000:03:00.0", "mlx5_0"): "PXB"})
    yes = replace(machine, nics=(replace(machine.nics[0], gdr=True),))
    assert found(yes).state == "capable; use not checked" and "topo.xml has gdr=1" in found(yes).why
    no = replace(machine, nics=(replace(machine.nics[0], gdr=False),), origins={"nics/mlx5_0/gdr": "NCCL topology XML b.xml"})
    assert found(no).state == "not capable" and "b.xml has gdr=0" in found(no).why


def test_nics_that_are_none() -> None:
    assert found(pcie_box(), 1).state == "not capable"
    bare = replace(dgx(), nics=(Nic("0000:1a:00.0", "0000:1a:00.0"),))
    assert found(bare).state == "unknown" and "RDMA device" in found(bare).why
    bond = replace(dgx(), nics=(Nic("mlx5_bond_0", rdma=True, virtual="bond"),))
    assert found(bond).state == "not capable" and "(bond)" in found(bond).why


def test_an_unknown_path_leaves_it_unknown() -> None:
    machine = replace(dgx(), pci=())
    assert found(machine).state == "unknown" and "no PCI tree" in found(machine).why
