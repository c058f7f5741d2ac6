"""The storage channels of `collbench probe --measure --scratch DIR`: direct reads of a file to host memory and to each GPU."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from collbench.errors import RunFailed
from collbench.plugins.channels.records import Channel
from collbench.plugins.channels.storage import WRITE_S, HostReader, ReadPlan, ReadResult, ScratchFile, read_file
from collbench.plugins.channels.storage_devices import Storage
from collbench.plugins.channels.task import ChannelJob, against, from_rates, from_times
from collbench.plugins.channels.tcp_streams import COUNTED
from collbench.units import format_size, format_time

if TYPE_CHECKING:
    from collbench.device.gpu import OpenGpu
    from collbench.plugins.channels.cufile import CuFile

SEQUENTIAL = {"storage_1m": (2**20, 8), "storage_128k": (128 * 2**10, 32)}  # block size, reads at once
RANDOM = "storage_4k_random"
CUFILE, STAGED = "storage_gpu_cufile", "storage_gpu_staged"
_RANDOM_BYTES = 4096
_NO_FOLDER = "add `--scratch DIR`, a folder on the disk to measure: collbench writes a file there and removes it"


@dataclass(frozen=True)
class Scratch:
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
    jobs = [_job(Channel(name, host, host), file, plan, None) for name, plan in plans.items()]
    block, depth = SEQUENTIAL["storage_1m"]
    for gpu in gpus:
        for name in (CUFILE, STAGED):
            jobs.append(_job(Channel(name, host, f"{host}/gpu{gpu.index}"), file, ReadPlan(block, depth, seconds), gpu))
    if not gpus:
        jobs += [ChannelJob(Channel(name, host, host, na=no_gpu)) for name in (CUFILE, STAGED)]
    last = max(place for place, job in enumerate(jobs) if job.measure)
    jobs[0] = replace(jobs[0], about_s=seconds + WRITE_S)
    jobs[last] = replace(jobs[last], measure=_closing(jobs[last].measure, file))
    return jobs


def _closing(measure: Callable[[], Channel] | None, file: _SharedFile) -> Callable[[], Channel] | None:
    def run() -> Channel:
        assert measure is not None
        try:
            return measure()
        finally:
            file.close()

    return run if measure else None


def _job(row: Channel, shared: _SharedFile, plan: ReadPlan, gpu: OpenGpu | None) -> ChannelJob:
    def measure() -> Channel:
        file = shared.open()
        if gpu is None:
            return finished(
                row, file.storage, file.n_bytes, plan, read_file(file, plan, lambda: HostReader(file.fd, plan.block_bytes), WRITE_S)
            )
        if row.channel == STAGED:
            found = read_file(file, plan, lambda: StagedReader(gpu, file.fd, plan.block_bytes), WRITE_S)
            return finished(row, file.storage, file.n_bytes, plan, found, way="read to pinned host memory, then copied to the GPU")
        from collbench.plugins.channels.cufile import CuFile, direct_path

        with gpu.use():
            library = CuFile(file.fd)
            try:
                found = read_file(file, plan, lambda: CuFileReader(gpu, library, plan.block_bytes), WRITE_S)
            finally:
                library.close()
        return finished(row, file.storage, file.n_bytes, plan, found, way=direct_path())

    return ChannelJob(row, measure)


def finished(row: Channel, storage: Storage, file_bytes: int, plan: ReadPlan, found: ReadResult, *, way: str = "") -> Channel:
    """Return the row with its rate, its link and the evidence. If the device counted fewer bytes, the path is unproven."""
    row = replace(row, source=f"{row.source}/{storage.device or storage.family}")
    details = {
        "file_system": storage.kind, "mounted": storage.mounted, "device": storage.device, "network_file_system": storage.is_network,
        "file_bytes": file_bytes, "block_bytes": plan.block_bytes, "reads_at_once": plan.depth,
        "order": "random" if plan.is_random else "sequential",
        "reads": found.n_reads, "cached_bytes": found.cached_bytes, "device_read_bytes": found.device_bytes,
    }  # fmt: skip
    row = against(replace(row, details=details), storage.link)
    payload = found.n_reads * plan.block_bytes
    if found.device_bytes is not None and found.device_bytes < COUNTED * payload:
        row = replace(row, of_bytes_per_s=None, flags=(*row.flags, "path_unproven"))
    if plan.depth == 1:
        done = from_times(row, found.latencies_s, plan.block_bytes, found.wrong)
        middle = float(np.median(found.latencies_s)) if len(found.latencies_s) else None
        how = f"1 read at a time, {format_time(middle)} µs each" if middle else "1 read at a time"
        done = replace(done, of_bytes_per_s=None, details={**details, "latency_s": middle})  # a latency, which the link does not limit
        link = ""
    else:
        done, how, link = from_rates(row, found.rates, found.wrong), f"{plan.depth} reads at once", f"{row.limited_by}; "
    about = [f"{link}{storage.describe()}", how, f"file of {format_size(file_bytes)}", way]
    return replace(done, limited_by="; ".join(filter(None, about)))


# Readers of one thread that end in GPU memory.


class StagedReader:
    """Reads into pinned host memory, copies to the GPU, and waits for the copy."""

    def __init__(self, gpu: OpenGpu, fd: int, n_bytes: int) -> None:
        self._gpu, self._fd = gpu, fd
        whole = gpu.pinned(n_bytes + mmap.PAGESIZE)
        start = -whole.ctypes.data % mmap.PAGESIZE
        self._host = whole[start : start + n_bytes]
        self._target, self._stream = gpu.allocate(n_bytes), gpu.stream()

    def read(self, offset: int, n_bytes: int) -> None:
        """Read and copy. Raises OSError, RunFailed."""
        if os.preadv(self._fd, [self._host.data], offset) != n_bytes:
            raise RunFailed(f"the file ended early at {offset} bytes")
        self._gpu.upload(self._target.address, self._host, self._stream)

    def arrived(self, n_bytes: int) -> NDArray[np.uint8]:
        """Return what is in GPU memory."""
        return self._gpu.download(self._target.address, n_bytes)

    def close(self) -> None:
        """Do nothing: the memory goes with this object."""


class CuFileReader:
    """Reads into GPU memory with cuFile."""

    def __init__(self, gpu: OpenGpu, library: CuFile, n_bytes: int) -> None:
        self._gpu, self._library, self._target = gpu, library, gpu.allocate(n_bytes)

    def read(self, offset: int, n_bytes: int) -> None:
        """Read into GPU memory. Raises RunFailed."""
        with self._gpu.use():
            self._library.read(self._target.address, n_bytes, offset)

    def arrived(self, n_bytes: int) -> NDArray[np.uint8]:
        """Return what is in GPU memory."""
        return self._gpu.download(self._target.address, n_bytes)

    def close(self) -> None:
        """Do nothing: the memory goes with this object."""
