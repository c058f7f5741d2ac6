"""The jobs to copy, each submitted once to a real Slurm: what they measure, where it lies, how they end."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from collbench.gating.allocation import NAME
from collbench.results.reader import read_run
from tests.cli.command import environment, run_here, until
from tests.conftest import needs_plugin
from tests.slurm.made_up import SLOWER, SLURM, Cluster, doubles, said, settings, suite
from tests.testbeds import SlurmBed

pytestmark = pytest.mark.contract

OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
ON_SLURM = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(200)]


def sbatch(
    bed: SlurmBed, folder: Path, name: str, *words: object, options: tuple[str, ...] = (), env: Mapping[str, str] | None = None
) -> str:
    line = ["sbatch", "--parsable", f"--chdir={folder}", *options, str(SLURM / name), *map(str, words)]
    done = bed.call(line, env=settings({"COLLBENCH_ITERATIONS": "20", **(env or {})}))
    assert done.returncode == 0, said(done)
    return done.stdout.strip()


def job_records(bed: SlurmBed, job: str) -> list[dict[str, str]]:
    lines = bed.call(["scontrol", "--oneliner", "show", "job", job]).stdout.splitlines()
    found = [dict(word.partition("=")[::2] for word in line.split()) for line in lines if line]
    return sorted(found, key=lambda each: each.get("ArrayTaskId", ""))


def ended(bed: SlurmBed, job: str, folder: Path) -> tuple[str, str]:
    until(lambda: job_records(bed, job)[0]["JobState"] in OVER, f"job {job}", 60)
    return job_records(bed, job)[0]["ExitCode"], (folder / f"collbench-{job}.out").read_text()


class TestSweep:
    pytestmark = ON_SLURM

    def test_all_ranks_measure_what_was_typed(self, slurm_hosts: SlurmBed, tmp_path: Path) -> None:
        words = ["allreduce", "--sizes", "1K", "--backend", "gloo"]
        job = sbatch(slurm_hosts, tmp_path, "sweep.sbatch", *words, options=("--ntasks-per-node=2",))
        code, talk = ended(slurm_hosts, job, tmp_path)
        assert code == "0:0" and "kill-on-bad-exit" not in talk, talk
        found = read_run(tmp_path / "runs" / job)
        assert [(row.backend, row.ranks, row.nodes, row.wrong) for row in found.rows] == [("gloo", 4, 2, 0)]
        assert found.info["hosts"] == slurm_hosts.nodes

    @pytest.mark.often
    def test_its_exit_code_is_that_of_collbench(self, slurm_hosts: SlurmBed, tmp_path: Path) -> None:
        job = sbatch(slurm_hosts, tmp_path, "sweep.sbatch", "allreduce", "--dtype", "float12", options=("-N1",))
        code, talk = ended(slurm_hosts, job, tmp_path)
        assert code == "2:0" and "'float12'" in talk

    def test_without_an_operation_the_error_has_the_usage(self, slurm_hosts: SlurmBed, tmp_path: Path) -> None:
        code, talk = ended(slurm_hosts, sbatch(slurm_hosts, tmp_path, "sweep.sbatch"), tmp_path)
        assert code == "1:0" and "missing operation" in talk


class TestPairs:
    pytestmark = ON_SLURM

    @needs_plugin("hunt")
    def test_every_node_meets_every_other_one(self, bed: SlurmBed, tmp_path: Path) -> None:
        from collbench.plugins.hunt.records import read_pairs

        words = ["--backend", "simulated", "--max-time", "0.1"]
        job = sbatch(bed, tmp_path, "pairs.sbatch", *words, options=("--nodes=4",))
        code, talk = ended(bed, job, tmp_path)
        assert code == "0:0", talk
        found = read_pairs(read_run(tmp_path / "runs" / job))
        assert found is not None and len(found.about["places"]) == 4
        assert {pair for one in found.rounds for pair in one.pairs} == {(a, b) for a in range(4) for b in range(a + 1, 4)}


class TestNightly:
    pytestmark = ON_SLURM

    def test_nights_add_up_and_each_is_judged(self, cluster: Cluster, tmp_path: Path) -> None:
        history = tmp_path / "history"
        jobs = []
        for _ in range(2):
            jobs.append(sbatch(cluster.bed, tmp_path, "nightly.sbatch", history, cluster.good, cluster.suite, 1))
            code, talk = ended(cluster.bed, jobs[-1], tmp_path)
            assert code in ("0:0", "3:0") and f"baseline {cluster.good}: 6 allocations" in talk, talk
        assert f"{history}: 2 allocations" in talk
        assert sorted(path.name.rpartition("-")[2] for path in history.iterdir()) == sorted(jobs)
        assert {run.info["allocation_id"] for run in map(read_run, history.glob("*/launch-1"))} == {f"testbed-{job}" for job in jobs}

    def test_a_slower_night_is_a_suspicion_and_no_verdict(self, cluster: Cluster, tmp_path: Path) -> None:
        words = (tmp_path / "history", cluster.good, cluster.suite, 3)
        code, talk = ended(cluster.bed, sbatch(cluster.bed, tmp_path, "nightly.sbatch", *words, env=SLOWER), tmp_path)
        assert code == "3:0" and "suspected" in talk, talk

    def test_without_a_baseline_it_keeps_the_history_alone(self, bed: SlurmBed, tmp_path: Path) -> None:
        job = sbatch(bed, tmp_path, "nightly.sbatch", tmp_path / "history", "", suite(tmp_path), 1)
        code, talk = ended(bed, job, tmp_path)
        assert code == "0:0" and "1 allocation on" in talk and "judged" not in talk, talk

    def test_a_failed_launch_is_not_an_allocation(self, bed: SlurmBed, tmp_path: Path) -> None:
        (tmp_path / "bad.toml").write_text("schema = 1\nsweep = 2\n")
        job = sbatch(bed, tmp_path, "nightly.sbatch", tmp_path / "history", "", tmp_path / "bad.toml", options=("-N1",))
        code, talk = ended(bed, job, tmp_path)
        assert code == "2:0" and "bad.toml" in talk and not (tmp_path / "history").exists()


class TestArray:
    pytestmark = ON_SLURM

    def test_a_baseline_of_allocations_hours_apart(self, bed: SlurmBed, tmp_path: Path) -> None:
        folder = tmp_path / "good"
        job = sbatch(bed, tmp_path, "array.sbatch", folder, suite(tmp_path), 1, options=("--array=1-2%1",))
        until(lambda: job_records(bed, job)[0]["JobState"] in OVER, "the first", 60)
        first, second = job_records(bed, job)
        assert (first["ExitCode"], second["JobState"]) == ("0:0", "PENDING"), first
        apart = bed.call(["bash", "-c", f"echo $(($(date -d {second['StartTime']} +%s) - $(date -d {first['StartTime']} +%s)))"])
        assert 0 <= int(apart.stdout) - 4 * 3600 < 30
        bed.must("scontrol", "update", f"JobId={job}_2", "StartTime=now")
        until(lambda: job_records(bed, job)[1]["JobState"] in OVER, "the second", 60)
        jobs = {each["JobId"] for each in job_records(bed, job)}
        assert {path.name for path in folder.iterdir()} == jobs and len(jobs) == 2
        assert "put off" not in (tmp_path / f"collbench-{job}_1.out").read_text()
        added = run_here(tmp_path, "baseline", "add", "good-ones", *map(str, sorted(folder.iterdir())))
        assert added.returncode == 0, said(added)
        assert {path.name.partition(".")[0] for path in (tmp_path / "good-ones").iterdir()} == {f"testbed-{number}" for number in jobs}
        assert all(NAME.fullmatch(f"testbed-{number}") for number in jobs)


def test_jobs_that_measure_for_a_baseline_measure_as_the_gate_does() -> None:
    loop = (SLURM / "gate.sbatch").read_text().partition("for ((")[2].replace('"$folder/launch-', '"PLACE/launch-')
    for name, place in (("array.sbatch", "$folder/$SLURM_JOB_ID"), ("nightly.sbatch", "$night")):
        text = (SLURM / name).read_text().replace('"$program"', '"${COLLBENCH:-collbench}"')
        assert loop.partition("done")[0] == text.partition("for ((")[2].partition("done")[0].replace(f'"{place}/launch-', '"PLACE/launch-')


@pytest.mark.parametrize("path", sorted(SLURM.glob("*.sbatch")), ids=lambda path: path.name)
def test_no_job_is_repeated_or_shares_its_nodes(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert {"#SBATCH --no-requeue", "#SBATCH --exclusive"} <= set(lines) and "set -euo pipefail" in lines
    assert (
        any("--kill-on-bad-exit=1 " in line and line.lstrip().startswith("srun") for line in lines)
        or "export SLURM_KILL_BAD_EXIT=1" in lines
    )


def test_jobs_that_cannot_be_delayed_start_at_once_with_a_note(tmp_path: Path) -> None:
    path = doubles(tmp_path, scontrol="exit 1", srun='shift; echo "$*"')
    own = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_MAX": "3", "SLURM_ARRAY_JOB_ID": "9", "SLURM_JOB_ID": "10", "PATH": path}
    line = ["bash", str(SLURM / "array.sbatch"), "good", "gate", "1"]
    done = subprocess.run(line, env=environment(own), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "collbench run gate --out good/10/launch-1 --quiet\n")
    assert done.stderr.startswith("array.sbatch: ") and "9_[2-3]" in done.stderr and done.stderr.count("\n") == 1
