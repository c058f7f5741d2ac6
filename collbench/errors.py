"""Every way collbench ends early, as one sentence and one exit code.

    CollbenchError            the root: a sentence for the user, never a traceback
    ├── UsageError            2  bad input, a missing backend, a folder that cannot be written
    ├── NoVerdict             3  nothing wrong was shown, and nothing right either
    └── RunFailed             4  wrong data, hang, crash, launcher and communicator disagree
        ├── WaitExpired       4  a rank did not arrive within the deadline
        └── PeerFailed        4  another rank failed and told us why

Exit code 1 is kept for a negative verdict of the gate or the doctor; 130 and 143 for signals.
"""

from __future__ import annotations

FINE, NEGATIVE, USAGE, NO_VERDICT, FAILED, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 130, 143


class CollbenchError(Exception):
    """What went wrong, where, and the remedy, in one sentence; `exit_code` is what the process returns."""

    exit_code = FAILED


class UsageError(CollbenchError):
    """What was typed, or the place it was typed in, cannot be measured as asked."""

    exit_code = USAGE


class NoVerdict(CollbenchError):
    """There is too little to decide on."""

    exit_code = NO_VERDICT


class RunFailed(CollbenchError):
    """The measurement itself broke: wrong data, a hang, a crash, a launcher that started something else."""

    exit_code = FAILED


class WaitExpired(RunFailed):
    """A wait reached its deadline; the sentence names the ranks that did not arrive."""


class PeerFailed(RunFailed):
    """Another rank failed; the sentence is that rank's own. `code` is the exit code that rank chose."""

    def __init__(self, sentence: str, code: int = FAILED) -> None:
        super().__init__(sentence)
        self.exit_code = code
