"""The kernels of cuda_kernels/: compiled on demand, loaded and launched on one GPU. Launches are asynchronous; sizes are in bytes."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from collbench.compiled import compiled, key_of
from collbench.device.gpu import OpenGpu, Stream, driver_address, driver_error
from collbench.device.present import cupy_runtime
from collbench.errors import RunFailed, UsageError
from collbench.operations.program import MAX_ARGS, NativeCall

# The kernels of cuda_kernels/ as a cubin for one GPU architecture: compiled by NVRTC at run time, and stored for the next start.
#
# A cubin contains machine code, so the driver compiles nothing when a measurement starts.

_FILES = ("verify.cu", "bandwidth.cu", "peer.cu", "sync.cu", "work.cu")
_HEADERS = ("vectors.h",)
_PROGRAM = "".join(f'#include "{name}"\n' for name in _FILES)
_OPTIONS = ("-std=c++17",)
Sources = Mapping[str, bytes]


def cubin(arch: str) -> Path:
    """Return the file with all kernels for `arch` ("sm_90"), for cupy.RawModule(path=…).

    Raises UsageError if NVRTC is missing or too old for the GPU, or no folder is writable; RunFailed if the kernels do not
    compile.
    """
    source = source_folder()
    sources = {name: (source / name).read_bytes() for name in (*_FILES, *_HEADERS)}
    version = ".".join(map(str, _nvrtc().getVersion()))
    parts = [arch.encode(), version.encode(), repr((_PROGRAM, _OPTIONS)).encode(), *sources.values()]
    return compiled(f"kernels-{arch}-{key_of(*parts)}", ".cubin", lambda: _compiled(arch, sources))


def source_folder() -> Path:
    """Return the folder of the .cu files: inside an installed package, or in the checkout. Raises RunFailed if missing."""
    package = Path(__file__).parents[1]
    for folder in (package / "cuda_kernels", package.parent / "cuda_kernels"):
        if (folder / _FILES[0]).is_file():
            return folder
    raise RunFailed(f"the sources of the CUDA kernels are missing beside {package}: install collbench again")


def _nvrtc() -> Any:
    """Return cupy's NVRTC. Raises UsageError if it is missing."""
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except Exception as error:  # cupy loads the library at the first call, and raises several kinds of errors if it is missing
        raise UsageError(
            f"NVRTC, which compiles the kernels that fill and verify GPU memory, does not load ({error}): "
            "install collbench with its extra cuda13 (or cuda12)"
        ) from error
    return nvrtc


def _compiled(arch: str, sources: Sources) -> bytes:
    nvrtc = _nvrtc()
    headers = [(name.encode(), text) for name, text in sources.items()]
    program = nvrtc.createProgram(_PROGRAM, "collbench.cu", [text for _, text in headers], [name for name, _ in headers])
    try:
        nvrtc.compileProgram(program, (f"-arch={arch}", *_OPTIONS))
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        raise _refusal(arch, nvrtc, nvrtc.getProgramLog(program).strip() or str(error)) from error
    finally:
        nvrtc.destroyProgram(program)


def _refusal(arch: str, nvrtc: Any, log: str) -> RunFailed | UsageError:
    version = ".".join(map(str, nvrtc.getVersion()))
    if "gpu-architecture" in log:
        return UsageError(
            f"NVRTC {version} does not know the architecture {arch} of this GPU: bring nvidia-cuda-nvrtc up to date (extras cuda12 and "
            "cuda13), or for an old GPU take the one of an older CUDA"
        )
    return RunFailed(f"NVRTC {version} does not compile collbench's kernels for {arch}: {log}")


THREADS = 256  # of a block, as in vectors.h
VECTOR = 16  # bytes of one load
NONE = 2**64 - 1  # the index of the first wrong element if none is wrong
_BLOCKS_AT_ONCE = 4  # of a multiprocessor, as in vectors.h
_UNROLLED = 4  # vectors of a thread, in the kernels that take one tile per block
_MULTIPROCESSORS = 16  # cudaDevAttrMultiProcessorCount
_WIDTHS = (1, 2, 4, 8)
_NAMES = (
    "fill", "verify", "no_errors", "corrupt", "read_memory", "write_memory", "copy", "triad", "reduce_copy",
    "peer_read", "peer_write", "peer_both", "pingpong", "pointer_chase", "hold", "flush", "delay",
    "work_begins", "work", "work_ends",
)  # fmt: skip


