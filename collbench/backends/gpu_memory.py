"""Assignment of GPUs to the ranks of a process, checks for NCCL, and GPU buffers for host libraries. Default: one GPU per rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from collbench.backends.backend import Group, Unavailable
from collbench.backends.host import AnyBuffers, HostBackend
from collbench.operations.case import Case
from collbench.operations.operation import Operation
from collbench.units import listed, plural

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.device.buffers import DeviceAllocation, DeviceBuffers
    from collbench.device.gpu import OpenGpu, Stream

_SHARES = "NCCL_MULTI_RANK_GPU_ENABLE"
_HOST_ID = "NCCL_HOSTID"


class ProcessPlace(msgspec.Struct, frozen=True):
    """The host and GPUs of one process, as it reports them to the other ranks.

    host      its host's name
    visible   PCI addresses of the GPUs that it sees
    driven    PCI addresses of the GPUs that its ranks drive, in their order
    alone     those of `driven` that accept only one process (compute mode exclusive)
    shares    whether NCCL_MULTI_RANK_GPU_ENABLE is on: NCCL 2.30 and newer let ranks share a GPU
    host_id   NCCL_HOSTID or "": NCCL treats ranks with different values as ranks on different hosts, even on one GPU
    """

    host: str
    visible: tuple[str, ...]
    driven: tuple[str, ...]
    alone: tuple[str, ...] = ()
    shares: bool = False
    host_id: str = ""

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> ProcessPlace:
        """Decode the values that another process sent over the control plane, where tuples become lists."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})  # type: ignore[arg-type]


def may_share(env: Mapping[str, str]) -> tuple[bool, str]:
    """Return `shares` and `host_id` of a ProcessPlace from this process's environment."""
    return env.get(_SHARES, "0") not in ("", "0"), env.get(_HOST_ID, "")


def chosen_gpus(local_rank: int, local_ranks: int, k: int, visible: int, sharing: bool) -> list[int]:
    """Return the indices of the k GPUs that a process drives; fewer if it sees fewer.

    If it sees enough GPUs for all processes of its host, it takes its own part; else all that it sees (as bound by Slurm).
    """
    first = local_rank * k if visible >= local_ranks * k or sharing else 0
    if sharing and visible:
        return [(first + i) % visible for i in range(k)]
    return [first + i for i in range(k) if first + i < visible]


def trouble(places: Sequence[ProcessPlace], k: int) -> str | None:
    """Return why NCCL cannot use these processes' GPUs, k each; None if it can. The result is the same on all ranks."""
    return _too_few(places, k) or next(_doubles(places, k), None)


def shared(places: Sequence[ProcessPlace]) -> bool:
    """Return whether two ranks share a GPU. Their rates are then not those of the machine."""
    return any(len(ranks) > 1 for ranks in _drivers(places).values())


def _drivers(places: Sequence[ProcessPlace]) -> dict[tuple[str, str], list[int]]:
    """Return the processes that drive each (host, GPU), once per rank."""
    processes: dict[tuple[str, str], list[int]] = {}
    for number, place in enumerate(places):
        for gpu in place.driven:
            processes.setdefault((place.host, gpu), []).append(number)
    return processes


def _too_few(places: Sequence[ProcessPlace], k: int) -> str | None:
    for host in dict.fromkeys(place.host for place in places):
        processes = [place for place in places if place.host == host]
        gpus = {gpu for place in processes for gpu in place.visible}
        if len(gpus) < k * len(processes) and not all(place.shares or place.host_id for place in processes):
            return (
                f"more ranks than GPUs: {plural(k * len(processes), 'rank')} on host {host}, which shows them {_gpus(gpus)}: start one "
                "rank per GPU (--ranks, or the launcher's tasks per node), or let all of them see more (CUDA_VISIBLE_DEVICES)"
            )
        short = next((place for place in processes if len(place.driven) < k), None)
        if short:
            return (
                f"a process on host {host} drives {plural(k, 'rank')} and sees {_gpus(short.visible)}: "
                "let it see as many (CUDA_VISIBLE_DEVICES, srun --gpus-per-task)"
            )
    return None


def _gpus(gpus: Collection[str]) -> str:
    return plural(len(gpus), "GPU") if gpus else "no GPUs"


