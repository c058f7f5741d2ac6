"""Makes runs from a table of nccl-tests: separates repetitions, compares figures with each other, lists what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from collbench.errors import UsageError
from collbench.operations.operation import Operation
from collbench.results.importers.figures import number
from collbench.results.importers.log_context import LogContext, with_hosts
from collbench.results.importers.nccl_lines import Body, Head, Line, shows_errors
from collbench.results.importers.nccl_operation import (
    Decided,
    Named,
    NameSource,
    Ranks,
    RankSource,
    decide_ranks,
    operation_of,
    parts_of,
    ranks_of,
)
from collbench.results.importers.peer import RANKS_DOUBTFUL, Arrays, Given, PeerRun
from collbench.results.importers.ranks import unlike_time
from collbench.results.importers.rows import Kind, Spread, is_size, is_time, short, type_name
from collbench.results.importers.samples import Samples, sampled
from collbench.results.row import Row

_MOST_WRONG = 2**62
_UNTOLD = Spread()
_BUFFERS, _BLOCKED = "rotating", {1: ", waited for and met after each", 2: ", waited for after each", 3: ", the barrier left out"}
_ONE_RANK = (
    "one rank: its bus bandwidth is 0, and nothing crosses a link; where more were started, they ran as separate jobs of one rank each "
    "(the program was built without MPI=1, or the launcher does not fit its MPI)"
)


@dataclass(frozen=True)
class Block:
    """A head with the lines below it, and what the log says of their start.

    samples    the time of each iteration in seconds, by (line, in place), where the tool prints them
    """

    head: Head
    lines: list[Line]
    context: LogContext = field(default_factory=LogContext)
    samples: Mapping[tuple[int, bool], Samples] = field(default_factory=dict)


def runs_of(block: Block, given: Given) -> Iterator[PeerRun]:
    """The runs in a block that have a line to show. Raises UsageError where operation or ranks are unknown."""
    moved = [line for line in block.lines if is_size(line.size)]
    passes = _side_by_side(moved, block.head.starts) if block.head.starts > 1 else _in_turn(moved)
    for lines in passes:
        if run := _run(block, lines, given, len(passes)):
            yield run


def _in_turn(lines: Sequence[Line]) -> list[list[Line]]:
    """One after the other: a cell that was there begins the next pass. A size that was rounded to the last one's is left out."""
    passes: list[list[Line]] = []
    seen: set[Any] = set()
    for line in lines:
        if passes and line.cell in seen and line.cell == passes[-1][-1].cell and parts_of(line) != 1:
            continue
        if not passes or line.cell in seen:
            passes.append([])
            seen = set()
        passes[-1].append(line)
        seen.add(line.cell)
    return passes


def _side_by_side(lines: Sequence[Line], jobs: int) -> list[list[Line]]:
    """Jobs that print into each other: each line goes to the first that lacks its cell."""
    passes: list[dict[Any, Line]] = [{} for _ in range(jobs)]
    for line in lines:
        free = next((each for each in passes if line.cell not in each), None)
        if free is None:
            free = {}
            passes.append(free)
        free[line.cell] = line
    return [list(each.values()) for each in passes if each]


def _run(block: Block, lines: Sequence[Line], given: Given, passes: int) -> PeerRun | None:
    head = block.head
    if head.cpu_time:
        raise UsageError(f"line {lines[0].number}: its time is what the CPU needed to start the calls (-C 1): run it again without -C 1")
    if head.old is None and shows_errors(lines):
        head = replace(head, old=True)
    named = operation_of(head, lines, given, block.context)
    proven = ranks_of(head, lines, named.operation)
    ranks = decide_ranks(proven, given, head, block.context, f"the table at line {lines[0].number}")
    rows, arrays = _rows(block, head, lines, (named.operation, proven, ranks))
    if not rows:
        return None
    typed = block.context.program if named.source is NameSource.COMMAND else None
    program = head.program or typed or named.operation.name
    return PeerRun(
        head.tool, short(head.version) if head.version else None, short(program.rsplit("/", 1)[-1]),
        rows[0].evidence["statistic"], rows,
        _hosts(head) or with_hosts(block.context, ranks.extent.ranks), _facts(head, block.context),
        [*_missing(head, named, ranks, lines, arrays), *_left_out(block, passes)],
        [
            *_doubts(head, named.operation, proven, ranks.extent.ranks),
            *_disagreements(lines, named.operation, ranks.extent.ranks), *_of_passes(head, passes),
        ],
        (*named.contradicted, *ranks.extent.contradicted), arrays,
    )  # fmt: skip


