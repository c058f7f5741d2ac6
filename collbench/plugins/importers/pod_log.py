"""Read collbench's own rows in the log of a pod: the output of --format json between the two marks of `collbench emit kubernetes`.

The rows are complete with their intervals. Samples, hosts and versions were in the run folder, which ended with the pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.plugins.importers.importer import ImportedTable, Importer, UserInput, split_prefix
from collbench.plugins.importers.notes import FailedCommand, ImportDoubt, IncompleteLog, MissingItem, SkippedLines, SkippedReason, lacks
from collbench.results.reader import row_from_json
from collbench.results.row import Row
from collbench.results.store import parse_object

if TYPE_CHECKING:
    from collbench.plugins.importers.log_context import Contexts

# The marks around the rows in a log that other programs write to, too. `collbench import` searches for them.
BEGIN = "----- collbench: rows begin -----"
END = "----- collbench: rows end, exit code"  # the code and five dashes follow
_ENDED = re.compile(re.escape(END) + r" (\d{1,3}) -----")
_MISSING = lacks(MissingItem.SAMPLES, MissingItem.HOSTS, MissingItem.RANK_DATA, MissingItem.LIBRARIES)


class _Block(msgspec.Struct):
    """The lines between two marks. exit_code: None if the log ends first; bad: lines that are not rows, by number."""

    number = 0  # the rows of a block are not a table of the log

    rows: list[Row] = msgspec.field(default_factory=list)
    bad: dict[int, str] = msgspec.field(default_factory=dict)
    exit_code: int | None = None


def knows(lines: Sequence[str]) -> bool:
    """Return whether one of these lines is the mark before the rows."""
    return any(_bare(line) == BEGIN for line in lines)


def _blocks(lines: Sequence[str]) -> list[_Block]:
    """Return the pairs of marks with rows. Raises UsageError without one."""
    blocks: list[_Block] = []
    block: _Block | None = None
    for number, line in enumerate(lines, 1):
        text = _bare(line)
        if text == BEGIN:
            block = _Block()
            blocks.append(block)
        elif block and (end := _ENDED.fullmatch(text)):
            block.exit_code = int(end[1])
            block = None
        elif block and text.startswith("{"):
            try:
                row = row_from_json(parse_object(text.encode()))
            except ValueError as error:
                block.bad[number] = str(error)
            else:
                block.rows.append(replace(row, samples={}))  # the log does not have their arrays
    if not any(block.rows for block in blocks):
        number, problem = next((entry for block in blocks for entry in block.bad.items()), (0, ""))
        reason = f"line {number} between the marks is not a valid row ({problem})" if number else "no rows between the marks"
        raise UsageError(f"{reason}: use the whole log of rank 0's pod, of a command that measures collectives")
    return [block for block in blocks if block.rows]


def _bare(line: str) -> str:
    """Return the line without what kubectl and others print before it."""
    return split_prefix(line).text.strip()


def _runs(block: _Block, user_input: UserInput, _contexts: Contexts) -> Iterator[ImportedTable]:
    from collbench.plugins.importers.rows import contradiction  # imports numpy, and `emit` needs only the marks

    nodes = next((row.nodes for row in block.rows if row.nodes), None)
    contradicted = contradiction("the log", "ranks", user_input.ranks, block.rows[0].ranks)
    contradicted += contradiction("the log", "nodes", user_input.nodes, nodes)
    doubts: list[ImportDoubt] = []
    if block.exit_code is None:
        doubts.append(IncompleteLog())
    elif block.exit_code:
        doubts.append(FailedCommand(block.exit_code))
    if block.bad:
        number, problem = next(iter(block.bad.items()))
        doubts.append(SkippedLines(len(block.bad), SkippedReason.UNREADABLE, number, problem))
    program = ", ".join(dict.fromkeys(row.operation for row in block.rows))
    facts = {} if block.exit_code is None else {"exit_code": block.exit_code}
    yield ImportedTable("collbench", None, program, "the median over the samples", block.rows, (), facts, _MISSING, doubts, contradicted)


POD_LOG = Importer("log", "pod logs with rows of collbench", knows, _blocks, _runs, tagged=True)
