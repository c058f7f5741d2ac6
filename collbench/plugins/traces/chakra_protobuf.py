"""Read `.et` files, the protobuf of MLCommons Chakra.

Such a file is a series of messages, each after its length: GlobalMetadata, then a Node per operation (et_def.proto of
github.com/mlcommons/chakra). Sizes are bytes; the inputs that the converter of PyTorch's traces keeps have the data type. A node waits
for its data_deps; its ctrl_deps are the nodes that called it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from collbench.errors import UsageError
from collbench.plugins.traces.c10d import GROUPS_NODE, MESSAGES, MOST_WAITS, ROOTED, RankBuilder, dependencies, dtype_in, sizes_of, width_of
from collbench.plugins.traces.json_records import text_chunks
from collbench.plugins.traces.model import KIND, UNKNOWN, Part, RankTrace
from collbench.untrusted import encodable

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DATA_DEP, _DATA_DEPS, _ATTRIBUTE = 5 << 3, 5 << 3 | _BYTES, 10 << 3 | _BYTES  # data_deps one by one and packed; ctrl_deps are callers
_SENDS, _RECEIVES, _COLLECTIVE = 5, 6, 7  # NodeType
_COMM_TYPES = (
    "allreduce", "reduce", "allgather", "gather", "scatter", "broadcast", "alltoall", "reducescatter", "reducescatter", "barrier",
)  # fmt: skip
_GATHERING = (KIND["allgather"], KIND["reducescatter"])
_LARGEST_MESSAGE = 64 << 20
_LONGEST_LIST = 8 << 20  # of process groups
_MOST_MEANINGS = 1 << 16  # that are kept
_GROUPS_NODE = GROUPS_NODE.encode()
_SIZE = b"\n\x09comm_size"  # the name at the begin of an AttributeProto
_INTEGERS, _SIGNED, _FIXED_INTEGERS, _TEXT = (7, 9, 11, 13, 27), (15, 17), (19, 21, 23, 25), 29  # fields of AttributeProto
_INTEGER_KEYS = tuple(field << 3 for field in _INTEGERS if field < 16)


def recognizes(path: Path, head: bytes) -> bool:
    """Return whether a file has the suffix `.et`, and begins with a GlobalMetadata message: text, and attributes."""
    if path.name.removesuffix(".gz").rpartition(".")[2] not in ("et", "chakra"):
        return False
    try:
        length, at = _varint(head, 0)
        first = head[at : at + length]
        return length == 0 or (length < _LARGEST_MESSAGE and all(field in (1, 2) and kind == _BYTES for field, kind, _ in _fields(first)))
    except (ValueError, IndexError):
        return len(head) == 1 << 16  # the message is longer than the head


def read_rank(path: Path) -> RankTrace:
    """Return the rank of a file. Raises UsageError with the file and the place of what is invalid."""
    reader = _ProtobufReader(path)
    messages = _messages(path)
    try:
        reader.rank.what, reader.rank.count = "message", 1
        first = next(messages, None)
        if first is None:
            raise ValueError("it is missing")
        for field, kind, _ in _fields(first):
            if field not in (1, 2) or kind != _BYTES:
                raise ValueError("the first message is not a GlobalMetadata")
        for count, data in enumerate(messages, 2):
            reader.rank.count = count
            reader.node(_node_of(data))
    except (ValueError, IndexError) as error:
        what = "it ends within a field" if isinstance(error, IndexError) else str(error)
        raise reader.rank.fail(what) from error
    reader.rank.what = ""
    return reader.trace()


class _Message(msgspec.Struct, gc=False):
    """A protobuf node. waits: the numbers of nodes; attributes: each AttributeProto of communication, not decoded."""

    number: int
    type: int
    name: bytes
    waits: list[int]
    attributes: list[bytes]
    start: int
    duration: int
    text: bytes


class _Meaning(NamedTuple):
    """What the operations of nodes with equal attributes, except for the size, have in common. width: bytes of an element, 0 if unknown."""

    kind: int
    group: int
    dtype: str
    width: int
    root: int
    queue: int


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the position after it. Raises IndexError if the data ends, and ValueError for more than 64 bits."""
    first = data[at]
    if first < 128:
        return first, at + 1
    second = data[at + 1]
    if second < 128:
        return first - 128 | second << 7, at + 2
    value, shift, at = first - 128 | second - 128 << 7, 14, at + 2
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is longer than 64 bits")


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield (field, wire type, number or bytes) of a message. Raises ValueError or IndexError if it is not valid."""
    at, end = 0, len(data)
    while at < end:
        key = data[at]
        at += 1
        if key > 127:
            key, at = _varint(data, at - 1)
        kind = key & 7
        if kind == _BYTES:
            size = data[at]
            at += 1
            if size > 127:
                size, at = _varint(data, at - 1)
            stop = at + size
            if stop > end:
                raise ValueError("a field is longer than its message")
            yield key >> 3, kind, data[at:stop]
            at = stop
        elif kind == _VARINT:
            value = data[at]
            at += 1
            if value > 127:
                value, at = _varint(data, at - 1)
            yield key >> 3, kind, value
        elif kind in (_FIXED64, _FIXED32):
            stop = at + (8 if kind == _FIXED64 else 4)
            if stop > end:
                raise ValueError("a field is longer than its message")
            yield key >> 3, kind, data[at:stop]
            at = stop
        else:
            raise ValueError(f"wire type {kind} is not valid")


def _messages(path: Path) -> Iterator[bytes]:
    """Yield the messages of a file. Raises UsageError if it is truncated, or a message is larger than 64 MiB."""
    data, at, before = b"", 0, 0
    for chunk in text_chunks(path):
        data, at, before = data[at:] + chunk, 0, before + at
        while True:
            try:
                length, begin = data[at], at + 1
                if length > 127:
                    length, begin = _varint(data, at)
            except IndexError:
                break
            except ValueError as error:
                raise UsageError(f"{path}: byte {before + at}: {error}: copy the file again") from error
            if length > _LARGEST_MESSAGE:
                raise UsageError(f"{path}: byte {before + at}: a message of {length} bytes is not valid: copy the file again")
            if begin + length > len(data):
                break
            yield data[begin : begin + length]
            at = begin + length
    if at < len(data):
        raise UsageError(f"{path}: it is truncated at byte {before + at}: copy the file again")


def _node_of(data: bytes) -> _Message:
    """Return a node. Raises ValueError or IndexError if it is not valid."""
    # Written out, since most of the time of reading is spent here: `_fields` yields the same.
    attributes: list[bytes] = []
    numbers: dict[int, int] = {}
    texts: dict[int, bytes] = {}
    waits: list[int] = []
    at, end = 0, len(data)
    while at < end:
        key = data[at]
        at += 1
        if key > 127:
            key, at = _varint(data, at - 1)
        value = data[at]
        at += 1
        if value > 127:
            value, at = _varint(data, at - 1)
        if key & 7 == _BYTES:
            stop = at + value
            if stop > end:
                raise ValueError("a field is longer than its message")
            if key == _ATTRIBUTE:
                attributes.append(data[at:stop])
            elif key == _DATA_DEPS:
                waits += _varints(data[at:stop])
            else:
                texts[key] = data[at:stop]
            at = stop
        elif key & 7 != _VARINT:
            raise ValueError(f"wire type {key & 7} is not valid")
        elif key == _DATA_DEP:
            waits.append(value)
        else:
            numbers[key] = value
    number, text = numbers.get, texts.get
    kind = number(3 << 3, 0)
    return _Message(
        number(1 << 3, 0), kind, text(2 << 3 | _BYTES, b""), waits, attributes if kind in (_SENDS, _RECEIVES, _COLLECTIVE) else [],
        number(6 << 3, 0), number(7 << 3, 0), text(8 << 3 | _BYTES, b""),
    )  # fmt: skip


def _varints(data: bytes) -> list[int]:
    found, at, end = [], 0, len(data)
    while at < end:
        number, at = _varint(data, at)
        found.append(number)
    return found


def _attribute(data: bytes) -> tuple[str, int | str]:
    """Return the name and value of an attribute; ("", 0) if it is not a number or a text."""
    name, found = "", None
    for field, kind, value in _fields(data):
        if field == 1 and kind == _BYTES:
            name = value.decode("utf-8", "replace")
        elif field == _TEXT and kind == _BYTES:
            found = value.decode("utf-8", "replace")
        elif field in _INTEGERS and kind == _VARINT:
            found = value - (1 << 64) if value >> 63 else value
        elif field in _SIGNED and kind == _VARINT:
            found = (value >> 1) ^ -(value & 1)
        elif field in _FIXED_INTEGERS and kind in (_FIXED32, _FIXED64):
            found = int.from_bytes(value, "little", signed=field > 22)
    return (name, found) if found is not None else ("", 0)


def _size(data: bytes) -> int | str:
    """Return the value of an attribute with the name `_SIZE`. Most have one integer; others are read as any attribute."""
    if len(data) > len(_SIZE) + 1 and data[len(_SIZE)] in _INTEGER_KEYS:
        value, end = _varint(data, len(_SIZE) + 1)
        if end == len(data) and value < 1 << 63:
            return value
    return _attribute(data)[1]


class _ProtobufReader:
    """What is collected of the nodes."""

    def __init__(self, path: Path) -> None:
        self.rank = RankBuilder(path)
        self.meanings: dict[tuple[Any, ...], _Meaning] = {}  # of operations so far: most are equal to an earlier one, except for the size
        self.names: dict[int, str] = {}  # of the groups, by their index
        self.places: dict[int, int] = {}  # by number of a node, its place in the file
        self.needs: list[list[int]] = []  # by place: the numbers of the nodes that it waits for
        self.size_at = 0  # which attribute of the last node was the size
        self.in_bytes = False  # whether an operation has no data type: its bytes are stored as uint8
        self.indices: dict[int, int] = {}  # by place: the index of the node's operation

    def node(self, node: _Message) -> None:
        """Add a node."""
        place = len(self.needs)
        if not place % 65536:
            self.rank.check_records(place)
        if self.places.setdefault(node.number, place) != place:
            raise self.rank.fail(f"it is the second node with number {node.number}")
        self.needs.append(node.waits)
        if node.name == _GROUPS_NODE:
            self.groups(node.text)
        index = self.operation(node)
        if index is not None:
            self.indices[place] = index

    def trace(self) -> RankTrace:
        """Return the trace, with the operations in the order of their nodes' numbers."""
        operations = self.rank.operations()
        numbers = np.fromiter(self.places, np.uint64, len(self.places))[np.fromiter(self.indices, np.int64, len(self.indices))]
        order = np.argsort(numbers, kind="stable")
        places_in_order = np.empty(len(order), np.int64)
        places_in_order[order] = np.arange(len(order))
        position = places_in_order.tolist()  # elements of a list are read much faster
        waits: list[tuple[int, ...]] = [()] * len(order)
        nearest: list[tuple[int, ...] | None] = [None] * len(self.needs)  # by place: the operations before the node, or that it is
        opened: set[int] = set()
        for first, needs in enumerate(self.needs):
            place = self.places.get(needs[0], UNKNOWN) if len(needs) == 1 else UNKNOWN
            if place >= 0 and nearest[place] is not None and nearest[first] is None:  # most nodes wait for one that came before
                index = self.indices.get(first)
                if index is None:
                    nearest[first] = nearest[place]
                else:
                    waits[position[index]] = nearest[place]  # type: ignore[assignment]
                    nearest[first] = (position[index],)
                continue
            stack = [first]
            while stack:
                place = stack[-1]
                if nearest[place] is not None:
                    stack.pop()
                    continue
                needed = [self.places[each] for each in self.needs[place] if each in self.places]
                open_ones = [each for each in needed if nearest[each] is None]
                if open_ones:
                    if place in opened:
                        raise UsageError(f"{self.rank.path}: its nodes wait for each other: record or convert the trace again")
                    opened.add(place)
                    stack += open_ones
                    continue
                if len(needed) == 1:
                    before = nearest[needed[0]] or ()
                else:
                    before = tuple(sorted({each for some in needed for each in nearest[some] or ()})[-MOST_WAITS:])
                index = self.indices.get(place)
                if index is not None:
                    waits[position[index]] = before
                    before = (position[index],)
                nearest[place] = before
                stack.pop()
        return self.rank.trace(operations[order], (Part.DTYPES,) if self.in_bytes else (), after=dependencies(waits))

    def operation(self, node: _Message) -> int | None:
        """Add the operation of a node, and return its index; None if it does not communicate."""
        if not node.attributes:
            return None
        size: int | str | None = None
        attributes, at = node.attributes, self.size_at
        others = attributes[:at] + attributes[at + 1 :]
        if at < len(attributes) and attributes[at].startswith(_SIZE) and not any(each.startswith(_SIZE) for each in others):
            size = _size(attributes[at])
        else:
            others = []
            for at, each in enumerate(attributes):
                if each.startswith(_SIZE):
                    size, self.size_at = _size(each), at
                else:
                    others.append(each)
        if node.type != _COLLECTIVE and size is None:
            return None  # the call on the CPU of an operation that another node has
        key = (node.type, node.text, *others)
        meaning = self.meanings.get(key)
        if meaning is None:
            meaning = self.meaning(node, dict(map(_attribute, others)))
            if meaning is None:
                return None
            if len(self.meanings) >= _MOST_MEANINGS:
                self.meanings.clear()
            self.meanings[key] = meaning
        number, dtype = size if isinstance(size, int) else UNKNOWN, ""
        if meaning.width and number >= 0 and number % meaning.width == 0:
            number, dtype = number // meaning.width, meaning.dtype
        sent = received = number
        if meaning.kind in _GATHERING:
            names = self.rank.groups
            sent, received = sizes_of(meaning.kind, number, UNKNOWN, len(names[self.names[meaning.group]].ranks))
        start = node.start * 1000 if node.start else UNKNOWN
        duration = node.duration * 1000 if node.duration else UNKNOWN
        end = start + duration if UNKNOWN not in (start, duration) else UNKNOWN
        self.in_bytes |= not dtype and meaning.kind != KIND["barrier"]
        return self.rank.add(
            meaning.kind, meaning.group, dtype or "Byte", sent, received,
            root=meaning.root, queue=meaning.queue, start=start, end=end, duration=duration,
        )  # fmt: skip

    def meaning(self, node: _Message, attributes: Mapping[str, int | str]) -> _Meaning | None:
        """Return what a node's operation is, but for its size; None if it does not communicate."""
        comm_type, rank = attributes.get("comm_type"), self.rank
        if node.type != _COLLECTIVE:
            kind = KIND["send" if node.type == _SENDS else "recv"]
        elif isinstance(comm_type, int):
            if not 0 <= comm_type < len(_COMM_TYPES):
                raise rank.fail(f"collective type {comm_type} is not valid")
            kind = KIND[_COMM_TYPES[comm_type]]
        else:
            return None
        dtype = _dtype(node.text)
        root: Any = UNKNOWN
        if kind in MESSAGES:
            root = attributes.get("comm_dst" if kind == KIND["send"] else "comm_src", UNKNOWN)
        elif kind in ROOTED:
            root = attributes.get("comm_root", attributes.get("root", UNKNOWN))
        if not isinstance(root, int):
            raise rank.fail("the rank of the root or peer is not valid")
        own = attributes.get("comm_src" if kind == KIND["send"] else "comm_dst")
        if kind in MESSAGES and isinstance(own, int) and own >= 0:
            if rank.rank not in (UNKNOWN, own):
                raise rank.fail(f"it is an operation of rank {own}, others are of rank {rank.rank}")
            rank.rank = own
        name = str(attributes.get("pg_name", attributes.get("comm_group", "")))
        group, stream = rank.group(name), attributes.get("stream", UNKNOWN)
        self.names[group] = name
        queue = stream if isinstance(stream, int) else UNKNOWN
        return _Meaning(kind, group, dtype, width_of(dtype), rank.checked_rank(root), queue)

    def groups(self, text: bytes) -> None:
        """Define the process groups of the job: in the converter's node they are Python's text of the list of PyTorch's inputs."""
        inputs = next((value for field, kind, value in _fields(text) if field == 1 and kind == _BYTES), b"")
        try:
            values = ast.literal_eval(inputs.decode("utf-8", "replace")) if len(inputs) < _LONGEST_LIST else None
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            values = None
        first = values[0] if isinstance(values, list) and values else ""
        self.rank.define_all(encodable(first) if isinstance(first, str) else first)


def _dtype(text: bytes) -> str:
    """Return torch's data type in the text of a node's inputs; "" if there is none."""
    types = next((value for field, kind, value in _fields(text) if field == 3 and kind == _BYTES), b"")
    return dtype_in([types[:1000].decode("utf-8", "replace")]) if text else ""
