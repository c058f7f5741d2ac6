"""Formats of acceptance tests, profilers, PARAM and Gloo's benchmark become rows with the values that the tool printed."""

import json
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.importers import notes
from collbench.plugins.importers.gloo import GLOO
from collbench.plugins.importers.importer import UserInput, lines_of
from collbench.plugins.importers.param import PARAM
from collbench.plugins.importers.store import reader_for

SAMPLES = Path(__file__).parent / "samples"
NOTHING = UserInput()
UCX_FINAL = "Final:                  1000     0.000   986.122   986.122     9670.96    9670.96        1014        1014"
UCX_HEAD = "|              |              |      overhead (usec)        |   bandwidth (MB/s)  |  message rate (msg/s) |"
FABTESTS = "bytes   iters   total       time     MB/sec    usec/xfer   Mxfers/sec"
PINGPONG = "name      bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec"
RCCL_RECORD = {
    "name": "AllReduce", "size": 1048576, "type": "float", "redop": "sum", "inPlace": 0, "time": 55.66, "algBw": 18.84, "busBw": 32.97,
}  # fmt: skip
RCCL_HEADER = "numCycle,name,nodes,ranks,ranksPerNode,gpusPerRank,size,type,redop,inPlace,time,algBw,busBw,#wrong"
RCCL_LINE = '0,"AllReduce",1,8,8,1,1048576,"float","sum",0,55.66,18.84,32.97,"{}"'
PARAM_LINES = (SAMPLES / "param.txt").read_text().splitlines()
PARAM_BARE = [
    "backend: gloo nw-stack: pytorch-dist args.b: 8 args.e: 8 args.f: 2 args.z: 0 args.master_ip: x",
    "\tCOMMS-RES-all_gather-float16\t 1048576  131072  100.0  101.0  102.0  99.0  103.0  10.486  7.864",
]
GLOO_TITLES = "   size (B)   elements   min (us)   p50 (us)   p99 (us)   max (us)   bandwidth (GB/s)   iterations"


def reading(name):
    lines = lines_of((SAMPLES / name).read_bytes())
    return reader_for(lines, None).read(lines, NOTHING)


def gigabytes(row):
    return round(row.busbw_bytes_per_s / 1e9, 3)


def us(row):
    return round(row.time_s.p50 * 1e6, 3)


def test_an_operation_that_a_file_of_rccl_tests_contradicts_is_named():
    lines = lines_of((SAMPLES / "rccl_tests_file.json").read_bytes())
    with pytest.raises(UsageError, match=r"^the records from line 2 on has allreduce, not --operation alltoall: "):
        reader_for(lines, None).read(lines, UserInput(operation="alltoall"))


def test_the_json_of_nvbandwidth_has_a_row_for_each_pair():
    by_program = {run.program: run for run in reading("nvbandwidth.json").runs}
    pairs = by_program["device_to_device_memcpy_read_ce"]
    assert [(row.group, row.ranks, row.device, row.api) for row in pairs.rows] == [("0-1", 2, "cuda", "ce"), ("1-0", 2, "cuda", "ce")]
    assert [round(gigabytes(row)) for row in pairs.rows] == [400, 390]
    total = by_program["device_to_device_bidirectional_memcpy_read_ce_total"]
    assert [round(gigabytes(row), -1) for row in total.rows] == [760, 740]
    assert pairs.version.endswith("0.9")
    assert notes.NotInOutput(notes.MissingItem.SIZE, assumed="512 MiB, the default") in pairs.missing


def test_an_inspector_row_has_the_calls_of_all_ranks_as_samples_or_reports_which():
    (found,) = reading("nccl_inspector.jsonl").runs
    assert list(found.arrays[0]["max_s"] * 1e6) == pytest.approx([101, 104, 105, 99, 130, 104, 101, 103])
    lines = [line for line in (SAMPLES / "nccl_inspector.jsonl").read_text().splitlines() if json.loads(line)["header"]["rank"] == 1]
    pretty = json.dumps(json.loads(lines[0]), indent=2).splitlines()
    (found,) = reader_for(lines, None).read([*lines[1:], *pretty], NOTHING).runs
    assert found.statistic == "the median over 8 calls of rank 1, timed by kernel_gpu"
    assert notes.NotInOutput(notes.MissingItem.OTHER_RANKS, source="the files have 1 of 2 ranks") in found.missing


