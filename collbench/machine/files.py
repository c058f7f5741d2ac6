"""Read-only access to a machine's files: the live root, a copied folder, or a tarball. `RecordedFiles` records what was read."""

from __future__ import annotations

import os
import stat
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, cast

from collbench.machine.readers.text import Unreadable, printable
from collbench.untrusted import open_file

_MOST = 1 << 20
_MOST_LINKS = 40  # links followed for one path, as in Linux
_MOST_PARTS = 4096  # names in one path, with those of its links
_MOST_PATH = 4096  # PATH_MAX
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


def resolve(path: str, target: Callable[[str], str | None]) -> str | None:
    """Return `path` with links resolved inside the tree, None for circular links. `target(path)` returns the text of a link, or None."""
    return SymlinkResolver(target).resolve(path)


class SymlinkResolver:
    """Resolver for the symbolic links of a tree. With `remember`, for trees that do not change, each link is resolved once.

    The number of path components is limited, for each path and for all remembered links.
    An archive of a few KB may hold thousands of links with thousands of components each. A path beyond the limit resolves to None.
    """

    def __init__(self, target: Callable[[str], str | None], *, remember: bool = False) -> None:
        self._target, self._remember = target, remember
        self._known: dict[str, tuple[str | None, int]] = {}
        self._walked = 0

    def resolve(self, path: str) -> str | None:
        """Return the path without links, or None if links are circular or a limit is exceeded."""
        found, _ = self._walk("", path, _MOST_LINKS, [_MOST_PARTS])
        return found if found is None else found or "/"

    def _walk(self, done: str, text: str, links: int, parts: list[int]) -> tuple[str | None, int]:
        """Resolve `text` from the folder `done` ("" is the root).

        Return the result and the number of links. `parts`: the remaining limit.
        """
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
        # a walk inside another one may have failed at its remaining limit, so only failures with the full limit are stored
        if self._remember and (found is not None or links == _MOST_LINKS - 1):
            self._known[place] = found, taken
        return found, taken


# Tarballs from untrusted sources: a stream of limited length, and only files, folders and links that stay inside.
#
# Nothing is unpacked to disk. In a stream, a member cannot move the read position backwards (CVE-2025-8194).

MOST_STREAM = 256 << 20  # bytes after decompression
MOST_MEMBERS = 200_000
MOST_FILE = 8 << 20  # bytes of one file; `lspci -vvv` of a large machine has more than one MiB
MOST_PATH = 4096  # PATH_MAX
MOST_HEADER = 1 << 15  # bytes of a member's long name, or of its additional attributes
MOST_DEPTH = 60  # folders above a file; /sys has about 20
MOST_WINDOW = 128 << 20  # bytes of memory that decompression may use

_MAGIC = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}
_BEFORE_A_MEMBER = {*tarfile.GNU_TYPES, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE} - {tarfile.GNUTYPE_SPARSE}
_CHUNK = 1 << 16


class ByteStream(Protocol):
    """An object with a `read` method that returns bytes, b"" at the end."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes."""
        ...


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """One member of a tarball: `data` of a file, `target` of a link (as written; "/…" for a hard link), or a folder (both None).

    `path` starts with "/".
    """

    path: str
    data: bytes | None = None
    target: str | None = None


def members(file: Path, left_out: Counter[str]) -> Iterator[ArchiveMember]:
    """Yield the members of a tarball, plain or compressed with gzip, bzip2, xz or zstd. `left_out` counts skipped ones by reason.

    Raises Unreadable when the file is not a tarball, is damaged, or exceeds a size limit.
    """
    name = printable(file.name)
    try:
        with open_file(file) as raw:
            yield from _from(_Bounded(unpacked(raw), name), name, left_out)
    except Unreadable:
        raise
    except FileNotFoundError:
        raise Unreadable(f"{name} is not there: name a tarball of /sys and /proc") from None
    except Exception as why:  # every decompressor and tarfile raise different errors
        reason = printable(str(why), 80) or type(why).__name__
        raise Unreadable(f"{name} is not a valid tarball ({reason}): pack or copy it again") from None


def _from(stream: _Bounded, name: str, left_out: Counter[str]) -> Iterator[ArchiveMember]:
    with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|", tarinfo=_Header, errorlevel=0) as tar:
        for count, header in enumerate(tar, start=1):
            if count > MOST_MEMBERS:
                raise Unreadable(f"{name} has more than {MOST_MEMBERS} members: use `collbench probe --gather`")
            tar.members = []  # type: ignore[attr-defined]  # otherwise tarfile stores every header
            reason = _why_not(header)
            if reason:
                left_out[reason] += 1
            else:
                yield _member(tar, header)
        ended = getattr(tar, _Header.ENDED, "")
        if ended != "EOFHeaderError":
            left_out["what follows a damaged or missing header: the file may be cut off"] += 1


