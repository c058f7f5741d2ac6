"""Every operation's ceilings on typed and probed nodes, the limiting link named, and the model of a curve."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.machine.peak.collective import OPERATIONS, CollectiveCeilings, ceilings, like, pairs_by_node
from collbench.machine.peak.comparison import assumed, doubtful_input
from collbench.machine.peak.job import check_ranks
from collbench.machine.peak.links import Link
from collbench.machine.peak.node import Job, Node, UserOverride, node_from_user, node_of
from collbench.operations.case import Case
from collbench.operations.dtypes import DTYPES
from collbench.operations.groups import groups_of
from collbench.operations.registry import operations
from tests.peak.made import GEN5, gpus, infiniband, switched, typed, wired

RINGS = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")


def rates(operation, job):
    found = ceilings(operation, job)
    both = [one and one.bytes_per_s for one in (found.expected, found.bound)]
    return tuple(None if rate is None else round(rate / 1e9, 2) for rate in both)


FOUR = Job((typed(),) * 4)  # 4 × 8 GPUs, Bg 300, Bn 50; N - 1 = 31


@pytest.mark.parametrize(("operation", "model", "expected", "bound"), [
    ("allreduce", "ring", 48, 64.58),  # NCCL's 12 of 12.5 GB/s for each NIC; 50 · 31/24
    ("allgather", "ring", 48, 64.58), ("reducescatter", "ring", 48, 64.58),
    ("hypercube", "direct", 7.69, 8.07),  # steps inside and between the nodes add up; 50/8 · 31/24
    ("broadcast", "ring", 48, 50), ("reduce", "ring", 48, 50), ("alltoall", "direct", 7.75, 8.07), ("alltoallv", "direct", 7.75, 8.07),
    ("allgatherv", "ring", 48, 64.58), ("reducescatterv", "ring", 48, 64.58), ("gatherv", "direct", 62, 64.58),
    ("scatterv", "direct", 62, 64.58), ("scan", "ring", 48, 50), ("exscan", "ring", 48, 50), ("gather", "direct", 62, 64.58),
    ("scatter", "direct", 62, 64.58), ("sendrecv", "bound", 50, 50), ("p2p", "bound", 50, 50),
    ("multipair", "bound", 100, 100),  # two nodes send
    ("put", "bound", 50, 50), ("get", "bound", 50, 50), ("accumulate", "bound", 50, 50), ("neighbor-allgather", "bound", 50, 50),
    ("neighbor-alltoall", "bound", 50, 50),
])  # fmt: skip
def test_every_operation_on_four_nodes(operation, model, expected, bound):
    assert rates(operation, FOUR) == (expected, bound)
    assert ceilings(operation, FOUR).expected.model == model


def test_a_barrier_moves_nothing():
    assert ceilings("barrier", FOUR) == CollectiveCeilings(None, None)


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if like(name) not in ("barrier", "multipair")])
def test_the_only_link_limits_and_equal_nodes_are_one_object_or_many(operation):
    nvlink = ceilings(operation, Job((typed(nic=None),))).bound
    assert (nvlink.bytes_per_s, nvlink.limited_by, nvlink.source) == (pytest.approx(300e9), "NVLink 300 GB/s", "--nvlink")
    nic = ceilings(operation, Job((typed("1x100Gb", None, "gen4x16", each=1),) * 4)).bound
    assert (nic.bytes_per_s, nic.limited_by) == (pytest.approx(12.5e9), "NIC 1×100 Gb/s")
    assert rates(operation, Job(tuple(typed() for _ in range(4)))) == rates(operation, FOUR)


TWO = Job((typed(each=1),) * 2)
RATES = {
    "two ranks are both neighbours of one another": ("neighbor-alltoall", TWO, (50, 50)),
    "two ranks need what is gathered once": ("neighbor-allgather", TWO, (100, 100)),
    # min(Bg + Bn/g, (Bn/g)·(N-1)/(N-g)): with NICs faster than NVLink a GPU's neighbours are reached over these as well
    "all-to-all over NVLink and NICs": ("alltoall", Job((typed("8x400Gb", 50.0),) * 2),
        (40 + 48, round(min(50 + 400 / 8, 400 / 8 * 15 / 8), 2))),
    "all-to-all over NVLink and faster NICs": ("alltoall", Job((typed("32x400Gb", 50.0),) * 2), (40 + 192, 50 + 1600 / 8)),
    "NVLS is for sums alone": ("allgather", Job((typed(None, 450.0),)), (370.8, 450)),
    "even traffic of alltoallv": ("alltoallv", replace(FOUR, traffic=[[1000.0] * 32] * 32), rates("alltoall", FOUR)),
    "16 pairs, each with an eighth of a node's 50 GB/s": ("multipair", FOUR, (100, 100)),
    "pairs of the ranks of the first node": ("multipair", replace(FOUR, pairs=8), (50, 50)),
    "the ninth pair has a node to itself; the time ends with the other eight": ("multipair", replace(FOUR, pairs=9), (56.25, 56.25)),
    "four pairs inside the node, 300 GB/s each": ("multipair", Job((typed(nic=None),)), (960, 1200)),
    "the first node sends to both others, the second sends and receives": ("multipair", Job((typed("1x100Gb", None, each=2),) * 3),
        (18.75, 18.75)),
    "of 4 pairs 2 leave the first node": ("multipair", Job((typed("1x100Gb", 150.0, each=6), typed("4x100Gb", 150.0, each=2))), (25, 25)),
}  # fmt: skip


@pytest.mark.parametrize(("operation", "job", "both_rates"), RATES.values(), ids=RATES)
def test_rates(operation, job, both_rates):
    assert rates(operation, job) == both_rates


@pytest.mark.parametrize(("nvlink", "each", "nvls", "model", "both_rates"), [
    (450, 8, None, "nvls", (517.09, 700)),  # 18·20.6·0.85·15/16·7/4; 450·7/4·8/9
    (450, 8, True, "nvls", (517.09, 700)), (450, 8, False, "ring", (370.8, 450)), (450, 5, None, "nvls", (472.77, 600)),
    (450, 4, None, "ring", (370.8, 450)),  # NCCL does not use NVLink SHARP
    (450, 2, True, "ring", (370.8, 450)),  # 2(N-1)/N·g/(g+1) is 2/3: a ring is faster
    (900, 8, None, "nvls", (876.31, 1400)),  # 18·40.1·0.74·15/16·7/4
    (300, 8, None, "ring", (240, 300)),  # A100
    (200, 8, True, "nvls", (229.82, 311.11)),  # H800: 8·20.6; published 217
    (448, 8, None, "ring", (336, 448)),  # MI300X: xGMI
    (537.6, 8, None, "ring", (336, 537.6)),  # MI350: faster than an H100's NVLinks, and no switch
    (150, 8, None, "ring", (120, 150)),
    (440, 8, None, "ring", (362.56, 440)),  # not a whole number of links: the share of the oldest generation that is fast enough
    (1800, 8, None, "nvls", (1752.62, 2800)),  # a generation without constants yet: those of the newest one
])  # fmt: skip
def test_all_reduce_inside_a_domain(nvlink, each, nvls, model, both_rates):
    job = Job((typed(None, nvlink, nvls=nvls, each=each),))
    found = ceilings("allreduce", job).expected
    assert (found.model, rates("allreduce", job)) == (model, both_rates)
    assert found.efficiency == pytest.approx(both_rates[0] / nvlink / (2 * (each - 1) / each if model == "nvls" else 1), rel=1e-4)
    assert found.constants.endswith("CCL's constants")


@pytest.mark.parametrize(("job", "model", "expected"), [
    (Job((typed("8x400Gb", 450.0),) * 2), "nvls_tree", 554.03),  # 18·20.6·0.85·15/16·2·15/16 inside
    (Job((typed("8x200Gb", 450.0),) * 2), "nvls_tree", 360),  # 2·15/16·200·0.96 between
    (Job((typed("4x100Gb", 300.0),) * 2), "tree", 82.8),  # 2·15/16·50·0.96·0.92
    (Job((typed("8x200Gb", 300.0),) * 2), "tree", 207),  # 240·0.92·15/16 inside
    (Job((typed("8x400Gb", 448.0),) * 2), "ring", 384),  # RCCL's 336·8/7 = 384 inside: a ring has 7 edges in each node
    (Job((typed("8x800Gb", 448.0),) * 2), "ring", 384),
    (Job((typed("1x100Gb", None, each=1),) * 2), "ring", 12),  # a tree of two ranks is no better than a ring
    (Job((typed("8x400Gb", 450.0),) * 3), "ring", 384),  # more than two nodes
    (Job((typed("8x800Gb", 900.0),) * 4), "ring", 768), (Job((typed("8x400Gb", 450.0, nvls=False),) * 2), "ring", 384),
])  # fmt: skip
def test_all_reduce_between_nodes(job, model, expected):
    found = ceilings("allreduce", job)
    assert (found.expected.model, rates("allreduce", job)[0]) == (model, expected)
    assert found.ring.bytes_per_s <= found.expected.bytes_per_s <= found.bound.bytes_per_s


def test_without_a_librarys_constants_a_ring_on_the_wires_is_expected():
    """Of MPI on two hosts, for example."""
    inside = Link(None, "shared memory")
    job = Job((Node(4, inside, Link(12.5e9, "NIC 1×100 Gb/s"), neighbours=inside),) * 2)
    found = ceilings("allreduce", job).expected
    assert (found.model, found.bytes_per_s, found.efficiency, found.constants) == ("ring", 12.5e9, None, "")


@pytest.mark.parametrize(("nodes", "node", "bound"), [
    (16, typed("2x400Gb", 50.0, each=2, nvls=None), 145.3125),  # (N-1)/N·(Bg + 2·Bn/g)
    (16, typed("8x400Gb", 450.0, each=8, nvls=False), 545.7),
    (16, typed("8x400Gb", 450.0, each=8, nvls=True), 793.75),  # Bn·2(N-1)/N
    (4, typed("4x100Gb", 300.0, each=8, nvls=None), 96.875),
    (4, typed("2x400Gb", None, "gen4x16", each=2), 55.138),  # 31.508·2·7/8: each GPU sends its data once over its PCIe link
])  # fmt: skip
def test_sharp_in_the_fabric(nodes, node, bound):
    """Part of the data may go from each GPU into the fabric's sums, and the rest be summed inside the node first."""
    job = Job((node,) * nodes)
    assert ceilings("allreduce", replace(job, sharp=True)).bound.bytes_per_s == pytest.approx(bound * 1e9, rel=1e-4)
    assert rates("allgather", replace(job, sharp=True)) == rates("allgather", job)


