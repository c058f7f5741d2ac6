"""What a backend is: the library that carries an operation. One file beside this one each; heavy imports happen in `open`."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from collbench.device.unavailable import Obstacle
from collbench.errors import UsageError
from collbench.machine.peak.ceiling import Ceiling
from collbench.operations.cell import Cell
from collbench.operations.dtypes import undefined_redop
from collbench.operations.groups import group_size
from collbench.operations.operation import Operation, Reason, Steps, has_mark
from collbench.operations.program import Program
from collbench.operations.unsupported import (
    DeviceUnsupported,
    NoInPlaceForm,
    OperationUnsupported,
    OptionUnsupported,
    TooFewRanks,
    as_fact,
)
from collbench.reason import Fact, as_json

if TYPE_CHECKING:
    from collbench.backends.clock import Clock, DeviceClock
    from collbench.backends.host import AnyBuffers
    from collbench.control.world import World


# The ranks that an operation runs over.


@dataclass(frozen=True)
class Group:
    """Ranks that an operation runs over, as the library knows them.

    ranks    ranks of the job, in the order of their rank within the group
    driven   which ranks of the group this process drives
    handle   the library's communicator or group; where the library has one per driven rank, a tuple of them
    names    the ranks as the library names them within `handle`; (): 0 … n-1
    """

    ranks: tuple[int, ...]
    driven: tuple[int, ...]
    handle: Any = field(default=None, compare=False)
    names: tuple[int, ...] = ()

    @property
    def n(self) -> int:
        """How many ranks."""
        return len(self.ranks)

    def name(self, rank: int) -> int:
        """How the library names rank `rank` of the group within its handle."""
        return self.names[rank] if self.names else rank

    def part(self, ranks: Sequence[int]) -> Group | None:
        """Some of these ranks of the job, over the same handle; None where this process drives none of them."""
        mine = self._turns
        driven = tuple(place for place, rank in enumerate(ranks) if rank in mine)
        if not driven:
            return None
        handle = tuple(self.handle[mine[ranks[place]]] for place in driven) if isinstance(self.handle, tuple) else self.handle
        names = tuple(self.name(self._places[rank]) for rank in ranks)
        return Group(tuple(ranks), driven, handle, names)

    @cached_property
    def _turns(self) -> dict[int, int]:
        """Of the ranks of the job that this process drives, which one of them each is."""
        return {self.ranks[place]: turn for turn, place in enumerate(self.driven)}

    @cached_property
    def _places(self) -> dict[int, int]:
        """The ranks within the group, by those of the job."""
        return {rank: place for place, rank in enumerate(self.ranks)}


# What backends of others' stacks share: which version is installed, known without an import, and a broken one told in a sentence.


def installed(package: str) -> str | None:
    """The version that pip knows of a package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def loaded(package: str, load: Callable[[], Any], remedy: str) -> Any:
    """What `load` imports. What it prints meanwhile is no row and goes nowhere. Raises UsageError for a package that is broken."""
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            return load()
    except (Exception, SystemExit) as error:  # whatever a half-built extension may raise
        why = (str(error).strip() or said.getvalue().strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"{package} {installed(package)} is installed, but does not load ({why}): {remedy}") from error


@dataclass(frozen=True)
class Available:
    """The backend can be opened here; `about` says what would be used ("MPICH 5.0.2")."""

    about: str


@dataclass(frozen=True)
class Unavailable:
    """The backend cannot be opened here: `why`, and the `remedy`; both are texts. `fact` has their fields where they are known."""

    why: str
    remedy: str
    fact: Fact | None = None

    @classmethod
    def because(cls, obstacle: Obstacle) -> Unavailable:
        """Return the answer of `probe` for one of the facts of backends/unavailable.py or device/unavailable.py."""
        return cls(obstacle.cause(), obstacle.remedy(), obstacle if isinstance(obstacle, Fact) else None)

    def as_json(self) -> dict[str, Any]:
        """Return what `collbench backends --format json` prints."""
        return {"why": self.why, "remedy": self.remedy, "fact": None if self.fact is None else as_json(self.fact)}

    def __str__(self) -> str:
        return f"{self.why}: {self.remedy}"


