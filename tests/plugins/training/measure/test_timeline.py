"""The timeline of a step: what a rank needs for it, how long it takes at given times of its exchanges, and its computing."""

import ctypes
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from collbench.backends.clock import MonotonicClock
from collbench.backends.nonblocking import busy, divided
from collbench.backends.simulated import SimulatedBackend
from collbench.errors import UsageError
from collbench.measuring.loop import Loop, Timed
from collbench.native.library import library
from collbench.operations.dtypes import DTYPES
from collbench.operations.program import NativeCall, Program, PythonCall
from collbench.operations.registry import commands, every_operation, operations
from collbench.operations.sweep import Sweep
from collbench.plugins.training.step_task import agree, path_s, plan_of
from collbench.plugins.training.timeline import check_timeline, slots_needed, timeline_s
from collbench.plugins.training.workloads.step import Compute, Exchange, Start, Step, Wait

PAIR, ALL = ((0, 1),), ((0, 1, 2, 3),)
NATIVE = pytest.param(True, marks=pytest.mark.skipif(library() is None, reason="the native loop is not built"))


def step(timeline, *exchanges):
    return Step(exchanges, 4, timeline=tuple(map(tuple, timeline)))


def of(groups, size=4096, operation="allreduce"):
    return Exchange(operation, groups, size, f"{operation} of {size}", redop="sum" if operation == "allreduce" else None)


def now(number):
    return [Start(number), Wait(number)]


@pytest.mark.parametrize("actions", [
    [Start(0), Wait(0)],  # exchange 1 is missing
    [Start(1), Start(0), Wait(0), Wait(1)],  # not in the order of the step
    [Start(0), Start(1), Wait(1)],  # 0 is not waited for
    [Wait(0), Start(0), Start(1), Wait(1), Wait(0)], [Start(0), Start(0), Start(1), Wait(0), Wait(1)],
    [Start(0), Wait(0), Wait(0), Start(1), Wait(1)], [Start(0), Start(1), Wait(0), Wait(1), Start(7)], [*now(0), *now(1), Compute(-1.0)],
    [*now(0), *now(1), Compute(float("nan"))],
    [*now(0), *now(1), *now(2)],  # of other ranks
])  # fmt: skip
def test_an_incomplete_timeline_is_rejected(actions):
    exchanges = of(((0, 1),)), of(((0, 2),)), of(((2, 3),))
    good = [[*now(0), *now(1)], now(0), [*now(1), *now(2)], now(2)]
    check_timeline(step(good, *exchanges), 4)
    with pytest.raises(UsageError, match="timeline of rank 0"):
        check_timeline(step([actions, *good[1:]], *exchanges), 4)


@pytest.mark.parametrize(("actions", "slots"), [
    ([*now(0), *now(1), *now(2)], [1]), ([Start(0), Start(1), Wait(0), Start(2), Wait(1), Wait(2)], [2]),
    ([Start(0), Start(1), Start(2), Wait(2), Wait(1), Wait(0)], [3]),
    ([Start(0), *now(1), *now(2), Wait(0)], [3]),  # buffers are used in turn: two would give 2 that of 0
])  # fmt: skip
def test_a_running_exchange_keeps_its_buffer(actions, slots):
    assert slots_needed(actions, [0, 0, 0], [0, 1, 2], 1) == slots


def test_computing_hides_what_runs_at_the_same_time_and_exchanges_of_a_group_follow_one_another():
    each = [Start(0), Compute(3.0), Wait(0), Compute(1.0)]
    assert timeline_s(step([each, each], of(PAIR)), [2.0]) == 4.0
    assert timeline_s(step([each, each], of(PAIR)), [5.0]) == 6.0
    both = [Start(0), Start(1), Wait(0), Wait(1)]
    assert timeline_s(step([both, both], of(PAIR), of(PAIR, 8)), [2.0, 3.0]) == 5.0
    middle = [Start(0), Start(1), Wait(0), Wait(1)]
    chain = step([now(0), middle, now(1)], of(((0, 1),)), of(((1, 2),)))
    assert timeline_s(chain, [2.0, 3.0]) == 3.0


def test_an_exchange_begins_with_its_last_rank_but_a_sender_does_not_wait_for_the_receiver():
    late = [Compute(10.0), *now(0)]
    assert timeline_s(step([now(0), late], of(PAIR)), [2.0]) == 12.0
    assert timeline_s(step([now(0), []], of(PAIR)), [2.0]) == 2.0  # rank 1 is not known here
    sender = [*now(0), Compute(1.0)]
    receiver = [Compute(5.0), *now(0)]
    assert timeline_s(step([sender, receiver], of(PAIR, operation="p2p_message")), [0.5]) == 5.0
    assert timeline_s(step([sender, receiver], of(PAIR)), [0.5]) == 6.5


def test_a_pipeline_of_messages():
    # Each stage computes for 1 s, and sends what the next one waits for; three ranks, two microbatches.
    message = [of(pair, operation="p2p_message") for pair in [((0, 1),), ((1, 2),)] * 2]  # 0→1, 1→2, 0→1, 1→2
    first = [Compute(1.0), Start(0), Compute(1.0), Start(2), Wait(0), Wait(2)]
    second = [Start(0), Wait(0), Compute(1.0), Start(1), Start(2), Wait(2), Compute(1.0), Start(3), Wait(1), Wait(3)]
    last = [*now(1), Compute(1.0), *now(3), Compute(1.0)]
    assert timeline_s(step([first, second, last], *message), [0.25] * 4) == pytest.approx(4 + 2 * 0.25)


