"""A backend made slower on purpose: by how much, which cases and ranks; its iterations take so many percent longer, all else stays."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.backends.backend import Group, Settings
from collbench.backends.clock import DeviceClock, MonotonicClock
from collbench.backends.host import HostBackend
from collbench.backends.mpi import MpiBackend
from collbench.backends.registry import backend_class
from collbench.backends.simulated import SimulatedBackend
from collbench.backends.slowed import NativeHold, PythonHold, SlowedBackend, slowed
from collbench.backends.slowing import DRAWS, Percent, Slowing, parse_slowing
from collbench.backends.socket import native
from collbench.backends.torch_distributed import GlooBackend
from collbench.errors import UsageError
from collbench.measuring.loop import Loop, Timed
from collbench.native.library import address
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.program import NativeCall, Program, PythonCall
from collbench.operations.unsupported import ClockUnsupported
from tests.helpers import make_case

KIB, MIB = 2**10, 2**20


def only(text):
    (found,) = parse_slowing([text]).slowdowns
    return found


def of_size(size_bytes, **changes):
    return make_case(count=size_bytes // 4, **changes)


def test_a_spec_means_the_cases_and_ranks_that_it_names_or_every_one():
    found = only("by=10%")
    assert found.by == Percent("exactly", 10)
    assert found.fits(make_case()) and found.fits(of_size(MIB, operation="broadcast", backend="mpi"))
    assert found.of(0) and found.of(10**6)
    found = only("by=10% operations=allreduce,p2p backends=mpi sizes=8,1K-64K,1M-")
    assert found.operations == {"allreduce", "p2p_latency", "p2p_bandwidth", "p2p_bidirectional"}
    of = {size: found.fits(of_size(size, backend="mpi")) for size in (8, 16, KIB, 64 * KIB, 128 * KIB, MIB, 1024 * MIB)}
    assert of == {8: True, 16: False, KIB: True, 64 * KIB: True, 128 * KIB: False, MIB: True, 1024 * MIB: True}
    assert not found.fits(of_size(8, backend="gloo")) and not found.fits(of_size(8, backend="mpi", operation="broadcast"))
    assert [rank for rank in range(9) if only("by=10% ranks=0,4-6").of(rank)] == [0, 4, 5, 6]


@pytest.mark.parametrize(("text", "by"), [
    ("by=2%", Percent("exactly", 2)), ("by=0.5%", Percent("exactly", 0.5)), ("by=5-15%", Percent("between", 5, 15)),
    ("by=5%-15%", Percent("between", 5, 15)), ("by=10±3%", Percent("around", 10, 3)), ("by=10%±3%", Percent("around", 10, 3)),
    ("by=10+-3%", Percent("around", 10, 3)),
])  # fmt: skip
def test_by_how_much(text, by):
    assert only(text).by == by


def test_of_several_that_fit_a_case_the_last_counts():
    found = parse_slowing(["by=2%; by=5%  sizes=1M", "by=10% sizes=1M ranks=0"])
    assert found.texts == ["by=2%", "by=5% sizes=1M", "by=10% sizes=1M ranks=0"]
    assert (found.of(of_size(KIB)), found.of(of_size(MIB))) == (found.slowdowns[0], found.slowdowns[2])
    assert Slowing().of(make_case()) is None and not Slowing() and not parse_slowing([])


def test_drawn_parts_are_those_of_the_seed_and_never_negative():
    between, around = Percent("between", 5, 15).parts([1]), Percent("around", 1, 3).parts([1])
    assert len(between) == len(around) == DRAWS
    assert np.array_equal(between, Percent("between", 5, 15).parts([1]))
    assert not np.array_equal(between, Percent("between", 5, 15).parts([2]))
    assert (between.min() >= 0.05, between.max() <= 0.15, around.min()) == (True, True, 0)
    assert np.median(between) == pytest.approx(0.10, abs=0.005)
    assert Percent("exactly", 10).parts([1]).tolist() == [0.1]


@pytest.mark.parametrize(("text", "said"), [
    ("", "--slowed is empty: write it like 'by=10% operations=allreduce sizes=1M-16M ranks=0'"),
    ("sizes=1M", "--slowed 'sizes=1M' has no by=: write it like"),
    ("10%", "--slowed '10%': '10%' is none of by=…, operations=…, backends=…, sizes=…, ranks=…: write it like"),
    ("by=10% size=8", "'size=8' is none of by=…"),
    ("by=10% by=5%", "--slowed 'by=10% by=5%': by is given twice: separate two specs by ';'"),
    ("by=10", "--slowed 'by=10': by=10 is not a valid slowdown: use by=10%, by=5-15% or by=10±3% (up to 1000 %)"),
    ("by=0%", "by=0% is not a valid slowdown"), ("by=1001%", "by=1001% is not a valid slowdown"),
    ("by=1.2.3%", "by=1.2.3% is not a valid slowdown"), ("by=15-5%", "by=15-5% is not a valid slowdown"),
    ("by=10% operations=allreduc", "operation 'allreduc' is unknown: choose from "),
    ("by=10% backends=ncll", "backend 'ncll' is unknown: choose from mpi, gloo"),
    ("by=10% sizes=1X", "size '1X' is not a valid number of bytes"),
    ("by=10% sizes=2M-1M", "the sizes 2M-1M run downwards: write the smaller one first"),
    ("by=10% ranks=-1", "'-1' is not a valid rank: use ranks=0, ranks=0,3 or ranks=4-7"),
    ("by=10% ranks=3-1", "'3-1' is not a valid rank"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(text, said):
    with pytest.raises(UsageError) as error:
        parse_slowing([text])
    assert said in str(error.value) and "\n" not in str(error.value)


WORDS = st.sampled_from([f"{key}=" for key in ("by", "operations", "backends", "sizes", "ranks")])


@given(st.lists(WORDS | st.sampled_from(list("0159%-±+,;. =KMT")) | st.text(max_size=3)))
@settings(max_examples=60)
def test_any_text_is_read_or_refused(parts):
    try:
        found = parse_slowing(["".join(parts)])
    except UsageError as error:
        assert "--slowed" in str(error)
    else:
        assert all(0 < slowdown.by.first <= 1000 for slowdown in found.slowdowns)


def test_a_spec_that_means_nothing_here_is_refused():
    cases = [of_size(8), of_size(MIB)]
    parse_slowing(["by=10% sizes=1M ranks=3"]).check(cases, 4)
    with pytest.raises(UsageError, match="--slowed 'by=10% sizes=16'"):
        parse_slowing(["by=10% sizes=16"]).check(cases, 4)
    with pytest.raises(UsageError, match="'by=5%'"):
        parse_slowing(["by=5%; by=10%"]).check(cases, 4)
    with pytest.raises(UsageError, match="rank 4"):
        parse_slowing(["by=10% ranks=2-9"]).check(cases, 4)


def samples(world, kind, case, n=60, synchronized=True):
    """Seconds [4 × n] of virtual ranks."""
    backend = kind()
    backend.open(world, Settings(virtual_ranks=4, seed=3))
    group = backend.group(range(4))
    program = backend.bind(ALLREDUCE, case, group, backend.allocate(ALLREDUCE, case, group, 2))
    return Loop(Timed(program, backend.sync(group) if synchronized else None, backend.clock(), ctypes.c_int64())).run(n)


@pytest.mark.parametrize("percent", [2, 5, 10, 400])
def test_every_iteration_takes_exactly_so_many_percent_longer(world, percent):
    plain = samples(world, SimulatedBackend, make_case())
    found = samples(world, slowed(SimulatedBackend, parse_slowing([f"by={percent}%"])), make_case())
    assert found == pytest.approx(plain * (1 + percent / 100), rel=1e-9)


@pytest.mark.parametrize("percent", [100, 300, 900])
def test_large_delays_of_ranks_that_wait_for_each_other_do_not_grow(world, percent):
    found = samples(world, slowed(SimulatedBackend, parse_slowing([f"by={percent}%"])), make_case(), n=300, synchronized=False)
    plain = samples(world, SimulatedBackend, make_case(), n=300, synchronized=False)
    assert np.median(found) == pytest.approx(np.median(plain) * (1 + percent / 100), rel=0.1)
    assert found.max() < 2 * np.median(found)


def test_only_the_named_ranks_and_cases_take_longer(world):
    plain = samples(world, SimulatedBackend, make_case())
    found = samples(world, slowed(SimulatedBackend, parse_slowing(["by=10% ranks=1,3"])), make_case())
    assert found / plain == pytest.approx(np.array([[1], [1.1], [1], [1.1]]) * np.ones(60), rel=1e-9)
    kind = slowed(SimulatedBackend, parse_slowing(["by=10% sizes=1M; by=50% operations=broadcast; by=30% backends=mpi"]))
    assert np.array_equal(samples(world, kind, make_case()), plain)
    large = make_case(count=MIB // 4)
    assert samples(world, kind, large, n=5) == pytest.approx(1.1 * samples(world, SimulatedBackend, large, n=5), rel=1e-9)


def test_a_distribution_is_drawn_by_the_seed_one_for_each_iteration_at_all_ranks(world):
    kind = slowed(SimulatedBackend, parse_slowing(["by=5-15%"]))
    first, plain = samples(world, kind, make_case(), n=500), samples(world, SimulatedBackend, make_case(), n=500)
    ratios = first / plain
    assert np.array_equal(first, samples(world, kind, make_case(), n=500))
    assert ratios == pytest.approx(np.repeat(ratios[:1], 4, axis=0), rel=1e-9)
    assert (ratios.min() >= 1.05, ratios.max() <= 1.15) == (True, True)
    assert np.median(ratios) == pytest.approx(1.10, abs=0.01)


class Clock:
    """Nanoseconds that go on by `step` with each look."""

    def __init__(self, step):
        self.now, self.step = 0, step

    def __call__(self):
        self.now += self.step
        return self.now

    def sleep(self, seconds):
        """As late as a timer's slack lets it be."""
        self.now += round(seconds * 1e9) + 50_000


