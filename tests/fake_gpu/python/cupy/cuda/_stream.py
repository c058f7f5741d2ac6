"""Streams, events and graphs."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from cupy import _libcuda
from cupy._libcuda import word

_NON_BLOCKING, _NO_TIMING = 1, 2
_current = threading.local()


def _handle(function: str, *arguments: Any) -> int:
    made = ctypes.c_void_p()
    _libcuda.call(function, ctypes.byref(made), *arguments)
    return made.value or 0


def current_address() -> int:
    """The stream that this thread uses where none is named; 0 is the null stream."""
    return getattr(_current, "address", 0)


class Event:
    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.ptr = _handle("cuEventCreate", _NO_TIMING if disable_timing else 0)

    def __del__(self) -> None:
        if ptr := getattr(self, "ptr", 0):
            _libcuda.library().cuEventDestroy_v2(word(ptr))

    @property
    def done(self) -> bool:
        return int(_libcuda.library().cuEventQuery(word(self.ptr))) == 0

    def record(self, stream: Stream | None = None) -> None:
        _libcuda.call("cuEventRecord", word(self.ptr), word(stream.ptr if stream else current_address()))

    def synchronize(self) -> None:
        _libcuda.call("cuEventSynchronize", word(self.ptr))


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Milliseconds."""
    ms = ctypes.c_float()
    _libcuda.call("cuEventElapsedTime", ctypes.byref(ms), word(start_event.ptr), word(end_event.ptr))
    return ms.value


class Graph:
    def __init__(self, graph: int, executable: int) -> None:
        self.graph, self.graphExec = graph, executable

    def __del__(self) -> None:
        _libcuda.library().cuGraphExecDestroy(word(self.graphExec))
        _libcuda.library().cuGraphDestroy(word(self.graph))

    def launch(self, stream: Stream | None = None) -> None:
        _libcuda.call("cuGraphLaunch", word(self.graphExec), word(stream.ptr if stream else current_address()))

    def upload(self, stream: Stream | None = None) -> None:
        _libcuda.call("cuGraphUpload", word(self.graphExec), word(stream.ptr if stream else current_address()))


class Stream:
    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None) -> None:
        self.ptr = 0 if null else _handle("cuStreamCreate", _NON_BLOCKING if non_blocking else 0)

    def __del__(self) -> None:
        if ptr := getattr(self, "ptr", 0):
            _libcuda.library().cuStreamDestroy_v2(word(ptr))

    def __enter__(self) -> Stream:
        self._before = current_address()
        _current.address = self.ptr
        return self

    def __exit__(self, *_: object) -> None:
        _current.address = self._before

    def use(self) -> Stream:
        _current.address = self.ptr
        return self

    @property
    def done(self) -> bool:
        return int(_libcuda.library().cuStreamQuery(word(self.ptr))) == 0

    def synchronize(self) -> None:
        _libcuda.call("cuStreamSynchronize", word(self.ptr))

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """What comes later on it waits for the event."""
        _libcuda.call("cuStreamWaitEvent", word(self.ptr), word(event.ptr), 0)

    def begin_capture(self, mode: int | None = None) -> None:
        """What is enqueued from now on is kept and not run; mode 0 global, 1 this thread, 2 relaxed (the default)."""
        _libcuda.call("cuStreamBeginCapture_v2", word(self.ptr), 2 if mode is None else mode)

    def is_capturing(self) -> bool:
        status = ctypes.c_int()
        _libcuda.call("cuStreamIsCapturing", word(self.ptr), ctypes.byref(status))
        return bool(status.value)

    def end_capture(self) -> Graph:
        graph = _handle_after("cuStreamEndCapture", self.ptr)
        return Graph(graph, _handle("cuGraphInstantiateWithFlags", word(graph), word(0)))


def _handle_after(function: str, stream: int) -> int:
    made = ctypes.c_void_p()
    _libcuda.call(function, word(stream), ctypes.byref(made))
    return made.value or 0
