"""Output formats of rows: the table, CSV, JSON lines and OpenMetrics; parts of Markdown; files that are written in one step."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, TextIO

import msgspec

from collbench.columns import ValueColumn, value_columns
from collbench.errors import UsageError
from collbench.plugin import measurement_mode
from collbench.report import FORMATS
from collbench.report.answer import answer_lines
from collbench.report.blocks import DEFAULT_VIEW, BlockLayout, View, sub_lines
from collbench.report.cases import choice_sentences, not_available
from collbench.report.frame import Line, csv_record, csv_text, printable, text_lines
from collbench.report.plan import PlanSummary
from collbench.report.screen import write_line
from collbench.results.flags import explain, flag_name
from collbench.results.quality import SHOWN_FLAGS, quality_of, run_quality
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.results.store import to_line

_FEWEST_SIZES = 4  # two ends, a size on the line between them, and one that is not
# Why sampling stopped, by the code in a row's `stopped`.
_STOPPED = {
    "precision": "precision",
    "out_of_reach": "out of reach",
    "max_time": "max-time",
    "most_samples": "most samples",
    "iterations": "iterations",
}


class RowWriter(ABC):
    """An output format: makes lines of the rows of a run, one row after the other.

    room, view    the width of a terminal, which no line exceeds (None: any width), and the columns of the table
    for_programs  whether rows are printed as soon as they are measured, with one head for several tables; else in their order
    one_run       whether its text describes one run, so that several tables cannot follow one another
    absent        begins the one line of a backend with only n/a rows for the same reason; None: each row is printed
    """

    for_programs: ClassVar[bool] = False
    one_run: ClassVar[bool] = False
    absent: ClassVar[str | None] = None

    def __init__(self, room: int | None = None, view: View = DEFAULT_VIEW) -> None:
        self._room = room
        self._view = view

    def start(self, plan: PlanSummary) -> list[Line]:
        """Return the lines before the first row."""
        return []

    @abstractmethod
    def row(self, row: Row) -> list[Line]:
        """Return the lines of a row."""

    def end(self) -> list[Line]:
        """Return the lines after the last row."""
        return []


class TableWriter(RowWriter):
    """The table for people: a block per operation and backend, a line per row, and a foot that explains what occurred.

    `rows` that are known beforehand make the widths exact. Without them the foot also names ranks that delay the others, sizes at which
    the automatic choice of algorithm loses, and the answer.
    """

    absent = ""

    def __init__(self, room: int | None = None, view: View = DEFAULT_VIEW, rows: Sequence[Row] = ()) -> None:
        super().__init__(room, view)
        self._rows = rows
        self._absent = _absent(rows)
        self._printed: list[Row] = []

    def start(self, plan: PlanSummary) -> list[Line]:
        """Return what is the same in all rows."""
        self._plan = plan
        self._layout = BlockLayout(plan, self._room, self._view, self._rows)
        return self._layout.facts()

    def row(self, row: Row) -> list[Line]:
        """Return the lines of the row, after the title of its block if it is the first one."""
        if row.backend in self._absent:  # one line, in place of its first row
            count = self._absent[row.backend]
            self._absent[row.backend] = 0
            return _line_of_absent(row, count, room=self._room) if count else []
        self._printed.append(row)
        return [*self._layout.row(row), *sub_lines(row, self._view, self._room)]

    def end(self) -> list[Line]:
        """Return how to read the rows above: intervals, quality, slow ranks; then the answer, if the rows were not known beforehand."""
        quiet = self._view.quiet
        texts = [] if quiet else self._how_to_read(self._printed)
        foot = [line for text in texts for line in text_lines(text, self._room, "foot")]
        answer = [] if self._rows else list(answer_lines(self._printed, self._room, self._plan.run, quiet=quiet))
        return [*foot, Line(""), *answer] if answer else foot

    def _how_to_read(self, rows: Sequence[Row]) -> list[str]:
        plan = self._plan
        lines = []
        has_interval = any(row.time_s is not None and row.time_s.ci_low is not None for row in rows)
        if has_interval and plan.launches > 1:
            lines.append(f"CI: 95 % confidence interval over the medians of {plan.launches} launches")
        elif has_interval:
            lines.append("CI: 95 % confidence interval of the median within one launch; another launch may differ by more")
        lines += self._layout.legend(rows)
        overlap = measurement_mode("overlap") if any(row.overlap for row in rows) else None
        if overlap:
            lines += overlap.legend(rows)
        if any(row.message_rate for row in rows):
            lines.append(
                "pairs: all ran at the same time; the time ends with the last pair; busbw and messages/s are those of all pairs together"
            )
        if any(row.groups and not row.message_rate for row in rows):
            lines.append("groups: all ran at the same time; times, busbw and percentages are those of the slowest group")
        if self._view.verbose:
            lines += [reason.render() for reason in run_quality(rows).reasons]  # the line on quality has only the main one
            lines += [*stopped_by(rows), *explain(flag for row in rows for flag in row.flags)]
        else:
            lines += other_flags(rows)
        if not self._rows:
            lines += [*map(printable, choice_sentences(rows)), *_dip_sentences(rows), *self._slow_sizes(), *self._stragglers()]
        return lines

    def _slow_sizes(self) -> list[str]:
        """Return at most one sentence, on sizes that take longer than the run's other sizes explain."""
        if len(self._printed) < _FEWEST_SIZES or not self._plan.run:
            return []
        from collbench.analysis.expected_time import with_expectations
        from collbench.report.expected_time import slow_sizes_sentence

        run = Run(Path(self._plan.run), {}, self._printed)
        return [printable(text) for text in slow_sizes_sentence(with_expectations(self._printed, run))]

    def _stragglers(self) -> list[str]:
        if not self._plan.run or not any(row.samples for row in self._printed):
            return []
        from collbench.analysis.stragglers import stragglers

        run = Run(Path(self._plan.run), {"rank_map": list(self._plan.rank_map)}, self._printed)
        return [printable(straggler.sentence()) for straggler in stragglers(run)]


