"""One case from its groups to its verification: refusals, barriers that ranks leave early, wrong data, phases of verification."""

import threading
import time
from contextlib import contextmanager, nullcontext
from itertools import count
from types import SimpleNamespace

import pytest

from collbench.backends.backend import Group
from collbench.errors import PeerFailed, WaitExpired
from collbench.measuring import verification
from collbench.measuring.open_backends import open_everywhere
from collbench.measuring.prepared_case import BackendContext, prepare
from collbench.measuring.verification import LeftEarly, checks_of_buffers, left_early, verify, wrong_data
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.case import Case
from collbench.operations.data import slots_checked
from collbench.operations.dtypes import DTYPES
from collbench.operations.unsupported import CaseFailed
from collbench.reason import as_json
from tests.backends.pairs import at_once
from tests.helpers import make_case

EVERYONE = (0, 1)


class OtherRank:
    """Rank 0 of a world in which rank 1 fails in the step `when`."""

    rank = 0

    def __init__(self, when, failure=None):
        self.when, self.failure, self.watchdog = when, failure, SimpleNamespace(phase=lambda name: nullcontext())

    def first_error(self, mine, what):
        return mine or (as_json(self.failure) if what.endswith(self.when) else None)


def stage(calls):
    def bind(*_):
        calls.append("bind")
        raise AttributeError("the library has no ncclAllReduce")

    buffers = SimpleNamespace(fill=lambda slot, for_check: calls.append("fill"))
    backend = SimpleNamespace(api="mpi", passes_messages=False, ranks=2, allocate=lambda *_: buffers, bind=bind, clock=None)
    return BackendContext(backend, {EVERYONE: Group(EVERYONE, (0,))}, None)


def test_calls_on_gpus_are_bound_only_when_every_rank_has_memory():
    calls = []
    other = CaseFailed("allocation", 1, "no memory is left")
    assert prepare(ALLREDUCE, make_case(device="cuda"), stage(calls), OtherRank("allocating", other)) == other
    assert calls == ["fill"]


def test_what_the_library_lacks_is_the_reason_at_every_rank():
    calls = []
    own = CaseFailed("binding", 0, "the library has no ncclAllReduce")
    assert prepare(ALLREDUCE, make_case(), stage(calls), OtherRank("nothing")) == own
    assert prepare(ALLREDUCE, make_case(), stage(calls), OtherRank("binding its calls", CaseFailed("binding", 1, "x"))) == own
    assert calls == ["fill", "bind"] * 2


@pytest.mark.parametrize("error", [PeerFailed("rank 1 is stopped"), WaitExpired("rank 0 did not answer")])
def test_the_end_of_the_launch_is_no_refusal_of_the_library(error):
    def ends(*_):
        raise error

    world, stages = OtherRank("nothing"), stage([])
    stages.backend.bind = ends
    with pytest.raises(type(error)):
        prepare(ALLREDUCE, make_case(), stages, world)
    with pytest.raises(type(error)):
        open_everywhere(SimpleNamespace(name="gloo", uses_nccl=False, open=ends), world, None)


PATIENT_S = 0.1  # the ranks are threads of a machine that is busy with other tests


class Ranks:
    """Ranks as threads. `enter(rank)` is what they take for a barrier; `groups` of them, each driven by the process of its number.

    held_up_s   what rank 1 loses on its way from the meeting to the barrier
    """

    def __init__(self, enter, groups=((0, 1, 2),), processes=None, held_up_s=0):
        self.enter, self.groups, self.held_up_s = enter, groups, held_up_s
        self.processes = processes or [(rank,) for ranks in groups for rank in ranks]
        self.said, self.meet = [None] * len(self.processes), threading.Barrier(len(self.processes), timeout=20)

    def verify(self, calls=1):
        """What every process found, which must be the same."""
        ranks = range(len(self.processes))
        found = at_once(*(lambda number=number: left_early(self._ready(number), self._world(number), calls) for number in ranks))
        assert all(one == found[0] for one in found)
        return found[0]

    def _world(self, number):
        meetings = count(1)

        def agree(value, what):
            assert what == "barrier 400 B on simulated (float32): verifying"
            self.said[number] = value
            self.meet.wait()
            everyone = list(self.said)
            self.meet.wait()
            if next(meetings) % 5 == 4 and number == 1:  # the fourth of each attempt is the one that counts
                time.sleep(self.held_up_s)
            return everyone

        return SimpleNamespace(allgather=agree, rank=number, watchdog=SimpleNamespace(phase=lambda what: nullcontext()))

    def _ready(self, number):
        def members(ranks):
            driven = tuple(place for place, rank in enumerate(ranks) if rank in self.processes[number])
            return [Group(ranks, driven)] if driven else []

        mine = tuple(group for ranks in self.groups for group in members(ranks))
        case = make_case(operation="barrier", redop=None)
        enter = SimpleNamespace(run=lambda n, slot: self.enter(self.processes[number][0]))
        return SimpleNamespace(groups=self.groups, own_groups=mine, case=case, checking=enter)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(verification, "_DELAY_S", PATIENT_S)


