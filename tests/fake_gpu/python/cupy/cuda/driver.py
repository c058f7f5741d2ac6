"""The driver's own errors, which cupy raises for modules and kernels."""

from __future__ import annotations

import ctypes
from typing import Any

from cupy import _libcuda


class CUDADriverError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(": ".join(_words(function, status) for function in ("cuGetErrorName", "cuGetErrorString")))


def _words(function: str, status: int) -> str:
    text = ctypes.c_char_p()
    getattr(_libcuda.library(), function)(status, ctypes.byref(text))
    return (text.value or b"unknown error").decode()


def _call(name: str, *arguments: Any) -> None:
    status = _libcuda.tried(name, *arguments)
    if status:
        raise CUDADriverError(status)
