"""Network interfaces of this host: which one has an address, its speed, and whether it is virtual."""

from __future__ import annotations

import math
import shutil
import socket
import subprocess
from pathlib import Path

import msgspec

from collbench.addresses import Family, family_of
from collbench.machine.files import Files, Folder
from collbench.machine.readers.text import whole
from collbench.untrusted import parse_json

_SYSFS = Path("/sys/class/net")
LOOPBACK = "lo"
_MOST_MEGABITS = 10_000_000  # of one interface; the fastest one has 800,000
_VIRTUAL_DRIVERS = {
    "virtio_net": "virtio",
    "vmxnet3": "a virtual machine's",
    "hv_netvsc": "a virtual machine's",
    "xen-netfront": "a virtual machine's",
}


class Interface(msgspec.Struct, frozen=True):
    """One network interface.

    speed_bits_per_s    the speed that the kernel reports; None when unknown or virtual
    virtual             why its speed is meaningless ("veth"), or None for real hardware
    shaped_bits_per_s   the rate limit of a traffic shaper on it, or None
    """

    name: str
    mtu: int
    speed_bits_per_s: float | None
    virtual: str | None
    shaped_bits_per_s: float | None


def interface_with(address: str) -> str:
    """Return the name of the interface that has this IPv4 or IPv6 address; "lo" when none has it."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.split("%")[0] == address for entry in addresses):
            return name
    return "lo"


def first_family(name: str) -> Family | None:
    """Return the address family that libraries use on an interface given by name: IPv4 before IPv6; None without an address."""
    import psutil

    entries = psutil.net_if_addrs().get(name, ())
    families = [family_of(entry.address) for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]
    return min(families, key=lambda family: family.value, default=None)


def read_interface(name: str, sysfs: Path = _SYSFS) -> Interface:
    """Return what the kernel reports of an interface. Never raises: unreadable values are None."""
    files = Folder(Path("/"))
    folder = f"{sysfs.absolute()}/{name}"
    virtual = why_virtual(files, folder)
    return Interface(
        name=name,
        mtu=whole(files.text(f"{folder}/mtu"), 1) or 1500,
        speed_bits_per_s=None if virtual else speed_of(files, folder),
        virtual=virtual,
        shaped_bits_per_s=shapes("dev", name).get(name) if name != LOOPBACK else None,
    )


def why_virtual(files: Files, folder: str) -> str | None:
    """Return why the reported speed of an interface is meaningless. None for hardware, bonds and VLANs."""
    if folder.endswith(f"/{LOOPBACK}"):
        return "loopback"
    if not files.real(f"{folder}/device"):
        if made_of(files, folder):
            return None
        if files.real(f"{folder}/tun_flags"):
            return "tap"
        return "bridge" if files.real(f"{folder}/bridge") else "veth or the like"
    return _VIRTUAL_DRIVERS.get((files.real(f"{folder}/device/driver") or "").rpartition("/")[2])


def made_of(files: Files, folder: str) -> str | None:
    """Return "bond" or "VLAN" for an interface that is built on others, else None."""
    if files.real(f"{folder}/bonding"):
        return "bond"
    vlan = "DEVTYPE=vlan" in (files.text(f"{folder}/uevent") or "").split() or files.real(f"/proc/net/vlan/{folder.rpartition('/')[2]}")
    return "VLAN" if vlan else None


def speed_of(files: Files, folder: str) -> float | None:
    """Return the speed of an interface in bits per second; None when it is down (-1), unknown or impossible."""
    megabits = whole(files.text(f"{folder}/speed"), 1, _MOST_MEGABITS)
    return megabits * 1e6 if megabits else None


def shapes(*arguments: str) -> dict[str, float]:
    """Return the rate limits of traffic shapers in bits per second by interface, from `tc`; {} without tc. `arguments`: of tc."""
    tc = shutil.which("tc") or shutil.which("tc", path="/sbin:/usr/sbin")
    if not tc:
        return {}
    try:
        process = subprocess.run([tc, "-j", "qdisc", "show", *arguments], capture_output=True, text=True, timeout=5, check=True)
        rates: dict[str, float] = {}
        for qdisc in parse_json(process.stdout or "[]"):
            rate = qdisc.get("options", {}).get("rate")
            number = rate["rate"] if isinstance(rate, dict) else rate  # netem reports more than the number
            name = arguments[-1] if arguments else str(qdisc.get("dev"))  # tc may omit the name of the interface that was queried
            if number:
                rates[name] = min(rates.get(name, math.inf), number * 8.0)
        return rates
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError):
        return {}
