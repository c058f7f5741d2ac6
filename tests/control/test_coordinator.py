"""Rank 0's part by itself: what it makes of processes that end shortly one after the other, as they do where a launcher kills the rest."""

import time
from types import SimpleNamespace

import pytest

from collbench.control.diagnosis import HangCause, HangDiagnosis, ProcessEnd, RankPaused, RankState
from collbench.control.members import HostKilled, Member, other_candidates
from collbench.control.server import Coordinator
from collbench.control.tree import ChildConnection
from collbench.control.watchdog import EndProcess
from collbench.control.wire import Gone, Grant, Here, Offer
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

    def with_rank(rank):
        return next((child for child in working.values() if rank in child.ranks), None)

    down = SimpleNamespace(
        children=working, cut=cut, with_rank=with_rank, forget=forget, broadcast=lambda message: None, read=lambda ready: ready
    )
    part = Coordinator(down, lambda: RankState(0, "allreduce 8 B on mpi: measuring"), EndProcess(lambda *_: None), 5.0)
    part.members = [Member(rank, "h", rank, rank, ()) for rank in range(4)]
    part.joined = dict(enumerate(part.members[1:], 1))
    return part


def child(*ranks, cut=None):
    found = ChildConnection(bytes(ranks))
    found.ranks, found.cut = set(ranks), cut
    return found


def end(part, rank, how):
    """The process of a rank ends, as the first rank of its node reports."""
    part.read((child(), Gone(rank, how)))


def after(part):
    """Return the error that the ranks get."""
    while part.inbox.empty():
        part.tick(time.monotonic())
    error = part.inbox.get_nowait()
    assert isinstance(error, PeerFailed)
    return error


def diagnosed(part):
    """The diagnosis that is stored, of which the ranks get the sentence."""
    error = after(part)
    hang = decode(part.facts["diagnosis"], HangDiagnosis | RankPaused)
    assert str(error) == hang.render()
    return hang


def ended(part):
    hang = diagnosed(part)
    assert isinstance(hang, HangDiagnosis) and hang.cause is HangCause.ENDED
    return hang


@pytest.mark.parametrize(("ends", "named"), [
    ([(1, EXITED), (2, KILLED)], 1), ([(3, ProcessEnd(exit_code=1)), (1, EXITED), (2, KILLED)], 3), ([(2, KILLED), (1, EXITED)], 2),
])  # fmt: skip
def test_the_rank_that_ended_first_is_the_reason(ends, named):
    part = coordinator(child(1), child(2), child(3))
    for rank, how in ends:
        end(part, rank, how)
    found = ended(part)
    assert (found.ranks, found.names) == ((named,), (f"rank {named} (h, pid {named})",))
    assert (found.phase, found.end) == (MEASURING, dict(ends)[named])


@pytest.mark.parametrize(("cut", "left", "ends", "gone"), [
    ((2, 3), (), [(1, KILLED)], [2, 1]),  # a connection that was lost before is an end, too
    ((3,), (3,), [(3, EXITED), (1, KILLED)], [1]),  # a rank that left in order is not the reason
])  # fmt: skip
def test_which_ranks_are_gone_and_in_which_order(cut, left, ends, gone):
    part = coordinator(*(child(rank) for rank in (1, 2) if rank not in cut), child(*cut, cut=time.monotonic() - 0.01))
    part.left.update(left)
    for rank, how in ends:
        end(part, rank, how)
    assert list(part.gone) == gone


