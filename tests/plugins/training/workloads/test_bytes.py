"""What crosses the wire, by hand: ring algorithms step by step, messages one by one, hosts as sums of their ranks."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.measuring.crossing import least
from collbench.operations.case import Case
from collbench.operations.dtypes import dtype_named
from collbench.operations.registry import operations
from collbench.operations.traffic import Traffic
from collbench.plugins.training.workloads.registry import regimes
from collbench.plugins.training.workloads.shape import shape_of
from collbench.plugins.training.workloads.step import Exchange
from tests.plugins.training.workloads.crossing import GLOO, CrossingBytes, moved, moved_in_step
from tests.plugins.training.workloads.laid import MIB, laid_out

TRIO = ((0, 1, 2),)


def exchange(operation, groups=TRIO, size=12 * MIB, **changes):
    return Exchange(operation, groups, size, "made up", **changes)


def step_by_step(n, chunk, rounds):
    """Bytes that each rank of a ring sends and gets when it passes a chunk to the next one in each round."""
    sent, received = dict.fromkeys(range(n), 0.0), dict.fromkeys(range(n), 0.0)
    for _, rank in product(range(rounds), range(n)):
        sent[rank] += chunk
        received[(rank + 1) % n] += chunk
    return CrossingBytes(sent, received, True)


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_a_ring_passes_chunks_on(n):
    groups, size = (tuple(range(n)),), n * 4096
    assert moved(exchange("reducescatter", groups, size)) == step_by_step(n, 4096, n - 1)
    assert moved(exchange("allgather", groups, size)) == step_by_step(n, 4096, n - 1)
    assert moved(exchange("allreduce", groups, size)) == step_by_step(n, 4096, 2 * (n - 1))


def test_a_ring_over_hosts_crosses_at_its_ends_alone():
    on_two_hosts = moved(exchange("allreduce", ((0, 1, 2, 3),), 8 * MIB), places=(0, 0, 1, 1))
    assert on_two_hosts.sent == on_two_hosts.received == {0: 2 * 3 / 4 * 8 * MIB, 1: 2 * 3 / 4 * 8 * MIB}
    in_turn = moved(exchange("allreduce", ((0, 1, 2, 3),), 8 * MIB), places=(0, 1, 0, 1))
    assert in_turn.sent == {0: 2 * (2 * 3 / 4 * 8 * MIB), 1: 2 * (2 * 3 / 4 * 8 * MIB)}


def test_straight_every_rank_sends_every_other_its_part():
    for operation in ("reducescatter", "allgather", "alltoall"):
        straight = moved(exchange(operation), algorithm="direct")
        assert straight == CrossingBytes(dict.fromkeys(range(3), 2 * 4.0 * MIB), dict.fromkeys(range(3), 2 * 4.0 * MIB), True)
    by_host = moved(exchange("allgather"), places=(0, 0, 1), algorithm="direct")
    assert (by_host.sent, by_host.received) == ({0: 2 * 4 * MIB, 1: 2 * 4 * MIB}, {0: 2 * 4 * MIB, 1: 2 * 4 * MIB})


def test_gloos_reduce_scatter_is_a_whole_all_reduce():
    assert moved_in_step([exchange("reducescatter")], algorithms=GLOO) == moved(exchange("allreduce"))
    assert moved_in_step([exchange("allgather")], algorithms=GLOO) == moved(exchange("allgather"))


def test_uneven_parts_without_what_a_rank_keeps():
    traffic = Traffic("made up", matrix=((100.0, 8.0, 4.0), (0.0, 0.0, 12.0), (20.0, 0.0, 0.0)))
    found = moved(exchange("alltoallv", size=100 + 20, traffic=traffic, times=3))
    assert found.sent == {0: 3 * (8 + 4), 1: 3 * 12, 2: 3 * 20}
    assert found.received == {0: 3 * 20, 1: 3 * 8, 2: 3 * (4 + 12)}
    assert moved(exchange("alltoallv", size=120, traffic=traffic), places=(5, 9, 9)).sent == {5: 8 + 4, 9: 20}


def test_a_ring_of_messages_and_pairs():
    assert moved(exchange("sendrecv", ((0, 1), (2, 3)), 100), places=(0, 1, 1, 1)).sent == {0: 100, 1: 100}
    assert moved(exchange("p2p_bandwidth", ((2, 0),), 100)) == CrossingBytes({0: 0, 2: 100}, {0: 100, 2: 0}, True)
    assert moved(exchange("p2p_bidirectional", ((2, 0),), 100)) == CrossingBytes({0: 100, 2: 100}, {0: 100, 2: 100}, True)


def test_a_root_gives_and_gets_every_part_but_its_own():
    assert moved(exchange("gather", root=1)) == CrossingBytes({0: 4 * MIB, 1: 0, 2: 4 * MIB}, {0: 0, 1: 2 * 4 * MIB, 2: 0}, True)
    assert moved(exchange("scatter", root=1)) == CrossingBytes({0: 0, 1: 2 * 4 * MIB, 2: 0}, {0: 4 * MIB, 1: 0, 2: 4 * MIB}, True)


def test_of_a_broadcast_and_a_reduction_only_what_every_algorithm_needs_is_known():
    places = (0, 0, 1)
    broadcast = moved(exchange("broadcast", root=2), places)
    assert broadcast == CrossingBytes({0: 0, 1: 12 * MIB}, {0: 12 * MIB, 1: 0}, False)
    assert moved(exchange("reduce", root=2, redop="sum"), places) == CrossingBytes({0: 12 * MIB, 1: 0}, {0: 0, 1: 12 * MIB}, False)


def test_hosts_without_ranks_in_a_group_move_nothing():
    assert moved(exchange("allreduce", ((0, 1),)), places=(0, 1, 2)).sent == {0: 12 * MIB, 1: 12 * MIB, 2: 0}


@pytest.mark.parametrize(
    ("operation", "algorithm", "why"),
    [("barrier", None, "what barrier moves is not known beforehand"),
     ("allreduce", "tree", "what allreduce moves by 'tree' is not known: choose ring"),
     ("allgather", "tree", "choose ring or direct")],
)  # fmt: skip
def test_what_cannot_be_known_is_reported(operation, algorithm, why):
    with pytest.raises(UsageError, match=why):
        moved(exchange(operation), algorithm=algorithm)


def case_of(one):
    return Case(one.operation, "simulated", dtype_named(one.dtype), one.size_bytes, redop=one.redop, root=one.root, traffic=one.traffic,
                window=1)  # fmt: skip


@pytest.mark.parametrize("name", regimes())
@settings(max_examples=25, deadline=None)
@given(hosts=st.sampled_from([(0, 1, 2), (0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 1, 1, 2, 2), (0, 1, 2, 3)]), parameters=st.integers(64, 10**6))
def test_no_regime_moves_less_than_must_cross_and_messages_move_just_that(name, hosts, parameters):
    sizes = {"layers": "6", "hidden": "2", "sequence": "30"}
    typed = {"model": str(parameters), **{word: size for word, size in sizes.items() if word in regimes()[name].takes}}
    if name == "tensor-parallel":
        typed["tensor"] = str(len(hosts))
    try:
        exchanges = regimes()[name].step(shape_of(regimes()[name], typed, hosts)).exchanges
    except UsageError:
        assert (name == "hierarchical" and hosts.count(0) == 1) or (name == "fsdp" and parameters < 6 * (12 * 2 * 2 + 13 * 2))
        return
    for one in exchanges:
        found = moved(one, hosts)
        bound = least(operations()[one.operation], case_of(one), one.groups, {rank: str(host) for rank, host in enumerate(hosts)})
        for host in set(hosts):
            must = (one.times * bound.out.get(str(host), 0.0), one.times * bound.into.get(str(host), 0.0))
            got = (found.sent[host], found.received[host])
            if one.operation in ("alltoallv", "sendrecv", "p2p_bandwidth"):
                assert got == pytest.approx(must)
            else:
                assert all(more >= less * (1 - 1e-9) for more, less in zip(got, must, strict=True))


def test_a_step_of_bert_large_on_three_hosts():
    gradients = 340 * 10**6 * 4
    ring = moved_in_step(laid_out("data-parallel", {}, (0, 1, 2)).exchanges, (0, 1, 2))
    assert ring.sent == ring.received == pytest.approx(dict.fromkeys(range(3), 2 * 2 / 3 * gradients))
    served = moved_in_step(laid_out("parameter-server", {}, (0, 1, 2)).exchanges, (0, 1, 2))
    assert served.sent == served.received == {0: 2 * gradients, 1: gradients, 2: gradients}
    sharded = moved_in_step(laid_out("parameter-server", {"update": "sharded"}, (0, 1, 2)).exchanges, (0, 1, 2))
    assert sharded.sent == sharded.received == {0: gradients / 2, 1: gradients / 2, 2: gradients}
    piped = moved_in_step(laid_out("pipeline", {}, (0, 1, 2)).exchanges, (0, 1, 2))
    assert piped.sent == piped.received == {0: 8 * 1024 * 512 * 4, 1: 2 * 8 * 1024 * 512 * 4, 2: 8 * 1024 * 512 * 4}
    tensors = moved_in_step(laid_out("tensor-parallel", {"tensor": "3"}, (0, 1, 2)).exchanges, (0, 1, 2))
    assert tensors.sent == pytest.approx(dict.fromkeys(range(3), 4 * 24 * 2 * 2 / 3 * 1024 * 512 * 4))


def test_two_levels_spare_the_wire_between_hosts():
    hosts = (0, 1, 2, 0, 1, 2)
    gradients = 340 * 10**6 * 4
    flat = moved_in_step(laid_out("data-parallel", {}, hosts).exchanges, hosts)
    levels = moved_in_step(laid_out("hierarchical", {}, hosts).exchanges, hosts)
    assert flat.sent == pytest.approx(dict.fromkeys(range(3), 2 * (2 * 5 / 6 * gradients)))
    assert levels.sent == pytest.approx(dict.fromkeys(range(3), 2 * (2 * 2 / 3 * gradients / 2)))


def test_algorithms_are_chosen_by_operation():
    exchanges = [exchange("allgather"), exchange("allreduce")]
    both = moved_in_step(exchanges, (0, 0, 1), {"allgather": "direct"})
    assert both == moved(exchanges[0], (0, 0, 1), "direct") + moved(exchanges[1], (0, 0, 1))
    assert both.sent[1] == pytest.approx(2 * 4 * MIB + 2 * 2 / 3 * 12 * MIB)
