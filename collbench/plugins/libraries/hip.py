"""AMD GPUs through HIP's runtime, libamdhip64, by ctypes: memory, streams, events, graphs and copies, as `device/gpu` has them for CUDA.

It was written from HIP's headers, and has run on a test double only, never on hardware. It has no kernels: the host checks data.
"""

from __future__ import annotations

import ctypes
import os
import re
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from collbench.device.gpu import Event, GpuMemory, Graph, OpenGpu, Stream
from collbench.device.platform import GpuPlatform
from collbench.device.present import EXCLUSIVE, PROHIBITED, Identity
from collbench.device.unavailable import Obstacle
from collbench.errors import RunFailed, UsageError
from collbench.reason import Fact
from collbench.units import format_bytes

# HIP's constants, by the names of its headers: hip_runtime_api.h and driver_types.h of ROCm/HIP 6.3 (commit c5e11fca, 2024-10-16) and of
# HIP 5.2 (Debian's libamdhip64-dev 5.2.3); both have the same numbers. A test compares them with the facts in tests/fake_gpu/facts.
CONSTANTS: Mapping[str, int] = {
    "hipSuccess": 0,
    "hipErrorOutOfMemory": 2,
    "hipErrorInsufficientDriver": 35,
    "hipErrorNoDevice": 100,
    "hipErrorNotReady": 600,
    "hipMemcpyHostToDevice": 1,
    "hipMemcpyDeviceToHost": 2,
    "hipStreamNonBlocking": 1,
    "hipEventDefault": 0,
    "hipHostMallocDefault": 0,
    "hipStreamCaptureModeGlobal": 0,
    "hipDeviceAttributeComputeMode": 6,
    "hipDeviceAttributeL2CacheSize": 19,
    "hipDeviceAttributeMemoryBusWidth": 59,
    "hipDeviceAttributeMemoryClockRate": 60,
    "hipComputeModeProhibited": PROHIBITED,
    "hipComputeModeExclusiveProcess": EXCLUSIVE,
}
FUNCTIONS = frozenset((
    "hipGetDeviceCount", "hipGetDevice", "hipSetDevice", "hipDeviceGetName", "hipDeviceTotalMem", "hipDeviceGetPCIBusId",
    "hipDeviceGetAttribute", "hipMalloc", "hipFree", "hipHostMalloc", "hipHostFree", "hipMemGetInfo", "hipMemcpy", "hipMemcpyAsync",
    "hipStreamCreateWithFlags", "hipStreamDestroy", "hipStreamQuery", "hipStreamSynchronize", "hipStreamWaitEvent",
    "hipEventCreateWithFlags", "hipEventDestroy", "hipEventRecord", "hipEventElapsedTime", "hipStreamBeginCapture", "hipStreamEndCapture",
    "hipGraphInstantiate", "hipGraphLaunch", "hipGraphExecDestroy", "hipGraphDestroy", "hipGetErrorString", "hipRuntimeGetVersion",
    "hipDriverGetVersion",
))  # fmt: skip
_SONAMES = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so")
_BUS_ID_BYTES = 32
_NAME_BYTES = 256


class NoHip(Obstacle, Fact, frozen=True):
    """HIP's runtime, libamdhip64, cannot be loaded."""

    CAUSE: ClassVar[str] = "no HIP runtime found (libamdhip64.so does not load)"
    REMEDY: ClassVar[str] = "install ROCm, and add its libraries to LD_LIBRARY_PATH"


class HipFailed(Obstacle, Fact, frozen=True):
    """HIP could not be initialized."""

    error: str

    def cause(self) -> str:
        """Return the error of HIP."""
        return f"HIP does not start ({self.error})"

    REMEDY: ClassVar[str] = "run 'rocminfo' to check the driver, and that the user is in the groups video and render"


class NoAmdGpu(Obstacle, Fact, frozen=True):
    """HIP is initialized but shows no GPU."""

    CAUSE: ClassVar[str] = "HIP shows no GPU"
    REMEDY: ClassVar[str] = "list the GPUs with 'rocminfo', check HIP_VISIBLE_DEVICES, and start containers with /dev/kfd and /dev/dri"


