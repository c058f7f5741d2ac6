"""Shows stored runs of pairs, hunts and training traffic as their commands printed them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from collbench.deploy.drain import lines, lines_of, read
from collbench.errors import UsageError
from collbench.report.hunt import write_hunt
from collbench.report.screen import PlainScreen, write_line
from collbench.report.table import Line, printable
from collbench.report.training import check_format, write_steps
from collbench.results.folder import HUNT, PAIRS, WORKLOAD
from collbench.results.reader import Run
from collbench.results.rounds import check_hunt, read_hunt
from collbench.results.steps import read_workload
from collbench.units import plural

if TYPE_CHECKING:
    from collbench.analysis.pairs import PairEffects
    from collbench.results.rounds import StoredPairs


def show_hunt(run: Run, format: str, *, out: TextIO, err: TextIO, color: bool, headed: bool = False) -> bool:
    """Print the outcome of a hunt; warnings of what could not be read, recommendation.json included, go to `err`.

    headed: whether a CSV has its header already; returns whether it has one now. Raises UsageError for a format that hunts do not have.
    """
    stored = read_hunt(run)
    advice, unread = _advice(run)
    for warning in (*stored.warnings, *unread):
        write_line(err, printable(warning))
    done = len(stored.rounds)
    if format == "table":
        state = "" if run.finished and stored.about.get("verdict") else ", not finished"
        rounds = plural(done, "round")
        PlainScreen(out, err, color).data(Line(printable(f"{run.path.resolve().name} ({rounds}{state})"), "head"))
    about, name = {**stored.about, "rounds": done}, run.path.resolve().name
    write_hunt(about, format, out, color=color, advice=advice, run=name, headed=headed)
    return True


def _advice(run: Run) -> tuple[list[str], list[str]]:
    """Return (the recommendation and what was done, warnings if it cannot be read)."""
    try:
        advice = read(run.path)
    except UsageError as error:
        return [], [str(error)]
    return [*lines(advice), *lines_of(advice["applied"]), *filter(None, [advice["refused"]])] if advice else [], []


def holds_pairs(run: Run) -> bool:
    """Return whether it is a run of `collbench pairs`."""
    return "pairs" in run.info or (run.path / PAIRS).is_file()


def show_pairs(
    run: Run, stored: StoredPairs, effects: PairEffects, format: str, *, out: TextIO, err: TextIO, color: bool, headed: bool = False
) -> None:
    """Print the matrix of a pairs run; warnings of what could not be read go to `err`. effects: what the matrix of `stored` means.

    headed: whether a CSV has its header already. Raises UsageError for a format that matrices do not have.
    """
    from collbench.report.pairs import write_pairs

    for warning in stored.warnings:
        write_line(err, printable(warning))
    if format == "table":
        PlainScreen(out, err, color).data(Line(printable(f"{run.path.resolve().name} ({_rounds(run, stored)})"), "head"))
    about = {**stored.about, "rounds": len({one.round for one in stored.rounds if not one.again})}
    found, unsaid = (effects.findings(), effects.doubts()) if format != "csv" else ([], [])
    name = run.path.resolve().name
    write_pairs(effects.matrix, found, about, format, out, color=color, unsaid=unsaid, external=stored.external, run=name, headed=headed)


def _rounds(run: Run, stored: StoredPairs) -> str:
    """Return the number of rounds, and of how many if the launch ended early (then run.json has no "measured")."""
    known, planned = len(stored.rounds), stored.about.get("rounds")
    rounds = plural(known, "round")
    if run.finished and stored.about.get("measured") is not None:
        return rounds
    return f"{f'{known} of {planned} rounds' if isinstance(planned, int) and planned > known else rounds}, not finished"


def show_all_pairs(pairs: Iterable[tuple[Run, StoredPairs, PairEffects]], format: str, *, out: TextIO, err: TextIO, color: bool) -> None:
    """Print the matrices of pairs runs one after the other; CSV has one header for all."""
    for number, (run, stored, effects) in enumerate(pairs):
        show_pairs(run, stored, effects, format, out=out, err=err, color=color, headed=number > 0)


def write_pairs_csv(pairs: Iterable[tuple[Run, StoredPairs, PairEffects]], path: Path, err: TextIO) -> None:
    """Write the matrices of pairs runs to one file. Raises UsageError if it cannot be written."""
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            show_all_pairs(pairs, "csv", out=file, err=err, color=False)
    except OSError as error:
        raise UsageError(f"--csv {path} cannot be written ({error.strerror or error}): choose another file") from error


def check_training(run: Run) -> None:
    """Raise UsageError if run.json does not describe the training."""
    if not isinstance(run.info.get("workload"), dict):
        raise UsageError(f"{run.path} has training traffic, but its run.json has no valid 'workload': the file was changed")


def show_training(run: Run, format: str, *, out: TextIO, err: TextIO, color: bool, headed: bool = False) -> bool:
    """Print the steps of a workload run; warnings of what could not be read go to `err`.

    headed: whether a CSV has its header already; returns whether it has one now. Raises UsageError for a format that steps do not have.
    """
    check_format(format)
    about, rows, warnings = read_workload(run)
    for warning in warnings:
        write_line(err, printable(warning))
    if format == "table":
        end = "" if run.finished else ", not finished"
        PlainScreen(out, err, color).data(Line(printable(f"{run.path.resolve().name} ({plural(len(rows), 'row')}{end})"), "head"))
    name = run.path.resolve().name
    write_steps(rows, format, out, color=color, step_time_s=step_time_of(about), run=name, first=not headed)
    return headed or bool(rows)


def step_time_of(about: Mapping[str, Any]) -> float | None:
    """Return the time of computing from run.json's "workload", in seconds; None if it is missing or not valid."""
    value = about.get("step_time_s")
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    return float(value) if known else None  # type: ignore[arg-type]  # checked above


