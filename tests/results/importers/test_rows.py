"""Facts of a run from its output and from the user: merged if they agree, else rejected."""

from __future__ import annotations

import pytest

from collbench.errors import UsageError
from collbench.results.importers.importer import Contradiction, UserInput
from collbench.results.importers.rows import JobExtent, is_size, is_time, ranks_and_nodes


@pytest.mark.parametrize(("given", "expected", "known"), [(4, None, 4), (None, 4, 4), (4, 4, 4)])
def test_one_of_the_two_is_enough(given: int | None, expected: int | None, known: int) -> None:
    assert ranks_and_nodes(UserInput(ranks=given), expected, None, "a.log") == JobExtent(known, None)


@pytest.mark.parametrize(("given", "expected"), [(4, 8), (8, 4)])
def test_what_the_output_reports_is_kept_and_the_contradiction_noted(given: int, expected: int) -> None:
    assert ranks_and_nodes(UserInput(ranks=given), expected, None, "a.log") == JobExtent(
        expected, None, (Contradiction("a.log", "--ranks", str(given), f"{expected} ranks"),)
    )


def test_unknown_ranks_are_refused() -> None:
    with pytest.raises(UsageError, match="number of ranks"):
        ranks_and_nodes(UserInput(), None, None, "a.log")


def test_there_are_no_more_nodes_than_ranks() -> None:
    assert ranks_and_nodes(UserInput(nodes=2), 4, None, "a.log") == JobExtent(4, 2)
    assert ranks_and_nodes(UserInput(), 4, None, "a.log") == JobExtent(4, None)
    with pytest.raises(UsageError, match=r"4 ranks .*5 nodes"):
        ranks_and_nodes(UserInput(nodes=5), 4, None, "a.log")


def test_times_and_sizes_that_can_be() -> None:
    assert is_time(1e-6) and not is_time(0.0) and not is_time(float("nan")) and not is_time(float("inf"))
    assert is_size(1) and not is_size(0) and not is_size(-1)
