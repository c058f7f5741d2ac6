"""NCCL's log: only connection lines prove a path; everything else shows what could be used."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.readers import nccl_log
from collbench.machine.readers.nccl_log import GDR, KIND, CallChoice, Connection, NcclLog, looks_like, read, read_file
from collbench.machine.readers.nccl_startup import LogLibrary, Release
from collbench.machine.readers.text import Unreadable
from tests.benchmarks.nccl_log import KINDS
from tests.machines import captures

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
    "n1:1:2 [0] NCCL INFO Channel 00/16 :  0 7 6 5 4 3 2 1 ...",
    "n1:1:2 [0] NCCL INFO               + PCI[24.0] - GPU/0-cf000 (5)",
    "n1:1:2 [0] NCCL INFO NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [2]mlx5_2:1/IB ; OOB eth0:1<0>",
]


def log(*lines: str) -> NcclLog:
    """A log of these messages, each with NCCL's prefix."""
    return read("\n".join(f"node1:1:2 [0] NCCL INFO {line}" for line in lines), "nccl.log")


def test_a_whole_log() -> None:
    assert read(IB, "nccl.log") == NcclLog(
        "nccl.log", "2.21.5", "IB", {"NET/IB/0/GDRDMA": 2, "NET/IB/1/GDRDMA": 1, "P2P/CUMEM/read": 1}, ("node1", "node2"),
        ("mlx5_0:1/IB", "mlx5_1:1/IB"), (), ("mlx5_0",), (), gdr_send=True, gdr_receive=True, dma_buf=True, nvls_available=False,
        relaxed_ordering=True, ranks=4, ranks_at_least=4, gdr_gpus=(("node1", "0"),),
        channels=(
            ("node1", Connection(0, 2, 0, "receive", "NET/IB/0/GDRDMA", "0")),
            ("node1", Connection(0, 0, 2, "send", "NET/IB/0/GDRDMA", "0")),
            ("node2", Connection(1, 1, 3, "send", "NET/IB/1/GDRDMA", "1")), ("node2", Connection(1, 1, 0, "", "P2P/CUMEM/read", None)),
        ), names={("node1", 0): "mlx5_0:1/IB", ("node1", 1): "mlx5_1:1/IB"},
        startup=(("", Release(LogLibrary.NCCL, "2.21.5", "2.21.5+cuda12.4")),),
    )  # fmt: skip


def test_each_direction_of_gpudirect_is_distinguished() -> None:
    both = read(IB, "nccl.log")
    assert (both.gdr_send, both.gdr_receive) == (True, True)
    assert [key for key in both.transports if key.endswith(GDR)] == ["NET/IB/0/GDRDMA", "NET/IB/1/GDRDMA"]
    one = log("Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA", "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'")
    assert (one.gdr_send, one.gdr_receive) == (True, False)


def test_which_gpus_are_proven() -> None:
    """A [send] line is written by the GPU that sends, a [receive] line by the one that receives."""
    found = read(
        "n1:1:2 [3] NCCL INFO Channel 00/0 : 3[3] -> 11[3] [send] via NET/IB/3/GDRDMA\n"
        "n1:1:2 [3] NCCL INFO Channel 00/0 : 11[3] -> 3[3] [receive] via NET/IB/3/GDRDMA\n"
        "n1:1:3 [4] NCCL INFO Channel 00/0 : 4[4] -> 12[4] [send] via NET/IB/4\n"
        "n1:1:3 [4] NCCL INFO Channel 00/0 : 12[4] -> 4[4] [receive] via NET/IB/4/GDRDMA\n"
        "n2:1:3 [5] NCCL INFO Channel 00/0 : 13[5] -> 5[5] [send] via NET/IB/4/GDRDMA\n",
        "x.log",
    )
    assert (found.gdr_gpus, found.staged_gpus) == ((("n1", "3"),), (("n1", "4"),))


def test_older_logs_name_gpus_by_their_place_on_the_bus() -> None:
    found = log(
        "Channel 00 : 0[1b000] -> 8[1b000] [send] via NET/IB/0/GDRDMA", "Channel 00 : 8[1b000] -> 0[8051d000] [receive] via NET/IB/0"
    )
    assert found.staged_gpus == (("node1", "0805:1d:00.0"),)
    assert log("Channel 00 : 0[1b000] -> 8[1c000] [send] via NET/IB/0").staged_gpus == (("node1", "0000:1b:00.0"),)


