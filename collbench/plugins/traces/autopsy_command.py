"""collbench autopsy: which rank did not arrive at which collective, or called something else, from the dumps of all ranks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from collbench.cli.help import HelpEntry
from collbench.cli.parser import Parser, add_command, add_format, positive

_ABOUT = (
    "finds the cause of a hang or mismatch in what each rank was doing: dumps of PyTorch's Flight Recorder, or traces of another format. "
    "Write the dumps of all ranks at the same time. Exit code 0: nothing found, 1: a cause found, 3: inconclusive."
)

_HELP = HelpEntry(
    group="Training",
    follows="replay",
    examples=(
        ("autopsy dumps", "a folder with the dump of each rank of a hang"),
        ("autopsy trace_rank_*", "the files of PyTorch's Flight Recorder"),
        ("autopsy dumps --ranks 64 --html hang.html", "with the number of ranks of the job, and a page"),
    ),
)


def add_autopsy(commands: Any) -> None:
    """Add the command."""
    summary = "find the rank that makes a PyTorch job hang, from the dumps of its ranks"
    add_command(commands, "autopsy", summary, call_autopsy, _add_autopsy_options, entry=_HELP, description=_ABOUT)


def _add_autopsy_options(parser: Parser) -> None:
    parser.add_argument("dumps", metavar="DUMP", nargs="+", type=Path, help="the dump of a rank, or a folder with the dumps of all ranks")
    parser.add_argument("--ranks", metavar="N", type=positive, help="the number of ranks of the job (default: what the dumps contain)")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write one HTML page")
    add_format(parser, "table", "csv")
    parser.add_argument("--color", default="auto", help="auto, always or never (default: auto)")


def call_autopsy(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the verdict and return its exit code. Raises UsageError."""
    from collbench.plugins.traces.autopsy import autopsy
    from collbench.plugins.traces.autopsy_text import autopsy_lines, write_autopsy
    from collbench.plugins.traces.reading import FOR_AUTOPSY, read_traces
    from collbench.report.screen import PlainScreen, wants_color, width_of
    from collbench.report.writers import Outputs, confirm_written
    from collbench.untrusted import uncollected

    Outputs(html=arguments.html).check()
    painted = wants_color(sys.stdout, arguments.color)
    with uncollected():
        trace = read_traces(arguments.dumps, FOR_AUTOPSY, without_damaged=True)
        verdict = autopsy(trace, arguments.ranks)
    if arguments.html:
        write_autopsy(verdict, trace.form, arguments.html)
        confirm_written((arguments.html,), sys.stderr)
    screen = PlainScreen(sys.stdout, sys.stderr, painted)
    for line in autopsy_lines(verdict, arguments.format, width_of(sys.stdout)):
        screen.data(line)
    return verdict.exit_code
