"""The sweep a user asked for, as cells in the order they are measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from collbench.errors import UsageError
from collbench.operations.cell import Cell
from collbench.operations.dtypes import DType
from collbench.operations.operation import Operation

_WINDOW = 64  # OSU's and nccl-tests users' habit
_IN_FLIGHT_BYTES = 256 * 2**20  # a window of 64 messages of 64 MiB would take seconds and say nothing more
MODES = ("isolated", "batched", "pipelined", "graph")


@dataclass(frozen=True)
class Sweep:
    """Everything that makes cells, but for the backend.

    Sizes in bytes, ascending. in_place None: as the library has it. window None: 64 messages, but at most 256 MiB in flight.
    """

    operations: tuple[Operation, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[DType, ...]
    redops: tuple[str, ...] = ("sum",)
    roots: tuple[int, ...] = (0,)
    device: str = "cpu"
    mode: str = "isolated"
    in_place: bool | None = None
    buffers: str = "fixed"
    window: int | None = None
    seed: int = 0

    def cells(self, backend: str, n: int) -> Iterator[Cell]:
        """The cells of one backend with n ranks: by operation, dtype, redop and root, sizes ascending."""
        for operation in self.operations:
            redops = self.redops if operation.reduces else (None,)
            roots = self.roots if operation.rooted else (None,)
            for dtype, redop, root in product(self.dtypes, redops, roots):
                for size, rounded in _whole(self.sizes, dtype.size * operation.parts(n)):
                    yield Cell(
                        operation.name, backend, dtype, size, self.device, redop, root, self.mode, self.in_place, self.buffers,
                        self._window(size) if operation.windowed else None, self.seed, ("size_rounded",) if rounded else (),
                    )  # fmt: skip

    def _window(self, size: int) -> int:
        return self.window or max(1, min(_WINDOW, _IN_FLIGHT_BYTES // size))

    def check_ranks(self, n: int) -> None:
        """Raises UsageError when a root is not among n ranks."""
        for root in self.roots:
            if any(operation.rooted for operation in self.operations) and not 0 <= root < n:
                raise UsageError(f"root {root} is not among the {n} ranks: choose one from 0 to {n - 1}, or start more ranks")


def _whole(sizes: Sequence[int], unit: int) -> Iterator[tuple[int, bool]]:
    """Sizes as whole multiples of `unit` bytes, each once: rounded down, the smallest up to one unit; and whether rounded."""
    seen: set[int] = set()
    for size in sizes:
        whole = max(unit, size // unit * unit)
        if whole not in seen:
            seen.add(whole)
            yield whole, whole != size


def rounding_note(sweep: Sweep) -> str | None:
    """A sentence when sizes are no multiple of the element size, else None."""
    for dtype in sweep.dtypes:
        for size, rounded in _whole(sweep.sizes, dtype.size):
            if rounded:
                return f"sizes are rounded to whole {dtype.name} elements of {dtype.size} bytes (for example to {size} bytes)"
    return None
