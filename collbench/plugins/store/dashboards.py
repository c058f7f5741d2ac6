"""The Grafana dashboards of a store: fleet, node, operation, gate and telemetry, each for Prometheus and for PostgreSQL.

PostgreSQL has every run at the time at which it was measured. Prometheus has the newest values from its first scrape on
(`collbench store serve-metrics`). So panels of both show the same figure; the queries differ.
"""

from __future__ import annotations

from collbench.plugins.store.grafana import Dashboard, DashboardVariable, Panel, Series, ValueState

_STALE_DAYS = 2  # a node that is measured every night has a newer run
_LOWEST = 10  # nodes in a list of the slowest
_RESULTS = {
    0: ValueState("passed", "good"),
    1: ValueState("regression", "bad"),
    3: ValueState("no verdict", "doubtful"),
    4: ValueState("wrong data", "bad"),
}  # by exit code

# Limits of colors, in the unit of the panel.
_NONE_IS_GOOD = ((None, "good"), (1.0, "bad"))
_PERCENT = ((None, "bad"), (0.5, "doubtful"), (0.8, "good"))
_OF_MEDIAN = ((None, "bad"), (0.9, "doubtful"), (0.97, "good"))
_SLOWER = ((None, "good"), (1.02, "doubtful"), (1.05, "bad"))

# Variables: the next ones depend on those before them.

_OPERATION = DashboardVariable(
    "operation",
    "operation",
    "label_values(collbench_measured, operation)",
    "SELECT DISTINCT operation FROM collbench.cases ORDER BY 1",
)
_BACKEND = DashboardVariable(
    "backend",
    "backend",
    'label_values(collbench_measured{operation="$operation"}, backend)',
    "SELECT DISTINCT backend FROM collbench.cases WHERE operation = ${operation:sqlstring} ORDER BY 1",
)
_SIZE = DashboardVariable(
    "size_bytes",
    "size in bytes",
    'label_values(collbench_measured{operation="$operation", backend="$backend"}, size_bytes)',
    "SELECT DISTINCT size_bytes FROM collbench.cases "
    "WHERE operation = ${operation:sqlstring} AND backend = ${backend:sqlstring} ORDER BY 1 DESC",
)
_NODE = DashboardVariable(
    "node",
    "node",
    "label_values(collbench_node_last_run_timestamp_seconds, node)",
    "SELECT name FROM collbench.nodes ORDER BY 1",
)
_NODES = DashboardVariable(_NODE.name, _NODE.label, _NODE.prometheus, _NODE.postgresql, many=True)

_CASE = 'operation="$operation", backend="$backend", size_bytes="$size_bytes"'
_SQL_CASE = "operation = ${operation:sqlstring} AND backend = ${backend:sqlstring} AND size_bytes = ${size_bytes:sqlstring}::bigint"
_IN_RANGE = "$__unixEpochFilter(started_s)"
_TIME = "to_timestamp(started_s) AS time"


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


