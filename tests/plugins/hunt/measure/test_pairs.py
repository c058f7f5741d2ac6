"""`collbench pairs` from request to folder: which ranks form pairs, what is measured, and the effect of refusals and wrong data."""

import json
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.backends.simulated import BETA_BYTES_PER_S
from collbench.errors import UsageError
from collbench.measuring.request import Budget, Request
from collbench.operations.dtypes import DTYPES
from collbench.operations.groups import schedule
from collbench.operations.sweep import Sweep
from collbench.plugins.hunt.places import PairsRequest, PairsSampled, Places, places_of, sampled, schedule_of
from collbench.plugins.hunt.protocol import RoundRequest
from collbench.plugins.hunt.records import read_pairs
from collbench.plugins.hunt.tasks import PairsTask
from collbench.reason import decode
from collbench.results.reader import read_run
from tests.measure.launches import SPOILT, Careless, Fussy, RecordingListener, run_alone

SIZE = 4096
LAUNCH = Request("pairs", Sweep((), None, (DTYPES["uint8"],)), ("simulated",), budget=Budget(0.5))


class Requesting(RecordingListener):
    """Requests that `rounds` are measured again, and comes to the verdict `result`."""

    def __init__(self, rounds, result):
        super().__init__()
        self.rounds_again, self.result, self.played = list(rounds), result, []

    def plan(self, about):
        return {}

    def next(self, last):
        self.played.append([one.pairs for one in last])
        return RoundRequest("pairs", tuple(self.rounds_again.pop(0)), "", "cross-check") if self.rounds_again else None

    def verdict(self, rounds, about):
        self.rounds = rounds
        return {"result": self.result, "findings": [{"kind": "node", "sentence": "node1 is slow"}], "judged": []}


@pytest.fixture
def play(tmp_path):
    """Measure pairs of virtual ranks; returns exit code, rounds as stored, matrix, and what was reported."""

    def these(ranks=4, *, again=(), result="nobody", check=1, seed=0, budget=None, stop_on_wrong=False, **asked):
        sweep = Sweep((), None, (DTYPES["uint8"],), window=4)
        launch = Request(
            "pairs", sweep, ("simulated",), frozenset(["simulated"]), budget or Budget(0.5, 8, 1), ranks, check, timeout_s=10.0,
            order_seed=seed, out=tmp_path / "run", evidence="off", stop_on_wrong=stop_on_wrong,
        )  # fmt: skip
        actual = Requesting(again, result)
        code = run_alone(PairsTask, PairsRequest(launch, **{"size_bytes": SIZE, **asked}), actual)
        stored = read_pairs(read_run(tmp_path / "run"))
        assert actual.ended and not stored.warnings
        results = {"rounds": stored.rounds, "matrix": stored.matrix(), "about": stored.about}
        return SimpleNamespace(code=code, listener=actual, folder=tmp_path / "run", **results)

    return these


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_every_pair_is_measured_once_both_ways(play, ranks):
    found = play(ranks)
    assert found.code == 0
    assert sorted(pair for one in found.rounds for pair in one.pairs) == [(a, b) for a in range(ranks) for b in range(a + 1, ranks)]
    assert len(found.rounds) == ranks - 1 + ranks % 2 == len(found.listener.titles) == found.about["rounds"]
    apart = ~np.eye(ranks, dtype=bool)
    assert np.array_equal(np.isfinite(found.matrix.bandwidth), apart)
    assert np.array_equal(np.isfinite(found.matrix.latency_s), apart)
    assert found.matrix.bandwidth[apart] == pytest.approx(SIZE / (5e-6 + SIZE / BETA_BYTES_PER_S), rel=0.1)
    assert found.matrix.latency_s[apart] == pytest.approx(5e-6, rel=0.1)
    assert np.all((found.matrix.low <= found.matrix.bandwidth) | ~apart) and np.all(found.matrix.wrong[apart] == 0)


