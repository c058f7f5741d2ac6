"""Parts of ranks: they add up to the size, a file has one number per rank, and scans and uneven operations have exact limits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.links import Link
from collbench.machine.peak.node import Job, Node
from collbench.measuring.crossing import least
from collbench.operations.data import BufferExtent, bytes_needed
from collbench.operations.dtypes import DTYPES
from collbench.operations.operation import Place
from collbench.operations.registry import operations
from collbench.operations.sweep import Sweep
from collbench.operations.traffic import EVEN, Traffic, elements_by_rank, is_rough, read_traffic, skewed
from tests.helpers import make_case

UNEVEN = ("allgatherv", "gatherv", "scatterv", "reducescatterv")
PARTS = Traffic("made", matrix=((0.0, 5.0, 3.0),))
MATRIX = Traffic("made", matrix=((1.0, 2.0), (3.0, 4.0)))
WEIGHTS = st.lists(st.integers(0, 10**12), min_size=1, max_size=6).filter(any)


@settings(max_examples=100, deadline=None)
@given(WEIGHTS, st.integers(0, 2**41))
def test_parts_add_up_to_the_size_and_are_at_most_one_element_off(weights, count):
    parts = elements_by_rank(Traffic("made", matrix=(tuple(map(float, weights)),)), len(weights), count)
    assert sum(parts) == count and min(parts) >= 0
    assert all(abs(part * sum(weights) - weight * count) < sum(weights) for part, weight in zip(parts, weights, strict=True))
    assert all(part == 0 for part, weight in zip(parts, weights, strict=True) if not weight)


@pytest.mark.parametrize(
    ("skew", "n", "parts"), [(1, 4, (25, 25, 25, 25)), (2, 4, (50, 16, 17, 17)), (4, 4, (100, 0, 0, 0)), (1, 1, (100,))]
)
def test_rank_0_has_so_many_times_the_average(skew, n, parts):
    assert elements_by_rank(skewed(skew), n, 100) == parts


def test_rounding_shows():
    assert is_rough(EVEN, 3, 4, by_rank=True) and not is_rough(EVEN, 3, 9, by_rank=True) and not is_rough(PARTS, 3, 16, by_rank=True)


@pytest.mark.parametrize("text", ["0 5 3", "0\n5\n3\n", "0, 5, 3"])
def test_a_file_has_a_number_per_rank_in_a_row_or_a_column(tmp_path, text):
    (tmp_path / "bytes").write_text(text)
    traffic = read_traffic(tmp_path / "bytes")
    assert (traffic.matrix, traffic.by_rank, traffic.own_bytes()) == (PARTS.matrix, True, 8)
    assert elements_by_rank(traffic, 3, 8) == (0, 5, 3)


@pytest.mark.parametrize(
    ("traffic", "name", "n"), [(PARTS, "alltoallv", 3), (MATRIX, "allgatherv", 2), (PARTS, "gatherv", 2), (skewed(3), "scatterv", 2)]
)
def test_traffic_that_does_not_fit_the_operation_is_an_error(traffic, name, n):
    with pytest.raises(UsageError, match=r"write|start"):
        Sweep((operations()[name],), (8,), (DTYPES["int8"],), traffic=traffic).check_ranks(n)


def place(name, rank, count=80, traffic=PARTS, **more):
    operation = operations()[name]
    redop = "sum" if operation.reduces else None
    return operation, Place(rank, 3, count, make_case(count=count, operation=name, redop=redop, traffic=traffic, **more))


def test_blocks_of_uneven_parts_with_an_empty_one():
    blocks = {}
    for name in UNEVEN:
        for rank in range(3):
            operation, it = place(name, rank, root=2)
            blocks[name, rank] = [(list(block.sources), block.at, block.count) for block in operation.expected_blocks(it) if block.count]
    whole = [([1], 0, 50), ([2], 0, 30)]
    assert [blocks["allgatherv", rank] for rank in range(3)] == [whole] * 3
    assert [blocks["gatherv", rank] for rank in range(3)] == [[], [], whole]
    assert [blocks["scatterv", rank] for rank in range(3)] == [[], [([2], 0, 50)], [([2], 50, 30)]]
    assert [blocks["reducescatterv", rank] for rank in range(3)] == [[], [([0, 1, 2], 0, 50)], [([0, 1, 2], 50, 30)]]


def test_rank_0_of_an_exscan_expects_nothing():
    sources = []
    for rank in range(3):
        operation, it = place("exscan", rank, traffic=None)
        sources.append([list(block.sources) for block in operation.expected_blocks(it)])
    assert sources == [[], [[0]], [[0, 1]]]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", UNEVEN)
def test_the_rank_that_needs_most_memory_is_counted(name, in_place):
    operation, it = place(name, 0, 8000, root=1, in_place=in_place)
    largest = max(BufferExtent.of(operation, Place(rank, 3, 8000, it.case)).total for rank in range(3)) * 4
    assert largest <= bytes_needed(operation, it.case, 3) < largest + 8192


@pytest.mark.parametrize(("name", "hosts", "out", "into"), [
    ("scan", "aabb", {"a": 1}, {"b": 1}),
    ("scan", "abab", {"a": 2, "b": 1}, {"a": 1, "b": 2}),  # rank 3 needs the sum of ranks 0 and 2, and rank 1 rank 0's data
    ("exscan", "aabb", {"a": 1}, {"b": 1}),
    ("exscan", "abab", {"a": 2, "b": 1}, {"a": 1, "b": 2}),
    ("exscan", "ab", {"a": 1}, {"b": 1}),
])  # fmt: skip
def test_sums_of_a_scan_that_must_cross(name, hosts, out, into):
    found = least(operations()[name], make_case(count=1000, operation=name), (tuple(range(len(hosts))),), dict(enumerate(hosts)))
    size = 4000
    assert {host: amount / size for host, amount in found.out.items() if amount} == pytest.approx(out)
    assert {host: amount / size for host, amount in found.into.items() if amount} == pytest.approx(into)
    assert found.total / size == pytest.approx(sum(out.values()))


@pytest.mark.parametrize(("name", "busiest"), [("allgatherv", 5), ("gatherv", 3), ("scatterv", 3), ("reducescatterv", 5)])
def test_the_hard_limit_follows_from_the_parts(name, busiest):
    """Two nodes of 10 GB/s, ranks 0 and 1 on the first: of 8 parts 5 or 3 must cross in one direction."""
    link = Link(10e9, "NIC", "--nic")
    nodes = tuple(Node(gpus, Link(1e15, "wide", "made"), link) for gpus in (2, 1))
    found = ceilings(name, Job(nodes, traffic=PARTS.matrix))
    assert found.ring is None
    assert found.bound.bytes_per_s == pytest.approx(10e9 * 2 / 3 * 8 / busiest)
    with pytest.raises(UsageError):
        ceilings(name, Job(nodes, traffic=np.ones((3, 3)).tolist()))
