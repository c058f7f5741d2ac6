"""CB2511 to CB2534: a log with the fault gets its code, and a healthy log with the same kind of lines gets none."""

import re

import pytest
from msgspec.structs import replace

from collbench.machine.model import Gpu, GpuLink, Machine
from collbench.machine.readers.nccl_log import NcclLog, read, read_file
from collbench.plugins.joblogs.findings import RULES, failures
from tests.doctor.machines import Fault, codes, found, with_system
from tests.machine.machines import dgx, laptop
from tests.machines import captures

SEND, RECEIVE = "Channel 00/0 : 0[0] -> 8[0] [send] via {}", "Channel 00/0 : 8[0] -> 0[0] [receive] via {}"
DIRECT = (SEND.format("NET/IB/0/GDRDMA"), RECEIVE.format("NET/IB/0/GDRDMA"))
TWO_NODES = "comm 0x5 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"
ONE_NODE = "comm 0x5 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0"
CHANNELS = "16 coll channels, 16 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer"
FEW = "2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer"
NO_NVLS = "NVLS multicast support is not available on dev 0"
H100 = "#  Rank  0 Group  0 Pid   4711 on   n1 device  {} [0000:65:00] NVIDIA H100 80GB HBM3"
BOARD = [H100.format(place) for place in range(8)]
NO_VERBS = "Failed to open libibverbs.so[.1]"
RAILS = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"
SHARP = "NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB eth0:10.0.0.1<0>"
ROCE = "NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"
SWITCHED = (H100.format(0), "              + NVL[370.8] - NVS/0-0")
RACK = "MNNVL busId 0x901000 fabric UUID {} cliqueId {} state {} healthMask 0x55"
VERSION_2_18, VERSION_2_22 = "NCCL version 2.18.6+cuda12.1", "NCCL version 2.22.3+cuda12.4"
LEFT_OUT = "NET/Plugin: Failed to find ncclNetPlugin_v6 symbol."
NO_PROFILER = "PROFILER/Plugin: Could not find: libnccl-profiler.so. "
RCCL = "RCCL version : 2.21.5-HEAD:1a2b3c4"


def log(*lines: str) -> NcclLog:
    """A log of these messages; "host| message" is from that host; a line that begins with # or names a version has no prefix."""
    text = []
    for line in lines:
        host, bar, message = line.partition("| ")
        alone = line.startswith(("#", "NCCL version", "RCCL version"))
        warned = "WARN" if (message or line).startswith(("Missing", "NUMA auto", "MNNVL (")) else "INFO"
        text.append(line if alone else f"{host if bar else 'n1'}:1:2 [0] NCCL {warned} {message if bar else line}")
    return read("\n".join(text), "nccl.log")


def domain(*uuids: str, state: int = 3, nvlink: int = 0, clique: str = "0x7") -> list[str]:
    """The lines of a job on nodes of these NVLink domains."""
    job = f"comm 0x5 rank 0 nRanks 8 nNodes {len(uuids)} localRanks 4 localRank 0 MNNVL {nvlink}"
    return [job, *(f"n{place}| {RACK.format(uuid, clique, state)}" for place, uuid in enumerate(uuids))]