def right(n):
    barrier = threading.Barrier(n, timeout=20)
    return lambda rank: barrier.wait()


def test_a_barrier_is_right_and_one_that_ranks_do_not_wait_in_is_reported_once_a_rank():
    assert Ranks(right(3)).verify() == (1, [])
    assert Ranks(right(1), processes=[(0, 1, 2)]).verify() == (0, []), "ranks of one process have no time of their own"
    assert Ranks(right(1), groups=((0,),)).verify() == (1, []), "one rank alone cannot leave early"
    barrier = threading.Barrier(2, timeout=20)
    checked, early = Ranks(lambda rank: None if rank == 1 else barrier.wait()).verify()
    assert (checked, [(one.rank, one.late) for one in early]) == (1, [(0, 1), (1, 0), (2, 1)])
    checked, early = Ranks(lambda rank: None).verify(calls=2)
    assert (checked, [(one.rank, one.wrong) for one in early]) == (2, [(0, 1), (1, 1), (2, 1)])
    assert all(0 <= one.after_s < one.delay_s for one in early)


def test_a_rank_that_was_held_up_on_its_way_raises_no_alarm():
    """It comes to the barrier just before the late one, and leaves as soon: had its clock begun there, it would have left early."""
    assert Ranks(right(2), ((0, 1),), held_up_s=0.8 * PATIENT_S).verify() == (1, [])


def test_a_rank_that_always_comes_too_late_leaves_it_open(monkeypatch):
    monkeypatch.setattr(verification, "_LONGER", 1)
    monkeypatch.setattr(verification, "_DELAY_S", 0.01)
    monkeypatch.setattr(verification, "_MEETINGS", 0)
    assert Ranks(right(2), ((0, 1),), held_up_s=0.05).verify() == (0, [])


def test_groups_at_the_same_time_each_have_a_late_rank():
    barrier = threading.Barrier(2, timeout=20)
    checked, early = Ranks(lambda rank: None if rank > 1 else barrier.wait(), groups=((0, 1), (2, 3))).verify()
    assert (checked, [(one.rank, one.late) for one in early]) == (1, [(2, 3), (3, 2)])


def test_four_of_six_ranks_are_late_in_turn_and_the_sentence_names_them(monkeypatch):
    monkeypatch.setattr(verification, "_DELAY_S", 3 * PATIENT_S)
    entered = []
    enter = right(6)
    assert Ranks(lambda rank: entered.append(rank) or enter(rank), (tuple(range(6)),)).verify() == (1, [])
    assert sorted(entered) == sorted([*range(6)] * 4)
    sentence = "rank 1 left after 210.0 µs, before rank 0 entered, which waited 10000 µs"
    assert LeftEarly(1, 0, 210e-6, 0.01).sentence() == sentence


NAMES = tuple("abcdef")


def test_the_notes_depend_on_their_number_and_of_many_the_first_are_reported():
    met = [((0, 1), 7, "first at 3"), ((2,), 1, None), ((0, 1, 2, 3, 4, 5), 2, None), ((3, 4), 0, None), ((4, 5), None, None)]
    assert wrong_data(NAMES, met, "group") == [
        "wrong data between a and b: 7 elements differ from what was sent (first at 3)",
        "wrong data inside c: 1 element differs from what was sent",
        "wrong data among a, b, c, d and 2 more: 2 elements differ from what was sent",
    ]
    assert wrong_data(NAMES, [((0, 1), 1, None)] * 4, "pair")[4:] == []
    assert wrong_data(NAMES, [((0, 1), 1, None)] * 6, "pair")[4:] == ["wrong data in 2 more pairs"]


CASE = Case("allreduce", "mpi", DTYPES["float32"], 1 << 20, buffers="rotating")


class Watched:
    """A world with one rank, whose watchdog records the work in each phase. Work outside of a phase has no deadline and fails."""

    def __init__(self):
        self.phases = []
        self.watchdog, self._open = self, False

    @contextmanager
    def phase(self, name):
        assert not self._open, "a phase within a phase ends the progress of the first one"
        self.phases.append([])
        self._open = True
        yield
        self._open = False

    def works(self, what):
        assert self._open, f"{what} without a deadline"
        self.phases[-1].append(what)

    def gather(self, found, what):
        assert not self._open
        return [found]


def prepared(world):
    def check(slot):
        world.works("compare")
        return [None]

    buffers = SimpleNamespace(fill=lambda slot, for_check: world.works("fill"), check=check)
    checking = SimpleNamespace(run=lambda count, slot: world.works("call"))
    return SimpleNamespace(case=CASE, buffers=[buffers], own_groups=[SimpleNamespace(ranks=(0,))], checking=checking)


@pytest.mark.parametrize("calls", [1, 3])
def test_each_slot_and_call_of_a_case_is_progress(calls):
    world = Watched()
    ready = prepared(world)
    assert verify(ready, world, checks_of_buffers(ready, calls)) == []
    slots = len(list(slots_checked(CASE)))
    assert slots > 1
    assert world.phases == [["fill"], ["call"], ["compare"]] * slots * calls
