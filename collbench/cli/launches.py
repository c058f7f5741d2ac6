"""--launches N: start the same command N times on this host, each with a separate run folder, and print one common table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from collbench.cli.request import GDR_LEVEL, GDR_NEVER, LAUNCH_INDEX
from collbench.errors import INTERRUPTED, TERMINATED, Interrupted, UsageError

if TYPE_CHECKING:
    from collbench.measuring.request import Request
    from collbench.report.progress import Output

StartOnce = Callable[[Sequence[str], Mapping[str, str]], int]


class PlannedLaunch(msgspec.Struct, frozen=True):
    """One launch of several: its title, its folder, its number (from 0), and its additional variables."""

    title: str
    folder: Path
    index: int
    env: Mapping[str, str] = msgspec.field(default_factory=dict)


def repeat(request: Request, output: Output, argv: Sequence[str], env: Mapping[str, str], start: StartOnce) -> int:
    """Start the launches one after the other and print their common result; the first failure ends them.

    `start(argv, env)` starts all ranks once and returns their exit code. Returns 0, or the code of the launch that failed.
    Raises UsageError when the folder holds a run or launches already.
    """
    folder, allocation = new_folder(request, env)
    numbers = range(request.launches)
    launches = [PlannedLaunch(f"launch {index + 1} of {request.launches}", folder / f"launch-{index + 1}", index) for index in numbers]
    code = in_turn(launches, output, [*argv, *allocation], env, start)
    _print_all(folder, request.trace, output)
    return code


def new_folder(request: Request, env: Mapping[str, str]) -> tuple[Path, list[str]]:
    """Return the folder for all launches of a command, and the arguments that give them one allocation.

    Raises UsageError for a used folder.
    """
    from collbench.results.folder import run_name

    name = run_name(request.command)
    folder = request.out or Path("runs") / name
    refuse_a_used(folder)
    return folder, [] if request.allocation or env.get("SLURM_JOB_ID") else ["--allocation", name]


def in_turn(launches: Sequence[PlannedLaunch], output: Output, argv: Sequence[str], env: Mapping[str, str], start: StartOnce) -> int:
    """Start the launches one after the other, up to the first failure. Return 0, or its code."""
    code = 0
    launch = launches[0]
    remaining = len(launches)
    try:
        for launch in launches:
            print_lines(launch.title, output)
            remaining -= 1
            code = start([*argv, "--out", str(launch.folder)], {**env, LAUNCH_INDEX: str(launch.index), **launch.env})
            if code:
                break
    except Interrupted as error:  # no supervisor of ranks was running to handle it
        code = error.exit_code
    if code:
        from collbench.launch.supervise import report_error

        report_error(_why_it_ended(code, launch.title, remaining))
    return code


def refuse_a_used(folder: Path) -> None:
    """Raise UsageError for a folder that holds a run or launches already."""
    from collbench.analysis.launches import launch_folders

    names = [name for name in ("run.json", "cells.jsonl") if (folder / name).exists()]
    names += [path.name for path in launch_folders(folder)]
    if names:
        raise UsageError(f"--out {folder} already holds a run ({names[0]}): use a new folder, so that no data is lost")


def _why_it_ended(code: int, title: str, remaining: int) -> str:
    how = {INTERRUPTED: "was interrupted", TERMINATED: "was terminated"}.get(code, f"failed with exit code {code}")
    return f"{title} {how}{f', {remaining} more not started' if remaining else ''}"


def _print_all(folder: Path, trace: Path | None, output: Output) -> None:
    """Print the combined rows, as `collbench report` does, if there are any."""
    from collbench.analysis.launches import launch_folders
    from collbench.report.runs import report_run

    if not launch_folders(folder):
        return
    report_run([folder], None, output.format, sys.stdout, color=output.color, trace=trace, view=output.view, measured=str(folder))
    print_lines(f"folder of the launches: {folder}", output)


def print_lines(sentence: str, output: Output) -> None:
    """Print a sentence to stderr, unless --quiet."""
    if not output.quiet:
        print(sentence, file=sys.stderr, flush=True)


# --gdr-check: interleaved launches with and without GPUDirect RDMA, and what their difference shows.

_WITH = "with-gdr"
_WITHOUT = "without-gdr"


def check(request: Request, output: Output, argv: Sequence[str], env: Mapping[str, str], start: StartOnce) -> int:
    """Start the pairs, print the comparison with and without GPUDirect RDMA, and the verdict. Return 0, or a failed launch's code.

    Raises UsageError for a folder that holds launches already, and for a format that a comparison does not have.
    """
    if output.format == "nccl-tests":
        raise UsageError("--gdr-check prints a comparison, which --format nccl-tests does not support: use table, csv or json")
    if request.trace:
        raise UsageError("--gdr-check has no trace of its own: leave out --trace, then use `collbench report RUN --trace FILE`")
    folder, allocation = new_folder(request, env)
    for side in (_WITH, _WITHOUT):
        refuse_a_used(folder / side)
    launches = _launches(folder, request.launches)
    code = in_turn(launches, output, [*argv, *allocation], env, start)
    if not code:
        _print_verdict(folder, request.launches, output)
    print_lines(f"folder of the launches: {folder}", output)
    return code


def _launches(folder: Path, n: int) -> list[PlannedLaunch]:
    """Return launches in the order A B A B …, so that drift affects both sides alike."""
    sides = {_WITH: {}, _WITHOUT: {GDR_LEVEL: GDR_NEVER}}
    return [
        PlannedLaunch(
            f"launch {index + 1} of {n} {side.replace('-gdr', ' GPUDirect RDMA')}", folder / side / f"launch-{index + 1}", index, more
        )
        for index in range(n)
        for side, more in sides.items()
    ]


def _print_verdict(folder: Path, n: int, output: Output) -> None:
    from collbench.analysis.gdr_check import verdict
    from collbench.report.compare import compare_runs

    compare_runs(folder / _WITH, folder / _WITHOUT, output.format, sys.stdout, color=output.color)
    a, b = ([folder / side / f"launch-{index + 1}" for index in range(n)] for side in (_WITH, _WITHOUT))
    where = sys.stdout if output.format == "table" else sys.stderr
    print(*verdict(a, b), sep="\n", file=where, flush=True)
