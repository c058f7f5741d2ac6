"""Kinds of stored runs other than rows: pairs, hunts and training traffic, shown as their commands printed them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from collbench.deploy.drain import lines, lines_of, read
from collbench.errors import UsageError
from collbench.report.frame import Line, printable
from collbench.report.hunt import write_hunt
from collbench.report.screen import check_format, print_lines, write_line
from collbench.report.training import FORMATS, write_steps
from collbench.results.folder import HUNT, KV, LOAD, PAIRS, WORKLOAD
from collbench.results.kv import read_kv
from collbench.results.load import read_load
from collbench.results.reader import Run
from collbench.results.rounds import check_hunt, check_pairs, read_hunt
from collbench.results.steps import read_workload
from collbench.units import plural

if TYPE_CHECKING:
    from collbench.report.material import Material


@dataclass(frozen=True)
class Destination:
    """Where and how a run is shown: `err` gets warnings; `headed`: whether a CSV has its header already."""

    format: str
    out: TextIO
    err: TextIO
    color: bool
    headed: bool = False

    def begin(self, run: Run, state: str, warnings: Sequence[str]) -> None:
        """Print what could not be read, and the title of a table: "name (7 rounds)"."""
        for warning in warnings:
            write_line(self.err, printable(warning))
        if self.format == "table":
            print_lines([Line(printable(f"{run.path.resolve().name} ({state})"), "head")], self.out, self.color)


def show_pairs(run: Run, material: Material, to: Destination) -> bool:
    """Print the matrix of a pairs run."""
    from collbench.report.pairs import write_pairs

    for (of, stored), effects in zip(material.pairs, material.effects, strict=True):
        if of is not run:
            continue
        known, planned = len(stored.rounds), stored.about.get("rounds")
        state = plural(known, "round")
        if not run.finished or stored.about.get("measured") is None:  # run.json of a launch that ended early has no "measured"
            state = f"{f'{known} of {planned} rounds' if isinstance(planned, int) and planned > known else state}, not finished"
        to.begin(run, state, stored.warnings)
        about = {**stored.about, "rounds": len({one.round for one in stored.rounds if not one.again})}
        found, unsaid = (effects.findings(), effects.doubts()) if to.format != "csv" else ([], [])
        name, external = run.path.resolve().name, stored.external
        write_pairs(
            effects.matrix, found, about, to.format, to.out, color=to.color, unsaid=unsaid, external=external, run=name, headed=to.headed
        )
        return True
    return to.headed


def show_hunt(run: Run, _material: Material, to: Destination) -> bool:
    """Print the outcome of a hunt, and its recommendation."""
    stored = read_hunt(run)
    advice, unread = advice_of(run.path)
    state = "" if run.finished and stored.about.get("verdict") else ", not finished"
    done = len(stored.rounds)
    to.begin(run, f"{plural(done, 'round')}{state}", [*stored.warnings, *unread])
    about = {**stored.about, "rounds": done}
    write_hunt(about, to.format, to.out, color=to.color, advice=advice, run=run.path.resolve().name, headed=to.headed)
    return True


def advice_of(path: Path) -> tuple[list[str], list[str]]:
    """Return (the recommendation of a hunt and what was done, warnings if it cannot be read). path: of the run folder."""
    try:
        advice = read(path)
    except UsageError as error:
        return [], [str(error)]
    return [*lines(advice), *lines_of(advice["applied"]), *filter(None, [advice["refused"]])] if advice else [], []


def check_training(run: Run) -> None:
    """Raise UsageError if run.json does not describe the training."""
    if not isinstance(run.info.get("workload"), dict):
        raise UsageError(f"{run.path} has training traffic, but its run.json has no valid 'workload': the file was changed")


def show_training(run: Run, _material: Material, to: Destination) -> bool:
    """Print the steps of a workload run; a CSV without steps has no header."""
    check_format(to.format, FORMATS, " for workload")
    about, rows, warnings = read_workload(run)
    to.begin(run, f"{plural(len(rows), 'row')}{'' if run.finished else ', not finished'}", warnings)
    step_time_s = step_time_of(about)
    write_steps(rows, to.format, to.out, color=to.color, step_time_s=step_time_s, run=run.path.resolve().name, headed=to.headed)
    return to.headed or bool(rows)


def check_load(run: Run) -> None:
    """Raise UsageError if run.json does not describe the load."""
    if not isinstance(run.info.get("load"), dict):
        raise UsageError(f"{run.path} has interference, but its run.json has no valid 'load': the file was changed")


def show_load(run: Run, _material: Material, to: Destination) -> bool:
    """Print the rows of a load run; a CSV without rows has no header."""
    from collbench.report.load import FORMATS as FORMATS_OF_LOAD
    from collbench.report.load import write_load

    check_format(to.format, FORMATS_OF_LOAD, " for load")
    _, rows, warnings = read_load(run)
    to.begin(run, f"{plural(len(rows), 'row')}{'' if run.finished else ', not finished'}", warnings)
    write_load(rows, to.format, to.out, color=to.color, run=run.path.resolve().name, headed=to.headed)
    return to.headed or bool(rows)


def check_kv(run: Run) -> None:
    """Raise UsageError if run.json does not describe the transfers."""
    if not isinstance(run.info.get("kv"), dict):
        raise UsageError(f"{run.path} has block transfers, but its run.json has no valid 'kv': the file was changed")


def show_kv(run: Run, _material: Material, to: Destination) -> bool:
    """Print the rows of a kv run; a CSV without rows has no header."""
    from collbench.report.kv import FORMATS as FORMATS_OF_KV
    from collbench.report.kv import write_kv

    check_format(to.format, FORMATS_OF_KV, " for kv")
    _, rows, warnings = read_kv(run)
    to.begin(run, f"{plural(len(rows), 'row')}{'' if run.finished else ', not finished'}", warnings)
    write_kv(rows, to.format, to.out, color=to.color, run=run.path.resolve().name, headed=to.headed)
    return to.headed or bool(rows)


def step_time_of(about: Mapping[str, Any]) -> float | None:
    """Return the time of computing from run.json's "workload", in seconds; None if it is missing or not valid."""
    value = about.get("step_time_s")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf") else None


