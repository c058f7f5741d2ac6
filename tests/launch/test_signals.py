"""The first signal ends what the main thread does, the next ones change nothing; another thread hears of it, come what may."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from collbench.errors import Interrupted
from collbench.launch import signals, supervise
from collbench.launch.supervise import GRACE_S
from tests.launch.test_spawn import PARENT, alive, wait_for

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def as_it_was():
    before = {number: signal.getsignal(number) for number in ALL}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_the_first_signal_is_an_exception_that_no_library_catches(number, code):
    signals.handle()
    with pytest.raises(Interrupted) as came:
        signal.raise_signal(number)
    assert not isinstance(came.value, Exception)
    assert (came.value.exit_code, str(came.value)) == (code, f"interrupted by {number.name}")


def test_those_that_follow_change_nothing_and_a_process_that_is_ending_is_not_disturbed():
    signals.handle()
    with pytest.raises(Interrupted):
        signal.raise_signal(signal.SIGINT)
    for number in ALL:
        signal.raise_signal(number)
    signals.settle()
    settled = [signal.getsignal(number) for number in ALL]
    signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(number) for number in ALL] == settled


def test_nohup_is_respected():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals.handle()
    signal.raise_signal(signal.SIGHUP)
    assert signals.heeded_signals() == (signal.SIGINT, signal.SIGTERM)
    with signals.deferred():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_what_must_be_done_to_its_end_is_and_an_error_inside_counts_more_than_the_signal():
    done = []
    signals.handle()
    with pytest.raises(ValueError, match="the disk"), signals.deferred():
        signal.raise_signal(signal.SIGTERM)
        raise ValueError("the disk is full")
    signals.handle()
    with pytest.raises(Interrupted) as came, signals.deferred():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        done.append("all of it")
    assert done and came.value.number == signal.SIGTERM


def test_a_call_that_never_returns_does_not_keep_it_from_being_heard():
    """The main thread waits for a lock that only the hearing thread opens: no signal ends that wait."""
    libc, lock, heard = ctypes.CDLL(None), ctypes.create_string_buffer(64), []
    libc.pthread_mutex_lock(lock)

    def tell(number):
        heard.append(number)
        libc.pthread_mutex_unlock(lock)

    signals.handle()
    with pytest.raises(Interrupted), signals.watch_signals(tell):
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGTERM)).start()
        libc.pthread_mutex_lock(lock)
    assert heard == [signal.SIGTERM]


def test_without_a_signal_nothing_is_sent():
    before, heard = signal.set_wakeup_fd(-1), list[int]()
    with signals.watch_signals(heard.append):
        assert any(thread.name == "collbench-signals" for thread in threading.enumerate())
    assert not any(thread.name == "collbench-signals" for thread in threading.enumerate())
    assert signal.set_wakeup_fd(before) == -1 and not heard


def test_other_threads_leave_signals_alone():
    found = []

    def elsewhere():
        with signals.watch_signals(lambda _: None), signals.deferred():
            signals.settle()
        found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]


# The end of a local start with ranks that ignore signals: Ctrl-C twice, a repeated SIGTERM, and the parent's message.

STUBBORN = """
import os, signal, sys, time
from pathlib import Path
from collbench.launch.spawn import record_run
from collbench.launch.supervise import die_with_parent
die_with_parent()
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
record_run(Path("runs/x"), os.environ)
rank = os.environ["COLLBENCH_RANK"]
(Path(sys.argv[1]) / f"rank-{rank}.new").write_text(f"{os.getpid()} ipc:///nowhere/control")
(Path(sys.argv[1]) / f"rank-{rank}.new").rename(Path(sys.argv[1]) / f"rank-{rank}")
time.sleep(60)
"""


def stubborn(folder, grace_s):
    code = PARENT.replace("grace_s=2", f"grace_s={grace_s}")
    line = [sys.executable, "-c", code, str(folder), "0,0", "own", STUBBORN]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: all((folder / f"rank-{i}").exists() for i in range(2)), "two ranks")
    return process


def ended(process, code, name):
    """Assert the exit code and the only line of the parent."""
    said = process.communicate(timeout=8)[1]
    assert process.returncode == code and said.count("\n") == 1 and name in said and "runs/x" in said


@pytest.mark.contract
def test_the_second_ctrl_c_kills_at_once_and_the_parent_reports_it(tmp_path):
    process = stubborn(tmp_path, grace_s=60)
    ranks = [int((tmp_path / f"rank-{i}").read_text().split()[0]) for i in range(2)]
    while any(alive(pid) for pid in ranks):  # a second one that arrives before the first is handled does not count
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    ended(process, 130, "SIGINT")


@pytest.mark.contract
def test_a_repeated_sigterm_does_not_end_the_grace_time(tmp_path):
    process = stubborn(tmp_path, grace_s=0.3)
    began = time.monotonic()
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    ended(process, 143, "SIGTERM")
    assert time.monotonic() - began > 0.55


def test_the_end_takes_less_than_its_limit():
    """The hang diagnosis takes at most 5 s, and all processes must end within 10 s of the deadline."""
    assert GRACE_S + supervise._LAST_S <= 4.5
