"""`collbench store`, and `--store` of history, baseline, gate and report: output, exit codes, and bad input."""

import csv
import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.cli.command import ROOT, Finished, one_sentence, run, run_here
from tests.cli.test_help import imported
from tests.plugins.store.runs import night
from tests.plugins.store.runs import run as write_run
from tests.results.rows import make_row

REGRESSION = ROOT / "reports" / "regression"
HEAVY = {"torch", "pandas", "matplotlib", "mpi4py", "pyarrow", "psycopg"}


def said(done: Finished) -> str:
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in (1, 2, 3):
        night(tmp_path / "runs", number, hosts=(f"node{number}",))
    assert run_here(tmp_path, "store", "sync", "runs.db", "runs", "--label", "nightly").returncode == 0
    return tmp_path


def test_sync_reports_what_changed(folder: Path) -> None:
    night(folder / "runs", 4)
    shutil.rmtree(folder / "runs" / "night-1")
    done = run_here(folder, "store", "sync", "runs.db", "runs")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 added, 2 unchanged, 1 gone\n", "")


def test_an_unreadable_run_is_reported_and_only_add_fails(folder: Path) -> None:
    (folder / "runs" / "night-9").mkdir()
    (folder / "runs" / "night-9" / "run.json").write_text("{")
    for verb, code in (("add", 2), ("sync", 0)):
        done = run_here(folder, "store", verb, "runs.db", "runs")
        assert (done.returncode, done.stdout) == (code, "0 added, 3 unchanged, 1 cannot be read\n")
        assert "night-9" in said(done)


def test_a_query_has_the_same_values_in_formats_of_several_names_and_lists_its_columns(folder: Path) -> None:
    typed = ("store", "query", "runs.db", "--sizes", "64M", "--node", "node2", "--columns", "run,started,size_bytes,time_p50_s")
    expected = ("night-2", "2026-11-02T02:00:00Z", 64 << 20, 1e-5 + (64 << 20) / 20e9)
    for name in ("json", "jsonl"):
        (line,) = run_here(folder, *typed, "--format", name).stdout.splitlines()
        assert tuple(json.loads(line).values()) == expected
    head, _, line, *_ = run_here(folder, *typed, "--format", "md").stdout.splitlines()
    assert head == "| run | started (UTC) | size | time µs |"
    assert line.startswith("| night-2 | 2026-11-02 02:00:00 | 64 MiB | 3365")
    done = run_here(folder, "store", "query", "runs.db", "--operation", "broadcast", "--columns", "run", "--format", "csv")
    assert (done.returncode, done.stdout) == (0, "run\n")
    done = run_here(folder, "store", "query", "runs.db", "--of", "suspects", "--columns", "?")
    assert [line.partition(": ")[0] for line in done.stdout.splitlines()][:3] == ["run_id", "run", "started"]


def test_a_table_is_limited_with_a_note_and_csv_has_all(folder: Path) -> None:
    write_run(folder / "runs" / "many", [make_row(8 * number) for number in range(1, 1100)])
    run_here(folder, "store", "sync", "runs.db", "runs")
    table = run_here(folder, "store", "query", "runs.db").stdout.splitlines()
    assert (len(table), table[-1]) == (1002, "the newest 1000 records; use --limit N for more")
    assert len(run_here(folder, "store", "query", "runs.db", "--format", "csv").stdout.splitlines()) == 1 + 1099 + 9
    assert len(run_here(folder, "store", "query", "runs.db", "--limit", "0").stdout.splitlines()) == 1 + 1099 + 9 + 1


def test_hostile_names_do_not_reach_the_terminal(folder: Path) -> None:
    write_run(folder / "runs" / "hostile", [make_row(8, flags=("\x1b[2J",))], hosts=["=cmd()\x1b[2J"], allocation_id="a\x1b]0;x\x07")
    run_here(folder, "store", "sync", "runs.db", "runs")
    for name in ("table", "csv", "markdown"):
        typed = ("--columns", "run,node,flags,allocation", "--format", name)
        assert "\x1b" not in run_here(folder, "store", "query", "runs.db", *typed).stdout
    assert "'=cmd()" in run_here(folder, "store", "query", "runs.db", "--columns", "node", "--format", "csv").stdout


