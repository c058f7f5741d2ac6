"""gate.sh on a real Slurm: a first allocation, its suspects in two fresh ones, and what ends it earlier."""

import json
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.command import ROOT, until
from tests.slurm.made_up import SLOWER, SLURM, Cluster, said, settings
from tests.testbeds.bed import Finished

pytestmark = [pytest.mark.contract, pytest.mark.slurm, pytest.mark.timeout(200)]

QUICK = ["--launches", "1", "--poll", "1"]


def gate(cluster: Cluster, keep: Path, *more: str, env: Mapping[str, str] | None = None) -> Finished:
    actual = {"--baseline": cluster.good, "--keep": keep, "--suite": cluster.suite, "--expect": cluster.announced}
    line = [str(SLURM / "gate.sh"), *(str(word) for option in actual.items() for word in option), *QUICK, *more]
    return cluster.bed.call(line, timeout=120, env=settings(env))


def verdict(keep: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((keep / "latest" / "verdict.json").read_text())
    return found


def nodes_of(cluster: Cluster, keep: Path) -> list[set[str]]:
    jobs = [name.rpartition("-")[2] for name in verdict(keep)["candidates"]]
    shown = [cluster.bed.call(["scontrol", "--oneliner", "show", "job", job]).stdout for job in jobs]
    lists = [words["NodeList"] for words in (dict(word.partition("=")[::2] for word in text.split()) for text in shown)]
    return [set(cluster.bed.call(["scontrol", "show", "hostnames", one]).stdout.split()) for one in lists]


@pytest.mark.long
def test_the_workflow_confirms_a_regression_on_fresh_nodes(cluster: Cluster, tmp_path: Path) -> None:
    job = yaml.safe_load((SLURM / "github" / "gate.yml").read_text())["jobs"]["gate"]
    (step,) = (each for each in job["steps"] if "run" in each)
    keep, summary = tmp_path / "keep", tmp_path / "summary.md"
    actual = {"BASELINE": str(cluster.good), "KEEP": str(keep), "SUITE": str(cluster.suite), "GITHUB_STEP_SUMMARY": str(summary)}
    assert set(actual) - {"GITHUB_STEP_SUMMARY"} < set(job["env"])
    own = {**job["env"], **actual, "OPTIONS": f"{job['env']['OPTIONS']} {' '.join(QUICK)} --expect {cluster.announced}"}
    (tmp_path / "slurm").symlink_to(SLURM)
    line = ["bash", "-e", "-c", f"cd {tmp_path}\n{step['run']}"]
    done = cluster.bed.call(line, timeout=120, env=settings({**own, **SLOWER}))
    assert done.returncode == 1, said(done)
    found = verdict(keep)
    assert found["result"] == "regression" and len(found["candidates"]) == 3
    assert {each["state"] for each in found["suspicions"]} == {"confirmed"}
    first, second, third = nodes_of(cluster, keep)
    assert {len(first), len(second), len(third), len(first | second | third)} == {2, 6}
    assert "::error" in done.stdout and "regression" in summary.read_text()
    assert 'failures="' in (tmp_path / "gate.xml").read_text() and (tmp_path / "gate.html").stat().st_size > 10_000
    kept = {path.name for path in (keep / "latest").iterdir()}
    assert kept >= {"allocation-1", "allocation-2", "allocation-3", "job-1.out", "job-3.out", "suspects-2.toml", "verdict.json"}


@pytest.mark.often
@pytest.mark.long
def test_a_healthy_node_is_measured_once(cluster: Cluster, tmp_path: Path) -> None:
    done = gate(cluster, tmp_path / "keep", "--", "--format", "json")
    assert done.returncode == 0, said(done)
    assert json.loads(done.stdout)["result"] == "passed" and len(verdict(tmp_path / "keep")["candidates"]) == 1
    assert not list((tmp_path / "keep" / "latest").glob("suspects-*"))


@pytest.mark.long
def test_a_failed_job_is_reported_with_its_output(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("schema = 1\nsweep = 2\n")
    done = gate(cluster, tmp_path / "keep", "--suite", str(tmp_path / "bad.toml"))
    assert done.returncode in (2, 3) and done.stdout == ""  # 3: srun ended a rank before it exited with 2
    actual = re.search(r"ended as FAILED \(exit code (?:2|143):0\), see (\S+)", done.stderr)
    assert actual and "bad.toml" in Path(actual[1]).read_text(), said(done)


@pytest.mark.long
def test_a_cluster_too_small_for_fresh_nodes_gives_no_verdict(cluster: Cluster, tmp_path: Path) -> None:
    few = ",".join(cluster.bed.nodes[2:])
    cluster.bed.must("scontrol", "update", f"NodeName={few}", "State=DRAIN", "Reason=test")
    try:
        done = gate(cluster, tmp_path / "keep", "--fresh-nodes", "--wait", "8", env=SLOWER)
    finally:
        cluster.bed.must("scontrol", "update", f"NodeName={few}", "State=RESUME")
    assert done.returncode == 3 and "no verdict: job " in done.stderr and "8 s (PENDING" in done.stderr, said(done)
    assert cluster.bed.call(["squeue", "--noheader"]).stdout.strip() == ""
    assert (tmp_path / "keep" / "latest" / "suspects-2.toml").exists()


@pytest.mark.long
def test_a_signal_cancels_its_job(cluster: Cluster, tmp_path: Path) -> None:
    line = [
        str(SLURM / "gate.sh"), "--baseline", str(cluster.good), "--keep", str(tmp_path / "keep"), "--suite", str(cluster.suite), *QUICK,
    ]  # fmt: skip
    slow = cluster.bed.environment({**settings(), "COLLBENCH_LAUNCHES": "1", "COLLBENCH_MAX_TIME": "60", "COLLBENCH_ITERATIONS": "1000000"})
    with (tmp_path / "stderr").open("w+") as talk:
        begun = subprocess.Popen(["timeout", "60", *line], cwd=ROOT, env=slow, stdout=subprocess.DEVNULL, stderr=talk)
        until(lambda: "RUNNING" in cluster.bed.call(["squeue", "--noheader", "--format=%T"]).stdout, "the job")
        begun.send_signal(signal.SIGTERM)
        assert begun.wait(30) == 143
        talk.seek(0)
        assert str(tmp_path / "keep") in talk.read()
    until(lambda: not cluster.bed.call(["squeue", "--noheader"]).stdout.strip(), "the job's end")
