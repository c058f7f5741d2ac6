"""Which part of a machine is drawn below which: NUMA node, then PCIe switches, then GPUs and NICs. One arrangement for text and picture."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from collbench.machine.distance import Distances
from collbench.machine.model import Gpu, Machine, Nic, NumaNode, PciDevice
from collbench.report.probe_words import gigatransfers_in_all

Part = Gpu | Nic


@dataclass(frozen=True, slots=True)
class Switch:
    """A bridge that joins several parts, or is slower than what lies below it, and what is below."""

    device: PciDevice
    below: tuple[Switch | Part, ...]


@dataclass(frozen=True, slots=True)
class Domain:
    """A NUMA node with its parts; None for parts whose node is unknown."""

    node: NumaNode | None
    below: tuple[Switch | Part, ...]

    @property
    def parts(self) -> list[Part]:
        """All its GPUs and NICs, in the order of drawing."""
        return _parts(self.below)


def arrange(machine: Machine, distances: Distances) -> list[Domain]:
    """The NUMA nodes in their order, then the place of parts whose node is unknown, where there are any. Virtual NICs are left out."""
    parts: list[Part] = [*machine.gpus, *(nic for nic in machine.nics if nic.virtual is None)]
    by_node: defaultdict[int | None, list[Part]] = defaultdict(list)
    known = {node.id: node for node in machine.numa_nodes}
    for part in parts:
        by_node[distances.numa_of(part.key)].append(part)
    nodes = [
        *machine.numa_nodes,
        *(NumaNode(number) for number in sorted(number for number in by_node if number is not None) if number not in known),
    ]
    domains = [Domain(node, _branches(by_node.get(node.id, []), distances)) for node in nodes]
    if by_node.get(None) or not domains:
        domains.append(Domain(None, _branches(by_node.get(None, []), distances)))
    return domains


def first_parts(machine: Machine, most: int) -> Machine:
    """The machine with its real GPUs and NICs alone, at most `most` of them: what a picture has room for."""
    gpus = machine.gpus[:most]
    nics = tuple(nic for nic in machine.nics if nic.virtual is None)
    return replace(machine, gpus=gpus, nics=nics[: most - len(gpus)])


def _branches(parts: list[Part], distances: Distances) -> tuple[Switch | Part, ...]:
    return _below([(part, tuple(reversed(distances.bridges(part.address))) if part.address else ()) for part in parts], 0, distances)


def _below(parts: list[tuple[Part, tuple[PciDevice, ...]]], depth: int, distances: Distances) -> tuple[Switch | Part, ...]:
    """What hangs below a bridge (or the host): the parts, and for each further bridge what is below it."""
    groups: dict[str, list[tuple[Part, tuple[PciDevice, ...]]]] = {}
    for part, bridges in parts:
        groups.setdefault(bridges[depth].address if depth < len(bridges) else f" {part.key}", []).append((part, bridges))
    found: list[Switch | Part] = []
    for group in groups.values():
        part, bridges = group[0]
        found += _joined(bridges[depth], _below(group, depth + 1, distances), distances) if depth < len(bridges) else [part]
    return tuple(found)


def _joined(device: PciDevice, below: tuple[Switch | Part, ...], distances: Distances) -> tuple[Switch | Part, ...]:
    """A bridge with one device below it is left out (a card's functions are one), unless its own link up is slower than that device's."""
    devices = [each.device if isinstance(each, Switch) else distances.device(each.address) for each in below]
    slots = {each.address.rpartition(".")[0] if each else None for each in devices}
    above, own = gigatransfers_in_all(device.link), gigatransfers_in_all(devices[0].link) if devices[0] else None
    slower = device.parent is not None and above is not None and own is not None and above < own
    return (Switch(device, below),) if slower or len(slots) > 1 else below


def _parts(below: tuple[Switch | Part, ...]) -> list[Part]:
    found: list[Part] = []
    for each in below:
        found += _parts(each.below) if isinstance(each, Switch) else [each]
    return found
