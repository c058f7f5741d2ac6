"""Whether a run's folder can be written, and what is said where it cannot, before the first cell and later."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from collbench.errors import CollbenchError, RunFailed, UsageError
from collbench.units import format_bytes

# What the smallest run needs. With less a run would start, and break off in the middle.
_LEAST_FREE_BYTES = 1 << 20


def refuse_a_full_disk(path: Path, instead: str = "choose another folder with --out DIR") -> None:
    """Raises UsageError where the disk has less room than the smallest run needs; OSError."""
    disk = os.statvfs(path)
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and free < _LEAST_FREE_BYTES:
        raise UsageError(
            f"run folder {path} cannot be written: its disk has {format_bytes(free)} left, a run needs at least "
            f"{format_bytes(_LEAST_FREE_BYTES)}; make room there, or {instead}"
        )


def cannot_create(path: Path, error: OSError) -> str:
    """Why there is no run folder, for the user."""
    return f"run folder {path} cannot be written ({error.strerror or error}): choose another folder with --out DIR"


def cannot_resume(path: Path, error: OSError) -> str:
    """Why a run cannot be gone on with, for the user."""
    return f"{path} cannot be resumed: it cannot be written ({error.strerror or error}); start a new run"


@dataclass(frozen=True)
class Writing:
    """What a run that cannot go on writing has stored.

    rows      its finished cells (of pairs: rounds), all on the disk
    measured  whether anything was measured: before, the folder is bad input (exit code 2), later the run has failed (4)
    resumes   whether such a run can be gone on with
    gone      whether the folder is no longer at its path, moved_to: where it is now, if that can be told
    """

    path: Path
    rows: int
    measured: bool
    resumes: bool
    gone: bool
    moved_to: Path | None

    def failed(self, error: OSError) -> CollbenchError:
        """What the operating system's refusal means for the user, in one sentence."""
        if not self.measured:
            return UsageError(cannot_resume(self.path, error) if self.rows else f"{cannot_create(self.path, error)}; nothing was measured")
        if self.moved_to:
            found = f"{self.path} was moved to {self.moved_to} while the run wrote into it: {self._stored} there"
            return RunFailed(f"{found}; leave it{self._on(self.moved_to)}")
        if self.gone:
            return RunFailed(
                f"results can no longer be written: {self.path} is gone, and with it what was stored ({self._cells}): it was deleted, or "
                f"its disk is no longer mounted; bring it back{self._on(self.path)}, or run again with --out DIR"
            )
        return RunFailed(
            f"results can no longer be written to {self.path} ({error.strerror or error}): {self._stored} safe in it; "
            f"make room there{self._on(self.path)}, or run again with --out DIR on another disk"
        )

    @property
    def _cells(self) -> str:
        return f"{self.rows} finished {'cell' if self.resumes else 'round'}{'' if self.rows == 1 else 's'}"

    @property
    def _stored(self) -> str:
        return f"{self._cells} {'is' if self.rows == 1 else 'are'}"

    def _on(self, path: Path) -> str:
        return f" and go on with --resume {path}" if self.resumes else ""