@pytest.mark.parametrize("took_ns", [5_000, 100_000, 10**7, 10**12])
def test_python_calls_hold_until_the_part_has_passed(took_ns):
    clock = Clock(step=20)
    hold = PythonHold(np.array([0.10, 0.0]), clock, clock.sleep)
    ends = []
    for _ in range(2):
        hold.begin.function()
        began = clock.now
        clock.now += took_ns
        hold.end.function()
        ends.append(clock.now - began)
    assert ends[0] == pytest.approx(1.1 * took_ns, abs=60)  # three looks at this clock
    assert ends[1] == pytest.approx(took_ns, abs=60)


@pytest.mark.parametrize("part", [0.3, 1.0, 3.0, 10.0])
def test_delays_of_both_ranks_of_a_ping_pong_do_not_grow(part):
    """Each rank waits for the message of the other one, which takes 1 ms each way, and with it for the other rank's delay."""
    clock, way_ns = Clock(step=0), 1_000_000
    pinging, ponging = (PythonHold(np.array([part]), clock, clock.sleep) for _ in range(2))
    ping_ns = pong_ns = 0

    def iteration(hold, began_ns, ended_ns):
        """Return when the rank begins its next iteration."""
        clock.now = began_ns
        hold.begin.function()
        clock.now, clock.step = ended_ns, 10_000
        hold.end.function()
        clock.step = 0
        return clock.now

    for _ in range(50):
        arrived_ns = max(pong_ns, ping_ns + way_ns)
        ping_ns, pong_ns = iteration(pinging, ping_ns, arrived_ns + way_ns), iteration(ponging, pong_ns, arrived_ns)
    assert ping_ns / 50 == pytest.approx(2 * way_ns * (1 + part), rel=0.5)


