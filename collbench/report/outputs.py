"""Where a report goes beside the table: files, and stdout for those that may."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from collbench.errors import UsageError

STDOUT = Path("-")


@dataclass(frozen=True)
class Outputs:
    """The FILE of each option that writes one, None: not asked for. `csv` and `markdown` may be STDOUT, and then it is theirs alone."""

    csv: Path | None = None
    html: Path | None = None
    markdown: Path | None = None
    openmetrics: Path | None = None

    def check(self) -> None:
        """Raises UsageError for what cannot go to stdout, or not together with another."""
        if self.csv == self.markdown == STDOUT:
            raise UsageError("--csv and --markdown would both go to stdout: name a FILE for one of them")
        for option, path in (("--html", self.html), ("--openmetrics", self.openmetrics)):
            if path == STDOUT:
                raise UsageError(f"{option} does not go to stdout: name a FILE")


def write_whole(path: Path, text: str, option: str) -> None:
    """Writes a file in one step: whoever reads it meanwhile (a collector, a browser) sees the old one or the new one, whole.

    What is no regular file (a pipe, /dev/stdout) is written to as it is. Raises UsageError, naming `option`, when it cannot be written.
    """
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8", newline="")
        else:
            _by_rename(target, text)
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"{option} {path} cannot be written ({reason}): choose another file") from error


def _by_rename(target: Path, text: str) -> None:
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with suppress(FileNotFoundError):
            draft.unlink()
        with draft.open("x", encoding="utf-8", newline="") as file:  # a link that waits there leads elsewhere
            file.write(text)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
