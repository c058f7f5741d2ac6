"""The verdict on interference: only what the intervals show, and never with too few blocks or on shared cores."""

import numpy as np
import pytest

from collbench.plugins.load.interference import LoadInconclusive, judge, quantiles_of


def measured(factor: float, pairs: int = 8, spread: float = 0.01, samples: int = 400) -> tuple[list[np.ndarray], list[np.ndarray]]:
    random = np.random.default_rng(pairs)
    off = [1e-5 * np.exp(spread * random.normal(size=samples)) for _ in range(pairs)]
    return off, [factor * each for each in [1e-5 * np.exp(spread * random.normal(size=samples)) for _ in range(pairs)]]


def test_a_factor_is_interference_with_its_value_unless_it_is_negligible() -> None:
    quantiles = quantiles_of(*measured(2.0))
    assert judge(quantiles, 8, crowded=False) == ("interference", None)
    factor = quantiles["p50"].factor
    assert factor.value == pytest.approx(2.0, rel=0.01) and factor.low is not None and factor.low > 1.9
    assert quantiles["p99"].factor.value == pytest.approx(2.0, rel=0.02)
    assert quantiles["p99_9"].factor.value is not None and quantiles["p99_9"].factor.low is None  # 3,200 samples: one group
    assert judge(quantiles_of(*measured(1.0)), 8, crowded=False)[0] == "no interference"
    quantiles = quantiles_of(*measured(1.001, spread=1e-5))
    assert quantiles["p50"].factor.low is not None and quantiles["p50"].factor.low > 1
    assert judge(quantiles, 8, crowded=False)[0] == "no interference"


@pytest.mark.parametrize(
    ("pairs", "crowded", "spread", "why"), [(3, False, 0.01, "blocks"), (8, True, 0.01, "cores"), (4, False, 3.0, "wide")]
)
def test_what_cannot_be_told_is_inconclusive(pairs: int, crowded: bool, spread: float, why: str) -> None:
    verdict, reason = judge(quantiles_of(*measured(1.0, pairs, spread, 12)), pairs, crowded)
    assert verdict == "inconclusive" and isinstance(reason, LoadInconclusive) and reason.why == why
