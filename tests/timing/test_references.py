"""The measured references of a host: memory copies and sums, their pattern, and loopback streams."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collbench.control.world import World
from collbench.launch.info import LaunchInfo
from collbench.machine.peak.ceiling import Rate
from collbench.measure import references
from collbench.measure.references import (
    PATTERN,
    PERIOD,
    bound,
    copy_memory,
    first_wrong,
    measure_memory,
    measure_streams,
    repetitions,
    write_pattern,
)
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


@pytest.mark.parametrize(("size", "once_s"), [(4096, 1e-6), (64, 1e-8), (1 << 20, 1e-3)])
def test_a_rate_is_that_of_one_copy_however_many_a_sample_holds(monkeypatch: pytest.MonkeyPatch, size: int, once_s: float) -> None:
    batches = []

    class Loop:
        def __init__(self, timed: Any) -> None:
            pass

        def run(self, n: int, batch: int = 1) -> Any:
            batches.append(batch)
            return np.full((1, n), batch * once_s)

    monkeypatch.setattr(references, "Loop", Loop)
    world: Any = SimpleNamespace(rank=0, allgather=lambda value, what: [value])
    found = references._rate(world, make_case(count=size // 4, redop=None), "copy", 1.0)
    assert (found.value, found.low, found.high) == pytest.approx((size / once_s,) * 3)
    assert batches[-1] == max(1, int(1e-5 / once_s))


CPUS = sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("cpus", [CPUS[:1], CPUS])
def test_every_thread_copies_its_share(cpus: list[int]) -> None:
    copied = copy_memory(cpus, 4 * 2**20, 0.05, 20)
    assert copied.n_bytes == 4 * 2**20 // len(cpus) * len(cpus)
    assert copied.wrong is None
    assert len(copied.seconds) >= 1 and np.all(copied.seconds > 0)


def test_a_cpu_that_is_not_ours_is_an_error() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(OSError, match="Invalid argument"):
        copy_memory([CPUS[0], 4095], 2**20, 0.05, 20)
    assert os.sched_getaffinity(0) == before


def test_a_thread_bound_for_a_while() -> None:
    before = os.sched_getaffinity(0)
    with bound(CPUS[:1]):
        assert os.sched_getaffinity(0) == {CPUS[0]}
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("once_s", "seconds", "n"),
    [(0.01, 1.0, 100), (1e-6, 1.0, 300), (0.3, 1.0, 6), (0.6, 1.0, 1), (5.0, 1.0, 1), (0.0, 1.0, 300)],
)
def test_repetitions_fit_the_time_or_make_an_interval(once_s: float, seconds: float, n: int) -> None:
    assert repetitions(once_s, seconds) == n


@pytest.mark.parametrize("n", [1, 65_521, 200_000])
def test_one_wrong_byte_is_found_wherever_it_is(n: int) -> None:
    target = np.zeros(n, np.uint8)
    write_pattern(target)
    assert first_wrong(target) is None
    target[n - 1] ^= 0x80
    assert first_wrong(target) == f"1 of {n} bytes differ from those that were copied, the first at {n - 1}"


def test_memory_that_was_never_written_is_all_wrong() -> None:
    assert first_wrong(np.zeros(1000, np.uint8)) == "1000 of 1000 bytes differ from those that were copied, the first at 0"


@pytest.mark.parametrize("shift", [1, 2, 64, 4096, 1 << 20])
def test_a_shift_shows_at_once(shift: int) -> None:
    shifted = np.resize(np.roll(PATTERN, -shift), 1000)
    assert shift % PERIOD and first_wrong(shifted).endswith("the first at 0")
