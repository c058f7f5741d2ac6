"""Kinds of stored runs other than rows of cases, which plug-ins bring: how their records are read, and shown as a command printed them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TextIO

import msgspec

from collbench.errors import UsageError
from collbench.plugin import loaded_parts, plugins, record_files
from collbench.records import RecordKind
from collbench.report.blocks import DEFAULT_VIEW, View
from collbench.report.forms import FORMATS, with_columns, write
from collbench.report.frame import Line, printable
from collbench.report.screen import check_format, print_lines, write_line
from collbench.results.reader import Run
from collbench.units import plural

if TYPE_CHECKING:
    from collbench.analysis.concerns import Concern
    from collbench.report.html.first_screen import FirstScreen
    from collbench.report.material import Material


class Destination(msgspec.Struct, frozen=True):
    """Where and how a run is shown: `err` gets warnings; `headed`: whether a CSV has its header already; `view`: the columns of tables."""

    format: str
    out: TextIO
    err: TextIO
    color: bool
    headed: bool = False
    view: View = DEFAULT_VIEW

    def begin(self, run: Run, state: str, warnings: Sequence[str]) -> None:
        """Print what could not be read, and the title of a table: "name (7 rounds)"."""
        for warning in warnings:
            write_line(self.err, printable(warning))
        if self.format == "table":
            print_lines([Line(printable(f"{run.path.resolve().name} ({state})"), "head")], self.out, self.color)


class StoredRecords(NamedTuple):
    """What a kind reads of a run: its records, and a sentence for each part that cannot be read."""

    records: Any
    warnings: Sequence[str] = ()


class SuspectLink(msgspec.Struct, frozen=True):
    """A link that a finding of a run names.

    hosts         the host with this link to the network; two hosts: the path between them
    is_confirmed  False: it is only suspected
    interfaces    of the host; (): unknown, or all of them
    share         its speed relative to the others, below 1; None: unknown
    """

    hosts: tuple[str, ...]
    is_confirmed: bool
    interfaces: tuple[str, ...] = ()
    share: float | None = None


class RunKind(ABC):
    """A kind of run other than rows of cases. `Plugin.records` has the file of its records.

    name             of the command, and of its key in run.json
    what             for sentences: "a hunt"
    drawn            whether Markdown and OpenMetrics have it, besides its rows of cases
    answers_last     whether runs of other kinds answer a page before its runs, which the page names first
    """

    name: ClassVar[str]
    what: ClassVar[str]
    drawn: ClassVar[bool] = False
    answers_last: ClassVar[bool] = False

    @property
    def file(self) -> str:
        """Return the name of the file with its records, in the run's folder."""
        return record_files()[self.name].name

    def holds(self, run: Run) -> bool:
        """Return whether the run is of this kind."""
        return isinstance(run.info.get(self.name), dict) or (run.path / self.file).is_file()

    def check(self, run: Run) -> None:
        """Raise UsageError if run.json does not describe a run of this kind."""
        if not isinstance(run.info.get(self.name), dict):
            raise UsageError(f"{run.path} has {self.what}, but its run.json has no valid '{self.name}': the file was changed")

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise UsageError for names of columns that a table of the kind cannot have."""
        if names:
            raise UsageError(f"--columns: {self.what} has no table with columns to select: leave it out")

    @abstractmethod
    def read(self, run: Run) -> StoredRecords:
        """Return the records of a run, as `Material.of_kind` has them. Raises UsageError if they cannot be read."""

    @abstractmethod
    def show(self, run: Run, stored: StoredRecords, to: Destination) -> bool:
        """Print a run; return whether a CSV has its header now. Raises UsageError for a format that the kind lacks."""

    @abstractmethod
    def screen(self, material: Material) -> FirstScreen | None:
        """Return the answer of a page about runs of this kind; None if the material has none."""

    def markdown(self, material: Material) -> Iterator[str]:
        """Yield the lines of Markdown about the runs of this kind."""
        yield from ()

    def findings(self, material: Material) -> Iterator[Concern]:
        """Yield what the concerns of a report begin with."""
        yield from ()

    def concerns(self, material: Material) -> Iterator[Concern]:
        """Yield the further concerns about the runs of this kind."""
        yield from ()

    def slow_links(self, material: Material) -> Iterator[SuspectLink]:
        """Yield the links between hosts that the findings of the runs of this kind name."""
        yield from ()


class ResultKind(RunKind):
    """A kind of run whose result has declared records (`collbench.records`), from which follows how it is printed.

    declared   the kind of records
    """

    declared: ClassVar[RecordKind[Any]]

    @abstractmethod
    def state(self, run: Run, result: Any) -> str:
        """Return how much was measured, for the title of a table: "7 rounds, not finished"."""

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise UsageError for a name that the records have no column of, and for any name if their lines are no single table."""
        columns = [value.name for value in self.declared.values]
        if names and self.declared.lines:
            raise UsageError(f"--columns: the tables of {self.what} have fixed columns: use `--format csv` for {', '.join(columns)}")
        unknown = [name for name in names if name not in columns]
        if unknown:
            raise UsageError(f"--columns: unknown column '{printable(unknown[0])}' of {self.what}: choose from {', '.join(columns)}")

    def show(self, run: Run, stored: StoredRecords, to: Destination) -> bool:
        """Print the result; a CSV without rows has no header."""
        check_format(to.format, FORMATS, f" for {self.declared.name}")
        to.begin(run, self.state(run, stored.records), stored.warnings)
        kind = with_columns(self.declared, to.view.columns, to.view.added)
        write(kind, stored.records, to.format, to.out, color=to.color, run=run.path.resolve().name, headed=to.headed)
        return to.headed or bool(stored.records)


