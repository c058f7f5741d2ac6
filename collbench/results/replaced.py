"""Files that are replaced as a whole, in one step: no reader and no crash ever sees half of one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

_CANNOT = (errno.EINVAL, errno.ENOTSUP)  # of file systems that sync no folders


def replace(path: Path, text: str) -> None:
    """Puts `text` in place of the file; when it returns the disk has it. Raises OSError, and then the file is what it was."""
    draft = draft_of(path)
    draft.unlink(missing_ok=True)  # of a run that was killed; of another's folder it may be a pipe, or a link to what is ours
    with draft.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def draft_of(path: Path) -> Path:
    """What is written before it takes the file's place; a kill may leave it behind."""
    return path.with_name(f".{path.name}.new")


def make_folders(path: Path, new: Iterable[Path]) -> None:
    """Makes a folder and those above it that are `new`, so that the disk has them, too. Raises OSError."""
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Returns when the disk has the folder's list of files, where the file system can tell. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # we may enter it, but not read it
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    finally:
        os.close(descriptor)
