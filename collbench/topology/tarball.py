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

from collbench.topology.text import Unreadable, printable

MOST_STREAM = 256 << 20  # bytes after decompression
MOST_MEMBERS = 200_000
MOST_FILE = 8 << 20  # bytes of one file; `lspci -vvv` of a large machine has more than one MiB
MOST_DEPTH = 60  # folders above a file; /sys has about 20
MOST_WINDOW = 128 << 20  # bytes of memory that a compressed file may ask for

_MAGIC = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}
_CHUNK = 1 << 16


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


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
        with file.open("rb") as raw:
            yield from _from(_Bounded(_unpacked(raw), name), name, left_out)
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
    parts = header.name.split("/")
    if header.name.startswith("/") or ".." in parts:
        return "paths that are absolute or lead upwards"
    if printable(header.name, len(header.name)) != header.name.strip() or len(parts) > MOST_DEPTH:
        return "paths with control characters or too many folders"
    if header.issym() and _leaves(parts, header.linkname):
        return "links that leave the tree"
    if header.size < 0 or not (header.isreg() or header.isdir() or header.issym() or header.islnk()):
        return "devices, pipes and members of unknown kind"
    return None


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
    """Notes on the tarfile how it ended, as tarfile takes a damaged header for the end."""

    ENDED = "collbench_ended"

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

    def __init__(self, source: _Readable, name: str) -> None:
        self._source, self._name, self._left = source, name, MOST_STREAM

    def read(self, size: int) -> bytes:
        """At most `size` bytes unpacked, b"" at the end. Raises EOFError when the file stops early, lzma.LZMAError when it is damaged."""
        data = self._source.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise Unreadable(f"{self._name} unpacks to more than {MOST_STREAM >> 20} MiB: pack the files of one machine")
        return data


def _unpacked(raw: IO[bytes]) -> _Readable:
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
