"""The start without a launcher, with real children: exit codes, killed ranks, signals, and no process left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import asdict

from collbench.errors import UsageError
from collbench.launch import detect, slurm
from collbench.launch import spawn as mpi_start
from collbench.launch.detect import detect_local, is_follower, to_variable
from collbench.launch.info import LaunchInfo
from collbench.launch.mpi import StartCrashed, earlier_crash, without_crashed
from collbench.launch.spawn import default_ranks, node_workers, start_local, terminal
from collbench.launch.supervise import SupervisedProcess, Supervisor

pytestmark = pytest.mark.system

MPIEXEC = mpi_start.find_mpiexec({})
needs_mpiexec = pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec beside this Python: pip install mpich")

# A rank: stores its launch, then does what its entry in argv requests: an exit code, k<signal>, s<seconds>
RANK = """
import os, sys, time
from pathlib import Path
from collbench.launch.detect import detect
from collbench.launch.spawn import record_exit
from collbench.launch.supervise import die_with_parent
die_with_parent()
info = detect(os.environ)
folder, todo = Path(sys.argv[1]), sys.argv[2].split(",")[info.rank]
(folder / f"rank-{info.rank}.new").write_text(f"{os.getpid()} {info}")
(folder / f"rank-{info.rank}.new").rename(folder / f"rank-{info.rank}")
if todo.startswith("k"):
    os.kill(os.getpid(), int(todo[1:]))
if todo.startswith("s"):
    time.sleep(float(todo[1:]))
    todo = "0"
if len(sys.argv) < 4:
    record_exit(int(todo), os.environ)
