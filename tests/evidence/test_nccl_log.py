"""NCCL's log: only connection lines prove a path; everything else shows what could be used; what starts becomes typed facts."""

import gzip
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.readers.nccl_facts import (
    GDR,
    AssumedSpeed,
    CallChoice,
    CollNet,
    Communicator,
    Connection,
    DirectAccess,
    FabricBroken,
    FabricMember,
    GraphLink,
    HostProblem,
    ListedRank,
    LogFact,
    LogLibrary,
    LogSetting,
    NcclPlugin,
    Platform,
    PluginKind,
    PluginState,
    Release,
    ReportedProblem,
    TopologyFile,
    UsedNetwork,
    network_path,
)
from collbench.machine.readers.nccl_lines import is_nccl_log
from collbench.machine.readers.nccl_log import NcclLog, read, read_file
from collbench.machine.readers.text import Unreadable
from tests.machines import captures
from tools.benchmarks.nccl_log import KINDS

IB = """\
node1:11:21 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
NCCL version 2.21.5+cuda12.4
node1:11:21 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
node1:11:21 [0] NCCL INFO Using network IB
node1:11:21 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1000 commId 0x2 - Init START
node1:11:21 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'
node1:11:21 [0] NCCL INFO DMA-BUF is available on GPU device 0
node1:11:21 [0] NCCL INFO NVLS multicast support is not available on dev 0
node1:11:21 [0] NCCL INFO Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
node1:11:21 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA
node2:12:22 [1] NCCL INFO Channel 01/0 : 1[1] -> 3[1] [send] via NET/IB/1(0)/GDRDMA(PCI)/Shared
node2:12:22 [1] NCCL INFO Channel 01/0 : 1[1] -> 0[0] via P2P/CUMEM/read
"""
MORE = [
    "n1:1:2 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..7}",
    "n1:1:2 [0] NCCL INFO Channel 00/16 :  0 7 6 5 4 3 2 1 ...", "n1:1:2 [0] NCCL INFO               + PCI[24.0] - GPU/0-cf000 (5)",
    "n1:1:2 [0] NCCL INFO NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [2]mlx5_2:1/IB ; OOB eth0:1<0>",
]  # fmt: skip


def lines(*messages: str) -> str:
    return "\n".join(f"node1:1:2 [0] NCCL INFO {message}" for message in messages)


def log(*messages: str) -> NcclLog:
    return read(lines(*messages), "nccl.log")


def devices(log: NcclLog) -> set[int]:
    paths = [network_path(name) for name in log.transports]
    return {path.device for path in paths if path and path.device is not None}


def direct(log: NcclLog, *, enabled: bool) -> tuple[str, ...]:
    """The HCAs that GPUs can reach according to the library, or cannot."""
    return tuple(access.name for access in log.of_kind(DirectAccess) if access.enabled is enabled)


def test_facts_of_a_complete_log() -> None:
    found = read(IB, "nccl.log")
    assert (found.name, found.version, found.net, found.hosts) == ("nccl.log", "2.21.5", "IB", ("node1", "node2"))
    assert found.transports == {"NET/IB/0/GDRDMA": 2, "NET/IB/1/GDRDMA": 1, "P2P/CUMEM/read": 1}
    assert (found.device_names("IB"), found.device_names("Socket")) == (("mlx5_0:1/IB", "mlx5_1:1/IB"), ())
    assert (direct(found, enabled=True), direct(found, enabled=False)) == (("mlx5_0",), ())
    assert (found.gdr_send, found.gdr_receive, found.staged, found.nvls_available) == (True, True, 0, False)
    assert (found.ranks, found.ranks_at_least, found.gdr_gpus) == (4, 4, (("node1", "0"),))
    assert {path: (lines.count, lines.channels) for path, lines in found.connections.items()} == {
        Connection("node1", "0", "receive", "NET/IB/0/GDRDMA"): (1, {0}),
        Connection("node1", "0", "send", "NET/IB/0/GDRDMA"): (1, {0}),
        Connection("node2", "1", "send", "NET/IB/1/GDRDMA"): (1, {1}),
        Connection("node2", None, "", "P2P/CUMEM/read"): (1, {1}),
    }
    assert found.names == {("node1", 0): "mlx5_0:1/IB", ("node1", 1): "mlx5_1:1/IB"}
    assert found.release == Release(LogLibrary.NCCL, "2.21.5+cuda12.4", "2.21.5")


