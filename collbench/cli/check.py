"""collbench check: doctor's rules, a short all-reduce and point-to-point on what is there, and one verdict."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from collbench.backends.registry import missing_backend
from collbench.cli.command import CommandSpec, launch_of
from collbench.cli.options import CHECK, MeasuringOptions
from collbench.cli.request import CHECK_SIZES, check_request
from collbench.cli.start import LaunchStart, begin
from collbench.errors import INTERRUPTED, TERMINATED, USAGE, RunFailed, UsageError
from collbench.launch.mpi import StartCrashed

if TYPE_CHECKING:
    from collbench.analysis.health import CheckVerdict
    from collbench.control.world import World
    from collbench.machine.doctor.finding import Finding
    from collbench.measuring.session import ProgressListener
    from collbench.results.reader import Run

_PROGRESS = "collbench.report.progress:QuietProgressPrinter"
_SUMMARY = "is everything fine here? a short measurement, and one verdict"
_ABOUT = """\
Run the rules of `collbench doctor`, a short all-reduce and point-to-point, and print one verdict: OK, SLOW, BROKEN or INCONCLUSIVE.
It uses the GPUs of this host, all nodes of the Slurm allocation, or else 2 ranks on this host.

exit codes, of the worst backend that is named: 0 OK: every operation reaches half of the expected bandwidth of the links (two fifths
of a rate measured inside the host) with its whole 95 % interval · 1 SLOW: an operation misses it, or a severe finding of doctor ·
3 INCONCLUSIVE: noise, an unknown expected bandwidth, no backend · 4 BROKEN: wrong data, a hang or a crash"""


def _check(spec: CommandSpec, options: MeasuringOptions, argv: Sequence[str]) -> int:
    """Measure, print the verdict, and return the exit code. Raises CollbenchError."""
    import subprocess

    from collbench.launch.explain import srun_line, waits_for_srun
    from collbench.launch.slurm import hosts_of

    alone = options.ranks is None and waits_for_srun(os.environ)
    if alone and len(hosts_of(os.environ)) > 1:  # on all nodes of the allocation: one task each, which starts a rank for each GPU
        line = srun_line(os.environ)
        if line is None:
            raise UsageError("this is a Slurm allocation, but srun is not in PATH: add it, or use --ranks N for this host alone")
        return subprocess.run([*line, *argv], check=False).returncode
    info = launch_of(1 if alone else options.ranks, argv)
    folder = options.out
    if info is None and folder is None:
        from collbench.results.folder import run_name

        folder = Path("runs") / run_name(spec.name)
    request = spec.request(dataclasses.replace(options, out=folder), argv, info)
    if options.html:
        from collbench.report.writers import check_file

        check_file(options.html, "--html")
    if options.ranks == 1 and options.gpus_per_process == 1:
        raise UsageError("--ranks 1: one rank has no partner to exchange data with: use --ranks 2 or more")
    if info is None:
        typed = argv if options.out else [*argv, "--out", str(folder)]
        return _check_here(LaunchStart(request, options, typed, spec.task, spec.progress))
    start = LaunchStart(request, options, argv, spec.task, spec.progress)
    if info.launcher != "local":
        start = replace(start, measure=partial(_measure_and_judge, start))
    return begin(start, info)


# Without a launcher: this process starts the ranks and judges what they stored, so that a crash or a hang has a verdict too.


def _check_here(start: LaunchStart) -> int:
    from collbench.report.screen import announce

    request = start.launch
    options = start.options
    announce("looking for backends…", options.quiet)
    missing = {} if request.requested else {name: missing_backend(name) for name in request.backends}
    if missing and all(missing.values()):  # the start checks the backends that the user named
        reason = "; ".join(f"{name}: {why}" for name, why in missing.items())
        return _print(_verdict(None, 0, request.requested, reason), None, 1, options)
    folder = request.out
    assert folder is not None
    try:
        code = begin(start, None)
    except StartCrashed as crash:
        from collbench.analysis.health import verdict_of

        return _print(verdict_of([], _findings(None), crash.fact), None, 1, options)
    if code in (USAGE, INTERRUPTED, TERMINATED):
        run = _read(folder)
        if run is None or not run.rows:
            return code
    return _judge(folder, code, request.requested, options)


def _read(folder: Path) -> Run | None:
    from collbench.results.reader import read_run

    try:
        return read_run(folder)
    except UsageError:
        return None


def _judge(folder: Path, code: int, requested: frozenset[str], options: MeasuringOptions) -> int:
    """Print the verdict about a run and return its exit code."""
    run = _read(folder)
    hosts = run.info.get("hosts") if run else None
    nodes = len(hosts) if isinstance(hosts, list) else 1
    if code in (INTERRUPTED, TERMINATED):
        return code
    return _print(_verdict(run, code, requested), folder if run else None, nodes, options)


def _verdict(run: Run | None, code: int, requested: frozenset[str], reason: str = "") -> CheckVerdict:
    """Return the verdict about a run with this exit code; None: no run was stored, for this reason."""
    from collbench.analysis.health import RunFailedEarly, verdict_of

    rows = run.rows if run else []
    ends = [event for event in run.events if event.get("kind") in ("abort", "hang")] if run else []
    failed = None
    if ends or (code and not any(row.wrong for row in rows) and code != USAGE):
        failed = RunFailedEarly(code, str(ends[0].get("text", "")) if ends else "")
    return verdict_of(rows, _findings(run), failed, reason, requested, omitted=_omitted(run))


def _omitted(run: Run | None) -> list[tuple[str, str]]:
    """Return (operation, backend) of the cases that were not measured, because the time was over, as the run has recorded it."""
    from collbench.measuring.open_backends import BackendOpensTooLate
    from collbench.measuring.tasks.cases import TimeWasOver
    from collbench.reason import Text, decode_or_text

    reasons = [event["reason"] for event in run.events if event.get("reason")] if run else []
    omitted: list[tuple[str, str]] = []
    for reason in reasons:
        fact = decode_or_text(reason, TimeWasOver | BackendOpensTooLate | Text)
        if isinstance(fact, TimeWasOver):
            omitted += fact.series
        elif isinstance(fact, BackendOpensTooLate):
            omitted += [(operation, fact.backend) for operation in CHECK_SIZES]
    return omitted


def _findings(run: Run | None) -> list[Finding]:
    """Return doctor's findings about the hosts of the run, or about this host without their description, worst first."""
    from collbench.cli.machine import with_own_findings
    from collbench.machine.doctor.examine import examine
    from collbench.machine.here import this_machine
    from collbench.machine.sources import read_paths
    from collbench.results.folder import TOPOLOGY

    machines = []
    if run and (run.path / TOPOLOGY).is_file():
        try:
            machines = read_paths([run.path / TOPOLOGY])
        except UsageError:
            machines = []
    machines = machines or [this_machine()]
    return with_own_findings(examine(machines), machines[0].hostname)


