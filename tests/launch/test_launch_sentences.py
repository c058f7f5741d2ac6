"""Launches: variables of launchers that are not valid, starts that this host cannot make, MPI libraries, and `doctor --launch`."""

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager, redirect_stderr
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from collbench.control import addresses
from collbench.launch import explain, shared_memory, slurm, software, spawn
from collbench.launch.detect import LocalRequest, detect, refusal_torchrun
from collbench.launch.explain import Explanation, HostName, LauncherProgram, MpiLibrary, library, name_problem, places, typed, with_hosts
from collbench.launch.info import LaunchInfo
from collbench.launch.limits import refuse_few_files
from collbench.launch.mpi import crash_in_opening, initialise, mpi_mismatch, size_disagrees, start_failure, with_meeting
from collbench.launch.network import loopback_down
from collbench.launch.spawn import default_ranks, exit_meaning, mpiexec_family, node_workers, start_local
from collbench.launch.supervise import SupervisedProcess, Supervisor
from tests.helpers import SENTENCES, check_sentences
from tests.launch import captured
from tests.launch.captured import MPICH, OPEN_MPI

pytestmark = pytest.mark.contract

POD = {"JOB_COMPLETION_INDEX": "1", "COLLBENCH_PODS": "3", "MASTER_ADDR": "bench-0.bench", "COLLBENCH_SECRET": "x"}
LOCAL = {"COLLBENCH_LOCAL": "/tmp/c", "COLLBENCH_RANKS": "2", "COLLBENCH_RANK": "1"}
TASK = LaunchInfo("srun", 0, 3, 0, 1, "tcp://n1", "slurm:c:8.0", mpi="pmi")
ALLREDUCE = LocalRequest(command=("collbench", "allreduce", "--sizes", "8,1 K"))
SRUN = LauncherProgram("srun", Path("/usr/bin/srun"), "Slurm", "23.11.4", plugins=("none", "pmi2"))
MPIRUN = LauncherProgram("mpirun", Path("/opt/openmpi/bin/mpirun"), "Open MPI", "5.0.11", "pmix")
OTHER_MPIEXEC = LauncherProgram("mpiexec", Path("/b/mpiexec"), "MPICH", "5", "pmi", first=False)
LOADED, LOADED_OPEN_MPI = MpiLibrary(MPICH, "/site/libmpi.so", "4.1.2"), MpiLibrary(OPEN_MPI, "/site/libmpi.so", "4.1.2")
LOOPBACK = {**captured.SRUN_NONE, "SLURMD_NODENAME": "n2", "MASTER_ADDR": "127.0.0.1"}
EMITTING = patch.object(explain, "plugin_commands", lambda: {"emit": ""})  # with the plug-in that writes jobs


@contextmanager
def on(host="n1", names=None):
    """A host of this name that resolves these names: all to 10.0.0.1 if there are none."""
    with ExitStack() as stack:
        for module in (slurm, explain):
            stack.enter_context(patch.object(module, "resolve", lambda name: ("10.0.0.1",) if names is None else names.get(name, ())))
        stack.enter_context(patch.object(subprocess, "run", captured.scontrol({})))
        stack.enter_context(patch.object(slurm, "ancestors", lambda: ()))
        stack.enter_context(patch.object(slurm.socket, "gethostname", lambda: host))
        stack.enter_context(patch.object(sys, "prefix", "/nowhere"))
        yield


def found(env, *, without="", host="n1", names=None, request=None, **changes):
    with on(host, names):
        return detect({name: value for name, value in {**env, **changes}.items() if name != without}, request)


def advice(env):
    return "; ".join(found(env).advice)


def mismatch(version, env, **changes):
    with on():
        return mpi_mismatch(version, replace(detect(env), **changes), env)


def reported(by, *arguments):
    with redirect_stderr(StringIO()) as err:
        by(*arguments)
    return err.getvalue().strip()


def ended_by(stage):
    """Of the parent, for a rank 0 that was killed before (`stage` "") or after it had stored where its run is."""
    with TemporaryDirectory() as folder:
        if stage:
            Path(folder, "run-0").write_text(stage, encoding="utf-8")
        return reported(spawn._report_for_rank_0, signal.SIGTERM, Path(folder))


def killed_child():
    child = SupervisedProcess("rank 1", ["sh", "-c", "kill -9 $$"], dict(os.environ))
    return re.sub(r"pid \d+", "pid 4711", reported(Supervisor([child]).run))