USING_IB = "n1:7:8 [0] NCCL INFO Using network IB\n"
ENABLED = "NET/IB : GPU Direct RDMA Enabled for HCA 0 '{}'"
# A [send] line is written by the GPU that sends, a [receive] line by the one that receives
OF_GPUS = """\
n1:1:2 [3] NCCL INFO Channel 00/0 : 3[3] -> 11[3] [send] via NET/IB/3/GDRDMA
n1:1:2 [3] NCCL INFO Channel 00/0 : 11[3] -> 3[3] [receive] via NET/IB/3/GDRDMA
n1:1:3 [4] NCCL INFO Channel 00/0 : 4[4] -> 12[4] [send] via NET/IB/4
n1:1:3 [4] NCCL INFO Channel 00/0 : 12[4] -> 4[4] [receive] via NET/IB/4/GDRDMA
n2:1:3 [5] NCCL INFO Channel 00/0 : 13[5] -> 5[5] [send] via NET/IB/4/GDRDMA
"""
ONE_WAY = lines("Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA", ENABLED.format("mlx5_0"))
OLD_PLACES = lines(
    "Channel 00 : 0[1b000] -> 8[1b000] [send] via NET/IB/0/GDRDMA", "Channel 00 : 8[1b000] -> 0[8051d000] [receive] via NET/IB/0"
)
STAGED = lines("Channel 15/0 : 33[1] -> 41[1] [send] via NET/IBext_v8/4", "Channel 15/0 : 41[1] -> 33[1] [receive] via NET/IBext_v8/4")
BOTH = lines(ENABLED.format("rocep1s0f0"), "GPU Direct RDMA Disabled for HCA 0 'rocep1s0f0'")
OF_LAUNCHERS = "step 1 loss 3.2\n[1,0]<stdout>:node7:5:6 [0] NCCL INFO Using network IB\n3: node8:5:6 [1] NCCL INFO Connected all rings\n"
CHOICES = lines(*(f"AllReduce: 8 Bytes -> Algo {name} proto LL channel{{Lo..Hi}}={{0..0}}" for name in ("TREE", "RING", "RING")))
TWO_RELEASES = f"# nccl-tests version 2.17.6 nccl-headers=22602 nccl-library=22602\nNCCL version 2.27.3+cuda12.9\n{USING_IB}"
SMALL = "n1:7:8 [0] NCCL INFO comm 0x5 rank 0 nRanks 4 nNodes 1 localRanks 4 localRank 0 MNNVL 0\n"
PER_NODE = "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 2 p2p channels per peer"
LOGS: dict[str, tuple[str, Callable[[NcclLog], Any], Any]] = {
    "GPUDirect RDMA in both directions": (IB, lambda found: (found.gdr_send, found.gdr_receive), (True, True)),
    "GPUDirect RDMA in one direction": (ONE_WAY, lambda found: (found.gdr_send, found.gdr_receive), (True, False)),
    "connections with GPUDirect RDMA": (IB, lambda found: [key for key in found.transports if key.endswith(GDR)],
        ["NET/IB/0/GDRDMA", "NET/IB/1/GDRDMA"]),
    "which GPUs are proven": (OF_GPUS, lambda found: (found.gdr_gpus, found.staged_gpus), ((("n1", "3"),), (("n1", "4"),))),
    "older logs name GPUs by their place on the bus": (OLD_PLACES, lambda found: found.staged_gpus, (("node1", "0805:1d:00.0"),)),
    "a place without a domain": (lines("Channel 00 : 0[1b000] -> 8[1c000] [send] via NET/IB/0"), lambda found: found.staged_gpus,
        (("node1", "0000:1b:00.0"),)),
    "the numbers of devices are those of NCCL": (IB, devices, {0, 1}),
    "RDMA without the suffix is staged": (STAGED, lambda found: (found.net, found.staged, found.gdr_send, found.gdr_receive),
        ("IBext_v8", 2, False, False)),
    "sockets are no RDMA that is staged": (lines("Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0"),
        lambda found: (found.net, found.staged, found.lines_of("NET/Socket")), ("Socket", 0, 1)),
    "a HCA that is both enabled and disabled is in both": (BOTH, lambda found: (direct(found, enabled=True), direct(found, enabled=False)),
        (("rocep1s0f0",), ("rocep1s0f0",))),
    "a HCA by its number": (lines("GPU Direct RDMA Disabled for GPU 0[1b000] / HCA 0 (distance 4 > 2)"),
        lambda found: direct(found, enabled=False), ("HCA 0",)),
    "a speed that NCCL made up": (lines("Could not get speed from /sys/class/net/eth1/speed. Defaulting to 10 Gbps."),
        lambda found: found.of_kind(AssumedSpeed), [AssumedSpeed("eth1")]),
    "a speed that NCCL made up for an unnamed interface": (lines("Defaulting to 10 Gbps."), lambda found: found.of_kind(AssumedSpeed),
        [AssumedSpeed(None)]),
    "words of launchers and programs in front": (OF_LAUNCHERS, lambda found: (found.hosts, found.net), (("node7", "node8"), "IB")),
    "RCCL": ("RCCL version : 2.21.5-HEAD:abc\nn1:1:2 [0] NCCL INFO Using network IB", lambda found: found.version, "2.21.5"),
    "a cut listing gives the least number of ranks": (lines("Channel 00/16 :  0 7 6 5 23 22 ..."),
        lambda found: (found.ranks, found.ranks_at_least), (None, 24)),
    "a size with two choices has the usual one first": (CHOICES, lambda found: list(found.choices.items()),
        [(CallChoice("AllReduce", 8, name, "LL", 1), calls) for name, calls in (("RING", 2), ("TREE", 1))]),
    "the number that NCCL gives at last is the one of its connections": (lines("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB e:1<0>",
        ENABLED.format("mlx5_1")), lambda found: found.names["node1", 0], "mlx5_1"),
    "how many channels there are": (lines(PER_NODE), lambda found: found.stated, {"coll": 24, "collnet": 24, "nvls": 16, "p2p": 32}),
    "words behind GDRDMA do not hide it": (lines("Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/0/GDRDMA(PCI)/Shared/New"),
        lambda found: (found.transports, found.staged, found.gdr_receive), ({"NET/IB/0/GDRDMA": 1}, 0, True)),
    "a word in a sentence is no connection": (lines("NET/OFI Selected Provider is efa (found 16 nics) via 8 groups",
        "Using network AWS Libfabric via plugin"), lambda found: (found.transports, found.provider), ({}, "efa")),
    "control characters": ("n:1:2 [0] NCCL WARN \x1b[31mred\x07\x1b", lambda found: (found.warnings, found.name), (("red??",), "n?.log")),
    "a line that never ends": ("n:1:2 [0] NCCL INFO " + "(1/2.0/" * 100_000, lambda found: found.facts, {}),
    "the library counts more than nccl-tests": (TWO_RELEASES, lambda found: found.version, "2.27.3"),
    "of several communicators the largest is the job": (USING_IB + SMALL.replace("nRanks 4 nNodes 1", "nRanks 16 nNodes 4") + SMALL,
        lambda found: found.job, Communicator(16, 4, 4, False)),
}  # fmt: skip


