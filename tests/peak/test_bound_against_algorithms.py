"""The hard bound against what algorithms do: none of them, and no mixture of them, may pass it on a machine that is as described.

An algorithm is what it puts on each link: seconds per byte of the operation's size S, as nccl-tests counts it. Links are full duplex,
everything overlaps, so an algorithm takes as long as its busiest link. Parts of S may go by different algorithms: mixtures are found by
fictitious play, in which the best answer to the links' prices is added in each turn; each mixture is itself an algorithm.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
import pytest

from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.node import BUS_FACTOR, Job, UserOverride, node_from_user, node_of, parse_nic, parse_pcie
from tests.peak.made import GEN4, gpus, wired

RINGS = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")
OPERATIONS = (*RINGS, "gather", "scatter", "alltoall")


@dataclass
class Machine:
    """Ranks on nodes. Every way from one GPU to another is a list of the links that it takes; `rate` has them in GB/s."""

    sizes: tuple[int, ...]
    rate: dict[object, float]
    pairs: dict[tuple[int, int], float] | None = None  # a mesh in one node; None: a switch
    pcie: bool = False  # a GPU's PCIe link carries what goes to NICs and to GPUs without a link of their own

    @property
    def node(self) -> list[int]:
        return [index for index, size in enumerate(self.sizes) for _ in range(size)]

    def ways(self, a: int, b: int) -> list[list[object]]:
        """The first is the one over links inside, where there is one."""
        here, there = self.node[a], self.node[b]
        slots: list[object] = [("pcie out", a), ("pcie in", b)] if self.pcie else []
        nics: list[list[object]] = [[*slots, ("nic out", here), ("nic in", there)]] if len(self.sizes) > 1 else []
        if here != there:
            return nics
        if self.pairs is None:
            return [[("out", a), ("in", b)], *nics]
        direct: list[list[object]] = [[("pair", a, b)]] if (min(a, b), max(a, b)) in self.pairs else []
        return [*direct, *([slots] if slots else []), *nics]


def switch(sizes, links, nics):
    """Nodes with an NVSwitch: GB/s of each GPU, of each node's NICs."""
    rate = {(word, rank): links for word in ("out", "in") for rank in range(sum(sizes))}
    rate |= {(word, node): nic for word in ("nic out", "nic in") for node, nic in enumerate(nics)}
    nodes = [node_from_user(size, UserOverride(parse_nic(f"1x{nic * 8}Gb"), links * 1e9)) for size, nic in zip(sizes, nics, strict=True)]
    return Machine(sizes, rate), Job(tuple(nodes))


def single(sizes, nics):
    """Nodes with one GPU each, on PCIe Gen4 x16."""
    rate = {(word, rank): 31.507692 for word in ("pcie out", "pcie in") for rank in range(len(sizes))}
    rate |= {(word, node): nic for word in ("nic out", "nic in") for node, nic in enumerate(nics)}
    nodes = [node_from_user(1, UserOverride(parse_nic(f"1x{nic * 8}Gb"), None, parse_pcie("gen4x16"))) for nic in nics]
    return Machine(sizes, rate, pcie=True), Job(tuple(nodes))


def mesh(count, pairs, box=False):
    """One node: links of 25 GB/s between pairs, beside PCIe Gen4 x16 in a box."""
    rate = {("pair", *ends): number * 25.0 for (i, j), number in pairs.items() for ends in ((i, j), (j, i))}
    rate |= {(word, rank): 31.507692 for word in ("pcie out", "pcie in") for rank in range(count)}
    return Machine((count,), rate, dict.fromkeys(pairs, 1.0), box), Job((node_of(wired(gpus(count), pairs, pcie=GEN4)),))


CASES = {
    "2x2, NVLink slower than two NICs": switch((2, 2), 64, (126, 126)),
    "2x2, NVLink faster": switch((2, 2), 300, (25, 25)),
    "2x2, NICs far faster than NVLink": switch((2, 2), 50, (800, 800)),
    "2 and 1 GPUs": switch((2, 1), 100, (50, 50)),
    "3 and 1 GPUs, one NIC slower": switch((3, 1), 100, (50, 20)),
    "1 and 3 GPUs": switch((1, 3), 80, (50, 60)),
    "3x1": single((1, 1, 1), (25, 25, 25)),
    "3x1, one NIC slower": single((1, 1, 1), (25, 10, 25)),
    "2x1, NICs faster than PCIe": single((1, 1), (200, 200)),
    "1x3 on a switch": switch((3,), 300, (50,)),
    "a bridged pair": mesh(2, {(0, 1): 12}),
    "a bridged pair and one on PCIe": mesh(3, {(0, 1): 12}, box=True),
    "two bridged pairs": mesh(4, {(0, 1): 12, (2, 3): 12}, box=True),
    "PCIe alone": mesh(3, {}, box=True),
    "an even mesh": mesh(4, {(i, j): 4 for j in range(4) for i in range(j)}),
    "a chain": mesh(4, {(0, 1): 2, (1, 2): 1, (2, 3): 2}),
    "an uneven mesh": mesh(4, {(0, 1): 4, (2, 3): 4, (0, 2): 1, (1, 3): 2}),
}


def trees(count: int) -> Iterator[list[tuple[int, int]]]:
    """All spanning trees, by their Prüfer sequences."""
    for code in product(range(count), repeat=count - 2):
        left, sequence, edges = set(range(count)), list(code), []
        while len(left) > 2:
            leaf = min(rank for rank in left if rank not in sequence)
            edges.append((leaf, sequence.pop(0)))
            left.remove(leaf)
        yield [*edges, (min(left), max(left))]


