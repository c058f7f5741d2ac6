"""Network interfaces that are no RDMA device's: the real ones, and the virtual ones with the reason why they are none.

What a file holds: Linux Documentation/ABI/testing/sysfs-class-net.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from collbench.machine.files import Files, Folder
from collbench.machine.interfaces import LOOPBACK, made_of, shapes, speed_of, why_virtual
from collbench.machine.model import Machine, Nic, Port
from collbench.machine.readers.infiniband import owned_interfaces, pci_folder
from collbench.machine.readers.text import numa_of, pci_address, printable, whole

KIND = "network sysfs"
CLASS = "/sys/class/net"
_INFINIBAND = "32"
_HARDWARE = {"1", _INFINIBAND}  # ARPHRD_ETHER, ARPHRD_INFINIBAND of linux/if_arp.h
_STATES = {"up": "active", "down": "down", "lowerlayerdown": "down", "notpresent": "down"}


def read(files: Files) -> Machine:
    """The interfaces in the order of their names, without loopback and those of RDMA hardware; an empty machine without any. Never raises.

    What a traffic shaper lets through is read of the live machine alone.
    """
    owned = owned_interfaces(files)
    names = [name for name in files.names(CLASS) if name != LOOPBACK and not _belongs(files, name, owned) and _is_interface(files, name)]
    shaped = shapes() if names and isinstance(files, Folder) and files.root == Path("/") else {}
    unknown: dict[str, str] = {}
    nics = tuple(_nic(files, name, shaped, unknown) for name in names)
    return Machine(sources=(KIND,), nics=nics, unknown=unknown) if nics else Machine()


def _is_interface(files: Files, name: str) -> bool:
    """Not a file such as bonding_masters; a link whose target was not captured may be one."""
    return bool(files.names(f"{CLASS}/{name}")) or files.real(f"{CLASS}/{name}") is None


def _belongs(files: Files, name: str, owned: set[str]) -> bool:
    """A port of a bond belongs to the RDMA device of the bond."""
    master = (files.real(f"{CLASS}/{name}/master") or "").rpartition("/")[2]
    return name in owned or (bool(master) and master in owned)


def _nic(files: Files, name: str, shaped: Mapping[str, float], unknown: dict[str, str]) -> Nic:
    folder, key = f"{CLASS}/{name}", printable(name)
    virtual, function = _why_none(files, folder), pci_folder(files.real(f"{folder}/device") or files.real(folder))
    state = _state(files, folder)
    rate = speed_of(files, folder)
    why = _why_no_rate(virtual, state, rate)
    if why:
        unknown[f"nics/{key}/ports/1/rate_bits_per_s"] = why
    port = Port(
        rate_bits_per_s=None if why else rate,
        rate_text=f"{rate / 1e6:.0f} Mb/s" if rate else None,
        state=state,
        phys_state="linkup" if files.text(f"{folder}/carrier") == "1" else None,
        link_layer="infiniband" if files.text(f"{folder}/type") == _INFINIBAND else "ethernet",
        mtu_bytes=whole(files.text(f"{folder}/mtu"), 1, 1 << 20),
        shaped_bits_per_s=shaped.get(name),
    )
    address, numa = pci_address(function.rpartition("/")[2]), numa_of(files.text(f"{function}/numa_node")) if function else None
    return Nic(name=key, address=address, numa=numa, ports=(port,), interfaces=(key,), virtual=virtual)


def _why_none(files: Files, folder: str) -> str | None:
    """Why it is no port of the machine: a bond has a speed and is made of ports that are counted already."""
    kind = files.text(f"{folder}/type")
    return made_of(files, folder) or why_virtual(files, folder) or (None if kind is None or kind in _HARDWARE else "tunnel or the like")


def _why_no_rate(virtual: str | None, state: str | None, rate: float | None) -> str | None:
    if virtual and virtual not in {"bond", "VLAN"}:
        return f"virtual ({virtual}): the speed it tells means nothing"
    if state == "down":
        return "the interface is down"
    return None if rate else "its driver tells no speed"


def _state(files: Files, folder: str) -> str | None:
    """Drivers without link detection stay at "unknown": then the carrier tells."""
    told = files.text(f"{folder}/operstate") or ""
    return _STATES.get(told) or ({"1": "active", "0": "down"}.get(files.text(f"{folder}/carrier") or ""))
