"""Every operation's ceilings on typed and probed nodes, the limiting link named, and the model of a curve."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.machine.peak.collective import (
    OPERATIONS,
    InputGiven,
    InputRead,
    SumsNotCounted,
    ceilings,
    doubtful_input,
    like,
    pairs_by_node,
)
from collbench.machine.peak.node import Job, UserOverride, node_from_user, node_of, parse_nic, parse_pcie
from collbench.operations.case import Case
from collbench.operations.dtypes import DTYPES
from collbench.operations.groups import groups_of
from collbench.operations.registry import operations
from tests.peak.made import GEN5, gpus, infiniband, switched, wired

RINGS = ("allreduce", "allgather", "reducescatter", "hypercube", "broadcast", "reduce")


def typed(nic="4x100Gb", nvlink=300.0, pcie=None, each=8, nvls=False):
    return node_from_user(
        each, UserOverride(parse_nic(nic) if nic else None, nvlink and nvlink * 1e9, parse_pcie(pcie) if pcie else None, nvls)
    )


def rates(operation, job):
    found = ceilings(operation, job)
    return tuple(None if one is None or one.bytes_per_s is None else round(one.bytes_per_s / 1e9, 2) for one in (found.ring, found.bound))


FOUR = Job((typed(),) * 4)  # 4 × 8 GPUs, Bg 300, Bn 50; N - 1 = 31


@pytest.mark.parametrize(
    ("operation", "ring", "bound"),
    [
        ("allreduce", 50, 64.58),  # 50 · 31/24
        ("allgather", 50, 64.58),
        ("reducescatter", 50, 64.58),
        ("hypercube", 50, 64.58),
        ("broadcast", 50, 50),
        ("reduce", 50, 50),
        ("alltoall", None, 8.07),  # 50/8 · 31/24
        ("alltoallv", None, 8.07),
        ("allgatherv", 50, 64.58),
        ("reducescatterv", 50, 64.58),
        ("gatherv", None, 64.58),
        ("scatterv", None, 64.58),
        ("scan", 50, 50),
        ("exscan", 50, 50),
        ("barrier", None, None),
        ("gather", None, 64.58),
        ("scatter", None, 64.58),
        ("sendrecv", None, 50),
        ("p2p", None, 50),
        ("multipair", None, 100),  # two nodes send
        ("put", None, 50),
        ("get", None, 50),
        ("accumulate", None, 50),
        ("neighbor-allgather", None, 50),
        ("neighbor-alltoall", None, 50),
    ],
)
def test_every_operation_on_four_nodes(operation, ring, bound):
    assert rates(operation, FOUR) == (ring, bound)


def test_the_list_of_operations_is_whole():
    alike = ["put", "get", "accumulate", "neighbor-allgather", "neighbor-alltoall", "scan", "exscan", "init"]
    alike += ["allgatherv", "gatherv", "scatterv", "reducescatterv"]
    others = ["alltoall", "alltoallv", "barrier", "gather", "scatter", "sendrecv", "p2p", "multipair"]
    assert sorted(OPERATIONS) == sorted([*RINGS, *others, *alike])


def test_two_ranks_are_both_neighbours_of_one_another_and_need_what_is_gathered_once():
    two = Job((typed(each=1),) * 2)
    assert [rates(operation, two) for operation in ("neighbor-alltoall", "neighbor-allgather")] == [(None, 50), (None, 100)]


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if like(name) not in ("barrier", "multipair")])
def test_one_node_is_limited_by_nvlink(operation):
    found = ceilings(operation, Job((typed(nic=None),)))
    assert found.bound.bytes_per_s == pytest.approx(300e9)
    assert (found.bound.limited_by, found.bound.source) == ("NVLink 300 GB/s", "--nvlink")


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if like(name) not in ("barrier", "multipair")])
def test_one_gpu_a_node_is_limited_by_the_nic(operation):
    found = ceilings(operation, Job((typed("1x100Gb", None, "gen4x16", each=1),) * 4))
    assert found.bound.bytes_per_s == pytest.approx(12.5e9)
    assert found.bound.limited_by == "NIC 1×100 Gb/s"


def test_alltoall_leaves_a_gpu_by_nvlink_and_by_nics():
    """min(Bg + Bn/g, (Bn/g)·(N-1)/(N-g)): with NICs faster than NVLink a GPU's neighbours are reached over these as well."""
    assert rates("alltoall", Job((typed("8x400Gb", 50.0),) * 2)) == (None, round(min(50 + 400 / 8, 400 / 8 * 15 / 8), 2))
    assert rates("alltoall", Job((typed("32x400Gb", 50.0),) * 2)) == (None, 50 + 1600 / 8)


def test_nvls_lets_one_node_pass_its_links_sum():
    assert rates("allreduce", Job((typed(None, 450.0, nvls=True),))) == (450, 700)
    found = ceilings("allreduce", Job((typed(None, 450.0, nvls=True),))).bound
    assert found.limited_by == "NVLink 450 GB/s with NVLink SHARP"
    assert rates("allgather", Job((typed(None, 450.0, nvls=True),))) == (450, 450)


