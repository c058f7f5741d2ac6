"""How a shell would launch: doubles of launchers in PATH, libraries by their version text, environments of real launchers."""

import os
import shlex
import socket
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from collbench import addresses
from collbench.cli import main
from collbench.launch import explain, slurm
from collbench.launch.explain import MpiLibrary, explained, family_of, launchers, library, plugins_of, rank_of
from collbench.plugin import plugins
from tests.launch import captured

HYDRA = "HYDRA build details:\n    Version:                                 5.0.2\n    Release Date: Fri\n"
OPEN_MPI = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.10 Build 20230619 (id: c2e19c2f3e)\nCopyright 2003-2023, Intel Corporation.\n"
PLUGINS = "MPI plugin types are...\n\tpmix\n\tnone\n\tcray_shasta\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\n"
WITHOUT_PMIX = "MPI plugin types are...\n\tnone\n\tpmi2\n"


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "python"))
    monkeypatch.setattr(slurm, "resolve", lambda host: ("10.0.0.1",))
    monkeypatch.setattr(explain, "resolve", lambda host: ("10.0.0.1",))
    monkeypatch.setattr(explain, "own_addresses", lambda: ("10.0.0.1",))
    monkeypatch.setattr(explain, "route_to", lambda address: "10.0.0.1")
    monkeypatch.setattr(slurm, "known_addresses", lambda node: ())
    monkeypatch.setattr(slurm, "ancestors", lambda: ())


class Shell:
    """A shell with doubles of launchers in its PATH, in which mpi4py loads this library."""

    def __init__(self, folder, said, monkeypatch):
        self.folder = folder
        self.paths: list[str] = []
        loaded = MpiLibrary(said, "/site/libmpi.so", "4.1.2") if said else MpiLibrary(problem="mpi4py is not installed: pip install it")
        monkeypatch.setattr(explain, "library", lambda env: loaded)

    def has(self, place, *names, version, plugins=""):
        """Put programs of these names into a folder that comes first in PATH; `plugins`: their output for --mpi=list."""
        (self.folder / place).mkdir(parents=True, exist_ok=True)
        for name in names:
            program = self.folder / place / name
            program.write_text(
                f"#!/bin/sh\ncase $1 in --mpi=list) printf %s {shlex.quote(plugins)};; *) printf %s {shlex.quote(version)};; esac\n"
            )
            program.chmod(0o755)
        self.paths.insert(0, str(self.folder / place))
        return self

    def explained(self, **env):
        return explained({"PATH": os.pathsep.join(self.paths), **env})


@pytest.fixture
def mpich(tmp_path, monkeypatch):
    return Shell(tmp_path, captured.MPICH, monkeypatch)


@pytest.fixture
def open_mpi(tmp_path, monkeypatch):
    return Shell(tmp_path, captured.OPEN_MPI, monkeypatch)


def commands(expected, word=""):
    """Return the words of each printed command line, of those with this word if it is given."""
    return [words for words in (shlex.split(each.line) for each in expected.commands) if not word or word in words]


class TestPrograms:
    @pytest.mark.parametrize(("text", "known"), [
        (OPEN_MPI, ("Open MPI", "5.0.11", "pmix")), ("mpiexec (OpenRTE) 4.1.4\n", ("Open MPI", "4.1.4", "pmix")),
        (HYDRA, ("MPICH", "5.0.2", "pmi")), (INTEL, ("Intel MPI", "2021.10", "pmi")), ("slurm 23.11.4\n", ("Slurm", "23.11.4", "")),
        ("slurm-wlm 22.05.8\n", ("Slurm", "22.05.8", "")),
        ("Client Version: v1.32.4\nKustomize Version: v5.5.0\n", ("Kubernetes", "1.32.4", "")),
        ("srun: error: slurm 23.11.4 cannot be reached", ("", "", "")), ("", ("", "", "")),
    ])  # fmt: skip
    def test_the_family_follows_from_the_version_text(self, text, known):
        assert family_of(text) == known

    def test_the_process_managers_of_srun(self):
        assert plugins_of(PLUGINS) == ("pmix", "none", "cray_shasta", "pmi2")
        assert plugins_of("srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: openmpi\n") == ("none", "pmi2", "openmpi")
        assert plugins_of("srun: fatal: Could not establish a configuration source") == ()

    @pytest.mark.contract
    def test_the_first_in_path_and_the_others(self, mpich):
        mpich.has("b", "mpiexec", version=HYDRA).has("a", "mpiexec", version=OPEN_MPI)
        found = launchers({"PATH": os.pathsep.join([mpich.paths[0], mpich.paths[0], mpich.paths[1]])})
        assert [(each.path.parent.name, each.family, each.first) for each in found] == [("a", "Open MPI", True), ("b", "MPICH", False)]

    @pytest.mark.contract
    def test_a_program_that_fails_has_its_last_line_as_trouble(self, mpich):
        mpich.has("a", "srun", version="srun: error: DNS\nsrun: fatal: no configuration")
        (srun,) = mpich.explained().launchers
        assert (srun.family, srun.trouble) == ("", "srun: fatal: no configuration")
        assert commands(mpich.explained(), "srun") == []


