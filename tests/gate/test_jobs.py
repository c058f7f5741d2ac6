"""Allocations of one job of the scheduler are not independent: noise repeats within a job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.errors import UsageError
from collbench.gate.allocation import allocation_from
from collbench.gate.baseline import Baseline, add_all, load
from collbench.gate.reasons import BaselineOfOneJob, SameJob, SameJobAsBaseline
from collbench.results.reader import read_run
from tests.gate.judging import BASE, allocation, judged, slow
from tests.results.rows import make_row, store

JOB = ("Slurm job testbed-12",)


def jobs_of(folder: Path, *environments: Any) -> tuple[str, ...]:
    runs = [store(folder / str(n), [make_row(8)], allocation_id="night", environment=each) for n, each in enumerate(environments)]
    return allocation_from([read_run(each) for each in runs]).jobs


def test_a_job_is_identified_by_its_cluster_and_number(tmp_path: Path) -> None:
    slurm = {"SLURM_JOB_ID": "12", "SLURM_CLUSTER_NAME": "testbed"}
    assert jobs_of(tmp_path / "a", slurm, slurm) == JOB
    assert jobs_of(tmp_path / "b", {"PBS_JOBID": "7.head"}, {"LSB_JOBID": "9"}) == ("PBS job 7.head", "LSF job 9")
    assert jobs_of(tmp_path / "c", {}, None, {"SLURM_CLUSTER_NAME": "testbed"}, {"SLURM_JOB_ID": 12}, {"SLURM_JOB_ID": "1" * 300}) == ()


def test_three_allocations_of_one_job_confirm_no_regression() -> None:
    own = judged(*(replace(slow(name), jobs=(f"Slurm job {name}",)) for name in "abc"))
    assert own.result == "regression"
    verdict = judged(*(replace(slow(name), jobs=JOB) for name in "abc"))
    assert (verdict.result, {each.state for each in verdict.suspicions}) == ("no verdict", {"suspected"})
    assert verdict.reasons[0] == SameJob("a", "b", *JOB)


def test_launches_of_one_allocation_may_be_of_many_jobs() -> None:
    """srun outside an allocation makes a job for each launch."""
    assert judged(replace(allocation("new"), jobs=("Slurm job 1", "Slurm job 2"))).result == "passed"


def test_a_candidate_of_a_job_of_the_baseline_is_not_fresh() -> None:
    base = Baseline(Path("base"), [replace(BASE.allocations[0], jobs=JOB), *BASE.allocations[1:]])
    verdict = judged(replace(allocation("new"), jobs=JOB), baseline=base)
    assert verdict.result == "no verdict"
    assert verdict.reasons[0] == SameJobAsBaseline("new", "good-0", *JOB)


def test_a_baseline_accepts_a_job_once_and_the_verdict_notes_a_repeated_one(tmp_path: Path) -> None:
    first, second = (replace(allocation(f"good-{number}", launches=number + 1), jobs=JOB) for number in range(2))
    add_all(tmp_path, [first])
    assert load(tmp_path).allocations == [first]
    with pytest.raises(UsageError, match=r"good-0 and good-1 .*testbed-12"):
        add_all(tmp_path, [second])
    verdict = judged(allocation("new"), baseline=Baseline(Path("base"), [first, second, *BASE.allocations[2:]]))
    assert verdict.notes[0] == BaselineOfOneJob("good-0", "good-1", *JOB)


def test_a_baseline_of_an_older_collbench_has_no_jobs(tmp_path: Path) -> None:
    (file,) = add_all(tmp_path, [replace(allocation("good-0"), jobs=JOB)])
    head, *cases = file.read_text().splitlines()
    actual = json.loads(head)
    assert actual.pop("jobs") == list(JOB)
    file.write_text("\n".join([json.dumps(actual), *cases]))
    assert load(tmp_path).allocations == [allocation("good-0")]
    file.write_text("\n".join([json.dumps({**actual, "jobs": [7]}), *cases]))
    with pytest.raises(UsageError, match="'jobs'"):
        load(tmp_path)