FAULTS: list[tuple[str, str, list[str], list[list[str]]]] = [
    ("InfiniBand and RoCE connections", "CB2517", [RAILS, *DIRECT, SEND.format("NET/IB/2/GDRDMA")],
        [[RAILS, *DIRECT], [ROCE, *DIRECT], [SHARP, *DIRECT]]),
    ("InfiniBand and RoCE listed", "CB2517", [RAILS], [[RAILS.replace("RoCE", "IB")]]),
    ("no NVLS behind NVSwitches", "CB2518", [*SWITCHED, NO_NVLS],
        [[*SWITCHED, NO_NVLS.replace("not ", "")], [NO_NVLS], [SWITCHED[0], NO_NVLS],
            [SWITCHED[0].replace("H100 80GB HBM3", "A100-SXM4-80GB"), SWITCHED[1], NO_NVLS],
            [SWITCHED[0].replace("80GB HBM3", "PCIe"), SWITCHED[1], NO_NVLS],
            [SWITCHED[0].replace("80GB HBM3", "NVL"), SWITCHED[1], NO_NVLS]]),
    ("no NVLS on a full board", "CB2518", [*BOARD, NO_NVLS], [[*BOARD[:4], NO_NVLS]]),
    ("an NVLink domain that is not used", "CB2519", domain("4ac1.77be", "4ac1.77be"),
        [domain("4ac1.77be", "4ac1.77be", nvlink=1), domain("0.0", "0.0"), domain("4ac1.77be", "4ac1.77be")[:2],
            domain("4ac1.77be", "5bd2.88cf"), [*domain("4ac1.77be", "4ac1.77be")[:2], f"n1| {RACK.format('4ac1.77be', '0x8', 3)}"]]),
    ("an NVLink domain that fell back", "CB2519",
        [*domain("4ac1.77be", "4ac1.77be", nvlink=1), FEW,
         "Check P2P Type isAllDirectP2p 0 directMode 0 isAllCudaP2p 0"],
        [[*domain("4ac1.77be", "4ac1.77be", nvlink=1), CHANNELS, "Check P2P Type isAllDirectP2p 1 directMode 0 isAllCudaP2p 1"]]),
    ("IMEX that does not work", "CB2519", ["MNNVL (cliqueSize 8) is available but not working on this system."],
        [["MNNVL 1 cliqueId 7 cliqueSize 8 cliqueRank 0 nvlDomainSize 8"]]),
    ("an emulated bridge", "CB2520", ["+ PCI[0.2] - PCI/0-65000 (104c823200000000)"],
        [["+ PCI[24.0] - PCI/0-65000 (1000c01010000000)", "              + PCI[0.2] - NIC/0-67000"]]),
    ("libibverbs is missing", "CB2521", [NO_VERBS, TWO_NODES],
        [[NO_VERBS, ONE_NODE], [NO_VERBS, TWO_NODES, SEND.format("NET/Libfabric/0/GDRDMA"), RECEIVE.format("NET/Libfabric/0/GDRDMA")],
         ["Count not open libibverbs.so", TWO_NODES]]),
    ("a plug-in that does not fit", "CB2522", [LEFT_OUT, "Using network IB"],
        [[LEFT_OUT, "NET/Plugin: Loaded net plugin NCCL RDMA Plugin v5 (v5)"], ["NET/Plugin: Failed to find ncclNetPlugin_v10 symbol."],
         ["NET/Plugin: Could not find: libnccl-net.so. "]]),
    ("SHARP that is not used", "CB2523", [SHARP, TWO_NODES, CHANNELS, *DIRECT],
        [[SHARP, TWO_NODES, CHANNELS, *DIRECT, "CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA"], [SHARP, ONE_NODE, CHANNELS],
         [SHARP, TWO_NODES, *DIRECT], [SHARP.replace("/SHARP", ""), TWO_NODES, CHANNELS, *DIRECT]]),
    ("GID 0 of RoCE", "CB2524", [VERSION_2_18, ROCE, "NCCL_SOCKET_IFNAME set by environment to eth0", *DIRECT],
        [[VERSION_2_22, ROCE, "NCCL_SOCKET_IFNAME set by environment to eth0", *DIRECT], [VERSION_2_18, ROCE, *DIRECT],
         [VERSION_2_18, ROCE, "NCCL_IB_GID_INDEX set by environment to 3.", *DIRECT],
         [VERSION_2_18, ROCE.replace("RoCE", "IB"), "NCCL_SOCKET_IFNAME set by environment to eth0", *DIRECT]]),
    ("no profiler plug-in", "CB2525", [NO_PROFILER, TWO_NODES],
        [[NO_PROFILER, ONE_NODE], [NO_PROFILER], ["PROFILER/Plugin: Loaded Inspector (v4)", TWO_NODES]]),
    ("a forced protocol", "CB2526", ["NCCL_PROTO set by environment to LL", *DIRECT],
        [["NET/OFI Adding NCCL_PROTO=simple to environment", "NCCL_PROTO set by environment to simple", *DIRECT],
         ["NCCL_IB_GID_INDEX set by environment to 3.", *DIRECT], [RCCL, "NCCL_MIN_NCHANNELS set by environment to 112.", *DIRECT]]),
    ("RCCL without iommu=pt", "CB2531", [RCCL, 'Missing "iommu=pt" from kernel command line which can lead to hang!'],
        [[RCCL, "Kernel version: 6.8.0-136-generic"]]),
    ("RCCL without fine grain", "CB2532", [RCCL, 'Missing "HSA_FORCE_FINE_GRAIN_PCIE=1" from environment which can lead to hang!'],
        [[RCCL, "ROCr version 1.18"]]),
    ("RCCL with NUMA balancing", "CB2533", [RCCL, "NUMA auto balancing enabled which can lead to variability in the RCCL performance!"],
        [[RCCL, "NUMA node 0"]]),
    ("RCCL without peer memory", "CB2534",
        [RCCL, "Using network IB", "GDRDMA not enabled. Could not find memory_peers directory or peer_memory symbol"],
        [[RCCL, "Using network IB", ONE_NODE, "GDRDMA not enabled. Could not find memory_peers directory or peer_memory symbol"],
         [RCCL, "Using network Socket x", "Found /sys/kernel/mm/memory_peers/amdkfd/version"],
         [RCCL, *DIRECT, "GDRDMA not enabled. Could not find memory_peers directory or peer_memory symbol"]]),
]  # fmt: skip