def late_child():
    supervisor = Supervisor([SimpleNamespace(name="rank 0", alive=True, kill=lambda: None)], grace_s=4)
    supervisor._stage = 2
    supervisor._kill()


def missing_rank():
    """Start two ranks, of which mpiexec starts only one."""
    with TemporaryDirectory() as folder:
        mpiexec = Path(folder, "mpiexec")
        mpiexec.write_text('#!/bin/sh\n[ -z "$COLLBENCH_LOCAL" ] || printf 0 >"$COLLBENCH_LOCAL/exit-0"\n', encoding="utf-8")
        mpiexec.chmod(0o755)
        start_local([], 2, mpiexec=mpiexec, env=dict(os.environ))


def pod_never_resolves():
    from collbench.control.world import World

    info = detect({**POD, "MASTER_ADDR": "no.such.host.invalid", "COLLBENCH_SECRET": "x" * 32})
    with patch.object(addresses, "resolve", lambda host: ()):
        World(info, 0.01)


MPICH_STACK = """Other MPI error, error stack:
MPID_Init(549)............:
MPIDI_UCX_init_local(240).:  ucx function returned with failed status(ucx_init.c 240 MPIDI_UCX_init_local No such device)
"""


def failed_start(text, env):
    with patch.dict(os.environ, env, clear=True), patch.object(shared_memory, "shortage", lambda: ""):
        return start_failure("MPICH 5.0.2", 17, text)


def few_files():
    with patch("collbench.launch.limits.resource.getrlimit", lambda _: (20, 20)):
        refuse_few_files(4, "--ranks", ["mpi", "gloo"], lambda name: True)


def without_loopback():
    with patch("collbench.launch.network.is_loopback_up", lambda: False):
        return loopback_down("n2")


def failing_init():
    mpi = SimpleNamespace(
        Is_initialized=lambda: False, Get_library_version=lambda: "Intel(R) MPI Library 2021.10", THREAD_SINGLE=0, __file__="libmpi.so",
        Get_error_string=lambda code: "MPI_ERR_OTHER: known error",
    )  # fmt: skip
    with patch("collbench.launch.mpi.ctypes.CDLL", lambda file: SimpleNamespace(MPI_Init_thread=lambda *_: 15)), patch.dict(os.environ):
        initialise(mpi)


def meeting_without_mpi(error):
    with patch("collbench.launch.mpi.load", side_effect=error), patch("collbench.launch.mpi.socket.gethostname", lambda: "n1"):
        with_meeting(detect(captured.PRTE))


def loaded_without(version, error=""):
    """The problem of an mpi4py that loads no library; version None: it is not installed."""
    done = SimpleNamespace(stdout="", stderr=error, returncode=1)
    with patch.object(explain, "version_of", lambda name: version or ""), patch.object(explain.subprocess, "run", lambda *_, **__: done):
        return library({}).problem


def shell(env):
    with on():
        return "\n".join(places(env, explain.launch_of(env)[0]))


def commands(env, loaded, *programs, serves=True):
    with on(), patch.object(explain, "_program", lambda env: ["collbench"]), EMITTING:
        lines = typed(env, explain.launch_of(env)[0], loaded, programs, serves=serves)
        return "\n".join(f"{each.purpose}: {each.line}" for each in lines)


def mixed(loaded, *programs):
    """The problems of launchers in PATH where mpi4py loads this library."""
    known = {"launchers": lambda env: programs, "library": lambda env: loaded, "host_names": lambda env: (host("n1", "10.0.0.1"),)}
    with on(), patch.multiple(explain, **known, missing_interface=lambda env: None, loopback_down=lambda: ""), EMITTING:
        return "\n".join(problem.what for problem in explain.explained({}).problems)


def of_names(kind, *hosts, used=()):
    return name_problem(kind, *hosts, used=used).what


def problems(*hosts, silent=0):
    empty = Explanation((), (), MpiLibrary(), (), (), ())
    return "\n".join(f"{each.severity}: {each.what}" for each in with_hosts(empty, hosts, silent).problems)


def host(name, *at):
    return HostName(name, at, tuple(address for address in at if not address.startswith("127.")))


