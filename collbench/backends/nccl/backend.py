"""NCCL by function pointer on collbench's streams: one rank per GPU, one or several GPUs per process, as in nccl-tests."""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec.structs import asdict, replace

from collbench.backends.backend import Available, BackendBase, Group, Settings, Tuning, Unavailable
from collbench.backends.clock import DeviceClock
from collbench.backends.gpu_memory import ProcessPlace, chosen_gpus, may_share, shared, trouble
from collbench.backends.host import AnyBuffers
from collbench.backends.nccl.binding import (
    GRAPH_ITERATIONS,
    Communicators,
    Graphs,
    NcclBinding,
    NcclMemory,
    forget,
    register,
    rotation,
    together,
    tuned,
)
from collbench.backends.nccl.creation import GroupCreation, HostCalls
from collbench.backends.nccl.library import (
    DATATYPES,
    NCCL,
    REDOPS,
    REGISTRATIONS,
    REMOTE_ERROR,
    WINDOW_FLAGS,
    LibraryDialect,
    NcclLibrary,
    NcclNotFound,
    code_of,
    dotted,
    features_of,
    limits,
    load_nccl,
)
from collbench.device.buffers import DeviceAllocation, DeviceBuffers, kernels_of
from collbench.device.platform import GpuPlatform, cuda
from collbench.errors import CollbenchError, RunFailed, UsageError
from collbench.operations.case import Case
from collbench.operations.data import bytes_needed, slots_checked
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import Call, NativeCall, NonBlocking, Program
from collbench.operations.unsupported import StartUnsupported
from collbench.reason import Fact
from collbench.units import format_bytes

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.device.gpu import Event, GpuMemory, OpenGpu, Stream


# Opening NCCL: every rank finds its library and GPUs, all ranks check that these match, then each rank claims its GPUs.

_SCRATCH_BYTES = 256


class RankGpu(msgspec.Struct, frozen=True):
    """One rank that this process drives: its GPU, the stream of its calls, the events of a sample, and GPU memory for synchronization."""

    gpu: OpenGpu
    stream: Stream
    start: Event
    end: Event
    scratch: GpuMemory


Load = Callable[[Mapping[str, str]], NcclLibrary]


def _look(world: World, k: int, load: Load, platform: GpuPlatform) -> tuple[NcclLibrary | None, list[int], dict[str, Any]]:
    """Return the library, the indices of this process's GPUs, and the reply for the other ranks. Never raises, since they wait for it."""
    try:
        library = load(os.environ)
        gpus = platform.identities()
        shares, host_id = may_share(os.environ)
        indices = chosen_gpus(world.info.local_rank, world.info.local_ranks, k, len(gpus), shares or bool(host_id))
    except Exception as error:
        problem = str(error) if isinstance(error, CollbenchError) else f"{platform.name} does not start ({type(error).__name__}: {error})"
        return None, [], {"wrong": f"{world.me}: {problem}" if world.size > 1 else problem}
    visible = tuple(gpu.bus_id for gpu in gpus)
    driven = tuple(gpus[index].bus_id for index in indices)
    alone = tuple(gpus[index].bus_id for index in indices if gpus[index].exclusive)
    place = ProcessPlace(world.me.host, visible, driven, alone, shares, host_id)
    return library, indices, {"place": asdict(place), "version": dotted(library.version), "rank": str(world.me), "path": library.path}


def _versions_differ(all_ranks: Sequence[Mapping[str, Any]], library: str) -> str | None:
    """Reject different versions of a library, which are incompatible: some versions only hang."""
    first = all_ranks[0]
    for reply in all_ranks:
        if reply["version"] != first["version"]:
            return (
                f"{first['rank']} loads {library} {first['version']} ({first['path']}) and {reply['rank']} {reply['version']} "
                f"({reply['path']}): install the same one on all hosts, or set COLLBENCH_NCCL"
            )
    return None


def _claim(index: int, platform: GpuPlatform) -> RankGpu:
    from collbench.device.buffers import prove

    gpu = platform.open(index)
    driven = RankGpu(gpu, gpu.stream(), gpu.event(), gpu.event(), gpu.allocate(_SCRATCH_BYTES))
    prove(gpu, driven.stream)
    return driven


_NOT_READY = 600  # CUDA_ERROR_NOT_READY
_LOOK_S = 0.001


