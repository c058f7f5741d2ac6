"""The commands about results: compare, report, runs and import."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli.options import ROW_FORMATS, add_some
from collbench.cli.parser import Parser, add_command, natural, positive
from collbench.errors import UsageError
from collbench.plugins.store.command import add_stored_runs, check_no_selection, stored_runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collbench.plugins.importers.rows import JobOf
    from collbench.plugins.importers.store import ImportedRun
    from collbench.report.runs import RunsInFolders


# collbench compare A B: compare two runs, or two folders of launches.


def add_compare(commands: Any) -> None:
    """Add the command."""
    summary = "compare two runs, case by case: times, and what else differs"
    about = "Ratio of time and bandwidth of two runs, case by case, and what else differs."
    add_command(commands, "compare", summary, call_compare, _add_compare_options, description=about)


def _add_compare_options(parser: Parser) -> None:
    parser.add_argument("a", metavar="A", type=Path, help="a run's folder, or a folder of launches")
    parser.add_argument("b", metavar="B", type=Path, help="the run to compare with A")
    parser.add_argument(
        "--margin", metavar="PERCENT", default="5", help="largest difference that counts as no change, in percent (default: 5)"
    )
    parser.add_argument("--format", default="table", help="table, csv, jsonl or markdown (default: table)")
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")


def call_compare(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the comparison and return the exit code."""
    from collbench.report.compare import compare_runs

    margin = _margin(arguments.margin)
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
    parser.add_argument("--asv", metavar="DIR", type=Path, help="add the times to the results folder of asv (airspeed velocity)")
    parser.add_argument("--commit", metavar="REV", help="--asv: the commit that was measured (default: HEAD of the repository here)")
    parser.add_argument("--tensorboard", metavar="DIR", type=Path, help="add the figures as scalars over runs (needs tensorboard)")
    parser.add_argument("--format", default="table", help=f"{', '.join(ROW_FORMATS)} or jsonl (default: table)")
    serving = "show a folder of runs in the browser of this host: an index with search, trends, and the page of each run"
    parser.add_argument("--serve", action="store_true", help=serving)
    parser.add_argument("--port", metavar="N", type=natural, help="port of --serve (default: 8323; 0: any free one)")
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")
    add_some(parser, "columns verbose")
    add_stored_runs(parser)


_LAST_PORT = 65535


def call_report(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the runs and return the exit code."""
    from collbench.report.progress import view_of
    from collbench.report.runs import report_run

    if arguments.serve:
        return _serve(arguments)
    if arguments.port is not None:
        raise UsageError("--port is for --serve: add it, or leave out --port")
    runs = _of_store(arguments) if arguments.store else None
    if runs is None:
        check_no_selection(arguments)
    if not arguments.runs:
        from collbench.report.run_list import newest_run

        arguments.runs = [newest_run()]
        _print_error(f"newest run: {arguments.runs[0]}")
    if arguments.commit is not None and arguments.asv is None:
        raise UsageError("--commit is for --asv: add it, or leave out --commit")
    files = {name: getattr(arguments, name) for name in ("html", "verdict", "markdown", "openmetrics", "trace", "tensorboard")}
    asv = None if arguments.asv is None else (arguments.asv, arguments.commit or "HEAD")
    view = view_of(arguments)
    return report_run(
        arguments.runs, arguments.csv, arguments.format, sys.stdout, **files, asv=asv, color=arguments.color, view=view, runs=runs
    )


def _of_store(arguments: argparse.Namespace) -> RunsInFolders:
    """Return the runs that `--store` selects, and name their folders as arguments. Raises UsageError."""
    from collbench.plugins.store.text import stored_for_report

    found = stored_runs(arguments, arguments.runs, newest=True)
    arguments.runs = [run.path for run in found]
    return stored_for_report(found, with_samples=arguments.html is not None)


def _serve(arguments: argparse.Namespace) -> int:
    """Serve one folder of runs until Ctrl+C. Raises UsageError for several folders, options of other outputs, and an invalid port."""
    from collbench.report.run_list import RUNS
    from collbench.report.serve import PORT, serve

    files = ("html", "markdown", "openmetrics", "csv", "verdict", "trace", "asv", "tensorboard")
    if other := next((name for name in files if getattr(arguments, name) is not None), None):
        raise UsageError(f"--serve writes no file: leave out --{other}")
    if arguments.store:
        raise UsageError("--serve shows a folder of runs: leave out --store")
    if len(arguments.runs) > 1:
        raise UsageError(f"--serve shows one folder of runs, but {len(arguments.runs)} are named: name the folder above them")
    port = PORT if arguments.port is None else arguments.port
    if port > _LAST_PORT:
        raise UsageError(f"--port {port}: not a valid port (use 0 to {_LAST_PORT})")
    return serve(arguments.runs[0] if arguments.runs else RUNS, port, sys.stdout)


# collbench runs: the stored runs, newest first.


def add_runs(commands: Any) -> None:
    """Add the command."""
    about = "list stored runs, newest first: when, command, ranks, cases and the best figure"
    add_command(commands, "runs", about, call_runs, _add_runs_options, description=about)


def _add_runs_options(parser: Parser) -> None:
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, default=Path("runs"), help="folder of the runs (default: runs)")
    parser.add_argument("--format", default="table", help="table, csv or json (default: table)")
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")


def call_runs(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the list and return 0. Raises UsageError without a run."""
    from collbench.report.run_list import list_runs

    return list_runs(arguments.folder, arguments.format, sys.stdout, color=arguments.color)


_ABOUT = (
    "Reads what other benchmarks printed (formats: see --as), and writes run folders for `collbench report` and `compare`. "
    "What such output lacks (intervals, samples, ranks) is listed and stays unknown."
)
# The names in the registry of importers, which other commands need not load.
FORMATS = (
    "log, nccl-tests-json, rccl-tests-file, nccl-inspector, nvbandwidth-json, param, nccl-tests, osu, imb, perftest, gloo, nvbandwidth, "
    "all-reduce-bench, deepep, fi-pingpong, ucx-perftest, mpigraph, gpcnet"
)
_LISTED = 12  # folders that are listed; a log of nightly runs may have thousands


def add_import(commands: Any) -> None:
    """Add the command."""
    add_command(
        commands,
        "import",
        "make run folders from output of nccl-tests, OSU, IMB, …",
        call_import,
        _add_import_options,
        description=_ABOUT,
    )


def _add_import_options(parser: Parser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="output of a tool, with other lines in between; -: stdin")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="the run folder, or the folder of several launches")
    parser.add_argument("--as", dest="format", metavar="FORMAT", help=f"{FORMATS} (default: what the lines look like)")
    parser.add_argument("--strict", action="store_true", help="fail (exit code 2) if a table cannot be read, instead of skipping it")
    group = parser.add_argument_group("what the output does not contain", "If a table proves another value, that value is used.")
    group.add_argument("--ranks", metavar="N", type=positive, help="ranks that took part")
    group.add_argument("--nodes", metavar="N", type=positive, help="nodes they ran on")
    group.add_argument("--operation", metavar="NAME", help="allreduce, broadcast, alltoall, …")
    group.add_argument("--dtype", metavar="NAME", help="element type")
    group.add_argument("--from", dest="sources", nargs="+", type=Path, metavar="PATH",
                      help="files that describe the nodes, as for `peak`: rows get the expected bandwidth of these")  # fmt: skip
    group.add_argument("--ceiling", metavar="GB/s", help="take this as the ceiling of every row")
    group.add_argument("--allocation", metavar="NAME", help="tables of the same cases are launches of one allocation (default: each alone)")


