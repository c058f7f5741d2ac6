"""Several ranks in one process, driven by ctypes: for checks of the double itself. Only to be imported where the double is found."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cupy
import ml_dtypes
import numpy as np

# By NCCL's numbers.
DTYPES: tuple[Any, ...] = (
    np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32, np.float64,
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
)  # fmt: skip
NCCL = ctypes.CDLL("libnccl.so.2")
NCCL.ncclGetErrorString.restype = NCCL.ncclGetLastError.restype = ctypes.c_char_p


def libcuda() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


class UniqueId(ctypes.Structure):
    """128 bytes, passed whole."""

    _fields_ = (("internal", ctypes.c_char * 128),)


def check(code: int) -> None:
    if code:
        raise RuntimeError(NCCL.ncclGetErrorString(code).decode())


class Ranks:
    """A communicator of n ranks, each on its GPU and a stream."""

    def __init__(self, n: int, devices: Sequence[int] | None = None) -> None:
        self.n = n
        identity = UniqueId()
        check(NCCL.ncclGetUniqueId(ctypes.byref(identity)))
        self.comms = [ctypes.c_void_p() for _ in range(n)]
        self.streams = []
        with self.group():
            for rank, device in enumerate(devices or range(n)):
                with cupy.cuda.Device(device):
                    check(NCCL.ncclCommInitRank(ctypes.byref(self.comms[rank]), n, identity, rank))
                    self.streams.append(cupy.cuda.Stream(non_blocking=True))

    @contextmanager
    def group(self) -> Iterator[None]:
        """Calls inside go out together."""
        check(NCCL.ncclGroupStart())
        try:
            yield
        finally:
            code = NCCL.ncclGroupEnd()
        check(code)

    def one(self, name: str, rank: int, *words: int) -> None:
        """One rank's call; communicator and stream are appended."""
        arguments = [ctypes.c_uint64(word) for word in words]
        check(getattr(NCCL, name)(*arguments, self.comms[rank], ctypes.c_void_p(self.streams[rank].ptr)))

    def call(self, name: str, words: Sequence[tuple[int, ...]]) -> None:
        with self.group():
            for rank in range(self.n):
                self.one(name, rank, *words[rank])

    def run(self, name: str, sent: Sequence[np.ndarray], count: int, rest: tuple[int, ...], receive: int | None = None) -> list[np.ndarray]:
        """What each rank has received after a call out of place; zeros where nothing arrived."""
        got = [np.zeros(receive or count, sent[0].dtype) for _ in sent]
        self.call(name, [(a.ctypes.data, b.ctypes.data, count, *rest) for a, b in zip(sent, got, strict=True)])
        self.wait()
        return got

    def query(self, rank: int) -> int:
        return int(libcuda().cuStreamQuery(ctypes.c_void_p(self.streams[rank].ptr)))

    def async_error(self, rank: int) -> int:
        code = ctypes.c_int(-1)
        check(NCCL.ncclCommGetAsyncError(self.comms[rank], ctypes.byref(code)))
        return code.value

    def wait(self) -> None:
        for stream in self.streams:
            stream.synchronize()

    def abort(self) -> None:
        with self.group():
            for comm in self.comms:
                NCCL.ncclCommAbort(comm)

    def close(self) -> None:
        for comm in self.comms:
            NCCL.ncclCommDestroy(comm)
