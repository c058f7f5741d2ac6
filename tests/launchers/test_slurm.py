"""A real Slurm: srun with each of its process managers, batch scripts and allocations, over a link of known rate."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from collbench.results.reader import read_run
from tests.cli.command import PROGRAM, environment, one_sentence
from tests.conftest import cannot
from tests.launchers.stored import measured, nic_busbw, stored

pytestmark = [pytest.mark.long, pytest.mark.slurm, pytest.mark.timeout(200)]

M = 1024**2
UNSET = {"COLLBENCH_ITERATIONS": "", "COLLBENCH_WARMUP": ""}
USE = "which would not see 2 ranks: use srun --mpi="
PYTHONS = {"none": "", "pmi2": "", "pmix": "openmpi_python"}  # the library that each manager serves
PMI_LIBRARIES = {"pmi2": "libpmi2.so.0", "pmix": "libpmix.so.2"}  # by manager the library that a site gives Intel MPI


@pytest.fixture
def python(request):
    """Return the Python with an MPI that the test's process manager can start."""
    name = PYTHONS[request.getfixturevalue("manager")]
    return str(request.getfixturevalue(name)) if name else PROGRAM[0]


def short(folder, *more, sizes="1K"):
    return [*PROGRAM, "allreduce", "--sizes", sizes, "--out", str(folder / "run"), *more]


class TestManagers:
    @pytest.mark.often
    def test_without_a_process_manager_the_other_backends_are_measured(self, slurm_hosts, tmp_path):
        done = slurm_hosts.srun(["-N2", "--mpi=none"], short(tmp_path), env=environment())
        found = stored(done, tmp_path)
        assert measured(found)["gloo"] == (2, 2, 0)
        assert f"{USE}pmi2" in str(measured(found)["mpi"]) and "srun (--mpi=none)" in str(measured(found)["mpi"])
        assert "--kill-on-bad-exit=1" in done.stderr
        assert (found.info["launcher"], found.info["hosts"]) == ("srun", slurm_hosts.nodes)
        assert found.info["allocation_id"].startswith("testbed-")

    @pytest.mark.parametrize("manager", ["none", "pmix"])
    def test_mpi_with_the_wrong_manager_fails(self, manager, slurm_hosts, tmp_path):
        done = slurm_hosts.srun(["-N2", f"--mpi={manager}"], short(tmp_path, "--backend", "mpi"), env=environment())
        assert done.returncode == 4 and done.stdout == "" and done.stderr.count("collbench: ") == 1
        assert f"{USE}pmi2" in done.stderr
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("manager", [pytest.param("pmi2", id="pmi2, MPICH"), pytest.param("pmix", id="pmix, Open MPI")])
    def test_each_serves_its_mpi(self, manager, python, slurm_hosts, tmp_path):
        line = [python, *short(tmp_path)[1:]]
        found = stored(slurm_hosts.srun(["-N2", f"--mpi={manager}", "--kill-on-bad-exit=1"], line, env=environment()), tmp_path)
        assert measured(found) == {"mpi": (2, 2, 0), "gloo": (2, 2, 0)}
        assert found.info["launcher_facts"] == {"srun_mpi": manager}


def pmi_library(manager):
    """Return the path of the system's PMI library; the test is skipped without it."""
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    found = re.search(rf"{re.escape(PMI_LIBRARIES[manager])} .* => (\S+)", listed)
    if not found:
        cannot(f"no {PMI_LIBRARIES[manager]}: apt-get install libpmi2-0-dev libpmix2")
    return found[1]