def test_the_rounds_reported_and_stored_are_the_same(play):
    found = play(5)
    assert found.listener.rounds == found.listener.in_order == found.rounds
    assert found.listener.titles == [("2 pairs at once", done, 5) for done in (1, 2, 3, 4, 5)]
    planned = {name: value for name, value in found.about.items() if name not in ("result", "judged")}
    assert (found.listener.plan_of_launch.facts["pairs"], found.listener.folder) == ({**planned, "measured": None}, str(found.folder))
    assert {key: found.about[key] for key in ("places", "by", "backend", "possible", "measured", "sampled", "concurrent", "window")} == {
        "places": [f"rank {rank} ({found.about['places'][0].partition('(')[2]}" for rank in range(5)],
        "by": "rank", "backend": "simulated", "possible": 10, "measured": 10, "sampled": None, "concurrent": None, "window": 4,
    }  # fmt: skip
    about = json.loads((found.folder / "run.json").read_text())
    assert (about["pairs"], about["exit_code"], about["operation"]) == (found.about, 0, "pairs")
    assert json.loads((found.folder / "topology.json").read_text())["schema"] == 1
    events = [json.loads(line) for line in (found.folder / "events.jsonl").read_text().splitlines()]
    actual = [(event["text"], event["finding"]["kind"]) for event in events if event["kind"] == "finding"]
    assert actual == [("node1 is slow", "node")]


def test_a_round_shows_how_it_was_measured(play):
    (one, _, _) = play(4, budget=Budget(10, 8, 1)).rounds
    assert one.n == (8, 8, 8) and {"simulated", "pairs_at_once", "few_samples"} <= set(one.flags) and one.na == (None, None)
    assert all(low <= value <= high for value, (low, high) in zip(one.forward_s, one.forward_ci_s, strict=True))


def test_at_most_so_many_at_once_when_suspects_are_measured_again_too(play):
    found = play(4, again=[[(1, 3), (0, 2)]], concurrent=1)
    first = [one for one in found.rounds if not one.again]
    assert [len(one.pairs) for one in first] == [1] * 6 and [one.round for one in first] == list(range(6))
    assert not any("pairs_at_once" in one.flags for one in found.rounds)
    assert [(one.round, one.pairs) for one in found.rounds if one.again] == [(6, ((1, 3),)), (6, ((0, 2),))]


def test_one_to_all(play):
    found = play(5, one_to_all=3)
    assert sorted(pair for one in found.rounds for pair in one.pairs) == [(3, 0), (3, 1), (3, 2), (3, 4)]
    assert found.about["possible"] == found.about["measured"] == 4


def test_a_sample_has_its_total(play):
    found = play(6, sample=2)
    assert (len(found.rounds), found.about["measured"]) == (2, 6) and found.about["sampled"].startswith("6 of 15 pairs ")
    assert any("6 of 15 pairs" in note for note in found.listener.notes)


def test_a_budget_samples_rounds_and_reports_it(play):
    found = play(6, budget=Budget(1.0, 8, 1), budget_s=6.5)
    sampled = PairsSampled(6, 15, 6.5, needed_s=15.0)
    assert (len(found.rounds), decode(found.about["sampled_fact"], PairsSampled)) == (2, sampled)
    assert sampled.render() == found.about["sampled"] and sampled.render() in found.listener.notes


@pytest.mark.parametrize("ranks", [4, 5])
def test_the_smallest_budget_leaves_none_without_a_pair(play, ranks):
    found = play(ranks, budget_s=0.001)
    assert {place for one in found.rounds for pair in one.pairs for place in pair} == set(range(ranks))
    assert len(found.rounds) == 1 + ranks % 2


def test_no_round_begins_when_the_time_is_used_up(play, monkeypatch):
    clock = SimpleNamespace(monotonic=count(0, 10).__next__, sleep=lambda seconds: None)  # ten seconds from each look to the next
    monkeypatch.setattr("collbench.plugins.hunt.tasks.time", clock)
    found = play(8, budget=Budget(0.1, 8, 1), budget_s=15)  # by measurements alone all 7 rounds fit
    sampled = PairsSampled(4, 28, 15)
    assert (len(found.rounds), found.about["measured"], found.about["rounds"]) == (1, 4, 1)
    assert decode(found.about["sampled_fact"], PairsSampled) == sampled and sampled.render() in found.listener.notes


