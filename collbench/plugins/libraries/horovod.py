"""Horovod on host memory with its own Gloo: hvd.allreduce_ and similar calls on torch tensors, as training uses them.

A timed call blocks until Horovod's own thread has found and moved the data at every rank. The thread checks for work once per
HOROVOD_CYCLE_TIME (ms, default 1), which determines the latency of small messages; every row has it. Support for groups at run time
also costs time in every cycle, so Horovod is restarted with it only for the first group. All-gather, all-to-all and reduce-scatter
return a new tensor, and its allocation is part of the call. It is copied to the receive buffer only when a result is verified.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from collbench.backends.backend import Available, Group, Settings, Unavailable, installed, loaded
from collbench.backends.host import AnyBuffers, HostBackend
from collbench.backends.torch_distributed import TorchBinding, load_torch, torch_type
from collbench.backends.unavailable import Misconfigured, NotInstalled, UnknownVersion, WrongBuild
from collbench.device.unavailable import Obstacle
from collbench.errors import UsageError
from collbench.machine.interfaces import interface_with
from collbench.operations.case import Case
from collbench.operations.operation import Operation, Reason, Steps, in_place_only, out_of_place_only
from collbench.operations.program import Call, Program, PythonCall
from collbench.operations.traffic import elements
from collbench.operations.unsupported import DtypeUnsupported, GroupOrderUnsupported, LimitExceeded, RedopUnsupported
from collbench.plugins.libraries.common import reorders_ranks, user_settings

if TYPE_CHECKING:
    from collbench.control.world import World


NEW = frozenset({"allgather", "allgatherv", "alltoall", "alltoallv", "reducescatter"})  # operations that return a new tensor
_REDOPS = {"sum": "Sum", "avg": "Average", "min": "Min", "max": "Max", "prod": "Product"}
_SCATTERED = ("sum", "avg")  # GlooReducescatter ignores the op and adds (gloo_operations.cc, 0.28.1)
_COUNTED = 2**31  # limit of a tensor's elements, counted in an int (the same file)


class HorovodBinding(TorchBinding):
    """The binding for Horovod's blocking calls; `comm` is a process set."""

    def __init__(self, torch: Any, hvd: Any, buffers: AnyBuffers, group: Group, slot: int) -> None:
        super().__init__(torch, buffers, group, slot)
        case = self.case
        self._hvd = hvd
        self.redop = getattr(hvd, _REDOPS[case.redop]) if case.redop else None
        parts = (buffers.operation.name, case.dtype.name, case.redop or "", self.count, self.root, *group.ranks)
        # Horovod matches the calls of the ranks by this name. All slots have the same one, since the first call of a name is slower.
        self.name = "collbench." + ".".join(map(str, parts))

    def call(self, name: str, /, *arguments: Any, **options: Any) -> PythonCall:
        """Return a call of a function of horovod.torch on the group."""
        return PythonCall(name, partial(getattr(self._hvd, name), *arguments, process_set=self.comm, **options))

    def copied(self, call: Call) -> PythonCall:
        """Return a call that also copies its new result tensor to the receive buffer."""
        assert isinstance(call, PythonCall)
        function: Callable[[], Any] = call.function

        def copy() -> None:
            new = function()
            self.recv.copy_(new[0] if isinstance(new, tuple) else new)

        return PythonCall(call.name, copy)

    def splits(self) -> Any:
        """Return how many elements go to each rank, as Horovod's tensor."""
        return self._torch.tensor(elements(self.case.traffic, self.n, self.count)[self.rank].tolist(), dtype=self._torch.int32)


STEPS: Mapping[str, Steps] = {
    "allreduce": in_place_only(lambda x: [x.call("allreduce_", x.recv, op=x.redop, name=x.name)]),
    "broadcast": in_place_only(lambda x: [x.call("broadcast_", x.recv, root_rank=x.peer(x.root), name=x.name)]),
    "allgather": out_of_place_only(lambda x: [x.call("allgather", x.send, name=x.name)]),
    "allgatherv": out_of_place_only(lambda x: [x.call("allgather", x.send, name=x.name)]),  # Horovod exchanges the sizes itself
    "alltoall": out_of_place_only(lambda x: [x.call("alltoall", x.send, name=x.name)]),
    "alltoallv": lambda x: [x.call("alltoall", x.send, splits=x.splits(), name=x.name)],
    "reducescatter": out_of_place_only(lambda x: [x.call("reducescatter", x.send, op=x.redop, name=x.name)]),
    "barrier": lambda x: [x.call("barrier")],
}


