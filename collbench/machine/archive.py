"""A machine's files in a tarball from an untrusted source, plain or compressed, held in memory and never unpacked to disk."""

from __future__ import annotations

import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol, cast

import msgspec

from collbench.machine.files import MOST_PATH, SymlinkResolver
from collbench.machine.readers.text import Unreadable, printable
from collbench.untrusted import open_file

# Tarballs from untrusted sources: a stream of limited length, and only files, folders and links that stay inside.
#
# Nothing is unpacked to disk. In a stream, a member cannot move the read position backwards (CVE-2025-8194).

MOST_STREAM = 256 << 20  # bytes after decompression
MOST_MEMBERS = 200_000
MOST_FILE = 8 << 20  # bytes of one file; `lspci -vvv` of a large machine has more than one MiB
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


class ArchiveMember(msgspec.Struct, frozen=True):
    """A member of a tarball, at `path` from "/": `data` of a file, `target` of a link (as written; "/…" of a hard link), or a folder."""

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
                continue
            path = "/" + "/".join(part for part in header.name.split("/") if part not in {"", "."})
            target = header.linkname if header.issym() else None
            if header.islnk():
                target = "/" + header.linkname.removeprefix("./").lstrip("/")
            file = tar.extractfile(header) if header.isreg() else None
            # tar pads a sysfs file to the page size that the kernel reports
            yield ArchiveMember(path, file.read(MOST_FILE).rstrip(b"\x00") if file else None, target)
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
            if part == "..":
                depth -= 1
            elif part not in {"", "."}:
                depth += 1
            if depth < 0:
                return "links that leave the tree"
    if header.size < 0 or not (header.isreg() or header.isdir() or header.issym() or header.islnk()):
        return "devices, pipes and members of unknown kind"
    return "sparse files" if header.issparse() else None  # a few bytes can declare any size, which the limit does not count


class _Header(tarfile.TarInfo):
    """A tarball header that records on the tar object how it ended: tarfile treats a damaged header as the end. Limits name lengths."""

    ENDED = "collbench_ended"

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Any:
        """Return the parsed header. Limits the text before a member, which tarfile searches in quadratic time (CVE-2024-6232)."""
        header = super().frombuf(buf, encoding, errors)
        if header.type in _BEFORE_A_MEMBER and header.size > MOST_HEADER:
            raise ValueError(f"a member's name or attributes take {header.size} bytes, the most is {MOST_HEADER}")
        return header

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
        self._source = source
        self._name = name
        self._remaining = MOST_STREAM

    def read(self, size: int) -> bytes:
        """Return at most `size` unpacked bytes, b"" at the end. Raises Unreadable beyond the limit."""
        data = self._source.read(size)
        self._remaining -= len(data)
        if self._remaining < 0:
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
OUTPUTS = "outputs"  # of tools, next to sys and proc in the archive of `probe --gather`
_TOP = re.compile(r"(.*?)/(?:sys|proc)(?:/|\Z)", re.DOTALL)
_NEVER_EMPTY = ("/proc/cpuinfo", "/proc/meminfo", "/proc/cmdline")


class Archive:
    """The files of a tarball in memory. Paths start at the folder that holds `sys` and `proc`. `doubts`: what was left out."""

    def __init__(self, archive_members: Iterable[ArchiveMember], doubts: tuple[str, ...] = ()) -> None:
        self._files: dict[str, bytes] = {}
        self._links: dict[str, str] = {}
        self._names: dict[str, set[str]] = {"/": set()}
        self.doubts = doubts
        for member in archive_members:
            self._keep(member)
        self._resolve = SymlinkResolver(self._links.get, remember=True).resolve

    def text(self, path: str) -> str | None:
        """Return the content of a file; see `Files.text`. At most 8 MiB here, since outputs of tools are stored with the kernel's files."""
        data = self._files.get(self._resolve(path) or "")
        return data.decode("utf-8", errors="replace").strip() if data is not None else None

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names in a folder; see `Files.names`."""
        return tuple(sorted(self._names.get(self._resolve(path) or "", ())))

    def real(self, path: str) -> str | None:
        """Return the path without links; see `Files.real`."""
        real_path = self._resolve(path)
        return real_path if real_path in self._files or real_path in self._names else None

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
            names = self._names.setdefault(folder or "/", set())
            if name in names:
                return
            names.add(name)
            path = folder or "/"


def open_archive(path: Path) -> Archive:
    """Return the files of a tarball, plain or compressed. Raises Unreadable if it is damaged or too large, or not of one machine."""
    left_out: Counter[str] = Counter()
    archive_members = list(members(path, left_out))
    name = printable(path.name)
    tops = {match[1] for match in (_TOP.match(member.path) for member in archive_members) if match}
    least_depth = min((top.count("/") for top in tops), default=0)
    highest = sorted(top for top in tops if top.count("/") == least_depth)
    if not highest:
        raise Unreadable(f"{name} holds neither sys nor proc: pack a machine's files with `collbench probe --gather`")
    if len(highest) > 1:
        shown = ", ".join(printable(top.lstrip("/"), 40) for top in highest[:3])
        raise Unreadable(f"{name} holds {len(highest)} machines ({shown}): give one tarball per machine")
    top = highest[0]
    doubts = [f"{name}: {count} members left out: {reason}" for reason, count in sorted(left_out.items())]
    below = []
    for member in archive_members:
        if member.path.startswith(top + "/"):  # targets of hard links begin at the tarball's root, too
            target = member.target
            target = target.removeprefix(top) if target and target.startswith(top + "/") else target
            below.append(ArchiveMember(member.path.removeprefix(top), member.data, target))
    archive = Archive(below, tuple(doubts))
    if any(archive.text(file) == "" for file in _NEVER_EMPTY):
        why = "/proc gives the size of its files as 0, and tar copies by size; `collbench probe --gather` does not"
        archive.doubts += (f"{name}: its files of /proc are empty: {why}",)
    return archive
