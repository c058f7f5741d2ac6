"""The verdict on interference: only what the intervals show, and never with too few blocks or on shared cores."""

import numpy as np
import pytest
from numpy.typing import NDArray

from collbench.plugins.load import interference
from collbench.plugins.load.interference import block_ratio, judge, quantiles_of


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
def test_too_little_evidence_is_inconclusive(pairs: int, crowded: bool, spread: float, why: str) -> None:
    verdict, reason = judge(quantiles_of(*measured(1.0, pairs, spread, 12)), pairs, crowded)
    assert verdict == "inconclusive" and isinstance(reason, interference.LoadInconclusive) and reason.why == why


TRIALS = 400


def blocks(random: np.random.Generator, number: int, size: int, shift: NDArray[np.float64], lag: float = 0.7) -> list[NDArray[np.float64]]:
    """Return log-normal blocks, autocorrelated inside, each with a level of its own; shift: of the pairs (drift)."""
    found = []
    for index in range(number):
        noise = random.normal(size=size) * np.sqrt(1 - lag**2)
        series = np.empty(size)
        series[0] = random.normal()
        for at in range(1, size):
            series[at] = lag * series[at - 1] + noise[at]
        found.append(np.exp(0.2 * series + 0.05 * random.normal() + shift[index]))
    return found


@pytest.mark.parametrize(("share", "size"), [(0.5, 60), (0.99, 400)])
def test_equal_conditions_read_1_as_often_as_claimed(share: float, size: int) -> None:
    random = np.random.default_rng(1)
    inside = 0
    trials = TRIALS if share == 0.5 else TRIALS // 4
    for _ in range(trials):
        drift = np.linspace(0, 1, 8)  # the machine becomes 2.7 times slower in the run
        found = block_ratio(blocks(random, 8, size, drift), blocks(random, 8, size, drift), share, 0.95)
        assert found.low is not None and found.high is not None
        inside += found.low <= 1 <= found.high
    assert inside / trials >= 0.92  # 95 % expected; seeded


def test_factors_and_quantiles_are_covered_by_blocks_with_enough_samples() -> None:
    random, inside = np.random.default_rng(2), 0
    for _ in range(100):
        drift = np.linspace(0, 1, 8)
        found = block_ratio(blocks(random, 8, 60, drift), [2 * each for each in blocks(random, 8, 60, drift)], 0.5)
        assert found.low is not None and found.high is not None
        inside += found.low <= 2 <= found.high
    assert inside >= 90
    random, inside, none = np.random.default_rng(3), 0, np.zeros(10)
    for _ in range(200):
        found = interference.block_quantile(blocks(random, 10, 60, none), 0.5)
        assert found.low is not None and found.high is not None
        inside += found.low <= 1 <= found.high
    assert inside / 200 >= 0.93
    one = [np.arange(100.0) for _ in range(12)]
    assert (interference.fewest_samples(0.5), interference.fewest_samples(0.99), interference.fewest_samples(0.999)) == (6, 300, 3000)
    assert [len(interference.grouped([one], share)) for share in (0.5, 0.99, 0.999)] == [12, 4, 0]
    assert block_ratio(one, one, 0.999).value is None
    few = block_ratio(one[: interference.FEWEST_GROUPS - 1], one[: interference.FEWEST_GROUPS - 1], 0.5)
    assert (few.value, few.low, few.high) == (1.0, None, None)
