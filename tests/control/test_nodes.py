"""The first rank of a node relays the node's messages: rank 0 has one connection per node, and room for what arrives."""

import os
import threading
import time

import pytest
import zmq

from collbench.control.addresses import node_place
from collbench.control.security import Keys
from collbench.control.tree import BUNDLE_BYTES, LARGE_BYTES, bundles
from collbench.control.wire import Entry, Hello, frames
from collbench.errors import RunFailed, UsageError
from collbench.launch import limits as limits_of_host
from tests.cli.command import until
from tests.control.ends_here import Here, about, collected, launch
from tests.control.proxy import Proxy


def joined(here):
    hub = here.hub()
    spokes = [here.spoke(rank) for rank in range(1, here.n)]
    assert here.join(hub, *spokes) == {rank: about(rank) for rank in range(1, here.n)}
    return hub, spokes


def test_one_connection_a_node_and_all_ranks_are_heard():
    with launch(n=6, each=3) as here:
        hub, spokes = joined(here)
        assert sorted(sorted(child.ranks) for child in hub.coordinator.down.children.values()) == [[1], [2], [3, 4, 5]]
        for rank, spoke in enumerate(spokes, 1):
            spoke.send(1, "asking", f"I am {rank}", [bytes([rank])])
        assert collected(hub, 1) == {rank: (f"I am {rank}", [bytes([rank])]) for rank in range(1, 6)}
        hub.send(2, "listening", "go on")
        assert [spoke.receive(2, "listening", 10, 10) for spoke in spokes] == ["go on"] * 5


