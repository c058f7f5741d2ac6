"""Launches: variables of launchers that are not valid, starts that this host cannot make, MPI libraries, and `doctor --launch`."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import replace
from importlib import metadata
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest.mock import patch

from collbench.control import addresses
from collbench.launch import explain, limits, shared_memory, slurm, software, spawn
from collbench.launch.detect import LocalRequest, detect, refusal_torchrun
from collbench.launch.explain import (
    CommandLine,
    Explanation,
    HostName,
    LauncherProgram,
    MpiLibrary,
    library,
    name_problem,
    places,
    typed,
    with_hosts,
)  # fmt: skip
from collbench.launch.failed_start import BackendStartFailed, crash_in_opening
from collbench.launch.info import LaunchInfo
from collbench.launch.limits import RankLimit, refuse_few_files, refuse_too_many
from collbench.launch.mpi import initialise, mpi_mismatch, size_disagrees, start_failure
from collbench.launch.network import InterfaceMissing, loopback_down
from collbench.launch.spawn import default_ranks, exit_meaning, mpiexec_family, node_workers, start_local
from collbench.launch.supervise import SupervisedProcess, Supervisor
from tests.launch import captured
from tests.launch.captured import MPICH, OPEN_MPI
from tests.messages import Message, rendered

POD = {"JOB_COMPLETION_INDEX": "1", "COLLBENCH_PODS": "3", "MASTER_ADDR": "bench-0.bench", "COLLBENCH_SECRET": "x"}
LOCAL = {"COLLBENCH_LOCAL": "/tmp/c", "COLLBENCH_RANKS": "2", "COLLBENCH_RANK": "1"}
TASK = LaunchInfo("srun", 0, 3, 0, 1, "tcp://n1", "slurm:c:8.0", mpi="pmi")
ALLREDUCE = LocalRequest(command=("collbench", "allreduce", "--sizes", "8,1 K"))
SRUN = LauncherProgram("srun", Path("/usr/bin/srun"), "Slurm", "23.11.4", plugins=("none", "pmi2"))
MPIRUN = LauncherProgram("mpirun", Path("/opt/openmpi/bin/mpirun"), "Open MPI", "5.0.11", "pmix")
LOADED, LOADED_OPEN_MPI = MpiLibrary(MPICH, "/site/libmpi.so", "4.1.2"), MpiLibrary(OPEN_MPI, "/site/libmpi.so", "4.1.2")


@contextmanager
def on(host: str = "n1", names: Mapping[str, tuple[str, ...]] | None = None) -> Iterator[None]:
    """A host of this name that resolves these names: all to 10.0.0.1 if there are none."""
    with ExitStack() as stack:
        for module in (slurm, explain):
            stack.enter_context(patch.object(module, "resolve", lambda name: ("10.0.0.1",) if names is None else names.get(name, ())))
        stack.enter_context(patch.object(slurm, "_node_address", lambda node: ""))
        stack.enter_context(patch.object(slurm, "_stepd_title", lambda: ""))
        stack.enter_context(patch.object(slurm.socket, "gethostname", lambda: host))
        stack.enter_context(patch.object(sys, "prefix", "/nowhere"))
        yield


def found(env: Mapping[str, str], *, without: str = "", host: str = "n1", names: Mapping[str, tuple[str, ...]] | None = None,
          request: LocalRequest | None = None, **changes: str) -> Message:  # fmt: skip
    """The error of a process with these variables."""

    def detected() -> object:
        with on(host, names):
            return detect({name: value for name, value in {**env, **changes}.items() if name != without}, request)

    return detected


def advice(env: Mapping[str, str]) -> Message:
    def detected() -> str:
        with on():
            info = detect(env)
        assert info
        return "; ".join(each.render() for each in info.advice)

    return detected


def mismatch(version: str, env: Mapping[str, str], **changes: object) -> Message:
    def mismatched() -> object:
        with on():
            info = detect(env)
            assert info
            return mpi_mismatch(version, replace(info, **changes), env)  # type: ignore[arg-type]

    return mismatched


def too_many(ranks: int, cores: int, *narrow: RankLimit) -> Message:
    def refused() -> None:
        with patch.object(limits, "_limits", lambda *_: iter([RankLimit(1 << 40, "nothing"), *narrow])):
            refuse_too_many(ranks, "--ranks", torch=False, oversubscribe=False, cores=cores)

    return refused


def of_memory() -> None:
    with patch.object(limits, "free_bytes", lambda: 1 << 30), patch.object(limits, "free_tasks", lambda: iter(())):
        refuse_too_many(100, "--ranks", torch=True, oversubscribe=True, cores=2)


def of_processes() -> None:
    with patch.object(limits, "free_bytes", lambda: 1 << 50), patch.object(limits, "free_tasks", lambda: iter([(80, "kernel.pid_max")])):
        refuse_too_many(11, "--ranks", torch=False, oversubscribe=True, cores=2)


def reported(by: Callable[[], object]) -> Message:
    """What a function prints to stderr."""

    def printed() -> str:
        with redirect_stderr(StringIO()) as err:
            by()
        return err.getvalue().strip()

    return printed


def ended_by(stage: str) -> Message:
    """Of the parent, for a rank 0 that was killed before (`stage` "") or after it had stored where its run is."""

    def ended() -> None:
        with TemporaryDirectory() as folder:
            if stage:
                Path(folder, "run-0").write_text(stage, encoding="utf-8")
            spawn._report_for_rank_0(signal.SIGTERM, Path(folder))

    return reported(ended)


def killed_child() -> str:
    child = SupervisedProcess("rank 1", ["sh", "-c", "kill -9 $$"], dict(os.environ))
    return re.sub(r"pid \d+", "pid 4711", rendered(reported(Supervisor([child]).run)))


def late_child() -> None:
    supervisor = Supervisor([SimpleNamespace(name="rank 0", alive=True, kill=lambda: None)], grace_s=4)  # type: ignore[list-item]
    supervisor._stage = 2
    supervisor._kill()


def pod_never_resolves() -> None:
    from collbench.control.world import World

    info = detect({**POD, "MASTER_ADDR": "no.such.host.invalid", "COLLBENCH_SECRET": "x" * 32})
    assert info
    with patch.object(addresses, "resolve", lambda host: ()):
        World(info, 0.01)


MPICH_STACK = """Other MPI error, error stack:
MPID_Init(549)............:
MPIDI_UCX_init_local(240).:  ucx function returned with failed status(ucx_init.c 240 MPIDI_UCX_init_local No such device)
"""


def failed_start(text: str, env: dict[str, str]) -> Message:
    def sentence() -> str:
        with patch.dict(os.environ, env, clear=True), patch.object(shared_memory, "shortage", lambda: ""):
            return start_failure("MPICH 5.0.2", 17, text)

    return sentence


def few_files() -> None:
    with patch("collbench.launch.limits.resource.getrlimit", lambda _: (20, 20)):
        refuse_few_files(4, "--ranks", ["mpi", "gloo"])


def without_loopback() -> str | None:
    with patch("collbench.launch.network.is_loopback_up", lambda: False):
        return loopback_down("n2")


def failing_init() -> None:
    mpi = SimpleNamespace(
        Is_initialized=lambda: False, Get_library_version=lambda: "Intel(R) MPI Library 2021.10", THREAD_SINGLE=0, __file__="libmpi.so",
        Get_error_string=lambda code: "MPI_ERR_OTHER: known error",
    )  # fmt: skip
    with patch("collbench.launch.mpi.ctypes.CDLL", lambda file: SimpleNamespace(MPI_Init_thread=lambda *_: 15)), patch.dict(os.environ):
        initialise(mpi)


def loaded_without(version: str | None, answer: str = "", error: str = "") -> Message:
    """The problem of an mpi4py that loads no library; version None: it is not installed."""

    def problem() -> str:
        def versioned(name: str) -> str:
            if version is None:
                raise metadata.PackageNotFoundError
            return version

        done = SimpleNamespace(stdout=answer, stderr=error, returncode=1)
        with patch.object(metadata, "version", versioned), patch.object(explain.subprocess, "run", lambda *_, **__: done):
            return library({}).problem

    return problem


def shell(env: Mapping[str, str]) -> Message:
    def described() -> str:
        with on():
            return "\n".join(places(env, explain.launch_of(env)[0]))

    return described


def commands(env: Mapping[str, str], loaded: MpiLibrary, *programs: LauncherProgram, serves: bool = True) -> Message:
    def described() -> str:
        with on(), patch.object(explain, "_program", lambda env: ["collbench"]):
            return "\n".join(
                f"{each.purpose}: {each.line}" for each in typed(env, explain.launch_of(env)[0], loaded, programs, serves=serves)
            )

    return described


def of_names(kind: str, *hosts: HostName, used: tuple[str, ...] = ()) -> Message:
    return lambda: name_problem(kind, *hosts, used=used).what


def problems(*hosts: dict[str, object], silent: int = 0) -> Message:
    empty = Explanation((), (), MpiLibrary(), (), (), tuple[CommandLine, ...]())
    return lambda: "\n".join(f"{each.severity}: {each.what}" for each in with_hosts(empty, hosts, silent).problems)


def host(name: str, *at: str) -> HostName:
    return HostName(name, at, tuple(address for address in at if not address.startswith("127.")))


NAMES = {"n1": ("10.0.0.1",), "n2": ("10.0.0.2",)}
OLD, NEW = software.Build(1, "0.1.0", "abc"), software.Build(2, "0.2.0", "def")
IPV6 = tuple(host(f"n{i}", f"fd00::{i}") for i in range(6))
MESSAGES: dict[str, Message] = {
    "variable, not a number": found(captured.TORCHRUN, RANK="foo"),
    "variable, not below the size": found(captured.TORCHRUN, RANK="2"),
    "variable, local ranks": found(captured.HYDRA, MPI_LOCALRANKID="5"),
    "variable, port": found(captured.KUBERNETES, MASTER_PORT="70000"),
    "local, without a rank": found(LOCAL, without="COLLBENCH_RANK"),
    "worker, not valid": found({"COLLBENCH_WORKER": "{}"}),
    "ranks beside a launcher": found(captured.HYDRA, request=LocalRequest(ranks=2)),
    "torchrun, two rank 0": found({**captured.PRTE, **captured.KUBERNETES}, RANK="0", WORLD_SIZE="1"),
    "torchrun, restarted": lambda: refusal_torchrun("2"),
    "PMIx without a size": found({"PMIX_RANK": "0", "PMIX_NAMESPACE": "x"}),
    "slurm, no step": found(captured.SBATCH, request=ALLREDUCE),
    "slurm, step number": found(captured.SRUN_NONE, SLURM_STEP_ID="x"),
    "slurm, host list": found(captured.SRUN_NONE, SLURM_STEP_NODELIST="n[1-"),
    "slurm, empty host list": found(captured.SRUN_NONE, SLURM_STEP_NODELIST=""),
    "slurm, tasks per node": found(captured.SRUN_NONE, SLURM_STEP_TASKS_PER_NODE="2"),
    "slurm, local task": found(captured.SRUN_NONE, SLURM_LOCALID="7"),
    "slurm, arbitrary distribution": found(captured.SRUN_NONE, SLURM_DISTRIBUTION="arbitrary"),
    "slurm, first node does not resolve": found(captured.SRUN_NONE, host="n2", names={}),
    "slurm, loopback address": found(
        captured.SRUN_NONE, host="n2", names={"127.0.0.1": ("127.0.0.1",)}, SLURMD_NODENAME="n2", MASTER_ADDR="127.0.0.1"
    ),
    "slurm, first node at loopback": found(captured.SRUN_NONE, host="n2", names={"n1": ("127.0.1.1",)}, SLURMD_NODENAME="n2"),
    "slurm, advice": advice(captured.SRUN_NONE),
    "slurm, advice for one task": advice(captured.SRUN_ONE),
    "pod, alone": found({"JOB_COMPLETION_INDEX": "0"}),
    "pod, without the number of pods": found(POD, without="COLLBENCH_PODS"),
    "pod, without an index": found(POD, without="JOB_COMPLETION_INDEX"),
    "pod, without a secret": found(POD, without="COLLBENCH_SECRET"),
    "pod, port": found(POD, PET_NODE_RANK="0", PET_NNODES="2", PET_MASTER_ADDR="t-0", PET_MASTER_PORT="70000"),
    "pod, rank 0 does not resolve": pod_never_resolves,
    "limit, cores": too_many(33, 2),
    "limit, one core": too_many(17, 1),
    "limit, memory": of_memory,
    "limit, processes": of_processes,
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
    "backend does not start": BackendStartFailed("gloo", "RuntimeError: no device"),
    "interface, missing": InterfaceMissing("eth7", "eth7", ("lo", "eth0"), "n2"),
    "interface, missing in a list": InterfaceMissing("^lo,eth", "^lo", tuple(f"eth{i}" for i in range(13))),
    "lo is down": without_loopback,
    "limit, open files": few_files,
    "end, killed child": killed_child,
    "end, late child": reported(late_child),
    "end, interrupted": ended_by("runs/x"),
    "end, interrupted before a run": ended_by(""),
    "end, missing ranks": reported(lambda: spawn._outcome(0, [0], 2)),
    "MPI, srun without MPI": mismatch(MPICH, captured.SRUN_NONE),
    "MPI, srun of PMIx": mismatch(MPICH, captured.SRUN_PMIX),
    "MPI, srun of PMI-2": mismatch(OPEN_MPI, captured.SRUN_PMI2),
    "MPI, another mpirun": mismatch(MPICH, captured.PRTE),
    "MPI, torchrun": mismatch(OPEN_MPI, captured.TORCHRUN),
    "MPI, pod": mismatch(MPICH, POD),
    "MPI, ranks of a task": mismatch(MPICH, captured.SRUN_PMI2, mpi=None, ranks=6, local_ranks=2, facts={"worker": "2"}),
    "MPI, another size": mismatch(MPICH, captured.SRUN_PMI2, ranks=4),
    "MPI, started by collbench": mismatch(MPICH, LOCAL),
    "MPI, communicator": lambda: size_disagrees(1, TASK),
    "MPI, init fails": failing_init,
    "MPI, library does not start": failed_start(MPICH_STACK, {"UCX_TLS": "rc"}),
    "MPI, library does not start, several settings": failed_start("error code: 17", {f"OMPI_MCA_{i}": "x" for i in range(5)}),
    "MPI, library does not start, no settings": failed_start("error code: 17", {}),
    "MPI, no mpi4py": loaded_without(None),
    "MPI, no library": loaded_without("4.1.2", error="RuntimeError: cannot load MPI library\nlibmpi.so: not found"),
    "build": lambda: software.mismatch(1, "n2", OLD, "n1", NEW),
    "build, older": lambda: software.mismatch(1, "n2", None, "n1", NEW),
    "software": software.SoftwareDiffers("python", {"3.11.2": ["n1", "n2"], "missing": ["n3"]}),
    "explain, software": problems({"hosts": ["n1"], "collbench": "0.1.0+abc"}, {"hosts": ["n2"], "collbench": "0.2.0+def"}),
    "explain, silent host": problems(silent=1),
    "explain, silent hosts": problems(silent=3),
    "explain, shell": shell({}),
    "explain, step": shell(captured.SRUN_PMI2),
    "explain, job without a step": shell(captured.SBATCH),
    "explain, mpirun": shell(captured.PRTE),
    "explain, torchrun": shell(captured.TORCHRUN),
    "explain, pod": shell({**POD, "KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "job-1"}),
    "explain, commands": commands({}, LOADED_OPEN_MPI, SRUN, MPIRUN, LauncherProgram("torchrun", Path("/usr/bin/torchrun"))),
    "explain, commands in a job": commands(captured.SBATCH, LOADED, SRUN),
    "explain, commands in a step": commands(captured.SRUN_PMIX, LOADED, SRUN, serves=False),
    "explain, commands under mpirun": commands(captured.HYDRA, LOADED),
    "explain, commands in a pod": commands({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, LOADED),
    "explain, mpirun of another MPI": lambda: "\n".join(each.what for each in explain._of_mpirun([MPIRUN], LOADED)),
    "explain, both of another MPI": lambda: "\n".join(
        each.what
        for each in explain._of_mpirun(
            [MPIRUN, replace(MPIRUN, name="mpiexec"), LauncherProgram("mpiexec", Path("/b/mpiexec"), "MPICH", "5", "pmi", first=False)],
            LOADED,
        )
    ),
    "explain, srun without PMIx": lambda: "\n".join(each.what for each in explain._of_srun([SRUN], LOADED_OPEN_MPI)),
    "name, own at loopback": of_names("own name is loopback", host("n1", "127.0.1.1"), used=("10.0.0.1", "fd00::1")),
    "name, no address": of_names("own host has no address", host("n1")),
    "name, rank 0 at loopback": of_names("meeting is loopback", host("localhost", "127.0.0.1")),
    "name, rank 0 does not resolve": of_names("meeting does not resolve", host("nowhere")),
    "name, no route": of_names("no route to meeting", host("six", "fd00::6")),
    "name, IPv6 only": of_names("IPv6 only", *IPV6),
    "name, no common family": of_names("no common family", host("n1", "10.0.0.1"), host("n2", "fd00::2")),
}
