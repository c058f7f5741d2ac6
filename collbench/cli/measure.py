"""The measuring commands: one per operation, run, pairs, hunt, workload and kernels."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from collbench.cli import launches
from collbench.cli.options import COLLECTIVE, HUNT, KV, LOAD, PAIRS, REPLAY, Option, add_options, add_some, some, workload_options
from collbench.cli.other_tools import add_other_options, check_least_processes
from collbench.cli.parser import Parser, add_command, add_format
from collbench.cli.request import (
    collective_request,
    hunt_request,
    load_request,
    local_ranks,
    pairs_request,
    replay_request,
    workload_request,
)
from collbench.cli.start import Command, begin, launch_of, together
from collbench.errors import UsageError
from collbench.operations.registry import broken, operations
from collbench.operations.registry import commands as operation_commands
from collbench.operations.sweep import Sweep

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.launch.info import LaunchInfo
    from collbench.measuring.request import Request
    from collbench.operations.operation import Operation
    from collbench.plugins.hunt.places import PairsRequest
    from collbench.plugins.traces.recording import Recording


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


# collbench pairs: latency and bandwidth between all pairs of ranks or nodes, and the slow ones.

_PAIRS_SUMMARY = "latency and bandwidth between all pairs of ranks or nodes, and which of them are slow"
_PAIRS_ABOUT = (
    f"{_PAIRS_SUMMARY}. All pairs of a round are measured at the same time, each rank with one partner. Suspects are measured again "
    "next to control pairs before a node or pair is reported. To find one faulty node, use `hunt`: it measures fewer pairs, repeats each "
    "suspect with more partners, tries groups that grow, and prints how to drain it. Exit code 1: a node or pair is slow; 3: inconclusive."
)


def add_pairs(commands: Any) -> None:
    """Add the command."""
    add_command(commands, "pairs", _PAIRS_SUMMARY, call_pairs, partial(add_options, layout=PAIRS), description=_PAIRS_ABOUT)


def call_pairs(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure in the launch of this process, or start ranks on this host. Return the exit code."""
    pairs, info = pairs_request(arguments, argv), launch_of(arguments, argv)
    if arguments.dry_run:
        from collbench.cli.dry_run import show_pairs

        return show_pairs(pairs, arguments, info, os.environ)
    if info is None:
        from collbench.cli.dry_run import planned_pairs

        planned_pairs(pairs, arguments, None, os.environ)

    def measure(request: Request, *rank: Any) -> int:
        from collbench.plugins.hunt.tasks import run_pairs

        return run_pairs(replace(pairs, launch=request), *rank)

    return begin(pairs.launch, Command(arguments, argv, measure, _with_cases(pairs, "p2p_bandwidth")), info)


def _with_cases(pairs: PairsRequest, operation: str, dtype: str = "uint8") -> Request:
    """Return the request with the sweep of its largest messages, on the first backend that is installed."""
    from collbench.cli.start import missing_backend
    from collbench.operations.dtypes import dtype_named

    launch = pairs.launch
    assert isinstance(launch.sweep, Sweep)
    installed = [name for name in launch.backends if not missing_backend(name)]
    sweep = replace(launch.sweep, operations=(operations()[operation],), sizes=(pairs.size_bytes,), dtypes=(dtype_named(dtype),))
    return replace(launch, sweep=sweep, backends=tuple(installed[:1]))


# collbench hunt: find the slow node, NIC, rank or link, and clear those that are slow only because of it.

_HUNT_SUMMARY = "find the slow node, NIC, rank or link, and clear its partners"
_HUNT_ABOUT = (
    f"{_HUNT_SUMMARY}. Rounds of disjoint pairs (or groups), then each suspect again with healthy partners next to control pairs, then "
    "groups that grow: each suspect is confirmed, cleared or inconclusive. recommendation.json in the run's folder shows what to do. "
    "For the figures of every pair as a matrix, use `pairs`. Exit code 1: a suspect is confirmed; 3: no verdict."
)


def add_hunt(commands: Any) -> None:
    """Add the command."""
    add_command(commands, "hunt", _HUNT_SUMMARY, call_hunt, partial(add_options, layout=HUNT), description=_HUNT_ABOUT)


