"""Connections between two ranks of the job: who listens where is told over the control plane, who knocks must know the key."""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from collbench.addresses import listen_at
from collbench.errors import RunFailed
from collbench.operations.sweep import MOST_STREAMS

if TYPE_CHECKING:
    from collbench.control.members import Member
    from collbench.control.world import World

_KEY_BYTES = 16
_GREETING = struct.Struct("!16s4I")  # the key of who is greeted; who speaks, to whom, which connection of theirs, which stream
_GREETING_S = 2.0  # for a greeting once connected: who means it says it at once
_MOST_PATIENCE_S = 10.0  # for a connection between two ranks that both are at it: one that a firewall drops should not cost the deadline
_BEFORE_OTHERS = 0.9  # of the deadline: this end knows whom it waits for, and should say so before the watchdog ends the process


@dataclass(frozen=True)
class Link:
    """The connections to one other rank, in the order of their streams; they block, for `deadline_s` at most."""

    peer: Member
    sockets: tuple[socket.socket, ...]
    deadline_s: float

    def facts(self) -> dict[str, str]:
        """The bytes that the kernel gives the first stream's buffers now."""
        return buffers_of(self.sockets[0])

    def close(self) -> None:
        """Closes every stream."""
        _close(self.sockets)


@dataclass(frozen=True)
class _Way:
    """The streams that rank `source` makes to `target`, for the `turn`th time: what an earlier attempt left behind is no answer."""

    source: int
    target: int
    turn: int
    streams: int

    def greetings(self, key: bytes) -> list[bytes]:
        """What is said on each stream to whoever has this key."""
        return [_GREETING.pack(key, self.source, self.target, self.turn, stream) for stream in range(self.streams)]


@dataclass
class Links:
    """Makes links to other ranks. All ranks make one together: each listens at its own address, on a port of the kernel's choice.

    Raises RunFailed at all ranks where one of them cannot listen.
    """

    world: World
    timeout_s: float
    _turns: Counter[int] = field(default_factory=Counter)
    _failed: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._key = secrets.token_bytes(_KEY_BYTES)
        address, wrong = self.world.me.address, ""
        self.listener: socket.socket | None = None
        try:
            self.listener = listen_at(address, 2 * MOST_STREAMS)
        except OSError as error:
            wrong = f"{self.world.me} cannot listen at {address} ({error}): see whether its host has this address"
        mine: dict[str, Any] = {"port": self.listener.getsockname()[1] if self.listener else 0, "key": self._key.hex(), "wrong": wrong}
        told = self.world.agree(mine, "listening for sockets")
        for one in told:
            if one["wrong"]:
                self.close()
                raise RunFailed(one["wrong"])
        self._ports, self._keys = [one["port"] for one in told], [bytes.fromhex(one["key"]) for one in told]

    def connect(self, peer: int, streams: int) -> Link:
        """A link of so many streams. Both ranks call; the lower one connects, the other one accepts.

        Raises RunFailed that says why not, at once where this peer could not be reached before.
        """
        if peer in self._failed:
            raise RunFailed(self._failed[peer])
        me = self.world.rank
        self._turns[peer] += 1
        way = _Way(min(me, peer), max(me, peer), self._turns[peer], streams)
        try:
            made = self._connected(way) if way.source == me else self._accepted(way)
        except RunFailed as error:
            self._failed[peer] = str(error)
            raise
        deadline_s = _BEFORE_OTHERS * self.timeout_s
        for each in made:
            _settle(each, deadline_s)
        return Link(self.world.members[peer], tuple(made), deadline_s)

    def close(self) -> None:
        """Stops listening."""
        if self.listener:
            self.listener.close()

    @property
    def _patience_s(self) -> float:
        return min(_MOST_PATIENCE_S, _BEFORE_OTHERS * self.timeout_s)

    def _connected(self, way: _Way) -> list[socket.socket]:
        """The lower rank's ends: each greets, and is answered once all have."""
        target, end = self.world.members[way.target], time.monotonic() + self._patience_s
        place = (target.address, self._ports[way.target])
        made: list[socket.socket] = []
        try:
            for greeting in way.greetings(self._keys[way.target]):
                made.append(socket.create_connection(place, timeout=_left(end)))
                made[-1].sendall(greeting)
            for each, answer in zip(made, way.greetings(self._key), strict=True):
                if _heard(each, end) != answer:
                    raise ConnectionError("what listens there turned this rank away")
        except OSError as error:
            _close(made)
            remedy = "see whether a firewall lets TCP ports through between these hosts"
            raise RunFailed(f"{self.world.me} cannot connect to {target} at {place[0]} port {place[1]} ({error}): {remedy}") from error
        return made

    def _accepted(self, way: _Way) -> list[socket.socket]:
        """The higher rank's ends: one for each greeting; whoever says anything else, or nothing, is turned away."""
        awaited, answers = way.greetings(self._key), way.greetings(self._keys[way.source])
        found: dict[bytes, socket.socket] = {}
        end = time.monotonic() + self._patience_s
        try:
            while len(found) < way.streams:
                made, said = self._next(end)
                if said not in awaited or said in found:
                    made.close()
                else:
                    found[said] = made
            for greeting, answer in zip(awaited, answers, strict=True):
                found[greeting].sendall(answer)
        except OSError as error:
            _close(found.values())
            source = self.world.members[way.source]
            came = f"{len(found)} of {way.streams} streams came within {self._patience_s:g} s"
            raise RunFailed(f"{source} did not connect to {self.world.me} at {self.world.me.address} ({came}: {error})") from error
        return [found[greeting] for greeting in awaited]

    def _next(self, end: float) -> tuple[socket.socket, bytes]:
        """The next connection, and what it says. Raises OSError when none comes."""
        assert self.listener
        self.listener.settimeout(_left(end))
        made, _ = self.listener.accept()
        try:
            return made, _heard(made, min(end, time.monotonic() + _GREETING_S))
        except OSError:
            return made, b""


def buffers_of(connection: socket.socket) -> dict[str, str]:
    """The bytes of a connection's buffers."""
    options = {"send_buffer_bytes": socket.SO_SNDBUF, "receive_buffer_bytes": socket.SO_RCVBUF}
    return {name: str(connection.getsockopt(socket.SOL_SOCKET, option)) for name, option in options.items()}


def _left(end: float) -> float:
    """Seconds until then; at least a little, since 0 would mean not to wait at all."""
    return max(0.001, end - time.monotonic())


def _heard(connection: socket.socket, end: float) -> bytes:
    connection.settimeout(_left(end))
    return connection.recv(_GREETING.size, socket.MSG_WAITALL)


def _settle(connection: socket.socket, deadline_s: float) -> None:
    """From here on calls block as those of a plain program, but the kernel ends their waits; small messages go out at once."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(deadline_s), int(deadline_s % 1 * 1e6)))


def _close(connections: Iterable[socket.socket]) -> None:
    for each in connections:
        each.close()