def test_native_calls_hold_in_the_c_loop():
    """A call held for four times its own time takes five times as long.

    The quickest of many in turns: what others do to this machine meanwhile does not show there.
    The share is large, because a processor may change its speed by a quarter between two runs.
    """
    library = native()
    if library is None:
        pytest.skip("the native code was not built")
    data = np.zeros(2**16, np.uint8)
    work = NativeCall("sum", address("collbench_sum_uint8"), (data.ctypes.data, data.ctypes.data, len(data)))
    hold = NativeHold(library, np.array([4.0]))
    programs = (Program(((work,),)), Program(((hold.begin, work, hold.end),), keep=hold))
    loops = [Loop(Timed(program, None, MonotonicClock(), ctypes.c_int64())) for program in programs]
    assert all(loop.native for loop in loops)
    runs = [[loop.run(20).min() for loop in loops] for _ in range(100)]
    plain, found = np.min(runs, axis=0)
    assert 3.5 < found / plain < 7


def test_a_wrong_call_of_the_library_is_named_as_ever():
    fail = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 12)(lambda *words: 15)
    call = NativeCall("MPI_Allreduce", ctypes.cast(fail, ctypes.c_void_p).value, ())
    kind = slowed(host(lambda: Program(((call,),), keep=fail)), parse_slowing(["by=10%"]))
    loop = Loop(Timed(bound(kind), None, MonotonicClock(), ctypes.c_int64()))
    with pytest.raises(Exception, match="MPI_Allreduce failed in iteration 0: error code 15"):
        loop.run(1)


