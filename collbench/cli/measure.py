"""The measuring commands: one per operation, kernels, pairs, run and workload."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from collbench.cli import launches
from collbench.cli.options import (
    add_backend,
    add_check,
    add_messages,
    add_options,
    add_plan,
    add_samples,
    add_slowed,
    add_stop_on_wrong,
    add_tools,
    add_where,
    add_workload_options,
    default_backends,
    local_ranks,
    make_request,
    node_ranks,
    pairs_request,
    requested_tools,
    trainings_of,
)
from collbench.cli.parser import Parser, add_format, duration, natural, positive, streams
from collbench.cli.start import Command, begin, launch_of, together
from collbench.errors import UsageError
from collbench.operations.registry import broken, operations
from collbench.operations.registry import commands as operation_commands

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.launch.info import LaunchInfo
    from collbench.measure.request import Request
    from collbench.measure.tasks.places import PairsRequest
    from collbench.measure.tasks.step import Training
    from collbench.measure.tasks.training import WorkloadRequest
    from collbench.operations.operation import Operation
    from collbench.report.progress import ProgressPrinter
    from collbench.report.training import PlannedStep


# collbench allreduce, broadcast, p2p …: one command per operation, found through the registry.

_P2P = "latency, one-way and two-way bandwidth between pairs of ranks"


def add_collective(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Add one command per operation (some share one, such as the point-to-point ones `p2p`); return their parsers."""
    added: dict[str, argparse.ArgumentParser] = {}
    for name, found in sorted(operation_commands().items()):
        summary = _P2P if name == "p2p" else "; ".join(operation.summary for operation in found)
        parser: Parser = commands.add_parser(name, help=summary, description=summary)
        parser.later(partial(_add_collective_options, parser, found))
        parser.set_defaults(call=call_collective)
        added[name] = parser
    for name, wrong in broken().items():
        stand_in: Parser = commands.add_parser(name, help=f"n/a: {wrong}".replace("%", "%%"))
        stand_in.later(partial(_refuse, wrong))
        added[name] = stand_in
    return added


def _add_collective_options(parser: Parser, found: list[Operation]) -> None:
    if len(found) > 1:
        names = [_short_name(operation) for operation in found]
        parser.add_argument("--only", choices=names, help="measure only this one (default: all of them)")
    add_plan(parser)
    add_options(parser, found)


def _short_name(operation: Operation) -> str:
    """Return the name of one of several operations of a command: "latency" for p2p_latency."""
    return operation.name.removeprefix(f"{operation.command}_")


def _refuse(wrong: UsageError) -> None:
    """Report an error in the plug-in that defines the command, for any options."""
    raise wrong


def call_collective(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure in the launch of this process, or start ranks on this host. Return the exit code."""
    from collbench.backends.registry import backend_class

    for name in arguments.backend or ():
        backend_class(name)
    if arguments.gdr_check:
        arguments.launches = launches.pairs(arguments.launches, os.environ)
    backends = tuple(dict.fromkeys(arguments.backend or default_backends(os.environ)))
    only = getattr(arguments, "only", None)
    operations = [each for each in operation_commands()[arguments.command] if only in (None, _short_name(each))]
    request = make_request(arguments, operations, backends, argv)
    info = launch_of(arguments, argv)
    if arguments.dry_run:
        from collbench.cli.dry_run import show

        return show(request, arguments, info, os.environ)
    return begin(request, Command(arguments, argv), info)


# collbench kernels: the rates of each GPU's memory and of the links between GPUs, measured with collbench's own kernels.

_ABOUT = (
    "Run the kernels of cuda_kernels/ on every visible GPU and between each GPU and the next, verify their results, and compare their "
    "rates with the limits of memory and links."
)


def add_kernels(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Add the command; return its parser by name."""
    parser = commands.add_parser("kernels", help="bandwidth and latency of GPU memory and of the links between GPUs",
                                 description=_ABOUT)  # fmt: skip
    parser.add_argument("--size", metavar="SIZE", help="bytes of each of three arrays; K = 1024 (default: 512M, or as much as fits)")
    add_format(parser, "table")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="colored output (default: auto)")
    parser.set_defaults(call=call_kernels)
    return {"kernels": parser}


