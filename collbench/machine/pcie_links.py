"""PCIe links of a machine: the two ends of each, and what both ends support."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import TypeVar

from msgspec.structs import replace

from collbench.machine.merge import origin
from collbench.machine.model import BRIDGES, Machine, PciDevice, PcieLink, is_nccl_topology
from collbench.machine.readers.pci import card_of

_Figure = TypeVar("_Figure", int, float)


def bus_of(address: str) -> str:
    """Return the bus of a PCI function: "0000:19" of "0000:19:00.0"."""
    return address.rpartition(":")[0]


class PcieLinks:
    """The PCI functions of a machine by address, and the links between them.

    A switch has an upstream port and one downstream port for each device. NCCL's files show it as one bridge with the link of its upstream
    port. That link does not limit the devices below, which are on other links.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.devices = {device.address: device for device in machine.pci}
        buses: dict[str, set[str]] = {}
        for device in machine.pci:
            if device.parent and not device.virtual:  # virtual functions may be on the next bus
                buses.setdefault(device.parent, set()).add(bus_of(device.address))
        self._whole_switches = {address for address, buses_below in buses.items() if len(buses_below) > 1}
        self._cards_below: dict[str, set[str]] = {}
        for device in machine.pci:
            if not device.virtual and device.kind not in BRIDGES:
                for bridge in self.bridges_above(device.address):
                    self._cards_below.setdefault(bridge, set()).add(card_of(device.address))

    def port_above(self, device: PciDevice) -> PciDevice | None:
        """Return the port at the upper end of a device's link; None if it is unknown, or if the source does not show ports of switches."""
        port = self.devices.get(device.parent or "")
        source = origin(self.machine, f"pci/{device.address}/parent") or next(iter(self.machine.sources), "")
        return None if port is None or port.address in self._whole_switches or is_nccl_topology(source) else port

    def bridges_above(self, address: str | None) -> list[str]:
        """Return the addresses of the bridges above a device, nearest first, up to an unknown or repeated parent."""
        bridges: list[str] = []
        device = self.devices.get(address or "")
        while device and device.parent in self.devices and device.parent not in bridges and device.parent != address:
            bridges.append(device.parent)
            device = self.devices[device.parent]
        return bridges

    def of_card_alone(self, address: str | None) -> list[str]:
        """Return the bridges above a device that no other card shares, such as those of the switch on an AMD GPU's card."""
        return list(takewhile(lambda bridge: len(self._cards_below.get(bridge, ())) == 1, self.bridges_above(address)))

    def of(self, device: PciDevice) -> PcieLink:
        """Return the link above a device, its maximum speed and width lowered to those of the port at the other end.

        Links above that no other card shares lower it as well.
        """
        limiting = [self.port_above(device)]
        if device.kind not in BRIDGES:
            limiting += [self.devices[bridge] for bridge in self.of_card_alone(device.address)]
        link = device.link
        for bridge in limiting:
            if bridge and not bridge.virtual:
                speed = _lower(link.max_speed_gt_per_s, bridge.link.max_speed_gt_per_s)
                link = replace(link, max_speed_gt_per_s=speed, max_width=_lower(link.max_width, bridge.link.max_width))
        return link

    def has_both_ends(self, device: PciDevice) -> bool:
        """Return whether the maximum of the port at the other end of a device's link is known."""
        port = self.port_above(device)
        return port is not None and bool(port.link.max_speed_gt_per_s and port.link.max_width)

    def above(self, address: str | None) -> Iterator[tuple[PciDevice, PciDevice | None]]:
        """Yield each link between a device and the root as its lower end and the port at its upper end, if that is known."""
        device = self.devices.get(address or "")
        passed: set[str] = set()
        while device is not None and device.address not in passed:
            passed.add(device.address)
            port = self.port_above(device)
            yield device, port
            device = self.devices.get((port or device).parent or "")


def _lower(of_device: _Figure | None, of_bridge: _Figure | None) -> _Figure | None:
    """Return the lower of two maxima; None if that of the device itself is unknown."""
    return of_device if of_device is None or not of_bridge else min(of_device, of_bridge)
