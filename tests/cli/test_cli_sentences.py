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
from tests.helpers import Call, said
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
    with redirect_stderr(StringIO()) as err:
        main._code_of(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    return err.getvalue().strip()


# Each ends with exit code 2 before anything starts.
FILES = {
    "two.toml": TWO, "m": "0 60\n8 0\n", "three.txt": "0 1 2\n1 0 2\n1 2 0\n", "negative.txt": "1 -1\n1 1\n", "other.txt": "hello\n",
    "run/run.json": RUN, "run.json": RUN, "empty": "", "binary": "\0\1", "nccl.log": "n1:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB\n",
}  # fmt: skip
WORDS: dict[str, tuple[Call, str]] = {
    "plan of missing backends": (plan_of_missing, "no backend of this command is installed: `collbench backends` shows how to install one"),
    "suite, not valid": (typed("run two.toml", {"two.toml": f"{TWO}[run]\nmax_time = inf\n"}),
        "suite two.toml, [run]: argument --max-time: 'inf' is not a valid time: use seconds, e.g. 5 or 0.5, or a unit, e.g. 500ms, "
        "5s, 2m or 1h (see `collbench run --help`)"),
    "suite, sizes": (typed("run two.toml", {"two.toml": TWO.replace("64", "'1K-'")}),
        "suite two.toml, sweeps[1]: size range '1K-' in '1K-' lacks an end: use e.g. 1K-1G (sizes are positive)"),
    "run folder as the command": (typed("reports/first", {"reports/first/run.json": RUN}),
        "'reports/first' is a file or folder, not a command: use `collbench report reports/first`"),
    "suite as the command": (typed("two.toml", {"two.toml": TWO}),
        "'two.toml' is a file or folder, not a command: use `collbench run two.toml`"),
    "suite, too many combinations": (typed("run two.toml", {"two.toml": MANY}),
        "suite two.toml makes 3,481 combinations of devices, modes, buffers, window, split, traffic, skew, streams, but at most "
        "2,000 are supported: shorten its lists"),
    "suite, other text on a rank": (suites((None, "d"), (None, "d"), (None, "e")),
        "suite two is not the same for all ranks: rank 0 on node0 and rank 2 on node2 read different files: copy one file to all "
        "hosts"),
    "suite, not valid on a rank": (suites((None, "d"), ("suite two.toml cannot be read", "")), "on node1: suite two.toml cannot be read"),
    "suite, not valid on all ranks": (suites(("suite two.toml cannot be read", ""), ("suite two.toml cannot be read", "")),
        "suite two.toml cannot be read"),
    "variable, not valid": (typed("allreduce", COLLBENCH_ITERATIONS="x"),
        "argument -n/--iterations: 'x' is not a whole number from 1 on (see `collbench allreduce --help`)"),
    "backend missing": (unavailable, "backend nccl is not available: cupy is not installed: pip install 'collbench[cuda]'"),
    "processes for GPUs": (advised(replace(SRUN, advice=(RANKS_NOT_ENDED,))),
        "each task of srun is the only one of its node and starts 8 processes, one for each of its GPUs (to avoid this: "
        "--ranks-per-node 1); without srun's --kill-on-bad-exit=1, Slurm does not end the other ranks when one fails (export "
        "SLURM_KILL_BAD_EXIT=1 has the same effect, and removes this note)"),
    "processes for GPUs, a single task": (advised(replace(SRUN, ranks=1, advice=(SINGLE_TASK,))),
        "each task of srun is the only one of its node and starts 8 processes, one for each of its GPUs (to avoid this: "
        "--ranks-per-node 1)"),
    "processes for GPUs, pod": (advised(replace(SRUN, launcher="kubernetes")),
        "each pod starts 8 processes, one for each of its GPUs (to avoid this: --ranks-per-node 1)"),
    "--launches under a launcher": (lambda: request.refuse_launcher(_request("mpi", launches=3), SRUN, {}),
        "--launches 3 is for a start without a launcher, but srun has started the ranks: run the command 3 times in the allocation, "
        "with the same --allocation NAME, then `collbench report RUN…`"),
    "--gdr-check under a launcher": (lambda: request.refuse_launcher(_request("nccl", launches=2, gdr_check=True), SRUN, {}),
        "--gdr-check starts the ranks itself, but srun has already started them: run the command twice in the allocation without it, "
        "the second time with NCCL_NET_GDR_LEVEL=LOC exported, each with its own --out, then `collbench compare A B`"),
    "--gdr-check, both sides alike": (lambda: request.pairs_of_launches(1, {"NCCL_NET_GDR_LEVEL": "LOC"}),
        "--gdr-check sets NCCL_NET_GDR_LEVEL itself, but NCCL_NET_GDR_LEVEL=LOC is exported: unset it, or neither side uses "
        "GPUDirect RDMA"),
    "--gdr-check, format": (lambda: launches.check(_request("nccl"), Output("nccl-tests"), [], {}, lambda argv, env: 0),
        "--gdr-check prints a comparison, which --format nccl-tests does not support: use table, csv or json"),
    "--out holds a launch": (used("old/launch-7/run.json"),
        "--out old already holds a run (launch-7): use a new folder, so that no data is lost"),
    "--out holds a run": (used("old/run.json"), "--out old already holds a run (run.json): use a new folder, so that no data is lost"),
    "launch failed": (lambda: launches._why_it_ended(4, "launch 2 of 3", 1), "launch 2 of 3 failed with exit code 4, 1 more not started"),
    "launch interrupted": (lambda: launches._why_it_ended(INTERRUPTED, "launch 3 of 3", 0), "launch 3 of 3 was interrupted"),
    "launch terminated": (lambda: launches._why_it_ended(TERMINATED, "launch 1 of 3", 2),
        "launch 1 of 3 was terminated, 2 more not started"),
    "nodes, another number of machines": (lambda: repeated([node_from_user(8, UserOverride())] * 2, 3),
        "--from has 2 machines, but --nodes is 3: give one machine for all nodes, or one for each"),
    "nodes, unknown": (lambda: job_on([dgx()], 8, None, "cuda"), "the number of nodes is unknown: add --nodes N"),
    "nodes, uneven": (lambda: job_on([dgx()], 9, 2, "cuda"),
        "9 ranks do not spread evenly over 2 nodes: which links they share is not known"),
    "nodes, too few GPUs": (lambda: job_on([dgx()], 16, 1, "cuda"),
        "hand-made: 8 GPUs, but 16 per node were requested; request fewer, or add a source"),
    "output not written": (no_output,
        "collbench: the output cannot be written (No space left on device): free some space there, or redirect it"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_message(call: Call, text: str) -> None:
    assert said(call) == text


def usage_lines(path: Path) -> list[str]:
    """The command lines of a file of usage errors."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith(" ")]


@pytest.mark.parametrize("path", USAGE_ERRORS, ids=lambda path: path.parent.name)
def test_the_words_of_usage_errors(path: Path) -> None:
    text = "".join(f"{line}\n    {said(typed(line, FILES))}\n\n" for line in usage_lines(path))
    if os.environ.get("COLLBENCH_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
