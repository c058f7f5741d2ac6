"""Sets of CPUs: lists and masks of the kernel, hwloc and NCCL."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.machine.readers.text import cpu_list, cpu_mask, written


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0-3,8", {0, 1, 2, 3, 8}), ("", set()), ("0-99999999999", set()), ("0-999999", set()), ("3-1", set()), ("a", set()), ("0,,1", set())],
)
def test_cpu_lists(text: str, expected: set[int]) -> None:
    assert cpu_list(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", {0, 1}), ("00000001,80000000", {31, 32}), ("0,", set()), ("0x00000003", {0, 1}), ("0x1,,0x00000001", {0, 64}),
        ("0x0", set()), (",ffffffff", set(range(32))), ("00ff00ff", {*range(8), *range(16, 24)}),
        ("xyz", None), ("", None), (None, None), ("0xf...f", None), ("0xfffffffff", None), ("-5", None), ("f," * 3000 + "f", None),
        ("f" * (1 << 20), None),
    ],
)  # fmt: skip
def test_cpu_masks(text: str | None, expected: set[int] | None) -> None:
    assert cpu_mask(text) == expected


@given(st.frozensets(st.integers(0, 300)))
def test_lists_are_written_as_the_kernel_writes_them(numbers: frozenset[int]) -> None:
    assert cpu_list(written(numbers)) == numbers


def test_runs_are_written_short() -> None:
    assert written({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8"
    assert written(()) == ""
