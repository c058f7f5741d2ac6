"""Stored runs as a sequence: `read` finds them in folders, patterns and logs of other tools, and each is read when it is first used."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, overload

from msgspec.structs import replace

from collbench.analysis.launches import Launches, combined_rows, launch_folders, sentence, together
from collbench.api import frames
from collbench.errors import UsageError
from collbench.plugin import api, hooks_of, loaded_parts
from collbench.report.frame import html_paragraph, html_text, printable
from collbench.report.kinds import kinds
from collbench.report.run_list import list_run, runs_frame
from collbench.results.folder import CASES, RUN
from collbench.results.imported import import_notes
from collbench.results.reader import Damage, Run, read_run
from collbench.results.row import SCHEMA, Row
from collbench.units import first_of, plural
from collbench.untrusted import uncollected

if TYPE_CHECKING:
    import pandas
    import pyarrow

AnyPath = str | PathLike[str]
_MOST_SHOWN = 20
_MOST_NAMED = 3


class Runs(Sequence[Run]):
    """Stored runs, in the order in which they were named. Each is read when it is first used, and kept.

    It is a sequence: `len(runs)`, `runs[0]` (a `Run`: path, info, rows, events, warnings), `runs[:5]` (a `Runs`), `for run in runs`.
    Launches of one allocation are separate runs. Notebooks show a table of the runs.
    """

    def __init__(self, paths: Sequence[Path], *, strict: bool = True, held: object = None, read: dict[Path, Run] | None = None) -> None:
        """Make the sequence of these run folders; `held` is kept as long as the runs are used, `read` has those that were read."""
        self._paths = list(paths)
        self.strict = strict
        self._held = held
        self._read: dict[Path, Run] = {} if read is None else read

    def __len__(self) -> int:
        """Return the number of runs; nothing is read for it."""
        return len(self._paths)

    @overload
    def __getitem__(self, index: int) -> Run: ...

    @overload
    def __getitem__(self, index: slice) -> Runs: ...

    def __getitem__(self, index: int | slice) -> Run | Runs:
        """Return a run, or some of them. Raises IndexError, UsageError for a folder that is gone, UnreadableRun for a damaged run."""
        if isinstance(index, slice):
            return Runs(self._paths[index], strict=self.strict, held=self._held, read=self._read)
        run = self._run(self._paths[index])
        if self.strict:
            check_whole(run)
        return run

    def _run(self, path: Path) -> Run:
        if path not in self._read:
            with uncollected():
                self._read[path] = read_run(path)
        return self._read[path]

    @property
    def paths(self) -> list[Path]:
        """The folders of the runs."""
        return list(self._paths)

    @property
    def rows(self) -> list[Row]:
        """The rows of all runs, one after the other. Raises UsageError as indexing does."""
        return [row for run in self for row in run.rows]

    @property
    def warnings(self) -> list[str]:
        """What could not be read, what a resumed run means for intervals, and what imported runs lack, a sentence each."""
        return list(dict.fromkeys(text for run in self for text in warnings_of(run)))

    @property
    def launches(self) -> list[Launches]:
        """The runs by allocation, launches of one allocation together: `rows` combines them, with intervals over the launches."""
        return together(list(self))[0]

    def frame(self, columns: Sequence[str] | None = None, *, combine: bool = False) -> pandas.DataFrame:
        """Return a DataFrame with a row per case and launch, or per case of each allocation with `combine`, in the report's order.

        The columns are the fields of CSV and `path`, `started_utc`, `allocation` and `collbench`. Their units are in the names: `_s` is
        seconds, `_bytes_per_s` bytes per second. `frame.attrs["columns"]` describes each. Unknown values are missing (NaN, NA, None).
        A case that could not be measured has the reason in `na`, and no figures. columns: names to select, in this order.
        Raises UsageError for an unknown column, and without pandas (extra: pandas).
        """
        launches = self.launches if combine else [Launches(run.path.resolve().name, (run,), combined_rows([run])) for run in self]
        return frames.of_rows(launches, columns)

    def samples(self) -> pandas.DataFrame:
        """Return a DataFrame with a row per stored sample: the time of the slowest rank, and what identifies its case.

        `row` is the index of the case in the rows of its run. Rows without stored samples are left out.
        Raises UsageError without pandas, and for samples that cannot be read.
        """
        return frames.of_samples(self)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return what a plug-in adds."""

    def to_arrow(self, *, combine: bool = False) -> pyarrow.Table:
        """Return the table of `frame` for Arrow. Nested values are JSON texts; each field has its description as metadata.

        Raises UsageError without pyarrow (extra: pandas).
        """
        return frames.to_arrow(self.frame(combine=combine))

    def to_parquet(self, path: AnyPath, *, combine: bool = False) -> Path:
        """Write the table of `to_arrow` as a Parquet file in one step; return its path. Raises UsageError if it cannot be written."""
        return frames.write_parquet(self.to_arrow(combine=combine), Path(path))

    def __repr__(self) -> str:
        """Return the number of runs and the first names; nothing is read for it."""
        return printable(f"<Runs: {plural(len(self), 'run')}: {first_of(map(str, self._paths), _MOST_NAMED)}>")

    def _repr_html_(self) -> str:
        """Return the table of the runs, as `collbench runs` lists them, for a notebook. All text is escaped."""
        listed = []
        sentences = []
        for path in self._paths[:_MOST_SHOWN]:
            try:
                run = self._run(path)
            except UsageError as error:
                sentences.append(str(error))
                continue
            listed.append(list_run(path, [run]))
            sentences += map(str, run.warnings)
        if len(self) > _MOST_SHOWN:
            sentences.append(f"and {len(self) - _MOST_SHOWN} more")
        table = html_text(replace(runs_frame(listed), foot=()))
        return "\n".join([html_paragraph(plural(len(self), "run")), table, *map(html_paragraph, sentences)])


