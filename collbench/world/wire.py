"""The control plane's sockets: every rank is connected to rank 0, and every wait has a deadline.

One message is [kind, number of the step, JSON, raw arrays …]. ZeroMQ carries it over TCP between hosts and over a
socket file in a private folder on one host. Nothing here is on the measured path.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from typing import Any

import zmq

from collbench.errors import PeerFailed, RunFailed, UsageError, WaitExpired

HELLO, WELCOME, SAY, ABORT = b"hello", b"welcome", b"say", b"abort"
_CANDIDATES = 8
_FAREWELL_S = 2.0  # how long a rank that fails waits for rank 0 to end with it
_RETRY_MS, _SLOWEST_RETRY_MS = 5, 200
_PATIENCE_S = 1.0  # how long a rank waits at one candidate port before it tries the next one as well
Frames = list[bytes]


def candidate_ports(token: str) -> list[int]:
    """Ports that all ranks of a launch derive from its token, below the range that kernels hand out themselves."""
    seed = int.from_bytes(hashlib.sha256(token.encode()).digest()[:8], "big")
    return [20000 + (seed + 1237 * k) % 12000 for k in range(_CANDIDATES)]


def pack(value: Any) -> bytes:
    """JSON as the wire carries it."""
    return json.dumps(value, separators=(",", ":")).encode()


class Hub:
    """Rank 0's end."""

    def __init__(self, meeting: str, port: int | None, token: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 1000)
        try:
            self._bind(meeting, port, token)
        except UsageError:
            self.close()
            raise
        self._names: dict[int, bytes] = {}
        self._early: dict[int, dict[int, tuple[Any, Frames]]] = {}

    def _bind(self, meeting: str, port: int | None, token: str) -> None:
        if meeting.startswith("ipc://"):
            self._socket.bind(meeting)
            return
        for candidate in [port] if port else candidate_ports(token):
            try:
                self._socket.bind(f"tcp://*:{candidate}")
                return
            except zmq.ZMQError as error:
                taken = error
        where = f"port {port} is taken" if port else f"ports {candidate_ports(token)} are all taken"
        why = os.strerror(taken.errno or 0)
        raise UsageError(f"rank 0 cannot listen for the other ranks: {where} ({why}); set MASTER_PORT to a free one")

    def admit(self, size: int, token: str, deadline_s: float) -> dict[int, Any]:
        """Waits for the hello of ranks 1 … size-1; returns what each said of itself. Raises WaitExpired naming the missing ones."""
        said: dict[int, Any] = {}
        end = time.monotonic() + deadline_s
        while len(said) < size - 1:
            frames = _receive(self._socket, end)
            if frames is None:
                missing = [rank for rank in range(1, size) if rank not in said]
                raise WaitExpired(
                    f"{_ranks(missing)} of {size} did not join within {deadline_s:g} s: see whether they started, "
                    "whether they can reach this host, or raise --timeout"
                )
            body = _hello(frames[1:], token)
            if body:
                self._admit_one(frames[0], body, said, size)
        return said

    def _admit_one(self, name: bytes, body: dict[str, Any], said: dict[int, Any], size: int) -> None:
        rank, about = int(body["rank"]), body["about"]
        if not 0 < rank < size:
            self._refuse(name, f"a rank {rank} of another launch of {size} ranks tried to join; start one launch at a time")
        if rank in said and said[rank] != about:
            self._refuse(name, f"two processes say they are rank {rank}: {said[rank]} and {about}; the launcher started it twice")
        said[rank], self._names[rank] = about, name
        self._socket.send_multipart([name, WELCOME, b"0", pack(None)])

    def _refuse(self, name: bytes, sentence: str) -> None:
        self._socket.send_multipart([name, ABORT, b"0", pack([sentence, RunFailed.exit_code])])
        raise RunFailed(sentence)

    def collect(self, step: int, what: str, describe: Sequence[str], deadline_s: float) -> dict[int, tuple[Any, Frames]]:
        """One message of every other rank for this step. Raises WaitExpired or PeerFailed."""
        came = self._early.pop(step, {})
        by_name = {name: rank for rank, name in self._names.items()}
        end = time.monotonic() + deadline_s
        while len(came) < len(self._names):
            frames = _receive(self._socket, end)
            if frames is None:
                missing = ", ".join(describe[rank] for rank in self._names if rank not in came)
                raise WaitExpired(f"{what}: {missing} did not answer within {deadline_s:g} s")
            rank = by_name.get(frames[0])
            if rank is None or frames[1] == HELLO:
                continue
            said_in = int(frames[2])
            if frames[1] == SAY and said_in > step:  # a quick rank is ahead of a slow one: keep what it said
                self._early.setdefault(said_in, {})[rank] = _open(frames[1:], said_in, what)
            else:
                came[rank] = _open(frames[1:], step, what)
        return came

    def tell(self, step: int, kind: bytes, value: Any) -> None:
        """The same message to every other rank."""
        body = pack(value)
        for name in self._names.values():
            self._socket.send_multipart([name, kind, str(step).encode(), body])

    def close(self) -> None:
        """Sends what is still queued, for a second at most, and closes."""
        self._socket.close()
        self._context.term()


