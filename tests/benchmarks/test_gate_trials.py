"""The gate trials themselves, at a place with simulated time: the defect is found, and an interrupted series continues."""

import json
import random
import tarfile
import tomllib
from pathlib import Path

import pytest

from collbench.backends.slowing import parse_slowing
from tests.cli.command import run_here
from tests.helpers import make_case
from tests.results.rows import make_row, make_times, store
from tests.testbeds.bed import Finished
from tools.benchmarks.trials import gate
from tools.benchmarks.trials.gate import LINK_MBIT, Done, Effort, Link, Trial, Trials, drawn, right, sizes_in
from tools.benchmarks.trials.series import trials_in

CASES = {(backend, size << 20): 3.0 for backend in ("gloo", "mpi") for size in (4, 8, 16)}


class MadeUp:
    """A simulated link: times follow its rate with 0.1 % noise; the state probe detects another state in the launches `flipped`."""

    name, suite = "link", Link.suite
    options = ("-n", "3")

    def __init__(self, flipped=()):
        self._mbit, self._at_hosts, self._flipped, self._started = LINK_MBIT, True, flipped, 0

    def launch(self, words):
        chance = random.Random(self._started)
        typed = dict(zip(words[2::2], words[3::2], strict=False))
        slowing = parse_slowing([typed["--slowed"]] if "--slowed" in typed else [])
        seconds = 1.5 if self._started in self._flipped else 1.0
        rows = []
        for sweep in tomllib.loads(Path(words[1]).read_text())["sweeps"]:
            for backend in [sweep["backends"]] if isinstance(sweep["backends"], str) else sweep["backends"]:
                for size in sorted(sizes_in(Path(words[1]), backend)):
                    slowdown = slowing.of(case(backend, size))
                    factor = chance.gauss(1, 0.001) * (1 + (slowdown.by.first / 100 if slowdown else 0))
                    time = make_times(factor * size / (self._mbit * 125e3))
                    rows.append(make_row(size, backend=backend, nodes=2, time_s=time, canary_s={"before": seconds * 1e-5}))
        self._started += 1
        store(Path(typed["--out"]), rows, allocation_id=typed["--allocation"], collbench="1", hosts=["a", "b"], command=list(words))
        return Finished([], 0, "", "")

    def reshape(self, mbit, at_hosts):
        self._mbit, self._at_hosts = mbit, at_hosts


