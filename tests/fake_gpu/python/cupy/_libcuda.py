"""The fake driver's library, and errors as cupy raises them."""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache
from typing import Any

_TEXTS = {
    1: ("cudaErrorInvalidValue", "invalid argument"),
    2: ("cudaErrorMemoryAllocation", "out of memory"),
    35: ("cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"),
    46: ("cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"),
    100: ("cudaErrorNoDevice", "no CUDA-capable device is detected"),
    101: ("cudaErrorInvalidDevice", "invalid device ordinal"),
    201: ("cudaErrorDeviceUninitialized", "invalid device context"),
    301: ("cudaErrorFileNotFound", "file not found"),
    400: ("cudaErrorInvalidResourceHandle", "invalid resource handle"),
    401: ("cudaErrorIllegalState", "the operation cannot be performed in the present state"),
    500: ("cudaErrorSymbolNotFound", "named symbol not found"),
    600: ("cudaErrorNotReady", "device not ready"),
    704: ("cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled"),
    900: ("cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"),
    901: ("cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"),
    903: ("cudaErrorStreamCaptureUnmatched", "capture was not initiated in this stream"),
    907: ("cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"),
}
INSUFFICIENT_DRIVER, NO_DEVICE = 35, 100
_chosen = threading.local()


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(": ".join(_TEXTS.get(status, ("cudaErrorUnknown", "unknown error"))))


def word(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)


@cache
def library() -> Any:
    try:
        found = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    if not hasattr(found, "fakeGpuEnqueue"):
        raise ImportError("the fake cupy works with the fake libcuda.so.1 alone: start with tests.fake_gpu.environment()")
    return found


def runtime_version() -> int:
    return int(os.environ.get("FAKE_CUDA_RUNTIME_VERSION", "13020"))


def driver_version() -> int:
    """The CUDA that the driver knows, 0 without a driver."""
    version = ctypes.c_int(0)
    if library():
        library().cuDriverGetVersion(ctypes.byref(version))
    return version.value


def check(status: int) -> None:
    """Raise for an error."""
    if status:
        raise CUDARuntimeError(status)


def start() -> Any:
    """The library, once the driver is new enough and shows a GPU."""
    if driver_version() // 1000 < runtime_version() // 1000:
        raise CUDARuntimeError(INSUFFICIENT_DRIVER)
    check(library().cuInit(0))
    return library()


def chosen() -> int:
    """This thread's GPU."""
    return getattr(_chosen, "device", 0)


def choose(device: int) -> None:
    """Make it this thread's GPU."""
    check(start().cuCtxSetCurrent(word(device + 1)) if 0 <= device < count() else 101)
    _chosen.device = device


def count() -> int:
    """Visible GPUs."""
    n = ctypes.c_int()
    check(start().cuDeviceGetCount(ctypes.byref(n)))
    return n.value


def call(name: str, *arguments: Any) -> None:
    check(tried(name, *arguments))


def tried(name: str, *arguments: Any) -> int:
    check(start().cuCtxSetCurrent(word(chosen() + 1)))
    return int(getattr(library(), name)(*arguments))
