"""The CUDA runtime's functions under cupy's names: results returned, errors raised."""

from __future__ import annotations

import ctypes
from typing import Any

from cupy import _libcuda
from cupy._libcuda import CUDARuntimeError, call, check, choose, chosen, count, start, word

__all__ = ["CUDARuntimeError"]

memcpyHostToHost, memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice, memcpyDefault = range(5)
hostAllocDefault, hostAllocPortable = 0, 1
streamCaptureModeGlobal, streamCaptureModeThreadLocal, streamCaptureModeRelaxed = range(3)
_HANDLE = 64  # bytes


class _IpcHandle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * _HANDLE),)


def getDeviceCount() -> int:
    return count()


def driverGetVersion() -> int:
    return _libcuda.driver_version()


def runtimeGetVersion() -> int:
    return _libcuda.runtime_version()


def getDevice() -> int:
    start()
    return chosen()


def setDevice(device: int) -> None:
    choose(device)


def deviceSynchronize() -> None:
    call("cuCtxSynchronize")


def deviceGetAttribute(attrib: int, device: int) -> int:
    value = ctypes.c_int()
    check(start().cuDeviceGetAttribute(ctypes.byref(value), attrib, device))
    return value.value


def deviceGetPCIBusId(device: int) -> str:
    text = ctypes.create_string_buffer(16)
    check(start().cuDeviceGetPCIBusId(text, 16, device))
    return text.value.decode()


def getDeviceProperties(device: int) -> dict[str, Any]:
    """Those of cupy for CUDA 13 that the fake driver knows."""
    name, total, uuid = ctypes.create_string_buffer(64), ctypes.c_size_t(), ctypes.create_string_buffer(16)
    check(start().cuDeviceGetName(name, 64, device))
    check(start().cuDeviceTotalMem_v2(ctypes.byref(total), device))
    check(start().cuDeviceGetUuid_v2(uuid, device))
    numbers = {
        "major": 75, "minor": 76, "multiProcessorCount": 16, "l2CacheSize": 38, "memoryBusWidth": 37, "pciBusID": 33, "pciDeviceID": 34,
        "pciDomainID": 50, "warpSize": 10, "maxThreadsPerBlock": 1, "maxThreadsPerMultiProcessor": 39, "sharedMemPerBlock": 8,
    }  # fmt: skip
    asked = {key: deviceGetAttribute(attribute, device) for key, attribute in numbers.items()}
    return {"name": name.value, "totalGlobalMem": total.value, "uuid": uuid.raw, **asked}


def deviceCanAccessPeer(device: int, peerDevice: int) -> int:
    can = ctypes.c_int()
    check(start().cuDeviceCanAccessPeer(ctypes.byref(can), device, peerDevice))
    return can.value


def deviceEnablePeerAccess(peerDevice: int) -> None:
    call("cuCtxEnablePeerAccess", word(peerDevice + 1), 0)


def _address(function: str, size: int, *flags: int) -> int:
    at = ctypes.c_void_p()
    call(function, ctypes.byref(at), word(size), *flags)
    return at.value or 0


def malloc(size: int) -> int:
    return _address("cuMemAlloc_v2", size) if size else 0


def free(ptr: int) -> None:
    call("cuMemFree_v2", word(ptr))


def hostAlloc(size: int, flags: int) -> int:
    return _address("cuMemHostAlloc", size, flags)


def freeHost(ptr: int) -> None:
    call("cuMemFreeHost", word(ptr))


def memGetInfo() -> tuple[int, int]:
    left, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(left), ctypes.byref(total))
    return left.value, total.value


def memcpy(dst: int, src: int, size: int, kind: int) -> None:
    call("cuMemcpy", word(dst), word(src), word(size))


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    call("cuMemcpyAsync", word(dst), word(src), word(size), word(stream))


def memcpyPeerAsync(dst: int, dstDevice: int, src: int, srcDevice: int, size: int, stream: int) -> None:
    call("cuMemcpyPeerAsync", word(dst), word(dstDevice + 1), word(src), word(srcDevice + 1), word(size), word(stream))


def memset(ptr: int, value: int, size: int) -> None:
    call("cuMemsetD8_v2", word(ptr), value, word(size))


def ipcGetMemHandle(devPtr: int) -> bytes:
    handle = ctypes.create_string_buffer(_HANDLE)
    call("cuIpcGetMemHandle", handle, word(devPtr))
    return handle.raw


def ipcOpenMemHandle(handle: bytes, flags: int = 1) -> int:
    at = ctypes.c_void_p()
    given = _IpcHandle.from_buffer_copy(handle)
    call("cuIpcOpenMemHandle_v2", ctypes.byref(at), given, flags)
    return at.value or 0


def ipcCloseMemHandle(devPtr: int) -> None:
    call("cuIpcCloseMemHandle", word(devPtr))
