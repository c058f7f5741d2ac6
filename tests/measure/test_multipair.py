"""Several pairs at once, and the creation of groups: figures of all pairs together on virtual ranks, and what each rank calls."""

import json
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from collbench.cli.parser import pair_numbers
from collbench.errors import UsageError
from collbench.measuring.request import Budget, Request
from collbench.measuring.tasks.cases import task_of
from collbench.operations.builtin import init
from collbench.operations.builtin.p2p import MULTIPAIR_BANDWIDTH, MULTIPAIR_BIDIRECTIONAL, P2P_BANDWIDTH
from collbench.operations.dtypes import dtype_named
from collbench.operations.program import PythonCall
from collbench.operations.sweep import Sweep
from tests.cli.command import run
from tests.measure.launches import RecordingListener, run_alone


def test_figures_are_of_all_pairs_together(tmp_path):
    operations = (MULTIPAIR_BANDWIDTH, MULTIPAIR_BIDIRECTIONAL, P2P_BANDWIDTH)
    sweep = Sweep(operations, (1 << 20,), (dtype_named("float32"),), pairs=(1, 0), window=4)
    backends = ("simulated",)
    request = Request("multipair", sweep, backends, frozenset(backends), budget=Budget(2, 20, 2), ranks=4, out=tmp_path / "run")
    listener = RecordingListener()
    assert run_alone(task_of, request, listener) == 0
    *multipair, other = listener.in_order
    assert [row.group for row in multipair] == ["1 pair", "2 pairs"] * 2
    for row, pairs, ways in zip(multipair, (1, 2, 1, 2), (1, 1, 2, 2), strict=True):
        assert row.message_rate == pytest.approx(ways * pairs / row.time_s.p50)
        assert row.busbw_bytes_per_s == pytest.approx(pairs * (1 << 20) / row.time_s.p50)
        assert row.groups.get("count") == (2 if pairs == 2 else None)
        assert (row.wrong, "pairs_at_once" in row.flags) == (0, False)
    assert multipair[1].ceiling.bytes_per_s == pytest.approx(2 * multipair[0].ceiling.bytes_per_s)
    assert (other.message_rate, other.group) == (None, "0-2,1-3")


@pytest.mark.parametrize(("text", "numbers"), [("1,2,4", (1, 2, 4)), ("all", (0,)), ("2,2,all", (2, 0))])
def test_numbers_of_pairs(text, numbers):
    assert pair_numbers(text) == numbers


def test_more_pairs_than_ranks_make_are_refused():
    sweep = Sweep((MULTIPAIR_BANDWIDTH,), (8,), (dtype_named("uint8"),), pairs=(1, 3))
    sweep.check_ranks(6)
    with pytest.raises(UsageError):
        sweep.check_ranks(5)


class RecordingBinding:
    """A double of torch's binding: it records the calls of a rank, and makes groups that are their ranks."""

    def __init__(self, rank, n):
        self.rank, self.n, self.calls = rank, n, list[tuple[Any, ...]]()

    def peer(self, rank):
        return rank

    def call(self, name, *words, **named):
        def run():
            self.calls.append((name, *words, *named.values()))
            return tuple(words[0]) if name == "new_group" else None

        return PythonCall(name, run)


@pytest.mark.parametrize(("rank", "own"), [(0, (0, 1)), (3, (2, 3))])
def test_every_rank_makes_every_group_and_frees_its_own_and_the_last_rank_may_be_left_out(rank, own):
    binding = RecordingBinding(rank, 4)
    program = list(init.HALVES.steps["torch"](binding))
    for _ in range(2):
        for call in program:
            call.function()
    assert binding.calls == [("new_group", [0, 1]), ("new_group", [2, 3]), ("destroy_process_group", own)] * 2
    assert list(init.REFORM.steps["mpi"](SimpleNamespace(rank=2, n=3))) == []
    stays = RecordingBinding(2, 3)
    for call in init.REFORM.steps["torch"](stays):
        call.function()
    assert stays.calls == [("new_group", [0, 1])]


@pytest.mark.long
@pytest.mark.skipif(not find_spec("torch"), reason="no torch")
def test_groups_of_several_groups_at_once_are_refused_by_torch(tmp_path):
    done = run(tmp_path, "init", "--ranks", "4", "--backend", "gloo", "--split", "MOD 2", "--format", "json")
    rows = [json.loads(each) for each in done.stdout.splitlines()]
    assert done.returncode == 2 and {row["operation"] for row in rows} >= {"init_create", "init_reform"}
    assert {row["na_fact"]["kind"] for row in rows if row["operation"] not in ("init_nodes", "init_session")} == {"option_unsupported"}


@pytest.mark.long
@pytest.mark.skipif(not find_spec("mpi4py"), reason="no mpi4py")
@pytest.mark.parametrize("split", [["--ranks", "2"], ["--ranks", "4", "--split", "MOD 2"]])
def test_a_session_of_real_ranks_makes_a_communicator(split, tmp_path):
    done = run(tmp_path, "init", *split, "--backend", "mpi", "-n", "3", "-w", "1", "--format", "json", timeout=100)
    rows = {row["operation"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0, done.stderr
    assert rows["init_session"]["time_s"]["p50"] > 0 and rows["init_session"]["evidence"]["grown"]["open_files"] <= 2


@pytest.mark.long
def test_groups_of_real_ranks_leave_no_file_open(tmp_path):
    words = ["--ranks", "2", "--backend", "gloo", "-n", "5", "-w", "2", "--max-time", "20", "--timeout", "60", "--out", "run", "--quiet"]
    done = run(tmp_path, "init", *words, timeout=100)
    assert done.returncode == 0, done.stderr
    rows = {row["operation"]: row for row in map(json.loads, (tmp_path / "run" / "cells.jsonl").read_text().splitlines())}
    assert set(rows) == {f"init_{name}" for name in ("create", "first", "session", "halves", "alternate", "nodes", "reform")}
    assert {name for name, row in rows.items() if row["na"]} == {"init_session", "init_nodes"}
    measured = [row for row in rows.values() if not row["na"]]
    assert all(row["time_s"]["p50"] > 0 and row["evidence"]["grown"]["open_files"] <= 2 for row in measured)