def test_a_ceiling_that_is_given_replaces_all():
    found = ceilings("alltoall", replace(FOUR, ceiling_from_user=42e9))
    assert (found.expected.kind, found.expected.bytes_per_s, found.bound, found.ring) == ("given", 42e9, None, None)


BEHIND_PCIE = Job((typed("4x400Gb", None, "gen5x16", each=1),) * 2)
PCIE_JOB = Job((typed("8x400Gb", 450.0, "gen5x16"),) * 2)
MI300X = Job((node_of(wired(gpus(8, "gfx942"), {(i, j): 1 for i in range(8) for j in range(i)}, "xgmi")),))
BUSY = [[1e9 / 8 if i < 8 <= j else 0.0 for j in range(16)] for i in range(16)]  # node 0 sends 8 GB to node 1, nothing else moves
ALONE = [[float(i == j) for j in range(16)] for i in range(16)]
TWO_OF_FOUR = node_of(switched(2, 18, "sm_100", GEN5, infiniband(4, 400)))
FAST = replace(node_of(switched(8, 18, "sm_90", GEN5, infiniband(8, 400))), host="a1")
SLOW = replace(node_of(switched(8, 12, "sm_80", GEN5, infiniband(4, 200))), host="b7")
LIMITS = {
    "an oversubscribed fabric": ("allreduce", replace(FOUR, oversubscription=2.0), "expected", 24e9, "NIC 4×100 Gb/s, fabric 2:1"),
    "pairs between nodes share the NICs": ("p2p", replace(FOUR, pairs=4), "bound", 12.5e9, "NIC 4×100 Gb/s shared by 4 pairs"),
    "edges between nodes share the NICs": ("sendrecv", replace(FOUR, ring_edges=4), "bound", 12.5e9,
        "NIC 4×100 Gb/s shared by 4 edges of the ring"),
    "more NICs than a PCIe link carries": ("allreduce", BEHIND_PCIE, "bound", 63.015e9, "PCIe Gen5 x16"),
    "what NCCL expects of it": ("allreduce", BEHIND_PCIE, "expected", 48e9, "PCIe Gen5 x16"),
    "a message leaves the node over its GPU's PCIe link": ("sendrecv", PCIE_JOB, "bound", 63.015e9, "PCIe Gen5 x16"),
    # MI300X: seven links, one of them to each other GPU
    "a message inside a mesh": ("p2p", MI300X, "bound", 64e9, "xGMI 1×64 GB/s of a pair"),
    "a ring inside a mesh": ("sendrecv", MI300X, "bound", 64e9, "xGMI 1×64 GB/s of a pair"),
    # 8 GB / 50 GB/s. The size is what one rank sends, 1 GB; 15/16 of it count
    "uneven traffic": ("alltoallv", Job((typed(),) * 2, traffic=BUSY), "bound", 15 / 16 * 1e9 / (8e9 / 50e9), "NIC 4×100 Gb/s"),
    "two GPUs with more NICs than their PCIe links carry": ("allreduce", Job((TWO_OF_FOUR,) * 2), "ring", 96e9, "PCIe Gen5 x16 of 2 GPUs"),
    "nodes that differ": ("allreduce", Job((FAST, SLOW, FAST)), "expected", 96e9, "NIC 4×200 Gb/s of b7"),
    "the hard limit of nodes that differ": ("allreduce", Job((FAST, SLOW, FAST)), "bound", 2 * 23 / 24 * min(100e9, 900e9 / 4),
        "NIC 4×200 Gb/s of b7"),
    "switches that reduce": ("allreduce", Job((typed(None, 450.0),)), "bound", 700e9, "NVLink 450 GB/s with NVLink SHARP"),
    "switches that do not reduce": ("allreduce", Job((typed(None, 450.0, nvls=False),)), "bound", 450e9, "NVLink 450 GB/s"),
    "nodes whose NICs are alike": ("allreduce", Job((FAST, replace(FAST, gpus=4, host="c"))), "ring", 384e9, "NIC 8×400 Gb/s"),
}  # fmt: skip


