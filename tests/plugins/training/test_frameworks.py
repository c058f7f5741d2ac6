"""`collbench workload ddp` and `fsdp2`: real steps on Gloo, whose traffic is what collbench expects, and whose parameters are right."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.command import BIN, one_sentence, run, run_here
from tests.plugins.training.reading import read_workload

needs_gloo = pytest.mark.skipif(find_spec("torch") is None, reason="no torch beside this Python")
long = pytest.mark.long


@pytest.mark.system
@pytest.mark.often("fsdp2 --ranks 2")
@needs_gloo
@long
@pytest.mark.parametrize(
    "words",
    [
        ["ddp", "--ranks", "2", "--bucket", "300K"],
        ["ddp", "--ranks", "3"],
        ["ddp", "--ranks", "2", "--dtype", "float64", "--model", "700001", "--layers", "2", "--hidden", "96"],
        ["fsdp2", "--ranks", "2"],
        ["fsdp2", "--ranks", "3", "--model", "700001", "--layers", "1", "--hidden", "97"],
        ["fsdp2", "--ranks", "2", "--dtype", "bfloat16"],
    ],
    ids=" ".join,
)
def test_a_real_step_exchanges_what_is_expected_and_trains_right(words: list[str], tmp_path: Path) -> None:
    done = run(tmp_path, "workload", *words, "-n", "4", "--out", "run", "--format", "json")
    assert done.returncode == 0, done.stderr
    _, (row,), warnings = read_workload(tmp_path / "run")
    assert not warnings and json.loads(done.stdout)["regime"] == words[0]
    assert (row.backend, row.na, row.n, row.wrong, row.checked) == ("gloo", None, 4, 0, 1)
    assert row.evidence["traffic"]["kind"] == "traffic_equal"
    assert sum(part.times for part in row.parts) == row.evidence["traffic"]["operations"] == sum(row.evidence["recorded"].values())
    assert row.time_s and row.busbw_bytes_per_s is None and row.percent_of_ceiling is None
    shown = run_here(tmp_path, "report", "run")
    assert shown.returncode == 0 and "byte for byte" in shown.stdout


@needs_gloo
@long
def test_ranks_that_train_alone_are_wrong_and_differ_from_what_is_expected(tmp_path: Path) -> None:
    program = (str(BIN / "torchrun"), "--nproc-per-node", "2", str(Path(__file__).with_name("no_exchange.py")))
    done = run(tmp_path, "workload", "ddp", "-n", "2", "--out", "run", program=program)
    assert done.returncode == 1, "of torchrun, after exit code 4 of the ranks"
    _, (row,), _ = read_workload(tmp_path / "run")
    assert row.wrong and "model_differs" in row.flags
    assert row.evidence["traffic"] | {"framework": ""} == {
        "kind": "traffic_differs", "framework": "", "rank": 0, "at": 0, "recorded": None,
        "expected": {"kind": "exchanged", "operation": "allreduce", "size_bytes": 264192 * 4, "dtype": "float32"},
    }  # fmt: skip


@pytest.mark.parametrize(
    "words", [["ddp", "--backend", "mpi"], ["fsdp2", "--model", "100K"], ["ddp", "--stages", "2"], ["fsdp2", "--bucket", "1M"]]
)
def test_bad_input_is_one_sentence(words: list[str], tmp_path: Path) -> None:
    one_sentence(run_here(tmp_path, "workload", *words))


def test_a_plan_starts_nothing(tmp_path: Path) -> None:
    done = run_here(tmp_path, "workload", "ddp,fsdp2", "--ranks", "2", "--dry-run", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["operation"] for line in done.stdout.splitlines()} == {"allreduce", "allgather", "reducescatter"}
