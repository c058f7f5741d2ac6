"""The references: what memory and loopback do, measured by all ranks of the host at once; the slowest rank counts."""

from dataclasses import replace

import numpy as np
import pytest

from collbench.control.world import World
from collbench.launch.info import LaunchInfo
from collbench.machine.peak.ceiling import Rate
from collbench.measure import references
from collbench.measure.references import measure_memory, measure_streams
from collbench.native.library import library
from collbench.operations.dtypes import DTYPES
from tests.control.together import Meeting, together
from tests.helpers import make_case


@pytest.fixture
def alone():
    world = World(LaunchInfo("local", 0, 1, 0, 1, "ipc://", "alone"), 5.0)
    yield world
    world.close()


@pytest.mark.parametrize("dtype", DTYPES)
def test_copy_and_sum_rates_at_every_size(alone, dtype):
    cases = [make_case(dtype, count) for count in (1, 1000, 50_000)]
    rates = measure_memory(alone, cases, True, 0.01)
    sizes = {case.size_bytes for case in cases}
    assert set(rates.copy) == set(rates.sum) == sizes
    for rate in (*rates.copy.values(), *rates.sum.values()):
        assert 0 < rate.low <= rate.value <= rate.high < 1e13
    assert (rates.stream_one, rates.stream_both) == (None, None)


def test_without_reductions_no_sum_is_measured(alone):
    rates = measure_memory(alone, [make_case()], False, 0.01)
    assert rates.sum == {}
    assert rates.copy[400].value > 0


def test_rotating_buffers_are_rotated_in_the_reference_too(alone):
    rates = measure_memory(alone, [replace(make_case(count=2**18), buffers="rotating")], True, 0.01)
    assert rates.copy[2**20].value > 0


def test_nothing_to_measure(alone):
    assert measure_memory(alone, [], True, 0.01).copy == {}


def test_without_the_native_loop_numpy_copies(alone, monkeypatch):
    for module in ("references", "loop"):
        monkeypatch.setattr(f"collbench.measure.{module}.library", lambda: None)
    rates = measure_memory(alone, [make_case("bfloat16"), make_case()], True, 0.01)
    assert rates.copy[200].value > 0
    assert rates.sum[400].value > 0


@pytest.mark.skipif(library() is None, reason="the native loop was not built")
@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "int32", "int64", "uint8"])
def test_the_native_copy_and_sum_are_correct(dtype):
    from collbench.backends.backend import Group
    from collbench.backends.clock import MonotonicClock
    from collbench.backends.host import Buffers
    from collbench.measure.loop import Loop, Timed
    from collbench.operations.program import Program

    def run(kind, buffers):
        import ctypes

        Loop(Timed(Program(((references._call(kind, buffers, 0),),)), None, MonotonicClock(), ctypes.c_int64())).run(1)

    buffers = Buffers(references._REFERENCE, make_case(dtype, 1001), Group((0,), (0,)), 1)
    buffers.send(0, 0)[:] = np.arange(1001) % 50
    buffers.recv(0, 0)[:] = 7
    run("sum", buffers)
    assert buffers.recv(0, 0).tolist() == [7 + i % 50 for i in range(1001)]
    run("copy", buffers)
    assert buffers.recv(0, 0).tolist() == [i % 50 for i in range(1001)]


def test_one_rank_has_no_stream(alone):
    assert measure_streams(alone) == (None, None)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_loopback_streams_one_way_and_both(tmp_path, n):
    body = """
from collbench.measure.references import measure_memory, measure_streams
from collbench.operations.case import Case
from collbench.operations.dtypes import DTYPES
def main(world):
    rates = measure_memory(world, [Case("allreduce", "mpi", DTYPES["float32"], 1024, redop="sum")], True, 0.01)
    found = [*measure_streams(world), rates.copy[1024], rates.sum[1024]]
    return [[rate.low, rate.value, rate.high, rate.disturbed] for rate in found]
"""
    found = together(body, n, Meeting("ipc", tmp_path))
    assert [one.code for one in found] == [0] * n, found
    assert all(one.said == found[0].said for one in found)  # the slowest, at every rank
    assert all(1e6 < low <= value <= high < 1e13 for low, value, high, _ in found[0].said)


def scripted(monkeypatch, alone, rates):
    """The rates of measure_memory where the rounds of its one reference are `rates`, and how many were measured."""
    left = list(rates)
    monkeypatch.setattr(references, "_rate", lambda *_: Rate(left[0], left[0] * 0.98, left.pop(0) * 1.02))
    found = measure_memory(alone, [make_case()], False, 0.01).copy[400]
    return found, len(rates) - len(left)


def test_a_steady_reference_is_measured_in_two_rounds(alone, monkeypatch):
    found, rounds = scripted(monkeypatch, alone, [10e9, 10.4e9, 1e9, 1e9, 1e9])
    assert (found.value, found.disturbed, rounds) == (10.2e9, False, 2)


def test_a_disturbed_reference_is_measured_again_until_two_rounds_agree(alone, monkeypatch):
    found, rounds = scripted(monkeypatch, alone, [10e9, 4e9, 10.2e9, 10e9, 1e9])
    assert (found.value, found.disturbed, rounds) == (10.1e9, False, 4)


def test_a_reference_that_stays_disturbed_is_given_up_after_five_rounds(alone, monkeypatch):
    found, rounds = scripted(monkeypatch, alone, [10e9, 4e9, 9e9, 3e9, 6e9, 6e9, 6e9])
    assert (found.value, found.disturbed, rounds) == (6e9, True, 5)
