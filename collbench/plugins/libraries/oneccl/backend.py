"""oneCCL on host memory: its C++ interface, through C functions that the native loop calls by pointer.

A call starts the operation and waits for its event. With `--calls persistent` the library keeps what it prepared for the first call.
The ranks of a group meet at a key-value store that rank 0 serves; its address goes over the control plane.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from collbench.backends.backend import Available, Group, Settings, Unavailable, stdout_elsewhere
from collbench.backends.host import Address, AnyBuffers, HostBackend, NativeBinding, free_all
from collbench.backends.messages import MessageSteps
from collbench.backends.unavailable import LibraryUnusable, Misconfigured
from collbench.errors import UsageError
from collbench.launch.mpi import mpi_mismatch
from collbench.machine.interfaces import interface_with
from collbench.native.library import library as native_library
from collbench.operations.case import Case
from collbench.operations.operation import Operation, Reason, Steps, out_of_place_only
from collbench.operations.program import NativeCall, Program
from collbench.operations.traffic import elements, elements_by_rank
from collbench.operations.unsupported import DtypeUnsupported, PersistentUnsupported, RedopUnsupported
from collbench.plugins.libraries.common import user_settings
from collbench.plugins.libraries.oneccl.library import (
    DATATYPES,
    OPERATIONS,
    REDOPS,
    SAME_WIDTH,
    Arguments,
    OneCcl,
    check_usable,
)
from collbench.reason import Fact

if TYPE_CHECKING:
    from collbench.control.world import World

_TRANSPORT = "CCL_ATL_TRANSPORT"
_OFFLOAD = "CCL_WORKER_OFFLOAD"
_WORKERS = "CCL_WORKER_COUNT"
_LOG_LEVEL = "CCL_LOG_LEVEL"
_TRANSPORTS = ("ofi", "mpi")
_INTEL_MPI = "Intel(R) MPI Library 2021"  # as MPI.Get_library_version() begins
_LATER = 2  # the library's own timeout, as a multiple of the watchdog's: only the watchdog can name the missing ranks


class OneCclBinding(NativeBinding, MessageSteps):
    """The binding for oneCCL's operations and messages: one request for each call."""

    integer = ctypes.c_int64

    def __init__(self, library: OneCcl, buffers: AnyBuffers, group: Group, slot: int, cached: str | None = None) -> None:
        place = buffers.places[0]
        dtype = buffers.case.dtype
        super().__init__(library.shim, buffers.case, place.rank, group.n, place.count)
        self._oneccl = library
        self._group = group
        self._cached = cached
        self._type = DATATYPES[dtype.name if buffers.operation.reduces else SAME_WIDTH[dtype.size]]
        self.send = Address(buffers.send_at(0, slot), dtype.size)
        self.recv = Address(buffers.recv_at(0, slot), dtype.size)
        self.scratch = Address(self.room(8), 1)
        self._requests: list[int] = []
        self._posted: list[int] = []

    def call(self, name: str, **options: Any) -> NativeCall:  # type: ignore[override]
        """Return the call that starts the operation ("allreduce") and waits for it. options: as of `request`."""
        return self._native("call", name, self.request(name, **options))

    def start(self, name: str, **options: Any) -> NativeCall:
        """Return the call that starts the operation; `finish` waits for it."""
        return self._post(name, self.request(name, **options))

    def message(self, kind: str, rank: int, part: Address, count: int, signal: bool = False) -> NativeCall:
        """Return the call of a message, or one that starts it, for which `waitall` waits."""
        name = "send" if kind in ("send", "post_send") else "recv"
        send, recv = (part, None) if name == "send" else (None, part)
        request = self.request(name, send=send, recv=recv, count=count, peer=self.peer(rank), signal=signal)
        return self._post(name, request) if kind.startswith("post") else self._native("call", name, request)

    def begin(self) -> None:
        """Return None: messages begin when they are posted."""

    def waitall(self) -> NativeCall:
        """Return the call that waits for everything started since the last one."""
        posted = self._posted
        self._posted = []
        return self._native("wait", "event.wait", int(self.array(posted)), len(posted))

    finish = waitall

    def peer(self, rank: int) -> int:
        """Return the rank within the communicator."""
        return self._group.name(rank)

    def free(self) -> None:
        """Free the requests, which must be complete."""
        while self._requests:
            self._oneccl.free("request", self._requests.pop(0))

    def _post(self, name: str, request: int) -> NativeCall:
        self._posted.append(request)
        return self._native("start", name, request)

    def _native(self, kind: str, name: str, *arguments: int) -> NativeCall:
        return NativeCall(f"ccl::{name}", self._oneccl.pointer(kind), arguments)

    def request(
        self, name: str, *, send: Address | None = None, recv: Address | None = None, count: int = 0, peer: int = 0,
        sent: Sequence[int] = (), received: Sequence[int] = (), signal: bool = False,
    ) -> int:  # fmt: skip
        """Return the handle of a request. peer: the root's rank, or the other rank of a message; signal: count is in bytes."""
        arguments = Arguments(operation=OPERATIONS[name], rank=peer, count=count, ranks=self.n, communicator=self._group.handle)
        arguments.type = DATATYPES["int8"] if signal else self._type
        arguments.reduction = REDOPS[self.case.redop] if self.case.redop else 0
        arguments.send, arguments.receive = (None if part is None else int(part) for part in (send, recv))
        arguments.sent, arguments.received = (int(self.array(counts)) if counts else None for counts in (sent, received))
        arguments.cached = self._cached.encode() if self._cached else None
        self._requests.append(self._oneccl.request(arguments))
        return self._requests[-1]


