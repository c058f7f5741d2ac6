"""ibnetdiscover's text -> switches, adapters and cables, each once; plain or with -p, whole or cut off."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.machine.fabric import Cable, Fabric, FabricNode
from collbench.machine.readers.rdma_tools import looks_like, read, read_fabric
from collbench.machine.readers.text import Unreadable
from tests.machine.fabric_texts import FAT_TREE, TINY, fat_tree, star

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


def test_a_fat_tree_as_it_is_printed() -> None:
    fabric = read_fabric(FAT_TREE)
    assert sorted(node.host for node in fabric.nodes.values() if node.host) == [f"node{number:02d}" for number in range(1, 17)]
    assert sum(node.kind == "switch" for node in fabric.nodes.values()) == 6
    assert len(fabric.cables) == 16 + 4 * 2 * 2 + 1
    assert {(cable.rate, cable.bits_per_s) for cable in fabric.cables} == {("4xHDR", 200e9)}
    assert fabric.doubts == ()
    assert fabric.source == f"ibnetdiscover {FAT_TREE}"


def test_ports_of_p_show_the_same_fabric() -> None:
    text = fat_tree()
    plain, by_port = read(text.plain(), "x"), read(text.by_port(), "x")
    assert (by_port.nodes, set(by_port.cables), by_port.lids) == (plain.nodes, set(plain.cables), plain.lids)
    assert sorted(node.host for node in read_fabric(TINY).nodes.values() if node.host) == ["node01", "node02", "node03"]


def test_the_sample_files_are_what_the_texts_have() -> None:
    assert FAT_TREE.read_text() == fat_tree().plain()
    assert TINY.read_text() == star().by_port()


def test_every_cable_counts_once_though_both_ends_are_listed() -> None:
    fabric = read(star().plain(), "x")
    assert fabric.cables[0] == Cable(("00000000b0000000", 1), ("00000000c0000001", 1), "4xHDR", 200e9)
    assert len(fabric.cables) == 3


def test_external_ports_widths_routers_and_adapters_without_a_name() -> None:
    fabric = read(ODD, "x")
    switch, adapter, spine, router = fabric.nodes.values()
    assert (switch.description, spine.description, router.kind) == ('a "quoted" switch', "spine", "router")
    assert (adapter.kind, adapter.host) == ("host", None)
    assert [(cable.rate, cable.bits_per_s) for cable in fabric.cables] == [("4xSDR", 8e9), ("1xEDR", 25e9), ("", None)]
    assert fabric.lids[adapter.guid, 1] == 4
    assert fabric.lids[spine.guid, 0] == 3


def test_what_is_cut_off_reads_up_to_there() -> None:
    text = fat_tree().plain()
    half = read(text[: len(text) // 2], "x")
    assert {cable.ends for cable in half.cables} <= {cable.ends for cable in read(text, "x").cables}
    assert len(half.cables) > 16


def test_a_rate_that_one_end_lacks_is_taken_from_the_other() -> None:
    text = star().plain().replace("4xHDR", "??x???", 1)
    assert {cable.rate for cable in read(text, "x").cables} == {"4xHDR"}


def test_a_port_with_two_cables_keeps_the_first() -> None:
    text = star().plain().replace('"H-00000000c0000002"[1]', '"H-00000000c0000001"[1]')
    (doubt,) = read(text, "x").doubts
    assert "00000000b0000000 port 2 " in doubt


def test_lines_of_ports_that_cannot_be_read_are_counted() -> None:
    text = star().plain().replace("[2]\t", "[2222]\t")
    assert len(read(text, "x").doubts) == 1 and "ibnetdiscover: 2 lines" in read(text, "x").doubts[0]  # both ends


def test_switches_with_one_description_are_distinguished_by_guid() -> None:
    nodes = {guid: FabricNode(guid, "switch", "SwitchIB") for guid in ("aa", "bb")} | {
        "cc": FabricNode("cc", "switch", "leaf3"),
        "dd": FabricNode("dd", "switch"),
    }
    fabric = Fabric("x", nodes, ())
    assert [fabric.label(guid) for guid in nodes] == ["SwitchIB aa", "SwitchIB bb", "leaf3", "dd"]
    assert fabric.port(("cc", 7)) == "leaf3 port 7"


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "net.txt").write_text(text)
    with pytest.raises(Unreadable, match=r"net\.txt' is empty"):
        read_fabric(tmp_path / "net.txt")


@pytest.mark.parametrize(
    "text", ["hello", 'Ca : 0x0002c9030045f121 ports 1 "node1 HCA-1"', 'Switch\t36 "S-00000000000000aa"\t\t# "s" base port 0 lid 1 lmc 0\n']
)
def test_a_text_without_cables_names_the_remedy(text: str) -> None:
    with pytest.raises(Unreadable, match=r"'net\.txt' .*`ibnetdiscover`"):
        read(text, "net.txt")


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=r"fabric file '.*absent' .*\(No such file or directory\)"):
        read_fabric(tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unreadable, match=r"\(it is a pipe"):
        read_fabric(tmp_path / "pipe")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 17 << 20)
    with pytest.raises(Unreadable, match=r"larger than 16 MiB"):
        read_fabric(tmp_path / "large")


def test_its_kind_is_known_by_its_beginning() -> None:
    assert looks_like(fat_tree().plain(), "x")
    assert looks_like(star().by_port(), "x")
    assert not looks_like("CA: node1 HCA-1:", "x")


def test_names_are_made_printable() -> None:
    fabric = read(star().plain().replace("node02 HCA-1", "node\x1b[31m02 HCA-1"), "x")
    assert "node?[31m02" in {node.host for node in fabric.nodes.values()}


ROW = "CA 1 1 0x00000000c0000001 4x EDR - SW 2 2 0x00000000b0000000 ( '"
PIECES = st.sampled_from([
    '[1]\t"', '"S-', '"H-', "00000000b0000000", "00000000c0000001", '"[1]', '"[300]', "(c1)", ' # "', '" lid 4 4xEDR', "\n", "Switch\t3 ",
    "Ca\t1 ", ROW, "' - '", "' )", " ", "[ext 1]",
])  # fmt: skip


@given(st.one_of(st.text(max_size=300), st.lists(PIECES, max_size=40).map("".join)))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_fabric_or_one_sentence(text: str) -> None:
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
def test_a_damaged_file_is_a_fabric_or_one_sentence(data: st.DataObject) -> None:
    text = star().plain()
    at = data.draw(st.integers(0, len(text)))
    damaged = text[:at] + data.draw(st.text(max_size=20)) + text[at + data.draw(st.integers(0, 60)) :]
    assert len(read(damaged, "x").cables) in (1, 2, 3, 4)


@pytest.mark.parametrize(
    "line", ["[1]" + " " * 990, '[1]\t"H-aa"[1]' + " " * 900, "CA 1 1 0x00000000c0000001 4x EDR - " + " " * 900, "' - '" * 200]
)
def test_long_lines_take_no_time(line: str) -> None:
    with pytest.raises(Unreadable):
        read("\n".join([line] * 16_000), "x")  # some 16 MB: seconds would be a quadratic search
