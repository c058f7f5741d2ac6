"""Measure training with parameter servers.

Asynchronous training: every worker at its own pace for a given time, with staleness and lost updates. Synchronous steps: on the
servers of a library.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from queue import SimpleQueue
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from collbench.backends.backend import Backend
from collbench.control.world import World
from collbench.errors import CollbenchError, RunFailed, UsageError
from collbench.machine.peak.ceiling import Ceiling, no_ceiling
from collbench.measuring.ceilings import Ceilings
from collbench.measuring.engine import Measured
from collbench.measuring.open_backends import members_of
from collbench.measuring.prepared_case import BackendContext, PreparedCase
from collbench.measuring.request import Budget
from collbench.measuring.row import against_limits, doubts, times_of
from collbench.measuring.session import LaunchSession
from collbench.measuring.verification import DataError
from collbench.operations.builtin.p2p import P2P_BANDWIDTH
from collbench.operations.case import Case
from collbench.operations.data import POISON, Mismatch
from collbench.operations.dtypes import DTYPES, DType, dtype_named
from collbench.operations.unsupported import HostMemoryNeeded, ServersUnsupported
from collbench.plugins.libraries.tensorflow import ParameterServers, ServerLayout
from collbench.plugins.training.records import ServerUpdates, Staleness, StepRow, WorkerPace
from collbench.plugins.training.step_task import (
    LibraryTraining,
    LibraryWork,
    StepLoop,
    TrainingRun,
    check_number,
    pieces,
)
from collbench.plugins.training.workloads.parameter_server import REGIME, roles
from collbench.plugins.training.workloads.step import Regime, Shape, Step
from collbench.results.row import Times

# Messages between two ranks, each pair at its own pace, without a barrier. A server handles requests in the order of their arrival.
#
# A conversation with another rank is a generator of messages. It continues when its current message is complete. Only one
# conversation of a process runs between two messages at any time, so no other thread uses its data there.

_TAG = 77
_LEAVING_S = 2.0


class ArrayMessage(msgspec.Struct, frozen=True):
    """A message: elements to send, or memory to receive them. Do not change them until the conversation continues."""

    elements: NDArray[Any]
    receive: bool

    @property
    def data(self) -> NDArray[np.uint8]:
        """The elements as bytes. The other rank has the same number."""
        return self.elements.view(np.uint8)


def sent(elements: NDArray[Any]) -> ArrayMessage:
    """Return a message to the other rank."""
    return ArrayMessage(elements, receive=False)


def received(elements: NDArray[Any]) -> ArrayMessage:
    """Return a message from the other rank, received into `elements`."""
    return ArrayMessage(elements, receive=True)


Conversation = Generator[ArrayMessage, None, None]


class OverMpi:
    """Conversations over MPI's non-blocking messages, in the main thread: one request each; the next complete one continues."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = MPI.COMM_WORLD

    def run(self, talks: Mapping[int, Conversation], moved: Callable[[], None]) -> None:
        """Run the conversations with these ranks at the same time, until all have ended; `moved` is called after each message."""
        peers: list[int] = []
        requests: list[Any] = []
        for peer, talk in talks.items():
            message = next(talk, None)
            if message is not None:
                peers.append(peer)
                requests.append(self._begin(peer, message))
        while requests:
            complete = self._mpi.Request.Waitany(requests)
            moved()
            peer = peers[complete]
            message = next(talks[peer], None)
            if message is None:
                del peers[complete], requests[complete]
            else:
                requests[complete] = self._begin(peer, message)

    def _begin(self, peer: int, message: ArrayMessage) -> Any:
        begin = self._comm.Irecv if message.receive else self._comm.Isend
        return begin([message.data, self._mpi.BYTE], peer, _TAG)