@dataclass(frozen=True)
class Settings:
    """What a user chose that a backend needs before it is opened.

    virtual_ranks   ranks of a backend that only simulates them (None: as many as the world has)
    timeout_s       deadline for the library's own waits
    seed            for backends with randomness of their own
    gpus_per_process   how many GPUs, and so ranks, each process drives
    """

    virtual_ranks: int | None = None
    timeout_s: float = 60.0
    seed: int = 0
    gpus_per_process: int = 1


@dataclass(frozen=True)
class Tuning:
    """What a communicator is made to use: an algorithm ("ring") and a protocol ("simple"), None for the library's choice."""

    algorithm: str | None = None
    protocol: str | None = None


@runtime_checkable
class Backend(Protocol):
    """The library that carries operations. All ranks call every method in the same order.

    name, api, devices   "gloo", "torch", {"cpu"}; `steps` by operation where the api is the backend's own
    ranks                how many ranks it has, once open: the world's, but for a backend that only simulates them
    local_path           what carries bytes inside a host: "memory", "loopback" (TCP), or "" when it does not say
    takes_tuning         whether groups can be made under a `Tuning`
    passes_messages      whether its bindings know `send_to`, `post_send` and their like; takes_streams: several connections per pair
    gpus                 the PCI address of each rank's GPU ("0000:1b:00.0"), once open; () on CPUs
    uses_nccl            whether it loads NCCL, whose log then tells the paths; ask_ras says which of its ranks lag, set by who opened it
    nccl                 (library, version as ncclGetVersion gives it), once open; None where the backend has no hold of it
    flags                words that hold for every row that it carries ("simulated")
    no_cuda              why the opened library takes no CUDA memory, where it might have; else ""
    virtual              whether its ranks are made up: no CPU, counter or link of the hosts has a part in its times
    own_ceiling          a ceiling that only the backend can know (a simulated link), else None
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

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Whether the backend can be opened here. Never raises, imports as little as possible."""
        ...

    def open(self, world: World, settings: Settings) -> None:
        """Imports and starts the library. Raises CollbenchError."""
        ...

    def group(self, ranks: Sequence[int], tuning: Tuning | None = None) -> Group | None:
        """A group of the job's ranks, under a tuning where the library takes one; None at ranks outside. All ranks call, in one order."""
        ...

    def pair(self, whole: Group | None, ranks: Sequence[int], cell: Cell) -> Group | None:
        """Two ranks of the job for messages between them alone; None at processes that drive neither. Only these call.

        `whole` is the group of all ranks (None where this process is in none): nothing is made where messages can go over it.
        """
        ...

    def release(self, group: Group) -> None:
        """Frees a group that no further cell needs. Its ranks call, in one order."""
        ...

    def free_bytes(self, cell: Cell) -> int | None:
        """Bytes that each rank of this process can still allocate where the cell's buffers lie; None: the host's memory."""
        ...

    def supports(self, operation: Operation, cell: Cell) -> Reason | None:
        """Why the library cannot do this cell, or None. The same at all ranks."""
        ...

    def allocate(self, operation: Operation, cell: Cell, group: Group, slots: int) -> AnyBuffers:
        """Buffers of the ranks this process drives, `slots` of them in turn. Raises MemoryError."""
        ...

    def bind(self, operation: Operation, cell: Cell, group: Group, buffers: AnyBuffers) -> Program:
        """One iteration on these buffers, which `allocate` gave, as a program. Raises CollbenchError.

        Where the buffers lie in the host's memory it waits for no other rank: one that has found no memory does not come.
        """
        ...

    def sync(self, group: Group) -> Program | None:
        """The library's own synchronisation before each isolated sample; None: the room timing has a better one."""
        ...

    def clock(self) -> Clock | DeviceClock:
        """What samples are stamped with: a clock where calls return when they are done, events where they are only enqueued."""
        ...

    def fence(self, deadline_s: float) -> None:
        """Returns when everything issued so far has completed."""
        ...

    def abort(self, why: str) -> None:
        """Ends the library's pending work, best effort."""
        ...

    def versions(self) -> Mapping[str, str]:
        """The libraries really loaded and the settings that decide their speed."""
        ...

    def close(self) -> None:
        """Leaves the library in order."""
        ...


