"""`collbench runs`: the runs in a folder, newest first, and the newest one for `collbench report` without an argument."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import msgspec

from collbench.analysis.best import headlines, is_shown_as_time
from collbench.analysis.ceilings import hosts_of
from collbench.analysis.launches import read_all
from collbench.columns import NOTHING
from collbench.errors import FINE, UsageError
from collbench.report.frame import Column, Frame, csv_lines, json_lines, table_lines
from collbench.report.screen import check_format, print_lines, wants_color, width_of
from collbench.results.folder import RUN, holds_a_run
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.units import format_percent, format_rate, format_size, plural

RUNS = Path("runs")  # where a run is stored without --out
FORMATS = ("table", "csv", "json")
_NO_RUN = "no run in {}: start one with `collbench check` or `collbench allreduce`, or name the folder"


class ListedRun(msgspec.Struct, frozen=True):
    """A run as `collbench runs` lists it.

    path       its folder
    started    when its first launch began; None: not recorded
    operation  "allreduce"; of a suite "run-quick"
    command    as typed, without "collbench"; "" if it is not recorded
    ranks      of its first launch; None: not recorded
    launches   in the folder
    cases      with a row, over all launches
    hosts      of all launches, each once
    peaks      the rows that represent each operation over each backend by their bus bandwidth, with right data
    exit_code  of the last launch; None: it was killed, or still runs
    """

    path: Path
    started: datetime | None
    operation: str
    command: str
    ranks: int | None
    launches: int
    cases: int
    hosts: tuple[str, ...]
    peaks: Sequence[Row]
    exit_code: int | None

    @property
    def best(self) -> Row | None:
        """The row of the highest bus bandwidth with right data; None without one."""
        return max(self.peaks, key=lambda row: row.busbw_bytes_per_s or 0.0, default=None)


def list_runs(folder: Path, format: str, stream: TextIO, *, color: str = "auto") -> int:
    """Print the runs below `folder` as a table, CSV or JSON lines, newest first; return 0. Raises UsageError without a run."""
    check_format(format, FORMATS)
    runs = runs_below(folder)
    if not runs:
        raise UsageError(_NO_RUN.format(folder))
    frame = runs_frame(runs, for_programs=format != "table")
    lines = {"table": lambda: table_lines(frame, width_of(stream)), "csv": lambda: csv_lines(frame), "json": lambda: json_lines(frame)}
    print_lines(lines[format](), stream, wants_color(stream, color))
    return FINE


def runs_below(folder: Path) -> list[ListedRun]:
    """Return the runs in the folders of `folder`, newest first, without those that cannot be read. Raises UsageError for no folder."""
    runs: list[ListedRun] = []
    for path in run_folders(folder):
        with suppress(UsageError):
            runs.append(list_run(path, read_all([path])))
    return newest_first(runs)


def newest_first(runs: Iterable[ListedRun]) -> list[ListedRun]:
    """Return the runs in the order of the list."""
    return sorted(runs, key=lambda run: (run.started or datetime.min.replace(tzinfo=UTC), run.path.name), reverse=True)


def newest_run(folder: Path = RUNS) -> Path:
    """Return the folder of the newest run below `folder`, by the time of its run.json. Raises UsageError without one."""
    dated = [(changed_s(path), path) for path in run_folders(folder)]
    written = [(written_s, path) for written_s, path in dated if written_s is not None]
    if not written:
        raise UsageError(_NO_RUN.format(folder))
    return max(written)[1]


def run_folders(folder: Path) -> list[Path]:
    """Return the folders in `folder`, or links to folders. Raises UsageError if it cannot be read."""
    folders: list[Path] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):  # a link that cannot be followed
                    if entry.is_dir():
                        folders.append(Path(entry.path))
    except OSError as error:
        raise UsageError(_NO_RUN.format(f"{folder} ({error.strerror or error})")) from error
    return sorted(folders)


def changed_s(path: Path) -> float | None:
    """Return when run.json of a run, or of the newest launch in the folder, was written; None without one."""
    try:
        files = [path / RUN] if holds_a_run(path) else list(path.glob(f"*/{RUN}"))
        return max((file.stat().st_mtime for file in files), default=None)
    except OSError:
        return None


def list_run(path: Path, runs: Sequence[Run]) -> ListedRun:
    """Return the entry of a folder with its runs, at least one."""
    infos = [run.info for run in runs]
    operation, words, places = (infos[0].get(name) for name in ("operation", "command", "rank_map"))
    code = infos[-1].get("exit_code")
    rows = [row for run in runs for row in run.rows]
    return ListedRun(
        path,
        started=min(filter(None, (_time(info.get("started_utc")) for info in infos)), default=None),
        operation=operation if isinstance(operation, str) else "",
        command=" ".join(map(str, words[1:])) if isinstance(words, list) else "",
        ranks=len(places) if isinstance(places, list) else None,
        launches=len(runs),
        cases=len(rows),
        hosts=tuple(dict.fromkeys(host for run in runs for host in hosts_of(run))),
        peaks=[headline.row for headline in headlines(rows) if headline.sound and not is_shown_as_time(headline.row)],
        exit_code=code if isinstance(code, int) else None,
    )


def _time(value: Any) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _best_figure(run: ListedRun) -> str:
    """Return the figure of a list: "5.07 GB/s (63 %) mpi, 64 MiB"; "–" without one."""
    row = run.best
    if row is None:
        return NOTHING
    share = "" if row.comparison is None else f" ({format_percent(row.comparison.percent)})"
    return f"{format_rate(row.busbw_bytes_per_s or 0)} GB/s{share} {row.operation}, {row.backend}, {format_size(row.size_bytes)}"


_BEST = ("operation", "backend", "size_bytes", "busbw_bytes_per_s", "percent_of_ceiling")


def _best_column(name: str) -> Column[ListedRun]:
    return Column(f"best_{name}", "", lambda run: "", lambda run: run.best and getattr(run.best, name))


def runs_frame(runs: Sequence[ListedRun], for_programs: bool = False) -> Frame[ListedRun]:
    """Return the table of the runs. `for_programs`: with the fields of the best row instead of its text."""
    columns: list[Column[ListedRun]] = [
        Column("run", "run", lambda run: str(run.path), cut=True),
        Column("started_utc", "started (UTC)", started, lambda run: run.started and run.started.isoformat(), drop=2),
        Column("command", "command", lambda run: run.command or NOTHING, drop=4, cut=True),
        Column("ranks", "ranks", lambda run: _number(run.ranks), lambda run: run.ranks, right=True, drop=1),
        Column("launches", "launches", lambda run: str(run.launches), lambda run: run.launches, right=True, drop=5),
        Column("cases", "cases", lambda run: _number(run.cases or None), lambda run: run.cases, right=True),
        Column("exit_code", "exit", _ended, lambda run: run.exit_code, right=True, drop=3),
    ]
    columns += map(_best_column, _BEST) if for_programs else [Column[ListedRun]("", "best", _best_figure, cut=True)]
    foot = f"{plural(len(runs), 'run')}, newest first; `collbench report` shows the newest, `collbench report RUN` another one"
    return Frame(columns, runs, foot=[foot])


def started(run: ListedRun) -> str:
    """Return when a run began: "2026-11-21 22:11"; "–" if it is not recorded."""
    return run.started.astimezone(UTC).strftime("%Y-%m-%d %H:%M") if run.started else NOTHING


def _number(value: int | None) -> str:
    return NOTHING if value is None else str(value)


def _ended(run: ListedRun) -> str:
    return "not finished" if run.exit_code is None else str(run.exit_code)
