"""Read nccl-tests' and rccl-tests' text, among the lines of mpirun, srun and NCCL, and their JSON (source: src/util.cu, 2.0 to 2.19).

Tables may be of any version, with or without their head. The JSON of -J FILE has the ranks' devices, arguments and environment. With
-I 1 it has the time of each iteration, the slowest process's and each process's: these become samples.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.machine.readers.nccl_facts import dotted
from collbench.operations.operation import Operation
from collbench.operations.registry import operations
from collbench.plugins.importers.importer import RANKS_DOUBTFUL, Arrays, Contradiction, ImportedTable, Importer, UserInput, split_prefix
from collbench.plugins.importers.log_context import Contexts, LogContext, last_option, start_facts, with_hosts
from collbench.plugins.importers.notes import (
    AveragedGroups,
    ImportDoubt,
    InterleavedJobs,
    Missing,
    MissingItem,
    NotInOutput,
    OutOfBoundsValues,
    RepeatedCases,
    SingleRankTable,
    SkippedLines,
    SkippedReason,
    lacks,
)
from collbench.plugins.importers.rows import (
    JobExtent,
    PrintedRates,
    Quantiles,
    RankRange,
    RowKind,
    Samples,
    as_count,
    contradiction,
    is_size,
    is_time,
    operation_named,
    parse_number,
    printed_rates,
    rank_mismatch,
    rank_range,
    ranks_and_nodes,
    rate_mismatch,
    sampled,
    short,
    type_name,
    width_of,
)
from collbench.results.environment import recorded_environment
from collbench.results.row import Row
from collbench.results.store import parse_object
from collbench.units import plural
from collbench.untrusted import dict_of, list_of

_DATE = re.compile(r"\d{4}-\d\d-\d\d$")
_VERSION = re.compile(r"#\s*([nr]ccl)-tests version (\S+)(?:.*?[nr]ccl-library=(\d+))?")
_RCCL_VERSION = re.compile(r"(.{0,120}?)#?\s*\brccl-tests: Version (\S+)")
_PROGRAM = re.compile(r"Collective test (?:starting|concluded): (.+)")
_DEVICE = re.compile(
    r"#?\s*Rank\s+(\d{1,7}) (?:Group\s+(\d{1,7}) )?Pid\s+(\d{1,10}) on\s+(\S{1,256}) device\s+(\d{1,4}) \[([^\]]{0,40})\] ?(.{0,200})"
)
_NUMBERS = {
    "gpus": re.compile(r"nGpus (\d+)"), "threads": re.compile(r"nThread (\d+)"), "warmup": re.compile(r"warmup iters: (\d+)"),
    "iterations": re.compile(r"(?<!warmup )(?<!agg )iters: (\d+)"), "calls": re.compile(r"agg iters: (\d+)"),
    "validation": re.compile(r"validation: (\d+)"), "graph": re.compile(r"graph: (\d+)"),
}  # fmt: skip
_ORDER = re.compile(r"\b(?:cpu)?time\s+algbw\s+busbw\b")
_UNITS = ("(B)", "(elements)", "(us)", "(GB/s)", "(%)")
_OUT_OF_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d+)")
# Web pages and Markdown interpret the # as a heading and remove it.
_UNMARKED = re.compile(
    r"\s*(?:nThread \d|Using devices|Rank\s+\d{1,7}\s.{0,80}Pid\s+\d|Out of bounds values\s*:|Avg bus bandwidth\s*:"
    r"|Collective test (?:starting|concluded):|[nr]ccl-tests version \d|size\s+count\s+(?:\(elements\)\s+)?type\s)"
)
_OLD_ERROR = re.compile(r"\d(?:\.\d+)?e-\d+|0e\+00|\d*\.\d+")
_LONGEST = 4096  # characters of a line of a table or a comment
_BODY = 4  # time, algbw, busbw, #wrong
_WIDE = 8  # with -I 1 also i_min, i_max, i_p99, i_cv%
_FIGURE = re.compile(r"[-+]?[\d.]{1,40}(?:e[-+]?\d{1,4})?|N/A|-?nan|inf")
_CUT = re.compile(r"\s*[\d,.]{1,18}\s+[\d,.]{1,18}\s+(?:b?float|double|half|u?int)\w{0,12}\s")
_GAP = re.compile(r"\s{30,}")  # in place of missing out-of-place figures


class Body(NamedTuple):
    """The printed figures of one placement. per_iteration (-I 1): i_min, i_max, i_p99, i_cv%; in JSON also p95."""

    time: str
    algbw: str
    busbw: str
    wrong: str
    per_iteration: tuple[str, ...] = ()


class TableLine(NamedTuple):
    """One line of a table. `placed` has the out-of-place figures, then the in-place ones. redop and root are None if not printed."""

    number: int
    size: int
    elements: int
    dtype: str
    redop: str | None
    root: int | None
    placed: tuple[Body | None, Body | None]

    @property
    def case(self) -> tuple[int, str, str | None, int | None]:
        """Return what distinguishes it from the other rows of its table."""
        return self.size, self.dtype, self.redop, self.root


class PrintedDevice(NamedTuple):
    """A rank's line under "Using devices"."""

    rank: int
    group: int
    host: str
    device: int
    address: str
    name: str


