"""`collbench report`: stored runs once more, in any format, ascending in size whatever the order they were measured in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from collbench.analysis.best import Peak, differing, peaks
from collbench.analysis.concerns import SEVERITIES
from collbench.analysis.launches import Launches, check_once, read_all, rows_by_launch
from collbench.analysis.launches import sentence as resumed
from collbench.errors import FINE, INTERRUPTED, TERMINATED, USAGE, UsageError
from collbench.report.cells import FLAGS, Column, doubtful, not_available, placing, printable, shown_columns, value_of
from collbench.report.frame import in_print_order, plan_of
from collbench.report.headlines import figure, latency, short, subject, where
from collbench.report.headlines import lines as findings
from collbench.report.html.material import Material
from collbench.report.progress import FORMATS
from collbench.report.screen import PlainScreen, is_terminal, wants_color, write_line
from collbench.report.stored import holds_pairs, kind_of, not_drawn, show_all, show_all_pairs, write_kinds_csv, write_pairs_csv
from collbench.report.writers import (
    STDOUT,
    Line,
    OneLinePerAbsentBackend,
    Outputs,
    RowWriter,
    Sample,
    TableWriter,
    escaped,
    escaped_line,
    exposed,
    items,
    markdown_table,
    write_whole,
)
from collbench.results.folder import CELLS, PAIRS
from collbench.results.importers.store import sentences as of_import
from collbench.results.reader import Run
from collbench.results.row import SERIES, Row

if TYPE_CHECKING:
    from collbench.analysis.compare import Comparison
    from collbench.analysis.pairs import PairEffects
    from collbench.gate.verdict import Verdict
    from collbench.results.rounds import StoredPairs


# Runs as Markdown, for wikis and pull requests: the peaks, what is wrong, every row, the comparison, what differs.

_MOST_ROWS, _FEWEST_ROWS, _MOST_PEAKS = 200, 20, 80  # a comment on GitHub holds 65,536 letters
_CLEAN = "Nothing stands out: no finding, no flag on any row, nothing missing."


def markdown(material: Material) -> str:
    """The whole text. Nothing of it is markup, a link or a mention but what stands here; a long table is cut, and that is said."""
    return "\n".join([*_overview(material), *_compared(material), *_tables(material), *_pairs_markdown(material)]) + "\n"


def _most_rows(material: Material) -> int:
    """How many rows each table may have: several tables and comparisons share the room."""
    return max(_FEWEST_ROWS, _MOST_ROWS // max(1, 2 * len(material.tables) - 1))


def _overview(material: Material) -> Iterator[str]:
    yield from ("# collbench report", "")
    yield from items(f"{each.name}: {' · '.join(text for text in subject(each).values() if text)}" for each in material.tables)
    best = [(each, peak) for each in material.tables for peak in peaks(material.rows(each))]
    if best:
        yield from ("", "## Peaks", "", *_peaks(best[:_MOST_PEAKS], named=len(material.tables) > 1))
    if len(best) > _MOST_PEAKS:
        yield from ("", f"The first {_MOST_PEAKS} of {len(best)} peaks.")
    yield from ("", "## Findings and flags, worst first", "", *items(_concerns(material) or [_CLEAN]))


def _peaks(best: Sequence[tuple[Launches, Peak]], named: bool) -> list[str]:
    telling = ["operation", "backend", *differing(peak for _, peak in best)]
    rows = [
        [short(each.name, 80), *(short(value_of(peak.row, name), 80) for name in telling), short(figure(peak.row)),
         where(peak.row, each.rows), latency(peak)]
        for each, peak in best
    ]  # fmt: skip
    titles = ("run", *telling, "peak", "at", "smallest message")
    first = 0 if named else 1
    return markdown_table(titles[first:], [row[first:] for row in rows], [False] * len(titles[first:]))


def _concerns(material: Material) -> list[str]:
    return [f"{each.severity}: {short(each.sentence(), 600)}{_meaning(each.flag)}" for each in material.concerns]


def _meaning(flag: str | None) -> str:
    return f": {FLAGS[flag]}" if flag in FLAGS else ""


def _compared(material: Material) -> Iterator[str]:
    """Every other run against the first one, as `collbench compare` says it."""
    if not material.comparisons:
        return
    for found in material.comparisons:
        yield from ("", f"## {escaped(short(found.b.name, 80))} against {escaped(short(found.a.name, 80))}", "")
        yield from _comparison(found, _most_rows(material))
    more = len(material.tables) - 1 - len(material.comparisons)
    if more > 0:
        yield from ("", f"{more} more runs are not compared here.")


def _comparison(found: Comparison, most: int) -> Iterator[str]:
    from collbench.analysis.compare import largest_first, why_nothing_in_common, worst_first
    from collbench.report.compare import markdown_lines

    if not found.cells:
        yield from items([f"no cell in common: {short(why_nothing_in_common(found))}"])
        yield from items(f"A → B: {short(each.sentence(), 600)}" for each in found.differences)
        return
    ordered, first = (largest_first, "largest changes:") if found.without_intervals else (worst_first, "worst")
    if len(found.cells) > most:
        yield from (f"The {first} {most} of {len(found.cells)} cells; `collbench compare … --format csv` has all.", "")
    yield from (line.text for line in markdown_lines(replace(found, cells=ordered(found.cells)[:most])))


def _tables(material: Material) -> Iterator[str]:
    for each in material.tables:
        yield from ("", f"## {escaped(short(each.name, 80))}", "", *_table(each, material.rows(each), _most_rows(material)))


def _table(each: Launches, rows: Sequence[Row], most: int) -> Iterator[str]:
    plan = plan_of(each.runs[0], rows, each.name)
    columns = shown_columns(plan)
    shown = [[short(text) for text in _cells(row, columns)] for row in rows[:most]]
    yield from markdown_table([column.title for column in columns], shown, [column.right for column in columns])
    if len(rows) > most:
        yield from ("", f"The first {most} of {len(rows)} rows; `collbench report … --csv FILE` has all.")


def _cells(row: Row, columns: Sequence[Column]) -> list[str]:
    """A row's columns; of one that is n/a its reason in place of the first figure."""
    if row.na is None:
        return [column.text(row) for column in columns]
    what = [column.text(row) for column in columns if not column.figure]
    return [*what, not_available(row), *[""] * (len(columns) - len(what) - 1)]


