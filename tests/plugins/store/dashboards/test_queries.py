"""Every query of every dashboard returns data from a real Prometheus and from a real PostgreSQL server, for the same fleet."""

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from collbench.plugins.store.dashboards import DASHBOARDS, FLEET, GATE, NODE, OPERATION, TELEMETRY
from collbench.plugins.store.database import Database, open_store
from collbench.plugins.store.grafana import Dashboard, DashboardVariable, Panel
from collbench.plugins.store.metrics import MetricsRange, MetricsServer
from collbench.plugins.store.writing import Writer, sync
from tests.conftest import cannot
from tests.plugins.store.dashboards.fleet import GPU, NODES, SIZE, SLOW, fleet
from tests.plugins.store.dashboards.prometheus import Prometheus
from tests.plugins.store.postgresql import NoServer, server

pytestmark = pytest.mark.long

CHOSEN: Mapping[str, Sequence[str]] = {"operation": ["allreduce"], "backend": ["nccl"], "size_bytes": [str(SIZE)], "node": list(NODES)}
ONE_NODE = {**CHOSEN, "node": [SLOW]}
PANELS = [pytest.param(each, panel, id=f"{each.name}: {panel.title}") for each in DASHBOARDS for panel in each.panels]
VARIABLES = [pytest.param(each, id=f"{board.name}: {each.name}") for board in DASHBOARDS for each in board.variables]
# Macros in queries of PostgreSQL.
TIME_FILTER = re.compile(r"\$__unixEpochFilter\((\w+)\)")
END = "$__unixEpochTo()"
VALUES = re.compile(r"\$\{(\w+):sqlstring\}")


def expanded(sql: str, begin_s: float, end_s: float, values: Mapping[str, Sequence[str]]) -> str:
    """Return a query as Grafana sends it: with the time range in seconds since 1970, and the chosen values of each variable."""
    begin, end = int(begin_s), int(end_s)  # as Grafana
    sql = TIME_FILTER.sub(lambda found: f"{found[1]} >= {begin} AND {found[1]} <= {end}", sql).replace(END, str(end))
    return VALUES.sub(lambda found: ",".join("'{}'".format(value.replace("'", "''")) for value in values[found[1]]), sql)


def chosen(dashboard: Dashboard) -> Mapping[str, Sequence[str]]:
    return ONE_NODE if dashboard is NODE else CHOSEN


def add_fleet(store: str, folder: Path) -> None:
    database = open_store(store, write=True)
    assert not sync(Writer(database), [folder]).refused
    database.close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fleet(tmp_path_factory.mktemp("fleet"))


@pytest.fixture(scope="module")
def prometheus(folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    own = tmp_path_factory.mktemp("prometheus")
    add_fleet(str(own / "fleet.db"), folders)
    with MetricsServer(str(own / "fleet.db"), MetricsRange(), 0, "127.0.0.1") as endpoint:
        thread = threading.Thread(target=endpoint.serve_forever, args=(0.05,))
        thread.start()
        try:
            with Prometheus(own / "server", f"127.0.0.1:{endpoint.server_port}") as found:
                yield found
        finally:
            endpoint.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def database(folders: Path) -> Iterator[Database]:
    with ExitStack() as stack:
        try:
            running = stack.enter_context(server())
        except NoServer as why:
            cannot(why)
        add_fleet(running.url, folders)
        found = open_store(running.url)
        stack.callback(found.close)
        yield found


class TestPrometheus:
    @staticmethod
    def with_values(query: str, dashboard: Dashboard) -> str:
        for name, values in chosen(dashboard).items():
            query = query.replace(f"${name}", "|".join(values))
        return query

    @pytest.mark.parametrize(("dashboard", "panel"), PANELS)
    def test_a_panel_has_data_and_its_legend_names_labels_of_the_series(
        self, prometheus: Prometheus, dashboard: Dashboard, panel: Panel
    ) -> None:
        for series in panel.prometheus:
            query = self.with_values(series.query, dashboard)
            assert "$" not in query
            found = prometheus.query(query)
            assert found, query
            labels, _ = found[0]
            assert set(re.findall(r"\{\{(\w+)\}\}", series.legend)) <= set(labels)
            if not panel.instant:
                assert prometheus.query_range(query), query

    @pytest.mark.parametrize("variable", VARIABLES)
    def test_a_variable_has_values(self, prometheus: Prometheus, variable: DashboardVariable) -> None:
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable.prometheus)
        assert found
        assert set(CHOSEN[variable.name]) <= set(prometheus.label_values(found[2], self.with_values(found[1], FLEET)))

    def values(self, prometheus: Prometheus, dashboard: Dashboard, title: str) -> list[tuple[Mapping[str, str], float]]:
        (panel,) = (each for each in dashboard.panels if each.title == title)
        return prometheus.query(self.with_values(panel.prometheus[0].query, dashboard))

    def test_the_slow_node_is_the_lowest_and_no_node_is_missing(self, prometheus: Prometheus) -> None:
        ratios = {labels["node"]: value for labels, value in self.values(prometheus, FLEET, FLEET.panels[5].title)}
        assert min(ratios, key=lambda node: ratios[node]) == SLOW and ratios[SLOW] == pytest.approx(0.7, rel=0.03)
        assert set(ratios) == set(NODES)
        ((_, lowest),) = self.values(prometheus, NODE, "Slowest case relative to the median node")
        assert lowest == pytest.approx(ratios[SLOW])

    def test_the_figures_are_those_of_the_runs(self, prometheus: Prometheus) -> None:
        bandwidth = {labels["node"]: value for labels, value in self.values(prometheus, OPERATION, "Bus bandwidth")}
        assert bandwidth[SLOW] == pytest.approx(42e9 * 0.7 * 1.02)
        assert [value for _, value in self.values(prometheus, GATE, "Newest result")] == [1]
        assert {value for _, value in self.values(prometheus, TELEMETRY, "SM clock")} == {1.4e9}
        assert self.values(prometheus, FLEET, "No run for 2 days")[0][1] == 0


