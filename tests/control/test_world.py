"""A world of real processes: its members, their exchanges, and what happens if a rank does not join."""

import os
import re
import socket
import time
from contextlib import closing

import numpy as np
import pytest
import zmq

from collbench.control.addresses import candidate_ports, hub_places, open_listener_note, routes_to
from collbench.control.security import Keys, Secret, secret_of
from collbench.control.server import listen
from collbench.control.tree import Downlinks
from collbench.control.world import World
from collbench.errors import UsageError
from collbench.launch.info import LaunchInfo
from tests.conftest import sample
from tests.control.ends_here import about, free_port, launch
from tests.control.together import KINDS, Meeting, ends, start, together

pytestmark = pytest.mark.long

TALK = """
def main(world):
    results = {"members": [m.rank for m in world.members], "me": [world.me.rank, world.me.pid == os.getpid()], "hosts": len(world.hosts),
            "mates": [m.rank for m in world.on_host()]}
    results["gather"] = world.gather({"rank": world.rank}, "gathering")
    results["decide"] = world.broadcast([world.rank, "text"], "deciding")
    results["agree"] = world.allgather(world.rank * 10, "agreeing")
    results["first"] = world.first_error("late" if world.rank == 2 else "early" if world.rank == 1 else None, "asking")
    results["none"] = world.first_error(None, "asking")
    arrays = world.gather_array(np.full((world.rank + 1, 3), float(world.rank)), "sending arrays")
    results["arrays"] = arrays and [a.tolist() for a in arrays]
    empty = world.gather_array(np.zeros((1, 0)), "sending nothing")
    results["empty"] = empty and [list(a.shape) for a in empty]
    time.sleep(0.2 if world.rank == 1 else 0)  # the others are many steps ahead
    results["steps"] = [world.gather([world.rank, step], "gathering") for step in range(50)]
    return results
"""


@pytest.fixture(params=sample(KINDS, 2))
def meeting(request, tmp_path):
    return Meeting(request.param, tmp_path)


@pytest.mark.often("nodes-order0")
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_three_ranks_join_in_any_order_and_talk(meeting, order):
    ranks = together(TALK, 3, meeting, order=order)
    assert [rank.code for rank in ranks] == [0, 0, 0], ranks
    of_all = {
        "members": [0, 1, 2], "mates": [0, 1, 2], "hosts": 1, "decide": [0, "text"], "agree": [0, 10, 20], "first": "early", "none": None,
    }  # fmt: skip
    of_rank_0 = {
        "gather": [{"rank": 0}, {"rank": 1}, {"rank": 2}], "empty": [[1, 0]] * 3,
        "arrays": [[[0.0] * 3] * 1, [[1.0] * 3] * 2, [[2.0] * 3] * 3],
        "steps": [[[rank, step] for rank in range(3)] for step in range(50)],
    }  # fmt: skip
    assert ranks[0].said == {**of_all, **of_rank_0, "me": [0, True]}
    for number in (1, 2):
        of_others = {"gather": None, "empty": None, "arrays": None, "steps": [None] * 50}
        assert ranks[number].said == {**of_all, **of_others, "me": [number, True]}


def test_a_rank_that_leaves_after_rank_0_does_not_wait(meeting):
    body = """
def main(world):
    leave = world.close

    def timed():
        began = time.monotonic()
        leave()
        print(time.monotonic() - began, file=sys.stderr)

    world.close = timed
    time.sleep(0.3 * world.rank)
    return world.rank
"""
    found = together(body, 3, meeting)
    assert [one.code for one in found] == [0, 0, 0]
    assert max(float(one.stderr) for one in found) < 0.9  # ZeroMQ keeps messages to a rank that has ended for a second


def test_a_rank_that_never_comes_is_named_within_the_deadline(meeting):
    began = time.monotonic()
    found = ends([start(TALK, rank, 3, meeting, timeout_s=3.0) for rank in (0, 1)])  # within which two join on a busy machine
    assert time.monotonic() - began < 20
    assert found[0].code == 4
    assert found[0].said[0] == "WaitExpired"
    assert "rank 2 of 3" in found[0].said[1]
    assert found[1].code == 4  # from rank 0, with its text
    assert "rank 2 of 3 did not join" in found[1].said[1]


