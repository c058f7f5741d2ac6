"""A machine's files, wherever they lie: the live root, a copied folder, or (in `archive`) a tarball. Reading only."""

from __future__ import annotations

import os
import stat
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, cast

from collbench.machine.readers.text import Unreadable, printable
from collbench.untrusted import open_file

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
    return SymlinkResolver(target).resolve(path)


class SymlinkResolver:
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


# The members of a tarball from untrusted sources: a stream of bounded length, and only files, folders and links that stay inside.
#
# Nothing is unpacked to disk. Read as a stream, a member cannot send the reader back (CVE-2025-8194).

MOST_STREAM = 256 << 20  # bytes after decompression
MOST_MEMBERS = 200_000
MOST_FILE = 8 << 20  # bytes of one file; `lspci -vvv` of a large machine has more than one MiB
MOST_PATH = 4096  # PATH_MAX
MOST_HEADER = 1 << 15  # bytes of a member's long name, or of its further attributes
MOST_DEPTH = 60  # folders above a file; /sys has about 20
MOST_WINDOW = 128 << 20  # bytes of memory that a compressed file may ask for

_MAGIC = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}
_BEFORE_A_MEMBER = {*tarfile.GNU_TYPES, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE} - {tarfile.GNUTYPE_SPARSE}
_CHUNK = 1 << 16


class ByteStream(Protocol):
    """What can be read piece by piece; b"" at the end."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes."""
        ...


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """A file's bytes, a link's target (as written, or "/…" of a hard link), or a folder (both None). `path` starts with "/"."""

    path: str
    data: bytes | None = None
    target: str | None = None


def members(file: Path, left_out: Counter[str]) -> Iterator[ArchiveMember]:
    """The members of a tarball, plain or compressed with gzip, bzip2, xz or zstd. `left_out` counts the others by reason.

    Raises Unreadable for what is not a tarball, is damaged, or would grow beyond the limits.
    """
    name = printable(file.name)
    try:
        with open_file(file) as raw:
            yield from _from(_Bounded(unpacked(raw), name), name, left_out)
    except Unreadable:
        raise
    except FileNotFoundError:
        raise Unreadable(f"{name} is not there: name a tarball of /sys and /proc") from None
    except Exception as why:  # every decompressor and tarfile itself has errors of its own kind
        reason = printable(str(why), 80) or type(why).__name__
        raise Unreadable(f"{name} is not a valid tarball ({reason}): pack or copy it again") from None


def _from(stream: _Bounded, name: str, left_out: Counter[str]) -> Iterator[ArchiveMember]:
    with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|", tarinfo=_Header, errorlevel=0) as tar:
        for count, header in enumerate(tar, start=1):
            if count > MOST_MEMBERS:
                raise Unreadable(f"{name} has more than {MOST_MEMBERS} members: use `collbench probe --gather`")
            tar.members = []  # type: ignore[attr-defined]  # else it keeps every header
            reason = _why_not(header)
            if reason:
                left_out[reason] += 1
            else:
                yield _member(tar, header)
        ended = getattr(tar, _Header.ENDED, "")
        if ended != "EOFHeaderError":
            left_out["what follows a damaged or missing header: the file may be cut off"] += 1


def _why_not(header: tarfile.TarInfo) -> str | None:
    if len(header.name) > MOST_PATH or len(header.linkname) > MOST_PATH:  # before anything is made of them: they may be of 256 MiB
        return "names that are longer than any path"
    parts = header.name.split("/")
    if header.name.startswith("/") or ".." in parts:
        return "paths that are absolute or lead upwards"
    if printable(header.name, len(header.name)) != header.name.strip() or len(parts) > MOST_DEPTH:
        return "paths with control characters or too many folders"
    if header.issym() and _leaves(parts, header.linkname):
        return "links that leave the tree"
    if header.size < 0 or not (header.isreg() or header.isdir() or header.issym() or header.islnk()):
        return "devices, pipes and members of unknown kind"
    return "sparse files" if header.issparse() else None  # a few bytes can claim any size, and those are not counted


def _leaves(parts: list[str], target: str) -> bool:
    """The link climbs above the tarball's root before it comes down again."""
    if target.startswith("/"):
        return False  # absolute: from the tree's own root
    depth = len([part for part in parts if part not in {"", "."}]) - 1
    for part in target.split("/"):
        depth += -1 if part == ".." else 0 if part in {"", "."} else 1
        if depth < 0:
            return True
    return False


def _member(tar: tarfile.TarFile, header: tarfile.TarInfo) -> ArchiveMember:
    path = "/" + "/".join(part for part in header.name.split("/") if part not in {"", "."})
    if header.issym():
        return ArchiveMember(path, target=header.linkname)
    if header.islnk():
        return ArchiveMember(path, target="/" + header.linkname.removeprefix("./").lstrip("/"))
    stream = tar.extractfile(header) if header.isreg() else None
    # tar fills a sysfs file up to the page that the kernel announced
    return ArchiveMember(path, data=stream.read(MOST_FILE).rstrip(b"\x00") if stream else None)