def test_the_numbers_of_devices_are_those_of_nccl() -> None:
    assert read(IB, "nccl.log").indices == (0, 1)


def test_rdma_without_the_suffix_is_staged() -> None:
    found = log("Channel 15/0 : 33[1] -> 41[1] [send] via NET/IBext_v8/4", "Channel 15/0 : 41[1] -> 33[1] [receive] via NET/IBext_v8/4")
    assert (found.net, found.staged, found.gdr_send, found.gdr_receive) == ("IBext_v8", 2, False, False)


def test_sockets_are_no_rdma_that_is_staged() -> None:
    found = log("Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0")
    assert (found.net, found.staged, found.sockets, found.lines_of("NET/Socket")) == ("Socket", 0, "data", 1)


def test_a_hca_that_is_both_enabled_and_disabled_is_in_both() -> None:
    found = log("GPU Direct RDMA Enabled for HCA 0 'rocep1s0f0'", "GPU Direct RDMA Disabled for HCA 0 'rocep1s0f0'")
    assert found.gdr_enabled == found.gdr_disabled == ("rocep1s0f0",)
    assert log("GPU Direct RDMA Disabled for GPU 0[1b000] / HCA 0 (distance 4 > 2)").gdr_disabled == ("HCA 0",)


def test_a_speed_that_nccl_made_up() -> None:
    text = "Could not get speed from /sys/class/net/eth1/speed. Defaulting to 10 Gbps."
    assert log(text).default_speed == ("eth1",)
    assert log("Defaulting to 10 Gbps.").default_speed == ("?",)


def test_the_words_of_launchers_and_programs_in_front_do_not_matter() -> None:
    text = "step 1 loss 3.2\n[1,0]<stdout>:node7:5:6 [0] NCCL INFO Using network IB\n3: node8:5:6 [1] NCCL INFO Connected all rings\n"
    assert (read(text, "job.out").hosts, read(text, "job.out").net) == (("node7", "node8"), "IB")


def test_rccl_is_read_too() -> None:
    assert read("RCCL version : 2.21.5-HEAD:abc\nn1:1:2 [0] NCCL INFO Using network IB", "rccl.log").version == "2.21.5"


def test_a_cut_listing_gives_the_least_number_of_ranks() -> None:
    found = log("Channel 00/16 :  0 7 6 5 23 22 ...")
    assert (found.ranks, found.ranks_at_least) == (None, 24)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "x.log has no line of NCCL"), ("no such thing here", "run with NCCL_DEBUG=INFO and save what the ranks print")],
)
def test_text_without_nccl(text: str, expected: str) -> None:
    with pytest.raises(Unreadable, match=expected):
        read(text, "x.log")


