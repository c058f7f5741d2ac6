"""The members of a tarball that nobody vouches for: a stream of bounded length, and only files, folders and links that stay inside.

Nothing is unpacked to disk. Read as a stream, a member cannot send the reader back (CVE-2025-8194).
"""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, cast

from collbench.machine.readers.text import Unreadable, printable
from collbench.untrusted import open_file

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


class Readable(Protocol):
    """What can be read piece by piece; b"" at the end."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """A file's bytes, a link's target (as written, or "/…" of a hard link), or a folder (both None). `path` starts with "/"."""

    path: str
    data: bytes | None = None
    target: str | None = None


def members(file: Path, left_out: Counter[str]) -> Iterator[Member]:
    """The members of a tarball, plain or compressed with gzip, bzip2, xz or zstd. `left_out` counts the others by reason.

    Raises Unreadable for what is no tarball, is damaged, or would grow beyond the limits.
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
        raise Unreadable(f"{name} is no tarball, or is damaged ({reason}): pack or copy it again") from None


def _from(stream: _Bounded, name: str, left_out: Counter[str]) -> Iterator[Member]:
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
    return "sparse files" if header.issparse() else None  # a few bytes say that they are of any size, and those are not counted


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


def _member(tar: tarfile.TarFile, header: tarfile.TarInfo) -> Member:
    path = "/" + "/".join(part for part in header.name.split("/") if part not in {"", "."})
    if header.issym():
        return Member(path, target=header.linkname)
    if header.islnk():
        return Member(path, target="/" + header.linkname.removeprefix("./").lstrip("/"))
    stream = tar.extractfile(header) if header.isreg() else None
    # tar fills a sysfs file up to the page that the kernel announced
    return Member(path, data=stream.read(MOST_FILE).rstrip(b"\x00") if stream else None)


class _Header(tarfile.TarInfo):
    """Notes on the tarfile how it ended, as tarfile takes a damaged header for the end. Long names are bounded before they are read."""

    ENDED = "collbench_ended"

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Any:
        """See tarfile.TarInfo, which searches what stands before a member in a time that grows with its square (CVE-2024-6232)."""
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

    def __init__(self, source: Readable, name: str) -> None:
        self._source, self._name, self._left = source, name, MOST_STREAM

    def read(self, size: int) -> bytes:
        """At most `size` bytes unpacked, b"" at the end. Raises EOFError when the file stops early, lzma.LZMAError when it is damaged."""
        data = self._source.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise Unreadable(f"{self._name} unpacks to more than {MOST_STREAM >> 20} MiB: pack the files of one machine")
        return data


def unpacked(raw: IO[bytes]) -> Readable:
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
