"""Reading of files of unknown origin: only regular ones, without waiting, and up to a limit.

A pipe or a terminal instead of a file would block forever, and a device may act when it is opened. A sparse file may be larger than
the memory. A rejected file raises OSError with the reason in `strerror`, which callers show like that of a missing file.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

T = TypeVar("T")

_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}
_MOST_PARTS = 32
# The parser's time grows with the square of a key's parts. No match begins within a part, so this search takes linear time.
_LONG_KEY = re.compile(rf"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){{{_MOST_PARTS}}}""")

_SURROGATE = re.compile("[\ud800-\udfff]")
_MAYBE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_HEX = "[0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf"\\(?:u[dD][89abAB]{_HEX}\\u[dD][c-fC-F]{_HEX}|(?P<alone>u[dD][89a-fA-F]{_HEX})|.)", re.DOTALL)


def open_file(path: Path) -> BinaryIO:
    """Return a regular file, opened. Raises OSError, also for another kind of file."""
    try:
        _check_kind(path, os.stat(path).st_mode)  # noqa: PTH116 - before opening, which some devices react to
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        raise OSError(errno.EINVAL, "not a valid file name", str(path)) from error
    try:
        _check_kind(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path, most: int) -> bytes:
    """Return the content of a regular file. Raises OSError, also for a file of more than `most` bytes."""
    with open_file(path) as file:
        known = os.fstat(file.fileno()).st_size  # read() allocates as many bytes as it is asked for
        data = file.read(min(known, most) + 1) or b""  # None: some kernel files are empty at the moment
        if known < len(data) <= most:  # a kernel file, or one that grows
            data += file.read(most + 1 - len(data)) or b""
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB", str(path))
    return data


@contextmanager
def unpacked(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file, without its gzip compression if it has one.

    Raises OSError, also for another kind of file, and in the block for damaged compression. A small file may hold terabytes: read it in
    bounded parts.
    """
    with open_file(path) as file:
        compressed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not compressed:
            yield file
            return
        import gzip
        import zlib

        try:
            with gzip.GzipFile(fileobj=file) as content:
                yield cast(BinaryIO, content)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise OSError(errno.EIO, "its gzip compression is damaged or incomplete", str(path)) from error


def encodable(text: str) -> str:
    """Return the text with U+FFFD for each surrogate. UTF-8 has none: a text with one can be neither printed nor stored.

    They are in bytes that are not UTF-8, as Python decodes names of files, arguments and environment variables, and in damaged JSON.
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def parse_json(text: str | bytes, **hooks: Any) -> Any:
    """Return the content of JSON, with U+FFFD for surrogates that are not a pair. `hooks`: of `json.loads`.

    Raises ValueError, and RecursionError for too deep nesting.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    if _MAYBE_SURROGATE.search(text):
        text = _ESCAPE.sub(_paired, text)
    return json.loads(encodable(text), **hooks)


def _paired(escape: re.Match[str]) -> str:
    """Return an escape of JSON as it is, or U+FFFD for a surrogate that is not a pair."""
    return "\ufffd" if escape["alone"] else escape[0]


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of TOML. Raises ValueError, also for too deep nesting and keys of too many parts."""
    if _LONG_KEY.search(text):
        raise ValueError(f"a key has more than {_MOST_PARTS} parts")
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def list_of(value: Any, kind: type[T]) -> list[T]:
    """Return the items of a JSON list that have this type; [] for a value that is not a list."""
    return [each for each in value if isinstance(each, kind)] if isinstance(value, list) else []


def dict_of(value: Any) -> dict[str, Any]:
    """Return a JSON object; {} for a value that is not an object."""
    return value if isinstance(value, dict) else {}


def values_in(text: bytes) -> int:
    """Return an upper estimate of the number of values in JSON; a list counts as five, since an empty one takes 64 bytes of memory."""
    return 1 + text.count(b",") + text.count(b":") + 5 * (text.count(b"[") + text.count(b"{"))


def _check_kind(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(mode), 'a special file')}, not a regular file", str(path))


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch garbage collection off in the block. With a million permanent values it takes a third of the time, and finds nothing."""
    looked = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looked:
            gc.enable()
