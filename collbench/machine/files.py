"""A machine's files, wherever they lie: the live root, a copied folder, or (in `archive`) a tarball. Reading only."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_MOST = 1 << 20
_MOST_LINKS = 40  # followed for one path, as in Linux
_MOST_PARTS = 4096  # of names on the way, those of links included
_MOST_PATH = 4096  # PATH_MAX
_MOST_WALKED = 2_000_000  # parts of all links of an archive: about a second


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
    """Return `path` with links followed inside the tree, None for circles; `target(path)` gives the text of a link, or None."""
    return Links(target).resolve(path)


class Links:
    """Follows the symbolic links of a tree. With `remember`, for trees that do not change, each link is followed once.

    The parts that are walked have a bound, for each path and for all remembered links: an archive of a few KB may hold thousands of links
    of thousands of parts each. What exceeds it leads nowhere.
    """

    def __init__(self, target: Callable[[str], str | None], *, remember: bool = False) -> None:
        self._target, self._remember = target, remember
        self._known: dict[str, tuple[str | None, int]] = {}
        self._walked = 0

    def resolve(self, path: str) -> str | None:
        """Return the path without links, or None where it leads in circles or exceeds a bound."""
        found, _ = self._walk("", path, _MOST_LINKS, [_MOST_PARTS])
        return found if found is None else found or "/"

    def _walk(self, done: str, text: str, links: int, parts: list[int]) -> tuple[str | None, int]:
        """Go on from the folder `done` ("": the root): where that leads, and how many links it took. `parts`: what is left of the bound."""
        taken = 0
        for part in text.split("/"):
            parts[0] -= 1
            if parts[0] < 0 or len(done) > _MOST_PATH:
                return None, taken
            if part in ("", "."):
                continue
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            place = f"{done}/{part}"
            link = self._target(place)
            if link is None:
                done = place
                continue
            found, more = self._follow(place, "" if link.startswith("/") else done, link, links - taken - 1, parts)
            taken += 1 + more
            if found is None or taken > links:
                return None, taken
            done = found
        return done, taken

    def _follow(self, place: str, done: str, link: str, links: int, parts: list[int]) -> tuple[str | None, int]:
        if place in self._known:
            return self._known[place]
        if links < 0 or (self._remember and self._walked > _MOST_WALKED):
            return None, 0
        before = parts[0]
        found, taken = self._walk(done, link, links, parts)
        self._walked += before - parts[0]
        # a walk that failed may have begun deep inside another one, with little left: only from its own start it is known to fail
        if self._remember and (found is not None or links == _MOST_LINKS - 1):
            self._known[place] = found, taken
        return found, taken