def _dip_sentences(rows: Sequence[Row]) -> list[str]:
    if len(rows) < 2:
        return []
    from collbench.report.guidelines import dip_sentence
    from collbench.results.dips import dips

    return [printable(dip_sentence(dip)) for dip in dips(rows)]


def other_flags(rows: Iterable[Row]) -> list[str]:
    """Return how many rows have each flag that the quality does not cover: "flags: simulated 22, size rounded 3; `-v` explains them"."""
    counts = Counter(flag for row in rows for flag in row.flags if flag not in SHOWN_FLAGS)
    names = ", ".join(f"{flag_name(flag)} {counts[flag]}" for flag in sorted(counts, key=str))
    return [printable(f"flags: {names}; `-v` explains them")] if names else []


def stopped_by(rows: Iterable[Row]) -> list[str]:
    """Return why no more samples were taken, in one line: "stopped by: precision 28, max-time 6"; no line if no row has a reason."""
    reasons = Counter(row.stopped for row in rows if row.stopped)
    order = [*_STOPPED, *sorted(reasons.keys() - _STOPPED.keys())]
    counts = [f"{_STOPPED.get(reason, printable(reason))} {reasons[reason]}" for reason in order if reasons[reason]]
    return [f"stopped by: {', '.join(counts)}"] if counts else []


# Rows as CSV (RFC 4180): a column for each field of a row. Units are in the names; lists and objects are JSON.


class CsvWriter(RowWriter):
    """A header and one record per row. The first column is the name of the run, so that files can be joined."""

    for_programs = True

    def start(self, plan: PlanSummary) -> list[Line]:
        """Return the header."""
        self._run = Path(plan.run).name
        return [csv_record(csv_columns())]

    def row(self, row: Row) -> list[Line]:
        """Return the record."""
        return [csv_record(map(csv_text, [self._run, *row_values(row)]))]


class CsvAgainstBaseline(CsvWriter):
    """As `CsvWriter`, for rows with a baseline's ceiling: the values are those of the rows themselves, and the last column is the
    percentage of the bandwidth that was expected in the baseline.
    """

    def start(self, plan: PlanSummary) -> list[Line]:
        """Return the header."""
        super().start(plan)
        return [csv_record([*csv_columns(), "percent_of_baseline_ceiling"])]

    def row(self, row: Row) -> list[Line]:
        """Return the record."""
        percent = row.comparison.percent if row.comparison else None
        return [csv_record(map(csv_text, [self._run, *row_values(row.own or row), percent]))]


def csv_columns() -> list[str]:
    """Return the names in the header."""
    return ["run", *(column.name for column in value_columns(Row)), "quality"]


def row_values(row: Row) -> list[Any]:
    """Return the row's values of the columns besides `run`."""
    quality = quality_of(row)
    return [*(column.value(row) for column in value_columns(Row)), quality.word if quality else None]


# Gauges in OpenMetrics, for Prometheus and for node_exporter's textfile collector.
#
# That collector reads only the older text format (prometheus/node_exporter#1988) and rejects a whole file for one unknown line. So there
# are only gauges, without timestamps, and no series occurs twice. Units are in the names; an unknown value has no sample.

