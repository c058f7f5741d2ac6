"""What an interface carries of TCP, by hand-computed numbers of PEAK.md, and the ceilings between hosts that follow."""

import pytest
from msgspec.structs import replace

from collbench.machine.interfaces import Interface
from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.links import Link, tcp_efficiency, tcp_link, unknown
from collbench.machine.peak.node import Job, Node

TEN = Interface("eth0", 1500, 10e9, None, None)
SLOW = Interface("eth1", 1500, 1e9, None, None)
SHAPED = Interface("veth0", 1500, None, "veth or the like", 1e9)
VIRTUAL = Interface("eth0", 1500, None, "virtio", None)
UNKNOWN = Interface("ib0", 1500, None, None, None)


def job(*interfaces: Interface, ranks: int = 1, **assumed: float) -> Job:
    """Hosts with ranks that share memory, so that only the interface limits."""
    return Job(tuple(Node(ranks, unknown("memory"), tcp_link(each), host=f"h{i}") for i, each in enumerate(interfaces)), **assumed)


@pytest.mark.parametrize(("mtu", "shaped", "fraction", "percent"), [
    (1500, False, 1448 / 1538, 94.1), (1500, True, 1448 / 1514, 95.6), (4096, False, 4044 / 4134, 97.8), (9000, False, 8948 / 9038, 99.0),
])  # fmt: skip
def test_tcp_efficiency(mtu: int, shaped: bool, fraction: float, percent: float) -> None:
    assert tcp_efficiency(mtu, shaped) == pytest.approx(fraction)
    assert round(100 * tcp_efficiency(mtu, shaped), 1) == percent


@pytest.mark.parametrize(("interface", "rate", "name", "source"), [
    (TEN, 1.25e9 * 1448 / 1538, "NIC eth0 10 Gb/s, TCP", "/sys/class/net/eth0/speed"),
    (Interface("eth2", 9000, 10e9, None, None), 1.25e9 * 8948 / 9038, "NIC eth2 10 Gb/s, TCP", "/sys/class/net/eth2/speed"),
    (SHAPED, 125e6 * 1448 / 1514, "NIC veth0 1 Gb/s, TCP", "tc qdisc on veth0"),  # frames, without the wire's extras
])  # fmt: skip
def test_an_interface_carries_its_speed_less_the_headers(interface: Interface, rate: float, name: str, source: str) -> None:
    assert replace(tcp_link(interface), part=None) == Link(pytest.approx(rate), name, source)


@pytest.mark.parametrize(
    ("interface", "why"), [(VIRTUAL, "virtio has no speed of its own"), (UNKNOWN, "the kernel does not report its speed")]
)
def test_no_rate_that_means_anything_is_no_ceiling(interface: Interface, why: str) -> None:
    found = ceilings("allreduce", job(TEN, interface))
    sentence = f"interface {interface.name}: {why}; give one with --ceiling GB/s"
    assert found.expected and (found.expected.kind, found.expected.bytes_per_s) == ("none", None)
    assert found.expected.limited_by.endswith(f": h1: {sentence}")


@pytest.mark.parametrize(("operation", "found", "rate", "by"), [
    ("allreduce", job(TEN, SLOW, TEN), 125e6 * 1448 / 1538, "NIC eth1 1 Gb/s, TCP of h1"),
    ("p2p", job(TEN, TEN, ranks=2, pairs=2), 1.25e9 * 1448 / 1538 / 2, "NIC eth0 10 Gb/s, TCP shared by 2 pairs"),
    ("broadcast", job(TEN, TEN, oversubscription=2.0), 1.25e9 * 1448 / 1538 / 2, "NIC eth0 10 Gb/s, TCP, fabric 2:1"),
])  # fmt: skip
def test_the_slowest_share_of_a_link_limits_and_is_named(operation: str, found: Job, rate: float, by: str) -> None:
    both = ceilings(operation, found)
    limit = both.expected
    assert (both.ring is None) == (operation == "p2p")
    assert limit and limit.bytes_per_s == pytest.approx(rate)
    assert (limit.model, limit.limited_by) == ("bound" if operation == "p2p" else "ring", by)
