"""Which ceiling a cell gets: by the way its bytes take, on hosts that nobody has here (so the world is a fake one)."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from collbench.operations.registry import operations
from collbench.runner.ceilings import Ceilings, _sharing
from collbench.topology.interfaces import Interface
from collbench.topology.model import Machine, Nic, Port
from collbench.world.world import Member

ETHERNET = Interface("eth0", 1500, 10e9, None, None)
TCP = 1.25e9 * 1448 / 1538


@dataclass
class FakeWorld:
    """Two hosts with `per_host` ranks each."""

    per_host: int = 1
    oversubscribed: str | None = None
    members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members = [Member(rank, f"h{rank // self.per_host}", rank % self.per_host, 1, (0,)) for rank in range(2 * self.per_host)]
        self.hosts, self.size = ("h0", "h1"), len(self.members)

    def on_host(self, host: str) -> list[Member]:
        return [member for member in self.members if member.host == host]


def node(state: str = "active", virtual: str | None = None, rate: float | None = 400e9) -> Machine:
    port = Port(rate_bits_per_s=rate, state=state, link_layer="infiniband")
    return Machine("h", ("made",), nics=tuple(Nic(f"mlx5_{i}", rdma=True, ports=(port,), virtual=virtual) for i in range(2)))


def of(machines: list[Machine], path: str = "memory", operation: str = "allreduce", per_host: int = 1, **request: Any) -> Any:
    """(ceiling, hard bound) of a cell over both hosts, on a backend whose ranks meet over `path` inside a host."""
    known = SimpleNamespace(**{"ceiling": None, "oversubscription": 1.0, **request})
    world = FakeWorld(per_host)
    known_ceilings = Ceilings(cast(Any, known), cast(Any, world), [ETHERNET, ETHERNET], machines)
    backend = SimpleNamespace(name="mpi", local_path=path, own_ceiling=None, ranks=2 * per_host)
    one = operations()[operation]
    groups = [[rank, rank + per_host] for rank in range(per_host)] if one.pair else [list(range(2 * per_host))]
    return known_ceilings.of(one, cast(Any, SimpleNamespace(device="cpu")), cast(Any, backend), groups)


def test_mpi_on_hosts_with_infiniband_is_set_against_their_ports() -> None:
    ceiling, bound = of([node(), node()])
    assert (ceiling.kind, ceiling.model, ceiling.bytes_per_s) == ("network", "ring", 100e9)
    assert ceiling.limited_by == "NIC 2×400 Gb/s"
    assert ceiling.source.endswith("taken for granted: mpi uses these NICs")
    assert bound.bytes_per_s == 100e9


@pytest.mark.parametrize("other", [node(state="down", rate=None), node(virtual="software RDMA (rxe) over eth0"), Machine("h", ("made",))])
def test_one_host_without_a_port_that_is_up_leaves_tcp(other: Machine) -> None:
    ceiling, _ = of([node(), other])
    assert ceiling.limited_by == "NIC eth0 10 Gb/s, TCP"
    assert ceiling.bytes_per_s == pytest.approx(TCP)


def test_what_goes_over_tcp_anyway_is_set_against_its_interface() -> None:
    ceiling, _ = of([node(), node()], path="loopback")
    assert ceiling.limited_by == "NIC eth0 10 Gb/s, TCP"


def test_several_ranks_of_a_host_share_its_ports_and_an_allreduce_may_pass_the_ring() -> None:
    ceiling, bound = of([node(), node()], per_host=8)
    assert (ceiling.bytes_per_s, bound.bytes_per_s) == (100e9, pytest.approx(187.5e9))


def test_pairs_at_once_share_the_ports() -> None:
    ceiling, bound = of([node(), node()], operation="p2p_bandwidth", per_host=4)
    assert ceiling == bound
    assert (ceiling.model, ceiling.bytes_per_s, ceiling.limited_by) == ("bound", 25e9, "NIC 2×400 Gb/s shared by 4 pairs")


PAIRS = {"p2p_latency": 50e9, "p2p_bandwidth": 25e9, "p2p_bidirectional": 25e9}


@pytest.mark.parametrize(("operation", "rate"), PAIRS.items())
def test_what_shares_a_port_is_counted_in_one_direction(operation: str, rate: float) -> None:
    """Four pairs between two hosts; ping-pongs may take turns in sending and answering."""
    assert of([node(), node()], operation=operation, per_host=4)[0].bytes_per_s == rate


@pytest.mark.parametrize(("operation", "share"), [("p2p_bandwidth", 1), ("p2p_bidirectional", 2), ("p2p_latency", 1)])
def test_only_the_busiest_hosts_pairs_share(operation: str, share: int) -> None:
    """A ring of three hosts: each sends to the next, and hears from the one before."""
    assert _sharing(operations()[operation], [("h0", "h1"), ("h1", "h2"), ("h2", "h0")]) == share


def test_an_oversubscribed_fabric_is_told() -> None:
    ceiling, bound = of([node(), node()], oversubscription=2.0)
    assert (ceiling.bytes_per_s, bound.bytes_per_s) == (50e9, 50e9)
    assert ceiling.limited_by == "NIC 2×400 Gb/s, fabric 2:1"


def test_a_given_ceiling_goes_before_all() -> None:
    ceiling, bound = of([node(), node()], ceiling=42.0)
    assert (ceiling.kind, ceiling.bytes_per_s, bound) == ("given", 42e9, None)
