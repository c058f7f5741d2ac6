"""Point-to-point backends over their own connections, and plain TCP. A peer must send the key that the control plane exchanged."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import platform
import secrets
import select
import socket
import struct
import time
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from collbench.addresses import listen_at, tcp_socket
from collbench.backends.backend import Available, Group, Settings, Unavailable
from collbench.backends.host import AnyBuffers, HostBackend
from collbench.backends.messages import MessageBinding, Messages, gone
from collbench.errors import RunFailed
from collbench.machine.interfaces import interface_with
from collbench.operations.case import Case
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import Call, NativeCall, Program, PythonCall
from collbench.operations.sweep import MOST_STREAMS
from collbench.operations.unsupported import LimitExceeded, PairsOnly

if TYPE_CHECKING:
    from collbench.control.members import Member
    from collbench.control.world import World

_KEY_BYTES = 16
_GREETING = struct.Struct("!16s4I")  # key of the receiver; source rank, target rank, number of the attempt, stream
_GREETING_S = 2.0  # for a greeting after the connection; ranks send it immediately
_MOST_PATIENCE_S = 10.0  # for a connection between two waiting ranks: one that a firewall drops must not use up the deadline
_BEFORE_OTHERS = 0.9  # of the deadline: this rank can name the other one, so it should report before the watchdog ends the process


class Connections(msgspec.Struct, frozen=True):
    """The connections to one other rank, in the order of their streams. Calls block for at most `deadline_s` seconds."""

    peer: Member
    sockets: tuple[socket.socket, ...]
    deadline_s: float

    def facts(self) -> dict[str, str]:
        """Return the current buffer sizes of the first stream, in bytes."""
        return buffers_of(self.sockets[0])

    def close(self) -> None:
        """Close every stream."""
        _close(self.sockets)


class _StreamSet(msgspec.Struct, frozen=True):
    """The streams from rank `source` to rank `target`. `turn` counts attempts, so that connections of an earlier one are rejected."""

    source: int
    target: int
    turn: int
    streams: int

    def greetings(self, key: bytes) -> list[bytes]:
        """Return the greeting of each stream for the rank with this key."""
        return [_GREETING.pack(key, self.source, self.target, self.turn, stream) for stream in range(self.streams)]


@dataclass
class ConnectionMaker:
    """Creates connections to other ranks. All ranks create one together.

    Each listens at its own address, on a port that the kernel chooses. Raises RunFailed on all ranks if a rank cannot listen.
    """

    world: World
    timeout_s: float
    _turns: Counter[int] = field(default_factory=Counter)
    _failed: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._key = secrets.token_bytes(_KEY_BYTES)
        address = self.world.me.address
        self.listener: socket.socket | None = None
        reply: dict[str, Any] = {"port": 0, "key": self._key.hex(), "wrong": ""}
        try:
            self.listener = listen_at(address, 2 * MOST_STREAMS)
            reply["port"] = self.listener.getsockname()[1]
        except OSError as error:
            reply["wrong"] = f"{self.world.me} cannot listen at {address} ({error}): see whether its host has this address"
        replies = self.world.allgather(reply, "listening for sockets")
        for reply in replies:
            if reply["wrong"]:
                self.close()
                raise RunFailed(reply["wrong"])
        self._ports = [reply["port"] for reply in replies]
        self._keys = [bytes.fromhex(reply["key"]) for reply in replies]

    def connect(self, peer: int, streams: int) -> Connections:
        """Return a connection of `streams` streams. Both ranks must call it: the lower one connects, the other one accepts.

        Raises RunFailed with the reason, immediately if an earlier attempt to reach this peer failed.
        """
        if peer in self._failed:
            raise RunFailed(self._failed[peer])
        me = self.world.rank
        self._turns[peer] += 1
        stream_set = _StreamSet(min(me, peer), max(me, peer), self._turns[peer], streams)
        try:
            sockets = self._connected(stream_set) if stream_set.source == me else self._accepted(stream_set)
        except RunFailed as error:
            self._failed[peer] = str(error)
            raise
        deadline_s = _BEFORE_OTHERS * self.timeout_s
        for connection in sockets:
            _settle(connection, deadline_s)
        return Connections(self.world.members[peer], tuple(sockets), deadline_s)

    def close(self) -> None:
        """Stop listening."""
        if self.listener:
            self.listener.close()

    @property
    def _patience_s(self) -> float:
        return min(_MOST_PATIENCE_S, _BEFORE_OTHERS * self.timeout_s)

    def _connected(self, stream_set: _StreamSet) -> list[socket.socket]:
        """Return the lower rank's sockets: each sends a greeting, and gets a reply once all have connected."""
        end = time.monotonic() + self._patience_s
        target = self.world.members[stream_set.target]
        port = self._ports[stream_set.target]
        sockets: list[socket.socket] = []
        try:
            for greeting in stream_set.greetings(self._keys[stream_set.target]):
                sockets.append(socket.create_connection((target.address, port), timeout=_seconds_until(end)))
                sockets[-1].sendall(greeting)
            for connection, answer in zip(sockets, stream_set.greetings(self._key), strict=True):
                if _greeting_of(connection, end) != answer:
                    raise ConnectionError("the process at this address rejected this rank")
        except OSError as error:
            _close(sockets)
            remedy = "see whether a firewall lets TCP ports through between these hosts"
            raise RunFailed(
                f"{self.world.me} cannot connect to {target} at {target.address} port {port} ({error}): {remedy}", rank=self.world.rank
            ) from error
        return sockets

    def _accepted(self, stream_set: _StreamSet) -> list[socket.socket]:
        """Return the higher rank's sockets, one per greeting. Connections without a valid greeting are closed."""
        expected_greetings = stream_set.greetings(self._key)
        accepted: dict[bytes, socket.socket] = {}
        end = time.monotonic() + self._patience_s
        try:
            while len(accepted) < stream_set.streams:
                connection, greeting = self._next(end)
                if greeting not in expected_greetings or greeting in accepted:
                    connection.close()
                else:
                    accepted[greeting] = connection
            for greeting, answer in zip(expected_greetings, stream_set.greetings(self._keys[stream_set.source]), strict=True):
                accepted[greeting].sendall(answer)
        except OSError as error:
            _close(accepted.values())
            source = self.world.members[stream_set.source]
            came = f"{len(accepted)} of {stream_set.streams} streams came within {self._patience_s:g} s"
            raise RunFailed(
                f"{source} did not connect to {self.world.me} at {self.world.me.address} ({came}: {error})", rank=self.world.rank
            ) from error
        return [accepted[greeting] for greeting in expected_greetings]

    def _next(self, end: float) -> tuple[socket.socket, bytes]:
        """Return the next connection and its greeting. Raises OSError if none arrives in time."""
        assert self.listener
        self.listener.settimeout(_seconds_until(end))
        connection, _ = self.listener.accept()
        try:
            return connection, _greeting_of(connection, min(end, time.monotonic() + _GREETING_S))
        except OSError:
            return connection, b""


