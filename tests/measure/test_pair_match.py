"""The exit code of a pairs launch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collbench.measure.request import Request
from collbench.measure.tasks.places import PairsRequest
from collbench.measure.tasks.rounds import PairsTask
from collbench.operations.sweep import Sweep
from collbench.results.rounds import PairRound

SWEEP = Sweep((), None, ())


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
    rounds = of_wrong(*wrong)
    rounds = rounds if measured else replace(rounds, na=("no such pair",) * len(wrong))
    task = PairsTask(PairsRequest(Request("pairs", SWEEP, ("simulated",))), None, result=result)
    assert task.exit_code([rounds]) == code
