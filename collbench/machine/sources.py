"""Reading of machines from files, folders and tarballs; one machine per host. `here` reads this one.

Readings of one host are merged, the most trusted source first: a `probe` snapshot, the kernel's files, then READERS in their order.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from collbench.machine.archive import OUTPUTS, SUFFIXES, open_archive, unpacked
from collbench.machine.files import Folder
from collbench.machine.here import readings
from collbench.machine.merge import merge
from collbench.machine.model import Machine, System, impossible, with_reasons
from collbench.machine.readers.hwloc import HWLOC
from collbench.machine.readers.lspci import ACS_LINES, LSPCI
from collbench.machine.readers.nccl_lines import is_nccl_log
from collbench.machine.readers.nccl_xml import NCCL_XML
from collbench.machine.readers.rdma_tools import IBLINKINFO, IBPORTSTATE, IBSTAT, IBV_DEVINFO, RDMA_LINK
from collbench.machine.readers.smi import AMD_SMI, NVLINK_STATUS, SMI_MATRIX
from collbench.machine.readers.text import HEAD, MOST_BYTES, Reader, Unreadable, decoded, json_of, printable, several
from collbench.untrusted import open_file, values_in

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
        raise Unreadable(f"{printable(str(path))} is {kind}: name a file, a folder or a tarball (`-` and pipes are not read)")
    return stat.S_ISDIR(mode)


def files_in(folder: Path) -> list[Path]:
    """Return the regular, visible files of a folder, sorted by name. Raises Unreadable when it cannot be listed or holds too many."""
    names = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):  # a circular link
                    if not entry.name.startswith(".") and entry.is_file():
                        names.append(entry.name)
    except OSError as why:
        raise _unreachable(folder, why) from None
    if len(names) > MOST_ENTRIES:
        raise Unreadable(f"{printable(str(folder))} holds {len(names)} files, the most is {MOST_ENTRIES}: give one folder per machine")
    return [folder / name for name in sorted(names)]


def text_of(path: Path) -> str:
    """Return the text of a file, plain or compressed. Raises Unreadable when it is empty, too large, binary or damaged."""
    name = printable(path.name)
    data = _first_bytes(path, MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise Unreadable(
            f"{name} is larger than {MOST_BYTES >> 20} MiB, more than any tool prints of a machine: give the output for one machine"
        )
    return decoded(data, name)


def _is_tarball(path: Path) -> bool:
    return path.name.endswith(SUFFIXES) or _first_bytes(path, _TAR_BLOCK)[257:262] == b"ustar"


def _first_bytes(path: Path, most: int) -> bytes:
    """Return the first `most` bytes, decompressed."""
    try:
        with open_file(path) as raw:
            stream = unpacked(raw)
            pieces: list[bytes] = []
            while most and (piece := stream.read(most)):
                pieces.append(piece)
                most -= len(piece)
            return b"".join(pieces)
    except (OSError, EOFError, ValueError) as why:
        raise _unreachable(path, why) from None
    except Exception as why:  # zlib, lzma and zstandard raise different errors
        raise Unreadable(f"{printable(str(path))} is damaged ({printable(str(why), 80)}): pack or copy it again") from None


def _unreachable(path: Path, why: Exception) -> Unreadable:
    if isinstance(why, FileNotFoundError | NotADirectoryError):
        return Unreadable(f"{printable(str(path))} is not there: name a file, a folder or a tarball")
    if isinstance(why, PermissionError):
        return Unreadable(f"{printable(str(path))} may not be read by you: ask for it to be made readable, or copy it")
    reason = getattr(why, "strerror", None) or str(why)
    return Unreadable(f"{printable(str(path))} cannot be read ({printable(reason, 80)}): copy it again")


# What each path holds: readings, each with its rank of trust.

READERS: tuple[Reader, ...] = (
    NVLINK_STATUS,
    AMD_SMI,
    SMI_MATRIX,
    IBV_DEVINFO,
    IBSTAT,
    RDMA_LINK,
    IBPORTSTATE,
    ACS_LINES,
    LSPCI,
    HWLOC,
    NCCL_XML,
    IBLINKINFO,
)
_LONGEST_LINE = 4000
_MOST_PASTED = 8 << 20  # characters; the output of all tools for a large machine has 1 Mi
_RUN, _TOPOLOGY = "run.json", "topology.json"  # of a run folder; its other files are results
_SNAPSHOT, _TREE, _TEXT = 0, 1, 2  # order of trust: sources with a lower number are merged first
_DOUBTS = _TEXT + len(READERS)
_MOST_VALUES = 1 << 23  # of JSON; 10,000 machines have about 3 million
_Item = TypeVar("_Item")


class _Unknown(Unreadable):
    """The error for a text in an unknown format. In a folder such files are skipped."""


class _Log(_Unknown):
    """The error for an NCCL log, which another command reads."""


class _Reading(NamedTuple):
    """The machine that one source reports, and its rank of trust (0 is the most trusted)."""

    trust: int
    machine: Machine


class _Unit(NamedTuple):
    """Readings that belong together: one folder or tarball, or all files named one by one (name "")."""

    name: str
    readings: list[_Reading]


def read_paths(paths: Sequence[Path], note: Callable[[str], None] | None = None) -> list[Machine]:
    """Return the machines that these files, folders and tarballs describe, one per host, in the order of the paths.

    Sources without a host name belong together. Folders and tarballs without a host name that hold the same kind of source are
    separate machines. `note` is called with a sentence about skipped files of a folder.
    Raises Unreadable, with one sentence, for a path without a machine.
    """
    units = [_Unit("", [])]
    for path in paths:
        if is_folder(path):
            units.append(_Unit(path.resolve().name, _read_folder(path, note)))
        elif _is_tarball(path):
            units.append(_Unit(path.name.partition(".")[0], _read_tarball(path)))
        else:
            units[0].readings.extend(_read_file(path))
    groups = _groups([unit for unit in units if unit.readings])
    return [merge([reading.machine for reading in sorted(group, key=lambda reading: reading.trust)]) for group in groups]


def _groups(units: Sequence[_Unit]) -> list[list[_Reading]]:
    hosts: dict[str, list[_Reading]] = {}
    nameless: list[_Unit] = []
    for unit in units:
        unit_hosts = {_host(reading) for reading in unit.readings if reading.machine.hostname}
        only_host = next(iter(unit_hosts)) if len(unit_hosts) == 1 else None
        without_host = []
        for reading in unit.readings:
            if only_host or reading.machine.hostname:
                hosts.setdefault(only_host or _host(reading), []).append(reading)
            else:
                without_host.append(reading)
        if without_host:
            nameless.append(_Unit(unit.name, without_host))
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
    kinds = [kind for unit in units if unit.name for kind in {reading.trust for reading in unit.readings if reading.machine.sources}]
    if len(kinds) != len(set(kinds)):
        return [_named_after_folder(unit) if unit.name else unit.readings for unit in units]
    names = [printable(unit.name) for unit in units if unit.name]
    doubts = [f"{', '.join(names)} name no host: they are taken for one machine"] if len(names) > 1 else []
    return [[*(reading for unit in units for reading in unit.readings), *_doubting(doubts)]] if units else []


def _named_after_folder(unit: _Unit) -> list[_Reading]:
    host = printable(unit.name)
    doubt = f"no source has this host's name: it is named {host}, after its folder or tarball"
    return [_Reading(trust, replace(machine, hostname=host, doubts=(*machine.doubts, doubt))) for trust, machine in unit.readings]


def _read_folder(folder: Path, note: Callable[[str], None] | None) -> list[_Reading]:
    """Return the readings of a machine's root (with outputs of tools next to sys and proc), of a run, or of a folder of files."""
    is_root = (folder / "sys").is_dir() or (folder / "proc").is_dir()
    found_readings = [_Reading(_TREE, machine) for machine in readings(Folder(folder))] if is_root else []
    if is_root and folder.resolve() == Path("/"):
        return found_readings
    files = files_in(folder)
    if is_root and (folder / OUTPUTS).is_dir():
        files += files_in(folder / OUTPUTS)
    topology = [file for file in files if file.name == _TOPOLOGY] if (folder / _RUN).is_file() else []
    found_readings += _read_files(topology or files, note, alone=not is_root)
    if not any(_has_facts(reading.machine) for reading in found_readings):
        raise Unreadable(
            f"{printable(str(folder))} holds nothing that is read here, in {len(files)} files and "
            f"{'sys or proc' if is_root else 'no sys or proc'}: {_remedy()}"
        )
    return found_readings


