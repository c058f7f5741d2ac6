"""What readers read of a machine: their files, listings and links, so that the same readers see the same machine again elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from collbench.machine.files import Files

_NOWHERE = "/.nowhere"


class Recorded:
    """Files (see topology.files) that notes what was asked. By real path: `texts`, `links` to absolute targets, and `folders`.

    A name that was listed and never read is noted as a folder: it is there, and its content is nobody's business.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, str | None] = {"": "", "/": ""}
        self.texts: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.folders: set[str] = set()

    def text(self, path: str) -> str | None:
        """See Files."""
        text, found = self._files.text(path), self._follow(path)
        if text is not None and found:
            self.texts[found] = text
        return text

    def names(self, path: str) -> tuple[str, ...]:
        """See Files."""
        found, names = self._follow(path), self._files.names(path)
        for name in names:
            below = f"{path.rstrip('/')}/{name}"
            if self._follow(below) is None:
                self.links[f"{found}/{name}"] = _NOWHERE
        return names

    def real(self, path: str) -> str | None:
        """See Files."""
        self._follow(path)
        return self._files.real(path)

    def renamed(self, rename: Callable[[str], str], content: Callable[[str, str], str]) -> tuple[dict[str, str], dict[str, str], set[str]]:
        """(texts, links, folders) with other names and contents, folders without those that hold a file."""
        texts = {rename(path): content(path, text) for path, text in self.texts.items()}
        links = {rename(path): rename(target) for path, target in self.links.items()}
        return texts, links, {rename(path) for path in self.folders} - set(texts) - set(links)

    def _follow(self, path: str) -> str | None:
        """The real path, with the links on the way noted; None where it leads nowhere."""
        if path not in self._known:
            folder, _, name = path.rpartition("/")
            above, found = self._follow(folder), self._files.real(path)
            self._known[path] = found
            if found is not None and above is not None:
                self.folders.add(found)
                if found != f"{above}/{name}":
                    self.links[f"{above}/{name}"] = found
        return self._known[path]
