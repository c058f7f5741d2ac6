"""TCP streams between two hosts: one end sends a known pattern; the other compares it, and counts the bytes that arrive."""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.addresses import listen_at
from collbench.control.members import Member
from collbench.control.world import World
from collbench.errors import CollbenchError
from collbench.measuring import counters
from collbench.measuring.references import PATTERN, PERIOD
from collbench.measuring.sync import at_once

PATIENCE_S = 15.0  # for a connection; a blocked one is reported
COUNTED = 0.9  # of the payload: a port or an interface carried it if it counted that much
Reply = dict[str, Any]


def patience(world: World) -> float:
    """Return the seconds to wait for the other end."""
    return min(world.timeout_s, PATIENCE_S)


def attempt(task: Callable[[], Any]) -> Reply:
    """Run the task and return its result, {"value": ...}, or why it failed, {"why": ...}, ready to send to other ranks."""
    try:
        return {"value": task()}
    except (CollbenchError, MemoryError) as error:
        return {"why": str(error)}
    except OSError as error:
        return {"why": error.strerror or str(error) or type(error).__name__}


KEY_BYTES = 16
LISTENING_PORT = 61100  # of streams with a fixed source port: above the ports that Linux gives to clients
_CHUNK = 1 << 20
_WARM = 0.2  # of the time: windows grow, and traffic shapers use up their burst; this data is compared byte by byte
_WINDOWS = 24
_PATTERN = np.resize(PATTERN, PERIOD + _CHUNK)


class _Arrivals(msgspec.Struct):
    """The data of one stream: seconds and bytes so far at each receive; `wrong` describes the first wrong byte."""

    times: list[float] = msgspec.field(default_factory=list)
    totals: list[int] = msgspec.field(default_factory=list)
    wrong: int | None = None

    def add(self, total: int) -> float:
        """Record the total number of bytes now, and return the time."""
        self.times.append(time.monotonic())
        self.totals.append(total)
        return self.times[-1]


class StreamReport(msgspec.Struct, frozen=True):
    """The result of streams, or why there is none.

    rates        bytes per second of all streams together, in equal consecutive windows of time; wrong: describes a wrong byte
    left, came   the bytes that the interfaces at the source and at the target counted meanwhile; None: not known
    """

    rates: NDArray[np.float64] = msgspec.field(default_factory=lambda: np.empty(0))
    wrong: str | None = None
    left: int | None = None
    came: int | None = None
    why: str | None = None


def receive(listener: socket.socket, key: bytes, streams: int, seconds: float, patience_s: float) -> StreamReport:
    """Receive `streams` streams that send the key, for so many seconds.

    Raises OSError when they do not arrive within `patience_s`, or end early. The windows include the pauses of a
    stalled stream.
    """
    with ExitStack() as stack:
        connections = [stack.enter_context(connection) for connection in _accepted(listener, key, streams, patience_s)]
        arrivals = [_Arrivals() for _ in connections]
        streams_read = zip(connections, arrivals, strict=True)
        at_once([partial(_drain, connection, into, (seconds, patience_s)) for connection, into in streams_read], "receiving TCP streams")
    wrong = next((stream.wrong for stream in arrivals if stream.wrong is not None), None)
    return StreamReport(_rates(arrivals), None if wrong is None else f"byte {wrong} of a TCP stream is not the one that was sent")


def send(place: tuple[str, int], key: bytes, streams: int, times: tuple[float, float], source: tuple[str, int] = ("", 0)) -> None:
    """Send the pattern on that many streams until the receiver closes them, or (seconds, patience) `times` are both over.

    source: the local address and port of the streams; "" and 0: the kernel's choice. Raises OSError when the place cannot be reached.
    """
    seconds, patience_s = times
    end = source if source[0] else None
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection(place, patience_s, end)) for _ in range(streams)]
        for connection in connections:
            connection.sendall(key)
        until = time.monotonic() + seconds + patience_s
        at_once([partial(_pour, connection, until) for connection in connections], "sending TCP streams")


def _accepted(listener: socket.socket, key: bytes, streams: int, patience_s: float) -> list[socket.socket]:
    """Return the connections that send the key; others are closed."""
    accepted: list[socket.socket] = []
    end = time.monotonic() + patience_s
    while len(accepted) < streams:
        listener.settimeout(max(0.001, end - time.monotonic()))
        connection, _ = listener.accept()
        connection.settimeout(max(0.001, end - time.monotonic()))
        if hmac.compare_digest(connection.recv(KEY_BYTES, socket.MSG_WAITALL), key):
            accepted.append(connection)
        else:
            connection.close()
    return accepted


def _pour(connection: socket.socket, end: float) -> None:
    """Send the pattern repeatedly, until the receiver closes the connection."""
    pattern = _PATTERN.data
    sent = 0
    with suppress(OSError):
        while time.monotonic() < end:
            place = sent % PERIOD
            sent += connection.send(pattern[place : place + _CHUNK])


def _drain(connection: socket.socket, into: _Arrivals, times: tuple[float, float]) -> None:
    """Receive for so many seconds from the first byte on, which must arrive within the patience. The first and last data is compared."""
    seconds, patience_s = times
    buffer = np.empty(_CHUNK, np.uint8)
    connection.settimeout(patience_s)
    total = got = 0
    start = 0.0
    while not start or time.monotonic() < start + seconds:
        try:
            got = connection.recv_into(buffer.data)
        except TimeoutError:  # a stalled stream transfers nothing, which counts in its rate
            into.add(total)
            break
        if not got:
            raise ConnectionError("the sending host closed the stream")
        total += got
        now = into.add(total)
        if not start:
            start = now
            connection.settimeout(seconds)
        if now < start + _WARM * seconds:
            _compare(buffer[:got], total - got, into)
    _compare(buffer[:got], total - got, into)


