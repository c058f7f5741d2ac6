"""--launches N: the same command started N times on this host, each with a run folder of its own, and one table of all."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.errors import INTERRUPTED, TERMINATED, UsageError
from collbench.launch.supervise import say
from collbench.launch.variables import number

if TYPE_CHECKING:
    from collbench.launch.info import LaunchInfo
    from collbench.runner.request import Request

_INDEX = "COLLBENCH_LAUNCH_INDEX"  # from 0; set for the ranks that `repeat` starts, and for nobody else
Start = Callable[[Sequence[str], Mapping[str, str]], int]


def placed(request: Request, info: LaunchInfo, env: Mapping[str, str]) -> Request:
    """The request with this launch's index. Raises UsageError for several launches under a launcher: it has started one only."""
    if request.launches == 1:
        return request
    if info.launcher == "local" and _INDEX in env:
        return replace(request, launch_index=number(env, _INDEX))
    refusal = UsageError(
        f"--launches {request.launches} is for a start without a launcher, but {info.launcher} has started the ranks once: start the "
        f"command {request.launches} times in the allocation, with the same --allocation NAME, then `collbench report RUN…`"
    )
    refusal.said = info.rank > 0  # type: ignore[attr-defined]  # rank 0 speaks for all
    raise refusal


def repeat(request: Request, arguments: argparse.Namespace, argv: Sequence[str], env: Mapping[str, str], start: Start) -> int:
    """Starts the launches one after the other and prints what they say together; the first failure ends them.

    `start(argv, env)` starts all ranks once and returns their exit code. Returns 0, or the code of the launch that failed.
    Raises UsageError when the folder holds a run or launches already.
    """
    from collbench.results.folder import run_name

    name = run_name(request.command)
    folder = request.out or Path("runs") / name
    _refuse_a_used_folder(folder)
    allocation = [] if request.allocation or env.get("SLURM_JOB_ID") else ["--allocation", name]
    code, index = 0, 0
    try:
        for index in range(request.launches):
            _talk(f"launch {index + 1} of {request.launches}", arguments)
            code = start([*argv, *allocation, "--out", str(folder / f"launch-{index + 1}")], {**env, _INDEX: str(index)})
            if code:
                break
    except KeyboardInterrupt:  # while no ranks' supervisor was there to take it
        code = INTERRUPTED
    if code:
        say(_why_it_ended(code, index, request.launches))
    _print_all(folder, arguments)
    return code


def _refuse_a_used_folder(folder: Path) -> None:
    from collbench.analysis.combine import launch_folders

    held = [name for name in ("run.json", "cells.jsonl") if (folder / name).exists()] or [path.name for path in launch_folders(folder)]
    if held:
        raise UsageError(f"--out {folder} already holds a run ({held[0]}): choose a new folder, so that nothing is lost")


def _why_it_ended(code: int, index: int, launches: int) -> str:
    how = {INTERRUPTED: "was interrupted", TERMINATED: "was terminated"}.get(code, f"failed with exit code {code}")
    rest = launches - index - 1
    return f"launch {index + 1} of {launches} {how}{f', {rest} more not started' if rest else ''}"


def _print_all(folder: Path, arguments: argparse.Namespace) -> None:
    """The combined rows, as `collbench report` prints them, if there are any."""
    from collbench.analysis.combine import launch_folders
    from collbench.report.summary import report_run

    if not launch_folders(folder):
        return
    report_run([folder], None, arguments.format, sys.stdout, color=arguments.color)
    _talk(f"folder of the launches: {folder}", arguments)


def _talk(sentence: str, arguments: argparse.Namespace) -> None:
    if not arguments.quiet:
        print(sentence, file=sys.stderr, flush=True)
