"""CB2541 to CB2558: known messages of failures in logs, by readers/log_messages.toml."""

from __future__ import annotations

import re

import pytest

from collbench.machine.doctor.examine import examine
from collbench.machine.doctor.finding import Finding, pages
from collbench.machine.readers.log_messages import KnownMessage, Place, known_messages, place_of
from collbench.machine.readers.nccl_log import NcclLog, read
from collbench.machine.readers.text import Unreadable

WARN = "n1:7:8 [2] {} NCCL WARN {}"
INFO = "n1:7:8 [2] NCCL INFO {}"
COMPLETE = "comm 0x5 rank 2 nranks 8 cudaDev 2 nvmlDev 2 busId 1000 commId 0x7 - Init COMPLETE"
UCX = "[1717000000.123456] [n1:7:0]    ib_mlx5_log.c:177  UCX  ERROR {}"
RETRIES = "NET/IB: Got completion from peer 10.0.0.2<4791> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 hca mlx5_3"

# (code, severity, lines as NCCL and others print them over their versions); each line alone
MESSAGES: list[tuple[str, str, list[str]]] = [
    ("CB2541", "severe", [
        WARN.format("include/shm.h:28", "Call to posix_fallocate failed : No space left on device"),
        WARN.format("include/shm.h:48", "Error while creating shared memory segment nccl-shm-recv-5b3ca6e6c7fb81ba-1-1-0 (size 9637888)"),
        WARN.format("misc/shmutils.cc:71", "Error: failed to extend /dev/shm/nccl-fjwOOB to 5967876 bytes"),
        WARN.format("misc/shmutils.cc:88", "Error: failed to extend /dev/shm/nccl-1 to 33030532 bytes, error: No space left on device (28)"),
        WARN.format("misc/shmutils.cc:132", "Error while creating shared memory segment /dev/shm/nccl-1 (size 96), error: Permission denied (13)"),
        WARN.format("misc/shmutils.cc:132", "Error while attaching to shared memory segment /dev/shm/nccl-1 (size 96), error: No such file (2)"),
        UCX.format("Not enough memory to write total of 4292720 bytes. Please check that /dev/shm or the directory has more"),
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
        "shared memory.",
    ]),
    ("CB2542", "severe", [
        WARN.format("include/socket.h:390", "Connect to 192.0.2.9<54263> failed : No route to host"),
        WARN.format("include/socket.h:409", "Net : Connect to 192.0.2.9<54263> failed : Connection timed out"),
        WARN.format("misc/socket.cc:484", "socketStartConnect: Connect to 10.1.2.3<41000> failed : Software caused connection abort"),
        WARN.format("misc/socket.cc:533", "socketPollConnect: Connect to 10.1.2.3<41000> returned 113(No route to host) errno 115(In progress)"),
        WARN.format("misc/socket.cc:467", "socketStartConnect: exceeded retries (20000)"),
        WARN.format("misc/socket.cc:582", "socketPollConnect: connect to 10.1.2.3<41000> returned Connection refused, exceeded error retry "
                    "count after 35 attempts"),
        WARN.format("os/linux.cc:310", "ncclOsSocketPollConnect to 10.1.2.3<41000> failed with error Network is unreachable"),
        WARN.format("os/linux.cc:310", "ncclOsSocketPollConnect to fe80::1%eth0<41000> failed with error Invalid argument"),
    ]),
    ("CB2543", "severe", [
        WARN.format("bootstrap.cc:45", "Bootstrap : no socket interface found"),
        WARN.format("transport/net_socket.cc:46", "NET/Socket : no interface found"),
        WARN.format("bootstrap.cc:577", "no device found matching eth9, verify NCCL_OOB_NET_IFNAME"),
        WARN.format("misc/socket.cc:484", "socketStartConnect: Connect to 127.0.0.1<41000> failed : Connection refused"),
    ]),
    ("CB2544", "severe", [
        WARN.format("misc/ibvwrap.cc:262", "Call to ibv_modify_qp failed with error Connection timed out"),
        WARN.format("misc/ibvwrap.cc:262", "Call to ibv_modify_qp failed with error No route to host errno 113"),
        WARN.format("misc/ibvwrap.cc:262", "Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_0:1, curr state INIT, next state "
                    "RTR, local GID index 1, local GID fe80::1, remote GID ::ffff:10.0.0.2"),
        WARN.format("transport/net_ib.cc:987", "NET/IB : Attempted to connect incompatible devices: [0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE. Try "
                    "selecting NICs of only one link type using NCCL_IB_HCA"),
    ]),
    ("CB2545", "severe", [
        WARN.format("transport/net_ib.cc:839", "NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129"),
        WARN.format("transport/net_ib.cc:1295", "NET/IB : Got completion from peer 10.0.0.2<50000> with error 12, opcode 1, len 0, vendor err 129"),
        WARN.format("transport/net_ib.cc:1909", "NET/IB : Got completion from peer 10.0.0.2<50000> with status=12 opcode=0 len=0 vendor err 129 "
                    "(Send) localGid ::ffff:10.0.0.1 remoteGids::ffff:10.0.0.2 hca mlx5_0"),
        WARN.format("transport/net_ib/p2p.cc:700", RETRIES),
        WARN.format("transport/net_ib.cc:1909", "NET/IB : Got completion from peer 10.0.0.2<50000> with status=13 opcode=0 len=0 vendor err 135"),
        WARN.format("transport/net_ib.cc:1909", "NET/IB : Got completion from peer 10.0.0.2<50000> with status=4 opcode=0 len=0 vendor err 81"),
        WARN.format("transport/net_ib.cc:1909", "NET/IB : Got completion from peer 10.0.0.2<50000> with status=10 opcode=0 len=0 vendor err 136"),
        WARN.format("transport/net_ib.cc:1909", "NET/IB : Got completion from peer 10.0.0.2<50000> with status=5 opcode=0 len=0 vendor err 244"),
        WARN.format("transport/net_ib.cc:95", "NET/IB : mlx5_0:1 async fatal event: local catastrophic error"),
        UCX.format("Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)"),
        UCX.format("Local QP operation error on mlx5_0:1/IB (synd 0x2 vend 0x68 hw_synd 0/10)"),
    ]),
    ("CB2545", "warning", [
        WARN.format("transport/net_ib.cc:95", "NET/IB : mlx5_0:1 Got async event : port error"),
        WARN.format("transport/net_ib.cc:95", "NET/IB : mlx5_0:1 Got non-fatal async event: port error(10)"),
    ]),
    ("CB2546", "severe", [
        WARN.format("misc/ibvwrap.cc:160", "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"),
        WARN.format("misc/ibvwrap.cc:160", "Call to ibv_create_cq failed with error Cannot allocate memory errno 12"),
        WARN.format("misc/socket.cc:300", "socketTryAccept: Accept failed: Too many open files"),
        UCX.format("ibv_create_cq(cqe=4096) failed: Cannot allocate memory : Please set max locked memory (ulimit -l) to 'unlimited' "
                   "(current: 64 kbytes)"),
    ]),
    ("CB2547", "severe", [
        WARN.format("plugin/net.cc:306", "Failed to initialize any NET plugin"),
        WARN.format("net.cc:285", "Error: network AWS Libfabric not found."),
        WARN.format("transport.cc:40", "No transport found for rank 1[1000] -> rank 0[2000]"),
        WARN.format("create_nccl_ofi_component:459", "NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument"),
        UCX.format("no remote registered memory access transport to n2:9: Unsupported operation"),
    ]),
    ("CB2547", "warning", [WARN.format("nccl_net_ofi_create_plugin:334", "NET/OFI Unable to find a protocol that worked.  Failing initialization.")]),
    ("CB2547", "note", [INFO.format("NET/OFI No eligible providers were found")]),
    ("CB2548", "severe", [
        WARN.format("misc/ibvwrap.cc:170", "Call to ibv_reg_mr failed with error Bad address"),
        WARN.format("misc/ibvwrap.cc:180", "Call to ibv_reg_dmabuf_mr failed with error Operation not supported errno 95"),
    ]),
    ("CB2549", "severe", [
        WARN.format("ofi_process_cq:1599", "NET/OFI Request 0x7f completed with error. RC: 113. Error: 15 (Unreachable remote. My EFA addr: fi_addr_efa://"
                    "[fe80::1]). Completed length: 0"),
        WARN.format("ofi_process_cq:1599", "NET/OFI Request completed with error. RC: 21. Error: unknown error. Completed length: 0"),
        "libfabric:7:1717000000::efa:cq:efa_rdm_cq_handle_error():95<warn> Unresponsive remote (was previously responsive)",
        "* This error indicates that the security group on either this instance or the peer instance",
    ]),
    ("CB2550", "severe", [
        WARN.format("graph/paths.cc:320", "P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case given their "
                    "connectivity, and is probably due to a hardware issue."),
        "NCCL DIAG [INFO] p2p: only 52/56 GPU-to-GPU peer accesses passed verification",
    ]),
    ("CB2551", "severe", [
        WARN.format("misc/cudawrap.cc:36", "Cuda failure 802 'system not yet initialized'"),
        "n1: Test CUDA failure common.cu:941 'system not yet initialized'",
        WARN.format("transport/nvls.cc:158", "Cuda failure 1 'invalid argument'"),
        WARN.format("transport/nvls.cc:376", "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation"),
        WARN.format("include/alloc.h:228", "Cuda failure 800 'operation not permitted'"),
    ]),
    ("CB2552", "severe", [
        WARN.format("enqueue.cc:1", "Cuda failure 'out of memory'"),
        WARN.format("init.cc:263", "Cuda failure 'initialization error'"),
        WARN.format("init.cc:263", "Cuda failure 35 'CUDA driver version is insufficient for CUDA runtime version'"),
        WARN.format("/build/hipify/src/init.cc:9", "HIP failure 'an illegal memory access was encountered'"),
        WARN.format("enqueue.cc:1", "Cuda failure 214 'uncorrectable ECC error encountered'"),
        WARN.format("enqueue.cc:1", "Cuda failure 400 'invalid resource handle'"),
    ]),
    ("CB2552", "note", [WARN.format("init.cc:1", "Cuda failure 4 'driver shutting down'")]),
    ("CB2553", "severe", [
        WARN.format("init.cc:775", "Mismatched NCCL version detected : rank 0 version 22703 rank 5 version 22602"),
        WARN.format("bootstrap.cc:430", "NCCL version mismatch with remote peer 10.0.0.2<40000> (local: 22707, remote 22602)"),
    ]),
    ("CB2554", "severe", [
        WARN.format("init.cc:783", "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1a000"),
        WARN.format("init.cc:783", "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this"),
        WARN.format("bootstrap.cc:126", "Bootstrap Root : rank 3 of 8 ranks has already checked in"),
        WARN.format("transport/net_socket.cc:484", "NET/Socket : peer 10.0.0.2<40000> message truncated : receiving 1048576 bytes instead of 65536."),
        WARN.format("bootstrap.cc:224", "Message truncated : received 1024 bytes instead of 256"),
        WARN.format("init.cc:1339", "Detected mixed local Net device counts across ranks (min 7, max 8). Set NCCL_IGNORE_NET_MISMATCH=1"),
    ]),
    ("CB2555", "warning", [
        WARN.format("include/socket.h:400", "Net : Connection closed by remote peer"),
        WARN.format("misc/socket.cc:57", "socketProgress: Connection closed by remote peer n2<48295>"),
        WARN.format("misc/socket.cc:45", "socketProgressOpt: Call to recv from 10.0.0.2<4000> failed : Connection reset by peer"),
        WARN.format("proxy.cc:1326", "Socket recv failed while polling for opId=0x7f12a0d3b8e0"),
    ]),
    ("CB2555", "severe", [
        "[rank3]:[E1206 18:44:12.715 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7753, "
        "OpType=_REDUCE_SCATTER_BASE, NumelIn=544997376, NumelOut=68124672, Timeout(ms)=600000) ran for 600061 milliseconds",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error, NCCL version 2.21.5",
        UCX.format("req 0x7f: Connection reset by remote peer"),
    ]),
    ("CB2556", "warning", [
        INFO.format("RAS declaring peer 10.0.0.2<28028> as DEAD; rasDeadPeersHash 0x5"),
        "  1 job process is considered dead (unreachable via the RAS network)",
        "NCCL DIAG [INFO] driver: 2 driver versions",
    ]),
    ("CB2557", "severe", [
        "[12345.678] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "Nov 29 03:24:37 n1 kernel: NVRM: Xid (PCI:0000:3b:00): 74, pid=7, NVLink: fatal error detected on link 6",
        "[12.3] nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "[12.3] amdgpu 0000:c3:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block",
    ]),
    ("CB2557", "warning", [
        "[12.3] NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=python, Ch 00000010, intr 10000000. MMU Fault",
        "[12.3] NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
    ]),
    ("CB2558", "severe", [
        "n1: Test NCCL failure common.cu:1279 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5",
        "ncclInternalError: Internal check failed.",
        WARN.format("proxy.cc:1519", "[Proxy Service 0] Failed to execute operation Connect from rank 0, retcode 2"),
    ]),
]  # fmt: skip
LINES = [(code, severity, line) for code, severity, lines in MESSAGES for line in lines]


