"""CB21xx, PCIe: links below the capability of both ends, slots that limit GPUs, ACS, and the IOMMU."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from collbench.machine.doctor.finding import Finding, MachineView, Severity, bytes_per_s, gigabytes
from collbench.machine.model import PciDevice, PcieLink
from collbench.machine.readers.pci import card_of
from collbench.units import listed, plural

_IDLE = 2.5  # GT/s to which an idle GPU's link falls
_REDIRECTS = frozenset({"SrcValid", "ReqRedir"})
_READ_AGAIN = "read it again while the GPU works (`nvidia-smi -q -d PERFORMANCE` shows the clocks); an idle reading proves nothing"
_RESEAT = "reseat the card, riser or cable and check the slot's settings in the firmware; if it stays, change the part"


class _Wire(msgspec.Struct, frozen=True):
    """A PCIe link that carries a GPU's or NIC's data: from a device up to the port above it.

    link        with the maximum of both ends, as far as known
    both_ends   whether the maximum of the port above is known, too
    """

    device: PciDevice
    port: PciDevice | None
    carries: tuple[PciDevice, ...]
    link: PcieLink
    both_ends: bool

    @property
    def only_gpus(self) -> bool:
        """Whether no NIC is below the link."""
        return all(device.kind == "gpu" for device in self.carries)


def downtrained(view: MachineView) -> Iterator[Finding]:
    """CB2101 and CB2102: a link uses fewer lanes, or runs at fewer GT/s, than both ends support. GT/s not for idle GPUs."""
    for wire in _wires(view):
        width = wire.device.link.width
        max_width = wire.link.max_width
        if width and max_width and width < max_width:
            what = f"{view.name(wire.device.address)} runs on {width} of {max_width} lanes"
            yield view.finding("CB2101", _severity(view, wire), what, _evidence(view, wire), _RESEAT)
        speed = wire.device.link.speed_gt_per_s
        max_speed = wire.link.max_speed_gt_per_s
        if speed and max_speed and speed < max_speed and not (speed == _IDLE and wire.only_gpus):
            what = f"{view.name(wire.device.address)} runs at {speed:g} of {max_speed:g} GT/s"
            yield view.finding("CB2102", _severity(view, wire), what, _evidence(view, wire), _RESEAT)


def slot_limits(view: MachineView) -> Iterator[Finding]:
    """CB2103: a GPU in a slot with fewer lanes or GT/s than the GPU supports. For NICs see CB2201."""
    limited: list[tuple[PciDevice, PciDevice]] = []  # (card, port above); NCCL's file has no current link values, and proves nothing
    for wire in _wires(view):
        if wire.device.kind == "gpu" and wire.port and wire.device.link.width is not None and wire.port.link.width is not None:
            card = wire.device.link
            slot = wire.port.link
            pairs = ((card.max_speed_gt_per_s, slot.max_speed_gt_per_s), (card.max_width, slot.max_width))
            if any(of_card and of_slot and of_slot < of_card for of_card, of_slot in pairs):
                limited.append((wire.device, wire.port))
    if limited:
        device, port = limited[0]
        names = listed([view.name(gpu.address) for gpu, _ in limited])
        evidence = f"{view.name(device.address)}: the card has {_max_link(device)}, the port above it {_max_link(port)}"
        what = f"{plural(len(limited), 'GPU')} in slots that have less than the card: {names}"
        yield view.finding("CB2103", "note", what, evidence, "move the cards to full slots where the board has any; else expect no more")


def idle(view: MachineView) -> Iterator[Finding]:
    """CB2104: GPUs with a link at 2.5 GT/s, the normal speed of an idle GPU."""
    gpu_wires = [wire for wire in _wires(view) if wire.only_gpus]
    wires = [wire for wire in gpu_wires if wire.device.link.speed_gt_per_s == _IDLE and (wire.link.max_speed_gt_per_s or 0) > _IDLE]
    if wires:
        names = listed([view.name(wire.device.address) for wire in wires])
        what = f"{plural(len(wires), 'link')} of GPUs at 2.5 GT/s, perhaps only since they are idle: {names}"
        yield view.finding("CB2104", "note", what, _evidence(view, wires[0]), _READ_AGAIN)


def acs(view: MachineView) -> Iterator[Finding]:
    """CB2105: ACS redirects traffic between devices below a switch to the root complex. Virtual machines need it."""
    redirecting = [] if view.virtual_machine or not view.machine.gpus else _redirecting(view)
    if not redirecting:
        return
    severity: Severity
    switch_ports = [port for port in redirecting if port.parent]
    if switch_ports:
        ports = switch_ports
        severity = "severe"
        where = f"{plural(len(ports), 'switch port')} above GPUs or NICs: they reach one another through the CPU"
    else:
        ports = redirecting
        severity = "note"
        where = f"{plural(len(ports), 'root port')} above GPUs or NICs: the CPU checks what they send one another"
    names = listed([f"{port.address} ({' '.join(f'{bit}+' for bit in port.acs or ())})" for port in ports])
    evidence = f"ACSCtl of {names}"
    if view.virtual_machine is None:
        severity = "warning"
        evidence += "; no source shows whether this is a virtual machine, which needs ACS"
    command = f"`setpci -s {ports[0].address} ECAP_ACS+0x6.w=0000` (as root{', for each of them' if len(ports) > 1 else ''})"
    remedy = f"switch it off in the firmware, or with {command} at each boot; hosts of virtual machines keep it, with ATS"
    yield view.finding("CB2105", severity, f"ACS is on at {where}", evidence, remedy)


def iommu(view: MachineView) -> Iterator[Finding]:
    """CB2106: the IOMMU translates each access of devices. Not for POWER, where it always does."""
    system = view.machine.system
    if system.iommu != "translating" or view.virtual_machine is not False or system.architecture in ("ppc64le", "ppc64"):
        return
    if len(view.machine.gpus) > 1 or view.rdma:
        command_line = f"; /proc/cmdline: {system.command_line}" if system.command_line else ""
        evidence = f"iommu groups are of a translating type{command_line}"
        remedy = "boot with iommu=pt (x86) or iommu.passthrough=1 (Arm), or switch the IOMMU off where nothing needs it"
        yield view.finding("CB2106", "warning", "the IOMMU translates what GPUs and NICs read and write", evidence, remedy)


def slower_above(view: MachineView) -> Iterator[Finding]:
    """CB2107: a bridge with a slower link than a device below it, from a source without the bridge's own limits."""
    slower: dict[str, str] = {}  # the speeds read at a bridge and at a device below it, as text
    for endpoint in view.endpoints:
        endpoint_speed = endpoint.link.speed_gt_per_s
        for bridge in view.path_to(endpoint.address)[1:]:
            speed = bridge.link.speed_gt_per_s
            if endpoint_speed and speed and speed < endpoint_speed and bridge.link.max_speed_gt_per_s is None and not bridge.virtual:
                text = f"{bridge.address} reads {speed:g} GT/s, {view.name(endpoint.address)} {endpoint_speed:g} GT/s"
                slower.setdefault(bridge.address, text)
    if slower:
        what = f"{plural(len(slower), 'PCIe bridge')} read slower than the devices below: {listed(list(slower))}"
        evidence = next(iter(slower.values()))
        remedy = "the source may have caught the link at rest, or a file is wrong: compare LnkCap and LnkSta of `lspci -vvv` under load"
        yield view.finding("CB2107", "note", what, evidence, remedy)


