"""The least that must cross between places: by hand, and against the cuts of the room peak, which were derived on their own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.peak.node import Side, least_time
from collbench.measure.crossing import least
from collbench.operations.builtin.allgather import ALLGATHER
from collbench.operations.builtin.alltoall import ALLTOALL
from collbench.operations.builtin.gather_scatter import SCATTER
from collbench.operations.builtin.reducescatter import REDUCESCATTER
from collbench.operations.registry import operations
from collbench.operations.traffic import Traffic, elements, skewed
from tests.helpers import make_case

ALLREDUCE, BROADCAST, ALLTOALLV = operations()["allreduce"], operations()["broadcast"], operations()["alltoallv"]
NAMED = {"allreduce": ALLREDUCE, "broadcast": BROADCAST, "allgather": ALLGATHER, "reducescatter": REDUCESCATTER, "alltoall": ALLTOALL}
S = 1 << 20  # of float32


def shares(operation, hosts, **changes):
    """Per host (out, in) and in all, in parts of the size; rank r is on hosts[r]."""
    n = len(hosts)
    case = make_case(count=S // 4, operation=operation.name, **changes)
    found = least(operation, case, (tuple(range(n)),), dict(enumerate(hosts)))
    return {host: (found.out.get(host, 0) / S, found.into.get(host, 0) / S) for host in dict.fromkeys(hosts)}, found.total / S


@pytest.mark.parametrize(("operation", "hosts", "each", "total"), [
    (ALLREDUCE, "ab", {"a": (1, 1), "b": (1, 1)}, 2), (ALLREDUCE, "aabb", {"a": (1, 1), "b": (1, 1)}, 2),
    (ALLREDUCE, "abcd", dict.fromkeys("abcd", (1, 1)), 6), (ALLREDUCE, "aa", {"a": (0, 0)}, 0),
    (BROADCAST, "abb", {"a": (1, 0), "b": (0, 1)}, 1), (BROADCAST, "abc", {"a": (1, 0), "b": (0, 1), "c": (0, 1)}, 2),
    (ALLGATHER, "aabb", {"a": (0.5, 0.5), "b": (0.5, 0.5)}, 1), (ALLGATHER, "aaab", {"a": (0.75, 0.25), "b": (0.25, 0.75)}, 1),
    (REDUCESCATTER, "aaab", {"a": (0.25, 0.75), "b": (0.75, 0.25)}, 1),
])  # fmt: skip
def test_by_hand(operation, hosts, each, total):
    assert shares(operation, hosts) == (each, pytest.approx(total))


def test_a_root_elsewhere_sends_elsewhere():
    assert shares(BROADCAST, "ab", root=1)[0] == {"a": (0, 1), "b": (1, 0)}
    assert shares(SCATTER, "abbb", root=0)[0] == {"a": (0.75, 0), "b": (0, 0.75)}


@pytest.mark.parametrize(("name", "window", "first", "second"), [
    ("p2p_latency", None, (1, 1), (1, 1)), ("p2p_bandwidth", 8, (8, 0), (0, 8)), ("p2p_bidirectional", 4, (4, 4), (4, 4)),
])  # fmt: skip
def test_pairs_move_their_messages(name, window, first, second):
    found, _ = shares(operations()[name], "ab", window=window)
    assert found == {"a": first, "b": second}


def test_pairs_inside_a_host_cross_nothing_and_others_add():
    operation = operations()["p2p_latency"]
    case = make_case(count=S // 4, operation=operation.name)
    found = least(operation, case, ((0, 2), (1, 3)), dict(enumerate("abbb")))
    assert (found.out, found.into) == ({"a": S, "b": S}, {"a": S, "b": S})


@pytest.mark.parametrize("count", [1, 3, 1000])
def test_it_is_of_the_elements_that_move(count):
    found = least(ALLGATHER, make_case(count=2 * count + 1), ((0, 1),), {0: "a", 1: "b"})
    assert found.out == {"a": count * 4, "b": count * 4}


UNEVEN = Traffic("made up", matrix=((0.0, 60.0, 12.0), (8.0, 0.0, 0.0), (4.0, 4.0, 4.0)))


@pytest.mark.parametrize(("traffic", "hosts", "each", "total"), [
    (None, "abcd", dict.fromkeys("abcd", (3 / 4, 3 / 4)), 3), (None, "aabb", {"a": (1, 1), "b": (1, 1)}, 2),
    (skewed(4), "abcd", {"a": (0, 3 / 4), "b": (1 / 4, 0), "c": (1 / 4, 0), "d": (1 / 4, 0)}, 3 / 4),
    (UNEVEN, "abc", {"a": (1, 12 / 72), "b": (8 / 72, 64 / 72), "c": (8 / 72, 12 / 72)}, 88 / 72),
    (UNEVEN, "aab", {"a": (12 / 72, 8 / 72), "b": (8 / 72, 12 / 72)}, 20 / 72),
])  # fmt: skip
def test_uneven_parts_cross_as_the_traffic_file_has_it(traffic, hosts, each, total):
    found, in_all = shares(ALLTOALLV, hosts, traffic=traffic, redop=None)
    assert {host: pytest.approx(ways) for host, ways in found.items()} == each and in_all == pytest.approx(total)


@pytest.mark.parametrize("count", [1, 2, 7, 71, 72, 10**6])
def test_parts_that_rounding_changes_are_counted_as_they_move(count):
    case = make_case(count=count, operation="alltoallv", redop=None, traffic=UNEVEN)
    found, parts = least(ALLTOALLV, case, ((0, 1, 2),), dict(enumerate("abc"))), elements(UNEVEN, 3, count) * 4
    crossing = [parts[rank].sum() - parts[rank, rank] for rank in range(3)]
    assert [found.out.get(host, 0) for host in "abc"] == pytest.approx(crossing, rel=1e-6, abs=8)
    assert found.total == pytest.approx(sum(crossing), rel=1e-6, abs=24)


def test_a_barrier_moves_no_bytes():
    found = least(operations()["barrier"], make_case(count=0, operation="barrier", redop=None), ((0, 1),), {0: "a", 1: "b"})
    assert (found.out, found.into, found.total) == ({}, {}, 0)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(NAMED)), st.lists(st.integers(1, 3), min_size=2, max_size=4))
def test_no_cut_allows_less(name, sizes):
    """A link that carries one byte a second takes as many seconds per byte of S as it must carry bytes."""
    hosts = [str(host) for host, ranks in enumerate(sizes) for _ in range(ranks)]
    each, total = shares(NAMED[name], hosts)
    parts = [Side(ranks, 1.0) for ranks in sizes]
    busiest, together = max(max(ways) for ways in each.values()), total / len(sizes)
    assert max(busiest, together) == pytest.approx(least_time(name, parts).seconds_per_byte, abs=1e-4)
