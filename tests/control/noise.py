"""Invalid messages: real ones of every kind, mutated by a seed, and the result of each."""

import random
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import msgpack

from collbench.control import wire
from collbench.control.diagnosis import ProcessEnd, RankState
from collbench.control.members import Member
from collbench.control.path import PathReport
from collbench.control.wire import frames

_MEMBER = Member(1, "node1", 0, 4242, (0, 1), began=7)
REAL: tuple[wire.Message, ...] = (
    wire.Hello(_MEMBER), wire.Hello(_MEMBER, [1, "0.1.0", "abc"]), wire.Welcome(), wire.Moved(1),
    wire.Values(5, [
        wire.Entry(1, "gathering", wire.encoded({"x": [1.5, None]}), [memoryview(b"12345678"), memoryview(bytes(wire.PIECE_BYTES + 9))]),
        wire.Entry(2, "gathering", wire.encoded("words")),
    ]),
    wire.Offer(5, 1 << 20), wire.Grant(5), wire.StepAnswer(5, "gathering", wire.encoded({"cells": list(range(2000))})),
    wire.Beat([RankState(1, "allreduce 64 MiB on mpi: measuring", False, 41, 0.5, 7, 0.0)]),
    wire.Stalled("allreduce 64 MiB on mpi"), wire.Where(),
    wire.Here([RankState(1), RankState(2, "warm-up", True, 3, 1.5, 7, 1.25, True)]),
    wire.Aside([1, 2]), wire.Paths(1, 20_000, [PathReport("fd77::1", 1, 4, 1500, 4, 21, 30)]), wire.SendProbe("10.0.0.1", 20_000),
    wire.Probed(1, "10.0.0.1", [576, 1000], [1200, 1500]), wire.TakeStack(1), wire.Stack(1, "poll\nMPI_Allreduce"),
    wire.Gone(1, ProcessEnd(killed=True, signal=9)), wire.Bye(1), wire.Bye(), wire.Abort("rank 1 (node1, pid 4242): the folder is gone", 4),
)  # fmt: skip
_WORDS: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 1e308, float("nan"), float("inf"), "", "\x00\x1b[2J", "a" * 5000, [], {},
    [[]], [1] * 999, {"__class__": "os.system"}, "cos\nsystem\n(S'id'\ntR.",
)  # fmt: skip


@cache
def frames_of() -> list[list[bytes]]:
    return [[bytes(frame) for frame in frames(message)] for message in REAL]


def noise(chance: random.Random, count: int) -> Iterator[list[bytes]]:
    """So many messages, each a real one that was changed once or more often."""
    changes = (_bits, _cut, _longer, _swapped, _dropped, _again, _value, _values)
    for _ in range(count):
        pieces = list(chance.choice(frames_of()))
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            pieces = chance.choice(changes)(chance, pieces)
        yield pieces


def heard(pieces: list[bytes]) -> str:
    """ "message" or "refused": what rank 0 makes of these frames, read as far as it reads them. Anything else is raised."""
    try:
        message = wire.parsed(pieces)
        if isinstance(message, wire.Values):
            wire.check_ranks((entry.rank for entry in message.entries), {1, 2})
            for entry in message.entries:
                wire.decoded(entry.value)
        if isinstance(message, wire.Beat | wire.Here):
            wire.check_ranks((one.rank for one in message.states), {1, 2})
    except wire.Malformed:
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
    """A well-made record of a real kind with other fields."""
    fields = [chance.choice(_WORDS) for _ in range(chance.randrange(3))]
    return _with_record(chance, [_record(chance.choice(frames_of()))[0], *fields])


def _values(chance: random.Random, frames: list[bytes]) -> list[bytes]:
    """The same with one value of its own record exchanged."""
    try:
        return _with_record(chance, _exchanged(chance, _record(frames)))
    except (ValueError, RecursionError, zlib.error):
        return frames


def _record(frames: list[bytes]) -> Any:
    text = b"".join(frames)
    return msgpack.decode(zlib.decompress(text[1:]) if text[:1] == b"z" else text[1:])


def _exchanged(chance: random.Random, value: Any) -> Any:
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        return [*value[:at], _exchanged(chance, value[at]), *value[at + 1 :]]
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice(list(value))
        return {**value, name: _exchanged(chance, value[name])}
    return chance.choice(_WORDS)


def _with_record(chance: random.Random, record: Any) -> list[bytes]:
    text = msgpack.encode(record)
    text = b"m" + text if chance.random() < 0.7 else b"z" + zlib.compress(text)
    return [text[at : at + wire.PIECE_BYTES] for at in range(0, len(text), wire.PIECE_BYTES)]
