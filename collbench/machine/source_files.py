"""What a path that somebody typed leads to: a folder, a tarball, a text. Never blocks, never reads more than the limit."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from collbench.machine.archive import SUFFIXES
from collbench.machine.readers.text import MOST_BYTES, Unreadable, decoded, printable
from collbench.machine.tarball import unpacked
from collbench.untrusted import open_file

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
        with open_file(path) as raw:
            stream, pieces = unpacked(raw), [b""]
            while most and (piece := stream.read(most)):
                pieces.append(piece)
                most -= len(piece)
            return b"".join(pieces)
    except (OSError, EOFError, ValueError) as why:
        raise _unreachable(path, why) from None
    except Exception as why:  # zlib, lzma and zstandard have errors of their own kind
        raise Unreadable(f"{_told(path)} is damaged ({printable(str(why), 80)}): pack or copy it again") from None


def _unreachable(path: Path, why: Exception) -> Unreadable:
    if isinstance(why, FileNotFoundError | NotADirectoryError):
        return Unreadable(f"{_told(path)} is not there: name a file, a folder or a tarball")
    if isinstance(why, PermissionError):
        return Unreadable(f"{_told(path)} may not be read by you: ask for it to be made readable, or copy it")
    reason = getattr(why, "strerror", None) or str(why)
    return Unreadable(f"{_told(path)} cannot be read ({printable(reason, 80)}): copy it again")


def _told(path: Path) -> str:
    return printable(str(path))
