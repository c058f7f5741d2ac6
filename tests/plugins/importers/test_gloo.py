"""What Gloo's own benchmark prints, as our rows. The sample is real: 2 processes over loopback."""

from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.importers.gloo import GLOO
from collbench.plugins.importers.importer import UserInput
from collbench.plugins.importers.notes import ConcurrentThreads, ElementSizeMismatch, InputBuffers, SkippedLines, SkippedReason

LINES = (Path(__file__).parent / "samples" / "gloo-benchmark.txt").read_text().splitlines()
TITLES = "   size (B)   elements   min (us)   p50 (us)   p99 (us)   max (us)   bandwidth (GB/s)   iterations"


def runs(lines=LINES, ranks=None):
    return list(GLOO.read(lines, UserInput(ranks=ranks)).runs)


def run(program):
    return next(run for run in runs() if run.program == program)


def printed(name, *lines, options="processes=4, inputs=1, threads=1, verify=true"):
    head = f"====\n      {name}\n\nDevice:      tcp, iface=eth0\nOptions:     {options}\n\n     BENCHMARK RESULTS\n"
    return [*head.split("\n"), TITLES, *lines]


def test_sizes_and_times_are_those_of_what_is_moved():
    alltoall = run("alltoall")
    assert [(row.size_bytes, row.count, row.dtype) for row in alltoall.rows] == [(16000, 1000, "uint64")]
    assert alltoall.doubts == [ElementSizeMismatch("alltoall", 8)]
    uneven = run("alltoall_v").rows[0]
    assert (uneven.operation, uneven.traffic, uneven.size_bytes) == ("alltoallv", "uneven", 8 * 1000 * (3 + 2))  # rank 1 sends 2 + 3 parts
    row = run("sendrecv_roundtrip").rows[0]
    assert (row.operation, row.size_bytes, row.time_s and row.time_s.p50) == ("p2p_latency", 1024, pytest.approx(105.247e-6 / 2))
    assert (run("barrier_all_to_all").rows[0].size_bytes, run("barrier_all_to_all").rows[0].algorithm) == (0, "all_to_all")
    assert run("allgather").rows[0].size_bytes == 8000
    assert {(row.mode, row.streams) for row in run("alltoall").rows} == {("pipelined", None)}


def test_wrong_elements_belong_to_the_size_after_which_it_stopped():
    halves = run("allreduce_ring")
    assert [(row.dtype, row.traffic, row.wrong) for row in halves.rows[:2]] == [("float16", "2 inputs", 0)] * 2
    last = halves.rows[-1]
    assert last.wrong == sum("Mismatch" in line for line in LINES)
    assert last.wrong > 0
    assert (last.wrong_detail or "").endswith(": 4104 vs 4100. Mismatch at index: 256")
    assert isinstance(halves.doubts[0], InputBuffers)


def test_old_columns_threads_and_medians_below_a_microsecond():
    found = runs(
        printed("BROADCAST_ONE_TO_ALL", "  400  100  0  0  2  9  1.000  50", options="processes=4, inputs=1, threads=3, verify=false")
    )[0]
    assert found.rows[0].na == "the median is 0 (cut to whole microseconds): use --nanos"
    assert found.doubts == [ConcurrentThreads(3)]
    old = ["   elements   min (us)   p50 (us)   p99 (us)   max (us)    samples", "   100   10   20   30   40   1000"]
    row = GLOO.read(old, UserInput(ranks=2)).runs[0].rows[0]
    assert (row.operation, row.size_bytes, row.busbw_bytes_per_s, row.checked, row.wrong) == ("unnamed", 400, None, 0, None)


def test_lines_that_are_cut_and_ranks_that_are_contradicted_are_reported():
    with pytest.raises(UsageError, match=r"reduce \(line 2\) has 4 ranks, not --ranks 2"):
        runs(printed("REDUCE", "  400  100  1  2  3  4  1.000  50"), 2)
    with pytest.raises(UsageError, match=r"reduce .*number of ranks"):
        runs(printed("REDUCE", "  400  100  1  2  3  4  1.000  50", options="inputs=1"))
    found = runs(printed("SCATTER", "  400  100  1  2  3  4  1.000  50", "  800  200"))[0]
    assert [row.size_bytes for row in found.rows] == [1600]
    assert found.doubts == [SkippedLines(1, SkippedReason.INCOMPLETE, 11)]


def test_it_is_known_by_its_headings_and_times_are_rank_0s_quantiles():
    assert GLOO.knows(LINES)
    assert GLOO.knows([TITLES])
    assert not GLOO.knows(["# Size       Avg Latency(us)", "ALLREDUCE"])
    chunked = run("allreduce_ring_chunked")
    row = chunked.rows[0]
    quantiles = (row.time_s.min, row.time_s.p50, row.time_s.p95, row.time_s.p99, row.time_s.max)
    assert quantiles == (pytest.approx(143e-6), pytest.approx(246e-6), None, pytest.approx(4141e-6), pytest.approx(6865e-6))
    assert (row.operation, row.algorithm, row.backend, row.ranks, row.redop) == ("allreduce", "ring_chunked", "gloo", 2, "sum")
    assert row.busbw_bytes_per_s == pytest.approx(4000 / 246e-6)
    assert (row.checked, row.wrong, row.flags) == (1, 0, ("imported",))
    assert chunked.statistic == "median over the iterations on rank 0"
    assert chunked.facts["device"] == "tcp, pci=, iface=lo, speed=-1, addr=[127.0.0.1]"


@pytest.mark.parametrize(
    ("titles", "figures", "quantiles"),
    [
        # of 2017: what is titled p99 is the 90th percentile, and max the 99th
        ("   elements   min (us)   p50 (us)   p99 (us)   max (us)    samples", "  100  10  20  30  40  1000", (10e-6, 20e-6, 40e-6, None)),
        (
            "   elements   minL (us)   p50 (us)   p99 (us)   maxL (us)   minBW (GB/s)   p50 (GB/s)   p99 (GB/s)   maxBW (GB/s)   samples",
            "  100  10  20  30  40  1.0  2.0  3.0  4.0  1000", (10e-6, 20e-6, 30e-6, 40e-6),
        ),
    ],
)  # fmt: skip
def test_old_heads_have_the_algorithm_and_options_of_their_table(titles, figures, quantiles):
    head = ["Device:      tcp, iface=eth0", "Algorithm:   allreduce_ring", "Options:     processes=4, inputs=1, verify=true"]
    second = [head[0], head[1].replace("allreduce_ring", "broadcast_one_to_all"), head[2].replace("verify=true", "verify=false")]
    found = runs([*head, "", titles, figures, *second, "", titles, figures])
    assert [(run.program, run.rows[0].operation, run.rows[0].algorithm, run.rows[0].ranks) for run in found] == [
        ("allreduce_ring", "allreduce", "ring", 4), ("broadcast_one_to_all", "broadcast", "one_to_all", 4),
    ]  # fmt: skip
    assert [(run.rows[0].size_bytes, run.rows[0].checked, run.rows[0].wrong) for run in found] == [(400, 1, 0), (400, 0, None)]
    times = found[0].rows[0].time_s
    assert (times.min, times.p50, times.p99, times.max) == tuple(value and pytest.approx(value) for value in quantiles)