@dataclass(frozen=True)
class RunKind:
    """A kind of run other than rows.

    name    of the command, and of its key in run.json
    file    with its results, in the run's folder
    what    for sentences: "a hunt"
    check   raises UsageError if a run of this kind cannot be shown
    show    prints a run of the material; returns whether a CSV has its header now; raises UsageError for a format that it does not have
    drawn   whether Markdown and OpenMetrics have it, besides its rows of cases
    """

    name: str
    file: str
    what: str
    check: Callable[[Run], object]
    show: Callable[[Run, Material, Destination], bool]
    drawn: bool = False


KINDS = (
    RunKind("hunt", HUNT, "a hunt", check_hunt, show_hunt),
    RunKind("workload", WORKLOAD, "training traffic", check_training, show_training),
    RunKind("load", LOAD, "interference", check_load, show_load, drawn=True),
    RunKind("kv", KV, "block transfers", check_kv, show_kv),
    RunKind("pairs", PAIRS, "a matrix of pairs", check_pairs, show_pairs, drawn=True),
)


def kind_of(run: Run) -> RunKind | None:
    """Return the kind of a run; None for rows."""
    return next((kind for kind in KINDS if kind.name in run.info or (run.path / kind.file).is_file()), None)


def of_kinds(runs: Sequence[Run]) -> Iterator[tuple[Run, RunKind]]:
    """Yield the runs of these kinds, those of pairs and interference first, else in their order."""
    found = [(run, kind) for run in runs if (kind := kind_of(run))]
    yield from sorted(found, key=lambda each: not each[1].drawn)


def not_drawn(runs: Sequence[Run]) -> list[str]:
    """Return a sentence for each run that Markdown and OpenMetrics leave out; they have the cases of replays and block transfers."""
    left_out = [(run.path, kind.what) for run, kind in of_kinds(runs) if not kind.drawn and not run.rows]
    return [f"{path} has {what}, which Markdown and OpenMetrics lack: use `collbench report {path}` or --html" for path, what in left_out]


def show_all(material: Material, format: str, *, out: TextIO, err: TextIO, color: bool) -> None:
    """Show the runs of these kinds one after the other; in CSV consecutive runs of a kind have one header."""
    headed_kind: RunKind | None = None
    for run, kind in of_kinds(material.runs):
        headed = kind.show(run, material, Destination(format, out, err, color, headed=kind is headed_kind))
        headed_kind = kind if headed and format == "csv" else None