def call_hunt(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Hunt in the launch of this process, or start ranks on this host. Return the exit code."""
    hunt, info = hunt_request(arguments, argv), launch_of(arguments, argv)
    if arguments.dry_run:
        from collbench.cli.dry_run import show_hunt

        return show_hunt(hunt, arguments, info, os.environ)
    if info is None:
        from collbench.cli.dry_run import planned_stages
        from collbench.plugins.hunt.drain import check_apply

        planned_stages(hunt, arguments, None, os.environ)
        if arguments.apply:
            check_apply(os.environ)

    def measure(request: Request, *rank: Any) -> int:
        from collbench.plugins.hunt.tasks import run_hunt

        return run_hunt(replace(hunt, pairs=replace(hunt.pairs, launch=request)), *rank)

    cases = _with_cases(hunt.pairs, "allreduce", "float32") if hunt.method == "groups" else _with_cases(hunt.pairs, "p2p_bandwidth")
    return begin(hunt.pairs.launch, Command(arguments, argv, measure, cases), info)


# collbench workload: the exchanges of training steps.

_WORKLOAD_SUMMARY = "the exchanges of a training step: their bytes, their time here, and what limits them"
_WORKLOAD_ABOUT = (
    f"{_WORKLOAD_SUMMARY}: data-parallel, pipeline, sharded and other training of a model. The exchanges of a step are measured in their "
    "order, without the computation between them."
)


def add_workload(commands: Any) -> None:
    """Add the command."""

    def fill(parser: Parser) -> None:
        add_options(parser, workload_options())

    add_command(commands, "workload", _WORKLOAD_SUMMARY, call_workload, fill, description=_WORKLOAD_ABOUT)


def call_workload(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure in the launch of this process, or start ranks on this host. Return the exit code."""
    from collbench.cli.dry_run import planned_hosts, planned_steps, show_workload

    workload, info = workload_request(arguments, argv), launch_of(arguments, argv)
    if arguments.dry_run:
        return show_workload(workload, arguments, info, os.environ)
    if info is None:
        planned_steps(workload.trainings, (0,) * len(planned_hosts(workload.launch, arguments, None, os.environ)))

    def measure(request: Request, *rank: Any) -> int:
        from collbench.plugins.training.task import run_workload

        return run_workload(replace(workload, launch=request), *rank)

    return begin(workload.launch, Command(arguments, argv, measure), info)


# collbench replay: the step of a recorded job.

_REPLAY_SUMMARY = "the communication of a recorded job's step: its time here, and what limits it"
_REPLAY_ABOUT = (
    f"{_REPLAY_SUMMARY}. Reads Flight Recorder dumps, Chakra and Kineto traces, NCCL Inspector files and NCCL_DEBUG logs. The "
    "operations of a step run in their recorded order with verified data, on the recorded number of ranks or fewer."
)


def add_replay(commands: Any) -> None:
    """Add the command."""
    add_command(commands, "replay", _REPLAY_SUMMARY, call_replay, partial(add_options, layout=REPLAY), description=_REPLAY_ABOUT)


def call_replay(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure in the launch of this process, or start the recorded number of ranks on this host. Return the exit code."""
    from collbench.plugins.traces.replay_task import recording_of, run_replay

    replay, info = replay_request(arguments, argv), launch_of(arguments, argv)
    if info is None or arguments.dry_run or arguments.suite:  # before ranks are started, the trace gives their number
        if info is not None and info.rank:
            return 0
        recording = recording_of(replay.paths, replay.options, replay.ranks)
        if arguments.dry_run:
            from collbench.cli.dry_run import show_replay

            return show_replay(replay, recording, arguments)
        if arguments.suite:
            return _write_suite(recording, arguments)
        replay = replace(replay, launch=replace(replay.launch, ranks=recording.ranks))

    def measure(request: Request, *rank: Any) -> int:
        return run_replay(replace(replay, launch=request), *rank)

    return begin(replay.launch, Command(arguments, argv, measure), info)


def _write_suite(recording: Recording, arguments: argparse.Namespace) -> int:
    """Write the file of --suite. Return 0. Raises UsageError if it cannot be written."""
    from collbench.plugins.traces.suite import suite_text
    from collbench.report.screen import announce

    text = suite_text(recording, f"the operations of a recorded step ({recording.form}, {recording.ranks} ranks)")
    try:
        arguments.suite.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--suite {arguments.suite}: {error.strerror or error}: choose another file") from error
    announce(f"wrote {arguments.suite}", arguments.quiet)
    return 0


# collbench load: victims while aggressors send.

_LOAD_SUMMARY = "how much slower an operation is while other ranks use the same links"
_LOAD_ABOUT = (
    f"{_LOAD_SUMMARY}. Victims time their operation in blocks with aggressors off and on, in random order. The factor between the two has "
    "an interval, and the row shows the aggressors' rate. By default victims and aggressors are on different nodes."
)


def add_load(commands: Any) -> None:
    """Add the command."""
    add_command(commands, "load", _LOAD_SUMMARY, call_load, partial(add_options, layout=LOAD), description=_LOAD_ABOUT)


def call_load(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure in the launch of this process, or start ranks on this host. Return the exit code."""
    load, info = load_request(arguments, argv), launch_of(arguments, argv)
    if info is None or arguments.dry_run:
        from collbench.cli.dry_run import show_load

        return show_load(load, arguments, info, os.environ)

    def measure(request: Request, *rank: Any) -> int:
        from collbench.plugins.load.task import run_load

        return run_load(replace(load, launch=request), *rank)

    return begin(load.launch, Command(arguments, argv, measure), info)


# collbench kv: scattered blocks, such as those of a key-value cache.

_KV_SUMMARY = "transfers of scattered blocks, as of a key-value cache from prefill to decode"
_KV_ABOUT = (
    f"Measure {_KV_SUMMARY}: by messages per block, derived types, one-sided puts, packing, writev over TCP, and NIXL. Without --model "
    "the costs per transfer and per block follow from several numbers and sizes of blocks. Every byte of a transfer is verified."
)


def add_kv(commands: Any) -> None:
    """Add the command."""
    add_command(commands, "kv", _KV_SUMMARY, call_kv, partial(add_options, layout=KV), description=_KV_ABOUT)


def call_kv(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure in the launch of this process, or start ranks on this host. Return the exit code."""
    from collbench.plugins.kv.command import check_blocks, kv_request, show_kv

    kv, info = kv_request(arguments, argv), launch_of(arguments, argv)
    if arguments.dry_run:
        return show_kv(kv, arguments, info, os.environ)
    if info is None:  # before ranks are started: do blocks and ranks fit?
        from collbench.cli.dry_run import planned_hosts

        ranks = len(planned_hosts(kv.launch, arguments, None, os.environ))
        check_blocks(kv, ranks)

    def measure(request: Request, *rank: Any) -> int:
        from collbench.plugins.kv.task import run_kv

        return run_kv(replace(kv, launch=request), *rank)

    return begin(kv.launch, Command(arguments, argv, measure), info)


# collbench kernels: the rates of each GPU's memory and of the links between GPUs, measured with collbench's own kernels.

_KERNELS_ABOUT = (
    "Run the kernels of cuda_kernels/ on every visible GPU and between each GPU and the next, verify their results, and compare their "
    "rates with the limits of memory and links."
)


def add_kernels(commands: Any) -> None:
    """Add the command."""
    summary = "bandwidth and latency of GPU memory and of the links between GPUs"
    add_command(commands, "kernels", summary, call_kernels, _add_kernels_options, description=_KERNELS_ABOUT)


def _add_kernels_options(parser: Parser) -> None:
    parser.add_argument("--size", metavar="SIZE", help="bytes of each of three arrays; K = 1024 (default: 512M, or as much as fits)")
    add_format(parser, "table")
    add_some(parser, "color")


def call_kernels(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure and print; return 0. Raises UsageError without a GPU, RunFailed if a kernel's result is wrong."""
    from collbench.plugins.channels.kernels import measure_kernels
    from collbench.plugins.channels.text import KernelsWriter
    from collbench.report.screen import PlainScreen, wants_color, width_of
    from collbench.units import parse_size

    size = None if arguments.size is None else parse_size(arguments.size)
    screen = PlainScreen(sys.stdout, sys.stderr, wants_color(sys.stdout, arguments.color))
    return measure_kernels(os.environ, size, KernelsWriter(arguments.format, screen, width_of(sys.stdout)))
