"""Hunts over a network with groups, answered by a double: a slow path between groups is confirmed, and no healthy node."""

import math

import numpy as np
import pytest

from collbench.plugins.groups import facts
from collbench.plugins.groups.contrast import fit_blocks, groups_by_latency, numbered
from collbench.plugins.groups.stage import Stage
from collbench.plugins.hunt.protocol import CONFIRMED, INCONCLUSIVE, NIC, GroupFigure, Options, RoundResult
from collbench.plugins.hunt.strategy import hunt, promise
from tests.plugins.hunt.made_up import RATE, MadeUp, play


@pytest.fixture(params=range(6))
def seed(request):
    return request.param


def parts_of(*sizes):
    return tuple(group for group, size in enumerate(sizes) for _ in range(size))


def cluster(sizes, seed=0, trunk=None, ratio=0.5, slow=None):
    """Return a double with groups of these sizes: `trunk` (two groups) and one node may be slow."""
    group_of = parts_of(*sizes)
    made = MadeUp(len(group_of), seed)
    for a in range(made.n):
        for b in range(a + 1, made.n):
            if trunk and {group_of[a], group_of[b]} == set(trunk):
                made.paths[a, b] = ratio
    if slow is not None:
        made.node(slow)
    return made, tuple(f"leaf{group}" for group in group_of)


def hunted(made, leaf_of, seed=0, **options):
    options = Options(group_stage=Stage(leaf_of, ()), leaf_of=leaf_of or None, growing=False, seed=seed, **options)
    played = play(hunt(made.names, options, made.hosts), made)
    assert len(played.asks) <= promise(made.n, options)
    return played


def by_state(verdict, state):
    return sorted(
        (suspect.kind, suspect.places if len(suspect.places) == 1 else ()) for suspect in verdict.suspects if suspect.state == state
    )


@pytest.mark.parametrize("ratio", [0.5, 0.71])
@pytest.mark.parametrize("sizes", [(4, 4), (3, 3), (2, 6), (4, 4, 4), (8, 8, 8, 8), (2, 2, 2, 2)])
def test_a_slow_path_between_groups_is_confirmed_and_no_node(sizes, ratio, seed):
    made, leaf_of = cluster(sizes, seed, (0, 1), ratio)
    verdict = hunted(made, leaf_of, seed).result
    assert by_state(verdict, CONFIRMED) == [("trunk", ())] and not by_state(verdict, INCONCLUSIVE)
    (trunk,) = verdict.of(CONFIRMED)
    assert isinstance(trunk.part, facts.BetweenGroups) and (trunk.part.first, trunk.part.second) == ("leaf0", "leaf1")
    assert trunk.ratio == pytest.approx(ratio, rel=0.1) and trunk.part.slow == trunk.part.pairs and trunk.part.others == 0
    assert trunk.low is not None and trunk.high is not None and trunk.low <= trunk.ratio <= trunk.high < 0.95


@pytest.mark.parametrize("sizes", [(4, 4), (3, 3), (2, 6), (4, 4, 4), (2, 2, 2, 2)])
@pytest.mark.parametrize("slow", [None, 0, "last"])
def test_a_healthy_path_is_never_accused_and_a_slow_node_is(sizes, slow, seed):
    place = sum(sizes) - 1 if slow == "last" else slow
    made, leaf_of = cluster(sizes, seed, slow=place)
    verdict = hunted(made, leaf_of, seed).result
    assert by_state(verdict, CONFIRMED) == ([] if place is None else [("node", (place,))])
    assert not any(suspect.kind == "trunk" and suspect.state == INCONCLUSIVE for suspect in verdict.suspects)


@pytest.mark.parametrize("capacity", [0.5, 1.4])
@pytest.mark.parametrize("sizes", [(4, 4), (3, 5), (8, 8)])
def test_a_path_that_many_pairs_share_is_slower_the_more_of_them_use_it(sizes, capacity, seed):
    made, leaf_of = cluster(sizes, seed)
    answer = made.answer

    def shared(ask):
        pairs = sum(leaf_of[a] != leaf_of[b] for a, b in ask.groups)
        for a in range(sizes[0]):
            for b in range(sizes[0], made.n):
                made.paths[a, b] = min(1.0, capacity / max(1, pairs))
        return answer(ask)

    made.answer = shared
    verdict = hunted(made, leaf_of, seed, isolate=False).result
    assert by_state(verdict, CONFIRMED) == [("trunk", ())] and not by_state(verdict, INCONCLUSIVE)


