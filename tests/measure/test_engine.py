"""The engine: the order of its events, what listeners see, and what a row gets from the launch, with one rank and a made-up work."""

import dataclasses
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.backends.backend import Group
from collbench.backends.slowing import parse_slowing
from collbench.control.world import World
from collbench.measuring.engine import Engine, Measured, Work
from collbench.measuring.listeners import Listener
from collbench.measuring.prepared_case import BackendContext, PreparedCase
from collbench.measuring.request import Budget
from collbench.measuring.verification import check_fields, mismatches_in, wrong_evidence
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.data import Mismatch
from collbench.operations.program import Program
from collbench.reason import Text
from tests.helpers import make_case

SLOWED = "by=10% operations=allreduce"
BUDGET = Budget(5.0, 3, 2)
WRONG = Mismatch(0, 2, 7, "1.0", "2.0")


@dataclass
class Loop:
    """A loop whose samples take a millisecond."""

    events: list[str]
    native: bool = True
    could_be_native: bool = True
    iterations: int = 1
    enqueue_s: None = None
    starts_ns: Any = None

    def run(self, count, batch=1, slot=0):
        self.events.append("verify" if self.native is None else "sample")
        self.starts_ns = np.zeros((1, count))
        return np.full((1, count), 1e-3 * batch)


class Buffers:
    """A buffer with one wrong element in its first slot."""

    page_bytes = 4096

    def fill(self, slot, for_check):
        assert for_check is True

    def check(self, slot):
        return [None, WRONG if slot == 0 else None]


@dataclass
class Recorder(Listener):
    """A listener that records its calls."""

    events: list[str]

    def begin(self, ready, world):
        assert isinstance(ready, PreparedCase) and world.rank == 0
        self.events.append("begin")

    def end(self, ready):
        assert isinstance(ready, PreparedCase)
        self.events.append("end")
        return {"number": 7}

    @contextmanager
    def verifying(self, ready):
        assert isinstance(ready, PreparedCase)
        self.events.append("verifying")
        yield
        self.events.append("verified")

    def evidence(self, world, reports, moved):
        return {"numbers": [report["number"] for report in reports], "rank": world.rank, "moved": moved}


@dataclass
class MadeUp(Work):
    """A work with one rank, whose second call is verified, too."""

    events: list[str] = field(default_factory=list)
    refusal: Text | None = None

    def prepare(self, world):
        assert world.rank == 0
        self.events.append("prepare")
        program = SimpleNamespace(free=lambda: self.events.append("free"), calls=list)
        loop, checking = Loop(self.events), Loop(self.events, native=None)
        groups = {"groups": ((0,),), "own_groups": (Group((0,), (0,)),), "buffers": (Buffers(),)}
        case = make_case(backend="mpi", mode="isolated")
        return self.refusal or PreparedCase(ALLREDUCE, case, loop=loop, checking=checking, program=program, **groups)

    def gather(self, ready, measured, world):
        self.events.append("gather")
        return (measured.samples.shape, ready.case.operation, world.rank)

    def listeners(self):
        return [Recorder(self.events)]


class Unmonitored(MadeUp):
    """One that nothing observes but its own listeners."""

    monitored = False


def backend(**values):
    released = SimpleNamespace(name="mpi", ranks=1, virtual=False, flags=(), versions=lambda: {"mpi": "4"}, members=None)
    return SimpleNamespace(**{**vars(released), **values})


def work(kind=MadeUp, **values):
    return kind(BackendContext(backend(), {(0,): Group((0,), (0,))}, None), **values)


def done(result):
    assert isinstance(result, Measured) and result.measured is not None
    assert result.measured.samples.tolist() == [[1e-3] * 3] and result.measured.stopped == "iterations"
    assert result.gathered == ((1, 3), "allreduce", 0)
    return result


@pytest.mark.parametrize("kind", [MadeUp, Unmonitored])
@pytest.mark.parametrize("monitors", [True, False])
def test_the_events_of_a_measurement_come_in_their_order(world, kind, monitors):
    made_up = work(kind)
    result = done(Engine(world, check=2, monitors=monitors).measure(made_up, BUDGET))
    sampled = ["begin", "sample", "sample", "sample", "end"]  # the first call, another one to warm up, and the samples
    assert made_up.events == ["prepare", *sampled, "gather", "verifying", "verify", "verify", "verified", "free"]
    is_watched = monitors and kind is MadeUp
    assert (result.watched is not None) == is_watched
    assert result.evidence == {"numbers": [7] if is_watched else [], "rank": 0, "moved": None}
    assert [phase.name for phase in result.phases] == ["set-up", *(["warm-up", "samples"] if is_watched else []), "verification"]
    assert (result.checked, [error.wrong for error in result.wrong or ()]) == (2, [2, 2])


def test_without_verification_or_where_it_cannot_be_nothing_is_wrong_or_checked_and_there_is_no_phase_of_it(world, monkeypatch):
    made_up = work()
    result = done(Engine(world, check=0).measure(made_up, BUDGET))
    assert (result.checked, result.wrong, "verifying" in made_up.events) == (0, [], False)
    assert [phase.name for phase in result.phases] == ["set-up"]
    monkeypatch.setattr(MadeUp, "verify", lambda *_: (0, []))
    result = done(Engine(world, check=1).measure(work(), BUDGET))
    assert (result.checked, result.wrong, [phase.name for phase in result.phases]) == (0, [], ["set-up"])


def test_the_watchdog_waits_as_long_as_samples_may_take(world, monkeypatch):
    extended = []
    monkeypatch.setattr(World, "extend_timeout", lambda self, seconds: extended.append(seconds) or nullcontext())
    done(Engine(world, check=0).measure(work(), BUDGET))
    assert extended == [BUDGET.max_time_s]


