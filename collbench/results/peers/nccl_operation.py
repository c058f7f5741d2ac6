"""Which operation a table of nccl-tests is of, and on how many ranks: what the head says, what the figures prove, what the user gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from collbench.errors import UsageError
from collbench.operations.operation import Operation
from collbench.operations.registry import operations
from collbench.results.peers.figures import number
from collbench.results.peers.nccl_lines import Body, Head, Line
from collbench.results.peers.peer import Given
from collbench.results.peers.ranks import Printed, RankRange, rank_range, with_digits
from collbench.results.peers.rows import known_operation, short, type_name, width_of

_PROGRAMS = {
    "all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reducescatter", "broadcast": "broadcast", "reduce": "reduce",
    "alltoall": "alltoall", "alltoallv": "alltoallv", "gather": "gather", "scatter": "scatter", "sendrecv": "sendrecv",
    "hypercube": "hypercube",
}  # fmt: skip
_MOST_LINES = 16  # the fastest lines have the most digits; more of them narrow nothing


class Named(NamedTuple):
    """An operation, and where its name is from if the output does not say it: "" where it does."""

    operation: Operation
    source: str


class Ranks(NamedTuple):
    """How many ranks, as far as each source tells; `nodes` are the head's."""

    head: int | None
    counts: int | None
    factor: RankRange | None
    nodes: int | None

    @property
    def told(self) -> int | None:
        """The head's number, else the one that counts or bandwidths prove."""
        return self.head or self.counts or (self.factor.only if self.factor else None)


def operation_of(head: Head, lines: Sequence[Line], given: Given) -> Named:
    """The operation. Raises UsageError where nothing tells it, or --operation contradicts what does."""
    told = _of_program(head.program)
    if told and given.operation and told != given.operation:
        raise UsageError(f"line {lines[0].number}: the table is of {told}, and --operation says {short(given.operation)}: leave it out")
    if told or given.operation:
        return Named(known_operation(told or given.operation or ""), "" if told else "--operation")
    possible = _by_layout(head, lines)
    if len(possible) == 1:
        return Named(known_operation(possible[0]), "its columns")
    hint = _in_name(given.file)
    if hint in possible:
        return Named(known_operation(hint), "the file's name")
    which = ", ".join(possible) or "any"
    raise UsageError(f"line {lines[0].number}: nothing says which operation the table is of ({which}): say --operation NAME")


def ranks_of(head: Head, lines: Sequence[Line], operation: Operation) -> Ranks:
    """What head, counts and bandwidths tell of the ranks."""
    mine = [device for device in head.devices if device.group == head.devices[0].group] if not head.cut else []
    ranks, hosts = {device.rank for device in mine}, {device.host for device in mine}
    whole = len(mine) < len(head.devices) or ranks == set(range(len(ranks)))
    once = len(mine) == len(ranks)  # else several jobs print into each other, and which host is whose is not known
    nodes = len(hosts) if once else 1 if len(ranks) == 1 else None
    told = (len(ranks), nodes) if ranks and whole else (None, None)
    return Ranks(told[0], _by_counts(lines, operation), rank_range(operation, fastest(lines)), told[1])


def fastest(lines: Sequence[Line]) -> list[Printed]:
    """Both bandwidths of the lines with the most digits."""
    bodies = [body for line in lines for body in line.placed if body and line.size]
    best = sorted(bodies, key=_rate, reverse=True)[:_MOST_LINES]
    pairs = [(with_digits(body.algbw), with_digits(body.busbw)) for body in best]
    return [Printed(algbw, busbw) for algbw, busbw in pairs if algbw and busbw and algbw[0] > 0]


def parts_of(line: Line) -> int | None:
    """size / (count × width): how many parts of `count` elements a buffer has; None where that is no whole number."""
    width = width_of(type_name(line.dtype))
    whole = width * line.elements if width else 0
    return line.size // whole if whole and line.size % whole == 0 else None


def _of_program(program: str | None) -> str | None:
    if program is None:
        return None
    words = program.split()
    return _PROGRAMS.get(words[0].rsplit("/", 1)[-1].removesuffix("_perf")) if words else None


def _by_layout(head: Head, lines: Sequence[Line]) -> list[str]:
    """The operations that print such lines: by root, redop and count, and all-reduce by its factor."""
    line = max(lines, key=lambda each: each.size)
    whole = parts_of(line) == 1
    if line.root is not None:
        return ["reduce"] if line.redop else ["broadcast"] if whole else ["gather", "scatter"]
    if not line.redop:
        return ["sendrecv"] if whole else ["allgather", "alltoall", "alltoallv", "hypercube"]
    if not whole:
        return ["reducescatter"]
    found = rank_range(operations()["allreduce"], fastest(lines))
    if found is None or found.holds(2):  # sendrecv prints a redop that it does not use, and its factor is that of two ranks
        return ["allreduce", "sendrecv"]
    return ["allreduce"]


def _in_name(file: str) -> str:
    """The operation in a file's name, the longest: "nccl_reduce_scatter.log" has reduce and scatter in it, too."""
    plain = "".join(letter for letter in file.lower() if letter.isalnum())
    return max((name for name in _PROGRAMS.values() if name in plain), key=len, default="")


def _by_counts(lines: Sequence[Line], operation: Operation) -> int | None:
    """N where a buffer has a part for each rank. alltoallv's parts are uneven."""
    if operation.parts(4) == 1 or operation.uneven:
        return None
    found = {parts_of(line) for line in lines if line.size and line.elements}
    return found.pop() if len(found) == 1 else None


def _rate(body: Body) -> float:
    return number(body.algbw) or 0.0
