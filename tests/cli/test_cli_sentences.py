"""Usage errors of the command line, each with the command line that ends so, and the few that depend on the ranks of a launch."""

import errno
import os
import shlex
from collections.abc import Mapping
from contextlib import chdir, redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from collbench.backends.backend import Unavailable
from collbench.cli import early, launches, main, request, start
from collbench.errors import INTERRUPTED, TERMINATED
from collbench.launch.info import LaunchInfo
from collbench.launch.slurm import RANKS_NOT_ENDED, SINGLE_TASK
from collbench.machine.peak.job import job_on, repeated
from collbench.machine.peak.node import UserOverride, node_from_user
from collbench.measuring.request import Placement, Request, TaskRequest
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.sweep import CPU, Sweep
from collbench.report.progress import Output
from tests.cli.command import environment
from tests.helpers import SENTENCES, Call, check_sentences, said
from tests.machine.machines import dgx

TESTS = Path(__file__).parents[1]
# Each has command lines that end with a usage error, and below each of them its sentence; plug-ins have files of their own.
USAGE_ERRORS = (TESTS / "golden/usage_errors.txt", *sorted(TESTS.glob("plugins/*/usage_errors.txt")))
SRUN = LaunchInfo("srun", 0, 4, 0, 1, "tcp://n1", "slurm:c:8.0")
TWO = "schema = 1\n[[sweeps]]\noperations = 'allreduce'\nsizes = 64\n"
MANY = f"schema = 1\n[[sweeps]]\noperations = ['p2p_bandwidth']\nwindow = {[*range(1, 60)]}\nstreams = {[*range(1, 60)]}\n"
RUN = '{"schema": 1}'


def typed(line: str, files: Mapping[str, str] | None = None, **env: str) -> Call:
    """The error of `collbench LINE` in a folder with these files, before anything starts."""

    def run() -> object:
        with TemporaryDirectory() as folder, chdir(folder), patch.dict(os.environ, environment(env), clear=True):
            for name, text in (files or {}).items():
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).write_text(text, encoding="utf-8")
            return main.run(shlex.split(line))

    return run


def _request(*backends: str, **more: Any) -> Request:
    sweep = Sweep((ALLREDUCE,), None, (), defaults=lambda name: CPU)
    return Request("allreduce", sweep, backends, frozenset(backends), **more)


def suites(*read: tuple[str | None, str]) -> Call:
    """Ranks that report what is wrong with their suite, or None, and its digest."""
    world = SimpleNamespace(
        allgather=lambda mine, what: [[wrong, digest, "two"] for wrong, digest in read],
        members=[SimpleNamespace(host=f"node{rank}") for rank in range(len(read))],
    )
    return lambda: start.compare(world, None)  # type: ignore[arg-type]


def unavailable() -> None:
    missing = Unavailable("cupy is not installed", "pip install 'collbench[cuda]'")
    with patch("collbench.backends.registry.backend_class", lambda name: SimpleNamespace(probe=lambda: missing)):
        _request("nccl").check_installed()


def advised(info: LaunchInfo) -> Call:
    return lambda: "; ".join(request.with_ranks(info, 8).advice)


def used(file: str) -> Call:
    """The refusal of a folder `old` that has this file."""

    def run() -> None:
        with TemporaryDirectory() as folder, chdir(folder):
            Path(file).parent.mkdir(parents=True)
            Path(file).touch()
            launches.refuse_a_used(Path("old"))

    return run


def plan_of_missing() -> None:
    missing = Unavailable("torch is not installed", "pip install 'collbench[torch]'")
    with patch("collbench.backends.registry.backend_class", lambda name: SimpleNamespace(probe=lambda: missing)):
        early.plan_cases(TaskRequest(_request()), Placement(2, (0, 0), ("a",)))


def no_output() -> str:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with redirect_stderr(StringIO()) as err, patch.object(main, "run", side_effect=full), patch.object(main.signals, "handle"):
        main.guarded(["backends"])
    return err.getvalue().strip()


