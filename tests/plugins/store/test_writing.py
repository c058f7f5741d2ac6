"""Adding runs to a store, bringing it up to date, and removing runs: on SQLite, and on a real PostgreSQL server."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import text

from collbench.errors import UsageError
from collbench.plugins.store.database import open_store
from collbench.plugins.store.writing import ADDED, MISSING, UNCHANGED, UPDATED, Writer, removable, remove, sync
from tests.cli.command import ROOT
from tests.plugins.store.runs import SIZES, added, night, rows, run
from tests.results.rows import make_row, not_measured
from tests.stored import stored_reports

pytestmark = pytest.mark.system

VERDICT = ROOT / "reports" / "gate-trials" / "link-0" / "verdict.json"


def test_a_run_becomes_a_record_for_each_case(name: str, tmp_path: Path) -> None:
    folder = night(tmp_path, 1, hosts=("node1", "node2"), allocation_id="alloc-7", launch_index=1, launches=3, collbench="0.1.0")
    assert added(name, folder).paths == {ADDED: [str(folder)]}
    found = rows(name, "SELECT size_bytes, time_p50_s, busbw_bytes_per_s, percent_of_ceiling, quality, allocation FROM history ORDER BY 1")
    assert found == [(size, 1e-5 + size / 20e9, 42e9, 84.0, "ok", "alloc-7") for size in SIZES]
    (stored,) = rows(name, "SELECT path, started_s, exit_code, nodes, results, launch_index, launches, version FROM runs")
    assert stored == (str(folder.resolve()), 1793498400.0, 0, 2, 3, 1, 3, "0.1.0")
    assert rows(name, "SELECT DISTINCT node FROM node_history ORDER BY node") == [("node1",), ("node2",)]
    added(name, run(tmp_path / "one", [not_measured("no room", size_bytes=8, operation="broadcast")]))
    assert rows(name, "SELECT na, time_p50_s, quality FROM history WHERE operation = 'broadcast'") == [("no room", None, None)]


def test_an_unchanged_run_is_not_read_again_and_a_changed_one_replaces_its_records(name: str, tmp_path: Path) -> None:
    folder = night(tmp_path, 1)
    added(name, folder)
    assert added(name, folder).paths == {UNCHANGED: [str(folder)]}
    shutil.rmtree(folder)
    run(folder, [make_row(8)], hosts=["other"])
    assert added(name, folder).paths == {UPDATED: [str(folder)]}
    assert rows(name, "SELECT size_bytes, node FROM node_history") == [(8, "other")]
    assert rows(name, "SELECT count(*) FROM runs") == [(1,)]


def test_runs_pairs_and_verdicts_have_records_for_suspects_hosts_and_groups(name: str, tmp_path: Path) -> None:
    added(name, ROOT / "reports" / "hunt-host", stored_reports() / "pairs-under-load")
    assert rows(name, "SELECT node, state FROM suspect_history WHERE state = 'confirmed'") == [("cb1h7", "confirmed")]
    hunts = rows(name, "SELECT command, result, confirmed, places FROM hunts ORDER BY 1")
    assert hunts == [("hunt", "confirmed", 1, 8), ("pairs", None, 0, 8)]
    medians = rows(name, "SELECT node, partners, sent_bytes_per_s, latency_s FROM pair_history ORDER BY node")
    assert [(node, partners) for node, partners, _, _ in medians] == [(f"cb1h{number}", 7) for number in range(1, 9)]
    assert all(1e6 < sent < 1e9 and 1e-6 < latency < 1e-3 for _, _, sent, latency in medians)
    verdict = Path(shutil.copy(VERDICT, tmp_path / "last night.json"))
    added(name, verdict)
    assert added(name, verdict).paths == {UNCHANGED: [str(verdict)]}
    assert rows(name, "SELECT result, mode, cases, confirmed, cause FROM verdicts") == [("regression", "baseline", 6, 9, "link")]
    assert rows(name, "SELECT count(*), count(factor) FROM verdict_groups")[0][0] > 0


def test_labels_are_added_and_several_names_of_a_path_are_one_run(name: str, tmp_path: Path) -> None:
    folder = night(tmp_path, 1)
    added(name, folder, labels=["nightly"])
    added(name, folder, labels=["nightly", "good"])
    assert rows(name, "SELECT label FROM labels ORDER BY label") == [("good",), ("nightly",)]
    (tmp_path / "link").symlink_to(folder)
    added(name, folder)
    assert added(name, tmp_path / "link").paths == {UNCHANGED: [str(tmp_path / "link")]}


def test_text_that_databases_reject_is_replaced(name: str, tmp_path: Path) -> None:
    hostile = "a\0b\ud800'; DROP TABLE runs; --"
    row = make_row(8, flags=("drift\0",))
    added(name, run(tmp_path / "one", [row], hosts=[hostile], allocation_id=hostile, command=["collbench", hostile], software=[hostile]))
    assert rows(name, "SELECT name FROM nodes") == [("a?b\ufffd'; DROP TABLE runs; --",)]
    assert rows(name, "SELECT flags FROM history") == [("drift?",)]


def test_an_unreadable_run_is_refused_and_the_others_are_added(name: str, tmp_path: Path) -> None:
    good, bad = night(tmp_path, 1), tmp_path / "night-2"
    bad.mkdir()
    (bad / "run.json").write_text("{")
    changes = added(name, bad, good)
    assert (changes.count(ADDED), len(changes.refused)) == (1, 1)
    assert "night-2" in changes.refused[0]


def test_a_path_without_runs_is_refused_before_anything_is_added(name: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match=r"has neither runs nor a verdict\.json"):
        added(name, night(tmp_path / "runs", 1), empty)
    with pytest.raises(UsageError, match="does not exist"):
        added(name, tmp_path / "nowhere")
    assert rows(name, "SELECT count(*) FROM runs") == [(0,)]


# sync


def test_sync_adds_new_runs_replaces_changed_ones_and_marks_those_that_are_gone(name: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    first, second = night(runs, 1), night(runs / "deep" / "deeper", 2)
    elsewhere = night(tmp_path / "elsewhere", 3)
    added(name, elsewhere)
    database = open_store(name, write=True)
    writer = Writer(database)
    assert {what: len(paths) for what, paths in sync(writer, [runs]).paths.items()} == {ADDED: 2}
    shutil.rmtree(first)
    shutil.rmtree(elsewhere)
    with (second / "cells.jsonl").open("a") as file:
        file.write("")
    os.utime(second / "cells.jsonl", ns=(1, 1))
    third = night(runs, 4)
    changes = sync(writer, [runs])
    assert changes.paths == {ADDED: [str(third)], UPDATED: [str(second)], MISSING: [str(first)]}
    assert database.rows(text("SELECT name FROM runs WHERE missing = 1")) == [("night-1",)]
    night(runs, 1)
    assert sync(writer, [runs]).paths[UPDATED] == [str(first)]
    assert database.rows(text("SELECT name FROM runs WHERE missing = 1")) == []
    database.close()


def test_sync_with_a_folder_that_is_not_there_marks_nothing(name: str, tmp_path: Path) -> None:
    added(name, night(tmp_path / "runs", 1))
    shutil.move(tmp_path / "runs", tmp_path / "unmounted")
    database = open_store(name, write=True)
    with pytest.raises(UsageError, match="not a folder that exists"):
        sync(Writer(database), [tmp_path / "runs"])
    assert database.rows(text("SELECT count(*) FROM runs WHERE missing = 1")) == [(0,)]
    database.close()


# prune


def test_prune_removes_old_and_missing_runs_with_all_of_their_records(name: str, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        night(tmp_path, number, software=[{"hosts": ["node1"], "kernel": f"6.{number}" * 60}])
    database = open_store(name, write=True)
    writer = Writer(database)
    sync(writer, [tmp_path], ["nightly"])
    documents = database.rows(text("SELECT count(*) FROM documents"))
    shutil.rmtree(tmp_path / "night-3")
    sync(writer, [tmp_path])
    start = database.rows(text("SELECT started_s FROM runs WHERE name = 'night-2'"))[0][0]
    assert [path for _, _, path in removable(database, start, missing=False)] == [str(tmp_path / "night-1")]
    found = removable(database, start, missing=True)
    assert [Path(path).name for _, _, path in found] == ["night-1", "night-3"]
    remove(database, found)
    assert database.rows(text("SELECT name FROM runs")) == [("night-2",)]
    for table in ("results", "run_nodes", "labels"):
        assert database.rows(text(f"SELECT count(DISTINCT run_id) FROM {table}")) == [(1,)]
    kept = {number for (number,) in database.rows(text("SELECT document_id FROM documents"))}
    assert 0 < len(kept) < documents[0][0]
    assert kept >= {*json.loads(database.rows(text("SELECT info FROM runs"))[0][0])[1].values()}
    database.close()


# Several writers, and writers that are killed.

_WRITER = """
import os, signal, sys
from pathlib import Path
from collbench.plugins.store.database import open_store
from collbench.plugins.store.writing import Writer, add_all

