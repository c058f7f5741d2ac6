"""Jobs of torch.distributed under a real mpirun: recorded by `collbench trace -- mpirun`, replayed under mpirun, and a hang explained."""

import json
import shlex
import signal
from pathlib import Path

import pytest

from collbench.errors import FINE
from collbench.plugins.traces.record import FLIGHT, RANKS
from tests.cli.command import BIN, PROGRAM, environment, run, start, until
from tests.launchers.stored import stored
from tests.plugins.traces.measure.written import dump_reason

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
JOB = Path(__file__).parents[1] / "ddp_job.py"
OPEN_MPI = ("RANK=$OMPI_COMM_WORLD_RANK", "WORLD_SIZE=$OMPI_COMM_WORLD_SIZE")
MPICH = ("RANK=$PMI_RANK", "WORLD_SIZE=$PMI_SIZE")
TO_HOSTS = ("-x", "PYTHONPATH", "-x", "COLLBENCH_RECORDING")


def shell(numbers, address, *words):
    """Return the command of a rank, with the variables that a user's job script sets."""
    setting = f"{' '.join(numbers)} MASTER_ADDR={address} MASTER_PORT=29579"
    return ["bash", "-c", f"{setting} exec {shlex.join([PROGRAM[0], str(JOB), *words])}"]


class Cluster:
    """Two hosts that mpirun reaches by a shell that passes no variables on, as ssh does."""

    def __init__(self, bed, python, folder):
        self.bed, self.python, self.folder, self.bin = bed, python, folder, Path(python).parent
        self.rsh = folder / "rsh"
        self.rsh.write_text(f'#!/bin/sh\nexec env -i HOME="$HOME" PATH="$PATH" GLOO_SOCKET_IFNAME=eth0 {bed.rsh} "$@"\n')
        self.rsh.chmod(0o755)

    def mpirun(self, *words):
        """Return the start of the command line, for a rank per host."""
        hosts = ",".join(f"{name}:1" for name in self.bed.names)
        reach = ("--prtemca", "plm_ssh_agent", str(self.rsh), "--prtemca", "prte_if_include", "eth0", "--mca", "btl_tcp_if_include", "eth0")
        return [str(self.bin / "mpirun"), "--host", hosts, "-n", "2", *reach, "--mca", "pml", "ob1", "--mca", "btl", "tcp,self", *words]

    def call(self, *line):
        path = {"PATH": f"{self.bin}:/usr/sbin:/usr/bin:/sbin:/bin", "GLOO_SOCKET_IFNAME": "eth0"}
        return self.bed.run(0, ["sh", "-c", f"cd {self.folder} && exec {shlex.join(line)}"], 120, environment(path))

    def recorded(self, *passed):
        """Return the end of `collbench trace -- mpirun … python ddp_job.py`, which records into the folder "traces"."""
        job = [*self.mpirun(*passed), *shell(OPEN_MPI, self.bed.addresses[0])]
        return self.call(self.python, *PROGRAM[1:], "trace", "--out", str(self.folder / "traces"), "--kineto", "--", *job)


@pytest.fixture
def cluster(hosts, openmpi_python, tmp_path):
    pytest.importorskip("torch")
    return Cluster(hosts(2, "1gbit"), openmpi_python, tmp_path)


@pytest.mark.hosts
@pytest.mark.openmpi
class TestAcrossHosts:
    def test_a_job_is_recorded_and_replayed_on_its_hosts(self, cluster, tmp_path):
        done = cluster.recorded(*TO_HOSTS)
        assert done.returncode == FINE, done.stderr
        about = [json.loads((tmp_path / "traces" / RANKS / f"rank_{rank}.json").read_text()) for rank in (0, 1)]
        assert [(each["rank"], each["world"], each["host"]) for each in about] == [(rank, 2, cluster.bed.names[rank]) for rank in (0, 1)]
        assert sorted(path.name for path in (tmp_path / "traces" / FLIGHT).iterdir()) == ["rank_0", "rank_1"]
        replay = ("replay", "traces", "--backend", "gloo,mpi", "--max-time", "2", "--compute", "gaps", "--out", "run")
        found = stored(cluster.call(*cluster.mpirun("-x", "PYTHONPATH", cluster.python, *PROGRAM[1:]), *replay), tmp_path)
        assert (sorted(found.info["hosts"]), found.info["launcher_facts"]) == (cluster.bed.names, {"mpirun": "Open MPI"})
        rows = [json.loads(line) for line in (tmp_path / "run" / "workload.jsonl").read_text().splitlines()]
        assert [(row["backend"], row["ranks"], row["nodes"], row["wrong"]) for row in rows] == [("gloo", 2, 2, 0), ("mpi", 2, 2, 0)]
        assert [each["rank"] for each in rows[0]["replay"]["timelines"]] == [0, 1]

    def test_a_rank_that_got_no_variables_is_named_and_the_job_goes_on(self, cluster, tmp_path):
        done = cluster.recorded("-x", "PYTHONPATH")
        assert done.returncode == FINE, done.stderr
        assert [path.name for path in (tmp_path / "traces" / RANKS).iterdir()] == ["rank_0.json"]
        assert "no trace of 1 of 2 ranks (1)" in done.stderr


@pytest.mark.parametrize("library", [pytest.param("Open MPI", marks=pytest.mark.openmpi), "MPICH"])
def test_a_job_that_hangs_and_is_ended_is_explained(library, request, tmp_path):
    pytest.importorskip("torch")
    if library == "Open MPI":
        launcher, numbers = Path(request.getfixturevalue("openmpi_python")).parent / "mpirun", OPEN_MPI
    else:
        launcher, numbers = BIN / "mpiexec", MPICH
        if not launcher.exists():
            pytest.skip("no MPICH in this environment: pip install collbench[mpich]")
    line = [str(launcher), "-n", "2", *shell(numbers, "127.0.0.1", "skip")]
    process = start(tmp_path, "trace", "--out", "traces", "--hang", "3", "--", *line)
    try:
        until(lambda: {dump_reason(tmp_path / "traces", rank) for rank in (0, 1)} == {"hang"}, "the dumps of the hang", 80)
    finally:
        process.send_signal(signal.SIGTERM)  # to `timeout`, which passes it on
        code = process.wait(60)
    assert code not in (0, 2)
    verdict = run(tmp_path, "autopsy", "traces", "--format", "json")
    assert verdict.returncode == 1, verdict.stdout + verdict.stderr
    (first, *_) = json.loads(verdict.stdout)["findings"]
    assert first["ranks"] == [1], first
