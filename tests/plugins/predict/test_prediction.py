"""Predictions: known laws are found again, and what no model describes is refused."""

from math import ceil, log2
from pathlib import Path

import pytest

from collbench.errors import UsageError
from collbench.plugins.predict import prediction
from collbench.plugins.predict.prediction import PredictedCase, Prediction, ScalingTerm, predict
from collbench.plugins.predict.text import write_prediction
from collbench.results.row import Row
from tests.results.rows import make_row, make_times, store

SIZE = 64 << 20


def row(nodes: int, time_s: float, per_node: int = 1, **changes: object) -> Row:
    return make_row(**{"size_bytes": SIZE, "nodes": nodes, "ranks": nodes * per_node, "time_s": make_times(time_s), **changes})


def ring(nodes: int) -> float:
    return 2 * (nodes - 1) / nodes * SIZE / 1e9


def only(found: Prediction) -> PredictedCase:
    (case,) = found.cases
    return case


def test_rings_and_fabrics_that_slow_groups_are_found() -> None:
    noise = {2: 1.01, 4: 0.99, 8: 1.005, 16: 0.995}
    case = only(predict([row(nodes, ring(nodes) * factor) for nodes, factor in noise.items()], [32]))
    (at,) = case.predictions
    assert case.check is not None and abs(case.check.error) < 0.02 and case.check.nodes == 16
    assert at.limit is ScalingTerm.VOLUME and at.time_s == pytest.approx(ring(32), rel=0.02)
    assert at.low_s and at.high_s and at.low_s < ring(32) < at.high_s
    assert at.busbw_bytes_per_s == pytest.approx(1e9, rel=0.02)

    def law(nodes: int) -> float:
        return (nodes - 1) / nodes * (1 + 3 * max(0, nodes - 4) / (nodes - 1)) * SIZE / 1e9

    case = only(predict([row(nodes, law(nodes), operation="alltoall", redop=None) for nodes in (2, 4, 6, 8, 12, 16)], [32]))
    assert case.model is not None and (case.model.terms, case.model.group) == ((ScalingTerm.VOLUME, ScalingTerm.BEYOND), 4)
    assert case.predictions[0].time_s == pytest.approx(law(32), rel=0.01)


@pytest.mark.parametrize(("law", "term"), [
    (lambda n: 1e-5 * ceil(log2(n)), ScalingTerm.LOG), (lambda n: 1e-5 * (n - 1), ScalingTerm.LINEAR),
    (lambda n: 1e-4, ScalingTerm.CONSTANT),
])  # fmt: skip
def test_laws_of_latency_are_distinguished(law: object, term: ScalingTerm) -> None:
    rows = [row(nodes, law(nodes), size_bytes=8, operation="broadcast", redop=None) for nodes in (2, 4, 8, 12, 16)]  # type: ignore[operator]
    (at,) = only(predict(rows, [24])).predictions
    assert at.time_s == pytest.approx(law(24), rel=0.01) and at.limit is term  # type: ignore[operator]


def test_jumps_few_and_far_node_counts_are_refused_and_intervals_grow() -> None:
    case = only(predict([row(nodes, ring(nodes) * (3 if nodes == 16 else 1)) for nodes in (2, 4, 8, 16)], [32]))
    refusal = case.predictions[0].refusal
    assert isinstance(refusal, prediction.LargePredictionError) and refusal.error < -0.6 and refusal.smaller == (2, 4, 8)
    assert case.predictions[0].time_s is None
    rows = [row(nodes, ring(nodes)) for nodes in (2, 4, 8)]
    assert isinstance(only(predict(rows[:2], [8])).predictions[0].refusal, prediction.FewNodeCounts)
    near, far = only(predict(rows, [32, 33])).predictions
    assert near.time_s is not None and isinstance(far.refusal, prediction.TooManyNodes)
    rows = [row(nodes, ring(nodes) * (1.03 if nodes == 8 else 1)) for nodes in (2, 4, 8, 16)]
    widths = [each.high_s / each.low_s for each in only(predict(rows, [17, 32, 64])).predictions if each.high_s and each.low_s]
    assert len(widths) == 3 and widths[0] == pytest.approx(widths[1], rel=1e-12) and widths[1] < widths[2]


def test_unusable_rows_are_counted_and_ranks_per_node_are_separate() -> None:
    rows = [row(nodes, ring(nodes), per_node) for nodes in (2, 4, 8) for per_node in (1, 8)]
    others = [row(1, 1.0, 8), row(2, 1.0, flags=("drift",)), make_row(nodes=None), row(3, 1.0, ranks=8)]
    found = predict([*rows, *others], [16])
    assert [case.ranks_per_node for case in found.cases] == [1, 8]
    assert found.unused == {"one node": 1, "drift": 1, "nodes unknown": 1, "uneven ranks": 1}


def test_a_stored_prediction_is_read_again_and_another_file_is_rejected(tmp_path: Path) -> None:
    found = predict([row(nodes, ring(nodes)) for nodes in (2, 4, 8)], [16, 64])
    write_prediction(found, tmp_path / "prediction.json")
    assert prediction.read_prediction(tmp_path / "prediction.json") == found
    (tmp_path / "other.json").write_text('{"schema": 1}')
    for name in ("other.json", "none.json"):
        with pytest.raises(UsageError):
            prediction.read_prediction(tmp_path / name)


def test_runs_below_a_folder_are_read(tmp_path: Path) -> None:
    for nodes in (2, 4):
        store(tmp_path / f"n{nodes}", [row(nodes, ring(nodes))])
    assert sorted(each.nodes or 0 for each in prediction.rows_below([tmp_path])) == [2, 4]