OLD, NEW = software.Build(1, "0.1.0", "abc"), software.Build(2, "0.2.0", "def")
IPV6 = tuple(host(f"n{i}", f"fd00::{i}") for i in range(6))
WORDS = {
    "software": lambda: software.difference("python", {"3.11.2": ["n1", "n2"], "missing": ["n3"]}),
    "variable, not a number": partial(found, captured.TORCHRUN, RANK="foo"),
    "variable, not below the size": partial(found, captured.TORCHRUN, RANK="2"),
    "variable, local ranks": partial(found, captured.HYDRA, MPI_LOCALRANKID="5"),
    "variable, port": partial(found, captured.KUBERNETES, MASTER_PORT="70000"),
    "local, without a rank": partial(found, LOCAL, without="COLLBENCH_RANK"),
    "worker, not valid": partial(found, {"COLLBENCH_WORKER": "{}"}),
    "ranks under a launcher": partial(found, captured.HYDRA, request=LocalRequest(ranks=2)),
    "torchrun, two rank 0": partial(found, {**captured.PRTE, **captured.KUBERNETES}, RANK="0", WORLD_SIZE="1"),
    "torchrun, restarted": lambda: refusal_torchrun("2"),
    "MPI, no library for the meeting": partial(
        meeting_without_mpi, RuntimeError("cannot load MPI library\n libmpi.so: no such file\nthird")
    ),
    "MPI, no mpi4py for the meeting": partial(meeting_without_mpi, ModuleNotFoundError("No module named 'mpi4py'")),
    "PMIx without a size": partial(found, {"PMIX_RANK": "0", "PMIX_NAMESPACE": "x"}),
    "slurm, no step": partial(found, captured.SBATCH, request=ALLREDUCE),
    "slurm, step number": partial(found, captured.SRUN_NONE, SLURM_STEP_ID="x"),
    "slurm, host list": partial(found, captured.SRUN_NONE, SLURM_STEP_NODELIST="n[1-"),
    "slurm, empty host list": partial(found, captured.SRUN_NONE, SLURM_STEP_NODELIST=""),
    "slurm, tasks per node": partial(found, captured.SRUN_NONE, SLURM_STEP_TASKS_PER_NODE="2"),
    "slurm, local task": partial(found, captured.SRUN_NONE, SLURM_LOCALID="7"),
    "slurm, arbitrary distribution": partial(found, captured.SRUN_NONE, SLURM_DISTRIBUTION="arbitrary"),
    "slurm, first node does not resolve": partial(found, captured.SRUN_NONE, host="n2", names={}),
    "slurm, loopback address": partial(found, LOOPBACK, host="n2", names={"127.0.0.1": ("127.0.0.1",)}),
    "slurm, first node at loopback": partial(found, captured.SRUN_NONE, host="n2", names={"n1": ("127.0.1.1",)}, SLURMD_NODENAME="n2"),
    "slurm, advice": partial(advice, captured.SRUN_NONE),
    "slurm, advice for one task": partial(advice, captured.SRUN_ONE),
    "pod, alone": partial(found, {"JOB_COMPLETION_INDEX": "0"}),
    "pod, without the number of pods": partial(found, POD, without="COLLBENCH_PODS"),
    "pod, without an index": partial(found, POD, without="JOB_COMPLETION_INDEX"),
    "pod, without a secret": partial(found, POD, without="COLLBENCH_SECRET"),
    "pod, port": partial(found, POD, PET_NODE_RANK="0", PET_NNODES="2", PET_MASTER_ADDR="t-0", PET_MASTER_PORT="70000"),
    "pod, rank 0 does not resolve": pod_never_resolves,
    "start, no ranks": lambda: start_local([], 0, env={}),
    "start, mpiexec does not run": lambda: mpiexec_family(Path("/nowhere/mpiexec")),
    "start, no program": lambda: start_local([], 2, env={}, program=["/nowhere/python"]),
    "workers, none": lambda: node_workers(TASK, 0, [], {}),
    "workers, several tasks": lambda: node_workers(replace(TASK, local_ranks=2), 2, [], {}),
    "workers, no address": lambda: node_workers(replace(TASK, launcher="mpirun", meeting="mpi"), 2, [], {}),
    "GPUs, too few": lambda: default_ranks(1, 2),
    "GPUs, none": lambda: default_ranks(0, 2),
    "GPUs, some idle": lambda: default_ranks(8, 3),
    "end, killed rank": lambda: exit_meaning(137, "Open MPI", "rank 1 (pid 4711)"),
    "end, rank ended": lambda: exit_meaning(143, "MPICH", "rank 1 (pid 4711)"),
    "end, mpiexec failed": lambda: exit_meaning(213, "MPICH"),
    "end, while opening": lambda: str(crash_in_opening("gloo", exit_meaning(7, "MPICH"), "")),
    "lo is down": without_loopback,
    "limit, open files": few_files,
    "end, killed child": killed_child,
    "end, late child": partial(reported, late_child),
    "end, interrupted": partial(ended_by, "runs/x"),
    "end, interrupted before a run": partial(ended_by, ""),
    "end, missing ranks": partial(reported, missing_rank),
    "MPI, srun without MPI": partial(mismatch, MPICH, captured.SRUN_NONE),
    "MPI, srun of PMIx": partial(mismatch, MPICH, captured.SRUN_PMIX),
    "MPI, srun of PMI-2": partial(mismatch, OPEN_MPI, captured.SRUN_PMI2),
    "MPI, another mpirun": partial(mismatch, MPICH, captured.PRTE),
    "MPI, torchrun": partial(mismatch, OPEN_MPI, captured.TORCHRUN),
    "MPI, pod": partial(mismatch, MPICH, POD),
    "MPI, ranks of a task": partial(mismatch, MPICH, captured.SRUN_PMI2, mpi=None, ranks=6, local_ranks=2, facts={"worker": "2"}),
    "MPI, another size": partial(mismatch, MPICH, captured.SRUN_PMI2, ranks=4),
    "MPI, started by collbench": partial(mismatch, MPICH, LOCAL),
    "MPI, communicator": lambda: size_disagrees(1, TASK),
    "MPI, init fails": failing_init,
    "MPI, library does not start": partial(failed_start, MPICH_STACK, {"UCX_TLS": "rc"}),
    "MPI, library does not start, several settings": partial(failed_start, "error code: 17", {f"OMPI_MCA_{i}": "x" for i in range(5)}),
    "MPI, library does not start, no settings": partial(failed_start, "error code: 17", {}),
    "MPI, no mpi4py": partial(loaded_without, None),
    "MPI, no library": partial(loaded_without, "4.1.2", error="RuntimeError: cannot load MPI library\nlibmpi.so: not found"),
    "build": lambda: software.mismatch(1, "n2", OLD, "n1", NEW),
    "build, older": lambda: software.mismatch(1, "n2", None, "n1", NEW),
    "explain, software": partial(problems, {"hosts": ["n1"], "collbench": "0.1.0+abc"}, {"hosts": ["n2"], "collbench": "0.2.0+def"}),
    "explain, silent host": partial(problems, silent=1),
    "explain, silent hosts": partial(problems, silent=3),
    "explain, shell": partial(shell, {}),
    "explain, step": partial(shell, captured.SRUN_PMI2),
    "explain, job without a step": partial(shell, captured.SBATCH),
    "explain, mpirun": partial(shell, captured.PRTE),
    "explain, torchrun": partial(shell, captured.TORCHRUN),
    "explain, pod": partial(shell, {**POD, "KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "job-1"}),
    "explain, commands": partial(commands, {}, LOADED_OPEN_MPI, SRUN, MPIRUN, LauncherProgram("torchrun", Path("/usr/bin/torchrun"))),
    "explain, commands in a job": partial(commands, captured.SBATCH, LOADED, SRUN),
    "explain, commands in a step": partial(commands, captured.SRUN_PMIX, LOADED, SRUN, serves=False),
    "explain, commands under mpirun": partial(commands, captured.HYDRA, LOADED),
    "explain, commands in a pod": partial(commands, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, LOADED),
    "explain, mpirun of another MPI": partial(mixed, LOADED, MPIRUN),
    "explain, both of another MPI": partial(mixed, LOADED, MPIRUN, replace(MPIRUN, name="mpiexec"), OTHER_MPIEXEC),
    "explain, srun without PMIx": partial(mixed, LOADED_OPEN_MPI, SRUN),
    "name, own at loopback": partial(of_names, "own name is loopback", host("n1", "127.0.1.1"), used=("10.0.0.1", "fd00::1")),
    "name, no address": partial(of_names, "own host has no address", host("n1")),
    "name, rank 0 at loopback": partial(of_names, "meeting is loopback", host("localhost", "127.0.0.1")),
    "name, rank 0 does not resolve": partial(of_names, "meeting does not resolve", host("nowhere")),
    "name, no route": partial(of_names, "no route to meeting", host("six", "fd00::6")),
    "name, IPv6 only": partial(of_names, "IPv6 only", *IPV6),
    "name, no common family": partial(of_names, "no common family", host("n1", "10.0.0.1"), host("n2", "fd00::2")),
}


def test_the_words_of_messages():
    check_sentences(SENTENCES / "launch.txt", WORDS)
