"""Which reductions have a meaning on which element types."""

from __future__ import annotations

import pytest

from collbench.operations.dtypes import dtype_named, undefined_redop


@pytest.mark.parametrize(
    ("redop", "dtype", "fits"),
    [
        ("avg", "float32", True), ("avg", "bfloat16", True), ("avg", "int32", False), ("band", "int32", True), ("band", "float32", False),
        ("sum", "int32", True), ("sum", "float32", True),
    ],
)  # fmt: skip
def test_averages_are_of_floats_and_bitwise_reductions_of_integers(redop: str, dtype: str, fits: bool) -> None:
    assert (undefined_redop(redop, dtype_named(dtype)) is None) is fits