def buffers_of(connection: socket.socket) -> dict[str, str]:
    """Return the buffer sizes of a connection, in bytes."""
    options = {"send_buffer_bytes": socket.SO_SNDBUF, "receive_buffer_bytes": socket.SO_RCVBUF}
    return {name: str(connection.getsockopt(socket.SOL_SOCKET, option)) for name, option in options.items()}


def _seconds_until(end: float) -> float:
    """Return the seconds until `end`, always above 0, since 0 would mean not to wait."""
    return max(0.001, end - time.monotonic())


def _greeting_of(connection: socket.socket, end: float) -> bytes:
    connection.settimeout(_seconds_until(end))
    return connection.recv(_GREETING.size, socket.MSG_WAITALL)


def _settle(connection: socket.socket, deadline_s: float) -> None:
    """Make calls block with the kernel's timeout, as in a plain program, and send small messages immediately."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(deadline_s), int(deadline_s % 1 * 1e6)))


def _close(connections: Iterable[socket.socket]) -> None:
    for connection in connections:
        connection.close()


# The base of backends that connect the two ranks of a pair themselves.


class LinkedBackend(HostBackend):
    """The base of point-to-point backends with their own connections. A pair's connection exists as long as its test case.

    A derived backend sets `_links` and `_about` in `open`, and implements the connection. `_about` is the result of `versions`
    before any connection.
    """

    local_path = "loopback"
    passes_messages = True
    _open: tuple[Any, ...] = ()  # a step of several exchanges has a connection for each
    _links: ConnectionMaker
    _about: dict[str, str]

    @abstractmethod
    def connect(self, peer: int, case: Case) -> Any:
        """Return a connection to that rank, which must call it too. Raises RunFailed with the reason.

        It has `close()`, and `facts()`: a mapping of texts for `versions`.
        """

    def communicator(self, ranks: Sequence[int]) -> Any:
        """Return None: connections are created per pair."""
        return None

    def pair(self, whole: Group | None, ranks: Sequence[int], case: Case) -> Group | None:
        """Connect the two ranks. Raises RunFailed with the reason."""
        pair = super().pair(whole, ranks, case)
        if pair is None:
            return None
        link = self.connect(next(rank for rank in ranks if rank != self.rank), case)
        self._open = (*self._open, link)
        return dataclasses.replace(pair, handle=link)

    def release(self, group: Group) -> None:
        """Close the pair's connection, and keep its facts for `versions`."""
        link = group.handle
        if any(open_link is link for open_link in self._open):
            self._about |= link.facts()
            self._hang_up(link)

    def supports(self, operation: Operation, case: Case) -> Reason | None:
        """Return why the case is not supported: only pairs of ranks are."""
        return None if operation.pair else PairsOnly(self.name)

    def versions(self) -> Mapping[str, str]:
        """Return information about the library and the path, and about the last case's connection."""
        return dict(self._about)

    def close(self) -> None:
        """Close all connections, also those of pairs that a failure of another rank left unreleased."""
        for link in self._open:
            self._hang_up(link)
        self._links.close()

    def _hang_up(self, link: Any) -> None:
        self._open = tuple(open_link for open_link in self._open if open_link is not link)
        link.close()


