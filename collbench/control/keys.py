"""The keys of a launch on its sockets: ZeroMQ's CURVE encrypts and authenticates every message, and refuses a replayed one.

Both ends make the same two key pairs from the launch's secret. The coordinator's public key is never sent, and without it nobody can
even begin to speak; of those who can, only the holder of the other pair is let in. Source: rfc.zeromq.org/spec/25 and 26.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils import z85

from collbench.control.message import PIECE_BYTES
from collbench.control.secret import Secret

_HANDSHAKE_MS = 10_000  # after which a connection without a finished handshake is dropped
_LINGER_MS = 1000
_AROUND_BYTES = 1024  # CURVE's own 33 bytes around a frame, its metadata in a handshake
DOMAIN = b"collbench"


@dataclass(frozen=True, repr=False)
class Keys:
    """(public, secret) in Z85, of whoever listens and of whoever connects."""

    listener: tuple[bytes, bytes]
    caller: tuple[bytes, bytes]

    @classmethod
    def of(cls, secret: Secret) -> Keys:
        """The launch's keys, the same at all its ranks."""
        return cls(_pair(secret.derived("listener")), _pair(secret.derived("caller")))

    def listening(self, socket: zmq.Socket[Any]) -> None:
        """Accept only the launch's own ranks at this socket. Call it before `bind`."""
        _bounded(socket)
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = self.listener
        socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)

    def calling(self, socket: zmq.Socket[Any]) -> None:
        """Speaks as a rank of this launch, to nobody but its coordinator. Before `connect`."""
        _bounded(socket)
        socket.curve_serverkey = self.listener[0]
        socket.curve_publickey, socket.curve_secretkey = self.caller


def _pair(secret: bytes) -> tuple[bytes, bytes]:
    text = z85.encode(secret)
    return zmq.curve_public(text), text


def _bounded(socket: zmq.Socket[Any]) -> None:
    socket.setsockopt(zmq.MAXMSGSIZE, PIECE_BYTES + _AROUND_BYTES)
    socket.setsockopt(zmq.SNDHWM, 0)  # else a full queue loses messages, or blocks the keeper; what is large waits to be asked for
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
