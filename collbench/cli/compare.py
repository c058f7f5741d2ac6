"""collbench compare A B: compare two runs, or two folders of launches."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    about = "ratio of time and bandwidth of two runs, cell by cell, and what else differs"
    parser = commands.add_parser("compare", help=about, description=about)
    parser.add_argument("a", metavar="A", type=Path, help="a run's folder, or a folder of launches")
    parser.add_argument("b", metavar="B", type=Path, help="the run to compare with A")
    parser.add_argument(
        "--margin", metavar="PERCENT", default="5", help="largest difference that counts as no change, in percent (default: 5)"
    )
    parser.add_argument("--format", default="table", help="table, csv, json or markdown (default: table)")
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")
    parser.set_defaults(call=call)
    return {"compare": parser}


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Prints the comparison and returns the exit code."""
    import sys

    from collbench.report.compare import compare_runs

    margin = _margin(arguments.margin)
    return compare_runs(arguments.a, arguments.b, arguments.format, sys.stdout, margin=margin, color=arguments.color)


def _margin(text: str) -> float:
    """Return the margin as a fraction. Raises UsageError for anything but a percentage above 0 and below 100."""
    from collbench.errors import UsageError

    try:
        percent = float(text)
    except ValueError:
        percent = 0.0
    if not 0 < percent < 100:
        raise UsageError(f"--margin '{text}': not a valid percentage (use a number above 0 and below 100, such as 5)")
    return percent / 100