def _rows(block: Block, head: Head, lines: Sequence[Line], about: tuple[Operation, Ranks, Decided]) -> tuple[list[Row], dict[int, Arrays]]:
    """(rows, their arrays by index)."""
    operation, proven, decided = about
    ranks, rows, arrays = decided.extent.ranks, list[Row](), dict[int, Arrays]()
    kinds: dict[Any, Kind] = {}
    doubtful = proven.factor is not None and not proven.factor.holds(ranks)
    for line in lines:
        for in_place, body in enumerate(line.placed):
            time_s = _time(body)
            if body is None or time_s is None:
                continue
            key = (line.dtype, line.redop, line.root, in_place)
            kind = kinds.get(key) or kinds.setdefault(key, _kind(head, line, decided, operation, bool(in_place)))
            wrong = _wrong(head, body.wrong)
            row = kind.row(
                _size(line, operation, ranks), time_s, count=line.elements, line=line.number, spread=_spread(head, body),
                checked=0 if wrong is None else max(1, head.numbers.get("validation", 1)), wrong=wrong,
            )  # fmt: skip
            if (samples := block.samples.get((line.number, bool(in_place)))) is not None:
                row, arrays[len(rows)] = sampled(row, samples, kind)
            flags = (*([RANKS_DOUBTFUL] if doubtful else []), *(["wrong_data"] if wrong or (wrong is None and head.bad) else []))
            rows.append(replace(row, flags=(*row.flags, *flags)) if flags else row)
    return rows, arrays


def _kind(head: Head, line: Line, decided: Decided, operation: Operation, in_place: bool) -> Kind:
    where = (decided.extent.ranks, decided.extent.nodes)
    library = "rccl" if head.tool == "rccl-tests" else "nccl"
    return Kind(
        operation.name, library, "nccl", type_name(line.dtype), *where, _statistic(head), "cuda" if library == "nccl" else "rocm",
        short(line.redop) if operation.reduces and line.redop else None, line.root if operation.rooted else None, _mode(head), in_place,
        _BUFFERS, evidence={name: head.numbers[name] for name in ("warmup", "iterations") if name in head.numbers},
    )  # fmt: skip


def _mode(head: Head) -> str:
    if head.numbers.get("graph"):
        return "graph"
    return "isolated" if head.blocking in (1, 2) else "pipelined"


def _size(line: Line, operation: Operation, ranks: int) -> int:
    """By our definition: of a hypercube what the other ranks had, of which nccl-tests' bandwidths are, too (src/hypercube.cu)."""
    return line.size // ranks * (ranks - 1) if operation.name == "hypercube" and ranks > 1 else line.size


def _time(body: Body | None) -> float | None:
    known = number(body.time) if body else None
    return known / 1e6 if known and is_time(known / 1e6) else None


def _spread(head: Head, body: Body) -> Spread:
    """The spread of the iterations, per call: each iteration makes several calls with -m."""
    if not body.per_iteration:
        return _UNTOLD
    calls = max(1, head.numbers.get("calls", 1))
    least, most, p99, _, p95 = (
        known / 1e6 / calls if (known := number(text)) is not None else None for text in (*body.per_iteration, "")[:5]
    )
    return Spread(least, p95, p99, most)


def _wrong(head: Head, text: str) -> int | None:
    """Wrong elements. The old fourth column is the largest error: it proves that nothing is wrong only together with the foot."""
    known = number(text)
    if known is None or head.numbers.get("validation") == 0:
        return None
    if head.old:
        return 0 if head.bad == 0 else None
    return int(min(known, _MOST_WRONG))