def _wires(view: MachineView) -> list[_Wire]:
    """Return the links that GPU and NIC data crosses, each once."""
    if view.virtual_machine:
        return []
    links = view.pcie_links
    ends: dict[str, tuple[PciDevice, PciDevice | None]] = {}
    carries: dict[str, list[PciDevice]] = {}
    for endpoint in view.endpoints:
        for device, port in links.above(endpoint.address):
            if not device.virtual and not (port and port.virtual):
                ends[device.address] = (device, port)
                carries.setdefault(device.address, []).append(endpoint)
    return [
        _Wire(device, port, tuple(carries[address]), links.of(device), links.has_both_ends(device))
        for address, (device, port) in ends.items()
    ]


def _severity(view: MachineView, wire: _Wire) -> Severity:
    """Return "severe", or "warning" where the lower speed may not matter.

    A NIC loses nothing while its ports are slower than its link. Without the port's limits the slot may be the reason.
    The only GPU of a machine cannot be compared: laptops and small boards connect fewer lanes than both ends claim.
    """
    only_gpu = wire.only_gpus and sum(device.kind == "gpu" for device in view.endpoints) == 1
    if only_gpu or not wire.both_ends or (wire.device.kind == "nic" and _carries_all_ports(view, wire.device)):
        return "warning"
    return "severe"


