"""What is visible of a process and a host from outside: how it ended, whether it is stopped, its stack, whether the host answers."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from collbench.addresses import own_addresses
from collbench.control.addresses import answering
from collbench.control.diagnosis import (
    NodeProcesses,
    ProcessEnd,
    began_of,
    how_ended,
    innermost,
    is_stopped,
    own_stack,
)
from collbench.control.members import Member

GDB = """\
[New LWP 11]
Thread 2 (Thread 0x7f (LWP 11) "python"):
#0  0x00007f5 in __poll (fds=0x1) at poll.c:29

Thread 1 (Thread 0x7f0 (LWP 10) "python"):
#0  0x00007f1 in MPIDI_progress () from /lib/libmpi.so.12
#1  MPIR_Wait (request=0x1) at wait.c:3
#2  0x00007f2 in PMPI_Allreduce () from /lib/libmpi.so.12
#3  collbench_run () from _loop.so
#4  0x00007f3 in ffi_call_unix64 () from /lib/libffi.so.8
#5  main ()
"""
PY_SPY = """\
Process 10: python -m collbench
Thread 10 (idle): "MainThread"
    poll (libc.so.6)
    PMPI_Barrier (libmpi.so.12)
    _PyEval_EvalFrameDefault (python)
    run (collbench/measure/loop.py:94)

Thread 11 (idle): "collbench-keeper"
    zmq_poll (libzmq.so)
"""
PYTHON = '  File "a.py", line 1, in main\n    take()\n  File "b.py", line 2, in take\n    fill()\n  File "c.py", line 3, in fill\n    x\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GDB, "MPIDI_progress < MPIR_Wait < PMPI_Allreduce < collbench_run"),
        (PY_SPY, "poll < PMPI_Barrier"),
        (PYTHON, "fill < take < main"),
        ("gdb could not look into it", ""),
        ("", ""),
    ],
)
def test_the_innermost_calls_of_the_main_thread(text, words):
    assert innermost(text) == words


def test_a_process_has_its_own_stack_from_any_thread():
    actual = []
    thread = threading.Thread(target=lambda: actual.append(own_stack()))
    thread.start()
    thread.join()
    assert "test_a_process_has_its_own_stack_from_any_thread" in actual[0]


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_node_sees_which_process_is_stopped_and_how_one_ended(child):
    node = NodeProcesses()
    host = socket.gethostname()
    own = Member(3, host, 0, child.pid, (), began=began_of(child.pid))
    node.watch(own)
    node.watch(replace(own, rank=4, began=own.began + 1))  # another process that has that number now
    node.watch(replace(own, rank=5, host="another"))  # containers number their processes alike
    node.watch(replace(own, rank=6, pid=os.getpid(), began=began_of(os.getpid())))  # it would end itself with them
    node.watch(replace(own, rank=7, pid=10**30, began=-1))  # no process
    assert ([node.has(rank) for rank in range(3, 8)], node.stopped()) == ([True, False, False, False, False], [])
    child.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(child.pid))
    assert node.stopped() == [3]
    node.kill([4])
    assert not how_ended(child.pid).known
    node.kill([3])
    until(lambda: how_ended(child.pid).known)
    (descriptor,) = node.descriptors
    assert node.ended(descriptor) == (3, ProcessEnd(killed=True, signal=signal.SIGKILL))
    assert node.descriptors == [] and not node.has(3)


def test_an_early_exit_is_none_of_a_signal():
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    try:
        until(lambda: how_ended(process.pid).known)
        assert how_ended(process.pid) == ProcessEnd(exit_code=3)
    finally:
        process.wait()
    assert not how_ended(process.pid).known


def test_the_kernel_ends_a_stopped_process_whose_watchdog_is_not_armed():
    code = (
        "import os; from collbench.control.watchdog import StartupWatchdog; d = StartupWatchdog(); d.arm(0.2); "
        "os.kill(os.getpid(), 19)  # SIGSTOP"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == -signal.SIGKILL


def test_a_watchdog_that_is_rearmed_or_closed_does_nothing():
    code = (
        "import time; from collbench.control.watchdog import StartupWatchdog; d = StartupWatchdog(); d.arm(0.3); d.arm(60); "
        "e = StartupWatchdog(); e.arm(0.3); "
        "e.close(); time.sleep(0.6); raise SystemExit(7)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 7


def test_a_host_that_is_there_accepts_or_refuses():
    assert answering(["127.0.0.1"], 1.0) == "127.0.0.1"
    assert answering([], 1.0) is None
    assert answering(["no address"], 1.0) is None


def test_own_addresses_are_neither_loopback_nor_of_one_link_alone():
    assert not [address for address in own_addresses() if address.startswith(("127.", "::1", "fe80:"))]
