"""What fills GPU memory and what finds a wrong element in it, against numpy."""

import mmap

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda_kernels.serial import NONE, Serial, aligned, untouched_around

pytestmark = pytest.mark.contract

WIDTHS = (1, 2, 4, 8)
FLOATS = [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
PERIOD = 65521  # of operations.digits: no power of two divides it
_MAP_NORESERVE = 0x4000  # Linux; mmap has no name for it before Python 3.13
place = {"offset": st.integers(0, 15), "blocks": st.integers(1, 4), "table_bytes": st.integers(1, 300), "seed": st.integers(0, 99)}


def some_table(n_bytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, n_bytes, np.uint8)


@settings(max_examples=100, deadline=None)
@given(n_bytes=st.integers(0, 2000), **place)
def test_fill_repeats_the_table_over_exactly_its_bytes(
    serial: Serial, *, n_bytes: int, offset: int, blocks: int, table_bytes: int, seed: int
) -> None:
    memory, table = aligned(n_bytes, offset), some_table(table_bytes, seed)
    serial("fill", memory, n_bytes, table, table_bytes, blocks=blocks)
    assert np.array_equal(memory, np.resize(table, n_bytes))
    assert untouched_around(memory)


@settings(max_examples=100, deadline=None)
@given(width=st.sampled_from(WIDTHS), n=st.integers(1, 900), spoiled=st.lists(st.integers(0, 10**6), max_size=6), **place)
def test_verify_counts_the_wrong_elements_and_names_the_first(
    serial: Serial, *, width: int, n: int, spoiled: list[int], offset: int, blocks: int, table_bytes: int, seed: int
) -> None:
    memory, table = aligned(n * width, offset // width * width), some_table(table_bytes, seed)
    memory[:] = np.resize(table, len(memory))
    for where in {place % len(memory) for place in spoiled}:
        serial("corrupt", memory, where, 1 + seed, blocks=1)
    wrong = np.flatnonzero((memory != np.resize(table, len(memory))).reshape(n, width).any(axis=1))
    assert serial.verify(memory, table, width, blocks=blocks) == (len(wrong), wrong[0] if len(wrong) else NONE)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("blocks", [4, 300, 600], ids=["fewer threads than the table", "one a column", "several a column"])
def test_a_table_of_the_digits_period_fits_any_grid(serial: Serial, width: int, blocks: int) -> None:
    table = some_table(PERIOD * width)
    memory = aligned(3 * len(table) * 16 // width + 24, 8)
    serial("fill", memory, memory.nbytes, table, table.nbytes, blocks=blocks)
    assert np.array_equal(memory, np.resize(table, len(memory)))
    assert serial.verify(memory, table, width, blocks=blocks) == (0, NONE)
    for where in (len(memory) - 1, len(memory) // 2, 0):
        serial("corrupt", memory, where, 0x80, blocks=1)
        assert serial.verify(memory, table, width, blocks=blocks)[1] == where // width
    memory[:] ^= 0xFF
    assert serial.verify(memory, table, width, blocks=blocks)[0] >= len(memory) // width - 3


def test_one_flipped_bit_is_one_wrong_element_wherever_it_is(serial: Serial) -> None:
    table = some_table(30)
    memory = aligned(120, 8)
    memory[:] = np.resize(table, 120)
    for where in range(120):
        for mask in (1, 0x80):
            serial("corrupt", memory, where, mask, blocks=1)
            assert [serial.verify(memory, table, width, blocks=1) for width in WIDTHS] == [(1, where // width) for width in WIDTHS]
            serial("corrupt", memory, where, mask, blocks=1)
    assert np.array_equal(memory, np.resize(table, 120))


@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: np.dtype(kind).name)
@pytest.mark.parametrize("allowed", [1, 2, 5])
def test_the_tolerance_is_in_steps_between_representable_numbers(serial: Serial, kind: type, allowed: int) -> None:
    width = np.dtype(kind).itemsize
    wanted = np.array([1, 2, 3, -1, -4, 0.25, 0], kind)
    largest = ml_dtypes.finfo(kind).max
    for direction in (largest, -largest):
        off = wanted
        for steps in range(1, 8):
            off = np.nextafter(off, direction)
            got = aligned(off.nbytes, width)
            got[:] = off.view(np.uint8)
            assert serial.verify(got, wanted.view(np.uint8), width, allowed) == ((0, NONE) if steps <= allowed else (len(wanted), 0))


@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: np.dtype(kind).name)
def test_without_a_tolerance_zero_and_minus_zero_differ(serial: Serial, kind: type) -> None:
    got, wanted = np.array([0, -0.0, 0, 0], kind), np.zeros(4, kind)
    width = got.itemsize
    assert serial.verify(got.view(np.uint8), wanted.view(np.uint8), width) == (1, 1)
    assert serial.verify(got.view(np.uint8), wanted.view(np.uint8), width, 1) == (0, NONE)


@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: np.dtype(kind).name)
def test_nan_is_never_near_a_digit(serial: Serial, kind: type) -> None:
    got, wanted = np.array([1, np.nan, 4], kind), np.array([1, 2, 4], kind)
    assert serial.verify(got.view(np.uint8), wanted.view(np.uint8), got.itemsize, 2) == (1, 1)


def vast_memory() -> np.ndarray:
    """More than 2^32 zeros, of which only what is touched takes memory."""
    pages = mmap.mmap(-1, 2**32 + 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def test_an_element_beyond_two_to_the_32_is_found_at_its_index(serial: Serial) -> None:
    vast = vast_memory()
    far, zeros, result = 2**32 + 5, np.zeros(16, np.uint8), np.array([0, NONE], np.uint64)
    serial("corrupt", vast, far, 0x10, blocks=1)
    for block in (far // 16 // 256 % 4096, 7):  # of a grid the block that meets it, and one that does not
        serial("verify", vast, vast.nbytes, zeros, 16, 1, 0, result, blocks=4096, only=block)
    assert [int(number) for number in result] == [1, far]


def test_fill_reaches_beyond_two_to_the_32(serial: Serial) -> None:
    vast = vast_memory()
    table, blocks, block = some_table(7 * 16), 2**19, 3
    serial("fill", vast, vast.nbytes, table, table.nbytes, blocks=blocks, only=block)
    stride = blocks * 256 // 7 * 7 * 16
    for at in (block * 4096, block * 4096 + stride, block * 4096 + 2 * stride):
        assert np.array_equal(vast[at : at + 4096], np.resize(np.roll(table, -at), 4096)), at
