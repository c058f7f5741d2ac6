"""Outputs that no known version prints: other headings, orders, units, numbers and cut lines. Each is read right, or reported."""

import pytest

from collbench.errors import UsageError
from collbench.plugins.importers.importer import UserInput, lines_of
from collbench.plugins.importers.store import read_lines

OSU = "# OSU MPI Allreduce Latency Test v9.9\n# Datatype: MPI_FLOAT.\n"
WRITE = " RDMA_Write BW Test\n Number of qps   : 1\n TX depth        : 128\n"
IMB = "# Intel(R) MPI Benchmarks 2021.7, MPI-1 part\n# Benchmarking Allreduce\n# #processes = 4\n"
GLOO = "      ALLREDUCE_RING\n\nDevice:      tcp\nOptions:     processes=4, inputs=1, threads=1\n     BENCHMARK RESULTS\n"
FABRIC = "$ fi_pingpong -p tcp\nbytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
GPCNET = "NetworkLoad Tests v1.3\n  Test with 80 MPI ranks (20 nodes)\n|                Isolated Network Tests                |\n"
BENCH = "The average bandwidth of all_reduce over 8 ranks (5 warmups / 20 trials):\n"
PARAM = "[Rank   0] local_rank: 0, groupSize 4\n"
RESULT = "\tCOMMS-RES-all_reduce-float32  1048576  262144  100.0  101.0  102.0  99.0  103.0  10.486  15.729\n"
NCCL = (
    "# nThread 1 nGpus 1 minBytes 8 warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n"
    "# Collective test starting: all_reduce_perf\n# Using devices\n"
    "#  Rank  0 Group  0 Pid 1 on n1 device  0 [0x00] A\n#  Rank  1 Group  0 Pid 2 on n1 device  1 [0x00] A\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
)
NCCL_LINE = "     1048576        262144     float     sum      -1    100.0   10.49   10.49      0    100.0   10.49   10.49      0\n"
CSV = "numCycle,name,ranks,nodes,size,type,redop,inPlace,time,algBw,busBw,#wrong\n"
NVBANDWIDTH = (
    "nvbandwidth Version: v0.9\nRunning host_to_device_memcpy_ce.\nmemcpy CE CPU(row) -> GPU(column) bandwidth {}\n     0\n 0  51.2\n"
)


def read(text):
    """Return (size and time in microseconds of each row, what is reported)."""
    rows = []
    reported = []
    try:
        readings = read_lines(lines_of(text.encode()), None, UserInput(ranks=2 if "OSU" in text else None))
    except UsageError as error:
        return [], [str(error)]
    for _, reading in readings:
        reported += [skipped.reason for skipped in reading.skipped]
        for run in reading.runs:
            rows += [(row.size_bytes, round(row.time_s.p50 * 1e6, 3) if row.time_s else None) for row in run.rows]
            reported += [note.render() for note in (*run.doubts, *run.missing)]
            reported += [row.na for row in run.rows if row.na]
    return rows, reported


@pytest.mark.parametrize(("text", "rows"), [
    (f"{OSU}# Size   Min Latency(us)  Avg Latency(us)  Max Latency(us)\n4   0.50 0.52 0.55\n", [(4, 0.52)]),
    (f"{OSU}# Size   Avg Latency(us)\n4   0.52\n{OSU}# Size   Avg Latency(us)\n4   0.62\n", [(4, 0.52), (4, 0.62)]),
    (f"\x1b[32m{OSU}\x1b[0m# Size   Avg Latency(us)\n4   0.52\n".replace("\n", "\r\n"), [(4, 0.52)]),
    (f"{IMB}  #bytes #repetitions  t_max[usec]  t_avg[usec]  t_min[usec]  t_dev[usec]\n  64  100  2.0 1.5 1.0 0.1\n", [(64, 2.0)]),
    (f"{GLOO}  elements size (B)  p50 (us) min (us)  max (us)  p99 (us)  samples\n  1000 4000 246 143 6865 4141 9\n", [(4000, 246.0)]),
    (f"{WRITE} #bytes  BW average[MiB/sec]  #iterations\n 65536  62.5  1000\n", [(65536, 1000.0)]),
    (f"{GPCNET}|   Name |  99% |  Avg |  Units |\n| RR Two-sided Lat (8 B) |  4.0 |  2.5 |  usec |\n", [(8, 2.5)]),
    (f"{BENCH}| payload | algbw | busbw |\n| --: | --: | --: |\n| 32KiB | 0.50GBps | 0.88GBps |\n", [(32768, 65.536)]),
    (NCCL + NCCL_LINE, [(1 << 20, 100.0)] * 2), (NVBANDWIDTH.format("(GB/s)"), [(512 << 20, 10485.76)]),
])  # fmt: skip
def test_other_orders_further_columns_and_two_runs_are_read_right(text, rows):
    assert read(text)[0] == rows


