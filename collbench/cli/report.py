"""collbench report RUN…: stored runs once more: as a table, as one HTML page, as Markdown, for programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    about = "show stored runs, launches of one allocation together: as a table, an HTML page, Markdown, CSV or OpenMetrics"
    parser = commands.add_parser("report", help=about, description=about)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run's folder, or a folder of launches")
    page = "write everything as one HTML page, which needs no network: charts, findings, differences, raw files (extra: report)"
    parser.add_argument("--html", metavar="FILE", type=Path, help=page)
    pull = "write peaks, findings, rows and differences as Markdown, for wikis and pull requests (no FILE: to stdout)"
    parser.add_argument("--verdict", metavar="FILE", type=Path, help="a verdict.json of `collbench gate`, to stand first on the page")
    parser.add_argument("--markdown", metavar="FILE", type=Path, nargs="?", const=Path("-"), help=pull)
    collector = "write the rows in OpenMetrics' form, such as for node_exporter's textfile collector (extra: report)"
    parser.add_argument("--openmetrics", metavar="FILE", type=Path, help=collector)
    parser.add_argument("--csv", metavar="FILE", type=Path, nargs="?", const=Path("-"), help="write the rows as CSV (no FILE: to stdout)")
    parser.add_argument("--format", default="table", help="table, nccl-tests, csv or json (default: table)")
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")
    parser.set_defaults(call=call)
    return {"report": parser}


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Prints the runs and returns the exit code."""
    import sys

    from collbench.report.summary import report_run

    files = {"html": arguments.html, "verdict": arguments.verdict, "markdown": arguments.markdown, "openmetrics": arguments.openmetrics}
    return report_run(arguments.runs, arguments.csv, arguments.format, sys.stdout, **files, color=arguments.color)