if sys.argv[1] == "killed":
    Writer._label = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # the last statement before COMMIT
changes = add_all(Writer(open_store(sys.argv[2], write=True)), [Path(path) for path in sys.argv[3:]])
print({what: len(paths) for what, paths in changes.paths.items()})
"""


def _writer(how: str, name: str, *paths: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WRITER, how, name, *map(str, paths)]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.often("sqlite")
@pytest.mark.long
def test_nothing_of_a_run_stays_of_a_writer_that_is_killed(name: str, tmp_path: Path) -> None:
    whole, torn = night(tmp_path, 1), night(tmp_path, 2)
    added(name, whole)
    killed = _writer("killed", name, torn)
    assert killed.wait(60) == -signal.SIGKILL
    for table, expected in (("runs", 1), ("results", len(SIZES))):
        assert rows(name, f"SELECT count(*) FROM {table}") == [(expected,)]
    assert added(name, torn).paths == {ADDED: [str(torn)]}


@pytest.mark.often("postgresql")
@pytest.mark.long
def test_concurrent_writers_lose_nothing_and_add_no_run_twice(name: str, tmp_path: Path) -> None:
    shared = night(tmp_path / "shared", 1)
    own = [[night(tmp_path / f"writer-{writer}", number, hosts=(f"node{writer}",)) for number in range(2, 10)] for writer in range(4)]
    writers = [_writer("whole", name, *paths, shared) for paths in own]
    for each in writers:
        _, errors = each.communicate(timeout=120)
        assert (each.returncode, errors) == (0, "")
    assert rows(name, "SELECT count(*), count(DISTINCT path) FROM runs") == [(33, 33)]
    assert rows(name, "SELECT count(*) FROM results") == [(33 * len(SIZES),)]
    assert rows(name, "SELECT count(*) FROM cases") == [(len(SIZES),)]


@pytest.mark.long
def test_a_reader_sees_a_run_whole_or_not_at_all_while_it_is_replaced(name: str, tmp_path: Path) -> None:
    folder = night(tmp_path, 1)
    added(name, folder)
    writer = _writer("whole", name, *(night(tmp_path / "more", number) for number in range(2, 28)))
    seen = set()
    while writer.poll() is None:
        runs, results = rows(name, "SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM results)")[0]
        seen.add(results - runs * len(SIZES))
        time.sleep(0.01)
    assert writer.returncode == 0
    assert seen == {0}


def test_the_largest_numbers_of_rows_are_taken(name: str, tmp_path: Path) -> None:
    folder = run(tmp_path / "large", [make_row(8 * number, ranks=number) for number in range(1, 1001)])
    start = time.perf_counter()
    assert added(name, folder).count(ADDED) == 1
    assert time.perf_counter() - start < 30
    assert rows(name, "SELECT count(*), max(ranks) FROM history") == [(1000, 1000)]