def test_without_rank_0_the_others_report_rank_0_as_missing(meeting):
    (found,) = ends([start(TALK, 1, 2, meeting, timeout_s=0.5)])
    assert found.code == 4
    assert found.said[0] == "WaitExpired"
    assert f"rank 0 at {meeting.place}" in found.said[1]
    assert "within 0.5 s" in found.said[1]


def test_a_rank_that_does_not_answer_is_named_by_all(meeting):
    body = """
def main(world):
    if world.rank == 2:
        time.sleep(60)  # longer than the others let it
    if world.rank == 0:
        time.sleep(0.2)  # rank 1 waits first, and must not be the first to give up
    return world.allgather(world.rank, "agreeing")
"""
    found = together(body, 3, meeting, timeout_s=3.0)  # within which three join on a busy machine
    for one in found[:2]:
        assert (one.code, one.said[0]) == (4, "PeerFailed")
        assert one.said[1].startswith("hang: agreeing: rank 2 (") and "(--timeout 3)" in one.said[1]


@pytest.mark.parametrize("guilty", [0, 1])
def test_a_rank_that_fails_ends_all_with_its_sentence_and_code(meeting, guilty):
    body = f"""
def main(world):
    if world.rank == {guilty}:
        raise UsageError("the folder /x cannot be written")
    return world.allgather(world.rank, "agreeing")
"""
    found = together(body, 3, meeting)
    assert [one.code for one in found] == [2, 2, 2], found
    assert found[guilty].said == ["UsageError", "the folder /x cannot be written"]
    for rank in {0, 1, 2} - {guilty}:
        assert found[rank].said[0] == "PeerFailed"
        assert found[rank].said[1].startswith(f"rank {guilty} (")
        assert found[rank].said[1].endswith("/x cannot be written")


# Exchanges of rank 1 beside those of the other ranks, and the phases of both in the message.
APART = {
    "another gather": ('world.allgather(1, "B")', 'world.allgather(0, "A")', "B", "A"),
    "another broadcast": ('world.broadcast(1, "B")', 'world.broadcast(0, "A")', "B", "A"),
    "a gather instead of a broadcast": ('world.allgather(1, "B")', 'world.broadcast(0, "A")', "B", "opening gloo"),
    "one exchange more": ('[world.allgather(1, what) for what in "BA"]', 'world.allgather(0, "A")', "B", "A"),
}


@pytest.mark.often("host-another gather")
@pytest.mark.parametrize("case", APART)
def test_ranks_at_different_exchanges_are_named_with_both_even_where_the_caller_handles_errors(meeting, case):
    """Opening a backend handles errors: the reason is sent to all ranks. Without an exchange there is no way to send it."""
    of_rank_1, of_others, phase, other_phase = APART[case]
    body = f"""
def main(world):
    try:
        {of_rank_1} if world.rank == 1 else {of_others}
    except CollbenchError:
        pass
    return world.first_error(None, "opening gloo")
"""
    began = time.monotonic()
    found = together(body, 3, meeting, timeout_s=20.0)
    assert [one.code for one in found] == [4, 4, 4], found
    assert re.search(rf"rank 1 \(.*\) is at '{phase}' while rank 0 \(.*\) is at '{other_phase}'", found[0].stderr + str(found[0].said))
    assert time.monotonic() - began < 15


def test_a_rank_that_waits_for_rank_0_while_rank_0_waits_for_it_is_named_at_the_deadline(meeting):
    body = """
def main(world):
    return world.broadcast(1, "choosing") if world.rank == 1 else world.allgather(0, "agreeing")
"""
    found = together(body, 3, meeting, timeout_s=3.0)
    assert [one.code for one in found] == [4, 4, 4], found
    assert re.match(r"hang: agreeing: rank 1 \(.*\) is in another phase: choosing;", found[0].said[1])


def test_two_processes_that_claim_one_rank(meeting):
    found = ends([start(TALK, rank, 3, meeting, timeout_s=10) for rank in (0, 1, 1)])
    assert [one.code for one in found] == [4, 4, 4], found
    assert found[0].said[0] == "RunFailed"
    assert all("started rank 1 twice" in one.said[1] for one in found)


