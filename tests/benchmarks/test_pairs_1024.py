"""The benchmark of all pairs names the slow ranks and pairs and prints its figures. Times are not asserted: this machine may be busy."""

from __future__ import annotations

import pytest

from benchmarks import pairs_1024


def test_slow_places_are_named() -> None:
    found = pairs_1024.one(ranks=64)
    assert found["pairs"] == 2016
    assert sorted(found["named"]) == sorted(pairs_1024.slow(64))
    assert found["peak_bytes"] > 0


@pytest.mark.long
def test_it_prints_times_memory_and_names() -> None:
    outcome = pairs_1024.measure(1)
    assert [figure.cases()[0] for figure in outcome.figures] == [
        "schedule, analysis and naming",
        "of it: the schedule",
        "peak memory, with the measured rounds",
        "exactly those named that are slow",
    ]
    assert outcome.figures[-1].cases()[1] == "1 of 1"
    assert outcome.raw[0]["pairs"] == 523_776
