"""The parent of local ranks: it waits for all, ends all if one fails, forwards signals, and leaves no process running."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from collbench.errors import FAILED, UsageError, code_of_signal
from collbench.launch.shared_memory import shortage_behind
from collbench.launch.signals import heeded_signals, settle

# Ranks end each other within 2 s. With 5 s for the diagnosis before that, a launch has ended 10 s after its deadline.
GRACE_S = 3.0
_LAST_S = 1.0
_INTERRUPTED_S = 2.5  # after a signal; all processes must have ended 5 s after it
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_POLL_S = 0.5


def die_with_parent(signal_number: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Make the kernel send `signal_number` to this process when its parent ends. End at once if `parent` has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(FAILED)


@dataclass
class SupervisedProcess:
    """A child process: its command and environment, and `name` for messages.

    It is killed when this process ends. A launcher (`launches`) starts other processes, so it gets a guard that ends them
    all.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    launches: bool = False
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> int:
        """Start the process and return a pidfd of it. Raises UsageError if the program cannot be started."""
        from collbench.launch.guard import run_guarded  # before the fork, and not in ranks, which start nothing

        parent = os.getpid()

        def before_exec() -> None:
            # not in the child itself, which would miss a parent that ends while Python starts
            if self.launches:
                run_guarded(parent)
            else:
                die_with_parent(signal.SIGKILL, parent)

        try:
            # In a new session only the parent gets the terminal's ^C, and each rank gets it exactly once.
            self.process = subprocess.Popen(
                list(self.command),
                env=dict(self.env),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=before_exec,  # noqa: PLW1509 (the parent has no threads)
            )
        except OSError as error:
            raise UsageError(f"{self.name} cannot be started ({error}): check that {self.command[0]} is installed") from error
        return os.pidfd_open(self.process.pid)

    @property
    def alive(self) -> bool:
        """Return whether it was started and has not been reaped."""
        return self.process is not None and self.process.returncode is None

    def send(self, number: int, *, group: bool = False) -> None:
        """Send a signal to the process, or to the whole process group of its session."""
        if self.process is None or self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.process.pid, number)

    def kill(self) -> None:
        """Kill the process and its session's group at once, and, through the guard, all processes of a launcher."""
        if self.launches:
            from collbench.launch.guard import END_ALL

            self.send(END_ALL)
        else:
            self.send(signal.SIGKILL, group=True)


