"""Ceilings between hosts: the slowest host's interface less what TCP's headers take, by hand-computed numbers of PEAK.md."""

import pytest

from collbench.peak.ceiling import Ceiling, given
from collbench.peak.network import Shape, hard_bound, network_ceiling, tcp_efficiency
from collbench.topology.interfaces import Interface

TEN = Interface("eth0", 1500, 10e9, None, None)
SLOW = Interface("eth1", 1500, 1e9, None, None)
SHAPED = Interface("veth0", 1500, None, "veth or the like", 1e9)
VIRTUAL = Interface("eth0", 1500, None, "virtio", None)
UNKNOWN = Interface("ib0", 1500, None, None, None)
TWO = Shape(2, 2, 1)


@pytest.mark.parametrize(
    ("mtu", "shaped", "fraction", "percent"),
    [(1500, False, 1448 / 1538, 94.1), (1500, True, 1448 / 1514, 95.6), (4096, False, 4044 / 4134, 97.8), (9000, False, 8948 / 9038, 99.0)],
)
def test_tcp_efficiency(mtu, shaped, fraction, percent):
    assert tcp_efficiency(mtu, shaped) == pytest.approx(fraction)
    assert round(100 * tcp_efficiency(mtu, shaped), 1) == percent


def test_a_nic_carries_its_speed_less_the_headers():
    found = network_ceiling([TEN, TEN], TWO)
    assert found.bytes_per_s == pytest.approx(1.25e9 * 1448 / 1538)
    assert (found.kind, found.model, found.limited_by) == ("network", "ring", "NIC eth0 10 Gb/s, TCP")
    assert found.source == "/sys/class/net/eth0/speed"


def test_the_slowest_host_limits():
    assert network_ceiling([TEN, SLOW, TEN], TWO).limited_by == "NIC eth1 1 Gb/s, TCP"


def test_a_shape_counts_frames_without_the_wires_extras():
    found = network_ceiling([SHAPED, SHAPED], TWO)
    assert found.bytes_per_s == pytest.approx(125e6 * 1448 / 1514)
    assert found.source == "tc qdisc on veth0"


def test_a_larger_mtu_can_make_the_same_speed_faster():
    jumbo = Interface("eth2", 9000, 10e9, None, None)
    assert network_ceiling([jumbo, TEN], TWO).limited_by.startswith("NIC eth0")


@pytest.mark.parametrize(
    ("interface", "why"), [(VIRTUAL, "virtio has no speed of its own"), (UNKNOWN, "the kernel does not tell its speed")]
)
def test_no_rate_that_means_anything_is_no_ceiling(interface, why):
    found = network_ceiling([TEN, interface], TWO)
    assert (found.kind, found.bytes_per_s) == ("none", None)
    assert found.limited_by == f"interface {interface.name}: {why}; give one with --ceiling GB/s"
    assert hard_bound(found, "allreduce", TWO) is None


def test_pairs_at_once_share_the_nic():
    found = network_ceiling([TEN, TEN], Shape(4, 2, 2, pairs=2))
    assert found.bytes_per_s == pytest.approx(1.25e9 * 1448 / 1538 / 2)
    assert found.limited_by.endswith("TCP, shared by 2 pairs")


@pytest.mark.parametrize(("hosts", "per_host", "factor"), [(2, 8, 1.875), (3, 8, 1.4375), (4, 8, 1.2917), (12, 8, 1.0795), (2, 1, 1.0)])
def test_the_hard_bound_of_an_allreduce(hosts, per_host, factor):
    """(N-1)/(g(n-1)): 1.875 at 2×8, 1.44 at 3×8, 1.29 at 4×8, 1.08 at 12×8."""
    bound = hard_bound(Ceiling("network", 50e9, "NIC"), "allreduce", Shape(hosts * per_host, hosts, per_host))
    assert bound.bytes_per_s == pytest.approx(50e9 * factor, rel=1e-4)
    assert (bound.model, bound.limited_by) == ("bound", "NIC")


def test_what_only_moves_is_bound_by_the_nic_itself():
    assert hard_bound(Ceiling("network", 50e9, "NIC"), "broadcast", Shape(16, 2, 8)).bytes_per_s == 50e9


def test_references_are_no_bounds():
    assert hard_bound(Ceiling("measured", 50e9, "memory copy"), "allreduce", Shape(2, 1, 2)) is None
    assert hard_bound(given(50), "allreduce", TWO) is None