def taken_port(at=0):
    """A socket that listens where others want to."""
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("0.0.0.0", at))
    taken.listen()
    return taken


def test_where_a_candidate_port_is_taken_the_next_one_is_used_unless_all_are_taken(tmp_path, monkeypatch):
    meeting = Meeting("tcp", tmp_path)
    with taken_port(candidate_ports(secret_of(LaunchInfo("local", 0, 2, 0, 1, "", meeting.token, secret="token"), {}))[0]):
        found = together(TALK, 2, meeting)
    assert [one.code for one in found] == [0, 0], found
    info = LaunchInfo("local", 0, 2, 0, 1, "tcp://127.0.0.1", "token", secret="token")
    with taken_port() as taken:
        monkeypatch.setattr("collbench.control.server.candidate_ports", lambda secret: [taken.getsockname()[1]])
        with pytest.raises(UsageError, match=r"ports \[\d+\]"):
            World(info, 1.0)


def test_candidate_ports_are_the_same_for_all_ranks_and_below_the_kernels_own():
    one, same, other = (candidate_ports(Secret(key, "")) for key in (b"1", b"1", b"2"))
    assert one == same != other
    assert len(set(one)) == 8
    assert all(20000 <= port < 32000 for key in (b"a", b"b", b"c") for port in candidate_ports(Secret(key, "")))
    assert (routes_to("ipc:///x"), routes_to("tcp://127.0.0.1")) == ((), (("127.0.0.1", "127.0.0.1"),))


@pytest.mark.parametrize("meeting", ["tcp://127.0.0.1", "tcp://localhost"])
def test_rank_0_listens_at_the_address_of_the_meeting_alone(meeting):
    info = LaunchInfo("local", 0, 2, 0, 1, meeting, "token of a launch", free_port(), secret="token")
    with zmq.Context() as context:
        down = Downlinks(context, Keys.of(secret_of(info, {})))
        assert listen(down, info, secret_of(info, {})).listens == ("127.0.0.1",)
        assert down.router.last_endpoint == f"tcp://127.0.0.1:{info.port}".encode()
        down.close()
    assert hub_places(info, secret_of(info, {})) == [f"tcp://127.0.0.1:{info.port}"]


@pytest.mark.parametrize(("resolves_to", "why"), [
    ("127.0.1.1", "its name 'node1' resolves to loopback there (127.0.1.1)"),  # as in Debian's /etc/hosts
    ("203.0.113.7", "'node1' is not one of its addresses"),
])  # fmt: skip
def test_rank_0_listens_at_every_address_where_its_own_are_not_known(resolves_to, why, monkeypatch):
    monkeypatch.setattr("collbench.addresses.resolve", lambda host: (resolves_to,))
    info = LaunchInfo("local", 0, 2, 0, 1, "tcp://node1", "token of a launch", free_port(), secret="token")
    with zmq.Context() as context:
        down = Downlinks(context, Keys.of(secret_of(info, {})))
        found = listen(down, info, secret_of(info, {}))
        sentence = f"rank 0 listens at every address of its host, because {why}; set MASTER_ADDR to choose one address"
        assert open_listener_note(found) == sentence
        assert down.router.last_endpoint == f"tcp://[::]:{info.port}".encode()
        down.close()


def test_ranks_meet_over_ipv6():
    with launch() as here:
        here.meeting = "tcp://[::1]"
        assert here.join(here.hub(), here.spoke(1)) == {1: about(1)}


def test_one_rank_alone_needs_no_meeting():
    with closing(World(LaunchInfo("local", 0, 1, 0, 1, "ipc://nowhere", "alone"), 5.0)) as alone:
        assert (alone.rank, alone.size, alone.hosts) == (0, 1, (socket.gethostname(),))
        assert alone.me.pid == os.getpid()
        assert (alone.gather(1, ""), alone.broadcast(2, ""), alone.allgather(3, ""), alone.first_error(None, "")) == ([1], 2, [3], None)
        assert alone.gather_array(np.ones((1, 2)), "")[0].tolist() == [[1.0, 1.0]]
