"""Read-only access to a machine's files: the live root or a copied folder (`archive`: a tarball). `RecordedFiles` records what was read."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_MOST = 1 << 20
_MOST_LINKS = 40  # links followed for one path, as in Linux
_MOST_PARTS = 4096  # names in one path, with those of its links
MOST_PATH = 4096  # PATH_MAX
_MOST_WALKED = 2_000_000  # parts of all links of an archive: about a second


class Files(Protocol):
    """A read-only tree of files. Paths are absolute within it ("/sys/class/net"). No method reads outside the tree, and none raises."""

    def text(self, path: str) -> str | None:
        """Return the content of a file, stripped, at most 1 MiB; None when it is missing or cannot be read."""

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names in a folder, sorted; () when the folder is missing."""

    def real(self, path: str) -> str | None:
        """Return the path with all symbolic links resolved within the tree; None for a broken or circular link."""


class Folder:
    """The files under a folder of this machine. Folder(Path("/")) is the live machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._prefix = f"{str(root).rstrip('/')}/"
        self._resolve = SymlinkResolver(self._target).resolve

    def text(self, path: str) -> str | None:
        """Return the content of a file; see `Files.text`."""
        file = self._file(path)
        try:
            if file is None:
                return None
            # without blocking: a pipe in place of a file would block forever
            with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
                regular = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
                return stream.read(_MOST).decode("utf-8", errors="replace").strip() if regular else None
        except OSError:
            return None

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names in a folder; see `Files.names`."""
        folder = self._file(path)
        try:
            return tuple(sorted(os.listdir(folder))) if folder else ()  # noqa: PTH208 - Path.iterdir makes a Path per name
        except OSError:
            return ()

    def real(self, path: str) -> str | None:
        """Return the path without links; see `Files.real`."""
        real_path = self._resolve(path)
        return real_path if real_path and os.path.lexists(self._inside(real_path)) else None

    def _file(self, path: str) -> str | None:
        if self.root == Path("/"):
            return path
        real_path = self._resolve(path)
        return self._inside(real_path) if real_path else None

    def _inside(self, path: str) -> str:
        return f"{self._prefix}{path.lstrip('/')}"  # as text: a machine has thousands of links, and Path takes ten times as long

    def _target(self, path: str) -> str | None:
        try:
            return os.readlink(self._inside(path))  # noqa: PTH115 - as text
        except (OSError, ValueError):
            return None


class SymlinkResolver:
    """Resolver for the symbolic links of a tree; `target(path)` is the text of a link. With `remember`, each link is resolved once.

    The number of path components is limited, for each path and for all remembered links.
    An archive of a few KB may hold thousands of links with thousands of components each. A path beyond the limit resolves to None.
    """

    def __init__(self, target: Callable[[str], str | None], *, remember: bool = False) -> None:
        self._target = target
        self._remember = remember
        self._followed: dict[str, tuple[str | None, int]] = {}
        self._walked = 0

    def resolve(self, path: str) -> str | None:
        """Return the path without links, or None if links are circular or a limit is exceeded."""
        real_path, _ = self._walk("", path, _MOST_LINKS, [_MOST_PARTS])
        return "/" if real_path == "" else real_path

    def _walk(self, folder: str, path: str, most_links: int, parts_left: list[int]) -> tuple[str | None, int]:
        """Resolve `path` from a folder without links ("" is the root), and return the result and the number of links."""
        links = 0
        for part in path.split("/"):
            parts_left[0] -= 1
            if parts_left[0] < 0 or len(folder) > MOST_PATH:
                return None, links
            if part in ("", "."):
                continue
            if part == "..":
                folder = folder.rpartition("/")[0]
                continue
            place = f"{folder}/{part}"
            target = self._target(place)
            if target is None:
                folder = place
                continue
            start = "" if target.startswith("/") else folder
            real_path, more_links = self._follow(place, start, target, most_links - links - 1, parts_left)
            links += 1 + more_links
            if real_path is None or links > most_links:
                return None, links
            folder = real_path
        return folder, links

    def _follow(self, place: str, folder: str, target: str, most_links: int, parts_left: list[int]) -> tuple[str | None, int]:
        if place in self._followed:
            return self._followed[place]
        if most_links < 0 or (self._remember and self._walked > _MOST_WALKED):
            return None, 0
        parts_before = parts_left[0]
        real_path, links = self._walk(folder, target, most_links, parts_left)
        self._walked += parts_before - parts_left[0]
        # a walk inside another one may have failed at its remaining limit, so only failures with the full limit are stored
        if self._remember and (real_path is not None or most_links == _MOST_LINKS - 1):
            self._followed[place] = real_path, links
        return real_path, links


# A record of the files, listings and links that readers used, from which the machine can be read again elsewhere.

_NOWHERE = "/.nowhere"


class RecordedFiles:
    """A `Files` wrapper that records every access, by real path: `texts`, `links` to absolute targets, and `folders`.

    The same readers can later read the same machine from the record. A name that was listed and never read is recorded as a folder.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._real_paths: dict[str, str | None] = {"": "", "/": ""}
        self.texts: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.folders: set[str] = set()

    def text(self, path: str) -> str | None:
        """Return the content of a file and record it; see `Files.text`."""
        text = self._files.text(path)
        real_path = self._follow(path)
        if text is not None and real_path:
            self.texts[real_path] = text
        return text

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names in a folder and record them; see `Files.names`."""
        real_path = self._follow(path)
        names = self._files.names(path)
        for name in names:
            if self._follow(f"{path.rstrip('/')}/{name}") is None:
                self.links[f"{real_path}/{name}"] = _NOWHERE
        return names

    def real(self, path: str) -> str | None:
        """Return the path without links and record the links; see `Files.real`."""
        self._follow(path)
        return self._files.real(path)

    def renamed(self, rename: Callable[[str], str], content: Callable[[str, str], str]) -> tuple[dict[str, str], dict[str, str], set[str]]:
        """Return (texts, links, folders) with names and contents replaced by the two functions, without folders that hold a file."""
        texts = {rename(path): content(path, text) for path, text in self.texts.items()}
        links = {rename(path): rename(target) for path, target in self.links.items()}
        return texts, links, {rename(path) for path in self.folders} - set(texts) - set(links)

    def _follow(self, path: str) -> str | None:
        """Return the real path and record the links on it; None if it leads nowhere."""
        if path not in self._real_paths:
            folder, _, name = path.rpartition("/")
            real_folder = self._follow(folder)
            real_path = self._files.real(path)
            self._real_paths[path] = real_path
            if real_path is not None and real_folder is not None:
                self.folders.add(real_path)
                if real_path != f"{real_folder}/{name}":
                    self.links[f"{real_folder}/{name}"] = real_path
        return self._real_paths[path]
