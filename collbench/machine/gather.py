"""`collbench probe --gather machine.tar.zst`: what the readers read of this machine, for whoever has to find out why it is read wrongly."""

from __future__ import annotations

import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from collbench import __version__
from collbench.errors import FINE, UsageError
from collbench.machine.files import Files, Folder
from collbench.machine.masking import Mask
from collbench.machine.readers import ethernet, infiniband, linux
from collbench.machine.readers.text import printable
from collbench.machine.recorded import Recorded
from collbench.units import format_bytes

SUFFIXES = (".tar", ".tar.gz", ".tar.xz", ".tar.zst")
OUTPUTS = "outputs"
MANIFEST = "MANIFEST"
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "nvidia-smi-topo-m.txt": ("nvidia-smi", "topo", "-m"),
    "nvidia-smi-nvlink-s.txt": ("nvidia-smi", "nvlink", "-s"),
    "lspci-vvvnn.txt": ("lspci", "-vvvnn"),
    "ibstat.txt": ("ibstat",),
    "ibv_devinfo-v.txt": ("ibv_devinfo", "-v"),
    "ip-d-link.txt": ("ip", "-d", "link"),
}
_PATIENCE_S = 20.0
_MOST_OUTPUT = 8 << 20
_MASKED = """\
Masked, alike everywhere in it: host names, GUIDs, UUIDs, MAC and IP addresses, serial numbers, what start parameters were set to,
mounts, and the control groups of jobs and users. Not masked: names of interfaces, kernel modules, models and firmware."""


def gather(target: Path) -> int:
    """Writes the archive and says so on stderr; returns the exit code.

    Raises UsageError for a suffix that is not one of SUFFIXES, a file that is there already, and a folder that cannot be written to.
    """
    _checked(target)
    parts = collect(Folder(Path("/")), COMMANDS)
    with _new(target) as stream:
        _write(stream, _suffix(target) or "", parts)
    size = format_bytes(target.stat().st_size)
    print(f"wrote {target}: {len(parts.texts)} files, {size}; read its {MANIFEST} before you send it", file=sys.stderr)
    return FINE


class Parts:
    """What goes into an archive: texts by path, links to absolute targets, folders that hold nothing."""

    def __init__(self, texts: dict[str, str], links: dict[str, str], folders: set[str]) -> None:
        self.texts, self.links, self.folders = texts, links, folders


def collect(files: Files, commands: Mapping[str, tuple[str, ...]]) -> Parts:
    """What the readers of sysfs and procfs read of `files`, and what these commands print here, masked."""
    recorded = Recorded(files)
    host = linux.read(recorded).hostname or ""
    infiniband.read(recorded)
    ethernet.read(recorded)
    mask = Mask(host)
    texts, links, folders = recorded.renamed(mask.path, mask.file)
    ran = []
    for name, command in commands.items():
        output, how = _ran(command)
        ran.append(mask.text(f"{' '.join(command)}: {how}"))
        if output:
            texts[f"/{OUTPUTS}/{name}"] = mask.text(output)
    texts[f"/{MANIFEST}"] = _manifest(sorted(texts), ran)
    return Parts(texts, links, folders)


def _ran(command: tuple[str, ...]) -> tuple[str, str]:
    """(what it printed, how it ended)."""
    path = shutil.which(command[0]) or shutil.which(command[0], path="/usr/sbin:/sbin")
    if not path:
        return "", "not installed"
    try:
        done = subprocess.run(
            [path, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError) as why:
        return "", f"failed ({type(why).__name__})"
    return done.stdout[:_MOST_OUTPUT].decode("utf-8", errors="replace"), f"code {done.returncode}, {len(done.stdout)} bytes"


def _manifest(paths: list[str], ran: list[str]) -> str:
    """What is in the archive, for the eyes of whoever sends it."""
    head = f"collbench {__version__}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d', time.gmtime())}"
    about = "Files of /sys and /proc that `collbench probe` reads, and what these commands print:"
    return "\n".join([head, about, *(f"  {line}" for line in ran), _MASKED, "", *paths, ""])


def _suffix(target: Path) -> str | None:
    return next((suffix for suffix in reversed(SUFFIXES) if target.name.endswith(suffix) and target.name != suffix), None)


def _checked(target: Path) -> None:
    name = printable(str(target))
    if not _suffix(target):
        raise UsageError(f"'{name}' does not say how to pack: let it end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if os.path.lexists(target):
        raise UsageError(f"{name} is there already: remove it, or name another file")
    if not target.parent.is_dir():
        raise UsageError(f"{printable(str(target.parent))} is no folder: make it first, or name another file")


@contextmanager
def _new(target: Path) -> Iterator[IO[bytes]]:
    """A stream that becomes the file when all went well, and never takes another's place."""
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.") as stream:
            yield cast(IO[bytes], stream)
            stream.flush()
            os.fsync(stream.fileno())
            Path(stream.name).chmod(0o644)
            os.link(stream.name, target)  # unlike a rename it fails where something is
    except FileExistsError:
        raise UsageError(f"{printable(str(target))} is there already: remove it, or name another file") from None
    except OSError as why:
        raise UsageError(f"{printable(str(target))} cannot be written ({why.strerror}): name a file in a folder of your own") from None


def _write(stream: IO[bytes], suffix: str, parts: Parts) -> None:
    if suffix == ".tar.zst":
        import zstandard

        with zstandard.ZstdCompressor().stream_writer(stream, closefd=False) as packed:
            _pack(cast(IO[bytes], packed), "w|", parts)
    else:
        _pack(stream, {".tar": "w|", ".tar.gz": "w|gz", ".tar.xz": "w|xz"}[suffix], parts)


def _pack(stream: IO[bytes], mode: str, parts: Parts) -> None:
    with tarfile.open(fileobj=stream, mode=mode, format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for path in sorted(parts.folders):
            _add(tar, path, tarfile.DIRTYPE)
        for path, target in sorted(parts.links.items()):
            _add(tar, path, tarfile.SYMTYPE, target=target)
        for path, text in sorted(parts.texts.items()):
            _add(tar, path, tarfile.REGTYPE, text.encode())


def _add(tar: tarfile.TarFile, path: str, kind: bytes, data: bytes = b"", target: str = "") -> None:
    header = tarfile.TarInfo(path.lstrip("/"))
    header.type, header.linkname, header.size = kind, target, len(data)
    header.mode, header.mtime = (0o755 if kind == tarfile.DIRTYPE else 0o644), int(time.time())
    tar.addfile(header, io.BytesIO(data))
