"""lspci's text: PCI functions, their links now and at most, the tree above them, access control, and which are GPUs and NICs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from collbench.machine.model import Machine, PciDevice, PcieLink
from collbench.machine.readers import pci_parts
from collbench.machine.readers.doubts import few
from collbench.machine.readers.lspci_text import Function, functions, is_head
from collbench.machine.readers.text import HEAD, Reader, Unreadable, printable

KIND = "lspci"
_PORTS = {"Upstream Port", "Downstream Port"}
_NEVER_AT_A_ROOT = {*_PORTS, "Endpoint", "Legacy Endpoint"}
_NO_TREE = "this output of lspci has no bridges' buses: save `lspci -vvv`, run by root"
_NO_BRIDGE = "the bridge above it is not in the text"
_DENIED = "lspci ran without root and could not read it"


def looks_like(text: str, name: str) -> bool:
    """A line like "19:00.0 3D controller: NVIDIA Corporation …"."""
    return any(is_head(line) for line in text[:HEAD].splitlines())


def starts(line: str) -> bool:
    """Whether the line begins a PCI function."""
    return is_head(line)


def read(text: str, name: str) -> Machine:
    """The machine's PCI side. NICs are named by their addresses: lspci does not know "mlx5_0".

    Raises Unreadable when no function is listed, or one is listed twice.
    """
    found = list(functions(text, name))
    if not found:
        alone = "link lines without the devices they belong to" if "LnkSta:" in text[:HEAD] else "no PCI functions"
        raise Unreadable(f"{printable(name)} has {alone}: save the whole output of `lspci -vvv`, run by root")
    doubts: list[str] = []
    parents = _parents(found, doubts)
    devices = pci_parts.with_switches([_device(function, parents.get(function.address)) for function in found])
    physical = pci_parts.physical_nics(devices)
    return Machine(
        sources=(f"{KIND} {printable(name)}",),
        pci=devices,
        gpus=tuple(pci_parts.gpu(device) for device in devices if device.kind == "gpu"),
        nics=tuple(pci_parts.nic(device, physical) for device in devices if device.kind == "nic"),
        unknown=_unknown(found, devices),
        doubts=(*few(doubts), *few([doubt for device in devices if (doubt := pci_parts.link_doubt(device))])),
    )


def _device(function: Function, parent: str | None) -> PciDevice:
    """One function; a port of a switch says itself that it is one, where capabilities are printed."""
    kind = pci_parts.kind_of(function.address, function.vendor_id, function.class_id)
    virtual = pci_parts.is_virtual(function.address, function.vendor_id, function.device_id, function.class_id, function.name)
    return PciDevice(
        function.address,
        "switch" if kind == "bridge" and function.port_type in _PORTS else kind,
        parent,
        function.vendor_id,
        function.device_id,
        function.class_id,
        function.name,
        function.numa,
        PcieLink() if virtual else function.link,
        function.acs,
        function.driver,
        virtual,
    )


def _parents(found: Sequence[Function], doubts: list[str]) -> dict[str, str]:
    """The bridge above each function, by the bridges' secondary buses.

    Buses are numbered downwards, so a bridge whose secondary bus does not come after its own is not believed: no circles are left.
    """
    bridges: dict[tuple[str, int], list[str]] = defaultdict(list)
    for function in found:
        domain, bus = _place(function.address)
        if function.buses and function.buses[1] > bus:
            bridges[domain, function.buses[1]].append(function.address)
        elif function.buses and function.buses[1]:
            doubts.append(f"{function.address}: its secondary bus {function.buses[1]:02x} does not come after its own: not believed")
    for (_, bus), several in bridges.items():
        if len(several) > 1:
            doubts.append(f"{' and '.join(several[:4])} both say that bus {bus:02x} is below them: neither is believed")
    return {function.address: above[0] for function in found if len(above := bridges.get(_place(function.address), [])) == 1}


def _place(address: str) -> tuple[str, int]:
    """Domain and bus."""
    domain, bus, _ = address.split(":")
    return domain, int(bus, 16)


def _unknown(found: Sequence[Function], devices: Sequence[PciDevice]) -> dict[str, str]:
    """Why parents, links and access control of functions that matter are not known."""
    tree = any(function.buses for function in found)
    unknown: dict[str, str] = {}
    for function, device in zip(found, devices, strict=True):
        path = f"pci/{device.address}"
        if device.parent is None and (not tree or function.port_type in _NEVER_AT_A_ROOT):
            unknown[f"{path}/parent"] = _NO_BRIDGE if tree else _NO_TREE
        if device.kind != "other" and (device.virtual or device.link == PcieLink()):
            unknown[f"{path}/link"] = (
                pci_parts.VIRTUAL_LINK if device.virtual else _DENIED if function.denied else "lspci does not print it"
            )
        if function.denied:
            unknown[f"{path}/acs"] = _DENIED
    return unknown


LSPCI = Reader(KIND, looks_like, read, lists=frozenset({"pci", "gpus", "nics"}), starts=starts)
