"""Connections of the ranks below a rank, the bundling of their messages, and the open-file limit.

These ranks are the others of this node, and at rank 0 the first rank of each other node.

libzmq's monitor reports the file descriptor of a connection when it is accepted and when it is closed. Nothing else
identifies a connection: a failed handshake reports the listener's own address, and garbage before a handshake causes no
event. Therefore a rejected peer is a connection that closed before the launch's key decrypted a message from it. A
message also carries the descriptor of its connection.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import zmq
from zmq.utils import z85

from collbench.control import security
from collbench.control.members import Member
from collbench.control.security import DOMAIN, Keys, PendingConnections, RejectedPeers, is_remote, peer_of, socket_event
from collbench.control.wire import Abort, Aside, Bye, Entry, Hello, Here, Message, Where, frames, parsed
from collbench.errors import RunFailed, UsageError

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


def ranks_apart(name: str, at: tuple[str, int], other: str, other_at: tuple[str, int]) -> str:
    """Return the error about two ranks at different exchanges of the control plane, or at different steps of exchanges with one name."""
    phase, step = at
    other_phase, other_step = other_at
    where = f"'{phase[:_LONGEST]}'"
    other_where = f"'{other_phase[:_LONGEST]}'"
    if phase == other_phase:
        where += f" (step {step})"
        other_where += f" (step {other_step})"
    return (
        f"{name} is at {where} while {other} is at {other_where}: "
        "an error occurred on one of them alone, or they were started with other arguments"
    )


# The open-file limit of this process: rank 0 has a connection to each node, and other programs may connect.

_WANTED_FILES = 65536  # more than one address can open to one port
_RESERVE = 256  # for libraries and the run folder
_FULL = (errno.EMFILE, errno.ENFILE)


def allow_connections(count: int) -> int:
    """Raise this process's soft limit of open files. Return how many pending connections fit beside `count` known ones.

    Raises UsageError if the hard limit is too low for `count`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max(_WANTED_FILES, count + 4 * _RESERVE)
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    if soft == resource.RLIM_INFINITY:
        return _WANTED_FILES
    if soft < count + _RESERVE:
        raise UsageError(
            f"rank 0 needs a connection to each of {count} nodes, but this host allows a process only {hard} open files: "
            "raise the hard limit (ulimit -Hn, or LimitNOFILE= of the service that starts the ranks)"
        )
    opened = _RESERVE
    with suppress(OSError):
        opened = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only
    return max(16, (soft - count - opened - _RESERVE) // 2)  # half, since as many may wait in the kernel's queue


def out_of_files(error: BaseException) -> RunFailed | None:
    """Return the error to report if `error` means that no more files can be opened; None for any other error."""
    number = getattr(error, "errno", None)
    if number not in _FULL:
        return None
    if number == errno.ENFILE:
        return RunFailed("this host has no free file descriptors (ENFILE): end the processes that hold them, or raise fs.file-max")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    count = 0
    for descriptor in range(limit):  # /proc cannot be listed when no more files can be opened
        with suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")  # noqa: PTH115 - as text
    return RunFailed(
        f"this process has reached its limit of {limit} open files ({count} are connections): raise it (ulimit -n, or "
        "LimitNOFILE= of the service that starts the ranks); if other programs made the connections, find out which connect to this host"
    )


_ZAP = "inproc://zeromq.zap.01"  # rfc.zeromq.org/spec/27
_NO_DESCRIPTOR = -1
_WATCHED = zmq.EVENT_LISTENING | zmq.EVENT_CLOSED | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_MORE_OF_SOURCE = 64  # pending connections from one address in addition to its ranks: a rank that is dropped connects again
_BACKLOG = 4096  # connections that the kernel queues: thousands of nodes connect at once, and silent connections use no descriptor
_HANDSHAKE_S = 2.0  # an unfinished handshake from another host is dropped after that
_FOR_EACH_S = 0.001  # added to it for each rank: thousands connect at once, and a handshake takes a third of it
_SLOW_SHARE = 0.9  # of the handshake's time limit: a connection that closed later was dropped because of it
_URGENT = (Where, Here, Abort, Bye)
_AT_ONCE = 4096  # events handled in one call: a flood of connections must not delay the ranks


@dataclass
class ChildConnection:
    """One connection from below: the ranks that use it, and when it was lost (None: it works).

    also    ranks that reply through it because their first connection does not deliver
    """

    name: bytes
    ranks: set[int] = field(default_factory=set)
    also: set[int] = field(default_factory=set)
    descriptor: int = _NO_DESCRIPTOR
    cut: float | None = None


class Downlinks:
    """One socket for all connections from below. Used by one thread.

    children    the connections of ranks, by the socket's identity of each
    cut         the connections that were lost
    rejected    the connections that were refused
    port        its port for other hosts, None if it listens only on this host
    complete    all ranks have joined: new connections are not from ranks
    """

    def __init__(self, context: zmq.Context[Any], keys: Keys) -> None:
        self.router = context.socket(zmq.ROUTER)
        keys.secure_listener(self.router)
        self._caller = keys.caller[0]
        self._door = context.socket(zmq.REP)
        self._door.setsockopt(zmq.LINGER, 0)
        self._door.bind(_ZAP)
        self._monitor = self.router.get_monitor_socket(_WATCHED)
        self.children: dict[bytes, ChildConnection] = {}
        self.cut: list[ChildConnection] = []
        self.rejected = RejectedPeers()
        self.port: int | None = None
        self.complete = False
        self.pending = PendingConnections()
        self.rejected.held_back = self.pending.held_back
        self._since: dict[int, float] = {}  # when a pending connection was accepted
        self._handshake_s = _HANDSHAKE_S
        self._at: dict[int, ChildConnection] = {}

    def expect_ranks(self, count: int, most_unknown: int) -> None:
        """Set the limits for a launch of `count` ranks, which may all come from one address. Call it before `bind`."""
        self._handshake_s = _HANDSHAKE_S + _FOR_EACH_S * count
        self.pending.most = most_unknown
        self.pending.most_of_source = min(most_unknown, count + _MORE_OF_SOURCE)
        self.router.setsockopt(zmq.BACKLOG, _BACKLOG)

    def bind(self, place: str) -> None:
        """Listen at one more address. Raises zmq.ZMQError."""
        default_ms = self.router.getsockopt(zmq.HANDSHAKE_IVL)
        if place.startswith("tcp:"):  # ranks of this host may be slow, and no other host reaches their socket, so it keeps the default
            self.router.setsockopt(zmq.HANDSHAKE_IVL, round(self._handshake_s * 1000))
        try:
            self.router.bind(place)
        finally:
            self.router.setsockopt(zmq.HANDSHAKE_IVL, default_ms)
        self._events()  # finds the listening descriptor; from now on the kernel keeps silent connections

    @property
    def endpoint(self) -> str:
        """Return the last bound address: "tcp://10.0.0.1:20000"; "" before the first `bind`."""
        return str(self.router.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode())

    @property
    def sockets(self) -> list[Any]:
        """Return the sockets to poll."""
        return [self.router, self._door, self._monitor]

    def read(self, ready: Any) -> tuple[ChildConnection, Message] | None:
        """Return the message at a polled socket, with its connection; None for events, and for messages before a join.

        Raises Malformed for an invalid message, though its sender has the launch's key.
        """
        self._events()  # first: the kernel may reuse the descriptor of a closed connection for the one in a message
        if ready is self._door:
            # ZeroMQ has verified that the peer has its key: reply whether it may join
            version, number, domain, *_, key = self._door.recv_multipart()
            admitted = domain == DOMAIN and z85.encode(key) == self._caller
            status, reason = (b"200", b"OK") if admitted else (b"400", b"another key")
            self._door.send_multipart([version, number, status, reason, b"", b""])
        if ready is not self.router:
            return None
        name, *pieces = self.router.recv_multipart(copy=False)
        descriptor = pieces[0].get(zmq.SRCFD) if pieces else _NO_DESCRIPTOR
        # the launch's own connection, because its key decrypted a message
        if descriptor in self.pending:
            address = self.pending.remove(descriptor)
            self.rejected.members |= {address} if address else set()
        message = parsed([piece.buffer for piece in pieces])
        child = self.children.get(name.bytes)
        if child is None and not isinstance(message, Hello | Aside):
            return None
        child = child or self.children.setdefault(name.bytes, ChildConnection(name.bytes))
        child.descriptor = descriptor
        self._at[descriptor] = child
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
        if self._at.get(child.descriptor) is child:
            del self._at[child.descriptor]

    def refuse(self, child: ChildConnection, sentence: str, code: int) -> None:
        """End the process at the other end of a connection, and ignore it from now on."""
        self.send(child, Abort(sentence, code))
        self.forget(child)

    def _events(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                return
            event, descriptor, endpoint = socket_event(self._monitor)
            if event == zmq.EVENT_LISTENING:
                if endpoint.startswith(b"tcp:"):
                    self.pending.listeners.add(descriptor)
                    with suppress(OSError):
                        security.hold_silent(descriptor)
            elif event == zmq.EVENT_CLOSED:  # the end of a listener, for example if its port is in use on one of several addresses
                self.pending.listeners.discard(descriptor)
            elif event == zmq.EVENT_ACCEPTED:
                self._since[descriptor] = time.monotonic()
                self.pending.add(descriptor, peer_of(descriptor))
                if self.complete and self.pending.listeners:
                    self.rejected.flooded(len(self.pending), self.pending.listeners)
                    if self.rejected.deaf:  # permanently, so no limit opens it again
                        self.pending.listeners.clear()
            elif event == zmq.EVENT_DISCONNECTED:
                self._closed(descriptor)

    def _closed(self, descriptor: int) -> None:
        lasted_s = time.monotonic() - self._since.pop(descriptor, 0.0)
        if descriptor in self.pending:
            address = self.pending.remove(descriptor)
            if address and is_remote(address) and lasted_s >= _SLOW_SHARE * self._handshake_s:
                self.rejected.note_slow(address)
            else:
                self.rejected.note(address, self.port)
        child = self._at.pop(descriptor, None)
        if child:
            child.descriptor = _NO_DESCRIPTOR
            child.cut = time.monotonic()
            self.cut.append(child)

    def close(self) -> None:
        """Send the queued messages within one second, and close the sockets."""
        self.router.disable_monitor()
        for socket in (self._monitor, self.router, self._door):
            socket.close()
