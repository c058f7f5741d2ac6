"""Slow places and pairs in a matrix of pairs are named once, in these words, and no others."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from msgspec.structs import replace

from collbench.operations.groups import circle_round, schedule
from collbench.plugins.hunt.pairs import CLEARED, CONFIRMED, INCONCLUSIVE, PairEffects, PairFinding, Remeasured
from collbench.plugins.hunt.records import PairMatrix
from tests.helpers import said
from tests.plugins.hunt.pair_matrices import RATE, SyntheticMatrix, only, suspects

NAMES = ["node1", "node2", "node3"]


def findings(matrix, again=()):
    return PairEffects(matrix, again).findings()


def doubts(matrix):
    return PairEffects(matrix).doubts()


def named(found):
    return [(each.kind, each.places) for each in found]


def hosts_of_ranks(hosts, each):
    return [f"node{number // each}" for number in range(hosts * each)]


def both(made, a, b, ratio=0.5):
    made.rates[a, b] *= ratio
    made.rates[b, a] *= ratio
    return made


def of_few(seed, n, sigma):
    """Return what is named if nothing is slow, if a place is slow, and if a directed pair is slow; suspects are measured again."""
    equal, place, pair = SyntheticMatrix(n, seed, sigma), SyntheticMatrix(n, seed, sigma).slow(seed % n), SyntheticMatrix(n, seed, sigma)
    other = 1 + seed % (n - 1)
    pair.rates[0, other] *= 0.5
    one, two, three = (named(findings(*made.twice())) for made in (equal, place, pair))
    return one, two, three, other


@pytest.mark.parametrize("n", [4, 5, 8, 15, 16, 32])
def test_a_slow_place_is_named_once_a_slow_pair_alone_and_nothing_else(n):
    for seed in range(2):
        equal, place, pair, other = of_few(seed, n, 0.015)
        assert equal == []
        assert place == [("node", (seed % n,))]
        assert pair == [("pair", (0, other))]


@pytest.mark.long
@pytest.mark.parametrize(("n", "trials"), [(4, 1000), (5, 1000), (8, 1000), (16, 500), (32, 300), (64, 200)])
@pytest.mark.parametrize("sigma", [0.005, 0.015])
def test_rates_of_false_alarms_and_of_detection(n, trials, sigma):
    alarms, places, pairs = 0, 0, 0
    for seed in range(trials):
        equal, place, pair, other = of_few(seed, n, sigma)
        alarms += bool(equal) or bool(findings(SyntheticMatrix(n, seed, sigma).matrix()))
        places += place == [("node", (seed % n,))]
        pairs += pair == [("pair", (0, other))]
    assert alarms <= 0.01 * trials
    assert places >= 0.99 * trials
    assert n < 8 or pairs >= 0.99 * trials


def test_what_is_sent_or_received_slowly_is_named_and_a_slow_pair_elsewhere():
    sender, receiver = SyntheticMatrix(8).slow(3, receives=False).matrix(), SyntheticMatrix(8).slow(3, sends=False).matrix()
    assert named(findings(sender)) == [("sender", (3,))]
    assert named(findings(receiver)) == [("receiver", (3,))]
    assert [(each.cells, each.of_cells) for each in findings(sender)] == [(7, 7)]
    assert findings(sender)[0].ratio == pytest.approx(0.5, rel=0.05)
    found = findings(both(SyntheticMatrix(8).slow(3), 1, 5).matrix())
    assert named(found) == [("node", (3,)), ("pair", (1, 5))]
    assert [each.both_ways for each in found] == [False, True]
    assert [(each.cells, each.of_cells) for each in found] == [(14, 14), (2, 2)]
    assert named(findings(both(SyntheticMatrix(12).slow(3), 3, 7, 0.3).matrix())) == [("node", (3,)), ("pair", (3, 7))]


@pytest.mark.parametrize(("n", "slow_count"), [(5, 2), (8, 3), (9, 4), (16, 7), (64, 31)])
def test_several_slow_places_up_to_half(n, slow_count):
    made = SyntheticMatrix(n, sigma=0.005)
    for place in range(slow_count):
        made.slow(place, 0.5 - 0.02 * (place % 3))
    assert sorted(named(findings(made.matrix()))) == [("node", (place,)) for place in range(slow_count)]


@pytest.mark.parametrize("ratio", [0.5, 0.8])
@pytest.mark.parametrize("sizes", [(12, 4), (9, 7), (8, 8), (14, 2), (6, 5, 5), (10, 3, 3), (4, 4, 4, 4), (2,) * 8])
def test_none_is_named_for_being_in_the_smaller_part_of_a_network(sizes, ratio):
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    matrix = SyntheticMatrix(16, sum(sizes), 0.01).across(groups, ratio).matrix()
    assert findings(matrix) == []


def test_doubts_are_those_of_scatter_and_of_the_smaller_part_and_any_figure_is_a_sentence():
    actual = doubts(SyntheticMatrix(16).across([0] * 12 + [1] * 4, 0.5).matrix())
    assert actual[0].startswith("bandwidth: node13, node14, node15, node16 ")
    wild = doubts(SyntheticMatrix(16, sigma=0.08).matrix())[0]
    calm = doubts(SyntheticMatrix(16, sigma=0.004).matrix())[0]
    assert "at 15 % or more below the expected bandwidth" in calm
    assert int(wild.split(" at ")[1].split(" %")[0]) > 60
    made = SyntheticMatrix(5)
    made.rates[0] = made.rates[:, 0] = 1e-311
    (found,) = findings(made.matrix())
    assert (found.kind, found.places, found.ratio) == ("node", (0,), 1e-9)
    assert "1000000000.00 times" in found.replace(quantity="latency").sentence(made.names)


@pytest.mark.parametrize(("hosts", "each"), [(2, 4), (2, 8), (4, 2), (4, 4), (16, 2)])
def test_ranks_of_a_host_are_faster_with_each_other_and_none_is_named(hosts, each):
    made = SyntheticMatrix(hosts * each, hosts=hosts_of_ranks(hosts, each)).across([rank // each for rank in range(hosts * each)], 0.05)
    assert findings(made.matrix()) == []


def test_a_host_or_a_rank_that_is_slow_to_other_hosts_is_named_once_but_of_three_hosts_none():
    made = SyntheticMatrix(16, hosts=hosts_of_ranks(4, 4)).across([rank // 4 for rank in range(16)], 0.2)
    made.rates[5, made.rates[5] < 3e9] *= 0.5
    (found,) = findings(made.matrix())
    assert (found.kind, found.places, found.where, found.cells) == ("sender", (5,), "to other hosts", 12)
    made = SyntheticMatrix(16, hosts=hosts_of_ranks(4, 4)).across([rank // 4 for rank in range(16)], 0.2)
    outside = made.rates < 3e9
    made.rates[4:8] = np.where(outside[4:8], made.rates[4:8] / 2, made.rates[4:8])
    made.rates[:, 4:8] = np.where(outside[:, 4:8], 1e9, made.rates[:, 4:8])
    (found,) = findings(made.matrix())
    assert (found.kind, found.places) == ("node", (4, 5, 6, 7))
    assert found.sentence(made.names).startswith("node1 (all of its 4 places) ")
    made = SyntheticMatrix(12, hosts=hosts_of_ranks(3, 4)).across([rank // 4 for rank in range(12)], 0.2)
    outside = made.rates < 3e9
    for places in (np.s_[:4], np.s_[:, :4]):
        made.rates[places] = np.where(outside[places], 1e9, made.rates[places])
    matrix = made.matrix()
    assert findings(matrix) == []
    assert any("of so few none is named" in sentence for sentence in doubts(matrix))
    groups = [0] * 6 + [1] * 6
    matrix = SyntheticMatrix(12).across(groups, 0.05).slow(3, 0.025).matrix()
    assert named(findings(replace(matrix, hosts=tuple(f"host{group}" for group in groups)))) == [("node", (3,))]


def test_a_slow_latency_is_a_finding_of_its_own_or_part_of_the_bandwidths_unless_its_interval_is_wide():
    made = SyntheticMatrix(8)
    made.latencies[3] = made.latencies[:, 3] = 60e-6
    (alone,) = findings(made.matrix())
    assert (alone.kind, alone.quantity, alone.places, alone.cells, alone.of_cells) == ("node", "latency", (3,), 7, 7)
    (together,) = findings(made.slow(3).matrix())
    assert (together.quantity, together.places) == ("bandwidth", (3,))
    assert together.latency_ratio == pytest.approx(1 / 3, rel=0.1)
    made = SyntheticMatrix(8)
    made.latencies[1, 3] = made.latencies[3, 1] = 50e-6
    matrix, steady = made.matrix(), np.full((8, 8), 1.02)
    assert named(findings(replace(matrix, latency_spread=steady), again=[(1, 3)])) == [("pair", (1, 3))]
    disturbed = steady.copy()
    disturbed[1, 3] = disturbed[3, 1] = 100.0
    assert findings(replace(matrix, latency_spread=disturbed), again=[(1, 3)]) == []


def test_of_too_few_places_none_is_named_with_the_reason():
    for n, words in ((2, "two endpoints"), (3, "three endpoints")):
        matrix = SyntheticMatrix(n).slow(0).matrix()
        assert findings(matrix) == []
        assert len(doubts(matrix)) == 1
        assert doubts(matrix)[0].startswith(words)
    made = SyntheticMatrix(4)
    made.latencies[0, 1] = made.latencies[1, 0] = 1e-3
    assert findings(made.matrix()) == []
    assert doubts(made.matrix())[-1].startswith("latency: ")


def test_a_disturbed_round_or_a_place_that_was_healthy_when_measured_again_is_not_named():
    made = SyntheticMatrix(16)
    for pair in circle_round(16, 3):
        both(made, *pair, 0.4)
    matrix = made.matrix()
    assert findings(matrix) == []
    assert any("disturbed round" in sentence for sentence in doubts(matrix))
    assert len(findings(matrix, again=circle_round(16, 3))) == 8  # slow again: the pairs themselves are slow
    matrix = SyntheticMatrix(16).slow(5).matrix()
    well = [(5, 1), (5, 9)]
    for a, b in well:
        matrix.bandwidth[a, b] = matrix.bandwidth[b, a] = 10e9
    assert findings(matrix, again=well) == []
    assert named(findings(matrix, again=[(5, 2)])) == []  # with two partners it is as fast as others: the place is healthy
    assert named(findings(SyntheticMatrix(16).slow(5).matrix(), again=well)) == [("node", (5,))]


def test_a_sample_of_rounds_is_enough_and_one_to_all_shows_pairs_and_no_places():
    sampled = [pair for one in schedule(64, partners=8).rounds() for pair in one]
    assert named(findings(only(SyntheticMatrix(64).slow(9).matrix(), sampled))) == [("node", (9,))]
    assert findings(only(SyntheticMatrix(64, 1).matrix(), sampled)) == []
    star = only(both(SyntheticMatrix(16), 0, 4).matrix(), [(0, place) for place in range(1, 16)])
    (found,) = findings(star)
    assert (found.kind, found.places, found.unknown) == ("pair", (0, 4), (4,))
    assert "or node5" in found.sentence(star.places)
    assert doubts(star)[0].startswith("only pairs are judged")


@pytest.mark.parametrize(("partners", "expected"), [(2, False), (3, True)])
def test_a_sample_too_small_to_name_places_reports_it(partners, expected):
    sampled = only(SyntheticMatrix(8).slow(3).matrix(), [pair for one in schedule(8, partners=partners).rounds() for pair in one])
    assert named(findings(sampled)) == [("node", (3,))] * expected
    assert doubts(sampled)[0].startswith("only pairs are judged") != expected


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6).flatmap(lambda n: st.tuples(*(arrays(np.float64, (n, n)) for _ in range(5)))))
def test_any_figures_are_survived(figures):
    n = len(figures[0])
    matrix = PairMatrix(tuple(f"x{place}" for place in range(n)), *figures, size_bytes=1, latency_size_bytes=1)
    again = suspects(matrix)
    assert all(0 <= a < b < n for a, b in again)
    for each in findings(matrix, again=again):
        assert 0 <= each.ratio < 1
        assert each.sentence(matrix.places)
    assert all(isinstance(each, str) for each in doubts(matrix))


@pytest.mark.parametrize(("kind", "fast_pair"), [("sender", (7, 3)), ("receiver", (3, 7))])
def test_the_slow_pairs_of_a_place_are_counted_in_its_slow_direction(kind, fast_pair):
    """Of its 101 pairs in that direction one is fast; in the other direction all are."""
    made = SyntheticMatrix(102).slow(7, sends=kind == "sender", receives=kind == "receiver")
    made.rates[fast_pair] = RATE
    (found,) = findings(made.matrix())
    assert (found.kind, found.places, found.cells, found.of_cells) == (kind, (7,), 100, 101)


@pytest.mark.parametrize(("states", "state"), [
    ((CONFIRMED, CONFIRMED), CONFIRMED), ((CLEARED, CLEARED), CLEARED), ((CONFIRMED, CLEARED), CLEARED),
    ((CONFIRMED, INCONCLUSIVE), INCONCLUSIVE), ((CONFIRMED, None), INCONCLUSIVE), ((None, None), INCONCLUSIVE),
])  # fmt: skip
def test_a_host_is_named_only_if_all_of_its_places_were_slow_again(states, state):
    made = SyntheticMatrix(8, hosts=hosts_of_ranks(4, 2)).slow(0).slow(1)
    measured = [Remeasured((place,), each, "x") for place, each in enumerate(states) if each is not None]
    effects = PairEffects(made.matrix(), remeasured=measured)
    assert [finding.places for finding in effects.findings()] == ([(0, 1)] if state == CONFIRMED else [])
    assert len(effects.inconclusive()) == (state == INCONCLUSIVE)


@pytest.mark.parametrize("slow_latency", [True, False])
def test_a_place_of_which_only_small_messages_were_slow_again_is_not_named_for_its_bandwidth(slow_latency):
    made = SyntheticMatrix(8).slow(3)
    if slow_latency:
        made.latencies[3] *= 3
        made.latencies[:, 3] *= 3
    effects = PairEffects(made.matrix(), remeasured=[Remeasured((3,), CONFIRMED, "x", "latency")])
    assert [(finding.quantity, finding.latency_ratio) for finding in effects.findings()] == [("latency", None)] * slow_latency
    assert effects.result == (CONFIRMED if slow_latency else "no verdict")


def test_a_pair_is_judged_by_its_own_rounds_in_either_order_and_stored_with_its_sentence():
    made = SyntheticMatrix(8)
    made.rates[4, 1] *= 0.5
    matrix = made.matrix()
    assert named(PairEffects(matrix, remeasured=[Remeasured((1, 4), CONFIRMED, "x")]).findings()) == [("pair", (4, 1))]
    assert PairEffects(matrix, remeasured=[Remeasured((2, 4), CONFIRMED, "x")]).findings() == []
    finding = PairFinding("pair", "bandwidth", (0, 2), 0.51, 1, 2, unknown=(2,))
    assert finding.stored(NAMES) == {
        "kind": "pair", "quantity": "bandwidth", "places": [0, 2], "ratio": 0.51, "cells": 1, "of_cells": 2, "both_ways": False,
        "where": "", "latency_ratio": None, "untold": [2], "host": None, "sentence": finding.sentence(NAMES),
    }  # fmt: skip


def pair(kind, quantity, places, **more):
    finding = PairFinding(kind, quantity, places, 0.51, 2, 4)
    return lambda: finding.replace(**more).sentence(NAMES)


WORDS = {
    "slow node, all of its places": (pair("node", "bandwidth", (0, 1)),
        "node1 sends and receives at 51 % of what the others do (2 of 4 pairs): its NIC, cable or slot"),
    "slow sender": (pair("sender", "bandwidth", (1,), where="to other hosts"),
        "node2 sends at 51 % of what the others do to other hosts (2 of 4 pairs): its way out (NIC, cable, or what leads to the NIC)"),
    "slow receiver": (pair("receiver", "bandwidth", (1,), where="inside its host", latency_ratio=0.5),
        "node2 receives at 51 % of what the others do inside its host (2 of 4 pairs): its cores, memory or GPU link; a small message "
        "takes 2.00 times as long"),
    "node with slow small messages": (pair("node", "latency", (2,)),
        "node3 takes 1.96 times as long as the others for a small message (2 of 4 pairs): its CPU, its power saving or its NIC"),
    "slow pair": (pair("pair", "bandwidth", (0, 2), latency_ratio=0.5),
        "node1 to node3 reaches 51 % of the bandwidth expected from their other pairs: the path between them, since both are fast with "
        "others; a small message takes 2.00 times as long"),
    "slow pair, both ways": (pair("pair", "bandwidth", (0, 2), both_ways=True),
        "node1 and node3 reach 51 % of the bandwidth expected from their other pairs, both ways: the path between them, since both are "
        "fast with others"),
    "slow pair or end": (pair("pair", "bandwidth", (0, 2), unknown=(2,)),
        "node1 to node3 reaches 51 % of the bandwidth expected from their other pairs: the path between them, or node3, of which too few "
        "other pairs were measured"),
    "pair with slow small messages": (pair("pair", "latency", (0, 2)),
        "a small message between node1 and node3 takes 1.96 times as long as expected from their other pairs: the path between them, since "
        "both are fast with others"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_message(call, text):
    assert said(call) == text
