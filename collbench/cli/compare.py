"""collbench compare A B: two runs, or two folders of launches, side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    about = "ratio of time and bandwidth of two runs, cell by cell, and what else differs"
    parser = commands.add_parser("compare", help=about, description=about)
    parser.add_argument("a", metavar="A", type=Path, help="a run's folder, or a folder of launches")
    parser.add_argument("b", metavar="B", type=Path, help="the one to be set against it")
    parser.add_argument("--format", default="table", help="table, csv, json or markdown (default: table)")
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")
    parser.set_defaults(call=call)
    return {"compare": parser}


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Prints the comparison and returns the exit code."""
    import sys

    from collbench.report.compare import compare_runs

    return compare_runs(arguments.a, arguments.b, arguments.format, sys.stdout, color=arguments.color)
