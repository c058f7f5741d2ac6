"""`collbench store serve-metrics`: the newest figures of a store for Prometheus, over HTTP, read-only.

A case of a node has its newest row, with the names and labels of `collbench report --openmetrics` and a label `node`. Only runs of the last
days count, and the number of rows is limited, so that neither old nodes nor many cases fill the memory of Prometheus.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any, TextIO
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace
from sqlalchemy import Select, Subquery, func, literal, literal_column, select

from collbench.addresses import is_numeric
from collbench.errors import UsageError
from collbench.gating.verdict import from_json
from collbench.plugins.serve.server import LOCALHOST, HttpReply, ReadOnlyServer, serve_until_interrupted
from collbench.plugins.store.database import Database, open_store
from collbench.plugins.store.reading import load_rows
from collbench.plugins.store.schema import (
    DOCUMENTS,
    NODE_HISTORY,
    NODES,
    RESULTS,
    RUN_NODES,
    RUNS,
    SUSPECT_HISTORY,
    TELEMETRY_HISTORY,
    VERDICTS,
)
from collbench.report.headlines import short
from collbench.report.runs import ROW_METRICS, row_samples
from collbench.report.verdict_formats import GATE_METRICS, gate_samples
from collbench.report.writers import Metric, Sample, exposed
from collbench.untrusted import parse_json

DAYS = 7.0
MOST_ROWS = 5000
_PATH = "/metrics"
_LONGEST = 200
_MOST_SUSPECTS = 200
_MOST_BASELINES = 20
_MOST_GPUS = 10_000
_OPENMETRICS = "application/openmetrics-text"
_KIND = f"{_OPENMETRICS}; version=1.0.0; charset=utf-8"
_OLDER_KIND = "text/plain; version=0.0.4; charset=utf-8"

STORE_METRICS = {
    "measured_timestamp": Metric("seconds", "when the run of the row began, in seconds since 1970"),
    "node_last_run_timestamp": Metric("seconds", "when the newest run of a node began, in seconds since 1970"),
    "node_runs": Metric("", "runs of a node in the time that the endpoint covers"),
    "suspect": Metric("ratio", "rate of a suspect of a hunt or a pairs run, as a part of the median"),
    "state_probe": Metric("seconds", "state probe after the newest case of a node: fixed work"),
    "stolen": Metric("ratio", "share of the CPU time that a hypervisor took during the newest case of a node"),
    "preemptions": Metric("", "how often a rank was preempted during the newest case of a node"),
    "gpu_sm_clock": Metric("hertz", "median SM clock during the newest case of a GPU"),
    "gpu_power": Metric("watts", "highest power during the newest case of a GPU"),
    "gpu_temperature": Metric("celsius", "highest temperature during the newest case of a GPU"),
    "gpu_throttled": Metric("ratio", "share of the samples of the newest case of a GPU at which it was throttled"),
    "store_runs": Metric("", "runs in the store"),
    "store_rows_left_out": Metric("", "rows beyond the limit of the endpoint: use a higher --limit or fewer --days"),
    "store_read": Metric("seconds", "time to read the store for this scrape"),
}
METRICS = ROW_METRICS | GATE_METRICS | STORE_METRICS
# Metrics of the newest case of a node or of a GPU: the SQL of their values in the views `node_history` and `telemetry_history`.
_CASE = NODE_HISTORY.c
_GPU = TELEMETRY_HISTORY.c
VALUES_OF_CASES = {"state_probe": _CASE.probe_after_s.name, "stolen": _CASE.stolen.name, "preemptions": _CASE.preempted.name}
VALUES_OF_GPUS = {
    "gpu_sm_clock": f"1e6 * {_GPU.sm_mhz.name}",
    "gpu_power": _GPU.power_w.name,
    "gpu_temperature": _GPU.temperature_c.name,
    "gpu_throttled": _GPU.throttled.name,
}


class MetricsRange(msgspec.Struct, frozen=True):
    """What the endpoint covers: runs of the last `days`, and at most `most_rows` rows (a case on a node), the newest ones."""

    days: float = DAYS
    most_rows: int = MOST_ROWS


def metrics_text(database: Database, covers: MetricsRange, now_s: float) -> str:
    """Return the metrics of a store as OpenMetrics, which Prometheus' older text format accepts too. now_s: seconds since 1970.

    Raises UsageError if the store cannot be read.
    """
    return exposed(METRICS, _samples(database, covers, now_s))


def _samples(database: Database, covers: MetricsRange, now_s: float) -> Iterator[Sample]:
    start_s = time.monotonic()
    since = now_s - covers.days * 86400
    with database.transaction():  # one state of the store
        yield from _rows(database, since, covers.most_rows)
        yield from _nodes(database, since)
        yield from _suspects(database, since)
        yield from _conditions(database, since)
        yield from _verdicts(database)
        yield Sample("store_runs", {}, database.rows(select(func.count()).select_from(RUNS))[0][0])
    yield Sample("store_read", {}, time.monotonic() - start_s)


_NODE_RUNS = RUNS.join(RUN_NODES, RUN_NODES.c.run_id == RUNS.c.run_id).join(NODES, NODES.c.node_id == RUN_NODES.c.node_id)
_NODE_RESULTS = _NODE_RUNS.join(RESULTS, RESULTS.c.run_id == RUNS.c.run_id)


def _newest(query: Select[Any], by: Sequence[str], newest: str) -> Subquery:
    """Return the newest record of a query for each value of the columns `by`: the largest value of `newest`."""
    columns = query.subquery().c
    order = (columns[newest].desc(), columns.run_id.desc(), columns.number.desc())
    place = func.row_number().over(partition_by=[columns[name] for name in by], order_by=order)
    ranked = select(*columns, place.label("place")).subquery()
    return select(ranked).where(ranked.c.place == 1).subquery()


def _rows(database: Database, since: float, most: int) -> Iterator[Sample]:
    columns = (NODES.c.name.label("node"), RESULTS.c.case_id, RESULTS.c.run_id, RESULTS.c.number, RUNS.c.started_s)
    results = select(*columns).select_from(_NODE_RESULTS).where(RUNS.c.started_s >= since)
    newest = _newest(results, ("case_id", "node"), "started_s").c
    number_of_rows = func.count().over().label("rows")
    query = select(newest.node, newest.run_id, newest.number, newest.started_s, number_of_rows)
    records = database.rows(query.order_by(newest.started_s.desc(), newest.node, newest.case_id).limit(most))
    yield Sample("store_rows_left_out", {}, records[0].rows - len(records) if records else 0)
    rows = load_rows(database, {record.run_id for record in records})
    for record in records:
        samples = list(row_samples(rows[record.run_id][record.number], _labels(node=record.node)))
        yield from samples
        yield replace(samples[0], name="measured_timestamp", value=record.started_s)


def _nodes(database: Database, since: float) -> Iterator[Sample]:
    query = select(NODES.c.name, func.max(RUNS.c.started_s), func.count()).select_from(_NODE_RUNS)
    for name, last_s, runs in database.rows(query.where(RUNS.c.started_s >= since).group_by(NODES.c.name)):
        labels = _labels(node=name)
        yield Sample("node_last_run_timestamp", labels, last_s)
        yield Sample("node_runs", labels, runs)


def _suspects(database: Database, since: float) -> Iterator[Sample]:
    suspects = SUSPECT_HISTORY.c
    query = select(suspects.node, suspects.kind, suspects.state, suspects.ratio)
    query = query.where(suspects.started_s >= since, suspects.ratio.is_not(None)).order_by(suspects.started_s.desc()).limit(_MOST_SUSPECTS)
    for node, kind, state, ratio in reversed(database.rows(query)):  # of equal labels the newest one remains
        yield Sample("suspect", _labels(node=node, kind=kind, state=state), ratio)


def _conditions(database: Database, since: float) -> Iterator[Sample]:
    """Yield the metrics of the newest case of each node and of each GPU."""
    place = (RESULTS.c.run_id, RESULTS.c.number, RESULTS.c.ended_s)
    values = [RESULTS.c[value].label(name) for name, value in VALUES_OF_CASES.items()]
    node_cases = select(NODES.c.name.label("node"), *place, *values).select_from(_NODE_RESULTS)
    node_cases = node_cases.where(RUNS.c.started_s >= since, RESULTS.c.ended_s.is_not(None))
    values = [literal_column(value).label(name) for name, value in VALUES_OF_GPUS.items()]
    gpu_cases = select(_GPU.node, _GPU.gpu, _GPU.run_id, _GPU.number, _GPU.ended_s, *values).where(_GPU.started_s >= since)
    for query, labels, names in ((node_cases, ("node",), VALUES_OF_CASES), (gpu_cases, ("node", "gpu"), VALUES_OF_GPUS)):
        newest = _newest(query, labels, "ended_s").c
        for record in database.rows(select(*(newest[name] for name in (*labels, *names))).limit(_MOST_GPUS)):
            labels_of_record = _labels(**{label: getattr(record, label) for label in labels})
            yield from (Sample(name, labels_of_record, getattr(record, name)) for name in names)


def _verdicts(database: Database) -> Iterator[Sample]:
    """Yield the metrics of the newest verdict for each baseline, as `collbench gate --openmetrics`, with a label `baseline`."""
    verdicts = VERDICTS.c
    place = (verdicts.verdict_id.label("run_id"), literal(0).label("number"))
    query = select(verdicts.baseline, verdicts.judged_s, verdicts.document_id, *place)
    newest = _newest(query.where(verdicts.document_id.is_not(None), verdicts.judged_s.is_not(None)), ("baseline",), "judged_s").c
    contents = select(newest.baseline, newest.judged_s, DOCUMENTS.c.content).join(DOCUMENTS, DOCUMENTS.c.document_id == newest.document_id)
    for baseline, judged_s, content in database.rows(contents.order_by(newest.judged_s.desc()).limit(_MOST_BASELINES)):
        for sample in gate_samples(from_json(parse_json(zlib.decompress(content)))):
            value = judged_s if sample.name == "gate_judged_timestamp" else sample.value
            yield Sample(sample.name, {**sample.labels, **_labels(baseline=baseline)}, value)


def _labels(**values: str | None) -> dict[str, str]:
    return {name: short(value, _LONGEST) for name, value in values.items() if value is not None}


class MetricsServer(ReadOnlyServer):
    """Answers scrapes at /metrics with a fresh reading of the store. Raises UsageError if the store cannot be read, or the port is used."""

    def __init__(self, store: str, covers: MetricsRange, port: int, address: str) -> None:
        self.store = store
        self.covers = covers
        self.name = ""
        self._reading_lock = threading.Lock()
        self.read()
        super().__init__(port, address)

    def read(self) -> str:
        """Return the metrics now. Raises UsageError."""
        database = open_store(self.store)
        self.name = database.name
        try:
            return metrics_text(database, self.covers, time.time())
        finally:
            database.close()

    def answer(self, target: str, accept: str) -> HttpReply:
        """Return the metrics at /metrics; 503 with the reason if the store cannot be read, so that Prometheus marks the target as down."""
        if urlsplit(target).path != _PATH:
            return HttpReply(HTTPStatus.NOT_FOUND, f"The metrics are at {_PATH}.")
        try:
            with self._reading_lock:
                text = self.read()
        except UsageError as error:
            return HttpReply(HTTPStatus.SERVICE_UNAVAILABLE, short(str(error), 600))
        return HttpReply(HTTPStatus.OK, text, _KIND if _OPENMETRICS in accept else _OLDER_KIND)


def serve_metrics(store: str, covers: MetricsRange, port: int, address: str, out: TextIO) -> int:
    """Serve the metrics of a store until Ctrl+C; return 0. Port 0: any free one.

    Raises UsageError if the store cannot be read, for a name in place of an address, and for a used port.
    """
    if not is_numeric(address):
        raise UsageError(f"--address {address}: not an IP address (use {LOCALHOST}, or 0.0.0.0 for all interfaces)")
    with MetricsServer(store, covers, port, address) as server:
        line = f"metrics of {server.name}: {server.address}{_PATH.removeprefix('/')} (Ctrl+C ends)"
        return serve_until_interrupted(server, line, out)
