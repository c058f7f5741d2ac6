"""A schedule that crosses every cable of the fabric file, under routings that spread traffic, with each host once in a round."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.machine.readers.rdma_tools import read
from collbench.plugins.hunt.cover import Routes, attached, cover, cover_links, packed
from tests.machine.fabric_texts import FAT_TREE, TINY, fat_tree, star


def nodes(n):
    return [f"node{number:02d}" for number in range(1, n + 1)]


def ways_of(found, fabric, names, routing=0):
    """Return the ways that the pairs cross in both directions, from the routes of the fabric."""
    ports = attached(fabric)
    rails = len(ports[names[0]])
    routes = [Routes(fabric, [ports[name][rail] for name in names], routing + 1) for rail in range(rails)]
    ways = set()
    for a, b in [way for pair in found.pairs for way in (pair, pair[::-1])]:
        for rail in range(rails):
            source, target = ports[names[a]][rail], ports[names[b]][rail]
            ways |= {source.up, *(routes[rail].between(source.leaf, target, routing) or ()), target.down}
    return ways


@pytest.mark.parametrize("routing", range(8))
def test_every_cable_of_a_fat_tree_is_crossed_both_ways(routing):
    fabric = read(fat_tree().plain(), "x")
    found = cover(fabric, nodes(16))
    cables = [cable for cable in fabric.cables if all("cf000000" not in guid for guid, _ in cable.ends)]  # no host's adapter
    assert ways_of(found, fabric, nodes(16), routing) == {way for cable in cables for way in (cable.ends, cable.ends[::-1])}
    assert (found.links, found.uncovered, found.notes) == (len(cables), (), ())


def test_few_rounds_of_disjoint_pairs_cross_all_cables_and_the_sentence_counts_them():
    found = cover_links(FAT_TREE, nodes(16))
    assert 0.9 <= found.otherwise < 1
    assert found.sentence().startswith(f"{len(found.pairs)} pairs in {len(found.rounds)} rounds cross 32 of 32 cables")
    assert "16 routings" in found.sentence() and f"{found.otherwise:.0%}" in found.sentence()
    assert len(found.rounds) <= 4
    assert all(a < b for a, b in found.pairs)
    assert len(set(found.pairs)) == len(found.pairs)
    for pairs in found.rounds:
        places = [place for pair in pairs for place in pair]
        assert len(places) == len(set(places))


def test_only_cables_between_hosts_of_the_job_count():
    fabric = read(fat_tree().plain(), "x")
    under_one = cover(fabric, nodes(4))
    assert (under_one.links, under_one.uncovered) == (4, ())
    under_two = cover(fabric, ["node01", "node02", "node03", "node04", "node09", "node10", "node11", "node12"])
    assert (under_two.links, under_two.uncovered) == (8 + 2 * 4, ())
    found = cover_links(TINY, nodes(3))
    assert (len(found.pairs), len(found.rounds), found.links, found.uncovered, found.routings) == (2, 2, 3, (), 16)
    assert {place for pair in found.pairs for place in pair} == {0, 1, 2}
    assert found.leaf_of == ("MF0;switch1:MQM8700/U1",) * 3
    found = cover(read(fat_tree().plain(), "x"), ["node01", "node05"])
    assert found.pairs == ((0, 1),)
    assert found.links == 2 + 2 * 4
    assert len(found.uncovered) == 8  # under another routing it is another one of the four
    assert found.uncovered[0] == "MF0;spine1:MQM8700/U1 port 1 - MF0;leaf1:MQM8700/U1 port 5"
    assert "cross 2 of 10 cables" in found.sentence()
    assert found.sentence().endswith(" and 2 more")


def test_places_are_numbered_as_their_names_are_given_with_or_without_domain_each_host_once():
    names = nodes(16)
    Random(3).shuffle(names)
    found = cover_links(FAT_TREE, names)
    assert found.leaf_of[names.index("node01")] == "MF0;leaf1:MQM8700/U1"
    assert found.leaf_of[names.index("node16")] == "MF0;leaf4:MQM8700/U1"
    assert found.uncovered == ()
    found = cover_links(FAT_TREE, [f"{name.upper()}.cluster.example" for name in nodes(16)])
    assert (found.links, found.uncovered, found.notes) == (32, (), ())
    found = cover_links(TINY, ["node01", "node01", "node02"])
    assert found.pairs == ((0, 2),)
    assert found.leaf_of == ("MF0;switch1:MQM8700/U1",) * 3


def test_hosts_outside_the_file_or_without_a_path_and_slower_cables_are_noted():
    found = cover_links(FAT_TREE, ["login1", *nodes(16), *(f"new{number}" for number in range(9))])
    (note,) = found.notes
    assert "login1, new0, new1, new2, new3, new4 and 4 more" in note
    assert found.leaf_of[0] == ""
    assert 0 not in {place for pair in found.pairs for place in pair}
    assert found.uncovered == ()
    two = star(2).plain() + star(3).plain().replace("b0000000", "b0000009").replace("c000000", "c000001").replace("node0", "other")
    found = cover(read(two, "x"), ["node01", "node02", "other1", "other2", "other3"])
    assert (found.links, found.uncovered, found.notes) == (5, (), ())
    alone = cover(read(two, "x"), ["node01", "node02", "other1"])
    assert len(alone.notes) == 1 and alone.notes[0].startswith("other1: ")
    assert (alone.pairs, alone.links) == (((0, 1),), 2)
    cable = '"S-00000000b0000001"[6]\t\t# '
    text = fat_tree().plain().replace(f'{cable}"MF0;leaf2:MQM8700/U1" lid 8 4xHDR', f'{cable}"x" lid 8 2xHDR')
    (note,) = cover(read(text, "x"), nodes(16)).notes
    assert note.endswith("MF0;spine1:MQM8700/U1 port 4 - MF0;leaf2:MQM8700/U1 port 6 (2xHDR)")


def test_rails_are_each_covered():
    fabric = read(fat_tree(rails=2).plain(), "x")
    found = cover(fabric, nodes(16))
    assert (found.links, found.uncovered) == (64, ())
    assert len(ways_of(found, fabric, nodes(16))) == 128
    assert len(found.notes) == 1 and "2 ports" in found.notes[0]


def test_files_of_another_cluster_or_too_large_are_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(UsageError) as refused:
        cover_links(TINY, ["a1", "a2"])
    assert all(value in str(refused.value) for value in (f"'{TINY}'", "(a1, a2)", "node01, node02, node03"))
    with pytest.raises(UsageError, match=r"\(a1, node02\)"):
        cover_links(TINY, ["a1", "node02"])
    (tmp_path / "nameless").write_text(star().plain().replace("node0", "MT4119 Mellanox Technologies "))
    with pytest.raises(UsageError, match="adapter"):
        cover_links(tmp_path / "nameless", ["node01", "node02"])
    monkeypatch.setattr("collbench.plugins.hunt.cover.MOST_STEPS", 100)
    with pytest.raises(UsageError, match=r"^fabric file '.*16 ports"):
        cover_links(FAT_TREE, nodes(16))


def test_512_hosts_take_three_rounds_into_which_pairs_are_packed():
    assert packed([(0, 1), (1, 2), (2, 3), (0, 3)]) == (((0, 1), (2, 3)), ((1, 2), (0, 3)))
    assert packed([]) == ()
    fabric = read(fat_tree(16, 32, 8, 1).plain(), "x")
    found = cover(fabric, [f"node{number:02d}" for number in range(1, 513)])
    assert (found.links, found.uncovered, found.routings) == (512 + 16 * 8, (), 8)
    assert len(found.rounds) <= 3


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_a_damaged_fabric_is_covered_in_part_or_rejected(data):
    lines = fat_tree(3, 2, 2, 2, rails=2).plain().splitlines()
    kept = [line for line in lines if data.draw(st.integers(0, 9)) < 8]
    old, new = data.draw(st.sampled_from([("", ""), ("b0000001", "b0000000"), ("a0", "c0")]))
    text = "\n".join(kept).replace(old, new)
    try:
        fabric = read(text, "x")
        found = cover(fabric, nodes(6))
    except UsageError as refused:
        assert "\n" not in str(refused)
        return
    assert all(0 <= a < b < 6 for a, b in found.pairs)
    assert len(found.uncovered) <= found.links
    assert 0 <= found.otherwise <= 1
    assert sum(map(len, found.rounds)) == len(found.pairs)
