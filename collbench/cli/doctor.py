"""collbench doctor: what is wrong with this node, or with every node of the launch, before anything is measured."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli.options import DEFAULT_TIMEOUT_S
from collbench.cli.parser import amount

if TYPE_CHECKING:
    from collbench.topology.model import Machine

_ABOUT = "what is wrong with this node, or under srun or mpirun with every node, worst first, with evidence and remedy; exit 1 if severe"


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    parser = commands.add_parser("doctor", help="what is wrong with the nodes, worst first; exit 1 if severe", description=_ABOUT)
    parser.add_argument(
        "--from", dest="sources", nargs="+", type=Path, metavar="PATH", help="read these instead, as `collbench probe` does"
    )
    parser.add_argument("--log", nargs="+", type=Path, default=[], metavar="FILE", help="logs of NCCL or RCCL (NCCL_DEBUG=INFO)")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="text, or one JSON object (default: table)")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="(default: auto)")
    parser.add_argument("--timeout", metavar="SECONDS", type=amount, default=DEFAULT_TIMEOUT_S,
                        help=f"deadline of every wait for other nodes (default: {DEFAULT_TIMEOUT_S:g})")  # fmt: skip
    parser.set_defaults(call=call)
    return {"doctor": parser}


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Probes or reads, prints the findings at rank 0, and returns the exit code. Raises CollbenchError."""
    import os

    if arguments.sources:
        from collbench.topology.sources import read_paths

        return _tell(read_paths(arguments.sources), arguments)
    from collbench.runner.probing import together

    return together(os.environ, arguments.timeout, lambda machines: _tell(machines, arguments))


def _tell(machines: list[Machine], arguments: argparse.Namespace) -> int:
    """Examines the machines and the logs, and prints."""
    import sys

    from collbench.doctor.examine import examine
    from collbench.evidence.nccl_log import read_file
    from collbench.report.doctor import tell_findings

    logs = [read_file(file) for file in arguments.log]
    return tell_findings(examine(machines, logs), machines, logs, arguments.format, sys.stdout, color=arguments.color)
