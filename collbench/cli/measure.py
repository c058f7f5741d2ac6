"""The measuring commands of the core: one per operation, and run."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from collbench.cli import launches
from collbench.cli.options import COLLECTIVE, Option, add_options, some
from collbench.cli.other_tools import add_other_options, check_least_processes
from collbench.cli.parser import Parser, add_command
from collbench.cli.request import (
    collective_request,
    local_ranks,
)
from collbench.cli.start import Command, begin, launch_of, together
from collbench.errors import UsageError
from collbench.operations.registry import broken, operations
from collbench.operations.registry import commands as operation_commands

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.launch.info import LaunchInfo
    from collbench.measuring.request import Request
    from collbench.operations.operation import Operation


# collbench allreduce, broadcast, p2p …: one command per operation, found through the registry.

_SUMMARIES = {
    "p2p": "latency, one-way and two-way bandwidth between pairs of ranks",
    "multipair": "bandwidth and message rate of several pairs at once (osu_mbw_mr, IMB Uniband and Biband)",
    "init": "time to make, split and form again communicators and process groups",
}


def add_collective(commands: Any) -> None:
    """Add one command per operation (some share one, such as the point-to-point ones `p2p`)."""
    for name, found in sorted(operation_commands().items()):
        summary = _SUMMARIES.get(name) or "; ".join(operation.summary for operation in found)
        add_command(commands, name, summary, call_collective, partial(_add_collective_options, found), description=summary)
    for name, wrong in broken().items():
        add_command(commands, name, f"n/a: {wrong}".replace("%", "%%"), None, partial(_refuse, wrong))


def _add_collective_options(found: list[Operation], parser: Parser) -> None:
    only = Option("--only", "measure only this one (default: all of them)", choices=tuple(map(_short_name, found)))
    add_options(parser, {"": [*([only] if len(found) > 1 else []), *some("full dry_run")], **COLLECTIVE}, found)
    add_other_options(parser)


def _short_name(operation: Operation) -> str:
    """Return the name of one of several operations of a command: "latency" for p2p_latency."""
    return operation.name.removeprefix(f"{operation.command}_")


def _refuse(wrong: UsageError, parser: Parser) -> None:
    """Report an error in the plug-in that defines the command, for any options."""
    raise wrong


def call_collective(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure in the launch of this process, or start ranks on this host. Return the exit code."""
    if arguments.gdr_check:
        arguments.launches = launches.pairs(arguments.launches, os.environ)
    only = getattr(arguments, "only", None)
    measured = [each for each in operation_commands()[arguments.command] if only in (None, _short_name(each))]
    request, info = collective_request(arguments, measured, argv), launch_of(arguments, argv)
    least = getattr(arguments, "npmin", None)
    if least is not None:
        check_least_processes(least, info.ranks if info else local_ranks(request, os.environ))
    return _begin_or_show(request, arguments, argv, info)


def _begin_or_show(request: Request, arguments: argparse.Namespace, argv: list[str], info: LaunchInfo | None) -> int:
    if arguments.dry_run:
        from collbench.cli.dry_run import show

        return show(request, arguments, info, os.environ)
    return begin(request, Command(arguments, argv), info)


# collbench run SUITE: the sweeps of a suite, in one launch.

_RUN_ABOUT = """\
A suite is a TOML file that lists sweeps. quick (a minute on a laptop), full (every operation) and gate (the cases that a gate
needs) are built in. An option that is set here, or by a COLLBENCH_* variable, replaces that of the suite, in each of its sweeps."""


def add_run(commands: Any) -> None:
    """Add the command."""
    summary = "measure a suite: many operations, backends and sizes"
    parser = add_command(commands, "run", summary, None, _add_run_options, description=_RUN_ABOUT)
    parser.set_defaults(call=partial(call_run, parser))


def _add_run_options(parser: Parser) -> None:
    parser.add_argument("suite", metavar="SUITE", help="quick, full, gate, or a TOML file")
    add_options(parser, {"": some("dry_run"), **COLLECTIVE}, list(operations().values()))
    add_other_options(parser)


def call_run(parser: Parser, arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure the suite, or with --dry-run print what it would measure. Returns the exit code. Raises CollbenchError."""
    from collbench.cli.suite import suite_request

    info = launch_of(arguments, argv)
    try:
        request, whole = suite_request(parser, arguments, argv)
    except UsageError as error:
        if info is None or info.launcher == "local" or arguments.dry_run or arguments.ranks_per_node:
            raise
        return _refuse_run(info, arguments.timeout, str(error))
    return _begin_or_show(request, whole, argv, info)


def _refuse_run(info: LaunchInfo, timeout_s: float, wrong: str) -> int:
    """End all ranks with one message: other ranks may have read the suite without error."""
    from collbench.cli.start import compare

    def work(world: World) -> int:
        compare(world, wrong)
        return 0

    return together(info, timeout_s, work)
