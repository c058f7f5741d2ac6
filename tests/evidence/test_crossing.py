"""Bytes that must cross between hosts, by hand and against the cuts of peak; and the evidence of a row, set against the counters."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.machine.peak.node import Side, least_time
from collbench.measuring.crossing import BytesInside, BytesOneWay, CaseActivity, LeastBytes, MovedBytes, OtherPath, least, moved_bytes
from collbench.operations.builtin.allgather import ALLGATHER
from collbench.operations.builtin.alltoall import ALLTOALL
from collbench.operations.builtin.gather_scatter import SCATTER
from collbench.operations.builtin.reducescatter import REDUCESCATTER
from collbench.operations.registry import operations
from collbench.operations.traffic import Traffic, elements, skewed
from collbench.reason import as_json
from tests.helpers import make_case

ALLREDUCE, BROADCAST, ALLTOALLV = operations()["allreduce"], operations()["broadcast"], operations()["alltoallv"]
NAMED = {"allreduce": ALLREDUCE, "broadcast": BROADCAST, "allgather": ALLGATHER, "reducescatter": REDUCESCATTER, "alltoall": ALLTOALL}
MIB = 1 << 20
S = MIB  # of float32


def shares(operation, hosts, **changes):
    """Per host (out, in) and in all, in parts of the size; rank r is on hosts[r]."""
    n = len(hosts)
    case = make_case(count=S // 4, operation=operation.name, **changes)
    found = least(operation, case, (tuple(range(n)),), dict(enumerate(hosts)))
    return {host: (found.out.get(host, 0) / S, found.into.get(host, 0) / S) for host in dict.fromkeys(hosts)}, found.total / S


@pytest.mark.parametrize(("operation", "hosts", "root", "each", "total"), [
    (ALLREDUCE, "ab", 0, {"a": (1, 1), "b": (1, 1)}, 2), (ALLREDUCE, "aabb", 0, {"a": (1, 1), "b": (1, 1)}, 2),
    (ALLREDUCE, "abcd", 0, dict.fromkeys("abcd", (1, 1)), 6), (ALLREDUCE, "aa", 0, {"a": (0, 0)}, 0),
    (BROADCAST, "abb", 0, {"a": (1, 0), "b": (0, 1)}, 1), (BROADCAST, "abc", 0, {"a": (1, 0), "b": (0, 1), "c": (0, 1)}, 2),
    (ALLGATHER, "aabb", 0, {"a": (0.5, 0.5), "b": (0.5, 0.5)}, 1), (ALLGATHER, "aaab", 0, {"a": (0.75, 0.25), "b": (0.25, 0.75)}, 1),
    (REDUCESCATTER, "aaab", 0, {"a": (0.25, 0.75), "b": (0.75, 0.25)}, 1),
    (BROADCAST, "ab", 1, {"a": (0, 1), "b": (1, 0)}, 1), (SCATTER, "abbb", 0, {"a": (0.75, 0), "b": (0, 0.75)}, 0.75),
])  # fmt: skip
def test_by_hand(operation, hosts, root, each, total):
    assert shares(operation, hosts, root=root) == (each, pytest.approx(total))


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


TWO, ONE = {0: "h1", 1: "h2"}, {0: "h1", 1: "h1"}
STOOD = "no interface counted the packets that the ranks exchanged meanwhile: its counters are not updated, or not visible here"


def ran(size=MIB, iterations=100, host_of=TWO, operation="allreduce", **changes):
    case = make_case(count=size // 4, backend="mpi", operation=operation, **changes)
    return CaseActivity(operations()[operation], case, (tuple(host_of),), host_of, iterations)


def seen(tx=0, rx=0, packets=0, interface="eth0", **changes):
    """One host's counters, as bytes of payload over an interface."""
    counts = {"tx_bytes": tx + 66 * packets, "rx_bytes": rx + 66 * packets, "tx_packets": packets, "rx_packets": packets}
    found = {"interfaces": {interface: {name: value for name, value in counts.items() if value}}, "leaving": ["eth0"]}
    return {"ports": {}, "gpus": {}, "came_or_went": [], "silent": [], "idle": [], "states": {}, **found, **changes}


