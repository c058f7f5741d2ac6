"""A hunt's launch from what is asked to the folder: each kind of round, what a refusal and wrong data do, and how it ends."""

import json
from types import SimpleNamespace

import pytest

from collbench.backends.simulated import ALPHA_S, BETA_BYTES_PER_S, SimulatedBackend
from collbench.backends.slowing import parse_slowing
from collbench.control.world import World
from collbench.errors import PeerFailed, UsageError
from collbench.measuring.request import Budget, Request
from collbench.operations.dtypes import DTYPES
from collbench.operations.sweep import Sweep
from collbench.plugins.hunt.places import HuntRequest, PairsRequest, Places
from collbench.plugins.hunt.protocol import RoundRequest
from collbench.plugins.hunt.records import read_hunt
from collbench.plugins.hunt.round_runner import no_groups
from collbench.plugins.hunt.tasks import HuntTask, ceiling_of_rounds, nodes_of
from collbench.results.reader import read_run
from tests.measure.launches import SPOILT, Careless, Fussy, RecordingListener, run_alone

SIZE = 2**16
ALONE = SIZE / (ALPHA_S + SIZE / BETA_BYTES_PER_S)  # a message of the simulated link, bytes per second


def reduced(n):
    """What an all-reduce among n simulated ranks reaches, bytes per second of bus bandwidth."""
    moved = SIZE * 2 * (n - 1) / n
    return moved / (ALPHA_S + moved / BETA_BYTES_PER_S)


def ask(kind, *groups, nic=None):
    return RoundRequest(kind, groups, "to see", "sweep", nic)


class ScriptedHunter(RecordingListener):
    """Asks what it was given, one after the other, and comes to a result."""

    def __init__(self, asks, result="nobody", refusal=""):
        super().__init__()
        self.asks, self.result, self.refusal = asks, result, refusal
        self.heard = []
        self.acted = []

    def plan(self, about):
        if self.refusal:
            raise UsageError(self.refusal)
        return {"promised": len(self.asks), "seed": 0}

    def begin(self, plan, folder):
        self.began = (dict(plan.facts["hunt"]), folder)

    def next(self, last):
        self.heard += last
        return self.asks.pop(0) if self.asks else None

    def verdict(self, rounds, about):
        return {"result": self.result, "suspects": [], "rounds": {}, "notes": [], "no_verdict": None, "middle": None}

    def act(self, folder, event):
        event("drain", node="node1")
        self.acted.append(folder)


@pytest.fixture
def hunt(tmp_path):
    """Run hunts among virtual ranks with the given requests; returns exit code, rounds as stored, and what was reported."""

    def these(*asks, ranks=6, result="nobody", refusal="", slowed="", **launch):
        sweep = Sweep((), None, (DTYPES["uint8"],), window=4, buffers="fixed")
        request = Request(
            "hunt", sweep, ("simulated",), frozenset(["simulated"]), Budget(0.5, 8, 1), ranks, timeout_s=10.0, order_seed=0,
            out=tmp_path / "run", evidence="off", slowed=parse_slowing([slowed] if slowed else []), **launch,
        )  # fmt: skip
        actual = ScriptedHunter(list(asks), result, refusal)
        code = run_alone(HuntTask, HuntRequest(request, size_bytes=SIZE), actual)
        run = read_run(tmp_path / "run")
        stored = read_hunt(run)
        assert code == run.info["exit_code"] and actual.ended and not stored.warnings
        assert actual.heard == stored.rounds[: len(actual.heard)] and len(stored.rounds) - len(actual.heard) <= bool(launch)
        return SimpleNamespace(code=code, listener=actual, rounds=stored.rounds, about=stored.about, folder=tmp_path / "run")

    return these


def test_pairs_are_measured_both_ways_with_their_latency(hunt):
    (one,) = hunt(ask("pairs", (0, 1), (2, 5))).rounds
    assert (one.kind, one.stage, one.why, one.groups) == ("pairs", "sweep", "to see", ((0, 1), (2, 5)))
    assert one.speed_bytes_per_s == pytest.approx((ALONE, ALONE), rel=0.1)
    assert one.backward_bytes_per_s == pytest.approx((ALONE, ALONE), rel=0.1)
    assert one.latency_s == pytest.approx((ALPHA_S, ALPHA_S), rel=0.1)
    figures = zip(one.speed_bytes_per_s, one.backward_bytes_per_s, one.low_bytes_per_s, one.high_bytes_per_s, strict=True)
    assert all(low <= min(there, back) <= high for there, back, low, high in figures)
    assert one.wrong == (0, 0) and one.na == (None, None) and {"simulated", "pairs_at_once"} <= set(one.flags)


