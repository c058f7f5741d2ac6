"""Ranks that die, stop or never come: the run ends in time, with a sentence and a code, and every finished case is on the disk."""

import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from collbench.results.reader import read_run
from tests.cli.command import BIN, PROGRAM, environment, run, running, until
from tests.conftest import sample
from tests.faults.launch import TIMEOUT_S

MPICH = BIN / "mpiexec"
# Far more than any test waits for, so that every fault comes in the middle.
LONG = ("allreduce", "--sizes", "8,1K,1K-64M", "-n", "20", "--out", "run", "--timeout", str(TIMEOUT_S))
ENDING = ("allreduce", "--sizes", "8,1K,1K-32M", "-n", "20", "--out", "run")  # for long enough to be stopped

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not MPICH.exists() or not (BIN / "torchrun").exists(), reason="needs the extras torch and mpich beside this Python"),
]


class TestKilled:
    @pytest.mark.often("1")
    @pytest.mark.parametrize("victim", sample([0, 1], 1))
    def test_a_rank_of_ours(self, victim, launch):
        found = launch(*LONG, "--backend", "gloo").ends_after_a_kill_of(victim)
        assert found.info.get("exit_code", 4) == 4

    @pytest.mark.parametrize("victim", sample([0, 1], 1))
    def test_a_rank_of_ours_through_mpiexec(self, victim, launch):
        one = launch(*LONG, "--backend", "mpi")
        assert one.code_after(signal.SIGKILL, victim) == 4
        assert f"rank {victim} (pid {one.pids[victim]})" in one.said and "signal 9 (SIGKILL)" in one.said

    @pytest.mark.parametrize("victim", sample([0, 1], 1))
    def test_mpiexec_without_cleanup_kills_the_ranks_of_that_host_and_no_other_rank_is_named(self, victim, launch):
        """Its proxy kills all ranks of the host within a millisecond of the death: rank 0 may report the victim first, or not at all."""
        one = launch("-disable-auto-cleanup", "-n", "2", *PROGRAM, *LONG, "--backend", "mpi", program=(str(MPICH),))
        assert one.code_after(signal.SIGKILL, victim) in (4, 9)
        assert set(re.findall(r"(rank \d+) \(\S+, pid \d+\)", one.said)) <= {f"rank {victim}"}, one.said

    def test_a_rank_of_mpiexec_that_kills_all_at_once(self, launch):
        one = launch("-n", "2", *PROGRAM, *LONG, "--backend", "mpi", program=(str(MPICH),))
        assert one.code_after(signal.SIGKILL, 1) != 0
        assert one.stored().info["launcher"] == "mpirun"

    @pytest.mark.slurm
    @pytest.mark.parametrize("backend", sample(["gloo", "mpi", "socket"], 1))
    @pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.long), 1])
    def test_a_rank_of_srun(self, victim, backend, slurm_hosts, launch):
        """Slurm sends SIGTERM to the other ranks: it is the consequence, not the cause."""
        step = ("srun", "-N2", f"--mpi={'pmi2' if backend == 'mpi' else 'none'}", "--kill-on-bad-exit=1", *PROGRAM)
        words = ("p2p" if backend == "socket" else "allreduce", *LONG[1:], "--timeout", "30")  # only the kill ends it
        one = launch(*words, "--backend", backend, program=step, env=slurm_hosts.environment(environment()))
        assert one.code_after(signal.SIGKILL, victim, within_s=TIMEOUT_S + 20) != 0
        assert re.search(rf"srun: error: .*task {victim}: Killed", one.said)
        assert re.search(rf"rank {victim} \({slurm_hosts.nodes[victim]}, pid {one.pids[victim]}\) ended unexpectedly", one.said), one.said
        assert "interrupted by" not in one.said
        assert one.stored().info["launcher"] == "srun"

    @pytest.mark.often("mpi")
    @pytest.mark.parametrize("backend", ["gloo", "mpi"])
    def test_the_parent(self, backend, launch):
        assert launch(*LONG, "--backend", backend).ends_with_its_parent().rows


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_sigterm_is_reported_by_the_code(backend, launch):
    assert launch(*LONG, "--backend", backend).ends_after_sigterm().rows


class TestStopped:
    """A rank that is alive and does nothing: no library notices."""

    @pytest.mark.parametrize(("backend", "victim"), [("mpi", 1), *sample([("mpi", 0), ("gloo", 0), ("gloo", 1)], 1)])
    def test_it_is_named_and_the_run_ends(self, backend, victim, launch):
        assert launch(*LONG, "--max-time", "2", "--backend", backend).ends_after_a_stop_of(victim).rows

    def test_a_pause_shorter_than_the_deadline_does_no_harm(self, launch):
        assert launch(*ENDING, "--backend", "mpi").survives_a_pause_of(1).rows


