"""What an operation is: its arithmetic, what must arrive where, and its calls per library interface ("api").

An operation is one file beside this one. The file gives generator functions that yield the calls of one iteration, and one
`Operation`; the registry finds it, `--help` lists it and the contract tests run it over every backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from collbench.operations.cell import Cell
from collbench.operations.program import Call

Reason = str


@dataclass(frozen=True)
class Block:
    """The next `count` received elements are the `sources`' send elements from `at`, reduced if there are several sources.

    `sources` are ranks within the group.
    """

    sources: Sequence[int]
    at: int
    count: int


@dataclass(frozen=True)
class Place:
    """One rank's view of a cell: what an operation needs to say who gets what. Ranks count within the group."""

    rank: int
    n: int
    count: int
    cell: Cell

    @property
    def root(self) -> int:
        """The root within the group (0 where the operation has none)."""
        return self.cell.root or 0

    @property
    def ranks(self) -> range:
        """All ranks of the group."""
        return range(self.n)


class Binding(Protocol):
    """What step functions see. Addresses (`send`, `recv`, `scratch`) can be sliced in elements: `x.recv[k:]`.

    stream: what calls are enqueued on, where the library takes one (NCCL).
    window, there: of a one-sided operation what rank 1 shows, and where its elements lie in it, in bytes.
    """

    rank: int
    n: int
    root: int
    count: int
    cell: Cell
    send: Any
    recv: Any
    scratch: Any
    status: Any
    type: Any
    byte: Any
    redop: Any
    comm: Any
    stream: Any
    window: Any
    there: Any

    def call(self, name: str, *words: Any, **named: Any) -> Call:
        """A call of the library's function `name`."""
        ...

    def post(self, name: str, *words: Any, **named: Any) -> Call:
        """Like `call`, for a non-blocking function; its request joins the next `waitall`."""
        ...

    def waitall(self) -> Call:
        """Waits for everything posted since the last one."""
        ...

    def peer(self, rank: int) -> Any:
        """How the library names rank `rank` of the group."""
        ...

    def send_to(self, rank: int, part: Any, count: int) -> Call:
        """A message to a rank of the group: `count` elements from the address `part`; returns when `part` may be written again."""
        ...

    def receive_from(self, rank: int, part: Any, count: int) -> Call:
        """The message that the rank sends, into `part`."""
        ...

    def together(self) -> Iterator[Call]:
        """Begins messages that must overlap: `post_send` and `post_receive` up to the next `waitall`. Often no call at all."""
        ...

    def post_send(self, rank: int, part: Any, count: int) -> Call:
        """Like `send_to`, without waiting."""
        ...

    def post_receive(self, rank: int, part: Any, count: int) -> Call:
        """Like `receive_from`, without waiting."""
        ...

    def signal_to(self, rank: int) -> Call:
        """One byte to a rank, which waits for it."""
        ...

    def signal_from(self, rank: int) -> Call:
        """Waits for the byte of a rank."""
        ...

    def array(self, values: Sequence[int]) -> Any:
        """Counts or displacements as an array of the library's, which lives as long as the program."""
        ...

    def unless_in_place(self, address: Any) -> Any:
        """`address`, or the library's in-place token when the cell is in place."""
        ...

    def has(self, name: str) -> bool:
        """Whether the library has a function `name`."""
        ...


Steps = Callable[[Any], Iterator[Call]]


def _no_need(_n: int, _cell: Cell) -> Reason | None:
    return None


