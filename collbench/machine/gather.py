"""`collbench probe --gather machine.tar.zst`: archive the files that the readers use on this machine, to debug the readers."""

from __future__ import annotations

import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast

from collbench import __version__
from collbench.errors import FINE, UsageError
from collbench.machine.archive import OUTPUTS
from collbench.machine.files import Files, Folder, RecordedFiles
from collbench.machine.readers import linux, network
from collbench.machine.readers.linux import MASKED, shown
from collbench.machine.readers.text import printable
from collbench.units import format_bytes

# Masking: names of machines and owners are replaced, with the same substitute everywhere in one archive.

# Patterns of names of devices, hosts and persons. A PCI address (0000:19:00.0) matches none of them. A name after a keyword is in
# the group "value". The first match counts, and substitutes are not searched again.
_SHAPES = re.compile(
    "|".join(
        (
            r"(?P<kept>(?:\bfw_ver|firmware version):[ \t]*\S+)",  # four numbers with dots, which are not an address
            # a serial number, fields of a card's own table (VPD), an interface's second name
            r"(?:\bserial(?: number)?[ \t]*:[ \t]*|\bserial number[ \t]+|\[(?:SN|[VY][0-9A-Z])\][^:\n]*:[ \t]*|\balias[ \t]+)"
            r"(?P<line>\S[^\n]*)",
            r"\b(?:unique_id|portid|portname|switchid|link-netns)[ \t]+(?P<word>\S+)",
            r"(?P<shape>0x[0-9a-f]{16}\b"  # GUID, as ibstat prints it
            r"|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}\b"  # UUID
            r"|\b[0-9a-f]{32,64}\b"  # a container's id
            r"|(?<![0-9a-f:])(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}(?![0-9a-f:])"  # GID, IPv6, and EUI-64 in bytes
            r"|(?<![0-9a-f:])(?:[0-9a-f]{1,4}:){1,7}:(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,6})?(?![0-9a-f:])"  # IPv6, short
            r"|(?<![0-9a-f:])[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?![0-9a-f:])"  # GUID, as the kernel prints it
            r"|(?<![0-9a-f:])(?:[0-9a-f]{2}[:-]){5,19}[0-9a-f]{2}(?![0-9a-f:-])"  # MAC, or InfiniBand's hardware address
            r"|(?<=\benx)[0-9a-f]{12}\b|(?<=\bwlx)[0-9a-f]{12}\b)",  # MAC in an interface's name
            r"(?P<ipv4>(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]))",
            r"(?<![\w.+-])(?<!\d: )(?P<user>[\w.+-]+@[\w.-]+)",  # "7: vlan5@eth0:" names two interfaces
        )
    ),
    re.IGNORECASE,
)
_HOST_NAME_FILES = ("/proc/sys/kernel/hostname", "/etc/hostname")
# Path parts by which readers detect containers and jobs (see readers.linux); the rest of a path names jobs, users and services.
_KNOWN_GROUP = re.compile(r"^(?:kubepods|libpod-|docker-|docker$|lxc|slurm|job_(?=\d))")