def side_of(edge: tuple[int, int], tree: list[tuple[int, int]]) -> set[int]:
    """The ranks that are on the edge's first end's side of a tree."""
    found, more = {edge[0]}, [edge[0]]
    while more:
        at = more.pop()
        near = [b if a == at else a for a, b in tree if at in (a, b) and {a, b} != set(edge)]
        more += [rank for rank in near if rank not in found]
        found |= set(near)
    return found


def on_tree(operation: str, edge: tuple[int, int], tree: list[tuple[int, int]], count: int) -> float:
    """Bytes per byte of S that go from the edge's first end to its second; the root is rank 0."""
    before = side_of(edge, tree)
    behind = 1 - len(before) / count
    return {
        "allreduce": 1.0, "allgather": 1 - behind, "reducescatter": behind,
        "broadcast": float(0 in before), "reduce": float(0 not in before),
        "gather": 0.0 if 0 in before else 1 - behind, "scatter": behind if 0 in before else 0.0,
    }[operation]  # fmt: skip


def traffic(operation: str, count: int) -> Iterator[dict[tuple[int, int], float]]:
    """What each algorithm sends from rank to rank, per byte of S: everything direct, along each tree, round each ring."""
    if operation == "alltoall":
        yield dict.fromkeys(permutations(range(count), 2), 1 / count)
        return
    for tree in trees(count):
        ends = [ends for a, b in tree for ends in ((a, b), (b, a))]
        yield {edge: on_tree(operation, edge, tree, count) for edge in ends}
    if operation in ("allreduce", "allgather", "reducescatter"):
        parts = (count - 1) / count * (2 if operation == "allreduce" else 1)
        for order in permutations(range(1, count)):
            ring = (0, *order)
            yield dict.fromkeys(zip(ring, (*ring[1:], 0), strict=True), parts)


def seconds(operation: str, machine: Machine) -> np.ndarray:
    """Algorithms × links: how long each keeps each link busy, for one byte of S in units of 1e-9. Way 0, or the last one, everywhere."""
    place = {link: index for index, link in enumerate(machine.rate)}
    rows = []
    for flows in traffic(operation, sum(machine.sizes)):
        if not all(machine.ways(*ends) for ends, amount in flows.items() if amount):
            continue
        for way in (0, -1):
            row = np.zeros(len(place))
            for ends, amount in flows.items():
                for link in machine.ways(*ends)[way] if amount else ():
                    row[place[link]] += amount / machine.rate[link]
            rows.append(row)
    return np.unique(np.array(rows), axis=0)


def best_mixture(times: np.ndarray, turns: int) -> float:
    """Seconds of the best mixture found. The first turns, which know little, are forgotten."""
    found, busy, kept = float(times.max(axis=1).min()), np.zeros(times.shape[1]), np.zeros(times.shape[1])
    for turn in range(turns):
        price = np.exp(np.minimum(0, 60 * (busy / max(busy.max(), 1e-300) - 1)))
        row = times[np.argmin(times @ price)]
        busy += row
        if turn >= turns // 4:
            kept += row
    return min(found, float(kept.max()) / (turns - turns // 4), float(busy.max()) / turns)


NO_WAY = [(case, "alltoall") for case in ("a chain", "an uneven mesh")]  # some pairs would need relays


@pytest.mark.parametrize(("case", "operation"), [each for each in product(CASES, OPERATIONS) if each not in NO_WAY])
def test_no_algorithm_passes_the_bound_and_some_reach_the_ring(case, operation):
    machine, job = CASES[case]
    found = ceilings(operation, job)
    reached = BUS_FACTOR[operation](job.ranks) / best_mixture(seconds(operation, machine), 400)
    assert reached <= found.bound.bytes_per_s / 1e9 * (1 + 1e-6)
    if found.ring:
        assert reached >= 0.97 * found.ring.bytes_per_s / 1e9


TIGHT = [
    ("2x2, NVLink slower than two NICs", "allreduce", 127.0),  # 64 + 63
    ("2x2, NVLink slower than two NICs", "broadcast", 126.0),
    ("2x2, NICs far faster than NVLink", "alltoall", 450.0),  # 50 + 400
    ("2x2, NVLink faster", "allreduce", 37.5), ("3 and 1 GPUs, one NIC slower", "allreduce", 30.0), ("3x1", "allreduce", 25.0),
    ("a bridged pair and one on PCIe", "allreduce", 42.0), ("two bridged pairs", "allreduce", 94.5),
]  # fmt: skip


@pytest.mark.parametrize(("case", "operation", "bound"), TIGHT)
def test_bounds_that_algorithms_all_but_reach(case, operation, bound):
    machine, job = CASES[case]
    assert ceilings(operation, job).bound.bytes_per_s / 1e9 == pytest.approx(bound, rel=1e-3)
    reached = BUS_FACTOR[operation](job.ranks) / best_mixture(seconds(operation, machine), 2000)
    assert reached == pytest.approx(bound, rel=0.05)


def test_two_levels_pass_the_links_inside():
    """4×8 GPUs of 450 GB/s, NICs of 400: reduce-scatter inside, all-reduce of the eighths between, all-gather inside.

    The links inside carry 2·7/8·S, the NICs 2·3/4·S of a node: 498 GB/s, more than the 450 of one GPU's links, which do not limit it.
    """
    inside, between = 2 * 7 / 8 / 450, 2 * 3 / 4 / 400
    reached = 2 * 31 / 32 / max(inside, between)
    assert reached == pytest.approx(498.2, rel=1e-3)
    job = Job((node_from_user(8, UserOverride(parse_nic("8x400Gb"), 450e9, nvls=False)),) * 4)
    assert reached < ceilings("allreduce", job).bound.bytes_per_s / 1e9 == pytest.approx(500.0)
