"""What a reader returns: one `PeerRun` per table of the tool's output, and the tables that it skipped.

A row's time is the tool's own statistic. Bandwidths follow from size and time by collbench's definitions; the printed bandwidths are
compared with them, not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from collbench.errors import UsageError
from collbench.results.row import Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

IMPORTED = "imported"  # the flag on every such row
RANKS_DOUBTFUL = "ranks_doubtful"  # the flag where the printed bandwidths contradict the number of ranks
_T = TypeVar("_T")
Arrays = Mapping[str, "NDArray[Any]"]


@dataclass(frozen=True)
class Contradiction:
    """An option that a table contradicts: the table keeps what it proves."""

    where: str
    option: str
    given: str
    found: str


@dataclass(frozen=True)
class Skipped:
    """A table that cannot be imported: its first line in the file (0: unknown), and the reason with its remedy."""

    line: int
    reason: str


@dataclass(frozen=True)
class PeerRun:
    """One table of a tool's output.

    tool          "nccl-tests", "rccl-tests", "osu", "imb", "perftest", "param", "gloo-benchmark" …
    version       of the tool, None where the output has none
    program       "all_reduce_perf", "osu_allreduce", "IMB-MPI1 Allreduce", "ib_write_bw"
    statistic     what a time is: "mean over 20 iterations, averaged over the ranks"
    rows          in the order of the output
    hosts         names by rank, empty where they are unknown
    facts         what else the output contains, JSON-ready: {"warmup": 5, "iterations": 20, "devices": [...]}
    missing       what rows of collbench have and the output lacks, a short phrase each: "no interval", "no per-rank data"
    doubts        what does not fit, a sentence each: a rank count that busbw / algbw contradicts, figures that do not agree
    contradicted  options that do not apply to this table
    arrays        samples of a row by its index in `rows`, where the tool prints them: arrays as the run folder has them
    """

    tool: str
    version: str | None
    program: str
    statistic: str
    rows: list[Row]
    hosts: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    missing: Sequence[str] = ()
    doubts: Sequence[str] = ()
    contradicted: Sequence[Contradiction] = ()
    arrays: Mapping[int, Arrays] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """What a file contains: the tables that were read, and those that were skipped."""

    runs: Sequence[PeerRun]
    skipped: Sequence[Skipped] = ()


@dataclass(frozen=True)
class Given:
    """What the user adds to an output, None: nothing. It fills gaps; what a table proves stays.

    file    the file's name without its folder, a hint alone: "nccl_allgather.log" decides between operations that print the same
    """

    ranks: int | None = None
    nodes: int | None = None
    operation: str | None = None
    dtype: str | None = None
    file: str = ""


@dataclass(frozen=True)
class Reader:
    """One format.

    name    the word for --as: "nccl-tests", "osu", "imb", "perftest", "param", "gloo" …
    tools   what prints it, for help and docs
    knows   whether the first lines (at most 400, without line ends) look like it
    read    all lines -> what is in them. Raises UsageError with line and remedy where nothing can be read
    """

    name: str
    tools: str
    knows: Callable[[Sequence[str]], bool]
    read: Callable[[Sequence[str], Given], Reading]


def read_tables(tables: Iterable[_T], runs_of: Callable[[_T], Iterable[PeerRun]], line_of: Callable[[_T], int]) -> Reading:
    """What is in the tables; one that cannot be read is skipped.

    Raises UsageError where all are skipped, and where an option contradicts each one.
    """
    runs, skipped = list[PeerRun](), list[Skipped]()
    for table in tables:
        try:
            runs += runs_of(table)
        except UsageError as error:
            skipped.append(Skipped(line_of(table), str(error)))
    if skipped and not runs:
        more = f" (and {len(skipped) - 1} more tables cannot be read)" if len(skipped) > 1 else ""
        raise UsageError(skipped[0].reason + more)
    refuse_useless_options(runs)
    return Reading(runs, skipped)


def refuse_useless_options(runs: Sequence[PeerRun]) -> None:
    """Raises UsageError for an option that every table contradicts: the user means another file."""
    for option in dict.fromkeys(each.option for run in runs for each in run.contradicted):
        against = [next((each for each in run.contradicted if each.option == option), None) for run in runs]
        first = against[0]
        if first is not None and all(against):
            raise UsageError(
                f"{first.where} is of {first.found}, and {option} is {first.given}: leave {option} out, or name the file that it belongs to"
            )
