"""UCC on host memory: its C functions are called by pointer, in the native loop.

A call makes its request, starts it, tests it with progress until it is done, and frees it, as ucc_perftest does. With `--calls persistent`
the request is made once, and a call only starts and tests it. Ranks meet in a context through the control plane; teams of fewer ranks
are made from that context, without further messages of collbench.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from collbench.backends.backend import Available, Group, Settings, Unavailable
from collbench.backends.host import Address, AnyBuffers, HostBackend, NativeBinding, free_all
from collbench.backends.unavailable import LibraryUnusable
from collbench.errors import RunFailed, UsageError
from collbench.native.library import address
from collbench.native.library import library as native_library
from collbench.operations.case import Case
from collbench.operations.operation import Operation, Reason, Steps, in_place_only, out_of_place_only
from collbench.operations.program import NativeCall, Program
from collbench.operations.traffic import elements, elements_by_rank
from collbench.operations.unsupported import DtypeUnsupported, RedopUnsupported
from collbench.plugins.libraries.common import user_settings
from collbench.plugins.libraries.ucc import library as ucc
from collbench.plugins.libraries.ucc.choice import ChoiceLog
from collbench.plugins.libraries.ucc.library import check, check_layers, load_ucc
from collbench.reason import Fact

if TYPE_CHECKING:
    from collbench.control.world import World

Even = tuple[Address, int]  # a buffer and its number of elements
Uneven = tuple[Address, Sequence[int]]  # a buffer and the elements of each rank's part


class UccBinding(NativeBinding):
    """The binding for UCC's collectives. `functions` are those of the library, as native/requests.c expects them."""

    integer = ctypes.c_int64

    def __init__(self, library: ctypes.CDLL, functions: ucc.RequestFunctions, buffers: AnyBuffers, group: Group, slot: int) -> None:
        place = buffers.places[0]
        dtype = buffers.case.dtype
        super().__init__(library, buffers.case, place.rank, group.n, place.count)
        self._functions = functions
        self._team = group.handle
        self._type = ucc.DATATYPES[dtype.name if buffers.operation.reduces else ucc.SAME_WIDTH[dtype.size]]
        self.send = Address(buffers.send_at(0, slot), dtype.size)
        self.recv = Address(buffers.recv_at(0, slot), dtype.size)
        self.request = self.room(8)

    def call(self, name: str, *, src: Even | Uneven | None = None, dst: Even | Uneven | None = None) -> NativeCall:  # type: ignore[override]
        """Return the call that makes, starts, awaits and frees a request of the collective ("ALLREDUCE")."""
        return self._native("call", name, int(self._arguments(name, src, dst)), self.request, self._team)

    def start(self, name: str, *, src: Even | Uneven | None = None, dst: Even | Uneven | None = None) -> NativeCall:
        """Return the call that makes and starts a request; `finish` waits for it."""
        return self._native("start", name, int(self._arguments(name, src, dst)), self.request, self._team)

    def begin(self) -> None:
        """Return None: requests begin when they are started."""

    def finish(self) -> NativeCall:
        """Return the call that waits for the started request and frees it."""
        return self._native("finish", "request", self.request)

    def _native(self, kind: str, name: str, *arguments: int) -> NativeCall:
        return NativeCall(f"ucc {name}", address(f"collbench_request_{kind}"), (ctypes.addressof(self._functions), *arguments))

    def _arguments(self, name: str, src: Even | Uneven | None, dst: Even | Uneven | None, flags: int = 0) -> int:
        """Return the address of a ucc_coll_args_t, which lives as long as the program."""
        arguments = ucc.CollectiveArguments(mask=ucc.FLAGS, coll_type=ucc.COLLECTIVES[name], root=self.root)
        arguments.flags = flags | ucc.COUNT_64 | ucc.DISPLACEMENTS_64
        if self.case.in_place and name != "BCAST":
            arguments.flags |= ucc.IN_PLACE
        arguments.op = ucc.REDOPS[self.case.redop] if self.case.redop else 0
        if src:
            self._fill(arguments.src, *src)
        if dst:
            self._fill(arguments.dst, *dst)
        self.keep.append(arguments)
        return ctypes.addressof(arguments)

    def _fill(self, info: ucc.Info, buffer: Address, count: int | Sequence[int]) -> None:
        if isinstance(count, int):
            info.info = ucc.BufferInfo(int(buffer), count, self._type, ucc.HOST)
            return
        starts = list(accumulate(count, initial=0))[:-1]
        info.info_v = ucc.BufferInfoV(int(buffer), int(self.array(count)[:]), int(self.array(starts)[:]), self._type, ucc.HOST)


