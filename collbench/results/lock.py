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
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            self._descriptor = self._left_behind()
        with suppress(OSError):  # a file system without locks: then the file alone must do
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, to_line({"host": socket.gethostname(), "pid": os.getpid()}).encode() + b"\n", 0)

    def release(self) -> None:
        """Removes it. May be called again."""
        if self._descriptor >= 0:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1

    def _left_behind(self) -> int:
        """The file of a process of this host that is gone. Raises UsageError for any other."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        who, here = _holder(os.pread(descriptor, _LONGEST, 0))
        try:
            if not here:
                raise UsageError(
                    f"{self._path} says that {who} works in this folder, and that cannot be told from here: wait for it, or remove the "
                    "file if that process is gone"
                )
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except UsageError:
            os.close(descriptor)
            raise
        except OSError as error:
            os.close(descriptor)
            raise UsageError(f"{who} works in {self._path.parent}: wait until it has ended, or start a new run") from error
        self.taken_over = who
        return descriptor


def _holder(text: bytes) -> tuple[str, bool]:
    """(who wrote it, whether on this host). What cannot be read was written by a process killed in its first moment, or by a stranger."""
    try:
        said = parse_object(text)
    except ValueError:
        return "an unknown process", not text
    host = str(said.get("host"))
    return f"process {said.get('pid')} on {host}", host == socket.gethostname()