def ended(index: int, code: int) -> str:
    """What is printed when this one of three launches ends with the code."""
    planned = [launches.PlannedLaunch(f"launch {number + 1} of 3", Path("x"), number) for number in range(3)]
    with redirect_stderr(StringIO()) as err:
        launches.in_turn(planned, Output("json", quiet=True), [], {}, lambda argv, env: code * (env[request.LAUNCH_INDEX] == str(index)))
    return err.getvalue().strip()


# Each ends with exit code 2 before anything starts.
FILES = {
    "two.toml": TWO, "m": "0 60\n8 0\n", "three.txt": "0 1 2\n1 0 2\n1 2 0\n", "negative.txt": "1 -1\n1 1\n", "other.txt": "hello\n",
    "run/run.json": RUN, "run.json": RUN, "empty": "", "binary": "\0\1", "nccl.log": "n1:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB\n",
}  # fmt: skip
WORDS: dict[str, Call] = {
    "plan of missing backends": plan_of_missing,
    "suite, not valid": typed("run two.toml", {"two.toml": f"{TWO}[run]\nmax_time = inf\n"}),
    "suite, sizes": typed("run two.toml", {"two.toml": TWO.replace("64", "'1K-'")}),
    "run folder as the command": typed("reports/first", {"reports/first/run.json": RUN}),
    "suite as the command": typed("two.toml", {"two.toml": TWO}),
    "suite, too many combinations": typed("run two.toml", {"two.toml": MANY}),
    "suite, other text on a rank": suites((None, "d"), (None, "d"), (None, "e")),
    "suite, not valid on a rank": suites((None, "d"), ("suite two.toml cannot be read", "")),
    "suite, not valid on all ranks": suites(("suite two.toml cannot be read", ""), ("suite two.toml cannot be read", "")),
    "variable, not valid": typed("allreduce", COLLBENCH_ITERATIONS="x"),
    "backend missing": unavailable,
    "processes for GPUs": advised(replace(SRUN, advice=(RANKS_NOT_ENDED,))),
    "processes for GPUs, a single task": advised(replace(SRUN, ranks=1, advice=(SINGLE_TASK,))),
    "processes for GPUs, pod": advised(replace(SRUN, launcher="kubernetes")),
    "--launches under a launcher": lambda: request.refuse_launcher(_request("mpi", launches=3), SRUN, {}),
    "--gdr-check under a launcher": lambda: request.refuse_launcher(_request("nccl", launches=2, gdr_check=True), SRUN, {}),
    "--gdr-check, both sides alike": lambda: request.pairs_of_launches(1, {"NCCL_NET_GDR_LEVEL": "LOC"}),
    "--gdr-check, format": lambda: launches.check(_request("nccl"), Output("nccl-tests"), [], {}, lambda argv, env: 0),
    "--out holds a launch": used("old/launch-7/run.json"),
    "--out holds a run": used("old/run.json"),
    "launch failed": lambda: ended(1, 4),
    "launch interrupted": lambda: ended(2, INTERRUPTED),
    "launch terminated": lambda: ended(0, TERMINATED),
    "nodes, another number of machines": lambda: repeated([node_from_user(8, UserOverride())] * 2, 3),
    "nodes, unknown": lambda: job_on([dgx()], 8, None, "cuda"),
    "nodes, uneven": lambda: job_on([dgx()], 9, 2, "cuda"),
    "nodes, too few GPUs": lambda: job_on([dgx()], 16, 1, "cuda"),
    "output not written": no_output,
}


def test_the_words_of_messages() -> None:
    check_sentences(SENTENCES / "cli.txt", WORDS)


def usage_lines(path: Path) -> list[str]:
    """The command lines of a file of usage errors."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith(" ")]


@pytest.mark.parametrize("path", USAGE_ERRORS, ids=lambda path: path.parent.name)
def test_the_words_of_usage_errors(path: Path) -> None:
    text = "".join(f"{line}\n    {said(typed(line, FILES))}\n\n" for line in usage_lines(path))
    if os.environ.get("COLLBENCH_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
