"""CSV, JSON and the report of stored runs."""

from __future__ import annotations

import csv
import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from collbench.errors import UsageError
from collbench.report.frame import defused
from collbench.report.runs import report_run
from collbench.report.writers import STDOUT, Outputs, csv_columns, write_whole
from tests.report.golden import assert_golden, live
from tests.results.rows import make_row, not_measured, store

ROWS = [
    make_row(64 << 20, flags=("target_missed", "few_samples"), canary_s={"before": 1e-9, "after": None}, samples={"max_s": {"offset": 0}}),
    not_measured('no "bfloat16", sorry\nreally', backend="mpi"),
    make_row(8, backend="mpi", slowest_ranks={"count": 3}),
]


def report(*paths: Path, file: Path | None = None, format: str = "table") -> tuple[str, str]:
    """What `collbench report` prints on stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    assert report_run(paths, file, format, out, err=err) == 0
    return out.getvalue(), err.getvalue()


def records(text: str) -> list[dict[str, str]]:
    """A CSV text read back."""
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_csv() -> None:
    text = live(ROWS, "csv", run="run-1")
    assert_golden("rows.csv", text)
    assert all(line.endswith("\r") for line in text.removesuffix("\n").split("\n"))
    first, second, third = records(text)
    assert list(first) == csv_columns()
    assert (first["run"], first["size_bytes"], first["time_p50_s"], first["in_place"]) == ("run-1", "67108864", "0.002399", "false")
    assert (first["ceiling_bytes_per_s"], first["ceiling_limited_by"], first["percent_of_ceiling"]) == (
        "50000000000.0",
        "NIC 4×100 Gb/s",
        "84.0",
    )
    assert (first["flags"], first["canary_before_s"], first["canary_after_s"]) == ("target_missed few_samples", "1e-09", "")
    assert (second["na"], second["time_p50_s"], second["wrong"]) == ('no "bfloat16", sorry?really', "", "")
    assert json.loads(third["slowest_ranks"]) == {"count": 3}


def test_csv_keeps_both_values_and_why_a_case_stopped() -> None:
    modes = [{"time_s": 2.3e-06, "share": 0.82}, {"time_s": 1.07e-05, "share": 0.18}]
    row = records(live([make_row(modes=modes, stopped="max_time", launches=5)], "csv", run="run-1"))[0]
    assert (json.loads(row["modes"]), row["stopped"], row["launches"]) == (modes, "max_time", "5")
    assert records(live([make_row()], "csv", run="run-1"))[0]["modes"] == ""


@pytest.mark.parametrize(("letters", "kept"), [(32_766, 32_766), (32_767, 32_766), (200_000, 32_766)])
def test_no_case_is_longer_than_a_spreadsheets(letters: int, kept: int) -> None:
    assert len(defused("x" * letters)) == kept
    assert len(defused("=" + "x" * letters)) == 32_767
    assert defused("x" * letters).endswith("…") is (letters > kept)


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-2", "@SUM(A1)"])
def test_formulas_are_defused_and_numbers_are_not(text: str) -> None:
    row = records(live([not_measured(text, operation=text, n_eff=-1.5)], "csv", run="run-1"))[0]
    assert (row["na"], row["operation"], row["n_eff"]) == (f"'{text}", f"'{text}", "-1.5")


def test_json_is_what_cases_jsonl_holds(tmp_path: Path) -> None:
    path = store(tmp_path / "run", ROWS)
    assert live([*ROWS[1:]], "json", run="run-1").splitlines() == (path / "cells.jsonl").read_text().splitlines()[1:]
    assert live(ROWS, "json", run="run-1").isascii()


def test_a_report_is_ascending_in_size_for_any_order(tmp_path: Path) -> None:
    rows = [make_row(size, backend=backend) for size in (64, 8, 1024) for backend in ("mpi", "gloo")]
    out, err = report(store(tmp_path / "run", rows))
    lines = [line for line in out.splitlines() if line.endswith(" ok") or "float32" in line]
    found = [line.partition(" · ")[0] if "float32" in line else line.split()[:2] for line in lines]
    sizes = [["8", "B"], ["64", "B"], ["1", "KiB"]]
    assert found == ["allreduce over gloo", *sizes, "allreduce over mpi", *sizes]
    assert out.splitlines()[0] == "run (6 rows)"
    assert err == ""


def test_what_cannot_be_reported_is_refused_and_what_could_not_be_read_is_shown(tmp_path: Path) -> None:
    path = store(tmp_path / "run", [make_row()])
    with (path / "cells.jsonl").open("a") as file:
        file.write('{"operation": "all')
    out, err = report(path)
    assert err.startswith(f"{path}/cells.jsonl ends in the middle of line 2") and err.count("\n") == 1
    assert out.splitlines()[0] == "run (1 row)"
    path = store(tmp_path / "run", [make_row()])
    with pytest.raises(UsageError, match="is not a run folder"):
        report(tmp_path)
    with pytest.raises(UsageError, match="unknown --format 'xml'"):
        report(path, format="xml")
    with pytest.raises(UsageError, match=r"--csv \S+ .*\(Is a directory\)"):
        report(path, file=tmp_path)


def test_csv_to_a_file_to_stdout_and_of_several_runs(tmp_path: Path) -> None:
    one, two = store(tmp_path / "one", [make_row(64), make_row(8)]), store(tmp_path / "two", [make_row(16)])
    out, _ = report(one, two, file=tmp_path / "all.csv")
    assert "one (2 rows)" in out
    assert "\ntwo (1 row)" in out
    text = (tmp_path / "all.csv").read_bytes().decode()
    assert [(row["run"], row["size_bytes"]) for row in records(text)] == [("one", "8"), ("one", "64"), ("two", "16")]
    assert report(one, two, file=Path("-")) == (text, "")
    assert report(one, two, format="csv") == (text, "")


def test_every_format_prints_a_stored_run(tmp_path: Path) -> None:
    rank_map: list[Any] = [{"rank": 0, "host": "node0", "local_rank": 0, "pid": 77}, "junk"]
    path = store(tmp_path / "run", [make_row(16, launches=3), make_row(8, launches=3)], rank_map=rank_map)
    assert "Pid     77 on      node0" in report(path, format="nccl-tests")[0]
    assert [json.loads(line)["size_bytes"] for line in report(path, format="json")[0].splitlines()] == [8, 16]
    assert "within one launch" not in report(path)[0]


def test_an_unfinished_run_is_called_so(tmp_path: Path) -> None:
    path = store(tmp_path / "run", [make_row()])
    info = json.loads((path / "run.json").read_text())
    del info["finished_utc"]
    (path / "run.json").write_text(json.dumps(info))
    assert report(path)[0].startswith("run (1 row, not finished)\n")
    (path / "run.json").write_text(json.dumps({**info, "finished_utc": "2026-11-21T12:00:00.000Z", "exit_code": 130}))
    assert report(path)[0].startswith("run (1 row, not finished)\n"), "Ctrl-C"


# Files that a report writes: in one step, or with a sentence that names the reason.


def test_a_file_is_replaced_as_a_whole_and_a_link_stays_one_or_leads_nowhere(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write_whole(link, "line\n", "--html")
    assert link.is_symlink() and real.read_bytes() == b"line\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    other, draft = tmp_path / "other", tmp_path / f".page.{os.getpid()}"
    other.write_text("another program's")
    draft.symlink_to(other)
    write_whole(tmp_path / "page", "ours", "--html")
    assert (other.read_text(), (tmp_path / "page").read_text(), draft.is_symlink()) == ("another program's", "ours", False)


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_whole(pipe, "through", "--html")
    reader.join(10)
    assert read == ["through"] and pipe.is_fifo()


def test_what_cannot_be_written_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--html .*/no/page .*\(No such file or directory\)"):
        write_whole(tmp_path / "no" / "page", "", "--html")
    with pytest.raises(UsageError, match="Is a directory"):
        write_whole(tmp_path, "", "--html")
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(UsageError, match=r"circle cannot be written \(.+\)"):
        write_whole(circle, "", "--html")
    assert list(tmp_path.iterdir()) == [circle]


def test_stdout_belongs_to_one() -> None:
    Outputs(csv=STDOUT, markdown=Path("a")).check()
    Outputs(csv=Path("a"), markdown=STDOUT, html=Path("b")).check()
    with pytest.raises(UsageError, match="--csv and --markdown "):
        Outputs(csv=STDOUT, markdown=STDOUT).check()
    with pytest.raises(UsageError, match="--html "):
        Outputs(html=STDOUT).check()
    with pytest.raises(UsageError, match="--openmetrics "):
        Outputs(openmetrics=STDOUT).check()
