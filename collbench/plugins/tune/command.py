"""collbench tune: from runs with the library's own choice and with forced ones to a file that the library reads."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli.help import HelpEntry
from collbench.cli.parser import Parser, add_command, add_format
from collbench.cli.selection import add_selection, selected_runs
from collbench.errors import FINE, UsageError

if TYPE_CHECKING:
    from collbench.plugins.tune.sweep import Library, Override, TunedSize
    from collbench.results.reader import Run

_SUMMARY = "a tuner file for NCCL, RCCL, Open MPI or MPICH, from a measured sweep"
_ABOUT = (
    "compares the library's own choice of algorithm with forced ones, size by size, and writes a file that the library reads. The file has "
    "only sizes at which the intervals exclude the own choice; without one, no file is written. Measure the own choice and each forced one "
    "in several launches: NCCL's with --algorithms and --protocols, those of Open MPI and MPICH with the variables that --sweep prints."
)
_HELP = HelpEntry(
    follows="gate",
    examples=(
        ("tune --sweep mpich --operation allreduce", "the variables of a sweep"),
        ("tune runs/own runs/ring runs/tree", "what is faster, and by how much"),
        ("tune runs/* --out tuned.conf", "write the file, and print how to use and to prove it"),
    ),
)
_LEAST_PERCENT = 2.0
_LAUNCHES = 6
_PAIRS = 5  # of launches in each of two allocations: the gate takes no fewer
_LIBRARIES = ("nccl", "openmpi", "mpich")


def add_tune(commands: Any) -> None:
    """Add the command."""
    add_command(commands, "tune", _SUMMARY, call_tune, _add_options, entry=_HELP, description=_ABOUT)


def percent_from_zero(text: str) -> float:
    """Return a percentage from 0 to below 100. Raises an argparse error for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 100:
        raise argparse.ArgumentTypeError(f"'{text}' is not a percentage from 0 to below 100")
    return value


def _add_options(parser: Parser) -> None:
    runs = "a run's folder, or a folder with launches; with --store the name of a run, an allocation or a label"
    parser.add_argument("runs", metavar="RUN", nargs="*", type=Path, help=runs)
    parser.add_argument("--out", metavar="FILE", type=Path, help="write the library's file")
    least = f"least saving of time that the interval has to show (default: {_LEAST_PERCENT:g})"
    parser.add_argument("--least", metavar="PERCENT", type=percent_from_zero, default=_LEAST_PERCENT, help=least)
    sweep = "print the commands of a sweep, and measure nothing: nccl (RCCL, too), openmpi or mpich"
    parser.add_argument("--sweep", metavar="LIBRARY", choices=_LIBRARIES, help=sweep)
    parser.add_argument("--operation", metavar="NAME", default="allreduce", help="of --sweep (default: allreduce)")
    add_format(parser, "table", "csv", "json")
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")
    add_selection(parser)


