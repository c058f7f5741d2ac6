"""Operations: the data that each rank sends and must receive, and the calls for each library interface ("api").

An operation is one file, in `builtin/` or in a plug-in (entry point `collbench.operations`). It defines functions that return or
yield the calls of one iteration, and one `Operation`. That is enough: the registry finds it, `--help` lists it, results are verified from
`expected_blocks`, and the contract tests run it over every backend. tests/contract/example_plugin has a complete example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from collbench.operations.case import Case
from collbench.operations.program import Call

if TYPE_CHECKING:
    from collbench.reason import Fact

# Why a test case cannot run: a sentence, or one of the facts of operations/unsupported.py.
Reason: TypeAlias = "str | Fact"


class Block(msgspec.Struct, frozen=True):
    """A part of a rank's receive buffer, and where its data comes from.

    sources   ranks of the group; the data of several is reduced with the case's redop
    at        first element, in the send buffer of each source
    count     number of elements
    """

    sources: Sequence[int]
    at: int
    count: int


class Place(msgspec.Struct, frozen=True):
    """One rank of the group that runs a case: the argument of `Operation.expected_blocks` and `Operation.sends`.

    rank    this rank's number within the group, 0 … n-1
    n       number of ranks in the group
    count   elements per part (`Operation.count`)
    case    the test case: size in bytes, data type, redop, root, placement
    """

    rank: int
    n: int
    count: int
    case: Case

    @property
    def root(self) -> int:
        """The root's rank within the group; 0 if the operation has no root."""
        return self.case.root or 0

    @property
    def ranks(self) -> range:
        """All ranks of the group: range(n)."""
        return range(self.n)


class Binding(Protocol):
    """The argument `x` of step functions: one rank's buffers and handles for one case, and methods that return its calls.

    rank, n, root, count, case   as in `Place`
    send, recv       the rank's buffers. A slice in elements is an address: `x.recv[k:]` is element k
    scratch          a few bytes of the rank's own, for signals
    type, byte       the library's data type of the case's elements, and of bytes
    redop            the library's reduction op; comm: its communicator of the group; status: where it writes a message's status
    stream           the stream that calls are enqueued on, where the library takes one (NCCL)
    window, there    one-sided operations: the window that rank 1 exposes, and the offset of rank 1's elements in it, in bytes

    A step function may use what the binding of its api has; not every binding has all of these.
    """

    rank: int
    n: int
    root: int
    count: int
    case: Case
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

    def call(self, name: str, *args: Any, **named: Any) -> Call:
        """Return a call of the library's function `name` with these arguments."""

    def post(self, name: str, *args: Any, **named: Any) -> Call:
        """Return a call of a non-blocking function. The next `waitall` waits for its request."""

    def waitall(self) -> Call:
        """Return a call that waits for everything posted since the previous `waitall`."""

    def peer(self, rank: int) -> Any:
        """Return the library's number for rank `rank` of the group."""

    def send_to(self, rank: int, part: Any, count: int) -> Call:
        """Return a call that sends `count` elements at `part` to a rank. It returns when `part` can be overwritten."""

    def receive_from(self, rank: int, part: Any, count: int) -> Call:
        """Return a call that receives `count` elements from a rank into `part`."""

    def together(self) -> Iterator[Call]:
        """Yield the call that begins messages that must overlap, `post_send` and `post_receive` up to the next `waitall`. Often none."""

    def post_send(self, rank: int, part: Any, count: int) -> Call:
        """Return a non-blocking `send_to`."""

    def post_receive(self, rank: int, part: Any, count: int) -> Call:
        """Return a non-blocking `receive_from`."""

    def signal_to(self, rank: int) -> Call:
        """Return a call that sends one byte to a rank; the rank waits with `signal_from`."""

    def signal_from(self, rank: int) -> Call:
        """Return a call that waits for one byte from a rank."""

    def array(self, values: Sequence[int]) -> Any:
        """Return counts or displacements as an array in the library's integer type. It lives as long as the program."""

    def unless_in_place(self, address: Any) -> Any:
        """Return `address`, or the library's in-place marker (MPI_IN_PLACE) when the case is in place."""

    def has(self, name: str) -> bool:
        """Return whether the library has a function `name`."""


Steps = Callable[[Any], Iterable[Call]]  # a generator function, or a function that returns a list


def needs_two_ranks(operation: str) -> Callable[[int, Case], Reason | None]:
    """Return a `needs` for an operation that has no meaning on one rank."""

    def needs(n: int, case: Case) -> Reason | None:
        from collbench.operations.unsupported import TooFewRanks  # here: `--help` loads the operations, but needs no reason

        return None if n > 1 else TooFewRanks(operation)

    return needs


def needs_out_of_place(operation: str) -> Callable[[int, Case], Reason | None]:
    """Return a `needs` for an operation that has no in-place form on any library."""

    def needs(n: int, case: Case) -> Reason | None:
        from collbench.operations.unsupported import NoInPlaceForm

        return NoInPlaceForm(operation) if case.in_place else None

    return needs


