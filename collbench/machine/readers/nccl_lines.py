"""The lines of a log of any size: read in blocks, so that memory does not grow with the file. Pipes, devices and binaries are refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from collbench.machine.readers.text import HEAD, Unreadable, printable
from collbench.machine.source_files import is_folder

LONGEST = 4096  # bytes of a line that are looked at; ring listings of thousands of ranks are cut
_BLOCK = 1 << 20
_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstandard


def is_packed(path: Path) -> bool:
    """Whether the file is compressed. Raises Unreadable for what is no file or cannot be read."""
    with _Opened(path) as read:
        return read(8).startswith(_PACKED)


def lines_in(path: Path) -> Iterator[list[bytes]]:
    """The file's lines, a block at a time; a last line without its end is one, too.

    Raises Unreadable for a folder, a pipe, a device, a file that is empty, is binary, or cannot be read (to the end, too).
    """
    with _Opened(path) as read:
        head = read(_BLOCK)
        if not head.strip():
            raise Unreadable(f"{printable(path.name)} is empty: save NCCL's log into it again")
        if b"\x00" in head[:HEAD]:
            raise Unreadable(f"{printable(path.name)} is binary, no log of NCCL: name the text that NCCL_DEBUG=INFO prints")
        yield from lines_of(read, head)


def lines_of(read: Callable[[int], bytes], begun: bytes = b"") -> Iterator[list[bytes]]:
    """What `read(at most)` gives after `begun`, as lists of lines; of a line that never ends, a few thousand bytes are kept."""
    rest, block = b"", begun or read(_BLOCK)
    while block:
        lines = (rest + block).split(b"\n")
        rest = lines.pop()[:LONGEST]
        yield lines
        block = read(_BLOCK)
    yield [rest]


class _Opened:
    """A regular file, opened without waiting; what fails while it is read becomes a sentence."""

    def __init__(self, path: Path) -> None:
        if is_folder(path):
            raise Unreadable(f"{printable(str(path))} is a folder: name the file that holds NCCL's log")
        self.path, self.descriptor = path, -1

    def __enter__(self) -> Callable[[int], bytes]:
        try:
            self.descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as why:
            raise self._unreadable(why) from None
        return self._read

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def _read(self, most: int) -> bytes:
        try:
            return os.read(self.descriptor, most)
        except OSError as why:
            raise self._unreadable(why) from None

    def _unreadable(self, why: OSError) -> Unreadable:
        reason = why.strerror or type(why).__name__
        return Unreadable(f"{printable(str(self.path))} cannot be read ({reason}): name the file that holds NCCL's log")
