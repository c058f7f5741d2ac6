"""The pattern that channels carry: any byte that is not the right one is found, and so is a shift."""

from __future__ import annotations

import numpy as np
import pytest

from collbench.measure.references import PATTERN, PERIOD, first_wrong, write_pattern


@pytest.mark.parametrize("n", [1, 65_521, 200_000])
def test_one_wrong_byte_is_found_wherever_it_is(n: int) -> None:
    target = np.zeros(n, np.uint8)
    write_pattern(target)
    assert first_wrong(target) is None
    target[n - 1] ^= 0x80
    assert first_wrong(target) == f"1 of {n} bytes differ from those that were copied, the first at {n - 1}"


def test_memory_that_was_never_written_is_all_wrong() -> None:
    assert first_wrong(np.zeros(1000, np.uint8)) == "1000 of 1000 bytes differ from those that were copied, the first at 0"


@pytest.mark.parametrize("shift", [1, 2, 64, 4096, 1 << 20])
def test_a_shift_shows_at_once(shift: int) -> None:
    shifted = np.resize(np.roll(PATTERN, -shift), 1000)
    assert shift % PERIOD and first_wrong(shifted).endswith("the first at 0")
