"""What the OSU Micro-Benchmarks print, as our rows. The samples of 7.4 are real (MPICH, 2 ranks); 5.9's are written after its source."""

from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.importers.importer import UserInput
from collbench.plugins.importers.notes import MissingItem, NotInOutput, SkippedLines, SkippedReason
from collbench.plugins.importers.osu import OSU
from collbench.plugins.importers.osu import test_of as osu_test

SAMPLES = Path(__file__).parent / "samples"
NEW = (SAMPLES / "osu-7.4-2-ranks.txt").read_text().splitlines()
OLD = (SAMPLES / "osu-5.9.txt").read_text().splitlines()


def runs(lines, ranks=2):
    return list(OSU.read(lines, UserInput(ranks=ranks)).runs)


def run(program, lines=NEW, ranks=2):
    return next(run for run in runs(lines, ranks) if run.program == program)


def us(row):
    return pytest.approx(row.time_s.p50 * 1e6)


def titled(title, *lines):
    return [f"# OSU MPI {title} Test v7.4", "# Datatype: MPI_CHAR.", *lines]


def test_every_table_of_a_file_is_a_run_also_with_old_columns_gpu_memory_and_untold_types():
    assert [(run.program, len(run.rows)) for run in runs(NEW)] == [
        ("osu_allreduce", 4), ("osu_barrier", 1), ("osu_iallreduce", 3), ("osu_alltoall", 3), ("osu_reduce_scatter_block", 4),
        ("osu_bcast_persistent", 4), ("osu_latency", 4), ("osu_bw", 7), ("osu_bibw", 7), ("osu_mbw_mr", 7), ("osu_mbw_mr", 24),
        ("osu_multi_lat", 4), ("osu put_latency", 4), ("osu_neighbor_alltoallw", 2),
    ]  # fmt: skip
    assert {run.version for run in runs(NEW)} == {"7.4"}
    allreduce = run("osu_allreduce", OLD, 8)
    row = allreduce.rows[1]
    assert (row.device, row.dtype, row.size_bytes, row.count) == ("cuda", "float32", 1048576, 262144)
    assert row.busbw_bytes_per_s == pytest.approx(1048576 / 183.4e-6 * 2 * 7 / 8)
    assert allreduce.missing[-1] == NotInOutput(MissingItem.DTYPE, assumed="MPI_FLOAT")


def test_a_collectives_time_is_the_mean_over_ranks_and_bandwidths_follow_from_it():
    allreduce = run("osu_allreduce")
    row = allreduce.rows[0]
    assert (row.operation, row.backend, row.size_bytes, row.count, row.dtype, row.redop) == ("allreduce", "mpi", 4, 4, "int8", "sum")
    assert row.ranks == 2
    assert us(row) == 0.52
    assert row.busbw_bytes_per_s == pytest.approx(4 / 0.52e-6)
    assert row.time_rank_mean_s == pytest.approx(0.52e-6)
    assert (row.flags, row.nodes, row.time_s and row.time_s.ci_low, row.time_s and row.time_s.p99) == (("imported",), None, None, None)
    assert row.evidence["statistic"] == "mean over the iterations, averaged over the ranks"
    assert row.evidence["printed"]["P99 Tail Lat(us)"] == 0.45
    assert NotInOutput(MissingItem.ITERATIONS) not in allreduce.missing


def test_sizes_are_ours_where_osu_prints_one_ranks_part():
    assert [(row.size_bytes, row.count, row.wrong, row.checked) for row in run("osu_alltoall").rows] == [
        (8, 4, 0, 1), (16, 8, 0, 1), (32, 16, 0, 1),
    ]  # fmt: skip
    lines = titled("Alltoallv Personalized Exchange Latency", "# Size       Avg Latency(us)", "1024   10.00")
    row = runs(lines, 8)[0].rows[0]
    assert (row.operation, row.traffic, row.size_bytes) == ("alltoallv", "even", 8192)
    assert row.busbw_bytes_per_s == pytest.approx(8192 / 10e-6 * 7 / 8)
    first, *others = run("osu_reduce_scatter_block").rows
    assert first.na == "no bytes are moved (fewer elements than ranks), or the size is not valid"
    assert first.time_s is None
    assert [(row.size_bytes, row.count) for row in others] == [(2, 1), (4, 2), (8, 4)]
    for form in ("Reduce_scatter_block", "Non-blocking Reduce_scatter_block", "Reduce_scatter_block Persistent"):
        lines = titled(f"{form} Latency", "# Size       Avg Latency(us)", "10   5.00")
        assert runs(lines, 4)[0].rows[0].size_bytes == 8
    row = run("osu_barrier").rows[0]
    assert (row.operation, row.size_bytes, row.algbw_bytes_per_s, us(row)) == ("barrier", 0, None, 0.27)