def counted(counts, **changes):
    return moved_bytes(ran(**changes), {"h1": counts, "h2": counts})


def test_bytes_are_set_against_what_must_cross():
    found = counted(seen(100 * MIB, 100 * MIB, 3500))
    moved = found.entry()["moved"]
    host = moved["hosts"]["h1"]
    assert host["out"] == host["in"] == {"bytes": 100 * MIB, "at_least_bytes": 100 * MIB, "ratio": 1.0}
    assert (moved["iterations"], moved["at_least_bytes"], moved["other_path"], moved["inside"]) == (100, 200 * MIB, None, None)
    assert host["interfaces"]["eth0"]["tx_bytes"] == 100 * MIB + 66 * 3500
    assert json.loads(json.dumps(moved)) == moved and MovedBytes.of({"moved": moved}) == found


def test_what_must_cross_may_be_given():
    must = LeastBytes({"h1": 5.0 * MIB}, {"h2": 5.0 * MIB}, 5.0 * MIB)
    found = moved_bytes(replace(ran(operation="barrier", size=4), must=must), {"h1": seen(400 * MIB, 0, 9), "h2": seen(0, 100 * MIB, 9)})
    assert found.at_least_bytes == 500 * MIB
    assert found.hosts["h1"].out == BytesOneWay(400 * MIB, 500 * MIB, 0.8)
    assert found.hosts["h2"].into == BytesOneWay(100 * MIB, 500 * MIB, 0.2)


def test_ranks_that_share_a_memory_are_called_out_and_bytes_over_nvlink():
    found = counted(seen(100_000, 100_000, 60), size=512 * MIB, iterations=1)
    other = OtherPath("mpi", "h1", "out", 100_000, 512 * MIB, others=1)
    assert (found.other_path_fact, found.other_path) == (other, other.render())
    assert found.entry()["moved"]["other_path_fact"] == as_json(other)
    nvlink = counted(seen(1000, 1000, 5, gpus={"0000:19:00.0": {"nvlink_tx_bytes": 100 * MIB}})).other_path_fact
    assert nvlink and nvlink.nvlink


def test_rdma_ports_count_too_and_a_loopback_does_not_leave_the_host():
    efa = {"rdma_write_bytes": 40 * MIB, "rdma_read_bytes": 40 * MIB}
    found = counted(seen(0, 0, 200, ports={"mlx5_0/1": {"tx_bytes": 60 * MIB, "rx_bytes": 60 * MIB}, "efa_0/1": efa}))
    assert found.other_path_fact is None
    assert found.hosts["h1"].out.ratio == found.hosts["h1"].into.ratio == 1.0
    counts = seen(1000, 1000, 5)
    counts["interfaces"]["lo"] = {"tx_bytes": 100 * MIB, "rx_bytes": 100 * MIB, "tx_packets": 9000, "rx_packets": 9000}
    loopback = counted(counts)
    assert loopback.other_path_fact and loopback.hosts["h1"].out.bytes == 1000


@pytest.mark.parametrize(("operation", "pinned", "directly"), [
    ("allreduce", 200 * MIB, True),  # each of two ranks reads a half twice: 2 S an iteration
    ("allreduce", 300 * MIB, True),  # with detours
    ("allreduce", 90 * MIB, None),  # a part
    ("allreduce", 900 * MIB, None),  # of another job, too
    ("allreduce", 19 * MIB, False), ("allreduce", 0, False), ("allreduce", None, None), ("broadcast", 100 * MIB, True),
    ("broadcast", 3 * MIB, False),  # of other processes
])  # fmt: skip
def test_what_the_kernel_copied_from_process_to_process(operation, pinned, directly):
    """100 iterations of 1 MiB, by two ranks of a host."""
    activity = ran(host_of=ONE, operation=operation)
    assert moved_bytes(activity, {"h1": seen(pinned_bytes=pinned)}).copied_directly is directly