def test_prune_removes_only_without_dry_run(folder: Path) -> None:
    typed = ("store", "prune", "runs.db", "--older-than", "1h")
    shutil.rmtree(folder / "runs" / "night-1")
    run_here(folder, "store", "sync", "runs.db", "runs")
    dry = run_here(folder, "store", "prune", "runs.db", "--missing", "--dry-run")
    assert dry.stdout.splitlines() == [str(folder / "runs" / "night-1"), "1 run would be removed from the store"]
    assert run_here(folder, "store", "prune", "runs.db", "--missing").stdout.splitlines()[-1] == "1 run removed from the store"
    assert len(run_here(folder, *typed).stdout.splitlines()) in (1, 3)  # before or after the nights of the runs
    assert (folder / "runs" / "night-2").is_dir()


# history, baseline, gate and report


def test_a_baseline_of_a_store_is_that_of_the_folders(tmp_path: Path) -> None:
    for name in ("before", "after"):
        assert run_here(tmp_path, "store", "add", "regression.db", str(REGRESSION / name), "--label", name).returncode == 0
    assert run_here(tmp_path, "baseline", "add", "one", "--store", "regression.db", "before").returncode == 0
    assert run_here(tmp_path, "baseline", "add", "other", str(REGRESSION / "before")).returncode == 0
    (one,), (other,) = ((tmp_path / name).glob("*.allocation.jsonl") for name in ("one", "other"))
    assert (one.name, one.read_text()) == (other.name, other.read_text())


def test_a_history_of_a_store_is_that_of_the_folder(tmp_path: Path) -> None:
    for number in range(1, 9):
        night(tmp_path / "runs", number, slower=1.5 if number > 4 else 1.0)
    run_here(tmp_path, "store", "sync", "runs.db", "runs")
    folder = run_here(tmp_path, "history", "runs", "--format", "json")
    store = run_here(tmp_path, "history", "--store", "runs.db", "--format", "json")
    assert (store.returncode, store.stderr) == (0, folder.stderr)
    assert store.stdout == folder.stdout
    assert len(store.stdout.splitlines()) > 1
    some = run_here(tmp_path, "history", "--store", "runs.db", "--since", "2026-11-05", "--format", "json")
    assert some.returncode == 0 and some.stdout != store.stdout


