"""Read the records of a large JSON file block by block: the nodes of an execution trace, the events of a Kineto trace.

Such a file is one object with a few fields and one long list. It may be larger than the memory, and compressed (gzip). A file of up to
BLOCK bytes is decoded at once. A larger one is cut between two records of the list, where the text equals the text between its first two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from collbench.errors import UsageError
from collbench.plugins.traces.files import text_chunks

T = TypeVar("T")

BLOCK = 16 << 20  # bytes that are decoded at once
_MOST_REST = 64 << 20  # of the fields before or after the list, and of one record
_SEPARATOR = re.compile(rb'\}\s{0,200},\s{0,200}\{\s{0,200}"[^"\\]{1,100}"')
# msgspec rejects too deep nesting with RecursionError.
_PLAIN = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
_AFTER_COMMA = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")
INVALID = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)  # errors of msgspec for JSON that is not valid


class JsonRecords(Generic[T]):
    """The records of the list `key` of a JSON file, decoded as `kind`, and the other fields of its object.

    fields   the other fields of the object; complete after the iteration
    """

    def __init__(self, path: Path, key: str, kind: type[T]) -> None:
        self.path = path
        self.key = key
        self.fields: dict[str, Any] = {}
        self._decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        self._done = 0  # records before the block
        self._offset = 0  # bytes before the block

    def __iter__(self) -> Iterator[list[T]]:
        """Yield the records, a list for each block. Raises UsageError with the place of what is invalid."""
        self._done = self._offset = 0
        chunks = text_chunks(self.path)
        data = bytearray()  # it grows in place: copies of blocks would take a tenth of the time
        more = _grow(data, chunks)
        begin = -1
        while more and begin < 0 and len(data) <= _MOST_REST:
            begin = self._list_begin(data)
            if begin < 0:
                more = _grow(data, chunks)
        if begin < 0:
            yield self._whole(bytes(data))
            return
        self._offset = begin
        del data[:begin]
        separator = _separator_of(data)
        while True:
            cut = data.rfind(separator) if separator else -1
            if cut >= 0:
                rest = data[data.index(b"{", cut) :]
                del data[cut + 1 :]
                yield self._decoded(data)
                data = rest
            elif len(data) > _MOST_REST:
                raise UsageError(f"{self.path}: a record is larger than {_MOST_REST >> 20} MiB (byte {self._offset})")
            if not more:
                break
            more = _grow(data, chunks)
        yield self._last(data)

    def _whole(self, data: bytes) -> list[T]:
        """Return the records of a complete file, and set the other fields."""
        try:
            whole = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            records = whole.pop(self.key, None)
            self.fields = {name: msgspec.json.decode(value) for name, value in whole.items()}
        except INVALID as error:
            self._fail(_what(error))
        if records is None:
            self._fail(f"'{self.key}' is missing")
        if not bytes(records).startswith(b"["):
            self._fail(f"'{self.key}' is not a list")
        return self._decoded(bytes(records), listed=True)

    def _list_begin(self, data: bytearray) -> int:
        """Return the position after the "[" of the list, -1 if it is not in the data; also set `fields` to those before it."""
        for match in islice(re.finditer(rb'"%s"\s{0,200}:\s{0,200}\[' % self.key.encode(), data), 50):
            try:
                fields = msgspec.json.decode(data[: match.end()] + b"]}")
            except INVALID:
                continue  # within a string or a nested object
            if isinstance(fields, dict) and fields.pop(self.key, None) == []:
                self.fields = fields
                return match.end()
        return -1

    def _decoded(self, data: bytes | bytearray, listed: bool = False) -> list[T]:
        """Return the records of a part of the list. listed: with its brackets."""
        try:
            records = self._decoder.decode(data if listed else b"".join((b"[", data, b"]")))
        except msgspec.ValidationError as error:
            self._fail(_what(error), place=re.search(r"\$\[(\d+)\]", str(error)))
        except INVALID as error:
            self._fail(_what(error))
        self._done += len(records)
        self._offset += len(data)
        return records

    def _last(self, data: bytes | bytearray) -> list[T]:
        """Return the last records, and set the fields after the list."""
        text = data.decode("latin-1")  # a character for each byte
        end = 0
        try:
            while True:
                end = _SPACE.match(text, end).end()  # type: ignore[union-attr]
                if text[end : end + 1] == "]":
                    break
                end = _SPACE.match(text, _PLAIN.raw_decode(text, _AFTER_COMMA.match(text, end).end())[1]).end()  # type: ignore[union-attr]
        except (ValueError, RecursionError):
            self._fail("invalid or truncated JSON: the list of records does not end")
        try:
            self.fields |= msgspec.json.decode(b"".join((b'{"":0', data[end + 1 :])), type=dict[str, Any])
        except INVALID as error:
            self._fail(_what(error))
        self.fields.pop("")
        return self._decoded(data[:end])

    def _fail(self, what: str, place: re.Match[str] | None = None) -> NoReturn:
        where = f"record {self._done + int(place[1])} of '{self.key}': " if place else f"after record {self._done} of '{self.key}': "
        raise UsageError(f"{self.path}: {where if place or self._done else ''}{what}: record or copy the trace again") from None


def _grow(data: bytearray, chunks: Iterator[bytes]) -> bool:
    """Add a block to the data. Return False at the end of the file."""
    enough = len(data) + BLOCK
    for chunk in chunks:
        data += chunk
        if len(data) > enough:
            return True
    return False


def _separator_of(data: bytearray) -> bytes:
    """Return the text between the first two records, from "}" to the second one's first key; b"" if there is none."""
    text = data[:BLOCK].decode("latin-1")
    try:
        end = _PLAIN.raw_decode(text, _SPACE.match(text).end())[1]  # type: ignore[union-attr]
    except (ValueError, RecursionError):
        return b""
    match = _SEPARATOR.match(data, end - 1)
    return match[0] if match else b""


def _what(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = str(error)
    return text if isinstance(error, msgspec.ValidationError) else f"invalid JSON: {text}"
