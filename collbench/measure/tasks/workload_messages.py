"""Messages between two ranks at a time, each pair at its own pace: nobody meets, and whoever comes first is served first.

A conversation with another rank is a generator of messages. It goes on when its message has come or gone, and only one conversation of
a process at a time is between two messages: what it touches there nobody else does.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from collbench.backends.backend import Backend

_TAG = 77
_LEAVING_S = 2.0


@dataclass(frozen=True)
class Message:
    """Elements to send, or room to receive them into; they may not be touched until the conversation goes on."""

    elements: NDArray[Any]
    receive: bool

    @property
    def data(self) -> NDArray[np.uint8]:
        """As bytes: the other side has as many."""
        return self.elements.view(np.uint8)


def sent(elements: NDArray[Any]) -> Message:
    """To the other rank."""
    return Message(elements, receive=False)


def received(elements: NDArray[Any]) -> Message:
    """From the other rank."""
    return Message(elements, receive=True)


Talk = Generator[Message, None, None]


class Messenger(Protocol):
    """What carries conversations."""

    def run(self, talks: Mapping[int, Talk], moved: Callable[[], None]) -> None:
        """Holds the conversations with these ranks, side by side, until all have ended; `moved` after each message. Raises what they do."""
        ...


def messenger(backend: Backend) -> Messenger:
    """That of a backend, one of `workload_roles.CAPABLE`, which is open."""
    return OverMpi() if backend.api == "mpi" else OverTorch()


class OverMpi:
    """MPI's non-blocking messages, all from the main thread: one request per conversation, and whichever is complete goes on."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi, self._comm = MPI, MPI.COMM_WORLD

    def run(self, talks: Mapping[int, Talk], moved: Callable[[], None]) -> None:
        """As the protocol says."""
        peers: list[int] = []
        requests: list[Any] = []
        for peer, talk in talks.items():
            if (message := next(talk, None)) is not None:
                peers.append(peer)
                requests.append(self._begin(peer, message))
        while requests:
            turn = self._mpi.Request.Waitany(requests)
            moved()
            message = next(talks[peers[turn]], None)
            if message is None:
                del peers[turn], requests[turn]
            else:
                requests[turn] = self._begin(peers[turn], message)

    def _begin(self, peer: int, message: Message) -> Any:
        begin = self._comm.Irecv if message.receive else self._comm.Isend
        return begin([message.data, self._mpi.BYTE], peer, _TAG)


class OverTorch:
    """torch.distributed's messages. Gloo's cannot be asked whether they are complete (torch 2.13), so each conversation has a thread."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._between = threading.Lock()
        self._threads: list[threading.Thread] = []
        atexit.register(self._settle)

    def run(self, talks: Mapping[int, Talk], moved: Callable[[], None]) -> None:
        """As the protocol says; a single conversation needs no thread."""
        if len(talks) == 1:
            ((peer, talk),) = talks.items()
            self._hold(peer, talk, moved)
            return
        ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._in_thread, args=(peer, talk, moved, ended), daemon=True) for peer, talk in talks.items()
        ]
        for thread in self._threads:
            thread.start()
        for _ in talks:
            if error := ended.get():
                raise error

    def _settle(self) -> None:
        """After a failure, waits until the other ranks' ends have ended the conversations with them: torch aborts where one goes on."""
        ending = time.monotonic() + _LEAVING_S
        for thread in self._threads:
            thread.join(max(0.0, ending - time.monotonic()))

    def _in_thread(self, peer: int, talk: Talk, moved: Callable[[], None], ended: SimpleQueue[BaseException | None]) -> None:
        try:
            self._hold(peer, talk, moved)
        except BaseException as error:
            ended.put(error)
        else:
            ended.put(None)

    def _hold(self, peer: int, talk: Talk, moved: Callable[[], None]) -> None:
        while (message := self._next(talk)) is not None:
            tensor, distributed = self._torch.from_numpy(message.data), self._torch.distributed
            if message.receive:
                distributed.recv(tensor, src=peer, tag=_TAG)
            else:
                distributed.send(tensor, dst=peer, tag=_TAG)
            moved()

    def _next(self, talk: Talk) -> Message | None:
        with self._between:
            return next(talk, None)
