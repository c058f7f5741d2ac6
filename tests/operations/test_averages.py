"""Averages by brute force: however a library rounds, a right one passes; a rank dropped, counted twice or swapped is seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.data import compare, write_digits
from collbench.operations.dtypes import DTYPES, unrepresentable_average
from collbench.operations.operation import Place
from tests.helpers import make_case

COUNT = 2048
FLOATS = [name for name, dtype in DTYPES.items() if dtype.kind == "float"]


def added(parts: Sequence[NDArray], factor: float) -> NDArray:
    """Each part times the factor, added one after the other; every step is rounded to the type."""
    kind = parts[0].dtype
    scaled = [(part.astype(np.float64) * factor).astype(kind) for part in parts]
    total = scaled[0]
    for part in scaled[1:]:
        total = (total.astype(np.float64) + part.astype(np.float64)).astype(kind)
    return total


def averages(parts: Sequence[NDArray], n: int) -> list[NDArray]:
    """As libraries do: every part times 1/n in the type and then the sum, or the sum and then the division."""
    kind = parts[0].dtype
    share = float(np.array(1 / n).astype(kind))
    return [added(parts, share), added(parts[::-1], share), (added(parts, 1.0).astype(np.float64) / n).astype(kind)]


@pytest.mark.long
@pytest.mark.parametrize("name", FLOATS)
def test_a_right_average_passes_and_a_wrong_one_is_seen(name: str) -> None:
    for n in [n for n in range(2, 65) if not unrepresentable_average(DTYPES[name], n)]:
        case = make_case(count=COUNT, dtype=name, redop="avg")
        place, parts = Place(0, n, COUNT, case), [np.empty(COUNT, DTYPES[name].numpy) for _ in range(n)]
        for rank, part in enumerate(parts):
            write_digits(part, Place(rank, n, COUNT, case))
        for got in averages(parts, n):
            assert compare(ALLREDUCE, place, got) is None, n
        for rank in {0, n // 2, n - 1}:
            others = [part for other, part in enumerate(parts) if other != rank]
            for wrong in (others, [*parts, parts[rank]], [*others, parts[(rank + 1) % n]]):
                assert all(compare(ALLREDUCE, place, got) for got in averages(wrong, n)), (n, rank)