def test_where_a_launcher_kills_all_of_a_host_for_one_each_of_them_is_named():
    members = [Member(rank, "ab"[rank // 2], rank % 2, 70 + rank, ()) for rank in range(4)] + [Member(4, "c", 0, 74, ())]
    assert other_candidates(members) == {0: HostKilled("a", (1,)), 2: HostKilled("b", (3,))}
    part = coordinator(child(1), child(2, 3, cut=0.0))
    part.other_candidates = other_candidates(members)
    found = ended(part)
    assert (found.end, found.others) == (ProcessEnd(), HostKilled("b", (3,)))


def test_rank_0_that_was_stopped_itself_names_no_other_rank():
    paused = [0.0]
    part = coordinator(child(1), child(2), child(3))
    part.own_state = lambda: RankState(0, MEASURING, paused_s=paused[0])
    part.tick(time.monotonic())
    paused[0] = 7.5
    end(part, 1, ProcessEnd(exit_code=4))
    end(part, 2, KILLED)
    assert diagnosed(part) == RankPaused("rank 0 (h, pid 0)", MEASURING, 7.5, 5.0)


def test_a_pause_that_is_long_over_is_no_reason():
    paused = [7.5]
    part = coordinator(child(1), child(2), child(3))
    part.own_state = lambda: RankState(0, "measuring", paused_s=paused[0])
    part.tick(time.monotonic() - 10)
    end(part, 1, KILLED)
    found = ended(part)
    assert (found.ranks, found.phase, found.end) == ((1,), "measuring", KILLED)


def test_a_launchers_signal_may_be_the_echo_of_an_end():
    part = coordinator(child(1), child(2), child(3))
    part.inquiries.examine_error("rank 2 (h, pid 2) was interrupted by SIGTERM", 143)
    assert part.inbox.empty()
    end(part, 3, KILLED)
    assert ended(part).ranks == (3,)


@pytest.mark.parametrize("sentence", ["interrupted by SIGTERM", "the synchronisation failed in iteration 3: Connection reset by peer"])
@pytest.mark.parametrize("own", [False, True])
def test_what_follows_a_lost_connection_is_not_the_reason(sentence, own):
    """The connection is not lost for long enough to be certain when the launcher's signal or the library's error arrives."""
    part = coordinator(child(1), child(2, cut=time.monotonic()), child(3))
    part.inquiries.examine_error(sentence, 143 if "SIGTERM" in sentence else 4, own=own)
    assert part.inbox.empty() and not part.ending.begun
    assert ended(part).ranks == (2,)


def test_a_signal_is_the_reason_if_all_ranks_answer_and_no_reason_came_before():
    part = coordinator(child(1), child(2), child(3))
    part.inquiries.examine_error("interrupted by SIGTERM", 143)
    for rank in (1, 2, 3):
        part.read((child(rank), Here([RankState(rank, MEASURING)])))
    error = after(part)
    assert (str(error), error.exit_code) == ("interrupted by SIGTERM", 143)
    part = coordinator(child(1), child(2), child(3))
    end(part, 2, KILLED)
    reason = ended(part).render()
    part.inquiries.examine_error("interrupted by SIGTERM", 143, own=True)
    error = after(part)
    assert (str(error), error.exit_code) == (reason, 4)


MIB = 1 << 20
# By situation what happens in turn (a step is wanted, a message of a step is offered, room is made, in MiB), and the grants after each.
GRANTS = {
    "a message larger than the room is granted alone": [
        ("wanted", 1, []), ("offer", (1, 100), [1]), ("offer", (1, 1), [1]), ("room", 100, [1, 1])],
    "as far as there is room": [
        ("wanted", 1, []), ("offer", (1, 40), [1]), ("offer", (1, 24), [1] * 2), ("offer", (1, 1), [1] * 2), ("room", 24, [1] * 3)],
    "messages of a later step wait until it is wanted": [
        ("wanted", 1, []), ("offer", (2, 1), []), ("offer", (1, 1), [1]), ("wanted", 2, [1, 2])],
}  # fmt: skip


@pytest.mark.parametrize("happening", GRANTS.values(), ids=GRANTS)
def test_messages_are_granted(happening):
    one, granted = child(1), []  # the steps that it was asked to send, in order
    part = coordinator(one)
    part.down.send = lambda child, message: granted.append(message.step) if isinstance(message, Grant) else None
    for what, value, grants in happening:
        if what == "wanted":
            part.request(value)
        elif what == "offer":
            part.read((one, Offer(value[0], value[1] * MIB)))
        else:
            part.made_room(value * MIB)
        assert granted == grants
