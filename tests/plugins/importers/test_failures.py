"""What a tool prints outside of its columns about wrong data and aborts, and files with the output of several tools."""

import json

import pytest

from collbench.errors import UsageError
from collbench.plugins.importers.files import read_tables
from collbench.plugins.importers.importer import UserInput
from collbench.plugins.importers.notes import AbortedRun, FailedValidation, MissingItem, NotInOutput, SkippedLines, SkippedReason

IMB = """\
# Benchmarking Reduce_scatter
# #processes = 16
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]      defects
            0         1000         0.15         0.27         0.19         0.00
15: Error Reduce_scatter,size = 4,sample #0
Process 15: Got invalid buffer:
pos: 0
            4         1000         1.57         4.66         2.41         0.00
            8         1000         1.57         4.66         2.41         0.00
"""
ABORT = "application called MPI_Abort(MPI_COMM_WORLD, 16) - process 15"
NVBANDWIDTH = """\
nvbandwidth Version: v0.7
Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     25.10     25.12
Waiving device_to_device_memcpy_write_ce.
"""
BROKEN = """\
Running device_to_device_memcpy_read_ce.
 Invalid value when checking the pattern at 0x70a640000000
ASSERT in expression h_errorFlag == 0 in void memcmpPatternHelper() : memcpy.cpp:165
"""
OSU = "# OSU MPI Latency Test v7.4\n# Size       Avg Latency(us)\n1    1.00\n2    1.10\n"
NCCL = "  1073741824  268435456  float  sum  -1  5000.00  214.75  375.81  0  5000.00  214.75  375.81  0\n"
NO_DEFECT = (
    "       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]      defects\n"
    "            4         1000         0.15         0.27         0.19         0.00\n"
)
BROKEN_REDUCE = f"# #processes = 4\n{NO_DEFECT.splitlines()[0]}\n3: Error Reduce,size = 4,sample #0\n"
OSU_BANDWIDTH = "# OSU MPI Bandwidth Test v7.4\n# Size      Bandwidth (MB/s)\n"
IPERF3 = """\
Connecting to host 192.0.2.9, port 5201
[ ID] Interval           Transfer     Bitrate         Retr
[  5]   0.00-10.00  sec  11.0 GBytes  9.42 Gbits/sec    0             sender
"""
PERFTEST = (
    "  RDMA_Write BW Test\n #bytes  #iterations  BW peak[Gb/sec]  BW average[Gb/sec]  MsgRate[Mpps]\n"
    " 65536  5000  0.00  390.12  0.744095\n 131072  5000  0.00  390.12  0.372048\n"
)
FABTESTS = (
    "$ fi_rdm_pingpong -p tcp -v n2\nbytes   iters   total  time  MB/sec  usec/xfer  Mxfers/sec\n64  1k  125k  0.04s  3.20  20.00  0.05\n"
)


def read(folder, text):
    file = folder / "out.txt"
    file.write_text(text)
    return read_tables([file], UserInput(), None)


def tables(folder, text):
    return [table.run for table in read(folder, text)]


def test_a_failure_belongs_to_the_row_after_it_or_to_the_test_that_runs(tmp_path):
    (table,) = tables(tmp_path, f"{IMB}{ABORT}\n")
    assert [row.wrong for row in table.rows] == [0, 1, 0]
    assert list(map(type, table.doubts)) == [FailedValidation, AbortedRun]
    assert isinstance(table.doubts[1], AbortedRun) and (table.doubts[1].line, table.doubts[1].message) == (10, ABORT)
    complete, failed = tables(tmp_path, f"{IMB.splitlines()[0]}\n# #processes = 4\n{NO_DEFECT}# Benchmarking Reduce\n{BROKEN_REDUCE}")
    assert [(row.size_bytes, row.wrong) for row in complete.rows] == [(16, 0)]
    assert [(row.operation, row.ranks, row.wrong, row.time_s) for row in failed.rows] == [("reduce", 4, 1, None)]
    latency, bandwidth = tables(tmp_path, f"{OSU}{OSU_BANDWIDTH}DATA VALIDATION ERROR: osu_bw exited with status 1 on message size 1.\n")
    assert [row.wrong for row in latency.rows] == [None, None]
    assert [(row.size_bytes, row.wrong, row.time_s) for row in bandwidth.rows] == [(0, None, None), (1, 1, None)]


