"""Runs as OpenMetrics, for Prometheus: every row, how many launches there were, and what stands out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from collbench.analysis.concerns import SEVERITIES
from collbench.analysis.launches import rows_by_launch
from collbench.report.columns import doubtful, placing
from collbench.report.gauges import Sample, exposed
from collbench.report.headlines import short
from collbench.report.plan import SERIES, in_print_order
from collbench.results.reader import Run
from collbench.results.row import Row

if TYPE_CHECKING:
    from collbench.report.html.material import Material

_LONGEST = 200
_HELP = {
    "time": ("seconds", "median time per message of the slowest rank; of imported rows the other tool's own statistic"),
    "time_interval_low": ("seconds", "lower end of the 95 % interval of the median"),
    "time_interval_high": ("seconds", "upper end of the 95 % interval of the median"),
    "time_p99": ("seconds", "99th percentile of the time per message"),
    "algbw": ("bytes_per_second", "message size by time"),
    "busbw": ("bytes_per_second", "algbw times the bus factor of the operation"),
    "ceiling": ("bytes_per_second", "what the busbw is set against; limited_by names the link, model and kind what figure it is"),
    "hard_bound": ("bytes_per_second", "the busbw that no algorithm passes"),
    "of_ceiling": ("ratio", "busbw by ceiling; no sample where no percentage is honest, or elements are wrong"),
    "of_hard_bound": ("ratio", "busbw by hard_bound, where of_ceiling has a sample and the operation has a hard bound"),
    "wrong_elements": ("", "elements that differ from what had to arrive; no sample where nothing was checked"),
    "samples": ("", "iterations, or batches of them, behind the median"),
    "launches": ("", "launches behind the figures"),
    "measured": ("", "1 for a cell with a time, 0 for one that is not available"),
    "doubtful": ("", "1 where a flag says that the time or its interval is not to be taken at its word"),
    "concerns": ("", "findings, flags and what is missing, by severity; of many of a kind at most 21 are counted"),
    "run_launches": ("", "launches of the run, one for each time that it was resumed"),
    "run_complete": ("", "1 if every launch came to its own end with exit code 0"),
    "run_finished_timestamp": ("seconds", "when the last launch ended, in seconds since 1970"),
}


def openmetrics(material: Material) -> str:
    """The whole file. Runs are told apart by the label `run` where there are several. Raises UsageError without the extra `report`."""
    return exposed(_HELP, _samples(material))


def _samples(material: Material) -> Iterator[Sample]:
    several = len(material.tables) + len(material.pairs) > 1
    for table in material.tables:
        named = {"run": short(table.name, _LONGEST)} if several else {}
        yield from _of_runs(table.runs, named)
        for row in in_print_order(table.rows):
            yield from _of_row(row, named)
    for run, _ in material.pairs:
        yield from _of_runs([run], {"run": short(run.path.resolve().name, _LONGEST)} if several else {})
    for severity in SEVERITIES:
        number = sum(each.severity == severity for each in material.concerns)
        yield Sample("concerns", {"severity": severity.replace(" ", "_")}, number)


def _of_runs(runs: Sequence[Run], labels: Mapping[str, str]) -> Iterator[Sample]:
    yield Sample("run_launches", labels, sum(max(1, len(rows_by_launch(run))) for run in runs))
    yield Sample("run_complete", labels, all(run.finished and run.info.get("exit_code") in (0, None) for run in runs))
    ended = [seconds for run in runs if (seconds := _seconds(run.info.get("finished_utc"))) is not None]
    yield Sample("run_finished_timestamp", labels, max(ended, default=None))


def _seconds(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _of_row(row: Row, labels: Mapping[str, str]) -> Iterator[Sample]:
    where = {**labels, **_labels(row)}
    times = None if row.na is not None else row.time_s
    yield Sample("measured", where, times is not None)
    if times is None:
        return
    for name, value in (("time", times.p50), ("time_interval_low", times.ci_low), ("time_interval_high", times.ci_high)):
        yield Sample(name, where, value)
    yield from (Sample("time_p99", where, times.p99), Sample("samples", where, row.n), Sample("launches", where, row.launches))
    yield Sample("doubtful", where, bool(doubtful(row)))
    yield Sample("wrong_elements", where, row.wrong)
    yield from _rates(row, where)


def _rates(row: Row, where: Mapping[str, str]) -> Iterator[Sample]:
    yield Sample("algbw", where, row.algbw_bytes_per_s)
    yield Sample("busbw", where, row.busbw_bytes_per_s if row.ranks > 1 else None)
    honest = row.percent_of_ceiling is not None and row.ranks > 1 and not row.wrong
    for name, ceiling in (("ceiling", row.ceiling), ("hard_bound", row.hard_bound)):
        if ceiling is not None:
            told = {"limited_by": ceiling.limited_by, "model": ceiling.model, "kind": ceiling.kind}
            yield Sample(name, {**where, **{label: short(text, _LONGEST) for label, text in told.items()}}, ceiling.bytes_per_s)
    yield Sample("of_ceiling", where, (row.percent_of_ceiling or 0) / 100 if honest else None)
    if row.percent_of_hard_bound is not None and honest:
        yield Sample("of_hard_bound", where, row.percent_of_hard_bound / 100)


def _labels(row: Row) -> dict[str, str]:
    """What tells cells apart; what does not apply has no label, which Prometheus takes for an empty one."""
    found = {name: getattr(row, name) for name in SERIES if name != "in_place"}
    named = {name: short(str(value), _LONGEST) for name, value in found.items() if value is not None}
    return {**named, "placing": placing(row), "size_bytes": str(row.size_bytes)} if row.size_bytes else {**named, "size_bytes": "0"}
