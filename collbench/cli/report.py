"""collbench report RUN…: prints stored runs again, in any format."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    parser = commands.add_parser("report", help="print stored runs again, launches of one allocation together, or write them as CSV")
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run's folder, or a folder of launches")
    parser.add_argument("--csv", metavar="FILE", type=Path, nargs="?", const=Path("-"), help="write the rows as CSV (no FILE: to stdout)")
    parser.add_argument("--format", default="table", help="table, nccl-tests, csv or json (default: table)")
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")
    parser.set_defaults(call=call)
    return {"report": parser}


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Prints the runs and returns the exit code."""
    import sys

    from collbench.report.summary import report_run

    return report_run(arguments.runs, arguments.csv, arguments.format, sys.stdout, color=arguments.color)
