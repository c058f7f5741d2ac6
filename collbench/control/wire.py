"""Messages of the control plane: kinds, shapes, framing and limits.

A message is [kind, step, sizes, JSON, raw arrays …]. It has no executable content, and its size is bounded.

A message from another process is not trusted until `parsed` has checked it. It accepts kinds from a list, integer steps, JSON
of limited size with plain values and the kind's own shape, and raw parts of the announced sizes. JSON and arrays are sent
in pieces of 64 KiB. A socket closes a connection that sends a longer frame, so a peer without a key cannot fill its
memory.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

# The shape of the JSON of each kind of message, by the kind's name on the wire. Any other message is rejected.

MOST_RANKS = 1 << 24
_MOST_CODE = 255


def whole(value: Any) -> bool:
    """Return whether a value is an integer. Booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _rank(value: Any) -> bool:
    return whole(value) and 0 <= value < MOST_RANKS


def _is_entry(value: Any) -> bool:
    """Return whether the value is [rank, anything, number of its raw parts]."""
    return isinstance(value, list) and len(value) == 3 and _rank(value[0]) and whole(value[2]) and value[2] >= 0


def _list_of(shape: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(shape, value))


def _presented(value: Any) -> bool:
    """Return whether the value is [rank, its description, its build (launch/software.py reads it)]."""
    return isinstance(value, list) and len(value) == 3 and _rank(value[0]) and isinstance(value[1], dict)


