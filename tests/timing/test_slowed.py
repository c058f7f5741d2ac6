"""The native calls that make an iteration longer: by their part, in turn, less what they cost themselves."""

import ctypes
import time

import numpy as np
import pytest

from collbench.backends.slowed import NativeHold
from collbench.backends.socket import native
from collbench.operations.program import MAX_ARGS

pytestmark = pytest.mark.skipif(native() is None, reason="the native code was not built")


def called(call):
    function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * MAX_ARGS)(call.pointer)
    return function(*call.args, *[0] * (MAX_ARGS - len(call.args)))


def held_ns(hold, work_ns):
    assert called(hold.begin) == 0
    began = time.monotonic_ns()  # after it: an interrupted iteration has worked longer, never less
    while time.monotonic_ns() - began < work_ns:
        pass
    assert called(hold.end) == 0
    return time.monotonic_ns() - began


@pytest.mark.parametrize("work_ns", [50_000, 1_000_000])
def test_an_iteration_takes_its_parts_in_turn_and_never_less(work_ns):
    hold = NativeHold(native(), np.array([0.5, 2.0]))
    found = [held_ns(hold, work_ns) for _ in range(40)]
    assert min(found[::2]) >= 1.45 * work_ns and min(found[1::2]) >= 2.9 * work_ns  # what others take comes on top
    assert min(found[::2]) < 2.9 * work_ns


def test_a_large_delay_is_a_part_of_the_shortest_iteration_and_calls_cost_little():
    hold, took_s = NativeHold(native(), np.array([1.0])), []
    for work_s in (0.01, 0.2):
        assert called(hold.begin) == 0
        time.sleep(work_s)
        began_s = time.monotonic()
        assert called(hold.end) == 0
        took_s.append(time.monotonic() - began_s)
    assert took_s[0] >= 0.009
    assert took_s[1] < 0.1  # of 10 ms, not of 200 ms: else ranks that wait for each other are delayed without end
    library = native()
    library.collbench_slowed_cost.restype = ctypes.c_int64
    assert 0 < library.collbench_slowed_cost() < 100_000
