"""RDMA devices that are not ports of the network of their own: second functions of one port, and ports of the NVLink switches."""

from __future__ import annotations

import re
from itertools import combinations

import msgspec

from collbench.machine.model import Machine, Nic
from collbench.machine.readers.pci import MELLANOX

# A card with several PCIe interfaces ("socket direct", DGX Spark) has one function for each port at each interface. Their ports are one
# port of the network. The Mellanox driver reports one system image GUID for all functions of a card; others report one for a host.

_NAME = re.compile(r"^(?:roce|ib|en)(?:P(\d{1,5}))?p(\d{1,5})s(\d{1,5})(?:f(\d{1,3}))?")
_MELLANOX_MODEL = re.compile(r"^(ConnectX|Connect-IB|BlueField|MT\d)")
_MOST_INTERFACES = 2  # of a card; more devices with one GUID are those of a driver, or of a file, with one for the whole host
_ONE_PORT_TWICE = re.compile(r"\bGB10\b")


class SharedPort(msgspec.Struct, frozen=True):
    """Functions of one card, by name in the machine's order, that are one port of the network; if not `certain`, perhaps two ports."""

    names: tuple[str, ...]
    certain: bool


class _PciFunction(msgspec.Struct, frozen=True):
    """The slot (domain, bus, device) and the function number of a PCI function."""

    domain: str
    bus: str
    number: str


def physical_nics(machine: Machine) -> tuple[Nic, ...]:
    """Return the NICs without virtual interfaces; of several functions that are one port the first."""
    repeated = {name for port in shared_ports(machine) if port.certain for name in port.names[1:]}
    return tuple(nic for nic in machine.nics if nic.virtual is None and nic.name not in repeated)


def shared_ports(machine: Machine) -> tuple[SharedPort, ...]:
    """Return the groups of RDMA devices that are one port, each device once, then the pairs that may be one."""
    virtual = {device.address for device in machine.pci if device.virtual}
    nics = [nic for nic in machine.nics if nic.rdma and nic.virtual is None and nic.address not in virtual]
    cards: dict[str | None, list[Nic]] = {}
    twice = any(_ONE_PORT_TWICE.search(gpu.model or "") or gpu.architecture == "sm_121" for gpu in machine.gpus)
    for nic in nics:
        cards.setdefault(None if twice else nic.card_guid, []).append(nic)
    groups: list[list[str]] = []
    doubtful: list[SharedPort] = []
    for a, b in (pair for card in cards.values() for pair in combinations(card, 2)):
        same = _differ_in_domain(a, b) if twice else _are_one_port(machine, a, b)
        group = next((group for group in groups if a.name in group), None)
        if same and group is None:
            groups.append([a.name, b.name])
        elif same and group is not None and b.name not in group:
            group.append(b.name)
        elif same is None:
            doubtful.append(SharedPort((a.name, b.name), certain=False))
    return (*(SharedPort(tuple(group), certain=len(group) <= _MOST_INTERFACES) for group in groups), *doubtful)


def _are_one_port(machine: Machine, a: Nic, b: Nic) -> bool | None:
    """Return whether two devices with the same GUID of their card, or both without one, are one port; None if the sources leave it open."""
    if a.card_guid is None:
        by_name = _differ_in_domain(a, b) and not machine.gpus and not (a.address and b.address)
        return None if by_name else False
    lids, guids = ([{getattr(port, name) for port in nic.ports} - {None, 0, ""} for nic in (a, b)] for name in ("lid", "guid"))
    if not _is_mellanox(machine, a) or not _is_mellanox(machine, b):
        return False
    if (lids[0] and lids[0] == lids[1]) or guids[0] & guids[1]:
        return True
    first = _function(a)
    second = _function(b)
    if all(lids) or first is None or second is None:
        return False if all(lids) else None  # a LID each
    return first.number == second.number and (first.domain, first.bus) != (second.domain, second.bus)


def _differ_in_domain(a: Nic, b: Nic) -> bool:
    """Return whether two devices have the same place on the buses of different PCI domains."""
    first = _function(a)
    second = _function(b)
    return first is not None and second is not None and first != second and (first.bus, first.number) == (second.bus, second.number)


def _function(nic: Nic) -> _PciFunction | None:
    """Return the place of a device by its PCI address, else by its name: "rocep1s0f0", "roceP2p1s0f0"."""
    if nic.address:
        domain, bus, rest = nic.address.split(":")
        return _PciFunction(domain, f"{bus}:{rest.partition('.')[0]}", rest.partition(".")[2])
    match = _NAME.match(nic.name)
    return _PciFunction(match[1] or "0", f"{match[2]}:{match[3]}", match[4] or "0") if match else None


def _is_mellanox(machine: Machine, nic: Nic) -> bool:
    vendor = next((device.vendor_id for device in machine.pci if device.address == nic.address), None)
    return vendor == MELLANOX if vendor is not None else bool(_MELLANOX_MODEL.match(nic.model or "")) or nic.name.startswith("mlx")


# HGX B200 and B300 have ConnectX-7 functions through which the host manages the NVLink switches. They show as InfiniBand at 100 Gb/s, with
# the subnet manager of the NVLink fabric on the host itself.

_BOARDS = re.compile(r"\bB[23]00\b")
_BRIDGE_MODEL = "ConnectX-7"
_NEWER_MODELS = re.compile(r"^(ConnectX-[89]|ConnectX-\d\d|MT4131)")
_BRIDGE_BITS_PER_S = 100e9


def nvlink_management(machine: Machine) -> tuple[str, ...]:
    """Return the RDMA devices to the NVLink switches of an HGX B200 or B300; without GPUs only with cards of a later generation."""
    host_lids = {port.lid for nic in machine.nics for port in nic.ports if port.lid}
    bridges = tuple(nic.name for nic in machine.nics if nic.model == _BRIDGE_MODEL and nic.ports and _is_bridge(nic, host_lids))
    others = [nic for nic in machine.nics if nic.rdma and nic.virtual is None and nic.name not in bridges]
    newer = any(_NEWER_MODELS.match(nic.model or "") for nic in others)
    on_board = any(_BOARDS.search(gpu.model or "") or gpu.architecture in ("sm_100", "sm_103") for gpu in machine.gpus)
    return bridges if (others and on_board) or (newer and not machine.gpus) else ()


def _is_bridge(nic: Nic, host_lids: set[int]) -> bool:
    """Return whether all ports are InfiniBand at 100 Gb/s with the subnet manager at one of the host's own LIDs."""
    bridge = ("infiniband", _BRIDGE_BITS_PER_S)
    return all((port.link_layer, port.rate_bits_per_s) == bridge and port.sm_lid in host_lids for port in nic.ports)
