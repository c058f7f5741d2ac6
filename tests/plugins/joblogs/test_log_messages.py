"""CB2541 to CB2558: known messages of failures in logs, by readers/log_messages.toml."""

import re
from pathlib import Path

import pytest

from collbench.machine.doctor.examine import examine
from collbench.machine.doctor.finding import Finding, pages
from collbench.machine.readers.log_messages import KnownMessage, known_messages
from collbench.machine.readers.nccl_lines import LogWriter, writer_of
from collbench.machine.readers.nccl_log import NcclLog, read
from collbench.machine.readers.text import Unreadable
from collbench.plugins.joblogs.findings import examined
from collbench.plugins.joblogs.summary import CountedChoice, GpuDirect, Hca, LinkLayer, gpudirect_of, summarize, summary_lines

WARN = "n1:7:8 [2] {} NCCL WARN {}"
INFO = "n1:7:8 [2] NCCL INFO {}"
COMPLETE = "comm 0x5 rank 2 nranks 8 cudaDev 2 nvmlDev 2 busId 1000 commId 0x7 - Init COMPLETE"
RETRIES = "NET/IB: Got completion from peer 10.0.0.2<4791> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) hca mlx5_3"


def samples() -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    heading = ("", "")
    for line in Path(__file__).with_name("log_lines.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            _, code, severity = line.split()
            heading = (code, severity)
        elif line and heading[0]:
            found.append((*heading, line))
    return found


LINES = samples()


def log(*lines: str) -> NcclLog:
    return read("\n".join(lines), "job.log")


def failures(*lines: str) -> list[Finding]:
    return [finding for finding in examine([], examined([log(*lines)], [])) if "CB2541" <= finding.code <= "CB2558"]


def only(*lines: str) -> Finding:
    findings = failures(*lines)
    assert len(findings) == 1, findings
    return findings[0]


@pytest.mark.parametrize(("code", "severity", "line"), LINES)
def test_a_message_has_its_code_and_severity(code: str, severity: str, line: str) -> None:
    found = only(line)
    assert (found.code, found.severity) == (code, severity)
    assert found.evidence.startswith("job.log: line 1")
    assert found.remedy and not found.remedy.endswith(".") and "{" not in found.what


def test_each_message_is_reached_by_a_line_and_has_a_page_and_a_bounded_pattern() -> None:
    """A pattern that a line before it hides, or that fits no line, is dead."""
    reached = {logged.message for _, _, line in LINES for logged in log(line).messages}
    two_hosts = log("n1:7:8 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>", "n2:7:8 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>")
    assert reached | {logged.message for logged in two_hosts.messages} == set(known_messages())
    known = known_messages()
    assert {message.code for message in known} == {code for code in pages() if "CB2541" <= code <= "CB2558"}
    assert all(message.source and message.remedy and message.what for message in known)
    assert all(message.where == "warning" or message.hint for message in known)
    assert {message.severity for message in known} == {"severe", "warning", "note"}
    # Lines are from anywhere: nothing may repeat a wildcard without a limit.
    repetition = re.compile(rb"(?:\\[SDWsdw]|[.)\]])[*+]")
    unbounded: list[KnownMessage] = [message for message in known_messages() if repetition.search(message.pattern.pattern)]
    assert unbounded == []


def test_the_values_places_and_counts_of_messages() -> None:
    found = only(
        "[2026-03-13 22:26:02] host-01.example.com:42:43 [5] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection "
        "timed out, on dev mlx5_3:1, curr state INIT, next state RTR, local GID index 3, local GID ::ffff:192.0.2.11, "
        "remote GID ::ffff:192.0.3.12"
    )
    assert (found.severity, found.hostname) == ("severe", "host-01.example.com")
    assert "(mlx5_3:1 with GID index 3: ::ffff:192.0.2.11 does not reach ::ffff:192.0.3.12)" in found.what
    assert "NCCL_CROSS_NIC=0" in found.remedy
    assert "host-01.example.com (GPU 5)" in found.evidence
    lines = [f"{rank}: n{rank // 2}:{rank}:9 [{rank % 2}] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-{rank} to "
             f"{1000000 * (rank + 1)} bytes, error: No space left on device (28)" for rank in range(4)]  # fmt: skip
    found = only("a line of the program", *lines)
    assert found.hostname is None
    assert found.evidence.startswith("job.log: 4 lines from line 2 on of n0 (rank 0), n0 (rank 1), n1 (rank 2) and n1 (rank 3): '")
    assert "4 MB" in found.what


def test_the_kernel_pytorch_and_bytes_that_are_not_text_are_read() -> None:
    assert log("[12.3] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.").hosts == ()
    with pytest.raises(Unreadable, match="no line of NCCL"):
        log("Xid is a word", "an error: unhandled exception")
    lines = ["ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.", "Last error:",
             "Error while creating shared memory segment /dev/shm/nccl-VLzEBB (size 9637888)"]  # fmt: skip
    assert [(each.code, each.severity) for each in failures(*lines)] == [("CB2541", "severe"), ("CB2558", "note")]
    assert only(f"{SHM}\r").code == "CB2541"
    assert only(SHM.replace("nccl-1", "nccl-\udc80")).code == "CB2541"


# What lowers a severity: a process that went on, a result, and an error that is the cause of another one.

SHM = WARN.format("misc/shmutils.cc:88", "Error: failed to extend /dev/shm/nccl-1 to 96 bytes, error: No space left on device (28)")
RETRY = WARN.format("transport/net_ib/p2p.cc:700", RETRIES)
RESULT = "# Avg bus bandwidth    : 123.4"


@pytest.mark.parametrize(("lines", "severity"), [
    ([SHM], "severe"), ([SHM, INFO.format(COMPLETE)], "warning"), ([INFO.format(COMPLETE), SHM], "severe"),
    ([SHM, INFO.format(COMPLETE).replace("n1:7:", "n1:9:")], "severe"),  # another process
    ([SHM, SHM.replace("n1:7:", "n1:9:"), INFO.format(COMPLETE)], "severe"),  # one of two processes
    ([SHM, RESULT], "warning"), ([RESULT, SHM], "severe"), ([RETRY, RESULT], "warning"),
    ([RETRY, INFO.format(COMPLETE)], "severe"),  # another communicator does not repair this one
])  # fmt: skip
def test_a_job_that_went_on_lowers_the_severity(lines: list[str], severity: str) -> None:
    found = only(*lines)
    assert found.severity == severity
    assert ("went on" in found.evidence) == (severity == "warning")


def test_consequences_plugins_and_loopback_have_their_severity() -> None:
    closed = WARN.format("misc/socket.cc:57", "socketProgress: Connection closed by remote peer n2<48295>")
    ended = "n1: Test NCCL failure common.cu:1279 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '"
    assert [(each.code, each.severity) for each in failures(SHM, closed, ended)] == [
        ("CB2541", "severe"), ("CB2555", "note"), ("CB2558", "note")]  # fmt: skip
    assert [(each.code, each.severity) for each in failures(closed, ended)] == [("CB2558", "severe"), ("CB2555", "warning")]
    begin = [INFO.format("NET/OFI Initializing aws-ofi-nccl 1.21.1"), INFO.format("NET/OFI Using Libfabric version 2.3")]
    none = INFO.format("NET/OFI No eligible providers were found")
    found = only(*begin, none, WARN.format("plugin/net.cc:306", "Failed to initialize any NET plugin"))
    assert found.severity == "severe"
    assert {"aws-ofi-nccl 1.21.1", "libfabric 2.3"} <= set(found.evidence.split("; "))
    assert "No eligible providers" in found.evidence
    assert "fi_info -p" in found.remedy
    assert only(*begin, none, INFO.format("Using network IB"), INFO.format(COMPLETE)).severity == "note"
    lo = INFO.format("Bootstrap : Using lo:127.0.0.1<0>")
    assert failures(lo) == []
    assert failures(lo, lo.replace("n1:", "n1.example.com:")) == []
    assert only(lo, lo.replace("n1:", "n2:")).severity == "warning"


@pytest.mark.parametrize(("prefix", "place"), [
    ("", LogWriter("n1", 7, 2)), ("[2026-04-22 21:34:20] ", LogWriter("n1", 7, 2)), ("3: ", LogWriter("n1", 7, 2, 3)),
    ("[1,3]<stdout>:", LogWriter("n1", 7, 2, 3)), ("[1,3]<stderr>: ", LogWriter("n1", 7, 2, 3)), ("[rank3]: ", LogWriter("n1", 7, 2, 3)),
    ("[default2]:", LogWriter("n1", 7, 2)), ("2026-03-13T22:26:02.123456789Z stderr F ", LogWriter("n1", 7, 2)),
    ('{"log":"', LogWriter("n1", 7, 2)), ("Nov 29 03:24:37 login1 slurmstepd[123]: ", LogWriter("n1", 7, 2)),
    ("(RayWorker pid=9, ip=10.0.0.1) ", LogWriter("n1", 7, 2)), ("worker-1  | ", LogWriter("n1", 7, 2)),
    ("n1.hsn.example 0: ", LogWriter("n1", 7, 2)), ("\x1b[36m", LogWriter("n1", 7, 2)),
])  # fmt: skip
def test_prefixes_of_launchers_and_collectors(prefix: str, place: LogWriter) -> None:
    logged = log(f"{prefix}{SHM}\x1b[0m").messages[0]
    assert list(logged.places) == [place]
    assert writer_of(b"") == LogWriter()


LOG = """\
# nccl-tests version 2.17.6 nccl-headers=22803 nccl-library=22803
n1:7:8 [0] NCCL INFO NCCL version 2.28.3+cuda12.9
n1:7:8 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5
n1:7:8 [0] NCCL INFO NET/Plugin: Loaded net plugin IBplug v10 (v10)
n1:7:8 [0] NCCL INFO PROFILER/Plugin: Could not find: libnccl-profiler.so
n1:7:8 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [2]mlx5_2:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
n1:7:8 [0] NCCL INFO Using network IB
n1:7:8 [0] NCCL INFO NVLS multicast support is available on dev 0
n1:7:8 [0] NCCL INFO comm 0x5 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
n1:7:8 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
n1:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
n2:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
n1:7:8 [0] NCCL INFO 16 coll channels, 16 collnet channels, 24 nvls channels, 32 p2p channels, 2 p2p channels per peer
n1:7:8 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..7}
n1:7:8 [0] NCCL INFO AllReduce: 8388608 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..7}
n1:7:8 [0] NCCL INFO AllReduce: 8388608 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..7}
"""


def test_the_facts_of_a_log_and_the_provider_of_libfabric() -> None:
    found = summarize(read(LOG, "nccl.log"))
    assert (found.library, found.version, found.release, found.network) == ("NCCL", "2.28.3", "2.28.3+cuda12.9", "IB")
    assert found.hcas[0] == Hca(0, "mlx5_0", 1, LinkLayer.INFINIBAND, sharp=True)
    assert found.hcas[2] == Hca(2, "mlx5_2", 1, LinkLayer.ROCE)
    assert (found.ranks, found.nodes, found.local_ranks, found.hosts) == (16, 2, 8, ("n1", "n2"))
    assert (found.gpudirect, found.nvls, found.multi_node_nvlink, found.collnet) == (GpuDirect.IN_USE, True, False, False)
    assert found.channels == {"coll": 16, "collnet": 16, "nvls": 24, "p2p": 32}
    assert found.choices == (CountedChoice("AllReduce", "NVLS", "SIMPLE", 2), CountedChoice("AllReduce", "RING", "LL", 1))
    assert found.settings == {"NCCL_IB_HCA": "mlx5"}
    assert found.plugins == {"network": "IBplug v10 (v10)", "profiler": "absent"}
    assert list(summary_lines(summarize(read(LOG, "nccl.log")))) == [
        "nccl.log: NCCL 2.28.3+cuda12.9 · 16 ranks on 2 nodes",
        "  network: IB on mlx5_0:1 and mlx5_1:1 (InfiniBand); mlx5_2:1 (RoCE), with SHARP · GPUDirect RDMA: in use",
        "  NVLS: available, 24 channels · algorithms: AllReduce NVLS/SIMPLE (2) and AllReduce RING/LL (1)",
        "  connections: NET/IB/0/GDRDMA (2) and P2P/CUMEM (1)", "  set: NCCL_IB_HCA=mlx5", "  network plug-in: IBplug v10 (v10)",
    ]  # fmt: skip
    found = summarize(read("n1:7:8 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1", "cut.log"))
    assert (found.version, found.network, found.ranks, found.nodes, found.nvls, found.hcas) == (None, None, None, None, None, ())
    assert list(summary_lines(found)) == [
        "cut.log: NCCL version unknown · ranks unknown; lines of 1 host",
        "  network: unknown · GPUDirect RDMA: unknown (no RDMA connection in the log)",
        "  NVLS: unknown · algorithms: unknown (NCCL_DEBUG_SUBSYS=INIT,NET,TUNING prints them)",
    ]
    lines = ["NET/OFI Initializing aws-ofi-nccl 1.21.1", "NET/OFI Using Libfabric version 2.3",
             "NET/OFI Selected provider is cxi, fabric is cxi (found 2 nics)", "Connected all rings, use ring PXN 0 GDR 1"]  # fmt: skip
    found = summarize(read("\n".join(f"n1:7:8 [0] NCCL INFO {line}" for line in lines), "cxi.log"))
    assert (found.network, found.provider, found.releases) == (None, "cxi", {"aws-ofi-nccl": "1.21.1", "libfabric": "2.3"})
    assert found.rings is not None and found.rings == {"pxn": False, "gdr": True}
    text = "\n".join(summary_lines(found))
    assert "network: libfabric (provider cxi)" in text
    assert "aws-ofi-nccl 1.21.1 · libfabric 2.3 · rings: PXN off, GPUDirect RDMA on" in text


def listing(*ranks: tuple[int, int, str]) -> str:
    lines = [
        f"#  Rank {rank:2d} Group {group:2d} Pid   4000 on {host:>10} device  0 [0000:05:00] NVIDIA H100" for rank, group, host in ranks
    ]
    return "\n".join(["# Using devices", *lines, "n1:7:8 [0] NCCL INFO Using network IB"])


@pytest.mark.parametrize(("ranks", "expected"), [
    ([(0, 0, "n1"), (1, 0, "n1"), (2, 0, "n2"), (3, 0, "n2")], (4, 2)), ([(rank, 0, "n1") for rank in range(8)], (8, 1)),
    ([(rank, rank // 4, f"n{rank // 4}") for rank in range(8)], (4, 1)),  # two groups, each on its own host
    ([(4, 0, "n2"), (5, 0, "n2")], (None, None)),  # the list is cut
])  # fmt: skip
def test_ranks_that_nccl_tests_lists(ranks: list[tuple[int, int, str]], expected: tuple[int | None, int | None]) -> None:
    found = summarize(read(listing(*ranks), "nccl.log"))
    assert (found.ranks, found.nodes) == expected


SEND, RECEIVE = ("Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA", "Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/0/GDRDMA")
STAGED = SEND.removesuffix("/GDRDMA")


@pytest.mark.parametrize(("messages", "state"), [
    ([SEND, RECEIVE], GpuDirect.IN_USE), ([SEND], GpuDirect.ONE_DIRECTION), ([SEND, RECEIVE, STAGED, STAGED], GpuDirect.PARTLY),
    ([STAGED, STAGED], GpuDirect.STAGED), (["Using network Socket"], GpuDirect.NOT_APPLICABLE),
    (["Using network IB", "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"], GpuDirect.DISABLED),
    (["Using network IB"], GpuDirect.UNKNOWN),
])  # fmt: skip
def test_gpudirect(messages: list[str], state: GpuDirect) -> None:
    assert gpudirect_of(read("\n".join(f"n1:7:8 [0] NCCL INFO {message}" for message in messages), "x")) is state