def test_all_reduce_bench_without_its_head_and_of_the_version_without_a_table():
    lines = [line for line in (SAMPLES / "all_reduce_bench.md").read_text().splitlines() if line.startswith("|")]
    (found,) = reader_for(lines, None).read(lines, NOTHING).runs
    assert {row.ranks for row in found.rows} == {8}
    lines = ["The average bandwidth of all_reduce with a 4.0GB payload (5 trials, 4 ranks):", " algbw: 100.000 GBps (800.0 Gbps)"]
    lines += [" busbw: 150.000 GBps (1200.0 Gbps)"]
    (found,) = reader_for(lines, None).read(lines, NOTHING).runs
    assert [(row.size_bytes, row.ranks, gigabytes(row)) for row in found.rows] == [(4 * 10**9, 4, 150.0)]


def test_fabtests_need_the_programs_name():
    table = [FABTESTS, "1k      100     100k        0.01s     51.20      20.00       0.05"]
    with pytest.raises(UsageError, match="program of fabtests"):
        reader_for(table, None).read(table, NOTHING)
    (found,) = reader_for(table, None).read(["$ fi_rdm_bw -p tcp 192.0.2.7", *table], NOTHING).runs
    assert found.rows[0].operation == "p2p_bandwidth"


@pytest.mark.parametrize(
    ("command", "operation", "provider", "size"),
    [
        ("$ fi_rdm_pingpong -p tcp -S 65536 192.0.2.9", "p2p_latency", "tcp", 65536),
        ("./fi_rdm_bw -p verbs -S 65800 -d mlx5_0", "p2p_bandwidth", "verbs", 65800),
        ("$ /opt/fabtests/bin/fi_msg_pingpong -p verbs -I 10 n2", "p2p_latency", "verbs", 65536),
        ("[u@n1 ~]$ FI_PROVIDER=shm ./fi_rma_bw -S 65536 -o write", "p2p_bandwidth", "shm", 65536),
        ("$ fi_rdm_bw -p tcp -S 131072 -I 10 192.0.2.9", "p2p_bandwidth", "tcp", 65536),  # not the size of the row
    ],
)
def test_a_command_with_as_many_words_as_columns_begins_another_table(command, operation, provider, size):
    row = "64k     2k      125m        0.02s   6189.06      {}       0.09"
    lines = ["$ fi_rdm_tagged_bw -p efa 192.0.2.9", FABTESTS, row.format("10.59"), command, FABTESTS, row.format("26.21")]
    first, second = (found.rows for found in reader_for(lines, None).read(lines, NOTHING).runs)
    assert [(row.operation, row.protocol, row.size_bytes, us(row)) for row in first] == [("p2p_bandwidth", "efa", 65536, 10.59)]
    assert [(row.operation, row.protocol, row.size_bytes, us(row)) for row in second] == [(operation, provider, size, 26.21)]


def test_a_truncated_size_is_the_one_of_the_command():
    rows = ["95m   1k    95g    6.37s   15760.00    6345.27      0.00", "9.5k   1k    9m    0.01s   972.80    10.00      0.10"]
    sizes = []
    for size, row in zip((100_000_000, 9800), rows, strict=True):
        lines = [f"$ fi_rdm_bw -p verbs -S {size} -d mlx5_0 n2", FABTESTS, row]
        sizes += [row.size_bytes for found in reader_for(lines, None).read(lines, NOTHING).runs for row in found.rows]
    assert sizes == [100_000_000, 9800]


