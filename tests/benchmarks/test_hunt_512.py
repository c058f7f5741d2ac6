"""The benchmark of the hunt confirms the faulty nodes and prints its figures. Times are not asserted: this machine may be busy."""

from __future__ import annotations

import pytest

from benchmarks import hunt_512


@pytest.mark.parametrize("method", hunt_512.METHODS)
def test_faulty_nodes_are_confirmed_within_the_estimate(method: str) -> None:
    found = hunt_512.one(0, method, nodes=64)
    assert found["named"] == hunt_512.faulty(64)
    assert found["rounds"] <= found["promised"]
    assert found["analysis_s"] > 0


@pytest.mark.long
def test_it_prints_rounds_times_and_names() -> None:
    outcome = hunt_512.measure(1)
    assert [figure.cases()[0] for figure in outcome.figures] == [
        "pairs: most rounds of a hunt",
        "pairs: analysis of a hunt",
        "pairs: exactly the faulty ones confirmed",
        "groups: most rounds of a hunt",
        "groups: analysis of a hunt",
        "groups: exactly the faulty ones confirmed",
        "command: most rounds of a hunt",
        "command: exactly the faulty ones confirmed",
    ]
    verdicts = {figure.cases()[0]: figure.cases()[-1] for figure in outcome.figures if "analysis" not in figure.cases()[0]}
    assert set(verdicts.values()) == {"met"}, verdicts
