"""`collbench doctor --launch` as a process: with this Python's MPI, in real launches, and with other options."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import BIN, PROGRAM, environment, run, run_here
from tests.launch import captured
from tests.launchers.stored import measured, stored
from tests.testbeds import SlurmBed

pytestmark = pytest.mark.contract

DOCTOR = ("doctor", "--launch")
BARE = "/nowhere"  # a PATH without any launcher
OVER_MPI = "2 ranks on this host, over MPI"

with_mpich = pytest.mark.skipif(not (BIN / "mpiexec").exists(), reason="no MPICH in this environment: pip install collbench[mpich]")


def document(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    assert found["schema"] == 1
    return found


def lines(expected: dict[str, Any]) -> dict[str, str]:
    return {each["purpose"]: each["line"] for each in expected["type"]}


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the options of a command line of srun, and the command after them."""
    assert words[0] == "srun"
    first = next(at for at, word in enumerate(words[1:], 1) if not word.startswith("-"))
    return words[1:first], words[first:]


@with_mpich
class TestThisShell:
    def test_the_launcher_and_library_of_this_shell(self, tmp_path: Path) -> None:
        done = run_here(tmp_path, *DOCTOR, env={"PATH": f"{BIN}"})
        assert (done.returncode, done.stderr) == (0, "")
        actual = done.stdout.splitlines()
        assert actual[0].startswith("this shell  ")
        assert actual[1].startswith("names       ") and actual[1].endswith(" (this host)")
        assert actual[2].startswith("MPI         mpi4py ") and "loads MPICH " in actual[2]
        assert actual[3].split() == ["launchers", "mpirun", f"{BIN}/mpirun", "MPICH", actual[3].split()[-1]]
        assert f"  {OVER_MPI} " in done.stdout and " mpirun -n 2 collbench allreduce --backend mpi\n" in done.stdout

    @pytest.mark.often
    @pytest.mark.long
    @pytest.mark.openmpi
    def test_the_printed_command_starts_two_ranks(self, openmpi_python: str, tmp_path: Path) -> None:
        """With the real mpiexec of the other MPI first in PATH."""
        path = f"{Path(openmpi_python).parent}:/usr/bin:/bin"
        asked = run(tmp_path, *DOCTOR, "--format", "json", env={"PATH": path})
        actual = document(asked.stdout)
        assert asked.returncode == 1 and [each["severity"] for each in actual["problems"] if each["severity"] != "note"] == ["severe"]
        typed = shlex.split(lines(actual)[OVER_MPI])
        found = stored(run(tmp_path, "--sizes", "1K", "--out", "run", program=typed, env={"PATH": path}), tmp_path)
        assert measured(found) == {"mpi": (2, 1, 0)}


def test_only_rank_0_of_torchrun_prints(tmp_path: Path) -> None:
    done = run_here(tmp_path, *DOCTOR, env={**captured.TORCHRUN, "PATH": BARE})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@with_mpich
@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.timeout(150)
class TestSlurm:
    def test_a_step_with_the_wrong_mpi(self, slurm_hosts: SlurmBed) -> None:
        done = slurm_hosts.srun(["-N2", "--mpi=pmix"], [*PROGRAM, *DOCTOR], 60, environment())
        assert done.returncode == 1
        assert done.stdout.startswith("this shell  srun --mpi=pmix ") and "rank 0 of 2" in done.stdout.split("\n")[0]
        assert done.stdout.count("this shell  Slurm job ") == 1 and "step 0\n" in done.stdout
        assert done.stdout.count("severe: ") == 1
        assert "  srun --mpi=pmi2 --kill-on-bad-exit=1 " in done.stdout

    def test_the_printed_command_in_a_job_measures_over_mpi(self, slurm_hosts: SlurmBed, tmp_path: Path) -> None:
        asked = slurm_hosts.call(["salloc", "-N2", *PROGRAM, *DOCTOR, "--format", "json"], 60, environment())
        actual = document(asked.stdout)
        assert asked.returncode == 0 and {each["severity"] for each in actual["problems"]} <= {"note"}, actual["problems"]
        assert " 2 nodes" in actual["places"][0]
        (srun,) = [each for each in actual["launchers"] if each["name"] == "srun"]
        assert srun["family"] == "Slurm" and {"pmi2", "none"} <= set(srun["mpi_plugins"])
        srun_words, typed = split(shlex.split(lines(actual)["all nodes of this Slurm job"]))
        asked_for = [*typed, "--sizes", "1K", "--out", str(tmp_path / "run")]
        found = stored(slurm_hosts.srun(["-N2", *srun_words], asked_for, 90, environment()), tmp_path)
        assert measured(found)["mpi"] == (2, 2, 0)