# Messages over plain TCP: calls into sockets.c, or the same in Python if it was not built.

_NATIVE = Path(__file__).parents[1] / "native" / "_loop.so"  # one shared object contains all C code of the project
_CLOSED, _LATE = -1, -2  # return codes of sockets.c
_LONGEST_MS = 2**31 - 1  # the longest timeout of poll
_Message = tuple[int, int, int]  # POLLOUT or POLLIN, address, bytes


class _MessageStruct(ctypes.Structure):
    _fields_ = [("direction", ctypes.c_int64), ("at", ctypes.c_void_p), ("bytes", ctypes.c_uint64)]


class _PairStruct(ctypes.Structure):
    _fields_ = [
        ("streams", ctypes.c_int64),
        ("sockets", ctypes.POINTER(ctypes.c_int32)),
        ("deadline_ms", ctypes.c_int64),
        ("room", ctypes.c_int64),
        ("posted", ctypes.c_int64),
        ("messages", ctypes.POINTER(_MessageStruct)),
    ]


@cache
def native() -> ctypes.CDLL | None:
    """The shared object with sockets.c, or None if it was not built."""
    try:
        return ctypes.CDLL(str(_NATIVE))
    except OSError:
        return None


def explain(link: Connections, code: int) -> str:
    """Return the text of a return code of sockets.c, with the name of the other rank."""
    if code == _CLOSED:
        return gone(link.peer)
    if code == _LATE:
        return f"no byte went to or came from {link.peer} for {link.deadline_s:g} s: stopped, or the path drops packets; or raise --timeout"
    return f"{os.strerror(code) if code > 0 else f'code {code}'}, between here and {link.peer}"