class TestSuspended:
    """All ranks stand still for longer than the deadline. Their own timers show it, and no rank is accused."""

    DEADLINE_S = 10  # a busy machine needs seconds to open a library
    WORDS = (*LONG, "--timeout", str(DEADLINE_S))

    def reports_the_pause(self, one, began):
        """The launch ends and says for how long all ranks stood still."""
        assert one.end(within_s=self.DEADLINE_S + 30) != 0
        self.names_the_pause(one, time.monotonic() - began)

    def names_the_pause(self, one, lasted_s):
        """The only reason is the pause, which did not last longer than the test."""
        pauses = re.findall(r"collbench: hang: .*: all 2 ranks were paused for (\d+) s: their job was suspended", one.said)
        assert len(pauses) == 1 and self.DEADLINE_S < int(pauses[0]) < lasted_s, one.said
        assert not re.search(r"collbench: .*(is behind|is stopped|carries nothing|does not answer|interrupted by)", one.said), one.said
        assert one.stored().info["exit_code"] == 4
        one.everybody_left()

    def test_ranks_of_mpiexec_that_nobody_continues(self, launch):
        """The kernel continues them after a while, so that they can report it."""
        one = launch("-n", "2", *PROGRAM, *self.WORDS, "--backend", "mpi", program=(str(MPICH),))
        began = time.monotonic()
        for pid in one.pids:
            os.kill(pid, signal.SIGSTOP)
        self.reports_the_pause(one, began)

    def test_ranks_of_mpiexec_that_are_continued(self, launch):
        """MPICH has no deadline of its own: they go on, and the row has the pause, or on a busy machine they end because of it."""
        words = ("allreduce", "--sizes", "256K,512K", "-n", "100000", "--max-time", "6", "--out", "run", "--timeout", str(self.DEADLINE_S))
        one = launch("-n", "2", *PROGRAM, *words, "--backend", "mpi", program=(str(MPICH),))
        time.sleep(2)  # then the second case is measured
        began = time.monotonic()
        for pid in one.pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(1.3 * self.DEADLINE_S)
        for pid in one.pids:
            os.kill(pid, signal.SIGCONT)
        if one.end(within_s=60):
            self.names_the_pause(one, time.monotonic() - began)
            return
        paused = [row for row in one.stored().rows if "straggler" in row.flags]
        assert any(min(row.evidence["paused_s"].values()) > self.DEADLINE_S for row in paused), paused
        one.everybody_left()

    @pytest.mark.slurm
    @pytest.mark.parametrize("backend", sample(["gloo", "mpi"], 1))
    def test_a_step_of_slurm_is_suspended(self, backend, slurm_hosts, launch):
        """For longer than the kernel leaves the ranks stopped: they continue to report it, and may end before the step is resumed."""
        step = ("srun", "-N2", f"--mpi={'pmi2' if backend == 'mpi' else 'none'}", *PROGRAM)
        one = launch(*self.WORDS, "--backend", backend, program=step, env=slurm_hosts.environment(environment()))
        job = one.stored().info["allocation_id"].rpartition("-")[2]
        began = time.monotonic()
        assert slurm_hosts.call(["scontrol", "suspend", job]).returncode == 0
        time.sleep(2.2 * self.DEADLINE_S)
        slurm_hosts.call(["scontrol", "resume", job])
        self.reports_the_pause(one, began)


@pytest.mark.impi
class TestIntelMpi:
    """The faults of a rank of MPICH, on ranks of Intel MPI."""

    @pytest.fixture
    def own(self, impi_python, launch):
        """Starts ranks without a launcher: collbench calls mpiexec."""
        return lambda *words: launch(*words, "--backend", "mpi", program=(impi_python, *PROGRAM[1:]))

    @pytest.fixture
    def mpiexec(self, impi_python, launch):
        """Starts ranks by its mpiexec with these options."""
        line, program = ("-n", "2", impi_python, *PROGRAM[1:], *LONG, "--backend", "mpi"), (str(Path(impi_python).with_name("mpiexec")),)
        return lambda *options: launch(*options, *line, program=program)

    @pytest.mark.parametrize("victim", sample([0, 1], 1))
    def test_a_killed_rank_is_named(self, victim, own):
        """By the other rank, or by the parent if mpiexec was faster; its code, 255, does not have the signal."""
        one = own(*LONG)
        assert one.code_after(signal.SIGKILL, victim) == 4
        assert re.search(rf"rank {victim} \((\S+, )?pid {one.pids[victim]}\) ended (first|unexpectedly)", one.said), one.said

    @pytest.mark.parametrize("victim", sample([0, 1], 1))
    def test_its_mpiexec_ends_all_ranks_and_no_other_one_is_named(self, victim, mpiexec):
        one = mpiexec()
        assert one.code_after(signal.SIGKILL, victim) != 0
        assert set(re.findall(r"collbench: .*(rank \d+) \(\S+, pid \d+\)", one.said)) <= {f"rank {victim}"}, one.said
        assert one.stored().info["launcher_facts"] == {"mpirun": "Intel MPI"}

    @pytest.mark.parametrize("victim", sample([0, 1], 1))
    def test_without_cleanup_the_other_rank_reports_the_victim(self, victim, mpiexec):
        one = mpiexec("-disable-auto-cleanup")
        assert one.code_after(signal.SIGKILL, victim) in (4, 9, 255)  # 255: of the killed rank 0
        assert set(re.findall(r"collbench: .*(rank \d+) \(\S+, pid \d+\)", one.said)) == {f"rank {victim}"}, one.said

    @pytest.mark.parametrize("victim", [0, 1])
    def test_a_stopped_rank_is_named_and_the_run_ends(self, victim, own):
        assert own(*LONG, "--max-time", "2").ends_after_a_stop_of(victim).rows

    def test_a_pause_shorter_than_the_deadline_does_no_harm(self, own):
        assert own(*ENDING).survives_a_pause_of(1).rows

    def test_the_parent(self, own):
        assert own(*LONG).ends_with_its_parent().rows


