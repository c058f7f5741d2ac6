"""Rows for Bencher, asv and TensorBoard: read back by the program itself where it is installed, else by the schema of its format."""

import io
import json
import os
import subprocess
import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from collbench.errors import UsageError
from collbench.plugins.store.trackers import find_commit, report_writer
from collbench.report.bencher import case_name, series_name
from collbench.report.runs import report_run
from tests.cli.command import run as run_command
from tests.cli.command import run_here
from tests.conftest import cannot
from tests.report.golden import live
from tests.results.rows import make_row, make_times, not_measured, store

pytestmark = pytest.mark.system

# As https://bencher.dev/docs/reference/bencher-metric-format describes it.
_NUMBER = {"type": "number"}
_METRIC = {
    "type": "object", "required": ["value"], "properties": dict.fromkeys(("value", "lower_value", "upper_value"), _NUMBER),
    "additionalProperties": False,
}  # fmt: skip
_MEASURES = {"type": "object", "propertyNames": {"maxLength": 64}, "additionalProperties": _METRIC}
BMF = {"type": "object", "propertyNames": {"minLength": 1, "maxLength": 1024}, "additionalProperties": _MEASURES}
NAME = "allreduce/nccl/cuda/float32/sum/isolated/out of place/fixed/4 ranks/1 nodes"


def reported(*folders: Path, **options: Any) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    writers = [report_writer(Namespace(asv=None, commit=None, tensorboard=options.get("tensorboard")))]
    assert report_run(folders, None, options.get("format", "table"), out, err=err, writers=writers) == 0
    return out.getvalue(), err.getvalue()


def test_a_case_has_the_same_name_in_every_run() -> None:
    assert series_name(make_row(8)) == NAME
    assert case_name(make_row(65536)) == f"{NAME}/65536 B"
    barrier = make_row(0, operation="barrier", dtype="uint8", redop=None, in_place=True)
    assert case_name(barrier) == "barrier/nccl/cuda/isolated/fixed/4 ranks/1 nodes"


@pytest.mark.parametrize("change", [
    {"operation": "reduce"}, {"backend": "mpi"}, {"device": "cpu"}, {"dtype": "int8"}, {"redop": "max"}, {"root": 1}, {"mode": "graph"},
    {"in_place": True}, {"buffers": "rotating"}, {"window": 64}, {"group": "MOD 2"}, {"ranks": 8}, {"nodes": 2}, {"nodes": None},
    {"registration": "symmetric"}, {"algorithm": "tree"}, {"protocol": "ll"}, {"traffic": "even"}, {"streams": 4},
])  # fmt: skip
def test_every_field_of_a_case_is_in_its_name(change: dict[str, Any]) -> None:
    assert series_name(make_row(8, **change)) != series_name(make_row(8))


def test_bencher_gets_times_with_intervals_and_no_figure_that_is_unknown_or_wrong() -> None:
    found = json.loads(live([make_row(1024, time_s=make_times(2e-6))], "bmf"))
    validate(found, BMF)
    assert found == {
        f"{NAME}/1024 B": {
            "latency": {"value": pytest.approx(2000), "lower_value": pytest.approx(1980), "upper_value": pytest.approx(2020)},
            "bus-bandwidth": {"value": 42e9},
            "percent-of-expected": {"value": 84.0},
        }
    }
    rows = [
        not_measured("no library"),
        make_row(8, wrong=3),
        make_row(16, ranks=1, percent_of_ceiling=None, time_s=make_times(1e-6).__class__(1e-6, None, None, None, None, None, None)),
    ]
    found = json.loads(live(rows, "bmf"))
    validate(found, BMF)
    assert [list(measures) for measures in found.values()] == [["latency"]]
    assert list(next(iter(found.values()))["latency"]) == ["value"]
    assert json.loads(live([], "bmf")) == {}


def test_bencher_has_one_object_for_a_run_and_none_for_two(tmp_path: Path) -> None:
    one, two = (store(tmp_path / name, [make_row(8), make_row(64)]) for name in ("one", "two"))
    assert len(json.loads(reported(one, format="bmf")[0])) == 2
    with pytest.raises(UsageError, match="--format bmf describes one run, but there are 2"):
        reported(one, two, format="bmf")