@pytest.mark.parametrize(("operation", "job", "kind", "bytes_per_s", "limited_by"), LIMITS.values(), ids=LIMITS)
def test_the_limiting_link_is_named(operation, job, kind, bytes_per_s, limited_by):
    limit = getattr(ceilings(operation, job), kind)
    assert (limit.bytes_per_s, limit.limited_by) == (pytest.approx(bytes_per_s, rel=1e-4), limited_by)


def test_traffic_within_ranks_alone_crosses_nothing():
    found = ceilings("alltoallv", Job((typed(),) * 2, traffic=ALONE)).bound
    assert (found.bytes_per_s, found.model) == (None, "bound") and "no byte" in found.limited_by


@pytest.mark.parametrize(("operation", "nic", "options", "expected"), [
    ("p2p", "8x400Gb", {}, 50), ("sendrecv", "8x400Gb", {}, 50), ("p2p", "32x100Gb", {}, 50),
    ("neighbor-alltoall", "8x400Gb", {}, 100),  # a GPU sends half a size to each side; two GPUs send to other nodes
    ("p2p", "8x400Gb", {"pairs": 16}, 25), ("multipair", "8x400Gb", {"pairs": 1}, 50),
    ("p2p", "4x400Gb", {}, 200),  # fewer NICs than GPUs: which of them a GPU uses is unknown
])  # fmt: skip
def test_a_message_between_nodes_uses_the_nic_of_its_gpu(operation, nic, options, expected):
    job = Job((typed(nic, 450.0),) * 2, **options)
    assert rates(operation, job)[0] == expected
    assert any("each GPU has its own NIC" in sentence for sentence in assumed(operation, job)) == (nic != "4x400Gb")