def check_whole(run: Run) -> None:
    """Raise UnreadableRun for a run with results that cannot be read, or of a newer version."""
    schema = run.info.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        frames.check_records([Damage(warning) for warning in run.warnings])
    frames.check_records(run.warnings)


def warnings_of(run: Run) -> Iterator[str]:
    """Yield what could not be read of a run, what a resumed run means for intervals, and what an imported run lacks."""
    yield from run.warnings
    resumed = sentence(run)
    if resumed:
        yield resumed
    yield from import_notes(run.info)
    try:
        for kind in kinds().values():
            if kind.holds(run):
                yield from kind.read(run).warnings
    except UsageError as error:  # what describes the records in run.json is not valid
        yield str(error)


def read(
    path: AnyPath | Sequence[AnyPath],
    *more: AnyPath,
    strict: bool = True,
    format: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
    operation: str | None = None,
    dtype: str | None = None,
) -> Runs:
    """Return the runs in all paths. A run folder is listed now, and read when it is first used.

    path, more  a path, several, or a list of them: a run's folder; a folder with runs below it, at any depth; a pattern such as
                "runs/2026*"; or a file that another tool printed (nccl-tests, OSU, IMB, perftest …), as for `collbench import`
    strict      whether a damaged run, or one of a newer version, is an error when it is used; else its warnings name what is missing
    format, ranks, nodes, operation, dtype   of files of other tools: the format, and what the output does not contain

    Raises UsageError for a path that does not exist or holds no run, for a run that is named twice, and for a file that cannot be imported.
    """
    folders: list[Path] = []
    files: list[Path] = []
    paths = list(path) if isinstance(path, Sequence) and not isinstance(path, str) else [path]
    for given in (*paths, *more):
        for match in _matches(given):
            if match.is_dir():
                folders += run_folders(match)
            elif match.name in (RUN, CASES):
                folders.append(match.parent)
            else:
                files.append(match)
    if not folders and not files:
        raise UsageError("no path is named: name a run's folder, a folder of runs, or a file")
    _refuse_twice(folders)
    if not files:
        return Runs(folders, strict=strict)
    readers = hooks_of("read_files")
    if not readers:
        raise UsageError(f"{printable(str(files[0]))}: reading the output of other tools needs the plug-in importers")
    held = TemporaryDirectory(prefix="collbench-", ignore_cleanup_errors=True)
    imported = readers[0](files, Path(held.name), format=format, ranks=ranks, nodes=nodes, operation=operation, dtype=dtype)
    return Runs([*folders, *imported], strict=strict, held=held)


def _matches(path: AnyPath) -> list[Path]:
    """Return the path, or what a pattern matches. Raises UsageError if there is nothing."""
    try:
        given = Path(path)
        if given.exists():
            return [given]
    except (TypeError, ValueError) as error:  # not a path, or one with a NUL character
        raise UsageError(f"{path!r:.200} is not a valid path ({error}): name a run's folder, a folder of runs, or a file") from error
    names = glob.glob(str(given)) if glob.has_magic(str(given)) else []  # noqa: PTH207 (Path.glob takes no absolute pattern)
    matching = sorted(map(Path, names), key=_natural)
    if not matching:
        raise UsageError(
            f"{printable(str(given))} does not exist: name a run's folder, a folder of runs, a pattern, or a file that another tool printed"
        )
    return matching


def run_folders(path: Path) -> list[Path]:
    """Return the run folders in a folder: itself, or all below it, launch-2 before launch-10. Raises UsageError without any."""
    folders: list[Path] = []
    unreadable: list[OSError] = []
    for folder, below, names in os.walk(path, onerror=unreadable.append):
        if RUN in names or CASES in names:
            folders.append(Path(folder))
            below.clear()
    if not folders:
        why = f" ({unreadable[0].strerror or unreadable[0]})" if unreadable else ""
        raise UsageError(f"{printable(str(path))} holds no run{why}: name a run's folder, or a folder with runs below it")
    return sorted(folders, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return the key of the order in which "launch-2" comes before "launch-10"."""
    return [(int(part), "") if part.isdecimal() and part.isascii() else (-1, part) for part in re.split(r"(\d{1,18})", str(path))]


def _refuse_twice(folders: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for folder in folders:
        resolved = folder.resolve()
        if resolved in seen:
            raise UsageError(f"{printable(str(folder))} is named twice: name each run once")
        seen.add(resolved)


def paths_of(runs: Runs) -> Iterator[Path]:
    """Yield the folders of runs; for all launches of a folder, that folder: a launch that is missing there is noticed then."""
    named = set(runs.paths)
    done: set[Path] = set()
    for path in runs.paths:
        siblings = launch_folders(path.parent)
        whole = path.parent if path in siblings and named.issuperset(siblings) else path
        if whole not in done:
            done.add(whole)
            yield whole


for _name, _place in api().items():
    _owner, _, _member = _name.rpartition(".")
    for _part in loaded_parts([_place] if _owner == Runs.__name__ else []):
        setattr(Runs, _member, _part)