@pytest.mark.long
def test_a_measuring_command_prints_it(tmp_path: Path) -> None:
    line = ("allreduce", "--backend", "simulated", "--ranks", "4", "--sizes", "8,64K", "-n", "5", "--out", "run", "--format", "bmf")
    done = run_command(tmp_path, *line)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    validate(found, BMF)
    assert [name.rpartition("/")[2] for name in sorted(found)] == ["65536 B", "8 B"]


# asv


def git(folder: Path, *words: str) -> str:
    own = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    name = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "init.defaultBranch=main", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *name, *words], cwd=folder, env={**os.environ, **own}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init")
    for number in (1, 2):
        git(folder, "commit", "--allow-empty", "-m", f"commit {number}", "--date", f"2026-11-2{number}T00:00:00Z")
    return folder


HOST = {"hosts": ["node1"], "host": {"machine": "x86_64", "cpu_model": "some CPU", "system": "Debian", "cpus_online": 64}}


def test_asv_gets_a_file_for_machine_and_commit(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    rows = [make_row(8, time_s=make_times(2e-6)), make_row(1024, time_s=make_times(4e-6)), make_row(64, wrong=1), not_measured("no")]
    run = store(tmp_path / "run", rows, **HOST)
    done = run_here(repository, "report", str(run), "--asv", "results")
    assert done.returncode == 0, done.stderr
    commit = git(repository, "rev-parse", "HEAD")
    file = repository / "results" / "node1" / f"{commit[:8]}-collbench.json"
    assert f"wrote results/node1/{file.name}" in done.stderr
    found = json.loads(file.read_text())
    assert (found["commit_hash"], found["params"]["machine"], found["version"]) == (commit, "node1", 2)
    assert found["date"] == 1000 * int(git(repository, "show", "-s", "--format=%ct"))
    ((name, (times, sizes, version, started)),) = found["results"].items()
    assert (times, sizes, started > 1.7e12) == ([2e-6, 4e-6], [["8", "1024"]], True)
    benchmarks = json.loads((repository / "results" / "benchmarks.json").read_text())
    assert (benchmarks[name]["params"], benchmarks[name]["unit"], benchmarks[name]["version"]) == ([["8", "1024"]], "seconds", version)
    machine = json.loads((repository / "results" / "node1" / "machine.json").read_text())
    assert machine == {"machine": "node1", "arch": "x86_64", "cpu": "some CPU", "os": "Debian", "num_cpu": "64", "ram": "", "version": 1}


def test_asv_keeps_what_earlier_runs_added(tmp_path: Path, repository: Path) -> None:
    first = store(tmp_path / "one", [make_row(8)], **HOST)
    second = store(tmp_path / "two", [make_row(64), make_row(8, backend="mpi")], **HOST)
    assert run_here(repository, "report", str(first), "--asv", "results", "--commit", "HEAD~1").returncode == 0
    for _ in range(2):
        assert run_here(repository, "report", str(second), "--asv", "results").returncode == 0
    benchmarks = json.loads((repository / "results" / "benchmarks.json").read_text())
    assert sorted(found["params"] for name, found in benchmarks.items() if name != "version") == [[["8"]], [["8", "64"]]]
    assert len(list((repository / "results" / "node1").glob("*-collbench.json"))) == 2


@pytest.mark.parametrize("name", ["../../etc", "a/b", ".", "", "x" * 300, "näme\n"])
def test_a_hostile_host_name_stays_inside_the_folder(tmp_path: Path, repository: Path, name: str) -> None:
    run = store(tmp_path / "run", [make_row(8)], hosts=[name])
    assert run_here(repository, "report", str(run), "--asv", str(tmp_path / "results")).returncode == 0
    (folder,) = [each for each in (tmp_path / "results").iterdir() if each.is_dir()]
    assert (folder / "machine.json").exists()


@pytest.mark.parametrize("revision", ["missing", "--help", "HEAD~99", ""])
def test_an_unknown_commit_is_one_sentence(repository: Path, monkeypatch: pytest.MonkeyPatch, revision: str) -> None:
    monkeypatch.chdir(repository)
    with pytest.raises(UsageError, match="--asv: git does not know the commit") as error:
        find_commit(revision)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["[]", "{", "\x00", '{"commit_hash": "other", "results": {}}', '{"commit_hash": 1}'])
