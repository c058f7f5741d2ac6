"""The benchmarks of the control plane measure what they claim. Times are not asserted: this machine may be busy."""

from __future__ import annotations

import pytest

from benchmarks import control_5000, control_fuzz, heartbeat_8b


@pytest.mark.in_turn
def test_simulated_nodes_join_and_gather() -> None:
    outcome = control_5000.measure(1, nodes=40, values=20_000)
    (one,) = outcome.raw
    assert (one["nodes"], one["bytes_each"], one["complete"]) == (40, 160_000, True)
    assert [figure.cases()[0] for figure in outcome.figures] == [
        "join, gather and decide",
        "of it: join",
        "of it: gather",
        "peak memory of rank 0",
        "processor time of rank 0",
        "sums that are right",
    ]


@pytest.mark.in_turn
def test_mutated_messages_are_refused_or_read() -> None:
    outcome = control_fuzz.measure(2000)
    assert [(one["what"], one["messages"]) for one in outcome.raw] == [
        ("mutated messages", 2000),
        ("at a socket, with the key", 100),
        ("at a socket, raw bytes", 5),
    ]
    assert all(0 < one["refused"] <= one["messages"] for one in outcome.raw)


@pytest.mark.long
def test_heartbeats_are_switched_off_and_on() -> None:
    outcome = heartbeat_8b.measure(1, iterations=50)
    assert [one["beat_s"] for one in outcome.raw] == [1.0, 0.01]
    assert all(one["on_p50_s"] > 0 < one["off_p50_s"] for one in outcome.raw)
