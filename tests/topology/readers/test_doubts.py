"""Doubts of one kind are few, and the rest is counted."""

from collbench.topology.readers.doubts import few


def test_a_few_doubts_stay_and_many_are_counted() -> None:
    assert few([]) == () and few(["a", "b"]) == ("a", "b")
    assert few([str(number) for number in range(100)])[7:] == (
        "7",
        "92 more doubts of this kind: the source is damaged, or not of one machine",
    )
