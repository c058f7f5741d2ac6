"""Growing groups: a place that is slow only in large groups is found; if all is slow, no place is a suspect."""

from math import log2
from random import Random

import pytest

from collbench.plugins.hunt import facts
from collbench.plugins.hunt.growing import measure_growing, most_rounds, sizes
from collbench.plugins.hunt.protocol import CONFIRMED, GROUPS, GroupFigure, Options, RoundResult
from tests.plugins.hunt.made_up import MadeUp, Played, play


def looked(made, seed=0):
    log = made.log()
    played = play(measure_growing(log, range(made.n), Options(), Random(seed)), made)
    assert len(played.asks) <= most_rounds(made.n, Options())
    return Played((played.result, log.notes), played.asks)


def named(played):
    assert all(hint.kind == "scale" and len(hint.places) == 1 for hint in played.result[0])
    return sorted(hint.places[0] for hint in played.result[0])


@pytest.mark.parametrize(("n", "least"), [(8, 3), (16, 5), (64, 17), (64, 32), (100, 40), (512, 100)])
def test_one_that_is_slow_from_some_size_on_is_found(n, least):
    for seed in range(10):
        sick = Random(seed).randrange(n)
        assert named(looked(MadeUp(n, seed).scale(sick, least), seed)) == [sick], seed


def test_the_evidence_of_a_slow_place_in_large_groups():
    (hint,), notes = looked(MadeUp(64, 1).scale(40, 16, 0.6), 1).result
    assert hint.ratio == pytest.approx(0.6, rel=0.1)
    assert hint.evidence == (facts.SlowAtScale(3, 16, hint.ratio), facts.FastWithout(8))
    assert hint.state == CONFIRMED
    assert len(hint.partners) > 15
    assert not notes


def test_several_at_the_same_time_in_one_group_or_at_different_sizes_are_found():
    for seed in range(10):
        made = MadeUp(64, seed).scale(3, 8).scale(50, 8, 0.6).scale(20, 20, 0.7)
        assert named(looked(made, seed)) == [3, 20, 50], seed
    made = MadeUp(16, 5)
    for place in (0, 1):
        made.scale(place, 4)
    assert [named(looked(made, seed)) for seed in range(20)].count([0, 1]) >= 18


def test_healthy_or_equally_slow_groups_take_a_round_for_each_size_and_give_no_suspect():
    for seed in range(20):
        hints, notes = looked(MadeUp(64, seed), seed).result
        assert (hints, notes) == ([], []), seed
    assert looked(MadeUp(32, 4).all_slow(0.3)).result == ([], [])
    played = looked(MadeUp(64, 1))
    assert [max(map(len, ask.groups)) for ask in played.asks] == [4, 8, 16, 32, 64]
    assert {ask.kind for ask in played.asks} == {GROUPS}
    assert {ask.stage for ask in played.asks} == {"growing"}


class NarrowCore(MadeUp):
    """Groups of at least `least` places have to cross a core that is too narrow, all alike."""

    least, ratio = 0, 1.0

    def answer(self, ask):
        answered = zip(ask.groups, super().answer(ask).figures, strict=True)
        speeds = [(self.ratio if len(group) >= self.least else 1) * (figure.speed or 0) for group, figure in answered]
        return RoundResult(tuple(map(GroupFigure, speeds)))


def test_a_whole_group_slower_than_its_parts_or_sizes_slower_for_all_are_noted_once_and_give_no_suspect():
    made = NarrowCore(32, 2)
    made.least, made.ratio = 17, 0.5  # more than half of all
    hints, (note,) = looked(made).result
    assert hints == []
    assert isinstance(note, facts.WholeSlow) and note.endpoints == 32
    made = NarrowCore(64, 2)
    made.least, made.ratio = 16, 0.6
    hints, (note,) = looked(made).result
    assert hints == []
    assert isinstance(note, facts.SizeSlow) and note.size == 16


def test_a_slow_path_or_a_place_that_ends_gives_no_suspect_but_a_note():
    notes = []
    for seed in range(30):
        hints, actual = looked(MadeUp(16, seed).path(2, 9, 0.5), seed).result
        assert hints == [], seed
        notes += actual
    assert any(isinstance(note, facts.NoSlowPiece) for note in notes)
    played = looked(MadeUp(32, 3).scale(4, 8).dies(20, 2, "gone"), 3)
    assert 20 not in named(played)
    assert any(isinstance(note, facts.GroupNotMeasured) and note.why == "node020: gone" for note in played.result[1])