def test_suspects_are_measured_again_in_the_rounds_that_are_asked_for(play):
    found = play(4, again=[[(1, 3), (0, 2)], [(0, 1)]])
    again = [one for one in found.rounds if one.again]
    assert [(one.round, one.pairs) for one in again] == [(3, ((1, 3), (0, 2))), (4, ((0, 1),))]
    assert [one.again for one in found.rounds[:3]] == [False] * 3
    first = next(one for one in found.rounds if (0, 2) in one.pairs)
    assert found.matrix.latency_s[0, 2] == min(again[0].latency_s[1], first.latency_s[first.pairs.index((0, 2))])
    assert found.about["measured"] == 6
    assert found.listener.played == [[one.pairs for one in found.rounds[:3]], [((1, 3), (0, 2))], [((0, 1),)]]
    assert found.listener.notes.count("suspects are measured again next to control pairs before a node or pair is reported") == 1


@pytest.mark.parametrize(("result", "code"), [("nobody", 0), ("confirmed", 1), ("no verdict", 3)])
def test_the_exit_code_is_that_of_a_hunt(play, result, code):
    found = play(4, result=result)
    assert (found.code, found.about["result"], found.about["judged"]) == (code, result, [])


def test_nodes_meet_with_all_their_ranks_at_once(play, monkeypatch):
    nodes = Places("node", ("a", "b", "c"), ("a", "b", "c"), ((0, 3), (1, 4), (2, 5)), rests=1)
    monkeypatch.setattr("collbench.plugins.hunt.tasks.places_of", lambda *launch: nodes)
    found = play(7)
    apart = ~np.eye(3, dtype=bool)
    assert found.matrix.bandwidth[apart] == pytest.approx(2 * SIZE / (5e-6 + SIZE / BETA_BYTES_PER_S), rel=0.1)  # of two ranks
    assert found.matrix.latency_s[apart] == pytest.approx(5e-6, rel=0.1)  # of the slower one, not of both
    assert (found.about["places"], found.about["by"], found.about["ranks_per_place"]) == (["a", "b", "c"], "node", 2)
    assert "each node takes part with 2 ranks, the most that all have: 1 rank idle" in found.listener.notes


def test_a_pair_that_is_refused_is_na_and_all_others_are_measured(play, backend):
    backend(Fussy)
    found = play(6)
    reasons = {pair: reason for one in found.rounds for pair, reason in zip(one.pairs, one.na, strict=True)}
    assert len(reasons) == 15 and {pair: why for pair, why in reasons.items() if why} == {(1, 2): "ranks 1 and 2 are disconnected"}
    assert found.code == 0 and found.about["measured"] == 14 and found.about["sampled"] is None
    assert np.argwhere(np.isnan(found.matrix.bandwidth) & ~np.eye(6, dtype=bool)).tolist() == [[1, 2], [2, 1]]


def test_nothing_measured_is_bad_input(play, backend):
    backend(Fussy)
    seed = next(seed for seed in range(9) if list(schedule(3, center=1, partners=1, seed=seed).rounds()) == [((1, 2),)])
    assert play(3, one_to_all=1, sample=1, seed=seed).code == 2


def test_wrong_data_ends_with_4_after_all_have_been_measured(play, backend):
    backend(Careless)
    found = play(4)
    assert (found.code, len(found.rounds), found.about["measured"]) == (4, 3, 6)
    assert np.argwhere(found.matrix.wrong > 0).tolist() == [[0, 3], [3, 0]] and found.matrix.wrong[0, 3] == 7
    places = found.about["places"]
    sentence = f"wrong data between {places[0]} and {places[3]}: 7 elements differ from what was sent ({SPOILT})"
    assert [note for note in found.listener.notes if "wrong" in note] == [sentence]
    assert [detail for one in found.rounds for detail in one.wrong_detail if detail] == [SPOILT]


