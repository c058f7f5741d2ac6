"""collbench check: doctor's rules, a short all-reduce and point-to-point on what is there, and one verdict."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.cli.options import DEFAULT_TIMEOUT_S, add_ranks, add_slowed, default_backends
from collbench.cli.parser import Parser, duration, rate, words
from collbench.cli.start import Command, begin, launch_of, run_cases
from collbench.errors import INTERRUPTED, TERMINATED, USAGE, RunFailed, UsageError

if TYPE_CHECKING:
    from collbench.analysis.health import CheckVerdict
    from collbench.control.world import World
    from collbench.machine.doctor.finding import Finding
    from collbench.measure.request import Request
    from collbench.measure.session import ProgressListener
    from collbench.report.progress import ProgressPrinter
    from collbench.results.reader import Run

_SUMMARY = "is everything fine here? doctor, a short all-reduce and point-to-point, and one verdict"
_ABOUT = """\
Run the rules of `collbench doctor`, a short all-reduce and point-to-point, and print one verdict: OK, SLOW, BROKEN or INCONCLUSIVE.
It uses the GPUs of this host, all nodes of the Slurm allocation, or else 2 ranks on this host.

exit codes: 0 OK · 1 SLOW: less than half of the expected bandwidth of the links (a fifth of a rate measured inside the host) with the
whole 95 % interval, or a severe finding of doctor · 3 INCONCLUSIVE: noise, an unknown expected bandwidth, no backend ·
4 BROKEN: wrong data, a hang or a crash"""
_TOTAL_S = 8.0
_MAX_TIME_S = 3.0  # per case
_SIZES = (8, 4 << 20, 16 << 20, 64 << 20)  # bytes
_SIZES_BY_OPERATION = {"allreduce": _SIZES, "p2p_latency": _SIZES[:1], "p2p_bandwidth": _SIZES[1:3]}
_WINDOW = 4  # messages in flight: the usual 256 MiB take seconds on a link of 1 Gb/s, and a few messages fill any link


def add_health_check(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Add the command; return its parser by name."""
    parser: Parser = commands.add_parser("check", help=_SUMMARY, description=_ABOUT)
    parser.later(partial(_add_options, parser))
    parser.set_defaults(call=call_check, gdr_check=False, resume=None)
    return {"check": parser}


def _add_options(parser: Parser) -> None:
    group = parser.add_argument_group("launch and output")
    group.add_argument("--backend", metavar="NAMES", type=words,
                       help="nccl, torch-nccl, mpi, gloo … (default: nccl with GPUs, else every installed CPU backend)")  # fmt: skip
    group.add_argument("--total-time", metavar="SECONDS", type=duration, default=_TOTAL_S,
                       help=f"time limit of all cases together, divided among them (default: {_TOTAL_S:g})")  # fmt: skip
    group.add_argument("--ceiling", metavar="GB/s", type=rate, help="expected bus bandwidth (default: from the probed hardware)")
    add_ranks(group)
    add_slowed(group)
    group.add_argument("--timeout", metavar="SECONDS", type=duration, default=DEFAULT_TIMEOUT_S,
                       help=f"deadline of each wait for other ranks (default: {DEFAULT_TIMEOUT_S:g})")  # fmt: skip
    group.add_argument("--allocation", metavar="NAME", help="name of the allocation (default: the scheduler's job)")
    group.add_argument("--out", metavar="DIR", type=Path, help="run folder (default: runs/<time>-check-<id>)")
    group.add_argument("--format", choices=("table", "json"), default="table", help="text, or one JSON object (default: table)")
    group.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="colored output (default: auto)")
    group.add_argument("--quiet", action="store_true", help="print only the verdict and errors")


