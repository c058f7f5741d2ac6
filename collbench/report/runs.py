"""`collbench report`: stored runs as a table, Markdown, OpenMetrics, CSV, JSON or a page; rows ascend in size."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec
from msgspec.structs import replace

from collbench.analysis.best import headlines
from collbench.analysis.concerns import SEVERITIES
from collbench.analysis.launches import Launches, check_once, estimate_of, figure_of, read_all, rows_by_launch
from collbench.analysis.launches import sentence as resumed_sentence
from collbench.errors import FINE, INTERRUPTED, NO_VERDICT, TERMINATED, USAGE, UsageError
from collbench.plugin import hooks_of
from collbench.report import FORMATS
from collbench.report.answer import answer_lines
from collbench.report.blocks import DEFAULT_VIEW, View, check_columns
from collbench.report.cases import CaseColumn, doubtful, not_available, placing, shown_columns
from collbench.report.frame import Line, escaped, items, markdown_table, printable, text_lines
from collbench.report.frame import markdown_lines as markdown_of
from collbench.report.guidelines import consistency_frame
from collbench.report.headlines import NO_CONCERNS, concern_sentence, headline_frame, short, subject
from collbench.report.headlines import lines as findings
from collbench.report.kinds import kind_of, kinds, not_drawn, of_kinds, show_all
from collbench.report.material import Material
from collbench.report.plan import in_print_order, plan_of
from collbench.report.screen import check_format, is_terminal, print_lines, wants_color, write_line
from collbench.report.writers import (
    STDOUT,
    CsvAgainstBaseline,
    Metric,
    Outputs,
    Sample,
    TableWriter,
    column_samples,
    confirm_written,
    exposed,
    make_writer,
    write_whole,
)
from collbench.results.flags import FLAGS
from collbench.results.folder import CASES
from collbench.results.imported import import_notes
from collbench.results.reader import Run
from collbench.results.row import SERIES, UNDER_LOAD, Row
from collbench.units import plural

if TYPE_CHECKING:
    from collbench.analysis.compare import Comparison
    from collbench.analysis.concerns import Concern
    from collbench.gating.verdict import Verdict


# Runs as Markdown, for wikis and pull requests: headlines, concerns, comparisons, rows.

_MOST_ROWS = 200  # a comment on GitHub has at most 65,536 characters
_FEWEST_ROWS = 20
_MOST_HEADLINES = 80


def markdown_text(material: Material) -> str:
    """Return the whole text. Only this module writes markup: stored texts are escaped. A long table is cut, with a note."""
    parts = (_overview, _compared, _tables, *(kind.markdown for kind in kinds().values()))
    return "\n".join([line for part in parts for line in part(material)]) + "\n"


def _most_rows(material: Material) -> int:
    """Return how many rows each table may have: all tables and comparisons share the limit."""
    return max(_FEWEST_ROWS, _MOST_ROWS // max(1, 2 * len(material.tables) - 1))


def _overview(material: Material) -> Iterator[str]:
    yield from ("# collbench report", "")
    yield from items(f"{table.name}: {' · '.join(text for text in subject(table).values() if text)}" for table in material.tables)
    best = [(table, headline) for table in material.tables for headline in headlines(material.rows(table))]
    if best:
        yield from ("", "## Results", "", *(line.text for line in markdown_of(headline_frame(best[:_MOST_HEADLINES]))))
    if len(best) > _MOST_HEADLINES:
        yield from ("", f"The first {_MOST_HEADLINES} of {len(best)} results.")
    yield from ("", "## Findings and flags, worst first", "")
    yield from items(map(_concern, material.concerns) if material.concerns else [NO_CONCERNS])


def _concern(concern: Concern) -> str:
    meaning = f": {FLAGS[concern.flag].render()}" if concern.flag in FLAGS else ""
    return f"{concern.severity}: {short(concern_sentence(concern) if meaning else concern.sentence(), 600)}{meaning}"


def _compared(material: Material) -> Iterator[str]:
    """Yield the comparison of every other run with the first one, as `collbench compare` prints it."""
    if not material.comparisons:
        return
    if material.alternatives is not None:
        yield from ("", "## Alternatives", "", *(line.text for line in material.alternatives.lines("markdown")))
        return
    for comparison in material.comparisons:
        yield from ("", f"## {escaped(short(comparison.b.name, 80))} against {escaped(short(comparison.a.name, 80))}", "")
        yield from _comparison(comparison, _most_rows(material))
    more = len(material.tables) - 1 - len(material.comparisons)
    if more > 0:
        yield from ("", f"{more} more runs are not compared here.")


def _comparison(comparison: Comparison, most: int) -> Iterator[str]:
    from collbench.analysis.compare import largest_first, why_nothing_in_common, worst_first
    from collbench.report.compare import markdown_lines

    if not comparison.cases:
        yield from items([f"no case in common: {short(why_nothing_in_common(comparison))}"])
        yield from items(f"A → B: {short(difference.sentence(), 600)}" for difference in comparison.differences)
        return
    ordered, first = (largest_first, "largest changes:") if comparison.without_intervals else (worst_first, "worst")
    if len(comparison.cases) > most:
        yield from (f"The {first} {most} of {len(comparison.cases)} cases; `collbench compare … --format csv` has all.", "")
    yield from (line.text for line in markdown_lines(replace(comparison, cases=ordered(comparison.cases)[:most])))


def _tables(material: Material) -> Iterator[str]:
    most = _most_rows(material)
    for table in [*material.tables, *material.tables_of_kinds]:
        rows = material.rows(table)
        columns = shown_columns(plan_of(table, rows))
        consistency = consistency_frame(rows)
        shown = [[short(text) for text in _row_texts(row, columns)] for row in rows[:most]]
        yield from ("", f"## {escaped(short(table.name, 80))}", "")
        yield from markdown_table([column.title for column in columns], shown, [column.right for column in columns])
        if len(rows) > most:
            yield from ("", f"The first {most} of {len(rows)} rows; `collbench report … --csv FILE` has all.")
        if consistency is not None:
            yield from ("", *(line.text for line in markdown_of(consistency)))


def _row_texts(row: Row, columns: Sequence[CaseColumn]) -> list[str]:
    """Return the columns of a row; an n/a row has its reason in place of the first figure."""
    if row.na is None:
        return [column.text(row) for column in columns]
    identity = [column.text(row) for column in columns if not column.figure]
    return [*identity, not_available(row), *[""] * (len(columns) - len(identity) - 1)]


# Runs as OpenMetrics, for Prometheus: every row, the number of launches, and the number of concerns.

_LONGEST = 200
ROW_METRICS = {
    "time": Metric.of(Row, "time_p50_s"),
    "time_interval_low": Metric.of(Row, "time_ci_low_s"),
    "time_interval_high": Metric.of(Row, "time_ci_high_s"),
    "time_p99": Metric.of(Row, "time_p99_s"),
    "algbw": Metric.of(Row, "algbw_bytes_per_s"),
    "busbw": Metric.of(Row, "busbw_bytes_per_s"),
    "ceiling": Metric.of(Row, "ceiling_bytes_per_s", "; the labels limited_by, model and kind have the link and the kind of figure"),
    "hard_bound": Metric.of(Row, "hard_bound_bytes_per_s"),
    "factor": Metric(
        "ratio", "of `load`: time under load / time alone; no sample if ranks share cores, or with fewer than 4 pairs of blocks"
    ),
    "factor_interval_low": Metric("ratio", "lower end of its interval"),
    "factor_interval_high": Metric("ratio", "upper end of its interval"),
    "of_ceiling": Metric.of(Row, "percent_of_ceiling", "; no sample without a percentage, or if elements are wrong"),
    "of_hard_bound": Metric.of(Row, "percent_of_hard_bound", ", if of_ceiling has a sample and the operation has a hard limit"),
    "wrong_elements": Metric.of(Row, "wrong"),
    "samples": Metric.of(Row, "n"),
    "launches": Metric.of(Row, "launches"),
    "measured": Metric("", "1 for a case with a time, 0 for one that is not available"),
    "doubtful": Metric("", "1 if a flag makes the time or its interval doubtful"),
    "concerns": Metric("", "findings, flags and missing parts, by severity; at most 21 of a severity are counted"),
    "run_launches": Metric("", "launches of the run: one, and one more each time it was resumed"),
    "run_complete": Metric("", "1 if every launch ended by itself with exit code 0"),
    "run_finished_timestamp": Metric("seconds", "when the last launch ended, in seconds since 1970"),
}


def openmetrics_text(material: Material) -> str:
    """Return the text of the file. Several runs have a label `run` each."""
    return exposed(ROW_METRICS, _samples(material))


def _samples(material: Material) -> Iterator[Sample]:
    tables = [*material.tables, *material.tables_of_kinds]
    drawn = [run for kind in kinds().values() if kind.drawn for run, _ in material.of_kind(kind.name)]
    named_runs = [(table.name, table.runs, in_print_order(table.rows)) for table in tables]
    named_runs += [(run.path.resolve().name, (run,), run.rows) for run in drawn]
    for name, runs, rows in named_runs:
        labels = {"run": short(name, _LONGEST)} if len(named_runs) > 1 else {}
        yield from _run_samples(runs, labels)
        for row in rows:
            yield from row_samples(row, labels)
    for severity in SEVERITIES:
        number = sum(concern.severity == severity for concern in material.concerns)
        yield Sample("concerns", {"severity": severity.replace(" ", "_")}, number)


def _run_samples(runs: Sequence[Run], labels: Mapping[str, str]) -> Iterator[Sample]:
    yield Sample("run_launches", labels, sum(max(1, len(rows_by_launch(run))) for run in runs))
    yield Sample("run_complete", labels, all(run.finished and run.info.get("exit_code") in (0, None) for run in runs))
    ended = []
    for run in runs:
        with suppress(KeyError, TypeError, ValueError, OverflowError):
            ended.append(datetime.fromisoformat(run.info["finished_utc"]).timestamp())
    yield Sample("run_finished_timestamp", labels, max(ended, default=None))


def row_samples(row: Row, labels: Mapping[str, str]) -> Iterator[Sample]:
    """Yield the metrics of a row (of `ROW_METRICS`) with its labels and the given ones; `measured` is the first."""
    where = {**labels, **_labels(row)}
    is_measured = row.na is None and row.time_s is not None
    yield Sample("measured", where, is_measured)
    if not is_measured:
        return
    yield Sample("doubtful", where, bool(doubtful(row)))
    yield from (Sample(name, where, value) for name, value in _factor(row).items())
    left_out: set[str] = set() if row.ranks > 1 else {"busbw"}
    if row.ranks <= 1 or row.wrong or row.comparison is None:
        left_out |= {"of_ceiling", "of_hard_bound"}
    ceilings = {"ceiling": row.ceiling, "hard_bound": row.hard_bound}
    for sample in column_samples(ROW_METRICS, row, where):
        ceiling = ceilings.get(sample.name)
        if ceiling is not None:
            facts = {"limited_by": ceiling.limited_by, "model": ceiling.model, "kind": ceiling.kind}
            yield replace(sample, labels={**where, **{label: short(text, _LONGEST) for label, text in facts.items()}})
        elif sample.name not in left_out:
            yield sample


def _factor(row: Row) -> dict[str, float | None]:
    """Return the metrics of a row under load; none for other rows, and for one without a factor to compare."""
    if row.mode != UNDER_LOAD or figure_of(row) is None:
        return {}
    factor = estimate_of(row)
    return {"factor": factor.value, "factor_interval_low": factor.ci_low, "factor_interval_high": factor.ci_high}


def _labels(row: Row) -> dict[str, str]:
    """Return the labels that distinguish cases; a field without a value has no label, which Prometheus treats as an empty one."""
    values = {name: getattr(row, name) for name in SERIES if name != "in_place"}
    labels = {name: short(str(value), _LONGEST) for name, value in values.items() if value is not None}
    if row.size_bytes:
        labels["placing"] = placing(row)
    return {**labels, "size_bytes": str(row.size_bytes)}


# The given folders. A folder without results gets a warning, and the others are shown.


class RunsInFolders(msgspec.Struct, frozen=True):
    """The runs in some folders.

    runs       those that can be shown, including runs without rows
    sentences  one for each folder that cannot be read, and for each run without a row
    whole      whether every folder has results
    """

    runs: list[Run]
    sentences: list[str]
    whole: bool

    @property
    def warnings(self) -> list[str]:
        """Return all warnings, a sentence each."""
        return [*self.sentences, *(warning for run in self.runs for warning in (*run.warnings, resumed_sentence(run)) if warning)]


def readable(paths: Sequence[Path]) -> RunsInFolders:
    """Return the runs in all of `paths`. Raises UsageError if none of them can be read, and for a launch that is given twice."""
    runs: list[Run] = []
    sentences: list[str] = []
    whole = True
    for path in paths:
        try:
            runs_in_folder = read_all([path])
            for run, kind in of_kinds(runs_in_folder):
                kind.check(run)
        except UsageError as error:
            sentences.append(str(error))
            whole = False
            continue
        reasons = [(run, _reason_empty(run)) for run in runs_in_folder]
        sentences += [f"{run.path} has no results: {reason}" for run, reason in reasons if reason]
        whole = whole and any(reason is None for _, reason in reasons)
        runs += runs_in_folder
    if not runs:
        raise UsageError("; ".join(sentences))
    check_once(runs)
    return RunsInFolders(runs, sentences, whole)


def _reason_empty(run: Run) -> str | None:
    """Return why the run has no results; None if it has some."""
    kind = kind_of(run)
    try:
        has_results = bool(run.rows) if kind is None else (run.path / kind.file).stat().st_size > 0
    except OSError:
        has_results = False
    if has_results:
        return None
    if run.finished:
        return f"nothing was measured, or its {kind.file if kind else CASES} was lost"
    return "it ended before its first case was finished, or it is still running"


def report_run(
    paths: Sequence[Path],
    csv: Path | None,
    format: str,
    stream: TextIO,
    *,
    html: Path | None = None,
    markdown: Path | None = None,
    openmetrics: Path | None = None,
    trace: Path | None = None,
    writers: Sequence[Callable[[Sequence[Launches], TextIO], None]] = (),
    verdict: Path | None = None,
    err: TextIO | None = None,
    color: str = "auto",
    view: View = DEFAULT_VIEW,
    measured: str = "",
    runs: RunsInFolders | None = None,
) -> int:
    """Print the runs in `paths` on `stream`, and write them to the given files.

    `csv` or `markdown` may be "-": then `stream` gets nothing else. Launches of one allocation become one table, unless software,
    settings, hosts or links differ. `writers` are called with the tables of rows and `err`. `verdict` is a verdict.json, which becomes the
    first section of the page. `err` gets what could not be read or combined. `view` selects the columns of the table.
    `measured` is the folder of launches that have just ended: then the answer has the next command. The answer is at the end in this case
    and on a terminal; else it is at the top. With a page, only the answer is printed, unless another format is requested. `runs`: those of
    `paths`, if they were read already. Returns the exit code: USAGE if one of the paths has no results, NO_VERDICT if some results cannot
    be read. Raises UsageError if no path has a readable run, for a launch that is given twice, an unknown format, and a file that cannot
    be written.
    """
    check_format(format, FORMATS)
    outputs = Outputs(csv, html, markdown, openmetrics, trace)
    outputs.check()
    err = err or sys.stderr
    read = runs or readable(paths)
    warnings = read.warnings
    if markdown or openmetrics:
        warnings += not_drawn(read.runs)
    material = Material(read.runs, html or Path(), warnings, verdict=_verdict(verdict, html))
    notes = dict.fromkeys(note for run in read.runs for note in import_notes(run.info))
    for sentence in (*warnings, *notes, *material.apart):
        write_line(err, printable(sentence))
    if csv is not None:
        _check_one_kind(material)
    _write_files(material, outputs, err)
    for write in writers:
        write(material.tables, err)
    if markdown == STDOUT:
        print_lines(map(Line, markdown_text(material).splitlines()), stream)
    elif html is not None and csv != STDOUT and format == "table":
        print_lines(_short_answer(material, _room(stream)), stream, wants_color(stream, color))
    else:
        _print_runs(material, "csv" if csv == STDOUT else format, stream, err, wants_color(stream, color), view=view, measured=measured)
    if not read.whole:
        return USAGE
    return NO_VERDICT if any(run.damaged for run in read.runs) else FINE


def _verdict(path: Path | None, html: Path | None) -> Verdict | None:
    """Return the verdict for the page. Raises UsageError without a page, and for an invalid file."""
    if path is None:
        return None
    if html is None:
        raise UsageError("--verdict needs --html FILE; to show the verdict alone, use `collbench gate --verdict FILE`")
    from collbench.gating.verdict import read_verdict

    return read_verdict(path, "--verdict")


def _check_one_kind(material: Material) -> None:
    records = [(str(run.path), kind.what) for run, kind in of_kinds(material.runs)]
    records += [(table.name, "rows") for table in material.tables]
    first_name, first_what = records[0]
    for name, what in records:
        if what != first_what:
            raise UsageError(f"{first_name} has {first_what}, but {name} has {what}: write them to two CSV files")


def _print_runs(
    material: Material, format: str, stream: TextIO, err: TextIO, color: bool, *, view: View = DEFAULT_VIEW, measured: str = ""
) -> None:
    """Print all runs: the tables of rows, then the runs of other kinds."""
    tables = material.tables
    if tables:
        check_columns(view.columns)
    for _, kind in of_kinds(material.runs):
        kind.check_columns(view.columns)
    if format == "table" or (format == "csv" and len(tables) > 1):
        # a lower ceiling is replaced by the one of the first table
        tables = [replace(table, rows=material.rows(table)) for table in tables]
    if format == "table":
        from collbench.analysis.ceilings import present_percents

        room = _room(stream)
        compared = zip(material.comparisons, tables[1:], strict=False)
        fallen = [[], *([*comparison.fallen.sentences(), *present_percents(table.rows)] for comparison, table in compared)]
        print_lines(_table_lines(tables, room, fallen, view=view, measured=measured), stream, color)
        if material.alternatives is not None:
            print_lines([Line(""), *material.alternatives.lines(format, room)], stream, color, quiet=view.quiet)
    else:
        print_lines(_formatted_lines(tables, format, view), stream, color)
    show_all(material, format, out=stream, err=err, color=color, view=view)


def _write_files(material: Material, outputs: Outputs, err: TextIO) -> None:
    """Write the files. This comes before the table, so that they are written even if the reader of stdout stops early."""
    if outputs.csv is not None and outputs.csv != STDOUT:
        try:
            with outputs.csv.open("w", encoding="utf-8", newline="") as file:
                _print_runs(material, "csv", file, err, color=False)
        except OSError as error:
            raise UsageError(f"--csv {outputs.csv} cannot be written ({error.strerror or error}): choose another file") from error
    if outputs.markdown is not None and outputs.markdown != STDOUT:
        write_whole(outputs.markdown, markdown_text(material), "--markdown")
    if outputs.openmetrics is not None:
        write_whole(outputs.openmetrics, openmetrics_text(material), "--openmetrics")
    if outputs.html is not None:
        from collbench.report.html.page import write_html

        write_html(material)
    if outputs.trace is not None:
        from collbench.report.trace import write_trace

        for sentence in write_trace(material.runs, outputs.trace):
            write_line(err, printable(sentence))
    confirm_written((outputs.csv, outputs.markdown, outputs.openmetrics, outputs.html, outputs.trace), err)


def _short_answer(material: Material, room: int | None) -> Iterator[Line]:
    """Yield the answer of each table of rows; without any the title of the page."""
    from collbench.report.html.first_screen import first_screen

    for number, table in enumerate(material.tables):
        yield from _heading(table, room, first=number == 0)
        yield from answer_lines(in_print_order(material.rows(table)), room)
    if material.alternatives is not None:
        yield from (Line(""), *text_lines(material.alternatives.answer(), room, "head"))
    screen = None if material.tables else first_screen(material)
    if screen is not None:
        yield from text_lines(printable(screen.title), room)


def _formatted_lines(tables: Sequence[Launches], format: str, view: View) -> Iterator[Line]:
    """Yield the tables of rows in a format other than the table."""
    has_baseline = any(row.own is not None for table in tables for row in table.rows)
    for number, table in enumerate(tables):
        writer = CsvAgainstBaseline() if format == "csv" and has_baseline else make_writer(format, None, view)
        if writer.one_run and len(tables) > 1:
            raise UsageError(f"--format {format} describes one run, but there are {len(tables)}: name one, or launches of one allocation")
        rows = in_print_order(table.rows)
        head = writer.start(plan_of(table, rows))
        if not writer.for_programs or number == 0:  # one header for all
            yield from head
        yield from (line for row in rows for line in writer.row(row))
        yield from writer.end()


def _table_lines(
    tables: Sequence[Launches], room: int | None, fallen: Sequence[Sequence[str]], *, view: View, measured: str
) -> Iterator[Line]:
    """Yield the tables of rows; `fallen` has for each the links and ceilings that are lower than in the first one."""
    for number, table in enumerate(tables):
        rows = in_print_order(table.rows)
        answer = list(answer_lines(rows, room, measured, quiet=view.quiet))
        for remark_of in () if view.quiet else hooks_of("answer_remark"):
            remark = remark_of(table)
            if remark:
                answer += text_lines(remark, room)
        writer = TableWriter(room, view, rows)
        yield from _heading(table, room, first=number == 0)
        for text in fallen[number] if number < len(fallen) else ():
            yield from text_lines(f"since {tables[0].name}: {text}", room, "wrong", indent="")
        at_the_end = bool(measured) or room is not None
        if not at_the_end:
            yield from (*answer, Line(""))
        yield from writer.start(plan_of(table, rows))
        yield from (line for row in rows for line in writer.row(row))
        yield from writer.end()
        if not view.quiet:
            yield from findings(table.runs, rows, room)
        if at_the_end:
            yield from (Line(""), *answer)


def _heading(table: Launches, room: int | None, first: bool) -> list[Line]:
    launches = len(table.runs)
    unfinished = sum(not run.finished or run.info.get("exit_code") in (INTERRUPTED, TERMINATED) for run in table.runs)
    resumed = [parts for parts in (len(rows_by_launch(run)) for run in table.runs) if parts > 1]
    facts = [plural(len(table.rows), "row")]
    if launches == 1:
        facts += ["not finished"] * unfinished
        facts += [f"resumed: {parts} launches" for parts in resumed]
    else:
        facts.insert(0, f"{launches} launches")
        facts += [f"{count} {state}" for count, state in ((unfinished, "not finished"), (len(resumed), "resumed")) if count]
    heading = list(text_lines(f"{table.name} ({', '.join(facts)})", room, "head"))
    return heading if first else [Line(""), *heading]


def _room(stream: TextIO) -> int | None:
    """Return the width of a terminal, None for other streams."""
    if not is_terminal(stream):
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns
