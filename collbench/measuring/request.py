"""The user's request of a measurement: complete, and checked as far as one process can check it alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from collbench.backends.registry import missing_backend
from collbench.backends.slowing import Slowing
from collbench.errors import UsageError
from collbench.operations.sweep import Sweep, Sweeps

# The user's limits for one case: the time limit takes precedence over counts. Without numpy, since every command imports this module.

_SMALL = 16 * 1024
_MIDDLE = 1024 * 1024
_LEAST_SHARE = 0.005  # of the total time
_LARGE = 1024 * 1024  # sizes from which the time for set-up and verification grows with them
_UNIT = 8 * 1024 * 1024  # bytes per further part of a shared time
_MOST_UNITS = 8
_TARGETS = (0.03, 0.02, 0.005)  # intended half-widths for small, medium and large sizes


class Budget(msgspec.Struct, frozen=True):
    """The user's limits for measuring one case.

    max_time_s   wall time; it takes precedence over all counts
    total_s      wall time of all cases together, divided among them by `SharedTime`; None: no such limit
    iterations   exactly so many samples (None: until the precision is reached)
    warmup       exactly so many (None: until the times settle)
    precision    relative half-width of the interval to reach (None: 3, 2 or 0.5 % by size)
    wall_s       wall time of the whole command, from its start to its end, with start-up and references; None: no such limit
    """

    max_time_s: float = 5.0
    iterations: int | None = None
    warmup: int | None = None
    precision: float | None = None
    total_s: float | None = None
    wall_s: float | None = None

    def target(self, size_bytes: int) -> float:
        """Return the relative half-width of the median's confidence interval that ends the measurement."""
        if self.precision is not None:
            return self.precision
        small, middle, large = _TARGETS
        if size_bytes <= _SMALL:
            return small
        return middle if size_bytes <= _MIDDLE else large


class SharedTime:
    """Divides `Budget.total_s` among the cases of a launch: unused time goes to the cases that follow.

    Large messages need longer for the same number of samples, so a case gets one part, and one more for each 8 MiB (at most 8 more).
    ends_s: when the cases must have ended, on the clock of `now`; None: the total time alone counts.
    """

    def __init__(
        self, budget: Budget, sizes_bytes: Sequence[int], now: Callable[[], float] = time.monotonic, ends_s: float | None = None
    ) -> None:
        self._budget = budget
        self._now = now
        self._wall_ends_s = ends_s
        self._parts = [1 + min(size_bytes / _UNIT, _MOST_UNITS) for size_bytes in sizes_bytes]
        self._ends = now() + (budget.total_s or 0.0)
        if ends_s is not None:
            self._ends = min(self._ends, ends_s)
        self._overheads: list[tuple[int, float]] = []

    @property
    def left_s(self) -> float | None:
        """Return the seconds that are left; None without a total time."""
        return None if self._budget.total_s is None else max(self._ends - self._now(), 0.0)

    def next(self) -> Budget:
        """Return the budget of the next case, in the order of the sizes. The last ones may get little, but never no time."""
        parts = self._parts.pop(0)
        left_s = self._ends - self._now()
        if self._budget.total_s is None:
            return self._budget
        share_s = max(left_s * parts / (parts + sum(self._parts)), _LEAST_SHARE * self._budget.total_s)
        return replace(self._budget, max_time_s=min(share_s, self._budget.max_time_s))

    def spent(self, size_bytes: int, overhead_s: float) -> None:
        """Record the seconds that a case took in addition to its samples: set-up, first call and verification."""
        self._overheads.append((size_bytes, overhead_s))

    def fits(self, size_bytes: int) -> bool:
        """Return whether the next case ends in time, as far as this rank can tell. The first case always fits."""
        if self._wall_ends_s is None or not self._overheads:
            return True
        fixed_s = min(overhead_s for _, overhead_s in self._overheads)
        per_byte_s = max((overhead_s / size for size, overhead_s in self._overheads if size >= _LARGE), default=0.0)
        return self._now() + fixed_s + per_byte_s * size_bytes <= self._wall_ends_s

    def omit(self) -> None:
        """Leave out the next case. All ranks must call it."""
        self._parts.pop(0)