def unsupported(torch: Any, hvd: Any, operation: Operation, case: Case, n: int) -> Reason | None:
    """Return why this build cannot run a case over n ranks, or None. Checks its library for the function of the data type."""
    redops = _SCATTERED if operation.name == "reducescatter" else _REDOPS
    if case.redop and case.redop not in redops:
        return RedopUnsupported("horovod over Gloo", case.redop, operation.name, tuple(redops))
    if operation.name in NEW and reorders_ranks(case, n):
        return GroupOrderUnsupported("horovod", operation.name)
    if operation.is_barrier:
        return None
    if case.size_bytes // case.dtype.size >= _COUNTED:
        return LimitExceeded("horovod", "elements per tensor", _COUNTED - 1)
    tensor = torch.empty(0, dtype=getattr(torch, torch_type(case.dtype.name, operation.reduces))).type().replace(".", "_")
    has = hasattr(hvd.mpi_ops.mpi_lib, f"horovod_torch_{operation.name.removesuffix('v')}_async_{tensor}")
    return None if has else DtypeUnsupported("horovod", case.dtype.name, "send", operation.name)


_KNOWN = "0.28."
_GET = "tools/horovod .venv-horovod builds it with Gloo, into an environment of its own"
_OTHER_LAUNCH = "start collbench with --ranks, mpirun, srun or torchrun instead"
_LATER = 2  # factor of Gloo's timeout to the watchdog's, which is shorter since it can name the missing ranks


def obstacle(env: Mapping[str, str]) -> Obstacle | None:
    """Return why Horovod cannot be used here, or None. Imports neither Horovod nor torch."""
    version = installed("horovod")
    torch = installed("torch")
    if version is None or find_spec("horovod") is None:
        return NotInstalled("horovod", _GET)
    if not version.startswith(_KNOWN):
        return UnknownVersion("horovod", version, f"{_KNOWN}x", _GET)
    if torch is None:
        return NotInstalled("torch", _GET, f"horovod {version}")
    if "HOROVOD_RANK" in env:
        return Misconfigured("HOROVOD_RANK", "is set, as horovodrun does", _OTHER_LAUNCH)
    return _misbuilt(version, torch)


def _misbuilt(version: str, torch: str) -> Obstacle | None:
    """Return why this build does not fit this torch, or None."""
    spec = find_spec("horovod")
    folder = Path(next(iter(spec.submodule_search_locations or [])) if spec else "")
    if not any(folder.glob("torch/mpi_lib_v2*.so")):
        return WrongBuild("horovod", version, "was built without torch", _GET)
    try:
        built = str(json.loads((folder / "metadata.json").read_text())["pytorch"])  # the version of torch that it was built for
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not known here; an import error would report it
    if built.partition("+")[0] != torch.partition("+")[0]:
        return WrongBuild("horovod", version, f"was built for torch {built}, but torch {torch} is installed", _GET)
    return None


def load_horovod() -> Any:
    """Return horovod.torch. Raises UsageError if it does not load or has no Gloo."""
    hvd = loaded("horovod", _import, _GET)
    if not hvd.gloo_built():
        raise UsageError(f"horovod {installed('horovod')} was built without Gloo, over which collbench measures it: {_GET}")
    return hvd


def _import() -> Any:
    hvd = import_module("horovod.torch")
    if not hasattr(hvd, "init"):  # without its library the module prints the reason, and raises no error
        raise ImportError
    return hvd


def horovod_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return Horovod's settings by the user, by lower-case name. Raises UsageError for an invalid cycle time."""
    cycle = env.get("HOROVOD_CYCLE_TIME", "1")
    try:
        is_valid = 0 <= float(cycle) < float("inf")
    except ValueError:
        is_valid = False
    if not is_valid:
        raise UsageError(f"HOROVOD_CYCLE_TIME is '{cycle}', and Horovod would take that for 0: give it milliseconds, as in 0.1")
    return user_settings("HOROVOD_", env=env)


def rendezvous_environment(world: World, timeout_s: float, grouped: bool) -> dict[str, str]:
    """Return horovodrun's variables for the ranks (horovod/runner/gloo_run.py, 0.28.1). grouped: with process sets."""
    local_rank = [member.rank for member in world.on_host()].index(world.rank)
    cross_hosts = [host for host in world.hosts if len(world.on_host(host)) > local_rank]
    variables = {
        "RANK": world.rank,
        "SIZE": world.size,
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": len(world.on_host()),
        "CROSS_RANK": cross_hosts.index(world.me.host),
        "CROSS_SIZE": len(cross_hosts),
        "HOSTNAME": f"host{world.hosts.index(world.me.host)}",
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
        "DYNAMIC_PROCESS_SETS": int(grouped),
        "GLOO_TIMEOUT_SECONDS": max(1, round(_LATER * timeout_s)),
    }
    return {f"HOROVOD_{name}": str(value) for name, value in variables.items()}