def test_nvls_is_never_below_the_ring():
    """2(N-1)/N·g/(g+1) is 2/3 at two GPUs."""
    assert rates("allreduce", Job((typed(None, 450.0, nvls=True, each=2),))) == (450, 450)


def test_sharp_in_the_fabric():
    """Bn·2(N-1)/N."""
    assert rates("allreduce", replace(FOUR, sharp=True)) == (50, round(50 * 2 * 31 / 32, 2))
    assert rates("allgather", replace(FOUR, sharp=True)) == rates("allgather", FOUR)


def test_an_oversubscribed_fabric():
    found = ceilings("allreduce", replace(FOUR, oversubscription=2.0))
    assert (found.ring.bytes_per_s, found.ring.limited_by) == (25e9, "NIC 4×100 Gb/s, fabric 2:1")


def test_a_ceiling_that_is_given_replaces_all():
    found = ceilings("alltoall", replace(FOUR, ceiling_from_user=42e9))
    assert (found.ring.kind, found.ring.bytes_per_s, found.bound, found.achievable) == ("given", 42e9, None, None)


@pytest.mark.parametrize(("operation", "option"), [("p2p", {"pairs": 4}), ("sendrecv", {"ring_edges": 4})])
def test_messages_between_nodes_share_the_nics(operation, option):
    found = ceilings(operation, replace(FOUR, **option)).bound
    assert found.bytes_per_s == 12.5e9
    assert found.limited_by.startswith("NIC 4×100 Gb/s shared by 4 ")


@pytest.mark.parametrize(
    ("job", "rate"),
    [
        (FOUR, 100),  # 16 pairs, each with an eighth of a node's 50 GB/s
        (replace(FOUR, pairs=8), 50),  # the ranks of the first node
        (replace(FOUR, pairs=9), 56.25),  # the ninth pair has a node to itself; the time ends with the other eight
        (Job((typed(nic=None),)), 1200),  # four pairs inside the node, 300 GB/s each
        (Job((typed("1x100Gb", None, each=2),) * 3), 18.75),  # the first node sends to both others, the second sends and receives
        (Job((typed("1x100Gb", 150.0, each=6), typed("4x100Gb", 150.0, each=2))), 25),  # of 4 pairs 2 leave the first node
    ],
)
def test_the_rate_of_several_pairs_ends_with_the_slowest(job, rate):
    assert rates("multipair", job) == (None, rate)


