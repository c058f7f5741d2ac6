"""The thread that owns a process's control-plane sockets. It waits for messages and timers, and never calls the measured library."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

import zmq

from collbench.errors import CollbenchError, RunFailed

_JOIN_S = 5.0
_LOOK_S = 1.0
_LONGEST_SLEEP_S = 3600.0


class IOHandler(ABC):
    """What the I/O thread runs: `Coordinator` at rank 0, `NodeAgent` at any other rank. inbox: for the main thread."""

    inbox: SimpleQueue[Any]

    @property
    @abstractmethod
    def sockets(self) -> Sequence[Any]:
        """Return the sockets and descriptors to poll."""

    @abstractmethod
    def read(self, ready: Any) -> None:
        """Read one that is ready."""

    @abstractmethod
    def tick(self, now: float) -> float:
        """Do the work that is due. Return when to call again, on CLOCK_MONOTONIC."""

    @abstractmethod
    def close(self) -> None:
        """Close the sockets."""


class IOThread:
    """A thread that runs a handler until it is closed. Any thread may call `do`.

    The thread polls the handler's `sockets`, ZeroMQ's and file descriptors, calls `read` with each that is ready, and then `tick`,
    which returns when to call it again, on CLOCK_MONOTONIC.
    """

    def __init__(self, handler: IOHandler) -> None:
        self._handler = handler
        self._actions: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="collbench-io", daemon=True)
        self._thread.start()

    def do(self, action: Callable[[], None]) -> None:
        """Run an action in the thread, after earlier ones; return at once."""
        self._actions.put(action)
        with suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def see_done(self, action: Callable[[], None]) -> None:
        """Run an action in the thread and wait until it is done. Use it if the caller's next call may hold Python's lock for long."""
        done = threading.Event()

        def act() -> None:
            action()
            done.set()

        self.do(act)
        while not done.wait(_LOOK_S) and self._thread.is_alive():
            pass

    def next(self, end: float) -> Any:
        """Return the next item of the handler's inbox. Raises an error that it contains, and Empty at `end`, on CLOCK_MONOTONIC."""
        message = self._handler.inbox.get(timeout=max(0.0, end - time.monotonic()))
        if isinstance(message, BaseException):
            raise message
        return message

    def _run(self) -> None:
        try:
            poller = zmq.Poller()
            polled: list[Any] = []
            due = self._handler.tick(time.monotonic())
            while not (self._stop and self._actions.empty()):
                sockets = [self._wake, *self._handler.sockets]
                if sockets != polled:
                    poller = zmq.Poller()
                    polled = sockets
                    for socket in sockets:
                        poller.register(socket, zmq.POLLIN)
                longest_s = min(due - time.monotonic(), _LONGEST_SLEEP_S)
                for ready, _ in poller.poll(max(0, int(longest_s * 1000) + 1)):
                    if ready == self._wake:
                        with suppress(BlockingIOError):
                            os.eventfd_read(self._wake)
                        while not self._actions.empty():
                            self._actions.get()()
                    else:
                        self._handler.read(ready)
                due = self._handler.tick(time.monotonic())
        except BaseException as error:  # else the main thread would wait for ever
            self._handler.inbox.put(error if isinstance(error, CollbenchError) else RunFailed(f"the control plane failed: {error!r}"))
        finally:
            self._handler.close()

    def close(self) -> None:
        """End the thread after all earlier actions; its messages are sent."""
        self.do(partial(setattr, self, "_stop", True))
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            os.close(self._wake)
