"""A table of nccl-tests becomes runs of our rows: repetitions apart, figures set against each other, what is missing said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from collbench.errors import UsageError
from collbench.operations.operation import Operation
from collbench.results.peers.figures import number
from collbench.results.peers.nccl_lines import Body, Head, Line
from collbench.results.peers.nccl_operation import Named, Ranks, operation_of, parts_of, ranks_of
from collbench.results.peers.peer import Given, PeerRun
from collbench.results.peers.ranks import unlike_time
from collbench.results.peers.rows import Kind, Spread, is_size, is_time, ranks_and_nodes, short, type_name
from collbench.results.record import Row

_MOST_WRONG = 2**62
_UNTOLD = Spread()
_BUFFERS, _BLOCKED = "rotating", {1: ", waited for and met after each", 2: ", waited for after each", 3: ", the barrier left out"}
_ONE_RANK = (
    "one rank: its bus bandwidth is 0, and nothing crosses a link; where more were started, they ran as separate jobs of one rank each "
    "(the program was built without MPI=1, or the launcher does not fit its MPI)"
)


@dataclass(frozen=True)
class Block:
    """A head with the lines below it."""

    head: Head
    lines: list[Line]


def runs_of(block: Block, given: Given) -> Iterator[PeerRun]:
    """The runs in a block that have a line to show. Raises UsageError for what only the user can tell."""
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
    named = operation_of(head, lines, given)
    told = ranks_of(head, lines, named.operation)
    where = f"the table at line {lines[0].number}"
    if told.told is None and given.ranks is None and told.factor is not None:
        where += f" (busbw / algbw allows {told.factor})"
    ranks, nodes = ranks_and_nodes(given, told.head, told.nodes, where) if told.head else _untold(given, told, where)
    rows = list(_rows(head, lines, named.operation, ranks, nodes))
    if not rows:
        return None
    program = head.program.rsplit("/", 1)[-1] if head.program else named.operation.name
    return PeerRun(
        head.tool, short(head.version) if head.version else None, short(program), _statistic(head), rows, _hosts(head), _facts(head),
        [*_missing(head, named, told, given, lines), *_left_out(block, passes)],
        [*_doubts(head, named.operation, told, ranks), *_disagreements(lines, named.operation, ranks), *_of_passes(head, passes)],
    )  # fmt: skip


def _untold(given: Given, told: Ranks, where: str) -> tuple[int, int | None]:
    return ranks_and_nodes(given, told.told if given.ranks is None else None, told.nodes, where)


def _rows(head: Head, lines: Sequence[Line], operation: Operation, ranks: int, nodes: int | None) -> Iterator[Row]:
    kinds: dict[Any, Kind] = {}
    checked = max(1, head.numbers.get("validation", 1))
    for line in lines:
        for in_place, body in enumerate(line.placed):
            time_s = _time(body)
            if body is None or time_s is None:
                continue
            key = (line.dtype, line.redop, line.root, in_place)
            kind = kinds.get(key) or kinds.setdefault(key, _kind(head, line, operation, (ranks, nodes), bool(in_place)))
            wrong = _wrong(head, body.wrong)
            yield kind.row(
                _size(line, operation, ranks), time_s, count=line.elements, line=line.number, spread=_spread(body),
                checked=0 if wrong is None else checked, wrong=wrong,
            )  # fmt: skip


def _kind(head: Head, line: Line, operation: Operation, where: tuple[int, int | None], in_place: bool) -> Kind:
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


def _spread(body: Body) -> Spread:
    if not body.per_iteration:
        return _UNTOLD
    least, most, p99, _, p95 = (known / 1e6 if (known := number(text)) is not None else None for text in (*body.per_iteration, "")[:5])
    return Spread(least, p95, p99, most)


def _wrong(head: Head, text: str) -> int | None:
    """Wrong elements. The old fourth column is the largest error: it says nothing is wrong only together with the foot."""
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


def _facts(head: Head) -> dict[str, Any]:
    devices = [
        {"rank": d.rank, "host": short(d.host), "device": d.device, "gpu": short(d.address), "name": short(d.name)} for d in head.devices
    ]
    library = {"library": head.library} if head.library else {}
    environment = {"environment": head.environment} if head.environment else {}
    return {**head.numbers, **library, **({"devices": devices} if devices else {}), **environment}


def _missing(head: Head, named: Named, told: Ranks, given: Given, lines: Sequence[Line]) -> Iterator[str]:
    if named.source:
        yield f"no name of the program (its operation is from {named.source})"
    if told.nodes is None and given.nodes is None:
        yield "no number of nodes (--nodes N says it)"
    if told.head is None:
        source = "--ranks" if given.ranks is not None else "size and count" if told.counts else "busbw / algbw"
        yield f"no list of devices (the number of ranks is from {source})"
    if not any(body.per_iteration for line in lines for body in line.placed if body):
        yield "no samples: neither interval nor percentiles"
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
        fits = (
            "no number of ranks fits"
            if contradicted.high is not None and contradicted.low > contradicted.high
            else f"that is {contradicted} ranks"
        )
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
