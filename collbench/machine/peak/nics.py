"""What a node can send: the NICs that carry its traffic, each no faster than its slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collbench.machine.model import Machine, Nic, Port
from collbench.machine.peak.link import Link, unknown
from collbench.machine.peak.network import tcp_efficiency
from collbench.machine.peak.pcie import PcieTree, source_of

_DOWN = frozenset({"disabled", "polling", "sleep", "down"})
_OTHER_FABRIC = 0.5  # an Ethernet port below half the fastest one's rate is there for storage or management


@dataclass(frozen=True, slots=True)
class NicRate:
    """A slot with its NIC: the ports that are up in bits per second, the payload's part of that, and what the slot carries."""

    name: str
    address: str | None
    port_bits_per_s: tuple[float, ...]
    payload: float
    slot: Link

    @property
    def link(self) -> Link:
        """The slower of ports and slot."""
        rate = sum(self.port_bits_per_s) / 8 * self.payload
        nccl = None if self.slot.bytes_per_s is not None and self.slot.nccl_bytes_per_s is None else self.slot.nccl_bytes_per_s
        return Link(min(rate, self.slot.known), self.name, nccl_bytes_per_s=rate if nccl is None else min(rate, nccl))


@dataclass(frozen=True, slots=True)
class Egress:
    """All NICs together, one entry per slot, and what was doubted or left out on the way."""

    link: Link
    nics: tuple[NicRate, ...] = ()
    doubts: tuple[str, ...] = ()


def egress_of(machine: Machine, tree: PcieTree) -> Egress:
    """The sum over slots of min(ports, slot), one direction; unknown, with the reason, when any NIC that counts has no rate."""
    candidates = [nic for nic in machine.nics if not nic.virtual and any(_up(port) for port in nic.ports)]
    if not candidates:
        return Egress(unknown(_why_none(machine)))
    fabric, doubts = _fabric(candidates)
    cards = [nic.name for nic in machine.nics if nic.rdma_missing]
    if cards:
        doubts += (f"{', '.join(cards)}: RDMA cards without an RDMA device (a driver is not loaded): with them the rate may be another",)
    untold = [nic.name for nic in machine.nics if not nic.virtual and not nic.ports and not nic.rdma_missing]
    doubts += (f"not counted: {', '.join(untold)} (no source tells of their ports)",) if untold else ()
    silent = next((nic for nic in fabric if any(_up(port) and not _bits(port) for port in nic.ports)), None)
    if silent:
        why = machine.unknown.get(f"nics/{silent.key}/rate") or "its rate is in none of the sources"
        return Egress(unknown(f"NIC {silent.name}: {why}; give one with --nic"), (), doubts)
    slots = _by_slot(fabric, tree)
    return Egress(_together(slots, source_of(machine, f"nics/{fabric[0].key}/ports")), slots, doubts)


def _why_none(machine: Machine) -> str:
    if not machine.nics:
        return "none of the sources tells of a NIC; give them with --nic"
    if any(not nic.virtual and not nic.ports for nic in machine.nics):
        return "the NICs' rates are in none of the sources; give them with --nic"
    down = [nic.name for nic in machine.nics if not nic.virtual]
    return f"no port is up: {', '.join(down)}" if down else f"NIC {machine.nics[0].name} is {machine.nics[0].virtual}: no rate of its own"


def _up(port: Port) -> bool:
    return port.state in (None, "active") and (port.phys_state or "") not in _DOWN


def _bits(port: Port) -> float | None:
    rates = [rate for rate in (port.rate_bits_per_s, port.shaped_bits_per_s) if rate]
    return min(rates, default=None)


def _fabric(nics: Sequence[Nic]) -> tuple[list[Nic], tuple[str, ...]]:
    """InfiniBand if there is any, else RDMA over Ethernet, else one plain interface; and what was left out."""
    infiniband = [nic for nic in nics if any(port.link_layer == "infiniband" and _up(port) for port in nic.ports)]
    rdma = [nic for nic in nics if nic.rdma or nic.gdr]
    chosen = infiniband or _fastest(rdma) or _fastest(nics)[:1]
    left = [nic.name for nic in nics if nic not in chosen]
    why = "Ethernet beside InfiniBand" if infiniband else "slower, or without RDMA" if rdma else "TCP takes one interface"
    return chosen, (f"not counted: {', '.join(left)} ({why})",) if left else ()


def _fastest(nics: Sequence[Nic]) -> list[Nic]:
    """Those of the fabric by their rates, the fastest first; all when a rate is missing."""
    rates = {nic.key: sum(_bits(port) or 0.0 for port in nic.ports if _up(port)) for nic in nics}
    if not all(rates.values()):
        return list(nics)
    most = max(rates.values(), default=0.0)
    return sorted((nic for nic in nics if rates[nic.key] >= most * _OTHER_FABRIC), key=lambda nic: -rates[nic.key])


def _by_slot(nics: Iterable[Nic], tree: PcieTree) -> tuple[NicRate, ...]:
    """Functions of one card share their slot; virtual functions have none that is known."""
    cards: dict[str, list[Nic]] = {}
    for nic in nics:
        device = tree.devices.get(nic.address or "")
        alone = nic.address is None or device is None or device.virtual
        cards.setdefault(nic.address or nic.name if alone else str(nic.address).rpartition(".")[0], []).append(nic)
    return tuple(_slot(card, tree) for card in cards.values())


def _slot(card: Sequence[Nic], tree: PcieTree) -> NicRate:
    first = card[0]
    bits = tuple(rate for nic in card for port in nic.ports if _up(port) and (rate := _bits(port)))
    tcp = not any(nic.rdma or nic.gdr or any(port.link_layer == "infiniband" for port in nic.ports) for nic in card)
    payload = tcp_efficiency(first.ports[0].mtu_bytes or 1500, bool(first.ports[0].shaped_bits_per_s)) if tcp else 1.0
    return NicRate("+".join(nic.name for nic in card), first.address, bits, payload, tree.own(first.address))


def _together(slots: Sequence[NicRate], source: str) -> Link:
    links = [slot.link for slot in slots]
    wires = sum(sum(slot.port_bits_per_s) / 8 * slot.payload for slot in slots)
    total = sum(link.known for link in links)
    name = f"NIC {_counted(slots)}"
    if len(slots) == 1 and slots[0].payload < 1:
        name = f"NIC {slots[0].name} {_counted(slots).removeprefix('1×')}, TCP"
    if total < wires * 0.999:
        name += f" in slots of {' and '.join(sorted({f'{slot.slot.name}' for slot in slots if slot.slot.bytes_per_s}))}"
    return Link(total, name, source, sum(link.nccl_bytes_per_s or link.known for link in links))


def _counted(slots: Sequence[NicRate]) -> str:
    """ "4×100 Gb/s", "8×400 + 1×200 Gb/s": ports by their rates."""
    rates = Counter(rate for slot in slots for rate in slot.port_bits_per_s)
    return " + ".join(f"{count}×{rate / 1e9:g}" for rate, count in sorted(rates.items(), reverse=True)) + " Gb/s"