@pytest.mark.parametrize(("command", "header", "row", "verified"), [
    ("$ fi_rdm_pingpong -p tcp -v n2", FABTESTS, "64  1k  125k  0.04s  3.20  20.00  0.05", (1, 0)),
    ("$ fi_rdm_pingpong -p tcp -c n2", FABTESTS, "64  1k  125k  0.04s  3.20  20.00  0.05", (0, None)),
    ("$ fi_pingpong -p tcp -c n2", PINGPONG[10:], "64  1k  =1k  125k  0.04s  3.20  20.00  0.05", (1, 0)),
    ("$ fi_pingpong -p tcp -v n2", PINGPONG[10:], "64  1k  =1k  125k  0.04s  3.20  20.00  0.05", (0, None)),
])  # fmt: skip
def test_the_options_of_libfabrics_programs_that_verify(command, header, row, verified):
    lines = [command, header, row]
    (found,) = reader_for(lines, None).read(lines, NOTHING).runs
    assert [(row.checked, row.wrong) for row in found.rows] == [verified]


def test_ucx_perftest_without_its_head():
    lines = ["user@host:~$ CUDA_VISIBLE_DEVICES=1 ucx_perftest -t tag_bw -s 10000000 -n 1000 -m cuda localhost", UCX_HEAD, UCX_FINAL]
    (found,) = reader_for(lines, None).read(lines, NOTHING).runs
    assert (found.rows[0].size_bytes, found.rows[0].operation, found.doubts) == (10_000_000, "p2p_bandwidth", [])
    with pytest.raises(UsageError, match=r"line 2: .*message size"):
        reader_for(lines[1:], None).read(lines[1:], NOTHING)


@pytest.mark.parametrize(("command", "size", "device", "mixed"), [
    ("my-host$ UCX_LOG_LEVEL=info ucx_perftest -t ucp_am_bw -m host,host -c 0 -s 7990 -n 10000 192.0.2.44", 7990, "cpu", False),
    ("[u@n2 ompi]$ ucx_perftest n3 -t tag_bw -m cuda -s $((4 * 1024 * 1024)) -n 1000", 4 << 20, "cuda", False),
    ("$ ucx_perftest n3 -t tag_bw -m rocm-managed -s $((1024*10))", 10240, "rocm", False),
    ("# taskset -c 1 ucx_perftest n3 -t tag_bw -m host,cuda -s 8,16:3", 56, "cuda", True),
    ("$ kubectl exec pod -- ucx_perftest n3 -t tag_bw -s 65536 | tee log", 65536, "cpu", False),
    ("$ ssh n2 bash -c 'ucx_perftest n3 -t tag_bw -s 2048'", 2048, "cpu", False),
    ("$ mpirun -np 2 --map-by node ucx_perftest -t tag_bw -m cuda-managed -s 512", 512, "cuda", False),
    ("n1:/opt/ucx> numactl -N 0 ./bin/ucx_perftest n3 -t tag_bw --size=4096", 4096, "cpu", False),
])  # fmt: skip
def test_ucx_perftest_has_size_and_memory_of_its_command(command, size, device, mixed):
    rate = 1000.0
    final = f"Final:  1000  0.000  {1e6 / rate:.3f}  {1e6 / rate:.3f}  {rate * size / 2**20:.2f}  {rate * size / 2**20:.2f}  1000  1000"
    lines = [command, UCX_HEAD, final]
    (found,) = reader_for(lines, None).read(lines, NOTHING).runs
    assert [(row.operation, row.size_bytes, row.device) for row in found.rows] == [("p2p_bandwidth", size, device)]
    assert [type(doubt) for doubt in found.doubts] == [notes.MixedMemory] * mixed