class Mask:
    """Replacement of names and addresses, the same everywhere in one archive, keyed with a random secret that is discarded."""

    def __init__(self, hostname: str = "") -> None:
        self._secret = os.urandom(16)
        short, _, domain = hostname.partition(".")
        # The mask would also hide other text for a name that is an ordinary word ("node", "intel").
        names = [re.escape(name) for name in (hostname, short) if len(name) >= 4 and not name.isalpha()]
        if "." in domain:
            names.append(rf"[\w.-]*\.{re.escape(domain)}")
        self._host = re.compile(rf"(?<![\w])(?:{'|'.join(names)})(?![\w])") if names else None

    def file(self, path: str, text: str) -> str:
        """Return the masked text of one of the machine's files."""
        if path in _HOST_NAME_FILES:
            return self._host_like(text)
        if path.endswith("/mounts"):  # the type of the root's file system: readers only need to know whether the root is an overlay
            mounts = map(str.split, text.splitlines())
            return "\n".join(f"{mount[2]} / {mount[2]} rw 0 0" for mount in mounts if len(mount) > 2 and mount[1] == "/")
        if path.endswith("/cgroup"):
            return "\n".join(map(_known_group, text.splitlines()))
        if path.endswith("/fw_ver"):
            return text
        return self.text(shown(text) if path == "/proc/cmdline" else text)

    def path(self, path: str) -> str:
        """Return the masked path: an interface may be named after its MAC address, a device after a UUID. Kernel names stay."""
        return _SHAPES.sub(lambda match: self._like(match[0]) if match["shape"] else match[0], path)

    def text(self, text: str) -> str:
        """Return any text with host names, addresses and serial numbers replaced."""
        text = _SHAPES.sub(self._stand_in, text)
        return self._host.sub(lambda match: self._host_like(match[0]), text) if self._host else text

    def _stand_in(self, match: re.Match[str]) -> str:
        kind = match.lastgroup or ""
        if kind == "kept":
            return match[0]
        value = match[kind]
        stand_in = "somebody@somewhere" if kind == "user" else self._like(value)
        if kind == "ipv4":
            numbers = bytes.fromhex(self._digits(value))[:3]
            is_kept = value.startswith(("127.", "0.", "255."))
            stand_in = value if is_kept else "10." + ".".join(map(str, numbers))
        return match[0][: match.start(kind) - match.start()] + stand_in

    def _host_like(self, name: str) -> str:
        return f"host-{self._digits(name)[:8]}"

    def _like(self, name: str) -> str:
        """Return other digits in the same shape. Names of only zeros or only ones carry no information and stay."""
        prefix = "0x" if name.startswith("0x") else ""
        body = name.removeprefix(prefix)
        digits = [letter.lower() for letter in body if letter.isalnum()]
        if set(digits) <= {"0"} or set(digits) <= {"f"}:
            return name
        stand_ins = iter(self._digits("".join(digits)) * (len(body) // 64 + 1))
        return prefix + "".join(next(stand_ins) if letter.isalnum() else letter for letter in body)

    def _digits(self, name: str) -> str:
        return hashlib.blake2b(name.encode(), key=self._secret, digest_size=32).hexdigest()


def _known_group(line: str) -> str:
    """Mask unknown parts: "0::/system.slice/slurmstepd.scope/uid_1000/job_77" becomes "0::/masked/slurm/masked/job_0"."""
    start, colon, path = line.rpartition(":")
    matches = [_KNOWN_GROUP.match(part) for part in path.split("/") if part]
    return f"{start}{colon}/" + "/".join(match[0].replace("job_", "job_0") if match else MASKED for match in matches)


SUFFIXES = (".tar", ".tar.gz", ".tar.xz", ".tar.zst")
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
    """Write the archive, report it on stderr and return the exit code.

    Raises UsageError for a suffix that is not in SUFFIXES, an existing file, or a folder that cannot be written to.
    """
    name = printable(str(target))
    if not _suffix(target):
        raise UsageError(f"'{name}' has no known suffix: let the name end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if os.path.lexists(target):
        raise UsageError(f"{name} is there already: remove it, or name another file")
    if not target.parent.is_dir():
        raise UsageError(f"{printable(str(target.parent))} is not a folder: create it, or name another file")
    parts = collect(Folder(Path("/")), COMMANDS)
    write(target, parts)
    size = format_bytes(target.stat().st_size)
    print(f"wrote {target}: {len(parts.texts)} files, {size}; read its {MANIFEST} before you send it", file=sys.stderr)
    return FINE


class Parts(NamedTuple):
    """The content of an archive: texts by path, links to absolute targets, and empty folders."""

    texts: dict[str, str]
    links: dict[str, str]
    folders: set[str]


def collect(files: Files, commands: Mapping[str, tuple[str, ...]]) -> Parts:
    """Return the masked files that the readers of sysfs and procfs read from `files`, and the masked output of `commands`."""
    recorded = RecordedFiles(files)
    mask = Mask(linux.read(recorded).hostname or "")
    network.read(recorded)
    network.read_ethernet(recorded)
    texts, links, folders = recorded.renamed(mask.path, mask.file)
    endings = []
    for name, command in commands.items():
        output, ending = _run(command)
        endings.append(mask.text(f"{' '.join(command)}: {ending}"))
        if output:
            texts[f"/{OUTPUTS}/{name}"] = mask.text(output)
    head = f"collbench {__version__}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d', time.gmtime())}"
    introduction = "Files of /sys and /proc that `collbench probe` reads, and what these commands print:"
    texts[f"/{MANIFEST}"] = "\n".join([head, introduction, *(f"  {line}" for line in endings), _MASKED, "", *sorted(texts), ""])
    return Parts(texts, links, folders)


def write(target: Path, parts: Parts) -> None:
    """Write the archive, packed in the format of its suffix. Never replaces an existing file: raises UsageError instead."""
    with _new(target) as stream:
        suffix = _suffix(target)
        if suffix == ".tar.zst":
            import zstandard

            with zstandard.ZstdCompressor().stream_writer(stream, closefd=False) as packed:
                _pack(cast(IO[bytes], packed), "w|", parts)
        else:
            _pack(stream, {".tar.gz": "w|gz", ".tar.xz": "w|xz"}.get(suffix or "", "w|"), parts)


def _run(command: tuple[str, ...]) -> tuple[str, str]:
    """Run a command and return (its output, how it ended)."""
    path = shutil.which(command[0]) or shutil.which(command[0], path="/usr/sbin:/sbin")
    if not path:
        return "", "not installed"
    try:
        process = subprocess.run(
            [path, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError) as why:
        return "", f"failed ({type(why).__name__})"
    output = process.stdout[:_MOST_OUTPUT].decode("utf-8", errors="replace")
    return output, f"code {process.returncode}, {len(process.stdout)} bytes"


def _suffix(target: Path) -> str | None:
    return next((suffix for suffix in reversed(SUFFIXES) if target.name.endswith(suffix) and target.name != suffix), None)


@contextmanager
def _new(target: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that becomes `target` on success. Never replaces an existing file: raises UsageError instead."""
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.") as stream:
            yield cast(IO[bytes], stream)
            stream.flush()
            os.fsync(stream.fileno())
            Path(stream.name).chmod(0o644)
            os.link(stream.name, target)  # unlike a rename it fails if the target exists
    except FileExistsError:
        raise UsageError(f"{printable(str(target))} is there already: remove it, or name another file") from None
    except OSError as why:
        raise UsageError(f"{printable(str(target))} cannot be written ({why.strerror}): name a file in a folder of your own") from None


def _pack(stream: IO[bytes], mode: str, parts: Parts) -> None:
    with tarfile.open(fileobj=stream, mode=mode, format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        members = [(path, tarfile.DIRTYPE, "", b"") for path in sorted(parts.folders)]
        members += [(path, tarfile.SYMTYPE, target, b"") for path, target in sorted(parts.links.items())]
        members += [(path, tarfile.REGTYPE, "", text.encode()) for path, text in sorted(parts.texts.items())]
        for path, kind, target, data in members:
            header = tarfile.TarInfo(path.lstrip("/"))
            header.type = kind
            header.linkname = target
            header.size = len(data)
            header.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
            header.mtime = int(time.time())
            tar.addfile(header, io.BytesIO(data))