def _print(verdict: CheckVerdict, folder: Path | None, nodes: int, options: MeasuringOptions) -> int:
    """Store the verdict with the run, write the page if requested, print the verdict, and return its exit code."""
    from collbench.report.health import CheckAnswer, store_check, write_check

    answer = CheckAnswer(verdict, folder, nodes)
    if folder is not None:
        store_check(answer, folder)
    if options.html:
        _write_page(verdict, folder, options.html)
    code = write_check(answer, options.format, sys.stdout, color=options.color, quiet=options.quiet)
    sys.stdout.flush()
    return code


def _write_page(verdict: CheckVerdict, folder: Path | None, where: Path) -> None:
    from collbench.report.html.first_screen import of_check
    from collbench.report.html.page import write_html, write_page
    from collbench.report.material import Material
    from collbench.report.writers import confirm_written

    run = _read(folder) if folder else None
    if run is not None:
        write_html(Material([run], where))
    else:
        write_page(where, of_check(verdict), list)
    confirm_written((where,), sys.stderr)


# Under a launcher: rank 0 judges.


def _measure_and_judge(start: LaunchStart, world: World, listener: ProgressListener | None, ended: Callable[[int], None]) -> int:
    """Measure on all ranks; rank 0 prints the verdict. Return its exit code on all ranks. Raises CollbenchError."""
    from collbench.report.progress import QuietProgressPrinter

    printer = listener if isinstance(listener, QuietProgressPrinter) else None
    try:
        code = start.run_task(world, listener, ended)
    except RunFailed as error:
        if printer:
            from collbench.analysis.health import RunFailedEarly, verdict_of

            run = _read(printer.folder)
            failed = RunFailedEarly(error.exit_code, str(error))
            _print(verdict_of(run.rows if run else [], [], failed), printer.folder, len(world.hosts), start.options)
        raise
    exit_code = _judge(printer.folder, code, start.launch.requested, start.options) if printer else code
    return world.broadcast(exit_code, "printing the verdict")


CHECK_COMMAND = CommandSpec(
    name="check", summary=_SUMMARY, about=_ABOUT, layout=CHECK, request=check_request, progress=_PROGRESS, run=_check
)
