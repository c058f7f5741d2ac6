"""Rank 0's part by itself: what it makes of processes that end shortly one after the other, as they do where a launcher kills the rest."""

import time
from types import SimpleNamespace

import pytest

from collbench.control.diagnosis import HangCause, HangDiagnosis, ProcessEnd, RankPaused, RankState
from collbench.control.members import HostKilled, Member, other_candidates
from collbench.control.server import Coordinator
from collbench.control.tree import ChildConnection
from collbench.control.watchdog import EndProcess
from collbench.control.wire import Grant, Here, Offer
from collbench.errors import PeerFailed
from collbench.reason import decode

KILLED = ProcessEnd(killed=True, signal=9)
EXITED = ProcessEnd(exit_code=0)
MEASURING = "allreduce 8 B on mpi: measuring"


def coordinator(*children):
    """Of ranks 0 to 3 that have joined; connections are made up."""
    cut = [child for child in children if child.cut is not None]
    working = {child.name: child for child in children}

    def forget(child):
        cut.remove(child)
        del working[child.name]

    down = SimpleNamespace(
        children=working,
        cut=cut,
        with_rank=lambda rank: next((child for child in working.values() if rank in child.ranks), None),
        forget=forget,
        broadcast=lambda message: None,
    )
    part = Coordinator(down, lambda: RankState(0, "allreduce 8 B on mpi: measuring"), EndProcess(lambda *_: None), 5.0)
    part.members = [Member(rank, "h", rank, rank, ()) for rank in range(4)]
    part.joined = dict(enumerate(part.members[1:], 1))
    return part


def child(*ranks, cut=None):
    found = ChildConnection(bytes(ranks))
    found.ranks, found.cut = set(ranks), cut
    return found


def diagnosed(part):
    """The diagnosis that is stored, of which the ranks get the sentence."""
    while part.inbox.empty():
        part.tick(time.monotonic())
    error = part.inbox.get_nowait()
    assert isinstance(error, PeerFailed)
    hang = decode(part.facts["diagnosis"], HangDiagnosis | RankPaused)
    assert str(error) == hang.render()
    return hang


def ended(part):
    hang = diagnosed(part)
    assert isinstance(hang, HangDiagnosis) and hang.cause is HangCause.ENDED
    return hang


@pytest.mark.parametrize(("ends", "named"), [
    ([(1, EXITED), (2, KILLED)], 1),
    ([(3, ProcessEnd(exit_code=1)), (1, EXITED), (2, KILLED)], 3),
    ([(2, KILLED), (1, EXITED)], 2),
])  # fmt: skip
def test_the_rank_that_ended_first_is_the_reason(ends, named):
    part = coordinator(child(1), child(2), child(3))
    for rank, how in ends:
        part._end_of(rank, how)
    found = ended(part)
    assert (found.ranks, found.names, found.phase, found.end) == (
        (named,), (f"rank {named} (h, pid {named})",), MEASURING, dict(ends)[named],
    )  # fmt: skip


def test_a_connection_that_was_lost_before_is_an_end_too():
    part = coordinator(child(1), child(2, 3, cut=time.monotonic() - 0.01))
    part._end_of(1, KILLED)
    assert list(part.gone) == [2, 1]


def test_a_rank_that_left_in_order_is_not_the_reason():
    part = coordinator(child(1), child(2), child(3, cut=time.monotonic() - 0.01))
    part.left.add(3)
    part._end_of(3, EXITED)
    part._end_of(1, KILLED)
    assert list(part.gone) == [1]