@dataclass(frozen=True)
class RunKind:
    """A kind of run other than rows and pairs.

    name    of the command, and of its key in run.json
    file    with its results, in the run's folder
    what    for sentences: "a hunt"
    check   raises UsageError if a run of this kind cannot be shown
    show    shows a run: (run, format, out=, err=, color=, headed=) -> whether a CSV has its header now; raises UsageError for a format
            that it does not have. headed: whether a CSV has its header already, from another run of this kind
    """

    name: str
    file: str
    what: str
    check: Callable[[Run], object]
    show: Callable[..., bool]


KINDS = (
    RunKind("hunt", HUNT, "a hunt", check_hunt, show_hunt),
    RunKind("workload", WORKLOAD, "training traffic", check_training, show_training),
)


def kind_of(run: Run) -> RunKind | None:
    """Return the kind of a run; None for rows and pairs."""
    return next((kind for kind in KINDS if kind.name in run.info or (run.path / kind.file).is_file()), None)


def of_kinds(runs: Sequence[Run]) -> Iterator[tuple[Run, RunKind]]:
    """Yield the runs of these kinds, in their order."""
    yield from ((run, kind) for run in runs if (kind := kind_of(run)))


def not_drawn(runs: Sequence[Run]) -> list[str]:
    """Return a sentence for each run that pages, Markdown and OpenMetrics leave out."""
    return [f"{run.path} has {kind.what}, which is not written to files: use `collbench report {run.path}`" for run, kind in of_kinds(runs)]


def show_all(runs: Sequence[tuple[Run, RunKind]], format: str, *, out: TextIO, err: TextIO, color: bool) -> None:
    """Show runs one after the other; in CSV consecutive runs of a kind have one header."""
    headed_kind: RunKind | None = None
    for run, kind in runs:
        headed = kind.show(run, format, out=out, err=err, color=color, headed=kind is headed_kind)
        headed_kind = kind if headed and format == "csv" else None


def write_kinds_csv(runs: Sequence[tuple[Run, RunKind]], path: Path, err: TextIO) -> None:
    """Write runs of one kind to one file, with one header. Raises UsageError if it cannot be written."""
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            show_all(runs, "csv", out=file, err=err, color=False)
    except OSError as error:
        raise UsageError(f"--csv {path} cannot be written ({error.strerror or error}): choose another file") from error
