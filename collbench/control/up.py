"""A rank's way up: one connection to the first rank of its node, or from there to rank 0."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from collbench.control.keys import Keys
from collbench.control.message import Kind, Malformed, Message, parsed

_RETRY_MS, _SLOWEST_RETRY_MS = 5, 200  # the default waits 100 ms and more for a rank 0 that is just starting
_AFTER_REFUSAL_S = 1.0  # whoever has the wrong secret must not be a flood
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH


class Up:
    """Knocks at each place in turn until one welcomes it; from then on that one alone is spoken to. Used by one thread.

    places      where, and for how many seconds before the next place is tried as well
    refused     where somebody has answered who does not have this launch's secret
    place       where it was welcomed
    descriptor  of the connection that spoke last, -1 before there is one
    cut         since when the connection is gone; None while it is there. It does not come back: what was under way is lost.
    """

    def __init__(self, context: zmq.Context[Any], keys: Keys, places: Sequence[tuple[str, float]]) -> None:
        self._context, self._keys, self._patience = context, keys, places
        self._due: dict[str, float] = {}  # places to knock at, and when
        self._knocking: dict[Any, Any] = {}  # sockets, and the monitor of each
        self._places: dict[Any, str] = {}  # by monitor
        self._hello: Message | None = None
        self._waiting: list[Message] = []
        self.socket: zmq.Socket[Any] | None = None
        self.refused: list[str] = []
        self.cut: float | None = None
        self.descriptor = -1
        self.place = ""
        self._second: zmq.Socket[Any] | None = None

    @property
    def sockets(self) -> list[Any]:
        """What is to be polled."""
        return [*self._knocking, *self._knocking.values(), *([self._second] if self._second else [])]

    @property
    def has_second(self) -> bool:
        """Whether a second connection was opened."""
        return self._second is not None

    def open_second(self, ranks: Sequence[int]) -> None:
        """Open one more connection to the place of the first one, which a packet that does not pass may block."""
        socket = self._context.socket(zmq.DEALER)
        self._keys.calling(socket)
        socket.setsockopt(zmq.IPV6, int("[" in self.place))
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(self.place)
        socket.send_multipart(Message(Kind.ASIDE, 0, list(ranks)).frames())
        self._second = socket

    def send_second(self, message: Message) -> None:
        """Send through the second connection, where there is one."""
        if self._second:
            self._second.send_multipart(message.frames(), copy=False)

    def knock(self, hello: Message, now: float) -> float:
        """Says hello where it is time to; returns when it wants to be called again, until it is welcomed."""
        if self._hello is None:
            self._hello, at = hello, now
            for place, patience_s in self._patience:
                self._due[place], at = at, at + patience_s
        for place in [place for place, at in self._due.items() if at <= now]:
            del self._due[place]
            self._open(place, hello)
        return min(self._due.values(), default=now + _AFTER_REFUSAL_S)

    def _open(self, place: str, hello: Message) -> None:
        socket = self._context.socket(zmq.DEALER)
        self._keys.calling(socket)
        socket.setsockopt(zmq.IPV6, int("[" in place))
        socket.setsockopt(zmq.RECONNECT_IVL, _RETRY_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _SLOWEST_RETRY_MS)
        monitor = socket.get_monitor_socket(_REFUSED | zmq.EVENT_DISCONNECTED)
        self._knocking[socket], self._places[monitor] = monitor, place
        socket.connect(place)
        socket.send_multipart(hello.frames())

    def send(self, message: Message) -> None:
        """Sends to whoever has welcomed this rank; before that, it waits."""
        if self.socket:
            self.socket.send_multipart(message.frames(), copy=False)
        else:
            self._waiting.append(message)

    def read(self, ready: Any) -> Message | None:
        """What has come at a polled socket; None for what is no message of ours, and for events of the connection."""
        if ready is self._second:
            return self._from_second(ready)
        if ready in self._places:
            self._event(ready)
        if ready not in self._knocking:
            return None
        frames = ready.recv_multipart(copy=False)
        self.descriptor = frames[0].get(zmq.SRCFD)
        try:
            message = parsed([frame.buffer for frame in frames])
        except Malformed:
            return None
        if message.kind is Kind.WELCOME and self.socket is None:
            self._keep(ready)
        return message

    def _from_second(self, socket: Any) -> Message | None:
        try:
            return parsed([frame.buffer for frame in socket.recv_multipart(copy=False)])
        except Malformed:
            return None

    def _keep(self, found: Any) -> None:
        assert self._hello
        self.place = self._places[self._knocking[found]]
        for socket in [one for one in self._knocking if one is not found]:
            socket.send_multipart(Message(Kind.MOVED, 0, self._hello.body[0][0]).frames())
            self._drop(socket)
        self.socket = found
        self._due.clear()
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self.send(message)

    def _event(self, monitor: Any) -> None:
        event = parse_monitor_message(monitor.recv_multipart())["event"]
        if self.socket:
            self.cut = self.cut or (time.monotonic() if event == zmq.EVENT_DISCONNECTED else None)
        elif event & _REFUSED:
            place = self._places[monitor]
            self.refused.append(place)
            self._drop(next(socket for socket, its in self._knocking.items() if its is monitor), in_vain=True)
            self._due[place] = time.monotonic() + _AFTER_REFUSAL_S * len(self.refused)

    def _drop(self, socket: Any, *, in_vain: bool = False) -> None:
        if in_vain:
            socket.setsockopt(zmq.LINGER, 0)  # nobody will ever take what is queued
        monitor = self._knocking.pop(socket)
        del self._places[monitor]
        socket.disable_monitor()
        monitor.close()
        socket.close()

    def close(self) -> None:
        """Sends what is still queued, for a second at most, if anybody has welcomed this rank."""
        for socket in list(self._knocking):
            self._drop(socket, in_vain=self.socket is None)
        if self._second:
            self._second.close()
