"""Dips: sizes at which a series moves less bandwidth than at a smaller size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from collbench.machine.peak.ceiling import Ceiling, no_ceiling
from collbench.results.dips import dips, with_dips
from collbench.results.row import Row
from tests.results.rows import make_row, make_times

KIB, MIB = 1 << 10, 1 << 20
DISTURBED = Ceiling(kind="measured", bytes_per_s=None, limited_by="memory copy", disturbed=True)
NO_INTERVAL = replace(make_times(1e-3), ci_low=None, ci_high=None)
WIDE = replace(make_times(4 * MIB / 4e9), ci_low=4 * MIB / 7e9)
IN_CACHE: dict[str, Any] = {"ceiling": no_ceiling("the references are measured from 4 MiB on"), "nodes": 1, "device": "cpu"}
LINK = Ceiling(kind="topology", bytes_per_s=12.5e9, limited_by="NIC 1×100 Gb/s", model="ring")


def copied(rate: float, spread: float = 0.01, **changes: Any) -> Ceiling:
    """Memory copy at `rate`, as measured for one size."""
    low, high = rate * (1 - spread), rate * (1 + spread)
    return Ceiling(kind="measured", bytes_per_s=rate, limited_by="memory copy", low_bytes_per_s=low, high_bytes_per_s=high, **changes)


FAST_COPY, SLOW_COPY = copied(20e9), copied(9e9)


def moving(size: int, busbw: float, **changes: Any) -> Row:
    """A row with this bus bandwidth in bytes per second, and an interval of ±1 %."""
    values = {"ranks": 4, "ceiling": LINK, "flags": (), "time_s": make_times(size / busbw), **changes}
    return make_row(size, busbw_bytes_per_s=busbw, algbw_bytes_per_s=busbw, **values)


def dipping(rows: list[Row]) -> list[tuple[int, int]]:
    return [(dip.row.size_bytes, dip.smaller.size_bytes) for dip in dips(rows)]


def test_a_size_that_moves_less_than_a_smaller_one_is_a_dip() -> None:
    rows = [moving(MIB, 6e9), moving(64 * KIB, 4e9), moving(16 * MIB, 3e9), moving(64 * MIB, 11e9)]
    (dip,) = dips(rows)
    assert (dip.row.size_bytes, dip.smaller.size_bytes) == (16 * MIB, MIB)
    assert dip.loss == pytest.approx(1 - (3 / 0.99) / (6 / 1.01), abs=0.005)
    assert [row.flags for row in with_dips(rows)] == [(), (), ("dip",), ()]
    assert with_dips(with_dips(rows)) == with_dips(rows)


@pytest.mark.parametrize("rows", [
    pytest.param([moving(MIB, 6e9), moving(4 * MIB, 5.8e9)], id="within what launches differ by"),
    pytest.param([moving(MIB, 6e9), moving(4 * MIB, 4e9, time_s=WIDE)], id="wide interval"),
    pytest.param([moving(MIB, 6e9), moving(4 * MIB, 3e9, flags=("two_modes",))], id="doubtful row"),
    pytest.param([moving(MIB, 6e9, flags=("state_flip",)), moving(4 * MIB, 3e9)], id="doubtful smaller size"),
    pytest.param([moving(MIB, 6e9), moving(4 * MIB, 3e9, wrong=7)], id="wrong data"),
    pytest.param([moving(MIB, 6e9), moving(4 * MIB, 3e9, time_s=NO_INTERVAL)], id="no interval"),
    pytest.param([moving(64, 6e9), moving(2 * KIB, 3e9)], id="one packet"),
    pytest.param([moving(MIB, 6e9), moving(4 * MIB, 3e9, dtype="bfloat16")], id="another series"),
    pytest.param([moving(MIB, 6e9, ceiling=FAST_COPY), moving(64 * MIB, 3e9, ceiling=SLOW_COPY)], id="memory copy falls alike"),
    pytest.param([moving(MIB, 6e9, ceiling=FAST_COPY), moving(64 * MIB, 3e9, ceiling=DISTURBED)], id="reference disturbed"),
    pytest.param([moving(64 * KIB, 6e9, **IN_CACHE), moving(64 * MIB, 3e9, ceiling=SLOW_COPY, nodes=1, device="cpu")], id="a cache"),
    pytest.param([moving(64 * KIB, 6e9, **IN_CACHE), moving(MIB, 3e9, **IN_CACHE)], id="two caches"),
])  # fmt: skip
def test_what_proves_no_dip(rows: list[Row]) -> None:
    assert dipping(rows) == []


def test_a_fall_beyond_that_of_memory_copy_is_a_dip() -> None:
    rows = [moving(MIB, 6e9, ceiling=copied(20e9)), moving(64 * MIB, 2e9, ceiling=copied(12e9))]
    assert dipping(rows) == [(64 * MIB, MIB)]
