"""An InfiniBand fabric from ibnetdiscover: switches, adapters and cables, each once; and the routes between its hosts."""

import os
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.machine.fabric import Cable, Fabric, FabricNode
from collbench.machine.readers.rdma_tools import read, read_fabric
from collbench.machine.readers.text import Unreadable
from collbench.plugins.hunt import cover
from collbench.plugins.hunt.cover import Attached, Routes, attached, host_key, slower
from tests.machine.fabric_texts import FAT_TREE, TINY, fat_tree, star

FABRIC = read(fat_tree().plain(), "x")
PORTS = [ports[0] for ports in attached(FABRIC).values()]
LEAF1, LEAF2 = "00000000b0000000", "00000000b0000001"
ROW = "CA 1 1 0x00000000c0000001 4x EDR - SW 2 2 0x00000000b0000000 ( '"


def port_of(host):
    return attached(FABRIC)[host][0]


def test_adapters_belong_to_switches_by_host_and_rail_in_any_case_and_domain():
    found = attached(read(fat_tree(rails=2).plain(), "x"))
    assert len(found) == 16
    assert [(port.rail, port.leaf) for port in found["node01"]] == [(0, "00000000b0000000"), (1, "00000000b0001000")]
    assert "mellanox" not in found
    assert host_key("Node07.cluster.example") == host_key("node07") == "node07"


def test_a_path_goes_up_over_a_spine_and_down_where_there_is_one():
    routes = Routes(FABRIC, PORTS)
    first, second = routes.between(LEAF1, port_of("node05")) or ()
    assert first[0][0] == LEAF1
    assert first[1][0] == second[0][0]
    assert second[1][0] == LEAF2
    assert routes.between(LEAF1, port_of("node02")) == ()
    text = star(2).plain() + star(1).plain().replace("b0000000", "b0000009").replace("c0000001", "c0000009").replace("node01", "far")
    fabric = read(text, "x")
    ports = [each[0] for each in attached(fabric).values()]
    far = next(port for port in ports if port.host == "far")
    routes = Routes(fabric, ports)
    assert routes.between("00000000b0000000", far) is None
    assert far.up not in routes.possible()


@pytest.mark.parametrize("routing", range(6))
def test_destinations_of_a_leaf_spread_evenly_over_its_cables(routing):
    routes = Routes(FABRIC, PORTS, 6)
    up = Counter((routes.between(LEAF1, port, routing) or ((),))[0] for port in PORTS if port.leaf != LEAF1)
    assert sorted(up.values()) == [3, 3, 3, 3]  # 12 destinations over four cables


def test_cables_of_equal_paths_are_possible_and_longer_ways_round_are_not():
    assert len(Routes(FABRIC, PORTS).possible()) == 2 * (16 + 16)
    assert len(Routes(FABRIC, [port_of("node01"), port_of("node05")]).possible()) == 2 * (2 + 8)
    assert len(Routes(FABRIC, [port_of("node01"), port_of("node02")]).possible()) == 2 * 2
    assert Routes(FABRIC, [port_of("node01")]).possible() == set()
    ring = star(1).plain()
    cables = tuple(Cable((f"s{number}", 1), (f"s{(number + 1) % 5}", 2)) for number in range(5))
    nodes = {f"s{number}": next(iter(read(ring, "x").nodes.values())) for number in range(5)}
    fabric = Fabric("x", nodes, cables)
    ports = [Attached(host, 0, (host, 1), (switch, 9)) for host, switch in (("a", "s0"), ("b", "s2"))]
    routes = Routes(fabric, ports)
    assert routes.between("s0", ports[1]) == ((("s0", 1), ("s1", 2)), (("s1", 1), ("s2", 2)))
    assert len(routes.possible()) == 2 * (2 + 2)