@pytest.mark.parametrize(("code", "faulty"), [each[1:3] for each in FAULTS], ids=[each[0] for each in FAULTS])
def test_a_fault_gets_its_code_and_no_other(code: str, faulty: list[str]) -> None:
    assert codes(logs=(log(*faulty),)) == [code]


@pytest.mark.parametrize(
    "healthy",
    [lines for each in FAULTS for lines in each[3]],
    ids=[f"{each[0]} {place}" for each in FAULTS for place, _ in enumerate(each[3])],
)
def test_a_healthy_log_gets_none(healthy: list[str]) -> None:
    assert set(codes(logs=(log(*healthy),))) <= {"CB2511"}  # "Using network Socket" of one sample


def test_every_rule_has_a_sample_and_an_instruction() -> None:
    heads = [(rule.__doc__ or "").partition(":")[0] for rule in RULES if rule is not failures]  # its messages are in test_log_messages
    codes = {code for head in heads for code in re.findall(r"CB2\d{3}", head)}
    assert {code for _, code, _, _ in FAULTS} == {code for code in codes if code >= "CB2517"}
    findings = [found(Machine("n1"), code, logs=(log(*faulty),)) for _, code, faulty, _ in FAULTS]
    assert all(finding.evidence.startswith("nccl.log: ") and finding.remedy and not finding.remedy.endswith(".") for finding in findings)


def test_faults_weigh_by_their_devices_settings_and_warnings() -> None:
    assert found(Machine("n1"), "CB2517", logs=(log(RAILS),)).severity == "note"
    used = found(Machine("n1"), "CB2517", logs=(log(RAILS, *DIRECT, SEND.format("NET/IB/2/GDRDMA")),))
    assert (used.severity, used.evidence) == ("warning", "nccl.log: InfiniBand: mlx5_0; RoCE: mlx5_2")
    assert used.remedy.startswith("if mlx5_2 is not part of the compute network: NCCL_IB_HCA==mlx5_0 ")
    lines = [*domain("4ac1.77be", "4ac1.77be"), "NCCL_MNNVL_ENABLE set by environment to 0."]
    finding = found(Machine("n1"), "CB2519", logs=(log(*lines),))
    assert finding.evidence.endswith("NCCL_MNNVL_ENABLE=0 is set")
    assert finding.remedy == "unset NCCL_MNNVL_ENABLE"
    finding = found(dgx(), "CB2511", logs=(log("dgx01| Using network Socket", f"dgx01| {NO_VERBS}"),))
    assert "libibverbs cannot be loaded" in finding.evidence
    assert finding.remedy.startswith("install libibverbs")
    finding = found(dgx(), "CB2511", logs=(log("dgx01| Using network Socket", "dgx01| NCCL_IB_DISABLE set by environment to 1."),))
    assert finding.remedy == "unset NCCL_IB_DISABLE"
    finding = found(Machine("n1"), "CB2511", logs=(log(RCCL, "NET/Socket : Using [0]eth0:10.0.0.1<0>", "Using network Socket"),))
    assert "TCP sockets" in finding.what
    lines = log(RCCL, 'Missing "iommu=pt" from kernel command line which can lead to hang!')
    assert "CB2531" not in codes(with_system(Machine("n1"), iommu="off"), logs=(lines,))
    assert "CB2531" in codes(with_system(Machine("n1"), iommu="translating"), logs=(lines,))
    assert "CB2531" in codes(with_system(Machine("n2"), iommu="off"), logs=(lines,))
    # The log names no GPU, the snapshot of the same machine does; four GPUs without NVSwitch have none.
    gpus = tuple(Gpu(f"gpu{place}", place, architecture="sm_90") for place in range(4))
    switched = Machine("n1", gpus=gpus, gpu_links=tuple(GpuLink(gpu.key, "switch", 18) for gpu in gpus))
    direct = replace(switched, gpu_links=tuple(GpuLink(gpu.key, gpus[place - 1].key, 6) for place, gpu in enumerate(gpus)))
    assert "CB2518" in codes(switched, logs=(log(NO_NVLS),))
    assert "CB2518" not in codes(direct, logs=(log(NO_NVLS),))
    assert "CB2518" not in codes(replace(switched, hostname="n2"), logs=(log(NO_NVLS),))
    lines = (RCCL, 'Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!')
    other = "n1:1:2 [0] /build/hipify/src/graph/xml.cc:57 NCCL WARN Could not find real path of /sys/class/x"
    warned = read(f"{RCCL}\nn1:1:2 [0] NCCL WARN {lines[1]}\n{other}\n", "rccl.log")
    finding = found(Machine("n1"), "CB2516", logs=(warned,))
    assert (finding.what, "iommu" in finding.evidence) == ("RCCL prints 1 warning", False)


