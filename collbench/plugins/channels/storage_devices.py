"""The storage under a folder: its file system, the block device below it, the counter of that device, and the link that it is on."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import msgspec

from collbench.machine.peak.limits import PcieLimit
from collbench.machine.peak.links import Link, unknown
from collbench.machine.peak.rates import pcie

# File systems by their names in /proc/self/mountinfo. A name such as "fuse.sshfs" counts as "fuse".

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "wekafs", "glusterfs", "orangefs", "afs", "fuse", "9p", "virtiofs"}
)
OWN_CACHE = frozenset({"zfs"})  # its cache is not the page cache, and versions before 2.3 use it for direct reads, too

_SECTOR = 512  # of the counters in /sys, independent of the sectors of the device
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_SPEED = re.compile(r"(\d{1,4}(?:\.\d)?) GT/s")


class Storage(msgspec.Struct, frozen=True):
    """The file system and the device below a folder.

    kind      of the file system: "ext4", "nfs4", "overlay"; "unknown" if no mount matches
    mounted   what is mounted: "/dev/nvme0n1p1", "server:/export"
    device    name of the whole block device in /sys/block ("nvme0n1", "dm-0"); None if the file system has none of its own
    number    "259:3" of the block device or partition that counts the reads; None without a device
    link      the link of the device, with the reason if it is unknown
    """

    kind: str
    mounted: str
    device: str | None
    number: str | None
    link: Link

    @property
    def family(self) -> str:
        """Return the file system without its subtype: "fuse" of "fuse.sshfs"."""
        return self.kind.partition(".")[0]

    @property
    def is_network(self) -> bool:
        """Whether another host, or the host of a virtual machine, serves the files."""
        return self.family in NETWORK

    def describe(self) -> str:
        """Return "ext4 on nvme0n1", or "nfs4 on server:/export (network file system)"."""
        where = self.mounted if self.device is None else self.device
        return f"{self.kind} on {where}{' (network file system)' if self.is_network else ''}"


def storage_of(folder: Path, root: Path = Path("/")) -> Storage:
    """Return the storage of a folder. `root`: the folder that holds proc and sys. Raises OSError if the folder cannot be examined."""
    number = folder.stat().st_dev
    key = f"{os.major(number)}:{os.minor(number)}"
    kind, mounted = _mount(key, root)
    place = _resolved(root / "sys/dev/block" / key)
    if place is None:
        return Storage(kind, mounted, None, None, unknown(f"{kind} has no block device of its own: the link below it is unknown"))
    disk = _whole(place)
    return Storage(kind, mounted, disk.name, key, link_of(disk))


def read_bytes(storage: Storage, root: Path = Path("/")) -> int | None:
    """Return the bytes that the device has read since it exists; None without such a counter."""
    if storage.number is None:
        return None
    try:
        fields = (root / "sys/dev/block" / storage.number / "stat").read_text().split()
        return int(fields[2]) * _SECTOR
    except (OSError, ValueError, IndexError):
        return None


def link_of(disk: Path) -> Link:
    """Return the link of a block device: the PCIe link of an NVMe device, else unknown with the reason."""
    below = sorted(path.name for path in _children(disk / "slaves"))
    if len(below) > 1:
        return unknown(f"{disk.name} consists of {len(below)} devices: the rate of them together is unknown")
    device = _resolved(disk / "slaves" / below[0]) if below else None
    if device:
        return link_of(_whole(device))
    network = "nvme-fabrics" in str(disk) or _uses_network(disk)
    reasons = {
        "is a file behind a loop device: the link below it is unknown": (disk / "loop").exists(),
        "is a virtual disk: the link below it is unknown": "/virtio" in str(disk) or "/vbd-" in str(disk),
        "is not an NVMe device: the rate of its link is not read": not disk.name.startswith("nvme"),
        "is an NVMe device behind a network": network,
    }
    why = next((reason for reason, applies in reasons.items() if applies), None)
    return unknown(f"{disk.name} {why}") if why else _pcie_link(disk)


def _pcie_link(disk: Path) -> Link:
    """Return the PCIe link at its current speed and width. A device with several controllers has no single link."""
    slots = set(filter(None, map(_slot, _controllers(disk))))
    if len(slots) != 1:
        return unknown(f"{disk.name}: {'no PCI address' if not slots else f'{len(slots)} PCIe links'} in /sys")
    (slot,) = slots
    try:
        speed = _SPEED.match((slot / "current_link_speed").read_text())
        width = int((slot / "current_link_width").read_text())
    except (OSError, ValueError):
        speed = None
    row = pcie(float(speed[1])) if speed else None
    if row is None or not 1 <= width <= 32:
        return unknown(f"{disk.name}: /sys has no valid speed and width of its PCIe link")
    return Link.of(row.bytes_per_s(width), PcieLimit(generation=row.generation, lanes=width), f"sysfs, {disk.name}")


def _controllers(disk: Path) -> list[Path]:
    """Return the controllers of an NVMe namespace: those of its subsystem with multipath, else the one above it in /sys."""
    above = _resolved(disk / "device")
    if above and above.name.startswith("nvme-subsys"):
        controllers = (path for path in _children(above) if re.fullmatch(r"nvme\d+", path.name))
        return list(filter(None, map(_resolved, controllers)))
    return [above or disk]


def _uses_network(disk: Path) -> bool:
    kinds = []
    for controller in _controllers(disk):
        with suppress(OSError):
            kinds.append((controller / "transport").read_text().strip())
    return any(kind != "pcie" for kind in kinds)


def _slot(place: Path) -> Path | None:
    return next((folder for folder in (place, *place.parents) if _PCI.fullmatch(folder.name)), None)


def _mount(key: str, root: Path) -> tuple[str, str]:
    """Return (file system, what is mounted) of a device number, from /proc/self/mountinfo."""
    try:
        lines = (root / "proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        fields, words = (part.split() for part in line.partition(" - ")[::2])
        if len(fields) > 2 and fields[2] == key and len(words) > 1:
            return words[0], words[1]
    return "unknown", "an unknown mount"


def _whole(device: Path) -> Path:
    return device.parent if (device / "partition").exists() else device


def _resolved(path: Path) -> Path | None:
    return path.resolve() if path.exists() else None


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
