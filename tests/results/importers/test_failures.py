"""What a tool prints outside of its columns about wrong data and aborts, and files with the output of several tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from collbench.results.importers.files import read_tables
from collbench.results.importers.importer import ImportedTable, UserInput
from collbench.results.importers.notes import AbortedRun, FailedValidation

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
FABTESTS = (
    "$ fi_rdm_pingpong -p tcp -v n2\nbytes   iters   total  time  MB/sec  usec/xfer  Mxfers/sec\n64  1k  125k  0.04s  3.20  20.00  0.05\n"
)


def tables(folder: Path, text: str) -> list[ImportedTable]:
    file = folder / "out.txt"
    file.write_text(text)
    return [table.run for table in read_tables([file], UserInput(), None)]


def test_an_error_line_of_imb_makes_the_row_after_it_wrong(tmp_path: Path) -> None:
    (table,) = tables(tmp_path, f"{IMB}{ABORT}\n")
    assert [row.wrong for row in table.rows] == [0, 1, 0]
    assert list(map(type, table.doubts)) == [FailedValidation, AbortedRun]
    assert isinstance(table.doubts[1], AbortedRun) and (table.doubts[1].line, table.doubts[1].message) == (10, ABORT)


def test_a_test_case_of_nvbandwidth_without_figures_is_a_row(tmp_path: Path) -> None:
    host, waived, broken = tables(tmp_path, NVBANDWIDTH + BROKEN)
    assert [(row.checked, row.wrong) for row in host.rows] == [(1, 0), (1, 0)]
    assert (waived.program, waived.rows[0].wrong) == ("device_to_device_memcpy_write_ce", None)
    assert (waived.rows[0].na or "").startswith("waived")
    assert (broken.program, broken.rows[0].wrong) == ("device_to_device_memcpy_read_ce", 1)
    assert isinstance(broken.doubts[0], FailedValidation)


@pytest.mark.parametrize(
    ("text", "line", "wrong"),
    [
        (OSU, "DATA VALIDATION ERROR: osu_latency exited with status 1 on message size 2.", [None, 1]),
        (FABTESTS, "Data check error (a!=b) at byte 3 for buffer size 4096", [0, 1]),
    ],
)
def test_a_line_that_names_a_size_makes_its_case_wrong(text: str, line: str, wrong: list[int | None], tmp_path: Path) -> None:
    (table,) = tables(tmp_path, f"{text}{line}\n")
    assert [row.wrong for row in table.rows] == wrong


@pytest.mark.parametrize(
    "line",
    [
        "n1: Test NCCL failure common.cu:1005 'unhandled system error / '",
        "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
        "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-05-04T12:00:00 ***",
        "srun: error: n1: task 3: Exited with exit code 1", "Traceback (most recent call last):", " Completion with error at client",
        "[n1:7 :0:7] Caught signal 11 (Segmentation fault: address not mapped)", "x1000c0s0b0n0: rank 3 died from signal 9",
    ],
)  # fmt: skip
def test_rows_before_an_abort_stay_with_a_doubt(line: str, tmp_path: Path) -> None:
    (table,) = tables(tmp_path, f"{OSU}{line}\n")
    assert [row.wrong for row in table.rows] == [None, None]
    (doubt,) = table.doubts
    assert isinstance(doubt, AbortedRun) and doubt.line == 5


def test_each_tool_of_a_file_is_read(tmp_path: Path) -> None:
    found = tables(tmp_path, f"{NVBANDWIDTH}{NCCL}{OSU}{IMB}{OSU}")
    assert sorted({table.tool for table in found}) == ["imb", "nccl-tests", "nvbandwidth", "osu"]
    assert [row.size_bytes for table in found if table.tool == "osu" for row in table.rows][:2] == [1, 2]
    assert not any(table.doubts for table in found if table.tool in ("osu", "nccl-tests"))
