"""collbench run SUITE: what a suite says, in one launch."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from collbench.cli.options import add_options
from collbench.cli.parser import Parser
from collbench.cli.start import Command, begin, launch_of, together
from collbench.errors import UsageError
from collbench.operations.registry import operations

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.launch.info import LaunchInfo

_ABOUT = """\
A suite is a TOML file that lists sweeps; quick (a minute on a laptop), full (every operation) and gate (the cells that a gate
needs) are built in. What is typed here, or set as a COLLBENCH_* variable, replaces what the suite says, in every sweep of it."""


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    parser: Parser = commands.add_parser("run", help="a suite: many operations, backends and sizes in one launch", description=_ABOUT)
    parser.add_argument("suite", metavar="SUITE", help="quick, full, gate, or a TOML file")
    parser.add_argument("--dry-run", action="store_true", help="print the cells and how long they may take, and start nothing")
    parser.later(partial(add_options, parser, list(operations().values())))
    parser.set_defaults(call=partial(call, parser))
    return {"run": parser}


def call(parser: Parser, arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measures the suite, or with --dry-run says what it would measure. Returns the exit code. Raises CollbenchError."""
    from collbench.cli.request import suite_request

    info = launch_of(arguments, argv)
    try:
        request, whole = suite_request(parser, arguments, argv)
    except UsageError as error:
        if info is None or info.launcher == "local" or arguments.dry_run or arguments.ranks_per_node:
            raise
        return _refuse(info, arguments.timeout, str(error))
    if arguments.dry_run:
        from collbench.cli.dry_run import show

        return show(request, whole, info, os.environ)
    return begin(request, Command(whole, argv), info)


def _refuse(info: LaunchInfo, timeout_s: float, wrong: str) -> int:
    """Ends all ranks with one sentence: others may have read the suite well."""
    from collbench.cli.same_suite import compare

    def work(world: World) -> int:
        compare(world, wrong)
        return 0

    return together(info, timeout_s, work)
