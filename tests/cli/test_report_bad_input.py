"""`collbench report` of folders that are empty, cut, altered or of another version: one sentence each, and the rest is printed."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from collbench.errors import FINE, NO_VERDICT, USAGE, UsageError
from collbench.report.runs import report_run
from tests.cli.command import one_sentence, run, run_here
from tests.results.rows import make_row, store

NOT_A_RUN = "is not a run folder"


def shown(*folders: Path) -> tuple[int, str, list[str]]:
    """Return (exit code, stdout, lines on stderr)."""
    out, err = io.StringIO(), io.StringIO()
    code = report_run(folders, None, "table", out, err=err)
    return code, out.getvalue(), err.getvalue().splitlines()


def altered(folder: Path, *rows: dict[str, Any]) -> Path:
    """Store a run with changed rows."""
    store(folder, [])
    lines = (json.dumps({**make_row(8 << place).as_json(), **changes}) for place, changes in enumerate(rows))
    (folder / "cells.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_the_readable_ones_of_several_folders_are_printed(tmp_path: Path) -> None:
    good, empty, hollow = store(tmp_path / "good", [make_row(8)]), tmp_path / "empty", tmp_path / "hollow"
    empty.mkdir()
    hollow.mkdir()
    (hollow / "run.json").write_text("")
    code, printed, said = shown(empty, good, hollow, tmp_path / "nowhere")
    assert code == USAGE and [line.split(" ")[0] for line in said] == [str(empty), str(hollow), f"{tmp_path}/nowhere"]
    assert f"{hollow}/run.json" in said[1]
    assert printed.startswith("good (1 row)\n") and "allreduce over nccl" in printed


@pytest.mark.contract
def test_all_outputs_are_written_of_what_can_be_read_and_the_process_ends_with_2(tmp_path: Path) -> None:
    store(tmp_path / "good", [make_row(8)])
    (tmp_path / "empty").mkdir()
    done = run(tmp_path, "report", "good", "empty", "--html", "page.html", "--csv", "rows.csv", "--openmetrics", "rows.prom", "--markdown")
    first, *written = done.stderr.splitlines()
    assert done.returncode == 2 and first.startswith(f"empty {NOT_A_RUN}")
    assert written == ["wrote rows.csv", "wrote rows.prom", "wrote page.html"]
    assert "| allreduce |" in done.stdout
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert f"empty {NOT_A_RUN}" in page and "42.0 of 50.0 GB/s (84 %)" in page
    assert (tmp_path / "rows.csv").read_text().count("\n") == 2
    assert (tmp_path / "rows.prom").read_text().endswith("# EOF\n")


def test_several_unreadable_folders_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    done = run_here(tmp_path, "report", "empty", "file", "--html", "page.html")
    assert [each.split(" ")[0] for each in one_sentence(done).split("; ")] == ["empty", "file"]
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(("finished", "value"), [(True, "cells.jsonl"), (False, "first case")])
def test_a_run_without_rows_is_reported(finished: bool, value: str, tmp_path: Path) -> None:
    folder = store(tmp_path / "run", [])
    if not finished:
        info = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({name: value for name, value in info.items() if name != "finished_utc"}))
    (folder / "cells.jsonl").unlink(missing_ok=True)
    code, printed, said = shown(folder)
    assert code == USAGE and len(said) == 1 and said[0].startswith(f"{folder} has no results") and value in said[0]
    assert printed.startswith("run (0 rows")
    page = tmp_path / "page.html"
    with pytest.raises(UsageError, match="--html: these runs have no result for a page"):
        report_run([folder], None, "table", io.StringIO(), html=page, err=io.StringIO())
    assert not page.exists()


def test_one_launch_of_several_may_lack_its_rows(tmp_path: Path) -> None:
    for number, rows in enumerate(([make_row(8)], [], [make_row(8)]), 1):
        store(tmp_path / "all" / f"launch-{number}", rows, allocation_id="a")
    code, printed, said = shown(tmp_path / "all")
    assert code == FINE and len(said) == 1 and said[0].startswith(f"{tmp_path}/all/launch-2 has no results")
    assert printed.startswith("all (3 launches, 1 row)\n")


def test_the_finished_rows_of_a_killed_run_are_printed(tmp_path: Path) -> None:
    folder = store(tmp_path / "run", [make_row(8), make_row(16)])
    for name, kept in (("run.json", 60), ("cells.jsonl", -30)):
        (folder / name).write_bytes((folder / name).read_bytes()[:kept])
    code, printed, said = shown(folder)
    assert code == NO_VERDICT and printed.startswith("run (1 row, not finished)\n")
    assert [line.split(" ")[0] for line in said] == [f"{folder}/run.json", f"{folder}/cells.jsonl"] and "line 2" in said[1]


def test_a_stopped_run_is_not_damaged_but_one_with_an_unreadable_row_is(tmp_path: Path) -> None:
    folder = store(tmp_path / "run", [make_row(8), make_row(16)])
    rows = (folder / "cells.jsonl").read_bytes()
    (folder / "cells.jsonl").write_bytes(rows[:-30])
    assert shown(folder)[0] == FINE
    (folder / "cells.jsonl").write_bytes(b"x" + rows)
    assert shown(folder)[0] == NO_VERDICT


def test_launches_of_different_schemas_are_not_combined(tmp_path: Path) -> None:
    for number, schema in ((1, 1), (2, 2)):
        store(tmp_path / "all" / f"launch-{number}", [make_row(8)], allocation_id="a", schema=schema, collbench=f"{schema}.4.0")
    code, printed, said = shown(tmp_path / "all")
    one, two = (f"{tmp_path}/all/launch-{number}" for number in (1, 2))
    assert code == FINE and "launch-1 (1 row)" in printed and "launch-2 (1 row)" in printed
    assert said[0].startswith(f"{two}/run.json ") and "schema 2" in said[0] and "collbench 2.4.0" in said[0]
    assert said[1].startswith(f"{two} ") and one in said[1] and "1 → 2" in said[1]


@pytest.mark.parametrize(("schema", "named"), [(0, "0"), (-1, "-1"), (True, "True"), ("2", "2"), (1.5, "1.5")])
def test_an_invalid_schema_is_reported_and_read_as_schema_1(schema: Any, named: str, tmp_path: Path) -> None:
    folder = store(tmp_path / "run", [make_row(8)], schema=schema)
    (sentence,) = shown(folder)[2]
    assert sentence.startswith(f"{folder}/run.json ") and f"'{named}'" in sentence and sentence.endswith("schema 1")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 1e200])
def test_a_time_that_is_not_a_number_makes_the_row_na(number: float, tmp_path: Path) -> None:
    times = asdict(make_row().time_s)
    changes: list[dict[str, Any]] = [{"time_s": {**times, "p50": number}}, {"busbw_bytes_per_s": number}, {}]
    folder = altered(tmp_path / "run", *({**each, "size_bytes": 4096 << place} for place, each in enumerate(changes)))
    code, printed, said = shown(folder)
    first, second, third = (line for line in printed.splitlines() if re.match(r" *\d+ KiB ", line))
    assert "n/a (" in first and "GB/s" not in first
    assert second.split()[6:8] == ["28.0", "–"]
    assert third.split()[6:11] == ["28.0", "42.0", "50.0", "84", "%"]
    actual = json.dumps(number)
    assert code == FINE and len(said) == 1 and said[0].startswith(f"{folder}/cells.jsonl ") and f"({actual}, 2 " in said[0]


@pytest.mark.parametrize(
    "change", [{"size_bytes": -8}, {"ranks": -1}, {"busbw_bytes_per_s": -1.0}, {"n": -3}, {"percent_of_ceiling": -4.0}]
)
def test_a_row_with_a_negative_value_is_left_out(change: dict[str, Any], tmp_path: Path) -> None:
    folder = altered(tmp_path / "run", change, {})
    (name, value), = change.items()  # fmt: skip
    (sentence,) = shown(folder)[2]
    assert sentence.startswith(f"{folder}/cells.jsonl: ") and "line 1" in sentence and f"'{name}' is '{value}'" in sentence


@pytest.mark.parametrize("junk", [[], "x", 5, {"a": {"b": 1}}, [[1]], [{"rank": "x", "host": 5}], {"x": None}])
def test_run_json_may_hold_anything_anywhere(junk: Any, tmp_path: Path) -> None:
    names = (
        "hosts", "rank_map", "command", "backends", "environment", "started_utc", "finished_utc", "host", "launcher", "imported",
        "exit_code", "launches", "launch_index", "plan", "suite", "settings", "libraries", "collbench", "operation",
    )  # fmt: skip
    folder = store(tmp_path / "run", [make_row(8)], **dict.fromkeys(names, junk))
    (folder / "events.jsonl").write_text(json.dumps({"kind": "telemetry", "at_s": junk, "gpus": junk}) + "\n" + json.dumps({"kind": junk}))
    (folder / "topology.json").write_text(json.dumps({"schema": 1, "machines": junk, "interfaces": junk}))
    assert shown(folder)[0] == FINE


def test_a_page_of_impossible_figures(tmp_path: Path) -> None:
    """The page has no traceback and no endless axis for figures from zero to the largest that a file can have."""
    folder = altered(
        tmp_path / "run",
        {"busbw_bytes_per_s": 9e99, "time_s": {"p50": 9e99, "ci_low": 1e-99, "ci_high": 9e99, "min": 0.0, "p95": 0, "p99": 1, "max": 9e99}},
        {"busbw_bytes_per_s": 1e-99, "percent_of_ceiling": 9e99, "size_bytes": 2**62, "ranks": 2**62, "n": 2**62},
        {"ceiling": {**asdict(make_row().ceiling), "bytes_per_s": 0.0}, "hard_bound": None, "ranks": 0, "nodes": 0},
        {
            "evidence": {"at_s": ["x", None], "stolen": "y", "lost_cores": [1], "moved": 5},
            "canary_s": {"before": None, "else": 9e99},
            "modes": [{"share": 3}],
        },
        {"slowest_ranks": {"worst": [["a", "b"], [1, 2]], "count": "x"}, "groups": {"count": "x", "p50_s": [None]}},
        {"samples": {"max_s": {"offset": 0, "dtype": "<f8", "shape": [4]}, "slowest_rank": 5}},
    )
    page, markdown, rows, samples = (tmp_path / f"it.{suffix}" for suffix in ("html", "md", "csv", "prom"))
    said = io.StringIO()
    assert report_run([folder], rows, "table", io.StringIO(), html=page, markdown=markdown, openmetrics=samples, err=said) == FINE
    assert rows.read_text().count("\n") == 7
    assert page.stat().st_size < 400_000
