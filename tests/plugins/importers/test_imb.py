"""What the Intel MPI Benchmarks print, as our rows. The samples are real (2021.11 over MPICH)."""

from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.importers.imb import IMB
from collbench.plugins.importers.importer import UserInput
from collbench.plugins.importers.notes import MissingItem, NotInOutput, SkippedLines, SkippedReason

SAMPLES = Path(__file__).parent / "samples"
ALL = (SAMPLES / "imb-mpi1-2-ranks.txt").read_text().splitlines()
GROUPS = (SAMPLES / "imb-mpi1-groups.txt").read_text().splitlines()


def runs(lines, ranks=None):
    return list(IMB.read(lines, UserInput(ranks=ranks)).runs)


def run(name, lines=ALL):
    return next(run for run in runs(lines) if run.program == f"IMB-MPI1 {name}")


def block(name, *lines, processes=4):
    return [f"# Benchmarking {name} ", f"# #processes = {processes} ", "#-----", *lines]


@pytest.mark.parametrize(
    ("version", "size"),
    [("2018.1", 8), ("2018 Update 1", 8), ("2019", 8), ("2019 Update 1", 16), ("2019 Update 6", 16), ("2021.1", 16), (None, 16)],
)
@pytest.mark.parametrize("name", ["Reduce_scatter", "Ireduce_scatter_pure"])
def test_the_size_of_reduce_scatter_is_one_ranks_part_from_2019_update_1_on(name, version, size):
    head = [f"#    Intel(R) MPI Benchmarks {version}, MPI-1 part"] if version else []
    titles = "       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]"
    table = runs([*head, *block(name, titles, "  8  1000  9.00  10.00  9.50", processes=2)])[0]
    assert (table.version, table.rows[0].size_bytes, table.rows[0].count) == (version, size, size // 8)
    assumed = NotInOutput(MissingItem.VERSION, assumed="2019 Update 1 or later")
    assert (assumed in table.missing) is (version is None)


def test_of_groups_at_the_same_time_the_slowest_counts_and_sizes_are_those_of_one_group():
    timed_out = runs(GROUPS)[2]
    assert [(row.size_bytes, row.na) for row in timed_out.rows] == [(0, "IMB: time-out.")]
    lines = ["# Benchmarking Multi-Allreduce ", "# ( 2 groups of 4 processes each running simultaneous ) ", "# Group  0:     0    2    4",
             "#     6", "# Group  1:     1    3    5    7", "   Group #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]",
             "", "  0  1024  1000  9.00 10.00 9.50", "  1  1024  1000  9.00 20.00 9.60"]  # fmt: skip
    row = runs(lines)[0].rows[0]
    assert (row.group, row.ranks, row.groups["p50_s"]) == ("MOD 2", 8, [pytest.approx(10e-6), pytest.approx(20e-6)])
    assert row.time_rank_mean_s == pytest.approx(9.6e-6)
    assert row.groups["busbw_bytes_per_s"] == [pytest.approx(1024 / 10e-6 * 1.5), pytest.approx(row.busbw_bytes_per_s)]
    lines = ["# Benchmarking Multi-Allgather ", "# ( 2 groups of 4 processes each running simultaneous ) ",
             "# Group  0:     0    1    2    3", "# Group  1:     4    5    6    7",
             "   #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]", "  1024  1000  9.00 10.00 9.50"]  # fmt: skip
    row = runs(lines)[0].rows[0]
    assert (row.size_bytes, row.ranks, row.group) == (4096, 8, "DIV 4")
    assert row.busbw_bytes_per_s == pytest.approx(4096 / 10e-6 * 3 / 4)


def test_rates_are_those_of_all_pairs_and_the_window_is_that_of_the_command():
    titles = "       #bytes #repetitions   Mbytes/sec      Msg/sec"
    lines = (titles, "            0          200         0.00      1052121", "      1048576          100      8000.00         7629")
    empty, row = runs(block("Biband", *lines))[0].rows
    assert (row.operation, row.group, row.ranks, row.window) == ("multipair_bidirectional", "2 pairs", 4, None)
    assert (row.busbw_bytes_per_s, row.message_rate) == (pytest.approx(4e9), pytest.approx(8e9 / 1048576))
    assert (row.groups["count"], row.groups["total_busbw_bytes_per_s"]) == (2, pytest.approx(4e9))
    assert (empty.size_bytes, empty.message_rate, empty.busbw_bytes_per_s) == (0, pytest.approx(1052121), None)
    titles, figures = "       #bytes #repetitions   Mbytes/sec      Msg/sec", "  4096  200  1563.15  381628"
    table = runs(["# IMB-MPI1 Uniband -npmin 4 -window_size 16 ", *block("Uniband", titles, figures)])[0]
    row = table.rows[0]
    assert (row.operation, row.window, row.busbw_bytes_per_s) == ("multipair_bandwidth", 16, pytest.approx(1563.15e6, rel=1e-5))
    assert NotInOutput(MissingItem.WINDOW) not in table.missing
    unknown = runs(block("Uniband", titles, figures))[0]
    assert unknown.rows[0].window is None and NotInOutput(MissingItem.WINDOW) in unknown.missing


def test_both_modes_of_a_one_sided_benchmark_are_cases_of_their_own():
    titles = "       #bytes #repetitions      t[usec]   Mbytes/sec"
    aggregate = block("Unidir_Put", "#    MODE: AGGREGATE ", titles, "  1024  1000  0.30  3413.33", processes=2)
    single = block("Unidir_Put", "#    MODE: NON-AGGREGATE ", titles, "  1024  100  2.30  445.22", processes=2)
    tables = runs([*aggregate, *single])
    assert [table.rows[0].operation for table in tables] == ["unidir_put_aggregate", "unidir_put"]
    assert [table.facts["mode"] for table in tables] == ["AGGREGATE", "NON-AGGREGATE"]


def test_checked_data_and_cases_that_failed_are_reported():
    titles = "       #bytes #repetitions t_ovrl[usec] t_pure[usec]  t_CPU[usec]   overlap[%]      defects"
    row = runs(block("Iallreduce", titles, " 1024  100  20.00  10.00  12.00  80.00  3.00"))[0].rows[0]
    assert (row.operation, row.wrong, row.time_s and row.time_s.p50) == ("iallreduce", 1, pytest.approx(10e-6))
    assert row.busbw_bytes_per_s == pytest.approx(1024 / 10e-6 * 1.5)
    titles = "       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]"
    lines = ("  8 time-out.; Time limit is over; use -time X", "  16 int-overflow; The production", "  32 1")
    (failed,) = runs(block("Alltoall", titles, *lines))
    assert [(row.size_bytes, row.na) for row in failed.rows] == [(32, "IMB: time-out."), (64, "IMB: int-overflow")]
    assert failed.doubts == [SkippedLines(1, SkippedReason.UNREADABLE, 7)]


def test_it_is_known_by_its_head_or_its_blocks_and_the_head_has_the_version():
    assert IMB.knows(["#    Intel(R) MPI Benchmarks 2021.11, MPI-1 part"])
    assert IMB.knows(block("Bcast"))
    for head, version in (
        ("Intel (R) MPI Benchmark Suite V3.2, MPI-1 part", "3.2"), ("Intel (R) MPI Benchmarks 4.1 Update 1, MPI-1 part", "4.1 Update 1"),
    ):  # fmt: skip
        lines = [f"#    {head}    ", *block("Barrier", " #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]", "  1000  1.00  2.00  1.50")]
        assert [(run.version, run.program) for run in runs(lines)] == [(version, "IMB-MPI1 Barrier")]
    assert not IMB.knows(["# OSU MPI Latency Test v7.4"])


@pytest.mark.parametrize(("version", "options", "root", "mode"), [
    ("2021.11", "", 0, "isolated"), ("2021.11", "-sync off", 0, "batched"), ("2021.11", "-root_shift on", None, "isolated"),
    ("4.1", "", None, "batched"), ("4.1", "-sync 1 -root_shift 0", 0, "isolated"), ("2016.3", "", None, "batched"),
    ("2017", "", 0, "isolated"), ("2017.1", "", 0, "isolated"), ("2018", "", 0, "isolated"),
])  # fmt: skip
def test_root_and_meeting_are_as_options_and_version_have_them(version, options, root, mode):
    changed = [line.replace("Benchmarks 2021.11", f"Benchmarks {version}").replace("-off_cache 2,64", options) for line in ALL]
    row = run("Reduce", changed).rows[0]
    assert (row.root, row.mode) == (root, mode)


def test_missing_nodes_and_ranks_are_reported_and_must_not_be_contradicted():
    assert NotInOutput(MissingItem.NODES) in run("Bcast").missing
    actual = IMB.read(ALL, UserInput(nodes=1)).runs[0]
    assert (actual.rows[0].nodes, NotInOutput(MissingItem.NODES) in actual.missing) == (1, False)
    with pytest.raises(UsageError, match=r"--ranks 8 does not fit"):
        runs(GROUPS, 8)
    titles = "       #bytes #repetitions      t[usec]   Mbytes/sec"
    with pytest.raises(UsageError, match=r"^line 1: .*processes of PingPong"):
        runs(["# Benchmarking PingPong ", titles, "  8  1000  1.00  8.00"])
