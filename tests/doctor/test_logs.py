"""CB2511 to CB2516: findings out of NCCL's log."""

from __future__ import annotations

import pytest

from collbench.machine.readers.nccl_log import NcclLog, read
from tests.doctor.machines import codes, found
from tests.machine.machines import dgx, laptop


def log(*lines: str) -> NcclLog:
    """A log of these messages."""
    return read("\n".join(f"dgx01:1:2 [0] NCCL INFO {line}" for line in lines), "nccl.log")


SEND, RECEIVE = "Channel 00/0 : 0[0] -> 8[0] [send] via ", "Channel 00/0 : 8[0] -> 0[0] [receive] via "
HEALTHY = log(
    "NET/Socket : Using [0]eth0:10.0.0.1<0>", "Using network IB", "GPU Direct RDMA Enabled for HCA 0 'mlx5_0'",
    f"{SEND}NET/IB/0/GDRDMA", f"{RECEIVE}NET/IB/0/GDRDMA", "Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM",
)  # fmt: skip


def test_a_healthy_log() -> None:
    assert not codes(dgx(), logs=(HEALTHY,))


def test_tcp_beside_rdma_is_severe() -> None:
    finding = found(dgx(), "CB2511", logs=(log("Using network Socket", f"{SEND}NET/Socket/0"),))
    assert (finding.severity, finding.hostname) == ("severe", "dgx01")
    assert finding.evidence.startswith("nccl.log: 1 connection via NET/Socket; ")


def test_tcp_without_rdma_is_a_warning() -> None:
    assert found(laptop(), "CB2511", logs=(log("NET/Socket : Using [0]eth0:10.0.0.1<0>", "Using network Socket"),)).severity == "warning"


def test_the_rdma_of_a_machine_that_wrote_no_line_is_no_reproach() -> None:
    foreign = read("cloud7:1:2 [0] NCCL INFO Using network Socket", "nccl.log")
    finding = found(dgx(), "CB2511", logs=(foreign,))
    assert (finding.severity, finding.hostname) == ("warning", "cloud7")


@pytest.mark.parametrize(
    ("lines", "severity", "expected"),
    [
        ([f"{SEND}NET/IBext_v8/4"], "severe", "all RDMA connections are staged"),
        ([f"{SEND}NET/IB/4", f"{SEND}NET/IB/3/GDRDMA"], "warning", "1 of 2 RDMA connections are staged"),
        (["Using network IB", "GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"], "warning", "NCCL reports GPUDirect RDMA as disabled"),
    ],
)
def test_staged_through_the_host(lines: list[str], severity: str, expected: str) -> None:
    finding = found(dgx(), "CB2512", logs=(log(*lines),))
    assert finding.severity == severity
    assert finding.what.startswith(expected)


def test_a_hca_disabled_and_yet_proven_is_no_finding() -> None:
    assert not codes(logs=(log("GPU Direct RDMA Disabled for HCA 1 'mlx5_1'", f"{SEND}NET/IB/0/GDRDMA", f"{RECEIVE}NET/IB/0/GDRDMA"),))


def test_nics_that_are_far_from_one_gpu_are_no_finding() -> None:
    """NCCL prints a line for each pair; "Disabled" with a distance is normal while other pairs are enabled."""
    far = "GPU Direct RDMA Disabled for GPU 0 / HCA {} (distance 5 > 4)"
    near = "GPU Direct RDMA Enabled for GPU 0 / HCA 0 (distance 3 <= 4), read 1"
    assert not codes(dgx(), logs=(log("Using network IB", near, far.format(4), far.format(5)),))
    assert found(dgx(), "CB2512", logs=(log("Using network IB", far.format(4)),)).severity == "warning"


def test_an_hca_both_enabled_and_disabled_names_none() -> None:
    """From a log of a GB10."""
    lines = ("GPU Direct RDMA Enabled for HCA 0 'rocep1s0f0'", "GPU Direct RDMA Disabled for HCA 0 'rocep1s0f0'")
    assert not codes(logs=(log("Using network IB", *lines),))


def test_a_plugin_with_a_space_in_its_name() -> None:
    assert not codes(logs=(log(f"{SEND}NET/AWS Libfabric/0/GDRDMA", f"{RECEIVE}NET/AWS Libfabric/0/GDRDMA"),))
    finding = found(dgx(), "CB2512", logs=(log(f"{SEND}NET/AWS Libfabric/0"),))
    assert "NET/AWS Libfabric/0" in finding.evidence


def test_without_dma_buf_there_may_be_a_module() -> None:
    """A log of EFA: "DMA-BUF registrations: false" beside efa_nv_peermem."""
    assert not codes(logs=(log("NET/OFI Support for DMA-BUF registrations: false", "Using network Libfabric"),))


def test_tcp_with_direct_access_is_no_rdma_that_is_staged() -> None:
    assert "CB2512" not in codes(dgx(), logs=(log(f"{SEND}NET/GPUDirectTCPX_v7/0"),))


def test_one_direction_is_half_a_proof() -> None:
    assert "[send] alone" in found(dgx(), "CB2513", logs=(log(f"{SEND}NET/IB/0/GDRDMA"),)).what


def test_shared_memory_between_gpus() -> None:
    both = log("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "Ring 00 : 2[0] -> 3[0] via direct shared memory")
    assert "2 connections via SHM" in found(dgx(), "CB2514", logs=(both,)).evidence


def test_a_speed_nccl_made_up() -> None:
    text = "Could not get speed from /sys/class/net/eth1/speed. Defaulting to 10 Gbps."
    assert found(dgx(), "CB2515", logs=(log(text),)).what.startswith("NCCL takes eth1 ")


def test_warnings_of_nccl() -> None:
    warned = read("n1:1:2 [0] graph/xml.h:381 NCCL WARN Error : too many XML nodes (max 256)", "x.log")
    finding = found(dgx(), "CB2516", logs=(warned,))
    assert (finding.severity, finding.evidence) == ("note", "x.log: 'Error : too many XML nodes (max 256)'")
