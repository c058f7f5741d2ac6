"""`srun -N8 collbench hunt` over links of known rates: only the faulty node is confirmed, within the estimated rounds.

The faulty node has a link of half the rate, or a CPU with other work: both are real, on one host chosen by the seed.
"""

import json
import os
import random
import shlex
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from collbench.plugins.hunt.facts import WayToNetwork
from collbench.plugins.hunt.records import StoredHunt, read_hunt
from collbench.results.reader import read_run
from tests.cli.command import until
from tests.conftest import enter
from tests.testbeds import Hosts, SlurmBed
from tools.benchmarks.trials.pairs import HOSTS, MEASURE, RATE_MBIT, shape

pytestmark = [pytest.mark.long, pytest.mark.slurm, pytest.mark.timeout(240)]

PROGRAM = [sys.executable, "-m", "collbench", "hunt"]
BURN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nos.nice(-15)\nwhile True: pass"
BURNERS = 2
OF_CORES = {"latency", "path"}


@dataclass(frozen=True)
class Hunted:
    """The result of a hunt: its exit code, its output, its folder and the stored files."""

    code: int
    out: str
    err: str
    folder: Path
    stored: StoredHunt

    def suspects(self, state):
        return [each for each in self.stored.about["verdict"]["suspects"] if each["state"] == state]

    def places(self, state):
        return sorted(each["places"] for each in self.suspects(state))


@pytest.fixture(scope="module")
def bed():
    with ExitStack() as stack:
        hosts = enter(stack, Hosts(HOSTS, f"{RATE_MBIT}mbit", "64kb"))
        yield hosts, enter(stack, SlurmBed(hosts))


