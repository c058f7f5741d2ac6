"""GPUs, streams, events, graphs and pinned memory."""

from cupy.cuda import driver, nvrtc, runtime
from cupy.cuda._device import Device
from cupy.cuda._pinned import PinnedMemoryPointer, alloc_pinned_memory
from cupy.cuda._stream import Event, Graph, Stream, get_elapsed_time

__all__ = [
    "Device", "Event", "Graph", "PinnedMemoryPointer", "Stream", "alloc_pinned_memory", "driver", "get_elapsed_time", "nvrtc", "runtime",
]  # fmt: skip