def _doubles(places: Sequence[ProcessPlace], k: int) -> Iterator[str]:
    for (host, gpu), processes in _drivers(places).items():
        if len(processes) < 2:
            continue
        drivers = [places[number] for number in processes]
        ranks = [number * k + i for number in dict.fromkeys(processes) for i, driven in enumerate(places[number].driven) if driven == gpu]
        shown_ranks = listed([str(rank) for rank in ranks], most=len(ranks))
        # the user allows it by NCCL's own switch, or by different host ids for NCCL
        ids = [place.host_id for place in drivers]
        agreed = all(place.shares for place in drivers) or (all(ids) and len(set(ids)) == len(ids))
        if not agreed:
            yield (
                f"ranks {shown_ranks} drive the same GPU, {gpu} of host {host}, and NCCL takes one rank per GPU: let each process see its "
                "own (srun --gpus-per-task=1, or CUDA_VISIBLE_DEVICES per rank), or all of them see all GPUs"
            )
        elif len(set(processes)) > 1 and any(gpu in place.alone for place in drivers):
            yield (
                f"ranks {shown_ranks} share GPU {gpu} of host {host}, which is in exclusive mode and takes one process only: "
                f"set it to the default mode (nvidia-smi -i {gpu} -c 0), or give each rank a GPU of its own"
            )


# CUDA memory for host libraries such as MPI and torch: one GPU per process, and buffers that the library accepts.


def no_gpu() -> Unavailable | None:
    """Return why this process cannot use a GPU, with the remedy; None if it can."""
    from collbench.device.unavailable import gpu_obstacle

    obstacle = gpu_obstacle(os.environ)
    return Unavailable.because(obstacle) if obstacle else None


class OneGpu:
    """The GPU of a rank, by its local rank; claimed when the first test case needs it.

    bus_ids   the PCI address of every rank's GPU; sharing: how many ranks of this host use this GPU
    """

    def __init__(self, world: World) -> None:
        """Exchange the GPUs' addresses. All ranks must call it."""
        from collbench.device.present import identities

        gpus = identities()
        (self.index,) = chosen_gpus(world.info.local_rank, world.info.local_ranks, 1, len(gpus), sharing=True)
        bus_id = gpus[self.index].bus_id
        self.bus_ids = tuple(world.allgather(bus_id, "collecting the GPU of each rank"))
        self.sharing = sum(self.bus_ids[member.rank] == bus_id for member in world.on_host())
        self._claimed: tuple[OpenGpu, Stream] | None = None

    def claimed(self) -> tuple[OpenGpu, Stream]:
        """Return the GPU and collbench's stream on it. Raises UsageError for an unusable GPU, RunFailed if the checker misses errors."""
        if self._claimed is None:
            from collbench.device.buffers import prove
            from collbench.device.gpu import OpenGpu

            gpu = OpenGpu(self.index)
            stream = gpu.stream()
            prove(gpu, stream)
            self._claimed = gpu, stream
        return self._claimed

    def free_bytes(self) -> int:
        """Return how many bytes each rank that shares the GPU can still allocate."""
        return self.claimed()[0].free_bytes() // self.sharing

    def buffers(
        self, operation: Operation, case: Case, group: Group, slots: int, allocate: Callable[[OpenGpu, int], DeviceAllocation]
    ) -> DeviceBuffers:
        """Return buffers in memory from `allocate`. Raises MemoryError."""
        from collbench.device.buffers import DeviceBuffers

        gpu, stream = self.claimed()
        return DeviceBuffers(operation, case, group, slots, [gpu], [stream], allocate)


class HostOrGpuBackend(HostBackend):
    """The base of backends on host memory with a library that may also accept the memory of one GPU per process; see `devices` and
    `gpus`.
    """

    _gpu: OneGpu | None = None

    def look_for_gpus(self, world: World, refusal: Callable[[], str | None]) -> None:
        """Enable CUDA if every rank has a GPU and the library accepts its memory; else set `no_cuda` to the reason. All ranks must call it.

        refusal: returns why the library does not support CUDA memory; called only if there is a GPU.
        """
        unavailable = no_gpu()
        missing = world.first_error(str(unavailable) if unavailable else refusal(), f"opening {self.name}: looking for GPUs")
        if missing:
            self.no_cuda = f"{self.name} has no GPU here: {missing}"
            return
        self._gpu = OneGpu(world)
        self.devices = frozenset({"cpu", "cuda"})
        self.gpus = self._gpu.bus_ids

    def gpu_memory(self, gpu: OpenGpu, n_bytes: int) -> DeviceAllocation:
        """Allocate GPU memory as the library's users do: with CUDA, unless a library has an allocator. Raises MemoryError."""
        return gpu.allocate(n_bytes)

    def allocate(self, operation: Operation, case: Case, group: Group, slots: int) -> AnyBuffers:
        """Return buffers in host or GPU memory. Raises MemoryError."""
        if self._gpu is None or case.device == "cpu":
            return super().allocate(operation, case, group, slots)
        return self._gpu.buffers(operation, case, group, slots, self.gpu_memory)

    def free_bytes(self, case: Case) -> int | None:
        """Return the GPU's free bytes for a CUDA case; None for a CPU case."""
        return self._gpu.free_bytes() if self._gpu and case.device == "cuda" else None
