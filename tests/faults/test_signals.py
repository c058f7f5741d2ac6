"""Ctrl-C, SIGTERM and a lost terminal under every launcher: a readable run folder, the right code, and a last line that is true."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.command import BIN, PROGRAM, environment, run
from tests.conftest import sample
from tests.faults.launch import TIMEOUT_S
from tests.faults.test_faults import LONG, MPICH

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not MPICH.exists() or not (BIN / "torchrun").exists(), reason="needs the extras torch and mpich beside this Python"),
]

WITHIN_S = 10
CALM = (*LONG, "--timeout", "30")  # nothing but the signal is to end these
LAST = re.compile(r"collbench: (.*)interrupted by (SIG\w+) after (\d+) of (\d+) .* in run; go on with `collbench --resume run`")


def told_truly(one, name, code):
    """The last line of the output names the signal and counts the stored cases; the folder is complete and agrees."""
    last = [line for line in one.said.splitlines() if line.startswith("collbench: ")][-1]
    found = LAST.fullmatch(last)
    assert found, one.said
    kept = stored_truly(one, name, code)
    assert (found[2], int(found[3])) == (name, kept) and int(found[4]) > kept
    assert "defect" not in one.said


def stored_truly(one, name, code):
    """The folder is complete and has the reason of the end; returns how many cases are in it."""
    stored = one.stored()
    assert (stored.info["exit_code"], stored.info["rows"]) == (code, len(stored.rows)) and stored.finished
    assert f"interrupted by {name}" in events(one)[-1]["text"]
    return len(stored.rows)


def events(one):
    found = [json.loads(line) for line in (one.folder / "run/events.jsonl").read_text().splitlines()]
    return [event for event in found if event["kind"] in ("abort", "hang")]


EACH = [(backend, number) for backend in ("gloo", "mpi") for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


class TestOurOwnStart:
    @pytest.mark.often("gloo-2")
    @pytest.mark.parametrize(("backend", "number"), sample(EACH, 1))
    def test_the_last_line(self, backend, number, launch):
        one, code = launch(*CALM, "--backend", backend), 130 if number == signal.SIGINT else 143
        assert one.code_after(number, within_s=WITHIN_S) == code
        told_truly(one, number.name, code)
        assert "Traceback" not in one.said
        last = [line for line in one.said.splitlines() if line != "run folder: run"][-1]
        assert last.startswith("collbench: ") and "interrupted by " in last
        assert "Ctrl-C" not in (one.folder / "stdout").read_text()  # hydra would print it among the data

    def test_what_was_interrupted_goes_on(self, launch, tmp_path):
        brief = ("allreduce", "--sizes", "8,1K,1K-4M", "-n", "20", "--backend", "gloo")
        one = launch(*brief, "--out", "run")
        assert one.code_after(signal.SIGINT, within_s=WITHIN_S) == 130
        kept = len(one.stored().rows)
        done = run(tmp_path, *brief, "--resume", "run")
        assert done.returncode == 0 and f"run has {kept} of 14 " in done.stderr
        assert len(one.stored().rows) == 14 and one.stored().info["exit_code"] == 0

    def test_ctrl_c_while_a_rank_is_stopped(self, launch):
        """Its partner is inside a call that never returns: it is ended from another thread, which has the last word."""
        one = launch(*CALM, "--backend", "mpi")
        os.kill(one.pids[1], signal.SIGSTOP)
        assert one.code_after(signal.SIGINT, within_s=WITHIN_S) == 130
        told_truly(one, "SIGINT", 130)

    def test_ctrl_c_twice(self, launch):
        one = launch(*CALM, "--backend", "gloo")
        parent = one.started_by()
        while one.process.poll() is None:
            os.kill(parent, signal.SIGINT)
            time.sleep(0.02)
        assert one.end(WITHIN_S) == 130
        assert re.search(r"collbench: .*interrupted by SIGINT.* run\b", one.said.splitlines()[-1]), one.said
        one.stored()
        one.everybody_left()

    def test_nohup_survives_its_terminal(self, launch):
        brief = ("allreduce", "--sizes", "8,1K,1K-1M", "-n", "20", "--out", "run", "--backend", "gloo")
        one = launch(*PROGRAM, *brief, program=("nohup",))
        assert one.code_after(signal.SIGHUP, within_s=60) == 0
        assert one.stored().finished


FIXTURES = {"mpirun of Open MPI": "openmpi_python", "mpiexec of Intel MPI": "impi_python"}
OTHER_MPIS = [
    pytest.param("mpirun of Open MPI", marks=pytest.mark.openmpi),
    pytest.param("mpiexec of Intel MPI", marks=pytest.mark.impi),
]


def under(launcher, python):
    """The launcher, and what goes between it and the operation."""
    if launcher == "torchrun":
        words = ("--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
        return (str(BIN / "torchrun"),), (*words, *PROGRAM[1:])
    if launcher == "mpiexec of MPICH":
        return (str(MPICH),), ("-n", "2", *PROGRAM)
    return (str(Path(python).parent / launcher.partition(" ")[0]),), ("-n", "2", python, *PROGRAM[1:])


class TestLaunchers:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    @pytest.mark.parametrize("launcher", ["torchrun", "mpiexec of MPICH", *OTHER_MPIS])
    def test_the_last_line(self, launcher, number, launch, request):
        fixture = FIXTURES.get(launcher)
        program, words = under(launcher, str(request.getfixturevalue(fixture)) if fixture else "")
        one = launch(*words, *CALM, "--backend", "gloo" if launcher == "torchrun" else "mpi", program=program)
        assert one.code_after(number, within_s=WITHIN_S) != 0
        if "Open" in launcher:
            # prterun turns Ctrl-C into SIGTERM, prints nothing any longer, and kills all ranks at most 0.25 s later, whatever its parameter
            # odls_base_sigkill_timeout is. A rank stores the reason, then the code; each waits for the disk. On a busy machine
            # the kill may come between them.
            assert events(one)[-1]["text"].endswith("interrupted by SIGTERM")
            assert one.stored().info.get("exit_code", 143) == 143
        else:
            told_truly(one, number.name, 130 if number == signal.SIGINT else 143)

    def test_one_rank_alone_is_asked_to_end(self, launch):
        program, words = under("mpiexec of MPICH", "")
        one = launch(*words, *CALM, "--backend", "mpi", program=program)
        assert one.code_after(signal.SIGTERM, 1, WITHIN_S) != 0
        told_truly(one, "SIGTERM", 143)
        assert re.search(rf"rank 1 \(\S+, pid {one.pids[1]}\) was interrupted by SIGTERM", one.said)


class TestTorchrunRestarts:
    def test_the_second_start_measures_nothing(self, launch):
        program, words = under("torchrun", "")
        one = launch("--max-restarts", "1", *words, *LONG, "--backend", "gloo", program=program)
        assert one.code_after(signal.SIGKILL, 1, within_s=60) != 0
        assert one.said.count("(restart 1)") == 1
        assert one.stored().info["exit_code"] == 4
        assert [path.name for path in one.folder.iterdir() if path.is_dir()] == ["run"]

    def test_a_stopped_rank_does_not_hold_it_for_half_a_minute(self, launch):
        program, words = under("torchrun", "")
        one = launch(*words, *LONG, "--backend", "gloo", program=program)
        assert one.code_after(signal.SIGSTOP, 1, within_s=TIMEOUT_S + 10) != 0
        assert re.search(r"rank 1\b.*is stopped", one.said), one.said


@pytest.mark.slurm
class TestSlurm:
    def launched(self, bed, launch, *options, words=CALM):
        step = ("srun", "-N2", "--mpi=none", *options, *PROGRAM)
        return launch(*words, "--backend", "gloo", program=step, env=bed.environment(environment()))

    def ends_truly(self, one, within_s):
        assert one.end(within_s) != 0
        told_truly(one, "SIGTERM", 143)
        one.everybody_left()

    @pytest.mark.parametrize("options", [(), pytest.param(("--signal=TERM",), marks=pytest.mark.long)], ids=["end", "as --signal=TERM@60"])
    def test_scancel(self, options, slurm_hosts, launch):
        one = self.launched(slurm_hosts, launch)
        job = one.stored().info["allocation_id"].rpartition("-")[2]
        assert slurm_hosts.call(["scancel", *options, job]).returncode == 0
        self.ends_truly(one, 30)

    @pytest.mark.parametrize("victim", sample([0, 1], 1))
    def test_without_kill_on_bad_exit_a_stopped_rank_ends_all_the_same(self, victim, slurm_hosts, launch):
        assert self.launched(slurm_hosts, launch, words=LONG).code_after(signal.SIGSTOP, victim, within_s=TIMEOUT_S + 10) != 0

    @pytest.mark.timeout(240)
    def test_the_time_limit_itself(self, slurm_hosts, launch):
        endless = (*CALM, "-n", "1000000")  # until --max-time ends each case
        one = self.launched(slurm_hosts, launch, "--time=1", "--signal=TERM@30", words=endless)
        with pytest.raises(subprocess.TimeoutExpired):
            one.process.wait(1)
        self.ends_truly(one, 85)