class NativeMessages:
    """Calls into sockets.c over a connection, with space for `room` posted messages."""

    def __init__(self, library: ctypes.CDLL, link: Connections, room: int) -> None:
        self._library = library
        self._link = link  # its sockets must stay open
        descriptors = [connection.fileno() for connection in link.sockets]
        sockets = (ctypes.c_int32 * len(descriptors))(*descriptors)
        self._struct = _PairStruct(len(descriptors), sockets, _deadline_ms(link), room, 0, (_MessageStruct * room)())

    def call(self, kind: str, /, *words: int) -> Call:
        """Return a call of the function in sockets.c."""
        pointer = ctypes.cast(getattr(self._library, f"collbench_socket_{kind}"), ctypes.c_void_p).value or 0
        return NativeCall(f"socket {kind}", pointer, (ctypes.addressof(self._struct), *words))


class PythonMessages:
    """The calls in Python, for machines without a C compiler. They always poll: 10 to 15 µs more per small message and stream."""

    def __init__(self, link: Connections) -> None:
        self._link = link
        self._posted: list[_Message] = []

    def call(self, kind: str, /, *words: int) -> Call:
        """Return a call of the method of that name."""
        return PythonCall(f"socket {kind}", partial(getattr(self, f"_{kind}"), *words))

    def _send(self, at: int, size: int) -> None:
        self._move([(select.POLLOUT, at, size)])

    def _receive(self, at: int, size: int) -> None:
        self._move([(select.POLLIN, at, size)])

    def _post_send(self, at: int, size: int) -> None:
        self._posted.append((select.POLLOUT, at, size))

    def _post_receive(self, at: int, size: int) -> None:
        self._posted.append((select.POLLIN, at, size))

    def _waitall(self) -> None:
        messages = self._posted
        self._posted = []
        self._move(messages)

    def _move(self, messages: Sequence[_Message]) -> None:
        """Transfer all messages. Raises OSError that names the other rank."""
        waiting = select.poll()
        streams = {}  # by descriptor: the connection, and by direction the parts that it still has to move
        for stream, connection in enumerate(self._link.sockets):
            parts = {way: deque(_parts(messages, way, stream, len(self._link.sockets))) for way in (select.POLLOUT, select.POLLIN)}
            streams[connection.fileno()] = connection, {way: queue for way, queue in parts.items() if queue}
        while streams := {number: pending for number, pending in streams.items() if pending[1]}:
            for number, (_, ways) in streams.items():
                waiting.register(number, sum(ways))
            ready = waiting.poll(_deadline_ms(self._link))
            if not ready:
                raise TimeoutError(explain(self._link, _LATE))
            for number, event in ready:
                self._serve(*streams[number], event)
                waiting.unregister(number)

    def _serve(self, connection: socket.socket, ways: dict[int, deque[memoryview]], event: int) -> None:
        for way in [way for way in ways if event & (way | select.POLLERR | select.POLLHUP)]:
            part = ways[way].popleft()
            part = part[self._moved(connection, way, part) :]
            if part:
                ways[way].appendleft(part)
            if not ways[way]:
                del ways[way]

    def _moved(self, connection: socket.socket, way: int, part: memoryview) -> int:
        """Return how many bytes the socket accepts or delivers now."""
        flags = socket.MSG_DONTWAIT
        try:
            moved = connection.send(part, flags) if way == select.POLLOUT else connection.recv_into(part, 0, flags)
        except BlockingIOError:
            return 0
        except (BrokenPipeError, ConnectionResetError):
            moved = 0
        except OSError as error:
            raise OSError(explain(self._link, error.errno or 0)) from error
        if not moved:
            raise ConnectionError(explain(self._link, _CLOSED))
        return moved


