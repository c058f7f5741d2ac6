"""Work that calls only enqueue: events around a batch, streams waited for, errors that come later; in C, and in Python without it."""

import ctypes

import numpy as np
import pytest

from collbench.backends.clock import DeviceClock
from collbench.measuring import loop as device_module
from collbench.measuring import loop as loop_module
from collbench.measuring.loop import CallFailed, Loop, Timed, Unfinished
from collbench.native.library import library
from collbench.operations.program import Program
from tests.timing.test_loop import Recorder

FUNCTION, EVENTS = (
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64),
    {11: "start 1", 12: "end 1", 21: "start 2", 22: "end 2"},
)
NOT_READY, ILLEGAL_ADDRESS, REMOTE_ERROR = 600, 700, 6


class FakeDevice:
    """The functions of a driver and a library that a loop asks, written down; streams 1 and 2 need `polls` looks before they are empty."""

    def __init__(self, polls=2, broken=0, error=0, unread=0, deadline_s=10.0):
        self.seen, self._keep, self._polls, self._left = [], [], polls, {}
        self.broken, self.error, self.unread, self.deadline_s = broken, error, unread, deadline_s

    def record(self, event, stream):
        self.seen.append(f"{EVENTS[event]} on {stream}")
        self._left[stream] = self._polls
        return 0

    def query(self, stream):
        if self.broken:
            return self.broken
        self._left[stream] -= 1
        return NOT_READY if self._left[stream] > 0 else 0

    def elapsed(self, ms, start, end):
        self.seen.append(f"read {EVENTS[start]} to {EVENTS[end]}")
        ctypes.c_float.from_address(ms).value = 2.0 * start  # 22 ms on stream 1, 42 on stream 2
        return self.unread

    def async_error(self, comm, error):
        ctypes.c_int.from_address(error).value = self.error if comm == 9 else 7  # 7: in progress
        return 0

    def clock(self):
        """Two ranks in this process, a communicator each."""
        words = {"record": 2, "query": 1, "elapsed": 3, "async_error": 2}
        self._keep = [ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * n)(getattr(self, name)) for name, n in words.items()]
        record, query, elapsed, error = (ctypes.cast(function, ctypes.c_void_p).value for function in self._keep)
        return DeviceClock(
            (1, 2), (11, 21), (12, 22), record, query, elapsed, (8, 9), error, self.deadline_s, device_error=lambda code: f"CUDA {code}",
            library_error=lambda code: f"NCCL {code}", stuck=lambda why: f"gave up: {why}",
        )  # fmt: skip


@pytest.fixture(params=["native", "fallback"], autouse=True)
def native(request, monkeypatch):
    if request.param == "fallback":
        monkeypatch.setattr(loop_module, "library", lambda: None)
        monkeypatch.setattr(device_module, "library", lambda: None)
    elif library() is None:
        pytest.skip("the native loop was not built")
    return request.param == "native"


def make(fake, recorder, slots=(("a",), ("b",)), sync=("s",), iterations=1):
    functions = (fake, recorder)  # a loop knows their addresses only: without this they go with the next garbage collection
    program = Program(tuple(tuple(recorder.native(name) for name in slot) for slot in slots), functions, "NCCL got {}".format, iterations)
    before = Program((tuple(recorder.native(name) for name in sync),), explain="the barrier returned {}".format) if sync else None
    return Loop(Timed(program, before, fake.clock(), ctypes.c_int64(-1)))


def test_a_sample_is_the_time_between_the_events_around_a_batch_on_each_stream(native):
    fake, recorder = FakeDevice(), Recorder()
    loop = make(fake, recorder)
    samples = loop.run(2, batch=3)
    assert samples == pytest.approx(np.array([[0.022, 0.022], [0.042, 0.042]]))
    assert recorder.seen == ["s", "a", "b", "a", "s", "b", "a", "b"]
    around = ["start 1 on 1", "start 2 on 2", "end 1 on 1", "end 2 on 2", "read start 1 to end 1", "read start 2 to end 2"]
    assert fake.seen == around * 2
    assert (loop.native, loop.could_be_native, loop.iterations_run) == (native, True, 6)


def test_the_host_time_is_kept_per_iteration_and_start_stamps_are_of_no_clock_that_ranks_share():
    loop = make(FakeDevice(), Recorder(), iterations=20)
    loop.run(3, batch=1)
    assert loop.enqueue_s is not None
    assert 0 < loop.enqueue_s < 0.01
    assert loop.iterations_run == 60
    assert np.isnan(loop.starts_ns).all()
    assert loop.starts_ns.shape == (2, 3)


def test_a_call_that_fails_at_once_is_named_as_in_other_loops():
    with pytest.raises(CallFailed, match=r"^b failed in iteration 1: NCCL got 15$"):
        make(FakeDevice(), Recorder(fail_at=5), slots=(("a", "b"),)).run(4)
    with pytest.raises(CallFailed, match=r"synchronisation failed in iteration 0: the barrier returned 15$"):
        make(FakeDevice(), Recorder(fail_at=0)).run(4)


def test_work_that_fails_later_or_never_ends_is_unfinished():
    with pytest.raises(Unfinished, match=r"a and c failed .*: CUDA 700 \(iteration 0\)$"):
        make(FakeDevice(broken=ILLEGAL_ADDRESS), Recorder(), slots=(("a", "c", "a"),)).run(4)
    with pytest.raises(Unfinished, match=r" a failed .*: NCCL 6 \(iteration 0\)$"):
        make(FakeDevice(polls=10**9, error=REMOTE_ERROR), Recorder(), sync=()).run(4)
    with pytest.raises(Unfinished, match=r"CUDA 400"):
        make(FakeDevice(unread=400), Recorder()).run(1)
    with pytest.raises(Unfinished, match=r" a .* 0\.15 s \(iteration 0\); .*--timeout, .* 75 %$"):
        make(FakeDevice(polls=10**9, deadline_s=0.2), Recorder(), slots=(("a",),)).run(1, batch=5)