@pytest.mark.impi
class TestIntelMpi:
    """By its own protocol (pmi2) and the system's PMIx, and with the library that I_MPI_PMI_LIBRARY names."""

    def line(self, python, folder):
        return [python, *short(folder, "--backend", "mpi")[1:]]

    @pytest.mark.parametrize("given", [False, True], ids=["by itself", "I_MPI_PMI_LIBRARY"])
    @pytest.mark.parametrize("manager", ["pmi2", "pmix"])
    def test_both_managers_serve_it(self, manager, given, impi_python, slurm_hosts, tmp_path):
        env = environment({"I_MPI_PMI_LIBRARY": pmi_library(manager)} if given else {})
        options = ["-N2", f"--mpi={manager}", "--kill-on-bad-exit=1"]
        found = stored(slurm_hosts.srun(options, self.line(impi_python, tmp_path), env=env), tmp_path)
        assert measured(found) == {"mpi": (2, 2, 0)}
        assert found.info["launcher_facts"] == {"srun_mpi": manager}
        assert found.info["backends"]["mpi"]["mpi"].startswith("Intel MPI 20")

    @pytest.mark.parametrize("manager", ["pmi2", "pmix"])
    def test_the_library_of_the_other_manager_is_reported_before_mpi_init(self, manager, impi_python, slurm_hosts, tmp_path):
        other = "pmix" if manager == "pmi2" else "pmi2"
        path = pmi_library(other)
        env = environment({"I_MPI_PMI_LIBRARY": path})
        done = slurm_hosts.srun(["-N2", f"--mpi={manager}"], self.line(impi_python, tmp_path), env=env)
        assert done.returncode == 4 and done.stderr.count("collbench: ") == 1, done.stderr
        assert path in done.stderr and f"or use srun --mpi={other}" in done.stderr and "Fatal error" not in done.stderr
        assert not (tmp_path / "run").exists()

    def test_without_a_manager_srun_is_named(self, impi_python, slurm_hosts, tmp_path):
        done = slurm_hosts.srun(["-N2", "--mpi=none"], self.line(impi_python, tmp_path), env=environment())
        assert done.returncode == 4 and f"{USE}pmi2" in done.stderr

    def test_the_doctor_names_the_command_that_starts_it(self, impi_python, slurm_hosts, tmp_path):
        done = slurm_hosts.call(["salloc", "-N2", impi_python, *PROGRAM[1:], "doctor", "--launch", "--format", "json"], env=environment())
        (line,) = (each["line"] for each in json.loads(done.stdout)["type"] if each["line"].startswith("srun "))
        assert "--mpi=pmi2 --kill-on-bad-exit=1" in line
        words = [*shlex.split(line), "--sizes", "1K", "--backend", "mpi", "--out", str(tmp_path / "run")]
        found = stored(slurm_hosts.call(["salloc", "-N2", *words], env=environment()), tmp_path)
        assert measured(found) == {"mpi": (2, 2, 0)}

    def test_its_mpiexec_takes_the_hosts_of_the_job(self, impi_python, slurm_hosts, tmp_path):
        line = [str(Path(impi_python).parent / "mpiexec"), "-n", "2", "-ppn", "1", *self.line(impi_python, tmp_path)]
        found = stored(slurm_hosts.sbatch(shlex.join(line), ["-N2", "-n2"], env=environment()), tmp_path)
        assert measured(found) == {"mpi": (2, 2, 0)}
        assert found.info["launcher_facts"] == {"mpirun": "Intel MPI"}


class TestCheck:
    def test_a_healthy_slow_link_is_ok(self, slurm_hosts, tmp_path):
        line = [*PROGRAM, "check", "--format", "json", "--out", str(tmp_path / "run")]
        done = slurm_hosts.srun(["-N2", "--mpi=none"], line, timeout=150, env=environment(UNSET))
        verdict = json.loads(done.stdout)
        gloo = {each["operation"]: each for each in verdict["evidence"] if each.get("backend") == "gloo"}
        assert (done.returncode, verdict["verdict"]) == (0, "OK")
        assert 80 < gloo["allreduce"]["percent"] < 102 and 80 < gloo["p2p_bandwidth"]["percent"] < 102


class TestKnownTruth:
    """1448 of the 1514 bytes of a full frame are payload: 0.956 of the link's rate is the most there is."""

    @pytest.mark.parametrize("manager", ["none"])
    def test_gloo_reads_the_links_rate(self, manager, python, slurm_hosts, tmp_path):
        less = {"COLLBENCH_ITERATIONS": "5", "COLLBENCH_BACKEND": "gloo"}
        rows = self.measure(slurm_hosts, manager, [python, *short(tmp_path, sizes="1K,64M")[1:]], less)
        assert sorted((row.backend, row.size_bytes) for row in rows) == [("gloo", 1024), ("gloo", 64 * M)]

    @pytest.mark.timeout(1800)
    @pytest.mark.parametrize("manager", ["none", "pmi2", "pmix"])
    def test_the_whole_sweep(self, manager, python, slurm_hosts, tmp_path):
        rows = self.measure(slurm_hosts, manager, [python, *short(tmp_path, sizes="1K-64M")[1:]], UNSET)
        assert sorted(row.size_bytes for row in rows if row.backend == "gloo") == [1024 * 2**k for k in range(17)]
        assert {row.backend: bool(row.na) for row in rows} == {"mpi": manager == "none", "gloo": False}

    def measure(self, bed, manager, line, env):
        for attempt in range(3):  # a busy machine reads too little; too much would be wrong at once
            out = Path(line[line.index("--out") + 1]).parent / str(attempt)
            changed = [*line, "--out", str(out / "run")]
            found = stored(bed.srun(["-N2", f"--mpi={manager}"], changed, timeout=500, env=environment(env)), out)
            read = nic_busbw(found, "gloo", 64 * M)
            assert read < 0.97
            if read > 0.92:
                (row,) = (row for row in found.rows if (row.backend, row.size_bytes) == ("gloo", 64 * M))
                assert row.percent_of_ceiling and 95 < row.percent_of_ceiling < 102 and "above_bound" not in row.flags
                return found.rows
        pytest.fail(f"read {read:.3f} of the link's rate in the last of 3 attempts")


