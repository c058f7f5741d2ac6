"""collbench workload: what one step of training exchanges, how long that takes on this network, and what limits it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from collbench.cli.gpus import default_backends, local_ranks, node_ranks
from collbench.cli.parser import Parser
from collbench.cli.start import Command, begin, launch_of
from collbench.cli.workload_options import add_options, trainings_of
from collbench.errors import UsageError

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.launch.info import LaunchInfo
    from collbench.measure.request import Request
    from collbench.measure.session import Listener
    from collbench.measure.tasks.training import Training, WorkloadListener, WorkloadRequest
    from collbench.report.listening import Listening
    from collbench.report.workload_plan import PlannedStep

_SUMMARY = "what a step of training exchanges, how long that takes here, and what limits it"
_DESCRIPTION = (
    f"{_SUMMARY}: data-parallel, pipeline, sharded and other training of a model. The exchanges of a step are measured in their order, "
    "without the computing between them."
)


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    parser: Parser = commands.add_parser("workload", help=_SUMMARY, description=_DESCRIPTION)
    parser.later(partial(add_options, parser))
    parser.set_defaults(call=call, gdr_check=False)
    return {"workload": parser}


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measures in the launch this process belongs to, or starts ranks on this host. Returns the exit code."""
    asked, info = _asked(arguments, argv), launch_of(arguments, argv)
    if arguments.dry_run:
        return 0 if info and info.rank else _show(asked, arguments, info)
    if info is None:
        _planned(asked.trainings, (0,) * len(_hosts(asked.launch, arguments, None)))
    return begin(asked.launch, Command(arguments, argv, _measuring(asked), _listening), info)


def _asked(arguments: argparse.Namespace, argv: Sequence[str]) -> WorkloadRequest:
    """What was typed. Raises UsageError for what cannot be read, and for what the trainings do not know."""
    from collbench.analysis.best import parse_step_time
    from collbench.measure.tasks.training import WorkloadRequest

    if arguments.resume:
        raise UsageError("workload cannot be resumed: one launch measures all of it; start a new run, without --resume")
    trainings = trainings_of(arguments)
    step_time = None if arguments.step_time is None else parse_step_time(arguments.step_time)
    return WorkloadRequest(_request(arguments, argv, trainings[0]), trainings, parts=not arguments.no_parts, step_time_s=step_time)


def _request(arguments: argparse.Namespace, argv: Sequence[str], first: Training) -> Request:
    from collbench.backends.registry import backend_class, habits
    from collbench.backends.slowing import parse_slowing
    from collbench.measure.request import Budget, Request
    from collbench.operations.dtypes import dtype_named
    from collbench.operations.sweep import Sweep

    for name in arguments.backend or ():
        backend_class(name)
    seed, precision = arguments.seed or 0, arguments.precision / 100 if arguments.precision else None
    sweep = Sweep((), None, (dtype_named(first.shape((0,)).dtype),), device=arguments.device, mode="isolated", seed=seed, habits=habits)
    return Request(
        command="workload", sweep=sweep, backends=tuple(dict.fromkeys(arguments.backend or default_backends(os.environ))),
        asked=frozenset(arguments.backend or ()), ranks=arguments.ranks, check=arguments.check, ceiling=arguments.ceiling,
        budget=Budget(arguments.max_time, arguments.steps, arguments.warmup, precision), oversubscription=arguments.oversubscription,
        timeout_s=arguments.timeout, seed=seed, order_seed=arguments.seed, out=arguments.out, allocation=arguments.allocation,
        gpus_per_process=arguments.gpus_per_process, slowed=parse_slowing(arguments.slowed), stop_on_wrong=arguments.stop_on_wrong,
        argv=tuple(argv),
    )  # fmt: skip


def _measuring(asked: WorkloadRequest) -> Callable[[Request, World, Listener | None, Callable[[int], None]], int]:
    """What each rank does."""

    def measure(request: Request, world: World, listener: Listener | None, ended: Callable[[int], None]) -> int:
        from collbench.measure.tasks.training import run_workload

        told = cast("WorkloadListener | None", listener)  # from `_listening`
        return run_workload(replace(asked, launch=request), world, told, ended)

    return measure


def _listening(request: Request, arguments: argparse.Namespace) -> Listening:
    from collbench.report.workload_listening import WorkloadListening

    return WorkloadListening(arguments)


def _hosts(request: Request, arguments: argparse.Namespace, info: LaunchInfo | None) -> tuple[int, ...]:
    """The hosts of the ranks that there would be, which fill one after the other."""
    if info is None:
        processes = local_ranks(request, os.environ)
        per_host = arguments.ranks_per_node or processes
    else:
        each = arguments.ranks_per_node or node_ranks(request, info, os.environ)
        processes, per_host = info.ranks * each, info.local_ranks * each
    return tuple(rank // (per_host * request.gpus_per_process) for rank in range(processes * request.gpus_per_process))


def _show(asked: WorkloadRequest, arguments: argparse.Namespace, info: LaunchInfo | None) -> int:
    """--dry-run: the exchanges of a step, for ranks that fill one host after the other. Returns 0. Raises UsageError."""
    from collbench.report.screen import write_line
    from collbench.report.workload_plan import write_plan

    planned, left_out = _planned(asked.trainings, _hosts(asked.launch, arguments, info))
    for sentence in [] if arguments.quiet else left_out:
        write_line(sys.stderr, sentence)
    write_plan(planned, arguments.format, sys.stdout)
    return 0


def _planned(trainings: Sequence[Training], hosts: tuple[int, ...]) -> tuple[list[PlannedStep], list[str]]:
    """The steps that can be laid out, and why others cannot. Raises UsageError for one that is not optional."""
    from collbench.report.workload_plan import PlannedStep

    planned, left_out = [], []
    for training in trainings:
        try:
            shape = training.shape(hosts)
            planned.append(PlannedStep(training.regime, shape, training.regime.step(shape), training.model))
        except UsageError as error:
            if not training.optional:
                raise
            left_out.append(f"without {training.regime.name}: {error}")
    return planned, left_out
