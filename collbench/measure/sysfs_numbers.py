"""Numbers out of the kernel's files, read as cheaply as Python can: a host with many ports has hundreds of them."""

from __future__ import annotations

import os
from collections.abc import Iterable

Counts = dict[str, int]
_MOST = 64  # characters of a number
_LONGEST = 4 << 20


def numbers(folder: str, names: Iterable[str]) -> Counts:
    """The whole numbers that the files of a folder hold, by name; a file that is not there or holds none is left out."""
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        return {name: value for name in names if (value := _number(name, at)) is not None}
    finally:
        os.close(at)


def entries(folder: str) -> list[str]:
    """The names in a folder, sorted; none when it is not there."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - Path.iterdir makes a Path per name
    except OSError:
        return []


def word(path: str) -> str:
    """What a file holds, stripped; "" when it cannot be read."""
    return _read(path, _MOST).strip()


def text(path: str) -> str:
    """All that a file of the kernel holds, 4 MiB at most; "" when it cannot be read."""
    return _read(path, _LONGEST)


def _read(path: str, most: int) -> str:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        parts = []
        while most > 0 and (part := os.read(file, most)):  # the kernel gives a long file page by page
            parts.append(part)
            most -= len(part)
        return b"".join(parts).decode("ascii", errors="replace")
    except OSError:
        return ""
    finally:
        os.close(file)


def _number(name: str, folder: int) -> int | None:
    try:
        file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    try:
        text = os.read(file, _MOST).strip()
        return int(text) if text.isdigit() else None
    except OSError:
        return None
    finally:
        os.close(file)
