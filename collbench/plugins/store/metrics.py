"""`collbench store serve-metrics`: the newest figures of a store for Prometheus, over HTTP, read-only.

A case of a node has its newest row, with the names and labels of `collbench report --openmetrics` and a label `node`. Only runs of the last
days count, and the number of rows is limited, so that neither old nodes nor many cases fill the memory of Prometheus.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TextIO
from urllib.parse import urlsplit

from collbench.addresses import is_numeric
from collbench.errors import UsageError
from collbench.gating.verdict import from_json
from collbench.plugins.serve.server import LOCALHOST, HttpReply, ReadOnlyServer, serve_until_interrupted
from collbench.plugins.store.database import Database, open_store
from collbench.plugins.store.reading import load_rows
from collbench.report.headlines import short
from collbench.report.runs import ROW_METRICS, row_samples
from collbench.report.verdict_formats import GATE_METRICS, gate_samples
from collbench.report.writers import Metric, Sample, exposed
from collbench.untrusted import parse_json

PORT = 9823
DAYS, MOST_ROWS = 7.0, 5000
_PATH = "/metrics"
_LONGEST = 200
_MOST_SUSPECTS, _MOST_BASELINES, _MOST_GPUS = 200, 20, 10_000
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
VALUES_OF_CASES = {"state_probe": "probe_after_s", "stolen": "stolen", "preemptions": "preempted"}
VALUES_OF_GPUS = {
    "gpu_sm_clock": "1e6 * sm_mhz",
    "gpu_power": "power_w",
    "gpu_temperature": "temperature_c",
    "gpu_throttled": "throttled",
}


@dataclass(frozen=True)
class MetricsRange:
    """What the endpoint covers: runs of the last `days`, and at most `most_rows` rows (a case on a node), the newest ones."""

    days: float = DAYS
    most_rows: int = MOST_ROWS


def metrics_text(database: Database, covers: MetricsRange, now_s: float) -> str:
    """Return the metrics of a store as OpenMetrics, which Prometheus' older text format accepts too. now_s: seconds since 1970.

    Raises UsageError if the store cannot be read.
    """
    return exposed(METRICS, _samples(database, covers, now_s))


def _samples(database: Database, covers: MetricsRange, now_s: float) -> Iterator[Sample]:
    began = time.monotonic()
    since = now_s - covers.days * 86400
    with database.transaction():  # one state of the store
        yield from _rows(database, since, covers.most_rows)
        yield from _nodes(database, since)
        yield from _suspects(database, since)
        yield from _conditions(database, since)
        yield from _verdicts(database)
        yield Sample("store_runs", {}, database.rows("SELECT count(*) FROM runs")[0][0])
    yield Sample("store_read", {}, time.monotonic() - began)


_RESULTS = (
    "SELECT nodes.name AS node, results.case_id, results.run_id, results.number, runs.started_s, results.ended_s, results.probe_after_s,"
    " results.stolen, results.preempted FROM runs JOIN results ON results.run_id = runs.run_id"
    " JOIN run_nodes ON run_nodes.run_id = runs.run_id JOIN nodes ON nodes.node_id = run_nodes.node_id WHERE runs.started_s >= ?"
)


def _newest(source: str, columns: str, by: str, newest: str) -> str:
    """Return the SQL of the newest record of a query for each value of `by`."""
    return (
        f"SELECT {columns} FROM (SELECT *, row_number() OVER (PARTITION BY {by} ORDER BY {newest} DESC, run_id DESC, number DESC) AS place"
        f" FROM ({source}) AS found) AS ranked WHERE place = 1"
    )


def _rows(database: Database, since: float, most: int) -> Iterator[Sample]:
    sql = _newest(_RESULTS, "node, case_id, run_id, number, started_s", "case_id, node", "started_s")
    found = database.rows(f"SELECT node, run_id, number, started_s, count(*) OVER () FROM ({sql}) AS newest "
                          f"ORDER BY started_s DESC, node, case_id LIMIT {most}", [since])  # fmt: skip
    yield Sample("store_rows_left_out", {}, found[0][4] - len(found) if found else 0)
    rows = load_rows(database, {run_id for _, run_id, *_ in found})
    for node, run_id, number, started_s, _ in found:
        labels = {"node": short(node, _LONGEST)}
        samples = list(row_samples(rows[run_id][number], labels))
        yield from samples
        yield replace(samples[0], name="measured_timestamp", value=started_s)


def _nodes(database: Database, since: float) -> Iterator[Sample]:
    sql = (
        "SELECT nodes.name, max(runs.started_s), count(*) FROM runs JOIN run_nodes ON run_nodes.run_id = runs.run_id"
        " JOIN nodes ON nodes.node_id = run_nodes.node_id WHERE runs.started_s >= ? GROUP BY nodes.name"
    )
    for name, last_s, runs in database.rows(sql, [since]):
        labels = {"node": short(name, _LONGEST)}
        yield Sample("node_last_run_timestamp", labels, last_s)
        yield Sample("node_runs", labels, runs)


def _suspects(database: Database, since: float) -> Iterator[Sample]:
    sql = (
        "SELECT node, kind, state, ratio FROM suspect_history WHERE started_s >= ? AND ratio IS NOT NULL"
        f" ORDER BY started_s DESC LIMIT {_MOST_SUSPECTS}"
    )
    for node, kind, state, ratio in reversed(database.rows(sql, [since])):  # of equal labels the newest one remains
        yield Sample("suspect", _labels(node=node, kind=kind, state=state), ratio)


def _conditions(database: Database, since: float) -> Iterator[Sample]:
    yield from _newest_values(database, since, f"{_RESULTS} AND results.ended_s IS NOT NULL", ("node",), VALUES_OF_CASES)
    of_gpus = "SELECT * FROM telemetry_history WHERE started_s >= ?"
    yield from _newest_values(database, since, of_gpus, ("node", "gpu"), VALUES_OF_GPUS, limit=f" LIMIT {_MOST_GPUS}")


def _newest_values(
    database: Database, since: float, source: str, labels: tuple[str, ...], values: Mapping[str, str], *, limit: str = ""
) -> Iterator[Sample]:
    sql = _newest(source, ", ".join([*labels, *values.values()]), ", ".join(labels), "ended_s")
    for record in database.rows(f"{sql}{limit}", [since]):
        of_record = _labels(**dict(zip(labels, record, strict=False)))
        yield from (Sample(name, of_record, value) for name, value in zip(values, record[len(labels) :], strict=True))


def _verdicts(database: Database) -> Iterator[Sample]:
    """Yield the metrics of the newest verdict for each baseline, as `collbench gate --openmetrics`, with a label `baseline`."""
    sql = _newest(
        "SELECT baseline, judged_s, verdict_id AS run_id, 0 AS number, document_id FROM verdicts"
        " WHERE document_id IS NOT NULL AND judged_s IS NOT NULL",
        "baseline, judged_s, document_id", "baseline", "judged_s",
    )  # fmt: skip
    for baseline, judged_s, document in database.rows(f"{sql} ORDER BY judged_s DESC LIMIT {_MOST_BASELINES}"):
        ((content,),) = database.rows("SELECT content FROM documents WHERE document_id = ?", [document])
        verdict = from_json(parse_json(zlib.decompress(content)))
        for sample in gate_samples(verdict):
            value = judged_s if sample.name == "gate_judged_timestamp" else sample.value
            yield Sample(sample.name, {**sample.labels, **_labels(baseline=baseline)}, value)


def _labels(**values: str | None) -> dict[str, str]:
    return {name: short(value, _LONGEST) for name, value in values.items() if value is not None}


# The endpoint.


class MetricsServer(ReadOnlyServer):
    """Answers scrapes at /metrics with a fresh reading of the store. Raises UsageError if the store cannot be read, or the port is used."""

    def __init__(self, store: str, covers: MetricsRange, port: int, address: str) -> None:
        self.store, self.covers, self.name = store, covers, ""
        self._one_reading = threading.Lock()
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
            with self._one_reading:
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
