"""OpenMetrics of a verdict, as two parsers read it back."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as as_openmetrics
from prometheus_client.parser import text_string_to_metric_families as as_text

from collbench.gating.verdict import EXIT_CODES, Verdict
from collbench.report.verdict_formats import openmetrics
from tests.gate.verdicts import regression, verdict
from tests.report.verdict.hostile import hostile


def samples(given: Verdict) -> dict[str, list[tuple[dict[str, str], float]]]:
    """By name, without the prefix, the labels and values that both parsers find."""
    text = openmetrics(given)
    found = {family.name: [(each.labels, each.value) for each in family.samples] for family in as_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert {family.name: [(each.labels, each.value) for each in family.samples] for family in as_text(text)} == found
    return {name.removeprefix("collbench_gate_"): actual for name, actual in found.items()}


@pytest.mark.parametrize("result", EXIT_CODES)
def test_one_of_the_results_is_1(result: str) -> None:
    actual = {labels["result"]: value for labels, value in samples(verdict(result=result))["result"]}
    assert actual == {**dict.fromkeys(("passed", "regression", "no_verdict", "wrong_data"), 0.0), result.replace(" ", "_"): 1.0}


def test_a_regression_has_its_groups_and_suspects_and_what_is_unknown_no_sample() -> None:
    found = samples(regression())
    states = {(labels["operation"], labels["backend"]): labels["state"] for labels, value in found["group_state"] if value}
    assert states == {("allreduce", "mpi"): "confirmed", ("allreduce", "nccl"): "passed", ("broadcast", "mpi"): "no_verdict"}
    large = {"backend": "mpi", "operation": "allreduce", "size_class": "large"}
    assert found["group_time_ratio"][:3] == [({**large, "strike": str(n)}, factor) for n, factor in enumerate((1.03, 1.0, 1.0), 1)]
    assert [value for _, value in found["group_limit_ratio"]] == [1.01, 1.01]
    labels, value = found["suspicion_time_ratio"][0]
    named = {name: labels[name] for name in ("strike", "size_bytes", "placing", "state")}
    assert (value, named) == (1.12, {"strike": "1", "size_bytes": "67108864", "placing": "out of place", "state": "confirmed"})
    counts = {labels["state"]: value for labels, value in found["suspicions"]}
    assert counts == {"confirmed": 2, "suspected": 0, "accepted": 1, "cleared": 1}
    assert [value for _, value in found["of_ceiling_ratio"]] == [0.71, 0.705, 0.72]
    assert found["of_ceiling_wanted_ratio"][0][1] == 0.8
    assert found["unannounced_changes"] == [({}, 1)]
    assert found["judged_timestamp_seconds"] == [({}, 1795219200)]
    times = samples(regression())["suspicion_time_ratio"]
    assert [value for labels, value in times if labels["name"] == "allreduce 8 B nccl"] == [1.04]


def test_untrusted_text_is_a_label_and_no_metric() -> None:
    found = samples(hostile(rows=3))
    assert found["result"][1] == ({"result": "regression"}, 1)
    assert all(set(labels) <= {"kind", "name", "state", "strike", "operation"} for labels, _ in found["suspicion_time_ratio"])