class TestMismatches:
    @pytest.mark.contract
    def test_a_shell_without_launchers_or_with_one_of_the_same_process_manager(self, mpich):
        actual = mpich.explained()
        assert len(actual.places) == 1
        assert (actual.launchers, actual.problems, actual.severe) == ((), (), False)
        assert [words[1:] for words in commands(actual)] == [["-P", "-m", "collbench", "allreduce", "--ranks", "2"]]
        assert not mpich.has("a", "mpirun", version=INTEL).explained().problems

    @pytest.mark.contract
    def test_the_launcher_of_another_mpi_first_in_path(self, mpich, tmp_path):
        actual = mpich.has("right", "mpiexec", version=HYDRA).has("wrong", "mpirun", "mpiexec", version=OPEN_MPI).explained()
        (problem,) = actual.problems
        assert problem.severity == "severe" and actual.severe
        assert all(value in problem.what for value in (f"{tmp_path}/wrong", "Open MPI", "MPICH 5.0.2", f"{tmp_path}/right/mpiexec"))
        assert [words[:3] for words in commands(actual, "-n")] == [[f"{tmp_path}/right/mpiexec", "-n", "2"]]

    @pytest.mark.contract
    def test_no_launcher_of_this_mpi_or_none_that_has_its_process_manager(self, open_mpi):
        slurm_alone = open_mpi.has("a", "srun", version="slurm 23.11.4", plugins=WITHOUT_PMIX).explained()
        (problem,) = slurm_alone.problems
        assert problem.severity == "warning" and not slurm_alone.severe
        assert all(value in problem.what for value in ("Open MPI 5.0.11", "--mpi=pmix", "none, pmi2"))
        actual = open_mpi.has("wrong", "mpiexec", version=HYDRA).explained()
        assert actual.severe and actual.problems[0].what.endswith("Open MPI 5.0.11")
        assert commands(actual, "-n") == []

    @pytest.mark.contract
    def test_no_library(self, tmp_path, monkeypatch):
        actual = Shell(tmp_path, "", monkeypatch).has("a", "mpirun", "srun", version=OPEN_MPI).explained()
        assert [problem.severity for problem in actual.problems] == ["note"] and "mpi4py" in actual.problems[0].what


class TestHostNames:
    """Host names that decide whether ranks can connect, reported before a launch fails."""

    NETWORK: ClassVar = {"n1": ("10.0.0.1",), "n2": ("10.0.0.2",), "six": ("fd00::6",), "localhost": ("127.0.0.1",)}

    @pytest.fixture
    def problems(self, mpich, monkeypatch):
        """Return a function that lists the problems on a host n1 with these names and addresses."""

        def reported(names, own=("10.0.0.1",), **env):
            known = {**self.NETWORK, **names}
            routed = {addresses.family_of(address) for address in own}
            monkeypatch.setattr(socket, "gethostname", lambda: "n1")
            for module in (slurm, explain):
                monkeypatch.setattr(module, "resolve", lambda host: known.get(host, (host,) if addresses.is_numeric(host) else ()))
            monkeypatch.setattr(explain, "own_addresses", lambda: own)
            monkeypatch.setattr(explain, "route_to", lambda address: own[0] if addresses.family_of(address) in routed else None)
            return [(problem.severity, problem.what) for problem in mpich.explained(**env).problems]

        return reported

    ALLOCATION: ClassVar = {**captured.SBATCH, "SLURM_JOB_NODELIST": "n[1-2]"}
    TORCHRUN: ClassVar = {**captured.TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}

    @pytest.mark.parametrize(("names", "own", "severity", "words"), [
        ({"n1": ("127.0.1.1",)}, ("10.0.0.1",), "note", ("'n1'", "127.0.1.1", "10.0.0.1", "MASTER_ADDR")),
        ({"n1": ("127.0.1.1",)}, (), "severe", ("'n1'",)),
        ({"n1": ("fd00::1",), "n2": ("fd00::2",)}, ("fd00::1",), "note", ("IPv6", "n1, n2")),
        ({"n1": ("fd00::1",)}, ("fd00::1",), "severe", ("n2 has only IPv4",)),
    ], ids=["the name of this host at loopback", "no address of the network", "IPv6 only", "no common family"])  # fmt: skip
    def test_names_of_hosts(self, names, own, severity, words, problems):
        assert problems({}, **self.ALLOCATION) == []
        ((reported, what),) = problems(names, own=own, **self.ALLOCATION)
        assert reported == severity and all(word in what for word in words)

    @pytest.mark.parametrize(("master", "severity", "host"), [
        ("localhost", "warning", "'localhost'"), ("nowhere", "severe", "'nowhere'"), ("six", "severe", "'six' (fd00::6)"),
    ])  # fmt: skip
    def test_a_master_address_that_cannot_be_reached(self, master, severity, host, problems):
        found = [one for one in problems({}, **{**self.TORCHRUN, "MASTER_ADDR": master}) if "MPI" not in one[1]]
        assert [one[0] for one in found] == [severity] and host in found[0][1]