class TestBatch:
    def test_with_srun(self, slurm_hosts, tmp_path):
        done = slurm_hosts.sbatch(f"srun {shlex.join(short(tmp_path, '--backend', 'gloo'))}", ["-N2", "-n2"], env=environment())
        assert measured(stored(done, tmp_path)) == {"gloo": (2, 2, 0)}

    def test_without_srun(self, slurm_hosts, tmp_path):
        done = slurm_hosts.sbatch(shlex.join(short(tmp_path)), ["-N2", "-n2"], env=environment(UNSET))
        assert done.returncode == 2 and "`srun collbench allreduce --sizes 1K" in done.stdout
        assert not (tmp_path / "run").exists()

    def test_ranks_without_srun_is_a_local_start(self, slurm_hosts, tmp_path):
        done = slurm_hosts.sbatch(shlex.join(short(tmp_path, "--ranks", "2")), ["-N2", "-n2"], env=environment())
        found = stored(done, tmp_path)
        assert measured(found) == {"mpi": (2, 1, 0), "gloo": (2, 1, 0)}
        assert found.info["launcher"] == "local" and found.info["allocation_id"].startswith("testbed-")

    def test_salloc(self, slurm_hosts, tmp_path):
        line = short(tmp_path, "--backend", "gloo")
        found = stored(slurm_hosts.call(["salloc", "-N2", "srun", *line], env=environment()), tmp_path)
        assert measured(found) == {"gloo": (2, 2, 0)}
        refused = slurm_hosts.call(["salloc", "-N2", *line], env=environment())
        assert refused.returncode == 2 and "`srun " in refused.stderr


class TestRanksPerNode:
    def test_one_task_starts_the_ranks_of_its_node(self, slurm_hosts, tmp_path):
        found = stored(slurm_hosts.srun(["-N2"], short(tmp_path, "--ranks-per-node", "2"), env=environment(), timeout=100), tmp_path)
        assert measured(found)["gloo"] == (4, 2, 0)
        first, second = slurm_hosts.nodes
        places = [(member["host"], member["local_rank"]) for member in found.info["rank_map"]]
        assert places == [(first, 0), (first, 1), (second, 0), (second, 1)]
        assert "--ntasks-per-node=2" in str(measured(found)["mpi"])

    def test_mpi_needs_its_own_launcher(self, slurm_hosts, tmp_path):
        line = short(tmp_path, "--ranks-per-node", "2", "--backend", "mpi")
        done = slurm_hosts.srun(["-N2"], line, env=environment())
        assert done.returncode == 4 and "srun --ntasks-per-node=2 --mpi=pmi2" in done.stderr

    def test_more_tasks_than_nodes_are_rejected(self, slurm_hosts, tmp_path):
        done = slurm_hosts.srun(["-N2", "--ntasks-per-node=2"], short(tmp_path, "--ranks-per-node", "2"), env=environment())
        assert done.returncode == 2 and "--ranks-per-node " in done.stderr


class TestNodesWithoutNames:
    """The nodes of this test bed are this machine, and DNS does not have their names."""

    def test_slurm_knows_their_addresses(self, slurm_one_host, tmp_path):
        found = stored(slurm_one_host.srun(["-N2", "--mpi=pmi2"], short(tmp_path), env=environment()), tmp_path)
        assert measured(found) == {"mpi": (2, 1, 0), "gloo": (2, 1, 0)}

    def test_their_names_do_not_resolve(self, slurm_one_host, tmp_path):
        bare = environment({"PATH": "/nowhere"})  # of the task alone: no scontrol
        line = ["env", "PATH=/nowhere", *short(tmp_path, "--backend", "gloo")]
        done = slurm_one_host.srun(["-N2"], line, env={**bare, "PATH": environment()["PATH"]}, timeout=20)
        assert done.returncode == 2
        assert f"Slurm's first node '{slurm_one_host.nodes[0]}' does not resolve" in done.stderr and "export MASTER_ADDR=" in done.stderr
        assert not (tmp_path / "run").exists()


def test_bad_input_is_one_sentence_per_task(slurm_hosts, tmp_path):
    done = slurm_hosts.srun(["-N1", "-n1", "--quiet"], short(tmp_path, "--dtype", "float12"), env=environment())
    done.stderr = "".join(line for line in done.stderr.splitlines(keepends=True) if not line.startswith("srun: "))
    assert "'float12'" in one_sentence(done)
    with pytest.raises(Exception, match="run folder"):
        read_run(tmp_path / "run")
