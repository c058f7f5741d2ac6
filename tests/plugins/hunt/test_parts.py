"""Rules that prevent suspects caused by the structure of the network, each tested separately."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace
from typing import cast

import pytest

from collbench.plugins.hunt import strategy
from collbench.plugins.hunt.candidates import Candidate
from collbench.plugins.hunt.crosscheck import CrossCheck
from collbench.plugins.hunt.judging import many_as_slow
from collbench.plugins.hunt.protocol import CONFIRMED, INCONCLUSIVE, PAIRS, GroupFigure, HuntLog, RoundRequest, RoundResult, Suspect
from collbench.plugins.hunt.trials import SENDS, Trial


def measured(slow: int, n: int = 12) -> HuntLog:
    """Every pair of n places, of which so many are half as fast; those of place 0 are fast."""
    pairs = list(combinations(range(n), 2))
    halved = [pair for pair in pairs if 0 not in pair][:slow]
    figures = tuple(GroupFigure(speed, speed) for speed in (5e9 if pair in halved else 1e10 for pair in pairs))
    return HuntLog(tuple(map(str, range(n))), [(RoundRequest(PAIRS, tuple(pairs), "all"), RoundResult(figures))])


@pytest.mark.parametrize(("slow", "state"), [(0, CONFIRMED), (16, CONFIRMED), (17, INCONCLUSIVE), (40, INCONCLUSIVE)])
def test_a_place_no_slower_than_30_percent_of_other_pairs_is_not_a_suspect(slow: int, state: str) -> None:
    (found,) = strategy.demote_common([Suspect("node", (0,), CONFIRMED, 0.5, partners=(1, 2))], measured(slow), lambda a, b: True)
    assert found.state == state  # of 55 pairs of others
    assert (state == CONFIRMED) == (not found.evidence)


def paths(*ends: tuple[int, int]) -> CrossCheck:
    cases = [SimpleNamespace(places=pair, suspect=lambda names, pair=pair: Suspect("path", pair, CONFIRMED, 0.5)) for pair in ends]
    return cast("CrossCheck", SimpleNamespace(found=SimpleNamespace(deferred=()), places=[], paths=cases))


@pytest.mark.parametrize(
    ("ends", "state"),
    [
        (((0, 1), (2, 3), (4, 5)), CONFIRMED),
        (((0, 1), (2, 3), (4, 5), (6, 7)), INCONCLUSIVE),
        (((0, 1), (2, 3), (4, 5), (1, 7)), CONFIRMED),
    ],
    ids=["few", "many", "with a common place"],
)
def test_many_paths_without_a_common_place_are_no_exceptions(ends: tuple[tuple[int, int], ...], state: str) -> None:
    assert {each.state for each in strategy.suspects(paths(*ends), [str(place) for place in range(16)])} == {state}


@pytest.mark.parametrize(
    ("control_slowdowns", "alike", "many"),
    [((0.0,) * 10, True, False), ((0.7,) * 3 + (0.0,) * 7, True, False), ((0.7,) * 4 + (0.0,) * 6, True, True), ((0.0,) * 10, False, True)],
)
def test_slow_controls_or_controls_on_other_paths_confirm_no_suspect(control_slowdowns: tuple[float, ...], alike: bool, many: bool) -> None:
    candidate = Candidate((0,), (SENDS,), 0.7, 0.05, 0.01, 2.0, 0.01, ())
    trial = Trial(
        0,
        1,
        healthy=True,
        controls=len(control_slowdowns),
        same_kind=alike,
        log_slowdowns={SENDS: 0.7},
        noise={SENDS: 0.01},
        control_log_slowdowns={SENDS: control_slowdowns},
    )
    assert many_as_slow(candidate, [trial]) is many