class HipError(Exception):
    """A call of HIP returned an error; `status` is its code."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"{function}: {hip_error(status)}")
        self.status = status


@cache
def _runtime() -> ctypes.CDLL:
    """Return HIP's runtime, preferably the one that RCCL has loaded. Raises OSError."""
    first_error = None
    for mode in (ctypes.DEFAULT_MODE | os.RTLD_NOLOAD, ctypes.DEFAULT_MODE):
        for name in _SONAMES:
            try:
                return ctypes.CDLL(name, mode=mode)
            except OSError as error:
                first_error = first_error or error
    raise first_error or OSError(_SONAMES[0])


def hip_address(name: str) -> int:
    """Return the address of a function of HIP's runtime. Raises AttributeError if it has none."""
    return ctypes.cast(getattr(_runtime(), name), ctypes.c_void_p).value or 0


def hip_error(code: int) -> str:
    """Return HIP's text for an error code."""
    with suppress(OSError, AttributeError):
        get_error_string = _runtime().hipGetErrorString
        get_error_string.restype = ctypes.c_char_p
        text = get_error_string(code)
        if text:
            return f"HIP error {code}: {text.decode(errors='replace')}"
    return f"HIP error {code}"


def _call(name: str, *arguments: Any) -> None:
    """Call a function on the current GPU of the thread. Integers above 32 bits must be wrapped. Raises HipError."""
    status = getattr(_runtime(), name)(*arguments)
    if status:
        raise HipError(name, status)


def _created(name: str, *arguments: Any) -> int:
    """Return the handle or address that a function writes to its first argument."""
    handle = ctypes.c_void_p()
    _call(name, ctypes.byref(handle), *arguments)
    return handle.value or 0


def _number(name: str, *arguments: Any) -> int:
    number = ctypes.c_int()
    _call(name, ctypes.byref(number), *arguments)
    return number.value


def hip_obstacle(env: Mapping[str, str]) -> Obstacle | None:
    """Return why no AMD GPU can be used in this process, or None if one can. Never raises."""
    try:
        _runtime()
    except OSError:
        return NoHip()
    try:
        return None if _number("hipGetDeviceCount") else NoAmdGpu()
    except (HipError, AttributeError) as error:
        no_device = getattr(error, "status", None) == CONSTANTS["hipErrorNoDevice"]
        return NoAmdGpu() if no_device else HipFailed(str(error))


def hip_identities() -> list[Identity]:
    """Return the GPUs that HIP shows this process, in its order. Raises HipError."""
    return [Identity(_bus_id(index), _attribute("hipDeviceAttributeComputeMode", index) == EXCLUSIVE) for index in range(_count())]


def hip_versions() -> Mapping[str, str]:
    """Return the versions of HIP's runtime and driver, as it numbers them: "6.3.42131"."""
    return {"hip_runtime": _dotted(_number("hipRuntimeGetVersion")), "hip_driver": _dotted(_number("hipDriverGetVersion"))}


def _dotted(number: int) -> str:
    """Return HIP_VERSION as text: 60342131 is 6.3.42131 (hip_version.h)."""
    return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"


def _count() -> int:
    try:
        return _number("hipGetDeviceCount")
    except HipError as error:
        if error.status == CONSTANTS["hipErrorNoDevice"]:
            return 0
        raise


def _bus_id(index: int) -> str:
    text = ctypes.create_string_buffer(_BUS_ID_BYTES)
    _call("hipDeviceGetPCIBusId", text, _BUS_ID_BYTES, index)
    return text.value.decode(errors="replace").lower()


def _attribute(name: str, index: int) -> int:
    """Return an attribute of a GPU; 0 if this version of HIP does not have it."""
    try:
        return _number("hipDeviceGetAttribute", CONSTANTS[name], index)
    except HipError:
        return 0


def architecture(bus_id: str, root: Path = Path("/sys/class/kfd/kfd/topology/nodes")) -> str:
    """Return the target of a GPU from the driver's topology: "gfx942"; "" if it is unknown.

    The driver numbers targets as major × 10000 + minor × 100 + stepping, and has the PCI address in two numbers
    (Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c). The last two digits of a name are hexadecimal.
    """
    address = re.fullmatch(r"([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)\.([0-7])", bus_id)
    if not address:
        return ""
    domain, bus, device, function = (int(part, 16) for part in address.groups())
    location = bus << 8 | device << 3 | function
    for file in root.glob("*/properties"):
        with suppress(OSError, ValueError):
            facts = {name: int(value) for name, value in (line.split() for line in file.read_text(errors="replace").splitlines())}
            target = facts.get("gfx_target_version")
            if target and facts.get("domain") == domain and facts.get("location_id") == location:
                return f"gfx{target // 10_000}{target // 100 % 100:x}{target % 100:x}"
    return ""