sys.exit(int(todo))
"""


def start(folder, todo, ranks=2, *, mpi=False, grace_s=0.3, more=()):
    argv = [str(folder), todo, *more]
    return start_local(argv, ranks, mpiexec=MPIEXEC if mpi else None, env=os.environ, program=[sys.executable, "-c", RANK], grace_s=grace_s)


def launch_of(folder, rank):
    return (folder / f"rank-{rank}").read_text().partition(" ")[2]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, what, timeout_s=30.0):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"waited {timeout_s} s for {what}"
        time.sleep(0.02)


class TestOwnChildren:
    def test_each_rank_has_its_number_and_the_folder_is_removed(self, tmp_path):
        assert start(tmp_path, "0,0,0", 3) == 0
        info = launch_of(tmp_path, 2)
        assert "launcher='local', rank=2, ranks=3, local_rank=2, local_ranks=3, meeting='ipc://" in info
        assert not Path(info.partition("ipc://")[2].partition("/control")[0]).exists()

    def test_a_killed_rank_is_reported_and_the_others_are_ended(self, tmp_path, capfd):
        began = time.monotonic()
        assert start(tmp_path, "s60,k9") == 4
        assert time.monotonic() - began < 5
        pid = (tmp_path / "rank-1").read_text().split()[0]
        assert f"rank 1 (pid {pid})" in (err := capfd.readouterr().err) and "SIGKILL" in err

    def test_a_rank_that_ignores_sigterm_is_killed(self, tmp_path, capfd):
        stubborn = "import signal, time, sys\nfrom pathlib import Path\nimport os\nready = Path(sys.argv[1])\n"
        stubborn += "if os.environ['COLLBENCH_RANK'] == '1':\n while not ready.exists(): time.sleep(0.02)\n sys.exit(2)\n"
        stubborn += "signal.signal(15, signal.SIG_IGN); ready.touch(); time.sleep(60)"
        code = start_local([str(tmp_path / "ready")], 2, env=os.environ, program=[sys.executable, "-c", stubborn], grace_s=0.3)
        assert code == 2
        assert "rank 0 did not end within 0.6 s" in capfd.readouterr().err

    def test_children_have_no_stdin_and_no_process_manager_of_an_outer_launcher(self):
        program = [sys.executable, "-c", "import os, sys; sys.exit(2 if sys.stdin.read() or 'PMI_FD' in os.environ else 0)"]
        assert start_local([], 2, env={**os.environ, "PMI_FD": "9"}, program=program) == 0


@pytest.mark.parametrize("mpi", [False, pytest.param(True, marks=needs_mpiexec)], ids=["own children", "mpiexec"])
@pytest.mark.parametrize(("todo", "codes"), [("0,2", {2}), ("4,4", {4}), ("3,0", {3}), ("2,4", {2, 4})])
def test_a_failing_code_is_the_result(tmp_path, mpi, todo, codes):
    """Hydra would combine 2 and 4 to 6."""
    assert start(tmp_path, todo, mpi=mpi) in codes


PARENT = """
import os, sys
from collbench.launch.spawn import find_mpiexec, start_local
program = [sys.executable, "-c", sys.argv[4]]
mpiexec = find_mpiexec(os.environ) if sys.argv[3] == "mpi" else None
sys.exit(start_local(sys.argv[1:3], 2, mpiexec=mpiexec, env=os.environ, program=program, grace_s=2))
"""


@pytest.fixture
def parent(tmp_path, request):
    how = request.param
    if how == "mpi" and MPIEXEC is None:
        pytest.skip("no mpiexec beside this Python: pip install mpich")
    process = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), "s60,s60", how, RANK], stderr=subprocess.DEVNULL)
    wait_for(lambda: all((tmp_path / f"rank-{i}").exists() for i in range(2)), "two ranks")
    process.pids = [int((tmp_path / f"rank-{i}").read_text().split()[0]) for i in range(2)]
    yield process
    process.kill()
    process.wait()
    shutil.rmtree(launch_of(tmp_path, 0).partition("ipc://")[2].partition("/control")[0], ignore_errors=True)  # SIGKILL leaves it


@pytest.mark.parametrize("parent", ["own", "mpi"], indirect=True)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9), (signal.SIGHUP, 143)])
def test_a_signal_that_ends_the_parent_ends_the_ranks(parent, number, code):
    parent.send_signal(number)
    assert parent.wait(30) == code
    wait_for(lambda: not any(alive(pid) for pid in parent.pids), "the ranks' end")


MANY = """
import os, sys
from collbench.launch.spawn import find_mpiexec, start_local
rank = "import os, sys, time; open(os.path.join(sys.argv[1], os.environ['PMI_RANK']), 'w').close(); time.sleep(90)"
program = [sys.executable, "-S", "-c", rank]
sys.exit(start_local([sys.argv[1]], 64, mpiexec=find_mpiexec(os.environ), env=os.environ, program=program))
"""


def marked(mark):
    """Return the running processes with this entry in their environment: the parent, its guard, mpiexec, proxies and ranks."""
    there = [path.parent for path in Path("/proc").glob("[0-9]*/environ") if mark in read(path)]
    return [int(folder.name) for folder in there if alive(folder.name)]


def read(path):
    try:
        return path.read_bytes().split(b"\0")
    except OSError:
        return []


@needs_mpiexec
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("started", [1, 64])
def test_no_process_of_64_ranks_is_left_5_s_after_the_end_of_their_parent(started, number, tmp_path):
    """Neither ranks nor proxies of the launcher are left, even if the proxies were still starting ranks."""
    env = {**os.environ, "COLLBENCH_TEST_MANY": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", MANY, str(tmp_path)], env=env, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: sum(1 for _ in tmp_path.iterdir()) >= started, f"{started} ranks")
        mark = b"COLLBENCH_TEST_MANY=" + os.fsencode(tmp_path)
        assert len(marked(mark)) > started
        process.send_signal(number)
        wait_for(lambda: not marked(mark), "the end of all", 5)
    finally:
        process.kill()
        process.wait()


LAUNCHER = """
import os, sys
from collbench.launch.supervise import SupervisedProcess, Supervisor
proxy = "trap '' TERM INT HUP; touch $0/proxy; sleep 90"
launcher = 'setsid sh -c "$1" "$0" & touch "$0/launcher"; exit_code=$2; [ $exit_code = none ] && sleep 90; exit $exit_code'
command = ["sh", "-c", launcher, sys.argv[1], proxy, sys.argv[2]]
sys.exit(Supervisor([SupervisedProcess("launcher", command, dict(os.environ), launches=True)], grace_s=1).run())
"""


def launched(folder, code="none"):
    """Start a launcher with a proxy that has its own session, ignores signals, and outlives the launcher's exit."""
    env = {**os.environ, "COLLBENCH_TEST_MANY": str(folder)}
    process = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(folder), code], env=env, stderr=subprocess.DEVNULL)
    wait_for((folder / "proxy").exists, "the proxy")
    return process, b"COLLBENCH_TEST_MANY=" + os.fsencode(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_proxy_that_ignores_signals_ends_with_collbench(number, tmp_path):
    process, mark = launched(tmp_path)
    process.send_signal(number)
    wait_for(lambda: not marked(mark), "the end of all", 5)
    assert process.wait(5) == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]


