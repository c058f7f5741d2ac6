"""collbench store: an index of many run folders in one SQLite file or PostgreSQL database; and `--store` of other commands."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli.help import HelpEntry
from collbench.cli.parser import Parser, add_command, amount, natural, positive, words
from collbench.errors import FINE, USAGE, UsageError

if TYPE_CHECKING:
    from collbench.plugins.store.reading import RunSelection, StoredRun
    from collbench.plugins.store.writing import Changes
    from collbench.report.runs import RunsInFolders

_ABOUT = (
    "keeps an index of many run folders in one place: an SQLite file, or a PostgreSQL database (postgresql://HOST/DATABASE, extra: "
    "postgresql). The run folders stay as they are; the index can be made again from them. `history`, `baseline add`, `gate` and `report` "
    "read it with --store."
)
_SUMMARY = "an index of many runs in one file or database, for queries and dashboards"
_DATABASE = "an SQLite file (made by `add` and `sync`), or postgresql://HOST/DATABASE"
_OF = ("results", "runs", "suspects", "pairs", "verdicts")
_FORMATS = ("table", "csv", "jsonl", "markdown")
_SOURCES = ("prometheus", "postgresql")  # those of collbench/plugins/store/grafana, which --help need not load
# of serve-metrics
_PORT = 9823
_ADDRESS = "127.0.0.1"
_DAYS = 7.0
_LIMIT = 5000
_DAY_S = 86_400.0
_AGE = re.compile(r"(\d{1,6}(?:\.\d+)?)([hdwy]?)", re.ASCII)
_AGES_S = {"h": 3600.0, "d": _DAY_S, "": _DAY_S, "w": 7 * _DAY_S, "y": 365.25 * _DAY_S}
_LARGEST_LIMIT = 2**31
_HELP = HelpEntry(
    follows="runs",
    examples=(
        ("store sync runs.db runs", "add new runs below `runs` to a store, and mark those that are gone"),
        ("store query runs.db --operation allreduce --sizes 64M --node node1", "print the history of one case on one host"),
        ("history --store runs.db", "how times changed, for all runs of the store"),
    ),
)


def add_store(commands: Any) -> None:
    """Add the command."""
    add_command(commands, "store", _SUMMARY, None, _add_store_options, entry=_HELP, description=_ABOUT)


def _with_library(call: Callable[[argparse.Namespace, list[str]], int]) -> Callable[[argparse.Namespace, list[str]], int]:
    """Return a command that raises UsageError without SQLAlchemy, before it does anything."""

    def checked(arguments: argparse.Namespace, argv: list[str]) -> int:
        _check_library()
        return call(arguments, argv)

    return checked


def _check_library() -> None:
    try:
        import sqlalchemy  # noqa: F401
    except ImportError as error:
        raise UsageError(f"a store needs SQLAlchemy ({error}): pip install 'collbench[store]'") from error


def _add_store_options(parser: Parser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    parsers = {}
    for name, summary, call in (
        ("add", "add run folders, folders that hold them, and files verdict.json", _add),
        ("sync", "add what is new in folders, read again what changed, and mark what is gone", _sync),
        ("query", "print figures of cases, runs, suspects, pairs or verdicts, newest first", _query),
        ("prune", "remove old runs, or runs without a folder, from the store", _prune),
        ("export", "write the results as Parquet files by month and operation (extra: pandas)", _export),
    ):
        parsers[name] = add_command(verbs, name, summary, _with_library(call)).whole()
        parsers[name].add_argument("database", metavar="DB", help=_DATABASE)
    parsers["add"].add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run's folder, a folder of runs, or a verdict.json")
    parsers["sync"].add_argument("folders", metavar="DIR", nargs="+", type=Path, help="a folder with runs below it")
    for name in ("add", "sync"):
        label = "label of these runs, which filters can name; may be repeated. Only the store has labels"
        parsers[name].add_argument("--label", metavar="NAME", action="append", default=[], dest="labels", help=label)
    _add_query_options(parsers["query"])
    prune = parsers["prune"]
    prune.add_argument("--older-than", metavar="AGE", type=age, help="runs that began longer ago: 400d, 12w or 2y")
    prune.add_argument("--missing", action="store_true", help="runs without a folder at the last sync")
    prune.add_argument("--dry-run", action="store_true", help="print what would be removed, and remove nothing")
    parsers["export"].add_argument("out", metavar="DIR", type=Path, help="a new or empty folder")
    _add_selection(parsers["export"])
    summary = "serve the newest figures of a store to Prometheus at /metrics, read-only, until Ctrl+C"
    serve = add_command(verbs, "serve-metrics", summary, _with_library(_serve_metrics)).whole()
    serve.add_argument("database", metavar="DB", help=_DATABASE)
    serve.add_argument("--port", metavar="N", type=natural, default=_PORT, help=f"port (default: {_PORT}; 0: any free one)")
    address = f"IP address to listen at (default: {_ADDRESS}, for this host only; 0.0.0.0: all interfaces)"
    serve.add_argument("--address", metavar="IP", default=_ADDRESS, help=address)
    days = f"only runs of the last N days (default: {_DAYS:g}); Prometheus keeps what it scraped before"
    serve.add_argument("--days", metavar="N", type=amount, default=_DAYS, help=days)
    limit = f"at most N cases on nodes, the newest, each with about 15 series (default: {_LIMIT})"
    serve.add_argument("--limit", metavar="N", type=positive, default=_LIMIT, help=limit)
    summary = "write the Grafana dashboards as JSON files: fleet, node, operation, gate and telemetry"
    dashboards = add_command(verbs, "dashboards", summary, _with_library(_dashboards)).whole()
    dashboards.add_argument("source", metavar="SOURCE", choices=_SOURCES, help="where Grafana queries: prometheus or postgresql")
    dashboards.add_argument("out", metavar="DIR", type=Path, help="folder of the files, which are replaced")


def _add_query_options(parser: Parser) -> None:
    names = "names of runs, allocations or labels (default: all runs)"
    parser.add_argument("runs", metavar="NAME", nargs="*", help=names)
    parser.add_argument("--of", choices=_OF, default="results", help="kind of records (default: results: figures of cases)")
    parser.add_argument("--operation", metavar="NAMES", type=words, default=[], help="only these operations")
    parser.add_argument("--backend", metavar="NAMES", type=words, default=[], help="only these backends")
    parser.add_argument("--sizes", metavar="SIZES", default="", help="only these sizes: 64K, 8,1M or 1K-1M (all between)")
    _add_selection(parser)
    where = "only records with COLUMN=VALUE (or !=, <, <=, >, >=); without a value: unknown; may be repeated"
    parser.add_argument("--where", metavar="CONDITION", action="append", default=[], help=where)
    parser.add_argument("--columns", metavar="NAMES", type=words, default=[], help="columns to print, in this order; ? lists all")
    limit = "at most N records, the newest; 0: all (default: 1000 in tables, else all)"
    parser.add_argument("--limit", metavar="N", type=natural, help=limit)
    formats = "table, csv, markdown or jsonl: one JSON object per line (default: table)"
    parser.add_argument("--format", metavar="FORMAT", choices=(*_FORMATS, "json", "md"), default="table", help=formats)
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")


def _add_selection(group: Any) -> None:
    group.add_argument("--node", metavar="NAMES", type=words, default=[], help="only runs on one of these hosts")
    group.add_argument("--label", metavar="NAMES", type=words, default=[], help="only runs with one of these labels")
    group.add_argument("--since", metavar="TIME", type=moment, help="only runs from then on: 2026-11-01, 2026-11-01T06:00Z, or 30d ago")
    group.add_argument("--until", metavar="TIME", type=moment, help="only runs before then")


def age(text: str) -> float:
    """Return the seconds of "400d", "12w", "2y", "36h" or days without a unit. Raises an argparse error for anything else."""
    match = _AGE.fullmatch(text.strip())
    if not match:
        raise argparse.ArgumentTypeError(f"'{text}' is not a valid age: use e.g. 400d, 12w or 2y")
    return float(match[1]) * _AGES_S[match[2]]


def moment(text: str) -> float:
    """Return the seconds since 1970 of an ISO 8601 day or moment (UTC), or of an age before now. Raises an argparse error."""
    if _AGE.fullmatch(text.strip()) and not text.strip().isdecimal():
        return time.time() - age(text)
    from collbench.gating.allocation import moment as parse_moment

    time_of_day = parse_moment(text.strip().replace("Z", "+00:00"))
    if time_of_day is None:
        raise argparse.ArgumentTypeError(f"'{text}' is not a valid time: use e.g. 2026-11-01, 2026-11-01T06:00Z, or 30d")
    return time_of_day.timestamp()


def _add(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Add the runs and print how many; return 0, or 2 if some cannot be read. Raises UsageError."""
    from collbench.plugins.store.database import open_store
    from collbench.plugins.store.writing import Writer, add_all, find_all

    _check_labels(arguments.labels)
    paths = find_all(arguments.runs)
    with closing(open_store(arguments.database, write=True)) as database:
        changes = add_all(Writer(database), paths, arguments.labels)
    _print_changes(changes)
    return USAGE if changes.refused else FINE


