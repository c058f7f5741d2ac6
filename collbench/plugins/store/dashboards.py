"""The Grafana dashboards of a store: fleet, node, operation, gate and telemetry, each for Prometheus and for PostgreSQL.

PostgreSQL has every run at the time at which it was measured. Prometheus has the newest values from its first scrape on
(`collbench store serve-metrics`). So panels of both show the same figure; the queries differ.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Table

from collbench.plugins.store.grafana import Dashboard, DashboardVariable, Panel, Series, ValueState
from collbench.plugins.store.metrics import METRICS, VALUES_OF_CASES, VALUES_OF_GPUS
from collbench.plugins.store.schema import NAMESPACE, NODE_HISTORY, PERCENT, TELEMETRY_HISTORY
from collbench.report.writers import metric_name

_STALE_DAYS = 2  # a node that is measured every night has a newer run
_LOWEST = 10  # nodes in a list of the slowest
_RESULTS = {
    0: ValueState("passed", "good"),
    1: ValueState("regression", "bad"),
    3: ValueState("no verdict", "doubtful"),
    4: ValueState("wrong data", "bad"),
}  # by exit code
_UNITS = {"seconds": "s", "ratio": "percentunit", "bytes_per_second": "Bps", "watts": "watt"}  # Grafana's, where the name differs

# Limits of colors, in the unit of the panel.
_NONE_IS_GOOD = ((None, "good"), (1.0, "bad"))
_FEW_ARE_DOUBTFUL = ((None, "good"), (1.0, "doubtful"))
_OF_MEDIAN = ((None, "bad"), (0.9, "doubtful"), (0.97, "good"))
_SLOWER = ((None, "good"), (1.02, "doubtful"), (1.05, "bad"))


def _metric(name: str) -> str:
    return metric_name(name, METRICS[name].unit)


_MEASURED, _LAST_RUN, _BUSBW = map(_metric, ("measured", "node_last_run_timestamp", "busbw"))
_OF_CEILING, _WRONG, _VERDICT = map(_metric, ("of_ceiling", "wrong_elements", "gate_result"))

# Variables: the next ones depend on those before them.

_OPERATION = DashboardVariable(
    "operation", "operation", f"label_values({_MEASURED}, operation)", "SELECT DISTINCT operation FROM collbench.cases ORDER BY 1"
)
_BACKEND = DashboardVariable(
    "backend",
    "backend",
    f'label_values({_MEASURED}{{operation="$operation"}}, backend)',
    "SELECT DISTINCT backend FROM collbench.cases WHERE operation = ${operation:sqlstring} ORDER BY 1",
)
_SIZE = DashboardVariable(
    "size_bytes",
    "size in bytes",
    f'label_values({_MEASURED}{{operation="$operation", backend="$backend"}}, size_bytes)',
    "SELECT DISTINCT size_bytes FROM collbench.cases "
    "WHERE operation = ${operation:sqlstring} AND backend = ${backend:sqlstring} ORDER BY 1 DESC",
)
_NODE = DashboardVariable("node", "node", f"label_values({_LAST_RUN}, node)", "SELECT name FROM collbench.nodes ORDER BY 1")

_CASE = 'operation="$operation", backend="$backend", size_bytes="$size_bytes"'
_SQL_CASE = "operation = ${operation:sqlstring} AND backend = ${backend:sqlstring} AND size_bytes = ${size_bytes:sqlstring}::bigint"
_IN_RANGE = "$__unixEpochFilter(started_s)"
_RUNS_OF_NODES = "collbench.run_nodes JOIN collbench.runs USING (run_id)"
_ALL_NODES = "collbench.nodes JOIN collbench.run_nodes USING (node_id) JOIN collbench.runs USING (run_id)"


def _of_median(metric: str, labels: str) -> str:
    """Return the query of a metric of each node, divided by that of the median node in the same case."""
    return f"{metric}{{{labels}}} / ignoring(node) group_left() quantile without (node) (0.5, {metric}{{{labels}}})"


def _newest(columns: str, where: str) -> str:
    """Return the SQL of the newest result of each case on each node in the time range."""
    return (
        f"SELECT DISTINCT ON (case_id, node) case_id, node, {columns} FROM collbench.node_history "
        f"WHERE {where} AND {_IN_RANGE} AND na IS NULL ORDER BY case_id, node, started_s DESC"
    )


def _with_medians(where: str) -> str:
    """Return the SQL of `newest`, with the bandwidth of each case on each node, and `medians`, over the nodes of each case."""
    return (
        f"WITH newest AS ({_newest('busbw_bytes_per_s', f'{where} AND busbw_bytes_per_s IS NOT NULL')}), medians AS (SELECT case_id, "
        "percentile_cont(0.5) WITHIN GROUP (ORDER BY busbw_bytes_per_s) AS median FROM newest GROUP BY case_id)"
    )


def _stat(title: str, summary: str, series: Series, postgresql: str, **look: Any) -> Panel:
    """Return a panel of one value; look: further fields of `Panel`."""
    return Panel(title, "stat", summary, (series,), postgresql, width=6, height=4, **look)


class RecordsOverTime(msgspec.Struct, frozen=True):
    """What panels show over time: the records of a view, in one series for each `name`.

    labels, legend   of the series of Prometheus
    combined         the aggregation of series with the same legend: "max by (node)"; "": none
    grouped          whether SQL has one record for each time and name, by the same aggregation
    """

    view: Table
    time: str
    where: str
    name: str
    labels: str
    legend: str
    combined: str = ""
    grouped: bool = False

    def panel(self, metric: str, title: str, summary: str, *, decimals: int | None = None) -> Panel:
        """Return the panel of a metric: of a column of rows, or of `VALUES_OF_CASES` or `VALUES_OF_GPUS`."""
        unit = METRICS[metric].unit
        row_column = METRICS[metric].column
        column = row_column.name if row_column else (VALUES_OF_CASES | VALUES_OF_GPUS)[metric]
        value = f"{self.combined.partition(' ')[0]}({column})" if self.grouped else column
        if row_column and row_column.unit.per != 1:
            value = f"{value} / {row_column.unit.per:g}"
        sql = (
            f"SELECT to_timestamp({self.time}) AS time, {self.name} AS metric, {value} AS value FROM {NAMESPACE}.{self.view.name} "
            f"WHERE {self.where} AND {column} IS NOT NULL{' GROUP BY 1, 2' if self.grouped else ''} ORDER BY 1"
        )
        query = f"{_metric(metric)}{{{self.labels}}}"
        series = Series(f"{self.combined} ({query})" if self.combined else query, self.legend)
        return Panel(title, "timeseries", summary, (series,), sql, _UNITS.get(unit, unit or "short"), decimals=decimals)


FLEET = Dashboard(
    "fleet",
    "fleet",
    "All nodes: which were measured, how fast they are for one test case, and which are slower than the others.",
    (_OPERATION, _BACKEND, _SIZE),
    (
        _stat(
            "Nodes measured",
            "Nodes with at least one run in the time range (Prometheus: in the time that the endpoint covers).",
            Series(f"count({_LAST_RUN})", "nodes"),
            f"SELECT count(DISTINCT node_id) AS nodes FROM {_RUNS_OF_NODES} WHERE {_IN_RANGE}",
        ),
        _stat(
            "Newest run",
            "When the newest run began.",
            Series(f"1000 * max({_LAST_RUN})", "newest run"),
            f'SELECT 1000 * max(started_s) AS "newest run" FROM collbench.runs WHERE {_IN_RANGE}',
            unit="dateTimeFromNow",
        ),
        _stat(
            f"No run for {_STALE_DAYS} days",
            f"Nodes without a run in the last {_STALE_DAYS} days.",
            Series(f"count(time() - {_LAST_RUN} > {_STALE_DAYS * 86400}) or vector(0)", "nodes"),
            f"SELECT count(*) AS nodes FROM (SELECT node_id FROM {_RUNS_OF_NODES} "
            f"GROUP BY node_id HAVING max(started_s) < $__unixEpochTo() - {_STALE_DAYS * 86400}) AS stale",
            limits=_NONE_IS_GOOD,
        ),
        _stat(
            "Cases with wrong data",
            "Test cases with wrong elements in the newest result on a node.",
            Series(f"count({_WRONG} > 0) or vector(0)", "cases"),
            f"SELECT count(*) AS cases FROM ({_newest('wrong', 'TRUE')}) AS newest WHERE wrong > 0",
            limits=_NONE_IS_GOOD,
        ),
        Panel(
            "Percentage of the expected bandwidth: median node and slowest node",
            "timeseries",
            "Bus bandwidth of the selected case in percent of the expected bandwidth. PostgreSQL: of the runs of each day.",
            (Series(f"quantile(0.5, {_OF_CEILING}{{{_CASE}}})", "median node"), Series(f"min({_OF_CEILING}{{{_CASE}}})", "slowest node")),
            "SELECT time, metric, value FROM (SELECT date_trunc('day', to_timestamp(started_s)) AS time, "
            f"percentile_cont(0.5) WITHIN GROUP (ORDER BY {PERCENT}) / 100 AS median, min({PERCENT}) / 100 AS slowest "
            f"FROM collbench.node_history WHERE {_SQL_CASE} AND {_IN_RANGE} AND {PERCENT} IS NOT NULL GROUP BY 1) AS days "
            "CROSS JOIN LATERAL (VALUES ('median node', median), ('slowest node', slowest)) AS both_ends(metric, value) ORDER BY 1",
            "percentunit",
        ),
        Panel(
            "Slowest nodes: bandwidth relative to the median node",
            "bargauge",
            f"Newest bus bandwidth of the selected case, divided by that of the median node: the {_LOWEST} lowest.",
            (Series(f"bottomk({_LOWEST}, {_of_median(_BUSBW, _CASE)})", "{{node}}"),),
            f"{_with_medians(_SQL_CASE)} "
            "SELECT node, min(busbw_bytes_per_s / nullif(median, 0)) AS ratio FROM newest JOIN medians USING (case_id) "
            f"GROUP BY node ORDER BY ratio LIMIT {_LOWEST}",
            "percentunit",
            _OF_MEDIAN,
        ),
        Panel(
            "Time since the last run",
            "bargauge",
            f"The {_LOWEST} nodes with the longest time since their newest run.",
            (Series(f"topk({_LOWEST}, time() - {_LAST_RUN})", "{{node}}"),),
            f"SELECT nodes.name AS node, $__unixEpochTo() - max(started_s) AS since FROM {_ALL_NODES} "
            f"GROUP BY nodes.name ORDER BY since DESC LIMIT {_LOWEST}",
            "s",
            ((None, "good"), (86400.0 * _STALE_DAYS, "bad")),
        ),
        Panel(
            "Suspects",
            "table",
            "Nodes that hunts and pair measurements suspect, with their rate as a part of the median rate.",
            (Series(_metric("suspect")),),
            "SELECT node, kind, state, ratio, started FROM collbench.suspect_history "
            f"WHERE {_IN_RANGE} AND node IS NOT NULL ORDER BY started_s DESC LIMIT 100",
        ),
    ),
)

_OF_NODE = 'node="$node"'
_SQL_NODE = "node = ${node:sqlstring}"
_OWN_RATIO = f"{_of_median(_BUSBW, '')} and {_BUSBW}{{{_OF_NODE}}}"
_BEST_OF_NODE = RecordsOverTime(
    NODE_HISTORY,
    "started_s",
    f"{_SQL_NODE} AND {_IN_RANGE}",
    "operation || ' ' || backend",
    _OF_NODE,
    "{{operation}} {{backend}}",
    "max by (operation, backend)",
    grouped=True,
)

NODE = Dashboard(
    "node",
    "one node",
    "One node: its percentage of the expected bandwidth and its latency over time, and its newest figures relative to the other nodes.",
    (_NODE,),
    (
        _stat(
            "Last run",
            "When the newest run on this node began.",
            Series(f"1000 * max({_LAST_RUN}{{{_OF_NODE}}})", "last run"),
            f'SELECT 1000 * max(started_s) AS "last run" FROM {_ALL_NODES} WHERE nodes.name = ${{node:sqlstring}}',
            unit="dateTimeFromNow",
        ),
        _stat(
            "Slowest case relative to the median node",
            "Smallest ratio of this node's bus bandwidth to that of the median node in the same test case, newest results.",
            Series(f"min({_OWN_RATIO})", "ratio"),
            f"{_with_medians('TRUE')} "
            f"SELECT min(busbw_bytes_per_s / nullif(median, 0)) AS ratio FROM newest JOIN medians USING (case_id) WHERE {_SQL_NODE}",
            unit="percentunit",
            limits=_OF_MEDIAN,
        ),
        _stat(
            "Doubtful cases",
            "Test cases of this node with a noisy or unreliable newest result.",
            Series(f"sum({_metric('doubtful')}{{{_OF_NODE}}}) or vector(0)", "cases"),
            f"SELECT count(*) AS cases FROM ({_newest('quality', _SQL_NODE)}) AS newest WHERE quality IN ('noisy', 'unreliable')",
            limits=_FEW_ARE_DOUBTFUL,
        ),
        _stat(
            "Cases with wrong data",
            "Test cases of this node with wrong elements in the newest result.",
            Series(f"count({_WRONG}{{{_OF_NODE}}} > 0) or vector(0)", "cases"),
            f"SELECT count(*) AS cases FROM ({_newest('wrong', _SQL_NODE)}) AS newest WHERE wrong > 0",
            limits=_NONE_IS_GOOD,
        ),
        _BEST_OF_NODE.panel("of_ceiling", "Percentage of the expected bandwidth", "The best size of each operation over each backend."),
        replace(_BEST_OF_NODE, combined="min by (operation, backend)").panel(
            "time", "Latency", "The median time of the fastest size of each operation over each backend."
        ),
        Panel(
            "Newest bandwidth relative to the median node",
            "table",
            "Each test case of this node: its newest bus bandwidth, divided by that of the median node.",
            (Series(f"sort(sum by (operation, backend, dtype, size_bytes, ranks) ({_OWN_RATIO}))"),),
            f"{_with_medians('TRUE')} "
            "SELECT operation, backend, dtype, size_bytes, ranks, busbw_bytes_per_s / nullif(median, 0) AS ratio FROM newest "
            f"JOIN medians USING (case_id) JOIN collbench.cases USING (case_id) WHERE {_SQL_NODE} ORDER BY ratio LIMIT 500",
            width=24,
            height=10,
        ),
    ),
)

_ON_NODES = f'{_CASE}, node=~"$node"'
_SQL_NODES = f"{_SQL_CASE} AND node IN (${{node:sqlstring}}) AND {_IN_RANGE}"
_CASE_ON_NODES = RecordsOverTime(NODE_HISTORY, "started_s", _SQL_NODES, "node", _ON_NODES, "{{node}}")

OPERATION = Dashboard(
    "operation",
    "one operation over time",
    "One test case on the selected nodes over time: bandwidth, time with its 95 % confidence interval, tail and wrong data.",
    (_OPERATION, _BACKEND, _SIZE, replace(_NODE, many=True)),
    (
        _CASE_ON_NODES.panel("busbw", "Bus bandwidth", "Bus bandwidth of each run, in bytes per second (1 GB/s is 10^9)."),
        _CASE_ON_NODES.panel(
            "of_ceiling",
            "Percentage of the expected bandwidth",
            "Bus bandwidth of each run in percent of what the hardware can deliver (`collbench explain expected`).",
        ),
        Panel(
            "Median time with its 95 % confidence interval",
            "timeseries",
            "Median over the samples of a run, and the two ends of its confidence interval.",
            (
                Series(f"{_metric('time')}{{{_ON_NODES}}}", "{{node}}"),
                Series(f"{_metric('time_interval_low')}{{{_ON_NODES}}}", "{{node}} low"),
                Series(f"{_metric('time_interval_high')}{{{_ON_NODES}}}", "{{node}} high"),
            ),
            "SELECT to_timestamp(started_s) AS time, node || suffix AS metric, value FROM collbench.node_history CROSS JOIN LATERAL "
            "(VALUES ('', time_p50_s), (' low', time_ci_low_s), (' high', time_ci_high_s)) AS parts(suffix, value) "
            f"WHERE {_SQL_NODES} AND value IS NOT NULL ORDER BY 1",
            "s",
        ),
        _CASE_ON_NODES.panel("time_p99", "Tail: 99th percentile", "99th percentile of the samples of a run."),
        _CASE_ON_NODES.panel(
            "wrong_elements", "Wrong elements", "Elements that differ from the expected ones; no point if nothing was verified.", decimals=0
        ),
        Panel(
            "Newest results",
            "table",
            "The newest result of each node.",
            (Series(f"sum by (node, ranks, dtype) ({_BUSBW}{{{_ON_NODES}}})"),),
            f"SELECT started, node, ranks, busbw_bytes_per_s / 1e9 AS gb_per_s, {PERCENT}, quality, flags "
            f"FROM collbench.node_history WHERE {_SQL_NODES} ORDER BY started_s DESC LIMIT 100",
        ),
    ),
)

_EXIT_CODE = (
    f'sum without (result) ({_VERDICT}{{result="regression"}} or 3 * {_VERDICT}{{result="no_verdict"}} '
    f'or 4 * {_VERDICT}{{result="wrong_data"}})'
)
_SQL_EXIT_CODE = "CASE result WHEN 'passed' THEN 0 WHEN 'regression' THEN 1 WHEN 'no verdict' THEN 3 ELSE 4 END"
_JUDGED = "$__unixEpochFilter(judged_s)"
_NEWEST_VERDICT = f"(SELECT verdict_id FROM collbench.verdicts WHERE {_JUDGED} ORDER BY judged_s DESC, verdict_id DESC LIMIT 1)"
_GROUPS = "(operation, backend, size_class)"
_GROUP_RATIO = f'{_metric("gate_group_time")}{{strike="1"}}'


def _slowdowns(title: str, summary: str, state: str, limits: tuple[tuple[float | None, str], ...]) -> Panel:
    series = Series(f'sum({_metric("gate_suspicions")}{{state="{state}"}})', state)
    return _stat(
        title, summary, series, f"SELECT {state} AS cases FROM collbench.verdicts WHERE verdict_id = {_NEWEST_VERDICT}", limits=limits
    )


GATE = Dashboard(
    "gate",
    "gate verdicts",
    "Verdicts of `collbench gate`: the newest one, all results over time, and the groups of cases with their limits.",
    (),
    (
        _stat(
            "Newest result",
            "The result of the newest verdict.",
            Series(f"max({_EXIT_CODE})", "result"),
            f"SELECT {_SQL_EXIT_CODE} AS result FROM collbench.verdicts WHERE verdict_id = {_NEWEST_VERDICT}",
            states=_RESULTS,
        ),
        _stat(
            "Judged",
            "When the newest verdict was judged.",
            Series(f"1000 * max({_metric('gate_judged_timestamp')})", "judged"),
            f"SELECT 1000 * max(judged_s) AS judged FROM collbench.verdicts WHERE {_JUDGED}",
            unit="dateTimeFromNow",
        ),
        _slowdowns("Confirmed slowdowns", "Confirmed slowdowns in the newest verdict.", "confirmed", _NONE_IS_GOOD),
        _slowdowns("Suspected slowdowns", "Suspected slowdowns in the newest verdict: measure again.", "suspected", _FEW_ARE_DOUBTFUL),
        Panel(
            "Results over time",
            "state-timeline",
            "The result of each verdict; a result holds until the next one.",
            (Series(f"max by (baseline) ({_EXIT_CODE})", "{{baseline}}"),),
            f"SELECT to_timestamp(judged_s) AS time, {_SQL_EXIT_CODE} AS result FROM collbench.verdicts WHERE {_JUDGED} ORDER BY 1",
            states=_RESULTS,
            width=24,
            height=6,
        ),
        Panel(
            "Slowdown of each group",
            "timeseries",
            "Time of a group of cases over that of the baseline: 1.05 is 5 % slower.",
            (Series(f"max by {_GROUPS} ({_GROUP_RATIO})", "{{operation}} {{backend}} {{size_class}}"),),
            "SELECT to_timestamp(judged_s) AS time, concat_ws(' ', verdict_groups.operation, verdict_groups.backend, size_class) "
            "AS metric, factor AS value FROM collbench.verdict_groups JOIN collbench.verdicts USING (verdict_id) "
            f"WHERE {_JUDGED} AND factor IS NOT NULL ORDER BY 1",
            limits=_SLOWER,
            decimals=3,
        ),
        Panel(
            "Groups of the newest verdict: slowdown over limit",
            "table",
            "Above 1, chance does not explain the slowdown of the group.",
            (Series(f"sort_desc(max by {_GROUPS} ({_GROUP_RATIO} / ignoring(strike) {_metric('gate_group_limit')}))"),),
            "SELECT operation, backend, size_class, state, outcome, factor, limit_factor, factor / nullif(limit_factor, 0) AS over_limit "
            f"FROM collbench.verdict_groups WHERE verdict_id = {_NEWEST_VERDICT} ORDER BY over_limit DESC NULLS LAST",
        ),
    ),
)

_ON_ANY = 'node=~"$node"'
_SQL_ON_ANY = "node IN (${node:sqlstring}) AND $__unixEpochFilter(ended_s)"
_AROUND_CASES = RecordsOverTime(NODE_HISTORY, "ended_s", _SQL_ON_ANY, "node", _ON_ANY, "{{node}}", "max by (node)")
_OF_GPUS = RecordsOverTime(TELEMETRY_HISTORY, "ended_s", _SQL_ON_ANY, "node || ' ' || gpu", _ON_ANY, "{{node}} {{gpu}}")

TELEMETRY = Dashboard(
    "telemetry",
    "telemetry during a run",
    "The machine state around each test case of a run: state probe, CPU time, and the GPUs. Run `collbench store sync` during the run.",
    (replace(_NODE, many=True),),
    (
        _AROUND_CASES.panel(
            "state_probe", "State probe", "Fixed work, measured after each case: a change means that the machine state changed."
        ),
        _AROUND_CASES.panel("stolen", "Stolen CPU time", "Share of the CPU time that a hypervisor took during a case."),
        _AROUND_CASES.panel("preemptions", "Preemptions", "How often a rank of the case was preempted."),
        _OF_GPUS.panel("gpu_sm_clock", "SM clock", "Median clock during a case."),
        _OF_GPUS.panel("gpu_power", "Power", "Highest power during a case."),
        _OF_GPUS.panel("gpu_temperature", "Temperature", "Highest temperature during a case."),
        _OF_GPUS.panel(
            "gpu_throttled",
            "Throttled",
            "Share of the samples during a case at which NVML reported throttling by power, heat or the hardware brake.",
        ),
    ),
    hours=3,
    refresh="10s",
)

DASHBOARDS = (FLEET, NODE, OPERATION, GATE, TELEMETRY)