@pytest.mark.parametrize(("code", "ours"), [("0", 0), ("3", 3)])
def test_a_proxy_that_outlives_its_launcher_is_ended_and_the_code_kept(code, ours, tmp_path):
    process, mark = launched(tmp_path, code)
    assert process.wait(5) == ours
    assert not marked(mark)


@needs_mpiexec
class TestMpiexec:
    def test_mpiexec_starts_the_ranks(self, tmp_path):
        assert start(tmp_path, "0,0", mpi=True) == 0
        assert "launcher='local', rank=1, ranks=2" in launch_of(tmp_path, 1)
        assert "mpi='pmi" in launch_of(tmp_path, 1)

    def test_a_failed_rank_ends_a_hanging_one(self, tmp_path):
        began = time.monotonic()
        assert start(tmp_path, "s60,2", mpi=True) == 2
        assert time.monotonic() - began < 6

    def test_a_killed_rank_is_reported(self, tmp_path, capfd):
        assert start(tmp_path, "k9,0", mpi=True, more=["no record"]) == 4
        assert "SIGKILL" in capfd.readouterr().err

    @pytest.mark.parametrize("code", [2, 4, 6, 9, 11, 15, 143])
    def test_the_code_of_ranks_that_store_none_is_a_failure_and_its_number_no_proof_of_a_signal(self, tmp_path, capfd, code):
        assert start(tmp_path, f"{code},{code}", mpi=True, more=["no record"]) == 4
        if code in (4, 6, 9, 11):
            (sentence,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("collbench: ")]
            assert f"code {code}, an exit code or signal {code} ({signal.Signals(code).name})" in sentence
            assert "was killed" not in sentence


@pytest.mark.parametrize(("code", "recorded", "env", "given"), [
    (2, 2, {"PMI_RANK": "0"}, 0),
    (2, 2, {}, 2),  # children without mpiexec, or Open MPI: the code itself counts
    (2, 1, {"PMI_RANK": "0"}, 2),  # another rank does not end: mpiexec must end it
    (4, 2, {"PMI_RANK": "0"}, 4),
])  # fmt: skip
def test_ranks_that_end_together_do_not_make_hydra_kill_one(tmp_path, code, recorded, env, given):
    for rank in range(recorded):
        (tmp_path / f"exit-{rank}").write_text(str(code))
    env = {**env, "COLLBENCH_LOCAL": str(tmp_path), "COLLBENCH_RANKS": "2"}
    assert mpi_start.code_for_launcher(code, env) == given


@pytest.mark.parametrize(("code", "family", "number"), [
    (9, "MPICH", signal.SIGKILL), (7, "MPICH", signal.SIGBUS), (137, "Open MPI", signal.SIGKILL),
    (143, "MPICH", None),  # MPI_ERR_OTHER of MPI_Init
    (15, "MPICH", None),  # its other form
    (137, "MPICH", None), (9, "Open MPI", None), (14, "Open MPI", None), (255, "Intel MPI", None), (9, "other", None),
])  # fmt: skip
def test_which_codes_may_be_a_signal(code, family, number):
    assert mpi_start.possible_signal(code, family) == number


OPENING = """
import os, sys
from collbench.launch.spawn import recorded_opening
with recorded_opening("mpi", os.environ):
    if sys.argv[1] == "exit":
        os._exit(143)
    os.kill(os.getpid(), int(sys.argv[1]))
"""


