"""The kernels do what their names mean: those that are timed, to the last byte; those that wait; and the computation on a GPU."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda_kernels.serial import Serial, aligned, untouched_around

shapes = {"n": st.integers(0, 3000), "blocks": st.integers(1, 4), "seed": st.integers(0, 99)}


def vectors(n: int, kind: type = np.uint64, seed: int = 0) -> np.ndarray:
    memory = aligned(16 * n)
    memory.view(kind)[:] = np.random.default_rng(seed).integers(0, 1000, memory.nbytes // np.dtype(kind).itemsize)
    return memory


@settings(max_examples=50, deadline=None)
@given(**shapes)
def test_read_sums_every_word(serial: Serial, n: int, blocks: int, seed: int) -> None:
    memory = vectors(n, seed=seed)
    memory.view(np.uint64)[:] *= np.uint64(2**55 + 1)  # the sum runs over
    sums = np.zeros(256 * blocks, np.uint64)
    serial("read_memory", memory, memory.nbytes, sums, blocks=blocks)
    assert sums.sum() == memory.view(np.uint64).sum()


@settings(max_examples=50, deadline=None)
@given(**shapes)
def test_write_fills_with_a_word_and_its_complement(serial: Serial, n: int, blocks: int, seed: int) -> None:
    memory = vectors(n)
    serial("write_memory", memory, memory.nbytes, seed, blocks=blocks)
    assert np.array_equal(memory.view(np.uint64), np.resize(np.array([seed, 2**64 - 1 - seed], np.uint64), 2 * n))
    assert untouched_around(memory)


@pytest.mark.parametrize("kernel", ["copy", "peer_read", "peer_write"])
@settings(max_examples=30, deadline=None)
@given(**shapes)
def test_copies_are_exact(serial: Serial, kernel: str, n: int, blocks: int, seed: int) -> None:
    out, memory = vectors(n), vectors(n, seed=seed + 1)
    serial(kernel, out, memory, memory.nbytes, blocks=blocks)
    assert np.array_equal(out, memory)
    assert untouched_around(out)


@settings(max_examples=50, deadline=None)
@given(**shapes)
def test_peer_both_copies_both_ways(serial: Serial, n: int, blocks: int, seed: int) -> None:
    here_out, there_in, there_out, here_in = (vectors(n, seed=seed + k) for k in range(4))
    serial("peer_both", here_out, there_in, there_out, here_in, here_in.nbytes, blocks=2 * blocks)
    assert np.array_equal(here_out, there_in)
    assert np.array_equal(there_out, here_in)


@settings(max_examples=50, deadline=None)
@given(**shapes)
def test_triad_adds_a_multiple_in_float64(serial: Serial, n: int, blocks: int, seed: int) -> None:
    a, b, c = vectors(n), vectors(n, np.float64, seed), vectors(n, np.float64, seed + 1)
    serial("triad", a, b, c, a.nbytes, np.float64(2.5).view(np.uint64), blocks=blocks)
    assert np.array_equal(a.view(np.float64), b.view(np.float64) + 2.5 * c.view(np.float64))
    assert untouched_around(a)


@settings(max_examples=50, deadline=None)
@given(**shapes)
def test_reduce_copy_adds_in_float32(serial: Serial, n: int, blocks: int, seed: int) -> None:
    out, a, b = vectors(n), vectors(n, np.float32, seed), vectors(n, np.float32, seed + 1)
    serial("reduce_copy", out, a, b, out.nbytes, blocks=blocks)
    assert np.array_equal(out.view(np.float32), a.view(np.float32) + b.view(np.float32))


def test_flush_touches_every_word(serial: Serial) -> None:
    memory = vectors(3000)
    before = memory.view(np.uint64).copy()
    serial("flush", memory, memory.nbytes)
    assert np.array_equal(memory.view(np.uint64), before + np.uint64(1))
    assert untouched_around(memory)


# Kernels that wait: for the host, for each other, for a moment. Each ends by itself.

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


# The computation: every block of each slice once, its time, and the count of computations.

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
