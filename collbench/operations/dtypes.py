"""The data types and reduction ops of collbench, and the range that each type holds exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from collbench.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from collbench.operations.unsupported import AverageNotRepresentable, RedopUndefined


class DType(msgspec.Struct, frozen=True):
    """A data type of elements.

    name       as users type it and rows print it
    size       bytes per element
    kind       "float" or "int"
    exact      every integer from 0 to this one is held exactly
    exponent   2**0 … 2**exponent are held exactly
    patterns   the bit patterns 1 … patterns, read as integers, are finite numbers of the type, in ascending order
    """

    name: str
    size: int
    kind: str
    exact: int
    exponent: int
    patterns: int

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy type; bfloat16 and 8-bit floats come from ml_dtypes, imported only when used."""
        import numpy as np

        if self.name in _OF_ML_DTYPES:
            import ml_dtypes

            custom: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.name))
            return custom
        return np.dtype(self.name)


_OF_ML_DTYPES = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})
_ALL = (
    DType("float64", 8, "float", 2**53, 1023, 0x7FEFFFFFFFFFFFFF),
    DType("float32", 4, "float", 2**24, 127, 0x7F7FFFFF),
    DType("float16", 2, "float", 2**11, 15, 0x7BFF),
    DType("bfloat16", 2, "float", 2**8, 127, 0x7F7F),
    # OCP's 8-bit floats: e4m3fn has no infinity and ends at 448, e5m2 at 57,344.
    DType("float8_e4m3fn", 1, "float", 2**4, 8, 0x7E),
    DType("float8_e5m2", 1, "float", 2**3, 15, 0x7B),
    DType("int8", 1, "int", 2**7 - 1, 6, 2**7 - 1),
    DType("int32", 4, "int", 2**31 - 1, 30, 2**31 - 1),
    DType("int64", 8, "int", 2**63 - 1, 62, 2**63 - 1),
    DType("uint8", 1, "int", 2**8 - 1, 7, 2**8 - 1),
    DType("uint32", 4, "int", 2**32 - 1, 31, 2**32 - 1),
    DType("uint64", 8, "int", 2**64 - 1, 63, 2**64 - 1),
)
DTYPES = {dtype.name: dtype for dtype in _ALL}
# nccl-tests' names, and short ones.
_ALIASES = {
    "double": "float64", "float": "float32", "half": "float16", "char": "int8", "int": "int32",
    "f64": "float64", "f32": "float32", "f16": "float16", "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16",
    "i8": "int8", "i32": "int32", "i64": "int64", "u8": "uint8", "u32": "uint32", "u64": "uint64",
    "f8e4m3": "float8_e4m3fn", "float8_e4m3": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2", "fp8_e5m2": "float8_e5m2", "e5m2": "float8_e5m2",
}  # fmt: skip

REDOPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")
BITWISE = frozenset({"band", "bor", "bxor"})


def dtype_named(name: str) -> DType:
    """Return the data type `name` (or nccl-tests' name for it). Raises UsageError that lists the known ones."""
    dtype = DTYPES.get(_ALIASES.get(name.lower(), name.lower()))
    if dtype is None:
        raise UsageError(f"dtype '{name}' is unknown: choose from {', '.join(DTYPES)}")
    return dtype


def redop_named(name: str) -> str:
    """Return the reduction op `name`. Raises UsageError that lists the known ones."""
    if name.lower() not in REDOPS:
        raise UsageError(f"redop '{name}' is unknown: choose from {', '.join(REDOPS)}")
    return name.lower()


def undefined_redop(redop: str, dtype: DType) -> RedopUndefined | None:
    """Return why `redop` is not defined for `dtype` (bitwise ops of floats, the average of integers), else None."""
    if (redop in BITWISE and dtype.kind != "int") or (redop == "avg" and dtype.kind == "int"):
        from collbench.operations.unsupported import RedopUndefined

        return RedopUndefined(redop, dtype.name)
    return None


def unrepresentable_average(dtype: DType, n: int) -> AverageNotRepresentable | None:
    """Return why an average over n ranks fails in a library that stores 1/n in `dtype` itself (NCCL, for floats), else None."""
    import numpy as np

    from collbench.operations.unsupported import AverageNotRepresentable

    smallest = float(np.array([1], f"u{dtype.size}").view(dtype.numpy)[0])
    return AverageNotRepresentable(dtype.name, n, round(1 / smallest)) if 1 / n < smallest else None
