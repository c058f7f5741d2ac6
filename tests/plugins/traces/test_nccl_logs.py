"""Logs of NCCL, and the JSONL of its Inspector: what the public formats have, of several versions."""

import json
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.traces import inspector, nccl_log
from collbench.plugins.traces.matching import differences, match
from collbench.plugins.traces.model import DTYPES, KINDS, NONE, REDOPS, UNKNOWN, Part
from collbench.plugins.traces.reading import read_traces
from tools.benchmarks import trace_files


def log_line(rank, text):
    return f"node0:{100 + rank}:{200 + rank} [{rank}] NCCL INFO {text}\n"


def init(rank, size, pointer="0xa0", commid="0xc1", *, end="Init COMPLETE"):
    key = f"commId {commid} " if commid else ""
    text = f"ncclCommInitRank comm {pointer} rank {rank} nranks {size} cudaDev {rank} nvmlDev {rank} busId 1b000 {key}- {end}"
    return log_line(rank, text)


def call(
    rank, kind = "AllReduce", count = 8, *, size = 2, dtype = 7, op = 0, root = 0, pointer = "0xa0",
    launch = 0, stream = "0x5", more = "", accumulated = "",
):  # fmt: skip
    what = f"{accumulated}count {count} datatype {dtype} op {op} root {root} comm {pointer} [nranks={size}] stream {stream}{more}"
    return log_line(rank, f"{kind}: opCount {launch:x} sendbuff 0x7f0 recvbuff (nil) {what}")


def read_log(path, lines):
    path = path / "job.log"
    path.write_text("".join(lines))
    return read_traces([path])


def kinds(trace, rank):
    return [KINDS[each] for each in trace.ranks[rank].operations["kind"]]


class TestLog:
    def test_types_reduction_ops_roots_and_streams(self, tmp_path):
        lines = [init(rank, 2) for rank in range(2)]
        lines += [call(rank, dtype=9, op=3) for rank in range(2)]
        lines += [call(rank, "Broadcast", dtype=0, root=1, stream="0x6") for rank in range(2)]
        trace = read_log(tmp_path, [*lines, *(call(rank, "Reduce", op=9, dtype=40) for rank in range(2))])
        rows = trace.ranks[1].operations
        assert kinds(trace, 1) == ["allreduce", "broadcast", "reduce"]
        assert [DTYPES[each] if each != NONE else None for each in rows["dtype"]] == ["bfloat16", "int8", None]
        assert [REDOPS[each] if each != NONE else None for each in rows["redop"]] == ["min", None, None]
        assert rows["root"].tolist() == [UNKNOWN, 1, 0]
        assert rows["queue"].tolist() == [0, 1, 0]
        assert {Part.START_TIMES, Part.SEQUENCES, Part.DURATIONS} <= trace.missing
        assert not {Part.GROUPS, Part.ROOTS, Part.DTYPES, Part.SIZES, Part.REDOPS, Part.QUEUES} & trace.missing

    def test_sends_and_receives_of_one_launch_are_a_batch(self, tmp_path):
        lines = []
        for rank in range(2):
            other = {"root": 1 - rank}
            lines += [init(rank, 2), call(rank, "Send", **other, launch=4), call(rank, "Recv", **other, launch=4), call(rank, launch=5)]
            lines += [call(rank, "Send" if rank else "Recv", **other, launch=6)]
        trace = read_log(tmp_path, lines)
        assert trace.ranks[0].operations["root"].tolist() == [1, 1, UNKNOWN, 1]
        batch = trace.ranks[0].operations["batch"].tolist()
        assert batch[0] == batch[1] != UNKNOWN and batch[2:] == [UNKNOWN, UNKNOWN]
        (whole,) = match(trace)
        assert whole.messages.tolist() == [[0, 0, 1, 1], [1, 0, 0, 1], [1, 3, 0, 3]]
        assert list(differences(trace, (whole,))) == []

    def test_a_launchers_prefix_rccls_additions_and_communicators_at_one_address(self, tmp_path):
        lines = [f"[1,{rank}]<stdout>:{call(rank, more=f' task 0 globalrank {rank}', accumulated='acc (nil) ')}" for rank in range(2)]
        trace = read_log(tmp_path, ["building ...\n", *(line.replace("] NCCL", "] 1558545003174220 NCCL") for line in lines)])
        assert (trace.world, [rank.rank for rank in trace.ranks], kinds(trace, 1)) == (2, [0, 1], ["allreduce"])
        lines = []
        for rank in range(2):
            lines += [init(rank, 2, end="Init START"), init(rank, 2), call(rank), init(rank, 2, commid="", end="Destroy COMPLETE")]
            lines += [init(rank, 2, commid="0xc2"), call(rank, "AllGather")]
        trace = read_log(tmp_path, lines)
        assert [group.name for group in trace.groups] == ["0xc1", "0xc2"]
        assert trace.ranks[0].operations["group"].tolist() == [0, 1]
        assert not nccl_log.recognizes(Path("notes.md"), b"watch for NCCL INFO AllReduce: opCount in the log")

    @pytest.mark.parametrize(("lines", "what"), [
        ([call(0), call(1)], "NCCL_DEBUG_SUBSYS=INIT,COLL"), ([init(0, 2), init(1, 2)], "no call"),
        ([init(0, 2), call(0)[:60] + "\n"], "line 2"), ([init(0, 2), call(0).strip()[:-30] + call(1)], "line 2"),
        ([init(0, 2), call(0), init(0, 2).replace("node0", "node1"), call(0).replace("node0", "node1")], "twice"),
        ([init(0, 2), call(0), init(1, 4).replace("0xc1", "0xc1"), call(1, size=4)], "has 4 ranks"),
        ([init(0, 2), call(0), init(1, 2, commid="0xc2"), call(1)], "no communicator connects all"),
        ([init(5, 2).replace("[5]", "[0]"), call(5)], "not valid"),
    ])  # fmt: skip
    def test_what_cannot_be_read(self, lines, what, tmp_path):
        with pytest.raises(UsageError, match=what):
            read_log(tmp_path, lines)


