"""`collbench hunt` as users start it: who is confirmed and who is cleared, what it promises, prints and stores, what it refuses."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from collbench.results.reader import read_run
from collbench.results.rounds import StoredHunt, read_hunt
from tests.cli.command import Finished, one_sentence, run, run_here, start, until
from tests.conftest import sample

BRIEF = ("--out", "run", "--size", "16K", "--window", "2")
SICK = "by=100% ranks={}"
NO_MPI = pytest.mark.skipif(not find_spec("mpi4py"), reason="no mpi4py")
NO_TORCH = pytest.mark.skipif(not find_spec("torch"), reason="no torch")


def hunt(folder: Path, ranks: int, *typed: str, backend: str = "simulated") -> Finished:
    return run(folder, "hunt", "--backend", backend, "--ranks", str(ranks), *BRIEF, *typed)


def stored(folder: Path) -> StoredHunt:
    found = read_hunt(read_run(folder / "run"))
    assert not found.warnings
    return found


def suspects(folder: Path, state: str) -> list[list[int]]:
    return sorted(each["places"] for each in stored(folder).about["verdict"]["suspects"] if each["state"] == state)


def rounds_kept(done: Finished, folder: Path) -> None:
    """What was promised beforehand was printed before the first round, and kept."""
    found = stored(folder)
    said = re.search(r"^hunt among \d+ ranks: at most (\d+) rounds, of .* in all$", done.stderr, re.MULTILINE)
    assert said and int(said[1]) == found.about["promised"] >= len(found.rounds) == found.about["rounds"]
    lines = re.findall(r"^round (\d+) of at most (\d+), (?:sweep|cross-check|growing|isolation): \S", done.stderr, re.MULTILINE)
    assert [int(number) for number, _ in lines] == list(range(1, len(found.rounds) + 1)) and {most for _, most in lines} == {said[1]}


def test_one_of_sixteen_is_confirmed_and_its_partners_are_cleared_or_never_suspected(tmp_path: Path) -> None:
    done = hunt(tmp_path, 16, "--slowed", SICK.format(5))
    assert done.returncode == 1, done.stderr
    assert suspects(tmp_path, "confirmed") == [[5]] and suspects(tmp_path, "inconclusive") == []
    rounds_kept(done, tmp_path)
    assert re.search(r"^confirmed: rank 5 \(\S+\) \S.* at 5\d % of the others", done.stdout, re.MULTILINE)
    told = json.loads((tmp_path / "run" / "recommendation.json").read_text())
    assert told["result"] == "confirmed" and told["drains"] == []
    assert re.search(r"^recommendation: run/recommendation.json$", done.stderr, re.MULTILINE)
    assert done.stderr.splitlines()[-1] == "run folder: run" and "are simulated" in done.stdout


@pytest.mark.in_turn("hunts")
def test_two_of_sixty_four_are_confirmed(tmp_path: Path) -> None:
    done = hunt(tmp_path, 64, "--slowed", SICK.format("5,40"))
    assert done.returncode == 1, done.stderr
    assert suspects(tmp_path, "confirmed") == [[5], [40]] and suspects(tmp_path, "inconclusive") == []
    rounds_kept(done, tmp_path)


@pytest.mark.in_turn("hunts")
def test_groups_find_them_too(tmp_path: Path) -> None:
    done = hunt(tmp_path, 64, "--slowed", SICK.format("9,33"), "--method", "groups")
    assert done.returncode == 1, done.stderr
    assert suspects(tmp_path, "confirmed") == [[9], [33]]
    assert {one.kind for one in stored(tmp_path).rounds if one.stage == "sweep"} == {"groups"}
    rounds_kept(done, tmp_path)


def test_where_all_are_well_nobody_is_accused(tmp_path: Path) -> None:
    done = hunt(tmp_path, 8)
    assert done.returncode == 0, done.stderr
    assert suspects(tmp_path, "confirmed") == [] and "no slow endpoint or path found" in done.stdout
    assert re.search(r"^median \S+ of 10\.0 GB/s \(\d+ %\), limited by a simulated link$", done.stdout, re.MULTILINE)
    rounds_kept(done, tmp_path)


def test_where_all_are_equally_slow_nobody_is_accused_and_the_ceiling_speaks(tmp_path: Path) -> None:
    done = hunt(tmp_path, 8, "--slowed", "by=300%", "--no-growing", "--size", "1M")
    assert done.returncode == 0, done.stderr
    assert re.search(r"all are equally slow, at 2\d % of the expected bandwidth \(a simulated link\)", done.stdout)


def test_two_places_give_no_verdict_and_say_what_can_be_told(tmp_path: Path) -> None:
    done = hunt(tmp_path, 2)
    assert done.returncode == 3, done.stderr
    assert re.search(r"^no verdict: two endpoints: ", done.stdout, re.MULTILINE) and "median" in done.stdout
    assert "equally slow" not in done.stdout
    assert json.loads((tmp_path / "run" / "recommendation.json").read_text())["drains"] == []


def test_a_stored_hunt_reads_as_it_was_printed(tmp_path: Path) -> None:
    done = hunt(tmp_path, 8, "--slowed", SICK.format(3), "--no-growing")
    first, rest = run_here(tmp_path, "report", "run").stdout.split("\n", 1)
    assert re.fullmatch(r"run \(\d+ rounds\)", first) and rest == done.stdout
    (record,) = csv.DictReader(io.StringIO(run_here(tmp_path, "report", "run", "--csv").stdout))
    assert (record["state"], record["places"].startswith("rank 3")) == ("confirmed", True)


@pytest.mark.in_turn("hunts")
def test_programs_get_one_object_and_nothing_else(tmp_path: Path) -> None:
    done = hunt(tmp_path, 8, "--slowed", SICK.format(3), "--format", "json", "--quiet")
    assert (done.returncode, done.stderr) == (1, "")
    told = json.loads(done.stdout)
    assert (told["result"], [each["places"] for each in told["suspects"] if each["state"] == "confirmed"]) == ("confirmed", [[3]])


@pytest.mark.in_turn("hunts")
def test_options_come_from_the_environment_too(tmp_path: Path) -> None:
    variables = {"COLLBENCH_SEED": "3", "COLLBENCH_ROUNDS": "4", "COLLBENCH_NO_GROWING": "1"}
    done = run(tmp_path, "hunt", "--backend", "simulated", "--ranks", "8", *BRIEF, env=variables)
    assert done.returncode == 0, done.stderr
    found = stored(tmp_path)
    assert sum(one.stage == "sweep" for one in found.rounds) == 4 and not any(one.stage == "growing" for one in found.rounds)
    assert found.about["seed"] == 3


REFUSED = [
    (("--resume", "run"), "hunt cannot be resumed: each round follows from those before it, and one launch measures them; start a new run, "
                          "without --resume"),
    (("--backend", "mpi,gloo"), "hunt measures one backend, but --backend names mpi and gloo: choose one"),
    (("--rounds", "0"), "argument --rounds: '0' is not a whole number from 1 on (see `collbench hunt --help`)"),
    (("--ranks", "1"), "hunt needs two ranks, but this launch has one: start more (without a launcher: --ranks 2)"),
    (("--size", "0"), "size '0' is not a whole, positive number of bytes: the smallest size is 1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "sentence"), sample(REFUSED, 3), ids=lambda value: value[0].strip("-") if isinstance(value, tuple) else ""
)
def test_bad_input_ends_in_a_sentence(typed: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    done = run(tmp_path, "hunt", "--backend", "simulated", "--ranks", "8", *typed)
    assert one_sentence(done) == sentence and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("--max-drain", "x"), r"--max-drain 'x': not a valid number of nodes: .+"),
        (("--apply",), r"--apply needs Slurm \(scontrol\) or Kubernetes \(kubectl\) to drain a node, but .+"),
        (("--budget", "1"), r"\d+ rounds are too few for 8 endpoints: .+"),
        (("--cover-links", "nowhere"), r".*nowhere.*"),
    ],
    ids=["max-drain", "apply", "budget", "cover-links"],
)
def test_what_cannot_be_done_is_said_before_anything_is_measured(
    typed: tuple[str, ...], said: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bare = tmp_path_factory.mktemp("bin")  # neither scontrol nor kubectl
    (bare / "timeout").symlink_to(which("timeout") or "")
    done = run(tmp_path, "hunt", "--backend", "simulated", "--ranks", "8", *typed, env={"PATH": str(bare)})
    assert re.fullmatch(said, one_sentence(done)) and list(tmp_path.iterdir()) == []


@pytest.mark.in_turn("hunts")
def test_groups_need_a_backend_that_reduces(tmp_path: Path) -> None:
    said = one_sentence(run(tmp_path, "hunt", "--backend", "socket", "--ranks", "3", "--method", "groups"))
    why = "--method groups needs all-reduce, but socket does not support allreduce: choose another --backend, or --method pairs"
    assert re.fullmatch(rf"(rank \d \(.+\): )?{re.escape(why)}", said) and list(tmp_path.iterdir()) == []


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(
    "typed",
    [
        pytest.param(("--backend", "mpi", "--ranks", "4"), marks=NO_MPI),
        pytest.param(("--backend", "gloo", "--ranks", "8", "--method", "groups"), marks=[NO_TORCH, pytest.mark.long]),
    ],
    ids=["pairs", "groups"],
)
@pytest.mark.in_turn("hunts")
def test_a_rank_that_dies_ends_the_hunt_and_nobody_is_recommended_for_it(typed: tuple[str, ...], tmp_path: Path) -> None:
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
    assert re.search(r"^collbench: .*rank 2 \(.*(SIGKILL|ended unexpectedly)", said, re.MULTILINE), said
    assert "Traceback" not in said
    assert not (tmp_path / "run" / "recommendation.json").exists()
    found = stored(tmp_path)
    assert found.rounds and found.about["verdict"] is None
    shown = run_here(tmp_path, "report", "run")
    assert "the hunt stopped early, without a verdict: run it again" in shown.stdout and "not finished" in shown.stdout