class Head(msgspec.Struct):
    """The values around a table.

    starts    how many heads were printed before it: more than one means jobs that print into each other
    numbers   warmup, iterations, calls (per iteration), validation, graph, as far as they are printed
    blocking  -z: 1 to 3
    old       whether the fourth column is the largest error instead of the number of wrong elements; None without a header
    unknown_columns  a heading or unit of the columns that is not read
    bad       "Out of bounds values"
    cut       whether the list of devices was too long for its buffer
    averaged  how the ranks' times are combined (-a); the text does not contain it, and the default is their average
    """

    tool: str = "nccl-tests"
    version: str | None = None
    library: str | None = None
    program: str | None = None
    starts: int = 0
    numbers: dict[str, int] = msgspec.field(default_factory=dict)
    blocking: int = 0
    wide: bool = False
    cpu_time: bool = False
    unknown_columns: str = ""
    old: bool | None = None
    bad: int | None = None
    devices: list[PrintedDevice] = msgspec.field(default_factory=list)
    cut: bool = False
    averaged: str = "averaged over the ranks"
    environment: dict[str, str] = msgspec.field(default_factory=dict)

    def take(self, text: str) -> None:
        """Read a line that begins with #; an unknown one is ignored."""
        if device := _DEVICE.match(text):
            rank, group, _, host, number, address, name = device.groups()
            self.devices.append(PrintedDevice(int(rank), int(group or 0), host, int(number), address, name.strip()))
        elif version := _VERSION.match(text):
            library = version[3]
            self.tool = f"{version[1]}-tests"
            self.version = version[2]
            self.library = dotted(int(library)) if library and len(library) < 10 else None
        elif text.startswith("# nThread"):
            self.starts += 1
            matches = {name: form.search(text) for name, form in _NUMBERS.items()}
            self.numbers |= {name: int(match[1][:9]) for name, match in matches.items() if match}
        elif program := _PROGRAM.search(text):
            self.program = program[1].strip()
        elif bad := _OUT_OF_BOUNDS.search(text):
            self.bad = int(bad[1][:18])
        elif "Blocking Enabled" in text:
            self.blocking = 2 if "no barrier" in text else 1
            if "outer iteration" in text:
                self.blocking = 3
        elif {"algbw", "busbw"} <= (words := set(text.split())):
            self.wide = "i_min" in words
            self.cpu_time = "cputime" in words
            self.old = bool({"error", "res"} & words)
            if not _ORDER.search(text):
                self.unknown_columns = "time, algbw and busbw in another order"
        elif (units := text[1:].split()) and all(word[:1] == "(" and word[-1:] == ")" for word in units):
            self.unknown_columns = next((f"figures in {short(unit)}" for unit in units if unit not in _UNITS), self.unknown_columns)
        elif text.rstrip().endswith("...") and self.devices:
            self.cut = True


def split_line(line: str) -> tuple[str, str] | None:
    """Return (the writer's tag, the line); None for a line that neither is a comment nor begins with a number."""
    writer, text = split_prefix(line)
    first = text.lstrip()[:1] if len(text) < _LONGEST else ""
    if first == "#" or (first.isalpha() and _UNMARKED.match(text)):
        return writer, f"# {text.strip()}" if first != "#" else text.lstrip()
    return (writer, text) if first.isdigit() else None


def parse_line(number: int, text: str, wide: bool) -> TableLine | None:
    """Return a line of the table; None for any other line. wide: the header names the columns of -I 1.

    Older versions omit redop and root, or print an empty redop.
    """
    words = text.split()
    if len(words) < 3 + _BODY or not (words[0].isdecimal() and words[1].isdecimal()) or len(words[0]) > 18 or len(words[1]) > 18:
        return None
    has_redop = words[3][0].isalpha() and words[3][:3] not in ("N/A", "nan", "inf")
    figures = words[4:] if has_redop else words[3:]
    if len(words) > 8 and _DATE.match(words[-2]):
        figures = figures[:-2]
    root = figures.pop(0) if len(figures) % _BODY == 1 else ""
    width = _WIDE if wide or len(figures) == 2 * _WIDE else _BODY
    if len(figures) not in (width, 2 * width) or words[2][0] in "-.0123456789" or (root and not root.lstrip("-").isdecimal()):
        return None
    if not all(_FIGURE.fullmatch(word) for word in figures):
        return None
    placed = _body(figures[:width]), _body(figures[width:])
    if len(figures) == width and _GAP.search(text.rstrip()):  # an incomplete line, or a replay, which has no out-of-place figures
        placed = None, placed[0]
    redop = words[3] if has_redop and words[3] != "none" else None
    return TableLine(number, int(words[0]), int(words[1]), words[2], redop, _root(root), placed)


def _body(words: list[str]) -> Body | None:
    return None if not words or words[0] == "N/A" else Body(words[0], words[1], words[2], words[3], tuple(words[_BODY:]))


