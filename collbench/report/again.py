"""The file of the suite that measures suspects again: written where there are some, and gone where there are none.

A suite of an earlier night would be measured for suspects that nobody has. Only what the gate itself wrote is replaced or removed.
"""

from __future__ import annotations

from pathlib import Path

from collbench.errors import UsageError
from collbench.gate.confirm import OURS
from collbench.report.outputs import write_whole


def write_suite(path: Path, suite: str | None, stays: bool = False) -> str | None:
    """Writes `suite`, or without one removes what an earlier gate left there and says so. Raises UsageError where the file is not ours.

    `stays`: it was measured again, but that is no verdict yet, and may have to be done once more.
    """
    check_ours(path)
    if suite is not None:
        write_whole(path, suite, "--confirm-suite")
        return None
    if not path.is_file():
        return None
    if stays:
        return f"--confirm-suite {path} stays as it is: there is no verdict yet, and what it measures may be wanted once more"
    try:
        path.unlink()
    except OSError as error:
        raise UsageError(f"--confirm-suite {path} is of an earlier gate and cannot be removed ({error.strerror}): remove it") from error
    return f"--confirm-suite {path} was removed: it was of an earlier gate, and there is nothing to measure again"


def check_ours(path: Path) -> None:
    """Raises UsageError where a file is there that the gate did not write; what is no regular file (a pipe) may be written to."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            return
        with path.open("rb") as file:
            begins = file.read(len(OURS.encode())).decode(errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"--confirm-suite {path} cannot be written ({error.strerror or error}): choose another file") from error
    if begins not in (OURS, ""):
        raise UsageError(f"--confirm-suite {path} was not written by `collbench gate`, and is not replaced: name another file")