def test_each_tool_of_a_file_is_read_also_if_it_is_cut(tmp_path):
    latency, bandwidth = tables(tmp_path, f"{OSU}{OSU_BANDWIDTH}")
    assert [row.na for row in latency.rows] == [None, None]
    assert [(row.operation, row.na is not None, row.wrong) for row in bandwidth.rows] == [("p2p_bandwidth", True, None)]
    _, again = tables(tmp_path, f"{OSU}{OSU[:-5]}")
    assert [row.size_bytes for row in again.rows] == [1]
    assert again.doubts == [SkippedLines(1, SkippedReason.INCOMPLETE, 8)]
    found = tables(tmp_path, f"{NVBANDWIDTH}{NCCL}{OSU}{IMB}{OSU}")
    assert sorted({table.tool for table in found}) == ["imb", "nccl-tests", "nvbandwidth", "osu"]
    assert [row.size_bytes for table in found if table.tool == "osu" for row in table.rows][:2] == [1, 2]
    assert not any(table.doubts for table in found if table.tool in ("osu", "nccl-tests"))


def test_wrong_data_without_a_table_is_in_the_sentence_or_the_reason(tmp_path):
    with pytest.raises(UsageError, match=r"wrong data: line 3: DATA VALIDATION ERROR"):
        read(tmp_path, f"{OSU_BANDWIDTH}DATA VALIDATION ERROR: osu_bw exited with status 1 on message size 1.\n")
    error = "DATA VALIDATION ERROR: osu_allreduce exited with status 1 on message size 1."
    (table,) = read(tmp_path, f"{OSU}# OSU MPI Allreduce Latency Test v7.4\n# Size       Avg Latency(us)\n1    1.00\n{error}\n")
    assert [row.wrong for row in table.run.rows] == [None, None]
    (skipped,) = table.skipped
    assert skipped.line == 5 and "WRONG DATA" in skipped.reason and error in skipped.reason


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_unsupported_tool_beside_a_supported_one_is_named(order, tmp_path):
    (table,) = read(tmp_path, "".join((OSU, IPERF3)[index] for index in order))
    assert [row.size_bytes for row in table.run.rows] == [1, 2]
    (skipped,) = table.skipped
    assert (skipped.line, "iperf3" in skipped.reason) == (5 if order[0] == 0 else 1, True)


def test_a_table_is_read_beside_a_line_of_nccl_that_has_the_words_of_another_tool(tmp_path):
    (table,) = read(tmp_path, f"n1:1:2 [0] NCCL INFO COMMS-RES\n# Collective test starting: all_reduce_perf\n{NCCL}")
    assert [row.size_bytes for row in table.run.rows] == [1 << 30] * 2
    assert [skipped.line for skipped in table.skipped] == [0]  # no reader searches NCCL's log for the first line of a table


def docker(text):
    records = [{"log": f"{line}\n", "stream": "stdout", "time": "2026-05-04T12:00:00.1Z"} for line in text.splitlines()]
    return "".join(json.dumps(record) + "\n" for record in records)


