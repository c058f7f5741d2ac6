"""The files of `collbench emit mpirun` and `emit torchrun`, started over two hosts with a link of 1 Gbit/s."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.results.reader import Run, read_run
from tests.cli.command import BIN, environment, run_here, until
from tests.conftest import sample
from tests.launchers.stored import measured, stored
from tests.testbeds import Hosts, SlurmBed

pytestmark = [pytest.mark.hosts, pytest.mark.long, pytest.mark.timeout(150)]

INNER = ("allreduce", "--sizes", "1K", "--out", "run")
PORT = "29511"  # the hosts have their own network: no other server listens there
MPICH = ("UCX_TLS=tcp,self", "UCX_NET_DEVICES=eth0")  # else it finds the memory that these hosts share
OPEN_MPI = ("OMPI_MCA_pml=ob1", "OMPI_MCA_btl=tcp,self")
INTEL_MPI = ("FI_PROVIDER=tcp", "FI_TCP_IFACE=eth0")


@pytest.fixture
def bed(hosts: Callable[..., Hosts]) -> Hosts:
    return hosts(2, "1gbit")


def emitted(folder: Path, kind: str, *words: str, program: Path, inner: tuple[str, ...] = INNER) -> Path:
    """Return the file that `collbench emit` writes for two nodes; `program` is collbench in the same environment as the MPI."""
    done = run_here(folder, "emit", kind, "--nodes", "2", "--program", str(program), *words, "--write", "job.sh", "--", *inner)
    assert (done.returncode, done.stdout) == (0, "") and "next: bash job.sh" in done.stderr, done.stderr
    return folder / "job.sh"


def variables(words: tuple[str, ...]) -> list[str]:
    return [word for each in words for word in ("--env", each)]


class TestMpirun:
    def started(self, bed: Hosts, folder: Path, library: str, expected: tuple[str, ...], bin: Path) -> Run:
        """The run that the file's own command line measured; the bed's shell takes ssh's place."""
        (folder / "hosts").write_text("# two hosts\n" + "".join(f"{name}\n" for name in bed.names))
        asked = ("--library", library, "--hosts", "hosts", "--interface", "eth0", *variables((*expected, "COLLBENCH_SEED=7")))
        job = emitted(folder, "mpirun", *asked, program=bin / "collbench")
        agents = dict.fromkeys(("HYDRA_LAUNCHER_EXEC", "I_MPI_HYDRA_BOOTSTRAP_EXEC", "PRTE_MCA_plm_ssh_agent"), bed.rsh)
        reach = {**agents, "PATH": f"{bin}:/usr/sbin:/usr/bin:/sbin:/bin"}
        return stored(bed.run(0, ["sh", "-c", f"cd '{folder}' && exec {job}"], 60, environment(reach)), folder)

    def check(self, found: Run, bed: Hosts, family: str) -> None:
        assert measured(found) == {"mpi": (2, 2, 0), "gloo": (2, 2, 0)}
        assert sorted(found.info["hosts"]) == sorted(bed.names)
        assert (found.info["launcher"], found.info["launcher_facts"]) == ("mpirun", {"mpirun": family})
        assert found.info["seed"] == 7  # a variable of --env reaches every rank
        assert [len(member["cpus"]) for member in found.info["rank_map"]] == [1, 1]  # bound

    @pytest.mark.skipif(not (BIN / "mpiexec").exists(), reason="no MPICH in this environment: pip install collbench[mpich]")
    def test_mpich(self, bed: Hosts, tmp_path: Path) -> None:
        self.check(self.started(bed, tmp_path, "mpich", MPICH, BIN), bed, "MPICH")

    @pytest.mark.openmpi
    def test_open_mpi(self, bed: Hosts, openmpi_python: str, tmp_path: Path) -> None:
        self.check(self.started(bed, tmp_path, "openmpi", OPEN_MPI, Path(openmpi_python).parent), bed, "Open MPI")

    @pytest.mark.impi
    def test_intel_mpi(self, bed: Hosts, impi_python: str, tmp_path: Path) -> None:
        self.check(self.started(bed, tmp_path, "intel", INTEL_MPI, Path(impi_python).parent), bed, "Intel MPI")


