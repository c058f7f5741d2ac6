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
