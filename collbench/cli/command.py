"""The specification of a command that measures: its parser, help, request, dry run and start follow from it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from collbench.cli.help import HelpEntry
from collbench.cli.options import Layout, MeasuringOptions, Option, add_options
from collbench.cli.other_tools import add_other_options
from collbench.cli.parser import Parser, add_command
from collbench.cli.request import placement_of
from collbench.launch.detect import LocalRequest, detect
from collbench.measuring.request import Placement, TaskRequest
from collbench.operations.operation import Operation
from collbench.plugin import loaded

if TYPE_CHECKING:
    from collbench.launch.info import LaunchInfo
    from collbench.report.dry_run import PlannedWork


class CommandSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A command that measures. The kind of its records is in `Plugin.records` and `Plugin.kinds`.

    name, summary, about   as the pages of help have them
    options     the class of its options: an option is a field
    layout      its options by the title of their group, or a function that returns them
    operations  those that select its options; empty: it has all options of the layout
    request     (options, argv, launch of this process) -> its request, complete. Raises UsageError
    plan        (request, placement) -> what --dry-run prints. Raises UsageError if a run would, before ranks start. None: its cases
    task        "module:object" that makes the Task of the request; by default it measures cases
    progress    "module:class" of its listener at rank 0, a ProgressPrinter; "": that of rows of cases
    help        its entry in the pages of help
    run         what the command does with its options and argv, instead of `measure`
    other_tools  whether it has the options of nccl-tests and IMB, too
    """

    name: str
    summary: str
    about: str
    layout: Layout | Callable[[], Layout]
    request: Callable[[Any, Sequence[str], LaunchInfo | None], TaskRequest]
    plan: Callable[[Any, Placement], PlannedWork] | None = None
    options: type[MeasuringOptions] = MeasuringOptions
    operations: Sequence[Operation] = ()
    task: str = "collbench.measuring.tasks.cases:task_of"
    progress: str = ""
    help: HelpEntry | None = None
    run: Callable[[CommandSpec, Any, Sequence[str]], int] | None = None
    other_tools: bool = False

    @property
    def declared(self) -> dict[str, Option]:
        """Return its options by name."""
        layout = self.layout() if callable(self.layout) else self.layout
        return {option.name: option for options in layout.values() for option in options}

    def add_to(self, commands: Any) -> Parser:
        """Add the command to the parser of all commands, and return its own."""
        return add_command(commands, self.name, self.summary, self._call, self._fill, entry=self.help, description=self.about)

    def _fill(self, parser: Parser) -> None:
        add_options(parser, self.layout() if callable(self.layout) else self.layout, self.operations)
        if self.other_tools:
            add_other_options(parser)

    def _call(self, arguments: argparse.Namespace, argv: Sequence[str]) -> int:
        run = self.run or measure
        return run(self, self.options.of(arguments), argv)


def launch_of(ranks: int | None, argv: Sequence[str]) -> LaunchInfo | None:
    """Return the launch this process belongs to, or None: no launcher started it. Raises UsageError if that is unclear.

    ranks: the value of --ranks
    """
    return detect(os.environ, LocalRequest(ranks, ("collbench", *argv)))


def measure(spec: CommandSpec, options: MeasuringOptions, argv: Sequence[str]) -> int:
    """Measure in the launch of this process, or start ranks on this host; or print the plan. Return the exit code."""
    info = launch_of(options.ranks, argv)
    return measure_request(spec, spec.request(options, argv, info), options, argv, info)


def measure_request(
    spec: CommandSpec, request: TaskRequest, options: MeasuringOptions, argv: Sequence[str], info: LaunchInfo | None
) -> int:
    """Do what the command does, given its request."""
    if options.shows_plan:
        return show_plan(spec, request, options, info)
    from collbench.cli.start import LaunchStart, begin

    if info is None:
        request.check(placement_of(request.launch, None, os.environ))
    return begin(LaunchStart(request, options, argv, spec.task, spec.progress), info)


def show_plan(spec: CommandSpec, request: TaskRequest, options: MeasuringOptions, info: LaunchInfo | None) -> int:
    """Print what would be measured, at rank 0 of a launch. Return 0."""
    if info is None or info.rank == 0:
        plan = spec.plan or loaded("collbench.cli.early:plan_cases")
        planned = plan(request, placement_of(request.launch, info, os.environ))
        planned.write(options.format, sys.stdout, None if options.quiet else sys.stderr)
    return 0
