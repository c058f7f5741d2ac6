"""The computation on a GPU: every block of each slice once, its time, and the count of computations."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda_kernels.serial import Serial, aligned

BLOCK = 256 * 16  # bytes
CAPACITY = 4


def computed(serial: Serial, memory: np.ndarray, state: np.ndarray, amount: int, slices: int) -> None:
    for _ in range(slices):
        serial("work_begins", state, blocks=1)
        serial("work", memory, memory.nbytes, amount, slices, state, blocks=3)
        serial("work_ends", state, slices, CAPACITY, blocks=1)


def steps(values: np.ndarray) -> np.ndarray:
    for _ in range(8):
        values = values * 0.999 + 0.001
    return values


@pytest.mark.parametrize(("amount", "slices"), [(5, 1), (5, 2), (5, 5), (3, 7), (12, 4)])
def test_a_computation_takes_each_block_of_its_amount_once(serial: Serial, amount: int, slices: int) -> None:
    memory, state = aligned(5 * BLOCK), np.zeros(4 + CAPACITY, np.uint64)
    values = memory.view(np.float64).reshape(5, -1)
    values[:] = np.arange(5)[:, None]
    expected = values.copy()
    for block in range(amount):
        expected[block % 5] = steps(expected[block % 5])
    computed(serial, memory, state, amount, slices)
    assert np.allclose(values, expected, rtol=1e-12)
    assert state[1:4].tolist() == [0, 0, 1] and state[4] > 0


def test_the_last_times_are_kept(serial: Serial) -> None:
    memory, state = aligned(BLOCK), np.zeros(4 + CAPACITY, np.uint64)
    for _ in range(CAPACITY + 2):
        computed(serial, memory, state, 1, 2)
    assert state[3] == CAPACITY + 2 and (state[4:] > 0).all()
