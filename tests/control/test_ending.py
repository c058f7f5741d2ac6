"""The end of a launch: rank 0 prints its reason before any rank ends, even if its main thread is in a library call."""

import time
from types import SimpleNamespace

import pytest

from collbench.control.watchdog import EndProcess


class EndRecorder:
    """Records the actions of an ending, in order."""

    def __init__(self, for_all, watched):
        self.done = []
        self.ending = EndProcess(lambda *_: self.done.append("end"), lambda sentence, code: self.done.append(f"{sentence} {code}"), for_all)
        self.node = SimpleNamespace(descriptors=[1] if watched else [], kill=lambda *_: self.done.append("kill"))

    def at(self, *seconds):
        """Return the actions within so many seconds after its begin."""
        began = time.monotonic()
        self.ending.begin("interrupted by SIGTERM", 143, self.node)
        for each in seconds:
            self.ending.tick(began + each)
        return self.done


def test_what_rank_0_has_not_reported_by_then_is_reported_before_the_others_end():
    assert EndRecorder(for_all=True, watched=True).at(0.5) == []
    once = ["interrupted by SIGTERM 143"]  # and the others stay for 1.5 s
    assert EndRecorder(for_all=True, watched=True).at(0.5, 1.1, 1.4) == once
    assert EndRecorder(for_all=False, watched=False).at(0.5, 1.1, 1.4) == []


@pytest.mark.parametrize(("for_all", "watched", "first"), [(True, True, ["interrupted by SIGTERM 143"]), (False, False, [])])
def test_then_all_ranks_end(for_all, watched, first):
    assert EndRecorder(for_all, watched).at(1.1, 2.1) == [*first, "kill", "end"]


def test_it_asks_to_be_called_again_for_its_word_and_for_its_end():
    actual, now = EndRecorder(for_all=True, watched=True), time.monotonic()
    actual.at()
    assert actual.ending.tick(now) == pytest.approx(now + 1.0, abs=0.5)
    assert actual.ending.tick(now + 1.6) == pytest.approx(now + 2.0, abs=0.5)