@pytest.mark.parametrize(("changes", "why"), [
    ({"silent": ["cxi0"]}, "cxi0 has no byte counter"), ({"came_or_went": ["eth1"]}, "eth1 appeared or disappeared meanwhile"),
    ({"interfaces": {"eth0": {"tx_bytes": None}}}, "the counters of eth0 decreased: they wrapped or were reset"),
    ({"ports": {"mlx5_0/1": {"rx_bytes": None}}}, "the counters of mlx5_0/1 decreased: they wrapped or were reset"),
    ({"leaving": []}, STOOD), ({"interfaces": {"eth0": {"rx_packets": 4}}}, STOOD),
])  # fmt: skip
def test_what_is_unknown_raises_no_alarm_and_has_its_reason(changes, why):
    found = counted(seen(**changes))
    host = found.hosts["h1"]
    assert (found.other_path_fact, host.unknown, host.out.bytes, host.out.ratio) == (None, why, None, None)


@pytest.mark.parametrize(("packets", "mode", "alarm"), [
    (1000, "isolated", False), (499, "isolated", True), (499, "pipelined", False), (499, "batched", False),
])  # fmt: skip
def test_small_messages_are_reported_by_their_packets(packets, mode, alarm):
    """8 KB in all: the samples that the ranks gather are more. Without synchronisation one packet may hold many messages."""
    found = counted(seen(20_000, 20_000, packets), size=8, iterations=1000, mode=mode).other_path_fact
    assert (found is not None) == alarm
    if alarm:
        assert (found.packets, found.iterations, found.host, found.direction) == (packets, 1000, "h1", "out")


def test_one_way_is_enough():
    """The root's host sends, the other one receives."""
    broadcast = ran(operation="broadcast", redop=None, root=0)
    found = moved_bytes(broadcast, {"h1": seen(100 * MIB, 0, 900), "h2": seen(0, 100 * MIB, 900)})
    assert found.other_path_fact is None
    assert found.hosts["h1"].into == BytesOneWay(bytes=0, at_least_bytes=0, ratio=None)


def test_ranks_of_one_host_cross_nothing_and_loopback_shows_their_way():
    over_tcp = moved_bytes(ran(host_of=ONE), {"h1": seen(200 * MIB, 200 * MIB, 40, interface="lo")})
    assert over_tcp.inside == BytesInside(loopback_bytes=200 * MIB, at_least_bytes=200 * MIB, ratio=1.0)
    in_memory = moved_bytes(ran(host_of=ONE), {"h1": seen()}).entry()["moved"]
    assert (in_memory["inside"]["loopback_bytes"], in_memory["other_path"]) == (0, None)
    assert in_memory["hosts"] == {"h1": {"interfaces": {"eth0": {}}}} and "other_path_fact" not in in_memory


def test_of_many_hosts_those_that_fared_worst_are_reported():
    hosts = {rank: f"h{rank:02}" for rank in range(40)}
    sent = {host: 100 + rank * 7 % 40 for rank, host in hosts.items()}
    moved = moved_bytes(ran(host_of=hosts), {host: seen(sent[host] * MIB, 200 * MIB, 9) for host in hosts.values()})
    assert (set(moved.hosts), moved.hosts_left_out) == (set(sorted(sent, key=sent.__getitem__)[:16]), 24)


