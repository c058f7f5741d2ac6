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
        self.path, self.key = path, key
        self.fields: dict[str, Any] = {}
        self._decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        self._done = 0  # records before the block
        self._offset = 0  # bytes before the block
        self._separator = b""

    def __iter__(self) -> Iterator[list[T]]:
        """Yield the records, a list for each block. Raises UsageError with the place of what is invalid."""
        self._done = self._offset = 0
        chunks = text_chunks(self.path)
        data = b""
        while len(data) <= BLOCK and (chunk := next(chunks, b"")):
            data += chunk
        more = len(data) > BLOCK
        begin = self._list_begin(data)
        while more and begin < 0 and len(data) <= _MOST_REST and (chunk := next(chunks, b"")):
            data += chunk
            begin = self._list_begin(data)
        if begin < 0:
            self._reject(data)
        if not more:
            yield from self._at_once(data)
            return
        self._offset = begin
        self._separator = self._separator_of(data[begin:])
        block = bytearray(data[begin:])  # grows in place: copies of blocks would take a tenth of the time
        del data
        while True:
            cut = block.rfind(self._separator) if self._separator else -1
            if cut >= 0:
                rest = block[block.index(b"{", cut) :]
                del block[cut + 1 :]
                yield self._decoded(block)
                block = rest
            elif len(block) > _MOST_REST:
                raise UsageError(f"{self.path}: a record is larger than {_MOST_REST >> 20} MiB (byte {self._offset})")
            before = len(block)
            while len(block) < before + BLOCK and (chunk := next(chunks, b"")):
                block += chunk
            if len(block) == before:
                break
        yield self._last(block)

    def _at_once(self, data: bytes) -> Iterator[list[T]]:
        try:
            whole = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            if self.key not in whole:
                self._fail(f"'{self.key}' is missing")
            records = whole.pop(self.key)
            self.fields = {name: msgspec.json.decode(value) for name, value in whole.items()}
        except INVALID as error:
            self._fail(_what(error))
        yield self._decoded(bytes(records), listed=True)

    def _list_begin(self, data: bytes) -> int:
        """Return the position after the "[" of the list, -1 if it is not in the data; also set `fields` to those before it."""
        for match in islice(re.finditer(rb'"%s"\s{0,200}:\s{0,200}\[' % self.key.encode(), data), 50):
            try:
                before = msgspec.json.decode(data[: match.end()] + b"]}")
            except INVALID:
                continue  # within a string or a nested object
            if isinstance(before, dict) and before.pop(self.key, None) == []:
                self.fields = before
                return match.end()
        return -1

    def _reject(self, data: bytes) -> NoReturn:
        """Raise the reason why a file has no such list."""
        try:
            whole = msgspec.json.decode(data)
        except INVALID as error:
            self._fail(_what(error))
        self._fail(f"'{self.key}' is not a list" if isinstance(whole, dict) and self.key in whole else f"'{self.key}' is missing")

    def _separator_of(self, data: bytes) -> bytes:
        """Return the text between the first two records, from "}" to the second one's first key; b"" if there is none."""
        text = data[:BLOCK].decode("latin-1")
        try:
            end = _PLAIN.raw_decode(text, _SPACE.match(text).end())[1]  # type: ignore[union-attr]
        except (ValueError, RecursionError):
            return b""
        match = _SEPARATOR.match(data, end - 1)
        return match[0] if match else b""

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
        text, at = data.decode("latin-1"), 0  # a character for each byte
        try:
            while True:
                at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
                if text[at : at + 1] == "]":
                    break
                at = _SPACE.match(text, _PLAIN.raw_decode(text, _AFTER_COMMA.match(text, at).end())[1]).end()  # type: ignore[union-attr]
        except (ValueError, RecursionError):
            self._fail("invalid or truncated JSON: the list of records does not end")
        try:
            self.fields |= msgspec.json.decode(b"".join((b'{"":0', data[at + 1 :])), type=dict[str, Any])
        except INVALID as error:
            self._fail(_what(error))
        self.fields.pop("")
        return self._decoded(data[:at])

    def _fail(self, what: str, place: re.Match[str] | None = None) -> NoReturn:
        where = f"record {self._done + int(place[1])} of '{self.key}': " if place else f"after record {self._done} of '{self.key}': "
        raise UsageError(f"{self.path}: {where if place or self._done else ''}{what}: record or copy the trace again") from None


def _what(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = str(error)
    return text if isinstance(error, msgspec.ValidationError) else f"invalid JSON: {text}"
