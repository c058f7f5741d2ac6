"""Least times of partitions: closed forms for equal sets, and what every algorithm needs for unequal ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.peak.links import Link, wires_of
from collbench.machine.peak.node import BUS_FACTOR, Side, least_time, mesh_cuts, node_of
from tests.peak.made import gpus, wired

RATE = st.floats(1.0, 1e3)
SETS = st.lists(st.tuples(st.integers(1, 16), RATE), min_size=2, max_size=6)


def link(name: str) -> tuple[Link, ...]:
    return (Link(1.0, name),)


def busbw(operation, sides, adds=False):
    ranks = sum(side.ranks * side.times for side in sides)
    return BUS_FACTOR[operation](ranks) / least_time(operation, sides, adds).seconds_per_byte


@pytest.mark.parametrize("nodes", [2, 3, 4, 12])
@pytest.mark.parametrize("each", [1, 2, 8])
@pytest.mark.parametrize(("operation", "closed"), [
    ("allreduce", lambda n, g, ranks: (ranks - 1) / (g * (n - 1))), ("allgather", lambda n, g, ranks: (ranks - 1) / (g * (n - 1))),
    ("reducescatter", lambda n, g, ranks: (ranks - 1) / (g * (n - 1))), ("hypercube", lambda n, g, ranks: (ranks - 1) / (g * (n - 1))),
    ("broadcast", lambda n, g, ranks: 1.0), ("reduce", lambda n, g, ranks: 1.0),
    ("alltoall", lambda n, g, ranks: (ranks - 1) / (ranks - g) / g), ("gather", lambda n, g, ranks: (ranks - 1) / (ranks - g)),
    ("scatter", lambda n, g, ranks: (ranks - 1) / (ranks - g)),
])  # fmt: skip
def test_equal_sets_give_the_closed_forms(operation, closed, nodes, each):
    sides = (Side(each, 50.0, link("NIC"), nodes),)
    assert busbw(operation, sides) == pytest.approx(50 * closed(nodes, each, nodes * each))
    assert busbw(operation, (Side(each, 50.0, link("NIC")),) * nodes) == pytest.approx(busbw(operation, sides))


def test_factors():
    # SHARP needs one pass: 2(N-1)/N times the node's rate, however many nodes
    assert busbw("allreduce", (Side(8, 50.0, link("NIC"), 4),), adds=True) == pytest.approx(50 * 2 * 31 / 32)
    assert busbw("allreduce", (Side(2, 63.0, link("two")), Side(1, 31.5, link("PCIe")))) == pytest.approx(4 / 3 * 31.5)
    assert busbw("allreduce", (Side(1, 31.5, link("PCIe"), 3),)) == pytest.approx(31.5)


@pytest.mark.parametrize(("operation", "sides", "limiting", "seconds"), [
    ("broadcast", (Side(8, 50.0, link("fast")), Side(8, 20.0, link("slow"))), 1, 1 / 20),
    ("allgather", (Side(8, 50.0, link("fast")), Side(8, 20.0, link("slow"))), 1, 0.5 / 20),
    ("allgather", (Side(7, 50.0, link("seven")), Side(1, 50.0, link("one"))), 1, 7 / 8 / 50),  # the small set must receive more
    ("gather", (Side(8, 10.0, link("root")), Side(8, 50.0, link("other"))), 0, 0.5 / 10),
    ("gather", (Side(8, 50.0, link("root")), Side(8, 10.0, link("other"))), 1, 0.5 / 10),
])  # fmt: skip
def test_the_slowest_of_unequal_sets_is_named(operation, sides, limiting, seconds):
    found = least_time(operation, sides)
    assert (found.side, found.seconds_per_byte) == (sides[limiting], pytest.approx(seconds))


@pytest.mark.parametrize("operation", sorted(BUS_FACTOR))
def test_one_set_and_unknown_rates_limit_nothing(operation):
    assert least_time(operation, (Side(8, 50.0, link("alone")),)).seconds_per_byte == 0
    assert least_time(operation, (Side(8, float("inf"), link("?")), Side(8, float("inf"), link("?")))).side is None


@pytest.mark.parametrize("operation", sorted(BUS_FACTOR))
@given(sets=SETS, faster=st.floats(1.0, 10.0), which=st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_a_faster_link_never_makes_an_operation_slower(operation, sets, faster, which):
    sides = [Side(ranks, rate) for ranks, rate in sets]
    better = list(sides)
    better[which % len(sides)] = Side(sides[which % len(sides)].ranks, sides[which % len(sides)].bytes_per_s * faster)
    assert least_time(operation, better).seconds_per_byte <= least_time(operation, sides).seconds_per_byte * (1 + 1e-12)


@given(sets=SETS)
@settings(max_examples=50, deadline=None)
def test_a_ring_over_the_slowest_set_never_passes_the_bound(sets):
    """For every operation with a ring: in any ring, each set sends and receives what the bound asks for."""
    sides = [Side(ranks, rate) for ranks, rate in sets]
    for operation in ("allreduce", "allgather", "reducescatter", "hypercube", "broadcast", "reduce"):
        assert busbw(operation, sides) >= min(rate for _, rate in sets) * (1 - 1e-12)


def _smallest_by_trying(pairs, count, rate):
    best = float("inf")
    for chosen in range(1, 2 ** (count - 1)):
        inside = {i for i in range(count) if chosen >> i & 1}
        best = min(best, sum(links * rate for (i, j), links in pairs.items() if (i in inside) != (j in inside)))
    return best


@given(pairs=st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda p: p[0] < p[1]), st.integers(1, 3), min_size=4))
@settings(max_examples=60, deadline=None)
def test_the_cuts_of_a_mesh_hold_its_smallest(pairs):
    """Against all 31 cuts of six GPUs: the smallest is among single GPUs and the cuts found."""
    some = gpus(6)
    node = node_of(wired(some, pairs))
    if not node.apart:
        return
    found = min(side.bytes_per_s for cut in node.cuts for side in cut)
    assert found == pytest.approx(_smallest_by_trying(pairs, 6, 25e9))


def test_two_quads_on_a_thin_link_and_an_even_mesh_which_needs_no_search():
    """A ring has to cross the one link between the quads, and its two directions carry what the bound allows."""
    quads = {(i, j): 4 for block in (0, 4) for i in range(block, block + 4) for j in range(block, i)}
    node = node_of(wired(gpus(8), {**quads, (0, 4): 1}))
    assert min(side.bytes_per_s for cut in node.cuts[1:] for side in cut) == 25e9
    assert "between 4 and 4 GPUs, 25 GB/s" in {side.links[0].name.removeprefix("NVLink ") for cut in node.cuts[1:] for side in cut}
    even = wired(gpus(4), {(i, j): 4 for i in range(4) for j in range(i)})
    keys = [gpu.key for gpu in even.gpus]
    assert mesh_cuts(wires_of(even, keys), keys) == []


@pytest.mark.parametrize(
    ("ranks", "seconds", "limiting"), [((2, 1, 1), 0.5e-9, 0), ((3, 1), 0.25e-9, 0), ((1, 3), 0.75e-9, 0), ((1, 1, 2), 0.75e-9, 0)]
)
@pytest.mark.parametrize("operation", ["gather", "scatter"])
def test_the_root_s_own_part_stays_and_the_others_parts_cross(operation, ranks, seconds, limiting):
    """The root is in the first set; what it takes in from all others is more than what any of them gives."""
    sides = [Side(count, 1e9, link(f"NIC {number}")) for number, count in enumerate(ranks)]
    found = least_time(operation, sides)
    assert (found.seconds_per_byte, found.side) == (pytest.approx(seconds), sides[limiting])
    slow = [sides[0], *(Side(side.ranks, 0.1e9, side.links) for side in sides[1:])]
    largest = max(slow[1:], key=lambda side: side.ranks)
    found = least_time(operation, slow)
    assert (found.seconds_per_byte, found.side) == (pytest.approx(largest.ranks / sum(ranks) / 0.1e9), largest)
