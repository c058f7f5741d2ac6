"""What nobody has foreseen: its traceback, and whose fault it is."""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress

from collbench.errors import CollbenchError


def say(text: str) -> None:
    """Lines on stderr, without anything that steers a terminal; where nobody can read them, the exit code has to say it alone."""
    from collbench.report.flags import printable

    text = "".join(f"{printable(line)}\n" for line in text.splitlines())
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


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