def call_import(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Write the run folders, report their content, and return the exit code. Raises UsageError."""
    from collbench.untrusted import uncollected

    with uncollected():
        return _import(arguments, argv)


def _import(arguments: argparse.Namespace, argv: list[str]) -> int:
    from collbench.plugins.importers.files import read_tables, user_input
    from collbench.plugins.importers.rows import with_ceilings
    from collbench.plugins.importers.store import store, together

    job_of, topology = _machines(arguments)
    known = user_input(arguments.ranks, arguments.nodes, arguments.operation, arguments.dtype)
    tables = read_tables(arguments.files, known, arguments.format, arguments.strict)
    if job_of:
        tables = [replace(table, run=replace(table.run, rows=with_ceilings(table.run.rows, job_of))) for table in tables]
    runs = together(tables)
    paths = store(runs, arguments.out, argv, arguments.allocation, topology)
    _print_imported(paths, runs)
    times = max(Counter(series for run in runs for series in run.series).values(), default=0)
    if times > 1 and not arguments.allocation:
        _print_error(f"the same cases come {times} times and are kept apart; --allocation NAME reads them as launches of one allocation")
    return 0


def _machines(arguments: argparse.Namespace) -> tuple[JobOf | None, Mapping[str, Any] | None]:
    """Return (the source of the rows' ceilings, the content of topology.json); None for each that was not given. Raises UsageError."""
    from collbench.cli.machine import given_rate, read_machines
    from collbench.machine.peak.job import job_on
    from collbench.machine.peak.node import Job
    from collbench.machine.snapshot import topology_json

    rate = given_rate("--ceiling", arguments.ceiling)
    machines = read_machines(arguments.sources) if arguments.sources else []
    topology = topology_json(machines) if arguments.sources else None
    if rate is not None:
        return lambda ranks, nodes, device: Job((), ceiling_from_user=rate), topology
    return (lambda ranks, nodes, device: job_on(machines, ranks, nodes, device)) if arguments.sources else None, topology


def _print_imported(paths: Sequence[Path], runs: Sequence[ImportedRun]) -> None:
    """Print wrong data and the folders on stdout. Print their content, missing values, doubts and skipped lines on stderr, once each."""
    from collbench.report.answer import verification_of
    from collbench.results.imported import import_notes

    shown = [(str(path), len(run.rows)) for path, run in zip(paths, runs, strict=True)]
    if len(shown) > _LISTED:
        shown = [(f"{paths[0]} … {paths[-1].name}", sum(number for _, number in shown))]
    verification = verification_of([row for run in runs for row in run.rows])
    if verification.wrong:
        print(verification.render())
    for name, number in shown:
        print(f"{name}: {number} row{'' if number == 1 else 's'}")
    for sentence in dict.fromkeys(sentence for run in runs for sentence in import_notes(run.info)):
        _print_error(sentence)


def _print_error(sentence: str) -> None:
    from collbench.launch.supervise import report_error
    from collbench.report.frame import printable

    report_error(printable(sentence))