def _pairs_markdown(material: Material) -> Iterator[str]:
    from collbench.report.pairs import measured

    for (run, stored), effect in zip(material.pairs, material.effects, strict=True):
        yield from ("", f"## {escaped(short(run.path.resolve().name, 80))}", "", escaped_line(measured(effect.matrix, stored.about)))


# Runs as OpenMetrics, for Prometheus: every row, how many launches there were, and what stands out.

_LONGEST = 200
_HELP = {
    "time": ("seconds", "median time per message of the slowest rank; of imported rows the other tool's own statistic"),
    "time_interval_low": ("seconds", "lower end of the 95 % interval of the median"),
    "time_interval_high": ("seconds", "upper end of the 95 % interval of the median"),
    "time_p99": ("seconds", "99th percentile of the time per message"),
    "algbw": ("bytes_per_second", "message size by time"),
    "busbw": ("bytes_per_second", "algbw times the bus factor of the operation"),
    "ceiling": ("bytes_per_second", "what the busbw is set against; limited_by names the link, model and kind what figure it is"),
    "hard_bound": ("bytes_per_second", "the busbw that no algorithm passes"),
    "of_ceiling": ("ratio", "busbw by ceiling; no sample where no percentage is honest, or elements are wrong"),
    "of_hard_bound": ("ratio", "busbw by hard_bound, where of_ceiling has a sample and the operation has a hard bound"),
    "wrong_elements": ("", "elements that differ from what had to arrive; no sample where nothing was checked"),
    "samples": ("", "iterations, or batches of them, behind the median"),
    "launches": ("", "launches behind the figures"),
    "measured": ("", "1 for a cell with a time, 0 for one that is not available"),
    "doubtful": ("", "1 where a flag says that the time or its interval is not to be taken at its word"),
    "concerns": ("", "findings, flags and what is missing, by severity; of many of a kind at most 21 are counted"),
    "run_launches": ("", "launches of the run, one for each time that it was resumed"),
    "run_complete": ("", "1 if every launch came to its own end with exit code 0"),
    "run_finished_timestamp": ("seconds", "when the last launch ended, in seconds since 1970"),
}


