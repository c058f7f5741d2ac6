"""Launches: variables of launchers that are not valid, starts that this host cannot make, MPI libraries, and `doctor --launch`."""

import os
import re
import signal
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
from tests.helpers import said
from tests.launch import captured
from tests.launch.captured import MPICH, OPEN_MPI

pytestmark = pytest.mark.contract

POD = {"JOB_COMPLETION_INDEX": "1", "COLLBENCH_PODS": "3", "MASTER_ADDR": "bench-0.bench", "COLLBENCH_SECRET": "x"}
LOCAL = {"COLLBENCH_LOCAL": "/tmp/c", "COLLBENCH_RANKS": "2", "COLLBENCH_RANK": "1"}
TASK = LaunchInfo("srun", 0, 3, 0, 1, "tcp://n1", "slurm:c:8.0", mpi="pmi")
ALLREDUCE = LocalRequest(command=("collbench", "allreduce", "--sizes", "8,1 K"))
SRUN = LauncherProgram("srun", Path("/usr/bin/srun"), "Slurm", "23.11.4", plugins=("none", "pmi2"))
MPIRUN = LauncherProgram("mpirun", Path("/opt/openmpi/bin/mpirun"), "Open MPI", "5.0.11", "pmix")
LOADED, LOADED_OPEN_MPI = MpiLibrary(MPICH, "/site/libmpi.so", "4.1.2"), MpiLibrary(OPEN_MPI, "/site/libmpi.so", "4.1.2")
LOOPBACK = {**captured.SRUN_NONE, "SLURMD_NODENAME": "n2", "MASTER_ADDR": "127.0.0.1"}
EMITTING = patch.object(explain, "plugin_commands", lambda: {"emit": ""})  # with the plug-in that writes jobs


