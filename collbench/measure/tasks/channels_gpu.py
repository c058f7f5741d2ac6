"""The channels of a host's GPUs: to and from pinned memory on each NUMA node, and from GPU to GPU, by the copy engines.

As nvbandwidth (https://github.com/NVIDIA/nvbandwidth) does: memory is pinned by a thread that runs on the NUMA node's CPUs, and the
engine of the GPU that the bytes leave copies between GPUs. The host's clock times several copies together, until the stream is done.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from collbench.backends.clock import MonotonicClock
from collbench.measure.copies import bound, repetitions
from collbench.measure.loop import Loop, Timed
from collbench.measure.pattern import first_wrong, write_pattern
from collbench.measure.tasks.channel_figures import Job, against, from_times
from collbench.measure.tasks.channels_host import node_cpus
from collbench.operations.program import NativeCall, Program
from collbench.results.steps import Channel

if TYPE_CHECKING:
    from collbench.device.gpu import Gpu, Stream
    from collbench.machine.model import Machine
    from collbench.machine.peak.link import Link

KINDS = ("h2d", "d2h", "h2d_d2h")
PEER = "gpu_peer"
_BYTES = 64 * 2**20
_LEAST_S, _MOST_COPIES = 3e-3, 16  # of one sample: waiting for the stream takes 10 to 20 µs of it


@dataclass(frozen=True)
class Copy:
    """One direction of a transfer: to and from which address, on which stream, and how to see whether it did.

    clear    makes the target differ from the source
    arrived  what is at the target
    """

    to: int
    source: int
    stream: Stream
    clear: Callable[[], None]
    arrived: Callable[[], NDArray[np.uint8]]


@dataclass
class Pinned:
    """Pinned memory per NUMA node, kept to the last job: what cupy's pool gets back it gives out again, wherever it lies."""

    machine: Machine
    cpus: Sequence[int]
    _made: dict[int | None, tuple[NDArray[np.uint8], NDArray[np.uint8]]] = field(default_factory=dict)

    @property
    def nodes(self) -> list[int | None]:
        """The NUMA nodes whose CPUs this host's ranks may use; None alone where no source tells of any."""
        known = [node.id for node in self.machine.numa_nodes if node.cpus and node_cpus(node, self.cpus)]
        return [*known] or [None]

    def cpus_of(self, node: int | None) -> Sequence[int]:
        """The node's CPUs among ours."""
        return next((node_cpus(each, self.cpus) for each in self.machine.numa_nodes if each.id == node), self.cpus)

    def pair(self, node: int | None, gpu: Gpu) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """(to copy from, to copy into) on the node; the caller runs there."""
        if node not in self._made:
            self._made[node] = (gpu.pinned(_BYTES), gpu.pinned(_BYTES))
        return self._made[node]


def numbers_of_gpus(machine: Machine, gpus: Sequence[Gpu]) -> dict[str, int]:
    """CUDA's number of each GPU by its key in the machine; those that no source tells of are left out."""
    by_address = {gpu.address: gpu.key for gpu in machine.gpus if gpu.address}
    return {by_address[gpu.bus_id]: gpu.index for gpu in gpus if gpu.bus_id in by_address}


def no_gpu(host: str, why: str) -> list[Job]:
    """The rows of a host whose GPUs cannot be used, or that has none."""
    return [Job(Channel(kind, host, host, na=why)) for kind in (*KINDS, PEER)]


def gpu_jobs(host: str, machine: Machine, gpus: Sequence[Gpu], cpus: Sequence[int], seconds: float) -> list[Job]:
    """For every GPU and NUMA node one row each way and one both ways at once; for every two GPUs one row each way."""
    pinned = Pinned(machine, cpus)
    jobs = [_host_job(kind, host, (gpu, node), pinned, seconds) for gpu in gpus for node in pinned.nodes for kind in KINDS]
    if len(gpus) < 2:
        return [*jobs, Job(Channel(PEER, host, host, na="CUDA shows one GPU here"))]
    return [*jobs, *(_peer_job(host, machine, a, b, seconds) for a, b in permutations(gpus, 2))]


