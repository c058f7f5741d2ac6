"""hwloc's sets of CPUs and nodes, and lists as the kernel writes them."""

from collbench.topology.readers.hwloc_xml import bits, ranges


def test_sets_and_lists() -> None:
    assert bits("0x00000003") == {0, 1} and bits("0x1,,0x00000001") == {0, 64} and bits("0x0") == frozenset()
    assert bits("0xf...f") is None and bits("") is None and bits(None) is None and bits("0x" + "f" * 9) is None
    assert ranges(frozenset({0, 1, 2, 5, 7, 8})) == "0-2,5,7-8" and ranges(frozenset()) is None
