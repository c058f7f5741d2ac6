"""Reading of machines from files, folders and tarballs, or from this host; one machine per host.

Readings of one host are merged, the most trusted source first: a `probe` snapshot, the kernel's files, then READERS in their order.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from collbench.machine.files import SUFFIXES, Files, Folder, unpacked
from collbench.machine.lists import with_reasons
from collbench.machine.merge import merge
from collbench.machine.model import Machine, Nic, PciDevice, System
from collbench.machine.readers import linux
from collbench.machine.readers import network as ethernet
from collbench.machine.readers import network as infiniband
from collbench.machine.readers import pci as pci_parts
from collbench.machine.readers.hwloc import HWLOC
from collbench.machine.readers.lspci import ACS_LINES, LSPCI
from collbench.machine.readers.nccl_xml import NCCL_XML
from collbench.machine.readers.rdma_tools import IBLINKINFO, IBPORTSTATE, IBSTAT, IBV_DEVINFO
from collbench.machine.readers.smi import AMD_SMI, NVLINK_STATUS, SMI_MATRIX
from collbench.machine.readers.text import MOST_BYTES, Reader, Unreadable, decoded, printable
from collbench.untrusted import open_file, values_in

# A Linux machine from its files, live or copied: one reading per reader, and network cards without a device.

_FILES = "sysfs"
_NO_CLASS = "/sys/class/net and /sys/class/infiniband are missing or were not copied"
_NO_DEVICE = "the kernel has no RDMA device for it"


def readings(files: Files) -> list[Machine]:
    """Return the result of each reader of the kernel's files. Lists that the files do not cover have reasons in `unknown`."""
    tree, rdma, plain = linux.read(files), infiniband.read(files), ethernet.read_ethernet(files)
    classes = bool(files.names(ethernet.ETHERNET_CLASS) or files.names(infiniband.CLASS))
    cards = _cards(tree.pci, (*rdma.nics, *plain.nics), classes)
    if not classes and not cards.nics:
        tree = replace(tree, unknown={"nics": _NO_CLASS, **tree.unknown})
    counted = tree.gpus and all(gpu.vendor == "amd" for gpu in tree.gpus)  # the kernel lists xGMI, but not NVLinks
    listed = {"pci", "gpus", "nics", *(("gpu_links",) if counted else ())}
    network = [with_reasons(each, _FILES, {"nics"}) for each in (rdma, plain, cards) if each.sources]
    return [with_reasons(tree, _FILES, listed), *network]


def _cards(pci: tuple[PciDevice, ...], nics: tuple[Nic, ...], classes: bool) -> Machine:
    """Return the network cards without a device: RDMA cards, and all cards where no device is visible."""
    if any(nic.rdma and nic.virtual is None and nic.address is None for nic in nics):
        return Machine()  # the card of this device is unknown
    owned = {nic.address for nic in nics if nic.rdma}
    free = [each for each in pci if each.kind == "nic" and not each.virtual and each.address not in owned]
    found = list(_without_device(free, nics) if classes else (pci_parts.nic(each, frozenset()) for each in free))
    why = _NO_DEVICE if classes else _NO_CLASS
    unknown = {f"nics/{nic.name}/ports": why for nic in found if nic.name == nic.address}
    return Machine(sources=(linux.KIND,), nics=tuple(found), unknown=unknown) if found else Machine()


def _without_device(free: list[PciDevice], nics: tuple[Nic, ...]) -> Iterator[Nic]:
    """Yield the RDMA cards without an RDMA device, named after their interface if they have one. Skips cards passed to guests."""
    names = {nic.address: nic.name for nic in nics if nic.address}
    for device in free:
        if pci_parts.is_rdma_card(device) and not (device.driver or "").startswith("vfio"):
            bare = replace(pci_parts.nic(device, frozenset()), rdma=False, rdma_missing=True)
            yield replace(bare, name=names.get(device.address, bare.name))


# This machine, live: the GPU driver, the kernel's files, and system calls.

_SHARED_MEMORY = Path("/dev/shm")
_CALLS = "system calls"