FLEET = Dashboard(
    "fleet",
    "fleet",
    "All nodes: which were measured, how fast they are for one test case, and which are slower than the others.",
    (_OPERATION, _BACKEND, _SIZE),
    (
        Panel(
            "Nodes measured",
            "stat",
            "Nodes with at least one run in the time range (Prometheus: in the time that the endpoint covers).",
            (Series("count(collbench_node_last_run_timestamp_seconds)", "nodes"),),
            f"SELECT count(DISTINCT node_id) AS nodes FROM collbench.run_nodes JOIN collbench.runs USING (run_id) WHERE {_IN_RANGE}",
            width=6,
            height=4,
        ),
        Panel(
            "Newest run",
            "stat",
            "When the newest run began.",
            (Series("1000 * max(collbench_node_last_run_timestamp_seconds)", "newest run"),),
            f'SELECT 1000 * max(started_s) AS "newest run" FROM collbench.runs WHERE {_IN_RANGE}',
            unit="dateTimeFromNow",
            width=6,
            height=4,
        ),
        Panel(
            f"No run for {_STALE_DAYS} days",
            "stat",
            f"Nodes without a run in the last {_STALE_DAYS} days.",
            (Series(f"count(time() - collbench_node_last_run_timestamp_seconds > {_STALE_DAYS * 86400}) or vector(0)", "nodes"),),
            "SELECT count(*) AS nodes FROM (SELECT node_id FROM collbench.run_nodes JOIN collbench.runs USING (run_id) "
            f"GROUP BY node_id HAVING max(started_s) < $__unixEpochTo() - {_STALE_DAYS * 86400}) AS stale",
            limits=_NONE_IS_GOOD,
            width=6,
            height=4,
        ),
        Panel(
            "Cases with wrong data",
            "stat",
            "Test cases with wrong elements in the newest result on a node.",
            (Series("count(collbench_wrong_elements > 0) or vector(0)", "cases"),),
            f"SELECT count(*) AS cases FROM ({_newest('wrong', 'TRUE')}) AS newest WHERE wrong > 0",
            limits=_NONE_IS_GOOD,
            width=6,
            height=4,
        ),
        Panel(
            "Percentage of the expected bandwidth: median node and slowest node",
            "timeseries",
            "Bus bandwidth of the selected case in percent of the expected bandwidth. PostgreSQL: of the runs of each day.",
            (
                Series(f"quantile(0.5, collbench_of_ceiling_ratio{{{_CASE}}})", "median node"),
                Series(f"min(collbench_of_ceiling_ratio{{{_CASE}}})", "slowest node"),
            ),
            "SELECT time, metric, value FROM (SELECT date_trunc('day', to_timestamp(started_s)) AS time, "
            "percentile_cont(0.5) WITHIN GROUP (ORDER BY percent_of_ceiling) / 100 AS median, min(percent_of_ceiling) / 100 AS slowest "
            f"FROM collbench.node_history WHERE {_SQL_CASE} AND {_IN_RANGE} AND percent_of_ceiling IS NOT NULL GROUP BY 1) AS days "
            "CROSS JOIN LATERAL (VALUES ('median node', median), ('slowest node', slowest)) AS both_ends(metric, value) ORDER BY 1",
            unit="percentunit",
        ),
        Panel(
            "Slowest nodes: bandwidth relative to the median node",
            "bargauge",
            f"Newest bus bandwidth of the selected case, divided by that of the median node: the {_LOWEST} lowest.",
            (Series(f"bottomk({_LOWEST}, {_of_median('collbench_busbw_bytes_per_second', _CASE)})", "{{node}}"),),
            f"{_with_medians(_SQL_CASE)} "
            "SELECT node, min(busbw_bytes_per_s / nullif(median, 0)) AS ratio FROM newest JOIN medians USING (case_id) "
            f"GROUP BY node ORDER BY ratio LIMIT {_LOWEST}",
            unit="percentunit",
            limits=_OF_MEDIAN,
        ),
        Panel(
            "Time since the last run",
            "bargauge",
            f"The {_LOWEST} nodes with the longest time since their newest run.",
            (Series(f"topk({_LOWEST}, time() - collbench_node_last_run_timestamp_seconds)", "{{node}}"),),
            "SELECT nodes.name AS node, $__unixEpochTo() - max(started_s) AS since FROM collbench.nodes "
            "JOIN collbench.run_nodes USING (node_id) JOIN collbench.runs USING (run_id) "
            f"GROUP BY nodes.name ORDER BY since DESC LIMIT {_LOWEST}",
            unit="s",
            limits=((None, "good"), (86400.0 * _STALE_DAYS, "bad")),
        ),
        Panel(
            "Suspects",
            "table",
            "Nodes that hunts and pair measurements suspect, with their rate as a part of the median rate.",
            (Series("collbench_suspect_ratio"),),
            "SELECT node, kind, state, ratio, started FROM collbench.suspect_history "
            f"WHERE {_IN_RANGE} AND node IS NOT NULL ORDER BY started_s DESC LIMIT 100",
        ),
    ),
)

_OF_NODE = 'node="$node"'
_SQL_NODE = "node = ${node:sqlstring}"
_OWN_RATIO = f"{_of_median('collbench_busbw_bytes_per_second', '')} and collbench_busbw_bytes_per_second{{{_OF_NODE}}}"
_BY_SERIES = "operation || ' ' || backend AS metric"