def _why_not(header: tarfile.TarInfo) -> str | None:
    if len(header.name) > MOST_PATH or len(header.linkname) > MOST_PATH:  # before they are used, since they may have 256 MiB
        return "names that are longer than any path"
    parts = header.name.split("/")
    if header.name.startswith("/") or ".." in parts:
        return "paths that are absolute or lead upwards"
    if printable(header.name, len(header.name)) != header.name.strip() or len(parts) > MOST_DEPTH:
        return "paths with control characters or too many folders"
    if header.issym() and not header.linkname.startswith("/"):  # an absolute path is relative to the tree's root
        depth = len([part for part in parts if part not in {"", "."}]) - 1
        for part in header.linkname.split("/"):
            depth += -1 if part == ".." else 0 if part in {"", "."} else 1
            if depth < 0:
                return "links that leave the tree"
    if header.size < 0 or not (header.isreg() or header.isdir() or header.issym() or header.islnk()):
        return "devices, pipes and members of unknown kind"
    return "sparse files" if header.issparse() else None  # a few bytes can declare any size, which the limit does not count


def _member(tar: tarfile.TarFile, header: tarfile.TarInfo) -> ArchiveMember:
    path = "/" + "/".join(part for part in header.name.split("/") if part not in {"", "."})
    if header.issym():
        return ArchiveMember(path, target=header.linkname)
    if header.islnk():
        return ArchiveMember(path, target="/" + header.linkname.removeprefix("./").lstrip("/"))
    stream = tar.extractfile(header) if header.isreg() else None
    # tar pads a sysfs file to the page size that the kernel reports
    return ArchiveMember(path, data=stream.read(MOST_FILE).rstrip(b"\x00") if stream else None)


class _Header(tarfile.TarInfo):
    """A tarball header that records on the tar object how it ended: tarfile treats a damaged header as the end. Limits name lengths."""

    ENDED = "collbench_ended"

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Any:
        """Return the parsed header. Limits the text before a member, which tarfile searches in quadratic time (CVE-2024-6232)."""
        found = super().frombuf(buf, encoding, errors)
        if found.type in _BEFORE_A_MEMBER and found.size > MOST_HEADER:
            raise ValueError(f"a member's name or attributes take {found.size} bytes, the most is {MOST_HEADER}")
        return found

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Any:
        """Return the next header; on an error, record its kind on the tar object."""
        try:
            return super().fromtarfile(tar)
        except tarfile.HeaderError as why:
            setattr(tar, cls.ENDED, type(why).__name__)
            raise


class _Bounded:
    """A byte stream that ends with an error beyond MOST_STREAM bytes."""

    def __init__(self, source: ByteStream, name: str) -> None:
        self._source, self._name, self._left = source, name, MOST_STREAM

    def read(self, size: int) -> bytes:
        """Return at most `size` unpacked bytes, b"" at the end.

        Raises Unreadable beyond the limit, EOFError when the file is truncated, lzma.LZMAError when it is damaged.
        """
        data = self._source.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise Unreadable(f"{self._name} unpacks to more than {MOST_STREAM >> 20} MiB: pack the files of one machine")
        return data


