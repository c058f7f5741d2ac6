"""The state of each group: its worst case, what is missing, what its suspicions are."""

from __future__ import annotations

import numpy as np
import pytest

from collbench.analysis.launches import case_of
from collbench.gate.allocation import COLUMNS
from collbench.gate.baseline import scheme_of
from collbench.gate.judge import group_states
from collbench.gate.rule import exceed, learn
from tests.gate.verdicts import suspicion
from tests.results.rows import make_row

SIZES = (8, 64 << 20, 128 << 20, 256 << 20)
CELLS = [case_of(make_row(size)) for size in SIZES]
USUAL = np.log([1e-6, 1e-3, 2e-3, 4e-3])


def states(factors: list[float], suspicions: tuple[str, ...] = (), undecided: list[bool] | None = None) -> dict[str, object]:
    """By class of sizes the group's state, for an allocation slower by these factors; NaN: not measured. The third case scatters."""
    history = USUAL + np.array([[0.0, 0.0, 0.1 * (-1) ** number, 0.0] for number in range(6)])
    limits = learn(history, scheme_of(CELLS))
    excess = exceed(limits, (USUAL + np.log(factors))[None, :])
    case = dict(zip(COLUMNS, CELLS[1], strict=True))
    found = group_states(
        limits, excess, CELLS, [suspicion(state, case=case) for state in suspicions], None if undecided is None else np.array(undecided)
    )
    return {each.size_class: each for each in found}


def test_the_worst_case_is_the_one_nearest_to_its_own_limit() -> None:
    large = states([1.0, 1.05, 1.08, 1.0])["large"]
    assert (large.worst, large.worst_factor, large.cases, large.missing) == ("allreduce 64 MiB nccl", pytest.approx(1.05), 3, 0)


def test_a_group_without_a_figure_has_no_worst_case() -> None:
    large = states([1.0, np.nan, np.nan, np.nan])["large"]
    assert (large.worst, large.worst_factor, large.missing, large.factors, large.state) == (None, None, 3, (None,), "no verdict")


@pytest.mark.parametrize(
    ("factors", "suspicions", "undecided", "state"),
    [
        ([1.0] * 4, (), None, "passed"),
        ([1.0, np.nan, 1.0, 1.0], (), None, "no verdict"),
        ([1.0] * 4, (), [False, False, True, False], "no verdict"),
        ([1.0] * 4, (), [True, False, False, False], "passed"),
        ([1.0] * 4, ("suspected",), None, "suspected"),
        ([1.0, np.nan, 1.0, 1.0], ("suspected", "confirmed"), None, "confirmed"),
        ([1.0] * 4, ("cleared",), None, "passed"),
    ],
)
def test_the_state_of_a_group(factors: list[float], suspicions: tuple[str, ...], undecided: list[bool] | None, state: str) -> None:
    assert states(factors, suspicions, undecided)["large"].state == state
