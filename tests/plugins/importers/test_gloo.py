"""What Gloo's own benchmark prints, as our rows. The sample is real: 2 processes over loopback."""

from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.importers.gloo import GLOO
from collbench.plugins.importers.importer import UserInput
from collbench.plugins.importers.notes import ConcurrentThreads, SkippedLines, SkippedReason

LINES = (Path(__file__).parent / "samples" / "gloo-benchmark.txt").read_text().splitlines()
TITLES = "   size (B)   elements   min (us)   p50 (us)   p99 (us)   max (us)   bandwidth (GB/s)   iterations"


def runs(lines, ranks=None):
    return list(GLOO.read(lines, UserInput(ranks=ranks)).runs)


def printed(name, *lines, options="processes=4, inputs=1, threads=1, verify=true"):
    head = f"====\n      {name}\n\nDevice:      tcp, iface=eth0\nOptions:     {options}\n\n     BENCHMARK RESULTS\n"
    return [*head.split("\n"), TITLES, *lines]


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


def test_it_is_known_by_its_headings():
    assert GLOO.knows(LINES)
    assert GLOO.knows([TITLES])
    assert not GLOO.knows(["# Size       Avg Latency(us)", "ALLREDUCE"])


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