class HipStream(Stream):
    """A HIP stream that is independent of the default stream."""

    def __init__(self) -> None:
        self.address = _created("hipStreamCreateWithFlags", CONSTANTS["hipStreamNonBlocking"])
        weakref.finalize(self, _quietly, "hipStreamDestroy", self.address).atexit = False

    def synchronize(self) -> None:
        """Wait until everything enqueued has completed, without a time limit. Raises HipError."""
        _call("hipStreamSynchronize", ctypes.c_void_p(self.address))


class HipEvent(Event):
    """A HIP event: a point of a stream, with its time."""

    def __init__(self) -> None:
        self.address = _created("hipEventCreateWithFlags", CONSTANTS["hipEventDefault"])
        weakref.finalize(self, _quietly, "hipEventDestroy", self.address).atexit = False


class HipGraph(Graph):
    """A HIP graph captured from a stream. `address` is for hipGraphLaunch once the capture has ended."""

    _executable = 0

    @property
    def address(self) -> int:
        """The executable graph."""
        return self._executable

    def hold(self, captured: int) -> None:
        """Make the graph of a capture executable. Raises HipError."""
        weakref.finalize(self, _quietly, "hipGraphDestroy", captured).atexit = False
        self._executable = _created("hipGraphInstantiate", ctypes.c_void_p(captured), None, None, ctypes.c_size_t(0))
        weakref.finalize(self, _quietly, "hipGraphExecDestroy", self._executable).atexit = False


class HipMemory(GpuMemory):
    """`n_bytes` of an AMD GPU's memory at `address`, freed with this object; at the end of the process the driver frees it."""

    def __init__(self, gpu: HipGpu, n_bytes: int) -> None:
        with gpu.use():
            self.address = _created("hipMalloc", ctypes.c_size_t(n_bytes)) if n_bytes else 0
        self.n_bytes = n_bytes
        weakref.finalize(self, _free, gpu, self.address).atexit = False


def _quietly(name: str, address: int) -> None:
    with suppress(HipError):  # on a failed GPU nothing can be freed
        _call(name, ctypes.c_void_p(address))


def _free(gpu: HipGpu, address: int) -> None:
    with suppress(RunFailed), gpu.use():
        _call("hipFree", ctypes.c_void_p(address))