def this_machine() -> Machine:
    """Return the machine that this process runs on, as far as it is visible. Never raises; unknown facts have reasons in `unknown`."""
    from collbench.machine.readers import nvml

    driver = nvml.read()
    if driver.sources:
        driver = with_reasons(driver, nvml.KIND, {"gpus", "gpu_links", "peer_access"})
    return merge([driver, *readings(Folder(Path("/"))), _driver_readings(_SHARED_MEMORY)])


def _driver_readings(shared_memory: Path) -> Machine:
    """Return the host name and the size of the shared-memory file system, from system calls."""
    machine = with_reasons(Machine(printable(socket.gethostname()) or None, (_CALLS,)), _CALLS)
    try:
        status = os.statvfs(shared_memory)
    except OSError as why:
        return replace(machine, unknown={**machine.unknown, "system/shm_bytes": f"{shared_memory}: {why.strerror}"})
    return replace(machine, system=System(shm_bytes=status.f_blocks * status.f_frsize))


# Paths from the command line: a folder, a tarball or a text. Reading never blocks, and never exceeds the limit.

MOST_ENTRIES = 4096  # of a folder
_TAR_BLOCK = 512
_SPECIAL = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def is_folder(path: Path) -> bool:
    """Return whether the path is a folder, else a file. Raises Unreadable when it is missing, not accessible, a device or a pipe."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as why:
        raise _unreachable(path, why) from None
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        kind = _SPECIAL.get(stat.S_IFMT(mode), "neither a file nor a folder")
        raise Unreadable(f"{_describe_path(path)} is {kind}: name a file, a folder or a tarball (`-` and pipes are not read)")
    return stat.S_ISDIR(mode)


def is_root(path: Path) -> bool:
    """Return whether the folder is the root of a machine's files."""
    return (path / "sys").is_dir() or (path / "proc").is_dir()


def files_in(folder: Path) -> list[Path]:
    """Return the regular, visible files of a folder, sorted by name. Raises Unreadable when it cannot be listed or holds too many."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is_file(entry))
    except OSError as why:
        raise _unreachable(folder, why) from None
    if len(names) > MOST_ENTRIES:
        raise Unreadable(f"{_describe_path(folder)} holds {len(names)} files, the most is {MOST_ENTRIES}: give one folder per machine")
    return [folder / name for name in names]


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Return whether it is a regular file or a link to one; False for a circular link."""
    try:
        return entry.is_file()
    except OSError:
        return False


def is_tarball(path: Path) -> bool:
    """Return whether the file is a tarball, by its name or its first block."""
    return path.name.endswith(SUFFIXES) or _begin(path, _TAR_BLOCK)[257:262] == b"ustar"


