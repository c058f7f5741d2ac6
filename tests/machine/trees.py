"""A machine's files out of a dict, for tests of everything that reads sysfs and procfs."""

from collections import Counter
from collections.abc import Mapping

from collbench.machine.files import SymlinkResolver


class Tree:
    """Files (see topology.files) made of `files` (path -> text) and symbolic `links` (path -> target, relative or absolute).

    Tree({"/sys/devices/virtual/net/veth0/mtu": "1500"}, {"/sys/class/net/veth0": "../../devices/virtual/net/veth0"})

    Folders come from the paths; one that ends in "/" is an empty folder. `reads` counts how often each path was asked for its text.
    """

    def __init__(self, files: Mapping[str, str], links: Mapping[str, str] = {}) -> None:
        self._files = {path: text for path, text in files.items() if not path.endswith("/")}
        self._links = dict(links)
        self._folders: dict[str, set[str]] = {path.rstrip("/") or "/": set() for path in ["/", *files] if path.endswith("/")}
        for path in [*files, *self._links]:
            self._add(path.rstrip("/"))
        self._resolve = SymlinkResolver(self._links.get).resolve
        self.reads: Counter[str] = Counter()

    def text(self, path: str) -> str | None:
        self.reads[path] += 1
        found = self._resolve(path)
        text = self._files.get(found) if found else None
        return text.strip() if text is not None else None

    def names(self, path: str) -> tuple[str, ...]:
        found = self._resolve(path)
        return tuple(sorted(self._folders.get(found, ()))) if found else ()

    def real(self, path: str) -> str | None:
        found = self._resolve(path)
        return found if found in self._files or found in self._folders else None

    def _add(self, path: str) -> None:
        while path != "/":
            folder, _, name = path.rpartition("/")
            known = self._folders.setdefault(folder or "/", set())
            if name in known:
                return
            known.add(name)
            path = folder or "/"


def pci(path: str, **facts: str) -> tuple[dict[str, str], dict[str, str]]:
    """Files and links of one PCI function at `path` below /sys/devices, "pci0000:00/0000:00:01.0/0000:01:00.0"; facts are its files.

    pci("pci0000:00/0000:00:01.0", **{"class": "0x060400"}, vendor="0x8086")
    """
    address = path.rpartition("/")[2]
    files = {f"/sys/devices/{path}/{name}": text for name, text in {"numa_node": "0", **facts}.items()}
    return files, {f"/sys/bus/pci/devices/{address}": f"../../../devices/{path}"}


def tree(*parts: tuple[Mapping[str, str], Mapping[str, str]] | Mapping[str, str]) -> Tree:
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for part in parts:
        more, further = part if isinstance(part, tuple) else (part, {})
        files.update(more)
        links.update(further)
    return Tree(files, links)