class OverTorch:
    """Conversations over torch.distributed, each in a thread, since Gloo cannot report whether a message is complete (torch 2.13)."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._between = threading.Lock()
        self._threads: list[threading.Thread] = []
        atexit.register(self._settle)

    def run(self, talks: Mapping[int, Conversation], moved: Callable[[], None]) -> None:
        """Run the conversations as `OverMpi.run`; raise their errors. A single one needs no thread."""
        if len(talks) == 1:
            ((peer, talk),) = talks.items()
            self._hold(peer, talk, moved)
            return
        ended: SimpleQueue[BaseException | None] = SimpleQueue()

        def in_thread(peer: int, talk: Conversation) -> None:
            try:
                self._hold(peer, talk, moved)
            except BaseException as error:
                ended.put(error)
            else:
                ended.put(None)

        self._threads = [threading.Thread(target=in_thread, args=(peer, talk), daemon=True) for peer, talk in talks.items()]
        for thread in self._threads:
            thread.start()
        for _ in talks:
            error = ended.get()
            if error:
                raise error

    def _settle(self) -> None:
        """After a failure, wait until the conversations of other ranks with this one have ended: torch aborts if one continues."""
        end_s = time.monotonic() + _LEAVING_S
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))

    def _hold(self, peer: int, talk: Conversation, moved: Callable[[], None]) -> None:
        while True:
            with self._between:
                message = next(talk, None)
            if message is None:
                return
            tensor = self._torch.from_numpy(message.data)
            if message.receive:
                self._torch.distributed.recv(tensor, src=peer, tag=_TAG)
            else:
                self._torch.distributed.send(tensor, dst=peer, tag=_TAG)
            moved()


Messenger = OverMpi | OverTorch


CAPABLE = ("mpi", "gloo")
ROTATION_BYTES = 64 * 2**20  # buffers of a worker: larger than the caches, but not the whole model
Pieces = tuple[tuple[int, int], ...]  # (first element, how many) of each message


@dataclass(frozen=True)
class JobRoles(LibraryTraining):
    """The servers and workers of an asynchronous training, and their messages.

    servers, workers   ranks of the job
    pushes, pulls   by server the messages of a round: pieces of its shard
    dtype           of the messages; `sums`: the type of the server's sums. It is wider for types of at most 16 bits, as in training
    """

    servers: tuple[int, ...]
    workers: tuple[int, ...]
    pushes: tuple[Pieces, ...]
    pulls: tuple[Pieces, ...]
    dtype: DType

    @property
    def sums(self) -> DType:
        """The type of the sums, in which updates can be counted."""
        wide = DTYPES["int64"] if self.dtype.kind == "int" else DTYPES["float32"]
        return self.dtype if self.dtype.size >= wide.size else wide

    def elements(self, server: int) -> int:
        """Return the number of elements of a server's shard."""
        return sum(count for _, count in self.pushes[server])

    @property
    def largest(self) -> int:
        """The number of elements of the largest message."""
        return max(count for by_server in (self.pushes, self.pulls) for pieces in by_server for _, count in pieces)

    def moved_bytes(self, step: Step, ranks: int) -> float:
        """Return the bytes that a worker pushes and pulls in a round."""
        return 2.0 * self.dtype.size * sum(map(self.elements, range(len(self.servers))))

    def refusal(self, backend: Backend) -> ServersUnsupported | None:
        """Return why a backend cannot carry this training, or None."""
        if backend.name in CAPABLE and not backend.virtual:
            return None
        return ServersUnsupported(backend.name, "simulated" if backend.virtual else "no waiting", CAPABLE)

    def bytes_at(self, rank: int) -> int:
        """Return the bytes of memory that a rank needs."""
        width = self.dtype.size
        if rank in self.servers:
            return self.elements(self.servers.index(rank)) * self.sums.size + 2 * len(self.workers) * self.largest * width
        return 2 * len(self.servers) * (ROTATION_BYTES + self.largest * width)

    def measure(self, run: TrainingRun, session: LaunchSession) -> StepRow | None:
        """Run servers and workers on all ranks. Return the row at rank 0, None elsewhere. Raises RunFailed if the library fails."""
        world = session.world
        budget = session.request.budget
        if session.request.sweep.each[0].device == "cuda":
            return run.without(HostMemoryNeeded("asynchronous training")) if world.rank == 0 else None
        messenger: Messenger = OverMpi() if run.backend.api == "mpi" else OverTorch()
        phase = f"{run.title}: asynchronous workers"
        with world.watchdog.phase(f"{run.title}: making its buffers"):
            if world.rank in self.servers:
                report = RankReport(shard=Shard(self, self.servers.index(world.rank)))
            else:
                report = RankReport(pupil=Worker(self, world.rank))
        world.allgather(None, f"{run.title}: beginning")
        with world.extend_timeout(budget.max_time_s):
            with world.watchdog.phase(phase):
                _go_on(report, messenger, budget, world)
            updates = world.allgather(len(report.round_s), phase)
        pushed = {rank: updates[rank] for rank in self.workers}
        checked = bool(session.request.check) and sum(updates) <= exact_updates(self.sums)
        wrong = _verified(report, messenger, pushed, run, world) if checked else []
        all_ranks = world.gather(_report(report, wrong), f"{run.title}: gathering")
        if all_ranks is None:
            return None
        row = _row(self, run, session, all_ranks, checked)
        crowded = session.crowded(run.backend, row.device)
        ceiling = _ceiling(self, run.backend, session.ceilings, world)
        # no percentage if ranks wait for cores, or if the bytes took another path
        percent, withholding = against_limits(row.busbw_bytes_per_s, ceiling, ceiling.bytes_per_s, crowded)
        flags = (*row.flags, "oversubscribed", *withholding) if crowded else (*row.flags, *withholding)
        return row.compared_with(ceiling, percent).replace(flags=flags)