_PREFIX = "collbench"


class Metric(msgspec.Struct, frozen=True):
    """A metric. means: its help text, without quotes and backslashes, which the two formats escape differently.

    record, column  the class of records of which it is a column, and the column; None: of no column
    """

    unit: str
    means: str
    record: type | None = None
    column: ValueColumn | None = None

    @classmethod
    def of(cls, record: type, name: str, note: str = "") -> Metric:
        """Return the metric of a declared column; note: what to add to its meaning."""
        column = next(column for column in value_columns(record) if column.name == name)
        return cls(column.unit.metric, f"{column.about[:1].lower()}{column.about[1:].removesuffix('.')}{note}", record, column)

    def sample(self, name: str, labels: Mapping[str, str], value: float | None) -> Sample:
        """Return a sample of a value of the column."""
        per = self.column.unit.per if self.column else 1
        return Sample(name, labels, None if value is None else value / per)


class Sample(msgspec.Struct, frozen=True):
    """A value of a metric, None if it is unknown."""

    name: str
    labels: Mapping[str, str]
    value: float | None


def column_samples(metrics: Mapping[str, Metric], record: object, labels: Mapping[str, str]) -> Iterator[Sample]:
    """Yield the metrics that are columns of a record's class; of a column with a value for each allocation with the label "strike"."""
    for name, metric in metrics.items():
        if metric.column is None or metric.record is None or not isinstance(record, metric.record):
            continue
        value = metric.column.value(record)
        if isinstance(value, tuple):
            yield from (metric.sample(name, {**labels, "strike": str(strike)}, part) for strike, part in enumerate(value, 1))
        else:
            yield metric.sample(name, labels, value)


def metric_name(name: str, unit: str) -> str:
    """Return the whole name of a metric, as files and dashboards have it: "collbench_time_seconds"."""
    return f"{_PREFIX}_{name}{f'_{unit}' if unit else ''}"


def exposed(metrics: Mapping[str, Metric], samples: Iterable[Sample]) -> str:
    """Return the text of the file, metrics in the order of `metrics`. Of a series that occurs twice the last value remains.

    A store has several hundred thousand samples, of which those of a row share their labels: their text is made once.
    """
    by_name: dict[str, dict[str, float | None]] = {name: {} for name in metrics}
    labels: Mapping[str, str] | None = None
    for sample in samples:
        if sample.labels is not labels:
            labels = sample.labels
            text = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in sorted(labels.items()))
        by_name[sample.name][text] = sample.value
    lines: list[str] = []
    for name, metric in metrics.items():
        values = [(text, float(value)) for text, value in by_name[name].items() if value is not None and isfinite(value)]
        if values:
            whole = metric_name(name, metric.unit)
            lines += [f"# HELP {whole} {metric.means}", f"# TYPE {whole} gauge"]
            if metric.unit:
                lines.append(f"# UNIT {whole} {metric.unit}")
            lines += [f"{whole}{{{text}}} {value!r}" if text else f"{whole} {value!r}" for text, value in values]
    return "\n".join([*lines, "# EOF", ""])


_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


# Rows as JSON lines: as in cells.jsonl, and their figures.


class JsonWriter(RowWriter):
    """One object per row."""

    for_programs = True

    def row(self, row: Row) -> list[Line]:
        """Return the object of the row."""
        from collbench.records import printed

        return [Line(to_line(printed(row)))]


# Outputs of a report beside the table: files, or stdout.

STDOUT = Path("-")


class Outputs(msgspec.Struct, frozen=True):
    """The FILE of each option that writes one, None if it is not given. `csv` or `markdown` may be STDOUT."""

    csv: Path | None = None
    html: Path | None = None
    markdown: Path | None = None
    openmetrics: Path | None = None
    trace: Path | None = None

    def check(self) -> None:
        """Raise UsageError for an output that cannot go to stdout, and for two outputs on stdout."""
        if self.csv == self.markdown == STDOUT:
            raise UsageError("--csv and --markdown cannot both write to stdout: give one of them a FILE")
        for option, path in (("--html", self.html), ("--openmetrics", self.openmetrics), ("--trace", self.trace)):
            if path == STDOUT:
                raise UsageError(f"{option} cannot write to stdout: give it a FILE")


