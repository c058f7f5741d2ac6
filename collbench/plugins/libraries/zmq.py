"""ZeroMQ between the two ranks of a pair, as Python programs use it: PAIR sockets of pyzmq over TCP, without copies if possible.

The time includes Python's part of the calls, and the copy from ZeroMQ's memory into the receive buffer. A send returns before the bytes
have left. Therefore every operation on pairs ends with a reply of the other rank, which then has received them.
"""

from __future__ import annotations

import platform
import secrets
import socket
import struct
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from collbench.addresses import bracketed
from collbench.backends.backend import Available, Group, Settings, Unavailable
from collbench.backends.host import AnyBuffers
from collbench.backends.messages import MessageBinding, gone
from collbench.backends.socket import ConnectionMaker, Connections, LinkedBackend, buffers_of, path_facts
from collbench.backends.unavailable import DoesNotLoad, NotInstalled, UnknownVersion
from collbench.errors import RunFailed
from collbench.operations.case import Case
from collbench.operations.program import PythonCall

if TYPE_CHECKING:
    from collbench.control.members import Member
    from collbench.control.world import World


LEAST = (4, 1)  # ZMQ_HANDSHAKE_IVL, which drops silent peers, is new in 4.1 (its zmq_setsockopt(3))
MAJOR = 4
_PLACE = struct.Struct("!H16s")  # port, key
LINGER_MS = 1000  # to deliver the last reply after this end is done
_NEVER_MS = 2**31 - 1
_MOST_S = 10.0  # for a connection between two waiting ranks
_WAITING_BYTES = 64 << 20  # that ZeroMQ may queue at the receiver; a window of large messages would fill its memory
_LINK_REMEDY = "see whether a firewall lets TCP ports through between these hosts"


class QueueLimits(msgspec.Struct, frozen=True):
    """The maximum number of queued messages: to be sent (a whole window, and the reply), and received."""

    send: int
    receive: int


