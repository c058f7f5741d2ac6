"""Errors: every way collbench ends early, as one sentence and one exit code.

    CollbenchError            the root: a sentence for the user, never a traceback
    ├── UsageError            2  bad input, a missing backend, a folder that cannot be written
    │   └── UnreadableRun     2  a stored run that is damaged, or from a newer version
    ├── NoVerdict             3  the data shows neither an error nor its absence
    └── RunFailed             4  wrong data, hang, crash, launcher and communicator disagree
        ├── WaitExpired       4  a rank did not arrive within the deadline
        └── PeerFailed        4  another rank failed and sent the reason
            └── Orphaned      4  rank 0 has ended: this rank reports it

Exit code 1 means a negative verdict of the gate or the doctor; 130 and 143 mean signals, which raise Interrupted.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterable
from signal import SIGINT, Signals

FINE, NEGATIVE, USAGE, NO_VERDICT, FAILED, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 130, 143


_MOST_LETTERS = 8000  # of a message: a name from a file may be as long as the file


class CollbenchError(Exception):
    """An error for the user: what is wrong, where, and what to do, in one sentence.

    exit_code  the exit code of the process
    rank       the rank that failed, if the sentence names it; else None
    phase      the phase in which it failed, if the sentence names it; else ""
    """

    exit_code = FAILED

    def __init__(self, *args: object, rank: int | None = None, phase: str = "") -> None:
        super().__init__(*args)
        self.rank, self.phase = rank, phase

    def __str__(self) -> str:
        """Return the sentence. The middle of a long one is cut, since the remedy is at the end."""
        text, half = super().__str__(), _MOST_LETTERS // 2
        return text if len(text) <= _MOST_LETTERS else f"{text[:half]} … {text[-half:]}"


class UsageError(CollbenchError):
    """Invalid input: the command line, a file, a folder or the environment does not allow the request."""

    exit_code = USAGE


class UnreadableRun(UsageError):
    """A stored run that cannot be read completely: it is damaged, or a newer version wrote it."""


class NoVerdict(CollbenchError):
    """Too little data for a decision."""

    exit_code = NO_VERDICT


class RunFailed(CollbenchError):
    """A failed measurement: wrong data, a hang, a crash, or a launcher that started something else."""

    exit_code = FAILED


class WaitExpired(RunFailed):
    """A wait that reached its deadline; the sentence names the ranks that did not arrive."""


class PeerFailed(RunFailed):
    """A failure of another rank, with that rank's sentence and exit code (`code`)."""

    def __init__(self, sentence: str, code: int = FAILED) -> None:
        super().__init__(sentence)
        self.exit_code = code


class Orphaned(PeerFailed):
    """Rank 0 has ended, is stopped or cannot be reached; the sentence is this rank's own."""


class Interrupted(KeyboardInterrupt):
    """A signal that asks this process to end. Not a CollbenchError: nothing is wrong, and only the entry point catches it.

    `exit_code` is 130 for Ctrl-C, 143 for any other signal; `reported` is whether it has been reported to the user.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {Signals(number).name}")
        self.number, self.exit_code, self.reported = number, code_of_signal(number), False


def code_of_signal(number: int) -> int:
    """Return the exit code of a process that a signal asked to end."""
    return INTERRUPTED if number == SIGINT else TERMINATED


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an unexpected exception means that no memory is left, or follows one that does.

    Libraries report it in other ways than Python: fork and mmap by OSError, torch by RuntimeError, a library that cannot be mapped by
    ImportError. The latter means a mount without permission to execute, too, so it counts only if this process has a limit.
    """
    texts = [os.strerror(errno.ENOMEM)]
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        texts.append("failed to map segment from shared object")
    link: BaseException | None = error
    while link is not None and not isinstance(link, CollbenchError | Interrupted):
        message = str(link)
        if isinstance(link, MemoryError) or any(text in message for text in texts):
            return True
        link = link.__cause__ or link.__context__
    return False


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown word: the most similar known one, else all of them."""
    from difflib import get_close_matches  # a start without an error needs no similar words

    choices = list(known)
    close = get_close_matches(word.lower(), choices, n=1)
    return f"did you mean {close[0]}?" if close else f"choose from {', '.join(choices)}"