@needs_mpiexec
@pytest.mark.parametrize(("how", "name"), [("exit", "143"), ("7", "SIGBUS"), ("11", "SIGSEGV")])
def test_ranks_that_end_while_they_open_a_backend_name_it(how, name):
    with pytest.raises(StartCrashed) as caught:
        start_local([how], 2, mpiexec=MPIEXEC, env=os.environ, program=[sys.executable, "-c", OPENING], grace_s=0.3)
    detail = caught.value.fact.detail
    assert (caught.value.exit_code, caught.value.fact.backend) == (4, "mpi")
    assert name in detail or "code 15" in detail  # hydra may return the SIGTERM with which it ended the other rank
    assert "SIGTERM" not in detail
    assert earlier_crash(without_crashed({}, caught.value)) == caught.value.fact


@pytest.mark.parametrize(("version", "ranks", "flags"), [
    ("HYDRA build details:", 9, ["-launcher", "fork", "-host", "localhost"]),
    ("mpiexec (Open MPI) 5.0.11", 4, []), ("mpiexec (Open MPI) 5.0.11", 5, ["--oversubscribe"]),
    ("Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626", 9, ["-launcher", "fork", "-host", "localhost"]),
    ("another MPI's", 5, []),
])  # fmt: skip
def test_mpiexecs_flags(tmp_path, version, ranks, flags):
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(f'#!/bin/sh\necho "{version}"\n')
    mpiexec.chmod(0o755)
    assert mpi_start.command(mpiexec, ranks, ["x"], cores=4) == [str(mpiexec), *flags, "-n", str(ranks), "x"]


def test_ranks_of_a_node_follow_the_tasks_and_a_failing_worker_gives_its_code(tmp_path):
    info = LaunchInfo("srun", 1, 3, 0, 1, "tcp://10.0.0.1", "slurm:c:8.0", port=29500, mpi="pmi", hosts=("n1", "n2", "n3"))
    program = [sys.executable, "-c", RANK]
    assert node_workers(info, 2, [str(tmp_path), "0,0,0,4"], os.environ, program=program, grace_s=0.3) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-2", "rank-3"]
    launch = launch_of(tmp_path, 3)
    assert "rank=3, ranks=6, local_rank=1, local_ranks=2, meeting='tcp://10.0.0.1', token='slurm:c:8.0', port=29500, mpi=None" in launch
    assert "'worker': '2'" in launch


@pytest.mark.parametrize(
    ("gpus", "per_process", "ranks"), [(0, 0, 2), (1, 0, 2), (2, 0, 2), (8, 0, 8), (1, 1, 1), (8, 1, 8), (8, 4, 2), (8, 8, 1)]
)
def test_processes_with_gpus_share_none_and_leave_none_idle_and_without_nccl_there_is_a_rank_per_gpu_from_two_on(gpus, per_process, ranks):
    assert default_ranks(gpus, per_process) == ranks if per_process else default_ranks(gpus) == ranks


def test_a_rank_gets_the_terminal_from_its_parent():
    here = terminal({"COLLBENCH_TTY": "stdout", "COLUMNS": "132"})
    assert (here.stdout, here.stderr, here.columns) == (True, False, 132)
    assert not terminal({"COLLBENCH_TTY": "0"}).stdout
    assert not terminal({"OMPI_COMM_WORLD_RANK": "0"}).stdout


class Interrupting(SupervisedProcess):
    """A child whose parent gets SIGINT as soon as it finds that the child has ended."""

    @property
    def alive(self):
        if not super().alive:
            os.kill(os.getpid(), signal.SIGINT)
        return super().alive


def test_a_signal_after_the_last_child_has_ended_is_not_lost():
    """Between the end of the last rank and the return of the old handlers; Ctrl-C would otherwise start the next launch."""
    assert Supervisor([Interrupting("rank 0", [sys.executable, "-c", ""], dict(os.environ))]).run() == 130


# Ranks that collbench starts itself: their numbers, and invalid variables.