def log(*lines: str) -> NcclLog:
    """A log of these lines."""
    return read("\n".join(lines), "job.log")


def failures(*lines: str) -> list[Finding]:
    """The findings of known messages in a log of these lines."""
    return [finding for finding in examine([], [log(*lines)]) if "CB2541" <= finding.code <= "CB2558"]


def only(*lines: str) -> Finding:
    """The only finding of known messages."""
    findings = failures(*lines)
    assert len(findings) == 1, findings
    return findings[0]


@pytest.mark.parametrize(("code", "severity", "line"), LINES)
def test_a_message_has_its_code_and_severity(code: str, severity: str, line: str) -> None:
    found = only(line)
    assert (found.code, found.severity) == (code, severity)
    assert found.evidence.startswith("job.log: line 1")
    assert found.remedy and not found.remedy.endswith(".") and "{" not in found.what


def test_each_message_of_the_table_is_reached_by_a_line() -> None:
    """A pattern that a line before it hides, or that fits no line, is dead."""
    reached = {logged.message for _, _, line in LINES for logged in log(line).messages}
    two_hosts = log("n1:7:8 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>", "n2:7:8 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>")
    assert reached | {logged.message for logged in two_hosts.messages} == set(known_messages())


def test_each_message_has_a_page_and_its_source() -> None:
    known = known_messages()
    assert {message.code for message in known} == {code for code in pages() if "CB2541" <= code <= "CB2558"}
    assert all(message.source and message.remedy and message.what for message in known)
    assert all(message.where == "warning" or message.hint for message in known)
    assert {message.severity for message in known} == {"severe", "warning", "note"}


