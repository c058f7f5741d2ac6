"""The expected bandwidth and the hard limit of cases: of one group, of groups at the same time, and on GPUs."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.control.members import Member
from collbench.machine.interfaces import Interface
from collbench.machine.model import Machine, Nic, Port
from collbench.machine.peak.ceiling import LEAST_BYTES, HostPart, Rate
from collbench.machine.peak.node import node_of
from collbench.measuring.ceilings import Ceilings, _sharing
from collbench.measuring.link_ceilings import link_between
from collbench.operations.case import parse_split
from collbench.operations.registry import operations
from collbench.operations.traffic import Traffic
from tests.helpers import make_case
from tests.machine.machines import dgx
from tests.peak.made import GEN3, gpus, infiniband, switched, wired

ETHERNET = Interface("eth0", 1500, 10e9, None, None)
TCP = 1.25e9 * 1448 / 1538


@dataclass
class FakeWorld:
    """Two hosts with `per_host` ranks each."""

    per_host: int = 1
    oversubscribed: str | None = None
    members: list[Member] = field(default_factory=list)

    def __post_init__(self):
        self.members = [Member(rank, f"h{rank // self.per_host}", rank % self.per_host, 1, (0,)) for rank in range(2 * self.per_host)]
        self.hosts, self.size = ("h0", "h1"), len(self.members)

    def on_host(self, host):
        return [member for member in self.members if member.host == host]


def node(state="active", virtual=None, rate=400e9):
    port = Port(rate_bits_per_s=rate, state=state, link_layer="infiniband")
    return Machine("h", ("made",), nics=tuple(Nic(f"mlx5_{i}", rdma=True, ports=(port,), virtual=virtual) for i in range(2)))


def of(machines, path="memory", operation="allreduce", per_host=1, **request):
    """Return (ceiling, hard limit) of a case over both hosts, on a backend with ranks that meet over `path` inside a host."""
    known = SimpleNamespace(**{"ceiling": None, "oversubscription": 1.0, **request})
    world = FakeWorld(per_host)
    known_ceilings = Ceilings(known, world, [ETHERNET, ETHERNET], machines)
    backend = SimpleNamespace(name="mpi", local_path=path, own_ceiling=None, ranks=2 * per_host)
    one = operations()[operation]
    groups = [[rank, rank + per_host] for rank in range(per_host)] if one.pair else [list(range(2 * per_host))]
    return known_ceilings.of(one, make_case(operation=operation), backend, groups)


def test_mpi_on_hosts_with_infiniband_is_set_against_their_ports():
    ceiling, bound = of([node(), node()])
    assert (ceiling.kind, ceiling.model, ceiling.bytes_per_s) == ("network", "ring", 100e9)
    assert ceiling.limited_by == "NIC 2×400 Gb/s"
    assert ceiling.source.endswith("mpi uses these NICs")
    assert bound.bytes_per_s == 100e9


@pytest.mark.parametrize("other", [node(state="down", rate=None), node(virtual="software RDMA (rxe) over eth0"), Machine("h", ("made",))])
def test_one_host_without_a_port_that_is_up_leaves_tcp(other):
    ceiling, _ = of([node(), other])
    assert ceiling.limited_by == "NIC eth0 10 Gb/s, TCP"
    assert ceiling.bytes_per_s == pytest.approx(TCP)


def test_what_goes_over_tcp_anyway_is_set_against_its_interface():
    ceiling, _ = of([node(), node()], path="loopback")
    assert ceiling.limited_by == "NIC eth0 10 Gb/s, TCP"


def test_several_ranks_of_a_host_share_its_ports_and_an_allreduce_may_pass_the_ring():
    ceiling, bound = of([node(), node()], per_host=8)
    assert (ceiling.bytes_per_s, bound.bytes_per_s) == (100e9, pytest.approx(187.5e9))


def test_pairs_at_once_share_the_ports():
    ceiling, bound = of([node(), node()], operation="p2p_bandwidth", per_host=4)
    assert ceiling == bound
    assert (ceiling.model, ceiling.bytes_per_s, ceiling.limited_by) == ("bound", 25e9, "NIC 2×400 Gb/s shared by 4 pairs")


PAIRS = {"p2p_latency": 50e9, "p2p_bandwidth": 25e9, "p2p_bidirectional": 25e9}


@pytest.mark.parametrize(("operation", "rate"), PAIRS.items())
def test_what_shares_a_port_is_counted_in_one_direction(operation, rate):
    """Four pairs between two hosts; ping-pongs may take turns in sending and answering."""
    assert of([node(), node()], operation=operation, per_host=4)[0].bytes_per_s == rate


@pytest.mark.parametrize(("operation", "share"), [("p2p_bandwidth", 1), ("p2p_bidirectional", 2), ("p2p_latency", 1)])
def test_only_the_busiest_hosts_pairs_share(operation, share):
    """A ring of three hosts: each sends to the next, and hears from the one before."""
    assert _sharing(operations()[operation], [("h0", "h1"), ("h1", "h2"), ("h2", "h0")]) == share


def test_an_oversubscribed_fabric_is_reported():
    ceiling, bound = of([node(), node()], oversubscription=2.0)
    assert (ceiling.bytes_per_s, bound.bytes_per_s) == (50e9, 50e9)
    assert ceiling.limited_by == "NIC 2×400 Gb/s, fabric 2:1"


def test_a_given_ceiling_goes_before_all():
    ceiling, bound = of([node(), node()], ceiling=42.0)
    assert (ceiling.kind, ceiling.bytes_per_s, bound) == ("given", 42e9, None)


def of_gpus(operation, groups, by_turns=False, gpu_of=(), clique=None):
    """(ceiling, hard bound) of ranks on two hosts with two GPUs each; `by_turns`: rank 1 is on the second host."""
    machine = replace(dgx(), gpus=tuple(replace(gpu, clique=clique) for gpu in dgx().gpus))
    first, second = (str(gpu.address) for gpu in machine.gpus[:2])
    world = FakeWorld(2)
    if by_turns:
        world.members = [replace(member, host=f"h{member.rank % 2}") for member in world.members]
    gpus = tuple((first, second)[i] for i in gpu_of or ((0, 0, 1, 1) if by_turns else (0, 1, 0, 1)))
    known = Ceilings(SimpleNamespace(ceiling=None, oversubscription=1.0), world, [], [machine, machine])
    backend = SimpleNamespace(name="nccl", own_ceiling=None, ranks=4, gpus=gpus)
    return known.of(operations()[operation], make_case(operation=operation, device="cuda"), backend, groups)


def test_pairs_of_gpus_inside_their_hosts_are_not_set_against_the_network():
    across, _ = of_gpus("p2p_bandwidth", [[0, 2], [1, 3]])
    inside, bound = of_gpus("p2p_bandwidth", [[0, 2], [1, 3]], by_turns=True)
    assert across.limited_by == "NIC 8×400 Gb/s shared by 8 GPUs"
    assert (inside.bytes_per_s, inside.limited_by) == (pytest.approx(370.8e9), "NVLink 18×25 GB/s")
    assert bound.bytes_per_s == 450e9
    mixed, bound = of_gpus("p2p_bandwidth", [[0, 2], [1, 2]], by_turns=True)
    assert (mixed.bytes_per_s, mixed.limited_by) == (pytest.approx(50e9), "NIC 8×400 Gb/s shared by 8 GPUs")
    assert (bound.bytes_per_s, bound.limited_by) == (pytest.approx(63.02e9, rel=1e-3), "PCIe Gen5 x16")


@pytest.mark.parametrize(("operation", "rate"), [("allreduce", 370.8e9), ("sendrecv", 370.8e9), ("p2p_bandwidth", 370.8e9)])
def test_hosts_in_one_nvlink_domain_are_not_limited_by_their_nics(operation, rate):
    groups = [[0, 2], [1, 3]] if operation.startswith("p2p") else [[0, 1, 2, 3]]
    ceiling, _ = of_gpus(operation, groups, clique="rack-1/7")
    assert (ceiling.bytes_per_s, ceiling.limited_by.partition(" of")[0]) == (pytest.approx(rate), "NVLink 18×25 GB/s")
    assert of_gpus(operation, groups)[0].bytes_per_s < rate


def test_ranks_that_share_a_gpu_have_no_link_between_them():
    shared, bound = of_gpus("allreduce", [[0, 1, 2, 3]], gpu_of=(0, 0, 0, 1))
    assert (shared.bytes_per_s, bound) == (None, None) and "share a GPU" in shared.limited_by


def exact(value):
    """A reference with equal rounds."""
    return Rate(value, value, value)


PART_RATES = {
    HostPart.COPY: 8e9, HostPart.SUM: 6e9, HostPart.SHARED_ONE_WAY: 5e9,
    HostPart.SHARED: 4e9, HostPart.SHARED_SUM: 3e9, HostPart.DIRECT_ONE_WAY: 12e9,
    HostPart.DIRECT: 10e9, HostPart.LOOPBACK_ONE_WAY: 2e9, HostPart.LOOPBACK: 1e9,
}  # fmt: skip


def inside(operation, path, directly=True, lacking=(), **changes):
    """The ceiling of two pairs of ranks of one host that meet over `path`."""
    world = FakeWorld(2)
    world.hosts = ("h0",)
    known = Ceilings(SimpleNamespace(ceiling=None), world)
    case = make_case(operation=operation, **{"count": LEAST_BYTES // 4} | changes)
    known.rates["float32", case.buffers] = {
        (part, case.size_bytes): exact(rate) for part, rate in PART_RATES.items() if part not in lacking
    }
    backend = SimpleNamespace(name="gloo", local_path=path, own_ceiling=None, ranks=4)
    return known.of(operations()[operation], case, backend, [[0, 1], [2, 3]], directly)[0]


MOVING = [name for name, one in operations().items() if not one.is_barrier and not one.creates]
OWN_PART = ("allgather", "alltoall", "alltoallv", "allgatherv", "neighbor_allgather", "neighbor_alltoall", "hypercube")
PAIRS_ONE_WAY = ("p2p_latency", "p2p_bandwidth", "multipair_bandwidth", "put_latency", "put_bandwidth", "get_latency", "get_bandwidth")


def times(*rates):
    """The rate of parts that follow each other, each of the same bytes."""
    return 1 / sum(1 / rate for rate in rates)


@pytest.mark.parametrize(("name", "loopback", "shared", "direct"), [
    ("allreduce", 2 * times(1e9, 1e9, 6e9), 2 * times(4e9, 3e9), 2 * times(10e9, 10e9, 6e9)),
    ("reducescatter", times(1e9, 6e9), 3e9, times(10e9, 6e9)),
    ("reduce", 2 * times(1e9, 6e9, 2e9), 2 * times(3e9, 5e9), 2 * times(10e9, 6e9, 12e9)),
    ("broadcast", 2e9, 5e9, 12e9),
    ("scatter", 2e9, 5e9, 12e9),
    ("gather", times(2e9, 8e9), times(5e9, 8e9), times(12e9, 8e9)),
    ("allgather", times(1e9, 8e9), times(4e9, 8e9), times(10e9, 8e9)),
    ("alltoall", times(1e9, 8e9), times(4e9, 8e9), times(10e9, 8e9)),
    ("sendrecv", 1e9, 4e9, 10e9),
    ("p2p_bandwidth", 2e9, 5e9, 12e9),
    ("p2p_bidirectional", 1e9, 4e9, 10e9),
    ("multipair_bandwidth", 4e9, 10e9, 24e9),
])  # fmt: skip
def test_an_operation_takes_the_time_of_its_parts(name, loopback, shared, direct):
    """Two ranks: each passes on, sums and keeps a half."""
    assert inside(name, "loopback").bytes_per_s == pytest.approx(loopback)
    assert inside(name, "memory", directly=False).bytes_per_s == pytest.approx(shared)
    assert inside(name, "memory", directly=True).bytes_per_s == pytest.approx(direct)


@pytest.mark.parametrize("name", MOVING)
def test_every_operation_has_a_reference_inside_a_host(name):
    for path in ("loopback", "memory"):
        ceiling = inside(name, path)
        assert ceiling.kind == "measured" and 0.5e9 < (ceiling.bytes_per_s or 0) <= 24e9


def test_in_place_no_part_is_copied_to_itself():
    assert inside("allgather", "memory", in_place=True).bytes_per_s == 10e9
    assert inside("allgather", "memory", in_place=False).bytes_per_s == pytest.approx(times(10e9, 8e9))


@pytest.mark.parametrize(("path", "directly", "name", "text"), [
    ("memory", True, "broadcast", "direct copy"),
    ("memory", True, "allreduce", "direct copy and sum"),
    ("memory", False, "broadcast", "shared memory"),
    ("memory", False, "reduce", "shared memory and sum"),
    ("loopback", False, "sendrecv", "loopback TCP"),
    ("loopback", False, "reducescatter", "loopback TCP and sum"),
])  # fmt: skip
def test_a_reference_names_the_path_that_the_data_took(path, directly, name, text):
    assert inside(name, path, directly).limited_by == text


def test_without_direct_copies_the_reference_is_shared_memory():
    refused = [HostPart.DIRECT, HostPart.DIRECT_ONE_WAY]
    assert inside("broadcast", "memory", directly=True, lacking=refused).limited_by == "shared memory"
    assert inside("broadcast", "memory", directly=None, lacking=refused).limited_by == "shared memory"


def test_a_path_that_the_kernel_does_not_show_has_no_reference():
    ceiling = inside("broadcast", "memory", directly=None)
    assert (ceiling.kind, ceiling.bytes_per_s) == ("none", None) and "do not show" in ceiling.limited_by


def test_small_messages_and_unknown_paths_have_no_reference():
    small = inside("allreduce", "memory", count=LEAST_BYTES // 4 - 1)
    assert (small.kind, small.limited_by) == ("none", "messages below 4 MiB fit into caches")
    assert inside("allreduce", "").limited_by == "gloo does not report its path inside a host"


def test_the_same_question_is_reckoned_once():
    known = Ceilings(SimpleNamespace(ceiling=None, oversubscription=1.0), FakeWorld(), [ETHERNET] * 2, [])
    backend = SimpleNamespace(name="mpi", local_path="memory", own_ceiling=None, ranks=2)
    asked = [known.of(operations()[name], make_case(operation=name, count=count), backend, [[0, 1]])
             for name, count in (("allreduce", 1), ("allreduce", 99), ("broadcast", 1))]  # fmt: skip
    assert asked[0] is asked[1] is not asked[2]


MACHINE = wired(gpus(3, "sm_90"), {(0, 1): 6, (0, 2): 2, (1, 2): 2})
A, B, C = (gpu.key for gpu in MACHINE.gpus)


def test_each_pair_has_its_own_link():
    assert [link_between(MACHINE, *pair).bytes_per_s for pair in ((A, B), (B, A), (B, C))] == [150e9, 150e9, 50e9]
    assert link_between(MACHINE, A, B) == node_of(MACHINE, [A, B]).pair


def test_a_gpu_that_no_source_reports_has_an_unknown_link():
    found = link_between(MACHINE, A, "0000:ff:00.0")
    assert (found.bytes_per_s, found.name) == (None, f"no source has both GPUs, {A} and 0000:ff:00.0")


RATE = 10e9  # of every host's NICs, unless a test sets another rate


def world_of(hosts):
    """Ranks on these hosts, in order: "aabb"."""
    names = tuple(dict.fromkeys(hosts))
    members = [Member(rank, host, hosts[:rank].count(host), 1, (0,)) for rank, host in enumerate(hosts)]
    size = {"size": len(hosts), "members": members, "hosts": names, "oversubscribed": None}
    return SimpleNamespace(**size, on_host=lambda host: [member for member in members if member.host == host])


def host(rate):
    """A machine with one InfiniBand port."""
    return Machine("h", ("made",), nics=(Nic("mlx5_0", rdma=True, ports=(Port(rate_bits_per_s=8 * rate, state="active"),)),))


def limits_of(hosts, name, split=None, rates=None, *, machines=None, gpus_of=(), **case):
    """(ceiling, hard bound) of an operation on ranks that lie so, at `rates` by host."""
    world, operation = world_of(hosts), operations()[name]
    known = SimpleNamespace(ceiling=None, oversubscription=case.pop("oversubscription", 1.0))
    machines = machines or [host((rates or {}).get(one, RATE)) for one in world.hosts]
    found = Ceilings(known, world, [Interface("eth0", 1500, 1e9, None, None)] * len(world.hosts), machines)
    backend = SimpleNamespace(name="mpi", local_path="memory", own_ceiling=None, ranks=len(hosts), gpus=gpus_of)
    groups = parse_split(split).groups(len(hosts)) if split else (tuple(range(len(hosts))),)
    count = len(groups[0]) * (len(groups[0]) - 1) * 1000
    size = count * 4 * operation.parts(len(groups[0]))
    made = make_case(operation=name, size_bytes=size, device="cuda" if gpus_of else "cpu", **case)
    return found.of(operation, made, backend, groups)


def rates_of(*arguments, **more):
    return tuple(each.bytes_per_s for each in limits_of(*arguments, **more))


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reducescatter", "broadcast", "reduce"])
def test_groups_that_cross_hosts_share_their_nics(name):
    """Four groups of one rank a host: each has a quarter."""
    ceiling, bound = limits_of("aaaabbbb", name, "MOD 4")
    assert (ceiling.bytes_per_s, bound.bytes_per_s) == pytest.approx((RATE / 4, RATE / 4))
    assert (ceiling.model, ceiling.kind, ceiling.limited_by) == ("ring", "network", "NIC 1×80 Gb/s shared by 4 groups")


@pytest.mark.parametrize(("name", "part"), [("alltoall", 1 / 4), ("gather", 1 / 4), ("scatter", 1 / 4), ("sendrecv", 1 / 4)])
def test_operations_without_a_ring_have_their_part_of_the_bound(name, part):
    ceiling, bound = limits_of("aaaabbbb", name, "MOD 4")
    assert ceiling == bound
    assert bound.bytes_per_s == pytest.approx(RATE * part)


def test_two_ranks_of_a_group_on_each_host_send_twice_the_part_of_an_alltoall():
    """2 groups of 4: half of what 2 ranks send leaves, 2 · 2/4 · S a group, and the busbw counts 3/4 · S."""
    assert limits_of("aaaabbbb", "alltoall", "MOD 2")[1].bytes_per_s == pytest.approx(RATE * 3 / 4 / 2)


def test_groups_inside_their_hosts_share_nothing():
    """Each host's memory is measured, or not: no network's ceiling."""
    ceiling, bound = limits_of("aabb", "allreduce", "DIV 2")
    assert (ceiling.bytes_per_s, bound) == (None, None) and "fit into caches" in ceiling.limited_by


def test_a_group_that_crosses_beside_one_that_does_not_limits_the_row():
    assert rates_of("aaab", "broadcast", "DIV 2") == pytest.approx((RATE, RATE))


def test_the_slowest_groups_ceiling_is_the_rows():
    """Ranks 0 and 2, 1 and 3: the second pair of hosts has a slower link."""
    ceiling, _ = limits_of("acbd", "allreduce", "MOD 2", {"c": 1e9, "d": 4e9})
    assert (ceiling.bytes_per_s, ceiling.limited_by) == (1e9, "NIC 1×8 Gb/s of c")


def test_groups_that_meet_on_one_host_share_that_one_alone():
    """DIV 3 over three hosts of two ranks: both groups use the host in the middle."""
    ceiling, bound = limits_of("aabbcc", "allreduce", "DIV 3")
    assert (ceiling.bytes_per_s, ceiling.limited_by) == (RATE / 2, "NIC 1×80 Gb/s shared by 2 groups")
    assert bound.bytes_per_s == pytest.approx(2 * 2 / 3 * RATE / 2)  # 2(n-1)/n · S, and S of each group must leave the middle


def test_what_one_group_sends_and_another_receives_does_not_share():
    """Both groups have ranks on b: the first one's send to the root on a, the second one's root is there, and receives."""
    _, bound = limits_of("aabbcc", "gather", "DIV 3")
    assert bound.bytes_per_s == pytest.approx(2 / 3 * RATE / (2 / 3))  # 2/3 · S comes into b; 1/3 · S leaves it at the same time


@pytest.mark.parametrize(("root", "rate"), [(0, RATE * 3 / 2), (1, RATE * 3 / 2), (2, 6e9), (3, RATE)])
def test_the_roots_host_is_the_first(root, rate):
    """a has 2 ranks, b and c one each, b a slower link: half of S comes into a, 3/4 into b or c; 3/4 count."""
    found = limits_of("aabc", "gather", rates={"b": 6e9}, root=root)[1]
    assert found.bytes_per_s == pytest.approx(rate)


@pytest.mark.parametrize(("hosts", "edges"), [("aabb", 1), ("abab", 2), ("aaaabbbb", 1), ("abababab", 4), ("aabaab", 2)])
def test_the_sendrecv_ring_follows_the_rank_map(hosts, edges):
    ceiling, _ = limits_of(hosts, "sendrecv")
    assert ceiling.bytes_per_s == pytest.approx(RATE / edges)
    assert ceiling.limited_by == "NIC 1×80 Gb/s" + (f" shared by {edges} edges of the ring" if edges > 1 else "")


def test_only_a_busy_host_divides_its_link_by_its_edges():
    """Two edges leave a, one leaves b and c: their slower links count whole."""
    assert limits_of("abac", "sendrecv", rates={"b": 6e9, "c": 6e9})[0].bytes_per_s == pytest.approx(RATE / 2)
    assert limits_of("abac", "sendrecv", rates={"b": 4e9, "c": 6e9})[0].bytes_per_s == pytest.approx(4e9)


def test_a_traffic_file_counts_by_the_hosts_of_its_ranks():
    """Rank 0 sends 3 parts to rank 1 and 1 to rank 2; the other ranks send nothing."""
    matrix = ((0.0, 3.0, 1.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    traffic = Traffic("made", matrix=matrix)
    assert limits_of("aab", "alltoallv", traffic=traffic)[1].bytes_per_s == pytest.approx(2 / 3 * RATE * 4)
    assert limits_of("aba", "alltoallv", traffic=traffic)[1].bytes_per_s == pytest.approx(2 / 3 * RATE * 4 / 3)


def test_traffic_that_stays_at_home_has_no_ceiling():
    ceiling, bound = limits_of("aab", "alltoallv", traffic=Traffic("own", matrix=((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))))
    assert (ceiling.bytes_per_s, bound) == (None, None) and "no byte" in ceiling.limited_by


def test_an_oversubscribed_fabric_is_shared_as_well():
    assert rates_of("aabb", "allreduce", "MOD 2", oversubscription=2.0) == pytest.approx((RATE / 4, RATE / 4))


def test_a_barrier_has_no_ceiling():
    ceiling, bound = limits_of("ab", "barrier")
    assert (ceiling.bytes_per_s, ceiling.limited_by, bound) == (None, "barrier moves nothing", None)


DIRECT = ("allgather", "alltoall", "broadcast", "gather", "scatter", "sendrecv")


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_direct_algorithm_passes_the_bound(data):
    """For all hosts, rates, groups and roots: sending every part directly takes at least as long as the hard limit allows."""
    name = data.draw(st.sampled_from(DIRECT))
    n = data.draw(st.sampled_from([2, 4, 6, 8]))
    hosts = "".join(data.draw(st.lists(st.sampled_from("abc"), min_size=n, max_size=n)))
    split = data.draw(st.sampled_from([None, *(f"{word} {k}" for word in ("MOD", "DIV") for k in range(2, n // 2 + 1) if n % k == 0)]))
    rates = {one: data.draw(st.sampled_from([1e9, 4e9, 10e9])) for one in "abc"}
    groups = parse_split(split).groups(n) if split else (tuple(range(n)),)
    root = data.draw(st.integers(0, len(groups[0]) - 1))
    bound = limits_of(hosts, name, split, rates, root=root)[1]
    if bound is None:
        return
    each = len(groups[0])
    out, into = dict.fromkeys("abc", 0.0), dict.fromkeys("abc", 0.0)
    for group in groups:
        for a, b in np.argwhere(_direct(name, each, root)):
            if hosts[group[a]] != hosts[group[b]]:
                part = _direct(name, each, root)[a, b]
                out[hosts[group[a]]] += part
                into[hosts[group[b]]] += part
    time = max(max(out[one], into[one]) / rates[one] for one in "abc")
    assert operations()[name].bus_factor(each) / time <= bound.bytes_per_s * (1 + 1e-9)


def _direct(name, n, root):
    """Return the parts of S that go from rank to rank when each is sent directly to the rank that needs it."""
    found = np.zeros((n, n))
    if name in ("alltoall", "allgather"):
        found[:] = 1 / n
    elif name == "sendrecv":
        found[range(n), [(rank + 1) % n for rank in range(n)]] = 1.0
    elif name == "gather":
        found[:, root] = 1 / n
    else:
        found[root] = 1.0 if name == "broadcast" else 1 / n
    np.fill_diagonal(found, 0)
    return found


TWO = switched(2, 12, "sm_80", nics=infiniband(2, 200))
ADDRESSES = tuple(gpu.key for gpu in TWO.gpus)


def on_gpus(hosts, name, split=None, machine=TWO, **case):
    """Ranks on hosts of this machine, each with the next GPU of its host."""
    keys = [gpu.key for gpu in machine.gpus]
    chosen = tuple(keys[hosts[:rank].count(one)] for rank, one in enumerate(hosts))
    return limits_of(hosts, name, split, machines=[machine] * len(set(hosts)), gpus_of=chosen, **case)


def test_each_group_of_gpus_has_its_own_job():
    """Inside a host NVLink; across, half of the NICs' 50 GB/s each, of which NCCL takes 96 %."""
    assert on_gpus("aabb", "allreduce", "DIV 2")[0].limited_by == "NVLink 12×25 GB/s"
    across, bound = on_gpus("aabb", "allreduce", "MOD 2")
    assert (across.bytes_per_s, bound.bytes_per_s) == pytest.approx((24e9, 25e9))
    assert across.limited_by == "PCIe Gen4 x16"  # NCCL takes it for 24 GB/s
    assert bound.limited_by == "NIC 2×200 Gb/s shared by 2 groups"


