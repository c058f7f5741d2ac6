"""The result of a reader: one `ImportedTable` per table of the tool's output, and the skipped tables.

A row's time is the tool's own statistic. Bandwidths follow from size and time by collbench's definitions. They are compared with the
printed bandwidths, which are not stored.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.plugins.importers.notes import ImportDoubt, Missing
from collbench.results.row import Row
from collbench.untrusted import parse_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collbench.plugins.importers.log_context import Contexts


_COLOURS = re.compile(r"\x1b\[[0-9;?]{0,40}[A-Za-z]")
_PACKED = {b"\x1f\x8b": "gunzip", b"\x28\xb5\x2f\xfd": "unzstd", b"\xfd7zXZ": "unxz", b"BZh": "bunzip2", b"PK\x03\x04": "unzip"}
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # PowerShell's > writes it
_ENDS = (b"\n", b"\r", b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\xc2\x85", b"\xe2\x80\xa8", b"\xe2\x80\xa9")  # of str.splitlines
_DOCKER = b'{"log":'
_LONGEST_LINE = 16 << 20  # bytes; each may take four in memory
_MOST_LINES = 1 << 22  # an empty line takes one byte in the file, and 8 in memory


def lines_of(data: bytes) -> list[str]:
    """Return the lines without line ends and colors; UTF-16 by its mark, else UTF-8. A label before each line becomes a tag.

    Raises UsageError for compressed or too long text.
    """
    tool = next((tool for start, tool in _PACKED.items() if data.startswith(start)), None)
    if tool:
        raise UsageError(f"the file is compressed: unpack it first ({tool})")
    if len(data) > _MOST_LINES and sum(map(data.count, _ENDS)) > _MOST_LINES:
        raise UsageError(f"the file has more than {_MOST_LINES:,} lines: extract the part with the tables")
    lines = _without_docker(_lines(data)) if _DOCKER in data else _lines(data)
    return _with_tags([_COLOURS.sub("", line) for line in lines] if b"\x1b" in data else list(lines))


def _lines(data: bytes) -> Iterator[str]:
    """Yield one line after the other, since the whole text would need one to four times the memory of the file in addition."""
    if data.startswith(_WIDE):
        yield from data.decode("utf-16", errors="replace").splitlines()
        return
    for number, piece in enumerate(io.BytesIO(data.removeprefix(codecs.BOM_UTF8)), 1):
        if len(piece) > _LONGEST_LINE:
            raise UsageError(f"line {number} is longer than {_LONGEST_LINE >> 20} MiB: extract the part with the tables")
        yield from piece.decode(errors="replace").splitlines()


def _without_docker(lines: Iterable[str]) -> Iterator[str]:
    """Yield the texts in the records of Docker's log driver json-file: {"log": "text\\n", "stream": "stdout", "time": …}.

    Docker cuts lines of 16 KiB into records; the text without a line end is continued in the next record, and its line is empty.
    """
    unfinished = ""
    for line in lines:
        text = None
        if line.lstrip().startswith('{"log":'):
            with suppress(ValueError, RecursionError):
                text = parse_json(line).get("log")
        if not isinstance(text, str):
            yield line
        elif text.endswith("\n") or len(unfinished) > _LONGEST_LINE:
            yield (unfinished + text).rstrip("\r\n")
            unfinished = ""
        else:
            unfinished += text
            yield ""
    if unfinished:
        yield unfinished


# What launchers, log collectors and mail print before each line: mpirun, srun, PALS, pdsh, torchrun, Ray, kubectl, journald.
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d[\d:.,]{0,24}(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?(?: (?:stdout|stderr) [FP](?=\s|$))?"  # F: of the CRI
_DAY = rf"(?:<\d{{1,3}}>)?(?:[A-Z][a-z]{{2}} )?[A-Z][a-z]{{2}} {{1,2}}\d{{1,2}} {_CLOCK}(?: \d{{4}})?"  # of syslog, ts and mpirun
_STAMP = rf"(?:(?:[A-Z][a-z]{{2}} )?{_ISO}|{_DAY}|\[{_ISO}\])(?=[\s<\[]|$)"
_POD = r"\[(?:pod|label)/[^\]\s]{1,512}\]:?"  # kubectl logs --prefix; a label that `_with_tags` rewrote
# [1,0]<stdout>: of Open MPI, [0] of hydra's -l, [rank0]: and [default0]: of torchrun; always with a digit. [rank 0] of fabtests.
_BRACKET = r"\[(?=[^\]\s]{0,119}\d|rank )(?:rank )?[\w.,:@/-]{1,120}\](?:<std(?:out|err|diag)>)?\s?:?(?!\s?NCCL )|<std(?:out|err|diag)>:"
_RAY = r"\((?=[^()]{0,200}\bpid=\d)[^()]{1,320}\)"  # (worker1, rank=1, pid=100, ip=10.0.0.2) of SkyPilot, (main pid=7) of Ray
_COMPOSE = r"[A-Za-z0-9][\w.-]{0,79}\s{1,40}\|(?=\s)"
_QUOTE = r">"  # of mail, forums and Markdown
_TITLES = r"(?!(?:Final|algbw|busbw|pos|test_info|results\w{0,40}):)"
# node01: of pdsh, 0: of srun -l. A table, a comment or JSON must follow, since others are titles: "Final:" of ucx_perftest.
_LABEL = rf"{_TITLES}[A-Za-z0-9_.-]{{1,80}}:(?=\s{{0,40}}[#{{|+]|\s{{1,40}}\d)"
_CERTAIN = rf"{_STAMP}|{_QUOTE}|({_POD}|{_BRACKET}|{_RAY}|{_COMPOSE})"
_CERTAIN_PREFIX = re.compile(rf"\s*(?:{_CERTAIN})")
_PREFIX = re.compile(rf"\s*(?:{_CERTAIN}|({_LABEL}))")
_MOST_PREFIXES = 6  # for example quoted mail with kubectl's prefix, then a time stamp, then mpirun's tag
_REACH = 1024  # characters of a line that are searched, since a long line of blanks would take long
_STARTS = re.compile(r"[\s\dA-Za-z\[(<>]")
_BARE_TAG = re.compile(r"\[\d{1,7}\]:?$")
# "n1.example 0:" of PALS, "n1 mpirun[812]:" of syslog and journald, "0:" of srun -l; certain only if nearly all lines have one.
_COMMON_LABEL = re.compile(rf"\s{{0,8}}{_TITLES}([A-Za-z0-9][\w.-]{{0,255}}(?: [\w./@-]{{1,80}}(?:\[\d{{1,10}}\])?)?):(?=\s|$)")
_NOT_IN_TAGS = re.compile(r"[^\w.@-]+")
_LABELLED_LINES = 400  # from which it is decided
_LABELLED_SHARE = 0.9
_FEWEST_LABELLED = 3


class Tagged(NamedTuple):
    """A line without its prefixes, and the prefixes. Lines of one writer have the same prefixes."""

    writer: str
    text: str


def _end_of_prefixes(line: str, prefix: re.Pattern[str]) -> tuple[int, list[str]]:
    """Return where the text of the line begins, and the tags before it."""
    end = 0
    tags: list[str] = []
    for _ in range(_MOST_PREFIXES):
        match = prefix.match(line, end, _REACH)
        if match is None or match.end() == end:
            break
        end = match.end()
        if match.lastindex:
            tags.append(match[match.lastindex].strip())
    return end, tags


def split_prefix(line: str) -> Tagged:
    """Return the line without prefixes.

    If a program prints a line in pieces, the launcher repeats its tag inside the line: "[1,0]<stdout>: 8 2 float[1,0]<stdout>: 9.1".
    These tags are removed, too.
    """
    if line[:1] == "#" or not _STARTS.match(line):
        return Tagged("", line)
    end, tags = _end_of_prefixes(line, _PREFIX)
    text = line[end:]
    if not tags:
        return Tagged("", text)
    tag = tags[-1]
    if tag[0] == "[" and tag in text and not (_BARE_TAG.match(tag) and "NCCL" in text):
        text = text.replace(tag, " ")
    return Tagged(" ".join(tags), text)


def without_prefixes(lines: Iterable[str]) -> list[str]:
    """Return the lines as their tool printed them. One blank after a prefix is part of the prefix."""
    return [text if text is line else text.removeprefix(" ") for line in lines for text in (split_prefix(line).text,)]


def _with_tags(lines: list[str]) -> list[str]:
    """Return the lines with "[label/n1/0]:" in place of a label such as "n1 0:", if nearly all lines have one; else the same lines.

    In a single line the label could be text of a tool: "Device 0: NVIDIA H100". Labels that do not repeat are names of values.
    """
    head = list(islice((line for line in lines if line.strip()), _LABELLED_LINES))
    labels = [label[1] for label in map(_common_label, head) if label is not None]
    if len(labels) < max(_FEWEST_LABELLED, _LABELLED_SHARE * len(head)) or 2 * len(set(labels)) > len(labels):
        return lines
    return [
        line if label is None else f"{line[: label.start()]} [label/{_NOT_IN_TAGS.sub('/', label[1])}]:{line[label.end() :]}"
        for line, label in zip(lines, map(_common_label, lines), strict=True)
    ]


def _common_label(line: str) -> re.Match[str] | None:
    end, _ = _end_of_prefixes(line, _CERTAIN_PREFIX)
    return _COMMON_LABEL.match(line, end, end + _REACH)


RANKS_DOUBTFUL = "ranks_doubtful"  # the flag of rows with printed bandwidths that contradict the number of ranks
Arrays = Mapping[str, "NDArray[Any]"]


class Contradiction(msgspec.Struct, frozen=True):
    """An option that a table contradicts. The table keeps the value that it proves."""

    where: str
    option: str
    given: str
    found: str


class Skipped(msgspec.Struct, frozen=True):
    """A table that cannot be imported: its first line in the file (0: unknown), and the reason with its remedy."""

    line: int
    reason: str


class UnsupportedTool(Skipped, frozen=True):
    """Output of a tool that cannot be imported."""


class ImportedTable(msgspec.Struct, frozen=True):
    """One table of a tool's output.

    tool          "nccl-tests", "rccl-tests", "osu", "imb", "perftest", "param", "gloo-benchmark" …
    version       of the tool, None if the output has none
    program       "all_reduce_perf", "osu_allreduce", "IMB-MPI1 Allreduce", "ib_write_bw"
    statistic     what a time is: "mean over 20 iterations, averaged over the ranks"
    rows          in the order of the output
    hosts         names by rank, empty if they are unknown
    facts         what else the output contains, JSON-ready: {"warmup": 5, "iterations": 20, "devices": [...]}
    missing       what rows of collbench have and the output lacks
    doubts        what does not fit: a rank count that busbw / algbw contradicts, figures that do not agree
    contradicted  options that do not apply to this table
    arrays        samples of a row by its index in `rows`, where the tool prints them: arrays as the run folder has them
    line          of the file where the table begins, 0 if it is unknown; `read_tables` sets it
    """

    tool: str
    version: str | None
    program: str
    statistic: str
    rows: list[Row]
    hosts: Sequence[str] = ()
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)
    missing: Sequence[Missing] = ()
    doubts: Sequence[ImportDoubt] = ()
    contradicted: Sequence[Contradiction] = ()
    arrays: Mapping[int, Arrays] = msgspec.field(default_factory=dict)
    line: int = 0


class Reading(msgspec.Struct, frozen=True):
    """What a file contains: the tables that were read, and those that were skipped."""

    runs: Sequence[ImportedTable]
    skipped: Sequence[Skipped] = ()


class UserInput(msgspec.Struct, frozen=True):
    """The user's additions to an output, None: not given. They fill gaps, and never replace a value that a table proves.

    file    the file's name without its folder, only a hint: "nccl_allgather.log" decides between operations with the same columns
    """

    ranks: int | None = None
    nodes: int | None = None
    operation: str | None = None
    dtype: str | None = None
    file: str = ""


def lines_with(*patterns: re.Pattern[str], words: Sequence[str] = ("",)) -> Callable[[Sequence[str]], bool]:
    """Return the function that returns whether one of some lines has one of these words, which is fast, and one of these patterns."""

    def knows(lines: Sequence[str]) -> bool:
        return any(pattern.search(line) for line in lines if any(word in line for word in words) for pattern in patterns)

    return knows


class Numbered(Protocol):
    """A reader's table; number: its first line in the file, the first of which has the number 1."""

    @property
    def number(self) -> int: ...  # noqa: D102


