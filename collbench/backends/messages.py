"""x as the operations' messages see it over a connection of two ranks of our own: plain TCP's, ZeroMQ's."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Protocol, SupportsInt

from collbench.backends.host import Address, AnyBuffers
from collbench.operations.program import Call


class Messages(Protocol):
    """The calls of a pair: "send" and "receive" (address, bytes), "post_send", "post_receive" and "waitall" for all that was posted."""

    def call(self, what: str, *words: int) -> Call:
        """One of them."""
        ...


class MessageBinding:
    """x: a rank's buffers, and messages to the other rank of its pair."""

    def __init__(self, messages: Messages, buffers: AnyBuffers, slot: int) -> None:
        place, self.cell, self.messages = buffers.places[0], buffers.cell, messages
        self.rank, self.n, self.count, self.root = place.rank, place.n, place.count, place.root
        self._width = self.cell.dtype.size
        self.send, self.recv = Address(buffers.send_at(0, slot), self._width), Address(buffers.recv_at(0, slot), self._width)
        self._byte = ctypes.c_char()

    def send_to(self, rank: int, part: SupportsInt, count: int) -> Call:
        """Sends all of it."""
        return self.messages.call("send", int(part), count * self._width)

    def receive_from(self, rank: int, part: SupportsInt, count: int) -> Call:
        """Receives all of it."""
        return self.messages.call("receive", int(part), count * self._width)

    def together(self) -> Iterator[Call]:
        """Messages need no beginning."""
        return iter(())

    def post_send(self, rank: int, part: SupportsInt, count: int) -> Call:
        """A message for the next `waitall`."""
        return self.messages.call("post_send", int(part), count * self._width)

    def post_receive(self, rank: int, part: SupportsInt, count: int) -> Call:
        """Likewise."""
        return self.messages.call("post_receive", int(part), count * self._width)

    def waitall(self) -> Call:
        """Moves everything posted, both ways at once."""
        return self.messages.call("waitall")

    def signal_to(self, rank: int) -> Call:
        """A byte."""
        return self.messages.call("send", ctypes.addressof(self._byte), 1)

    def signal_from(self, rank: int) -> Call:
        """The other one's byte."""
        return self.messages.call("receive", ctypes.addressof(self._byte), 1)


def gone(peer: object) -> str:
    """What is said where the other rank has closed its end."""
    return f"{peer} closed the connection: look at what it says"