class PersistentUccBinding(UccBinding):
    """The binding for requests that are made once. Its calls start one and wait for it."""

    is_made = False

    def call(self, name: str, *, src: Even | Uneven | None = None, dst: Even | Uneven | None = None) -> NativeCall:  # type: ignore[override]
        """Make a request, and return the call that starts it and waits for it. Raises RunFailed."""
        arguments = self._arguments(name, src, dst, ucc.PERSISTENT)
        function = self.library.ucc_collective_init
        check(self.library, function(*map(ctypes.c_void_p, (arguments, self.request, self._team))), "ucc_collective_init")
        self.is_made = True
        return self._native("run", name, self.request)

    def free(self) -> None:
        """Free the request, which must be complete."""
        if self.is_made:
            self.is_made = False
            self.library.ucc_collective_finalize(ctypes.c_void_p.from_address(self.request))


# The operations. UCC counts all elements of a buffer, and an in-place reduce-scatter leaves the result at this rank's part.
# SCATTER is missing: only its layers for GPUs have it (1.8.0), and it is refused on host memory.


def _parts(x: UccBinding) -> tuple[int, ...]:
    return elements_by_rank(x.case.traffic, x.n, x.count)


def _part(x: UccBinding) -> int:
    return _parts(x)[x.rank]


def _at_root(x: UccBinding, buffer: Even | Uneven) -> Even | Uneven | None:
    return buffer if x.rank == x.root else None


def _reducescatter(x: UccBinding) -> Iterator[NativeCall]:
    dst = (x.send, x.n * x.count) if x.case.in_place else (x.recv, x.count)
    yield x.call("REDUCE_SCATTER", src=(x.send, x.n * x.count), dst=dst)


def _reducescatterv(x: UccBinding) -> Iterator[NativeCall]:
    dst = x.send if x.case.in_place else x.recv
    yield x.call("REDUCE_SCATTERV", src=(x.send, sum(_parts(x))), dst=(dst, _parts(x)))


def _alltoallv(x: UccBinding) -> Iterator[NativeCall]:
    counts = elements(x.case.traffic, x.n, x.count)
    yield x.call("ALLTOALLV", src=(x.send, counts[x.rank].tolist()), dst=(x.recv, counts[:, x.rank].tolist()))


STEPS: Mapping[str, Steps] = {
    "allreduce": lambda x: [x.call("ALLREDUCE", src=(x.send, x.count), dst=(x.recv, x.count))],
    "reduce": lambda x: [x.call("REDUCE", src=(x.send, x.count), dst=_at_root(x, (x.recv, x.count)))],
    "broadcast": in_place_only(lambda x: [x.call("BCAST", src=(x.recv, x.count))]),
    "allgather": lambda x: [x.call("ALLGATHER", src=(x.send, x.count), dst=(x.recv, x.n * x.count))],
    "gather": lambda x: [x.call("GATHER", src=(x.send, x.count), dst=_at_root(x, (x.recv, x.n * x.count)))],
    "reducescatter": _reducescatter,
    "alltoall": out_of_place_only(lambda x: [x.call("ALLTOALL", src=(x.send, x.n * x.count), dst=(x.recv, x.n * x.count))]),
    "alltoallv": _alltoallv,
    "allgatherv": lambda x: [x.call("ALLGATHERV", src=(x.send, _part(x)), dst=(x.recv, _parts(x)))],
    "gatherv": lambda x: [x.call("GATHERV", src=(x.send, _part(x)), dst=_at_root(x, (x.recv, _parts(x))))],
    "scatterv": lambda x: [x.call("SCATTERV", src=_at_root(x, (x.send, _parts(x))), dst=(x.recv, _part(x)))],
    "reducescatterv": _reducescatterv,
    "barrier": lambda x: [x.call(_BARRIER)],
}
_BARRIER = "BARRIER"