@pytest.mark.parametrize(
    ("data", "expected"), [(b"", "is empty"), (b"\x7fELF\x00\x00NCCL INFO", "is binary"), (None, "nccl.log is not there")]
)
def test_files_that_are_no_log(data: bytes | None, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "nccl.log"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(Unreadable, match=expected):
        read_file(file)


@pytest.mark.parametrize(("kind", "expected"), [("folder", "is a folder: name the file"), ("pipe", "is a pipe"), ("device", "is a device")])
def test_what_is_no_file_is_refused_and_never_waited_for(kind: str, expected: str, tmp_path: Path) -> None:
    file = Path("/dev/zero") if kind == "device" else tmp_path / "nccl.log"
    if kind != "device":
        file.mkdir() if kind == "folder" else os.mkfifo(file)
    with pytest.raises(Unreadable, match=expected):
        read_file(file)


def test_a_compressed_log(tmp_path: Path) -> None:
    (tmp_path / "nccl.log.gz").write_bytes(gzip.compress(IB.encode()))
    assert read_file(tmp_path / "nccl.log.gz").transports == read(IB, "x").transports


def test_lines_of_windows_and_a_last_line_that_is_cut(tmp_path: Path) -> None:
    (tmp_path / "nccl.log").write_bytes(
        IB.replace("\n", "\r\n").encode() + b"node1:11:21 [0] NCCL INFO Channel 02/0 : 0[0] -> 2[0] [send] via NET/I"
    )
    found = read_file(tmp_path / "nccl.log")
    assert found.transports == {**read(IB, "x").transports, "NET/I": 1}
    assert (found.hosts, found.version, found.net, found.hcas) == (("node1", "node2"), "2.21.5", "IB", ("mlx5_0:1/IB", "mlx5_1:1/IB"))


def test_a_log_of_many_blocks_is_read_as_one(tmp_path: Path) -> None:
    lines = 30_000
    (tmp_path / "nccl.log").write_text(
        "".join(f"n1:1:2 [0] NCCL INFO Channel {i % 32:02d}/0 : {i}[0] -> 7[7] via P2P/CUMEM\n" for i in range(lines))
    )
    found = read_file(tmp_path / "nccl.log")
    assert (found.transports, found.hosts) == ({"P2P/CUMEM": lines}, ("n1",))
    assert (len(found.channels), found.channels_left_out) == (nccl_log.MOST_CHANNELS, lines - nccl_log.MOST_CHANNELS)


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


@pytest.mark.parametrize(
    ("line", "key", "choice"),
    [
        ("1048576 Bytes -> Algo 1 proto 2 time 34.1", (None, 1048576), CallChoice("RING", "SIMPLE", None)),  # 2.20 to 2.22
        ("AllReduce: 8 Bytes -> Algo 0 proto 0 time 9.5", ("AllReduce", 8), CallChoice("TREE", "LL", None)),  # 2.23
        (
            "AllReduce: 64 Bytes -> Algo NVLS_TREE proto LL128 channel{Lo..Hi}={0..7}",
            ("AllReduce", 64),
            CallChoice("NVLS_TREE", "LL128", 8),
        ),
        (
            "Broadcast: 64 Bytes -> Algo RING proto LL channel{Lo..Hi}={3..3} cgaClusterSize 4",  # 2.32
            ("Broadcast", 64), CallChoice("RING", "LL", 1),
        ),
        (
            "AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 nthreads 512 nWorks 1",
            ("AllReduce", 4096), CallChoice("Symmetric AllReduce_AGxLL_R", None, 8),
        ),
        ("AllGather [Copy Engine]: 32 Bytes -> cudaMemcpy; CE sync", ("AllGather", 32), CallChoice("Copy Engine", None, None)),
        ("AllGather [Hierarchical CE]: 32 Bytes -> RMA proxy + CE", ("AllGather", 32), CallChoice("Hierarchical CE", None, None)),
    ],
)  # fmt: skip
def test_what_nccl_chose_for_a_call(line: str, key: tuple[str | None, int], choice: CallChoice) -> None:
    assert log(line, line).choices == {key: {choice: 2}}


def test_a_size_with_two_choices_has_the_usual_one_first() -> None:
    lines = [f"AllReduce: 8 Bytes -> Algo {name} proto LL channel{{Lo..Hi}}={{0..0}}" for name in ("TREE", "RING", "RING")]
    assert list(log(*lines).choices["AllReduce", 8].items()) == [(CallChoice("RING", "LL", 1), 2), (CallChoice("TREE", "LL", 1), 1)]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/RoCE [RO]; OOB eth0:10.0.0.1<0>", {0: "mlx5_0:1/IB", 1: "mlx5_3:1/RoCE"}),
        ("NET/IB : Using [0]mlx5_0:1:4:2/IB [1]mlx5_1:1::2/IB ; OOB eth0:10.0.0.1<0>", {0: "mlx5_0:1:4:2/IB", 1: "mlx5_1:1::2/IB"}),
        (
            "NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [2]mlx5_2:1/IB ; OOB e:1<0>",
            {0: "mlx5_0:1/IB+mlx5_1:1/IB", 2: "mlx5_2:1/IB"},
        ),
        ("NET/IB : Made virtual device [8] name=mlx5_0+mlx5_1 speed=400000 ndevs=2 rail=0 plane=0", {8: "mlx5_0+mlx5_1"}),
        ("NET/Libfabric : GPU Direct RDMA Enabled for HCA 3 'rdmap79s0'", {3: "rdmap79s0"}),
    ],
)
def test_the_names_of_the_devices(line: str, names: dict[int, str]) -> None:
    assert log(line).names == {("node1", number): name for number, name in names.items()}


