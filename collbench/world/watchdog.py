"""A deadline on everything that blocks outside our own waits: a call into a library that never comes back ends in a sentence.

The watching thread never calls the library. It looks at a progress word that the timed loops advance; when nothing moves
for the whole timeout it says where this rank stands and ends the process with exit code 4.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from collbench.errors import FAILED, CollbenchError

_LOOKS_PER_TIMEOUT = 20


class Watchdog:
    """Watches the phase that is running in this process. One per process; `close` ends the thread.

    progress   a word that the timed loops advance
    witness    told the sentence before the process ends (rank 0 writes it down)
    suspects   names who may be the reason, if anybody can be named
    """

    def __init__(self, timeout_s: float, whoami: str, end: Callable[[str], None] | None = None) -> None:
        self.progress = ctypes.c_int64(-1)
        self._timeout, self._whoami, self._end = timeout_s, whoami, end or end_process
        self.witness: Callable[[str], None] | None = None
        self.suspects: Callable[[], list[str]] | None = None
        self._phase: str | None = None
        self._since = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="collbench-watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Anything inside must make progress within the timeout; `name` says what was going on if it does not."""
        before = self._phase
        self.progress.value, self._since, self._phase = -1, time.monotonic(), name
        try:
            yield
        finally:
            self._since, self._phase = time.monotonic(), before

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Inside, something else keeps the deadline: the control plane's waits name who is missing, which this cannot."""
        before, self._phase = self._phase, None
        try:
            yield
        finally:
            self._since, self._phase = time.monotonic(), before

    def _watch(self) -> None:
        seen = self.progress.value
        while not self._stop.wait(self._timeout / _LOOKS_PER_TIMEOUT):
            if self._phase is None or self.progress.value != seen:
                seen, self._since = self.progress.value, time.monotonic()
            elif time.monotonic() - self._since > self._timeout:
                self._give_up(self.sentence())
                return

    def _give_up(self, sentence: str) -> None:
        if self.witness:
            with suppress(CollbenchError):
                self.witness(sentence)
        self._end(sentence)

    def sentence(self) -> str:
        """Where this rank stands: "hang: allreduce 64 MiB on mpi: rank 1 (node2, pid 7) has not moved for 60 s in iteration 41"."""
        iteration = self.progress.value
        where = f" in iteration {iteration}" if iteration >= 0 else ""
        named = ", ".join(self.suspects()) if self.suspects else ""
        return (
            f"hang: {self._phase}: {self._whoami} has not moved for {self._timeout:g} s{where}; "
            f"{named or 'look at the ranks that print no such line'}, or raise --timeout"
        )

    def close(self) -> None:
        """Ends the watching thread."""
        self._stop.set()
        self._thread.join()


def end_process(sentence: str) -> None:
    """Says why on stderr and ends the process at once with exit code 4: the blocked thread cannot be asked to stop."""
    sys.stderr.write(f"collbench: {sentence}\n")
    sys.stderr.flush()
    os._exit(FAILED)
