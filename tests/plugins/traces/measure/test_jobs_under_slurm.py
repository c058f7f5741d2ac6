"""Jobs of torch.distributed under a real Slurm: recorded by `collbench trace -- srun`, replayed under srun, and a hang explained."""

import json
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from collbench.errors import FINE
from collbench.plugins.traces.record import RANKS
from tests.cli.command import PROGRAM, environment, run, until
from tests.launchers.stored import stored
from tests.plugins.traces.measure.written import dump_reason

pytestmark = [pytest.mark.long, pytest.mark.slurm, pytest.mark.timeout(300)]
JOB = Path(__file__).parents[1] / "ddp_job.py"


def recorded(bed, folder, *words, options=(), srun=()):
    """Return the end of `collbench trace -- srun -N2 python ddp_job.py`, with the variables that a user's job script sets."""
    setting = f"RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS MASTER_ADDR={bed.nodes[0]} MASTER_PORT=29577 GLOO_SOCKET_IFNAME=eth0"
    job = ["srun", "-N2", "--mpi=none", *srun, "bash", "-c", f"{setting} exec {shlex.join([PROGRAM[0], str(JOB), *words])}"]
    return bed.call([*PROGRAM, "trace", "--out", str(folder), *options, "--", *job], timeout=120, env=environment())


def test_a_job_under_srun_is_recorded_and_replayed_on_its_nodes(slurm_hosts, tmp_path):
    pytest.importorskip("torch")
    folder = tmp_path / "traces"
    done = recorded(slurm_hosts, folder, options=("--kineto",))
    assert done.returncode == FINE, done.stderr
    about = [json.loads((folder / RANKS / f"rank_{rank}.json").read_text()) for rank in (0, 1)]
    assert [each["rank"] for each in about] == [0, 1]
    replay = [*PROGRAM, "replay", str(folder), "--backend", "gloo", "--max-time", "2", "--compute", "gaps", "--out", str(tmp_path / "run")]
    found = stored(slurm_hosts.srun(["-N2", "--mpi=none", "--kill-on-bad-exit=1"], replay, env=environment()), tmp_path)
    assert found.info["hosts"] == slurm_hosts.nodes
    row = json.loads((tmp_path / "run" / "workload.jsonl").read_text())
    assert (row["regime"], row["ranks"], row["nodes"], row["wrong"]) == ("replay", 2, 2, 0)
    assert [each["rank"] for each in row["replay"]["timelines"]] == [0, 1]


def test_a_job_that_hangs_and_is_cancelled_is_explained(slurm_hosts, tmp_path):
    pytest.importorskip("torch")
    folder = tmp_path / "traces"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(recorded, slurm_hosts, folder, "skip", options=("--hang", "3"))
        try:
            until(lambda: {dump_reason(folder, rank) for rank in (0, 1)} == {"hang"}, "the dumps of the hang", 90)
        finally:
            slurm_hosts.call(["scancel", "--full", "--user=root"])
        done = waiting.result()
    assert done.returncode not in (0, 2), done.stderr
    verdict = run(tmp_path, "autopsy", str(folder), "--format", "json")
    assert verdict.returncode == 1, verdict.stdout + verdict.stderr
    (first, *_) = json.loads(verdict.stdout)["findings"]
    assert first["ranks"] == [1], first
