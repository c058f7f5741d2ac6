"""The cause of a hang: it names rank, host, process, operation and phase, and never a rank that is where most are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from collbench.control.diagnosis import HangCause, HangEvidence, ProcessEnd, RankState, diagnose

CASE = "allreduce 64 MiB on mpi"
WARM = f"{CASE}: warm-up"
HOSTS = 4
KILLED = ProcessEnd(killed=True, signal=9)


def name(rank):
    return f"rank {rank} (node{rank // HOSTS:02d}, pid {4200 + rank})"


def seen(answers, n=4, what=WARM, **more):
    return HangEvidence(what, 60.0, {rank: name(rank) for rank in range(n)}, {one.rank: one for one in answers}, **more)


def standing(rank, phase=WARM, **more):
    return RankState(rank, phase, **more)


GATHERING = f"{CASE}: gathering samples"
AT_41 = [standing(rank, iteration=41, step=7) for rank in range(4)]
WAITING_9 = standing(0, "gathering", waits=True, step=9)
STACK = "poll < MPID_Progress_wait < PMPI_Allreduce"
CASES = {
    "iterations behind": (
        [*(standing(rank, iteration=41, step=7) for rank in range(32) if rank != 13), standing(13, iteration=40, step=7)],
        {"n": 32},
        {
            "cause": HangCause.BEHIND, "phase": WARM, "ranks": (13,), "names": ("rank 13 (node03, pid 4213)",), "iteration": 41,
            "detail": "", "waiting": 31, "members": 32, "timeout_s": 60.0,
        },
    ),
    "steps behind, at its own phase": (
        [standing(0, GATHERING, waits=True, step=9), standing(1, iteration=3, step=8)],
        {"n": 2, "what": ""},
        {"cause": HangCause.BEHIND, "phase": GATHERING, "ranks": (1,), "detail": WARM, "iteration": 3, "waiting": 1, "members": 2},
    ),
    "a rank that waits for others is never the cause": (
        [WAITING_9, *(standing(rank, "deciding", waits=True, step=10) for rank in (1, 2)), standing(3, step=8)],
        {"what": "gathering"},
        {"cause": HangCause.BEHIND, "ranks": (3,), "detail": WARM},
    ),
    "a rank that waits at an earlier place is not late": (
        [*AT_41[:3], standing(3, iteration=40, step=7, waits=True)], {}, {"cause": HangCause.NOTHING_MOVES, "ranks": ()},
    ),
    "between two phases": (
        [standing(0, "gathering", waits=True, step=2), standing(1, "", step=1)],
        {"n": 2, "what": "gathering"},
        {"cause": HangCause.BEHIND, "detail": "work between two phases"},
    ),
    "none is behind": (AT_41, {}, {"cause": HangCause.NOTHING_MOVES, "ranks": (), "members": 4, "iteration": 41}),
    "rank 0 is ahead": ([WAITING_9, *(standing(rank, iteration=5, step=8) for rank in (1, 2, 3))], {}, {"ranks": ()}),
    "one is ahead": ([standing(0, iteration=42, step=7), *AT_41[1:]], {}, {"ranks": ()}),
    "all are apart": ([standing(rank, iteration=at, step=7) for rank, at in enumerate((40, 41, 42, 43, 43))], {"n": 5}, {"ranks": ()}),
    "half are behind": ([standing(rank, iteration=40 + rank // 2, step=7) for rank in range(4)], {}, {"ranks": (0, 1)}),
    "of several late ranks those furthest behind": (
        [standing(rank, iteration=at, step=7) for rank, at in enumerate((41, 41, 41, 41, 40, 39, 39))], {"n": 7}, {"ranks": (5, 6)},
    ),
    "killed": (
        [standing(0)], {"what": "", "gone": [2], "how": {2: KILLED}},
        {"cause": HangCause.ENDED, "phase": WARM, "ranks": (2,), "end": KILLED},
    ),
    "the first of several that ended": (
        [standing(0)], {"what": "", "gone": [3, 1, 2]}, {"cause": HangCause.ENDED, "ranks": (3,), "more": 2, "end": ProcessEnd()},
    ),
    "one that ended beside a stopped one": (
        AT_41[:1], {"what": "", "gone": (3, 1), "held": (3,)}, {"cause": HangCause.ENDED, "ranks": (1,)},
    ),
    "stopped": ([*AT_41[:2], AT_41[3]], {"held": {2}, "doing": {2: STACK}}, {"cause": HangCause.STOPPED, "ranks": (2,), "doing": STACK}),
    "stopped, even if it is killed meanwhile": (
        [*AT_41[:2], AT_41[3]], {"held": {2}, "gone": [2]}, {"cause": HangCause.STOPPED, "ranks": (2,)},
    ),
    "a host that does not answer": (
        [standing(0), standing(1)], {"unreachable": {2, 3}}, {"cause": HangCause.HOST_SILENT, "ranks": (2, 3)},
    ),
    "a control connection that is lost while the host is there": (
        AT_41[:3], {"unreachable": {3}, "elsewhere": {3: "10.0.9.2"}},
        {"cause": HangCause.CONTROL_LOST, "ranks": (3,), "detail": "10.0.9.2"},
    ),
    "behind a silent first rank of a node no rank can be heard, and none is named": (
        [standing(0), standing(1)], {"spokesmen": {2: 2, 3: 2}}, {"cause": HangCause.PROCESS_SILENT, "ranks": (2,)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("answers", "evidence", "expected"), CASES.values(), ids=CASES)
def test_the_cause(answers, evidence, expected):
    found = diagnose(seen(answers, **evidence))
    assert {name: getattr(found, name) for name in expected} == expected


def test_more_than_four_are_counted_and_while_joining_a_rank_may_have_no_name_yet():
    assert "rank 4 (node01, pid 4204) and 3 more" in diagnose(seen([standing(0)], 8)).render()
    assert diagnose(HangEvidence("", 60.0, {}, {}, gone=[2])).names == ("rank 2",)


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
    at = [(one.place, one.phase) for one in answers.values()]
    for rank in actual.ranks:
        assert name(rank) in str(actual) or len(actual.ranks) > 4
        if rank in answers:
            exchange_of_rank_0 = rank and answers[rank].waits and answers[0].waits and answers[rank].phase != answers[0].phase
            assert exchange_of_rank_0 or (at.count((answers[rank].place, answers[rank].phase)) * 2 <= len(at) and not answers[rank].waits)
    silent = set(RANKS) - answers.keys()
    assert set(actual.ranks) <= silent or not silent  # a rank that answers is not reported while another rank is silent


@pytest.mark.parametrize("place", [(3, 40), (2, 41), (2, -1)])
def test_a_standing_knows_which_of_two_ranks_is_behind(place):
    assert RankState(1, step=place[0], iteration=place[1]).place < RankState(0, step=3, iteration=41).place


def test_ranks_that_were_all_paused_beyond_the_deadline_are_no_fault_of_the_path():
    paused = [standing(rank, still_s=70.0, recently_paused_s=64.0 + rank) for rank in range(4)]
    found = diagnose(seen(paused))
    assert (found.cause, found.ranks, found.paused_s) == (HangCause.ALL_PAUSED, (), 64.0)
    long_before = [standing(rank, still_s=170.0, recently_paused_s=64.0) for rank in range(4)]
    within = [standing(rank, still_s=61.0, recently_paused_s=20.0) for rank in range(4)]
    for others in ([*paused[:3], standing(3, still_s=70.0)], long_before, within):
        assert diagnose(seen(others)).cause is HangCause.NOTHING_MOVES
