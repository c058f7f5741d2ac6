"""The thread that owns a process's control-plane sockets, and what its two handlers share. It never calls the measured library."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import zmq

from collbench.control.diagnosis import NodeProcesses, ProcessEnd, RankState
from collbench.control.members import Member
from collbench.control.path import ConnectionMonitor
from collbench.control.tree import ChildConnection, Downlinks
from collbench.control.watchdog import EndProcess
from collbench.control.wire import Malformed, Message, Welcome
from collbench.errors import CollbenchError, RunFailed

T = TypeVar("T")
_JOIN_S = 5.0
_CHECK_S = 1.0
_LONGEST_SLEEP_S = 3600.0


class IOHandler(ABC):
    """What the I/O thread runs: `Coordinator` at rank 0, `NodeAgent` at any other rank. Only that thread calls the methods."""

    def __init__(self, down: Downlinks, own_state: Callable[[], RankState], ending: EndProcess) -> None:
        self.down = down  # the connections of the ranks below this one
        self.own_state = own_state
        self.ending = ending
        self.inbox: SimpleQueue[Any] = SimpleQueue()  # for the main thread: messages, and errors to raise
        self.node = NodeProcesses()  # those of this node's other ranks
        self.joined: dict[int, Member] = {}  # the ranks that have joined through `down`
        self.states: dict[int, RankState] = {}  # the last state of each rank
        self.connections = ConnectionMonitor()

    @property
    def sockets(self) -> list[Any]:
        """Return the sockets to poll, and the descriptors of this node's processes."""
        return [*self.down.sockets, *self.node.descriptors]

    def read(self, ready: Any) -> None:
        """Handle a ready socket: a message from below, or the end of a process of this node."""
        if ready in self.node.descriptors:
            self._end_of(*self.node.ended(ready))
            return
        try:
            received = self.down.read(ready)
            if received:
                self._from_below(*received)
        except Malformed as error:
            self._reject(error)

    def _admit(self, child: ChildConnection, member: Member) -> None:
        child.ranks.add(member.rank)
        self.joined[member.rank] = member
        self.node.watch(member)
        self.down.send(child, Welcome())

    def _remove(self, child: ChildConnection, rank: int) -> None:
        """Remove a rank from a connection: it leaves in order, or uses another connection from now on."""
        child.ranks.discard(rank)
        if not child.ranks:
            self.down.forget(child)

    @abstractmethod
    def _from_below(self, child: ChildConnection, message: Message) -> None: ...

    @abstractmethod
    def _reject(self, error: Malformed) -> None: ...

    @abstractmethod
    def _end_of(self, rank: int, how: ProcessEnd) -> None: ...

    @abstractmethod
    def tick(self, now: float) -> float:
        """Do the work that is due. Return when to call again, on CLOCK_MONOTONIC."""

    def close(self) -> None:
        """End this node's remaining processes if the launch failed, and close the sockets."""
        self.ending.leave()
        self.down.close()
        self.node.close()


class BackgroundCalls:
    """Slow functions, each in a thread of its own, so that the I/O thread continues to read. Only the I/O thread calls the methods."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._results: SimpleQueue[Callable[[], object]] = SimpleQueue()

    def start(self, read: Callable[[], T], store: Callable[[T], object]) -> None:
        """Call `read` in a thread. `poll` then calls `store` with the result."""
        thread = threading.Thread(target=lambda: self._results.put(partial(store, read())), name="collbench-look", daemon=True)
        self._threads.append(thread)
        thread.start()

    def poll(self) -> bool:
        """Store the results that are here; return whether a call is not complete."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        while not self._results.empty():
            self._results.get()()
        return bool(self._threads)


class IOThread:
    """A thread that runs a handler until it is closed: `read` for each socket or descriptor that is ready, then `tick`."""

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
        while not done.wait(_CHECK_S) and self._thread.is_alive():
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
                sleep_s = min(due - time.monotonic(), _LONGEST_SLEEP_S)
                for ready, _ in poller.poll(max(0, int(sleep_s * 1000) + 1)):
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