class Request(msgspec.Struct, frozen=True):
    """The request of one launch: what to measure, and with which options.

    command        the subcommand ("allreduce"; of a suite "run-" and its name), for the folder's name
    sweep          what makes the cases; a suite has several
    backends       names in the order they are measured; requested: those that the user named (the rest are defaults)
    ranks          --ranks, the number of ranks of a backend with virtual ranks
    check          verification calls per case; 0 is off
    ceiling        GB/s that the user gave, or None
    oversubscription  the fabric between hosts carries a host's rate divided by this
    timeout_s      deadline of every wait
    seed           of the inputs; order_seed: of the order of the cases, None: each launch draws a new one
    out            the run folder, or None for runs/<time>-<operation>-<id>
    resume         the folder of the run to continue, or None
    resume_if_exists  whether a run in `out` is continued, if there is one
    allocation     name of the allocation, or None
    launch_index   which one of how many `launches` of the same command this is, from 0
    gpus_per_process  how many GPUs, and so ranks, each process drives
    evidence       "on": counters and logs are read around each case; "off": not; "tuning": NCCL writes a line per call, too
    telemetry_hz   samples per second of clocks, power and temperatures meanwhile; 0: none
    slowed         which cases are slowed down on purpose, as a test
    oversubscribe  whether more than 16 ranks per core are allowed
    ranks_per_node  how many processes a single task of a node starts, or None
    gdr_check      whether launches with and without GPUDirect RDMA are compared
    stop_on_wrong  whether the launch ends after the first case with wrong data
    trace          the file for the timeline, None: none is written; with it, rows store when their samples began
    nvtx           whether every rank makes NVTX ranges around cases and their phases
    settings       values of options that one place alone reads, by name
    argv           the command line
    suite          the suite as read, for run.json: name, title, digest (SHA-256 of all files), files, run, sweeps, and the options that
                   the command line replaced; None: no suite
    configuration  the user's configuration file and its values in use, for run.json; None: none
    """

    command: str
    sweep: Sweep | Sweeps
    backends: tuple[str, ...]
    requested: frozenset[str] = frozenset()
    budget: Budget = msgspec.field(default_factory=Budget)
    ranks: int | None = None
    check: int = 1
    ceiling: float | None = None
    oversubscription: float = 1.0
    timeout_s: float = 60.0
    seed: int = 0
    order_seed: int | None = None
    out: Path | None = None
    resume: Path | None = None
    resume_if_exists: bool = False
    allocation: str | None = None
    launch_index: int = 0
    launches: int = 1
    gpus_per_process: int = 1
    evidence: str = "on"
    telemetry_hz: float = 0.0
    slowed: Slowing = msgspec.field(default_factory=Slowing)
    oversubscribe: bool = False
    ranks_per_node: int | None = None
    gdr_check: bool = False
    stop_on_wrong: bool = False
    trace: Path | None = None
    nvtx: bool = False
    settings: Mapping[str, Any] = msgspec.field(default_factory=dict)
    argv: Sequence[str] = ()
    suite: Mapping[str, Any] | None = None
    configuration: Mapping[str, Any] | None = None

    @property
    def earlier(self) -> Path | None:
        """Return the folder of the run to continue, from the options and the existing folders; None for a new run.

        Call it at rank 0: its disk has the runs.
        """
        from collbench.results.folder import holds_a_run

        return self.out if self.resume_if_exists and self.out and holds_a_run(self.out) else self.resume

    @property
    def is_simulated(self) -> bool:
        """Whether all ranks are virtual, in one process."""
        return set(self.backends) == {"simulated"}

    def ranks_of(self, backend: str, processes: int) -> int:
        """Return how many ranks a backend would have. If it needs GPUs, each process has as many ranks as GPUs."""
        return processes * (self.gpus_per_process if self.sweep.defaults(backend).device == "cuda" else 1)

    def check_options(self) -> None:
        """Raise UsageError for options of nccl or socket if that backend is not measured."""
        sweep = self.sweep
        values_by_option = {"--algorithms": sweep.algorithms, "--protocols": sweep.protocols, "--registration": sweep.registrations,
             "-g": self.gpus_per_process > 1}  # fmt: skip
        typed = next((option for option, value in values_by_option.items() if value), None)
        if typed and not any(sweep.defaults(name).tuned for name in self.backends):
            raise self._not_measured(typed)
        if self.gdr_check and not any(sweep.defaults(name).device == "cuda" for name in self.backends):
            raise self._not_measured("--gdr-check")
        several = any((part.streams or 1) > 1 for part in sweep.each)
        if several and not any(sweep.defaults(name).streamed for name in self.backends):
            raise self._not_measured("--streams", "socket")

    def _not_measured(self, option: str, backend: str = "nccl") -> UsageError:
        backends = ", ".join(self.backends)
        return UsageError(
            f"{option} concerns {backend}, which is not among the backends ({backends}): add --backend {backend}, or remove {option}"
        )

    def check_installed(self) -> None:
        """Raise UsageError for a requested backend that is not installed, before any rank is started."""
        names = self.requested
        if find_spec("mpi4py"):
            names -= {"mpi"}
        for name in names:
            missing = missing_backend(name)
            if missing:
                raise UsageError(f"backend {name} is not available: {missing}")


# What the commands with tasks of their own add to it.


class Placement(msgspec.Struct, frozen=True):
    """Where the ranks of a launch run, as far as one process knows it before they join.

    processes  their number
    host_of    the number of the host of each rank: the ranks fill one host after the other
    names      the names of the hosts
    is_here    whether no launcher has started this process: all ranks will be on this host
    """

    processes: int
    host_of: tuple[int, ...]
    names: tuple[str, ...]
    is_here: bool = True

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return len(self.host_of)


class TaskRequest(msgspec.Struct, frozen=True):
    """The request of a command, made once and complete. Commands whose tasks need more than the request of the launch have subclasses.

    launch  what all commands share
    """

    launch: Request

    @property
    def cases(self) -> Request:
        """Return the request whose sweep has the cases, for the checks before ranks are started."""
        return self.launch

    def check(self, placement: Placement) -> None:
        """Raise UsageError if it does not fit the ranks that will be started on this host."""