def test_cables_slower_than_their_siblings_and_labels_of_switches():
    assert slower(FABRIC) == []
    text = fat_tree().plain().replace("4xHDR", "4xEDR", 1)
    assert [cable.ends for cable in slower(read(text, "x"))] == [(("00000000a0000000", 1), (LEAF1, 5))]
    assert slower(read(star().plain().replace("4xHDR", "1xHDR", 1), "x")) == []  # a host's own cable has none beside it
    descriptions = {"aa": "SwitchIB", "bb": "SwitchIB", "cc": "leaf3", "dd": ""}
    nodes = {guid: FabricNode(guid, "switch", description) for guid, description in descriptions.items()}
    fabric = Fabric("x", nodes, ())
    assert [fabric.label(guid) for guid in nodes] == ["SwitchIB aa", "SwitchIB bb", "leaf3", "dd"]
    assert fabric.port(("cc", 7)) == "leaf3 port 7"


def test_more_than_can_be_gone_through_is_refused_at_once(monkeypatch):
    n = 4000
    cables = tuple(Cable((f"s{number}", 1), (f"s{(number + 1) % n}", 2)) for number in range(n))
    fabric = Fabric("x", {f"s{number}": FabricNode(f"s{number}", "switch") for number in range(n)}, cables)
    with pytest.raises(UsageError, match="4000 ports on 4000 switches"):
        Routes(fabric, [Attached(f"h{number}", 0, (f"h{number}", 1), (f"s{number}", 9)) for number in range(n)])
    names = [each[0] for each in attached(FABRIC).values()]
    monkeypatch.setattr(cover, "MOST_STEPS", 3 * 16 * 4 * 2)  # the steps of all paths under three routings
    assert Routes(FABRIC, names, 3).leaves
    with pytest.raises(UsageError, match=r"16 ports on 4 switches .*--cover-links"):
        Routes(FABRIC, names, 4)
    monkeypatch.setattr(cover, "MOST_STEPS", 16 * 16 + 4 * 32 - 1)  # pairs of ports, and the cables of switches from each leaf
    with pytest.raises(UsageError, match="16 ports on 4 switches"):
        Routes(FABRIC, names, 0)


# Its format alone is that of the page "TOPOLOGY FILE FORMAT": a chassis with external ports (-g), widths and speeds (-f), routers.
ODD = """\
vendid=0x8f1
Switch\t24 "S-005442ba00003080"\t\t# "a "quoted" switch" base port 0 lid 6 lmc 0
[22]\t"H-0008f10403961354"[1](8f10403961355)\t\t# "MT23108 InfiniHost Mellanox Technologies" lid 4 4xSDR s=1 w=2 v=4
[10][ext 3]\t"S-0008f10400410015"[1][ext 12]\t\t# "spine" lid 3 1xEDR
[11]\t"R-00000000000000aa"[1](aa)\t\t# "router" lid 9 ??x???
Rt\t2 "R-00000000000000aa"\t\t# "router"
[1](aa)\t"S-005442ba00003080"[11]\t\t# lid 9 lmc 0 "a "quoted" switch" lid 6 ??x???
"""


def test_a_fat_tree_reads_alike_as_it_is_printed_and_by_ports():
    fabric = read_fabric(FAT_TREE)
    assert sorted(node.host for node in fabric.nodes.values() if node.host) == [f"node{number:02d}" for number in range(1, 17)]
    assert sum(node.kind == "switch" for node in fabric.nodes.values()) == 6
    assert len(fabric.cables) == 16 + 4 * 2 * 2 + 1
    assert {(cable.rate, cable.bits_per_s) for cable in fabric.cables} == {("4xHDR", 200e9)}
    assert fabric.doubts == ()
    assert fabric.source == f"ibnetdiscover {FAT_TREE}"
    text = fat_tree()
    plain, by_port = read(text.plain(), "x"), read(text.by_port(), "x")
    assert (by_port.nodes, set(by_port.cables), by_port.lids) == (plain.nodes, set(plain.cables), plain.lids)
    assert sorted(node.host for node in read_fabric(TINY).nodes.values() if node.host) == ["node01", "node02", "node03"]
    assert FAT_TREE.read_text() == fat_tree().plain()
    assert TINY.read_text() == star().by_port()
    fabric = read(star().plain(), "x")
    assert fabric.cables[0] == Cable(("00000000b0000000", 1), ("00000000c0000001", 1), "4xHDR", 200e9)
    assert len(fabric.cables) == 3