def text_of(path: Path) -> str:
    """Return the text of a file, plain or compressed. Raises Unreadable when it is empty, too large, binary or damaged."""
    name = printable(path.name)
    data = _begin(path, MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise Unreadable(
            f"{name} is larger than {MOST_BYTES >> 20} MiB, more than any tool prints of a machine: give the output for one machine"
        )
    return decoded(data, name)


def _begin(path: Path, most: int) -> bytes:
    """Return the first `most` bytes, decompressed."""
    try:
        with open_file(path) as raw:
            stream, pieces = unpacked(raw), [b""]
            while most and (piece := stream.read(most)):
                pieces.append(piece)
                most -= len(piece)
            return b"".join(pieces)
    except (OSError, EOFError, ValueError) as why:
        raise _unreachable(path, why) from None
    except Exception as why:  # zlib, lzma and zstandard raise different errors
        raise Unreadable(f"{_describe_path(path)} is damaged ({printable(str(why), 80)}): pack or copy it again") from None


def _unreachable(path: Path, why: Exception) -> Unreadable:
    if isinstance(why, FileNotFoundError | NotADirectoryError):
        return Unreadable(f"{_describe_path(path)} is not there: name a file, a folder or a tarball")
    if isinstance(why, PermissionError):
        return Unreadable(f"{_describe_path(path)} may not be read by you: ask for it to be made readable, or copy it")
    reason = getattr(why, "strerror", None) or str(why)
    return Unreadable(f"{_describe_path(path)} cannot be read ({printable(reason, 80)}): copy it again")


def _describe_path(path: Path) -> str:
    return printable(str(path))


READERS: tuple[Reader, ...] = (
    NVLINK_STATUS,
    AMD_SMI,
    SMI_MATRIX,
    IBV_DEVINFO,
    IBSTAT,
    IBPORTSTATE,
    ACS_LINES,
    LSPCI,
    HWLOC,
    NCCL_XML,
    IBLINKINFO,
)
_LONGEST_LINE = 4000
_MOST_PASTED = 8 << 20  # characters; the output of all tools for a large machine has 1 Mi
OUTPUTS = "outputs"  # of tools, next to sys and proc in the archive of `probe --gather`
_SNAPSHOT, _TREE, _TEXT = 0, 1, 2  # order of trust: sources with a lower number are merged first
_HEAD = 1 << 16
_MOST_NAMED = 4
_MOST_VALUES = 1 << 23  # of JSON; 10,000 machines have about 3 million


class _Unknown(Unreadable):
    """The error for a text in an unknown format. In a folder such files are skipped."""


class _Log(_Unknown):
    """The error for an NCCL log, which another command reads."""


@dataclass(frozen=True)
class _Reading:
    """The machine that one source reports, and its rank of trust (0 is the most trusted)."""

    trust: int
    machine: Machine


@dataclass
class _Unit:
    """Readings that belong together: one folder or tarball, or all files named one by one (name "")."""

    name: str
    readings: list[_Reading]

    @property
    def kinds(self) -> set[int]:
        """The trust ranks of the readers that contributed."""
        return {reading.trust for reading in self.readings if reading.machine.sources}


def read_paths(paths: Sequence[Path], note: Callable[[str], None] | None = None) -> list[Machine]:
    """Return the machines that these files, folders and tarballs describe, one per host, in the order of the paths.

    Sources without a host name belong together. Folders and tarballs without a host name that hold the same kind of source are
    separate machines. `note` is called with a sentence about skipped files of a folder.
    Raises Unreadable, with one sentence, for a path without a machine.
    """
    note = note or _silent
    units = [_Unit("", [])]
    for path in paths:
        if is_folder(path):
            units.append(_Unit(path.resolve().name, _of_folder(path, note)))
        elif is_tarball(path):
            units.append(_Unit(path.name.partition(".")[0], _of_tarball(path)))
        else:
            units[0].readings += _of_file(path)
    return [_machine(group) for group in _groups([unit for unit in units if unit.readings])]


def _machine(group: Iterable[_Reading]) -> Machine:
    return merge([reading.machine for reading in sorted(group, key=lambda reading: reading.trust)])


def _groups(units: Sequence[_Unit]) -> list[list[_Reading]]:
    """Return the readings of each machine."""
    hosts: dict[str, list[_Reading]] = {}
    nameless: list[_Unit] = []
    for unit in units:
        named = dict.fromkeys(_host(reading) for reading in unit.readings if reading.machine.hostname)
        only = next(iter(named)) if len(named) == 1 else None
        for reading in unit.readings:
            if only or reading.machine.hostname:
                hosts.setdefault(only or _host(reading), []).append(reading)
        rest = [reading for reading in unit.readings if not (only or reading.machine.hostname)]
        nameless += [_Unit(unit.name, rest)] if rest else []
    together = _together(nameless)
    if len(hosts) == 1 and len(together) == 1:
        return [[*next(iter(hosts.values())), *together[0]]]
    return [*hosts.values(), *together]


def _host(reading: _Reading) -> str:
    """Return the host name without its domain; an IP address stays whole."""
    name = reading.machine.hostname or ""
    first = name.partition(".")[0]
    return name if first.isdigit() else first


def _together(units: Sequence[_Unit]) -> list[list[_Reading]]:
    """Return one machine, unless two folders or tarballs hold the same kind of source: then each is one, named after its folder."""
    kinds = [kind for unit in units if unit.name for kind in unit.kinds]
    if len(kinds) == len(set(kinds)):
        return [[*(reading for unit in units for reading in unit.readings), *_taken_for_one(units)]] if units else []
    return [[_called(reading, unit.name) for reading in unit.readings] for unit in units]


def _taken_for_one(units: Sequence[_Unit]) -> list[_Reading]:
    """Return a doubt where several folders or tarballs are merged that may belong to different machines."""
    names = [printable(unit.name) for unit in units if unit.name]
    doubt = f"{', '.join(names)} name no host: they are taken for one machine"
    return [_Reading(_TEXT + len(READERS), Machine(doubts=(doubt,)))] if len(names) > 1 else []


def _called(reading: _Reading, name: str) -> _Reading:
    if not name:
        return reading
    host = printable(name)
    doubt = f"no source has this host's name: it is named {host}, after its folder or tarball"
    return replace(reading, machine=replace(reading.machine, hostname=host, doubts=(*reading.machine.doubts, doubt)))


def _of_folder(folder: Path, note: Callable[[str], None]) -> list[_Reading]:
    """Return the readings of a machine's root (with outputs of tools next to sys and proc), or of a folder of files."""
    root = is_root(folder)
    readings = _of_tree(Folder(folder)) if root else []
    if root and folder.resolve() == Path("/"):
        return readings
    outputs = folder / OUTPUTS
    files = [*files_in(folder), *(files_in(outputs) if root and outputs.is_dir() else [])]
    found = [*readings, *_of_files(files, note, alone=not root)]
    if not any(_has_facts(reading.machine) for reading in found):
        known = printable(str(folder))
        raise Unreadable(
            f"{known} holds nothing that is read here, in {len(files)} files and {'sys or proc' if root else 'no sys or proc'}: {_remedy()}"
        )
    return found


def _of_files(files: Sequence[Path], note: Callable[[str], None], *, alone: bool) -> list[_Reading]:
    """Return the readings of several files; damaged ones become a doubt. `alone`: nothing else describes the machine."""
    readings: list[_Reading] = []
    passed: list[str] = []
    refused: list[Unreadable] = []
    for file in files:
        try:
            readings += _of_tarball(file) if is_tarball(file) else _of_file(file)
        except _Unknown as why:
            passed.append(printable(file.name, 60))
            refused += [why] if isinstance(why, _Log) else []
        except Unreadable as why:
            refused.append(why)
    if refused and not readings and alone:
        raise next((why for why in refused if isinstance(why, _Log)), refused[0])
    if passed and readings and alone:
        more = f" and {len(passed) - _MOST_NAMED} more" if len(passed) > _MOST_NAMED else ""
        note(f"passed over, not in a known format: {', '.join(passed[:_MOST_NAMED])}{more}")
    doubts = tuple(f"left out: {why}" for why in refused if not isinstance(why, _Log))
    return [*readings, _Reading(_TEXT + len(READERS), Machine(doubts=doubts))] if doubts else readings


def _silent(sentence: str) -> None:
    """Ignore a progress report."""


def _of_tarball(path: Path) -> list[_Reading]:
    """Return the readings of a tarball: the machine's files and the archived outputs of tools."""
    from collbench.machine.files import open_archive

    archive = open_archive(path)
    doubts = [*archive.doubts]
    readings = [*_of_tree(archive), *_outputs(archive, doubts)]
    if not any(_has_facts(reading.machine) for reading in readings):
        raise Unreadable(
            f"{printable(path.name)} holds no machine's files in its sys and proc: gather them with `collbench probe --gather`"
        )
    return [*readings, _Reading(_TREE, Machine(doubts=tuple(doubts)))] if doubts else readings


def _outputs(files: Files, doubts: list[str]) -> list[_Reading]:
    """Return the readings of tool outputs stored with the kernel's files; an unreadable one becomes a doubt."""
    readings = []
    for name in files.names(f"/{OUTPUTS}"):
        text = files.text(f"/{OUTPUTS}/{name}") or ""
        found = _recognised(text, name)
        try:
            readings += [_Reading(_TEXT + found, _machine_read_by(READERS[found], text, name))] if found is not None else []
        except Unreadable as why:
            doubts.append(f"left out: {why}")
    return readings


def _of_tree(files: Files) -> list[_Reading]:
    """Return the readings of the kernel's files."""

    return [_Reading(_TREE, machine) for machine in readings(files)]


def _has_facts(machine: Machine) -> bool:
    """Return whether any fact is known. A tree without content gives an empty machine."""
    lists = (machine.numa_nodes, machine.pci, machine.gpus, machine.nics, machine.fabric, machine.gpu_links)
    return any(lists) or machine.system != System()


def _of_file(path: Path) -> list[_Reading]:
    """Return the readings of one text: the output of one tool or of several tools in sequence. Raises Unreadable."""
    text, name = text_of(path), path.name
    if text.lstrip().startswith("{") and '"machines"' in text:
        return [_Reading(_SNAPSHOT, machine) for machine in _snapshot(text, name)]
    if len(parts := _outputs_in(text, name)) > 1:
        return _of_parts(parts, name)
    found = _recognised(text, name)
    if found is not None:
        return [_Reading(_TEXT + found, _machine_read_by(READERS[found], text, name))]
    if "NCCL INFO" in text[:_HEAD] or "NCCL WARN" in text[:_HEAD]:
        raise _Log(f"{printable(name)} is a log of NCCL: read it with `collbench doctor --log`")
    raise _Unknown(f"{printable(name)} is not in a known format: {_remedy()}")


def _outputs_in(text: str, name: str) -> dict[int, str]:
    """Return the lines of each tool, by its reader's index in READERS, where a text holds several outputs; else fewer than two entries."""
    if len(text) > _MOST_PASTED:
        return {}
    starting = [(place, reader.starts) for place, reader in enumerate(READERS) if reader.starts]
    parts: dict[int, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        kind = next((place for place, starts in starting if starts(line[:_LONGEST_LINE])), None)
        current = parts.setdefault(kind, []) if kind is not None else current
        if current is not None:
            current.append(line)
    joined = {place: "\n".join(lines) for place, lines in parts.items()}
    return {place: part for place, part in joined.items() if READERS[place].looks_like(part, name)}


def _of_parts(parts: Mapping[int, str], name: str) -> list[_Reading]:
    """Return the readings of several outputs in one text; an unreadable one is a doubt. Raises Unreadable when all are unreadable."""
    readings: list[_Reading] = []
    refused: list[Unreadable] = []
    for place, part in parts.items():
        try:
            readings.append(_Reading(_TEXT + place, _machine_read_by(READERS[place], part, name)))
        except Unreadable as why:
            refused.append(why)
    if not readings:
        raise refused[0]
    doubts = tuple(f"left out: {why}" for why in refused)
    return [*readings, *([_Reading(_TEXT + len(READERS), Machine(doubts=doubts))] if doubts else [])]


def _machine_read_by(reader: Reader, text: str, name: str) -> Machine:
    """Return the machine that a reader finds in a text. Raises Unreadable, also for an empty result: it would mean "no GPUs"."""
    machine = reader.read(text, name)
    if not _has_facts(machine):
        raise Unreadable(f"{printable(name)} is {reader.kind}, but lists no part of a machine: save the whole output again")
    return with_reasons(machine, reader.kind, reader.lists)


def _recognised(text: str, name: str) -> int | None:
    """Return the index in READERS of the first reader that recognizes the text; None without one."""
    return next((place for place, reader in enumerate(READERS) if reader.looks_like(text, name)), None)


def _snapshot(text: str, name: str) -> list[Machine]:
    from collbench.machine.model import impossible
    from collbench.machine.snapshot import machines_of

    if len(text) > _MOST_VALUES and values_in(text.encode()) > _MOST_VALUES:
        raise Unreadable(f"{printable(name)} holds more than {_MOST_VALUES:,} values: give fewer machines at once")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise Unreadable(f"{printable(name)} is not valid JSON (cut off?): write it again with `collbench probe --format json`") from None
    machines = machines_of(document, name)
    if wrong := next((each for machine in machines for each in impossible(machine)), None):
        raise Unreadable(f"{printable(name)} has an impossible value, {wrong}: write it again with `collbench probe --format json`")
    return machines


def _remedy() -> str:
    return f"give {', '.join(reader.kind for reader in READERS)}, a tarball of `probe --gather`, or a folder with sys and proc"