class DeclaredKind(ResultKind):
    """A kind whose result is a list of declared records, which may have `wrong`, `wrong_detail` and `na`, as rows of cases have them.

    Its name is that of its records.
    """

    def __init_subclass__(cls) -> None:
        cls.name = cls.declared.name

    @abstractmethod
    def place_of(self, row: Any) -> str:
        """Return the place of a row in a concern about it: "kv by packed"."""

    def read(self, run: Run) -> StoredRecords:
        """Return the records."""
        return StoredRecords(*self.declared.read(run.path))

    def state(self, run: Run, result: Sequence[Any]) -> str:
        """Return the number of rows."""
        return f"{plural(len(result), 'row')}{'' if run.finished else ', not finished'}"

    def concerns(self, material: Material) -> Iterator[Concern]:
        """Yield the concerns about all rows."""
        for _, rows in material.of_kind(self.name):
            for row in rows:
                yield from self.concerns_of(row)

    def concerns_of(self, row: Any) -> Iterator[Concern]:
        """Yield wrong data, and why the row was not measured."""
        from collbench.analysis.concerns import MISSING, WRONG, Concern

        reason = getattr(row, "na", None)
        if getattr(row, "wrong", None):
            yield Concern(WRONG, getattr(row, "wrong_detail", None) or "wrong data", self.place_of(row))
        if reason is not None:
            yield Concern(MISSING, reason, self.place_of(row))


@cache
def kinds() -> dict[str, RunKind]:
    """Return the kinds of runs that the plug-ins bring, by name, in the order in which they answer a page."""
    parts: Iterable[RunKind] = loaded_parts(place for plugin in plugins().values() for place in plugin.kinds)
    return {kind.name: kind for kind in sorted(parts, key=lambda kind: kind.answers_last)}


def kind_of(run: Run) -> RunKind | None:
    """Return the kind of a run; None for rows."""
    return next((kind for kind in kinds().values() if kind.name in run.info or (run.path / kind.file).is_file()), None)


def of_kinds(runs: Sequence[Run]) -> Iterator[tuple[Run, RunKind]]:
    """Yield the runs of these kinds, those that Markdown has first, else in their order."""
    with_kinds = [(run, kind_of(run)) for run in runs]
    yield from sorted(((run, kind) for run, kind in with_kinds if kind), key=lambda pair: not pair[1].drawn)


def not_drawn(runs: Sequence[Run]) -> list[str]:
    """Return a sentence for each run that Markdown and OpenMetrics leave out; they have the cases of replays and block transfers."""
    left_out = [(run.path, kind.what) for run, kind in of_kinds(runs) if not kind.drawn and not run.rows]
    return [f"{path} has {what}, which Markdown and OpenMetrics lack: use `collbench report {path}` or --html" for path, what in left_out]


def show_all(material: Material, format: str, *, out: TextIO, err: TextIO, color: bool, view: View = DEFAULT_VIEW) -> None:
    """Show the runs of these kinds one after the other; in CSV consecutive runs of a kind have one header."""
    headed_kind: RunKind | None = None
    for run, kind in of_kinds(material.runs):
        if kind.holds(run):
            headed = kind.show(run, material.stored(run, kind), Destination(format, out, err, color, headed=kind is headed_kind, view=view))
            headed_kind = kind if headed and format == "csv" else None
