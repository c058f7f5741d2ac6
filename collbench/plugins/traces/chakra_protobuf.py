"""Read `.et` files, the protobuf of MLCommons Chakra.

Such a file is a series of messages, each after its length: GlobalMetadata, then a Node per operation (et_def.proto of
github.com/mlcommons/chakra). Sizes are bytes; the inputs that the converter of PyTorch's traces keeps have the data type. A node waits
for its data_deps; its ctrl_deps are the nodes that called it. The package protobuf parses the messages.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from collbench.errors import UsageError
from collbench.plugins.traces.c10d import GROUPS_NODE, MESSAGES, ROOTED, dtype_in, width_of
from collbench.plugins.traces.files import text_chunks
from collbench.plugins.traces.model import KIND, UNKNOWN, Part, RankTrace
from collbench.plugins.traces.rank_builder import MOST_WAITS, RankBuilder, dependencies
from collbench.untrusted import encodable

# The numbers and types of the fields that are read. Messages in messages are declared as bytes, which are encoded in the same way: most
# attributes equal those of an earlier node and are not parsed again. Varints are declared with 64 bits, so that no number is truncated.
_SCHEMA: dict[str, dict[str, tuple[int, str]]] = {
    "GlobalMetadata": {"version": (1, "bytes"), "attr": (2, "repeated bytes")},
    "Node": {
        "id": (1, "uint64"), "name": (2, "bytes"), "type": (3, "uint64"), "data_deps": (5, "repeated uint64"),
        "start_time_micros": (6, "uint64"), "duration_micros": (7, "uint64"), "inputs": (8, "bytes"), "attr": (10, "repeated bytes"),
    },
    "IOInfo": {"values": (1, "bytes"), "types": (3, "bytes")},
    "AttributeProto": {
        "name": (1, "bytes"), "int32_val": (7, "oneof int64"), "int64_val": (9, "oneof int64"), "uint32_val": (11, "oneof int64"),
        "uint64_val": (13, "oneof int64"), "sint32_val": (15, "oneof sint64"), "sint64_val": (17, "oneof sint64"),
        "fixed32_val": (19, "oneof fixed32"), "fixed64_val": (21, "oneof fixed64"), "sfixed32_val": (23, "oneof sfixed32"),
        "sfixed64_val": (25, "oneof sfixed64"), "bool_val": (27, "oneof int64"), "string_val": (29, "oneof bytes"),
    },
}  # fmt: skip
_METADATA_KEYS = (1 << 3 | 2, 2 << 3 | 2)  # that begin the fields of GlobalMetadata
_SENDS, _RECEIVES, _COLLECTIVE = 5, 6, 7  # NodeType
_COMM_TYPES = (
    "allreduce", "reduce", "allgather", "gather", "scatter", "broadcast", "alltoall", "reducescatter", "reducescatter", "barrier",
)  # fmt: skip
_LARGEST_MESSAGE = 64 << 20
_LONGEST_LIST = 8 << 20  # of process groups
_MOST_MEANINGS = 1 << 16  # that are kept
_MOST_ATTRIBUTES = 1 << 16  # of a node
_GROUPS_NODE = GROUPS_NODE.encode()
_SIZE = b"\n\x09comm_size"  # the name at the begin of an AttributeProto


def recognizes(path: Path, head: bytes) -> bool:
    """Return whether a file has the suffix `.et`, and begins like a GlobalMetadata message."""
    if path.name.removesuffix(".gz").rpartition(".")[2] not in ("et", "chakra"):
        return False
    try:
        length, begin = _length(head, 0)
    except (ValueError, IndexError):
        return False
    if length == 0:
        return True
    complete = begin + length <= len(head) or len(head) == 1 << 16  # the head is 64 KiB of a longer file
    return complete and length < _LARGEST_MESSAGE and head[begin] in _METADATA_KEYS


def read_rank(path: Path) -> RankTrace:
    """Return the rank of a file. Raises UsageError with the file and the place of what is invalid, or if protobuf is not installed."""
    try:
        from google.protobuf.message import DecodeError
        from google.protobuf.unknown_fields import UnknownFieldSet

        parsers = _parsers()
    except ImportError as error:
        raise UsageError(f"{path}: reading an .et file needs protobuf: pip install 'collbench[traces]'") from error
    reader = _ProtobufReader(path, parsers)
    messages = _messages(path)
    reader.rank.what = "message"
    reader.rank.count = 1
    first = next(messages, None)
    if first is None:
        raise reader.rank.fail("it is missing")
    try:
        if len(UnknownFieldSet(parsers["GlobalMetadata"](first))):
            raise reader.rank.fail("the first message is not a GlobalMetadata")
        parse_node = parsers["Node"]
        for count, data in enumerate(messages, 2):
            reader.rank.count = count
            reader.node(parse_node(data))
    except DecodeError as error:
        raise reader.rank.fail("it is not a valid message") from error
    reader.rank.what = ""
    return reader.trace()


@cache
def _parsers() -> Mapping[str, Callable[[bytes], Any]]:
    """Return the parser of each message of `_SCHEMA`. Raises ImportError if protobuf is not installed."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", syntax="proto2")
    for message_name, fields in _SCHEMA.items():
        declared = file.message_type.add(name=message_name)
        for field_name, (number, declaration) in fields.items():
            rule, _, kind = declaration.rpartition(" ")
            field = declared.field.add(name=field_name, number=number, type=f"TYPE_{kind.upper()}", label="LABEL_OPTIONAL")
            if rule == "repeated":
                field.label = field.LABEL_REPEATED
            elif rule == "oneof":
                field.oneof_index = 0
                if not declared.oneof_decl:
                    declared.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = message_factory.GetMessageClassesForFiles([file.name], pool)
    return {name: classes[name].FromString for name in _SCHEMA}


