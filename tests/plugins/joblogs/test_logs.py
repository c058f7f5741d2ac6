"""CB2511 to CB2516: findings out of NCCL's log."""

import pytest

from collbench.machine.readers.nccl_log import NcclLog, read, read_file
from tests.doctor.machines import Fault, codes, found
from tests.machine.machines import dgx, laptop
from tests.machines import captures


def log(*lines: str) -> NcclLog:
    return read("\n".join(f"dgx01:1:2 [0] NCCL INFO {line}" for line in lines), "nccl.log")


SEND, RECEIVE = "Channel 00/0 : 0[0] -> 8[0] [send] via ", "Channel 00/0 : 8[0] -> 0[0] [receive] via "
DIRECT = (f"{SEND}NET/IB/0/GDRDMA", f"{RECEIVE}NET/IB/0/GDRDMA")
SHM = ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "Ring 00 : 2[0] -> 3[0] via direct shared memory")
SPEED = "Could not get speed from /sys/class/net/eth1/speed. Defaulting to 10 Gbps."
# NCCL prints a line for each pair; "Disabled" with a distance is normal while other pairs are enabled.
FAR = "GPU Direct RDMA Disabled for GPU 0 / HCA {} (distance 5 > 4)"
NEAR = "GPU Direct RDMA Enabled for GPU 0 / HCA 0 (distance 3 <= 4), read 1"
FAULTS = [
    (Fault("TCP beside RDMA", "CB2511", "severe", dgx(), ("\nnccl.log: 1 connection via NET/Socket; ",)),
     ["Using network Socket", f"{SEND}NET/Socket/0"]),
    (Fault("TCP without RDMA", "CB2511", "warning", laptop()), ["NET/Socket : Using [0]eth0:10.0.0.1<0>", "Using network Socket"]),
    (Fault("staged", "CB2512", "severe", dgx(), ("\nall RDMA connections are staged",)), [f"{SEND}NET/IBext_v8/4"]),
    (Fault("staged in part", "CB2512", "warning", dgx(), ("\n1 of 2 RDMA connections are staged",)),
     [f"{SEND}NET/IB/4", f"{SEND}NET/IB/3/GDRDMA"]),
    (Fault("reported as disabled", "CB2512", "warning", dgx(), ("\nNCCL reports GPUDirect RDMA as disabled",)),
     ["Using network IB", "GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"]),
    (Fault("too far for all", "CB2512", "warning", dgx()), ["Using network IB", FAR.format(4)]),
    (Fault("a plug-in with a space in its name", "CB2512", "severe", dgx(), ("NET/AWS Libfabric/0",)), [f"{SEND}NET/AWS Libfabric/0"]),
    (Fault("one direction", "CB2513", "note", dgx(), ("[send] alone",)), DIRECT[:1]),
    (Fault("shared memory", "CB2514", "warning", dgx(), ("2 connections via SHM",)), [*DIRECT, *SHM]),
    (Fault("a speed that NCCL made up", "CB2515", "warning", dgx(), ("\nNCCL takes eth1 ",)), [*DIRECT, SPEED]),
]  # fmt: skip
HEALTHY = {
    "GPUDirect RDMA": ["NET/Socket : Using [0]eth0:10.0.0.1<0>", "Using network IB", "GPU Direct RDMA Enabled for HCA 0 'mlx5_0'", *DIRECT,
                       "Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM"],
    "a HCA disabled and yet proven": ["GPU Direct RDMA Disabled for HCA 1 'mlx5_1'", *DIRECT],
    "NICs far from one GPU": ["Using network IB", NEAR, FAR.format(4), FAR.format(5)],
    "a HCA both enabled and disabled, of a GB10": [
        "Using network IB", "GPU Direct RDMA Enabled for HCA 0 'rocep1s0f0'", "GPU Direct RDMA Disabled for HCA 0 'rocep1s0f0'"],
    "a plug-in with a space in its name": [f"{SEND}NET/AWS Libfabric/0/GDRDMA", f"{RECEIVE}NET/AWS Libfabric/0/GDRDMA"],
    "no dma-buf beside efa_nv_peermem": ["NET/OFI Support for DMA-BUF registrations: false", "Using network Libfabric"],
}  # fmt: skip


@pytest.mark.parametrize(("fault", "lines"), FAULTS, ids=[fault.name for fault, _ in FAULTS])
def test_a_fault_is_found_and_no_other(fault: Fault, lines: list[str]) -> None:
    fault.check(log(*lines))
    assert codes(fault.machine, logs=(log(*lines),)) == [fault.code]


@pytest.mark.parametrize("lines", HEALTHY.values(), ids=HEALTHY)
def test_what_is_no_fault(lines: list[str]) -> None:
    assert not codes(logs=(log(*lines),))
    assert not codes(dgx(), logs=(log(*lines),))


def test_a_finding_names_its_host_and_weighs_staging_and_warnings() -> None:
    assert found(dgx(), "CB2511", logs=(log("Using network Socket", f"{SEND}NET/Socket/0"),)).hostname == "dgx01"
    foreign = found(dgx(), "CB2511", logs=(read("cloud7:1:2 [0] NCCL INFO Using network Socket", "nccl.log"),))
    assert (foreign.severity, foreign.hostname) == ("warning", "cloud7")  # the RDMA of dgx01 is not that of cloud7
    assert "CB2512" not in codes(dgx(), logs=(log(f"{SEND}NET/GPUDirectTCPX_v7/0"),))
    warned = read("n1:1:2 [0] graph/xml.h:381 NCCL WARN Error : too many XML nodes (max 256)", "x.log")
    finding = found(dgx(), "CB2516", logs=(warned,))
    assert (finding.severity, finding.evidence) == ("note", "x.log: 'Error : too many XML nodes (max 256)'")


@pytest.mark.parametrize(("name", "expected"), [
    ("log-gcp-a3-tcp", ["CB2511"]), ("log-h100-nvls-available", []), ("log-h20-gdrdma-cumem", []), ("log-ibext-nogdr", ["CB2512"]),
    ("log-ncc247-ib-nogdr", []), ("log-old-socket-shm", ["CB2511", "CB2514"]), ("log-p5-efa-gdrdma-2304", ["CB2516"]),
    ("log-p5en-efa-ofi", []), ("log-roce-gdr-disabled", ["CB2512"]), ("log-rtx4090-graph", []),
])  # fmt: skip
def test_public_logs(name: str, expected: list[str]) -> None:
    assert codes(logs=(read_file(captures.folder(name) / "nccl.log"),)) == expected