def test_a_file_that_is_not_asvs_is_rejected_and_kept(tmp_path: Path, repository: Path, text: str) -> None:
    run = store(tmp_path / "run", [make_row(8)], **HOST)
    file = repository / "results" / "node1" / f"{git(repository, 'rev-parse', 'HEAD')[:8]}-collbench.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    done = run_here(repository, "report", str(run), "--asv", "results")
    assert (done.returncode, done.stderr.count("collbench: --asv: "), file.read_text()) == (2, 1, text)


def test_commit_without_asv_is_rejected(tmp_path: Path) -> None:
    store(tmp_path / "run", [make_row(8)])
    done = run_here(tmp_path, "report", "run", "--commit", "HEAD")
    assert (done.returncode, done.stderr) == (2, "collbench: --commit is for --asv: add it, or leave out --commit\n")


@pytest.mark.long
def test_asv_itself_publishes_the_results(tmp_path: Path, repository: Path) -> None:
    if find_spec("asv") is None:
        cannot("asv is not installed: pip install asv")
    for commit, times in (("HEAD~1", (2e-6, 4e-6)), ("HEAD", (2.2e-6, 8e-6))):
        rows = [make_row(size, time_s=make_times(time_s)) for size, time_s in zip((8, 1024), times, strict=True)]
        run = store(tmp_path / commit.replace("~", ""), rows, **HOST)
        assert run_here(repository, "report", str(run), "--asv", "results", "--commit", commit).returncode == 0
    (repository / "asv.conf.json").write_text(json.dumps({
        "version": 1, "project": "network", "repo": ".", "branches": ["main"], "results_dir": "results", "html_dir": "html",
        "benchmark_dir": "benchmarks", "environment_type": "existing",
    }))  # fmt: skip
    (repository / "benchmarks").mkdir()
    line = [sys.executable, "-m", "asv", "publish", "--no-pull"]
    done = subprocess.run(line, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    index = json.loads((repository / "html" / "index.json").read_text())
    ((name, found),) = index["benchmarks"].items()
    assert (found["params"], found["unit"], list(index["machines"])) == ([["8", "1024"]], "seconds", ["node1"])
    graphs = [json.loads(file.read_text()) for file in (repository / "html" / "graphs").rglob(f"{name}.json")]
    assert [[2e-6, 4e-6], [2.2e-6, 8e-6]] in [[values for _, values in graph] for graph in graphs]


# TensorBoard


def test_tensorboards_own_reader_finds_every_figure(tmp_path: Path) -> None:
    if find_spec("tensorboard") is None:  # not among the tools of `make test`: it brings many packages
        pytest.skip("tensorboard is not installed: pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    first, second = (store(tmp_path / name, [make_row(1024), make_row(8, wrong=1), not_measured("no")]) for name in ("one", "two"))
    for run, day in ((first, 21), (second, 22)):
        info = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**info, "started_utc": f"2026-11-{day}T00:00:00Z"}))
        assert "wrote 3 scalars to " in reported(run, tensorboard=tmp_path / "board")[1]
    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    name = f"{NAME}/1024 B"
    assert sorted(board.Tags()["tensors"]) == [f"{name}/{what}" for what in ("busbw in GB/s", "percent of expected", "time in µs")]
    points = [(each.step, each.wall_time, float(make_ndarray(each.tensor_proto))) for each in board.Tensors(f"{name}/busbw in GB/s")]
    assert points == [(1795219200, 1795219200.0, 42.0), (1795305600, 1795305600.0, 42.0)]


def test_without_tensorboard_the_error_has_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    run = store(tmp_path / "run", [make_row(8)])
    with pytest.raises(UsageError, match="--tensorboard needs tensorboard: pip install tensorboard"):
        reported(run, tensorboard=tmp_path / "board")
    assert not (tmp_path / "board").exists()