def window_of(case: Case) -> QueueLimits:
    """Return the limits. A sender may queue twice an iteration's messages: ZeroMQ reports free space in halves, so no send has to wait."""
    posted = 2 * ((case.window or 1) + 2)
    return QueueLimits(posted, max(2, min(posted, _WAITING_BYTES // max(1, case.size_bytes))))


class ZmqLink(msgspec.Struct, frozen=True):
    """A PAIR socket to one other rank.

    control_link  the connection over which the two ranks exchanged addresses; closed when the other rank ends
    errors   the exceptions of ZeroMQ's calls
    """

    peer: Member
    socket: Any
    control_link: Connections
    errors: type[Exception]
    tcp: Mapping[str, str]

    def explain(self, error: Exception) -> str:
        """Return what an error of ZeroMQ means for the other rank: a timeout, or the library's message."""
        import zmq

        if not isinstance(error, zmq.Again):
            return f"{error}, between here and {self.peer}"
        if _is_closed(self.control_link):
            return gone(self.peer)
        causes = "stopped, or the path drops packets; or raise --timeout"
        return f"no message came whole from {self.peer} for {self.control_link.deadline_s:g} s: {causes}"

    def facts(self) -> Mapping[str, str]:
        """Return facts of the TCP connection below ZeroMQ: TCP_NODELAY, and its buffers in bytes."""
        return self.tcp

    def close(self) -> None:
        """Close both connections. A reply that is still in transit is delivered."""
        self.socket.close(linger=LINGER_MS)
        self.control_link.close()


def joined(context: Any, world: World, control_link: Connections, window: QueueLimits) -> ZmqLink:
    """Return a PAIR socket connected to the other rank's. Both ranks must call it; the higher one binds. Raises RunFailed."""
    import zmq

    pair = context.socket(zmq.PAIR)
    try:
        pair.sndhwm = window.send
        pair.rcvhwm = window.receive
        pair.sndtimeo = pair.rcvtimeo = pair.handshake_ivl = int(min(_MOST_S, control_link.deadline_s) * 1000)
        # a broken connection is reported, not restored; -1 would drop data that came before the other end closed
        pair.reconnect_ivl = _NEVER_MS
        first = _called(pair, world, control_link) if world.rank < control_link.peer.rank else _answered(pair, world, control_link)
        pair.sndtimeo = pair.rcvtimeo = max(1, int(control_link.deadline_s * 1000))
        with socket.fromfd(first.get(zmq.SRCFD), socket.AF_INET, socket.SOCK_STREAM) as connection:  # ZeroMQ still owns the descriptor
            no_delay = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            settings = {"tcp_nodelay": str(no_delay), **buffers_of(connection)}
        return ZmqLink(control_link.peer, pair, control_link, zmq.ZMQError, settings)
    except (OSError, zmq.ZMQError) as error:
        pair.close(linger=0)
        control_link.close()
        raise RunFailed(
            f"{world.me} and {control_link.peer} cannot connect over ZeroMQ at {world.me.address} ({error}): {_LINK_REMEDY}",
            rank=world.rank,
        ) from error


def _answered(pair: Any, world: World, control_link: Connections) -> Any:
    """Connect the higher rank's end: bind, send the address and a key, receive the key. Return that message."""
    pair.ipv6 = ":" in world.me.address
    pair.bind(f"tcp://{bracketed(world.me.address)}:*")
    port = int(pair.last_endpoint.rpartition(b":")[2])
    key = secrets.token_bytes(16)
    control_link.sockets[0].sendall(_PLACE.pack(port, key))
    first = pair.recv(copy=False)
    if first.bytes != key:
        raise ConnectionError("another process connected first")
    pair.send(key)
    return first


def _called(pair: Any, world: World, control_link: Connections) -> Any:
    """Connect the lower rank's end: connect to the received address and return the key. Return the reply."""
    data = control_link.sockets[0].recv(_PLACE.size, socket.MSG_WAITALL)
    if len(data) < _PLACE.size:
        raise ConnectionError(gone(control_link.peer))
    port, key = _PLACE.unpack(data)
    pair.ipv6 = ":" in control_link.peer.address
    pair.connect(f"tcp://{bracketed(control_link.peer.address)}:{port}")
    pair.send(key)
    first = pair.recv(copy=False)
    if first.bytes != key:
        raise ConnectionError("another process listens at this address")
    return first


def _is_closed(control_link: Connections) -> bool:
    try:
        return control_link.sockets[0].recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


_REMEDY = "pip install -U pyzmq (its wheel includes libzmq)"


class ZmqMessages:
    """The calls of a pair over a link. Sent memory stays mapped until ZeroMQ has released it, since ZeroMQ would abort the process."""

    def __init__(self, link: ZmqLink, keep: object) -> None:
        self._link = link
        self._keep = keep
        self._posted: list[memoryview] = []

    def call(self, name: str, *address_and_size: int) -> PythonCall:
        """Return a call of the method of that name."""
        method = getattr(self, f"_{name}")
        return PythonCall(f"zmq {name}", partial(method, self._part(*address_and_size)) if address_and_size else method)

    def _part(self, address: int, size: int) -> memoryview:
        import ctypes

        memory = (ctypes.c_char * size).from_address(address)
        memory.keep = self._keep  # type: ignore[attr-defined]
        return memoryview(memory).cast("B")

    def _send(self, part: memoryview) -> None:
        try:
            self._link.socket.send(part, copy=False)
        except self._link.errors as error:
            raise OSError(self._link.explain(error)) from error

    _post_send = _send

    def _receive(self, part: memoryview) -> None:
        try:
            message = self._link.socket.recv(copy=False)
        except self._link.errors as error:
            raise OSError(self._link.explain(error)) from error
        if len(message) != len(part):
            raise OSError(f"received {len(message)} bytes from {self._link.peer}, expected {len(part)}")
        part[:] = message.buffer

    def _post_receive(self, part: memoryview) -> None:
        self._posted.append(part)

    def _waitall(self) -> None:
        posted = self._posted
        self._posted = []
        for part in posted:
            self._receive(part)


class ZmqBackend(LinkedBackend):
    """The backend zmq: point-to-point over PAIR sockets, one connection per pair, in a separate ZeroMQ context."""

    name = api = "zmq"
    flags = ("python_messages",)
    _context: Any = None

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Return whether pyzmq loads, with a supported libzmq."""
        if find_spec("zmq") is None:
            return Unavailable.because(NotInstalled("pyzmq", "pip install pyzmq"))
        try:
            import zmq
        except Exception as error:  # any error: it is installed but broken
            return Unavailable.because(DoesNotLoad("pyzmq", f"{type(error).__name__}: {error}", "pip install --force-reinstall pyzmq"))
        supported = f"{'.'.join(map(str, LEAST))} and newer, below {MAJOR + 1}"
        if zmq.zmq_version_info()[0] > MAJOR:
            return Unavailable.because(UnknownVersion("libzmq", zmq.zmq_version(), supported, "use an older pyzmq, or a newer collbench"))
        if zmq.zmq_version_info() < LEAST:
            return Unavailable.because(UnknownVersion("libzmq", zmq.zmq_version(), supported, _REMEDY))
        return Available(f"libzmq {zmq.zmq_version()} by pyzmq {zmq.__version__}, between pairs of ranks")

    def open(self, world: World, settings: Settings) -> None:
        """Listen for the connections of pairs. Raises RunFailed if a rank cannot listen at its address."""
        import zmq

        self.rank, self.ranks = world.rank, world.size
        self._world = world
        self._links = ConnectionMaker(world, settings.timeout_s)
        self._context = zmq.Context()
        threads = self._context.get(zmq.IO_THREADS)
        self._about = {
            "libzmq": zmq.zmq_version(), "pyzmq": zmq.__version__, "zmq_io_threads": str(threads),
            "copied_below_bytes": str(zmq.COPY_THRESHOLD), "kernel": platform.release(), **path_facts(world.me.address),
        }  # fmt: skip

    def connect(self, peer: int, case: Case) -> ZmqLink:
        """Return a PAIR socket. Its address is sent over an authenticated connection (`ConnectionMaker`)."""
        return joined(self._context, self._world, self._links.connect(peer, 1), window_of(case))

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> MessageBinding:
        """Return the binding with addresses, and calls over the pair's connection."""
        return MessageBinding(ZmqMessages(group.handle, buffers), buffers, slot)

    def close(self) -> None:
        """Close all connections, and end ZeroMQ's thread, which might otherwise read freed memory."""
        super().close()
        if self._context:
            self._context.destroy(linger=LINGER_MS)