@pytest.mark.parametrize("seed", range(20))
def test_the_pairs_of_each_node_are_those_that_are_measured(seed):
    random = Random(seed)
    gpus = [random.randint(1, 5) for _ in range(random.randint(2, 6))]
    job = Job(tuple(typed(each=each) for each in gpus), pairs=random.randint(1, max(sum(gpus) // 2, 1)))
    node_of_rank = [node for node, each in enumerate(gpus) for _ in range(each)]
    operation = operations()["multipair_bandwidth"]
    case = replace(Case("multipair_bandwidth", "", DTYPES["uint8"], 0), pairs=job.pairs)
    ends = [(node_of_rank[a], node_of_rank[b]) for a, b in groups_of(operation, case, sum(gpus))]
    found = pairs_by_node(job)
    assert found.total == len(ends)
    for node in range(len(gpus)):
        assert found.out[node] == sum(a == node != b for a, b in ends)
        assert found.into[node] == sum(b == node != a for a, b in ends)
        assert found.inside[node] == sum(a == b == node for a, b in ends)


def test_a_message_that_leaves_the_node_goes_over_its_gpus_pcie_link():
    found = ceilings("sendrecv", Job((typed("8x400Gb", 450.0, "gen5x16"),) * 2)).bound
    assert (round(found.bytes_per_s / 1e9, 1), found.limited_by) == (63.0, "PCIe Gen5 x16")


def test_a_message_inside_a_mesh_goes_over_the_pairs_links():
    """MI300X: seven links, one of them to each other GPU."""
    node = node_of(wired(gpus(8, "gfx942"), {(i, j): 1 for i in range(8) for j in range(i)}, "xgmi"))
    for operation in ("p2p", "sendrecv"):
        assert ceilings(operation, Job((node,))).bound.limited_by == "xGMI 1×64 GB/s of a pair"


def test_even_traffic_of_alltoallv_is_alltoalls():
    even = [[1000.0] * 32] * 32
    assert rates("alltoallv", replace(FOUR, traffic=even)) == rates("alltoall", FOUR)


def test_uneven_traffic_is_limited_by_the_busiest_node():
    """Node 0 sends 8 GB to node 1, nothing else moves: 8 GB / 50 GB/s. The size is what one rank sends, 1 GB; 15/16 of it count."""
    rows = [[1e9 / 8 if i < 8 <= j else 0.0 for j in range(16)] for i in range(16)]
    found = ceilings("alltoallv", Job((typed(),) * 2, traffic=rows)).bound
    assert (found.bytes_per_s, found.limited_by) == (pytest.approx(15 / 16 * 1e9 / (8e9 / 50e9)), "NIC 4×100 Gb/s")


def test_traffic_within_ranks_alone_crosses_nothing():
    rows = [[float(i == j) for j in range(16)] for i in range(16)]
    found = ceilings("alltoallv", Job((typed(),) * 2, traffic=rows)).bound
    assert (found.bytes_per_s, found.model) == (None, "bound") and "no byte" in found.limited_by


@pytest.mark.parametrize("traffic", [[[0.0]], [[-1.0] * 32] * 32, [[float("nan")] * 32] * 32])
def test_traffic_that_is_no_matrix_is_refused(traffic):
    with pytest.raises(UsageError, match="must be 32 × 32 numbers"):
        ceilings("alltoallv", replace(FOUR, traffic=traffic))


def test_an_unknown_operation_is_refused():
    with pytest.raises(UsageError, match=r"'allsum': .*allreduce"):
        ceilings("allsum", FOUR)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (Job((typed(nic=None),) * 2), "the rate between nodes is unknown: the NICs are unknown: add --nic, such as --nic 4x100Gb"),
        (Job((typed(each=1),)), "one rank moves nothing"),
        (Job((node_from_user(8, UserOverride()),)), "the links between the GPUs are unknown: add --nvlink GB/s or --pcie gen4x16"),
    ],
)
def test_what_is_unknown_is_reported_and_not_0(job, why):
    found = ceilings("allreduce", job)
    assert (found.ring.bytes_per_s, found.ring.limited_by, found.bound.bytes_per_s, found.achievable) == (None, why, None, None)


def test_nodes_that_differ_are_limited_by_the_slowest_and_it_is_named():
    fast = replace(node_of(switched(8, 18, "sm_90", GEN5, infiniband(8, 400))), host="a1")
    slow = replace(node_of(switched(8, 12, "sm_80", GEN5, infiniband(4, 200))), host="b7")
    found = ceilings("allreduce", Job((fast, slow, fast)))
    assert (found.ring.bytes_per_s, found.ring.limited_by) == (100e9, "NIC 4×200 Gb/s of b7")
    assert found.bound.bytes_per_s == pytest.approx(2 * 23 / 24 * min(100e9, 900e9 / 4))
    one = ceilings("allreduce", Job((fast, replace(fast, gpus=4, host="c")))).ring
    assert one.limited_by == "NIC 8×400 Gb/s"


@pytest.mark.parametrize(
    ("machine", "gb"),
    [(switched(8, 12), 240), (switched(8, 18, "sm_90"), 370.8), (switched(8, 18, "sm_100"), 721.8), (wired(gpus(3), {}), 24)],
)
def test_what_nccls_constants_allow(machine, gb):
    found = ceilings("allreduce", Job((node_of(machine),))).achievable
    assert found.bytes_per_s == pytest.approx(gb * 1e9)
    assert "NCCL's constants" in found.source


def test_of_links_that_nccl_has_no_constant_for_there_is_no_third_number():
    assert ceilings("allreduce", Job((typed(None, 123.0),))).achievable is None


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (FOUR, InputGiven("NIC 4×100 Gb/s", "--nic")),
        (Job((typed(None),)), InputGiven("NVLink 300 GB/s", "--nvlink")),
        (Job((node_of(switched(8, 12)),)), SumsNotCounted("--nvls")),
        (Job((node_of(switched(8, 18, "sm_90", GEN5, infiniband(4, 100))),) * 4), SumsNotCounted("--sharp", "NIC 4×100 Gb/s", "test")),
        (Job((node_of(switched(8, 18, "sm_90")),)), InputRead("NVLink 18×25 GB/s", "test")),
    ],
)
def test_the_doubtful_input_is_the_one_that_was_not_counted(job, expected):
    assert doubtful_input("allreduce", job) == expected


NODES = st.builds(
    lambda count, gbit, nvlink, each: typed(f"{count}x{gbit}Gb", float(nvlink), each=each),
    st.integers(1, 8), st.sampled_from([25, 100, 400]), st.sampled_from([64, 300, 450]), st.integers(1, 8),
)  # fmt: skip


@given(nodes=st.lists(NODES, min_size=1, max_size=5), operation=st.sampled_from(RINGS), data=st.data())
@settings(max_examples=80, deadline=None)
def test_the_bound_is_never_below_the_ring_and_faster_nics_never_lower_it(nodes, operation, data):
    """Both hold for all operations that have a ring."""
    job = Job(tuple(nodes))
    found = ceilings(operation, job)
    if job.several and job.ranks > 1:
        assert found.bound.bytes_per_s >= found.ring.bytes_per_s
        which = data.draw(st.integers(0, len(nodes) - 1))
        faster = replace(nodes[which], egress=replace(nodes[which].egress, bytes_per_s=2 * nodes[which].egress.bytes_per_s))
        better = ceilings(operation, Job((*nodes[:which], faster, *nodes[which + 1 :])))
        assert better.bound.bytes_per_s >= found.bound.bytes_per_s * (1 - 1e-12)
        assert better.ring.bytes_per_s >= found.ring.bytes_per_s


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if like(name) not in ("barrier", "multipair")])
def test_equal_nodes_as_one_object_or_as_many(operation):
    many = Job(tuple(typed() for _ in range(4)))
    assert rates(operation, many) == rates(operation, FOUR)
