"""Lines of NCCL and RCCL: their writers and levels, and the facts of messages of several versions."""

import pytest

from collbench.machine.readers import nccl_facts as nccl
from collbench.machine.readers.nccl_lines import INFO, LONGEST, TRACE, VERSION, WARN, LogWriter, cleaned, split_line, writer_of
from collbench.machine.readers.nccl_log import read


@pytest.mark.parametrize(("line", "level", "text"), [
    (b"gpu-7.rack2.example:81:99 [1] NCCL INFO Using network IB", INFO, b"Using network IB"),
    (b"gpu7:81:99 [1] init.cc:88 NCCL WARN Cuda failure", WARN, b"Cuda failure"),
    (b"gpu7:81:99 [1] NCCL TRACE launched", TRACE, b"launched"),
    (b"gpu7:81:99 [1] 155854500317 NCCL INFO Trees", INFO, b"Trees"),  # RCCL
    (b"gpu7:81:99 [1] RCCL INFO Trees", INFO, b"Trees"),
    (b"RCCL version : 2.22.3-develop:1a2b", VERSION, b"RCCL version : 2.22.3-develop:1a2b"),
    (b"gpu7:81:99 [1] NCCL INFO", INFO, b""),  # cut off behind the level
])  # fmt: skip
def test_the_level_and_the_text_of_a_line(line: bytes, level: bytes, text: bytes) -> None:
    logged = split_line(line)
    assert logged is not None
    assert (logged.level, logged.text, logged.head + logged.text) == (level, text, line)


@pytest.mark.parametrize("line", [b"", b"step 7 loss 0.2", b"gpu7:81:99 [1] NCCL INF", b"XCCL INFO x", b"(set NCCL_DEBUG=INFO)"])
def test_other_lines_have_no_parts(line: bytes) -> None:
    assert split_line(line) is None


@pytest.mark.parametrize(("head", "writer"), [
    (b"gpu-7.rack2.example:81:99 [1] ", LogWriter("gpu-7.rack2.example", 81, 1)),
    (b"10.0.0.7:81:99 [1] ", LogWriter("10.0.0.7", 81, 1)),
    (b"fe80::12:4711:4720 [3] ", LogWriter("fe80::12", 4711, 3)),  # not host "12"
    (b"[1,3]<stdout>:2001:db8:0:0:0:0:0:7:81:99 [1] ", LogWriter("2001:db8:0:0:0:0:0:7", 81, 1, 3)),
    (b"[2026-05-06 20:00:45] gpu7:81:99 [1] ", LogWriter("gpu7", 81, 1)), (b"12: gpu7:81:99 [1] ", LogWriter("gpu7", 81, 1, 12)),
    (b"[rank5]:gpu7:81:99 [-1] ", LogWriter("gpu7", 81, -1, 5)), (b"gpu7:81 [1] ", LogWriter()), (b"", LogWriter()),
])  # fmt: skip
def test_the_writer_of_a_line(head: bytes, writer: LogWriter) -> None:
    assert writer_of(head + b"NCCL INFO Using network IB") == writer


def test_the_process_and_part_of_a_writer() -> None:
    assert (LogWriter("n1", 7, 2).process, LogWriter("n1", 7, 2).part, LogWriter("n1", 7, 2, 9).part) == ("n1:7", "GPU 2", "rank 9")
    assert (LogWriter("n1").process, LogWriter().part) == ("", "")


def test_colours_are_removed_and_long_lines_are_cut() -> None:
    assert cleaned(b"\x1b[36mgpu7:81:99 [1] NCCL INFO Trees\x1b[0m") == b"gpu7:81:99 [1] NCCL INFO Trees"
    cut = cleaned(b"gpu7:81:99 [1] NCCL INFO Channel 00/16 : " + b" 12" * 4000)
    assert len(cut) <= LONGEST and cut.endswith(b" 12 ...")


@pytest.mark.parametrize(("message", "facts"), [
    # the forms of settings before and since 2.19, and where a setting takes precedence over the call's configuration
    (b"NCCL_IB_HCA set to mlx5_0", [nccl.LogSetting("NCCL_IB_HCA", "mlx5_0")]),
    (b"NCCL_ALGO set by environment to Tree;allreduce:Ring", [nccl.LogSetting("NCCL_ALGO", "Tree;allreduce:Ring")]),
    (b"RCCL_MSCCL_ENABLE set by environment to 0.", [nccl.LogSetting("RCCL_MSCCL_ENABLE", "0")]),
    (b"Comm config maxCTAs reset to NCCL_MAX_CTAS=8", [nccl.LogSetting("NCCL_MAX_CTAS", "8")]),
    (b"NCCL_MAX_CTAS=8 is not a setting that the library reports", []),
    # an older release calls its plug-in for reductions "coll"
    (b"NET/Plugin: Loaded coll plugin SHARP (v4)", [nccl.NcclPlugin(nccl.PluginKind.COLLNET, nccl.PluginState.LOADED, "SHARP", 4)]),
    (b"NET/Plugin: Loaded net plugin IBext (v8)", [nccl.NcclPlugin(nccl.PluginKind.NET, nccl.PluginState.LOADED, "IBext", 8)]),
    (b'{"log": "NCCL version 2.19.3+cuda12.3"', [nccl.Release(nccl.LogLibrary.NCCL, "2.19.3+cuda12.3", "2.19.3")]),
    (b"Channel 01/04 :    3   2   1   0", [nccl.RankCount(4)]), (b"Channel 01/04 :    0   1  63 ...", [nccl.RankCount(64, True)]),
    (b"Ring 00 : 0 -> 1", []),
    (b"NET/IB : GPU Direct RDMA Enabled for HCA 2 'mlx5_2'", [nccl.DirectAccess("mlx5_2", True), nccl.DeviceName(2, "mlx5_2")]),
    (b"GPU Direct RDMA Disabled for GPU 1 / HCA 2 (distance 5 > 4)", [nccl.DirectAccess("HCA 2", False)]),
    (b"NET/Socket : Using [0]ens3.100:10.0.0.1<0>", [nccl.NetDevice("Socket", 0, "ens3.100")]),
    (b"AllReduce: opCount 2 sendbuff 0x7f NET/IB : Using [0]x:1/IB", []),  # lines of two processes
    (b"Using netw", []),
])  # fmt: skip
def test_the_facts_of_a_message(message: bytes, facts: list[nccl.LogFact]) -> None:
    by_name = sorted(nccl.facts_in(message), key=repr)
    assert by_name == sorted(facts, key=repr)