@pytest.mark.parametrize(
    ("lines", "values"),
    [
        ([json.dumps({**RCCL_RECORD, "gpus": 8, "#wrong": "0"})], [("allreduce", 1048576, 8, 1, 0, False)]),
        ([json.dumps({**RCCL_RECORD, "gpus": 8, "#wrong": "5", "inPlace": 1})], [("allreduce", 1048576, 8, 1, 5, True)]),
        ([json.dumps({**RCCL_RECORD, "gpus": 8, "#wrong": "N/A"})], [("allreduce", 1048576, 8, 1, None, False)]),
        (
            json.dumps([{**RCCL_RECORD, "nodes": 2, "ranks": 8, "wrong": wrong} for wrong in ("0", "3")], indent=1).splitlines(),
            [("allreduce", 1048576, 8, 2, 0, False), ("allreduce", 1048576, 8, 2, 3, False)],
        ),
        (
            [RCCL_HEADER, RCCL_LINE.format(0), RCCL_LINE.format(2)],
            [("allreduce", 1048576, 8, 1, 0, False), ("allreduce", 1048576, 8, 1, 2, False)],
        ),
        ([RCCL_HEADER.replace("nodes,", ""), RCCL_LINE.format(1)], [("allreduce", 1048576, 8, 1, 1, False)]),  # a misaligned header
    ],
)  # fmt: skip
def test_the_file_of_rccl_tests_in_its_forms(lines, values):
    found = reader_for(lines, None).read(lines, NOTHING).runs
    rows = [row for run in found for row in run.rows]
    assert [(row.operation, row.size_bytes, row.ranks, row.nodes, row.wrong, row.in_place) for row in rows] == values
    assert {(row.backend, row.device, row.dtype, row.redop, us(row), gigabytes(row)) for row in rows} == {
        ("rccl", "rocm", "float32", "sum", 55.66, 32.968)
    }
    assert {run.tool for run in found} == {"rccl-tests"} and not any(run.doubts for run in found)


def test_a_matrix_of_mpigraph_that_was_cut_is_refused():
    lines = (SAMPLES / "mpigraph.txt").read_text().splitlines()[:16]
    with pytest.raises(UsageError, match="no matrix of mpiGraph"):
        reader_for(lines, None).read(lines, NOTHING)


@pytest.mark.parametrize(("line", "tool"), [
    ("[ ID] Interval           Transfer     Bitrate         Retr  Cwnd", "iperf3"),
    ("P2P (Peer-to-Peer) GPU Bandwidth Latency Test]", "p2pBandwidthLatencyTest"), ("<!DOCTYPE html>", "a web page"),
    ("START mpiBench v1.5", "mpiBench"),
])  # fmt: skip
def test_a_tool_that_cannot_be_read_is_refused_by_its_name(line, tool):
    with pytest.raises(UsageError, match=f"output of {tool}.* is not supported"):
        reader_for(["hello", line], None)


def test_the_columns_of_older_versions_of_param_and_what_is_not_reported():
    run = PARAM.read(PARAM_BARE, UserInput(ranks=4)).runs[0]
    (row,) = run.rows
    assert (row.operation, row.dtype, row.backend, row.device, row.mode) == ("allgather", "float16", "gloo", "cpu", "pipelined")
    assert row.nodes is None
    assert notes.NotInOutput(notes.MissingItem.DEVICE, assumed="cpu") in run.missing
    assert run.doubts == []


def test_ranks_and_operations_that_the_table_of_param_contradicts_are_reported():
    assert PARAM.read(PARAM_BARE, UserInput(ranks=8)).runs[0].doubts == [notes.RankMismatch("BusBW / AlgBW", 8, "allgather", 4, 4)]
    runs = PARAM.read(PARAM_LINES, UserInput(operation="broadcast")).runs
    assert [(each.option, each.found) for run in runs for each in run.contradicted] == [("--operation", "allreduce")]


@pytest.mark.parametrize(("lines", "given_", "sentence"), [
    (PARAM_BARE, UserInput(), "the table at line 2: the number of ranks is unknown"),
    (PARAM_LINES, UserInput(ranks=8), "has 4 ranks, not --ranks 8"),
    (["COMMS-RES 8 1 1.0 1.0 1.0 1.0 1.0 0.1 0.1"], UserInput(), "the collective or the data type is unknown"),
    (["\tCOMMS-RES-QUANT-all_reduce-float32\t 8 1 1.0 1.0 1.0 1.0"], UserInput(), "only lines of quantized collectives"),
    (PARAM_LINES[:6], UserInput(), "no line COMMS-RES with a time"),
])  # fmt: skip
def test_what_only_the_user_can_show_of_param_is_one_sentence(lines, given_, sentence):
    with pytest.raises(UsageError) as said:
        PARAM.read(lines, given_)
    assert sentence in str(said.value)


def gloo_runs(lines, ranks=None):
    return list(GLOO.read(lines, UserInput(ranks=ranks)).runs)


