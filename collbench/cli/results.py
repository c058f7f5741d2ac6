"""The commands about results: compare, report and runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from collbench.cli.options import ROW_FORMATS, add_some
from collbench.cli.parser import Parser, add_command
from collbench.cli.selection import add_selection, check_selection
from collbench.errors import UsageError
from collbench.plugin import hooks_of

# collbench compare A B: compare two runs, or two folders of launches.


def add_compare(commands: Any) -> None:
    """Add the command."""
    summary = "compare two runs case by case, or backends, stacks, rank counts"
    about = (
        "Ratio of time and bandwidth of two runs, case by case, and what else differs; or, for runs that differ in their backend, rank "
        "count or another field of all cases, and for more than two: which is the fastest at each size. The exit code is 0 in both cases."
    )
    add_command(commands, "compare", summary, call_compare, _add_compare_options, description=about)


def _add_compare_options(parser: Parser) -> None:
    parser.add_argument("a", metavar="A", type=Path, help="a run's folder, or a folder of launches")
    parser.add_argument("b", metavar="B", type=Path, help="the run to compare with A")
    for add in hooks_of("compare_options"):
        add(parser)
    parser.add_argument(
        "--margin", metavar="PERCENT", default="5", help="largest difference that counts as no change, in percent (default: 5)"
    )
    parser.add_argument("--format", default="table", help="table, csv, jsonl or markdown (default: table)")
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")


def call_compare(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the comparison and return the exit code."""
    from collbench.report.compare import compare_runs

    margin = _margin(arguments.margin)
    for compare in hooks_of("compare"):
        code: int = compare(arguments, margin)
        return code
    return compare_runs(arguments.a, arguments.b, arguments.format, sys.stdout, margin=margin, color=arguments.color)


def _margin(text: str) -> float:
    """Return the margin as a fraction. Raises UsageError for anything but a percentage above 0 and below 100."""
    try:
        percent = float(text.strip().removesuffix("%")) if text.isascii() else 0.0
    except ValueError:
        percent = 0.0
    if not 0 < percent < 100:
        raise UsageError(f"--margin '{text}': not a valid percentage (use a number above 0 and below 100, such as 5)")
    return percent / 100


# collbench report RUN…: print stored runs as a table, an HTML page, Markdown, or data for programs.


def add_report(commands: Any) -> None:
    """Add the command."""
    about = "show stored runs, launches of one allocation together: as a table, an HTML page, Markdown, CSV or OpenMetrics"
    summary = "show stored runs as a table, an HTML page, Markdown or CSV"
    add_command(commands, "report", summary, call_report, _add_report_options, description=about)


def _add_report_options(parser: Parser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="*", type=Path,
                        help="a run's folder, or a folder of launches (default: the newest run in runs/)")  # fmt: skip
    page = "write everything as one HTML page, which needs no network: charts, findings, differences, raw files"
    parser.add_argument("--html", metavar="FILE", type=Path, help=page)
    pull = "write peaks, findings, rows and differences as Markdown, for wikis and pull requests (no FILE: to stdout)"
    parser.add_argument("--verdict", metavar="FILE", type=Path, help="show a verdict.json of `collbench gate` first on the page")
    parser.add_argument("--markdown", metavar="FILE", type=Path, nargs="?", const=Path("-"), help=pull)
    collector = "write the rows in OpenMetrics' form, such as for node_exporter's textfile collector"
    parser.add_argument("--openmetrics", metavar="FILE", type=Path, help=collector)
    parser.add_argument("--csv", metavar="FILE", type=Path, nargs="?", const=Path("-"), help="write the rows as CSV (no FILE: to stdout)")
    parser.add_argument("--trace", metavar="FILE", type=Path, help="write the timeline as trace events, for Perfetto and chrome://tracing")
    for add in hooks_of("report_options"):
        add(parser)
    parser.add_argument("--format", default="table", help=f"{', '.join(ROW_FORMATS)} or jsonl (default: table)")
    for add in hooks_of("report_views"):
        add(parser)
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")
    add_some(parser, "columns verbose", columns={"parse": str})  # the runs determine which columns there are
    add_selection(parser)


def call_report(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the runs and return the exit code."""
    from collbench.report.blocks import View
    from collbench.report.runs import report_run

    for answer in hooks_of("report"):
        code: int | None = answer(arguments)
        if code is not None:
            return code
    check_selection(arguments)
    selected = [runs_of(arguments) for runs_of in hooks_of("runs_for_report")]
    runs = next(filter(None, selected), None)
    if not arguments.runs:
        from collbench.launch.supervise import report_error
        from collbench.report.frame import printable
        from collbench.report.run_list import newest_run

        arguments.runs = [newest_run()]
        report_error(printable(f"newest run: {arguments.runs[0]}"))
    writers = [writer_of(arguments) for writer_of in hooks_of("report_writer")]
    files = {name: getattr(arguments, name) for name in ("html", "verdict", "markdown", "openmetrics", "trace")}
    view = View.of(arguments.columns, arguments.verbose)
    return report_run(
        arguments.runs, arguments.csv, arguments.format, sys.stdout, **files, writers=writers, color=arguments.color, view=view, runs=runs
    )


# collbench runs: the stored runs, newest first.


def add_runs(commands: Any) -> None:
    """Add the command."""
    summary = "list stored runs, newest first: when, command, ranks, cases and the best figure"
    add_command(commands, "runs", summary, call_runs, _add_runs_options, description=summary)


def _add_runs_options(parser: Parser) -> None:
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, default=Path("runs"), help="folder of the runs (default: runs)")
    parser.add_argument("--format", default="table", help="table, csv or json (default: table)")
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")


def call_runs(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the list and return 0. Raises UsageError without a run."""
    from collbench.report.run_list import list_runs

    return list_runs(arguments.folder, arguments.format, sys.stdout, color=arguments.color)
