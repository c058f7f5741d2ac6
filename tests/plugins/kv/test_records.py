"""Costs of transfers: known costs are found, and those that the rows do not determine are inconclusive."""

from itertools import product
from typing import Any

import numpy as np

from collbench.plugins.kv.records import CostsInconclusive, KvRow, TransferCosts, costs_of, is_known, series_of
from collbench.plugins.kv.text import BLOCK_TRANSFERS
from collbench.results.estimate import Estimate


def row_of(**figures: Any) -> KvRow:
    return KvRow(method="packed", backend="mpi", pattern="prefill-decode", layout="plain", sources=1, targets=1, n=60, **figures)


def rows_of(counts: tuple[int, ...], sizes: tuple[int, ...], noise: float = 0.001) -> list[KvRow]:
    """Rows of 20 µs per transfer, 0.5 µs per block and 10 GB/s, each with its error."""
    errors, found = np.random.default_rng(3), []
    for n, size in product(counts, sizes):
        time_s = (20e-6 + 0.5e-6 * n + n * size / 10e9) * (1 + noise * float(errors.standard_normal()))
        half = 2 * noise * time_s
        times = Estimate(time_s, time_s - half, time_s + half)
        found.append(row_of(blocks=n, block_bytes=size, busiest=n, size_bytes=n * size, time_s=times))
    return found


def test_costs_are_found_unless_rows_cannot_separate_them() -> None:
    (costs,) = costs_of(rows_of((8, 64, 512), (4096, 32768)))
    assert isinstance(costs, TransferCosts)
    for cost, true in ((costs.transfer_s, 20e-6), (costs.block_s, 0.5e-6), (costs.byte_s, 1e-10)):
        assert is_known(cost) and cost.low is not None and cost.high is not None and cost.low <= true <= cost.high
    (costs,) = costs_of(rows_of((8, 64, 512), (4096, 32768), noise=0.3))
    assert isinstance(costs, TransferCosts) and not is_known(costs.block_s)
    assert costs_of(rows_of((8, 64, 512, 4096), (4096,))) == [CostsInconclusive("packed", "grid")]
    assert costs_of(rows_of((8, 64), (4096, 32768))[:3]) == [CostsInconclusive("packed", "points")]
    assert costs_of(rows_of((8,), (4096,))) == []
    rows = [row.replace(wrong=3) for row in rows_of((8, 64), (4096, 32768))]
    assert costs_of(rows) == []


def test_what_cannot_be_compared_is_another_series() -> None:
    (row,) = rows_of((8,), (4096,))
    model = row.replace(model="m", cache_dtype="fp8", block_tokens=16, layout="block-first")
    changes: list[dict[str, Any]] = [
        {"method": "writev"}, {"pattern": "broadcast"}, {"sources": 2}, {"targets": 2}, {"block_bytes": 8192}, {"model": "n"},
        {"cache_dtype": "bf16"}, {"block_tokens": 32}, {"layout": "layer-first"},
    ]  # fmt: skip
    assert len({series_of(row), series_of(model), *(series_of(model.replace(**change)) for change in changes)}) == 2 + len(changes)
    assert series_of(model.replace(tokens=9, blocks=9, size_bytes=9)) == series_of(model)


def test_a_row_is_stored_and_read() -> None:
    (row,) = rows_of((8,), (4096,))
    assert BLOCK_TRANSFERS.decoded(row.as_json()) == row
    assert row.bytes_per_s is not None and row.first_token_percent is None and row.percent_of_link is None