def _statistic(head: Head) -> str:
    """What a time is (src/common.cu: BenchTime)."""
    iterations, calls = head.numbers.get("iterations"), head.numbers.get("calls", 1)
    each = f" of {calls} calls" if calls > 1 else ""
    return f"the mean over {iterations or 'the'} iterations{each}{_BLOCKED.get(head.blocking, '')}, {head.averaged}"


def _hosts(head: Head) -> list[str]:
    by_rank = {device.rank: short(device.host) for device in reversed(head.devices)}
    whole = len(by_rank) == len(head.devices) and sorted(by_rank) == list(range(len(by_rank)))
    return [by_rank[rank] for rank in sorted(by_rank)] if whole and not head.cut else []


def _facts(head: Head, context: LogContext) -> dict[str, Any]:
    devices = [
        {"rank": d.rank, "host": short(d.host), "device": d.device, "gpu": short(d.address), "name": short(d.name)} for d in head.devices
    ]
    version = context.library[1] if context.library else head.library
    environment = {**context.environment, **head.environment}
    return {
        **head.numbers, **({"library": version} if version else {}), **({"devices": devices} if devices else {}),
        **({"environment": environment} if environment else {}),
    }  # fmt: skip


def _missing(head: Head, named: Named, ranks: Decided, lines: Sequence[Line], arrays: Mapping[int, Arrays]) -> Iterator[str]:
    if named.source not in (NameSource.PRINTED, NameSource.COMMAND):
        yield f"no name of the program (its operation is from {named.source.value})"
    if ranks.extent.nodes is None:
        yield "no number of nodes (use --nodes N)"
    if ranks.source is not RankSource.DEVICES:
        yield f"no list of devices (the number of ranks is from {ranks.source.value})"
    if not arrays and not any(body.per_iteration for line in lines for body in line.placed if body):
        yield "no samples: neither interval nor percentiles"
    if not any("all_s" in each for each in arrays.values()):
        yield "no per-rank data"
    if head.numbers.get("validation") == 0:
        yield "nothing was verified (validation: 0)"


def _left_out(block: Block, passes: int) -> Iterator[str]:
    empty = sum(1 for line in block.lines if not is_size(line.size))
    if empty:
        yield "lines of size 0, which are left out"
    kept = len({line.cell for line in block.lines if is_size(line.size)})
    twice = len(block.lines) - empty - kept
    if passes == 1 and twice:
        yield f"lines left out whose size was rounded to the one before: {twice}"


def _doubts(head: Head, operation: Operation, told: Ranks, ranks: int) -> Iterator[str]:
    groups = len({device.group for device in head.devices})
    contradicted = told.factor if told.factor is not None and not told.factor.holds(ranks) else None
    if contradicted is not None:
        fits = "no number of ranks fits" if contradicted.empty else f"that is {contradicted} ranks"
        yield f"busbw / algbw contradicts {ranks} rank{'' if ranks == 1 else 's'} of {operation.name}: {fits}"
    if told.counts is not None and told.counts != ranks:
        yield f"size / count contradicts {ranks} ranks of {operation.name}: that is {told.counts} ranks"
    if ranks == 1 and contradicted is None:
        yield _ONE_RANK
    if groups > 1:
        yield f"{groups} groups ran at the same time (NCCL_TESTS_SPLIT): the ranks are those of one, the times are averaged over all"
    if head.bad:
        yield f"it counted {head.bad} values out of bounds: what arrived was wrong"


def _disagreements(lines: Sequence[Line], operation: Operation, ranks: int) -> Iterator[str]:
    """The fastest line's algbw against size / time."""
    placed = [(line, body) for line in lines for body in line.placed if body]
    line, body = max(placed, key=lambda each: number(each[1].algbw) or 0.0)
    if why := unlike_time(_size(line, operation, ranks), body.algbw, body.time):
        yield f"line {line.number}: algbw {why}"


def _of_passes(head: Head, passes: int) -> Iterator[str]:
    if head.starts > 1:
        yield f"{head.starts} jobs print into each other: which line is whose is not known"
    elif passes > 1:
        why = "with one head, so that they may be repetitions within one start (-N), no launches" if head.starts else "without heads"
        yield f"its cells come {passes} times, {why}"
