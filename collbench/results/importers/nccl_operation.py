"""Which operation a table of nccl-tests is of, and on how many ranks: printed names and lists first, then what the figures prove.

A file's name decides only between operations that print the same columns, and only where no program is named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from collbench.errors import UsageError
from collbench.operations.operation import Operation
from collbench.operations.registry import operations
from collbench.results.importers.figures import number
from collbench.results.importers.log_context import LogContext
from collbench.results.importers.nccl_lines import Body, Head, Line
from collbench.results.importers.peer import Contradiction, Given
from collbench.results.importers.ranks import Printed, RankRange, rank_range, with_digits
from collbench.results.importers.rows import Extent, known_operation, ranks_and_nodes, short, type_name, width_of

_PROGRAMS = {
    "all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reducescatter", "broadcast": "broadcast", "reduce": "reduce",
    "alltoall": "alltoall", "alltoallv": "alltoallv", "gather": "gather", "scatter": "scatter", "sendrecv": "sendrecv",
    "hypercube": "hypercube",
}  # fmt: skip
_UNCHECKED_IN_PLACE = ("sendrecv", "alltoall", "alltoallv")  # reportErrors = in_place ? 0 : 1
_MOST_LINES = 16  # the fastest lines have the most digits; more of them narrow nothing


class NameSource(Enum):
    """Where a table's operation is from."""

    PRINTED = "the program's name in its output"
    COMMAND = "the program's name on the command line"
    OPTION = "--operation"
    COLUMNS = "its columns"
    FILE = "the file's name"


class RankSource(Enum):
    """Where a table's number of ranks is from."""

    DEVICES = "the list of devices"
    COUNTS = "size and count"
    BANDWIDTHS = "busbw / algbw"
    OPTION = "--ranks"
    LIBRARY = "NCCL's log"
    LAUNCHER = "the launcher's command"


class Named(NamedTuple):
    """An operation, where its name is from, and whether --operation contradicts it."""

    operation: Operation
    source: NameSource
    contradicted: tuple[Contradiction, ...] = ()


class Ranks(NamedTuple):
    """How many ranks, as far as each source proves it; `nodes` are the head's."""

    head: int | None
    counts: int | None
    factor: RankRange | None
    nodes: int | None


class Decided(NamedTuple):
    """The ranks and nodes of a table, and where they are from."""

    extent: Extent
    source: RankSource


def operation_of(head: Head, lines: Sequence[Line], given: Given, context: LogContext) -> Named:
    """The operation. Raises UsageError where the output names an unknown program, and where nothing proves the operation."""
    where, possible = f"the table at line {lines[0].number}", _by_layout(head, lines)
    if head.program is not None:
        printed = program_operation(head.program)
        if printed is not None:
            return Named(known_operation(printed), NameSource.PRINTED, _contradiction(where, given, printed))
        if given.operation is None:
            raise UsageError(f"{where} is of '{short(head.program)}', which is not a known program of nccl-tests: use --operation NAME")
    typed = program_operation(context.program) if context.program is not None else None
    if typed is not None and typed in possible and head.program is None:
        return Named(known_operation(typed), NameSource.COMMAND, _contradiction(where, given, typed))
    if given.operation is not None:
        if given.operation not in possible:
            raise UsageError(f"{where} is not of {given.operation} (its columns fit {_listed(possible)}): leave --operation out")
        return Named(known_operation(given.operation), NameSource.OPTION)
    if len(possible) == 1:
        return Named(known_operation(possible[0]), NameSource.COLUMNS)
    hint = _in_name(given.file)
    if hint in possible and context.program is None:
        return Named(known_operation(hint), NameSource.FILE)
    raise UsageError(f"{where} does not say its operation ({_listed(possible)}): use --operation NAME")


def program_operation(program: str) -> str | None:
    """The operation of a program's name, with any suffix: "./build/all_reduce_perf_mpi" is of allreduce. None: unknown."""
    words = program.split()
    found = re.fullmatch(r"(\w+?)_perf\w*", words[0].rsplit("/", 1)[-1]) if words else None
    return _PROGRAMS.get(found[1]) if found else None


def ranks_of(head: Head, lines: Sequence[Line], operation: Operation) -> Ranks:
    """What head, counts and bandwidths prove of the ranks."""
    mine = [device for device in head.devices if device.group == head.devices[0].group] if not head.cut else []
    ranks, hosts = {device.rank for device in mine}, {device.host for device in mine}
    whole = len(mine) < len(head.devices) or ranks == set(range(len(ranks)))
    once = len(mine) == len(ranks)  # else several jobs print into each other, and which host is whose is not known
    nodes = len(hosts) if once else 1 if len(ranks) == 1 else None
    extent = (len(ranks), nodes) if ranks and whole else (None, None)
    return Ranks(extent[0], _by_counts(lines, operation), rank_range(operation, fastest(lines)), extent[1])


