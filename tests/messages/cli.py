"""Usage errors of the command line, each with the command line that ends so, and the few that depend on the ranks of a launch."""

from __future__ import annotations

import errno
import os
import shlex
from argparse import Namespace
from collections.abc import Mapping
from contextlib import chdir, redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from collbench.backends.backend import Unavailable
from collbench.cli import dry_run, launches, main, request, start
from collbench.errors import INTERRUPTED, TERMINATED
from collbench.launch.advice import RanksNotEnded
from collbench.launch.info import LaunchInfo
from collbench.machine.peak.job import job_on, repeated
from collbench.machine.peak.node import UserOverride, node_from_user
from collbench.measuring.request import Request
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.sweep import CPU, Sweep
from tests.cli.command import environment
from tests.machine.machines import dgx
from tests.messages import Message

SRUN = LaunchInfo("srun", 0, 4, 0, 1, "tcp://n1", "slurm:c:8.0")
TWO = "schema = 1\n[[sweeps]]\noperations = 'allreduce'\nsizes = 64\n"
MANY = f"schema = 1\n[[sweeps]]\noperations = ['p2p_bandwidth']\nwindow = {[*range(1, 60)]}\nstreams = {[*range(1, 60)]}\n"
RUN = '{"schema": 1}'


def typed(line: str, files: Mapping[str, str] | None = None, **env: str) -> Message:
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


def suites(*read: tuple[str | None, str]) -> Message:
    """Ranks that report what is wrong with their suite, or None, and its digest."""
    world = SimpleNamespace(
        allgather=lambda mine, what: [[wrong, digest, "two"] for wrong, digest in read],
        members=[SimpleNamespace(host=f"node{rank}") for rank in range(len(read))],
    )
    return lambda: start.compare(world, None)  # type: ignore[arg-type]


def unavailable() -> None:
    missing = Unavailable("cupy is not installed", "pip install 'collbench[cuda]'")
    with patch("collbench.backends.registry.backend_class", lambda name: SimpleNamespace(probe=lambda: missing)):
        start.check_installed(_request("nccl"))


def advised(info: LaunchInfo) -> Message:
    return lambda: "; ".join(each.render() for each in request.with_ranks(info, 8).advice)


def used(file: str) -> Message:
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
        dry_run.plan(_request(), 2)


