"""What a report says of runs of pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from collbench.analysis.concerns import FINDING, NOTE, WRONG, Concern, concerns
from collbench.plugins.hunt.kind import findings_of
from collbench.plugins.hunt.pairs import PairEffects
from tests.plugins.hunt.pair_matrices import SyntheticMatrix


def test_slow_places_and_pairs_with_wrong_data_are_concerns() -> None:
    slowed = SyntheticMatrix(8, seed=1).slow(2).matrix()
    wrong = np.zeros((8, 8))
    wrong[1, 3] = wrong[3, 1] = 5
    effect = PairEffects(replace(slowed, wrong=wrong))
    found = concerns([], [], [], findings_of(effect))
    assert found[0] == Concern(WRONG, f"wrong data between {slowed.places[1]} and {slowed.places[3]}: 5 elements are wrong")
    assert (found[1].severity, found[1].what.split()[0]) == (FINDING, slowed.places[2])
    assert {each.severity for each in found[2:]} <= {NOTE}