def _sync(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Bring the store up to date and print what changed; return 0, also if a run cannot be read. Raises UsageError."""
    from collbench.plugins.store.database import open_store
    from collbench.plugins.store.writing import Writer, check_folders, sync

    _check_labels(arguments.labels)
    check_folders(arguments.folders)
    with closing(open_store(arguments.database, write=True)) as database:
        changes = sync(Writer(database), arguments.folders, arguments.labels)
    _print_changes(changes)
    return FINE


def _check_labels(labels: Sequence[str]) -> None:
    for label in labels:
        if not re.fullmatch(r"[\w.:+-]{1,100}", label):
            raise UsageError(f"--label '{label[:100]}': not a valid label (use up to 100 letters, digits, and . : + - _)")


def _print_changes(changes: Changes) -> None:
    from collbench.plugins.store.text import change_lines
    from collbench.report.frame import printable
    from collbench.report.screen import print_lines, write_line

    for sentence in (*changes.warnings, *changes.refused):
        write_line(sys.stderr, f"collbench: {printable(sentence)}")
    print_lines(change_lines(changes), sys.stdout, False)


def _query(arguments: argparse.Namespace, argv: list[str]) -> int:
    from collbench.plugins.store.database import open_store
    from collbench.plugins.store.query import RESULTS, SUBJECTS, Query, check_column, columns_of, parse_condition, size_condition
    from collbench.plugins.store.text import write_query
    from collbench.results.row import stored_operation

    subject = SUBJECTS[arguments.of]
    if arguments.columns == ["?"]:
        for name, column in columns_of(subject).items():
            print(f"{name}: {column.doc}")
        return FINE
    for name in arguments.columns:
        check_column(name, subject)
    for name in ("operation", "backend", "sizes"):
        if getattr(arguments, name) and subject is not RESULTS:
            raise UsageError(f"--{name} filters results: omit it, or omit --of {subject.name}")
    if arguments.sizes:
        size_condition(arguments.sizes)
    format = {"md": "markdown", "jsonl": "json"}.get(arguments.format, arguments.format)
    query = Query(
        subject, tuple(arguments.columns), selection(arguments, arguments.runs), tuple(map(stored_operation, arguments.operation)),
        tuple(arguments.backend), arguments.sizes, tuple(parse_condition(text, subject) for text in arguments.where),
        _limit(arguments.limit, format),
    )  # fmt: skip
    with closing(open_store(arguments.database)) as database:
        write_query(database, query, format, sys.stdout, arguments.color)
    return FINE


def _limit(typed: int | None, format: str) -> int | None:
    """Return the most records to print; None: all. Raises UsageError for a number that no database accepts."""
    from collbench.plugins.store.text import MOST_SHOWN

    if typed is None:
        return MOST_SHOWN if format in ("table", "markdown") else None
    if typed > _LARGEST_LIMIT:
        raise UsageError(f"--limit {typed}: more than a store has; use 0 for all")
    return typed or None


def _prune(arguments: argparse.Namespace, argv: list[str]) -> int:
    from collbench.plugins.store.database import open_store
    from collbench.plugins.store.text import removed_lines
    from collbench.plugins.store.writing import removable, remove
    from collbench.report.screen import print_lines

    if arguments.older_than is None and not arguments.missing:
        raise UsageError("prune removes nothing without a rule: use --older-than AGE, --missing, or both")
    before_s = None if arguments.older_than is None else time.time() - arguments.older_than
    with closing(open_store(arguments.database, write=not arguments.dry_run, make=False)) as database:
        records = removable(database, before_s, arguments.missing)
        if records and not arguments.dry_run:
            remove(database, records)
    print_lines(removed_lines(records, arguments.dry_run), sys.stdout, False)
    return FINE


def _export(arguments: argparse.Namespace, argv: list[str]) -> int:
    from collbench.plugins.store.database import open_store
    from collbench.plugins.store.export import export
    from collbench.units import plural

    with closing(open_store(arguments.database)) as database:
        exported = export(database, arguments.out, selection(arguments, ()))
    print(f"{plural(exported.results, 'result')} in {plural(exported.files, 'file')} below {arguments.out}")
    return FINE


def _serve_metrics(arguments: argparse.Namespace, argv: list[str]) -> int:
    from collbench.plugins.store.metrics import MetricsRange, serve_metrics

    covers = MetricsRange(arguments.days, arguments.limit)
    return serve_metrics(arguments.database, covers, arguments.port, arguments.address, sys.stdout)


def _dashboards(arguments: argparse.Namespace, argv: list[str]) -> int:
    from collbench.plugins.store.dashboards import DASHBOARDS
    from collbench.plugins.store.grafana import write_dashboards
    from collbench.report.writers import confirm_written

    confirm_written(write_dashboards(DASHBOARDS, arguments.source, arguments.out), sys.stdout)
    return FINE


def add_run_options(parser: Parser) -> None:
    """Add `--store` and the options that select runs in it."""
    group = parser.add_argument_group("runs of a store")
    store = "read the runs from a store, an SQLite file or postgresql://HOST/DATABASE: name runs, allocations or labels instead of folders"
    group.add_argument("--store", metavar="DB", help=store)
    _add_selection(group)


def selection(arguments: argparse.Namespace, names: Sequence[object]) -> RunSelection:
    """Return the runs that names and options select."""
    from collbench.plugins.store.reading import RunSelection

    return RunSelection(tuple(map(str, names)), tuple(arguments.node), tuple(arguments.label), arguments.since, arguments.until)


def _stored_runs(arguments: argparse.Namespace, names: Sequence[object], newest: bool = False) -> list[StoredRun]:
    """Return the selected runs of `--store`, in the order in which they began. `newest`: without any selection only the newest launches.

    Raises UsageError if the store cannot be read, or has no such run.
    """
    from collbench.plugins.store.database import open_store
    from collbench.plugins.store.reading import RunSelection, load_runs, newest_launches, select_runs

    runs = selection(arguments, names)
    with closing(open_store(arguments.store)) as database:
        return load_runs(database, newest_launches(database) if newest and runs == RunSelection() else select_runs(database, runs))


def check_run_options(arguments: argparse.Namespace) -> None:
    """Raise UsageError for an option that selects runs in a store, without `--store`."""
    for name in ("node", "label", "since", "until"):
        if getattr(arguments, name) not in (None, []) and not arguments.store:
            raise UsageError(f"--{name} selects runs in a store: add --store DB, or omit --{name}")


def selected_runs(arguments: argparse.Namespace, names: Sequence[object]) -> tuple[str, list[StoredRun]] | None:
    """Return (name of the store, its selected runs in the order in which they began); None without `--store`. Raises UsageError."""
    if not arguments.store:
        return None
    _check_library()
    from collbench.plugins.store.database import shown_name

    return shown_name(arguments.store), _stored_runs(arguments, names)


def runs_for_report(arguments: argparse.Namespace) -> RunsInFolders | None:
    """Return the runs that `--store` selects, and name their folders as arguments; None without `--store`. Raises UsageError."""
    if not arguments.store:
        return None
    _check_library()
    from collbench.plugins.store.text import stored_for_report

    runs = _stored_runs(arguments, arguments.runs, newest=True)
    arguments.runs = [run.path for run in runs]
    return stored_for_report(runs, with_samples=arguments.html is not None)
