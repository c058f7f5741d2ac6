"""perftest's output as rows. The samples are real: 4.5 over software RDMA in a virtual machine, so the speeds mean nothing."""

import json
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.importers.importer import UserInput
from collbench.plugins.importers.notes import MessageRateMismatch, MissingItem, NotInOutput, SkippedLines, SkippedReason
from collbench.plugins.importers.perftest import PERFTEST

SAMPLES = Path(__file__).parent / "samples"
LAT = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]"
    "   99.9% percentile[usec] "
)
# As the version of July 2026 writes it.
NEW_JSON = {
    "test_info": {"test": "RDMA_Write_BW_Test", "Device": "mlx5_0", "Number_of_qps": 4, "TX_depth": 128, "cuda_device": 0},
    "results": {"MsgSize": 65536, "n_iterations": 20000, "BW_peak": 391.5, "BW_average": 390.12, "MsgRate": 0.744095},
}
RATES = " #bytes     #iterations    BW peak[{unit}/sec]    BW average[{unit}/sec]   MsgRate[Mpps]"
CYCLES = {"t_min": 5000.5, "t_max": 91230, "t_typical": 5210.5, "t_avg": 5300.21, "percentile_99": 7000, "percentile_99.9": 8000.5}


def lines_of(name):
    return (SAMPLES / name).read_text().splitlines()


def runs(lines, ranks=None):
    return list(PERFTEST.read(lines, UserInput(ranks=ranks)).runs)


def test_memory_of_a_gpu():
    lines = ["initializing CUDA", *lines_of("perftest-write-bw-all.txt")]
    assert runs(lines)[0].rows[0].device == "cuda"


def test_latencies_of_reads_are_whole_round_trips_and_means_where_there_is_no_median():
    read = runs(["                    RDMA_Read Latency Test", LAT, " 2  1000  1.50  9.0  1.75  1.80  0.1  3.0  8.0"])[0]
    assert read.statistic == "median of whole round trips"
    lines = ["   RDMA_Write Latency Test", " #bytes        #iterations       t_avg[usec]    tps average", " 2  5000  1.25  400000.00"]
    (timed,) = runs(lines)
    assert (timed.statistic, timed.rows[0].time_s and timed.rows[0].time_s.p50) == ("mean of half the round trips", pytest.approx(1.25e-6))


@pytest.mark.parametrize("indent", [None, 1])
def test_the_json_of_newer_versions(indent):
    row = runs(json.dumps(NEW_JSON, indent=indent).splitlines())[0].rows[0]
    assert (row.busbw_bytes_per_s, row.device, row.streams, row.window) == (pytest.approx(390.12e9 / 8), "cuda", 4, 128)


def test_what_does_not_fit_is_a_sentence_or_a_doubt():
    broken = {**NEW_JSON, "results": {**NEW_JSON["results"], "MsgRate": 0.5}}
    with pytest.raises(UsageError, match="unit of the rate"):
        runs(json.dumps(broken, indent=1).splitlines())
    with pytest.raises(UsageError, match='"results", is missing'):
        runs(['"test_info": {', '"test": "Send_BW_Test"', "}"])
    with pytest.raises(UsageError, match=r"--ranks 8 .*perftest"):
        runs(lines_of("perftest-several.txt"), 8)
    titles = " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]"
    found = runs(["     Send BW Test", titles, " 1048576  5000  11000.00  11000.00  0.022000", " 64  1", " 128  5000  nan  nan  nan"])[0]
    assert found.doubts == [SkippedLines(1, SkippedReason.INCOMPLETE, 4), MessageRateMismatch(1, 3)]
    assert found.rows[1].na == "the output has no valid time"


@pytest.mark.parametrize(("title", "unit", "figures", "per_direction"), [
    ("RDMA_Write Bidirectional BW", "Gb", ("390.10  0.005813", "195.60  0.002915", "194.50  0.002898"), 390.10e9 / 16),
    ("Send Bidirectional BW", "MiB", ("46504.00  0.005813", "23320.00  0.002915", "23184.00  0.002898"), 46504 * 2**19),
])  # fmt: skip
def test_report_both_has_one_row_of_both_directions(title, unit, figures, per_direction):
    lines = [f"      {title} Test"]
    for heading, printed in zip(("", " Local results: ", " Remote results: "), figures, strict=True):
        lines += [heading, "-----", RATES.format(unit=unit), f" 8388608    1000    0.00    {printed}", "-----"]
    (found,) = runs(lines)
    (row,) = found.rows
    assert (row.operation, row.size_bytes, row.busbw_bytes_per_s) == ("p2p_bidirectional", 8388608, pytest.approx(per_direction))
    assert found.doubts == []


@pytest.mark.parametrize("others", [("results_local", "results_remote"), ("results_remote",), ("cpu_util_results",)])
def test_other_parts_of_the_json_do_not_replace_the_results(others):
    figures = {"MsgSize": 8388608, "n_iterations": 1000, "BW_peak": 391.20, "BW_average": 390.10, "MsgRate": 0.005813}
    half = {**figures, "BW_average": 195.60, "MsgRate": 0.002915}
    parts = [("test_info", {"test": "Send_Bidirectional_BW_Test"}), ("results", figures), *((name, half) for name in others)]
    text = "{" + ",\n".join(f'"{name}": {json.dumps(values, indent=1)}' for name, values in parts) + "}"
    (found,) = runs(text.splitlines())
    assert [row.busbw_bytes_per_s for row in found.rows] == [pytest.approx(390.10e9 / 16)]


@pytest.mark.parametrize(("changed", "cycles"), [({}, True), ({"t_max": 91230.13}, False), ({"t_min": 0.5}, False)])
def test_times_in_cycles_are_refused_in_json_which_has_no_unit(changed, cycles):
    results = {"MsgSize": 2, "n_iterations": 1000, **CYCLES, **changed}
    lines = json.dumps({"test_info": {"test": "Send_Latency_Test"}, "results": results}, indent=1).splitlines()
    if cycles:
        with pytest.raises(UsageError, match="cycles"):
            runs(lines)
    else:
        assert [row.time_s and row.time_s.p50 for row in runs(lines)[0].rows] == [pytest.approx(5210.5e-6)]


def test_a_table_in_cycles_is_skipped_and_one_in_microseconds_stays():
    title, figures = "       RDMA_Read Latency Test", " 2  1000  2.00  9.00  2.50  2.50  0.50  3.00  8.00"
    reading = PERFTEST.read([title, LAT.replace("usec", "cycles"), figures, title, LAT, figures], UserInput())
    assert [row.time_s and row.time_s.p50 for run in reading.runs for row in run.rows] == [pytest.approx(2.5e-6)]
    assert [(skipped.line, "cycles" in skipped.reason) for skipped in reading.skipped] == [(1, True)]


@pytest.mark.parametrize(("line", "verified"), [("VALIDATION: PASSED", (1, 0)), ("", (0, None))])
def test_data_is_verified_only_if_the_tool_prints_it(line, verified):
    lines = ["   RDMA_Write_imm BW Test", RATES.format(unit="Gb"), " 65536  5000  0.00  390.12  0.744095", line]
    (found,) = runs(lines)
    assert [(row.checked, row.wrong) for row in found.rows] == [verified]
    assert (NotInOutput(MissingItem.VERIFICATION) in found.missing) == (line == "")
