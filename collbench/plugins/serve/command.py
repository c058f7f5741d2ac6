"""`collbench report --serve`: the options, and the server of a folder of runs."""

from __future__ import annotations

import argparse
import sys

from collbench.cli.parser import Parser, natural
from collbench.errors import UsageError

_LAST_PORT = 65535


def add_options(parser: Parser) -> None:
    """Add the options to `report`."""
    serving = "show a folder of runs in the browser of this host: an index with search, trends, and the page of each run"
    parser.add_argument("--serve", action="store_true", help=serving)
    parser.add_argument("--port", metavar="N", type=natural, help="port of --serve (default: 8323; 0: any free one)")


def serve_runs(arguments: argparse.Namespace) -> int | None:
    """Serve one folder of runs until Ctrl+C; return 0. None without --serve.

    Raises UsageError for several folders, options of other outputs, an invalid port, and --port without --serve.
    """
    if not arguments.serve:
        if arguments.port is not None:
            raise UsageError("--port is for --serve: add it, or leave out --port")
        return None
    from collbench.plugins.serve.server import PORT, serve
    from collbench.report.run_list import RUNS

    files = ("html", "markdown", "openmetrics", "csv", "verdict", "trace", "asv", "tensorboard")
    if other := next((name for name in files if getattr(arguments, name, None) is not None), None):
        raise UsageError(f"--serve writes no file: leave out --{other}")
    if arguments.store:
        raise UsageError("--serve shows a folder of runs: leave out --store")
    if len(arguments.runs) > 1:
        raise UsageError(f"--serve shows one folder of runs, but {len(arguments.runs)} are named: name the folder above them")
    port = PORT if arguments.port is None else arguments.port
    if port > _LAST_PORT:
        raise UsageError(f"--port {port}: not a valid port (use 0 to {_LAST_PORT})")
    return serve(arguments.runs[0] if arguments.runs else RUNS, port, sys.stdout)