def record(rank=0, number=0, *, size=2, kind="AllReduce", key="0xa", dump=0, **more):
    """A line of NCCL Inspector, version 4.0."""
    performance = {"coll": kind, "coll_sn": number, "coll_msg_size_bytes": 64, "coll_exec_time_us": 50, **more}
    return {
        "header": {"id": key, "rank": rank, "n_ranks": size, "nnodes": 1},
        "metadata": {"hostname": "node0", "pid": 10 + rank, "dump_timestamp_us": 1000 + dump},
        "coll_perf": performance,
    }


def write(path, *records):
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


class TestInspector:
    def test_what_it_has(self, tmp_path):
        path = write(tmp_path / "a.log", record(kind="AllGather"), record(kind="ReduceScatter"), record(kind="Unheard"))
        other = write(tmp_path / "b.log", *(record(1, kind=kind) for kind in ("AllGather", "ReduceScatter", "Unheard")))
        trace = read_traces([path, other])
        rows = trace.ranks[0].operations
        assert kinds(trace, 0) == ["allgather", "reducescatter", "other"]
        assert rows["sent"].tolist() == [64, 128, UNKNOWN] and rows["received"].tolist() == [128, 64, UNKNOWN]
        assert rows["duration"].tolist() == [50_000] * 3 and rows["start"].tolist() == [UNKNOWN] * 3
        assert {Part.DTYPES, Part.REDOPS, Part.ROOTS, Part.START_TIMES} <= trace.missing
        assert not {Part.DURATIONS, Part.GROUPS, Part.OPERATIONS, Part.ORDER} & trace.missing

    def test_rotated_files_of_a_process_are_one_rank(self, tmp_path):
        later = write(tmp_path / "a.log", record(number=1, kind="AllGather", size=1, dump=9), record(number=2, size=1, dump=9))
        earlier = write(tmp_path / "b.log", record(number=0, size=1), record(kind="AllGather", size=1), record(number=1, size=1))
        trace = read_traces([later, earlier])
        assert kinds(trace, 0) == ["allreduce", "allgather", "allreduce", "allgather", "allreduce"]
        assert trace.ranks[0].operations["sequence"].tolist() == [0, 1, 2, 3, 4]

    def test_verbose_records_have_times_and_the_order_of_the_program(self, tmp_path):
        def at(time):
            kernels = [{"kernel_start_ts": time + 10 + channel, "kernel_stop_ts": time + 50 + channel} for channel in range(2)]
            return {"event_trace_ts": {"coll_start_ts": time, "kernel_events": kernels}}

        trace = read_traces([write(tmp_path / "a.log", record(size=1, key="0xb", **at(300)), record(size=1, **at(200)))])
        rows = trace.ranks[0].operations
        assert [trace.groups[number].name for number in rows["group"]] == ["0xa", "0xb"]
        assert [rows[name].tolist() for name in ("created", "start", "end")] == [[200_000, 300_000], [210_000, 310_000], [251_000, 351_000]]
        assert not {Part.START_TIMES, Part.ORDER} & trace.missing

    def test_operations_that_ranks_have_lost_are_no_differences(self, tmp_path):
        first = write(tmp_path / "a.log", *(record(number=number) for number in (0, 1, 4)), record(kind="AllGather", number=1))
        second = write(tmp_path / "b.log", *(record(1, number=number) for number in (0, 2, 4)), record(1, kind="AllGather"))
        trace = read_traces([first, second])
        (whole,) = match(trace)
        assert Part.OPERATIONS in trace.missing
        assert list(differences(trace, (whole,))) == []
        both = (whole.calls != UNKNOWN).all(axis=1)
        for at, path in enumerate((first, second)):
            assert [inspector_number(path, index) for index in whole.calls[both][:, at]] == [("AllReduce", 0), ("AllReduce", 4)]

    def test_version_4_3_has_the_header_in_a_line_before(self, tmp_path):
        whole = record(size=1)
        marker = {"header": whole["header"], "metadata": whole["metadata"], "dump_stats": {"coll_records": 1, "coll_dropped_total": 0}}
        message = {"p2p_perf": {"p2p": "Send", "p2p_sn": 0, "p2p_peer": 0, "p2p_msg_size_bytes": 32, "p2p_exec_time_us": 4}}
        trace = read_traces([write(tmp_path / "a.log", marker, {"coll_perf": whole["coll_perf"]}, message, {"proxy_trace": {}})])
        assert kinds(trace, 0) == ["allreduce", "send"]
        assert trace.ranks[0].operations["root"].tolist() == [UNKNOWN, 0]
        assert Part.OPERATIONS not in trace.missing
        marker["dump_stats"] = {"coll_dropped_total": 3}
        assert Part.OPERATIONS in read_traces([write(tmp_path / "a.log", marker, {"coll_perf": whole["coll_perf"]})]).missing

    def test_a_process_with_several_gpus(self, tmp_path):
        records = [record(rank, number) for number in range(3) for rank in range(2)]
        for each in records:
            each["metadata"]["pid"] = 10
        trace = read_traces([write(tmp_path / "a.log", *records)])
        assert [len(rank.operations) for rank in trace.ranks] == [3, 3]

    @pytest.mark.parametrize(("records", "what"), [
        ([record(), record()], "twice"), ([record(), {"coll_perf": {"coll": "AllReduce"}}], "line 2"),
        ([record(), record(number=-1)], "line 2"),
        ([record(), {**record(), "header": {"id": "0xa", "rank": 0, "n_ranks": 1 << 70}}], "line 2"),
        ([record(rank=7)], "not valid"), ([record(), record(size=4, rank=1)], "has 4 ranks"),
        ([record(key="0xa"), record(1, key="0xb")], "no communicator connects all"),
    ])  # fmt: skip
    def test_what_cannot_be_read(self, records, what, tmp_path):
        with pytest.raises(UsageError, match=what):
            read_traces([write(tmp_path / "a.log", *records)])

    def test_a_line_without_any_header_before(self, tmp_path):
        with pytest.raises(UsageError, match="line 1: 'header' is missing"):
            inspector.read(write(tmp_path / "a.log", {"coll_perf": record()["coll_perf"]}))


def inspector_number(path, index):
    """Kind and NCCL's number of a record."""
    performance = json.loads(path.read_text().splitlines()[index])["coll_perf"]
    return performance["coll"], performance["coll_sn"]


def test_both_formats_of_one_job_have_the_same_traffic(tmp_path):
    traces = []
    for write_files in (trace_files.inspector, trace_files.nccl_log):
        folder = tmp_path / write_files.__name__
        folder.mkdir()
        write_files(folder, 30, 8)
        traces.append(read_traces([folder]))
    for one, other in zip(*(trace.ranks for trace in traces), strict=True):
        assert (one.operations["kind"] == other.operations["kind"]).all()
        assert (one.operations["received"] == 4 * other.operations["received"]).all()  # bytes, and elements of float32
