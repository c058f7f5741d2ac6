"""A hunt among simulated places: faulty ones are confirmed, their partners cleared, and without a fault no place is a suspect."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.operations.groups import circle_round
from collbench.plugins.hunt import facts
from collbench.plugins.hunt.protocol import CLEARED, CONFIRMED, INCONCLUSIVE, PAIRS, GroupFigure, Options, RoundRequest, RoundResult
from collbench.plugins.hunt.records import PairRound, matrix_of
from collbench.plugins.hunt.strategy import cross_check_rounds, hunt, judge, promise, rounds
from collbench.plugins.hunt.trials import Trial
from tests.plugins.hunt.made_up import MadeUp, play

SIZE = 1 << 20
MANY = [pytest.param(n, 100 if n == 64 else 400, marks=pytest.mark.long) for n in (4, 5, 6, 8, 9, 16, 64)]


def played(made, **options):
    """A whole hunt, which keeps to its promise; without groups that grow unless asked for."""
    chosen = Options(**({"growing": False, "isolate": False} | options))
    found = play(hunt(made.names, chosen, made.hosts), made)
    assert sum(found.result.rounds.values()) == len(found.asks) <= found.result.promised == promise(made.n, chosen)
    return found


def confirmed(verdict):
    return {(each.kind, each.places) for each in verdict.of(CONFIRMED)}


def nodes(*places):
    return {("node", (place,)) for place in places}


def with_slow(made, places, ratio=0.5):
    for place in places:
        made.node(place, ratio)
    return made


@pytest.mark.parametrize(("n", "places", "seed"), [
    *((16, [5], seed) for seed in range(5)), *((64, [5, 41], seed) for seed in range(5)),
    *((64, range(seed, 64, 4), seed) for seed in range(4)),  # a quarter, with one another as partners
])  # fmt: skip
def test_only_the_faulty_places_are_confirmed(n, places, seed):
    verdict = played(with_slow(MadeUp(n, seed), places), seed=seed).result
    assert confirmed(verdict) == nodes(*places)
    assert verdict.result == "confirmed" and not verdict.of(INCONCLUSIVE)


def silent_latency(made):
    made.no_latency = True
    return made


def on_hosts(made, each):
    made.hosts = tuple(f"host{place // each}" for place in range(made.n))
    return made


@pytest.mark.parametrize(("made", "expected"), [
    *((MadeUp(n, 1).node(2, ratio), nodes(2)) for n in (5, 8, 16, 33) for ratio in (0.8, 0.9)),
    *((with_slow(MadeUp(n), places), nodes(*places)) for n, places in ((8, [2, 5]), (16, [0, 5, 6, 11]), (16, [1, 2, 3, 4, 5]))),
    (MadeUp(8).node(3).slow_latency(5, 0.4).path(1, 7), {("node", (3,)), ("latency", (5,)), ("path", (1, 7))}),
    (on_hosts(MadeUp(16).node(5), 16), nodes(5)), (on_hosts(MadeUp(16).node(5), 4), nodes(5)),
    (silent_latency(MadeUp(8).node(2)), nodes(2)),
])  # fmt: skip
def test_exactly_these_are_confirmed(made, expected):
    """Slightly slow places, up to a quarter of all, several kinds at once, ranks of one and of several hosts, missing latencies."""
    assert confirmed(played(made).result) == expected


def test_a_suspect_is_retested_with_healthy_partners_and_controls_and_each_trial_is_listed_once():
    (found,) = played(MadeUp(16).node(5)).result.of(CONFIRMED)
    assert found.ratio == pytest.approx(0.5, rel=0.05)
    assert found.low < 0.5 < found.high < 0.6
    assert len(found.partners) >= 2 and 5 not in found.partners
    first, *again, counts = found.evidence
    assert isinstance(first, facts.SlowInSweep) and (first.ways, first.slow, first.partners) == ("sends and receives", 8, 8)
    assert all(isinstance(each, facts.Retest) and each.controls > 1 for each in again)
    assert counts == facts.RetestCounts(3, 3, 0, 21)
    made = with_slow(MadeUp(16), [3, 9, 12])
    asks = [ask for ask in played(made).asks if ask.stage == "cross-check"]
    with_well = {(place, other) for ask in asks for pair in ask.groups for place, other in (pair, pair[::-1]) if place in {3, 9, 12}}
    for place in (3, 9, 12):
        assert len({other for who, other in with_well if who == place} - {3, 9, 12}) >= 2
    assert all(any(not {3, 9, 12} & set(pair) for pair in ask.groups) for ask in asks)
    assert all(ask.kind == PAIRS for ask in asks)
    (suspect,) = [each for each in played(MadeUp(16).busy(5)).result.of(CONFIRMED) if each.places == (5,)]
    assert any(isinstance(each, facts.Retest) for each in suspect.evidence)
    assert len({*suspect.evidence}) == len(suspect.evidence)


def test_a_healthy_place_with_mostly_faulty_partners_is_cleared_and_a_slow_path_clears_its_ends():
    all_places = ((0, 1), (0, 2), (0, 3), (4, 5), (6, 7), (8, 9), (10, 11))
    verdict = played(with_slow(MadeUp(12, 2), [1, 2, 3]), cover=all_places, rounds=3).result
    assert confirmed(verdict) == nodes(1, 2, 3)
    assert (CLEARED, (0,)) in {(each.state, each.places) for each in verdict.suspects}
    for n in (5, 8):
        verdict = played(MadeUp(n).path(1, 4)).result
        assert confirmed(verdict) == {("path", (1, 4))}
    (found,) = verdict.of(CONFIRMED)
    assert found.ratio == pytest.approx(0.5, rel=0.05)
    assert {each.endpoint for each in found.evidence if isinstance(each, facts.Retest)} == {"", "node001", "node004"}


@pytest.mark.parametrize(("make", "kind"), [
    (MadeUp.node, "node"), (MadeUp.sender, "sender"), (MadeUp.receiver, "receiver"), (MadeUp.slow_latency, "latency"),
    (MadeUp.busy, "node"),
])  # fmt: skip
@pytest.mark.parametrize("n", [8, 16])
def test_kinds(make, kind, n):
    for seed in range(3):
        assert confirmed(played(make(MadeUp(n, seed), seed, 0.5), seed=seed).result) == {(kind, (seed,))}


class LatencyOfTheSweep(MadeUp):
    """In the sweep the small messages of one place take twenty times as long; afterwards they do not."""

    place = 0

    def answer(self, ask):
        answer, slow = super().answer(ask), ask.stage == "sweep"
        figures = zip(ask.groups, answer.figures, strict=True)
        return RoundResult(
            tuple(replace(f, latency_s=20 * (f.latency_s or 0)) if slow and self.place in pair else f for pair, f in figures)
        )


@pytest.mark.parametrize(("n", "place", "seed"), [(4, 0, 3), (8, 0, 3), *((4, 1, seed) for seed in range(5))])
def test_a_latency_that_comes_and_goes_does_not_hide_half_the_rate(n, place, seed):
    """Neither that of the slow place, nor that of another one."""
    verdict = played(LatencyOfTheSweep(n, seed).node(place), seed=seed).result
    assert confirmed(verdict) == nodes(place)
    assert {(each.kind, each.places) for each in verdict.of(INCONCLUSIVE)} <= {("latency", (0,))}
    assert [each.places for each in verdict.suspects].count((place,)) == 1


def test_a_place_that_is_slightly_slow_does_not_hide_half_the_rate_among_four():
    for seed in range(5):
        assert ("node", (0,)) in confirmed(played(MadeUp(4, seed, 0.005).node(0).sender(3, 0.93), seed=seed).result), seed


@pytest.mark.parametrize(("n", "trials"), [(4, 50), (8, 50), (16, 50), (32, 50), *MANY])
def test_healthy_places_give_no_suspect(n, trials):
    for seed in range(trials):
        assert not confirmed(played(MadeUp(n, seed), seed=seed).result), seed


def test_equally_slow_places_and_more_faulty_ones_than_a_third_give_no_suspect_but_a_note():
    verdict = played(MadeUp(16).all_slow(0.3)).result
    assert verdict.result == "nobody" and not verdict.suspects
    assert verdict.middle == pytest.approx(3e9, rel=0.05)
    assert [note.middle for note in verdict.notes if isinstance(note, facts.AllAlike)] == [verdict.middle]
    verdict = played(with_slow(MadeUp(16), range(6))).result
    assert not confirmed(verdict)
    assert verdict.result == "no verdict"
    assert facts.TooManySuspects(6, 16) in verdict.notes
    verdict = played(with_slow(MadeUp(8), range(4))).result
    assert not confirmed(verdict)
    note = verdict.notes[-1]
    assert isinstance(note, facts.DividedPairs) and note.share == pytest.approx(0.79, abs=0.005)


@pytest.mark.parametrize("sizes", [(12, 4), (9, 7), (8, 8), (14, 2), (6, 5, 5), (10, 3, 3), (4, 4, 4, 4), (56, 4, 4)])
def test_no_place_is_a_suspect_for_its_part_of_the_network(sizes):
    of_place = [part for part, size in enumerate(sizes) for _ in range(size)]
    for seed in range(3):
        for leaves in (None, tuple(map(str, of_place))):
            assert not confirmed(played(MadeUp(len(of_place), seed).parts(of_place), seed=seed, leaf_of=leaves).result), (seed, leaves)


def test_partners_come_from_the_same_and_another_switch_which_may_itself_be_why_a_place_alone_on_it_is_slow():
    leaves = tuple(str(place % 4) for place in range(16))
    (found,) = played(MadeUp(16).node(5), leaf_of=leaves).result.of(CONFIRMED)
    assert {leaves[partner] == leaves[5] for partner in found.partners} == {True, False}
    leaves = tuple("alone" if place == 5 else str(place % 2) for place in range(16))
    (found,) = played(MadeUp(16).node(5), leaf_of=leaves).result.of(CONFIRMED)
    assert found.evidence[-1] == facts.AloneOnSwitch("alone")
    (found,) = played(MadeUp(16).node(4), leaf_of=leaves).result.of(CONFIRMED)
    assert facts.AloneOnSwitch("0") not in found.evidence


def test_a_place_without_an_answer_is_inconclusive_and_the_faulty_one_is_found():
    for after in (0, 3):
        made = MadeUp(8).node(5).dies(3, after)
        verdict = played(made).result
        assert confirmed(verdict) == nodes(5)
        (silent,) = verdict.of(INCONCLUSIVE)
        assert silent.places == (3,)
        reason = silent.evidence[0]
        assert isinstance(reason, facts.NoFigures) and made.dead[3] in reason.why


def test_wrong_data_is_evidence_and_a_trial_without_controls_lacks_their_figures():
    made = MadeUp(8).node(2)
    made.corrupting = {2}
    (found,) = played(made).result.of(CONFIRMED)
    assert found.evidence[-1] == facts.WrongElements("node002", 12, 12)
    assert Trial(0, 1, healthy=True, speeds={"latency": 1e6}).evidence(["a", "b"]) == facts.Retest("b", healthy=True, latency_s=1e-6)


@pytest.mark.parametrize(
    ("n", "asked", "reason"), [(1, 0, facts.OneEndpoint()), (2, 1, facts.TooFewEndpoints(2)), (3, 3, facts.TooFewEndpoints(3))]
)
def test_fewer_than_four_places_give_figures_but_no_suspect(n, asked, reason):
    found = played(MadeUp(n).node(0) if n > 1 else MadeUp(1))
    assert len(found.asks) == asked
    assert not found.result.suspects and found.result.result == "no verdict"
    assert found.result.no_verdict == reason
    assert sum(isinstance(note, facts.PairFigures) for note in found.result.notes) == n * (n - 1) // 2


def test_the_same_seed_asks_the_same_within_a_limit_of_rounds_that_must_be_enough():
    first, again, other = (played(MadeUp(16, 1).node(3), seed=seed).asks for seed in (7, 7, 8))
    assert first == again != other
    with pytest.raises(UsageError, match=r"5 rounds .*16 endpoints.*6 .*--budget"):
        promise(16, Options(method="pairs", most_rounds=5))
    assert promise(16, Options(method="pairs", most_rounds=6)) == 6
    found = played(MadeUp(16).node(5), most_rounds=9, method="pairs")
    assert len(found.asks) <= 9
    assert confirmed(found.result) == nodes(5)


@pytest.mark.parametrize(("n", "asked", "least"), [(16, 1, 3), (16, 2, 3), (9, 3, 4), (4, 2, 3)])
def test_a_sweep_too_short_for_a_verdict_is_rejected(n, asked, least):
    with pytest.raises(UsageError, match=rf" {n} .*--rounds {least}\b"):
        promise(n, Options(method="pairs", rounds=asked))
    assert confirmed(played(MadeUp(n).node(2), rounds=least).result) == nodes(2)


class Losing(MadeUp):
    """Some pairs give no figure."""

    lost: Callable[[tuple[int, ...]], bool]

    def _figure(self, ask, group, common):
        return GroupFigure(None, na="lost") if self.lost(group) else super()._figure(ask, group, common)


@pytest.mark.parametrize(("n", "lost", "measured"), [
    (5, lambda group: bool({0, 1, 2} & set(group)), 0), (4, lambda group: group == (2, 3), 2),
], ids=["three of five places", "one pair of four places"])  # fmt: skip
def test_with_too_few_figures_there_is_no_verdict(n, lost, measured):
    made = Losing(n)
    made.node(0).lost = lost
    verdict = played(made).result
    assert verdict.result == "no verdict" and verdict.no_verdict == facts.TooFewMeasured(measured, n)


def test_a_place_with_figures_of_two_others_alone_is_not_called_well():
    made = Losing(8)
    made.node(5).lost = lambda group: 3 in group and not {0, 1} & set(group)
    verdict = played(made).result
    assert confirmed(verdict) == nodes(5)
    (open_one,) = verdict.of(INCONCLUSIVE)
    assert open_one.places == (3,) and facts.SpeedUnknown() in open_one.evidence


def test_pairs_to_cover_are_measured_first_and_replace_groups_of_too_few_places():
    verdict = played(MadeUp(6).node(2), method="groups").result
    assert confirmed(verdict) == nodes(2)
    assert facts.PairsInstead(8) in verdict.notes
    cover = tuple((place, place + 8) for place in range(8)) + tuple((place, place + 4) for place in range(4))
    found = played(MadeUp(16).path(3, 7), cover=cover)
    first = {pair for ask in found.asks[:2] for pair in ask.groups}
    assert set(cover) <= first
    assert confirmed(found.result) == {("path", (3, 7))}


def test_faults_at_scale_are_looked_for_where_no_pair_is_slow_and_a_confirmed_place_is_isolated():
    found = played(MadeUp(16, 2).scale(6, least=8), growing=True)
    assert confirmed(found.result) == {("scale", (6,))}
    assert found.result.rounds["growing"] > 0
    assert "growing" not in played(MadeUp(16).node(3), growing=True).result.rounds
    made = MadeUp(8).rails("eth0", "eth1").slow_nic(3, "eth1", 0.5)
    (found,) = played(made, isolate=True, nics=("eth0", "eth1")).result.of(CONFIRMED)
    assert found.places == (3,) and found.part == facts.SlowInterfaces(("eth1",))


def test_groups_that_are_slow_by_an_unknown_place_leave_no_verdict():
    found = [played(MadeUp(12, seed).scale(0, 4).scale(4, 4), growing=True, seed=seed).result for seed in range(6)]
    undecided = [verdict for verdict in found if verdict.result != "confirmed"]
    assert {(verdict.result, verdict.no_verdict) for verdict in undecided} == {("no verdict", facts.TooManySlowGroups(2, 3, 4))}


class TwoRoundsOfGroups:
    """A double of the stage that judges the paths between groups: it takes two rounds, and notes how many it may take."""

    leaf_of = ()
    sentences = ()

    def __init__(self):
        self.rooms = []

    def most_rounds(self, options):
        return 5

    def judge(self, log, room, random):
        self.rooms.append(room)
        for _ in range(min(2, room)):
            yield from log.request(RoundRequest(PAIRS, ((0, 1),), "between groups", stage="groups"))
        return []

    def measure_ports(self, log, suspects, options, room):
        self.rooms.append(room)
        yield from ()
        return list(suspects)


@pytest.mark.parametrize(("fewer", "rooms"), [(0, [5, 3]), (2, [3, 1]), (4, [1, 0]), (6, [0, 0])])
def test_the_stage_of_groups_gets_the_rounds_that_the_sweep_and_the_cross_check_leave_and_then_the_rest(fewer, rooms):
    stage = TwoRoundsOfGroups()
    most = promise(16, Options(growing=False, isolate=False, group_stage=stage)) - fewer
    verdict = played(MadeUp(16).node(3), group_stage=stage, most_rounds=most).result
    assert stage.rooms == rooms
    assert confirmed(verdict) == nodes(3)
    assert verdict.rounds.get("groups", 0) == min(2, rooms[0])


def matrix_and_rounds(made):
    """Return what `collbench pairs` measures: the matrix of every pair, and its rounds."""
    measured = []
    for number in range(rounds(made.n)):
        pairs = circle_round(made.n, number)
        figures = made.answer(RoundRequest(PAIRS, pairs, "")).figures
        latency = [figure.latency_s for figure in figures]
        forward = [SIZE / figure.speed for figure in figures]
        backward = [SIZE / figure.backward for figure in figures]
        times = []
        for of_pairs in (latency, forward, backward):
            times += [tuple(of_pairs), tuple((0.99 * seconds, 1.01 * seconds) for seconds in of_pairs)]
        measured.append(PairRound(number, pairs, *times, wrong=(0,) * len(pairs), na=(None,) * len(pairs)))
    about = {"places": list(made.names), "hosts": list(made.hosts), "size_bytes": SIZE, "latency_size_bytes": 8}
    return matrix_of(about, measured), measured


@pytest.mark.parametrize(("n", "slow"), [(4, [2]), (8, []), (8, [3]), (16, [1, 5, 9])])
def test_the_slow_places_of_a_matrix_are_measured_again_until_they_are_confirmed(n, slow):
    made = with_slow(MadeUp(n), slow)
    again = play(judge(*matrix_and_rounds(made), 0), made)
    assert {(each.kind, each.places) for each in again.result if each.state == CONFIRMED} == nodes(*slow)
    assert len(again.asks) <= cross_check_rounds(n)
    assert {ask.stage for ask in again.asks} <= {"cross-check"}


@pytest.mark.parametrize(("n", "slow"), [(3, [0]), (8, [0, 1, 2, 3])])
def test_no_place_is_measured_again_among_three_or_if_half_are_slow(n, slow):
    made = with_slow(MadeUp(n), slow)
    again = play(judge(*matrix_and_rounds(made), 0), made)
    assert (again.asks, again.result) == ([], [])


def test_512_places_with_three_faulty_take_at_most_40_rounds():
    verdict = played(MadeUp(512).node(3).sender(77, 0.6).node(400, 0.8), growing=True).result
    assert confirmed(verdict) == {("node", (3,)), ("sender", (77,)), ("node", (400,))}
    assert sum(verdict.rounds.values()) <= 40


@pytest.mark.long
def test_every_confirmed_place_of_200_clusters_is_faulty():
    missed = 0
    for seed in range(200):
        n = 4 + seed % 29
        made = MadeUp(n, seed, sigma=0.005 + 0.01 * (seed % 3) / 2)
        ratio = (0.5, 0.8, 0.9)[seed % 3]
        makes = (made.node, made.sender, made.receiver, made.slow_latency, made.busy)
        for number in range(1 + seed % max(1, n // 4)):
            makes[(seed + number) % 5]((seed + 3 * number) % n, ratio if (seed + number) % 5 != 3 else 0.5)
        verdict = played(made, seed=seed).result
        for each in verdict.of(CONFIRMED):
            assert (each.places, each.kind) in [((place,), kind) for place, kind in made.kinds.items()], (seed, each)
        missed += len(made.kinds) - len(verdict.of(CONFIRMED))
    assert missed <= 20
