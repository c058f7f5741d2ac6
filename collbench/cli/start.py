"""The start of every measuring command: take part in a launch, or start ranks on this host."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from collbench.backends.registry import missing_backend
from collbench.cli.request import local_ranks, node_ranks, refuse_launcher, with_ranks
from collbench.errors import CollbenchError, Interrupted, RunFailed, UsageError
from collbench.launch import signals
from collbench.plugin import failed_plugin, loaded
from collbench.units import plural

if TYPE_CHECKING:
    from collbench.cli.options import MeasuringOptions
    from collbench.control.world import World
    from collbench.launch.info import LaunchInfo
    from collbench.measuring.request import Request, TaskRequest
    from collbench.measuring.session import ProgressListener
    from collbench.report.progress import ProgressPrinter


# Unexpected errors: the traceback, and whether a plug-in or collbench has to be repaired.


def write_error(text: str) -> None:
    """Write lines to stderr, without control characters. If that fails, only the exit code reports the end."""
    try:
        from collbench.report.frame import printable
    except (ImportError, MemoryError, OSError):  # a process that can open no file, or has no memory left, cannot import

        def printable(text: str) -> str:
            return "".join(letter if letter.isprintable() else "?" for letter in text)

    text = "".join(f"{printable(line)}\n" for line in text.splitlines())
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def report_exception(error: BaseException) -> None:
    """Print the traceback, once. A rank prints it before it informs the others, since then a launcher may kill it at any time."""
    if getattr(error, "reported", False):
        return
    write_error("".join(traceback.format_exception(error)))
    plugin = failed_plugin(error)
    request = (
        f"{plugin}: report the lines above to its authors"
        if plugin
        else ("this is a bug of collbench, not of your network: please report the lines above")
    )
    write_error(f"collbench: {request}\n")
    error.reported = True  # type: ignore[attr-defined]


# The checks that all ranks have read the same suite and configuration, since each reads the files of its own host.


def same_configuration(request: Request, world: World) -> None:
    """Raise UsageError on all ranks if their configuration files set different values. On one host all ranks read the same file."""
    if world.info.launcher == "local":
        return
    views = world.allgather((request.configuration or {}).get("values", {}), "comparing the configuration")
    other = next((rank for rank, view in enumerate(views) if view != views[0]), None)
    if other is not None:
        raise UsageError(
            f"rank 0 ({world.members[0].host}) and rank {other} ({world.members[other].host}) have different configuration files: "
            "copy one file to all hosts, or use --no-config"
        )


def compare(world: World, wrong: str | None, digest: str = "", name: str = "") -> None:
    """Raise UsageError on all ranks if one reports what is `wrong` with the suite, or if their digests differ."""
    views = world.allgather([wrong, digest, name], "comparing the suite")
    reasons = [reason for reason, _, _ in views]
    rank = next((rank for rank, reason in enumerate(reasons) if reason), None)
    if rank is not None:
        alone = "" if len(set(reasons)) == 1 else f"on {world.members[rank].host}: "
        raise UsageError(f"{alone}{reasons[rank]}")
    other = next((rank for rank, view in enumerate(views) if view[1] != views[0][1]), None)
    if other is not None:
        first, second = world.members[0].host, world.members[other].host
        raise UsageError(
            f"suite {views[0][2]} is not the same for all ranks: rank 0 on {first} and rank {other} on {second} read "
            "different files: copy one file to all hosts"
        )


def check_files(request: Request) -> None:
    """Raise UsageError if this host cannot write the run or its trace, or if the run to resume cannot be continued."""
    from collbench.results.folder import RunFolder, check_new, run_name

    if request.trace is not None:
        from collbench.report.writers import check_file

        check_file(request.trace, "--trace")
    earlier = request.earlier
    if earlier is not None:
        RunFolder.reopen(earlier).give_up()
        return
    folder = request.out or Path("runs") / run_name(request.command)
    check_new(folder if request.launches == 1 else folder / "launch-1")


class LaunchStart(msgspec.Struct, frozen=True):
    """A measuring command that is about to start.

    argv      the command line, which started ranks repeat
    task, progress  as `CommandSpec` has them
    measure   what a rank does, instead of running the task: (world, the listener at rank 0, a callback for the exit code) -> exit code
    """

    request: TaskRequest
    options: MeasuringOptions
    argv: Sequence[str]
    task: str
    progress: str
    measure: Callable[[World, Any, Callable[[int], None]], int] | None = None

    @property
    def launch(self) -> Request:
        """Return the request of the launch."""
        return self.request.launch

    def run_task(self, world: World, listener: ProgressListener | None, ended: Callable[[int], None]) -> int:
        """Measure the task of the request on this rank; see `session.run_task`."""
        from collbench.measuring.session import run_task

        return run_task(loaded(self.task)(self.request), self.launch, world, listener, ended)

    def listener(self) -> ProgressPrinter:
        """Return the progress listener at rank 0."""
        from collbench.report.progress import ProgressPrinter, QuietProgressPrinter

        if self.progress:
            listener: ProgressPrinter = loaded(self.progress)(self.options.output, self.request)
            return listener
        if self.launch.launches == 1:
            return ProgressPrinter(self.options.output)
        return QuietProgressPrinter(self.options.output, notes=self.launch.launch_index == 0)


def begin(start: LaunchStart, info: LaunchInfo | None) -> int:
    """Measure in the launch of this process, or start ranks on this host. Return the exit code. Raises CollbenchError."""
    from collbench.launch.spawn import node_workers

    request, argv = start.launch, start.argv
    request.check_options()
    if info is None:
        return _start_here(start)
    refuse_launcher(request, info, os.environ)
    if request.ranks_per_node and "worker" not in info.facts:
        _refuse_too_many(request.ranks_per_node, "--ranks-per-node", request)
        return node_workers(info, request.ranks_per_node, argv, os.environ)
    ranks = 1 if request.ranks_per_node else node_ranks(request, info, os.environ)
    return node_workers(with_ranks(info, ranks), ranks, argv, os.environ) if ranks > 1 else _take_part(start, info)


def _start_here(start: LaunchStart) -> int:
    """LaunchStart the ranks on this host without a launcher, once or --launches times, after the checks that one process can do."""
    from collbench.cli import launches
    from collbench.cli.early import check_cases, check_sizes, report_finished
    from collbench.launch.mpi import StartCrashed, without_crashed
    from collbench.launch.spawn import BEGAN, command_began_s, find_mpiexec, start_local
    from collbench.report.screen import announce

    request, output, argv = start.launch, start.options.output, start.argv
    check_files(request)
    ranks = local_ranks(request, os.environ)
    _refuse_too_many(ranks, "--ranks", request)
    request.sweep.check_ranks(ranks * request.gpus_per_process)
    request.check_installed()
    cases = start.request.cases
    if request.is_simulated or request.launches > 1:
        check_cases(cases, ranks)  # otherwise rank 0 does, since this process would import numpy and load MPI for it
    check_sizes(cases, ranks)
    code = report_finished(request, output)
    if code is not None:
        return code

    def start_once(argv: Sequence[str], env: Mapping[str, str]) -> int:
        announce(f"starting {plural(ranks, 'rank')}…", output.quiet)
        began_s = command_began_s(env) if request.launches == 1 else time.monotonic()
        env = {**env, BEGAN: f"{began_s:.3f}"}
        if request.is_simulated:  # virtual ranks need no processes
            return start_local([argv[0], "--ranks", str(ranks), *argv[1:]], 1, env=env)  # a "--" ends the options
        mpiexec = find_mpiexec(env) if "mpi" in request.backends and find_spec("mpi4py") else None
        try:
            return start_local(argv, ranks, env=env, mpiexec=mpiexec)
        except StartCrashed as crash:
            if crash.fact.backend in request.requested or not set(request.backends) - {crash.fact.backend}:
                raise
            return start_local(argv, ranks, env=without_crashed(env, crash), mpiexec=None if crash.fact.backend == "mpi" else mpiexec)

    if request.gdr_check:
        return launches.check(request, output, argv, os.environ, start_once)
    return start_once(argv, os.environ) if request.launches == 1 else launches.repeat(request, output, argv, os.environ, start_once)


def _refuse_too_many(ranks: int, option: str, request: Request) -> None:
    """Raise UsageError if so many ranks do not fit on this host. Virtual ranks are all in one process."""
    from collbench.launch.limits import refuse_few_files, refuse_too_many

    if not request.is_simulated:
        torch = bool({"gloo", "torch-nccl", "horovod", "torchcomms"} & set(request.backends)) and find_spec("torch") is not None
        refuse_too_many(ranks, option, torch=torch, oversubscribe=request.oversubscribe)
        refuse_few_files(ranks, option, request.backends, lambda name: not missing_backend(name))


def _take_part(start: LaunchStart, info: LaunchInfo) -> int:
    """Run as a rank: join the others, measure, and exit with their code."""
    from collbench.launch.detect import is_elastic, refusal_torchrun
    from collbench.launch.spawn import record_exit, record_start
    from collbench.launch.supervise import die_with_parent

    request = start.launch
    if info.launcher == "local":
        die_with_parent()
        record_start(os.environ)

    def work(world: World) -> int:
        restarts = world.first_error(info.facts.get("restarts"), "asking for restarts") if is_elastic(info) else None
        if restarts:  # samples of two starts do not belong to one run
            world.refuse(refusal_torchrun(restarts))
        if request.suite:
            compare(world, None, request.suite["digest"], request.suite["name"])
        same_configuration(request, world)
        from collbench.measuring.session import at_rank_0

        if info.launcher != "local":  # a local start has checked them
            at_rank_0(world, partial(check_files, request), "checking the files of the run")
        elif not request.is_simulated:
            from collbench.cli.early import check_cases

            at_rank_0(world, partial(check_cases, start.request.cases, world.size), "checking the cases")
        measure = start.measure or start.run_task
        with nullcontext() if world.rank else start.listener() as listener:
            code = measure(world, listener, partial(record_exit, env=os.environ))
        if listener:
            listener.write_trace(request.trace)
        return code

    return together(info, request.timeout_s, work)


def together(info: LaunchInfo, timeout_s: float, work: Callable[[World], int]) -> int:
    """Join the other ranks and do the work. If it fails at one of them, all end with the same message and code."""
    from collbench.control.watchdog import AFTER_S, StartupWatchdog

    early = StartupWatchdog()  # ends this process if it is stopped before other ranks know it
    early.arm(timeout_s + AFTER_S)
    from collbench.control.world import World
    from collbench.launch.detect import end_of_job
    from collbench.launch.limits import out_of_files

    early.close()
    end_others = end_of_job(info, os.environ)
    if info.launcher == "srun":
        from collbench.launch.slurm import end_of_step

        end_others = end_of_step(info, os.environ) or end_others
    world = World(info, timeout_s, end_others)
    try:
        with signals.watch_signals(world.interrupted):
            return work(world)
    except BaseException as caught:
        signals.settle()
        error = world.explained(out_of_files(caught) or caught)
        unknown = failed_plugin(error) or f"{type(error).__name__}: {error}"
        why = error if isinstance(error, CollbenchError | Interrupted) else RunFailed(unknown)
        if isinstance(error, Exception) and not isinstance(error, CollbenchError | OSError):  # unexpected; OSError: a closed output, too
            report_exception(error)
        if world.rank == 0 and why is error:
            world.report_error(str(why), why.exit_code)  # first: mpiexec kills rank 0 as soon as one of the other ranks has ended
        # Rank 0 reports for all. Another rank reports only if rank 0 does not answer.
        why.reported = world.abort(why)  # type: ignore[union-attr]
        if error is caught:
            raise
        raise error from caught
    finally:
        world.close()
        sys.stdout.flush()