class BackendBase:
    """What holds for most backends; one that differs says so."""

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

    def pair(self, whole: Group | None, ranks: Sequence[int], cell: Cell) -> Group | None:
        """The two within the group of all: their messages need no group of their own."""
        return whole.part(ranks) if whole else None

    def release(self, group: Group) -> None:
        """Nothing to free before the end: groups live as long as the library does."""

    def free_bytes(self, cell: Cell) -> int | None:
        """The host's memory."""
        return None


Usual = BackendBase  # the name before 0.2; to be removed in 0.3


def unsupported_reason(backend: Backend, operation: Operation, cell: Cell) -> Fact | None:
    """Return why this backend cannot run this case, or None: first what is common to all backends, then the backend's own answer."""
    if cell.device not in backend.devices:
        return DeviceUnsupported(backend.name, cell.device, tuple(sorted(backend.devices)), backend.no_cuda)
    misfit = _unsupported_form(backend, operation, cell) or (undefined_redop(cell.redop, cell.dtype) if cell.redop else None)
    n = group_size(operation, cell, backend.ranks)
    return misfit or _unsupported_option(backend, cell) or as_fact(operation.needs(n, cell) or backend.supports(operation, cell) or None)


def can_do(backend: Backend, operation: Operation, cell: Cell) -> str | None:
    """Return `unsupported_reason` as text."""
    reason = unsupported_reason(backend, operation, cell)
    return None if reason is None else reason.render()


def steps_of(backend: Backend, operation: Operation) -> Steps | None:
    """How this backend carries the operation out: its own steps, else the operation's for its api, else by messages."""
    return backend.steps.get(operation.name) or operation.steps_of(backend.api, backend.passes_messages)


def in_place_only(backend: Backend, operation: Operation) -> bool:
    """Whether this backend has the operation in place and not otherwise."""
    return has_mark(steps_of(backend, operation), "in_place_only")


def _unsupported_form(backend: Backend, operation: Operation, cell: Cell) -> Fact | None:
    """Return why a backend does not have the operation, or not in place, out of place or in groups as the case asks; else None."""
    steps = steps_of(backend, operation)
    if steps is None:
        return OperationUnsupported(backend.name, operation.name)
    if cell.in_place is False and has_mark(steps, "in_place_only"):
        return OperationUnsupported(backend.name, operation.name, "in place")
    if cell.in_place and has_mark(steps, "out_of_place_only"):
        return OperationUnsupported(backend.name, operation.name, "out of place")
    if operation.pair and backend.ranks < 2:
        return TooFewRanks(operation.name)
    if operation.pair and cell.in_place:
        return NoInPlaceForm(operation.name)
    return OptionUnsupported(("--split",), operation.name, "collectives") if operation.pair and cell.split else None


def _unsupported_option(backend: Backend, cell: Cell) -> Fact | None:
    """Return which option of the case does not apply to the backend or the device, else None."""
    if cell.mode == "graph" and cell.device == "cpu":
        return OptionUnsupported(("--mode graph",), "CPUs", "GPUs")
    if (cell.algorithm or cell.protocol) and not backend.takes_tuning:
        options = ("--algorithms",) * bool(cell.algorithm) + ("--protocols",) * bool(cell.protocol)
        return OptionUnsupported(options, backend.name, "nccl")
    if (cell.streams or 1) > 1 and not backend.takes_streams:
        return OptionUnsupported(("--streams",), backend.name, "socket")
    return None
