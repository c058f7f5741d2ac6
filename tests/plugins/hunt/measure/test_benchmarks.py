"""That the benchmarks of hunts and matrices of pairs run and print what they must. Times are not asserted: this machine may be busy."""

import pytest

from tools.benchmarks import hunt_512, pairs_1024, report_html


@pytest.mark.parametrize("method", hunt_512.METHODS)
def test_faulty_nodes_are_confirmed_within_the_estimate(method):
    found = hunt_512.one(0, method, nodes=64)
    assert found["named"] == hunt_512.faulty(64)
    assert found["rounds"] <= found["promised"]
    assert found["analysis_s"] > 0


@pytest.mark.long
def test_a_hunt_prints_rounds_times_and_names():
    outcome = hunt_512.measure(1)
    what = ("most rounds of a hunt", "analysis of a hunt", "exactly the faulty ones confirmed")
    methods = [f"{method}: {each}" for method in ("pairs", "groups", "command") for each in what]
    assert outcome.names() == [each for each in methods if each != "command: analysis of a hunt"]
    verdicts = {figure.cases()[0]: figure.cases()[-1] for figure in outcome.figures if "analysis" not in figure.cases()[0]}
    assert set(verdicts.values()) == {"met"}, verdicts


def test_slow_places_are_named():
    found = pairs_1024.one(ranks=64)
    assert found["pairs"] == 2016
    assert sorted(found["named"]) == sorted(pairs_1024.slow(64))
    assert found["peak_bytes"] > 0


@pytest.mark.long
def test_all_pairs_print_times_memory_and_names():
    outcome = pairs_1024.measure(1)
    assert outcome.names() == [
        "schedule, analysis and naming", "of it: the schedule", "peak memory, with the measured rounds",
        "exactly those named that are slow",
    ]  # fmt: skip
    assert outcome.figures[-1].cases()[1] == "1 of 1"
    assert outcome.raw[0]["pairs"] == 523_776


@pytest.mark.long
def test_pages_print_times_memory_and_sizes():
    outcome = report_html.measure(1, ranks=64, operations=("allreduce",))
    assert outcome.names() == [
        "full sweep", "full sweep, its page", "full sweep, peak memory", "matrix of 64 ranks", "matrix of 64 ranks, peak memory",
        "matrix of 64 ranks, its page",
    ]  # fmt: skip
    assert outcome.figures[1].cases()[-1] == "met"
    assert [each["what"] for each in outcome.raw] == ["sweep", "matrix"]
