"""Output of `collbench predict`: a line per case and node count, the errors of the models, and prediction.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from collbench.plugins.predict.held import HeldCase, PredictionVerdict
from collbench.plugins.predict.prediction import (
    PredictedCase,
    PredictedTime,
    Prediction,
    Refusal,
    check_sentence,
    format_error,
)
from collbench.reason import as_json
from collbench.report.cases import NOTHING
from collbench.report.frame import Column, Frame, Line, csv_lines, json_lines, printable, table_lines
from collbench.report.plan import operation_name
from collbench.report.writers import write_whole
from collbench.units import first_of, format_rate, format_size, format_time, plural

FORMATS = ("table", "csv", "json", "jsonl")
_MOST_CHECKS = 8


class PredictedRecord(NamedTuple):
    """A case at one node count."""

    case: PredictedCase
    time: PredictedTime

    @property
    def refusal(self) -> str:
        """Return why the prediction is refused; "" if it is not."""
        return self.time.refusal.render() if isinstance(self.time.refusal, Refusal) else ""


def case_name(case: PredictedCase) -> str:
    """Return "allreduce 64 MiB mpi", with the forced algorithm and protocol if there are any."""
    size = format_size(case.size_bytes) if case.size_bytes else ""
    names = (operation_name(str(case.case["operation"])), size, case.case["backend"], case.case["algorithm"], case.case["protocol"])
    return printable(" ".join(str(name) for name in names if name))


def _us(seconds: float | None) -> str:
    return NOTHING if seconds is None else format_time(seconds)


def _interval(low_s: float | None, high_s: float | None) -> str:
    return NOTHING if low_s is None or high_s is None else f"{format_time(low_s)}–{format_time(high_s)}"


_COLUMNS: tuple[Column[PredictedRecord], ...] = (
    Column("operation", "operation", lambda record: printable(operation_name(str(record.case.case["operation"]))),
           lambda record: record.case.case["operation"]),
    Column("backend", "backend", lambda record: printable(str(record.case.case["backend"])), lambda record: record.case.case["backend"]),
    Column("dtype", "", lambda record: "", lambda record: record.case.case["dtype"]),
    Column("algorithm", "", lambda record: "", lambda record: record.case.case["algorithm"]),
    Column("protocol", "", lambda record: "", lambda record: record.case.case["protocol"]),
    Column("size_bytes", "size", lambda record: format_size(record.case.size_bytes) if record.case.size_bytes else NOTHING,
           lambda record: record.case.size_bytes),
    Column("nodes", "nodes", lambda record: str(record.time.nodes), lambda record: record.time.nodes, right=True),
    Column("ranks", "ranks", lambda record: str(record.time.ranks), lambda record: record.time.ranks, right=True, drop=3),
    Column("time_s", "time µs", lambda record: _us(record.time.time_s), lambda record: record.time.time_s, right=True, drop=1),
    Column("low_s", "interval µs", lambda record: f"{_us(record.time.low_s)}–{_us(record.time.high_s)}", lambda record: record.time.low_s,
           right=True, drop=1),
    Column("high_s", "", lambda record: "", lambda record: record.time.high_s),
    Column("busbw_bytes_per_s", "busbw GB/s", lambda record: NOTHING if record.time.busbw_bytes_per_s is None else
           format_rate(record.time.busbw_bytes_per_s), lambda record: record.time.busbw_bytes_per_s, right=True, drop=2),
    Column("limit", "limit", lambda record: f"{record.time.limit.value} {100 * (record.time.share or 0):.0f} %" if record.time.limit
           else NOTHING, lambda record: record.time.limit and record.time.limit.value, drop=5),
    Column("model", "model", lambda record: record.case.model.render() if record.case.model else "", drop=4),
    Column("check_error", "error", lambda record: format_error(record.case.check.error) if record.case.check else NOTHING,
           lambda record: record.case.check and record.case.check.error, right=True, drop=1),
    Column("check_nodes", "", lambda record: "", lambda record: record.case.check and record.case.check.nodes),
    Column("refusal", "", lambda record: "", lambda record: record.refusal or None),
)  # fmt: skip
_HEAD = "error: of the largest measured node count, predicted from the smaller ones; the interval includes it, and grows with the distance"


def named_checks(cases: Iterable[PredictedCase]) -> list[str]:
    """Return "allreduce 64 MiB mpi: the prediction for 16 nodes from 2, 4 and 8 differs …" of each case with a check."""
    return [f"{case_name(case)}: {check_sentence(case)}" for case in cases if case.check]


def _foot(prediction: Prediction) -> Iterator[str]:
    """Yield the checks of what was predicted, what was refused and what was not used."""
    checks = named_checks(case for case in prediction.cases if any(time.time_s is not None for time in case.predictions))
    yield from checks[:_MOST_CHECKS]
    if len(checks) > _MOST_CHECKS:
        yield f"and {len(checks) - _MOST_CHECKS} more: see --format csv"
    total = len(prediction.cases) * len(prediction.nodes)
    if prediction.predicted < total:
        yield f"{total - prediction.predicted} of {plural(total, 'prediction')} refused"
    if prediction.unused:
        yield f"rows not used: {first_of((f'{count} {printable(why)}' for why, count in prediction.unused.items()), 8)}"


def prediction_frame(prediction: Prediction) -> Frame[PredictedRecord]:
    """Return the table of all cases and node counts."""
    records = [PredictedRecord(case, time) for case in prediction.cases for time in case.predictions]
    reasons = {record.refusal or None for record in records}
    foot = list(_foot(prediction))
    if len(records) > 1 and len(reasons) == 1 and None not in reasons:  # one line instead of one for each case
        foot[0] = f"{foot[0]}: {reasons.pop()}"
        return Frame([], [], foot=foot)
    titled = [column for column in _COLUMNS if column.title]
    return Frame(
        titled, records, head=[_HEAD] if prediction.predicted else [], foot=foot,
        style=lambda record: "na" if record.time.time_s is None else "", instead=lambda record: record.refusal or None,
    )  # fmt: skip


def prediction_lines(prediction: Prediction, format: str, width: int | None = None) -> Iterator[Line]:
    """Yield the prediction in `format`: a table, CSV, a JSON object per case and node count ("jsonl"), or prediction.json ("json")."""
    frame = prediction_frame(prediction)
    if format == "table":
        yield from table_lines(frame, width)
        return
    whole = Frame(_COLUMNS, frame.records)
    yield from csv_lines(whole) if format == "csv" else json_lines(whole)


def write_prediction(prediction: Prediction, path: Path) -> None:
    """Write prediction.json in one step. Raises UsageError if that fails."""
    write_whole(path, json.dumps(as_json(prediction), indent=1) + "\n", "--out")


# Runs held against a prediction (`collbench gate --against-prediction`).

_HELD: tuple[Column[HeldCase], ...] = (
    Column("", "case", lambda held: case_name(held.case)),
    Column("", "nodes", lambda held: str(held.predicted.nodes), right=True),
    Column("", "time µs", lambda held: _us(held.time_s), right=True),
    Column("", "95 % CI µs", lambda held: _interval(held.low_s, held.high_s), right=True, drop=2),
    Column("", "predicted µs", lambda held: _us(held.predicted.time_s), right=True, drop=1),
    Column("", "interval µs", lambda held: _interval(held.predicted.low_s, held.predicted.high_s), right=True),
    Column("", "outcome", lambda held: f"{held.outcome.value}{f' ({held.doubt.render()})' if held.doubt else ''}", wrap=True),
)
_STYLES = {"wrong data": "wrong", "slower": "wrong", "inconclusive": "doubtful"}
_MEANING = "slower: the whole confidence interval is above the prediction's interval; within and faster pass"


def held_frame(verdict: PredictionVerdict) -> Frame[HeldCase]:
    """Return the table of the cases that were held against a prediction, the worst first."""
    counts = ", ".join(f"{count} {outcome.value}" for outcome, count in verdict.counts().items() if count)
    foot = [_MEANING]
    if verdict.unpredicted:
        foot.append(f"{plural(verdict.unpredicted, 'measured case')} without a prediction")
    return Frame(
        _HELD, verdict.cases, head=[f"{verdict.result}: {plural(len(verdict.cases), 'case')} against the prediction: {counts}"],
        foot=foot, style=lambda held: _STYLES.get(held.outcome.value, ""), names_hidden=True,
    )  # fmt: skip


def held_lines(verdict: PredictionVerdict, format: str, width: int | None = None) -> Iterator[Line]:
    """Yield the verdict against a prediction as a table, or as one JSON object ("json")."""
    if format == "json":
        yield Line(json.dumps(verdict.as_json()))
    else:
        yield from table_lines(held_frame(verdict), width)


def write_held(verdict: PredictionVerdict, path: Path) -> None:
    """Write the verdict as JSON in one step. Raises UsageError if that fails."""
    write_whole(path, json.dumps(verdict.as_json(), indent=1) + "\n", "--out")
