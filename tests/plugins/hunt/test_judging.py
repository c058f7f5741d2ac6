"""Candidates of a sweep, comparison of a pair with controls, and the state of a suspect by its trials and the network's structure."""

from itertools import combinations
from math import exp, log
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from collbench.plugins.hunt import strategy
from collbench.plugins.hunt.candidates import Candidate, find_candidates
from collbench.plugins.hunt.facts import NotProven, PairSlowInSweep, RetestCounts, SlowInSweep
from collbench.plugins.hunt.judging import FAST, SLOW, UNCLEAR, PathCheck, PlaceCheck, judge_trials, many_as_slow
from collbench.plugins.hunt.protocol import CLEARED, CONFIRMED, INCONCLUSIVE, GroupFigure, HuntLog, RoundRequest, RoundResult, Suspect
from collbench.plugins.hunt.trials import LATENCY, RECEIVES, SENDS, ControlComparison, Trial
from tests.plugins.hunt.pair_matrices import RATE, SyntheticMatrix

WAYS = (SENDS, RECEIVES)
NAMES = [f"n{place}" for place in range(10)]
LEAST = -log(0.95)
H = log(2)
SMALL = 0.06  # just above the smallest depth that is reported


def candidate(depth=H, places=(0,), ways=WAYS, *, doubtful=False):
    return Candidate(places, ways, depth, LEAST, 0.01, 5.0, 0.01, (), doubtful=doubtful)


@pytest.mark.parametrize(("n", "sure", "seed", "kept"), [
    (8, [], 3, [6, 5, 2]), (8, [0], 3, [0, 6, 5]), (8, [0], 6, [0, 6, 5]), (5, [0], 0, [0, 1]), (4, [], 1, [3]), (4, [0], 1, [0]),
])  # fmt: skip
def test_doubtful_candidates_leave_a_majority_of_healthy_places(n, sure, seed, kept):
    """By the noise more places than these are noticeably slow; those that are kept are the slowest."""
    made = SyntheticMatrix(n, seed, sigma=0.12)
    for place in sure:
        made.slow(place, 0.3)
    places = find_candidates(made.matrix()).places
    assert [(each.places[0], each.doubtful) for each in places] == [(place, place not in sure) for place in kept]


@pytest.mark.parametrize(
    ("sends", "receives", "ways"), [(True, False, "sends"), (False, True, "receives"), (True, True, "sends and receives")]
)
def test_the_partners_that_a_candidate_was_slow_with_are_counted_in_its_slow_direction(sends, receives, ways):
    (slow,) = find_candidates(SyntheticMatrix(8).slow(3, sends=sends, receives=receives).matrix()).places
    (evidence,) = slow.evidence
    assert isinstance(evidence, SlowInSweep) and (evidence.ways, evidence.slow, evidence.partners) == (ways, 7, 7)
    assert slow.fast_with == ()
    assert evidence.ratio == pytest.approx(0.5, rel=0.05)
    made = SyntheticMatrix(8).slow(3, sends=sends, receives=receives)
    made.rates[3, 6] = made.rates[6, 3] = RATE
    (slow,) = find_candidates(made.matrix()).places
    (evidence,) = slow.evidence
    assert (evidence.slow, evidence.partners, slow.fast_with) == (6, 7, (6,))


def test_a_slow_pair_reached_half_of_what_its_places_suggest_in_the_sweep():
    made = SyntheticMatrix(8)
    made.rates[1, 5] *= 0.5
    (path,) = find_candidates(made.matrix()).paths
    assert (path.places, path.ways) == ((1, 5), (SENDS,))
    (evidence,) = path.evidence
    assert isinstance(evidence, PairSlowInSweep) and evidence.ways == "sends"
    assert evidence.ratio == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(("n", "senders", "receivers", "healthy"), [
    (5, [0], [1], [2, 3, 4]), (6, [0, 1], [2, 3], [0, 1, 2, 3, 4, 5]),  # two others are too few
    (7, [0, 1], [2, 3], [4, 5, 6]), (9, [0, 1, 2], [3, 4], [5, 6, 7, 8]), (9, [0, 1, 2], [3, 4, 5], [0, 1, 2, 3, 4, 5, 6, 7, 8]),
])  # fmt: skip
def test_places_that_are_nearly_slow_are_not_compared_with_if_about_half_of_all_remain(n, senders, receivers, healthy):
    """They send or receive 3.5 % slower: a place is reported from 5 % on."""
    made = SyntheticMatrix(n, sigma=0.0)
    made.modes[:], made.places[:] = False, 0.0
    for place in senders:
        made.slow(place, 0.965, receives=False)
    for place in receivers:
        made.slow(place, 0.965, sends=False)
    found = find_candidates(made.matrix())
    assert (found.places, list(found.healthy)) == ((), healthy)


