"""`collbench hunt` as users start it: confirmed and cleared ranks, the estimate, output, stored files, and rejected options."""

import csv
import io
import json
import os
import re
import signal
from importlib.util import find_spec
from shutil import which

import pytest

from collbench.plugins.hunt.records import read_hunt
from collbench.results.reader import read_run
from tests.cli.command import one_sentence, run, run_here, start, until

pytestmark = pytest.mark.system

BRIEF = ("--out", "run", "--size", "16K", "--window", "2")
NO_MPI = pytest.mark.skipif(not find_spec("mpi4py"), reason="no mpi4py")
NO_TORCH = pytest.mark.skipif(not find_spec("torch"), reason="no torch")


def stored(folder):
    found = read_hunt(read_run(folder / "run"))
    assert not found.warnings
    return found


@pytest.mark.parametrize(("ranks", "slow", "typed", "sweep"), [
    (16, [5], (), "pairs"), pytest.param(64, [5, 40], (), "pairs", marks=pytest.mark.long),
    pytest.param(64, [9, 33], ("--method", "groups"), "groups", marks=pytest.mark.long),
])  # fmt: skip
def test_exactly_the_slow_ranks_are_confirmed_and_report_prints_the_stored_hunt_as_the_hunt_did(ranks, slow, typed, sweep, tmp_path):
    slowed = f"by=100% ranks={','.join(map(str, slow))}"
    done = run(tmp_path, "hunt", "--backend", "simulated", "--ranks", str(ranks), *BRIEF, "--slowed", slowed, *typed)
    assert done.returncode == 1, done.stderr
    found = stored(tmp_path)
    suspects = sorted((each["places"], each["state"]) for each in found.about["verdict"]["suspects"] if each["state"] != "cleared")
    assert suspects == [([rank], "confirmed") for rank in slow]
    assert {one.kind for one in found.rounds if one.stage == "sweep"} == {sweep}
    said = re.search(r"^hunt among \d+ ranks: at most (\d+) rounds, of .* in all$", done.stderr, re.MULTILINE)
    assert said and int(said[1]) == found.about["promised"] >= len(found.rounds) == found.about["rounds"]
    lines = re.findall(r"^round (\d+) of at most (\d+), (?:sweep|cross-check|growing|isolation): \S", done.stderr, re.MULTILINE)
    assert [int(number) for number, _ in lines] == list(range(1, len(found.rounds) + 1)) and {most for _, most in lines} == {said[1]}
    assert re.search(rf"^confirmed: rank {slow[0]} \(\S+\) .* 5\d % ", done.stdout, re.MULTILINE)
    actual = json.loads((tmp_path / "run" / "recommendation.json").read_text())
    assert actual["result"] == "confirmed" and actual["drains"] == []
    assert re.search(r"^recommendation: run/recommendation.json$", done.stderr, re.MULTILINE)
    assert done.stderr.splitlines()[-1] == "run folder: run" and "simulates its ranks" in done.stdout
    first, rest = run_here(tmp_path, "report", "run").stdout.split("\n", 1)
    assert re.fullmatch(r"run \(\d+ rounds\)", first) and rest == done.stdout
    records = csv.DictReader(io.StringIO(run_here(tmp_path, "report", "run", "--csv").stdout))
    assert {each["places"].split(" (")[0] for each in records if each["state"] == "confirmed"} == {f"rank {rank}" for rank in slow}


@pytest.mark.parametrize(("typed", "value"), [
    (("--max-drain", "x"), "--max-drain 'x'"), (("--apply",), "scontrol"), (("--budget", "1"), "8 endpoints"),
    (("--cover-links", "nowhere"), "nowhere"),
], ids=["max-drain", "apply", "budget", "cover-links"])  # fmt: skip
def test_an_impossible_hunt_is_rejected_before_the_first_measurement(typed, value, tmp_path, tmp_path_factory):
    bare = tmp_path_factory.mktemp("bin")  # neither scontrol nor kubectl
    (bare / "timeout").symlink_to(which("timeout") or "")
    done = run(tmp_path, "hunt", "--backend", "simulated", "--ranks", "8", *typed, env={"PATH": str(bare)})
    assert value in one_sentence(done) and list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_groups_need_a_backend_that_reduces(tmp_path):
    said = one_sentence(run(tmp_path, "hunt", "--backend", "socket", "--ranks", "3", "--method", "groups"))
    assert "socket does not support allreduce" in said and list(tmp_path.iterdir()) == []


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("typed", [
    pytest.param(("--backend", "mpi", "--ranks", "4"), marks=NO_MPI),
    pytest.param(("--backend", "gloo", "--ranks", "8", "--method", "groups"), marks=[NO_TORCH, pytest.mark.long]),
], ids=["pairs", "groups"])  # fmt: skip
@pytest.mark.long
def test_a_killed_rank_ends_the_hunt_without_a_recommendation(typed, tmp_path):
    unbrief = {"COLLBENCH_ITERATIONS": "", "COLLBENCH_WARMUP": ""}
    running = start(tmp_path, "hunt", *typed, "--out", "run", "--timeout", "20", env=unbrief)
    try:
        until(lambda: lines(tmp_path / "run" / "hunt.jsonl"), "the first round")
        about = json.loads((tmp_path / "run" / "run.json").read_text())
        os.kill(next(place["pid"] for place in about["rank_map"] if place["rank"] == 2), signal.SIGKILL)
        assert running.wait(60) == 4
    finally:
        running.kill()
    said = (tmp_path / "stderr").read_text()
    assert re.search(r"^collbench: .*rank 2 \(.*(SIGKILL|ended unexpectedly|ended first)", said, re.MULTILINE), said
    assert "Traceback" not in said
    assert not (tmp_path / "run" / "recommendation.json").exists()
    found = stored(tmp_path)
    assert found.rounds and found.about["verdict"] is None
    shown = run_here(tmp_path, "report", "run")
    assert "without a verdict" in shown.stdout and "not finished" in shown.stdout