def test_groups_of_several_sizes_run_at_once_and_their_figure_is_the_bus_bandwidth(hunt):
    (one,) = hunt(ask("groups", (0, 3), (1, 2, 4, 5))).rounds
    assert one.speed_bytes_per_s == pytest.approx((reduced(2), reduced(4)), rel=0.1)
    assert one.backward_bytes_per_s == one.latency_s == (None, None) and one.na == (None, None)
    figures = zip(one.speed_bytes_per_s, one.low_bytes_per_s, one.high_bytes_per_s, strict=True)
    assert all(low <= speed <= high for speed, low, high in figures)
    assert {"simulated", "few_samples"} <= set(one.flags)


def test_a_group_is_as_slow_as_its_slowest_rank_and_may_be_asked_for_again(hunt):
    found = hunt(*[ask("groups", (0, 1, 2), (3, 4, 5))] * 3, slowed="by=100% ranks=4")
    assert [one.round for one in found.rounds] == [0, 1, 2] and all(one.na == (None, None) for one in found.rounds)
    for one in found.rounds:
        assert one.speed_bytes_per_s == pytest.approx((reduced(3), reduced(3) / 2), rel=0.1)
        assert "slowed" in one.flags


def test_inside_reduces_among_the_ranks_of_each_place(hunt, monkeypatch):
    nodes = Places("node", ("a", "b", "c"), ("a", "b", "c"), ((0, 3), (1, 4), (2, 5)), rests=1)
    monkeypatch.setattr("collbench.plugins.hunt.tasks.places_of", lambda *launch: nodes)
    found = hunt(ask("pairs", (0, 2)), ask("inside", (0,), (2,)), ask("groups", (0, 1)))
    pair, inside, whole = found.rounds
    assert inside.speed_bytes_per_s == pytest.approx((reduced(2), reduced(2)), rel=0.1)
    assert whole.speed_bytes_per_s == pytest.approx((reduced(4),), rel=0.1)
    assert pair.speed_bytes_per_s == pytest.approx((2 * ALONE,), rel=0.1)  # of both ranks
    assert (found.about["by"], found.about["ranks_per_place"]) == ("node", 2)
    assert "each node takes part with 2 ranks, the most that all have: 1 rank idle" in found.listener.notes
    assert found.about["ceiling"]["bytes_per_s"] == 2 * BETA_BYTES_PER_S  # all ranks of two nodes together reach twice one link


def test_the_managers_names_of_nodes_are_kept_each_once():
    world = SimpleNamespace(me=SimpleNamespace(host="a"), gather=lambda mine, what: [mine, ["b", "n2"], ["b", "n2"], ["c", ""]])
    assert nodes_of(HuntRequest(None, node="n1"), world) == [("a", "n1"), ("b", "n2")]


def test_one_rank_has_nothing_to_reduce_and_no_interface_is_not_measured(hunt):
    inside, nic, pair = hunt(ask("inside", (0,), (1,)), ask("nic", (0, 1), nic="eth7"), ask("pairs", (0, 1))).rounds
    assert inside.na == ("one rank: nothing to reduce",) * 2 and inside.speed_bytes_per_s == (None, None)
    assert nic.na == ("some nodes do not have the interface eth7",) and pair.na == (None,)


def test_run_json_shows_what_was_hunted_and_what_could_be_reached(hunt):
    found = hunt(ask("pairs", (0, 1)), ask("pairs", (2, 3)))
    keys = ("by", "backend", "virtual", "size_bytes", "window", "promised", "rounds", "no_groups", "nics")
    assert [found.about[key] for key in keys] == ["rank", "simulated", True, SIZE, 4, 2, 2, None, []]
    assert found.about["ceiling"]["bytes_per_s"] == BETA_BYTES_PER_S
    assert found.about["verdict"]["result"] == "nobody" and len(found.about["places"]) == 6
    began, folder = found.listener.began
    assert (began["verdict"], began["promised"], folder) == (None, 2, str(found.folder))


@pytest.mark.parametrize(("result", "code"), [("nobody", 0), ("confirmed", 1), ("no verdict", 3)])
def test_the_verdict_decides_the_code_and_is_acted_on_once(hunt, result, code):
    found = hunt(ask("pairs", (0, 1)), result=result)
    assert (found.code, found.listener.acted) == (code, [found.folder])
    events = [json.loads(line) for line in (found.folder / "events.jsonl").read_text().splitlines()]
    assert [event["node"] for event in events if event["kind"] == "drain"] == ["node1"]


