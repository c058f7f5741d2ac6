"""Memory of the host that the GPU reaches."""

from __future__ import annotations

import ctypes
from typing import Any

from cupy.cuda import runtime


class _Held:
    """Freed with the last array that looks at it."""

    def __init__(self, size: int) -> None:
        self.ptr, self.size = runtime.hostAlloc(size, 0), size

    def __del__(self) -> None:
        runtime.freeHost(self.ptr)


class PinnedMemoryPointer:
    """What alloc_pinned_memory returns is of a subclass that is an array of bytes, since only C can offer a buffer otherwise."""

    mem: Any
    ptr: int

    def size(self) -> int:
        return int(self.mem.size)


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    """At least `size` bytes, with Python's buffer interface."""
    held = _Held(size)
    kind: Any = type("PinnedMemoryPointer", (ctypes.c_uint8 * size, PinnedMemoryPointer), {})
    found: PinnedMemoryPointer = kind.from_address(held.ptr)
    found.mem, found.ptr = held, held.ptr
    return found
