"""The sweep a user asked for, as cells in the order they are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from collbench.errors import UsageError
from collbench.operations.cell import Cell, Split
from collbench.operations.dtypes import DType, dtype_named
from collbench.operations.operation import Operation
from collbench.operations.traffic import EVEN, Traffic, is_rough
from collbench.units import size_steps

_WINDOW = 64  # OSU's and nccl-tests users' habit
_IN_FLIGHT_BYTES = 256 * 2**20  # a window of 64 messages of 64 MiB would take seconds and say nothing more
MODES = ("isolated", "batched", "pipelined", "graph")
SMALLEST = 8
MOST_STREAMS = 64  # native/sockets.c has room for so many
# What NCCL_ALGO and NCCL_PROTO take (NCCL user guide, environment variables), in small letters.
ALGORITHMS = ("ring", "tree", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
PROTOCOLS = ("simple", "ll", "ll128")
REGISTRATIONS = ("none", "registered", "symmetric")
_Tuning = tuple[str | None, str | None, str | None]


@dataclass(frozen=True)
class Habits:
    """What a backend's cells have where the user asked for nothing.

    device, mode, buffers   as in a cell; largest: the largest size in bytes, from 8 on
    tuned                   whether algorithms, protocols and registrations can be asked for
    in_place_only           whether it has an operation in place and not otherwise
    streamed                whether pairs can have several connections
    """

    device: str = "cpu"
    mode: str = "isolated"
    buffers: str = "fixed"
    largest: int = 64 * 2**20
    tuned: bool = False
    in_place_only: Callable[[Operation], bool] = lambda operation: False
    streamed: bool = False


CPU = Habits()
CUDA = Habits("cuda", "pipelined", "rotating", 2**30)  # nccl-tests' meaning of a result


def on_cpu(backend: str) -> Habits:
    """Those of a CPU backend, whatever its name."""
    return CPU


@dataclass(frozen=True)
class Sweep:
    """Everything that makes cells, but for the backend; what is None, empty or "auto" is left to the backend's habits.

    sizes       in bytes, ascending; None: from 8 to the habit's largest, by `step` ("x2", "+1K")
    in_place    None: as the library has it
    window      None: 64 messages, but at most 256 MiB in flight
    algorithms, protocols   all combinations, and the library's own choice beside them
    backends    those that it is for; (): all
    split       of the ranks into groups that run at the same time; pairs are not split
    traffic     of alltoallv; None: even
    streams     connections per pair; None: one
    habits      those of the backend with a given name
    place       where a suite asks for it: "sweeps[2] 'large'"; else ""
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
    algorithms: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    registrations: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    split: Split | None = None
    traffic: Traffic | None = None
    streams: int | None = None
    habits: Callable[[str], Habits] = on_cpu
    place: str = ""

    @property
    def each(self) -> tuple[Sweep, ...]:
        """Itself, as `Sweeps` has several."""
        return (self,)

    def cells(self, backend: str, n: int) -> Iterator[Cell]:
        """The cells of one backend with n ranks: by operation, dtype, redop, root and tuning, sizes ascending.

        Raises UsageError for a split that does not fit n ranks.
        """
        if self.backends and backend not in self.backends:
            return
        usual = self.habits(backend)
        device = usual.device if self.device == "auto" else self.device
        for operation in self.operations:
            redops = self.redops if operation.reduces else (None,)
            roots = self.roots if operation.rooted else (None,)
            together = 2 if operation.pair else len(self.split.groups(n)[0]) if self.split else n
            for dtype, redop, root, tuning in product(self._dtypes(operation), redops, roots, self._tunings(usual)):
                for size, rounded in self._sizes(operation, backend, dtype, together):
                    rough = operation.uneven and is_rough(self.traffic, together, size // dtype.size)
                    yield Cell(
                        operation.name, backend, dtype, size, device, redop, root, self.mode or usual.mode, self.in_place,
                        self.buffers or usual.buffers, self._window(size) if operation.windowed else None, self.seed,
                        ("size_rounded",) if rounded or rough else (), *tuning, split=None if operation.pair else self.split,
                        traffic=(self.traffic or EVEN) if operation.uneven else None, streams=self._streams(operation, usual),
                    )  # fmt: skip

    def _dtypes(self, operation: Operation) -> Sequence[DType]:
        """What moves nothing has no type; bytes stand for it."""
        return (dtype_named("uint8"),) if operation.meets else self.dtypes

    def _sizes(self, operation: Operation, backend: str, dtype: DType, n: int) -> Iterator[tuple[int, bool]]:
        """The sizes over a group of n ranks, each once, and whether they were rounded; 0 for what moves nothing."""
        return iter([(0, False)]) if operation.meets else whole_sizes(self.sizes_for(backend), dtype.size * operation.parts(n))

    def sizes_for(self, backend: str) -> Sequence[int]:
        """The sizes asked for, else those that are usual on this backend."""
        return size_steps(SMALLEST, self.habits(backend).largest, self.step) if self.sizes is None else self.sizes

    def _tunings(self, usual: Habits) -> list[_Tuning]:
        """(registration, algorithm, protocol), the library's own choice of the last two first."""
        if not usual.tuned:
            return [(None, None, None)]
        forced = product(self.algorithms or (None,), self.protocols or (None,))
        chosen: list[tuple[str | None, str | None]] = list(dict.fromkeys([(None, None), *forced]))
        return [(registration, *choice) for registration in self.registrations or REGISTRATIONS[:1] for choice in chosen]

    def _streams(self, operation: Operation, usual: Habits) -> int | None:
        """Told even if it is one where there can be several; elsewhere what will be refused."""
        if usual.streamed and operation.pair:
            return self.streams or 1
        return None if self.streams == 1 else self.streams

    def _window(self, size: int) -> int:
        return self.window or max(1, min(_WINDOW, _IN_FLIGHT_BYTES // size))

    def check_ranks(self, n: int) -> None:
        """Raises UsageError when a root is not among n ranks (of each group), or the split or the traffic does not fit them."""
        together = len(self.split.groups(n)[0]) if self.split else n
        for root in self.roots:
            if any(operation.rooted for operation in self.operations) and not 0 <= root < together:
                whose = f"{together} ranks of each group" if self.split else f"{n} ranks"
                raise UsageError(f"root {root} is not among the {whose}: choose one from 0 to {together - 1}, or start more ranks")
        if any(operation.uneven for operation in self.operations):
            (self.traffic or EVEN).check_ranks(together)


def whole_sizes(sizes: Sequence[int], unit: int) -> Iterator[tuple[int, bool]]:
    """Sizes as whole multiples of `unit` bytes, each once: rounded down, the smallest up to one unit; and whether rounded."""
    seen: set[int] = set()
    for size in sizes:
        whole = max(unit, size // unit * unit)
        if whole not in seen:
            seen.add(whole)
            yield whole, whole != size


# Several sweeps in one launch: their cells, each once.


@dataclass(frozen=True)
class Sweeps:
    """The sweeps of a suite; what others ask of a single sweep they can ask of these, too.

    each    in the order of the suite; those with the same `place` are one table of it, whose lists are multiplied out
    usual   the backends of those that name none
    once    whether a cell that two tables ask for is measured once (options replaced what told them apart); else it is refused
    """

    each: tuple[Sweep, ...]
    usual: tuple[str, ...] = ()
    once: bool = False

    @property
    def operations(self) -> tuple[Operation, ...]:
        """All that are measured, each once."""
        return tuple({operation.name: operation for sweep in self.each for operation in sweep.operations}.values())

    @property
    def algorithms(self) -> tuple[str, ...]:
        """All that are forced somewhere."""
        return tuple(dict.fromkeys(name for sweep in self.each for name in sweep.algorithms))

    @property
    def protocols(self) -> tuple[str, ...]:
        """All that are forced somewhere."""
        return tuple(dict.fromkeys(name for sweep in self.each for name in sweep.protocols))

    @property
    def registrations(self) -> tuple[str, ...]:
        """All that are asked for somewhere."""
        return tuple(dict.fromkeys(name for sweep in self.each for name in sweep.registrations))

    @property
    def habits(self) -> Callable[[str], Habits]:
        """Those of the backend with a given name."""
        return self.each[0].habits

    def check_ranks(self, n: int) -> None:
        """Raises UsageError when a root is not among n ranks (of each group), or a split does not fit them."""
        for sweep in self.each:
            try:
                sweep.check_ranks(n)
            except UsageError as error:
                raise UsageError(f"{sweep.place}: {error}") from error

    def cells(self, backend: str, n: int) -> Iterator[Cell]:
        """The cells of one backend with n ranks, sweep by sweep. Raises UsageError for a cell that two tables ask for."""
        return (cell for _, cell in self.placed_cells(backend, n))

    def placed_cells(self, backend: str, n: int) -> Iterator[tuple[str, Cell]]:
        """The cells with the place of the sweep that they come from. Raises UsageError as `cells` does."""
        places: dict[Cell, str] = {}
        for sweep in self.each:
            for cell in self._of(sweep, backend, n):
                key = self._key(cell)
                if key not in places:
                    places[key] = sweep.place
                    yield sweep.place, cell
                elif places[key] != sweep.place and not self.once:
                    raise UsageError(_twice(cell, places[key], sweep.place))

    def _of(self, sweep: Sweep, backend: str, n: int) -> Iterator[Cell]:
        return sweep.cells(backend, n) if backend in (sweep.backends or self.usual or (backend,)) else iter(())

    def _key(self, cell: Cell) -> Cell:
        """The cell as its row will name it: placed, whatever was rounded."""
        in_place = cell.in_place
        if in_place is None:
            in_place = self.habits(cell.backend).in_place_only(self._by_name[cell.operation])
        return replace(cell, in_place=in_place, flags=())

    @cached_property
    def _by_name(self) -> dict[str, Operation]:
        return {operation.name: operation for operation in self.operations}


def _twice(cell: Cell, first: str, second: str) -> str:
    return f"{second} asks for {cell.title()}, which {first} measures already: take it out of one of them"


def rounding_note(sweeps: Sweep | Sweeps) -> str | None:
    """A sentence when sizes are no multiple of the element size, else None."""
    for sweep in sweeps.each:
        sizes = size_steps(SMALLEST, CPU.largest, sweep.step) if sweep.sizes is None else sweep.sizes
        for dtype in sweep.dtypes:
            for size, rounded in whole_sizes(sizes, dtype.size):
                if rounded:
                    return f"sizes are rounded to whole {dtype.name} elements of {dtype.size} bytes (for example to {size} bytes)"
    return None


def tuning_note(sweeps: Sweep | Sweeps, backends: Sequence[str]) -> str | None:
    """A sentence when some of the backends do not take the algorithms, protocols or registrations that were asked for, else None."""
    if not (sweeps.algorithms or sweeps.protocols or sweeps.registrations):
        return None
    plain = [name for name in backends if not sweeps.habits(name).tuned]
    if not plain:
        return None
    each = "each as it chooses itself" if len(plain) > 1 else "as it chooses itself"
    return (
        f"--algorithms, --protocols and --registration concern nccl: {', '.join(plain)} {'are' if len(plain) > 1 else 'is'} measured {each}"
    )