def test_all_gpus_at_once_have_the_nics_for_themselves():
    whole, _ = on_gpus("aabb", "allreduce")
    assert (whole.model, whole.limited_by) == ("tree", "NIC 2×200 Gb/s")
    assert whole.bytes_per_s == pytest.approx(0.92 * 2 * 3 / 4 * 48e9)


def test_one_gpu_a_host_is_limited_by_its_pcie_link_before_its_part_of_fast_nics():
    fast = switched(2, 12, "sm_80", nics=infiniband(8, 200))
    found, _ = on_gpus("aabb", "allreduce", "MOD 2", machine=fast)
    assert (found.bytes_per_s, found.limited_by) == (pytest.approx(24e9), "PCIe Gen4 x16")


def test_a_ring_inside_a_host_uses_the_links_between_its_neighbours():
    """GPUs 0, 1 and 2, 3 are bridged: only the order 0 1 2 3 has bridges, and PCIe between them all the same."""
    box = wired(gpus(4), {(0, 1): 12, (2, 3): 12})
    assert on_gpus("aaaa", "sendrecv", machine=box)[0].limited_by == "PCIe Gen4 x16"
    assert on_gpus("aaaa", "sendrecv", "DIV 2", machine=box)[0].limited_by.startswith("NVLink 12×25 GB/s")
    assert on_gpus("aaaa", "sendrecv", "MOD 2", machine=box)[0].limited_by == "PCIe Gen4 x16"