def test_the_number_that_nccl_gives_at_last_is_the_one_of_its_connections() -> None:
    found = log("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB e:1<0>", "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_1'")
    assert found.names["node1", 0] == "mlx5_1"


def test_how_many_channels_there_are() -> None:
    said = "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 2 p2p channels per peer"
    assert log(said).stated == {"coll": 24, "collnet": 24, "nvls": 16, "p2p": 32}


def test_words_behind_gdrdma_do_not_hide_it() -> None:
    found = log("Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/0/GDRDMA(PCI)/Shared/New")
    assert (found.transports, found.staged, found.gdr_receive) == ({"NET/IB/0/GDRDMA": 1}, 0, True)


def test_a_word_in_a_sentence_is_no_connection() -> None:
    found = log("NET/OFI Selected Provider is efa (found 16 nics) via 8 groups", "Using network AWS Libfabric via plugin")
    assert (found.transports, found.provider, found.nics) == ({}, "efa", 16)


def test_control_characters_do_not_come_through() -> None:
    found = read("n:1:2 [0] NCCL WARN \x1b[31mred\x07", "n\x1b.log")
    assert (found.warnings, found.name) == (("?[31mred?",), "n?.log")


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(st.text(max_size=400), st.lists(st.sampled_from([*IB.splitlines(), *MORE]), max_size=12).map("\n".join)),
    st.integers(0, 400),
    st.text(max_size=20),
)
def test_any_text_is_read_or_refused(text: str, place: int, inserted: str) -> None:
    mutated = text[:place] + inserted + text[place:]
    try:
        found = read(mutated, "fuzz.log")
    except Unreadable:
        return
    assert isinstance(found, NcclLog)
    assert not (found.gdr_send and found.gdr_receive) or ("[send]" in mutated and "[receive]" in mutated)


def test_a_line_that_never_ends_is_cut() -> None:
    assert read("n:1:2 [0] NCCL INFO " + "(1/2.0/" * 100_000, "long.log").paths == {}


_NEW_WORDS = {"direct shared memory": "SHM"}
_OURS: dict[str, Any] = {
    "net": lambda found: found.net,
    "iface": lambda found: found.interfaces[0],
    "ranks": lambda found: found.ranks,
    "ranks_at_least": lambda found: found.ranks_at_least,
    "transports": lambda found: dict(found.transports),
    "hosts": lambda found: sorted(found.hosts),
    "gdr_send": lambda found: found.gdr_send,
    "gdr_receive": lambda found: found.gdr_receive,
    "hca_indices_used": lambda found: list(found.indices),
    "gdrdma_lines": lambda found: sum(count for key, count in found.transports.items() if "GDRDMA" in key),
    "gdr_capable": lambda found: {name: name in found.gdr_enabled for name in (*found.gdr_enabled, *found.gdr_disabled)},
    "relaxed_ordering": lambda found: found.relaxed_ordering,
    "nvls_available": lambda found: found.nvls_available,
    "provider": lambda found: found.provider,
    "nics": lambda found: found.nics,
    "nic_groups": lambda found: found.nic_groups,
    "dmabuf": lambda found: found.dma_buf,
    "warnings": lambda found: len(found.warnings),
    "graph": lambda found: {kind: widths[0] for kind, widths in found.graph.items()},
    "link": lambda found: found.hcas[0].rpartition("/")[2],
}


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
    assert looks_like(captures.text(name, "nccl.log"), "nccl.log"), KIND


def test_trap_a_socket_line_beside_infiniband_is_only_where_ranks_meet() -> None:
    found = captured("log-ncc247-ib-nogdr")
    assert (found.version, found.net, found.sockets, found.hcas) == ("2.4.7", "IB", "bootstrap", ("mlx5_0:1/IB",))


def test_trap_a_ring_listing_is_no_connection() -> None:
    assert captured("log-gcp-a3-tcp").transports == {}


def test_trap_paths_below_one_switch_are_phb() -> None:
    assert set(captured("log-rtx4090-graph").paths) == {"PHB", "SYS"}
