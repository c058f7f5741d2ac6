"""The backend contract: a library that runs operations.

A backend is a class with the methods of `Backend`, in one file of this package or in a plug-in (entry point `collbench.backends`).
`BackendBase` has defaults; `host.HostBackend` does most of the work for a library on host memory. tests/contract/example_plugin has a
complete example. Importing the module must be cheap: the library itself is imported in `open`.
"""

from __future__ import annotations

import ctypes
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import msgspec

from collbench.device.unavailable import Obstacle
from collbench.errors import UsageError
from collbench.launch.software import version_of
from collbench.machine.peak.ceiling import Ceiling
from collbench.operations.case import Case
from collbench.operations.dtypes import undefined_redop
from collbench.operations.groups import group_size
from collbench.operations.operation import Operation, Reason, Steps, has_mark
from collbench.operations.program import Call, NonBlocking, Program
from collbench.operations.unsupported import (
    DeviceUnsupported,
    NoInPlaceForm,
    OperationUnsupported,
    OptionUnsupported,
    TooFewRanks,
)
from collbench.reason import Fact, as_fact, as_json

if TYPE_CHECKING:
    from collbench.backends.clock import Clock, DeviceClock
    from collbench.backends.host import AnyBuffers
    from collbench.control.world import World
    from collbench.device.gpu import OpenGpu, Stream


