"""Kernels that the fake NVRTC compiled."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from cupy._libcuda import word
from cupy.cuda import driver
from cupy.cuda._stream import Stream, current_address

_WORDS = 12  # addresses that cuLaunchKernel of the double reads


def _as_word(argument: Any) -> ctypes.c_uint64:
    """cupy passes Python's integers as int64 and numpy's as they are; the double's kernels take words of 64 bits alone."""
    if isinstance(argument, np.generic) and argument.dtype in (np.int64, np.uint64):
        return word(int(argument) % 2**64)
    if isinstance(argument, bool) or not isinstance(argument, int):
        raise TypeError(f"a kernel of the fake GPU takes words of 64 bits, not {argument!r} ({type(argument).__name__})")
    if not -(2**63) <= argument < 2**63:
        raise OverflowError("Python integer out of bounds for int64: use numpy.uint64(…)")
    return word(argument % 2**64)


class Function:
    def __init__(self, function: int) -> None:
        self._function = word(function)

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any], shared_mem: int = 0, stream: Stream | None = None
    ) -> None:
        words = [_as_word(argument) for argument in args]
        words += [word(0)] * (_WORDS - len(words))
        addresses = (ctypes.c_void_p * _WORDS)(*(ctypes.addressof(one) for one in words))
        sizes = [ctypes.c_uint(size) for part in (grid, block) for size in (*part, 1, 1)[:3]]
        on = word(stream.ptr if stream else current_address())
        driver._call("cuLaunchKernel", self._function, *sizes, shared_mem, on, addresses, None)


class RawModule:
    def __init__(self, code: str | None = None, *, path: str | None = None) -> None:
        if code is not None or path is None:
            raise NotImplementedError("the fake cupy loads kernels from a file: RawModule(path=…)")
        module = ctypes.c_void_p()
        driver._call("cuModuleLoad", ctypes.byref(module), path.encode())
        self._module = module

    def get_function(self, name: str) -> Function:
        function = ctypes.c_void_p()
        driver._call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        return Function(function.value or 0)
