"""The start with GPUs, whole: device files in a /dev of our own, the doubles of driver and NCCL behind them."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.results.reader import read_run
from tests.cli.command import PROGRAM, Finished, environment, one_sentence, run
from tests.fake_gpu import double

pytestmark = pytest.mark.long

_OWN_DEV = """
mount -t overlay overlay -o "lowerdir=/dev,upperdir=$1/upper,workdir=$1/work" /dev || exit 99
gpus=$2; shift 2
while [ "$gpus" -gt 0 ]; do gpus=$((gpus - 1)); : >"/dev/nvidia$gpus"; done
exec "$@"
"""
# As srun sets them for a step of a single task.
_ONE_TASK = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "localhost",
    "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
}  # fmt: skip
_BRIEF = ("allreduce", "--sizes", "8", "--max-time", "0.2", "--timeout", "30", "--out", "run")


@pytest.fixture
def on_gpus(tmp_path: Path) -> Callable[..., Finished]:
    """Return a function that runs collbench as on a host with so many GPUs."""
    for name in ("upper", "work"):
        (tmp_path / "dev" / name).mkdir(parents=True)
    own = ["unshare", "--mount", "sh", "-c", _OWN_DEV, "sh", str(tmp_path / "dev")]
    if subprocess.run([*own, "0", "true"], capture_output=True, check=False).returncode:
        pytest.skip("a /dev of our own needs root and overlayfs")

    def start(gpus: int, *argv: str, **variables: str) -> Finished:
        plain, env = environment(), double.environment(gpus, inherit=environment(variables))
        program = [*own, str(gpus), *PROGRAM]
        return run(tmp_path, *argv, program=program, env={name: env[name] for name in env if env[name] != plain.get(name)})

    return start


def test_nccl_on_every_gpu_is_the_default(on_gpus: Callable[..., Finished], tmp_path: Path) -> None:
    done = on_gpus(4, *_BRIEF, "-g", "2", "--format", "json")
    assert done.returncode == 0, done.stderr
    (row,) = map(json.loads, done.stdout.splitlines())
    assert (row["backend"], row["ranks"], row["device"], row["mode"], row["buffers"]) == ("nccl", 4, "cuda", "pipelined", "rotating")
    assert (row["registration"], row["algorithm"], row["protocol"], row["wrong"]) == ("none", None, None, 0)
    places = read_run(tmp_path / "run").info["rank_map"]
    assert [(place["rank"], place["local_rank"], place["gpu"]) for place in places] == [(i, i, f"0000:{i + 1}0:00.0") for i in range(4)]
    assert [place["pid"] == places[0]["pid"] for place in places] == [True, True, False, False]


def test_a_single_task_of_srun_uses_all_gpus_and_reports_it(on_gpus: Callable[..., Finished], tmp_path: Path) -> None:
    done = on_gpus(2, *_BRIEF, "--algorithms", "ring", **_ONE_TASK)
    assert done.returncode == 0, done.stderr
    assert "starts 2 processes" in done.stderr and "--ranks-per-node 1" in done.stderr
    found = read_run(tmp_path / "run")
    assert (found.info["launcher"], {row.ranks for row in found.rows}) == ("srun", {2})
    assert sorted((row.algorithm or "", row.wrong) for row in found.rows) == [("", 0), ("ring", 0)]
    assert "allreduce nccl: " in done.stdout


def test_a_number_per_process_that_leaves_gpus_idle_is_rejected(on_gpus: Callable[..., Finished]) -> None:
    assert one_sentence(on_gpus(4, *_BRIEF, "-g", "3")).startswith("-g 3 ")
