"""Read collbench's own rows in the log of a pod: the output of --format json between the two marks of `collbench emit kubernetes`.

The rows are complete with their intervals. Samples, hosts and versions were in the run folder, which ended with the pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from collbench.errors import UsageError
from collbench.plugins.importers.importer import ImportedTable, Importer, Reading, UserInput, reject_useless_options, split_prefix
from collbench.plugins.importers.notes import FailedCommand, ImportDoubt, IncompleteLog, MissingItem, SkippedLines, SkippedReason, lacks
from collbench.results.reader import row_from_json
from collbench.results.row import Row
from collbench.results.store import parse_object

# The marks around the rows in a log that other programs write to, too. `collbench import` searches for them.

BEGIN = "----- collbench: rows begin -----"
END = "----- collbench: rows end, exit code"  # the code and five dashes follow


_ENDED = re.compile(re.escape(END) + r" (\d{1,3}) -----")
_MISSING = lacks(MissingItem.SAMPLES, MissingItem.HOSTS, MissingItem.RANK_DATA, MissingItem.LIBRARIES)


@dataclass
class _Block:
    """The lines between two marks. ended: the exit code, None if the log ends first; bad: lines that are not rows, by number."""

    rows: list[Row] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    ended: int | None = None


def knows(lines: Sequence[str]) -> bool:
    """Return whether one of these lines is the mark before the rows."""
    return any(_bare(line) == BEGIN for line in lines)


def read(lines: Sequence[str], user_input: UserInput) -> Reading:
    """Return one run for each pair of marks. Raises UsageError without rows, or if the user's values contradict them."""
    blocks = list(_blocks(lines))
    if not any(block.rows for block in blocks):
        number, why = next(((number, why) for block in blocks for number, why in block.bad.items()), (0, ""))
        what = f"line {number} between the marks is not a valid row ({why})" if number else "no rows between the marks"
        raise UsageError(f"{what}: use the whole log of rank 0's pod, of a command that measures collectives")
    runs = [_run(block, user_input) for block in blocks if block.rows]
    reject_useless_options(runs)
    return Reading(runs)


def _blocks(lines: Sequence[str]) -> Iterator[_Block]:
    block: _Block | None = None
    for number, line in enumerate(lines, 1):
        text = _bare(line)
        if text == BEGIN:
            if block:
                yield block
            block = _Block()
        elif block and (found := _ENDED.fullmatch(text)):
            block.ended = int(found[1])
            yield block
            block = None
        elif block and text.startswith("{"):
            _take(block, number, text)
    if block:
        yield block


def _bare(line: str) -> str:
    """Return the line without what kubectl and others print before it."""
    return split_prefix(line).text.strip()


def _take(block: _Block, number: int, text: str) -> None:
    try:
        row = row_from_json(parse_object(text.encode()))
    except ValueError as error:
        block.bad[number] = str(error)
    else:
        block.rows.append(replace(row, samples={}))  # the log does not have their arrays


def _run(block: _Block, user_input: UserInput) -> ImportedTable:
    from collbench.plugins.importers.rows import contradiction  # imports numpy, and `emit` needs only the marks

    ranks, nodes = block.rows[0].ranks, next((row.nodes for row in block.rows if row.nodes), None)
    operations = dict.fromkeys(row.operation for row in block.rows)
    return ImportedTable(
        "collbench",
        None,
        ", ".join(operations),
        "the median over the samples",
        block.rows,
        facts={} if block.ended is None else {"exit_code": block.ended},
        missing=_MISSING,
        doubts=list(_doubts(block)),
        contradicted=(
            *contradiction("the log", "ranks", user_input.ranks, ranks),
            *contradiction("the log", "nodes", user_input.nodes, nodes),
        ),
    )


def _doubts(block: _Block) -> Iterator[ImportDoubt]:
    if block.ended is None:
        yield IncompleteLog()
    elif block.ended:
        yield FailedCommand(block.ended)
    if block.bad:
        number, problem = next(iter(block.bad.items()))
        yield SkippedLines(len(block.bad), SkippedReason.UNREADABLE, number, problem)


POD_LOG = Importer("log", "pod logs with rows of collbench", knows, read)