class ContextMeeting:
    """The all-gather through which UCC's ranks meet, over the control plane."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.error: BaseException | None = None
        self._kept = (ucc.AllgatherFunction(self._allgather), ucc.RequestFunction(lambda _: 0), ucc.RequestFunction(lambda _: 0))
        self.functions = ucc.OutOfBand(*self._kept, None, world.size, world.rank)

    def _allgather(self, source: int, target: int, n_bytes: int, _info: int, _request: Any) -> int:
        try:
            parts = self._world.allgather(ctypes.string_at(source, n_bytes).hex(), "opening UCC: the addresses of the ranks")
            ctypes.memmove(target, b"".join(map(bytes.fromhex, parts)), n_bytes * len(parts))
        except BaseException as error:  # C cannot pass an exception on: `open` raises it
            self.error = error
            return -6  # UCC_ERR_NO_MESSAGE
        return 0


class UccBackend(HostBackend):
    """The backend ucc: libucc.so.1, on host memory."""

    name = api = "ucc"
    steps = STEPS

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Return whether a supported UCC can be loaded, with its layers. It is not initialized in this process."""
        try:
            library = load_ucc()
            check_layers(library)
        except LibraryUnusable as error:
            return Unavailable.because(error.obstacle)
        return Available(f"UCC {library.ucc_get_version_string().decode()}")

    def open(self, world: World, settings: Settings) -> None:
        """Initialize UCC, and make a context of all ranks. Raises UsageError, RunFailed."""
        if native_library() is None:
            raise UsageError("backend 'ucc' needs the native loop: install a C compiler, then collbench again")
        self._ucc = load_ucc()
        self._timeout_s = settings.timeout_s
        self.rank, self.ranks = world.rank, world.size
        self.explain = lambda code: str(self._ucc.ucc_status_string(ctypes.c_int(code)).decode())
        self._teams: dict[tuple[int, ...], int] = {}
        self._library = ctypes.c_void_p()
        self._context = ctypes.c_void_p()
        self._log = ChoiceLog()
        self._bound: list[dict[str, Any]] = []
        with self._log.start(self._ucc):
            self._initialize()
        self._meet(ContextMeeting(world))
        names = ("collective_init", "collective_post", "context_progress", "collective_finalize")
        pointers = [ctypes.cast(getattr(self._ucc, f"ucc_{name}"), ctypes.c_void_p).value for name in names]
        self._functions = ucc.RequestFunctions(*pointers, self._context)

    def _initialize(self) -> None:
        config = ctypes.c_void_p()
        check(self._ucc, self._ucc.ucc_lib_config_read(None, None, ctypes.byref(config)), "ucc_lib_config_read")
        parameters = ucc.LibraryParameters(mask=1, thread_mode=ucc.THREAD_SINGLE)
        code = self._ucc.ucc_init_version(*ucc.API, ctypes.byref(parameters), config, ctypes.byref(self._library))
        self._ucc.ucc_lib_config_release(config)
        check(self._ucc, code, "ucc_init")

    def _meet(self, meeting: ContextMeeting) -> None:
        config = ctypes.c_void_p()
        check(self._ucc, self._ucc.ucc_context_config_read(self._library, None, ctypes.byref(config)), "ucc_context_config_read")
        parameters = ucc.ContextParameters(mask=ucc.CONTEXT_OOB, oob=meeting.functions)
        code = self._ucc.ucc_context_create(self._library, ctypes.byref(parameters), config, ctypes.byref(self._context))
        self._ucc.ucc_context_config_release(config)
        if meeting.error:
            raise meeting.error
        check(self._ucc, code, "ucc_context_create")
        self._meeting = meeting  # UCC may call it again until the context is destroyed

    def communicator(self, ranks: Sequence[int]) -> int | None:
        """Return the team of these ranks, made once; None on ranks outside it. Raises RunFailed."""
        key = tuple(ranks)
        if self.rank in key and key not in self._teams:
            with self._log.making_team():
                self._teams[key] = self._team(key)
        return self._teams.get(key)

    def _team(self, ranks: tuple[int, ...]) -> int:
        numbers = (ctypes.c_uint64 * len(ranks))(*ranks)
        parameters = ucc.TeamParameters(mask=ucc.TEAM_EP | ucc.TEAM_RANGE | ucc.TEAM_MAP, ep=ranks.index(self.rank))
        parameters.ep_map = ucc.EndpointMap(ucc.BY_ARRAY, len(ranks), ctypes.addressof(numbers), 8)
        self._numbers = [*getattr(self, "_numbers", []), numbers]  # teams refer to it
        team = ctypes.c_void_p()
        code = self._ucc.ucc_team_create_post(ctypes.byref(self._context), 1, ctypes.byref(parameters), ctypes.byref(team))
        check(self._ucc, code, "ucc_team_create_post")
        self._finish(lambda: self._ucc.ucc_team_create_test(team), f"making a team of {len(ranks)} ranks")
        return team.value or 0

    def _finish(self, test: Any, action: str) -> None:
        """Test until it is done. Raises RunFailed for an error, or at the deadline."""
        end = time.monotonic() + self._timeout_s
        while (code := test()) == ucc.IN_PROGRESS:
            check(self._ucc, self._ucc.ucc_context_progress(self._context), "ucc_context_progress")
            if time.monotonic() > end:
                raise RunFailed(f"UCC did not end {action} within {self._timeout_s:g} s: some ranks did not take part")
        check(self._ucc, code, action)

    def sync(self, group: Group) -> Program:
        """Return a program with UCC's barrier on the group, as ucc_perftest uses it. Its ranks poll: one that sleeps would be late."""
        arguments = ucc.CollectiveArguments(coll_type=ucc.COLLECTIVES[_BARRIER])
        request = ctypes.c_void_p()
        addresses = (ctypes.addressof(self._functions), ctypes.addressof(arguments), ctypes.addressof(request))
        call = NativeCall(f"ucc {_BARRIER}", address("collbench_request_call"), (*addresses, group.handle))
        return Program(((call,),), keep=(arguments, request), explain=self.explain)

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> UccBinding:
        """Return the binding for one slot."""
        return UccBinding(self._ucc, self._functions, buffers, group, slot)

    def bind_persistent(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> Program | Fact:
        """Return the program that starts requests made once. All ranks must call it. Raises RunFailed."""
        bindings = [PersistentUccBinding(self._ucc, self._functions, buffers, group, slot) for slot in range(buffers.slots)]
        free = partial(free_all, bindings)
        try:
            with self._log.witness() as self._bound:
                slots = tuple(tuple(self.steps[operation.name](binding)) for binding in bindings)
        except RunFailed:
            free()
            raise
        return Program(slots, keep=(buffers, bindings), explain=self.explain, free=free)

    @property
    def progress(self) -> Literal["threads", "calls"]:
        """What moves the data while a rank computes: UCC's layers for host memory have no threads."""
        return "calls"

    def test_calls(self, wait: Program) -> Program:
        """Return a call of ucc_context_progress for each slot, which serves all requests of the context."""
        call = NativeCall("ucc_context_progress", self._functions.progress, (self._context.value or 0,))
        return Program(((call,),) * len(wait.slots), keep=wait, explain=wait.explain)

    @contextmanager
    def witness(self, case: Case) -> Iterator[list[dict[str, Any]]]:
        """Yield a list around untimed calls of a case, which has UCC's choices at its end. Persistent requests were made before."""
        with self._log.witness() as choices:
            yield choices
        choices[:] = [choice for choice in choices if choice["collective"] != _BARRIER.lower()]  # those of `sync`
        if case.call == "persistent":
            choices += self._bound

    def supports(self, operation: Operation, case: Case) -> Reason | None:
        """Return why UCC cannot reduce the case, or None. UCC itself finds out during the call, after which the next one may hang."""
        if operation.reduces and case.dtype.name not in ucc.REDUCED:
            return DtypeUnsupported("UCC", case.dtype.name)
        if case.redop == "avg" and operation.name in ucc.WITHOUT_AVERAGE:
            return RedopUnsupported("UCC", case.redop, operation.name)
        return None

    def versions(self) -> Mapping[str, str]:
        """Return the versions of UCC and of the UCX below it, and all UCC_* and UCX_* settings."""
        versions = {"ucc": self._ucc.ucc_get_version_string().decode()}
        ucx_version = ucc.ucx_version()
        if ucx_version:
            versions["ucx"] = ucx_version
        return versions | user_settings("UCC_", "UCX_")

    def close(self) -> None:
        """Destroy the teams and the context, on all ranks together."""
        for team in self._teams.values():
            self._finish(lambda team=team: self._ucc.ucc_team_destroy(ctypes.c_void_p(team)), "destroying a team")
        self._ucc.ucc_context_destroy(self._context)
        self._ucc.ucc_finalize(self._library)
        self._log.close()