VALUES = st.one_of(st.none(), st.integers(0, 2**40))
COUNTS = st.dictionaries(st.sampled_from(["tx_bytes", "rx_bytes", "tx_packets", "rx_packets", "sent_pkts", "rx_errors"]), VALUES)
HOST = st.fixed_dictionaries({
    "interfaces": st.dictionaries(st.sampled_from(["eth0", "lo"]), COUNTS), "ports": st.dictionaries(st.just("mlx5_0/1"), COUNTS),
    "gpus": st.dictionaries(st.just("0000:19:00.0"), st.dictionaries(st.just("nvlink_tx_bytes"), VALUES)),
    "leaving": st.lists(st.sampled_from(["eth0", "eth1"]), unique=True), "came_or_went": st.lists(st.just("eth2"), max_size=1),
    "silent": st.lists(st.just("cxi0"), max_size=1), "idle": st.just([]), "states": st.just({}),
})  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(HOST, HOST, st.sampled_from([8, MIB]))
def test_an_alarm_needs_counters_that_are_known(first, second, size):
    moved = moved_bytes(ran(size=size), {"h1": first, "h2": second}).entry()["moved"]
    assert json.loads(json.dumps(moved, allow_nan=False)) == moved
    if moved["other_path"]:
        assert any("unknown" not in host for host in moved["hosts"].values())


@pytest.mark.parametrize(("packets", "other_path"), [(30, True), (99, False), (400, False)])
def test_a_barrier_between_hosts_takes_packets_if_no_bytes(packets, other_path):
    found = counted(seen(0, 0, packets), size=0, operation="barrier", redop=None)
    assert (found.hosts["h1"].packets_out, found.hosts["h1"].out) == (packets, None)
    other = OtherPath("mpi", "h1", "out", packets=packets, iterations=100, others=1)
    assert found.other_path_fact == (other if other_path else None)


def test_a_barrier_of_groups_that_stay_on_their_hosts_takes_none():
    case = make_case(count=0, operation="barrier", redop=None)
    each = CaseActivity(operations()["barrier"], case, ((0, 1), (2, 3)), dict(enumerate("aabb")), 100)
    found = moved_bytes(each, {"a": seen(0, 0, 3), "b": seen(0, 0, 3)})
    assert (found.other_path_fact, found.hosts["a"].packets_out) == (None, None)


def both_hosts(*counts, **changes):
    return dict.fromkeys(TWO.values(), seen(*counts, **changes))


def inside(tx, packets):
    return {"h1": seen(tx, tx, packets, interface="lo")}


@pytest.mark.parametrize(("by_host", "changes", "path"), [
    (both_hosts(100 * MIB, 100 * MIB, 3500), {}, "network"), (both_hosts(1000, 1000, 5), {}, "shared memory"),
    (both_hosts(1000, 1000, 5, gpus={"0000:19:00.0": {"nvlink_tx_bytes": 100 * MIB}}), {}, "NVLink"),
    (both_hosts(), {}, None),  # unchanged counters prove nothing
    (both_hosts(0, 0, 300), {"operation": "barrier", "size": 4}, None),  # nothing had to pass
    (inside(200 * MIB, 7000), {"host_of": ONE}, "loopback"), (inside(20_000, 90), {"host_of": ONE}, "shared memory"),
    (inside(20_000, 49), {"host_of": ONE, "size": 8}, "shared memory"),  # the ranks' own talk: more bytes than moved, in few packets
    (inside(20_000, 49), {"host_of": ONE, "size": 8, "mode": "pipelined"}, "loopback"),
    (inside(20_000, 200), {"host_of": ONE, "size": 8}, "loopback"), (inside(20_000, 90), {"host_of": ONE, "device": "cuda"}, None),
])  # fmt: skip
def test_the_path_in_one_word(by_host, changes, path):
    assert moved_bytes(ran(**changes), by_host).path == path


def test_the_host_that_shows_another_path_most_clearly_is_named():
    hosts = {0: "a", 1: "b", 2: "c"}
    counts = {"a": seen(30 * MIB, 90 * MIB, 900), "b": seen(80 * MIB, MIB, 900), "c": seen(99 * MIB, 99 * MIB, 900)}
    found = moved_bytes(ran(host_of=hosts), counts).other_path_fact
    assert found == OtherPath("mpi", "b", "in", MIB, 100 * MIB, others=1)
