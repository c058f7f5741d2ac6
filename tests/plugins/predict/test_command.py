"""collbench predict: formats, page, exit codes, the API, and bad input."""

import csv
import io
import json
from pathlib import Path

import pytest

import collbench
from tests.cli.command import ROOT, run_here
from tests.plugins.predict.test_prediction import ring, row
from tests.results.rows import make_row, store


@pytest.fixture
def runs(tmp_path: Path) -> str:
    for nodes in (2, 4, 8):
        store(tmp_path / f"runs/n{nodes}", [row(nodes, ring(nodes))])
    return str(tmp_path / "runs")


def test_csv_and_json_have_the_time_the_interval_and_the_error(runs: str) -> None:
    (line,) = csv.DictReader(io.StringIO(run_here(ROOT, "predict", runs, "--nodes", "16", "--format", "csv").stdout))
    assert float(line["time_s"]) == pytest.approx(ring(16), rel=0.01)
    assert float(line["low_s"]) < ring(16) < float(line["high_s"]) and abs(float(line["check_error"])) < 0.01
    done = run_here(ROOT, "predict", runs, "--nodes", "16", "--format", "jsonl")
    assert done.returncode == 0 and json.loads(done.stdout)["limit"] == "volume"


def test_all_refused_has_exit_code_3_and_bad_input_2(runs: str, tmp_path: Path) -> None:
    assert run_here(ROOT, "predict", runs, "--nodes", "64").returncode == 3
    for words in (("--nodes", "1"), ("--nodes", "x"), (), ("--nodes", "16", "--operation", "alltoall"), ("--nodes", "16", "--since", "1d")):
        done = run_here(ROOT, "predict", runs, *words)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert run_here(ROOT, "predict", str(tmp_path / "none"), "--nodes", "16").returncode == 2


def test_the_page_has_a_chart_and_the_file_is_a_prediction(runs: str, tmp_path: Path) -> None:
    page, file = tmp_path / "page.html", tmp_path / "prediction.json"
    done = run_here(ROOT, "predict", runs, "--nodes", "12,16", "--html", str(page), "--out", str(file))
    assert done.returncode == 0 and len(done.stdout.splitlines()) > 3
    assert "<svg" in page.read_text(encoding="utf-8")
    assert [each["nodes"] for each in json.loads(file.read_text())["cases"][0]["predictions"]] == [12, 16]


def test_a_stored_prediction_is_shown_again(runs: str, tmp_path: Path) -> None:
    file, page = tmp_path / "prediction.json", tmp_path / "page.html"
    first = run_here(ROOT, "predict", runs, "--nodes", "12,16", "--out", str(file))
    again = run_here(ROOT, "predict", str(file), "--html", str(page))
    assert (again.returncode, again.stdout) == (0, first.stdout) and "<svg" in page.read_text(encoding="utf-8")
    empty = tmp_path / "run.json"
    empty.write_text("{}")
    for words in ((str(file), "--nodes", "24"), (str(file), "--max-error", "1"), (str(empty),), (str(tmp_path / "none.json"),)):
        done = run_here(ROOT, "predict", *words)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr


def test_the_api_returns_typed_values(runs: str) -> None:
    (at,) = collbench.predict(runs, 16).cases[0].predictions
    assert at.time_s == pytest.approx(ring(16), rel=0.01) and at.refusal is None
    with pytest.raises(collbench.UsageError):
        collbench.predict(runs, 1)


def test_a_refusal_of_all_predictions_is_one_line(tmp_path: Path) -> None:
    store(tmp_path / "runs/a", [make_row(size, nodes=2, ranks=2) for size in (8, 1 << 20)])
    done = run_here(tmp_path, "predict", "runs", "--nodes", "64")
    assert "2 of 2 predictions refused: measured at 2 nodes" in done.stdout and "operation" not in done.stdout