@dataclass(frozen=True)
class Operation:
    """One collective or point-to-point pattern.

    name        what users type and rows print
    reduces     whether it has a redop
    rooted      whether it has a root
    bus_factor  busbw / algbw for n ranks (nccl-tests doc/PERFORMANCE.md)
    arrives     per rank, the blocks it must have received after one iteration, in buffer order
    sends       elements in the rank's send buffer (default: count)
    parts       size = parts(n)·count·width (default 1)
    pair        runs in groups of two ranks; only rank 0 of each is timed
    paces_itself  an iteration ends with an answer to the timed rank, which finds the other one waiting: no barrier before each sample
    moves       messages per iteration, by which a sample is divided
    one_sided   of a pair only rank 0 calls; rank 1 shows its memory and waits inside the library until a run's last sample is over.
                Where it reduces, rank 1's own elements lie there already. An iteration ends when the data is there
    neighbours  moves between the neighbours of a ring of the ranks in their order, for which a library may have a communicator
    both_ways   the figure is per direction while both directions are busy
    windowed    uses the cell's window
    needs       why it cannot run over a group of n ranks, or None
    steps       calls of one iteration by api
    by_messages   calls of one iteration by the messages that every library with point-to-point has (`send_to`, `post_send` …);
                taken where `steps` has nothing for the api
    uneven      uses the cell's traffic
    meets       moves nothing: no rank may leave before all have entered; its size is 0
    result_first  in place, the result comes to lie at the start of the buffer (MPI_Reduce_scatter_block); see `on`
    command     the subcommand that runs it (default: its name)
    cpu_model   which measured reference fits it on one host: "copy", "sum", "reduce", "allreduce" (see the room peak)
    """

    name: str
    bus_factor: Callable[[int], float]
    arrives: Callable[[Place], Sequence[Block]]
    steps: Mapping[str, Steps] = field(default_factory=dict)
    by_messages: Steps | None = None
    reduces: bool = False
    rooted: bool = False
    sends: Callable[[Place], int] = lambda x: x.count
    parts: Callable[[int], int] = lambda n: 1
    pair: bool = False
    paces_itself: bool = False
    one_sided: bool = False
    neighbours: bool = False
    moves: Callable[[Cell], int] = lambda cell: 1
    both_ways: bool = False
    windowed: bool = False
    needs: Callable[[int, Cell], Reason | None] = _no_need
    command: str = ""
    cpu_model: str = "copy"
    summary: str = ""
    uneven: bool = False
    meets: bool = False
    result_first: bool = False

    def count(self, cell: Cell, n: int) -> int:
        """Elements per part for the cell's size; 0 when the size is too small for n parts."""
        return cell.size_bytes // (self.parts(n) * cell.dtype.size)

    def receives(self, place: Place) -> int:
        """Elements that arrive at this rank in one iteration."""
        return sum(block.count for block in self.arrives(place))

    def steps_of(self, api: str, messages: bool = False) -> Steps | None:
        """The steps for an api, whose binding may know messages between ranks; None where it cannot do the operation."""
        return self.steps.get(api) or (self.by_messages if messages else None)

    def on(self, api: str, messages: bool = False) -> Operation:
        """The operation as this api has it: where its result lies in place."""
        first = has_mark(self.steps_of(api, messages), "result_first")
        return self if first == self.result_first else replace(self, result_first=first)

    def in_place_shift(self, place: Place) -> int:
        """Where a rank's own send elements lie in its receive buffer when in place, in elements (negative: before it)."""
        if self.result_first:
            return 0
        offset = 0
        for block in self.arrives(place):
            if place.rank in block.sources:
                return offset - block.at
            offset += block.count
        return 0


def in_place_only(steps: Steps) -> Steps:
    """Marks steps of an api that knows the operation in place only (torch's all_reduce, MPI_Bcast)."""
    return _marked(steps, "in_place_only")


def out_of_place_only(steps: Steps) -> Steps:
    """Marks steps of an api that has no in-place form of the operation."""
    return _marked(steps, "out_of_place_only")


def result_first(steps: Steps) -> Steps:
    """Marks steps of an api that puts an in-place result at the start of the buffer, whatever part of the input it is made of."""
    return _marked(steps, "result_first")


def _marked(steps: Steps, mark: str) -> Steps:
    def marked(x: Any) -> Iterator[Call]:
        return steps(x)

    for name in ("in_place_only", "out_of_place_only", "result_first"):
        setattr(marked, name, name == mark or getattr(steps, name, False))
    return marked


def has_mark(steps: Steps | None, mark: str) -> bool:
    """Whether steps are marked: "in_place_only", "out_of_place_only" or "result_first"."""
    return bool(getattr(steps, mark, False))