def links(hosts, slow=None):
    """All alike, but for one of half the rate."""
    for index in range(HOSTS):
        shape(hosts, index, RATE_MBIT // 2 if index == slow else RATE_MBIT)


def hunted(slurm, folder, *typed, measure=MEASURE):
    words = [*PROGRAM, *measure, *typed, "--out", str(folder / "run")]
    done = slurm.srun([f"-N{HOSTS}"], words, timeout=200)
    assert (folder / "run" / "run.json").exists(), done.stderr
    found = read_hunt(read_run(folder / "run"))
    assert found.about["verdict"], done.stderr
    return Hunted(done.returncode, done.stdout, done.stderr, folder / "run", found)


def check_alone(found, faulty):
    """Check that only the faulty node is confirmed, within the estimated rounds; return its suspect."""
    assert (found.places("confirmed"), found.code) == ([[faulty]], 1), found.out + found.err
    # Eight hosts share two cores: the verdict on small messages may be inconclusive.
    assert {one["kind"] for one in found.suspects("inconclusive")} <= OF_CORES, found.out + found.err
    assert len(found.stored.rounds) == found.stored.about["rounds"] <= found.stored.about["promised"]
    (one,) = found.suspects("confirmed")
    assert len(one["partners"]) >= 2 and faulty not in one["partners"]
    return one


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_only_the_host_with_half_the_link_rate_is_confirmed(seed, bed, tmp_path):
    hosts, slurm = bed
    faulty = random.Random(f"hunt {seed}").randrange(HOSTS)
    links(hosts, faulty)
    found = hunted(slurm, tmp_path, "--seed", str(seed))
    one = check_alone(found, faulty)
    assert one["kind"] == "node" and 0.4 < one["ratio"] < 0.6
    assert one["part"] == WayToNetwork(("eth0",)).render()
    (drain,) = json.loads((found.folder / "recommendation.json").read_text())["drains"]
    assert drain["line"].startswith(
        f'scontrol update NodeName={hosts.names[faulty]} State=DRAIN Reason="[collbench] CB6101 {hosts.names[faulty]} '
    )
    assert drain["line"] in found.out and f"scontrol update NodeName={hosts.names[faulty]} State=RESUME" in found.out


def state_of(slurm, node):
    actual = slurm.call(["scontrol", "--oneliner", "show", "node", node]).stdout
    return next(word for word in actual.split() if word.startswith("State="))


def test_apply_drains_the_confirmed_node_and_the_printed_command_undoes_it(bed, tmp_path):
    hosts, slurm = bed
    faulty = random.Random("hunt and drain").randrange(HOSTS)
    links(hosts, faulty)
    node = hosts.names[faulty]
    found = hunted(slurm, tmp_path, "--no-isolation", "--apply")  # 2 % of eight nodes are one
    try:
        check_alone(found, faulty)
        assert "DRAIN" in state_of(slurm, node) and f"{node} is drained" in found.out
        assert not any("DRAIN" in state_of(slurm, other) for other in hosts.names if other != node)
        (undo,) = [line.removeprefix("undo: ") for line in found.out.splitlines() if line.startswith("undo: ")]
    finally:
        slurm.must("scontrol", "update", f"NodeName={node}", "State=RESUME")
    assert shlex.split(undo) == ["scontrol", "update", f"NodeName={node}", "State=RESUME"]


def test_two_of_eight_are_confirmed_and_above_the_limit_no_node_is_drained(bed, tmp_path):
    hosts, slurm = bed
    links(hosts, 2)
    shape(hosts, 6, RATE_MBIT // 2)
    found = hunted(slurm, tmp_path, "--no-isolation", "--apply", "--max-drain", "1")
    assert (found.places("confirmed"), found.code) == ([[2], [6]], 1), found.out + found.err
    assert "--max-drain 1 allows 1 of 8" in found.out
    assert not any("DRAIN" in state_of(slurm, node) for node in hosts.names)


def test_with_equal_links_there_is_no_suspect(bed, tmp_path):
    hosts, slurm = bed
    links(hosts)
    found = hunted(slurm, tmp_path)
    open_still = {one["kind"] for one in found.suspects("inconclusive")}  # of small messages, on two cores for eight hosts
    assert found.places("confirmed") == [] and open_still <= OF_CORES, found.out + found.err
    assert found.code == (3 if open_still else 0)
    assert json.loads((found.folder / "recommendation.json").read_text())["drains"] == []


def test_groups_confirm_it_too(bed, tmp_path):
    pytest.importorskip("torch")
    hosts, slurm = bed
    links(hosts, 5)
    measure = ["--backend", "gloo", "--size", "256K", "--window", "2", "-n", "12", "--max-time", "1"]
    found = hunted(slurm, tmp_path, "--method", "groups", "--no-isolation", measure=measure)
    check_alone(found, 5)
    assert {one.kind for one in found.stored.rounds if one.stage == "sweep"} == {"groups"}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: other work on it slows all ranks")
def test_only_the_host_with_a_busy_cpu_is_suspected(bed, tmp_path):
    """Eight hosts share two cores here, so the others' messages are uneven, too: the verdict may stay open, but not on another."""
    hosts, slurm = bed
    links(hosts)
    faulty = random.Random("hunt busy").randrange(HOSTS)
    with burned(tmp_path / "run", hosts.names[faulty]):
        found = hunted(slurm, tmp_path)
    assert found.places("confirmed") in ([], [[faulty]]), found.out + found.err
    assert [faulty] in [*found.places("confirmed"), *found.places("inconclusive")], found.out + found.err


@contextmanager
def burned(run, host):
    """As soon as the ranks are known: that host's rank shares a core with processes that spin, before it; all others have another core."""
    first, second, *_ = sorted(os.sched_getaffinity(0))
    burners = []

    def bind():
        until((run / "run.json").exists, "the run's folder")
        for place in json.loads((run / "run.json").read_text())["rank_map"]:
            core = first if place["host"] == host else second
            for thread in Path(f"/proc/{place['pid']}/task").iterdir():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread.name), {core})
        for _ in range(BURNERS):
            burners.append(subprocess.Popen([sys.executable, "-c", BURN, str(first)]))

    binding = threading.Thread(target=bind)
    binding.start()
    try:
        yield
    finally:
        binding.join()
        for each in burners:
            each.kill()
            each.wait()
