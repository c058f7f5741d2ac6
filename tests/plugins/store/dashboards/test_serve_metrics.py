"""`collbench store serve-metrics`: what it serves, that it is bounded, and what happens with bad input."""

import http.client
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as as_openmetrics
from prometheus_client.parser import text_string_to_metric_families as as_text

from collbench.errors import UsageError
from collbench.plugins.store.database import open_store
from collbench.plugins.store.metrics import DAYS, MetricsRange, MetricsServer, metrics_text
from collbench.plugins.store.writing import Writer, sync
from collbench.results.folder import RunFolder
from collbench.results.row import Row
from tests.cli.command import PROGRAM, environment, run_here
from tests.plugins.store.dashboards.fleet import GPU, NIGHTS, NODES, SLOW, fleet, rows, run_folder
from tests.results.rows import make_row, make_times, not_measured

Samples = dict[str, list[tuple[dict[str, str], float]]]
NOW = datetime.now(UTC)
DEFAULT = MetricsRange()


def store_of(folder: Path, runs: Path) -> str:
    name = str(folder / "fleet.db")
    database = open_store(name, write=True)
    assert not sync(Writer(database), [runs]).refused
    database.close()
    return name


def samples_of(text: str) -> Samples:
    """By name the labels and values that the parsers of both formats find; they must agree."""
    found = {family.name: [(each.labels, each.value) for each in family.samples] for family in as_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert {family.name: [(each.labels, each.value) for each in family.samples] for family in as_text(text)} == found
    return found


def metrics_of(store: str, covers: MetricsRange = DEFAULT, now: datetime = NOW) -> Samples:
    database = open_store(store)
    try:
        return samples_of(metrics_text(database, covers, now.timestamp()))
    finally:
        database.close()


def of_rows(folder: Path, *runs: tuple[Sequence[Row], timedelta, Sequence[str]]) -> str:
    for number, (of_run, old, hosts) in enumerate(runs):
        run_folder(folder / "runs" / str(number), list(of_run), NOW - old, hosts=list(hosts))
    return store_of(folder, folder / "runs")


HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def test_each_case_and_node_has_its_newest_value_state_and_verdict(tmp_path: Path) -> None:
    store = store_of(tmp_path, fleet(tmp_path / "runs", NOW))
    found = metrics_of(store)
    rates = {(labels["node"], labels["size_bytes"]): value for labels, value in found["collbench_busbw_bytes_per_second"]}
    assert set(rates) == {(node, size) for node in NODES for size in ("8", str(64 << 20))}
    newest = 1 + 0.01 * (NIGHTS - 1)
    assert rates[SLOW, str(64 << 20)] == pytest.approx(42e9 * 0.7 * newest)
    assert rates["n4", str(64 << 20)] == pytest.approx(42e9 * newest)
    assert rates["n1", str(64 << 20)] == 42e9  # the run with telemetry is newer
    last = {labels["node"]: value for labels, value in found["collbench_node_last_run_timestamp_seconds"]}
    assert last["n1"] == pytest.approx((NOW - HOUR).timestamp())
    runs = {labels["node"]: value for labels, value in found["collbench_node_runs"]}
    assert {node: runs[node] for node in NODES} == {"n1": 4, "n2": 4, "n3": 3, "n4": 3}
    assert found["collbench_store_runs"][0][1] == len(list((tmp_path / "runs").glob("*/run.json")))
    assert found["collbench_store_rows_left_out"][0][1] == 0
    suspects = {labels["state"]: (labels["node"], value) for labels, value in found["collbench_suspect_ratio"]}
    assert suspects["confirmed"] == ("cb1h7", pytest.approx(0.513, abs=0.001))
    results = {labels["result"]: value for labels, value in found["collbench_gate_result"]}
    assert results == {"passed": 0, "regression": 1, "no_verdict": 0, "wrong_data": 0}
    assert "collbench_gate_group_time_ratio" in found
    assert {labels["node"]: value for labels, value in found["collbench_state_probe_seconds"]} == dict.fromkeys(NODES, 1.2e-5)
    assert {value for _, value in found["collbench_stolen_ratio"]} == {0.01}
    gpus = {(labels["node"], labels["gpu"]) for labels, _ in found["collbench_gpu_power_watts"]}
    assert gpus == {("n1", GPU), ("n2", GPU)}
    assert {value for _, value in found["collbench_gpu_throttled_ratio"]} == {1.0}


def test_old_runs_are_left_out(tmp_path: Path) -> None:
    store = of_rows(tmp_path, (rows(1e9), 2 * HOUR, ["new"]), (rows(1e9), (DAYS + 1) * DAY, ["old"]))
    assert {labels["node"] for labels, _ in metrics_of(store)["collbench_measured"]} == {"new"}
    found = metrics_of(store, MetricsRange(days=30))
    assert {labels["node"] for labels, _ in found["collbench_measured"]} == {"new", "old"}


def test_the_number_of_series_is_limited_and_the_newest_stay(tmp_path: Path) -> None:
    sizes = [make_row(2**power) for power in range(3, 23)]
    store = of_rows(tmp_path, (sizes, 2 * DAY, ["a"]), (sizes, HOUR, ["b"]))
    found = metrics_of(store, MetricsRange(most_rows=25))
    measured = [labels["node"] for labels, _ in found["collbench_measured"]]
    assert (measured.count("a"), measured.count("b")) == (5, 20)
    assert found["collbench_store_rows_left_out"][0][1] == 15
    assert all(len(values) <= 25 for values in found.values())


def test_a_case_that_is_no_longer_available_has_no_figures(tmp_path: Path) -> None:
    store = of_rows(tmp_path, ([make_row(8)], DAY, ["a"]), ([not_measured("no memory", size_bytes=8)], HOUR, ["a"]))
    found = metrics_of(store)
    assert [value for _, value in found["collbench_measured"]] == [0]
    assert "collbench_time_seconds" not in found


def test_the_cases_of_a_run_in_progress_are_there_after_each_sync(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs" / "now", "allreduce", {"hosts": ["a"]})
    for number, stolen in enumerate((0.0, 0.25), 1):
        run.append(make_row(8 * number, evidence={"at_s": [number - 1, number], "stolen": stolen}), {})
        found = metrics_of(store_of(tmp_path, tmp_path / "runs"), now=datetime.now(UTC))
        assert len(found["collbench_time_seconds"]) == number
        assert [value for _, value in found["collbench_stolen_ratio"]] == [stolen]
    run.finish(exit_code=0)


def test_an_empty_window_and_hostile_names_are_valid(tmp_path: Path) -> None:
    found = metrics_of(of_rows(tmp_path, ([make_row(8)], 100 * DAY, ["a"])))
    assert set(found) == {"collbench_store_runs", "collbench_store_rows_left_out", "collbench_store_read_seconds"}
    evil = 'x"} 1\ncollbench_time_seconds{a="\\\u202e' + "y" * 500
    row = make_row(8, backend=evil, time_s=make_times(1e-6))
    found = metrics_of(of_rows(tmp_path / "second", ([row], HOUR, [evil])))
    ((labels, value),) = found["collbench_time_seconds"]
    assert value == 1e-6
    assert labels["node"].startswith('x"} 1?collbench_time_seconds{a="\\?y') and len(labels["node"]) == len(labels["backend"]) == 200


Get = Callable[..., tuple[int, str, str]]


@contextmanager
def serving(store: str, address: str = "127.0.0.1") -> Iterator[tuple[MetricsServer, Get]]:
    """Yield a server in a thread, and a function that returns (status, type, text) of a request."""
    with MetricsServer(store, MetricsRange(), 0, address) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()

        def get(path: str = "/metrics", method: str = "GET", accept: str = "", host: str | None = None) -> tuple[int, str, str]:
            connection = http.client.HTTPConnection(address, server.server_port, timeout=20)
            connection.putrequest(method, path, skip_host=True)
            connection.putheader("Host", host or f"{f'[{address}]' if ':' in address else address}:{server.server_port}")
            connection.putheader("Accept", accept)
            connection.endheaders()
            reply = connection.getresponse()
            text = reply.read().decode()
            connection.close()
            return reply.status, reply.getheader("Content-Type") or "", text

        try:
            yield server, get
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def store(tmp_path: Path) -> str:
    return of_rows(tmp_path, ([make_row(8)], HOUR, ["a"]))


@pytest.mark.system
def test_the_format_is_what_the_scraper_asks_for_and_nothing_else_is_reachable(store: str) -> None:
    with serving(store) as (_, get):
        status, kind, text = get(accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
        assert (status, kind) == (200, "application/openmetrics-text; version=1.0.0; charset=utf-8")
        assert text.endswith("# EOF\n") and "collbench_time_seconds" in samples_of(text)
        assert get()[:2] == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert get(method="HEAD")[2] == ""
        assert {get(path)[0] for path in ("/", "/metrics/", "/../fleet.db", "/fleet.db", "//metrics/x")} == {404}
        assert {get(method=method)[0] for method in ("POST", "PUT", "DELETE")} == {501}
        assert get(host="evil.example")[0] == 403
        Path(store).rename(f"{store}.away")
        status, _, text = get()
        assert status == 503 and text.count("\n") == 0 and "does not exist" in text
        Path(f"{store}.away").rename(store)
        assert get()[0] == 200


@pytest.mark.system
def test_a_run_that_is_added_later_is_served(store: str, tmp_path: Path) -> None:
    with serving(store) as (_, get):
        assert 'node="b"' not in get()[2]
        run_folder(tmp_path / "later", [make_row(8)], NOW, hosts=["b"])
        database = open_store(store, write=True)
        sync(Writer(database), [tmp_path / "later"])
        database.close()
        assert 'node="b"' in get()[2]


@pytest.mark.system
def test_it_serves_at_ipv6_addresses(store: str) -> None:
    try:
        with serving(store, "::1") as (server, get):
            assert server.address == f"http://[::1]:{server.server_port}/"
            assert get()[0] == 200
    except UsageError as error:
        assert "cannot be used" in str(error)
        pytest.skip(f"no IPv6 here: {error}")


@pytest.mark.system
def test_bad_input_is_one_sentence(store: str, tmp_path: Path) -> None:
    with serving(store) as (server, _):
        used = str(server.server_port)
        for options, expected in (
            (("serve-metrics", store, "--port", used), "cannot be used"),
            (("serve-metrics", store, "--port", "70000"), "not a valid port"),
            (("serve-metrics", store, "--address", "localhost"), "not an IP address"),
            (("serve-metrics", store, "--days", "0"), "not a number above 0"),
            (("serve-metrics", store, "--limit", "0"), "not a whole number"),
            (("serve-metrics", "missing.db"), "does not exist"),
            (("dashboards", "influxdb", "x"), "invalid choice"),
        ):
            done = run_here(tmp_path, "store", *options)
            assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
            assert expected in done.stderr


@pytest.mark.long
def test_the_command_serves_until_ctrl_c(store: str, tmp_path: Path) -> None:
    line = [*PROGRAM, "store", "serve-metrics", store, "--port", "0"]
    process = subprocess.Popen(line, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.fullmatch(r"metrics of .*fleet\.db: http://127\.0\.0\.1:(\d+)/metrics \(Ctrl\+C ends\)\n", process.stdout.readline())
        assert found
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=20)
        connection.request("GET", "/metrics")
        assert "collbench_time_seconds" in samples_of(connection.getresponse().read().decode())
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
