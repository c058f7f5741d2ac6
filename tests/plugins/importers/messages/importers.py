"""Notes on imported tables, and errors of `collbench import`."""

from __future__ import annotations

from collections.abc import Callable

from collbench.plugins.importers import notes
from collbench.plugins.importers.importer import UserInput, lines_of
from collbench.plugins.importers.notes import MissingItem, NotInOutput, SkippedLines, SkippedReason
from collbench.plugins.importers.rows import operation_named, ranks_and_nodes
from collbench.plugins.importers.store import READERS, reader_for
from tests.messages import Message


def _read(name: str, text: str, ranks: int | None = None, operation: str | None = None) -> Callable[[], object]:
    """Return a function that reads the text as this format, which fails."""
    reader = next(each for each in READERS if each.name == name)
    return lambda: reader.read(text.splitlines(), UserInput(ranks=ranks, operation=operation)).runs


MESSAGES: dict[str, Message] = {
    **{f"not in output: {item.name}": NotInOutput(item) for item in MissingItem},
    "not in output, assumed": NotInOutput(MissingItem.DTYPE, assumed="uint8"),
    "not in output, from elsewhere": NotInOutput(MissingItem.PROGRAM, source="the operation is from --operation"),
    **{f"skipped: {reason.name}": SkippedLines(3, reason) for reason in SkippedReason},
    "skipped, one line": SkippedLines(1, SkippedReason.INCOMPLETE, 7),
    "skipped, with a problem": SkippedLines(2, SkippedReason.UNREADABLE, 7, "'ranks' is -1"),
    "skipped objects": SkippedLines(2, SkippedReason.UNREADABLE, unit="object"),
    "rank mismatch": notes.RankMismatch("busbw / algbw", 4, "allreduce", 8, 8),
    "rank mismatch, a range": notes.RankMismatch("busbw / algbw", 4, "allreduce", 8, 16),
    "rank mismatch, no upper end": notes.RankMismatch("busbw / algbw", 4, "allreduce", 8, None),
    "rank mismatch, none fits": notes.RankMismatch("busbw / algbw", 1, "allreduce", 1, 0),
    "single rank": notes.SingleRankTable(),
    "averaged groups": notes.AveragedGroups(8),
    "out of bounds": notes.OutOfBoundsValues(3),
    "rate mismatch": notes.RateMismatch("3.20", 1024, 3.1, 12),
    "rate mismatch of calls": notes.CallRateMismatch(3),
    "message rate mismatch": notes.MessageRateMismatch(3, 9),
    "size mismatch": notes.SizeMismatch(9, 1024),
    "element size mismatch": notes.ElementSizeMismatch("alltoall", 8),
    "interleaved jobs": notes.InterleavedJobs(3),
    "repeated cases": notes.RepeatedCases(2, has_header=True),
    "repeated cases without headers": notes.RepeatedCases(2, has_header=False),
    "failed validation": notes.FailedValidation(12, "DATA VALIDATION ERROR"),
    "mixed memory": notes.MixedMemory(("HOST", "DEVICE")),
    "threads": notes.ConcurrentThreads(4),
    "input buffers": notes.InputBuffers(2),
    "aborted run": notes.AbortedRun(14, "application called MPI_Abort(MPI_COMM_WORLD, 16) - process 15"),
    "aborted run, more lines": notes.AbortedRun(14, "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", 3),
    "incomplete log": notes.IncompleteLog(),
    "failed command": notes.FailedCommand(3),
    "compressed": lambda: lines_of(b"\x1f\x8b"),
    "unknown format": lambda: reader_for(["1 2 3"], None),
    "unknown --as": lambda: reader_for([], "word"),
    "not supported": lambda: reader_for(["sockperf: x"], None),
    "unknown operation": lambda: operation_named("sum"),
    "unknown ranks": lambda: ranks_and_nodes(UserInput(), None, None, "the table at line 5"),
    "too many nodes": lambda: ranks_and_nodes(UserInput(nodes=4), 2, None, "the table at line 5"),
    "nccl-tests: no table": _read("nccl-tests", "x\n"),
    "nccl-tests: output of collbench": _read("nccl-tests", "# collbench version 0.1\n"),
    "nccl-tests: invalid JSON": _read("nccl-tests-json", "{"),
    "nccl-tests: JSON of another version": _read("nccl-tests-json", '{"version": 9}'),
    "nvbandwidth: no figure": _read("nvbandwidth", "x\n"),
    "mpigraph: no start": _read("mpigraph", "x\n"),
    "gpcnet: no table": _read("gpcnet", "x\n"),
    "perftest: ranks": _read("perftest", "x\n", ranks=4),
    "osu: no results": _read("osu", "x\n"),
    "deepep: no results": _read("deepep", "x\n"),
    "log: no rows": _read("log", "----- collbench: rows begin -----\n"),
}