def test_more_pairs_than_ranks_make_are_rejected():
    job = Job((typed("8x400Gb", 450.0),) * 2, pairs=9)
    check_ranks("multipair", replace(job, pairs=8))
    check_ranks("p2p", job)
    with pytest.raises(UsageError, match="16 ranks make at most 8 pairs"):
        check_ranks("multipair", job)
    with pytest.raises(UsageError, match="two ranks"):
        check_ranks("p2p", Job((typed(each=1),)))


def test_an_unknown_rate_is_a_ring_and_a_hard_limit_without_a_rate():
    found = ceilings("allreduce", Job((typed("", None),) * 2))
    assert (found.expected.model, found.bound.model, found.bound.bytes_per_s) == ("ring", "bound", None)
    assert (found.bound.as_json(complete=True)["limited_by_parts"], "limited_by_parts" in found.bound.as_json()) == ([], False)


@pytest.mark.parametrize(("ranks_of_a_node", "share"), [(2, 0.75), (4, 7 / 16)])
def test_a_hypercube_sends_most_bytes_in_the_last_step(ranks_of_a_node, share):
    """Measured on two hosts with 100 Mbit/s: 75 % and 44 % of the link."""
    inside = Link(None, "shared memory")
    job = Job((Node(ranks_of_a_node, inside, Link(1e9, "NIC 1×8 Gb/s"), neighbours=inside),) * 2)
    found = ceilings("hypercube", job)
    assert found.expected.bytes_per_s == found.bound.bytes_per_s == pytest.approx(share * 1e9)
    ranks = 2 * ranks_of_a_node
    cyclic = replace(job, placement=tuple(rank % 2 for rank in range(ranks)))  # then the first step leaves the nodes, with the least bytes
    assert ceilings("hypercube", cyclic).bound.bytes_per_s == pytest.approx((ranks - 1) / ranks_of_a_node * 1e9)
    unlike = Job((typed("1x80Gb", None, each=3), typed("1x80Gb", None, each=1)))
    assert ceilings("hypercube", unlike).bound.bytes_per_s == pytest.approx(3 / 4 * 10e9 / (1 / 4 + 2 / 4))  # rank 3 sends to ranks 2 and 1


