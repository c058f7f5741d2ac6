"""Every way to start ranks on one host: by ourselves, by either MPI's launcher, by torchrun, by hand."""

import re
import socket
from pathlib import Path

import pytest

from collbench.results.quality import OK, quality_of
from tests.cli.command import BIN, PROGRAM, run, start
from tests.conftest import sample
from tests.launchers.stored import measured, stored

MPICH, TORCHRUN = BIN / "mpiexec", BIN / "torchrun"
SHORT = ("allreduce", "--sizes", "1K", "--out", "run")
LARGE = ("allreduce", "--sizes", "4M", "--max-time", "1", "--out", "run")
WRONG = "started by {theirs}'s mpirun, but mpi4py uses {ours}"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not MPICH.exists(), reason="no MPICH in this environment: pip install collbench[mpich]"),
    pytest.mark.skipif(not TORCHRUN.exists(), reason="no torch beside this Python"),
]


@pytest.mark.timeout(150)
class TestByOurselves:
    @pytest.mark.often
    def test_two_ranks_on_both_backends(self, tmp_path):
        found = stored(run(tmp_path, *LARGE), tmp_path)
        assert measured(found) == {"mpi": (2, 1, 0), "gloo": (2, 1, 0)}
        assert [member["rank"] for member in found.info["rank_map"]] == [0, 1] and found.info["launcher"] == "local"
        assert len({member["pid"] for member in found.info["rank_map"]}) == 2
        for row in found.rows:  # other work on the machine may disturb the reference; the percentage is then missing
            assert row.ceiling is not None
            if row.ceiling.kind == "none":  # another MPI job on the machine copied memory meanwhile
                assert "the kernel's counters" in row.ceiling.limited_by and row.percent_of_ceiling is None
                continue
            assert row.ceiling.kind == "measured" and row.ceiling.limited_by.endswith("and sum")
            assert (row.percent_of_ceiling is None) == ("reference_disturbed" in row.flags)
            quality = quality_of(row)
            assert quality and (quality.word != OK or row.percent_of_ceiling is None or 20 < row.percent_of_ceiling < 200)

    def test_four_ranks_of_mpich_spin_and_say_so(self, tmp_path):
        done = run(tmp_path, *SHORT, "--ranks", "4", "--backend", "mpi", "-n", "3", "-w", "1")
        found = stored(done, tmp_path)
        assert measured(found) == {"mpi": (4, 1, 0)}
        if len(found.info["rank_map"][0]["cpus"]) < 4:
            assert "oversubscribed" in found.rows[0].flags and found.rows[0].percent_of_ceiling is None
            assert "4 ranks share" in done.stderr and "use Open MPI" in done.stderr

    @pytest.mark.openmpi
    def test_four_ranks_of_open_mpi_and_gloo(self, openmpi_python, tmp_path):
        found = stored(run(tmp_path, *SHORT, "--ranks", "4", program=(openmpi_python, *PROGRAM[1:]), timeout=100), tmp_path)
        assert measured(found) == {"mpi": (4, 1, 0), "gloo": (4, 1, 0)}
        assert found.info["backends"]["mpi"]["mpi"].startswith("Open MPI")

    @pytest.mark.impi
    def test_two_ranks_of_intel_mpi(self, impi_python, tmp_path):
        found = stored(run(tmp_path, *SHORT, program=(impi_python, *PROGRAM[1:])), tmp_path)
        assert measured(found) == {"mpi": (2, 1, 0), "gloo": (2, 1, 0)}
        assert found.info["backends"]["mpi"]["mpi"].startswith("Intel MPI 20")