@dataclass(frozen=True)
class Group:
    """A group of ranks that runs an operation.

    ranks    the group's ranks, as ranks of the job; the position in the tuple is the rank within the group
    driven   ranks within the group that this process drives
    handle   the library's communicator or group; a tuple where the library has one per driven rank
    names    the library's numbers of the ranks within `handle`; (): 0 … n-1
    """

    ranks: tuple[int, ...]
    driven: tuple[int, ...]
    handle: Any = field(default=None, compare=False)
    names: tuple[int, ...] = ()

    @property
    def n(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    def name(self, rank: int) -> int:
        """Return the library's number for rank `rank` of the group."""
        return self.names[rank] if self.names else rank

    def part(self, ranks: Sequence[int]) -> Group | None:
        """Return a group of some of these ranks of the job, with the same handle; None if this process drives none of them."""
        driven = tuple(place for place, rank in enumerate(ranks) if rank in self._turns)
        if not driven:
            return None
        handle = self.handle
        if isinstance(handle, tuple):
            handle = tuple(handle[self._turns[ranks[place]]] for place in driven)
        names = tuple(self.name(self._places[rank]) for rank in ranks)
        return Group(tuple(ranks), driven, handle, names)

    @cached_property
    def _turns(self) -> dict[int, int]:
        """By rank of the job its position in `driven`, for the ranks that this process drives."""
        return {self.ranks[place]: turn for turn, place in enumerate(self.driven)}

    @cached_property
    def _places(self) -> dict[int, int]:
        """By rank of the job its rank within the group."""
        return {rank: place for place, rank in enumerate(self.ranks)}


def installed(package: str) -> str | None:
    """Return the version of a package from pip's metadata, without importing it; None if it is not installed."""
    return version_of(package) or None


def loaded(package: str, load: Callable[[], Any], remedy: str) -> Any:
    """Return the result of `load`, an import. Its output to stdout is discarded. Raises UsageError, with the remedy, for any exception."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            return load()
    except (Exception, SystemExit) as error:  # a broken extension can raise any exception
        cause = (str(error).strip() or printed.getvalue().strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"{package} {installed(package)} is installed, but does not load ({cause}): {remedy}") from error


@contextmanager
def stdout_elsewhere(at_stderr: bool = False) -> Iterator[None]:
    """Discard what this process's libraries print to stdout inside the block, or print it at stderr: stdout has rows for programs."""
    sys.stdout.flush()
    stdout = os.dup(1)
    target = os.dup(2) if at_stderr else os.open(os.devnull, os.O_WRONLY)
    os.dup2(target, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(target)


class Feature(msgspec.Struct, frozen=True):
    """A part of a library's interface that not every version has.

    name       of the part: "symmetric windows"
    since      the first version that has it: "2.27"; "" if it is unknown
    available  whether the loaded version has it
    use        where collbench uses it: "--registration symmetric"; "" if it does not
    """

    name: str
    since: str
    available: bool
    use: str = ""


class Available(msgspec.Struct, frozen=True):
    """The backend can be opened here.

    about      the library and its version, for users ("MPICH 5.0.2")
    features   what the library has or lacks, where that depends on its version
    """

    about: str
    features: tuple[Feature, ...] = ()


class Unavailable(msgspec.Struct, frozen=True):
    """The backend cannot be opened here: `why`, and the `remedy`, both as text. `fact` has the same as a fact, if there is one."""

    why: str
    remedy: str
    fact: Fact | None = None

    @classmethod
    def because(cls, obstacle: Obstacle) -> Unavailable:
        """Return the result of `probe` for a fact of backends/unavailable.py or device/unavailable.py."""
        return cls(obstacle.cause(), obstacle.remedy(), obstacle if isinstance(obstacle, Fact) else None)

    def as_json(self) -> dict[str, Any]:
        """Return the object that `collbench backends --format json` prints."""
        return {"why": self.why, "remedy": self.remedy, "fact": None if self.fact is None else as_json(self.fact)}

    def __str__(self) -> str:
        return f"{self.why}: {self.remedy}"


class Settings(msgspec.Struct, frozen=True):
    """The user's options that a backend needs to open.

    virtual_ranks      number of ranks of a backend that simulates them; None: one per process
    timeout_s          deadline for the library's own waits, in seconds
    seed               for backends that use random numbers
    gpus_per_process   number of GPUs, and so of ranks, that each process drives
    """

    virtual_ranks: int | None = None
    timeout_s: float = 60.0
    seed: int = 0
    gpus_per_process: int = 1


class Tuning(msgspec.Struct, frozen=True):
    """The algorithm ("ring") and the protocol ("simple") that a communicator must use; None: the library's choice."""

    algorithm: str | None = None
    protocol: str | None = None


@runtime_checkable
class Backend(Protocol):
    """A library that runs operations. All ranks call all methods, in the same order, with exceptions noted in the docstrings.

    name             as users type it: "gloo"; api: the key in `Operation.steps`: "torch"
    devices          where buffers can be: {"cpu"}, {"cuda"} or both. May change in `open`
    steps            by operation, the backend's own step functions; they take precedence over those of the operation
    ranks            number of ranks, once open: processes × GPUs per process, or simulated ranks
    local_path       how data moves inside a host: "memory", "loopback" (TCP), or "" if unknown. Selects the measured reference
    takes_tuning     whether `group` supports a `Tuning`
    passes_messages  whether its bindings have `send_to`, `post_send` etc., so that `Operation.by_messages` can be used
    takes_streams    whether it supports several connections per pair
    gpus             the PCI address of each rank's GPU ("0000:1b:00.0"), once open; () on CPUs
    uses_nccl        whether it loads NCCL; NCCL's log shows the paths
    ask_ras          returns which ranks NCCL's RAS service reports as late, or None; the session sets it after `open`
    nccl             (library handle, version as of ncclGetVersion), once open; None if the backend has no handle of it
    flags            flags of all rows of this backend ("simulated")
    no_cuda          why the opened library does not support CUDA memory, as text; "" if it does, or if no backend of this kind does
    virtual          whether ranks are simulated, so that CPUs, counters and links of the hosts do not affect the times
    own_ceiling      the expected bandwidth if only the backend knows it (a simulated link), else None
    import_cpu_s     CPU time, in seconds, that importing the library takes; 0 if that does not matter
    """

    name: str
    api: str
    devices: frozenset[str]
    steps: Mapping[str, Steps]
    ranks: int
    local_path: str
    takes_tuning: bool
    passes_messages: bool
    takes_streams: bool
    gpus: tuple[str, ...]
    flags: tuple[str, ...]
    uses_nccl: bool
    nccl: tuple[Any, int] | None
    ask_ras: Callable[[], str | None]
    no_cuda: str
    virtual: bool
    own_ceiling: Ceiling | None
    import_cpu_s: float

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Return whether the backend can be opened here. Must not raise, and must not import the library if that is slow."""

    def open(self, world: World, settings: Settings) -> None:
        """Import and start the library, and set `ranks`. Raises UsageError or RunFailed with the remedy."""

    def group(self, ranks: Sequence[int], tuning: Tuning | None = None) -> Group | None:
        """Return a group of these ranks of the job; None on ranks outside it. All ranks of the job must call it.

        `tuning` is None unless `takes_tuning`. Raises RunFailed on all ranks.
        """

    def pair(self, whole: Group | None, ranks: Sequence[int], case: Case) -> Group | None:
        """Return a group of two ranks of the job for messages between them; None on processes that drive neither.

        Only these two ranks call it. `whole` is the group of all ranks, None if this process is in no group; most backends return
        a part of it.
        """

    def release(self, group: Group) -> None:
        """Free a group that is no longer needed. The ranks of the group call it."""

    def free_bytes(self, case: Case) -> int | None:
        """Return how many bytes each rank of this process can still allocate on the case's device. None: check the host's memory."""

    def supports(self, operation: Operation, case: Case) -> Reason | None:
        """Return why the library cannot run this case (a text, or a fact of operations/unsupported.py), or None.

        `unsupported_reason` has checked before what applies to all backends: device, placement, redop and data type, options.
        """

    def allocate(self, operation: Operation, case: Case, group: Group, slots: int) -> AnyBuffers:
        """Return send and receive buffers for the ranks that this process drives, `slots` of each. Raises MemoryError."""

    def bind(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> Program:
        """Return the program of one iteration on buffers from `allocate`. Raises UsageError or RunFailed.

        On host memory it must not wait for other ranks: a rank does not call it if its `allocate` failed.
        """

    def sync(self, group: Group) -> Program | None:
        """Return the library's synchronization before each isolated sample. None: use collbench's, through shared memory and TCP."""

    def clock(self) -> Clock | DeviceClock:
        """Return the clock for samples: a `Clock` if calls return when done, a `DeviceClock` if calls only enqueue work."""

    def fence(self, deadline_s: float) -> None:
        """Wait until all calls issued so far have completed. Raises RunFailed after `deadline_s` seconds."""

    def abort(self, why: str) -> None:
        """End the library's pending work, as far as it can. May be called on one rank only, while another call hangs."""

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the loaded libraries, and the settings that affect speed; stored with the run."""

    def close(self) -> None:
        """Shut the library down."""


@runtime_checkable
class NonBlockingBackend(Protocol):
    """The optional capability of a backend to compute while an operation runs; see `nonblocking.bind_nonblocking`.

    The call of a rank for each operation of a group is made in the same order at all ranks of the group.
    """

    def bind_nonblocking(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> NonBlocking | Fact:
        """Return the two programs of one iteration on buffers from `allocate`, or why the library cannot start it without waiting."""

    def compute(self, seconds: float) -> Call:
        """Return a call that computes for so long, on the core of the rank or, where calls only enqueue work, on its GPU's stream.

        Operations that were started go on, as far as the library makes progress without a call.
        """


@runtime_checkable
class ComputingBackend(Protocol):
    """The optional capability of a backend on GPUs that other kernels can compute beside its calls."""

    def computing_stream(self) -> tuple[OpenGpu, Stream]:
        """Return the rank's own GPU, and the stream of its calls."""


@runtime_checkable
class PersistentBackend(Protocol):
    """The optional capability of a backend to make requests once and start them in each iteration; see `nonblocking.bind_called`."""

    def bind_persistent(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> Program | Fact:
        """Return the program of one iteration, which frees its requests by `free`; or why the library has no persistent form of it.

        All ranks of the group call it, in the same order, when all have buffers. Raises RunFailed.
        """


@runtime_checkable
class TestingBackend(Protocol):
    """The optional capability of a library that makes progress in its calls: test calls while operations run.

    progress   what moves the data while a rank computes: "threads" of the library, or only its "calls"
    """

    @property
    def progress(self) -> Literal["threads", "calls"]:
        """What moves the data while a rank computes."""

    def test_calls(self, wait: Program) -> Program:
        """Return the calls that test for what `wait` of `bind_nonblocking` waits for, by slot: they make progress and do not wait."""


@runtime_checkable
class WitnessedBackend(Protocol):
    """The optional capability of a backend to report what its library chose for a case. NCCL's log is read by measuring/nccl_paths.py."""

    def witness(self, case: Case) -> AbstractContextManager[list[dict[str, Any]]]:
        """Return a context around untimed calls of a case. Its list has the choices of this rank's library when it ends; [] if unknown."""


@runtime_checkable
class CountingBackend(Protocol):
    """The optional capability of a backend to count the memory that a communicator takes."""

    def communicator_bytes(self, group: Group) -> tuple[int, str] | None:
        """Return the most GPU memory, in bytes, that a communicator of the group takes in this process, and how that is known; or None."""


class BackendBase:
    """Defaults for the attributes and methods of `Backend` that most backends have in common."""

    steps: Mapping[str, Steps] = {}
    ranks = 0
    local_path = ""
    takes_tuning = passes_messages = takes_streams = False
    gpus: tuple[str, ...] = ()
    uses_nccl = False
    nccl: tuple[Any, int] | None = None
    ask_ras: Callable[[], str | None] = staticmethod(lambda: None)
    flags: tuple[str, ...] = ()
    no_cuda = ""
    virtual = False
    own_ceiling: Ceiling | None = None
    import_cpu_s = 0.0

    def pair(self, whole: Group | None, ranks: Sequence[int], case: Case) -> Group | None:
        """Return the two ranks as a part of the group of all ranks."""
        return whole.part(ranks) if whole else None

    def release(self, group: Group) -> None:
        """Do nothing: groups live as long as the library."""

    def free_bytes(self, case: Case) -> int | None:
        """Return None: check the host's memory."""
        return None


def unsupported_reason(backend: Backend, operation: Operation, case: Case) -> Fact | None:
    """Return why this backend cannot run this case, or None: first the checks for all backends, then the backend's own."""
    if case.device not in backend.devices:
        return DeviceUnsupported(backend.name, case.device, tuple(sorted(backend.devices)), backend.no_cuda)
    return unsupported_by_kind(backend, operation, case) or as_fact(backend.supports(operation, case) or None)


def unsupported_by_kind(backend: Backend, operation: Operation, case: Case) -> Fact | None:
    """Return why no backend of this kind can run this case, whatever its library and device, or None. Only `ranks` must be set for it."""
    misfit = _unsupported_form(backend, operation, case) or (undefined_redop(case.redop, case.dtype) if case.redop else None)
    n = group_size(operation, case, backend.ranks)
    return misfit or _unsupported_option(backend, case) or as_fact(operation.needs(n, case) or None)


def can_do(backend: Backend, operation: Operation, case: Case) -> str | None:
    """Return `unsupported_reason` as text."""
    reason = unsupported_reason(backend, operation, case)
    return None if reason is None else reason.render()


def steps_of(backend: Backend, operation: Operation) -> Steps | None:
    """Return the backend's own steps of the operation, else the operation's for its api, else those by messages, else None."""
    return backend.steps.get(operation.name) or operation.steps_of(backend.api, backend.passes_messages)


def in_place_only(backend: Backend, operation: Operation) -> bool:
    """Return whether this backend supports the operation in place only."""
    return has_mark(steps_of(backend, operation), "in_place_only")


def _unsupported_form(backend: Backend, operation: Operation, case: Case) -> Fact | None:
    """Return why a backend does not support the operation, or its placement or groups in this case; else None."""
    steps = steps_of(backend, operation)
    if steps is None:
        return OperationUnsupported(backend.name, operation.name)
    if case.in_place is False and has_mark(steps, "in_place_only"):
        return OperationUnsupported(backend.name, operation.name, "in place")
    if case.in_place and has_mark(steps, "out_of_place_only"):
        return OperationUnsupported(backend.name, operation.name, "out of place")
    if operation.pair and backend.ranks < 2:
        return TooFewRanks(operation.name)
    if operation.pair and case.in_place:
        return NoInPlaceForm(operation.name)
    return OptionUnsupported(("--split",), operation.name, "collectives") if operation.pair and case.split else None


def _unsupported_option(backend: Backend, case: Case) -> Fact | None:
    """Return which option of the case does not apply to the backend or the device, else None."""
    if case.mode == "graph" and case.device == "cpu":
        return OptionUnsupported(("--mode graph",), "CPUs", "GPUs")
    if (case.algorithm or case.protocol) and not backend.takes_tuning:
        options = ("--algorithms",) * bool(case.algorithm) + ("--protocols",) * bool(case.protocol)
        return OptionUnsupported(options, backend.name, "nccl")
    if (case.streams or 1) > 1 and not backend.takes_streams:
        return OptionUnsupported(("--streams",), backend.name, "socket")
    return None