def roles_of(step: Step, ranks: int) -> JobRoles:
    """Return the roles, from the first worker's exchanges in a round.

    Raises UsageError for exchanges of other kinds, or too many messages.
    """
    check_number(step)
    if not step.exchanges or any(len(group) != 2 for exchange in step.exchanges for group in exchange.groups):
        raise UsageError("asynchronous training consists of messages between workers and servers, but this step has others")
    worker = step.exchanges[0].groups[0][0]
    dtype = dtype_named(step.exchanges[0].dtype)
    pushes = defaultdict[int, list[int]](list)
    pulls = defaultdict[int, list[int]](list)
    for exchange in step.exchanges:
        for first, second in exchange.groups:
            if worker not in (first, second):
                raise UsageError(
                    f"{exchange.what}: a round has exchanges of rank {worker} only, but this one is between {first} and {second}"
                )
            counts = pushes[second] if first == worker else pulls[first]
            counts += [exchange.size_bytes // dtype.size] * exchange.times
    servers = tuple(sorted(pushes))
    workers = tuple(rank for rank in range(ranks) if rank not in servers)
    if not workers or max(servers) >= ranks or any(sum(pushes[server]) != sum(pulls[server]) for server in servers):
        raise UsageError(f"asynchronous training needs a worker besides {len(servers)} servers, but there are {ranks} ranks: start more")
    pushed, pulled = (tuple(pieces(counts[server]) for server in servers) for counts in (pushes, pulls))
    return JobRoles(servers, workers, pushed, pulled, dtype)


# The work of servers and workers of asynchronous training: a server adds each gradient when it arrives, and replies with its model.
#
# Gradients are small integers that identify worker, server and element, the same in every round. So at the end the model must be
# exactly the sum of the applied gradients.

_LARGEST = 7  # of a gradient's elements: exact even in 8-bit floats
PERIOD = _LARGEST**2
_CHUNK = PERIOD << 16
_PULLED, _SUM = "the model that it pulled", "the server's sum"  # names of data, in messages


def gradient(worker: int, server: int) -> NDArray[np.int64]:
    """Return one period of a worker's update for a server: integers from 1 to 7, different for seven consecutive workers."""
    index = np.arange(PERIOD)
    return 1 + (index + index // _LARGEST + 3 * worker + 5 * server) % _LARGEST


def exact_updates(dtype: DType) -> int:
    """Return how many updates can be summed exactly in a type."""
    return dtype.exact // _LARGEST


class Shard:
    """A server's part of the model, which starts at zero, and the updates of each worker.

    staleness   by worker a counter: how often so many updates of other workers came between its pull and its next update
    applied     number of updates by worker
    """

    def __init__(self, roles: JobRoles, server: int) -> None:
        self.roles = roles
        self.server = server
        self.model = np.zeros(roles.elements(server), roles.sums.numpy)
        self.staleness: dict[int, Counter[int]] = {worker: Counter() for worker in roles.workers}
        self.applied: Counter[int] = Counter()
        self._version = 0
        self._seen: dict[int, int] = {}

    def serve(self, worker: int) -> Conversation:
        """Receive updates and reply with the model, until the worker sends its end. Raises RunFailed for an update out of order."""
        pushes = self.roles.pushes[self.server]
        pulls = self.roles.pulls[self.server]
        inbox, outbox = (np.zeros(max(n for _, n in pieces), self.roles.dtype.numpy) for pieces in (pushes, pulls))
        number = np.zeros(1, np.int64)
        for expected in count(1):
            yield received(number)
            if number[0] == 0:
                return
            if number[0] != expected:
                rank = self.roles.servers[self.server]
                raise RunFailed(f"the server on rank {rank} received update {number[0]} of rank {worker} instead of update {expected}")
            for first, n in pushes:
                yield received(inbox[:n])
                self.add(first, inbox[:n])
            self._note(worker)
            yield from self._reply(outbox)

    def add(self, first: int, part: NDArray[Any]) -> None:
        """Add a piece of an update, whose first element is element `first` of the model."""
        target = self.model[first : first + len(part)]
        np.add(target, part.astype(target.dtype, copy=False), out=target)

    def _note(self, worker: int) -> None:
        """Count a complete update. The worker's next model includes at least all updates so far."""
        if worker in self._seen:
            self.staleness[worker][self._version - self._seen[worker]] += 1
        self.applied[worker] += 1
        self._version += 1
        self._seen[worker] = self._version

    def send_updates(self) -> Conversation:
        """Send the model again to a worker that compares it."""
        return self._reply(np.zeros(self.roles.largest, self.roles.dtype.numpy))

    def _reply(self, outbox: NDArray[Any]) -> Conversation:
        for first, n in self.roles.pulls[self.server]:
            outbox[:n] = self.model[first : first + n]
            yield sent(outbox[:n])


class Worker:
    """A worker: its updates for each server, and memory for the pulled model. Both are larger than the caches if the model is."""

    def __init__(self, roles: JobRoles, rank: int) -> None:
        self.roles = roles
        self.worker = roles.workers.index(rank)
        self._number = np.zeros(1, np.int64)
        self._gradients = []
        for server in range(len(roles.servers)):
            room = min(roles.elements(server), max(roles.largest, ROTATION_BYTES // roles.dtype.size)) + PERIOD
            self._gradients.append(np.resize(gradient(self.worker, server).astype(roles.dtype.numpy), room))
        self._pulled = [np.zeros_like(update) for update in self._gradients]

    def round(self, number: int) -> dict[int, Conversation]:
        """Return the conversations of one round: update `number` to every server, and the model in reply."""
        self._number[0] = number
        return {rank: self._exchange(server) for server, rank in enumerate(self.roles.servers)}

    def farewell(self) -> dict[int, Conversation]:
        """Return the conversations that end the updates."""
        self._number[0] = 0
        return {rank: (sent(self._number) for _ in range(1)) for rank in self.roles.servers}

    def _exchange(self, server: int) -> Conversation:
        yield sent(self._number)
        for first, n in self.roles.pushes[server]:
            yield sent(_window(self._gradients[server], first, n))
        for first, n in self.roles.pulls[server]:
            yield received(_window(self._pulled[server], first, n))

    def compare(self, updates: Sequence[int], rank: int, mismatches: list[Mismatch]) -> dict[int, Conversation]:
        """Return conversations that pull every server's model again and compare it. Mismatches are added to `mismatches`.

        updates: the expected number of updates in the model, by worker.
        """
        return {server_rank: self._compare(server, updates, rank, mismatches) for server, server_rank in enumerate(self.roles.servers)}

    def _compare(self, server: int, updates: Sequence[int], rank: int, mismatches: list[Mismatch]) -> Conversation:
        expected = total(server, updates)
        for first, n in self.roles.pulls[server]:
            part = _window(self._pulled[server], first, n)
            part.view(np.uint8)[:] = POISON
            yield received(part)
            mismatches += differences(part, np.roll(expected, -(first % PERIOD)).astype(self.roles.dtype.numpy), rank, _PULLED, first)


def _window(memory: NDArray[Any], first: int, n: int) -> NDArray[Any]:
    """Return memory for n elements; its first element continues the pattern at element `first`."""
    start = first % (len(memory) - n + 1)
    start -= (start - first) % PERIOD
    return memory[start + (PERIOD if start < 0 else 0) :][:n]


def total(server: int, updates: Sequence[int]) -> NDArray[np.int64]:
    """Return one period of a server's expected model, from the number of updates of each worker."""
    return sum((n * gradient(worker, server) for worker, n in enumerate(updates)), start=np.zeros(PERIOD, np.int64))


def differences(got: NDArray[Any], right: NDArray[Any], rank: int, what: str, begin: int = 0) -> list[Mismatch]:
    """Return a list with the mismatch between the elements from index `begin` on and the period `right`; empty if they agree."""
    wrong = 0
    first = None
    for start in range(0, len(got), _CHUNK):
        part = got[start : start + _CHUNK]
        bad = np.flatnonzero(part != np.resize(right, len(part)))
        if bad.size and first is None:
            first = start + int(bad[0])
        wrong += bad.size
    if first is None:
        return []
    return [Mismatch(rank, wrong, begin + first, str(right[first % PERIOD]), str(got[first]), what)]


def lost_updates(shard: Shard, pushed: Mapping[int, int], rank: int) -> list[Mismatch]:
    """Return mismatches for the workers with more or fewer pushed updates than the server applied. The index is the worker's rank."""
    return [
        Mismatch(rank, abs(number - shard.applied[worker]), worker, str(number), str(shard.applied[worker]), "updates of that rank applied")
        for worker, number in pushed.items()
        if number != shard.applied[worker]
    ]


# A parameter-server step on the servers that a library provides: timed at the workers, every element of the sums verified.
#
# The workers synchronize before each sample, which lasts until the slowest of them has pulled. The parts are not timed separately,
# since the library orders pushes and pulls itself.

_WARMUPS = 3
_WORKLOAD_SERVED_LARGEST = 2**31  # limit of a message of gRPC
_NO_REFERENCE = "a library's own parameter servers have no reference"


@runtime_checkable
class HasParameterServers(Protocol):
    """A backend with parameter servers of its own."""

    def parameter_servers(self, world: World, layout: ServerLayout, gradients: Sequence[NDArray[Any]]) -> ParameterServers:
        """Start the servers. All ranks must call it; gradients: by server this rank's updates, () at servers."""
        ...


@dataclass(frozen=True)
class ServedTraining(LibraryTraining):
    """The roles of a step on a library's own servers: the servers, the workers, and the variables of each server."""

    roles: JobRoles

    @property
    def layout(self) -> ServerLayout:
        """Return the roles as the library needs them."""
        counts = tuple(tuple(n for _, n in pieces) for pieces in self.roles.pushes)
        return ServerLayout(self.roles.servers, self.roles.workers, counts, self.roles.dtype.name)

    def bytes_at(self, rank: int) -> int:
        """Return the bytes of memory that a rank needs.

        A server needs its variables. A worker needs its gradients, and the pulled variables twice: the received message and the
        result.
        """
        servers = self.roles.servers
        if rank in servers:
            return self.roles.dtype.size * self.roles.elements(servers.index(rank))
        return self.roles.dtype.size * 3 * sum(map(self.roles.elements, range(len(servers))))

    def gradients(self, rank: int) -> list[NDArray[Any]]:
        """Return by server a worker's updates; empty at a server."""
        if rank in self.roles.servers:
            return []
        updates = (gradient(self.roles.workers.index(rank), server) for server in range(len(self.roles.servers)))
        return [np.resize(update.astype(self.roles.dtype.numpy), self.roles.elements(server)) for server, update in enumerate(updates)]

    def measure(self, run: TrainingRun, session: LaunchSession) -> StepRow | None:
        """Measure a synchronous step on all ranks. Return its row at rank 0, None elsewhere. Raises RunFailed if the library fails."""
        assert run.step is not None
        work = ServedWork(BackendContext(run.backend, {}, None), run.title, run.step, list(self.roles.workers), self)
        result = session.engine.measure(work, session.request.budget)
        assert isinstance(result, Measured)
        if result.measured is None or result.wrong is None:
            return None
        flags = ["oversubscribed"] if session.crowded(run.backend, "cpu") else []
        if session.request.check and not result.checked:
            flags.append("too_many_updates")
        row = run.measured(session, result, flags, result.wrong, result.checked, parameter_server="tf.distribute.Server")
        busbw = row.moved_bytes / row.time_s.p50 if row.time_s and row.time_s.p50 else None
        return row.replace(busbw_bytes_per_s=busbw, ceiling=no_ceiling(_NO_REFERENCE))


def serves(backend: Backend, regime: Regime) -> bool:
    """Return whether the backend has its own servers for this kind of training."""
    return regime.name == REGIME.name and isinstance(backend, HasParameterServers)


def served_of(shape: Shape, regime: Regime, ranks: int) -> ServedTraining | ServersUnsupported:
    """Return the roles of a synchronous step, or why these servers do not support it. Raises UsageError for an invalid shape."""
    if regime.asynchronous(shape):
        return ServersUnsupported("tensorflow", "asynchronous", CAPABLE)
    options = {**shape.options, "update": "asynchronous", "servers": str(len(roles(shape).servers))}
    served = ServedTraining(roles_of(regime.step(replace(shape, options=options)), ranks))
    if served.roles.largest * served.roles.dtype.size >= _WORKLOAD_SERVED_LARGEST:
        return ServersUnsupported("tensorflow", "message size")
    return served


@dataclass
class ServedWork(LibraryWork):
    """Synchronous steps on the servers of a library: timed at the workers, every element of the sums verified."""

    served: ServedTraining
    library: Any = None
    world: World | None = None

    def loop(self, world: World) -> StepLoop:
        """Start the servers, and return the worker's steps."""
        self.world = world
        backend = self.backend
        assert isinstance(backend, HasParameterServers)
        with world.watchdog.phase(f"{self.title}: starting its parameter servers"):
            self.library = backend.parameter_servers(world, self.served.layout, self.served.gradients(world.rank))
        loop = StepLoop(self.library.step if world.rank in self.workers else None, self.library.meet, world)
        with world.watchdog.phase(f"{self.title}: warming up"):
            loop.run(_WARMUPS)
        return loop

    def verify(self, ready: PreparedCase, world: World, calls: int) -> tuple[int, Sequence[DataError] | None]:
        """Compare one more step from zero, if the type holds the sums of all workers exactly."""
        if exact_updates(self.served.roles.dtype) < len(self.workers):
            return 0, []
        return 1, self.gathered(_verify_served(self.title, self.library, self.served, world), world)

    def release(self, ready: PreparedCase) -> None:
        """End the servers."""
        assert self.world is not None
        self.library.close(self.world)


def _verify_served(title: str, library: Any, served: ServedTraining, world: World) -> list[Mismatch]:
    """Run one more step from zero and return the mismatches.

    Every server's sums, and every worker's pulled variables, must equal one update of each worker.
    """
    world.allgather(None, f"{title}: the steps of its workers")  # the servers have not waited for the workers until now
    if world.rank in served.roles.servers:
        library.clear()
    world.allgather(None, f"{title}: clearing its sums")
    pulled = library.step() if world.rank in served.roles.workers else []
    world.allgather(None, f"{title}: verifying")
    mismatches: list[Mismatch] = []
    for server, variables in enumerate(pulled):
        mismatches += unlike_sum(served, server, variables, world.rank, _PULLED)
    if world.rank in served.roles.servers:
        mismatches += unlike_sum(served, served.roles.servers.index(world.rank), library.sums(), world.rank, _SUM)
    return mismatches


def unlike_sum(served: ServedTraining, server: int, variables: Sequence[NDArray[Any]], rank: int, what: str) -> list[Mismatch]:
    """Return the mismatches between a server's variables, as this rank has them, and the sum of all workers' gradients."""
    right = total(server, [1] * len(served.roles.workers)).astype(served.roles.dtype.numpy)
    got = np.concatenate([np.asarray(variable, served.roles.dtype.numpy) for variable in variables])
    return differences(got, right, rank, what)


_NO_CEILING = "a worker shares a host with its server, and asynchronous workers have no reference"


class RankReport(msgspec.Struct):
    """The report of one rank: a worker's rounds, or the updates that a server applied."""

    duration_s: float = 0.0
    round_s: list[float] = msgspec.field(default_factory=list)
    shard: Shard | None = None
    pupil: Worker | None = None


def _go_on(report: RankReport, messenger: Messenger, budget: Budget, world: World) -> None:
    """Run this rank: a server until all workers have ended, a worker for the budget's rounds or time."""
    begin_s = time.monotonic()
    if report.shard:
        _hold({worker: report.shard.serve(worker) for worker in report.shard.roles.workers}, messenger, world)
    elif report.pupil:
        goes_on = True
        while goes_on:
            start_s = time.monotonic()
            _hold(report.pupil.round(len(report.round_s) + 1), messenger, world)
            report.round_s.append(time.monotonic() - start_s)
            goes_on = len(report.round_s) < budget.iterations if budget.iterations else time.monotonic() - begin_s < budget.max_time_s
        report.duration_s = time.monotonic() - begin_s
        _hold(report.pupil.farewell(), messenger, world)


def _hold(talks: dict[int, Conversation], messenger: Messenger, world: World) -> None:
    """Run conversations under the watchdog; each message counts as progress. Raises RunFailed for an error of the library."""

    def moved() -> None:
        world.watchdog.progress.value += 1

    try:
        messenger.run(talks, moved)
    except (CollbenchError, MemoryError):
        raise
    except Exception as error:
        raise RunFailed(f"a message between worker and server failed: {type(error).__name__}: {error}") from error


def _verified(report: RankReport, messenger: Messenger, pushed: dict[int, int], run: TrainingRun, world: World) -> list[Mismatch]:
    """Return the mismatches of a server's sums and applied updates, and of the model that workers pull afterwards."""
    mismatches: list[Mismatch] = []
    counts = list(pushed.values())
    with world.watchdog.phase(f"{run.title}: verifying"):
        if report.shard:
            right = total(report.shard.server, counts).astype(report.shard.model.dtype)
            mismatches = lost_updates(report.shard, pushed, world.rank) + differences(report.shard.model, right, world.rank, _SUM)
            _hold({worker: report.shard.send_updates() for worker in pushed}, messenger, world)
        elif report.pupil:
            _hold(report.pupil.compare(counts, world.rank, mismatches), messenger, world)
    return mismatches


def _report(report: RankReport, mismatches: Sequence[Mismatch]) -> dict[str, Any]:
    """Return this rank's report to rank 0."""
    series = np.array(report.round_s)
    stale: dict[str, dict[str, int]] = {}
    if report.shard:
        for rank, counts in report.shard.staleness.items():
            stale[str(rank)] = {str(updates): times for updates, times in counts.items()}
    return {
        "worker": report.pupil is not None, "rounds": len(report.round_s), "duration_s": report.duration_s, "stale": stale,
        "times": asdict(times_of(series)) if report.round_s else None, "doubts": list(doubts(series, len(series), None, 1)),
        "updates": report.shard.applied.total() if report.shard else 0, "wrong": [mismatch.as_json() for mismatch in mismatches],
    }  # fmt: skip


def _row(roles: JobRoles, run: TrainingRun, session: LaunchSession, all_ranks: Sequence[dict[str, Any]], checked: bool) -> StepRow:
    """Return the row. Times are those of the slowest worker."""
    workers = {rank: reply for rank, reply in enumerate(all_ranks) if reply["worker"] and reply["times"]}
    slowest = max(workers.values(), key=lambda reply: float(reply["times"]["p50"]))
    mismatches = [Mismatch(**mismatch) for reply in all_ranks for mismatch in reply["wrong"]]
    longest = max(reply["duration_s"] for reply in all_ranks)
    # the bytes that the busiest server receives while the workers run; it sends as many
    received_bytes = [all_ranks[rank]["updates"] * roles.elements(server) * roles.dtype.size for server, rank in enumerate(roles.servers)]
    flags = ["asynchronous"]
    if session.request.check and not checked:
        flags.append("too_many_updates")
    row = run.measured(session, None, [*flags, *slowest["doubts"]], mismatches, int(checked))
    return row.replace(
        n=slowest["rounds"], time_s=Times(**slowest["times"]), busbw_bytes_per_s=max(received_bytes) / longest if longest else None,
        staleness=_staleness(all_ranks, workers),
    )  # fmt: skip


def _ceiling(roles: JobRoles, backend: Backend, ceilings: Ceilings, world: World) -> Ceiling:
    """Return the rate at which a server can receive, or send, if all its workers are on other hosts.

    With fewer hosts than servers, it is the rate at which these hosts can send.
    """
    host_of = [member.host for member in members_of(backend, world)]
    worker_hosts = {host_of[rank] for rank in roles.workers}
    if any(host_of[rank] in worker_hosts for rank in roles.servers):
        return no_ceiling(_NO_CEILING)
    case = Case("p2p_bandwidth", backend.name, roles.dtype, roles.largest * roles.dtype.size, in_place=False, window=1)
    ceiling = ceilings.of(P2P_BANDWIDTH, case, backend, ((roles.workers[0], roles.servers[0]),))[0]
    if ceiling.kind == "given" or not ceiling.bytes_per_s:
        return ceiling
    return replace(ceiling, bytes_per_s=ceiling.bytes_per_s * min(1.0, len(worker_hosts) / len(roles.servers)))


def _staleness(all_ranks: Sequence[dict[str, Any]], workers: dict[int, dict[str, Any]]) -> Staleness:
    """Return quantiles of how many updates of other workers came between a pull and the next push: by worker and for all."""
    stale_by_rank: dict[int, Counter[int]] = {rank: Counter() for rank in workers}
    for reply in all_ranks:
        for rank, stale in reply["stale"].items():
            stale_by_rank.setdefault(int(rank), Counter()).update({int(updates): times for updates, times in stale.items()})
    paces = [
        WorkerPace(rank=rank, steps=reply["rounds"], steps_per_s=reply["rounds"] / reply["duration_s"], **_quantiles(stale_by_rank[rank]))
        for rank, reply in workers.items()
    ]
    servers = [ServerUpdates(rank=rank, updates=reply["updates"]) for rank, reply in enumerate(all_ranks) if not reply["worker"]]
    whole: Counter[int] = sum(stale_by_rank.values(), Counter())
    return Staleness(
        **_quantiles(whole), workers=tuple(paces), servers=tuple(servers), steps_per_s=sum(pace.steps_per_s or 0.0 for pace in paces),
        duration_s=max(reply["duration_s"] for reply in all_ranks),
    )  # fmt: skip


def _quantiles(stale: Counter[int]) -> dict[str, float | None]:
    """Return quantiles of the number of updates; empty if no worker has pulled before it pushed."""
    if not stale:
        return {"p50": None, "p95": None, "max": None}
    values: NDArray[np.int64] = np.repeat(*np.array(sorted(stale.items()), dtype=np.int64).T)
    p50, p95 = np.quantile(values, [0.5, 0.95], method="inverted_cdf")
    return {"p50": float(p50), "p95": float(p95), "max": float(values[-1])}
