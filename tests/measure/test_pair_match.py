"""The exit code of a pairs launch."""

from __future__ import annotations

import pytest

from collbench.measure.tasks.rounds import _pairs_exit_code
from collbench.results.rounds import PairRound


def of_wrong(*wrong: int | None) -> PairRound:
    n = len(wrong)
    nothing, none = (None,) * n, ((None, None),) * n
    return PairRound(0, ((0, 1),) * n, nothing, none, nothing, none, nothing, none, wrong, nothing)


@pytest.mark.parametrize(
    ("wrong", "measured", "result", "code"),
    [
        ((0, 0), 2, "nobody", 0),
        ((None, None), 2, "nobody", 0),
        ((0, 0), 2, "confirmed", 1),
        ((0, 0), 2, "no verdict", 3),
        ((0, 5), 2, "nobody", 4),
        ((0, 5), 2, "confirmed", 4),
        ((None, None), 0, "nobody", 2),
    ],
)
def test_the_exit_code(wrong: tuple[int | None, ...], measured: int, result: str, code: int) -> None:
    assert _pairs_exit_code([of_wrong(*wrong)], measured, result) == code
