"""The backends gloo and torch-nccl: Gloo and NCCL through torch.distributed, with torch's overhead, as in training."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from collbench.addresses import listen_at
from collbench.backends.backend import Available, Group, Settings, Unavailable
from collbench.backends.clock import Clock, EventClock
from collbench.backends.gpu_memory import HostOrGpuBackend, OneGpu, ProcessPlace, no_gpu, trouble
from collbench.backends.host import AnyBuffers, Buffers
from collbench.backends.messages import MessageSteps
from collbench.backends.unavailable import NotInstalled, WrongBuild
from collbench.errors import UsageError
from collbench.launch.network import GLOO_INTERFACE, missing_interface
from collbench.machine.interfaces import first_family, interface_with
from collbench.operations.case import Case
from collbench.operations.dtypes import unrepresentable_average
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import Call, NonBlocking, Program, PythonCall
from collbench.operations.unsupported import DtypeUnsupported, OptionUnsupported
from collbench.reason import Fact

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.device.gpu import OpenGpu


# Shared by the backends through torch.distributed: how ranks join, their groups, and GPU memory of torch's own allocator.

_LATER = 2
_BACKLOG = 128


def load_torch() -> Any:
    """Return torch, imported while garbage collection is off; its objects are excluded from later collections.

    Every rank saves 0.7 s of 1.9 s (torch 2.13, AMD EPYC) at its start and end, and collections during the timed loops.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        import torch
    finally:
        if was_enabled:
            gc.enable()
    gc.freeze()
    return torch


def patience(settings: Settings) -> timedelta:
    """Return the library's timeout. It is longer than the watchdog's, since only the watchdog can name the missing ranks."""
    return timedelta(seconds=_LATER * settings.timeout_s)


def store_of(name: str, world: World, timeout: timedelta) -> Any:
    """Return, at every rank, a TCPStore that rank 0 opens on a free port. Keep it as long as the groups that use it.

    It has no authentication, so it listens only at the address of rank 0 that the other ranks use: loopback within one host.
    """
    import torch

    dist: Any = torch.distributed
    host = world.members[0].address
    store = _served(dist, host, timeout, world.size) if world.rank == 0 else None
    port = world.broadcast(store.port if store else 0, f"opening {name}: the store's port")
    return store or dist.TCPStore(host, port, None, is_master=False, timeout=timeout)


def _served(dist: Any, host: str, timeout: timedelta, ranks: int) -> Any:
    """Return rank 0's store, which listens at one address.

    By default torch listens at every address. Since 2.3 it accepts a listening socket. If it rejects the socket, with libuv and
    without, the store listens at every address.
    """
    common = {"is_master": True, "timeout": timeout, "wait_for_workers": False}
    for backend in ({}, {"use_libuv": False}):
        listener = listen_at(host, max(_BACKLOG, ranks))
        port = listener.getsockname()[1]
        try:
            return dist.TCPStore(host, port, None, **common, master_listen_fd=listener.detach(), **backend)
        except (TypeError, ValueError, RuntimeError):
            continue
    return dist.TCPStore(host, 0, None, **common)


def require_one_family(name: str, world: World, interface: str) -> None:
    """Raise UsageError if Gloo would use IPv4 on one host and IPv6 on another: it uses an interface's IPv4 address if there is one."""
    family = first_family(interface)
    families: list[str | None] = world.allgather(family and family.value, f"opening {name}: the address family of each host")
    first_hosts = {family: member.host for member, family in reversed(list(zip(world.members, families, strict=True))) if family}
    if len(first_hosts) > 1:
        shown = ", ".join(f"{host} {family}" for family, host in sorted(first_hosts.items()))
        raise UsageError(f"{name} cannot connect hosts over different address families ({shown}): give every host an IPv4 address, or none")


def join(name: str, world: World, settings: Settings, **more: Any) -> Any:
    """Form torch's default group. Return its store, which must exist as long as the group."""
    import torch

    dist: Any = torch.distributed
    store = store_of(name, world, patience(settings))
    dist.init_process_group(name, store=store, rank=world.rank, world_size=world.size, timeout=patience(settings), **more)
    return store