def test_a_slow_node_is_named_besides_a_slow_path(seed):
    made, leaf_of = cluster((4, 4, 4), seed, (0, 1), 0.5, slow=0)
    assert by_state(hunted(made, leaf_of, seed).result, CONFIRMED) == [("node", (0,)), ("trunk", ())]


def test_the_nodes_of_a_slow_path_are_counted_and_a_hidden_slow_one_is_not_cleared(seed):
    made, leaf_of = cluster((3, 3), seed, (0, 1), 0.5, slow=0)
    verdict = hunted(made, leaf_of, seed).result
    for trunk in verdict.of(CONFIRMED):
        assert trunk.kind == "trunk" and isinstance(trunk.part, facts.BetweenGroups)
        assert trunk.part.others >= 1


def test_too_few_places_are_inconclusive(seed):
    made, leaf_of = cluster((2, 2), seed, (0, 1), 0.5)
    verdict = hunted(made, leaf_of, seed).result
    assert by_state(verdict, CONFIRMED) == [] and by_state(verdict, INCONCLUSIVE) == [("trunk", ())]


def test_a_network_that_is_narrower_above_all_groups_accuses_no_path(seed):
    made, leaf_of = cluster((4, 4, 4), seed)
    made.parts(parts_of(4, 4, 4), 0.6)
    verdict = hunted(made, leaf_of, seed).result
    assert not verdict.of(CONFIRMED)
    (note,) = [note for note in verdict.notes if isinstance(note, facts.BetweenAllSlower)]
    assert note.groups == 3 and note.ratio == pytest.approx(0.6, rel=0.1)


def test_the_uplink_of_one_group_is_its_paths_to_all_others(seed):
    made, leaf_of = cluster((4, 4, 4), seed, (0, 1), 0.5)
    for a in range(4):
        for b in range(8, 12):
            made.paths[a, b] = 0.5
    verdict = hunted(made, leaf_of, seed).result
    assert {(trunk.part.first, trunk.part.second) for trunk in verdict.of(CONFIRMED)} == {("leaf0", "leaf1"), ("leaf0", "leaf2")}
    assert {trunk.kind for trunk in verdict.of(CONFIRMED)} == {"trunk"}


def test_one_direction_of_a_path_is_named(seed):
    made, leaf_of = cluster((4, 4), seed)
    plain = made._message

    def one_way(sender, receiver, nic):
        return plain(sender, receiver, nic) * (0.5 if sender < 4 <= receiver else 1.0)

    made._message = one_way
    (trunk,) = hunted(made, leaf_of, seed).result.of(CONFIRMED)
    assert trunk.kind == "trunk" and trunk.part.one_way == "from leaf0 to leaf1"


def test_places_without_a_group_and_single_groups_judge_no_path():
    for leaf_of in [("",) * 8, ("a",) * 8, ("a", "", "", "", "", "", "", "b")]:
        made, _ = cluster((4, 4), 0, (0, 1), 0.5)
        verdict = hunted(made, leaf_of).result
        assert not any(suspect.kind == "trunk" for suspect in verdict.suspects)


@pytest.mark.parametrize("trunk", [None, (0, 1)])
def test_ranks_of_one_host_are_no_comparison(trunk, seed):
    """Two ranks on each of eight hosts: their pairs inside a host are four times as fast."""
    made, leaf_of = cluster((8, 8), seed, trunk, 0.5)
    hosts = tuple(f"host{place // 2}" for place in range(16))
    made.hosts = hosts
    plain = made._message

    def faster_inside(sender, receiver, nic):
        return plain(sender, receiver, nic) * (4.0 if hosts[sender] == hosts[receiver] else 1.0)

    made._message = faster_inside
    played = hunted(made, leaf_of, seed, isolate=False)
    assert by_state(played.result, CONFIRMED) == ([("trunk", ())] if trunk else [])
    for ask in played.asks:
        if ask.stage == "groups":
            used = [hosts[place] for group in ask.groups for place in group]
            assert len(used) == len(set(used))


class TestPorts:
    """The double has two equal interfaces, and slow source ports on the path between the groups."""

    def played(self, slow_ports, nics=("eth0",), flaky=(), isolate=True):
        made, leaf_of = cluster((4, 4), 0, (0, 1), 0.5)
        made.rails(*nics)
        answer = made.answer
        asked = []

        def with_ports(ask):
            if ask.kind != NIC:
                return answer(ask)
            asked.append(ask.port)
            slow = ask.port in slow_ports or (ask.port in flaky and asked.count(ask.port) == 1)
            speeds = [RATE * (0.5 if slow and (a < 4) != (b < 4) else 1.0) for a, b in ask.groups]
            return RoundResult(tuple(GroupFigure(speed, speed) for speed in speeds))

        made.answer = with_ports
        verdict = hunted(made, leaf_of, nics=nics, isolate=isolate).result
        (trunk,) = verdict.of(CONFIRMED)
        results = [fact for fact in trunk.evidence if isinstance(fact, facts.SourcePorts | facts.PortsNotMeasured)]
        return results[0] if results else None, asked

    @pytest.mark.parametrize("slow", [(), (61102, 61105), tuple(range(61101, 61109))], ids=len)
    def test_slow_source_ports_are_counted(self, slow):
        fact, asked = self.played(slow)
        assert (fact.ports, fact.slow, fact.unclear) == (8, slow, 0)
        assert sorted(asked) == sorted([*range(61101, 61109)] * 2)

    def test_a_port_that_is_slow_once_is_unclear(self):
        fact, _ = self.played((61101,), flaky=(61108,))
        assert (fact.slow, fact.unclear) == ((61101,), 1)

    def test_without_an_interface_that_all_have_or_without_isolation_no_port_is_measured(self):
        fact, asked = self.played((), nics=())
        assert isinstance(fact, facts.PortsNotMeasured) and not asked
        assert self.played((), isolate=False) == (None, [])


def test_groups_are_found_from_latencies(seed):
    made, _ = cluster((3, 5), seed, (0, 1), 0.5)
    answer = made.answer

    def farther(ask):
        result = answer(ask)
        factors = [2.0 if (a < 3) != (b < 3) else 1.0 for a, b in ask.groups]
        figures = [
            GroupFigure(figure.speed, figure.backward, (figure.latency_s or math.nan) * factor, figure.low, figure.high)
            for figure, factor in zip(result.figures, factors, strict=True)
        ]
        return RoundResult(tuple(figures))

    made.answer = farther
    verdict = hunted(made, (), seed).result
    (note,) = [note for note in verdict.notes if isinstance(note, facts.GroupsFound)]
    assert note.groups == (made.names[:3], made.names[3:])
    assert by_state(verdict, CONFIRMED) == [("trunk", ())]


def test_equal_latencies_show_no_groups(seed):
    drawn = np.random.default_rng(seed)
    latency_s = 1e-5 * np.exp(drawn.normal(0, 0.1, (12, 12)))
    assert groups_by_latency(np.fmin(latency_s, latency_s.T)) == ()


def test_a_fit_separates_nodes_from_paths():
    group_of, names = numbered(("a", "a", "a", "b", "b", "b"))
    log_speeds = np.zeros((6, 6))
    log_speeds[:3, 3:] = log_speeds[3:, :3] = -0.7
    log_speeds[1] -= 0.4
    log_speeds[:, 1] -= 0.4
    np.fill_diagonal(log_speeds, np.nan)
    fit = fit_blocks(log_speeds, group_of, tuple("abcdef"))
    (contrast,) = fit.contrasts()
    assert names == ("a", "b") and contrast.groups == (0, 1) and contrast.log_slowdown == pytest.approx(0.7)
    assert (contrast.slow, contrast.pairs) == (9, 9) and fit.slow_places() == {1}
