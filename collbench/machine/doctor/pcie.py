"""CB21xx, PCIe: links below the capability of both ends, slots that limit GPUs, ACS, and the IOMMU."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from collbench.machine.doctor.finding import Finding, MachineView, Severity, bytes_per_s, gigabytes
from collbench.machine.model import PciDevice, PcieLink
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
    def could(self) -> tuple[float | None, int | None]:
        """The maximum GT/s and lanes of both ends, as far as known."""
        return self.link.max_speed_gt_per_s, self.link.max_width

    @property
    def only_gpus(self) -> bool:
        """Whether no NIC is below the link."""
        return all(device.kind == "gpu" for device in self.carries)


def downtrained(view: MachineView) -> Iterator[Finding]:
    """CB2101 and CB2102: a link uses fewer lanes, or runs at fewer GT/s, than both ends support. GT/s not for idle GPUs."""
    for wire in _wires(view):
        width, most = wire.device.link.width, wire.could[1]
        if width and most and width < most:
            what = f"{view.name(wire.device.address)} runs on {width} of {most} lanes"
            yield view.finding("CB2101", _severity(view, wire), what, _evidence(view, wire), _RESEAT)
        now, could = wire.device.link.speed_gt_per_s, wire.could[0]
        if now and could and now < could and not (now == _IDLE and wire.only_gpus):
            what = f"{view.name(wire.device.address)} runs at {now:g} of {could:g} GT/s"
            yield view.finding("CB2102", _severity(view, wire), what, _evidence(view, wire), _RESEAT)


def slot_limits(view: MachineView) -> Iterator[Finding]:
    """CB2103: a GPU in a slot with fewer lanes or GT/s than the GPU supports. For NICs see CB2201."""
    found: list[tuple[PciDevice, PciDevice]] = []  # (card, port above); NCCL's file has no current link values, and proves nothing
    for wire in _wires(view):
        if wire.device.kind == "gpu" and wire.port and wire.device.link.width is not None and wire.port.link.width is not None:
            card, slot = wire.device.link, wire.port.link
            pairs = ((card.max_speed_gt_per_s, slot.max_speed_gt_per_s), (card.max_width, slot.max_width))
            if any(own and other and other < own for own, other in pairs):
                found.append((wire.device, wire.port))
    if found:
        device, port = found[0]
        names = listed([view.name(gpu.address) for gpu, _ in found])
        evidence = f"{view.name(device.address)}: the card has {_most(device)}, the port above it {_most(port)}"
        what = f"{plural(len(found), 'GPU')} in slots that have less than the card: {names}"
        yield view.finding("CB2103", "note", what, evidence, "move the cards to full slots where the board has any; else expect no more")


def idle(view: MachineView) -> Iterator[Finding]:
    """CB2104: GPUs with a link at 2.5 GT/s, the normal speed of an idle GPU."""
    of_gpus = [wire for wire in _wires(view) if wire.only_gpus]
    wires = [wire for wire in of_gpus if wire.device.link.speed_gt_per_s == _IDLE and (wire.could[0] or 0) > _IDLE]
    if wires:
        names = listed([view.name(wire.device.address) for wire in wires])
        what = f"{plural(len(wires), 'link')} of GPUs at 2.5 GT/s, perhaps only since they are idle: {names}"
        yield view.finding("CB2104", "note", what, _evidence(view, wires[0]), _READ_AGAIN)


def acs(view: MachineView) -> Iterator[Finding]:
    """CB2105: ACS redirects traffic between devices below a switch to the root complex. Virtual machines need it."""
    found = [] if view.virtual_machine or not view.machine.gpus else _redirecting(view)
    if not found:
        return
    known = view.virtual_machine is False
    ports = [port for port in found if port.parent] or found  # in switches; else root ports
    severity: Severity = "warning" if not known else "severe" if ports[0].parent else "note"
    where, effect = (
        ("switch", "they reach one another through the CPU") if ports[0].parent else ("root", "the CPU checks what they send one another")
    )
    names = listed([f"{port.address} ({' '.join(f'{bit}+' for bit in port.acs or ())})" for port in ports])
    doubt = "" if known else "; no source shows whether this is a virtual machine, which needs ACS"
    each = f"`setpci -s {ports[0].address} ECAP_ACS+0x6.w=0000` (as root{', for each of them' if len(ports) > 1 else ''})"
    what = f"ACS is on at {plural(len(ports), f'{where} port')} above GPUs or NICs: {effect}"
    remedy = f"switch it off in the firmware, or with {each} at each boot; hosts of virtual machines keep it, with ATS"
    yield view.finding("CB2105", severity, what, f"ACSCtl of {names}{doubt}", remedy)


def iommu(view: MachineView) -> Iterator[Finding]:
    """CB2106: the IOMMU translates each access of devices. Not for POWER, where it always does."""
    system = view.machine.system
    if system.iommu != "translating" or view.virtual_machine is not False or system.architecture in ("ppc64le", "ppc64"):
        return
    if len(view.machine.gpus) > 1 or view.rdma:
        line = f"; /proc/cmdline: {system.command_line}" if system.command_line else ""
        evidence = f"iommu groups are of a translating type{line}"
        remedy = "boot with iommu=pt (x86) or iommu.passthrough=1 (Arm), or switch the IOMMU off where nothing needs it"
        yield view.finding("CB2106", "warning", "the IOMMU translates what GPUs and NICs read and write", evidence, remedy)


def slower_above(view: MachineView) -> Iterator[Finding]:
    """CB2107: a bridge with a slower link than a device below it, from a source without the bridge's own limits."""
    found: dict[str, tuple[PciDevice, PciDevice]] = {}
    for endpoint in view.endpoints:
        below = endpoint.link.speed_gt_per_s
        for bridge in view.path_to(endpoint.address)[1:]:
            now, known = bridge.link.speed_gt_per_s, bridge.link.max_speed_gt_per_s
            if below and now and known is None and now < below and not bridge.virtual:
                found.setdefault(bridge.address, (bridge, endpoint))
    if found:
        bridge, endpoint = next(iter(found.values()))
        what = f"{plural(len(found), 'PCIe bridge')} read slower than the devices below: {listed(list(found))}"
        speeds = f"{bridge.link.speed_gt_per_s:g} GT/s", f"{endpoint.link.speed_gt_per_s:g} GT/s"
        evidence = f"{bridge.address} reads {speeds[0]}, {view.name(endpoint.address)} {speeds[1]}"
        remedy = "the source may have caught the link at rest, or a file is wrong: compare LnkCap and LnkSta of `lspci -vvv` under load"
        yield view.finding("CB2107", "note", what, evidence, remedy)


