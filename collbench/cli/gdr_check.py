"""--gdr-check: launches with and without GPUDirect RDMA in turns, and what the difference says of the path."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.cli.launches import One, Start, in_turn, new_folder, refuse_a_used, talk
from collbench.errors import UsageError

if TYPE_CHECKING:
    from collbench.measure.request import Request

_LEVEL, _NEVER = "NCCL_NET_GDR_LEVEL", "LOC"  # NCCL user guide: LOC never uses GPUDirect RDMA
_WITH, _WITHOUT = "with-gdr", "without-gdr"
BY_HAND = (
    "--gdr-check starts the ranks itself, but {launcher} has started them already: "
    f"run the command twice in the allocation without it, the second time with {_LEVEL}={_NEVER} exported, "
    "each with an --out of its own, then `collbench compare A B`"
)


def pairs(launches: int, env: Mapping[str, str]) -> int:
    """How many pairs of launches: two at least, else no interval is over launches. Raises UsageError where both sides would be alike."""
    if env.get(_LEVEL, "").strip().upper() in (_NEVER, "0") and "COLLBENCH_LOCAL" not in env:
        raise UsageError(f"--gdr-check sets {_LEVEL} itself, but {_LEVEL}={env[_LEVEL]} is exported: unset it, else both sides are without")
    return max(2, launches)


def check(request: Request, arguments: argparse.Namespace, argv: Sequence[str], env: Mapping[str, str], start: Start) -> int:
    """Starts the pairs, prints how the side without compares with the one with it, and the verdict. Returns 0, or a failed launch's code.

    Raises UsageError for a folder that holds launches already, and for a format that a comparison does not have.
    """
    if arguments.format == "nccl-tests":
        raise UsageError("--gdr-check prints a comparison, which has no --format nccl-tests: choose table, csv or json")
    folder, allocation = new_folder(request, env)
    for side in (_WITH, _WITHOUT):
        refuse_a_used(folder / side)
    launches = _launches(folder, request.launches)
    code = in_turn(launches, arguments, [*argv, *allocation], env, start)
    if not code:
        _say_verdict(folder, request.launches, arguments)
    talk(f"folder of the launches: {folder}", arguments)
    return code


def _launches(folder: Path, n: int) -> list[One]:
    """A B A B …: what drifts meanwhile hits both sides alike."""
    sides = {_WITH: {}, _WITHOUT: {_LEVEL: _NEVER}}
    return [
        One(f"launch {index + 1} of {n} {side.replace('-gdr', ' GPUDirect RDMA')}", folder / side / f"launch-{index + 1}", index, more)
        for index in range(n)
        for side, more in sides.items()
    ]


def _say_verdict(folder: Path, n: int, arguments: argparse.Namespace) -> None:
    from collbench.analysis.gdr_check import verdict
    from collbench.report.compare import compare_runs

    compare_runs(folder / _WITH, folder / _WITHOUT, arguments.format, sys.stdout, color=arguments.color)
    a, b = ([folder / side / f"launch-{index + 1}" for index in range(n)] for side in (_WITH, _WITHOUT))
    where = sys.stdout if arguments.format == "table" else sys.stderr
    print(*verdict(a, b), sep="\n", file=where, flush=True)
