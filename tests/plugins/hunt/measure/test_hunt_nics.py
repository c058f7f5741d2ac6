"""Streams over one interface: which interfaces all nodes have, and the result from the reports of both ends."""

import re
import socket
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from collbench.addresses import is_loopback
from collbench.measuring.engine import Engine
from collbench.measuring.request import Budget
from collbench.plugins.channels import tcp_streams
from collbench.plugins.channels.tcp_streams import StreamReport, TcpStream
from collbench.plugins.hunt.places import PairsRequest, Places, rails_of
from collbench.plugins.hunt.protocol import RoundRequest
from collbench.plugins.hunt.round_runner import RoundRunner
from tests.control.together import Meeting, together

NODES = Places("node", ("a", "b", "c"), ("a", "b", "c"), ((0,), (1,), (2,)))
RATES = [1e9, 1.1e9, 0.9e9] * 8
GOOD = ({"value": [4000, "00"]}, {"value": int(1e9)}, {"value": [RATES, None, int(1e9)]})
LOOPBACK = [f"127.0.0.{n}" for n in range(1, 6)]


def world_of(*said):
    """A world with one rank on each host, which returns these answers; rank 0's view."""
    members = [SimpleNamespace(rank=rank, host=host) for rank, host in enumerate(NODES.names)]
    return SimpleNamespace(on_host=lambda host: [one for one in members if one.host == host], me=members[0], rank=0,
                           allgather=lambda mine, what: list(said))  # fmt: skip


def test_only_interfaces_that_all_nodes_have_with_addresses_of_their_own_and_none_for_ranks_that_share_them():
    said = []
    for n in (1, 2, 3):
        eth0 = {"IPv4": f"10.0.0.{n}", "IPv6": f"fd00::{n}"}
        said.append({"eth0": eth0, "eth1": {"IPv6": f"fd01::{n}"}, "docker0": {"IPv4": "172.17.0.1"}})
    said[0]["eth1"]["IPv4"] = "10.1.0.1"
    said[0]["ib0"] = {"IPv4": "10.2.0.1"}
    assert rails_of(world_of(*said), NODES) == {"eth0": ("10.0.0.1", "10.0.0.2", "10.0.0.3"), "eth1": ("fd01::1", "fd01::2", "fd01::3")}
    assert rails_of(world_of(), Places("rank", ("rank 0 (a)", "rank 1 (a)"), ("a", "a"), ((0,), (1,)))) == {}


def test_this_host_reports_neither_loopback_nor_what_is_down():
    found = {}
    world = world_of(*({} for _ in NODES.names))
    gather = world.allgather
    world.allgather = lambda mine, what: found.update(mine) or gather(mine, what)
    assert rails_of(world, NODES) == {}
    assert "lo" not in found and not any(is_loopback(address) for known in found.values() for address in known.values())


def runner(world, places, rails, seconds):
    """A runner that can stream over these interfaces for so many seconds."""
    request = SimpleNamespace(budget=Budget(seconds))
    none = None
    return RoundRunner(PairsRequest(request), Engine(world, check=1), none, places, none, rails=rails)


def played(monkeypatch, *said):
    """A round of one pair; each direction is (the target's offer, the source's report, the target's report)."""
    (offer, source, target), (back, sender, taker) = said
    reports = [{"source": source}, {"target": target}, {}], [{"target": taker}, {"source": sender}, {}]
    answers = iter([[{}, offer, {}], reports[0], [back, {}, {}], reports[1]])  # first from rank 0 to rank 1, then back
    world = world_of()
    world.allgather = lambda mine, what: next(answers)
    monkeypatch.setattr(tcp_streams, "send", lambda *those, source: None)
    monkeypatch.setattr(tcp_streams, "receive", lambda *those: StreamReport())
    monkeypatch.setattr(tcp_streams, "patience", lambda world: 0.0)
    monkeypatch.setattr(tcp_streams, "listen_at", lambda address, port=0: socket.socket())
    world.extend_timeout, world.watchdog = nullcontext, SimpleNamespace(phase=nullcontext)
    rails = {"eth1": ("10.1.0.1", "10.1.0.2", "10.1.0.3")}
    return runner(world, NODES, rails, 1.0).play(4, RoundRequest("nic", ((0, 1),), "alone", "isolation", "eth1"))


