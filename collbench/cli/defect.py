"""What nobody has foreseen: its traceback, and whose fault it is."""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress

from collbench.errors import CollbenchError


def say(text: str) -> None:
    """Write lines to stderr, without control characters; where nothing can be written, the exit code alone reports the end."""
    try:
        from collbench.report.flags import printable
    except OSError:  # a process that can open no file imports nothing
        printable = _plain
    text = "".join(f"{printable(line)}\n" for line in text.splitlines())
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def is_one(error: BaseException) -> bool:
    """Whether nobody has foreseen it; what the operating system refuses may be an output that is gone."""
    return isinstance(error, Exception) and not isinstance(error, CollbenchError | OSError)


def tell(error: BaseException) -> None:
    """Shows the traceback, once: a rank does so before the others learn of it, since then a launcher may kill it at any moment."""
    if getattr(error, "said", False):
        return
    say("".join(traceback.format_exception(error)))
    say("collbench: this is a defect of collbench, not of your network: please report the lines above\n")
    error.said = True  # type: ignore[attr-defined]