def _host_job(kind: str, host: str, ends: tuple[Gpu, int | None], pinned: Pinned, seconds: float) -> Job:
    gpu, node = ends
    memory, card = host if node is None else f"{host}/numa{node}", f"{host}/gpu{gpu.index}"
    row = Channel(kind, card, memory) if kind == "d2h" else Channel(kind, memory, card)
    row = against(row, _slot(pinned.machine, gpu))
    if kind == "h2d_d2h":
        row = replace(row, limited_by=f"{row.limited_by}; per direction, both at once")

    def measure() -> Channel:
        with bound(pinned.cpus_of(node)), gpu.use():
            source, target = pinned.pair(node, gpu)
            copies = {"h2d": [_up(gpu, source)], "d2h": [_down(gpu, target)], "h2d_d2h": [_up(gpu, source), _down(gpu, target)]}[kind]
            return _measured(row, copies, seconds)

    return Job(row, measure)


def _peer_job(host: str, machine: Machine, a: Gpu, b: Gpu, seconds: float) -> Job:
    from collbench.measure.gpu_ceilings import link_between

    row = against(Channel(PEER, f"{host}/gpu{a.index}", f"{host}/gpu{b.index}"), link_between(machine, a.bus_id, b.bus_id))

    def measure() -> Channel:
        from collbench.device.gpu import open_peer

        direct = open_peer(a, b)
        told = row if direct else replace(row, limited_by="through host memory: the driver refuses peer access", of_bytes_per_s=None)
        with a.use():
            return _measured(told, [_across(a, b)], seconds)

    return Job(row, measure)


def _up(gpu: Gpu, source: NDArray[np.uint8]) -> Copy:
    write_pattern(source)
    memory, stream = gpu.allocate(_BYTES), gpu.stream()
    zeros = np.zeros(_BYTES, np.uint8)
    return Copy(
        memory.address, source.ctypes.data, stream,
        lambda: gpu.upload(memory.address, zeros, stream), lambda: gpu.download(memory.address, _BYTES),
    )  # fmt: skip


def _down(gpu: Gpu, target: NDArray[np.uint8]) -> Copy:
    memory, stream = gpu.allocate(_BYTES), gpu.stream()
    _fill(gpu, memory.address, stream)

    def clear(keep: object = memory) -> None:
        target[:] = 0

    return Copy(target.ctypes.data, memory.address, stream, clear, lambda: target)


def _across(a: Gpu, b: Gpu) -> Copy:
    source, target, stream, other = a.allocate(_BYTES), b.allocate(_BYTES), a.stream(), b.stream()
    _fill(a, source.address, stream)
    zeros = np.zeros(_BYTES, np.uint8)

    def clear(keep: object = source) -> None:
        b.upload(target.address, zeros, other)

    return Copy(target.address, source.address, stream, clear, lambda: b.download(target.address, _BYTES))


def _fill(gpu: Gpu, address: int, stream: Stream) -> None:
    pattern = np.empty(_BYTES, np.uint8)
    write_pattern(pattern)
    gpu.upload(address, pattern, stream)


def _measured(row: Channel, copies: Sequence[Copy], seconds: float) -> Channel:
    """Times the copies, all at once, then clears the targets, copies once more and compares every byte."""
    once = float(_loop(copies, 1).run(2)[0].min())
    count = min(max(int(_LEAST_S / max(once, 1e-9)), 1), _MOST_COPIES)
    loop = _loop(copies, count)
    taken = loop.run(repetitions(once * count, seconds))[0]
    for copy in copies:
        copy.clear()
    _loop(copies, 1).run(1)
    wrong = next((found for copy in copies if (found := first_wrong(copy.arrived()))), None)
    return from_times(row, taken, count * _BYTES, wrong)


def _loop(copies: Sequence[Copy], count: int) -> Loop:
    """`count` copies on each stream, in turn, then the wait for all of them."""
    from collbench.device.gpu import driver_address, driver_error

    enqueue, wait = driver_address("cuMemcpyAsync"), driver_address("cuStreamSynchronize")
    calls = [NativeCall("cuMemcpyAsync", enqueue, (copy.to, copy.source, _BYTES, copy.stream.address)) for copy in copies] * count
    calls += [NativeCall("cuStreamSynchronize", wait, (copy.stream.address,)) for copy in copies]
    program = Program((tuple(calls),), keep=copies, explain=driver_error)
    return Loop(Timed(program, None, MonotonicClock(), ctypes.c_int64()))


def _slot(machine: Machine, gpu: Gpu) -> Link:
    from collbench.machine.peak.link import unknown
    from collbench.machine.peak.pcie import PcieTree

    known = next((each for each in machine.gpus if each.address == gpu.bus_id), None)
    return PcieTree(machine).of_gpu(known) if known else unknown(f"no source tells of {gpu.name} at {gpu.bus_id}")
