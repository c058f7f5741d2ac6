"""The batch script on a real Slurm: two hosts, joined by 1 Gbit/s."""

import json
import re
import shlex
from contextlib import ExitStack
from pathlib import Path

import pytest

from collbench.results.reader import read_run
from tests.cli.command import BIN, PROGRAM, ROOT, environment, one_sentence, until
from tests.conftest import enter
from tests.launchers.stored import measured, stored
from tests.plugins.deploy.recorded import COMMAND, program
from tests.plugins.deploy.test_reframe import emitted, reframe
from tests.testbeds import SlurmBed
from tests.testbeds.bed import Finished

pytestmark = [pytest.mark.long, pytest.mark.slurm, pytest.mark.timeout(200)]


def submit(bed: SlurmBed, folder: Path, *told: str, command: tuple[str, ...], env: dict[str, str] | None = None) -> str:
    """Return the job's number: `collbench emit slurm … --submit` in the folder, from a shell with 64 KiB of locked memory."""
    line = [str(BIN / "python"), "-m", "collbench", "emit", "slurm", *told, "--submit", "--", *command]
    shell = ["bash", "-c", f"cd {shlex.quote(str(folder))} && ulimit -S -l 64 && {shlex.join(line)}"]
    done = bed.call(shell, env={**environment(env), "PYTHONPATH": str(ROOT)})
    found = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)
    assert found, done.stdout + done.stderr
    return found[1]


def ended(bed: SlurmBed, job: str) -> list[dict[str, str]]:
    def shown() -> list[dict[str, str]]:
        lines = bed.call(["scontrol", "--oneliner", "show", "job", job]).stdout.splitlines()
        return [dict(word.partition("=")[::2] for word in line.split()) for line in lines if line]

    over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
    until(lambda: all(each["JobState"] in over for each in shown()), f"job {job}", 60)
    return shown()


def test_it_is_submitted_and_measures_across_hosts(slurm_hosts: SlurmBed, tmp_path: Path) -> None:
    folder = "r u'n;s $(id)"
    actual = ["--ranks-per-node", "2", "--partition", "main", "--runs", f"./{folder}", "--program", str(BIN / "collbench")]
    job = submit(slurm_hosts, tmp_path, *actual, command=("allreduce", "--sizes", "1K", "--backend", "gloo"))
    (said,) = ended(slurm_hosts, job)
    talk = (tmp_path / f"collbench-{job}.out").read_text()
    assert (said["ExitCode"], said["NumNodes"], said["NumTasks"], said["OverSubscribe"]) == ("0:0", "2", "4", "NO"), talk
    assert "kill-on-bad-exit" not in talk  # no advice that was followed already
    (tmp_path / "run").symlink_to(tmp_path / folder / job)
    found = stored(Finished([], 0, talk, ""), tmp_path)
    assert measured(found) == {"gloo": (4, 2, 0)}
    first, second = slurm_hosts.nodes
    assert [(each["host"], each["local_rank"]) for each in found.info["rank_map"]] == [(first, 0), (first, 1), (second, 0), (second, 1)]
    assert found.info["allocation_id"] == f"testbed-{job}"


def test_an_array_is_an_allocation_each(slurm_hosts: SlurmBed, tmp_path: Path) -> None:
    command = ("allreduce", "--sizes", "1K", "--backend", "simulated")
    job = submit(slurm_hosts, tmp_path, "--array", "2", "--program", str(BIN / "collbench"), command=command)
    said = ended(slurm_hosts, job)
    assert [each["ExitCode"] for each in said] == ["0:0", "0:0"]
    begun, over = (sorted(each[name] for each in said) for name in ("StartTime", "EndTime"))
    assert begun[1] >= over[0]  # one after the other
    runs = [read_run(tmp_path / "runs" / each["JobId"]) for each in said]
    assert {run.info["allocation_id"] for run in runs} == {f"testbed-{each['JobId']}" for each in said}
    assert len({each["JobId"] for each in said}) == 2 and [len(run.rows) for run in runs] == [1, 1]
    assert {path.name for path in tmp_path.glob("*.out")} == {f"collbench-{job}_1.out", f"collbench-{job}_2.out"}


def test_the_ranks_may_lock_what_their_nodes_allow(slurm_hosts: SlurmBed, tmp_path: Path) -> None:
    """And not the 64 KiB of the shell that submitted; its exit code is the job's, and every value arrives."""
    tells = 'echo "$SLURM_PROCID|$(ulimit -S -l)|$(ulimit -H -l)|$X|$*"'
    own = program(tmp_path, "own program", f"#!/bin/bash\n{tells} >{tmp_path}/seen-$SLURM_PROCID\nexit 3\n")
    value = "a $(id) `id` 'b' \\ \"c\" # ü"
    job = submit(slurm_hosts, tmp_path, "--program", str(own), "--env", f"X={value}", "--name", "n.1", command=("run", "a b';c.toml"))
    (said,) = ended(slurm_hosts, job)
    assert (said["JobName"], said["ExitCode"]) == ("n.1", "3:0")
    actual = [(tmp_path / f"seen-{rank}").read_text().rstrip("\n").split("|") for rank in (0, 1) if (tmp_path / f"seen-{rank}").exists()]
    assert actual and all(soft == hard and soft != "64" for _, soft, hard, _, _ in actual)
    assert {(x, words) for _, _, _, x, words in actual} == {(value, f"run a b';c.toml --out runs/{job}")}