def test_the_details_of_a_message_values_and_place() -> None:
    found = only(
        "[2026-03-13 22:26:02] host-01.example.com:42:43 [5] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, "
        "on dev mlx5_3:1, curr state INIT, next state RTR, local GID index 3, local GID ::ffff:192.0.2.11, remote GID ::ffff:192.0.3.12"
    )
    assert (found.severity, found.hostname) == ("severe", "host-01.example.com")
    assert "(mlx5_3:1 with GID index 3: ::ffff:192.0.2.11 does not reach ::ffff:192.0.3.12)" in found.what
    assert "NCCL_CROSS_NIC=0" in found.remedy
    assert "host-01.example.com (GPU 5)" in found.evidence


def test_equal_messages_are_counted_by_host_and_rank() -> None:
    lines = [f"{rank}: n{rank // 2}:{rank}:9 [{rank % 2}] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-{rank} to "
             f"{1000000 * (rank + 1)} bytes, error: No space left on device (28)" for rank in range(4)]  # fmt: skip
    found = only("a line of the program", *lines)
    assert found.hostname is None
    assert found.evidence.startswith("job.log: 4 lines from line 2 on of n0 (rank 0), n0 (rank 1), n1 (rank 2) and n1 (rank 3): '")
    assert "4 MB" in found.what


