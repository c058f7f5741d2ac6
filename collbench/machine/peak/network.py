"""What a host can send over TCP: its interface's rate, less what the headers take."""

from __future__ import annotations

from collbench.machine.interfaces import Interface
from collbench.machine.peak.link import Link, unknown

_HEADERS = 52  # IPv4 20, TCP 20, timestamps 12: what a packet of MTU bytes does not carry
_FRAME = 14  # Ethernet header, which a token bucket counts
_WIRE = 38  # header, checksum, preamble and gap, which the wire's rate counts


def tcp_efficiency(mtu: int, shaped: bool) -> float:
    """Payload per byte that a NIC (or a token bucket) counts: 94.1 % at MTU 1500 on the wire, 95.6 % of a shape."""
    return (mtu - _HEADERS) / (mtu + (_FRAME if shaped else _WIRE))


def tcp_link(interface: Interface) -> Link:
    """What an interface can carry of TCP's payload; unknown, with the reason, for virtual ones that no shaper gives a rate."""
    bits = interface.shaped_bits_per_s or interface.speed_bits_per_s
    if not bits:
        why = f"{interface.virtual} has no speed of its own" if interface.virtual else "the kernel does not tell its speed"
        return unknown(f"interface {interface.name}: {why}; give one with --ceiling GB/s")
    shaped = bool(interface.shaped_bits_per_s)
    source = f"tc qdisc on {interface.name}" if shaped else f"/sys/class/net/{interface.name}/speed"
    return Link(bits / 8 * tcp_efficiency(interface.mtu, shaped), f"NIC {interface.name} {bits / 1e9:g} Gb/s, TCP", source)
