"""--resume of pairs runs, hunts and workloads: stored rounds and rows stay, and the rest follows from them as in one launch."""

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import pytest

from collbench.backends.registry import backend_defaults
from collbench.backends.slowing import parse_slowing
from collbench.errors import RunFailed, UsageError
from collbench.measuring.request import Budget, Request
from collbench.measuring.resume import resumed_note
from collbench.operations.dtypes import DTYPES
from collbench.operations.sweep import Sweep
from collbench.plugins.hunt.places import HuntRequest, PairsRequest
from collbench.plugins.hunt.progress import HuntProgressPrinter, PairsProgressPrinter
from collbench.plugins.hunt.tasks import HuntTask, PairsTask
from collbench.plugins.training.progress import WorkloadProgressPrinter
from collbench.plugins.training.step_task import Training
from collbench.plugins.training.task import WorkloadRequest, WorkloadTask
from collbench.plugins.training.workloads.registry import regime_named
from collbench.plugins.training.workloads.shape import shape_of
from collbench.report.progress import Output
from collbench.results.reader import read_run
from tests.conftest import sample
from tests.measure.launches import Careless, Fussy, run_alone

pytestmark = pytest.mark.system

SIZE = 2**16
REGIMES = ("data-parallel", "fsdp", "parameter-server")


def launch(command, folder, ranks=12, slowed="by=100% ranks=3", **more):
    sweep = Sweep((), None, (DTYPES["uint8"],), window=4, buffers="fixed", defaults=backend_defaults)
    where = {"resume" if folder.exists() else "out": folder}
    known = {"timeout_s": 10.0, "evidence": "off", "slowed": parse_slowing([slowed] if slowed else []), **where, **more}
    return Request(command, sweep, ("simulated",), frozenset(["simulated"]), Budget(0.5, 8, 1), ranks, **known)


def pairs(folder, kind=PairsRequest, command="pairs", **more):
    own = {name: more.pop(name) for name in list(more) if name in kind.__struct_fields__}
    return kind(launch(command, folder, **more), **{"size_bytes": SIZE, **own})


def hunt(folder, **more):
    return pairs(folder, HuntRequest, "hunt", **more)


def workload(folder, **more):
    shapes = [lambda hosts, name=name: shape_of(regime_named(name), {"model": "1M"}, hosts) for name in REGIMES]
    trainings = [Training(regime_named(name), shape, "1M") for name, shape in zip(REGIMES, shapes, strict=True)]
    return WorkloadRequest(launch("workload", folder, **{"ranks": 4, "slowed": "", "order_seed": 0, **more}), tuple(trainings))


@dataclass(frozen=True)
class Kind:
    """A kind of run: its task, its request, its listener, and the file of its records."""

    task: Callable
    request: Callable
    listener: Callable
    file: str
    code: int = 0


KINDS = {
    "pairs": Kind(PairsTask, pairs, PairsProgressPrinter, "pairs.jsonl", 1),
    "hunt": Kind(HuntTask, hunt, HuntProgressPrinter, "hunt.jsonl", 1),
    "workload": Kind(WorkloadTask, workload, WorkloadProgressPrinter, "workload.jsonl"),
}


def start(name, folder, fails_after=None, **more):
    """Measure, or resume the run in the folder; fails after so many records. Returns the exit code, new titles, records and notes."""
    kind = KINDS[name]
    request = kind.request(folder, **more)
    listener = kind.listener(Output("json", "never", quiet=True), request)
    seen = SimpleNamespace(titles=[], records=[], notes=[])
    record, progress = listener.record, listener.progress

    def recorded(one, place):
        record(one, place)
        seen.records.append(one)
        if len(seen.records) == fails_after:
            raise RunFailed("the disk burns")

    listener.record = recorded
    listener.note = seen.notes.append
    listener.progress = lambda *about: (seen.titles.append(about), progress(*about))
    with listener:
        seen.code = run_alone(kind.task, request, listener)
    return seen


def lines(folder, name):
    return [json.loads(line) for line in (folder / KINDS[name].file).read_text().splitlines()]