# A rank in which something fails at a position without a prepared sentence.
BROKEN = """
import os, sys
if os.environ.get("COLLBENCH_RANK", os.environ.get("PMI_RANK")) == {rank!r}:
    import collbench.measuring.{module} as module
    def broken(*arguments, **named):
        {action}
    assert hasattr(module, {name!r}), "the name to replace"
    module.{name} = broken
sys.argv[0] = "collbench"
from collbench.cli.main import main
main()
"""


class TestBroken:
    @pytest.fixture
    def broken(self, tmp_path):
        """Runs two ranks of which one does `action` instead of a function of the runner."""

        def go(backend, rank, module, name, action):
            code = BROKEN.format(rank=str(rank), module=module, name=name, action=action)
            started = (
                "import sys; from collbench.launch import spawn; from pathlib import Path; import os\n"
                f"mpiexec = spawn.find_mpiexec(os.environ) if {backend == 'mpi'} else None\n"
                f"program = [sys.executable, '-c', {code!r}]\n"
                "sys.exit(spawn.start_local(sys.argv[1:], 2, mpiexec=mpiexec, env=os.environ, program=program))\n"
            )
            words = ("allreduce", "--sizes", "8", "--backend", backend, "--out", "run", "--timeout", "10")
            return run(tmp_path, *words, program=(PROGRAM[0], "-c", started))

        return go

    @pytest.mark.parametrize("backend", ["mpi", pytest.param("gloo", marks=pytest.mark.long)])
    @pytest.mark.parametrize("rank", [0, 1])
    def test_an_exception_without_a_handler(self, backend, rank, broken, tmp_path):
        done = broken(backend, rank, "engine", "measure", "raise ZeroDivisionError('made by the test')")
        assert done.returncode == 4
        assert "ZeroDivisionError: made by the test" in done.stderr and "a bug of collbench" in done.stderr
        until(lambda: not running(tmp_path), "the ranks' end", 10)
        assert read_run(tmp_path / "run").rows == []

    def test_one_that_dies_while_the_others_join(self, broken, tmp_path):
        done = broken("gloo", 1, "open_backends", "_open", "os.kill(os.getpid(), 9)")
        assert done.returncode == 4 and re.search(r"collbench: rank 1 \(pid \d+\) was killed by signal 9 \(SIGKILL\)", done.stderr)
        assert "Traceback" not in done.stderr
        until(lambda: not running(tmp_path), "the ranks' end", 10)
        assert not (tmp_path / "run").exists()

    def test_ranks_that_were_given_different_arguments(self, broken):
        done = broken("mpi", 1, "tasks.cases", "check_memory", "[arguments[1].allgather(None, 'x') for _ in range(2)]")
        assert done.returncode == 4 and re.search(r"rank 1 .*'x' .*arguments", done.stderr)


# Rank 0 is the last to leave, long after the other: it waits before its libraries are left, and after.
LINGERING = """
import os, sys, time
from collbench.cli import main
from collbench.launch import spawn
def lingering(function):
    def call(*arguments, **named):
        if os.environ["PMI_RANK"] == "0":
            time.sleep(0.5)
            print("still there", file=sys.stderr, flush=True)
        return function(*arguments, **named)
    return call
spawn.record_exit = lingering(spawn.record_exit)
main._run_exit_handlers = lingering(main._run_exit_handlers)
sys.argv[0] = "collbench"
main.main()
"""


def test_mpiexec_lets_the_last_rank_leave_in_peace(tmp_path):
    line = (*PROGRAM[:1], "-c", LINGERING, "allreduce", "--sizes", "8", "--backend", "mpi", "--out", "run")
    done = run(tmp_path, "-n", "2", *line, program=(str(MPICH),))
    lines = done.stderr.splitlines()
    assert (done.returncode, lines.count("still there"), lines[-1]) == (0, 2, "still there")
    assert "BAD TERMINATION" not in done.stdout


def test_a_launcher_that_started_fewer_ranks_than_announced(tmp_path):
    line = " ".join((*PROGRAM, "allreduce --sizes 8 --backend mpi --timeout 6 --out run"))
    with socket.create_server(("", 0)) as free:
        port = str(free.getsockname()[1])
    actual = {"WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    done = run(tmp_path, "-n", "2", "sh", "-c", f"RANK=$PMI_RANK exec {line}", program=(str(MPICH),), env=actual)
    assert done.returncode == 4 and "Traceback" not in done.stderr
    assert "rank 2 of 3 did not join within 6 s" in done.stderr
    assert not (tmp_path / "run").exists()
