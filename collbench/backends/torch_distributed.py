"""NCCL through torch.distributed, on torch's own GPU memory: what training sees, torch's overhead and all; the backend nccl is without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from collbench.backends.backend import Available, Settings, Unavailable
from collbench.backends.clock import Clock
from collbench.backends.group import Group
from collbench.backends.memory import AnyBuffers
from collbench.backends.on_gpu import OneGpu, no_gpu
from collbench.backends.on_torch import TorchBackend, join, load_torch, no_cuda_build
from collbench.backends.places import Place, trouble
from collbench.backends.torch_binding import TorchBinding
from collbench.backends.torch_clock import EventClock
from collbench.errors import UsageError
from collbench.operations.cell import Cell
from collbench.operations.dtypes import average_misfit
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import Program, PythonCall

if TYPE_CHECKING:
    from collbench.control.world import World

_REMEDY = "install the torch for CUDA (pytorch.org tells how) and collbench[cuda13] or [cuda12], as torch.version.cuda says"
_UNKNOWN_TYPES = frozenset({"uint32", "uint64"})  # torch's own table of NCCL's types lacks them
_SHARE = 0.75  # of the deadline: there must be time to ask who lags before the watchdog ends the process


class BatchedBinding(TorchBinding):
    """NCCL carries messages between two ranks one after the other, unless they go out together: as one batch, in `waitall`."""

    def post(self, name: str, /, *words: Any, **named: Any) -> PythonCall:
        """A message for the next batch; NCCL has no tags."""
        dist, works = self._torch.distributed, self._works
        peer = named["src"] if "src" in named else named["dst"]
        message = dist.P2POp(getattr(dist, name), words[0], peer, named.get("group"))
        return PythonCall(name, partial(works.append, message))

    def waitall(self) -> PythonCall:
        """Sends the batch; the current stream waits for it."""
        messages, send = self._works, self._torch.distributed.batch_isend_irecv

        def batch() -> None:
            for work in send(messages):
                work.wait()
            messages.clear()

        return PythonCall("batch_isend_irecv", batch)


class TorchNcclBackend(TorchBackend):
    """torch.distributed with NCCL, one GPU a process."""

    name = "torch-nccl"
    devices = frozenset({"cuda"})
    uses_nccl = True

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Whether there are a GPU and a torch that is built for CUDA. Does not import torch: its version tells the build."""
        missing = no_gpu()
        if missing:
            return missing
        if find_spec("torch") is None:
            return Unavailable("torch is not installed", _REMEDY)
        if "+cpu" in version("torch"):
            return Unavailable(f"torch {version('torch')} is a build for CPUs", _REMEDY)
        return Available(f"NCCL of torch {version('torch')}, as training sees it")

    def open(self, world: World, settings: Settings) -> None:
        """Imports torch, takes a GPU and forms the default group. Raises UsageError, RunFailed."""
        torch = self._torch = load_torch()
        cuda: Any = torch.cuda
        self.rank, self.ranks = world.rank, world.size
        if settings.gpus_per_process > 1:
            raise UsageError("torch-nccl drives one GPU per process: start one rank per GPU (--ranks), or measure nccl")
        missing = world.first(no_cuda_build(torch), "opening torch-nccl: looking for GPUs")
        if missing:
            raise UsageError(missing)
        self._gpu = OneGpu(world)
        self.gpus = self._gpu.bus_ids
        _refuse_shared(world, self.gpus)
        gpu, stream = self._gpu.claimed()
        self._device = device = torch.device("cuda", gpu.index)
        cuda.set_device(device)
        cuda.set_stream(cuda.ExternalStream(stream.address, device))
        self._clock = EventClock(torch, _SHARE * settings.timeout_s, self._lagging)
        self._store = join("nccl", world, settings, device_id=device)

    def _lagging(self) -> str | None:
        """Asked for when it is needed: `ask_ras` is set after opening."""
        return self.ask_ras()

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> BatchedBinding:
        """Tensors over the buffers."""
        return BatchedBinding(self._torch, buffers, group, slot)

    def supports(self, operation: Operation, cell: Cell) -> Reason | None:
        """No graphs, no unsigned types that torch does not hand to NCCL, no bitwise reductions (torch refuses them itself)."""
        if cell.mode == "graph":
            return "torch-nccl measures the calls that training makes one by one: graphs are for nccl"
        if operation.reduces and cell.dtype.name in _UNKNOWN_TYPES:
            return f"torch hands no {cell.dtype.name} tensors to NCCL"
        return average_misfit(cell.dtype, self.ranks) if cell.redop == "avg" else None

    def sync(self, group: Group) -> Program | None:
        """The sample before is waited for, then an all-reduce of one element on the same stream: none begins before every rank has come."""
        one = self._torch.zeros(1, device=self._device)
        all_reduce = partial(self._torch.distributed.all_reduce, one, group=group.handle)
        return Program(((PythonCall("wait", lambda: self._clock.wait(self._clock.stamp())), PythonCall("all_reduce", all_reduce)),))

    def clock(self) -> Clock:
        """torch's events."""
        return self._clock

    def fence(self, deadline_s: float) -> None:
        """Waits for the current stream. Raises RunFailed."""
        EventClock(self._torch, deadline_s, self._lagging).wait(self._clock.stamp())

    def versions(self) -> Mapping[str, str]:
        """torch, its CUDA and its NCCL, which need not be the one that the backend nccl loads."""
        nccl = ".".join(str(part) for part in self._torch.cuda.nccl.version())
        return {"torch": self._torch.__version__, "torch_cuda": str(self._torch.version.cuda), "torch_nccl": nccl}


def _refuse_shared(world: World, gpus: Sequence[str]) -> None:
    """One GPU is one rank to NCCL, which would say "Duplicate GPU". `gpus`: each rank's. Raises UsageError."""
    ranks = [(member.host, gpu) for member, gpu in zip(world.members, gpus, strict=True)]
    visible = {host: tuple(dict.fromkeys(gpu for where, gpu in ranks if where == host)) for host, _ in ranks}
    misfit = trouble([Place(host, visible[host], (gpu,)) for host, gpu in ranks], 1)
    if misfit:
        raise UsageError(misfit)