@contextmanager
def on(host="n1", names=None):
    """A host of this name that resolves these names: all to 10.0.0.1 if there are none."""
    with ExitStack() as stack:
        for module in (slurm, explain):
            stack.enter_context(patch.object(module, "resolve", lambda name: ("10.0.0.1",) if names is None else names.get(name, ())))
        stack.enter_context(patch.object(slurm, "_node_address", lambda node: ""))
        stack.enter_context(patch.object(slurm, "_stepd_title", lambda: ""))
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
    "software": (lambda: software.difference("python", {"3.11.2": ["n1", "n2"], "missing": ["n3"]}),
        "Python differs between the hosts: 3.11.2 on n1 and n2; missing on n3"),
    "variable, not a number": (partial(found, captured.TORCHRUN, RANK="foo"),
        "RANK='foo' is not a whole number: unset RANK, or start collbench through its launcher again"),
    "variable, not below the size": (partial(found, captured.TORCHRUN, RANK="2"),
        "RANK=2 is not below WORLD_SIZE=2: ranks count from 0; correct or unset both variables"),
    "variable, local ranks": (partial(found, captured.HYDRA, MPI_LOCALRANKID="5"),
        "MPI_LOCALRANKID=5 and MPI_LOCALNRANKS=3 contradict 3 ranks: correct or unset these variables"),
    "variable, port": (partial(found, captured.KUBERNETES, MASTER_PORT="70000"),
        "MASTER_PORT=70000 is not a TCP port: choose one from 1 to 65535, or unset it"),
    "local, without a rank": (partial(found, LOCAL, without="COLLBENCH_RANK"),
        "COLLBENCH_LOCAL='/tmp/c' is set, but the rank is not: unset it (collbench sets it when it starts ranks itself)"),
    "worker, not valid": (partial(found, {"COLLBENCH_WORKER": "{}"}),
        "COLLBENCH_WORKER is not a valid rank: unset it (collbench sets it when it starts ranks itself)"),
    "ranks beside a launcher": (partial(found, captured.HYDRA, request=LocalRequest(ranks=2)),
        "--ranks 2 is for a start without a launcher, but mpirun started 3: drop --ranks"),
    "torchrun, two rank 0": (partial(found, {**captured.PRTE, **captured.KUBERNETES}, RANK="0", WORLD_SIZE="1"),
        "WORLD_SIZE=1, but mpirun started 3 ranks: unset RANK and WORLD_SIZE"),
    "torchrun, restarted": (lambda: refusal_torchrun("2"),
        "torchrun restarted the ranks (restart 2) after an earlier start failed: why it did is above and in its run folder, which "
        "keeps what it measured; go on with `collbench --resume RUN`, and give torchrun --max-restarts 0"),
    "MPI, no library for the meeting": (
        partial(meeting_without_mpi, RuntimeError("cannot load MPI library\n libmpi.so: no such file\nthird")),
        "the launcher does not pass rank 0's address, and MPI, which would, does not load on n1 (cannot load MPI library; libmpi.so: no "
        "such file): install mpi4py and the launcher's MPI on all hosts, or set MASTER_ADDR to rank 0's host: then the ranks connect "
        "without MPI"),
    "MPI, no mpi4py for the meeting": (partial(meeting_without_mpi, ModuleNotFoundError("No module named 'mpi4py'")),
        "the launcher does not pass rank 0's address, and MPI, which would, does not load on n1 (No module named 'mpi4py'): install mpi4py "
        "and the launcher's MPI on all hosts, or set MASTER_ADDR to rank 0's host: then the ranks connect without MPI"),
    "PMIx without a size": (partial(found, {"PMIX_RANK": "0", "PMIX_NAMESPACE": "x"}),
        "PMIX_RANK is set, but the number of ranks is unknown: start collbench with mpirun, mpiexec or srun"),
    "slurm, no step": (partial(found, captured.SBATCH, request=ALLREDUCE),
        "inside Slurm job 8 but not started by srun: put srun in front, `srun collbench allreduce --sizes '8,1 K'`, or give --ranks "
        "N to start N ranks on this host alone"),
    "slurm, step number": (partial(found, captured.SRUN_NONE, SLURM_STEP_ID="x"),
        "SLURM_STEP_ID='x' is not a valid step number: unset it, or start the command with srun"),
    "slurm, host list": (partial(found, captured.SRUN_NONE, SLURM_STEP_NODELIST="n[1-"),
        "SLURM_STEP_NODELIST='n[1-' is not a valid host list (unbalanced brackets): start the command with srun, or unset it"),
    "slurm, empty host list": (partial(found, captured.SRUN_NONE, SLURM_STEP_NODELIST=""),
        "SLURM_STEP_NODELIST is empty inside a Slurm step: start the command with srun, or unset SLURM_STEP_ID"),
    "slurm, tasks per node": (partial(found, captured.SRUN_NONE, SLURM_STEP_TASKS_PER_NODE="2"),
        "SLURM_STEP_TASKS_PER_NODE='2' does not have the tasks of node 1: start the command with srun, or unset it"),
    "slurm, local task": (partial(found, captured.SRUN_NONE, SLURM_LOCALID="7"),
        "SLURM_LOCALID=7 contradicts SLURM_STEP_TASKS_PER_NODE='2,1' and 3 tasks: start the command with srun, or unset it"),
    "slurm, arbitrary distribution": (partial(found, captured.SRUN_NONE, SLURM_DISTRIBUTION="arbitrary"),
        "with srun --distribution=arbitrary the host of rank 0 is not known: export MASTER_ADDR with that host's name"),
    "slurm, first node does not resolve": (partial(found, captured.SRUN_NONE, host="n2", names={}),
        "Slurm's first node 'n1' does not resolve to an address on this host (n2): export MASTER_ADDR=<address of that node>, or fix "
        "DNS or /etc/hosts"),
    "slurm, loopback address": (
        partial(found, LOOPBACK, host="n2", names={"127.0.0.1": ("127.0.0.1",)}),
        "MASTER_ADDR=127.0.0.1 is a loopback address, which ranks on other hosts (n1) cannot reach: set MASTER_ADDR to an address of "
        "n1 in the network between the hosts"),
    "slurm, first node at loopback": (partial(found, captured.SRUN_NONE, host="n2", names={"n1": ("127.0.1.1",)}, SLURMD_NODENAME="n2"),
        "rank 0's host 'n1' resolves to 127.0.1.1 on n2, a loopback address: fix /etc/hosts on n2, or set MASTER_ADDR to an address "
        "of n1"),
    "slurm, advice": (partial(advice, captured.SRUN_NONE),
        "without srun's --kill-on-bad-exit=1, Slurm does not end the other ranks when one fails (export SLURM_KILL_BAD_EXIT=1 has "
        "the same effect, and removes this note)"),
    "slurm, advice for one task": (partial(advice, captured.SRUN_ONE),
        "this Slurm step has one task: use srun -n N to start N ranks, or --ranks N to start them on this host"),
    "pod, alone": (partial(found, {"JOB_COMPLETION_INDEX": "0"}),
        "this is pod 0 of an indexed Job, but COLLBENCH_PODS and MASTER_ADDR are not set, so each pod would measure alone: use "
        "`collbench emit kubernetes` to write the Job, or use --ranks N to measure inside this pod only"),
    "pod, without the number of pods": (partial(found, POD, without="COLLBENCH_PODS"),
        "this is pod 1 of an indexed Job, but COLLBENCH_PODS is not set, so each pod would measure alone: use `collbench emit "
        "kubernetes` to write the Job, or use --ranks N to measure inside this pod only"),
    "pod, without an index": (partial(found, POD, without="JOB_COMPLETION_INDEX"),
        "COLLBENCH_PODS='3' is set but JOB_COMPLETION_INDEX is not: set completionMode: Indexed in the Job, or unset COLLBENCH_PODS"),
    "pod, without a secret": (partial(found, POD, without="COLLBENCH_SECRET"),
        "COLLBENCH_SECRET is not set, and pods share no home directory that could hold a secret: use `collbench emit kubernetes` to "
        "write the Job, or use --ranks N to measure inside this pod only"),
    "pod, port": (partial(found, POD, PET_NODE_RANK="0", PET_NNODES="2", PET_MASTER_ADDR="t-0", PET_MASTER_PORT="70000"),
        "PET_MASTER_PORT=70000 is not a TCP port: choose one from 1 to 65535, or unset it"),
    "pod, rank 0 does not resolve": (pod_never_resolves,
        "the name of rank 0's pod (no.such.host.invalid) did not resolve within 0.01 s: give its Job a headless Service with "
        "publishNotReadyAddresses, as `collbench emit kubernetes` does, or raise --timeout"),
    "start, no ranks": (lambda: start_local([], 0, env={}), "--ranks 0: must be 1 or more"),
    "start, mpiexec does not run": (lambda: mpiexec_family(Path("/nowhere/mpiexec")),
        "/nowhere/mpiexec cannot be run ([Errno 2] No such file or directory: '/nowhere/mpiexec'): install mpi4py with its MPI, `pip "
        "install collbench[mpich]`"),
    "start, no program": (lambda: start_local([], 2, env={}, program=["/nowhere/python"]),
        "rank 0 cannot be started ([Errno 2] No such file or directory: '/nowhere/python'): check that /nowhere/python is installed"),
    "workers, none": (lambda: node_workers(TASK, 0, [], {}), "--ranks-per-node 0: must be 1 or more"),
    "workers, several tasks": (lambda: node_workers(replace(TASK, local_ranks=2), 2, [], {}),
        "--ranks-per-node needs one task per node, but srun started 2 here: drop it"),
    "workers, no address": (lambda: node_workers(replace(TASK, launcher="mpirun", meeting="mpi"), 2, [], {}),
        "--ranks-per-node under mpirun on several hosts needs the host of rank 0: export MASTER_ADDR"),
    "GPUs, too few": (lambda: default_ranks(1, 2), "-g 2 needs 2 GPUs for each process, but 1 is visible: use a smaller number"),
    "GPUs, none": (lambda: default_ranks(0, 2), "-g 2 needs 2 GPUs for each process, but 0 are visible: use a smaller number"),
    "GPUs, some idle": (lambda: default_ranks(8, 3), "-g 3 leaves 2 of 8 GPUs idle: use a divisor of 8, or --ranks N"),
    "end, killed rank": (lambda: exit_meaning(137, "Open MPI", "rank 1 (pid 4711)"),
        "mpiexec ended with code 137, an exit code or signal 9 (SIGKILL): rank 1 (pid 4711) ended first: killed, crashed, exited or "
        "ended by MPI"),
    "end, rank ended": (lambda: exit_meaning(143, "MPICH", "rank 1 (pid 4711)"),
        "mpiexec ended with code 143: rank 1 (pid 4711) ended first: killed, crashed, exited or ended by MPI"),
    "end, mpiexec failed": (lambda: exit_meaning(213, "MPICH"), "mpiexec ended with code 213"),
    "end, while opening": (lambda: str(crash_in_opening("gloo", exit_meaning(7, "MPICH"), "")),
        "gloo does not start: mpiexec ended with code 7, an exit code or signal 7 (SIGBUS); see the lines of the library above"),
    "lo is down": (without_loopback, "lo is down on n2, so its ranks cannot reach each other: run `ip link set lo up`"),
    "limit, open files": (few_files,
        "--ranks 4: each of 4 ranks needs about 82 open files and ulimit -n allows 20: raise it, `ulimit -n 82`, or LimitNOFILE= of "
        "the service that starts collbench"),
    "end, killed child": (killed_child, "collbench: rank 1 (pid 4711) was killed by signal 9 (SIGKILL)"),
    "end, late child": (partial(reported, late_child), "collbench: rank 0 did not end within 5 s of the first failure: killed"),
    "end, interrupted": (partial(ended_by, "runs/x"),
        "collbench: interrupted by SIGTERM, and rank 0 was killed before it could report; what was measured is in runs/x"),
    "end, interrupted before a run": (partial(ended_by, ""),
        "collbench: interrupted by SIGTERM, and rank 0 was killed before it could report; nothing was measured"),
    "end, missing ranks": (partial(reported, lambda: spawn._outcome(0, [0], 2)),
        "collbench: mpiexec ended with code 0, but only 1 of 2 ranks reached their end"),
    "MPI, srun without MPI": (partial(mismatch, MPICH, captured.SRUN_NONE),
        "srun (--mpi=none) starts tasks without MPI, but mpi4py uses MPICH 5.0.2, which would not see 3 ranks: use srun --mpi=pmi2"),
    "MPI, srun of PMIx": (partial(mismatch, MPICH, captured.SRUN_PMIX),
        "srun --mpi=pmix serves Open MPI, but mpi4py uses MPICH 5.0.2, which would not see 3 ranks: use srun --mpi=pmi2"),
    "MPI, srun of PMI-2": (partial(mismatch, OPEN_MPI, captured.SRUN_PMI2),
        "srun --mpi=pmi2 serves MPICH, but mpi4py uses Open MPI 5.0.11, which would not see 3 ranks: use srun --mpi=pmix"),
    "MPI, another mpirun": (partial(mismatch, MPICH, captured.PRTE),
        "started by Open MPI's mpirun, but mpi4py uses MPICH 5.0.2: use the mpiexec of MPICH 5.0.2 -n 3"),
    "MPI, torchrun": (partial(mismatch, OPEN_MPI, captured.TORCHRUN),
        "torchrun cannot start MPI (Open MPI 5.0.11): use the mpiexec of Open MPI 5.0.11 -n 2, or srun --mpi=pmix, instead"),
    "MPI, pod": (partial(mismatch, MPICH, POD),
        "a pod of this kind starts no MPI (MPICH 5.0.2): take an MPIJob, `collbench emit kubernetes --kind mpijob`"),
    "MPI, ranks of a task": (partial(mismatch, MPICH, captured.SRUN_PMI2, mpi=None, ranks=6, local_ranks=2, facts={"worker": "2"}),
        "mpi (MPICH 5.0.2) needs its own launcher to start each rank, not a task that becomes several (--ranks-per-node, or one per "
        "GPU): use srun --ntasks-per-node=2 --mpi=pmi2, or mpirun with 2 ranks per host"),
    "MPI, another size": (partial(mismatch, MPICH, captured.SRUN_PMI2, ranks=4),
        "PMI_SIZE=3, but srun started 4 ranks: start collbench with one launcher only, or unset PMI_SIZE"),
    "MPI, started by collbench": (partial(mismatch, MPICH, LOCAL),
        "these ranks were not started by the mpiexec of MPICH 5.0.2: use the mpiexec of MPICH 5.0.2 -n 2, or srun --mpi=pmi2"),
    "MPI, communicator": (lambda: size_disagrees(1, TASK),
        "MPI_COMM_WORLD has 1 rank, but srun started 3: the launcher cannot start this MPI library; use the library's own mpiexec, "
        "or srun with --mpi=pmi2 (MPICH, Intel MPI) or --mpi=pmix (Open MPI)"),
    "MPI, init fails": (failing_init, "MPI_Init_thread failed: MPI_ERR_OTHER: known error"),
    "MPI, library does not start": (partial(failed_start, MPICH_STACK, {"UCX_TLS": "rc"}),
        "MPI_Init failed (MPICH 5.0.2: ucx function returned with failed status(ucx_init.c 240 MPIDI_UCX_init_local No such "
        "device)): correct or unset UCX_TLS=rc"),
    "MPI, library does not start, several settings": (partial(failed_start, "error code: 17", {f"OMPI_MCA_{i}": "x" for i in range(5)}),
        "MPI_Init failed (MPICH 5.0.2: error 17): correct or unset OMPI_MCA_0=x, OMPI_MCA_1=x, OMPI_MCA_2=x, OMPI_MCA_3=x, …"),
    "MPI, library does not start, no settings": (partial(failed_start, "error code: 17", {}),
        "MPI_Init failed (MPICH 5.0.2: error 17): see the lines of the library above"),
    "MPI, no mpi4py": (partial(loaded_without, None),
        "mpi4py is not installed: pip install 'collbench[mpi]' takes the site's MPI, 'collbench[mpich]' brings one"),
    "MPI, no library": (partial(loaded_without, "4.1.2", error="RuntimeError: cannot load MPI library\nlibmpi.so: not found"),
        "mpi4py 4.1.2 finds no MPI library (libmpi.so: not found): load the site's MPI module"),
    "build": (lambda: software.mismatch(1, "n2", OLD, "n1", NEW),
        "rank 1 (n2) runs collbench 0.1.0+abc, rank 0 (n1) 0.2.0+def: install the same build on all nodes"),
    "build, older": (lambda: software.mismatch(1, "n2", None, "n1", NEW),
        "rank 1 (n2) runs collbench of an older build, rank 0 (n1) 0.2.0+def: install the same build on all nodes"),
    "explain, software": (partial(problems, {"hosts": ["n1"], "collbench": "0.1.0+abc"}, {"hosts": ["n2"], "collbench": "0.2.0+def"}),
        "severe: collbench differs between the hosts: 0.1.0+abc on n1; 0.2.0+def on n2: ranks of two builds do not join; install the "
        "same build on all nodes"),
    "explain, silent host": (partial(problems, silent=1),
        "warning: 1 host of this launch did not answer rank 0: their software is unknown; check that they reach rank 0's host by "
        "UDP, and whether COLLBENCH_SECRET, or the secret in the home directory, is the same there"),
    "explain, silent hosts": (partial(problems, silent=3),
        "warning: 3 hosts of this launch did not answer rank 0: their software is unknown; check that they reach rank 0's host by "
        "UDP, and whether COLLBENCH_SECRET, or the secret in the home directory, is the same there"),
    "explain, shell": (partial(shell, {}), "not started by a launcher, and not in a scheduler's job"),
    "explain, step": (partial(shell, captured.SRUN_PMI2),
        "srun --mpi=pmi2 started this as rank 2 of 3; it can start MPI by PMI\n" "Slurm job 8 on 2 nodes, in step 0"),
    "explain, job without a step": (partial(shell, captured.SBATCH), "Slurm job 8 on 2 nodes, not in a step of srun's"),
    "explain, mpirun": (partial(shell, captured.PRTE), "mpirun of Open MPI started this as rank 2 of 3; it can start MPI by PMIx"),
    "explain, torchrun": (partial(shell, captured.TORCHRUN), "torchrun started this as rank 1 of 2; it cannot start MPI"),
    "explain, pod": (partial(shell, {**POD, "KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "job-1"}),
        "Kubernetes (indexed Job) started this as rank 1 of 3; it cannot start MPI\n" "pod job-1 of Kubernetes, index 1 of its job"),
    "explain, commands": (partial(commands, {}, LOADED_OPEN_MPI, SRUN, MPIRUN, LauncherProgram("torchrun", Path("/usr/bin/torchrun"))),
        "2 ranks on this host: collbench allreduce --ranks 2\n"
        "2 ranks on this host, over MPI: mpirun -n 2 collbench allreduce --backend mpi\n"
        "hosts that ssh reaches, by a script: collbench emit mpirun --library openmpi --nodes 2 --hosts HOSTS -- allreduce\n"
        "2 ranks on this host, started like a training: torchrun --standalone --nproc-per-node 2 --no-python collbench allreduce "
        "--backend gloo\n"
        "2 nodes of Slurm: srun --mpi=pmix --kill-on-bad-exit=1 --nodes=2 --ntasks-per-node=1 collbench allreduce\n"
        "2 nodes of Slurm, by a batch script: collbench emit slurm --nodes 2 -- allreduce"),
    "explain, commands in a job": (partial(commands, captured.SBATCH, LOADED, SRUN),
        "2 ranks on this host: collbench allreduce --ranks 2\n"
        "all nodes of this Slurm job: srun --mpi=pmi2 --kill-on-bad-exit=1 --ntasks-per-node=1 collbench allreduce"),
    "explain, commands in a step": (partial(commands, captured.SRUN_PMIX, LOADED, SRUN, serves=False),
        "all nodes of this Slurm job, in place of this step: srun --mpi=pmi2 --kill-on-bad-exit=1 --ntasks-per-node=1 collbench "
        "allreduce"),
    "explain, commands under mpirun": (partial(commands, captured.HYDRA, LOADED),
        "in this launch, as each of its ranks: collbench allreduce"),
    "explain, commands in a pod": (partial(commands, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, LOADED),
        "2 ranks on this host: collbench allreduce --ranks 2\n"
        "pods of Kubernetes: collbench emit kubernetes --nodes 2 --image IMAGE -- allreduce"),
    "explain, mpirun of another MPI": (lambda: "\n".join(each.what for each in explain._of_mpirun([MPIRUN], LOADED)),
        "mpirun in /opt/openmpi/bin, first in PATH, is Open MPI's, but mpi4py loads MPICH 5.0.2: N ranks would be N jobs of one "
        "rank, or MPI_Init aborts; load the module of MPICH 5.0.2"),
    "explain, both of another MPI": (lambda: "\n".join(
        each.what
        for each in explain._of_mpirun(
            [MPIRUN, replace(MPIRUN, name="mpiexec"), LauncherProgram("mpiexec", Path("/b/mpiexec"), "MPICH", "5", "pmi", first=False)],
            LOADED,
        )
    ),
        "mpirun and mpiexec in /opt/openmpi/bin, first in PATH, are Open MPI's, but mpi4py loads MPICH 5.0.2: N ranks would be N "
        "jobs of one rank, or MPI_Init aborts; type /b/mpiexec, or put /b first in PATH"),
    "explain, srun without PMIx": (lambda: "\n".join(each.what for each in explain._of_srun([SRUN], LOADED_OPEN_MPI)),
        "this srun cannot start Open MPI 5.0.11: --mpi=pmix is missing, it has none, pmi2; use mpirun inside the job, or have the "
        "administrator install the plug-in"),
    "name, own at loopback": (partial(of_names, "own name is loopback", host("n1", "127.0.1.1"), used=("10.0.0.1", "fd00::1")),
        "this host's name 'n1' resolves to loopback here (127.0.1.1), as in Debian's /etc/hosts; a rank 0 on this host listens at "
        "every address, and other hosts connect to 10.0.0.1 or fd00::1; set MASTER_ADDR to choose one address"),
    "name, no address": (partial(of_names, "own host has no address", host("n1")),
        "this host, 'n1', has only loopback addresses, so other hosts cannot reach it: bring up its network interface"),
    "name, rank 0 at loopback": (partial(of_names, "meeting is loopback", host("localhost", "127.0.0.1")),
        "rank 0's host 'localhost' is a loopback address (127.0.0.1), by which each host reaches only itself; if ranks run on other "
        "hosts, set MASTER_ADDR to an address of rank 0's host in the network between the hosts"),
    "name, rank 0 does not resolve": (partial(of_names, "meeting does not resolve", host("nowhere")),
        "rank 0's host 'nowhere' does not resolve on this host: set MASTER_ADDR to its address, or fix DNS or /etc/hosts"),
    "name, no route": (partial(of_names, "no route to meeting", host("six", "fd00::6")),
        "rank 0's host 'six' (fd00::6) cannot be reached from this host: no route; set MASTER_ADDR to an address that has one"),
    "name, IPv6 only": (partial(of_names, "IPv6 only", *IPV6),
        "IPv6 addresses only: n0, n1, n2, n3, 2 more; ranks meet and measure over IPv6, but MPICH's mpiexec needs IPv4 between "
        "hosts: start MPICH with srun --mpi=pmi2"),
    "name, no common family": (partial(of_names, "no common family", host("n1", "10.0.0.1"), host("n2", "fd00::2")),
        "the hosts have no address family in common (n1 has only IPv4, n2 has only IPv6): give every host addresses of one family"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_message(call, text):
    assert said(call) == text