class TestMpiexec:
    def test_mpich(self, tmp_path):
        found = stored(run(tmp_path, "-n", "2", *PROGRAM, *SHORT, program=(str(MPICH),)), tmp_path)
        assert measured(found) == {"mpi": (2, 1, 0), "gloo": (2, 1, 0)}
        assert (found.info["launcher"], found.info["launcher_facts"]) == ("mpirun", {"mpirun": "MPICH"})
        assert [member["local_rank"] for member in found.info["rank_map"]] == [0, 1]

    @pytest.mark.openmpi
    def test_open_mpi(self, openmpi_python, tmp_path):
        mpirun = Path(openmpi_python).parent / "mpirun"
        line = ("-n", "2", openmpi_python, *PROGRAM[1:], *SHORT, "--backend", "gloo,mpi")
        found = stored(run(tmp_path, *line, program=(str(mpirun),)), tmp_path)
        assert measured(found) == {"mpi": (2, 1, 0), "gloo": (2, 1, 0)}
        assert found.info["launcher_facts"] == {"mpirun": "Open MPI"}

    @pytest.mark.impi
    def test_intel_mpi(self, impi_python, tmp_path):
        line = ("-n", "2", impi_python, *PROGRAM[1:], *SHORT, "--backend", "gloo,mpi")
        found = stored(run(tmp_path, *line, program=(str(Path(impi_python).parent / "mpiexec"),)), tmp_path)
        assert measured(found) == {"mpi": (2, 1, 0), "gloo": (2, 1, 0)}
        assert found.info["launcher_facts"] == {"mpirun": "Intel MPI"}
        assert found.info["backends"]["mpi"]["mpi"].startswith("Intel MPI 20")

    @pytest.mark.often("MPICH-Open MPI")
    @pytest.mark.openmpi
    @pytest.mark.parametrize(("theirs", "ours"), sample([("Open MPI", "MPICH"), ("MPICH", "Open MPI")], 1))
    def test_the_other_mpis_launcher(self, theirs, ours, openmpi_python, tmp_path):
        openmpi = Path(openmpi_python).parent / "mpirun"
        launcher, python = (openmpi, PROGRAM[0]) if ours == "MPICH" else (MPICH, openmpi_python)
        line, why = ("-n", "2", python, *PROGRAM[1:], *SHORT), WRONG.format(theirs=theirs, ours=ours)

        asked = run(tmp_path, *line, "--backend", "mpi", program=(str(launcher),))
        first = (
            rf"^collbench: (rank 1 \([^)]*\): )?{re.escape(why)}"  # rank 0 reports for both, with the name of the one that found it first
        )
        assert asked.returncode == 4 and len(re.findall(first, asked.stderr, re.MULTILINE)) == 1
        assert not (tmp_path / "run").exists()

        found = stored(run(tmp_path, *line, program=(str(launcher),)), tmp_path)
        said = measured(found)["mpi"]
        assert str(said).startswith(why) and "mpiexec -n 2" in str(said)
        assert measured(found)["gloo"] == (2, 1, 0)

    def test_another_number_of_ranks_is_rejected(self, tmp_path):
        done = run(tmp_path, "-n", "2", *PROGRAM, *SHORT, "--ranks", "3", "--backend", "mpi", program=(str(MPICH),))
        assert done.returncode == 2 and "--ranks 3 " in done.stderr


class TestTorchrun:
    def test_one_host(self, tmp_path):
        line = ("--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", *PROGRAM[1:])
        found = stored(run(tmp_path, *line, *SHORT, program=(str(TORCHRUN),)), tmp_path)
        assert measured(found)["gloo"] == (2, 1, 0) and "torchrun" in str(measured(found)["mpi"])
        assert found.info["launcher"] == "torchrun"


class TestByHand:
    def variables(self, rank):
        return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(self.port)}

    @pytest.fixture(autouse=True)
    def free_port(self):
        with socket.create_server(("", 0)) as found:
            self.port = found.getsockname()[1]

    def test_rank_and_world_size(self, tmp_path):
        (tmp_path / "other").mkdir()
        other = start(tmp_path / "other", *SHORT, env=self.variables(1))
        found = stored(run(tmp_path, *SHORT, env=self.variables(0)), tmp_path)
        assert measured(found)["gloo"] == (2, 1, 0) and "RANK and WORLD_SIZE" in str(measured(found)["mpi"])
        assert other.wait(30) == 0
        assert [(tmp_path / "other" / name).read_text() for name in ("stdout", "stderr")] == ["", ""]  # only rank 0 prints

    @pytest.mark.parametrize("rank", [0, 1])
    def test_a_single_rank_waits_until_its_timeout(self, rank, tmp_path):
        done = run(tmp_path, *SHORT, "--timeout", "1", env=self.variables(rank), timeout=20)
        assert done.returncode == 4 and done.stderr.count("\n") == 1
        nobody = r"rank 1 on \S+ cannot connect to rank 0 at tcp://(localhost|127\.0\.0\.1):\d+ within 1 s"
        missing = "rank 1 of 2 did not join within 1 s" if rank == 0 else nobody
        assert re.search(f"{missing}.* or raise --timeout", done.stderr)

    def test_a_rank_beyond_the_size_is_rejected(self, tmp_path):
        done = run(tmp_path, *SHORT, env={**self.variables(0), "RANK": "2"})
        assert done.returncode == 2 and "RANK=2 is not below WORLD_SIZE=2" in done.stderr

    def test_a_rank_variable_of_a_container_under_mpirun_is_rejected(self, tmp_path):
        done = run(tmp_path, "-n", "2", *PROGRAM, *SHORT, program=(str(MPICH),), env={**self.variables(0), "WORLD_SIZE": "1"})
        assert done.returncode == 2 and "unset RANK and WORLD_SIZE" in done.stderr