def _stacked(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _rank(value[0]) and isinstance(value[1], str)


def _ended(value: Any) -> bool:
    """Return whether the value is [message, exit code]."""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and whole(value[1]) and 0 < value[1] <= _MOST_CODE


def _gone(value: Any) -> bool:
    """Return whether the value is [rank, how it ended]; server.py reads the latter."""
    return isinstance(value, list) and len(value) == 2 and _rank(value[0]) and isinstance(value[1], dict)


def _is_port(value: Any) -> bool:
    return whole(value) and 0 <= value < 1 << 16


def _is_size(value: Any) -> bool:
    return whole(value) and 0 <= value < 1 << 31


def _paths(value: Any) -> bool:
    """Return whether the value is [rank, port (0: none), reports]; control/path.py reads the reports."""
    return isinstance(value, list) and len(value) == 3 and _rank(value[0]) and _is_port(value[1]) and isinstance(value[2], list)


def _probe(value: Any) -> bool:
    """Return whether the value is [address, port]."""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and _is_port(value[1])


def _probed(value: Any) -> bool:
    """Return whether the value is [rank, address, sizes that passed, sizes that failed]."""
    sizes = _list_of(_is_size)
    return (
        isinstance(value, list)
        and len(value) == 4
        and _rank(value[0])
        and isinstance(value[1], str)
        and sizes(value[2])
        and sizes(value[3])
    )


def _anything(_: Any) -> bool:
    return True


def _nothing(value: Any) -> bool:
    return value is None


SHAPES: Mapping[bytes, Callable[[Any], bool]] = {
    b"hello": _list_of(_presented),
    b"welcome": _nothing,
    b"moved": _rank,
    b"say": _list_of(_is_entry),
    b"offer": lambda size: whole(size) and size >= 0,
    b"grant": _nothing,
    b"tell": _anything,
    b"beat": _list_of(_anything),  # control/diagnosis.py checks the states
    b"stuck": lambda what: isinstance(what, str),
    b"where": _nothing,
    b"here": _list_of(_anything),
    b"aside": _list_of(_rank),
    b"paths": _paths,
    b"probe": _probe,
    b"probed": _probed,
    b"stack": _rank,
    b"stacked": _stacked,
    b"gone": _gone,
    b"bye": lambda rank: rank is None or _rank(rank),
    b"abort": _ended,
}


PIECE_BYTES = 64 << 10
MOST_JSON_BYTES = 32 << 20  # 10,000 ranks with 256 CPUs each need 11 MB to join
MOST_RAW_PARTS = 4096  # arrays in one message: one per rank of a node
MOST_BYTES = 1 << 30  # of one message
_MOST_FRAMES = 3 + MOST_RAW_PARTS + MOST_BYTES // PIECE_BYTES
_MOST_DIGITS = 18
_LONG_BYTES = 4096  # of JSON: longer text is compressed; the CPUs of ranks are mostly the same
_PLAIN, _PACKED = b"j", b"z"


class MessageKind(Enum):
    """The purpose of a message."""

    HELLO = b"hello"  # up: a rank describes itself
    WELCOME = b"welcome"  # down: the HELLO has arrived
    MOVED = b"moved"  # up: a rank uses another connection than the one of its HELLO
    VALUES = b"say"  # up: the values of the ranks of a node in a step
    OFFER = b"offer"  # up: a large message of values is ready
    GRANT = b"grant"  # down: send it
    ANSWER = b"tell"  # down: rank 0's value of a step
    BEAT = b"beat"  # up: states of ranks, now and then
    STALLED = b"stuck"  # up: a rank makes no progress
    WHERE = b"where"  # both ways: send your state at once
    HERE = b"here"  # both ways: states of ranks
    ASIDE = b"aside"  # up: a second connection of a rank that gets no reply on its first one; the value is that rank
    PATHS = b"paths"  # up: a rank's connections to other hosts, and the port at which its host accepts probes
    PROBE = b"probe"  # down: send packets of several sizes to this address and port
    PROBED = b"probed"  # up: which of them have passed
    STACK = b"stack"  # down: take the stack of one of your ranks
    STACKED = b"stacked"  # up: that stack
    GONE = b"gone"  # up: a rank's process has ended without a message
    BYE = b"bye"  # up and down: this rank leaves in order
    ABORT = b"abort"  # both ways: all ranks end with this message and code


class Malformed(ValueError):
    """The message is not valid."""


@dataclass(frozen=True)
class Message:
    """A message: kind, step (0 for none), a JSON value, and the bytes of raw arrays in the order of the JSON."""

    kind: MessageKind
    step: int = 0
    body: Any = None
    raw: Sequence[bytes | memoryview] = field(default=())

    def frames(self) -> list[bytes | memoryview]:
        """Return the frames for a socket. Raises ValueError if the message exceeds a limit."""
        parts = [memoryview(part).cast("B") for part in (_packed(self.body), *self.raw)]
        sizes = [part.nbytes for part in parts]
        if sum(sizes) > MOST_BYTES:
            raise ValueError(f"a message of {sum(sizes)} bytes exceeds the limit of {MOST_BYTES}")
        return [self.kind.value, str(self.step).encode(), _text(sizes), *(piece for part in parts for piece in _pieces(part))]


def _text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _packed(value: Any) -> bytes:
    text = _text(value)
    return _PLAIN + text if len(text) < _LONG_BYTES else _PACKED + zlib.compress(text, 1)


def _pieces(part: memoryview) -> Iterator[memoryview]:
    return (part[at : at + PIECE_BYTES] for at in range(0, part.nbytes, PIECE_BYTES))


def parsed(frames: Sequence[bytes | memoryview]) -> Message:
    """Return the message in these frames. Raises Malformed if they are not a valid message."""
    if not 3 <= len(frames) <= _MOST_FRAMES or any(len(frame) > PIECE_BYTES for frame in frames):
        raise Malformed(f"not a valid message of {len(frames)} frames")
    kind, step, sizes = map(bytes, frames[:3])
    try:
        body, *raw = _parts(frames[3:], _sizes(sizes))
        message = Message(MessageKind(kind), _step(step), _unpacked(bytes(body)), raw)
    except (ValueError, RecursionError, zlib.error) as error:
        raise Malformed(str(error)) from None
    if not SHAPES[message.kind.value](message.body):
        raise Malformed(f"not a valid {message.kind.value.decode()} message")
    return message


def _step(text: bytes) -> int:
    if not (text.isdigit() and len(text) <= _MOST_DIGITS):
        raise Malformed("not a valid step")
    return int(text)


def _sizes(text: bytes) -> list[int]:
    sizes = json.loads(text)
    if not (isinstance(sizes, list) and 1 <= len(sizes) <= 1 + MOST_RAW_PARTS and all(whole(size) and size >= 0 for size in sizes)):
        raise Malformed("not a valid list of sizes")
    return sizes


def _parts(pieces: Sequence[bytes | memoryview], sizes: Sequence[int]) -> list[bytes | memoryview]:
    """Return the pieces joined to parts of these sizes; a part of one piece is that piece."""
    if sum(sizes) != sum(map(len, pieces)):
        raise Malformed(f"{sum(map(len, pieces))} bytes instead of {sum(sizes)}")
    found, at = list[bytes | memoryview](), 0
    for size in sizes:
        count = -(-size // PIECE_BYTES)
        own = pieces[at : at + count]
        if sum(map(len, own)) != size:
            raise Malformed("a part of the wrong size")
        found.append(own[0] if count == 1 else b"".join(own))
        at += count
    return found


def _unpacked(packed: bytes) -> Any:
    text = packed[1:]
    if packed[:1] == _PACKED:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(text, MOST_JSON_BYTES)
        if not unpacker.eof:
            raise Malformed("JSON that is incomplete or too long")
    elif packed[:1] != _PLAIN:
        raise Malformed("not JSON")
    return json.loads(text)


def entries(message: Message, ranks: frozenset[int] | set[int]) -> list[tuple[int, Any, list[bytes | memoryview]]]:
    """Return the values in a message of values: (rank, value, raw arrays) each. Raises Malformed unless all are of `ranks` and complete."""
    found, at = [], 0
    for rank, value, parts in message.body:
        if rank not in ranks:
            raise Malformed("a rank of another connection")
        found.append((rank, value, list(message.raw[at : at + parts])))
        at += parts
    if at != len(message.raw):
        raise Malformed(f"{len(message.raw)} parts instead of {at}")
    return found
