"""The references: what memory and loopback do, measured by all ranks of the host at once; the slowest rank counts."""

from dataclasses import replace

import numpy as np
import pytest

from collbench.launch.info import LaunchInfo
from collbench.operations.dtypes import DTYPES
from collbench.timing import reference
from collbench.timing.native import library
from collbench.timing.reference import measure_memory, measure_streams
from collbench.world.world import World
from tests.helpers import make_cell
from tests.world.together import Meeting, together


@pytest.fixture
def alone():
    world = World(LaunchInfo("local", 0, 1, 0, 1, "ipc://", "alone"), 5.0)
    yield world
    world.close()


@pytest.mark.parametrize("dtype", DTYPES)
def test_copy_and_sum_rates_at_every_size(alone, dtype):
    cells = [make_cell(dtype, count) for count in (1, 1000, 50_000)]
    rates = measure_memory(alone, cells, True, 0.01)
    sizes = {cell.size_bytes for cell in cells}
    assert set(rates.copy) == set(rates.sum) == sizes
    assert all(0 < rate < 1e13 for rate in (*rates.copy.values(), *rates.sum.values()))
    assert (rates.stream_one, rates.stream_both) == (None, None)


def test_without_reductions_no_sum_is_measured(alone):
    rates = measure_memory(alone, [make_cell()], False, 0.01)
    assert rates.sum == {}
    assert rates.copy[400] > 0


def test_rotating_buffers_are_rotated_in_the_reference_too(alone):
    rates = measure_memory(alone, [replace(make_cell(count=2**18), buffers="rotating")], True, 0.01)
    assert rates.copy[2**20] > 0


def test_nothing_to_measure(alone):
    assert measure_memory(alone, [], True, 0.01).copy == {}


def test_without_the_native_loop_numpy_copies(alone, monkeypatch):
    for module in ("reference", "loop"):
        monkeypatch.setattr(f"collbench.timing.{module}.library", lambda: None)
    rates = measure_memory(alone, [make_cell("bfloat16"), make_cell()], True, 0.01)
    assert rates.copy[200] > 0
    assert rates.sum[400] > 0


@pytest.mark.skipif(library() is None, reason="the native loop was not built")
@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "int32", "int64", "uint8"])
def test_the_native_copy_and_sum_do_what_they_say(dtype):
    from collbench.backends.backend import Group
    from collbench.backends.clock import MonotonicClock
    from collbench.backends.memory import Buffers
    from collbench.operations.program import Program
    from collbench.timing.loop import Loop, Timed

    def run(kind, buffers):
        import ctypes

        Loop(Timed(Program(((reference._call(kind, buffers, 0),),)), None, MonotonicClock(), ctypes.c_int64())).run(1)

    buffers = Buffers(reference._REFERENCE, make_cell(dtype, 1001), Group((0,), (0,)), 1)
    buffers.send(0, 0)[:] = np.arange(1001) % 50
    buffers.recv(0, 0)[:] = 7
    run("sum", buffers)
    assert buffers.recv(0, 0).tolist() == [7 + i % 50 for i in range(1001)]
    run("copy", buffers)
    assert buffers.recv(0, 0).tolist() == [i % 50 for i in range(1001)]


def test_one_rank_has_nobody_to_stream_to(alone):
    assert measure_streams(alone) == (None, None)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_loopback_streams_one_way_and_both(tmp_path, n):
    body = """
from collbench.timing.reference import measure_memory, measure_streams
from collbench.operations.cell import Cell
from collbench.operations.dtypes import DTYPES
def main(world):
    rates = measure_memory(world, [Cell("allreduce", "mpi", DTYPES["float32"], 1024, redop="sum")], True, 0.01)
    return [*measure_streams(world), rates.copy[1024], rates.sum[1024]]
"""
    found = together(body, n, Meeting("ipc", tmp_path))
    assert [one.code for one in found] == [0] * n, found
    assert all(one.said == found[0].said for one in found)  # the slowest, at every rank
    assert all(1e6 < rate < 1e13 for rate in found[0].said)
