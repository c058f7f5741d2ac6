"""The storage channels of `collbench probe --measure --scratch DIR`: direct reads of a file to host memory and to each GPU.

The file is collbench's own; several threads read it, with a proof that no page cache took part.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.errors import RunFailed
from collbench.measuring.sync import at_once
from collbench.plugins.channels.records import Channel
from collbench.plugins.channels.storage_devices import IN_MEMORY, OWN_CACHE, Storage, read_bytes, storage_of
from collbench.plugins.channels.task import ChannelJob, against, from_rates, from_times
from collbench.plugins.channels.tcp_streams import COUNTED
from collbench.units import format_bytes, format_size, format_time

if TYPE_CHECKING:
    from collbench.device.gpu import OpenGpu
    from collbench.plugins.channels.cufile import CuFile

# The file. It has no name from the moment it is open, so that the kernel removes it however the process ends.

WRITE_S = 10.0  # a slow device gets a smaller file
_CHUNK = 8 * 2**20
_SHIFT, _SHIFTS = 4099, 2**20  # chunks differ, so that neither compression nor deduplication makes reads cheaper
_LEAST_BYTES = 2 * _CHUNK
_PART = 10  # of the free space
_REMEDY = "name a folder on a local disk with `--scratch`"
_CACHED = 0.01  # of the file, at most, in the page cache
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ScratchFile:
    """A file of incompressible data in `folder`, open for direct reads. Use it as a context: it is gone afterwards.

    n_bytes   of the file: at most `most_bytes` and a tenth of the free space, and what could be written in WRITE_S
    storage   the file system and the device below it

    Raises RunFailed with the reason if the folder does not support direct reads, or if the space is too small.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder = folder
        try:
            self.storage = storage_of(folder)
            room = os.statvfs(folder)
        except OSError as error:
            raise RunFailed(f"{folder} cannot be used ({error.strerror}): {_REMEDY}") from error
        self._free = room.f_bavail * room.f_frsize
        self._wanted = min(most_bytes, self._free // _PART) // _CHUNK * _CHUNK
        self._check()
        self._base = np.random.default_rng(20261123).integers(0, 256, _CHUNK + _SHIFTS, np.uint8)
        self.fd = self._open()
        try:
            self.n_bytes = at_once([self._write], f"writing a file to {folder}", 6 * WRITE_S)[0]
        except OSError as error:
            self.close()
            full = error.errno in _FULL
            why = f"{folder} is full: {format_bytes(self._free)} were free" if full else f"{folder} cannot be written ({error.strerror})"
            raise RunFailed(f"{why}; {_REMEDY}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, which removes it. A second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def expected(self, offset: int, n_bytes: int) -> NDArray[np.uint8]:
        """Return the bytes at `offset`; they must lie within one chunk."""
        place, within = divmod(offset, _CHUNK)
        start = place * _SHIFT % _SHIFTS + within
        return self._base[start : start + n_bytes]

    def cached_bytes(self) -> int | None:
        """Return how much of the file the page cache has; None if the kernel does not report it."""
        pages = -(-self.n_bytes // mmap.PAGESIZE)
        flags = (ctypes.c_ubyte * pages)()
        with mmap.mmap(self.fd, self.n_bytes, prot=mmap.PROT_READ | mmap.PROT_WRITE) as view:
            start = ctypes.c_char.from_buffer(view)
            failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(self.n_bytes), flags)
            del start
        return None if failed else int((np.frombuffer(bytes(flags), np.uint8) & 1).sum()) * mmap.PAGESIZE

    def _check(self) -> None:
        kind = self.storage.kind
        if self.storage.family in IN_MEMORY:
            raise RunFailed(f"{self.folder} is in memory ({kind}): {_REMEDY}")
        if self.storage.family in OWN_CACHE:
            raise RunFailed(f"{self.folder} is on {kind}, which may answer direct reads from its own cache: {_REMEDY}")
        if self._wanted < _LEAST_BYTES:
            raise RunFailed(
                f"{self.folder} has {format_bytes(self._free)} of free space; the file may take a tenth of it and needs "
                f"{format_bytes(_LEAST_BYTES)}: {_REMEDY}"
            )

    def _open(self) -> int:
        path = self.folder / f".collbench-storage-{os.getpid()}-{os.urandom(8).hex()}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(path, flags | os.O_DIRECT, 0o600)
        except OSError as error:
            path.unlink(missing_ok=True)  # some file systems refuse direct access after they made the file
            if error.errno == errno.EINVAL:
                raise RunFailed(f"{self.folder} ({self.storage.kind}) does not support direct reads (O_DIRECT): {_REMEDY}") from error
            raise RunFailed(f"{self.folder} cannot be written ({error.strerror}): {_REMEDY}") from error
        path.unlink()
        return fd

    def _write(self) -> int:
        """Write until the file has its size or the time is over, and return the size."""
        end = time.monotonic() + WRITE_S
        size = 0
        target = np.frombuffer(mmap.mmap(-1, _CHUNK), np.uint8)  # aligned, as direct writes require
        while size < self._wanted and (time.monotonic() < end or size < _LEAST_BYTES):
            target[:] = self.expected(size, _CHUNK)
            if os.pwritev(self.fd, [target.data], size) != _CHUNK:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            size += _CHUNK
        os.fsync(self.fd)
        return size


# The reads: each thread has one read in flight, so that the number of threads is the queue depth.


class StorageReader(ABC):
    """One thread's way to read, and the bytes of its last read."""

    @abstractmethod
    def read(self, offset: int, n_bytes: int) -> None:
        """Read, and return when all bytes are at their target. Raises OSError, RunFailed."""

    @abstractmethod
    def arrived(self, n_bytes: int) -> NDArray[np.uint8]:
        """Return the bytes of the last read."""

    def close(self) -> None:  # noqa: B027 - memory of GPUs goes with its object
        """Free what the reader has."""


def _read_into(buffer: mmap.mmap | memoryview, fd: int, offset: int, n_bytes: int) -> None:
    if os.preadv(fd, [buffer], offset) != n_bytes:
        raise RunFailed(f"the file ended early at {offset} bytes")


class HostReader(StorageReader):
    """Reads into aligned host memory."""

    def __init__(self, fd: int, n_bytes: int) -> None:
        self._fd = fd
        self._map = mmap.mmap(-1, n_bytes)

    def read(self, offset: int, n_bytes: int) -> None:
        """Read into the buffer, which has `n_bytes`."""
        _read_into(self._map, self._fd, offset, n_bytes)

    def arrived(self, n_bytes: int) -> NDArray[np.uint8]:
        """Return a copy of the buffer."""
        return np.frombuffer(bytes(self._map), np.uint8)[:n_bytes]

    def close(self) -> None:
        """Free the buffer."""
        self._map.close()


class ReadPlan(msgspec.Struct, frozen=True):
    """Reads of `block_bytes`, `depth` at once, in the order of the file or at random places, for about `seconds`."""

    block_bytes: int
    depth: int
    seconds: float
    is_random: bool = False


class ReadResult(msgspec.Struct, frozen=True):
    """What the reads gave.

    rates          bytes per second of successive parts of the measurement, all threads together; empty for depth 1
    latencies_s    seconds of each read; only for depth 1
    n_reads        reads in all
    wrong          how the data differ from those written, None if they do not
    cached_bytes   of the file in the page cache afterwards; None: unknown
    device_bytes   that the device's counter shows, other programs' reads included; None: no counter
    """

    rates: NDArray[np.float64]
    latencies_s: NDArray[np.float64]
    n_reads: int
    wrong: str | None
    cached_bytes: int | None
    device_bytes: int | None


_WINDOWS, _MOST_READS, _LEAST_READS = 60, 200_000, 4


class _ReadLog(msgspec.Struct):
    ends: list[float] = msgspec.field(default_factory=list)
    latencies: list[float] = msgspec.field(default_factory=list)
    last: int | None = None


def read_file(file: ScratchFile, plan: ReadPlan, open_reader: Callable[[], StorageReader], patience_s: float) -> ReadResult:
    """Read the file as planned, each thread with a reader of its own, and compare each thread's last block with what was written.

    Raises RunFailed if the file is in the page cache, WaitExpired if reads do not end, and OSError.
    """
    blocks = file.n_bytes // plan.block_bytes
    logs = [_ReadLog() for _ in range(plan.depth)]
    places: Iterator[int] = map(blocks.__rmod__, count())  # one step of the interpreter, so that threads can share it
    if plan.is_random:
        places = iter(np.random.default_rng(1).integers(0, blocks, _MOST_READS).tolist())
    before = read_bytes(file.storage)
    end = time.monotonic() + plan.seconds
    failed = threading.Event()

    def is_over(now: float) -> bool:
        enough = all(len(log.ends) >= _LEAST_READS for log in logs)  # also where a thread had no turn in all that time
        return failed.is_set() or (now >= end and enough) or now >= end + patience_s

    def run(log: _ReadLog) -> str | None:
        try:
            with closing(open_reader()) as reader:
                for place in places:
                    start = time.monotonic()
                    if is_over(start):
                        break
                    reader.read(place * plan.block_bytes, plan.block_bytes)
                    log.ends.append(time.monotonic())
                    log.latencies.append(log.ends[-1] - start)
                    log.last = place * plan.block_bytes
                if log.last is None:
                    return None
                return _difference(reader.arrived(plan.block_bytes), file.expected(log.last, plan.block_bytes))
        except BaseException:
            failed.set()
            raise

    wrongs = at_once([partial(run, log) for log in logs], "reading the file", plan.seconds + 2 * patience_s)
    after = read_bytes(file.storage)
    cached = file.cached_bytes()
    if cached is not None and cached > _CACHED * file.n_bytes:
        share = f"{format_bytes(cached)} of {format_bytes(file.n_bytes)}"
        raise RunFailed(f"the page cache has {share} of the file: {file.storage.kind} does not honor direct reads; {_REMEDY}")
    alone = np.array(logs[0].latencies) if plan.depth == 1 else np.empty(0)
    rates = np.empty(0) if plan.depth == 1 else rates_of([log.ends for log in logs], plan.block_bytes)
    counted = None if before is None or after is None else after - before
    return ReadResult(rates, alone, sum(len(log.ends) for log in logs), next(filter(None, wrongs), None), cached, counted)


def rates_of(ends: Sequence[Sequence[float]], block_bytes: int) -> NDArray[np.float64]:
    """Return the bytes per second of successive groups of completed reads. `ends`: the times at which each thread's reads completed.

    It begins when every thread has completed a read and ends when the first thread stops, so that the queue is full throughout.
    """
    if not all(ends):
        return np.empty(0)
    first = max(of_thread[0] for of_thread in ends)
    last = min(of_thread[-1] for of_thread in ends)
    done = np.sort(np.concatenate([np.asarray(of_thread) for of_thread in ends]))
    done = done[(done >= first) & (done <= last)]
    size = max((len(done) - 1) // _WINDOWS, len(ends))  # one read of each thread at least: reads often complete together
    marks = done[::size]
    spans = np.diff(marks)
    return size * block_bytes / spans[spans > 0]


def _difference(arrived: NDArray[np.uint8], written: NDArray[np.uint8]) -> str | None:
    wrong = np.flatnonzero(arrived != written)
    return None if not len(wrong) else f"{len(wrong)} of {len(written)} bytes differ from those that were written, the first at {wrong[0]}"


SEQUENTIAL = {"storage_1m": (2**20, 8), "storage_128k": (128 * 2**10, 32)}  # block size, reads at once
RANDOM = "storage_4k_random"
CUFILE, STAGED = "storage_gpu_cufile", "storage_gpu_staged"
_RANDOM_BYTES = 4096
_NO_FOLDER = "add `--scratch DIR`, a folder on the disk to measure: collbench writes a file there and removes it"


class Scratch(msgspec.Struct, frozen=True):
    """Where to write the file, and how many bytes at most."""

    folder: Path
    most_bytes: int


class _SharedFile:
    """The file that all storage jobs of this host read: the first job writes it, the last one removes it."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._file: ScratchFile | None = None
        self._why = ""

    def open(self) -> ScratchFile:
        """Return the file. Raises RunFailed with the same reason for every job."""
        if self._file is None and not self._why:
            try:
                self._file = ScratchFile(self._scratch.folder, self._scratch.most_bytes)
            except RunFailed as error:
                self._why = str(error)
        if self._file is None:
            raise RunFailed(self._why)
        return self._file

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()


def storage_jobs(host: str, scratch: Scratch | None, gpus: Sequence[OpenGpu], no_gpu: str, seconds: float) -> list[ChannelJob]:
    """Return the storage channels of this host: to its memory, and to each GPU with cuFile and through host memory.

    Without `scratch` there is one row with the remedy. `no_gpu`: why no GPU can be used. The jobs share one file: run them in order.
    """
    if scratch is None:
        return [ChannelJob(Channel("storage_1m", host, host, na=_NO_FOLDER))]
    file = _SharedFile(scratch)
    plans = {name: ReadPlan(block, depth, seconds) for name, (block, depth) in SEQUENTIAL.items()}
    plans[RANDOM] = ReadPlan(_RANDOM_BYTES, 1, seconds, is_random=True)
    jobs = [_job(Channel(name, host, host), file, plan, None, is_last=not gpus and name == RANDOM) for name, plan in plans.items()]
    jobs[0] = replace(jobs[0], about_s=seconds + WRITE_S)
    plan = plans["storage_1m"]
    for gpu in gpus:
        row = Channel(CUFILE, host, f"{host}/gpu{gpu.index}")
        jobs += [_job(row, file, plan, gpu), _job(row.replace(channel=STAGED), file, plan, gpu, is_last=gpu is gpus[-1])]
    if not gpus:
        jobs += [ChannelJob(Channel(name, host, host, na=no_gpu)) for name in (CUFILE, STAGED)]
    return jobs


def _job(row: Channel, shared: _SharedFile, plan: ReadPlan, gpu: OpenGpu | None, *, is_last: bool = False) -> ChannelJob:
    def measure() -> Channel:
        with ExitStack() as stack:
            if is_last:
                stack.callback(shared.close)
            file = shared.open()
            way = ""
            open_reader: Callable[[], StorageReader]
            if gpu is None:
                open_reader = partial(HostReader, file.fd, plan.block_bytes)
            elif row.channel == STAGED:
                open_reader = partial(StagedReader, gpu, file.fd, plan.block_bytes)
                way = "read to pinned host memory, then copied to the GPU"
            else:
                from collbench.plugins.channels.cufile import CuFile, direct_path

                stack.enter_context(gpu.use())
                library = CuFile(file.fd)
                stack.callback(library.close)
                open_reader = partial(CuFileReader, gpu, library, plan.block_bytes)
                way = direct_path()
            reads = read_file(file, plan, open_reader, WRITE_S)
        return finished(row, file.storage, file.n_bytes, plan, reads, way=way)

    return ChannelJob(row, measure)


def finished(row: Channel, storage: Storage, file_bytes: int, plan: ReadPlan, reads: ReadResult, *, way: str = "") -> Channel:
    """Return the row with its rate, its link and the evidence. If the device counted fewer bytes, the path is unproven."""
    row = row.replace(source=f"{row.source}/{storage.device or storage.family}")
    details = {
        "file_system": storage.kind, "mounted": storage.mounted, "device": storage.device, "network_file_system": storage.is_network,
        "file_bytes": file_bytes, "block_bytes": plan.block_bytes, "reads_at_once": plan.depth,
        "order": "random" if plan.is_random else "sequential",
        "reads": reads.n_reads, "cached_bytes": reads.cached_bytes, "device_read_bytes": reads.device_bytes,
    }  # fmt: skip
    row = against(row.replace(details=details), storage.link)
    payload = reads.n_reads * plan.block_bytes
    if reads.device_bytes is not None and reads.device_bytes < COUNTED * payload:
        row = row.replace(of_bytes_per_s=None, flags=(*row.flags, "path_unproven"))
    if plan.depth == 1:
        done = from_times(row, reads.latencies_s, plan.block_bytes, reads.wrong)
        middle = float(np.median(reads.latencies_s)) if len(reads.latencies_s) else None
        how = f"1 read at a time, {format_time(middle)} µs each" if middle else "1 read at a time"
        done = done.replace(of_bytes_per_s=None, details={**details, "latency_s": middle})  # a latency, which the link does not limit
        link = ""
    else:
        done = from_rates(row, reads.rates, reads.wrong)
        how = f"{plan.depth} reads at once"
        link = row.limited_by
    sentences = [link, storage.describe(), how, f"file of {format_size(file_bytes)}", way]
    return done.replace(limited_by="; ".join(filter(None, sentences)))


class GpuReader(StorageReader):
    """Reads into the memory of a GPU."""

    def __init__(self, gpu: OpenGpu, n_bytes: int) -> None:
        self._gpu = gpu
        self._target = gpu.allocate(n_bytes)

    def arrived(self, n_bytes: int) -> NDArray[np.uint8]:
        """Return what is in GPU memory."""
        return self._gpu.download(self._target.address, n_bytes)


class StagedReader(GpuReader):
    """Reads into pinned host memory, copies to the GPU, and waits for the copy."""

    def __init__(self, gpu: OpenGpu, fd: int, n_bytes: int) -> None:
        whole = gpu.pinned(n_bytes + mmap.PAGESIZE)
        start = -whole.ctypes.data % mmap.PAGESIZE
        self._fd = fd
        self._host = whole[start : start + n_bytes]
        super().__init__(gpu, n_bytes)
        self._stream = gpu.stream()

    def read(self, offset: int, n_bytes: int) -> None:
        """Read and copy. Raises OSError, RunFailed."""
        _read_into(self._host.data, self._fd, offset, n_bytes)
        self._gpu.upload(self._target.address, self._host, self._stream)


class CuFileReader(GpuReader):
    """Reads into GPU memory with cuFile."""

    def __init__(self, gpu: OpenGpu, library: CuFile, n_bytes: int) -> None:
        super().__init__(gpu, n_bytes)
        self._library = library

    def read(self, offset: int, n_bytes: int) -> None:
        """Read into GPU memory. Raises RunFailed."""
        with self._gpu.use():
            self._library.read(self._target.address, n_bytes, offset)