def test_finished_rows_are_kept_when_slurm_ends_the_ranks(slurm_hosts: SlurmBed, tmp_path: Path) -> None:
    """As --signal=TERM@60 does, which signals the steps. Cases come in any order: either one takes seconds over this link."""
    command = ("allreduce", "--sizes", "16M,20M", "--backend", "gloo", "-n", "20", "--max-time", "60", "--warmup", "1")
    job = submit(slurm_hosts, tmp_path, "--program", str(BIN / "collbench"), command=command, env={"COLLBENCH_ITERATIONS": ""})
    cases = tmp_path / "runs" / job / "cells.jsonl"
    until(lambda: cases.exists() and cases.read_text().count("\n") == 1, "the first case", 60)
    slurm_hosts.must("scancel", "--signal=TERM", job)
    (said,) = ended(slurm_hosts, job)
    assert said["ExitCode"] == "143:0"
    found = read_run(tmp_path / "runs" / job)
    assert (len(found.rows), found.info["exit_code"], found.info["finished_utc"] is not None) == (1, 143, True)
    talk = (tmp_path / f"collbench-{job}.out").read_text()
    assert "SIGTERM" in talk and f"--resume runs/{job}" in talk


def test_gpus_are_all_seen_by_each_rank(tmp_path: Path) -> None:
    with ExitStack() as stack:
        bed = enter(stack, SlurmBed(nodes=2, gpus=2))
        own = program(tmp_path, "own", f'#!/bin/bash\necho "$CUDA_VISIBLE_DEVICES" >{tmp_path}/gpus-$SLURM_PROCID\n')
        job = submit(bed, tmp_path, "--gpus-per-node", "2", "--gpu-type", "h100", "--program", str(own), command=("probe",))
        (said,) = ended(bed, job)
    assert said["ExitCode"] == "0:0"
    assert [(tmp_path / f"gpus-{rank}").read_text() for rank in range(4)] == ["0,1\n"] * 4


@pytest.mark.system
@pytest.mark.often
def test_the_error_of_sbatch_is_one_sentence(slurm_hosts: SlurmBed, tmp_path: Path) -> None:
    line = [str(BIN / "collbench"), "emit", "slurm", "--partition", "nowhere", "--submit", "--", *COMMAND]
    refused = slurm_hosts.call(line, env=environment())
    assert "invalid partition specified: nowhere" in one_sentence(refused)


def test_the_reframe_check_passes(slurm_one_host: SlurmBed, tmp_path: Path) -> None:
    at = program(tmp_path, "collbench", f'#!/bin/sh\nexec {PROGRAM[0]} -m collbench "$@"\n')
    command = ("allreduce", "--backend", "gloo", "--sizes", "1K,4K", "--max-time", "0.2")
    (tmp_path / "check.py").write_text(emitted(*command, nodes=2, program=str(at)))
    done = reframe(tmp_path, "-r", "--report-file", str(tmp_path / "report.json"), bed=slurm_one_host)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = json.loads((tmp_path / "report.json").read_text())["runs"]
    (case,) = run["testcases"]
    assert (case["result"], len(case["perfvalues"])) == ("pass", 2)


def test_a_requeued_job_resumes_its_run(slurm_hosts: SlurmBed, tmp_path: Path) -> None:
    actual = ["--runs", "./runs", "--program", str(BIN / "collbench")]
    precise = ("--max-time", "1", "--precision", "0.01")
    job = submit(slurm_hosts, tmp_path, *actual, command=("allreduce", "--sizes", "8-256", "--backend", "gloo", *precise))
    cases = tmp_path / "runs" / job / "cells.jsonl"
    until(lambda: cases.exists() and cases.read_bytes().count(b"\n") >= 2, "two rows", 60)
    assert slurm_hosts.call(["scontrol", "requeue", job]).returncode == 0
    shown = ["scontrol", "--oneliner", "show", "job", job]
    until(lambda: "JobState=PENDING" in slurm_hosts.call(shown).stdout, "the job's return to the queue", 30)
    kept = cases.read_bytes()
    slurm_hosts.call(["scontrol", "update", f"JobId={job}", "StartTime=now"])  # Slurm waits two minutes otherwise
    (said,) = ended(slurm_hosts, job)
    talk = (tmp_path / f"collbench-{job}.out").read_text()
    assert (said["ExitCode"], said["Restarts"]) == ("0:0", "1"), talk
    count = len(kept.splitlines())
    assert f"runs/{job} has {count} of 6 cases" in talk, talk
    assert cases.read_bytes().startswith(kept) and len(read_run(cases.parent).rows) == 6