@pytest.mark.parametrize(
    "line", ["NET/OFI Need to force simple protocol: GDR not supported", "#  Rank  0 Pid 7 on n1 device  0 [0000:0f:00] NVIDIA GB10"]
)
def test_staging_is_not_severe_where_the_hardware_has_no_gpudirect(line: str) -> None:
    staged = SEND.format("NET/Libfabric/0")
    assert found(Machine("n1"), "CB2512", logs=(log(staged),)).severity == "severe"
    assert found(Machine("n1"), "CB2512", logs=(log(staged, line),)).severity == "warning"


@pytest.mark.parametrize("line", ["Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", ONE_NODE])
def test_a_job_on_one_node_does_not_send_over_tcp(line: str) -> None:
    assert "CB2511" not in codes(logs=(log("NET/Socket : Using [0]eth0:10.0.0.1<0>", "Using network Socket", line),))


# The connections of a log of dgx01.


def dgx_log(*lines: str) -> NcclLog:
    return log(*(f"dgx01| {line}" for line in lines))


SHM = ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "Ring 00 : 2[0] -> 3[0] via direct shared memory")
SPEED = "Could not get speed from /sys/class/net/eth1/speed. Defaulting to 10 Gbps."
# NCCL prints a line for each pair; "Disabled" with a distance is normal while other pairs are enabled.
FAR = "GPU Direct RDMA Disabled for GPU 0 / HCA {} (distance 5 > 4)"
NEAR = "GPU Direct RDMA Enabled for GPU 0 / HCA 0 (distance 3 <= 4), read 1"
OF_CONNECTIONS = [
    (Fault("TCP beside RDMA", "CB2511", "severe", dgx(), ("\nnccl.log: 1 connection via NET/Socket; ",)),
     ["Using network Socket", SEND.format("NET/Socket/0")]),
    (Fault("TCP without RDMA", "CB2511", "warning", laptop()), ["NET/Socket : Using [0]eth0:10.0.0.1<0>", "Using network Socket"]),
    (Fault("staged", "CB2512", "severe", dgx(), ("\nall RDMA connections are staged",)), [SEND.format("NET/IBext_v8/4")]),
    (Fault("staged in part", "CB2512", "warning", dgx(), ("\n1 of 2 RDMA connections are staged",)),
     [SEND.format("NET/IB/4"), SEND.format("NET/IB/3/GDRDMA")]),
    (Fault("reported as disabled", "CB2512", "warning", dgx(), ("\nNCCL reports GPUDirect RDMA as disabled",)),
     ["Using network IB", "GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"]),
    (Fault("too far for all", "CB2512", "warning", dgx()), ["Using network IB", FAR.format(4)]),
    (Fault("a plug-in with a space in its name", "CB2512", "severe", dgx(), ("NET/AWS Libfabric/0",)),
     [SEND.format("NET/AWS Libfabric/0")]),
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
    "a plug-in with a space in its name": [SEND.format("NET/AWS Libfabric/0/GDRDMA"), RECEIVE.format("NET/AWS Libfabric/0/GDRDMA")],
    "no dma-buf beside efa_nv_peermem": ["NET/OFI Support for DMA-BUF registrations: false", "Using network Libfabric"],
}  # fmt: skip


@pytest.mark.parametrize(("fault", "lines"), OF_CONNECTIONS, ids=[fault.name for fault, _ in OF_CONNECTIONS])
def test_a_fault_of_connections_is_found_and_no_other(fault: Fault, lines: list[str]) -> None:
    fault.check(dgx_log(*lines))
    assert codes(fault.machine, logs=(dgx_log(*lines),)) == [fault.code]


@pytest.mark.parametrize("lines", HEALTHY.values(), ids=HEALTHY)
def test_connections_without_a_fault(lines: list[str]) -> None:
    assert not codes(logs=(dgx_log(*lines),))
    assert not codes(dgx(), logs=(dgx_log(*lines),))


def test_a_finding_names_its_host_and_weighs_staging_and_warnings() -> None:
    assert found(dgx(), "CB2511", logs=(dgx_log("Using network Socket", SEND.format("NET/Socket/0")),)).hostname == "dgx01"
    foreign = found(dgx(), "CB2511", logs=(read("cloud7:1:2 [0] NCCL INFO Using network Socket", "nccl.log"),))
    assert (foreign.severity, foreign.hostname) == ("warning", "cloud7")  # the RDMA of dgx01 is not that of cloud7
    assert "CB2512" not in codes(dgx(), logs=(dgx_log(SEND.format("NET/GPUDirectTCPX_v7/0")),))
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
