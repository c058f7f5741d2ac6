"""A machine's files, wherever they lie: the live root, a copied folder, or (in `archive`) a tarball. Reading only."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Protocol

_MOST = 1 << 20
_MOST_LINKS = 40


class Files(Protocol):
    """A tree of files; paths are absolute within it ("/sys/class/net"). Nothing outside it is ever read, nothing here raises."""

    def text(self, path: str) -> str | None:
        """What a file holds, stripped, at most 1 MiB; None when it is not there or cannot be read."""

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a folder, sorted; () when it is not there."""

    def real(self, path: str) -> str | None:
        """The path with every symbolic link followed, within the tree; None when it leads nowhere or in circles."""


class Folder:
    """The files under a folder of this machine; Folder(Path("/")) is the live machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def text(self, path: str) -> str | None:
        """See Files."""
        file = self._file(path)
        try:
            return _content(file) if file else None
        except OSError:
            return None

    def names(self, path: str) -> tuple[str, ...]:
        """See Files."""
        folder = self._file(path)
        try:
            return tuple(sorted(os.listdir(folder))) if folder else ()  # noqa: PTH208 - Path.iterdir makes a Path per name
        except OSError:
            return ()

    def real(self, path: str) -> str | None:
        """See Files."""
        found = resolve(path, self._target)
        return found if found and os.path.lexists(self._inside(found)) else None

    def _file(self, path: str) -> Path | None:
        if self.root == Path("/"):
            return Path(path)
        found = resolve(path, self._target)
        return self._inside(found) if found else None

    def _inside(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _target(self, path: str) -> str | None:
        try:
            return os.readlink(self._inside(path))  # noqa: PTH115 - as text
        except (OSError, ValueError):
            return None


def _content(file: Path) -> str | None:
    """Of regular files only: opened without waiting, since a pipe put in a file's place would have us wait for ever."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return None
        return stream.read(_MOST).decode("utf-8", errors="replace").strip()


def resolve(path: str, target: Callable[[str], str | None]) -> str | None:
    """`path` with links followed inside the tree: `target(path)` gives a link's text or None. None for circles; never leaves the tree."""
    done: list[str] = []
    todo = [part for part in reversed(PurePosixPath(path).parts) if part != "/"]
    links = 0
    while todo:
        part = todo.pop()
        if part == "..":
            done = done[:-1]
            continue
        link = target("/" + "/".join([*done, part]))
        if link is None:
            done.append(part)
            continue
        links += 1
        if links > _MOST_LINKS:
            return None
        done = [] if link.startswith("/") else done
        todo += [piece for piece in reversed(PurePosixPath(link).parts) if piece != "/"]
    return "/" + "/".join(done)
