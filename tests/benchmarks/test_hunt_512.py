"""That the benchmark of the hunt names who is sick and prints what it must. Times are not asserted: this machine may be busy."""

from __future__ import annotations

import pytest

from tests.benchmarks import hunt_512


@pytest.mark.parametrize("method", hunt_512.METHODS)
def test_who_is_sick_is_named_within_the_promise(method: str) -> None:
    found = hunt_512.one(0, method, nodes=64)
    assert found["named"] == hunt_512.sick(64)
    assert found["rounds"] <= found["promised"]
    assert found["analysis_s"] > 0


@pytest.mark.long
def test_it_prints_rounds_times_and_names() -> None:
    outcome = hunt_512.measure(1)
    assert [figure.cells()[0] for figure in outcome.figures] == [
        "pairs: most rounds of a hunt",
        "pairs: analysis of a hunt",
        "pairs: exactly those confirmed that are sick",
        "groups: most rounds of a hunt",
        "groups: analysis of a hunt",
        "groups: exactly those confirmed that are sick",
        "command: most rounds of a hunt",
        "command: exactly those confirmed that are sick",
    ]
    verdicts = {figure.cells()[0]: figure.cells()[-1] for figure in outcome.figures if "analysis" not in figure.cells()[0]}
    assert set(verdicts.values()) == {"met"}, verdicts