def _root(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 9 else None


PROGRAMS = {
    "all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reducescatter", "broadcast": "broadcast", "reduce": "reduce",
    "alltoall": "alltoall", "alltoallv": "alltoallv", "gather": "gather", "scatter": "scatter", "sendrecv": "sendrecv",
    "hypercube": "hypercube",
}  # fmt: skip
_UNCHECKED_IN_PLACE = ("sendrecv", "alltoall", "alltoallv")  # reportErrors = in_place ? 0 : 1
_MOST_LINES = 16  # the fastest lines have the most digits; more lines do not reduce the range


class NamedOperation(NamedTuple):
    """An operation, the program that printed the table if it is known, and the contradiction with --operation.

    source    of the operation: "its columns"; "" if it is that of the program
    """

    operation: Operation
    program: str | None
    source: str = ""
    contradicted: tuple[Contradiction, ...] = ()


class DecidedRanks(NamedTuple):
    """The ranks and nodes of a table, with the source of their number: "--ranks"; factor, counts: what bandwidths and counts prove."""

    extent: JobExtent
    source: str
    factor: RankRange | None
    counts: int | None

    @property
    def doubtful(self) -> bool:
        """Whether the bandwidths of the table do not fit the number of ranks."""
        return self.factor is not None and not self.factor.holds(self.extent.ranks)


def operation_of(head: Head, lines: Sequence[TableLine], user_input: UserInput, context: LogContext) -> NamedOperation:
    """Return the operation. Raises UsageError if the output names an unknown program, or if nothing proves the operation."""
    where = f"the table at line {lines[0].number}"
    possible = _by_layout(head, lines)
    listed = ", ".join(possible) or "any"
    program = head.program if head.program is not None else context.program
    operation = program_operation(program) if program is not None else None
    if operation is not None and (head.program is not None or operation in possible):
        contradicted = contradiction(where, "operation", user_input.operation, operation)
        return NamedOperation(operation_named(operation), program, contradicted=contradicted)
    if user_input.operation is not None:
        if user_input.operation not in possible:
            raise UsageError(f"{where}: the columns do not fit --operation {user_input.operation} (they fit {listed}): omit it")
        return NamedOperation(operation_named(user_input.operation), head.program, "--operation")
    if head.program is not None:
        raise UsageError(f"{where}: unknown program '{short(head.program)}' of nccl-tests: use --operation NAME")
    if len(possible) == 1:
        return NamedOperation(operation_named(possible[0]), None, "its columns")
    # The file's name decides only here. The longest one: "nccl_reduce_scatter.log" also contains reduce and scatter.
    file = "".join(letter for letter in user_input.file.lower() if letter.isalnum())
    hint = max((name for name in PROGRAMS.values() if name in file), key=len, default="")
    if hint in possible and context.program is None:
        return NamedOperation(operation_named(hint), None, "the file's name")
    raise UsageError(f"{where}: the operation is unknown ({listed}): use --operation NAME")


def program_operation(program: str) -> str | None:
    """Return the operation of a program's name with any suffix: allreduce for "./build/all_reduce_perf_mpi". None: unknown."""
    words = program.split()
    match = re.fullmatch(r"(\w+?)_perf\w*", words[0].rsplit("/", 1)[-1]) if words else None
    return PROGRAMS.get(match[1]) if match else None


def ranks_of(head: Head, lines: Sequence[TableLine], operation: Operation, user_input: UserInput, context: LogContext) -> DecidedRanks:
    """Return the ranks: those that the output proves, else the user's, else the log's for this start, if the bandwidths allow them.

    Raises UsageError if the number is unknown, or if the bandwidths prove that the given one is wrong.
    """
    where = f"the table at line {lines[0].number}"
    devices = [device for device in head.devices if device.group == head.devices[0].group] if not head.cut else []
    ranks = {device.rank for device in devices}
    is_known = bool(ranks) and (len(devices) < len(head.devices) or ranks == set(range(len(ranks))))
    nodes = None
    if is_known and len(devices) == len(ranks):  # otherwise several jobs print into each other, and the host of each rank is unknown
        nodes = len({device.host for device in devices})
    elif is_known and len(ranks) == 1:
        nodes = 1
    counts = None
    if operation.parts(4) > 1 and not operation.uneven:  # a buffer has a part for each rank; alltoallv's parts are uneven
        parts = {parts_of(line) for line in lines if line.size and line.elements}
        counts = parts.pop() if len(parts) == 1 else None
    factor = rank_range(operation, fastest(lines))

    def decided(number: int | None, source: str, nodes: int | None = nodes, where: str = where) -> DecidedRanks:
        return DecidedRanks(ranks_and_nodes(user_input, number, nodes, where), source, factor, counts)

    only = factor.only if factor else None
    listed = len(ranks) if is_known else None
    for number, source in ((listed, "the list of devices"), (counts, "size and count"), (only, "busbw / algbw")):
        if number is not None:
            return decided(number, source)
    if user_input.ranks is not None:
        if factor is not None and not factor.empty and not factor.holds(user_input.ranks):
            raise UsageError(f"{where}: busbw / algbw fits {factor} ranks, not --ranks {user_input.ranks}: omit --ranks")
        return decided(None, "--ranks")
    if factor is not None and factor.empty:
        raise UsageError(f"{where}: no number of ranks fits busbw / algbw: the lines are of another program, or the log was edited")
    gpus = head.numbers.get("gpus") or context.option("-g", "--ngpus") or 1
    threads = head.numbers.get("threads") or context.option("-t", "--nthreads") or 1
    launched = None if context.processes is None else context.processes * gpus * threads
    for number, source in ((context.ranks, "NCCL's log"), (launched, "the launcher's command")):
        if number and (factor is None or factor.holds(number)):
            return decided(number, source, nodes or len(set(context.hosts)) or None)
    return decided(None, "--ranks", where=where + (f" (busbw / algbw allows {factor})" if factor is not None else ""))


def fastest(lines: Sequence[TableLine]) -> list[PrintedRates]:
    """Return both bandwidths of the lines with the most digits."""
    bodies = [body for line in lines for body in line.placed if body and line.size]
    best = sorted(bodies, key=lambda body: parse_number(body.algbw) or 0.0, reverse=True)[:_MOST_LINES]
    return printed_rates((body.algbw, body.busbw) for body in best)


def parts_of(line: TableLine) -> int | None:
    """Return size / (count × width), the number of parts of `count` elements in a buffer; None if it is not an integer."""
    width = width_of(type_name(line.dtype))
    part = width * line.elements if width else 0
    return line.size // part if part and line.size % part == 0 else None


def _by_layout(head: Head, lines: Sequence[TableLine]) -> list[str]:
    """Return the operations that print such lines, by root, redop and count, by what is checked in place, and by all-reduce's factor."""
    line = max(lines, key=lambda line: line.size)
    is_whole = parts_of(line) == 1
    if line.root is not None and line.redop:
        return ["reduce"]
    if line.root is not None:
        return ["broadcast"] if is_whole else ["gather", "scatter"]
    if line.redop and not is_whole:
        return ["reducescatter"]
    if not line.redop:
        return _as_checked(head, lines, ["sendrecv"] if is_whole else ["allgather", "alltoall", "alltoallv", "hypercube"])
    ranks = rank_range(operations()["allreduce"], fastest(lines))
    if ranks is None or ranks.holds(2):  # sendrecv prints a redop that it does not use, and has the factor of two ranks
        return _as_checked(head, lines, ["allreduce", "sendrecv"])
    return ["allreduce"]


def _as_checked(head: Head, lines: Sequence[TableLine], possible: list[str]) -> list[str]:
    """Return those that fit the columns "#wrong". Three programs never print it in place; the others do."""
    checked = [line for line in lines if line.placed[0] and line.placed[1] and parse_number(line.placed[0].wrong) is not None]
    if head.old is not False or not checked:
        return possible
    filled = {parse_number(line.placed[1].wrong) is not None for line in checked if line.placed[1]}
    if len(filled) > 1:
        return possible
    unchecked = filled == {False}
    return [name for name in possible if (name in _UNCHECKED_IN_PLACE) == unchecked] or possible


_MOST_WRONG = 2**62
_BLOCKED = {1: ", waited for and met after each", 2: ", waited for after each", 3: ", the barrier left out"}


class NcclTestsBlock(msgspec.Struct, frozen=True):
    """A head with the lines below it.

    samples    the time of each iteration in seconds, by (line, in place), where the tool prints them
    in_log     whether it is among the lines of a log
    bad        numbers of lines that begin as those of a table, and are cut or damaged
    """

    head: Head
    lines: list[TableLine]
    samples: Mapping[tuple[int, bool], Samples] = msgspec.field(default_factory=dict)
    in_log: bool = True
    bad: Sequence[int] = ()

    @property
    def number(self) -> int:
        """Return the number of the first line of the table in its file."""
        return self.lines[0].number if self.lines else 0


def _runs(block: NcclTestsBlock, user_input: UserInput, contexts: Contexts) -> Iterator[ImportedTable]:
    """Yield the runs in a block that have a row, with the values of the log for their start.

    Raises UsageError if the operation or the ranks are unknown.
    """
    context = contexts.at(block.lines[-1].number) if block.in_log else LogContext()
    moved = [line for line in block.lines if is_size(line.size)]
    passes = _side_by_side(moved, block.head.starts) if block.head.starts > 1 else _in_turn(moved)
    skipped: list[Missing] = []
    if block.bad:
        skipped.append(SkippedLines(len(block.bad), SkippedReason.INCOMPLETE, block.bad[0]))
    if len(moved) < len(block.lines):
        skipped.append(SkippedLines(len(block.lines) - len(moved), SkippedReason.SIZE_ZERO))
    twice = len(moved) - len({line.case for line in moved})
    if len(passes) == 1 and twice:
        skipped.append(SkippedLines(twice, SkippedReason.SIZE_REPEATED))
    for lines in passes:
        run = _run(block, lines, user_input, context)
        if run is None:
            continue
        doubts = list(run.doubts)
        if block.head.starts > 1:
            doubts.append(InterleavedJobs(block.head.starts))
        elif len(passes) > 1:
            doubts.append(RepeatedCases(len(passes), has_header=bool(block.head.starts)))
        yield replace(run, missing=[*run.missing, *skipped], doubts=doubts)


def _in_turn(lines: Sequence[TableLine]) -> list[list[TableLine]]:
    """Return the lines by repetition: a case that occurs again begins the next one. Sizes rounded to the previous one are left out."""
    passes: list[list[TableLine]] = []
    seen: set[Any] = set()
    for line in lines:
        if passes and line.case in seen and line.case == passes[-1][-1].case and parts_of(line) != 1:
            continue
        if not passes or line.case in seen:
            passes.append([])
            seen = set()
        passes[-1].append(line)
        seen.add(line.case)
    return passes


def _side_by_side(lines: Sequence[TableLine], jobs: int) -> list[list[TableLine]]:
    """Return the lines of jobs that print into each other: each line goes to the first job that lacks its case."""
    passes: list[dict[Any, TableLine]] = [{} for _ in range(jobs)]
    for line in lines:
        free = next((lines_by_case for lines_by_case in passes if line.case not in lines_by_case), None)
        if free is None:
            free = {}
            passes.append(free)
        free[line.case] = line
    return [list(lines_by_case.values()) for lines_by_case in passes if lines_by_case]


def _run(block: NcclTestsBlock, lines: Sequence[TableLine], user_input: UserInput, context: LogContext) -> ImportedTable | None:
    head = block.head
    if head.cpu_time:
        raise UsageError(f"line {lines[0].number}: the times are CPU times for starting the calls (-C 1): run it again without -C 1")
    if head.unknown_columns:
        raise UsageError(f"line {lines[0].number}: the table has {head.unknown_columns}: use the output of a known version")
    bodies = [body for line in lines for body in line.placed if body]
    if head.old is None and any(_OLD_ERROR.fullmatch(body.wrong) for body in bodies):
        head = replace(head, old=True)  # without a header, the fourth column shows that it is the largest error: "2e-01", "0e+00"
    named_operation = operation_of(head, lines, user_input, context)
    operation = named_operation.operation
    ranks = ranks_of(head, lines, operation, user_input, context)
    rows, arrays = _rows(replace(block, head=head), lines, operation, ranks)
    if not rows:
        return None
    host_of = {device.rank: short(device.host) for device in head.devices}
    is_complete = len(host_of) == len(head.devices) and sorted(host_of) == list(range(len(host_of))) and not head.cut
    hosts = [host_of[rank] for rank in sorted(host_of)] if is_complete else []
    facts: dict[str, Any] = {**start_facts(context), **head.numbers}
    library = context.library[1] if context.library else head.library
    if library:
        facts["library"] = library
    if head.devices:
        facts["devices"] = [
            {"rank": gpu.rank, "host": short(gpu.host), "device": gpu.device, "gpu": short(gpu.address), "name": short(gpu.name)}
            for gpu in head.devices
        ]
    environment = {**context.environment, **head.environment}
    if environment:
        facts["environment"] = environment
    program = named_operation.program or operation.name
    return ImportedTable(
        head.tool, short(head.version) if head.version else None, short(program.rsplit("/", 1)[-1]), rows[0].evidence["statistic"], rows,
        hosts or with_hosts(context, ranks.extent.ranks), facts, list(_missing(head, named_operation, ranks, bodies, arrays)),
        list(_doubts(head, lines, operation, ranks)), (*named_operation.contradicted, *ranks.extent.contradicted), arrays,
    )  # fmt: skip


def _rows(
    block: NcclTestsBlock, lines: Sequence[TableLine], operation: Operation, decided: DecidedRanks
) -> tuple[list[Row], dict[int, Arrays]]:
    head = block.head
    rows: list[Row] = []
    arrays: dict[int, Arrays] = {}
    kinds: dict[Any, RowKind] = {}
    for line in lines:
        for in_place, body in enumerate(line.placed):
            micros = parse_number(body.time) if body else None
            if body is None or not micros or not is_time(micros / 1e6):
                continue
            key = (line.dtype, line.redop, line.root, in_place)
            kind = kinds.get(key) or kinds.setdefault(key, _kind(head, line, decided, operation, bool(in_place)))
            wrong = _wrong(head, body.wrong)
            size = _size(line, operation, decided.extent.ranks)
            row = kind.row(
                size, micros / 1e6, line=line.number, count=line.elements, spread=_spread(head, body),
                checked=0 if wrong is None else max(1, head.numbers.get("validation", 1)), wrong=wrong,
            )  # fmt: skip
            samples = block.samples.get((line.number, bool(in_place)))
            if samples is not None:
                row, arrays[len(rows)] = sampled(row, samples, kind)
            if decided.doubtful:
                row = replace(row, flags=(*row.flags, RANKS_DOUBTFUL))
            if wrong or (wrong is None and head.bad):
                row = replace(row, flags=(*row.flags, "wrong_data"))
            rows.append(row)
    if rows and head.bad and block.lines[-1] is lines[-1] and not any(row.wrong for row in rows):
        reason = f"wrong data: {plural(head.bad, 'value')} out of bounds, in a case that the columns do not show"
        unknown_case = next(iter(kinds.values())).without_figures(0, 0, lines[-1].number, reason)
        rows.append(replace(unknown_case, checked=1, wrong=head.bad))
    return rows, arrays


def _kind(head: Head, line: TableLine, decided: DecidedRanks, operation: Operation, in_place: bool) -> RowKind:
    library = "rccl" if head.tool == "rccl-tests" else "nccl"
    iterations = head.numbers.get("iterations") or "the"
    # src/common.cu: BenchTime
    statistic = f"the mean over {iterations} iterations{_of_calls(head)}{_BLOCKED.get(head.blocking, '')}, {head.averaged}"
    mode = "isolated" if head.blocking in (1, 2) else "pipelined"
    if head.numbers.get("graph"):
        mode = "graph"
    return RowKind(
        operation.name, library, "nccl", type_name(line.dtype), decided.extent.ranks, decided.extent.nodes, statistic,
        "cuda" if library == "nccl" else "rocm", short(line.redop) if operation.reduces and line.redop else None,
        line.root if operation.rooted else None, mode, in_place, "rotating",
        evidence={name: head.numbers[name] for name in ("warmup", "iterations") if name in head.numbers},
    )  # fmt: skip


def _of_calls(head: Head) -> str:
    calls = head.numbers.get("calls", 1)
    return f" of {calls} calls" if calls > 1 else ""


def _size(line: TableLine, operation: Operation, ranks: int) -> int:
    """Return the size by collbench's definition: for a hypercube, the data of the other ranks (src/hypercube.cu)."""
    return line.size // ranks * (ranks - 1) if operation.name == "hypercube" and ranks > 1 else line.size


def _spread(head: Head, body: Body) -> Quantiles:
    """Return the quantiles of the iterations, per call: with -m, each iteration makes several calls."""
    if not body.per_iteration:
        return Quantiles()
    calls = max(1, head.numbers.get("calls", 1))
    micros = [parse_number(text) for text in (*body.per_iteration, "")[:5]]
    least, most, p99, _, p95 = (number / 1e6 / calls if number is not None else None for number in micros)
    return Quantiles(least, p95, p99, most)


def _wrong(head: Head, text: str) -> int | None:
    """Return the wrong elements. The old fourth column is the largest error, which proves right data only together with the foot."""
    number = parse_number(text)
    if number is None or head.numbers.get("validation") == 0:
        return None
    if head.old:
        return 0 if head.bad == 0 else None
    return int(min(number, _MOST_WRONG))


def _missing(
    head: Head, operation: NamedOperation, ranks: DecidedRanks, bodies: Sequence[Body], arrays: Mapping[int, Arrays]
) -> Iterator[Missing]:
    if operation.source:
        yield NotInOutput(MissingItem.PROGRAM, source=f"the operation is from {operation.source}")
    if ranks.extent.nodes is None:
        yield NotInOutput(MissingItem.NODES)
    if ranks.source != "the list of devices":
        yield NotInOutput(MissingItem.DEVICES, source=f"the number of ranks is from {ranks.source}")
    if not arrays and not any(body.per_iteration for body in bodies):
        yield from lacks(MissingItem.SAMPLES, MissingItem.INTERVAL, MissingItem.PERCENTILES)
    if not any("all_s" in arrays_of_row for arrays_of_row in arrays.values()):
        yield NotInOutput(MissingItem.RANK_DATA)
    if head.numbers.get("validation") == 0:
        yield NotInOutput(MissingItem.VERIFICATION)


def _doubts(head: Head, lines: Sequence[TableLine], operation: Operation, decided: DecidedRanks) -> Iterator[ImportDoubt]:
    ranks = decided.extent.ranks
    if decided.doubtful and decided.factor is not None:
        yield rank_mismatch("busbw / algbw", decided.factor, ranks, operation.name)
    if decided.counts is not None and decided.counts != ranks:
        yield rank_mismatch("size / count", RankRange(decided.counts, decided.counts), ranks, operation.name)
    if ranks == 1 and not decided.doubtful:
        yield SingleRankTable()
    groups = {device.group for device in head.devices}
    if len(groups) > 1:
        yield AveragedGroups(len(groups))
    if head.bad:
        yield OutOfBoundsValues(head.bad)
    placed = [(line, body) for line in lines for body in line.placed if body]
    line, body = max(placed, key=lambda line_and_body: parse_number(line_and_body[1].algbw) or 0.0)
    mismatch = rate_mismatch(_size(line, operation, ranks), body.algbw, body.time, line.number)
    if mismatch:
        yield mismatch


_NEWEST = 3
_AVERAGES = {"0": "of rank 0", "1": "averaged over the ranks", "2": "the least of the ranks", "3": "the most of the ranks"}
_JSON_NUMBERS = {
    "warmup": "warmup_iters", "iterations": "iterations", "calls": "aggregated_iterations", "validation": "validation", "graph": "graph",
    "threads": "nthreads", "gpus": "ngpus",
}  # fmt: skip
_PLACES = ("out_of_place", "in_place")
_PER_ITERATION = ("min_us", "max_us", "p99_us", "cv_pct", "p95_us")


def knows_json(lines: Sequence[str]) -> bool:
    """Return whether the lines are an object with keys that only nccl-tests writes."""
    first = next((line for line in lines if line.strip()), "").lstrip()
    return first.startswith("{") and any('"nccl_version"' in line or '"alg_bw"' in line for line in lines)


def _json_block(lines: Sequence[str]) -> list[NcclTestsBlock]:
    """Return the only table. Raises UsageError if the text is not such an object or is incomplete."""
    try:
        document = parse_object("\n".join(lines).encode())
    except ValueError as error:
        raise UsageError(f"the file is {error}: the program was stopped while it wrote the file; import its text output instead") from error
    version = document.get("version")
    if not isinstance(version, int) or not 0 < version <= _NEWEST:
        raise UsageError(f"unknown version {short(str(version)[:20])} of nccl-tests' JSON: versions up to {_NEWEST} are supported")
    head = _head(document)
    lines_of_table: list[TableLine] = []
    samples: dict[tuple[int, bool], Samples] = {}
    for number, result in enumerate(list_of(document.get("results"), dict), 1):
        line = _line(number, result)
        if line:
            lines_of_table.append(line)
            samples.update(_samples(number, result, head))
    return [NcclTestsBlock(head, lines_of_table, samples, in_log=False)]


def _samples(number: int, result: Mapping[str, Any], head: Head) -> Iterator[tuple[tuple[int, bool], Samples]]:
    """Yield the times per call of the counted iterations, by (line, in place)."""
    calls = max(1, head.numbers.get("calls", 1))
    for in_place, place in enumerate(_PLACES):
        place_json = dict_of(result.get(f"{place}_per_iter"))
        skipped = as_count(place_json.get("skipped_iterations")) or 0
        slowest = _times(place_json.get("times_us"), skipped, calls)
        iterations = as_count(result.get("actual_iterations")) or head.numbers.get("iterations", 0)
        if len(slowest) < 2 or len(slowest) != iterations - skipped:
            continue  # without them the printed summary is still right
        times_by_process = [_times(micros, skipped, calls) for micros in list_of(place_json.get("per_process_max_times_us"), object)]
        # A process's time is that of its slowest GPU: with several GPUs per process, ranks have no times of their own.
        has_one_rank_each = len(times_by_process) == len(head.devices) and all(len(times) == len(slowest) for times in times_by_process)
        per_rank = np.array(times_by_process) if has_one_rank_each and times_by_process else None
        statistic = f"the median over {len(slowest)} iterations{_of_calls(head)} of the slowest rank"
        yield (number, bool(in_place)), Samples(np.array(slowest), statistic, per_rank)


def _times(value: Any, skipped: int, calls: int) -> list[float]:
    """Return seconds per call; [] if a time is not valid."""
    micros = list_of(value, object)[skipped:]
    times = [number / 1e6 / calls for number in micros if isinstance(number, int | float) and not isinstance(number, bool)]
    return times if len(times) == len(micros) and all(is_time(time) for time in times) else []


def _head(document: Mapping[str, Any]) -> Head:
    config = dict_of(document.get("config"))
    arguments = list_of(document.get("args"), str)
    head = Head(program=arguments[0] if arguments else None, starts=1, old=False)
    numbers = {name: as_count(config.get(key)) for name, key in _JSON_NUMBERS.items()}
    head.numbers = {name: number for name, number in numbers.items() if number is not None}
    head.cpu_time = any("cpu_time" in dict_of(result.get(place)) for result in list_of(document.get("results"), dict) for place in _PLACES)
    if config.get("blocking_collectives") == "true":  # JSON has only whether -z was given
        blocking = last_option(arguments, "-z", "--blocking")
        head.blocking = int(blocking) if blocking in ("1", "2", "3") else 1
    head.averaged = _AVERAGES.get(last_option(arguments, "-a", "--average") or "1", _AVERAGES["1"])
    head.devices = list(filter(None, map(_device, list_of(config.get("devices"), dict))))
    head.bad = as_count(dict_of(document.get("out_of_bounds")).get("count"))
    code = as_count(document.get("nccl_version"))
    head.library = dotted(code) if code else None
    pairs = (word.partition("=") for word in list_of(document.get("env"), str))
    head.environment = recorded_environment({name: text for name, _, text in pairs if name})
    return head


def _line(number: int, result: Mapping[str, Any]) -> TableLine | None:
    size, count = (as_count(result.get(name)) for name in ("size", "count"))
    dtype = result.get("type")
    if size is None or count is None or not isinstance(dtype, str):
        return None
    redop = result.get("redop")
    if not isinstance(redop, str) or redop in ("", "none"):
        redop = None
    root = _root(str(result.get("root")).strip())
    out_of_place, in_place = (_body_json(dict_of(result.get(place)), dict_of(result.get(f"{place}_per_iter"))) for place in _PLACES)
    return TableLine(number, size, count, dtype, redop, root, (out_of_place, in_place))


def _body_json(figures: Mapping[str, Any], per_iteration: Mapping[str, Any]) -> Body | None:
    """Return the figures in the form of the text output, with the six digits that JSON has."""
    if not figures:
        return None
    time, algbw, busbw, wrong = (_figure(figures.get(name)) for name in ("time", "alg_bw", "bus_bw", "nwrong"))
    return Body(time, algbw, busbw, wrong, tuple(_figure(per_iteration.get(name)) for name in _PER_ITERATION) if per_iteration else ())


def _figure(value: Any) -> str:
    return f"{value:.6f}" if isinstance(value, int | float) and not isinstance(value, bool) else "N/A"


def _device(fields: Mapping[str, Any]) -> PrintedDevice | None:
    rank, group, device = (as_count(fields.get(key)) for key in ("rank", "group", "device"))
    host, address, name = (str(fields.get(key, "")) for key in ("hostname", "device_hex", "device_info"))
    if rank is None or not host:
        return None
    return PrintedDevice(rank, group or 0, host, device or 0, address, name.strip())


NCCL_TESTS_JSON = Importer(
    "nccl-tests-json", "nccl-tests and rccl-tests, JSON (-J), with single times (-I 1)", knows_json, _json_block, _runs,
    empty="no results in the file: the program was stopped before its first line", tagged=True,
)  # fmt: skip


_OPENS = re.compile(r"#\s*(?:[nr]ccl-tests version|Collective test starting|nThread\s)")
_HEADER = re.compile(r"#\s+(?:size\s+count|bytes\s+N)\s+(?:\(elements\)\s+)?type\s.*algbw\s+busbw")
_OWN_HEADER = "# collbench version"
_RCCL = "rccl-tests: Version"


class _Stream(msgspec.Struct):
    """What one writer prints: the finished blocks, and the one that is being read."""

    version: str | None = None
    blocks: list[NcclTestsBlock] = msgspec.field(default_factory=list)
    head: Head = msgspec.field(default_factory=Head)
    lines: list[TableLine] = msgspec.field(default_factory=list)
    bad: list[int] = msgspec.field(default_factory=list)
    ended: bool = False

    def line(self, number: int, text: str) -> None:
        """Read any line that is not a comment; only lines of a table count."""
        if self.ended:
            self.close()
        row = parse_line(number, text, self.head.wide)
        if row is not None:
            self.lines.append(row)
        elif self.lines and _CUT.match(text):
            self.bad.append(number)

    def comment(self, text: str) -> None:
        if self.lines and (_OPENS.match(text) or _HEADER.match(text) or text.startswith("# Using devices")):
            self.close()
        self.head.take(text)
        self.ended = self.ended or "Avg bus bandwidth" in text
        if "Collective test concluded" in text:
            self.close()

    def close(self) -> None:
        if self.lines:
            if self.version:  # rccl-tests prints it outside of its comments
                self.head.tool = "rccl-tests"
                self.head.version = self.head.version or self.version
            self.blocks.append(NcclTestsBlock(self.head, self.lines, bad=self.bad))
        self.head = Head()
        self.lines = []
        self.bad = []
        self.version = None
        self.ended = False


def knows(lines: Sequence[str]) -> bool:
    """Return whether the lines have nccl-tests' header or a line of its table."""
    tagged_lines = filter(None, map(split_line, lines))
    return any(
        _OPENS.match(text) or _HEADER.match(text) if text[:1] == "#" else parse_line(0, text, wide=False) for _, text in tagged_lines
    )


def _blocks(lines: Sequence[str]) -> Iterator[NcclTestsBlock]:
    streams: dict[str, _Stream] = {}
    for number, line in enumerate(lines, 1):
        version = _RCCL_VERSION.match(line) if _RCCL in line else None
        if version:  # "rccl-tests: Version develop:83d38d9", printed without #
            streams.setdefault(split_prefix(f"{version[1]} #").writer, _Stream()).version = version[2]
        tagged_line = None if _RCCL in line else split_line(line)
        if tagged_line is None:
            continue
        writer, text = tagged_line
        stream = streams.setdefault(writer, _Stream())
        if text.startswith(_OWN_HEADER):
            raise UsageError(f"line {number} is output of collbench: use `collbench report` with the run folder, which has more data")
        if text[:1] == "#":
            stream.comment(text)
        else:
            stream.line(number, text)
    for stream in streams.values():
        stream.close()
        yield from stream.blocks


NCCL_TESTS = Importer(
    "nccl-tests", "nccl-tests and rccl-tests, text", knows, _blocks, _runs, tagged=True,
    empty="no line of nccl-tests' table with a size and a time found: use the whole output of the program",
)  # fmt: skip