@pytest.mark.parametrize(("text", "facts", "expected"), LOGS.values(), ids=LOGS)
def test_the_facts_of_a_log(text: str, facts: Callable[[NcclLog], Any], expected: Any) -> None:
    assert facts(read(text, "n\x1b.log")) == expected


# NCCL 2.29.7 (two nodes of one GPU over sockets) and 2.8.3, https://github.com/NVIDIA/nccl-tests/issues/89: columns are cut.
NEW_TABLE = """\
  Algorithm   |                            Tree                  |                            Ring                  |
  Protocol    |             LL |          LL128 |         Simple |             LL |          LL128 |         Simple |
 Max NThreads |            512 |            640 |            512 |            512 |            640 |            256 |
    Broadcast |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |     9.3/   1.2 |    18.0/   0.0 |    22.4/   2.4 |
       Reduce |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |     9.3/   1.2 |    18.0/   0.0 |    22.4/   2.4 |
    AllReduce |    16.8/   0.5 |    31.0/   0.0 |    36.4/   1.9 |    16.6/   1.2 |    31.0/   0.0 |    36.4/   2.4 |
  Algorithm   |                             PAT                  |
  Protocol    |             LL |          LL128 |         Simple |             LL |          LL128 |         Simple |
 Max NThreads |              0 |              0 |              0 |
    Broadcast |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |
       Reduce |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |
    AllGather |     0.0/   0.0 |     0.0/   0.0 |    17.6/   3.6 |
"""
OLD_TABLE = """\
Latency/AlgBw |    Tree/    LL |    Tree/ LL128 |    Tree/Simple |    Ring/    LL |    Ring/ LL128 |    Ring/Simple |
 Max NThreads |            512 |            640 |            512 |            512 |            640 |            256 |
    Broadcast |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |     6.3/   0.0 |    14.0/   0.0 |    18.0/   9.0 |
       Reduce |     0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |     6.3/   0.0 |    14.0/   0.0 |    18.0/   9.0 |
"""