def test_ranks_that_wait_for_one_another_or_lack_their_timeline_are_an_error():
    circle = step([[Start(0), Wait(0), Start(1), Wait(1)], [Compute(1.0), Start(1), Wait(1), Start(0), Wait(0)]], of(PAIR), of(PAIR, 8))
    with pytest.raises(UsageError, match="rank 0 waits for allreduce of 4096"):
        timeline_s(circle, [1.0, 1.0])
    with pytest.raises(UsageError):
        check_timeline(step([now(0)], of(PAIR)), 2)
    with pytest.raises(UsageError):
        check_timeline(step([now(0), now(0)], Exchange("allreduce", PAIR, 4096, "x", times=2)), 2)
    check_timeline(step([now(0), []], of(PAIR)), 2)  # another process has the timeline of rank 1


def plan(made, ranks=2):
    backend = SimulatedBackend()
    backend.ranks = ranks
    request = SimpleNamespace(sweep=Sweep((), None, (DTYPES["float32"],)))
    return plan_of(made, request, backend)


def world(rank, *others):
    return SimpleNamespace(rank=rank, allgather=lambda own, what: [own, *others])


def test_a_plan_has_the_buffers_that_any_rank_needs():
    each = [*now(0), *now(1), *now(2), Compute(0.5)]
    made = plan(step([each, []], of(PAIR, 64 << 20), of(PAIR, 64 << 20), of(PAIR, 64 << 20)))
    before = made.parts[0].slots
    found = agree(made, world(0, {"wrong": None, "in_flight": {"0": 3}}))
    assert (before, found.parts[0].slots) == (1, 3)
    assert path_s(found, {0: 1.0}) == 3.5 and path_s(found, {0: None}) is None
    made = plan(step([now(0), []], of(PAIR)))
    with pytest.raises(UsageError, match="rank 1"):
        agree(made, world(1))
    with pytest.raises(UsageError, match="of another"):
        agree(made, world(0, {"wrong": "of another", "in_flight": {}}))
    made = plan(Step((of(PAIR),), 4))
    assert agree(made, SimpleNamespace()) is made


class Posting:
    """A binding that writes down its calls."""

    rank = root = 0
    n, count = 2, 8
    send = recv = b"12345678"
    type = redop = comm = status = scratch = None
    case = SimpleNamespace(window=1)

    def __getattr__(self, name):
        if name in ("together",):
            return lambda: iter(())
        return lambda *words, **named: PythonCall(name, lambda: None)

    def start(self, name, *words, **named):
        return None if name == "missing" else PythonCall(f"start {name}", lambda: None)

    def begin(self):
        return None


def names(found):
    return found and tuple([call.name for call in part] for part in found)


@pytest.mark.parametrize(("operation", "api", "expected"), [
    ("sendrecv", "", (["post_receive", "post_send"], ["finish"])), ("p2p_message", "", (["post_send"], ["finish"])),
    ("barrier", "torch", (["start barrier"], ["finish"])),
    ("p2p_latency", "", None),  # it waits between two messages
    ("p2p_bandwidth", "", None),  # it waits for a confirmation
])  # fmt: skip
def test_an_operation_can_be_started_if_it_waits_only_at_its_end(operation, api, expected):
    steps = every_operation()[operation].steps_of(api, messages=True)
    assert steps and names(divided(steps, Posting())) == expected


def test_several_calls_and_missing_functions_cannot_be_started_and_a_message_is_not_for_users():
    assert divided(lambda x: [x.call("a"), x.call("b")], Posting()) is None
    assert divided(lambda x: [x.post_send(0, b"", 1), x.waitall(), x.post_send(0, b"", 1), x.waitall()], Posting()) is None
    assert divided(lambda x: [x.call("missing")], Posting()) is None
    assert divided(lambda x: [x.call("a")], object()) is None
    assert divided(lambda x: [], Posting()) == ((), ())
    assert "p2p_message" in every_operation() and "p2p_message" not in operations()
    assert "p2p_message" not in {one.name for found in commands().values() for one in found}


def times(*calls, n=30):
    return Loop(Timed(Program((calls,)), None, MonotonicClock(), ctypes.c_int64())).run(n)[0]


@pytest.mark.parametrize("native", [False, NATIVE])
def test_computing_takes_its_time(native, monkeypatch):
    """Of samples on a core that other processes may use, a tenth is undisturbed; none is shorter."""
    if not native:
        monkeypatch.setattr("collbench.backends.nonblocking.library", lambda: None)
    call = busy(1e-3)
    assert isinstance(call, NativeCall) == native
    samples = times(call)
    assert samples.min() >= 1e-3
    assert np.quantile(samples, 0.1) == pytest.approx(1e-3, rel=0.02)


@pytest.mark.skipif(library() is None, reason="the native loop is not built")
def test_work_of_other_threads_goes_on_while_a_rank_computes_in_c():
    """Two waits for threads of 10 ms each and 10 ms of computing take 10 ms together, although the threads run Python.

    Without overlap they take 20 ms or more. Other processes may delay the threads.
    """
    libc, size, n = ctypes.CDLL(None), 32, 10

    def semaphore():
        found = ctypes.create_string_buffer(size)
        assert libc.sem_init(found, 0, 0) == 0
        return found

    def work(started, done):
        for _ in range(n):
            libc.sem_wait(started)
            time.sleep(0.01)
            libc.sem_post(done)

    def call(name, which):
        return NativeCall(name, ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0, (ctypes.addressof(which),))

    pairs = [(semaphore(), semaphore()) for _ in range(2)]
    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in pairs]
    for thread in threads:
        thread.start()
    calls = [*(call("sem_post", started) for started, _ in pairs), busy(0.01), *(call("sem_wait", done) for _, done in pairs)]
    samples = times(*calls, n=n)
    for thread in threads:
        thread.join(5)
    assert 0.01 <= samples.min() < 0.018
