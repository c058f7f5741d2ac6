"""Output of `collbench store`: tables of a query, what an addition changed, and the runs of a store for `report`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TextIO

from collbench.columns import NOTHING, unit_of
from collbench.errors import UsageError
from collbench.plugins.store.database import Database, Record
from collbench.plugins.store.query import Query, columns_of, records
from collbench.plugins.store.reading import StoredRun
from collbench.plugins.store.schema import PERCENT
from collbench.plugins.store.writing import ADDED, MISSING, UNCHANGED, UPDATED, Changes
from collbench.report.frame import Column, Frame, Line, csv_lines, json_lines, markdown_lines, table_lines
from collbench.report.runs import RunsInFolders, readable
from collbench.report.screen import print_lines, wants_color, width_of
from collbench.units import plural

MOST_SHOWN = 1000  # records of a table or of Markdown without --limit
_AT_ONCE = 1000  # records of CSV and JSON lines in memory
_MOMENTS = ("started_s", "finished_s", "added_s", "judged_s", "ended_s")
_TITLES = {
    "started": "started (UTC)", "started_s": "started (UTC)", "finished_s": "finished (UTC)", "added_s": "added (UTC)",
    "judged_s": "judged (UTC)", "ended_s": "ended (UTC)", "size_bytes": "size", "busbw_bytes_per_s": "busbw GB/s",
    "algbw_bytes_per_s": "algbw GB/s", PERCENT: "of expected", "time_p50_s": "time µs", "results": "cases", "exit_code": "exit",
    "missing": "gone",
}  # fmt: skip
_WIDE = ("path", "na", "command", "run", "name", "baseline", "candidates", "flags", "limited_by")


def write_query(database: Database, query: Query, format: str, stream: TextIO, color: str = "auto") -> int:
    """Print the records of a query as "table", "csv", "json" (lines) or "markdown"; return their number. Raises UsageError."""
    has_color = wants_color(stream, color)
    all_records = records(database, query)
    if format in ("table", "markdown"):
        shown = list(all_records)
        foot = f"the newest {query.limit} records; use --limit N for more" if len(shown) == query.limit else plural(len(shown), "record")
        frame = Frame(frame_columns(query), shown, foot=[foot], names_hidden=True)
        print_lines(table_lines(frame, width_of(stream)) if format == "table" else markdown_lines(frame), stream, has_color)
        return len(shown)
    columns = frame_columns(query)
    number = 0
    while part := list(islice(all_records, _AT_ONCE)):
        frame = Frame(columns, part)
        print_lines(csv_lines(frame, headed=number > 0) if format == "csv" else json_lines(frame), stream, has_color)
        number += len(part)
    if not number and format == "csv":
        print_lines(csv_lines(Frame(columns, [])), stream, has_color)
    return number


def frame_columns(query: Query) -> tuple[Column[Record], ...]:
    """Return the columns of a query's table: for people in their units, for programs in SI units."""
    return tuple(_column(query, place, name) for place, name in enumerate(query.names))


def _column(query: Query, place: int, name: str) -> Column[Record]:
    stem = name.removesuffix("_bytes_per_s").removesuffix("_s").replace("_", " ")
    title = _TITLES.get(name, f"{stem} {unit_of(name).heading}".rstrip())
    right = columns_of(query.subject)[name].type.python_type in (int, float) and name not in _MOMENTS

    def text(record: Record) -> str:
        return _text(name, record[place])

    def value(record: Record) -> Any:
        return _plain(record[place])

    return Column(name, title, text, value, right=right, drop=place if place > 3 else 0, cut=name in _WIDE)


def _plain(value: Any) -> Any:
    """Return a value for programs: a moment of PostgreSQL as ISO 8601."""
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(value, datetime) else value


def _text(name: str, value: Any) -> str:
    """Return a value for people, in the unit that the end of the column's name has."""
    if value is None:
        return NOTHING
    if name == "started":
        return str(_plain(value)).replace("T", " ").removesuffix("Z")
    if name in _MOMENTS:
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return unit_of(name, type(value)).text(value)


_WORDS = ((ADDED, "added"), (UPDATED, "read again"), (UNCHANGED, "unchanged"), (MISSING, "gone"))


def change_lines(changes: Changes) -> Iterator[Line]:
    """Yield one line: "3 added, 1 read again, 20 unchanged, 2 gone"; "nothing" only for an empty folder."""
    counts = [f"{changes.count(change)} {word}" for change, word in _WORDS if changes.count(change) or change == ADDED]
    if changes.refused:
        counts.append(f"{len(changes.refused)} cannot be read")
    yield Line(", ".join(counts))


def removed_lines(records: Sequence[tuple[str, int, str]], dry_run: bool) -> Iterator[Line]:
    """Yield the paths, and how many runs and verdicts were removed, or would be. records: as `removable` returns them."""
    yield from (Line(path) for _, _, path in records)
    runs = sum(table == "runs" for table, _, _ in records)
    verdicts = len(records) - runs
    count = f"{plural(runs, 'run')} and {plural(verdicts, 'verdict')}" if verdicts else plural(runs, "run")
    yield Line(f"{count} {'would be removed' if dry_run else 'removed'} from the store", "foot")


def stored_for_report(runs: Sequence[StoredRun], with_samples: bool) -> RunsInFolders:
    """Return the runs from their folders; a run without a folder has its row figures, with a sentence.

    Raises UsageError if a folder is gone and the output needs samples.
    """
    present = [run for run in runs if run.is_there]
    gone = [run for run in runs if not run.is_there]
    if gone and with_samples:
        raise UsageError(f"{gone[0].path} is gone, and --html needs its samples: bring the folder back, or omit --html")
    in_folders = readable([run.path for run in present]) if present else RunsInFolders([], [], True)
    sentences = [f"{run.path} is gone: its figures are from the store, without samples" for run in gone]
    return RunsInFolders([*gone, *in_folders.runs], [*in_folders.sentences, *sentences], in_folders.whole)