def decide_ranks(proven: Ranks, given: Given, head: Head, context: LogContext, where: str) -> Decided:
    """The ranks: what the output proves, else what the user gives, else what the log says of the start, if the bandwidths allow it.

    Raises UsageError where none is known, and where the bandwidths prove that the one given is wrong.
    """
    factor = proven.factor
    for known, source in (
        (proven.head, RankSource.DEVICES), (proven.counts, RankSource.COUNTS), (factor.only if factor else None, RankSource.BANDWIDTHS),
    ):  # fmt: skip
        if known is not None:
            return Decided(ranks_and_nodes(given, known, proven.nodes, where), source)
    if given.ranks is not None:
        if factor is not None and not factor.empty and not factor.holds(given.ranks):
            raise UsageError(f"{where}: busbw / algbw proves {factor} ranks, and --ranks is {given.ranks}: leave --ranks out")
        return Decided(ranks_and_nodes(given, None, proven.nodes, where), RankSource.OPTION)
    if factor is not None and factor.empty:
        raise UsageError(f"{where}: no number of ranks explains busbw / algbw: lines of another program, or an edited log")
    for known, source in ((context.ranks, RankSource.LIBRARY), (_launched(head, context), RankSource.LAUNCHER)):
        if known and (factor is None or factor.holds(known)):
            return Decided(ranks_and_nodes(given, known, proven.nodes or len(set(context.hosts)) or None, where), source)
    allowed = f" (busbw / algbw allows {factor})" if factor is not None else ""
    return Decided(ranks_and_nodes(given, None, proven.nodes, where + allowed), RankSource.OPTION)


def fastest(lines: Sequence[Line]) -> list[Printed]:
    """Both bandwidths of the lines with the most digits."""
    bodies = [body for line in lines for body in line.placed if body and line.size]
    best = sorted(bodies, key=_rate, reverse=True)[:_MOST_LINES]
    pairs = [(with_digits(body.algbw), with_digits(body.busbw)) for body in best]
    return [Printed(algbw, busbw) for algbw, busbw in pairs if algbw and busbw and algbw[0] > 0]


def parts_of(line: Line) -> int | None:
    """size / (count × width): how many parts of `count` elements a buffer has; None where that is not a whole number."""
    width = width_of(type_name(line.dtype))
    whole = width * line.elements if width else 0
    return line.size // whole if whole and line.size % whole == 0 else None


def _contradiction(where: str, given: Given, printed: str) -> tuple[Contradiction, ...]:
    if given.operation is None or given.operation == printed:
        return ()
    return (Contradiction(where, "--operation", given.operation, printed),)


def _launched(head: Head, context: LogContext) -> int | None:
    """Processes × threads × GPUs."""
    if context.processes is None:
        return None
    gpus = head.numbers.get("gpus") or context.option("-g", "--ngpus") or 1
    threads = head.numbers.get("threads") or context.option("-t", "--nthreads") or 1
    return context.processes * gpus * threads


def _by_layout(head: Head, lines: Sequence[Line]) -> list[str]:
    """The operations that print such lines: by root, redop and count, by what is checked in place, and all-reduce by its factor."""
    line = max(lines, key=lambda each: each.size)
    whole = parts_of(line) == 1
    if line.root is not None:
        return ["reduce"] if line.redop else ["broadcast"] if whole else ["gather", "scatter"]
    if line.redop and not whole:
        return ["reducescatter"]
    if not line.redop:
        return _as_checked(head, lines, ["sendrecv"] if whole else ["allgather", "alltoall", "alltoallv", "hypercube"])
    found = rank_range(operations()["allreduce"], fastest(lines))
    if found is None or found.holds(2):  # sendrecv prints a redop that it does not use, and its factor is that of two ranks
        return _as_checked(head, lines, ["allreduce", "sendrecv"])
    return ["allreduce"]


def _as_checked(head: Head, lines: Sequence[Line], possible: list[str]) -> list[str]:
    """Those that fit the columns "#wrong": three programs leave it open in place, since all versions; the others fill it."""
    checked = [line for line in lines if line.placed[0] and line.placed[1] and number(line.placed[0].wrong) is not None]
    if head.old is not False or not checked:
        return possible
    filled = {number(line.placed[1].wrong) is not None for line in checked if line.placed[1]}
    if len(filled) > 1:
        return possible
    unchecked = filled == {False}
    return [name for name in possible if (name in _UNCHECKED_IN_PLACE) == unchecked] or possible


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


def _listed(possible: Sequence[str]) -> str:
    return ", ".join(possible) or "any"


def _rate(body: Body) -> float:
    return number(body.algbw) or 0.0
