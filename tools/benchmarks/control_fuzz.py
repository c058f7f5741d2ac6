"""A million mutated control messages: the readers reject each or accept it as a message; a part of them goes to rank 0's own socket.

For a longer run use `python -m tools.benchmarks control_fuzz --pairs 20000000`.
"""

from __future__ import annotations

import random
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import zmq

from collbench.control.security import Keys
from collbench.control.server import Server
from collbench.control.wire import Abort, Gone, Malformed, Message, Stalled
from tests.control.ends_here import DEADLINE_S, Here, about
from tests.control.noise import heard, noise
from tools.benchmarks.figures import MEBIBYTES, SECONDS, Figure, Outcome, timed

MESSAGES = 1_000_000
_AT_A_SOCKET = 20  # one of so many goes to a socket, too
_SLOWEST_S = 1.0  # for one message: a hang
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)


@dataclass(frozen=True)
class Fuzzed:
    """Results for so many messages from one seed: wall time, the slowest one, and the memory growth of rank 0's process."""

    what: str
    messages: int
    refused: int
    seconds: float
    slowest_s: float
    grown_bytes: int


def measure(n: int = MESSAGES, seed: int = 9) -> Outcome:
    """n messages for the readers, and a part of them for the sockets. Raises unexpected exceptions of a reader."""
    at_sockets = max(50, n // _AT_A_SOCKET)
    found = [_read(seed, n), _at_a_socket(seed, at_sockets, has_key=True), _at_a_socket(seed, max(5, at_sockets // 100), has_key=False)]
    return Outcome(
        "control_fuzz",
        f"Real messages of every kind, mutated by seed {seed}: bits, lengths, order of frames, sizes that lie, values exchanged inside the "
        "record. Each is refused in one way (Malformed) or read; anything else ends the benchmark. At rank 0's socket, with the launch's "
        "key and as raw bytes without it; afterwards a rank joins there.",
        [figure for one in found for figure in _figures(one)],
        [asdict(one) for one in found],
    )


def _figures(one: Fuzzed) -> list[Figure]:
    return [
        Figure(one.what, f"{one.messages:,}", f"{one.refused:,} refused, {one.seconds:.0f} s", "no crash, no hang", True),
        timed(f"{one.what}, slowest", [one.slowest_s], SECONDS, below=_SLOWEST_S),
        timed(f"{one.what}, memory taken on", [float(one.grown_bytes)], MEBIBYTES, below=256 << 20),
    ]


def _read(seed: int, count: int) -> Fuzzed:
    refused, slowest, began, before = 0, 0.0, time.perf_counter(), resident()
    for frames in noise(random.Random(seed), count):
        start = time.perf_counter()
        refused += heard(frames) == "refused"
        slowest = max(slowest, time.perf_counter() - start)
    return Fuzzed("mutated messages", count, refused, time.perf_counter() - began, slowest, resident() - before)


def _at_a_socket(seed: int, count: int, *, has_key: bool) -> Fuzzed:
    here = Here()
    with here.stack:
        hub = here.hub()
        _deaf_to(hub, Abort, Stalled, Gone)
        began, before = time.perf_counter(), resident()
        unreadable = _count_unreadable(hub)
        (_send_with_key if has_key else _send_raw)(here, seed, count)
        _drain(hub)
        slowest = _answers(here, hub)
        what = "at a socket, with the key" if has_key else "at a socket, raw bytes"
        refused = len(unreadable) or hub.coordinator.down.unknown.count
        return Fuzzed(what, count, refused, time.perf_counter() - began, slowest, resident() - before)


def _count_unreadable(hub: Server) -> list[str]:
    """Return a list that gets the error of every message that rank 0 refuses to read, without the message, which its traceback holds."""
    unreadable: list[str] = []
    read = hub.coordinator.down.read

    def counted(ready: Any) -> Any:
        try:
            return read(ready)
        except Malformed as error:
            unreadable.append(str(error))
            raise

    hub.coordinator.down.read = counted
    return unreadable


def _deaf_to(hub: Server, *kinds: type[Message]) -> None:
    """Ignore messages that end a launch: a mutated one that is still valid would end this process."""
    heard_before = hub.coordinator._from_below
    hub.coordinator._from_below = lambda child, message: None if isinstance(message, kinds) else heard_before(child, message)


def _send_with_key(here: Here, seed: int, count: int) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        Keys.of(here.secret).secure_caller(stranger)
        stranger.setsockopt(zmq.LINGER, 30_000)
        stranger.connect(f"tcp://127.0.0.1:{here.port}")
        for frames in noise(random.Random(seed), count):
            stranger.send_multipart([frame[: 64 << 10] for frame in frames] or [b""])


def _send_raw(here: Here, seed: int, count: int) -> None:
    chance = random.Random(seed)
    for frames in noise(chance, count):
        with suppress(OSError), socket.create_connection(("127.0.0.1", here.port), timeout=5) as stranger:
            greeting = bytearray(_GREETING)
            if chance.random() < 0.5:
                greeting[chance.randrange(len(greeting))] = chance.randrange(256)
            stranger.sendall(
                bytes(greeting) + b"".join(bytes([0x04 | chance.randrange(8), min(255, len(frame))]) + frame for frame in frames)
            )
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(65536):
                pass


def _drain(hub: Server) -> None:
    """Wait until rank 0 has nothing more to read."""
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < 0.5:
        if hub.coordinator.inbox.empty():
            time.sleep(0.01)
            continue
        hub.coordinator.inbox.get()
        quiet_since = time.monotonic()


def _answers(here: Here, hub: Server) -> float:
    """Return the seconds until rank 0's I/O thread has received a new rank's message; an earlier end of a rank does not count."""
    start = time.perf_counter()
    spoke = here.spoke(1)
    spoke.join(about(1), DEADLINE_S)
    return time.perf_counter() - start


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
