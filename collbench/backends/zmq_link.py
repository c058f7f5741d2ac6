"""How two ranks join PAIR sockets: over an authenticated connection they agree where, and on a word that only they know."""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collbench.addresses import bracketed
from collbench.backends.messages import gone
from collbench.backends.socket_links import Link, buffers_of
from collbench.errors import RunFailed
from collbench.operations.cell import Cell

if TYPE_CHECKING:
    from collbench.control.members import Member
    from collbench.control.world import World

LEAST, MAJOR = (4, 1), 4  # ZMQ_HANDSHAKE_IVL, by which who says nothing is dropped, is of 4.1 (its zmq_setsockopt(3))
_PLACE = struct.Struct("!H16s")  # port, word
LINGER_MS = 1000  # for the last answer, once this end is done
_NEVER_MS = 2**31 - 1
_MOST_S = 10.0  # for two ranks that both are at it
_WAITING_BYTES = 64 << 20  # that ZeroMQ may hold at the receiver; else a window of large messages fills its memory
_REMEDY = "see whether a firewall lets TCP ports through between these hosts"


@dataclass(frozen=True)
class Window:
    """How many messages wait: to be sent (a whole window, and the answer), and to be received."""

    send: int
    receive: int


def window_of(cell: Cell) -> Window:
    """Twice what an iteration posts, since ZeroMQ tells a sender of room by halves of it: no send waits for a rank that sends itself."""
    posted = 2 * ((cell.window or 1) + 2)
    return Window(posted, max(2, min(posted, _WAITING_BYTES // max(1, cell.size_bytes))))


@dataclass(frozen=True)
class ZmqLink:
    """A PAIR socket to one other rank.

    beside   the connection over which the two met: closed where the other one is gone
    errors   what ZeroMQ's calls raise
    """

    peer: Member
    socket: Any
    beside: Link
    errors: type[Exception]
    tcp: Mapping[str, str]

    def explain(self, error: Exception) -> str:
        """What an error of ZeroMQ's says of the other rank: a deadline, or the library's own words."""
        import zmq

        if not isinstance(error, zmq.Again):
            return f"{error}, between here and {self.peer}"
        if _is_closed(self.beside):
            return gone(self.peer)
        why = "stopped, or the path drops packets; or raise --timeout"
        return f"no message came whole from {self.peer} for {self.beside.deadline_s:g} s: {why}"

    def facts(self) -> Mapping[str, str]:
        """Of the TCP connection below ZeroMQ: TCP_NODELAY, and its buffers in bytes."""
        return self.tcp

    def close(self) -> None:
        """Ends both connections. An answer may be on its way still: the other rank counts on it."""
        self.socket.close(linger=LINGER_MS)
        self.beside.close()


def joined(context: Any, world: World, beside: Link, window: Window) -> ZmqLink:
    """A PAIR socket joined with the other rank's. Both call; the higher rank binds. Raises RunFailed that says why not."""
    import zmq

    made = context.socket(zmq.PAIR)
    try:
        _set(made, window, min(_MOST_S, beside.deadline_s))
        first = _called(made, world, beside) if world.rank < beside.peer.rank else _answered(made, world, beside)
        made.sndtimeo = made.rcvtimeo = max(1, int(beside.deadline_s * 1000))
        return ZmqLink(beside.peer, made, beside, zmq.ZMQError, _tcp(first.get(zmq.SRCFD)))
    except (OSError, zmq.ZMQError) as error:
        made.close(linger=0)
        beside.close()
        raise RunFailed(f"{world.me} and {beside.peer} do not meet over ZeroMQ at {world.me.address} ({error}): {_REMEDY}") from error


def _set(made: Any, window: Window, patience_s: float) -> None:
    made.sndhwm, made.rcvhwm = window.send, window.receive
    made.sndtimeo = made.rcvtimeo = made.handshake_ivl = int(patience_s * 1000)
    made.reconnect_ivl = _NEVER_MS  # a connection that broke is told, and not mended; -1 would drop what came before the other end closed


def _answered(made: Any, world: World, beside: Link) -> Any:
    """The higher rank's end: binds, says where, hears the word and says it back."""
    made.ipv6 = ":" in world.me.address
    made.bind(f"tcp://{bracketed(world.me.address)}:*")
    port, word = int(made.last_endpoint.rpartition(b":")[2]), secrets.token_bytes(16)
    beside.sockets[0].sendall(_PLACE.pack(port, word))
    first = made.recv(copy=False)
    if first.bytes != word:
        raise ConnectionError("somebody else came first")
    made.send(word)
    return first


def _called(made: Any, world: World, beside: Link) -> Any:
    """The lower rank's end."""
    told = beside.sockets[0].recv(_PLACE.size, socket.MSG_WAITALL)
    if len(told) < _PLACE.size:
        raise ConnectionError(gone(beside.peer))
    port, word = _PLACE.unpack(told)
    made.ipv6 = ":" in beside.peer.address
    made.connect(f"tcp://{bracketed(beside.peer.address)}:{port}")
    made.send(word)
    first = made.recv(copy=False)
    if first.bytes != word:
        raise ConnectionError("what listens there is not this rank")
    return first


def _tcp(descriptor: int) -> Mapping[str, str]:
    """What the kernel says of the connection with this descriptor, which stays ZeroMQ's."""
    with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection:
        return {"tcp_nodelay": str(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)), **buffers_of(connection)}


def _is_closed(beside: Link) -> bool:
    try:
        return beside.sockets[0].recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
