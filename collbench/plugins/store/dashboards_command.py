"""collbench store serve-metrics and dashboards: the figures of a store for Prometheus and Grafana."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from collbench.cli.parser import add_command, amount, natural, positive
from collbench.errors import FINE

_SOURCES = ("prometheus", "postgresql")  # those of collbench/report/grafana, which --help need not load
_PORT, _ADDRESS, _DAYS, _LIMIT = 9823, "127.0.0.1", 7.0, 5000


def add_verbs(verbs: Any, database: str) -> None:
    """Add the verbs to `collbench store`; `database` describes DB."""
    about = "serve the newest figures of a store to Prometheus at /metrics, read-only, until Ctrl+C"
    serve = add_command(verbs, "serve-metrics", about, _serve_metrics).whole()
    serve.add_argument("database", metavar="DB", help=database)
    serve.add_argument("--port", metavar="N", type=natural, default=_PORT, help=f"port (default: {_PORT}; 0: any free one)")
    where = f"IP address to listen at (default: {_ADDRESS}, for this host only; 0.0.0.0: all interfaces)"
    serve.add_argument("--address", metavar="IP", default=_ADDRESS, help=where)
    days = f"only runs of the last N days (default: {_DAYS:g}); Prometheus keeps what it scraped before"
    serve.add_argument("--days", metavar="N", type=amount, default=_DAYS, help=days)
    most = f"at most N cases on nodes, the newest, each with about 15 series (default: {_LIMIT})"
    serve.add_argument("--limit", metavar="N", type=positive, default=_LIMIT, help=most)
    about = "write the Grafana dashboards as JSON files: fleet, node, operation, gate and telemetry"
    boards = add_command(verbs, "dashboards", about, _dashboards).whole()
    boards.add_argument("source", metavar="SOURCE", choices=_SOURCES, help="where Grafana queries: prometheus or postgresql")
    boards.add_argument("out", metavar="DIR", type=Path, help="folder of the files, which are replaced")


def _serve_metrics(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Serve until Ctrl+C; return 0. Raises UsageError."""
    from collbench.plugins.store.metrics import MetricsRange, serve_metrics

    covers = MetricsRange(arguments.days, arguments.limit)
    return serve_metrics(arguments.database, covers, arguments.port, arguments.address, sys.stdout)


def _dashboards(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Write the files and print their names; return 0. Raises UsageError."""
    from collbench.plugins.store.dashboards import DASHBOARDS
    from collbench.plugins.store.grafana import write_dashboards
    from collbench.report.writers import confirm_written

    confirm_written(write_dashboards(DASHBOARDS, arguments.source, arguments.out), sys.stdout)
    return FINE