def test_where_a_rank_is_gone_at_the_end_none_is_judged(hunt, monkeypatch, tmp_path):
    acted = []
    agree = World.allgather

    def gone(world, value, what):
        if what == "ending":
            raise PeerFailed("rank 3 is gone")
        return agree(world, value, what)

    monkeypatch.setattr(ScriptedHunter, "act", lambda *told: acted.append(told))
    monkeypatch.setattr(World, "allgather", gone)
    with pytest.raises(PeerFailed, match="rank 3 is gone"):
        hunt(ask("pairs", (0, 1)), result="confirmed")
    assert acted == [] and read_hunt(read_run(tmp_path / "run")).about["verdict"] is None


def test_where_ranks_wait_for_a_core_there_is_no_ceiling_and_a_plan_that_is_refused_leaves_no_folder(hunt, tmp_path):
    session = SimpleNamespace(records=[SimpleNamespace(kind="pairs")])
    runner = SimpleNamespace(flags=("oversubscribed",), context=SimpleNamespace(backend=None), places=None)
    assert ceiling_of_rounds(session, runner) is None
    with pytest.raises(UsageError, match=r"^--cover-links: "):
        hunt(refusal="--cover-links: none of its hosts is here")
    assert not (tmp_path / "run").exists()


def test_what_is_refused_has_no_figure_and_gives_the_reason(hunt, backend):
    backend(Fussy)
    pairs, groups, after = hunt(ask("pairs", (0, 3), (1, 2), (4, 5)), ask("groups", (0, 1), (2, 3)), ask("groups", (0, 1))).rounds
    assert pairs.na == (None, "ranks 1 and 2 are disconnected", None)
    assert [speed is None for speed in pairs.speed_bytes_per_s] == [False, True, False]
    assert groups.na == ("no group for rank 2",) * 2 and after.na == (None,)


class Broken(SimulatedBackend):
    """Its library throws an error of its own at the first group of a round; all that are made are let go."""

    groups = {}  # noqa: RUF012

    def group(self, ranks, tuning=None):
        if 0 in ranks and len(ranks) < self.ranks:
            raise RuntimeError("Failed to recv, got 0 bytes")
        self.groups[tuple(ranks)] = self.groups.get(tuple(ranks), 0) + 1
        return super().group(ranks, tuning)

    def release(self, group):
        self.groups[tuple(group.ranks)] -= 1
        super().release(group)


def test_a_librarys_own_error_while_groups_are_made_is_a_reason_and_the_other_groups_are_still_made(hunt, backend):
    Broken.groups.clear()
    backend(Broken)
    groups, after = hunt(ask("groups", (0, 1), (2, 3)), ask("groups", (2, 3))).rounds
    assert groups.na == ("Failed to recv, got 0 bytes",) * 2 and after.na == (None,)
    assert {ranks: held for ranks, held in Broken.groups.items() if len(ranks) < 6} == {(2, 3): 0}


def test_all_ranks_know_of_one_that_cannot_reduce():
    sweep = Sweep((), None, (DTYPES["uint8"],), window=4, buffers="fixed")
    asked = PairsRequest(Request("hunt", sweep, ("simulated",), frozenset(), Budget(0.5, 8, 1), 4), size_bytes=SIZE)
    heard = []
    world = SimpleNamespace(first_error=lambda reason, what: heard.append(reason) or "too old at rank 3")
    backend = SimulatedBackend()
    backend.ranks = 4
    assert no_groups(asked, backend, world) == "too old at rank 3" and heard == [None]


def test_nothing_measured_at_all_is_bad_input(hunt, backend):
    backend(Fussy)
    found = hunt(ask("pairs", (1, 2)), result="no verdict")
    assert (found.code, found.listener.acted) == (2, [])


def test_wrong_data_ends_with_4_and_no_node_is_drained_for_it(hunt, backend):
    backend(Careless)
    found = hunt(ask("pairs", (0, 3), (1, 2)), ask("pairs", (0, 1)), result="confirmed")
    assert (found.code, found.listener.acted, [one.wrong for one in found.rounds]) == (4, [], [(7, 0), (0,)])
    a, b = found.about["places"][0], found.about["places"][3]
    assert [note for note in found.listener.notes if "wrong" in note] == [
        f"wrong data between {a} and {b}: 7 elements differ from what was sent ({SPOILT})",
        "no recommendation is written and no node is drained: data was wrong",
    ]


def test_wrong_data_stops_the_hunt_where_that_is_asked_for(hunt, backend):
    backend(Careless)
    found = hunt(ask("pairs", (0, 3)), ask("pairs", (0, 1)), stop_on_wrong=True)
    assert (found.code, len(found.rounds), found.about["verdict"], found.listener.acted) == (4, 1, None, [])
    assert any("round 1 (--stop-on-wrong)" in note for note in found.listener.notes)