class Operation(msgspec.Struct, frozen=True):
    """One collective or point-to-point pattern.

    Required, with at least one entry in `steps` or with `by_messages`:

    name              what users type, and what rows contain: "allreduce"
    bus_factor        n ranks -> busbw / algbw (nccl-tests, doc/PERFORMANCE.md)
    expected_blocks   a rank -> the blocks that it must have received after one iteration, in the order of its receive buffer.
                      Verification uses nothing else

    The calls:

    steps             by api ("mpi", "nccl", "torch" …) the generator of one iteration's calls
    by_messages       the same for every library with point-to-point messages, by `send_to`, `post_send` etc.; used where `steps` has
                      no entry for the api
    needs             n ranks and a case -> why it cannot run (a sentence or a fact), or None

    Sizes:

    sends             a rank -> elements in its send buffer (default: count)
    parts             n ranks -> how many parts of `count` elements a size consists of (default: 1)
    moves             a case -> messages per iteration, by which a sample is divided (default: 1)

    Kind (each False unless set):

    reduces           it has a redop; rooted: it has a root
    pair              it runs in groups of two ranks, and only rank 0 of each is timed
    one_sided         only rank 0 of a pair calls. Rank 1 exposes its memory and waits inside the library until the last sample of a
                      run. Where the operation reduces, rank 1's elements are in that memory. An iteration ends when the data is there
    self_synchronizing   an iteration ends with an answer to the timed rank, so no barrier is needed before each sample
    bidirectional     both directions are busy, and the bandwidth is per direction
    windowed          it uses the case's window (messages in flight)
    aggregate         of pairs: its bandwidth is that of all pairs together, with the message rate; it uses the case's number of pairs
    uneven            it uses the case's traffic; by_rank: with a part per rank, which add up to the size, instead of per pair of ranks
    neighbours        it sends between neighbors of a ring of the ranks, for which a library may have a communicator
    is_barrier        it moves no data: no rank may leave before all have entered. Its size is 0
    creates           each iteration makes groups and frees them. It has no data to verify; its open files and memory are recorded
    result_first      in place, the result is at the start of the buffer (MPI_Reduce_scatter_block); see `on`

    For the command line and the expected bandwidth:

    command           the subcommand that runs it (default: its name); summary: its line in `--help`
    internal          it has no command, and suites cannot name it: only steps of training and of traces use it
    cpu_model         the measured reference that it is compared with on one host: "copy", "sum", "reduce" or "allreduce"
    """

    name: str
    bus_factor: Callable[[int], float]
    expected_blocks: Callable[[Place], Sequence[Block]]
    steps: Mapping[str, Steps] = msgspec.field(default_factory=dict)
    by_messages: Steps | None = None
    reduces: bool = False
    rooted: bool = False
    sends: Callable[[Place], int] = lambda x: x.count
    parts: Callable[[int], int] = lambda n: 1
    pair: bool = False
    self_synchronizing: bool = False
    one_sided: bool = False
    neighbours: bool = False
    moves: Callable[[Case], int] = lambda case: 1
    bidirectional: bool = False
    windowed: bool = False
    aggregate: bool = False
    needs: Callable[[int, Case], Reason | None] = lambda n, case: None
    command: str = ""
    cpu_model: str = "copy"
    summary: str = ""
    uneven: bool = False
    by_rank: bool = False
    is_barrier: bool = False
    creates: bool = False
    result_first: bool = False
    internal: bool = False

    def count(self, case: Case, n: int) -> int:
        """Return the elements per part for the case's size and n ranks; 0 when the size is too small for n parts."""
        return case.size_bytes // (self.parts(n) * case.dtype.size)

    def receives(self, place: Place) -> int:
        """Return how many elements this rank receives in one iteration."""
        return sum(block.count for block in self.expected_blocks(place))

    def steps_of(self, api: str, messages: bool = False) -> Steps | None:
        """Return the steps for an api, else None. `messages`: whether its binding has `send_to` etc., so that `by_messages` can be used."""
        return self.steps.get(api) or (self.by_messages if messages else None)

    def on(self, api: str, messages: bool = False) -> Operation:
        """Return the operation with `result_first` as this api's steps have it."""
        first = has_mark(self.steps_of(api, messages), "result_first")
        return self if first == self.result_first else replace(self, result_first=first)

    def in_place_shift(self, place: Place) -> int:
        """Return the offset of a rank's send elements in its receive buffer when in place, in elements (negative: before it)."""
        if self.result_first:
            return 0
        offset = 0
        for block in self.expected_blocks(place):
            if place.rank in block.sources:
                return offset - block.at
            offset += block.count
        return 0


def in_place_only(steps: Steps) -> Steps:
    """Mark steps of an api that has the operation in place only (torch's all_reduce, MPI_Bcast). Returns the marked steps."""
    return _marked(steps, "in_place_only")


def out_of_place_only(steps: Steps) -> Steps:
    """Mark steps of an api that has no in-place form of the operation. Returns the marked steps."""
    return _marked(steps, "out_of_place_only")


def result_first(steps: Steps) -> Steps:
    """Mark steps of an api that puts an in-place result at the start of the buffer (MPI_Reduce_scatter_block). Returns the marked steps."""
    return _marked(steps, "result_first")


def _marked(steps: Steps, mark: str) -> Steps:
    def marked(x: Any) -> Iterable[Call]:
        return steps(x)

    for name in ("in_place_only", "out_of_place_only", "result_first"):
        setattr(marked, name, name == mark or getattr(steps, name, False))
    return marked


def has_mark(steps: Steps | None, mark: str) -> bool:
    """Return whether steps have a mark: "in_place_only", "out_of_place_only" or "result_first"."""
    return bool(getattr(steps, mark, False))
