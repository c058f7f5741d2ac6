"""torchcomms on host memory, over its Gloo: the object-oriented interface planned to replace torch.distributed's.

Its wheels are for GPUs (pytorch.org); the package of that name on PyPI is a placeholder. Build it from source for CPUs, in a separate
environment, since torch imports an installed torchcomms. Over Gloo its reduce-scatter is an all-reduce of the whole input, which it
overwrites, and a copy of the rank's part (TorchCommGloo.cpp, 0.3.0). Up to v0.3.1-rc1 it numbers each message. Therefore two ranks
that both send first, or both receive first, wait forever. A commit of July 2026 (#2992) fixes it; the version stays 0.3.0.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from collbench.backends.backend import Available, Group, Settings, Unavailable, installed, loaded
from collbench.backends.host import AnyBuffers, HostBackend
from collbench.backends.torch_distributed import TorchBinding, load_torch, patience, require_one_family, store_of
from collbench.backends.unavailable import NotInstalled, UnknownVersion, WrongBuild
from collbench.device.unavailable import Obstacle
from collbench.machine.interfaces import interface_with
from collbench.operations.case import Case
from collbench.operations.operation import Operation, Reason, Steps, in_place_only, out_of_place_only
from collbench.operations.program import Call, PythonCall
from collbench.operations.traffic import elements
from collbench.operations.unsupported import DtypeUnsupported

if TYPE_CHECKING:
    from collbench.control.world import World


_REDOPS = {"prod": "PRODUCT"}  # the other reductions have the same names in torchcomms


class TorchCommsBinding(TorchBinding):
    """The binding for blocking calls (async_op=False: on the caller's thread), and for non-blocking messages."""

    def __init__(self, torch: Any, comms: Any, buffers: AnyBuffers, group: Group, slot: int) -> None:
        super().__init__(torch, buffers, group, slot)
        redop = self.case.redop
        self.redop = getattr(comms.ReduceOp, _REDOPS.get(redop, redop.upper())) if redop else None

    def call(self, name: str, /, *arguments: Any, **options: Any) -> PythonCall:
        """Return a call of a method of the TorchComm that returns when it is done."""
        return PythonCall(name, partial(getattr(self.comm, name), *arguments, async_op=False, **options))

    def post(self, name: str, /, *arguments: Any, **options: Any) -> PythonCall:
        """Return a call of a method that returns a TorchWork; `waitall` waits for it."""
        function = partial(getattr(self.comm, name), *arguments, async_op=True, **options)
        works = self._works
        return PythonCall(name, lambda: works.append(function()))

    def peer(self, rank: int) -> int:
        """Return the rank within the TorchComm."""
        return self._group.name(rank)

    def message(self, kind: str, rank: int, part: Any, count: int, signal: bool = False) -> PythonCall:
        """Return a call of TorchComm.send or recv."""
        name, end = ("send", "dst") if kind.endswith("send") else ("recv", "src")
        return (self.post if kind.startswith("post") else self.call)(name, part[:count], **{end: self.peer(rank)})

    def has(self, name: str) -> bool:
        """Return whether a TorchComm has a method `name`."""
        return hasattr(self.comm, name)


def _alltoallv(x: TorchCommsBinding) -> Iterator[Call]:
    counts = elements(x.case.traffic, x.n, x.count)  # from the rank of the row to that of the column
    yield x.call("all_to_all_v_single", x.recv, x.send, counts[:, x.rank].tolist(), counts[x.rank].tolist())


def _parts(x: TorchCommsBinding, buffer: Any) -> list[Any]:
    return list(buffer.chunk(x.n)) if x.rank == x.root else []


STEPS: Mapping[str, Steps] = {
    "allreduce": in_place_only(lambda x: [x.call("all_reduce", x.recv, op=x.redop)]),
    "broadcast": in_place_only(lambda x: [x.call("broadcast", x.recv, root=x.root)]),
    "reduce": in_place_only(lambda x: [x.call("reduce", x.send, root=x.root, op=x.redop)]),
    "allgather": lambda x: [x.call("all_gather_single", x.recv, x.send)],
    "alltoall": out_of_place_only(lambda x: [x.call("all_to_all_single", x.recv, x.send)]),
    "alltoallv": _alltoallv,
    "reducescatter": in_place_only(lambda x: [x.call("reduce_scatter_single", x.recv, x.send, op=x.redop)]),
    "gather": lambda x: [x.call("gather", _parts(x, x.recv), x.send, root=x.root)],
    "scatter": lambda x: [x.call("scatter", x.recv, _parts(x, x.send), root=x.root)],
    "barrier": lambda x: [x.call("barrier")],
}


PLACEHOLDER = "0.0.1"
_KNOWN = "0."
_GET = (
    "build it from github.com/meta-pytorch/torchcomms with USE_NCCL=0 USE_NCCLX=0 USE_TRANSPORT=0, in an environment of its own: "
    "torch imports it, and does not start where it is broken"
)
_INTERFACE = "TORCHCOMM_GLOO_INTERFACE"
_UNREDUCED = frozenset({"uint32", "uint64", "float8_e4m3fn", "float8_e5m2"})  # "Invalid scalar type" (TorchCommGloo.cpp, 0.3.0)


class TorchCommsBackend(HostBackend):
    """The backend torchcomms: a TorchComm of all ranks, and one for each other group. Its barrier is Gloo's (see GlooBackend)."""

    name = api = "torchcomms"
    local_path = "loopback"
    passes_messages = True
    steps = STEPS

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Return whether a supported torchcomms with Gloo is installed. Imports neither it nor torch."""
        problem = obstacle()
        if problem:
            return Unavailable.because(problem)
        return Available(f"Gloo of torchcomms {installed('torchcomms')}, torch {installed('torch')}")

    def open(self, world: World, settings: Settings) -> None:
        """Import torch and torchcomms, and join all ranks over a store on rank 0. Raises UsageError for a broken torchcomms."""
        os.environ.setdefault("GLOG_minloglevel", "1")  # it logs the start and end of each group
        self._torch, self._comms = loaded("torchcomms", lambda: (load_torch(), import_module("torchcomms")), _GET)
        self.rank, self.ranks = world.rank, world.size
        self._groups = 0
        self._made: list[Any] = []
        self._torch.set_num_threads(1)
        self._interface = os.environ.setdefault(_INTERFACE, interface_with(world.me.address))
        require_one_family("torchcomms", world, self._interface)
        self._timeout = patience(settings)
        self._store = store_of("torchcomms", world, self._timeout)

    def communicator(self, ranks: Sequence[int]) -> Any:
        """Return a TorchComm of these ranks, which reads its rank and size from environment variables; None on other ranks.

        The other ranks only count it: the count is part of the name that keeps its keys in the store separate.
        """
        self._groups += 1
        if self.rank not in ranks:
            return None
        os.environ["TORCHCOMM_RANK"] = str(list(ranks).index(self.rank))
        os.environ["TORCHCOMM_SIZE"] = str(len(ranks))
        name = f"collbench{self._groups}"
        store = self._torch.distributed.PrefixStore(name, self._store)
        cpu = self._torch.device("cpu")
        hints = {"persistent_store": "true"}  # otherwise it opens another store at torchrun's MASTER_ADDR
        comm = self._comms.new_comm("gloo", cpu, store=store, name=name, timeout=self._timeout, hints=hints)
        self._made.append(comm)
        return comm

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> TorchCommsBinding:
        """Return the binding with tensors over the buffers."""
        return TorchCommsBinding(self._torch, self._comms, buffers, group, slot)

    def supports(self, operation: Operation, case: Case) -> Reason | None:
        """Return why its Gloo cannot reduce the case's type, else None."""
        unreduced = operation.reduces and case.dtype.name in _UNREDUCED
        return DtypeUnsupported("torchcomms over Gloo", case.dtype.name) if unreduced else None

    def versions(self) -> Mapping[str, str]:
        """Return the versions of torchcomms and torch, and Gloo's interface."""
        versions = {"torchcomms": str(installed("torchcomms")), "torch": self._torch.__version__}
        return versions | {"torchcomms_backend": "gloo", "gloo_interface": self._interface}

    def close(self) -> None:
        """Close every group."""
        for comm in self._made:
            comm.finalize()


def obstacle() -> Obstacle | None:
    """Return why torchcomms cannot be used here, or None."""
    version = installed("torchcomms")
    if version is None or find_spec("torchcomms") is None:
        return NotInstalled("torchcomms", _GET)
    if version == PLACEHOLDER:
        return WrongBuild("torchcomms", version, "is an empty placeholder on PyPI", _GET)
    if not version.startswith(_KNOWN):
        return UnknownVersion("torchcomms", version, f"{_KNOWN}x", _GET)
    if installed("torch") is None:
        return NotInstalled("torch", _GET, f"torchcomms {version}")
    has_gloo = bool(entry_points(group="torchcomms.backends", name="gloo"))
    return None if has_gloo else WrongBuild("torchcomms", version, "was built without Gloo", _GET)
