"""Connections between two ranks: only a rank with the key is accepted; a rank that cannot be reached is reported and not tried again."""

import socket
from contextlib import suppress

import pytest

from collbench.addresses import listen_at
from collbench.backends import socket as socket_links
from collbench.backends.socket import ConnectionMaker
from collbench.errors import RunFailed
from tests.backends.pairs import PATIENCE_S, at_once, linked, meeting, ranks

pytestmark = pytest.mark.contract


@pytest.mark.parametrize("streams", [1, 3, 64])
def test_streams_come_in_the_same_order_at_both_ends(streams):
    with linked(streams) as (lower, higher):
        assert [each.getpeername() for each in lower.sockets] == [each.getsockname() for each in higher.sockets]
        assert (len(lower.sockets), lower.peer.rank, higher.peer.rank) == (streams, 1, 0)


def test_small_messages_go_out_at_once_and_calls_block_for_less_than_the_deadline():
    with linked(2) as ends:
        for each in (each for end in ends for each in end.sockets):
            assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) and each.getblocking()
        assert [end.deadline_s for end in ends] == [0.9 * PATIENCE_S] * 2  # so that this end reports before the watchdog does


def test_the_kernel_has_its_buffers():
    with linked() as (link, _):
        assert all(int(size) >= 2048 for size in link.facts().values())


def test_pairs_are_made_again_and_in_any_order():
    with meeting(3) as all_three:
        for a, b in ((0, 1), (1, 2), (0, 2), (0, 1)):
            ends = at_once(lambda a=a, b=b: all_three[a].connect(b, 2), lambda a=a, b=b: all_three[b].connect(a, 2))
            assert [end.peer.rank for end in ends] == [b, a]
            for end in ends:
                end.close()


def strange_greetings(links):
    """Messages of other clients than the right rank to rank 1."""
    first, second = links
    own = socket_links._StreamSet(0, 1, 1, 1).greetings(second._key)[0]
    return {
        "another launch": socket_links._StreamSet(0, 1, 1, 1).greetings(first._key)[0],
        "another rank": socket_links._StreamSet(2, 1, 1, 1).greetings(second._key)[0],
        "an earlier attempt": socket_links._StreamSet(0, 1, 0, 1).greetings(second._key)[0],
        "another stream": socket_links._StreamSet(0, 1, 1, 2).greetings(second._key)[1],
        "a browser": b"GET / HTTP/1.1\r\nHost: node1\r\n\r\n" + bytes(8),
        "half a greeting": own[:-1],
        "nothing": b"",
    }


@pytest.mark.parametrize(
    "who", ["another launch", "another rank", "an earlier attempt", "another stream", "a browser", "half a greeting", "nothing"]
)
def test_a_foreign_connection_is_rejected_and_the_right_rank_accepted(who, monkeypatch):
    monkeypatch.setattr(socket_links, "_GREETING_S", 0.2)
    with meeting() as links, socket.create_connection(links[1].listener.getsockname(), timeout=10) as stranger:
        stranger.sendall(strange_greetings(links)[who])
        ends = at_once(lambda: links[0].connect(1, 1), lambda: links[1].connect(0, 1))
        assert [end.peer.rank for end in ends] == [1, 0]
        ends[0].sockets[0].sendall(b"x")
        assert ends[1].sockets[0].recv(1) == b"x"
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        for end in ends:
            end.close()


def test_what_listens_there_must_know_the_key_too():
    with meeting() as (first, _), listen_at("127.0.0.1") as other:
        first._ports[1] = other.getsockname()[1]

        def answer():
            made, _ = other.accept()
            with made:
                made.recv(64)
                made.sendall(bytes(32))

        refused, _ = at_once(lambda: first.connect(1, 1), answer)
        assert isinstance(refused, RunFailed)
        assert "rejected this rank" in str(refused)


def test_a_rank_that_cannot_be_reached_is_named_and_not_tried_again():
    with meeting() as (first, second):
        second.close()
        refused = at_once(lambda: first.connect(1, 4))[0]
        assert isinstance(refused, RunFailed)
        port = first._ports[1]
        assert f"rank 1 (node1, pid 101) at 127.0.0.1 port {port}" in str(refused)
        assert "refused" in str(refused) and "firewall" in str(refused)
        first._ports[1] = 0
        assert str(at_once(lambda: first.connect(1, 4))[0]) == str(refused)


def test_a_rank_that_does_not_come_is_named():
    with meeting(timeout_s=0.2) as (_, second):
        missed = at_once(lambda: second.connect(0, 2))[0]
        assert isinstance(missed, RunFailed)
        assert "(0 of 2 streams came within 0.18 s" in str(missed)


def test_an_address_that_is_not_the_hosts_ends_all_ranks_with_the_same_sentence():
    worlds = ranks(2, ("127.0.0.1", "192.0.2.7"))
    said = at_once(*(lambda world=world: ConnectionMaker(world, 10) for world in worlds))
    assert [type(one) for one in said] == [RunFailed, RunFailed]
    assert str(said[0]) == str(said[1])
    assert str(said[0]).startswith("rank 1 (node1, pid 101) cannot listen at 192.0.2.7 ")


def test_six_is_listened_at_as_well():
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        with listen_at("::1") as listener:
            assert listener.family == socket.AF_INET6
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