def scale(usual=None):
    """Places 0 to 3 are on one leaf, all others on another."""

    def same_leaf(a, b):
        return (a < 4) == (b < 4)

    return ControlComparison(same_leaf, usual or {})


def pair(a, b, speed, backward=None, **more):
    return (a, b), GroupFigure(speed, speed if backward is None else backward, **more)


def test_reference_of_a_pair():
    found = scale().trial(0, pair(0, 1, 1e9), [pair(2, 3, 2e9), pair(4, 5, 4e9)], True, {})
    assert found.usual == pytest.approx({SENDS: 4e9, RECEIVES: 4e9}) and found.log_slowdowns[SENDS] == pytest.approx(log(4))
    assert found.control_log_slowdowns[SENDS] == pytest.approx((log(2), 0.0))
    own, across = pair(2, 3, 2e9), pair(2, 7, 8e9)
    found = scale().trial(0, pair(0, 1, 1e9), [own, across], True, {})
    assert (found.usual[SENDS], found.controls, found.same_kind) == (pytest.approx(2e9), 1, True)
    other = scale().trial(0, pair(0, 1, 1e9), [across], True, {})
    assert (other.usual[SENDS], other.controls, other.same_kind) == (pytest.approx(8e9), 1, False)
    none = scale({SENDS: 3e9}).trial(0, pair(0, 1, 1e9), [], True, {})
    assert (none.usual, none.controls, none.same_kind) == ({SENDS: 3e9}, 0, False)
    found = scale().trial(1, ((0, 1), GroupFigure(None, na="no route")), [pair(2, 3, 2e9)], False, {})
    assert (found.partner, found.na, found.log_slowdowns, found.healthy) == (0, "no route", {}, False)


@pytest.mark.parametrize(("place", "partner", "sends", "receives"), [(0, 1, 1e9, 2e9), (1, 0, 2e9, 1e9)])
def test_sent_and_received_rates_are_those_of_the_place(place, partner, sends, receives):
    found = scale().trial(place, pair(0, 1, 1e9, 2e9), [pair(2, 3, 4e9, 8e9)], True, {})
    assert (found.place, found.partner) == (place, partner)
    assert found.speeds == {SENDS: sends, RECEIVES: receives}
    # Each direction is compared with what the controls did at the same time: all of them send first one way, then the other.
    expected = {1e9: 4e9, 2e9: 8e9}
    assert found.usual == pytest.approx({SENDS: expected[sends], RECEIVES: expected[receives]})


def test_cpu_wait_above_controls_and_largest_noise():
    controls = [pair(2, 3, 2e9, cpu_wait=0.3), pair(3, 2, 2e9, cpu_wait=0.2)]
    waits = [scale().trial(0, pair(0, 1, 1e9, cpu_wait=wait), controls, True, {}).cpu_wait for wait in (0.6, 0.25, 0.1)]
    assert waits == pytest.approx([0.35, 0.0, 0.0])
    assert scale({SENDS: 1e9}).trial(0, pair(0, 1, 1e9, cpu_wait=0.4), [], True, {}).cpu_wait == 0.4
    controls = [pair(2, 3, 2e9, latency_s=1e-5)]
    found = scale().trial(0, pair(0, 1, 1e9, latency_s=2e-5), controls, True, {SENDS: 0.02})
    assert found.noise[SENDS] == pytest.approx(0.02 * 2.8**0.5) and found.noise[LATENCY] == 0.0
    assert found.log_slowdowns[LATENCY] == pytest.approx(log(2))
    learned = scale()
    learned.learn([pair(0, 1, 2e9, low=1.96e9, high=2.04e9)])
    noise = learned.trial(0, pair(0, 1, 1e9), controls * 4, True, {SENDS: 0.001}).noise[SENDS]
    assert noise == pytest.approx(log(2.04 / 1.96) / (2 * 1.96) * (1 + 1.8 / 4) ** 0.5)


