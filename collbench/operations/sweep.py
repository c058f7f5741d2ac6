"""A sweep: from lists of operations, sizes, data types etc. to test cases, in the order in which they are defined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import product

import msgspec
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.operations.case import CALLS, Case, Split
from collbench.operations.dtypes import DType, dtype_named
from collbench.operations.operation import Operation
from collbench.operations.traffic import EVEN, Traffic, is_rough
from collbench.units import listed, plural, size_steps

_WINDOW = 64  # as in OSU's benchmarks
_IN_FLIGHT_BYTES = 256 * 2**20  # a window of 64 messages of 64 MiB would take seconds without further information
OWN_MODES = ("isolated", "batched", "pipelined", "graph")  # of the core; plug-ins bring the others
MODES = (*OWN_MODES, "overlap")
SMALLEST = 8
SPARSE = (8, 128, 1 << 10, 8 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20, 1 << 30)  # bytes; up to the backend's largest size
MOST_STREAMS = 64  # the limit of native/sockets.c
# The values of NCCL_ALGO and NCCL_PROTO (NCCL user guide, environment variables), in lower case.
ALGORITHMS = ("ring", "tree", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
PROTOCOLS = ("simple", "ll", "ll128")
REGISTRATIONS = ("none", "registered", "window", "symmetric", "device", "gin")
_Tuning = tuple[str | None, str | None, str | None]


class BackendDefaults(msgspec.Struct, frozen=True):
    """A backend's defaults for the options of test cases.

    device, mode, buffers   as in a test case; largest: the largest size in bytes (the smallest is 8)
    tuned                   whether it supports --algorithms, --protocols and --registration
    in_place_only           an operation -> whether the backend has it in place only
    streamed                whether it supports several connections per pair
    """

    device: str = "cpu"
    mode: str = "isolated"
    buffers: str = "fixed"
    largest: int = 64 * 2**20
    tuned: bool = False
    in_place_only: Callable[[Operation], bool] = lambda operation: False
    streamed: bool = False


CPU = BackendDefaults()
CUDA = BackendDefaults("cuda", "pipelined", "rotating", 2**30)  # as nccl-tests measures


class Sweep(msgspec.Struct, frozen=True):
    """The options of a sweep. Its test cases are all combinations; the backend's defaults replace None, () and "auto".

    sizes       in bytes, ascending; None: from 8 to the backend's largest, by `step` ("x2", "+1K")
    span        the smallest and largest size as requested, in bytes, of which the steps may miss the latter; None: unknown
    sparse      only the sizes of SPARSE instead of every step, where `sizes` is None
    in_place    None: out of place where the library supports it
    window      messages in flight; None: 64, but at most 256 MiB
    algorithms, protocols   all combinations, in addition to the library's own choice
    calls       how operations are called: names of CALLS
    backends    that it applies to; (): all
    split       divides the ranks into groups that run at the same time; pairs are not divided
    traffic     of uneven operations; None: even
    streams     connections per pair; None: one
    pairs       numbers of pairs that send at the same time, 0: all; of operations that aggregate pairs; (): all
    defaults    the name of a backend -> its defaults
    where       its place in a suite: "sweeps[2] 'large'"; place: with the suite's file, for messages; "" without a suite
    """

    operations: tuple[Operation, ...]
    sizes: tuple[int, ...] | None
    dtypes: tuple[DType, ...]
    redops: tuple[str, ...] = ("sum",)
    roots: tuple[int, ...] = (0,)
    device: str = "auto"
    mode: str | None = None
    in_place: bool | None = None
    buffers: str | None = None
    window: int | None = None
    seed: int = 0
    step: str = "x2"
    sparse: bool = False
    algorithms: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    registrations: tuple[str, ...] = ()
    calls: tuple[str, ...] = CALLS[:1]
    backends: tuple[str, ...] = ()
    split: Split | None = None
    traffic: Traffic | None = None
    streams: int | None = None
    pairs: tuple[int, ...] = ()
    span: tuple[int, int] | None = None
    defaults: Callable[[str], BackendDefaults] = lambda backend: CPU
    where: str = ""
    place: str = ""

    @property
    def each(self) -> tuple[Sweep, ...]:
        """This sweep alone, so that callers can treat it as `Sweeps`."""
        return (self,)

    def cases(self, backend: str, n: int) -> Iterator[Case]:
        """Yield the test cases of a backend with n ranks: by operation, dtype, redop, root, tuning and call, sizes ascending.

        Raises UsageError for a split that does not fit n ranks.
        """
        if self.backends and backend not in self.backends:
            return
        default = self.defaults(backend)
        device = default.device if self.device == "auto" else self.device
        for operation in self.operations:
            redops = self.redops if operation.reduces else (None,)
            roots = self.roots if operation.rooted else (None,)
            group = 2 if operation.pair else self._group_size(n)
            dtypes = (dtype_named("uint8"),) if operation.is_barrier else self.dtypes  # a barrier moves no data
            pairs: list[int | None] = [None]
            if operation.aggregate:
                pairs = list(dict.fromkeys(number or max(n // 2, 1) for number in self.pairs or (0,)))
            calls = [None if call == CALLS[0] else call for call in self.calls]
            chosen = product(dtypes, redops, roots, self._tunings(default), calls, pairs)
            for dtype, redop, root, tuning, call, at_once in chosen:
                sizes: Iterable[tuple[int, bool]] = [(0, False)]  # of an operation that moves no data
                if not operation.is_barrier:
                    sizes = whole_sizes(self.sizes_to(default.largest), dtype.size * operation.parts(group))
                for size, rounded in sizes:
                    rough = operation.uneven and is_rough(self.traffic, group, size // dtype.size, operation.by_rank)
                    yield Case(
                        operation.name, backend, dtype, size, device, redop, root, self.mode or default.mode, self.in_place,
                        self.buffers or default.buffers, self._window(size) if operation.windowed else None, self.seed,
                        ("size_rounded",) if rounded or rough else (), *tuning, split=None if operation.pair else self.split,
                        traffic=(self.traffic or EVEN) if operation.uneven else None, streams=self._streams(operation, default),
                        call=call, pairs=at_once,
                    )  # fmt: skip

    def sizes_to(self, largest: int) -> Sequence[int]:
        """Return the sizes of the sweep, else the default sizes up to `largest`, in bytes."""
        if self.sizes is not None:
            return self.sizes
        return [size for size in SPARSE if size <= largest] if self.sparse else size_steps(SMALLEST, largest, self.step)

    def _group_size(self, n: int) -> int:
        return len(self.split.groups(n)[0]) if self.split else n

    def _tunings(self, default: BackendDefaults) -> list[_Tuning]:
        """Return (registration, algorithm, protocol) for each tuning, the library's own choice of the last two first."""
        if not default.tuned:
            return [(None, None, None)]
        forced = product(self.algorithms or (None,), self.protocols or (None,))
        chosen: list[tuple[str | None, str | None]] = list(dict.fromkeys([(None, None), *forced]))
        return [(registration, *choice) for registration in self.registrations or REGISTRATIONS[:1] for choice in chosen]

    def _streams(self, operation: Operation, default: BackendDefaults) -> int | None:
        """Return the connections per pair: a number where the backend supports several, else None, or a number that it will reject."""
        if default.streamed and operation.pair:
            return self.streams or 1
        return None if self.streams == 1 else self.streams

    def _window(self, size: int) -> int:
        return self.window or max(1, min(_WINDOW, _IN_FLIGHT_BYTES // size))

    def check_ranks(self, n: int) -> None:
        """Check roots, split, pairs and traffic against n ranks. Raises UsageError for those that do not fit."""
        group = self._group_size(n)
        for root in self.roots:
            if any(operation.rooted for operation in self.operations) and not 0 <= root < group:
                ranks = f"{group} ranks in each group" if self.split else plural(n, "rank")
                raise UsageError(f"root {root} is out of range ({ranks}): choose 0 to {group - 1}, or start more ranks")
        if any(operation.aggregate for operation in self.operations) and n > 1 and max(self.pairs, default=0) > n // 2:
            ends = f"{plural(n, 'rank')} make {plural(n // 2, 'pair')}"
            raise UsageError(f"--pairs {max(self.pairs)}: {ends}: use 1 to {n // 2} or all, or start more ranks")
        for by_rank in {operation.by_rank for operation in self.operations if operation.uneven}:
            (self.traffic or EVEN).check_ranks(group, by_rank)


def whole_sizes(sizes: Sequence[int], unit: int) -> Iterator[tuple[int, bool]]:
    """Yield each size as a multiple of `unit` bytes, and whether it was rounded: down, but at least to one unit. No size twice."""
    seen: set[int] = set()
    for size in sizes:
        whole = max(unit, size // unit * unit)
        if whole not in seen:
            seen.add(whole)
            yield whole, whole != size


class Sweeps(msgspec.Struct, frozen=True, dict=True):
    """The sweeps of a suite, in one launch; has the same methods as a `Sweep`.

    each              in the order of the suite; those with the same `place` come from one table of it
    default_backends  of sweeps without backends of their own
    once              whether a test case that two tables define is measured once (where options replaced the difference between the
                      tables); else it is an error
    """

    each: tuple[Sweep, ...]
    default_backends: tuple[str, ...] = ()
    once: bool = False

    @property
    def operations(self) -> tuple[Operation, ...]:
        """All operations, each once."""
        return tuple({operation.name: operation for sweep in self.each for operation in sweep.operations}.values())

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The algorithms of all sweeps, each once."""
        return tuple(dict.fromkeys(name for sweep in self.each for name in sweep.algorithms))

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols of all sweeps, each once."""
        return tuple(dict.fromkeys(name for sweep in self.each for name in sweep.protocols))

    @property
    def registrations(self) -> tuple[str, ...]:
        """The registrations of all sweeps, each once."""
        return tuple(dict.fromkeys(name for sweep in self.each for name in sweep.registrations))

    @property
    def defaults(self) -> Callable[[str], BackendDefaults]:
        """The name of a backend -> its defaults."""
        return self.each[0].defaults

    def check_ranks(self, n: int) -> None:
        """Check each sweep as `Sweep.check_ranks` does. Raises UsageError that names the sweep."""
        for sweep in self.each:
            try:
                sweep.check_ranks(n)
            except UsageError as error:
                raise UsageError(f"{sweep.place}: {error}") from error

    def cases(self, backend: str, n: int) -> Iterator[Case]:
        """Yield the test cases of a backend with n ranks, sweep by sweep. Raises UsageError for a case that two tables define."""
        return (case for _, case in self.placed_cases(backend, n))

    def placed_cases(self, backend: str, n: int) -> Iterator[tuple[Sweep, Case]]:
        """Yield (sweep, test case). Raises UsageError as `cases` does."""
        places: dict[Case, str] = {}
        for sweep in self.each:
            backends = sweep.backends or self.default_backends
            for case in sweep.cases(backend, n) if not backends or backend in backends else ():
                # the case as its row identifies it: with its placement, without flags
                in_place = case.in_place
                if in_place is None:
                    in_place = self.defaults(case.backend).in_place_only(self._by_name[case.operation])
                key = replace(case, in_place=in_place, flags=())
                if key not in places:
                    places[key] = sweep.place
                    yield sweep, case
                elif places[key] != sweep.place and not self.once:
                    raise UsageError(f"{sweep.place} and {places[key]} both define {case.title()}: remove it from one of them")

    @cached_property
    def _by_name(self) -> dict[str, Operation]:
        return {operation.name: operation for operation in self.operations}


def rounding_note(sweeps: Sweep | Sweeps) -> str | None:
    """Return a sentence when sizes are not multiples of the element size, else None."""
    for sweep in sweeps.each:
        for dtype in sweep.dtypes:
            for size, rounded in whole_sizes(sweep.sizes_to(CPU.largest), dtype.size):
                if rounded:
                    return f"sizes are rounded to whole {dtype.name} elements of {dtype.size} bytes (e.g. to {size} bytes)"
    return None


def tuning_note(sweeps: Sweep | Sweeps, backends: Sequence[str]) -> str | None:
    """Return a sentence when some of the backends ignore --algorithms, --protocols or --registration, else None."""
    if not (sweeps.algorithms or sweeps.protocols or sweeps.registrations):
        return None
    plain = [name for name in backends if not sweeps.defaults(name).tuned]
    return f"--algorithms, --protocols and --registration apply to nccl only, not to {listed(plain)}" if plain else None
