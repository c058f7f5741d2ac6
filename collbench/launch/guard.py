"""A guard process around a launcher: all processes that the launcher starts end with it, and with collbench.

mpiexec starts proxies, which start the ranks. A killed parent cannot end them, and a proxy without its mpiexec may
continue to start ranks. The guard is a small process between collbench and mpiexec. The kernel makes it the parent of
all orphans below it (PR_SET_CHILD_SUBREAPER), so it finds every process that the launcher started. The kernel signals it
when collbench ends.

collbench (Supervisor) -> guard -> mpiexec -> proxies -> ranks
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

END_ALL = signal.SIGUSR1  # to the guard: kill all processes below it
_PARENT_ENDED = signal.SIGUSR2
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_HEEDED = {signal.SIGCHLD, END_ALL, _PARENT_ENDED, *_PASSED_ON}
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_WITHOUT_PARENT_S = 2.0  # time for the ranks to end in order after collbench has ended
_LEAVING_S = 1.0  # time for the remaining processes after the launcher has ended
_KILLING_S = 3.0
_LOOK_S = 0.05


def run_guarded(parent: int) -> None:
    """Split the process into guard and launcher. Call it between fork and exec, as Popen's preexec_fn; it returns in the launcher.

    The calling process stays as the guard, forwards SIGINT, SIGTERM and SIGHUP, and ends as the launcher ends.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _HEEDED)
    prctl(_PR_SET_PDEATHSIG, int(_PARENT_ENDED), 0, 0, 0)
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    guard = os.getpid()
    launcher = os.fork()
    if launcher:
        try:
            _Guard(launcher).run()
        finally:
            os._exit(1)
    prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    if os.getppid() != guard:
        os._exit(1)


class _Guard:
    """The guard: it waits for the launcher, and ends the remaining processes."""

    def __init__(self, launcher: int) -> None:
        self._launcher = launcher
        self._status: int | None = None
        self._kill_at = float("inf")
        os.closerange(3, 1 << 16)  # one of them is the pipe on which Popen waits for exec

    def run(self) -> NoReturn:
        while True:
            came = signal.sigtimedwait(_HEEDED, _LOOK_S if self._ending else 60.0)
            if came and came.si_signo == END_ALL:
                self._kill()
            if came and came.si_signo == _PARENT_ENDED:
                self._send(signal.SIGTERM)
                self._kill_at = min(self._kill_at, time.monotonic() + _WITHOUT_PARENT_S)
            if came and came.si_signo in _PASSED_ON:
                self._send(signal.Signals(came.si_signo))
            self._reap()
            below = descendants(os.getpid()) if self._ending else [self._launcher]
            if self._status is not None and not below:
                _end_like(self._status)
            if time.monotonic() >= self._kill_at:
                self._kill()

    @property
    def _ending(self) -> bool:
        return self._status is not None or self._kill_at < float("inf")

    def _send(self, number: signal.Signals) -> None:
        if self._status is None:
            with suppress(ProcessLookupError):
                os.kill(self._launcher, number)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self._launcher:
                    self._status = status
                    self._kill_at = min(self._kill_at, time.monotonic() + _LEAVING_S)

    def _kill(self) -> NoReturn:
        """Kill until no process is left. A killed process may have started another one immediately before."""
        end = time.monotonic() + _KILLING_S
        below = descendants(os.getpid())
        while below and time.monotonic() < end:
            for pid in below:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            time.sleep(0.005)
            below = descendants(os.getpid())
        self._reap()
        _end_like(signal.SIGKILL if self._status is None else self._status)


def _end_like(status: int) -> NoReturn:
    """End this process with the status of another one, for its parent."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def descendants(root: int) -> list[int]:
    """Return the living processes below one, from /proc. Zombies are not included."""
    children: dict[int, list[int]] = {}
    ended: set[int] = set()
    for name in os.listdir("/proc"):  # noqa: PTH208 (Path.iterdir makes an object of each)
        if name.isdigit():
            with suppress(OSError):
                state, parent = Path("/proc", name, "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
                children.setdefault(int(parent), []).append(int(name))
                if state in "ZX":
                    ended.add(int(name))
    below: list[int] = []
    unvisited = [root]
    while unvisited:
        child_pids = children.get(unvisited.pop(), [])
        below += child_pids
        unvisited += child_pids
    return [pid for pid in below if pid not in ended]
