"""Messages of the control plane: their kinds, framing and limits.

A message is one record in MessagePack, compressed if it is long, in pieces of 64 KiB. It has no executable content, its size is
bounded, and it is not trusted until `parsed` has checked every field. A socket closes a connection that sends a longer piece.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Container, Iterable, Sequence
from typing import Annotated, Any

from msgspec import DecodeError, Meta, Struct, msgpack, to_builtins

from collbench.control.diagnosis import ProcessEnd, RankState
from collbench.control.members import Member, Rank
from collbench.control.path import PathReport

PIECE_BYTES = 64 << 10
MOST_BYTES = 1 << 30  # of one message
MOST_UNPACKED_BYTES = 32 << 20  # 10,000 ranks with 256 CPUs each need 11 MB to join
_LONG_BYTES = 4096  # a longer message without arrays is compressed; the CPUs of ranks are mostly the same
_PLAIN = b"m"
_PACKED = b"z"

Step = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, lt=1 << 16)]
PacketSizes = list[Annotated[int, Meta(ge=0, lt=1 << 31)]]


class Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=str.lower):
    """Base of all messages. Each kind is a subclass, and its name is the kind on the wire."""


class Entry(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One rank's part of a step: its phase, its value as JSON text, and the bytes of its arrays."""

    rank: Rank
    what: str
    value: bytes
    arrays: list[memoryview] = []

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the arrays."""
        return sum(map(len, self.arrays))


class Hello(Message, frozen=True):
    """Up: a rank joins, with its build as JSON (launch/software.py reads it); 0 if all ranks are one build."""

    member: Member
    build: Any = 0


class Welcome(Message, frozen=True):
    """Down: the Hello has arrived."""


class Moved(Message, frozen=True):
    """Up: a rank uses another connection than the one of its Hello."""

    rank: Rank


class Values(Message, frozen=True):
    """Up: the values of the ranks of a node in a step."""

    step: Step
    entries: list[Entry]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all arrays."""
        return sum(entry.size_bytes for entry in self.entries)


class Offer(Message, frozen=True):
    """Up: values with large arrays are ready."""

    step: Step
    size_bytes: Annotated[int, Meta(ge=0)]


class Grant(Message, frozen=True):
    """Down: send the values that were offered first."""

    step: Step


class StepAnswer(Message, frozen=True):
    """Down: rank 0's value of a step, as JSON text, and its phase."""

    step: Step
    what: str
    value: bytes


class Beat(Message, frozen=True):
    """Up: states of ranks, now and then."""

    states: list[RankState]


class Stalled(Message, frozen=True):
    """Up: a rank makes no progress in this phase."""

    what: str


class Where(Message, frozen=True):
    """Both ways: send your state at once."""


class Here(Message, frozen=True):
    """Both ways: states of ranks."""

    states: list[RankState]


class Aside(Message, frozen=True):
    """Up: a second connection of ranks that get no reply on their first one."""

    ranks: list[Rank]


class Paths(Message, frozen=True):
    """Up: a rank's connections to other hosts, the port at which its host accepts probes (0: none), and its loopback interface."""

    rank: Rank
    port: Port
    reports: list[PathReport]
    loopback_up: bool = True


class SendProbe(Message, frozen=True):
    """Down: send packets of several sizes to this address and port."""

    address: str
    port: Port


class Probed(Message, frozen=True):
    """Up: which sizes have passed, and which have failed."""

    rank: Rank
    address: str
    passed: PacketSizes
    failed: PacketSizes


class TakeStack(Message, frozen=True):
    """Down: take the stack of one of your ranks."""

    rank: Rank


class Stack(Message, frozen=True):
    """Up: the stack of a rank."""

    rank: Rank
    text: str


class Gone(Message, frozen=True):
    """Up: the process of a rank has ended without a message."""

    rank: Rank
    end: ProcessEnd


class Bye(Message, frozen=True):
    """Up and down: a rank leaves in order (None: rank 0)."""

    rank: Rank | None = None


class Abort(Message, frozen=True):
    """Both ways: all ranks end with this message and exit code."""

    sentence: str
    code: Annotated[int, Meta(gt=0, lt=256)]


_DECODER = msgpack.Decoder(
    Hello | Welcome | Moved | Values | Offer | Grant | StepAnswer | Beat | Stalled | Where | Here | Aside | Paths | SendProbe | Probed
    | TakeStack | Stack | Gone | Bye | Abort
)  # fmt: skip


class Malformed(ValueError):
    """The message is not valid."""


def frames(message: Message) -> list[bytes | memoryview]:
    """Return the frames of a message for a socket. Raises ValueError if it exceeds a limit."""
    try:
        text = msgpack.encode(message)
    except UnicodeEncodeError:  # for example in the name of a file
        text = msgpack.encode(_encodable(to_builtins(message, builtin_types=(bytes, memoryview))))
    has_arrays = isinstance(message, Values) and message.size_bytes
    text = _PACKED + zlib.compress(text, 1) if len(text) >= _LONG_BYTES and not has_arrays else _PLAIN + text
    if len(text) > MOST_BYTES:
        raise ValueError(f"a message of {len(text)} bytes exceeds the limit of {MOST_BYTES}")
    return [memoryview(text)[start : start + PIECE_BYTES] for start in range(0, len(text), PIECE_BYTES)]


def _encodable(value: Any) -> Any:
    """Return a value in which "?" replaces the characters that UTF-8 does not have."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_encodable(name): _encodable(item) for name, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def parsed(pieces: Sequence[bytes | memoryview]) -> Message:
    """Return the message in these frames. Raises Malformed if they are not a valid message."""
    if not 1 <= len(pieces) <= MOST_BYTES // PIECE_BYTES or any(len(piece) > PIECE_BYTES for piece in pieces):
        raise Malformed(f"not a valid message of {len(pieces)} frames")
    text = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
    kind = bytes(text[:1])
    text = text[1:]
    if kind not in (_PLAIN, _PACKED):
        raise Malformed("not a message of this version")
    try:
        if kind == _PACKED:
            unpacker = zlib.decompressobj()
            text = memoryview(unpacker.decompress(text, MOST_UNPACKED_BYTES))
            if not unpacker.eof:
                raise Malformed("a message that is incomplete or too long")
        message: Message = _DECODER.decode(text)
    except (DecodeError, UnicodeDecodeError, RecursionError, zlib.error) as error:
        raise Malformed(str(error)) from None
    return message


def encoded(value: Any) -> bytes:
    """Return a value as JSON text. Raises TypeError if JSON has no such value."""
    return json.dumps(value, separators=(",", ":")).encode()


def decoded(text: bytes) -> Any:
    """Return the value in a JSON text. Raises Malformed."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from None


def check_ranks(ranks: Iterable[int | None], allowed: Container[int | None]) -> None:
    """Raise Malformed unless all these ranks are among those that may send through a connection."""
    if any(rank not in allowed for rank in ranks):
        raise Malformed("a rank of another connection")