WORKER = LaunchInfo("srun", 5, 12, 1, 4, "tcp://n1", "slurm:7.0", hosts=("n1", "n2", "n3"), facts={"srun_mpi": "pmi2", "worker": "4"})


@pytest.mark.parametrize(("env", "rank", "mpi"), [
    ({"COLLBENCH_RANK": "1"}, 1, None), ({"PMI_RANK": "2"}, 2, "pmi"), ({"OMPI_COMM_WORLD_RANK": "3", "PMI_RANK": "0"}, 3, "pmix"),
    ({"COLLBENCH_RANK": "1", "OMPI_COMM_WORLD_RANK": "3", "PMI_RANK": "0"}, 1, None),
])  # fmt: skip
def test_a_rank_takes_its_number_from_the_nearest_launcher(env, rank, mpi):
    env = {"COLLBENCH_LOCAL": "/tmp/collbench-x", "COLLBENCH_RANKS": "4", **env}
    found = detect_local(env)
    assert found and (found.rank, found.ranks, found.mpi, found.secret) == (rank, 4, mpi, "/tmp/collbench-x/secret")
    assert is_follower(env) == (rank != 0)


@pytest.mark.parametrize("changes", [
    {"rank": 12}, {"rank": -1}, {"local_rank": 4}, {"local_rank": -1}, {"local_ranks": 13}, {"rank": "1"}, {"facts": {"a": 1}},
    {"hosts": [1]},
])  # fmt: skip
def test_an_impossible_worker_is_rejected(changes):
    assert detect_local({"COLLBENCH_WORKER": to_variable(WORKER)}) == WORKER
    values = {**asdict(WORKER), **changes}
    with pytest.raises(UsageError, match="COLLBENCH_WORKER"):
        detect_local({"COLLBENCH_WORKER": json.dumps(values)})


# The identity of a node of a launch, for hosts with equal names.

STEP = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "MASTER_ADDR": "127.0.0.1",
}  # fmt: skip
BY_HAND = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


def test_slurm_counts_its_nodes_and_torchrun_its_agents():
    by_hand = [detect.detect_torchrun({**BY_HAND, **more}) for more in ({"GROUP_RANK": "3"}, {})]
    assert [info and info.node for info in (slurm.detect(STEP), *by_hand)] == ["1", "3", ""]


# By variables that are added to those of a step: the process manager, and whether Slurm leaves the end of the step to collbench.
OF_STEPS = [
    ({}, None, True), ({"SLURM_KILL_BAD_EXIT": "1"}, None, False), ({"SLURM_KILL_BAD_EXIT": "0"}, None, True),
    ({"PMIX_NAMESPACE": "slurm.pmix.7.0", "PMIX_RANK": "2"}, "pmix", True),
    ({"PMIX_NAMESPACE": "slurm.pmix.7.1", "PMIX_RANK": "2"}, None, True),  # an outer step's
    ({"PMI_SIZE": "4", "PMI_JOBID": "7.0"}, "pmi", True), ({"PMI_SIZE": "4", "PMI_JOBID": "6.0"}, None, True),
    ({"PMI_CONTROL_PORT": "1"}, "pmi", True),
]  # fmt: skip


@pytest.mark.parametrize(("more", "manager", "ends"), OF_STEPS)
def test_the_process_manager_of_a_step_and_whether_collbench_ends_it(more, manager, ends):
    info = slurm.detect({**STEP, **more})
    assert info and info.mpi == manager
    assert (slurm.end_of_step(info, {**STEP, **more}) is not None) is ends


@pytest.mark.parametrize(("family", "node"), [
    ([(41, "python", "900"), (40, "bash", "800"), (39, "hydra_pmi_proxy", "700")], "39@700"),
    ([(41, "prted", "900")], "41@900"),
    ([(41, "bash", "900"), (1, "systemd", "1")], ""),  # a shell for each rank does not identify the node
    ([], ""),
])  # fmt: skip
def test_mpiexec_has_one_daemon_on_each_node(family, node, monkeypatch):
    monkeypatch.setattr(detect, "ancestors", lambda: family)
    info = detect.detect_mpirun(HYDRA)
    assert info and info.node == node
