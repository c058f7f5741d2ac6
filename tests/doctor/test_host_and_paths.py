"""CB24xx and CB2501 to CB2504: the host, doubtful sources, and the ways between GPUs and NICs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.machine.model import Disagreement, Machine
from tests.doctor.machines import changed, codes, found, with_system
from tests.machine.machines import dgx, laptop, mesh, pcie_box


def test_little_shared_memory() -> None:
    finding = found(with_system(dgx(), shm_bytes=64 << 20, container="docker"), "CB2401")
    assert finding.severity == "warning" and "/dev/shm has 64 MiB" in finding.what
    assert not codes(with_system(dgx(), shm_bytes=1 << 30))
    assert not codes(with_system(dgx(), shm_bytes=None))


def test_a_device_at_an_unknown_numa_node() -> None:
    lost = replace(dgx(), pci=tuple(replace(device, numa=None) for device in dgx().pci))
    lost = replace(lost, gpus=(replace(lost.gpus[0], numa=None), *lost.gpus[1:]))
    assert "GPU 0000:18:00.0" in found(lost, "CB2402").what
    assert "CB2402" not in codes(with_system(lost, virtualization="kvm"))
    assert "CB2402" not in codes(replace(lost, numa_nodes=lost.numa_nodes[:1]))


def test_doubts_and_disagreements_are_notes() -> None:
    doubtful = replace(dgx(), doubts=("180000 Mb/s is not a speed of ports",), sources=("NCCL topology XML a.xml",))
    finding = found(doubtful, "CB2403")
    assert finding.severity == "note" and "NCCL topology XML a.xml" in finding.evidence
    other = replace(dgx(), disagreements=(Disagreement("gpus/gpu0/numa", "0", "Linux sysfs", "1", "a.xml"),))
    assert found(other, "CB2404").what == "gpus/gpu0/numa: 0 or 1?"


def test_many_doubts_are_cut() -> None:
    assert codes(replace(dgx(), doubts=tuple(f"doubt {number}" for number in range(100)))) == ["CB2403"] * 11


def test_gpus_far_from_all_nics() -> None:
    finding = found(pcie_box(), "CB2501")
    assert (finding.severity, finding.what.partition(":")[0]) == ("warning", "2 GPUs reach a NIC only across sockets")
    assert "GPU 2 (0000:81:00.0) is SYS away" in finding.evidence


def test_with_nvlink_to_a_gpu_beside_a_nic_it_is_a_note() -> None:
    half = replace(dgx(), nics=dgx().nics[:2])
    assert (found(half, "CB2501").severity, found(half, "CB2502").severity) == ("note", "note")


def test_some_gpus_without_a_nic_below_their_switch() -> None:
    stated = Machine(
        gpus=dgx().gpus[:2], nics=dgx().nics[:1],
        paths={(dgx().gpus[0].key, "mlx5_0"): "PIX", (dgx().gpus[1].key, "mlx5_0"): "NODE"},
    )  # fmt: skip
    finding = found(stated, "CB2502")
    assert "NODE away; GPU 0 (0000:18:00.0): PIX" in finding.evidence


def test_no_way_for_gpudirect() -> None:
    finding = found(with_system(dgx(), peer_memory=(), dma_buf=False), "CB2503")
    assert finding.severity == "severe"
    assert finding.what.startswith("NICs cannot reach the memory of GPU 0 (0000:18:00.0), GPU 1")
    assert "dma-buf" in finding.evidence


@pytest.mark.parametrize(
    "facts",
    [
        {"peer_memory": (), "dma_buf": True},
        {"peer_memory": None, "dma_buf": None},
        {"peer_memory": (), "dma_buf": False, "container": "docker"},
    ],
)
def test_gpudirect_that_is_possible_or_unknown(facts: dict[str, object]) -> None:
    assert "CB2503" not in codes(with_system(dgx(), **facts))


def test_gpus_and_nics_that_meet_at_the_host() -> None:
    finding = found(pcie_box(), "CB2504")
    assert (finding.severity, finding.remedy.split(":")[0]) == ("note", "measure with NCCL_NET_GDR_LEVEL=NODE")
    assert not {"CB2501", "CB2502", "CB2504"} & set(codes(dgx(), mesh(), laptop()))


def test_grace_reaches_nics_of_its_cpu_over_c2c() -> None:
    """A GB200 tray: GPUs and NICs at root ports of their own, which `topo -m` calls NODE; NCCL uses GPUDirect RDMA there."""
    gpus, nics = dgx().gpus[:2], dgx().nics[:2]
    tray = Machine("gb200", gpus=gpus, nics=nics, paths={(gpu.key, nic.key): "NODE" for gpu in gpus for nic in nics})
    assert codes(tray) == ["CB2504"]
    assert not codes(with_system(tray, architecture="aarch64"))


def test_the_remedy_for_amd_names_no_module_of_nvidia() -> None:
    amd = replace(dgx(), gpus=tuple(replace(gpu, vendor="amd", model="MI300X") for gpu in dgx().gpus), gpu_links=())
    assert "amdgpu" in found(with_system(amd, peer_memory=(), dma_buf=False), "CB2503").remedy
    assert "`modprobe nvidia_peermem`" in found(with_system(dgx(), peer_memory=(), dma_buf=False), "CB2503").remedy


def test_an_iommu_before_a_single_gpu_without_rdma_is_no_matter() -> None:
    lone = Machine("desk", gpus=dgx().gpus[:1])
    assert not codes(with_system(lone, iommu="translating", virtualization=""))
    assert codes(with_system(replace(lone, nics=dgx().nics[:1]), iommu="translating", virtualization="")) == ["CB2106"]


def test_a_nic_that_is_down_is_no_near_one() -> None:
    down = changed(dgx(), "nics", "mlx5_0", ports=(replace(dgx().nics[0].ports[0], state="down"),))
    down = changed(down, "nics", "mlx5_1", ports=(replace(dgx().nics[1].ports[0], state="down"),))
    assert found(down, "CB2502").what.startswith("2 GPUs without a NIC ")