@pytest.mark.parametrize(("line", "ranks"), [
    (b"#  Rank  9 Group  1 Pid  12 on gpu-7.rack2 device  1 [0x1b] NVIDIA A100", [nccl.ListedRank(9, 1, "gpu-7.rack2", 1, "NVIDIA A100")]),
    (b"[1,0]<stdout>:#   Rank  0 Pid 12 on gpu7 device  0 [0x1b] AMD MI300X", [nccl.ListedRank(0, None, "gpu7", 0, "AMD MI300X")]),
    (b"Rank  0 Pid 12 on gpu7 device  0 [0x", [nccl.ListedRank(0, None, "gpu7", 0, None)]),
    (b"# Rank 0 Pid 12 on", []),
])  # fmt: skip
def test_a_rank_that_nccl_tests_lists(line: bytes, ranks: list[nccl.LogFact]) -> None:
    assert nccl.ListedRank.facts_in(line) == ranks


@pytest.mark.parametrize(("message", "path"), [
    (b"Channel 03/1 : 8[0] -> 0[0] [receive] via NET/IB/2(8)/GDRDMA", nccl.Connection("n1", "0", "receive", "NET/IB/2/GDRDMA")),
    (b"Channel 03 : 8[1b000] -> 0[3b000] [receive] via NET/IB/2", nccl.Connection("n1", "0000:3b:00.0", "receive", "NET/IB/2")),
    (b"Ring 00 : 2[0] -> 3[1] via P2P/direct pointer", nccl.Connection("n1", None, "", "P2P/direct pointer")),
    (b"CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA", nccl.Connection("n1", None, "send", "COLLNET/SHARP/0/GDRDMA")),
    (b"the traffic goes via eth0", None),
])  # fmt: skip
def test_a_connection(message: bytes, path: nccl.Connection | None) -> None:
    assert nccl.connection("n1", message) == path


CALL = b"AllReduce: opCount 1f sendbuff 0x7f recvbuff (nil) count 8 datatype 7 op 0 root 0 comm 0xa0 [nranks=2] stream 0x5"


def test_calls_and_communicators() -> None:
    call = nccl.CollectiveCall("AllReduce", 0x1F, 8, 7, 0, 0, 0xA0, 2, 5, None)
    assert nccl.CollectiveCall.facts_in(CALL) == [call]
    assert nccl.CollectiveCall.facts_in(CALL[:-30]) == []
    assert [call.rank for call in nccl.CollectiveCall.facts_in(CALL + b" task 0 globalrank 3")] == [3]
    split = b"ncclCommSplit comm 0xb0 rank 1 nranks 2 cudaDev 1 busId 1b000 parent 0xa0 splitCount 1 color -1 key 0- Init COMPLETE"
    assert nccl.CommunicatorEvent.facts_in(split) == [nccl.CommunicatorEvent(0xB0, 1, 2, 1, None, 0xA0, 1, -1, "Init COMPLETE")]
    assert nccl.CommunicatorEvent.facts_in(split[:-2]) == []


def test_every_kind_is_recognized_by_a_hint_and_pattern() -> None:
    kinds = {kind.__name__ for kind in nccl.LogFact.__subclasses__() if not kind.hints}
    assert kinds == {"LoggedWarning", "ListedRank", "LinkedRelease", "CollectiveCall", "CommunicatorEvent"}
    patterns = [kind.pattern.pattern for kind in nccl.LogFact.__subclasses__() if hasattr(kind, "pattern")]
    assert all(b"*" not in pattern.replace(rb"\s*$", b"") for pattern in patterns)


def test_processes_that_write_in_turn_are_kept_apart() -> None:
    lines = [
        "0: n1:7:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
        "1: n2.example:8:9 [1] NCCL INFO NET/IB : Using [0]mlx5_4:1/RoCE [RO]; OOB eth0:10.0.0.2<0>",
        "0: n1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA",
        "1: n2.example:8:9 [1] NCCL INFO Channel 01/0 : 1[1] -> 0[0] [send] via NET/IB/0",
        "0: n1:7:9 [0] NCCL INFO Channel 02/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA",
        "1: n2.example:8:9 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0/GDR",  # cut off
    ]
    log = read("\n".join(lines), "job.log")
    assert log.names == {("n1", 0): "mlx5_0:1/IB", ("n2.example", 0): "mlx5_4:1/RoCE"}
    assert {path.host: lines.channels for path, lines in log.connections.items() if path.is_direct} == {"n1": {0, 2}}
    assert log.staged_gpus == (("n2.example", "1"),)
    assert log.library is nccl.LogLibrary.NCCL


def test_version_numbers_of_nccl_tests() -> None:
    assert (nccl.dotted(22907), nccl.dotted(2708)) == ("2.29.7", "2.7.8")
