"""collbench import: make run folders from the output of other benchmarks."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from collbench.cli.help import HelpEntry
from collbench.cli.parser import Parser, add_command, positive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collbench.plugins.importers.rows import JobOf
    from collbench.plugins.importers.store import ImportedRun

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
_HELP = HelpEntry(
    group="Commands",
    follows="peak",
    examples=(
        ("import nccl-tests.txt --out runs/other", "make a run folder from a log"),
        ("import osu.txt --out runs/other --ranks 16 --nodes 2", "add what the log does not contain"),
        ("compare runs/other runs/my-run", "compare it with a run"),
    ),
    common="ceiling allocation",
)


def add_import(commands: Any) -> None:
    """Add the command."""
    add_command(
        commands,
        "import",
        "make run folders from output of nccl-tests, OSU, IMB, …",
        call_import,
        _add_import_options,
        entry=_HELP,
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
    from collbench.plugins.importers.files import read_tables, user_input
    from collbench.plugins.importers.rows import with_ceilings
    from collbench.plugins.importers.store import store, together
    from collbench.untrusted import uncollected

    with uncollected():
        job_of, topology = _machines(arguments)
        additions = user_input(arguments.ranks, arguments.nodes, arguments.operation, arguments.dtype)
        tables = read_tables(arguments.files, additions, arguments.format, arguments.strict)
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

    folders = [(str(path), len(run.rows)) for path, run in zip(paths, runs, strict=True)]
    if len(folders) > _LISTED:
        folders = [(f"{paths[0]} … {paths[-1].name}", sum(rows for _, rows in folders))]
    verification = verification_of([row for run in runs for row in run.rows])
    if verification.wrong:
        print(verification.render())
    for name, rows in folders:
        print(f"{name}: {rows} row{'' if rows == 1 else 's'}")
    for sentence in dict.fromkeys(sentence for run in runs for sentence in import_notes(run.info)):
        _print_error(sentence)


def _print_error(sentence: str) -> None:
    from collbench.launch.supervise import report_error
    from collbench.report.frame import printable

    report_error(printable(sentence))
