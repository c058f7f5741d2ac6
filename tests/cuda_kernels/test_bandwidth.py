"""The kernels that are timed do what their names mean, to the last byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda_kernels.serial import Serial, aligned, untouched_around

pytestmark = pytest.mark.contract

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