def case(backend, size):
    return make_case(operation="allreduce", backend=backend, count=size // 4)


@pytest.fixture
def trials(tmp_path, monkeypatch):
    monkeypatch.setattr(gate, "run", run_here)
    found = Trials(MadeUp(), tmp_path, Effort(4, 1, 3))
    found.learn()
    return found


def test_what_is_done_is_drawn_by_the_seed():
    assert drawn("same", 0, CASES) == Done()
    assert drawn("group", 3, CASES) == drawn("group", 3, CASES)
    assert drawn("group", 3, CASES).sizes == tuple(size << 20 for size in (4, 8, 16))
    assert {drawn("group", seed, CASES).backend for seed in range(9)} == {"gloo", "mpi"}
    assert len({drawn("cell", seed, CASES).spec for seed in range(10)}) > 4
    assert [drawn("link", seed, CASES).at_hosts for seed in (0, 1)] == [False, True]
    assert (drawn("twice", 0, CASES).percent, drawn("half", 0, CASES).percent) == (6.0, 1.5)
    assert Done("mpi", (1 << 20, 2 << 20), 10.0).spec == "by=10% operations=allreduce backends=mpi sizes=1048576,2097152"


def suspicion(kind, name, state="confirmed", size=0):
    return {"kind": kind, "name": name, "state": state, "cell": {"backend": "mpi", "size_bytes": size} if size else {}}


GROUP = suspicion("group", "allreduce on mpi, large messages")
OF_LINK = {"cause": {"kind": "link"}, "suspicions": [GROUP]}


@pytest.mark.parametrize(("kind", "changes", "wanted"), [
    ("cell", {"suspicions": [suspicion("cell", "c", size=4 << 20)]}, True),
    ("cell", {"suspicions": [GROUP]}, True),
    ("cell", {"suspicions": [suspicion("cell", "c", "suspected", 4 << 20)]}, False),
    ("cell", {"suspicions": [suspicion("cell", "c", size=8 << 20), suspicion("whole", "all cells")]}, False),
    ("group", {"suspicions": [suspicion("cell", "c", size=4 << 20)]}, False),
    ("group", {"suspicions": [GROUP]}, True),
    ("half", {"suspicions": [GROUP]}, False),
    ("half", {}, True),
    ("same", {"suspicions": [GROUP]}, False),
    ("link", OF_LINK, True),  # over a slower link the cause counts
    ("link", {**OF_LINK, "cause": {"kind": "host"}}, False),
    ("link", {**OF_LINK, "cause": None}, False),
    ("link", {**OF_LINK, "result": "no verdict"}, False),
    ("same", {"result": "no verdict", "suspicions": [GROUP]}, True),  # not decided: neither an alarm nor found
    ("group", {"result": "no verdict", "suspicions": [GROUP]}, False),
])  # fmt: skip
def test_what_a_verdict_must_report(kind, changes, wanted):
    done = Done(at_hosts=True) if kind == "link" else Done("mpi", (4 << 20,), 10.0)
    assert right(kind, done, {"result": "regression", "cause": None, "suspicions": [], **changes}) is wanted


def test_kinds_are_spread_over_the_whole():
    assert gate.wanted({"same": 4, "link": 2}) == [("same", 0), ("link", 0), ("same", 1), ("same", 2), ("link", 1), ("same", 3)]


def test_the_suite_shows_what_can_be_slowed(tmp_path):
    (tmp_path / "a.toml").write_text(Link.suite)
    assert sizes_in(tmp_path / "a.toml", "gloo") == {size << 20 for size in (4, 8, 16)}
    (tmp_path / "b.toml").write_text('[[sweeps]]\nbackends = "mpi"\nsizes = [1024, 2048]\n')
    assert sizes_in(tmp_path / "b.toml", "mpi") == {1024, 2048} and sizes_in(tmp_path / "b.toml", "gloo") == set()


def test_a_trial_without_anything_done(trials):
    found = trials.play("same", 0)
    assert (found.result, found.confirmed, found.right, found.launches, found.replaced) == ("passed", [], True, 3, 0)
    assert "smallest slowdown visible" in (trials.folder / "visible-link.txt").read_text()


def test_a_slowed_case_is_measured_in_three_allocations_and_kept(trials):
    found = trials.play("cell", 1)
    assert (found.result, found.right, found.beside, found.launches) == ("regression", True, [], 9), found
    assert found.done == drawn("cell", 1, CASES).spec
    target = trials.folder / "cell-1"
    assert {file.name for file in target.iterdir()} == {"confirm.toml", "runs.tar.xz", "verdict-of-first.json", "verdict.json"}
    with tarfile.open(target / "runs.tar.xz") as archive:
        archive.extractall(target / "again", filter="data")
    actual = json.loads((target / "again/1-first/launch-1/run.json").read_text())
    assert actual["allocation_id"] == "cell-1-1-first" and str(trials.folder) not in json.dumps(actual)
    runs = [f"again/{name}" for name in ("1-first", "2-again", "3-again")]
    assert run_here(target, "gate", "--baseline", "../baseline-link", *runs).returncode == 1


def test_launches_in_another_state_are_replaced(trials):
    again = Trials(MadeUp(flipped=[1]), trials.folder, trials.effort)
    found = again.play("same", 1)
    assert (found.result, found.launches, found.replaced) == ("passed", 4, 1), found


@pytest.mark.parametrize(("trial", "flipped", "outcome", "names"), [
    (("same", 2), range(5), ("passed", True, 1, 0, 8, 2), {"flipped-1-first-1", "1-first"}),
    (("cell", 1), range(3, 8), ("regression", True, 1, 0, 14, 2), {"1-first", "flipped-2-again-1", "2-again", "3-again"}),
    (("same", 2), range(15), ("passed", True, 2, 1, 18, 6), {"flipped-1-first-1", "flipped-1-first-2", "undecided-1-first", "1-fresh"}),
], ids=["an allocation", "a confirmation", "no verdict all the same"])  # fmt: skip
def test_where_too_many_launches_flipped_they_are_measured_afresh_before_they_are_judged(trials, trial, flipped, outcome, names):
    found = Trials(MadeUp(flipped=flipped), trials.folder, trials.effort).play(*trial)
    assert (found.result, found.right, found.flipped, found.undecided, found.launches, found.replaced) == outcome, found
    with tarfile.open(trials.folder / "{}-{}".format(*trial) / "runs.tar.xz") as archive:
        assert {name.partition("/")[0] for name in archive.getnames()} == names


def test_what_is_measured_already_is_not_measured_again(trials, monkeypatch):
    before = {file: file.read_bytes() for file in trials.baseline.iterdir()}
    trials.learn()
    assert {file: file.read_bytes() for file in trials.baseline.iterdir()} == before
    (trials.folder / "trials.jsonl").write_text("".join(json.dumps(trial(seed).__dict__) + "\n" for seed in (0, 1)))
    assert list(gate.series(trials.folder, {"same": 2})) == []
    assert [each.seed for each in trials_in(trials.folder, Trial)] == [0, 1]


def trial(seed, **changes):
    plain = {
        "kind": "same", "seed": seed, "done": "nothing done", "result": "passed", "reasons": [], "confirmed": [], "beside": [],
        "suspected": 0, "cause": None, "right": True, "undecided": 0, "launches": 5, "replaced": 0, "seconds": 40.0 + seed, "load": 1.0,
    }  # fmt: skip
    return Trial(**{**plain, **changes})


def test_the_table_shows_what_came_out():
    alarm = trial(2, result="regression", confirmed=["all cells"], beside=["all cells"], right=False, launches=15)
    lines = gate.table([trial(0), trial(1, result="no verdict", reasons=["a cell is missing"]), alarm]).splitlines()
    assert lines[2] == "| none | 3 | no alarm | 2 | 1 | 1 | 5 to 15 | 40 to 42 |"
    assert lines[-1] == "- same 2: nothing done: regression (all cells)"
    assert lines[-2] == "- same 1: nothing done: no verdict (a cell is missing)"
    assert f"{lines[2]}\n" in gate.readme([trial(0), trial(1, result="no verdict"), alarm])