class _Meaning(NamedTuple):
    """What the operations of nodes with equal attributes, except for the size, have in common. width: bytes of an element, 0 if unknown."""

    kind: int
    group: int
    dtype: str
    width: int
    root: int
    queue: int


def _length(data: bytes, place: int) -> tuple[int, int]:
    """Return a length and the position after it. Raises IndexError if the data ends, and ValueError for more than 64 bits."""
    value = 0
    for shift in range(0, 64, 7):
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, place
    raise ValueError("a number is longer than 64 bits")


def _messages(path: Path) -> Iterator[bytes]:
    """Yield the messages of a file. Raises UsageError if it is truncated, or a message is larger than 64 MiB."""
    data = b""
    at = 0
    before = 0
    for chunk in text_chunks(path):
        before += at
        data = data[at:] + chunk
        at = 0
        while True:
            try:
                length = data[at]
                begin = at + 1
                if length > 127:
                    length, begin = _length(data, at)
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


class _ProtobufReader:
    """What is collected of the nodes."""

    def __init__(self, path: Path, parsers: Mapping[str, Callable[[bytes], Any]]) -> None:
        self.rank = RankBuilder(path)
        self.parse_attribute = parsers["AttributeProto"]
        self.parse_inputs = parsers["IOInfo"]
        self.meanings: dict[tuple[Any, ...], _Meaning] = {}  # of operations so far: most are equal to an earlier one, except for the size
        self.places: dict[int, int] = {}  # by number of a node, its place in the file
        self.needs: list[list[int]] = []  # by place: the numbers of the nodes that it waits for
        self.in_bytes = False  # whether an operation has no data type: its bytes are stored as uint8
        self.indices: dict[int, int] = {}  # by place: the index of the node's operation

    def node(self, node: Any) -> None:
        """Add a node. Raises protobuf's DecodeError if a message in it is not valid."""
        place = len(self.needs)
        if not place % 65536:
            self.rank.check_records(place)
        if self.places.setdefault(node.id, place) != place:
            raise self.rank.fail(f"it is the second node with number {node.id}")
        self.needs.append(node.data_deps[:])
        if node.name == _GROUPS_NODE:
            self.groups(node.inputs)
        index = self.operation(node)
        if index is not None:
            self.indices[place] = index

    def trace(self) -> RankTrace:
        """Return the trace, with the operations in the order of their nodes' numbers."""
        numbers = np.fromiter(self.places, np.uint64, len(self.places))[np.fromiter(self.indices, np.int64, len(self.indices))]
        order = np.argsort(numbers, kind="stable")
        positions = np.empty(len(order), np.int64)
        positions[order] = np.arange(len(order))
        waits = self.waits(dict(zip(self.indices, positions.tolist(), strict=True)))
        operations = self.rank.operations()[order]
        return self.rank.trace(operations, (Part.DTYPES,) if self.in_bytes else (), after=dependencies(waits))

    def waits(self, positions: Mapping[int, int]) -> list[tuple[int, ...]]:
        """Return by operation the nearest ones before it, on all ways through the nodes. positions: of the operations, by place."""
        waits: list[tuple[int, ...]] = [()] * len(positions)
        nearest: list[tuple[int, ...] | None] = [None] * len(self.needs)  # by place: the operations before the node, or that it is
        opened: set[int] = set()
        for first in range(len(self.needs)):
            stack = [first]
            while stack:
                place = stack.pop()
                if nearest[place] is not None:
                    continue
                needed = [self.places[number] for number in self.needs[place] if number in self.places]
                unresolved = [earlier for earlier in needed if nearest[earlier] is None]
                if unresolved:
                    if place in opened:
                        raise UsageError(f"{self.rank.path}: its nodes wait for each other: record or convert the trace again")
                    opened.add(place)
                    stack += (place, *unresolved)
                    continue
                if len(needed) == 1:
                    before = nearest[needed[0]] or ()
                else:
                    before = tuple(sorted({operation for earlier in needed for operation in nearest[earlier] or ()})[-MOST_WAITS:])
                position = positions.get(place)
                nearest[place] = before if position is None else (position,)
                if position is not None:
                    waits[position] = before
        return waits

    def operation(self, node: Any) -> int | None:
        """Add the operation of a node, and return its index; None if it does not communicate."""
        kind = node.type
        if kind not in (_SENDS, _RECEIVES, _COLLECTIVE):
            return None
        attributes = node.attr[:]
        if not attributes:
            return None
        if len(attributes) > _MOST_ATTRIBUTES:
            raise self.rank.fail(f"it has {len(attributes)} attributes")
        size: int | str | None = None
        rest = []
        for attribute in attributes:
            if attribute.startswith(_SIZE):
                size = self.attribute(attribute)[1]
            else:
                rest.append(attribute)
        if kind != _COLLECTIVE and size is None:
            return None  # the call on the CPU of an operation that another node has
        key = (kind, node.inputs, *rest)
        meaning = self.meanings.get(key)
        if meaning is None:
            meaning = self.meaning(node, dict(map(self.attribute, rest)))
            if meaning is None:
                return None
            if len(self.meanings) >= _MOST_MEANINGS:
                self.meanings.clear()
            self.meanings[key] = meaning
        number = size if isinstance(size, int) else UNKNOWN
        dtype = ""
        if meaning.width and number >= 0 and number % meaning.width == 0:
            number //= meaning.width
            dtype = meaning.dtype
        received = UNKNOWN if meaning.kind in (KIND["allgather"], KIND["reducescatter"]) else number
        start = node.start_time_micros * 1000 or UNKNOWN
        duration = node.duration_micros * 1000 or UNKNOWN
        end = start + duration if UNKNOWN not in (start, duration) else UNKNOWN
        self.in_bytes |= not dtype and meaning.kind != KIND["barrier"]
        return self.rank.add(
            meaning.kind, meaning.group, dtype or "Byte", number, received,
            root=meaning.root, queue=meaning.queue, start=start, end=end, duration=duration,
        )  # fmt: skip

    def attribute(self, data: bytes) -> tuple[str, int | str]:
        """Return the name and value of an attribute; ("", 0) if it is not a number or a text."""
        attribute = self.parse_attribute(data)
        field = attribute.WhichOneof("value")
        if field is None:
            return "", 0
        value = getattr(attribute, field)
        if field == "string_val":
            value = value.decode("utf-8", "replace")
        return attribute.name.decode("utf-8", "replace"), value

    def meaning(self, node: Any, attributes: Mapping[str, int | str]) -> _Meaning | None:
        """Return what a node's operation is, but for its size; None if it does not communicate."""
        rank = self.rank
        comm_type = attributes.get("comm_type")
        if node.type != _COLLECTIVE:
            kind = KIND["send" if node.type == _SENDS else "recv"]
        elif isinstance(comm_type, int):
            if not 0 <= comm_type < len(_COMM_TYPES):
                raise rank.fail(f"collective type {comm_type} is not valid")
            kind = KIND[_COMM_TYPES[comm_type]]
        else:
            return None
        dtype = self.dtype(node.inputs)
        root: Any = UNKNOWN
        if kind in MESSAGES:
            root = attributes.get("comm_dst" if kind == KIND["send"] else "comm_src", UNKNOWN)
        elif kind in ROOTED:
            root = attributes.get("comm_root", attributes.get("root", UNKNOWN))
        if not isinstance(root, int):
            raise rank.fail("the rank of the root or peer is not valid")
        caller = attributes.get("comm_src" if kind == KIND["send"] else "comm_dst")
        if kind in MESSAGES and isinstance(caller, int) and caller >= 0:
            if rank.rank not in (UNKNOWN, caller):
                raise rank.fail(f"it is an operation of rank {caller}, others are of rank {rank.rank}")
            rank.rank = caller
        group = rank.group(str(attributes.get("pg_name", attributes.get("comm_group", ""))))
        stream = attributes.get("stream", UNKNOWN)
        queue = stream if isinstance(stream, int) else UNKNOWN
        return _Meaning(kind, group, dtype, width_of(dtype), rank.checked_rank(root), queue)

    def groups(self, data: bytes) -> None:
        """Define the process groups of the job: in the converter's node they are Python's text of the list of PyTorch's inputs."""
        inputs = self.parse_inputs(data).values
        try:
            values = ast.literal_eval(inputs.decode("utf-8", "replace")) if len(inputs) < _LONGEST_LIST else None
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            values = None
        first = values[0] if isinstance(values, list) and values else ""
        self.rank.define_all(encodable(first) if isinstance(first, str) else first)

    def dtype(self, data: bytes) -> str:
        """Return torch's data type in the inputs of a node; "" if there is none."""
        types = self.parse_inputs(data).types
        return dtype_in([types[:1000].decode("utf-8", "replace")]) if data else ""