def _read_files(files: Sequence[Path], note: Callable[[str], None] | None, *, alone: bool) -> list[_Reading]:
    """Return the readings of several files; damaged ones become a doubt. `alone`: nothing else describes the machine."""
    readings, refused = _read_each(files, lambda file: _read_tarball(file) if _is_tarball(file) else _read_file(file))
    logs = [why for _, why in refused if isinstance(why, _Log)]
    damaged = [why for _, why in refused if not isinstance(why, _Unknown)]
    if alone and not readings and (logs or damaged):
        raise [*logs, *damaged][0]
    skipped = [printable(file.name, 60) for file, why in refused if isinstance(why, _Unknown)]
    if alone and readings and skipped and note:
        note(f"passed over, not in a known format: {several(skipped)}")
    return [*readings, *_doubting(f"left out: {why}" for why in damaged)]


def _read_each(items: Iterable[_Item], read: Callable[[_Item], list[_Reading]]) -> tuple[list[_Reading], list[tuple[_Item, Unreadable]]]:
    """Return the readings of all items, and those that cannot be read, each with its error."""
    readings: list[_Reading] = []
    refused: list[tuple[_Item, Unreadable]] = []
    for item in items:
        try:
            readings += read(item)
        except Unreadable as why:
            refused.append((item, why))
    return readings, refused