def unpacked(raw: IO[bytes]) -> ByteStream:
    """Return a stream that decompresses a file, chosen by its first bytes, with limited memory; the file itself when it is plain."""
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
    """An xz decompressor with a memory limit, which lzma.LZMAFile does not support."""

    def __init__(self, raw: IO[bytes]) -> None:
        import lzma

        self._raw = raw
        self._decompressor = lzma.LZMADecompressor(memlimit=MOST_WINDOW)

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, b"" at the end. Raises EOFError when the file is truncated."""
        while not self._decompressor.eof:
            chunk = self._raw.read(_CHUNK) if self._decompressor.needs_input else b""
            data = self._decompressor.decompress(chunk, size)
            if data:
                return data
            if not chunk and self._decompressor.needs_input:
                raise EOFError("cut off")
        return b""


# A machine's files inside a tarball, held in memory: the kernel's files are small.

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
_TOPS = {"sys", "proc"}
_NEVER_EMPTY = ("/proc/cpuinfo", "/proc/meminfo", "/proc/cmdline")


class Archive:
    """The files of a tarball in memory. Paths start at the folder that holds `sys` and `proc`. `doubts`: what was left out."""

    def __init__(self, found: Iterable[ArchiveMember], doubts: tuple[str, ...] = ()) -> None:
        self._files: dict[str, bytes] = {}
        self._links: dict[str, str] = {}
        self._names: dict[str, set[str]] = {"/": set()}
        self.doubts = doubts
        for member in found:
            self._keep(member)
        self._resolve = SymlinkResolver(self._links.get, remember=True).resolve

    def text(self, path: str) -> str | None:
        """Return the content of a file; see `Files.text`. At most 8 MiB here, since outputs of tools are stored with the kernel's files."""
        found = self._resolve(path)
        held = self._files.get(found) if found else None
        return held.decode("utf-8", errors="replace").strip() if held is not None else None

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names in a folder; see `Files.names`."""
        found = self._resolve(path)
        return tuple(sorted(self._names.get(found, ()))) if found else ()

    def real(self, path: str) -> str | None:
        """Return the path without links; see `Files.real`."""
        found = self._resolve(path)
        return found if found in self._files or found in self._names else None

    def _keep(self, member: ArchiveMember) -> None:
        """Add a member. A later member replaces an earlier one with the same path, as on disk."""
        self._files.pop(member.path, None)
        self._links.pop(member.path, None)
        if member.data is not None:
            self._files[member.path] = member.data
        elif member.target is not None:
            self._links[member.path] = member.target
        else:
            self._names.setdefault(member.path, set())
        path = member.path
        while path != "/":
            folder, _, name = path.rpartition("/")
            known = self._names.setdefault(folder or "/", set())
            if name in known:
                return
            known.add(name)
            path = folder or "/"


def open_archive(path: Path) -> Archive:
    """Return the files of a tarball, plain or compressed (gzip, bzip2, xz, zstd), with any suffix.

    Raises Unreadable when it is not a tarball, is damaged or too large, or holds no machine or several.
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
    """Return the folder above `sys` and `proc`, such as "" or "/16em64t". Raises Unreadable for none or several."""
    paths = [member.path.split("/") for member in found]
    tops = {"/".join(parts[: next(index for index, part in enumerate(parts) if part in _TOPS)]) for parts in paths if _TOPS & {*parts}}
    highest = min((top.count("/") for top in tops), default=0)
    chosen = sorted(top for top in tops if top.count("/") == highest)
    if not chosen:
        raise Unreadable(f"{name} holds neither sys nor proc: pack a machine's files with `collbench probe --gather`")
    if len(chosen) > 1:
        shown = ", ".join(printable(top.lstrip("/"), 40) for top in chosen[:3])
        raise Unreadable(f"{name} holds {len(chosen)} machines ({shown}): give one tarball per machine")
    return chosen[0]


def _below(top: str, found: Iterable[ArchiveMember]) -> Iterator[ArchiveMember]:
    """Yield the members below `top`, with paths relative to it, like targets of hard links, which begin at the tarball's root."""
    for member in found:
        if member.path.startswith(top + "/"):
            target = member.target
            target = target.removeprefix(top) if target and target.startswith(top + "/") else target
            yield ArchiveMember(member.path.removeprefix(top), member.data, target)


# A record of the files, listings and links that readers used, from which the machine can be read again elsewhere.

_NOWHERE = "/.nowhere"


class RecordedFiles:
    """A `Files` wrapper that records every access, by real path: `texts`, `links` to absolute targets, and `folders`.

    The same readers can later read the same machine from the record. A name that was listed and never read is recorded as a folder.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, str | None] = {"": "", "/": ""}
        self.texts: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.folders: set[str] = set()

    def text(self, path: str) -> str | None:
        """Return the content of a file and record it; see `Files.text`."""
        text, found = self._files.text(path), self._follow(path)
        if text is not None and found:
            self.texts[found] = text
        return text

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names in a folder and record them; see `Files.names`."""
        found, names = self._follow(path), self._files.names(path)
        for name in names:
            below = f"{path.rstrip('/')}/{name}"
            if self._follow(below) is None:
                self.links[f"{found}/{name}"] = _NOWHERE
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
        if path not in self._known:
            folder, _, name = path.rpartition("/")
            above, found = self._follow(folder), self._files.real(path)
            self._known[path] = found
            if found is not None and above is not None:
                self.folders.add(found)
                if found != f"{above}/{name}":
                    self.links[f"{above}/{name}"] = found
        return self._known[path]