class TestPlaces:
    @pytest.mark.contract
    @pytest.mark.parametrize("manager", ["pmi2", "pmix", "none"])
    def test_in_a_step(self, manager, mpich):
        env = {"pmi2": captured.SRUN_PMI2, "pmix": captured.SRUN_PMIX, "none": captured.SRUN_NONE}[manager]
        actual = mpich.has("a", "srun", version="slurm 23.11.4", plugins=PLUGINS).explained(**env)
        step, job = actual.places
        assert f"--mpi={manager} " in step and "rank 2 of 3" in step and job.startswith("Slurm job 8 ") and job.endswith("step 0")
        assert ("PMI" in step) == (manager != "none")
        assert actual.severe == (manager != "pmi2")
        assert [words[:3] for words in commands(actual, "srun")] == [["srun", "--mpi=pmi2", "--kill-on-bad-exit=1"]]
        assert len(actual.problems) == actual.severe

    def test_in_a_step_of_one_task_under_torchrun_and_with_invalid_variables(self, mpich):
        alone = mpich.explained(**captured.SRUN_ONE)
        assert [problem.severity for problem in alone.problems] == ["note"] and "has one task" in alone.problems[0].what
        assert commands(alone, "--ranks")
        torchrun = mpich.explained(**captured.TORCHRUN)  # only MPI is missing
        (place,) = torchrun.places
        assert "torchrun" in place and "rank 1 of 2" in place
        assert [problem.severity for problem in torchrun.problems] == ["warning"] and "torchrun" in torchrun.problems[0].what
        assert [words[-1] for words in commands(torchrun)] == ["allreduce"]
        invalid = mpich.explained(**{**captured.TORCHRUN, "RANK": "7"})
        assert invalid.severe and invalid.problems[0].what.startswith("RANK=7 ")

    @pytest.mark.contract
    @pytest.mark.parametrize("how", captured.NO_STEP)
    def test_in_a_job_without_a_step(self, how, open_mpi):
        actual = open_mpi.has("a", "srun", version="slurm 23.11.4", plugins=PLUGINS).explained(**captured.NO_STEP[how])
        (place,) = actual.places
        assert place.startswith("Slurm job 8 ") and "step 0" not in place
        assert not actual.problems
        assert [words[:3] for words in commands(actual, "srun")] == [["srun", "--mpi=pmix", "--kill-on-bad-exit=1"]]

    @pytest.mark.contract
    def test_under_mpirun(self, mpich):
        fitting = mpich.has("a", "mpiexec", version=HYDRA).explained(**captured.HYDRA)
        assert not fitting.problems and [words[-1] for words in commands(fitting)] == ["allreduce"]
        actual = mpich.explained(**captured.PRTE)
        assert len(commands(actual)) == len(commands(actual, "-n")) + len(commands(actual, "mpirun")) == (2 if "deploy" in plugins() else 1)
        (place,) = actual.places
        assert "Open MPI" in place and "rank 2 of 3" in place
        assert actual.severe and "Open MPI" in actual.problems[0].what and "MPICH 5.0.2" in actual.problems[0].what

    def test_in_a_pod(self, mpich):
        pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "job-3", "JOB_COMPLETION_INDEX": "3"}
        known = {"COLLBENCH_PODS": "4", "MASTER_ADDR": "job-0.job", "COLLBENCH_SECRET": "x" * 32}
        actual = mpich.explained(**pod, **known)
        assert "indexed Job" in actual.places[0] and "rank 3 of 4" in actual.places[0]
        assert actual.places[1].startswith("pod job-3 ") and "index 3" in actual.places[1]
        assert bool(commands(actual, "kubernetes")) == ("deploy" in plugins()) and not actual.severe
        alone = mpich.explained(**pod)
        assert alone.severe and "pod 3 " in alone.problems[0].what

    def test_the_rank_of_this_process(self):
        assert [rank_of(env) for env in ({}, captured.SBATCH, captured.TORCHRUN, captured.SRUN_PMI2)] == [0, 0, 1, 2]


@pytest.mark.contract
def test_collbench_accepts_every_printed_command(mpich, capsys):
    mpich.has("a", "srun", version="slurm 23.11.4", plugins=PLUGINS).has("a", "mpirun", version=HYDRA)
    actual = commands(mpich.has("a", "kubectl", version="Client Version: v1.32.4").explained())
    assert len(actual) == (6 if "deploy" in plugins() else 3)
    for words in actual:
        ours = words[words.index("collbench") + 1 :]  # `python -m collbench`: no program is beside this Python
        if ours[0] == "emit":
            assert main.run(ours) == 0 and capsys.readouterr().out.count("allreduce")
        else:
            main.parsed(ours)


@pytest.mark.contract
def test_the_library_of_this_python_and_a_missing_one():
    pytest.importorskip("mpi4py")
    loaded = library(os.environ)
    assert loaded.name and not loaded.problem and loaded.managers
    assert Path(loaded.path).is_file() and Path(loaded.path).name.startswith("libmpi")
    missing = library({**os.environ, "MPI4PY_LIBMPI": "/nowhere/libmpi.so"})
    assert (missing.name, missing.managers) == ("", frozenset())
    assert "/nowhere/libmpi.so" in missing.problem