def _wires(view: MachineView) -> list[_Wire]:
    """Return the links that GPU and NIC data crosses, each once."""
    if view.virtual_machine:
        return []
    found: dict[str, tuple[PciDevice, PciDevice | None, list[PciDevice]]] = {}
    for endpoint in view.endpoints:
        for device, port in view.pcie_links.above(endpoint.address):
            found.setdefault(device.address, (device, port, []))[2].append(endpoint)
    links = view.pcie_links
    wires = [_Wire(device, port, tuple(carried), links.of(device), links.has_both_ends(device)) for device, port, carried in found.values()]
    return [wire for wire in wires if not wire.device.virtual and not (wire.port and wire.port.virtual)]


def _severity(view: MachineView, wire: _Wire) -> Severity:
    """Return "severe", or "warning" where the lower speed may not matter.

    A NIC loses nothing while its ports are slower than its link. Without the port's limits the slot may be the reason.
    The only GPU of a machine cannot be compared: laptops and small boards connect fewer lanes than both ends claim.
    """
    lone = wire.only_gpus and sum(each.kind == "gpu" for each in view.endpoints) == 1
    if lone or not wire.both_ends or (wire.device.kind == "nic" and _enough(view, wire.device)):
        return "warning"
    return "severe"


def _enough(view: MachineView, device: PciDevice) -> bool:
    slot = device.address.rpartition(".")[0]
    nics = [nic for nic in view.machine.nics if nic.address and nic.address.rpartition(".")[0] == slot]
    rates = [port.rate_bits_per_s for nic in nics for port in nic.ports]
    left = bytes_per_s(device.link.speed_gt_per_s, device.link.width)
    known = [rate for rate in rates if rate is not None]
    return bool(known) and left is not None and sum(known) / 8 <= left


def _evidence(view: MachineView, wire: _Wire) -> str:
    link = wire.device.link
    left, most = bytes_per_s(link.speed_gt_per_s, link.width), bytes_per_s(*wire.could)
    rates = f" = {gigabytes(left)} of {gigabytes(most)}" if left and most else ""
    port = f"the port above it {_most(wire.port)}" if wire.both_ends and wire.port else "what the slot has is not known"
    now = _link(link.speed_gt_per_s, link.width)
    return f"LnkSta {now}{rates}; {view.name(wire.device.address)} has {_most(wire.device)}, {port}"


def _most(device: PciDevice) -> str:
    return _link(device.link.max_speed_gt_per_s, device.link.max_width)


def _link(speed: float | None, width: int | None) -> str:
    return f"{'?' if speed is None else f'{speed:g}'} GT/s x{'?' if width is None else width}"


def _redirecting(view: MachineView) -> list[PciDevice]:
    """Return the ports with ACS between two cards, one of them with a GPU. An AMD card has an internal switch, which does not count."""
    below: dict[str | None, set[str]] = {}  # bridge -> cards; None: all of the machine
    ports: dict[str, PciDevice] = {}
    for endpoint in view.endpoints:
        for bridge in view.path_to(endpoint.address)[1:]:
            ports[bridge.address] = bridge
            below.setdefault(bridge.address, set()).add(_card(endpoint))
        below.setdefault(None, set()).add(_card(endpoint))
    gpus = {_card(endpoint) for endpoint in view.endpoints if endpoint.kind == "gpu"}
    on = [port for port in ports.values() if not port.virtual and _REDIRECTS & set(port.acs or ())]
    return [port for port in on if below[port.address] < (siblings := below.get(port.parent, set())) and gpus & siblings]


def _card(device: PciDevice) -> str:
    return device.address.rpartition(".")[0]


def acs_somewhere(view: MachineView) -> Iterator[Finding]:
    """CB2108: access control redirects requests at some ports, and the source does not name them."""
    ports, on = view.machine.system.acs_ports, view.machine.system.acs_on
    named = any(device.acs is not None for device in view.machine.pci)  # then CB2105 judges by the devices below each port
    if on and ports and not view.virtual_machine and not named:
        what = f"ACS redirects requests at {on} of {plural(ports, 'port')}; which of them is unknown"
        evidence = "ReqRedir+, CmpltRedir+ or UpstreamFwd+ in lines of ACSCtl"
        remedy = "save `sudo lspci -vvv` as a whole, and read it with `collbench doctor --from`: only ports of switches above GPUs matter"
        yield view.finding("CB2108", "note", what, evidence, remedy)


RULES = (downtrained, slot_limits, idle, acs, acs_somewhere, iommu, slower_above)
