"""Messages of bindings, and the binding for backends that connect two ranks directly (plain TCP, ZeroMQ, plug-ins)."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol, SupportsInt

from collbench.backends.host import Address, AnyBuffers
from collbench.operations.program import Call


class Messages(Protocol):
    """The interface that a backend implements: the calls of a connection between two ranks."""

    def call(self, kind: str, /, *args: int) -> Call:
        """Return a call.

        "send" and "receive" (address, number of bytes) block until the buffer can be used again. "post_send" and "post_receive"
        (the same arguments) do not wait. "waitall" (no arguments) waits for all messages posted since the previous one, in both
        directions.
        """


class MessageSteps(ABC):
    """The messages of a binding (`operations.operation.Binding`), made by its method `message`. `scratch`: a byte for signals."""

    scratch: Any

    @abstractmethod
    def message(self, kind: str, rank: int, part: Any, count: int, signal: bool = False) -> Call:
        """Return a call of `count` elements, or bytes of a signal. kind: "send", "receive", "post_send" or "post_receive"."""

    def send_to(self, rank: int, part: Any, count: int) -> Call:
        """Return a call that sends `count` elements at `part`."""
        return self.message("send", rank, part, count)

    def receive_from(self, rank: int, part: Any, count: int) -> Call:
        """Return a call that receives `count` elements into `part`."""
        return self.message("receive", rank, part, count)

    def together(self) -> Iterator[Call]:
        """Yield no call: overlapping messages need no start."""
        return iter(())

    def post_send(self, rank: int, part: Any, count: int) -> Call:
        """Return a call that posts a send for the next `waitall`."""
        return self.message("post_send", rank, part, count)

    def post_receive(self, rank: int, part: Any, count: int) -> Call:
        """Return a call that posts a receive for the next `waitall`."""
        return self.message("post_receive", rank, part, count)

    def signal_to(self, rank: int) -> Call:
        """Return a call that sends one byte."""
        return self.message("send", rank, self.scratch, 1, signal=True)

    def signal_from(self, rank: int) -> Call:
        """Return a call that waits for the other rank's byte."""
        return self.message("receive", rank, self.scratch, 1, signal=True)


class MessageBinding(MessageSteps):
    """The argument of step functions (`operations.operation.Binding`): a rank's buffers, and messages to the other rank of its pair."""

    def __init__(self, messages: Messages, buffers: AnyBuffers, slot: int) -> None:
        place = buffers.places[0]
        self.rank = place.rank
        self.n = place.n
        self.count = place.count
        self.root = place.root
        self.case = buffers.case
        self.messages = messages
        self._width = self.case.dtype.size
        self.send = Address(buffers.send_at(0, slot), self._width)
        self.recv = Address(buffers.recv_at(0, slot), self._width)
        self._byte = ctypes.c_char()
        self.scratch = ctypes.addressof(self._byte)

    def message(self, kind: str, rank: int, part: SupportsInt, count: int, signal: bool = False) -> Call:
        """Return the call of the connection."""
        return self.messages.call(kind, int(part), count * (1 if signal else self._width))

    def waitall(self) -> Call:
        """Return a call that completes all posted messages, in both directions at once."""
        return self.messages.call("waitall")


def gone(peer: object) -> str:
    """Return the error for a connection that the other rank has closed."""
    return f"{peer} closed the connection: see the error of that rank"
