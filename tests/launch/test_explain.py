"""How a shell would launch: launchers that are stand-ins in PATH, libraries by what they print, environments of real launchers."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from collbench import addresses
from collbench.cli import main
from collbench.launch import explain, slurm
from collbench.launch import explain as explain_names
from collbench.launch.explain import Explanation, MpiLibrary, explained, family_of, launchers, library, plugins_of, rank_of
from tests.launch import captured

HYDRA = "HYDRA build details:\n    Version:                                 5.0.2\n    Release Date: Fri\n"
OPEN_MPI = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.10 Build 20230619 (id: c2e19c2f3e)\nCopyright 2003-2023, Intel Corporation.\n"
PLUGINS = "MPI plugin types are...\n\tpmix\n\tnone\n\tcray_shasta\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\n"
WITHOUT_PMIX = "MPI plugin types are...\n\tnone\n\tpmi2\n"


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "python"))
    monkeypatch.setattr(slurm, "resolve", lambda host: ("10.0.0.1",))
    monkeypatch.setattr(slurm, "_node_address", lambda node: "")
    monkeypatch.setattr(explain_names, "resolve", lambda host: ("10.0.0.1",))
    monkeypatch.setattr(explain_names, "own_addresses", lambda: ("10.0.0.1",))
    monkeypatch.setattr(explain_names, "route_to", lambda address: "10.0.0.1")
    monkeypatch.setattr(slurm, "_stepd_title", lambda: "")


class Shell:
    """A shell with stand-ins in its PATH, in which mpi4py loads this library."""

    def __init__(self, folder: Path, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.paths: list[str] = []
        loaded = MpiLibrary(said, "/site/libmpi.so", "4.1.2") if said else MpiLibrary(problem="mpi4py is not installed: pip install it")
        monkeypatch.setattr(explain, "library", lambda env: loaded)

    def has(self, place: str, *names: str, version: str, plugins: str = "") -> Shell:
        """Programs of these names in a folder that comes first in PATH from now on; `plugins`: what --mpi=list prints."""
        (self.folder / place).mkdir(parents=True, exist_ok=True)
        for name in names:
            program = self.folder / place / name
            program.write_text(
                f"#!/bin/sh\ncase $1 in --mpi=list) printf %s {shlex.quote(plugins)};; *) printf %s {shlex.quote(version)};; esac\n"
            )
            program.chmod(0o755)
        self.paths.insert(0, str(self.folder / place))
        return self

    def told(self, **env: str) -> Explanation:
        return explained({"PATH": os.pathsep.join(self.paths), **env})


@pytest.fixture
def mpich(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(tmp_path, captured.MPICH, monkeypatch)


@pytest.fixture
def open_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(tmp_path, captured.OPEN_MPI, monkeypatch)


def lines(told: Explanation) -> dict[str, str]:
    return {each.purpose: each.line for each in told.commands}


class TestWhatIsFound:
    @pytest.mark.parametrize(
        ("text", "known"),
        [
            (OPEN_MPI, ("Open MPI", "5.0.11", "pmix")),
            ("mpiexec (OpenRTE) 4.1.4\n", ("Open MPI", "4.1.4", "pmix")),
            (HYDRA, ("MPICH", "5.0.2", "pmi")),
            (INTEL, ("Intel MPI", "2021.10", "pmi")),
            ("slurm 23.11.4\n", ("Slurm", "23.11.4", "")),
            ("slurm-wlm 22.05.8\n", ("Slurm", "22.05.8", "")),
            ("Client Version: v1.32.4\nKustomize Version: v5.5.0\n", ("Kubernetes", "1.32.4", "")),
            ("srun: error: slurm 23.11.4 cannot be reached", ("", "", "")),
            ("", ("", "", "")),
        ],
    )
    def test_by_what_it_prints(self, text: str, known: tuple[str, str, str]) -> None:
        assert family_of(text) == known

    def test_what_srun_can_start(self) -> None:
        assert plugins_of(PLUGINS) == ("pmix", "none", "cray_shasta", "pmi2")
        assert plugins_of("srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: openmpi\n") == ("none", "pmi2", "openmpi")
        assert plugins_of("srun: fatal: Could not establish a configuration source") == ()

    def test_the_first_in_path_and_the_others(self, mpich: Shell) -> None:
        mpich.has("b", "mpiexec", version=HYDRA).has("a", "mpiexec", version=OPEN_MPI)
        found = launchers({"PATH": os.pathsep.join([mpich.paths[0], mpich.paths[0], mpich.paths[1]])})
        assert [(each.path.parent.name, each.family, each.first) for each in found] == [("a", "Open MPI", True), ("b", "MPICH", False)]

    def test_one_that_does_not_work_says_why(self, mpich: Shell) -> None:
        mpich.has("a", "srun", version="srun: error: DNS\nsrun: fatal: no configuration")
        (srun,) = mpich.told().launchers
        assert (srun.family, srun.trouble) == ("", "srun: fatal: no configuration")
        assert not any("srun" in line for line in lines(mpich.told()).values())


class TestWhatDoesNotFit:
    def test_nothing_at_all(self, mpich: Shell) -> None:
        told = mpich.told()
        assert told.places == ("not started by a launcher, and not in a scheduler's job",)
        assert (told.launchers, told.problems, told.severe) == ((), (), False)
        assert [each.purpose for each in told.commands] == ["2 ranks on this host"]

    def test_the_other_mpis_launcher_first_in_path(self, mpich: Shell, tmp_path: Path) -> None:
        told = mpich.has("right", "mpiexec", version=HYDRA).has("wrong", "mpirun", "mpiexec", version=OPEN_MPI).told()
        (problem,) = told.problems
        assert problem.severity == "severe" and told.severe
        assert problem.what == (
            f"mpirun and mpiexec in {tmp_path}/wrong, first in PATH, are Open MPI's, but mpi4py loads MPICH 5.0.2: N ranks would be N "
            f"jobs of one rank, or MPI_Init aborts; type {tmp_path}/right/mpiexec, or put {tmp_path}/right first in PATH"
        )
        assert shlex.split(lines(told)["2 ranks on this host, over MPI"])[:3] == [f"{tmp_path}/right/mpiexec", "-n", "2"]

    def test_no_launcher_of_this_mpi(self, open_mpi: Shell) -> None:
        told = open_mpi.has("wrong", "mpiexec", version=HYDRA).told()
        assert told.severe and told.problems[0].what.endswith("load the module of Open MPI 5.0.11")
        assert "2 ranks on this host, over MPI" not in lines(told)

    def test_a_library_of_the_same_kind_is_started_by_it(self, mpich: Shell) -> None:
        assert not mpich.has("a", "mpirun", version=INTEL).told().problems

    def test_a_slurm_without_what_the_library_needs(self, open_mpi: Shell) -> None:
        told = open_mpi.has("a", "srun", version="slurm 23.11.4", plugins=WITHOUT_PMIX).told()
        (problem,) = told.problems
        assert problem.severity == "warning" and not told.severe
        assert problem.what.startswith("this srun cannot start Open MPI 5.0.11: --mpi=pmix is missing, it has none, pmi2; ")

    def test_no_library(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        told = Shell(tmp_path, "", monkeypatch).has("a", "mpirun", "srun", version=OPEN_MPI).told()
        assert [problem.severity for problem in told.problems] == ["note"] and "mpi4py is not installed" in told.problems[0].what


class TestHostNames:
    """Names that decide whether ranks meet, reported before a launch fails."""

    NETWORK: ClassVar = {"n1": ("10.0.0.1",), "n2": ("10.0.0.2",), "six": ("fd00::6",), "localhost": ("127.0.0.1",)}

    @pytest.fixture
    def problems(self, mpich: Shell, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, str]]]:
        """Return what is reported on a host n1 with these names and addresses."""

        def reported(names: Mapping[str, tuple[str, ...]], own: tuple[str, ...] = ("10.0.0.1",), **env: str) -> list[tuple[str, str]]:
            known = {**self.NETWORK, **names}
            routed = {addresses.family_of(address) for address in own}
            monkeypatch.setattr(socket, "gethostname", lambda: "n1")
            for module in (slurm, explain_names):
                monkeypatch.setattr(module, "resolve", lambda host: known.get(host, (host,) if addresses.is_numeric(host) else ()))
            monkeypatch.setattr(explain_names, "own_addresses", lambda: own)
            monkeypatch.setattr(explain_names, "route_to", lambda address: own[0] if addresses.family_of(address) in routed else None)
            return [(problem.severity, problem.what) for problem in mpich.told(**env).problems]

        return reported

    ALLOCATION: ClassVar = {**captured.SBATCH, "SLURM_JOB_NODELIST": "n[1-2]"}
    TORCHRUN: ClassVar = {**captured.TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}

    def test_names_in_order_need_no_word(self, problems: Callable[..., list[tuple[str, str]]]) -> None:
        assert problems({}, **self.ALLOCATION) == []

    def test_the_own_name_at_loopback(self, problems: Callable[..., list[tuple[str, str]]]) -> None:
        ((severity, what),) = problems({"n1": ("127.0.1.1",)}, **self.ALLOCATION)
        assert (
            severity == "note" and "'n1' resolves to loopback here (127.0.1.1)" in what and "connect to 10.0.0.1; set MASTER_ADDR" in what
        )

    def test_without_any_address_of_the_network(self, problems: Callable[..., list[tuple[str, str]]]) -> None:
        ((severity, what),) = problems({"n1": ("127.0.1.1",)}, own=(), **self.ALLOCATION)
        assert severity == "severe" and "'n1', has only loopback addresses" in what

    def test_ipv6_only(self, problems: Callable[..., list[tuple[str, str]]]) -> None:
        ((severity, what),) = problems({"n1": ("fd00::1",), "n2": ("fd00::2",)}, own=("fd00::1",), **self.ALLOCATION)
        assert severity == "note" and what.startswith("IPv6 addresses only: n1, n2; ")

    def test_no_common_family(self, problems: Callable[..., list[tuple[str, str]]]) -> None:
        ((severity, what),) = problems({"n1": ("fd00::1",)}, own=("fd00::1",), **self.ALLOCATION)
        assert severity == "severe" and "(n2 has only IPv4, n1 has only IPv6)" in what

    @pytest.mark.parametrize(
        ("master", "severity", "what"),
        [
            ("localhost", "warning", "'localhost' is a loopback address (127.0.0.1)"),
            ("nowhere", "severe", "'nowhere' does not resolve on this host"),
            ("six", "severe", "rank 0's host 'six' (fd00::6) cannot be reached"),
        ],
    )
    def test_a_master_address_that_leads_nowhere(
        self, master: str, severity: str, what: str, problems: Callable[..., list[tuple[str, str]]]
    ) -> None:
        found = [one for one in problems({}, **{**self.TORCHRUN, "MASTER_ADDR": master}) if "MPI" not in one[1]]
        assert [one[0] for one in found] == [severity] and what in found[0][1]


class TestWhereThisShellIs:
    @pytest.mark.parametrize("manager", ["pmi2", "pmix", "none"])
    def test_in_a_step(self, manager: str, mpich: Shell) -> None:
        env = {"pmi2": captured.SRUN_PMI2, "pmix": captured.SRUN_PMIX, "none": captured.SRUN_NONE}[manager]
        told = mpich.has("a", "srun", version="slurm 23.11.4", plugins=PLUGINS).told(**env)
        can = {"pmi2": "it can start MPI by PMI", "pmix": "it can start MPI by PMIx", "none": "it cannot start MPI"}[manager]
        assert told.places == (f"srun --mpi={manager} started this as rank 2 of 3; {can}", "Slurm job 8 on 2 nodes, in step 0")
        assert told.severe == (manager != "pmi2")
        assert lines(told)["all nodes of this Slurm job, in place of this step"].startswith("srun --mpi=pmi2 --kill-on-bad-exit=1 ")
        assert len(told.problems) == told.severe

    def test_in_a_step_of_one_task(self, mpich: Shell) -> None:
        told = mpich.told(**captured.SRUN_ONE)
        assert [problem.severity for problem in told.problems] == ["note"] and "has one task" in told.problems[0].what
        assert "2 ranks on this host" in lines(told)

    @pytest.mark.parametrize("how", captured.NO_STEP)
    def test_in_a_job_without_a_step(self, how: str, open_mpi: Shell) -> None:
        told = open_mpi.has("a", "srun", version="slurm 23.11.4", plugins=PLUGINS).told(**captured.NO_STEP[how])
        (place,) = told.places
        assert place.startswith("Slurm job 8 on ") and place.endswith("not in a step of srun's")
        assert not told.problems
        assert lines(told)["all nodes of this Slurm job"].startswith("srun --mpi=pmix --kill-on-bad-exit=1 ")

    def test_under_mpirun(self, mpich: Shell) -> None:
        fitting = mpich.has("a", "mpiexec", version=HYDRA).told(**captured.HYDRA)
        assert not fitting.problems and list(lines(fitting)) == ["in this launch, as each of its ranks"]
        told = mpich.told(**captured.PRTE)
        assert list(lines(told)) == ["2 ranks on this host, over MPI", "hosts that ssh reaches, by a script"]
        assert told.places == ("mpirun of Open MPI started this as rank 2 of 3; it can start MPI by PMIx",)
        assert told.severe and told.problems[0].what.startswith("started by Open MPI's mpirun, but mpi4py uses MPICH 5.0.2: use ")

    def test_under_torchrun_mpi_alone_is_missing(self, mpich: Shell) -> None:
        told = mpich.told(**captured.TORCHRUN)
        assert told.places == ("torchrun started this as rank 1 of 2; it cannot start MPI",)
        assert [problem.severity for problem in told.problems] == ["warning"] and "torchrun cannot start MPI" in told.problems[0].what
        assert list(lines(told)) == ["in this launch, as each of its ranks"]

    def test_in_a_pod(self, mpich: Shell) -> None:
        pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "job-3", "JOB_COMPLETION_INDEX": "3"}
        known = {"COLLBENCH_PODS": "4", "MASTER_ADDR": "job-0.job", "COLLBENCH_SECRET": "x" * 32}
        told = mpich.told(**pod, **known)
        assert told.places[0].startswith("Kubernetes (indexed Job) started this as rank 3 of 4")
        assert told.places[1] == "pod job-3 of Kubernetes, index 3 of its job"
        assert "pods of Kubernetes" in lines(told) and not told.severe
        alone = mpich.told(**pod)
        assert alone.severe and "this is pod 3 of an indexed Job, but" in alone.problems[0].what

    def test_variables_that_cannot_be(self, mpich: Shell) -> None:
        told = mpich.told(**{**captured.TORCHRUN, "RANK": "7"})
        assert told.severe and told.problems[0].what.startswith("RANK=7 is not below WORLD_SIZE=2")

    def test_who_speaks(self) -> None:
        assert [rank_of(env) for env in ({}, captured.SBATCH, captured.TORCHRUN, captured.SRUN_PMI2)] == [0, 0, 1, 2]


def test_every_line_of_ours_is_one_that_collbench_takes(mpich: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    mpich.has("a", "srun", version="slurm 23.11.4", plugins=PLUGINS).has("a", "mpirun", version=HYDRA)
    told = lines(mpich.has("a", "kubectl", version="Client Version: v1.32.4").told())
    assert len(told) == 6
    for line in told.values():
        words = shlex.split(line)
        ours = words[words.index("collbench") + 1 :]  # `python -m collbench`, as there is none beside this Python
        if ours[0] == "emit":
            assert main.run(ours) == 0 and capsys.readouterr().out.count("allreduce")
        else:
            main.parsed(ours)


def test_the_library_of_this_python() -> None:
    pytest.importorskip("mpi4py")
    loaded = library(os.environ)
    assert loaded.name and not loaded.problem and loaded.managers
    assert Path(loaded.path).is_file() and Path(loaded.path).name.startswith("libmpi")


def test_a_library_that_is_not_there() -> None:
    pytest.importorskip("mpi4py")
    told = library({**os.environ, "MPI4PY_LIBMPI": "/nowhere/libmpi.so"})
    assert (told.name, told.managers) == ("", frozenset())
    assert "finds no MPI library" in told.problem and "/nowhere/libmpi.so" in told.problem