T = TypeVar("T", bound=Numbered)


class Importer(msgspec.Struct, Generic[T], frozen=True):
    """One format: how its lines are recognized, which tables they hold, and what a table means.

    name     the value for --as: "nccl-tests", "osu", "imb", "perftest", "param", "gloo" …
    tools    the tools that print it, for help and docs
    knows    returns whether one of these lines looks like it; they are without what launchers print before them
    tables   yields the reader's tables. Raises UsageError with line and remedy if none can be read
    runs     yields the content of a table, from it, the user's additions and the log around it. Raises UsageError as `tables` does
    output   what was expected, for the error about a file without results: "OSU's tests"; empty: the whole error
    ranks    the only number of ranks that the tool has; None: any
    check    raises UsageError if the user's additions do not fit the tables
    tagged   whether `tables` gets the lines with what launchers print before them
    """

    name: str
    tools: str
    knows: Callable[[Sequence[str]], bool]
    tables: Callable[[Sequence[str]], Iterable[T]]
    runs: Callable[[T, UserInput, Contexts], Iterable[ImportedTable]]
    output: str = ""
    empty: str = ""
    ranks: int | None = None
    check: Callable[[Sequence[T], UserInput], None] | None = None
    tagged: bool = False

    def read(self, lines: Sequence[str], user_input: UserInput) -> Reading:
        """Return the content of all lines, as they are in the file. A table that cannot be read is skipped.

        Raises UsageError if all tables are skipped, if none has rows or doubts, or if an option contradicts each one.
        """
        from collbench.plugins.importers.log_context import Contexts

        if self.ranks is not None and user_input.ranks not in (None, self.ranks):
            tool = self.name.replace("-", "_")
            raise UsageError(f"--ranks {user_input.ranks} is not valid for {tool}, which has {self.ranks} ranks: omit --ranks")
        tables = list(self.tables(lines if self.tagged else without_prefixes(lines)))
        if self.check is not None:
            self.check(tables, user_input)
        contexts = Contexts(lines)
        runs: list[ImportedTable] = []
        skipped: list[Skipped] = []
        for table in tables:
            try:
                for run in self.runs(table, user_input, contexts):
                    if run.rows:
                        runs.append(replace(run, line=table.number))
                    elif run.doubts:
                        reason = f"the table of {run.program} at line {table.number} has no readable line: {run.doubts[0].render()}"
                        skipped.append(Skipped(table.number, reason))
            except UsageError as error:
                skipped.append(Skipped(table.number, str(error)))
        if skipped and not runs:
            more = f" (and {len(skipped) - 1} more tables cannot be read)" if len(skipped) > 1 else ""
            raise UsageError(skipped[0].reason + more)
        if not runs:
            remedy = "use the output from its title on, with the lines of figures"
            raise UsageError(self.empty or f"no results of {self.output} found: {remedy}")
        for first in runs[0].contradicted:
            if all(first.option in [contradiction.option for contradiction in run.contradicted] for run in runs):
                remedy = f"omit {first.option}, or use the file that it belongs to"
                raise UsageError(f"{first.where} has {first.found}, not {first.option} {first.given}: {remedy}")
        return Reading(runs, skipped)