class HipGpu(OpenGpu):
    """The AMD GPU at `index` among those that HIP shows this process; see `OpenGpu`. `arch`: "gfx942", or "" if it is unknown.

    Raises UsageError if it cannot be used.
    """

    has_kernels = False

    def __init__(self, index: int) -> None:
        self.index = index
        if index >= _count():
            raise UsageError(f"GPU {index} is not there: HIP shows this process {_count()}")
        name = ctypes.create_string_buffer(_NAME_BYTES)
        memory_bytes = ctypes.c_size_t()
        try:
            _call("hipDeviceGetName", name, _NAME_BYTES, index)
            _call("hipDeviceTotalMem", ctypes.byref(memory_bytes), index)
            self.bus_id = _bus_id(index)
        except HipError as error:
            raise UsageError(f"GPU {index} cannot be used ({error}): see 'rocminfo' and 'dmesg'") from error
        self.name = name.value.decode(errors="replace")
        self.arch = architecture(self.bus_id)
        self.memory_bytes = memory_bytes.value
        self.l2_bytes = _attribute("hipDeviceAttributeL2CacheSize", index)
        mode = _attribute("hipDeviceAttributeComputeMode", index)
        self.compute_mode = {0: "default", PROHIBITED: "prohibited", EXCLUSIVE: "exclusive"}.get(mode, "unknown")
        clock_khz = _attribute("hipDeviceAttributeMemoryClockRate", index)
        bus_bits = _attribute("hipDeviceAttributeMemoryBusWidth", index)
        self.memory_rate = 2.0 * 1000 * clock_khz * bus_bits / 8 or None
        try:
            self.free_bytes()
        except RunFailed as error:
            raise UsageError(f"{error}: see 'rocminfo' and 'dmesg'") from error

    @contextmanager
    def use(self) -> Iterator[None]:
        """Make this the current GPU inside the block. HIP errors become a RunFailed that names the GPU."""
        try:
            before = _number("hipGetDevice")
            _call("hipSetDevice", self.index)
            try:
                yield
            finally:
                _call("hipSetDevice", before)
        except HipError as error:
            raise RunFailed(f"GPU {self.index} ({self.name}) failed: {error}") from error

    def stream(self) -> HipStream:
        """Return a new stream, independent of the default one."""
        with self.use():
            return HipStream()

    def event(self) -> HipEvent:
        """Return a new event with timing."""
        with self.use():
            return HipEvent()

    def allocate(self, n_bytes: int) -> HipMemory:
        """Allocate memory from the driver, without a pool. Raises MemoryError."""
        try:
            return HipMemory(self, n_bytes)
        except RunFailed as error:
            if getattr(error.__cause__, "status", None) != CONSTANTS["hipErrorOutOfMemory"]:
                raise
            free = f"{format_bytes(self.free_bytes())} of {format_bytes(self.memory_bytes)} is free"
            raise MemoryError(f"GPU {self.index} ({self.name}) cannot give {format_bytes(n_bytes)}: {free}") from error

    def free_bytes(self) -> int:
        """Return how many bytes can still be allocated."""
        free = ctypes.c_size_t()
        total = ctypes.c_size_t()
        with self.use():
            _call("hipMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def pinned(self, n_bytes: int) -> NDArray[np.uint8]:
        """Return host memory, [n_bytes], that the GPU can access directly. It is freed with the array."""
        with self.use():
            address = _created("hipHostMalloc", ctypes.c_size_t(n_bytes), CONSTANTS["hipHostMallocDefault"])
        memory = (ctypes.c_uint8 * n_bytes).from_address(address)
        weakref.finalize(memory, _quietly, "hipHostFree", address).atexit = False
        array: NDArray[np.uint8] = np.ctypeslib.as_array(memory)
        return array

    def upload(self, address: int, array: NDArray[Any], stream: Stream) -> None:
        """Copy an array to `address` in the order of `stream`, and wait: the array may change afterwards."""
        source = np.ascontiguousarray(array)
        addresses = (ctypes.c_void_p(address), ctypes.c_void_p(source.ctypes.data))
        kind = CONSTANTS["hipMemcpyHostToDevice"]
        with self.use():
            _call("hipMemcpyAsync", *addresses, ctypes.c_size_t(source.nbytes), kind, ctypes.c_void_p(stream.address))
            stream.synchronize()

    def download(self, address: int, n_bytes: int) -> NDArray[np.uint8]:
        """Return a copy of GPU memory, [n_bytes]. Does not wait for other streams."""
        copy = np.empty(n_bytes, np.uint8)
        addresses = (ctypes.c_void_p(copy.ctypes.data), ctypes.c_void_p(address))
        with self.use():
            _call("hipMemcpy", *addresses, ctypes.c_size_t(n_bytes), CONSTANTS["hipMemcpyDeviceToHost"])
        return copy

    @contextmanager
    def capture(self, stream: Stream) -> Iterator[HipGraph]:
        """Capture what is enqueued on `stream` inside the block into the graph, without running it."""
        graph = HipGraph()
        with self.use():
            _call("hipStreamBeginCapture", ctypes.c_void_p(stream.address), CONSTANTS["hipStreamCaptureModeGlobal"])
            try:
                yield graph
            except BaseException:
                with suppress(HipError):  # the capture has failed already, and only the first error matters
                    _end_capture(stream)
                raise
            graph.hold(_end_capture(stream))


def _end_capture(stream: Stream) -> int:
    graph = ctypes.c_void_p()
    _call("hipStreamEndCapture", ctypes.c_void_p(stream.address), ctypes.byref(graph))
    return graph.value or 0


def hip() -> GpuPlatform:
    """Return the runtime of AMD's GPUs. Loads nothing."""
    return GpuPlatform(
        "HIP", hip_obstacle, hip_identities, hip_versions, HipGpu, hip_address, hip_error,
        record="hipEventRecord", query="hipStreamQuery", elapsed="hipEventElapsedTime", launch="hipGraphLaunch", wait="hipStreamWaitEvent",
    )  # fmt: skip