def no_cuda_build(torch: Any) -> str | None:
    """Return why this torch does not support CUDA here, with the remedy, or None."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA: install the CUDA build (see pytorch.org)"
    if torch.cuda.is_available():
        return None
    return f"torch {torch.__version__} finds no GPU: run python -c 'import torch; torch.cuda.init()' to see the error"


class TorchMemory:
    """GPU memory of torch's own allocator, as in training."""

    def __init__(self, torch: Any, index: int, n_bytes: int) -> None:
        """Allocate the memory. Raises MemoryError with one sentence."""
        try:
            self.tensor = torch.empty(n_bytes, dtype=torch.uint8, device=f"cuda:{index}")
        except torch.cuda.OutOfMemoryError as error:
            raise MemoryError(f"torch cannot allocate {n_bytes} bytes on GPU {index}: {str(error).splitlines()[0]}") from error
        self.address = int(self.tensor.data_ptr())
        self.n_bytes = n_bytes


class TorchBackend(HostOrGpuBackend):
    """The base of backends over torch.distributed. `open` sets `_torch`, the module."""

    import_cpu_s = 2.5

    api = "torch"
    passes_messages = True
    _torch: Any

    def communicator(self, ranks: Sequence[int]) -> Any:
        """Return the default group for all ranks, else a new group. All ranks must call it, as torch requires."""
        dist = self._torch.distributed
        return dist.group.WORLD if len(ranks) == self.ranks else dist.new_group(list(ranks))

    def gpu_memory(self, gpu: OpenGpu, n_bytes: int) -> TorchMemory:
        """Return memory of torch's allocator. Raises MemoryError."""
        return TorchMemory(self._torch, gpu.index, n_bytes)

    def close(self) -> None:
        """Leave the process group."""
        if self._torch.distributed.is_initialized():
            self._torch.distributed.destroy_process_group()


# The binding of the operations' "torch" steps: tensors over collbench's buffers, on host or GPU, and functions of torch.distributed.