def test_links_inside_do_not_limit_a_hypercube_whose_steps_all_leave_the_nodes():
    inside = Link(1e9, "shared memory")
    nodes = (Node(2, inside, Link(10e9, "NIC 1×80 Gb/s"), neighbours=inside),) * 2
    across = ceilings("hypercube", Job(nodes, placement=(0, 1, 1, 0))).expected
    assert (across.bytes_per_s, across.limited_by) == (pytest.approx(3 / 4 * 10e9 / (2 / 4 + 4 / 4)), "NIC 1×80 Gb/s")
    cyclic = ceilings("hypercube", Job(nodes, placement=(0, 1, 0, 1))).expected  # the second step, with half of the data, stays inside
    assert (cyclic.bytes_per_s, cyclic.limited_by) == (pytest.approx(3 / 4 / (2 / 4 / 10e9 + 2 / 4 / 1e9)), "shared memory")


@pytest.mark.parametrize(("operation", "bound"), [
    ("allgatherv", 12.5),  # 6 of 8 GB leave the first node: 3/4·8 GB/(6 GB/12.5 GB/s)
    ("reducescatterv", 12.5),  # 6 GB of sums come in
    ("gatherv", 37.5),  # the root is on the first node: 2 GB come in
    ("scatterv", 37.5),
])  # fmt: skip
def test_parts_of_unequal_sizes_on_two_nodes(operation, bound):
    job = Job((typed("1x100Gb", each=2),) * 2, traffic=[[6e9, 0.0, 1e9, 1e9]])
    found = ceilings(operation, job).bound
    assert (found.bytes_per_s, found.limited_by) == (pytest.approx(bound * 1e9), "NIC 1×100 Gb/s")
    assert rates(operation, job)[0] == pytest.approx(0.96 * bound)


@pytest.mark.parametrize("operation", ["allgatherv", "reducescatterv"])
@pytest.mark.parametrize(("largest", "ring"), [(1000.0, 12e9), (1009.0, 12e9), (1011.0, None)])
def test_a_ring_is_a_reference_for_parts_that_are_equal_within_1_percent(operation, largest, ring):
    found = ceilings(operation, Job((typed("1x100Gb", each=2),) * 2, traffic=[[1000.0, 1000.0, 1000.0, largest]]))
    assert (found.expected.model, found.ring and found.ring.bytes_per_s) == ("ring" if ring else "direct", ring)


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