def _carries_all_ports(view: MachineView, device: PciDevice) -> bool:
    """Return whether the current rate of a NIC's link is as high as the known rates of its card's ports together."""
    nics = [nic for nic in view.machine.nics if nic.address and card_of(nic.address) == card_of(device.address)]
    port_rates = [port.rate_bits_per_s for nic in nics for port in nic.ports if port.rate_bits_per_s is not None]
    rate = bytes_per_s(device.link.speed_gt_per_s, device.link.width)
    return bool(port_rates) and rate is not None and sum(port_rates) / 8 <= rate


def _evidence(view: MachineView, wire: _Wire) -> str:
    link = wire.device.link
    rate = bytes_per_s(link.speed_gt_per_s, link.width)
    max_rate = bytes_per_s(wire.link.max_speed_gt_per_s, wire.link.max_width)
    rates = f" = {gigabytes(rate)} of {gigabytes(max_rate)}" if rate and max_rate else ""
    port = f"the port above it {_max_link(wire.port)}" if wire.both_ends and wire.port else "what the slot has is not known"
    current = _link(link.speed_gt_per_s, link.width)
    return f"LnkSta {current}{rates}; {view.name(wire.device.address)} has {_max_link(wire.device)}, {port}"


def _max_link(device: PciDevice) -> str:
    return _link(device.link.max_speed_gt_per_s, device.link.max_width)


def _link(speed: float | None, width: int | None) -> str:
    return f"{'?' if speed is None else f'{speed:g}'} GT/s x{'?' if width is None else width}"


def _redirecting(view: MachineView) -> list[PciDevice]:
    """Return the ports with ACS between two cards, one of them with a GPU. An AMD card has an internal switch, which does not count."""
    # by bridge; None: all of the machine
    cards_below: dict[str | None, set[str]] = {None: {card_of(endpoint.address) for endpoint in view.endpoints}}
    ports: dict[str, PciDevice] = {}
    for endpoint in view.endpoints:
        for bridge in view.path_to(endpoint.address)[1:]:
            ports[bridge.address] = bridge
            cards_below.setdefault(bridge.address, set()).add(card_of(endpoint.address))
    gpu_cards = {card_of(endpoint.address) for endpoint in view.endpoints if endpoint.kind == "gpu"}
    between_cards = []
    for port in ports.values():
        siblings = cards_below.get(port.parent, set())
        redirects = not port.virtual and _REDIRECTS & set(port.acs or ())
        if redirects and cards_below[port.address] < siblings and gpu_cards & siblings:
            between_cards.append(port)
    return between_cards


def acs_somewhere(view: MachineView) -> Iterator[Finding]:
    """CB2108: access control redirects requests at some ports, and the source does not name them."""
    ports = view.machine.system.acs_ports
    on = view.machine.system.acs_on
    named = any(device.acs is not None for device in view.machine.pci)  # then CB2105 judges by the devices below each port
    if on and ports and not view.virtual_machine and not named:
        what = f"ACS redirects requests at {on} of {plural(ports, 'port')}; which of them is unknown"
        evidence = "ReqRedir+, CmpltRedir+ or UpstreamFwd+ in lines of ACSCtl"
        remedy = "save `sudo lspci -vvv` as a whole, and read it with `collbench doctor --from`: only ports of switches above GPUs matter"
        yield view.finding("CB2108", "note", what, evidence, remedy)


RULES = (downtrained, slot_limits, idle, acs, acs_somewhere, iommu, slower_above)
