"""Shortest paths through a fabric, and routings that spread destinations over the equal ones."""

from __future__ import annotations

from collections import Counter

import pytest

from collbench.errors import UsageError
from collbench.machine import fabric as fabric_routes
from collbench.machine.fabric import Attached, Cable, Fabric, FabricNode, Routes, attached, host_key, slower
from collbench.machine.readers.rdma_tools import read
from tests.machine.fabric_texts import fat_tree, star

FABRIC = read(fat_tree().plain(), "x")
PORTS = [ports[0] for ports in attached(FABRIC).values()]
LEAF1, LEAF2 = "00000000b0000000", "00000000b0000001"


def port_of(host: str) -> Attached:
    return attached(FABRIC)[host][0]


def test_adapters_hang_on_switches_by_host_and_rail() -> None:
    found = attached(read(fat_tree(rails=2).plain(), "x"))
    assert len(found) == 16
    assert [(port.rail, port.leaf) for port in found["node01"]] == [(0, "00000000b0000000"), (1, "00000000b0001000")]
    assert "mellanox" not in found


def test_names_are_compared_without_case_and_domain() -> None:
    assert host_key("Node07.cluster.example") == host_key("node07") == "node07"


def test_a_path_goes_up_over_a_spine_and_down() -> None:
    routes = Routes(FABRIC, PORTS)
    first, second = routes.between(LEAF1, port_of("node05")) or ()
    assert first[0][0] == LEAF1
    assert first[1][0] == second[0][0]
    assert second[1][0] == LEAF2
    assert routes.between(LEAF1, port_of("node02")) == ()


@pytest.mark.parametrize("routing", range(6))
def test_destinations_of_a_leaf_spread_evenly_over_its_cables(routing: int) -> None:
    routes = Routes(FABRIC, PORTS, 6)
    up = Counter((routes.between(LEAF1, port, routing) or ((),))[0] for port in PORTS if port.leaf != LEAF1)
    assert sorted(up.values()) == [3, 3, 3, 3]  # 12 destinations over four cables


def test_all_cables_of_equal_paths_are_possible() -> None:
    assert len(Routes(FABRIC, PORTS).possible()) == 2 * (16 + 16)
    assert len(Routes(FABRIC, [port_of("node01"), port_of("node05")]).possible()) == 2 * (2 + 8)
    assert len(Routes(FABRIC, [port_of("node01"), port_of("node02")]).possible()) == 2 * 2
    assert Routes(FABRIC, [port_of("node01")]).possible() == set()


def test_where_there_is_no_path_there_is_none() -> None:
    text = star(2).plain() + star(1).plain().replace("b0000000", "b0000009").replace("c0000001", "c0000009").replace("node01", "far")
    fabric = read(text, "x")
    ports = [each[0] for each in attached(fabric).values()]
    far = next(port for port in ports if port.host == "far")
    routes = Routes(fabric, ports)
    assert routes.between("00000000b0000000", far) is None
    assert far.up not in routes.possible()


def test_longer_ways_round_are_no_shortest_paths() -> None:
    ring = star(1).plain()
    cables = tuple(Cable((f"s{number}", 1), (f"s{(number + 1) % 5}", 2)) for number in range(5))
    nodes = {f"s{number}": next(iter(read(ring, "x").nodes.values())) for number in range(5)}
    fabric = Fabric("x", nodes, cables)
    ports = [Attached(host, 0, (host, 1), (switch, 9)) for host, switch in (("a", "s0"), ("b", "s2"))]
    routes = Routes(fabric, ports)
    assert routes.between("s0", ports[1]) == ((("s0", 1), ("s1", 2)), (("s1", 1), ("s2", 2)))
    assert len(routes.possible()) == 2 * (2 + 2)


def test_cables_slower_than_their_siblings() -> None:
    assert slower(FABRIC) == []
    text = fat_tree().plain().replace("4xHDR", "4xEDR", 1)
    assert [cable.ends for cable in slower(read(text, "x"))] == [(("00000000a0000000", 1), (LEAF1, 5))]
    assert slower(read(star().plain().replace("4xHDR", "1xHDR", 1), "x")) == []  # a host's own cable has none beside it


def test_more_ports_and_switches_than_can_be_gone_through_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [each[0] for each in attached(FABRIC).values()]
    monkeypatch.setattr(fabric_routes, "MOST_STEPS", 3 * 16 * 4 * 2)  # the steps of all paths under three routings
    assert Routes(FABRIC, names, 3).leaves
    with pytest.raises(UsageError, match=r"16 ports on 4 switches .*--cover-links"):
        Routes(FABRIC, names, 4)
    monkeypatch.setattr(fabric_routes, "MOST_STEPS", 16 * 16 + 4 * 32 - 1)  # pairs of ports, and the cables of switches from each leaf
    with pytest.raises(UsageError, match="16 ports on 4 switches"):
        Routes(FABRIC, names, 0)


def test_a_ring_of_thousands_of_switches_is_refused_and_not_gone_through() -> None:
    n = 4000
    cables = tuple(Cable((f"s{number}", 1), (f"s{(number + 1) % n}", 2)) for number in range(n))
    fabric = Fabric("x", {f"s{number}": FabricNode(f"s{number}", "switch") for number in range(n)}, cables)
    with pytest.raises(UsageError, match="4000 ports on 4000 switches"):
        Routes(fabric, [Attached(f"h{number}", 0, (f"h{number}", 1), (f"s{number}", 9)) for number in range(n)])
