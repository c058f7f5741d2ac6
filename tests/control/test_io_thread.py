"""Slow calls outside the I/O thread: the thread that polls stores their results, and a call that fails is not waited for."""

import threading

import pytest

from collbench.control.io_thread import BackgroundCalls
from tests.cli.command import until


def test_the_thread_that_polls_stores_the_results():
    calls, stored = BackgroundCalls(), []
    go_on = threading.Event()

    def slow():
        go_on.wait(10)
        return threading.current_thread()

    def store(thread):
        stored.append((thread, threading.current_thread()))

    calls.start(slow, store)
    assert calls.poll() and not stored
    go_on.set()
    until(lambda: not calls.poll(), "the result")
    ((reader, polling),) = stored
    assert reader is not polling and polling is threading.current_thread()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_call_that_fails_is_not_waited_for():
    calls, stored = BackgroundCalls(), []
    calls.start(lambda: 1 / 0, stored.append)
    until(lambda: not calls.poll(), "the end of the call")
    assert stored == []