def call_tune(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the sizes and write the file; return 0. Raises UsageError."""
    if arguments.sweep:
        return _print_sweep(arguments)
    from collbench.plugins.tune.files import file_of
    from collbench.plugins.tune.sweep import TunedSize, overrides_of, sizes_of
    from collbench.records import RecordKind
    from collbench.report import forms
    from collbench.report.screen import wants_color
    from collbench.report.writers import check_file, confirm_written, write_whole

    if arguments.out:
        check_file(arguments.out, "--out")
    color = wants_color(sys.stdout, arguments.color)
    runs = _runs(arguments)
    sizes = sizes_of(runs, arguments.least)
    library = _library(runs, sizes)
    overrides, refused = _allowed(library, overrides_of(sizes))
    left_out = [*refused, *_disputed(sizes)]
    result = ["no file is written"] if left_out and not overrides else _result(overrides, arguments.least)
    sentences = [*result, *left_out, *_evidence(sizes)]
    if overrides:
        sentences += _proof(library, arguments.out, runs, sizes)
    kind = RecordKind("tune", TunedSize, title=lambda records: _title(records[0]), remarks=lambda records: sentences, style=_style)
    forms.write(kind, sizes, arguments.format, sys.stdout, color=color)
    if arguments.out and overrides:
        head = [_reproduction(argv), *_result(overrides, arguments.least)]
        write_whole(arguments.out, file_of(library, overrides, runs, head), "--out")
        confirm_written([arguments.out], sys.stderr)
    return FINE


def _runs(arguments: argparse.Namespace) -> list[Run]:
    """Return the runs that are named. Raises UsageError."""
    from collbench.analysis.launches import read_all

    selected = selected_runs(arguments, arguments.runs)
    if selected:
        return list(selected[1])
    if not arguments.runs:
        raise UsageError("tune needs runs with the library's own choice and with forced ones: name their folders, or see --sweep")
    return read_all(arguments.runs)


def _library(runs: Sequence[Run], sizes: Sequence[TunedSize]) -> Library:
    """Return the library of all sizes. Raises UsageError without one, and for several."""
    from collbench.plugins.tune.sweep import unjudged

    libraries = sorted({size.library for size in sizes})
    if len(libraries) == 1:
        return libraries[0]
    if libraries:
        raise UsageError(f"the runs are of {' and '.join(libraries)}, and a file is for one library: name the runs of one")
    others = unjudged(runs)
    reason = f"{', '.join(others)} has no file of choices" if others else "no run forces an algorithm"
    raise UsageError(f"nothing to compare ({reason}): measure a sweep first, `collbench tune --sweep LIBRARY` prints its commands")


def _allowed(library: Library, overrides: Sequence[Override]) -> tuple[list[Override], list[str]]:
    """Return the ranges that the library's file can have, and a sentence for each that it cannot."""
    from collbench.plugins.tune.files import refusal

    allowed: list[Override] = []
    sentences: list[str] = []
    for override in overrides:
        reason = refusal(library, override)
        if reason is None:
            allowed.append(override)
        else:
            sentences.append(f"not written: {_range(override)}, {reason}")
    return allowed, sentences


def _disputed(sizes: Sequence[TunedSize]) -> Iterable[str]:
    """Yield a sentence for each size that is not written because its measurements under different conditions want different choices."""
    from collbench.plugins.tune.sweep import disputed
    from collbench.units import format_size, plural

    for size in disputed(sizes):
        case = f"{size.operation} {format_size(size.size_bytes)} on {plural(size.ranks, 'rank')}"
        yield f"not written: {case}, where measurements of different conditions, such as the data type, want different choices"


def _range(override: Override) -> str:
    from collbench.units import format_size

    first = format_size(override.first_bytes)
    last = format_size(override.last_bytes)
    sizes = first if first == last else f"{first} to {last}"
    return f"{override.operation} {sizes} on {override.ranks} ranks: {override.choice}"


def _result(overrides: Sequence[Override], least_percent: float) -> list[str]:
    if not overrides:
        return [f"nothing to gain: no interval shows that a forced choice saves {least_percent:g} % of the time; no file is written"]
    return [f"overridden: {_range(override)}" for override in overrides]


def _evidence(sizes: Sequence[TunedSize]) -> Iterable[str]:
    if any(size.launches == 1 for size in sizes):
        yield "intervals of one launch: another launch may differ by more; measure each choice in several launches"
    unknown = sum(size.outcome == "unknown" for size in sizes)
    if unknown:
        yield f"{unknown} of {len(sizes)} sizes are unknown: no valid, reliable time of the own choice or of a forced one"


def _proof(library: Library, out: Path | None, runs: Sequence[Run], sizes: Sequence[TunedSize]) -> Iterable[str]:
    """Yield how to use the file, and the interleaved launches that prove it."""
    from collbench.plugins.tune.files import ONE_CHANNEL, USE

    use = USE[library].format(out.resolve() if out else "FILE")
    yield f"use it: {use}"
    if library == "nccl":
        yield ONE_CHANNEL
    command = _command(runs)
    plain = f"{command} --allocation pair-$a --out old-$a/launch-$i"
    tuned = f"{use} {command} --allocation pair-$a --out new-$a/launch-$i"
    loop = f"for a in 1 2; do for i in $(seq {_PAIRS}); do {plain}; {tuned}; done; done"
    yield f"prove it, each value of a in a fresh allocation: {loop}; collbench gate --paired old-1 old-2 new-1 new-2"


def _command(runs: Sequence[Run]) -> str:
    """Return the command of a run, without the options of its output and of the sweep."""
    dropped = {"--out", "--launches", "--allocation", "--algorithms", "--protocols"}
    words = [str(word) for word in next((run.info["command"] for run in runs if isinstance(run.info.get("command"), list)), ["collbench"])]
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in dropped:
            skip = True
        elif word.partition("=")[0] not in dropped:
            kept.append(word)
    return shlex.join(kept)


def _reproduction(argv: Sequence[str]) -> str:
    from collbench import __version__

    return f"collbench {__version__}: collbench {shlex.join(argv)}"


def _title(size: TunedSize) -> str:
    names = {"nccl": "NCCL", "openmpi": "Open MPI", "mpich": "MPICH"}
    return f"{names[size.library]}: own choice and the fastest forced one"


def _style(size: TunedSize) -> str:
    return "na" if size.outcome == "unknown" else ""


def _print_sweep(arguments: argparse.Namespace) -> int:
    """Print the commands of a sweep; return 0. Raises UsageError for an operation that the library's file does not have."""
    from collbench.plugins.tune.files import sweep_commands

    for line in sweep_commands(arguments.sweep, arguments.operation, _LAUNCHES):
        print(line)
    return FINE
