"""cuFile, NVIDIA's library that reads files into GPU memory (GPUDirect Storage), through ctypes.

Interface: https://docs.nvidia.com/gpudirect-storage/api-reference-guide/index.html
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from collbench.errors import RunFailed

_NAME = "libcufile.so.0"
_OPAQUE_FD = 1  # CU_FILE_HANDLE_TYPE_OPAQUE_FD
_NO_DRIVER = 5001  # CU_FILE_DRIVER_NOT_INITIALIZED
MODULE = Path("/proc/driver/nvidia-fs")


class _Error(ctypes.Structure):
    """CUfileError_t: cuFile's code and CUDA's."""

    _fields_ = (("code", ctypes.c_int), ("cuda", ctypes.c_int))


class _Source(ctypes.Union):
    _fields_ = (("fd", ctypes.c_int), ("handle", ctypes.c_void_p))


class _Description(ctypes.Structure):
    """CUfileDescr_t."""

    _fields_ = (("type", ctypes.c_int), ("source", _Source), ("operations", ctypes.c_void_p))


class CuFile:
    """cuFile for one open file. Raises RunFailed with the reason if the library is missing or refuses the file."""

    def __init__(self, fd: int) -> None:
        self._library = _library()
        self._handle = ctypes.c_void_p()
        self._call("cuFileDriverOpen")
        described = _Description(_OPAQUE_FD, _Source(fd=fd), None)
        try:
            self._call("cuFileHandleRegister", ctypes.byref(self._handle), ctypes.byref(described))
        except RunFailed:
            self._call("cuFileDriverClose")
            raise

    def read(self, address: int, n_bytes: int, offset: int) -> None:
        """Read into GPU memory and wait. The thread must use that GPU. Raises RunFailed."""
        words = (ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), ctypes.c_int64(offset), ctypes.c_int64(0))
        result = int(self._library.cuFileRead(self._handle, *words))
        if result != n_bytes:
            error = "a system error" if result == -1 else f"error {-result}"
            raise RunFailed(f"cuFileRead: {f'{result} of {n_bytes} bytes' if result >= 0 else error}")

    def close(self) -> None:
        """Close the handle and the driver."""
        self._library.cuFileHandleDeregister(self._handle)
        with suppress(RunFailed):
            self._call("cuFileDriverClose")

    def _call(self, name: str, *words: Any) -> None:
        error = getattr(self._library, name)(*words)
        if error.code:
            cuda = f", CUDA error {error.cuda}" if error.cuda else ""
            raise RunFailed(f"{name}: error {error.code}{cuda}{'; is the NVIDIA driver loaded?' if error.code == _NO_DRIVER else ''}")


def direct_path() -> str:
    """Return how cuFile reads here: through the module nvidia-fs, or by a way that cuFile chooses and does not report."""
    if MODULE.exists():
        return "nvidia-fs is loaded"
    return "nvidia-fs is not loaded: cuFile reads through host memory, or over PCIe peer-to-peer DMA where kernel and driver support it"


def _library() -> ctypes.CDLL:
    """Return the library of the system, or that of a package in this environment. Raises RunFailed."""
    spec = find_spec("nvidia")
    folders = map(Path, spec.submodule_search_locations or ()) if spec else ()
    packaged = [str(file) for folder in folders for file in sorted(folder.glob(f"*/lib/{_NAME}"), reverse=True)]
    for name in (_NAME, *packaged):
        with suppress(OSError):
            library = ctypes.CDLL(name)
            for function in ("cuFileDriverOpen", "cuFileDriverClose", "cuFileHandleRegister"):
                getattr(library, function).restype = _Error
            library.cuFileHandleDeregister.restype = None
            library.cuFileRead.restype = ctypes.c_ssize_t
            return library
    raise RunFailed(f"{_NAME} is missing: install NVIDIA's package of cuFile (GPUDirect Storage)")
