"""collbench probe: what this node is, or every node of the launch, or a machine that somebody sent files of."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli.options import add_color_and_timeout
from collbench.cli.pair_options import add_tools, tools_asked
from collbench.cli.parser import amount
from collbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collbench.machine.model import Machine
    from collbench.results.steps import Channel

_ABOUT = "what this node is: GPUs, their links, the PCIe tree, NICs, GPUDirect RDMA; under srun or mpirun every node, and how they differ"
_FROM = (
    "read these instead and merge what belongs to one host: NCCL topology XML, hwloc XML, the text of `nvidia-smi topo -m`, "
    "`nvidia-smi nvlink -s`, `rocm-smi --showtopo`, `amd-smi topology`, `lspci -vvv`, `lspci -vvv | grep ACSCtl`, `ibstat`, `ibv_devinfo`, "
    "`ibportstate` or `iblinkinfo`, what `probe --format json` printed, a folder of such "
    "files, a folder with sys and proc, a tarball of one"
)

_MEASURE = (
    "measure the channels of this node, or of every node of the launch and between them: memory, GPUs, NICs, TCP; each against what it "
    "could carry"
)


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    parser = commands.add_parser("probe", help="what this node is, or every node of the launch, and how they differ", description=_ABOUT)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--from", dest="sources", nargs="+", type=Path, metavar="PATH", help=_FROM)
    what.add_argument(
        "--gather", type=Path, metavar="FILE", help="write what is read of this node (of rank 0's) into a tarball, names masked"
    )
    what.add_argument("--measure", action="store_true", help=_MEASURE)
    add_tools(parser, "that --measure runs from host to host, as rows beside ours; ib_write_bw it runs unasked")
    parser.add_argument("--max-time", metavar="SECONDS", type=amount, default=1.0, help="per channel of --measure (default: 1)")
    parser.add_argument("--format", choices=("table", "matrix", "json"), default="table", help="tree, distances, JSON (default: table)")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the node there, too; of nodes that differ one file each")
    add_color_and_timeout(parser)
    parser.set_defaults(call=call)
    return {"probe": parser}


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Probes or reads, prints at rank 0, and returns the exit code. Raises CollbenchError."""
    import os

    from collbench.measure.probing import at_rank_0, together

    if arguments.measure:
        return _measure(arguments)
    if arguments.tools:
        raise UsageError("--tools is for --measure: add it, or leave out --tools")
    if arguments.gather or arguments.sources:
        return at_rank_0(os.environ, arguments.timeout, lambda: _alone(arguments))
    return together(os.environ, arguments.timeout, lambda machines: _tell(machines, arguments))


def _measure(arguments: argparse.Namespace) -> int:
    """Measures the channels."""
    import os
    import sys

    from collbench.measure.tasks.channels import measure_channels

    seconds = arguments.max_time
    if arguments.format == "matrix" or arguments.svg:
        raise UsageError("--measure prints a table or JSON: leave out --format matrix and --svg")
    if 2 * seconds > arguments.timeout:
        raise UsageError(
            f"--max-time {seconds:g} leaves no room below --timeout {arguments.timeout:g}: give twice as much time to --timeout"
        )

    def tell(channels: Sequence[Channel]) -> None:
        from collbench.report.channels import channels_text

        channels_text(channels, arguments.format, sys.stdout, arguments.color)

    return measure_channels(os.environ, arguments.timeout, seconds, tell, tools_asked(arguments))


def _alone(arguments: argparse.Namespace) -> int:
    """What concerns files, and no other node."""
    if arguments.gather:
        from collbench.machine.gather import gather

        return gather(arguments.gather)
    from collbench.launch.supervise import say
    from collbench.machine.sources import read_paths

    return _tell(read_paths(arguments.sources, say), arguments)


def _tell(machines: list[Machine], arguments: argparse.Namespace) -> int:
    """Prints the machines and draws them where that is asked for."""
    import sys

    from collbench.machine.cluster import differences
    from collbench.report.probe import probe_text

    probe_text(machines, differences(machines), arguments.format, sys.stdout, arguments.color)
    if arguments.svg:
        from collbench.report.probe_files import write_pictures

        for file in write_pictures(machines, arguments.svg):
            print(f"drawn: {file}", file=sys.stderr)
    return 0