class _Header(tarfile.TarInfo):
    """Notes on the tarfile how it ended, as tarfile takes a damaged header for the end. Long names are bounded before they are read."""

    ENDED = "collbench_ended"

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Any:
        """See tarfile.TarInfo, which searches the text before a member in a time that grows with its square (CVE-2024-6232)."""
        found = super().frombuf(buf, encoding, errors)
        if found.type in _BEFORE_A_MEMBER and found.size > MOST_HEADER:
            raise ValueError(f"a member's name or attributes take {found.size} bytes, the most is {MOST_HEADER}")
        return found

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Any:
        """See tarfile.TarInfo."""
        try:
            return super().fromtarfile(tar)
        except tarfile.HeaderError as why:
            setattr(tar, cls.ENDED, type(why).__name__)
            raise


class _Bounded:
    """Ends a stream that would never end."""

    def __init__(self, source: ByteStream, name: str) -> None:
        self._source, self._name, self._left = source, name, MOST_STREAM

    def read(self, size: int) -> bytes:
        """At most `size` bytes unpacked, b"" at the end. Raises EOFError when the file stops early, lzma.LZMAError when it is damaged."""
        data = self._source.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise Unreadable(f"{self._name} unpacks to more than {MOST_STREAM >> 20} MiB: pack the files of one machine")
        return data


def unpacked(raw: IO[bytes]) -> ByteStream:
    """What unpacks a file with this beginning, with bounded memory; a plain one itself."""
    start = raw.read(6)
    raw.seek(0)
    kind = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)
    if kind == "gz":
        import gzip

        return gzip.GzipFile(fileobj=raw)
    if kind == "bz2":
        import bz2

        return bz2.BZ2File(raw)
    if kind == "zst":
        import zstandard

        return zstandard.ZstdDecompressor(max_window_size=MOST_WINDOW).stream_reader(raw, read_across_frames=True)
    return _Xz(raw) if kind == "xz" else raw


class _Xz:
    """xz with a limit on its memory, which lzma.LZMAFile does not take."""

    def __init__(self, raw: IO[bytes]) -> None:
        import lzma

        self._raw = raw
        self._decompressor = lzma.LZMADecompressor(memlimit=MOST_WINDOW)

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end."""
        while not self._decompressor.eof:
            chunk = self._raw.read(_CHUNK) if self._decompressor.needs_input else b""
            data = self._decompressor.decompress(chunk, size)
            if data:
                return data
            if not chunk and self._decompressor.needs_input:
                raise EOFError("cut off")
        return b""


# A machine's files inside a tarball, held in memory: the kernel's files are small.

KIND = "tarball of a machine's files"
SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
_TOPS = ("sys", "proc")
_NEVER_EMPTY = ("/proc/cpuinfo", "/proc/meminfo", "/proc/cmdline")


class Archive:
    """The files of a tarball (see files.Files), paths from the folder that holds `sys` and `proc`. `doubts` reports what was left out."""

    def __init__(self, found: Iterable[ArchiveMember], doubts: tuple[str, ...] = ()) -> None:
        self._files: dict[str, bytes] = {}
        self._links: dict[str, str] = {}
        self._names: dict[str, set[str]] = {"/": set()}
        self.doubts = doubts
        for member in found:
            self._keep(member)
        self._resolve = SymlinkResolver(self._links.get, remember=True).resolve

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

    def _keep(self, member: ArchiveMember) -> None:
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
    """The files of a tarball, plain or compressed (gzip, bzip2, xz, zstd), with any suffix.

    Raises Unreadable for what is not a tarball, is damaged or too large, and for one that holds no machine or several.
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


def _top(found: Iterable[ArchiveMember], name: str) -> str:
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


def _below(top: str, found: Iterable[ArchiveMember]) -> list[ArchiveMember]:
    """The members below `top`, with paths from there."""
    return [
        ArchiveMember(member.path.removeprefix(top), member.data, _from_top(top, member.target))
        for member in found
        if member.path.startswith(top + "/")
    ]


def _from_top(top: str, target: str | None) -> str | None:
    """A hard link's target counts from the tarball's root."""
    return target.removeprefix(top) if target and target.startswith(top + "/") else target


# What readers read of a machine: their files, listings and links, so that the same readers see the same machine again elsewhere.

_NOWHERE = "/.nowhere"


class RecordedFiles:
    """Files (see topology.files) that notes what was asked. By real path: `texts`, `links` to absolute targets, and `folders`.

    A name that was listed and never read is noted as a folder: it is there, and its content stays unread.
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