class Kernels:
    """The kernels of one GPU. Addresses are in its memory, or in memory mapped into its address space.

    Raises as `cubin` does.
    """

    def __init__(self, gpu: OpenGpu) -> None:
        from cupy import RawModule

        self._gpu = gpu
        self._arguments: list[object] = []  # of the calls, which must live as long as this object
        with gpu.use():
            module = RawModule(path=str(cubin(gpu.arch)))
            self._functions = {name: module.get_function(name) for name in _NAMES}
            self.at_once = _BLOCKS_AT_ONCE * int(cupy_runtime().deviceGetAttribute(_MULTIPROCESSORS, gpu.index))

    def fill(self, stream: Stream, address: int, n_bytes: int, table_address: int, table_bytes: int) -> None:
        """Repeat a table of bytes over memory, starting with the table's first byte."""
        _not_empty(table_bytes)
        self._launch("fill", stream, self._resident(n_bytes), address, n_bytes, table_address, table_bytes)

    def verify(self, stream: Stream, address: int, n_bytes: int, table_address: int, table_bytes: int,
               *, width: int, tolerance: int, result_address: int) -> None:  # fmt: skip
        """Compare elements of `width` bytes with the repeated table.

        result_address: two words, the count of wrong elements and the index of the first one (NONE: none).
        tolerance: allowed difference in steps of the bit pattern, in the order of floating-point numbers; 0: exact.
        Expected values must be farther than that from infinity and NaN.
        """
        _not_empty(table_bytes)
        if width not in _WIDTHS or address % width or n_bytes % width:
            raise ValueError(f"elements of {width} bytes at {address:#x}, {n_bytes} bytes in all: sizes and addresses do not fit")
        self._launch("no_errors", stream, 1, result_address)
        words = (address, n_bytes, table_address, table_bytes, width, tolerance, result_address)
        self._launch("verify", stream, self._resident(n_bytes), *words)

    def corrupt(self, stream: Stream, address: int, offset: int, mask: int) -> None:
        """Flip the bits of `mask` (1 to 255) in the byte at `offset`."""
        self._launch("corrupt", stream, 1, address, offset, mask)

    @property
    def sums_bytes(self) -> int:
        """The bytes that `read` needs for its sums."""
        return self.at_once * THREADS * 8

    def read(self, stream: Stream, address: int, n_bytes: int, sums: int) -> None:
        """Read memory. The words at `sums` then add up (modulo 2^64) to the sum of its 64-bit words."""
        self._launch("read_memory", stream, self.at_once, address, _vectors(n_bytes), sums)

    def write(self, stream: Stream, address: int, n_bytes: int, value: int) -> None:
        """Write a 64-bit word and its complement, alternating."""
        self._launch("write_memory", stream, _tiles(n_bytes), address, _vectors(n_bytes), value)

    def copy(self, stream: Stream, to: int, source: int, n_bytes: int) -> None:
        """Copy memory of this GPU."""
        self._launch("copy", stream, _tiles(n_bytes), to, source, _vectors(n_bytes))

    def triad(self, stream: Stream, a: int, b: int, c: int, n_bytes: int, *, scale: float) -> None:
        """Compute a = b + scale · c in float64, n_bytes each."""
        bits = struct.unpack("<Q", struct.pack("<d", scale))[0]
        self._launch("triad", stream, _tiles(n_bytes), a, b, c, _vectors(n_bytes), bits)

    def reduce_copy(self, stream: Stream, out: int, a: int, b: int, n_bytes: int) -> None:
        """Compute out = a + b in float32, n_bytes each: one step of a ring."""
        self._launch("reduce_copy", stream, _tiles(n_bytes), out, a, b, _vectors(n_bytes))

    def peer_read(self, stream: Stream, local: int, remote: int, n_bytes: int) -> None:
        """Copy a peer's memory to this GPU, with loads."""
        self._launch("peer_read", stream, _tiles(n_bytes), local, remote, _vectors(n_bytes))

    def peer_write(self, stream: Stream, remote: int, local: int, n_bytes: int) -> None:
        """Copy memory of this GPU to a peer, with stores."""
        self._launch("peer_write", stream, _tiles(n_bytes), remote, local, _vectors(n_bytes))

    def peer_both(self, stream: Stream, here_out: int, there_in: int, there_out: int, here_in: int, *, n_bytes: int) -> None:
        """Copy n_bytes in each direction at the same time: here_out = there_in, there_out = here_in."""
        self._launch("peer_both", stream, 2 * _tiles(n_bytes), here_out, there_in, there_out, here_in, _vectors(n_bytes))

    def pingpong(self, stream: Stream, own: int, peer: int, *, rounds: int, starts: bool, timeout_ns: int, result: int) -> None:
        """Exchange a word between two launches, one of which `starts`; both words are 0 before.

        result: two words, the completed round trips (fewer than `rounds`: timed out) and their nanoseconds.
        """
        self._launch("pingpong", stream, 1, own, peer, rounds, int(starts), timeout_ns, result)

    def pointer_chase(self, stream: Stream, chain: int, start: int, steps: int, result: int) -> None:
        """Follow a chain of 64-bit indices; result: two words, the final index and the nanoseconds."""
        self._launch("pointer_chase", stream, 1, chain, start, steps, result)

    def hold(self, stream: Stream, latch: int, timeout_ns: int, result: int) -> None:
        """Hold the stream until the host writes the word at `latch`; result: one word, 1 released, 2 timed out.

        Every kernel that is enqueued during the hold must have run before, since CUDA may delay the load of a new kernel.
        """
        self._launch("hold", stream, 1, latch, timeout_ns, result)

    def flush(self, stream: Stream, address: int, n_bytes: int) -> None:
        """Read and write memory of the level-2 cache's size, so that nothing else stays in it."""
        self._launch("flush", stream, _tiles(n_bytes), address, _vectors(n_bytes))

    def delay(self, stream: Stream, wait_ns: int) -> None:
        """Keep the stream busy for `wait_ns` nanoseconds."""
        self._launch("delay", stream, 1, wait_ns)

    def call(self, stream: Stream, name: str, blocks: int, *arguments: int | ctypes.c_uint64) -> NativeCall:
        """Return the launch of a kernel as a call of the driver, for the native loop.

        arguments: words; a `c_uint64` is read at each launch. They live as long as this object.
        """
        words = [argument if isinstance(argument, ctypes.c_uint64) else ctypes.c_uint64(argument) for argument in arguments]
        words += [ctypes.c_uint64()] * (MAX_ARGS - len(words))  # the driver reads as many as the kernel has
        places = (ctypes.c_void_p * MAX_ARGS)(*map(ctypes.addressof, words))
        self._arguments.append((words, places))
        driver = ctypes.CDLL("libcuda.so.1")
        function = ctypes.c_void_p()
        with self._gpu.use():
            code = driver.cuModuleGetFunction(ctypes.byref(function), self._module, name.encode())
        if code:
            raise RunFailed(f"the kernel {name} does not load on GPU {self._gpu.index}: {driver_error(code)}")
        launch = (function.value or 0, blocks, 1, 1, THREADS, 1, 1, 0, stream.address, ctypes.addressof(places), 0)
        return NativeCall("cuLaunchKernel", driver_address("cuLaunchKernel"), launch)

    @cached_property
    def _module(self) -> ctypes.c_void_p:
        driver = ctypes.CDLL("libcuda.so.1")
        module = ctypes.c_void_p()
        with self._gpu.use():
            code = driver.cuModuleLoad(ctypes.byref(module), str(cubin(self._gpu.arch)).encode())
        if code:
            raise RunFailed(f"the kernels that compute on GPU {self._gpu.index} do not load: {driver_error(code)}")
        return module

    def _resident(self, n_bytes: int) -> int:
        """Return the number of blocks: at most what the GPU runs at once, and no more than needed."""
        return max(1, min(self.at_once, ceil(n_bytes / (VECTOR * THREADS))))

    def _launch(self, name: str, stream: Stream, blocks: int, *arguments: int) -> None:
        """Launch a kernel with 64-bit arguments. Kernels with a single block use one thread; the others exit at once."""
        words: tuple[Any, ...] = tuple(np.uint64(word) for word in arguments)
        with self._gpu.use():
            self._functions[name]((blocks,), (THREADS,), words, stream=stream.cupy)


def _vectors(n_bytes: int) -> int:
    """Return n_bytes. Raises ValueError if it is not a multiple of the vector size."""
    if n_bytes % VECTOR:
        raise ValueError(f"{n_bytes} bytes are not a multiple of {VECTOR}")
    return n_bytes


def _tiles(n_bytes: int) -> int:
    return max(1, ceil(n_bytes / (VECTOR * THREADS * _UNROLLED)))


def _not_empty(table_bytes: int) -> None:
    if table_bytes <= 0:
        raise ValueError("the table is empty")