class TestPostgreSQL:
    @staticmethod
    def with_values(sql: str, dashboard: Dashboard) -> str:
        now = time.time()
        found = expanded(sql, now - 30 * 86400, now, chosen(dashboard))
        assert "$" not in found
        return found

    @pytest.mark.parametrize(("dashboard", "panel"), PANELS)
    def test_a_panel_has_data(self, database: Database, dashboard: Dashboard, panel: Panel) -> None:
        found = database.rows(text(self.with_values(panel.postgresql, dashboard)))
        assert found
        if panel.kind == "timeseries":
            assert all(isinstance(each[0], datetime) and isinstance(each[1], str) for each in found)
            assert [each[0] for each in found] == sorted(each[0] for each in found)
            assert all(isinstance(float(each[2]), float) for each in found)
        if panel.kind in ("stat", "bargauge"):
            assert all(each[-1] is not None for each in found)

    @pytest.mark.parametrize("variable", VARIABLES)
    def test_a_variable_has_values(self, database: Database, variable: DashboardVariable) -> None:
        found = {str(value) for (value,) in database.rows(text(self.with_values(variable.postgresql, FLEET)))}
        assert set(CHOSEN[variable.name]) <= found

    def values(self, database: Database, dashboard: Dashboard, title: str) -> list[tuple[Any, ...]]:
        (panel,) = (each for each in dashboard.panels if each.title == title)
        return database.rows(text(self.with_values(panel.postgresql, dashboard)))

    def test_the_slow_node_is_the_lowest_and_the_history_is_complete(self, database: Database) -> None:
        ratios = dict(self.values(database, FLEET, FLEET.panels[5].title))
        assert min(ratios, key=lambda node: ratios[node]) == SLOW and ratios[SLOW] == pytest.approx(0.7, rel=0.03)
        assert set(ratios) == set(NODES)
        history = [value for _, node, value in self.values(database, OPERATION, "Bus bandwidth") if node == SLOW]
        assert history == [pytest.approx(42e9 * 0.7 * (1 + 0.01 * night)) for night in range(3)]

    def test_a_value_with_quotes_stays_a_value(self, database: Database) -> None:
        evil = {**CHOSEN, "operation": ["x'; DROP TABLE collbench.runs; --"], "node": ["n1'", "n2"]}
        assert database.rows(text(expanded(OPERATION.panels[0].postgresql, 0.0, time.time(), evil))) == []
        assert database.rows(text("SELECT count(*) FROM collbench.runs"))[0][0] > 0

    def test_the_gate_and_the_gpus_have_the_figures_of_the_runs(self, database: Database) -> None:
        assert self.values(database, GATE, "Newest result") == [(1,)]
        clocks = self.values(database, TELEMETRY, "SM clock")
        assert {(name, value) for _, name, value in clocks} == {(f"{node} {GPU}", 1.4e9) for node in ("n1", "n2")}
