"""A machine's files inside a tarball, held in memory: the kernel's files are small."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from collbench.machine.files import Links
from collbench.machine.readers.text import Unreadable, printable
from collbench.machine.tarball import Member, members

KIND = "tarball of a machine's files"
SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
_TOPS = ("sys", "proc")
_NEVER_EMPTY = ("/proc/cpuinfo", "/proc/meminfo", "/proc/cmdline")


class Archive:
    """The files of a tarball (see files.Files), paths from the folder that holds `sys` and `proc`. `doubts` says what was left out."""

    def __init__(self, found: Iterable[Member], doubts: tuple[str, ...] = ()) -> None:
        self._files: dict[str, bytes] = {}
        self._links: dict[str, str] = {}
        self._names: dict[str, set[str]] = {"/": set()}
        self.doubts = doubts
        for member in found:
            self._keep(member)
        self._resolve = Links(self._links.get, remember=True).resolve

    def text(self, path: str) -> str | None:
        """See Files; here at most 8 MiB, as tools' outputs lie beside the kernel's files."""
        found = self._resolve(path)
        held = self._files.get(found) if found else None
        return held.decode("utf-8", errors="replace").strip() if held is not None else None

    def names(self, path: str) -> tuple[str, ...]:
        """See Files."""
        found = self._resolve(path)
        return tuple(sorted(self._names.get(found, ()))) if found else ()

    def real(self, path: str) -> str | None:
        """See Files."""
        found = self._resolve(path)
        return found if found in self._files or found in self._names else None

    def _keep(self, member: Member) -> None:
        """A later member of the same path takes the place of an earlier one, as it would on disk."""
        self._files.pop(member.path, None)
        self._links.pop(member.path, None)
        if member.data is not None:
            self._files[member.path] = member.data
        elif member.target is not None:
            self._links[member.path] = member.target
        else:
            self._names.setdefault(member.path, set())
        self._enter(member.path)

    def _enter(self, path: str) -> None:
        while path != "/":
            folder, _, name = path.rpartition("/")
            known = self._names.setdefault(folder or "/", set())
            if name in known:
                return
            known.add(name)
            path = folder or "/"


def open_archive(path: Path) -> Archive:
    """The files of a tarball, plain or compressed (gzip, bzip2, xz, zstd), whatever its name ends in.

    Raises Unreadable for what is no tarball, is damaged or too large, and for one that holds no machine or several.
    """
    left_out: Counter[str] = Counter()
    found = list(members(path, left_out))
    name = printable(path.name)
    top = _top(found, name)
    doubts = [f"{name}: {count} members left out: {reason}" for reason, count in sorted(left_out.items())]
    archive = Archive(_below(top, found), tuple(doubts))
    if any(archive.text(file) == "" for file in _NEVER_EMPTY):
        why = "/proc gives the size of its files as 0, and tar copies by size; `collbench probe --gather` does not"
        archive.doubts += (f"{name}: its files of /proc are empty: {why}",)
    return archive


def _top(found: Iterable[Member], name: str) -> str:
    """The folder above `sys` and `proc`: "" or "/16em64t"."""
    tops: Mapping[str, None] = dict.fromkeys(top for member in found for top in _tops_of(member.path))
    highest = min((top.count("/") for top in tops), default=0)
    chosen = sorted(top for top in tops if top.count("/") == highest)
    if not chosen:
        raise Unreadable(f"{name} holds neither sys nor proc: pack a machine's files with `collbench probe --gather`")
    if len(chosen) > 1:
        shown = ", ".join(printable(top.lstrip("/"), 40) for top in chosen[:3])
        raise Unreadable(f"{name} holds {len(chosen)} machines ({shown}): give one tarball per machine")
    return chosen[0]


def _tops_of(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:index]) for index, part in enumerate(parts) if part in _TOPS][:1]


def _below(top: str, found: Iterable[Member]) -> list[Member]:
    """The members below `top`, with paths from there."""
    return [
        Member(member.path.removeprefix(top), member.data, _from_top(top, member.target))
        for member in found
        if member.path.startswith(top + "/")
    ]


def _from_top(top: str, target: str | None) -> str | None:
    """A hard link's target counts from the tarball's root."""
    return target.removeprefix(top) if target and target.startswith(top + "/") else target