@contextmanager
def rendezvous(world: World) -> Iterator[None]:
    """Run Horovod's rendezvous server at rank 0 while the ranks join, and send its address to all. Later it would only use CPU time."""
    server = None
    port = 0
    if world.rank == 0:
        server = import_module("horovod.runner.http.http_server").RendezvousServer()
        port = server.start()
        server.init([])
    os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = world.members[0].address
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(world.broadcast(port, "opening horovod: the rendezvous port"))
    try:
        yield
        world.allgather(None, "opening horovod: all ranks have joined")
    finally:
        if server:
            server.stop()


_INTERFACE = "HOROVOD_GLOO_IFACE"


class HorovodBackend(HostBackend):
    """The backend horovod: horovod.torch with its Gloo controller and Gloo operations. Its barrier takes a whole cycle."""

    name = api = "horovod"
    local_path = "loopback"
    steps = STEPS

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Return whether a supported Horovod, built for this torch, is installed and the launcher is supported. Imports neither."""
        problem = obstacle(os.environ)
        if problem:
            return Unavailable.because(problem)
        return Available(f"Horovod {installed('horovod')} over Gloo, on torch {installed('torch')}")

    def open(self, world: World, settings: Settings) -> None:
        """Import horovod.torch and join all ranks at a Horovod rendezvous server on rank 0.

        Raises UsageError for a Horovod that does not load, or was built without Gloo.
        """
        self._user_settings = horovod_settings(os.environ)
        self._torch = load_torch()
        self._hvd = load_horovod()
        self._world = world
        self.rank, self.ranks = world.rank, world.size
        self._torch.set_num_threads(1)
        self._interface = os.environ.setdefault(_INTERFACE, interface_with(world.me.address))
        self._timeout_s = settings.timeout_s
        self._sets = {tuple(range(self.ranks)): self._hvd.global_process_set}
        self._start(grouped=self._user_settings.get("horovod_dynamic_process_sets") == "1")

    def _start(self, grouped: bool) -> None:
        """Start Horovod on all ranks together. `grouped`: with support for process sets at run time."""
        self._grouped = grouped
        os.environ.update(rendezvous_environment(self._world, self._timeout_s, grouped))
        with rendezvous(self._world):
            self._hvd.init()

    def communicator(self, ranks: Sequence[int]) -> Any:
        """Return a process set, created once per set of ranks. All ranks must call it."""
        key = tuple(sorted(ranks))
        if key not in self._sets:
            if not self._grouped:
                self._hvd.shutdown()
                self._start(grouped=True)
            with rendezvous(self._world):
                self._sets[key] = self._hvd.add_process_set(list(key))
        return self._sets[key]

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> HorovodBinding:
        """Return the binding with tensors over the buffers."""
        return HorovodBinding(self._torch, self._hvd, buffers, group, slot)

    def bind(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> Program:
        """Return the program. If Horovod returns a new tensor, verification uses a separate program with a copy."""
        program = super().bind(operation, case, group, buffers)
        if operation.name not in NEW:
            return program
        bindings = [self.binding(group, buffers, slot) for slot in range(buffers.slots)]
        copied = tuple(tuple(binding.copied(call) for call in slot) for binding, slot in zip(bindings, program.slots, strict=True))
        return replace(program, once=Program(copied, keep=bindings))

    def supports(self, operation: Operation, case: Case) -> Reason | None:
        """Return why the build or its Gloo does not support the data type or reduction, else None."""
        return unsupported(self._torch, self._hvd, operation, case, self.ranks)

    def versions(self) -> Mapping[str, str]:
        """Return the versions of Horovod and torch, the cycle time, all other HOROVOD_* settings of the user, and how groups run."""
        return {
            "horovod": str(installed("horovod")),
            "torch": self._torch.__version__,
            "horovod_operations": "gloo",
            "horovod_gloo_iface": self._interface,
            "horovod_cycle_time": "1",
            **self._user_settings,
            "horovod_dynamic_process_sets": str(int(self._grouped)),
        }

    def close(self) -> None:
        """Stop Horovod's thread, on all ranks together."""
        self._hvd.shutdown()
