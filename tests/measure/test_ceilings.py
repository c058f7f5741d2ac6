"""The ceiling of a case depends on the path of its bytes. The hosts are not available here, so the world is a test double."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from collbench.control.members import Member
from collbench.machine.interfaces import Interface
from collbench.machine.model import Machine, Nic, Port
from collbench.machine.peak.ceiling import HostRates, Rate
from collbench.measure.ceilings import Ceilings, _sharing
from collbench.operations.registry import operations
from tests.helpers import make_case
from tests.machine.machines import dgx

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
    """Return (ceiling, hard limit) of a case over both hosts, on a backend with ranks that meet over `path` inside a host."""
    known = SimpleNamespace(**{"ceiling": None, "oversubscription": 1.0, **request})
    world = FakeWorld(per_host)
    known_ceilings = Ceilings(cast(Any, known), cast(Any, world), [ETHERNET, ETHERNET], machines)
    backend = SimpleNamespace(name="mpi", local_path=path, own_ceiling=None, ranks=2 * per_host)
    one = operations()[operation]
    groups = [[rank, rank + per_host] for rank in range(per_host)] if one.pair else [list(range(2 * per_host))]
    return known_ceilings.of(one, make_case(operation=operation), cast(Any, backend), groups)


def test_mpi_on_hosts_with_infiniband_is_set_against_their_ports() -> None:
    ceiling, bound = of([node(), node()])
    assert (ceiling.kind, ceiling.model, ceiling.bytes_per_s) == ("network", "ring", 100e9)
    assert ceiling.limited_by == "NIC 2×400 Gb/s"
    assert ceiling.source.endswith("mpi uses these NICs")
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


def test_an_oversubscribed_fabric_is_reported() -> None:
    ceiling, bound = of([node(), node()], oversubscription=2.0)
    assert (ceiling.bytes_per_s, bound.bytes_per_s) == (50e9, 50e9)
    assert ceiling.limited_by == "NIC 2×400 Gb/s, fabric 2:1"


def test_a_given_ceiling_goes_before_all() -> None:
    ceiling, bound = of([node(), node()], ceiling=42.0)
    assert (ceiling.kind, ceiling.bytes_per_s, bound) == ("given", 42e9, None)


def of_gpus(operation: str, groups: list[list[int]], by_turns: bool = False, gpu_of: Sequence[int] = (), clique: str | None = None) -> Any:
    """(ceiling, hard bound) of ranks on two hosts with two GPUs each; `by_turns`: rank 1 is on the second host."""
    machine = replace(dgx(), gpus=tuple(replace(gpu, clique=clique) for gpu in dgx().gpus))
    first, second = (str(gpu.address) for gpu in machine.gpus[:2])
    world = FakeWorld(2)
    if by_turns:
        world.members = [replace(member, host=f"h{member.rank % 2}") for member in world.members]
    gpus = tuple((first, second)[i] for i in gpu_of or ((0, 0, 1, 1) if by_turns else (0, 1, 0, 1)))
    known = Ceilings(cast(Any, SimpleNamespace(ceiling=None, oversubscription=1.0)), cast(Any, world), [], [machine, machine])
    backend = SimpleNamespace(name="nccl", own_ceiling=None, ranks=4, gpus=gpus)
    return known.of(operations()[operation], make_case(operation=operation, device="cuda"), cast(Any, backend), groups)


def test_pairs_of_gpus_inside_their_hosts_are_not_set_against_the_network() -> None:
    across, _ = of_gpus("p2p_bandwidth", [[0, 2], [1, 3]])
    inside, bound = of_gpus("p2p_bandwidth", [[0, 2], [1, 3]], by_turns=True)
    assert across.limited_by == "PCIe Gen5 x16 of 2 GPUs shared by 2 pairs"
    assert (inside.limited_by, bound.bytes_per_s) == ("NVLink 18×25 GB/s", 450e9)
    mixed, bound = of_gpus("p2p_bandwidth", [[0, 2], [1, 2]], by_turns=True)
    assert (mixed.bytes_per_s, mixed.limited_by, bound) == (pytest.approx(63.02e9, rel=1e-3), "PCIe Gen5 x16", mixed)


@pytest.mark.parametrize(("operation", "rate"), [("allreduce", 450e9), ("sendrecv", 450e9), ("p2p_bandwidth", 450e9)])
def test_hosts_in_one_nvlink_domain_are_not_limited_by_their_nics(operation: str, rate: float) -> None:
    groups = [[0, 2], [1, 3]] if operation.startswith("p2p") else [[0, 1, 2, 3]]
    ceiling, _ = of_gpus(operation, groups, clique="rack-1/7")
    assert (ceiling.bytes_per_s, ceiling.limited_by.partition(" of")[0]) == (rate, "NVLink 18×25 GB/s")
    assert of_gpus(operation, groups)[0].bytes_per_s < rate


def test_ranks_that_share_a_gpu_have_no_link_between_them() -> None:
    shared, bound = of_gpus("allreduce", [[0, 1, 2, 3]], gpu_of=(0, 0, 0, 1))
    assert (shared.bytes_per_s, bound) == (None, None) and "share a GPU" in shared.limited_by


def exact(value: float) -> Rate:
    """A reference with equal rounds."""
    return Rate(value, value, value)


def inside(operation: str, path: str) -> Any:
    """The ceiling of ranks of one host that meet over `path`."""
    world = FakeWorld(2)
    world.hosts = ("h0",)
    known = Ceilings(cast(Any, SimpleNamespace(ceiling=None)), cast(Any, world))
    known.rates = HostRates({400: exact(9e9)}, {400: exact(3e9)}, stream_one=exact(2e9), stream_both=exact(1e9))
    backend = SimpleNamespace(name="gloo", local_path=path, own_ceiling=None, ranks=4)
    return known.of(operations()[operation], make_case(operation=operation), cast(Any, backend), [[0, 1], [2, 3]])[0]


STREAMS = {"broadcast": 2e9, "reduce": 2e9, "gather": 2e9, "scatter": 2e9, "p2p_bandwidth": 2e9, "p2p_bidirectional": 1e9}
ONE_SIDED = ("put_latency", "put_bandwidth", "get_latency", "get_bandwidth", "accumulate")
STREAMS |= dict.fromkeys(ONE_SIDED, 2e9)


@pytest.mark.parametrize("name", [name for name in operations() if name != "barrier"])
def test_loopback_is_used_both_ways_unless_there_is_a_root(name: str) -> None:
    assert inside(name, "loopback").bytes_per_s == STREAMS.get(name, 2e9 if name == "p2p_latency" else 1e9)


@pytest.mark.parametrize("name", [name for name in operations() if name != "barrier"])
def test_what_is_added_up_is_set_against_sums_and_all_else_against_copies(name: str) -> None:
    both = 2 / (1 / 9e9 + 1 / 3e9)  # each of two ranks adds a half; of a reduce the root copies the other half
    rates = {"reduce": both, "reducescatter": 3e9, "allreduce": both, "accumulate": 3e9}
    assert inside(name, "memory").bytes_per_s == pytest.approx(rates.get(name, 9e9))


def test_the_same_question_is_reckoned_once() -> None:
    known = Ceilings(cast(Any, SimpleNamespace(ceiling=None, oversubscription=1.0)), cast(Any, FakeWorld()), [ETHERNET] * 2, [])
    backend = cast(Any, SimpleNamespace(name="mpi", local_path="memory", own_ceiling=None, ranks=2))
    asked = [known.of(operations()[name], make_case(operation=name, count=count), backend, [[0, 1]])
             for name, count in (("allreduce", 1), ("allreduce", 99), ("broadcast", 1))]  # fmt: skip
    assert asked[0] is asked[1] is not asked[2]
