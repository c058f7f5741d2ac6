"""One process at a time writes into a run's folder: the file `lock` says which one."""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path

from collbench.errors import UsageError
from collbench.results.jsonl import parse_object, to_line

LOCK = "lock"
_LONGEST = 4096


class Lock:
    """The file `lock` of a folder, made by this process and removed by it; `taken_over` says whose was found left behind, or is None.

    It exists only while its process works, and the kernel, too, holds a lock on it: that ends with the process, however it is killed.
    So on the same host a file without that lock is a dead process's. Of another host's nobody here can tell, and it is left alone.
    """

    def __init__(self, folder: Path) -> None:
        """Raises UsageError where another process works in the folder, or may do so; OSError."""
        self._path = folder / LOCK
        self.taken_over: str | None = None
        self._found = b""
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            self._descriptor = self._left_behind()
        else:
            self._hold_new()
        self._write(to_line({"host": socket.gethostname(), "pid": os.getpid()}).encode() + b"\n")

    def release(self) -> None:
        """Removes it. May be called again."""
        if self._descriptor >= 0:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._close()

    def put_back(self) -> None:
        """As `release`, but one that was found left behind is left behind again: nothing was done in the folder."""
        if self.taken_over is None or self._descriptor < 0:
            self.release()
            return
        with suppress(OSError):
            self._write(self._found)
        self._close()

    def _write(self, text: bytes) -> None:
        """In place of what it holds. Where the disk takes none of it, the file is gone."""
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text, 0)
        except OSError:
            self.release()
            raise

    def _close(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1

    def _hold_new(self) -> None:
        """Locks the file that was just made; raises UsageError where another process was faster, which took it for one left behind."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._close()
            raise UsageError(_in_use("another process", self._path.parent)) from error
        except OSError:  # a file system without locks: then the file alone must do
            pass

    def _left_behind(self) -> int:
        """The file of a process of this host that is gone. Raises UsageError for any other."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._found = os.pread(descriptor, _LONGEST, 0)
            self.taken_over = self._take(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _take(self, descriptor: int) -> str:
        """Locks what was left behind, and says by whom."""
        who, here = _holder(self._found)
        unknown = UsageError(
            f"{self._path} says that {who} works in this folder, and that cannot be told from here: wait for it, or remove the file if "
            "that process is gone"
        )
        if not here:
            raise unknown
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(_in_use(who, self._path.parent)) from error
        except OSError as error:  # a file system without locks
            raise unknown from error
        if not _is_at(descriptor, self._path):  # its process ended between our two steps, and another one may have come
            raise UsageError(_in_use(who, self._path.parent))
        return who


def _in_use(who: str, folder: Path) -> str:
    return f"{who} works in {folder}: wait until it has ended, or start a new run"


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _holder(text: bytes) -> tuple[str, bool]:
    """(who wrote it, whether on this host). What cannot be read was written by a process killed in its first moment, or by a stranger."""
    try:
        said = parse_object(text)
    except ValueError:
        return "an unknown process", not text
    host = str(said.get("host"))
    return f"process {said.get('pid')} on {host}", host == socket.gethostname()
