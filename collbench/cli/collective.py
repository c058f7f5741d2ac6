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
from collbench.operations.registry import commands as operation_commands


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds one command per operation (the point-to-point ones share `p2p`)."""
    added: dict[str, argparse.ArgumentParser] = {}
    for name, operations in sorted(operation_commands().items()):
        summary = operations[0].summary if len(operations) == 1 else "latency, one-way and two-way bandwidth between pairs of ranks"
        parser: Parser = commands.add_parser(name, help=summary, description=summary)
        parser.later(partial(add_options, parser, operations))
        parser.set_defaults(call=call)
        added[name] = parser
    return added


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
