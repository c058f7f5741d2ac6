"""The states of GPUDirect RDMA in the doctor's output: one line each, exceptions by name."""

from __future__ import annotations

from dataclasses import replace

from collbench.machine.doctor.gpus import states
from collbench.machine.model import Machine
from collbench.machine.readers.nccl_log import NcclLog, read
from tests.doctor.machines import changed, with_port, with_system
from tests.machine.machines import dgx, laptop

CAPABLE = "nvidia_peermem is loaded, PIX apart"


def log(*lines: str, host: str = "dgx01") -> NcclLog:
    return read("\n".join(f"{host}:1:2 [0] NCCL INFO {line}" for line in lines), "nccl.log")


def connected(*gpus: int, suffix: str = "/GDRDMA") -> list[str]:
    ways = ("{0}[{0}] -> {1}[{0}] [send]", "{1}[{0}] -> {0}[{0}] [receive]")
    return [f"Channel 00/0 : {way.format(gpu, gpu + 8)} via NET/IB/{gpu}{suffix}" for gpu in gpus for way in ways]


def test_capable() -> None:
    assert states([dgx()]) == [f"GPUDirect RDMA capable; use not checked: 8 of 8 GPUs ({CAPABLE})"]


def test_proven_of_each_gpu_by_its_own_lines() -> None:
    proof = "nccl.log has its [send] and [receive] lines via GDRDMA"
    assert states([dgx()], [log(*connected(*range(8)))]) == [f"GPUDirect RDMA proven used: 8 of 8 GPUs ({proof})"]
    most = states([dgx()], [log(*connected(0, 1, 2, 3, 4, 6, 7), *connected(5, suffix=""))])
    assert most == [
        f"GPUDirect RDMA proven used: 7 of 8 GPUs ({proof})",
        "GPUDirect RDMA capable, not used: 1 of 8 GPUs (GPU 5 (0000:9b:00.0): nccl.log shows its connections staged through the host)",
    ]


def test_nccl_reports_no_support_though_a_module_is_loaded() -> None:
    refused = log(*(f"NET/IB : GPU Direct RDMA Disabled for HCA {place} 'mlx5_{place}'" for place in range(8)))
    assert states([dgx()], [refused])[0].startswith("GPUDirect RDMA not capable: 8 of 8 GPUs (")
    assert "Disabled for mlx5_0" in states([dgx()], [refused])[0]


def test_not_capable_and_unknown() -> None:
    none = "no peer-memory module for this GPU is loaded, and the driver exports no dma-buf"
    assert states([with_system(dgx(), peer_memory=(), dma_buf=False)]) == [f"GPUDirect RDMA not capable: 8 of 8 GPUs ({none})"]
    inside = "inside a container (docker): its view of the host's modules proves nothing"
    assert states([with_system(dgx(), container="docker")]) == [f"GPUDirect RDMA unknown: 8 of 8 GPUs ({inside})"]


def test_the_odd_ones_of_a_job_are_named() -> None:
    bare = with_system(replace(dgx(), hostname="dgx02", gpus=dgx().gpus[:1]), peer_memory=(), dma_buf=False)
    assert states([dgx(), bare])[1].startswith("GPUDirect RDMA not capable: 1 of 9 GPUs (dgx02 ")


def test_a_log_of_another_host_proves_nothing() -> None:
    lines = connected(*range(8))
    assert states([dgx()], [log(*lines, host="dgx02")]) == states([dgx()])
    assert states([replace(dgx(), hostname="dgx01.example.org")], [log(*lines)])[0].startswith("GPUDirect RDMA proven used: 8")
    nameless = replace(dgx(), hostname=None)
    assert states([nameless], [log(*lines)])[0].startswith("GPUDirect RDMA proven used: 8")
    assert states([nameless, nameless], [log(*lines)])[0].startswith("GPUDirect RDMA capable; use not checked: 16")


def test_nothing_to_report() -> None:
    assert states([laptop(), Machine()]) == []
    assert states([Machine(gpus=dgx().gpus)]) == []


def test_a_gpu_whose_nic_is_down_is_reported_with_the_next_one() -> None:
    down = with_port(changed(dgx(), "nics", "mlx5_1", ports=(replace(dgx().nics[1].ports[0], state="down"),)), "mlx5_0", state="down")
    assert states([down])[0].startswith("GPUDirect RDMA capable, not used: 2 of 8 GPUs (GPU 0 (0000:18:00.0) and GPU 1 (0000:19:00.0): ")
