"""`collbench probe --measure`: the options, and the measurement of the channels of this node or of the nodes of a launch."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli.options import Option
from collbench.cli.parser import Parser, duration, words
from collbench.errors import UsageError

if TYPE_CHECKING:
    from collbench.plugins.channels.records import Channel

_MEASURE = (
    "measure the channels of this node, or of every node of the launch and between them: memory, GPUs, NICs, TCP; each against what it "
    "could carry"
)
_SCRATCH = "with --measure: read the disk under this folder, from a file that collbench writes there and removes"
_SCRATCH_SIZE = "largest size of that file (default: 1G); it takes at most a tenth of the free space"
_SCRATCH_BYTES = 2**30


def tools_option(which: str) -> Option:
    """Return the option for external tools; `which` describes their use."""
    return Option("--tools", f"external tools (iperf3, fi_pingpong, ucx_perftest, ib_write_bw) {which} (default: none)", "NAME", words)


def scratch_size(text: str) -> int:
    """Return the size in bytes. Raises argparse.ArgumentTypeError below 16 MiB."""
    from collbench.units import parse_size

    try:
        size = parse_size(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if size < 16 * 2**20:
        raise argparse.ArgumentTypeError(f"{text!r} is below 16M, the smallest file to measure")
    return size


def add_options(parser: Parser, what: Any) -> None:
    """Add the options to `probe`: --measure to the group `what`, of which one option is possible."""
    what.add_argument("--measure", action="store_true", help=_MEASURE)
    tools_option("that --measure runs from host to host, as rows of their own; it always runs ib_write_bw").add_to(parser)
    parser.add_argument("--max-time", metavar="SECONDS", type=duration, default=1.0, help="per channel of --measure (default: 1)")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help=_SCRATCH)
    parser.add_argument("--scratch-size", type=scratch_size, metavar="SIZE", help=_SCRATCH_SIZE)


def probe(arguments: argparse.Namespace) -> int | None:
    """Measure the channels and print them, with --measure. Return the exit code; None without the option."""
    if not arguments.measure:
        for option in ("tools", "scratch", "scratch_size"):
            if getattr(arguments, option):
                name = f"--{option.replace('_', '-')}"
                raise UsageError(f"{name} is for --measure: add it, or leave out {name}")
        return None
    from collbench.plugins.channels.storage import Scratch
    from collbench.plugins.channels.task import measure_channels
    from collbench.plugins.channels.wire_tools import requested_tools

    seconds = arguments.max_time
    if arguments.format == "matrix" or getattr(arguments, "svg", None) or arguments.html:
        raise UsageError("--measure prints a table or JSON: leave out --format matrix, --svg and --html")
    if 2 * seconds > arguments.timeout:
        raise UsageError(
            f"--max-time {seconds:g} leaves no room below --timeout {arguments.timeout:g}: give twice as much time to --timeout"
        )

    def show(channels: Sequence[Channel]) -> None:
        from collbench.plugins.channels.records import channels_text

        channels_text(channels, arguments.format, sys.stdout, arguments.color)

    if arguments.scratch_size and not arguments.scratch:
        raise UsageError("--scratch-size is for --scratch: add the folder, or leave out --scratch-size")
    scratch = Scratch(arguments.scratch, arguments.scratch_size or _SCRATCH_BYTES) if arguments.scratch else None
    return measure_channels(os.environ, arguments.timeout, seconds, show, requested_tools(arguments.tools), scratch=scratch)
