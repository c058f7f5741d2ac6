"""Lines with which tools, MPI libraries and launchers report wrong data or an abort, and the rows and tables that they belong to.

Readers know the columns in which their tool counts wrong data. These lines are outside of tables, so the whole file is searched for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from collbench.machine.readers.text import printable
from collbench.plugins.importers.importer import ImportedTable, Skipped, UnsupportedTool, split_prefix
from collbench.plugins.importers.notes import AbortedRun, FailedValidation, ImportDoubt
from collbench.results.row import Row


class Report(Enum):
    """What a line reports."""

    WRONG_ROW = auto()  # wrong data in the row that follows it
    WRONG_SIZE = auto()  # wrong data in the row of a size, which the line names
    WRONG_TABLE = auto()  # wrong data in the rows before it, which are of one test
    ABORT = auto()


class _Form(NamedTuple):
    """A kind of line: words that it contains, and an expression for it if the words are not enough.

    The group `size` is a number of bytes, `name` a benchmark.
    """

    report: Report
    words: str
    pattern: re.Pattern[str] | None = None


_FORMS = (
    # IMB with -DCHECK: "15: Error Reduce_scatter,size = 4,sample #0", printed by any rank before rank 0 prints the row
    _Form(Report.WRONG_ROW, ": Error ", re.compile(r"\d{1,9}: Error (?P<name>[\w-]{1,60}), ?size ?= ?(?P<size>\d{1,18}), ?sample #")),
    _Form(Report.WRONG_ROW, "Got invalid buffer"),
    _Form(Report.WRONG_ROW, "Read invalid portion"),
    _Form(Report.WRONG_ROW, "CHECK FAILURES: rank", re.compile(r"CHECK FAILURES: rank \d{1,9}: 0{0,9}[1-9]")),  # IMB-MT
    # nvbandwidth
    _Form(Report.WRONG_ROW, "Invalid value when checking the pattern"),
    _Form(Report.WRONG_ROW, "ASSERT in expression", re.compile(r"ASSERT in expression h_errorFlag == 0")),
    # OSU's tests, fabtests, fi_pingpong
    _Form(Report.WRONG_SIZE, "DATA VALIDATION ERROR", re.compile(r"DATA VALIDATION ERROR(?:.{0,400}message size (?P<size>\d{1,18}))?")),
    _Form(Report.WRONG_SIZE, "Data check error", re.compile(r"Data check error(?:.{0,200}buffer size (?P<size>\d{1,18}))?")),
    _Form(Report.WRONG_SIZE, "Error at iteration=", re.compile(r"Error at iteration=\d{1,18} size=(?P<size>\d{1,18}) byte=")),
    # perftest
    _Form(Report.WRONG_TABLE, "VALIDATION: FAILED"),
    _Form(Report.ABORT, "Completion with error at"),
    _Form(Report.ABORT, "Failed status ", re.compile(r"\bFailed status \d{1,9}: wr_id")),
    # nccl-tests and rccl-tests (src/common.h), nvbandwidth (error_handling.h), IMB, fabtests
    _Form(Report.ABORT, ": Test ", re.compile(r": Test (?:(?:NCCL|RCCL|CUDA|HIP) )?(?:failure|timeout)\b")),
    _Form(Report.ABORT, "Test timeout"),
    _Form(Report.ABORT, " in expression ", re.compile(r"(?:ASSERT|\[\w{3,60}\].{0,200}) in expression ")),
    _Form(Report.ABORT, "Application error code"),
    _Form(Report.ABORT, ", ret=-", re.compile(r"\w{2,40}\(\): \S{1,200}:\d{1,7}, ret=-\d{1,9} \(")),
    # MPI libraries
    _Form(Report.ABORT, "MPI_Abort(", re.compile(r"application called MPI_Abort\(")),
    _Form(Report.ABORT, "MPI_ABORT was invoked"),
    _Form(Report.ABORT, "Abort(", re.compile(r"\bAbort\(-?\d{1,12}\) (?:on node|\(rank)")),
    _Form(Report.ABORT, "Fatal error in "),
    _Form(Report.ABORT, "*** An error occurred in"),
    _Form(Report.ABORT, "BAD TERMINATION"),
    # Launchers and the operating system
    _Form(Report.ABORT, "noticed that process rank"),
    _Form(Report.ABORT, "non-zero exit code", re.compile(r"process(?:es)? returned a non-zero exit code")),
    _Form(Report.ABORT, "exited with non-zero status"),
    _Form(Report.ABORT, "error: ", re.compile(r"\berror: .{0,200}(?:Exited with exit code|\b(?:Killed|Aborted)\b|Bus error)")),
    _Form(Report.ABORT, " CANCELLED AT "),
    _Form(Report.ABORT, "died from signal"),
    _Form(Report.ABORT, "exited with code", re.compile(r"\brank \d{1,9} exited with code [1-9]")),
    _Form(Report.ABORT, "Segmentation fault"),
    _Form(Report.ABORT, "Caught signal"),
    _Form(Report.ABORT, "(core dumped)"),
    _Form(Report.ABORT, "Out of memory: Killed"),
    # Programs in C++ and Python
    _Form(Report.ABORT, "terminate called after throwing"),
    _Form(Report.ABORT, "Traceback (most recent call last)"),
    _Form(Report.ABORT, "Watchdog caught collective operation timeout"),
)  # fmt: skip
_CHUNK = 1000  # lines
_LONGEST = 2000  # characters of a line that are searched
_SHOWN = 160


class FailureLine(msgspec.Struct, frozen=True):
    """A line that reports a failure; the first line of the file is 1."""

    number: int
    report: Report
    text: str
    size: int | None = None
    name: str = ""


def failure_lines(lines: Sequence[str]) -> list[FailureLine]:
    """Return the lines that report wrong data or an abort, in their order."""
    failures: list[FailureLine] = []
    for start in range(0, len(lines), _CHUNK):
        chunk = lines[start : start + _CHUNK]
        text = "\n".join(chunk)
        possible = [form for form in _FORMS if form.words in text]  # most logs have none, and this is fast
        if possible:
            failures += filter(None, (_failure(number, line, possible) for number, line in enumerate(chunk, start + 1)))
    return failures


def _failure(number: int, line: str, forms: Iterable[_Form]) -> FailureLine | None:
    for form in forms:
        if form.words not in line:
            continue
        match = form.pattern.search(line[:_LONGEST]) if form.pattern else None
        if form.pattern and match is None:
            continue
        groups = match.groupdict() if match else {}
        size = groups.get("size")
        text = printable(" ".join(split_prefix(line).text.split()), _SHOWN)
        return FailureLine(number, form.report, text, int(size) if size else None, groups.get("name") or "")
    return None


def with_failures(
    runs: Sequence[ImportedTable], failures: Sequence[FailureLine], skipped: Sequence[Skipped] = ()
) -> tuple[list[ImportedTable], list[Skipped]]:
    """Return (the tables with what these lines report: wrong rows, and a doubt about each table with a failure; the skipped tables).

    A failure belongs to the last table that begins before it, or else to the first table. The reason of a skipped table names its failures.
    """
    failures_by_run: dict[int, list[FailureLine]] = {}
    failures_by_skipped: dict[int, list[FailureLine]] = {}
    for failure in failures if runs else ():
        before = [index for index, run in enumerate(runs) if run.line <= failure.number]
        named = [index for index in before if failure.name and runs[index].program.lower().endswith(failure.name.lower())]
        run_index = max(named or before, key=lambda index: (runs[index].line, index), default=0)
        begin = runs[run_index].line if before else 0  # from here on another table may have the failure instead
        if named:
            begin = failure.number
        # output of an unsupported tool cannot report wrong data in the form of another tool
        fitting = [
            index
            for index, table in enumerate(skipped)
            if begin < table.line <= failure.number and (failure.report is Report.ABORT or not isinstance(table, UnsupportedTool))
        ]
        if fitting:
            failures_by_skipped.setdefault(max(fitting, key=lambda index: skipped[index].line), []).append(failure)
        else:
            failures_by_run.setdefault(run_index, []).append(failure)
    skipped_with_failures = list(skipped)
    for index, failures_of_table in failures_by_skipped.items():
        wrong = wrong_data(failures_of_table)
        first = (wrong or failures_of_table)[0]
        reason = f"{skipped[index].reason} ({'WRONG DATA' if wrong else 'failed'}: line {first.number}: {first.text})"
        skipped_with_failures[index] = replace(skipped[index], reason=reason)
    runs_with_failures = [_marked(run, failures_by_run[index]) if index in failures_by_run else run for index, run in enumerate(runs)]
    return runs_with_failures, skipped_with_failures


def wrong_data(failures: Iterable[FailureLine]) -> list[FailureLine]:
    """Return those that report wrong data."""
    return [failure for failure in failures if failure.report is not Report.ABORT]


def _marked(run: ImportedTable, failures: Sequence[FailureLine]) -> ImportedTable:
    wrong = wrong_data(failures)
    aborts = [failure for failure in failures if failure.report is Report.ABORT]
    doubts: list[ImportDoubt] = list(run.doubts)
    if wrong:
        doubts.append(FailedValidation(wrong[0].number, wrong[0].text, len(wrong)))
    if aborts:
        doubts.append(AbortedRun(aborts[0].number, aborts[0].text, len(aborts)))
    rows = list(run.rows)
    for failure in wrong:
        _mark(rows, failure)
    return replace(run, rows=rows, doubts=doubts)


def _mark(rows: list[Row], failure: FailureLine) -> None:
    """Mark the rows that the line is about as wrong. A case that failed before its row was printed becomes a row without figures."""
    if not rows:
        return
    if failure.report is Report.WRONG_TABLE:
        rows[:] = [_wrong(row, failure) for row in rows]
        return
    index: int | None = None
    if failure.report is Report.WRONG_ROW:  # the row after the line, or the last one if its case has no figures: the failure is the reason
        index = next((index for index, row in enumerate(rows) if row.evidence.get("line", 0) > failure.number), None)
        if index is None and rows[-1].na is not None:
            index = len(rows) - 1
    elif failure.size is None:
        index = len(rows) - 1
    else:  # the last row of the size, which some tools print for one rank's part
        fitting = [index for index, row in enumerate(rows) if row.size_bytes in (failure.size, failure.size * row.ranks)]
        index = fitting[-1] if fitting else None
    if index is not None:
        rows[index] = _wrong(rows[index], failure)
    elif not any(row.wrong for row in rows):
        row = rows[-1]  # a row of the same kind for the case of the failure
        size = row.size_bytes if failure.size is None else failure.size
        row = row.with_figures(
            size_bytes=size, count=0, na=failure.text, time_s=None, algbw_bytes_per_s=None, busbw_bytes_per_s=None, time_rank_mean_s=None,
            message_rate=None, groups={}, wrong=None, wrong_detail=None, evidence={"line": failure.number},
        )  # fmt: skip
        rows.append(_wrong(row, failure))


def _wrong(row: Row, failure: FailureLine) -> Row:
    flags = tuple(flag for flag in row.flags if flag != "unverified")
    reason = f"wrong data: {failure.text}" if row.na is not None and not row.wrong else row.na
    return row.with_figures(
        checked=max(1, row.checked), wrong=row.wrong or 1, wrong_detail=row.wrong_detail or f"line {failure.number}: {failure.text}",
        flags=flags, na=reason,
    )  # fmt: skip