WRAPPERS = {
    "docker": docker,
    "docker, cut records": lambda text: docker(text).replace("1.57  ", '1.5", "stream": "stdout"}\n{"log": "7  '),
    "mail": lambda text: "".join(f"> > {line}\n" for line in text.splitlines()),
    "mixed line ends": lambda text: "".join(line + ("\r\n" if number % 2 else "\n") for number, line in enumerate(text.splitlines())),
    "ranks": lambda text: "".join(f"[1,{15 if 'r' in line[:12] else 0}]<stdout>: {line}\n" for line in text.splitlines()),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrong_data_is_found_in_logs_of_all_kinds(wrapper, tmp_path):
    (imb,) = tables(tmp_path, WRAPPERS[wrapper](IMB))
    assert [(row.size_bytes, row.wrong) for row in imb.rows] == [(0, 0), (64, 1), (128, 0)]
    assert [row.time_s and round(row.time_s.p50 * 1e6, 2) for row in imb.rows] == [0.27, 4.66, 4.66]
    *_, broken = tables(tmp_path, WRAPPERS[wrapper](NVBANDWIDTH + BROKEN))
    assert [row.wrong for row in broken.rows] == [1]


@pytest.mark.parametrize(("lines", "wrong"), [
    ("3: Error Bcast,size = 8,sample #2\nProcess 3: Got invalid buffer:\n", [0, 0, 1]), ("[2] CHECK FAILURES: rank 2: 5\n", [0, 0, 1]),
    ("[2] CHECK FAILURES: rank 2: 0\n", [0, 0, 0]), ("Application error code 1 occurred\n", [0, 0, 0]),
])  # fmt: skip
def test_error_lines_of_any_benchmark_of_imb(lines, wrong, tmp_path):
    head, *rows = IMB.replace("Reduce_scatter", "Bcast").splitlines(keepends=True)
    rows = [row for row in rows if not row.startswith(("15:", "Process", "pos"))]
    (table,) = tables(tmp_path, "".join([head, *rows[:-1], lines, rows[-1]]))
    assert [(row.operation, row.size_bytes) for row in table.rows] == [("broadcast", 0), ("broadcast", 4), ("broadcast", 8)]
    assert [row.wrong for row in table.rows] == wrong
    assert [type(doubt) for doubt in table.doubts] == ([FailedValidation] if any(wrong) else [AbortedRun] if "Application" in lines else [])


@pytest.mark.parametrize("error", [" Invalid value when checking the pattern at 0x1\n", "ASSERT in expression h_errorFlag == 0 in f()\n"])
def test_wrong_data_of_the_first_test_case_of_nvbandwidth(error, tmp_path):
    title, *passing = NVBANDWIDTH.splitlines(keepends=True)[:-1]
    failed, passed = tables(tmp_path, "".join([title, "Running device_to_host_memcpy_ce.\n", error, *passing]))
    assert [(row.operation, row.wrong, row.time_s) for row in failed.rows] == [("device_to_host_memcpy_ce", 1, None)]
    assert [(row.checked, row.wrong) for row in passed.rows] == [(1, 0), (1, 0)]


def test_a_test_case_of_nvbandwidth_without_figures_or_verification_is_a_row(tmp_path):
    host, waived, broken = tables(tmp_path, NVBANDWIDTH + BROKEN)
    assert [(row.checked, row.wrong) for row in host.rows] == [(1, 0), (1, 0)]
    assert (waived.program, waived.rows[0].wrong) == ("device_to_device_memcpy_write_ce", None)
    assert (waived.rows[0].na or "").startswith("waived")
    assert (broken.program, broken.rows[0].wrong) == ("device_to_device_memcpy_read_ce", 1)
    assert isinstance(broken.doubts[0], FailedValidation)
    host, _ = tables(tmp_path, f"$ ./nvbandwidth -t 0 --skipVerification\n{NVBANDWIDTH}")
    assert [(row.checked, row.wrong) for row in host.rows] == [(0, None), (0, None)]
    assert NotInOutput(MissingItem.VERIFICATION) in host.missing


@pytest.mark.parametrize(("text", "line", "wrong"), [
    (OSU, "DATA VALIDATION ERROR: osu_latency exited with status 1 on message size 2.", [None, 1]),
    (PERFTEST, "VALIDATION: FAILED", [1, 1]), (FABTESTS, "Data check error (a!=b) at byte 3 for buffer size 4096", [0, 1]),
])  # fmt: skip
def test_a_line_that_names_a_size_makes_its_case_wrong(text, line, wrong, tmp_path):
    (table,) = tables(tmp_path, f"{text}{line}\n")
    assert [row.wrong for row in table.rows] == wrong


@pytest.mark.parametrize("line", [
    "n1: Test NCCL failure common.cu:1005 'unhandled system error / '", "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
    "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
    "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-05-04T12:00:00 ***", "srun: error: n1: task 3: Exited with exit code 1",
    "Traceback (most recent call last):", " Completion with error at client",
    "[n1:7 :0:7] Caught signal 11 (Segmentation fault: address not mapped)", "x1000c0s0b0n0: rank 3 died from signal 9",
])  # fmt: skip
def test_rows_before_an_abort_stay_with_a_doubt(line, tmp_path):
    (table,) = tables(tmp_path, f"{OSU}{line}\n")
    assert [row.wrong for row in table.rows] == [None, None]
    (doubt,) = table.doubts
    assert isinstance(doubt, AbortedRun) and doubt.line == 5