def subject(one):
    """What a round or row is of, without its figures."""
    keys = ("round", "kind", "stage", "why", "groups", "pairs", "again", "nic", "regime", "backend")
    return tuple(json.dumps(one.get(key)) for key in keys)


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def ended_after(folder, name, count):
    """Make a complete run one that was killed after so many records."""
    about = json.loads((folder / "run.json").read_text())
    for key in ("finished_utc", "exit_code", "rows"):
        del about[key]
    if name == "hunt":
        about["hunt"] |= {"verdict": None, "rounds": None, "ceiling": None}
    if name == "pairs":
        for key in ("result", "judged"):
            del about["pairs"][key]
        about["pairs"]["measured"] = None
    (folder / "run.json").write_text(json.dumps(about))
    file = folder / KINDS[name].file
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:count]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A complete run of each kind, of which the pairs and the hunt have confirmed rank 3."""
    folders = {name: tmp_path_factory.mktemp(name) / "run" for name in KINDS}
    for name, folder in folders.items():
        assert start(name, folder).code == KINDS[name].code
    return folders


@pytest.fixture
def copied(whole, tmp_path):
    return lambda name: shutil.copytree(whole[name], tmp_path / "run")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("part", sample([0.0, 0.2, 0.5, 0.7, 0.8, 0.9, 1.0], 3))
def test_what_is_missing_is_measured_and_the_rest_is_kept(name, part, whole, copied):
    folder, complete = copied(name), lines(whole[name], name)
    kept = int(part * len(complete))
    ended_after(folder, name, kept)
    found = start(name, folder)
    stored = lines(folder, name)
    assert found.code == KINDS[name].code and len(found.records) == len(stored)
    assert stored[:kept] == complete[:kept]
    assert len(set(map(subject, stored))) == len(stored)
    matrix = [subject(one) for one in complete if not one.get("again") and one.get("stage", "sweep") == "sweep"]
    assert list(map(subject, stored))[: len(matrix)] == matrix  # what follows depends on the figures
    run = read_run(folder)
    assert (run.info["exit_code"], run.info["rows"], run.info["resumed"][0]["rows"]) == (found.code, len(stored), kept)
    assert not run.warnings and len(found.titles) <= len(stored) - kept


@pytest.mark.parametrize("name", KINDS)
def test_an_interrupted_run_goes_on(name, tmp_path):
    with pytest.raises(RunFailed, match="the disk burns"):
        start(name, tmp_path / "run", fails_after=2)
    before = lines(tmp_path / "run", name)
    found = start(name, tmp_path / "run")
    assert (len(before), found.code) == (2, KINDS[name].code)
    assert lines(tmp_path / "run", name)[:2] == before
    total, what = (3, "row") if name == "workload" else (None, "round")
    assert resumed_note(str(tmp_path / "run"), 2, total, what) in found.notes


@pytest.mark.parametrize("name", KINDS)
def test_a_complete_run_is_reported_again_and_left_as_it_is(name, copied):
    folder = copied(name)
    before = contents(folder)
    found = start(name, folder)
    assert (found.code, len(found.titles), contents(folder)) == (KINDS[name].code, 0, before)
    assert len(found.records) == len(lines(folder, name))


OTHERS = [{"slowed": "by=10%"}, {"check": 2}, {"ranks": 5}, {"order_seed": 7, "seed": 7}]
OTHER_PAIRS = [{"size_bytes": 4096}, {"latency_size_bytes": 16}, {"sample": 2}, {"by": "rank"}]


@pytest.mark.parametrize(("name", "change"), [*product(KINDS, OTHERS), *product(("pairs", "hunt"), OTHER_PAIRS)])
def test_another_request_is_refused_and_nothing_is_touched(name, change, copied):
    folder = copied(name)
    before = contents(folder)
    with pytest.raises(UsageError, match="cannot be resumed"):
        start(name, folder, **change)
    assert contents(folder) == before


def test_rounds_that_were_altered_are_refused(copied):
    folder = copied("hunt")
    ended_after(folder, "hunt", 3)
    first, *others = lines(folder, "hunt")
    changed = {**first, "groups": [list(reversed(each)) for each in first["groups"]]}
    (folder / "hunt.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in (changed, *others)))
    with pytest.raises(UsageError, match="round 1 does not follow"):
        start("hunt", folder)
    (folder / "hunt.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in others))
    with pytest.raises(UsageError, match="round 1 is missing"):
        start("hunt", folder)


def test_of_a_round_in_parts_only_the_missing_pairs_are_measured(tmp_path, backend):
    backend(Fussy)
    folder, quick = tmp_path / "run", {"ranks": 8, "slowed": ""}
    start("pairs", folder, **quick)
    stored = lines(folder, "pairs")
    parts = next(one for one in stored if len(one["pairs"]) < 4)
    kept = [one for one in stored if one is not parts]
    ended_after(folder, "pairs", 0)
    (folder / "pairs.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in kept))
    start("pairs", folder, **quick)
    again = lines(folder, "pairs")
    assert again[: len(kept)] == kept
    assert [(one["round"], one["pairs"]) for one in again[len(kept) :]] == [(parts["round"], parts["pairs"])]


def test_a_matrix_that_the_budget_ended_is_not_continued(tmp_path):
    folder, short = tmp_path / "run", {"budget_s": 1e-6, "slowed": "", "ranks": 8}
    assert start("pairs", folder, **short).code in (0, 2, 3)
    before = contents(folder)
    assert len(lines(folder, "pairs")) < 7
    start("pairs", folder, **short)
    assert contents(folder) == before


@pytest.mark.parametrize("name", ["pairs", "hunt"])
def test_a_run_that_wrong_data_stopped_goes_on(name, tmp_path, backend):
    backend(Careless)
    folder = tmp_path / "run"
    quick = {"ranks": 6, "slowed": "", "stop_on_wrong": True, "order_seed": 1}
    assert start(name, folder, **quick).code == 4
    stopped = lines(folder, name)
    assert sum(map(sum, (one["wrong"] for one in stopped))) and start(name, folder, **quick).code == 4
    assert lines(folder, name)[: len(stopped)] == stopped and len(lines(folder, name)) > len(stopped)


@pytest.mark.parametrize("seed", sample(range(40), 6))
def test_a_kill_at_any_byte_loses_no_round_and_doubles_none(seed, whole, copied):
    draw = random.Random(seed)
    name = draw.choice(sorted(KINDS))
    folder, text = copied(name), (whole[name] / KINDS[name].file).read_bytes()
    at = draw.randrange(len(text))
    ended_after(folder, name, 0)
    (folder / KINDS[name].file).write_bytes(text[:at])
    kept = [json.loads(line) for line in text[:at].splitlines(keepends=True) if line.endswith(b"\n")]
    assert start(name, folder).code == KINDS[name].code
    stored = lines(folder, name)
    assert stored[: len(kept)] == kept and len(set(map(subject, stored))) == len(stored)