def test_a_log_of_the_kernel_alone_is_read_and_other_text_is_not() -> None:
    assert log("[12.3] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.").hosts == ()
    with pytest.raises(Unreadable, match="no line of NCCL"):
        log("Xid is a word", "an error: unhandled exception")


# What lowers a severity: a process that went on, a result, and an error that is the cause of another one.

SHM = WARN.format("misc/shmutils.cc:88", "Error: failed to extend /dev/shm/nccl-1 to 96 bytes, error: No space left on device (28)")
RETRY = WARN.format("transport/net_ib/p2p.cc:700", RETRIES)
RESULT = "# Avg bus bandwidth    : 123.4"


@pytest.mark.parametrize(
    ("lines", "severity"),
    [
        ([SHM], "severe"),
        ([SHM, INFO.format(COMPLETE)], "warning"),
        ([INFO.format(COMPLETE), SHM], "severe"),
        ([SHM, INFO.format(COMPLETE).replace("n1:7:", "n1:9:")], "severe"),  # another process
        ([SHM, SHM.replace("n1:7:", "n1:9:"), INFO.format(COMPLETE)], "severe"),  # one of two processes
        ([SHM, RESULT], "warning"),
        ([RESULT, SHM], "severe"),
        ([RETRY, INFO.format(COMPLETE)], "severe"),  # another communicator does not repair this one
        ([RETRY, RESULT], "warning"),
    ],
)
def test_a_job_that_went_on_lowers_the_severity(lines: list[str], severity: str) -> None:
    found = only(*lines)
    assert found.severity == severity
    assert ("went on" in found.evidence) == (severity == "warning")


