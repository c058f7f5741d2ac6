"""The ranks of this node as processes: who has ended, who is stopped, what one of them is doing."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from collbench.control.stack import stack

KILLED = "killed"
_EXIT = 49  # the place of exit_code in /proc/PID/stat after the name, proc(5)


class Node:
    """Processes of this node that this one watches. Used by one thread. `descriptors`: readable as soon as one has ended."""

    def __init__(self) -> None:
        self._killed_for_memory = _killed_for_memory()
        self._pids: dict[int, int] = {}
        self._ranks: dict[int, int] = {}  # by descriptor

    @property
    def descriptors(self) -> list[int]:
        """One for each process that is watched."""
        return list(self._ranks)

    def watch(self, rank: int, about: Any) -> None:
        """Begins to watch a rank's process, if it is one of this host: what it says of itself must be true here.

        Containers number their processes alike and may begin at the same moment: the host's name must fit, too, and nobody is itself.
        """
        if rank in self._pids or not isinstance(about, dict) or about.get("host") != socket.gethostname():
            return
        pid, began = about.get("pid"), about.get("began")
        if isinstance(pid, int) and pid not in (0, 1, os.getpid()) and isinstance(began, int) and began == began_of(pid):
            with suppress(OSError):
                self._ranks[os.pidfd_open(pid)] = rank
                self._pids[rank] = pid

    @property
    def _short(self) -> bool:
        """Whether the kernel has killed anything here for want of memory since this began."""
        return _killed_for_memory() > self._killed_for_memory

    def has(self, rank: int) -> bool:
        """Whether that rank's process is watched here."""
        return rank in self._pids

    def ended(self, descriptor: int) -> tuple[int, str]:
        """The rank whose process has ended, and how, as far as the kernel still knows; it is watched no longer."""
        rank = self._ranks[descriptor]
        how = how_ended(self._pids.get(rank, 0))
        self._forget(descriptor)
        return rank, f"{how or KILLED}, out of memory as its host's kernel says" if self._short else how

    def _forget(self, descriptor: int) -> None:
        self._pids.pop(self._ranks.pop(descriptor), None)
        os.close(descriptor)

    def forget(self, rank: int) -> None:
        """That rank leaves in order."""
        for descriptor in [one for one, of in self._ranks.items() if of == rank]:
            self._forget(descriptor)

    def stopped(self) -> list[int]:
        """The ranks that SIGSTOP or a debugger holds."""
        return [rank for rank, pid in self._pids.items() if is_stopped(pid)]

    def stack_of(self, rank: int) -> str:
        """What the rank's process is doing: its native stack, or why that cannot be told."""
        return stack(self._pids[rank]) if rank in self._pids else "its process is not known here"

    def kill(self, ranks: Collection[int] | None = None) -> None:
        """Ends every process that is still there, even a stopped one; or those of some ranks."""
        for descriptor, rank in self._ranks.items():
            if ranks is None or rank in ranks:
                with suppress(OSError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Watches nobody any longer."""
        for descriptor in list(self._ranks):
            self._forget(descriptor)


def _killed_for_memory() -> int:
    """How often the kernel has done so since boot, in whatever control group; source: mm/vmstat.c. 0 where it does not tell."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def began_of(pid: int) -> int:
    """When a process began, in clock ticks since boot: with its number it is one process alone. -1: not known."""
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else -1


def how_ended(pid: int) -> str:
    """ "killed by signal 9 (SIGKILL)", "it exited with code 0"; "" where the process is not there to be asked, or still runs.

    Its parent may already have collected it.
    """
    fields = _stat(pid)
    if len(fields) <= _EXIT or fields[0] != "Z" or not fields[_EXIT].isdigit():
        return ""
    status = int(fields[_EXIT])
    number = status & 0x7F
    if not number:
        return f"it exited with code {status >> 8}"
    with suppress(ValueError):
        return f"{KILLED} by signal {number} ({signal.Signals(number).name})"
    return f"{KILLED} by signal {number}"


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP or a debugger holds the process."""
    return bool(_stat(pid)) and _stat(pid)[0] in "Tt"


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name (proc(5)), of which the first is the state; none where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
