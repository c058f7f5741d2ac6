"""collbench history DIR: how each cell and group went from allocation to allocation, and when it changed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_ABOUT = (
    "shows how each cell, group and all cells together went from allocation to allocation, and marks where they changed: when, by how "
    "much, and what else changed then. DIR is a baseline's folder, or one that holds runs."
)


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "history", help="how cells went from allocation to allocation, changes marked", description=_ABOUT
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="a baseline's folder, or a folder that holds runs")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="cells whose name fits, such as 'allreduce*mpi' (* is anything)")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write it as one page, too (extra: report)")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="(default: table)")
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")
    parser.set_defaults(call=call)
    return {"history": parser}


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Prints the history; 0. Raises UsageError."""
    import sys

    from collbench.gate.history import dated_in, history
    from collbench.report.history import letters_for, lines
    from collbench.report.outputs import Outputs
    from collbench.report.screen import PlainScreen, wants_color

    Outputs(html=arguments.html).check()
    painted = wants_color(sys.stdout, arguments.color)
    found = history(str(arguments.folder), *dated_in(arguments.folder))
    shown = list(lines(found, arguments.format, arguments.only, letters_for(sys.stdout.encoding, painted)))
    if arguments.html:
        from collbench.report.html.history import write_history

        write_history(found, arguments.only, arguments.html)
    screen = PlainScreen(sys.stdout, sys.stderr, painted)
    for line in shown:
        screen.data(line)
    return 0
