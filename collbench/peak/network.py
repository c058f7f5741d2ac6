"""Ceilings between hosts for TCP: the slowest host's interface, less what the headers take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collbench.peak.ceiling import Ceiling, nothing
from collbench.topology.interfaces import Interface

_HEADERS = 52  # IPv4 20, TCP 20, timestamps 12: what a packet of MTU bytes does not carry
_FRAME = 14  # Ethernet header, which a token bucket counts
_WIRE = 38  # header, checksum, preamble and gap, which the wire's rate counts


@dataclass(frozen=True)
class Shape:
    """How a cell lies on the hosts: ranks n, hosts, ranks per host, and for pairs how many cross a host's NIC at once."""

    n: int
    hosts: int
    per_host: int
    pairs: int = 0


def tcp_efficiency(mtu: int, shaped: bool) -> float:
    """Payload per byte that a NIC (or a token bucket) counts: 94.1 % at MTU 1500 on the wire, 95.6 % of a shape."""
    return (mtu - _HEADERS) / (mtu + (_FRAME if shaped else _WIRE))


def network_ceiling(interfaces: Sequence[Interface], shape: Shape) -> Ceiling:
    """The ring reference: what the slowest host's interface can carry (pairs at once share it); none for virtual ones."""
    slowest = min(interfaces, key=_payload)
    rate = _payload(slowest)
    if rate == 0:
        why = f"{slowest.virtual} has no speed of its own" if slowest.virtual else "the kernel does not tell its speed"
        return nothing(f"interface {slowest.name}: {why}; give one with --ceiling GB/s")
    bits = slowest.shaped_bits_per_s or slowest.speed_bits_per_s or 0.0
    source = f"tc qdisc on {slowest.name}" if slowest.shaped_bits_per_s else f"/sys/class/net/{slowest.name}/speed"
    shared = f", shared by {shape.pairs} pairs" if shape.pairs > 1 else ""
    return Ceiling("network", rate / max(1, shape.pairs), f"NIC {slowest.name} {bits / 1e9:g} Gb/s, TCP{shared}", source=source)


def hard_bound(reference: Ceiling, operation: str, shape: Shape) -> Ceiling | None:
    """What no algorithm can pass; differs from the ring reference where several ranks share a host's NIC."""
    if reference.kind != "network" or reference.bytes_per_s is None:
        return None
    factor = (shape.n - 1) / (shape.per_host * (shape.hosts - 1)) if operation == "allreduce" and shape.hosts > 1 else 1.0
    return Ceiling("network", reference.bytes_per_s * factor, reference.limited_by, "bound", reference.source)


def _payload(interface: Interface) -> float:
    """Payload bytes per second; 0 when the interface has no rate that means anything."""
    if interface.shaped_bits_per_s:
        return interface.shaped_bits_per_s / 8 * tcp_efficiency(interface.mtu, shaped=True)
    return (interface.speed_bits_per_s or 0.0) / 8 * tcp_efficiency(interface.mtu, shaped=False)
