"""Verification under the watchdog: each filling, call and comparison is a phase of its own, so that many of them are not a hang."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from collbench.measuring.verification import checks_of_buffers, verify
from collbench.operations.case import Case
from collbench.operations.data import slots_checked
from collbench.operations.dtypes import DTYPES

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
