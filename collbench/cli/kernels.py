"""collbench kernels: what each GPU's memory and the links between GPUs carry, measured by the project's own kernels."""

from __future__ import annotations

import argparse
from typing import Any

_ABOUT = (
    "runs the kernels of cuda_kernels/ on every visible GPU, and between each GPU and the next, checks what they did, "
    "and sets them against what the memory and the links allow"
)


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    parser = commands.add_parser("kernels", help="what the GPUs' memory and the links between them carry, against their floor",
                                 description=_ABOUT)  # fmt: skip
    parser.add_argument("--size", metavar="SIZE", help="bytes of each of three arrays; K = 1024 (default: 512M, or what fits)")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="lines, or one JSON object per line (default: table)")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="(default: auto)")
    parser.set_defaults(call=call)
    return {"kernels": parser}


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measures and prints; 0. Raises UsageError where there is no GPU, RunFailed where a kernel's result is wrong."""
    import os
    import sys

    from collbench.measure.tasks.kernels import measure_kernels
    from collbench.report.kernels import KernelsWriter
    from collbench.report.screen import PlainScreen, wants_color
    from collbench.units import parse_size

    size = None if arguments.size is None else parse_size(arguments.size)
    screen = PlainScreen(sys.stdout, sys.stderr, wants_color(sys.stdout, arguments.color))
    return measure_kernels(os.environ, size, KernelsWriter(arguments.format, screen))