def test_external_ports_widths_routers_and_adapters_without_a_name():
    fabric = read(ODD, "x")
    switch, adapter, spine, router = fabric.nodes.values()
    assert (switch.description, spine.description, router.kind) == ('a "quoted" switch', "spine", "router")
    assert (adapter.kind, adapter.host) == ("host", None)
    assert [(cable.rate, cable.bits_per_s) for cable in fabric.cables] == [("4xSDR", 8e9), ("1xEDR", 25e9), ("", None)]
    assert fabric.lids[adapter.guid, 1] == 4
    assert fabric.lids[spine.guid, 0] == 3


def test_odd_texts_read_as_far_as_they_go_with_a_doubt():
    text = fat_tree().plain()
    half = read(text[: len(text) // 2], "x")
    assert {cable.ends for cable in half.cables} <= {cable.ends for cable in read(text, "x").cables}
    assert len(half.cables) > 16
    text = star().plain().replace("4xHDR", "??x???", 1)
    assert {cable.rate for cable in read(text, "x").cables} == {"4xHDR"}
    text = star().plain().replace('"H-00000000c0000002"[1]', '"H-00000000c0000001"[1]')
    (doubt,) = read(text, "x").doubts
    assert "00000000b0000000 port 2 " in doubt
    text = star().plain().replace("[2]\t", "[2222]\t")
    assert len(read(text, "x").doubts) == 1 and "ibnetdiscover: 2 lines" in read(text, "x").doubts[0]  # both ends
    fabric = read(star().plain().replace("node02 HCA-1", "node\x1b[31m02 HCA-1"), "x")
    assert "node?[31m02" in {node.host for node in fabric.nodes.values()}


@pytest.mark.parametrize(
    "text", ["hello", 'Ca : 0x0002c9030045f121 ports 1 "node1 HCA-1"', 'Switch\t36 "S-00000000000000aa"\t\t# "s" base port 0 lid 1 lmc 0\n']
)
def test_a_text_without_cables_names_the_remedy(text):
    with pytest.raises(Unreadable, match=r"'net\.txt' .*`ibnetdiscover`"):
        read(text, "net.txt")


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(Unreadable, match=r"fabric file '.*absent' .*\(No such file or directory\)"):
        read_fabric(tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unreadable, match=r"\(it is a pipe"):
        read_fabric(tmp_path / "pipe")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 17 << 20)
    with pytest.raises(Unreadable, match=r"larger than 16 MiB"):
        read_fabric(tmp_path / "large")
    for text in ("", " \n"):
        (tmp_path / "net.txt").write_text(text)
        with pytest.raises(Unreadable, match=r"net\.txt' is empty"):
            read_fabric(tmp_path / "net.txt")


PIECES = st.sampled_from([
    '[1]\t"', '"S-', '"H-', "00000000b0000000", "00000000c0000001", '"[1]', '"[300]', "(c1)", ' # "', '" lid 4 4xEDR', "\n", "Switch\t3 ",
    "Ca\t1 ", ROW, "' - '", "' )", " ", "[ext 1]",
])  # fmt: skip


@given(st.one_of(st.text(max_size=300), st.lists(PIECES, max_size=40).map("".join)))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_fabric_or_one_sentence(text):
    try:
        fabric = read(text, "x")
    except Unreadable as refused:
        assert "\n" not in str(refused)
        return
    ends = [end for cable in fabric.cables for end in cable.ends]
    assert len(ends) == len(set(ends))
    assert {guid for guid, _ in ends} <= set(fabric.nodes)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_damaged_file_is_a_fabric_or_one_sentence(data):
    text = star().plain()
    at = data.draw(st.integers(0, len(text)))
    damaged = text[:at] + data.draw(st.text(max_size=20)) + text[at + data.draw(st.integers(0, 60)) :]
    assert len(read(damaged, "x").cables) in (1, 2, 3, 4)


@pytest.mark.parametrize(
    "line", ["[1]" + " " * 990, '[1]\t"H-aa"[1]' + " " * 900, "CA 1 1 0x00000000c0000001 4x EDR - " + " " * 900, "' - '" * 200]
)
def test_long_lines_take_no_time(line):
    with pytest.raises(Unreadable):
        read("\n".join([line] * 16_000), "x")  # some 16 MB: seconds would be a quadratic search