def host(program, clock=MonotonicClock):
    class Host(HostBackend):
        name = api = "host"
        communicator = binding = sync = None

        def open(self, world, settings):
            self.rank, self.ranks = world.rank, world.size

        def supports(self, operation, case):
            return "the library has none" if case.dtype.name == "int8" else None

        def bind(self, operation, case, group, buffers):
            return program()

        def clock(self):
            return clock()

    Host.__abstractmethods__ = frozenset()
    return Host


def opened(kind, rank=0):
    backend = kind()
    backend.open(SimpleNamespace(rank=rank, size=2), Settings())
    return backend


def bound(kind, rank=0, case=None):
    return opened(kind, rank).bind(ALLREDUCE, case or make_case(), Group((0, 1), (rank,)), None)


def test_the_program_of_a_rank_that_is_not_slowed_is_the_backends_own():
    own = Program(((PythonCall("all_reduce", int),),))
    kind = slowed(host(lambda: own), parse_slowing(["by=10% ranks=1 sizes=400"]))
    assert bound(kind) is own
    assert bound(kind, rank=1, case=make_case(count=1)) is own
    assert list(bound(kind, rank=1).calls()) == ["slowed begin", "all_reduce", "slowed end"]


def test_native_programs_stay_native_and_what_is_verified_is_held_too():
    call = NativeCall("nothing", address("collbench_slowed_cost"), ())
    own = Program(((call,), (call, call)), once=Program(((call,),)))
    found = bound(slowed(host(lambda: own), parse_slowing(["by=10%"])))
    assert (found.native, [len(slot) for slot in found.slots]) == (True, [3, 4])
    assert list(found.once.calls()) == ["slowed begin", "nothing", "slowed end"]


def test_all_else_is_the_backends_own():
    for kind in (MpiBackend, GlooBackend, SimulatedBackend):
        found = slowed(kind, parse_slowing(["by=10%"]))
        assert issubclass(found, kind)
        assert (found.name, found.api, found.flags, found.devices) == (kind.name, kind.api, kind.flags, kind.devices)
        assert found.probe() == kind.probe()


def test_what_only_enqueues_work_cannot_be_held():
    device = DeviceClock((), (), (), 0, 0, 0)
    spec = parse_slowing(["by=10% sizes=400"])
    events = slowed(host(Program, lambda: device), spec)
    queued = slowed(host(Program, lambda: SimpleNamespace(native=False, queued=True)), spec)
    own = slowed(host(Program, lambda: SimpleNamespace(native=False, queued=False)), spec)
    for kind in (events, queued):
        reason = opened(kind).supports(ALLREDUCE, make_case())
        assert reason == ClockUnsupported("host", enqueues=True)
        assert opened(kind).supports(ALLREDUCE, make_case(count=1)) is None
    assert opened(own).supports(ALLREDUCE, make_case()) == ClockUnsupported("host", enqueues=False)
    assert opened(events).supports(ALLREDUCE, make_case(dtype="int8")) == "the library has none"


def test_it_is_listed_but_carries_nothing_itself(world):
    assert backend_class("slowed") is SlowedBackend
    assert SlowedBackend.probe().about == "makes other backends slower on purpose, to test the gate (see --slowed)"
    with pytest.raises(UsageError, match="--backend mpi --slowed by=10%"):
        SlowedBackend().open(world, Settings())