def _doubting(doubts: Iterable[str], trust: int = _DOUBTS) -> list[_Reading]:
    """Return a reading that has only doubts; none without a doubt."""
    machine = Machine(doubts=tuple(doubts))
    return [_Reading(trust, machine)] if machine.doubts else []


def _read_tarball(path: Path) -> list[_Reading]:
    """Return the readings of a tarball: the machine's files and the archived outputs of tools; an unreadable output is a doubt."""
    archive = open_archive(path)
    outputs, refused = _read_each(archive.names(f"/{OUTPUTS}"), lambda name: _read_output(archive.text(f"/{OUTPUTS}/{name}") or "", name))
    found_readings = [*(_Reading(_TREE, machine) for machine in readings(archive)), *outputs]
    if not any(_has_facts(reading.machine) for reading in found_readings):
        raise Unreadable(
            f"{printable(path.name)} holds no machine's files in its sys and proc: gather them with `collbench probe --gather`"
        )
    return [*found_readings, *_doubting([*archive.doubts, *(f"left out: {why}" for _, why in refused)], _TREE)]


def _read_output(text: str, name: str) -> list[_Reading]:
    """Return the reading of one tool's output by the first reader that recognizes it; none without one. Raises Unreadable."""
    place = next((place for place, reader in enumerate(READERS) if reader.looks_like(text)), None)
    return [] if place is None else [_read_by(place, text, name)]


def _read_by(place: int, text: str, name: str) -> _Reading:
    """Return the reading by one of READERS. Raises Unreadable, also for an empty result: it would mean "no GPUs"."""
    reader = READERS[place]
    machine = reader.read(text, name)
    if not _has_facts(machine):
        raise Unreadable(f"{printable(name)} is {reader.kind}, but lists no part of a machine: save the whole output again")
    return _Reading(_TEXT + place, with_reasons(machine, reader.kind, reader.lists))


def _has_facts(machine: Machine) -> bool:
    """Return whether any fact is known. A tree without content gives an empty machine."""
    lists = (machine.numa_nodes, machine.pci, machine.gpus, machine.nics, machine.fabric, machine.gpu_links)
    return any(lists) or machine.system != System()


def _read_file(path: Path) -> list[_Reading]:
    """Return the readings of one text: the output of one tool or of several tools in sequence. Raises Unreadable."""
    text = text_of(path)
    name = path.name
    if text.lstrip().startswith("{") and '"machines"' in text:
        return [_Reading(_SNAPSHOT, machine) for machine in _snapshot(text, name)]
    outputs = _outputs_in(text)
    if len(outputs) > 1:
        found_readings, refused = _read_each(outputs.items(), lambda output: [_read_by(*output, name)])
        if not found_readings:
            raise refused[0][1]
        return [*found_readings, *_doubting(f"left out: {why}" for _, why in refused)]
    if found_readings := _read_output(text, name):
        return found_readings
    if is_nccl_log(text[:HEAD]):
        raise _Log(f"{printable(name)} is a log of NCCL: read it with `collbench doctor --log`")
    raise _Unknown(f"{printable(name)} is not in a known format: {_remedy()}")


def _outputs_in(text: str) -> dict[int, str]:
    """Return the lines of each tool, by its reader's index in READERS, where a text holds several outputs; else fewer than two entries."""
    if len(text) > _MOST_PASTED:
        return {}
    starting = [(place, reader.starts) for place, reader in enumerate(READERS) if reader.starts]
    lines_of: dict[int, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        place = next((place for place, starts in starting if starts(line[:_LONGEST_LINE])), None)
        if place is not None:
            current = lines_of.setdefault(place, [])
        if current is not None:
            current.append(line)
    outputs = {place: "\n".join(lines) for place, lines in lines_of.items()}
    return {place: output for place, output in outputs.items() if READERS[place].looks_like(output)}


def _snapshot(text: str, name: str) -> list[Machine]:
    from collbench.machine.snapshot import machines_of

    if len(text) > _MOST_VALUES and values_in(text.encode()) > _MOST_VALUES:
        raise Unreadable(f"{printable(name)} holds more than {_MOST_VALUES:,} values: give fewer machines at once")
    problem = f"{printable(name)} is not valid JSON (cut off?): write it again with `collbench probe --format json`"
    machines = machines_of(json_of(text, problem), name)
    figure = next((figure for machine in machines for figure in impossible(machine)), None)
    if figure:
        raise Unreadable(f"{printable(name)} has an impossible value, {figure}: write it again with `collbench probe --format json`")
    return machines


def _remedy() -> str:
    return f"give {', '.join(reader.kind for reader in READERS)}, a tarball of `probe --gather`, or a folder with sys and proc"
