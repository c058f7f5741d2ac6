"""The committed comparison of the stacks, and the benchmark of the harness beside each stack's own loop."""

import pytest

from benchmarks import stack_loops
from benchmarks.stacks.loop import Place
from benchmarks.trials.stacks import STACKS, page
from collbench.results.reader import read_run
from tests.conftest import ROOT
from tests.plugins.stack import ENVIRONMENTS, environment_of

REPORTS = ROOT / "reports/stacks"


def test_the_page_is_made_of_the_run_folders():
    assert (REPORTS / "README.md").read_text() == page(REPORTS)


@pytest.mark.parametrize("name", STACKS)
def test_each_stack_was_measured_and_was_right(name):
    rows = read_run(REPORTS / name).rows
    assert len(rows) == 5
    assert {(row.operation, row.backend, row.ranks, row.na, row.wrong) for row in rows} == {("allreduce", STACKS[name].backend, 2, None, 0)}


def test_a_rank_of_a_minimal_loop_reads_its_place_from_its_environment():
    actual = {"RANK": "1", "WORLD_SIZE": "2", "STACK_ADDRESSES": "127.0.0.1:4000,127.0.0.1:4001", "STACK_LOAD": "1048576,5,3,20"}
    place = Place.from_environment(actual)
    assert place == Place(1, 2, ("127.0.0.1:4000", "127.0.0.1:4001"), 1 << 20, 5, 3, 20)
    assert place.count == 262_144


def test_what_the_harness_adds_to_a_call_is_less_than_5_percent_of_a_tenth_of_a_millisecond():
    assert 0 < stack_loops.around_nothing() < 0.05 * 100e-6  # no stack's all-reduce of 1 MiB is as fast as that


def apart(stack: str) -> tuple[float, float]:
    """Seconds per call through collbench and by the stack's own loop, in two launches."""
    return stack_loops.through(stack, warmup=2, batches=3), stack_loops.alone(stack, warmup=2, batches=3)


def in_turn(stack: str) -> tuple[float, float]:
    """The same within one launch."""
    found = stack_loops.in_turn(stack, warmup=2, batches=4)
    return found["collbench_s"], found["own_s"]


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("measure", [apart, in_turn])
@pytest.mark.parametrize("stack", stack_loops.STACKS)
def test_the_harness_and_the_stacks_own_loop_are_both_measured(stack, measure):
    if stack in ENVIRONMENTS:
        environment_of(stack)
    ours, theirs = measure(stack)
    assert 0 < theirs < 10
    assert 0 < ours < 10