def test_large_arrays_come_when_there_is_room_and_are_whole_and_a_rank_that_leaves_is_no_longer_there(monkeypatch):
    monkeypatch.setattr("collbench.control.server._ROOM_BYTES", BUNDLE_BYTES)  # each waits for the one before
    with launch(n=4, each=2) as here:
        hub, spokes = joined(here)
        sent = {rank: os.urandom(BUNDLE_BYTES // 2 + 1000 * rank) for rank in (1, 2, 3)}
        for step in (1, 2):
            for rank, spoke in enumerate(spokes, 1):
                spoke.send(step, "asking", None, [sent[rank]])
            assert collected(hub, step) == {rank: (None, [array]) for rank, array in sent.items()}
        here.close(spokes[0])
        until(lambda: hub.coordinator.still_there() == [2, 3], "the end of rank 1")
        assert hub.see_off(0.1) == [2, 3]


def test_large_arrays_of_a_later_step_stay_where_they_are():
    with launch(n=2) as here, Proxy(here.port) as proxy:
        hub, spoke = here.hub(), here.spoke(1, port=proxy.port)
        here.join(hub, spoke)
        for step in range(1, 5):
            spoke.send(step, "asking", step, [bytes(LARGE_BYTES + 1)])
        for step in range(1, 5):
            assert collected(hub, step)[1][0] == step
            assert step <= len(proxy.recorded) / LARGE_BYTES < step + 1


def test_the_first_rank_of_a_node_stays_until_the_others_have_left():
    with launch(n=4, each=2) as here:
        hub, (first, leader, mate) = joined(here)
        leader.send(1, "asking", "leader")
        leaving = threading.Thread(target=here.close, args=(leader,))
        leaving.start()
        first.send(1, "asking", "first")
        mate.send(1, "asking", "mate")
        assert {rank: value for rank, (value, _) in collected(hub, 1).items()} == {1: "first", 2: "leader", 3: "mate"}
        assert leaving.is_alive()
        here.close(mate)
        leaving.join(5)
        assert not leaving.is_alive()
        until(lambda: hub.coordinator.still_there() == [1], "the end of both")


def test_a_rank_that_leaves_stays_until_what_it_has_was_asked_for():
    with launch(n=2) as here:
        hub, (spoke,) = joined(here)
        spoke.send(1, "asking", "large", [bytes(LARGE_BYTES + 1)])
        leaving = threading.Thread(target=here.close, args=(spoke,))
        leaving.start()
        leaving.join(0.3)
        assert leaving.is_alive()
        assert collected(hub, 1)[1][0] == "large"
        leaving.join(5)
        assert not leaving.is_alive()


def test_what_a_rank_has_reported_counts_though_it_has_left_before_its_node_was_asked():
    with launch(n=4, each=2) as here:
        hub, (first, leader, mate) = joined(here)
        mate.send(1, "asking", "mate", [bytes(LARGE_BYTES + 1)])
        here.close(mate)
        leader.send(1, "asking", "leader", [bytes(LARGE_BYTES + 1)])
        first.send(1, "asking", "first")
        assert {rank: value for rank, (value, _) in collected(hub, 1).items()} == {1: "first", 2: "leader", 3: "mate"}
        until(lambda: hub.coordinator.still_there() == [1, 2], "the end of rank 3")


def test_a_rank_that_finds_no_first_one_on_its_node_goes_to_rank_0_itself(monkeypatch):
    monkeypatch.setattr("collbench.control.client._AT_THE_NODE_S", 0.1)
    with launch(n=4, each=2) as here:
        hub = here.hub()
        spokes = [here.spoke(1), here.spoke(2, node="another"), here.spoke(3)]  # two nodes by their launcher's report
        here.join(hub, *spokes)
        for spoke in spokes:
            spoke.send(1, "asking", "here")
        assert sorted(collected(hub, 1)) == [1, 2, 3]
        assert sorted(sorted(child.ranks) for child in hub.coordinator.down.children.values()) == [[1], [2], [3]]


def test_a_rank_that_found_two_ways_keeps_one_of_them(monkeypatch):
    """Its node's first rank came late: it has been there already when that one opened its door, too."""
    monkeypatch.setattr("collbench.control.client._AT_THE_NODE_S", 0.0)
    with launch(n=4, each=2) as here:
        hub = here.hub()
        mate = here.spoke(3)
        joining = threading.Thread(target=mate.join, args=(about(3), 10))
        joining.start()
        joining.join()
        first, leader = here.spoke(1), here.spoke(2)
        here.join(hub, first, leader)
        for step in (1, 2):
            for spoke in (first, leader, mate):
                spoke.send(step, "asking", step)
            assert sorted(collected(hub, step)) == [1, 2, 3]
        assert not hub.coordinator.left and hub.coordinator.still_there() == [1, 2, 3]


def test_no_rank_waits_busily():
    with launch(n=4, each=2) as here:
        joined(here)
        before = time.process_time()
        time.sleep(1.0)
        assert time.process_time() - before < 0.25  # four keepers that spun would take a second each


def test_places_differ_where_nodes_do():
    here = Here(n=4, each=2)
    places = {node_place(here.info(rank), here.secret) for rank in range(4)}
    assert len(places) == 2
    assert len({*places, node_place(here.info(0, token="another"), Here(n=4, each=2).secret)}) == 3
    assert all(place.startswith("ipc://@collbench-") and here.token not in place for place in places)


def test_bundles_keep_the_order_and_are_bounded():
    sizes = [*[BUNDLE_BYTES // 3] * 7, 3 * BUNDLE_BYTES, 0]
    said = [Entry(rank, "asking", b"null", [memoryview(bytes(size))]) for rank, size in enumerate(sizes)]
    assert [[entry.rank for entry in bundle] for bundle in bundles(said)] == [[0, 1, 2], [3, 4, 5], [6], [7], [8]]


def test_rank_0_may_open_a_connection_to_each_node(monkeypatch):
    limits = {"now": (1024, 20_000)}
    monkeypatch.setattr(limits_of_host.resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(limits_of_host.resource, "setrlimit", lambda _, both: limits.update(now=both))
    unknown = limits_of_host.allow_connections(2)
    assert limits["now"] == (20_000, 20_000) and 9000 < unknown < 10_000
    assert 16 <= limits_of_host.allow_connections(19_000) < 400
    limits["now"] = (1024, 1_000_000)
    limits_of_host.allow_connections(2)
    assert limits["now"] == (65_536, 1_000_000)
    limits_of_host.allow_connections(70_000)
    assert limits["now"] == (71_024, 1_000_000)
    limits["now"] = (1024, 20_000)
    with pytest.raises(UsageError, match=r"30000 nodes.* 20000"):
        limits_of_host.allow_connections(30_000)


def test_a_message_that_cannot_be_read_ends_the_run():
    with launch(n=2) as here:
        hub = here.hub()
        with zmq.Context() as context, context.socket(zmq.DEALER) as rank_1:
            rank_1.linger = 0
            Keys.of(here.secret).secure_caller(rank_1)
            rank_1.connect(f"tcp://127.0.0.1:{here.port}")
            rank_1.send_multipart(frames(Hello(about(1))))
            here.join(hub)
            rank_1.send_multipart([b"hello"])
            with pytest.raises(RunFailed, match=r"cannot be read"):
                collected(hub, 1)
