"""Processes of this node and its hosts, seen from outside: how each ended, whether it is stopped, its stack, whether the host answers."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from collbench.addresses import own_addresses
from collbench.control import diagnosis
from collbench.control.addresses import answering
from collbench.control.diagnosis import NodeProcesses, ProcessEnd, began_of, how_ended, innermost, is_stopped, own_stack
from collbench.control.members import Member
from tests.cli.command import until

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
    run (collbench/measuring/loop.py:94)

Thread 11 (idle): "collbench-io"
    zmq_poll (libzmq.so)
"""
PYTHON = '  File "a.py", line 1, in main\n    take()\n  File "b.py", line 2, in take\n    fill()\n  File "c.py", line 3, in fill\n    x\n'


@pytest.mark.parametrize(("text", "words"), [
    (GDB, "MPIDI_progress < MPIR_Wait < PMPI_Allreduce < collbench_run"),
    (PY_SPY, "poll < PMPI_Barrier"), (PYTHON, "fill < take < main"), ("gdb could not look into it", ""), ("", ""),
])  # fmt: skip
def test_the_innermost_calls_of_the_main_thread(text, words):
    assert innermost(text) == words


def test_a_process_has_its_own_stack_from_any_thread():
    actual = []
    thread = threading.Thread(target=lambda: actual.append(own_stack()))
    thread.start()
    thread.join()
    assert "test_a_process_has_its_own_stack_from_any_thread" in actual[0]


@pytest.mark.parametrize(("state", "status", "how"), [
    ("Z", 0, ProcessEnd(exit_code=0)), ("Z", 4 << 8, ProcessEnd(exit_code=4)), ("Z", 9, ProcessEnd(killed=True, signal=9)),
    ("Z", 11 | 0x80, ProcessEnd(killed=True, signal=11)),  # with a core dump
    ("Z", 60, ProcessEnd(killed=True, signal=60)), ("S", 0, ProcessEnd()),
])  # fmt: skip
def test_how_a_process_ended(monkeypatch, tmp_path, state, status, how):
    (tmp_path / "stat").write_text(f"77 (a) name) {state} {'0 ' * 48}{status}")
    monkeypatch.setattr(diagnosis, "Path", lambda path: tmp_path / "stat")
    assert how_ended(77) == how


@pytest.fixture
def child():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(("changes", "watched"), [
    ({}, True),
    ({"began": 1}, False),  # another process that has that number now
    ({"began": -1}, False),
    ({"host": "other"}, False),  # containers number their processes alike
    ({"pid": 1}, False), ({"pid": 10**30, "began": -1}, False),
    ({"pid": os.getpid(), "began": began_of(os.getpid())}, False),  # it would end itself with them
])  # fmt: skip
def test_only_a_process_with_a_matching_identity_is_watched(changes, watched, child):
    node = NodeProcesses()
    node.watch(replace(Member(3, socket.gethostname(), 0, child.pid, (), began=began_of(child.pid)), **changes))
    found = node.has(3), bool(node.descriptors)
    node.close()
    assert found == (watched, watched)


def test_a_node_sees_which_process_is_stopped_and_how_one_ended(child):
    node = NodeProcesses()
    node.watch(Member(3, socket.gethostname(), 0, child.pid, (), began=began_of(child.pid)))
    assert node.stopped() == []
    child.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(child.pid), "the stop")
    assert node.stopped() == [3]
    node.kill([4])
    assert not how_ended(child.pid).is_known
    node.kill([3])
    until(lambda: how_ended(child.pid).is_known, "the end")
    (descriptor,) = node.descriptors
    assert node.ended(descriptor) == (3, ProcessEnd(killed=True, signal=signal.SIGKILL))
    assert node.descriptors == [] and not node.has(3)


@pytest.mark.parametrize(("how", "reported"), [
    (ProcessEnd(exit_code=1), ProcessEnd(exit_code=1)), (ProcessEnd(killed=True, signal=11), ProcessEnd(killed=True, signal=11)),
    (ProcessEnd(killed=True, signal=9), ProcessEnd(killed=True, signal=9, out_of_memory=True)),
    (ProcessEnd(), ProcessEnd(killed=True, out_of_memory=True)),
])  # fmt: skip
def test_lack_of_memory_explains_only_ends_by_sigkill_and_unknown_ones(monkeypatch, child, how, reported):
    node = NodeProcesses()
    node.watch(Member(3, socket.gethostname(), 0, child.pid, (), began=began_of(child.pid)))
    monkeypatch.setattr(diagnosis, "_killed_for_memory", lambda: node._killed_for_memory + 1)  # of another job
    monkeypatch.setattr(diagnosis, "how_ended", lambda _: how)
    (descriptor,) = node.descriptors
    assert node.ended(descriptor) == (3, reported)


# Stops the process of its last argument, as gdb does, until it is killed.
TRACER = """\
#!{python}
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
pid = int(sys.argv[-1])
libc.ptrace(16, pid, None, None)  # PTRACE_ATTACH
libc.waitpid(pid, None, 0)
time.sleep(60)
"""


@pytest.mark.parametrize("stopped_before", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_a_debugger_of_collbench_does_not_count_as_a_stop(own, stopped_before, child, tmp_path, monkeypatch):
    """A tool of collbench shows the state before it; a debugger of the user is a stop."""
    gdb = tmp_path / "gdb"
    gdb.write_text(TRACER.format(python=sys.executable))
    gdb.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    if stopped_before:
        child.send_signal(signal.SIGSTOP)
        until(lambda: state(child.pid) == "T", "the stop")
    users = None if own else subprocess.Popen([gdb, str(child.pid)])
    reading = threading.Thread(target=diagnosis.stack, args=(child.pid,))
    if own:
        reading.start()
    until(lambda: state(child.pid) == "t", "the debugger")
    assert is_stopped(child.pid) == (not own or stopped_before)
    if own:
        reading.join()
    if users:
        users.kill()
        users.wait()
    until(lambda: state(child.pid) == ("T" if stopped_before else "S"), "the end of the debugger")
    assert is_stopped(child.pid) == stopped_before


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_an_early_exit_is_none_of_a_signal_and_a_process_that_is_not_there_has_no_end():
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    try:
        until(lambda: how_ended(process.pid).is_known, "the end")
        assert how_ended(process.pid) == ProcessEnd(exit_code=3)
    finally:
        process.wait()
    assert not how_ended(process.pid).is_known
    assert not how_ended(1 << 30).is_known and began_of(1 << 30) == -1


DOG = "import os, time; from collbench.control.watchdog import StartupWatchdog as Dog; dog = Dog(); "


@pytest.mark.parametrize(("code", "ended"), [
    ("dog.arm(0.2); os.kill(os.getpid(), 19)  # SIGSTOP", -signal.SIGKILL),
    ("dog.arm(0.3); dog.arm(60); other = Dog(); other.arm(0.3); other.close(); time.sleep(0.6); raise SystemExit(7)", 7),
], ids=["not rearmed", "rearmed or closed"])  # fmt: skip
def test_the_kernel_ends_a_stopped_process_whose_watchdog_is_not_armed_again(code, ended):
    assert subprocess.run([sys.executable, "-c", DOG + code], timeout=30, check=False).returncode == ended


def test_a_host_that_is_there_accepts_or_refuses():
    assert [answering(places, 1.0) for places in (["127.0.0.1"], [], ["no address"])] == ["127.0.0.1", None, None]
    assert not [address for address in own_addresses() if address.startswith(("127.", "::1", "fe80:"))]
