"""The rate of a memory copy, from samples of several copies each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collbench.measure import references
from tests.helpers import make_case


@pytest.mark.parametrize(("size", "once_s"), [(4096, 1e-6), (64, 1e-8), (1 << 20, 1e-3)])
def test_a_rate_is_that_of_one_copy_however_many_a_sample_holds(monkeypatch: pytest.MonkeyPatch, size: int, once_s: float) -> None:
    batches = []

    class Loop:
        def __init__(self, timed: Any) -> None:
            pass

        def run(self, n: int, batch: int = 1) -> Any:
            batches.append(batch)
            return np.full((1, n), batch * once_s)

    monkeypatch.setattr(references, "Loop", Loop)
    world: Any = SimpleNamespace(rank=0, allgather=lambda value, what: [value])
    found = references._rate(world, make_case(count=size // 4, redop=None), "copy", 1.0)
    assert (found.value, found.low, found.high) == pytest.approx((size / once_s,) * 3)
    assert batches[-1] == max(1, int(1e-5 / once_s))
