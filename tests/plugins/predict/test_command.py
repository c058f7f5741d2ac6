"""collbench predict: formats, page, exit codes, the API, and bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import collbench
from collbench.errors import UsageError
from collbench.plugins.predict.held import HeldCase, PredictionDoubt, PredictionOutcome, hold_against
from collbench.plugins.predict.prediction import FewNodeCounts, Prediction, predict
from collbench.plugins.predict.text import write_prediction
from collbench.results.row import Row
from tests.api.test_html import check_fragment
from tests.cli.command import ROOT, run_here
from tests.plugins.predict.test_prediction import ring, row
from tests.results.rows import make_row, make_times, store


@pytest.fixture
def runs(tmp_path: Path) -> str:
    for nodes in (2, 4, 8):
        store(tmp_path / f"runs/n{nodes}", [row(nodes, ring(nodes))])
    return str(tmp_path / "runs")


def test_all_refused_has_exit_code_3_and_bad_input_2(runs: str, tmp_path: Path) -> None:
    assert run_here(ROOT, "predict", runs, "--nodes", "64").returncode == 3
    for words in (("--nodes", "1"), ("--nodes", "x"), (), ("--nodes", "16", "--operation", "alltoall"), ("--nodes", "16", "--since", "1d")):
        done = run_here(ROOT, "predict", runs, *words)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert run_here(ROOT, "predict", str(tmp_path / "none"), "--nodes", "16").returncode == 2


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


def test_the_api_returns_typed_values_and_a_notebook_shows_the_cases(runs: str, tmp_path: Path) -> None:
    (at,) = collbench.predict(runs, 16).cases[0].predictions
    assert at.time_s == pytest.approx(ring(16), rel=0.01) and at.refusal is None
    with pytest.raises(collbench.UsageError):
        collbench.predict(runs, 1)
    store(tmp_path / "second" / "runs/a", [make_row(size, nodes=2, ranks=2) for size in (8, 1 << 20)])
    done = run_here(tmp_path / "second", "predict", "runs", "--nodes", "64")
    assert "2 of 2 predictions refused: measured at 2 nodes" in done.stdout and "operation" not in done.stdout
    counts = (2, 4, 8)
    paths = [store(tmp_path / "third" / str(nodes), [make_row(1 << 20, nodes=nodes, ranks=nodes)]) for nodes in counts]
    found = collbench.predict(paths, nodes=16)
    texts = check_fragment(found._repr_html_())  # type: ignore[attr-defined]
    assert "1 MiB" in texts and repr(found) == f"<Prediction: {found.predicted} of 1 time on 16 nodes>"


KNOWN = [row(nodes, ring(nodes)) for nodes in (2, 4, 8)]


def measured(factor: float, **changes: Any) -> Row:
    """A row at 16 nodes that takes so many times as long as predicted; its interval is ±0.1 %."""
    time_s = ring(16) * factor
    known = replace(make_times(time_s), ci_low=time_s * 0.999, ci_high=time_s * 1.001)
    return replace(row(16, time_s), **{"time_s": known, **changes})


def prediction(*rows: Row, nodes: tuple[int, ...] = (16,)) -> Prediction:
    return predict(rows or KNOWN, nodes)


def held(*rows: Row) -> HeldCase:
    (case,) = hold_against(rows, prediction()).cases
    return case


@pytest.mark.parametrize(("factor", "outcome", "code"), [
    (2.0, PredictionOutcome.SLOWER, 1), (1.0, PredictionOutcome.WITHIN, 0), (0.3, PredictionOutcome.FASTER, 0),
])  # fmt: skip
def test_a_time_above_the_interval_is_a_regression(factor: float, outcome: PredictionOutcome, code: int) -> None:
    found = hold_against([measured(factor)], prediction())
    assert [each.outcome for each in found.cases] == [outcome] and found.exit_code == code


def test_launches_are_one_case_and_doubts_have_their_reason() -> None:
    found = held(measured(1.9), measured(2.0), measured(2.1))
    assert found.time_s == pytest.approx(2 * ring(16)) and found.low_s == pytest.approx(1.9 * 0.999 * ring(16))
    assert found.outcome is PredictionOutcome.SLOWER
    assert held(measured(1.0), measured(3.0)).doubt == PredictionDoubt("wide")
    assert held(measured(2.0, flags=("drift",))).doubt == PredictionDoubt("flag", "drift")
    assert held(measured(2.0, time_s=replace(make_times(2 * ring(16)), ci_low=None, ci_high=None))).doubt == PredictionDoubt("no interval")
    other = row(16, 1.0, operation="allgather")
    missing = hold_against([other], prediction())
    assert [each.doubt for each in missing.cases] == [PredictionDoubt("missing")] and missing.unpredicted == 1 and missing.exit_code == 3
    refused = hold_against([measured(5.0)], prediction(*KNOWN[:2]))
    assert [type(each.doubt) for each in refused.cases] == [FewNodeCounts] and refused.exit_code == 3
    found = hold_against([measured(1.0, wrong=3)], prediction())
    assert found.cases[0].outcome is PredictionOutcome.WRONG_DATA and found.exit_code == 4
    with pytest.raises(UsageError, match="8"):
        hold_against([KNOWN[-1]], prediction())


def test_the_command_prints_and_stores_the_verdict(tmp_path: Path) -> None:
    write_prediction(prediction(), tmp_path / "prediction.json")
    store(tmp_path / "run", [measured(2.0)])
    line = ("gate", "--against-prediction", "prediction.json", "run")
    done = run_here(tmp_path, *line, "--out", "verdict.json")
    assert done.returncode == 1 and done.stdout.startswith("regression: 1 case")
    printed = json.loads(run_here(tmp_path, *line, "--format", "json").stdout)
    assert printed == json.loads((tmp_path / "verdict.json").read_text())
    assert (printed["result"], printed["cases"][0]["outcome"], printed["cases"][0]["nodes"]) == ("regression", "slower", 16)


@pytest.mark.parametrize("typed", ["--paired", "--baseline x", "--html x.html", "--format github"])
def test_what_does_not_apply_is_one_error(typed: str, tmp_path: Path) -> None:
    done = run_here(tmp_path, "gate", "--against-prediction", "prediction.json", "run", *typed.split())
    assert done.returncode == 2 and typed.split(maxsplit=1)[0] in done.stderr + done.stdout and "Traceback" not in done.stderr