def openmetrics(material: Material) -> str:
    """The whole file. Runs are told apart by the label `run` where there are several. Raises UsageError without the extra `report`."""
    return exposed(_HELP, _samples(material))


def _samples(material: Material) -> Iterator[Sample]:
    several = len(material.tables) + len(material.pairs) > 1
    for table in material.tables:
        named = {"run": short(table.name, _LONGEST)} if several else {}
        yield from _of_runs(table.runs, named)
        for row in in_print_order(table.rows):
            yield from _of_row(row, named)
    for run, _ in material.pairs:
        yield from _of_runs([run], {"run": short(run.path.resolve().name, _LONGEST)} if several else {})
    for severity in SEVERITIES:
        number = sum(each.severity == severity for each in material.concerns)
        yield Sample("concerns", {"severity": severity.replace(" ", "_")}, number)


def _of_runs(runs: Sequence[Run], labels: Mapping[str, str]) -> Iterator[Sample]:
    yield Sample("run_launches", labels, sum(max(1, len(rows_by_launch(run))) for run in runs))
    yield Sample("run_complete", labels, all(run.finished and run.info.get("exit_code") in (0, None) for run in runs))
    ended = [seconds for run in runs if (seconds := _seconds(run.info.get("finished_utc"))) is not None]
    yield Sample("run_finished_timestamp", labels, max(ended, default=None))


