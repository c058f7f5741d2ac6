"""The cause of a hang: it names rank, host, process, operation and phase, and never a rank that is where most are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from collbench.control.diagnosis import HangCause, HangEvidence, ProcessEnd, RankState, diagnose

CELL = "allreduce 64 MiB on mpi"
WARM = f"{CELL}: warm-up"
HOSTS = 4
KILLED = ProcessEnd(killed=True, signal=9)


def name(rank):
    return f"rank {rank} (node{rank // HOSTS:02d}, pid {4200 + rank})"


def seen(answers, n=4, what=WARM, **more):
    return HangEvidence(what, 60.0, {rank: name(rank) for rank in range(n)}, {one.rank: one for one in answers}, **more)


def standing(rank, phase=WARM, **more):
    return RankState(rank, phase, **more)


def test_a_rank_that_is_iterations_behind_never_entered_the_one_that_the_others_wait_in():
    others = [standing(rank, iteration=41, step=7) for rank in range(32) if rank != 13]
    found = diagnose(seen([*others, standing(13, iteration=40, step=7)], 32))
    assert (found.cause, found.phase, found.ranks, found.names) == (HangCause.BEHIND, WARM, (13,), ("rank 13 (node03, pid 4213)",))
    assert (found.iteration, found.detail, found.waiting, found.members, found.timeout_s) == (41, "", 31, 32, 60.0)


def test_a_rank_that_is_steps_behind_is_at_its_own_phase():
    waiting = standing(0, f"{CELL}: gathering samples", waits=True, step=9)
    found = diagnose(seen([waiting, standing(1, iteration=3, step=8)], 2, what=""))
    assert (found.cause, found.phase, found.ranks) == (HangCause.BEHIND, f"{CELL}: gathering samples", (1,))
    assert (found.detail, found.iteration, found.waiting, found.members) == (WARM, 3, 1, 2)


def test_a_rank_that_waits_for_others_is_never_the_cause():
    waiting = [standing(0, "gathering", waits=True, step=9), *(standing(rank, "deciding", waits=True, step=10) for rank in (1, 2))]
    found = diagnose(seen([*waiting, standing(3, step=8)], what="gathering"))
    assert (found.cause, found.ranks, found.detail) == (HangCause.BEHIND, (3,), WARM)


def test_a_rank_between_two_phases_has_no_phase_to_name():
    found = diagnose(seen([standing(0, "gathering", waits=True, step=2), standing(1, "", step=1)], 2, what="gathering"))
    assert (found.cause, found.detail) == (HangCause.BEHIND, "work between two phases")


def test_where_no_rank_is_behind_none_is_named():
    found = diagnose(seen([standing(rank, iteration=41, step=7) for rank in range(4)]))
    assert (found.cause, found.ranks, found.members, found.iteration) == (HangCause.NOTHING_MOVES, (), 4, 41)


def test_a_rank_that_is_ahead_is_not_the_cause():
    found = diagnose(seen([standing(0, "gathering", waits=True, step=9), *(standing(rank, iteration=5, step=8) for rank in (1, 2, 3))]))
    assert found.ranks == ()


def test_a_process_that_was_killed():
    found = diagnose(seen([standing(0)], what="", gone=[2], how={2: KILLED}))
    assert (found.cause, found.phase, found.ranks, found.end) == (HangCause.ENDED, WARM, (2,), KILLED)


def test_of_several_that_have_ended_the_first_is_named():
    found = diagnose(seen([standing(0)], what="", gone=[3, 1, 2]))
    assert (found.cause, found.ranks, found.more, found.end) == (HangCause.ENDED, (3,), 2, ProcessEnd())


def test_while_joining_a_rank_may_have_no_name_yet():
    assert diagnose(HangEvidence("", 60.0, {}, {}, gone=[2])).names == ("rank 2",)


def test_a_stopped_process_even_if_it_is_killed_meanwhile():
    answers = [standing(rank) for rank in (0, 1, 3)]
    for gone in ([], [2]):
        found = diagnose(seen(answers, held=frozenset({2}), gone=gone, doing={2: "poll < MPID_Progress_wait < PMPI_Allreduce"}))
        assert (found.cause, found.ranks, found.doing) == (HangCause.STOPPED, (2,), "poll < MPID_Progress_wait < PMPI_Allreduce")


def test_a_host_that_does_not_answer():
    found = diagnose(seen([standing(0), standing(1)], unreachable=frozenset({2, 3})))
    assert (found.cause, found.ranks) == (HangCause.HOST_SILENT, (2, 3))


def test_a_control_connection_that_is_lost_while_the_host_is_there():
    found = diagnose(seen([standing(0), standing(1), standing(2)], unreachable=frozenset({3}), elsewhere={3: "10.0.9.2"}))
    assert (found.cause, found.ranks, found.detail) == (HangCause.CONTROL_LOST, (3,), "10.0.9.2")


def test_behind_a_silent_first_rank_of_a_node_no_rank_can_be_heard_and_none_is_named():
    found = diagnose(seen([standing(0), standing(1)], spokesmen={2: 2, 3: 2}))
    assert (found.cause, found.ranks) == (HangCause.PROCESS_SILENT, (2,))


def test_more_than_four_are_counted():
    assert "rank 4 (node01, pid 4204) and 3 more" in diagnose(seen([standing(0)], 8)).render()


RANKS = range(6)
PLACES = st.builds(
    standing, st.just(0), st.sampled_from(["", "opening gloo", WARM, "a\nline"]), waits=st.booleans(), iteration=st.integers(-1, 3),
    step=st.integers(0, 3), still_s=st.floats(0, 99),
)  # fmt: skip
SUBSETS = st.sets(st.sampled_from(RANKS))


@settings(max_examples=300, deadline=None)
@given(st.lists(PLACES, min_size=6, max_size=6), SUBSETS, SUBSETS, SUBSETS, SUBSETS)
def test_always_one_sentence_that_names_no_rank_that_is_where_most_are(places, answering, gone, held, unreachable):
    answers = {rank: structs.replace(places[rank], rank=rank) for rank in answering - gone - held}
    found = HangEvidence(
        "", 5.0, {rank: name(rank) for rank in RANKS}, answers, gone=sorted(gone), held=held, unreachable=unreachable - answering
    )
    actual = diagnose(found)
    assert str(actual).strip() and "\n" not in str(actual)
    at = [one.place for one in answers.values()]
    for rank in actual.ranks:
        assert name(rank) in str(actual) or len(actual.ranks) > 4
        if rank in answers:
            assert at.count(answers[rank].place) * 2 <= len(at)
            assert not answers[rank].waits
    silent = set(RANKS) - answers.keys()
    assert set(actual.ranks) <= silent or not silent  # a rank that answers is not reported while another rank is silent


@pytest.mark.parametrize("place", [(3, 40), (2, 41), (2, -1)])
def test_a_standing_knows_which_of_two_ranks_is_behind(place):
    assert RankState(1, step=place[0], iteration=place[1]).place < RankState(0, step=3, iteration=41).place


def test_a_rank_that_is_ahead_does_not_make_the_others_late():
    """Three of four ranks are at the same position, two of them and one ahead: no rank is reported as behind."""
    ahead = [standing(0, iteration=42, step=7), *(standing(rank, iteration=41, step=7) for rank in (1, 2, 3))]
    assert diagnose(seen(ahead)).ranks == ()
    apart = [standing(rank, iteration=iteration, step=7) for rank, iteration in enumerate((40, 41, 42, 43, 43))]
    assert diagnose(seen(apart, 5)).ranks == ()
    halves = [standing(rank, iteration=40 + rank // 2, step=7) for rank in range(4)]
    assert diagnose(seen(halves)).ranks == (0, 1)


def test_of_several_late_ranks_those_furthest_behind_are_named():
    answers = [standing(rank, iteration=iteration, step=7) for rank, iteration in enumerate((41, 41, 41, 41, 40, 39, 39))]
    assert diagnose(seen(answers, 7)).ranks == (5, 6)


def test_a_rank_that_waits_at_an_earlier_place_is_not_late():
    others = [standing(rank, iteration=41, step=7) for rank in range(3)]
    assert diagnose(seen([*others, standing(3, iteration=40, step=7, waits=True)])).ranks == ()
    assert diagnose(seen([*others, standing(3, iteration=40, step=7)])).ranks == (3,)


@pytest.mark.parametrize(("gone", "held", "named"), [((2, 1), (), (2,)), ((1, 2), (), (1,)), ((3, 1), (3,), (1,)), ((3,), (3,), (3,))])
def test_the_first_process_that_ended_is_named_and_a_held_one_has_not_ended(gone, held, named):
    answers = [standing(rank, iteration=41, step=7) for rank in range(4) if rank not in gone]
    assert diagnose(seen(answers, what="", gone=gone, held=held)).ranks == named