def test_a_verdict_over_a_store_is_that_over_the_folders(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for number in range(1, 8):
        night(runs, number, slower=1.0 + 0.001 * (number % 3))
    for number in (11, 12, 13):
        night(runs, number, slower=1.5)
    run_here(tmp_path, "store", "add", "runs.db", *(f"runs/night-{number}" for number in range(1, 8)), "--label", "good")
    run_here(tmp_path, "store", "add", "runs.db", *(f"runs/night-{number}" for number in (11, 12, 13)), "--label", "new")
    assert run_here(tmp_path, "baseline", "add", "good", "--store", "runs.db", "good").returncode == 0
    paths = [f"runs/night-{number}" for number in (11, 12, 13)]
    folders = run_here(tmp_path, "gate", "--baseline", "good", *paths, "--out", "a.json")
    shutil.rmtree(runs / "night-13")
    store = run_here(tmp_path, "gate", "--baseline", "good", "--store", "runs.db", "--label", "new", "--out", "b.json")
    assert (folders.returncode, store.returncode) == (1, 1)
    assert json.loads((tmp_path / "b.json").read_text()) == json.loads((tmp_path / "a.json").read_text())


def test_report_reads_the_newest_run_or_where_the_folder_is_gone_the_store(folder: Path) -> None:
    assert run_here(folder, "report", "--store", "runs.db").stdout.startswith("night-3 ")
    whole = run_here(folder, "report", "--store", "runs.db", "night-2", "--format", "csv")
    assert whole.stdout == run_here(folder, "report", "runs/night-2", "--format", "csv").stdout
    shutil.rmtree(folder / "runs" / "night-2")
    gone = run_here(folder, "report", "--store", "runs.db", "night-2", "--format", "csv")
    assert gone.returncode == 0
    assert said(gone).endswith("night-2 is gone: its figures are from the store, without samples")
    times = [[row["time_p50_s"] for row in csv.DictReader(io.StringIO(text))] for text in (whole.stdout, gone.stdout)]
    assert times[0] == times[1] and len(times[0]) == 3
    page = run_here(folder, "report", "--store", "runs.db", "night-2", "--html", "report.html")
    assert (page.returncode, (folder / "report.html").exists()) == (2, False)
    assert "--html needs its samples" in one_sentence(page)


# Without SQLAlchemy


@pytest.mark.system
@pytest.mark.parametrize(
    "typed", ["store query runs.db", "store add new.db runs", "store dashboards postgresql out", "history --store runs.db"]
)
def test_without_sqlalchemy_the_package_is_named(folder: Path, typed: str) -> None:
    (folder / "lacking").mkdir()
    (folder / "lacking" / "sqlalchemy.py").write_text("raise ModuleNotFoundError(\"No module named 'sqlalchemy'\")")
    done = run(folder, *typed.split(), env={"PYTHONPATH": f"{folder / 'lacking'}:{ROOT}"})
    assert one_sentence(done) == "a store needs SQLAlchemy (No module named 'sqlalchemy'): pip install 'collbench[store]'"


# Bad input


@pytest.mark.parametrize("typed", [
    "query runs.db --columns bogus", "query runs.db --where bogus=1", "query runs.db --where ranks", "query runs.db --sizes 1M-1K",
    "query runs.db --since yesterday", "query runs.db --of nothing", "query runs.db --of runs --operation allreduce",
    "query runs.db unknown-10 --limit -1", "query runs.db --limit 9999999999", "query nothing.db", "query runs", "query notes.txt",
    "query postgresql://u:secret@h/d", "query postgresql://127.0.0.1:9/d?connect_timeout=1", "add runs.db", "add runs.db nowhere",
    "add new.db nowhere", "sync new.db nowhere", "add notes.txt runs", "add no/where.db runs", "add runs.db runs --label 'a b'",
    "sync runs.db nowhere", "prune runs.db", "prune runs.db --older-than soon", "prune nothing.db --missing", "export runs.db runs",
    "export nothing.db out", "bogus runs.db", "",
])  # fmt: skip
def test_bad_input_is_one_sentence_and_changes_nothing(folder: Path, typed: str) -> None:
    (folder / "notes.txt").write_text("these are notes, not a store")
    before = (folder / "runs.db").read_bytes(), sorted(folder.rglob("*"))
    done = run_here(folder, "store", *typed.replace("'a b'", "a\tb").split(" ")) if typed else run_here(folder, "store")
    assert "secret" not in one_sentence(done)
    assert before == ((folder / "runs.db").read_bytes(), sorted(folder.rglob("*")))


@pytest.mark.parametrize("typed", [
    "history --store nothing.db", "history --store runs.db unknown", "history", "history runs --node node1", "report runs --since 2d",
    "report --store runs.db --node elsewhere", "report --serve --store runs.db", "baseline add good", "baseline add good --label x runs",
    "gate --baseline good --store runs.db unknown", "gate --paired --store runs.db a b", "gate --baseline good runs --label x",
])  # fmt: skip
def test_bad_selections_are_one_sentence(folder: Path, typed: str) -> None:
    one_sentence(run_here(folder, *typed.split()))


@pytest.mark.long
def test_a_store_command_loads_nothing_heavy(folder: Path) -> None:
    done = run(folder, "store", "query", "runs.db", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert not imported(done.stderr) & HEAVY


@pytest.mark.long
def test_a_closed_pipe_ends_a_query_quietly(folder: Path) -> None:
    write_run(folder / "runs" / "many", [make_row(8 * number) for number in range(1, 3000)])
    run_here(folder, "store", "sync", "runs.db", "runs")
    done = run(folder, "-c", f"{sys.executable} -m collbench store query runs.db --format csv | head -1", program=("bash",))
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")
