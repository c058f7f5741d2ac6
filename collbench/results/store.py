"""JSON and files of a run's folder: one object per line, without NaN and infinity, appended safely, locked by one process."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import socket
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from collbench.errors import UsageError
from collbench.untrusted import encodable, parse_json, read_file, values_in

LARGEST_BYTES = 64 << 20  # of a file with one object: run.json of 100,000 ranks has about 20 MB
_DEEPEST = 64
_MOST_VALUES = 1 << 22  # in one object: an empty list takes two characters, and 64 bytes of memory
# Larger numbers are from a broken or hostile file, and would overflow in computations.
_LARGEST_FLOAT = 1e100
_LARGEST_INT = 2**63
# Translation of a text to the shapes of its numbers: digits become 0, exponents e, points stay, all other bytes become blanks.
_SHAPES = bytes(dict(zip(b"0123456789.eE", b"0000000000.ee", strict=True)).get(byte, ord(" ")) for byte in range(256))
_MANY_DIGITS = b" " + b"0" * 19
_LONG_EXPONENT = b"e000"


def plain(value: Any) -> Any:
    """Return `value` as JSON can hold it: NaN and infinity become None, numpy scalars numbers, sequences lists, the rest text."""
    if value is None or isinstance(value, str | bool):
        return encodable(value) if isinstance(value, str) else value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Mapping):
        return {encodable(str(key)): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)


_LINE = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=plain)


def to_line(values: Mapping[str, Any]) -> str:
    """Return one object as one line of ASCII, without the newline."""
    try:  # most lines have only values that JSON allows, and need no check of each value
        return _LINE.encode(values)
    except (TypeError, ValueError):
        return _LINE.encode(plain(values))


def to_page(values: Mapping[str, Any]) -> str:
    """Return one object as an indented page, for files that people open."""
    return json.dumps(plain(values), allow_nan=False, indent=1) + "\n"


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a file, as `parse_object` does. Raises OSError, and ValueError for a file larger than any of ours."""
    try:
        text = read_file(path, LARGEST_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ValueError(f"larger than {LARGEST_BYTES >> 20} MiB") from error
        raise
    return parse_object(text)


def parse_object(text: bytes, unknown: list[str] | None = None) -> dict[str, Any]:
    """Return the object in `text`; NaN, infinities and numbers beyond any measurement are None. Raises ValueError for all else.

    Each such number is added to `unknown`, as written in the text.
    """
    left_out: list[str] = [] if unknown is None else unknown
    if len(text) > _MOST_VALUES and values_in(text) > _MOST_VALUES:
        raise ValueError(f"more than {_MOST_VALUES:,} values")
    try:
        if _may_hold_strange_numbers(text):
            parse_float = _below(_LARGEST_FLOAT, float, left_out)
            parse_int = _below(_LARGEST_INT, _integer, left_out)
            value = parse_json(text, parse_constant=left_out.append, parse_float=parse_float, parse_int=parse_int)
        else:  # twice as fast, for lines without values to leave out
            value = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({type(error).__name__})") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    if text.count(b"[") + text.count(b"{") > _DEEPEST and _is_deep(value):
        raise ValueError(f"more than {_DEEPEST} levels deep")
    return value


def _may_hold_strange_numbers(text: bytes) -> bool:
    """Return whether a number may be out of range, by many digits or a long exponent; texts may also cause a match."""
    shapes = text.translate(_SHAPES, b"+-")
    return _MANY_DIGITS in shapes or _LONG_EXPONENT in shapes or b"NaN" in text or b"Infinity" in text


def _is_deep(value: Any) -> bool:
    """Return whether it is nested too deeply for recursion."""
    level = [value]
    for _ in range(_DEEPEST):
        inside = (inner for container in level for inner in (container.values() if isinstance(container, dict) else container))
        level = [inner for inner in inside if isinstance(inner, dict | list)]
    return bool(level)


def _integer(text: str) -> int:
    return int(text) if len(text) <= 20 else _LARGEST_INT


def _below(limit: float, number_of: Callable[[str], float], left_out: list[str]) -> Callable[[str], float | None]:
    def parse(text: str) -> float | None:
        value = number_of(text)
        if abs(value) < limit:
            return value
        left_out.append(text)
        return None

    return parse


# A file that only grows, and its incomplete end after a kill.

GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
_STEP = 1 << 16


class AppendFile:
    """A file that only grows, written by one process; an append that fails is taken back.

    The file must not exist yet; with `again` it must, and is continued. Raises OSError.
    """

    def __init__(self, path: Path, again: bool = False) -> None:
        self._path = path
        # A folder of unknown origin may have a pipe instead of a file, or a link to a file of the user.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags if again else flags | os.O_EXCL, 0o666)
        self._close = weakref.finalize(self, os.close, self._descriptor)  # also if its owner was dropped without closing it
        self._size = self._synced = os.fstat(self._descriptor).st_size

    def append(self, data: bytes) -> int:
        """Write `data` at the end and return the offset where it begins."""
        offset = self._size
        unwritten = memoryview(data)
        try:
            while unwritten:
                unwritten = unwritten[os.write(self._descriptor, unwritten) :]
            self._size += len(data)
        except BaseException:  # also for a signal: otherwise the next line would be joined with half of this one
            self._take_back(offset)
            raise
        return offset

    def sync(self) -> None:
        """Wait until the disk has the file's bytes and its length; its times may follow later."""
        try:
            os.fdatasync(self._descriptor)
            self._synced = self._size
        except BaseException:
            self._take_back(self._synced)
            raise

    @property
    def is_in_place(self) -> bool:
        """Return whether the file is still at its path. A moved, deleted or unmounted file still accepts writes. Raises OSError."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except OSError as error:
            if error.errno in GONE:
                return False
            raise

    @property
    def moved_to(self) -> Path | None:
        """Return the file's present path if it was moved and that is known, else None."""
        try:
            path = Path(f"/proc/self/fd/{self._descriptor}").readlink()
            is_same = os.path.samestat(os.fstat(self._descriptor), path.stat())
            return path if is_same and not self.is_in_place else None
        except OSError:
            return None

    def cut_last_line(self) -> int:
        """Remove the incomplete last line and return the number of bytes removed. For files opened `again`.

        A complete object that lacks only its newline gets one.
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

    def lines(self) -> int:
        """Return the number of complete lines."""
        with self._path.open("rb") as file:
            return sum(1 for line in file if line.endswith(b"\n"))

    def cut_after(self, lines: int) -> int:
        """Remove what follows the first `lines` lines, and return the number of lines removed. For files opened `again`."""
        with self._path.open("rb") as file:
            size = sum(map(len, islice(file, lines)))
            removed = sum(1 for _ in file)
        if removed:
            self._take_back(size)
            os.fsync(self._descriptor)
            self._synced = size
        return removed

    def close(self) -> None:
        """Close the file and keep it."""
        self._close()

    def _take_back(self, size: int) -> None:
        self._size = size
        os.ftruncate(self._descriptor, size)

    def _is_whole(self, start: int) -> bool:
        """Return whether the rest of the file is a complete object: readers accept it as a line."""
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
                end_of_line = file.read(end - start).rfind(b"\n")
                if end_of_line >= 0:
                    return start + end_of_line + 1
                end = start
        return 0


# One process at a time writes into a run's folder: the file `lock` names it.

LOCK = "lock"
_LONGEST = 4096


class Lock:
    """The file `lock` of a folder, created and removed by this process; `taken_over` is the ended process that left one behind, or None.

    The file exists only while its process works, and the kernel also holds a lock on it, which ends with the process. On the same host a
    file without that lock therefore belongs to an ended process. For another host's file this is unknown, so it is kept.
    """

    def __init__(self, folder: Path) -> None:
        """Create the file. Raises UsageError if another process works in the folder, or may do so; OSError."""
        self._path = folder / LOCK
        self.taken_over: str | None = None
        self._found = b""
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            self._descriptor = self._left_behind()
        else:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                self._close()
                raise UsageError(_in_use("another process", self._path.parent)) from error
            except OSError:  # a file system without locks: the file alone is used
                pass
        self._write(to_line({"host": socket.gethostname(), "pid": os.getpid()}).encode() + b"\n")

    def release(self) -> None:
        """Remove the file. May be called several times."""
        if self._descriptor >= 0:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._close()

    def put_back(self) -> None:
        """Remove the file, but restore one that was left behind: nothing was done in the folder."""
        if self.taken_over is None or self._descriptor < 0:
            self.release()
            return
        with suppress(OSError):
            self._write(self._found)
        self._close()

    def _write(self, text: bytes) -> None:
        """Replace the file's content. If the disk rejects it, the file is removed."""
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text, 0)
        except OSError:
            self.release()
            raise

    def _close(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1

    def _left_behind(self) -> int:
        """Open the file of an ended process of this host. Raises UsageError for any other."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._found = os.pread(descriptor, _LONGEST, 0)
            self.taken_over = self._take(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _take(self, descriptor: int) -> str:
        """Lock the file that was left behind and return its process."""
        holder, is_on_this_host = _holder(self._found)
        unknown = UsageError(
            f"{self._path}: {holder} uses this folder, and this host cannot check whether it still runs: wait until it ends, or remove the "
            "file if it has ended"
        )
        if not is_on_this_host:
            raise unknown
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(_in_use(holder, self._path.parent)) from error
        except OSError as error:  # a file system without locks
            raise unknown from error
        if not _is_at(descriptor, self._path):  # its process ended between the two steps, and another one may have started
            raise UsageError(_in_use(holder, self._path.parent))
        return holder


def _in_use(holder: str, folder: Path) -> str:
    return f"{holder} uses {folder}: wait until it has ended, or start a new run"


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _holder(text: bytes) -> tuple[str, bool]:
    """Return (the process that wrote it, whether on this host). Unreadable text: a process killed at once, or another program."""
    try:
        owner = parse_object(text)
    except ValueError:
        return "an unknown process", not text
    host = str(owner.get("host"))
    return f"process {owner.get('pid')} on {host}", host == socket.gethostname()


# Files that are replaced in one step: neither a reader nor a crash leaves a partial file.

_CANNOT = (errno.EINVAL, errno.ENOTSUP)  # file systems that cannot sync folders


def replace(path: Path, text: str) -> None:
    """Replace the file's content by `text` and wait for the disk. Raises OSError; the file is then unchanged."""
    draft = draft_of(path)
    draft.unlink(missing_ok=True)  # of a killed run; in a folder of unknown origin it may be a pipe or a link
    with draft.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def draft_of(path: Path) -> Path:
    """Return the path of the draft that replaces the file; a kill may leave the draft behind."""
    return path.with_name(f".{path.name}.new")


def make_folders(path: Path, new: Iterable[Path]) -> None:
    """Create a folder and the parents in `new`, and wait for the disk. Raises OSError."""
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Wait until the disk has the folder's list of files, if the file system supports that. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # a folder that may be entered, but not read
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    finally:
        os.close(descriptor)
