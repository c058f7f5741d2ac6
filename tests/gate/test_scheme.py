"""Classes by size, groups, and medians over what is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.gate.baseline import CaseGroup, Scheme, known_median, size_class


@pytest.mark.parametrize(
    ("size", "name"),
    [(0, "small"), (16 << 10, "small"), ((16 << 10) + 1, "mid"), (1 << 20, "mid"), ((1 << 20) + 1, "large")],
)
def test_size_classes_have_the_bounds_of_the_protocol(size: int, name: str) -> None:
    assert size_class(size) == name


def test_the_text_of_a_group() -> None:
    assert str(CaseGroup("nccl", "allreduce", "small")) == "allreduce on nccl, small messages"


def test_members_and_medians_of_groups_that_are_mixed() -> None:
    a, b = CaseGroup("mpi", "allreduce", "small"), CaseGroup("mpi", "allreduce", "large")
    scheme = Scheme.of_cases([a, b, a, b, a])
    assert [cases.tolist() for cases in scheme.members] == [[0, 2, 4], [1, 3]]
    values = np.array([1.0, 10.0, 3.0, np.nan, 2.0])
    assert scheme.medians(values).tolist() == [2.0, 10.0]
    assert scheme.means(values).tolist() == [2.0, 10.0]


@given(st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), max_size=9))
@settings(max_examples=60, deadline=None)
def test_the_known_median_is_numpys_over_what_is_known(values: list[float]) -> None:
    array = np.array(values, dtype=np.float64)
    known = array[np.isfinite(array)]
    found = known_median(array)
    assert np.isnan(found) if not len(known) else float(found) == pytest.approx(float(np.median(known)))
