"""The committed comparison of the stacks, and the benchmark of the harness beside each stack's own loop."""

from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from unittest.mock import ANY

import pytest

from collbench.operations.unsupported import OperationUnsupported
from collbench.stats.launches import over_launches
from tests.conftest import ROOT, needs_ucc
from tests.plugins.libraries.stack import ENVIRONMENTS, environment_of
from tests.results.rows import make_row, make_times, store
from tests.stored import stored_reports
from tools.benchmarks import stack_loops
from tools.benchmarks.stacks.loop import Place
from tools.benchmarks.trials.stacks import STACKS, launches_in, main, measure, page, reasons_in, schedule

REPORTS = stored_reports() / "stacks"


def test_the_page_is_made_of_the_run_folders():
    assert (ROOT / "reports/stacks/README.md").read_text() == page(REPORTS)


@pytest.mark.parametrize("name", launches_in(REPORTS))
def test_each_stack_was_measured_and_was_right(name):
    for run in launches_in(REPORTS)[name]:
        assert len(run.rows) == 5
        assert {(row.operation, row.ranks, row.na, row.wrong) for row in run.rows} == {("allreduce", 2, None, 0)}
        assert {row.backend for row in run.rows} == {STACKS[name].backend}


def test_every_round_has_an_order_and_a_rank_reads_its_place():
    rounds = [list(each) for _, each in groupby(schedule(STACKS, 6), key=itemgetter(1))]
    assert [sorted(name for name, _ in each) for each in rounds] == [sorted(STACKS)] * 6
    assert len({tuple(name for name, _ in each) for each in rounds}) == 6
    assert list(schedule(STACKS, 6)) == list(schedule(sorted(STACKS, reverse=True), 6))
    actual = {"RANK": "1", "WORLD_SIZE": "2", "STACK_ADDRESSES": "127.0.0.1:4000,127.0.0.1:4001", "STACK_LOAD": "1048576,5,3,20"}
    place = Place.from_environment(actual)
    assert place == Place(1, 2, ("127.0.0.1:4000", "127.0.0.1:4001"), 1 << 20, 5, 3, 20)
    assert place.count == 262_144


def launches(folder, name, *medians_s):
    host = {"cpus_online": 2, "cpu_model": "CPU"}
    for number, median_s in enumerate(medians_s, start=1):
        row = make_row(1 << 20, backend=STACKS[name].backend, time_s=make_times(median_s), evidence={"libraries": {name: "1.0"}})
        about = {"command": ["collbench", "allreduce", "--backend", "mpi"], "host": host, "allocation_id": "stacks"}
        store(folder / name / f"launch-{number}", [row], started_utc=f"2026-11-28T13:0{number}:00.000Z", **about)


def test_the_interval_of_a_figure_is_over_launches(tmp_path):
    medians = [1e-3, 1.1e-3, 1.2e-3, 1.3e-3, 1.4e-3, 1.5e-3]
    launches(tmp_path, "mpich", *medians)
    over = over_launches(medians)
    (line,) = (line for line in page(tmp_path).splitlines() if line.startswith("| **mpich** | 6 |"))
    assert line.split(" | ")[2:] == [f"{over.value * 1e6:,.0f} ({over.low * 1e6:,.0f}–{over.high * 1e6:,.0f})", "50 % (1 MiB) |"]


@pytest.mark.system
def test_a_library_that_cannot_run_is_listed_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setitem(STACKS, "oneccl", replace(STACKS["oneccl"], environment=".venv-nowhere"))
    launches(tmp_path, "mpich", 1e-3)
    assert measure(tmp_path, ["oneccl", "rccl"], 1, 0.1) == []
    assert reasons_in(tmp_path) == {"oneccl": "no environment .venv-nowhere (make plugin-environments)", "rccl": ANY}
    assert [reason in page(tmp_path) for reason in reasons_in(tmp_path).values()] == [True, True]


def test_a_run_is_not_mixed_with_launches(tmp_path):
    store(tmp_path / "mpich", [make_row()])
    with pytest.raises(SystemExit):
        measure(tmp_path, ["mpich"], 1, 0.1)


@pytest.mark.long
def test_a_library_without_the_operation_is_listed_and_a_finished_launch_is_kept(tmp_path):
    assert main([str(tmp_path), "--only", "gloo,zmq", "--launches", "1", "--max-time", "0.02"]) == 0
    assert reasons_in(tmp_path) == {"zmq": f"no case can be measured: {OperationUnsupported('zmq', 'allreduce').render()}"}
    assert set(launches_in(tmp_path)) == {"gloo"}
    before = (tmp_path / "gloo/launch-1/run.json").read_bytes()
    assert main([str(tmp_path), "--only", "gloo", "--launches", "1"]) == 0
    assert (tmp_path / "gloo/launch-1/run.json").read_bytes() == before


def test_what_the_harness_adds_to_a_call_is_less_than_5_percent_of_a_tenth_of_a_millisecond():
    assert 0 < stack_loops.around_nothing() < 0.05 * 100e-6  # no stack's all-reduce of 1 MiB is as fast as that


def apart(stack: str) -> tuple[float, float]:
    """Seconds per call through collbench and by the stack's own loop, in two launches."""
    return stack_loops.through(stack, warmup=2, batches=3), stack_loops.alone(stack, warmup=2, batches=3)


def in_turn(stack: str) -> tuple[float, float]:
    found = stack_loops.in_turn(stack, warmup=2, batches=4)
    return found["collbench_s"], found["own_s"]


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("measure", [apart, in_turn])
@pytest.mark.parametrize("stack", [pytest.param(stack, marks=needs_ucc if stack == "ucc" else ()) for stack in stack_loops.STACKS])
def test_the_harness_and_the_stacks_own_loop_are_both_measured(stack, measure):
    if stack in ENVIRONMENTS:
        environment_of(stack)
    ours, theirs = measure(stack)
    assert 0 < theirs < 10
    assert 0 < ours < 10
