"""Signals that ask a process to end: Ctrl-C, a scheduler's SIGTERM before its time limit, the SIGHUP of a closed
terminal.

The first one raises an exception in the main thread, so that open resources are closed. Later ones have no effect,
because the process is ending already. SIGKILL still works.
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
_HYDRA = "MPI_LOCALNRANKS"  # MPICH's mpiexec sets it for every rank


def heeded_signals() -> tuple[int, ...]:
    """Return the handled signals, without SIGHUP if the parent of this process ignores it, as nohup does."""
    return tuple(number for number in _ALL if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN)


def handle(env: Mapping[str, str] | None = None) -> None:
    """Install the handlers: the first signal raises Interrupted in the main thread. `env` identifies the launcher.

    MPICH's mpiexec without automatic cleanup reports the end of ranks by SIGUSR1, which would kill this process.
    """
    for number in heeded_signals():
        signal.signal(number, _first)
    if _HYDRA in (env or {}) and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def settle() -> None:
    """Ignore signals from now on, because this process is ending. Does nothing outside the main thread."""
    if _in_main_thread():
        for number in heeded_signals():
            signal.signal(number, _later)


@contextmanager
def deferred() -> Iterator[None]:
    """Delay signals until the end of the block."""
    if not _in_main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in heeded_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


@contextmanager
def watch_signals(notify: Callable[[int], None]) -> Iterator[None]:
    """Call `notify` with the first signal during the block, in a separate thread, since the main thread may be inside a call."""
    if not _in_main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def read() -> None:
        while number := reader.recv(1):
            if number[0] in _ALL:
                notify(number[0])
                return

    thread = threading.Thread(target=read, name="collbench-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        writer.close()
        thread.join(_JOIN_S)
        reader.close()


def _first(number: int, _frame: FrameType | None) -> None:
    settle()
    raise Interrupted(number)


def _later(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the process is ending already."""


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
