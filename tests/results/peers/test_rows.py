"""What an output and the user say of a run: agreed, or refused."""

from __future__ import annotations

import pytest

from collbench.errors import UsageError
from collbench.results.peers.peer import Given
from collbench.results.peers.rows import agreed, is_size, is_time, ranks_and_nodes


@pytest.mark.parametrize(("given", "told", "known"), [(4, None, 4), (None, 4, 4), (4, 4, 4)])
def test_one_of_the_two_is_enough(given: int | None, told: int | None, known: int) -> None:
    assert agreed("ranks", given, told, "a.log") == known


@pytest.mark.parametrize(
    ("given", "told", "why"),
    [
        (4, 8, "a.log is of 8 ranks, and --ranks says 4"),
        (8, 4, "a.log is of 4 ranks, and --ranks says 8"),
        (None, None, "a.log does not say how many ranks it ran on"),
    ],
)
def test_a_contradiction_is_refused(given: int | None, told: int | None, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        agreed("ranks", given, told, "a.log")


def test_there_are_no_more_nodes_than_ranks() -> None:
    assert ranks_and_nodes(Given(nodes=2), 4, None, "a.log") == (4, 2)
    assert ranks_and_nodes(Given(), 4, None, "a.log") == (4, None)
    with pytest.raises(UsageError, match="4 ranks cannot be on 5 nodes"):
        ranks_and_nodes(Given(nodes=5), 4, None, "a.log")


def test_times_and_sizes_that_can_be() -> None:
    assert is_time(1e-6) and not is_time(0.0) and not is_time(float("nan")) and not is_time(float("inf"))
    assert is_size(1) and not is_size(0) and not is_size(-1)