# The operations. Gather, scatter and their uneven forms, scans and the uneven reduce-scatter are missing: oneCCL 2021 does not have them.


def _parts(x: OneCclBinding) -> tuple[int, ...]:
    return elements_by_rank(x.case.traffic, x.n, x.count)


def _broadcast(x: OneCclBinding) -> Iterator[NativeCall]:
    yield x.call("broadcast", send=None if x.case.in_place else x.send, recv=x.recv, count=x.count, peer=x.root)


def _alltoallv(x: OneCclBinding) -> Iterator[NativeCall]:
    counts = elements(x.case.traffic, x.n, x.count)
    yield x.call("alltoallv", send=x.send, recv=x.recv, sent=counts[x.rank].tolist(), received=counts[:, x.rank].tolist())


STEPS: Mapping[str, Steps] = {
    "allreduce": lambda x: [x.call("allreduce", send=x.send, recv=x.recv, count=x.count)],
    "reduce": lambda x: [x.call("reduce", send=x.send, recv=x.recv, count=x.count, peer=x.root)],
    "broadcast": _broadcast,
    "allgather": lambda x: [x.call("allgather", send=x.send, recv=x.recv, count=x.count)],
    "reducescatter": lambda x: [x.call("reduce_scatter", send=x.send, recv=x.recv, count=x.count)],
    "alltoall": out_of_place_only(lambda x: [x.call("alltoall", send=x.send, recv=x.recv, count=x.count)]),
    "alltoallv": _alltoallv,
    "allgatherv": lambda x: [x.call("allgatherv", send=x.send, recv=x.recv, count=_parts(x)[x.rank], received=_parts(x))],
    "barrier": lambda x: [x.call("barrier")],
}


def _local_path(env: Mapping[str, str]) -> str:
    """Return how data moves inside a host, as in `Backend`: libfabric uses TCP where it has no other provider."""
    if env.get(_TRANSPORT) == "mpi" or env.get("CCL_ATL_SHM", "0") != "0":
        return "memory"
    fabric = env.get("FI_PROVIDER") or ("" if any(Path("/sys/class/infiniband").glob("*")) else "tcp")
    return "loopback" if "tcp" in fabric else ""