def test_the_reason_of_a_refusal_is_the_result(world):
    made_up = work(refusal=Text("the library lacks it"))
    assert Engine(world, check=1).measure(made_up, BUDGET) == Text("the library lacks it")
    assert made_up.events == ["prepare"]


def test_the_rule_of_a_work_is_that_of_its_case(world):
    made_up = work()
    ready = made_up.prepare(world)
    assert isinstance(ready, PreparedCase)
    rule = made_up.rule(replace(ready, case=replace(ready.case, mode="pipelined"), loop=Loop([], iterations=20)), BUDGET)
    assert (rule.budget, rule.size_bytes, rule.timed, rule.mode, rule.iterations) == (BUDGET, ready.case.size_bytes, [0], "pipelined", 20)


def test_samples_are_taken_between_readings_of_the_counters_and_of_the_state(world):
    events = []

    class Probe:
        def measure(self):
            events.append("probe")
            return 65e-9

    class Counters(Recorder):
        def end(self, ready):
            events.append("counters end")
            return {}

    engine = Engine(world, 0, True, Probe(), Counters(events))
    watched = {}
    for name, device, virtual in (("cpu", "cpu", False), ("gpu", "cuda", False), ("virtual", "cpu", True)):
        made_up = work()
        ready = made_up.prepare(world)
        assert isinstance(ready, PreparedCase)
        made_up.context = BackendContext(backend(virtual=virtual), made_up.context.members, None)
        engine.watch(made_up, replace(ready, case=replace(ready.case, device=device)), BUDGET)
        watched[name] = events[:]
        events.clear()
    assert watched == {"cpu": ["probe", "begin", "probe", "counters end"], "gpu": ["begin", "counters end"], "virtual": []}


@pytest.mark.parametrize(("oversubscribed", "of_backend", "virtual", "device", "crowded"), [
    (False, (), False, "cpu", False), (True, (), False, "cpu", True), (False, ("oversubscribed",), False, "cpu", True),
    (True, (), True, "cpu", False), (True, (), False, "cuda", False),
])  # fmt: skip
def test_ranks_or_threads_that_wait_for_cores_are_a_flag(oversubscribed, of_backend, virtual, device, crowded):
    engine = Engine(SimpleNamespace(oversubscribed=["a"] if oversubscribed else []), 1)
    on = backend(flags=of_backend, virtual=virtual)
    assert engine.crowded(on, device) is crowded
    assert engine.flags(on, [make_case(device=device)]) == ["oversubscribed"] * crowded


def test_a_row_has_what_the_launch_and_its_backend_report(world):
    made_up = work()
    ready = made_up.prepare(world)
    assert isinstance(ready, PreparedCase)
    engine = Engine(world, 1, True, conditions={"host": {}}, slowed=parse_slowing([SLOWED]), began_s=lambda: 4.5)
    watched = engine.watch(made_up, ready, BUDGET)
    assert watched is not None
    limits = ("ceiling", "hard limit")
    slow = replace(ready, loop=dataclasses.replace(ready.loop, native=False))
    of_row = engine.context_of_row(slow, backend(flags=("of backend",)), watched, limits, flags=("more",))
    assert (of_row.ceiling, of_row.hard_bound, of_row.withheld, of_row.began_s, of_row.hosts) == (*limits, False, 4.5, [[0]])
    assert of_row.flags == ("of backend", "slowed", "python_loop", "more")
    evidence = of_row.evidence or {}
    assert (evidence["libraries"], evidence["conditions"], evidence["slowed"]) == ({"mpi": "4"}, {"host": {}}, SLOWED)
    assert (evidence["loop"], evidence["page_bytes"], "wall_s" in evidence) == ("python", 4096, True)
    several = engine.context_of_row(ready, backend(), watched, limits, cases=[ready.case, make_case(operation="broadcast")])
    assert (several.evidence or {})["slowed"] == [SLOWED]
    crowded = engine.context_of_row(ready, backend(flags=("oversubscribed",)), watched, limits)
    other = engine.context_of_row(ready, backend(), replace(watched, moved=SimpleNamespace(other_path_fact="loopback", entry=dict)), limits)
    assert crowded.withheld and other.withheld


def test_wrong_data_has_the_ranks_of_the_job_and_four_sentences():
    ready = SimpleNamespace(own_groups=[Group((4, 6), (0, 1))], buffers=[Buffers()])
    (found,) = mismatches_in(ready, 0)
    assert found == replace(WRONG, rank=4)
    errors = [replace(WRONG, rank=rank) for rank in range(20)]
    assert check_fields(3, errors) == {"checked": 3, "wrong": 40, "wrong_detail": "; ".join(error.sentence() for error in errors[:4])}
    assert check_fields(0, []) == {"checked": 0, "wrong": None, "wrong_detail": None}
    assert check_fields(1, []) == {"checked": 1, "wrong": 0, "wrong_detail": None}
    entry = wrong_evidence(errors)["wrong_data"]
    assert (entry["found"], [error["rank"] for error in entry["first"]]) == (20, list(range(16))) and wrong_evidence([]) == {}


def test_a_program_is_freed_with_the_groups_of_its_case_alone():
    released = []
    made_up = work()
    made_up.context = BackendContext(backend(release=released.append), {(0,): None}, None)
    pair = replace(ALLREDUCE, pair=True)
    group = Group((0,), (0,))
    ready = PreparedCase(pair, make_case(), ((0,),), (group,), (), Loop([]), Loop([]), program=Program(((),)))
    made_up.release(ready)
    assert released == [group]
    made_up.release(replace(ready, operation=ALLREDUCE))
    assert released == [group]
