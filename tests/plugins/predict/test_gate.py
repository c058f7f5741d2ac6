"""Runs held against a prediction of smaller node counts: slower, within, faster, and what cannot be decided."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.errors import UsageError
from collbench.plugins.predict.held import HeldCase, PredictionDoubt, PredictionOutcome, hold_against
from collbench.plugins.predict.prediction import FewNodeCounts, Prediction, predict
from collbench.plugins.predict.text import write_prediction
from collbench.results.row import Row
from tests.cli.command import run_here
from tests.plugins.predict.test_prediction import ring, row
from tests.results.rows import make_times, store

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


def test_launches_are_one_case_with_the_range_of_their_intervals() -> None:
    found = held(measured(1.9), measured(2.0), measured(2.1))
    assert found.time_s == pytest.approx(2 * ring(16)) and found.low_s == pytest.approx(1.9 * 0.999 * ring(16))
    assert found.outcome is PredictionOutcome.SLOWER
    assert held(measured(1.0), measured(3.0)).doubt == PredictionDoubt("wide")


def test_what_cannot_be_decided_has_its_reason_and_does_not_pass() -> None:
    assert held(measured(2.0, flags=("drift",))).doubt == PredictionDoubt("flag", "drift")
    assert held(measured(2.0, time_s=replace(make_times(2 * ring(16)), ci_low=None, ci_high=None))).doubt == PredictionDoubt("no interval")
    other = row(16, 1.0, operation="allgather")
    missing = hold_against([other], prediction())
    assert [each.doubt for each in missing.cases] == [PredictionDoubt("missing")] and missing.unpredicted == 1 and missing.exit_code == 3
    refused = hold_against([measured(5.0)], prediction(*KNOWN[:2]))
    assert [type(each.doubt) for each in refused.cases] == [FewNodeCounts] and refused.exit_code == 3


def test_wrong_data_and_other_node_counts() -> None:
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