def no_output() -> str:
    with redirect_stderr(StringIO()) as err:
        main._code_of(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    return err.getvalue().strip()


# Each ends with exit code 2 before anything starts.
LINES = """\
allredcue
allreduce --size 8
allreduce --backend nccl2
allreduce --backend ,
allreduce --dtype float12
allreduce --redop mean
allreduce --sizes 1K-
allreduce --sizes -5
allreduce --sizes=-5
allreduce --sizes 0
allreduce --sizes 1Q
allreduce --sizes 1G-1K
allreduce --sizes 1K:x1
allreduce --sizes 1K-1M:x1
allreduce --sizes ''
allreduce -b ''
allreduce -b 2K -e 1K
allreduce -b 8 --sizes 8
allreduce -f 2 -i 8
broadcast --root 2 --ranks 2
broadcast --root -1
broadcast --root 1 --backend simulated --ranks 1
allreduce --ranks 0
allreduce --max-time 0
allreduce --max-time inf
allreduce --max-time 5d
allreduce --ranks ４
allreduce --sizes ８K
report-this
allreduce -t 4
allreduce -m 8:1M
allreduce -N 0
allreduce -a 1
allreduce -K 3
allreduce -z 1
allreduce -y 1
allreduce -G x
allreduce -C 1
allreduce -R 3
allreduce -x 1
allreduce -D 1
allreduce -V 16
allreduce -S 1
allreduce -J a.json
allreduce -T x
allreduce -M 1
allreduce -u 4
allreduce --timeout -1
allreduce --precision x
allreduce -n 0
p2p --window 0
report
report nowhere
allreduce -f 1
allreduce --algorithms rong
allreduce --protocols ll256
allreduce --registration yes
allreduce --backend mpi --algorithms ring
p2p --backend simulated --registration none
allreduce --backend mpi,gloo -g 2
allreduce --backend gloo --gdr-check
allreduce -g 0
allreduce --telemetry 50
zzzz
--ranks 2 allreduce
barrier --sizes 8
allreduce --root 1
allreduce --dry-run --format nccl-tests
p2p --split 'MOD 2'
allreduce --iter 3
allreduce --frob
run quick full
run quik
run quick --dry-run --format nccl-tests
run quick --skew 2
allreduce --split 'XOR 2'
allreduce --split 'MOD 0'
allreduce --ranks 4 --split 'DIV 3'
alltoallv --traffic nowhere
p2p --streams 65
p2p --backend simulated --streams 2
alltoallv --skew 0.5
alltoallv --skew 4 --ranks 2 --backend simulated
alltoallv --skew 2 --traffic m
allreduce --oversubscription 0.5
allreduce --resume run --out other
allreduce --resume run --launches 2
allreduce --resume run --gdr-check
allreduce --resume-if-exists
allreduce --out run --resume-if-exists --launches 2
completion tcsh
probe --from nowhere.xml
probe --from empty --gather x.tar
doctor --launch --from .
doctor --log nothing
explain CB1
compare a
compare a a
compare run nowhere
compare a b --margin 0
compare a b --margin some
baseline add base nowhere
baseline show nowhere
baseline diff base a b c
history nowhere
gate --baseline nowhere run
gate --self-test run
gate --self-test --format github
gate --self-test --baseline base --noise drift
gate --self-test --paired --allocations 6
gate --self-test --allocations 3
gate --self-test --trials 99999999
gate --self-test --noise nowhere.toml
gate --baseline base --expect none.toml run
gate --baseline base --junit - run
gate --baseline base --exit-style nagios --format json run
gate --verdict none.json
gate --verdict none.json --html page.html
gate --verdict none.json --confirm-suite c.toml
gate --verdict none.json --min-percent ring:80@64M-
gate --paired a b c
peak allsum
peak allreduce --nic=-4x100Gb
peak allreduce --nvlink 1e18
peak allreduce
peak allreduce --measured nan
peak allreduce --ceiling 0
peak allreduce --nodes 1000000000000
peak allreduce --nodes 4 --gpus-per-node 4 --nvlink 900 --nvlink-domain 70
peak allreduce --nodes 4 --gpus-per-node 4 --pcie gen5x16 --nvlink-domain 8
peak allreduce --pcie gen9x16
report run --verdict verdict.json
report
runs
run nix
run two.toml --sizes x
run two.toml --backend mpx
run two.toml --backend simulated --root 1
allreduce --total-time 0
allreduce --launches 0
run
run quick --full
report run --format yaml
report run --html -
report run --csv --markdown
report run --html
runs run
peak allreduce --nic 4x1000000000000000000Gb
peak allreduce --nodes 0
peak allreduce --oversubscription 0.5
probe --from empty
probe --from binary
probe --from /dev/zero
probe --from nccl.log
probe --from
probe --gather machine.zip
probe --timeout 0
doctor --launch --log nccl.log
doctor --launch --since run.json
broadcast --backend simulated --ranks 4 --split 'MOD 8'
broadcast --backend simulated --ranks 4 --split 'DIV 2' --root 2
alltoallv --skew x
alltoallv --backend simulated --traffic three.txt --ranks 2
alltoallv --backend simulated --traffic negative.txt
gate --self-test --seed -1
gate --self-test --noise calm
gate --self-test --baseline nowhere
"""
FILES = {
    "two.toml": TWO, "m": "0 60\n8 0\n", "three.txt": "0 1 2\n1 0 2\n1 2 0\n", "negative.txt": "1 -1\n1 1\n", "other.txt": "hello\n",
    "run/run.json": RUN, "run.json": RUN, "empty": "", "binary": "\0\1", "nccl.log": "n1:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB\n",
}  # fmt: skip
MESSAGES: dict[str, Message] = {
    **{line: typed(line, FILES) for line in LINES.splitlines()},
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
    "processes for GPUs": advised(replace(SRUN, advice=(RanksNotEnded(),))),
    "processes for GPUs, pod": advised(replace(SRUN, launcher="kubernetes")),
    "--launches under a launcher": lambda: launches.placed(_request("mpi", launches=3), SRUN, {}),
    "--gdr-check under a launcher": lambda: launches.placed(_request("nccl", launches=2), SRUN, {}, launches.BY_HAND),
    "--gdr-check, both sides alike": lambda: launches.pairs(1, {"NCCL_NET_GDR_LEVEL": "LOC"}),
    "--gdr-check, format": lambda: launches.check(_request("nccl"), Namespace(format="nccl-tests"), [], {}, lambda argv, env: 0),
    "--out holds a launch": used("old/launch-7/run.json"),
    "--out holds a run": used("old/run.json"),
    "launch failed": lambda: launches._why_it_ended(4, "launch 2 of 3", 1),
    "launch interrupted": lambda: launches._why_it_ended(INTERRUPTED, "launch 3 of 3", 0),
    "launch terminated": lambda: launches._why_it_ended(TERMINATED, "launch 1 of 3", 2),
    "nodes, another number of machines": lambda: repeated([node_from_user(8, UserOverride())] * 2, 3),
    "nodes, unknown": lambda: job_on([dgx()], 8, None, "cuda"),
    "nodes, uneven": lambda: job_on([dgx()], 9, 2, "cuda"),
    "nodes, too few GPUs": lambda: job_on([dgx()], 16, 1, "cuda"),
    "output not written": no_output,
}