def call_kernels(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure and print; return 0. Raises UsageError without a GPU, RunFailed if a kernel's result is wrong."""
    import os
    import sys

    from collbench.measure.tasks.kernels import measure_kernels
    from collbench.report.channels import KernelsWriter
    from collbench.report.screen import PlainScreen, wants_color, width_of
    from collbench.units import parse_size

    size = None if arguments.size is None else parse_size(arguments.size)
    screen = PlainScreen(sys.stdout, sys.stderr, wants_color(sys.stdout, arguments.color))
    return measure_kernels(os.environ, size, KernelsWriter(arguments.format, screen, width_of(sys.stdout)))


# collbench pairs: latency and bandwidth between all pairs of ranks or nodes, and the slow ones.

_BUDGET_S = 600.0
_PAIRS_SUMMARY = "latency and bandwidth between all pairs of ranks or nodes, and which of them are slow"
_PAIRS_DESCRIPTION = (
    f"{_PAIRS_SUMMARY}. All pairs of a round are measured at the same time, each rank with one partner. Suspects are measured again "
    "next to control pairs before a node or pair is reported. Exit code 1: a node or pair is slow; 3: inconclusive."
)


def add_pairs(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Add the command; return its parser by name."""
    parser: Parser = commands.add_parser("pairs", help=_PAIRS_SUMMARY, description=_PAIRS_DESCRIPTION)
    parser.later(partial(_add_options, parser))
    parser.set_defaults(call=call_pairs, gdr_check=False)
    return {"pairs": parser}


def _add_options(parser: Parser) -> None:
    _add_what(parser.add_argument_group("what to measure"))
    _add_how(parser.add_argument_group("how to measure"))
    add_where(parser.add_argument_group("launch and output"), "pairs")


def _add_what(group: argparse._ArgumentGroup) -> None:
    add_messages(group, "what to pair")
    group.add_argument("--one-to-all", metavar="RANK", type=natural, nargs="?", const=0,
                       help="only the pairs of this rank, or of its node, one at a time (RANK: 0)")  # fmt: skip
    group.add_argument("--sample", metavar="N", type=positive,
                       help="number of partners of each rank or node; for an odd number some have one more (default: all)")  # fmt: skip
    add_backend(group)
    add_tools(group, "that run between the same pairs as well, as separate rows")
    group.add_argument("--streams", metavar="K", type=streams, help="socket: TCP connections per pair of ranks (default: 1)")


def _add_how(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--concurrent", metavar="K", type=positive, help="most pairs at the same time (default: all of a round)")
    add_samples(group)
    group.add_argument("--budget", metavar="SECONDS", type=duration, default=_BUDGET_S,
                       help="time limit of the whole matrix: if not all pairs fit, measure a sample in which each rank or node has "
                            f"at least one partner (default: {_BUDGET_S:g}: all pairs of 400 nodes)")  # fmt: skip
    add_check(group)
    add_stop_on_wrong(group)
    group.add_argument("--seed", metavar="N", type=natural, help="seed of the inputs and of the order of rounds (default: 0, random order)")
    add_slowed(group)


def call_pairs(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure in the launch of this process, or start ranks on this host. Return the exit code."""
    pairs = _pairs_request(arguments, argv)

    def measure(request: Request, world: World, listener: Any, ended: Callable[[int], None]) -> int:
        from collbench.measure.tasks.rounds import run_pairs

        return run_pairs(replace(pairs, launch=request), world, listener, ended)

    def printer(request: Request, arguments: argparse.Namespace) -> ProgressPrinter:
        from collbench.report.progress import PairsProgressPrinter

        return PairsProgressPrinter(arguments)

    return begin(pairs.launch, Command(arguments, argv, measure, printer), launch_of(arguments, argv))


def _pairs_request(arguments: argparse.Namespace, argv: list[str]) -> PairsRequest:
    """Return the request. Raises UsageError for invalid options, and for those that pairs does not support."""
    from collbench.measure.tasks.places import PairsRequest
    from collbench.units import parse_size

    if arguments.resume:
        raise UsageError("pairs runs cannot be resumed, because all rounds are compared: start a new run, without --resume")
    return PairsRequest(
        pairs_request(arguments, argv), arguments.by, parse_size(arguments.size), parse_size(arguments.latency_size), arguments.concurrent,
        arguments.one_to_all, arguments.sample, arguments.budget, requested_tools(arguments),
    )  # fmt: skip


# collbench run SUITE: the sweeps of a suite, in one launch.

_RUN_ABOUT = """\
A suite is a TOML file that lists sweeps. quick (a minute on a laptop), full (every operation) and gate (the cases that a gate
needs) are built in. An option that is set here, or by a COLLBENCH_* variable, replaces that of the suite, in each of its sweeps."""


def add_run(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Add the command; return its parser by name."""
    parser: Parser = commands.add_parser(
        "run", help="measure a suite: many operations, backends and sizes in one launch", description=_RUN_ABOUT
    )
    parser.add_argument("suite", metavar="SUITE", help="quick, full, gate, or a TOML file")
    parser.add_argument("--dry-run", action="store_true", help="print the cases and the estimated time, and exit")
    parser.later(partial(add_options, parser, list(operations().values())))
    parser.set_defaults(call=partial(call_run, parser))
    return {"run": parser}


def call_run(parser: Parser, arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure the suite, or with --dry-run print what it would measure. Returns the exit code. Raises CollbenchError."""
    from collbench.cli.request import suite_request

    info = launch_of(arguments, argv)
    try:
        request, whole = suite_request(parser, arguments, argv)
    except UsageError as error:
        if info is None or info.launcher == "local" or arguments.dry_run or arguments.ranks_per_node:
            raise
        return _refuse_run(info, arguments.timeout, str(error))
    if arguments.dry_run:
        from collbench.cli.dry_run import show

        return show(request, whole, info, os.environ)
    return begin(request, Command(whole, argv), info)


def _refuse_run(info: LaunchInfo, timeout_s: float, wrong: str) -> int:
    """End all ranks with one message: other ranks may have read the suite without error."""
    from collbench.cli.start import compare

    def work(world: World) -> int:
        compare(world, wrong)
        return 0

    return together(info, timeout_s, work)


_SUMMARY = "the exchanges of a training step: their bytes, their time here, and what limits them"
_DESCRIPTION = (
    f"{_SUMMARY}: data-parallel, pipeline, sharded and other training of a model. The exchanges of a step are measured in their order, "
    "without the computation between them."
)


def add_workload(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Add the command; return its parser by name."""
    parser: Parser = commands.add_parser("workload", help=_SUMMARY, description=_DESCRIPTION)
    parser.later(partial(add_workload_options, parser))
    parser.set_defaults(call=call_workload, gdr_check=False)
    return {"workload": parser}


def call_workload(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure in the launch of this process, or start ranks on this host. Return the exit code."""
    workload, info = _workload_request(arguments, argv), launch_of(arguments, argv)
    if arguments.dry_run:
        return 0 if info and info.rank else _show(workload, arguments, info)
    if info is None:
        _planned(workload.trainings, (0,) * len(_hosts(workload.launch, arguments, None)))

    def measure(request: Request, world: World, listener: Any, ended: Callable[[int], None]) -> int:
        from collbench.measure.tasks.training import run_workload

        return run_workload(replace(workload, launch=request), world, listener, ended)

    def printer(request: Request, arguments: argparse.Namespace) -> ProgressPrinter:
        from collbench.report.progress import WorkloadProgressPrinter

        return WorkloadProgressPrinter(arguments)

    return begin(workload.launch, Command(arguments, argv, measure, printer), info)


def _workload_request(arguments: argparse.Namespace, argv: Sequence[str]) -> WorkloadRequest:
    """Return the request. Raises UsageError for invalid options, and for those that the trainings do not have."""
    from collbench.measure.tasks.training import WorkloadRequest

    if arguments.resume:
        raise UsageError("workload runs cannot be resumed: start a new run, without --resume")
    trainings = trainings_of(arguments)
    return WorkloadRequest(
        _request(arguments, argv, trainings[0]), trainings, parts=not arguments.no_parts, step_time_s=arguments.step_time
    )


def _request(arguments: argparse.Namespace, argv: Sequence[str], first: Training) -> Request:
    from collbench.backends.registry import backend_class, backend_defaults
    from collbench.backends.slowing import parse_slowing
    from collbench.measure.request import Budget, Request
    from collbench.operations.dtypes import dtype_named
    from collbench.operations.sweep import Sweep

    for name in arguments.backend or ():
        backend_class(name)
    seed, precision = arguments.seed or 0, arguments.precision / 100 if arguments.precision else None
    sweep = Sweep(
        (), None, (dtype_named(first.shape((0,)).dtype),), device=arguments.device, mode="isolated", seed=seed, defaults=backend_defaults
    )
    return Request(
        command="workload", sweep=sweep, backends=tuple(dict.fromkeys(arguments.backend or default_backends(os.environ))),
        requested=frozenset(arguments.backend or ()), ranks=arguments.ranks, check=arguments.check, ceiling=arguments.ceiling,
        budget=Budget(arguments.max_time, arguments.steps, arguments.warmup, precision), oversubscription=arguments.oversubscription,
        timeout_s=arguments.timeout, seed=seed, order_seed=arguments.seed, out=arguments.out, allocation=arguments.allocation,
        gpus_per_process=arguments.gpus_per_process, slowed=parse_slowing(arguments.slowed), stop_on_wrong=arguments.stop_on_wrong,
        argv=tuple(argv), configuration=arguments.configuration,
    )  # fmt: skip


def _hosts(request: Request, arguments: argparse.Namespace, info: LaunchInfo | None) -> tuple[int, ...]:
    """Return the hosts of the planned ranks, which fill one host after the other."""
    if info is None:
        processes = local_ranks(request, os.environ)
        per_host = arguments.ranks_per_node or processes
    else:
        each = arguments.ranks_per_node or node_ranks(request, info, os.environ)
        processes, per_host = info.ranks * each, info.local_ranks * each
    return tuple(rank // (per_host * request.gpus_per_process) for rank in range(processes * request.gpus_per_process))


def _show(workload: WorkloadRequest, arguments: argparse.Namespace, info: LaunchInfo | None) -> int:
    """--dry-run: print the exchanges of a step, for ranks that fill one host after the other. Return 0. Raises UsageError."""
    from collbench.report.screen import write_line
    from collbench.report.training import write_plan

    planned, left_out = _planned(workload.trainings, _hosts(workload.launch, arguments, info))
    for sentence in [] if arguments.quiet else left_out:
        write_line(sys.stderr, sentence)
    write_plan(planned, arguments.format, sys.stdout)
    return 0


def _planned(trainings: Sequence[Training], hosts: tuple[int, ...]) -> tuple[list[PlannedStep], list[str]]:
    """Return the steps for these hosts, and the reasons for those without one. Raises UsageError for a training that is not optional."""
    from collbench.report.training import PlannedStep

    planned, left_out = [], []
    for training in trainings:
        try:
            shape = training.shape(hosts)
            planned.append(PlannedStep(training.regime, shape, training.regime.step(shape), training.model))
        except UsageError as error:
            if not training.optional:
                raise
            left_out.append(f"{training.regime.name} is skipped: {error}")
    return planned, left_out
