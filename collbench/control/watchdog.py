"""Deadlines: the watchdog of library calls, the start-up timer of the kernel, and the end of a launch.

The watchdog covers everything that blocks outside collbench's own waits, so that a library call that never returns ends with
an error. Its thread never calls the library; it reads a progress word that the timed loops advance. Without progress for
the whole timeout it requests the states of all ranks. Without a reply it reports for this rank and ends the process.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from collbench.control.diagnosis import LONGEST_PHASE, NodeProcesses, RankStalled, RankState
from collbench.errors import FAILED, CollbenchError
from collbench.launch.shared_memory import remove_mapped
from collbench.reason import Fact

# Kernel timers that continue this process, then kill it, unless they are started again. Nothing else can end a stopped process.
#
# A thread cannot: it is stopped with the process, or waits for Python's lock that a library holds. Source: timer_create(2).
# A continued process can report that it was stopped: a launch with only stopped ranks would end without a reason otherwise.

_SIGEV_SIGNAL = 0  # asm-generic/siginfo.h


class _Event(ctypes.Structure):
    """struct sigevent, 64 bytes."""

    _fields_ = (("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_char * 48))


AFTER_S = 9.0  # seconds after its deadline until the kernel ends a process that has not started its watchdog
# The same until the kernel continues a process with a watchdog that cannot run. By then the others have asked about it; and it has
# ended 10 s after the deadline, also if its Python does not run.
_CONTINUE_AFTER_S = 6.5
_AWAKE_S = 3.0  # for a continued process to start the timers again


class StartupWatchdog:
    """A kernel timer that kills this process `seconds` after the last call of `arm`, or sends it signal `number`."""

    def __init__(self, number: int = signal.SIGKILL) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        event = _Event(None, int(number), _SIGEV_SIGNAL)
        self.works = self._call("timer_create", time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer))

    def arm(self, seconds: float) -> None:
        """Start the timer again with this time in seconds; 0 stops it."""
        if self.works:
            times = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))  # struct itimerspec: interval, then time, in s and ns
            self._call("timer_settime", self._timer, 0, ctypes.byref(times), None)

    def _call(self, name: str, *arguments: object) -> bool:
        function = getattr(self._libc, name, None)
        return function is not None and function(*arguments) == 0

    def close(self) -> None:
        """Delete the timer."""
        if self.works:
            self._call("timer_delete", self._timer)
            self.works = False


# The end of a launch after a failure: rank 0 reports, then every rank ends itself, then those of a node that cannot are killed.
#
# A rank that is stopped, or inside a call that never returns, cannot end itself. The main thread has two seconds to end with the error.
# Then the I/O thread kills the remaining ranks of its node, and ends this process. Rank 0's main thread has one second to report. A
# signal may interrupt it inside a loop; then another thread reports, before the other ranks end and a launcher kills rank 0.

PATIENCE_S = 2.0
_ALONE_S = 1.5
_REPORT_S = 1.0


class EndProcess:
    """The steps that end a launch after a failure. `end` ends this process at once, `report` reports the reason once."""

    def __init__(self, end: Callable[[str, int], None], report: Callable[[str, int], None] | None = None, for_all: bool = False) -> None:
        self._end = end
        self._report = report
        self._for_all = for_all  # whether this rank reports for all of them
        self._report_at = math.inf
        self._reason: tuple[str, int] = ("", 0)
        self._end_at: float | None = None
        self._node: NodeProcesses | None = None

    @property
    def begun(self) -> bool:
        """Return whether the launch is about to end."""
        return self._end_at is not None

    def report(self, sentence: str, code: int) -> None:
        """Report the reason before any rank ends. After that a launcher may kill this process at any time."""
        if self._report:
            self._report(sentence, code)

    def begin(self, sentence: str, code: int, node: NodeProcesses) -> None:
        """End the launch for this reason; only the first call has an effect. A rank that watches others gives them more time."""
        if self._end_at is None:
            patience_s = PATIENCE_S if node.descriptors else _ALONE_S
            now = time.monotonic()
            self._reason = (sentence, code)
            self._end_at = now + patience_s
            self._node = node
            if self._for_all:
                self._report_at = now + _REPORT_S

    def tick(self, now: float) -> float:
        """Do the steps that are due; return when to call again."""
        if self._end_at is None:
            return math.inf
        if now >= self._report_at:
            self._report_at = math.inf
            self.report(*self._reason)
        if now >= self._end_at:
            if self._node:
                self._node.kill()
            self._end(*self._reason)
        return min(self._end_at, self._report_at)

    def leave(self) -> None:
        """Let the main thread end by itself, and kill the stopped ranks of its node. The other ranks end in the same way."""
        if self._node:
            self._node.kill(self._node.stopped())


_CHECKS_PER_TIMEOUT = 20
_LONGEST_INTERVAL_S = 1.0
_NOTICED_S = 1.0  # a shorter pause may be a busy machine
_CONTINUED_S = 2.0  # within which ranks that were paused together continue
_CONSULT_S = 8.0  # longer than an inquiry of all ranks takes
_LAST_S = 4.0


class Watchdog:
    """A thread that watches the current phase of this process. There is one per process; `close` ends the thread."""

    def __init__(self, timeout_s: float, name: str, end: Callable[[str], None] | None = None) -> None:
        self.progress = ctypes.c_int64(-1)  # a word that the timed loops set to the last complete iteration
        self.witness: Callable[[Fact], None] | None = None  # receives the reason before the process ends (rank 0 stores it)
        self.suspects: Callable[[], list[str]] | None = None  # returns the names of stopped ranks of this host
        # Receives the phase without progress; ends this process with a better diagnosis, or returns one.
        self.consult: Callable[[str], Fact | None] | None = None
        self._timeout_s = timeout_s
        self._name = name
        self._end = end or end_process
        self._phase: str | None = None
        self._waiting: str | None = None
        self._failed = ""
        self._seen_progress = -1
        self._still_since = time.monotonic()
        self._checked_at = self._still_since
        self._paused_s = 0.0
        self._queued_before_s = 0.0
        self._pauses: list[tuple[float, float]] = []  # the end and the seconds of each recent pause
        self._interval_s = min(timeout_s / _CHECKS_PER_TIMEOUT, _LONGEST_INTERVAL_S)
        self._stop = threading.Event()
        self._continue = StartupWatchdog(signal.SIGCONT)
        self._kill = StartupWatchdog()
        self._thread = threading.Thread(target=self._watch, name="collbench-watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Require progress within the timeout during the block. Errors contain `name`."""
        self.progress.value = -1
        with self._in_phase(name, self._waiting, name):
            yield

    def elsewhere(self, phase: str = "") -> AbstractContextManager[None]:
        """Suspend the deadline during the block, which waits for this phase: waits of the control plane have their own deadline."""
        return self._in_phase(None, phase, phase)

    @contextmanager
    def _in_phase(self, phase: str | None, waiting: str | None, name: str) -> Iterator[None]:
        before = self._phase, self._waiting
        self._still_since = time.monotonic()
        self._phase = phase
        self._waiting = waiting
        self._failed = ""
        try:
            yield
        except BaseException:
            self._failed = self._failed or name
            raise
        finally:
            self._still_since = time.monotonic()
            self._phase, self._waiting = before

    @property
    def current_phase(self) -> str:
        """Return the current phase, the awaited phase, or the phase that failed; "" between phases."""
        return self._failed or self._phase or self._waiting or ""

    def state(self, rank: int, step: int) -> RankState:
        """Return the state of this process, which is rank `rank` and in step `step` of the control plane. Any thread may call."""
        now = time.monotonic()
        recently_paused_s = sum(seconds for _, seconds in self._recent_pauses(now)) + self._overdue_s(now)
        return RankState(
            rank=rank,
            phase=self.current_phase[:LONGEST_PHASE],
            waits=self._waiting is not None,
            iteration=self._iteration,
            still_s=self._still_s,
            step=step,
            paused_s=self.paused_s,
            recently_paused_s=recently_paused_s,
        )

    @property
    def _iteration(self) -> int:
        complete = self.progress.value
        return complete + 1 if complete >= 0 and self._waiting is None else -1

    @property
    def _still_s(self) -> float:
        if self.progress.value != self._seen_progress:
            self._seen_progress = self.progress.value
            self._still_since = time.monotonic()
        return time.monotonic() - self._still_since

    @property
    def paused_s(self) -> float:
        """Return the seconds in which the process could not run (stopped, swapped out, asleep, Python blocked); not waits for a core."""
        return self._paused_s + self._overdue_s(time.monotonic())

    def _recent_pauses(self, now: float) -> list[tuple[float, float]]:
        """Return the pauses that ended within the timeout or since the last progress."""
        earliest = min(self._still_since, now - self._timeout_s)
        return [(ended_at, seconds) for ended_at, seconds in self._pauses if ended_at > earliest]

    def _overdue_s(self, now: float) -> float:
        late_s = now - self._checked_at - self._interval_s
        if late_s <= _NOTICED_S:
            return 0.0
        stopped_s = late_s - (self._queued_s() - self._queued_before_s)
        return stopped_s if stopped_s > _NOTICED_S else 0.0

    def _queued_s(self) -> float:
        """Return the seconds that the thread waited for a core; 0 if unknown. Source: Documentation/scheduler/sched-stats.rst."""
        try:
            return int(Path(f"/proc/self/task/{self._thread.native_id}/schedstat").read_text(encoding="ascii").split()[1]) * 1e-9
        except (OSError, IndexError, ValueError):
            return 0.0

    def _arm(self, seconds: float) -> None:
        """Continue this process after that time if it is stopped, and kill it if its Python does not run then."""
        self._continue.arm(seconds)
        self._kill.arm(seconds + _AWAKE_S)

    def _watch(self) -> None:
        self._arm(self._timeout_s + _CONTINUE_AFTER_S)
        while not self._stop.wait(self._interval_s):
            now = time.monotonic()
            paused_s = self._overdue_s(now)
            if paused_s:
                self._pauses = [*self._recent_pauses(now), (now, paused_s)]
            self._paused_s += paused_s
            self._checked_at = now
            self._queued_before_s = self._queued_s()
            self._arm(self._timeout_s + _CONTINUE_AFTER_S)
            stalls = self._still_s > self._timeout_s and self._phase is not None
            # once the kernel's timer has continued this process it ends, since a scheduler may still count it as suspended
            outlasted = any(seconds >= self._timeout_s + _CONTINUE_AFTER_S - 2 * _LONGEST_INTERVAL_S for _, seconds in self._pauses)
            running_s = now - self._pauses[-1][0] if self._pauses else math.inf
            if (stalls or outlasted) and running_s >= _CONTINUED_S:
                self._give_up()
                return

    def _give_up(self) -> None:
        """End this process. Other ranks are consulted twice, since the replying rank may stop before it has ended this process."""
        stopped = tuple(self.suspects()) if self.suspects else ()
        hang: Fact = RankStalled(self._phase or "", self._name, self._timeout_s, self._iteration, stopped)
        if self.consult:
            self._arm(_CONSULT_S + _LAST_S)
            diagnosis = self.consult(self.current_phase)
            if diagnosis is None and not self._stop.wait(_CONSULT_S / 2):
                diagnosis = self.consult(self.current_phase)
                self._stop.wait(0.0 if diagnosis else _CONSULT_S / 2)
            if diagnosis is None and self._stop.is_set():
                return
            hang = diagnosis or hang
        if self.witness:
            with suppress(CollbenchError):
                self.witness(hang)
        self._end(hang.render())

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()
        self._continue.close()
        self._kill.close()


def end_process(sentence: str, code: int = FAILED) -> None:
    """Write the message to stderr, if there is one, and end the process at once. A blocked thread cannot be stopped otherwise."""
    if sentence:
        sys.stderr.write(f"collbench: {sentence}\n")
        sys.stderr.flush()
    remove_mapped()
    os._exit(code)