def trial(partner, depth, *, place=0, healthy=True, controls=3, noise=0.01, behind=None, same_kind=True):
    """Return a trial of `place` with a partner: `depth` behind controls, which are `behind` their median, by default 0.5 % apart."""
    behind = tuple(0.005 * number for number in range(controls)) if behind is None else behind
    return Trial(
        place, partner, healthy, controls, same_kind, dict.fromkeys(WAYS, depth), dict.fromkeys(WAYS, noise),
        dict.fromkeys(WAYS, 1e9 * exp(-depth)), dict.fromkeys(WAYS, 1e9), dict.fromkeys(WAYS, behind),
    )  # fmt: skip


def case(depths, depth=H):
    found = PlaceCheck(candidate(depth))
    for partner, each in depths:
        found.add(trial(partner, each))
    return found


@pytest.mark.parametrize(("case_of", "depth", "trials", "state"), [
    ("nothing measured", H, [], INCONCLUSIVE), ("slow once with each of two partners: too few rounds", H, [(1, H), (2, H)], INCONCLUSIVE),
    ("slow with three partners in five rounds", H, [(1, H), (2, H), (1, H), (2, H), (3, H)], CONFIRMED),
    ("slow in five rounds with one partner alone", H, [(1, H)] * 5, INCONCLUSIVE),
    ("as fast as the others with two partners", H, [(1, 0.01), (2, 0.0)], CLEARED),
    ("fast with one and slow with the other", H, [(1, 0.0), (2, H)], INCONCLUSIVE),
    ("slower again, but by less than is reported", SMALL, [(1, 0.04), (2, 0.04), (1, 0.04), (2, 0.04), (3, 0.04)], CLEARED),
    ("the interval reaches below what is reported", SMALL, [(1, 0.12), (2, 0.04), (1, 0.12), (2, 0.04), (3, 0.12)], INCONCLUSIVE),
])  # fmt: skip
def test_states_of_a_place(case_of, depth, trials, state):
    assert case(trials, depth).state() == state, case_of


def test_counts_interval_and_missing_criterion():
    suspect = case([(1, H), (2, H + 0.01), (3, H - 0.01), (1, H), (2, H)]).suspect(NAMES)
    assert suspect.evidence[-1] == RetestCounts(5, 5, 0, 15)
    assert 0.48 < suspect.low < suspect.ratio < suspect.high < 0.52
    found = case([(1, H), (2, H)])
    assert found.needs_rounds and not found.needs_healthy
    assert found.suspect(NAMES).evidence[-1] == NotProven("scatter", 2, 2)
    assert not case([(1, H), (2, H), (1, H), (2, H), (3, H)]).needs_rounds
    assert not case([(1, 0.04), (2, 0.04)], depth=SMALL).needs_rounds
    assert case([(1, 0.06), (2, 0.06)], depth=SMALL).needs_rounds


def test_a_slow_network_part_is_not_a_faulty_place():
    found = case([(1, H), (2, H), (1, H), (2, H), (3, H)])
    for _ in range(2):
        found.add(trial(7, 0.0, healthy=False))
    assert found.state() == INCONCLUSIVE
    found = case([(1, H), (2, H), (1, H), (2, H), (3, H)])
    found.in_a_part = True
    assert found.state() == INCONCLUSIVE


def test_one_slow_partner_makes_the_path_a_candidate():
    found = case([(1, 0.0), (2, H), (3, 0.0), (2, H)])
    assert found.path_partner == 2 and found.state() == CLEARED
    path = found.path(NAMES)
    assert path.places == (0, 2) and path.log_slowdown == pytest.approx(H)
    assert PathCheck(path).state() == INCONCLUSIVE  # the rounds that selected it do not count
    found = PlaceCheck(candidate(places=(5,), ways=(SENDS,)))
    for partner, depth in ((1, 0.0), (2, H), (3, 0.0), (2, H)):
        found.add(trial(partner, depth, place=5))
    path = found.path(NAMES)
    assert (path.places, path.ways) == ((2, 5), (RECEIVES,))
    assert case([(1, 0.0), (2, H), (3, 0.0)]).path_partner is None
    assert case([(1, 0.0), (2, 0.1), (3, 0.0), (2, 0.1)], depth=0.1).path_partner is None
    assert case([(1, 0.0), (2, 0.2), (3, 0.0), (2, 0.2)], depth=0.2).path_partner == 2


