"""Signals that ask a process to end: Ctrl-C, a scheduler's SIGTERM before its time limit, the SIGHUP of a terminal that is gone.

The first one is an exception in the main thread, so that what is open gets closed. Those that follow change nothing: their sender
finds the process ending, and has SIGKILL for more.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from collbench.errors import Interrupted

_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_JOIN_S = 1.0
_HYDRA = "MPI_LOCALNRANKS"  # MPICH's mpiexec gives it to every rank


def heeded() -> tuple[int, ...]:
    """All of them; but not SIGHUP where the parent of this process ignores it, as nohup does."""
    return tuple(number for number in _ALL if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN)


def handle(env: Mapping[str, str] | None = None) -> None:
    """From now on the first one raises Interrupted in the main thread; `env` identifies the launcher.

    mpiexec of MPICH that leaves the ending to the ranks reports each other's end by SIGUSR1, which would kill it.
    """
    for number in heeded():
        signal.signal(number, _first)
    if _HYDRA in (env or {}) and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def settle() -> None:
    """From now on they change nothing: this process is ending. Does nothing in any other thread than the main one."""
    if _in_main_thread():
        for number in heeded():
            signal.signal(number, _later)


@contextmanager
def deferred() -> Iterator[None]:
    """What is inside is done to its end: a signal that comes meanwhile takes effect after it."""
    if not _in_main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in heeded()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


@contextmanager
def heard(tell: Callable[[int], None]) -> Iterator[None]:
    """While it lasts, `tell` gets the first one in a thread of its own: the main thread may be inside a call that never returns."""
    if not _in_main_thread():
        yield
        return
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=_listen, args=(ours, tell), name="collbench-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        theirs.close()
        thread.join(_JOIN_S)
        ours.close()


def _listen(ours: socket.socket, tell: Callable[[int], None]) -> None:
    while number := ours.recv(1):
        if number[0] in _ALL:
            tell(number[0])
            return


def _first(number: int, _frame: FrameType | None) -> None:
    settle()
    raise Interrupted(number)


def _later(_number: int, _frame: FrameType | None) -> None:
    """It is ending already."""


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