def test_a_consequence_is_a_note_beside_its_cause() -> None:
    closed = WARN.format("misc/socket.cc:57", "socketProgress: Connection closed by remote peer n2<48295>")
    ended = "n1: Test NCCL failure common.cu:1279 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '"
    assert [(each.code, each.severity) for each in failures(SHM, closed, ended)] == [
        ("CB2541", "severe"), ("CB2555", "note"), ("CB2558", "note")]  # fmt: skip
    assert [(each.code, each.severity) for each in failures(closed, ended)] == [("CB2558", "severe"), ("CB2555", "warning")]


def test_a_plugin_that_fails_is_severe_only_if_no_other_network_starts() -> None:
    begin = [INFO.format("NET/OFI Initializing aws-ofi-nccl 1.21.1"), INFO.format("NET/OFI Using Libfabric version 2.3")]
    none = INFO.format("NET/OFI No eligible providers were found")
    found = only(*begin, none, WARN.format("plugin/net.cc:306", "Failed to initialize any NET plugin"))
    assert found.severity == "severe"
    assert {"aws-ofi-nccl 1.21.1", "libfabric 2.3"} <= set(found.evidence.split("; "))
    assert "No eligible providers" in found.evidence
    assert "fi_info -p" in found.remedy
    assert only(*begin, none, INFO.format("Using network IB"), INFO.format(COMPLETE)).severity == "note"


def test_loopback_counts_only_for_several_hosts() -> None:
    lo = INFO.format("Bootstrap : Using lo:127.0.0.1<0>")
    assert failures(lo) == []
    assert failures(lo, lo.replace("n1:", "n1.example.com:")) == []
    assert only(lo, lo.replace("n1:", "n2:")).severity == "warning"


def test_the_last_error_that_pytorch_repeats_is_known() -> None:
    lines = ["ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.", "Last error:",
             "Error while creating shared memory segment /dev/shm/nccl-VLzEBB (size 9637888)"]  # fmt: skip
    assert [(each.code, each.severity) for each in failures(*lines)] == [("CB2541", "severe"), ("CB2558", "note")]


@pytest.mark.parametrize(
    ("prefix", "place"),
    [
        ("", Place("n1", "n1:7", "GPU 2")),
        ("[2026-04-22 21:34:20] ", Place("n1", "n1:7", "GPU 2")),
        ("3: ", Place("n1", "n1:7", "rank 3")),
        ("[1,3]<stdout>:", Place("n1", "n1:7", "rank 3")),
        ("[1,3]<stderr>: ", Place("n1", "n1:7", "rank 3")),
        ("[rank3]: ", Place("n1", "n1:7", "rank 3")),
        ("[default2]:", Place("n1", "n1:7", "GPU 2")),
        ("2026-03-13T22:26:02.123456789Z stderr F ", Place("n1", "n1:7", "GPU 2")),
        ('{"log":"', Place("n1", "n1:7", "GPU 2")),
        ("Nov 29 03:24:37 login1 slurmstepd[123]: ", Place("n1", "n1:7", "GPU 2")),
        ("(RayWorker pid=9, ip=10.0.0.1) ", Place("n1", "n1:7", "GPU 2")),
        ("worker-1  | ", Place("n1", "n1:7", "GPU 2")),
        ("n1.hsn.example 0: ", Place("n1", "n1:7", "GPU 2")),
        ("\x1b[36m", Place("n1", "n1:7", "GPU 2")),
    ],
)
def test_prefixes_of_launchers_and_collectors(prefix: str, place: Place) -> None:
    logged = log(f"{prefix}{SHM}\x1b[0m").messages[0]
    assert list(logged.places) == [place]
    assert place_of(b"") == Place()


def test_carriage_returns_and_bytes_that_are_not_text() -> None:
    assert only(f"{SHM}\r").code == "CB2541"
    assert only(SHM.replace("nccl-1", "nccl-\udc80")).code == "CB2541"


def test_patterns_have_no_unbounded_repetition() -> None:
    """Lines are from anywhere: nothing may repeat a wildcard without a limit."""
    repetition = re.compile(rb"(?:\\[SDWsdw]|[.)\]])[*+]")
    unbounded: list[KnownMessage] = [message for message in known_messages() if repetition.search(message.pattern.pattern)]
    assert unbounded == []
