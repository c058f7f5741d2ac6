"""Wire tools as processes: each with a limit in time and in what it may print; the kernel ends it when we die."""

from __future__ import annotations

import math
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from collbench.addresses import listen_at
from collbench.errors import RunFailed
from collbench.measure.tool import last_words

_MOST_BYTES = 4 << 20  # iperf3 prints 5 KB a run
_CHUNK = 1 << 16
_PAUSE_S = 0.02
_LISTENING = "0A"  # the state of a socket in /proc/net/tcp
_SPARE_S = 5  # the tool's own end comes after ours


@dataclass(frozen=True)
class Done:
    """How a tool ended (code None: it was still running), and what it printed."""

    code: int | None
    out: str
    err: str


class Tool:
    """A tool that runs while the `with` lasts, and no longer than `limit_s` seconds, even if this process is stopped or killed.

    Raises RunFailed where it cannot be started.
    """

    def __init__(self, command: Sequence[str], limit_s: float) -> None:
        self._command, self._limit_s = command, limit_s

    def __enter__(self) -> Tool:
        pipe = subprocess.PIPE
        line = [*_ending_with_us(self._limit_s), *self._command]
        try:
            self._running = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True)
        except OSError as error:
            raise RunFailed(f"{self._command[0]} cannot be started: {error.strerror or error}") from error
        self._end = time.monotonic() + self._limit_s
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._running.pid, signal.SIGKILL)  # not reaped yet, so that the number is still its own
        self._running.wait()
        for stream in (self._running.stdout, self._running.stderr):
            if stream:
                stream.close()

    def ended(self) -> Done:
        """Waits for its end. Raises RunFailed where it prints without end, or does not end within its time."""
        printed = self._read(self._end)
        if printed is None:
            raise RunFailed(f"{self._command[0]} did not end within {self._limit_s:.0f} s")
        while self._code() is None and time.monotonic() < self._end:
            time.sleep(_PAUSE_S)
        return Done(self._code(), *printed)

    def await_listening(self, port: int, limit_s: float) -> None:
        """Waits until it listens at a TCP port. Raises RunFailed where it ends before, or does not within so many seconds."""
        end = time.monotonic() + limit_s
        while not _listens(port):
            if self._code() is not None:
                out, err = self._read(time.monotonic() + 1) or ("", "")
                raise RunFailed(f"{self._command[0]} ended before it listened: {last_words(f'{out}{chr(10)}{err}')}")
            if time.monotonic() >= end:
                raise RunFailed(f"{self._command[0]} does not listen at port {port} within {limit_s:.0f} s")
            time.sleep(_PAUSE_S)

    def _code(self) -> int | None:
        """Without reaping it: its number, and its group's, must stay its own until they have been ended."""
        found = os.waitid(os.P_PID, self._running.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None if found is None else found.si_status

    def _read(self, end: float) -> tuple[str, str] | None:
        """(stdout, stderr) to their ends; None where these do not come in time."""
        parts: dict[int, bytearray] = {}
        with selectors.DefaultSelector() as waiting:
            for stream in (self._running.stdout, self._running.stderr):
                assert stream
                parts[stream.fileno()] = bytearray()
                waiting.register(stream, selectors.EVENT_READ)
            while waiting.get_map():
                left = end - time.monotonic()
                if left <= 0:
                    return None
                for key, _ in waiting.select(left):
                    self._take(waiting, key.fd, parts)
        out, err = (bytes(part).decode(errors="replace") for part in parts.values())
        return out, err

    def _take(self, waiting: selectors.BaseSelector, fd: int, parts: dict[int, bytearray]) -> None:
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            waiting.unregister(fd)
        parts[fd] += chunk
        if len(parts[fd]) > _MOST_BYTES:
            raise RunFailed(f"{self._command[0]} prints more than {_MOST_BYTES >> 20} MiB: that is no result")


def once(command: Sequence[str], limit_s: float) -> Done:
    """Runs it to its end. Raises RunFailed where it cannot be started, prints without end, or does not end in time."""
    with Tool(command, limit_s) as tool:
        return tool.ended()


def free_port(address: str) -> int:
    """A TCP port of this address that the kernel says is free; the tools take none of its choice. Raises OSError."""
    with listen_at(address) as listener:
        return int(listener.getsockname()[1])


def _listens(port: int) -> bool:
    """Whether anybody in this network namespace does: asked of the kernel, since a connection would use the tool's only one up."""
    wanted = f"{port:04X}"
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            lines = Path("/proc/self/net", name).read_text().splitlines()[1:]
            if any(words[1].rpartition(":")[2] == wanted and words[3] == _LISTENING for words in map(str.split, lines)):
                return True
    return False


def _ending_with_us(limit_s: float) -> list[str]:
    """What ends a tool whose parent was killed (util-linux), and one whose parent was stopped (coreutils); each ends the one behind it."""
    if shutil.which("setpriv") is None or shutil.which("timeout") is None:
        raise RunFailed("setpriv (util-linux) or timeout (coreutils) is not installed here, and without them a tool could outlive us")
    with_parent = ["setpriv", "--pdeathsig", "KILL"]
    return [*with_parent, "timeout", "-s", "KILL", str(math.ceil(limit_s) + _SPARE_S), *with_parent]
