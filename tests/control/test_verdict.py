"""Who did not arrive: one sentence that names rank, host, process, operation and phase, and never one that is where most are."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.control.diagnosis import HangEvidence, Standing, diagnose

CELL = "allreduce 64 MiB on mpi"
WARM = f"{CELL}: warm-up"
HOSTS = 4


def name(rank):
    return f"rank {rank} (node{rank // HOSTS:02d}, pid {4200 + rank})"


def seen(answers, n=4, what=WARM, **more):
    return HangEvidence(what, 60.0, {rank: name(rank) for rank in range(n)}, {one.rank: one for one in answers}, **more)


def standing(rank, phase=WARM, **more):
    return Standing(rank, phase, **more)


def test_a_rank_that_is_iterations_behind_never_entered_the_one_that_the_others_wait_in():
    others = [standing(rank, iteration=41, step=7) for rank in range(32) if rank != 13]
    told = diagnose(seen([*others, standing(13, iteration=40, step=7)], 32))
    assert str(told) == f"hang: {WARM}: rank 13 (node03, pid 4213) never entered iteration 41; 31 of 32 ranks wait (--timeout 60)"
    assert told.ranks == (13,)


def test_a_rank_that_is_steps_behind_never_came():
    waiting = standing(0, f"{CELL}: gathering samples", waits=True, step=9)
    told = diagnose(seen([waiting, standing(1, iteration=3, step=8)], 2, what=""))
    assert str(told) == (
        f"hang: {CELL}: gathering samples: rank 1 (node00, pid 4201) never came: it is still at {WARM} in iteration 3; "
        "1 of 2 ranks waits (--timeout 60)"
    )


def test_who_waits_for_others_is_never_the_reason():
    waiting = [standing(0, "gathering", waits=True, step=9), *(standing(rank, "deciding", waits=True, step=10) for rank in (1, 2))]
    told = diagnose(seen([*waiting, standing(3, step=8)], what="gathering"))
    assert told.ranks == (3,)
    assert "never came: it is still at allreduce 64 MiB on mpi: warm-up" in str(told)


def test_a_rank_between_two_phases_has_no_phase_to_name():
    told = diagnose(seen([standing(0, "gathering", waits=True, step=2), standing(1, "", step=1)], 2, what="gathering"))
    assert "never came: it is still at work between two phases" in str(told)


def test_where_nobody_is_behind_nobody_is_accused():
    told = diagnose(seen([standing(rank, iteration=41, step=7) for rank in range(4)]))
    assert told.ranks == ()
    assert str(told) == (
        f"hang: {WARM}: all 4 ranks answer, and none is behind the others in iteration 41: "
        "the path between them carries nothing, or 60 s is too short a --timeout"
    )


def test_one_that_went_ahead_is_not_the_reason_either():
    told = diagnose(seen([standing(0, "gathering", waits=True, step=9), *(standing(rank, iteration=5, step=8) for rank in (1, 2, 3))]))
    assert told.ranks == ()


def test_a_process_that_was_killed():
    told = diagnose(seen([standing(0)], what="", gone=[2], how={2: "killed by signal 9 (SIGKILL)"}))
    assert str(told) == f"rank 2 (node00, pid 4202) ended without a word during {WARM}: killed by signal 9 (SIGKILL)"
    assert told.ranks == (2,)


def test_of_several_that_have_ended_the_first_is_named():
    told = diagnose(seen([standing(0)], what="", gone=[3, 1, 2]))
    assert str(told) == (
        f"rank 3 (node00, pid 4203) ended without a word during {WARM}: killed, crashed or out of memory; 2 more did so after it"
    )


def test_while_joining_a_rank_may_have_no_name_yet():
    assert str(diagnose(HangEvidence("", 60.0, {}, {}, gone=[2]))) == "rank 2 ended without a word: killed, crashed or out of memory"


def test_a_stopped_process_even_if_it_is_killed_meanwhile():
    answers = [standing(rank) for rank in (0, 1, 3)]
    for gone in ([], [2]):
        told = diagnose(seen(answers, held=frozenset({2}), gone=gone, doing={2: "poll < MPID_Progress_wait < PMPI_Allreduce"}))
        assert str(told) == (
            f"hang: {WARM}: rank 2 (node00, pid 4202) is stopped (SIGSTOP, or a debugger holds it); 3 of 4 ranks wait (--timeout 60); "
            "it is in poll < MPID_Progress_wait < PMPI_Allreduce"
        )


def test_a_host_that_does_not_answer():
    told = diagnose(seen([standing(0), standing(1)], unreachable=frozenset({2, 3})))
    assert "rank 2 (node00, pid 4202), rank 3 (node00, pid 4203) are on a host that does not answer: it is dead, or its link is cut" in str(
        told
    )
    assert told.ranks == (2, 3)


def test_a_control_connection_that_is_lost_while_the_host_is_there():
    told = diagnose(seen([standing(0), standing(1), standing(2)], unreachable=frozenset({3}), elsewhere={3: "10.0.9.2"}))
    assert "rank 3 (node00, pid 4203) lost its control connection: the host answers at 10.0.9.2, but does not acknowledge" in str(told)


def test_behind_a_silent_first_rank_of_a_node_nobody_can_be_heard_and_nobody_is_accused():
    told = diagnose(seen([standing(0), standing(1)], spokesmen={2: 2, 3: 2}))
    assert told.ranks == (2,)
    assert "does not answer, though the host does: stopped, or inside a call that holds its Python" in str(told)


def test_more_than_four_are_counted():
    told = diagnose(seen([standing(0)], 8))
    assert "rank 4 (node01, pid 4204) and 3 more do not answer" in str(told)


RANKS = range(6)
PLACES = st.builds(
    standing, st.just(0), st.sampled_from(["", "opening gloo", WARM, "a\nline"]), waits=st.booleans(), iteration=st.integers(-1, 3),
    step=st.integers(0, 3), still_s=st.floats(0, 99),
)  # fmt: skip
SUBSETS = st.sets(st.sampled_from(RANKS))


@settings(max_examples=300, deadline=None)
@given(st.lists(PLACES, min_size=6, max_size=6), SUBSETS, SUBSETS, SUBSETS, SUBSETS)
def test_always_one_sentence_that_accuses_nobody_who_is_where_most_are(places, answering, gone, held, unreachable):
    answers = {rank: replace(places[rank], rank=rank) for rank in answering - gone - held}
    found = HangEvidence(
        "", 5.0, {rank: name(rank) for rank in RANKS}, answers, gone=sorted(gone), held=held, unreachable=unreachable - answering
    )
    told = diagnose(found)
    assert str(told).strip() and "\n" not in str(told)
    at = [one.place for one in answers.values()]
    for rank in told.ranks:
        assert name(rank) in str(told) or len(told.ranks) > 4
        if rank in answers:
            assert at.count(answers[rank].place) * 2 <= len(at)
            assert not answers[rank].waits
    silent = set(RANKS) - answers.keys()
    assert set(told.ranks) <= silent or not silent  # whoever answers is not accused as long as somebody does not


@pytest.mark.parametrize("place", [(3, 40), (2, 41), (2, -1)])
def test_a_standing_knows_which_of_two_ranks_is_behind(place):
    assert Standing(1, step=place[0], iteration=place[1]).place < Standing(0, step=3, iteration=41).place


def test_a_rank_that_is_ahead_does_not_make_the_others_late():
    """Three of four ranks have one place in common; two of them and one ahead: nobody is behind most."""
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
