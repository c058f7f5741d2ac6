"""Output of `collbench predict`: a line per case and node count, the errors of the models, and prediction.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
    names = [operation_name(str(case.case["operation"])), format_size(case.size_bytes) if case.size_bytes else "", case.case["backend"]]
    return printable(" ".join(str(each) for each in [*names, case.case["algorithm"], case.case["protocol"]] if each))


def _us(seconds: float | None) -> str:
    return NOTHING if seconds is None else format_time(seconds)


def _model(record: PredictedRecord) -> str:
    return record.case.model.render() if record.case.model else ""


_COLUMNS: tuple[Column[PredictedRecord], ...] = (
    Column("operation", "operation", lambda each: printable(operation_name(str(each.case.case["operation"]))),
           lambda each: each.case.case["operation"]),
    Column("backend", "backend", lambda each: printable(str(each.case.case["backend"])), lambda each: each.case.case["backend"]),
    Column("dtype", "", lambda each: "", lambda each: each.case.case["dtype"]),
    Column("algorithm", "", lambda each: "", lambda each: each.case.case["algorithm"]),
    Column("protocol", "", lambda each: "", lambda each: each.case.case["protocol"]),
    Column("size_bytes", "size", lambda each: format_size(each.case.size_bytes) if each.case.size_bytes else NOTHING,
           lambda each: each.case.size_bytes),
    Column("nodes", "nodes", lambda each: str(each.time.nodes), lambda each: each.time.nodes, right=True),
    Column("ranks", "ranks", lambda each: str(each.time.ranks), lambda each: each.time.ranks, right=True, drop=3),
    Column("time_s", "time µs", lambda each: _us(each.time.time_s), lambda each: each.time.time_s, right=True, drop=1),
    Column("low_s", "interval µs", lambda each: f"{_us(each.time.low_s)}–{_us(each.time.high_s)}", lambda each: each.time.low_s, right=True,
           drop=1),
    Column("high_s", "", lambda each: "", lambda each: each.time.high_s),
    Column("busbw_bytes_per_s", "busbw GB/s", lambda each: NOTHING if each.time.busbw_bytes_per_s is None else
           format_rate(each.time.busbw_bytes_per_s), lambda each: each.time.busbw_bytes_per_s, right=True, drop=2),
    Column("limit", "limit", lambda each: f"{each.time.limit.value} {100 * (each.time.share or 0):.0f} %" if each.time.limit else NOTHING,
           lambda each: each.time.limit and each.time.limit.value, drop=5),
    Column("model", "model", _model, drop=4),
    Column("check_error", "error", lambda each: format_error(each.case.check.error) if each.case.check else NOTHING,
           lambda each: each.case.check and each.case.check.error, right=True, drop=1),
    Column("check_nodes", "", lambda each: "", lambda each: each.case.check and each.case.check.nodes),
    Column("refusal", "", lambda each: "", lambda each: each.refusal or None),
)  # fmt: skip
_HEAD = "error: of the largest measured node count, predicted from the smaller ones; the interval includes it, and grows with the distance"


def _foot(found: Prediction) -> Iterator[str]:
    """Yield the checks of what was predicted, what was refused and what was not used."""
    predicted = [case for case in found.cases if any(each.time_s is not None for each in case.predictions)]
    named = [f"{case_name(case)}: {sentence}" for case in predicted if (sentence := check_sentence(case))]
    yield from named[:_MOST_CHECKS]
    if len(named) > _MOST_CHECKS:
        yield f"and {len(named) - _MOST_CHECKS} more: see --format csv"
    every = len(found.cases) * len(found.nodes)
    if found.predicted < every:
        yield f"{every - found.predicted} of {plural(every, 'prediction')} refused"
    if found.unused:
        yield f"rows not used: {first_of((f'{count} {printable(why)}' for why, count in found.unused.items()), 8)}"


def prediction_frame(found: Prediction) -> Frame[PredictedRecord]:
    """Return the table of all cases and node counts."""
    records = [PredictedRecord(case, each) for case in found.cases for each in case.predictions]
    reasons = {each.refusal or None for each in records}
    foot = list(_foot(found))
    if len(records) > 1 and len(reasons) == 1 and None not in reasons:  # one line instead of one for each case
        foot[0] = f"{foot[0]}: {reasons.pop()}"
        return Frame([], [], foot=foot)
    style = {True: "na", False: ""}
    shown = [each for each in _COLUMNS if each.title]
    return Frame(
        shown, records, head=[_HEAD] if found.predicted else [], foot=foot,
        style=lambda each: style[each.time.time_s is None], instead=lambda each: each.refusal or None,
    )  # fmt: skip


def prediction_lines(found: Prediction, format: str, width: int | None = None) -> Iterator[Line]:
    """Yield the prediction in `format`: a table, CSV, a JSON object per case and node count ("jsonl"), or prediction.json ("json")."""
    frame = prediction_frame(found)
    if format == "table":
        yield from table_lines(frame, width)
        return
    whole = Frame(_COLUMNS, frame.records)
    yield from csv_lines(whole) if format == "csv" else json_lines(whole)


def write_prediction(found: Prediction, path: Path) -> None:
    """Write prediction.json in one step. Raises UsageError if that fails."""
    write_whole(path, json.dumps(as_json(found), indent=1) + "\n", "--out")


# Runs held against a prediction (`collbench gate --against-prediction`).

_HELD: tuple[Column[HeldCase], ...] = (
    Column("", "case", lambda each: case_name(each.case)),
    Column("", "nodes", lambda each: str(each.predicted.nodes), right=True),
    Column("", "time µs", lambda each: _us(each.time_s), right=True),
    Column("", "95 % CI µs", lambda each: _interval(each.low_s, each.high_s), right=True, drop=2),
    Column("", "predicted µs", lambda each: _us(each.predicted.time_s), right=True, drop=1),
    Column("", "interval µs", lambda each: _interval(each.predicted.low_s, each.predicted.high_s), right=True),
    Column("", "outcome", lambda each: f"{each.outcome.value}{f' ({each.doubt.render()})' if each.doubt else ''}", wrap=True),
)
_STYLES = {"wrong data": "wrong", "slower": "wrong", "inconclusive": "doubtful"}
_MEANING = "slower: the whole confidence interval is above the prediction's interval; within and faster pass"


def held_frame(verdict: PredictionVerdict) -> Frame[HeldCase]:
    """Return the table of the cases that were held against a prediction, the worst first."""
    counts = ", ".join(f"{count} {outcome.value}" for outcome, count in verdict.counts().items() if count)
    more = [f"{plural(verdict.unpredicted, 'measured case')} without a prediction"] if verdict.unpredicted else []
    return Frame(
        _HELD, verdict.cases, head=[f"{verdict.result}: {plural(len(verdict.cases), 'case')} against the prediction: {counts}"],
        foot=[_MEANING, *more], style=lambda each: _STYLES.get(each.outcome.value, ""), names_hidden=True,
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


def _interval(low_s: float | None, high_s: float | None) -> str:
    return NOTHING if low_s is None or high_s is None else f"{_us(low_s)}–{_us(high_s)}"
