"""A file that only grows, and its end where a run was killed while it wrote."""

from __future__ import annotations

import errno
import os
import weakref
from pathlib import Path

from collbench.results.jsonl import LARGEST_BYTES, parse_object

GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
_STEP = 1 << 16


class Appended:
    """A file that only grows, by one process; what was not written to its end, or did not reach the disk, is taken back.

    It must not exist yet; with `again` it does, and grows behind what it holds. Raises OSError.
    """

    def __init__(self, path: Path, again: bool = False) -> None:
        self._path = path
        # Another's folder may have a pipe in a file's place, or a link to what is ours.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags if again else flags | os.O_EXCL, 0o666)
        self._close = weakref.finalize(self, os.close, self._descriptor)  # also where whoever had it is gone without a word
        self._size = self._synced = os.fstat(self._descriptor).st_size

    def append(self, data: bytes) -> int:
        """Writes `data` at the end and returns the offset where it begins."""
        offset, rest = self._size, memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            self._size += len(data)
        except BaseException:  # a signal's, too: the next line would be glued to half of this one
            self._take_back(offset)
            raise
        return offset

    def sync(self) -> None:
        """Returns when the disk has the file's bytes and its length; its times may come later."""
        try:
            os.fdatasync(self._descriptor)
            self._synced = self._size
        except BaseException:
            self._take_back(self._synced)
            raise

    @property
    def is_in_place(self) -> bool:
        """Whether the file is still at its path: one that was moved, deleted or unmounted takes all that is written. Raises OSError."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except OSError as error:
            if error.errno in GONE:
                return False
            raise

    @property
    def moved_to(self) -> Path | None:
        """Where the file is now, if that is another place than its path and can be told."""
        try:
            found = Path(f"/proc/self/fd/{self._descriptor}").readlink()
            there = os.path.samestat(os.fstat(self._descriptor), found.stat())
            return found if there and not self.is_in_place else None
        except OSError:
            return None

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
        cut = self._size - size
        self._take_back(size)
        os.fsync(self._descriptor)
        self._synced = size
        return cut

    def close(self) -> None:
        """Leaves the file as it is."""
        self._close()

    def remove(self) -> None:
        """Closes and deletes the file."""
        self.close()
        self._path.unlink(missing_ok=True)

    def _take_back(self, size: int) -> None:
        self._size = size
        os.ftruncate(self._descriptor, size)

    def _is_whole(self, start: int) -> bool:
        """Whether what stands there up to the end is an object: readers take it for a line, and none is one before its last byte."""
        if self._size - start > LARGEST_BYTES:
            return False
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