class Supervisor:
    """Runs children to their end. `failed_elsewhere` is polled for a failure that their exit codes do not show yet.

    After the first failure, or a signal, the others have `grace_s` to end themselves. Then they get SIGTERM, and a second
    later SIGKILL.
    """

    def __init__(
        self, children: Sequence[SupervisedProcess], *, grace_s: float = GRACE_S, failed_elsewhere: Callable[[], bool] | None = None
    ) -> None:
        self.children = children
        self.grace_s = grace_s
        self.failed_elsewhere = failed_elsewhere
        self.first_failure: int | None = None
        self.signal: int | None = None
        self.is_output_closed = False  # whether the reader of the output (`| head`) has ended, and so a child by SIGPIPE
        self.ends: list[str] = []
        self._watched: dict[int, str] = {}  # by pidfd
        self._deadline: float | None = None
        self._stage = 0

    def run(self) -> int:
        """Start all, wait for all, and return the first failing exit code, that of a received signal, or 0."""
        with selectors.DefaultSelector() as self._selector, self._signals_as_bytes() as signals:
            self._selector.register(signals, selectors.EVENT_READ, None)
            try:
                for child in self.children:
                    self._selector.register(child.start(), selectors.EVENT_READ, child)
                self._wait(signals)
            finally:
                self._kill()
                self._close_pidfds()
        if self.signal is not None:
            return code_of_signal(self.signal)
        return self.first_failure or 0

    def watch(self, name: str, pid: int) -> None:
        """Put `name` into `ends` when that process, which is not a child of this one, ends. Called by `failed_elsewhere`.

        From then on the process gets the signals of this process. The child that started it does not, since it would report them
        on stdout.
        """
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            self._watched[descriptor] = name
            self._selector.register(descriptor, selectors.EVENT_READ, name)

    def _wait(self, signals: socket.socket) -> None:
        while any(child.alive for child in self.children) and self._stage < 3:
            for key, _ in self._selector.select(self._timeout()):
                if key.data is None:
                    self._pass_on(signals.recv(64))
                elif isinstance(key.data, str):
                    self.ends.append(key.data)
                    self._selector.unregister(key.fileobj)
                    del self._watched[key.fd]
                    os.close(key.fd)
                else:
                    self._ended(key)
            if self.failed_elsewhere and self._deadline is None and self.failed_elsewhere():
                self._begin_end()
            self._escalate()

    def _timeout(self) -> float | None:
        waits_s = []
        if self._deadline is not None:
            waits_s.append(max(0.0, self._deadline - time.monotonic()))
        if self.failed_elsewhere:
            waits_s.append(_POLL_S)
        return min(waits_s, default=None)

    def _pass_on(self, numbers: bytes) -> None:
        for number in numbers:
            if self.signal is None:
                self.signal = number
                self._send_watched(number)
                for child in () if self._watched else self.children:
                    child.send(number)
                self._begin_end()
            elif number == signal.SIGINT:  # a repeated Ctrl-C kills at once; a scheduler repeats its SIGTERM without that meaning
                self._stage = 1
                self._kill()

    def _send_watched(self, number: int) -> None:
        for descriptor in self._watched:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)

    def _ended(self, key: selectors.SelectorKey) -> None:
        child: SupervisedProcess = key.data
        assert child.process is not None
        code = child.process.wait()
        self._selector.unregister(key.fileobj)
        os.close(key.fd)
        if code == 0 or self.signal is not None or self._stage > 0:
            return
        if code == -signal.SIGPIPE:
            self.is_output_closed = True
        elif code < 0:
            hint = shortage_behind(-code)
            killed = f"{child.name} (pid {child.process.pid}) was killed by signal {-code} ({name_of(-code)})"
            report_error(f"{killed}; {hint}" if hint else killed)
        if self.first_failure is None:
            self.first_failure = code if code > 0 else FAILED
        self._begin_end()

    def _begin_end(self) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + (self.grace_s if self.signal is None else min(self.grace_s, _INTERRUPTED_S))

    def _escalate(self) -> None:
        if self._deadline is None or time.monotonic() < self._deadline:
            return
        self._stage += 1
        self._deadline = time.monotonic() + self._last_s
        if self._stage == 1:
            for child in self.children:
                child.send(signal.SIGTERM)
        else:
            self._kill()

    @property
    def _last_s(self) -> float:
        return min(self.grace_s, _LAST_S)

    def _kill(self) -> None:
        late = [child for child in self.children if child.alive]
        if late and self._stage and self.signal is None:
            within = f"{self.grace_s + self._last_s:g} s of the first failure"
            report_error(f"{', '.join(child.name for child in late)} did not end within {within}: killed")
        if self._stage:
            self._send_watched(signal.SIGKILL)
        for child in late:
            child.kill()

    @contextlib.contextmanager
    def _signals_as_bytes(self) -> Iterator[socket.socket]:
        """Yield a socket with the received end signals as bytes, so that one wait covers signals and children.

        Signals after the last child's end still end the command, since this handler or the old one is always installed. After
        the first signal this process is ending.
        """
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        old_fd = signal.set_wakeup_fd(writer.fileno())
        old: dict[int, Any] = {number: signal.signal(number, lambda *_: None) for number in heeded_signals()}
        try:
            yield reader
        finally:
            if self.signal is None:
                for number, handler in old.items():
                    signal.signal(number, handler)
            else:
                settle()
            signal.set_wakeup_fd(old_fd)
            with contextlib.suppress(BlockingIOError):
                self.signal = self.signal or next(iter(reader.recv(64)), None)
            reader.close()
            writer.close()

    def _close_pidfds(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                os.close(key.fd)
        for child in self.children:
            if child.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(self.grace_s)


def report_error(sentence: str) -> None:
    """Print one sentence to stderr immediately. If that is not possible, only the exit code shows the failure."""
    with contextlib.suppress(OSError):
        print(f"collbench: {sentence}", file=sys.stderr, flush=True)


def name_of(number: int) -> str:
    """Return the name of a signal: SIGKILL of 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"
