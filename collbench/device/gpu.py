"""One GPU: its memory, streams, events, graphs and copies, through cupy, which only this package imports.

cupy provides the parts that NCCL does not have. All interfaces use addresses, so that the native loop and C libraries can use them too.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.device.present import COMPUTE_MODE, EXCLUSIVE, PROHIBITED, UNAVAILABLE, cuda_errors, cupy_runtime
from collbench.device.unavailable import PROHIBITED_REMEDY
from collbench.errors import RunFailed, UsageError
from collbench.units import format_bytes

_TO_DEVICE, _TO_HOST = 1, 2  # cudaMemcpyKind
_OUT_OF_MEMORY = 2  # cudaError_t
# cudaDeviceAttr, by number, since cudaDeviceProp has no clocks and no compute mode since CUDA 13.
_MEMORY_CLOCK_KHZ, _MEMORY_BUS_BITS, _L2_BYTES, _MAJOR, _MINOR = 36, 37, 38, 75, 76
_MODES = {0: "default", PROHIBITED: "prohibited", EXCLUSIVE: "exclusive"}


class Stream:
    """A CUDA stream that is independent of the default stream. `cupy`: cupy's stream object, to launch kernels."""

    def __init__(self) -> None:
        from cupy.cuda import Stream as CupyStream

        self.cupy: Any = CupyStream(non_blocking=True)
        self.address = int(self.cupy.ptr)

    def synchronize(self) -> None:
        """Wait until everything enqueued has completed, without a time limit."""
        self.cupy.synchronize()


class Event:
    """A CUDA event: a point of a stream, with its time."""

    def __init__(self) -> None:
        from cupy.cuda import Event as CupyEvent

        self.cupy: Any = CupyEvent()
        self.address = int(self.cupy.ptr)


class Graph:
    """A CUDA graph captured from a stream. `address` is for cuGraphLaunch once the capture has ended."""

    cupy: Any = None

    @property
    def address(self) -> int:
        """The executable graph."""
        return int(self.cupy.graphExec)


class GpuMemory:
    """`n_bytes` of a GPU's memory at `address`, freed with this object; at the end of the process the driver frees it.

    (Freeing waits for all work of the GPU, so it would never return at an exit after a hang.)
    """

    def __init__(self, gpu: OpenGpu, n_bytes: int) -> None:
        with gpu.use():
            self.address = int(cupy_runtime().malloc(n_bytes))
        self.n_bytes = n_bytes
        weakref.finalize(self, _free, gpu, self.address).atexit = False


def _free(gpu: OpenGpu, address: int) -> None:
    with suppress(RunFailed), gpu.use():  # on a failed GPU nothing can be freed
        cupy_runtime().free(address)


