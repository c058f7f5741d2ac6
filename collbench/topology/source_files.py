"""What a path that somebody typed leads to: a folder, a tarball, a text. Never blocks, never reads more than the limit."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from collbench.topology.archive import SUFFIXES
from collbench.topology.text import MOST_BYTES, Unreadable, decoded, printable

MOST_ENTRIES = 4096  # of a folder
_TAR_BLOCK = 512
_SPECIAL = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def is_folder(path: Path) -> bool:
    """Whether it is a folder, else a file. Raises Unreadable for what is not there, cannot be reached, or is a device or a pipe."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as why:
        raise _unreachable(path, why) from None
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        kind = _SPECIAL.get(stat.S_IFMT(mode), "neither a file nor a folder")
        raise Unreadable(f"{_told(path)} is {kind}: name a file, a folder or a tarball (`-` and pipes are not read)")
    return stat.S_ISDIR(mode)


def is_root(path: Path) -> bool:
    """Whether the folder is the root of a machine's files."""
    return (path / "sys").is_dir() or (path / "proc").is_dir()


def files_in(folder: Path) -> list[Path]:
    """The files of a folder by name, hidden ones and what is no regular file aside. Raises Unreadable when it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is_file(entry))
    except OSError as why:
        raise _unreachable(folder, why) from None
    if len(names) > MOST_ENTRIES:
        raise Unreadable(f"{_told(folder)} holds {len(names)} files, the most is {MOST_ENTRIES}: give one folder per machine")
    return [folder / name for name in names]


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether it is a regular file, or a link to one; a link in circles is none."""
    try:
        return entry.is_file()
    except OSError:
        return False


def is_tarball(path: Path) -> bool:
    """Whether the file is a tarball, by its name or its first block."""
    return path.name.endswith(SUFFIXES) or _begin(path, _TAR_BLOCK)[257:262] == b"ustar"


def text_of(path: Path) -> str:
    """The text of a file, plain or compressed. Raises Unreadable when it is empty, huge, binary or damaged."""
    name = printable(path.name)
    data = _begin(path, MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise Unreadable(
            f"{name} is larger than {MOST_BYTES >> 20} MiB, more than any tool prints of a machine: give the output for one machine"
        )
    return decoded(data, name)


def _begin(path: Path, most: int) -> bytes:
    """The first `most` bytes, unpacked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as raw:
            opened = _unpacked(raw)
            return opened(raw).read(most) if opened else raw.read(most)
    except (OSError, EOFError, ValueError) as why:
        raise _unreachable(path, why) from None
    except Exception as why:  # zlib, lzma and zstandard have errors of their own kind
        raise Unreadable(f"{_told(path)} is damaged ({printable(str(why), 80)}): pack or copy it again") from None


def _unpacked(raw: IO[bytes]) -> Callable[[IO[bytes]], IO[bytes]] | None:
    """What unpacks a file with this beginning, None for a plain one."""
    magic = raw.read(6)
    raw.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        import gzip

        return lambda stream: cast(IO[bytes], gzip.GzipFile(fileobj=stream))
    if magic.startswith(b"BZh"):
        import bz2

        return lambda stream: cast(IO[bytes], bz2.BZ2File(stream))
    if magic == b"\xfd7zXZ\x00":
        import lzma

        return lambda stream: cast(IO[bytes], lzma.LZMAFile(stream))
    return _zstandard if magic.startswith(b"\x28\xb5\x2f\xfd") else None


def _zstandard(stream: IO[bytes]) -> Any:
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(stream)


def _unreachable(path: Path, why: Exception) -> Unreadable:
    if isinstance(why, FileNotFoundError | NotADirectoryError):
        return Unreadable(f"{_told(path)} is not there: name a file, a folder or a tarball")
    if isinstance(why, PermissionError):
        return Unreadable(f"{_told(path)} may not be read by you: ask for it to be made readable, or copy it")
    reason = getattr(why, "strerror", None) or str(why)
    return Unreadable(f"{_told(path)} cannot be read ({printable(reason, 80)}): copy it again")


def _told(path: Path) -> str:
    return printable(str(path))