def call_check(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Measure, print the verdict, and return the exit code. Raises CollbenchError."""
    from collbench.launch.explain import waits_for_srun
    from collbench.launch.slurm import hosts_of

    alone = arguments.ranks is None and waits_for_srun(os.environ)
    if alone and len(hosts_of(os.environ)) > 1:
        return _by_srun(argv)
    request = _request(arguments, argv)
    info = launch_of(argparse.Namespace(ranks=1 if alone else arguments.ranks), argv)
    if info is None:
        return _check_here(request, arguments, argv)
    measure = run_cases if info.launcher == "local" else _measure_and_judge
    return begin(request, Command(arguments, argv, measure, _make_progress), info)


def _request(arguments: argparse.Namespace, argv: Sequence[str]) -> Request:
    from collbench.backends.registry import backend_class, backend_defaults
    from collbench.backends.slowing import parse_slowing
    from collbench.measure.request import Budget, Request
    from collbench.operations.dtypes import dtype_named
    from collbench.operations.registry import operations
    from collbench.operations.sweep import Sweep, Sweeps

    named = tuple(dict.fromkeys(arguments.backend or ()))
    for name in named:
        backend_class(name)
    # sparse: sizes that do not fit the memory are left out
    sweeps = [
        Sweep((operations()[name],), sizes, (dtype_named("float32"),), sparse=True, defaults=backend_defaults, where=name, window=_WINDOW)
        for name, sizes in _SIZES_BY_OPERATION.items()
    ]
    return Request(
        command="check", sweep=Sweeps(tuple(sweeps)), backends=named or default_backends(os.environ), requested=frozenset(named),
        budget=Budget(_MAX_TIME_S, total_s=arguments.total_time), ranks=arguments.ranks, ceiling=arguments.ceiling,
        timeout_s=arguments.timeout, out=arguments.out, allocation=arguments.allocation, gpus_per_process=arguments.gpus_per_process,
        slowed=parse_slowing(arguments.slowed), argv=tuple(argv),
    )  # fmt: skip


def _make_progress(request: Request, arguments: argparse.Namespace) -> ProgressPrinter:
    from collbench.report.progress import QuietProgressPrinter

    return QuietProgressPrinter(arguments)


def _by_srun(argv: Sequence[str]) -> int:
    """Run the check on all nodes of the allocation, one task per node, which starts a rank for each GPU. Return the exit code."""
    import subprocess

    from collbench.launch.explain import srun_line

    line = srun_line(os.environ)
    if line is None:
        raise UsageError("this is a Slurm allocation, but srun is not in PATH: add it, or use --ranks N for this host alone")
    return subprocess.run([*line, *argv], check=False).returncode


# Without a launcher: this process starts the ranks and judges what they stored, so that a crash or a hang has a verdict too.


def _check_here(request: Request, arguments: argparse.Namespace, argv: Sequence[str]) -> int:
    from collbench.report.screen import announce

    announce("looking for backends…", arguments.quiet)
    missing = _missing(request)
    if missing is not None:
        return _print(_verdict(None, 0, missing), None, 1, arguments)
    from collbench.results.folder import run_name

    folder = request.out or Path("runs") / run_name(request.command)
    own = [] if request.out else ["--out", str(folder)]
    code = begin(replace(request, out=folder), Command(arguments, [*argv, *own]), None)
    if code in (USAGE, INTERRUPTED, TERMINATED) and not _has_rows(folder):
        return code
    return _judge(folder, code, arguments)


def _missing(request: Request) -> str | None:
    """Return why no default backend is available, or None if one is. Those that the user named are checked by the start."""
    if request.requested:
        return None
    from collbench.cli.dry_run import missing_backend

    reasons = {name: missing_backend(name) for name in request.backends}
    return "; ".join(f"{name}: {why}" for name, why in reasons.items()) if all(reasons.values()) else None


def _has_rows(folder: Path) -> bool:
    run = _read(folder)
    return run is not None and bool(run.rows)


def _read(folder: Path) -> Run | None:
    from collbench.results.reader import read_run

    try:
        return read_run(folder)
    except UsageError:
        return None


def _judge(folder: Path, code: int, arguments: argparse.Namespace) -> int:
    """Print the verdict about a run and return its exit code."""
    run = _read(folder)
    hosts = run.info.get("hosts") if run else None
    nodes = len(hosts) if isinstance(hosts, list) else 1
    if code in (INTERRUPTED, TERMINATED):
        return code
    return _print(_verdict(run, code), folder if run else None, nodes, arguments)


def _verdict(run: Run | None, code: int, reason: str = "") -> CheckVerdict:
    """Return the verdict about a run with this exit code; None: no run was stored, for this reason."""
    from collbench.analysis.health import RunFailedEarly, verdict_of

    rows = run.rows if run else []
    ends = [event for event in run.events if event.get("kind") in ("abort", "hang")] if run else []
    failed = None
    if ends or (code and not any(row.wrong for row in rows) and code != USAGE):
        failed = RunFailedEarly(code, str(ends[0].get("text", "")) if ends else "")
    return verdict_of(rows, _findings(run), failed, reason)


def _findings(run: Run | None) -> list[Finding]:
    """Return doctor's findings about the hosts of the run, or about this host without their description, worst first."""
    from collbench.machine.doctor import host as settings
    from collbench.machine.doctor.examine import examine
    from collbench.machine.doctor.finding import worst_first
    from collbench.machine.sources import read_paths, this_machine
    from collbench.results.folder import TOPOLOGY

    machines = []
    if run and (run.path / TOPOLOGY).is_file():
        try:
            machines = read_paths([run.path])
        except UsageError:
            machines = []
    machines = machines or [this_machine()]
    own = machines[0].hostname
    return worst_first([*examine(machines), *settings.examined_software(own, os.environ), *settings.examined(own, os.environ)])


def _print(verdict: CheckVerdict, folder: Path | None, nodes: int, arguments: argparse.Namespace) -> int:
    from collbench.report.health import write_check

    code = write_check(verdict, folder, nodes, arguments.format, sys.stdout, color=arguments.color)
    sys.stdout.flush()
    return code


# Under a launcher: rank 0 judges.


def _measure_and_judge(request: Request, world: World, listener: ProgressListener | None, ended: Callable[[int], None]) -> int:
    """Measure on all ranks; rank 0 prints the verdict. Return its exit code on all ranks. Raises CollbenchError."""
    from collbench.report.progress import QuietProgressPrinter

    printer = listener if isinstance(listener, QuietProgressPrinter) else None
    try:
        code = run_cases(request, world, listener, ended)
    except RunFailed as error:
        if printer:
            from collbench.analysis.health import RunFailedEarly, verdict_of

            run = _read(printer.folder)
            failed = RunFailedEarly(error.exit_code, str(error))
            _print(verdict_of(run.rows if run else [], [], failed), printer.folder, len(world.hosts), printer.arguments)
        raise
    own = _judge(printer.folder, code, printer.arguments) if printer else code
    return world.broadcast(own, "printing the verdict")