def write_whole(path: Path, text: str | Iterable[str], option: str) -> None:
    """Write a file in one step: a program that reads it meanwhile (a collector, a browser) gets the whole old or the whole new text.

    Of a text in pieces only one piece is in memory at a time.

    A path that is not a regular file (a pipe, /dev/stdout) is written directly. Raises UsageError with `option` if that fails.
    """
    pieces = [text] if isinstance(text, str) else text
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            with target.open("w", encoding="utf-8", newline="") as file:
                file.writelines(pieces)
        else:
            _by_rename(target, pieces)
    except (OSError, RuntimeError) as error:  # RuntimeError: a symbolic link to itself
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"{option} {path} cannot be written ({reason}): choose another file") from error


def check_file(path: Path, option: str) -> None:
    """Raise UsageError with `option`, before the work, if a file cannot be written: stdout, a folder, or in a folder that is missing."""
    if path == STDOUT:
        raise UsageError(f"{option} cannot write to stdout: give it a FILE")
    folder = path.parent
    reason = ""
    if path.is_dir():
        reason = "it is a folder"
    elif not folder.is_dir():
        reason = f"the folder {folder} is missing"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        reason = "permission denied"
    if reason:
        raise UsageError(f"{option} {path} cannot be written ({reason}): choose another file")


def confirm_written(paths: Iterable[Path | None], err: TextIO) -> None:
    """Print "wrote FILE" for each regular file among the outputs of a command; not for None and STDOUT."""
    for path in paths:
        if path is not None and path != STDOUT and path.is_file():
            write_line(err, printable(f"wrote {path}"))


def _by_rename(target: Path, pieces: Iterable[str]) -> None:
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with suppress(FileNotFoundError):
            draft.unlink()
        with draft.open("x", encoding="utf-8", newline="") as file:  # "x": do not follow an existing symbolic link
            file.writelines(pieces)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


class OneLinePerAbsentBackend(RowWriter):
    """Passes rows on to a writer; a backend with only n/a rows, all for the same reason, becomes one line.

    It holds the rows of a backend while their reasons are equal. `room` is the width of a terminal.
    """

    def __init__(self, writer: RowWriter, *, room: int | None = None) -> None:
        super().__init__(room)
        self._writer = writer
        self._held: list[Row] = []
        self._mixed: set[str] = set()  # backends with at least one row
        self._planned: Mapping[str, int] = {}

    def start(self, plan: PlanSummary) -> list[Line]:
        """Return the lines before the first row."""
        self._planned = plan.by_backend
        return self._writer.start(plan)

    def row(self, row: Row) -> list[Line]:
        """Return the lines of a row; nothing while it is held."""
        same = not self._held or (self._held[0].backend, self._held[0].na) == (row.backend, row.na)
        lines = [] if same else self._release()
        if row.na is None or row.backend in self._mixed:
            self._mixed.add(row.backend)
            return [*lines, *self._writer.row(row)]
        self._held.append(row)
        return lines if len(self._held) < self._planned.get(row.backend, 0) else [*lines, *self._collapse()]

    def end(self) -> list[Line]:
        """Return the lines after the last row."""
        return [*self._collapse(), *self._writer.end()]

    def _release(self) -> list[Line]:
        self._mixed |= {row.backend for row in self._held}
        lines = [line for row in self._held for line in self._writer.row(row)]
        self._held = []
        return lines

    def _collapse(self) -> list[Line]:
        if len(self._held) < 2:
            return self._release()
        lines = _line_of_absent(self._held[0], len(self._held), self._writer.absent or "", self._room)
        self._held = []
        return lines


def _line_of_absent(row: Row, count: int, comment: str = "", room: int | None = None) -> list[Line]:
    """Return the line of a backend with so many n/a rows; one that begins as a comment is never broken."""
    text = f"{comment}{row.backend}, {count} cases: {not_available(row)}"
    return list(text_lines(text, None, "") if comment else text_lines(text, room, "na"))


def make_writer(format: str, room: int | None, view: View) -> RowWriter:
    """Return the writer of a format in FORMATS; see `RowWriter`."""
    module, _, name = FORMATS[format].partition(":")
    writer: RowWriter = getattr(import_module(module), name)(room, view)
    return writer if writer.absent is None else OneLinePerAbsentBackend(writer, room=room)


def _absent(rows: Iterable[Row]) -> dict[str, int]:
    """Return the number of rows of each backend that has several, all n/a for the same reason."""
    reasons: dict[str, list[str | None]] = {}
    for row in rows:
        reasons.setdefault(row.backend, []).append(row.na)
    return {backend: len(na) for backend, na in reasons.items() if len(na) > 1 and na[0] is not None and len(set(na)) == 1}