class Spoke:
    """Any other rank's end."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._socket: zmq.Socket[bytes]
        self._joined = False

    def join(self, meeting: str, port: int | None, hello: dict[str, Any], deadline_s: float) -> None:
        """Finds rank 0 and says hello. Raises WaitExpired when it does not answer within the deadline."""
        ports = [port] if port else candidate_ports(hello["token"])
        places = [meeting] if meeting.startswith("ipc://") else [f"{meeting}:{p}" for p in ports]
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            if len(self._sockets) < len(places):
                self._knock(places[len(self._sockets)], hello)
            patience = _PATIENCE_S if len(self._sockets) < len(places) else end - time.monotonic()
            if self._welcomed(min(end, time.monotonic() + patience)):
                return
        raise WaitExpired(
            f"rank {hello['rank']} on {hello['about']['host']} found no rank 0 at {places[0]} within {deadline_s:g} s: "
            "see whether rank 0 started and its host can be reached, or raise --timeout"
        )

    def _knock(self, place: str, hello: dict[str, Any]) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 1000)
        socket.setsockopt(zmq.RECONNECT_IVL, _RETRY_MS)  # the default waits 100 ms and more for a rank 0 that is just starting
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _SLOWEST_RETRY_MS)
        socket.connect(place)
        socket.send_multipart([HELLO, b"0", pack(hello)])
        self._sockets.append(socket)

    def _welcomed(self, end: float) -> bool:
        poller = zmq.Poller()
        for socket in self._sockets:
            poller.register(socket, zmq.POLLIN)
        for socket, _ in poller.poll(int(max(0.0, end - time.monotonic()) * 1000) + 1):
            frames = socket.recv_multipart()
            if frames[0] == ABORT:
                _open(frames, 0, "joining")
            if frames[0] == WELCOME:
                self._keep(socket)
                return True
        return False

    def _keep(self, found: zmq.Socket[bytes]) -> None:
        for socket in self._sockets:
            if socket is not found:
                socket.close(linger=0)
        self._socket, self._sockets, self._joined = found, [found], True

    def say(self, step: int, value: Any, arrays: Sequence[Any] = ()) -> None:
        """Sends rank 0 a value and raw arrays."""
        self._socket.send_multipart([SAY, str(step).encode(), pack(value), *arrays])

    def abort(self, sentence: str, code: int) -> bool:
        """Tells rank 0 why this rank fails; returns whether rank 0 ends, too. It may be inside a library, and then does not answer."""
        if not self._joined:
            return False
        self._socket.send_multipart([ABORT, b"0", pack([sentence, code])])
        end = time.monotonic() + _FAREWELL_S
        while (frames := _receive(self._socket, end)) is not None:
            if frames[0] == ABORT:
                return True
        return False

    def hear(self, step: int, what: str, deadline_s: float) -> Any:
        """What rank 0 says in this step. Raises WaitExpired or PeerFailed."""
        frames = _receive(self._socket, time.monotonic() + deadline_s)
        while frames is not None and frames[0] == WELCOME:
            frames = _receive(self._socket, time.monotonic() + deadline_s)
        if frames is None:
            raise WaitExpired(f"{what}: rank 0 did not answer within {deadline_s:g} s")
        return _open(frames, step, what)[0]

    def close(self) -> None:
        """Sends what is still queued, for a second at most, and closes."""
        for socket in self._sockets:
            socket.close()
        self._context.term()


def _receive(socket: zmq.Socket[bytes], end: float) -> Frames | None:
    remaining = max(0.0, end - time.monotonic())
    return socket.recv_multipart() if socket.poll(int(remaining * 1000) + 1) else None


def _hello(frames: Frames, token: str) -> dict[str, Any] | None:
    """What a rank of this launch says of itself; None for anything else that reaches the port."""
    try:
        kind, _, body = frames
        said = json.loads(body)
    except ValueError:
        return None
    return said if kind == HELLO and isinstance(said, dict) and said.get("token") == token else None


def _open(frames: Frames, step: int, what: str) -> tuple[Any, Frames]:
    kind, number, body = frames[0], int(frames[1]), json.loads(frames[2])
    if kind == ABORT:
        raise PeerFailed(*body)
    if number != step:
        raise RunFailed(f"{what}: the ranks are not in the same step ({number} and {step}); they were started with different arguments")
    return body, frames[3:]


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:16])) + (" …" if len(ranks) > 16 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