@pytest.mark.parametrize(("slow_controls_with", "places"), [(None, (0, 2)), (1, (0, 2)), (2, None)])
def test_a_slow_path_is_not_suspected_if_controls_were_as_slow_in_its_own_rounds(slow_controls_with, places):
    """The controls of rounds with other partners do not excuse it."""
    found = PlaceCheck(candidate())
    for number, depth in ((1, 0.0), (2, H), (3, 0.0), (2, H)):
        behind = (0.0, 0.0, H) if number == slow_controls_with else (0.0, 0.0, 0.0)
        found.add(trial(number, depth, behind=behind))
    path = found.path(NAMES)
    assert (path.places if path else None) == places


def path_case(again, ends=((0, 0.0), (2, 0.0)), controls=1):
    found = PathCheck(candidate(places=(0, 2)))
    for depth in again:
        found.add(trial(2, depth, controls=controls))
    for place, depth in ends:
        found.add(trial(3, depth, place=place, controls=controls))
    return found


@pytest.mark.parametrize(("case_of", "again", "ends", "state"), [
    ("slow in one round", [H], [(0, 0.0), (2, 0.0)], INCONCLUSIVE),
    ("slow in six rounds with one control each", [H] * 6, [(0, 0.0), (2, 0.0)], INCONCLUSIVE),
    ("slow in seven rounds with one control each", [H + 0.01 * turn for turn in range(7)], [(0, 0.0), (2, 0.0)], CONFIRMED),
    ("as fast as the others", [0.0], [], CLEARED), ("an end that is slow with others, too", [H] * 8, [(0, H), (2, 0.0)], INCONCLUSIVE),
    ("ends that were not measured", [H] * 8, [], INCONCLUSIVE),
    ("slow in half of the rounds", [H, 0.0] * 4, [(0, 0.0), (2, 0.0)], INCONCLUSIVE),
])  # fmt: skip
def test_states_of_a_path(case_of, again, ends, state):
    assert path_case(again, ends).state() == state, case_of


def test_rounds_that_an_undecided_path_needs():
    assert path_case([H]).needs_pair
    assert not path_case([H], ends=[]).needs_pair and path_case([H], ends=[]).needs_ends == [0, 2]
    assert not path_case([H + 0.01 * turn for turn in range(7)]).needs_pair
    found = PlaceCheck(candidate(ways=(LATENCY,)))
    found.add(trial(1, H))
    assert found.partners() == {} and found.state() == INCONCLUSIVE


def made(depth, behind=(0.0,) * 3, **changes):
    return trial(1, depth, behind=behind, **changes)


@pytest.mark.parametrize(("depth", "trials", "how"), [
    (H, [made(H)], SLOW), (H, [made(0.3)], FAST), (H, [made(0.36)], SLOW),
    (H, [made(0.5, noise=0.2)], UNCLEAR),  # five scales of noise of two figures
    (H, [made(0.5, noise=0.2)] * 4, SLOW), (0.1, [made(0.08)], SLOW),
    (0.1, [made(0.08, controls=0, behind=())], UNCLEAR),  # without controls a round may be slow as a whole
    (0.1, [made(0.11, controls=0, behind=())], SLOW), (H, [made(0.5, controls=0, behind=())], SLOW),
])  # fmt: skip
def test_state_of_trials_with_one_partner(depth, trials, how):
    assert judge_trials(candidate(depth), trials) == how


@pytest.mark.parametrize(("trials", "many"), [
    ([made(H, behind=(0.0, 0.0, 0.0, 0.4))], False), ([made(H, behind=(0.0, 0.0, 0.4))], True), ([made(H, behind=(0.0, 0.0, 0.3))], False),
    ([made(H, controls=10, behind=(H,) * 3 + (0.0,) * 7)], False),  # 30 % of them
    ([made(H, controls=10, behind=(H,) * 4 + (0.0,) * 6)], True), ([made(H, same_kind=False)], True),
    ([made(H, same_kind=False), made(H)], False), ([made(H, controls=0, behind=(), same_kind=False)], False), ([], False),
])  # fmt: skip
def test_share_of_healthy_pairs_as_slow(trials, many):
    assert many_as_slow(candidate(), trials) is many