class OpenGpu:
    """The GPU at `index` among those that CUDA shows this process. Raises UsageError if it cannot be used.

    compute_mode   "default", "exclusive", "prohibited" or "unknown"
    memory_rate    the memory bandwidth in bytes per second, from clock and bus width: two transfers per clock, as in data sheets;
                   None if the driver does not report them
    has_kernels    whether collbench's kernels run on it, which fill and compare memory; else the host does
    """

    has_kernels = True

    def __init__(self, index: int) -> None:
        self.index = index
        runtime = cupy_runtime()
        if index >= gpu_count():
            raise UsageError(f"GPU {index} is not there: CUDA shows this process {gpu_count()}")

        def attribute_of(attribute: int) -> int:
            return int(runtime.deviceGetAttribute(attribute, index))

        properties = runtime.getDeviceProperties(index)
        name = properties["name"]
        self.name = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        self.bus_id = str(runtime.deviceGetPCIBusId(index)).lower()
        self.arch = f"sm_{attribute_of(_MAJOR)}{attribute_of(_MINOR)}"
        self.memory_bytes = int(properties["totalGlobalMem"])
        self.l2_bytes = attribute_of(_L2_BYTES)
        self.compute_mode = _MODES.get(attribute_of(COMPUTE_MODE), "unknown")
        self.memory_rate = 2.0 * 1000 * attribute_of(_MEMORY_CLOCK_KHZ) * attribute_of(_MEMORY_BUS_BITS) / 8 or None
        self._claim()

    def _claim(self) -> None:
        """Create this process's context on the GPU. Raises UsageError with the reason if that fails."""
        if self.compute_mode == "prohibited":
            raise UsageError(f"GPU {self.index} ({self.name}) is in prohibited mode: {PROHIBITED_REMEDY}")
        runtime = cupy_runtime()
        try:
            runtime.setDevice(self.index)
            runtime.memGetInfo()
        except runtime.CUDARuntimeError as error:
            raise UsageError(self._refusal(error)) from error

    def _refusal(self, error: Any) -> str:
        gpu = f"GPU {self.index} ({self.name})"
        if error.status == UNAVAILABLE:
            mode = "is in exclusive mode and another process has it" if self.compute_mode == "exclusive" else "is busy or cannot be used"
            return f"{gpu} {mode}: end that process ('nvidia-smi' names it), or 'nvidia-smi -c DEFAULT' lets several share it"
        if error.status == _OUT_OF_MEMORY:
            return f"{gpu} has no memory left even to start on: end the processes that fill it ('nvidia-smi' names them)"
        return f"{gpu} cannot be used ({error}): see 'nvidia-smi' and 'dmesg'"

    @contextmanager
    def use(self) -> Iterator[None]:
        """Make this the current GPU inside the block. CUDA errors become a RunFailed that names the GPU."""
        from cupy.cuda import Device

        try:
            with Device(self.index):
                yield
        except cuda_errors() as error:
            raise RunFailed(f"GPU {self.index} ({self.name}) failed: {error}") from error

    def stream(self) -> Stream:
        """Return a new stream, independent of the default one."""
        with self.use():
            return Stream()

    def event(self) -> Event:
        """Return a new event with timing."""
        with self.use():
            return Event()

    def allocate(self, n_bytes: int) -> GpuMemory:
        """Allocate memory from the driver, without a pool. Raises MemoryError."""
        try:
            return GpuMemory(self, n_bytes)
        except RunFailed as error:
            if getattr(error.__cause__, "status", None) != _OUT_OF_MEMORY:
                raise
            free = format_bytes(self.free_bytes())
            raise MemoryError(
                f"GPU {self.index} ({self.name}) cannot give {format_bytes(n_bytes)}: {free} of {format_bytes(self.memory_bytes)} is free"
            ) from error

    def free_bytes(self) -> int:
        """Return how many bytes can still be allocated."""
        with self.use():
            return int(cupy_runtime().memGetInfo()[0])

    def pinned(self, n_bytes: int) -> NDArray[np.uint8]:
        """Return host memory, [n_bytes], that the GPU can access directly."""
        from cupy.cuda import alloc_pinned_memory

        with self.use():
            return np.frombuffer(alloc_pinned_memory(n_bytes), np.uint8, n_bytes)

    def upload(self, address: int, array: NDArray[Any], stream: Stream) -> None:
        """Copy an array to `address` in the order of `stream`, and wait: the array may change afterwards."""
        contiguous = np.ascontiguousarray(array)
        with self.use():
            cupy_runtime().memcpyAsync(address, contiguous.ctypes.data, contiguous.nbytes, _TO_DEVICE, stream.address)
            stream.synchronize()

    def download(self, address: int, n_bytes: int) -> NDArray[np.uint8]:
        """Return a copy of GPU memory, [n_bytes]. Does not wait for other streams."""
        content = np.empty(n_bytes, np.uint8)
        with self.use():
            cupy_runtime().memcpy(content.ctypes.data, address, n_bytes, _TO_HOST)
        return content

    @contextmanager
    def capture(self, stream: Stream) -> Iterator[Graph]:
        """Capture what is enqueued on `stream` inside the block into the graph, without running it."""
        graph = Graph()
        with self.use():
            stream.cupy.begin_capture()
            try:
                yield graph
            except BaseException:
                with suppress(Exception):  # the capture has failed already, and only the first error matters
                    stream.cupy.end_capture()
                raise
            graph.cupy = stream.cupy.end_capture()


def gpu_count() -> int:
    """Return the number of GPUs that CUDA shows this process; 0 if CUDA does not start."""
    runtime = cupy_runtime()
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError:
        return 0


def driver_address(name: str) -> int:
    """Return the address of a function of the driver's library (cuStreamQuery, cuEventRecord …). Raises AttributeError if it has none."""
    return ctypes.cast(getattr(ctypes.CDLL("libcuda.so.1"), name), ctypes.c_void_p).value or 0


def driver_error(code: int) -> str:
    """Return the driver's text for an error code."""
    text = ctypes.c_char_p()
    with suppress(OSError, AttributeError):
        if ctypes.CDLL("libcuda.so.1").cuGetErrorString(code, ctypes.byref(text)) == 0 and text.value:
            return f"CUDA error {code}: {text.value.decode(errors='replace')}"
    return f"CUDA error {code}"


# Direct access of one GPU to another's memory over NVLink or PCIe, if driver and machine allow it.

_ALREADY = 704  # cudaErrorPeerAccessAlreadyEnabled


def open_peer(gpu: OpenGpu, peer: OpenGpu) -> bool:
    """Enable access of `gpu` to the memory of `peer`. Return False if not possible: copies then go through host memory."""
    runtime = cupy_runtime()
    with gpu.use():
        if not runtime.deviceCanAccessPeer(gpu.index, peer.index):
            return False
        try:
            runtime.deviceEnablePeerAccess(peer.index)
        except runtime.CUDARuntimeError as error:
            if error.status != _ALREADY:
                raise
    return True
