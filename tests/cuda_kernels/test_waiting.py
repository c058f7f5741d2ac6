"""The kernels that wait: for the host, for each other, for a moment. Each ends by itself."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.cuda_kernels.serial import Serial

LONG_NS, SHORT_NS = 60 * 10**9, 10**6


def words(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def test_hold_waits_for_the_latch(serial: Serial) -> None:
    latch, result = words(0), words(0)
    with ThreadPoolExecutor(1) as stream:
        held = stream.submit(serial, "hold", latch, LONG_NS, result, blocks=1)
        assert (held.done(), int(result[0])) == (False, 0)
        latch[0] = 1
        held.result()
    assert int(result[0]) == 1


def test_hold_ends_without_the_host(serial: Serial) -> None:
    result = words(0)
    serial("hold", words(0), SHORT_NS, result, blocks=1)
    assert int(result[0]) == 2


def test_pingpong_makes_every_round_on_both_sides(serial: Serial) -> None:
    flags, results, rounds = (words(0), words(0)), (words(0, 0), words(0, 0)), 20
    with ThreadPoolExecutor(2) as streams:
        for side in (0, 1):
            streams.submit(serial, "pingpong", flags[side], flags[1 - side], rounds, side, LONG_NS, results[side], blocks=1)
    assert [int(result[0]) for result in results] == [rounds, rounds]
    assert [int(flag[0]) for flag in flags] == [rounds + 1, rounds + 1]
    assert all(result[1] > 0 for result in results)


@pytest.mark.parametrize("starts", [0, 1])
def test_pingpong_without_a_partner_ends_with_no_round(serial: Serial, starts: int) -> None:
    theirs, result = words(0), words(9, 9)
    serial("pingpong", words(0), theirs, 20, starts, SHORT_NS, result, blocks=1)
    assert (int(result[0]), int(theirs[0])) == (0, starts)


@pytest.mark.parametrize("steps", [0, 1, 10, 1000])
def test_a_chase_ends_where_numpy_expects(serial: Serial, steps: int) -> None:
    order = np.random.default_rng(1).permutation(257)
    chain = np.empty(257, np.uint64)
    chain[order] = np.roll(order, -1)
    result = words(0, 0)
    serial("pointer_chase", chain, order[0], steps, result, blocks=1)
    assert int(result[0]) == order[steps % 257]


def test_delay_takes_its_time(serial: Serial) -> None:
    begin = time.monotonic_ns()
    serial("delay", 2 * 10**6, blocks=1, threads=1)
    assert time.monotonic_ns() - begin >= 2 * 10**6
