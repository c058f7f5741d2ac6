"""The trials of autopsy: real DDP and FSDP2 jobs over Gloo with a fault, one of each kind."""

import subprocess
import sys

import pytest

from tools.benchmarks.trials import autopsy_nccl
from tools.benchmarks.trials.autopsy import KINDS, Trial, job_of
from tools.benchmarks.trials.series import ROOT, trials_in

pytestmark = pytest.mark.system

pytest.importorskip("torch")


@pytest.mark.often("exception")
@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_right_rank_and_cause_and_a_series_continues(tmp_path, kind):
    words = [sys.executable, "-m", "tools.benchmarks.trials.autopsy", str(tmp_path), "--first", "0", "--each", "1", "--kinds", kind]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    (trial,) = trials_in(tmp_path, Trial)
    assert (done.returncode, trial.right, trial.false_accusation) == (0, True, False), f"{trial}\n{done.stderr}"
    assert (tmp_path / "README.md").exists()
    again = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert (again.returncode, again.stdout) == (0, "")
    assert trials_in(tmp_path, Trial) == [trial]


def test_seeds_give_each_framework_and_variant_and_always_the_same_job():
    for kind in KINDS:
        jobs = [job_of(kind, seed) for seed in range(30)]
        assert jobs == [job_of(kind, seed) for seed in range(30)]
        assert {job.framework for job in jobs} == {"ddp", "fsdp"} and {job.ranks for job in jobs} == {2, 3, 4}
        assert len({(job.framework, job.variant) for job in jobs}) == 2 * len({job.variant for job in jobs})


@pytest.mark.parametrize("kind", autopsy_nccl.KINDS)
def test_no_innocent_rank_is_accused_of_a_simulated_job_and_none_that_hangs_is_fine(tmp_path, kind):
    for seed in range(4):
        folder = tmp_path / str(seed)
        folder.mkdir()
        trial, verdict = autopsy_nccl.play(kind, seed, folder, "")
        assert (trial.right, trial.innocent, trial.false_fine) == (True, [], False), trial
        assert (verdict.exit_code == 0) <= (kind == "healthy")