def test_a_place_is_not_confirmed_while_healthy_pairs_are_as_slow():
    found = PlaceCheck(candidate())
    behind = (0.0,) * 6 + (H,) * 4
    for number in range(14):  # enough rounds to exclude chance, and yet four of ten control pairs are as slow
        found.add(trial(1 + number % 3, H, controls=10, behind=behind))
    assert found.outcome.value == "slow" and found.like_others and found.state() == INCONCLUSIVE
    # The sweep saw less than was measured later: controls behind by half of the sweep's depth are not as slow.
    found = PlaceCheck(candidate(0.2))
    for partner in (1, 2, 1, 2, 3):
        found.add(trial(partner, 1.0, behind=(0.0, 0.3, 0.3)))
    assert not found.like_others


@pytest.mark.parametrize(("trials", "state", "needs_healthy", "repeat"), [
    ([(1, 0.0)], INCONCLUSIVE, True, None), ([(1, 0.0), (2, 0.0)], CLEARED, False, None), ([(1, 0.0), (2, H)], INCONCLUSIVE, True, 2),
    ([(1, 0.0), (2, H), (3, 0.0)], INCONCLUSIVE, False, 2), ([(1, H), (2, H), (3, 0.0)], INCONCLUSIVE, False, 3),
    ([(1, 0.0), (2, H), (3, 0.0), (2, H)], CLEARED, False, None),
])  # fmt: skip
def test_a_third_partner_decides_if_two_differ(trials, state, needs_healthy, repeat):
    found = case(trials)
    assert (found.state(), found.needs_healthy) == (state, needs_healthy)
    if len(trials) != 2:
        assert found.partner_to_repeat == repeat


@pytest.mark.parametrize(
    ("sends", "receives", "kind"), [(H, 0.0, "sender"), (0.0, H, "receiver"), (H, H, "node"), (H, 0.8 * H, "node"), (H, 0.6 * H, "sender")]
)
def test_kind_of_a_finding_by_its_direction(sends, receives, kind):
    found = PlaceCheck(candidate(ways=(SENDS,) if sends > receives else (RECEIVES,) if receives > sends else WAYS))
    for partner in (1, 2, 1, 2, 3):
        found.add(replace(trial(partner, 0.0, behind=(0.0,) * 3), log_slowdowns={SENDS: sends, RECEIVES: receives}))
    assert found.suspect(NAMES).kind == kind


def measured(slow, n=12):
    """Every pair of n places, of which so many are half as fast; those of place 0 are fast."""
    pairs = list(combinations(range(n), 2))
    halved = [pair for pair in pairs if 0 not in pair][:slow]
    figures = tuple(GroupFigure(speed, speed) for speed in (5e9 if pair in halved else 1e10 for pair in pairs))
    return HuntLog(tuple(map(str, range(n))), [(RoundRequest("pairs", tuple(pairs), "all"), RoundResult(figures))])


@pytest.mark.parametrize(("slow", "state"), [(0, CONFIRMED), (16, CONFIRMED), (17, INCONCLUSIVE), (40, INCONCLUSIVE)])
def test_place_as_slow_as_30_percent_of_pairs(slow, state):
    (found,) = strategy.demote_common([Suspect("node", (0,), CONFIRMED, 0.5, partners=(1, 2))], measured(slow), lambda a, b: True)
    assert found.state == state  # of 55 pairs of others
    assert (state == CONFIRMED) == (not found.evidence)


def paths(*ends):
    cases = [SimpleNamespace(places=pair, suspect=lambda names, pair=pair: Suspect("path", pair, CONFIRMED, 0.5)) for pair in ends]
    return SimpleNamespace(selection=SimpleNamespace(deferred=()), places=[], paths=cases)


@pytest.mark.parametrize(("ends", "state"), [
    (((0, 1), (2, 3), (4, 5)), CONFIRMED), (((0, 1), (2, 3), (4, 5), (6, 7)), INCONCLUSIVE), (((0, 1), (2, 3), (4, 5), (1, 7)), CONFIRMED),
], ids=["few", "many", "with a common place"])  # fmt: skip
def test_many_paths_without_a_common_place(ends, state):
    assert {each.state for each in strategy.suspects(paths(*ends), [str(place) for place in range(16)])} == {state}