class OneCclBackend(HostBackend):
    """The backend oneccl: Intel's oneCCL, on host memory."""

    name = api = "oneccl"
    passes_messages = True
    steps = STEPS

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Return whether oneCCL loads, and its C functions are compiled or can be. It is not started."""
        try:
            oneccl = check_usable()
        except LibraryUnusable as error:
            return Unavailable.because(error.obstacle)
        transport = os.environ.get(_TRANSPORT, _TRANSPORTS[0])
        if transport not in _TRANSPORTS:
            remedy = f"unset {_TRANSPORT}, or set it to {' or '.join(_TRANSPORTS)}"
            return Unavailable.because(Misconfigured(_TRANSPORT, f"is '{transport}', which oneCCL does not have", remedy))
        return Available(f"oneCCL ({oneccl.about}), over {'libfabric' if transport == 'ofi' else 'Intel MPI'}")

    def open(self, world: World, settings: Settings) -> None:
        """Compile the C functions if need be, and start the library. Raises UsageError, RunFailed."""
        if native_library() is None:
            raise UsageError("backend 'oneccl' needs the native loop: install a C compiler, then collbench again")
        mismatch = mpi_mismatch(_INTEL_MPI, world.info, os.environ) if os.environ.get(_TRANSPORT) == "mpi" else None
        if mismatch:
            raise UsageError(f"{_TRANSPORT}=mpi, but {mismatch}")
        self._world = world
        self.rank, self.ranks = world.rank, world.size
        self._communicators: dict[tuple[int, ...], int | None] = {}  # None: this rank is outside
        self._stores: list[ctypes.c_void_p] = []
        self._prepared: Counter[tuple[int, ...]] = Counter()  # persistent operations, which need names of their own
        self._oneccl = OneCcl()
        self.explain = self._oneccl.error
        wants_log = _LOG_LEVEL in os.environ
        self._configure(world, settings)
        self.local_path = _local_path(os.environ)
        self._offload = os.environ.get(_OFFLOAD, "1") != "0"
        with stdout_elsewhere(at_stderr=wants_log):
            self._oneccl.initialize()
        workers = int(os.environ.get(_WORKERS, "1")) if self._offload else 0  # the library has accepted the number
        if self._crowded(world, 1 + workers):
            self.flags = ("oversubscribed",)

    def _configure(self, world: World, settings: Settings) -> None:
        """Set the variables that the library reads once, unless the user has set them."""
        interface = interface_with(world.me.address)
        libraries = self._oneccl.installation.library.parent
        defaults = {
            _TRANSPORT: _TRANSPORTS[0],
            "CCL_PROCESS_LAUNCHER": "none",  # collbench passes the ranks of the host
            "CCL_LOCAL_RANK": str(world.me.local_rank),
            "CCL_LOCAL_SIZE": str(len(world.on_host())),
            "CCL_KVS_IFACE": interface,
            "CCL_KVS_CONNECTION_TIMEOUT": str(int(_LATER * settings.timeout_s)),
            "FI_TCP_IFACE": interface,  # read by libfabric's TCP provider alone
            _LOG_LEVEL: "error",  # its warnings, on stdout, include one for each variable above
        }
        if os.environ.get(_TRANSPORT) == "mpi" and (libraries / "libmpi.so.12").exists():
            defaults["CCL_MPI_LIBRARY_PATH"] = str(libraries / "libmpi.so.12")
        for name, value in defaults.items():
            os.environ.setdefault(name, value)

    @staticmethod
    def _crowded(world: World, threads: int) -> bool:
        """Return whether the busy threads of a host's ranks need more cores than these may use."""
        return any(threads * len(world.on_host(host)) > world.cores_on(host) for host in world.hosts)

    def communicator(self, ranks: Sequence[int]) -> int | None:
        """Return the communicator of these ranks, made once; None on ranks outside it. All ranks must call it. Raises RunFailed."""
        key = tuple(ranks)
        if key in self._communicators:
            return self._communicators[key]
        self._communicators[key] = None
        store = None
        address = b""
        if self.rank == 0:
            address, store = self._oneccl.open_store()
            self._stores.append(store)
        address_of_rank_0 = self._world.broadcast(address.hex(), "opening oneCCL: the address of the store")
        if self.rank not in key:
            return None
        if store is None:
            store = self._oneccl.join_store(bytes.fromhex(address_of_rank_0))
            self._stores.append(store)
        with stdout_elsewhere(at_stderr=True):  # Intel MPI warns there about settings that oneCCL makes
            self._communicators[key] = self._oneccl.communicator(len(key), key.index(self.rank), store)
        return self._communicators[key]

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> OneCclBinding:
        """Return the binding for one slot."""
        return OneCclBinding(self._oneccl, buffers, group, slot)

    def bind_persistent(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> Program | Fact:
        """Return the program of calls whose preparation the library keeps, or why there is none."""
        if operation.name not in self.steps:
            return PersistentUnsupported("oneCCL", operation.name)
        self._prepared[group.ranks] += 1
        names = [f"{'-'.join(map(str, group.ranks))}:{self._prepared[group.ranks]}:{slot}" for slot in range(buffers.slots)]
        bindings = [OneCclBinding(self._oneccl, buffers, group, slot, name) for slot, name in enumerate(names)]
        slots = tuple(tuple(self.steps[operation.name](binding)) for binding in bindings)
        return Program(slots, keep=(buffers, bindings), explain=self.explain, free=partial(free_all, bindings))

    @property
    def progress(self) -> Literal["threads", "calls"]:
        """What moves the data: the library's threads, unless CCL_WORKER_OFFLOAD is 0."""
        return "threads" if self._offload else "calls"

    def test_calls(self, wait: Program) -> Program:
        """Return a call of event.test for each wait."""
        test = self._oneccl.pointer("test")
        slots = tuple(
            tuple(NativeCall("ccl::event.test", test, call.args) for call in slot if isinstance(call, NativeCall)) for slot in wait.slots
        )
        return Program(slots, keep=wait, explain=wait.explain)

    def supports(self, operation: Operation, case: Case) -> Reason | None:
        """Return why oneCCL cannot reduce the data type or has no such reduction, or None."""
        if not operation.reduces:
            return None
        if case.dtype.name not in DATATYPES:
            return DtypeUnsupported("oneCCL", case.dtype.name)
        return None if case.redop in REDOPS else RedopUnsupported("oneCCL on host memory", str(case.redop), supported=tuple(REDOPS))

    def versions(self) -> Mapping[str, str]:
        """Return oneCCL's version and its settings. Which provider and algorithm it chose is unknown: it has no query."""
        versions = {"oneccl": self._oneccl.version, "ccl_worker_offload": "1", "ccl_worker_count": "1"}
        return versions | user_settings("CCL_", "FI_", "I_MPI_")

    def close(self) -> None:
        """Free the communicators, then the stores, on all ranks together."""
        for handle in self._communicators.values():
            if handle is not None:
                self._oneccl.free("communicator", handle)
        self._world.allgather(None, "closing oneCCL")  # a store must exist until all ranks have left it
        for store in self._stores:
            self._oneccl.free("store", store)
