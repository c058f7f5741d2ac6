"""What disturbed the ranks of a round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from collbench.plugins.hunt import disturbances
from collbench.plugins.hunt.disturbances import Disturbance, largest, monitor_round


def test_the_worst_rank_of_a_pair_counts() -> None:
    ranks = [Disturbance(0.1, False), Disturbance(0.4, True), Disturbance(0.2, False)]
    assert largest(ranks, [0, 1]) == Disturbance(0.4, True)
    assert largest(ranks, [0, 2]) == Disturbance(0.2, False)
    assert largest(ranks, [7]) == Disturbance(0.0, False)


def of_round(monkeypatch: pytest.MonkeyPatch, waited: list[int | None], probed: list[float | None]) -> Disturbance:
    """A round of 1000 ns, with the kernel's counter and the state probe before and after it."""
    clock = iter([0, 1000])
    monkeypatch.setattr(disturbances.time, "monotonic_ns", lambda: next(clock))
    monkeypatch.setattr(disturbances, "_waited_ns", lambda: waited.pop(0))
    world: Any = SimpleNamespace(gather=lambda mine, what: [mine])
    probe: Any = SimpleNamespace(measure=lambda: probed.pop(0))
    with monitor_round(world, probe) as ranks:
        pass
    return largest(ranks, [0])


@pytest.mark.parametrize(
    ("waited", "share"), [([100, 350], 0.25), ([100, 100], 0.0), ([0, 5000], 1.0), ([None, None], 0.0), ([500, 100], 0.0)]
)
def test_the_share_of_the_time_that_a_rank_waited_for_a_cpu(
    monkeypatch: pytest.MonkeyPatch, waited: list[int | None], share: float
) -> None:
    assert of_round(monkeypatch, waited, [1e-7, 1e-7]) == Disturbance(share, False)


def test_a_state_probe_that_changes_is_a_flip(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_round(monkeypatch, [0, 0], [1e-7, 3e-7]).flipped
    assert not of_round(monkeypatch, [0, 0], [1e-7, None]).flipped