def test_where_a_launcher_kills_all_of_a_host_for_one_each_of_them_is_named():
    members = [Member(rank, "ab"[rank // 2], rank % 2, 70 + rank, ()) for rank in range(4)] + [Member(4, "c", 0, 74, ())]
    assert other_candidates(members) == {0: HostKilled("a", (1,)), 2: HostKilled("b", (3,))}
    part = coordinator(child(1), child(2, 3, cut=0.0))
    part.other_candidates = other_candidates(members)
    part._gone(2)
    found = ended(part)
    assert (found.end, found.others) == (ProcessEnd(), HostKilled("b", (3,)))


def test_rank_0_that_was_stopped_itself_names_no_other_rank():
    paused = [0.0]
    part = coordinator(child(1), child(2), child(3))
    part.own_state = lambda: RankState(0, MEASURING, paused_s=paused[0])
    part.tick(time.monotonic())
    paused[0] = 7.5
    part._end_of(1, ProcessEnd(exit_code=4))
    part._end_of(2, KILLED)
    assert diagnosed(part) == RankPaused("rank 0 (h, pid 0)", MEASURING, 7.5, 5.0)


def test_a_pause_that_is_long_over_is_no_reason():
    paused = [7.5]
    part = coordinator(child(1), child(2), child(3))
    part.own_state = lambda: RankState(0, "measuring", paused_s=paused[0])
    part.tick(time.monotonic() - 10)
    part._end_of(1, KILLED)
    found = ended(part)
    assert (found.ranks, found.phase, found.end) == ((1,), "measuring", KILLED)


def test_a_launchers_signal_may_be_the_echo_of_an_end():
    part = coordinator(child(1), child(2), child(3))
    part.inquiries.examine_error("rank 2 (h, pid 2) was interrupted by SIGTERM", 143)
    assert part.inbox.empty()
    part._end_of(3, KILLED)
    assert ended(part).ranks == (3,)


def after(part):
    """Return the reason, and its exit code, that the ranks get."""
    while part.inbox.empty():
        part.tick(time.monotonic())
    error = part.inbox.get_nowait()
    assert isinstance(error, PeerFailed)
    return str(error), error.exit_code


@pytest.mark.parametrize("sentence", ["interrupted by SIGTERM", "the synchronisation failed in iteration 3: Connection reset by peer"])
@pytest.mark.parametrize("own", [False, True])
def test_what_follows_a_lost_connection_is_not_the_reason(sentence, own):
    """The connection is not lost for long enough to be certain when the launcher's signal or the library's error arrives."""
    part = coordinator(child(1), child(2, cut=time.monotonic()), child(3))
    part.inquiries.examine_error(sentence, 143 if "SIGTERM" in sentence else 4, own=own)
    assert part.inbox.empty() and not part.ending.begun
    assert ended(part).ranks == (2,)


def test_a_signal_is_the_reason_if_all_ranks_answer():
    part = coordinator(child(1), child(2), child(3))
    part.inquiries.examine_error("interrupted by SIGTERM", 143)
    for rank in (1, 2, 3):
        part._note(child(rank), Here([RankState(rank, MEASURING)]))
    assert after(part) == ("interrupted by SIGTERM", 143)


def test_a_signal_that_comes_after_the_reason_changes_nothing():
    part = coordinator(child(1), child(2), child(3))
    part._end_of(2, KILLED)
    reason = ended(part).render()
    part.inquiries.examine_error("interrupted by SIGTERM", 143, own=True)
    assert after(part) == (reason, 4)


def granting():
    """A coordinator, a connection of rank 1, and the steps that it was asked to send, in order."""
    one, granted = child(1), list[int]()
    part = coordinator(one)
    part.down.send = lambda child, message: granted.append(message.step) if isinstance(message, Grant) else None
    return part, one, granted


def offer(part, one, step, size):
    part._from_below(one, Offer(step, size))


def test_a_message_larger_than_the_room_is_granted_alone():
    part, one, granted = granting()
    part.request(1)
    offer(part, one, 1, 100 << 20)
    assert granted == [1]
    offer(part, one, 1, 1 << 20)
    assert granted == [1]
    part.made_room(100 << 20)
    assert granted == [1, 1]


def test_messages_are_granted_as_far_as_there_is_room():
    part, one, granted = granting()
    part.request(1)
    for size in (40 << 20, 24 << 20, 1 << 20):
        offer(part, one, 1, size)
    assert len(granted) == 2
    part.made_room(24 << 20)
    assert len(granted) == 3


def test_messages_of_a_later_step_wait_until_it_is_wanted():
    part, one, granted = granting()
    part.request(1)
    offer(part, one, 2, 1 << 20)
    offer(part, one, 1, 1 << 20)
    assert granted == [1]
    part.request(2)
    assert granted == [1, 2]