@pytest.mark.skipif(not (BIN / "torchrun").exists(), reason="no torch beside this Python")
class TestTorchrun:
    def written(self, folder: Path, meeting: str, bed: Hosts, *words: str, inner: tuple[str, ...] = INNER) -> Path:
        asked = ("--rendezvous", meeting, "--endpoint", bed.addresses[0], "--port", PORT, *words)
        return emitted(folder, "torchrun", *asked, program=BIN / "collbench", inner=inner)

    def started(self, bed: Hosts, job: Path, meeting: str, env: dict[str, str] | None = None) -> list[subprocess.Popen[str]]:
        """The same file on every host, a second apart, with the PATH that ssh has: torchrun is found beside collbench."""
        actual = {**environment(env), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        lines = [f"sleep {host}; cd '{job.parent}' && exec {job} {host if meeting == 'static' else ''}" for host in range(2)]
        return [bed.start(host, ["timeout", "80", "sh", "-c", line], actual) for host, line in enumerate(lines)]

    def ended(self, agents: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
        said = [agent.communicate(timeout=90) for agent in agents]
        return [(agent.returncode, out, err) for agent, (out, err) in zip(agents, said, strict=True)]

    @pytest.mark.parametrize("meeting", sample(["static", "c10d"], 1))
    def test_two_hosts(self, meeting: str, bed: Hosts, tmp_path: Path) -> None:
        job = self.written(tmp_path, meeting, bed, "--env", "COLLBENCH_SEED=7")
        ended = self.ended(self.started(bed, job, meeting))
        assert [code for code, _, _ in ended] == [0, 0], ended
        found = read_run(tmp_path / "run")
        assert (found.info["launcher"], sorted(found.info["hosts"]), found.info["seed"]) == ("torchrun", sorted(bed.names), 7)
        assert measured(found)["gloo"] == (2, 2, 0) and "torchrun cannot start MPI" in str(measured(found)["mpi"])

    def test_the_run_is_in_the_folder_of_rank_0(self, bed: Hosts, tmp_path: Path) -> None:
        """The hosts begin a second apart, and each makes a name of its own clock."""
        job = self.written(tmp_path, "static", bed, "--runs", "our runs", inner=("allreduce", "--sizes", "1K", "--backend", "gloo"))
        ended = self.ended(self.started(bed, job, "static"))
        assert [code for code, _, _ in ended] == [0, 0], ended
        (folder,) = (tmp_path / "our runs").iterdir()
        assert measured(read_run(folder)) == {"gloo": (2, 2, 0)}

    @pytest.mark.parametrize(("meeting", "victim"), sample([("static", 0), ("static", 1), ("c10d", 0), ("c10d", 1)], 1))
    def test_restarted_ranks_are_rejected(self, meeting: str, victim: int, bed: Hosts, tmp_path: Path) -> None:
        long = ("allreduce", "--sizes", "1K", "--backend", "gloo", "-n", "100000000", "--max-time", "60", "--timeout", "10", "--out", "run")
        job = self.written(tmp_path, meeting, bed, inner=long)
        job.write_text(job.read_text().replace("--max-restarts 0", "--max-restarts 1"))
        agents = self.started(bed, job, meeting, {"COLLBENCH_ITERATIONS": ""})
        until((tmp_path / "run/run.json").exists, "the run to begin", 60)
        os.kill(rank_on(bed, victim), signal.SIGKILL)
        ended = self.ended(agents)
        said = "".join(err for _, _, err in ended)
        assert [code for code, _, _ in ended] == [1, 1], ended
        refused = "collbench: torchrun restarted the ranks (restart 1) "
        assert said.count(refused) == 1, said
        assert read_run(tmp_path / "run").info.get("exit_code") == (4 if victim else None)  # rank 0, on the first host, writes it
        assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"]


@pytest.mark.slurm
class TestInsideASlurmJob:
    @pytest.mark.skipif(not (BIN / "mpiexec").exists(), reason="no MPICH in this environment: pip install collbench[mpich]")
    def test_mpiexec_takes_the_jobs_hosts(self, slurm_hosts: SlurmBed, tmp_path: Path) -> None:
        job = emitted(tmp_path, "mpirun", "--library", "mpich", *variables(MPICH), program=BIN / "collbench")
        found = slurm_hosts.sbatch(job.read_text(), ["-N2", f"--chdir={tmp_path}"], 90, environment({"PATH": f"{BIN}:/usr/bin:/bin"}))
        assert measured(stored(found, tmp_path)) == {"mpi": (2, 2, 0), "gloo": (2, 2, 0)}

    @pytest.mark.impi
    def test_mpirun_of_intel_mpi_takes_the_jobs_hosts(self, impi_python: str, slurm_hosts: SlurmBed, tmp_path: Path) -> None:
        bin = Path(impi_python).parent
        job = emitted(tmp_path, "mpirun", "--library", "intel", *variables(INTEL_MPI), program=bin / "collbench")
        found = slurm_hosts.sbatch(job.read_text(), ["-N2", f"--chdir={tmp_path}"], 90, environment({"PATH": f"{bin}:/usr/bin:/bin"}))
        assert measured(stored(found, tmp_path)) == {"mpi": (2, 2, 0), "gloo": (2, 2, 0)}

    @pytest.mark.skipif(not (BIN / "torchrun").exists(), reason="no torch beside this Python")
    @pytest.mark.parametrize("meeting", sample(["static", "c10d"], 1))
    def test_srun_starts_torchrun_on_each_node(self, meeting: str, slurm_hosts: SlurmBed, tmp_path: Path) -> None:
        """Without an endpoint the ranks join at the first node of the job."""
        job = emitted(tmp_path, "torchrun", "--rendezvous", meeting, program=BIN / "collbench")
        step = ["-N2", "--ntasks-per-node=1", "--mpi=none", f"--chdir={tmp_path}"]
        found = stored(slurm_hosts.srun(step, [str(job)], 90, environment({"PATH": "/usr/bin:/bin"})), tmp_path)
        assert (found.info["launcher"], measured(found)["gloo"]) == ("torchrun", (2, 2, 0))


def rank_on(bed: Hosts, host: int) -> int:
    inside = [int(pid) for pid in bed.must("ip", "netns", "pids", bed.names[host]).split()]
    ours = [pid for pid in inside if b"LOCAL_RANK=0" in _read(pid, "environ") and b"allreduce" in _read(pid, "cmdline")]
    return min(ours)  # a child of it looks like it until it has become another program


def _read(pid: int, what: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes().split(b"\0")
    except OSError:
        return []