def messages_over(link: Connections, room: int) -> Messages:
    """Return the calls of a pair, with space for `room` posted messages: native if sockets.c was built."""
    library = native()
    return NativeMessages(library, link, room) if library else PythonMessages(link)


def _deadline_ms(link: Connections) -> int:
    return min(max(1, int(link.deadline_s * 1000)), _LONGEST_MS)


def _parts(messages: Sequence[_Message], way: int, stream: int, streams: int) -> Iterator[memoryview]:
    """Yield the parts of the messages in one direction that a stream carries, divided as in sockets.c."""
    for direction, at, size in messages:
        begin = size * stream // streams
        end = size * (stream + 1) // streams
        if direction == way and end > begin:
            yield memoryview((ctypes.c_char * (end - begin)).from_address(at + begin)).cast("B")


# Plain TCP between the two ranks of a pair, without any library: the reference for what the link and the kernel can do.
#
# One stream is configured as in a plain program: TCP_NODELAY, buffers that the kernel enlarges, and blocking calls. A ping-pong of 8 B
# over the loopback of an idle machine took 31 µs. It took 33 µs with non-blocking calls and poll, and 4 µs with spinning calls, which
# few programs use.
#
# The rank's one thread serves several streams. A message is divided evenly, so it is complete when its slowest stream is. If the CPU is
# the limit, several streams are not faster than one. Messages of 4 MiB over loopback on two cores: 4.0 GB/s with one stream, 3.4 GB/s
# with four streams, and 4.1 GB/s with four streams and a thread for each. Several streams help on links, where window, loss or path limit
# one stream.

_NAME_BYTES = 16  # TCP_CA_NAME_MAX of the kernel


class SocketBackend(LinkedBackend):
    """The backend socket: point-to-point over TCP, one or several streams per pair. The streams exist as long as the test case."""

    name = api = "socket"
    takes_streams = True

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Return Available, always."""
        return Available(f"TCP of {platform.system()} {platform.release()}, between pairs of ranks")

    def open(self, world: World, settings: Settings) -> None:
        """Listen, and exchange addresses with the other ranks. Raises RunFailed if a rank cannot listen at its address."""
        self.rank = world.rank
        self.ranks = world.size
        self.flags = () if native() else ("python_messages",)
        self._links = ConnectionMaker(world, settings.timeout_s)
        self._about = {"kernel": platform.release(), **path_facts(world.me.address)}

    def connect(self, peer: int, case: Case) -> Connections:
        """Return a connection with the case's number of streams."""
        return self._links.connect(peer, case.streams or 1)

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> MessageBinding:
        """Return the binding with addresses, and calls over the pair's connection."""
        return MessageBinding(messages_over(group.handle, 2 * (buffers.case.window or 1)), buffers, slot)

    def bind(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> Program:
        """Return the program of the operation's messages. Errors name the other rank."""
        return replace(super().bind(operation, case, group, buffers), explain=partial(explain, group.handle))

    def supports(self, operation: Operation, case: Case) -> Reason | None:
        """Return why the case is not supported: only pairs are, with at most as many streams as one thread can serve."""
        if (case.streams or 1) > MOST_STREAMS:
            return LimitExceeded("socket", "streams between two ranks", MOST_STREAMS)
        return super().supports(operation, case)


def path_facts(address: str) -> dict[str, str]:
    """Return information about TCP from this address of the host, before any connection."""
    with tcp_socket(address) as fresh:
        congestion = fresh.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES).split(b"\0")[0].decode("ascii", "replace")
    limits = {name: _limits(name) for name in ("tcp_wmem", "tcp_rmem")}
    return {"congestion_control": congestion, "interface": interface_with(address), "address": address, **limits}


def _limits(name: str) -> str:
    """Return the minimum, default and maximum size of a socket's buffer in bytes: "4096 131072 6291456"."""
    try:
        return " ".join(Path(f"/proc/sys/net/ipv4/{name}").read_text(encoding="ascii").split())
    except OSError:
        return "unknown"
