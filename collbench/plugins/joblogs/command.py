"""`collbench doctor --log`: the option, and the findings of logs beside those of the nodes."""

from __future__ import annotations

import argparse
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.cli.machine import examine_nodes, show_findings
from collbench.cli.parser import Parser

if TYPE_CHECKING:
    from collbench.machine.model import Machine
    from collbench.machine.readers.nccl_log import NcclLog

_LOG = (
    "logs of NCCL or RCCL (NCCL_DEBUG=INFO), plain or compressed: a summary and findings; "
    "without a launcher and --from, a log that other hosts wrote is examined "
    "alone, without this machine"
)


def add_option(parser: Parser) -> None:
    """Add --log to `doctor`."""
    parser.add_argument("--log", nargs="+", type=Path, default=[], metavar="FILE", help=_LOG)


def explain_logs(arguments: argparse.Namespace) -> int | None:
    """Print the findings of the logs and nodes at rank 0; return the exit code. None without --log. Raises CollbenchError."""
    if not arguments.log:
        return None
    import socket

    from collbench.machine.readers.nccl_log import read_file
    from collbench.measuring.probing import launched
    from collbench.plugins.joblogs.findings import examined

    @cache
    def logs() -> list[NcclLog]:
        return [read_file(file) for file in arguments.log]

    def show(machines: list[Machine], here: bool) -> int:
        return show_findings(machines, examined(logs(), machines), arguments, here)

    if not arguments.sources and not launched(os.environ):
        this_host = socket.gethostname().partition(".")[0].lower()
        # of a log that other hosts wrote, this host's NICs would be mistaken for those of the job
        if not any(host.partition(".")[0].lower() == this_host for log in logs() for host in log.hosts):
            return show([], False)
    return examine_nodes(arguments, show)
