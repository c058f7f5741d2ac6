"""The measuring commands of the core: one per operation, and run. `check` has a module of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from collbench.cli.command import CommandSpec, launch_of, measure_request
from collbench.cli.options import COLLECTIVE, Layout, OperationOptions, some
from collbench.cli.parser import Parser, add_command
from collbench.cli.request import collective_request, short_name
from collbench.cli.start import compare, together
from collbench.errors import UsageError
from collbench.operations.operation import Operation
from collbench.operations.registry import broken, operations
from collbench.operations.registry import commands as operation_commands

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.launch.info import LaunchInfo
    from collbench.measuring.request import TaskRequest


# collbench allreduce, broadcast, p2p …: one command per operation, found through the registry.

_SUMMARIES = {
    "p2p": "latency, one-way and two-way bandwidth between pairs of ranks",
    "multipair": "bandwidth and message rate of several pairs at once (osu_mbw_mr, IMB Uniband and Biband)",
    "init": "time to make, split and form again communicators and process groups",
}


def add_collective(commands: Any) -> None:
    """Add one command per operation (some share one, such as the point-to-point ones `p2p`)."""
    for name in sorted(operation_commands()):
        add_operation(commands, name)
    for name, wrong in broken().items():
        add_command(commands, name, f"n/a: {wrong}".replace("%", "%%"), None, partial(_refuse, wrong))


def add_operation(commands: Any, name: str) -> None:
    """Add the command of an operation, or of those that share it."""
    measured = operation_commands()[name]
    summary = _SUMMARIES.get(name) or "; ".join(operation.summary for operation in measured)
    CommandSpec(
        name=name, summary=summary, about=summary, options=OperationOptions, layout=partial(_layout, measured), operations=measured,
        other_tools=True, request=collective_request,
    ).add_to(commands)  # fmt: skip


def _layout(measured: Sequence[Operation]) -> Layout:
    names = "full dry_run" if len(measured) == 1 else "only full dry_run"
    return {"": some(names, OperationOptions, only={"choices": tuple(map(short_name, measured))}), **COLLECTIVE}


def _refuse(wrong: UsageError, parser: Parser) -> None:
    """Report an error in the plug-in that defines the command, for any options."""
    raise wrong


# collbench run SUITE: the sweeps of a suite, in one launch.

_RUN_ABOUT = """\
A suite is a TOML file that lists sweeps. quick (a minute on a laptop), full (every operation) and gate (the cases that a gate
needs) are built in. An option that is set here, or by a COLLBENCH_* variable, replaces that of the suite, in each of its sweeps."""


def add_run(commands: Any) -> None:
    """Add the command."""

    def request(options: OperationOptions, argv: Sequence[str], info: LaunchInfo | None) -> TaskRequest:
        from collbench.cli.suite import suite_request

        return suite_request(parser, options, argv, info)

    parser = CommandSpec(
        name="run", summary="measure a suite: many operations, backends and sizes", about=_RUN_ABOUT, options=OperationOptions,
        layout={"": some("suite dry_run", OperationOptions), **COLLECTIVE}, operations=list(operations().values()), other_tools=True,
        request=request, run=_measure_suite,
    ).add_to(commands)  # fmt: skip


def _measure_suite(spec: CommandSpec, options: OperationOptions, argv: Sequence[str]) -> int:
    """Measure the suite, or print what it would measure. Ranks may have read different suites: an error in one ends all of them."""
    info = launch_of(options.ranks, argv)
    try:
        request = spec.request(options, argv, info)
    except UsageError as error:
        if info is None or info.launcher == "local" or options.dry_run or options.ranks_per_node:
            raise
        return together(info, options.timeout, partial(_refuse_suite, str(error)))
    return measure_request(spec, request, options, argv, info)


def _refuse_suite(wrong: str, world: World) -> int:
    """End all ranks with one message: other ranks may have read the suite without error."""
    compare(world, wrong)
    return 0