def test_wrong_data_stops_the_tournament_where_that_is_asked_for(play, backend):
    backend(Careless)
    found = play(4, stop_on_wrong=True, again=[[(1, 2)]])
    *before, last = found.rounds
    assert (found.code, read_run(found.folder).info["exit_code"]) == (4, 4)
    assert sum(last.wrong) == 7 and not any(any(one.wrong) for one in before) and not any(one.again for one in found.rounds)
    assert any(f"round {len(found.rounds)} of 3 (--stop-on-wrong)" in note for note in found.listener.notes)


def test_without_verification_nothing_is_reported_of_the_data(play):
    found = play(3, check=0)
    assert all(one.wrong == (None,) for one in found.rounds) and np.isnan(found.matrix.wrong).all()


def test_nodes_meet_with_as_many_ranks_as_the_smallest_has_and_one_to_all_means_the_node_of_the_rank():
    places = places_of(PairsRequest(LAUNCH), ("a", "b", "c"), [[0, 3], [1, 4, 6], [2, 5]])
    assert (places.by, places.names, places.rests, places.width) == ("node", ("a", "b", "c"), 1, 2)
    assert places.groups([(0, 1)]) == ((0, 1), (3, 4)) and places.groups([(0, 1)], backward=True) == ((1, 0), (4, 3))
    ranks = places_of(PairsRequest(LAUNCH, by="rank"), ("a", "b"), [[0, 2], [1]])
    assert ranks.names == ("rank 0 (a)", "rank 1 (b)", "rank 2 (a)") and ranks.hosts == ("a", "b", "a")
    assert ranks.groups([(0, 2)]) == ((0, 2),)
    one_to_all, by_host = PairsRequest(LAUNCH, one_to_all=3), [[0, 1], [2, 3], [4, 5]]  # that is the node of the rank
    assert schedule_of(one_to_all, places_of(one_to_all, ("a", "b", "c"), by_host), by_host, 0).center == 1


@pytest.mark.parametrize(("asked", "by_host", "sentence"), [
    ({}, [[0]], "pairs needs two ranks, but this launch has one: start more (without a launcher: --ranks 2)"),
    ({"by": "node"}, [[0, 1]], "--by node needs two nodes, but all ranks are on h0: start ranks on more nodes, or use --by rank"),
    ({"sample": 4}, [[0, 1, 2, 3]], "--sample 4 exceeds the partners of each of 4 ranks: use 1 to 3"),
    ({"sample": 2}, [[0, 1], [2, 3]], "--sample 2 exceeds the partners of each of 2 nodes: use 1"),
    ({"one_to_all": 4}, [[0, 1, 2, 3]], "--one-to-all 4: not a valid rank of 4: use 0 to 3"),
])  # fmt: skip
def test_what_does_not_fit_the_launch_is_refused(asked, by_host, sentence):
    request, hosts = PairsRequest(LAUNCH, **asked), [f"h{i}" for i in range(len(by_host))]
    with pytest.raises(UsageError) as refusal:
        schedule_of(request, places_of(request, hosts, by_host), by_host, 0)
    assert str(refusal.value) == sentence


@given(st.integers(2, 40), st.floats(0.01, 2000), st.integers(1, 30) | st.none(), st.none() | st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_a_sentence_states_exactly_when_pairs_are_left_out(n, budget_s, sample, at_once):
    asked = PairsRequest(LAUNCH, budget_s=budget_s, sample=sample if sample is None else min(sample, n - 1), concurrent=at_once)
    by_host = [[place] for place in range(n)]
    plan = schedule_of(asked, places_of(asked, [str(place) for place in range(n)], by_host), by_host, 0)
    found = sampled(asked, plan, plan.pairs)
    assert (found is None) == (plan.pairs == n * (n - 1) // 2)
    assert found is None or (found.pairs, found.possible) == (plan.pairs, n * (n - 1) // 2)
    unlimited = schedule_of(replace(asked, budget_s=1e9), places_of(asked, list(map(str, range(n))), by_host), by_host, 0)
    assert found is None or (found.sample is None) == (plan.pairs < unlimited.pairs)