def test_two_versions_in_one_file_keep_their_sizes():
    part = "# Benchmarking Reduce_scatter\n# #processes = 4\n  #bytes #repetitions  t_min[usec]  t_max[usec]\n  1024  100  1.0 2.0\n"
    old, new = (f"# Intel(R) MPI Benchmarks {version}, MPI-1 part\n{part}" for version in ("2018 Update 1", "2021.7"))
    assert read(old + new)[0] == [(1024, 2.0), (4096, 2.0)]


@pytest.mark.parametrize(("text", "rows", "sentence"), [
    (f"{OSU}# Size   Avg Latency(ms)\n4   0.52\n", [], "no results of OSU's tests"),
    (f"{OSU}# Size(KB)   Avg Latency(us)\n4   0.52\n", [], "1 skipped line (incomplete; first: line 4)"),
    (f"{OSU}# Size   Avg Latency(us)  New(us)\n4   0.52 7\n", [], "1 skipped line (incomplete"),
    (f"{OSU}# Size   Min Latency(us)\n4   0.50\n", [(4, None)], "no valid time: no column"),
    (f"{OSU}# Size   Avg Latency(us)\n1.024   0.52\n8   1,5\n16  2.0\n", [(8, None), (16, 2.0)], "1 skipped line (not readable"),
    (f"{OSU}# Size   Avg Latency(us)\n4   0.52\n# Size   Avg Latency(us)\n4   0.62\n", [(4, 0.52)], "the title of its test is missing"),
    ("# OSU MPI Bandwidth Test v9.9\n# Size  Bandwidth (GB/s)\n4  22.79\n", [], "no results of OSU's tests"),
    ("# OSU MPI Bandwidth Test v5.9\n# Size  Latency (us)\n4  1.05\n", [(4, None)], "no valid time: no column"),
    (f"{WRITE} #bytes  #iterations  BW average[GB/sec]\n 65536  1000  24.3\n", [(65536, None)], "no valid time"),
    (f"{WRITE} #bytes  #iterations  BW average[MB/sec]\n 65536  1000  24,3\n", [(65536, None)], "no valid time"),
    (" RDMA_Write Latency Test\n #bytes #iterations  t_typical[nsec]\n 2  1000  950\n", [(2, None)], "no valid time"),
    (f"{IMB}  #bytes #repetitions  t_min[msec]  t_max[msec]  t_avg[msec]\n  64  100  1.0 2.0 1.5\n", [], "skipped line"),
    (f"{IMB}  #bytes #repetitions  t_min[usec]  t_max[usec]\n  64  100  1,0 2,0\n", [(64, None)], "no valid time"),
    (f"{IMB}  #bytes  t_max[usec]\n  64  2.0\n  #bytes  t_max[usec]\n  64  9.0\n", [(64, 2.0)], "the title of its test"),
    (f"{GLOO}  size (KB)  elements   min (us)   p50 (us)\n  4 1000 143 246\n", [], "skipped line"),
    (f"{FABRIC}64,0 1k =1k 125k 0.04s 3.20 20.00 0.05\n64  1k =1k 125k 0.04s 3.20 20.00 0.05\n", [(64, 20.0)], "skipped line"),
    (f"{GPCNET}|   Name |  Avg |  99% |  Units |\n| RR Two-sided BW (8 B) |  4.0 |  2.5 |  GiB/s/rank |\n", [], "skipped line"),
    (f"{BENCH}| payload | busbw | algbw |\n| 1KiB | 880MBps | 500MBps |\n| 2KiB | 9GBps | 5GBps |\n", [(2048, 0.41)], "skipped line"),
    (f"{PARAM}{RESULT}\tCOMMS-RES-all_reduce-float32  2097152  524288  160.0\n", [(1 << 20, 100.0)], "1 skipped line (incomplete"),
    (f"{PARAM}{RESULT}{RESULT.replace('.', ',')}", [(1 << 20, 100.0)], "1 skipped line (incomplete"),
    (NCCL.replace("(us)", "(ms)") + NCCL_LINE, [], "figures in (ms)"),
    (NCCL.replace("time   algbw   busbw", "algbw   busbw    time") + NCCL_LINE, [], "in another order"),
    (NCCL + NCCL_LINE + NCCL_LINE[:90] + "\n", [(1 << 20, 100.0)] * 2, "1 skipped line (incomplete; first: line 9)"),
    (NCCL + NCCL_LINE + NCCL_LINE.replace("100.0", "100,0"), [(1 << 20, 100.0)] * 2, "1 skipped line (incomplete"),
    (NVBANDWIDTH.format("(MB/s)"), [], "in the unknown unit MB/s"),
    (f'{CSV}0,AllReduce,8,1,8,float,sum,0,"1,8",0,0,0\n0,AllReduce,8,1,16,float,sum,0,19.1,0,0,0\n', [(16, 19.1)], "skipped line"),
])  # fmt: skip
def test_what_is_not_known_is_reported_and_not_read(text, rows, sentence):
    found, reported = read(text)
    assert found == rows
    assert any(sentence in each for each in reported), reported
