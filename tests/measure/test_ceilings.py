"""The expected bandwidth and the hard limit of cases: of one group, of groups at the same time, and on GPUs."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.control.members import Member
from collbench.machine.interfaces import Interface
from collbench.machine.model import Machine, Nic, PciDevice, Port
from collbench.machine.peak.ceiling import LEAST_BYTES, HostPart, Rate
from collbench.machine.peak.node import node_of
from collbench.measuring.ceilings import Ceilings
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
    """Hosts with `per_host` ranks each."""

    per_host: int = 1
    n_hosts: int = 2
    oversubscribed: str | None = None
    members: list[Member] = field(default_factory=list)

    def __post_init__(self):
        self.members = [
            Member(rank, f"h{rank // self.per_host}", rank % self.per_host, 1, (0,)) for rank in range(self.n_hosts * self.per_host)
        ]
        self.hosts, self.size = tuple(f"h{host}" for host in range(self.n_hosts)), len(self.members)

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


UP, TCP_PORT = node(), "NIC eth0 10 Gb/s, TCP"
ACROSS = {
    "InfiniBand": (UP, {}, ("network", "ring", 100e9, 100e9, "NIC 2×400 Gb/s")),
    "a port of the other host is down": (node(state="down", rate=None), {}, ("network", "ring", TCP, TCP, TCP_PORT)),
    "a port of the other host is software": (node(virtual="software RDMA (rxe) over eth0"), {}, ("network", "ring", TCP, TCP, TCP_PORT)),
    "the other host has no port": (Machine("h", ("made",)), {}, ("network", "ring", TCP, TCP, TCP_PORT)),
    "a backend that uses TCP anyway": (UP, {"path": "loopback"}, ("network", "ring", TCP, TCP, TCP_PORT)),
    "ranks of a host share its ports, and may pass the ring": (UP, {"per_host": 8}, ("network", "ring", 100e9, 187.5e9, "NIC 2×400 Gb/s")),
    "ping-pongs may take turns in sending and answering": (
        UP, {"operation": "p2p_latency", "per_host": 4}, ("network", "bound", 50e9, 50e9, "NIC 2×400 Gb/s shared by 2 pairs")),
    "pairs at once": (
        UP, {"operation": "p2p_bandwidth", "per_host": 4}, ("network", "bound", 25e9, 25e9, "NIC 2×400 Gb/s shared by 4 pairs")),
    "pairs in both directions": (
        UP, {"operation": "p2p_bidirectional", "per_host": 4}, ("network", "bound", 25e9, 25e9, "NIC 2×400 Gb/s shared by 4 pairs")),
    "an oversubscribed fabric": (UP, {"oversubscription": 2.0}, ("network", "ring", 50e9, 50e9, "NIC 2×400 Gb/s, fabric 2:1")),
    "a given ceiling goes before all": (UP, {"ceiling": 42.0}, ("given", "ring", 42e9, None, "the ceiling given")),
}  # fmt: skip


@pytest.mark.parametrize(("other", "changes", "limits"), ACROSS.values(), ids=ACROSS)
def test_mpi_between_hosts_is_set_against_the_ports_that_both_have(other, changes, limits):
    ceiling, bound = of([UP, other], **changes)
    kind, model, rate, bound_rate, limited_by = limits
    assert (ceiling.kind, ceiling.model, ceiling.limited_by) == (kind, model, limited_by)
    assert ceiling.bytes_per_s == pytest.approx(rate)
    assert (bound and bound.bytes_per_s) == (bound_rate and pytest.approx(bound_rate))
    assert ceiling.source.endswith("mpi uses these NICs") is (limited_by.startswith("NIC 2×"))


def test_mpi_uses_all_nics_of_slingshot_which_have_no_rdma_device():
    addresses = ["0000:21:00.0", "0000:22:00.0"]
    port = Port(rate_bits_per_s=200e9, state="active", link_layer="ethernet")
    nics = tuple(Nic(f"hsn{index}", address, ports=(port,)) for index, address in enumerate(addresses))
    functions = tuple(PciDevice(address, "nic", vendor_id=0x17DB, device_id=0x0501, class_id=0x020000) for address in addresses)
    machine = Machine("h", ("made",), nics=nics, pci=functions)
    ceiling, _ = of([machine, machine])
    assert (ceiling.bytes_per_s, ceiling.limited_by) == (50e9, "NIC 2×200 Gb/s")
    ceiling, _ = of([machine, replace(machine, pci=())])
    assert ceiling.limited_by == TCP_PORT


@pytest.mark.parametrize(("operation", "share"), [("p2p_bandwidth", 1), ("p2p_bidirectional", 2), ("p2p_latency", 1)])
def test_only_the_busiest_hosts_pairs_share(operation, share):
    """A ring of three hosts: each sends to the next, and hears from the one before."""
    known = Ceilings(SimpleNamespace(ceiling=None, oversubscription=1.0), FakeWorld(1, 3), [ETHERNET] * 3, [node()] * 3)
    backend = SimpleNamespace(name="mpi", local_path="memory", own_ceiling=None, ranks=3)
    ceiling, _ = known.of(operations()[operation], make_case(operation=operation), backend, [[0, 1], [1, 2], [2, 0]])
    assert ceiling.bytes_per_s == 2 * 50e9 / share


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


PART_RATES = {
    HostPart.COPY: 8e9, HostPart.SUM: 6e9, HostPart.SHARED_ONE_WAY: 5e9, HostPart.SHARED: 4e9, HostPart.SHARED_SUM: 3e9,
    HostPart.DIRECT_ONE_WAY: 12e9, HostPart.DIRECT: 10e9, HostPart.LOOPBACK_ONE_WAY: 2e9, HostPart.LOOPBACK: 1e9,
}  # fmt: skip


def inside(operation, path, directly=True, lacking=(), **changes):
    """The ceiling of two pairs of ranks of one host that meet over `path`."""
    world = FakeWorld(2)
    world.hosts = ("h0",)
    known = Ceilings(SimpleNamespace(ceiling=None), world)
    case = make_case(operation=operation, **{"count": LEAST_BYTES // 4} | changes)
    known.rates["float32", case.buffers] = {
        (part, case.size_bytes): Rate(rate, rate, rate) for part, rate in PART_RATES.items() if part not in lacking
    }
    backend = SimpleNamespace(name="gloo", local_path=path, own_ceiling=None, ranks=4)
    return known.of(operations()[operation], case, backend, [[0, 1], [2, 3]], directly)[0]


MOVING = [name for name, one in operations().items() if not one.is_barrier and not one.creates]


def times(*rates):
    """The rate of parts that follow each other, each of the same bytes."""
    return 1 / sum(1 / rate for rate in rates)


@pytest.mark.parametrize(("name", "loopback", "shared", "direct"), [
    ("allreduce", 2 * times(1e9, 1e9, 6e9), 2 * times(4e9, 3e9), 2 * times(10e9, 10e9, 6e9)),
    ("reducescatter", times(1e9, 6e9), 3e9, times(10e9, 6e9)),
    ("reduce", 2 * times(1e9, 6e9, 2e9), 2 * times(3e9, 5e9), 2 * times(10e9, 6e9, 12e9)),
    ("broadcast", 2e9, 5e9, 12e9), ("scatter", 2e9, 5e9, 12e9), ("gather", times(2e9, 8e9), times(5e9, 8e9), times(12e9, 8e9)),
    ("allgather", times(1e9, 8e9), times(4e9, 8e9), times(10e9, 8e9)), ("alltoall", times(1e9, 8e9), times(4e9, 8e9), times(10e9, 8e9)),
    ("sendrecv", 1e9, 4e9, 10e9), ("p2p_bandwidth", 2e9, 5e9, 12e9), ("p2p_bidirectional", 1e9, 4e9, 10e9),
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


@pytest.mark.parametrize(("path", "directly", "name", "more", "text"), [
    ("memory", True, "broadcast", {}, "direct copy"), ("memory", True, "allreduce", {}, "direct copy and sum"),
    ("memory", False, "broadcast", {}, "shared memory"), ("memory", False, "reduce", {}, "shared memory and sum"),
    ("loopback", False, "sendrecv", {}, "loopback TCP"), ("loopback", False, "reducescatter", {}, "loopback TCP and sum"),
    ("memory", True, "broadcast", {"lacking": [HostPart.DIRECT, HostPart.DIRECT_ONE_WAY]}, "shared memory"),
    ("memory", None, "broadcast", {"lacking": [HostPart.DIRECT, HostPart.DIRECT_ONE_WAY]}, "shared memory"),
    ("memory", True, "allreduce", {"count": LEAST_BYTES // 4 - 1}, "messages below 4 MiB fit into caches"),
    ("", True, "allreduce", {}, "gloo does not report its path inside a host"),
    ("memory", None, "broadcast", {}, "the kernel's counters do not show whether it copied the data from process to process"),
])  # fmt: skip
def test_a_reference_names_the_path_that_the_data_took_or_why_there_is_none(path, directly, name, more, text):
    ceiling = inside(name, path, directly, **more)
    known = text.partition(" and ")[0] in ("direct copy", "shared memory", "loopback TCP")
    assert (ceiling.limited_by, ceiling.kind, ceiling.bytes_per_s is None) == (text, "measured" if known else "none", not known)


def test_the_same_question_is_reckoned_once():
    known = Ceilings(SimpleNamespace(ceiling=None, oversubscription=1.0), FakeWorld(), [ETHERNET] * 2, [])
    backend = SimpleNamespace(name="mpi", local_path="memory", own_ceiling=None, ranks=2)
    asked = [known.of(operations()[name], make_case(operation=name, count=count), backend, [[0, 1]])
             for name, count in (("allreduce", 1), ("allreduce", 99), ("broadcast", 1))]  # fmt: skip
    assert asked[0] is asked[1] is not asked[2]


MACHINE = wired(gpus(3, "sm_90"), {(0, 1): 6, (0, 2): 2, (1, 2): 2})
A, B, C = (gpu.key for gpu in MACHINE.gpus)


def test_each_pair_has_its_own_link_and_a_gpu_that_no_source_reports_an_unknown_one():
    assert [link_between(MACHINE, *pair).bytes_per_s for pair in ((A, B), (B, A), (B, C))] == [150e9, 150e9, 50e9]
    assert link_between(MACHINE, A, B) == node_of(MACHINE, [A, B]).pair
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


NIC = "NIC 1×80 Gb/s"
ROOTS = {"rates": {"b": 6e9}}  # a has 2 ranks, b and c one each: half of S comes into a, 3/4 into b or c; 3/4 count
UNEVEN = Traffic("made", matrix=((0.0, 3.0, 1.0), (0.0,) * 3, (0.0,) * 3))  # rank 0 sends 3 parts to rank 1 and 1 to rank 2
OWN = Traffic("own", matrix=((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)))
# By situation the hosts of the ranks, the operation, what else is set, and the ceiling and the hard limit in parts of RATE.
LIMITS = {
    **{f"groups of one rank a host have a quarter each: {name}": ("aaaabbbb", name, {"split": "MOD 4"}, 1 / 4, 1 / 4,
        f"{NIC} shared by 4 groups") for name in ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall", "gather",
        "scatter")},
    "four rings": ("aaaabbbb", "sendrecv", {"split": "MOD 4"}, 1 / 4, 1 / 4, f"{NIC} shared by 4 edges of the rings"),
    # 2 groups of 4: half of what 2 ranks send leaves, 2 · 2/4 · S a group, and the busbw counts 3/4 · S.
    "two ranks of a group on each host": ("aaaabbbb", "alltoall", {"split": "MOD 2"}, 3 / 8, 3 / 8, f"{NIC} shared by 2 groups"),
    "groups inside their hosts": ("aabb", "allreduce", {"split": "DIV 2"}, None, None, "messages below 4 MiB fit into caches"),
    "a group that crosses beside one that does not": ("aaab", "broadcast", {"split": "DIV 2"}, 1, 1, NIC),
    "the slowest group is the row": (
        "acbd", "allreduce", {"split": "MOD 2", "rates": {"c": 1e9, "d": 4e9}}, 1 / 10, 1 / 10, "NIC 1×8 Gb/s of c"),
    # Both groups use b. 2(n-1)/n · S, and S of each group must leave it.
    "groups that meet on one host": ("aabbcc", "allreduce", {"split": "DIV 3"}, 1 / 2, 2 / 3, f"{NIC} shared by 2 groups"),
    # The first group's ranks on b send to the root on a, the second one's root is there, and receives.
    "one group sends what another receives": ("aabbcc", "gather", {"split": "DIV 3"}, 1, 1, NIC),
    "root 0": ("aabc", "gather", {**ROOTS, "root": 0}, 3 / 2, 3 / 2, f"{NIC} of a"),
    "root 1": ("aabc", "gather", {**ROOTS, "root": 1}, 3 / 2, 3 / 2, f"{NIC} of a"),
    "root 2": ("aabc", "gather", {**ROOTS, "root": 2}, 0.6, 0.6, "NIC 1×48 Gb/s of b"),
    "root 3": ("aabc", "gather", {**ROOTS, "root": 3}, 1, 1, f"{NIC} of c"),
    "ring of blocks": ("aaaabbbb", "sendrecv", {}, 1, 1, NIC),
    "ring in turn": ("abab", "sendrecv", {}, 1 / 2, 1 / 2, f"{NIC} shared by 2 edges of the ring"),
    "longer ring in turn": ("abababab", "sendrecv", {}, 1 / 4, 1 / 4, f"{NIC} shared by 4 edges of the ring"),
    "ring of several blocks": ("aabaab", "sendrecv", {}, 1 / 2, 1 / 2, f"{NIC} shared by 2 edges of the ring"),
    # Two edges leave a, one leaves b and c: their slower links count whole.
    "a busy host": ("abac", "sendrecv", {"rates": {"b": 6e9, "c": 6e9}}, 1 / 2, 1 / 2, f"{NIC} of a shared by 2 edges of the ring"),
    "a slow host": ("abac", "sendrecv", {"rates": {"b": 4e9, "c": 6e9}}, 0.4, 0.4, "NIC 1×32 Gb/s"),
    "traffic inside": ("aab", "alltoallv", {"traffic": UNEVEN}, 8 / 3, 8 / 3, NIC),
    "traffic across": ("aba", "alltoallv", {"traffic": UNEVEN}, 8 / 9, 8 / 9, NIC),
    "traffic to oneself": ("aab", "alltoallv", {"traffic": OWN}, None, None, "no byte crosses a link of known rate"),
    "an oversubscribed fabric": (
        "aabb", "allreduce", {"split": "MOD 2", "oversubscription": 2.0}, 1 / 4, 1 / 4, f"{NIC}, fabric 2:1 shared by 2 groups"),
    "barrier": ("ab", "barrier", {}, None, None, "barrier moves nothing"),
    "neighbours": ("ab", "neighbor_alltoall", {}, 1, 1, NIC),
    # Both neighbours are one rank, to which the same would have to come only once.
    "two neighbours that are one": ("ab", "neighbor_allgather", {}, 1, 2, NIC),
    "three neighbours": ("abc", "neighbor_allgather", {}, 1, 1, NIC),
    "neighbours in blocks": ("aabb", "neighbor_alltoall", {}, 1, 1, NIC),
    "neighbours in turn": ("abab", "neighbor_alltoall", {}, 1 / 2, 1 / 2, NIC),  # two whole sizes out of each host
    "neighbours in turn that gather": ("abab", "neighbor_allgather", {}, 1 / 2, 1, NIC),
    "neighbours on the GPUs of one host": ("aa", "neighbor_alltoall", {"machines": [switched(2, 12)], "gpus_of": ("0000:10:00.0",
        "0000:11:00.0")}, None, None, "the expected bandwidth of neighbor_alltoall inside a host is unknown"),
}  # fmt: skip


@pytest.mark.parametrize("case", LIMITS.values(), ids=LIMITS)
def test_ranks_share_the_nics_of_their_hosts_as_their_messages_do(case):
    hosts, name, options, reached, bound, limited_by = case
    ceiling, hard_limit = limits_of(hosts, name, **options)
    assert ceiling.limited_by == limited_by
    assert (ceiling.bytes_per_s and ceiling.bytes_per_s / RATE) == (reached and pytest.approx(reached))
    assert (hard_limit and hard_limit.bytes_per_s / RATE) == (bound and pytest.approx(bound))
    assert reached is None or ceiling.kind == "network"
    ringless = ("alltoall", "gather", "scatter", "sendrecv", "alltoallv")
    assert reached is None or ceiling.model == ("bound" if name in ringless else "ring")


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


def test_one_gpu_a_host_is_limited_by_its_pcie_link_before_its_part_of_fast_nics():
    whole, _ = on_gpus("aabb", "allreduce")
    assert (whole.model, whole.limited_by) == ("tree", "NIC 2×200 Gb/s")
    assert whole.bytes_per_s == pytest.approx(0.92 * 2 * 3 / 4 * 48e9)
    found, _ = on_gpus("aabb", "allreduce", "MOD 2", machine=switched(2, 12, "sm_80", nics=infiniband(8, 200)))
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
