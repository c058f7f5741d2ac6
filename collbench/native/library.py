"""Loader of the C timing loop (loop.c), if it was built at install, and its data structures."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from collbench.operations.program import MAX_ARGS, Call, NativeCall, Program


class CallStruct(ctypes.Structure):
    """One call in the layout of loop.c."""

    _fields_ = [("call", ctypes.c_void_p), ("words", ctypes.c_uint64 * MAX_ARGS)]


class SlotStruct(ctypes.Structure):
    """The calls of one buffer slot."""

    _fields_ = [("calls", ctypes.POINTER(CallStruct)), ("n", ctypes.c_int64)]


class FailureStruct(ctypes.Structure):
    """The call at which a program stopped, with its error code."""

    _fields_ = [("code", ctypes.c_int64), ("call", ctypes.c_int64), ("iteration", ctypes.c_int64)]


class DeviceStruct(ctypes.Structure):
    """The streams and events that collbench_run_on_device times, and the functions it calls; see loop.c."""

    _fields_ = [
        ("n", ctypes.c_int64),
        ("streams", ctypes.POINTER(ctypes.c_uint64)),
        ("starts", ctypes.POINTER(ctypes.c_uint64)),
        ("ends", ctypes.POINTER(ctypes.c_uint64)),
        ("comms", ctypes.POINTER(ctypes.c_uint64)),
        ("n_comms", ctypes.c_int64),
        ("record", ctypes.c_void_p),
        ("query", ctypes.c_void_p),
        ("elapsed", ctypes.c_void_p),
        ("async_error", ctypes.c_void_p),
        ("deadline_ns", ctypes.c_int64),
    ]


class BarrierStruct(ctypes.Structure):
    """The state of collbench_sync; see loop.c."""

    _fields_ = [
        ("shared", ctypes.c_void_p),
        ("ranks", ctypes.c_int64),
        ("leader", ctypes.c_int64),
        ("sleeps", ctypes.c_int64),
        ("rounds", ctypes.c_int64),
        ("to", ctypes.POINTER(ctypes.c_int32)),
        ("from_", ctypes.POINTER(ctypes.c_int32)),
    ]


class StateProbeStruct(ctypes.Structure):
    """The state of collbench_ping_pong; see reference.c."""

    _fields_ = [
        ("line", ctypes.c_void_p),
        ("first", ctypes.c_int64),
        ("base", ctypes.c_int64),
        ("rounds", ctypes.c_int64),
        ("deadline_ns", ctypes.c_int64),
    ]


class SegmentStruct(ctypes.Structure):
    """The channels of collbench_pass, and their size; see reference.c."""

    _fields_ = [
        ("out", ctypes.c_void_p),
        ("in_", ctypes.c_void_p),
        ("chunk_bytes", ctypes.c_uint64),
        ("chunks", ctypes.c_int64),
        ("deadline_ns", ctypes.c_int64),
    ]


SHARED_BYTES = 128  # at least sizeof(shared_t) in loop.c


@cache
def library() -> ctypes.CDLL | None:
    """Return the shared object, or None if it was not built (C compiler missing at install): then Python measures, and rows have a flag."""
    for file in sorted(Path(__file__).parent.glob("_loop*.so")):
        try:
            return ctypes.CDLL(str(file))
        except OSError:
            continue
    return None


def address(name: str) -> int:
    """Return the address of a function of the shared object, for a NativeCall. Raises AttributeError if missing."""
    return ctypes.cast(getattr(library(), name), ctypes.c_void_p).value or 0


class NativeSlots:
    """A program in the memory layout of loop.c; keeps everything that it points to alive."""

    def __init__(self, program: Program) -> None:
        self.n = len(program.slots)
        self.structs = (SlotStruct * self.n)()
        self._program, self._calls = program, [_calls(slot) for slot in program.slots]
        for struct, calls in zip(self.structs, self._calls, strict=True):
            struct.calls, struct.n = ctypes.cast(calls, ctypes.POINTER(CallStruct)), len(calls)


def _calls(slot: tuple[Call, ...]) -> ctypes.Array[CallStruct]:
    calls = (CallStruct * len(slot))()
    for struct, call in zip(calls, slot, strict=True):
        if not isinstance(call, NativeCall):
            raise TypeError(f"{call!r} cannot run in the native loop")
        struct.call = call.pointer
        struct.words[: len(call.args)] = [word % 2**64 for word in call.args]
    return calls