def test_call_forms_and_buffers_are_as_ours():
    row = run("osu_iallreduce").rows[0]
    assert (row.operation, row.call, us(row), row.evidence["printed"]["Overlap(%)"]) == ("allreduce", "nonblocking", 4.22, 0)
    assert {row.call for row in run("osu_allreduce").rows} == {None}
    assert row.busbw_bytes_per_s == pytest.approx(4 / 4.22e-6)
    row = run("osu_neighbor_alltoallw").rows[0]
    assert (row.operation, row.busbw_bytes_per_s, us(row)) == ("neighbor_alltoallw", None, 7797.75)
    barrier, allreduce = runs((SAMPLES / "osu-ibarrier.txt").read_text().splitlines(), 8)
    assert (barrier.rows[0].operation, us(barrier.rows[0]), barrier.rows[0].evidence["printed"]["Overlap(%)"]) == ("barrier", 15.0, 6.67)
    assert (allreduce.rows[0].operation, us(allreduce.rows[0])) == ("allreduce", 8.0)
    assert (barrier.rows[0].call, allreduce.rows[0].call) == ("nonblocking", "nonblocking")
    assert {row.in_place for row in run("osu_bcast_persistent").rows} == {True}
    assert {row.in_place for row in run("osu_allreduce").rows} == {False}
    assert run("osu_barrier").rows[0].dtype == "uint8"


def test_the_number_of_ranks_must_be_given():
    with pytest.raises(UsageError, match=r"osu_barrier \(line 1\): .*number of ranks"):
        runs(titled("Barrier Latency", "# Avg Latency(us)", "  5.00"), None)
    pairs = titled("Latency", "# Size          Latency (us)", "8       1.05")
    assert runs(pairs, None)[0].rows[0].ranks == 2
    assert [(run.program, run.rows[0].ranks) for run in runs(OLD, 4) if run.contradicted] == [("osu_mbw_mr", 8)]


def test_the_launcher_and_intel_mpi_report_how_many_ranks_there_were_and_where():
    table = titled("Allreduce Latency", "# Size  Avg Latency(us)", "4  5.00")
    startup = ["[0] MPI startup(): Rank    Pid      Node name       Pin cpu"]
    startup += [f"[0] MPI startup(): {rank}       10{rank}      node0{rank // 2}          {{0,4}}" for rank in range(4)]
    (listed,) = OSU.read([*startup, *table], UserInput()).runs
    assert (listed.rows[0].ranks, listed.rows[0].nodes, list(listed.hosts)) == (4, 2, ["node00", "node00", "node01", "node01"])
    (started,) = OSU.read(["srun -N 2 --ntasks-per-node=8 --export=ALL,UCX_TLS=rc ./osu_allreduce", *table], UserInput()).runs
    assert (started.rows[0].ranks, started.facts["environment"]) == (16, {"UCX_TLS": "rc"})
    (counted,) = OSU.read(["export SLURM_NTASKS=6", *table], UserInput()).runs
    assert counted.rows[0].ranks == 6
    with pytest.raises(UsageError, match="number of ranks"):
        OSU.read(["mpirun -n 8 ./osu_allreduce", *startup, *table], UserInput())


def test_failed_validation_is_wrong_data_and_what_is_cut_or_no_figure_is_reported():
    lines = titled("Bandwidth", "# Size  Bandwidth (MB/s)   Validation", "8    20.00   Fail", "DATA VALIDATION ERROR: osu_bw exited")
    found = runs(lines)[0]
    assert (found.rows[0].wrong, found.rows[0].checked) == (1, 1)
    assert found.rows[0].wrong_detail == "OSU's validation failed; the number of wrong elements is unknown"
    lines = titled("Allreduce Latency", "# Size       Avg Latency(us)", "8", "16   nan", "32   0.00", "64 1.50", "some words of a launcher")
    found = runs(lines)[0]
    assert [row.na for row in found.rows] == [
        "the output has no valid time: nan", "the output has no valid time: 0.00", None,
    ]  # fmt: skip
    assert found.doubts == [SkippedLines(1, SkippedReason.INCOMPLETE, 4)]


def test_other_libraries_and_titles():
    lines = ["# OSU NCCL-CUDA Allreduce Latency Test v7.4", "# Size       Avg Latency(us)", "4   8.00"]
    row = runs(lines)[0].rows[0]
    assert (row.backend, row.device) == ("nccl", "cuda")
    started = osu_test("Non-blocking All-to-Allv Personalized Exchange Latency")
    assert (started.operation, started.call, started.program) == ("alltoallv", "nonblocking", "osu_ialltoallv")
    assert osu_test("Neighborhood Alltoall Latency") == osu_test("All-to-All Personalized Exchange Latency", neighbours=True)
    requests = osu_test("Bi-Directional Bandwidth Persistent")
    assert (requests.operation, requests.call, requests.program) == ("p2p_bidirectional", "persistent", "osu_bibw_persistent")
    around = osu_test("Non-blocking Neighborhood Alltoall Latency")
    assert (around.operation, around.call, around.program) == ("neighbor_alltoall", "nonblocking", "osu_ineighbor_alltoall")
    assert osu_test("???").operation == "unnamed"
