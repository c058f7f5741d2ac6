"""PARAM comms: collectives and point-to-point; its percentiles are over ranks, and so not ours."""

from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.importers.importer import UserInput
from collbench.plugins.importers.notes import MissingItem, NotInOutput, RankMismatch
from collbench.plugins.importers.param import PARAM

LINES = (Path(__file__).parent / "samples" / "param.txt").read_text().splitlines()
FIGURES = "        1048576            131072             100.0       101.0       102.0        99.0       103.0         10.486       7.864"
OLD = f"\tCOMMS-RES-all_gather-float16\t{FIGURES}"
BARE = ["backend: gloo nw-stack: pytorch-dist args.b: 8 args.e: 8 args.f: 2 args.z: 0 args.master_ip: x", OLD]


def test_a_collective():
    run = PARAM.read(LINES, UserInput()).runs[0]
    row = run.rows[0]
    assert PARAM.knows(LINES)
    assert (run.tool, run.program, list(run.hosts)) == ("param", "comms.py all_reduce", ["gpu0", "gpu0", "gpu1", "gpu1"])
    assert run.statistic == "the median over the ranks of each rank's mean over the iterations"
    assert (row.operation, row.backend, row.api, row.device, row.mode, row.ranks, row.nodes) == (
        "allreduce", "torch-nccl", "torch", "cuda", "isolated", 4, 2,
    )  # fmt: skip
    assert (row.time_s.p50, row.time_s.p95, row.time_s.max) == (1e-4, None, None)
    assert row.evidence["across_ranks"]["rank_max_s"] == pytest.approx(1.03e-4)
    assert run.doubts == []


def test_point_to_point_is_three_patterns_of_the_ranks_that_took_part():
    rows = PARAM.read(LINES, UserInput()).runs[1].rows
    assert [(row.operation, row.group, row.ranks, row.nodes) for row in rows] == [
        ("p2p_latency", "0-2", 2, 2), ("p2p_bandwidth", "0-2", 2, 2), ("p2p_bidirectional", "0-2", 2, 2),
    ]  # fmt: skip
    assert [row.time_s.p50 for row in rows if row.time_s] == pytest.approx([60e-6, 1048576 / 10e9, 1048576 / 9e9])
    assert rows[2].evidence["statistic"] == "size / half of the mean rate both ways of the ranks that communicate"


def test_the_columns_of_older_versions_and_what_is_not_reported():
    run = PARAM.read(BARE, UserInput(ranks=4)).runs[0]
    assert [(row.operation, row.dtype, row.backend, row.device, row.mode, row.nodes) for row in run.rows] == [
        ("allgather", "float16", "gloo", "cpu", "pipelined", None)
    ]
    assert NotInOutput(MissingItem.DEVICE, assumed="cpu") in run.missing
    assert run.doubts == []


def test_ranks_and_operations_that_the_table_contradicts_are_reported():
    assert PARAM.read(BARE, UserInput(ranks=8)).runs[0].doubts == [RankMismatch("BusBW / AlgBW", 8, "allgather", 4, 4)]
    runs = PARAM.read(LINES, UserInput(operation="broadcast")).runs
    assert [(each.option, each.found) for run in runs for each in run.contradicted] == [("--operation", "allreduce")]


@pytest.mark.parametrize(("lines", "given_", "sentence"), [
    (BARE, UserInput(), "the table at line 2: the number of ranks is unknown"), (LINES, UserInput(ranks=8), "has 4 ranks, not --ranks 8"),
    (["COMMS-RES 8 1 1.0 1.0 1.0 1.0 1.0 0.1 0.1"], UserInput(), "the collective or the data type is unknown"),
    (["\tCOMMS-RES-QUANT-all_reduce-float32\t 8 1 1.0 1.0 1.0 1.0"], UserInput(), "only lines of quantized collectives"),
    (LINES[:6], UserInput(), "no line COMMS-RES with a time"),
])  # fmt: skip
def test_what_only_the_user_can_show_is_one_sentence(lines, given_, sentence):
    with pytest.raises(UsageError) as said:
        PARAM.read(lines, given_)
    assert sentence in str(said.value)
