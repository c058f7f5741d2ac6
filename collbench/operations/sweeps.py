"""Several sweeps in one launch: their cells, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from collbench.errors import UsageError
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation
from collbench.operations.plan import CPU, SMALLEST, Habits, Sweep, whole_sizes
from collbench.units import size_steps


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
