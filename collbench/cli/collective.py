"""collbench allreduce, broadcast, p2p …: one command per operation, found through the registry."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any

from collbench.cli import gdr_check
from collbench.cli.gpus import default_backends
from collbench.cli.options import add_options, make_request
from collbench.cli.parser import Parser
from collbench.cli.start import Command, begin, launch_of
from collbench.errors import UsageError
from collbench.operations.registry import broken
from collbench.operations.registry import commands as operation_commands

_P2P = "latency, one-way and two-way bandwidth between pairs of ranks"


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds one command per operation (some share one, such as the point-to-point ones `p2p`)."""
    added: dict[str, argparse.ArgumentParser] = {}
    for name, operations in sorted(operation_commands().items()):
        summary = _P2P if name == "p2p" else "; ".join(operation.summary for operation in operations)
        parser: Parser = commands.add_parser(name, help=summary, description=summary)
        parser.later(partial(add_options, parser, operations))
        parser.set_defaults(call=call)
        added[name] = parser
    for name, wrong in broken().items():
        stand_in: Parser = commands.add_parser(name, help=f"n/a: {wrong}".replace("%", "%%"))
        stand_in.later(partial(_refuse, wrong))
        added[name] = stand_in
    return added


def _refuse(wrong: UsageError) -> None:
    """Says what is wrong with the plug-in that the command would have come from, whatever its options were to be."""
    raise wrong


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measures in the launch this process belongs to, or starts ranks on this host. Returns the exit code."""
    from collbench.backends.registry import backend_class

    for name in arguments.backend or ():
        backend_class(name)
    if arguments.gdr_check:
        arguments.launches = gdr_check.pairs(arguments.launches, os.environ)
    backends = tuple(dict.fromkeys(arguments.backend or default_backends(os.environ)))
    request = make_request(arguments, operation_commands()[arguments.command], backends, argv)
    return begin(request, Command(arguments, argv), launch_of(arguments, argv))
