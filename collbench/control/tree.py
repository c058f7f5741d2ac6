"""Connections of the ranks below a rank (those of its node, at rank 0 also the first of each other node).

libzmq's monitor reports the file descriptor of a connection when it is accepted and when it is closed. Nothing else
identifies a connection: a failed handshake reports the listener's own address, and garbage before a handshake causes no
event. Therefore a rejected peer is a connection that closed before the launch's key decrypted a message from it. A
message also carries the descriptor of its connection.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import zmq
from zmq.utils import z85

from collbench.control.members import Member
from collbench.control.security import DOMAIN, Keys, UnknownConnections, hold_silent, peer_of, socket_event
from collbench.control.wire import Abort, Aside, Bye, Entry, Hello, Here, Message, Where, frames, parsed

# The values of a node's ranks, bundled into messages of a bounded size; errors about ranks in different steps.

LARGE_BYTES = 64 << 10  # of arrays: larger messages are announced before they are sent
BUNDLE_BYTES = 4 << 20  # of arrays in one message, unless a single rank has more


def bundles(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Yield the entries in their order, in groups that fit into one message."""
    bundle: list[Entry] = []
    size_bytes = 0
    for entry in entries:
        if bundle and size_bytes + entry.size_bytes > BUNDLE_BYTES:
            yield bundle
            bundle = []
            size_bytes = 0
        bundle.append(entry)
        size_bytes += entry.size_bytes
    yield bundle


def restarted(member: Member) -> str:
    """Return the error about a second process that joined as a rank that had joined already."""
    return (
        f"rank {member.rank} was started again ({member.host}, pid {member.pid}), by a launcher that restarts ranks or by a second launch "
        "with the same settings: a run cannot continue with another process; start all ranks again, and give a second launch its own "
        "MASTER_PORT"
    )


_LONGEST = 200  # characters of a phase's name in a rank's message


def ranks_apart(a: str, exchange_a: tuple[str, int], b: str, exchange_b: tuple[str, int]) -> str:
    """Return the error about ranks `a` and `b` at different exchanges of the control plane, each (phase, step)."""
    phase_a, step_a = exchange_a
    phase_b, step_b = exchange_b
    where_a = f"'{phase_a[:_LONGEST]}'"
    where_b = f"'{phase_b[:_LONGEST]}'"
    if phase_a == phase_b:
        where_a += f" (step {step_a})"
        where_b += f" (step {step_b})"
    return (
        f"{a} is at {where_a} while {b} is at {where_b}: an error occurred on one of them alone, or they were started with other arguments"
    )


_ZAP = "inproc://zeromq.zap.01"  # rfc.zeromq.org/spec/27
_NO_DESCRIPTOR = -1
_WATCHED = zmq.EVENT_LISTENING | zmq.EVENT_CLOSED | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_BACKLOG = 4096  # connections that the kernel queues: thousands of nodes connect at once, and silent connections use no descriptor
_URGENT = (Where, Here, Abort, Bye)
_MOST_EVENTS = 4096  # events handled in one call: a flood of connections must not delay the ranks


class ChildConnection(msgspec.Struct):
    """One connection from below."""

    name: bytes
    ranks: set[int] = msgspec.field(default_factory=set)  # those that use it
    also: set[int] = msgspec.field(default_factory=set)  # those that reply through it because their first connection does not deliver
    descriptor: int = _NO_DESCRIPTOR
    cut: float | None = None  # when it was lost; None while it works


