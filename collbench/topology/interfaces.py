"""The network interfaces of this host: which one carries an address, how fast it is, whether it is real."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SYSFS = Path("/sys/class/net")
_LOOPBACK = "lo"
_VIRTUAL_DRIVERS = {
    "virtio_net": "virtio",
    "vmxnet3": "a virtual machine's",
    "hv_netvsc": "a virtual machine's",
    "xen-netfront": "a virtual machine's",
}


@dataclass(frozen=True)
class Interface:
    """One network interface.

    speed_bits_per_s    what the kernel says of a real one; None when unknown or virtual
    virtual             why its speed means nothing ("veth"), or None for real hardware
    shaped_bits_per_s   the rate that a traffic shaper on it gives, or None
    """

    name: str
    mtu: int
    speed_bits_per_s: float | None
    virtual: str | None
    shaped_bits_per_s: float | None


def interface_with(address: str) -> str:
    """The name of the interface that has this IPv4 or IPv6 address ("lo" for one that none has)."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.split("%")[0] == address for entry in addresses):
            return name
    return "lo"


def read_interface(name: str, sysfs: Path = _SYSFS) -> Interface:
    """What the kernel says of an interface. Never raises: what cannot be read is None."""
    folder = sysfs / name
    virtual = _why_virtual(folder)
    megabits = _number(folder / "speed")
    real = megabits is not None and megabits > 0 and virtual is None
    return Interface(
        name=name,
        mtu=_number(folder / "mtu") or 1500,
        speed_bits_per_s=megabits * 1e6 if real and megabits else None,
        virtual=virtual,
        shaped_bits_per_s=_shape(name) if name != _LOOPBACK else None,
    )


def _why_virtual(folder: Path) -> str | None:
    if folder.name == _LOOPBACK:
        return "loopback"
    device = folder / "device"
    if not device.exists():
        return _kind(folder)
    driver = (device / "driver").resolve().name if (device / "driver").exists() else ""
    return _VIRTUAL_DRIVERS.get(driver)


def _kind(folder: Path) -> str | None:
    """A bond or VLAN of real interfaces is as real as they are; veth, tap and bridges are not."""
    if (folder / "bonding").exists() or (Path("/proc/net/vlan") / folder.name).exists():
        return None
    return "tap" if (folder / "tun_flags").exists() else "bridge" if (folder / "bridge").exists() else "veth or the like"


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _shape(name: str) -> float | None:
    """The rate of a token bucket on the interface, from `tc`; None without one, or without tc."""
    tc = shutil.which("tc") or shutil.which("tc", path="/sbin:/usr/sbin")
    if not tc:
        return None
    try:
        found = subprocess.run([tc, "-j", "qdisc", "show", "dev", name], capture_output=True, text=True, timeout=5, check=True)
        rates = [q["options"]["rate"] for q in json.loads(found.stdout or "[]") if "rate" in q.get("options", {})]
        numbers = [rate["rate"] if isinstance(rate, dict) else rate for rate in rates]  # netem says more than the number
        return min(numbers, default=0) * 8.0 or None
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError):
        return None