_MESSAGE, _SIGNAL = 1, 2  # tags
_REDOPS = {"prod": "PRODUCT"}  # the other reductions have the same names in torch
# torch.distributed does not support these types everywhere, so data that is only moved is sent as another type of the same width.
_MOVED_AS = {"uint32": "int32", "uint64": "int64", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


class TorchBinding(MessageSteps):
    """The binding for calls that block, or that follow torch's current stream. `posted` calls return a Work each."""

    def __init__(self, torch: Any, buffers: AnyBuffers, group: Group, slot: int) -> None:
        place = buffers.places[0]
        self.rank = place.rank
        self.n = group.n
        self.count = place.count
        self.root = place.root
        self.case = buffers.case
        self._torch = torch
        self._group = group
        element_type = getattr(torch, torch_type(self.case.dtype.name, buffers.operation.reduces))
        self.send, self.recv = (memory.view(element_type) for memory in _send_and_receive(torch, buffers, slot))
        self.scratch = torch.zeros(1, dtype=torch.uint8, device=self.recv.device)
        self.type = self.byte = self.status = None
        redop = self.case.redop
        self.redop = getattr(torch.distributed.ReduceOp, _REDOPS.get(redop, redop.upper())) if redop else None
        self.comm = group.handle
        self._works: list[Any] = []

    def call(self, name: str, /, *words: Any, **named: Any) -> PythonCall:
        """Return a call of a function of torch.distributed."""
        return PythonCall(name, partial(getattr(self._torch.distributed, name), *words, **named))

    def post(self, name: str, /, *words: Any, **named: Any) -> PythonCall:
        """Return a call of a function that returns a Work; `waitall` waits for it."""
        function = partial(getattr(self._torch.distributed, name), *words, **named)
        works = self._works
        return PythonCall(name, lambda: works.append(function()))

    def start(self, name: str, /, *words: Any, **named: Any) -> PythonCall:
        """Return a call of the function with async_op=True; `finish` waits for its Work."""
        return TorchBinding.post(self, name, *words, **named, async_op=True)

    def begin(self) -> PythonCall | None:
        """Return None: posted messages begin at once."""
        return None

    def finish(self) -> PythonCall:
        """Return a call that waits for every Work."""
        return TorchBinding.waitall(self)

    def waitall(self) -> PythonCall:
        """Return a call that waits for every posted Work."""
        works = self._works

        def wait() -> None:
            for work in works:
                work.wait()
            works.clear()

        return PythonCall("wait", wait)

    def peer(self, rank: int) -> int:
        """Return the rank in the job, by which torch numbers ranks."""
        return self._group.ranks[rank]

    def message(self, kind: str, rank: int, part: Any, count: int, signal: bool = False) -> PythonCall:
        """Return a call of torch.distributed's send, recv, isend or irecv."""
        name = {"send": "send", "receive": "recv", "post_send": "isend", "post_receive": "irecv"}[kind]
        make = self.post if kind.startswith("post") else self.call
        end = "dst" if name.endswith("send") else "src"
        return make(name, part[:count], **{end: self.peer(rank)}, group=self.comm, tag=_SIGNAL if signal else _MESSAGE)

    def unless_in_place(self, address: Any) -> Any:
        """Return `address`: torch has no constant for in-place calls."""
        return address

    def has(self, name: str) -> bool:
        """Return whether torch.distributed has a function `name`."""
        return hasattr(self._torch.distributed, name)


def torch_type(name: str, reduces: bool) -> str:
    """Return torch's type for the elements: that of the case; without a reduction, one of the same width that torch always supports."""
    return name if reduces else _MOVED_AS.get(name, name)


def _send_and_receive(torch: Any, buffers: AnyBuffers, slot: int) -> tuple[Any, Any]:
    """Return the send and the receive elements of a slot as tensors of bytes."""
    if isinstance(buffers, Buffers):
        return torch.from_numpy(buffers.send(0, slot).view(np.uint8)), torch.from_numpy(buffers.recv(0, slot).view(np.uint8))
    from collbench.device.buffers import DeviceBuffers

    assert isinstance(buffers, DeviceBuffers)
    (memory,) = buffers.memory
    assert isinstance(memory, TorchMemory)
    width = buffers.case.dtype.size
    sent, received = buffers.elements(0)
    send_at = buffers.send_at(0, slot) - memory.address
    recv_at = buffers.recv_at(0, slot) - memory.address
    return memory.tensor[send_at : send_at + sent * width], memory.tensor[recv_at : recv_at + received * width]


# Gloo through torch.distributed, on host memory, and on GPU memory if torch supports CUDA.

_UNREDUCED = frozenset({"uint32", "uint64", "float8_e4m3fn", "float8_e5m2"})  # "Invalid scalar type", torch 2.13


class GlooBackend(TorchBackend):
    """The backend gloo: torch.distributed with Gloo. Ranks leave Gloo's barrier with a larger skew than collbench's synchronization."""

    name = "gloo"
    local_path = "loopback"

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Return whether torch is installed. Does not import it (that takes seconds)."""
        if find_spec("torch") is None:
            return Unavailable.because(NotInstalled("torch", "pip install 'collbench[torch]'"))
        return Available(f"Gloo of torch {version('torch')}")

    def open(self, world: World, settings: Settings) -> None:
        """Import torch and form its default group over a store on rank 0."""
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns about every address without a name
        missing = missing_interface(os.environ, world.me.host)
        problem = world.first_error(missing and missing.render(), "opening gloo: looking for its interface")
        if problem:
            raise UsageError(problem)
        self._chosen = os.environ.setdefault(GLOO_INTERFACE, interface_with(world.me.address))
        torch = self._torch = load_torch()
        self.rank = world.rank
        self.ranks = world.size
        torch.set_num_threads(1)
        self.look_for_gpus(world, lambda: no_cuda_build(torch))
        require_one_family("gloo", world, self._chosen)
        self._store = join("gloo", world, settings)

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> TorchBinding:
        """Return the binding with tensors over the buffers."""
        return TorchBinding(self._torch, buffers, group, slot)

    def bind(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> Program:
        """Return the program. On a GPU a call returns before the data is complete, so an iteration ends with a wait for the GPU."""
        program = super().bind(operation, case, group, buffers)
        if self._gpu is None or case.device == "cpu":
            return program
        return self._settled(program)

    def bind_nonblocking(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> NonBlocking | Fact:
        """Return the programs to start the operation and to wait for it; on a GPU the latter ends with a wait for the GPU."""
        programs = super().bind_nonblocking(operation, case, group, buffers)
        if self._gpu is None or case.device == "cpu" or isinstance(programs, Fact):
            return programs
        return replace(programs, wait=self._settled(programs.wait))

    def _settled(self, program: Program) -> Program:
        """Return the program with a wait for the GPU at the end of each slot."""
        assert self._gpu is not None
        settle = PythonCall("synchronize", partial(self._torch.cuda.synchronize, self._gpu.index))
        return replace(program, slots=tuple((*slot, settle) for slot in program.slots))

    def supports(self, operation: Operation, case: Case) -> Reason | None:
        """Return why Gloo cannot reduce the case's type, or make the groups of several groups at once, else None."""
        if operation.reduces and case.dtype.name in _UNREDUCED:
            return DtypeUnsupported("gloo", case.dtype.name)
        return _no_groups_at_once(operation, case, self.name)

    def versions(self) -> Mapping[str, str]:
        """Return the version of torch, and Gloo's interface."""
        return {"torch": self._torch.__version__, "gloo_interface": self._chosen}


def _no_groups_at_once(operation: Operation, case: Case, name: str) -> Reason | None:
    """Return why `init` cannot run in several groups at once: each rank of the job has to call new_group for each group."""
    return OptionUnsupported(("--split",), f"{operation.name} on {name}", "mpi and nccl") if operation.creates and case.split else None


_REMEDY = "install the CUDA build of torch (see pytorch.org), and collbench[cuda13] or [cuda12] to match torch.version.cuda"
_UNKNOWN_TYPES = frozenset({"uint32", "uint64"})  # missing in torch's table of NCCL's types
_SHARE = 0.75  # of the deadline: leaves time to query which ranks lag before the watchdog ends the process


class BatchedBinding(TorchBinding):
    """The binding for NCCL, which runs messages between two ranks in sequence unless they are one batch, sent by `waitall` or `begin`."""

    def __init__(self, torch: Any, buffers: AnyBuffers, group: Group, slot: int) -> None:
        super().__init__(torch, buffers, group, slot)
        self._messages: list[Any] = []
        self._has_messages = False

    def post(self, name: str, /, *words: Any, **named: Any) -> PythonCall:
        """Return a call that adds a message to the next batch. NCCL has no tags."""
        dist = self._torch.distributed
        peer = named["src"] if "src" in named else named["dst"]
        message = dist.P2POp(getattr(dist, name), words[0], peer, named.get("group"))
        self._has_messages = True
        return PythonCall(name, partial(self._messages.append, message))

    def begin(self) -> PythonCall | None:
        """Return a call that sends the batch; None without messages."""
        if not self._has_messages:
            return None
        self._has_messages = False
        messages = self._messages
        works = self._works
        send = self._torch.distributed.batch_isend_irecv

        def batch() -> None:
            works.extend(send(messages))
            messages.clear()

        return PythonCall("batch_isend_irecv", batch)

    def waitall(self) -> PythonCall:
        """Return a call that sends the batch; the current stream waits for it."""
        begin = self.begin()
        finish = self.finish()

        def batch() -> None:
            if begin:
                begin.function()
            finish.function()

        return PythonCall("batch_isend_irecv", batch)


class TorchNcclBackend(TorchBackend):
    """The backend torch-nccl: torch.distributed with NCCL, one GPU per process."""

    name = "torch-nccl"
    devices = frozenset({"cuda"})
    uses_nccl = True

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Return whether there are a GPU and a torch built for CUDA. Does not import torch, since its version shows the build."""
        missing = no_gpu()
        if missing:
            return missing
        if find_spec("torch") is None:
            return Unavailable.because(NotInstalled("torch", _REMEDY))
        if "+cpu" in version("torch"):
            return Unavailable.because(WrongBuild("torch", version("torch"), "was built without CUDA", _REMEDY))
        return Available(f"NCCL of torch {version('torch')}, as training sees it")

    def open(self, world: World, settings: Settings) -> None:
        """Import torch, claim a GPU and form the default group. Raises UsageError, RunFailed."""
        torch = self._torch = load_torch()
        cuda: Any = torch.cuda
        self.rank = world.rank
        self.ranks = world.size
        if settings.gpus_per_process > 1:
            raise UsageError("torch-nccl drives one GPU per process: start one rank per GPU (--ranks), or measure nccl")
        missing = world.first_error(no_cuda_build(torch), "opening torch-nccl: looking for GPUs")
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
        return self.ask_ras()  # which is set after `open`

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> BatchedBinding:
        """Return the binding with tensors over the buffers."""
        return BatchedBinding(self._torch, buffers, group, slot)

    def supports(self, operation: Operation, case: Case) -> Reason | None:
        """Return why torch's NCCL does not support the case: graph mode, `init` in groups, reductions of unsigned types; else None."""
        split_refusal = _no_groups_at_once(operation, case, self.name)
        if split_refusal:
            return split_refusal
        if case.mode == "graph":
            return OptionUnsupported(("--mode graph",), "torch-nccl", "nccl")
        if operation.reduces and case.dtype.name in _UNKNOWN_TYPES:
            return DtypeUnsupported("NCCL of torch", case.dtype.name)
        return unrepresentable_average(case.dtype, self.ranks) if case.redop == "avg" else None

    def sync(self, group: Group) -> Program | None:
        """Return a wait for the previous sample, then an all-reduce of one element on the same stream.

        So no sample begins before every rank has arrived.
        """
        element = self._torch.zeros(1, device=self._device)
        all_reduce = partial(self._torch.distributed.all_reduce, element, group=group.handle)
        return Program(((PythonCall("wait", lambda: self._clock.wait(self._clock.stamp())), PythonCall("all_reduce", all_reduce)),))

    def compute(self, seconds: float) -> Call:
        """Return a call that keeps the current stream busy for so long, with a kernel."""
        from collbench.device.buffers import kernels_of

        assert self._gpu is not None
        gpu, stream = self._gpu.claimed()
        return PythonCall("compute", partial(kernels_of(gpu).delay, stream, max(0, round(seconds * 1e9))))

    def clock(self) -> Clock:
        """Return the clock of CUDA events."""
        return self._clock

    def fence(self, deadline_s: float) -> None:
        """Wait for the current stream. Raises RunFailed at the deadline."""
        EventClock(self._torch, deadline_s, self.ask_ras).wait(self._clock.stamp())

    def versions(self) -> Mapping[str, str]:
        """Return the versions of torch, its CUDA and its NCCL, which may differ from the one that the backend nccl loads."""
        nccl = ".".join(str(part) for part in self._torch.cuda.nccl.version())
        return {"torch": self._torch.__version__, "torch_cuda": str(self._torch.version.cuda), "torch_nccl": nccl}


def _refuse_shared(world: World, gpus: Sequence[str]) -> None:
    """Check that no two ranks share a GPU, which NCCL rejects ("Duplicate GPU"). `gpus`: those of each rank. Raises UsageError."""
    ranks = [(member.host, gpu) for member, gpu in zip(world.members, gpus, strict=True)]
    visible = {host: tuple(dict.fromkeys(gpu for where, gpu in ranks if where == host)) for host, _ in ranks}
    misfit = trouble([ProcessPlace(host, visible[host], (gpu,)) for host, gpu in ranks], 1)
    if misfit:
        raise UsageError(misfit)
