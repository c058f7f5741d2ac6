"""Where the ranks below connect: the other ranks of this node, and at rank 0 the first rank of each other node.

Of a connection libzmq's monitor tells the file descriptor when it is accepted and when it is closed, and nothing else that would name it
(a failed handshake comes with the listener's own address alone, garbage before a handshake with no event at all). So a stranger is a
connection that was closed without one message that its key had opened; a message tells its descriptor, too.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from collbench.world.keys import DOMAIN, Keys
from collbench.world.message import Kind, Message, parsed
from collbench.world.strangers import Strangers, peer_of

_ZAP = "inproc://zeromq.zap.01"  # rfc.zeromq.org/spec/27
_NOBODY = -1
_URGENT = (Kind.WHERE, Kind.HERE, Kind.ABORT, Kind.BYE)
_AT_ONCE = 4096  # events: a flood of strangers must not keep the others from being heard


@dataclass
class Child:
    """One connection from below: the ranks that speak through it, since when it is gone (None: it is there).

    also    ranks that answer through it because their first connection brings nothing
    """

    name: bytes
    ranks: set[int] = field(default_factory=set)
    also: set[int] = field(default_factory=set)
    descriptor: int = _NOBODY
    cut: float | None = None


class Down:
    """One socket for all connections from below. Used by one thread.

    children    those who have presented themselves, by the socket's name for them
    cut         those whose connection is gone
    strangers   those who were refused
    port        where it listens for other hosts, None where it does not
    complete    everybody is in: whoever knocks now is nobody who must be heard
    """

    def __init__(self, context: zmq.Context[Any], keys: Keys) -> None:
        self.router = context.socket(zmq.ROUTER)
        keys.listening(self.router)
        self._caller = keys.caller[0]
        self._door = context.socket(zmq.REP)
        self._door.setsockopt(zmq.LINGER, 0)
        self._door.bind(_ZAP)
        self._monitor = self.router.get_monitor_socket(zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self.children: dict[bytes, Child] = {}
        self.cut: list[Child] = []
        self.strangers = Strangers()
        self.port: int | None = None
        self.complete = False
        self._listening = _NOBODY
        self._unknown: dict[int, str | None] = {}  # connections that have not said anything, by descriptor: their addresses
        self._at: dict[int, Child] = {}

    def bind(self, place: str) -> None:
        """Listens at one more place. Raises zmq.ZMQError."""
        self.router.bind(place)

    @property
    def sockets(self) -> list[Any]:
        """What is to be polled."""
        return [self.router, self._door, self._monitor]

    def read(self, ready: Any) -> tuple[Child, Message] | None:
        """What has come at a polled socket, and from whom; None for what concerns the connections alone, and from who said no hello.

        Raises Malformed for what is no message, though whoever sent it has the launch's key.
        """
        self._events()  # first: a descriptor in a message may be one that has just been used for another connection
        if ready is self._door:
            self._answer()
        return self._message() if ready is self.router else None

    def _message(self) -> tuple[Child, Message] | None:
        name, *frames = self.router.recv_multipart(copy=False)
        descriptor = frames[0].get(zmq.SRCFD) if frames else _NOBODY
        self._unknown.pop(descriptor, None)
        message = parsed([frame.buffer for frame in frames])
        child = self.children.get(name.bytes)
        if child is None and message.kind not in (Kind.HELLO, Kind.ASIDE):
            return None
        child = child or self.children.setdefault(name.bytes, Child(name.bytes))
        child.descriptor, self._at[descriptor] = descriptor, child
        return child, message

    def send(self, child: Child, message: Message) -> None:
        """To one connection; one that is gone loses it."""
        self._send(child, message.frames())

    def tell(self, message: Message) -> None:
        """Send the same to all. A second connection gets only what its ranks must know at once: the first one may deliver the rest late."""
        frames = [zmq.Frame(frame) for frame in message.frames()]  # made once, for however many
        for child in self.children.values():
            if not child.also or message.kind in _URGENT:
                self._send(child, frames)

    def _send(self, child: Child, frames: list[Any]) -> None:
        with suppress(zmq.ZMQError):
            self.router.send_multipart([child.name, *frames], copy=False)

    def with_rank(self, rank: int) -> Child | None:
        """The connection that a rank speaks through."""
        return next((child for child in self.children.values() if rank in child.ranks), None)

    def forget(self, child: Child) -> None:
        """Nobody speaks through it any longer."""
        self.children.pop(child.name, None)
        if child in self.cut:
            self.cut.remove(child)
        if self._at.get(child.descriptor) is child:
            del self._at[child.descriptor]

    def refuse(self, child: Child, sentence: str, code: int) -> None:
        """Ends the one process at the other end of a connection, and hears it no longer."""
        self.send(child, Message(Kind.ABORT, 0, [sentence, code]))
        self.forget(child)

    def _answer(self) -> None:
        """The socket asks whether somebody may come in, whose key it has checked already."""
        version, number, domain, *_, key = self._door.recv_multipart()
        let_in = domain == DOMAIN and z85.encode(key) == self._caller
        self._door.send_multipart([version, number, *((b"200", b"OK") if let_in else (b"400", b"another key")), b"", b""])

    def _events(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                return
            told = parse_monitor_message(self._monitor.recv_multipart())
            if told["event"] == zmq.EVENT_LISTENING:
                self._listening = told["value"] if told["endpoint"].startswith(b"tcp:") else self._listening
            elif told["event"] == zmq.EVENT_ACCEPTED:
                self._accepted(told["value"])
            elif told["event"] == zmq.EVENT_DISCONNECTED:
                self._closed(told["value"])

    def _accepted(self, descriptor: int) -> None:
        self._unknown[descriptor] = peer_of(descriptor)
        if self.complete and self._listening != _NOBODY:
            self.strangers.flooded(len(self._unknown), self._listening)

    def _closed(self, descriptor: int) -> None:
        if descriptor in self._unknown:
            self.strangers.note(self._unknown.pop(descriptor), self.port)
        child = self._at.pop(descriptor, None)
        if child:
            child.descriptor, child.cut = _NOBODY, time.monotonic()
            self.cut.append(child)

    def close(self) -> None:
        """Sends what is still queued, for a second at most."""
        self.router.disable_monitor()
        for one in (self._monitor, self.router, self._door):
            one.close()