def _seconds(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _of_row(row: Row, labels: Mapping[str, str]) -> Iterator[Sample]:
    where = {**labels, **_labels(row)}
    times = None if row.na is not None else row.time_s
    yield Sample("measured", where, times is not None)
    if times is None:
        return
    for name, value in (("time", times.p50), ("time_interval_low", times.ci_low), ("time_interval_high", times.ci_high)):
        yield Sample(name, where, value)
    yield from (Sample("time_p99", where, times.p99), Sample("samples", where, row.n), Sample("launches", where, row.launches))
    yield Sample("doubtful", where, bool(doubtful(row)))
    yield Sample("wrong_elements", where, row.wrong)
    yield from _rates(row, where)


def _rates(row: Row, where: Mapping[str, str]) -> Iterator[Sample]:
    yield Sample("algbw", where, row.algbw_bytes_per_s)
    yield Sample("busbw", where, row.busbw_bytes_per_s if row.ranks > 1 else None)
    honest = row.percent_of_ceiling is not None and row.ranks > 1 and not row.wrong
    for name, ceiling in (("ceiling", row.ceiling), ("hard_bound", row.hard_bound)):
        if ceiling is not None:
            told = {"limited_by": ceiling.limited_by, "model": ceiling.model, "kind": ceiling.kind}
            yield Sample(name, {**where, **{label: short(text, _LONGEST) for label, text in told.items()}}, ceiling.bytes_per_s)
    yield Sample("of_ceiling", where, (row.percent_of_ceiling or 0) / 100 if honest else None)
    if row.percent_of_hard_bound is not None and honest:
        yield Sample("of_hard_bound", where, row.percent_of_hard_bound / 100)


def _labels(row: Row) -> dict[str, str]:
    """What tells cells apart; what does not apply has no label, which Prometheus takes for an empty one."""
    found = {name: getattr(row, name) for name in SERIES if name != "in_place"}
    named = {name: short(str(value), _LONGEST) for name, value in found.items() if value is not None}
    return {**named, "placing": placing(row), "size_bytes": str(row.size_bytes)} if row.size_bytes else {**named, "size_bytes": "0"}


# What a report can show of the folders that were named, and a sentence for each that gives nothing: the others are shown all the same.


@dataclass(frozen=True)
class Readable:
    """runs      the runs that can be shown; one without any row tells at least of itself
    sentences  one for each folder that cannot be read, and for each run without a row
    whole      whether every folder that was named gives something
    """

    runs: list[Run]
    sentences: list[str]
    whole: bool

    @property
    def warnings(self) -> list[str]:
        """What there is to be said of all of them, a sentence each."""
        return [*self.sentences, *(warning for run in self.runs for warning in (*run.warnings, resumed(run)) if warning)]


def readable(paths: Sequence[Path]) -> Readable:
    """The runs in all of `paths`. Raises UsageError where none of them can be read, and for a launch that is named twice."""
    found: list[Run] = []
    sentences: list[str] = []
    whole = True
    for path in paths:
        try:
            runs = _runs_in(path)
        except UsageError as error:
            sentences.append(str(error))
            whole = False
            continue
        empty = [run for run in runs if _is_empty(run)]
        sentences += [f"{run.path} holds no results: {_why(run)}" for run in empty]
        whole = whole and len(empty) < len(runs)
        found += runs
    if not found:
        raise UsageError("; ".join(sentences))
    check_once(found)
    return Readable(found, sentences, whole)


def _runs_in(path: Path) -> list[Run]:
    """Raises UsageError for a run of pairs, or of another kind, whose run.json does not fit, too."""
    runs = read_all([path])
    for run in runs:
        if kind := kind_of(run):
            kind.check(run)
        if holds_pairs(run):
            from collbench.results.rounds import check_pairs

            check_pairs(run)
    return runs


def _is_empty(run: Run) -> bool:
    if _file(run) == CELLS:
        return not run.rows
    try:
        return (run.path / _file(run)).stat().st_size == 0
    except OSError:
        return True


def _why(run: Run) -> str:
    if run.finished:
        return f"nothing was measured, or its {_file(run)} was lost"
    return "it broke off before its first cell was finished, or has only begun"


def _file(run: Run) -> str:
    """Where a run of its kind has its results."""
    kind = kind_of(run)
    return kind.file if kind else PAIRS if holds_pairs(run) else CELLS


_Print = Callable[[Line], None]


def report_run(
    paths: Sequence[Path],
    csv: Path | None,
    format: str,
    stream: TextIO,
    *,
    html: Path | None = None,
    markdown: Path | None = None,
    openmetrics: Path | None = None,
    verdict: Path | None = None,
    err: TextIO | None = None,
    color: str = "auto",
) -> int:
    """Prints the runs in `paths` on `stream`, and writes them to the files that are named.

    `csv` and `markdown` may be "-": to `stream`, and nothing else there. Launches of one allocation become one table, unless software,
    settings, hosts or links differ. `verdict` is a verdict.json, to stand first on the page. What could not be read, or not be put
    together, is said on `err`. Returns the exit code: USAGE where one of the paths gives nothing. Raises UsageError where none is a run
    that can be read, for a launch that is named twice, an unknown format, and a file that cannot be written.
    """
    if format not in FORMATS:
        raise UsageError(f"--format '{format}' is unknown: choose from {', '.join(FORMATS)}")
    asked = Outputs(csv, html, markdown, openmetrics)
    asked.check()
    err, found = err or sys.stderr, readable(paths)
    warnings = found.warnings
    warnings = [*warnings, *(not_drawn(found.runs) if html or markdown or openmetrics else ())]
    material = Material(found.runs, html or Path(), warnings, verdict=_verdict(verdict, html))
    of_imports = dict.fromkeys(sentence for run in found.runs for sentence in of_import(run.info))
    for sentence in (*warnings, *of_imports, *material.apart):
        write_line(err, printable(sentence))
    if csv is not None:
        _check_one_kind(material)
    _write_files(material, asked, err)
    if markdown == STDOUT:
        _print_markdown(material, stream)
    else:
        _print_runs(material, "csv" if csv == STDOUT else format, stream, err, color)
    return FINE if found.whole else USAGE


def _verdict(path: Path | None, html: Path | None) -> Verdict | None:
    """What the gate said, for the page alone."""
    if path is None:
        return None
    if html is None:
        raise UsageError("--verdict is for the page: name --html FILE, or see the verdict alone with `collbench gate --verdict FILE`")
    from collbench.gate.verdict import read_verdict

    return read_verdict(path)


def _check_one_kind(material: Material) -> None:
    of_pairs = [("a matrix of pairs", str(run.path)) for run in material.runs if holds_pairs(run)]
    of_kinds = [(kind.what, str(run.path)) for run, kind in material.others]
    of_rows = [("rows", table.name) for table in material.tables]
    (what, first), *others = [*of_pairs, *of_kinds, *of_rows]
    rest = [(one, other) for other, one in others if other != what]
    if rest:
        raise UsageError(f"{first} holds {what} and {' '.join(rest[0])}: write them to two CSV files")


def _print_runs(material: Material, format: str, stream: TextIO, err: TextIO, color: str) -> None:
    painted = wants_color(stream, color)
    print_line = PlainScreen(stream, err, painted).data
    if format == "table":
        _print_all(_with_baseline(material), format, print_line, _room(stream), _fallen(material))
    else:
        _print_all(material.tables, format, print_line)
    show_all_pairs(_pairs(material), format, out=stream, err=err, color=painted)
    show_all(material.others, format, out=stream, err=err, color=painted)


def _with_baseline(material: Material) -> list[Launches]:
    """Return the tables with the ceilings of the first one where their own fell."""
    return [replace(table, rows=material.rows(table)) for table in material.tables]


def _fallen(material: Material) -> list[list[str]]:
    """Return for each table what became slower since the first one."""
    return [[], *(found.fallen.sentences() for found in material.comparisons)]


def _print_markdown(material: Material, stream: TextIO) -> None:

    for line in markdown(material).splitlines():
        write_line(stream, line)


def _pairs(material: Material) -> list[tuple[Run, StoredPairs, PairEffects]]:
    return [(run, stored, effects) for (run, stored), effects in zip(material.pairs, material.effects, strict=True)]


def _write_files(material: Material, asked: Outputs, err: TextIO) -> None:
    """Before anything is printed, so that they are there even if nobody reads stdout to its end."""
    if asked.csv is not None and asked.csv != STDOUT:
        _write_one_csv(material, asked.csv, err)
    if asked.markdown is not None and asked.markdown != STDOUT:
        write_whole(asked.markdown, markdown(material), "--markdown")
    if asked.openmetrics is not None:
        write_whole(asked.openmetrics, openmetrics(material), "--openmetrics")
    if asked.html is not None:
        from collbench.report.html.page import write_html

        write_html(material)


def _write_one_csv(material: Material, path: Path, err: TextIO) -> None:
    """All that is asked for is of one kind."""
    if material.tables:
        _write_csv(material.tables, path)
    elif material.others:
        write_kinds_csv(material.others, path, err)
    else:
        write_pairs_csv(_pairs(material), path, err)


def _print_all(
    tables: Sequence[Launches], format: str, print_line: _Print, room: int | None = None, fallen: Sequence[Sequence[str]] = ()
) -> None:
    """Print the tables; `fallen` has for each the links and ceilings that are lower than in the first one."""
    for number, table in enumerate(tables):
        rows = in_print_order(table.rows)
        writer: RowWriter = FORMATS[format](room)
        if format == "table":
            writer = OneLinePerAbsentBackend(TableWriter(room, rows), rows=rows)
        before, after = writer.start(plan_of(table.runs[0], rows, table.name)), []
        if format == "table":
            sentences = fallen[number] if number < len(fallen) else ()
            lost = [Line(printable(f"since {tables[0].name}: {text}"), "wrong") for text in sentences]
            before, after = [*_heading(table, first=number == 0), *lost, *before], findings(table.runs, rows)
        elif format == "csv" and number > 0:
            before = []  # one header for all
        for line in [*before, *(line for row in rows for line in writer.row(row)), *writer.end(), *after]:
            print_line(line)


def _heading(table: Launches, first: bool) -> list[Line]:
    launches, broken = len(table.runs), sum(map(_broke_off, table.runs))
    of = [parts for run in table.runs if (parts := len(rows_by_launch(run))) > 1]
    if launches == 1:
        words = [f"{len(table.rows)} rows", *(["not finished"] if broken else []), *(f"resumed: of {parts} launches" for parts in of)]
    else:
        told = [f"{count} {what}" for count, what in ((broken, "not finished"), (len(of), "resumed")) if count]
        words = [f"{launches} launches", f"{len(table.rows)} rows", *told]
    return [*([] if first else [Line("")]), Line(printable(f"{table.name} ({', '.join(words)})"), "head")]


def _broke_off(run: Run) -> bool:
    """Whether it was killed, or stopped by a signal, which it could still write down."""
    return not run.finished or run.info.get("exit_code") in (INTERRUPTED, TERMINATED)


def _write_csv(tables: Sequence[Launches], path: Path) -> None:
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            _print_all(tables, "csv", lambda line: write_line(file, line.text))
    except OSError as error:
        raise UsageError(f"--csv {path} cannot be written ({error.strerror or error}): choose another file") from error


def _room(stream: TextIO) -> int | None:
    if not is_terminal(stream):
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns
