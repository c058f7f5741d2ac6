"""Isolation of a confirmed node: its slow part, the evidence, and parts that could not be measured."""

import pytest
from msgspec.structs import replace

from collbench.plugins.hunt import facts
from collbench.plugins.hunt.isolation import measure_isolation, most_rounds
from collbench.plugins.hunt.protocol import CLEARED, CONFIRMED, INSIDE, NIC, Options, Suspect
from collbench.reason import Text
from tests.plugins.hunt.made_up import MadeUp, play

RAILS = Options(can_inside=True, nics=("eth0", "eth1"))
GOOD = tuple(range(4, 16))
SEEDS = range(20)
THREE = Options(nics=("a", "b", "c"))


def confirmed(place=2, ratio=0.5, kind="node"):
    return Suspect(kind, (place,), CONFIRMED, ratio, evidence=(Text("slow with node005 and node006"),))


def isolated(made, *suspects, options=RAILS, good=GOOD):
    played = play(measure_isolation(made.log(), suspects, good, options), made)
    assert len(played.asks) <= most_rounds(options)
    return played


def cluster(seed=0):
    return MadeUp(16, seed).rails("eth0", "eth1")


PARTS = {
    "one interface of two": (lambda seed: cluster(seed).slow_nic(2, "eth1"), RAILS, "node", facts.SlowInterfaces(("eth1",))),
    "two interfaces of three": (
        lambda seed: MadeUp(16, seed).rails("a", "b", "c").slow_nic(2, "a").slow_nic(2, "c"), THREE, "node",
        facts.SlowInterfaces(("a", "c"))),
    "inside, too": (lambda seed: cluster(seed).busy(2), RAILS, "inside", facts.InsideHost()),
    "all interfaces, fast inside": (
        lambda seed: cluster(seed).slow_nic(2, "eth0").slow_nic(2, "eth1"), RAILS, "node", facts.WayToNetwork(("eth0", "eth1"))),
    "fast inside, without interfaces": (lambda seed: MadeUp(16, seed).node(2), Options(can_inside=True), "node", facts.WayToNetwork()),
    "fast inside and over each interface": (cluster, RAILS, "node", None),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_the_slow_part(name):
    make, options, kind, part = PARTS[name]
    for seed in SEEDS:
        (found,) = isolated(make(seed), confirmed(), options=options).result
        assert (found.kind, found.part) == (kind, part), seed


def test_the_evidence_has_the_compared_figures_of_all_parts():
    (found,) = isolated(cluster().slow_nic(2, "eth1"), confirmed()).result
    earlier, inside, eth0, eth1 = found.evidence
    assert isinstance(earlier, Text)
    assert isinstance(inside, facts.InsideRatio) and (inside.ratio, inside.controls) == (pytest.approx(1.0, abs=0.05), 3)
    assert isinstance(eth0, facts.InterfaceRatio) and (eth0.interface, eth0.ways) == ("eth0", "sends and receives")
    assert isinstance(eth1, facts.InterfaceRatio) and eth1.ratio == pytest.approx(0.5, abs=0.05)
    (found,) = isolated(cluster(), confirmed()).result
    assert len(found.evidence) == 4


def test_the_slow_part_and_its_ratio_are_those_of_what_was_measured():
    made = cluster().busy(2, 0.3)
    made.inside[2] = 0.6
    before = replace(confirmed(ratio=0.3), low=0.29, high=0.31)
    (found,) = isolated(made, before).result
    assert found.ratio == pytest.approx(0.6, rel=0.1) and (found.low, found.high) == (None, None)
    assert [each.ratio for each in found.evidence if isinstance(each, facts.InsideRatio)] == [found.ratio]
    (found,) = isolated(cluster().slow_nic(2, "eth1"), before).result
    assert (found.ratio, found.low, found.high) == (0.3, 0.29, 0.31)
    alone = Options(nics=("eth0",))
    (found,) = isolated(MadeUp(16).rails("eth0").slow_nic(2, "eth0"), confirmed(), options=alone).result
    assert found.part == facts.WayToNetwork(("eth0",))
    assert found.evidence[-1] == facts.InsideNotMeasured()
    (found,) = isolated(MadeUp(16).rails("eth0").slow_nic(2, "eth0"), confirmed(), options=replace(alone, can_inside=True)).result
    assert isinstance(found.evidence[-1], facts.InterfaceRatio)
    (found,) = isolated(cluster(3).slow_nic(2, "eth1", 0.85), confirmed(ratio=0.86)).result
    assert found.part == facts.SlowInterfaces(("eth1",))


def test_several_at_once_take_a_round_inside_and_one_for_each_interface():
    played = isolated(cluster().slow_nic(1, "eth0").busy(2).slow_nic(3, "eth1"), confirmed(1), confirmed(2), confirmed(3))
    assert [found.part for found in played.result] == [facts.SlowInterfaces(("eth0",)), facts.InsideHost(), facts.SlowInterfaces(("eth1",))]
    assert [(ask.kind, ask.nic) for ask in played.asks] == [(INSIDE, None), (NIC, "eth0"), (NIC, "eth1")]
    assert {ask.stage for ask in played.asks} == {"isolation"}


@pytest.mark.parametrize(("kind", "sent", "ways"), [("sender", True, "sends"), ("receiver", False, "receives")])
@pytest.mark.parametrize("place", [2, 15])  # the first and the second of its pair
def test_a_way_is_judged_by_itself(kind, sent, ways, place):
    good = tuple(each for each in range(16) if each != place)
    made = MadeUp(16).rails("eth0", "eth1").slow_nic(7, "eth0")
    made.sends[:], made.receives[:] = 1, 1

    def one_way(sender, receiver, nic):
        return 2e9 if (sender if sent else receiver) == place and nic == "eth1" else 5e9

    made._message = one_way
    (found,) = isolated(made, confirmed(place, 0.4, kind), good=good).result
    assert (found.kind, found.part) == (kind, facts.SlowInterfaces(("eth1",)))
    last = found.evidence[-1]
    assert isinstance(last, facts.InterfaceRatio) and last.ways == ways


def test_suspects_that_are_unconfirmed_paths_or_slow_only_in_groups_are_not_isolated_by_interface():
    others = (replace(confirmed(1), state=CLEARED), Suspect("path", (1, 3), CONFIRMED, 0.5))
    played = isolated(cluster(), *others)
    assert (played.result, played.asks) == ([*others], [])
    played = isolated(cluster().slow_inside(2).scale(3, 8), confirmed(2, kind="scale"), confirmed(3, kind="scale"))
    assert [(found.kind, found.part) for found in played.result] == [("inside", facts.InsideHost()), ("scale", None)]
    assert [ask.kind for ask in played.asks] == [INSIDE]
    options = replace(RAILS, isolate=False)
    assert isolated(cluster(), confirmed(), options=options).asks == []
    assert (most_rounds(options), most_rounds(RAILS), most_rounds(Options())) == (0, 3, 0)


def test_parts_without_enough_measured_controls_or_figures_are_noted_and_not_blamed():
    (found,) = isolated(cluster().busy(2), confirmed(), good=(4, 5)).result
    assert found.part == facts.InsideHost()  # inside two are enough
    assert found.evidence[-1] == facts.PartNotMeasured("eth1", "only 2 healthy endpoints")
    (found,) = isolated(cluster().dies(2, 0, "gone"), confirmed()).result
    assert (found.kind, found.part) == ("node", None)
    assert found.evidence[1:] == tuple(facts.PartNotMeasured(part, "node002: gone") for part in ("inside", "eth0", "eth1"))
    made = cluster()
    for place in GOOD:
        made.dies(place)
    (found,) = isolated(made, confirmed(), options=Options(can_inside=True)).result
    assert found.part is None
    last = found.evidence[-1]
    assert isinstance(last, facts.PartNotMeasured) and last.part == "inside" and "3 controls" in last.why