@pytest.mark.parametrize(("operation", "job", "why"), [
    *(("alltoallv", replace(FOUR, traffic=traffic), "must be 32 × 32 numbers")
        for traffic in ([[0.0]], [[-1.0] * 32] * 32, [[float("nan")] * 32] * 32)),
    ("hypercube", Job((typed(each=3),)), "not 3:"), ("hypercube", Job((typed(),) * 3), "not 24:"),
])  # fmt: skip
def test_jobs_without_ceilings_are_refused(operation, job, why):
    with pytest.raises(UsageError, match=why):
        ceilings(operation, job)


UNKNOWN_NVLINKS = wired(gpus(3, None), {(0, 1): 18})  # the model of the GPUs is unknown, and so is the rate of their NVLinks
ONE_PCIE_LINK_KNOWN = replace(UNKNOWN_NVLINKS, pci=UNKNOWN_NVLINKS.pci[:1])


@pytest.mark.parametrize(("job", "why"), [
    (Job((typed(nic=None),) * 2), "the rate between nodes is unknown: the NICs are unknown: add --nic, such as --nic 4x100Gb/s"),
    (Job((typed(each=1),)), "one rank moves nothing"),
    (Job((node_from_user(8, UserOverride()),)), "the links between the GPUs are unknown: add --nvlink GB/s or --pcie gen4x16"),
    (Job((node_of(ONE_PCIE_LINK_KNOWN),)), "nothing is known of the links"),
])  # fmt: skip
def test_what_is_unknown_is_reported_and_not_0(job, why):
    found = ceilings("allreduce", job)
    assert (found.expected.bytes_per_s, found.expected.limited_by, found.bound.bytes_per_s, found.ring) == (None, why, None, None)


@pytest.mark.parametrize(("machine", "gb"), [
    (switched(8, 12), 240), (switched(8, 18, "sm_90"), 517.09), (switched(4, 18, "sm_90"), 370.8), (switched(8, 18, "sm_100"), 876.31),
    (switched(8, 18, "sm_110"), 517.09), (wired(gpus(3), {}), 24), (wired(gpus(3), {(0, 1): 12}), 24),
])  # fmt: skip
def test_what_nccls_constants_allow_on_counted_links(machine, gb):
    machine = replace(machine, gpu_links=tuple(replace(link, bytes_per_s=25e9) for link in machine.gpu_links)) if gb == 517.09 else machine
    found = ceilings("allreduce", Job((node_of(machine),))).expected
    assert found.bytes_per_s == pytest.approx(gb * 1e9, rel=1e-4)
    assert found.constants == "NCCL's constants"


NVLS = "reductions inside switches (NVLink SHARP) are not counted: add --nvls if they are in use"
SHARP = "reductions inside switches (InfiniBand SHARP) are not counted: add --sharp if they are in use"


@pytest.mark.parametrize(("job", "expected"), [
    (FOUR, "NIC 4×100 Gb/s was given with --nic"), (Job((typed(None),)), NVLS), (Job((typed(None, 450.0, nvls=False),)), NVLS),
    (Job((typed(None, 450.0),)), "NVLink 450 GB/s was given with --nvlink"),
    (Job((typed(None, 448.0),)), "xGMI 7×64 GB/s was given with --nvlink"), (Job((typed("8x400Gb", 100.0, each=4),) * 2), NVLS),
    (Job((typed(None, None, "gen4x16"),)), "PCIe Gen4 x16 was given with --pcie"), (Job((node_of(switched(8, 12)),)), NVLS),
    (Job((node_of(switched(8, 18, "sm_90", GEN5, infiniband(4, 100))),) * 4), f"NIC 4×100 Gb/s is from test, and {SHARP}"),
    (Job((node_of(switched(8, 18, "sm_90")),)), "NVLink 18×25 GB/s is from test"),
])  # fmt: skip
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
        assert found.bound.bytes_per_s >= found.expected.bytes_per_s >= found.ring.bytes_per_s
        which = data.draw(st.integers(0, len(nodes) - 1))
        faster = replace(nodes[which], egress=nodes[which].egress.divided(0.5))
        better = ceilings(operation, Job((*nodes[:which], faster, *nodes[which + 1 :])))
        assert better.bound.bytes_per_s >= found.bound.bytes_per_s * (1 - 1e-12)
        assert better.expected.bytes_per_s >= found.expected.bytes_per_s