def test_both_ways_are_measured_and_the_interval_is_the_slower_ones(monkeypatch):
    slow = (GOOD[0], {"value": None}, {"value": [[rate / 2 for rate in RATES], None, int(1e9)]})
    one = played(monkeypatch, GOOD, slow)
    assert (one.speed_bytes_per_s, one.backward_bytes_per_s, one.na, one.wrong, one.nic) == ((1e9,), (0.5e9,), (None,), (0,), "eth1")
    assert one.low_bytes_per_s[0] <= 0.5e9 <= one.high_bytes_per_s[0] < 0.6e9
    assert one.flags == ("path_unproven",)  # on the way back nothing was counted
    assert played(monkeypatch, GOOD, GOOD).flags == ()
    assert played(monkeypatch, GOOD, (*GOOD[:2], {"value": [RATES, None, None]})).flags == ("path_unproven",)  # nor where it came to


@pytest.mark.parametrize(("offer", "source", "target", "why"), [
    ({"why": "no such address"}, {}, {}, "b cannot listen at 10.1.0.2: no such address"),
    (GOOD[0], {"why": "refused"}, GOOD[2], "a does not reach b at 10.1.0.2: refused"),
    (GOOD[0], GOOD[1], {"why": "timed out"}, "nothing arrived at b (10.1.0.2): timed out"),
    (GOOD[0], {"value": 1000}, GOOD[2], "the stream left a over another interface than eth1, although it has the address of eth1"),
    (*GOOD[:2], {"value": [RATES, None, 1000]},
     "the stream reached b over another interface than eth1, although it has the address of eth1"),
    (GOOD[0], GOOD[1], {"value": [[], None, 0]}, "eth1 of a: the stream stalled"),
], ids=["listen", "reach", "arrive", "elsewhere", "come elsewhere", "stall"])  # fmt: skip
def test_what_has_no_figure_gives_the_reason(offer, source, target, why, monkeypatch):
    one = played(monkeypatch, (offer, source, target), GOOD)
    assert (one.na, one.speed_bytes_per_s) == ((why,), (None,))


def test_wrong_bytes_are_wrong(monkeypatch):
    one = played(monkeypatch, (GOOD[0], GOOD[1], {"value": [RATES, "byte 7 of a TCP stream is not the one that was sent", None]}), GOOD)
    assert (one.wrong, one.wrong_detail) == ((1,), ("byte 7 of a TCP stream is not the one that was sent",))


STREAMED = """
from collbench.addresses import is_loopback
from collbench.plugins.channels import tcp_streams
from collbench.plugins.hunt import round_runner
from collbench.plugins.hunt.places import Places
from collbench.plugins.hunt.protocol import RoundRequest
from tests.plugins.hunt.measure.test_hunt_nics import runner

round_runner.leaders = lambda world, places: list(world.members)  # each rank represents a node, though all are on this host


def main(world):
    places = Places("node", ("a", "b", "c", "d", "e"), ("a", "b", "c", "d", "e"), ((0,), (1,), (2,), (3,), (4,)))
    one = runner(world, places, {NIC: ADDRESSES}, 0.5).play(3, RoundRequest("nic", ((0, 1), (2, 4)), "alone", "isolation", NIC))
    return one and one.as_json()
"""


def streamed(folder, nic, addresses, more=""):
    """Return rank 0's view of a round over an interface among five ranks; each rank has an address on it."""
    body = f"{STREAMED}NIC, ADDRESSES = {nic!r}, {addresses!r}\n{more}"
    first, *others = together(body, 5, Meeting("tcp", folder), timeout_s=20.0)
    assert [(one.code, one.said) for one in others] == [(0, None)] * 4 and first.code == 0, first.stderr
    return first.said


@pytest.mark.system
def test_real_streams_of_several_pairs_at_once_and_a_rank_in_none_is_idle(tmp_path):
    one = streamed(tmp_path, "lo", LOOPBACK)
    assert (one["na"], one["wrong"], one["flags"], one["groups"]) == ([None, None], [0, 0], [], [[0, 1], [2, 4]])
    assert all(rate > 1e6 for way in ("speed_bytes_per_s", "backward_bytes_per_s") for rate in one[way])


@pytest.mark.long
def test_an_end_that_is_not_reached_costs_its_own_pair_alone(tmp_path):
    one = streamed(tmp_path, "none", [*LOOPBACK[:2], "192.0.2.1", *LOOPBACK[3:]], "tcp_streams.patience = lambda world: 3.0")
    assert one["na"][0] is None and re.fullmatch(r"\S+ .* at 127\.0\.0\.5: .+", one["na"][1])
    assert one["flags"] == ["path_unproven"]  # no interface "none" exists, so its counters cannot prove the path


def test_the_way_back_is_between_the_same_addresses():
    a, b = (SimpleNamespace(rank=rank, host=host) for rank, host in enumerate("ab"))
    way = TcpStream(a, b, "10.0.0.2", "10.0.0.1", "eth0")
    back = way.reversed
    assert (back.source, back.target, back.source_address, back.address, back.nic) == (b, a, "10.0.0.2", "10.0.0.1", "eth0")
    assert back.reversed == way
