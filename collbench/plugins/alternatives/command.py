"""`collbench compare` of runs that differ in their backend or another field of all cases, and of more than two."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from collbench.analysis.compare import NothingInCommon, side_of
from collbench.analysis.launches import Launches, check_once, runs_in, sentence
from collbench.errors import FINE, UsageError
from collbench.plugins.alternatives.analysis import alternatives
from collbench.plugins.alternatives.text import lines
from collbench.report.compare import FORMATS, compare_runs
from collbench.report.frame import printable
from collbench.report.screen import check_format, print_lines, wants_color, width_of, write_line
from collbench.units import listed


def compare(arguments: argparse.Namespace, margin: float) -> int:
    """Print the comparison and return the exit code, 0. Two runs are compared case by case if they have cases in common.

    Raises UsageError for launches that do not belong together or are given twice, and for runs that cannot be compared.
    """
    if arguments.more:
        return _compare_sides(sides_of([arguments.a, arguments.b, *arguments.more]), arguments, margin)
    try:
        return compare_runs(arguments.a, arguments.b, arguments.format, sys.stdout, margin=margin, color=arguments.color)
    except NothingInCommon as error:
        return _compare_sides(error.sides, arguments, margin, error)


def _compare_sides(sides: Sequence[Launches], arguments: argparse.Namespace, margin: float, problem: UsageError | None = None) -> int:
    """Print the comparison of alternatives, and warnings on stderr. Raises `problem` if no two of their cases are alternatives."""
    check_format(arguments.format, FORMATS)
    compared = alternatives(sides, margin)
    if compared is None:
        raise problem or UsageError(f"{listed([side.name for side in sides], 4)} have no cases that differ in one field only")
    for side in sides:
        for warning in (warning for run in side.runs for warning in (*run.warnings, sentence(run)) if warning):
            write_line(sys.stderr, printable(warning))
    width = width_of(sys.stdout) if arguments.format == "table" else None
    print_lines(lines(compared, arguments.format, width), sys.stdout, wants_color(sys.stdout, arguments.color))
    return FINE


def sides_of(paths: Sequence[Path]) -> list[Launches]:
    """Return the launches in each of these folders. Raises UsageError for launches that do not belong together or are given twice."""
    runs = [runs_in(path) for path in paths]
    check_once(run for launches in runs for run in launches)
    return [side_of(launches, str(path)) for launches, path in zip(runs, paths, strict=True)]
