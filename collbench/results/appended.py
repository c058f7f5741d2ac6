"""A file that only grows, and its end where a run was killed while it wrote."""

from __future__ import annotations

import os
from pathlib import Path

from collbench.results.jsonl import parse_object

_STEP = 1 << 16


class Appended:
    """A file that only grows, by one process; an append that fails half-way is taken back.

    It must not exist yet; with `again` it does, and grows behind what it holds. Raises OSError.
    """

    def __init__(self, path: Path, again: bool = False) -> None:
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK  # no wait for a pipe's reader
        self._descriptor = os.open(path, flags if again else flags | os.O_EXCL, 0o666)
        self._size = os.fstat(self._descriptor).st_size

    def append(self, data: bytes) -> int:
        """Writes `data` at the end and returns the offset where it begins."""
        offset, rest = self._size, memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            os.ftruncate(self._descriptor, offset)
            raise
        self._size += len(data)
        return offset

    def sync(self) -> None:
        """Returns when the disk has the file's bytes and its length; its times may come later."""
        os.fdatasync(self._descriptor)

    def cut_last_line(self) -> int:
        """Takes off what stands behind the last end of a line; returns how many bytes that was. For files opened `again`.

        An object that lacks nothing but its line's end gets that.
        """
        size = self._end_of_lines()
        if size == self._size:
            return 0
        if self._is_whole(size):
            self.append(b"\n")
            self.sync()
            return 0
        cut, self._size = self._size - size, size
        os.ftruncate(self._descriptor, size)
        os.fsync(self._descriptor)
        return cut

    def close(self) -> None:
        """Leaves the file as it is."""
        os.close(self._descriptor)

    def remove(self) -> None:
        """Closes and deletes the file."""
        self.close()
        self._path.unlink(missing_ok=True)

    def _is_whole(self, start: int) -> bool:
        """Whether what stands there up to the end is an object: readers take it for a line, and none is one before its last byte."""
        with self._path.open("rb") as file:
            file.seek(start)
            try:
                return bool(parse_object(file.read(self._size - start)))
            except ValueError:
                return False

    def _end_of_lines(self) -> int:
        end = self._size
        with self._path.open("rb") as file:
            while end:
                start = max(0, end - _STEP)
                file.seek(start)
                found = file.read(end - start).rfind(b"\n")
                if found >= 0:
                    return start + found + 1
                end = start
        return 0
