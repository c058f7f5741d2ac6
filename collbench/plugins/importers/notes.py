"""Facts on an imported table: what the output of the tool lacks, and what in it is doubtful."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Self

from collbench.reason import Fact
from collbench.units import plural


class _Word(StrEnum):
    """A word that is stored, with its text for users."""

    text: str

    def __new__(cls, word: str, text: str) -> Self:
        member = str.__new__(cls, word)
        member._value_ = word
        member.text = text
        return member


class MissingItem(_Word):
    """What the output of another tool may lack."""

    INTERVAL = "interval", "confidence interval"
    SAMPLES = "samples", "samples"
    PERCENTILES = "percentiles", "percentiles"
    RANK_DATA = "rank_data", "per-rank data"
    SLOW_RANK = "slow_rank", "which rank is slow (a waiting rank looks the same)"
    OTHER_RANKS = "other_ranks", "times of the other ranks"
    HOSTS = "hosts", "host names"
    NODES = "nodes", "number of nodes (use --nodes N)"
    DEVICES = "devices", "list of devices"
    DEVICE = "device", "device"
    PROGRAM = "program", "program name"
    OPTIONS = "options", "options"
    VERIFICATION = "verification", "verification"
    VERSION = "version", "version of the tool"
    LIBRARIES = "libraries", "versions of libraries"
    WINDOW = "window", "window"
    ITERATIONS = "iterations", "number of iterations"
    DTYPE = "dtype", "data type"
    SIZE = "size", "size in bytes"
    MATRIX = "matrix", "one of the two matrices"


class NotInOutput(Fact, frozen=True):
    """The output of the tool lacks this item; a value was assumed, or taken from elsewhere, if one is given."""

    item: MissingItem
    assumed: str = ""
    source: str = ""

    def render(self) -> str:
        """Return "data type (assumed: uint8)", "program name (the operation is from --operation)"."""
        note = f"assumed: {self.assumed}" if self.assumed else self.source
        return f"{self.item.text} ({note})" if note else self.item.text


def lacks(*items: MissingItem) -> list[NotInOutput]:
    """Return a fact for each item."""
    return [NotInOutput(item) for item in items]


class ImportDoubt(Fact, frozen=True):
    """What is doubtful in the output of a tool."""


class SkippedReason(_Word):
    """Why lines were skipped."""

    INCOMPLETE = "incomplete", "incomplete"
    UNREADABLE = "unreadable", "not readable"
    SIZE_ZERO = "size_zero", "size 0"
    SIZE_REPEATED = "size_repeated", "size rounded to that of the line before"
    QUANTIZED = "quantized", "quantized collectives"
    WAIVED = "waived", "waived by the tool: not possible on this machine"
    NO_TIME = "no_time", "no time"


class SkippedLines(ImportDoubt, frozen=True):
    """Some lines (or JSON objects) of the output are not in the rows."""

    count: int
    reason: SkippedReason
    first_line: int | None = None
    problem: str = ""
    unit: str = "line"

    def render(self) -> str:
        """Return "3 skipped lines (incomplete; first: line 7)"."""
        first = "" if self.first_line is None else f"; first: line {self.first_line}"
        return f"{plural(self.count, f'skipped {self.unit}')} ({self.reason.text}{first}{f': {self.problem}' if self.problem else ''})"


class RankMismatch(ImportDoubt, frozen=True):
    """Figures of the output do not fit the number of ranks; low > high: no number of ranks fits, high None: no upper end."""

    figures: str
    ranks: int
    operation: str
    low: int
    high: int | None

    def render(self) -> str:
        """Return "busbw / algbw does not fit 4 ranks of allreduce: it fits 8 ranks"."""
        if self.high is not None and self.low > self.high:
            fits = "no number of ranks fits"
        elif self.low == self.high:
            fits = f"it fits {plural(self.low, 'rank')}"
        else:
            fits = f"it fits {self.low} {'or more' if self.high is None else f'to {self.high}'} ranks"
        return f"{self.figures} does not fit {plural(self.ranks, 'rank')} of {self.operation}: {fits}"


class SingleRankTable(ImportDoubt, frozen=True):
    """The table is of one rank, which has no bus bandwidth; possibly the ranks ran as separate jobs."""

    text = (
        "one rank: no data crosses a link, and busbw is 0. If more ranks were started, they ran as separate jobs: the program was built "
        "without MPI=1, or the launcher does not fit its MPI"
    )


class AveragedGroups(ImportDoubt, frozen=True):
    """Several groups ran at the same time, and the times are averaged over them."""

    text = "{groups} groups ran at the same time (NCCL_TESTS_SPLIT): ranks are those of one group, times are averaged over all"
    groups: int


class OutOfBoundsValues(ImportDoubt, frozen=True):
    """The tool found wrong data."""

    text = "wrong data: the tool counted {values:value} out of bounds"
    values: int


class RateMismatch(ImportDoubt, frozen=True):
    """A printed bandwidth is not size / time. Rates in GB/s: `printed` as in the output, `computed` from size and time."""

    printed: str
    size_bytes: int
    computed: float
    line: int | None = None

    def render(self) -> str:
        """Return both rates."""
        where = "" if self.line is None else f"line {self.line}: "
        return (
            f"{where}algbw {self.printed} GB/s at {plural(self.size_bytes, 'byte')} is not size / time ({self.computed:.2f} GB/s); "
            "the time is used"
        )


class CallRateMismatch(ImportDoubt, frozen=True):
    """The printed bandwidth of some calls is not size / time."""

    text = "the printed bandwidth of {calls:call} is not size / time; the time is used"
    calls: int


class MessageRateMismatch(ImportDoubt, frozen=True):
    """Bandwidth and message rate disagree."""

    text = "bandwidth and message rate disagree in {lines:line} (first: line {first_line}); the bandwidth is used"
    lines: int
    first_line: int


class SizeMismatch(ImportDoubt, frozen=True):
    """Bandwidth and message rate do not fit the message size."""

    text = "line {line}: bandwidth and message rate do not fit a size of {size_bytes:byte}"
    line: int
    size_bytes: int


class ElementSizeMismatch(ImportDoubt, frozen=True):
    """The program prints sizes of 4-byte elements and moves larger ones."""

    text = (
        "{program} prints sizes of 4-byte elements, but moves {bytes_per_element} bytes per element to each rank: the sizes of the rows "
        "count these"
    )
    program: str
    bytes_per_element: int


class InterleavedJobs(ImportDoubt, frozen=True):
    """Several jobs wrote their lines into each other."""

    text = "the output of {jobs} jobs is interleaved: the job of each line is unknown"
    jobs: int


class RepeatedCases(ImportDoubt, frozen=True):
    """Each case occurs several times."""

    times: int
    has_header: bool

    def render(self) -> str:
        """Return the number of times, and what that may mean."""
        header = "with one header, so they may be repetitions within one start (-N), not launches" if self.has_header else "without headers"
        return f"each case occurs {self.times} times, {header}"


class FailedValidation(ImportDoubt, frozen=True):
    """The tool reported wrong data outside of its columns: the first of these lines, and their number."""

    line: int
    message: str
    lines: int = 1

    def render(self) -> str:
        """Return the message of the tool."""
        return f"wrong data: line {self.line}: {self.message}{_and_more(self.lines)}"


class AbortedRun(ImportDoubt, frozen=True):
    """A tool, library or launcher reported that the run failed: the first of these lines, and their number."""

    line: int
    message: str
    lines: int = 1

    def render(self) -> str:
        """Return the message, and what follows from it."""
        return f"the run failed, so rows may be missing: line {self.line}: {self.message}{_and_more(self.lines)}"


def _and_more(lines: int) -> str:
    return f" (and {plural(lines - 1, 'more line')})" if lines > 1 else ""


class MixedMemory(ImportDoubt, frozen=True):
    """The buffers of the two ranks are in different kinds of memory."""

    text = "the buffers of the two ranks are in different memory: {kinds:list}"
    kinds: Sequence[str]


class ConcurrentThreads(ImportDoubt, frozen=True):
    """Several threads ran at the same time."""

    text = "{threads} threads ran at the same time: times are those of one thread"
    threads: int


class InputBuffers(ImportDoubt, frozen=True):
    """Each process had several input buffers, which it adds up first."""

    text = "each process has {buffers} input buffers: the time includes their sum within the process"
    buffers: int


class IncompleteLog(ImportDoubt, frozen=True):
    """The log ends before the command."""

    text = "the log ends before the command did: later rows are missing"


class FailedCommand(ImportDoubt, frozen=True):
    """The command that wrote the log failed."""

    text = "the command ended with exit code {exit_code}: see the log for the reason"
    exit_code: int


Missing = NotInOutput | SkippedLines