def test_groups_that_cannot_be_divided_further_are_noted():
    made = MadeUp(12, 0)
    for place in (0, 4):
        made.scale(place, 4)
    found = [looked(made, seed).result for seed in range(10)]
    assert all({hint.places[0] for hint in hints} <= {0, 4} for hints, _ in found)
    assert any(facts.TooManySlowGroups(2, 3, 4) in notes for _, notes in found)
    made = MadeUp(64, 2)
    for least, place in zip((3, 5, 9, 17), (1, 20, 40, 60), strict=True):
        made.scale(place, least)
    hints, notes = looked(made, 2).result
    assert {1, 20} <= {hint.places[0] for hint in hints} <= {1, 20, 40, 60}
    assert any(isinstance(note, facts.PartsNotDivided) and note.why == "rounds" for note in notes)
    assert not any(isinstance(note, facts.WholeSlow | facts.SizeSlow) for note in notes)


def test_only_eight_given_places_or_more_are_asked_unless_it_is_switched_off():
    played = looked(MadeUp(7))
    assert played.asks == []
    assert played.result == ([], [facts.GrowingNeedsMore(7, 4)])
    assert most_rounds(7, Options()) == 0
    played = play(measure_growing(MadeUp(16).log(), range(16), Options(growing=False), Random(0)), MadeUp(16))
    assert (played.asks, played.result) == ([], [])
    played = play(measure_growing(MadeUp(16).log(), [0, 2, *range(4, 16)], Options(), Random(0)), MadeUp(16))
    assert not {1, 3} & {place for ask in played.asks for group in ask.groups for place in group}


def test_sizes_double_up_to_the_half_and_fewer_places_never_take_more_rounds():
    assert sizes(8) == [4]
    assert sizes(64) == [4, 8, 16, 32]
    assert sizes(100) == [4, 8, 16, 32, 50]
    assert sizes(66) == [4, 8, 16, 32]
    most = [most_rounds(n, Options()) for n in range(600)]
    assert most == sorted(most)


@pytest.mark.parametrize(("n", "most"), [(8, 1 + 1 + 8), (64, 4 + 1 + 11), (512, 7 + 1 + 11), (4096, 10 + 1 + 13)])
def test_the_estimate_counts_sizes_the_whole_group_and_divisions(n, most):
    assert most_rounds(n, Options()) == most
    assert most_rounds(n, Options(growing=False)) == 0
    assert most <= 2 * log2(n) + 4


def test_as_many_slow_places_are_measured_again_as_get_new_partners_and_the_others_are_noted():
    """Seven places of two groups are found to be slow. Each needs three other places, and a group without a slow one is measured, too."""
    made = MadeUp(28, 2)
    slow = Random(2).sample(range(28), 28)[:7]
    for place in slow:
        made.scale(place, 4)
    played = looked(made, 2)
    again = played.asks[3]
    assert sorted(len(set(group) & set(slow)) for group in again.groups) == [0, 1, 1, 1, 1, 1]
    assert played.result[1] == [facts.NotConfirmedAtScale(2, 4), facts.PartsNotDivided(1, 11, "rounds")]
    assert len(named(played)) == 6 and set(named(played)) <= set(slow)  # five of this size, and one of a larger one


def test_all_are_named_if_nearly_all_groups_of_a_round_have_a_slow_place():
    """Nine of forty: in the rounds that confirm them, nine of ten or more groups are slow."""
    for seed in range(10):
        slow = sorted(Random(seed).sample(range(40), 9))
        made = MadeUp(40, seed)
        for place in slow:
            made.scale(place, 4)
        played = looked(made, seed)
        assert (named(played), played.result[1]) == (slow, []), seed


class FastOnce(MadeUp):
    """One request is answered as if no place were slow."""

    fast_request = 0

    def answer(self, ask):
        slow = self.scales
        self.fast_request -= 1
        self.scales = {} if self.fast_request == 0 else slow
        answer = super().answer(ask)
        self.scales = slow
        return answer


@pytest.mark.parametrize(("fast_request", "size"), [(0, 4), (3, 8), (4, 8)])
def test_a_place_is_named_and_left_out_of_larger_groups_only_if_it_is_slow_in_each_of_two_more_rounds(fast_request, size):
    made = FastOnce(16, 1).scale(3, 4)
    made.fast_request = fast_request
    played = looked(made)
    assert named(played) == [3]
    ((hint,), notes) = played.result
    assert hint.evidence[0].size == size
    assert notes == ([] if size == 4 else [facts.ClearedAtScale(4, "")])
    assert 3 not in played.asks[-1].groups[0]
