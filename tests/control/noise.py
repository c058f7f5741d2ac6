"""Invalid messages: real ones of every kind, mutated by a seed, and the result of each."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any

from collbench.control.diagnosis import RankState, rank_states
from collbench.control.wire import PIECE_BYTES, Malformed, Message, MessageKind, entries, parsed

_ABOUT = {"rank": 1, "host": "node1", "local_rank": 0, "pid": 4242, "cpus": [0, 1], "began": 7}
_REAL = (
    Message(MessageKind.HELLO, 0, [[1, _ABOUT, 0], [2, _ABOUT, 0]]),
    Message(MessageKind.WELCOME),
    Message(MessageKind.MOVED, 0, 1),
    Message(MessageKind.VALUES, 5, [[1, {"x": [1.5, None]}, 2], [2, "words", 0]], [b"12345678", bytes(PIECE_BYTES + 9)]),
    Message(MessageKind.OFFER, 5, 1 << 20),
    Message(MessageKind.GRANT, 5),
    Message(MessageKind.ANSWER, 5, {"cells": list(range(2000))}),
    Message(MessageKind.BEAT, 0, [RankState(1, "allreduce 64 MiB on mpi: measuring", False, 41, 0.5, 7, 0.0).as_json()]),
    Message(MessageKind.STALLED, 0, "allreduce 64 MiB on mpi"),
    Message(MessageKind.WHERE),
    Message(MessageKind.HERE, 0, [RankState(1).as_json()]),
    Message(MessageKind.STACK, 0, 1),
    Message(MessageKind.STACKED, 0, [1, "poll\nMPI_Allreduce"]),
    Message(MessageKind.GONE, 0, [1, {"kind": "process_end", "killed": True, "signal": 9}]),
    Message(MessageKind.BYE, 0, 1),
    Message(MessageKind.ABORT, 0, ["rank 1 (node1, pid 4242): the folder is gone", 4]),
)
_WORDS: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf"), "", "\x00\x1b[2J", "\ud800", "a" * 5000, [], {},
    [[]], [1] * 999, {"__class__": "os.system"}, "cos\nsystem\n(S'id'\ntR.",
)  # fmt: skip


@cache
def frames_of() -> list[list[bytes]]:
    """One real message of every kind, as frames."""
    return [[bytes(frame) for frame in message.frames()] for message in _REAL]


def noise(chance: random.Random, count: int) -> Iterator[list[bytes]]:
    """So many messages, each a real one that was changed once or more often."""
    changes = (_bits, _cut, _longer, _swapped, _dropped, _again, _value, _values, _sizes)
    for _ in range(count):
        frames = list(chance.choice(frames_of()))
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            frames = chance.choice(changes)(chance, frames)
        yield frames


def heard(frames: list[bytes]) -> str:
    """ "message" or "refused": what rank 0 makes of these frames, read as far as it reads them. Anything else is raised."""
    try:
        message = parsed(frames)
        if message.kind is MessageKind.VALUES:
            entries(message, {1, 2})
        if message.kind in (MessageKind.BEAT, MessageKind.HERE):
            rank_states(message.body, {1, 2})
    except Malformed:
        return "refused"
    return "message"


def _at(chance: random.Random, frames: list[bytes]) -> int:
    return chance.randrange(len(frames)) if frames else 0


def _bits(chance: random.Random, frames: list[bytes]) -> list[bytes]:
    at = _at(chance, frames)
    if not frames or not frames[at]:
        return [*frames, chance.randbytes(chance.randrange(40))]
    changed = bytearray(frames[at])
    for _ in range(chance.choice((1, 1, 8))):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return [*frames[:at], bytes(changed), *frames[at + 1 :]]


def _cut(chance: random.Random, frames: list[bytes]) -> list[bytes]:
    at = _at(chance, frames)
    return [frame[: chance.randrange(len(frame) + 1)] if number == at else frame for number, frame in enumerate(frames)]


def _longer(chance: random.Random, frames: list[bytes]) -> list[bytes]:
    at = _at(chance, frames)
    more = chance.randbytes(chance.choice((1, 10, 1000)))
    return [frame + more if number == at else frame for number, frame in enumerate(frames)]


def _swapped(chance: random.Random, frames: list[bytes]) -> list[bytes]:
    return chance.sample(frames, len(frames))


def _dropped(chance: random.Random, frames: list[bytes]) -> list[bytes]:
    at = _at(chance, frames)
    return frames[:at] + frames[at + 1 :]


def _again(chance: random.Random, frames: list[bytes]) -> list[bytes]:
    return frames + frames[: chance.randrange(len(frames) + 1)]


def _value(chance: random.Random, frames: list[bytes]) -> list[bytes]:
    """A well-made message with another body."""
    return _with_body(chance, frames, chance.choice(_WORDS))


def _values(chance: random.Random, frames: list[bytes]) -> list[bytes]:
    """The same with one value of its own body exchanged."""
    try:
        body = parsed(frames).body
    except Malformed:
        return frames
    return _with_body(chance, frames, _exchanged(chance, body))


def _exchanged(chance: random.Random, body: Any) -> Any:
    if isinstance(body, list) and body and chance.random() < 0.8:
        at = chance.randrange(len(body))
        return [*body[:at], _exchanged(chance, body[at]), *body[at + 1 :]]
    return chance.choice(_WORDS)


def _with_body(chance: random.Random, frames: list[bytes], body: Any) -> list[bytes]:
    text = json.dumps(body).encode()
    wire = b"j" + text if chance.random() < 0.7 else b"z" + zlib.compress(text)
    kind = chance.choice(frames_of())[0] if chance.random() < 0.2 or not frames else frames[0]
    return [kind, b"5", str([len(wire)]).encode(), wire]


def _sizes(chance: random.Random, frames: list[bytes]) -> list[bytes]:
    sizes = [chance.choice((0, 1, 5, PIECE_BYTES, 2**31, 2**62, -1)) for _ in range(chance.randrange(6))]
    return [*frames[:2], json.dumps(sizes).encode(), *frames[3:]]