def gloo_table(name, *lines, options="processes=4, inputs=1, threads=1, verify=true"):
    head = f"====\n      {name}\n\nDevice:      tcp, iface=eth0\nOptions:     {options}\n\n     BENCHMARK RESULTS\n"
    return [*head.split("\n"), GLOO_TITLES, *lines]


def test_old_columns_of_gloo_threads_and_medians_below_a_microsecond():
    options = "processes=4, inputs=1, threads=3, verify=false"
    (found,) = gloo_runs(gloo_table("BROADCAST_ONE_TO_ALL", "  400  100  0  0  2  9  1.000  50", options=options))
    assert found.rows[0].na == "the median is 0 (cut to whole microseconds): use --nanos"
    assert found.doubts == [notes.ConcurrentThreads(3)]
    old = ["   elements   min (us)   p50 (us)   p99 (us)   max (us)    samples", "   100   10   20   30   40   1000"]
    row = GLOO.read(old, UserInput(ranks=2)).runs[0].rows[0]
    assert (row.operation, row.size_bytes, row.busbw_bytes_per_s, row.checked, row.wrong) == ("unnamed", 400, None, 0, None)


def test_lines_of_gloo_that_are_cut_and_ranks_that_are_contradicted_are_reported():
    with pytest.raises(UsageError, match=r"reduce \(line 2\) has 4 ranks, not --ranks 2"):
        gloo_runs(gloo_table("REDUCE", "  400  100  1  2  3  4  1.000  50"), 2)
    with pytest.raises(UsageError, match=r"reduce .*number of ranks"):
        gloo_runs(gloo_table("REDUCE", "  400  100  1  2  3  4  1.000  50", options="inputs=1"))
    found = gloo_runs(gloo_table("SCATTER", "  400  100  1  2  3  4  1.000  50", "  800  200"))[0]
    assert [row.size_bytes for row in found.rows] == [1600]
    assert found.doubts == [notes.SkippedLines(1, notes.SkippedReason.INCOMPLETE, 11)]


def test_gloo_is_known_by_its_headings():
    assert GLOO.knows(lines_of((SAMPLES / "gloo-benchmark.txt").read_bytes()))
    assert GLOO.knows([GLOO_TITLES])
    assert not GLOO.knows(["# Size       Avg Latency(us)", "ALLREDUCE"])


@pytest.mark.parametrize(("titles", "figures", "quantiles"), [
    # of 2017: what is titled p99 is the 90th percentile, and max the 99th
    ("   elements   min (us)   p50 (us)   p99 (us)   max (us)    samples", "  100  10  20  30  40  1000", (10e-6, 20e-6, 40e-6, None)),
    ("   elements   minL (us)   p50 (us)   p99 (us)   maxL (us)   minBW (GB/s)   p50 (GB/s)   p99 (GB/s)   maxBW (GB/s)   samples",
     "  100  10  20  30  40  1.0  2.0  3.0  4.0  1000", (10e-6, 20e-6, 30e-6, 40e-6)),
])  # fmt: skip
def test_old_heads_of_gloo_have_the_algorithm_and_options_of_their_table(titles, figures, quantiles):
    head = ["Device:      tcp, iface=eth0", "Algorithm:   allreduce_ring", "Options:     processes=4, inputs=1, verify=true"]
    second = [head[0], head[1].replace("allreduce_ring", "broadcast_one_to_all"), head[2].replace("verify=true", "verify=false")]
    found = gloo_runs([*head, "", titles, figures, *second, "", titles, figures])
    assert [(run.program, run.rows[0].operation, run.rows[0].algorithm, run.rows[0].ranks) for run in found] == [
        ("allreduce_ring", "allreduce", "ring", 4), ("broadcast_one_to_all", "broadcast", "one_to_all", 4),
    ]  # fmt: skip
    assert [(run.rows[0].size_bytes, run.rows[0].checked, run.rows[0].wrong) for run in found] == [(400, 1, 0), (400, 0, None)]
    times = found[0].rows[0].time_s
    assert (times.min, times.p50, times.p99, times.max) == tuple(value and pytest.approx(value) for value in quantiles)