def _compare(arrived: NDArray[np.uint8], first: int, into: _Arrivals) -> None:
    if into.wrong is not None:
        return
    place = first % PERIOD
    differ = arrived != _PATTERN[place : place + len(arrived)]
    if differ.any():
        into.wrong = first + int(np.argmax(differ))


def _rates(arrivals: Sequence[_Arrivals]) -> NDArray[np.float64]:
    """Return rates in windows from the last stream's end of warm-up to the first stream's end.

    Bytes between two receives are spread evenly.
    """
    if any(len(stream.times) < 2 for stream in arrivals):
        return np.empty(0)
    first = max(stream.times[0] for stream in arrivals)
    last = min(stream.times[-1] for stream in arrivals)
    edges = np.linspace(first + _WARM * (last - first), last, _WINDOWS + 1)
    if edges[-1] <= edges[0]:
        return np.empty(0)
    so_far = sum(np.interp(edges, stream.times, stream.totals) for stream in arrivals)
    rates: NDArray[np.float64] = np.diff(so_far) / np.diff(edges)
    return rates


class TcpStream(msgspec.Struct, frozen=True):
    """TCP streams from one process to another, or to itself. All start from `source_address` ("": the kernel's choice).

    address   at which the target listens
    nic       the interface with the counters that are read at both ends; "": none
    count     how many streams
    port      the TCP port of the only stream at its source, which sends to LISTENING_PORT; 0: any ports. With equal ports and addresses a
              switch chooses the same path each time
    """

    source: Member
    target: Member
    address: str
    source_address: str = ""
    nic: str = ""
    count: int = 1
    port: int = 0

    @property
    def reversed(self) -> TcpStream:
        """The stream in the other direction."""
        return TcpStream(self.target, self.source, self.source_address, self.address, self.nic, self.count, self.port)

    def why(self, offer: Reply, source: Reply, target: Reply) -> str | None:
        """Return which end failed, and why, from the reports: of the target before the stream, and of both ends after it."""
        ends = ((offer, f"{self.target.host} cannot listen at {self.address}"),
                (source, f"{self.source.host} does not reach {self.target.host} at {self.address}"),
                (target, f"nothing arrived at {self.target.host} ({self.address})"))  # fmt: skip
        failures = (f"{failure}: {reply.get('why', 'no reason was reported')}" for reply, failure in ends if "value" not in reply)
        return next(failures, None)


def run_streams(world: World, streams: Sequence[TcpStream], seconds: float) -> list[StreamReport]:
    """Run all streams at the same time for so many seconds, and return their results, at all ranks. All ranks must call it.

    A process is an end of at most one of them. The targets listen and send their addresses, then both ends work.
    """
    mine = next((stream for stream in streams if world.me in (stream.source, stream.target)), None)
    with ExitStack() as stack:
        listeners: list[socket.socket] = []

        def listen(address: str) -> list[Any]:
            listeners.append(stack.enter_context(listen_at(address, port=LISTENING_PORT if mine and mine.port else 0)))
            return [listeners[0].getsockname()[1], secrets.token_hex(KEY_BYTES)]

        offer = attempt(partial(listen, mine.address)) if mine and mine.target == world.me else {}
        offers = world.allgather(offer, "listening for TCP streams")
        with world.extend_timeout(seconds + 2 * patience(world)), world.watchdog.phase("measuring TCP"):
            ended = _run_ends(mine, world, offers[mine.target.rank], listeners, seconds) if mine else {}
            replies = world.allgather(ended, "measuring TCP")
    reports = []
    for stream in streams:
        source = replies[stream.source.rank].get("source", {})
        target = replies[stream.target.rank].get("target", {})
        why = stream.why(offers[stream.target.rank], source, target)
        if why:
            reports.append(StreamReport(why=why))
        else:
            rates, wrong, came = target["value"]
            reports.append(StreamReport(np.array(rates), wrong, source["value"], came))
    return reports


def _run_ends(stream: TcpStream, world: World, offer: Reply, listeners: Sequence[socket.socket], seconds: float) -> dict[str, Reply]:
    """Run the ends of a stream at this process, and return their reports."""
    if "value" not in offer:
        return {}
    port, key = offer["value"]
    waits = patience(world)
    ended: dict[str, Reply] = {}

    def sent() -> int | None:
        before = _counted(stream.nic, "tx_bytes")
        send((stream.address, port), bytes.fromhex(key), stream.count, (seconds, waits), source=(stream.source_address, stream.port))
        return _grown(before, _counted(stream.nic, "tx_bytes"))

    def taken() -> list[Any]:
        before = _counted(stream.nic, "rx_bytes")
        arrived = receive(listeners[0], bytes.fromhex(key), stream.count, seconds, waits)
        return [arrived.rates.tolist(), arrived.wrong, _grown(before, _counted(stream.nic, "rx_bytes"))]

    sender = threading.Thread(target=lambda: ended.update(source=attempt(sent)), daemon=True)
    if world.me == stream.source:
        sender.start()
    if world.me == stream.target:
        ended["target"] = attempt(taken)
    if world.me == stream.source:
        sender.join()
    return ended


def _counted(nic: str, what: str) -> int | None:
    return counters.read()[0].get(nic, {}).get(what) if nic else None


def _grown(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