class Downlinks:
    """One socket for all connections from below. It listens only after `bind`. Used by one thread."""

    def __init__(self, context: zmq.Context[Any], keys: Keys) -> None:
        self.router = context.socket(zmq.ROUTER)
        keys.secure_listener(self.router)
        self.router.setsockopt(zmq.BACKLOG, _BACKLOG)
        self._caller_key = keys.caller[0]
        self._authenticator = context.socket(zmq.REP)
        self._authenticator.setsockopt(zmq.LINGER, 0)
        self._authenticator.bind(_ZAP)
        self._monitor = self.router.get_monitor_socket(_WATCHED)
        self.children: dict[bytes, ChildConnection] = {}  # the connections of ranks, by the socket's identity of each
        self.cut: list[ChildConnection] = []  # those that were lost
        self.unknown = UnknownConnections()
        self.complete = False  # all ranks have joined: new connections are not from ranks
        self._by_descriptor: dict[int, ChildConnection] = {}

    def bind(self, place: str) -> None:
        """Listen at one more address. Raises zmq.ZMQError."""
        default_ms = self.router.getsockopt(zmq.HANDSHAKE_IVL)
        if place.startswith("tcp:"):  # ranks of this host may be slow, and no other host reaches their socket, so it keeps the default
            self.router.setsockopt(zmq.HANDSHAKE_IVL, round(self.unknown.handshake_s * 1000))
        try:
            self.router.bind(place)
        finally:
            self.router.setsockopt(zmq.HANDSHAKE_IVL, default_ms)
        self._handle_events()  # finds the listening descriptor; from now on the kernel keeps silent connections

    @property
    def endpoint(self) -> str:
        """Return the last bound address: "tcp://10.0.0.1:20000"; "" before the first `bind`."""
        return str(self.router.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode())

    @property
    def sockets(self) -> list[Any]:
        """Return the sockets to poll."""
        return [self.router, self._authenticator, self._monitor]

    def read(self, ready: Any) -> tuple[ChildConnection, Message] | None:
        """Return the message at a polled socket, with its connection; None for events and before a join. Raises Malformed."""
        self._handle_events()  # first: the kernel may reuse the descriptor of a closed connection for the one in a message
        if ready is self._authenticator:
            # ZeroMQ has verified that the peer has its key: reply whether it may join
            version, number, domain, *_, key = self._authenticator.recv_multipart()
            admitted = domain == DOMAIN and z85.encode(key) == self._caller_key
            status, reason = (b"200", b"OK") if admitted else (b"400", b"another key")
            self._authenticator.send_multipart([version, number, status, reason, b"", b""])
        if ready is not self.router:
            return None
        name, *pieces = self.router.recv_multipart(copy=False)
        descriptor = pieces[0].get(zmq.SRCFD) if pieces else _NO_DESCRIPTOR
        self.unknown.accept(descriptor)  # because the launch's key decrypted a message
        message = parsed([piece.buffer for piece in pieces])
        child = self.children.get(name.bytes)
        if child is None and not isinstance(message, Hello | Aside):
            return None
        child = child or self.children.setdefault(name.bytes, ChildConnection(name.bytes))
        child.descriptor = descriptor
        self._by_descriptor[descriptor] = child
        return child, message

    def send(self, child: ChildConnection, message: Message) -> None:
        """Send to one connection. If the connection is lost, the message is lost too."""
        self._send(child, frames(message))

    def broadcast(self, message: Message) -> None:
        """Send the same message to all. A second connection gets only urgent messages, which the first one may deliver too late."""
        pieces = [zmq.Frame(piece) for piece in frames(message)]  # encoded once for all connections
        for child in self.children.values():
            if not child.also or isinstance(message, _URGENT):
                self._send(child, pieces)

    def _send(self, child: ChildConnection, pieces: Sequence[Any]) -> None:
        with suppress(zmq.ZMQError):
            self.router.send_multipart([child.name, *pieces], copy=False)

    def with_rank(self, rank: int) -> ChildConnection | None:
        """Return the connection that a rank uses."""
        return next((child for child in self.children.values() if rank in child.ranks), None)

    def forget(self, child: ChildConnection) -> None:
        """Remove a connection that no rank uses any longer."""
        self.children.pop(child.name, None)
        if child in self.cut:
            self.cut.remove(child)
        if self._by_descriptor.get(child.descriptor) is child:
            del self._by_descriptor[child.descriptor]

    def refuse(self, child: ChildConnection, sentence: str, code: int) -> None:
        """End the process at the other end of a connection, and ignore it from now on."""
        self.send(child, Abort(sentence, code))
        self.forget(child)

    def _handle_events(self) -> None:
        for _ in range(_MOST_EVENTS):
            if not self._monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                return
            event, descriptor, endpoint = socket_event(self._monitor)
            if event == zmq.EVENT_LISTENING:
                if endpoint.startswith(b"tcp:"):
                    self.unknown.listeners.add(descriptor)
                    with suppress(OSError):
                        hold_silent(descriptor)
            elif event == zmq.EVENT_CLOSED:  # the end of a listener, for example if its port is in use on one of several addresses
                self.unknown.listeners.discard(descriptor)
            elif event == zmq.EVENT_ACCEPTED:
                self.unknown.add(descriptor, peer_of(descriptor))
                if self.complete:
                    self.unknown.stop_flood()
            elif event == zmq.EVENT_DISCONNECTED:
                self.unknown.close(descriptor)
                child = self._by_descriptor.pop(descriptor, None)
                if child:
                    child.descriptor = _NO_DESCRIPTOR
                    child.cut = time.monotonic()
                    self.cut.append(child)

    def close(self) -> None:
        """Send the queued messages within one second, and close the sockets."""
        self.router.disable_monitor()
        for socket in (self._monitor, self.router, self._authenticator):
            socket.close()
