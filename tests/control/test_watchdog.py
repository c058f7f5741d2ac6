"""The watchdog and the end of a launch: a call that does not return ends with a sentence; rank 0 prints its reason first."""

import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from collbench.control.diagnosis import RankStalled
from collbench.control.watchdog import EndProcess, Watchdog


class EndRecorder:
    """Instead of ending the process: remembers the sentence."""

    def __init__(self):
        self.sentence, self.at, self._event = None, None, threading.Event()

    def __call__(self, sentence):
        self.sentence, self.at = sentence, time.monotonic()
        self._event.set()

    def within(self, seconds):
        return self._event.wait(seconds)


@pytest.mark.parametrize(("phases", "done", "named", "iteration"), [
    (("allreduce 64 MiB on mpi: measuring",), 40, "allreduce 64 MiB on mpi: measuring", 41),
    (("opening gloo",), None, "opening gloo", -1),  # outside loops there is no iteration to name
    (("outer", "inner"), None, "outer", -1),  # after an inner phase the outer one is watched again
])  # fmt: skip
def test_a_phase_that_does_not_move_is_ended_and_reported_with_its_position(phases, done, named, iteration):
    ended = EndRecorder()
    dog = Watchdog(0.2, "rank 1 (node2, pid 7)", ended)
    began = time.monotonic()
    with dog.phase(phases[0]):
        for inner in phases[1:]:
            with dog.phase(inner):
                pass
        if done is not None:
            dog.progress.value = done  # the last one that is complete
        assert ended.within(10)
    dog.close()
    assert ended.at - began >= 0.2
    assert ended.sentence == RankStalled(named, "rank 1 (node2, pid 7)", 0.2, iteration).render()


@pytest.mark.system
def test_it_is_quiet_while_progress_moves():
    """For longer than the deadline, of which a pause of this process itself is not to fill the whole."""
    ended = EndRecorder()
    dog = Watchdog(2.0, "rank 0", ended)
    end = time.monotonic() + 3
    with dog.phase("measuring"):
        while time.monotonic() < end:
            dog.progress.value += 1
            time.sleep(0.02)
    dog.close()
    assert ended.sentence is None


def test_it_is_quiet_outside_phases_and_while_something_else_keeps_the_deadline():
    ended = EndRecorder()
    dog = Watchdog(0.1, "rank 0", ended)
    assert not ended.within(0.2)
    with dog.phase("measuring"), dog.elsewhere():
        assert not ended.within(0.4)
    assert not ended.within(0.2)
    dog.close()


def test_the_witness_hears_it_before_the_end():
    heard, ended = [], EndRecorder()
    dog = Watchdog(0.1, "rank 0", ended)
    dog.witness = lambda reason: heard.append((reason.render(), ended.sentence))
    with dog.phase("measuring"):
        assert ended.within(10)
    dog.close()
    assert heard == [(ended.sentence, None)]


def test_a_process_blocked_in_a_library_ends_with_4_and_one_line():
    code = """
import ctypes
from collbench.control.watchdog import Watchdog
with Watchdog(0.3, "rank 3 (here, pid 1)").phase("broadcast 8 B on mpi: measuring"):
    ctypes.PyDLL(None).pause()  # holds Python's lock, as a careless library does
"""
    blocked = subprocess.run([sys.executable, "-c", code.replace("PyDLL", "CDLL")], capture_output=True, text=True, timeout=30, check=False)
    assert blocked.returncode == 4
    assert blocked.stderr.startswith("collbench: hang: broadcast 8 B on mpi: measuring: rank 3 (here, pid 1) ")
    assert blocked.stderr.count("\n") == 1


class Ending:
    """Records the actions of an ending, in order. Of rank 0 it is for all ranks, and watches their processes."""

    def __init__(self, of_rank_0):
        self.done = []
        self.ending = EndProcess(lambda *_: self.done.append("end"), lambda *said: self.done.append("{} {}".format(*said)), of_rank_0)
        self.node = SimpleNamespace(descriptors=[1] if of_rank_0 else [], kill=lambda *_: self.done.append("kill"))

    def at(self, *seconds):
        """Return the actions within so many seconds after its begin."""
        began = time.monotonic()
        self.ending.begin("interrupted by SIGTERM", 143, self.node)
        for each in seconds:
            self.ending.tick(began + each)
        return self.done


@pytest.mark.parametrize(("of_rank_0", "reported"), [(True, ["interrupted by SIGTERM 143"]), (False, [])])
def test_what_rank_0_has_not_reported_by_then_is_reported_before_the_others_end_and_then_all_ranks_end(of_rank_0, reported):
    assert Ending(of_rank_0).at(0.5) == []
    assert Ending(of_rank_0).at(0.5, 1.1, 1.4) == reported  # and the others stay for 1.5 s
    assert Ending(of_rank_0).at(1.1, 2.1) == [*reported, "kill", "end"]


def test_it_asks_to_be_called_again_for_its_word_and_for_its_end():
    actual, now = Ending(of_rank_0=True), time.monotonic()
    actual.at()
    assert actual.ending.tick(now) == pytest.approx(now + 1.0, abs=0.5)
    assert actual.ending.tick(now + 1.6) == pytest.approx(now + 2.0, abs=0.5)