class NcclBackend(BackendBase):
    """The backend nccl, on GPU memory.

    flags     "shared_gpu" if the user allows ranks to share a GPU: results are correct, but rates are not those of the machine
    ask_ras   returns which ranks NCCL's RAS service reports as late if work does not end; set by the code that opens this backend
    dialect   what the library calls itself and its functions; platform: returns the runtime of its GPUs; load: finds the library
    """

    name = api = "nccl"
    dialect: ClassVar[LibraryDialect] = NCCL
    platform: ClassVar[Callable[[], GpuPlatform]] = staticmethod(cuda)
    load: ClassVar[Load] = staticmethod(load_nccl)
    devices = frozenset({"cuda"})
    takes_tuning = uses_nccl = passes_messages = True

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Return whether the runtime shows a GPU here and the library loads. The cheaper check comes first."""
        missing = cls.platform().obstacle(os.environ)
        if missing:
            return Unavailable.because(missing)
        try:
            library = cls.load(os.environ)
        except NcclNotFound as error:
            return Unavailable.because(error.obstacle)
        return Available(f"{cls.dialect.name} {dotted(library.version)}", features_of(library))

    def open(self, world: World, settings: Settings) -> None:
        """Find the library, claim each process's GPUs and test the checker on them; makes no communicator.

        Raises UsageError, for GPUs that do not fit together on all ranks.
        """
        k = settings.gpus_per_process
        self._platform = type(self).platform()
        library, indices, own_reply = _look(world, k, type(self).load, self._platform)
        replies = world.allgather(own_reply, f"opening {self.name}: which GPUs")
        problem = next((reply["wrong"] for reply in replies if reply.get("wrong")), None) or _versions_differ(replies, self.dialect.name)
        if problem or library is None:
            raise UsageError(problem or f"no {self.dialect.name} library is found")
        places = [ProcessPlace.from_json(reply["place"]) for reply in replies]
        misfit = trouble(places, k)
        if misfit:
            raise UsageError(misfit)
        try:
            self._driven = tuple(_claim(index, self._platform) for index in indices)
        except (CollbenchError, MemoryError) as error:
            raise UsageError(f"{world.me}: {error}", rank=world.rank) from error
        self._world = world
        self._timeout_s = settings.timeout_s
        self._library = library
        self._own_ranks = range(world.rank * k, world.rank * k + len(self._driven))
        self._drivers = Counter(gpu for place in places if place.host == world.me.host for gpu in place.driven)  # ranks per GPU
        self.ranks = world.size * k
        self.gpus = tuple(gpu for place in places for gpu in place.driven)
        if shared(places):
            self.flags = (*type(self).flags, "shared_gpu")
        self.nccl = (library.handle, code_of(library.version))
        self._communicators = Communicators(library)
        self._side_streams: dict[int, Stream] = {}  # by communicator
        self._memories = weakref.WeakSet[NcclMemory]()
        self._graphs = weakref.WeakSet[Graphs]()
        self._driver = self._platform.addresses()

    def group(self, ranks: Sequence[int], tuning: Tuning | None = None) -> Group | None:
        """Return a communicator of these ranks. Raises RunFailed, the same on all ranks, for example if NCCL rejects the tuning.

        The process of the first rank creates the unique id.
        """
        driven = [place for place, rank in enumerate(ranks) if rank in self._own_ranks]
        phase = f"making a communicator of {len(ranks)} ranks"
        with self._world.watchdog.phase(phase):
            identity = self._identity(ranks[0], phase)
            comms: tuple[int, ...] = ()
            problem = ""
            code = 0
            try:
                with tuned(tuning):
                    gpus = [self._rank(ranks[place]).gpu for place in driven]
                    comms = self._communicators.make(gpus, driven, len(ranks), identity) if driven else ()
            except RunFailed as error:
                problem = f"{self._world.me}: {error}"
                code = getattr(error, "code", 0)
            self._agree(comms, problem, code, phase)
        return Group(tuple(ranks), tuple(driven), comms) if driven else None

    def _agree(self, comms: Sequence[int], problem: str, code: int, phase: str) -> None:
        """Raise RunFailed on all ranks if any rank failed, with the error of a rank that knows the cause."""
        try:
            replies = self._world.allgather([problem, code], phase)
        except CollbenchError:
            if problem:
                raise RunFailed(problem) from None
            raise
        failures = [reply for reply in replies if reply[0]]
        if failures:
            self._communicators.abort(comms)
            cause, _ = min(failures, key=lambda failure: failure[1] == REMOTE_ERROR)
            raise RunFailed(str(cause))

    def _rank(self, rank: int) -> RankGpu:
        return self._driven[self._own_ranks.index(rank)]

    def _ranks_of(self, group: Group) -> list[RankGpu]:
        return [self._rank(group.ranks[place]) for place in group.driven]

    def _identity(self, first: int, phase: str) -> str:
        """Return the unique id, which the process of rank `first` creates. Raises the same error on all ranks."""
        reply: list[str | None] = [None, None]
        if first in self._own_ranks:
            try:
                reply = [self._library.unique_id(), None]
            except CollbenchError as error:
                reply = [None, str(error)]
        identity, problem = self._world.allgather(reply, phase)[first // len(self._driven)]
        if problem or not identity:
            raise RunFailed(problem or "NCCL gave no identity for a communicator")
        return identity

    def release(self, group: Group) -> None:
        """Destroy the group's communicators, after their registrations and graphs. Does nothing for a pair, which uses another group's."""
        if not group.names:
            self._forget(group.handle)

    def _forget(self, comms: Sequence[int]) -> None:
        self._free_graphs(comms)
        for memory in self._memories:
            forget(self._library, memory.known, comms)
        self._communicators.destroy(comms)

    def _free_graphs(self, comms: Sequence[int]) -> None:
        """Free graphs before their communicators, since NCCL waits forever for remaining graphs. CUDA frees a running one when it ends."""
        for graphs in self._graphs:
            graphs.free(comms)

    def supports(self, operation: Operation, case: Case) -> Reason | None:
        """Return why this NCCL version cannot run the case, else None."""
        return limits(operation, case, self._library, [rank.gpu.arch for rank in self._driven])

    def free_bytes(self, case: Case) -> int | None:
        """Return the GPU's free bytes divided by the ranks that drive it."""
        return min(rank.gpu.free_bytes() // self._drivers[rank.gpu.bus_id] for rank in self._driven)

    def communicator_bytes(self, group: Group) -> tuple[int, str] | None:
        """Return the most GPU memory that a communicator of the group takes in this process, in bytes, and its source; None if unknown."""
        with suppress(RunFailed):
            return self._communicators.most_bytes(group.handle)
        return None

    def versions(self) -> Mapping[str, str]:
        """Return the version and path of the loaded library, the versions of its runtime, and the GPUs of this process."""
        library = {self.name: dotted(self._library.version), f"{self.name}_path": self._library.path}
        gpu_names = dict.fromkeys(rank.gpu.name for rank in self._driven)
        return {**library, **self._platform.versions(), "gpus": ", ".join(gpu_names)}

    def allocate(self, operation: Operation, case: Case, group: Group, slots: int) -> DeviceBuffers:
        """Return buffers in GPU memory, from NCCL's allocator for registered cases. Raises MemoryError, RunFailed."""
        is_registered = case.registration in REGISTRATIONS
        needed = bytes_needed(operation, case, group.n)
        ranks = self._ranks_of(group)
        gpus = [rank.gpu for rank in ranks]
        streams = [rank.stream for rank in ranks]
        allocator: Callable[[OpenGpu, int], DeviceAllocation] = self._nccl_memory if is_registered else type(gpus[0]).allocate

        def make() -> DeviceBuffers:
            for gpu in gpus:
                # checked first, because CUDA's errors vary
                free = gpu.free_bytes() // self._drivers[gpu.bus_id]
                if needed > free:
                    where = f"GPU {gpu.index} ({gpu.name}) of {self._world.me.host}"
                    raise MemoryError(f"{where} has {format_bytes(free)} left for a rank, and {format_bytes(needed)} are needed")
            return DeviceBuffers(operation, case, group, slots, gpus, streams, allocator)

        buffers = self._in_step(case, make) if case.registration in WINDOW_FLAGS else make()
        if is_registered:
            memories = [memory for memory in buffers.memory if isinstance(memory, NcclMemory)]
            with self._world.watchdog.phase(f"{case.title()}: registering its buffers"):
                register(self._library, memories, group.handle, str(case.registration))
        return buffers

    def _nccl_memory(self, gpu: OpenGpu, n_bytes: int) -> NcclMemory:
        memory = NcclMemory(self._library, self._communicators, gpu, n_bytes)
        self._memories.add(memory)
        return memory

    def _in_step(self, case: Case, make: Callable[[], DeviceBuffers]) -> DeviceBuffers:
        """Create buffers on all ranks together: windows need all ranks, so a rank without memory must not block others."""
        buffers: DeviceBuffers | None = None
        own_problem: str | None = None
        try:
            buffers = make()
        except (MemoryError, CollbenchError) as error:
            own_problem = str(error)
        problem = self._world.first_error(own_problem, f"{case.title()}: allocating")
        if problem or buffers is None:
            raise MemoryError(problem or own_problem)
        return buffers

    def bind(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> Program:
        """Return one program for all ranks of the group that this process drives; in graph mode the launch of its graph."""
        ranks = self._ranks_of(group)
        steps = operation.steps_of(self.api, self.passes_messages)
        assert steps is not None, "excluded by unsupported_reason"
        if operation.creates:
            phase = "exchanging the unique id of a communicator"
            hosts = list(self._world.hosts)
            host_of = [hosts.index(member.host) for member in self._world.members for _ in self._driven]
            calls = HostCalls(lambda: self._identity(group.ranks[0], phase), lambda: self.fence(self._timeout_s), host_of)
            creation = GroupCreation(self._library, self._communicators, group, ranks, calls)
            return Program((tuple(steps(creation)),), keep=buffers)
        bindings: list[NcclBinding] = []
        slots: list[tuple[Call, ...]] = []
        for slot in range(buffers.slots):
            of_ranks = [NcclBinding(self._library, buffers, group, rank, (place, slot)) for place, rank in enumerate(ranks)]
            slots.append(together([list(steps(binding)) for binding in of_ranks], self._library))
            bindings += of_ranks
        program = Program(tuple(slots), keep=(buffers, bindings), explain=self._library.explain_abort)
        return self._captured(program, group, {0, *slots_checked(case)}) if case.mode == "graph" else program

    def bind_nonblocking(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> NonBlocking | Fact:
        """Return the calls on a stream of the group's communicator, which the rank's own stream waits for.

        So operations of different communicators overlap, and those of one follow one another, as in training.
        """
        ranks = self._ranks_of(group)
        steps = operation.steps_of(self.api, self.passes_messages)
        assert steps is not None, "excluded by unsupported_reason"
        if operation.creates:
            return StartUnsupported(self.name, operation.name)
        if case.mode == "graph":
            return StartUnsupported(f"{self.name} with --mode graph", operation.name)
        if len(ranks) > 1:
            return StartUnsupported(f"{self.name} with several GPUs per process", operation.name)
        (rank,) = ranks
        (comm,) = group.handle
        if comm not in self._side_streams:
            self._side_streams[comm] = rank.gpu.stream()
        side = self._side_streams[comm]
        starts: list[tuple[Call, ...]] = []
        waits: list[tuple[Call, ...]] = []
        keep: list[object] = [buffers]
        for slot in range(buffers.slots):
            binding = NcclBinding(self._library, buffers, group, replace(rank, stream=side), (0, slot))
            ready = rank.gpu.event()
            done = rank.gpu.event()
            # the communicator's stream begins after the present work of the rank's own stream
            starts.append((self._record(ready, rank.stream), self._wait(ready, side), *steps(binding), self._record(done, side)))
            waits.append((self._wait(done, rank.stream),))
            keep += [binding, ready, done]
        explain = self._library.explain_abort
        return NonBlocking(Program(tuple(starts), keep, explain), Program(tuple(waits), keep, explain))

    def _record(self, event: Event, stream: Stream) -> NativeCall:
        return NativeCall(self._platform.record, self._driver[self._platform.record], (event.address, stream.address))

    def _wait(self, event: Event, stream: Stream) -> NativeCall:
        return NativeCall(self._platform.wait, self._driver[self._platform.wait], (stream.address, event.address, 0))

    def compute(self, seconds: float) -> Call:
        """Return a call that keeps the rank's own stream busy for so long, with a kernel."""
        (rank,) = self._driven
        return kernels_of(rank.gpu).call(rank.stream, "delay", 1, max(0, round(seconds * 1e9)))

    def computing_stream(self) -> tuple[OpenGpu, Stream]:
        """Return the rank's own GPU and stream."""
        (rank,) = self._driven
        return rank.gpu, rank.stream

    def _captured(self, program: Program, group: Group, checked: Collection[int]) -> Program:
        """Return graphs of 20 iterations over the buffer slots in turn, and of one iteration for each slot that is verified.

        Graphs are not made for all of up to 1,024 slots: each takes time and GPU memory. The other slots keep
        their plain calls.
        """
        graphs = Graphs(group.handle, program.explain)
        self._graphs.add(graphs)
        ranks = self._ranks_of(group)
        slots = program.slots
        launch = (self._platform.launch, self._driver[self._platform.launch])
        timed = [
            graphs.capture(ranks, [call for slot in rotation(len(slots), graph) for call in slots[slot]], launch)
            for graph in range(-(-len(slots) // GRAPH_ITERATIONS))
        ]
        single = tuple(graphs.capture(ranks, slot, launch) if i in checked else slot for i, slot in enumerate(slots))
        once = Program(single, keep=(program.keep, graphs), explain=self._platform.error)
        return Program(tuple(timed), keep=once.keep, explain=self._platform.error, iterations=GRAPH_ITERATIONS, once=once)

    def sync(self, group: Group) -> Program | None:
        """Return an all-reduce of one element on the same streams, so that no sample begins before every rank has arrived."""
        words = (1, DATATYPES["int32"].number, REDOPS["sum"].number)
        function = self._library.address("ncclAllReduce")
        calls: list[list[Call]] = []
        for comm, rank in zip(group.handle, self._ranks_of(group), strict=True):
            scratch = rank.scratch.address
            calls.append([NativeCall("ncclAllReduce", function, (scratch, scratch, *words, comm, rank.stream.address))])
        return Program((together(calls, self._library),), explain=self._library.explain_abort)

    def clock(self) -> DeviceClock:
        """Return a clock of events on the stream of each rank that this process drives."""
        driver = self._platform
        return DeviceClock(
            streams=tuple(rank.stream.address for rank in self._driven), starts=tuple(rank.start.address for rank in self._driven),
            ends=tuple(rank.end.address for rank in self._driven), record=self._driver[driver.record],
            query=self._driver[driver.query], elapsed=self._driver[driver.elapsed], comms=tuple(self._communicators.alive),
            async_error=self._library.address("ncclCommGetAsyncError"), deadline_s=self._timeout_s, device_error=driver.error,
            library_error=self._library.explain, stuck=self._stuck,
        )  # fmt: skip

    def _stuck(self, sentence: str) -> str:
        """Query which ranks lag while NCCL still answers, then abort the communicators. Return the message."""
        gpus = ", ".join(f"rank {rank} on GPU {driven.gpu.bus_id}" for rank, driven in zip(self._own_ranks, self._driven, strict=True))
        parts = [f"{sentence}, as seen by {gpus} of {self._world.me.host}"]
        with suppress(Exception):  # the error must be reported even if this fails
            if self._world.watchdog.suspects:
                parts += self._world.watchdog.suspects()
            late_ranks = self.ask_ras()
            if late_ranks:
                parts.append(late_ranks)
        self.abort(sentence)
        return "; ".join(parts)

    def fence(self, deadline_s: float) -> None:
        """Wait until the streams are empty. Raises RunFailed at the deadline, or for an error of the GPU."""
        query = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)(self._driver[self._platform.query])
        end = time.monotonic() + deadline_s
        for rank in self._driven:
            while code := query(rank.stream.address):
                if code != _NOT_READY:
                    raise RunFailed(f"GPU {rank.gpu.index} ({rank.gpu.name}) failed: {self._platform.error(code)}")
                if time.monotonic() > end:
                    raise RunFailed(
                        self._stuck(f"work on GPU {rank.gpu.index} ({rank.gpu.name}) has not completed within {deadline_s:g} s")
                    )
                time.sleep(_LOOK_S)

    def abort(self, why: str) -> None:
        """Call ncclCommAbort on every communicator."""
        self._free_graphs(self._communicators.alive)
        self._communicators.abort(self._communicators.alive)

    def close(self) -> None:
        """Wait for pending work, then free graphs, registrations and communicators, in this order."""
        self.fence(self._timeout_s)
        self._forget(self._communicators.alive)
