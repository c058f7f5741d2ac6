"""`collbench kernels`: the rates of each GPU's memory and of the links between GPUs, measured with collbench's own kernels."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from collbench.cli.help import HelpEntry
from collbench.cli.options import add_some
from collbench.cli.parser import Parser, add_command, add_format
from collbench.units import parse_size

_KERNELS_ABOUT = (
    "Run the kernels of cuda_kernels/ on every visible GPU and between each GPU and the next, verify their results, and compare their "
    "rates with the limits of memory and links."
)

_HELP = HelpEntry(
    follows="probe",
    examples=(
        ("kernels", "every GPU of this host"),
        ("kernels --size 1G", "arrays of 1 GiB"),
        ("kernels --format jsonl", "one JSON object per line"),
    ),
)


def add_kernels(commands: Any) -> None:
    """Add the command."""
    summary = "bandwidth and latency of GPU memory and of the links between GPUs"
    add_command(commands, "kernels", summary, call_kernels, _add_kernels_options, entry=_HELP, description=_KERNELS_ABOUT)


def _add_kernels_options(parser: Parser) -> None:
    parser.add_argument("--size", metavar="SIZE", help="bytes of each of three arrays; K = 1024 (default: 512M, or as much as fits)")
    add_format(parser, "table")
    add_some(parser, "color")


def call_kernels(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure and print; return 0. Raises UsageError without a GPU, RunFailed if a kernel's result is wrong."""
    from collbench.plugins.channels.kernels import KernelsWriter, measure_kernels
    from collbench.report.screen import PlainScreen, wants_color, width_of

    size = None if arguments.size is None else parse_size(arguments.size)
    screen = PlainScreen(sys.stdout, sys.stderr, wants_color(sys.stdout, arguments.color))
    return measure_kernels(os.environ, size, KernelsWriter(arguments.format, screen, width_of(sys.stdout)))