def tuning(text: str, *heads: str) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Return the usable entries of the table, each of its lines with all heads."""
    lines = [f"{head} NCCL INFO {line}" for line in text.splitlines() for head in heads or ["n1:1:2 [0]"]]
    return {entry[:3]: entry[3:] for entry in read("\n".join(lines), "x").tuning if entry.gb_per_s}


def test_the_table_of_latencies_and_bandwidths() -> None:
    found = tuning(NEW_TABLE)
    assert found["AllReduce", "Tree", "LL"] == (16.8, 0.5)
    assert found["AllReduce", "Ring", "Simple"] == (36.4, 2.4)
    assert found["Reduce", "Ring", "LL"] == (9.3, 1.2)  # its row is equal to that of Broadcast
    assert found["AllGather", "PAT", "Simple"] == (17.6, 3.6)
    assert len(found) == 9
    assert tuning(OLD_TABLE) == {("Broadcast", "Ring", "Simple"): (18.0, 9.0), ("Reduce", "Ring", "Simple"): (18.0, 9.0)}
    assert tuning(NEW_TABLE, "n1:1:2 [0]", "n2:7:9 [0]") == found  # equal tables of two ranks are one


@pytest.mark.parametrize(
    "text",
    [
        f"{NEW_TABLE}{NEW_TABLE.replace('2.4', '4.8')}",
        "    AllReduce |    16.8/   0.5 |",
        "  Algorithm   |  Ring |\n    AllReduce |    16.8/   0.5 |",
        "  Algorithm   |  Ring |\n    AllReduce | x | y | z |",
        f"  Algorithm   |{' A |' * 500}\n    AllReduce |{' 1.0/ 1.0 |' * 1500}",
        "  Algorithm   | \x1b[2J |\n    AllReduce | 1.0/ 1.0 | 1.0/ 1.0 | 1.0/ 1.0 |",
        f"x\nn1:1:2 [0] NCCL INFO RCCL version 2.22.3+hip6.4\n{NEW_TABLE}",
    ],
    ids=["different tables", "no heading", "another number of columns", "no figures", "too many columns", "not a name", "of RCCL"],
)
def test_invalid_tables_are_ignored(text: str) -> None:
    assert tuning(text) == {}


def test_text_without_nccl() -> None:
    for text, why in (("", "x.log has no line of NCCL"), ("no such thing here", "run with NCCL_DEBUG=INFO and save what the ranks print")):
        with pytest.raises(Unreadable, match=why):
            read(text, "x.log")


@pytest.mark.parametrize(("make", "why"), [
    (lambda file: file.write_bytes(b""), "is empty"), (lambda file: file.write_bytes(b"\x7fELF\x00\x00NCCL INFO"), "is binary"),
    (lambda file: None, "nccl.log is not there"), (Path.mkdir, "is a folder: name the file"), (os.mkfifo, "is a pipe"),
    (lambda file: file.symlink_to("/dev/zero"), "is a device"),
], ids=["empty", "binary", "missing", "folder", "pipe", "device"])  # fmt: skip
def test_files_that_are_not_logs_are_rejected_without_waiting(make: Callable[[Path], object], why: str, tmp_path: Path) -> None:
    make(tmp_path / "nccl.log")
    with pytest.raises(Unreadable, match=why):
        read_file(tmp_path / "nccl.log")


def test_a_compressed_truncated_log_with_crlf(tmp_path: Path) -> None:
    whole = read(IB, "x")
    (tmp_path / "nccl.log.gz").write_bytes(gzip.compress(IB.encode()))
    assert read_file(tmp_path / "nccl.log.gz").transports == whole.transports
    cut = b"node1:11:21 [0] NCCL INFO Channel 02/0 : 0[0] -> 2[0] [send] via NET/I"
    (tmp_path / "nccl.log").write_bytes(IB.replace("\n", "\r\n").encode() + cut)
    found = read_file(tmp_path / "nccl.log")
    assert found.transports == {**whole.transports, "NET/I": 1}
    facts = [(log.hosts, log.version, log.net, log.device_names("IB")) for log in (found, whole)]
    assert facts == [(("node1", "node2"), "2.21.5", "IB", ("mlx5_0:1/IB", "mlx5_1:1/IB"))] * 2


def test_a_log_of_many_blocks(tmp_path: Path) -> None:
    lines = 30_000
    text = "".join(f"n1:1:2 [0] NCCL INFO Channel {i % 32:02d}/0 : {i}[0] -> 7[7] via P2P/CUMEM\n" for i in range(lines))
    (tmp_path / "nccl.log").write_text(text)
    found = read_file(tmp_path / "nccl.log")
    assert (found.transports, found.hosts) == ({"P2P/CUMEM": lines}, ("n1",))
    (connection_lines,) = found.connections.values()
    assert connection_lines.channels == set(range(32))


@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow_with_the_log(kind: str, tmp_path: Path) -> None:
    """Three MiB more of log take less than one MiB more: it is read in blocks, and its facts are bounded."""
    peaks = []
    for size in (2 << 20, 5 << 20):
        KINDS[kind].write(tmp_path / "nccl.log", size, ranks=16)
        tracemalloc.start()
        read_file(tmp_path / "nccl.log")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + (1 << 20)


@pytest.mark.parametrize(("line", "choice"), [
    ("1048576 Bytes -> Algo 1 proto 2 time 34.1", CallChoice(None, 1048576, "RING", "SIMPLE", None)),  # 2.20 to 2.22
    ("AllReduce: 8 Bytes -> Algo 0 proto 0 time 9.5", CallChoice("AllReduce", 8, "TREE", "LL", None)),  # 2.23
    ("AllReduce: 64 Bytes -> Algo NVLS_TREE proto LL128 channel{Lo..Hi}={0..7}", CallChoice("AllReduce", 64, "NVLS_TREE", "LL128", 8)),
    ("Broadcast: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={3..3} cgaClusterSize 4",
        CallChoice("Broadcast", 64, "RING", "LL", 1)),  # 2.32
    ("AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 nthreads 512 nWorks 1",
        CallChoice("AllReduce", 4096, "Symmetric AllReduce_AGxLL_R", None, 8)),
    ("AllGather [Copy Engine]: 32 Bytes -> cudaMemcpy; CE sync", CallChoice("AllGather", 32, "Copy Engine", None, None)),
    ("AllGather [Hierarchical CE]: 32 Bytes -> RMA proxy + CE", CallChoice("AllGather", 32, "Hierarchical CE", None, None)),
])  # fmt: skip
def test_choice_of_a_call(line: str, choice: CallChoice) -> None:
    assert log(line, line).choices == {choice: 2}


@pytest.mark.parametrize(("line", "names"), [
    ("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/RoCE [RO]; OOB eth0:10.0.0.1<0>", {0: "mlx5_0:1/IB", 1: "mlx5_3:1/RoCE"}),
    ("NET/IB : Using [0]mlx5_0:1:4:2/IB [1]mlx5_1:1::2/IB ; OOB eth0:10.0.0.1<0>", {0: "mlx5_0:1:4:2/IB", 1: "mlx5_1:1::2/IB"}),
    ("NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [2]mlx5_2:1/IB ; OOB e:1<0>", {0: "mlx5_0:1/IB+mlx5_1:1/IB", 2: "mlx5_2:1/IB"}),
    ("NET/IB : Made virtual device [8] name=mlx5_0+mlx5_1 speed=400000 ndevs=2 rail=0 plane=0", {8: "mlx5_0+mlx5_1"}),
    ("NET/Libfabric : GPU Direct RDMA Enabled for HCA 3 'rdmap79s0'", {3: "rdmap79s0"}),
])  # fmt: skip
def test_names_of_devices(line: str, names: dict[int, str]) -> None:
    assert log(line).names == {("node1", number): name for number, name in names.items()}


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(st.text(max_size=400), st.lists(st.sampled_from([*IB.splitlines(), *MORE]), max_size=12).map("\n".join)),
    st.integers(0, 400),
    st.text(max_size=20),
)
def test_any_text_is_read_or_rejected(text: str, place: int, inserted: str) -> None:
    mutated = text[:place] + inserted + text[place:]
    try:
        found = read(mutated, "fuzz.log")
    except Unreadable:
        return
    assert isinstance(found, NcclLog)
    assert not (found.gdr_send and found.gdr_receive) or ("[send]" in mutated and "[receive]" in mutated)


_NEW_WORDS = {"direct shared memory": "SHM"}
_OURS: dict[str, Any] = {
    "net": lambda found: found.net,
    "iface": lambda found: found.device_names("Socket")[0],
    "ranks": lambda found: found.ranks,
    "ranks_at_least": lambda found: found.ranks_at_least,
    "transports": lambda found: found.transports,
    "hosts": lambda found: sorted(found.hosts),
    "gdr_send": lambda found: found.gdr_send,
    "gdr_receive": lambda found: found.gdr_receive,
    "hca_indices_used": lambda found: sorted(devices(found)),
    "gdrdma_lines": lambda found: sum(count for key, count in found.transports.items() if "GDRDMA" in key),
    "gdr_capable": lambda found: {access.name: access.name in direct(found, enabled=True) for access in found.of_kind(DirectAccess)},
    "nvls_available": lambda found: found.nvls_available,
    "provider": lambda found: found.provider,
    "warnings": lambda found: len(found.warnings),
    "graph": lambda found: {link.kind: link.gb_per_s
        for link in sorted(found.of_kind(GraphLink), key=lambda link: link.gb_per_s, reverse=True)},
    "link": lambda found: found.device_names("IB")[0].rpartition("/")[2],
}  # fmt: skip


def captured(name: str) -> NcclLog:
    return read(captures.text(name, "nccl.log"), "nccl.log")


@pytest.mark.parametrize("name", captures.having("nccl.log"))
def test_public_logs(name: str) -> None:
    expected = dict(captures.expected(name))
    found = captured(name)
    if "transports" in expected:
        expected["transports"] = {_NEW_WORDS.get(key, key): count for key, count in expected["transports"].items()}
    wanted = {key: value for key, value in expected.items() if key in _OURS}
    assert {key: _OURS[key](found) for key in wanted} == wanted
    assert is_nccl_log(captures.text(name, "nccl.log"))


def test_unusual_lines_of_public_logs() -> None:
    found = captured("log-ncc247-ib-nogdr")  # a socket line beside InfiniBand is only where ranks meet
    assert (found.version, found.net, len(found.device_names("Socket")) > 0) == ("2.4.7", "IB", True)
    assert found.device_names("IB") == ("mlx5_0:1/IB",)
    assert captured("log-gcp-a3-tcp").transports == {}  # a listing of rings is no connection


def started(line: str) -> NcclLog:
    """A log with this line; one that does not name NCCL is on its own, as the library prints it."""
    bare = line.startswith(("#", "NCCL version", "RCCL version", "["))
    return read(USING_IB + (line if bare else f"n1:7:8 [0] NCCL INFO {line}"), "nccl.log")


@pytest.mark.parametrize(("line", "library", "number", "text"), [
    ("NCCL version 2.27.3+cuda12.9", LogLibrary.NCCL, "2.27.3", "2.27.3+cuda12.9"),
    ("[2026-05-06 20:00:45] n1:7:8 [0] NCCL INFO NCCL version 2.99.1+cuda12.9", LogLibrary.NCCL, "2.99.1", "2.99.1+cuda12.9"),
    ("NCCL version 2.28.9-1+cuda13.0", LogLibrary.NCCL, "2.28.9", "2.28.9-1+cuda13.0"),
    ("NCCL version 2.16.3a0+cuda11.7", LogLibrary.NCCL, "2.16.3", "2.16.3a0+cuda11.7"),
    ("# nccl-tests version 2.17.6 nccl-headers=22602 nccl-library=22703", LogLibrary.NCCL, "2.27.3", "2.27.3"),
    ("# nccl-tests version 2.9.0 nccl-headers=2708 nccl-library=2708", LogLibrary.NCCL, "2.7.8", "2.7.8"),
    ("RCCL version : 2.22.3-develop:1a2b3c4", LogLibrary.RCCL, "2.22.3", "2.22.3-develop:1a2b3c4"),
    ("RCCL version 2.20.5+hip6.2 HEAD:1a2b3c4+", LogLibrary.RCCL, "2.20.5", "2.20.5+hip6.2"),
    ("[2026-05-06 20:00:45] n1:7:8 [0] NCCL INFO RCCL version : 2.27.7-HEAD:0a1b2c3", LogLibrary.RCCL, "2.27.7", "2.27.7-HEAD:0a1b2c3"),
])  # fmt: skip
def test_forms_of_the_version(line: str, library: LogLibrary, number: str, text: str) -> None:
    found = started(line)
    assert found.release is not None
    assert (found.library, found.version, found.release.text) == (library, number, text)


@pytest.mark.parametrize("line", ["NCCL git version stable 1a2b3c4d", "Ring 00 : 0 -> 1", "NCCL version unknown"])
def test_lines_that_are_not_a_version(line: str) -> None:
    assert started(line).version is None


@pytest.mark.parametrize("line", [
    "NET/Plugin: Could not find: librccl-net.so. Using internal net plugin.", "ROCr version 1.18", "Kernel version: 6.8.0-136-generic",
    "GDRDMA not enabled. Could not find memory_peers directory or peer_memory symbol",
    "Hipruntime version: 70226015, firmware version: 2650",
])  # fmt: skip
def test_messages_that_only_rccl_prints(line: str) -> None:
    assert started(line).library is LogLibrary.RCCL


@pytest.mark.parametrize(("line", "fact"), [
    ("NCCL_IB_GID_INDEX set by environment to 3.", LogSetting("NCCL_IB_GID_INDEX", "3")),
    ("NCCL_IB_HCA set by environment to =mlx5_0,mlx5_1", LogSetting("NCCL_IB_HCA", "=mlx5_0,mlx5_1")),
    ("Comm config minCTAs reset to NCCL_MIN_CTAS=32", LogSetting("NCCL_MIN_CTAS", "32")),
    ("comm 0x5 rank 3 nRanks 16 nNodes 2 localRanks 8 localRank 3 MNNVL 0", Communicator(16, 2, 8, False)),
    ("comm 0x5 rank 3 nRanks 8 nNodes 1 localRanks 8 localRank 3 MNNVL 1", Communicator(8, 1, 8, True)),
    ("comm 0x5 rank 0 nRanks 4 nNodes 4 localRanks 1 localRank 0", Communicator(4, 4, 1, None)),
    ("MNNVL busId 0x901000 fabric UUID 4ac1.77be cliqueId 0x7ffe state 3 healthMask 0x55", FabricMember("4ac1.77be", "0x7ffe", 3)),
    ("MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX configuration", FabricBroken(8)),
    ("NET/Plugin: Loaded net plugin IBplug v10 (v10)", NcclPlugin(PluginKind.NET, PluginState.LOADED, "IBplug v10", 10)),
    ("NET/Plugin: Loaded collnet plugin SHARP (v8)", NcclPlugin(PluginKind.COLLNET, PluginState.LOADED, "SHARP", 8)),
    ("TUNER/Plugin: Using nccl_ofi_tuner (v3)", NcclPlugin(PluginKind.TUNER, PluginState.LOADED, "nccl_ofi_tuner", 3)),
    ("NET/Plugin: Could not find: libnccl-net.so", NcclPlugin(PluginKind.NET, PluginState.ABSENT)),
    ("PROFILER/Plugin: Could not find: libnccl-profiler.so. ", NcclPlugin(PluginKind.PROFILER, PluginState.ABSENT)),
    ("PROFILER/Plugin: Loaded Inspector (v4)", NcclPlugin(PluginKind.PROFILER, PluginState.LOADED, "Inspector", 4)),
    ("NET/Plugin: Failed to find ncclNetPlugin symbol (>= v5). ncclNetPlugin symbols v4 and lower are not supported.",
        NcclPlugin(PluginKind.NET, PluginState.UNSUITABLE)),
    ("External network plugin libnccl-net.so is unsupported", NcclPlugin(PluginKind.NET, PluginState.UNSUITABLE)),
    ("              + PCI[0.2] - PCI/0-65000 (104c823200000000)", GraphLink("PCI", 0.2, "PCI", "104c823200000000")),
    ("+ PCI[0.2] - GPU/0-68000 (5)", GraphLink("PCI", 0.2, "GPU")),
    ("              + NVL[370.8] - NVS/0-0", GraphLink("NVL", 370.8, "NVS")), ("rank 0 Connected CollNet", CollNet()),
    ("Loading topology file /opt/site/topo.xml", TopologyFile("/opt/site/topo.xml")),
    ("NET/OFI Running on p9.48xlarge platform, topology file /x/y.xml", Platform("p9.48xlarge")),
    ("#  Rank  3 Group  0 Pid   4711 on   node7 device  3 [0000:65:00] NVIDIA H200", ListedRank(3, 0, "node7", 3, "NVIDIA H200")),
    ("NET/IB : No device found.", ReportedProblem(HostProblem.NO_RDMA_DEVICE)),
    ("Failed to open libibverbs.so[.1]", ReportedProblem(HostProblem.NO_VERBS_LIBRARY)),
    ("Count not open libibverbs.so.1", ReportedProblem(HostProblem.NO_VERBS_LIBRARY)),
])  # fmt: skip
def test_a_message_and_its_fact(line: str, fact: LogFact) -> None:
    assert fact in started(line).of_kind(type(fact))


@pytest.mark.parametrize("line", [
    "Count not open libibverbs.so",  # the name for developers; libibverbs.so.1 is tried after it
    "NET/Plugin: Failed to find ncclNetPlugin_v10 symbol.", "NET/Plugin: Failed to find ncclCollNetPlugin_v6 symbol.",
    "+ PCI[24.0] - GPU/0-68000 (5)",
    "+ PCI[0.2] - NIC/0-67000",  # a management port may be as slow as that
    "TUNER/Plugin: Failed to find ncclTunerPlugin_v4 symbol.",
])  # fmt: skip
def test_messages_without_a_fact(line: str) -> None:
    found = started(line)
    assert set(found.facts) <= {UsedNetwork, GraphLink}
    assert not any(link.is_slow for link in found.of_kind(GraphLink))