def test_ranks_dealt_out_in_turn_have_no_neighbour_on_their_host():
    """Then the slow way between a host's GPUs limits nothing: all four edges cross."""
    box = wired(gpus(2), {}, pcie=GEN3)
    fast = Machine(box.hostname, box.sources, gpus=box.gpus, pci=box.pci, nics=infiniband(1, 8))
    found, _ = on_gpus("abab", "sendrecv", machine=fast)
    assert (found.bytes_per_s, found.limited_by) == (pytest.approx(0.5e9), "NIC 1×8 Gb/s shared by 2 edges of the ring")


@pytest.mark.parametrize(("hosts", "name", "reached", "bound"), [
    ("ab", "neighbor_alltoall", 1, 1),
    ("ab", "neighbor_allgather", 1, 2),  # both neighbours are one rank, to which the same would have to come only once
    ("abc", "neighbor_allgather", 1, 1),
    ("aabb", "neighbor_alltoall", 1, 1),
    ("abab", "neighbor_alltoall", 1 / 2, 1 / 2),  # all messages cross: two whole sizes out of each host
    ("abab", "neighbor_allgather", 1 / 2, 1),
])  # fmt: skip
def test_neighbours_on_other_hosts_share_the_nics(hosts, name, reached, bound):
    """In parts of a host's rate: what its ranks' own messages reach, and what no algorithm passes."""
    assert rates_of(hosts, name) == pytest.approx((reached * RATE, bound * RATE))
    assert limits_of(hosts, name)[0].limited_by == "NIC 1×80 Gb/s"


def test_neighbours_on_the_gpus_of_one_host_have_no_ceiling():
    ceiling, bound = limits_of("aa", "neighbor_alltoall", machines=[switched(2, 12)], gpus_of=("0000:10:00.0", "0000:11:00.0"))
    assert (ceiling.bytes_per_s, ceiling.limited_by, bound) == (
        None,
        "the expected bandwidth of neighbor_alltoall inside a host is unknown",
        None,
    )