NODE = Dashboard(
    "node",
    "one node",
    "One node: its percentage of the expected bandwidth and its latency over time, and its newest figures relative to the other nodes.",
    (_NODE,),
    (
        Panel(
            "Last run",
            "stat",
            "When the newest run on this node began.",
            (Series(f"1000 * max(collbench_node_last_run_timestamp_seconds{{{_OF_NODE}}})", "last run"),),
            'SELECT 1000 * max(started_s) AS "last run" FROM collbench.nodes JOIN collbench.run_nodes USING (node_id) '
            "JOIN collbench.runs USING (run_id) WHERE nodes.name = ${node:sqlstring}",
            unit="dateTimeFromNow",
            width=6,
            height=4,
        ),
        Panel(
            "Slowest case relative to the median node",
            "stat",
            "Smallest ratio of this node's bus bandwidth to that of the median node in the same test case, newest results.",
            (
                Series(
                    f"min({_OWN_RATIO})",
                    "ratio",
                ),
            ),
            f"{_with_medians('TRUE')} "
            f"SELECT min(busbw_bytes_per_s / nullif(median, 0)) AS ratio FROM newest JOIN medians USING (case_id) WHERE {_SQL_NODE}",
            unit="percentunit",
            limits=_OF_MEDIAN,
            width=6,
            height=4,
        ),
        Panel(
            "Doubtful cases",
            "stat",
            "Test cases of this node with a noisy or unreliable newest result.",
            (Series(f"sum(collbench_doubtful{{{_OF_NODE}}}) or vector(0)", "cases"),),
            f"SELECT count(*) AS cases FROM ({_newest('quality', _SQL_NODE)}) AS newest WHERE quality IN ('noisy', 'unreliable')",
            limits=((None, "good"), (1.0, "doubtful")),
            width=6,
            height=4,
        ),
        Panel(
            "Cases with wrong data",
            "stat",
            "Test cases of this node with wrong elements in the newest result.",
            (Series(f"count(collbench_wrong_elements{{{_OF_NODE}}} > 0) or vector(0)", "cases"),),
            f"SELECT count(*) AS cases FROM ({_newest('wrong', _SQL_NODE)}) AS newest WHERE wrong > 0",
            limits=_NONE_IS_GOOD,
            width=6,
            height=4,
        ),
        Panel(
            "Percentage of the expected bandwidth",
            "timeseries",
            "The best size of each operation over each backend.",
            (Series(f"max by (operation, backend) (collbench_of_ceiling_ratio{{{_OF_NODE}}})", "{{operation}} {{backend}}"),),
            f"SELECT {_TIME}, {_BY_SERIES}, max(percent_of_ceiling) / 100 AS value FROM collbench.node_history "
            f"WHERE {_SQL_NODE} AND {_IN_RANGE} AND percent_of_ceiling IS NOT NULL GROUP BY 1, 2 ORDER BY 1",
            unit="percentunit",
        ),
        Panel(
            "Latency",
            "timeseries",
            "The median time of the fastest size of each operation over each backend.",
            (Series(f"min by (operation, backend) (collbench_time_seconds{{{_OF_NODE}}})", "{{operation}} {{backend}}"),),
            f"SELECT {_TIME}, {_BY_SERIES}, min(time_p50_s) AS value FROM collbench.node_history "
            f"WHERE {_SQL_NODE} AND {_IN_RANGE} AND time_p50_s IS NOT NULL GROUP BY 1, 2 ORDER BY 1",
            unit="s",
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
_SQL_NODES = f"{_SQL_CASE} AND node IN (${{node:sqlstring}})"


def _of_nodes(value: str, column: str) -> str:
    """Return the SQL of a value of the selected case on the selected nodes over time."""
    return (
        f"SELECT {_TIME}, node AS metric, {value} AS value FROM collbench.node_history "
        f"WHERE {_SQL_NODES} AND {_IN_RANGE} AND {column} IS NOT NULL ORDER BY 1"
    )


OPERATION = Dashboard(
    "operation",
    "one operation over time",
    "One test case on the selected nodes over time: bandwidth, time with its 95 % confidence interval, tail and wrong data.",
    (_OPERATION, _BACKEND, _SIZE, _NODES),
    (
        Panel(
            "Bus bandwidth",
            "timeseries",
            "Bus bandwidth of each run, in bytes per second (1 GB/s is 10^9).",
            (Series(f"collbench_busbw_bytes_per_second{{{_ON_NODES}}}", "{{node}}"),),
            _of_nodes("busbw_bytes_per_s", "busbw_bytes_per_s"),
            unit="Bps",
        ),
        Panel(
            "Percentage of the expected bandwidth",
            "timeseries",
            "Bus bandwidth of each run in percent of what the hardware can deliver (`collbench explain expected`).",
            (Series(f"collbench_of_ceiling_ratio{{{_ON_NODES}}}", "{{node}}"),),
            _of_nodes("percent_of_ceiling / 100", "percent_of_ceiling"),
            unit="percentunit",
        ),
        Panel(
            "Median time with its 95 % confidence interval",
            "timeseries",
            "Median over the samples of a run, and the two ends of its confidence interval.",
            (
                Series(f"collbench_time_seconds{{{_ON_NODES}}}", "{{node}}"),
                Series(f"collbench_time_interval_low_seconds{{{_ON_NODES}}}", "{{node}} low"),
                Series(f"collbench_time_interval_high_seconds{{{_ON_NODES}}}", "{{node}} high"),
            ),
            f"SELECT {_TIME}, node || suffix AS metric, value FROM collbench.node_history CROSS JOIN LATERAL "
            "(VALUES ('', time_p50_s), (' low', time_ci_low_s), (' high', time_ci_high_s)) AS parts(suffix, value) "
            f"WHERE {_SQL_NODES} AND {_IN_RANGE} AND value IS NOT NULL ORDER BY 1",
            unit="s",
        ),
        Panel(
            "Tail: 99th percentile",
            "timeseries",
            "99th percentile of the samples of a run.",
            (Series(f"collbench_time_p99_seconds{{{_ON_NODES}}}", "{{node}}"),),
            _of_nodes("time_p99_s", "time_p99_s"),
            unit="s",
        ),
        Panel(
            "Wrong elements",
            "timeseries",
            "Elements that differ from the expected ones; no point if nothing was verified.",
            (Series(f"collbench_wrong_elements{{{_ON_NODES}}}", "{{node}}"),),
            _of_nodes("wrong", "wrong"),
            decimals=0,
        ),
        Panel(
            "Newest results",
            "table",
            "The newest result of each node.",
            (Series(f"sum by (node, ranks, dtype) (collbench_busbw_bytes_per_second{{{_ON_NODES}}})"),),
            "SELECT started, node, ranks, busbw_bytes_per_s / 1e9 AS gb_per_s, percent_of_ceiling, quality, flags "
            f"FROM collbench.node_history WHERE {_SQL_NODES} AND {_IN_RANGE} ORDER BY started_s DESC LIMIT 100",
        ),
    ),
)

_EXIT_CODE = (
    'sum without (result) (collbench_gate_result{result="regression"} or 3 * collbench_gate_result{result="no_verdict"} '
    'or 4 * collbench_gate_result{result="wrong_data"})'
)
_SQL_EXIT_CODE = "CASE result WHEN 'passed' THEN 0 WHEN 'regression' THEN 1 WHEN 'no verdict' THEN 3 ELSE 4 END"
_JUDGED = "$__unixEpochFilter(judged_s)"
_NEWEST_VERDICT = f"(SELECT verdict_id FROM collbench.verdicts WHERE {_JUDGED} ORDER BY judged_s DESC, verdict_id DESC LIMIT 1)"


def _of_newest_verdict(column: str) -> str:
    return f"SELECT {column} AS cases FROM collbench.verdicts WHERE verdict_id = {_NEWEST_VERDICT}"


GATE = Dashboard(
    "gate",
    "gate verdicts",
    "Verdicts of `collbench gate`: the newest one, all results over time, and the groups of cases with their limits.",
    (),
    (
        Panel(
            "Newest result",
            "stat",
            "The result of the newest verdict.",
            (Series(f"max({_EXIT_CODE})", "result"),),
            f"SELECT {_SQL_EXIT_CODE} AS result FROM collbench.verdicts WHERE verdict_id = {_NEWEST_VERDICT}",
            states=_RESULTS,
            width=6,
            height=4,
        ),
        Panel(
            "Judged",
            "stat",
            "When the newest verdict was judged.",
            (Series("1000 * max(collbench_gate_judged_timestamp_seconds)", "judged"),),
            f"SELECT 1000 * max(judged_s) AS judged FROM collbench.verdicts WHERE {_JUDGED}",
            unit="dateTimeFromNow",
            width=6,
            height=4,
        ),
        Panel(
            "Confirmed slowdowns",
            "stat",
            "Confirmed slowdowns in the newest verdict.",
            (Series('sum(collbench_gate_suspicions{state="confirmed"})', "confirmed"),),
            _of_newest_verdict("confirmed"),
            limits=_NONE_IS_GOOD,
            width=6,
            height=4,
        ),
        Panel(
            "Suspected slowdowns",
            "stat",
            "Suspected slowdowns in the newest verdict: measure again.",
            (Series('sum(collbench_gate_suspicions{state="suspected"})', "suspected"),),
            _of_newest_verdict("suspected"),
            limits=((None, "good"), (1.0, "doubtful")),
            width=6,
            height=4,
        ),
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
            (
                Series(
                    'max by (operation, backend, size_class) (collbench_gate_group_time_ratio{strike="1"})',
                    "{{operation}} {{backend}} {{size_class}}",
                ),
            ),
            "SELECT to_timestamp(judged_s) AS time, concat_ws(' ', verdict_groups.operation, verdict_groups.backend, size_class) "
            "AS metric, factor AS value FROM collbench.verdict_groups JOIN collbench.verdicts USING (verdict_id) "
            f"WHERE {_JUDGED} AND factor IS NOT NULL ORDER BY 1",
            decimals=3,
            limits=_SLOWER,
        ),
        Panel(
            "Groups of the newest verdict: slowdown over limit",
            "table",
            "Above 1, chance does not explain the slowdown of the group.",
            (
                Series(
                    "sort_desc(max by (operation, backend, size_class) "
                    '(collbench_gate_group_time_ratio{strike="1"} / ignoring(strike) collbench_gate_group_limit_ratio))'
                ),
            ),
            "SELECT operation, backend, size_class, state, outcome, factor, limit_factor, factor / nullif(limit_factor, 0) AS over_limit "
            f"FROM collbench.verdict_groups WHERE verdict_id = {_NEWEST_VERDICT} ORDER BY over_limit DESC NULLS LAST",
        ),
    ),
)

_TELEMETRY_OF = 'node=~"$node"'
_SQL_TELEMETRY_OF = "node IN (${node:sqlstring}) AND $__unixEpochFilter(ended_s)"


def _gpu(title: str, summary: str, metric: str, column: str, unit: str) -> Panel:
    """Return the panel of a value of the GPUs."""
    return Panel(
        title,
        "timeseries",
        summary,
        (Series(f"{metric}{{{_TELEMETRY_OF}}}", "{{node}} {{gpu}}"),),
        f"SELECT to_timestamp(ended_s) AS time, node || ' ' || gpu AS metric, {column} AS value FROM collbench.telemetry_history "
        f"WHERE {_SQL_TELEMETRY_OF} AND {column} IS NOT NULL ORDER BY 1",
        unit=unit,
    )


def _state(title: str, summary: str, metric: str, column: str, unit: str) -> Panel:
    """Return the panel of a condition around each case."""
    return Panel(
        title,
        "timeseries",
        summary,
        (Series(f"max by (node) ({metric}{{{_TELEMETRY_OF}}})", "{{node}}"),),
        f"SELECT to_timestamp(ended_s) AS time, node AS metric, {column} AS value FROM collbench.node_history "
        f"WHERE {_SQL_TELEMETRY_OF} AND {column} IS NOT NULL ORDER BY 1",
        unit=unit,
    )


TELEMETRY = Dashboard(
    "telemetry",
    "telemetry during a run",
    "The machine state around each test case of a run: state probe, CPU time, and the GPUs. Run `collbench store sync` during the run.",
    (_NODES,),
    (
        _state(
            "State probe",
            "Fixed work, measured after each case: a change means that the machine state changed.",
            "collbench_state_probe_seconds",
            "probe_after_s",
            "s",
        ),
        _state(
            "Stolen CPU time",
            "Share of the CPU time that a hypervisor took during a case.",
            "collbench_stolen_ratio",
            "stolen",
            "percentunit",
        ),
        _state(
            "Preemptions",
            "How often a rank of the case was preempted.",
            "collbench_preemptions",
            "preempted",
            "short",
        ),
        _gpu("SM clock", "Median clock during a case.", "collbench_gpu_sm_clock_hertz", "1e6 * sm_mhz", "hertz"),
        _gpu("Power", "Highest power during a case.", "collbench_gpu_power_watts", "power_w", "watt"),
        _gpu("Temperature", "Highest temperature during a case.", "collbench_gpu_temperature_celsius", "temperature_c", "celsius"),
        _gpu(
            "Throttled",
            "Share of the samples during a case at which NVML reported throttling by power, heat or the hardware brake.",
            "collbench_gpu_throttled_ratio",
            "throttled",
            "percentunit",
        ),
    ),
    hours=3,
    refresh="10s",
)

DASHBOARDS = (FLEET, NODE, OPERATION, GATE, TELEMETRY)
