"""`collbench runs`: the runs in a folder, newest first, and the newest one for `collbench report` without an argument."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

from collbench.analysis.best import headlines, is_shown_as_time
from collbench.analysis.ceilings import hosts_of
from collbench.analysis.launches import read_all
from collbench.errors import FINE, UsageError
from collbench.report.frame import Column, Frame, csv_lines, json_lines, table_lines
from collbench.report.screen import check_format, print_lines, wants_color, width_of
from collbench.results.folder import RUN, holds_a_run
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.units import format_percent, format_rate, format_size, plural

RUNS = Path("runs")  # where a run is stored without --out
FORMATS = ("table", "csv", "json")
_MOST_FILES = 100_000  # of a run that is served
_UNKNOWN = "–"
_NO_RUN = "no run in {}: start one with `collbench check` or `collbench allreduce`, or name the folder"


@dataclass(frozen=True)
class ListedRun:
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
        return max(self.peaks, key=_rate, default=None)


def list_runs(folder: Path, format: str, stream: TextIO, *, color: str = "auto") -> int:
    """Print the runs below `folder` as a table, CSV or JSON lines, newest first; return 0. Raises UsageError without a run."""
    check_format(format, FORMATS)
    found = runs_below(folder)
    if not found:
        raise UsageError(_NO_RUN.format(folder))
    frame = runs_frame(found, for_programs=format != "table")
    lines = table_lines(frame, width_of(stream)) if format == "table" else csv_lines(frame) if format == "csv" else json_lines(frame)
    print_lines(lines, stream, wants_color(stream, color))
    return FINE


def runs_below(
    folder: Path, known: dict[Path, tuple[float, ListedRun]] | None = None, most: int | None = None, *, linked: bool = True
) -> list[ListedRun]:
    """Return the runs in the folders of `folder`, newest first, without those that cannot be read. Raises UsageError for no folder.

    known   keeps finished runs with the time of their run.json: a next call with it reads only what changed
    most    at most so many runs are read, by the time of their run.json the newest; None: all
    linked  whether runs count that have a symbolic link to a file outside `folder`
    """
    known = {} if known is None else known
    found: list[ListedRun] = []
    dated = [(_changed_s(path), path) for path in _folders(folder)]
    if most is not None:
        dated = sorted((each for each in dated if each[0] is not None), key=lambda each: each[0] or 0.0, reverse=True)[:most]
    for changed, path in dated:
        if not linked and _leads_outside(path, folder):
            continue
        if path in known and known[path][0] == changed:
            found.append(known[path][1])
            continue
        try:
            listed = list_run(path, read_all([path]))
        except UsageError:
            continue
        found.append(listed)
        if changed is not None and listed.exit_code is not None:
            known[path] = changed, listed
    return sorted(found, key=lambda each: (each.started or datetime.min.replace(tzinfo=UTC), each.path.name), reverse=True)


def newest_run(folder: Path = RUNS) -> Path:
    """Return the folder of the newest run below `folder`, by the time of its run.json. Raises UsageError without one."""
    known = [(changed, path) for path in _folders(folder) if (changed := _changed_s(path)) is not None]
    if not known:
        raise UsageError(_NO_RUN.format(folder))
    return max(known)[1]


def run_named(folder: Path, name: str) -> Path | None:
    """Return the folder of a run below `folder`; None without one, and for one with a symbolic link to a place outside `folder`."""
    path = next((each for each in _folders(folder) if each.name == name), None)
    return None if path is None or _changed_s(path) is None or _leads_outside(path, folder) else path


def _leads_outside(run: Path, folder: Path) -> bool:
    """Return whether a run, a file of it, or one of a launch in it is a symbolic link to a place outside `folder`, or they are too many."""
    root, files = os.path.realpath(folder), list(islice(chain([run], run.glob("*"), run.glob("*/*")), _MOST_FILES))
    links = (file for file in files if file.is_symlink())
    return len(files) == _MOST_FILES or any(not Path(os.path.realpath(link)).is_relative_to(root) for link in links)


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if _is_folder(entry))
    except OSError as error:
        raise UsageError(_NO_RUN.format(f"{folder} ({error.strerror or error})")) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether it is a folder, or a link to one that can be followed."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _changed_s(path: Path) -> float | None:
    """Return when run.json of a run, or of the newest launch in the folder, was written; None without one."""
    try:
        files = [path / RUN] if holds_a_run(path) else list(path.glob(f"*/{RUN}"))
        return max((file.stat().st_mtime for file in files), default=None)
    except OSError:
        return None


def list_run(path: Path, runs: Sequence[Run]) -> ListedRun:
    """Return the entry of a folder with its runs, at least one."""
    infos = [run.info for run in runs]
    first, code = infos[0], infos[-1].get("exit_code")
    operation, words, places = first.get("operation"), first.get("command"), first.get("rank_map")
    rows = [row for run in runs for row in run.rows]
    return ListedRun(
        path,
        started=min((time for info in infos if (time := _time(info.get("started_utc")))), default=None),
        operation=operation if isinstance(operation, str) else "",
        command=" ".join(map(str, words[1:])) if isinstance(words, list) else "",
        ranks=len(places) if isinstance(places, list) else None,
        launches=len(runs),
        cases=len(rows),
        hosts=tuple(dict.fromkeys(host for run in runs for host in hosts_of(run))),
        peaks=[headline.row for headline in headlines(rows) if headline.sound and not is_shown_as_time(headline.row)],
        exit_code=code if isinstance(code, int) else None,
    )


def _rate(row: Row) -> float:
    return row.busbw_bytes_per_s or 0.0


def _time(value: Any) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def best_figure(row: Row | None) -> str:
    """Return the figure of a list: "5.07 GB/s (63 %) mpi, 64 MiB"; "–" without one."""
    if row is None:
        return _UNKNOWN
    share = "" if row.comparison is None else f" ({format_percent(row.comparison.percent)})"
    return f"{format_rate(row.busbw_bytes_per_s or 0)} GB/s{share} {row.operation}, {row.backend}, {format_size(row.size_bytes)}"


_BEST = ("operation", "backend", "size_bytes", "busbw_bytes_per_s", "percent_of_ceiling")


def _of_best(name: str) -> Column[ListedRun]:
    return Column(f"best_{name}", "", lambda each: "", lambda each: each.best and getattr(each.best, name))


def runs_frame(found: Sequence[ListedRun], for_programs: bool = False) -> Frame[ListedRun]:
    """Return the table of the runs. `for_programs`: with the fields of the best row instead of its text."""
    return Frame(
        (
            Column("run", "run", lambda each: str(each.path), cut=True),
            Column("started_utc", "started (UTC)", started, lambda each: each.started and each.started.isoformat(), drop=2),
            Column("command", "command", lambda each: each.command or _UNKNOWN, drop=4, cut=True),
            Column("ranks", "ranks", lambda each: _number(each.ranks), lambda each: each.ranks, right=True, drop=1),
            Column("launches", "launches", lambda each: str(each.launches), lambda each: each.launches, right=True, drop=5),
            Column("cases", "cases", lambda each: _number(each.cases or None), lambda each: each.cases, right=True),
            Column("exit_code", "exit", _ended, lambda each: each.exit_code, right=True, drop=3),
            *(map(_of_best, _BEST) if for_programs else (Column[ListedRun]("", "best", lambda each: best_figure(each.best), cut=True),)),
        ),
        found,
        foot=(f"{plural(len(found), 'run')}, newest first; `collbench report` shows the newest, `collbench report RUN` another one",),
    )


def started(each: ListedRun) -> str:
    """Return when a run began: "2026-11-21 22:11"; "–" if it is not recorded."""
    return each.started.astimezone(UTC).strftime("%Y-%m-%d %H:%M") if each.started else _UNKNOWN


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else str(value)


def _ended(each: ListedRun) -> str:
    return "not finished" if each.exit_code is None else str(each.exit_code)
